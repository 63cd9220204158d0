# SPDX-License-Identifier: PostgreSQL
"""Budgets of data sets, and every charge: tables dpml.budgets and dpml.budget_entries.

A budget has the name of a data set, which no rename, dump or restore changes. Its entries are numbered, and
nobody can add an entry without having seen the one before.
"""

from __future__ import annotations

import math
import shlex
import uuid
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from typing import Any, NamedTuple

from pg_dpml import registry
from pg_dpml.database import Session, SourceTable, sql
from pg_dpml.errors import BudgetError, DpmlError, GuaranteeError, ResolutionError, SpecError
from pg_dpml.methods.plan import Guarantee
from pg_dpml.names import did_you_mean, reads_as, shown, toml_text
from pg_dpml.privacy.budget import (
    RULES,
    Accounting,
    Cost,
    GaussianRun,
    cost_of,
    cost_of_one,
    epsilon_of,
    limit_of,
)
from pg_dpml.privacy.relation import Relation
from pg_dpml.spec import MOST_EPSILON
from pg_dpml.tables.inspection import looks_like_person

__all__ = [
    "Budget",
    "Charged",
    "Entry",
    "Left",
    "Outlook",
    "Runs",
    "Terms",
    "account_of",
    "accounting_of",
    "budget_of",
    "charge",
    "charge_of",
    "claim",
    "close_budget",
    "dataset_of",
    "history",
    "left_of",
    "likely_units",
    "load_budget",
    "missing_tables",
    "open_budget",
    "outlook",
    "refusal_of",
    "require_unit",
    "runs_left",
]

_LOSSES = {"basic": "epsilon", "zcdp": "rho", "gdp": "mu^2"}
_MOST_EPSILON = {"basic": Decimal(1000), **dict.fromkeys(("zcdp", "gdp"), Decimal(int(MOST_EPSILON)))}
_LEAST_BASIC_DELTA = Decimal("1e-30")
_LEAST_DELTA = Decimal("1e-100")
_DOWN = Context(prec=6, rounding=ROUND_FLOOR)
_LEAST_SHARE = Decimal("0.001")
"""What a charge costs at least of a budget, unless its owner says otherwise."""

Priced = tuple[Guarantee, GaussianRun | None]
"""What a run's cost follows from; the second: see `privacy.budget.gaussian_part`."""


@dataclass(frozen=True)
class Terms:
    """What one charge must keep to, whatever is left of the budget.

    Attributes
    ----------
    source : str
        Where they stand and whose they are, in words.
    min_epsilon, max_epsilon : Decimal
        What it must cost at least and may cost at most, 0 < min_epsilon <= max_epsilon: epsilon at the
        budget's delta, by the budget's rule and relation.
    min_delta, max_delta : Decimal
        Bounds on the delta of its own guarantee, 0 <= min_delta <= max_delta < 1.
    any_passes : bool
        Whether the number of its passes may depend on the rows.
    """

    source: str
    min_epsilon: Decimal
    max_epsilon: Decimal
    min_delta: Decimal
    max_delta: Decimal
    any_passes: bool = True

    def __post_init__(self) -> None:
        if not (self.max_epsilon.is_finite() and self.max_epsilon > 0):
            raise SpecError(f"max_epsilon must be in (0, inf), not {self.max_epsilon}")
        if not (self.min_epsilon.is_finite() and 0 < self.min_epsilon <= self.max_epsilon):
            raise SpecError(
                f"min_epsilon must be above 0 and at most {_short(self.max_epsilon)}, the largest epsilon of "
                f"one run, not {self.min_epsilon}"
            )
        if not (self.max_delta.is_finite() and 0 <= self.max_delta < 1):
            raise SpecError(f"max_delta must be in [0, 1), not {self.max_delta}")
        if not (self.min_delta.is_finite() and 0 <= self.min_delta <= self.max_delta):
            raise SpecError(
                f"min_delta must be at least 0 and at most {_short(self.max_delta)}, the largest delta of "
                f"one run, not {self.min_delta}"
            )

    def require_within(self, outer: Terms) -> None:
        """Refuse terms that allow another epsilon or another delta than `outer` does.

        Raises
        ------
        SpecError
        """
        for name, bound, loose in (
            ("min_epsilon", f"at least {_short(outer.min_epsilon)}", self.min_epsilon < outer.min_epsilon),
            ("max_epsilon", f"at most {_short(outer.max_epsilon)}", self.max_epsilon > outer.max_epsilon),
            ("min_delta", f"at least {_short(outer.min_delta)}", self.min_delta < outer.min_delta),
            ("max_delta", f"at most {_short(outer.max_delta)}", self.max_delta > outer.max_delta),
        ):
            if loose:
                raise SpecError(f"{name} must be {bound}, as {outer.source} has it")

    @property
    def meaning(self) -> str:
        """What they ask for, in words."""
        return (
            f"epsilon from {_short(self.min_epsilon)} to {_short(self.max_epsilon)}, "
            f"delta from {_short(self.min_delta)} to {_short(self.max_delta)}"
        )


