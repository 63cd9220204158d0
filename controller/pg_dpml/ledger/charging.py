# SPDX-License-Identifier: PostgreSQL
"""Charging a run to the ledger and to its budget."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pg_dpml.database.catalog import SourceTable
from pg_dpml.database.session import Session
from pg_dpml.errors import BudgetError, DpmlError, ResolutionError, SpecError
from pg_dpml.ledger import models
from pg_dpml.ledger.advice import affordable, breach_of
from pg_dpml.ledger.budgets import (
    charge_of,
    closed_error,
    enter,
    left_of,
    load_budget,
    lock_budget,
    require_open,
    require_placement,
    require_unit,
    table_name,
)
from pg_dpml.ledger.claims import budget_of, claim, readable_budget
from pg_dpml.ledger.terms import Outlook, Priced, Terms, exact, price
from pg_dpml.names import shown
from pg_dpml.privacy.cost import Accounting
from pg_dpml.privacy.guarantee import Guarantee
from pg_dpml.privacy.releases import GaussianRun

__all__ = [
    "Charged",
    "accounting_of",
    "charge",
    "outlook",
    "refusal_of",
]


class Charged(NamedTuple):
    """A charge: its number in the ledger, and whether an earlier run had made it under the same name."""

    entry: int
    repeated: bool


def charge(
    session: Session,
    table: SourceTable,
    guarantee: Guarantee,
    gaussian: GaussianRun | None,
    *,
    dataset: str | None,
    model: str,
    method: str,
    n_units: int,
    mechanism: Mapping[str, Any],
    at_epsilon: Callable[[float], Priced],
    charge_key: str | None = None,
    terms: Terms | None = None,
) -> Charged:
    """Charge a run to the ledger and to its data set's budget; the caller commits before it reads a row.

    Parameters
    ----------
    session : Session
    table : SourceTable
        The table that the run reads.
    guarantee : Guarantee
    gaussian : Releases, PoissonSteps or None
        See `RunNoise.releases`.
    dataset : str or None
        Name of the budget to charge; None: the budget that lists the table, if there is one.
    model, method, n_units, mechanism
        See `models.charge`.
    at_epsilon : callable
        Returns guarantee and Gaussian part of this run at another epsilon, for advice; may raise an error.
    charge_key : str or None
        Name of the charge, which is made once; None: a new one.
    terms : Terms or None
        Terms of the run besides those of the budget.

    Returns
    -------
    Charged

    Raises
    ------
    BudgetError
        If the budget is closed or has too little left, or the run breaks its terms.
    GuaranteeError
        If the run protects another unit than the budget, or narrower neighbours, or the table belongs to
        another data set.
    SpecError
        If there is no such budget, or no budget that `charge_key` could be of.
    DpmlError
        If the transaction's snapshot is older than the last entry: try again in a new one. At READ
        COMMITTED, which every command uses, sessions wait for each other instead.

    Notes
    -----
    Source: privacy/README.md, "Budgets".
    """
    budget = budget_of(session, table, dataset)
    if budget is None and charge_key is not None:
        raise SpecError(
            "charge_key goes with a budget, which this data set has not: leave it out, or see "
            "dpml budget open"
        )
    if budget is not None:
        cost = price(budget, guarantee, gaussian)
        # Before the lock, as advice takes a while: neither the terms nor the run can change.
        both = (budget.terms,) if terms is None else (terms, budget.terms)
        rest = left_of(session, budget)
        breaches = (breach_of(budget, one, (guarantee, gaussian), at_epsilon, rest.cost) for one in both)
        breach = next(filter(None, breaches), None)
        advice = ""
        if breach is None and not rest.closed and not Outlook(budget, cost, rest).fits:
            least = max(one.min_epsilon for one in both)
            advice = affordable(budget, least, rest.cost, (guarantee, gaussian), at_epsilon)
        lock_budget(session, budget)
        if load_budget(session, budget.dataset) != budget:
            raise BudgetError(
                f"the budget of data set {shown(budget.dataset)} was opened again just now, by other terms: "
                "nothing was charged; try again"
            )
        left = left_of(session, budget)
        earlier = None if charge_key is None else charge_of(session, budget.dataset, charge_key)
        if earlier is not None:
            return Charged(earlier, True)
        require_open(budget, left)
        require_unit(session, budget, guarantee.unit)
        require_placement(budget, guarantee)
        if breach is not None:
            raise BudgetError(f"{breach}: nothing was charged")
        if not Outlook(budget, cost, left).fits:
            less = f"ask for less{advice or ', by a smaller delta'}"
            if not advice and cost.loss > left.cost.loss:
                less = "what is left pays for no such run at this delta"
            raise BudgetError(
                f"the budget of data set {shown(budget.dataset)} ({budget.meaning}) has "
                f"{budget.amount(left.cost)} "
                f"left, and this run costs {budget.amount(cost)}: nothing was charged; {less}"
            )
        claim(session, budget, table)
    entry = models.charge(
        session,
        table_name=table_name(table),
        model=model,
        method=method,
        epsilon=exact(guarantee.epsilon),
        delta=exact(guarantee.delta),
        relation=guarantee.relation.value,
        n_units=n_units,
        mechanism=dict(mechanism) | guarantee.protects(),
    )
    if budget is not None:
        enter(session, budget, left.entries + 1, charge_key or str(uuid.uuid4()), entry, cost)
    return Charged(entry, False)


def outlook(
    session: Session,
    table: SourceTable,
    guarantee: Guarantee,
    gaussian: GaussianRun | None,
    *,
    dataset: str | None,
    at_epsilon: Callable[[float], Priced],
) -> Outlook | None:
    """What `charge` would do; None if there is no budget, or the role may not read budgets.

    The terms of a registered data set are not considered.

    Raises
    ------
    GuaranteeError, SpecError
        As `charge`, for the wrong budget or unit.
    """
    budget = readable_budget(session, table, dataset)
    if budget is None:
        return None
    require_unit(session, budget, guarantee.unit)
    require_placement(budget, guarantee)
    priced = (guarantee, gaussian)
    left = left_of(session, budget)
    breach = breach_of(budget, budget.terms, priced, at_epsilon, left.cost)
    return Outlook(budget, price(budget, *priced), left, breach)


def accounting_of(session: Session, table: SourceTable, dataset: str | None) -> Accounting | None:
    """How the budget of a run adds up charges; None if there is no budget, or the role may not read it.

    Raises
    ------
    GuaranteeError, SpecError
        As `budget_of`.
    """
    budget = readable_budget(session, table, dataset)
    return None if budget is None else budget.accounting


def refusal_of(
    session: Session,
    table: SourceTable,
    dataset: str | None,
    error: ResolutionError,
    at_epsilon: Callable[[float], Priced],
    terms: Terms | None = None,
) -> DpmlError:
    """The error for an epsilon that is too small: the budget's own, if that requires a larger one still.

    Parameters
    ----------
    session : Session
    table : SourceTable
    dataset : str or None
    error : ResolutionError
        The error that names the least epsilon which the precision of the noise allows.
    at_epsilon : callable
    terms : Terms or None
        As in `charge`.

    Returns
    -------
    BudgetError or ResolutionError
    """
    budget = None if error.least is None else readable_budget(session, table, dataset)
    if budget is None or error.least is None:
        return error
    left = left_of(session, budget)
    if left.closed:
        return closed_error(budget)
    priced = at_epsilon(error.least)
    both = (budget.terms,) if terms is None else (terms, budget.terms)
    breaches = (breach_of(budget, one, priced, at_epsilon, left.cost) for one in both)
    breach = next(filter(None, breaches), None)
    if breach is None:
        return error
    return BudgetError(
        f"epsilon is too small for the precision of this run's noise, and at {error.least:.12g}, the least "
        f"that is not, it would still be refused: {breach}: nothing was charged"
    )
