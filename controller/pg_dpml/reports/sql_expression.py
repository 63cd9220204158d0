# SPDX-License-Identifier: PostgreSQL
"""A stored model as one SQL expression over raw columns, for servers without the extension.

The expression does what `dpml.encode` and `dpml.predict_value` do, but for the
rounding of features to float32: the values agree to about 1e-7 of the weights' norm
(with a whitening P, in units of the norm of the whitened row).

Long because every kind of column has its SQL here, as it has its C in udas/kernels/encode.c.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pg_dpml.blocks.features import completed
from pg_dpml.database.columns import ColumnType
from pg_dpml.database.session import sql
from pg_dpml.errors import SpecError
from pg_dpml.kernels import TARGET_NORM
from pg_dpml.ledger.models import Model
from pg_dpml.names import shown

__all__ = ["EXPRESSIONS", "sql_expression"]

EXPRESSIONS = ("value", "prediction")
"""Results that an expression can have: that of `dpml.predict_value`, and that of `dpml.predict`."""

LARGEST = 1e140
"""Bound on features that have none of their own, so that squares do not overflow."""

MOST_VALUES = 1600
"""PostgreSQL's limit on the columns of a subquery is 1664."""

MOST_WHITENED = 100
"""Most features of a model with a whitening, whose matrix is written out."""

_EPOCH = 946684800
"""Seconds from 1970 to 2000, where the server's dates begin."""


@dataclass(frozen=True)
class _Part:
    """One column's share of a row: values by name, its terms in each score, its term in the squared norm."""

    values: Mapping[str, str]
    scores: Sequence[str]
    squares: str


def sql_expression(model: Model, types: Mapping[str, ColumnType], what: str = "value") -> str:
    """The model as an expression over the columns of a row `t`.

    Parameters
    ----------
    model : Model
    types : mapping of str to ColumnType
        Types of the columns; one that is missing is taken for a number or a text, as its encoding is.
    what : str
        "value" (as `dpml.predict_value`) or "prediction" (as `dpml.predict`).

    Returns
    -------
    str
        A scalar subquery in parentheses.

    Raises
    ------
    SpecError
        If the encoding has no plain SQL form (images, projections, sparsevec), or has too many columns, or
        features for the norm of the whitened row.
    """
    if what not in EXPRESSIONS:
        raise SpecError(f"what must be {' or '.join(EXPRESSIONS)}, not {what!r}")
    encoder = model.encoder
    if encoder.get("projection") is not None or any(c.get("image") is not None for c in encoder["columns"]):
        raise SpecError(
            f"model {shown(model.name)} reduces images or projects features, which has no plain SQL form: "
            "use dpml.predict, or export --format json"
        )
    if any(c["kind"] == "sparse" and c.get("indices") is None for c in encoder["columns"]):
        raise SpecError(
            f"model {shown(model.name)} reads a sparsevec of pgvector, which has no plain SQL form: use "
            "dpml.predict, or export --format json"
        )
    whitened = model.whitening is not None and (what == "value" or model.task == "regression")
    if whitened and model.n_features > MOST_WHITENED:
        raise SpecError(
            f"model {shown(model.name)} divides its scores by a norm over {model.n_features} features, which "
            f"one SQL expression has for at most {MOST_WHITENED}: use dpml.predict_value or "
            "dpml.predict_proba, or export --format json"
            + ("" if model.task == "regression" else "; classes need no norm: --what prediction")
        )
    rows = (
        model.matrix
        if model.whitening is None or not whitened
        else np.vstack([model.matrix, model.whitening])
    )
    parts = list(_parts(model, types, rows))
    values = [f"{value} AS {name}" for part in parts for name, value in part.values.items()]
    if len(values) > MOST_VALUES:
        raise SpecError(
            f"model {shown(model.name)} has too many columns for one SQL expression: use dpml.predict, "
            "or export --format json"
        )
    scores = [" + ".join(part.scores[k] for part in parts) or "float8 '0'" for k in range(len(rows))]
    outer = ", ".join(f"{score} AS s{k + 1}" for k, score in enumerate(scores))
    squares = "0" if _clips_values(encoder) else " + ".join(part.squares for part in parts)
    factor = _whitened_factor(model) if whitened else _factor(encoder)
    # Unfenced, the planner would write the columns out anew in every element of the whitened row, and the
    # place of a value among the knots in every hat function.
    bent = bool(encoder.get("crosses")) or any(column.get("knots") for column in encoder["columns"])
    fence = " OFFSET 0" if whitened or bent else ""
    answer = _value(model, factor) if what == "value" else _prediction(model, factor)
    return (
        f"(SELECT {answer}\n FROM (SELECT {outer},\n  sqrt({squares}) AS norm\n"
        f"  FROM (SELECT {', '.join(values)}{fence}) AS x{fence}) AS r)"
    )


