# SPDX-License-Identifier: PostgreSQL
"""One noise on a finished model: calibration and release."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from pg_dpml.kernels import Noise
from pg_dpml.privacy.gaussian import gaussian_share, gaussian_stddev
from pg_dpml.privacy.knorm import knorm_scale, smaller_kind
from pg_dpml.privacy.noise.base import Recorded
from pg_dpml.privacy.releases import GaussianRun, PureReleases, releases_of
from pg_dpml.privacy.resolution import (
    release_room,
    require_resolved,
    sampler_delta,
)

__all__ = [
    "ReleaseNoise",
    "calibrate",
    "calibrate_gaussian",
    "draw",
    "mean_rounding",
    "no_release",
    "norm_bound",
    "release",
    "resolved",
    "rounding_error",
    "scale_and_mu",
    "unplaced",
]


_ULP = 2.0**-52


def rounding_error(
    *,
    steps: int,
    step_sum: float,
    step_max: float,
    lipschitz: float,
    smoothness: float,
    lambda_: float,
    radius: float,
    batch_size: int,
    n_weights: int,
) -> float:
    """Bound on how far float64 rounding moves the model of a whole run.

    Parameters
    ----------
    steps : int
        T >= 0.
    step_sum, step_max : float
        Sum and maximum of the step sizes.
    lipschitz, smoothness : float
        L and beta of the data loss.
    lambda_ : float
        L2 regulariser, in [0, inf).
    radius : float
        Of the ball the model is projected on; infinity for none.
    batch_size : int
        b >= 1.
    n_weights : int
        Length of the weight vector.

    Returns
    -------
    float
        fp = T 2^-52 max_t [(6 + eta lambda) W + eta (b + 8) L + eta beta (d + 2) W] with
        W = min(R, L / lambda, L sum eta).

    Notes
    -----
    Two units of W more than a step alone needs cover the running average.
    Source: privacy/README.md, "Floating point".
    """
    bound = norm_bound(step_sum=step_sum, lipschitz=lipschitz, lambda_=lambda_, radius=radius)
    per_step = (
        (6.0 + step_max * lambda_) * bound
        + step_max * (batch_size + 8) * lipschitz
        + step_max * smoothness * (n_weights + 2) * bound
    )
    return steps * _ULP * per_step


def norm_bound(*, step_sum: float, lipschitz: float, lambda_: float, radius: float) -> float:
    """Bound W = min(R, L / lambda, L sum eta) on the norm of a run's model, as `rounding_error` takes it.

    Notes
    -----
    Source: privacy/README.md, "Floating point".
    """
    bound = min(radius, lipschitz * step_sum)
    return min(bound, lipschitz / lambda_) if lambda_ > 0.0 else bound


def mean_rounding(models: int, norm: float) -> float:
    """Bound on how far the rounding of two weighted means of models moves them apart.

    Parameters
    ----------
    models : int
        S >= 1.
    norm : float
        W, a bound on the norm of each.

    Returns
    -------
    float
        (S + 2) 2^-52 W.

    Notes
    -----
    Source: privacy/README.md, "Models of shards".
    """
    return (models + 2) * _ULP * norm


@dataclass(frozen=True)
class ReleaseNoise(Recorded):
    """The noise one release will carry; drawn by `release`.

    Attributes
    ----------
    kind : str
        "gaussian" or "k-norm".
    scale : float
        Gaussian: standard deviation of a coordinate. K-norm: the scale of the norm.
    sensitivity : float
        Of the exact run.
    calibrated_sensitivity : float
        With the head room for rounding and grid; what `scale` is computed from.
    grid : float
        Spacing of the released numbers; 0 when nothing depends on the rows.
    n_weights : int
        Length of the vector.
    mu : float
        Gaussian: calibrated sensitivity over standard deviation, at most. Else 0.
    """

    kind: str
    scale: float
    sensitivity: float
    calibrated_sensitivity: float
    grid: float
    n_weights: int
    mu: float

    damped: ClassVar[bool] = False

    @property
    def score_stddev(self) -> float:
        """Standard deviation of the noise in the score of a row of norm 1."""
        if self.kind == "gaussian":
            return self.scale
        # E||z||^2 = d (d + 1) scale^2, spread evenly over d coordinates.
        return self.scale * math.sqrt(self.n_weights + 1)

    @property
    def expected_norm(self) -> float:
        """Root mean square of the noise vector's norm."""
        return self.score_stddev * math.sqrt(self.n_weights)

    @property
    def added_to(self) -> str:
        """What the noise is added to, in words."""
        return "the finished model, once"

    def releases(self) -> GaussianRun | None:
        """One release. Source: privacy/README.md, "One release" and "K-norm noise"."""
        if self.scale == 0.0:
            return None
        if self.kind == "k-norm":
            return PureReleases(sampler_delta(self.n_weights))
        return releases_of(self.mu, self.n_weights)

    def lines(self) -> Sequence[tuple[str, str]]:
        """Headings and texts that describe the noise."""
        return (
            ("Sensitivity", f"{self.sensitivity:.4g} (L2 distance one unit can move the model)"),
            (
                "Noise",
                f"{self.kind}, scale {self.scale:.4g}: adds a standard deviation of "
                f"{self.score_stddev:.3g} to the score of a row. Scores of a good model lie a few units "
                "from zero; noise well below 1 changes few predictions, but does not say how well the model "
                "fits.",
            ),
        )


