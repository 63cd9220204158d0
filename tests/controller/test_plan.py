# SPDX-License-Identifier: PostgreSQL
"""Plans: decided from public numbers, with noise calibrated to the run's own sensitivity."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import itertools
import json
import math
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

from helpers import neighbours, oracles
from helpers.plans import decide
from pg_dpml.errors import GuaranteeError, SpecError
from pg_dpml.methods import bolt_on
from pg_dpml.methods.bolt_on import BoltOn
from pg_dpml.privacy import gaussian, resolution
from pg_dpml.privacy.cost import Accounting
from pg_dpml.runs.planning import plan_problem
from pg_dpml.spec.privacy import PrivacySpec
from pg_dpml.spec.relation import Relation
from pg_dpml.training.method import method_options, private_methods
from pg_dpml.training.plan import Problem
from pg_dpml.training.spec import TrainSpec

PROBLEMS = {
    "logistic": Problem(90, 4, 1, "binary"),
    "huber_svm": Problem(90, 4, 1, "binary"),
    "squared": Problem(90, 4, 1, "regression"),
    "softmax": Problem(90, 4, 3, "multiclass"),
}
ADULT = Problem(30_000, 105, 1, "binary")
ONE = PrivacySpec(1.0)


def bolt(problem: Problem = ADULT, privacy: PrivacySpec = ONE, **training: Any) -> Any:
    return decide(problem, privacy, TrainSpec(method="bolt-on", **training))


def sensitivity(plan: Any) -> float:
    assert plan.noise is not None
    return float(plan.noise.sensitivity)


def brute_force(plan: Any) -> float:
    """The oracle's sensitivity of a plan."""
    sgd, problem = plan.work, plan.problem
    assert plan.guarantee is not None
    lipschitz = {"logistic": 1.0, "huber_svm": 1.0, "squared": math.inf, "softmax": math.sqrt(2.0)}
    smoothness = {"logistic": 0.25, "huber_svm": 0.5 / sgd.loss.huber_h, "squared": 1.0, "softmax": 0.5}
    kind = sgd.loss.kind
    change = min(lipschitz[kind], sgd.loss.clip)
    if plan.guarantee.relation is Relation.REPLACE_ONE:
        change *= 2.0
    step = oracles.schedule(
        sgd.schedule.kind,
        step_size=sgd.schedule.step_size,
        offset=problem.n_units**sgd.exponent,
        lambda_=sgd.lambda_,
        max_step=1.0 / (smoothness[kind] + sgd.lambda_),
    )
    return oracles.sensitivity(
        step,
        smoothness=smoothness[kind],
        lambda_=sgd.lambda_,
        gradient_change=change,
        n_rows=problem.n_units,
        passes=sgd.passes,
        batch_size=sgd.batch_size,
        average_from=sgd.average_from,
        fresh_order=sgd.fresh_order,
    )


@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize("loss", PROBLEMS)
@pytest.mark.parametrize("schedule", neighbours.SCHEDULES)
def test_sensitivity_is_that_of_brute_force(schedule: str, loss: str, relation: Relation) -> None:
    options = itertools.product((0.0, 0.02), (7, 50, 200), ("none", "all", "tail"), (False, True))
    for lambda_, batch_size, average, fresh_order in options:
        if schedule == "strongly_convex" and lambda_ == 0.0:
            continue
        plan = bolt(
            PROBLEMS[loss],
            PrivacySpec(1.0, 1e-6, relation),
            loss=loss,
            schedule=schedule,
            lambda_=lambda_,
            batch_size=batch_size,
            average=average,
            tail=0.3 if average == "tail" else None,
            fresh_order=fresh_order,
            passes=3,
        )
        expected = brute_force(plan)
        assert expected * (1.0 - 1e-12) <= sensitivity(plan) <= expected * (1.0 + 1e-11)


