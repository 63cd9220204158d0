# SPDX-License-Identifier: PostgreSQL
"""Noise for one released vector: its calibration and its drawing, on the grid of `resolution`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import scipy  # which imports its parts where they are used

from pg_dpml.errors import GuaranteeError
from pg_dpml.kernels import Noise
from pg_dpml.privacy.resolution import (
    release_room,
    require_resolved,
    require_share,
    sampler_delta,
    sampler_knorm_epsilon,
    sampler_mu,
)

__all__ = [
    "MOST_SUM",
    "ReleaseNoise",
    "best_mu",
    "calibrate",
    "calibrate_gaussian",
    "calibrate_sum",
    "delta_left",
    "gaussian_delta",
    "gaussian_mu",
    "gaussian_share",
    "gaussian_stddev",
    "knorm_scale",
    "noise_range",
    "release",
    "release_sum",
    "rounding_error",
    "smaller_kind",
]

_ULP = 2.0**-52
_ROUND_UP = 1.0 + 2.0**-40
"""Head room, far above the rounding of one formula, that keeps a scale on the private side."""


MOST_SUM = 2**52
"""Above every sum of integers that can be released: with its noise it is whole in float64."""


def gaussian_delta(epsilon: float, mu: float) -> float:
    """Smallest delta of a Gaussian release with sensitivity / stddev = mu.

    Parameters
    ----------
    epsilon : float
        In [0, inf).
    mu : float
        Sensitivity over standard deviation, in (0, inf).

    Returns
    -------
    float
        delta in [0, 1].

    Notes
    -----
    dG(eps; mu) = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu).
    In the tail, and for small mu, the two terms agree in most digits; there the derivative
    phi(mu/2 - eps/mu) of dG in mu is integrated from 0, which cancels nothing.
    Source: Balle & Wang 2018, Theorem 8; privacy/README.md, "Gaussian noise".
    """
    if mu < 1.0 or mu / 2.0 - epsilon / mu < -1.0:
        # full_output: no warning where rounding alone keeps it from 1e-11
        density = scipy.integrate.quad(
            lambda s: math.exp(-0.5 * (s / 2.0 - epsilon / s) ** 2),
            0.0,
            mu,
            epsabs=0.0,
            epsrel=1e-11,
            full_output=1,
        )
        return float(density[0]) / math.sqrt(2.0 * math.pi)
    first = scipy.special.log_ndtr(mu / 2.0 - epsilon / mu)
    # e^eps alone overflows for large epsilon; the product does not.
    second = epsilon + scipy.special.log_ndtr(-mu / 2.0 - epsilon / mu)
    return max(0.0, float(np.exp(first) - np.exp(second)))


def gaussian_mu(epsilon: float, delta: float) -> float:
    """Largest mu for which a Gaussian release is (epsilon, delta)-private.

    Parameters
    ----------
    epsilon : float
        In (0, inf).
    delta : float
        In (0, 1).

    Returns
    -------
    float
        mu, rounded towards more noise.

    Raises
    ------
    ValueError
        If an argument is outside its domain.

    Notes
    -----
    Inverse of `gaussian_delta` in mu, which rises with mu.
    Source: Balle & Wang 2018, Algorithm 1; privacy/README.md, "Gaussian noise".
    """
    if not (0.0 < epsilon < math.inf):
        raise ValueError(f"epsilon must be in (0, inf), not {epsilon}")
    if not (0.0 < delta < 1.0):
        raise ValueError(f"delta must be in (0, 1), not {delta}")

    def excess(log_mu: float) -> float:
        value = gaussian_delta(epsilon, math.exp(log_mu))
        return (math.log(value) if value > 0.0 else -1e6) - math.log(delta)

    low, high = math.log(epsilon) - 10.0, math.log(epsilon) + 1.0
    while excess(low) > 0.0:
        low -= 5.0
    while excess(high) < 0.0:
        high += 1.0
    mu = math.exp(scipy.optimize.brentq(excess, low, high, xtol=1e-13))
    # The relative error of gaussian_delta is far below 1e-9.
    while gaussian_delta(epsilon, mu) * (1.0 + 1e-9) > delta:
        mu *= 1.0 - 1e-10
    return mu


def gaussian_share(epsilon: float, delta: float, n_numbers: int) -> float:
    """What is left of mu for the noise of a run, once its sampler has had its part.

    Parameters
    ----------
    epsilon : float
        In (0, inf).
    delta : float
        In (0, 1).
    n_numbers : int
        Noisy numbers of the whole run, >= 1.

    Returns
    -------
    float
        mu(epsilon, delta - `sampler_delta`) - `sampler_mu`.

    Raises
    ------
    GuaranteeError
        If delta or epsilon is too small for so many numbers.

    Notes
    -----
    Source: privacy/README.md, "Gaussian noise" and "The sampler".
    """
    mu = gaussian_mu(epsilon, delta_left(delta, n_numbers))
    return require_share(sampler_mu(n_numbers), mu, "mu")


def delta_left(delta: float, n_numbers: int) -> float:
    """What is left of delta, once the sampler's tail has had its part.

    Parameters
    ----------
    delta : float
        In (0, 1).
    n_numbers : int
        Noisy numbers of the whole run, >= 1.

    Raises
    ------
    GuaranteeError
        If less than half of it were left.

    Notes
    -----
    Source: privacy/README.md, "The sampler".
    """
    taken = sampler_delta(n_numbers)
    if delta < 2.0 * taken:
        raise GuaranteeError(
            f"delta = {delta:.3g} is below {2.0 * taken:.3g}, what the precision of the noise allows for "
            f"{n_numbers:,} noisy numbers: take a larger delta, or delta = 0 with method = bolt-on"
        )
    return delta - taken


def gaussian_stddev(sensitivity: float, epsilon: float, delta: float, n_numbers: int) -> float:
    """Standard deviation per coordinate of Gaussian noise.

    Parameters
    ----------
    sensitivity : float
        L2 sensitivity of the released vector, in [0, inf).
    epsilon : float
        In (0, inf).
    delta : float
        In (0, 1).
    n_numbers : int
        Noisy numbers of the whole run, >= 1.

    Returns
    -------
    float
        sensitivity / `gaussian_share`, rounded up.

    Raises
    ------
    GuaranteeError
        If delta or epsilon is too small for so many numbers.

    Notes
    -----
    Source: Balle & Wang 2018, Theorem 8; privacy/README.md, "Gaussian noise".
    """
    return sensitivity / gaussian_share(epsilon, delta, n_numbers) * _ROUND_UP


def knorm_scale(sensitivity: float, epsilon: float, n_weights: int, releases: int = 1) -> float:
    """Scale of K-norm noise, density proportional to exp(-||z|| / scale), of each of some releases.

    Parameters
    ----------
    sensitivity : float
        L2 sensitivity of a released vector, in [0, inf).
    epsilon : float
        Of all releases together, in (0, inf).
    n_weights : int
        Length of a vector, >= 1.
    releases : int
        Vectors, >= 1.

    Returns
    -------
    float
        releases sensitivity over what `sampler_knorm_epsilon` leaves of epsilon, rounded up.

    Raises
    ------
    ValueError
        If epsilon is outside its domain.
    ResolutionError
        If epsilon is too small for so many numbers.

    Notes
    -----
    Source: Hardt & Talwar 2010; the direction is uniform on the sphere, see
    privacy/README.md, "K-norm noise" and "The sampler".
    """
    if not (0.0 < epsilon < math.inf):
        raise ValueError(f"epsilon must be in (0, inf), not {epsilon}")
    left = require_share(releases * sampler_knorm_epsilon(n_weights), epsilon, "epsilon")
    return releases * sensitivity / left * _ROUND_UP


def smaller_kind(epsilon: float, delta: float, n_weights: int) -> str:
    """The kind of noise that moves a released vector less.

    Parameters
    ----------
    epsilon : float
        In (0, inf).
    delta : float
        In [0, 1).
    n_weights : int
        Length of the vector, >= 1.

    Returns
    -------
    {"gaussian", "k-norm"}
        K-norm where delta is 0, and where it is the smaller one and its own delta fits into delta.

    Notes
    -----
    Source: privacy/README.md, "K-norm noise".
    """
    if delta == 0.0:
        return "k-norm"
    fits = sampler_delta(n_weights) <= delta
    smaller = fits and epsilon / math.sqrt(n_weights + 1) > gaussian_mu(epsilon, delta)
    return "k-norm" if smaller else "gaussian"


def best_mu(epsilon: float, delta: float, n_weights: int, kind: str | None = None) -> float:
    """Sensitivity over the standard deviation of a coordinate.

    Parameters
    ----------
    epsilon : float
        In (0, inf).
    delta : float
        In [0, 1).
    n_weights : int
        Length of the vector, >= 1.
    kind : {"gaussian", "k-norm"} or None
        None: the smaller noise.

    Returns
    -------
    float
        mu(epsilon, delta) for Gaussian noise, epsilon / sqrt(n_weights + 1) for K-norm noise.

    Notes
    -----
    K-norm noise of norm Gamma(d, s) has E||z||^2 = d (d + 1) s^2. Short vectors
    are better off with it although delta > 0. Source: privacy/README.md, "K-norm noise".
    """
    if (kind or smaller_kind(epsilon, delta, n_weights)) == "k-norm":
        return epsilon / math.sqrt(n_weights + 1)
    return gaussian_mu(epsilon, delta)


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
    bound = min(radius, lipschitz * step_sum)
    if lambda_ > 0.0:
        bound = min(bound, lipschitz / lambda_)
    per_step = (
        (6.0 + step_max * lambda_) * bound
        + step_max * (batch_size + 8) * lipschitz
        + step_max * smoothness * (n_weights + 2) * bound
    )
    return steps * _ULP * per_step


@dataclass(frozen=True)
class ReleaseNoise:
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
    """

    kind: str
    scale: float
    sensitivity: float
    calibrated_sensitivity: float
    grid: float
    n_weights: int

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

    def lines(self) -> Sequence[tuple[str, str]]:
        """Headings and texts that describe the noise."""
        return (
            ("Sensitivity", f"{self.sensitivity:.4g} (L2 distance one row can move the model)"),
            (
                "Noise",
                f"{self.kind}, scale {self.scale:.4g}: adds a standard deviation of "
                f"{self.score_stddev:.3g} to the score of a row. Scores of a good model lie a few units "
                "from zero; noise well below 1 costs little.",
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
        return ReleaseNoise(kind, 0.0, 0.0, 0.0, 0.0, n_weights)
    advice = "take fewer passes, a larger batch_size or a smaller radius"
    grid, calibrated = release_room(sensitivity, rounding, n_weights, advice)
    if kind == "gaussian":
        scale = gaussian_stddev(calibrated, epsilon, delta, n_weights)
    else:
        scale = knorm_scale(calibrated, epsilon, n_weights)
    return _resolved(ReleaseNoise(kind, scale, sensitivity, calibrated, grid, n_weights))


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
    noise = ReleaseNoise("gaussian", calibrated / mu * _ROUND_UP, sensitivity, calibrated, grid, n_weights)
    return _resolved(noise)


def _resolved(noise: ReleaseNoise) -> ReleaseNoise:
    """The noise, if the sampler can draw it on its grid."""
    require_resolved(noise.score_stddev, noise.grid)
    return noise


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
    if noise.kind == "gaussian":
        drawn = source.gaussian(noise.n_weights, noise.scale / noise.grid)
    else:
        drawn = source.knorm(noise.n_weights, noise.scale / noise.grid)
    return np.asarray((np.rint(weights / noise.grid) + drawn) * noise.grid, dtype=np.float64)


def calibrate_sum(sensitivity: int, epsilon: float, delta: float, kind: str | None = None) -> ReleaseNoise:
    """Noise for one sum of integers, such as a number of errors.

    Parameters
    ----------
    sensitivity : int
        Most that one unit of privacy moves the sum, >= 1; the same under both relations
        where a row's terms lie in [0, sensitivity].
    epsilon : float
        In (0, inf).
    delta : float
        In [0, 1); in (0, 1) for Gaussian noise.
    kind : {"gaussian", "k-norm"} or None
        None: K-norm noise, here Laplace noise, where delta is 0 or it is the smaller one.

    Returns
    -------
    ReleaseNoise
        With a grid of 1: sums are exact, so nothing is added for rounding.

    Notes
    -----
    Source: privacy/README.md, "Scores and errors".
    """
    kind = kind or smaller_kind(epsilon, delta, 1)
    if kind == "k-norm":
        scale = knorm_scale(sensitivity, epsilon, 1)
    else:
        scale = gaussian_stddev(sensitivity, epsilon, delta, 1)
    return _resolved(ReleaseNoise(kind, scale, sensitivity, sensitivity, 1.0, 1))


def noise_range(noise: ReleaseNoise, confidence: float) -> int:
    """Least whole h that the rounded noise of one sum stays within, -h to h, with a given probability.

    Parameters
    ----------
    noise : ReleaseNoise
        From `calibrate_sum`.
    confidence : float
        In (0, 1).
    """
    if noise.kind == "gaussian":
        quantile = noise.scale * float(scipy.special.ndtri(0.5 + 0.5 * confidence))
    else:
        quantile = -noise.scale * math.log1p(-confidence)
    return max(0, math.ceil(quantile - 0.5))


def release_sum(total: int, noise: ReleaseNoise, source: Noise) -> int:
    """The private sum: noise rounded to a whole number, added.

    Parameters
    ----------
    total : int
        Exact, in (-2^52, 2^52).
    noise : ReleaseNoise
        From `calibrate_sum`.
    source : Noise
        A generator keyed by the operating system, used for this release alone.

    Notes
    -----
    Source: privacy/README.md, "Scores and errors".
    """
    if abs(total) >= MOST_SUM:
        raise ValueError("total must be in (-2^52, 2^52)")
    return int(release(np.array([float(total)]), noise, source)[0])
