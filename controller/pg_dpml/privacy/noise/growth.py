# SPDX-License-Identifier: PostgreSQL
"""How noise in every step adds up in a model, and which steps keep it finite."""

from __future__ import annotations

import math

from pg_dpml.errors import SpecError
from pg_dpml.kernels import Schedule

__all__ = [
    "noise_growth",
    "require_stable",
]


_GROWTH_POINTS = 4000


def noise_growth(
    *,
    schedule: Schedule,
    steps: int,
    lambda_: float,
    momentum: float,
    average_from: int,
    batch_size: int,
    radius: float,
    sum_stddev: float,
) -> float:
    """Standard deviation of the released model's coordinates, by noise alone.

    Parameters
    ----------
    schedule : Schedule
    steps : int
        T >= 0.
    lambda_ : float
        L2 regulariser: it damps earlier noise.
    momentum : float
        In [0, 1): a step counts 1 / (1 - momentum) times.
    average_from : int
        First averaged step; 0 releases the last iterate.
    batch_size : int
        b >= 1.
    radius : float
        No coordinate gets beyond it; infinity for none.
    sum_stddev : float
        Of a coordinate of the noise on a batch's sum.

    Notes
    -----
    With the weights A_t of "Sensitivity of any schedule", but rho_t = abs(1 - eta_t lambda):
    sqrt(sum (eta_t A_t)^2) sum_stddev / b, over some thousand groups of steps.
    """
    if steps == 0:
        return 0.0
    if steps <= _GROWTH_POINTS:
        edges = list(range(1, steps + 2))
    else:  # fine at both ends: steps change at the first, damping at the last
        ratio = math.log(steps + 1.0) / _GROWTH_POINTS
        places = {round(math.exp(ratio * i)) for i in range(_GROWTH_POINTS)}
        edges = sorted(places | {steps + 2 - place for place in places} | {steps + 1})
    first = average_from or steps
    weight, square = 0.0, 0.0
    for low, high in zip(reversed(edges[:-1]), reversed(edges[1:]), strict=True):
        count = high - low
        share = max(0, high - max(low, first)) / (count * (steps - first + 1))
        step = schedule.step(low + count // 2) / (1.0 - momentum)
        damping = abs(1.0 - step * lambda_)
        middle = _repeat(0.5 * (count - 1), weight + share, damping, share)
        moved = step * middle
        square += count * (moved * moved)  # where ** 2 could overflow
        weight = damping * _repeat(count - 1, weight + share, damping, share)
    return min(math.sqrt(square) * sum_stddev / batch_size, radius)


def _repeat(turns: float, value: float, factor: float, added: float) -> float:
    """Where so many turns of value <- factor value + added lead."""
    if factor == 1.0:
        return value + turns * added
    kept = math.pow(factor, turns)
    return value * kept + added * (1.0 - kept) / (1.0 - factor)


def require_stable(step_size: float, lambda_: float) -> None:
    """Refuse steps at which the regulariser itself would make the model grow without bound.

    Parameters
    ----------
    step_size : float
        The longest step.
    lambda_ : float
        L2 regulariser, in [0, inf).

    Raises
    ------
    SpecError
        If a step is above 2 / lambda.
    """
    if step_size * lambda_ > 2.0:
        raise SpecError(
            f"step_size = {step_size:g} is above 2/lambda = {2.0 / lambda_:g}, where every step "
            "throws the model further out: take a smaller step_size"
        )
