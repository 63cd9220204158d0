# SPDX-License-Identifier: PostgreSQL
"""Un-noised sums of neighbouring tables: no further apart than the noise of full-batch methods is made for.

The bounds are written from the rules, not taken from the product.
Source: privacy/README.md, "Losses" and "Unit of privacy".
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from helpers import neighbours, replay
from helpers.neighbours import LOSSES, FloatArray
from pg_dpml.kernels import Loss
from pg_dpml.spec.relation import Relation

PAIRS = 400
"""Of each loss and form of blocks."""

FORMS = ("dense", "csr")
ULP = 2.0**-52

LIPSCHITZ = {
    "logistic": 1.0,
    "logistic-clipped": 0.3,
    "huber_svm": 1.0,
    "huber_svm-clipped": 0.4,
    "squared-clipped": 0.5,
    "softmax": math.sqrt(2.0),
    "one-vs-all-clipped": 0.3 * math.sqrt(3.0),
    "one-vs-all-huber": math.sqrt(3.0),
    "squared": math.inf,
}
ALL_LOSSES = LOSSES | {"squared": Loss("squared")}


@dataclass(frozen=True)
class Units:
    """Rows of a table, shape (n, d), and the unit each belongs to: rising numbers, shape (n,)."""

    x: FloatArray
    y: FloatArray
    unit: npt.NDArray[np.intp]

    @property
    def starts(self) -> npt.NDArray[np.bool_]:
        return np.diff(self.unit, prepend=-1) > 0

    def change(self, unit: int, x: npt.ArrayLike, y: npt.ArrayLike) -> Units:
        """The neighbour whose one unit has these rows."""
        other = Units(self.x.copy(), self.y.copy(), self.unit)
        other.x[self.unit == unit], other.y[self.unit == unit] = x, y
        return other

    def blocks(self, form: str, ends: list[int]) -> list[bytes]:
        return neighbours.pack(form, self.x, self.y, self.starts, ends)


def random_row(rng: np.random.Generator, n_features: int) -> FloatArray:
    """Of norm at most 1 as float32: long, along an axis, tiny, denormal, zero, sparse."""
    row = rng.normal(size=n_features)
    kind = rng.integers(6)
    if kind == 0:
        row = np.eye(n_features)[rng.integers(n_features)] * rng.choice([-1.0, 1.0])
    elif kind == 1:
        row *= rng.random(n_features) < 0.4
    elif kind == 2:  # entries of very different sizes
        row *= 10.0 ** rng.uniform(-44.0, 0.0, n_features)
    norm = float(np.linalg.norm(row))
    row *= neighbours.LONGEST_ROW / norm if norm > 0.0 else 0.0
    row *= rng.choice([1.0, 1.0, 1.0, 1.0, rng.random(), 1e-30, 1e-42, 0.0])
    return np.asarray(row, dtype=np.float32).astype(np.float64)


def random_label(rng: np.random.Generator, loss: Loss) -> float:
    """Mostly a label, sometimes what only forged bytes hold."""
    if rng.random() < 0.05:
        return float(rng.choice([math.nan, math.inf, -math.inf, 1e30, -3.0, 0.5, 0.0]))
    if loss.n_classes > 1:
        return float(rng.integers(loss.n_classes))
    return float(rng.choice([-1.0, 1.0]))


def random_relation(rng: np.random.Generator) -> Relation:
    return Relation.REPLACE_ONE if rng.random() < 0.5 else Relation.ADD_REMOVE


def random_units(
    rng: np.random.Generator, loss: Loss, n_units: int, most_rows: int, n_features: int
) -> Units:
    sizes = rng.integers(1, most_rows + 1, size=n_units)
    n = int(sizes.sum())
    return Units(
        np.array([random_row(rng, n_features) for _ in range(n)]),
        np.array([random_label(rng, loss) for _ in range(n)]),
        np.repeat(np.arange(n_units), sizes),
    )


def forge(rng: np.random.Generator, table: Units, unit: int) -> Units:
    """A row of no finite values, not in the unit that will change: it counts for nothing."""
    others = np.flatnonzero(table.unit != unit)
    if len(others) == 0 or rng.random() < 0.7:
        return table
    x = table.x.copy()
    x[rng.choice(others), rng.integers(x.shape[1])] = rng.choice([math.nan, math.inf, -math.inf])
    return Units(x, table.y, table.unit)


def random_neighbour(
    rng: np.random.Generator, loss: Loss, table: Units, unit: int, relation: Relation
) -> Units:
    own = table.unit == unit
    if relation is Relation.ADD_REMOVE:
        return table.change(unit, 0.0, 0.0 if loss.n_classes == 1 else -1.0)
    if rng.random() < 0.4:
        return table.change(unit, -table.x[own], table.y[own])
    n, d = int(own.sum()), table.x.shape[1]
    labels = [random_label(rng, loss) for _ in range(n)]
    return table.change(unit, np.array([random_row(rng, d) for _ in range(n)]), labels)


def random_weights(rng: np.random.Generator, size: int) -> FloatArray:
    weights: FloatArray = rng.normal(size=size) * rng.choice([0.0, 1.0, 1.0, 30.0, 1e4, 1e150, 1e300])
    if rng.random() < 0.1:
        weights[rng.integers(size)] = rng.choice([math.nan, math.inf, -math.inf, 1.7e308])
    return weights


def random_ends(rng: np.random.Generator, table: Units) -> list[int]:
    """Where blocks end: between units, as rows of a unit are packed together."""
    cuts = np.flatnonzero(table.starts)[1:]
    return [*(int(cut) for cut in cuts[rng.random(len(cuts)) < 0.15]), len(table.y)]


def change_of(bound: float, relation: Relation) -> float:
    return 2.0 * bound if relation is Relation.REPLACE_ONE else bound


def rounding(n_rows: int, bound: float) -> float:
    """Of two sums of so many terms."""
    return ULP * n_rows * bound * (n_rows + 16)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ALL_LOSSES)
def test_gradients_and_losses_of_neighbours(name: str, form: str) -> None:
    loss, lipschitz = ALL_LOSSES[name], LIPSCHITZ[name]
    rng = np.random.default_rng(zlib.crc32(f"{name} {form}".encode()))
    reached, reached_losses = 0.0, 0.0
    for pair in range(PAIRS):
        if pair % 8 == 0:  # tables cost more than sums
            d, m = int(rng.choice([1, 2, 5, 9, 17])), int(rng.choice([1, 1, 2, 5]))
            table = random_units(rng, loss, int(rng.integers(1, 20)), m, d)
        unit = int(rng.integers(table.unit[-1] + 1))
        relation = random_relation(rng)
        forged = forge(rng, table, unit)
        other = random_neighbour(rng, loss, forged, unit, relation)
        gradient_clip = float(rng.choice([math.inf, 0.02, 0.4, 1.0, 5.0]))
        if math.isinf(lipschitz) and math.isinf(gradient_clip):
            gradient_clip = 0.7
        unit_clip = float(rng.choice([math.inf, math.inf, 0.05, 0.6, 3.0]))
        loss_clip = float(rng.choice([0.1, 1.0, 20.0]))
        models = int(rng.integers(1, 4))
        weights = np.concatenate([random_weights(rng, loss.n_classes * d) for _ in range(models)])
        found = [
            replay.gradient(
                one.blocks(form, random_ends(rng, one)),
                weights,
                loss,
                models=models,
                gradient_clip=gradient_clip,
                unit_clip=unit_clip,
                loss_clip=loss_clip,
            )
            for one in (forged, other)
        ]
        (one, one_losses), (two, two_losses) = ((sums.gradient, sums.losses) for sums in found)
        assert one is not None
        assert two is not None
        assert one_losses is not None
        assert two_losses is not None
        n = len(table.y)
        row_bound = min(lipschitz, gradient_clip)
        bound = min(unit_clip, m * row_bound)
        apart = float(np.linalg.norm(one - two))
        # a difference that is not a number is beyond every bound
        assert apart <= change_of(bound, relation) + rounding(n, row_bound), (pair, relation, unit_clip)
        moved = np.abs(one_losses - two_losses)
        assert np.all(moved <= m * loss_clip + rounding(n, loss_clip)), (pair, relation)
        assert found[0].rows == found[1].rows == n
        reached = max(reached, apart / change_of(bound, relation))
        reached_losses = max(reached_losses, float(np.max(moved)) / (m * loss_clip))
    assert reached > 0.6  # the pairs do try
    assert reached_losses > 0.6


def saturated(loss: Loss, name: str) -> tuple[FloatArray, float]:
    """Weights (K, 2) and a label at which each score's derivative is as large as it gets where x[0] > 0."""
    if loss.kind == "squared":
        return np.zeros((1, 2)), 1e6
    if loss.n_classes == 1:
        return np.array([[-1e9, 0.0]]), 1.0
    weights = np.zeros((loss.n_classes, 2))
    weights[:, 0] = 1e9
    weights[0, 0] = -1e9
    if name == "softmax":  # all on one wrong class
        weights[2:, 0] = 0.0
    return weights, 0.0


