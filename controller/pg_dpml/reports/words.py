# SPDX-License-Identifier: PostgreSQL
"""Words that all reports share: the guarantee, the unit, the passes; and lines of even width."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from pg_dpml.ledger.models import Model
from pg_dpml.ledger.records import PrivacyRecord
from pg_dpml.names import shown
from pg_dpml.privacy.guarantee import Guarantee
from pg_dpml.privacy.meaning import belief_text, odds_factor, protected
from pg_dpml.training.plan import shards_text

__all__ = [
    "NOT_PRIVATE",
    "SHOWN",
    "WHITENED",
    "aligned_lines",
    "changes_text",
    "filled_lines",
    "guarantee_of",
    "guarantee_text",
    "neighbours_text",
    "passes_text",
    "promise_lines",
    "public_text",
    "settings_text",
    "shards_lines",
    "size_text",
    "stored_text",
]


NOT_PRIVATE = "NOT PRIVATE: for comparison only; do not publish this model or its figures."
WHITENED = (
    "each is divided by the length of the row after the model's whitening matrix: probabilities and "
    "predicted values depend on that, predicted classes do not, and coefficients compare as in any linear "
    "model."
)
"""Explanation of the scores of a model with a whitening."""

SHOWN = 30
"""Most coefficients or confusions shown as text; JSON has all."""

_SETTINGS = (
    *("lambda", "clip", "gradient_clip", "unit_clip", "loss_clip", "batch_size", "update_clip", "dual_noise"),
    *("coordinates", "schedule", "step_size", "momentum", "radius", "growth", "solver"),
)
"""What `settings_text` says of a record of training, in this order."""


def guarantee_of(model: Model) -> Guarantee | None:
    """The guarantee that a stored model was released with."""
    if not model.private:
        return None
    return PrivacyRecord.from_json(model.privacy).guarantee


def size_text(n_units: int, unit: str | None, max_rows_per_unit: int | None = None) -> str:
    """How large a table is: rows, or units of privacy of so many rows."""
    if unit is None:
        return "1 row" if n_units == 1 else f"{n_units:,} rows"
    many = "1 unit" if n_units == 1 else f"{n_units:,} units"
    rows = "" if max_rows_per_unit is None else f", at most {max_rows_per_unit} rows of each"
    return f"{many} of {shown(unit)}{rows}"


def guarantee_text(guarantee: Guarantee | None) -> str:
    """The guarantee in plain words."""
    if guarantee is None:
        return NOT_PRIVATE
    return (
        f"({guarantee.epsilon:g}, {guarantee.delta:.3g})-differential privacy: whatever else an attacker "
        f"knows, the released model changes the odds of any claim about {protected(guarantee)} by at most a "
        f"factor e^{guarantee.epsilon:g} = {odds_factor(guarantee.epsilon)}, except with probability "
        f"{guarantee.delta:.3g}. Neighbours ({guarantee.relation.value}): {neighbours_text(guarantee)}"
    )


def neighbours_text(guarantee: Guarantee) -> str:
    """Which tables the guarantee holds between, and what is public in both."""
    return f"{changes_text(guarantee)}. Public: {public_text(guarantee)}."


def changes_text(guarantee: Guarantee) -> str:
    """How neighbours may differ."""
    used = "" if guarantee.unit is None else f", and at most {guarantee.max_rows_per_unit} of them are used"
    key = guarantee.public_column
    kept = "" if key is None else f", and the row's {shown(key)} stays the same"
    return f"{guarantee.relation.meaning(guarantee.unit)}{kept}{used}"


def public_text(guarantee: Guarantee) -> str:
    """What an attacker is taken to know of both neighbours."""
    placed = ""
    if guarantee.placed_by is not None:
        placed = f"in which shard a row lies, by its {shown(guarantee.placed_by)}, "
    return (
        f"the table's and columns' names, bounds, levels, the number of rows, {placed}the training settings"
    )


def promise_lines(guarantee: Guarantee | None) -> list[tuple[str, str]]:
    """The first lines of every report: the guarantee's name, and its meaning for a person."""
    if guarantee is None:
        return [("Guarantee", NOT_PRIVATE)]
    name = f"({guarantee.epsilon:g}, {guarantee.delta:.3g})-differential privacy of {protected(guarantee)}"
    return [("Guarantee", name), ("Meaning", belief_text(guarantee))]


def filled_lines(found: Sequence[tuple[str, str]]) -> list[str]:
    """Headings and texts as lines of at most 100 characters, a number and its % on one line."""
    lines = (f"{heading:<12}{text}".replace(" %", "\u00a0%") for heading, text in found)
    return [textwrap.fill(line, 100, subsequent_indent=" " * 12).replace("\u00a0", " ") for line in lines]


def aligned_lines(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines with aligned cells. The last cell of a row may have any length."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows]


def passes_text(passes: int | None) -> str:
    """Number of passes in words; None if it depends on private rows and is therefore not disclosed."""
    if passes is None:
        return "certified minimiser"
    return "1 pass" if passes == 1 else f"{passes} passes"


def settings_text(training: Mapping[str, Any]) -> str:
    """The settings that two models of one method may differ by; empty where the method has none."""
    known = dict(training)
    for name in ("options", "gradient_options", "choice_options"):
        known |= training.get(name, {})
    said = []
    for name in _SETTINGS:
        value = known.get(name)
        if not value:
            continue
        words = name.replace("_", " ")
        if isinstance(value, float | int) and value is not True:
            value = f"{value:.4g}"
        said.append(words if value is True else f"{words} {value}")
    return ", ".join(said)


def shards_lines(training: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Heading and text of a record of training that made a model of each shard; else none."""
    units = [int(one["rows"]) for one in training.get("shards", ())]
    return [("Shards", shards_text(units))] if units else []


def stored_text(model: Model) -> str:
    """Time when a model was stored; empty if it was not."""
    return "" if model.created_at is None else f"{model.created_at:%Y-%m-%d %H:%M %Z}"
