# SPDX-License-Identifier: PostgreSQL
"""What steps on Poisson batches with Gaussian noise cost, and the noise that a given cost allows.

Every multiplier is a standard deviation of the noise on a *sum* of gradients in units of L, the bound on the
norm of one unit's share: the noise is `multiplier` times L under both relations. All is computed from public
numbers; nothing is kept or drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import numpy.typing as npt
import scipy  # which imports its parts where they are used

from pg_dpml.privacy.mechanisms import gaussian_delta, gaussian_mu
from pg_dpml.spec.relation import Relation

__all__ = [
    "Accounted",
    "advanced_multiplier",
    "published_bst14_multiplier",
    "subsampled_gaussian_epsilon",
    "subsampled_gaussian_mu",
    "subsampled_gaussian_multiplier",
]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Accountant = Literal["exact", "pld", "rdp"]

_ROUND_UP = 1.0 + 2.0**-28

_FIRST_INTERVAL = 1.0 / 4.0
"""First grid of losses, in standard deviations of one step's loss."""

_MOST_COARSENED = 1000.0
"""A grid that would have to be coarser by more than this says nothing of use."""

_CONVERGED = 0.0025
"""The grid is halved until epsilon moves by less than this share."""

_MOST_STEP_POINTS = 2**17
_MOST_POINTS = 2**20
"""Longest grids of losses, of one step and of all: about 0.3 seconds a composition."""

_MOST_LOSS = 600.0
"""exp of it is a finite number; a larger loss of one step counts as infinite."""

_NEGLIGIBLE = {Relation.ADD_REMOVE: 1e-7, Relation.REPLACE_ONE: 1e-16}
"""Share of delta that losses counted as infinite have; `_replaced` multiplies it by about e^(epsilon / 2)."""

_LOST = 1e-7
"""Share of a tilted composition that may lie outside its window, and is added to delta."""

_SPLITS = 64
"""Ways to split epsilon between a unit that is removed and one that is added; twice again about the best."""

_NEXT_QUANTILE = 6.0
"""Distance of the compositions of a whole curve, in standard deviations of a Gaussian."""

_CURVE_POINTS = 3001
"""At which a Gaussian is compared with a whole curve."""

_MU_INTERVAL = 0.25
"""Grid of a whole curve, in units of the first grid of losses: mu moves by less than 0.1 % on a finer one."""

_ERROR = 1e-12
"""Above the relative error of a normal distribution's tail."""

_SLACK = 0.004
"""A multiplier is found if its epsilon lies within this share below the one asked for."""

_LEAST_MULTIPLIER = 1.0 / 32.0
"""Where delta alone would nearly allow releasing a few steps without noise."""

_RDP_ORDERS = (*range(2, 65), *(2**i for i in range(7, 15)))


@dataclass(frozen=True)
class Accounted:
    """A noise multiplier and what it costs.

    Attributes
    ----------
    noise_multiplier : float
        Standard deviation of the noise on a sum of gradients, in units of L.
    epsilon : float
        Recomputed for `noise_multiplier`, at most the epsilon asked for.
    accountant : {"exact", "pld", "rdp"}
        "exact" where every unit is in every batch, or where sampling helps so little that this bound is the
        smaller one; "rdp" where a privacy loss distribution would need too long a grid.
    discretization : float
        Spacing of the grid of privacy losses; 0 unless the accountant is "pld".
    """

    noise_multiplier: float
    epsilon: float
    accountant: Accountant
    discretization: float

    @property
    def warning(self) -> str | None:
        """What a plan says of the accountant, or None."""
        if self.accountant != "rdp":
            return None
        return (
            "so many steps are accounted by Renyi differential privacy: the guarantee holds, with more noise "
            "than it needs; a larger batch_size or fewer passes allow a tighter account"
        )


def _check(*, sampling_probability: float, steps: int, delta: float, positive: dict[str, float]) -> None:
    for name, value in positive.items():
        if not (0.0 < value < math.inf):
            raise ValueError(f"{name} must be in (0, inf), not {value}")
    if not (0.0 < sampling_probability <= 1.0):
        raise ValueError(f"sampling_probability must be in (0, 1], not {sampling_probability}")
    if steps < 1:
        raise ValueError(f"steps must be at least 1, not {steps}")
    if not (0.0 < delta < 1.0):
        raise ValueError(f"delta must be in (0, 1), not {delta}")


