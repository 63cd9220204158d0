# SPDX-License-Identifier: PostgreSQL
"""Probability of a grid point under the noise sampler, counted in words of the key stream.

`Counts` counts by the lengths of the strips, in whole numbers of any size; `measured_places` asks
the C code itself how many words lead to smaller points. Nothing is taken from the C code but the strips'
edges and what its functions say a place is kept with.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from functools import cache, cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from mpmath import mp, mpf

from helpers import ziggurat
from helpers.neighbours import FloatArray
from pg_dpml._kernels import ffi as _untyped_ffi
from pg_dpml._kernels import lib as _untyped_lib

ffi: Any = _untyped_ffi
lib: Any = _untyped_lib

mp.dps = 60

LongArray = npt.NDArray[np.longdouble]

STRIPS = 256
PIECES = 64
PIECE = 2**59
"""Length of a piece of the tail, in 2^-61 of a standard deviation as all lengths are."""

WORDS = 2**64

EDGES, INSIDE, PLACES, KEPT_PIECES = ziggurat.EDGES, ziggurat.INSIDE, ziggurat.PLACES, ziggurat.TAIL

TAIL = float(Fraction(EDGES[0] * INSIDE[0], PLACES * 2**61))
"""Where the tail begins, in standard deviations."""


def under_curve(strip: int, place: int) -> float:
    """Probability that a place is kept."""
    return min(1.0, float(lib.dpml_normal_under_curve(strip, place)))


def in_tail(piece: int, place: int) -> float:
    """The same of a place of a piece of the tail."""
    return min(1.0, float(lib.dpml_normal_in_tail(piece, place)))


@cache
def _gauss_legendre() -> list[tuple[mpf, mpf]]:
    """Nodes and weights of 16 points in [-1, 1]."""
    n, found = 16, []
    for start in np.polynomial.legendre.leggauss(n)[0]:
        node = mpf(float(start))
        for _ in range(3):
            slope = n * (node * mp.legendre(n, node) - mp.legendre(n - 1, node)) / (node**2 - 1)
            node -= mp.legendre(n, node) / slope
        found.append((node, 2 / ((1 - node**2) * slope**2)))
    return found


def _sum_kept(low: int, high: int, kept: Callable[[int], float]) -> mpf:
    """Sum over places of what is kept, from a place to another; in 1/WORDS of a place both."""
    if high <= low:
        return 0
    if high - low <= 64 * WORDS:
        total = mpf(0)
        for place in range(low // WORDS, -(-high // WORDS)):
            share = min(high, (place + 1) * WORDS) - max(low, place * WORDS)
            total += share * mpf(kept(place))
        return total
    # a smooth function of the place, by Gauss and Legendre
    middle, half = mpf(low + high) / 2, mpf(high - low) / 2
    return half * sum(weight * kept(int(middle + node * half) // WORDS) for node, weight in _gauss_legendre())


def _sum_strip(strip: int, low: int, high: int) -> mpf:
    """The same for a strip above the lowest, of whose places those inside are always kept."""
    edge = INSIDE[strip] * WORDS
    inside = max(0, min(high, edge) - low)
    low, high = max(low, edge), min(high, PLACES * WORDS)
    return inside + _sum_kept(low, high, lambda place: under_curve(strip, place))


@cache
def _strips_total() -> mpf:
    """Of one side, in words' shares of a place: of all strips, the lowest with its tail."""
    return PLACES * WORDS + sum(_sum_strip(strip, 0, PLACES * WORDS) for strip in range(1, STRIPS))


@cache
def _tail_total() -> mpf:
    return sum(_sum_piece(piece, 0, PLACES * WORDS) for piece in range(PIECES))


def _sum_piece(piece: int, low: int, high: int) -> mpf:
    kept = _sum_kept(max(low, 0), min(high, PLACES * WORDS), lambda place: in_tail(piece, place))
    return kept * mpf(KEPT_PIECES[piece]) / 2 ** (piece + 1)