@dataclass(frozen=True)
class Budget:
    """What all runs on a data set together may spend; see dpml.budgets."""

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
        """What every charge must keep to."""
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
        """What it allows, in words."""
        return f"epsilon = {_short(self.epsilon)}, delta = {_short(self.delta)} by rule {self.rule}"

    def worth(self, loss: Decimal) -> float:
        """The epsilon of an amount of loss, at the delta that the budget converts with."""
        return epsilon_of(self.rule, loss, self.delta - self.limit.delta)

    def amount(self, cost: Cost) -> str:
        """A cost in words."""
        text = self.loss_text(cost.loss)
        if self.rule != "basic":
            text += f" (worth epsilon = {self.worth(cost.loss):.4g} alone)"
        return f"{text} and delta = {_short(cost.delta)}"

    def loss_text(self, loss: Decimal) -> str:
        """An amount of loss in words."""
        return f"{_LOSSES[self.rule]} = {_short(loss)}"


@dataclass(frozen=True)
class Left:
    """What is left of a budget after so many entries."""

    entries: int
    closed: bool
    cost: Cost


@dataclass(frozen=True)
class Entry:
    """What was taken out of a budget; `charge` is None where it was closed, or opened again.

    `terms` has what it was until it was opened again. See dpml.budget_entries.
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
    """What a run would take out of its budget, what is left of that, and which terms it would break."""

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


class Charged(NamedTuple):
    """A charge: its number in the ledger, and whether an earlier run under its charge key had made it."""

    entry: int
    repeated: bool


def open_budget(
    session: Session,
    dataset: str,
    *,
    epsilon: Decimal,
    delta: Decimal,
    rule: str,
    relation: Relation = Relation.REPLACE_ONE,
    unit: str | None = None,
    tables: tuple[str, ...] = (),
    min_epsilon: Decimal | None = None,
    min_delta: Decimal = Decimal(0),
    max_delta: Decimal | None = None,
    shared: bool = False,
) -> Budget:
    """Set the limit of a data set: once and for all, as soon as something is charged to it.

    Parameters
    ----------
    session : Session
    dataset : str
        A new name, 1 to 200 characters; or that of a budget, open or closed, that nothing was charged to.
    epsilon : Decimal
        In (0, 100]; up to 1000 for rule "basic".
    delta : Decimal
        In [1e-30, 1) for rule "basic", else in [1e-100, 1).
    rule : {"basic", "zcdp", "gdp"}
    relation : Relation
        Runs with guarantees of the other one are converted.
    unit : str or None
        Column that is the unit of privacy of every run.
    tables : tuple of str
        Tables and views, as in SQL, whose runs are charged here although they do not name the data set.
    min_epsilon : Decimal or None
        What one charge must cost at least, in (0, epsilon]: epsilon at this delta, by this rule and relation.
        None: a thousandth of the budget, rounded up to three digits of epsilon.
    min_delta, max_delta : Decimal or None
        Bounds on the delta of one run's own guarantee, in [0, delta]; None: `delta`.
    shared : bool
        Allow tables that are in another budget already; only a superuser may.

    Returns
    -------
    Budget

    Raises
    ------
    SpecError
        If an argument is outside its domain, or something was charged to the budget of this name.
    GuaranteeError
        If a table is in another budget, itself or what it reads, as far as the catalog knows.
    """
    if not dataset.strip() or len(dataset) > 200:
        raise SpecError("dataset must have 1 to 200 characters")
    if rule not in RULES:
        raise SpecError(f"rule must be one of {', '.join(RULES)}, not {rule!r}")
    most = _MOST_EPSILON[rule]
    if not (epsilon.is_finite() and 0 < epsilon <= most):
        raise SpecError(f"epsilon must be in (0, {most}] for rule {rule}, not {epsilon}")
    if not (delta.is_finite() and 0 <= delta < 1):
        raise SpecError(f"delta must be in [0, 1), not {delta}")
    if rule == "basic" and delta < _LEAST_BASIC_DELTA:
        raise SpecError(
            f"delta must be at least {_short(_LEAST_BASIC_DELTA)}: the noise of a run with delta = 0 takes "
            f"a delta of 1e-36 for each number of the model; give {_short(_LEAST_BASIC_DELTA)}"
        )
    if rule != "basic" and delta < _LEAST_DELTA:
        raise SpecError(
            f"delta must be at least {_short(_LEAST_DELTA)} for rule {rule}, which converts with it: give "
            "one well below 1 / (number of rows), or take rule basic"
        )
    before = _find(session, dataset)
    if before is not None:
        _lock(session, before)
        if any(entry.charge is not None for entry in history(session, dataset)):
            raise SpecError(
                f"data set {shown(dataset)} has a budget that runs were charged to, which is never made "
                f"larger: dpml budget show {shlex.quote(dataset)} says what is left"
            )
    found = list({table.oid: table for table in map(session.relation, tables)}.values())
    for listed in found:
        unit = None if unit is None else listed.column(unit, "unit")
    limit = limit_of(rule, epsilon, delta)
    if min_epsilon is None:
        share = _LEAST_SHARE * limit.loss
        min_epsilon = min(_least(lambda one: limit_of(rule, one, delta).loss >= share) or epsilon, epsilon)
    if max_delta is None:
        max_delta = delta
    Terms("", min_epsilon, epsilon, min_delta, max_delta)  # which refuses what makes no sense
    if max_delta > delta:
        raise SpecError(
            f"max_delta must be at most {_short(delta)}, the delta of the budget, not {_short(max_delta)}"
        )
    values = {
        "rule": rule,
        "epsilon": epsilon,
        "delta": delta,
        "relation": relation.value,
        "unit": unit,
        "tables": [_table_name(table) for table in found],
        "min_epsilon": min_epsilon,
        "min_delta": min_delta,
        "max_delta": max_delta,
        "loss_limit": limit.loss,
        "delta_limit": limit.delta,
        "shared": shared,
    }
    names = sql.SQL(", ").join(map(sql.Identifier, values))
    given = sql.SQL(", ").join(map(sql.Placeholder, values))
    if before is None:
        statement = sql.SQL("INSERT INTO dpml.budgets (dataset, {}) VALUES (%(dataset)s, {})")
    else:
        statement = sql.SQL("UPDATE dpml.budgets SET ({}) = ROW ({}) WHERE dataset = %(dataset)s")
    session.execute(statement.format(names, given), {"dataset": dataset} | values)
    opened = load_budget(session, dataset)
    for table in found:
        claim(session, opened, table, listed=True)
    return opened


def load_budget(session: Session, dataset: str) -> Budget:
    """The budget of a data set.

    Raises
    ------
    SpecError
        If it has none.
    """
    found = _find(session, dataset)
    if found is None:
        known = [name for (name,) in session.fetch(sql.SQL("SELECT dataset FROM dpml.budgets ORDER BY 1"))]
        offer = did_you_mean(dataset, known)
        raise SpecError(
            f"data set {shown(dataset)} has no budget{f'{offer} Else' if offer else ':'} "
            f"dpml budget open {shlex.quote(dataset)} opens one"
        )
    return found


def left_of(session: Session, budget: Budget) -> Left:
    """What is left of a budget."""
    entries, closed, loss, delta = session.fetch_one(
        sql.SQL(
            # An end counts for as long as the budget was not opened again.
            "SELECT pg_catalog.count(*), coalesce(pg_catalog.max(turn) FILTER (WHERE charge IS NULL "
            "AND terms IS NULL) > "
            "coalesce(pg_catalog.max(turn) FILTER (WHERE terms IS NOT NULL), 0), false), "
            "%(loss)s::numeric - coalesce(pg_catalog.sum(loss), 0), "
            "%(delta)s::numeric - coalesce(pg_catalog.sum(delta), 0) "
            "FROM dpml.budget_entries WHERE dataset = %(dataset)s"
        ),
        {"dataset": budget.dataset, "loss": budget.limit.loss, "delta": budget.limit.delta},
    )
    return Left(entries, closed, Cost(loss, delta))


def missing_tables(session: Session, budget: Budget) -> list[str]:
    """Tables a budget lists that are not there by this name, for a rename or a drop."""
    rows = session.fetch(
        sql.SQL(
            "SELECT listed.name FROM pg_catalog.unnest(%(tables)s::text[]) AS listed (name) "
            "WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_class c "
            "JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
            "WHERE n.nspname || '.' || c.relname = listed.name)"
        ),
        {"tables": list(budget.tables)},
    )
    return [name for (name,) in rows]


def history(session: Session, dataset: str) -> list[Entry]:
    """What was taken out of a budget, in order."""
    rows = session.fetch(
        sql.SQL(
            "SELECT turn, entered_at, entered_by, charge_key, charge, loss, delta, terms "
            "FROM dpml.budget_entries "
            "WHERE dataset = %(dataset)s ORDER BY turn"
        ),
        {"dataset": dataset},
    )
    return [Entry(*row) for row in rows]


def close_budget(session: Session, dataset: str) -> Budget:
    """End a budget: nothing more is charged to it. It is not opened again, unless nothing ever was.

    Raises
    ------
    SpecError
        If there is none.
    BudgetError
        If it is closed already.
    """
    budget = load_budget(session, dataset)
    _lock(session, budget)
    left = left_of(session, budget)
    _require_open(budget, left)
    _enter(session, budget, left.entries + 1, f"close {uuid.uuid4()}", None, Cost(Decimal(0), Decimal(0)))
    session.must_last(
        f"the budget of data set {shown(dataset)} may be closed, as dpml budget show {shlex.quote(dataset)} "
        "tells"
    )
    return budget


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
        That the run reads.
    guarantee : Guarantee
    gaussian : Releases, PoissonSteps or None
        See `privacy.budget.gaussian_part`.
    dataset : str or None
        Whose budget to charge; None: that which lists the table, if any does.
    model, method, n_units, mechanism
        See `registry.charge`.
    at_epsilon : callable
        Guarantee and Gaussian part of this run at another epsilon, for advice; may refuse it.
    charge_key : str or None
        Name of the charge, which is made once; None: a new one.
    terms : Terms or None
        What it must keep to beside the terms of the budget.

    Returns
    -------
    Charged

    Raises
    ------
    BudgetError
        If the budget is closed or has too little left, or the run breaks its terms.
    GuaranteeError
        If the run protects another unit than the budget, or the table belongs to another data set.
    SpecError
        If there is no such budget, or no budget that `charge_key` could be of.
    DpmlError
        In a transaction whose snapshot is older than the last entry: try again in a new one. At READ
        COMMITTED, as every command uses, sessions wait for each other instead.

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
        cost = _cost(budget, guarantee, gaussian)
        # Before the lock, as advice takes a while: neither the terms nor the run can change.
        both = (budget.terms,) if terms is None else (terms, budget.terms)
        rest = left_of(session, budget)
        breaches = (_breach(budget, one, (guarantee, gaussian), at_epsilon, rest.cost) for one in both)
        breach = next(filter(None, breaches), None)
        advice = ""
        if breach is None and not rest.closed and not Outlook(budget, cost, rest).fits:
            advice = _affordable(budget, rest.cost, (guarantee, gaussian), at_epsilon)
        _lock(session, budget)
        if load_budget(session, budget.dataset) != budget:
            raise BudgetError(
                f"the budget of data set {shown(budget.dataset)} was opened again just now, by other terms: "
                "nothing was charged; try again"
            )
        left = left_of(session, budget)
        earlier = None if charge_key is None else charge_of(session, budget.dataset, charge_key)
        if earlier is not None:
            return Charged(earlier, True)
        _require_open(budget, left)
        require_unit(session, budget, guarantee.unit)
        if breach is not None:
            raise BudgetError(f"{breach}: nothing was charged")
        if not Outlook(budget, cost, left).fits:
            less = advice or ("" if cost.loss > left.cost.loss else ", by a smaller delta")
            raise BudgetError(
                f"the budget of data set {shown(budget.dataset)} ({budget.meaning}) has "
                f"{budget.amount(left.cost)} "
                f"left, and this run costs {budget.amount(cost)}: nothing was charged; ask for less{less}"
            )
        claim(session, budget, table)
    entry = registry.charge(
        session,
        table_name=_table_name(table),
        model=model,
        method=method,
        epsilon=_exact(guarantee.epsilon),
        delta=_exact(guarantee.delta),
        relation=guarantee.relation.value,
        n_units=n_units,
        mechanism=dict(mechanism)
        | {"unit": guarantee.unit, "max_rows_per_unit": guarantee.max_rows_per_unit},
    )
    if budget is not None:
        _enter(session, budget, left.entries + 1, charge_key or str(uuid.uuid4()), entry, cost)
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
    """As `charge`, without charging: None where there is no budget, or the role may not read budgets.

    A request's own terms are not looked at.

    Raises
    ------
    GuaranteeError, SpecError
        As `charge`, for the wrong budget or unit.
    """
    budget = _readable_budget(session, table, dataset)
    if budget is None:
        return None
    require_unit(session, budget, guarantee.unit)
    priced = (guarantee, gaussian)
    left = left_of(session, budget)
    breach = _breach(budget, budget.terms, priced, at_epsilon, left.cost)
    return Outlook(budget, _cost(budget, *priced), left, breach)


def accounting_of(session: Session, table: SourceTable, dataset: str | None) -> Accounting | None:
    """How the budget adds up that a run is charged to: None where there is none, or the role may not read it.

    Raises
    ------
    GuaranteeError, SpecError
        As `budget_of`.
    """
    budget = _readable_budget(session, table, dataset)
    return None if budget is None else budget.accounting


def _readable_budget(session: Session, table: SourceTable, dataset: str | None) -> Budget | None:
    (readable,) = session.fetch_one(
        sql.SQL("SELECT pg_catalog.has_table_privilege('dpml.budgets', 'SELECT')")
    )
    return budget_of(session, table, dataset) if readable else None


def _breach(
    budget: Budget, terms: Terms, priced: Priced, at_epsilon: Callable[[float], Priced], rest: Cost
) -> str | None:
    """Which of the terms a run breaks, and what it may be instead; None if it keeps them.

    `rest`: what is left of the budget, which advice keeps to as well.

    Source: privacy/README.md, "Budgets".
    """
    delta = _exact(priced[0].delta)
    found = []
    if not terms.min_delta <= delta <= terms.max_delta:
        found.append(
            f"delta must be from {_short(terms.min_delta)} to {_short(terms.max_delta)}, as {terms.source} "
            f"has it, and this run's is {_asked(delta)}"
        )
    cost = _cost(budget, *priced)
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
    amount = "" if budget.rule == "basic" else f" ({budget.loss_text(limit)})"
    found.append(
        f"{advice}one run {bound} what epsilon = {_short(of)} at delta = {_short(budget.delta)} costs by "
        f"rule {budget.rule} for {budget.relation.value}{amount}, as {terms.source} has it, and this run "
        f"costs {budget.loss_text(cost.loss)}"
    )
    return "; ".join(found)


def _advice_for_more(
    least: Decimal, max_epsilon: Decimal, budget: Budget, at_epsilon: Callable[[float], Priced]
) -> str:
    def enough(epsilon: Decimal) -> bool:
        cost = _cost_at(budget, at_epsilon, epsilon)
        return cost is not None and cost.loss >= least

    epsilon = _least(enough)
    if epsilon is None or epsilon > max_epsilon:
        return "delta must be larger for this run: "
    return f"epsilon must be at least {_short(epsilon)} for this run: "


def _advice_for_less(
    rest: Cost, least: Decimal, budget: Budget, priced: Priced, at_epsilon: Callable[[float], Priced]
) -> str:
    epsilon = _most_affordable(budget, rest, least, priced, at_epsilon)
    if epsilon is None:
        return "epsilon or delta must be smaller for this run: "
    delta = _asked(_exact(priced[0].delta))
    return f"epsilon must be at most {_short(epsilon)} at delta = {delta} for this run: "


def _cost_at(budget: Budget, at_epsilon: Callable[[float], Priced], epsilon: Decimal) -> Cost | None:
    """What a run would cost at another epsilon; None if there cannot be such a run."""
    try:
        return _cost(budget, *at_epsilon(float(epsilon)))
    except (GuaranteeError, SpecError):
        return None


def _most_affordable(
    budget: Budget, rest: Cost, least: Decimal, priced: Priced, at_epsilon: Callable[[float], Priced]
) -> Decimal | None:
    """The largest epsilon of three digits of a run that costs at least `least` and at most `rest`, if any."""

    def too_much(epsilon: Decimal) -> bool:
        cost = _cost_at(budget, at_epsilon, epsilon)
        return cost is not None and cost.loss > rest.loss

    asked = _exact(priced[0].epsilon)
    place = bisect_left(
        _PLACES, True, key=lambda one: _of_three_digits(one) > asked or too_much(_of_three_digits(one))
    )
    if place == 0:
        return None
    epsilon = _of_three_digits(place - 1)
    cost = _cost_at(budget, at_epsilon, epsilon)
    # A smaller epsilon makes no smaller delta.
    return epsilon if cost is not None and cost.loss >= least and cost.delta <= rest.delta else None


def _affordable(budget: Budget, rest: Cost, priced: Priced, at_epsilon: Callable[[float], Priced]) -> str:
    """What of a run that costs more than is left could be paid for, in words."""
    least = limit_of(budget.rule, budget.min_epsilon, budget.delta).loss
    epsilon = _most_affordable(budget, rest, least, priced, at_epsilon)
    if epsilon is None:
        return ""
    return (
        f": at most epsilon = {_short(epsilon)} at delta = {_asked(_exact(priced[0].delta))} is left for it"
    )


def refusal_of(
    session: Session,
    table: SourceTable,
    dataset: str | None,
    error: ResolutionError,
    at_epsilon: Callable[[float], Priced],
    terms: Terms | None = None,
) -> DpmlError:
    """The refusal of an epsilon that is too small: that of the budget, where it asks for a larger one still.

    Parameters
    ----------
    session : Session
    table : SourceTable
    dataset : str or None
    error : ResolutionError
        Which names the least epsilon that the precision of the noise allows.
    at_epsilon : callable
    terms : Terms or None
        As in `charge`.

    Returns
    -------
    BudgetError or ResolutionError
    """
    budget = None if error.least is None else _readable_budget(session, table, dataset)
    if budget is None or error.least is None:
        return error
    priced = at_epsilon(error.least)
    both = (budget.terms,) if terms is None else (terms, budget.terms)
    rest = left_of(session, budget).cost
    breach = next(filter(None, (_breach(budget, one, priced, at_epsilon, rest) for one in both)), None)
    if breach is None:
        return error
    return BudgetError(
        f"epsilon is too small for the precision of this run's noise, and at {error.least:.12g}, the least "
        f"that is not, it would still be refused: {breach}: nothing was charged"
    )


def _least(enough: Callable[[Decimal], bool]) -> Decimal | None:
    """The least epsilon of three digits, from 1e-12 to 100, that is enough; None if none is."""
    found = bisect_left(_PLACES, True, key=lambda place: enough(_of_three_digits(place)))
    return _of_three_digits(found) if found < len(_PLACES) else None


_PLACES = range(900 * round(math.log10(MOST_EPSILON) + 12.0) + 1)


def _of_three_digits(place: int) -> Decimal:
    """The numbers 1.00e-12, 1.01e-12, ..., 9.99e-12, 1.00e-11, ... by their place."""
    decade, digits = divmod(place, 900)
    return Decimal(100 + digits).scaleb(decade - 14)


def charge_of(session: Session, dataset: str, charge_key: str) -> int | None:
    """Number in the ledger of the charge made under a charge key; None if there is none."""
    found = session.fetch(
        sql.SQL(
            "SELECT charge FROM dpml.budget_entries WHERE dataset = %(dataset)s "
            "AND charge_key = %(charge_key)s AND charge IS NOT NULL"
        ),
        {"dataset": dataset, "charge_key": charge_key},
    )
    return found[0][0] if found else None


def dataset_of(session: Session, model: registry.Model, table: SourceTable) -> str | None:
    """The data set whose budget a model was charged to, if `table` is what it was trained on."""
    if model.charge is None or model.training.get("table_name") != _table_name(table):
        return None
    found = session.fetch(
        sql.SQL("SELECT dataset FROM dpml.budget_entries WHERE charge = %(charge)s"), {"charge": model.charge}
    )
    return found[0][0] if found else None


def _exact(number: float) -> Decimal:
    return Decimal(repr(number))


def _cost(budget: Budget, guarantee: Guarantee, gaussian: GaussianRun | None) -> Cost:
    return cost_of(
        budget.rule,
        _exact(guarantee.epsilon),
        _exact(guarantee.delta),
        gaussian,
        run=guarantee.relation,
        budget=budget.relation,
    )


def _table_name(table: SourceTable) -> str:
    return f"{table.schema}.{table.name}"


def _asked(delta: Decimal) -> str:
    """A run's delta as it was asked for: that of the sampler alone is what delta = 0 is reported as."""
    return "0" if delta < _LEAST_BASIC_DELTA else _short(delta)


