# SPDX-License-Identifier: PostgreSQL
"""Parts of queries on the rows of a resolved table, and the public number of its units."""

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

_MOST_DIGITS = 2**17
"""On either side of the point, of a numeric."""

_NUMERICS_BYTES = 2**29
"""Half of what a record may have, for its arrays of numeric."""

_TOO_LONG = sql.SQL(
    "coalesce((SELECT pg_catalog.bool_or(v.number NOT IN ('NaN', 'Infinity', '-Infinity') AND "
    "(pg_catalog.abs(v.number) >= pg_catalog.pow(10::pg_catalog.numeric, {digits}) OR "
    "pg_catalog.scale(v.number) > {digits})) FROM pg_catalog.unnest({array}) AS v (number)), false)"
)


def from_clause(source: Source, table: sql.Identifier | None = None) -> sql.Composed:
    """FROM clause with the alias t, and the filter, which is the owner's own SQL and declared public.

    `table`, such as a shard, is read instead of the source's table.
    """
    clause = sql.SQL("FROM {} AS t").format(table or source.table.identifier)
    if source.where is not None:
        # A line of its own: the filter may end in a comment.
        clause += sql.SQL(" WHERE (") + verbatim(source.where) + sql.SQL("\n)")
    return clause


def record_of(encoder: Mapping[str, Any], table: SourceTable, *, with_label: bool) -> sql.Composed:
    """`ROW(t.a, t.b, ...)` in the encoder's order: it needs no privilege on other columns.

    Text that is too long to be a level, and arrays of another length (of a sparse column: of a larger one),
    become NULL, which has the same encoding; in a label whose other values are one class, they become another
    value. So does an array of numeric with a number of more digits than all such arrays have room for.
    Otherwise a record of several huge values could not be built, and the error would disclose that a row has
    them.
    """
    digits = _most_digits(encoder, table)
    fields = [field for column in encoder["columns"] for field in _bounded_fields(column, table, digits)]
    if with_label:
        label = encoder["label"]
        # A literal without a type takes the column's.
        other = sql.Literal("" if str(label.get("positive", "")).strip(" ") else "other")
        others = label["kind"] == "binary" and label.get("negative") is None
        fields.append(_bounded_field(label["name"], table, instead=other if others else sql.NULL))
    return sql.SQL("ROW({})").format(sql.SQL(", ").join(fields))


def count_units(session: Session, source: Source) -> int:
    """Public number of units of privacy, or of rows if no unit is declared.

    A row whose unit is NULL is a unit of its own.
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


def _most_digits(encoder: Mapping[str, Any], table: SourceTable) -> int | None:
    """Digits that a number in an array of numeric may have on a side of the point; None for any number."""
    lengths = [
        column["length"]
        for column in encoder["columns"]
        if "length" in column and table.columns[column["name"]].exact
    ]
    # four digits take two bytes; and a number has a header
    digits = _NUMERICS_BYTES // sum(lengths) - 16 if lengths else _MOST_DIGITS
    return None if digits >= _MOST_DIGITS else max(digits, 1)


def _bounded_fields(column: Mapping[str, Any], table: SourceTable, digits: int | None) -> list[sql.Composed]:
    """The fields of one column: numbers and indices of a sparse pair, and one of any other."""
    length = column.get("length")
    if "indices" not in column:
        return [_bounded_field(column["name"], table, length, digits)]
    names = (column["name"], column["indices"])
    return [_bounded_field(name, table, length, digits, shorter=True) for name in names]


def _bounded_field(
    name: str,
    table: SourceTable,
    length: int | None = None,
    digits: int | None = None,
    *,
    shorter: bool = False,
    instead: sql.Composable = sql.NULL,
) -> sql.Composed:
    field = sql.Identifier("t", name)
    column_type = table.columns[name]
    if column_type.kind == "text":
        unfit = sql.SQL("pg_catalog.octet_length({}::pg_catalog.text) > {}").format(
            field, sql.Literal(LONGEST_LEVEL)
        )
    elif column_type.kind == "array" and not column_type.vector and length is not None:
        unfit = sql.SQL("pg_catalog.cardinality({}) {} {}").format(
            field, sql.SQL(">" if shorter else "<>"), sql.Literal(length)
        )
        if column_type.exact and digits is not None:
            unfit = sql.SQL("{} OR {}").format(
                unfit, _TOO_LONG.format(array=field, digits=sql.Literal(digits))
            )
    else:
        return sql.Composed([field])
    return sql.SQL("CASE WHEN {} THEN {} ELSE {} END").format(unfit, instead, field)
