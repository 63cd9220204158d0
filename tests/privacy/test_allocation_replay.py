# SPDX-License-Identifier: PostgreSQL
"""Batches by random allocation: how a pass is cut, the noise that is planned, and an attack.

Steps are replayed through the kernels that the server runs, with the options of the plans.
Source: privacy/README.md, "Batches by random allocation".
"""

from __future__ import annotations

import math
from collections import defaultdict
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from helpers import replay
from helpers.attacks import shown_delta
from helpers.neighbours import LONGEST_ROW, FloatArray, Table
from helpers.plans import decide
from pg_dpml.errors import GuaranteeError, SpecError
from pg_dpml.kernels import Loss, Schedule, ffi, lib, pointer
from pg_dpml.privacy.accounting.allocated import MOST_BATCHES, allocated_gaussian_epsilon
from pg_dpml.privacy.cost import cost_of
from pg_dpml.privacy.noise.steps import StepNoise
from pg_dpml.privacy.releases import AllocatedPasses
from pg_dpml.spec.privacy import PrivacySpec
from pg_dpml.spec.relation import Relation
from pg_dpml.training.plan import Problem
from pg_dpml.training.sgd import Sgd
from pg_dpml.training.spec import TrainSpec

RUNS = 20_000


def planned(method: str, problem: Problem, privacy: PrivacySpec, **options: Any) -> tuple[Sgd, StepNoise]:
    decided = decide(problem, privacy, TrainSpec(method=method, sampling="allocation", **options))
    assert isinstance(decided.work, Sgd)
    assert isinstance(decided.noise, StepNoise)
    return decided.work, decided.noise


@pytest.mark.parametrize("rows_per_unit", [1, 3])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("noise", [False, True])
def test_a_pass_is_cut_by_the_sizes(rows_per_unit: int, momentum: float, noise: bool) -> None:
    """Batch t has the next sizes[t] units, an empty one is a step with noise, and blocks end anywhere."""
    rng = np.random.default_rng(3)
    sizes = [0, 0, 5, 1, 0, 2, 9, 0]
    n = sum(sizes) * rows_per_unit
    x = rng.normal(size=(n, 4)).astype(np.float32) / 4.0
    y = rng.choice([-1.0, 1.0], size=n)
    starts = np.arange(n) % rows_per_unit == 0
    options: dict[str, Any] = {
        "loss": Loss("logistic"),
        "schedule": Schedule("constant", 0.5),
        "lambda_": 0.1,
        "batch_size": 3,
        "by_unit": rows_per_unit > 1,
        "momentum": momentum,
    }
    if noise:
        options |= {"noise": "gaussian", "noise_scale": 1.0, "noise_key": bytes(32)}

    def blocks(first: int, last: int, rows: int) -> list[bytes]:
        return [
            replay.pack_dense(
                x[i : min(i + rows, last)], y[i : min(i + rows, last)], starts[i : min(i + rows, last)]
            )
            for i in range(first, last, rows)
        ]

    found = [replay.sgd_blocks(blocks(0, n, rows), n_features=4, sizes=sizes, **options) for rows in (n, 7)]
    np.testing.assert_array_equal(found[0].weights, found[1].weights)
    assert (found[0].steps, found[0].rows) == (len(sizes), n)
    ends = np.cumsum(sizes)
    for batches in range(1, len(sizes) + 1):  # every step is the one that its batch alone makes
        epoch = replay.sgd_blocks(
            blocks(0, int(ends[batches - 1]) * rows_per_unit, 5),
            n_features=4,
            sizes=sizes[:batches],
            **options,
        )
        assert epoch.steps == batches
    if noise:
        return
    weights, velocity = np.zeros(4), np.zeros(4)
    for first, size in zip(ends - sizes, sizes, strict=True):
        rows = slice(int(first) * rows_per_unit, int(first + size) * rows_per_unit)
        slopes = -y[rows] / (1.0 + np.exp(y[rows] * (x[rows] @ weights)))
        velocity = momentum * velocity + 0.1 * weights + slopes @ x[rows] / 3.0
        weights = weights - 0.5 * velocity
    np.testing.assert_allclose(found[0].weights, weights, rtol=1e-12)


