# SPDX-License-Identifier: PostgreSQL
"""The candidates of a tuning run: their plans, their names and how the choice is stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pg_dpml.blocks.source import Source
from pg_dpml.errors import GuaranteeError, SpecError
from pg_dpml.privacy.cost import Accounting
from pg_dpml.runs.grid import Grid
from pg_dpml.runs.planning import plan_problem, problem_of
from pg_dpml.spec.data import DataSpec
from pg_dpml.spec.privacy import PrivacySpec
from pg_dpml.training.plan import Plan

__all__ = ["plan_candidates", "setting_text", "tuning_record"]


def plan_candidates(
    source: Source,
    sizes: tuple[int, ...],
    data: DataSpec,
    privacy: PrivacySpec | None,
    grid: Grid,
    budget: Accounting | None = None,
) -> tuple[Plan, ...]:
    """The plan of each candidate for its number of units; an error names the candidate.

    `budget` is that of the run which trains the winner on all rows. Private tuning is charged by its epsilon
    and delta alone, whatever the noise. A tuning run packs rows once: where candidates would choose different
    curves, none has curves.
    """
    plans = _plans(source, sizes, data, privacy, grid, budget)
    if any(plan.encoder_change.pieces != plans[0].encoder_change.pieces for plan in plans):
        if any("features" in setting for setting in grid.settings):
            raise SpecError("features cannot be tuned here: a tuning run packs rows once; tune them apart")
        plans = _plans(replace(source, most_pieces=()), sizes, data, privacy, grid, budget)
    others = [plan.method for plan in plans if plan.norm != plans[0].norm]
    if others:
        raise SpecError(
            f"candidates of {plans[0].method} and of {others[0]} bound rows in different ways, and a tuning "
            "run packs rows once: tune them apart"
        )
    return tuple(plans)


def _plans(
    source: Source,
    sizes: tuple[int, ...],
    data: DataSpec,
    privacy: PrivacySpec | None,
    grid: Grid,
    budget: Accounting | None,
) -> list[Plan]:
    """As `plan_candidates`, each by itself."""
    plans = []
    for setting, candidate, size in zip(grid.settings, grid.candidates, sizes, strict=True):
        try:
            if not candidate.chosen.private and privacy is not None:
                raise SpecError(f"method {candidate.method} is not private and cannot be tuned under epsilon")
            if candidate.get("fresh_order") and data.unit is not None:
                raise SpecError("fresh_order does not go with a unit of privacy here: leave it out")
            problem = replace(problem_of(source, size, data), budget=budget)
            plans.append(plan_problem(problem, privacy, candidate))
        except (SpecError, GuaranteeError) as error:
            raise type(error)(f"candidate {setting_text(setting)}: {error}") from None
    return plans


def setting_text(setting: Mapping[str, Any]) -> str:
    """The setting that distinguishes a candidate from the others, in words."""
    return ", ".join(f"{key} = {value}" for key, value in setting.items())


def tuning_record(grid: Grid, chosen: int) -> dict[str, Any]:
    """The part of a model's training record about the choice of its settings."""
    return {"candidates": [dict(setting) for setting in grid.settings], "chosen": dict(grid.settings[chosen])}