CLIPS = [
    (1, math.inf, math.inf),
    (4, math.inf, math.inf),
    (1, 0.2, math.inf),
    (4, 0.2, math.inf),
    (4, 0.2, 0.3),
]
"""Rows of a unit, gradient_clip and unit_clip."""


@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize(("m", "gradient_clip", "unit_clip"), CLIPS)
@pytest.mark.parametrize("name", ALL_LOSSES)
def test_worst_pair_reaches_the_bound_of_gradients(
    name: str, m: int, gradient_clip: float, unit_clip: float, relation: Relation
) -> None:
    """Two almost opposite rows, whose scores are both of the wrong sign."""
    loss, lipschitz = ALL_LOSSES[name], LIPSCHITZ[name]
    if math.isinf(lipschitz):
        gradient_clip = min(gradient_clip, 0.7)  # without any clip there is no bound
    weights, label = saturated(loss, name)
    # float32 rounds, so a little below the longest row
    row = np.array([1e-3, neighbours.LONGEST_ROW - 2.0**-20])
    table = Units(np.tile(row, (3 * m, 1)), np.full(3 * m, label), np.repeat(np.arange(3), m))
    if relation is Relation.ADD_REMOVE:
        other = table.change(1, 0.0, 0.0)
    else:
        other = table.change(1, row * [1.0, -1.0], label)
    bound = change_of(min(unit_clip, m * min(lipschitz, gradient_clip)), relation)
    for form in FORMS:
        one, two = (
            replay.gradient(
                each.blocks(form, [m, 3 * m]), weights, loss, gradient_clip=gradient_clip, unit_clip=unit_clip
            ).gradient
            for each in (table, other)
        )
        assert one is not None
        assert two is not None
        assert 0.999 * bound <= np.linalg.norm(one - two) <= bound * (1.0 + 1e-12)


