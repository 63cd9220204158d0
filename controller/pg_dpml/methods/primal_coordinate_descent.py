# SPDX-License-Identifier: PostgreSQL
"""Coordinate descent on the model itself: a step changes some coordinates, by the gradient of all rows.

The noise of k passes in the score of a row of norm 1 has standard deviation 2 C k sqrt(d)/mu, whatever the
number of rows and of coordinates in a step is. So C is taken such that this is `SCORE_NOISE`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from pg_dpml.errors import SpecError
from pg_dpml.kernels import FloatArray, Loss
from pg_dpml.privacy.noise import composed, coordinates
from pg_dpml.privacy.noise.coordinates import CoordinateNoise
from pg_dpml.spec.privacy import PrivacySpec
from pg_dpml.training import shared_options
from pg_dpml.training.job import Job, Result
from pg_dpml.training.losses import choose_loss, loss_options, losses_of, require_one_score
from pg_dpml.training.method import Card, Example, PrivateMethod, register
from pg_dpml.training.options import Whole, option
from pg_dpml.training.plan import Plan, Problem, privacy_warnings
from pg_dpml.training.shared_options import LossOptions

__all__ = ["PrimalDescent", "PrimalPlan"]

LOSSES = losses_of("binary", "regression")
"""Losses of each task."""

PASSES = 10
SCORE_NOISE = {"binary": 1.0, "regression": 0.1}
"""Labels in [-1, 1] tolerate less noise than logits."""


@dataclass(frozen=True)
class PrimalDescent:
    """Steps w_j <- w_j + clip(-(g_j + lambda w_j)/(m beta + lambda)) on the coordinates j of a batch.

    Attributes
    ----------
    loss : Loss
    lambda_ : float
        L2 regulariser, >= 0.
    coordinates : int
        c, of a step.
    steps : int
        T; each reads all rows.
    update_clip : float
        C, in (0, inf).
    max_rows_per_unit : int
        m.
    """

    loss: Loss
    lambda_: float
    coordinates: int
    steps: int
    update_clip: float
    max_rows_per_unit: int

    @property
    def passes(self) -> int:
        """Passes over the packed rows."""
        return self.steps

    @property
    def curvature(self) -> float:
        """Bound on the Hessian of the mean over units and of the regulariser: m beta + lambda."""
        return self.loss.unit_smoothness(self.max_rows_per_unit) + self.lambda_

    def batch(self, step: int, n_weights: int) -> slice:
        """The coordinates of a step, counted from 0: in their order, the first ones after the last."""
        first = step % math.ceil(n_weights / self.coordinates) * self.coordinates
        return slice(first, min(first + self.coordinates, n_weights))

    def change(self, gradient: FloatArray, weights: FloatArray) -> FloatArray:
        """Change of some coordinates of these weights, clipped, by their mean gradient over units."""
        change = -(gradient + self.lambda_ * weights) / self.curvature
        return np.clip(change, -self.update_clip, self.update_clip)

    def options(self) -> dict[str, Any]:
        """The aggregate's options; only public numbers."""
        return loss_options(self.loss) | {"losses": False}

    def record(self, n_units: int) -> dict[str, Any]:
        """Everything that fixes the steps, as a JSON-ready mapping of public numbers."""
        return {
            "options": self.options(),
            "lambda": self.lambda_,
            "coordinates": self.coordinates,
            "steps": self.steps,
            "update_clip": self.update_clip,
        }

    def lines(self) -> Sequence[tuple[str, str]]:
        """Headings and texts that describe the steps."""
        return (
            ("Passes", f"{self.steps:,} over all rows, one a step"),
            (
                "Steps",
                f"{self.coordinates} coordinates of the model in each, lambda {self.lambda_:.3g}, the change "
                f"of a coordinate clipped at {self.update_clip:.3g}",
            ),
        )


