# SPDX-License-Identifier: PostgreSQL
"""What each column adds to the scores of a stored model: the parts of an additive model.

The score of a row is the sum of these, divided by the norm of the row (with a whitening P, by that of P x).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pg_dpml.blocks.features import completed
from pg_dpml.errors import SpecError
from pg_dpml.ledger.models import Model
from pg_dpml.names import shown

__all__ = [
    "MOST_LEVELS",
    "POINTS",
    "Effect",
    "drawn_effects",
    "effects",
    "has_curves",
    "most_moved",
    "output_names",
]

FloatArray = npt.NDArray[np.float64]

POINTS = 200
"""Points at which a curve is computed, between its bounds."""

MOST_LEVELS = 100
"""Most levels of a column whose bars are drawn."""

REACH = 3.0
"""Standard deviations on both sides of the mean that the curve of a number without bounds shows."""


@dataclass(frozen=True)
class Effect:
    """What a column, or a cross of two, adds to the scores of a row, before its norm divides them.

    Attributes
    ----------
    columns : tuple of str
        One name, or the two of a cross.
    axes : tuple of ndarray or of sequence of str
        For each of them the values, in units of the raw column (days or seconds from 2000 of dates and
        timestamps), or the levels.
    values : ndarray of shape (outputs, n) or (outputs, n, m)
        By output of the model, and by value of the first and the second column.
    noise : ndarray of shape (n,) or (n, m), or None
        Standard deviation of the noise in each of the values; None for a model whose weights have none.
    dates : tuple of str or None
        For each of the columns the kind of date or timestamp that it is (see `DATE_KINDS`); None: it is none,
        or the model was stored before this was kept.
    log1p : bool
        Whether the column is one whose values count after ln(1 + v).
    """

    columns: tuple[str, ...]
    axes: tuple[Any, ...]
    values: FloatArray
    noise: FloatArray | None
    dates: tuple[str | None, ...]
    log1p: bool = False


def effects(model: Model) -> list[Effect]:
    """The effects of a model's columns and crosses, in the order of the encoder.

    Parameters
    ----------
    model : Model

    Returns
    -------
    list of Effect
        Of numbers, booleans, categories and crosses; arrays have a weight an element, and no curve.

    Raises
    ------
    SpecError
        If the model projects its features, so that no weight belongs to a column.
    """
    if model.encoder.get("projection") is not None:
        raise SpecError(
            f"model {shown(model.name)} projects its features, so that its columns have no curves"
        )
    return list(_effects(model))


def drawn_effects(model: Model) -> list[Effect]:
    """Those of `effects` that a picture has room for: of numbers, and of columns with few levels."""

    def has_room(axis: Any) -> bool:
        return isinstance(axis, np.ndarray) or len(axis) <= MOST_LEVELS

    return [effect for effect in effects(model) if all(map(has_room, effect.axes))]


def has_curves(model: Model) -> bool:
    """Whether a model has curves or crosses, and its weights belong to columns."""
    encoder = model.encoder
    bent = encoder.get("crosses") or any(column.get("knots") for column in encoder.get("columns", ()))
    return bool(bent) and encoder.get("projection") is None


def most_moved(effect: Effect) -> int:
    """The output of a model, counted from 0, that an effect moves most."""
    return int(np.argmax([np.ptp(values) for values in effect.values]))


def output_names(model: Model) -> list[str]:
    """What the scores of a model speak for: its label, or each of its classes."""
    return (
        [shown(str(model.encoder["label"]["name"]))] if len(model.matrix) == 1 else list(model.classes or ())
    )


def _effects(model: Model) -> Iterator[Effect]:
    columns = {column["name"]: completed(column) for column in model.encoder["columns"]}
    clips = model.encoder["norm"] == "clip_values"
    at = 0
    for name, column in columns.items():
        if column["kind"] in ("array", "sparse"):
            at += _array_features(column)
            continue
        axis, part = _levels(column) if column["kind"] == "category" else _curve(column, clips=clips)
        yield replace(_effect(model, (name,), (axis,), at, part), log1p=column["log1p"])
        at += part.n_features
    for first, second in model.encoder.get("crosses") or ():
        axes = [_basis_axis(columns[name]) for name in (first, second)]
        # A weight is the effect at its levels or knots; between knots it is linear in each of the two.
        n = len(axes[0]) * len(axes[1])
        effect = _effect(model, (first, second), tuple(axes), at, _Part(n, lambda block: block, np.ones(n)))
        yield replace(
            effect,
            values=effect.values.reshape(-1, len(axes[0]), len(axes[1])),
            noise=None if effect.noise is None else effect.noise.reshape(len(axes[0]), len(axes[1])),
        )
        at += n


class _Part(NamedTuple):
    """The features of a column at n of its values, as a matrix that is not written out."""

    n_features: int
    times: Callable[[FloatArray], FloatArray]
    """The features times an array of one row a feature."""
    norms: FloatArray
    """Of the features at each value."""


def _effect(model: Model, columns: tuple[str, ...], axes: tuple[Any, ...], at: int, part: _Part) -> Effect:
    """Weights, and the noise in them, times the features of a part, the first of which has place `at`."""
    own = slice(at, at + part.n_features)
    noise = model.privacy.get("noise")
    deviation = None
    if noise is not None and noise["score_stddev"] is not None:
        # The weights are P times those that the noise is in.
        whitening = model.whitening
        norms = part.norms if whitening is None else np.linalg.norm(part.times(whitening[own]), axis=1)
        deviation = float(noise["score_stddev"]) * norms
    kinds = model.training.get("dates") or {}
    dates = tuple(kinds.get(name) for name in columns)
    return Effect(columns, axes, part.times(model.matrix[:, own].T).T, deviation, dates)


def _array_features(column: Mapping[str, Any]) -> int:
    if column["image"] is None:
        return int(column["length"])
    image = column["image"]
    return math.prod(-(-image[side] // image["stride"]) for side in ("rows", "columns"))


def _levels(column: Mapping[str, Any]) -> tuple[Sequence[str], _Part]:
    """The levels of a category, and the features of each."""
    n = len(column["levels"])
    if not column["centered"]:
        return column["levels"], _Part(n, lambda block: block, np.ones(n))
    norms = np.full(n, math.sqrt(1.0 - 1.0 / n))
    return column["levels"], _Part(n, lambda block: block - block.mean(axis=0), norms)


def _curve(column: Mapping[str, Any], *, clips: bool) -> tuple[Any, _Part]:
    """Values between the bounds of a number, its knots among them, or of a boolean; the features of each."""
    if column["kind"] == "boolean":
        features = np.array([[-1.0 if column["scale"] == "center" else 0.0], [1.0]])
        return ("false", "true"), _written(features)
    reach = REACH * column["sd"]
    lower = column["mean"] - reach if column["lower"] is None else column["lower"]
    upper = column["mean"] + reach if column["upper"] is None else column["upper"]
    there, back = (np.log1p, np.expm1) if column["log1p"] else (np.asarray, np.asarray)
    ends, knots = there([lower, upper]), there(np.array(column["knots"], dtype=np.float64))
    values = np.unique(np.concatenate([np.linspace(ends[0], ends[1], POINTS), knots]))
    if column["scale"] == "standard":
        scaled = (values - column["mean"]) / column["sd"]
        scaled = np.clip(scaled, -1.0, 1.0) if clips else scaled
    else:
        scaled = (values - ends[0]) / (ends[1] - ends[0])
        scaled = 2.0 * scaled - 1.0 if column["scale"] == "center" else scaled
    hats = [np.interp(values, knots, one) for one in np.eye(len(knots))]
    return np.clip(back(values), lower, upper), _written(np.stack([scaled, *hats], axis=1))


def _written(features: FloatArray) -> _Part:
    """Features of shape (n, k)."""
    return _Part(features.shape[1], lambda block: features @ block, np.linalg.norm(features, axis=1))


def _basis_axis(column: Mapping[str, Any]) -> Any:
    """The levels or knots of a column."""
    return column["levels"] if column["kind"] == "category" else np.array(column["knots"], dtype=np.float64)
