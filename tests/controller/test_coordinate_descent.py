# SPDX-License-Identifier: PostgreSQL
"""Plans of scd, dp-scd, seq-dp-scd and primal-dp-scd: noise, steps and refusals from public numbers."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from helpers.plans import decide
from pg_dpml.errors import GuaranteeError, SpecError
from pg_dpml.methods.primal_coordinate_descent import PrimalDescent
from pg_dpml.privacy import gaussian
from pg_dpml.privacy.noise.coordinates import CoordinateNoise, DualNoise
from pg_dpml.reports import plan_report
from pg_dpml.runs.planning import alternatives
from pg_dpml.spec.privacy import PrivacySpec
from pg_dpml.spec.relation import Relation
from pg_dpml.training.plan import Plan, Problem
from pg_dpml.training.scd import Scd
from pg_dpml.training.spec import TrainSpec

ADULT = Problem(39_118, 106, 1, "binary")
HOUSES = Problem(16_000, 9, 1, "regression")
MNIST = Problem(56_046, 785, 10, "multiclass")
DUAL = ("dp-scd", "seq-dp-scd")
PRIVATE = (*DUAL, "primal-dp-scd")
OTHERS = {"scd": "lbfgs or noiseless"} | dict.fromkeys(PRIVATE, "auto, dp-gd or dp-sgd")


def planned(
    method: str, problem: Problem = ADULT, privacy: PrivacySpec | None = None, **options: Any
) -> tuple[Plan, Scd, DualNoise]:
    decided = decide(problem, privacy or PrivacySpec(0.5), TrainSpec(method=method, **options))
    assert isinstance(decided.work, Scd)
    assert isinstance(decided.noise, DualNoise)
    return decided, decided.work, decided.noise


def primal(
    problem: Problem = ADULT, privacy: PrivacySpec | None = None, **options: Any
) -> tuple[PrimalDescent, CoordinateNoise]:
    decided = decide(problem, privacy or PrivacySpec(0.5), TrainSpec(method="primal-dp-scd", **options))
    assert isinstance(decided.work, PrimalDescent)
    assert isinstance(decided.noise, CoordinateNoise)
    return decided.work, decided.noise


@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
@pytest.mark.parametrize("problem", [ADULT, HOUSES, Problem(40, 3, 1, "binary")])
def test_defaults_of_dp_scd(problem: Problem, epsilon: float, relation: Relation) -> None:
    """L = a g kappa P, or what sampling needs, P where both are equal; lambda = L/(r n), C = g/(1 + r)."""
    _, scd, noise = planned("dp-scd", problem, PrivacySpec(epsilon, 1e-5, relation))
    n = problem.n_units
    kappa = relation.gradient_change(1.0) / gaussian.gaussian_mu(epsilon, 1e-5)
    reach = 0.25 if problem.task == "regression" else 0.5
    gain = (500.0 * kappa / n) ** 0.25
    passes = scd.passes
    assert passes == math.ceil(min(max((n / (gain * reach * kappa**3)) ** 0.5, 20.0), 50.0))
    wanted = max(gain * reach * kappa * passes, n / (kappa * kappa * passes))
    assert scd.batch_size == math.ceil(min(wanted, n))
    assert scd.batch_size / (scd.lambda_ * n) == pytest.approx(25.0)
    assert scd.update_clip == pytest.approx(reach / 26.0)
    assert scd.sampling == noise.sampling == scd.batch_size / n
    assert noise.steps == passes * math.ceil(n / scd.batch_size)
    assert scd.average_from == passes - math.ceil(0.25 * passes) + 1
    assert scd.noise_scale == noise.scale > 0.0
    assert not scd.sequential
    if scd.batch_size < n:
        assert noise.scale >= noise.sensitivity / relation.gradient_change(1.0)


def test_what_is_given_goes_into_the_other_defaults_of_dp_scd() -> None:
    _, scd, _ = planned("dp-scd", batch_size=100, lambda_=0.01)
    assert (scd.batch_size, scd.lambda_) == (100, 0.01)
    assert scd.update_clip == pytest.approx(0.5 / (1.0 + 100 / (0.01 * ADULT.n_units)))
    _, scd, _ = planned("dp-scd", batch_size=100)
    assert scd.lambda_ == pytest.approx(100 / (25.0 * ADULT.n_units))
    _, scd, noise = planned("dp-scd", update_clip=0.5, passes=3, average="none")
    assert (scd.update_clip, scd.passes, scd.average_from) == (0.5, 3, 0)
    assert noise.sensitivity == 1.0
    _, scd, _ = planned("dp-scd", Problem(10**9, 9, 1, "binary"), PrivacySpec(2e-5, 1e-12))
    assert scd.batch_size == 2**21
    few, many = (Problem(4_000, 9, 1, "binary", unit, m) for unit, m in ((None, 1), ("who", 3)))
    sizes = [planned("dp-scd", problem, PrivacySpec(0.3, 1e-5))[1].batch_size for problem in (few, many)]
    assert sizes[1] == pytest.approx(3.0**1.25 * sizes[0], rel=0.1)  # kappa is three times as large


def test_options_of_the_aggregate_are_public_numbers() -> None:
    unit = Problem(5_000, 20, 1, "binary", "person", 3)
    _, scd, noise = planned("dp-scd", unit, loss="huber_svm", huber_h=0.25, batch_size=50, dual_noise=True)
    assert scd.options(5_000) == {
        "loss": "huber_svm",
        "huber_h": 0.25,
        "lambda": scd.lambda_,
        "rows": 5_000,
        "batch_size": 50,
        "max_rows_per_unit": 3,
        "update_clip": scd.update_clip,
        "dual_noise": True,
        "noise": "gaussian",
        "noise_scale": noise.scale,
        "sampling": 0.01,
        "steps": 100,
    }
    _, scd, noise = planned("seq-dp-scd", batch_size=4)
    assert scd.options(ADULT.n_units) == {
        "loss": "logistic",
        "lambda": scd.lambda_,
        "rows": ADULT.n_units,
        "batch_size": 4,
        "sequential": True,
        "update_clip": scd.update_clip,
        "dual_noise": True,
        "noise": "gaussian",
        "noise_scale": noise.scale,
    }
    decided = decide(ADULT, None, TrainSpec("scd", loss="hinge", lambda_=0.5))
    assert decided.work.options(ADULT.n_units) == {
        "loss": "hinge",
        "lambda": 0.5,
        "rows": ADULT.n_units,
        "batch_size": 1,
        "exact": True,
        "any_order": True,
    }
    assert (decided.tolerance, decided.work.passes, decided.noise) == (1e-8, 1000, None)


@pytest.mark.parametrize("method", DUAL)
def test_an_empty_table_takes_no_step(method: str) -> None:
    _, scd, noise = planned(method, replace(ADULT, n_units=0))
    assert (noise.steps, noise.scale, scd.noise_scale) == (0, 0.0, 0.0)
    assert "noise" not in scd.options(0)
    descent, coordinate_noise = primal(replace(ADULT, n_units=0))
    assert coordinate_noise.gradient is not None
    assert coordinate_noise.gradient.scale == 0.0
    assert descent.steps == coordinate_noise.steps


@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize("method", DUAL)
def test_units_of_several_rows_multiply_the_sensitivity(method: str, relation: Relation) -> None:
    privacy = PrivacySpec(0.5, relation=relation)
    options: dict[str, Any] = {"update_clip": 0.1, "batch_size": 40, "lambda_": 0.01}
    _, _, row = planned(method, privacy=privacy, **options)
    unit_problem = Problem(ADULT.n_units, 106, 1, "binary", "household", 4)
    _, scd, unit = planned(method, unit_problem, privacy, **options)
    assert scd.max_rows_per_unit == 4
    if method == "dp-scd":
        assert row.sensitivity == pytest.approx(relation.gradient_change(0.1))
        assert unit.sensitivity == pytest.approx(4.0 * row.sensitivity)
    else:
        assert row.sensitivity == pytest.approx(0.2 * math.sqrt(40 * 41))
        assert unit.sensitivity == pytest.approx(0.2 * math.sqrt(160 * 161))
        assert unit.released_duals == 160


def test_the_last_batch_of_few_rows_has_no_more_than_there_are() -> None:
    _, _, noise = planned("seq-dp-scd", Problem(7, 3, 1, "binary"), batch_size=7)
    assert noise.released_duals == 7
    with pytest.raises(SpecError, match="batch_size must be at most the number of rows, 7, not 8"):
        planned("seq-dp-scd", Problem(7, 3, 1, "binary"), batch_size=8)


def test_noise_in_a_score_is_that_of_v_over_lambda_n() -> None:
    for method in DUAL:
        _, scd, noise = planned(method)
        whole = math.sqrt(noise.steps) * noise.scale / (scd.lambda_ * ADULT.n_units)
        assert noise.score_stddev == pytest.approx(whole)
    _, steps = primal(passes=4, coordinates=10)
    assert steps.gradient is not None
    assert steps.score_stddev == pytest.approx(2.0 * steps.gradient.scale)


@pytest.mark.parametrize("coordinates", [1, 10, 106])
def test_steps_on_coordinates(coordinates: int) -> None:
    """Noise of about 1 in a score by default, however many coordinates a step has."""
    descent, noise = primal(coordinates=coordinates)
    assert descent.steps == noise.steps == descent.passes == 10 * math.ceil(106 / coordinates)
    assert noise.score_stddev == pytest.approx(1.0, rel=0.06)
    assert descent.curvature == 0.25
    assert primal(lambda_=0.5, loss="huber_svm")[0].curvature == 1.5
    with pytest.raises(SpecError, match="coordinates must be at most the number of features, 106"):
        primal(coordinates=107)


@pytest.mark.parametrize("method", [*PRIVATE, "scd"])
def test_several_classes_are_refused_with_the_methods_that_take_them(method: str) -> None:
    privacy = PrivacySpec(1.0) if method in PRIVATE else None
    with pytest.raises(SpecError, match=f"method = {method} takes labels of two classes.*{OTHERS[method]}"):
        decide(MNIST, privacy, TrainSpec(method))


@pytest.mark.parametrize("lambda_", [0.0, 1e-300])
@pytest.mark.parametrize("method", [*DUAL, "scd"])
def test_lambda_must_be_well_above_zero(method: str, lambda_: float) -> None:
    privacy = PrivacySpec(1.0) if method in PRIVATE else None
    with pytest.raises(SpecError, match=f"lambda must be at least 1e-100 for method = {method}"):
        decide(ADULT, privacy, TrainSpec(method, lambda_=lambda_))


@pytest.mark.parametrize("method", PRIVATE)
def test_noise_without_a_delta_is_refused(method: str) -> None:
    with pytest.raises(GuaranteeError, match="delta = 0 has no Gaussian noise"):
        decide(ADULT, PrivacySpec(1.0, 0.0), TrainSpec(method))


def test_losses() -> None:
    for method in DUAL:
        for loss in ("logistic", "huber_svm", "hinge"):
            assert planned(method, loss=loss)[1].loss.kind == loss
        assert planned(method, HOUSES)[1].loss.kind == "squared"
        with pytest.raises(SpecError, match="must be squared, not hinge"):
            planned(method, HOUSES, loss="hinge")
    with pytest.raises(SpecError, match=r"does not take loss = hinge: .* method = dp-scd$"):
        primal(loss="hinge")
    with pytest.raises(SpecError, match="tail belongs to average = tail"):
        planned("dp-scd", average="all", tail=0.5)


@pytest.mark.parametrize("method", [*PRIVATE, "scd"])
def test_plans_as_text_and_json(method: str) -> None:
    decided = decide(ADULT, PrivacySpec(1.0) if method in PRIVATE else None, TrainSpec(method))
    text = plan_report.plan_text(decided)
    assert f"Method      {method}, loss logistic" in text
    record = json.loads(json.dumps(plan_report.plan_record(decided)))
    assert record["method"] == method
    assert ("NOT PRIVATE" in text) is (method == "scd")
    if method == "dp-scd":
        assert "noise that the same guarantee takes" in " ".join(text.split())
        assert set(record["noise"]["multipliers"]) == {"sum", "published"}


def test_little_to_learn_from_is_said() -> None:
    decided, _, _ = planned("dp-scd", Problem(50, 3, 1, "binary"), PrivacySpec(0.5))
    assert any("is little to learn from" in warning for warning in decided.warnings)
    decided, _, _ = planned("dp-scd")
    assert decided.warnings == ()


def test_other_methods_have_them_beside_them() -> None:
    found = {one.method: one for one in alternatives(ADULT, PrivacySpec(1.0, 1e-6))}
    assert {*PRIVATE} <= set(found)
    assert all(found[name].plan is not None for name in PRIVATE)
    refusals = {one.method: one.refusal for one in alternatives(MNIST, PrivacySpec(1.0, 1e-6))}
    for name in PRIVATE:
        assert refusals[name] == "it takes labels of two classes, or numbers, not several classes"
