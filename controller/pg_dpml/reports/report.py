# SPDX-License-Identifier: PostgreSQL
"""Plans, runs, models and figures for people (text) and for programs (JSON-ready mappings)."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np

from pg_dpml.evaluation.evaluate import Evaluation
from pg_dpml.evaluation.metrics import left_out_words
from pg_dpml.evaluation.noisy_error import NoisyError
from pg_dpml.ledger.models import Model
from pg_dpml.ledger.records import PrivacyRecord
from pg_dpml.ledger.terms import Outlook
from pg_dpml.names import shown, visible
from pg_dpml.privacy.guarantee import Guarantee
from pg_dpml.privacy.meaning import belief_text, odds_factor, posterior, protected
from pg_dpml.runs.candidates import setting_text
from pg_dpml.runs.compare import Comparison, ComparisonEntry
from pg_dpml.runs.planning import Alternative
from pg_dpml.runs.train import TrainResult
from pg_dpml.runs.tuning import TuneResult
from pg_dpml.tables.stamp import OWNER_ONLY
from pg_dpml.training.plan import Plan

__all__ = [
    "COMPARISON_HEAD",
    "NOT_PRIVATE",
    "WHITENED",
    "Coefficient",
    "coefficients",
    "comparison_headings",
    "comparison_record",
    "comparison_rows",
    "comparison_stamp",
    "comparison_text",
    "comparison_warnings",
    "evaluation_record",
    "evaluation_text",
    "grants_text",
    "guarantee_of",
    "guarantee_text",
    "model_record",
    "model_text",
    "models_record",
    "models_text",
    "noise_bound",
    "passes_text",
    "plan_record",
    "plan_text",
    "result_record",
    "result_text",
    "tuning_record",
    "tuning_text",
    "unit_text",
]

NOT_PRIVATE = "NOT PRIVATE: for comparison only; do not publish this model or its figures."
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
    return PrivacyRecord.from_json(model.privacy).guarantee


def unit_text(guarantee: Guarantee) -> str:
    """What a row stands for, where it is not one row."""
    if guarantee.unit is None:
        return ""
    return (
        f" A row here stands for all rows with the same {shown(guarantee.unit)}, of which at most "
        f"{guarantee.max_rows_per_unit} are used; which rows these are is public."
    )


def guarantee_text(guarantee: Guarantee | None) -> str:
    """The guarantee in plain words."""
    if guarantee is None:
        return NOT_PRIVATE
    return (
        f"({guarantee.epsilon:g}, {guarantee.delta:.3g})-differential privacy: whatever else an attacker "
        f"knows, the released model changes the odds of any claim about one row by at most a factor "
        f"e^{guarantee.epsilon:g} = {odds_factor(guarantee.epsilon)}, except with probability "
        f"{guarantee.delta:.3g}. Neighbours ({guarantee.relation.value}): {neighbours_text(guarantee)}"
    )


def neighbours_text(guarantee: Guarantee) -> str:
    """Which tables the guarantee holds between, and what is public in both."""
    return (
        f"{guarantee.relation.meaning}.{unit_text(guarantee)} "
        "Public: the table's and columns' names, bounds, levels, the number of rows, the training settings."
    )


def _promise_lines(guarantee: Guarantee | None) -> list[tuple[str, str]]:
    """The guarantee for who reads no further: what it is called, and what it means for a person."""
    if guarantee is None:
        return [("Guarantee", NOT_PRIVATE)]
    name = f"({guarantee.epsilon:g}, {guarantee.delta:.3g})-differential privacy of {protected(guarantee)}"
    return [("Guarantee", name), ("Meaning", belief_text(guarantee))]


def _filled(found: Sequence[tuple[str, str]]) -> list[str]:
    """Headings and texts as lines of at most 100 characters, a number and its % on one line."""
    lines = (f"{heading:<12}{text}".replace(" %", "\u00a0%") for heading, text in found)
    return [textwrap.fill(line, 100, subsequent_indent=" " * 12).replace("\u00a0", " ") for line in lines]


def plan_record(
    plan: Plan, others: Sequence[Alternative] = (), outlook: Outlook | None = None
) -> dict[str, Any]:
    """A plan, what it costs its budget, and other methods beside it, as a JSON-ready mapping."""
    record: dict[str, Any] = {
        "method": plan.method,
        "private": plan.private,
        "task": plan.problem.task,
        "n_units": plan.problem.n_units,
        "n_features": plan.problem.n_features,
        "n_outputs": plan.problem.n_outputs,
        "passes": plan.work.passes,
        "warnings": list(plan.warnings),
    } | plan.work.record(plan.problem.n_units)
    if plan.guarantee is not None:
        record["epsilon"] = plan.guarantee.epsilon
        record["delta"] = plan.guarantee.delta
        record["relation"] = plan.guarantee.relation.value
        record["belief"] = {"before": 0.5, "after_at_most": posterior(0.5, plan.guarantee.epsilon)}
    if plan.noise is not None:
        record["noise"] = plan.noise.record()
    if plan.reason:
        record["reason"] = plan.reason
    if plan.noise_reason:
        record["noise_reason"] = plan.noise_reason
    if outlook is not None:
        record["budget"] = {
            "dataset": outlook.budget.dataset,
            "cost": {"loss": str(outlook.cost.loss), "delta": str(outlook.cost.delta)},
            "left": {"loss": str(outlook.left.cost.loss), "delta": str(outlook.left.cost.delta)},
            "fits": outlook.fits,
            "breach": outlook.breach,
        }
    if others:
        record["methods"] = [_alternative_record(other) for other in others]
    return record


def _alternative_record(other: Alternative) -> dict[str, Any]:
    plan = other.plan
    return {
        "method": other.method,
        "passes": None if plan is None else plan.work.passes,
        "score_stddev": None if plan is None or plan.noise is None else plan.noise.score_stddev,
        "refusal": other.refusal,
    }


def plan_text(plan: Plan, others: Sequence[Alternative] = (), outlook: Outlook | None = None) -> str:
    """A plan, what it costs its budget, and other methods beside it, as a few lines of text."""
    found = [
        *_promise_lines(plan.guarantee),
        *([] if outlook is None else [("Budget", _outlook_text(outlook))]),
    ]
    return "\n".join([*_filled(found), *_how_lines(plan), *_alternative_lines(others)])


def _how_lines(plan: Plan) -> list[str]:
    """Data, method and noise of a plan, and the guarantee's small print."""
    loss, problem = plan.work.loss, plan.problem
    found = [
        *(("Warning", warning) for warning in plan.warnings),
        (
            "Data",
            f"{problem.n_units:,} rows, {problem.n_features} features"
            + (f", {problem.n_outputs} classes" if problem.n_outputs > 1 else ""),
        ),
        (
            "Method",
            f"{plan.method}, loss {loss.kind}"
            + (f" with its derivative clipped at {loss.clip:g}" if math.isfinite(loss.clip) else ""),
        ),
        *([("Why", plan.reason)] if plan.reason else []),
        *plan.work.lines(),
        *((("Noise on", plan.noise.added_to), *plan.noise.lines()) if plan.noise is not None else ()),
        *([("Noise kind", plan.noise_reason)] if plan.noise_reason else []),
    ]
    if plan.guarantee is not None:
        found.append(("Neighbours", f"{plan.guarantee.relation.value}: {neighbours_text(plan.guarantee)}"))
    return _filled(found)


