# SPDX-License-Identifier: PostgreSQL
"""The mean of the models of shards: one unit moves it by at most the sensitivity, which some units reach.

Source: privacy/README.md, "Models of shards".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from helpers import neighbours
from helpers.neighbours import FloatArray, Table
from helpers.plans import decide
from pg_dpml.blocks.distributed import ModelOfShard, ShardUnits
from pg_dpml.errors import SpecError
from pg_dpml.methods.model_averaging import ShardedSgd, mean_model
from pg_dpml.spec.privacy import PrivacySpec
from pg_dpml.spec.relation import Relation
from pg_dpml.training.plan import Problem
from pg_dpml.training.spec import TrainSpec

UNITS = (40, 7, 0, 23, 1)
WAYS: dict[str, Mapping[str, Any]] = {
    "constant": {"passes": 2, "step_size": 0.05},
    "average": {"passes": 3, "average": "all"},
    "tail": {"passes": 2, "average": "tail", "tail": 0.4, "lambda_": 0.05},
    "strongly convex": {"lambda_": 0.3, "schedule": "strongly_convex", "passes": 2},
    "fresh order": {"passes": 2, "fresh_order": True, "schedule": "inverse_sqrt", "step_size": 0.3},
    "decreasing": {"schedule": "decreasing", "passes": 3},
    "of the square root": {"schedule": "sqrt_decreasing", "exponent": 0.9, "passes": 2, "lambda_": 0.1},
}


def by_shards(
    units: Sequence[int], relation: Relation = Relation.REPLACE_ONE, epsilon: float = 1.0, **options: Any
) -> Any:
    problem = Problem(sum(units), 2, 1, "regression", shards=ShardUnits("id", tuple(units)))
    privacy = PrivacySpec(epsilon, 1e-6, relation)
    return decide(problem, privacy, TrainSpec("bolt-on", by_shards=True, solver="sgd", **options))


def mean(work: ShardedSgd, tables: Sequence[Table | None], place: int | None = None) -> FloatArray:
    """The mean that a run computes; the first row of each table comes at this place of every pass."""
    models = []
    for p, table in enumerate(tables):
        if table is None:
            continue
        n = work.units[p]
        order = np.arange(n)
        if place is not None:
            order = np.insert(np.arange(1, n), min(place, n - 1), 0)
        weights = neighbours.final_model(work.shards[p], table, [order] * work.passes)
        models.append(ModelOfShard(p, weights, 0))
    return mean_model(models, work)


@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize("way", WAYS)
def test_one_unit_moves_the_mean_by_the_sensitivity_at_most(way: str, relation: Relation) -> None:
    """Rows that are as bad as can be, in every shard and at every place of its order."""
    plan = by_shards(UNITS, relation, batch_size=4, **WAYS[way])
    tables = [neighbours.far_rows(n) if n > 0 else None for n in UNITS]
    apart = []
    for p, table in enumerate(tables):
        if table is None:
            continue
        one, other = neighbours.worst_pair(table, 0, relation)
        for place in range(0, UNITS[p], 4):
            pair = [mean(plan.work, [*tables[:p], row, *tables[p + 1 :]], place) for row in (one, other)]
            apart.append(float(np.linalg.norm(pair[0] - pair[1])))
    assert max(apart) <= plan.noise.sensitivity * (1.0 + 1e-12)
    reached = 0.5 if "fresh order" in way else 0.999  # whose worst places differ from pass to pass
    assert max(apart) >= reached * plan.noise.sensitivity
    assert plan.noise.sensitivity < plan.noise.calibrated_sensitivity < 1.001 * plan.noise.sensitivity


@pytest.mark.parametrize("seed", range(200))
def test_any_change_of_one_row_in_any_shard(seed: int) -> None:
    rng = np.random.default_rng(seed)
    units = tuple(int(n) for n in rng.integers(0, 30, size=rng.integers(1, 6)))
    if sum(units) == 0:
        units = (*units, 3)
    way = WAYS[str(rng.choice(list(WAYS)))]
    plan = by_shards(units, batch_size=int(rng.integers(1, 9)), **way)
    rows = [rng.normal(size=(n, 2)) for n in units]
    tables = [
        Table(x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1.0) * 0.999, rng.normal(size=len(x)))
        if len(x)
        else None
        for x in rows
    ]
    p = int(rng.choice([place for place, n in enumerate(units) if n > 0]))
    table = tables[p]
    assert table is not None
    changed = table.change(int(rng.integers(units[p])), -table.x[0], float(rng.choice([-5.0, 5.0])))
    pair = [mean(plan.work, tables), mean(plan.work, [*tables[:p], changed, *tables[p + 1 :]])]
    assert np.linalg.norm(pair[0] - pair[1]) <= plan.noise.sensitivity * (1.0 + 1e-12)


@pytest.mark.parametrize("units", [(500,), (250, 250), (400, 90, 10), (10,) * 50])
def test_with_strongly_convex_steps_and_no_average_shards_cost_nothing(units: tuple[int, ...]) -> None:
    plan = by_shards(units, lambda_=0.1, schedule="strongly_convex", clip=0.5, batch_size=1)
    together = 2.0 * 0.5 / (0.1 * sum(units))
    # Of ten steps in a pass the first is capped, which a row sees that comes then, and no other.
    assert (0.98 if max(units) == 10 else 1.0 - 1e-9) * together <= plan.noise.sensitivity
    assert plan.noise.sensitivity <= together * (1.0 + 1e-9)


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("units", [(5000,) * 4, (9000, 6000, 4990, 10, 0), (625,) * 32])
def test_by_default_the_noise_is_that_of_one_run_over_all_rows(
    units: tuple[int, ...], epsilon: float
) -> None:
    plan = by_shards(units, epsilon=epsilon)
    privacy = PrivacySpec(epsilon, 1e-6)
    whole = decide(Problem(sum(units), 2, 1, "regression"), privacy, TrainSpec("bolt-on", solver="sgd"))
    assert whole.work.passes <= plan.work.passes <= 20
    assert plan.noise.score_stddev <= 1.02 * whole.noise.score_stddev
    if plan.work.passes < 20:  # else steps may be too few for the whole budget
        assert plan.noise.score_stddev == pytest.approx(whole.noise.score_stddev, rel=0.02)


@pytest.mark.parametrize(
    ("units", "options", "warned"),
    [
        ((10,) * 2000, {}, True),
        ((10,) * 2000, {"lambda_": 1e-4}, True),
        ((10,) * 2000, {"passes": 500}, False),
        ((10,) * 2000, {"lambda_": 0.1, "schedule": "strongly_convex"}, False),
        ((10_000, 10_000), {}, False),
        ((0, 0), {}, False),
    ],
)
def test_shards_too_small_for_the_steps_that_epsilon_allows_are_warned_of(
    units: tuple[int, ...], options: Mapping[str, Any], *, warned: bool
) -> None:
    plan = by_shards(units, **options)
    found = [
        text
        for text in plan.warnings
        if "20 passes over shards of at most 10 units, in batches of 10," in text
    ]
    assert len(found) == warned
    assert not warned or not any("too little to learn much from" in text for text in plan.warnings)


def test_no_shard_has_a_row() -> None:
    plan = by_shards((0, 0))
    assert plan.noise.scale == 0.0
    assert plan.work.weights == (0.0, 0.0)
    assert plan.work.record(0)["shards"] == [{"rows": 0}, {"rows": 0}]


@pytest.mark.parametrize("n", [1, 3, 64, 2000])
def test_rounding_of_the_mean_is_within_its_bound(n: int) -> None:
    rng = np.random.default_rng(n)
    units = tuple(int(one) for one in rng.integers(1, 10**6, size=n))
    plan = by_shards(units, passes=1, batch_size=10**6)
    models = [ModelOfShard(p, rng.normal(size=2) * 2.0 ** rng.integers(-20, 20), 1) for p in range(n)]
    norm = max(float(np.linalg.norm(model.weights)) for model in models)
    found = mean_model(models, plan.work)
    total = sum(units)
    exact = [
        sum(Fraction(units[model.place], total) * Fraction(float(model.weights[j])) for model in models)
        for j in range(2)
    ]
    off = math.hypot(*(float(Fraction(float(found[j])) - exact[j]) for j in range(2)))
    assert off <= (n + 2) * 2.0**-53 * norm


def test_rounding_of_the_mean_is_allowed_for() -> None:
    """Of many shards it is most of the room that is left for rounding."""
    few, many = (by_shards((n,) * s, passes=1, batch_size=n) for n, s in ((2**16, 1), (2**4, 2**12)))
    room = [plan.noise.calibrated_sensitivity - plan.noise.sensitivity for plan in (few, many)]
    assert room[1] - many.noise.grid * math.sqrt(2.0) >= (2**12 + 2) * 2.0**-52 * 1e-3
    assert room[1] > room[0] - few.noise.grid


def test_without_shards_it_is_refused() -> None:
    with pytest.raises(SpecError, match="by_shards trains on each shard of a distributed table"):
        decide(Problem(90, 4, 1, "binary"), PrivacySpec(1.0, 1e-6), TrainSpec("bolt-on", by_shards=True))
