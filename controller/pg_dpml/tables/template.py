# SPDX-License-Identifier: PostgreSQL
"""A data spec to fill in, written from the catalog's description of a table."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

from pg_dpml.database.columns import ColumnType
from pg_dpml.errors import SpecError
from pg_dpml.names import shown, toml_key, toml_text, visible
from pg_dpml.spec.dates import DATE_KINDS
from pg_dpml.spec.files import FILL_IN
from pg_dpml.tables.constraints import Bound
from pg_dpml.tables.inspection import (
    CatalogColumn,
    CatalogTable,
    looks_like_key,
    looks_like_person,
    sparse_pairs,
)

__all__ = ["spec_template"]

# Each text is one paragraph, wrapped when it is written.
_HEADER = (
    "Data spec of {table} for dpml, written from the catalog alone: no row was read.",
    "",
    "1. Replace every {fill_in}, and delete the columns that are no features.",
    "2. Everything in this file is public: the guarantee protects the rows, not the spec. So bounds and "
    "levels must come from what the columns mean (a code book, a form, a law, physics), never from the "
    "rows: the smallest and largest value, or a list of the values that occur, would give them away. What "
    "stands here already comes from types and CHECK constraints: keep it if the schema is public knowledge.",
    "3. Values outside the bounds are moved to the nearer bound, unknown levels and NULL count as nothing; "
    "no error tells. Round, generous bounds are good ones, but a range that is mostly unused costs accuracy.",
    '4. Where 0 is the usual value of a number, add scale = "zero_based"; where a few values are far larger '
    "than most, log1p = true. Where its effect is no straight line, knots = 8, or a list of public "
    "places; in a section [defaults], knots = 8 is for every number and date with bounds.",
    "5. dpml check SPEC shows you, the owner, what does not fit; dpml plan SPEC --epsilon 1 the guarantee.",
)
_UNIT = (
    "Whom the guarantee protects: one row. If a person (patient, customer, household) can have several "
    "rows, name the column that says whose row it is: then all rows of a person are protected together, and "
    "at most so many of them are used.",
)
_LABEL = (
    "What the model predicts, and exactly one of: positive (two classes; without negative, every other "
    "value is the other class), classes (several, in the order of the scores), or lower and upper (a number "
    "or date, with its public bounds).",
)
_LABEL_SECTION = ("Delete the column's own section below.",)
_VIEW = (
    "Which rows a view or foreign table shows could itself be private. If its definition is public, say so:",
)
_ROW_SECURITY = (
    "This table has row-level security, so its rows depend on who asks: dpml refuses it. Name a copy.",
)

_DEFAULTS = (
    "Public bounds of the {count} columns of type {type} below whose constraints say none. Do they mean the "
    "same in all of these columns? Where not, give a column bounds or levels of its own.",
)
_ALIKE = 10
"""From this many columns of one type without bounds on, a template has [defaults]."""
_FEW_VALUES = 10
"""A range of fewer whole numbers than this may be classes."""
_SPARSE = "Sparse: these numbers stand at the places in {indices}, and all other features of a row are 0."
_UNBOUNDED = (
    "The numbers are taken as they are, and the row is brought to norm 1. With public bounds instead:"
)
_BY_NAME = "Left out: by its name it identifies people or rows."

_PRECISION = re.compile(r"numeric\((\d+),(\d+)\)")
_BLANKS = re.compile(r"[\s\x00-\x1f\x7f]+")


def spec_template(table: CatalogTable, label: str | None = None) -> str:
    """A TOML data spec with the placeholder `FILL_IN` for what only a person knows.

    Parameters
    ----------
    table : CatalogTable
    label : str or None
        Column to predict; None: a placeholder.

    Raises
    ------
    SpecError
        If there is no such column, or it cannot be predicted.
    """
    if label is not None:
        label = table.source.column(label, "label")
    header = [line.format(table=table.name, fill_in=FILL_IN) for line in _HEADER]
    lines = [*_comment(*header), "", f"table = {toml_text(table.name)}"]
    if table.source.row_security:
        lines += ["", *_comment(*_ROW_SECURITY)]
    if table.source.kind in "vmf":
        lines += ["", *_comment(*_VIEW), "# definition_is_public = true"]
    lines += ["", *_unit_lines(table), "", *_label_lines(table, label)]
    alike = _alike(table, label)
    shared = {column.name for column in alike}
    if alike:
        words = [text.format(count=len(alike), type=alike[0].type.name) for text in _DEFAULTS]
        open_ = [f"{key} = {toml_text(FILL_IN)}" for key in ("lower", "upper")]
        lines += ["", "[defaults]", *_comment(*words), *open_]
    pairs = sparse_pairs(table.columns)
    for column in table.columns.values():
        if column.name in pairs:
            lines += ["", *_sparse_lines(column, pairs[column.name])]
        elif column.name != label and column.name not in pairs.values():
            lines += ["", *_column_lines(column, by_default=column.name in shared)]
    return "\n".join(lines) + "\n"


def _unit_lines(table: CatalogTable) -> list[str]:
    people = [c.name for c in table.columns.values() if looks_like_person(c.name, c.type.kind)]
    unique = ("the primary key", "unique")
    several = [name for name in people if table.columns[name].key not in unique]
    unit = (several or people or ["COLUMN"])[0]
    return [*_comment(*_UNIT), f"# unit = {toml_text(unit)}", "# max_rows_per_unit = 1"]


def _label_lines(table: CatalogTable, label: str | None) -> list[str]:
    lines = ["[label]", *_comment(*_LABEL)]
    if label is None:
        return [
            *lines,
            *_comment(*_LABEL_SECTION),
            f"column = {toml_text(FILL_IN)}",
            f"positive = {toml_text(FILL_IN)}",
            f"# negative = {toml_text(FILL_IN)}",
            f"# classes = [{toml_text(FILL_IN)}, {toml_text(FILL_IN)}]",
            f"# lower = {toml_text(FILL_IN)}",
            f"# upper = {toml_text(FILL_IN)}",
        ]
    column = table.columns[label]
    return [*lines, *_description(column), f"column = {toml_text(label)}", *_label_values(column)]


def _label_values(column: CatalogColumn) -> list[str]:
    levels = column.type.enum_labels or column.facts.levels
    kind = column.type.kind
    if kind in ("array", "sparse", "other"):
        raise SpecError(f"label {shown(column.name)}: type {visible(column.type.name)} cannot be predicted")
    if kind == "boolean":
        return ["positive = true"]
    if levels is not None and len(levels) > 1:
        return _class_lines(levels)
    if kind not in ("number", *DATE_KINDS):
        return [f"positive = {toml_text(FILL_IN)}", f"# negative = {toml_text(FILL_IN)}"]
    bounds = _bound_lines(column)
    if (few := _whole_range(column)) is not None:
        return [*_class_lines(few), *_instead("Or a number to predict:", bounds)]
    several = [f"classes = [{toml_text(FILL_IN)}, {toml_text(FILL_IN)}]"]
    two = [f"{key} = {toml_text(FILL_IN)}" for key in ("positive", "negative")]
    if column.type.whole and any(FILL_IN in line for line in bounds):
        return [
            *_comment("Two classes: for a label of 0 and 1, positive = 1 and negative = 0."),
            *two,
            *_instead("Or several classes, in the order of the scores:", several),
            *_instead("Or a number to predict:", bounds),
        ]
    return [*bounds, *_instead("Or, if its values are two classes, or several:", [*two, *several])]


def _class_lines(levels: Sequence[Decimal | str]) -> list[str]:
    if len(levels) == 2:
        return [f"positive = {_value(levels[1])}", f"negative = {_value(levels[0])}"]
    return [f"classes = {_array(map(_value, levels))}"]


def _instead(words: str, lines: Sequence[str]) -> list[str]:
    """An alternative, as comments."""
    return [*_comment(words), *(f"# {line}" for line in lines)]


def _whole_range(column: CatalogColumn) -> tuple[Decimal | str, ...] | None:
    """The whole numbers that constraints allow, if there are few."""
    lower, upper = _inner_bounds(column)
    if not column.type.whole or not isinstance(lower, Decimal) or not isinstance(upper, Decimal):
        return None
    if not 0 < upper - lower < _FEW_VALUES:
        return None
    return tuple(Decimal(value) for value in range(int(lower), int(upper) + 1))


def _alike(table: CatalogTable, label: str | None) -> list[CatalogColumn]:
    """The numeric features without bounds of the most frequent type, if there are many."""
    groups: dict[str, list[CatalogColumn]] = {}
    for column in table.columns.values():
        usable = column.name != label and column.type.kind == "number" and _reason_against(column) is None
        if usable and column.facts.levels is None and _inner_bounds(column) == (None, None):
            groups.setdefault(column.type.name, []).append(column)
    most = max(groups.values(), key=len, default=[])
    return most if len(most) >= _ALIKE else []


def _column_lines(column: CatalogColumn, *, by_default: bool) -> list[str]:
    """The section of a feature; as comments if the column should or can not be one."""
    encoding = ["# lower and upper: [defaults]"] if by_default else _encoding_lines(column)
    if column.type.kind == "sparse":
        return _sparse_lines(column, None)
    head = f"[columns.{toml_key(column.name)}]"
    reason = _reason_against(column)
    if reason is None:
        return [head, *_description(column), *encoding]
    if reason == _BY_NAME:
        keys = [line.split(" = ")[0] + (" up to its ]" if "\n" in line else "") for line in encoding]
        reason += (
            f" If it describes them, remove the # of the line above, and of these below: {', '.join(keys)}."
        )
    commented = [f"# {line}" for line in "\n".join([head, *encoding]).split("\n")]
    return [commented[0], *_comment(reason), *_description(column), *commented[1:]]


def _sparse_lines(column: CatalogColumn, indices: str | None) -> list[str]:
    """The section of a sparse column; indices is None where they are inside the value."""
    lines = [f"[columns.{toml_key(column.name)}]", *_description(column)]
    if indices is not None:
        lines += [
            *_comment(_SPARSE.format(indices=shown(indices))),
            f"indices = {toml_text(indices)}",
            f"first_index = {toml_text(FILL_IN)}   # 1 as in svmlight files, or 0",
        ]
    if column.type.length is None:
        lines.append(
            f"length = {toml_text(FILL_IN)}   # features, those included that no row has: a public number"
        )
    return [
        *lines,
        *_instead(_UNBOUNDED, ['scale = "zero_based"', "lower = 0", f"upper = {toml_text(FILL_IN)}"]),
    ]


def _reason_against(column: CatalogColumn) -> str | None:
    kind = column.type.kind
    if kind == "other":
        return "Left out: this type has no encoding. A view can cast it to one that has."
    if column.key is not None:
        return f"Left out: {column.key}, it identifies rows rather than describing them."
    if looks_like_person(column.name, kind) or looks_like_key(column.name, kind):
        return _BY_NAME
    return None


def _description(column: CatalogColumn) -> list[str]:
    """Type, comment and constraints of a column."""
    words = [column.type.name]
    if column.type.virtual:
        words.append("computed when read: needs definition_is_public = true")
    if column.type.enum_labels is not None:
        words.append("an enum: its labels are the levels")
    precision = _PRECISION.fullmatch(column.type.name)
    if precision is not None and int(precision[2]) <= int(precision[1]) <= 15:
        digits, scale = int(precision[1]), int(precision[2])
        words.append(f"whose values are within +-{(Decimal(10) ** digits - 1).scaleb(-scale):f}")
    if column.comment:
        words.append(f'"{_BLANKS.sub(" ", column.comment).strip()}"')
    words += [f"CHECK {check}" for check in column.checks]
    return _comment(", ".join(words))


def _encoding_lines(column: CatalogColumn) -> list[str]:
    """Keys of a feature's section."""
    kind = column.type.kind
    levels = column.facts.levels
    if kind in ("other", "enum", "boolean"):
        return []
    if kind == "text" or (levels is not None and kind in ("number", "date")):
        return [f"levels = {_array(map(_value, levels if levels is not None else (FILL_IN,)))}"]
    if kind != "array":
        return _bound_lines(column)
    lines = []
    if column.type.length is None:
        length = column.facts.length
        lines = [f"length = {length if length is not None else toml_text(FILL_IN)}   # elements of every row"]
    return [*lines, *_bound_lines(column)]