class Counts:
    """Of the words that lead to grid points, for one standard deviation in steps of the grid."""

    def __init__(self, stddev: float) -> None:
        self.stddev = stddev
        exponent = math.frexp(stddev)[1]
        self.shift = min(125, 116 - exponent)
        """Lengths are in 2^-shift of a step."""
        unit = Fraction(stddev) * Fraction(2) ** (self.shift - 116)
        self.widths = [int(edge * unit) for edge in EDGES[:STRIPS]]
        self.tail_width = int(PIECE * unit)
        self.tail_begin = INSIDE[0] * self.widths[0]

    def bounds(self, point: int) -> tuple[int, int]:
        """Where a point's cell begins and ends."""
        half = 1 << (self.shift - 1)
        return (point << self.shift) - half, (point << self.shift) + half

    @staticmethod
    def _places(length: int, width: int) -> int:
        """Places before a bound, in 1/WORDS: of one that reaches over it as many words as lead before it."""
        whole, rest = divmod(length, width)
        return whole * WORDS - (-rest * WORDS // width)

    def places(self, strip: int, length: int) -> int:
        """Places of a strip before a bound, in 1/WORDS."""
        return self._places(length, self.widths[strip])

    def tail_places(self, length: int) -> int:
        return self._places(length - self.tail_begin, self.tail_width)

    def probability(self, point: int) -> mpf:
        """Of a point."""
        low, high = self.bounds(abs(point))
        low = max(low, 0)
        total = 0  # exact, until places are kept by the curve
        for strip in range(1, STRIPS):
            if low >= self.widths[strip] * PLACES:
                break
            total += _sum_strip(strip, self.places(strip, low), self.places(strip, high))
        total += max(
            0, min(self.places(0, high), INSIDE[0] * WORDS) - min(self.places(0, low), INSIDE[0] * WORDS)
        )
        if high > self.tail_begin:
            total += self._of_tail(max(low, self.tail_begin), high)
        return total / _strips_total() / (1 if point == 0 else 2)

    def _of_tail(self, low: int, high: int) -> mpf:
        begin, end = self.tail_places(low), self.tail_places(high)
        per_piece = PLACES * WORDS
        found = mpf(0)
        for piece in range(begin // per_piece, min(PIECES, end // per_piece + 1)):
            found += _sum_piece(piece, begin - piece * per_piece, end - piece * per_piece)
        return found / _tail_total() * (PLACES - INSIDE[0]) * WORDS

    def error(self, point: int) -> float:
        """By how much the probability of a point is off, relative to that of the normal, rounded.

        What lies beyond the tail's last piece, 2^-282 of the normal, does not count.
        """
        ideal = normal_probability(point, self.stddev)
        off = abs(self.probability(point) - ideal) - mpf(2) ** -282
        return float(max(mpf(0), off) / ideal) if ideal else 0.0

    def log_errors(self, points: FloatArray) -> FloatArray:
        """ln of the probability of many points over the normal's, for a fine grid.

        A cell counts as many places of every strip that has it inside; of the strip whose curve goes
        through it, those that are kept at the place in its middle. Beyond the tail's begin: 0.
        """
        cells, whole, scale = self._fine
        edges = np.array(EDGES, dtype=np.longdouble)
        out = np.zeros(len(points))
        far = np.abs(points).astype(np.longdouble) / np.longdouble(self.stddev) * np.longdouble(2.0**61)
        strips = STRIPS - np.searchsorted(edges[::-1][1:], far, side="right")
        here = np.flatnonzero(strips > 0)
        here = here[far[here] < edges[1] * np.longdouble(1.0 - 1e-9)]
        strips = strips[here] - 1
        places = np.floor(far[here] / edges[strips] * PLACES).astype(np.int64)
        under = lib.dpml_normal_under_curve
        kept = np.fromiter(map(under, strips.tolist(), places.tolist()), float, len(places))
        found = whole[strips] + np.minimum(kept, 1.0) * cells[strips]
        x = (places + np.longdouble(0.5)) * edges[strips] * np.longdouble(2.0**-116)
        out[here] = np.log(found / (scale * np.exp(-x * x / 2))).astype(np.float64)
        return out

    @cached_property
    def _fine(self) -> tuple[LongArray, LongArray, np.longdouble]:
        """Places of each strip in a cell, of all strips below it, and the density that they make at 0."""
        per_cell = [mpf(1 << self.shift) / width for width in self.widths]
        below = [mpf(0), *itertools.accumulate(per_cell[:-1])]
        scale = 2 * _strips_total() / WORDS / mpf(self.stddev) / mp.sqrt(2 * mp.pi)
        return np.array([*map(_long, per_cell)]), np.array([*map(_long, below)]), _long(scale)


def _long(number: mpf) -> np.longdouble:
    return np.longdouble(mp.nstr(number, 25))


def normal_probability(point: int, stddev: float) -> mpf:
    """That a normal of that standard deviation rounds to a whole number."""
    low, high = (mpf(2 * abs(point) + side) / (2 * mpf(stddev)) / mp.sqrt(2) for side in (-1, 1))
    return (mp.erfc(low) - mp.erfc(high)) / 2


class Sampler:
    """The C code, given the words of the key stream."""

    def __init__(self) -> None:
        self._rng = ffi.new("DpmlRng *")
        lib.dpml_rng_start(self._rng, bytes(32))
        self._out = ffi.new("double *")
        self.used = 0
        """Words that the last number took."""

    def point(self, stddev: float, *words: int) -> int:
        """The number that begins with these words."""
        rng = self._rng
        for i, word in enumerate(words):
            rng.words[i] = word
        rng.used = 0
        lib.dpml_noise_gaussian(rng, 1, stddev, self._out)
        self.used = rng.used
        return int(self._out[0])

    def coin(self, probability: float, *words: int) -> int:
        """The coin that begins with these words."""
        for i, word in enumerate(words):
            self._rng.words[i] = word
        self._rng.used = 0
        found = int(lib.dpml_rng_coin(self._rng, probability))
        self.used = self._rng.used
        return found


def hit_words(probability: float) -> list[int]:
    """Words at which a coin hits, the fewest."""
    return [] if probability >= 1.0 else [0] * (1 + -math.frexp(probability)[1] // 64)


def strip_words(strip: int, place: int, digits: int) -> tuple[int, ...]:
    """Words of a place of a strip, from -PLACES on, that is kept; `digits` follow where more are needed."""
    word = (place % 2**56) << 8 | strip
    number = place if place >= 0 else ~place
    coin = [] if number < INSIDE[strip] else hit_words(under_curve(strip, number))
    return word, *coin, digits


def tail_words(place: int, digits: int, negative: bool = False) -> tuple[int, ...]:
    """Words of a place of the tail, counted from where it begins, that is kept."""
    piece, number = divmod(place, PLACES)
    coins = [*hit_words(KEPT_PIECES[piece]), *hit_words(in_tail(piece, number))]
    first = (-PLACES if negative else PLACES - 1) % 2**56 << 8
    return first, 1 << (63 - piece), number << 9, *coins, digits


def first_word(reaches: Callable[[int], bool], near: int, bits: int) -> int:
    """The least place, in 1/WORDS, at which `reaches` is true, within 2^bits; it lies close to `near`."""
    step = WORDS // 4
    low, high = near - step, near + step
    assert not reaches(low)
    assert reaches(high)
    while high - low > 2**bits:
        middle = (low + high) // 2
        if reaches(middle):
            high = middle
        else:
            low = middle
    return high


def measured_places(sampler: Sampler, stddev: float, strip: int, point: int, bits: int = 30) -> int:
    """Places of a strip before a point, as `Counts.places` has them, by the C code alone."""
    near = int((2 * point - 1) / (2 * Fraction(stddev)) * 2**61 * PLACES * WORDS / EDGES[strip])
    return first_word(
        lambda at: sampler.point(stddev, *strip_words(strip, at // WORDS, at % WORDS)) >= point, near, bits
    )


def measured_tail_places(sampler: Sampler, stddev: float, point: int, bits: int = 30) -> int:
    """The same of the tail, from where it begins."""
    begin = Fraction(EDGES[0] * INSIDE[0], PLACES)
    near = int(((2 * point - 1) / (2 * Fraction(stddev)) * 2**61 - begin) * PLACES * WORDS / PIECE)
    return first_word(
        lambda at: sampler.point(stddev, *tail_words(at // WORDS, at % WORDS)) >= point, near, bits
    )