@dataclass(frozen=True)
class PrimalPlan(Plan):
    """Steps on coordinates, with noise on each."""

    work: PrimalDescent
    noise: CoordinateNoise

    needs_order: ClassVar[bool] = False

    def run(self, job: Job) -> Result:
        """Take the steps; each sees a noisy model only, and what it changes gets noise before it is kept."""
        descent, release, n_units = self.work, self.noise.gradient, max(self.problem.n_units, 1)
        assert release is not None  # of every step
        weights = np.zeros(self.problem.n_weights)
        for step in range(descent.steps):
            sums = job.gradient(weights, descent.options())
            gradient = np.zeros_like(weights) if sums.gradient is None else sums.gradient / n_units
            batch = descent.batch(step, len(weights))
            change = descent.change(gradient[batch], weights[batch])
            padded = np.zeros(descent.coordinates)
            padded[: len(change)] = change
            weights[batch] += composed.release_gradient(padded, release)[: len(change)]
            job.report("pass", step + 1, descent.steps)
        return Result(weights, descent.steps)


@dataclass(frozen=True)
class PrimalOptions(LossOptions):
    """Options of primal-dp-scd."""

    lambda_: float | None = shared_options.lambda_("0")
    passes: int | None = shared_options.passes(f"{PASSES} over the coordinates")
    coordinates: int | None = option(
        Whole(2**31 - 1), "Coordinates of the model that a step changes; each step reads all rows.", "all"
    )
    update_clip: float | None = shared_options.update_clip()


@register
class PrimalDpScd(PrivateMethod[PrimalOptions]):
    """Coordinate descent on the model, with noise on the coordinates of every step."""

    name = "primal-dp-scd"
    comparison = True
    summary = "coordinate descent on the model, with noise on the coordinates of every step"
    losses = LOSSES
    cards = (
        Card(
            theorem='T Gaussian releases, exact composition ("Coordinates of the model"; Damaskinos et al. '
            "2021, Algorithm 2).",
            sensitivity="S = 2 C sqrt(c) for the c coordinates of a step, C = `update_clip`, under both "
            "relations, however many rows there are.",
            checked="delta > 0 and large enough for the sampler.",
            charged="(epsilon, delta).",
            corrected="The scores of rows are functions of the row and of the released model, and are not "
            "released. So no row's score gets noise, and S has no factor sqrt(c + 1), which the publication "
            "needs for that noise. The bound "
            "does not fall with the number of rows, so noise is far larger than that of dp-gd: the method is "
            "here to compare.",
        ),
    )
    options = PrimalOptions
    examples = (Example(options={"passes": 2}), Example("regression", {"passes": 1, "coordinates": 2}))

    def plan(self, problem: Problem, privacy: PrivacySpec, options: PrimalOptions) -> PrimalPlan:
        """Fix the steps and the noise."""
        require_one_score(self.name, problem, "auto, dp-gd or dp-sgd")
        taken = options.coordinates or problem.n_weights
        if taken > problem.n_weights:
            raise SpecError(
                f"coordinates must be at most the number of features, {problem.n_weights:,}, not {taken:,}"
            )
        passes, delta = options.passes or PASSES, privacy.delta_for(problem.n_units)
        mu = composed.run_mu(privacy.epsilon, delta, 1)
        clip = options.update_clip or SCORE_NOISE[problem.task] * mu / (
            2.0 * passes * math.sqrt(problem.n_weights)
        )
        noise = coordinates.calibrate_coordinates(
            update_clip=clip,
            coordinates=taken,
            passes=passes,
            n_units=problem.n_units,
            n_weights=problem.n_weights,
            epsilon=privacy.epsilon,
            delta=delta,
        )
        descent = PrimalDescent(
            loss=choose_loss(problem, options, {}, losses=LOSSES),
            lambda_=options.lambda_ or 0.0,
            coordinates=taken,
            steps=noise.steps,
            update_clip=clip,
            max_rows_per_unit=problem.max_rows_per_unit,
        )
        warnings = tuple(privacy_warnings(problem, privacy, delta))
        return PrimalPlan(self.name, problem, descent, problem.guarantee(privacy, delta), noise, warnings)
