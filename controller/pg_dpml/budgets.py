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
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple

from pg_dpml import registry
from pg_dpml.database import Session, SourceTable, sql
from pg_dpml.errors import BudgetError, GuaranteeError, SpecError
from pg_dpml.methods.plan import Guarantee
from pg_dpml.names import did_you_mean, reads_as, shown
from pg_dpml.privacy.budget import RULES, Accounting, Cost, GaussianRun, cost_of, epsilon_of, limit_of
from pg_dpml.privacy.relation import Relation
from pg_dpml.spec import MOST_EPSILON

__all__ = [
    "Budget",
    "Charged",
    "Entry",
    "Left",
    "Outlook",
    "Terms",
    "accounting_of",
    "budget_of",
    "charge",
    "charge_of",
    "close_budget",
    "dataset_of",
    "history",
    "left_of",
    "load_budget",
    "missing_tables",
    "open_budget",
    "outlook",
    "require_unit",
]

_LOSSES = {"basic": "epsilon", "zcdp": "rho", "gdp": "mu^2"}
_MOST_EPSILON = {"basic": Decimal(1000), **dict.fromkeys(("zcdp", "gdp"), Decimal(int(MOST_EPSILON)))}
_LEAST_BASIC_DELTA = Decimal("1e-30")
_LEAST_DELTA = Decimal("1e-100")
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
        """Refuse terms that allow a smaller epsilon, or another delta, than `outer` does.

        Raises
        ------
        SpecError
        """
        for name, bound, loose in (
            ("min_epsilon", f"at least {_short(outer.min_epsilon)}", self.min_epsilon < outer.min_epsilon),
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
        text = f"{_LOSSES[self.rule]} = {_short(cost.loss)}"
        if self.rule != "basic":
            text += f" (worth epsilon = {self.worth(cost.loss):.4g} alone)"
        return f"{text} and delta = {_short(cost.delta)}"


@dataclass(frozen=True)
class Left:
    """What is left of a budget after so many entries."""

    entries: int
    closed: bool
    cost: Cost


@dataclass(frozen=True)
class Entry:
    """What was taken out of a budget; `charge` is None where it was closed. See dpml.budget_entries."""

    turn: int
    entered_at: datetime
    entered_by: str
    request: str
    charge: int | None
    loss: Decimal
    delta: Decimal


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
    """A charge: its number in the ledger, and whether an earlier request by the same name had made it."""

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
) -> Budget:
    """Set the limit of a data set, once and for all.

    Parameters
    ----------
    session : Session
    dataset : str
        A new name, 1 to 200 characters.
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
        Bounds on the delta of one run's own guarantee, in [0, 1); None: `delta`.

    Returns
    -------
    Budget

    Raises
    ------
    SpecError
        If an argument is outside its domain, or the data set has a budget, open or closed.
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
            f"delta must be at least {_LEAST_BASIC_DELTA}: the noise of a run with delta = 0 takes a delta "
            f"of 1e-36 for each number of the model; give {_LEAST_BASIC_DELTA}"
        )
    if rule != "basic" and delta < _LEAST_DELTA:
        raise SpecError(
            f"delta must be at least {_LEAST_DELTA} for rule {rule}, which converts with it: give one well "
            "below 1 / (number of rows), or take rule basic"
        )
    if _find(session, dataset) is not None:
        raise SpecError(
            f"data set {shown(dataset)} has a budget, which is never made larger: "
            f"dpml budget show {shlex.quote(dataset)} says "
            "what is left"
        )
    relations = [session.relation(table) for table in tables]
    for listed in relations:
        unit = None if unit is None else listed.column(unit, "unit")
    limit = limit_of(rule, epsilon, delta)
    if min_epsilon is None:
        share = _LEAST_SHARE * limit.loss
        min_epsilon = min(_least(lambda one: limit_of(rule, one, delta).loss >= share) or epsilon, epsilon)
    if max_delta is None:
        max_delta = delta
    Terms("", min_epsilon, epsilon, min_delta, max_delta)  # which refuses what makes no sense
    session.execute(
        sql.SQL(
            "INSERT INTO dpml.budgets (dataset, rule, epsilon, delta, relation, unit, tables, min_epsilon, "
            "min_delta, max_delta, loss_limit, delta_limit) VALUES (%(dataset)s, %(rule)s, %(epsilon)s, "
            "%(delta)s, %(relation)s, %(unit)s, %(tables)s, %(min_epsilon)s, %(min_delta)s, %(max_delta)s, "
            "%(loss_limit)s, %(delta_limit)s)"
        ),
        {
            "dataset": dataset,
            "rule": rule,
            "epsilon": epsilon,
            "delta": delta,
            "relation": relation.value,
            "unit": unit,
            "tables": [_table_name(relation) for relation in relations],
            "min_epsilon": min_epsilon,
            "min_delta": min_delta,
            "max_delta": max_delta,
            "loss_limit": limit.loss,
            "delta_limit": limit.delta,
        },
    )
    return load_budget(session, dataset)


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
            "SELECT pg_catalog.count(*), coalesce(pg_catalog.bool_or(charge IS NULL), false), "
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
            "SELECT turn, entered_at, entered_by, request, charge, loss, delta FROM dpml.budget_entries "
            "WHERE dataset = %(dataset)s ORDER BY turn"
        ),
        {"dataset": dataset},
    )
    return [Entry(*row) for row in rows]


def close_budget(session: Session, dataset: str) -> Budget:
    """End a budget: nothing more is charged to it, and it is not opened again.

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
    n_rows: int,
    mechanism: Mapping[str, Any],
    at_epsilon: Callable[[float], Priced],
    request: str | None = None,
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
    model, method, n_rows, mechanism
        See `registry.charge`.
    at_epsilon : callable
        Guarantee and Gaussian part of this run at another epsilon, for advice; may refuse it.
    request : str or None
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
        If there is no such budget, or no budget that `request` could be of.
    DpmlError
        In a transaction whose snapshot is older than the last entry: try again in a new one. At READ
        COMMITTED, as every command uses, sessions wait for each other instead.

    Notes
    -----
    Source: privacy/README.md, "Budgets".
    """
    budget = budget_of(session, table, dataset)
    if budget is None and request is not None:
        raise SpecError(
            "request goes with a budget, which this data set has not: leave it out, or see dpml budget open"
        )
    if budget is not None:
        cost = _cost(budget, guarantee, gaussian)
        # Before the lock, as the advice takes a while: neither the terms nor the run can change.
        both = (budget.terms,) if terms is None else (terms, budget.terms)
        breaches = (_breach(budget, one, (guarantee, gaussian), at_epsilon) for one in both)
        breach = next(filter(None, breaches), None)
        _lock(session, budget)
        left = left_of(session, budget)
        earlier = None if request is None else charge_of(session, budget.dataset, request)
        if earlier is not None:
            return Charged(earlier, True)
        _require_open(budget, left)
        require_unit(budget, guarantee.unit)
        if breach is not None:
            raise BudgetError(f"{breach}: nothing was charged")
        if not Outlook(budget, cost, left).fits:
            less = "" if cost.loss > left.cost.loss else ", by a smaller delta"
            raise BudgetError(
                f"the budget of data set {shown(budget.dataset)} ({budget.meaning}) has "
                f"{budget.amount(left.cost)} "
                f"left, and this run costs {budget.amount(cost)}: nothing was charged; ask for less{less}"
            )
    entry = registry.charge(
        session,
        dataset=_table_name(table),
        model=model,
        method=method,
        epsilon=_exact(guarantee.epsilon),
        delta=_exact(guarantee.delta),
        relation=guarantee.relation.value,
        n_rows=n_rows,
        mechanism=dict(mechanism)
        | {"unit": guarantee.unit, "max_rows_per_unit": guarantee.max_rows_per_unit},
    )
    if budget is not None:
        _enter(session, budget, left.entries + 1, request or str(uuid.uuid4()), entry, cost)
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
    require_unit(budget, guarantee.unit)
    priced = (guarantee, gaussian)
    breach = _breach(budget, budget.terms, priced, at_epsilon)
    return Outlook(budget, _cost(budget, *priced), left_of(session, budget), breach)


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
    budget: Budget, terms: Terms, priced: Priced, at_epsilon: Callable[[float], Priced]
) -> str | None:
    """Which of the terms a run breaks, and what it may be instead; None if it keeps them.

    Source: privacy/README.md, "Budgets".
    """
    cost, delta = _cost(budget, *priced), _exact(priced[0].delta)
    by = f"at delta = {_short(budget.delta)}, by rule {budget.rule} and for {budget.relation.value}"
    costs = f"this run costs {budget.amount(cost)}"
    if cost.loss > limit_of(budget.rule, terms.max_epsilon, budget.delta).loss:
        return (
            f"one request may cost at most epsilon = {_short(terms.max_epsilon)} {by}, as {terms.source} has "
            f"it, and {costs}; take a smaller epsilon"
        )
    if not terms.min_delta <= delta <= terms.max_delta:
        return (
            f"delta must be from {_short(terms.min_delta)} to {_short(terms.max_delta)}, as {terms.source} "
            f"has it, and this run's is {_short(delta)}"
        )
    least = limit_of(budget.rule, terms.min_epsilon, budget.delta).loss
    if cost.loss >= least:
        return None

    def enough(epsilon: Decimal) -> bool:
        try:
            return _cost(budget, *at_epsilon(float(epsilon))).loss >= least
        except (GuaranteeError, SpecError):  # of a run that there cannot be
            return False

    epsilon = _least(enough)
    advice = "delta must be larger"
    if epsilon is not None and epsilon <= terms.max_epsilon:
        advice = f"epsilon must be at least {_short(epsilon)}"
    return (
        f"{advice} for this run: one run must cost at least epsilon = {_short(terms.min_epsilon)} {by}, as "
        f"{terms.source} has it, and {costs}"
    )


def _least(enough: Callable[[Decimal], bool]) -> Decimal | None:
    """The least epsilon of three digits, from 1e-12 to 100, that is enough; None if none is."""
    places = range(900 * round(math.log10(MOST_EPSILON) + 12.0) + 1)
    found = bisect_left(places, True, key=lambda place: enough(_of_three_digits(place)))
    return _of_three_digits(found) if found < len(places) else None


def _of_three_digits(place: int) -> Decimal:
    """The numbers 1.00e-12, 1.01e-12, ..., 9.99e-12, 1.00e-11, ... by their place."""
    decade, digits = divmod(place, 900)
    return Decimal(100 + digits).scaleb(decade - 14)


def charge_of(session: Session, dataset: str, request: str) -> int | None:
    """The number in the ledger of the charge that a request made, if it made one."""
    found = session.fetch(
        sql.SQL(
            "SELECT charge FROM dpml.budget_entries WHERE dataset = %(dataset)s AND request = %(request)s "
            "AND charge IS NOT NULL"
        ),
        {"dataset": dataset, "request": request},
    )
    return found[0][0] if found else None


def dataset_of(session: Session, model: registry.Model, table: SourceTable) -> str | None:
    """The data set whose budget a model was charged to, if `table` is what it was trained on."""
    if model.charge is None or model.training.get("dataset") != _table_name(table):
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


def _short(number: Decimal) -> str:
    """As it is where that is short, else to six digits."""
    return f"{float(number):.{12 if len(number.as_tuple().digits) <= 12 else 6}g}"


_COLUMNS = sql.SQL(
    "SELECT dataset, opened_at, opened_by, rule, epsilon, delta, relation, unit, tables, min_epsilon, "
    "min_delta, max_delta, loss_limit, delta_limit FROM dpml.budgets "
)


def _budgets(session: Session, condition: sql.SQL, value: str) -> list[Budget]:
    rows = session.fetch(_COLUMNS + condition + sql.SQL(" ORDER BY dataset"), {"value": value})
    return [_budget(*row) for row in rows]


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
    *limit: Decimal,
) -> Budget:
    """A row of _COLUMNS."""
    return Budget(
        *(dataset, opened_at, opened_by, rule, epsilon, delta, Relation(relation), unit, tuple(tables)),
        *(min_epsilon, min_delta, max_delta, Cost(*limit)),
    )


def _find(session: Session, dataset: str) -> Budget | None:
    found = _budgets(session, sql.SQL("WHERE dataset = %(value)s"), dataset)
    return found[0] if found else None


def budget_of(session: Session, table: SourceTable, dataset: str | None) -> Budget | None:
    """The budget that a run is charged to; one that lists the table cannot be passed by.

    Raises
    ------
    GuaranteeError
        If the table belongs to another data set than `dataset`.
    SpecError
        If there is no budget of this name, or several that list the table and none is named.
    """
    listing = _budgets(session, sql.SQL("WHERE %(value)s = ANY (tables)"), _table_name(table))
    names = ", ".join(shown(budget.dataset) for budget in listing)
    if dataset is None:
        if len(listing) > 1:
            raise SpecError(
                f"table {shown(table.name)} is in several budgets: say which by dataset = one of {names}"
            )
        return listing[0] if listing else None
    if listing and dataset not in (budget.dataset for budget in listing):
        raise GuaranteeError(f"table {shown(table.name)} belongs to data set {names}, not {shown(dataset)}")
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


def require_unit(budget: Budget, unit: str | None) -> None:
    """Refuse another unit of privacy than the budget's."""
    meant = budget.unit
    if meant is not None and unit is not None:
        meant = reads_as(meant, [unit])  # a budget that lists no table has it as it was written
    if unit != meant:
        wanted, given = (f"unit = {shown(name)}" if name else "no unit" for name in (budget.unit, unit))
        raise GuaranteeError(
            f"the budget of data set {shown(budget.dataset)} is for {wanted}, and this run has {given}: one "
            "budget "
            "has one unit of privacy"
        )


def _enter(session: Session, budget: Budget, turn: int, request: str, charge: int | None, cost: Cost) -> None:
    session.execute(
        sql.SQL(
            "INSERT INTO dpml.budget_entries (dataset, turn, request, charge, loss, delta) "
            "VALUES (%(dataset)s, %(turn)s, %(request)s, %(charge)s, %(loss)s, %(delta)s)"
        ),
        {
            "dataset": budget.dataset,
            "turn": turn,
            "request": request,
            "charge": charge,
            "loss": cost.loss,
            "delta": cost.delta,
        },
    )