def _loss(z: float, slope: float, q: float) -> float:
    """Privacy loss ln(P/Q) of a removed unit at z standard deviations; slope is 1 / multiplier."""
    exponent = slope * z - 0.5 * slope * slope
    if exponent > 30.0:  # where expm1 could overflow
        return exponent + math.log(q) + math.log1p((1.0 - q) / q * math.exp(-exponent))
    return math.log1p(q * math.expm1(exponent))


class _GridTooLongError(Exception):
    """A grid of losses has `factor` times the points it may have."""

    def __init__(self, factor: float) -> None:
        super().__init__(factor)
        self.factor = factor


@dataclass(frozen=True)
class _StepLosses:
    """Pessimistic distribution of one step's loss, on multiples of `interval` from `first` upwards."""

    interval: float
    first: int
    masses: FloatArray
    infinite: float

    @property
    def last(self) -> int:
        """The largest finite loss, a multiple of `interval`."""
        return self.first + len(self.masses) - 1

    def infinite_of(self, steps: int) -> float:
        """Probability that any of so many steps has an infinite loss."""
        return -math.expm1(steps * math.log1p(-self.infinite))


def _step_losses(multiplier: float, q: float, interval: float, tail: float, *, removed: bool) -> _StepLosses:
    """Discretise the loss of one step.

    Noise beyond `tail` standard deviations is where a loss counts as infinite, or as the least one.

    Notes
    -----
    With P = (1 - q) N(0, s^2) + q N(1, s^2) and Q = N(0, s^2): ln(P/Q) under P where the unit is removed,
    ln(Q/P) under Q where it is added. The part between two grid points is split between them so that its mass
    under both distributions stays what it is, which dominates the true pair.
    Source: Doroshenko, Ghazi, Kamath, Kumar & Manurangsi 2022, "Connect the dots";
    privacy/README.md, "Subsampled Gaussian noise".
    """
    slope = 1.0 / multiplier
    if removed:
        low, high = _loss(-tail, slope, q), _loss(tail + slope, slope, q)
    else:
        low, high = -_loss(tail, slope, q), -_loss(-tail, slope, q)
    first = math.floor(max(low, -_MOST_LOSS) / interval)
    last = max(math.ceil(min(high, _MOST_LOSS) / interval), first + 1)
    if last - first > _MOST_STEP_POINTS:
        raise _GridTooLongError((last - first) / _MOST_STEP_POINTS)
    losses = interval * np.arange(first, last + 1)
    # z where the loss is that of a grid point; the mass beyond it, of the distribution the loss is drawn from
    # and of the other.
    with np.errstate(divide="ignore", over="ignore"):
        ratio = np.maximum(np.expm1(losses if removed else -losses) / q, -1.0)
        z = 0.5 * slope + np.log1p(ratio) / slope
    if removed:
        other = scipy.special.ndtr(-z)
        own = (1.0 - q) * other + q * scipy.special.ndtr(slope - z)
    else:
        own = scipy.special.ndtr(z)
        other = (1.0 - q) * own + q * scipy.special.ndtr(z - slope)
    mass, other_mass = -np.diff(own), -np.diff(other)
    # Rounding leaves a few ulps of `own` in the difference below: they count for the upper point.
    difference = mass - other_mass * np.exp(losses[:-1]) + 2.0**-50 * own[:-1]
    to_upper = np.clip(difference / -math.expm1(-interval), 0.0, mass)
    masses = np.zeros(len(losses))
    masses[1:] += to_upper
    masses[:-1] += mass - to_upper
    masses[0] += 1.0 - own[0]
    return _StepLosses(interval, first, masses, float(own[-1]))


