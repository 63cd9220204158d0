# SPDX-License-Identifier: PostgreSQL
"""A plan of any method, from public numbers alone."""

from __future__ import annotations

from typing import Any

from pg_dpml.spec.privacy import PrivacySpec
from pg_dpml.training.plan import Problem
from pg_dpml.training.spec import TrainSpec


def decide(problem: Problem, privacy: PrivacySpec | None, spec: TrainSpec) -> Any:
    """The method's plan, its class left open for tests that look into it."""
    return spec.chosen.decide(problem, privacy, spec.options)