@pytest.mark.parametrize("loss", ["logistic", "huber_svm"])
def test_one_vs_all_is_one_joint_release(loss: str) -> None:
    """Sensitivity sqrt K times that of one model, and one noise for the whole matrix."""
    training: dict[str, Any] = {
        "loss": loss,
        "clip": 0.4,
        "step_size": 0.05,
        "schedule": "constant",
        "batch_size": 7,
    }
    single = bolt(PROBLEMS[loss], passes=2, **training)
    joint = bolt(PROBLEMS["softmax"], passes=2, **training)
    assert sensitivity(joint) == pytest.approx(math.sqrt(3.0) * sensitivity(single), rel=1e-12)
    assert joint.noise is not None
    assert joint.noise.n_weights == 12


def test_units_of_several_rows_multiply_the_sensitivity() -> None:
    training: dict[str, Any] = {"passes": 2, "step_size": 0.05, "schedule": "constant", "batch_size": 7}
    one = bolt(PROBLEMS["logistic"], **training)
    several = bolt(dataclasses.replace(PROBLEMS["logistic"], unit="id", max_rows_per_unit=4), **training)
    assert sensitivity(several) == pytest.approx(4.0 * sensitivity(one), rel=1e-12)
    assert several.work.smoothness == 4.0 * one.work.smoothness
    assert several.work.schedule.max_step == pytest.approx(one.work.schedule.max_step / 4.0)
    assert several.work.options(90)["max_rows_per_unit"] == 4
    assert "max_rows_per_unit" not in one.work.options(90)


def test_a_clip_sets_the_sensitivity() -> None:
    for loss, clip in itertools.product(("logistic", "huber_svm", "squared"), (0.1, 0.5, 0.9)):
        plan = bolt(PROBLEMS[loss], loss=loss, clip=clip, passes=2, batch_size=7)
        assert sensitivity(plan) == pytest.approx(brute_force(plan), rel=1e-11)
    wide = bolt(PROBLEMS["logistic"], clip=5.0, passes=1, step_size=0.1, batch_size=50)
    assert sensitivity(wide) == pytest.approx(2.0 * 1.0 / 50 * 0.1, rel=1e-9)  # L = min(1, clip)


@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_noise_is_calibrated_to_the_sensitivity(delta: float) -> None:
    plan = bolt(privacy=PrivacySpec(0.5, delta))
    noise = plan.noise
    assert noise is not None
    assert noise.n_weights == 105
    assert noise.calibrated_sensitivity >= noise.sensitivity + noise.grid * math.sqrt(105)
    assert noise.calibrated_sensitivity <= noise.sensitivity * (1.01 + 2.0**-20)
    if delta:
        assert noise.kind == "gaussian"
        assert noise.scale >= noise.calibrated_sensitivity / gaussian.gaussian_mu(0.5, delta)
    else:
        assert noise.kind == "k-norm"
        assert noise.scale >= noise.calibrated_sensitivity / 0.5


@pytest.mark.parametrize("loss", PROBLEMS)
def test_pure_privacy_reports_the_samplers_precision(loss: str) -> None:
    problem = PROBLEMS[loss]
    plan = bolt(problem, PrivacySpec(1.0, 0.0), loss=loss)
    assert plan.noise is not None
    assert plan.guarantee is not None
    assert (plan.noise.kind, plan.noise.n_weights) == ("k-norm", problem.n_weights)
    assert plan.guarantee.delta == resolution.sampler_delta(problem.n_weights)


@pytest.mark.parametrize("batch_size", [1, 7, 50, 300])
@pytest.mark.parametrize("passes", [1, 5])
def test_strongly_convex_bound_whatever_the_batch(batch_size: int, passes: int) -> None:
    """D / (lambda n), D = 2 L = 1 with the clip at 1/2; it is not divided by b once more."""
    problem = Problem(30_000, 5, 1, "binary")
    plan = bolt(problem, schedule="strongly_convex", lambda_=0.01, batch_size=batch_size, passes=passes)
    assert 0.99 / (0.01 * 30_000) <= sensitivity(plan) <= 1.0 / (0.01 * 30_000) * (1.0 + 1e-9)


@pytest.mark.parametrize("loss", PROBLEMS)
@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_the_relation_halves_the_sensitivity(loss: str, delta: float) -> None:
    training = {"loss": loss, "passes": 2, "step_size": 0.05, "schedule": "constant", "batch_size": 7}
    replace = bolt(PROBLEMS[loss], PrivacySpec(1.0, delta, Relation.REPLACE_ONE), **training)
    remove = bolt(PROBLEMS[loss], PrivacySpec(1.0, delta, Relation.ADD_REMOVE), **training)
    assert sensitivity(replace) == 2.0 * sensitivity(remove)


