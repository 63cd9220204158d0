# SPDX-License-Identifier: PostgreSQL
"""Certified minimisers of neighbouring tables: the noise of their plan covers every answer that is accepted.

Source: privacy/README.md, "Certified minimiser".
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from helpers import neighbours
from helpers.kernel_job import KernelJob
from helpers.neighbours import FloatArray
from helpers.plans import decide
from pg_dpml.privacy.noise.output import ReleaseNoise
from pg_dpml.spec.privacy import PrivacySpec
from pg_dpml.spec.relation import Relation
from pg_dpml.training.certified import Certified
from pg_dpml.training.losses import loss_options
from pg_dpml.training.minimise import minimise
from pg_dpml.training.plan import Plan, Problem
from pg_dpml.training.spec import TrainSpec

N = 50


def parts(plan: Plan) -> tuple[Certified, ReleaseNoise]:
    assert isinstance(plan.work, Certified)
    assert isinstance(plan.noise, ReleaseNoise)
    return plan.work, plan.noise


def answer(plan: Plan, blocks: list[bytes], start: FloatArray) -> FloatArray:
    """What the run's solver makes of a first guess."""
    work, _ = parts(plan)
    job: Any = KernelJob(plan, blocks)
    options = loss_options(work.loss) | {"losses": False}
    n, lambda_ = plan.problem.n_units, work.objective.lambda_

    def gradient(weights: FloatArray) -> FloatArray:
        found: FloatArray = job.blocks.gradient(weights, options).gradient / n + lambda_ * weights
        return found

    return minimise(gradient, start, work.goal, convexity=lambda_, smoothness=work.objective.smoothness)[0]


@pytest.mark.parametrize("m", [1, 3])
@pytest.mark.parametrize("relation", Relation)
def test_answers_at_the_edge_of_the_certificate_reach_the_sensitivity(relation: Relation, m: int) -> None:
    """Where all losses are straight, the gradient's norm is lambda times the distance from the minimiser.

    Both answers are accepted as far from it as they can be, in opposite directions: their
    distance has the 2 tau / lambda in full.
    """
    lambda_ = 1.0
    problem = Problem(N, 2, 1, "binary", "id" if m > 1 else None, m)
    spec = TrainSpec(method="bolt-on", loss="huber_svm", huber_h=0.5, lambda_=lambda_)
    plan = decide(problem, PrivacySpec(1.0, 1e-6, relation), spec)
    work, noise = parts(plan)
    starts = np.arange(N * m) % m == 0
    x = np.zeros((N * m, 2))
    x[:, 0] = np.float32(neighbours.LONGEST_ROW)
    y = np.where(np.arange(N * m) // m % 2 == 0, 1.0, -1.0)
    other_x, other_y = x.copy(), y.copy()
    if relation is Relation.ADD_REMOVE:
        other_x[:m], other_y[:m] = 0.0, 0.0
    else:
        other_y[:m] = -1.0
    answers = []
    for rows, labels, sign in ((x, y, 1.0), (other_x, other_y, -1.0)):
        blocks = neighbours.pack("dense", rows, labels, starts, [N * m])
        minimiser = np.array([float(labels @ rows[:, 0]) / (N * lambda_), 0.0])
        edge = minimiser + np.array([sign * work.goal.gradient_norm * (1.0 - 1e-9) / lambda_, 0.0])
        found = answer(plan, blocks, edge)
        np.testing.assert_array_equal(found, edge)  # accepted as it is
        beyond = minimiser + np.array([sign * work.gradient_norm * 1.001 / lambda_, 0.0])
        better = answer(plan, blocks, beyond)
        assert np.linalg.norm(better - minimiser) <= work.gradient_norm / lambda_  # and this was not
        answers.append(found)
    apart = float(np.linalg.norm(answers[0] - answers[1]))
    change = (2.0 if relation is Relation.REPLACE_ONE else 1.0) * m
    assert apart == pytest.approx((change / N + 2.0 * work.gradient_norm) / lambda_, rel=1e-5)
    assert 0.999 * noise.sensitivity <= apart <= noise.sensitivity
    assert noise.sensitivity >= 1.0199 * change / (N * lambda_)


LIPSCHITZ = {"logistic": 1.0, "huber_svm": 1.0, "squared": math.inf, "softmax": math.sqrt(2.0)}


@pytest.mark.parametrize("form", ["dense", "csr"])
@pytest.mark.parametrize(
    ("task", "loss", "n_outputs"),
    [
        ("binary", "logistic", 1),
        ("binary", "huber_svm", 1),
        ("regression", "squared", 1),
        ("multiclass", "softmax", 3),
        ("multiclass", "logistic", 3),
    ],
)
def test_runs_on_neighbours_stay_within_the_noise_of_their_plan(
    task: str, loss: str, n_outputs: int, form: str
) -> None:
    """Pairs of rows and of units, clips and lambdas of all sizes; the bound is written from the rules."""
    rng = np.random.default_rng(17)
    reached = 0.0
    for _ in range(60):
        m, units, d = int(rng.choice([1, 1, 4])), int(rng.integers(1, 25)), int(rng.integers(1, 7))
        n = m * units
        clip = None if loss == "softmax" else float(rng.choice([0.1, 0.5, 0.9]))
        lambda_ = float(10.0 ** rng.uniform(-4.0, 3.0))
        relation = Relation.REPLACE_ONE if rng.random() < 0.5 else Relation.ADD_REMOVE
        spec = TrainSpec(method="bolt-on", loss=loss, clip=clip, lambda_=lambda_)
        problem = Problem(units, d, n_outputs, task, "id" if m > 1 else None, m)
        plan = decide(problem, PrivacySpec(1.0, 1e-6, relation), spec)
        work, noise = parts(plan)
        bound = min(LIPSCHITZ[loss], clip or math.inf) * (1.0 if loss == "softmax" else math.sqrt(n_outputs))
        change = (2.0 if relation is Relation.REPLACE_ONE else 1.0) * m * bound
        least = (change / units + 2.0 * work.gradient_norm) / lambda_
        assert noise.sensitivity >= least * (1.0 - 1e-12)
        assert work.gradient_norm >= 0.01 * change / units * (1.0 - 1e-12)

        x = rng.normal(size=(n, d)) * (rng.random((n, d)) < 0.7)
        x *= 0.999 / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 0.999)
        x = x.astype(np.float32).astype(np.float64)
        y = rng.integers(n_outputs, size=n).astype(float) if n_outputs > 1 else rng.choice([-1.0, 1.0], n)
        unit = int(rng.integers(units))
        own = slice(unit * m, (unit + 1) * m)
        other_x, other_y = x.copy(), y.copy()
        if relation is Relation.ADD_REMOVE:
            other_x[own], other_y[own] = 0.0, 0.0
        elif rng.random() < 0.7:
            other_x[own] = -x[own]
        else:
            other_y[own] = rng.permutation(y)[:m]
        starts = np.arange(n) % m == 0
        answers = []
        for rows, labels in ((x, y), (other_x, other_y)):
            job: Any = KernelJob(plan, neighbours.pack(form, rows, labels, starts, [n]))
            answers.append(work.objective.minimise(job, work.goal)[0])
        apart = float(np.linalg.norm(answers[0] - answers[1]))
        assert apart <= least
        reached = max(reached, apart / least)
    assert reached > 0.4  # the pairs do try
