# SPDX-License-Identifier: PostgreSQL
"""Step sizes, and the sensitivity of whole runs: against brute force, theory, and attacks by replay."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import oracles, replay
from pg_dpml import kernels
from pg_dpml.kernels import Loss, Schedule

KINDS = ("constant", "decreasing", "sqrt_decreasing", "strongly_convex", "inverse_sqrt")


@st.composite
def schedules(draw: st.DrawFn) -> tuple[dict[str, Any], float, float]:
    """A schedule with the smoothness and the regulariser that it is capped for."""
    smoothness = draw(st.floats(0.05, 4))
    kind = draw(st.sampled_from(KINDS))
    lambda_ = (
        draw(st.just(0.0) | st.floats(1e-6, 2)) if kind != "strongly_convex" else draw(st.floats(1e-6, 2))
    )
    cap = 1 / (smoothness + lambda_)
    schedule = {
        "kind": kind,
        "step_size": draw(st.floats(1e-4, 2)),
        "offset": draw(st.floats(0, 100)),
        "lambda_": lambda_,
        # Up to 2 / (beta + lambda) the map still contracts.
        "max_step": cap * draw(st.sampled_from([1.0, 1.9])),
    }
    return schedule, smoothness, lambda_


@given(schedules(), st.integers(1, 2**40))
def test_steps_agree_with_oracle(drawn: tuple[dict[str, Any], float, float], t: int) -> None:
    schedule = drawn[0]
    assert Schedule(**schedule).step(t) == pytest.approx(oracles.schedule(**schedule)(t), rel=1e-14)


@given(
    schedules(),
    st.integers(0, 23),
    st.integers(1, 4),
    st.integers(1, 9),
    st.booleans(),
    st.floats(0, 1),
)
def test_recursion_agrees_with_brute_force(
    drawn: tuple[dict[str, Any], float, float],
    n_rows: int,
    passes: int,
    batch_size: int,
    fresh_order: bool,
    averaged: float,
) -> None:
    schedule, smoothness, lambda_ = drawn
    steps = passes * math.ceil(n_rows / batch_size)
    run: dict[str, Any] = {
        "smoothness": smoothness,
        "lambda_": lambda_,
        "gradient_change": 2.0,
        "n_rows": n_rows,
        "passes": passes,
        "batch_size": batch_size,
        "average_from": math.ceil(averaged * steps),
        "fresh_order": fresh_order,
    }
    result = kernels.sensitivity(schedule=Schedule(**schedule), **run)
    expected = oracles.sensitivity(oracles.schedule(**schedule), **run)
    assert result.steps == steps
    assert result.sensitivity == pytest.approx(expected, rel=1e-12)
    etas = [oracles.schedule(**schedule)(t) for t in range(1, steps + 1)]
    assert result.step_sum == pytest.approx(math.fsum(etas), rel=1e-12)
    assert result.step_max == pytest.approx(max(etas, default=0.0), rel=1e-14)


@pytest.mark.parametrize("batch_size", [1, 10, 50])
def test_strongly_convex_run_has_the_minimisers_sensitivity(batch_size: int) -> None:
    """D / (lambda b M), whatever the batch size.

    Source: privacy/README.md, "Sensitivity of any schedule".
    """
    n, lambda_, smoothness = 1000, 0.01, 0.25
    result = kernels.sensitivity(
        schedule=Schedule("strongly_convex", lambda_=lambda_, max_step=1 / (smoothness + lambda_)),
        smoothness=smoothness,
        lambda_=lambda_,
        gradient_change=2.0,
        n_rows=n,
        passes=20,
        batch_size=batch_size,
    )
    # The cap makes the first 1 + beta / lambda steps shorter, at most the first two passes of 20.
    assert 0.9 * 2 / (lambda_ * n) <= result.sensitivity <= 2 / (lambda_ * n) * (1 + 1e-10)


def test_convex_constant_step_grows_with_passes() -> None:
    """k D eta / b, the classical figure for lambda = 0."""
    result = kernels.sensitivity(
        schedule=Schedule("constant", 0.03),
        smoothness=0.25,
        lambda_=0.0,
        gradient_change=2.0,
        n_rows=1001,
        passes=7,
        batch_size=10,
    )
    assert result.steps == 7 * 101
    assert result.sensitivity == pytest.approx(7 * 2.0 * 0.03 / 10, rel=1e-12)
    assert result.sensitivity >= 7 * 2.0 * 0.03 / 10


def test_rounds_up() -> None:
    exact = 2.0 * 0.5
    result = kernels.sensitivity(
        schedule=Schedule("constant", 0.5),
        smoothness=1.0,
        lambda_=0.0,
        gradient_change=2.0,
        n_rows=64,
        passes=1,
        batch_size=1,
    )
    assert result.sensitivity == exact * (1 + 64 * 2.0**-50)


def _replay(schedule: Schedule, loss: Loss, x: Any, y: Any, passes: int, **options: Any) -> Any:
    epoch = replay.Epoch(np.zeros(np.shape(x)[1]), None, 0, 0)
    for _ in range(passes):
        epoch = replay.sgd_rows(
            x,
            y,
            loss=loss,
            schedule=schedule,
            weights=epoch.weights,
            average=epoch.average,
            steps=epoch.steps,
            **options,
        )
    return epoch.weights if epoch.average is None else epoch.average


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch_size", [1, 5])
@pytest.mark.parametrize("average_from", [0, 1])
def test_replay_on_neighbours_stays_below_and_reaches(kind: str, batch_size: int, average_from: int) -> None:
    """Clipped squares with far labels attain the bound: one feature, one unit moved from +C to -C."""
    loss = Loss("squared", clip=1e-6)
    lambda_, passes, n = 0.05, 3, 20
    schedule = Schedule(kind, 0.4, 2.0, lambda_, 1 / (loss.smoothness + lambda_))
    result = kernels.sensitivity(
        schedule=schedule,
        smoothness=loss.smoothness,
        lambda_=lambda_,
        gradient_change=2 * loss.lipschitz,
        n_rows=n,
        passes=passes,
        batch_size=batch_size,
        average_from=average_from,
    )
    options = {"lambda_": lambda_, "batch_size": batch_size, "average_from": average_from}
    worst = 0.0
    for position in range(n):
        x = np.zeros((n, 1))
        x[position] = 1.0
        ends = [_replay(schedule, loss, x, np.full(n, y), passes, **options) for y in (-1.0, 1.0)]
        worst = max(worst, float(np.linalg.norm(ends[0] - ends[1])))
    assert 0.9 * result.sensitivity <= worst <= result.sensitivity


@pytest.mark.parametrize(
    "change",
    [
        {"smoothness": -1.0},
        {"smoothness": math.nan},
        {"smoothness": math.inf},
        {"smoothness": 3.0},  # step 1 > 2 / 3
        {"lambda_": -0.1},
        {"lambda_": 1.6},  # step 1 > 2 / (0.5 + 1.6)
        {"gradient_change": -1.0},
        {"gradient_change": math.inf},
        {"n_rows": -1},
        {"passes": 0},
        {"batch_size": 0},
        {"batch_size": 2**31},
        {"average_from": -1},
        {"average_from": 21},
        {"n_rows": 2**50, "passes": 8},
    ],
)
def test_refuses_what_it_is_not_proved_for(change: dict[str, Any]) -> None:
    run: dict[str, Any] = {
        "smoothness": 0.5,
        "lambda_": 0.0,
        "gradient_change": 2.0,
        "n_rows": 10,
        "passes": 2,
        "batch_size": 1,
    }
    kernels.sensitivity(schedule=Schedule("constant", 1.0), **run)
    with pytest.raises(ValueError):
        kernels.sensitivity(schedule=Schedule("constant", 1.0), **{**run, **change})


@pytest.mark.parametrize(
    "bad",
    [
        {"kind": "linear"},
        {"kind": "constant", "step_size": 0.0},
        {"kind": "inverse_sqrt", "step_size": math.inf},
        {"kind": "strongly_convex", "lambda_": 0.0},
        {"kind": "decreasing", "offset": -1.0, "max_step": 1.0},
        {"kind": "decreasing"},
        {"kind": "constant", "step_size": 0.1, "max_step": 0.0},
        {"kind": "constant", "step_size": 0.1, "max_step": math.nan},
    ],
)
def test_refuses_bad_schedules(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        Schedule(**bad)


@pytest.mark.parametrize("n_rows", [0, 1])
def test_smallest_tables(n_rows: int) -> None:
    result = kernels.sensitivity(
        schedule=Schedule("constant", 1.0),
        smoothness=1.0,
        lambda_=0.0,
        gradient_change=2.0,
        n_rows=n_rows,
        passes=3,
        batch_size=50,
    )
    assert result.steps == 3 * n_rows
    assert result.sensitivity == pytest.approx(n_rows * 3 * 2.0 / 50, rel=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_hundred_million_steps_are_quick(kind: str) -> None:
    """About half a second; the limit leaves room for a busy machine."""
    lambda_, smoothness = 1e-4, 0.25
    start = time.perf_counter()
    result = kernels.sensitivity(
        schedule=Schedule(kind, 1e-3, 100.0, lambda_, 1 / (smoothness + lambda_)),
        smoothness=smoothness,
        lambda_=lambda_,
        gradient_change=2.0,
        n_rows=10**7,
        passes=10,
        batch_size=1,
    )
    assert time.perf_counter() - start < 5.0
    assert result.steps == 10**8


def test_one_order_gives_way_to_fresh_order_on_huge_tables() -> None:
    """Above 10^7 batches a pass nothing is allocated, and the bound is the fresh-order one."""
    run: dict[str, Any] = {
        "schedule": Schedule("inverse_sqrt", 0.1),
        "smoothness": 0.25,
        "lambda_": 0.0,
        "gradient_change": 2.0,
        "n_rows": 10**7 + 1,
        "passes": 2,
        "batch_size": 1,
    }
    assert kernels.sensitivity(**run) == kernels.sensitivity(**run, fresh_order=True)


@pytest.mark.parametrize(
    "kind", ["constant", "decreasing", "sqrt_decreasing", "strongly_convex", "inverse_sqrt"]
)
@pytest.mark.parametrize("n", [0, 1, 90, 10**6])
@pytest.mark.parametrize("step_size", [0.0, 0.3])
def test_a_schedule_is_derived_from_public_numbers(kind: str, n: int, step_size: float) -> None:
    """privacy/README.md, "Schedules", and with several rows a unit "Unit of privacy"."""
    loss, lambda_, m, exponent = Loss("huber_svm", huber_h=0.2), 0.01, 4, 0.7
    cap = 1 / (m * 2.5 + lambda_)
    found = Schedule.resolve(
        kind,
        step_size=step_size,
        exponent=exponent,
        n=n,
        smoothness=loss.unit_smoothness(m),
        lambda_=lambda_,
    )
    decreasing = kind in ("decreasing", "sqrt_decreasing")
    own = {"constant": min(1 / math.sqrt(n), cap) if n > 0 else cap, "inverse_sqrt": 1.0}
    assert found.max_step == pytest.approx(cap, rel=1e-15)
    assert found.offset == pytest.approx(n**exponent if decreasing else 0.0, rel=1e-15)
    assert found.step_size == pytest.approx(step_size or own.get(kind, 0.0), rel=1e-15)
    assert (found.kind, found.lambda_) == (kind, lambda_)


def test_steps_without_a_cap() -> None:
    found = Schedule.resolve("inverse_sqrt", n=10, smoothness=0.25, lambda_=0.0, capped=False)
    assert found == Schedule("inverse_sqrt", step_size=1.0)


def test_numbers_that_server_and_package_share() -> None:
    """What the documents say of them."""
    assert (kernels.MAX_GRAM_FEATURES, kernels.MAX_PROJECTION, kernels.MAX_BLUR) == (2500, 2**26, 2**26)
    assert (kernels.MAX_FEATURES, kernels.MAX_POISSON_STEPS) == (2**20, 2**31 - 1)
    assert (kernels.LEAST_SCALE, kernels.MOST_STEPS) == (2.0**-900, 2.0**45)
    assert (kernels.TARGET_NORM, kernels.DEFAULT_HUBER_H) == (1.0 - 2.0**-19, 0.5)
