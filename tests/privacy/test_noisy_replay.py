# SPDX-License-Identifier: PostgreSQL
"""Noise in every step: what a unit moves in a batch's sum, the noise that is really added, and an attack.

Steps are replayed through the kernels that the server runs, with the options of the plans.
Source: privacy/README.md, "Noise at every step" and "Poisson batches".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from helpers import replay
from helpers.attacks import shown_delta, shown_epsilon
from helpers.neighbours import LONGEST_ROW, FloatArray, Table
from helpers.plans import decide
from pg_dpml.kernels import Schedule, noise_grid
from pg_dpml.privacy.noise.steps import StepNoise
from pg_dpml.spec.privacy import PrivacySpec
from pg_dpml.spec.relation import Relation
from pg_dpml.training.plan import Problem
from pg_dpml.training.sgd import Sgd
from pg_dpml.training.spec import TrainSpec

METHODS = ("scs13", "bst14", "dp-sgd")
PAIRS = 50
RUNS = 20_000
LEAST_P = 1e-6  # the keys are fixed: no false alarms
UNITS = 40
FEATURES = 3


def planned(method: str, problem: Problem, privacy: PrivacySpec, **options: Any) -> tuple[Sgd, StepNoise]:
    """Of dp-sgd the steps over Poisson batches, which the other two have by themselves or not at all."""
    if method == "dp-sgd":
        options["sampling"] = "poisson"
    decided = decide(problem, privacy, TrainSpec(method=method, **options))
    assert isinstance(decided.work, Sgd)
    assert isinstance(decided.noise, StepNoise)
    return decided.work, decided.noise


def kernel_options(sgd: Sgd) -> dict[str, Any]:
    """The options of a pass as replay.py takes them, without noise."""
    return {
        "loss": sgd.loss,
        "schedule": sgd.schedule,
        "lambda_": sgd.lambda_,
        "radius": sgd.radius,
        "batch_size": sgd.batch_size,
        "average_from": sgd.average_from,
        "by_unit": sgd.max_rows_per_unit is not None,
        "momentum": sgd.momentum,
        "gradient_clip": sgd.gradient_clip,
    }


def noise_of(sgd: Sgd) -> dict[str, Any]:
    return {"noise": sgd.noise, "noise_scale": sgd.noise_scale}


def noise_options(sgd: Sgd, key: int) -> dict[str, Any]:
    return {**noise_of(sgd), "noise_key": replay.key_of(key)}


def pack(table: Table) -> list[bytes]:
    return [replay.pack_dense(table.x, table.y, table.starts)]


def sums(sgd: Sgd, table: Table, path: FloatArray, coin_key: bytes) -> list[FloatArray]:
    """Sums of the batches of one pass, step t at the weights path[t]: unit steps of one batch each."""
    unit_steps = kernel_options(replace(sgd, schedule=Schedule("constant", 1.0), lambda_=0.0)) | {
        "radius": math.inf,
        "momentum": 0.0,
        "average_from": 0,
    }
    found = []
    d = table.x.shape[1]
    coins = np.random.default_rng(list(coin_key))
    if sgd.sampling is not None:
        for weights in path:
            epoch = replay.sgd_poisson(
                pack(table),
                n_features=d,
                n_steps=1,
                sampling=sgd.sampling,
                coin_key=coins.bytes(32),
                weights=weights,
                **unit_steps,
            )
            found.append((weights - epoch.weights) * sgd.batch_size)
        return found
    starts = np.ones(len(table.y), dtype=bool) if table.starts is None else table.starts
    unit_of = np.cumsum(starts) - 1
    for step, weights in enumerate(path):
        rows = unit_of // sgd.batch_size == step
        batch = Table(table.x[rows], table.y[rows], starts[rows])
        epoch = replay.sgd_blocks(pack(batch), n_features=d, weights=weights, **unit_steps)
        assert epoch.steps == 1
        found.append((weights - epoch.weights) * sgd.batch_size)
    return found


def random_rows(rng: np.random.Generator, n: int) -> FloatArray:
    x = rng.normal(size=(n, FEATURES))
    x *= LONGEST_ROW / np.linalg.norm(x, axis=1, keepdims=True)
    return x.astype(np.float32).astype(np.float64)


def random_labels(rng: np.random.Generator, task: str, n: int) -> FloatArray:
    if task == "multiclass":
        return rng.integers(3, size=n).astype(np.float64)
    return rng.choice(np.array([-1.0, 1.0]), size=n)


def problem_of(task: str, n_units: int, rows_per_unit: int, n_features: int = FEATURES) -> Problem:
    unit = None if rows_per_unit == 1 else "unit"
    return Problem(n_units, n_features, 3 if task == "multiclass" else 1, task, unit, rows_per_unit)


@pytest.mark.parametrize("rows_per_unit", [1, 3])
@pytest.mark.parametrize("task", ["binary", "multiclass", "regression"])
@pytest.mark.parametrize("method", METHODS)
def test_a_unit_moves_the_sums_by_at_most_the_sensitivity(method: str, task: str, rows_per_unit: int) -> None:
    """At any weights, with the same coins; and it is in one batch of a shuffled pass only."""
    rng = np.random.default_rng(rows_per_unit)
    problem = problem_of(task, UNITS, rows_per_unit)
    n = UNITS * rows_per_unit
    starts = np.arange(n) % rows_per_unit == 0
    reached: dict[Relation, float] = dict.fromkeys(Relation, 0.0)
    for relation in Relation:
        sgd, noise = planned(method, problem, PrivacySpec(1.0, 1e-6, relation), batch_size=7, passes=2)
        for pair in range(PAIRS):
            table = Table(random_rows(rng, n), random_labels(rng, task, n), starts)
            unit = int(rng.integers(UNITS))
            own = slice(unit * rows_per_unit, (unit + 1) * rows_per_unit)
            worst = np.full((rows_per_unit, FEATURES), [0.95, -0.3, 0.0])
            labels = 1.0 - (task == "multiclass")
            if pair % 2 == 0:
                table = table.change(own, worst, labels)
            if relation is Relation.ADD_REMOVE:
                other = table.change(own, 0.0, 0.0)
            elif pair % 2 == 0:
                other = table.change(own, worst * [-1.0, 1.0, 1.0], labels)
            else:
                other = table.change(
                    own, random_rows(rng, rows_per_unit), random_labels(rng, task, rows_per_unit)
                )
            shape = (sgd.steps(UNITS, 1), problem.n_weights)
            path = rng.normal(size=shape) * rng.choice([0.0, 1.0, 30.0])
            if pair % 4 == 0:  # the second feature makes both rows wrong: derivatives as large as they get
                path = np.zeros(shape)
                path[:, 1] = 1e3
                if task == "multiclass":
                    path[:, -2] = -1e3
            key = rng.bytes(32)
            moved = [
                float(np.linalg.norm(one - two))
                for one, two in zip(sums(sgd, table, path, key), sums(sgd, other, path, key), strict=True)
            ]
            assert max(moved) <= noise.sensitivity * (1.0 + 1e-12)
            if method == "scs13":
                assert sum(distance > 0.0 for distance in moved) <= 1
            reached[relation] = max(reached[relation], max(moved) / noise.sensitivity)
    assert min(reached.values()) >= 0.9


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("method", "delta"), [("scs13", 0.0), ("scs13", 1e-6), ("bst14", 1e-6), ("dp-sgd", 1e-6)]
)
def test_the_noise_that_a_step_adds_is_the_one_planned(method: str, delta: float) -> None:
    """A run on zero rows is nothing but noise; one on other rows has the same, with the same key."""
    rng = np.random.default_rng(5)
    problem = problem_of("binary", UNITS, 1)
    sgd, noise = planned(method, problem, PrivacySpec(1.0, delta), batch_size=UNITS, passes=1)
    sgd = replace(sgd, schedule=Schedule("constant", 0.5), momentum=0.0, average_from=0, radius=math.inf)
    zero = pack(Table(np.zeros((UNITS, FEATURES)), np.ones(UNITS)))
    data = pack(Table(random_rows(rng, UNITS), random_labels(rng, "binary", UNITS)))

    def run(blocks: list[bytes], **more: Any) -> FloatArray:
        options = kernel_options(sgd) | more
        if sgd.sampling is None:
            return replay.sgd_blocks(blocks, n_features=FEATURES, **options).weights
        return replay.sgd_poisson(
            blocks, n_features=FEATURES, n_steps=1, sampling=sgd.sampling, coin_key=bytes(32), **options
        ).weights

    shared: dict[str, Any] = {"n_features": FEATURES, **kernel_options(sgd), **noise_of(sgd)}
    if sgd.sampling is None:
        drawn = replay.sgd_models(zero, range(RUNS), **shared)
    else:  # of zero rows, whatever the coins
        drawn = replay.sgd_poisson_models(
            zero, range(RUNS), n_steps=1, sampling=sgd.sampling, first_coin_key=0, **shared
        )
    drawn *= -UNITS / 0.5
    difference = np.array([run(data, **noise_options(sgd, key)) for key in range(100)]) - run(data)
    np.testing.assert_allclose(difference * (-UNITS / 0.5), drawn[:100], atol=2.0 * noise_grid(noise.scale))
    steps = drawn / noise.grid
    np.testing.assert_allclose(steps, np.rint(steps), atol=1e-3)
    if noise.kind == "gaussian":
        for coordinate in drawn.T:
            assert stats.kstest(coordinate / noise.scale, "norm").pvalue >= LEAST_P
    else:
        radius = np.linalg.norm(drawn, axis=1)
        assert stats.kstest(radius / noise.scale, stats.gamma(FEATURES).cdf).pvalue >= LEAST_P
        for coordinate in drawn.T:  # uniform on the sphere of R^3: every coordinate is uniform
            assert stats.kstest(coordinate / radius, stats.uniform(-1.0, 2.0).cdf).pvalue >= LEAST_P


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_every_step_of_a_run_has_noise(momentum: float) -> None:
    """Also one over an empty batch: 40 steps of zero rows move the model 40 times."""
    problem = problem_of("binary", 10, 1)
    sgd, _ = planned("dp-sgd", problem, PrivacySpec(1.0, 1e-3), batch_size=1, passes=4, momentum=momentum)
    blocks = pack(Table(np.zeros((10, FEATURES)), np.ones(10)))
    models = [np.zeros(FEATURES)]
    for steps in range(1, 41):
        epoch = replay.sgd_poisson(
            blocks,
            n_features=FEATURES,
            n_steps=steps,
            sampling=0.1,
            coin_key=bytes(32),
            **kernel_options(replace(sgd, average_from=0)),
            **noise_options(sgd, 3),
        )
        assert epoch.steps == steps
        models.append(epoch.weights)
    moves = np.diff(np.array(models), axis=0)
    assert np.all(moves != 0.0)
    fresh = moves - momentum * np.vstack([np.zeros(FEATURES), moves[:-1]])
    assert len(np.unique(np.round(fresh / np.abs(fresh).max(), 9), axis=0)) == 40


Run = Callable[[Sgd, list[bytes], range], FloatArray]
"""Models of a table's blocks, one of each key."""


