# SPDX-License-Identifier: PostgreSQL
"""Noiseless runs on neighbouring tables in one frozen order: never further apart than the sensitivity.

Source: privacy/README.md, "Growth" and "Sensitivity of any schedule".
"""

from __future__ import annotations

import itertools
import math
import zlib

import numpy as np
import pytest

from helpers import neighbours, replay
from helpers.neighbours import LONGEST_ROW, LOSSES, SCHEDULES, FloatArray, Order, Table
from pg_dpml import kernels
from pg_dpml.kernels import Loss
from pg_dpml.spec.relation import Relation
from pg_dpml.training.sgd import Sgd

PAIRS = 500
"""Of each loss and schedule."""

BATCH_SIZES = (1, 7, 50)


def random_row(rng: np.random.Generator, n_features: int) -> FloatArray:
    """Mostly of the longest norm there is, often along one axis, sometimes zero."""
    row = rng.normal(size=n_features)
    if rng.random() < 0.5:
        row = np.eye(n_features)[0] * rng.choice([-1.0, 1.0])
    row *= LONGEST_ROW / np.linalg.norm(row) * rng.choice([1.0, 1.0, rng.random(), 0.0])
    return np.asarray(row, dtype=np.float32).astype(np.float64)


def random_label(rng: np.random.Generator, loss: Loss) -> float:
    if loss.n_classes > 1:
        return float(rng.integers(loss.n_classes))
    if loss.kind == "squared":
        return float(np.float32(rng.choice([rng.normal(), 100.0, -100.0])))
    return float(rng.choice([-1.0, 1.0]))


def random_table(rng: np.random.Generator, loss: Loss, n_rows: int, n_features: int) -> Table:
    x = np.array([random_row(rng, n_features) for _ in range(n_rows)])
    return Table(x, np.array([random_label(rng, loss) for _ in range(n_rows)]))


def random_run(rng: np.random.Generator, loss: Loss, kind: str, n_rows: int) -> Sgd:
    least = (1e-3,) if kind == "strongly_convex" else (0.0,)
    return neighbours.make_run(
        loss,
        kind,
        n_rows=n_rows,
        lambda_=float(rng.choice([*least, 1e-3, 0.05, 1.0])),
        step_size=float(rng.choice([0.01, 0.3, 100.0])),
        exponent=float(rng.choice([0.0, 0.5, 1.0])),
        longest_step=float(rng.choice([1.0, 1.0, 1.9])),
        radius=float(rng.choice([math.inf, math.inf, 0.3, 0.02])),
        batch_size=int(rng.choice(BATCH_SIZES)),
        passes=int(rng.integers(1, 4)),
        average_share=float(rng.choice([0.0, 1.0, 0.5, 0.1])),
        fresh_order=bool(rng.integers(2)),
    )


def random_orders(rng: np.random.Generator, run: Sgd, n_rows: int) -> list[Order]:
    if run.fresh_order:
        return [rng.permutation(n_rows) for _ in range(run.passes)]
    return [rng.permutation(n_rows)] * run.passes


