# SPDX-License-Identifier: PostgreSQL
"""Composition of privacy losses on a grid, by Fourier transform: epsilon, and mu of a whole curve."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import scipy  # which imports its parts where they are used

from pg_dpml.privacy.accounting.bounds import ROUND_UP, FloatArray, IntArray
from pg_dpml.privacy.accounting.losses import GridTooLongError, Losses, StepLosses
from pg_dpml.spec.relation import Relation

__all__ = [
    "pld_epsilon",
    "pld_mu",
]


_MOST_POINTS = 2**20
"""Longest grid of the losses of all steps: about 0.3 seconds a composition."""

_NEGLIGIBLE = {Relation.ADD_REMOVE: 1e-7, Relation.REPLACE_ONE: 1e-16}
"""Share of delta that losses counted as infinite have; `_replaced` multiplies it by about e^(epsilon / 2)."""

_LOST = 1e-7
"""Share of a tilted composition that may lie outside its window, and is added to delta."""

_FEW_STEPS = 64
_MOST_WHOLE = 2**18
"""Of so many steps all losses are kept, if they fit a window of that length."""

_LOWER_ORDERS = (1.0, 0.5, 0.25, 0.0)
"""Shares of the order that a composition in such a window is tilted by; the least of their bounds counts."""

_SPLITS = 64
"""Ways to split epsilon between a unit that is removed and one that is added; twice again about the best. And
parts that a bracket of a crossing is cut into."""

_NEXT_QUANTILE = 6.0
"""Distance of the compositions of a whole curve, in standard deviations of a Gaussian."""

_CURVE_POINTS = 3001
"""At which a Gaussian is compared with a whole curve."""

_ERROR = 1e-12
"""Above the relative error of a normal distribution's tail."""


@dataclass(frozen=True)
class Tilted:
    """Bounds on delta of finite losses, times exp(order * loss - scale), from `low` times `interval` upwards.

    There may be a million of them, and logarithms are asked for at a few thousand places.
    """

    interval: float
    low: int
    deltas: FloatArray
    order: float
    scale: float

    @property
    def high(self) -> int:
        """Last multiple that `deltas` knows of."""
        return self.low + len(self.deltas) - 1

    def logs_at(self, places: IntArray) -> FloatArray:
        """Bounds on the logarithm of delta for every epsilon = place times interval."""
        inside = np.minimum(np.maximum(places, self.low), self.high)
        logs = np.log(self.deltas[inside - self.low])
        return np.where(places < self.low, 0.0, self.scale - self.order * self.interval * inside + logs)


@dataclass(frozen=True)
class Curve:
    """Upper bounds on delta of all steps together, the least of some, at multiples of `interval`.

    From the multiple `top` on, which no finite loss exceeds, delta is `infinite`.
    """

    interval: float
    parts: tuple[Tilted, ...]
    top: int
    infinite: float

    @property
    def low(self) -> int:
        """First multiple that is known of; delta is 1 below."""
        return min(part.low for part in self.parts)

    @property
    def high(self) -> int:
        """Last multiple that is known of."""
        return max(part.high for part in self.parts)

    def at(self, places: IntArray) -> FloatArray:
        """For every epsilon = place times interval."""
        with np.errstate(divide="ignore"):
            logs = self.parts[0].logs_at(places)
            for part in self.parts[1:]:
                logs = np.minimum(logs, part.logs_at(places))
        finite = np.minimum(1.0, self.infinite + np.exp(np.minimum(logs, 0.0)))
        return np.where(places >= self.top, self.infinite, np.where(places < self.low, 1.0, finite))


def _tilt(logs: FloatArray, losses: FloatArray, order: float) -> tuple[FloatArray, float]:
    """Masses times exp(order * loss), brought to sum 1, and the logarithm of their sum before."""
    exponents = logs + order * losses
    most = float(exponents.max())
    weights = np.exp(exponents - most)
    total = float(weights.sum())
    return weights / total, most + math.log(total)


