# SPDX-License-Identifier: PostgreSQL
"""Budgets, their terms, and what is left of them, in numbers and in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from pg_dpml.errors import SpecError
from pg_dpml.names import shown
from pg_dpml.privacy.cost import Accounting, Cost, cost_of, epsilon_of
from pg_dpml.privacy.guarantee import Guarantee
from pg_dpml.privacy.releases import GaussianRun
from pg_dpml.spec.relation import Relation

__all__ = [
    "LEAST_BASIC_DELTA",
    "Budget",
    "Entry",
    "Left",
    "Outlook",
    "Priced",
    "Terms",
    "asked",
    "exact",
    "price",
    "short",
]


_MEASURES = {"basic": "epsilon", "zcdp": "rho", "gdp": "mu^2"}
"""What a rule measures privacy loss by."""
LEAST_BASIC_DELTA = Decimal("1e-30")

Priced = tuple[Guarantee, GaussianRun | None]
"""A run's guarantee and the Gaussian part of its noise, which determine its cost; see `price`."""


@dataclass(frozen=True)
class Terms:
    """Limits of one charge, whatever is left of the budget.

    Attributes
    ----------
    source : str
        Where the terms are written and whose they are, in words.
    min_epsilon, max_epsilon : Decimal
        Least and largest cost, 0 < min_epsilon <= max_epsilon: epsilon at the budget's delta, by the budget's
        rule and relation.
    min_delta, max_delta : Decimal
        Bounds on the delta of the run's own guarantee, 0 <= min_delta <= max_delta < 1.
    any_passes : bool
        Whether the number of passes may depend on the rows.
    max_passes : int or None
        Most passes of a run whose number is fixed beforehand; None for no bound.
    """

    source: str
    min_epsilon: Decimal
    max_epsilon: Decimal
    min_delta: Decimal
    max_delta: Decimal
    any_passes: bool = True
    max_passes: int | None = None

    def __post_init__(self) -> None:
        if not (self.max_epsilon.is_finite() and self.max_epsilon > 0):
            raise SpecError(f"max_epsilon must be in (0, inf), not {self.max_epsilon}")
        if not (self.min_epsilon.is_finite() and 0 < self.min_epsilon <= self.max_epsilon):
            raise SpecError(
                f"min_epsilon must be above 0 and at most {short(self.max_epsilon)}, the largest epsilon of "
                f"one run, not {self.min_epsilon}"
            )
        if not (self.max_delta.is_finite() and 0 <= self.max_delta < 1):
            raise SpecError(f"max_delta must be in [0, 1), not {self.max_delta}")
        if not (self.min_delta.is_finite() and 0 <= self.min_delta <= self.max_delta):
            raise SpecError(
                f"min_delta must be at least 0 and at most {short(self.max_delta)}, the largest delta of "
                f"one run, not {self.min_delta}"
            )

    def require_within(self, outer: Terms) -> None:
        """Check that these terms allow no epsilon and no delta that `outer` does not.

        Raises
        ------
        SpecError
            If they do.
        """
        for name, bound, loose in (
            ("min_epsilon", f"at least {short(outer.min_epsilon)}", self.min_epsilon < outer.min_epsilon),
            ("max_epsilon", f"at most {short(outer.max_epsilon)}", self.max_epsilon > outer.max_epsilon),
            ("min_delta", f"at least {short(outer.min_delta)}", self.min_delta < outer.min_delta),
            ("max_delta", f"at most {short(outer.max_delta)}", self.max_delta > outer.max_delta),
        ):
            if loose:
                raise SpecError(f"{name} must be {bound}, as {outer.source} has it")

    def require_passes(self, passes: int | None) -> None:
        """Check the number of passes of a run, None for one that depends on the rows.

        Raises
        ------
        SpecError
        """
        if passes is None and not self.any_passes:
            raise SpecError(
                "a run whose number of passes depends on the rows (solver = certified) is not allowed by "
                f"{self.source}, as that number can be counted on the server: take another method, "
                "in bolt-on take solver = sgd, or ask that role for dpml dataset register --allow-certified"
            )
        if passes is not None and self.max_passes is not None and passes > self.max_passes:
            raise SpecError(
                f"the run would read the table {passes} times, and {self.source} allows "
                f"{self.max_passes} passes a request: give a smaller number of passes"
            )

    @property
    def meaning(self) -> str:
        """The terms in words."""
        return (
            f"epsilon from {short(self.min_epsilon)} to {short(self.max_epsilon)}, "
            f"delta from {short(self.min_delta)} to {short(self.max_delta)}"
        )


