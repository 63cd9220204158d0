# SPDX-License-Identifier: PostgreSQL
"""Queries on the rows of a source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pg_dpml.blocks.source import Source
from pg_dpml.database.adapters import verbatim
from pg_dpml.database.catalog import SourceTable
from pg_dpml.database.session import Session, sql
from pg_dpml.names import shown
from pg_dpml.spec.checks import LONGEST_LEVEL

__all__ = [
    "count_units",
    "from_clause",
    "record_of",
]


def from_clause(source: Source) -> sql.Composed:
    """FROM clause with the alias t; the filter is the owner's own SQL, declared public."""
    clause = sql.SQL("FROM {} AS t").format(source.table.identifier)
    if source.where is not None:
        # A line of its own: the filter may end in a comment.
        clause += sql.SQL(" WHERE (") + verbatim(source.where) + sql.SQL("\n)")
    return clause


def record_of(encoder: Mapping[str, Any], table: SourceTable, *, with_label: bool) -> sql.Composed:
    """`ROW(t.a, t.b, ...)` in the encoder's order: it needs no privilege on other columns.

    Text too long to be a level and arrays of another length become NULL,
    which encodes as they do; in a label whose other values are a class, another
    value. A record of several huge values could not be made, and that would
    tell of a row.
    """
    fields = [_bounded_field(column["name"], column.get("length"), table) for column in encoder["columns"]]
    if with_label:
        label = encoder["label"]
        # Without a type, so that it takes the column's.
        other = sql.Literal("" if str(label.get("positive", "")).strip(" ") else "other")
        others = label["kind"] == "binary" and label.get("negative") is None
        fields.append(_bounded_field(label["name"], None, table, other if others else sql.NULL))
    return sql.SQL("ROW({})").format(sql.SQL(", ").join(fields))


def _bounded_field(
    name: str, length: int | None, table: SourceTable, instead: sql.Composable = sql.NULL
) -> sql.Composed:
    field = sql.Identifier("t", name)
    column_type = table.columns[name]
    if column_type.kind == "text":
        unfit = sql.SQL("pg_catalog.octet_length({}::pg_catalog.text) > {}").format(
            field, sql.Literal(LONGEST_LEVEL)
        )
    elif column_type.kind == "array" and not column_type.vector and length is not None:
        unfit = sql.SQL("pg_catalog.cardinality({}) <> {}").format(field, sql.Literal(length))
    else:
        return sql.Composed([field])
    return sql.SQL("CASE WHEN {} THEN {} ELSE {} END").format(unfit, instead, field)


def count_units(session: Session, source: Source) -> int:
    """Number of units of privacy, which the neighbouring relation makes public: rows, if no unit is declared.

    Rows whose unit is NULL are units of their own.
    """
    counted: sql.SQL | sql.Composed = sql.SQL("pg_catalog.count(*)")
    if source.unit is not None:
        counted = sql.SQL(
            "pg_catalog.count(DISTINCT {unit}) + pg_catalog.count(*) FILTER (WHERE {unit} IS NULL)"
        ).format(unit=sql.Identifier("t", source.unit))
    return session.count(
        sql.SQL("SELECT {} ").format(counted) + from_clause(source),
        f"counting the rows of {shown(source.table.name)} failed, and PostgreSQL's message is not shown "
        "because it may quote a row: write the filter, or the view, so that it can fail on no row",
    )