@pytest.mark.parametrize("lambda_", [None, 0.0])
def test_strongly_convex_steps_need_a_regulariser(lambda_: float | None) -> None:
    with pytest.raises(SpecError, match="strongly_convex needs lambda > 0"):
        bolt(schedule="strongly_convex", lambda_=lambda_)


def test_defaults_come_from_public_numbers_alone() -> None:
    public = ["n_units", "n_features", "n_outputs", "task", "unit", "max_rows_per_unit", "budget"]
    public += ["most_pieces", "pieces", "intercept", "sparse", "shards"]
    assert [field.name for field in dataclasses.fields(Problem)] == public
    assert [field.name for field in dataclasses.fields(Accounting)] == ["rule", "relation"]
    assert list(inspect.signature(BoltOn().plan).parameters) == ["problem", "privacy", "options"]
    assert bolt() == bolt()


@pytest.mark.parametrize("epsilon", [0.01, 0.1, 1.0, 8.0])
@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize("delta", [None, 0.0])
def test_default_total_step_makes_the_noise_in_a_score_a_constant(
    epsilon: float, relation: Relation, delta: float | None
) -> None:
    plan = bolt(privacy=PrivacySpec(epsilon, delta, relation))
    assert plan.noise is not None
    assert plan.work.schedule.kind == "constant"
    assert 1 <= plan.work.passes <= bolt_on.MOST_PASSES
    assert plan.noise.score_stddev <= bolt_on.SCORE_NOISE * 1.01
    if (
        plan.work.schedule.step_size <= plan.work.schedule.max_step
    ):  # not cut short by MOST_PASSES and the cap
        assert plan.noise.score_stddev == pytest.approx(bolt_on.SCORE_NOISE, rel=0.01)
    assert plan.work.loss.clip == 0.5
    if epsilon > 0.01:  # at 0.01 and delta = 0 the run is too short, and says so
        assert not plan.warnings


@pytest.mark.parametrize("loss", PROBLEMS)
@pytest.mark.parametrize("schedule", neighbours.SCHEDULES)
@pytest.mark.parametrize("lambda_", [0.001, 0.3, 100.0])
def test_no_step_exceeds_its_cap(loss: str, schedule: str, lambda_: float) -> None:
    falling = schedule in ("decreasing", "sqrt_decreasing")
    sized = schedule in ("constant", "inverse_sqrt")
    own: dict[str, Any] = ({"exponent": 0.0} if falling else {}) | ({"step_size": 1e9} if sized else {})
    plan = bolt(PROBLEMS[loss], loss=loss, schedule=schedule, lambda_=lambda_, **own)
    cap = 1.0 / (plan.work.loss.smoothness + lambda_)
    assert all(plan.work.schedule.step(t) <= cap for t in (1, 2, 3, 10, 1000))


@pytest.mark.parametrize(
    ("method", "given", "belongs"),
    [
        ("bolt-on", {"step_size": 1.0, "schedule": "decreasing"}, "schedule constant or inverse_sqrt"),
        ("bolt-on", {"step_size": 1.0, "lambda_": 0.1, "schedule": "strongly_convex"}, "schedule constant"),
        ("bolt-on", {"exponent": 0.3}, "schedule decreasing or sqrt_decreasing, not to constant"),
        ("bolt-on", {"tail": 0.3}, "average = tail, not to none"),
        ("noiseless", {"exponent": 0.3}, "schedule decreasing or sqrt_decreasing, not to inverse_sqrt"),
        ("noiseless", {"tail": 0.3, "tolerance": 0.0}, "average = tail, not to none"),
        ("dp-gd", {"tail": 0.3, "average": "all"}, "average = tail, not to all"),
    ],
)
def test_a_value_that_would_change_nothing_is_refused(
    method: str, given: dict[str, Any], belongs: str
) -> None:
    name = next(iter(given))
    with pytest.raises(SpecError, match=f"^{name} belongs to {belongs}.*leave {name} out"):
        decide(ADULT, None if method == "noiseless" else ONE, TrainSpec(method, **given))