def attack(method: str, privacy: PrivacySpec, run: Run, **options: Any) -> tuple[float, StepNoise]:
    """The epsilon that 20,000 models of each of two worst neighbours show."""
    n = 20
    sgd, noise = planned(method, problem_of("regression", n, 1, 1), privacy, average="none", **options)
    assert sgd.noise_scale == noise.scale
    # labels far from every score: the derivative is the clip, whatever the weights are
    x, y = np.full((n, 1), LONGEST_ROW), np.where(np.arange(n) % 2 == 0, 1e6, -1e6)
    table = Table(x, y).change(0, x[0], 1e6)
    if privacy.relation is Relation.REPLACE_ONE:
        neighbour = table.change(0, x[0], -1e6)
    else:
        neighbour = table.change(0, 0.0, 0.0)
    found = [
        run(sgd, pack(one), range(first, first + RUNS))[:, 0]
        for first, one in ((0, table), (RUNS, neighbour))
    ]
    delta = privacy.delta or 0.0
    return shown_epsilon(found[0], found[1], delta), noise


def shuffled(passes: int) -> Run:
    def run(sgd: Sgd, blocks: list[bytes], keys: range) -> FloatArray:
        options = kernel_options(sgd) | noise_of(sgd)
        return replay.sgd_models(blocks, keys, n_features=1, passes=passes, **options)

    return run


