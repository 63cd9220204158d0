# SPDX-License-Identifier: PostgreSQL
"""What an attacker who saw numbers of two neighbouring tables can be sure of, by Clopper-Pearson bounds."""

from __future__ import annotations

import math

import numpy as np
from scipy import stats
from scipy.optimize import brentq

from pg_dpml.kernels import FloatArray
from pg_dpml.privacy import gaussian

__all__ = ["bounds", "shown_delta", "shown_epsilon"]


def bounds(hits: int, runs: int, failure: float = 1e-3) -> tuple[float, float]:
    """Clopper-Pearson bounds, each of which fails with a given probability."""
    low = 0.0 if hits == 0 else float(stats.beta.ppf(failure, hits, runs - hits + 1))
    high = 1.0 if hits == runs else float(stats.beta.isf(failure, hits + 1, runs - hits))
    return low, high


def shown_epsilon(found: FloatArray, other: FloatArray, delta: float) -> float:
    """Least epsilon that an attacker who saw these numbers of both tables can be sure of."""
    threshold = 0.5 * float(np.mean(found) + np.mean(other))
    sign = 1.0 if np.mean(found) > threshold else -1.0
    right, _ = bounds(int(np.sum(sign * (found - threshold) > 0.0)), len(found))
    _, wrong = bounds(int(np.sum(sign * (other - threshold) > 0.0)), len(other))
    mu = float(stats.norm.ppf(right) - stats.norm.ppf(wrong))
    if mu <= 0.0:
        return 0.0
    if delta == 0.0:
        return max(0.0, math.log(right / wrong))
    if gaussian.gaussian_delta(0.0, mu) <= delta:
        return 0.0
    return float(brentq(lambda epsilon: gaussian.gaussian_delta(epsilon, mu) - delta, 0.0, 50.0))


def shown_delta(found: FloatArray, other: FloatArray, thresholds: FloatArray, epsilon: float) -> float:
    """Largest delta that two tables' numbers show: P(beyond t) - e^epsilon Q(beyond t), both ways round.

    The thresholds do not depend on the numbers. Each of the four bounds at one fails with probability 1e-9.
    """
    shown = -math.inf
    for one, two in ((found, other), (-other, -found)):
        for threshold in thresholds if one is found else -thresholds:
            right, _ = bounds(int(np.sum(one > threshold)), len(one), 1e-9)
            _, wrong = bounds(int(np.sum(two > threshold)), len(two), 1e-9)
            shown = max(shown, right - math.exp(epsilon) * wrong)
    return shown