def _order(step: StepLosses, steps: int, delta: float, *, weighted: bool) -> float:
    """Order that centres the tilted composition of so many steps where delta(epsilon) is near a given delta.

    With `weighted`, where e^epsilon delta(epsilon) is.
    """
    # It is a choice, for which blocks of losses at their means will do.
    logs, means = step.blocks

    def excess(order: float) -> float:
        """Log of Chernoff's bound on delta at the mean of the tilted composition, less log delta."""
        weights, scale = _tilt(logs, means, order)
        mean = float(weights @ means)
        bound = steps * (scale - order * mean)
        if weighted:
            bound += max(steps * mean, 0.0)
        return bound - math.log(delta)

    below, order = 0.0, 1.0
    while (unmet := excess(order) > 0.0) and order < 1e9:
        below, order = order, 1.3 * order
    return order if unmet else float(scipy.optimize.brentq(excess, below, order, rtol=1e-6))


def _window(step: StepLosses, steps: int, order: float) -> tuple[int, int]:
    """First multiple and length of a window outside which at most 2 _LOST of a tilted composition lies.

    Raises
    ------
    GridTooLongError
    """
    h, losses = step.interval, step.losses
    weights, scale = _tilt(step.logs, losses, order)
    mean = float(weights @ losses)
    centre = steps * mean
    stddev = math.sqrt(steps * float(weights @ (losses - mean) ** 2) + h * h)

    def reach(sign: int) -> float:
        """Distance from the centre beyond which less than _LOST of the tilted composition lies."""

        def bounds(logs: FloatArray, at: FloatArray, rates: FloatArray) -> FloatArray:
            growths = np.array([_tilt(logs, at, order + rate)[1] for rate in rates]) - scale
            found: FloatArray = sign * ((steps * growths - math.log(_LOST)) / rates - centre)
            return found

        rates = sign * np.geomspace(0.01, 20.0, 20) / stddev
        best = int(np.argmin(bounds(*step.blocks, rates)))
        return float(np.min(bounds(step.logs, losses, rates[max(best - 1, 0) : best + 2])))

    low = math.floor((centre - reach(-1)) / h)
    length = math.ceil((centre + reach(1)) / h) - low + 2
    if length > _MOST_POINTS:
        raise GridTooLongError(length / _MOST_POINTS)
    return low, length


def _compose(step: StepLosses, steps: int, delta: float, *, weighted: bool = False) -> Curve:
    """T-fold convolution of one step's loss, exact where delta(epsilon) is near a given delta.

    With `weighted`, where e^epsilon delta(epsilon) is.

    Notes
    -----
    A plain fast Fourier transform has an absolute error near T 2^-53, above the delta of interest from
    about a million rows on. So the step is multiplied by exp(order * loss) first, which moves the bulk of the
    composition to the losses that matter, and the result is divided by it again: the error is then relative
    to delta. What a window of finite length loses is bounded by Chernoff's inequality and added. Where a
    window can hold all losses of few steps nothing is lost, and lower orders are tried too: a few large
    losses (of a unit that is in one batch of many) draw Chernoff's bound to themselves.
    Source: Koskela & Honkela 2021 (Fourier accountant), Gopi, Lee & Wutschitz 2021 (windows);
    privacy/README.md, "Subsampled Gaussian noise".
    """
    if steps == 1:
        return _untilted(step, 1, step.first, step.masses, 0.0, 0.0, 0.0)
    order = _order(step, steps, delta, weighted=weighted)
    whole = steps * (len(step.masses) - 1) + 1
    if steps > _FEW_STEPS or whole > _MOST_WHOLE:
        return _convolve(step, steps, order, *_window(step, steps, order), 2.0 * _LOST)
    curves = [
        _convolve(step, steps, share * order, steps * step.first, whole, 0.0) for share in _LOWER_ORDERS
    ]
    parts = [replace(part, deltas=part.deltas[:whole]) for curve in curves for part in curve.parts]
    return replace(curves[0], parts=tuple(parts))


