# SPDX-License-Identifier: PostgreSQL
"""Plans of the full-batch methods: the recipe's numbers, the split of mu, and what is refused."""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import json
import math
from typing import Any

import numpy as np
import pytest

from helpers.plans import decide, gram_share
from pg_dpml.errors import GuaranteeError, SpecError
from pg_dpml.kernels import Noise
from pg_dpml.methods import whitened_dp_gd, whitening
from pg_dpml.methods.dp_gd import Descent
from pg_dpml.privacy import gaussian, resolution
from pg_dpml.privacy.noise import composed
from pg_dpml.privacy.noise.composed import ComposedNoise
from pg_dpml.privacy.noise.output import ReleaseNoise
from pg_dpml.reports.plan_report import plan_text
from pg_dpml.runs import planning
from pg_dpml.spec.privacy import PrivacySpec
from pg_dpml.spec.relation import Relation
from pg_dpml.training.plan import Plan, Problem
from pg_dpml.training.spec import TrainSpec

# The package's function of the same name hides the module.
TRAIN = importlib.import_module("pg_dpml.runs.train")

ADULT = Problem(39_000, 109, 1, "binary")
COVERTYPE = Problem(465_000, 55, 7, "multiclass")
CALIFORNIA = Problem(16_512, 9, 1, "regression")
PROBLEMS = {"logistic": ADULT, "huber_svm": ADULT, "softmax": COVERTYPE, "squared": CALIFORNIA}
TENTH = PrivacySpec(0.1)


def descend(problem: Problem = ADULT, privacy: PrivacySpec = TENTH, **training: Any) -> Plan:
    found: Plan = decide(problem, privacy, TrainSpec(**({"method": "whitened-dp-gd"} | training)))
    return found


def parts(plan: Plan) -> tuple[Descent, ComposedNoise, ReleaseNoise]:
    assert isinstance(plan.work, Descent)
    assert isinstance(plan.noise, ComposedNoise)
    assert plan.noise.gradient is not None
    return plan.work, plan.noise, plan.noise.gradient


def mu_of(noise: ReleaseNoise) -> float:
    return noise.calibrated_sensitivity / noise.scale


@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize("loss", PROBLEMS)
@pytest.mark.parametrize("method", ["whitened-dp-gd", "dp-gd"])
def test_all_releases_together_have_the_run_s_mu(method: str, loss: str, relation: Relation) -> None:
    for epsilon, delta in itertools.product((0.01, 1.0, 8.0), (None, 1e-6)):
        privacy = PrivacySpec(epsilon, delta, relation)
        problem = PROBLEMS[loss]
        work, noise, gradient = parts(descend(problem, privacy, method=method, loss=loss))
        squares = work.steps * mu_of(gradient) ** 2
        if method == "whitened-dp-gd":
            assert noise.moments is not None
            assert mu_of(noise.moments) ** 2 == pytest.approx(gram_share(problem, noise) * noise.mu**2)
            squares += mu_of(noise.moments) ** 2
        assert squares <= noise.mu**2
        assert squares == pytest.approx(noise.mu**2, rel=1e-9)
        claimed = privacy.delta_for(problem.n_units)
        numbers = work.steps * noise.n_weights
        if method == "whitened-dp-gd":  # counted before the steps are
            most_steps = whitened_dp_gd.WHITENED_STEPS[1]
            numbers = most_steps * noise.n_weights + composed.triangle_size(problem.n_features)
        whole = noise.mu + resolution.sampler_mu(numbers)
        assert gaussian.gaussian_delta(epsilon, whole) == pytest.approx(claimed, rel=1e-6)
        assert gaussian.gaussian_delta(epsilon, math.sqrt(squares)) <= claimed


