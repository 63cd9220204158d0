# SPDX-License-Identifier: PostgreSQL
"""Choosing a candidate: the distribution, its privacy, and how far one unit moves what it is chosen by."""

from __future__ import annotations

import itertools
import math
import random
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import chisquare

from helpers import replay
from helpers.kernel_job import KernelBlocks
from pg_dpml.evaluation import scoring
from pg_dpml.kernels import Loss
from pg_dpml.privacy import selection
from pg_dpml.spec.relation import Relation
from pg_dpml.training.job import Result
from pg_dpml.training.plan import Problem

FloatArray = npt.NDArray[np.float64]

LOSSES = {
    "binary": Loss("logistic"),
    "multiclass": Loss("softmax", n_classes=3),
    "regression": Loss("squared"),
}
D = 5
MODELS = 12


def probabilities(errors: npt.ArrayLike, spread: float, epsilon: float) -> FloatArray:
    """The exponential mechanism's, in so many words."""
    exponents = -epsilon * np.asarray(errors, dtype=np.float64) / spread
    chances = np.exp(exponents - np.max(exponents))
    return np.asarray(chances / chances.sum())


# The distribution


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("errors", "spread", "epsilon"),
    [
        ([3, 3], 2, 1.0),
        ([10, 11, 12, 15], 2, 1.0),
        ([0, 1, 2, 3, 4, 5, 6, 7], 10, 4.0),
        ([1000, 1010, 990, 1003], 2, 0.1),
        ([2.25, 1.5, 3.875], 1, 2.0),
        ([0, 30], 1, 0.05),
    ],
)
def test_it_is_the_exponential_mechanism(errors: list[float], spread: int, epsilon: float) -> None:
    draws = 20_000
    found = np.bincount(
        [selection.choose(errors, Fraction(spread), epsilon) for _ in range(draws)], minlength=len(errors)
    )
    assert chisquare(found, draws * probabilities(errors, spread, epsilon)).pvalue > 1e-6


@pytest.mark.statistical
def test_it_is_the_least_error_after_gumbel_noise() -> None:
    """What it draws is what the noise would choose, up to the noise's own rounding."""
    rng = np.random.default_rng(5)
    errors = np.array([4.0, 5.0, 7.0, 4.5])
    noisy = errors * 1.5 / 2.0 - rng.gumbel(size=(20_000, 4))
    by_noise = np.bincount(np.argmin(noisy, axis=1), minlength=4)
    assert chisquare(by_noise, 20_000 * probabilities(errors, 2.0, 1.5)).pvalue > 1e-6


def test_a_clear_winner_is_found_at_once() -> None:
    errors = [10**9, 10**9 - 1, 0, 10**8]
    assert {selection.choose(errors, Fraction(2), 100.0) for _ in range(200)} == {2}


def test_random_numbers_can_be_replayed() -> None:
    """The argument for tests: the same numbers, the same choices."""
    runs = []
    for _ in range(2):
        source = random.Random(3)
        runs.append([selection.choose([1, 2, 3], Fraction(2), 1.0, source.randrange) for _ in range(50)])
    assert runs[0] == runs[1]
    assert set(runs[0]) == {0, 1, 2}


# Its privacy


def worst_ratio(changes: list[tuple[int, ...]], spread: float, epsilon: float) -> float:
    """Largest log ratio of a candidate's probability on two neighbours, over many tables."""
    worst = 0.0
    for base in ([0, 0, 0], [5, 0, 9], [40, 40, 0]):
        one = probabilities(base, spread, epsilon)
        for change in changes:
            other = probabilities(np.add(base, change), spread, epsilon)
            worst = max(worst, float(np.max(np.abs(np.log(one) - np.log(other)))))
    return worst


@pytest.mark.parametrize("most", [1, 3])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
def test_the_spread_makes_it_private(most: int, epsilon: float) -> None:
    """No more than epsilon is spent, and with many bad candidates nearly all of it."""
    replaced = list(itertools.product((-most, 0, most), repeat=3))
    removed = list(itertools.product((-most, 0), repeat=3)) + list(itertools.product((0, most), repeat=3))
    replace_one = float(selection.score_spread(most, Relation.REPLACE_ONE))
    add_remove = float(selection.score_spread(most, Relation.ADD_REMOVE))
    assert (replace_one, add_remove) == (2 * most, most)
    assert worst_ratio(replaced, replace_one, epsilon) <= epsilon * (1 + 1e-9)
    assert worst_ratio(removed, add_remove, epsilon) <= epsilon * (1 + 1e-9)
    # half of it would not do
    assert worst_ratio(replaced, add_remove, epsilon) > epsilon
    assert worst_ratio(removed, add_remove / 2, epsilon) > epsilon


def test_rounding_widens_the_spread() -> None:
    rounding = scoring.rounding("regression", 10**6)
    assert 0 < rounding < Fraction(1, 10_000)
    assert selection.score_spread(3, Relation.ADD_REMOVE, rounding) == 3 + 4 * rounding
    assert scoring.rounding("binary", 10**6) == 0


# How far one unit moves the errors