@dataclass(frozen=True)
class _Curve:
    """Upper bounds on delta of all steps together, at multiples of `interval` from `low` upwards.

    From the multiple `top` on, which no finite loss exceeds, delta is `infinite`.
    """

    interval: float
    low: int
    deltas: FloatArray
    top: int
    infinite: float

    @property
    def high(self) -> int:
        """Last multiple that `deltas` knows of."""
        return self.low + len(self.deltas) - 1

    def at(self, places: IntArray) -> FloatArray:
        """For every epsilon = place times interval."""
        inside = self.deltas[np.clip(places - self.low, 0, len(self.deltas) - 1)]
        return np.where(places >= self.top, self.infinite, np.where(places < self.low, 1.0, inside))


def _tilt(masses: FloatArray, losses: FloatArray, order: float) -> tuple[FloatArray, float]:
    """Masses times exp(order * loss), brought to sum 1, and the logarithm of their sum before."""
    with np.errstate(divide="ignore"):
        exponents = np.log(masses) + order * losses
    most = float(exponents.max())
    weights = np.exp(exponents - most)
    total = float(weights.sum())
    return weights / total, most + math.log(total)


def _blocks(first: int, count: int) -> npt.NDArray[np.intp]:
    """Starts of blocks of grid points from `first` on, each 0.2 % as wide as it is distant from 0."""
    near = 2048
    far = (near * 1.002 ** np.arange(math.log(max(count / near, 1.0)) / math.log(1.002) + 2)).astype(np.intp)
    starts = np.concatenate((-far, np.arange(1 - near, near), far)) - first
    return np.unique(np.clip(starts, 0, count - 1))


def _compose(step: _StepLosses, steps: int, delta: float, *, weighted: bool = False) -> _Curve:
    """T-fold convolution of one step's loss, exact where delta(epsilon) is near a given delta.

    With `weighted`, where e^epsilon delta(epsilon) is.

    Notes
    -----
    A plain fast Fourier transform has an absolute error near T 2^-53, above the delta of interest from
    about a million rows on. So the step is multiplied by exp(order * loss) first, which moves the bulk of the
    composition to the losses that matter, and the result is divided by it again: the error is then relative
    to delta. What a window of finite length loses is bounded by Chernoff's inequality and added.
    Source: Koskela & Honkela 2021 (Fourier accountant), Gopi, Lee & Wutschitz 2021 (windows);
    privacy/README.md, "Subsampled Gaussian noise".
    """
    h = step.interval
    losses = h * (step.first + np.arange(len(step.masses), dtype=np.float64))
    # The order and the rates below are choices, for which blocks of losses at their means will do.
    blocks = _blocks(step.first, len(losses))
    sums: FloatArray = np.maximum(np.add.reduceat(step.masses, blocks), 1e-300)
    means: FloatArray = np.add.reduceat(step.masses * losses, blocks) / sums

    def excess(order: float) -> float:
        """Log of Chernoff's bound on delta at the mean of the tilted composition, less log delta."""
        weights, scale = _tilt(sums, means, order)
        mean = float(weights @ means)
        bound = steps * (scale - order * mean)
        if weighted:
            bound += max(steps * mean, 0.0)
        return bound - math.log(delta)

    below, order = 0.0, 1.0
    while (unmet := excess(order) > 0.0) and order < 1e9:
        below, order = order, 1.3 * order
    if not unmet:
        order = float(scipy.optimize.brentq(excess, below, order, rtol=1e-6))
    weights, scale = _tilt(step.masses, losses, order)
    mean = float(weights @ losses)
    centre = steps * mean
    stddev = math.sqrt(steps * float(weights @ (losses - mean) ** 2) + h * h)

    def reach(sign: int) -> float:
        """Distance from the centre beyond which less than _LOST of the tilted composition lies."""

        def bound(masses: FloatArray, at: FloatArray, rate: float) -> float:
            growth = _tilt(masses, at, order + rate)[1] - scale
            return sign * ((steps * growth - math.log(_LOST)) / rate - centre)

        rates = sign * np.geomspace(0.01, 20.0, 20) / stddev
        rough = [bound(sums, means, rate) for rate in rates]
        best = int(np.argmin(rough))
        return min(bound(step.masses, losses, rate) for rate in rates[max(best - 1, 0) : best + 2])

    low = math.floor((centre - reach(-1)) / h)
    length = math.ceil((centre + reach(1)) / h) - low + 2
    if length > _MOST_POINTS:
        raise _GridTooLongError(length / _MOST_POINTS)
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
    lost = 2.0 * _LOST + steps * 2.0**-48
    infinite = step.infinite_of(steps)
    # tails[i] is the sum of tilted[j] exp(-order (j - i) h) over j > i, deltas[i] the same with a factor
    # 1 - exp(-(j - i) h): recursions of positive terms, from the last to the first.
    kept = math.exp(-order * h)
    tails = scipy.signal.lfilter([0.0, kept], [1.0, -kept], np.maximum(composed[::-1], 0.0))
    deltas = scipy.signal.lfilter([-math.expm1(-h)], [1.0, -kept * math.exp(-h)], tails)[::-1]
    logs = steps * scale - order * h * (low + np.arange(length)) + np.log(deltas * _ROUND_UP + lost)
    return _Curve(
        interval=h,
        low=low,
        deltas=np.minimum(1.0, infinite + np.exp(np.minimum(logs, 0.0))),
        top=steps * step.last,
        infinite=infinite,
    )