@pytest.mark.parametrize(
    ("loss", "problem", "bound"),
    [
        ("logistic", ADULT, 0.5),
        ("huber_svm", ADULT, 1.0),
        ("squared", CALIFORNIA, 0.5),
        ("softmax", COVERTYPE, math.sqrt(6 / 7)),
        ("logistic", COVERTYPE, 0.5 * math.sqrt(7)),
        ("huber_svm", COVERTYPE, math.sqrt(7)),
    ],
)
@pytest.mark.parametrize("method", ["whitened-dp-gd", "dp-gd"])
def test_sensitivities(method: str, loss: str, problem: Problem, bound: float) -> None:
    for relation, rows in itertools.product(Relation, (1, 4)):
        units = dataclasses.replace(problem, unit="id", max_rows_per_unit=rows)
        _, noise, gradient = parts(descend(units, PrivacySpec(1.0, None, relation), method=method, loss=loss))
        double = 2.0 if relation is Relation.REPLACE_ONE else 1.0
        assert gradient.sensitivity == pytest.approx(double * rows * bound, rel=1e-12)
        assert gradient.calibrated_sensitivity > gradient.sensitivity
        assert gradient.n_weights == units.n_weights
        if noise.moments is not None:
            assert noise.moments.sensitivity == pytest.approx(math.sqrt(double) * rows, rel=1e-12)


def test_the_recipe_on_adult() -> None:
    """The numbers of the recipe, written out for one problem."""
    work, noise, _ = parts(descend())
    n, d = ADULT.n_units, ADULT.n_features
    mu = gaussian.gaussian_mu(0.1, 1 / n**2)
    stddev = math.sqrt(2) / (n * math.sqrt(0.1) * mu)
    assert work.steps == 10
    assert (work.momentum, work.most_momentum) == (0.5, 0.5)
    assert parts(descend(privacy=PrivacySpec(1.0)))[0].steps == math.ceil(
        n * gaussian.gaussian_mu(1.0, 1 / n**2) / 200
    )
    most = parts(descend(privacy=PrivacySpec(8.0)))[0]
    assert (most.steps, most.momentum, most.most_momentum) == (60, 0.5, 0.9)
    assert work.whitening is not None
    assert work.whitening.stddev == pytest.approx(stddev, rel=1e-4)
    reached = 3 * 10 / (0.25 * 1.5 / d)
    wanted = n * math.sqrt(0.9) * mu
    assert work.tau == pytest.approx(wanted)
    ridge = 0.25 + 0.75 * wanted / reached
    assert work.whitening.ridge == pytest.approx(ridge * stddev * math.sqrt(2 * d), rel=1e-4)
    assert noise.score_stddev == pytest.approx(1.0)
    for largest, curvature in ((1.0, 0.25), (0.01, 0.25 * 0.015)):
        momentum, eta = work.pace(largest)
        assert momentum == 0.5
        assert eta == pytest.approx(0.5 * min(work.tau, 3 * 10 / curvature) / 10)
    assert work.average_from == 8
    assert work.passes == 12


@pytest.mark.parametrize(
    ("problem", "epsilon", "hidden", "ridge"),
    [
        (Problem(30_000, 400, 1, "binary"), 1.0, 1.0, 0.269),
        (Problem(30_000, 400, 1, "binary"), 0.1, 4.0, 2.0),
        (Problem(30_000, 1600, 1, "binary"), 1.0, 4.0, 2.0),
        (Problem(30_000, 1600, 1, "binary"), 5.0, 1.0, 0.280),
        (Problem(60_000, 785, 10, "multiclass"), 1.0, 2.8, 1.301),
        (Problem(60_000, 785, 1, "binary"), 1.0, 1.0, 0.276),
        (Problem(26_048, 150, 1, "binary"), 0.1, 1.0, 0.281),
        (Problem(464_809, 185, 7, "multiclass"), 0.1, 1.0, 0.329),
        (Problem(464_809, 185, 7, "multiclass"), 1.0, 1.0, 0.985),
    ],
)
def test_what_whitens_follows_from_public_numbers(
    problem: Problem, epsilon: float, hidden: float, ridge: float
) -> None:
    """Rows of which noise hides nothing are whitened the more, the farther their steps come."""
    work, noise, _ = parts(descend(problem, PrivacySpec(epsilon), method="whitened-dp-gd"))
    assert work.whitening is not None
    assert noise.moments is not None
    edge = work.whitening.stddev * math.sqrt(2.0 * problem.n_features)
    assert work.whitening.ridge / edge == pytest.approx(ridge, rel=0.02)
    share = mu_of(noise.moments) ** 2 / noise.mu**2
    assert share == pytest.approx(0.1 / hidden, rel=0.02)
    assert noise.score_stddev == pytest.approx(0.9 if problem.n_outputs > 1 else 1.0)


