# SPDX-License-Identifier: PostgreSQL
"""How well a data spec fits the rows, for their owner: only this check counts bad rows.

Nothing here is private, and training never calls it (privacy/README.md, "Bad
rows never show").
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pg_dpml.blocks.distributed import is_distributed
from pg_dpml.blocks.query import from_clause
from pg_dpml.blocks.source import Source, resolve
from pg_dpml.database.database import Database
from pg_dpml.database.session import Session, sql
from pg_dpml.errors import SpecError
from pg_dpml.names import shown
from pg_dpml.spec.data import DataSpec
from pg_dpml.tables import measuring
from pg_dpml.tables.inspection import looks_like_person
from pg_dpml.tables.labels import label_field
from pg_dpml.tables.measuring import COLUMNS_PER_QUERY, Field, LevelCounts, ValueCount

if TYPE_CHECKING:
    import sqlalchemy as sa

__all__ = ["Progress", "TableCheck", "UnitCheck", "ValueCheck", "ValueCount", "check_table"]

Progress = Callable[[str, int, int], None]
"""Called with "check", the number of queries done and the number of all queries."""

_PEOPLE_CHECKED = 3
_FEW_VALUES = 10
"""A numeric label with at most this many different values may be a class."""


@dataclass(frozen=True)
class ValueCheck:
    """The values of a column, compared with its spec; every number counts rows.

    Attributes
    ----------
    name, type : str
    nulls, nan, infinite : int
        Numbers beyond float8 count as infinite.
    below, above : int
        Rows with a finite value outside the bounds.
    at_lower : int
        Rows at the lower bound or below.
    lowest_tenth, highest_tenth : int
        Rows in the outer tenths of the bounds, after log1p.
    far : int
        Rows more than ten sd from the mean, with scale "standard".
    wrong_length : int
        Arrays of another length.
    misplaced : int
        Rows whose sparse column has an index that is missing, repeated or outside, or not one for a number.
    null_elements, outside_elements : int
        Arrays of the right length with an element outside the bounds (infinite, if there are no bounds);
        otherwise, with an element that is NULL or NaN and so encoded as 0.
    constant : bool
        Whether all values are equal once they are moved into the bounds.
    levels : tuple of ValueCount or None
        Declared levels or classes, in their order.
    unknown : int
        Rows with a value that is not declared.
    unknown_values : tuple of ValueCount
        The most frequent of these values.
    few_values : tuple of ValueCount
        The different values of a number to predict, if there are at most ten.
    """

    name: str
    type: str
    nulls: int = 0
    nan: int = 0
    infinite: int = 0
    below: int = 0
    above: int = 0
    at_lower: int = 0
    lowest_tenth: int = 0
    highest_tenth: int = 0
    far: int = 0
    wrong_length: int = 0
    misplaced: int = 0
    null_elements: int = 0
    outside_elements: int = 0
    constant: bool = False
    levels: tuple[ValueCount, ...] | None = None
    unknown: int = 0
    unknown_values: tuple[ValueCount, ...] = ()
    few_values: tuple[ValueCount, ...] = ()


@dataclass(frozen=True)
class UnitCheck:
    """Rows per person, by a column that identifies the person.

    Attributes
    ----------
    column : str
    declared : bool
        Whether it is the spec's unit, or only looks like one.
    units, most_rows : int
        Number of values, and of rows of the most frequent one.
    several : int
        Number of values with more than one row.
    unused_rows : int
        Rows beyond `max_rows_per_unit`, which count as zero rows.
    """

    column: str
    declared: bool
    units: int
    most_rows: int
    several: int
    unused_rows: int


@dataclass(frozen=True)
class TableCheck:
    """A table measured by a spec. Not private.

    Attributes
    ----------
    data : DataSpec
    table : str
    n_rows : int
    columns : tuple of ValueCheck
        In the spec's order.
    label : ValueCheck
    units : tuple of UnitCheck
    """

    data: DataSpec
    table: str
    n_rows: int
    columns: tuple[ValueCheck, ...]
    label: ValueCheck
    units: tuple[UnitCheck, ...]


def check_table(
    database: str | sa.Engine,
    data: DataSpec,
    *,
    progress: Progress | None = None,
    insecure: bool = False,
) -> TableCheck:
    """Measure a table by a spec, for the owner of the rows. The result is not private.

    Parameters
    ----------
    database : str or sqlalchemy.Engine
        libpq connection string, or an engine over psycopg 3.
    data : DataSpec
    progress : callable or None
        See `Progress`.
    insecure : bool
        Allow TCP without TLS to another machine.

    Returns
    -------
    TableCheck

    Raises
    ------
    SpecError, GuaranteeError
        As for training, if the spec does not fit the table's columns.
    UnavailableError
        If the server cannot be reached.
    """
    report = progress or (lambda phase, done, total: None)
    with Database(database, insecure=insecure).session("REPEATABLE READ") as session:
        resolved = resolve(session, data)
        if is_distributed(session, resolved.table):
            raise SpecError(
                f"{shown(resolved.table.name)} is distributed by Citus, which cannot plan what a check "
                "counts: copy its rows, or some of them, into a table of the coordinator (CREATE TABLE "
                "... AS SELECT) and check that"
            )
        *columns, label = _fields(resolved)
        groups = list(_groups([*columns, label]))
        people = _people(resolved)
        found: dict[str, dict[str, Any]] = {}
        units = []
        with session.owners_path():
            (n_rows,) = session.fetch_one(sql.SQL("SELECT pg_catalog.count(*) ") + from_clause(resolved))
            for done, group in enumerate(groups):
                report("check", done, len(groups) + len(people))
                found |= _measure(session, resolved, group, n_rows)
            if label.entry["kind"] == "numeric" and label.type.kind in ("number", "boolean"):
                found[label.name]["few_values"] = measuring.count_values(
                    session, resolved, label, _FEW_VALUES
                )
            for done, column in enumerate(people, len(groups)):
                report("check", done, len(groups) + len(people))
                counts = measuring.count_units(session, resolved, column, data.max_rows_per_unit)
                units.append(UnitCheck(column, column == resolved.unit, *counts))
        report("check", 1, 1)
    checks = [ValueCheck(f.name, f.type.name, **found[f.name]) for f in (*columns, label)]
    table = f"{resolved.table.schema}.{resolved.table.name}"
    return TableCheck(data, table, int(n_rows), tuple(checks[:-1]), checks[-1], tuple(units))


def _fields(source: Source) -> list[Field]:
    """The encoder's columns and the label."""
    columns = [Field(source.table.columns[entry["name"]], entry) for entry in source.encoder["columns"]]
    return [*columns, label_field(source.encoder, source.table.columns)]