def _short(number: Decimal) -> str:
    """As it is where that is short, else to six digits."""
    return f"{float(number):.{12 if len(number.as_tuple().digits) <= 12 else 6}g}"


_COLUMNS = sql.SQL(
    "SELECT dataset, opened_at, opened_by, rule, epsilon, delta, relation, unit, tables, min_epsilon, "
    "min_delta, max_delta, shared, loss_limit, delta_limit FROM dpml.budgets WHERE dataset = %(dataset)s"
)


def _budget(
    dataset: str,
    opened_at: datetime,
    opened_by: str,
    rule: str,
    epsilon: Decimal,
    delta: Decimal,
    relation: str,
    unit: str | None,
    tables: list[str],
    min_epsilon: Decimal,
    min_delta: Decimal,
    max_delta: Decimal,
    shared: bool,
    *limit: Decimal,
) -> Budget:
    """A row of _COLUMNS."""
    return Budget(
        *(dataset, opened_at, opened_by, rule, epsilon, delta, Relation(relation), unit, tuple(tables)),
        *(min_epsilon, min_delta, max_delta, Cost(*limit), shared),
    )


def _find(session: Session, dataset: str) -> Budget | None:
    found = session.fetch(_COLUMNS, {"dataset": dataset})
    return _budget(*found[0]) if found else None


