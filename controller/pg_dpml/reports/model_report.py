# SPDX-License-Identifier: PostgreSQL
"""Stored models for people and for programs."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pg_dpml.blocks.features import FeatureNames
from pg_dpml.ledger.models import Model
from pg_dpml.names import shown, visible
from pg_dpml.reports.effects import Effect, effects, has_curves, most_moved, output_names
from pg_dpml.reports.words import (
    SHOWN,
    WHITENED,
    aligned_lines,
    guarantee_of,
    guarantee_text,
    passes_text,
    settings_text,
    shards_lines,
    size_text,
    stored_text,
)
from pg_dpml.runs.candidates import setting_text
from pg_dpml.spec.dates import as_date, date_text

__all__ = [
    "CHANCE",
    "SPENDING_HEAD",
    "Coefficient",
    "coefficients",
    "damping_words",
    "grants_text",
    "model_record",
    "model_text",
    "models_record",
    "models_text",
    "noise_bound",
    "spending_rows",
    "spending_text",
]

CHANCE = "chance chose which are not 0, the likelier the more each helps, so that some may help nothing"
"""What is said of a private model whose coefficients carry no noise."""

MOST_EFFECTS = 20
"""Most columns and crosses whose effects are shown as text; dpml plot draws more."""
MOST_LEVELS = 4
"""Most levels of a column that are shown as text."""
LONGEST_NAME, LONGEST_LEVEL = 24, 12
"""Most characters of the name of a column or class, and of a level, beside an effect."""
CURVE_LENGTH = 20
"""Characters of a curve."""
WIDTH = 100
"""Most characters of a line of text."""
_HEIGHTS = "▁▂▃▄▅▆▇█"

SPENDING_HEAD = ("Step", "Length", "Gradient", "Choice", "Left")


class Coefficient(NamedTuple):
    """One feature of a model."""

    name: str
    weights: list[float]
    """One for each row of scores."""
    noise: float | None
    """Standard deviation of the noise in each weight; None for a model whose weights have none."""


def _noise(model: Model) -> Sequence[float | None]:
    """Standard deviations of the noise, by feature.

    With a whitening P the noise is in w', for the whitened rows: the weights w = P w' carry it times
    the norms of the rows of P.
    """
    noise = model.privacy.get("noise")
    if noise is None or noise["score_stddev"] is None:
        return [None] * model.n_features
    if model.whitening is None:
        return [float(noise["score_stddev"])] * model.n_features
    return [float(noise["score_stddev"] * np.linalg.norm(row)) for row in model.whitening]


def noise_bound(model: Model) -> str:
    """Words before a noise's size: "at most " where later steps damp the noise, which makes it a bound."""
    return "at most " if (model.privacy.get("noise") or {}).get("damped") else ""


def damping_words(model: Model) -> str:
    """Words after a noise's size, where it is a bound: how it can be less."""
    return ", less where the losses' curvature damps it" if noise_bound(model) else ""


def coefficients(model: Model) -> list[Coefficient]:
    """Features whose weights are not all 0, with these and their noise, the largest norm of weights first."""
    names = model.training.get("features")
    if names is None and model.encoder.get("columns"):
        names = FeatureNames(model.encoder)
    names = names or [f"feature {i + 1}" for i in range(model.n_features)]
    noise, weights = _noise(model), model.matrix.T
    kept = np.flatnonzero(np.any(weights, axis=1)).tolist()
    found = [Coefficient(names[i], weights[i].tolist(), noise[i]) for i in kept]
    return sorted(found, key=lambda one: -math.hypot(*one.weights))


