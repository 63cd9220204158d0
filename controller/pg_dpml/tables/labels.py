# SPDX-License-Identifier: PostgreSQL
"""Rows whose label is not declared: how many, and which values they have instead.

The counts are exact and not private: only the owner of the rows may see them, unless the rows are public.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pg_dpml.blocks.query import from_clause
from pg_dpml.blocks.source import Source
from pg_dpml.database.catalog import SourceTable
from pg_dpml.database.columns import ColumnType
from pg_dpml.database.session import Session, sql
from pg_dpml.tables.measuring import (
    SHOWN_CHARACTERS,
    SHOWN_VALUES,
    Field,
    ValueCount,
    by_bytes,
    count_levels,
    value_text,
)

__all__ = ["LeftOut", "count_left_out", "count_undeclared", "label_field"]


@dataclass(frozen=True)
class LeftOut:
    """Rows left out of all figures because their label is not declared.

    Attributes
    ----------
    nulls : int
        Rows whose label is NULL.
    undeclared : int
        Rows whose label is another undeclared value; NaN, if a number is predicted.
    undeclared_values : tuple of ValueCount
        The most frequent of these values.
    empty_classes : tuple of str
        Declared classes that no row has.
    """

    nulls: int = 0
    undeclared: int = 0
    undeclared_values: tuple[ValueCount, ...] = ()
    empty_classes: tuple[str, ...] = ()

    @property
    def n_rows(self) -> int:
        """Number of all rows left out."""
        return self.nulls + self.undeclared


def label_field(encoder: Mapping[str, Any], types: Mapping[str, ColumnType]) -> Field:
    """The label as a field, like one of the encoder's columns."""
    label = encoder["label"]
    entry = {"name": label["name"]}
    if label["kind"] == "number":
        entry |= {"kind": "numeric", "lower": label["lower"], "upper": label["upper"]}
    else:
        levels = label.get("classes") or [label["positive"], label["negative"]]
        entry |= {"kind": "category", "levels": [level for level in levels if level is not None]}
    return Field(types[label["name"]], entry)


def count_left_out(session: Session, source: Source) -> LeftOut:
    """Count the rows of a table that have no declared label, by the table's encoder.

    Of a distributed table different labels of classes leave a worker, and else numbers of rows alone.
    """
    field = label_field(source.encoder, source.table.columns)
    if field.entry["kind"] == "numeric":
        nulls, nan = session.fetch_one(
            sql.SQL(
                "SELECT pg_catalog.count(*) FILTER (WHERE {number} IS NULL), "
                "pg_catalog.count(*) FILTER (WHERE {number} > 'Infinity'::pg_catalog.float8) "  # NaN
            ).format(number=sql.SQL("dpml.number({})").format(field.identifier))
            + from_clause(source)
        )
        return LeftOut(nulls, nan, (ValueCount("NaN", nan),) if nan else ())
    counts = count_levels(session, source, [field])[field.name]
    sizes = dict(zip(field.entry["levels"], counts.levels, strict=True))
    label = source.encoder["label"]
    others = label["kind"] == "binary" and label["negative"] is None
    if others:
        sizes[f"not {label['positive']}"] = counts.unknown
    empty = tuple(name for name, rows in sizes.items() if rows == 0)
    if others:
        return LeftOut(counts.nulls, empty_classes=empty)
    return LeftOut(counts.nulls, counts.unknown, counts.unknown_values, empty)


def count_undeclared(
    session: Session,
    table: SourceTable,
    field: Field,
    condition: sql.Composable,
    parameters: Mapping[str, Any],
) -> LeftOut:
    """Count the rows t of a table that fulfil a condition by label, in one pass over the table."""
    rows = session.fetch(
        sql.SQL(
            "SELECT pg_catalog.left(g.value, {characters}), g.rows, g.rows_alike FROM (SELECT v.*, "
            "pg_catalog.row_number() OVER (alike ORDER BY v.rows DESC, v.value) AS place, "
            "pg_catalog.sum(v.rows) OVER alike AS rows_alike "
            "FROM (SELECT {text} AS value, pg_catalog.count(*) AS rows FROM (SELECT {label} AS label "
            "FROM {table} AS t WHERE {condition} OFFSET 0) AS c GROUP BY c.label) AS v "
            "WINDOW alike AS (PARTITION BY v.value IS NULL)) AS g "
            "WHERE g.place <= {shown} ORDER BY g.place"
        ).format(
            characters=sql.Literal(SHOWN_CHARACTERS),
            text=value_text(field, sql.Identifier("c", "label")),
            label=by_bytes(field),
            table=table.identifier,
            condition=condition,
            shown=sql.Literal(SHOWN_VALUES),
        ),
        parameters,
    )
    values = [row for row in rows if row[0] is not None]
    return LeftOut(
        nulls=sum(int(count) for value, count, _ in rows if value is None),
        undeclared=int(values[0][2]) if values else 0,
        undeclared_values=tuple(ValueCount(value, int(count)) for value, count, _ in values),
    )