def claim(session: Session, budget: Budget, table: SourceTable, *, listed: bool = False) -> None:
    """Note that runs of a budget read a table; the first that does has it, and what it reads, for good.

    `listed`: so that runs need not name the data set.

    Raises
    ------
    GuaranteeError
        If it is in another budget, itself or what it reads, and a superuser has not allowed that.
    DpmlError
        In a transaction whose snapshot is older than the last table that came into a budget.

    Notes
    -----
    Source: privacy/README.md, "Budgets".
    """
    read = session.relations_read(table)
    new = session.fetch(
        sql.SQL(
            "SELECT number FROM pg_catalog.unnest(%(read)s::oid[]) AS new (number) WHERE NOT EXISTS (SELECT "
            "FROM dpml.budget_relations r WHERE r.relation = new.number AND r.dataset = %(dataset)s "
            "AND r.opened_at = %(opened_at)s)"
        ),
        {"read": read, "dataset": budget.dataset, "opened_at": budget.opened_at},
    )
    if not new:
        return
    session.execute(sql.SQL("UPDATE dpml.budget_turn SET turn = turn + 1"))  # others wait from here on
    claimed = session.attempt(
        lambda: [
            session.execute(
                sql.SQL(
                    "INSERT INTO dpml.budget_relations (dataset, relation, listed) "
                    "VALUES (%(dataset)s, %(read)s, %(listed)s)"
                ),
                {"dataset": budget.dataset, "read": relation, "listed": listed},
            )
            for (relation,) in new
        ]
    )
    if isinstance(claimed, DpmlError):
        found = _budgets_on(session, table)
        others = [name for name, (_, unused) in found.items() if name != budget.dataset and not unused]
        if not others:
            raise claimed
        opening = shlex.join(["dpml", "budget", "open", budget.dataset, "--table", _table_name(table)])
        raise GuaranteeError(
            f"table {shown(table.name)}, or a table that it shares rows with, is in the budget of data set "
            f"{', '.join(map(shown, others))} already, and a second budget would let its rows be paid for "
            f"twice: charge its runs there (dataset = {toml_text(others[0])} in the spec), or have a "
            f"superuser open the second budget by {opening} --allow-second-budget"
        )


