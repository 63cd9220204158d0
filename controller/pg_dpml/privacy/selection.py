# SPDX-License-Identifier: PostgreSQL
"""Choosing one of several candidates by the exponential mechanism, without a rounding error."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from decimal import Context, Decimal, localcontext
from fractions import Fraction

import numpy as np

from pg_dpml.kernels import FloatArray
from pg_dpml.spec.relation import Relation

__all__ = ["choose", "score_spread", "signed_spread"]

DIGITS = 36
"""Binary digits by which candidates are drawn before it is looked at more closely: the sum of 2^26 heights
stays below 2^63, and float64 has an exponential to 2^-45."""

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


def signed_spread(most: Fraction, relation: Relation, rounding: Fraction = Fraction(0)) -> Fraction:
    """How far the difference of two candidates' errors moves, where a unit adds any number of [-most, most].

    Parameters
    ----------
    most : Fraction
        > 0; a zero row must add 0 to every candidate's error.
    relation : Relation
    rounding : Fraction
        As of `score_spread`.

    Returns
    -------
    Fraction
        4 most under `REPLACE_ONE`; 2 most under `ADD_REMOVE`; and 4 rounding.

    Notes
    -----
    Source: privacy/README.md, "Frank-Wolfe".
    """
    return score_spread(2 * most, relation, rounding)


def choose(
    errors: Sequence[int | float | Fraction] | FloatArray,
    spread: Fraction,
    epsilon: float,
    uniform: RandBelow = secrets.randbelow,
) -> int:
    """Choose a candidate with probability proportional to exp(-epsilon errors / spread).

    Parameters
    ----------
    errors : sequence of int, float or Fraction, or ndarray
        Of each candidate, finite; fewer are better. At most 2^26 candidates.
    spread : Fraction
        From `score_spread` or `signed_spread`, > 0.
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
    (McSherry & Talwar 2007), without a rounding error: a Gumbel variable of one float64 uniform misses the
    tails, which can cost a delta above 1 / n^2 of a large table.
    Source: privacy/README.md, "Private tuning".
    """
    rate = Fraction(epsilon) / spread
    values = np.asarray(errors)
    best = int(np.argmin(values))
    excess = np.asarray(values - values[best], dtype=np.float64)
    # exp(-rate excess) in units of 2^-DIGITS, at most 2 too high
    heights = np.floor(np.exp(-float(rate) * excess) * 2.0**DIGITS).astype(np.int64) + 2
    ends = np.cumsum(heights)
    while True:
        drawn = uniform(int(ends[-1]))
        i = int(np.searchsorted(ends, drawn, side="right"))
        place = drawn - int(ends[i] - heights[i])
        gamma = rate * (Fraction(values.item(i)) - Fraction(values.item(best)))
        if _is_below(place, gamma, uniform):
            return i


def _is_below(place: int, gamma: Fraction, uniform: RandBelow) -> bool:
    """Whether a uniform number of [place, place + 1) 2^-DIGITS lies below exp(-gamma), gamma >= 0.

    As many digits of both are known as it takes to see it.
    """
    digits = DIGITS
    while True:
        low, high = _exp_bounds(gamma, digits)
        if place + 1 <= low:
            return True
        if place >= high:
            return False
        place = (place << DIGITS) + uniform(1 << DIGITS)
        digits += DIGITS


def _exp_bounds(gamma: Fraction, digits: int) -> tuple[int, int]:
    """Whole numbers that 2^digits exp(-gamma) lies between, at most 3 apart.

    With as many decimal digits, the error of quotient, exponential (which is correctly rounded) and product
    is far below 1.
    """
    if gamma > digits:
        return 0, 1
    with localcontext(Context(prec=digits)) as context:
        value = context.exp(context.divide(Decimal(-gamma.numerator), Decimal(gamma.denominator)))
        whole = int(value * 2**digits)
    return whole - 1, whole + 2
