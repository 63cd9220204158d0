# SPDX-License-Identifier: PostgreSQL
"""Privacy losses of one step on a grid."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from pg_dpml.privacy.accounting.bounds import FloatArray

__all__ = ["MOST_LOSS", "GridTooLongError", "Losses", "StepLosses", "grid_of"]

_MOST_STEP_POINTS = 2**17
"""Longest grid of the losses of one step."""

MOST_LOSS = 600.0
"""exp of it is a finite number; a larger loss of one step counts as infinite."""


class GridTooLongError(Exception):
    """A grid of losses has `factor` times the points it may have."""

    def __init__(self, factor: float) -> None:
        super().__init__(factor)
        self.factor = factor


def _blocks(first: int, count: int) -> npt.NDArray[np.intp]:
    """Starts of blocks of grid points from `first` on, each 0.2 % as wide as it is distant from 0."""
    near = 2048
    far = (near * 1.002 ** np.arange(math.log(max(count / near, 1.0)) / math.log(1.002) + 2)).astype(np.intp)
    starts = np.concatenate((-far, np.arange(1 - near, near), far)) - first
    return np.unique(np.clip(starts, 0, count - 1))


@dataclass(frozen=True)
class StepLosses:
    """Pessimistic distribution of one step's loss, on multiples of `interval` from `first` upwards."""

    interval: float
    first: int
    masses: FloatArray
    infinite: float

    @property
    def last(self) -> int:
        """The largest finite loss, a multiple of `interval`."""
        return self.first + len(self.masses) - 1

    @cached_property
    def losses(self) -> FloatArray:
        """The finite losses."""
        return self.interval * (self.first + np.arange(len(self.masses), dtype=np.float64))

    @cached_property
    def logs(self) -> FloatArray:
        """Logarithms of the masses."""
        with np.errstate(divide="ignore"):
            found: FloatArray = np.log(self.masses)
        return found

    @cached_property
    def blocks(self) -> tuple[FloatArray, FloatArray]:
        """Logarithms of the masses, and means, of blocks of losses."""
        starts = _blocks(self.first, len(self.masses))
        sums: FloatArray = np.maximum(np.add.reduceat(self.masses, starts), 1e-300)
        return np.log(sums), np.add.reduceat(self.masses * self.losses, starts) / sums

    def infinite_of(self, steps: int) -> float:
        """Probability that any of so many steps has an infinite loss."""
        return -math.expm1(steps * math.log1p(-self.infinite))


Losses = Callable[[float, float, bool], StepLosses]
"""The losses of one step: of the grid's interval, the tail that may count as infinite (in standard deviations
of a normal distribution), and whether the unit is removed."""


def grid_of(low: float, high: float, interval: float) -> tuple[int, int]:
    """First and last multiple of an interval for losses between two bounds, within what exp can take.

    Raises
    ------
    GridTooLongError
    """
    first = math.floor(max(low, -MOST_LOSS) / interval)
    last = max(math.ceil(min(high, MOST_LOSS) / interval), first + 1)
    if last - first > _MOST_STEP_POINTS:
        raise GridTooLongError((last - first) / _MOST_STEP_POINTS)
    return first, last