def test_momentum_rises_where_the_length_needs_it() -> None:
    """Up to what the number of steps allows; the steps of a small table are many."""
    small = dataclasses.replace(ADULT, n_units=8_000, n_features=7)
    work = parts(descend(small, PrivacySpec(5.0)))[0]
    assert (work.steps, work.most_momentum) == (60, 0.9)
    seen = []
    for largest in (1 / 700, 1 / 70, 1 / 7, 1.0):
        momentum, eta = work.pace(largest)
        length = eta * work.steps / (1.0 - momentum)
        curvature = 0.25 * min(1.0, 1.5 * largest)
        reach = work.steps * (1.0 + momentum) / ((1.0 - momentum) * curvature)
        assert length == pytest.approx(min(work.tau, reach))
        seen.append(momentum)
        assert length == pytest.approx(work.tau) or momentum == 0.9
    assert seen == sorted(seen)
    assert (seen[0], seen[-1]) == (0.5, 0.9)
    for passes, most in ((5, 0.5), (8, 0.5), (16, 0.75), (39, 0.75), (40, 0.9)):
        assert parts(descend(small, passes=passes))[0].most_momentum == most


def test_many_values_take_fewer_steps() -> None:
    """From 20 million on: 363,637 rows of 55 features."""

    def steps(n_units: int, epsilon: float, passes: int | None = None) -> tuple[int, float]:
        problem = dataclasses.replace(COVERTYPE, n_units=n_units)
        work = parts(descend(problem, PrivacySpec(epsilon, 1e-11), passes=passes))[0]
        most = work.most_momentum
        longest = (1 + most) / (1 - most) * work.steps * problem.n_features / 0.75
        assert work.tau <= longest * (1 + 1e-9)
        return work.steps, most

    assert steps(363_636, 1.0) == (60, 0.9)
    assert steps(363_637, 1.0) == (20, 0.75)
    assert steps(363_637, 0.003) == (10, 0.5)
    assert steps(363_637, 1.0, passes=60) == (60, 0.9)


@pytest.mark.parametrize(("loss", "widest"), [("logistic", 1.0), ("squared", 2.0), ("softmax", math.sqrt(2))])
@pytest.mark.parametrize("method", ["whitened-dp-gd", "dp-gd"])
def test_a_clip_widens_with_the_budget(method: str, loss: str, widest: float) -> None:
    """From that of the zero model to the loss's own bound; one that is given stays."""
    problem = dataclasses.replace(PROBLEMS[loss], n_units=100_000, n_features=5)
    seen = []
    for epsilon in np.geomspace(0.001, 100.0, 40):
        plan = descend(problem, PrivacySpec(float(epsilon), 1e-9), method=method, loss=loss)
        work, noise, gradient = parts(plan)
        clip = gradient.sensitivity / 2.0
        narrow = math.sqrt(1 - 1 / problem.n_outputs) if loss == "softmax" else 0.5
        mu = math.sqrt(1.0 if method == "dp-gd" else 0.9) * noise.mu
        budget = problem.n_units * mu / (2.0 * narrow * problem.n_weights)
        assert clip == pytest.approx(min(max(budget / 800, 1.0) * narrow, widest))
        assert min(work.loss.lipschitz, work.gradient_clip) == pytest.approx(clip)
        seen.append(clip / narrow)
    assert seen[0] == 1.0
    assert seen[-1] == pytest.approx(min(widest / narrow, 4.0))
    given = descend(problem, PrivacySpec(100.0, 1e-9), method=method, loss=loss, clip=0.25)
    assert parts(given)[2].sensitivity == pytest.approx(0.5)


