# SPDX-License-Identifier: PostgreSQL
"""Plans of any method from public numbers alone, and the examples of all methods."""

from __future__ import annotations

import math
from typing import Any

from pg_dpml.privacy.noise.composed import ComposedNoise
from pg_dpml.spec.privacy import PrivacySpec
from pg_dpml.training.method import methods
from pg_dpml.training.plan import Problem
from pg_dpml.training.spec import TrainSpec


def decide(problem: Problem, privacy: PrivacySpec | None, spec: TrainSpec) -> Any:
    """The method's plan, its class left open for tests that look into it."""
    return spec.decide(problem, privacy)


def gram_share(problem: Problem, noise: ComposedNoise) -> float:
    """Share of a whitened run's mu^2 that its second moments take: a tenth, less where noise hides them."""
    assert noise.moments is not None
    stddev = noise.moments.calibrated_sensitivity / (math.sqrt(0.1) * noise.mu * max(problem.n_units, 1))
    edge = stddev * math.sqrt(2.0 * problem.n_features)
    times = edge * problem.n_features / problem.max_rows_per_unit * math.sqrt(problem.n_outputs) / 25.0
    return 0.1 / min(max(times**2, 1.0), 4.0)


def examples(*, private: bool) -> dict[str, tuple[str, TrainSpec]]:
    """Every example of every method that is private, or of every one that is not: its task and its spec."""
    return {
        name if place == 0 else f"{name} {place}": (example.task, TrainSpec(name, **example.options))
        for name, method in methods().items()
        if method.private is private
        for place, example in enumerate(method.examples)
    }