@pytest.mark.parametrize("kind", SCHEDULES)
@pytest.mark.parametrize("name", LOSSES)
def test_neighbours_stay_within_the_sensitivity(name: str, kind: str) -> None:
    loss = LOSSES[name]
    rng = np.random.default_rng(zlib.crc32(f"{name} {kind}".encode()))
    reached = []
    for pair in range(PAIRS):
        if pair % 20 == 0:  # tables cost more than runs
            n_rows = int(rng.integers(20, 101))
            n_features = int(rng.choice([1, 2, 5, 9]))
            table = random_table(rng, loss, n_rows, n_features)
        run = random_run(rng, loss, kind, n_rows)
        row = int(rng.integers(n_rows))
        relation = Relation.REPLACE_ONE if rng.random() < 0.5 else Relation.ADD_REMOVE
        if relation is Relation.ADD_REMOVE:
            other = table.change(row, np.zeros(n_features), 0.0)
        elif rng.random() < 0.5:
            other = table.change(row, -table.x[row], table.y[row])
        else:
            other = table.change(row, random_row(rng, n_features), random_label(rng, loss))
        found = neighbours.bound(run, n_rows, relation)
        apart = neighbours.distance(run, table, other, random_orders(rng, run, n_rows))
        slack = neighbours.rounding(run, found, loss.n_classes * n_features)
        assert apart <= found.sensitivity + slack, (pair, run, relation)
        reached.append(apart / found.sensitivity)
    assert max(reached) > 0.3  # the pairs do try


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("batch_size", BATCH_SIZES)
def test_row_form_stays_within_the_sensitivity(name: str, batch_size: int) -> None:
    loss = LOSSES[name]
    rng = np.random.default_rng(batch_size)
    table = random_table(rng, loss, 60, 4)
    for row in range(20):
        run = neighbours.make_run(
            loss, "constant", n_rows=60, lambda_=0.01, passes=2, batch_size=batch_size, step_size=0.5
        )
        other = table.change(row, random_row(rng, 4), random_label(rng, loss))
        orders = random_orders(rng, run, 60)
        found = neighbours.bound(run, 60, Relation.REPLACE_ONE)
        slack = neighbours.rounding(run, found, 4 * loss.n_classes)
        as_rows = neighbours.distance(run, table, other, orders, as_rows=True)
        assert as_rows <= found.sensitivity + slack
        assert as_rows == pytest.approx(neighbours.distance(run, table, other, orders), rel=1e-9, abs=1e-14)


def worst_distance(run: Sgd, n_rows: int, relation: Relation) -> float:
    """The largest distance over the places of the changed row, chosen pass by pass where orders are fresh."""
    one, other = neighbours.worst_pair(neighbours.far_rows(n_rows), 0, relation)
    places = range(0, n_rows, run.batch_size)

    def orders_with(chosen: list[int]) -> list[Order]:
        return [np.insert(np.arange(1, n_rows), place, 0) for place in chosen]

    if not run.fresh_order:
        return max(neighbours.distance(run, one, other, orders_with([p] * run.passes)) for p in places)
    # The pushes add up, so each pass has its own worst place whatever the others are.
    chosen = [0] * run.passes
    for j in range(run.passes):
        trials = [[*chosen[:j], p, *chosen[j + 1 :]] for p in places]
        chosen = max(trials, key=lambda trial: neighbours.distance(run, one, other, orders_with(trial)))
    return neighbours.distance(run, one, other, orders_with(chosen))


@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize("kind", SCHEDULES)
@pytest.mark.parametrize(("batch_size", "n_rows"), [(1, 12), (7, 30), (7, 21), (50, 120), (50, 20)])
def test_worst_pair_reaches_the_sensitivity(
    kind: str, batch_size: int, n_rows: int, relation: Relation
) -> None:
    for lambda_, average_share, fresh_order in itertools.product(
        (0.0, 0.05, 1.0), (0.0, 1.0, 0.4), (False, True)
    ):
        if kind == "strongly_convex" and lambda_ == 0.0:
            continue
        run = neighbours.make_run(
            Loss("squared", clip=0.5),
            kind,
            n_rows=n_rows,
            lambda_=lambda_,
            batch_size=batch_size,
            passes=3,
            average_share=average_share,
            fresh_order=fresh_order,
        )
        found = neighbours.bound(run, n_rows, relation)
        worst = worst_distance(run, n_rows, relation)
        assert 0.9 * found.sensitivity <= worst
        assert worst <= found.sensitivity + neighbours.rounding(run, found, 2)


