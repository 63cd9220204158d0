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

from pg_dpml.errors import GuaranteeError
from pg_dpml.kernels import FloatArray, Loss, Noise
from pg_dpml.privacy.gaussian import delta_left, gaussian_delta, gaussian_mu, gaussian_stddev
from pg_dpml.privacy.knorm import knorm_scale
from pg_dpml.privacy.noise import output
from pg_dpml.privacy.noise.base import Recorded
from pg_dpml.privacy.noise.output import ReleaseNoise
from pg_dpml.privacy.releases import GaussianRun, PureReleases
from pg_dpml.privacy.resolution import release_grid, require_share, sampler_delta, sampler_epsilon
from pg_dpml.spec.relation import Relation

__all__ = [
    "ObjectiveNoise",
    "RowTerms",
    "answer_sensitivity",
    "calibrate_answer",
    "calibrate_linear",
    "density_delta",
    "density_mu",
    "determinant_epsilon",
    "draw_linear",
    "least_gradient_norm",
    "least_regulariser",
    "linear_norm",
    "place_linear",
    "row_terms",
]

GRID_SHARE = 2.0**-8
"""The grid step of b times sqrt(numbers) is at most this share of the gradient norm gamma."""

LEAST_GRADIENT_NORM = 2.0**-35
"""Least gamma over sqrt(numbers) times the standard deviation of b, which then is at most 2^44 grid steps."""

_TERMS = 8
"""Sizes of vertices that `density_delta` sums one by one."""

_UNLIKELY = 400.0
"""b is longer than `linear_norm` with a probability of at most exp(-400)."""

_SMALLEST_DELTA = 1e-300
_ROOM = 1.0 + 1e-9


@dataclass(frozen=True)
class RowTerms:
    """What one row of norm at most 1 adds to the gradient and to the Hessian of the objective.

    Attributes
    ----------
    lipschitz : float
        L: bound on the norm of its gradient.
    log_vertices : float
        Logarithm of the number of vertices other than 0 of the polytope that its gradients lie in.
    rank : int
        Of its Hessian, at most.
    curvature : float
        Trace of its Hessian over `rank`, at most.
    """

    lipschitz: float
    log_vertices: float
    rank: int
    curvature: float


def row_terms(loss: Loss) -> RowTerms:
    """The terms of a row.

    Parameters
    ----------
    loss : Loss
        logistic, huber_svm or softmax: a residual loss has derivatives of both signs.

    Notes
    -----
    Source: privacy/README.md, "Objective perturbation".
    """
    if loss.kind == "squared":
        raise ValueError("the derivative of a squared loss has both signs")
    n_classes = loss.n_classes
    if loss.kind == "softmax":
        return RowTerms(loss.lipschitz, math.log(n_classes - 1), n_classes - 1, 1.0 / n_classes)
    log_vertices = n_classes * math.log(2.0) if n_classes > 1 else 0.0
    return RowTerms(loss.lipschitz, log_vertices, n_classes, loss.smoothness)


def determinant_epsilon(terms: RowTerms, max_rows_per_unit: int, regulariser: float) -> float:
    """What the regulariser leaves of the change of variables, in epsilon.

    Parameters
    ----------
    terms : RowTerms
    max_rows_per_unit : int
        m >= 1.
    regulariser : float
        Lambda, in (0, inf).

    Returns
    -------
    float
        m rank ln(1 + curvature / Lambda), under both relations.

    Notes
    -----
    Source: privacy/README.md, "Objective perturbation", determinant.
    """
    return max_rows_per_unit * terms.rank * math.log1p(terms.curvature / regulariser) * _ROOM


def least_regulariser(terms: RowTerms, max_rows_per_unit: int, epsilon: float) -> float:
    """Least Lambda whose `determinant_epsilon` is at most so much.

    Parameters
    ----------
    terms : RowTerms
    max_rows_per_unit : int
        m >= 1.
    epsilon : float
        In (0, inf).

    Returns
    -------
    float
        curvature / (exp(epsilon / (m rank)) - 1), rounded up; 0 where epsilon allows any Lambda of float64.

    Notes
    -----
    Source: privacy/README.md, "Objective perturbation", determinant.
    """
    share = epsilon / (max_rows_per_unit * terms.rank)
    return terms.curvature / math.expm1(share / _ROOM) * _ROOM if share < 700.0 else 0.0


