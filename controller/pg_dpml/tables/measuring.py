# SPDX-License-Identifier: PostgreSQL
"""Statements that count, over all rows, what an encoder silently puts right.

Their results are exact and not private: for `pg_dpml.tables.checks` alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pg_dpml.database import ColumnType, Session, json_parameter, sql
from pg_dpml.moments import MOMENTS
from pg_dpml.rows import Source, from_clause

__all__ = ["COLUMNS_PER_QUERY", "Field", "LevelCounts", "count_levels", "count_numbers", "count_units"]

COLUMNS_PER_QUERY = 30
"""GROUPING takes 31 arguments, and a query gives 1664 columns."""

SHOWN_VALUES = 5
SHOWN_CHARACTERS = 60
_FAR_SD = 10.0
_EPOCH_S = 946684800  # 2000-01-01 in seconds since 1970

_MOMENT_LITERALS = {
    "date": "(timestamp '2000-01-01' + {} * interval '1 day')",
    "timestamp": "(timestamp '2000-01-01' + {} * interval '1 second')",
    "timestamptz": "(timestamptz '2000-01-01 00:00+00' + {} * interval '1 second')",
}


@dataclass(frozen=True)
class Field:
    """A column to measure.

    Attributes
    ----------
    type : ColumnType
    entry : mapping
        As in the encoder's columns, of kind "numeric", "boolean", "category" or "array".
    """

    type: ColumnType
    entry: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Of the column."""
        return str(self.entry["name"])

    @property
    def identifier(self) -> sql.Identifier:
        """In a query whose table is t."""
        return sql.Identifier("t", self.name)


@dataclass(frozen=True)
class LevelCounts:
    """Rows of a column's declared levels, in their order, and of other values."""

    nulls: int
    levels: tuple[int, ...]
    unknown: int
    unknown_values: tuple[tuple[str, int], ...]


# Numbers


def count_numbers(session: Session, source: Source, fields: Sequence[Field]) -> dict[str, dict[str, int]]:
    """Measures of numbers, booleans and arrays by name; one pass over the table."""
    measures = [_array_measures(f) if f.entry["kind"] == "array" else _number_measures(f) for f in fields]
    outputs = [expression for some in measures for expression in some.values()]
    if not outputs:
        return {}
    query = sql.SQL("SELECT {} ").format(sql.SQL(", ").join(outputs)) + from_clause(source)
    row = iter(session.fetch_one(query))
    return {
        field.name: {measure: int(next(row)) for measure in some}
        for field, some in zip(fields, measures, strict=True)
    }


def _count(condition: sql.Composable) -> sql.Composed:
    return sql.SQL("pg_catalog.count(*) FILTER (WHERE {})").format(condition)


def _number_measures(field: Field) -> dict[str, sql.Composed]:
    """A float8, or numeric, and its bounds; NaN sorts after Infinity."""
    value, exact = _value(field)

    def where(template: str, **numbers: float) -> sql.Composed:
        literals = {name: _literal(number, exact) for name, number in numbers.items()}
        most = _literal(math.inf, exact)
        least = _literal(-math.inf, exact)
        return _count(sql.SQL(template).format(v=value, most=most, least=least, **literals))

    measures = {
        "nulls": where("{v} IS NULL"),
        "nan": where("{v} > {most}"),
        "infinite": where("{v} = {most} OR {v} = {least}"),
        "constant": sql.SQL("coalesce(pg_catalog.min({v}) = pg_catalog.max({v}), true)::integer").format(
            v=value
        ),
    }
    entry = field.entry
    lower, upper = entry.get("lower"), entry.get("upper")
    if entry["kind"] == "boolean":
        return {name: measures[name] for name in ("nulls", "constant")}
    if lower is not None and upper is not None:
        low, high = _tenths(lower, upper, log1p=entry.get("log1p", False))
        measures |= {
            "below": where("{v} < {bound} AND {v} > {least}", bound=lower),
            "above": where("{v} > {bound} AND {v} < {most}", bound=upper),
            "at_lower": where("{v} <= {bound}", bound=lower),
            "lowest_tenth": where("{v} < {bound}", bound=low),
            "highest_tenth": where("{v} > {bound} AND {v} <= {most}", bound=high),
        }
    if entry.get("scale") == "standard":
        reach = _FAR_SD * entry["sd"]
        near, far = entry["mean"] - reach, entry["mean"] + reach
        measures["far"] = where("{v} < {near} OR ({v} > {far} AND {v} <= {most})", near=near, far=far)
    return measures


def _value(field: Field) -> tuple[sql.Composable, bool]:
    """A column as the encoder sees it, and whether it is numeric, which a cast to float8 could fail on."""
    kind = field.type.kind
    if kind == "boolean":
        return sql.SQL("({})::integer").format(field.identifier), False
    if kind in MOMENTS:
        seconds = sql.SQL("(pg_catalog.date_part('epoch', {}) - {}::float8)").format(
            field.identifier, sql.Literal(_EPOCH_S)
        )
        return (sql.SQL("({} / 86400::float8)").format(seconds) if kind == "date" else seconds), False
    if field.type.exact:
        return sql.SQL("({})::numeric").format(field.identifier), True
    return sql.SQL("({})::float8").format(field.identifier), False