def _replaced(removed: _Curve, added: _Curve, places: IntArray) -> FloatArray:
    """Upper bounds on delta of a unit that is removed and another that is added, as `_Curve.at`.

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

    def bound(place: int) -> float:
        return float(bounds(np.array([place]))[0])

    if bound(0) <= delta:
        return 0.0
    if bound(most) > delta:
        return math.inf
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if bound(middle) <= delta else (middle, high)
    share = (bound(low) - delta) / (bound(low) - bound(high))
    return interval * low + math.log1p(share * math.expm1(interval))


def _pld_epsilon(
    multiplier: float,
    q: float,
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
        step = _step_losses(multiplier, q, interval, tail, removed=removed)
        curves.append(_compose(step, steps, delta, weighted=replaced and not removed))
    if replaced:
        one, other = curves[0], curves[-1]
        return _crossing(partial(_replaced, one, other), interval, max(one.top + other.top, 0), delta)
    return max(_crossing(curve.at, interval, max(curve.top, 0), delta) for curve in curves)


def _least_epsilon(bound: Callable[[float], float], most: float, delta: float) -> float:
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


def _rdp_epsilon(multiplier: float, q: float, steps: int, delta: float, relation: Relation) -> float:
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
        logs = (
            scipy.special.gammaln(order + 1)
            - scipy.special.gammaln(k + 1)
            - scipy.special.gammaln(order - k + 1)
        )
        logs += (order - k) * math.log1p(-q) + k * math.log(q)
        logs += exponents + np.log(-np.expm1(-exponents))
        costs.append((order, steps * float(np.logaddexp(0.0, scipy.special.logsumexp(logs))) * _ROUND_UP))

    def least_delta(epsilon: float) -> float:
        exponents = [
            cost - (a - 1) * epsilon - math.log(a) + (a - 1) * math.log1p(-1.0 / a) for a, cost in costs
        ]
        return math.exp(min(0.0, *exponents))

    def bound(epsilon: float) -> float:
        if relation is Relation.ADD_REMOVE:
            return least_delta(epsilon)
        # For these splits both terms fall with epsilon, at any order, where they are below 1.
        return min(
            least_delta(split) + math.exp(split) * least_delta(epsilon - split)
            for split in epsilon * np.linspace(0.25, 0.5, 26)
        )

    return _least_epsilon(bound, 600.0, delta)


def _exact_mu(multiplier: float, steps: int, relation: Relation) -> float:
    """Mu with every unit in every batch, which sampling cannot make worse."""
    return math.sqrt(steps) * relation.gradient_change(1.0) / multiplier


def _exact_epsilon(multiplier: float, steps: int, delta: float, relation: Relation) -> float:
    """Epsilon with every unit in every batch."""
    mu = _exact_mu(multiplier, steps, relation)
    high = mu * (0.5 * mu + 10.0)
    while gaussian_delta(high, mu) > delta:
        high *= 2.0
    return _least_epsilon(lambda epsilon: gaussian_delta(epsilon, mu), high, delta)


def _fitting(value: Callable[[float], float], interval: float) -> tuple[float, float]:
    """A value on a grid of the given interval, or of the next coarser one that fits; that interval."""
    longest = _MOST_COARSENED * interval
    while interval <= longest:
        try:
            return value(interval), interval
        except _GridTooLongError as error:
            interval *= 1.02 * error.factor
    return math.inf, interval


def _first_interval(multiplier: float, q: float) -> float:
    # One step's losses spread like those of a Gaussian of equal chi-square divergence, q^2 (e^(1/s^2) - 1).
    divergence = q * q * math.expm1(min(1.0 / multiplier**2, 500.0))
    interval = _FIRST_INTERVAL * math.sqrt(math.log1p(divergence))
    # A unit that comes has losses up to -ln(1 - q), and many there: that should be on the grid.
    largest = -math.log1p(-q) if q < 1.0 else math.inf
    if not largest / 1e6 < interval < 16.0 * largest:
        return interval
    return largest / math.ceil(largest / interval) * (1.0 + 2.0**-40)


def _account(multiplier: float, q: float, steps: int, delta: float, relation: Relation) -> Accounted:
    """What a multiplier costs, by the accountant that can show the least."""
    best = Accounted(multiplier, _exact_epsilon(multiplier, steps, delta, relation), "exact", 0.0)
    if q == 1.0:
        return best
    wanted, coarser = _first_interval(multiplier, q), math.inf
    while True:
        epsilon, interval = _fitting(partial(_pld_epsilon, multiplier, q, steps, delta, relation), wanted)
        if epsilon < best.epsilon:
            best = Accounted(multiplier, epsilon, "pld", interval)
        if interval > wanted:
            break
        if math.isfinite(epsilon) and epsilon >= coarser * (1.0 - _CONVERGED):
            return best
        wanted, coarser = 0.5 * interval, epsilon
    renyi = Accounted(multiplier, _rdp_epsilon(multiplier, q, steps, delta, relation), "rdp", 0.0)
    return renyi if renyi.epsilon < best.epsilon else best


def _whole_curve(
    multiplier: float, q: float, steps: int, spare: float, interval: float, *, removed: bool
) -> _Curve:
    """Bounds on delta from 1 down to `spare`: the least of some compositions, each exact on a part."""
    tail = -float(scipy.special.ndtri(spare * _NEGLIGIBLE[Relation.REPLACE_ONE] / steps))
    step = _step_losses(multiplier, q, interval, tail, removed=removed)
    # exp(-z^2/2) bounds a normal distribution's tail, and a composition is exact to about z +- 4.
    last = math.sqrt(-2.0 * math.log(spare))
    quantiles = np.linspace(0.1, last, math.ceil(last / _NEXT_QUANTILE) + 1)
    curves = [_compose(step, steps, float(delta)) for delta in np.exp(-0.5 * quantiles**2)]
    places = np.arange(min(curve.low for curve in curves), max(curve.high for curve in curves) + 1)
    deltas = np.minimum.reduce([curve.at(places) for curve in curves])
    return _Curve(interval, int(places[0]), deltas, curves[0].top, curves[0].infinite)


def _pld_mu(
    multiplier: float, q: float, steps: int, spare: float, relation: Relation, interval: float
) -> float:
    """Mu by privacy loss distributions on one grid; infinity where none is found."""
    removed, added = (
        _whole_curve(multiplier, q, steps, spare, interval, removed=removed) for removed in (True, False)
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

    low, high = 0.0, _exact_mu(multiplier, steps, relation)
    if not dominates(high):
        return math.inf
    while high - low > 1e-4 * high:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if dominates(middle) else (middle, high)
    return high


def _search(cost: Callable[[float], Accounted], start: float, most: float, target: float) -> Accounted:
    """Least cost in [(1 - _SLACK) target, target], or that of `most` if nothing below it is enough.

    A bracketed secant method in the logarithms of multiplier and epsilon.
    """
    floor = math.log(_LEAST_MULTIPLIER)
    found: Accounted | None = None
    low, high = (-math.inf, math.inf), (math.log(most), -math.inf)
    aim = math.log1p(-0.4 * _SLACK)
    x = min(max(math.log(start), floor), high[0])
    for turn in range(25):
        at = cost(math.exp(x) if x < high[0] else most)
        y = math.log(at.epsilon / target) if at.epsilon > 0.0 else -math.inf
        if y > 0.0:
            low = (x, y)
        else:
            found, high = at, (x, y)
            if y >= math.log1p(-_SLACK) or x == floor:
                break
        width = high[0] - low[0]
        if width < 1e-5:
            break
        if math.isinf(width):  # epsilon falls at least like 1 / multiplier
            x = max(x - min(aim - y + 1e-4, 0.5), floor)
        elif math.isinf(high[1]):
            x = low[0] + min(0.5 * width, low[1] - aim, 0.5)
        elif math.isinf(low[1]) or turn % 4 == 3:
            x = low[0] + 0.5 * width
        else:
            x = low[0] + width * min(max((low[1] - aim) / (low[1] - high[1]), 0.01), 0.99)
    return cost(most) if found is None else found


def subsampled_gaussian_epsilon(
    noise_multiplier: float, sampling_probability: float, steps: int, delta: float, relation: Relation
) -> float:
    """Epsilon of steps that each add Gaussian noise to the sum over a Poisson batch.

    Parameters
    ----------
    noise_multiplier : float
        Standard deviation of the noise on the sum, in units of L, in (0, inf).
    sampling_probability : float
        q, with which every unit independently is in the batch of a step, in (0, 1].
    steps : int
        T >= 1.
    delta : float
        In (0, 1).
    relation : Relation

    Returns
    -------
    float
        An upper bound, to 0.5 %; infinity where none can be shown.

    Raises
    ------
    ValueError
        If an argument is outside its domain.

    Notes
    -----
    Source: privacy/README.md, "Subsampled Gaussian noise".
    """
    _check(
        sampling_probability=sampling_probability,
        steps=steps,
        delta=delta,
        positive={"noise_multiplier": noise_multiplier},
    )
    return _account(noise_multiplier, sampling_probability, steps, delta, relation).epsilon


def subsampled_gaussian_multiplier(
    epsilon: float, delta: float, sampling_probability: float, steps: int, relation: Relation
) -> Accounted:
    """Least noise on the sums over Poisson batches that keeps a whole run (epsilon, delta)-private.

    Parameters
    ----------
    epsilon : float
        In (0, inf).
    delta : float
        In (0, 1).
    sampling_probability : float
        q, with which every unit independently is in the batch of a step, in (0, 1].
    steps : int
        T >= 1.
    relation : Relation

    Returns
    -------
    Accounted
        Its `epsilon` is what `subsampled_gaussian_epsilon` says of its `noise_multiplier`.

    Raises
    ------
    ValueError
        If an argument is outside its domain.

    Notes
    -----
    Falls with epsilon and delta and rises with q and T, but for the 0.5 % that the grid may add.
    Source: privacy/README.md, "Subsampled Gaussian noise".
    """
    q = sampling_probability
    _check(sampling_probability=q, steps=steps, delta=delta, positive={"epsilon": epsilon})
    most = math.sqrt(steps) * relation.gradient_change(1.0) / gaussian_mu(epsilon, delta) * _ROUND_UP
    if q == 1.0:
        return _account(most, q, steps, delta, relation)

    def rough(multiplier: float) -> Accounted:
        account = partial(_pld_epsilon, multiplier, q, steps, delta, relation, directions=(True,))
        found, interval = _fitting(account, _first_interval(multiplier, q))
        return Accounted(multiplier, found, "pld", interval)

    def fine(multiplier: float) -> Accounted:
        return _account(multiplier, q, steps, delta, relation)

    # The central limit theorem for the losses of many steps, Dong, Roth & Su 2022, Section 5.
    if relation is Relation.ADD_REMOVE:
        mu = gaussian_mu(epsilon, delta)
    else:
        mu = gaussian_mu(0.5 * epsilon, delta / (1.0 + math.exp(min(0.5 * epsilon, 600.0))))
    start = 1.0 / math.sqrt(math.log1p((mu / q) ** 2 / steps))
    start = _search(rough, start, most, epsilon).noise_multiplier
    return _search(fine, start, most, epsilon)


def subsampled_gaussian_mu(
    noise_multiplier: float, sampling_probability: float, steps: int, spare: float, relation: Relation
) -> float:
    """Mu of a Gaussian release that tells two neighbours apart no worse than steps on Poisson batches.

    Parameters
    ----------
    noise_multiplier, sampling_probability, steps
        As in `subsampled_gaussian_epsilon`.
    spare : float
        Probability with which the steps may tell them apart for certain, in (0, 1).
    relation : Relation

    Returns
    -------
    float
        Least mu found with delta(epsilon) <= spare + (1 - spare) dG(epsilon; mu) for all epsilon; at most
        that of full batches.

    Raises
    ------
    ValueError
        If an argument is outside its domain.

    Notes
    -----
    Source: privacy/README.md, "A Gaussian for Poisson batches".
    """
    q = sampling_probability
    positive = {"noise_multiplier": noise_multiplier}
    _check(sampling_probability=q, steps=steps, delta=spare, positive=positive)
    exact = _exact_mu(noise_multiplier, steps, relation)
    if q == 1.0:
        return exact
    account = partial(_pld_mu, noise_multiplier, q, steps, spare, relation)
    found, _ = _fitting(account, _MU_INTERVAL * _first_interval(noise_multiplier, q))
    return min(found, exact) * _ROUND_UP


def _check_bst14(epsilon: float, delta: float, sampling_probability: float, steps: int) -> None:
    _check(sampling_probability=sampling_probability, steps=steps, delta=delta, positive={"epsilon": epsilon})


def _bst14(epsilon: float, step_delta: float, q: float, steps: int, relation: Relation) -> float:
    log_delta = math.log(1.0 / step_delta)

    def excess(step_epsilon: float) -> float:
        return (
            steps * step_epsilon * math.expm1(step_epsilon)
            + math.sqrt(2.0 * steps * log_delta) * step_epsilon
            - epsilon
        )

    # The second term alone reaches epsilon at the upper end.
    step_epsilon = float(
        scipy.optimize.brentq(excess, 0.0, epsilon / math.sqrt(2.0 * steps * log_delta), rtol=1e-12)
    )
    sampled_epsilon = min(1.0, step_epsilon / (2.0 * q))
    stddev = math.sqrt(2.0 * math.log(1.25 / step_delta)) / sampled_epsilon
    return stddev * relation.gradient_change(1.0) * _ROUND_UP


def advanced_multiplier(
    epsilon: float, delta: float, sampling_probability: float, steps: int, relation: Relation
) -> float:
    """Noise on the sums over Poisson batches by strong composition, as in BST14.

    Parameters
    ----------
    epsilon : float
        In (0, inf).
    delta : float
        In (0, 1).
    sampling_probability : float
        q, in (0, 1].
    steps : int
        T >= 1.
    relation : Relation

    Returns
    -------
    float
        Standard deviation in units of L.

    Raises
    ------
    ValueError
        If an argument is outside its domain.

    Notes
    -----
    Source: Bassily, Smith & Thakurta 2014, Algorithm 1, in the form of Wu et al. 2017, Algorithm 5;
    privacy/README.md, "BST14".
    """
    _check_bst14(epsilon, delta, sampling_probability, steps)
    q = sampling_probability
    return _bst14(epsilon, delta / (1.0 + q * steps), q, steps, relation)


def published_bst14_multiplier(
    epsilon: float, delta: float, sampling_probability: float, steps: int, relation: Relation
) -> float:
    """What `advanced_multiplier` is with the published delta / T. For comparison only.

    Parameters
    ----------
    epsilon, delta, sampling_probability, steps, relation
        As in `advanced_multiplier`.

    Returns
    -------
    float
        Standard deviation in units of L.

    Notes
    -----
    Source: Wu et al. 2017, Algorithm 5; privacy/README.md, "BST14".
    """
    _check_bst14(epsilon, delta, sampling_probability, steps)
    return _bst14(epsilon, delta / steps, sampling_probability, steps, relation)