def _budgets_on(session: Session, table: SourceTable) -> dict[str, tuple[bool, bool]]:
    """Budgets that a table, or what it reads, is in: if they list it, and if they were closed unused."""
    rows = session.fetch(
        sql.SQL("SELECT dataset, listed, unused FROM dpml.budgets_on(%(read)s::oid[]) ORDER BY dataset"),
        {"read": session.relations_read(table)},
    )
    return {dataset: (listed, unused) for dataset, listed, unused in rows}


def budget_of(session: Session, table: SourceTable, dataset: str | None) -> Budget | None:
    """The budget that a run is charged to; one that lists the table, or what it reads, cannot be passed by.

    Raises
    ------
    GuaranteeError
        If the table belongs to another data set than `dataset`.
    SpecError
        If there is no budget of this name, or several that list the table and none is named.
    """
    found = _budgets_on(session, table)
    used = [name for name, (_, unused) in found.items() if not unused]
    if dataset is None:
        listing = [name for name, (listed, _) in found.items() if listed]
        listing = [name for name in listing if name in used] or listing
        if len(listing) > 1:
            raise SpecError(
                f"table {shown(table.name)} is in several budgets: say which by dataset = one of "
                + ", ".join(map(shown, listing))
            )
        return load_budget(session, listing[0]) if listing else None
    named = _find(session, dataset)
    if used and dataset not in found and not (named is not None and named.shared):
        raise GuaranteeError(
            f"table {shown(table.name)} belongs to data set {', '.join(map(shown, used))}, not "
            f"{shown(dataset)}: charge its runs there"
        )
    return load_budget(session, dataset)


