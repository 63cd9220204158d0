# SPDX-License-Identifier: PostgreSQL
"""Plans, runs and evaluations for people (text) and for programs (JSON-ready mappings)."""

from __future__ import annotations

import math
import textwrap
from dataclasses import asdict
from typing import Any

from pg_dpml.evaluate import Evaluation
from pg_dpml.methods.plan import Guarantee, Plan
from pg_dpml.train import TrainResult

__all__ = [
    "evaluation_record",
    "evaluation_text",
    "guarantee_text",
    "plan_record",
    "plan_text",
    "result_record",
    "result_text",
]

NOT_PRIVATE = "NOT PRIVATE: for comparison only; do not publish this model or its figures."


def guarantee_text(guarantee: Guarantee | None) -> str:
    """The guarantee in plain words."""
    if guarantee is None:
        return NOT_PRIVATE
    return (
        f"({guarantee.epsilon:g}, {guarantee.delta:.3g})-differential privacy: whatever else an attacker "
        f"knows, the released model changes the odds of any claim about one row by at most a factor "
        f"e^{guarantee.epsilon:g} = {math.exp(min(guarantee.epsilon, 700.0)):.3g}, except with probability "
        f"{guarantee.delta:.3g}. Neighbours ({guarantee.relation.value}): {guarantee.relation.meaning}. "
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
        "passes": plan.sgd.passes,
        "fresh_order": plan.sgd.fresh_order,
        "options": plan.sgd.options(plan.problem.n_rows),
        "warnings": list(plan.warnings),
    }
    if plan.guarantee is not None:
        record["epsilon"] = plan.guarantee.epsilon
        record["delta"] = plan.guarantee.delta
        record["relation"] = plan.guarantee.relation.value
    if plan.noise is not None:
        record["noise"] = asdict(plan.noise) | {
            "score_stddev": plan.noise.score_stddev,
            "expected_norm": plan.noise.expected_norm,
        }
    return record


def plan_text(plan: Plan) -> str:
    """A plan as a few lines of text."""
    sgd, problem = plan.sgd, plan.problem
    repacking = ", in a fresh order each (the rows are packed again every pass)" if sgd.fresh_order else ""
    lines = [
        f"Method      {plan.method}, loss {sgd.loss.kind}"
        + (f" with its derivative clipped at {sgd.loss.clip:g}" if math.isfinite(sgd.loss.clip) else ""),
        f"Data        {problem.n_rows:,} rows, {problem.n_features} features"
        + (f", {problem.n_outputs} classes" if problem.n_outputs > 1 else ""),
        f"Passes      {'at most ' if plan.tolerance is not None else ''}{sgd.passes}"
        f" over the packed rows{repacking}",
        f"Steps       batches of {sgd.batch_size}, schedule {sgd.schedule.kind}, first step "
        f"{sgd.schedule.step(1):.3g}, lambda {sgd.lambda_:g}",
    ]
    if plan.noise is not None:
        lines += [
            f"Sensitivity {plan.noise.sensitivity:.4g} (L2 distance one row can move the model)",
            f"Noise       {plan.noise.kind}, scale {plan.noise.scale:.4g}: adds a standard deviation of "
            f"{plan.noise.score_stddev:.3g} to the score of a row. Scores of a good model lie a few units "
            "from zero; noise well below 1 costs little.",
        ]
    lines.append(f"Guarantee   {guarantee_text(plan.guarantee)}")
    lines += [f"Warning     {warning}" for warning in plan.warnings]
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
        "plan": plan_record(result.plan),
    }


def result_text(result: TrainResult) -> str:
    """A run as a few lines of text."""
    lines = [f"Model {result.model.name}: {result.passes} passes in {result.seconds:.1f} s."]
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
    return {key: value for key, value in record.items() if value is not None}


def evaluation_text(evaluation: Evaluation) -> str:
    """An evaluation as a few lines of text."""
    stamp = "private model" if evaluation.private else NOT_PRIVATE
    lines = [f"{evaluation.model} on {evaluation.table}, {evaluation.n_rows:,} public rows ({stamp})"]
    if evaluation.accuracy is not None and evaluation.majority is not None:
        lines.append(f"Accuracy       {evaluation.accuracy:7.2%}")
        lines.append(f"Majority class {evaluation.majority:7.2%}")
        width = max(len(a) for row in evaluation.confusion for a in row[:2])
        lines += [f"  {a:<{width}} taken for {p:<{width}} {n:>9,}" for a, p, n in evaluation.confusion]
    if evaluation.mean_squared_error is not None:
        lines.append(f"Root mean squared error {evaluation.mean_squared_error**0.5:.6g}")
        r_squared = evaluation.r_squared
        lines.append("R squared               " + ("undefined" if r_squared is None else f"{r_squared:.4f}"))
    return "\n".join(lines)
