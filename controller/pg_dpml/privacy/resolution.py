# SPDX-License-Identifier: PostgreSQL
"""The grid that noisy numbers are released on, and what grid, rounding and sampler cost.

Every noise of the product takes its grid from here: noise of a release by `release_room`,
noise in every step of a pass by `step_room`. Both refuse what float64, or the sampler
on such a grid, cannot keep. The proofs: privacy/README.md, "Floating point" and
"The sampler".

Long because no other place may derive a grid, what it costs, or the refusal of one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

from pg_dpml.errors import GuaranteeError, ResolutionError
from pg_dpml.kernels import LEAST_SCALE, MOST_STEPS, noise_grid
from pg_dpml.spec.privacy import MOST_EPSILON

__all__ = [
    "HIDDEN_SHARE",
    "ROUNDING_LIMIT",
    "hidden_gradient_norm",
    "hidden_grid",
    "release_grid",
    "release_room",
    "require_resolved",
    "require_sensitivity",
    "require_share",
    "rounded_up",
    "sampler_delta",
    "sampler_epsilon",
    "sampler_knorm_epsilon",
    "sampler_mu",
    "step_room",
    "with_least_epsilon",
]

Planned = TypeVar("Planned")

GRID_FRACTION = 2.0**-20
"""A release's grid step times sqrt(dimension) is at most this share of the sensitivity; a step's grid
step is at most this share of the scale of its noise."""

HIDDEN_SHARE = 2.0**-8
"""The grid step of an objective's linear term times sqrt(dimension) is at most this share of gamma."""

SMALLEST_SENSITIVITY = 1e-290
"""Below it the arithmetic of a release loses digits; no sensible run comes near."""

ROUNDING_LIMIT = 0.01
"""A run whose own rounding could reach this share of its sensitivity is refused."""

SAMPLER_LIMIT = 0.01
"""A run for whose sampler so large a share of mu or epsilon would have to be left is refused."""

POINT_SHARE = 2.0**-48
"""Bound on the relative error of the probability of any grid point of one normal number."""

TAIL = 2.0**-120
"""Bound, times e^epsilon for epsilon <= 100, on the probability of one number beyond the sampler's tail."""


def sampler_delta(n_numbers: int) -> float:
    """What the end of the sampler's tail takes out of delta.

    Parameters
    ----------
    n_numbers : int
        Noisy numbers of the whole run, >= 0.

    Returns
    -------
    float
        n_numbers 2^-120. It is taken out of delta before a noise is calibrated, and reported where
        delta is 0 else.

    Notes
    -----
    Source: privacy/README.md, "The sampler".
    """
    return n_numbers * TAIL


def sampler_mu(n_numbers: int) -> float:
    """What the finite precision of Gaussian noise takes out of mu.

    Parameters
    ----------
    n_numbers : int
        Noisy numbers of the whole run, >= 0.

    Returns
    -------
    float
        2 sqrt(2 pi) n_numbers 2^-48: densities that are off by a factor of at most e^+-s make a
        mu-GDP release one of mu + 2 sqrt(2 pi) s.

    Notes
    -----
    Source: privacy/README.md, "The sampler".
    """
    return 2.0 * math.sqrt(2.0 * math.pi) * n_numbers * POINT_SHARE


def sampler_epsilon(n_numbers: int) -> float:
    """What the finite precision of Gaussian noise takes out of epsilon, where there is no mu.

    Parameters
    ----------
    n_numbers : int
        Noisy numbers of the whole run, >= 0.

    Returns
    -------
    float
        2 n_numbers 2^-48, half of it for either table.

    Notes
    -----
    Source: privacy/README.md, "The sampler".
    """
    return 2.0 * n_numbers * POINT_SHARE


def sampler_knorm_epsilon(n_weights: int) -> float:
    """What the finite precision of one vector of K-norm noise takes out of epsilon.

    Parameters
    ----------
    n_weights : int
        Length of the vector, >= 1.

    Returns
    -------
    float
        2 (5 n_weights + 512) 2^-48, half of it for either table.

    Notes
    -----
    Source: privacy/README.md, "The sampler".
    """
    return 2.0 * (5.0 * n_weights + 512.0) * POINT_SHARE