@pytest.mark.parametrize("name", [name for name in ALL_LOSSES if "squared" not in name])
def test_errors_of_neighbours(name: str) -> None:
    """At most one a row, and a zero row has none: under add_remove all candidates' errors fall."""
    loss = ALL_LOSSES[name]
    rng = np.random.default_rng(zlib.crc32(f"errors {name}".encode()))
    reached = 0.0
    for pair in range(PAIRS):
        if pair % 8 == 0:
            d, m = int(rng.choice([1, 2, 5, 9])), int(rng.choice([1, 1, 4]))
            table = random_units(rng, loss, int(rng.integers(1, 15)), m, d)
        unit = int(rng.integers(table.unit[-1] + 1))
        relation = random_relation(rng)
        other = random_neighbour(rng, loss, table, unit, relation)
        models = int(rng.integers(1, 6))
        weights = np.concatenate([random_weights(rng, loss.n_classes * d) for _ in range(models)])
        form = str(rng.choice(FORMS))
        one, two = (
            replay.gradient(
                each.blocks(form, random_ends(rng, each)),
                weights,
                loss,
                models=models,
                gradient=False,
                errors=True,
            ).losses
            for each in (table, other)
        )
        assert one is not None
        assert two is not None
        assert np.all(np.abs(one - two) <= m)
        if relation is Relation.ADD_REMOVE:
            assert np.all(two <= one)
        reached = max(reached, float(np.max(np.abs(one - two))) / m)
    assert reached == 1.0