def _lock(session: Session, budget: Budget) -> None:
    """Wait until nobody else charges this budget; what is read next sees what they did."""
    # An advisory lock could be held by anyone who can connect; this takes a right to update.
    session.fetch(
        sql.SQL("SELECT FROM dpml.budgets WHERE dataset = %(dataset)s FOR NO KEY UPDATE"),
        {"dataset": budget.dataset},
    )


def _require_open(budget: Budget, left: Left) -> None:
    if left.closed:
        raise BudgetError(
            f"the budget of data set {shown(budget.dataset)} is closed, so nothing is left for any run: "
            "nothing was charged"
        )


def require_unit(session: Session, budget: Budget, unit: str | None) -> None:
    """Refuse another unit of privacy than the budget's, with what to type.

    Raises
    ------
    GuaranteeError
    """
    meant = budget.unit
    if meant is not None and unit is not None:
        meant = reads_as(meant, [unit])  # a budget that lists no table has it as it was written
    if unit == meant:
        return
    wanted, given = (f"unit = {shown(name)}" if name else "no unit" for name in (budget.unit, unit))
    fix = "leave unit out of the spec" if budget.unit is None else f"give unit = {toml_text(budget.unit)}"
    if not any(entry.charge is not None for entry in history(session, budget.dataset)):
        fix += (
            f"; or, as nothing was charged to this budget, open it again for the other unit: "
            f"{_opening(replace(budget, unit=unit))}"
        )
    raise GuaranteeError(
        f"the budget of data set {shown(budget.dataset)} is for {wanted}, and this run has {given}: one "
        f"budget has one unit of privacy; {fix}"
    )


