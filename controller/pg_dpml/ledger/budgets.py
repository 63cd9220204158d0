# SPDX-License-Identifier: PostgreSQL
"""Budgets as they are stored: tables dpml.budgets and dpml.budget_entries.

A budget has the name of a data set, which no rename, dump or restore changes. Its entries are numbered, and
adding one requires having seen the one before.
"""

from __future__ import annotations

import shlex
import uuid
from dataclasses import replace
from datetime import datetime
from decimal import Decimal

from pg_dpml.database.catalog import SourceTable
from pg_dpml.database.session import Session, sql
from pg_dpml.errors import BudgetError, GuaranteeError, SpecError
from pg_dpml.ledger import models
from pg_dpml.ledger.records import TrainingRecord
from pg_dpml.ledger.terms import Budget, Entry, Left, short
from pg_dpml.names import did_you_mean, reads_as, shown, toml_text
from pg_dpml.privacy.cost import Cost
from pg_dpml.privacy.guarantee import Guarantee
from pg_dpml.spec.relation import Relation

__all__ = [
    "account_of",
    "charge_of",
    "close_budget",
    "closed_error",
    "dataset_of",
    "enter",
    "find_budget",
    "history",
    "left_of",
    "load_budget",
    "lock_budget",
    "require_open",
    "require_placement",
    "require_unit",
    "table_name",
]


def load_budget(session: Session, dataset: str) -> Budget:
    """The budget of a data set.

    Raises
    ------
    SpecError
        If the data set has no budget.
    """
    found = find_budget(session, dataset)
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


def history(session: Session, dataset: str) -> list[Entry]:
    """The entries of a budget, in order."""
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
    """End a budget: nothing more is charged to it. It can be opened again only if nothing was charged.

    Raises
    ------
    SpecError
        If there is no such budget.
    BudgetError
        If the budget is already closed.
    """
    budget = load_budget(session, dataset)
    lock_budget(session, budget)
    left = left_of(session, budget)
    require_open(budget, left)
    enter(session, budget, left.entries + 1, f"close {uuid.uuid4()}", None, Cost(Decimal(0), Decimal(0)))
    session.must_last(
        f"the budget of data set {shown(dataset)} may be closed, as dpml budget show {shlex.quote(dataset)} "
        "tells"
    )
    return budget


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


def dataset_of(session: Session, model: models.Model, table: SourceTable) -> str | None:
    """The data set whose budget a model was charged to, if `table` is what it was trained on."""
    if model.charge is None or TrainingRecord.from_json(model.training).table_name != table_name(table):
        return None
    found = session.fetch(
        sql.SQL("SELECT dataset FROM dpml.budget_entries WHERE charge = %(charge)s"), {"charge": model.charge}
    )
    return found[0][0] if found else None


def table_name(table: SourceTable) -> str:
    """Schema and name of a table, as the ledger writes them."""
    return f"{table.schema}.{table.name}"


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
    """The budget in a row of _COLUMNS."""
    return Budget(
        *(dataset, opened_at, opened_by, rule, epsilon, delta, Relation(relation), unit, tuple(tables)),
        *(min_epsilon, min_delta, max_delta, Cost(*limit), shared),
    )


def find_budget(session: Session, dataset: str) -> Budget | None:
    """The budget of a data set, or None."""
    found = session.fetch(_COLUMNS, {"dataset": dataset})
    return _budget(*found[0]) if found else None


def lock_budget(session: Session, budget: Budget) -> None:
    """Wait until no other session charges this budget; later queries see what those sessions wrote."""
    # Any role that can connect could hold an advisory lock; this lock requires the right to update.
    session.fetch(
        sql.SQL("SELECT FROM dpml.budgets WHERE dataset = %(dataset)s FOR NO KEY UPDATE"),
        {"dataset": budget.dataset},
    )


def require_open(budget: Budget, left: Left) -> None:
    """Raise BudgetError if the budget is closed."""
    if left.closed:
        raise closed_error(budget)


def closed_error(budget: Budget) -> BudgetError:
    """The error for anything that a closed budget is to pay."""
    return BudgetError(
        f"the budget of data set {shown(budget.dataset)} is closed, so nothing is left for any run: "
        "nothing was charged"
    )


def require_unit(session: Session, budget: Budget, unit: str | None) -> None:
    """Reject any unit of privacy but the budget's.

    Raises
    ------
    GuaranteeError
        The message says what to type.
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
            f"{_opening_command(replace(budget, unit=unit))}"
        )
    fault = (
        f"the budget of data set {shown(budget.dataset)} is for {wanted}, and this run has {given}: one "
        "budget has one unit of privacy"
    )
    raise GuaranteeError(f"{fault}; {fix}", plain=fault)


def require_placement(budget: Budget, guarantee: Guarantee) -> None:
    """Reject a run that takes for public in which shard a row lies, unless the budget's unit decides that.

    Raises
    ------
    GuaranteeError
        The message says what to leave out.

    Notes
    -----
    Called after `require_unit`. Source: privacy/README.md, "Models of shards".
    """
    key = guarantee.public_column
    if key is None:
        return
    fault = (
        f"the budget of data set {shown(budget.dataset)} protects a row whatever its {shown(key)} is, which "
        "by_shards takes for public"
    )
    raise GuaranteeError(f"{fault}: leave by_shards out", plain=fault)


def _opening_command(budget: Budget) -> str:
    """The command that opens a budget, without limits on single runs."""
    options = {
        "epsilon": [short(budget.epsilon)],
        "delta": [short(budget.delta)],
        "rule": [budget.rule],
        "relation": [budget.relation.value],
        "unit": [budget.unit] if budget.unit else [],
        "table": list(budget.tables),
    }
    given = [word for name, values in options.items() for value in values for word in (f"--{name}", value)]
    return shlex.join(["dpml", "budget", "open", budget.dataset, *given])


def account_of(session: Session, charge: int) -> tuple[Budget, Left] | None:
    """The budget that an entry of the ledger was charged to, if any was, and what is left of it."""
    found = session.fetch(
        sql.SQL("SELECT dataset FROM dpml.budget_entries WHERE charge = %(charge)s"), {"charge": charge}
    )
    if not found:
        return None
    budget = load_budget(session, found[0][0])
    return budget, left_of(session, budget)


def enter(
    session: Session, budget: Budget, turn: int, charge_key: str, charge: int | None, cost: Cost
) -> None:
    """Add an entry to a budget."""
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
