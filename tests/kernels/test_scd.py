# SPDX-License-Identifier: PostgreSQL
"""Passes of coordinate descent, and the change of a single dual, against plain ones."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from helpers import oracles, replay, replay_scd
from helpers.replay_scd import Pass
from helpers.sgdtools import N_FEATURES, N_ROWS, Data, assert_close, make_data, pack_sparse
from pg_dpml.kernels import FloatArray, Loss, noise_grid

H = 0.3
LOSSES = {
    "squared": Loss("squared"),
    "logistic": Loss("logistic"),
    "huber_svm": Loss("huber_svm", huber_h=H),
    "hinge": Loss("hinge"),
}
TWO_CLASSES = ("logistic", "huber_svm", "hinge")
LAMBDA = 0.01
EXTREME = (0.0, -0.0, 1e-320, 1e-8, 0.3, 1.0, 1.0 + 2**-50, 700.0, 1e12, 1e200, 1.7e308, math.inf, math.nan)

pytestmark = pytest.mark.parametrize("name", LOSSES)


def value(name: str, u: float, y: float, alpha: float, q: float, change: float) -> float:
    """What a change maximises."""
    return replay_scd.dual_value(LOSSES[name], alpha + change, y) - u * change - q * change**2 / 2


def test_change_agrees_with_the_primal_loss(name: str) -> None:
    loss = LOSSES[name]
    draw = np.random.default_rng(1)
    for _ in range(400):
        y = float(draw.choice([-1.0, 1.0])) if name in TWO_CLASSES else float(draw.normal())
        u, q = float(draw.normal() * 10 ** draw.uniform(-1, 1.5)), float(10 ** draw.uniform(-3, 3))
        b = float(draw.choice([0.0, 1.0, draw.random(), draw.normal() * 3], p=[0.1, 0.1, 0.5, 0.3]))
        alpha = y * b if name in TWO_CLASSES else b
        change = replay_scd.dual_change(loss, u, y, alpha, q)
        assert change == pytest.approx(oracles.dual_change(name, u, y, alpha, q, h=H), rel=1e-9, abs=1e-11)


def test_change_is_the_best_one(name: str) -> None:
    draw = np.random.default_rng(2)
    for _ in range(200):
        y = float(draw.choice([-1.0, 1.0]))
        u, q, alpha = float(draw.normal() * 3), float(10 ** draw.uniform(-2, 2)), y * float(draw.random())
        best = value(name, u, y, alpha, q, replay_scd.dual_change(LOSSES[name], u, y, alpha, q))
        for other in draw.uniform(-1.0, 1.0, 20):
            assert value(name, u, y, alpha, q, float(other)) <= best + 1e-12 * (1 + abs(best))


def test_one_step_of_newton_rises_and_rests_at_the_optimum(name: str) -> None:
    """Only the logistic loss needs it; the others are solved by a formula."""
    loss = LOSSES[name]
    draw = np.random.default_rng(3)
    for _ in range(400):
        y = float(draw.choice([-1.0, 1.0]))
        u, q, b = float(draw.normal() * 4), float(10 ** draw.uniform(-2, 2)), float(draw.random())
        one = replay_scd.dual_change(loss, u, y, y * b, q, exact=False)
        full = replay_scd.dual_change(loss, u, y, y * b, q)
        assert name == "squared" or 0.0 <= b + y * one <= 1.0
        assert one * full >= 0.0
        assert abs(one - full) <= 0.5 * abs(full) + 1e-12
        assert value(name, u, y, y * b, q, one) >= value(name, u, y, y * b, q, 0.0) - 1e-12
        if name != "hinge":
            rest = -loss.derivative(u, y)
            assert replay_scd.dual_change(loss, u, y, rest, q, exact=False) == pytest.approx(0.0, abs=1e-12)


def test_change_is_total(name: str) -> None:
    """No number makes one that is not finite, and what is no class changes nothing."""
    signed = [sign * number for number in EXTREME for sign in (1.0, -1.0)]
    for u, y, alpha, q, exact in itertools.product(signed, signed, signed, EXTREME, (False, True)):
        change = replay_scd.dual_change(LOSSES[name], u, y, alpha, q, exact=exact)
        assert math.isfinite(change)
        usable = math.isfinite(u) and math.isfinite(alpha) and 0.0 < q < math.inf
        if not usable or math.isnan(y) or (name in TWO_CLASSES and y == 0.0):
            assert change == 0.0
        if name in TWO_CLASSES and math.isfinite(alpha) and abs(alpha) < 1e6 and change != 0.0:
            assert -1e-9 <= math.copysign(1.0, y) * (alpha + change) <= 1.0 + 1e-9


def test_dual_value(name: str) -> None:
    loss = LOSSES[name]
    for y, b in itertools.product((-1.0, 1.0), (0.05, 0.3, 0.5, 0.9)):
        assert replay_scd.dual_value(loss, y * b, y) == pytest.approx(
            oracles.dual_value(name, y * b, y, h=H), rel=1e-9, abs=1e-9
        )
    if name in TWO_CLASSES:
        assert replay_scd.dual_value(loss, 0.0, 1.0) == 0.0
        assert replay_scd.dual_value(loss, 0.0, 0.0) == loss.value(0.0, 0.0)
        for y, alpha in ((1.0, -1e-9), (1.0, 1.1), (-1.0, 0.5), (1.0, math.nan), (0.0, 0.1), (1.0, math.inf)):
            assert replay_scd.dual_value(loss, alpha, y) == -math.inf
    assert replay_scd.dual_value(loss, math.inf, 1.0) == -math.inf


def batches(n: int, size: int) -> list[list[int]]:
    return [list(range(i, min(i + size, n))) for i in range(0, n, size)]


def assert_same(first: Pass, second: Pass) -> None:
    """Bit for bit."""
    np.testing.assert_array_equal(first.v, second.v)
    np.testing.assert_array_equal(first.duals, second.duals)
    assert first[2:] == second[2:]


@pytest.mark.parametrize("sequential", [False, True])
@pytest.mark.parametrize("batch_size", [1, 7, 200])
def test_passes_agree_with_oracle(name: str, batch_size: int, *, sequential: bool) -> None:
    """Three passes, each going on with the v and the duals of the one before, in every form of rows."""
    loss, data = LOSSES[name], make_data(LOSSES[name])
    for update_clip in (math.inf, 0.4):
        plain: dict[str, Any] = {
            "lambda_": LAMBDA,
            "n": N_ROWS,
            "batch_size": batch_size,
            "sequential": sequential,
            "update_clip": update_clip,
        }
        options = {**plain, "loss": loss, "exact": True}
        forms = [Pass(np.zeros(N_FEATURES), np.zeros(N_ROWS), 0, 0)] * 3
        expected: tuple[FloatArray, FloatArray] | tuple[None, None] = (None, None)
        for number in range(1, 4):
            v, duals = expected
            expected = oracles.coordinate_descent(
                data.x, data.y, batches(N_ROWS, batch_size), name=name, h=H, v=v, duals=duals, **plain
            )
            rows, dense, sparse = ({"v": f.v, "duals": f.duals, "steps": f.steps, **options} for f in forms)
            forms = [
                replay_scd.scd_rows(data.x, data.y, **rows),
                replay_scd.scd_blocks(data.dense, n_features=N_FEATURES, **dense),
                replay_scd.scd_blocks(data.sparse, n_features=N_FEATURES, **sparse),
            ]
            assert_same(forms[0], forms[1])
            for found in forms:
                assert (found.steps, found.rows) == (number * -(-N_ROWS // batch_size), N_ROWS)
                assert_close(found.v, expected[0])
                np.testing.assert_allclose(found.duals, expected[1], rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("d", [*range(1, 18), 50, 64])
def test_every_width(name: str, d: int) -> None:
    loss, data = LOSSES[name], make_data(LOSSES[name], n=31, d=d)
    options: dict[str, Any] = {"loss": loss, "lambda_": LAMBDA, "n": 31, "exact": True}
    v, _ = oracles.coordinate_descent(data.x, data.y, batches(31, 1), name=name, h=H, lambda_=LAMBDA, n=31)
    rows = replay_scd.scd_rows(data.x, data.y, **options)
    assert_close(rows.v, v)
    assert_same(rows, replay_scd.scd_blocks(data.dense, n_features=d, **options))
    assert_close(replay_scd.scd_blocks(data.sparse, n_features=d, **options).v, v)


def with_units(data: Data, starts: list[int], cuts: list[int]) -> list[bytes]:
    """The rows in blocks that end anywhere, units included."""
    flags = np.isin(np.arange(len(data.y)), starts)
    parts = [slice(i, j) for i, j in itertools.pairwise([0, *cuts, len(data.y)])]
    return [replay.pack_dense(data.x[part], data.y[part], flags[part]) for part in parts]


@pytest.mark.parametrize("sequential", [False, True])
def test_units_stay_in_one_batch(name: str, *, sequential: bool) -> None:
    data = make_data(LOSSES[name], n=20)
    starts = [0, 3, 4, 9, 15, 16, 19]
    ends = [*starts[1:], 20]
    units = [list(range(i, j)) for i, j in zip(starts, ends, strict=True)]
    plain: dict[str, Any] = {"lambda_": LAMBDA, "n": 7, "batch_size": 2, "sequential": sequential}
    grouped = [[row for unit in units[i : i + 2] for row in unit] for i in range(0, 7, 2)]
    v, duals = oracles.coordinate_descent(data.x, data.y, grouped, name=name, h=H, **plain)
    for cuts in ([], [1, 2, 10], [4, 9, 15]):
        found = replay_scd.scd_blocks(
            with_units(data, starts, cuts),
            n_features=N_FEATURES,
            loss=LOSSES[name],
            by_unit=True,
            exact=True,
            **plain,
        )
        assert found.steps == 4
        assert_close(found.v, v)
        np.testing.assert_allclose(found.duals, duals, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("form", ["dense", "sparse"])
def test_poisson_batches_agree_with_oracle(name: str, form: str) -> None:
    """A row is drawn as often as its dual changes; the sum over batches is that of one row each."""
    data = make_data(LOSSES[name], n=40)
    blocks = data.dense if form == "dense" else data.sparse
    options: dict[str, Any] = {"loss": LOSSES[name], "lambda_": LAMBDA, "n": 40, "batch_size": 10}
    options["exact"] = True
    key = bytes(range(32))
    poisson: dict[str, Any] = {"n_features": N_FEATURES, "sampling": 0.25, "coin_key": key}
    # The batches, from a pass whose squared loss of clip 1e-3 moves each drawn dual by exactly that.
    drawn = []
    for steps in range(1, 31):
        probe = {**options, "loss": Loss("squared"), "update_clip": 1e-3, "v": np.zeros(N_FEATURES)}
        far = [replay.pack_dense(np.full((9, N_FEATURES), 1e-3), np.full(9, 1e6)) for _ in range(4)]
        far.append(replay.pack_dense(np.full((4, N_FEATURES), 1e-3), np.full(4, 1e6)))
        found = replay_scd.scd_poisson(far, n_steps=steps, **poisson, **probe)
        assert found.steps == steps
        drawn.append(np.rint(found.duals / 1e-3).astype(int))
    pairs = itertools.pairwise([0 * drawn[0], *drawn])
    realised = [np.flatnonzero(now - before).tolist() for before, now in pairs]
    assert {len(batch) for batch in realised} > {8, 10}
    v, duals = oracles.coordinate_descent(
        data.x, data.y, realised, name=name, lambda_=LAMBDA, n=40, batch_size=10, h=H
    )
    got = replay_scd.scd_poisson(blocks, n_steps=30, **poisson, **options)
    assert (got.steps, got.rows) == (30, 40)
    assert_close(got.v, v)
    np.testing.assert_allclose(got.duals, duals, rtol=1e-8, atol=1e-9)


def test_bad_rows_change_nothing(name: str) -> None:
    """Zero rows, rows that are not numbers, and labels that are no class keep their duals."""
    bad = [np.zeros(3), np.full(3, np.nan), np.array([1.0, np.inf, 0.0])]
    x = np.array([*bad, *([[0.5, 0.1, 0.0]] * 2)])
    y = np.array([1.0, 1.0, 1.0, np.nan, 0.0])
    n_bad = 5 if name in TWO_CLASSES else 4
    block = replay.pack_dense(x, y)
    plain: dict[str, Any] = {"loss": LOSSES[name], "lambda_": 0.1, "n": 5, "exact": True}
    for options in ({}, {"sequential": True}, {"batch_size": 3}, {"batch_size": 3, "sequential": True}):
        found = replay_scd.scd_blocks([block], n_features=3, duals=np.full(5, 0.25), **plain, **options)
        np.testing.assert_array_equal(found.duals[:n_bad], 0.25)
        assert np.isfinite(found.v).all()
        if name in TWO_CLASSES:
            np.testing.assert_array_equal(found.v, 0.0)


@pytest.mark.parametrize("dual_noise", [False, True])
@pytest.mark.parametrize("sequential", [False, True])
def test_noise_is_on_the_grid_in_every_batch(name: str, *, sequential: bool, dual_noise: bool) -> None:
    data = make_data(LOSSES[name])
    options: dict[str, Any] = {
        "loss": LOSSES[name],
        "lambda_": LAMBDA,
        "n": N_ROWS,
        "update_clip": 0.5,
        "batch_size": 10,
        "noise_scale": 0.7,
        "sequential": sequential,
        "dual_noise": dual_noise,
        "exact": True,
    }
    found = replay_scd.scd_blocks(data.dense, n_features=N_FEATURES, key=bytes([1] * 32), **options)
    again = replay_scd.scd_blocks(data.dense, n_features=N_FEATURES, key=bytes([1] * 32), **options)
    other = replay_scd.scd_blocks(data.dense, n_features=N_FEATURES, key=bytes([2] * 32), **options)
    assert_same(found, again)
    assert (found.v != other.v).all()
    grid = noise_grid(0.7)
    for numbers, noisy in ((found.v, True), (found.duals, dual_noise)):
        whole = numbers / grid == np.rint(numbers / grid)
        assert whole.all() if noisy else not whole.all()


def test_empty_batches_have_noise(name: str) -> None:
    """Steps that draw nobody: v is the sum of noise alone, of the right size, and no dual moves."""
    data = make_data(LOSSES[name], n=20)
    steps = 4000
    found = [
        replay_scd.scd_poisson(
            data.dense,
            n_features=N_FEATURES,
            n_steps=n_steps,
            sampling=1e-12,
            coin_key=bytes(32),
            loss=LOSSES[name],
            lambda_=LAMBDA,
            n=20,
            update_clip=0.5,
            noise_scale=2.0,
            key=bytes([7] * 32),
        )
        for n_steps in range(steps - 150, steps)
    ]
    changes = np.diff([one.v for one in found], axis=0)
    assert np.isin(changes / noise_grid(2.0) % 1.0, [0.0]).all()
    assert changes.std() == pytest.approx(2.0, rel=0.05)
    assert not any(one.duals.any() for one in found)


def test_dual_noise_has_its_scale(name: str) -> None:
    """Every dual that is drawn gets noise of its own, of the scale of v's."""
    n = 3000
    rows, labels = np.full((n, 2), 0.5), np.ones(n)
    options: dict[str, Any] = {
        "loss": LOSSES[name],
        "lambda_": 1.0,
        "n": n,
        "update_clip": 0.01,
        "batch_size": n,
        "noise_scale": 3.0,
        "exact": True,
    }
    quiet = replay_scd.scd_rows(rows, labels, **options)
    loud = replay_scd.scd_rows(rows, labels, dual_noise=True, key=bytes([9] * 32), **options)
    noise = loud.duals - quiet.duals
    assert noise.std() == pytest.approx(3.0, rel=0.06)
    assert noise.mean() == pytest.approx(0.0, abs=0.25)
    assert len(np.unique(noise)) > 0.99 * n