@pytest.mark.parametrize("d", [1, 2, 10, 300])
def test_eigenvalues_of_noise_alone_are_made_equal(d: int) -> None:
    """And those of a matrix that the noise hides; what stands out stays as it is."""
    rng = np.random.default_rng(d)
    kept, moved = [], []
    for _ in range(20):
        noise = np.triu(rng.normal(size=(d, d)), 1) / math.sqrt(2.0)
        noise = noise + noise.T + np.diag(rng.normal(size=d))
        values = np.linalg.eigvalsh(noise + np.eye(d)).astype(np.float64)
        smooth = whitening.smoothed(values, 1.0)
        assert np.all(np.diff(smooth) >= -1e-12)
        assert np.mean(smooth) == pytest.approx(np.mean(values))
        moved.append(np.var(smooth) / max(float(np.var(values)), 1e-300))
        spike = np.zeros((d, d))
        spike[0, 0] = 20.0 * math.sqrt(2.0 * d)
        values = np.linalg.eigvalsh(noise + spike).astype(np.float64)
        kept.append(whitening.smoothed(values, 1.0)[-1] == values[-1])
    if d >= 10:
        assert np.mean(moved) < 0.3
        assert all(kept)
    exact = np.linspace(0.1, 1.0, d)
    np.testing.assert_allclose(whitening.smoothed(exact, 1e-9), exact, rtol=1e-9)
    np.testing.assert_array_equal(whitening.smoothed(np.ones(d), 0.0), np.ones(d))


def test_the_recipe_without_whitening() -> None:
    for loss, problem in PROBLEMS.items():
        n, mu = problem.n_units, gaussian.gaussian_mu(0.1, 1 / problem.n_units**2)
        work, noise, gradient = parts(descend(problem, method="dp-gd", loss=loss))
        budget = n * mu / gradient.sensitivity
        length = {"binary": 2 * budget, "multiclass": budget, "regression": budget**0.75}[problem.task]
        assert work.tau == pytest.approx(min(length, 19 * 60 / work.loss.smoothness))
        momentum, eta = work.pace()
        assert momentum == 0.9
        assert eta == pytest.approx(0.1 * work.tau / 60)
        assert (work.steps, work.momentum, work.average_from) == (60, 0.9, 46)
        assert noise.moments is None
        assert noise.score_stddev == pytest.approx(work.tau / budget)


def test_units_divide_the_steps_budget_and_the_longest_step() -> None:
    units = dataclasses.replace(ADULT, unit="id", max_rows_per_unit=4, n_units=4 * ADULT.n_units)
    privacy = PrivacySpec(0.1, 1e-10)
    one, several = parts(descend(privacy=privacy))[0], parts(descend(units, privacy))[0]
    assert several.steps == one.steps
    assert several.tau == pytest.approx(one.tau)
    assert several.smoothness == 4.0 * one.smoothness
    assert several.whitening is not None
    assert several.whitening.most == 4.0


def test_options_of_dp_gd() -> None:
    plan = descend(
        method="dp-gd",
        passes=20,
        step_size=0.5,
        momentum=0.0,
        average="none",
        clip=0.25,
        lambda_=0.01,
    )
    work, noise, gradient = parts(plan)
    assert work.pace()[0] == 0.0
    assert work.pace()[1] == pytest.approx(0.5)
    assert (work.steps, work.average_from, work.lambda_) == (20, 0, 0.01)
    assert gradient.sensitivity == 0.5
    n_mu = ADULT.n_units * noise.mu
    assert noise.score_stddev == pytest.approx(0.5 * 20 * gradient.sensitivity / n_mu)
    averaged = parts(descend(method="dp-gd", average="tail", tail=0.5))[0]
    assert averaged.average_from == 31
    softmax = parts(descend(COVERTYPE, method="dp-gd", clip=0.5))[0]
    assert softmax.options()["gradient_clip"] == 0.5


def test_steps_that_throw_the_model_out_are_refused() -> None:
    """Weights beyond float64 would let a score depend on the rows beside it."""
    descend(COVERTYPE, method="dp-gd", step_size=0.2, lambda_=10.0)
    descend(COVERTYPE, method="dp-gd", step_size=1e100)
    with pytest.raises(SpecError, match="2/lambda"):
        descend(COVERTYPE, method="dp-gd", step_size=0.21, lambda_=10.0)