@dataclass(frozen=True)
class Budget:
    """The most that all runs on a data set may spend together; see dpml.budgets."""

    dataset: str
    opened_at: datetime
    opened_by: str
    rule: str
    epsilon: Decimal
    delta: Decimal
    relation: Relation
    unit: str | None
    tables: tuple[str, ...]
    min_epsilon: Decimal
    min_delta: Decimal
    max_delta: Decimal
    limit: Cost
    shared: bool = False

    @property
    def terms(self) -> Terms:
        """Terms of every charge."""
        return Terms(
            f"the budget of data set {shown(self.dataset)} (opened by role {shown(self.opened_by)})",
            self.min_epsilon,
            self.epsilon,
            self.min_delta,
            self.max_delta,
        )

    @property
    def accounting(self) -> Accounting:
        """How its charges add up."""
        return Accounting(self.rule, self.relation)

    @property
    def meaning(self) -> str:
        """The limit in words."""
        return f"epsilon = {short(self.epsilon)}, delta = {short(self.delta)} by rule {self.rule}"

    def worth(self, privacy_loss: Decimal) -> float:
        """The epsilon of an amount of privacy loss, at the delta that the budget converts with."""
        return epsilon_of(self.rule, privacy_loss, self.delta - self.limit.delta)

    def amount(self, cost: Cost) -> str:
        """A cost in words."""
        text = self.privacy_loss_text(cost.loss)
        if self.rule != "basic":
            text += f" (worth epsilon = {self.worth(cost.loss):.4g} alone)"
        return f"{text} and delta = {short(cost.delta)}"

    def privacy_loss_text(self, privacy_loss: Decimal) -> str:
        """An amount of privacy loss in words."""
        return f"{_MEASURES[self.rule]} = {short(privacy_loss)}"


@dataclass(frozen=True)
class Left:
    """What is left of a budget after so many entries."""

    entries: int
    closed: bool
    cost: Cost


@dataclass(frozen=True)
class Entry:
    """An entry of a budget; `charge` is None where the budget was closed, or opened again.

    `terms` are those that were valid until it was opened again. See dpml.budget_entries.
    """

    turn: int
    entered_at: datetime
    entered_by: str
    charge_key: str
    charge: int | None
    loss: Decimal
    delta: Decimal
    terms: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Outlook:
    """The cost of a planned run, what is left of its budget, and the terms that it would break."""

    budget: Budget
    cost: Cost
    left: Left
    breach: str | None = None

    @property
    def fits(self) -> bool:
        """Whether the run could be charged now."""
        rest = self.left.cost
        enough = self.cost.loss <= rest.loss and self.cost.delta <= rest.delta
        return enough and not self.left.closed and self.breach is None


def exact(number: float) -> Decimal:
    """The decimal number that a float is written as."""
    return Decimal(repr(number))


def price(budget: Budget, guarantee: Guarantee, gaussian: GaussianRun | None) -> Cost:
    """Cost of a run with this guarantee and noise, in the units of a budget."""
    return cost_of(
        budget.rule,
        exact(guarantee.epsilon),
        exact(guarantee.delta),
        gaussian,
        run=guarantee.relation,
        budget=budget.relation,
    )


def asked(delta: Decimal) -> str:
    """A run's delta in words; a delta that only the sampler needs is 0."""
    return "0" if delta < LEAST_BASIC_DELTA else short(delta)


def short(number: Decimal) -> str:
    """A number in words: exact if it has at most twelve digits, else to six digits."""
    return f"{float(number):.{12 if len(number.as_tuple().digits) <= 12 else 6}g}"