def _literal(number: float, exact: bool) -> sql.Composed:
    return sql.SQL("{}::pg_catalog." + ("numeric" if exact else "float8")).format(sql.Literal(repr(number)))


def _tenths(lower: float, upper: float, *, log1p: bool) -> tuple[float, float]:
    """Where the lowest tenth of the scaled range ends and the highest begins."""
    if not log1p:
        return 0.9 * lower + 0.1 * upper, 0.1 * lower + 0.9 * upper
    low, high = math.log1p(lower), math.log1p(upper)
    return math.expm1(0.9 * low + 0.1 * high), math.expm1(0.1 * low + 0.9 * high)


def _array_measures(field: Field) -> dict[str, sql.Composed]:
    entry, kind = field.entry, field.type.element
    # Comparisons of exactly these types are built in.
    through = "::real[]" if field.type.vector else "::integer[]" if kind == "boolean" else ""
    element = kind if kind in _MOMENT_LITERALS else "numeric" if field.type.exact else "float8"
    array = sql.SQL("({})" + f"{through}::{element}[]").format(field.identifier)
    fits = sql.SQL("pg_catalog.cardinality({}) = {}").format(array, sql.Literal(entry["length"]))
    measures = {
        "nulls": _count(sql.SQL("{} IS NULL").format(field.identifier)),
        "wrong_length": _count(sql.SQL("NOT ({})").format(fits)),
    }
    if entry["lower"] is not None and entry["upper"] is not None:
        literals = [
            sql.SQL(_MOMENT_LITERALS[kind]).format(_literal(entry[key], False))
            if kind in _MOMENT_LITERALS
            else _literal(entry[key], field.type.exact)
            for key in ("lower", "upper")
        ]
        # NULL if an element is NULL and no other is outside.
        inside = sql.SQL("({} <= ALL ({array}) AND {} >= ALL ({array}))").format(*literals, array=array)
        measures |= {
            "null_elements": _count(sql.SQL("{} AND {} IS NULL").format(fits, inside)),
            "outside_elements": _count(sql.SQL("{} AND NOT {}").format(fits, inside)),
        }
    return measures


# Levels


def count_levels(session: Session, source: Source, fields: Sequence[Field]) -> dict[str, LevelCounts]:
    """Rows by level of at most `COLUMNS_PER_QUERY` categories; one pass over the table.

    The encoder itself says which level a value is.
    """
    if not fields:
        return {}
    columns = [field.identifier for field in fields]
    listed = sql.SQL(", ").join(columns)
    encoder = {
        "columns": [dict(field.entry, centered=False) for field in fields],
        "intercept": False,
    }
    rows = session.fetch(
        sql.SQL(
            "SELECT l.grouped, pg_catalog.left(l.value, {characters}), l.level, l.rows, l.rows_alike "
            "FROM (SELECT g.*, pg_catalog.row_number() OVER (alike ORDER BY g.rows DESC, g.value) AS place, "
            "pg_catalog.sum(g.rows) OVER alike AS rows_alike "
            "FROM (SELECT v.grouped, v.value, v.rows, (SELECT e.place FROM dpml.unpack(v.block) AS u, "
            "pg_catalog.unnest(u.x) WITH ORDINALITY AS e(feature, place) "
            "WHERE e.feature > 0::float4) AS level "
            "FROM (SELECT GROUPING({listed}) AS grouped, coalesce({texts}) AS value, "
            "pg_catalog.count(*) AS rows, dpml.encode(%(encoder)s, ROW({listed})) AS block "
        ).format(
            characters=sql.Literal(SHOWN_CHARACTERS),
            listed=listed,
            texts=sql.SQL(", ").join(map(_text, fields)),
        )
        + from_clause(source)
        + sql.SQL(
            " GROUP BY GROUPING SETS ({sets})) AS v OFFSET 0) AS g "
            "WINDOW alike AS (PARTITION BY g.grouped, g.level IS NULL, g.value IS NULL)) AS l "
            "WHERE l.level IS NOT NULL OR l.place <= {shown} ORDER BY l.place"
        ).format(
            sets=sql.SQL(", ").join(sql.SQL("({})").format(column) for column in columns),
            shown=sql.Literal(SHOWN_VALUES),
        ),
        {"encoder": json_parameter(encoder)},
    )
    return _by_field(fields, rows)


def _text(field: Field) -> sql.Composed:
    """The owner of an enum could have made the cast to text a function of their own."""
    text = "pg_catalog.textin(pg_catalog.enum_out({}))" if field.type.kind == "enum" else "{}::text"
    return sql.SQL(text).format(field.identifier)


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
            unknown_values=tuple((value, int(count)) for value, _, count, _ in unknown),
        )
        before += n_levels
    return found


def count_units(session: Session, source: Source, column: str, most: int) -> tuple[int, int, int, int]:
    """Values of a column, rows of the most frequent, values with several, and rows beyond `most` each."""
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
