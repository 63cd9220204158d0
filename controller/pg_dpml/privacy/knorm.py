# SPDX-License-Identifier: PostgreSQL
"""K-norm noise of pure differential privacy, and which of two kinds of noise is smaller."""

from __future__ import annotations

import math

from pg_dpml.privacy.gaussian import ROUND_UP, gaussian_mu
from pg_dpml.privacy.resolution import (
    require_share,
    sampler_delta,
    sampler_knorm_epsilon,
)

__all__ = [
    "best_mu",
    "knorm_scale",
    "smaller_kind",
]


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
    return releases * sensitivity / left * ROUND_UP


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