def errors_of(task: str, x: FloatArray, y: FloatArray, models: FloatArray) -> FloatArray:
    """As `scoring.errors` asks the server for them."""
    blocks = [replay.pack_dense(x[:7], y[:7]), replay.pack_dense(x[7:], y[7:])]
    more: dict[str, Any] = {"errors": True}
    scale = 1.0
    if task == "regression":
        more = {"loss_clip": scoring.LARGEST_SQUARED_ERROR / 2.0}
        scale = 2.0 / scoring.LARGEST_SQUARED_ERROR
    sums = replay.gradient(blocks, models, LOSSES[task], models=MODELS, gradient=False, **more)
    assert sums.losses is not None
    return np.asarray(scale * sums.losses)


def make_rows(rng: np.random.Generator, task: str, n: int) -> tuple[FloatArray, FloatArray]:
    x = rng.normal(size=(n, D))
    x *= rng.uniform(0.0, 1.0 - 2.0**-20, size=(n, 1)) / np.linalg.norm(x, axis=1, keepdims=True)
    labels = {
        "binary": rng.choice([-1.0, 1.0], size=n),
        "multiclass": rng.integers(3, size=n).astype(np.float64),
        "regression": rng.uniform(-1.0, 1.0, size=n),
    }
    return x.astype(np.float32).astype(np.float64), labels[task].astype(np.float32).astype(np.float64)


@pytest.mark.parametrize("task", LOSSES)
@pytest.mark.parametrize("unit_rows", [1, 3])
def test_one_unit_moves_the_errors_by_at_most_its_rows(task: str, unit_rows: int) -> None:
    """Replaced rows move them either way; rows that become zero rows take away from all or none."""
    rng = np.random.default_rng(11)
    n, moved = 15, 0.0
    for _ in range(300):
        scale = 10.0 ** rng.integers(-1, 4)
        models = scale * rng.normal(size=MODELS * LOSSES[task].n_classes * D)
        x, y = make_rows(rng, task, n)
        unit = slice(4, 4 + unit_rows)
        before = errors_of(task, x, y, models)
        replaced_x, replaced_y = x.copy(), y.copy()
        replaced_x[unit], replaced_y[unit] = make_rows(rng, task, unit_rows)
        moved = max(moved, float(np.max(np.abs(errors_of(task, replaced_x, replaced_y, models) - before))))
        zero_x, zero_y = x.copy(), y.copy()
        zero_x[unit], zero_y[unit] = 0.0, 0.0
        change = errors_of(task, zero_x, zero_y, models) - before
        assert np.all(change <= 1e-12)
        assert np.all(change >= -unit_rows - 1e-12)
    assert 0.9 * unit_rows < moved <= unit_rows + 1e-12


@pytest.mark.parametrize("task", LOSSES)
def test_zero_rows_say_nothing_of_a_model(task: str) -> None:
    rng = np.random.default_rng(12)
    models = rng.normal(size=MODELS * LOSSES[task].n_classes * D)
    found = errors_of(task, np.zeros((20, D)), np.zeros(20), models)
    assert found.tolist() == [0.0] * MODELS


@pytest.mark.parametrize("label", [-1.0, 1.0])
def test_a_squared_error_is_clamped(label: float) -> None:
    """However large a model, a row's term is at most 1."""
    x = np.zeros((10, D))
    x[:, 0] = 1.0 - 2.0**-20
    for size in (1e3, 1e100):
        models = np.tile(-label * size * np.eye(D)[0], MODELS)
        found = errors_of("regression", x, np.full(10, label), models)
        np.testing.assert_allclose(found, 10.0, rtol=1e-12)
    assert math.isfinite(float(np.sum(errors_of("regression", x, np.full(10, label), np.zeros(MODELS * D)))))


@pytest.mark.parametrize("task", LOSSES)
def test_models_that_are_not_finite_err_like_others(task: str) -> None:
    """One row moves the errors by one at most, whatever rows are summed beside it, and NaN does not win."""
    rng = np.random.default_rng(6)
    outputs = 3 if task == "multiclass" else 1
    problem = Problem(4, 8, outputs, task)
    weights = np.zeros((outputs, 8))
    weights[:, 0] = [1.0, 2.0, -1.0][:outputs]
    models = []
    for value in (math.nan, math.inf, -math.inf, 1e200):
        weights[rng.integers(outputs), 4] = value
        models.append(Result(weights.reshape(-1).copy(), 1))
    models.append(Result(np.full(8 * outputs, math.nan), 1))
    x = np.zeros((4, 8))
    x[:, 0] = 0.5
    y = np.array([0.0, 2.0, 2.0, 1.0]) if task == "multiclass" else np.array([1.0, -1.0, 1.0, 1.0])
    neighbour = x.copy()
    neighbour[3, 5] = 0.1

    def found(rows: FloatArray, labels: FloatArray) -> FloatArray:
        blocks: Any = KernelBlocks([replay.pack_dense(rows, labels)], 8)
        return np.asarray(scoring.errors(blocks, problem, models), dtype=np.float64)

    before, after = found(x, y), found(neighbour, y)
    assert np.all(np.abs(before - after) <= 1.0)
    assert np.all(before > 0.0)
    np.testing.assert_array_equal(found(0.0 * x, 0.0 * y), 0.0)  # zero rows have none