def _outlook_text(outlook: Outlook) -> str:
    budget = outlook.budget
    left = "it is closed" if outlook.left.closed else f"left: {budget.amount(outlook.left.cost)}"
    verdict = "" if outlook.fits else "; the run would be refused"
    reason = "" if outlook.breach is None else f": {outlook.breach}"
    return f"{shown(budget.dataset)}: the run costs {budget.amount(outlook.cost)}; {left}{verdict}{reason}"


def _alternative_lines(others: Sequence[Alternative]) -> list[str]:
    if not others:
        return []
    rows = [("METHOD", "PASSES", "NOISE IN A SCORE", "ADDED TO")]
    for other in others:
        if other.plan is None or other.plan.noise is None:
            rows.append((other.method, "-", "-", other.refusal or ""))
        else:
            passes = other.plan.work.passes
            noise = other.plan.noise
            taken = "-" if passes is None else f"{passes}"
            rows.append((other.method, taken, f"{noise.score_stddev:.3g}", noise.added_to))
    note = (
        "Private methods with their default options under the same guarantee. Passes are all readings of the "
        "rows: those before the first step too. Scores of different methods differ in size, so that noise "
        "does not compare between methods, and more of it need not mean less accuracy: dpml compare "
        "measures that."
    )
    return ["", *textwrap.wrap(note, 100), *_aligned(rows)]


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines, their cells in columns; a last cell may be as long as it likes."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows]


def passes_text(passes: int | None) -> str:
    """Passes taken, in words; None is for a number that depends on the rows of a private run."""
    if passes is None:
        return "certified minimiser"
    return "1 pass" if passes == 1 else f"{passes} passes"


def result_record(result: TrainResult) -> dict[str, Any]:
    """A run as a JSON-ready mapping; the weights are those released."""
    taken: dict[str, Any] = {}
    if result.passes is not None:
        taken["passes_taken"] = result.passes
    if result.seconds is not None:
        taken["seconds"] = round(result.seconds, 3)
    return {
        "model": result.model.name,
        "charge": result.model.charge,
        **taken,
        "classes": result.model.classes,
        "features": result.model.training["features"],
        "weights": result.model.weights.tolist(),
        "whitened": result.model.whitening is not None,
        "plan": plan_record(result.plan),
    }


