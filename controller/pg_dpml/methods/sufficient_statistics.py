# SPDX-License-Identifier: PostgreSQL
"""Ridge regression on one noisy release of the second moments of rows and labels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from pg_dpml.errors import SpecError
from pg_dpml.kernels import Loss
from pg_dpml.methods.whitening import require_second_moments
from pg_dpml.privacy.noise import composed
from pg_dpml.privacy.noise.composed import ComposedNoise
from pg_dpml.spec.privacy import PrivacySpec
from pg_dpml.training import shared_options
from pg_dpml.training.job import Job, Result
from pg_dpml.training.losses import choose_loss
from pg_dpml.training.method import Card, Example, PrivateMethod, register
from pg_dpml.training.options import Options
from pg_dpml.training.plan import Plan, Problem, privacy_warnings
from pg_dpml.training.shared_options import LossOptions

__all__ = [
    "Statistics",
    "StatisticsOptions",
    "StatisticsPlan",
    "SufficientStatistics",
]

RIDGE = 0.5
"""Of the largest eigenvalue of the noise, about s sqrt(2 d)."""


@dataclass(frozen=True)
class Statistics:
    """The one pass, and what is made of its sums.

    Attributes
    ----------
    loss : Loss
        Squared.
    ridge : float
        lambda of (X'X/n + lambda I) w = X'y/n.
    """

    loss: Loss
    ridge: float

    @property
    def passes(self) -> int:
        """Passes over the packed rows."""
        return 1

    def record(self, n_units: int) -> dict[str, Any]:
        """Everything that fixes the model, as a JSON-ready mapping of public numbers."""
        return {"options": {"loss": self.loss.kind}, "ridge": self.ridge}

    def lines(self) -> Sequence[tuple[str, str]]:
        """Headings and texts that describe the pass."""
        return (
            ("Passes", "1 over all rows"),
            (
                "Solution",
                f"ridge regression on the noisy sums, with {self.ridge:.3g} added to the mean square of "
                "every feature; this ridge follows the noise",
            ),
        )


@dataclass(frozen=True)
class StatisticsPlan(Plan):
    """One noisy release of the second moments, and its solution."""

    work: Statistics
    noise: ComposedNoise

    needs_order: ClassVar[bool] = False

    def run(self, job: Job) -> Result:
        """Sum up the packed rows, and solve.

        Notes
        -----
        All after the release is post-processing. Source: privacy/README.md, "Sufficient statistics".
        """
        moments = self.noise.moments
        assert moments is not None  # of this method
        sums = job.blocks.gram()
        job.require_all(sums.rows)
        xx, xy = composed.release_moments(sums.xx, sums.xy, moments)
        assert xy is not None
        n_units = max(self.problem.n_units, 1)
        values, vectors = np.linalg.eigh(xx / n_units)
        weights = vectors @ ((vectors.T @ (xy / n_units)) / (np.maximum(values, 0.0) + self.work.ridge))
        job.report("pass", 1, 1)
        return Result(np.asarray(weights, dtype=np.float64), 1)


@dataclass(frozen=True)
class StatisticsOptions(Options):
    """Options of sufficient-statistics."""

    loss: str | None = shared_options.loss()


@register
class SufficientStatistics(PrivateMethod[StatisticsOptions]):
    """Ridge regression on noisy second moments."""

    name = "sufficient-statistics"
    summary = "regressions: ridge regression on one noisy release of all second moments"
    cards = (
        Card(
            theorem="One Gaussian release of (X'X, X'y), then ridge regression on it: post-processing "
            '("Sufficient statistics").',
            sensitivity="sqrt 4.5 m jointly (`replace_one`), sqrt 2 m (`add_remove`), for rows of norm at "
            "most 1 and labels in [-1, 1].",
            checked="A regression; delta > 0; features at most 2,500.",
            charged="(epsilon, delta).",
            corrected="Published forms bound the two parts apart and add the bounds, or read the label's "
            "range from the rows; here the range is declared and the joint bound is attained.",
        ),
    )
    options = StatisticsOptions
    examples = (Example("regression"),)

    def plan(self, problem: Problem, privacy: PrivacySpec, options: StatisticsOptions) -> StatisticsPlan:
        """Fix the ridge and the noise."""
        if problem.task != "regression":
            raise SpecError(
                f"method = sufficient-statistics is for a number to predict, not for a {problem.task} label: "
                "leave method out"
            )
        d = problem.n_features
        require_second_moments(self.name, problem)
        delta = privacy.delta_for(problem.n_units)
        mu = composed.run_mu(privacy.epsilon, delta, composed.triangle_size(d) + d)
        moments = composed.calibrate_moments(
            relation=privacy.relation,
            max_rows_per_unit=problem.max_rows_per_unit,
            labels=True,
            mu=mu,
            n_units=problem.n_units,
            n_features=d,
        )
        stddev = moments.scale / max(problem.n_units, 1)
        # an empty table has no noise: any ridge gives its zero model
        ridge = RIDGE * stddev * math.sqrt(2.0 * d) or 1.0
        # X'X/n of rows that spread over all directions is I/d, which takes noise s to d s.
        noise = ComposedNoise("gaussian", mu, 0, None, moments, d, d * stddev)
        return StatisticsPlan(
            self.name,
            problem,
            Statistics(choose_loss(problem, LossOptions(options.loss), {}), ridge),
            problem.guarantee(privacy, delta),
            noise,
            tuple(privacy_warnings(problem, privacy, delta)),
        )