def _opening(budget: Budget) -> str:
    """The command that opens a budget, without the terms of one run."""
    options = {
        "epsilon": [_short(budget.epsilon)],
        "delta": [_short(budget.delta)],
        "rule": [budget.rule],
        "relation": [budget.relation.value],
        "unit": [budget.unit] if budget.unit else [],
        "table": list(budget.tables),
    }
    given = [word for name, values in options.items() for value in values for word in (f"--{name}", value)]
    return shlex.join(["dpml", "budget", "open", budget.dataset, *given])


def likely_units(session: Session, budget: Budget) -> list[str]:
    """Columns of a budget's tables that look like a person's, where it has no unit of privacy."""
    if budget.unit is not None:
        return []
    columns: dict[str, None] = {}
    for name in budget.tables:
        table = session.attempt(lambda name=name: session.relation(name))  # type: ignore[misc]
        if not isinstance(table, DpmlError):
            found = table.columns.items()
            columns |= dict.fromkeys(name for name, kind in found if looks_like_person(name, kind.kind))
    return list(columns)


@dataclass(frozen=True)
class Runs:
    """How many more runs of one kind a budget pays for.

    Attributes
    ----------
    count : int
    epsilon, delta : Decimal
        Of each.
    method : str
    exact : bool
        Whether this very run was charged before; else its noise was assumed to be Gaussian, or K-norm where
        its delta is 0, and its delta to be as large as it may be.
    """

    count: int
    epsilon: Decimal
    delta: Decimal
    method: str
    exact: bool

    @property
    def text(self) -> str:
        """In words."""
        run = f"epsilon = {_short(self.epsilon)} and delta = {_asked(self.delta)} by {self.method}"
        models = "model" if self.count == 1 else "models"
        if self.exact:
            return f"{self.count or 'no'} more like the last run ({run})"
        return f"about {self.count} more {models} of {run}"