def result_text(result: TrainResult, figures: Sequence[str] = ()) -> str:
    """A run as a few lines of text: its guarantee, figures about the model, and how it was made.

    Parameters
    ----------
    result : TrainResult
    figures : sequence of str
        Lines that a reader wants before the method and its noise, such as the accuracy.
    """
    taken = passes_text(result.passes)
    if result.seconds is not None:
        taken += f" in {result.seconds:.1f} s"
    lines = [f"Model {shown(result.model.name)}: {taken}.", *_filled(_promise_lines(result.plan.guarantee))]
    if result.model.charge is not None:
        lines += _filled([("Charged", f"as entry {result.model.charge} of dpml.ledger")])
    return "\n".join([*lines, *(["", *figures, ""] if figures else []), *_how_lines(result.plan)])


def tuning_record(result: TuneResult) -> dict[str, Any]:
    """A tuning run as a JSON-ready mapping."""
    record = result_record(result.trained) | {
        "candidates": [dict(setting) for setting in result.grid.settings],
        "chosen": dict(result.grid.settings[result.chosen]),
        "n_units": result.n_units,
    }
    if result.public is None:
        return record | {"portions": list(result.sizes)}
    return record | {"public": asdict(result.public)}


def tuning_text(result: TuneResult) -> str:
    """A tuning run as a few lines of text."""
    public = result.public
    if public is None:
        how = (
            f"Tuned privately on {result.n_units:,} rows: each candidate was trained on about "
            f"{result.sizes[-1]:,} of its own and scored on {result.sizes[-1]:,} others, and one was chosen "
            "at random, the better the likelier. The guarantee above covers all of it. No score is kept."
        )
        scores = [""] * len(result.grid.settings)
    else:
        how = (
            f"Tuned on {visible(public.table)}, whose rows are public by your word, at no cost: each "
            f"candidate was trained on {public.n_trained:,} rows of it and scored on {public.n_scored:,}. "
            "The best was then trained on all private rows."
        )
        scores = [f"{error:>12,.6g} errors  " for error in public.errors]
    lines = [textwrap.fill(how, 100)]
    if public is not None:
        warnings = left_out_words(public.left_out)
        lines += [textwrap.fill(f"Warning, of {public.table}: {words}", 100) for words in warnings]
    lines.append("Candidates")
    for i, (setting, score) in enumerate(zip(result.grid.settings, scores, strict=True)):
        lines.append(f"{'*' if i == result.chosen else ' ':>3} {score}{setting_text(setting)}")
    return result_text(result.trained, lines)


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
    lines = [
        f"{shown(evaluation.model)} on {shown(evaluation.table)}, {evaluation.n_rows:,} {rows} rows ({stamp})"
    ]
    if evaluation.error is not None:
        return "\n".join([*lines, *_error_lines(evaluation.error)])
    if evaluation.mode == "owner":
        lines.insert(0, OWNER_ONLY)
    lines += [textwrap.fill(f"Warning: {words}", 100) for words in left_out_words(evaluation.left_out)]
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
    named = [(shown(a), shown(p), n) for a, p, n in cells]
    width = max(len(a) for row in named for a in row[:2])
    lines = [f"  {a:<{width}} taken for {p:<{width}} {n:>9,}" for a, p, n in named]
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


def noise_bound(model: Model) -> str:
    """Words before the noise: it is a bound where later steps damp it, by how much nobody computes."""
    return "at most " if (model.privacy.get("noise") or {}).get("damped") else ""


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
        "granted_to": list(model.granted_to),
    }


