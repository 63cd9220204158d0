# SPDX-License-Identifier: PostgreSQL
"""Counting, over all rows, the values that an encoder silently changes or leaves out.

The queries read values with the encoder's own functions. The counts are exact and not private: only the owner
of the rows may see them.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pg_dpml.blocks.features import completed
from pg_dpml.blocks.query import from_clause
from pg_dpml.blocks.source import Source
from pg_dpml.database.adapters import json_parameter
from pg_dpml.database.columns import ColumnType
from pg_dpml.database.session import Session, sql

__all__ = [
    "COLUMNS_PER_QUERY",
    "SHOWN_CHARACTERS",
    "SHOWN_VALUES",
    "Field",
    "LevelCounts",
    "ValueCount",
    "by_bytes",
    "count_levels",
    "count_numbers",
    "count_units",
    "count_values",
    "value_text",
]

COLUMNS_PER_QUERY = 30
"""GROUPING takes 31 arguments, and a query gives 1664 columns."""

SHOWN_VALUES = 5
SHOWN_CHARACTERS = 60
_FAR_SD = 10.0


@dataclass(frozen=True)
class Field:
    """A column to measure.

    Attributes
    ----------
    type : ColumnType
    entry : mapping
        The column in the encoder, of kind "numeric", "boolean", "category", "array" or "sparse".
    """

    type: ColumnType
    entry: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Name of the column."""
        return str(self.entry["name"])

    @property
    def identifier(self) -> sql.Identifier:
        """The column in a query whose table is t."""
        return sql.Identifier("t", self.name)


@dataclass(frozen=True)
class ValueCount:
    """A value and the number of rows that have it."""

    value: str
    rows: int


@dataclass(frozen=True)
class LevelCounts:
    """Number of rows of each declared level of a column, in order, and of other values."""

    nulls: int
    levels: tuple[int, ...]
    unknown: int
    unknown_values: tuple[ValueCount, ...]


# Numbers


def count_numbers(session: Session, source: Source, fields: Sequence[Field]) -> dict[str, dict[str, int]]:
    """Measure numbers, booleans and arrays in one pass over the table; results by column name."""
    read: list[sql.Composable] = []
    measures = []
    for i, field in enumerate(fields):
        value, given = sql.Identifier("v", f"value_{i}"), sql.Identifier("v", f"given_{i}")
        read.append(sql.SQL("{} AS {}").format(_read(field), sql.Identifier(f"value_{i}")))
        if field.entry["kind"] in ("array", "sparse"):
            read.append(sql.SQL("{} AS {}").format(_given(field), sql.Identifier(f"given_{i}")))
            measures.append(_array_measures(field, value, given))
        else:
            measures.append(_number_measures(field, value))
    outputs = [expression for some in measures for expression in some.values()]
    if not outputs:
        return {}
    query = sql.SQL("SELECT {} FROM (SELECT {} ").format(
        sql.SQL(", ").join(outputs), sql.SQL(", ").join(read)
    )
    row = iter(session.fetch_one(query + from_clause(source) + sql.SQL(" OFFSET 0) AS v")))
    return {
        field.name: {measure: int(next(row)) for measure in some}
        for field, some in zip(fields, measures, strict=True)
    }


def count_values(session: Session, source: Source, field: Field, most: int) -> tuple[ValueCount, ...]:
    """The different numbers in a column, in order; empty if there are more than `most`."""
    rows = session.fetch(
        sql.SQL("SELECT c.value, pg_catalog.count(*) FROM (SELECT {} AS value ").format(_read(field))
        + from_clause(source)
        + sql.SQL(" OFFSET 0) AS c WHERE c.value < {} GROUP BY 1 LIMIT {}").format(
            _literal(math.inf), sql.Literal(most + 1)
        )
    )
    if len(rows) > most:
        return ()
    return tuple(ValueCount(_number_text(value, field), int(count)) for value, count in sorted(rows))


def _number_text(value: float, field: Field) -> str:
    if field.type.kind == "boolean":
        return "true" if value else "false"
    return f"{value:.0f}" if value.is_integer() else repr(value)


def _given(field: Field) -> sql.Composed:
    """Whether a row has an array, or both of a sparse pair."""
    names = [field.name, *([field.entry["indices"]] if "indices" in field.entry else [])]
    each = [sql.SQL("{} IS NOT NULL").format(sql.Identifier("t", name)) for name in names]
    return sql.SQL("({})").format(sql.SQL(" AND ").join(each))


def _read(field: Field) -> sql.Composed:
    """The value as the encoder reads it: a float8, or an array of float8 with NULL for omitted elements."""
    if field.entry["kind"] == "array":
        return sql.SQL("dpml.numbers({}, {})").format(field.identifier, sql.Literal(field.entry["length"]))
    if field.entry["kind"] == "sparse" and "indices" in field.entry:
        return sql.SQL("dpml.sparse_numbers({}, {}, {}, {})").format(
            field.identifier,
            sql.Identifier("t", field.entry["indices"]),
            sql.Literal(field.entry["length"]),
            sql.Literal(field.entry["first_index"]),
        )
    if field.entry["kind"] == "sparse":
        length = sql.Literal(field.entry["length"])
        return sql.SQL("dpml.sparse_numbers({}, {})").format(field.identifier, length)
    return sql.SQL("dpml.number({})").format(field.identifier)