def _convolve(step: StepLosses, steps: int, order: float, low: int, length: int, lost: float) -> Curve:
    """T-fold convolution, tilted by an order, in a window outside which `lost` of it lies."""
    weights, scale = _tilt(step.logs, step.losses, order)
    length = scipy.fft.next_fast_len(length, real=True)
    if len(weights) > length:
        weights = np.bincount(np.arange(len(weights)) % length, weights).astype(np.float64)
    spectrum = scipy.fft.rfft(weights, length)
    # Of most frequencies nothing is left, and a power of a complex number is slow.
    left = spectrum.real**2 + spectrum.imag**2 > math.exp(-100.0 / steps)
    spectrum[left] **= steps
    spectrum[~left] = 0.0
    composed = scipy.fft.irfft(spectrum, length)
    composed = np.roll(composed, (steps * step.first - low) % length)
    return _untilted(step, steps, low, composed, order, steps * scale, lost + steps * 2.0**-48)


def _untilted(
    step: StepLosses, steps: int, low: int, composed: FloatArray, order: float, scale: float, lost: float
) -> Curve:
    """The curve of a composition times exp(order * loss - scale), of which `lost` may be missing."""
    h = step.interval
    # tails[i] is the sum of tilted[j] exp(-order (j - i) h) over j > i, deltas[i] the same with a factor
    # 1 - exp(-(j - i) h): recursions of positive terms, from the last to the first.
    kept = math.exp(-order * h)
    tails = scipy.signal.lfilter([0.0, kept], [1.0, -kept], np.maximum(composed[::-1], 0.0))
    deltas = scipy.signal.lfilter([-math.expm1(-h)], [1.0, -kept * math.exp(-h)], tails)[::-1]
    part = Tilted(h, low, deltas * ROUND_UP + lost, order, scale)
    return Curve(h, (part,), steps * step.last, step.infinite_of(steps))


def _replaced(removed: Curve, added: Curve, places: IntArray) -> FloatArray:
    """Upper bounds on delta of a unit that is removed and another that is added, as `Curve.at`.

    Notes
    -----
    The least of removed(e) + exp(e) added(epsilon - e) over many e; the first term falls and the second
    rises, and each sum is a bound.
    Source: privacy/README.md, "Subsampled Gaussian noise".
    """
    whole = places[:, None]
    first = np.full_like(whole, removed.low)
    last = np.clip(whole - added.low, removed.low, removed.high)
    # And where no finite loss of one of them is left.
    splits = np.hstack([np.full_like(whole, removed.top), whole - added.top, _between(first, last)])
    best = np.ones((len(places), 1))
    for _ in range(3):
        growth = np.exp(np.minimum(splits * removed.interval, 700.0))
        bounds = removed.at(splits) + growth * added.at(whole - splits)
        least = np.argmin(bounds, axis=1)[:, None]
        best = np.minimum(best, np.take_along_axis(bounds, least, axis=1))
        middle = np.take_along_axis(splits, least, axis=1)
        reach = (splits[:, -1:] - splits[:, -2:-1]) + 1
        splits = _between(middle - reach, middle + reach)
    return best[:, 0]


def _between(first: IntArray, last: IntArray) -> IntArray:
    """_SPLITS + 1 whole numbers from each `first` to its `last`."""
    return first + (last - first) * np.arange(_SPLITS + 1) // _SPLITS