@pytest.mark.parametrize("form", FORMS)
def test_a_row_counts_the_same_wherever_it_lies(form: str) -> None:
    """Bit for bit: one row can move where blocks begin, which must not change other rows' shares."""
    rng = np.random.default_rng(4)
    n, d = 23, 29
    base = np.array([random_row(rng, d) for _ in range(n)]) * 0.5
    x = np.hstack([base, 0.5 * np.eye(n)])  # a column of its own shows what each row adds
    y = rng.choice([-1.0, 1.0], n)
    weights = rng.normal(size=d + n)
    matrix = rng.normal(size=(d + n, d + n))
    matrix = matrix @ matrix.T
    starts = np.ones(n, dtype=bool)

    def shares(ends: list[int], skipped: int) -> tuple[FloatArray, npt.NDArray[np.float32]]:
        more = np.vstack([np.full((skipped, d + n), 0.01), x])
        labels = np.concatenate([np.ones(skipped), y])
        blocks = neighbours.pack(form, more, labels, np.ones(len(labels), dtype=bool), ends)
        sums = replay.gradient(blocks, weights, Loss("logistic"), unit_clip=1e9)
        assert sums.gradient is not None
        alone = replay.gradient(
            neighbours.pack(form, x, y, starts, list(range(1, n + 1))), weights, Loss("logistic")
        )
        assert alone.gradient is not None
        if skipped == 0:
            np.testing.assert_array_equal(sums.gradient[d:], alone.gradient[d:])
        white = [replay.open_block(replay.whiten(block, matrix, 0.9)) for block in blocks]
        values = np.concatenate([block.values.reshape(-1) for block in white])
        return sums.gradient[d:], values[skipped * (d + n) :]

    _, first = shares([n], 0)
    for ends in ([1, n], [2, 5, n], [3, 4, 9, n], list(range(1, n + 1))):
        np.testing.assert_array_equal(shares(ends, 0)[1], first)
    for skipped in range(1, 5):
        np.testing.assert_array_equal(shares([n + skipped], skipped)[1], first)


def frobenius(triangle: FloatArray, n_features: int) -> float:
    """Norm of the symmetric matrix of an upper triangle."""
    full = np.zeros((n_features, n_features))
    full[np.triu_indices(n_features)] = triangle
    return float(np.linalg.norm(full + np.triu(full, 1).T))


@pytest.mark.parametrize("form", FORMS)
def test_second_moments_of_neighbours(form: str) -> None:
    """sqrt 2 or 1 a row in Frobenius norm; with labels in [-1, 1] beside them sqrt 4.5 or sqrt 2."""
    rng = np.random.default_rng(21)
    squares = {Relation.REPLACE_ONE: (2.0, 4.5), Relation.ADD_REMOVE: (1.0, 2.0)}
    reached = dict.fromkeys(Relation, 0.0)
    for _ in range(2 * PAIRS):
        d, m = int(rng.choice([1, 2, 3, 8, 9])), int(rng.choice([1, 1, 3]))
        table = random_units(rng, Loss("logistic"), int(rng.integers(1, 10)), m, d)
        table = Units(table.x, np.clip(np.nan_to_num(table.y), -1.0, 1.0), table.unit)
        unit = int(rng.integers(table.unit[-1] + 1))
        relation = random_relation(rng)
        table = forge(rng, table, unit)
        other = random_neighbour(rng, Loss("logistic"), table, unit, relation)
        other = Units(other.x, np.clip(np.nan_to_num(other.y), -1.0, 1.0), other.unit)
        one, two = (replay.gram(each.blocks(form, random_ends(rng, each))) for each in (table, other))
        assert one.xy is not None
        assert two.xy is not None
        apart = frobenius(one.xx - two.xx, d)
        alone, joint = (m * math.sqrt(square) for square in squares[relation])
        slack = rounding(len(table.y), 1.0)
        assert apart <= alone + slack
        assert math.hypot(apart, float(np.linalg.norm(one.xy - two.xy))) <= joint + slack
        reached[relation] = max(reached[relation], apart / alone)
    assert min(reached.values()) > 0.99