@pytest.mark.parametrize(
    "name",
    ["logistic-clipped", "huber_svm", "huber_svm-clipped", "one-vs-all-clipped", "one-vs-all-huber"],
)
@pytest.mark.parametrize("batch_size", BATCH_SIZES)
def test_worst_pair_of_classification_losses(name: str, batch_size: int) -> None:
    """Near the zero model these losses have their largest derivative, so one row reaches the bound."""
    loss = LOSSES[name]
    run = neighbours.make_run(
        loss, "constant", n_rows=120, batch_size=batch_size, passes=2, step_size=0.1 * batch_size / 120
    )
    x = np.zeros((120, 2))
    x[:, 0] = LONGEST_ROW
    other_label = 1.0 if loss.n_classes > 1 else -1.0
    table = Table(x, np.where(np.arange(120) % 2 == 0, 1.0 - (loss.n_classes > 1), other_label))
    apart = neighbours.distance(run, table, table.change(0, -x[0], table.y[0]), [np.arange(120)] * 2)
    found = neighbours.bound(run, 120, Relation.REPLACE_ONE)
    assert 0.9 * found.sensitivity <= apart
    assert apart <= found.sensitivity + neighbours.rounding(run, found, 2 * loss.n_classes)


@pytest.mark.parametrize("batch_size", BATCH_SIZES)
def test_strongly_convex_bound_does_not_shrink_with_the_batch(batch_size: int) -> None:
    """D / (lambda n) whatever b is, and reached: published code divides it by b once more."""
    n_rows, lambda_ = 3 * batch_size, 0.1
    run = neighbours.make_run(
        Loss("squared", clip=0.5),
        "strongly_convex",
        n_rows=n_rows,
        lambda_=lambda_,
        batch_size=batch_size,
        passes=20,
    )
    worst = worst_distance(run, n_rows, Relation.REPLACE_ONE)
    found = neighbours.bound(run, n_rows, Relation.REPLACE_ONE)
    bound = 1.0 / (lambda_ * n_rows)
    assert 0.9 * bound <= worst <= found.sensitivity + neighbours.rounding(run, found, 2)
    assert found.sensitivity <= bound * (1.0 + 1e-9)


def worst_unit_distance(run: Sgd, n_units: int, rows_per_unit: int, relation: Relation) -> float:
    """As worst_distance, for a unit of the most rows there may be among units of fewer."""
    sizes = [rows_per_unit, *(1 + i % rows_per_unit for i in range(1, n_units))]
    table = neighbours.far_rows(sum(sizes))
    starts = np.zeros(sum(sizes), dtype=bool)
    starts[np.cumsum([0, *sizes[:-1]])] = True
    table = Table(table.x, table.y, starts)
    own = slice(rows_per_unit)
    one = table.change(own, table.x[own], 1e6)
    if relation is Relation.ADD_REMOVE:
        other = table.change(own, 0.0, 0.0)
    else:
        other = table.change(own, table.x[own], -1e6)
    units = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    distances = []
    for place in range(0, n_units, run.batch_size):
        order = np.concatenate([*units[1 : place + 1], units[0], *units[place + 1 :]])
        distances.append(neighbours.distance(run, one, other, [order] * run.passes))
    return max(distances)


@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize("kind", SCHEDULES)
@pytest.mark.parametrize(("batch_size", "n_units"), [(1, 10), (7, 30), (50, 20)])
def test_worst_unit_reaches_its_sensitivity(
    kind: str, batch_size: int, n_units: int, relation: Relation
) -> None:
    """All rows of a unit go into one batch, whose divisor is b units."""
    run = neighbours.make_run(
        Loss("squared", clip=0.5),
        kind,
        n_rows=n_units,
        lambda_=0.05,
        batch_size=batch_size,
        passes=3,
        max_rows_per_unit=4,
    )
    found = neighbours.bound(run, n_units, relation, rows_per_unit=4)
    worst = worst_unit_distance(run, n_units, 4, relation)
    assert 0.9 * found.sensitivity <= worst
    assert worst <= found.sensitivity + neighbours.rounding(run, found, 2)


def test_unclipped_squared_loss_has_no_sensitivity() -> None:
    run = neighbours.make_run(Loss("squared"), "constant", n_rows=10)
    with pytest.raises(ValueError, match="finite"):
        neighbours.bound(run, 10, Relation.REPLACE_ONE)


@pytest.mark.parametrize("name", LOSSES)
def test_steps_beyond_the_contraction_are_refused(name: str) -> None:
    run = neighbours.make_run(LOSSES[name], "constant", n_rows=10, step_size=100.0, longest_step=2.01)
    with pytest.raises(ValueError, match="no step above 2"):
        neighbours.bound(run, 10, Relation.REPLACE_ONE)


