# SPDX-License-Identifier: PostgreSQL
"""Likelihood ratio of a unit in one of T batches at random: a mean of T lognormals, from above."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy  # which imports its parts where they are used

from pg_dpml.privacy.accounting.bounds import FloatArray, IntArray
from pg_dpml.privacy.accounting.losses import MOST_LOSS, StepLosses, grid_of

__all__ = ["Ratios", "mean_ratios"]

_BULK = 8.0
"""Points are denser by half where normal scores are less than about this."""

_GROUPS = 64
_ENDS = 8
"""Groups of points, and single points at either end, that the points of a sum are chosen by."""

_KNOTS = 1.0
"""Distance of normal scores at which the quantiles of a sum are looked up."""

_LOSS_ROUNDING = 2.0**-40
"""Above what rounding moves the logarithm of a ratio by: each of at most 34 sums takes less than 2^-49."""

_MASS_ROUNDING = 2.0**-24
"""Above the relative rounding of a probability: each of at most 34 sums has less than 2^22 positive terms."""


@dataclass(frozen=True)
class Ratios:
    """Distribution of a ratio S = P/Q under Q.

    Every convex function of the true ratio has at most the mean that it has by this distribution.

    Attributes
    ----------
    values : ndarray
        Rising; the first is 0 and the last is above all that is likely.
    masses : ndarray
        Probabilities of the values under Q. Under P they are values * masses.
    infinite : float
        Probability under P of ratios above all values.
    """

    values: FloatArray
    masses: FloatArray
    infinite: float

    def losses(self, interval: float, negligible: float, *, removed: bool) -> StepLosses:
        """The privacy loss on a grid: ln S under P of a removed unit, -ln S under Q of an added one.

        A value between two points is split between them such that its mass under both distributions
        stays what it is. The largest losses, of probability `negligible` together, count as infinite.
        Source: privacy/README.md, "Random allocation".

        Raises
        ------
        GridTooLongError
        """
        logs = np.log(self.values[1:-1])
        masses = self.masses[1:-1] * (1.0 + _MASS_ROUNDING)
        if removed:
            losses, infinite = logs + _LOSS_ROUNDING, self.infinite + self.values[-1] * self.masses[-1]
            masses = masses * self.values[1:-1]
        else:
            losses, infinite = -logs[::-1] + _LOSS_ROUNDING, self.masses[0]
            masses = np.concatenate(([self.masses[-1]], masses[::-1]))
            losses = np.concatenate((losses[:1], losses))  # a higher loss than that of the last value
        # Few large losses would decide how a composition is tilted.
        known = int(np.sum(np.cumsum(masses[::-1]) > negligible))
        first, last = grid_of(float(losses[0]), float(losses[max(known - 1, 1)]), interval)
        finite = losses < interval * last
        infinite = infinite + float(masses[~finite].sum())
        losses, masses = np.maximum(losses[finite], interval * first), masses[finite]
        lower = np.minimum(np.floor(losses / interval), last - 1.0)
        above = np.clip(losses - lower * interval, 0.0, interval)
        if removed:
            upper_share = np.expm1(above) / math.expm1(interval)
            to_upper, to_lower = upper_share * np.exp(interval - above), (1.0 - upper_share) * np.exp(-above)
        else:
            to_upper = np.expm1(-above) / math.expm1(-interval)
            to_lower = 1.0 - to_upper
        at = lower.astype(np.int64) - first
        count = last - first + 1
        found = _split(at, masses * to_lower, masses * to_upper, count)
        return StepLosses(interval, first, found, min(infinite * (1.0 + _MASS_ROUNDING), 1.0))


def _split(at: IntArray, to_lower: FloatArray, to_upper: FloatArray, count: int) -> FloatArray:
    """Masses on so many points, of which some go to the points `at` and some to those above them."""
    lower, upper = np.bincount(at, to_lower, count), np.bincount(at + 1, to_upper, count)
    return (lower + upper).astype(np.float64)


def _scores(spacing: float, tail: float) -> FloatArray:
    """Normal scores from -tail to tail, `spacing` apart in the middle and further apart at the ends."""
    count = math.ceil(_BULK * math.asinh(tail / _BULK) / spacing)
    return (
        tail
        / math.sinh(math.asinh(tail / _BULK))
        * np.sinh(np.linspace(-1.0, 1.0, 2 * count + 1) * math.asinh(tail / _BULK))
    )


def _lognormal(multiplier: float, spacing: float, tail: float) -> Ratios:
    """The ratio of one batch: exp(z/s - 1/(2 s^2)), z a standard normal under Q and N(1/s, 1) under P."""
    slope = 1.0 / multiplier
    scores = _scores(spacing, tail)
    middle = len(scores) // 2
    between = np.linspace(0.0, slope, math.ceil(slope / spacing) + 1)
    z = np.concatenate((scores[:middle], between, slope + scores[middle + 1 :]))
    logs = slope * z - 0.5 * slope * slope
    z, logs = z[np.abs(logs) <= MOST_LOSS], logs[np.abs(logs) <= MOST_LOSS]
    values = np.concatenate(([0.0], np.exp(logs)))

    def between_edges(edges: FloatArray) -> FloatArray:
        """Probability of each interval, and of what is above all, from the end where it has more digits."""
        lower, upper = scipy.special.ndtr(edges), scipy.special.ndtr(-edges)
        inner = np.where(edges[1:] <= 0.0, np.diff(lower), -np.diff(upper))
        return np.concatenate((lower[:1], inner, upper[-1:]))

    own, other = between_edges(z - slope), between_edges(z)
    rise = (own[:-1] - other[:-1] * values[:-1]) / np.diff(values)
    rise = np.clip(rise, 0.0, other[:-1])
    masses = np.concatenate((other[:-1] - rise, [0.0]))
    masses[1:] += rise
    masses[-1] += other[-1]
    return Ratios(values, masses, max(float(own[-1] - other[-1] * values[-1]), 0.0))


def _points(first: Ratios, second: Ratios, share: float, scores: FloatArray) -> FloatArray:
    """Values for share S_1 + (1 - share) S_2: quantiles of the mean of P and Q at given normal scores.

    Any values are right; these are where the sum needs them. Groups of points will do to find them.
    """

    def groups(ratios: Ratios) -> tuple[FloatArray, FloatArray]:
        values, masses = ratios.values[1:], ratios.masses[1:]
        inner = np.linspace(_ENDS, max(len(values) - _ENDS, _ENDS), _GROUPS + 1).astype(np.int64)
        starts = np.unique(np.concatenate((np.arange(_ENDS), inner, np.arange(inner[-1], len(values)))))
        sums = np.add.reduceat(masses, starts)
        means = np.add.reduceat(masses * values, starts) / np.maximum(sums, 1e-300)
        return np.where(sums > 1e-300, means, values[starts]), sums

    (one, one_masses), (two, two_masses) = groups(first), groups(second)
    values = (share * one[:, None] + (1.0 - share) * two).ravel()
    order = np.argsort(values)
    values = values[order]
    masses = (one_masses[:, None] * two_masses).ravel()[order] * 0.5 * (1.0 + values)
    below, above = np.cumsum(masses) - 0.5 * masses, np.cumsum(masses[::-1])[::-1] - 0.5 * masses
    with np.errstate(divide="ignore"):
        at = np.where(below < 0.5, scipy.special.ndtri(below), -scipy.special.ndtri(above))
    known = np.isfinite(at)
    at, logs = np.maximum.accumulate(at[known]), np.log(values[known])
    # Few knots, or the groups would draw the points to them.
    knots = np.searchsorted(at, np.arange(at[0], at[-1], _KNOTS))
    knots = np.unique(np.concatenate((knots, [len(at) - 1])))
    at, logs = at[knots], logs[knots]
    most = max(first.values[-1], second.values[-1])
    found = np.unique(np.exp(np.interp(scores, at, logs)))
    return np.concatenate(([0.0], found[found < most], [most]))


@functools.lru_cache(maxsize=8)
def _pairs(count: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Indices of all pairs of so many, without their order."""
    return np.triu_indices(count)