def calibrate(
    sensitivity: float | None,
    rounding: float,
    n_weights: int,
    epsilon: float,
    delta: float,
    kind: str | None = None,
) -> ReleaseNoise:
    """Noise for one vector of a given sensitivity.

    Parameters
    ----------
    sensitivity : float or None
        L2 sensitivity of the exact run, in (0, inf); None where no step is taken: the model is a
        constant.
    rounding : float
        Bound on the run's own rounding, see `rounding_error`.
    n_weights : int
        Length of the vector, >= 1.
    epsilon : float
        In (0, inf).
    delta : float
        In [0, 1); in (0, 1) for Gaussian noise.
    kind : {"gaussian", "k-norm"} or None
        None: K-norm noise where delta is 0 or it is the smaller one, see `smaller_kind`.

    Returns
    -------
    ReleaseNoise

    Raises
    ------
    GuaranteeError
        If the rounding exceeds a hundredth of the sensitivity, or that is too small for float64.

    Notes
    -----
    Calibrated for Delta + grid sqrt(d) + fp.
    Source: privacy/README.md, "Floating point" and "The sampler".
    """
    kind = kind or smaller_kind(epsilon, delta, n_weights)
    if sensitivity is None:
        return no_release(kind, n_weights)
    advice = "take fewer passes, a larger batch_size or a smaller radius"
    grid, calibrated = release_room(sensitivity, rounding, n_weights, advice)
    scale, mu = scale_and_mu(kind, calibrated, epsilon, delta, n_weights)
    return resolved(ReleaseNoise(kind, scale, sensitivity, calibrated, grid, n_weights, mu))


def scale_and_mu(
    kind: str, sensitivity: float, epsilon: float, delta: float, n_weights: int
) -> tuple[float, float]:
    """Scale of the noise of one release, and the mu that it is priced by; 0 for K-norm noise.

    Raises
    ------
    GuaranteeError
        If delta or epsilon is too small for so many numbers.
    """
    if kind == "k-norm":
        return knorm_scale(sensitivity, epsilon, n_weights), 0.0
    mu = gaussian_share(epsilon, delta, n_weights)
    return gaussian_stddev(sensitivity, mu), mu


def no_release(kind: str, n_weights: int) -> ReleaseNoise:
    """The noise of a vector that no row moves: none."""
    return ReleaseNoise(kind, 0.0, 0.0, 0.0, 0.0, n_weights, 0.0)


def unplaced(kind: str, scale: float, sensitivity: float, n_weights: int, mu: float) -> ReleaseNoise:
    """Noise that has no grid yet, for a vector without rounding; see `ReleaseNoise`."""
    return ReleaseNoise(kind, scale, sensitivity, sensitivity, 0.0, n_weights, mu)


def calibrate_gaussian(sensitivity: float, rounding: float, n_weights: int, mu: float) -> ReleaseNoise:
    """Gaussian noise for one of several releases, whose share of the guarantee is mu.

    Parameters
    ----------
    sensitivity : float
        L2 sensitivity of the released vector, in (0, inf).
    rounding : float
        Bound on how far rounding moves the vector.
    n_weights : int
        Length of the vector, >= 1.
    mu : float
        Sensitivity over standard deviation, in (0, inf).

    Returns
    -------
    ReleaseNoise

    Raises
    ------
    GuaranteeError
        If the rounding exceeds a hundredth of the sensitivity, or that is too small for float64.

    Notes
    -----
    Calibrated for Delta + grid sqrt(d) + fp.
    Source: privacy/README.md, "Gaussian noise" and "Floating point".
    """
    grid, calibrated = release_room(sensitivity, rounding, n_weights, "take fewer features or fewer rows")
    noise = ReleaseNoise(
        "gaussian", gaussian_stddev(calibrated, mu), sensitivity, calibrated, grid, n_weights, mu
    )
    return resolved(noise)


def resolved(noise: ReleaseNoise) -> ReleaseNoise:
    """The noise, if the sampler can draw it on its grid."""
    require_resolved(noise.score_stddev, noise.grid)
    return noise


def draw(noise: ReleaseNoise, source: Noise) -> npt.NDArray[np.float64]:
    """The noise alone, in whole steps of the grid; zeros where nothing depends on the rows.

    Parameters
    ----------
    noise : ReleaseNoise
    source : Noise
        A generator keyed by the operating system, used for this noise alone.

    Returns
    -------
    ndarray of shape (n_weights,)

    Notes
    -----
    Source: privacy/README.md, "The sampler".
    """
    if noise.grid == 0.0:
        return np.zeros(noise.n_weights)
    if noise.kind == "gaussian":
        return source.gaussian(noise.n_weights, noise.scale / noise.grid)
    return source.knorm(noise.n_weights, noise.scale / noise.grid)


def release(weights: npt.NDArray[np.float64], noise: ReleaseNoise, source: Noise) -> npt.NDArray[np.float64]:
    """The private vector: weights and noise, both in whole steps of the grid, added.

    Parameters
    ----------
    weights : ndarray of shape (n_weights,)
        Un-noised.
    noise : ReleaseNoise
    source : Noise
        A generator keyed by the operating system, used for this release alone.

    Returns
    -------
    ndarray of shape (n_weights,)

    Notes
    -----
    Source: privacy/README.md, "Floating point".
    """
    if weights.shape != (noise.n_weights,):
        raise ValueError(f"weights must have shape ({noise.n_weights},), not {weights.shape}")
    if noise.grid == 0.0:
        return weights.copy()
    return np.asarray((np.rint(weights / noise.grid) + draw(noise, source)) * noise.grid, dtype=np.float64)