def random_encoder(rng: np.random.Generator) -> replay.Encoder:
    scale = float(rng.choice([1e-3, 1.0, 1e6, 1e300]))
    columns = [
        replay.Column("numeric", lower=-scale, upper=scale),
        replay.Column("numeric", scale="zero_based", log1p=True, lower=0.0, upper=scale),
        replay.Column("numeric", scale="standard", mean=0.0, sd=1.0 / scale),
        replay.Column("category", width=5, centered=bool(rng.integers(2))),
        replay.Column("array", width=int(rng.integers(1, 40)), lower=0.0, upper=scale),
    ]
    kept = [column for column in columns if rng.random() < 0.7]
    return replay.Encoder(tuple(kept), intercept=bool(rng.integers(2)), normalize=bool(rng.integers(2)))


def random_value(rng: np.random.Generator, column: replay.Column) -> object:
    if column.kind == "category":
        return [None, 0, 4][rng.integers(3)]
    specials = [0.0, -0.0, 1.0, -1.0, 1e308, -1e308, 5e-324, math.nan, math.inf, -math.inf, 1e-200]
    if column.kind == "array":
        return [float(rng.choice(specials)) for _ in range(column.width)]
    return float(rng.choice(specials))


def test_encoded_rows_are_never_longer_than_the_losses_assume() -> None:
    rng = np.random.default_rng(5)
    longest = 0.0
    for _ in range(2000):
        encoder = random_encoder(rng)
        if encoder.n_features == 0:
            continue
        row = replay.encode_row(encoder, [random_value(rng, column) for column in encoder.columns])
        assert np.all(np.isfinite(row))
        norm = float(np.linalg.norm(row.astype(np.float64)))
        assert norm <= LONGEST_ROW
        longest = max(longest, norm)
    assert longest > 1.0 - 2.0**-18  # and no shorter than they must be


def test_rows_of_the_row_form_are_never_longer_than_one() -> None:
    rng = np.random.default_rng(6)
    for _ in range(500):
        row = replay.clip_row(rng.normal(size=7) * 10.0 ** rng.integers(-300, 300))
        assert np.linalg.norm(row) <= 1.0
    for bad in (math.nan, math.inf, -math.inf):
        np.testing.assert_array_equal(replay.clip_row([1.0, bad, 0.5]), np.zeros(3))


def test_rounding_of_a_run_is_within_its_allowance() -> None:
    """The same steps with 64-bit mantissas. Both of two neighbours' runs round, so each may take half."""
    rng = np.random.default_rng(7)
    n_rows, n_features, batch_size = 400, 6, 7
    table = random_table(rng, LOSSES["squared-clipped"], n_rows, n_features)
    run = neighbours.make_run(
        LOSSES["squared-clipped"], "constant", n_rows=n_rows, lambda_=0.01, batch_size=batch_size, passes=3
    )
    exact = np.zeros(n_features, dtype=np.longdouble)
    x, y = table.x.astype(np.longdouble), table.y.astype(np.longdouble)
    for t in range(3 * math.ceil(n_rows / batch_size)):
        first = t % math.ceil(n_rows / batch_size) * batch_size
        batch = slice(first, first + batch_size)
        slopes = np.clip(x[batch] @ exact - y[batch], -0.5, 0.5)
        step = np.longdouble(run.schedule.step(t + 1))
        exact = exact - step * (x[batch].T @ slopes / batch_size + np.longdouble(0.01) * exact)
    model = neighbours.final_model(run, table, [np.arange(n_rows)] * 3)
    found = neighbours.bound(run, n_rows, Relation.REPLACE_ONE)
    allowance = neighbours.rounding(run, found, n_features)
    assert 0.0 < np.linalg.norm((model - exact).astype(np.float64)) <= allowance / 2.0
    assert allowance <= 0.01 * found.sensitivity


def test_noise_generators_never_repeat() -> None:
    drawn = [kernels.Noise().gaussian(4, 2.0**40).tolist() for _ in range(50)]
    assert len({tuple(numbers) for numbers in drawn}) == 50
