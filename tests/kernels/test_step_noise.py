# SPDX-License-Identifier: PostgreSQL
"""Noise, momentum and clipping inside a pass, and Poisson batches, against numpy."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from helpers import oracles, replay
from helpers.sgdtools import (
    CLASSES,
    LAMBDA,
    LOSSES,
    N_FEATURES,
    N_ROWS,
    assert_close,
    make_data,
    make_schedule,
    run_oracle,
)
from pg_dpml.kernels import Loss, Noise, Schedule, noise_grid

FloatArray = npt.NDArray[np.float64]

NOISE_KEY = bytes(range(32))
COIN_KEY = bytes(range(50, 82))
SMALLEST_P = 1e-6
SCALE = 0.7


def add_noise(kind: str, scale: float = SCALE, key: bytes = NOISE_KEY) -> Callable[[FloatArray], FloatArray]:
    """What the kernel adds to one sum after the other, from a generator of its key."""
    if kind == "none":
        return lambda gradient: gradient
    noise, grid = Noise(key), noise_grid(scale)
    draw = noise.gaussian if kind == "gaussian" else noise.knorm
    return lambda gradient: (
        (np.rint(gradient / grid) + draw(gradient.size, scale / grid).reshape(gradient.shape)) * grid
    )


def noise_options(kind: str, scale: float = SCALE) -> dict[str, Any]:
    if kind == "none":
        return {}
    return {"noise": kind, "noise_scale": scale, "noise_key": NOISE_KEY}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("noise", ["none", "gaussian", "k-norm"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("batch_size", [1, 7, 200])
def test_pass_agrees_with_oracle(name: str, noise: str, momentum: float, batch_size: int) -> None:
    """At b = 7 the last batch is short, at b = 200 the only one: both have noise, and are divided by b."""
    loss = LOSSES[name]
    data = make_data(loss)
    schedule = make_schedule("inverse_sqrt", loss)
    for radius, gradient_clip in itertools.product((math.inf, 0.4), (math.inf, 0.3)):
        shared: dict[str, Any] = {
            "lambda_": LAMBDA,
            "radius": radius,
            "batch_size": batch_size,
            "momentum": momentum,
            "gradient_clip": gradient_clip,
        }
        found = run_oracle(loss, data, schedule, noise=add_noise(noise), **shared)
        options = {
            **shared,
            **noise_options(noise),
            "loss": loss,
            "schedule": Schedule(**schedule),
            "average_from": 2,
        }
        for epoch in (
            replay.sgd_rows(data.x, data.y, **options),
            replay.sgd_blocks(data.dense, n_features=N_FEATURES, **options),
            replay.sgd_blocks(data.sparse, n_features=N_FEATURES, **options),
        ):
            assert epoch.steps == len(found) - 1 == math.ceil(N_ROWS / batch_size)
            close(epoch.weights, found[-1])
            if epoch.steps >= 2:
                assert epoch.average is not None
                close(epoch.average, oracles.average(found, 2))
            assert (epoch.velocity is not None) == (momentum > 0.0)


def close(got: FloatArray, expected: FloatArray) -> None:
    """To the grid of the noise: a sum may lie on the border between two of its points."""
    np.testing.assert_allclose(got, expected.reshape(-1), rtol=1e-9, atol=4.0 * noise_grid(SCALE))


@pytest.mark.parametrize("momentum", [0.5, 0.99])
@pytest.mark.parametrize("radius", [math.inf, 0.4])
def test_passes_with_momentum_join_to_one_run(momentum: float, radius: float) -> None:
    loss = LOSSES["softmax"]
    data = make_data(loss)
    schedule = make_schedule("constant", loss)
    shared: dict[str, Any] = {"lambda_": LAMBDA, "radius": radius, "batch_size": 7, "momentum": momentum}
    found = run_oracle(loss, data, schedule, passes=3, **shared)
    epoch = replay.Epoch(np.zeros(CLASSES * N_FEATURES), None, 0, 0)
    for _ in range(3):
        epoch = replay.sgd_blocks(
            data.dense,
            n_features=N_FEATURES,
            loss=loss,
            schedule=Schedule(**schedule),
            weights=epoch.weights,
            velocity=epoch.velocity,
            steps=epoch.steps,
            **shared,
        )
    assert_close(epoch.weights, found[-1])


@pytest.mark.parametrize("noise", ["gaussian", "k-norm"])
def test_every_step_has_fresh_noise(noise: str) -> None:
    """Zero rows, unit steps: the iterates' differences are the noise of each step, -1/b times."""
    steps, d, b = 40, 5, 4
    weights = [np.zeros(d)]
    for n in range(1, steps + 1):
        epoch = replay.sgd_rows(
            np.zeros((n * b, d)),
            np.ones(n * b),
            loss=Loss("logistic"),
            schedule=Schedule("constant", 1.0),
            batch_size=b,
            **noise_options(noise),
        )
        weights.append(epoch.weights)
    moves = np.diff(np.array(weights), axis=0)
    assert np.unique(np.round(moves * b / noise_grid(SCALE)), axis=0).shape == (steps, d)
    draw = add_noise(noise)
    np.testing.assert_allclose(-b * moves, [draw(np.zeros(d)) for _ in range(steps)], atol=1e-12)