def _count(condition: sql.Composable) -> sql.Composed:
    return sql.SQL("pg_catalog.count(*) FILTER (WHERE {})").format(condition)


def _number_measures(field: Field, value: sql.Identifier) -> dict[str, sql.Composed]:
    """Measures of a float8 against its bounds; NaN sorts after Infinity."""
    entry = completed(field.entry)
    lower, upper = entry["lower"], entry["upper"]

    def where(template: str, **numbers: float) -> sql.Composed:
        literals = {name: _literal(number) for name, number in numbers.items()}
        return _count(
            sql.SQL(template).format(v=value, most=_literal(math.inf), least=_literal(-math.inf), **literals)
        )

    measures = {
        "nulls": where("{v} IS NULL"),
        "nan": where("{v} > {most}"),
        "infinite": where("{v} = {most} OR {v} = {least}"),
        "constant": sql.SQL(
            "coalesce(pg_catalog.min({moved}) FILTER (WHERE {v} <= {most}) = "
            "pg_catalog.max({moved}) FILTER (WHERE {v} <= {most}), true)::integer"
        ).format(
            v=value,
            most=_literal(math.inf),
            moved=sql.SQL("least(greatest({}, {}), {})").format(
                value,
                _literal(-math.inf if lower is None else lower),
                _literal(math.inf if upper is None else upper),
            ),
        ),
    }
    if entry["kind"] == "boolean":
        return {name: measures[name] for name in ("nulls", "constant")}
    if lower is not None and upper is not None:
        low, high = _tenths(lower, upper, log1p=entry["log1p"])
        measures |= {
            "below": where("{v} < {bound} AND {v} > {least}", bound=lower),
            "above": where("{v} > {bound} AND {v} < {most}", bound=upper),
            "at_lower": where("{v} <= {bound}", bound=lower),
            "lowest_tenth": where("{v} < {bound}", bound=low),
            "highest_tenth": where("{v} > {bound} AND {v} <= {most}", bound=high),
        }
    if entry["scale"] == "standard":
        reach = _FAR_SD * entry["sd"]
        near, far = entry["mean"] - reach, entry["mean"] + reach
        measures["far"] = where("{v} < {near} OR ({v} > {far} AND {v} <= {most})", near=near, far=far)
    return measures


def _literal(number: float) -> sql.Composed:
    return sql.SQL("{}::pg_catalog.float8").format(sql.Literal(repr(float(number))))


def _tenths(lower: float, upper: float, *, log1p: bool) -> tuple[float, float]:
    """End of the lowest tenth and beginning of the highest tenth of the scaled range."""
    if not log1p:
        return 0.9 * lower + 0.1 * upper, 0.1 * lower + 0.9 * upper
    low, high = math.log1p(lower), math.log1p(upper)
    return math.expm1(0.9 * low + 0.1 * high), math.expm1(0.1 * low + 0.9 * high)


def _array_measures(field: Field, value: sql.Identifier, given: sql.Identifier) -> dict[str, sql.Composed]:
    entry = field.entry
    measures = {
        "nulls": _count(sql.SQL("NOT {}").format(given)),
        "wrong_length" if entry["kind"] == "array" else "misplaced": _count(
            sql.SQL("{} AND {} IS NULL").format(given, value)
        ),
    }
    lower, upper = (
        end if entry[key] is None else entry[key]
        for key, end in (("lower", -sys.float_info.max), ("upper", sys.float_info.max))
    )
    # NULL if an element is NULL and all others are inside.
    inside = sql.SQL("({lower} <= ALL ({v}) AND {upper} >= ALL ({v}))").format(
        lower=_literal(lower), upper=_literal(upper), v=value
    )
    return measures | {
        "null_elements": _count(sql.SQL("{} IS NOT NULL AND {} IS NULL").format(value, inside)),
        "outside_elements": _count(sql.SQL("{} IS NOT NULL AND NOT {}").format(value, inside)),
    }


# Levels


