# SPDX-License-Identifier: PostgreSQL
"""Gaussian steps over Poisson batches: their epsilon, the multiplier that they need, their mu."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from pg_dpml.privacy.accounting.bounds import ROUND_UP, exact_epsilon, exact_mu, rdp_epsilon
from pg_dpml.privacy.accounting.pld import GridTooLongError, pld_epsilon, pld_mu
from pg_dpml.privacy.gaussian import gaussian_mu
from pg_dpml.spec.relation import Relation

__all__ = [
    "Accounted",
    "check_run",
    "subsampled_gaussian_epsilon",
    "subsampled_gaussian_mu",
    "subsampled_gaussian_multiplier",
]

Accountant = Literal["exact", "pld", "rdp"]

_FIRST_INTERVAL = 1.0 / 4.0
"""First grid of losses, in standard deviations of one step's loss."""

_MOST_COARSENED = 1000.0
"""A grid that would have to be coarser by more than this says nothing of use."""

_CONVERGED = 0.0025
"""The grid is halved until epsilon moves by less than this share."""

_MU_INTERVAL = 0.25
"""Grid of a whole curve, in units of the first grid of losses: mu moves by less than 0.1 % on a finer one."""

_SLACK = 0.004
"""A multiplier is found if its epsilon lies within this share below the one asked for."""

_LEAST_MULTIPLIER = 1.0 / 32.0
"""Where delta alone would nearly allow releasing a few steps without noise."""


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


def check_run(*, sampling_probability: float, steps: int, delta: float, positive: dict[str, float]) -> None:
    """Refuse arguments outside their domains, by name."""
    for name, value in positive.items():
        if not (0.0 < value < math.inf):
            raise ValueError(f"{name} must be in (0, inf), not {value}")
    if not (0.0 < sampling_probability <= 1.0):
        raise ValueError(f"sampling_probability must be in (0, 1], not {sampling_probability}")
    if steps < 1:
        raise ValueError(f"steps must be at least 1, not {steps}")
    if not (0.0 < delta < 1.0):
        raise ValueError(f"delta must be in (0, 1), not {delta}")


def _fitting(value: Callable[[float], float], interval: float) -> tuple[float, float]:
    """A value on a grid of the given interval, or of the next coarser one that fits; that interval."""
    longest = _MOST_COARSENED * interval
    while interval <= longest:
        try:
            return value(interval), interval
        except GridTooLongError as error:
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
    best = Accounted(multiplier, exact_epsilon(multiplier, steps, delta, relation), "exact", 0.0)
    if q == 1.0:
        return best
    wanted, coarser = _first_interval(multiplier, q), math.inf
    while True:
        epsilon, interval = _fitting(partial(pld_epsilon, multiplier, q, steps, delta, relation), wanted)
        if epsilon < best.epsilon:
            best = Accounted(multiplier, epsilon, "pld", interval)
        if interval > wanted:
            break
        if math.isfinite(epsilon) and epsilon >= coarser * (1.0 - _CONVERGED):
            return best
        wanted, coarser = 0.5 * interval, epsilon
    renyi = Accounted(multiplier, rdp_epsilon(multiplier, q, steps, delta, relation), "rdp", 0.0)
    return renyi if renyi.epsilon < best.epsilon else best


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
    check_run(
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
    check_run(sampling_probability=q, steps=steps, delta=delta, positive={"epsilon": epsilon})
    most = math.sqrt(steps) * relation.gradient_change(1.0) / gaussian_mu(epsilon, delta) * ROUND_UP
    if q == 1.0:
        return _account(most, q, steps, delta, relation)

    def rough(multiplier: float) -> Accounted:
        account = partial(pld_epsilon, multiplier, q, steps, delta, relation, directions=(True,))
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
    check_run(sampling_probability=q, steps=steps, delta=spare, positive=positive)
    exact = exact_mu(noise_multiplier, steps, relation)
    if q == 1.0:
        return exact
    account = partial(pld_mu, noise_multiplier, q, steps, spare, relation)
    found, _ = _fitting(account, _MU_INTERVAL * _first_interval(noise_multiplier, q))
    return min(found, exact) * ROUND_UP