@pytest.mark.parametrize("m", [1, 4])
@pytest.mark.parametrize("form", FORMS)
def test_worst_pair_reaches_the_bound_of_second_moments(form: str, m: int) -> None:
    unit = np.repeat(np.arange(3), m)
    long = neighbours.LONGEST_ROW

    def apart(rows: tuple[FloatArray, FloatArray], labels: tuple[float, float]) -> tuple[float, float]:
        table = Units(np.zeros((3 * m, 2)), np.zeros(3 * m), unit)
        one, two = (
            replay.gram(table.change(1, row, label).blocks(form, [3 * m]))
            for row, label in zip(rows, labels, strict=True)
        )
        assert one.xy is not None
        assert two.xy is not None
        moved = frobenius(one.xx - two.xx, 2)
        return moved, math.hypot(moved, float(np.linalg.norm(one.xy - two.xy)))

    first, second = np.array([long, 0.0]), np.array([0.0, long])
    assert apart((first, second), (1.0, 1.0))[0] == pytest.approx(m * math.sqrt(2.0), rel=1e-5)
    assert apart((first, np.zeros(2)), (1.0, 0.0)) == pytest.approx((m, m * math.sqrt(2.0)), rel=1e-5)
    oblique = long * np.array([0.5, math.sqrt(0.75)])
    assert apart((first, oblique), (1.0, -1.0))[1] == pytest.approx(m * math.sqrt(4.5), rel=1e-5)


@dataclass(frozen=True)
class Whitener:
    """A matrix P as noisy second moments make them, and what is said of it."""

    matrix: FloatArray
    condition: float
    """kappa = ||P|| sqrt(largest eigenvalue + ridge)."""

    @property
    def norm(self) -> float:
        """||P x|| before rows are rounded to float32."""
        return (1.0 - 2.0**-19) / (1.0 + self.condition * 2.0**-23)

    def lengths(self, x: npt.NDArray[Any]) -> npt.NDArray[np.longdouble]:
        """||P x|| of rows in 64-bit mantissas."""
        products = x.astype(np.longdouble) @ self.matrix.astype(np.longdouble)
        lengths: npt.NDArray[np.longdouble] = np.sqrt(np.sum(products * products, axis=1))
        return lengths


def random_whitener(
    rng: np.random.Generator, n_features: int, condition: float
) -> tuple[Whitener, FloatArray]:
    """P, and its eigenvectors from the shortest to the longest of their images."""
    largest = float(rng.choice([1.0, rng.random(), 1e-3]))
    ridge = largest / (condition * condition - 1.0)
    spectra = np.array([rng.random(n_features), 10.0 ** rng.uniform(-12.0, 0.0, n_features)])
    values = largest * spectra[rng.integers(2)]
    values = np.sort(values)[::-1]
    values[0], values[-1] = largest, 0.0 if n_features > 1 else largest
    vectors = np.linalg.qr(rng.normal(size=(n_features, n_features)))[0]
    if rng.random() < 0.2:
        vectors = np.eye(n_features)
    matrix = (vectors / np.sqrt(values + ridge)) @ vectors.T
    top = 1.0 / math.sqrt(float(values[-1]) + ridge)
    return Whitener((matrix + matrix.T) / 2.0, 1.01 * top * math.sqrt(largest + ridge)), vectors


def rows_of(block: bytes) -> FloatArray:
    """A block's rows, dense, shape (n, d)."""
    view = replay.open_block(block)
    if view.row_end is None or view.columns is None:
        return view.values.astype(np.float64)
    rows = np.zeros((len(view.labels), view.n_features))
    rows[np.repeat(np.arange(len(rows)), np.diff(view.row_end, prepend=0)), view.columns] = view.values
    return rows