def test_a_unit_clip_bounds_a_unit() -> None:
    units = dataclasses.replace(ADULT, unit="id", max_rows_per_unit=10)
    assert parts(descend(units, method="dp-gd", unit_clip=0.75))[2].sensitivity == pytest.approx(2 * 0.75)
    assert parts(descend(units, method="dp-gd", unit_clip=100.0))[2].sensitivity == pytest.approx(
        2 * 10 * 0.5
    )
    with pytest.raises(SpecError, match="unit_clip needs a unit of privacy"):
        descend(method="dp-gd", unit_clip=0.75)
    huge = dataclasses.replace(units, max_rows_per_unit=10**6, n_features=1000)
    with pytest.raises(SpecError, match="smaller max_rows_per_unit"):
        descend(huge, method="dp-gd", unit_clip=0.75)


def test_the_condition_leaves_room_for_rounding() -> None:
    """However many rows and whatever budget: the plan stands, with rows a little shorter at most."""
    for n, d, epsilon in itertools.product((1, 1000, 10**6, 10**8), (1, 9, 900), (0.01, 1.0, 100.0)):
        work, _, gradient = parts(descend(Problem(n, d, 1, "binary"), PrivacySpec(epsilon, 1e-9)))
        assert work.whitening is not None
        condition = math.sqrt(1.0 + work.whitening.most / work.whitening.ridge)
        assert condition <= composed.largest_condition(n, 1, d)
        assert 0.98 < work.whitening.row_norm < 1.0
        assert gradient.calibrated_sensitivity <= 1.011 * gradient.sensitivity


def test_moments_are_released_as_one_vector_of_their_frobenius_norm() -> None:
    rng = np.random.default_rng(1)
    d = 60
    half = rng.normal(size=(d, d))
    xx, xy = half + half.T, rng.normal(size=d)
    noise = composed.calibrate_moments(
        relation=Relation.REPLACE_ONE, max_rows_per_unit=1, labels=True, mu=1.0, n_units=100, n_features=d
    )
    assert noise.sensitivity == pytest.approx(math.sqrt(4.5))
    assert noise.n_weights == d * (d + 1) // 2 + d
    released, labels = composed.release_moments(xx, xy, noise, Noise(bytes(32)))
    assert labels is not None
    error = released - xx
    np.testing.assert_array_equal(error, error.T)
    above = error[np.triu_indices(d, 1)]
    assert np.std(above) == pytest.approx(noise.scale / math.sqrt(2), rel=0.06)
    assert np.std(np.diag(error)) == pytest.approx(noise.scale, rel=0.35)
    assert np.std(labels - xy) == pytest.approx(noise.scale, rel=0.35)
    on_grid = np.diag(released) / noise.grid
    np.testing.assert_array_equal(on_grid, np.rint(on_grid))


def test_the_joint_sensitivity_of_moments_is_attained_and_not_exceeded() -> None:
    """privacy/README.md, "Sufficient statistics": sqrt 4.5, at a cosine of one half."""

    def distance(x: Any, y: float, z: Any, t: float) -> float:
        xx = np.outer(x, x) - np.outer(z, z)
        return float(math.hypot(np.linalg.norm(xx), np.linalg.norm(y * x - t * z)))

    rng = np.random.default_rng(2)
    most = 0.0
    for _ in range(20_000):
        x, z = rng.normal(size=(2, 2))
        x, z = x / max(np.linalg.norm(x), 1.0), z / max(np.linalg.norm(z), 1.0)
        most = max(most, distance(x, float(rng.choice([-1, 1])), z, float(rng.choice([-1, 1]))))
    assert most <= math.sqrt(4.5) + 1e-12
    worst = distance(np.array([1.0, 0.0]), 1.0, np.array([0.5, math.sqrt(0.75)]), -1.0)
    assert worst == pytest.approx(math.sqrt(4.5))


def test_sufficient_statistics() -> None:
    for relation, square in ((Relation.REPLACE_ONE, 4.5), (Relation.ADD_REMOVE, 2.0)):
        privacy = PrivacySpec(1.0, None, relation)
        plan = decide(CALIFORNIA, privacy, TrainSpec(method="sufficient-statistics"))
        assert isinstance(plan.noise, ComposedNoise)
        assert plan.noise.moments is not None
        assert plan.noise.moments.sensitivity == pytest.approx(math.sqrt(square))
        assert mu_of(plan.noise.moments) == pytest.approx(plan.noise.mu)
        assert plan.work.passes == 1
    with pytest.raises(SpecError, match="number to predict"):
        decide(ADULT, TENTH, TrainSpec(method="sufficient-statistics"))


