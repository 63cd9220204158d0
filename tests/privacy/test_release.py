# SPDX-License-Identifier: PostgreSQL
"""Plan, run and release together: the noise a model really carries, and an attack on the guarantee."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from helpers import neighbours
from helpers.plans import decide
from pg_dpml.kernels import Noise
from pg_dpml.methods import bolt_on
from pg_dpml.privacy import gaussian
from pg_dpml.spec.privacy import PrivacySpec
from pg_dpml.spec.relation import Relation
from pg_dpml.training.plan import Problem
from pg_dpml.training.spec import TrainSpec

RELEASES = 20_000
CONFIDENCE = 0.999
LEAST_P = 1e-6  # the keys are fixed: no false alarms
N_ROWS = 40


def regression_plan(epsilon: float, delta: float, relation: Relation, n_features: int) -> Any:
    problem = Problem(N_ROWS, n_features, 1, "regression")
    return decide(
        problem, PrivacySpec(epsilon, delta, relation), TrainSpec(method="bolt-on", batch_size=7, passes=2)
    )


def worst_models(plan: Any) -> list[npt.NDArray[np.float64]]:
    """Un-noised models of two neighbours that reach the plan's sensitivity (steps are constant)."""
    assert plan.guarantee is not None
    assert plan.noise is not None
    assert plan.noise.kind == ("gaussian" if plan.guarantee.delta > 1e-6 else "k-norm")
    rows = neighbours.far_rows(N_ROWS)
    x = np.zeros((N_ROWS, plan.problem.n_features))
    x[:, 0] = rows.x[:, 0]
    pair = neighbours.worst_pair(neighbours.Table(x, rows.y), 0, plan.guarantee.relation)
    return [neighbours.final_model(plan.work, table, [np.arange(N_ROWS)] * 2) for table in pair]


def releases(plan: Any, model: npt.NDArray[np.float64], first_key: int) -> npt.NDArray[np.float64]:
    """Shape (RELEASES, n_features)."""
    keys = range(first_key, first_key + RELEASES)
    return np.array([bolt_on.release(plan, model, Noise(key.to_bytes(32, "little"))) for key in keys])


@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize("delta", [0.0, 0.05])
def test_noise_scale_is_that_of_the_sensitivity(delta: float, relation: Relation) -> None:
    plan = regression_plan(0.7, delta, relation, 3)
    assert plan.noise is not None
    one, other = worst_models(plan)
    apart = float(np.linalg.norm(one - other))
    assert apart == pytest.approx(plan.noise.sensitivity, rel=1e-9)
    assert plan.noise.sensitivity < plan.noise.calibrated_sensitivity < plan.noise.sensitivity * (1.0 + 2e-6)
    per_unit = 1.0 / gaussian.gaussian_mu(0.7, delta) if delta else 1.0 / 0.7
    assert plan.noise.scale >= plan.noise.calibrated_sensitivity * per_unit
    assert plan.noise.scale == pytest.approx(apart * per_unit, rel=3e-6)


@pytest.mark.statistical
@pytest.mark.parametrize("delta", [0.0, 0.05])
def test_released_minus_trained_has_the_planned_distribution(delta: float) -> None:
    plan = regression_plan(1.0, delta, Relation.REPLACE_ONE, 3)
    assert plan.noise is not None
    model = worst_models(plan)[0]
    noise = releases(plan, model, 1) - model
    scale = plan.noise.calibrated_sensitivity
    if delta:
        stddev = scale / gaussian.gaussian_mu(1.0, 0.05)
        for coordinate in noise.T:
            assert stats.kstest(coordinate / stddev, "norm").pvalue >= LEAST_P
    else:
        radius = np.linalg.norm(noise, axis=1)
        assert stats.kstest(radius / (scale / 1.0), stats.gamma(3).cdf).pvalue >= LEAST_P
        for coordinate in noise.T:  # uniform on the sphere of R^3: every coordinate is uniform
            assert stats.kstest(coordinate / radius, stats.uniform(-1.0, 2.0).cdf).pvalue >= LEAST_P
    places = (noise + model) / plan.noise.grid
    np.testing.assert_array_equal(places, np.rint(places))


def epsilon_lower_bound(one: npt.NDArray[np.bool_], other: npt.NDArray[np.bool_], delta: float) -> float:
    """Clopper-Pearson: with `CONFIDENCE`, the releases are not (epsilon, delta)-private below this epsilon.

    `one` and `other` say for each release whether the attack says "one".
    """
    likely = stats.binomtest(int(np.sum(one)), len(one)).proportion_ci(CONFIDENCE).low
    unlikely = stats.binomtest(int(np.sum(other)), len(other)).proportion_ci(CONFIDENCE).high
    return math.log((likely - delta) / unlikely) if likely > delta else -math.inf


@pytest.mark.statistical
@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize(
    ("epsilon", "delta", "n_features"),
    [
        (0.5, 0.0, 1),
        (1.0, 0.0, 1),
        (2.0, 0.0, 1),
        (1.0, 0.0, 2),
        (0.5, 0.05, 3),
        (1.0, 0.05, 3),
        (2.0, 0.05, 3),
    ],
)
def test_an_attack_learns_no_more_than_claimed(
    epsilon: float, delta: float, n_features: int, relation: Relation
) -> None:
    plan = regression_plan(epsilon, delta, relation, n_features)
    assert plan.guarantee is not None
    assert plan.noise is not None
    one, other = worst_models(plan)
    apart = float(np.linalg.norm(one - other))
    axis = (one - other) / apart
    drawn_one, drawn_other = releases(plan, one, 1), releases(plan, other, 10 * RELEASES)
    # Say "one" where its likelihood is at least almost e^epsilon times the other's.
    if delta > 0.0:
        mu = gaussian.gaussian_mu(epsilon, delta)
        least = epsilon * apart / mu**2  # from the middle of the two, along the axis
        said = [(drawn - (one + other) / 2.0) @ axis >= least for drawn in (drawn_one, drawn_other)]
    else:
        log_ratios = [
            (np.linalg.norm(drawn - other, axis=1) - np.linalg.norm(drawn - one, axis=1)) / plan.noise.scale
            for drawn in (drawn_one, drawn_other)
        ]
        said = [ratio >= 0.9 * epsilon for ratio in log_ratios]
    found = epsilon_lower_bound(said[0], said[1], plan.guarantee.delta)
    assert found <= epsilon
    if epsilon >= 1.0:
        assert found >= epsilon / 2.0  # the attack is a good one


def test_release_draws_fresh_noise() -> None:
    plan = regression_plan(1.0, 0.05, Relation.REPLACE_ONE, 3)
    model = worst_models(plan)[0]
    assert len({tuple(bolt_on.release(plan, model)) for _ in range(20)}) == 20
