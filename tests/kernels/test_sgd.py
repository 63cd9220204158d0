# SPDX-License-Identifier: PostgreSQL
"""Passes of the SGD kernel against the plain one, in every form that rows come in."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from helpers import oracles, replay
from helpers.replay import Epoch
from helpers.sgdtools import (
    LAMBDA,
    LOSSES,
    N_FEATURES,
    N_ROWS,
    SCHEDULES,
    assert_close,
    make_data,
    make_schedule,
    pack_sparse,
    run_oracle,
)
from pg_dpml.kernels import Schedule


def assert_same(first: Epoch, second: Epoch) -> None:
    """Bit for bit."""
    np.testing.assert_array_equal(first.weights, second.weights)
    assert (first.average is None) == (second.average is None)
    if first.average is not None and second.average is not None:
        np.testing.assert_array_equal(first.average, second.average)
    assert first[2:4] == second[2:4]


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("kind", SCHEDULES)
def test_every_pass_agrees_with_oracle(name: str, kind: str) -> None:
    loss = LOSSES[name]
    data = make_data(loss)
    schedule = make_schedule(kind, loss)
    for batch_size, radius in itertools.product((1, 7, 50), (math.inf, 0.4)):
        found = run_oracle(loss, data, schedule, lambda_=LAMBDA, radius=radius, batch_size=batch_size)
        for average_from in (0, 1, len(found) // 2):
            options: dict[str, Any] = {
                "loss": loss,
                "schedule": Schedule(**schedule),
                "lambda_": LAMBDA,
                "radius": radius,
                "batch_size": batch_size,
                "average_from": average_from,
            }
            by_row = replay.sgd_rows(data.x, data.y, **options)
            by_block = replay.sgd_blocks(data.dense, n_features=N_FEATURES, **options)
            by_sparse = replay.sgd_blocks(data.sparse, n_features=N_FEATURES, **options)
            assert_same(by_row, by_block)
            for epoch in (by_block, by_sparse):
                assert (epoch.steps, epoch.rows) == (len(found) - 1, N_ROWS)
                assert_close(epoch.weights, found[-1])
                if average_from:
                    assert_close(epoch.average, oracles.average(found, average_from))
                else:
                    assert epoch.average is None


@pytest.mark.parametrize("batch_size", [1, 7])
@pytest.mark.parametrize("radius", [math.inf, 0.4])
@pytest.mark.parametrize("average_from", [0, 1, 50, 400])
def test_passes_join_to_one_run(batch_size: int, radius: float, average_from: int) -> None:
    loss = LOSSES["logistic"]
    data = make_data(loss)
    schedule = make_schedule("inverse_sqrt", loss)
    passes = 4
    found = run_oracle(
        loss, data, schedule, lambda_=LAMBDA, radius=radius, batch_size=batch_size, passes=passes
    )
    epoch = Epoch(np.zeros(N_FEATURES), None, 0, 0)
    for _ in range(passes):
        epoch = replay.sgd_blocks(
            data.dense,
            n_features=N_FEATURES,
            loss=loss,
            schedule=Schedule(**schedule),
            lambda_=LAMBDA,
            radius=radius,
            batch_size=batch_size,
            weights=epoch.weights,
            average=epoch.average,
            steps=epoch.steps,
            average_from=average_from,
        )
    assert epoch.steps == len(found) - 1
    assert_close(epoch.weights, found[-1])
    if 0 < average_from < len(found):
        assert_close(epoch.average, oracles.average(found, average_from))
    else:
        assert epoch.average is None


@pytest.mark.parametrize("d", [*range(1, 18), 50, 64, 100])
def test_every_width(d: int) -> None:
    """Groups of lanes and what is left over."""
    loss = LOSSES["logistic"]
    data = make_data(loss, n=41, d=d)
    schedule = make_schedule("constant", loss)
    for batch_size in (1, 2, 3, 5, 11):
        options: dict[str, Any] = {"lambda_": LAMBDA, "batch_size": batch_size}
        found = run_oracle(loss, data, schedule, **options)
        epoch = replay.sgd_blocks(
            data.dense, n_features=d, loss=loss, schedule=Schedule(**schedule), **options
        )
        assert_close(epoch.weights, found[-1])
        assert_same(
            epoch, replay.sgd_rows(data.x, data.y, loss=loss, schedule=Schedule(**schedule), **options)
        )


def test_block_borders_do_not_matter() -> None:
    loss = LOSSES["huber_svm"]
    schedule = Schedule(**make_schedule("constant", loss))
    options: dict[str, Any] = {"n_features": N_FEATURES, "loss": loss, "schedule": schedule, "batch_size": 7}
    epochs = [
        replay.sgd_blocks(make_data(loss, rows_per_block=rows).dense, **options) for rows in (1, 2, 5, 9, 200)
    ]
    for epoch in epochs[1:]:
        assert_same(epochs[0], epoch)


def test_start_is_projected() -> None:
    loss = LOSSES["squared"]
    start = np.full(4, 3.0)
    epoch = replay.sgd_rows(
        np.empty((0, 4)), [], loss=loss, schedule=Schedule("constant", 0.1), weights=start, radius=0.5
    )
    np.testing.assert_allclose(epoch.weights, start / 12, rtol=1e-15)
    assert (epoch.average, epoch.steps, epoch.rows) == (None, 0, 0)


@pytest.mark.parametrize("step_size", [0.5, 1.0, 2.0])
def test_shrink_to_zero_and_through_it(step_size: float) -> None:
    """1 - eta lambda of 1/2, 0 and -1: the scale is folded, is exactly 0, or changes sign."""
    loss = LOSSES["logistic"]
    data = make_data(loss, n=300)
    schedule: dict[str, Any] = {"kind": "constant", "step_size": step_size}
    found = run_oracle(loss, data, schedule, lambda_=1.0)
    epoch = replay.sgd_blocks(
        data.dense,
        n_features=N_FEATURES,
        loss=loss,
        schedule=Schedule(**schedule),
        lambda_=1.0,
        average_from=1,
    )
    assert_close(epoch.weights, found[-1])
    assert_close(epoch.average, oracles.average(found, 1))


@pytest.mark.parametrize("radius", [1e-200, 1e-12, 1e200])
def test_extreme_radius(radius: float) -> None:
    loss = LOSSES["logistic"]
    data = make_data(loss, n=20)
    schedule = make_schedule("constant", loss)
    options: dict[str, Any] = {"loss": loss, "schedule": Schedule(**schedule), "radius": radius}
    epoch = replay.sgd_rows(data.x, data.y, weights=np.full(N_FEATURES, 1e-3), **options)
    found = run_oracle(loss, data, schedule, radius=radius, start=np.full(N_FEATURES, 1e-3))
    assert_close(epoch.weights, found[-1])


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("batch_size", [1, 2, 4, 50])
def test_rows_that_are_not_finite_contribute_nothing(name: str, bad: float, batch_size: int) -> None:
    """No encoder writes such a row, forged bytes can: it counts as a row of zeros."""
    loss = LOSSES[name]
    data = make_data(loss)
    x, blank, y = data.x.copy(), data.x.copy(), data.y.copy()
    x[::3, 2] = bad
    blank[::3] = 0.0
    y[1::5] = math.nan
    blank[1::5] = 0.0
    options: dict[str, Any] = {
        "loss": loss,
        "schedule": Schedule("constant", 0.1),
        "lambda_": LAMBDA,
        "batch_size": batch_size,
        "n_features": N_FEATURES,
    }
    for pack in (replay.pack_dense, pack_sparse):
        epoch = replay.sgd_blocks([pack(x, y)], **options)
        expected = replay.sgd_blocks([pack(blank, data.y)], **options)
        np.testing.assert_array_equal(epoch.weights, expected.weights)
        assert epoch[2:] == expected[2:]
        assert math.isfinite(replay.loss_sum_blocks([pack(x, y)], epoch.weights, loss))


@pytest.mark.parametrize("name", ["logistic", "huber_svm", "squared_clipped", "softmax"])
@pytest.mark.parametrize("batch_size", [1, 4])
def test_huge_features_keep_the_model_finite(name: str, batch_size: int) -> None:
    loss = LOSSES[name]
    data = make_data(loss)
    x = data.x.copy()
    x[::3, 2] = 3e38
    epoch = replay.sgd_blocks(
        [replay.pack_dense(x, data.y)],
        n_features=N_FEATURES,
        loss=loss,
        schedule=Schedule("constant", 0.1),
        batch_size=batch_size,
    )
    assert np.all(np.isfinite(epoch.weights))


@pytest.mark.parametrize("label", [-1.0, 0.5, 3.0, 1e9, math.nan])
def test_softmax_label_that_is_no_class(label: float) -> None:
    loss = LOSSES["softmax"]
    epoch = replay.sgd_rows([[0.5, 0.5]], [label], loss=loss, schedule=Schedule("constant", 0.1))
    np.testing.assert_array_equal(epoch.weights, np.zeros(6))
    assert epoch.steps == 1


@pytest.mark.parametrize("name", LOSSES)
def test_loss_sum_and_scores(name: str) -> None:
    loss = LOSSES[name]
    data = make_data(loss)
    w = np.random.default_rng(3).normal(size=(loss.n_classes, N_FEATURES))
    expected = 0.0
    for row, y in zip(data.x, data.y, strict=True):
        scores = w @ row
        np.testing.assert_allclose(replay.scores(row, w, loss.n_classes), scores, rtol=1e-12, atol=1e-13)
        if name == "softmax":
            expected += oracles.softmax(scores, int(y))[0]
        else:
            expected += oracles.loss(loss.kind, float(scores[0]), y, clip=loss.clip, h=loss.huber_h)[0]
    assert replay.loss_sum_rows(data.x, data.y, w, loss) == pytest.approx(expected, rel=1e-12)
    assert replay.loss_sum_blocks(data.dense, w, loss) == pytest.approx(expected, rel=1e-12)
    assert replay.loss_sum_blocks(data.sparse, w, loss) == pytest.approx(expected, rel=1e-12)


def test_block_of_another_width_is_refused() -> None:
    with pytest.raises(ValueError, match="number of features"):
        replay.sgd_blocks(
            [replay.pack_dense([[1.0, 2.0]], [1.0])],
            n_features=3,
            loss=LOSSES["logistic"],
            schedule=Schedule("constant", 0.1),
        )
