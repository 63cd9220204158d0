# SPDX-License-Identifier: PostgreSQL
"""Gaussian noise: exact curve, mu of (epsilon, delta), standard deviation."""

from __future__ import annotations

import functools
import math

import numpy as np
import scipy  # which imports its parts where they are used

from pg_dpml.errors import GuaranteeError
from pg_dpml.privacy.resolution import (
    require_share,
    sampler_delta,
    sampler_mu,
)

__all__ = [
    "ROUND_UP",
    "delta_left",
    "gaussian_delta",
    "gaussian_mu",
    "gaussian_share",
    "gaussian_stddev",
]

ROUND_UP = 1.0 + 2.0**-40
"""Head room, far above the rounding of one formula, that keeps a scale on the private side."""


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


@functools.lru_cache(maxsize=1024)
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
    # gaussian_delta is too small by a relative error of far less than 1e-9; it may be too large by more.
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
            f"{n_numbers:,} noisy {'number' if n_numbers == 1 else 'numbers'}: take a larger delta, or delta "
            "= 0 with method = bolt-on"
        )
    return delta - taken


def gaussian_stddev(sensitivity: float, mu: float) -> float:
    """Standard deviation per coordinate of Gaussian noise.

    Parameters
    ----------
    sensitivity : float
        L2 sensitivity of the released vector, in [0, inf).
    mu : float
        In (0, inf), as `gaussian_share` gives it.

    Returns
    -------
    float
        sensitivity / mu, rounded up.

    Notes
    -----
    Source: Balle & Wang 2018, Theorem 8; privacy/README.md, "Gaussian noise".
    """
    return sensitivity / mu * ROUND_UP