def test_gap_agrees_with_oracle(name: str) -> None:
    data, loss = make_data(LOSSES[name]), LOSSES[name]
    options: dict[str, Any] = {"loss": loss, "lambda_": LAMBDA, "n": N_ROWS, "exact": True}
    found = replay_scd.scd_blocks(data.dense, n_features=N_FEATURES, **options)
    for blocks in (data.dense, data.sparse):
        primal, dual = replay_scd.gap(blocks, found, loss, LAMBDA, N_ROWS)
        expected = oracles.duality_gap(data.x, data.y, found.v, found.duals, name=name, lambda_=LAMBDA, h=H)
        assert (primal, dual) == pytest.approx(expected, rel=1e-9)
        assert primal >= dual


def test_zero_rows_leave_no_gap(name: str) -> None:
    """Their loss is a constant, so their best dual value is that constant; it does not wait for a change."""
    loss = LOSSES[name]
    data = make_data(loss, n=12)
    x, y = np.vstack([data.x, np.zeros((3, N_FEATURES))]), np.append(data.y, [1.0, -1.0, 0.0])
    blocks = [replay.pack_dense(x, y), pack_sparse(x, y)]
    found = Pass(np.zeros(N_FEATURES), np.zeros(15), 0, 0)
    for _ in range(2000):
        found = replay_scd.scd_blocks(
            blocks[:1],
            n_features=N_FEATURES,
            loss=loss,
            lambda_=0.1,
            n=15,
            exact=True,
            v=found.v,
            duals=found.duals,
        )
    for block in blocks:
        primal, dual = replay_scd.gap([block], found, loss, 0.1, 15)
        assert 0 <= primal - dual + 1e-12 <= 1e-9 * primal