def _crossing(bounds: Callable[[IntArray], FloatArray], interval: float, most: int, delta: float) -> float:
    """Least epsilon, up to the multiple `most`, at which a falling curve is at most delta; or infinity.

    Between two points of the grid the curve, which is convex in exp(epsilon), lies below its chord.
    """
    places = np.array([0, most])
    found = bounds(places)
    if found[0] <= delta:
        return 0.0
    if found[-1] > delta:
        return math.inf
    while True:
        first = int(np.argmax(found <= delta))
        low, high = int(places[first - 1]), int(places[first])
        if high - low == 1:
            break
        places = _between(np.array(low), np.array(high))
        found = bounds(places)
    above, below = float(found[first - 1]), float(found[first])
    share = (above - delta) / (above - below)
    return interval * low + math.log1p(share * math.expm1(interval))


def pld_epsilon(
    losses: Losses,
    steps: int,
    delta: float,
    relation: Relation,
    interval: float,
    directions: tuple[bool, ...] = (True, False),
) -> float:
    """Epsilon by privacy loss distributions on one grid, of a unit removed, added or both."""
    replaced = relation is Relation.REPLACE_ONE
    tail = -float(scipy.special.ndtri(delta * _NEGLIGIBLE[relation] / steps))
    curves = []
    for removed in directions:
        step = losses(interval, tail, removed)
        curves.append(_compose(step, steps, delta, weighted=replaced and not removed))
    if replaced:
        one, other = curves[0], curves[-1]
        return _crossing(partial(_replaced, one, other), interval, max(one.top + other.top, 0), delta)
    return max(_crossing(curve.at, interval, max(curve.top, 0), delta) for curve in curves)


def _whole_curve(losses: Losses, steps: int, spare: float, interval: float, *, removed: bool) -> Curve:
    """Bounds on delta from 1 down to `spare`: the least of some compositions, each exact on a part."""
    tail = -float(scipy.special.ndtri(spare * _NEGLIGIBLE[Relation.REPLACE_ONE] / steps))
    step = losses(interval, tail, removed)
    # exp(-z^2/2) bounds a normal distribution's tail, and a composition is exact to about z +- 4.
    last = math.sqrt(-2.0 * math.log(spare))
    quantiles = np.linspace(0.1, last, math.ceil(last / _NEXT_QUANTILE) + 1)
    curves = [_compose(step, steps, float(delta)) for delta in np.exp(-0.5 * quantiles**2)]
    return replace(curves[0], parts=tuple(part for curve in curves for part in curve.parts))


def pld_mu(
    losses: Losses, steps: int, spare: float, relation: Relation, most: float, interval: float
) -> float:
    """Mu, at most `most`, by privacy loss distributions on one grid; infinity where none is found."""
    removed, added = (
        _whole_curve(losses, steps, spare, interval, removed=removed) for removed in (True, False)
    )
    if relation is Relation.REPLACE_ONE:
        bounds: Callable[[IntArray], FloatArray] = partial(_replaced, removed, added)
    else:

        def bounds(places: IntArray) -> FloatArray:
            return np.maximum(removed.at(places), added.at(places))

    end = _crossing(bounds, interval, max(removed.top + added.top, 0), spare)
    if not math.isfinite(end):
        return math.inf
    places = np.unique(np.linspace(0, math.ceil(end / interval) + 1, _CURVE_POINTS).astype(np.int64))
    epsilons, deltas = interval * places, bounds(places)
    middles = 0.5 * (epsilons[1:] + epsilons[:-1])

    def dominates(mu: float) -> bool:
        """Whether a test of Gaussians with its threshold in the middle is above, at both ends."""
        own, other = (
            scipy.special.log_ndtr(0.5 * mu - middles / mu),
            scipy.special.log_ndtr(-0.5 * mu - middles / mu),
        )
        return all(
            np.all(
                deltas[ends]
                <= spare + (1.0 - spare) * (np.exp(own) * (1.0 - _ERROR) - np.exp(epsilons[ends] + other))
            )
            for ends in (slice(0, -1), slice(1, None))
        )

    low, high = 0.0, most
    if not dominates(high):
        return math.inf
    while high - low > 1e-4 * high:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if dominates(middle) else (middle, high)
    return high
