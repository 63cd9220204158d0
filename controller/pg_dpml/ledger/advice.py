# SPDX-License-Identifier: PostgreSQL
"""Terms of a budget that a run breaks, and an epsilon that would keep them."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from decimal import Decimal

from pg_dpml.errors import GuaranteeError, SpecError
from pg_dpml.ledger.terms import Budget, Priced, Terms, asked, exact, price, short
from pg_dpml.privacy.cost import Cost, limit_of
from pg_dpml.spec.privacy import MOST_EPSILON

__all__ = [
    "affordable",
    "breach_of",
    "least_epsilon",
]


def breach_of(
    budget: Budget, terms: Terms, priced: Priced, at_epsilon: Callable[[float], Priced], rest: Cost
) -> str | None:
    """Describe the terms that a run breaks, with a value that keeps them; None if it keeps all.

    `rest` is what is left of the budget; advice does not exceed it.

    Source: privacy/README.md, "Budgets".
    """
    delta = exact(priced[0].delta)
    found = []
    if not terms.min_delta <= delta <= terms.max_delta:
        found.append(
            f"delta must be from {short(terms.min_delta)} to {short(terms.max_delta)}, as {terms.source} "
            f"has it, and this run's is {asked(delta)}"
        )
    cost = price(budget, *priced)
    least, most = (
        limit_of(budget.rule, one, budget.delta).loss for one in (terms.min_epsilon, terms.max_epsilon)
    )
    advice = ""
    if cost.loss < least:
        bound, of, limit = "must cost at least", terms.min_epsilon, least
        if not found:
            advice = _advice_for_more(least, terms.max_epsilon, budget, at_epsilon)
    elif cost.loss > most:
        bound, of, limit = "may cost at most", terms.max_epsilon, most
        if not found:
            afford = Cost(min(most, rest.loss), rest.delta)
            advice = _advice_for_less(afford, least, budget, priced, at_epsilon)
    else:
        return next(iter(found), None)
    amount = "" if budget.rule == "basic" else f" ({budget.privacy_loss_text(limit)})"
    found.append(
        f"{advice}one run {bound} what epsilon = {short(of)} at delta = {short(budget.delta)} costs by "
        f"rule {budget.rule} for {budget.relation.value}{amount}, as {terms.source} has it, and this run "
        f"costs {budget.privacy_loss_text(cost.loss)}"
    )
    return "; ".join(found)


def affordable(
    budget: Budget, min_epsilon: Decimal, rest: Cost, priced: Priced, at_epsilon: Callable[[float], Priced]
) -> str:
    """The largest epsilon that is left for a run that costs too much, in words; empty if none is.

    `min_epsilon`: as in `Terms`, the largest of all terms that hold.
    """
    least = limit_of(budget.rule, min_epsilon, budget.delta).loss
    epsilon = _most_affordable(budget, rest, least, priced, at_epsilon)
    if epsilon is None:
        return ""
    return f": at most epsilon = {short(epsilon)} at delta = {asked(exact(priced[0].delta))} is left for it"


def least_epsilon(enough: Callable[[Decimal], bool]) -> Decimal | None:
    """The least epsilon of three digits, from 1e-12 to 100, that is enough; None if there is none."""
    found = bisect_left(_PLACES, True, key=lambda place: enough(_of_three_digits(place)))
    return _of_three_digits(found) if found < len(_PLACES) else None


def _advice_for_more(
    least: Decimal, max_epsilon: Decimal, budget: Budget, at_epsilon: Callable[[float], Priced]
) -> str:
    def enough(epsilon: Decimal) -> bool:
        cost = _cost_at(budget, at_epsilon, epsilon)
        return cost is not None and cost.loss >= least

    epsilon = least_epsilon(enough)
    if epsilon is None or epsilon > max_epsilon:
        return "delta must be larger for this run: "
    return f"epsilon must be at least {short(epsilon)} for this run: "


def _advice_for_less(
    rest: Cost, least: Decimal, budget: Budget, priced: Priced, at_epsilon: Callable[[float], Priced]
) -> str:
    epsilon = _most_affordable(budget, rest, least, priced, at_epsilon)
    if epsilon is None:
        return "epsilon or delta must be smaller for this run: "
    delta = asked(exact(priced[0].delta))
    return f"epsilon must be at most {short(epsilon)} at delta = {delta} for this run: "


def _cost_at(budget: Budget, at_epsilon: Callable[[float], Priced], epsilon: Decimal) -> Cost | None:
    """Cost of the run at another epsilon; None if no such run is possible."""
    try:
        return price(budget, *at_epsilon(float(epsilon)))
    except (GuaranteeError, SpecError):
        return None


def _most_affordable(
    budget: Budget, rest: Cost, least: Decimal, priced: Priced, at_epsilon: Callable[[float], Priced]
) -> Decimal | None:
    """The largest epsilon of three digits at which a run costs from `least` to `rest`; None: no such."""

    def too_much(epsilon: Decimal) -> bool:
        cost = _cost_at(budget, at_epsilon, epsilon)
        return cost is not None and cost.loss > rest.loss

    asked = exact(priced[0].epsilon)
    place = bisect_left(
        _PLACES, True, key=lambda one: _of_three_digits(one) > asked or too_much(_of_three_digits(one))
    )
    if place == 0:
        return None
    epsilon = _of_three_digits(place - 1)
    cost = _cost_at(budget, at_epsilon, epsilon)
    # A smaller epsilon makes no smaller delta.
    return epsilon if cost is not None and cost.loss >= least and cost.delta <= rest.delta else None


_PLACES = range(900 * round(math.log10(MOST_EPSILON) + 12.0) + 1)


def _of_three_digits(place: int) -> Decimal:
    """The numbers 1.00e-12, 1.01e-12, ..., 9.99e-12, 1.00e-11, ... by their place."""
    decade, digits = divmod(place, 900)
    return Decimal(100 + digits).scaleb(decade - 14)
