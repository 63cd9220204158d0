# SPDX-License-Identifier: PostgreSQL
"""A run, or a tuning run, for people and for programs."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from pg_dpml.evaluation.metrics import left_out_words
from pg_dpml.names import shown, visible
from pg_dpml.reports.plan_report import how_lines, plan_record
from pg_dpml.reports.words import filled_lines, passes_text, promise_lines, size_text
from pg_dpml.runs.candidates import setting_text
from pg_dpml.runs.train import TrainResult
from pg_dpml.runs.tuning import TuneResult

__all__ = [
    "result_record",
    "result_text",
    "result_warnings",
    "tuning_record",
    "tuning_text",
]


def result_warnings(result: TrainResult) -> tuple[str, ...]:
    """That a baseline took all its passes without reaching its goal."""
    plan, passes = result.plan, result.passes
    if plan.goal is None or passes is None or passes != plan.work.passes:
        return ()
    return (
        f"all {passes:,} passes were taken before {plan.goal}: this is not yet the minimiser; take "
        "more passes, or a larger lambda",
    )


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
        "warnings": list(result_warnings(result)),
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
    lines = [
        f"Model {shown(result.model.name)}: {taken}.",
        *filled_lines(promise_lines(result.plan.guarantee)),
    ]
    lines += filled_lines([("Warning", text) for text in result_warnings(result)])
    if result.model.charge is not None:
        lines += filled_lines([("Charged", f"as entry {result.model.charge} of dpml.ledger")])
    return "\n".join([*lines, *(["", *figures, ""] if figures else []), *how_lines(result.plan)])


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
        unit = result.trained.plan.problem.unit
        how = (
            f"Tuned privately on {size_text(result.n_units, unit)}: each candidate was trained on about "
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