def model_record(model: Model) -> dict[str, Any]:
    """Everything about a model as a JSON-ready mapping: enough to predict elsewhere.

    Version 2 of the format added `whitening`, which a reader must heed: where it is not null, a
    score is divided by the norm of the matrix times the row. Version 3 added `knots` of the encoder's columns
    and its `crosses`, which make more features of a row where they are given.
    """
    return {
        "format": "pg_dpml model, version 3",
        "name": model.name,
        "private": model.private,
        "guarantee": guarantee_text(guarantee_of(model)),
        "task": model.task,
        "method": model.method,
        "loss": model.loss,
        "classes": model.classes,
        "features": model.training.get("features"),
        "weights": model.matrix.tolist(),
        "whitening": None if model.whitening is None else model.whitening.tolist(),
        "encoder": model.encoder,
        "privacy": model.privacy,
        "training": model.training,
        "charge": model.charge,
        "created_at": None if model.created_at is None else model.created_at.isoformat(),
        "owner": model.owner,
        "granted_to": list(model.granted_to),
    }


def model_text(model: Model) -> str:
    """A model as a few lines of text: guarantee, origin, effects of curves and crosses, coefficients."""
    training = model.training
    lines = [
        f"Model       {shown(model.name)}: {model.task}, loss {model.loss}, method {model.method}",
        f"Trained on  {visible(str(training.get('table_name')))}, {_size_text(model)}, "
        + passes_text(training.get("passes")),
        *([f"Settings    {settings}"] if (settings := settings_text(training)) else []),
        *(f"{heading:<12}{text}" for heading, text in shards_lines(training)),
        f"Stored      {stored_text(model)} by {shown(model.owner or '')}"
        + ("" if model.charge is None else f", charged as entry {model.charge} of dpml.ledger"),
        f"Guarantee   {guarantee_text(guarantee_of(model))}",
    ]
    if "tuning" in training:
        tuning = training["tuning"]
        where = (
            f"on public table {visible(tuning['public_table'])}" if "public_table" in tuning else "privately"
        )
        chosen = f"{setting_text(tuning['chosen'])}, of {len(tuning['candidates'])} candidates"
        lines.insert(2, f"Tuned       {where}: {chosen}")
    if model.classes is not None:
        lines.insert(1, f"Classes     {', '.join(map(shown, model.classes))}")
    if model.granted_to:
        lines.append(f"Granted to  {', '.join(map(shown, model.granted_to))}")
    if model.whitening is not None:
        lines.append(f"Scores      {WHITENED}")
    filled = [textwrap.fill(line, WIDTH, subsequent_indent=" " * 12) for line in lines]
    return "\n".join([*filled, *_spending_lines(model), *_effect_lines(model), *_coefficient_lines(model)])


def spending_rows(model: Model) -> list[tuple[str, ...]]:
    """What a run chose and paid, choice by choice, below `SPENDING_HEAD`; empty where nothing was chosen."""
    rho = float((model.privacy.get("noise") or {}).get("rho", 0.0))
    return [
        (
            f"{one['step']}",
            f"{one['length']:.4g}",
            *(f"{one[part] / rho:.2%}" for part in ("gradient_rho", "choice_rho", "rho_left")),
        )
        for one in model.training.get("spending", ())
    ]


def _spending_lines(model: Model) -> list[str]:
    """The first and the last choices; `dpml show --json` and the report have all."""
    rows = spending_rows(model)
    if not rows:
        return []
    kept = rows
    if len(rows) > SHOWN:
        half = SHOWN // 2
        kept = [*rows[:half], ("...",), *rows[-half:]]
    heads = tuple(head.upper() for head in SPENDING_HEAD)
    width = len(SPENDING_HEAD)
    table = aligned_lines([heads, *((*row, *[""] * (width - len(row))) for row in kept)])
    return [textwrap.fill(f"Spending    {spending_text(model)}", 100, subsequent_indent=" " * 12)] + [
        f"  {line}" for line in table
    ]


def spending_text(model: Model) -> str:
    """What the rows of `spending_rows` are."""
    rho = float(model.privacy["noise"]["rho"])
    return (
        f"of rho = {rho:.4g}, choice by choice: length 0 is no step, but a better gradient. All of it was "
        "released under the guarantee, and the whole guarantee was charged. The run ended when what was left "
        "could not pay for the next gradient and choice"
    )


def _size_text(model: Model) -> str:
    privacy = model.privacy
    return size_text(model.training.get("n_units", 0), privacy.get("unit"), privacy.get("max_rows_per_unit"))