def _groups(fields: Sequence[Field]) -> Iterator[list[Field]]:
    """Groups of columns to measure in one query: all categories or none."""
    for categories in (False, True):
        some = [field for field in fields if (field.entry["kind"] == "category") == categories]
        for first in range(0, len(some), COLUMNS_PER_QUERY):
            yield some[first : first + COLUMNS_PER_QUERY]


def _measure(
    session: Session, source: Source, fields: Sequence[Field], n_rows: int
) -> dict[str, dict[str, Any]]:
    """Arguments of the `ValueCheck` of each field, by name."""
    if fields[0].entry["kind"] == "category":
        counts = measuring.count_levels(session, source, fields)
        return {f.name: _level_arguments(f, counts[f.name], n_rows) for f in fields}
    numbers = measuring.count_numbers(session, source, fields)
    return {name: dict(some, constant=bool(some.get("constant"))) for name, some in numbers.items()}


def _level_arguments(field: Field, counts: LevelCounts, n_rows: int) -> dict[str, Any]:
    levels = tuple(ValueCount(*pair) for pair in zip(field.entry["levels"], counts.levels, strict=True))
    largest = max([*counts.levels, counts.unknown])
    return {
        "nulls": counts.nulls,
        "levels": levels,
        "unknown": counts.unknown,
        "unknown_values": counts.unknown_values,
        "constant": largest == n_rows - counts.nulls,
    }


def _people(source: Source) -> list[str]:
    """Columns whose values may have several rows: the spec's unit, else those that look like a person's."""
    if source.unit is not None:
        return [source.unit]
    names = [name for name, type_ in source.table.columns.items() if looks_like_person(name, type_.kind)]
    return names[:_PEOPLE_CHECKED]