def model_text(model: Model) -> str:
    """A model as a few lines of text: guarantee, origin, coefficients."""
    training = model.training
    lines = [
        f"Model       {shown(model.name)}: {model.task}, loss {model.loss}, method {model.method}",
        f"Trained on  {visible(str(training.get('table_name')))}, {training.get('n_units', 0):,} rows, "
        + passes_text(training.get("passes")),
        f"Stored      {_moment(model)} by {shown(model.owner or '')}"
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
    filled = [textwrap.fill(line, 100, subsequent_indent=" " * 12) for line in lines]
    return "\n".join([*filled, *_coefficient_lines(model)])


def grants_text(model: Model) -> str:
    """Who may see and apply a model."""
    others = (
        f", granted to {', '.join(map(shown, model.granted_to))}"
        if model.granted_to
        else ", granted to nobody"
    )
    return f"Model {shown(model.name)} belongs to {shown(model.owner or '')}{others}"


def _moment(model: Model) -> str:
    return "" if model.created_at is None else f"{model.created_at:%Y-%m-%d %H:%M %Z}"


def _coefficient_lines(model: Model) -> list[str]:
    found = coefficients(model)
    largest = found[:SHOWN]
    lines = [f"{'Largest c' if len(found) > SHOWN else 'C'}oefficients"]
    by_feature = found[0].noise is not None and model.whitening is not None
    if by_feature:
        bound = "a bound on " if noise_bound(model) else ""
        lines[0] += (
            f" and {bound}the standard deviation of the noise in each; ~ marks what is within two of it"
        )
    elif found[0].noise is not None:
        lines[0] += (
            f"; the noise in each has standard deviation {noise_bound(model)}{found[0].noise:.3g}, "
            "and ~ marks what is within two of it"
        )
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
        origin = (visible(str(model.training.get("table_name"))), f"{model.training.get('n_units', 0):,}")
        rows.append((shown(model.name), model.task, model.method, *privacy, *origin, _moment(model)))
    return "\n".join(_aligned(rows))


def comparison_record(comparison: Comparison) -> dict[str, Any]:
    """A comparison as a JSON-ready mapping; figures are shares of 1."""
    record = {
        "table": comparison.table,
        "task": comparison.task,
        "mode": comparison.mode,
        "figure": comparison.figure,
        "n_train": comparison.n_train,
        "n_test": comparison.n_test,
        "unit": comparison.unit,
        "delta": comparison.delta,
        "relation": comparison.relation.value,
        "left_out": None if comparison.left_out is None else asdict(comparison.left_out),
        "results": [
            {
                "data": comparison.table,
                "method": entry.method,
                "chosen": entry.chosen,
                "epsilon": entry.epsilon,
                "mean": entry.mean,
                "sd": entry.deviation,
                "runs": len(entry.values),
                "values": list(entry.values),
                "noise": entry.noise,
                "passes": entry.passes,
                "seconds": None if entry.seconds is None else round(entry.seconds, 3),
                "refusal": entry.refusal,
            }
            for entry in comparison.entries
        ],
    }
    stamp = comparison_stamp(comparison)
    return record if stamp is None else {"not_private": [stamp]} | record


def comparison_stamp(comparison: Comparison) -> str | None:
    """Why a comparison must not be published, if it must not."""
    return None if comparison.mode == "public" else OWNER_ONLY


def comparison_text(comparison: Comparison) -> str:
    """A comparison as a table, a line for every method and epsilon."""
    stamp = comparison_stamp(comparison)
    lines = [] if stamp is None else [stamp]
    headings = [*comparison_headings(comparison), *comparison_warnings(comparison)]
    lines += [textwrap.fill(heading, 100) for heading in headings]
    return "\n".join([*lines, "", *_aligned([COMPARISON_HEAD, *comparison_rows(comparison)])])


COMPARISON_HEAD = ("METHOD", "EPSILON", "MEAN", "SD", "PASSES", "SECONDS")


def comparison_headings(comparison: Comparison) -> tuple[str, str]:
    """What was measured, and how to read the columns of `comparison_rows`."""
    figure = "R squared" if comparison.figure == "r_squared" else "Accuracy"
    unit = "rows" if comparison.unit is None else f"values of {shown(comparison.unit)}"
    splits = "1 random split" if comparison.splits == 1 else f"{comparison.splits} random splits"
    return (
        f"{figure} on {visible(comparison.table)}: {splits}, {comparison.n_train:,} {unit} to train on and "
        f"{comparison.n_test:,} to measure; delta = {comparison.delta:.3g}, {comparison.relation.value}.",
        "SD is that of one split, its noise included; PASSES and SECONDS are those of training, their means. "
        "dpml plan shows the noise.",
    )


def comparison_warnings(comparison: Comparison, *, values: bool = True) -> list[str]:
    """What the figures leave out; `values` as in `left_out_words`."""
    found = left_out_words(comparison.left_out, values=values)
    return [f"Warning, of the table: {words}" for words in found]


def comparison_rows(comparison: Comparison) -> list[tuple[str, ...]]:
    """Cells below `COMPARISON_HEAD`."""
    return [_comparison_row(entry, comparison.figure) for entry in comparison.entries]


def _comparison_row(entry: ComparisonEntry, figure: str) -> tuple[str, ...]:
    epsilon = "not private" if entry.epsilon is None else f"{entry.epsilon:g}"
    if entry.mean is None:
        epsilon = "any" if entry.epsilon is None else epsilon
        return (entry.label, epsilon, "-", "-", "-", f"refused: {entry.refusal}")

    def share(value: float | None) -> str:
        if value is None:
            return "-"
        return f"{value:.2%}" if figure == "accuracy" else f"{value:.4f}"

    def number(value: float | None, form: str) -> str:
        return "-" if value is None else format(value, form)

    return (
        entry.label,
        epsilon,
        share(entry.mean),
        share(entry.deviation),
        number(entry.passes, ".3g"),
        number(entry.seconds, ".2f"),
    )
