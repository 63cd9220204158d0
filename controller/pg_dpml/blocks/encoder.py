# SPDX-License-Identifier: PostgreSQL
"""The encoder of a data spec, by which the server turns rows into vectors."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pg_dpml.blocks.features import basis_names
from pg_dpml.blocks.levels import as_compared
from pg_dpml.database.catalog import SourceTable
from pg_dpml.database.columns import ColumnType
from pg_dpml.errors import SpecError
from pg_dpml.kernels import MAX_FEATURES
from pg_dpml.names import shown, toml_key, visible
from pg_dpml.spec.columns import Column, Label
from pg_dpml.spec.data import DataSpec
from pg_dpml.spec.dates import DATE_KINDS, date_number

FEWEST_PIECES = 2
"""A curve of one piece is the line that the column has anyway."""
MOST_PIECES = 12
"""Of a curve that a method chooses."""

__all__ = [
    "FEWEST_PIECES",
    "MOST_PIECES",
    "as_in_catalog",
    "columns_read",
    "compared_label",
    "curved",
    "encode_column",
    "encode_label",
    "is_sparse",
    "most_pieces",
    "require_crossed",
    "with_knots",
]


def as_in_catalog(data: DataSpec, table: SourceTable) -> DataSpec:
    """The spec with its columns named exactly as in the catalog, and the knots of `[defaults]`."""
    named = [
        replace(
            column,
            name=table.column(column.name),
            indices=None if column.indices is None else table.column(column.indices),
        )
        for column in data.columns
    ]
    return replace(
        data,
        columns=tuple(with_knots(column, table.columns[column.name], data.knots) for column in named),
        crosses=tuple((table.column(first), table.column(second)) for first, second in data.crosses),
        label=replace(data.label, column=table.column(data.label.column)),
        unit=None if data.unit is None else table.column(data.unit),
    )


def with_knots(column: Column, column_type: ColumnType, pieces: int | None) -> Column:
    """The column with the knots of `[defaults]`, if it has none of its own and can have some.

    Parameters
    ----------
    column : Column
    column_type : ColumnType
        Only a number or a date can have a curve, and whole numbers no value between knots closer than 1.
    pieces : int or None
        `DataSpec.knots`.
    """
    able = column_type.kind in ("number", *DATE_KINDS) and column.levels is None and column.length is None
    if pieces is None or column.knots is not None or column.lower is None or not able:
        return column
    lower, upper = column.lower, column.upper
    if column_type.whole and not column.log1p and isinstance(lower, float) and isinstance(upper, float):
        pieces = min(pieces, max(_whole_steps(lower, upper), 1))
    return replace(column, knots=pieces)


def _whole_steps(lower: float, upper: float) -> int:
    """Steps of 1 from the first to the last whole number between two bounds."""
    return math.floor(upper) - math.ceil(lower)


def encode_column(column: Column, types: Mapping[str, ColumnType]) -> dict[str, Any]:
    """Encode a column of a spec as an entry of the encoder's `columns`.

    Parameters
    ----------
    column : Column
    types : mapping of str to ColumnType
        Types of the table's columns.

    Raises
    ------
    SpecError
        If its type has no encoding, or public bounds or levels are missing.
    """
    where = f"column {shown(column.name)}"
    column_type = types[column.name]
    kind = column_type.kind
    if column.knots and kind not in ("number", *DATE_KINDS):
        raise SpecError(
            f"{where}: knots belong to a number or a date, not to {visible(column_type.name)}: leave them out"
        )
    if column.indices is not None or kind == "sparse":
        return _encode_sparse(column, types)
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
    entry["kind"] = "numeric"
    if column.knots:
        entry["knots"] = _places(column, entry, kind)
    return entry


def _places(column: Column, entry: Mapping[str, Any], kind: str) -> list[float]:
    """The knots of a number as the encoder compares values with them, before log1p."""
    where = f"column {shown(column.name)}: knots"
    assert column.knots is not None
    if not isinstance(column.knots, int):
        places = [date_number(place, kind, where) for place in column.knots]
    else:
        places = _even_places(entry, column.knots)
    if not _kept_apart(entry, places):
        raise SpecError(
            f"{where} lie so close together that numbers cannot keep them apart: give fewer, or 0 for none"
        )
    return places


def _even_places(entry: Mapping[str, Any], pieces: int) -> list[float]:
    """Knots of so many pieces of equal length, after log1p if the entry says so."""
    lower, upper = float(entry["lower"]), float(entry["upper"])
    there, back = (math.log1p, math.expm1) if entry["log1p"] else (float, float)
    shares = [i / pieces for i in range(1, pieces)]
    inner = [back((1.0 - share) * there(lower) + share * there(upper)) for share in shares]
    return [lower, *inner, upper]


def _kept_apart(entry: Mapping[str, Any], places: Sequence[float]) -> bool:
    """Whether the knots rise as the encoder compares them."""
    compared = [math.log1p(place) for place in places] if entry["log1p"] else places
    return all(before < after for before, after in itertools.pairwise(compared))


def most_pieces(column: Column, entry: Mapping[str, Any], column_type: ColumnType) -> int:
    """Most pieces that a method may give the curve of a column without knots; 0: it can have no curve.

    Parameters
    ----------
    column : Column
        As the spec says it: knots that it declares, 0 among them, stay.
    entry : mapping
        The column, as an entry of the encoder.
    column_type : ColumnType
        A whole number between `lower` and `upper` has no value between knots that are closer than 1.
    """
    if column.knots is not None or entry["kind"] != "numeric" or entry["lower"] is None:
        return 0
    most = MOST_PIECES
    if column_type.whole and not entry["log1p"]:
        most = min(most, _whole_steps(entry["lower"], entry["upper"]))
    return most if most >= FEWEST_PIECES and _kept_apart(entry, _even_places(entry, MOST_PIECES)) else 0


def curved(entry: Mapping[str, Any], pieces: int) -> Mapping[str, Any]:
    """A column, as an entry of the encoder, with a curve of so many pieces; of fewer than two: as it is."""
    return {**entry, "knots": _even_places(entry, pieces)} if pieces >= FEWEST_PIECES else entry


def require_crossed(crosses: Sequence[tuple[str, str]], columns: Sequence[Mapping[str, Any]]) -> None:
    """Reject crosses of columns, as entries of the encoder, that have neither levels nor knots.

    Raises
    ------
    SpecError
        With what to give such a column.
    """
    entries = {column["name"]: column for column in columns}
    for name in itertools.chain.from_iterable(crosses):
        if basis_names(entries[name]):
            continue
        kind = entries[name]["kind"]
        if kind == "numeric":
            advice = "give it knots, such as knots = 8, or levels if its numbers are categories"
        elif kind == "boolean":
            advice = "give it levels = [false, true]"
        else:
            advice = "a cross takes no array; a view can have the elements as columns of their own"
        raise SpecError(f"crosses: column {shown(name)} has neither levels nor knots: {advice}")


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


def is_sparse(encoder: Mapping[str, Any]) -> bool:
    """Whether an encoder has a sparse column: its rows may store far fewer numbers than the longest one."""
    return any(column["kind"] == "sparse" for column in encoder["columns"])


def columns_read(encoder: Mapping[str, Any]) -> list[str]:
    """Names of the table's columns that an encoder reads, without the label, in the order of its records."""
    pairs = ((column["name"], column.get("indices")) for column in encoder["columns"])
    return [name for pair in pairs for name in pair if name is not None]


