# SPDX-License-Identifier: PostgreSQL
"""Units of privacy of several rows, in the kernel.

All rows of a unit fall into one batch of b units, and replacing all of them
moves the model by at most m times the sensitivity of a row.
Source: privacy/README.md, "Unit of privacy".
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from helpers import replay
from helpers.plans import decide
from pg_dpml import kernels
from pg_dpml.kernels import Loss, Schedule
from pg_dpml.spec.privacy import PrivacySpec
from pg_dpml.training.plan import Problem
from pg_dpml.training.spec import TrainSpec

FloatArray = npt.NDArray[np.float64]
LOSSES = {
    "logistic": Loss("logistic", clip=0.5),
    "squared": Loss("squared", clip=0.3),
    "softmax": Loss("softmax", n_classes=3),
    "one_vs_all": Loss("logistic", n_classes=3, clip=0.5),
}
D = 4


def label(rng: np.random.Generator, loss: Loss) -> float:
    if loss.n_classes > 1:
        return float(rng.integers(loss.n_classes))
    return float(rng.choice([-1.0, 1.0]))


def rows(rng: np.random.Generator, n: int) -> FloatArray:
    x = rng.normal(size=(n, D))
    x *= (1.0 - 2.0**-20) / np.linalg.norm(x, axis=1, keepdims=True)
    return x.astype(np.float32).astype(np.float64)


def blocks(x: FloatArray, y: FloatArray, starts: list[bool], size: int) -> list[bytes]:
    """Blocks of `size` rows, their borders anywhere in a unit."""
    return [
        replay.pack_dense(x[i : i + size], y[i : i + size], starts[i : i + size])
        for i in range(0, len(y), size)
    ]


def gradient(loss: Loss, w: FloatArray, x: FloatArray, y: float) -> FloatArray:
    """Gradient of one row, from the losses' scalar derivative."""
    if loss.kind == "softmax":
        p = np.exp(w @ x - np.max(w @ x))
        p /= p.sum()
        return np.outer(p - np.eye(loss.n_classes)[int(y)], x)
    binary = Loss(loss.kind, clip=loss.clip)
    signs = [y] if loss.n_classes == 1 else [1.0 if k == int(y) else -1.0 for k in range(loss.n_classes)]
    return np.array([binary.derivative(float(wk @ x), s) * x for wk, s in zip(w, signs, strict=True)])


