# SPDX-License-Identifier: PostgreSQL
"""The encoder of a data spec, by which the server turns rows into vectors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pg_dpml.blocks.levels import as_compared
from pg_dpml.database.catalog import SourceTable
from pg_dpml.database.columns import ColumnType
from pg_dpml.errors import SpecError
from pg_dpml.names import shown, toml_key, visible
from pg_dpml.spec.columns import Column, Label
from pg_dpml.spec.data import DataSpec
from pg_dpml.spec.dates import DATE_KINDS, date_number

__all__ = [
    "as_in_catalog",
    "compared_label",
    "completed",
    "encode_column",
    "encode_label",
    "feature_names",
    "stored_values",
]


_DEFAULTS: dict[str, Any] = {
    "scale": "center",
    "log1p": False,
    "lower": None,
    "upper": None,
    "mean": 0.0,
    "sd": 1.0,
    "centered": True,
    "length": 1,
    "image": None,
}
"""What the keys of a column mean where they are absent, as in udas/spec.c."""


def as_in_catalog(data: DataSpec, table: SourceTable) -> DataSpec:
    """The spec with its columns named exactly as in the catalog."""
    return replace(
        data,
        columns=tuple(replace(column, name=table.column(column.name)) for column in data.columns),
        label=replace(data.label, column=table.column(data.label.column)),
        unit=None if data.unit is None else table.column(data.unit),
    )


def encode_column(column: Column, column_type: ColumnType) -> dict[str, Any]:
    """Encode a column of a spec as an entry of the encoder's `columns`.

    Raises
    ------
    SpecError
        If its type has no encoding, or public bounds or levels are missing.
    """
    where = f"column {shown(column.name)}"
    kind = column_type.kind
    levels = column.levels if column.levels is not None else column_type.enum_labels
    if levels is not None:
        _require_levels(column_type, where)
        return {
            "name": column.name,
            "kind": "category",
            "levels": list(as_compared(levels, column_type, f"{where}: levels")),
            "centered": column.centered,
        }
    if kind == "boolean":
        if column.scale == "standard" or column.log1p:
            raise SpecError(f"{where} is boolean: its scale is center or zero_based, without log1p")
        return {"name": column.name, "kind": "boolean", "scale": column.scale}
    if kind == "text":
        raise SpecError(
            f"{where} ({visible(column_type.name)}) needs its public list of categories: give levels = [...] "
            f"under [columns.{toml_key(column.name)}], from the documentation of the data and never from the "
            "rows; or declare the column as an enum, whose labels are taken from the catalog"
        )
    if kind == "other":
        raise SpecError(
            f"{where}: type {visible(column_type.name)} has no encoding; leave the column out, or use a view "
            "that casts it to a type that has one"
        )
    entry = {"name": column.name} | _encode_scale(column, column_type)
    if kind == "array":
        return entry | _encode_array(column, column_type)
    if column.length is not None:
        raise SpecError(f"{where}: length belongs to an array column, not to {visible(column_type.name)}")
    return entry | {"kind": "numeric"}


def compared_label(label: Label, column_type: ColumnType) -> Label:
    """The label, with its classes written as the encoder compares values with them."""
    where = f"label {shown(label.column)}"
    if label.task != "regression":
        _require_levels(column_type, where)
        if label.classes is not None:
            return replace(label, classes=as_compared(label.classes, column_type, f"{where}: classes"))
        named = [label.positive, label.negative]
        found = as_compared([v for v in named if v is not None], column_type, f"{where}: positive, negative")
        return replace(label, positive=found[0], negative=found[1] if len(found) == 2 else None)
    if column_type.kind not in ("number", "boolean", *DATE_KINDS):
        raise SpecError(
            f"{where}: lower and upper belong to a number or a date, not to {visible(column_type.name)}"
        )
    return label


def encode_label(label: Label, kind: str) -> dict[str, Any]:
    """The label as an entry of the encoder."""
    if label.task == "binary":
        return {
            "name": label.column,
            "kind": "binary",
            "positive": label.positive,
            "negative": label.negative,
        }
    if label.task == "multiclass":
        return {"name": label.column, "kind": "classes", "classes": list(label.classes or ())}
    assert label.lower is not None  # Label requires one of the three
    assert label.upper is not None
    return {
        "name": label.column,
        "kind": "number",
        "lower": date_number(label.lower, kind, f"label {shown(label.column)}: lower"),
        "upper": date_number(label.upper, kind, f"label {shown(label.column)}: upper"),
    }


def completed(column: Mapping[str, Any]) -> dict[str, Any]:
    """A column of a stored encoder, with the default of every key that is absent or null."""
    return _DEFAULTS | {key: value for key, value in column.items() if value is not None}


def feature_names(column: Mapping[str, Any]) -> list[str]:
    """Names of the features of an encoded column."""
    if column["kind"] == "category":
        return [f"{column['name']}={level}" for level in column["levels"]]
    if "image" in column:
        image = column["image"]
        pixels = (
            (row, place)
            for row in range(0, image["rows"], image["stride"])
            for place in range(0, image["columns"], image["stride"])
        )
        return [f"{column['name']}[{row + 1},{place + 1}]" for row, place in pixels]
    if column["kind"] == "array":
        return [f"{column['name']}[{i + 1}]" for i in range(column["length"])]
    return [column["name"]]


def stored_values(column: Mapping[str, Any]) -> int:
    """Largest number of non-zero features of one encoded value."""
    if column["kind"] == "category":
        return len(column["levels"]) if column["centered"] else 1
    return int(column.get("length", 1))


def _encode_scale(column: Column, column_type: ColumnType) -> dict[str, Any]:
    """Bounds and scale of a number, a date or the elements of an array."""
    where = f"column {shown(column.name)}"
    if column.scale != "standard" and column.lower is None:
        raise SpecError(
            f"{where} ({visible(column_type.name)}) needs public bounds: give lower and upper under "
            f"[columns.{toml_key(column.name)}], from the meaning of the column and never from the rows; "
            "or levels = [...] if its numbers are categories; or scale = 'standard' with public mean and sd"
        )
    kind = column_type.element or column_type.kind
    entry: dict[str, Any] = {"scale": column.scale, "log1p": column.log1p, "lower": None, "upper": None}
    for key in ("lower", "upper", "mean"):
        value = getattr(column, key)
        if value is not None:
            entry[key] = date_number(value, kind, f"{where}: {key}")
    if column.scale == "standard":
        entry["sd"] = column.sd
    return entry


def _encode_array(column: Column, column_type: ColumnType) -> dict[str, Any]:
    where = f"column {shown(column.name)} ({visible(column_type.name)})"
    length = column.length if column.length is not None else column_type.length
    if length is None:
        raise SpecError(f"{where} needs length = NUMBER OF ELEMENTS")
    if column_type.length not in (None, length):
        raise SpecError(f"{where} has {column_type.length} elements by its type, not length = {length}")
    entry: dict[str, Any] = {"kind": "array", "length": length}
    if column.rows is not None:
        image = {"rows": column.rows, "columns": length // column.rows}
        entry["image"] = image | {"blur": column.blur, "stride": column.stride}
    return entry


def _require_levels(column_type: ColumnType, where: str) -> None:
    """Reject a type whose values cannot be listed."""
    if column_type.kind not in ("text", "enum", "number", "boolean", "date"):
        raise SpecError(
            f"{where}: values of type {visible(column_type.name)} cannot be listed; use a view that casts it "
            "to text, a number, a boolean, a date or an enum"
        )