def _clips_values(encoder: Mapping[str, Any]) -> bool:
    """Whether features are clipped one by one, so that a score does not depend on the norm of the row."""
    return bool(encoder["norm"] == "clip_values")


def _factor(encoder: Mapping[str, Any]) -> str:
    """Factor that scales a row, and so its scores, to the norm of the encoding."""
    if _clips_values(encoder):
        return "1"
    least_norm = TARGET_NORM if encoder["norm"] == "clip" else 0.0
    return f"CASE WHEN r.norm > {least_norm!r} THEN {TARGET_NORM!r} / r.norm ELSE 1 END"


def _whitened_factor(model: Model) -> str:
    """1 / ||P x||, or 0 where that is none; the norm of x cancels, and is out before anything is squared."""
    first = len(model.matrix) + 1
    squares = " + ".join(f"(r.s{first + i} / nullif(r.norm, 0)) ^ 2" for i in range(model.n_features))
    return f"coalesce(1 / nullif(r.norm * sqrt({squares}), 0), 0)"


def _text(value: str) -> str:
    # Not by psycopg: without a connection libpq quotes for the encoding of the last one of the process.
    quoted = "'" + value.replace("'", "''") + "'"
    return "E" + quoted.replace("\\", "\\\\") if "\\" in value else quoted


def _number(value: float) -> str:
    """A float that SQL reads back bit for bit."""
    return f"float8 '{float(value)!r}'"


def _value(model: Model, factor: str) -> str:
    scores = [f"r.s{k + 1}" for k in range(len(model.matrix))]
    largest = scores[0] if len(scores) == 1 else f"greatest({', '.join(scores)})"
    value = f"{largest} * ({factor})"
    if model.task != "regression":
        return value
    lower, upper = (float(model.encoder["label"][key]) for key in ("lower", "upper"))
    inside = f"least(greatest({value}, -1), 1)"
    return f"{_number(lower)} + 0.5 * ({inside} + 1) * {_number(upper - lower)}"


def _prediction(model: Model, factor: str) -> str:
    if model.classes is None:
        return f"({_value(model, factor)})::text"
    if model.task == "binary":
        return f"CASE WHEN r.s1 > 0 THEN {_text(model.classes[1])} ELSE {_text(model.classes[0])} END"
    scores = [f"r.s{k + 1}" for k in range(len(model.matrix))]
    cases = " ".join(
        f"WHEN {score} THEN {_text(name)}" for score, name in zip(scores, model.classes, strict=True)
    )
    return f"CASE greatest({', '.join(scores)}) {cases} END"


def _parts(
    model: Model, types: Mapping[str, ColumnType], weights: npt.NDArray[np.float64]
) -> Iterable[_Part]:
    """The columns in the encoder's order, then the intercept; `weights` has a row a score.

    Columns whose weights are all 0 are left out where the norm of the row does not matter.
    """
    at = 0
    clips = _clips_values(model.encoder)
    columns = [completed(column) | {"clips": clips} for column in model.encoder["columns"]]
    for i, column in enumerate(columns, 1):
        width = _width(column)
        own = weights[:, at : at + width]
        if not clips or np.any(own):
            yield _column(i, column, types.get(column["name"]), own.tolist())
        at += width
    places = {column["name"]: _place(column, types.get(column["name"])) for column in columns}
    sizes = {column["name"]: _basis_size(column) for column in columns}
    for i, (first, second) in enumerate(model.encoder.get("crosses") or (), len(columns) + 1):
        width = sizes[first] * sizes[second]
        own = weights[:, at : at + width]
        if not clips or np.any(own):
            yield _cross(i, places[first], places[second], sizes[second], own.tolist())
        at += width
    if model.encoder["intercept"]:
        yield _Part({}, [_number(w) for w in weights[:, -1].tolist()], "1")


