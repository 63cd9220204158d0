# SPDX-License-Identifier: PostgreSQL
"""Advice on a spec for the owner of the rows, and a check as text and as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from pg_dpml import names
from pg_dpml.spec.columns import Column
from pg_dpml.spec.data import DataSpec
from pg_dpml.tables.checks import TableCheck, UnitCheck, ValueCheck
from pg_dpml.tables.stamp import OWNER_ONLY

__all__ = ["advice", "check_record", "check_text"]

_CAUTION = (
    "Use it to find mistakes: a wrong column, another unit, a misspelt level. Do not fit bounds or levels "
    "to it: the spec is public and would carry them out."
)
_MOSTLY = 0.9
_MANY = 0.5
_FEW = 0.01
_REPEATED = 3
"""Rows per value, on average, above which a small number of values is no accident."""


def advice(check: TableCheck) -> dict[str, list[str]]:
    """Advice by column, label and unit; those without advice are left out.

    Parameters
    ----------
    check : TableCheck

    Returns
    -------
    dict of str to list of str
    """
    both = zip(check.columns, check.data.columns, strict=True)
    found = {found.name: list(_column_advice(found, column, check.n_rows)) for found, column in both}
    found[check.label.name] = list(_label_advice(check))
    for unit in check.units:
        found.setdefault(unit.column, []).extend(_unit_advice(unit, check.data))
    return {name: lines for name, lines in found.items() if lines}


def _column_advice(check: ValueCheck, column: Column, n_rows: int) -> Iterator[str]:
    present = n_rows - check.nulls - check.nan
    if n_rows and check.nulls > _MANY * n_rows:
        yield "mostly NULL, which says nothing: is it worth its noise?"
    if present and check.constant:
        yield "constant: leave it out"
        return
    if check.below + check.above > _FEW * n_rows:
        yield "many values are outside the bounds: another unit, or bounds that do not mean this column?"
    if check.far:
        yield 'far from the mean: public bounds beside scale = "standard" would tame these rows'
    if check.wrong_length:
        yield "arrays of another length count as nothing"
    if check.misplaced:
        yield "such rows have none of these features: is first_index right, and is length?"
    if check.outside_elements > _FEW * n_rows:
        yield "many arrays have elements outside the bounds: another unit?"
    if check.unknown > _FEW * n_rows:
        yield "many values are no level and count as nothing: misspelt, or a level is missing?"
    if present and check.lowest_tenth > _MOSTLY * present:
        yield _skew_advice(check, column)
    elif present and check.highest_tenth > _MOSTLY * present:
        yield "almost all values are in the highest tenth of the bounds: can lower be higher, by its meaning?"
    elif present and check.at_lower > _MANY * present and column.scale == "center":
        yield 'most values are the lower bound: scale = "zero_based" makes them 0'


def _skew_advice(check: ValueCheck, column: Column) -> str:
    changes = []
    if not column.log1p and isinstance(column.lower, float) and column.lower >= 0:
        changes.append("log1p = true")
    if column.scale == "center":
        changes.append('scale = "zero_based"')
    changes.append("a smaller upper bound, if its meaning allows")
    return f"almost all values are in the lowest tenth of the bounds: try {', '.join(changes)}"


def _label_advice(check: TableCheck) -> Iterator[str]:
    label, n_rows = check.label, check.n_rows
    lost = label.nulls + label.nan + (label.unknown if not _has_other_class(check.data) else 0)
    if lost:
        yield f"{_rows(lost)} without a declared label: zero rows, which teach nothing but count in n"
    if label.levels is None:
        if n_rows and label.constant:
            yield "every row has the same value: nothing to learn"
        if label.below + label.above > _FEW * n_rows:
            yield "many values are outside the bounds: another unit?"
        yield from _class_advice(label)
        return
    sizes = _class_sizes(check)
    total = sum(sizes.values())
    empty = [name for name, rows in sizes.items() if rows == 0]
    if total and len(empty) == len(sizes) - 1:
        yield "every labelled row is of one class: nothing to learn"
    elif empty:
        yield f"no row is of class {', '.join(empty)}"
    elif total and min(sizes.values()) < _FEW * total:
        yield "one class is rare: a model that never names it will seem accurate, so look at both classes"


def _class_advice(label: ValueCheck) -> Iterator[str]:
    """Advice for a number to predict whose values look like classes."""
    values = [value.value for value in label.few_values]
    if sum(value.rows for value in label.few_values) < _REPEATED * len(values):
        return
    if len(values) == 2:
        yield (
            f"two values only, {values[0]} and {values[1]}: did you mean positive = {values[1]} and "
            f"negative = {values[0]}, for two classes, in place of lower and upper?"
        )
    elif len(values) > 2 and all(value.removeprefix("-").isdecimal() for value in values):
        yield (
            f"{len(values)} whole values only: did you mean classes = [{', '.join(values)}] in place of "
            "lower and upper?"
        )


def _has_other_class(data: DataSpec) -> bool:
    return data.label.positive is not None and data.label.negative is None


def _class_sizes(check: TableCheck) -> dict[str, int]:
    """Number of rows of each class, by the name that is shown."""
    sizes = {names.shown(level.value): level.rows for level in check.label.levels or ()}
    if _has_other_class(check.data):
        sizes[f"not {names.shown(str(check.data.label.positive))}"] = check.label.unknown
    return sizes


def _unit_advice(unit: UnitCheck, data: DataSpec) -> Iterator[str]:
    if unit.declared:
        if unit.unused_rows:
            yield (
                f"{_rows(unit.unused_rows)} beyond max_rows_per_unit = {data.max_rows_per_unit}, which count "
                "as zero rows"
            )
    elif unit.several:
        yield (
            f"{unit.several:,} of {unit.units:,} values have several rows, up to {unit.most_rows:,}: if it "
            "says whom a row is about (or a join repeats rows), the guarantee for one row is not one for a "
            f"person. Declare unit = {names.toml_text(unit.column)} and max_rows_per_unit"
        )


# For people, and for programs


def check_record(check: TableCheck) -> dict[str, Any]:
    """A check as a JSON-ready mapping."""
    counts = {name: value for name, value in asdict(check).items() if name != "data"}
    return {"stamp": OWNER_ONLY, "private": False, **counts, "advice": advice(check)}


def check_text(check: TableCheck) -> str:
    """A check as lines of text."""
    hints = advice(check)
    name_width = max(len(names.shown(c.name)) for c in (*check.columns, check.label))
    lines = [
        OWNER_ONLY,
        *textwrap.wrap(_CAUTION, 100),
        "",
        f"{names.visible(check.table)}, {_rows(check.n_rows)}",
    ]
    lines += ["", "Columns"]
    for column in check.columns:
        lines += _entry(column.name, name_width, "; ".join(_findings(column)) or "as the spec says", hints)
    lines += ["", "Label"]
    findings = [f"{name}: {rows:,}" for name, rows in _class_sizes(check).items()]
    others = "of the other class" if _has_other_class(check.data) else "not declared"
    findings += _findings(check.label, others)
    lines += _entry(check.label.name, name_width, "; ".join(findings) or "as the spec says", hints)
    if check.units:
        lines += ["", "People"]
    for unit in check.units:
        text = f"{unit.units:,} values, up to {_rows(unit.most_rows)} of one"
        lines += _entry(unit.column, name_width, text, hints)
    return "\n".join(lines)


def _entry(name: str, width: int, text: str, hints: dict[str, list[str]]) -> list[str]:
    indent = " " * (width + 4)
    lines = textwrap.wrap(text, 110 - width, break_long_words=False)
    lines = [f"  {names.shown(name):<{width}}  {lines[0]}", *(indent + line for line in lines[1:])]
    for hint in hints.pop(name, ()):
        lines += textwrap.wrap(
            hint, 110, initial_indent=f"{indent}-> ", subsequent_indent=f"{indent}   ", break_long_words=False
        )
    return lines


def _findings(check: ValueCheck, undeclared: str = "not declared") -> Iterator[str]:
    """Deviations from the spec, with the number of rows of each."""
    counts = {
        "NULL": check.nulls,
        "NaN": check.nan,
        "infinite": check.infinite,
        "below the bounds": check.below,
        "above the bounds": check.above,
        "far from the mean": check.far,
        "of another length": check.wrong_length,
        "with indices that are repeated, outside or not one for each number": check.misplaced,
        "with NULL or NaN elements": check.null_elements,
        "with elements outside the bounds": check.outside_elements,
    }
    for what, rows in counts.items():
        if rows:
            yield f"{rows:,} {what}"
    if check.unknown:
        shown = ", ".join(f"{value.value!r} {value.rows:,}" for value in check.unknown_values)
        yield f"{check.unknown:,} {undeclared} ({shown})"
    unseen = [level.value for level in check.levels or () if level.rows == 0]
    if unseen:
        yield f"never: {', '.join(map(repr, unseen[:10]))}{' ...' if len(unseen) > 10 else ''}"


def _rows(count: int) -> str:
    return f"{count:,} row" + ("" if count == 1 else "s")