def runs_left(session: Session, budget: Budget, left: Left) -> list[Runs]:
    """How many more runs fit: such as the last one, and, where none does or there was none, smaller ones.

    Counted by the costs that runs are charged, which add up.
    """
    if left.closed:
        return []
    last = session.fetch(
        sql.SQL(
            "SELECT l.epsilon, l.delta, l.method, e.loss, e.delta FROM dpml.budget_entries e "
            "JOIN dpml.ledger l ON l.id = e.charge WHERE e.dataset = %(dataset)s ORDER BY e.turn DESC LIMIT 1"
        ),
        {"dataset": budget.dataset},
    )
    found = []
    for epsilon, delta, method, *cost in last:
        found.append(Runs(_count(left.cost, Cost(*cost)), epsilon, delta, method, True))
    if not any(run.count for run in found):
        usual = _usual_runs(budget, left.cost)
        found += [usual] if usual is not None else []
    return found


def _usual_runs(budget: Budget, rest: Cost) -> Runs | None:
    """Runs of a round epsilon of which a handful fits."""
    worth = epsilon_of(budget.rule, rest.loss, budget.delta - budget.limit.delta)
    if worth <= 0.0:
        return None
    share = Decimal(worth) / 6
    place = Decimal(1).scaleb(share.adjusted())
    epsilon = max((n * place for n in (5, 2, 1) if n * place <= share), default=place)
    epsilon = max(epsilon, budget.min_epsilon)
    delta = budget.max_delta
    if budget.rule == "basic":  # deltas add up, so that each run has a share
        count = int(rest.loss / epsilon)
        delta = min(delta, _DOWN.divide(rest.delta, Decimal(max(count, 1))))
    cost = cost_of_one(budget.accounting, epsilon, delta)
    if cost is None:
        return None
    count = _count(rest, cost)
    return Runs(count, epsilon, delta, "auto", False) if count else None


def _count(rest: Cost, cost: Cost) -> int:
    """How often a cost fits into what is left."""
    pairs = ((rest.loss, cost.loss), (rest.delta, cost.delta))
    return min((max(Fraction(left) // Fraction(one), 0) for left, one in pairs if one > 0), default=0)


def account_of(session: Session, charge: int) -> tuple[Budget, Left] | None:
    """The budget that an entry of the ledger was charged to, if any was, and what is left of it."""
    found = session.fetch(
        sql.SQL("SELECT dataset FROM dpml.budget_entries WHERE charge = %(charge)s"), {"charge": charge}
    )
    if not found:
        return None
    budget = load_budget(session, found[0][0])
    return budget, left_of(session, budget)


def _enter(
    session: Session, budget: Budget, turn: int, charge_key: str, charge: int | None, cost: Cost
) -> None:
    session.execute(
        sql.SQL(
            "INSERT INTO dpml.budget_entries (dataset, turn, charge_key, charge, loss, delta) "
            "VALUES (%(dataset)s, %(turn)s, %(charge_key)s, %(charge)s, %(loss)s, %(delta)s)"
        ),
        {
            "dataset": budget.dataset,
            "turn": turn,
            "charge_key": charge_key,
            "charge": charge,
            "loss": cost.loss,
            "delta": cost.delta,
        },
    )