CONDITIONS = (1.0 + 1e-3, 10.0, 1e3, 65_536.0, 1e6)


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("form", FORMS)
def test_whitened_rows_are_never_longer_than_one(form: str, condition: float) -> None:
    rng = np.random.default_rng(31)
    longest, shortest = 0.0, math.inf
    for _ in range(80):
        d = int(rng.choice([1, 2, 3, 8, 20]))
        whitener, vectors = random_whitener(rng, d, condition)
        x = np.array([random_row(rng, d) for _ in range(60)])
        # where P is shortest, what float32 rounds off counts most
        x[:20] = vectors[:, 0] * rng.choice([-1.0, 0.7, 1e-20], (20, 1)) + 1e-7 * rng.normal(size=(20, d))
        x[:20] *= 0.5
        x = x.astype(np.float32).astype(np.float64)
        blocks = neighbours.pack(form, x, np.ones(60), None, [17, 60])
        white = np.vstack([rows_of(replay.whiten(block, whitener.matrix, whitener.norm)) for block in blocks])
        assert np.all(np.isfinite(white))
        assert not white[~x.any(axis=1)].any()
        lengths = whitener.lengths(white)
        assert np.all(lengths <= 1.0)
        shares = lengths[white.any(axis=1)].astype(np.float64) / whitener.norm
        longest, shortest = max(longest, float(shares.max())), min(shortest, float(shares.min()))
    assert 1.0 - condition * 2.0**-23 - 1e-6 < shortest
    assert longest > 1.0  # rounding does lengthen rows


@pytest.mark.parametrize("form", FORMS)
def test_rows_that_cannot_be_whitened_are_zero(form: str) -> None:
    """One whose image vanishes or is beyond all numbers."""
    x = np.array([[1.0, 0.0], [0.0, 1.0], [1e-42, 0.0], [0.5, 0.5]])
    for matrix in ([[1.0, 0.0], [0.0, 0.0]], [[1e-290, 0.0], [0.0, 1e300]], [[1e308, 0.0], [0.0, 1e308]]):
        p = np.array(matrix)
        (block,) = neighbours.pack(form, x, np.ones(4), None, [4])
        white = rows_of(replay.whiten(block, p, 0.99))
        assert np.all(np.isfinite(white))
        products = white.astype(np.longdouble) @ p.astype(np.longdouble)
        assert np.all(np.sqrt(np.sum(products * products, axis=1)) <= 1.0)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ALL_LOSSES)
def test_gradients_of_whitened_neighbours(name: str, form: str) -> None:
    """P times the sum, at weights folded with P, moves by C or 2 C; other rows are whitened alike."""
    loss, lipschitz = ALL_LOSSES[name], LIPSCHITZ[name]
    rng = np.random.default_rng(zlib.crc32(f"whitened {name} {form}".encode()))
    reached = 0.0
    for pair in range(PAIRS // 2):
        if pair % 4 == 0:
            d, m = int(rng.choice([1, 2, 5, 9])), int(rng.choice([1, 1, 3]))
            table = random_units(rng, loss, int(rng.integers(1, 15)), m, d)
        whitener, _ = random_whitener(rng, d, float(rng.choice(CONDITIONS)))
        unit = int(rng.integers(table.unit[-1] + 1))
        relation = random_relation(rng)
        other = random_neighbour(rng, loss, table, unit, relation)
        gradient_clip = float(rng.choice([math.inf, 0.3]))
        if math.isinf(lipschitz) and math.isinf(gradient_clip):
            gradient_clip = 0.7
        weights = rng.normal(size=(loss.n_classes, d)) * rng.choice([0.0, 1.0, 30.0, 1e4])
        ends = random_ends(rng, table)
        white = [
            [replay.whiten(block, whitener.matrix, whitener.norm) for block in each.blocks(form, ends)]
            for each in (table, other)
        ]
        kept = table.unit != unit
        np.testing.assert_array_equal(*(np.vstack([*map(rows_of, blocks)])[kept] for blocks in white))
        one, two = (
            replay.gradient(blocks, weights @ whitener.matrix, loss, gradient_clip=gradient_clip).gradient
            for blocks in white
        )
        assert one is not None
        assert two is not None
        shape = (loss.n_classes, d)
        apart = float(np.linalg.norm((one.reshape(shape) - two.reshape(shape)) @ whitener.matrix))
        row_bound = min(lipschitz, gradient_clip)
        bound = change_of(m * row_bound, relation)
        n = len(table.y)
        assert apart <= bound + whitener.condition * rounding(n + d * math.isqrt(d), row_bound)
        reached = max(reached, apart / bound)
    assert reached > 0.6
