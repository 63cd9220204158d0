# SPDX-License-Identifier: PostgreSQL
"""Checks that the server makes of a run before anything is charged."""

from __future__ import annotations

from pg_dpml.blocks.packing import packing_statement, shuffled, store_blocks
from pg_dpml.blocks.query import record_of
from pg_dpml.blocks.source import Source
from pg_dpml.database.adapters import json_parameter
from pg_dpml.database.session import Session, sql
from pg_dpml.errors import DpmlError, SpecError
from pg_dpml.names import shown

__all__ = [
    "require_plannable",
    "require_runnable",
]


def require_plannable(session: Session, source: Source) -> None:
    """Let the server parse the encoder and plan the query of the rows, and read no row.

    A role without the right to encode may plan a run too: the check is left out.

    Raises
    ------
    SpecError
        If the server rejects anything in the spec, such as a name, a type or a missing right.
    """
    (may_encode,) = session.fetch_one(
        sql.SQL(
            "SELECT pg_catalog.has_function_privilege('dpml.encode(pg_catalog.jsonb, record)', 'EXECUTE')"
        )
    )
    if may_encode:
        _prepare(session, source)


def require_runnable(session: Session, source: Source) -> None:
    """Check as `require_plannable` does, and let the server create an empty table of blocks, which is undone.

    Raises
    ------
    SpecError, DpmlError
        As `require_plannable`; also if the role may not create work tables, or their tablespace is missing.
    UnavailableError
        If the server is read-only.
    """
    _prepare(session, source)
    with session.discarded():
        nothing = sql.SQL("SELECT 0, NULL::pg_catalog.bytea WHERE false")
        store_blocks(session, source, nothing, {})


def _prepare(session: Session, source: Source) -> None:
    record = record_of(source.encoder, source.table, with_label=True)
    rows = shuffled(source)
    table = source.table.identifier
    parse = sql.SQL("SELECT dpml.encode(%(encoder)s, {}) FROM (SELECT (NULL::{}).*) AS t").format(
        record, table
    )
    parsed = session.attempt(lambda: session.fetch(parse, {"encoder": json_parameter(source.encoder)}))
    if type(parsed) is DpmlError and parsed.cause is None:
        raise SpecError(f"the server cannot read the levels or classes of the spec: {parsed}")
    if isinstance(parsed, DpmlError):
        raise parsed
    session.require_readable(
        packing_statement(source, rows.encoded, rows.order),
        f"the rows of {shown(source.table.name)} cannot be read, and PostgreSQL's message is not shown "
        "because it may quote a row: write the filter, or the view, so that it can fail on no row",
        rows.parameters,
    )