def _width(column: Mapping[str, Any]) -> int:
    if column["kind"] == "category":
        return len(column["levels"])
    return int(column["length"]) + len(column["knots"])


def _basis_size(column: Mapping[str, Any]) -> int:
    """Number of levels, or of knots."""
    return len(column["levels"]) if column["kind"] == "category" else len(column["knots"])


def _column(
    i: int, column: Mapping[str, Any], column_type: ColumnType | None, weights: list[list[float]]
) -> _Part:
    name = sql.Identifier("t", column["name"]).as_string(None)
    if column["kind"] == "category":
        return _category(i, column, _operand(name, column_type), weights)
    if column["kind"] == "array":
        return _array(i, column, name, column_type, weights)
    if column["kind"] == "sparse":
        return _sparse(i, column, name, weights)
    if column["kind"] == "boolean":
        no = -1 if column["scale"] == "center" else 0
        value = f"(CASE WHEN {name} THEN 1 WHEN NOT {name} THEN {no} ELSE 0 END)::float8"
    else:
        value = _scaled(column, _as_float(name, column_type.kind if column_type else "number"))
    part = _Part({f"x{i}": value}, [f"{_number(row[0])} * x.x{i}" for row in weights], f"x.x{i} * x.x{i}")
    if not column["knots"]:
        return part
    curve = _hats(f"x{i}_p", _place(column, column_type), [row[1:] for row in weights])
    return _Part(
        {**part.values, **curve.values},
        [" + ".join(both) for both in zip(part.scores, curve.scores, strict=True)],
        f"{part.squares} + {curve.squares}",
    )


def _place(column: Mapping[str, Any], column_type: ColumnType | None) -> str:
    """Where a value lies among the levels or knots of its column, counted from 0; -1 where it lies nowhere.

    Between two knots it is the number of the first and the share of the way to the second, so that the basis
    function of place j is greatest(0, 1 - abs(place - j)).
    """
    name = sql.Identifier("t", column["name"]).as_string(None)
    if column["kind"] == "category":
        operand = _operand(name, column_type)
        literals = [operand.level(level) for level in column["levels"]]
        cases = [f"WHEN {literal} THEN {j}" for j, literal in enumerate(literals) if literal is not None]
        return f"(CASE {operand.value} {' '.join(cases)} ELSE -1 END)::float8" if cases else "float8 '-1'"
    if not column["knots"]:
        return "float8 '-1'"
    usable, number = _clamped(column, _as_float(name, column_type.kind if column_type else "number"))
    knots = [math.log1p(knot) if column["log1p"] else float(knot) for knot in column["knots"]]
    cases = [
        f"WHEN v.v < {_number(after)} THEN {j} + (v.v - {_number(before)}) / {_number(after - before)}"
        for j, (before, after) in enumerate(itertools.pairwise(knots))
    ]
    inside = f"least(greatest({number}, {_number(knots[0])}), {_number(knots[-1])})"
    return (
        f"CASE WHEN {usable} THEN (SELECT CASE {' '.join(cases)} ELSE {len(knots) - 1} END "
        f"FROM (SELECT {inside} AS v OFFSET 0) AS v) ELSE -1 END"
    )


_HAT = "greatest(0, 1 - abs({} - {}))"
"""The basis function at a place, of a column whose value lies at another."""


def _hats(name: str, place: str, weights: list[list[float]]) -> _Part:
    """A curve: weights of its hat functions, of which at most two are not 0."""
    hat = _HAT.format(f"x.{name}", "(u.n - 1)")
    return _Part(
        {name: place},
        [_weighted(row, hat) for row in weights],
        _squares(f"x.{name}"),
    )