@pytest.mark.statistical
@pytest.mark.parametrize("noise", ["gaussian", "k-norm"])
def test_distribution_of_the_noise(noise: str) -> None:
    """Of one step of a row of zeros, by unit steps, with 20,000 keys."""
    d, rng = 3, np.random.default_rng(11)
    moves = np.array(
        [
            replay.sgd_rows(
                np.zeros((1, d)),
                [1.0],
                loss=Loss("logistic"),
                schedule=Schedule("constant", 1.0),
                batch_size=1,
                noise=noise,
                noise_scale=SCALE,
                noise_key=rng.bytes(32),
            ).weights
            for _ in range(20_000)
        ]
    )
    if noise == "gaussian":
        assert stats.kstest(moves.reshape(-1) / SCALE, "norm").pvalue >= SMALLEST_P
        assert stats.kstest(np.sum(moves**2, axis=1) / SCALE**2, stats.chi2(d).cdf).pvalue >= SMALLEST_P
    else:
        radius = np.linalg.norm(moves, axis=1)
        assert stats.kstest(radius / SCALE, stats.gamma(d).cdf).pvalue >= SMALLEST_P
        assert stats.kstest(moves[:, 0] / radius, stats.uniform(-1.0, 2.0).cdf).pvalue >= SMALLEST_P


def test_sum_and_noise_lie_on_the_grid() -> None:
    """Low bits of the sum of a batch do not come through."""
    scale = 1.0
    epoch = replay.sgd_rows(
        [[0.1, 1.0 / 3.0]],
        [1.0],
        loss=Loss("squared"),
        schedule=Schedule("constant", 1.0),
        **noise_options("gaussian", scale),
    )
    steps = epoch.weights / noise_grid(scale)
    np.testing.assert_array_equal(steps, np.rint(steps))


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("size", [2.0**30, 2.0**31, 2.0**31.5, 2.0**33, 2.0**60])
def test_a_sum_of_any_size_lies_on_the_grid(size: float, sign: float) -> None:
    """Half steps, too, where float64 still has them: 2^51 steps and more."""
    scale = 1.0
    half = 0.5 * noise_grid(scale)
    epoch = replay.sgd_rows(
        [[1.0]],
        [sign * (math.floor(size) + half)],
        loss=Loss("squared"),
        schedule=Schedule("constant", 1.0),
        **noise_options("gaussian", scale),
    )
    steps = epoch.weights / noise_grid(scale)
    np.testing.assert_array_equal(steps, np.rint(steps))


@pytest.mark.parametrize("scale", [1e-300, 1e-12, 1e12])
def test_sum_far_larger_or_smaller_than_the_noise(scale: float) -> None:
    epoch = replay.sgd_rows(
        [[0.5, 0.25]],
        [1.0],
        loss=Loss("squared"),
        schedule=Schedule("constant", 1.0),
        **noise_options("gaussian", scale),
    )
    np.testing.assert_allclose(epoch.weights, [0.5, 0.25], rtol=1e-11, atol=10.0 * scale)


def test_arguments_of_the_noise() -> None:
    for options, message in (
        ({"noise": "laplace"}, "noise must be one of"),
        ({"noise": "gaussian", "noise_key": NOISE_KEY}, "noise_scale"),
        ({"noise": "gaussian", "noise_scale": 1.0}, "noise_key"),
        ({"noise": "gaussian", "noise_scale": 1.0, "noise_key": b"1"}, "32 bytes"),
        ({"gradient_clip": 0.0}, "gradient_clip"),
        ({"momentum": 1.0}, "momentum"),
    ):
        with pytest.raises(ValueError, match=message):
            replay.sgd_rows(
                [[1.0]], [1.0], loss=Loss("logistic"), schedule=Schedule("constant", 1.0), **options
            )


