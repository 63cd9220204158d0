# SPDX-License-Identifier: PostgreSQL
"""The noise of coordinate descent, computed again from the rules; no step is taken here.

Source: privacy/README.md, "Coordinate descent", "Batches whose updates see each other" and "Coordinates of
the model".
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from pg_dpml.errors import GuaranteeError
from pg_dpml.privacy import gaussian, resolution
from pg_dpml.privacy.accounting import subsampled
from pg_dpml.privacy.noise import coordinates
from pg_dpml.privacy.noise.coordinates import DualNoise
from pg_dpml.privacy.noise.steps import calibrate_poisson
from pg_dpml.privacy.releases import PoissonSteps, Releases
from pg_dpml.spec.relation import Relation

CLIP = 0.25
N = 20_000
D = 30
EPSILON = 0.7
DELTA = 1e-8


def independent(**changes: Any) -> DualNoise:
    given: dict[str, Any] = {
        "update_clip": CLIP,
        "dual_noise": False,
        "relation": Relation.REPLACE_ONE,
        "passes": 5,
        "steps": 250,
        "sampling": 0.02,
        "n_units": N,
        "max_rows_per_unit": 1,
        "n_features": D,
        "epsilon": EPSILON,
        "delta": DELTA,
    }
    noise, warning = coordinates.calibrate_independent(**given | changes)
    assert warning is None
    return noise


def sequential(**changes: Any) -> DualNoise:
    given: dict[str, Any] = {
        "update_clip": CLIP,
        "passes": 4,
        "steps": 4 * N // 10,
        "batch_rows": 10,
        "n_features": D,
        "epsilon": EPSILON,
        "delta": DELTA,
    }
    return coordinates.calibrate_sequential(**given | changes)


def on_coordinates(**changes: Any) -> coordinates.CoordinateNoise:
    given: dict[str, Any] = {
        "update_clip": CLIP,
        "coordinates": 7,
        "passes": 4,
        "n_units": N,
        "n_weights": D,
        "epsilon": EPSILON,
        "delta": DELTA,
    }
    return coordinates.calibrate_coordinates(**given | changes)


@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize("rows_per_unit", [1, 3])
def test_noise_on_the_sum_alone_gives_the_guarantee(rows_per_unit: int, relation: Relation) -> None:
    """A step is a subsampled Gaussian of sensitivity m C, with head room for grid and rounding."""
    noise = independent(relation=relation, max_rows_per_unit=rows_per_unit)
    bound = rows_per_unit * CLIP
    assert noise.sensitivity == relation.gradient_change(bound)
    assert noise.calibrated_sensitivity >= noise.sensitivity + noise.grid * math.sqrt(D)
    assert noise.noise_multiplier == pytest.approx(noise.scale / bound, rel=1e-12)
    assert noise.grid <= 2.0**-20 * noise.scale < 2.0 * noise.grid
    multiplier = noise.scale / (noise.calibrated_sensitivity / relation.gradient_change(1.0))
    spent = subsampled.subsampled_gaussian_epsilon(multiplier, 0.02, 250, DELTA, relation)
    assert 0.98 * EPSILON <= spent <= EPSILON * (1.0 + 1e-9)


@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize("rows_per_unit", [1, 3])
def test_noise_on_both_vectors_is_calibrated_for_both(rows_per_unit: int, relation: Relation) -> None:
    """m duals move by at most C each and their sum by m C: sqrt 2 C as published, for one row."""
    plain = independent(relation=relation, max_rows_per_unit=rows_per_unit)
    both = independent(relation=relation, max_rows_per_unit=rows_per_unit, dual_noise=True)
    m = rows_per_unit
    assert both.sensitivity / plain.sensitivity == pytest.approx(math.sqrt((m + m * m) / m**2), rel=1e-12)
    assert both.scale / plain.scale == pytest.approx(math.sqrt((m + 1) / m), rel=1e-6)
    assert (plain.dual_noise, both.dual_noise) == (False, True)
    for noise in (plain, both):
        assert noise.multipliers == {
            "sum": pytest.approx(plain.scale / CLIP, rel=1e-6),
            "published": pytest.approx(both.scale / CLIP, rel=1e-6),
        }
        text = dict(noise.lines())
        assert f"{plain.scale / CLIP:.3g} on the sum alone" in text["Accounts"]
        assert f"{both.scale / CLIP:.3g} on the sum and on the duals" in text["Accounts"]
    assert "on every batch's sum," in dict(plain.lines())["Noise"]
    assert "on every batch's duals and sum," in dict(both.lines())["Noise"]
    assert plain.added_to != both.added_to


def test_poisson_steps_are_priced_as_those_of_a_gradient() -> None:
    noise = independent()
    gradient, _ = calibrate_poisson(
        bound=CLIP,
        relation=Relation.REPLACE_ONE,
        passes=5,
        steps=250,
        sampling=0.02,
        n_units=N,
        max_rows_per_unit=1,
        row_bound=CLIP,
        n_weights=D,
        epsilon=EPSILON,
        delta=DELTA,
    )
    assert noise.scale == gradient.scale
    released = noise.releases()
    assert isinstance(released, PoissonSteps)
    assert released == gradient.releases()
    assert released.precision == 2.0 * resolution.sampler_mu(250 * D)
    both = independent(dual_noise=True).releases()
    assert isinstance(both, PoissonSteps)
    # Charged as if the duals were released: the multiplier is that of the account.
    assert both.multiplier == pytest.approx(released.multiplier, rel=1e-4)


@pytest.mark.parametrize("passes", [1, 4])
@pytest.mark.parametrize("batch_rows", [1, 10, 300])
def test_sequential_passes_compose_exactly(batch_rows: int, passes: int) -> None:
    noise = sequential(batch_rows=batch_rows, passes=passes)
    change = 2.0 * CLIP * math.sqrt(batch_rows * (batch_rows + 1))
    assert noise.sensitivity == pytest.approx(change, rel=1e-15)
    room = noise.grid * math.sqrt(D + batch_rows) + 2.0**-52 * batch_rows * (batch_rows + 8.0) * CLIP
    assert noise.calibrated_sensitivity - change == pytest.approx(room, rel=1e-5)
    assert noise.grid <= 2.0**-20 * noise.scale < 2.0 * noise.grid
    mu = math.sqrt(passes) * noise.calibrated_sensitivity / noise.scale
    assert gaussian.gaussian_delta(EPSILON, mu) <= DELTA
    assert mu == pytest.approx(gaussian.gaussian_mu(EPSILON, DELTA), rel=1e-3)
    numbers = passes * (D + batch_rows)
    released = noise.releases()
    assert isinstance(released, Releases)
    assert released.delta == resolution.sampler_delta(numbers)
    assert released.mu == pytest.approx(noise.mu + resolution.sampler_mu(numbers), rel=1e-15)
    assert released.mu <= gaussian.gaussian_mu(EPSILON, DELTA)
    assert noise.dual_noise
    assert "batch's duals and sum" in dict(noise.lines())["Noise"]


def test_the_worst_batch_reaches_the_bound_of_sequential_updates() -> None:
    """Equal rows of norm 1 whose updates all turn from C to -C."""
    rows = 9
    x = np.tile(np.array([0.6, 0.8]), (rows, 1))
    one, other = np.full(rows, CLIP), np.full(rows, -CLIP)
    moved = np.concatenate([one - other, (one - other) @ x])
    assert np.linalg.norm(moved) == pytest.approx(coordinates.sequential_bound(CLIP, rows), rel=1e-12)
    moved = np.concatenate([[CLIP], CLIP * x[0]])
    assert np.linalg.norm(moved) == pytest.approx(coordinates.dual_bound(CLIP, 1, dual_noise=True), rel=1e-12)
    moved = np.concatenate([np.full(rows, CLIP), np.full(rows, CLIP) @ x])
    assert np.linalg.norm(moved) == pytest.approx(
        coordinates.dual_bound(CLIP, rows, dual_noise=True), rel=1e-12
    )
    assert np.linalg.norm(np.full(5, 2.0 * CLIP)) == pytest.approx(coordinates.coordinate_bound(CLIP, 5))


@pytest.mark.parametrize("taken", [1, 7, D])
def test_steps_on_coordinates_compose_exactly(taken: int) -> None:
    noise = on_coordinates(coordinates=taken)
    one = noise.gradient
    assert one is not None
    assert noise.steps == 4 * math.ceil(D / taken)
    assert one.n_weights == taken
    assert one.sensitivity == pytest.approx(2.0 * CLIP * math.sqrt(taken), rel=1e-15)
    assert one.calibrated_sensitivity == pytest.approx(one.sensitivity + one.grid * math.sqrt(taken))
    mu = math.sqrt(noise.steps) * one.calibrated_sensitivity / one.scale
    assert gaussian.gaussian_delta(EPSILON, mu) <= DELTA
    assert mu == pytest.approx(gaussian.gaussian_mu(EPSILON, DELTA), rel=1e-3)
    released = noise.releases()
    assert isinstance(released, Releases)
    assert released.mu <= gaussian.gaussian_mu(EPSILON, DELTA)
    # Every coordinate has the noise of as many steps as there are passes.
    assert noise.score_stddev == pytest.approx(2.0 * one.scale)


def test_an_empty_table_needs_no_noise() -> None:
    assert independent(steps=0, n_units=0).scale == 0.0
    assert independent(steps=0, n_units=0).releases() is None
    assert sequential(steps=0).scale == 0.0
    assert sequential(steps=0).releases() is None
    one = on_coordinates(n_units=0).gradient
    assert one is not None
    assert one.scale == 0.0


@pytest.mark.parametrize("calibrate", [independent, sequential, on_coordinates])
def test_noise_without_a_delta_is_refused(calibrate: Any) -> None:
    with pytest.raises(GuaranteeError, match="delta = 0 has no Gaussian noise"):
        calibrate(delta=0.0)


@pytest.mark.parametrize("changes", [{"batch_rows": 2**48}, {"epsilon": 1e-12, "delta": 1e-13}])
def test_more_noisy_numbers_than_the_sampler_can_draw_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(GuaranteeError, match="precision of the noise could cost mu"):
        sequential(**changes)