def _encode_sparse(column: Column, types: Mapping[str, ColumnType]) -> dict[str, Any]:
    """A pair of arrays, or pgvector's sparsevec, as an entry of the encoder."""
    column_type = types[column.name]
    where = f"column {shown(column.name)} ({visible(column_type.name)})"
    entry: dict[str, Any] = {"name": column.name, "kind": "sparse"}
    if column_type.kind == "sparse":
        if column.indices is not None:
            raise SpecError(f"{where} has its own indices: leave out indices and first_index")
        if column.levels is not None or column.rows is not None:
            raise SpecError(f"{where}: a sparse column is neither a category nor an image")
    elif column.indices is not None:
        _require_pair(column, types)
        entry |= {"indices": column.indices, "first_index": column.first_index}
    entry["length"] = _length(column, column_type)
    if entry["length"] >= MAX_FEATURES:
        raise SpecError(
            f"{where}: {entry['length']} features, more than the {MAX_FEATURES - 1} a model may have"
        )
    if column.scale == "center" and column.lower is None:
        # Without bounds the numbers stay as they are: the norm of the row bounds them.
        return entry | {"scale": "standard", "log1p": False, "lower": None, "upper": None, "mean": 0, "sd": 1}
    entry |= _encode_scale(column, column_type)
    _require_zero(entry, where)
    return entry


def _require_pair(column: Column, types: Mapping[str, ColumnType]) -> None:
    """Reject columns that are no array of numbers and array of their places."""
    assert column.indices is not None
    values, indices = types[column.name], types[column.indices]
    if values.kind != "array" or values.element != "number" or values.vector:
        raise SpecError(
            f"column {shown(column.name)} ({visible(values.name)}): the numbers of a sparse column are an "
            "array, such as real[], with one number for each index"
        )
    if indices.kind != "array" or not indices.whole:
        raise SpecError(
            f"column {shown(column.name)}: indices {shown(column.indices)} must be an array of smallint, "
            f"integer or bigint, not {visible(indices.name)}"
        )


def _require_zero(entry: Mapping[str, Any], where: str) -> None:
    """Reject a scale that would make another number of 0, which is what elements are that are not given."""
    lower, upper = entry["lower"], entry["upper"]
    if entry["scale"] == "standard":
        fits = entry["mean"] == 0 and (lower is None or lower <= 0 <= upper)
    else:
        fits = lower == (0 if entry["scale"] == "zero_based" else -upper)
    if not fits:
        raise SpecError(
            f"{where} is sparse, and what a row does not give is 0 and must stay 0: give lower = -upper, or "
            'scale = "zero_based" and lower = 0, or scale = "standard" and mean = 0; or no bounds, to take '
            "the numbers as they are"
        )


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


def _length(column: Column, column_type: ColumnType) -> int:
    """Number of elements, by the spec or by the type."""
    where = f"column {shown(column.name)} ({visible(column_type.name)})"
    length = column.length if column.length is not None else column_type.length
    if length is None:
        raise SpecError(f"{where} needs length = NUMBER OF ELEMENTS")
    if column_type.length not in (None, length):
        raise SpecError(f"{where} has {column_type.length} elements by its type, not length = {length}")
    return length


def _encode_array(column: Column, column_type: ColumnType) -> dict[str, Any]:
    length = _length(column, column_type)
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