def drawn(n_units: int, sampling: float, n_steps: int, key: bytes = COIN_KEY) -> list[list[int]]:
    """The units of every step, from a generator of the coins' key."""
    coins = Noise(key)
    steps: list[list[int]] = []
    for _ in range(n_steps):
        units: list[int] = []
        place = coins.misses(sampling)
        while place < n_units:
            units.append(place)
            place += 1 + coins.misses(sampling)
        steps.append(units)
    return steps


@pytest.mark.parametrize("name", ["logistic", "softmax"])
@pytest.mark.parametrize("noise", ["none", "gaussian"])
@pytest.mark.parametrize("sampling", [1.0, 0.2, 0.004])
def test_poisson_steps_agree_with_oracle(name: str, noise: str, sampling: float) -> None:
    """At 0.004 most batches are empty: they are steps too."""
    loss = LOSSES[name]
    data = make_data(loss)
    schedule = make_schedule("inverse_sqrt", loss)
    batches = drawn(N_ROWS, sampling, 60)
    assert sampling > 0.1 or [] in batches
    shared: dict[str, Any] = {"lambda_": LAMBDA, "batch_size": 11, "gradient_clip": 0.4, "momentum": 0.5}
    found = run_oracle(loss, data, schedule, batches=batches, noise=add_noise(noise), **shared)
    for blocks in (data.dense, data.sparse):
        epoch = replay.sgd_poisson(
            blocks,
            n_features=N_FEATURES,
            n_steps=60,
            sampling=sampling,
            coin_key=COIN_KEY,
            loss=loss,
            schedule=Schedule(**schedule),
            average_from=10,
            **shared,
            **noise_options(noise),
        )
        assert (epoch.steps, epoch.rows) == (60, N_ROWS)
        assert epoch.average is not None
        close(epoch.weights, found[-1])
        close(epoch.average, oracles.average(found, 10))


@pytest.mark.parametrize("rows_per_block", [1, 4, 9, 1000])
def test_units_are_drawn_as_a_whole(rows_per_block: int) -> None:
    """Also where a unit goes on in the next blocks; rows without a unit's start of their own have no coin."""
    loss = LOSSES["logistic"]
    data = make_data(loss)
    starts = np.random.default_rng(2).random(N_ROWS) < 0.3
    starts[:2] = False, True  # the first row of all begins a unit, whatever it says
    first_rows = [0, *np.flatnonzero(starts)]
    rows_of = np.split(np.arange(N_ROWS), first_rows[1:])
    batches = [
        [int(row) for unit in step for row in rows_of[unit]] for step in drawn(len(first_rows), 0.2, 50)
    ]
    schedule = make_schedule("constant", loss)
    found = run_oracle(loss, data, schedule, batches=batches, batch_size=5)
    blocks = [
        replay.pack_dense(data.x[part], data.y[part], starts[part])
        for part in (slice(i, i + rows_per_block) for i in range(0, N_ROWS, rows_per_block))
    ]
    epoch = replay.sgd_poisson(
        blocks,
        n_features=N_FEATURES,
        n_steps=50,
        sampling=0.2,
        coin_key=COIN_KEY,
        loss=loss,
        schedule=Schedule(**schedule),
        batch_size=5,
        by_unit=True,
    )
    assert_close(epoch.weights, found[-1])


@pytest.mark.statistical
@pytest.mark.parametrize("sampling", [0.01, 0.3])
def test_batch_sizes_and_inclusions(sampling: float) -> None:
    """Batch sizes are binomial, every unit's inclusions too, and neighbours' coins are independent."""
    n, steps = 500, 20_000
    included = np.zeros((steps, n), dtype=bool)
    for step, units in enumerate(drawn(n, sampling, steps)):
        included[step, units] = True
    for counts, trials in ((included.sum(axis=1), n), (included.sum(axis=0), steps)):
        middle = stats.binom.ppf(np.linspace(0.05, 0.95, 10), trials, sampling)
        edges = np.unique([-1.0, *middle, float(trials)])
        expected = np.diff(stats.binom.cdf(edges, trials, sampling)) * counts.size
        found = np.histogram(counts, edges + 0.5)[0]
        assert stats.chisquare(found, expected).pvalue >= SMALLEST_P
    both = int(np.sum(included[:, :-1] & included[:, 1:]))
    assert stats.binomtest(both, steps * (n - 1), sampling**2).pvalue >= SMALLEST_P