def require_share(taken: float, whole: float, name: str) -> float:
    """What the sampler leaves of epsilon or mu.

    Parameters
    ----------
    taken : float
        From `sampler_mu` and its like.
    whole : float
        mu or epsilon of the run.
    name : str
        Which of them it is.

    Returns
    -------
    float
        whole - taken.

    Raises
    ------
    ResolutionError
        If less than 99 % were left.
    """
    if not taken <= SAMPLER_LIMIT * whole:
        raise ResolutionError(
            f"the precision of the noise could cost {name} = {taken:.2g}, more than a hundredth of the run's "
            f"{whole:.3g}"
        )
    return whole - taken


def require_resolved(stddev: float, grid: float) -> None:
    """Refuse noise that is too wide for its grid.

    Parameters
    ----------
    stddev : float
        Of a number, >= 0.
    grid : float
        Spacing of the released numbers, > 0.

    Raises
    ------
    ResolutionError
        If stddev is above 2^45 grid: numbers in steps of the grid would not all be whole in float64.

    Notes
    -----
    Source: privacy/README.md, "The sampler".
    """
    if not stddev <= MOST_STEPS * grid:
        raise ResolutionError(
            f"noise of standard deviation {stddev:.3g} is too wide for the released numbers, which lie "
            f"{grid:.3g} apart"
        )


def release_grid(sensitivity: float, n_weights: int) -> float:
    """Spacing of the grid that a released vector is rounded to.

    Parameters
    ----------
    sensitivity : float
        In (0, inf).
    n_weights : int
        Length of the vector, >= 1.

    Returns
    -------
    float
        Largest power of two <= 2^-20 sensitivity / sqrt(n_weights).

    Notes
    -----
    Source: Mironov 2012 on the low bits of noise; privacy/README.md, "Floating point".
    """
    return float(2.0 ** math.floor(math.log2(GRID_FRACTION * sensitivity / math.sqrt(n_weights))))


def hidden_grid(sensitivity: float, gradient_norm: float, n_weights: int) -> float:
    """Spacing of the grid of an objective's linear term, which noise on the answer hides.

    Parameters
    ----------
    sensitivity : float
        D/n of the gradient, in (0, inf).
    gradient_norm : float
        gamma, in (0, inf).
    n_weights : int
        Length of the linear term, >= 1.

    Returns
    -------
    float
        Largest power of two <= 2^-8 gamma / sqrt(n_weights), and at most `release_grid`.

    Notes
    -----
    Source: privacy/README.md, "Objective perturbation", rounding.
    """
    finest = math.log2(HIDDEN_SHARE * gradient_norm / math.sqrt(n_weights))
    return min(2.0 ** math.floor(finest), release_grid(sensitivity, n_weights))


def hidden_gradient_norm(stddev: float, n_weights: int) -> float:
    """Least gamma whose `hidden_grid` has at most 2^44 steps in this standard deviation of a linear term."""
    return 2.0**-35 * math.sqrt(n_weights) * stddev


def require_sensitivity(sensitivity: float) -> None:
    """Refuse one that float64 cannot carry, above all one that vanished.

    Raises
    ------
    GuaranteeError
    """
    if not sensitivity >= SMALLEST_SENSITIVITY:
        raise GuaranteeError(
            f"the sensitivity {sensitivity:.1e} is too small for float64: take a larger clip, longer steps "
            "or a smaller lambda"
        )


def release_room(sensitivity: float, rounding: float, n_weights: int, advice: str) -> tuple[float, float]:
    """Grid of one release, and the sensitivity with the room that grid and rounding need.

    Parameters
    ----------
    sensitivity : float
        L2 sensitivity of the exact vector, > 0.
    rounding : float
        Bound on how far float64 rounding moves two vectors apart.
    n_weights : int
        Length of the vector, >= 1.
    advice : str
        What makes the rounding smaller.

    Returns
    -------
    grid : float
    calibrated : float
        sensitivity + grid sqrt(n_weights) + rounding.

    Raises
    ------
    GuaranteeError
        If the rounding exceeds a hundredth of the sensitivity, or that is too small for float64.

    Notes
    -----
    Source: privacy/README.md, "Floating point".
    """
    require_sensitivity(sensitivity)
    if rounding > ROUNDING_LIMIT * sensitivity:
        raise GuaranteeError(
            f"float64 rounding of this run could reach {rounding:.1e}, more than a hundredth of its "
            f"sensitivity {sensitivity:.1e}: {advice}"
        )
    grid = release_grid(sensitivity, n_weights)
    return grid, sensitivity + grid * math.sqrt(n_weights) + rounding