def density_delta(epsilon: float, mu: float, terms: RowTerms, n_rows: int) -> float:
    """Bound on the delta of the density of b for neighbours, at one epsilon.

    Parameters
    ----------
    epsilon : float
        epsilon_3, in [0, inf).
    mu : float
        L n_rows / (n sigma_1), in (0, inf): the whole shift over the standard deviation.
    terms : RowTerms
    n_rows : int
        r >= 1: rows whose gradients differ, m under add_remove and 2 m under replace_one.

    Returns
    -------
    float
        sum over j = 1 .. r of C(r, j) V^j dG(epsilon; j mu / r), V vertices. Where r is above 8, the
        smaller vertices count as if they were as long as the longest of them.

    Notes
    -----
    Source: privacy/README.md, "Objective perturbation", density.
    """

    def log_count(size: int) -> float:
        choices = math.lgamma(n_rows + 1) - math.lgamma(size + 1) - math.lgamma(n_rows - size + 1)
        return choices + size * terms.log_vertices

    def log_delta(size: int) -> float:
        return math.log(max(gaussian_delta(epsilon, mu * size / n_rows), _SMALLEST_DELTA))

    smallest = max(n_rows - _TERMS + 1, 1)
    logs = [log_count(size) + log_delta(size) for size in range(smallest, n_rows + 1)]
    if smallest > 1:
        everything = n_rows * (terms.log_vertices + math.log1p(math.exp(-terms.log_vertices)))
        logs.append(everything + log_delta(smallest - 1))
    return sum(math.exp(min(one, 1.0)) for one in logs) * _ROOM


def density_mu(epsilon: float, delta: float, terms: RowTerms, n_rows: int) -> float:
    """Largest mu whose `density_delta` is at most delta, rounded towards more noise.

    Parameters
    ----------
    epsilon : float
        epsilon_3, in (0, inf).
    delta : float
        delta_1, in (0, 1).
    terms : RowTerms
    n_rows : int
        As of `density_delta`.

    Raises
    ------
    GuaranteeError
        If there are so many vertices that float64 has no such delta.

    Notes
    -----
    Source: privacy/README.md, "Objective perturbation", density.
    """
    high = gaussian_mu(epsilon, delta)  # of the longest vertex alone
    low = high
    while density_delta(epsilon, low, terms, n_rows) > delta:
        low *= 0.5
        if low < 1e-3 * high:
            raise GuaranteeError(
                f"{n_rows} rows of a unit have too many vertices for Gaussian noise in the objective: take a "
                "smaller max_rows_per_unit, or delta = 0"
            )
    while high - low > 1e-9 * high:
        middle = 0.5 * (low + high)
        low, high = (
            (middle, high) if density_delta(epsilon, middle, terms, n_rows) <= delta else (low, middle)
        )
    return low


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
        If delta or epsilon is too small for so many numbers.

    Notes
    -----
    Source: privacy/README.md, "Objective perturbation" and "The sampler".
    """
    change = max_rows_per_unit * relation.gradient_change(terms.lipschitz) / n_units
    pure = ReleaseNoise(
        "k-norm", knorm_scale(change, epsilon, n_weights), change, change, 0.0, n_weights, 0.0
    )
    if delta == 0.0:
        return pure
    taken = sampler_epsilon(n_weights)
    left = require_share(taken, epsilon, "epsilon")
    n_rows = max_rows_per_unit * (2 if relation is Relation.REPLACE_ONE else 1)
    mu = density_mu(left, delta_left(delta, n_weights) * math.exp(-0.5 * taken), terms, n_rows)
    gaussian = ReleaseNoise("gaussian", gaussian_stddev(change, mu), change, change, 0.0, n_weights, mu)
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


def least_gradient_norm(linear: ReleaseNoise) -> float:
    """The least gamma whose share for the grid of b leaves b resolved on that grid."""
    return LEAST_GRADIENT_NORM * math.sqrt(linear.n_weights) * linear.score_stddev


def place_linear(linear: ReleaseNoise, gradient_norm: float) -> ReleaseNoise:
    """Put b on a grid so fine that rounding to it moves the gradient by at most 2^-9 of its certificate.

    Parameters
    ----------
    linear : ReleaseNoise
        From `calibrate_linear`.
    gradient_norm : float
        gamma, at least `least_gradient_norm`.

    Raises
    ------
    ResolutionError
        If b is too wide for such a grid.

    Notes
    -----
    Source: privacy/README.md, "Objective perturbation", rounding.
    """
    finest = GRID_SHARE * gradient_norm
    grid = min(
        2.0 ** math.floor(math.log2(finest / math.sqrt(linear.n_weights))),
        release_grid(linear.sensitivity, linear.n_weights),
    )
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