def _cross(i: int, first: str, second: str, size: int, weights: list[list[float]]) -> _Part:
    """Weights of the products of the basis functions of two columns, the second of so many."""
    a = _HAT.format(f"x.x{i}_a", f"(u.n - 1) / {size}")
    b = _HAT.format(f"x.x{i}_b", f"(u.n - 1) % {size}")
    return _Part(
        {f"x{i}_a": first, f"x{i}_b": second},
        [_weighted(row, f"{a} * {b}") for row in weights],
        f"{_squares(f'x.x{i}_a')} * {_squares(f'x.x{i}_b')}",
    )


def _weighted(weights: Sequence[float], feature: str) -> str:
    """Sum of weights u.w, numbered by u.n from 1, each times its feature."""
    return f"(SELECT sum(u.w * {feature}) FROM unnest({_listed(weights)}) WITH ORDINALITY AS u(w, n))"


def _squares(place: str) -> str:
    """Sum of the squares of the basis functions of a column whose value lies at a place."""
    share = f"({place} - floor({place}))"
    return f"(CASE WHEN {place} < 0 THEN 0 ELSE {share} ^ 2 + (1 - {share}) ^ 2 END)"


def _listed(weights: Sequence[float]) -> str:
    """Numbers as an array that SQL reads back bit for bit."""
    return f"'{{{','.join(repr(float(w)) for w in weights)}}}'::float8[]"


def _as_float(name: str, kind: str) -> str:
    """A number, or a date as the server counts it: in days or seconds from 2000."""
    if kind == "date":
        return f"((extract(epoch FROM {name})::float8 - {_EPOCH}) / 86400)"
    if kind in ("timestamp", "timestamptz"):
        return f"(extract(epoch FROM {name})::float8 - {_EPOCH})"
    return f"{name}::float8"


def _ends(column: Mapping[str, Any]) -> tuple[float, float]:
    """Bounds of a number, or what stands in for one that it does not have."""
    mean, reach = float(column["mean"]), LARGEST * float(column["sd"])
    lower, upper = column["lower"], column["upper"]
    return mean - reach if lower is None else float(lower), mean + reach if upper is None else float(upper)


def _clamped(column: Mapping[str, Any], value: str) -> tuple[str, str]:
    """Whether a value has a feature, and the number between the bounds, after log1p, that it has it by."""
    lower, upper = column["lower"], column["upper"]
    least, most = _ends(column)
    bad = ["NaN", *(["-Infinity"] if lower is None else []), *(["Infinity"] if upper is None else [])]
    usable = f"{value} NOT IN ({', '.join(repr(word) for word in bad)})"
    number = f"least(greatest({value}, {_number(least)}), {_number(most)})"
    return usable, f"ln(1 + {number})" if column["log1p"] else number


def _scaled(column: Mapping[str, Any], value: str) -> str:
    """A number, clamped and scaled. NULL, NaN and a value without a finite bound are 0."""
    scale, mean, sd = column["scale"], float(column["mean"]), float(column["sd"])
    usable, number = _clamped(column, value)
    if scale == "standard":
        scaled = f"({number} - {_number(mean)}) / {_number(sd)}"
        scaled = f"least(greatest({scaled}, -1), 1)" if column["clips"] else scaled
    else:
        ends = [f"ln(1 + {_number(b)})" if column["log1p"] else _number(b) for b in _ends(column)]
        scaled = f"({number} - {ends[0]}) / ({ends[1]} - {ends[0]})"
        scaled = f"2 * {scaled} - 1" if scale == "center" else scaled
    return f"CASE WHEN {usable} THEN {scaled} ELSE 0 END"


@dataclass(frozen=True)
class _Operand:
    """Type in which the values of a category are compared."""

    value: str
    type_name: str

    def level(self, level: str) -> str | None:
        """The level as a literal, or None if no value of the type can be it."""
        if self.type_name not in ("float8", "real"):
            return _text(level)
        try:
            return f"{self.type_name} '{float(level)!r}'"
        except ValueError:
            return None