def grants_text(model: Model) -> str:
    """Who may see and apply a model."""
    others = (
        f", granted to {', '.join(map(shown, model.granted_to))}"
        if model.granted_to
        else ", granted to nobody"
    )
    return f"Model {shown(model.name)} belongs to {shown(model.owner or '')}{others}"


def _effect_lines(model: Model) -> list[str]:
    """What columns and crosses add to the score, a line each; nothing without curves and crosses."""
    found = [one for one in effects(model) if np.any(one.values)] if has_curves(model) else []
    if not found:
        return []
    found.sort(key=lambda one: -float(np.ptp(one.values[most_moved(one)])))
    several, noisy = len(model.matrix) > 1, found[0].noise is not None
    score = "the score of the class that it moves most" if several else "the score"
    words = f"Effects     what each column adds to {score}, before the length of the row divides it"
    if noisy:
        words += (
            f"; the noise in it has at most the standard deviation beside it{damping_words(model)}, and ~ "
            "marks what is within two of it"
        )
    heads = ("EFFECT", *["CLASS"] * several, "FROM", "TO", *["NOISE", ""] * noisy, "SHAPE")
    outputs = output_names(model)
    rows = [heads, *(_effect_row(one, outputs) for one in found[:MOST_EFFECTS])]
    lines = [f"  {line}" for line in aligned_lines(rows)]
    if len(found) > MOST_EFFECTS:
        lines.append(f"  ... and {len(found) - MOST_EFFECTS} more: dpml plot")
    return [textwrap.fill(words, WIDTH, subsequent_indent=" " * 12), *(_cut(line, WIDTH) for line in lines)]


def _effect_row(effect: Effect, outputs: Sequence[str]) -> tuple[str, ...]:
    """A row of the table of effects, about the output that the effect moves most."""
    k = most_moved(effect)
    values, noise = effect.values[k], effect.noise
    row = [_cut(visible(" * ".join(effect.columns)), LONGEST_NAME)]
    if len(outputs) > 1:
        row.append(_cut(visible(outputs[k]), LONGEST_NAME))
    row += [f"{values.min():+.3f}", f"{values.max():+.3f}"]
    if noise is not None:
        row += [f"{noise.max():.3g}", "~" if np.all(np.abs(values) < 2.0 * noise) else ""]
    return (*row, _shape(effect, values))


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _shape(effect: Effect, values: npt.NDArray[np.float64]) -> str:
    """A curve between its ends, the highest and lowest levels, or where a cross is lowest and highest."""
    if len(effect.axes) == 2:
        low, high = (
            ", ".join(map(_value_text, effect.axes, np.unravel_index(at, values.shape), effect.dates))
            for at in (values.argmin(), values.argmax())
        )
        return f"low at {low}; high at {high}"
    (axis,), (kind,) = effect.axes, effect.dates
    if isinstance(axis, np.ndarray):
        lower, upper = _value_text(axis, 0, kind), _value_text(axis, -1, kind)
        return f"{lower} {_sparkline(axis, values, log1p=effect.log1p)} {upper}"
    order = np.argsort(-values, kind="stable").tolist()
    named = [f"{_value_text(axis, i, None)} {values[i]:+.2f}" for i in order]
    if len(named) > MOST_LEVELS:
        half = MOST_LEVELS // 2
        named = [*named[:half], "...", *named[-half:]]
    return ", ".join(named)


def _value_text(axis: Any, at: Any, kind: str | None) -> str:
    """A level, a number, or a date of a kind, at a place of an axis."""
    if not isinstance(axis, np.ndarray):
        return _cut(visible(axis[at]), LONGEST_LEVEL)
    found = None if kind is None else as_date(float(axis[at]), kind)
    if found is None:
        return f"{axis[at]:.6g}"
    return found.date().isoformat() if kind == "date" else date_text(found)