@pytest.mark.parametrize("batch_size", [1, 2, 5])
@pytest.mark.parametrize("name", LOSSES)
def test_batches_hold_whole_units(name: str, batch_size: int) -> None:
    loss = LOSSES[name]
    rng = np.random.default_rng(7)
    sizes = [3, 1, 2, 4, 1, 1, 5, 2, 1, 3, 2]
    n = sum(sizes)
    x, y = rows(rng, n), np.array([label(rng, loss) for _ in range(n)])
    starts = [place == 0 for size in sizes for place in range(size)]
    schedule = Schedule("constant", step_size=0.4, max_step=1.0)
    got = replay.sgd_blocks(
        blocks(x, y, starts, 4),
        n_features=D,
        loss=loss,
        schedule=schedule,
        lambda_=0.01,
        batch_size=batch_size,
        by_unit=True,
    )
    w = np.zeros((loss.n_classes, D))
    unit_of = np.cumsum(starts) - 1
    steps = math.ceil(len(sizes) / batch_size)
    for step in range(steps):
        members = np.flatnonzero(unit_of // batch_size == step)
        total = sum((gradient(loss, w, x[i], y[i]) for i in members), np.zeros_like(w))
        w = (1.0 - 0.4 * 0.01) * w - 0.4 / batch_size * total
    assert got.steps == steps
    assert got.rows == n
    np.testing.assert_allclose(got.weights, w.reshape(-1), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("size", [1, 3, 32, 33, 100])
def test_starts_survive_packing(size: int) -> None:
    starts = [i % 3 == 0 for i in range(size)]
    block = replay.pack_dense(np.ones((size, 2)), np.ones(size), starts)
    again = replay.open_block(block)
    assert again.values.shape == (size, 2)
    assert again.starts is not None
    assert again.starts.tolist() == starts
    assert replay.open_block(replay.pack_dense(np.ones((size, 2)), np.ones(size))).starts is None


@pytest.mark.parametrize("name", LOSSES)
def test_neighbours_stay_within_the_sensitivity(name: str) -> None:
    """1,000 pairs of tables that differ in all rows of one unit of at most m rows."""
    loss = LOSSES[name]
    rng = np.random.default_rng(11)
    reached = 0.0
    for _ in range(1000):
        m, n_units, b = int(rng.integers(1, 5)), int(rng.integers(1, 12)), int(rng.choice([1, 3, 7]))
        sizes = rng.integers(1, m + 1, size=n_units)
        starts = [place == 0 for size in sizes for place in range(int(size))]
        n = len(starts)
        x, y = rows(rng, n), np.array([label(rng, loss) for _ in range(n)])
        unit = int(rng.integers(n_units))
        members = np.cumsum(starts) - 1 == unit
        other_x, other_y = x.copy(), y.copy()
        # opposite rows of one label push furthest apart
        other_x[members] = -x[members]
        if rng.random() < 0.3:
            other_y[members] = [label(rng, loss) for _ in range(int(members.sum()))]
        cap = 1.0 / (m * loss.smoothness)
        schedule = Schedule("constant", step_size=float(rng.choice([0.1, 1.0])) * cap, max_step=cap)
        passes = int(rng.integers(1, 3))
        models: list[FloatArray] = []
        for table_x, table_y in ((x, y), (other_x, other_y)):
            w = np.zeros(loss.n_classes * D)
            for k in range(passes):
                w = replay.sgd_blocks(
                    blocks(table_x, table_y, starts, 5),
                    n_features=D,
                    loss=loss,
                    schedule=schedule,
                    batch_size=b,
                    by_unit=True,
                    weights=w,
                    steps=k * math.ceil(n_units / b),
                ).weights
            models.append(w)
        bound = kernels.sensitivity(
            schedule=schedule,
            smoothness=m * loss.smoothness,
            lambda_=0.0,
            gradient_change=m * 2.0 * loss.lipschitz,
            n_rows=n_units,
            passes=passes,
            batch_size=b,
        ).sensitivity
        distance = float(np.linalg.norm(models[0] - models[1]))
        assert distance <= bound * (1.0 + 1e-9)
        reached = max(reached, distance / bound)
    assert reached > 0.3  # the bound is not idle


def far_apart(step_size: float, m: int, batch_size: int, unit: int, n_units: int = 200) -> float:
    """Distance of two runs on aligned rows of clipped squared loss, one unit's labels +1 or -1."""
    starts = [i % m == 0 for i in range(n_units * m)]
    x = np.full((n_units * m, 1), 1.0 - 2.0**-20)
    models = []
    for other in (1.0, -1.0):
        y = np.zeros(n_units * m)
        y[unit * m : (unit + 1) * m] = other
        schedule = Schedule("constant", step_size=step_size, max_step=step_size)
        found = replay.sgd_blocks(
            [replay.pack_dense(x, y, starts)],
            n_features=1,
            loss=Loss("squared", clip=1.0),
            schedule=schedule,
            batch_size=batch_size,
            by_unit=True,
        )
        models.append(found.weights[0])
    return float(abs(models[0] - models[1]))


@pytest.mark.parametrize("m", [1, 2, 3, 4, 8])
def test_a_step_of_a_unit_is_as_steep_as_all_its_rows(m: int) -> None:
    """Where the loss is curved at every row, distances grow once eta m beta > 2; the cap forbids it."""
    problem = Problem(200, 1, 1, "regression", "patient", m)
    spec = TrainSpec(method="bolt-on", clip=1.0, passes=1, batch_size=10, step_size=100.0)
    plan: Any = decide(problem, PrivacySpec(1.0, 1e-6), spec)
    assert plan.noise is not None
    step_size = plan.work.schedule.step(1)
    assert step_size * m <= 1.0 + 1e-12
    reached = [far_apart(step_size, m, 10, unit) / plan.noise.sensitivity for unit in range(0, 200, 5)]
    assert 0.9 <= max(reached) <= 1.0 + 1e-9
    if m > 2:  # with a step that beta alone would allow, the distance is far beyond m D eta / b
        wild = [far_apart(1.0, m, 10, unit) for unit in range(0, 200, 5)]
        assert max(wild) > 2.0 * (m * 2.0 / 10)


def test_the_plan_charges_a_unit_for_all_its_rows() -> None:
    privacy, spec = (
        PrivacySpec(1.0, 1e-6),
        TrainSpec(method="bolt-on", passes=2, batch_size=10, step_size=0.1),
    )
    row: Any = decide(Problem(1000, 5, 1, "binary"), privacy, spec)
    unit: Any = decide(Problem(1000, 5, 1, "binary", "patient", 7), privacy, spec)
    assert row.noise is not None
    assert unit.noise is not None
    assert unit.noise.sensitivity == pytest.approx(7 * row.noise.sensitivity, rel=1e-12)
    assert unit.guarantee is not None
    assert unit.guarantee.unit == "patient"
    assert unit.work.options(1000)["max_rows_per_unit"] == 7
    assert "max_rows_per_unit" not in row.work.options(1000)


def test_one_vs_all_is_one_release() -> None:
    """Its sensitivity is sqrt K that of one binary model."""
    privacy, spec = (
        PrivacySpec(1.0, 1e-6),
        TrainSpec(method="bolt-on", loss="logistic", passes=2, batch_size=10, step_size=0.1),
    )
    one: Any = decide(Problem(1000, 5, 1, "binary"), privacy, spec)
    all_: Any = decide(Problem(1000, 5, 9, "multiclass"), privacy, spec)
    assert one.noise is not None
    assert all_.noise is not None
    assert all_.noise.sensitivity == pytest.approx(3.0 * one.noise.sensitivity, rel=1e-12)
    assert all_.noise.n_weights == 45