def test_units_draw_their_batches_without_bias() -> None:
    rng = ffi.new("DpmlRng *")
    lib.dpml_rng_start(rng, ffi.from_buffer("uint8_t[]", bytes(32)))
    for bound in (1, 3, 10):
        drawn = np.bincount([lib.dpml_rng_below(rng, bound) for _ in range(30_000)], minlength=bound)
        assert len(drawn) == bound
        assert np.all(np.abs(drawn - 30_000 / bound) <= 6.0 * math.sqrt(30_000 / bound))
    huge = 3 * 2**61  # a third of the words would be too many
    drawn = np.bincount([lib.dpml_rng_below(rng, huge) // 2**61 for _ in range(30_000)], minlength=3)
    assert np.all(np.abs(drawn - 10_000) <= 600)
    for bins in (1, 3, 10):
        counts = np.zeros(bins, dtype=np.int32)
        for draws in (30_000, 1, 0, 3):
            lib.dpml_rng_deal(rng, draws, bins, pointer(counts, "int32_t"))
        assert counts.sum() == 30_004
        assert np.all(np.abs(counts - 30_004 / bins) <= 6.0 * math.sqrt(30_004 / bins))


def test_a_draw_of_too_many_is_drawn_again() -> None:
    """Of 2^32 values one is too many for three bins: for the half word 0 comes a draw of its own."""
    rng, counts = ffi.new("DpmlRng *"), np.zeros(3, dtype=np.int32)
    lib.dpml_rng_start(rng, ffi.from_buffer("uint8_t[]", bytes(32)))
    rng.used = 0
    rng.words[0], rng.words[1] = (2**32 - 1) << 32, 2**63
    lib.dpml_rng_deal(rng, 2, 3, pointer(counts, "int32_t"))
    assert rng.used == 2
    assert counts.tolist() == [0, 1, 1]


@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize(
    ("method", "asked", "options", "allocations"),
    [
        ("scs13", 1.0, {"batch_size": 25, "passes": 4}, 4),
        ("scs13", 0.05, {"batch_size": 250, "passes": 2}, 1),
        ("dp-sgd", 1.0, {"batch_size": 500, "passes": 1}, 1),
    ],
)
def test_the_noise_costs_what_was_asked_for(
    method: str, asked: float, options: dict[str, Any], allocations: int, relation: Relation
) -> None:
    """With fresh orders and with one: never more than epsilon, and the one that needs less noise is taken."""
    delta = 1e-6
    problem = Problem(1000, 5, 1, "binary")
    sgd, noise = planned(method, problem, PrivacySpec(asked, delta, relation), **options)
    assert sgd.allocated
    beside = noise.multipliers
    assert noise.noise_multiplier == pytest.approx(
        beside["fresh_order" if allocations > 1 else "one_order"], rel=1e-3
    )
    assert max(beside["fresh_order"], beside["one_order"]) <= beside["shuffled"] * (1.0 + 1e-6)
    assert f"{beside['poisson']:.3g} for Poisson batches" in dict(noise.lines())["Accounts"]
    assert sgd.fresh_order == (noise.allocations > 1)
    assert noise.allocations == allocations
    released = noise.releases()
    assert isinstance(released, AllocatedPasses)
    batches = math.ceil(1000 / options["batch_size"])
    assert (released.batches, noise.steps) == (batches, batches * options["passes"])
    orders = options["passes"] / allocations
    assert released.multiplier * math.sqrt(orders) * noise.calibrated_sensitivity == pytest.approx(
        noise.scale * relation.gradient_change(1.0), rel=1e-9
    )
    spent = allocated_gaussian_epsilon(released.multiplier, batches, allocations, delta, relation)
    assert 0.98 * asked <= spent <= asked
    spent_decimal, delta_decimal = Decimal(repr(asked)), Decimal(repr(delta))
    cost = cost_of("gdp", spent_decimal, delta_decimal, released, run=relation, budget=relation)
    assert (
        0.0
        < float(cost.loss)
        <= (math.sqrt(options["passes"]) * noise.sensitivity / noise.scale) ** 2 * 1.001
    )


def test_what_random_allocation_is_not_for_is_rejected() -> None:
    problem = Problem(1000, 5, 1, "binary")
    with pytest.raises(SpecError, match="sampling of scs13 must be shuffled or allocation"):
        decide(problem, PrivacySpec(1.0), TrainSpec(method="scs13", sampling="poisson"))
    with pytest.raises(SpecError, match="sampling of dp-sgd must be poisson or allocation"):
        decide(problem, PrivacySpec(1.0), TrainSpec(method="dp-sgd", sampling="shuffled"))
    with pytest.raises(GuaranteeError, match="leave sampling out"):
        planned("scs13", problem, PrivacySpec(1.0, 0.0))
    with pytest.raises(GuaranteeError, match="larger batch_size"):
        planned("scs13", Problem(MOST_BATCHES + 1, 5, 1, "binary"), PrivacySpec(1.0), batch_size=1)
    with pytest.raises(GuaranteeError, match="fewer than 2\\^31"):
        planned("dp-sgd", Problem(2**31, 5, 1, "binary"), PrivacySpec(1.0))
    with pytest.raises(SpecError, match="fresh_order does not go with"):
        planned("scs13", Problem(1000, 5, 1, "binary", "unit", 2), PrivacySpec(1.0), fresh_order=True)


@pytest.mark.statistical
@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize("method", ["scs13", "dp-sgd"])
def test_an_attack_on_random_allocation(method: str, relation: Relation) -> None:
    """One unit among zero rows, by the likelihood ratio of all noisy sums. Noise / 1.25 would fail."""
    epsilon, delta, n, batches = 1.0, 0.1, 4, 2
    problem = Problem(n, 1, 1, "regression")
    sgd, noise = planned(
        method, problem, PrivacySpec(epsilon, delta, relation), batch_size=2, passes=1, average="none"
    )
    assert (noise.accountant, noise.steps, sgd.noise_scale) == ("pld", batches, noise.scale)
    bound = noise.scale / noise.noise_multiplier
    lowest = -1.0 if relation is Relation.REPLACE_ONE else 0.0
    zero = Table(np.zeros((n, 1)), np.zeros(n))
    options: dict[str, Any] = {
        "loss": sgd.loss,
        "schedule": Schedule("constant", 1.0),
        "batch_size": 1,
        "gradient_clip": sgd.gradient_clip,
        "noise": sgd.noise,
        "noise_scale": sgd.noise_scale,
    }
    rng = np.random.default_rng(11)

    def sums(label: float, keys: range) -> FloatArray:
        """The noisy sums of a pass a key: units in random order, cut where each has drawn its batch."""
        runs = defaultdict[tuple[tuple[int, ...], int], list[int]](list)
        for key in keys:
            drawn = np.bincount(rng.integers(batches, size=n), minlength=batches)
            runs[tuple(drawn.tolist()), int(rng.integers(n))].append(key)
        found = np.empty((len(keys), batches))
        for (sizes, place), own in runs.items():
            table = zero.change(place, LONGEST_ROW if label else 0.0, label)
            path = np.zeros((batches + 1, len(own)))
            for batch in range(1, batches + 1):
                last = sum(sizes[:batch])
                blocks = [replay.pack_dense(table.x[:last], table.y[:last])] if last else []
                models = replay.sgd_models(blocks, own, n_features=1, sizes=sizes[:batch], **options)
                path[batch] = models[:, 0]
            found[np.array(own) - keys[0]] = -np.diff(path, axis=0).T / bound
        return found

    def loss(found: FloatArray) -> FloatArray:
        def ratio(shift: float) -> FloatArray:
            shifts = (shift * found - 0.5 * shift**2) / noise.noise_multiplier**2
            return np.asarray(np.log(np.mean(np.exp(shifts), axis=1)))

        return ratio(1.0) - ratio(lowest)

    one = sums(-1e6, range(RUNS))
    other = sums(1e6 if lowest else 0.0, range(RUNS, 2 * RUNS))
    thresholds = np.linspace(-2.0, 3.0, 20)
    shown = shown_delta(loss(one), loss(other), thresholds, epsilon)
    assert 0.3 * delta < shown <= delta
