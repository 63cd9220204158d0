# SPDX-License-Identifier: PostgreSQL
"""Replay of output-perturbation and priv-gene on neighbouring tables: how far one unit moves a run."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from helpers import replay
from helpers.plans import decide
from pg_dpml.kernels import Loss
from pg_dpml.privacy.noise import choices
from pg_dpml.spec.privacy import PrivacySpec
from pg_dpml.spec.relation import Relation
from pg_dpml.training.plan import Problem
from pg_dpml.training.spec import TrainSpec

FloatArray = npt.NDArray[np.float64]

N = 20
D = 3
TASKS = {"logistic": "binary", "huber_svm": "binary", "squared": "regression", "softmax": "multiclass"}
NORM = 1.0 - 2.0**-20


def plan_of(method: str, loss: str, relation: Relation, m: int, **options: Any) -> Any:
    task = TASKS[loss]
    problem = Problem(N, D, 3 if task == "multiclass" else 1, task, "unit" if m > 1 else None, m)
    return decide(problem, PrivacySpec(1.0, 1e-6, relation), TrainSpec(method, loss=loss, **options))


def rows(rng: np.random.Generator, loss: str, n: int) -> tuple[FloatArray, FloatArray]:
    """Rows of norm 1, and labels."""
    x = rng.normal(size=(n, D))
    x *= NORM / np.linalg.norm(x, axis=1, keepdims=True)
    choice = {"squared": [-1.0, 1.0], "softmax": [0.0, 1.0, 2.0]}.get(loss, [-1.0, 1.0])
    return x.astype(np.float32).astype(np.float64), rng.choice(choice, size=n)


def blanked(relation: Relation, m: int, x: FloatArray, y: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Under `add_remove` the other table has zero rows in place of its unit."""
    if relation is Relation.ADD_REMOVE:
        x[:m], y[:m] = 0.0, 0.0
    return x, y


def descended(x: FloatArray, y: FloatArray, work: Any) -> FloatArray:
    """The model before its noise."""
    weights = np.zeros(work.loss.n_classes * D)
    for _ in range(work.passes):
        sums = replay.gradient([replay.pack_dense(x, y)], weights, work.loss, losses=False)
        assert sums.gradient is not None
        weights -= work.schedule.step_size * (sums.gradient / N + work.lambda_ * weights)
    return weights


@pytest.mark.parametrize("relation", list(Relation))
@pytest.mark.parametrize("loss", TASKS)
@pytest.mark.parametrize("lambda_", [0.0, 0.1])
@pytest.mark.parametrize("m", [1, 2])
def test_gradient_descent_moves_by_at_most_its_sensitivity(
    loss: str, relation: Relation, lambda_: float, m: int
) -> None:
    rng = np.random.default_rng(3)
    plan = plan_of("output-perturbation", loss, relation, m, passes=6, step_size=0.3, lambda_=lambda_)
    worst = 0.0
    for trial in range(25):
        x, y = rows(rng, loss, N * m)
        other_x, other_y = x.copy(), y.copy()
        other_x[:m], other_y[:m] = rows(rng, loss, m)
        if trial >= 5:  # one row for all of a unit, and its label changed alone
            x[:m], other_x[:m] = x[0], x[0]
            y[:m], other_y[:m] = y[0], -y[0] if loss != "softmax" else (y[0] + 1) % 3
        other_x, other_y = blanked(relation, m, other_x, other_y)
        moved = descended(x, y, plan.work) - descended(other_x, other_y, plan.work)
        worst = max(worst, float(np.linalg.norm(moved)))
    assert worst <= plan.noise.sensitivity
    if loss == "squared" and lambda_ == 0.0:
        assert worst >= 0.8 * plan.noise.sensitivity


def losses(x: FloatArray, y: FloatArray, models: FloatArray, work: Any) -> FloatArray:
    """What parents are chosen by."""
    sums = replay.gradient(
        [replay.pack_dense(x, y)],
        models,
        work.loss,
        models=work.models,
        gradient=False,
        loss_clip=work.loss_clip,
    )
    assert sums.losses is not None
    return np.asarray(sums.losses)


@pytest.mark.parametrize("relation", list(Relation))
@pytest.mark.parametrize("loss", TASKS)
@pytest.mark.parametrize("m", [1, 2])
def test_a_unit_moves_the_difference_of_two_models_losses_by_the_spread(
    loss: str, relation: Relation, m: int
) -> None:
    rng = np.random.default_rng(4)
    plan = plan_of("priv-gene", loss, relation, m)
    worst = 0.0
    for _ in range(60):
        models = 10.0 ** rng.integers(-1, 5) * rng.normal(size=(plan.work.models, plan.problem.n_weights))
        x, y = rows(rng, loss, N * m)
        other_x, other_y = x.copy(), y.copy()
        x[:m], y[:m] = x[0], y[0]
        other_x[:m] = x[0] if loss != "squared" else -x[0]
        other_y[:m] = (y[0] + 1) % 3 if loss == "softmax" else -y[0]
        other_x, other_y = blanked(relation, m, other_x, other_y)
        flat = models.reshape(-1)
        change = losses(other_x, other_y, flat, plan.work) - losses(x, y, flat, plan.work)
        worst = max(worst, float(change.max() - change.min()))
    assert worst <= plan.noise.spread
    if loss != "squared" or relation is Relation.ADD_REMOVE:
        assert worst >= 0.99 * plan.noise.spread


def test_losses_are_clipped_at_twice_that_of_the_zero_model() -> None:
    for loss, zero in (("logistic", math.log(2.0)), ("huber_svm", 1.0), ("softmax", math.log(3.0))):
        plan = plan_of("priv-gene", loss, Relation.REPLACE_ONE, 1)
        assert plan.work.loss_clip == pytest.approx(2.0 * zero)
        assert plan.noise.spread == pytest.approx(2.0 * 2.0 * zero, rel=1e-9)
    one_vs_all = decide(
        Problem(N, D, 3, "multiclass"), PrivacySpec(1.0), TrainSpec("priv-gene", loss="logistic", passes=5)
    )
    assert one_vs_all.work.loss_clip == pytest.approx(2.0 * 3.0 * math.log(2.0))
    assert one_vs_all.noise.choices == 9
    assert one_vs_all.noise.choice_epsilon == choices.run_epsilon(1.0, 1.0 / N**2, 9)


def test_a_run_without_rows_is_the_zero_model_or_a_random_one() -> None:
    """Nothing is divided by the number of rows."""
    for method in ("output-perturbation", "priv-gene"):
        plan = decide(Problem(0, D, 1, "binary"), PrivacySpec(1.0, 1e-6), TrainSpec(method))
        assert plan.work.passes >= 1
        assert isinstance(plan.work.loss, Loss)
