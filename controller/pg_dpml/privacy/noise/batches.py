# SPDX-License-Identifier: PostgreSQL
"""Batches as noise has to know them: how many units they have, how their sums round, what coins add."""

from __future__ import annotations

import math

__all__ = ["accounted_sampling", "largest_batch", "sum_rounding"]

_ULP = 2.0**-52


def sum_rounding(rows: float, row_bound: float) -> float:
    """Rounding of two plain sums of so many vectors. Source: privacy/README.md, "Noise inside a pass"."""
    return _ULP * rows * (rows + 8.0) * row_bound


def largest_batch(n_units: int, sampling: float, probability: float) -> int:
    """A number of units that one Poisson batch exceeds with at most a given probability.

    Parameters
    ----------
    n_units : int
    sampling : float
        In (0, 1].
    probability : float
        In (0, 1).

    Notes
    -----
    Bernstein's inequality: q n + x, x = l/3 + sqrt(l^2/9 + 2 l q n), l = ln(1/probability).
    Source: privacy/README.md, "Noise inside a pass".
    """
    mean, log = sampling * n_units, -math.log(probability)
    return min(n_units, math.ceil(mean + log / 3.0 + math.sqrt(log * log / 9.0 + 2.0 * log * mean)))


def accounted_sampling(sampling: float, n_units: int, steps: int) -> float:
    """Probability with head room for the rounding of coins. Source: privacy/README.md, "Poisson batches"."""
    return min(1.0, sampling * (1.0 + max(2.0**-20, 2.0**-50 * max(n_units, steps))))