def poisson(n_units: int) -> Run:
    def run(sgd: Sgd, blocks: list[bytes], keys: range) -> FloatArray:
        return replay.sgd_poisson_models(
            blocks,
            keys,
            n_features=1,
            n_steps=sgd.steps(n_units, sgd.passes),
            sampling=sgd.sampling or 1.0,
            first_coin_key=2**200,
            **kernel_options(sgd),
            **noise_of(sgd),
        )

    return run


@pytest.mark.statistical
@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize("epsilon", [1.0, 3.0])
def test_an_attack_on_one_gaussian_step(epsilon: float, relation: Relation) -> None:
    """It finds more than half of the claim, so that it would find too little noise."""
    privacy = PrivacySpec(epsilon, 1e-3, relation)
    for method, run in (("scs13", shuffled(1)), ("dp-sgd", poisson(20))):
        shown, noise = attack(method, privacy, run, batch_size=20, passes=1)
        assert noise.steps == 1
        assert 0.5 * epsilon < shown <= epsilon


@pytest.mark.statistical
@pytest.mark.parametrize("passes", [2, 4])
def test_an_attack_on_several_passes(passes: int) -> None:
    """One batch a pass, and every step as long as the others: the model has all that is to be had."""
    shown, noise = attack(
        "scs13",
        PrivacySpec(1.0, 1e-3),
        shuffled(passes),
        batch_size=20,
        passes=passes,
        schedule="constant",
        step_size=1.0,
    )
    assert noise.steps == passes
    assert 0.5 < shown <= 1.0


