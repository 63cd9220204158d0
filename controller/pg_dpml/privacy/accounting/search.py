# SPDX-License-Identifier: PostgreSQL
"""What an account of a run of steps answers, and the search for the least noise that an epsilon allows."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pg_dpml.privacy.accounting.losses import GridTooLongError

__all__ = ["Accounted", "check_run", "fitting", "least_multiplier"]

Accountant = Literal["exact", "pld", "rdp"]

_MOST_COARSENED = 1000.0
"""A grid that would have to be coarser by more than this says nothing of use."""

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


def check_run(*, steps: int, delta: float, positive: dict[str, float]) -> None:
    """Refuse arguments outside their domains, by name."""
    for name, value in positive.items():
        if not (0.0 < value < math.inf):
            raise ValueError(f"{name} must be in (0, inf), not {value}")
    if steps < 1:
        raise ValueError(f"steps must be at least 1, not {steps}")
    if not (0.0 < delta < 1.0):
        raise ValueError(f"delta must be in (0, 1), not {delta}")


def fitting(value: Callable[[float], float], interval: float) -> tuple[float, float]:
    """A value on a grid of the given interval, or of the next coarser one that fits; that interval."""
    longest = _MOST_COARSENED * interval
    while interval <= longest:
        try:
            return value(interval), interval
        except GridTooLongError as error:
            interval *= 1.02 * error.factor
    return math.inf, interval


def least_multiplier(
    cost: Callable[[float], Accounted], start: float, most: float, target: float, width: float = 1e-5
) -> Accounted:
    """Least cost in [(1 - _SLACK) target, target], or that of `most` if nothing below it is enough.

    Or one whose multiplier is by less than a share of `width` above one that costs more than the target. A
    bracketed secant method in the logarithms of multiplier and epsilon.
    """
    floor = math.log(_LEAST_MULTIPLIER)
    found: Accounted | None = None
    low, high = (-math.inf, math.inf), (math.log(most), -math.inf)
    aim = math.log1p(-0.4 * _SLACK)
    x = min(max(math.log(start), floor), high[0])
    for turn in range(25):
        at = cost(math.exp(x) if x < high[0] else most)
        y = math.log(at.epsilon / target) if at.epsilon > 0.0 else -math.inf
        if math.isnan(at.epsilon):  # which shows nothing
            y = math.inf
        if y > 0.0:
            low = (x, y)
        else:
            found, high = at, (x, y)
            if y >= math.log1p(-_SLACK) or x == floor:
                break
        between = high[0] - low[0]
        if between < width:
            break
        if math.isinf(between):  # epsilon falls at least like 1 / multiplier
            x = max(x - min(aim - y + 1e-4, 0.5), floor)
        elif math.isinf(high[1]):
            x = low[0] + min(0.5 * between, low[1] - aim, 0.5)
        elif math.isinf(low[1]) or turn % 4 == 3:
            x = low[0] + 0.5 * between
        else:
            x = low[0] + between * min(max((low[1] - aim) / (low[1] - high[1]), 0.01), 0.99)
    return cost(most) if found is None else found
