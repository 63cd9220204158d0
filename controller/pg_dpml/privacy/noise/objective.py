# SPDX-License-Identifier: PostgreSQL
"""Noise of objective perturbation: a random linear term in the objective, and noise on its minimiser.

A run minimises (1/n) sum of losses + (Lambda/2n) ||w||^2 + <b, w> and releases its answer with a little
noise. Source: privacy/README.md, "Objective perturbation".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from pg_dpml.kernels import FloatArray, Noise
from pg_dpml.privacy.accounting.objective import RowTerms, density_mu
from pg_dpml.privacy.gaussian import delta_left, gaussian_stddev
from pg_dpml.privacy.knorm import knorm_scale
from pg_dpml.privacy.noise import output
from pg_dpml.privacy.noise.base import Recorded
from pg_dpml.privacy.noise.output import ReleaseNoise
from pg_dpml.privacy.releases import GaussianRun, PureReleases
from pg_dpml.privacy.resolution import (
    hidden_grid,
    require_sensitivity,
    require_share,
    sampler_delta,
    sampler_epsilon,
)
from pg_dpml.spec.relation import Relation

__all__ = [
    "ObjectiveNoise",
    "answer_sensitivity",
    "calibrate_answer",
    "calibrate_linear",
    "draw_linear",
    "linear_norm",
    "place_linear",
]

_UNLIKELY = 400.0
"""b is longer than `linear_norm` with a probability of at most exp(-400)."""


def calibrate_linear(
    terms: RowTerms,
    relation: Relation,
    n_units: int,
    max_rows_per_unit: int,
    n_weights: int,
    epsilon: float,
    delta: float,
) -> ReleaseNoise:
    """The distribution of b, before it has a grid; the smaller of its two kinds.

    Parameters
    ----------
    terms : RowTerms
    relation : Relation
    n_units : int
        n >= 1.
    max_rows_per_unit : int
        m >= 1.
    n_weights : int
        Numbers of b, >= 1.
    epsilon : float
        epsilon_3, in (0, inf).
    delta : float
        delta_1, in [0, 1); 0 asks for the density exp(-epsilon_3 n ||b|| / D).

    Returns
    -------
    ReleaseNoise
        With a grid of 0, see `place_linear`.

    Raises
    ------
    GuaranteeError
        If delta or epsilon is too small for so many numbers, or the gradients are too small for float64.

    Notes
    -----
    Source: privacy/README.md, "Objective perturbation" and "The sampler".
    """
    change = max_rows_per_unit * relation.gradient_change(terms.lipschitz) / n_units
    require_sensitivity(change)
    pure = output.unplaced("k-norm", knorm_scale(change, epsilon, n_weights), change, n_weights, 0.0)
    if delta == 0.0:
        return pure
    taken = sampler_epsilon(n_weights)
    left = require_share(taken, epsilon, "epsilon")
    n_rows = max_rows_per_unit * (2 if relation is Relation.REPLACE_ONE else 1)
    mu = density_mu(left, delta_left(delta, n_weights) * math.exp(-0.5 * taken), terms, n_rows)
    gaussian = output.unplaced("gaussian", gaussian_stddev(change, mu), change, n_weights, mu)
    return min(gaussian, pure, key=lambda one: one.score_stddev)


def linear_norm(linear: ReleaseNoise) -> float:
    """Bound B on the norm of b, which an event of probability exp(-400) may break.

    Notes
    -----
    sigma (sqrt N + sqrt(2 x)) for Gaussian noise of N numbers, scale (N + sqrt(2 N x) + x) for K-norm noise,
    whose norm has a Gamma distribution; x = 400. Source: privacy/README.md, "Objective perturbation".
    """
    n = linear.n_weights
    if linear.kind == "gaussian":
        return linear.scale * (math.sqrt(n) + math.sqrt(2.0 * _UNLIKELY))
    return linear.scale * (n + math.sqrt(2.0 * n * _UNLIKELY) + _UNLIKELY)


def place_linear(linear: ReleaseNoise, gradient_norm: float) -> ReleaseNoise:
    """Put b on a grid so fine that rounding to it moves the gradient by at most 2^-9 of its certificate.

    Parameters
    ----------
    linear : ReleaseNoise
        From `calibrate_linear`.
    gradient_norm : float
        gamma, at least `hidden_gradient_norm`.

    Raises
    ------
    ResolutionError
        If b is too wide for such a grid.

    Notes
    -----
    Source: privacy/README.md, "Objective perturbation", rounding.
    """
    grid = hidden_grid(linear.sensitivity, gradient_norm, linear.n_weights)
    return output.resolved(replace(linear, grid=grid))


def answer_sensitivity(gradient_norm: float, convexity: float) -> float:
    """How far apart two accepted answers can be that have one and the same minimiser.

    Parameters
    ----------
    gradient_norm : float
        gamma, which both gradients have at most.
    convexity : float
        Lambda / n, in (0, inf).

    Returns
    -------
    float
        2 gamma n / Lambda: each may lie gamma n / Lambda from it, on either side.

    Notes
    -----
    Source: privacy/README.md, "Objective perturbation", approximate minima.
    """
    return 2.0 * gradient_norm / convexity


def calibrate_answer(
    gradient_norm: float, convexity: float, n_weights: int, epsilon: float, delta: float
) -> ReleaseNoise:
    """Noise on the answer, for `answer_sensitivity`.

    Parameters
    ----------
    gradient_norm : float
        gamma.
    convexity : float
        Lambda / n.
    n_weights : int
        >= 1.
    epsilon, delta : float
        epsilon_2 in (0, inf) and delta_2 in [0, 1).

    Raises
    ------
    GuaranteeError
        If delta or epsilon is too small for so many numbers.
    """
    sensitivity = answer_sensitivity(gradient_norm, convexity)
    return output.calibrate(sensitivity, 0.0, n_weights, epsilon, delta)


@dataclass(frozen=True)
class ObjectiveNoise(Recorded):
    """The noise of a whole run.

    Attributes
    ----------
    kind : str
        "gaussian" or "k-norm": of b.
    linear : ReleaseNoise
        b, in the gradient of the mean loss. It is drawn by `draw_linear`, and never released itself.
    answer : ReleaseNoise
        On the minimiser.
    convexity : float
        Lambda / n.
    n_weights : int
        Length of the weight vector.
    """

    kind: str
    linear: ReleaseNoise
    answer: ReleaseNoise
    convexity: float
    n_weights: int

    damped: ClassVar[bool] = True

    @property
    def mu(self) -> float:
        """0: the run is no Gaussian release."""
        return 0.0

    @property
    def score_stddev(self) -> float:
        """Standard deviation of the noise in the score of a row of norm 1, where no loss has curvature."""
        return math.hypot(self.linear.score_stddev / self.convexity, self.answer.score_stddev)

    @property
    def expected_norm(self) -> float:
        """Root mean square of the norm of the noise in the model, where the losses have no curvature."""
        return self.score_stddev * math.sqrt(self.n_weights)

    @property
    def added_to(self) -> str:
        """What the noise is added to, in words."""
        return "the objective, and the finished model"

    def releases(self) -> GaussianRun | None:
        """Pure privacy where both noises are K-norm noise; else the run's epsilon and delta alone count."""
        if self.linear.kind == self.answer.kind == "k-norm" and self.linear.grid > 0.0:
            return PureReleases(sampler_delta(2 * self.n_weights))
        return None

    def lines(self) -> Sequence[tuple[str, str]]:
        """Headings and texts that describe the noise."""
        linear, answer = self.linear, self.answer
        return (
            (
                "Sensitivity",
                f"{linear.sensitivity:.4g} for the gradient of the objective, {answer.sensitivity:.4g} for "
                "its certified minimiser (L2 distance one unit can move it)",
            ),
            (
                "Noise",
                f"{linear.kind}, scale {linear.scale:.4g} in the gradient of the objective; {answer.kind}, "
                f"scale {answer.scale:.4g} on the model. Adds a standard deviation of at most "
                f"{self.score_stddev:.3g} to the score of a row, and less where the losses have curvature.",
            ),
        )


def draw_linear(noise: ObjectiveNoise, source: Noise) -> FloatArray:
    """Draw b, a multiple of its grid.

    Parameters
    ----------
    noise : ObjectiveNoise
    source : Noise
        A generator keyed by the operating system, used for this noise alone.

    Returns
    -------
    ndarray of shape (n_weights,)
        It must stay in this process: with the released model it would show the rows' mean gradient.
    """
    return output.draw(noise.linear, source) * noise.linear.grid
