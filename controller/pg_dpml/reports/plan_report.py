# SPDX-License-Identifier: PostgreSQL
"""A plan for people (text) and for programs (JSON-ready mapping), and other methods beside it."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Any

from pg_dpml.ledger.terms import Outlook
from pg_dpml.names import shown
from pg_dpml.privacy.meaning import posterior
from pg_dpml.reports.words import aligned_lines, filled_lines, neighbours_text, promise_lines, size_text
from pg_dpml.runs.planning import Alternative
from pg_dpml.training.method import methods
from pg_dpml.training.plan import Plan

__all__ = [
    "how_lines",
    "plan_record",
    "plan_text",
]

_COMPARISON = "for comparison with publications"


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
    if plan.place:
        record["place"] = plan.place
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
        *promise_lines(plan.guarantee),
        *([] if outlook is None else [("Budget", _outlook_text(outlook))]),
    ]
    return "\n".join([*filled_lines(found), *how_lines(plan), *_alternative_lines(others)])


def how_lines(plan: Plan) -> list[str]:
    """Data, method and noise of a plan, and the guarantee's small print."""
    loss, problem = plan.work.loss, plan.problem
    found = [
        *(("Warning", warning) for warning in plan.warnings),
        (
            "Data",
            f"{size_text(problem.n_units, problem.unit, problem.max_rows_per_unit)}, "
            f"{problem.n_features:,} features"
            + (f", {problem.n_outputs} classes" if problem.n_outputs > 1 else ""),
        ),
        (
            "Method",
            f"{plan.method}, loss {loss.kind}"
            + (f" with its derivative clipped at {loss.clip:g}" if math.isfinite(loss.clip) else "")
            + (
                f"; {_COMPARISON}: auto is usually more accurate" if methods()[plan.method].comparison else ""
            ),
        ),
        *([("Why", plan.reason)] if plan.reason else []),
        *([("Where", plan.place)] if plan.place else []),
        *plan.work.lines(),
        *((("Noise on", plan.noise.added_to), *plan.noise.lines()) if plan.noise is not None else ()),
        *([("Noise kind", plan.noise_reason)] if plan.noise_reason else []),
    ]
    if plan.guarantee is not None:
        found.append(("Neighbours", f"{plan.guarantee.relation.value}: {neighbours_text(plan.guarantee)}"))
    return filled_lines(found)


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
            size = "-" if noise.score_stddev is None else f"{noise.score_stddev:.3g}"
            own = f"; {_COMPARISON}" if methods()[other.method].comparison else ""
            rows.append((other.method, taken, size, f"{noise.added_to}{own}"))
    note = (
        "Private methods with their default options under the same guarantee. Passes are all readings of the "
        "rows: those before the first step too. Scores of different methods differ in size, so that noise "
        "does not compare between methods, and more of it need not mean less accuracy: dpml compare "
        "measures that."
    )
    return ["", *textwrap.wrap(note, 100), *aligned_lines(rows)]