@pytest.mark.statistical
def test_an_attack_on_pure_privacy() -> None:
    shown, noise = attack("scs13", PrivacySpec(1.0, 0.0), shuffled(1), batch_size=20, passes=1)
    assert noise.kind == "k-norm"
    assert 0.3 < shown <= 1.0


@pytest.mark.statistical
@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize(
    ("method", "n", "batch_size", "passes"), [("dp-sgd", 5, 4, 1), ("bst14", 5, 4, 1), ("dp-sgd", 4, 2, 2)]
)
def test_an_attack_on_poisson_batches(
    method: str, n: int, batch_size: int, passes: int, relation: Relation
) -> None:
    """One unit among zero rows: the sum of all noisy sums shows it best. Noise / 1.5 would fail.

    What the account covers is all sums, so that steps of one length and no ball may be taken.
    """
    epsilon, delta = 1.0, 0.1
    sgd, noise = planned(
        method,
        problem_of("regression", n, 1, 1),
        PrivacySpec(epsilon, delta, relation),
        batch_size=batch_size,
        passes=passes,
        average="none",
    )
    assert (noise.sampling, noise.steps) == (batch_size / n, 2 * passes)
    assert (noise.accountant, sgd.noise_scale) == ("pld", noise.scale)
    sgd = replace(sgd, schedule=Schedule("constant", 1.0), momentum=0.0, radius=math.inf)
    table = Table(np.zeros((n, 1)), np.zeros(n)).change(0, LONGEST_ROW, 1e6)
    lowest = -noise.steps if relation is Relation.REPLACE_ONE else 0
    neighbour = table.change(0, LONGEST_ROW if lowest else 0.0, -1e6)
    bound = noise.scale / noise.noise_multiplier
    found = [
        poisson(n)(sgd, pack(one), range(first, first + RUNS))[:, 0] * batch_size / bound
        for first, one in ((0, table), (RUNS, neighbour))
    ]
    spread = noise.noise_multiplier * math.sqrt(noise.steps)
    thresholds = np.linspace(lowest - spread, noise.steps + spread, 20)
    assert 0.0 < shown_delta(found[0], found[1], thresholds, epsilon) <= delta