def step_room(
    kind: str, multiplier: float, change: float, bound: float, rounding: float, n_weights: int
) -> tuple[float, float, float]:
    """Scale of the noise in every step, the change it is calibrated for, and its grid.

    Parameters
    ----------
    kind : str
        "gaussian" or "k-norm"; for messages.
    multiplier : float
        Scale of the noise over the change.
    change : float
        What the sum of a batch moves by between neighbours.
    bound : float
        On the norm of what one unit of privacy adds to the sum.
    rounding : float
        Bound on how far float64 rounding moves two sums apart.
    n_weights : int
        Length of the weight vector.

    Returns
    -------
    scale : float
    calibrated : float
        change + grid sqrt(n_weights) + rounding; scale is multiplier times that, or a little more.
    grid : float

    Raises
    ------
    GuaranteeError
        If the rounding exceeds a hundredth of `bound`, the grid would be too coarse for so long a
        vector, or the server cannot draw so small a noise.

    Notes
    -----
    The grid follows from the scale, and the scale from the grid: scale = multiplier (change + g sqrt(d) + fp)
    with g <= 2^-20 scale. Source: privacy/README.md, "Noise inside a pass".
    """
    if rounding > ROUNDING_LIMIT * bound:
        raise GuaranteeError(
            f"float64 rounding of a batch's sum could reach {rounding:.1e}, more than a hundredth of what "
            f"one unit can add to it, {bound:.1e}: take a smaller batch_size"
        )
    share = multiplier * math.sqrt(n_weights) * GRID_FRACTION
    if share > 0.5:
        raise ResolutionError(
            f"the {kind} noise of {multiplier:.3g} times the sensitivity has too coarse a grid for "
            f"{n_weights} weights"
        )
    scale = multiplier * (change + rounding) / (1.0 - share) * (1.0 + 2.0**-40)
    if scale < LEAST_SCALE:
        raise GuaranteeError(
            f"noise of scale {scale:.1e} is below {LEAST_SCALE:.0e}, too small for the server: take "
            "a larger clip"
        )
    grid = noise_grid(scale)
    return scale, change + grid * math.sqrt(n_weights) + rounding, grid


def with_least_epsilon(attempt: Callable[[float], Planned], epsilon: float) -> Planned:
    """What is planned for an epsilon, or a refusal that names the least epsilon that could be planned.

    Parameters
    ----------
    attempt : callable
        Plans for an epsilon, from public numbers alone.
    epsilon : float
        In (0, `MOST_EPSILON`].

    Raises
    ------
    ResolutionError
        If epsilon is too small; the one that is named was tried.
    """
    try:
        return attempt(epsilon)
    except ResolutionError as error:
        reason = error

    def possible(larger: float) -> bool:
        try:
            attempt(larger)
        except GuaranteeError:
            return False
        return True

    low, least = epsilon, MOST_EPSILON
    if not possible(least):
        raise reason
    while least > 1.01 * low:
        middle = math.sqrt(low * least)
        low, least = (low, middle) if possible(middle) else (middle, least)
    least = next(rounded for rounded in (rounded_up(least), least) if possible(rounded))
    refusal = ResolutionError(
        f"epsilon = {epsilon:g} is too small for the precision of this run's noise: take epsilon = "
        f"{least:.12g} or more ({reason})"
    )
    refusal.least = least
    raise refusal from None


def rounded_up(value: float) -> float:
    """The least number of three digits that is not below a value > 0."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return float(f"{math.ceil(value / unit) * unit:.3g}")