@pytest.mark.parametrize("method", ["whitened-dp-gd", "dp-gd", "sufficient-statistics"])
def test_guarantees_that_gaussian_noise_cannot_give_are_refused(method: str) -> None:
    spec = TrainSpec(method=method)
    with pytest.raises(GuaranteeError, match=r"delta = 0 has no Gaussian noise.*bolt-on"):
        decide(CALIFORNIA, PrivacySpec(1.0, 0.0), spec)
    with pytest.raises(GuaranteeError, match="noisy numbers"):
        decide(CALIFORNIA, PrivacySpec(1.0, 1e-36), spec)
    if method != "dp-gd":
        with pytest.raises(GuaranteeError, match=r"at most 2,500 features, .*by projection"):
            decide(dataclasses.replace(CALIFORNIA, n_features=2501), TENTH, spec)


def test_the_floor_of_delta_counts_every_number_drawn() -> None:
    with pytest.raises(GuaranteeError) as error:
        descend(CALIFORNIA, PrivacySpec(1.0, 1e-36))
    assert f"{60 * 9 + 45} noisy numbers" in str(error.value)


@pytest.mark.parametrize("n", [0, 1, 2])
@pytest.mark.parametrize("loss", PROBLEMS)
def test_tiny_tables_have_a_plan(loss: str, n: int) -> None:
    problem = dataclasses.replace(PROBLEMS[loss], n_units=n)
    for method in ("whitened-dp-gd", "dp-gd"):
        plan = descend(problem, method=method, loss=loss)
        work, noise, gradient = parts(plan)
        assert math.isfinite(work.pace()[1])
        assert (gradient.scale == 0.0) == (n == 0)
        assert math.isfinite(noise.score_stddev)
        assert plan.warnings
        assert "sums of gradients" in " ".join(plan_text(plan).split())
        json.dumps(noise.record() | work.record(n), allow_nan=False)


CHOICES = [
    (ADULT, "whitened-dp-gd", "most accurate"),
    (COVERTYPE, "whitened-dp-gd", "most accurate"),
    (CALIFORNIA, "whitened-dp-gd", "most accurate"),
    (dataclasses.replace(CALIFORNIA, n_units=10**7), "sufficient-statistics", "100 d"),
    (dataclasses.replace(ADULT, n_features=2501), "dp-gd", "2,500 features"),
]


@pytest.mark.parametrize(("problem", "method", "reason"), CHOICES)
def test_auto(problem: Problem, method: str, reason: str) -> None:
    plan = decide(problem, TENTH, TrainSpec(method="auto"))
    assert plan.method == method
    assert reason in plan.reason
    assert plan.reason in " ".join(plan_text(plan).split()).replace("Why ", "")
    own = decide(problem, TENTH, TrainSpec(method=method))
    assert dataclasses.replace(plan, reason="") == own


CURVED = [  # n, epsilon, columns, outputs, task, pieces
    (39_074, 0.1, 6, 1, "binary", 8),
    (39_074, 1.0, 6, 1, "binary", 12),
    (16_512, 1.0, 8, 1, "regression", 9),
    (16_512, 0.1, 8, 1, "regression", 0),
    (464_810, 0.1, 10, 7, "multiclass", 7),
    (2_000, 1.0, 6, 1, "binary", 4),
    (2_000, 0.1, 6, 1, "binary", 0),
]


