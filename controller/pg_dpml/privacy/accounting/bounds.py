# SPDX-License-Identifier: PostgreSQL
"""Closed-form bounds on epsilon: every unit in every batch, and Renyi differential privacy."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import scipy  # which imports its parts where they are used

from pg_dpml.privacy.gaussian import gaussian_delta
from pg_dpml.spec.relation import Relation

__all__ = [
    "ROUND_UP",
    "FloatArray",
    "IntArray",
    "exact_epsilon",
    "exact_mu",
    "exact_needs_more",
    "rdp_epsilon",
]


FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

ROUND_UP = 1.0 + 2.0**-28

_RDP_ORDERS = (*range(2, 65), *(2**i for i in range(7, 15)))


def least_epsilon(bound: Callable[[float], float], most: float, delta: float) -> float:
    """Least epsilon up to `most` at which a falling bound is at most delta, from above, or infinity."""

    def excess(epsilon: float) -> float:
        return math.log(bound(epsilon) or 1e-320) - math.log(delta)

    if excess(0.0) <= 0.0:
        return 0.0
    if excess(most) > 0.0:
        return math.inf
    epsilon = float(scipy.optimize.brentq(excess, 0.0, most, rtol=1e-12, xtol=1e-300))
    while excess(epsilon) > 0.0:
        epsilon *= 1.0 + 1e-11
    return epsilon


@functools.cache
def _log_binomials(order: int) -> FloatArray:
    """Logarithms of the binomial coefficients C(order, k) for k >= 2."""
    factorials = scipy.special.gammaln(np.arange(order + 1) + 1.0)
    found: FloatArray = factorials[order] - factorials[2:] - factorials[order - 2 :: -1]
    return found


def rdp_epsilon(multiplier: float, q: float, steps: int, delta: float, relation: Relation) -> float:
    """Epsilon by Renyi differential privacy at integer orders.

    Notes
    -----
    exp((a - 1) RDP(a)) = 1 + sum_{k >= 2} C(a, k) (1 - q)^(a - k) q^k (exp((k^2 - k) / (2 s^2)) - 1), which
    bounds both directions; without the 1 no digit is lost where RDP is tiny. Source: Mironov, Talwar & Zhang
    2019, Section 3.3; the conversion is Canonne, Kamath & Steinke 2020, Proposition 12;
    privacy/README.md, "Subsampled Gaussian noise".
    """
    costs = []
    for order in _RDP_ORDERS:
        k = np.arange(2, order + 1)
        exponents = (k * k - k) / (2.0 * multiplier**2)
        logs = _log_binomials(order) + ((order - k) * math.log1p(-q) + k * math.log(q))
        logs += exponents + np.log(-np.expm1(-exponents))
        costs.append(steps * float(np.logaddexp(0.0, scipy.special.logsumexp(logs))) * ROUND_UP)
    less = np.array(_RDP_ORDERS, dtype=np.float64) - 1.0
    at_zero = np.array(costs) - np.log1p(less) + less * np.log1p(-1.0 / (less + 1.0))

    def least_deltas(epsilons: FloatArray) -> FloatArray:
        exponents = np.min(at_zero - np.multiply.outer(epsilons, less), axis=1)
        found: FloatArray = np.exp(np.minimum(exponents, 0.0))
        return found

    def bound(epsilon: float) -> float:
        if relation is Relation.ADD_REMOVE:
            return float(least_deltas(np.array([epsilon]))[0])
        # For these splits both terms fall with epsilon, at any order, where they are below 1.
        splits = epsilon * np.linspace(0.25, 0.5, 26)
        return float(np.min(least_deltas(splits) + np.exp(splits) * least_deltas(epsilon - splits)))

    return least_epsilon(bound, 600.0, delta)


def exact_mu(multiplier: float, steps: int, relation: Relation) -> float:
    """Mu with every unit in every batch, which sampling cannot make worse."""
    return math.sqrt(steps) * relation.gradient_change(1.0) / multiplier


def exact_needs_more(epsilon: float, multiplier: float, steps: int, delta: float, relation: Relation) -> bool:
    """Whether `exact_epsilon` is above an epsilon for certain, which is known sooner than what it is."""
    mu = exact_mu(multiplier, steps, relation)
    return math.isfinite(epsilon) and gaussian_delta(epsilon, mu) > delta * (1.0 + 1e-8)


def exact_epsilon(multiplier: float, steps: int, delta: float, relation: Relation) -> float:
    """Epsilon with every unit in every batch."""
    mu = exact_mu(multiplier, steps, relation)
    high = mu * (0.5 * mu + 10.0)
    while gaussian_delta(high, mu) > delta:
        high *= 2.0
    return least_epsilon(lambda epsilon: gaussian_delta(epsilon, mu), high, delta)
