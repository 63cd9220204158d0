# SPDX-License-Identifier: PostgreSQL
"""Plans of scs13, bst14 and dp-sgd: noise, steps and refusals from public numbers."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from helpers.plans import decide
from pg_dpml.errors import GuaranteeError, SpecError
from pg_dpml.kernels import Schedule
from pg_dpml.privacy import gaussian, resolution
from pg_dpml.privacy.accounting import allocated, subsampled
from pg_dpml.privacy.noise import batches, growth
from pg_dpml.privacy.noise import steps as step_noise
from pg_dpml.privacy.noise.steps import StepNoise
from pg_dpml.reports import plan_report
from pg_dpml.spec.privacy import PrivacySpec
from pg_dpml.spec.relation import Relation
from pg_dpml.training.plan import Plan, Problem
from pg_dpml.training.sgd import Sgd
from pg_dpml.training.spec import TrainSpec

ADULT = Problem(39_118, 106, 1, "binary")
MNIST = Problem(56_046, 785, 10, "multiclass")
HOUSES = Problem(16_000, 9, 1, "regression")
COVERTYPE = Problem(498_010, 55, 1, "binary")
METHODS = ("scs13", "bst14", "dp-sgd")


def planned(
    method: str, problem: Problem = ADULT, privacy: PrivacySpec | None = None, **options: Any
) -> tuple[Plan, Sgd, StepNoise]:
    decided = decide(problem, privacy or PrivacySpec(0.5), TrainSpec(method=method, **options))
    assert isinstance(decided.work, Sgd)
    assert isinstance(decided.noise, StepNoise)
    return decided, decided.work, decided.noise


@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize("passes", [1, 4, 10])
@pytest.mark.parametrize("batch_size", [1, 10, 50])
def test_passes_of_scs13_compose_exactly(batch_size: int, passes: int, relation: Relation) -> None:
    """A unit is in one batch of each pass: k releases of mu / sqrt k, whatever the batch size."""
    privacy = PrivacySpec(0.5, 1e-8, relation)
    _, sgd, noise = planned("scs13", privacy=privacy, passes=passes, batch_size=batch_size)
    change = 2.0 if relation is Relation.REPLACE_ONE else 1.0
    assert noise.sensitivity == change
    mu = math.sqrt(passes) * change / noise.scale
    wanted = gaussian.gaussian_mu(0.5, 1e-8)
    assert wanted * (1.0 - 1e-3) <= mu <= wanted
    mu = math.sqrt(passes) * noise.calibrated_sensitivity / noise.scale
    assert gaussian.gaussian_delta(0.5, mu) <= 1e-8
    assert noise.steps == sgd.steps(ADULT.n_units, passes) == passes * math.ceil(39_118 / batch_size)


@pytest.mark.parametrize("passes", [1, 7])
def test_pure_privacy_of_scs13(passes: int) -> None:
    decided, sgd, noise = planned("scs13", privacy=PrivacySpec(0.5, 0.0), passes=passes)
    assert noise.kind == sgd.noise == "k-norm"
    assert noise.scale >= passes * noise.calibrated_sensitivity / 0.5
    assert noise.scale == pytest.approx(passes * 2.0 / 0.5, rel=1e-2)
    assert noise.sum_stddev == noise.scale * math.sqrt(107)
    assert decided.guarantee is not None
    assert decided.guarantee.delta == resolution.sampler_delta(passes * 106)


def test_defaults_of_scs13_are_those_of_the_published_comparison() -> None:
    _, sgd, _ = planned("scs13")
    assert (sgd.batch_size, sgd.passes, sgd.average_from) == (50, 10, 0)
    assert [sgd.schedule.step(t) for t in (1, 4, 100)] == [1.0, 0.5, 0.1]
    _, sgd, _ = planned("scs13", lambda_=1e-3)
    assert [sgd.schedule.step(t) for t in (1, 4)] == pytest.approx([1000.0, 250.0])
    assert sgd.radius == pytest.approx(1000.0)
    assert sgd.options(100)["capped"] is False


@pytest.mark.parametrize(
    ("relation", "published", "advanced", "pld"),
    [(Relation.REPLACE_ONE, 96.0, 73.0, 3.83), (Relation.ADD_REMOVE, 48.0, 36.5, 2.02)],
)
def test_the_accounts_of_bst14_beside_each_other(
    relation: Relation, published: float, advanced: float, pld: float
) -> None:
    """n = 498,010, b = 50, k = 10, epsilon = 0.1, delta = 1/n^2."""
    decided, _, noise = planned("bst14", COVERTYPE, PrivacySpec(0.1, relation=relation))
    assert noise.multipliers == {
        "published": pytest.approx(published, abs=0.1),
        "advanced": pytest.approx(advanced, abs=0.05),
        "pld": pytest.approx(pld, abs=0.02),
    }
    assert noise.noise_multiplier == pytest.approx(pld, abs=0.02)
    text = " ".join(plan_report.plan_text(decided).split())
    assert f"{published:.2g} as published" in text.replace("96.1", "96").replace("48.0", "48")
    assert f"{advanced:.3g} by strong composition" in text
    record = json.loads(json.dumps(plan_report.plan_record(decided)))
    assert set(record["noise"]["multipliers"]) == {"published", "advanced", "pld"}
    _, _, noise = planned("bst14", COVERTYPE, PrivacySpec(0.1, relation=relation), accountant="advanced")
    assert noise.accountant == "advanced"
    assert noise.noise_multiplier == pytest.approx(advanced, abs=0.05)


def test_steps_of_bst14() -> None:
    _, sgd, noise = planned("bst14", radius=3.0)
    gradient = math.sqrt(106 * noise.scale**2 + 50.0**2)
    assert sgd.schedule.step(1) / 50 == pytest.approx(2.0 * 3.0 / gradient)
    assert sgd.schedule.step(9) == pytest.approx(sgd.schedule.step(1) / 3.0)
    assert sgd.radius == 3.0
    _, sgd, _ = planned("bst14", lambda_=0.01)
    assert sgd.schedule.step(7) == pytest.approx(1.0 / (0.01 * 7))
    assert sgd.radius == pytest.approx(100.0)
    _, sgd, _ = planned("bst14")
    assert sgd.radius == 10.0


@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize("method", ["bst14", "dp-sgd"])
def test_poisson_noise_gives_the_guarantee(method: str, relation: Relation) -> None:
    for problem in (ADULT, MNIST, HOUSES):
        privacy = PrivacySpec(0.7, 1e-9, relation)
        options = {"sampling": "poisson"} if method == "dp-sgd" else {}
        _, sgd, noise = planned(method, problem, privacy, **options)
        assert sgd.sampling == noise.sampling == sgd.batch_size / problem.n_units
        bound = noise.sensitivity / relation.gradient_change(1.0)
        room = noise.calibrated_sensitivity / noise.sensitivity
        assert 1.0 < room < 1.01
        assert noise.noise_multiplier == pytest.approx(noise.scale / bound)
        spent = subsampled.subsampled_gaussian_epsilon(
            noise.noise_multiplier / room, sgd.sampling, noise.steps, 1e-9, relation
        )
        assert 0.98 * 0.7 <= spent <= 0.7 * (1.0 + 1e-9)


@pytest.mark.parametrize("sampling", ["poisson", None])
def test_every_unit_in_every_batch_composes_exactly(sampling: str | None) -> None:
    _, sgd, noise = planned(
        "dp-sgd", batch_size=ADULT.n_units, passes=30, privacy=PrivacySpec(0.5, 1e-8), sampling=sampling
    )
    assert (sgd.sampling, noise.accountant, noise.steps) == (sampling and 1.0, "exact", 30)
    mu = math.sqrt(30) * noise.sensitivity / noise.scale
    assert mu == pytest.approx(gaussian.gaussian_mu(0.5, 1e-8), rel=1e-2)


@pytest.mark.parametrize("problem", [ADULT, MNIST])
@pytest.mark.parametrize("epsilon", [0.01, 0.1, 1.0, 10.0])
def test_default_steps_of_dp_sgd(problem: Problem, epsilon: float) -> None:
    """Noise of about 1 in a score, or steps that are as long as is safe."""
    _, sgd, noise = planned("dp-sgd", problem, PrivacySpec(epsilon))
    assert noise.steps == pytest.approx(500, abs=10)
    assert sgd.average_from == noise.steps - math.ceil(0.25 * noise.steps) + 1
    longest = 1.9 / sgd.loss.smoothness
    step = sgd.schedule.step(1)
    noise_of_last = step / 0.1 * math.sqrt(noise.steps) * noise.scale / sgd.batch_size
    assert step <= longest * (1.0 + 1e-12)
    assert noise_of_last == pytest.approx(1.0, rel=1e-9) or step == pytest.approx(longest)
    if problem.n_outputs > 1:
        assert noise.sensitivity == pytest.approx(2.0 * math.sqrt(0.9))
        assert sgd.options(10)["gradient_clip"] == pytest.approx(math.sqrt(0.9))
    else:
        assert noise.sensitivity == 1.0
        assert sgd.loss.clip == 0.5


@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize(
    ("privacy", "options", "drawn"),
    [
        ((1.0, 1e-9), {"passes": 1}, True),
        ((1.0, 1e-9), {"passes": 1, "batch_size": 4_000}, True),
        ((1.0, 1e-9), {"passes": 10}, False),
        ((0.1, 1e-9), {"passes": 3, "batch_size": 50}, False),
        ((0.02, 1e-6), {"passes": 3, "batch_size": 10_000}, True),
    ],
)
def test_dp_sgd_takes_the_batches_that_need_no_more_noise(
    privacy: tuple[float, float], options: dict[str, Any], drawn: bool, relation: Relation
) -> None:
    """By random allocation with one order, where its noise allows it; and as if they were asked for."""
    given = PrivacySpec(*privacy, relation)
    plan, sgd, noise = planned("dp-sgd", privacy=given, **options)
    poisson, allocation = (
        planned("dp-sgd", privacy=given, sampling=name, **options)[2] for name in ("poisson", "allocation")
    )
    assert (sgd.allocated, sgd.sampling is None, noise.allocations) == (drawn, drawn, int(drawn))
    assert sgd.fresh_order is False
    one_order = noise.multipliers["one_order"]
    assert (one_order <= noise.multipliers["poisson"] * 1.005) == drawn
    if drawn:
        assert noise.scale <= 1.005 * poisson.scale
        assert noise.noise_multiplier == pytest.approx(one_order, rel=1e-2)
    else:
        assert replace(noise, multipliers={}) == poisson
    assert noise.multipliers == pytest.approx(allocation.multipliers, rel=1e-9 if drawn else 0.05)
    assert all(noise.multipliers[name] >= least for name, least in allocation.multipliers.items())
    text = " ".join(plan_report.plan_text(plan).split())
    taken = "batches by random allocation, which" if drawn else "Poisson batches, since random allocation"
    assert f"Why {taken}" in text
    assert f"{one_order / noise.multipliers['poisson']:.2f}"[:3] in plan.reason
    for name in ("poisson", "one_order"):
        assert f"{noise.multipliers[name]:.3g} " in text


def test_dp_sgd_takes_poisson_batches_where_units_cannot_draw_theirs() -> None:
    """More than the server draws for, or more batches than are accounted for; a unit draws for its rows."""
    plan, sgd, _ = planned("dp-sgd", Problem(2**31, 5, 1, "binary"), PrivacySpec(1.0, 1e-12), passes=1)
    assert sgd.sampling is not None
    assert plan.reason.startswith("Poisson batches, since random allocation cannot run: ")
    many = Problem(allocated.MOST_BATCHES + 1, 5, 1, "binary")
    plan, sgd, _ = planned("dp-sgd", many, batch_size=1, passes=1)
    assert sgd.sampling is not None
    assert f"longer than {allocated.MOST_BATCHES:,}" in plan.reason
    plan, sgd, noise = planned("dp-sgd", Problem(39_118, 106, 1, "binary", "household", 4), passes=1)
    assert (sgd.allocated, noise.allocations, sgd.max_rows_per_unit) == (True, 1, 4)
    plan, _, noise = planned("dp-sgd", Problem(0, 5, 1, "binary"))
    assert (plan.reason, noise.steps) == ("", 0)


def test_schedules_of_dp_sgd() -> None:
    privacy = PrivacySpec(0.02)
    _, constant, _ = planned("dp-sgd", privacy=privacy)
    _, slowing, _ = planned("dp-sgd", privacy=privacy, schedule="inverse_sqrt")
    steps = constant.steps(ADULT.n_units, 10)
    lengths = [sum(sgd.schedule.step(t) for t in range(1, steps + 1)) for sgd in (constant, slowing)]
    assert lengths[1] == pytest.approx(lengths[0], rel=0.02)
    _, sgd, _ = planned("dp-sgd", schedule="strongly_convex", lambda_=0.1)
    assert sgd.schedule.step(3) == pytest.approx(1.0 / 0.3)
    for method in ("dp-sgd", "scs13"):
        with pytest.raises(SpecError, match="steps that are capped"):
            planned(method, schedule="decreasing")
        with pytest.raises(SpecError, match="needs lambda > 0"):
            planned(method, schedule="strongly_convex")
        with pytest.raises(SpecError, match="2/lambda"):
            planned(method, schedule="constant", step_size=30.0, lambda_=0.1)


@pytest.mark.parametrize("method", METHODS)
def test_units_of_several_rows_multiply_the_sensitivity(method: str) -> None:
    _, _, row = planned(method)
    _, sgd, unit = planned(method, Problem(39_118, 106, 1, "binary", "household", 4))
    assert unit.sensitivity == 4.0 * row.sensitivity
    assert unit.scale == pytest.approx(4.0 * row.scale, rel=1e-6)
    assert sgd.options(39_118)["max_rows_per_unit"] == 4
    assert sgd.batch_size == planned(method)[1].batch_size  # of units


@pytest.mark.parametrize("method", METHODS)
def test_clips(method: str) -> None:
    _, sgd, noise = planned(method, clip=0.2)
    assert (sgd.loss.clip, noise.sensitivity) == (0.2, 0.4)
    _, sgd, noise = planned(method, MNIST, clip=0.3)
    assert (sgd.gradient_clip, noise.sensitivity) == (0.3, 0.6)
    _, sgd, noise = planned(method, MNIST, clip=100.0)
    assert noise.sensitivity == pytest.approx(2.0 * math.sqrt(2.0))  # softmax's own bound
    _, sgd, noise = planned(method, HOUSES)
    assert (sgd.loss.clip, noise.sensitivity) == (0.5, 1.0)


@pytest.mark.parametrize("method", METHODS)
def test_more_privacy_is_more_noise(method: str) -> None:
    def scale(epsilon: float = 0.5, delta: float = 1e-9, **options: Any) -> float:
        return planned(method, privacy=PrivacySpec(epsilon, delta), batch_size=50, **options)[2].scale

    for noise in (
        [scale(epsilon=epsilon) for epsilon in (4.0, 1.0, 0.3, 0.1, 0.01)],
        [scale(delta=delta) for delta in (1e-4, 1e-7, 1e-10)],
        [scale(passes=passes) for passes in (1, 2, 5, 20)],
    ):
        assert noise == sorted(noise)
        assert len(set(noise)) == len(noise)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("n_units", [0, 1, 7, 49, 51, 10**9])
def test_any_number_of_rows(method: str, n_units: int) -> None:
    decided, sgd, noise = planned(method, Problem(n_units, 5, 1, "binary"), PrivacySpec(1.0, 1e-3))
    assert noise.steps == sgd.steps(n_units, sgd.passes)
    assert (sgd.noise is None) == (noise.scale == 0.0) == (n_units == 0)
    assert math.isfinite(noise.score_stddev)
    assert plan_report.plan_text(decided)


@pytest.mark.parametrize("method", ["bst14", "dp-sgd"])
@pytest.mark.parametrize("n_units", [2, 5, 10, 20, 100])
def test_few_rows_and_a_small_epsilon(method: str, n_units: int) -> None:
    for epsilon in (1e-3, 0.05):
        _, _, noise = planned(method, Problem(n_units, 20, 1, "binary"), PrivacySpec(epsilon))
        assert noise.scale > 0.0


def test_an_account_above_epsilon_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    found = subsampled.Accounted(1.0, 0.51, "pld", 0.1)
    monkeypatch.setattr(step_noise, "_pld", lambda *arguments: found)
    with pytest.raises(GuaranteeError, match=r"at most epsilon = 0\.5 over"):
        planned("dp-sgd", privacy=PrivacySpec(0.5, 1e-8))


@pytest.mark.parametrize("method", ["bst14", "dp-sgd"])
def test_no_delta_no_gaussian_noise(method: str) -> None:
    with pytest.raises(GuaranteeError, match="take method = bolt-on"):
        planned(method, privacy=PrivacySpec(1.0, 0.0))


@pytest.mark.parametrize("method", METHODS)
def test_a_delta_beyond_the_precision_of_the_noise_is_refused(method: str) -> None:
    with pytest.raises(GuaranteeError, match="precision of the noise"):
        planned(method, privacy=PrivacySpec(1.0, 1e-35))


def test_huge_batches_and_coarse_grids_are_refused() -> None:
    with pytest.raises(GuaranteeError, match="rounding of a batch"):
        planned("dp-sgd", Problem(10**8, 5, 1, "binary"), PrivacySpec(1.0, 1e-6), batch_size=10**8)
    with pytest.raises(GuaranteeError, match="too coarse a grid"):
        planned("scs13", Problem(1000, 10**6, 1, "binary"), PrivacySpec(1e-4, 1e-6))


def test_what_the_server_could_not_do_is_refused() -> None:
    """Before the charge: the run would fail after it."""
    wide = Problem(1000, 1000, 1, "binary", "patient", 2**19)
    for method in ("bst14", "dp-sgd"):
        with pytest.raises(GuaranteeError, match="take a smaller max_rows_per_unit"):
            planned(method, wide)
        planned(method, replace(wide, max_rows_per_unit=2**18))
        with pytest.raises(GuaranteeError, match=r"2,147,483,648 steps is longer.*take a larger batch_size"):
            planned(method, Problem(2**31, 3, 1, "binary"), PrivacySpec(1.0, 1e-3), batch_size=1, passes=2)
        with pytest.raises(GuaranteeError, match=r"below 1e-271.*take a larger clip"):
            planned(method, HOUSES, clip=1e-280)
    planned("scs13", wide)
    planned("bst14", HOUSES, clip=1e-200)  # steps whose square is not finite
    with pytest.raises(GuaranteeError, match=r"below 1e-271.*take a larger clip"):
        planned("scs13", HOUSES, clip=1e-290)
    huge = Problem(2**31, 3, 1, "binary")
    _, _, noise = planned("bst14", huge, PrivacySpec(1.0, 1e-3), batch_size=2, passes=1)
    assert noise.steps == 2**30


def test_options_of_others_are_refused() -> None:
    with pytest.raises(SpecError, match="accountant belongs to method bst14"):
        TrainSpec(method="dp-sgd", accountant="pld")
    with pytest.raises(SpecError, match="step_size belongs to"):
        TrainSpec(method="bst14", step_size=1.0)
    with pytest.raises(SpecError, match="accountant must be one of pld, advanced"):
        TrainSpec(method="bst14", accountant="moments")
    for method in METHODS:
        for average in ("none", "all"):
            with pytest.raises(SpecError, match=f"tail belongs to average = tail, not to {average}"):
                planned(method, average=average, tail=0.5)
        planned(method, average="tail", tail=0.5)
    planned("dp-sgd", tail=0.5)
    with pytest.raises(SpecError, match="tail belongs to average = tail, not to none"):
        planned("bst14", tail=0.5)
    for method, schedule in (("scs13", None), ("scs13", "strongly_convex"), ("dp-sgd", "strongly_convex")):
        with pytest.raises(SpecError, match="step_size belongs to schedule constant or inverse_sqrt, not to"):
            planned(method, step_size=1.0, lambda_=0.1, schedule=schedule)
    planned("dp-sgd", step_size=1.0, lambda_=0.1)


@pytest.mark.parametrize(("n", "q"), [(1000, 0.05), (20, 0.5), (10**6, 1e-6), (50, 1.0)])
def test_largest_batch(n: int, q: float) -> None:
    for probability in (0.1, 1e-6, 1e-15):
        most = batches.largest_batch(n, q, probability)
        assert binom.sf(most, n, q) <= probability


@pytest.mark.parametrize("average", [0.0, 0.25, 1.0])
@pytest.mark.parametrize("lambda_", [0.0, 0.02])
@pytest.mark.parametrize("kind", ["constant", "inverse_sqrt", "strongly_convex"])
@pytest.mark.parametrize("steps", [1, 50, 9000])
def test_growth_of_the_noise(steps: int, kind: str, lambda_: float, average: float) -> None:
    """The linear recursion itself, for one coordinate."""
    schedule = Schedule(kind, step_size=0.7, lambda_=lambda_ or 0.02)
    first = steps - max(1, math.ceil(average * steps)) + 1 if average else 0
    found = growth.noise_growth(
        schedule=schedule,
        steps=steps,
        lambda_=lambda_,
        momentum=0.5,
        average_from=first,
        batch_size=10,
        radius=math.inf,
        sum_stddev=3.0,
    )
    weight, square = 0.0, 0.0
    for t in range(steps, 0, -1):
        step = schedule.step(t) / 0.5
        weight += 1.0 / (steps - (first or steps) + 1) if t >= (first or steps) else 0.0
        square += (step * weight) ** 2
        weight *= abs(1.0 - step * lambda_)
    assert found == pytest.approx(math.sqrt(square) * 0.3, rel=0.05 if steps > 4000 else 1e-9)


def test_growth_is_at_most_the_radius() -> None:
    _, _, noise = planned("scs13", radius=0.01)
    assert noise.score_stddev == 0.01
    assert noise.expected_norm == pytest.approx(0.01 * math.sqrt(106))


def test_plans_say_what_they_do() -> None:
    texts = {method: " ".join(plan_report.plan_text(planned(method, MNIST)[0]).split()) for method in METHODS}
    assert "in one batch of each of 10 passes" in texts["scs13"]
    assert "Poisson batches" in texts["dp-sgd"]
    assert "momentum 0.9" in texts["dp-sgd"]
    assert "clipped at norm 0.949" in texts["dp-sgd"]
    assert "expect little accuracy" in texts["scs13"]
    assert np.isfinite(planned("dp-sgd", MNIST)[2].score_stddev)


@pytest.mark.parametrize("method", ["dp-sgd", "bst14"])
def test_a_batch_of_more_rows_than_there_are_is_refused(method: str) -> None:
    problem = Problem(1000, 5, 1, "binary")
    decide(problem, PrivacySpec(1.0), TrainSpec(method, batch_size=1000))
    with pytest.raises(SpecError, match="batch_size must be at most the number of rows, 1,000, not 1,001"):
        decide(problem, PrivacySpec(1.0), TrainSpec(method, batch_size=1001))


def test_a_plan_shows_the_ball_and_the_average() -> None:
    problem = Problem(1000, 5, 1, "binary")
    lines = dict(decide(problem, PrivacySpec(1.0), TrainSpec("bst14")).work.lines())
    assert "in a ball of radius 10" in lines["Steps"]
    lines = dict(decide(problem, PrivacySpec(1.0), TrainSpec("dp-sgd")).work.lines())
    assert "the model is the mean from step" in lines["Steps"]
