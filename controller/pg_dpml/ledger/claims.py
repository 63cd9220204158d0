# SPDX-License-Identifier: PostgreSQL
"""The budgets that a table is in: the first run of a budget that reads a table claims it."""

from __future__ import annotations

import shlex

from pg_dpml.blocks.distributed import require_whole
from pg_dpml.database.catalog import SourceTable, look_up_table
from pg_dpml.database.dependencies import tables_read
from pg_dpml.database.session import Session, sql
from pg_dpml.errors import DpmlError, GuaranteeError, SpecError
from pg_dpml.ledger.budgets import find_budget, load_budget, table_name
from pg_dpml.ledger.terms import Budget
from pg_dpml.names import shown, toml_text
from pg_dpml.tables.inspection import looks_like_person

__all__ = [
    "budget_of",
    "claim",
    "likely_units",
    "missing_tables",
    "readable_budget",
]

_ELSEWHERE = "the table, or one that it shares rows with, is in the budget of another data set"
"""What is said of that to who may not see budgets."""


def missing_tables(session: Session, budget: Budget) -> list[str]:
    """Tables that a budget lists and that do not exist by this name, after a rename or a drop."""
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


def readable_budget(session: Session, table: SourceTable, dataset: str | None) -> Budget | None:
    """Like `budget_of`; also None if the role may not read budgets."""
    (readable,) = session.fetch_one(
        sql.SQL("SELECT pg_catalog.has_table_privilege('dpml.budgets', 'SELECT')")
    )
    return budget_of(session, table, dataset) if readable else None


def claim(session: Session, budget: Budget, table: SourceTable, *, listed: bool = False) -> None:
    """Claim a table, and the tables that it reads, for a budget; a claim is permanent.

    `listed`: whether runs on the table are charged to this budget without naming it.

    Raises
    ------
    GuaranteeError
        If the table, or one that it reads, is in another budget, and no superuser has allowed that.
    DpmlError
        If the transaction's snapshot is older than the latest claim.

    Notes
    -----
    Source: privacy/README.md, "Budgets".
    """
    read = tables_read(session, table)
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
        opening = shlex.join(["dpml", "budget", "open", budget.dataset, "--table", table_name(table)])
        raise GuaranteeError(
            f"table {shown(table.name)}, or a table that it shares rows with, is in the budget of data set "
            f"{', '.join(map(shown, others))} already, and a second budget would let its rows be paid for "
            f"twice: charge its runs there (dataset = {toml_text(others[0])} in the spec), or have a "
            f"superuser open the second budget by {opening} --allow-second-budget",
            plain=_ELSEWHERE,
        )


def budget_of(session: Session, table: SourceTable, dataset: str | None) -> Budget | None:
    """The budget that a run is charged to; None if `dataset` is None and no budget lists the table.

    A budget that lists the table, or one that it reads, cannot be avoided.

    Raises
    ------
    GuaranteeError
        If the table belongs to another data set than `dataset`, or as of `require_whole`.
    SpecError
        If there is no budget of this name, or if none is named and several list the table.
    """
    require_whole(session, table)
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
    named = find_budget(session, dataset)
    if used and dataset not in found and not (named is not None and named.shared):
        raise GuaranteeError(
            f"table {shown(table.name)} belongs to data set {', '.join(map(shown, used))}, not "
            f"{shown(dataset)}: charge its runs there",
            plain=_ELSEWHERE,
        )
    return load_budget(session, dataset)


def likely_units(session: Session, budget: Budget) -> list[str]:
    """Columns of a budget's tables that seem to identify persons; none if the budget has a unit."""
    if budget.unit is not None:
        return []
    columns: dict[str, None] = {}
    for name in budget.tables:
        table = session.attempt(lambda name=name: look_up_table(session, name))  # type: ignore[misc]
        if not isinstance(table, DpmlError):
            found = table.columns.items()
            columns |= dict.fromkeys(name for name, kind in found if looks_like_person(name, kind.kind))
    return list(columns)


def _budgets_on(session: Session, table: SourceTable) -> dict[str, tuple[bool, bool]]:
    """Budgets of a table and of those that it reads: whether they list it, and were closed unused."""
    rows = session.fetch(
        sql.SQL("SELECT dataset, listed, unused FROM dpml.budgets_on(%(read)s::oid[]) ORDER BY dataset"),
        {"read": tables_read(session, table)},
    )
    return {dataset: (listed, unused) for dataset, listed, unused in rows}