def _mean(first: Ratios, second: Ratios, share: float, scores: FloatArray) -> Ratios:
    """The ratio share S_1 + (1 - share) S_2 of independent ratios, on new values.

    A sum between two values is split between them such that its mean stays what it is.
    """
    values = _points(first, second, share, scores)
    if first is second:
        one, two = _pairs(len(first.values))
        sums = 0.5 * (first.values[one] + first.values[two])
        masses = first.masses[one] * first.masses[two] * np.where(one == two, 1.0, 2.0)
    else:
        sums = (share * first.values[:, None] + (1.0 - share) * second.values).ravel()
        masses = (first.masses[:, None] * second.masses).ravel()
    at: IntArray = np.minimum(np.searchsorted(values, sums, side="right") - 1, len(values) - 2)
    rise = np.clip((sums - values[at]) / np.diff(values)[at], 0.0, 1.0) * masses
    found = _split(at, masses - rise, rise, len(values))
    infinite = share * first.infinite + (1.0 - share) * second.infinite
    return Ratios(values, found, infinite)


@functools.lru_cache(maxsize=32)
def mean_ratios(multiplier: float, batches: int, spacing: float, tail: float) -> Ratios:
    """The ratio of a unit that is in one of T batches at random, with Gaussian noise on each.

    Parameters
    ----------
    multiplier : float
        s, standard deviation of the noise in units of what the unit adds to the batch that it is in.
    batches : int
        T >= 1.
    spacing : float
        Of the values, in standard deviations.
    tail : float
        What lies beyond so many standard deviations may count as infinite.

    Returns
    -------
    Ratios
        S = (1/T) sum_t exp(z_t/s - 1/(2 s^2)), z_t independent standard normals under Q.

    Notes
    -----
    Binary powers: T = 13 is 1, 3 = 2 1 + 1, 6 = 2 3, 13 = 2 6 + 1 batches.
    Source: privacy/README.md, "Random allocation".
    """
    one = found = _lognormal(multiplier, spacing, tail)
    scores = _scores(spacing, tail)
    have = 1
    for bit in f"{batches:b}"[1:]:
        found, have = _mean(found, found, 0.5, scores), 2 * have
        if bit == "1":
            found, have = _mean(found, one, have / (have + 1), scores), have + 1
    return found
