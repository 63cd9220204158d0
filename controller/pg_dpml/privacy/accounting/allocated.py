# SPDX-License-Identifier: PostgreSQL
"""Gaussian steps over batches by random allocation: their epsilon, the multiplier they need, their mu."""

from __future__ import annotations

import math
from functools import partial

import scipy  # which imports its parts where they are used

from pg_dpml.privacy.accounting.bounds import ROUND_UP, exact_epsilon, exact_mu, exact_needs_more
from pg_dpml.privacy.accounting.losses import StepLosses
from pg_dpml.privacy.accounting.pld import pld_epsilon, pld_mu
from pg_dpml.privacy.accounting.ratios import mean_ratios
from pg_dpml.privacy.accounting.search import Accounted, check_run, fitting, least_multiplier
from pg_dpml.privacy.gaussian import gaussian_mu
from pg_dpml.spec.relation import Relation

__all__ = [
    "MOST_BATCHES",
    "allocated_gaussian_epsilon",
    "allocated_gaussian_mu",
    "allocated_gaussian_multiplier",
    "allocated_losses",
]

MOST_BATCHES = 2**17
"""Batches of a pass that an account is made for: it takes a second at most."""

_SPACINGS = (0.12, 0.06, 0.03, 0.015)
"""Distances of the values of a ratio, and of losses, in standard deviations."""

_OUTSIDE = 16.0
"""Probability, in units of one tail's, that the sums of a ratio may leave beyond its last values."""

_CONVERGED = 0.01
"""The spacing is halved until the answer moves by less than this share; the next moves a quarter as much."""

_WIDTH = 0.001
"""A multiplier is found that is by less than this share above one that costs too much."""


def allocated_losses(
    multiplier: float, batches: int, spacing: float, interval: float, tail: float, removed: bool
) -> StepLosses:
    """Losses of one pass on a grid. Source: privacy/README.md, "Random allocation"."""
    negligible = _OUTSIDE * float(scipy.special.ndtr(-tail))
    return mean_ratios(multiplier, batches, spacing, tail).losses(interval, negligible, removed=removed)


def _interval(multiplier: float, batches: int, spacing: float) -> float:
    """A grid of losses, by the standard deviation of a Gaussian loss of equal chi-square divergence."""
    divergence = math.expm1(min(1.0 / multiplier**2, 500.0)) / batches
    return spacing * math.sqrt(math.log1p(divergence))


def _one_grid(
    multiplier: float,
    batches: int,
    passes: int,
    delta: float,
    relation: Relation,
    spacing: float,
) -> Accounted:
    """What a multiplier costs by one grid."""
    losses = partial(allocated_losses, multiplier, batches, spacing)
    account = partial(pld_epsilon, losses, passes, delta, relation)
    epsilon, interval = fitting(account, _interval(multiplier, batches, spacing))
    found = Accounted(multiplier, epsilon, "pld", interval)
    if exact_needs_more(epsilon, multiplier, passes, delta, relation):
        return found
    exact = _exact(multiplier, passes, delta, relation)
    return exact if exact.epsilon <= epsilon else found


def _exact(multiplier: float, passes: int, delta: float, relation: Relation) -> Accounted:
    """What a multiplier costs where it is known which batch a unit is in."""
    return Accounted(multiplier, exact_epsilon(multiplier, passes, delta, relation), "exact", 0.0)


def _check(multiplier_or_epsilon: dict[str, float], batches: int, passes: int, delta: float) -> None:
    check_run(steps=passes, delta=delta, positive=multiplier_or_epsilon)
    if not 1 <= batches <= MOST_BATCHES:
        raise ValueError(f"batches must be from 1 to {MOST_BATCHES}, not {batches}")