@pytest.mark.parametrize(("n", "epsilon", "columns", "outputs", "task", "pieces"), CURVED)
def test_auto_gives_numeric_columns_curves_that_the_budget_pays_for(
    n: int, epsilon: float, columns: int, outputs: int, task: str, pieces: int
) -> None:
    """One column has whole numbers from 0 to 3 and gets at most three pieces."""
    problem = Problem(n, 60, outputs, task, most_pieces=(12,) * (columns - 1) + (3,))
    privacy = PrivacySpec(epsilon)
    plan = decide(problem, privacy, TrainSpec())
    linear = decide(problem, privacy, TrainSpec(features="linear"))
    assert (linear.problem, linear.encoder_change.pieces) == (problem, 0)
    assert "curves" not in linear.reason
    assert plan.encoder_change.pieces == pieces
    if pieces == 0:
        assert dataclasses.replace(plan, reason=linear.reason) == linear
        assert f"no curves, which n mu = {n * gaussian.gaussian_mu(epsilon, n**-2.0):,.0f}" in plan.reason
    else:
        assert plan.problem.n_features == 60 + (columns - 1) * (pieces + 1) + min(pieces, 3) + 1
        assert f"curves of {pieces} pieces" in plan.reason
        assert "features = linear" in plan.reason
    # a unit of m rows weighs as m rows do
    of_units = dataclasses.replace(problem, n_units=2 * n, max_rows_per_unit=2)
    assert decide(of_units, PrivacySpec(epsilon, n**-2.0), TrainSpec()).problem.pieces == pieces


def test_auto_stays_linear_where_curves_cannot_be() -> None:
    pays = dataclasses.replace(ADULT, most_pieces=(12, 12))
    assert decide(pays, TENTH, TrainSpec()).problem.pieces == 12
    assert decide(pays, PrivacySpec(0.1, 0.0), TrainSpec()).problem.pieces == 0
    wide = decide(dataclasses.replace(pays, n_features=2480), TENTH, TrainSpec())
    assert (wide.problem.pieces, wide.method) == (0, "whitened-dp-gd")
    assert "no curves, since whitening takes at most 2,500 features" in wide.reason
    # 1,026 features need a larger delta than 1,000 do
    precise = Problem(10**8, 1000, 1, "binary", most_pieces=(12, 12))
    assert decide(precise, PrivacySpec(10.0, 1e-30), TrainSpec()).problem.pieces == 12
    plan = decide(precise, PrivacySpec(10.0, 8.6e-31), TrainSpec())
    assert (plan.problem.pieces, plan.method) == (0, "whitened-dp-gd")
    assert "no curves, with which whitened-dp-gd cannot run: delta" in plan.reason


def test_auto_without_delta_is_bolt_on() -> None:
    for problem in PROBLEMS.values():
        plan = decide(problem, PrivacySpec(1.0, 0.0), TrainSpec(method="auto"))
        assert plan.method == "bolt-on"
        assert "no delta" in plan.reason


def test_auto_takes_what_the_precision_of_the_noise_allows() -> None:
    wide = Problem(1000, 2000, 1, "binary")
    plan = decide(wide, PrivacySpec(1.0, 1e-30), TrainSpec(method="auto"))
    assert plan.method == "dp-gd"
    assert "whitened-dp-gd cannot run: delta = 1e-30" in plan.reason
    plan = decide(wide, PrivacySpec(1.0, 1e-32), TrainSpec(method="auto"))
    assert plan.method == "bolt-on"


def test_auto_chooses_by_public_numbers_and_the_loss_is_kept() -> None:
    plan = decide(ADULT, TENTH, TrainSpec(method="auto", loss="huber_svm", huber_h=0.3))
    assert plan.work.loss.kind == "huber_svm"
    assert plan.work.loss.huber_h == 0.3
    with pytest.raises(SpecError, match="loss for a binary label"):
        decide(ADULT, TENTH, TrainSpec(method="auto", loss="softmax"))
    for n_units in (CALIFORNIA.n_units, 10**7):  # whichever method it takes
        problem = dataclasses.replace(CALIFORNIA, n_units=n_units)
        with pytest.raises(SpecError, match=r"^huber_h "):
            decide(problem, TENTH, TrainSpec(method="auto", huber_h=0.3))


@pytest.mark.parametrize("method", ["bolt-on", "dp-gd", "whitened-dp-gd", "scs13", "bst14", "dp-sgd"])
@pytest.mark.parametrize("clip", [1e-300, 1e-318, 5e-324])
def test_a_clip_too_small_for_float64_is_refused(clip: float, method: str) -> None:
    with pytest.raises(GuaranteeError, match="take a larger clip"):
        planning.plan_problem(Problem(1000, 5, 1, "binary"), TENTH, TrainSpec(method=method, clip=clip))