def test_a_plan_says_where_its_cap_shortens_steps() -> None:
    (_, capped), (_, free) = (bolt(step_size=size).work.lines()[1] for size in (9.0, 1.0))
    assert "first step 4 (no step is longer: the cap 1/(beta + lambda) is below step_size 9)" in capped
    assert "cap" not in free


def test_passes_are_fixed_beforehand() -> None:
    """A convergence test in a private run would let neighbours stop at different passes."""
    given: list[dict[str, Any]] = [{}, {"passes": 7}, {"passes": 3, "batch_size": 5}]
    for training in given:
        plan = bolt(**training)
        assert plan.private
        assert plan.work.passes == training.get("passes", bolt().work.passes)
        asked = MagicMock(return_value=(np.zeros(3), 1))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(bolt_on, "run_passes", asked)
            patch.setattr(bolt_on, "release", lambda plan, weights: weights)
            plan.run(None)
        asked.assert_called_once_with(None, plan.work)  # no tolerance


@pytest.mark.parametrize("method", private_methods())
@pytest.mark.parametrize("delta", [None, 0.0])
def test_a_plan_says_whether_its_passes_depend_on_the_rows(method: str, delta: float | None) -> None:
    """Requests need the owner's word for those: bolt-on with lambda, and all objective perturbation."""
    problems = [ADULT, Problem(30_000, 5, 1, "regression"), Problem(30_000, 5, 3, "multiclass")]
    lambdas = (None, 1e-3) if method in method_options()["lambda_"] else (None,)
    for problem, lambda_ in itertools.product(problems, lambdas):
        training = TrainSpec(method=method, lambda_=lambda_)
        with contextlib.suppress(SpecError, GuaranteeError):  # which refuse the combination
            plan = plan_problem(problem, PrivacySpec(1.0, delta), training)
            certified = method in ("objpert", "amp", "amp-hf") or (
                method == "bolt-on" and lambda_ is not None
            )
            assert (plan.work.passes is None) == certified


@pytest.mark.parametrize(
    ("privacy", "training", "words"),
    [
        (PrivacySpec(1.0, 1e-4), {}, ["delta = 0.0001", "above 1/n", "below 1/n"]),
        (PrivacySpec(21.0), {}, ["epsilon = 21", "next to nothing"]),
        (PrivacySpec(0.001), {"passes": 10, "step_size": 1.0}, ["noise in a row's score", "lambda"]),
    ],
)
def test_warnings(privacy: PrivacySpec, training: dict[str, Any], words: list[str]) -> None:
    (warning,) = bolt(privacy=privacy, **training).warnings
    for word in words:
        assert word in warning


def test_no_warnings_without_reason() -> None:
    assert bolt().warnings == ()
    assert bolt(privacy=PrivacySpec(20.0, 1.0 / 30_000)).warnings == ()


@pytest.mark.parametrize(
    ("problem", "training", "words"),
    [
        (PROBLEMS["logistic"], {"loss": "softmax"}, ["binary", "logistic or huber_svm", "softmax"]),
        (PROBLEMS["logistic"], {"loss": "squared"}, ["binary", "squared"]),
        (PROBLEMS["softmax"], {"loss": "squared"}, ["multiclass", "softmax", "squared"]),
        (PROBLEMS["squared"], {"loss": "huber_svm"}, ["regression", "squared", "huber_svm"]),
        (PROBLEMS["softmax"], {"clip": 0.5}, ["clip", "softmax"]),
    ],
)
def test_losses_fit_the_task(problem: Problem, training: dict[str, Any], words: list[str]) -> None:
    for planner in (bolt, noiseless):
        with pytest.raises(SpecError) as refusal:
            planner(problem, **training)
        for word in words:
            assert word in str(refusal.value)