def allocated_gaussian_epsilon(
    noise_multiplier: float, batches: int, passes: int, delta: float, relation: Relation
) -> float:
    """Epsilon of passes over batches by random allocation, with Gaussian noise on every batch's sum.

    Parameters
    ----------
    noise_multiplier : float
        Standard deviation of the noise on a sum, in units of L, in (0, inf).
    batches : int
        T of a pass, from 1 to `MOST_BATCHES`.
    passes : int
        k >= 1, every one with an allocation of its own. Where one allocation is for k passes, it is the
        account of one pass with noise_multiplier / sqrt(k).
    delta : float
        In (0, 1).
    relation : Relation

    Returns
    -------
    float
        An upper bound, to about 0.5 %.

    Raises
    ------
    ValueError
        If an argument is outside its domain.

    Notes
    -----
    Source: privacy/README.md, "Random allocation".
    """
    _check({"noise_multiplier": noise_multiplier}, batches, passes, delta)
    best = _exact(noise_multiplier, passes, delta, relation).epsilon
    if batches == 1:
        return best
    for spacing in _SPACINGS:
        coarser = best
        found = _one_grid(noise_multiplier, batches, passes, delta, relation, spacing)
        best = min(coarser, found.epsilon)
        if coarser * (1.0 - _CONVERGED) <= best < found.epsilon * (1.0 + _CONVERGED):
            break
    return best


def allocated_gaussian_multiplier(
    epsilon: float, delta: float, batches: int, passes: int, relation: Relation, *, rough: bool = False
) -> Accounted:
    """Least noise on the sums over batches by random allocation that keeps a run (epsilon, delta)-private.

    Parameters
    ----------
    epsilon : float
        In (0, inf).
    delta : float
        In (0, 1).
    batches, passes : int
        As in `allocated_gaussian_epsilon`; for one allocation of k passes, sqrt(k) times the noise for one.
    relation : Relation
    rough : bool
        Whether the coarsest grid will do: in a tenth of the time, with a few percent more noise.

    Returns
    -------
    Accounted
        Its `epsilon` is what `allocated_gaussian_epsilon` says of its `noise_multiplier`.

    Raises
    ------
    ValueError
        If an argument is outside its domain.

    Notes
    -----
    Source: privacy/README.md, "Random allocation".
    """
    _check({"epsilon": epsilon}, batches, passes, delta)
    mu = gaussian_mu(epsilon, delta)
    most = math.sqrt(passes) * relation.gradient_change(1.0) / mu * ROUND_UP
    if batches == 1:
        return _exact(most, passes, delta, relation)
    # As for many Poisson steps of probability 1/T ("Subsampled Gaussian noise").
    start = 1.0 / math.sqrt(math.log1p((mu / relation.gradient_change(1.0)) ** 2 * batches / passes))
    best = _exact(most, passes, delta, relation)
    for spacing in _SPACINGS[:1] if rough else _SPACINGS:

        def cost(multiplier: float, spacing: float = spacing) -> Accounted:
            return _one_grid(multiplier, batches, passes, delta, relation, spacing)

        coarser = best.noise_multiplier
        found = least_multiplier(cost, min(start, most), most, epsilon, _WIDTH)
        best = min(best, found, key=lambda one: one.noise_multiplier)
        start = best.noise_multiplier
        if spacing < _SPACINGS[0] and start >= coarser * (1.0 - _CONVERGED):
            break
    return best


def allocated_gaussian_mu(
    noise_multiplier: float, batches: int, passes: int, spare: float, relation: Relation
) -> float:
    """Mu of a Gaussian release that tells two neighbours apart no worse than passes by random allocation.

    Parameters
    ----------
    noise_multiplier, batches, passes
        As in `allocated_gaussian_epsilon`.
    spare : float
        Probability with which the passes may tell them apart for certain, in (0, 1).
    relation : Relation

    Returns
    -------
    float
        Least mu found with delta(epsilon) <= spare + (1 - spare) dG(epsilon; mu) for all epsilon; at most
        that of batches that are known.

    Raises
    ------
    ValueError
        If an argument is outside its domain.

    Notes
    -----
    Source: privacy/README.md, "A Gaussian for Poisson batches".
    """
    _check({"noise_multiplier": noise_multiplier}, batches, passes, spare)
    exact = exact_mu(noise_multiplier, passes, relation)
    if batches == 1:
        return exact
    losses = partial(allocated_losses, noise_multiplier, batches, _SPACINGS[1])
    account = partial(pld_mu, losses, passes, spare, relation, exact)
    found, _ = fitting(account, _interval(noise_multiplier, batches, _SPACINGS[1]))
    return min(found, exact) * ROUND_UP
