# SPDX-License-Identifier: PostgreSQL
"""Plans of any method from public numbers alone, and the examples of all methods."""

from __future__ import annotations

from typing import Any

from pg_dpml.spec.privacy import PrivacySpec
from pg_dpml.training.method import methods
from pg_dpml.training.plan import Problem
from pg_dpml.training.spec import TrainSpec


def decide(problem: Problem, privacy: PrivacySpec | None, spec: TrainSpec) -> Any:
    """The method's plan, its class left open for tests that look into it."""
    return spec.decide(problem, privacy)


def examples(*, private: bool) -> dict[str, tuple[str, TrainSpec]]:
    """Every example of every method that is private, or of every one that is not: its task and its spec."""
    return {
        name if place == 0 else f"{name} {place}": (example.task, TrainSpec(name, **example.options))
        for name, method in methods().items()
        if method.private is private
        for place, example in enumerate(method.examples)
    }