def test_a_run_that_rounding_would_spoil_is_refused() -> None:
    with pytest.raises(GuaranteeError, match="rounding") as refusal:
        bolt(Problem(10**5, 2**20, 1, "binary"), passes=1000, batch_size=1, step_size=1e-3, radius=1e9)
    assert refusal.value.exit_code == 5


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("n_rows", [10**6, 10**7, 10**8])
def test_defaults_serve_large_tables(n_rows: int, epsilon: float) -> None:
    """Long runs are kept in a ball, so that their rounding stays within its allowance."""
    plan = bolt(Problem(n_rows, 51, 1, "binary"), PrivacySpec(epsilon))
    assert plan.noise is not None
    assert plan.noise.score_stddev <= 0.41
    assert math.isinf(plan.work.radius) or plan.work.options(n_rows)["radius"] == 1000.0


def test_a_run_too_short_to_learn_is_warned_of() -> None:
    short = bolt(Problem(500, 5, 1, "binary"), PrivacySpec(0.01, 1e-6))
    assert any("too little to learn" in text for text in short.warnings)
    empty = bolt(Problem(0, 5, 1, "binary"), PrivacySpec(1.0, 1e-6))
    assert any("empty" in text for text in empty.warnings)
    assert not bolt(Problem(40_000, 50, 1, "binary"), PrivacySpec(1.0)).warnings


@pytest.mark.parametrize("task", ["binary", "regression", "multiclass"])
@pytest.mark.parametrize("delta", [None, 0.0])
@pytest.mark.parametrize("n_rows", [0, 1, 2, 3])
def test_tiny_tables(n_rows: int, delta: float | None, task: str) -> None:
    plan = bolt(Problem(n_rows, 3, 3 if task == "multiclass" else 1, task), PrivacySpec(1.0, delta))
    assert plan.noise is not None
    assert plan.guarantee is not None
    assert 0.0 < plan.guarantee.delta < 1.0
    assert (plan.noise.scale > 0.0) == (n_rows > 0)  # an empty table's model is a constant
    json.dumps(plan.work.options(n_rows), allow_nan=False)


@pytest.mark.parametrize(
    ("average", "tail", "first"), [("none", 0.5, 0), ("all", 0.5, 1), ("tail", 0.1, 163)]
)
def test_averages(average: str, tail: float, first: int) -> None:
    plan = bolt(
        Problem(900, 3, 1, "binary"),
        batch_size=10,
        passes=2,
        average=average,
        tail=tail if average == "tail" else None,
    )
    assert plan.work.average_from == first


def noiseless(problem: Problem = ADULT, **training: Any) -> Any:
    return decide(problem, None, TrainSpec(method="noiseless", **training))


def test_noiseless_is_stamped_not_private() -> None:
    plan = noiseless(tolerance=0.01)
    assert (plan.private, plan.guarantee, plan.noise, plan.tolerance) == (False, None, None, 0.01)
    assert plan.work.loss.clip == math.inf
    assert noiseless(passes=3).work.passes == 3


def test_an_average_needs_a_known_number_of_passes() -> None:
    with pytest.raises(SpecError, match=r"average.*tolerance = 0"):
        noiseless(average="all")
    assert noiseless(Problem(900, 3, 1, "binary"), average="all", tolerance=0.0).work.average_from == 1


def test_options_hold_public_numbers_only() -> None:
    plan = bolt(
        PROBLEMS["softmax"],
        radius=3.0,
        average="all",
        lambda_=0.1,
        schedule="strongly_convex",
        batch_size=50,
    )
    assert plan.work.options(90) == {
        "loss": "softmax",
        "classes": 3,
        "lambda": 0.1,
        "batch_size": 50,
        "schedule": "strongly_convex",
        "rows": 90,
        "radius": 3.0,
        "average_from": 1,
    }
    plan = bolt(
        PROBLEMS["huber_svm"],
        loss="huber_svm",
        huber_h=0.2,
        clip=0.5,
        schedule="decreasing",
        exponent=0.25,
        batch_size=50,
    )
    assert plan.work.options(90) == {
        "loss": "huber_svm",
        "huber_h": 0.2,
        "clip": 0.5,
        "lambda": 0.0,
        "batch_size": 50,
        "schedule": "decreasing",
        "exponent": 0.25,
        "rows": 90,
    }


def test_the_bend_of_a_loss_without_one_is_refused() -> None:
    with pytest.raises(SpecError, match="huber_h does not go with loss = logistic"):
        bolt(PROBLEMS["logistic"], huber_h=0.2)