def count_levels(session: Session, source: Source, fields: Sequence[Field]) -> dict[str, LevelCounts]:
    """Count rows by level of at most `COLUMNS_PER_QUERY` categories in one pass over the table.

    The encoder itself decides which level a value is. It compares text byte by byte, so values that are equal
    by another collation are counted separately.
    """
    if not fields:
        return {}
    columns = [sql.Identifier("c", f"value_{i}") for i in range(len(fields))]
    read = [
        sql.SQL("{} AS {}").format(by_bytes(field), sql.Identifier(f"value_{i}"))
        for i, field in enumerate(fields)
    ]
    listed = sql.SQL(", ").join(columns)
    if len(fields) == 1:
        # Of a distributed table Citus brings different values alone: it cannot plan GROUPING SETS.
        counted = sql.SQL("SELECT 0 AS grouped, {}, pg_catalog.count(*) AS rows ").format(read[0])
        counted += from_clause(source) + sql.SQL(" GROUP BY 2")
    else:
        counted = sql.SQL(
            "SELECT GROUPING({listed}) AS grouped, {listed}, pg_catalog.count(*) AS rows FROM (SELECT {read} "
        ).format(listed=listed, read=sql.SQL(", ").join(read))
        counted += from_clause(source) + sql.SQL(" OFFSET 0) AS c GROUP BY GROUPING SETS ({})").format(
            sql.SQL(", ").join(sql.SQL("({})").format(column) for column in columns)
        )
    encoder = {
        "columns": [dict(field.entry, centered=False) for field in fields],
        "intercept": False,
    }
    rows = session.fetch(
        sql.SQL(
            "SELECT l.grouped, pg_catalog.left(l.value, {characters}), l.level, l.rows, l.rows_alike "
            "FROM (SELECT g.*, pg_catalog.row_number() OVER (alike ORDER BY g.rows DESC, g.value) AS place, "
            "pg_catalog.sum(g.rows) OVER alike AS rows_alike "
            # Citus cannot write the query anew with unpack beside unnest.
            "FROM (SELECT v.grouped, v.value, v.rows, (SELECT e.place FROM pg_catalog.unnest("
            "(SELECT u.x FROM dpml.unpack(v.block) AS u)) WITH ORDINALITY AS e(feature, place) "
            "WHERE e.feature > 0::float4) AS level "
            "FROM (SELECT c.grouped, coalesce({texts}) AS value, c.rows, "
            "dpml.encode(%(encoder)s, ROW({listed})) AS block FROM ({counted}) AS c) AS v OFFSET 0) AS g "
            "WINDOW alike AS (PARTITION BY g.grouped, g.level IS NULL, g.value IS NULL)) AS l "
            "WHERE l.level IS NOT NULL OR l.place <= {shown} ORDER BY l.place"
        ).format(
            characters=sql.Literal(SHOWN_CHARACTERS),
            texts=sql.SQL(", ").join(map(value_text, fields, columns)),
            listed=listed,
            counted=counted,
            shown=sql.Literal(SHOWN_VALUES),
        ),
        {"encoder": json_parameter(encoder)},
    )
    return _by_field(fields, rows)


def by_bytes(field: Field) -> sql.Composed:
    """The column such that values are equal if they are for the encoder; an enum loses its domain."""
    if field.type.kind == "enum":
        return sql.SQL("coalesce({}, NULL)").format(field.identifier)  # NULL takes the domain off
    collation = sql.SQL(' COLLATE pg_catalog."C"' if field.type.collated else "")
    return sql.SQL("{}{}").format(field.identifier, collation)


def value_text(field: Field, value: sql.Composable) -> sql.Composed:
    """The value as text; for an enum not by a cast, which its owner could have defined."""
    text = "pg_catalog.textin(pg_catalog.enum_out({}))" if field.type.kind == "enum" else "{}::text"
    return sql.SQL(text).format(value)


def _by_field(fields: Sequence[Field], rows: Sequence[tuple[Any, ...]]) -> dict[str, LevelCounts]:
    found = {}
    before = 0
    for i, field in enumerate(fields):
        n_levels = len(field.entry["levels"])
        # GROUPING has one bit for each column, the last the lowest; 0 for the one that is grouped by.
        grouped = (2 ** len(fields) - 1) ^ (1 << (len(fields) - 1 - i))
        own = [row[1:] for row in rows if row[0] == grouped]
        levels = [0] * n_levels
        for _, level, count, _ in own:
            if level is not None:
                levels[level - 1 - before] += int(count)
        unknown = [row for row in own if row[1] is None and row[0] is not None]
        found[field.name] = LevelCounts(
            nulls=sum(int(count) for value, _, count, _ in own if value is None),
            levels=tuple(levels),
            unknown=int(unknown[0][3]) if unknown else 0,
            unknown_values=tuple(ValueCount(value, int(count)) for value, _, count, _ in unknown),
        )
        before += n_levels
    return found


# Units


def count_units(session: Session, source: Source, column: str, most: int) -> tuple[int, int, int, int]:
    """Numbers of values, of rows of the most frequent, of values with several rows, of rows beyond `most`."""
    units, most_rows, several, beyond = session.fetch_one(
        sql.SQL(
            "SELECT pg_catalog.count(*), coalesce(pg_catalog.max(u.rows), 0), "
            "pg_catalog.count(*) FILTER (WHERE u.rows > 1), "
            "coalesce(pg_catalog.sum(greatest(u.rows - %(most)s::int8, 0)), 0) "
            "FROM (SELECT pg_catalog.count(*) AS rows "
        )
        + from_clause(source)
        + sql.SQL(" GROUP BY {column} HAVING {column} IS NOT NULL) AS u").format(
            column=sql.Identifier("t", column)
        ),
        {"most": most},
    )
    return int(units), int(most_rows), int(several), int(beyond)
