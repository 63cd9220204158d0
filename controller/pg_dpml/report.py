# SPDX-License-Identifier: PostgreSQL
"""Plans, runs, models and evaluations for people (text) and for programs (JSON-ready mappings)."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np

from pg_dpml.evaluate import Evaluation
from pg_dpml.methods.plan import Guarantee, Plan, noise_record
from pg_dpml.noisy_error import NoisyError
from pg_dpml.privacy.relation import Relation
from pg_dpml.registry import Model
from pg_dpml.train import TrainResult

__all__ = [
    "WHITENED",
    "Coefficient",
    "coefficients",
    "evaluation_record",
    "evaluation_text",
    "guarantee_of",
    "guarantee_text",
    "model_record",
    "model_text",
    "models_record",
    "models_text",
    "plan_record",
    "plan_text",
    "result_record",
    "result_text",
]

NOT_PRIVATE = "NOT PRIVATE: for comparison only; do not publish this model or its figures."
OWNER_ONLY = "NOT PRIVATE: exact figures of private rows, for their owner's eyes only; do not publish them."
WHITENED = (
    "each is divided by the length of the row after the model's whitening matrix: probabilities and "
    "predicted values depend on that, predicted classes do not, and coefficients compare as in any linear "
    "model."
)
"""Of the scores of a model with a whitening, in plain words."""

SHOWN = 30
"""Coefficients and confusions shown as text; JSON has all."""


def guarantee_of(model: Model) -> Guarantee | None:
    """The guarantee that a stored model was released with."""
    if not model.private:
        return None
    privacy = model.privacy
    return Guarantee(
        privacy["epsilon"],
        privacy["delta"],
        Relation(privacy["relation"]),
        privacy.get("unit"),
        privacy.get("max_rows_per_unit", 1),
    )


def unit_text(guarantee: Guarantee) -> str:
    """What a row stands for, where it is not one row."""
    if guarantee.unit is None:
        return ""
    return (
        f" A row here stands for all rows with the same {guarantee.unit}, of which at most "
        f"{guarantee.max_rows_per_unit} are used; which rows these are is public."
    )


def guarantee_text(guarantee: Guarantee | None) -> str:
    """The guarantee in plain words."""
    if guarantee is None:
        return NOT_PRIVATE
    return (
        f"({guarantee.epsilon:g}, {guarantee.delta:.3g})-differential privacy: whatever else an attacker "
        f"knows, the released model changes the odds of any claim about one row by at most a factor "
        f"e^{guarantee.epsilon:g} = {math.exp(min(guarantee.epsilon, 700.0)):.3g}, except with probability "
        f"{guarantee.delta:.3g}. Neighbours ({guarantee.relation.value}): {guarantee.relation.meaning}."
        f"{unit_text(guarantee)} "
        "Public: the table's and columns' names, bounds, levels, the number of rows, the training settings."
    )


def plan_record(plan: Plan) -> dict[str, Any]:
    """A plan as a JSON-ready mapping."""
    record: dict[str, Any] = {
        "method": plan.method,
        "private": plan.private,
        "task": plan.problem.task,
        "n_rows": plan.problem.n_rows,
        "n_features": plan.problem.n_features,
        "n_outputs": plan.problem.n_outputs,
        "passes": plan.work.passes,
        "warnings": list(plan.warnings),
    } | plan.work.record(plan.problem.n_rows)
    if plan.guarantee is not None:
        record["epsilon"] = plan.guarantee.epsilon
        record["delta"] = plan.guarantee.delta
        record["relation"] = plan.guarantee.relation.value
    if plan.noise is not None:
        record["noise"] = noise_record(plan.noise)
    if plan.reason:
        record["reason"] = plan.reason
    return record


def plan_text(plan: Plan) -> str:
    """A plan as a few lines of text."""
    loss, problem = plan.work.loss, plan.problem
    found = [
        (
            "Method",
            f"{plan.method}, loss {loss.kind}"
            + (f" with its derivative clipped at {loss.clip:g}" if math.isfinite(loss.clip) else ""),
        ),
        (
            "Data",
            f"{problem.n_rows:,} rows, {problem.n_features} features"
            + (f", {problem.n_outputs} classes" if problem.n_outputs > 1 else ""),
        ),
        *([("Why", plan.reason)] if plan.reason else []),
        *plan.work.lines(),
        *(plan.noise.lines() if plan.noise is not None else ()),
        ("Guarantee", guarantee_text(plan.guarantee)),
        *(("Warning", warning) for warning in plan.warnings),
    ]
    lines = (f"{heading:<12}{text}" for heading, text in found)
    return "\n".join(textwrap.fill(line, 100, subsequent_indent=" " * 12) for line in lines)


def result_record(result: TrainResult) -> dict[str, Any]:
    """A run as a JSON-ready mapping; the weights are those released."""
    return {
        "model": result.model.name,
        "charge": result.model.charge,
        "passes_taken": result.passes,
        "seconds": round(result.seconds, 3),
        "classes": result.model.classes,
        "features": result.model.training["features"],
        "weights": result.model.weights.tolist(),
        "whitened": result.model.whitening is not None,
        "plan": plan_record(result.plan),
    }


def result_text(result: TrainResult) -> str:
    """A run as a few lines of text."""
    passes = "1 pass" if result.passes == 1 else f"{result.passes} passes"
    lines = [f"Model {result.model.name}: {passes} in {result.seconds:.1f} s."]
    if result.model.charge is not None:
        lines.append(f"Charged as entry {result.model.charge} of dpml.ledger.")
    return "\n".join(lines) + "\n" + plan_text(result.plan)


def evaluation_record(evaluation: Evaluation) -> dict[str, Any]:
    """An evaluation as a JSON-ready mapping."""
    record = asdict(evaluation)
    record["confusion"] = [
        {"actual": actual, "predicted": predicted, "rows": rows}
        for actual, predicted, rows in evaluation.confusion
    ]
    if evaluation.error is not None:
        guarantee = record["error"]["guarantee"]
        guarantee["relation"] = evaluation.error.guarantee.relation.value
    stamps = _stamps(evaluation)
    if stamps:
        record["not_private"] = stamps
    return {key: value for key, value in record.items() if value not in (None, (), [])}


def _stamps(evaluation: Evaluation) -> list[str]:
    """Why an evaluation must not be published."""
    stamps = [] if evaluation.private else [NOT_PRIVATE]
    return [*stamps, OWNER_ONLY] if evaluation.mode == "owner" else stamps


def evaluation_text(evaluation: Evaluation) -> str:
    """An evaluation as a few lines of text."""
    rows = "public" if evaluation.mode == "public" else "private"
    stamp = "private model" if evaluation.private else NOT_PRIVATE
    lines = [f"{evaluation.model} on {evaluation.table}, {evaluation.n_rows:,} {rows} rows ({stamp})"]
    if evaluation.error is not None:
        return "\n".join([*lines, *_error_lines(evaluation.error)])
    if evaluation.mode == "owner":
        lines.insert(0, OWNER_ONLY)
    if evaluation.accuracy is not None and evaluation.majority is not None:
        lines.append(f"Accuracy       {evaluation.accuracy:7.2%}")
        lines.append(f"Majority class {evaluation.majority:7.2%}")
        if evaluation.auc is not None:
            lines.append(f"Area under ROC {evaluation.auc:7.4f}")
        lines += _confusion_lines(evaluation) + _calibration_lines(evaluation)
    if evaluation.mean_squared_error is not None:
        lines.append(f"Root mean squared error {evaluation.mean_squared_error**0.5:.6g}")
        r_squared = evaluation.r_squared
        lines.append("R squared               " + ("undefined" if r_squared is None else f"{r_squared:.4f}"))
    return "\n".join(lines)


def _error_lines(error: NoisyError) -> list[str]:
    guarantee = error.guarantee
    bar = f"(the noise stays within +- {{}} with probability {error.confidence:g})"
    if error.clip is None:
        bar = bar.format(f"{error.half_width:.2%}")
        lines = [f"Accuracy   {1.0 - error.value:7.2%}", f"Error rate {error.value:7.2%} {bar}"]
    else:
        bar = bar.format(f"{error.half_width:.3g}")
        lines = [
            f"Mean squared error {error.value:.6g} {bar}, each row's clipped at {error.clip:g}",
            f"Its root           {error.value**0.5:.6g}",
        ]
    released = (
        f"Released under ({guarantee.epsilon:g}, {guarantee.delta:.3g})-differential privacy of these rows "
        f"({guarantee.relation.value}) and charged as entry {error.charge} of dpml.ledger: for rows that "
        f"the model was trained on, this adds to what the model spent.{unit_text(guarantee)}"
    )
    return [*lines, textwrap.fill(released, 100)]


def _confusion_lines(evaluation: Evaluation) -> list[str]:
    cells = evaluation.confusion
    if len(cells) > SHOWN:
        cells = tuple(sorted(cells, key=lambda cell: (cell[0] == cell[1], -cell[2]))[:SHOWN])
    width = max(len(a) for row in cells for a in row[:2])
    lines = [f"  {a:<{width}} taken for {p:<{width}} {n:>9,}" for a, p, n in cells]
    if len(cells) < len(evaluation.confusion):
        lines.append("  The most frequent confusions; --format json has all.")
    return lines


def _calibration_lines(evaluation: Evaluation) -> list[str]:
    if not evaluation.calibration:
        return []
    lines = ["Calibration: probability predicted, share observed, rows"]
    for tenth in evaluation.calibration:
        share = f"{tenth.predicted:7.1%} {tenth.observed:7.1%} {tenth.n_rows:>9,}"
        lines.append(f"  {tenth.lower:.1f} to {tenth.upper:.1f} {share}")
    return lines


class Coefficient(NamedTuple):
    """One feature of a model."""

    name: str
    weights: list[float]
    """One for each row of scores."""
    noise: float | None
    """Standard deviation of the noise in each weight; None for a model without noise."""


def _noise(model: Model) -> Sequence[float | None]:
    """Standard deviations of the noise, by feature.

    With a whitening P the noise is in w', for the whitened rows: the weights w = P w' carry it times
    the norms of the rows of P.
    """
    noise = model.privacy.get("noise")
    if noise is None:
        return [None] * model.n_features
    if model.whitening is None:
        return [float(noise["score_stddev"])] * model.n_features
    return [float(noise["score_stddev"] * np.linalg.norm(row)) for row in model.whitening]


def coefficients(model: Model) -> list[Coefficient]:
    """Features, their weights and the noise in these, the largest norm of weights first."""
    names = model.training.get("features") or [f"feature {i + 1}" for i in range(model.n_features)]
    found = [Coefficient(*one) for one in zip(names, model.matrix.T.tolist(), _noise(model), strict=True)]
    return sorted(found, key=lambda one: -math.hypot(*one.weights))


def model_record(model: Model) -> dict[str, Any]:
    """Everything about a model as a JSON-ready mapping: enough to predict elsewhere.

    Version 2 of the format added `whitening`, which a reader must heed: where it is not null, a
    score is divided by the norm of the matrix times the row.
    """
    return {
        "format": "pg_dpml model, version 2",
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
    }


def model_text(model: Model) -> str:
    """A model as a few lines of text: guarantee, origin, coefficients."""
    training = model.training
    lines = [
        f"Model       {model.name}: {model.task}, loss {model.loss}, method {model.method}",
        f"Trained on  {training.get('dataset')}, {training.get('n_rows', 0):,} rows, "
        f"{training.get('passes')} passes",
        f"Stored      {_moment(model)} by {model.owner}"
        + ("" if model.charge is None else f", charged as entry {model.charge} of dpml.ledger"),
        f"Guarantee   {guarantee_text(guarantee_of(model))}",
    ]
    if model.classes is not None:
        lines.insert(1, f"Classes     {', '.join(model.classes)}")
    if model.whitening is not None:
        lines.append(f"Scores      {WHITENED}")
    filled = [textwrap.fill(line, 100, subsequent_indent=" " * 12) for line in lines]
    return "\n".join([*filled, *_coefficient_lines(model)])


def _moment(model: Model) -> str:
    return "" if model.created_at is None else f"{model.created_at:%Y-%m-%d %H:%M %Z}"


def _coefficient_lines(model: Model) -> list[str]:
    found = coefficients(model)
    shown = found[:SHOWN]
    lines = [f"{'Largest c' if len(found) > SHOWN else 'C'}oefficients"]
    by_feature = found[0].noise is not None and model.whitening is not None
    if by_feature:
        lines[0] += " and the standard deviation of the noise in each; ~ marks what is within two of it"
    elif found[0].noise is not None:
        lines[0] += (
            f"; the noise in each has standard deviation {found[0].noise:.3g}, "
            "and ~ marks what is within two of it"
        )
    width = max(len(one.name) for one in shown)
    for name, weights, noise in shown:
        k = max(range(len(weights)), key=lambda i: abs(weights[i]))
        mark = "~" if noise is not None and abs(weights[k]) < 2.0 * noise else " "
        beside = f" {noise:>9.3g}" if by_feature else ""
        of_class = f"  for {model.classes[k]}" if model.classes is not None and len(weights) > 1 else ""
        lines.append(f"  {name:<{width}} {weights[k]:>+10.4f}{beside} {mark}{of_class}".rstrip())
    return lines


def models_record(models: Sequence[Model]) -> dict[str, Any]:
    """A list of models as a JSON-ready mapping."""
    shown = ("name", "private", "task", "method", "loss", "n_features", "charge", "owner")
    return {
        "models": [
            {key: getattr(model, key) for key in shown}
            | {key: model.privacy.get(key) for key in ("epsilon", "delta", "relation", "unit")}
            | {"dataset": model.training.get("dataset"), "n_rows": model.training.get("n_rows")}
            | {"created_at": None if model.created_at is None else model.created_at.isoformat()}
            for model in models
        ]
    }


def models_text(models: Sequence[Model]) -> str:
    """A list of models, a line each."""
    if not models:
        return "No models yet: dpml train SPEC --epsilon E --name NAME makes one."
    rows = [("MODEL", "TASK", "METHOD", "EPSILON", "DELTA", "TRAINED ON", "ROWS", "STORED")]
    for model in models:
        guarantee = guarantee_of(model)
        privacy = ("NOT PRIVATE", "")
        if guarantee is not None:
            privacy = (f"{guarantee.epsilon:g}", f"{guarantee.delta:.3g}")
        origin = (str(model.training.get("dataset")), f"{model.training.get('n_rows', 0):,}")
        rows.append((model.name, model.task, model.method, *privacy, *origin, _moment(model)))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