def _operand(name: str, column_type: ColumnType | None) -> _Operand:
    if column_type is not None and column_type.kind == "number":
        type_name = "real" if column_type.name == "real" else "float8"
        return _Operand(f"{name}::{type_name}", type_name)
    if column_type is not None and column_type.kind == "date":
        return _Operand(name, "date")
    return _Operand(f"{name}::text", "text")


def _category(i: int, column: Mapping[str, Any], operand: _Operand, weights: list[list[float]]) -> _Part:
    """One-hot times weights is a lookup; centring takes the mean weight off a known level."""
    n_levels = len(column["levels"])
    centered = column["centered"]
    literals = [operand.level(level) for level in column["levels"]]
    known = [literal for literal in literals if literal is not None]
    values = {}
    for k, row in enumerate(weights):
        mean = sum(row) / n_levels if centered else 0.0
        cases = [
            f"WHEN {literal} THEN {_number(weight - mean)}"
            for literal, weight in zip(literals, row, strict=True)
            if literal is not None
        ]
        values[f"x{i}_{k + 1}"] = f"CASE {operand.value} {' '.join(cases)} ELSE 0 END" if cases else "0"
    square = 1.0 - 1.0 / n_levels if centered else 1.0
    listed = f"{operand.value} IN ({', '.join(known)})" if known else "false"
    values[f"x{i}_q"] = f"CASE WHEN {listed} THEN {_number(square)} ELSE 0 END"
    return _Part(values, [f"x.x{i}_{k + 1}" for k in range(len(weights))], f"x.x{i}_q")


def _array(
    i: int, column: Mapping[str, Any], name: str, column_type: ColumnType | None, weights: list[list[float]]
) -> _Part:
    """A subquery over the elements; an array of another length counts as zeros."""
    array = f"{name}::real[]" if column_type is not None and column_type.vector else name
    kind = (column_type.element if column_type else None) or "number"
    scaled = _scaled(column, _as_float("u.v", kind))

    def over_elements(term: str, extra: str = "", alias: str = "") -> str:
        return (
            f"CASE WHEN cardinality({array}) = {column['length']} THEN (SELECT sum({term}) FROM "
            f"(SELECT {scaled} AS x{alias} FROM unnest({array}{extra}) AS u(v{alias})) AS e) ELSE 0 END"
        )

    values = {
        f"x{i}_{k + 1}": over_elements("e.x * e.w", f", {_listed(row)}", ", w")
        for k, row in enumerate(weights)
    }
    values[f"x{i}_q"] = over_elements("e.x * e.x")
    return _Part(values, [f"x.x{i}_{k + 1}" for k in range(len(weights))], f"x.x{i}_q")


def _sparse(i: int, column: Mapping[str, Any], name: str, weights: list[list[float]]) -> _Part:
    """A subquery over the given elements; a row whose indices do not fit counts as zeros."""
    indices = sql.Identifier("t", column["indices"]).as_string(None)
    first = int(column["first_index"])
    last = first + int(column["length"]) - 1
    fits = (
        f"cardinality({name}) = cardinality({indices}) AND NOT EXISTS (SELECT FROM unnest({indices}) AS u(k) "
        f"GROUP BY u.k HAVING count(*) > 1 OR (u.k BETWEEN {first} AND {last}) IS NOT TRUE)"
    )
    scaled = _scaled(column, "u.v::float8")

    def over_elements(term: str) -> str:
        return (
            f"CASE WHEN {fits} THEN coalesce((SELECT sum({term}) FROM (SELECT {scaled} AS x, u.k "
            f"FROM unnest({name}, {indices}) AS u(v, k)) AS e), 0) ELSE 0 END"
        )

    values = {}
    for k, row in enumerate(weights):
        values[f"x{i}_{k + 1}"] = over_elements(f"e.x * ({_listed(row)})[(e.k - {first - 1})::integer]")
    values[f"x{i}_q"] = over_elements("e.x * e.x")
    return _Part(values, [f"x.x{i}_{k + 1}" for k in range(len(weights))], f"x.x{i}_q")
