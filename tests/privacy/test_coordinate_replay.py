# SPDX-License-Identifier: PostgreSQL
"""Coordinate descent: what a unit moves in one step, the noise that is really added, and an attack.

Steps are replayed through the kernels that the server runs, with the options of the plans.
Source: privacy/README.md, "Coordinate descent", "Batches whose updates see each other" and "Coordinates of
the model".
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from helpers import replay, replay_scd
from helpers.attacks import shown_delta, shown_epsilon
from helpers.kernel_job import KernelJob
from helpers.neighbours import LONGEST_ROW, FloatArray, Table
from helpers.plans import decide
from pg_dpml.kernels import LEAST_SCALE, Noise, noise_grid
from pg_dpml.methods.primal_coordinate_descent import PrimalDescent
from pg_dpml.privacy.noise import composed
from pg_dpml.privacy.noise.coordinates import CoordinateNoise, DualNoise
from pg_dpml.spec.privacy import PrivacySpec
from pg_dpml.spec.relation import Relation
from pg_dpml.training.plan import Problem
from pg_dpml.training.scd import Scd
from pg_dpml.training.spec import TrainSpec

PAIRS = 1000
RUNS = 20_000
LEAST_P = 1e-6  # the keys are fixed: no false alarms
UNITS = 40
FEATURES = 3
LOSSES = ("logistic", "huber_svm", "hinge", "squared")


def planned(method: str, problem: Problem, privacy: PrivacySpec, **options: Any) -> tuple[Scd, DualNoise]:
    decided = decide(problem, privacy, TrainSpec(method=method, **options))
    assert isinstance(decided.work, Scd)
    assert isinstance(decided.noise, DualNoise)
    return decided.work, decided.noise


def kernel_options(scd: Scd, n_units: int = UNITS) -> dict[str, Any]:
    """The options of a pass as replay_scd.py takes them, without noise."""
    return {
        "loss": scd.loss,
        "lambda_": scd.lambda_,
        "n": n_units,
        "update_clip": scd.update_clip,
        "batch_size": scd.batch_size,
        "by_unit": scd.max_rows_per_unit is not None,
        "max_rows_per_unit": scd.max_rows_per_unit or 1,
        "sequential": scd.sequential,
        "exact": scd.exact,
    }


def noise_of(scd: Scd) -> dict[str, Any]:
    return {"noise_scale": scd.noise_scale, "dual_noise": scd.dual_noise}


def noise_options(scd: Scd, key: int) -> dict[str, Any]:
    return {**noise_of(scd), "key": replay.key_of(key)}


def pack(table: Table) -> list[bytes]:
    return [replay.pack_dense(table.x, table.y, table.starts)] if len(table.y) else []


def problem_of(loss: str, n_units: int, rows_per_unit: int, n_features: int = FEATURES) -> Problem:
    task = "regression" if loss == "squared" else "binary"
    return Problem(n_units, n_features, 1, task, None if rows_per_unit == 1 else "unit", rows_per_unit)


def random_rows(rng: np.random.Generator, n: int) -> FloatArray:
    x = rng.normal(size=(n, FEATURES))
    x *= LONGEST_ROW / np.linalg.norm(x, axis=1, keepdims=True)
    return x.astype(np.float32).astype(np.float64)


def random_labels(rng: np.random.Generator, n: int) -> FloatArray:
    return rng.choice(np.array([-1.0, 1.0]), size=n)


def random_duals(rng: np.random.Generator, labels: FloatArray) -> FloatArray:
    """As a run leaves them: within their range, at its ends, or beyond it by noise."""
    duals: FloatArray = labels * rng.choice([0.0, 1.0, rng.random()], size=len(labels))
    duals += rng.choice([0.0, 0.0, 3.0]) * rng.normal(size=len(labels))
    return duals


def step(scd: Scd, table: Table, v: FloatArray, duals: FloatArray) -> replay_scd.Pass:
    """One batch of all these rows, which need not be as many as a batch has by its nominal size."""
    return replay_scd.scd_blocks(pack(table), n_features=FEATURES, v=v, duals=duals, **kernel_options(scd))


def insert(table: Table, place: int, x: FloatArray, y: FloatArray) -> Table:
    """The table with the rows of one more unit in front of those from `place` on."""
    assert table.starts is not None
    own = np.arange(len(y)) == 0
    return Table(
        np.insert(table.x, place, x, axis=0) if len(y) else table.x,
        np.insert(table.y, place, y),
        np.insert(table.starts, place, own),
    )


@pytest.mark.parametrize("rows_per_unit", [1, 3])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_unit_moves_a_step_by_at_most_the_clip(loss: str, rows_per_unit: int) -> None:
    """Whether its coin falls on heads, whatever its duals are, and leaves the duals of all others alone.

    v and the duals of all rows are what an attacker would like them to be.
    """
    rng = np.random.default_rng([rows_per_unit, len(loss)])
    problem = problem_of(loss, UNITS, rows_per_unit)
    scd, noise = planned("dp-scd", problem, PrivacySpec(1.0, 1e-6), loss=loss, batch_size=7)
    bound = noise.sensitivity / Relation.REPLACE_ONE.gradient_change(1.0)
    assert bound == pytest.approx(rows_per_unit * scd.update_clip)
    reached = dict.fromkeys(("out", "other"), 0.0)
    for pair in range(PAIRS):
        others = int(rng.integers(0, 7)) * rows_per_unit
        absent = Table(
            random_rows(rng, others), random_labels(rng, others), np.arange(others) % rows_per_unit == 0
        )
        duals = random_duals(rng, absent.y)
        place = int(rng.integers(0, others // rows_per_unit + 1)) * rows_per_unit
        x, y = random_rows(rng, rows_per_unit), random_labels(rng, rows_per_unit)
        v = rng.normal(size=FEATURES) * rng.choice([0.0, 1.0, 30.0]) * scd.lambda_ * UNITS
        own = random_duals(rng, y)
        if pair % 2 == 0:  # rows that are as wrong as can be, and may go all the way
            x, y = np.tile([LONGEST_ROW, 0.0, 0.0], (rows_per_unit, 1)), np.ones(rows_per_unit)
            own, v = np.zeros(rows_per_unit), np.array([-3.0, 0.0, 0.0]) * scd.lambda_ * UNITS
        other_x, other_y = random_rows(rng, rows_per_unit), random_labels(rng, rows_per_unit)
        if pair % 2 == 0:
            other_x, other_y = x * [-1.0, 1.0, 1.0], -y
        present = insert(absent, place, x, y)
        replaced = insert(absent, place, other_x, other_y if pair % 2 else y)
        blank = insert(absent, place, np.zeros_like(x), np.zeros_like(y))
        all_duals = np.insert(duals, place, own)
        without = step(scd, absent, v, duals)
        found = {
            name: step(scd, table, v, all_duals)
            for name, table in (("in", present), ("other", replaced), ("blank", blank))
        }
        for one in found.values():  # what others add is the same, to the last digit
            kept = np.delete(one.duals, slice(place, place + rows_per_unit))
            np.testing.assert_array_equal(kept, without.duals)
        out = float(np.linalg.norm(found["in"].v - without.v))
        other = float(np.linalg.norm(found["in"].v - found["other"].v))
        assert out <= bound * (1.0 + 1e-12) + 1e-15 * np.linalg.norm(v)
        assert other <= noise.sensitivity * (1.0 + 1e-12) + 1e-15 * np.linalg.norm(v)
        np.testing.assert_allclose(found["blank"].v, without.v, rtol=1e-14, atol=1e-18)
        reached["out"] = max(reached["out"], out / bound)
        reached["other"] = max(reached["other"], other / noise.sensitivity)
    assert reached["out"] >= 0.99
    if loss != "squared":
        assert reached["other"] >= 0.45


@pytest.mark.parametrize("batch_size", [1, 5])
@pytest.mark.parametrize("rows_per_unit", [1, 3])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_unit_moves_a_sequential_batch_by_at_most_its_bound(
    loss: str, rows_per_unit: int, batch_size: int
) -> None:
    """The duals of the batch and v as one vector, under both relations; a batch of one row reaches it."""
    rng = np.random.default_rng([rows_per_unit, batch_size])
    problem = problem_of(loss, UNITS, rows_per_unit)
    scd, noise = planned(
        "seq-dp-scd", problem, PrivacySpec(1.0, 1e-6), loss=loss, batch_size=batch_size, lambda_=0.01
    )
    n = batch_size * rows_per_unit
    starts = np.arange(n) % rows_per_unit == 0
    reached = 0.0
    for pair in range(PAIRS // 4):
        table = Table(random_rows(rng, n), random_labels(rng, n), starts)
        own = slice(0, rows_per_unit)
        duals = random_duals(rng, table.y)
        v = rng.normal(size=FEATURES) * scd.lambda_ * UNITS
        if pair % 2 == 0:
            x = np.tile([LONGEST_ROW, 0.0, 0.0], (rows_per_unit, 1))
            table = table.change(own, x, 1.0)
            other = table.change(own, x, -1.0)
            duals[own], v = 0.0, np.zeros(FEATURES)
        else:
            other = table.change(own, random_rows(rng, rows_per_unit), random_labels(rng, rows_per_unit))
        for neighbour in (other, table.change(own, 0.0, 0.0)):
            one, two = (step(scd, each, v, duals) for each in (table, neighbour))
            assert one.steps == two.steps == 1
            moved = np.concatenate([one.duals - two.duals, one.v - two.v])
            reached = max(reached, float(np.linalg.norm(moved)) / noise.sensitivity)
    assert reached <= 1.0 + 1e-12
    if n == 1:
        assert reached >= 0.99


def primal(
    problem: Problem, privacy: PrivacySpec, **options: Any
) -> tuple[Any, PrimalDescent, CoordinateNoise]:
    decided = decide(problem, privacy, TrainSpec(method="primal-dp-scd", **options))
    assert isinstance(decided.work, PrimalDescent)
    assert isinstance(decided.noise, CoordinateNoise)
    return decided, decided.work, decided.noise


@pytest.mark.parametrize("coordinates", [1, 2, 3])
@pytest.mark.parametrize("loss", ["logistic", "huber_svm", "squared"])
def test_a_unit_moves_the_coordinates_of_a_step_by_at_most_their_bound(loss: str, coordinates: int) -> None:
    rng = np.random.default_rng(coordinates)
    _, descent, noise = primal(
        problem_of(loss, 4, 1), PrivacySpec(1.0, 1e-6), loss=loss, coordinates=coordinates, update_clip=0.01
    )
    assert noise.gradient is not None
    reached = 0.0
    for pair in range(PAIRS):
        table = Table(random_rows(rng, 4), random_labels(rng, 4))
        weights = rng.normal(size=FEATURES) * (pair % 2)
        other = table.change(slice(0, 1), random_rows(rng, 1), random_labels(rng, 1))
        if pair % 2 == 0:
            table = table.change(slice(0, 4), 0.0, 0.0).change(0, np.full(FEATURES, 0.577), 1.0)
            other = table.change(0, -table.x[0], 1.0)
        moves = []
        batch = descent.batch(pair, FEATURES)
        for each in (table, other, table.change(0, 0.0, 0.0)):
            sums = replay.gradient(pack(each), weights, descent.loss)
            assert sums.gradient is not None
            moves.append(descent.change(sums.gradient[batch] / 4, weights[batch]))
        for move in moves[1:]:
            reached = max(reached, float(np.linalg.norm(moves[0] - move)) / noise.gradient.sensitivity)
    assert 0.99 <= reached <= 1.0 + 1e-12


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("method", "dual_noise"), [("dp-scd", False), ("dp-scd", True), ("seq-dp-scd", True)]
)
def test_the_noise_that_a_step_adds_is_the_one_planned(method: str, dual_noise: bool) -> None:
    """A step on zero rows is nothing but noise; one on other rows has the same, with the same key."""
    rng = np.random.default_rng(5)
    problem = problem_of("logistic", UNITS, 1)
    options = {"dual_noise": True} if method == "dp-scd" and dual_noise else {}
    scd, noise = planned(method, problem, PrivacySpec(1.0, 1e-6), batch_size=UNITS, passes=1, **options)
    assert scd.noise_scale == noise.scale
    assert scd.dual_noise is dual_noise
    zero = pack(Table(np.zeros((UNITS, FEATURES)), np.ones(UNITS)))
    data = pack(Table(random_rows(rng, UNITS), random_labels(rng, UNITS)))

    def run(blocks: list[bytes], **more: Any) -> replay_scd.Pass:
        given = kernel_options(scd) | more
        if scd.sampling is None:
            return replay_scd.scd_blocks(blocks, n_features=FEATURES, **given)
        return replay_scd.scd_poisson(
            blocks, n_features=FEATURES, n_steps=1, sampling=scd.sampling, coin_key=bytes(32), **given
        )

    drawn = [run(zero, **noise_options(scd, key)) for key in range(RUNS)]
    plain = run(data)
    for key in range(100):
        noisy = run(data, **noise_options(scd, key))
        np.testing.assert_allclose(noisy.v - plain.v, drawn[key].v, atol=2.0 * noise_grid(noise.scale))
    for numbers, noised in (
        (np.array([one.v for one in drawn]), True),
        (np.array([one.duals[:FEATURES] for one in drawn]), dual_noise),
    ):
        if not noised:
            assert not numbers.any()
            continue
        steps = numbers / noise.grid
        np.testing.assert_array_equal(steps, np.rint(steps))
        assert np.any(steps % 2.0 == 1.0)  # the last digit of the grid is drawn, too
        for coordinate in numbers.T:
            assert stats.kstest(coordinate / noise.scale, "norm").pvalue >= LEAST_P
    if dual_noise:  # of every dual, and each its own
        assert len(np.unique(drawn[0].duals)) == UNITS
        together = np.array([[one.duals[0], one.duals[1], one.v[0]] for one in drawn])
        assert np.all(np.abs(np.corrcoef(together.T) - np.eye(3)) < 5.0 / math.sqrt(RUNS))


@pytest.mark.parametrize("dual_noise", [False, True])
def test_every_step_of_a_run_has_noise(dual_noise: bool) -> None:
    """Also one over an empty batch: 40 steps of zero rows move v 40 times."""
    scd, _ = planned(
        "dp-scd",
        problem_of("logistic", 10, 1),
        PrivacySpec(1.0, 1e-3),
        batch_size=1,
        passes=4,
        dual_noise=dual_noise,
    )
    blocks = pack(Table(np.zeros((10, FEATURES)), np.ones(10)))
    sums = [np.zeros(FEATURES)]
    for steps in range(1, 41):
        found = replay_scd.scd_poisson(
            blocks,
            n_features=FEATURES,
            n_steps=steps,
            sampling=0.1,
            coin_key=bytes(32),
            **kernel_options(scd, 10),
            **noise_options(scd, 3),
        )
        assert found.steps == steps
        sums.append(found.v)
    moves = np.diff(np.array(sums), axis=0)
    assert np.all(moves != 0.0)
    assert len(np.unique(moves, axis=0)) == 40


def some_table(loss: str, rng: np.random.Generator) -> Table:
    y = rng.uniform(-1.0, 1.0, UNITS) if loss == "squared" else random_labels(rng, UNITS)
    return Table(random_rows(rng, UNITS), y)


@pytest.mark.statistical
@pytest.mark.parametrize("dual_noise", [False, True])
@pytest.mark.parametrize("loss", LOSSES)
def test_v_is_the_sum_of_rows_and_duals_but_for_noise_of_mean_zero(loss: str, dual_noise: bool) -> None:
    """v = X alpha in expectation, over 200 runs of many steps."""
    table = some_table(loss, np.random.default_rng(1))
    scd, noise = planned(
        "dp-scd",
        problem_of(loss, UNITS, 1),
        PrivacySpec(2.0, 1e-3),
        loss=loss,
        batch_size=8,
        passes=4,
        lambda_=0.05,
        dual_noise=dual_noise,
    )
    errors = []
    for key in range(200):
        found = replay_scd.scd_poisson(
            pack(table),
            n_features=FEATURES,
            n_steps=noise.steps,
            sampling=0.2,
            coin_key=(key + 1000).to_bytes(32, "little"),
            **kernel_options(scd),
            **noise_options(scd, key),
        )
        assert np.linalg.norm(found.v) > 0.0
        errors.append(found.v - found.duals @ table.x)
    spread = math.sqrt(noise.steps) * noise.scale
    if dual_noise:  # v has its own noise, and the duals of all rows that were drawn theirs
        spread = math.hypot(spread, math.sqrt(noise.steps * 8) * noise.scale)
    assert np.all(np.abs(np.mean(errors, axis=0)) <= 5.0 * spread / math.sqrt(200.0))
    assert np.std(errors) >= 0.5 * math.sqrt(noise.steps) * noise.scale


@pytest.mark.parametrize("loss", LOSSES)
def test_with_hardly_any_noise_it_is_descent_on_the_same_batches(loss: str) -> None:
    table = some_table(loss, np.random.default_rng(2))
    scd, noise = planned(
        "dp-scd", problem_of(loss, UNITS, 1), PrivacySpec(1.0, 1e-3), loss=loss, batch_size=8, passes=20
    )
    given = kernel_options(scd) | {"n_features": FEATURES, "n_steps": noise.steps, "sampling": 0.2}
    plain = replay_scd.scd_poisson(pack(table), coin_key=bytes(32), **given)
    scale = max(LEAST_SCALE, 2.0**-60)
    quiet = replay_scd.scd_poisson(pack(table), coin_key=bytes(32), **given, noise_scale=scale, key=bytes(32))
    assert np.linalg.norm(plain.v) > 1e6 * scale
    np.testing.assert_allclose(quiet.v, plain.v, rtol=1e-12, atol=1e3 * scale)
    np.testing.assert_allclose(quiet.duals, plain.duals, rtol=1e-9, atol=1e6 * scale)


def models(
    scd: Scd, table: Table, keys: range, duals: FloatArray, v: FloatArray, n_steps: int = 1
) -> FloatArray:
    """v after steps from what the attacker knows: v, and the duals of all rows; one of each key."""
    return replay_scd.scd_poisson_models(
        pack(table),
        keys,
        n_features=1,
        n_steps=n_steps,
        sampling=scd.sampling or 1.0,
        first_coin_key=2**200,
        duals=duals,
        v=v,
        **kernel_options(scd, len(table.y)),
        **noise_of(scd),
    )[:, 0]


def worst_pair(n: int, relation: Relation) -> tuple[Table, Table]:
    """Labels that no score comes near: every update is the clip, and the attacker knows all but one row."""
    x, y = np.full((n, 1), LONGEST_ROW), np.where(np.arange(n) % 2 == 0, 1e6, -1e6)
    table = Table(x, y).change(0, x[0], 1e6)
    other = (0.0, 0.0) if relation is Relation.ADD_REMOVE else (x[0], -1e6)
    return table, table.change(0, *other)


@pytest.mark.statistical
@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize("epsilon", [1.0, 3.0])
def test_an_attack_on_one_step(epsilon: float, relation: Relation) -> None:
    """The attacker sees the duals of all others, and finds more than two thirds of the claim.

    So noise divided by 1.5 would be found out.
    """
    n, delta = 20, 1e-3
    scd, noise = planned(
        "dp-scd",
        problem_of("squared", n, 1, 1),
        PrivacySpec(epsilon, delta, relation),
        batch_size=n,
        passes=1,
        average="none",
    )
    assert (noise.steps, scd.sampling) == (1, 1.0)
    duals = np.random.default_rng(3).normal(size=n)
    found = [
        models(scd, table, range(first, first + RUNS), duals, np.array([0.1]))
        for first, table in zip((0, RUNS), worst_pair(n, relation), strict=True)
    ]
    assert epsilon / 1.5 < shown_epsilon(found[0], found[1], delta) <= epsilon
    quieter = [np.mean(each) + (each - np.mean(each)) / 1.5 for each in found]
    assert shown_epsilon(quieter[0], quieter[1], delta) > epsilon


@pytest.mark.statistical
@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize(("n", "batch_size", "passes"), [(5, 4, 1), (4, 2, 2)])
def test_an_attack_on_poisson_batches(n: int, batch_size: int, passes: int, relation: Relation) -> None:
    """One unit among zero rows, whose dual goes on from step to step: the last v shows it."""
    epsilon, delta = 1.0, 0.1
    scd, noise = planned(
        "dp-scd",
        problem_of("squared", n, 1, 1),
        PrivacySpec(epsilon, delta, relation),
        batch_size=batch_size,
        passes=passes,
        average="none",
    )
    assert (noise.sampling, noise.steps) == (batch_size / n, 2 * passes)
    assert noise.accountant == "pld"
    table = Table(np.zeros((n, 1)), np.zeros(n)).change(0, LONGEST_ROW, 1e6)
    lowest = -noise.steps if relation is Relation.REPLACE_ONE else 0
    neighbour = table.change(0, LONGEST_ROW if lowest else 0.0, -1e6)
    found = [
        models(scd, one, range(first, first + RUNS), np.zeros(n), np.zeros(1), noise.steps) / scd.update_clip
        for first, one in ((0, table), (RUNS, neighbour))
    ]
    spread = noise.noise_multiplier * math.sqrt(noise.steps)
    thresholds = np.linspace(lowest - spread, noise.steps + spread, 20)
    assert 0.0 < shown_delta(found[0], found[1], thresholds, epsilon) <= delta


@pytest.mark.statistical
@pytest.mark.parametrize("relation", Relation)
def test_an_attack_on_a_sequential_batch_of_one_row(relation: Relation) -> None:
    """Its dual and v show it twice: with noise on v alone, or without the sqrt 2, it would be found out."""
    epsilon, delta, n = 1.0, 1e-3, 3
    scd, noise = planned(
        "seq-dp-scd",
        problem_of("squared", n, 1, 1),
        PrivacySpec(epsilon, delta, relation),
        batch_size=1,
        passes=1,
        average="none",
    )
    table, neighbour = worst_pair(n, Relation.REPLACE_ONE)  # the bound is that of both relations
    found = []
    for first, one in ((0, table), (RUNS, neighbour)):
        runs = replay_scd.scd_models(
            pack(Table(one.x[:1], one.y[:1])),
            range(first, first + RUNS),
            n_features=1,
            **kernel_options(scd, n),
            **noise_of(scd),
        )
        found.append(runs.v[:, 0] + runs.duals[:, 0])
    assert noise.released_duals == 1
    assert epsilon / 1.4 < shown_epsilon(found[0], found[1], delta) <= epsilon


@pytest.mark.statistical
def test_an_attack_on_coordinates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rows whose signs move every coordinate from C to -C: all coordinates together show it."""
    numbers = itertools.count(1)
    monkeypatch.setattr(composed, "Noise", lambda: Noise(next(numbers).to_bytes(32, "little")))
    epsilon, delta = 1.0, 1e-3
    plan, descent, noise = primal(
        problem_of("squared", 1, 1), PrivacySpec(epsilon, delta), passes=1, update_clip=0.01
    )
    assert noise.steps == 1
    x = np.full((1, FEATURES), 0.577)
    found = []
    for label in (1.0, -1.0):
        blocks = pack(Table(x, np.array([label])))
        runs = (plan.run(KernelJob(plan, blocks)).weights for _ in range(RUNS))
        found.append(np.array([float(np.sum(weights)) for weights in runs]))
    assert np.mean(found[0]) - np.mean(found[1]) == pytest.approx(
        2.0 * descent.update_clip * FEATURES, rel=0.2
    )
    assert epsilon / 1.5 < shown_epsilon(found[0], found[1], delta) <= epsilon


