# SPDX-License-Identifier: PostgreSQL
"""A comparison of methods for people and for programs."""

from __future__ import annotations

import textwrap
from dataclasses import asdict
from typing import Any

from pg_dpml.evaluation.metrics import left_out_words
from pg_dpml.names import visible
from pg_dpml.reports.words import aligned_lines, size_text
from pg_dpml.runs.compare import Comparison, ComparisonEntry
from pg_dpml.tables.stamp import OWNER_ONLY

__all__ = [
    "COMPARISON_HEAD",
    "comparison_headings",
    "comparison_record",
    "comparison_rows",
    "comparison_stamp",
    "comparison_text",
    "comparison_warnings",
]


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
    """Warning against publishing a comparison; None if it may be published."""
    return None if comparison.mode == "public" else OWNER_ONLY


def comparison_text(comparison: Comparison) -> str:
    """A comparison as a table, a line for every method and epsilon."""
    stamp = comparison_stamp(comparison)
    lines = [] if stamp is None else [stamp]
    headings = [*comparison_headings(comparison), *comparison_warnings(comparison)]
    lines += [textwrap.fill(heading, 100) for heading in headings]
    return "\n".join([*lines, "", *aligned_lines([COMPARISON_HEAD, *comparison_rows(comparison)])])


COMPARISON_HEAD = ("METHOD", "EPSILON", "MEAN", "SD", "PASSES", "SECONDS")


def comparison_headings(comparison: Comparison) -> tuple[str, str]:
    """What was measured, and how to read the columns of `comparison_rows`."""
    figure = "R squared" if comparison.figure == "r_squared" else "Accuracy"
    splits = "1 random split" if comparison.splits == 1 else f"{comparison.splits} random splits"
    return (
        f"{figure} on {visible(comparison.table)}: {splits}, "
        f"{size_text(comparison.n_train, comparison.unit)} to train on and {comparison.n_test:,} to measure; "
        f"delta = {comparison.delta:.3g}, {comparison.relation.value}.",
        "SD is that of one split, its noise included; passes and seconds are those of training, their means. "
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
