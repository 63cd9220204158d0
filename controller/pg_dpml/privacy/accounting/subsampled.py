# SPDX-License-Identifier: PostgreSQL
"""Gaussian steps over Poisson batches: their epsilon, the multiplier that they need, their mu."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import scipy  # which imports its parts where they are used

from pg_dpml.privacy.accounting.bounds import ROUND_UP, exact_epsilon, exact_mu, exact_needs_more, rdp_epsilon
from pg_dpml.privacy.accounting.losses import StepLosses, grid_of
from pg_dpml.privacy.accounting.pld import pld_epsilon, pld_mu
from pg_dpml.privacy.accounting.search import Accounted, check_run, fitting, least_multiplier
from pg_dpml.privacy.gaussian import gaussian_mu
from pg_dpml.spec.relation import Relation

__all__ = [
    "Accounted",
    "check_sampling",
    "poisson_losses",
    "subsampled_gaussian_epsilon",
    "subsampled_gaussian_mu",
    "subsampled_gaussian_multiplier",
]

_FIRST_INTERVAL = 1.0 / 4.0
"""First grid of losses, in standard deviations of one step's loss."""

_CONVERGED = 0.0025
"""The grid is halved until epsilon moves by less than this share."""

_MU_INTERVAL = 0.25
"""Grid of a whole curve, in units of the first grid of losses: mu moves by less than 0.1 % on a finer one."""


def check_sampling(
    *, sampling_probability: float, steps: int, delta: float, positive: dict[str, float]
) -> None:
    """Refuse arguments outside their domains, by name."""
    check_run(steps=steps, delta=delta, positive=positive)
    if not (0.0 < sampling_probability <= 1.0):
        raise ValueError(f"sampling_probability must be in (0, 1], not {sampling_probability}")


def loss_of(z: float, slope: float, q: float) -> float:
    """Privacy loss ln(P/Q) of a removed unit at z standard deviations; slope is 1 / multiplier."""
    exponent = slope * z - 0.5 * slope * slope
    if exponent > 30.0:  # where expm1 could overflow
        return exponent + math.log(q) + math.log1p((1.0 - q) / q * math.exp(-exponent))
    return math.log1p(q * math.expm1(exponent))


def poisson_losses(multiplier: float, q: float, interval: float, tail: float, removed: bool) -> StepLosses:
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
        low, high = loss_of(-tail, slope, q), loss_of(tail + slope, slope, q)
    else:
        low, high = -loss_of(tail, slope, q), -loss_of(-tail, slope, q)
    first, last = grid_of(low, high, interval)
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
    return StepLosses(interval, first, masses, float(own[-1]))


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
    best = Accounted(multiplier, math.inf, "pld", 0.0)
    losses = partial(poisson_losses, multiplier, q)
    wanted, coarser = _first_interval(multiplier, q), math.inf
    while q < 1.0:
        epsilon, interval = fitting(partial(pld_epsilon, losses, steps, delta, relation), wanted)
        if epsilon < best.epsilon:
            best = Accounted(multiplier, epsilon, "pld", interval)
        if interval > wanted:
            renyi = rdp_epsilon(multiplier, q, steps, delta, relation)
            if renyi < best.epsilon:
                best = Accounted(multiplier, renyi, "rdp", 0.0)
            break
        if math.isfinite(epsilon) and epsilon >= coarser * (1.0 - _CONVERGED):
            break
        wanted, coarser = 0.5 * interval, epsilon
    if exact_needs_more(best.epsilon, multiplier, steps, delta, relation):
        return best
    exact = exact_epsilon(multiplier, steps, delta, relation)
    return Accounted(multiplier, exact, "exact", 0.0) if exact <= best.epsilon else best


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
    check_sampling(
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
    check_sampling(sampling_probability=q, steps=steps, delta=delta, positive={"epsilon": epsilon})
    most = math.sqrt(steps) * relation.gradient_change(1.0) / gaussian_mu(epsilon, delta) * ROUND_UP
    if q == 1.0:
        return _account(most, q, steps, delta, relation)

    def rough(multiplier: float) -> Accounted:
        losses = partial(poisson_losses, multiplier, q)
        account = partial(pld_epsilon, losses, steps, delta, relation, directions=(True,))
        found, interval = fitting(account, _first_interval(multiplier, q))
        return Accounted(multiplier, found, "pld", interval)

    def fine(multiplier: float) -> Accounted:
        return _account(multiplier, q, steps, delta, relation)

    # The central limit theorem for the losses of many steps, Dong, Roth & Su 2022, Section 5.
    if relation is Relation.ADD_REMOVE:
        mu = gaussian_mu(epsilon, delta)
    else:
        mu = gaussian_mu(0.5 * epsilon, delta / (1.0 + math.exp(min(0.5 * epsilon, 600.0))))
    start = 1.0 / math.sqrt(math.log1p((mu / q) ** 2 / steps))
    start = least_multiplier(rough, start, most, epsilon).noise_multiplier
    return least_multiplier(fine, start, most, epsilon)


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
    check_sampling(sampling_probability=q, steps=steps, delta=spare, positive=positive)
    exact = exact_mu(noise_multiplier, steps, relation)
    if q == 1.0:
        return exact
    account = partial(pld_mu, partial(poisson_losses, noise_multiplier, q), steps, spare, relation, exact)
    found, _ = fitting(account, _MU_INTERVAL * _first_interval(noise_multiplier, q))
    return min(found, exact) * ROUND_UP
