# SPDX-License-Identifier: PostgreSQL
"""The tables of udas/kernels/ziggurat.h, and where its places lie on a grid, in whole numbers."""

from __future__ import annotations

import math
import re
from pathlib import Path

from mpmath import mp, mpf

__all__ = [
    "EDGES",
    "INSIDE",
    "PLACES",
    "RISE",
    "TAIL",
    "Steps",
    "share_under_curve",
]

mp.dps = 60

PLACES = 2**55
"""Of a strip on either side of 0, and of a piece of the tail."""

DIGITS = 2**64
"""Parts of a place, which a further word chooses from."""


def _tables() -> list[list[str]]:
    text = (Path(__file__).resolve().parents[2] / "udas" / "kernels" / "ziggurat.h").read_text()
    return [
        re.findall(r"[0-9][0-9.e+-]*", table)
        for table in re.findall(r"\[\d+\] = \{(.*?)\};", text, re.DOTALL)
    ]


EDGES, INSIDE = ([int(number) for number in table] for table in _tables()[:2])
"""Of the C source: edges in 2^-61, and places inside."""

RISE, TAIL = ([float(number) for number in table] for table in _tables()[2:])


class Steps:
    """Lengths in steps of a grid, as `begin_steps` has them.

    Parameters
    ----------
    stddev : float
        In steps, in [2^-9, 2^45].
    """

    def __init__(self, stddev: float) -> None:
        fraction, exponent = math.frexp(stddev)
        self.stddev = stddev
        self.factor = int(fraction * 2.0**64)
        self.shift = 116 - exponent
        assert 64 <= self.shift <= 125

    def width(self, length: int) -> int:
        """What 2^55 places of a length in 2^-61 have, in 2^-shift steps of 2^55."""
        return length * self.factor >> 64

    def first_part(self, point: int, begin: int, width: int) -> int:
        """The first part of a strip, of 2^64 a place, that is at `point` or beyond."""
        bound = (point << self.shift) - (1 << (self.shift - 1)) - begin
        return -(-(bound << 64) // width)

    def point(self, number: int, digits: int, begin: int, width: int) -> int:
        """The grid point of a part of a place, as `point_of` finds it."""
        return (begin + number * width + (digits * width >> 64) + (1 << (self.shift - 1))) >> self.shift


def share_under_curve(strip: int, x: mpf) -> mpf:
    """Share of a strip's height that lies under exp(-x^2/2) at x, between its edges."""
    edge, inner = (mpf(EDGES[i]) / 2**61 for i in (strip, strip + 1))
    return mp.expm1((edge - x) * (edge + x) / 2) / mp.expm1((edge - inner) * (edge + inner) / 2)
