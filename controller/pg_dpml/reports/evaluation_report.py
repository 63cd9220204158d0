# SPDX-License-Identifier: PostgreSQL
"""An evaluation for people and for programs."""

from __future__ import annotations

import textwrap
from dataclasses import asdict
from typing import Any

from pg_dpml.evaluation.evaluate import Evaluation
from pg_dpml.evaluation.metrics import left_out_words
from pg_dpml.evaluation.noisy_error import NoisyError
from pg_dpml.names import shown
from pg_dpml.privacy.meaning import protected
from pg_dpml.reports.words import NOT_PRIVATE, SHOWN
from pg_dpml.tables.stamp import OWNER_ONLY

__all__ = [
    "evaluation_record",
    "evaluation_text",
]


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
    """Warnings against publishing an evaluation; empty if it may be published."""
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
        unlabelled = "Rows whose label is NULL or undeclared count as errors."
    else:
        bar = bar.format(f"{error.half_width:.3g}")
        lines = [
            f"Mean squared error {error.value:.6g} {bar}, each row's clipped at {error.clip:g}",
            f"Its root           {error.value**0.5:.6g}",
        ]
        unlabelled = f"Rows whose label is NULL or no number count with the largest error, {error.clip:g}."
    whose = "these rows"
    if guarantee.unit is not None:
        whose = f"{protected(guarantee)}, of which at most {guarantee.max_rows_per_unit} are used"
    released = (
        f"Released under ({guarantee.epsilon:g}, {guarantee.delta:.3g})-differential privacy of {whose} "
        f"({guarantee.relation.value}) and charged as entry {error.charge} of dpml.ledger: for rows that "
        "the model was trained on, this adds to what the model spent."
    )
    return [*lines, textwrap.fill(unlabelled, 100), textwrap.fill(released, 100)]


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