def _sparkline(axis: npt.NDArray[np.float64], values: npt.NDArray[np.float64], *, log1p: bool) -> str:
    """A curve as blocks, the lowest at its least value and the highest at its largest."""
    places = np.log1p(axis) if log1p else axis
    drawn = np.interp(np.linspace(places[0], places[-1], CURVE_LENGTH), places, values)
    heights = (drawn - drawn.min()) / (np.ptp(drawn) or 1.0) * (len(_HEIGHTS) - 1)
    return "".join(_HEIGHTS[round(height)] for height in heights.tolist())


def _coefficient_lines(model: Model) -> list[str]:
    found = coefficients(model)
    largest = found[:SHOWN]
    lines = [f"{'Largest c' if len(found) > SHOWN else 'C'}oefficients{zeros_text(model, found)}"]
    if not found:
        return lines
    by_feature = found[0].noise is not None and model.whitening is not None
    damped = bool(noise_bound(model))
    if by_feature:
        bound = "a bound on " if damped else ""
        lines[0] += (
            f" and {bound}the standard deviation of the noise in each{damping_words(model)}; ~ marks what is "
            f"within two of {'that bound' if damped else 'it'}"
        )
    elif found[0].noise is not None:
        lines[0] += (
            f"; the noise in each has standard deviation {noise_bound(model)}{found[0].noise:.3g}"
            f"{damping_words(model)}, and ~ marks what is within two of {'that bound' if damped else 'it'}"
        )
    elif model.private:
        lines[0] += f"; {CHANCE}"
    width = max(len(visible(one.name)) for one in largest)
    for name, weights, noise in largest:
        k = max(range(len(weights)), key=lambda i: abs(weights[i]))
        mark = "~" if noise is not None and abs(weights[k]) < 2.0 * noise else " "
        beside = f" {noise:>9.3g}" if by_feature else ""
        of_class = (
            f"  for {shown(model.classes[k])}" if model.classes is not None and len(weights) > 1 else ""
        )
        lines.append(f"  {visible(name):<{width}} {weights[k]:>+10.4f}{beside} {mark}{of_class}".rstrip())
    return lines


def zeros_text(model: Model, found: Sequence[Coefficient]) -> str:
    """How many features have no coefficient but 0, in parentheses; empty where all have one."""
    zeros = model.n_features - len(found)
    return f" (those of {zeros:,} of {model.n_features:,} features are 0)" if zeros else ""


def models_record(models: Sequence[Model]) -> dict[str, Any]:
    """A list of models as a JSON-ready mapping."""
    keys = ("name", "private", "task", "method", "loss", "n_features", "charge", "owner", "granted_to")
    return {
        "models": [
            {key: getattr(model, key) for key in keys}
            | {key: model.privacy.get(key) for key in ("epsilon", "delta", "relation", "unit")}
            | {"table_name": model.training.get("table_name"), "n_units": model.training.get("n_units")}
            | {"created_at": None if model.created_at is None else model.created_at.isoformat()}
            for model in models
        ]
    }


def models_text(models: Sequence[Model], *, may_train: bool = True) -> str:
    """A list of models, a line each; of none, what whoever asked can do to have one."""
    if not models and not may_train:
        return (
            "No models yet: SELECT dpml.request(...) asks for one of a data set in dpml dataset list, and "
            "whoever owns one can grant it to you."
        )
    if not models:
        return "No models yet: dpml train SPEC --epsilon E --name NAME makes one."
    rows = [("MODEL", "TASK", "METHOD", "EPSILON", "DELTA", "TRAINED ON", "UNITS", "STORED")]
    for model in models:
        guarantee = guarantee_of(model)
        privacy = ("NOT PRIVATE", "")
        if guarantee is not None:
            privacy = (f"{guarantee.epsilon:g}", f"{guarantee.delta:.3g}")
        unit = model.privacy.get("unit")
        size = f"{model.training.get('n_units', 0):,}" + (f" of {shown(unit)}" if unit else "")
        origin = (visible(str(model.training.get("table_name"))), size)
        rows.append((shown(model.name), model.task, model.method, *privacy, *origin, stored_text(model)))
    return "\n".join(aligned_lines(rows))