def test_converges_on_rows_like_the_census(name: str) -> None:
    """A relative gap of 1e-8 within some hundred passes over categories, blocks in random order."""
    draw = np.random.default_rng(5)
    n, lambda_ = 3000, 1e-3
    categories = [np.eye(k)[draw.integers(0, k, n)] for k in (7, 16, 7, 14, 6, 5, 2, 40)]
    x = np.hstack([draw.random((n, 6)), *categories, np.ones((n, 1))])
    x /= np.linalg.norm(x, axis=1, keepdims=True) * 1.001
    x = x.astype(np.float32).astype(np.float64)
    score = x @ draw.normal(size=x.shape[1]) * 6
    y = np.where(score + draw.logistic(size=n) > np.quantile(score, 0.75), 1.0, -1.0)
    blocks = [replay.pack_dense(x[i : i + 20], y[i : i + 20]) for i in range(0, n, 20)]
    rows = np.arange(n).reshape(-1, 20)
    found = Pass(np.zeros(x.shape[1]), np.zeros(n), 0, 0)
    for _ in range(500):
        order = draw.permutation(len(blocks))
        visited = rows[order].ravel()
        after = replay_scd.scd_blocks(
            [blocks[i] for i in order],
            n_features=x.shape[1],
            loss=LOSSES[name],
            lambda_=lambda_,
            n=n,
            exact=True,
            v=found.v,
            duals=found.duals[visited],
        )
        duals = np.empty(n)
        duals[visited] = after.duals
        found = after._replace(duals=duals)
        primal, dual = replay_scd.gap(blocks, found, LOSSES[name], lambda_, n)
        if primal - dual < 1e-8 * primal:
            break
    assert primal - dual < 1e-8 * primal
    assert primal >= dual * (1 - 1e-12)
