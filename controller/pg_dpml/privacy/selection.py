# SPDX-License-Identifier: PostgreSQL
"""Choosing one of several candidates by the exponential mechanism, without a rounding error."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from fractions import Fraction

from pg_dpml.spec.relation import Relation

__all__ = ["choose", "score_spread"]

RandBelow = Callable[[int], int]
"""A uniform whole number in [0, argument)."""


def score_spread(most: int | Fraction, relation: Relation, rounding: Fraction = Fraction(0)) -> Fraction:
    """How far the difference of two candidates' errors moves between neighbouring tables.

    Parameters
    ----------
    most : int or Fraction
        Most that one unit of privacy adds to a candidate's errors, and 0 the least, > 0;
        a zero row must add the same to every candidate's.
    relation : Relation
    rounding : Fraction
        Bound on how far one table's sum of errors is from the exact one.

    Returns
    -------
    Fraction
        2 most under `REPLACE_ONE`; most under `ADD_REMOVE`, where all errors move the
        same way; and 4 rounding.

    Notes
    -----
    Source: privacy/README.md, "Private tuning" and "Adaptive gradient descent".
    """
    return (2 if relation is Relation.REPLACE_ONE else 1) * most + 4 * rounding


def choose(
    errors: Sequence[int | float | Fraction],
    spread: Fraction,
    epsilon: float,
    uniform: RandBelow = secrets.randbelow,
) -> int:
    """Choose a candidate with probability proportional to exp(-epsilon errors / spread).

    Parameters
    ----------
    errors : sequence of int, float or Fraction
        Of each candidate, finite; fewer are better.
    spread : Fraction
        From `score_spread`, > 0.
    epsilon : float
        In (0, inf).
    uniform : callable
        Another source of random numbers; for tests only.

    Returns
    -------
    int
        Place of the candidate. The choice is epsilon-differentially private.

    Notes
    -----
    The distribution of the least of errors epsilon / spread - G, G standard Gumbel noise
    (McSherry & Talwar 2007), drawn by rejection with exact rational coins: a Gumbel
    variable of one float64 uniform misses the tails, which can cost a delta
    above 1 / n^2 of a large table.
    Source: privacy/README.md, "Private tuning".
    """
    rate = Fraction(epsilon) / spread
    exact = [Fraction(error) for error in errors]
    best = min(exact)
    while True:
        i = uniform(len(exact))
        if _decayed(rate * (exact[i] - best), uniform):
            return i


def _decayed(gamma: Fraction, uniform: RandBelow) -> bool:
    """A coin that shows heads with probability exp(-gamma) exactly, gamma >= 0.

    Source: Canonne, Kamath & Steinke 2020, Algorithm 1.
    """
    while gamma > 1:
        if not _decayed(Fraction(1), uniform):
            return False
        gamma -= 1
    k = 1
    while uniform(gamma.denominator * k) < gamma.numerator:
        k += 1
    return k % 2 == 1
