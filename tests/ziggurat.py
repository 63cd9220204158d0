# SPDX-License-Identifier: PostgreSQL
"""The sampler of udas/kernels/noise.c in whole numbers: tables, places, and what of them a grid point has."""

from __future__ import annotations

import functools
import itertools
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
    "ideal",
    "relative_error",
    "share_under_curve",
]

mp.dps = 50

PLACES = 2**55
"""Of a strip on either side of 0, and of a piece of the tail."""

DIGITS = 2**64
"""Parts of a place, which a further word chooses from."""


def _tables() -> list[list[str]]:
    text = (Path(__file__).resolve().parents[1] / "udas" / "kernels" / "ziggurat.h").read_text()
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


def relative_error(stddev: float, point: int) -> mpf:
    """Of the probability that the code's places give a grid point >= 0, against a rounded normal's.

    Parts are counted exactly. What lies under the curve is the exact share of it, integrated over the point's
    parts of each strip: how far the code's own float64 share is from that is for another test.
    """
    steps = Steps(stddev)
    found = mpf(0)
    for strip in range(256):
        width = steps.width(EDGES[strip])
        low, high = (steps.first_part(at, 0, width) for at in (point, point + 1))
        low, high = max(low, -PLACES * DIGITS), min(high, PLACES * DIGITS)
        inside = INSIDE[strip] * DIGITS
        within = max(0, min(high, inside) - max(low, -inside))
        total = mpf(within)
        if strip > 0:
            for start, end in ((max(low, inside), high), (low, min(high, -inside))):
                if end > start:
                    total += _under_curve(strip, start, end)
        found += total / (2 * PLACES * DIGITS)
    found /= 256
    found += _tail(steps, point)
    return found / (_kept() * ideal(stddev, point)) - 1


@functools.cache
def _kept() -> mpf:
    """Share of words that are not drawn again."""
    edges = [mpf(edge) / 2**61 for edge in EDGES]
    kept = mpf(1)  # of strip 0
    for edge, inner in itertools.pairwise(edges[1:]):
        outer = mp.exp(-(edge**2) / 2)
        height = mp.exp(-(inner**2) / 2) - outer
        curve = mp.sqrt(mp.pi / 2) * (mp.erf(edge / mp.sqrt(2)) - mp.erf(inner / mp.sqrt(2)))
        kept += (inner * height + curve - (edge - inner) * outer) / (edge * height)
    return kept / 256


def _under_curve(strip: int, start: int, end: int) -> mpf:
    """Parts from start to end of a strip that lie under the curve."""
    scale = mpf(EDGES[strip]) / 2**61 / (PLACES * DIGITS)
    middle, half = mpf(start + end) / 2, mpf(end - start) / 2
    # Gauss, three points: a grid point is narrow
    root = mp.sqrt(mpf(3) / 5)
    shares = [
        weight * min(mpf(1), share_under_curve(strip, abs(middle + at * half) * scale))
        for at, weight in ((-root, 5), (0, 8), (root, 5))
    ]
    return (end - start) * sum(shares) / 18


def _tail(steps: Steps, point: int) -> mpf:
    """Probability of a grid point >= 0 by the tail."""
    unit = mpf(1) / 2**61
    reaches = 1 - mpf(INSIDE[0]) / PLACES  # of numbers of strip 0
    begin = INSIDE[0] * steps.width(EDGES[0])
    width = steps.width(2**59)
    edge = EDGES[1] * unit
    low, high = (max(0, steps.first_part(at, begin, width)) for at in (point, point + 1))
    if high <= low:
        return mpf(0)
    # the integral of exp((edge^2 - x^2) / 2) over the tail, in pieces of 1/4
    whole = 4 * mp.exp(edge**2 / 2) * mp.sqrt(mp.pi / 2) * mp.erfc(edge / mp.sqrt(2))
    middle, half = mpf(low + high) / 2, mpf(high - low) / 2
    root = mp.sqrt(mpf(3) / 5)
    height = sum(
        weight * mp.exp((edge**2 - (edge + (middle + at * half) / (4 * PLACES * DIGITS)) ** 2) / 2)
        for at, weight in ((-root, 5), (0, 8), (root, 5))
    )
    return reaches / 512 * (mpf(high - low) / (PLACES * DIGITS)) * height / 18 / whole


def ideal(stddev: float, point: int) -> mpf:
    """Probability that a normal of a standard deviation rounds to a grid point >= 0."""
    low, high = ((point + at) / mpf(stddev) / mp.sqrt(2) for at in (mpf(-0.5), mpf(0.5)))
    return (mp.erfc(low) - mp.erfc(high)) / 2