def _inner_bounds(column: CatalogColumn) -> tuple[Decimal | str | None, Decimal | str | None]:
    """The least and the largest value that constraints allow, if they leave a range."""
    lower = _inner(column.facts.lower, column.type, ROUND_FLOOR, 1)
    upper = _inner(column.facts.upper, column.type, ROUND_CEILING, -1)
    if isinstance(lower, Decimal) and isinstance(upper, Decimal) and not lower < upper:
        return None, None
    return lower, upper


def _bound_lines(column: CatalogColumn) -> list[str]:
    lower, upper = _inner_bounds(column)
    kind = column.type.element or column.type.kind
    example = {"date": "   # such as 2000-12-31", "number": ""}.get(kind, "   # such as 2000-12-31T23:59:59")
    return [
        f"{key} = {toml_text(FILL_IN) + example if bound is None else _bound_value(bound)}"
        for key, bound in (("lower", lower), ("upper", upper))
    ]


def _inner(bound: Bound | None, type_: ColumnType, rounding: str, step: int) -> Decimal | str | None:
    """The last value that a bound of the column's kind allows, if the type has one."""
    if bound is None or isinstance(bound.value, Decimal) != (type_.kind == "number"):
        return None
    if not isinstance(bound.value, Decimal) or not type_.whole:
        return bound.value
    if bound.strict:
        return bound.value.to_integral_value(rounding) + step
    outward = ROUND_CEILING if rounding == ROUND_FLOOR else ROUND_FLOOR
    return bound.value.to_integral_value(outward)


# TOML


def _comment(*paragraphs: str) -> list[str]:
    return [
        f"# {line}".rstrip()
        for paragraph in paragraphs
        for line in textwrap.wrap(_BLANKS.sub(" ", paragraph), 98, break_long_words=False) or [""]
    ]


def _array(values: Iterable[str]) -> str:
    """A TOML array, over several lines if one would be too long."""
    lines = [""]
    for value in values:
        if len(lines[-1]) + len(value) > 90 and lines[-1]:
            lines.append("")
        lines[-1] += f"{value}, "
    if len(lines) == 1:
        return f"[{lines[0][:-2]}]"
    return "\n".join(["[", *(f"    {line.rstrip()}" for line in lines), "]"])


def _bound_value(bound: Decimal | str) -> str:
    """A number, or a date or timestamp in UTC in PostgreSQL's ISO form, as TOML."""
    if isinstance(bound, Decimal):
        return _value(bound)
    return bound.replace(" ", "T").replace("+00", "Z")


def _value(value: Decimal | str) -> str:
    if isinstance(value, Decimal):
        plain = f"{value.normalize():f}"
        return plain if len(plain) <= 18 else repr(float(value))
    return toml_text(value)