@pytest.mark.statistical
def test_noise_of_the_coordinates_has_its_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two passes, of steps that do not divide the coordinates evenly: each coordinate has noise twice."""
    numbers = itertools.count(1)
    monkeypatch.setattr(composed, "Noise", lambda: Noise(next(numbers).to_bytes(32, "little")))
    plan, descent, noise = primal(
        problem_of("logistic", UNITS, 1), PrivacySpec(1.0, 1e-6), passes=2, coordinates=2
    )
    assert (descent.steps, [descent.batch(step, FEATURES) for step in range(3)]) == (
        4,
        [slice(0, 2), slice(2, 3), slice(0, 2)],
    )
    blocks = pack(Table(np.zeros((UNITS, FEATURES)), np.ones(UNITS)))
    drawn = np.array([plan.run(KernelJob(plan, blocks)).weights for _ in range(RUNS // 2)])
    assert noise.gradient is not None
    for coordinate in drawn.T:
        assert stats.kstest(coordinate / (math.sqrt(2.0) * noise.gradient.scale), "norm").pvalue >= LEAST_P


def test_plans_differ_from_the_replay_in_nothing() -> None:
    """The options of the server's aggregate are those of the kernels here."""
    scd, noise = planned(
        "dp-scd", problem_of("hinge", UNITS, 3), PrivacySpec(1.0), loss="hinge", batch_size=8
    )
    server = scd.options(UNITS)
    kernel = kernel_options(scd) | noise_options(scd, 0)
    assert server["lambda"] == kernel["lambda_"]
    assert server["rows"] == kernel["n"]
    assert (server["update_clip"], server["batch_size"]) == (kernel["update_clip"], kernel["batch_size"])
    assert (server["noise_scale"], server["max_rows_per_unit"]) == (kernel["noise_scale"], 3)
    assert noise.scale == kernel["noise_scale"]
    assert replace(scd, dual_noise=True).options(UNITS)["dual_noise"] is True
