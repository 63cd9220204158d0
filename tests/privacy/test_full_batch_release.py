# SPDX-License-Identifier: PostgreSQL
"""The noise that full-batch methods really add: whole runs on kernels, audited; and plans computed again.

Source: privacy/README.md, "Gaussian noise" and "Neighbouring relation".
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats
from scipy.optimize import brentq
from scipy.special import erfcx

from helpers import neighbours, replay
from helpers.kernel_job import KernelJob
from helpers.neighbours import FloatArray
from helpers.plans import decide, gram_share
from pg_dpml.errors import GuaranteeError, SpecError
from pg_dpml.kernels import Loss, Noise
from pg_dpml.methods import dp_gd
from pg_dpml.privacy.noise import composed
from pg_dpml.privacy.noise.composed import ComposedNoise
from pg_dpml.privacy.noise.output import ReleaseNoise
from pg_dpml.spec.privacy import PrivacySpec
from pg_dpml.spec.relation import Relation
from pg_dpml.training.plan import Plan, Problem
from pg_dpml.training.spec import TrainSpec

RUNS = 20_000
CONFIDENCE = 0.999
LEAST_P = 1e-6  # the keys are fixed: no false alarms
N = 40
GRAM_SHARE = 0.1
"""Of mu^2, for the second moments of few features."""


# The Gaussian mechanism once more: Mills ratios, where the product integrates.


def gaussian_delta(epsilon: float, mu: float) -> float:
    """Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu), as e^eps phi(eps/mu + mu/2) is phi(eps/mu - mu/2)."""
    near, far = epsilon / mu - mu / 2.0, epsilon / mu + mu / 2.0
    mills = erfcx(near / math.sqrt(2.0)) - erfcx(far / math.sqrt(2.0))
    return 0.5 * math.exp(-near * near / 2.0) * float(mills)


def gaussian_mu(epsilon: float, delta: float) -> float:
    def excess(mu: float) -> float:
        return gaussian_delta(epsilon, mu) - delta

    high = 1e-3 * epsilon
    while excess(high) < 0.0:
        high *= 1.5
    return float(brentq(excess, high / 1.5 if high > 1e-3 * epsilon else 1e-9 * epsilon, high, rtol=1e-13))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Of a Gaussian release of that mu; 0 if its delta at 0 is smaller."""
    if mu <= 0.0 or gaussian_delta(0.0, mu) <= delta:
        return 0.0
    high = 1.0
    while gaussian_delta(high, mu) > delta:
        high *= 2.0
    return float(brentq(lambda epsilon: gaussian_delta(epsilon, mu) - delta, 0.0, high))


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise of keys 1, 2, 3, ... in place of the system's."""
    numbers: Iterator[int] = itertools.count(1)
    monkeypatch.setattr(composed, "Noise", lambda: Noise(next(numbers).to_bytes(32, "little")))


def parts(plan: Plan) -> tuple[ComposedNoise, ReleaseNoise]:
    assert isinstance(plan.noise, ComposedNoise)
    assert plan.noise.gradient is not None
    return plan.noise, plan.noise.gradient


def step_plan(
    epsilon: float, relation: Relation, steps: int, method: str = "dp-gd", m: int = 1, **training: Any
) -> Plan:
    """Regression whose weights stay so small that all labels are far: each step's gradient is the first's."""
    if method == "dp-gd":
        training |= {"step_size": 1e-6, "momentum": 0.0, "average": "none"}
    problem = Problem(N, 2, 1, "regression", "unit" if m > 1 else None, m)
    spec = TrainSpec(method=method, passes=steps, **training)
    found: Plan = decide(problem, PrivacySpec(epsilon, None, relation), spec)
    return found


def worst_tables(relation: Relation, m: int, x: FloatArray, other: FloatArray) -> list[list[bytes]]:
    """Blocks of two neighbours, whose first unit has rows x in one and `other` or zeros in the other."""
    rows = np.zeros((N * m, 2))
    rows[: 9 * m] = x  # the labels of all but the first unit cancel
    labels = np.where(np.arange(N * m) % 2 == 0, 1.0, -1.0)
    labels[:m] = 1.0
    starts = np.arange(N * m) % m == 0
    changed = rows.copy()
    changed[:m] = 0.0 if relation is Relation.ADD_REMOVE else other
    return [neighbours.pack("dense", each, labels, starts, [N * m]) for each in (rows, changed)]


def mu_lower_bound(one: FloatArray, two: FloatArray, middle: float) -> float:
    """Clopper-Pearson: with `CONFIDENCE` each way, a test of one against the other has at least this mu.

    `one` and `two` are the statistics of runs on each table, "one" being said above `middle`.
    """
    likely = stats.binomtest(int(np.sum(one >= middle)), len(one)).proportion_ci(CONFIDENCE).low
    unlikely = stats.binomtest(int(np.sum(two >= middle)), len(two)).proportion_ci(CONFIDENCE).high
    return float(stats.norm.ppf(likely) - stats.norm.ppf(unlikely))


def final_weights(plan: Plan, blocks: list[bytes], runs: int = RUNS) -> FloatArray:
    """Released models of so many runs, shape (runs, n_weights)."""
    job: Any = [KernelJob(plan, blocks) for _ in range(runs)]
    return np.array([each.plan.run(each).weights for each in job])


AUDITS = [
    (0.5, Relation.REPLACE_ONE, 1, {}),
    (1.0, Relation.REPLACE_ONE, 1, {}),
    (1.0, Relation.ADD_REMOVE, 3, {}),
    (4.0, Relation.REPLACE_ONE, 3, {}),
    (2.0, Relation.REPLACE_ONE, 1, {"m": 3}),
    (2.0, Relation.REPLACE_ONE, 1, {"m": 3, "unit_clip": 0.6}),
]


@pytest.mark.slow
@pytest.mark.statistical
@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize(("epsilon", "relation", "steps", "more"), AUDITS)
def test_an_attack_on_dp_gd_learns_no_more_than_claimed(
    epsilon: float, relation: Relation, steps: int, more: dict[str, Any]
) -> None:
    """Steps of one length without momentum: the model is the sum of all releases, so it tells all they do."""
    plan = step_plan(epsilon, relation, steps, **more)
    assert plan.guarantee is not None
    assert isinstance(plan.work, dp_gd.Descent)
    x = np.array([neighbours.LONGEST_ROW, 0.0])
    tables = worst_tables(relation, more.get("m", 1), x, -x)
    quiet = [
        KernelJob(plan, blocks).blocks.gradient(np.zeros(2), plan.work.options()).gradient
        for blocks in tables
    ]
    assert quiet[0] is not None
    assert quiet[1] is not None
    reach = -plan.work.pace()[1] * steps / N
    centres = [reach * float(gradient[0]) for gradient in quiet if gradient is not None]
    drawn = [final_weights(plan, blocks)[:, 0] for blocks in tables]
    sign = 1.0 if centres[0] > centres[1] else -1.0
    found = mu_lower_bound(sign * drawn[0], sign * drawn[1], sign * sum(centres) / 2.0)
    assert found <= gaussian_mu(epsilon, plan.guarantee.delta)
    found_epsilon = gaussian_epsilon(found, plan.guarantee.delta)
    assert found_epsilon <= epsilon
    if epsilon >= 1.0:
        assert found_epsilon >= epsilon / 2.0  # the attack is a good one


@pytest.mark.slow
@pytest.mark.statistical
@pytest.mark.usefixtures("keys")
def test_an_attack_on_whitened_dp_gd_learns_no_more_than_claimed() -> None:
    """Opposite rows have one square, so all is to be seen in the gradient, at nine tenths of mu^2."""
    plan = step_plan(2.0, Relation.REPLACE_ONE, 1, "whitened-dp-gd")
    assert plan.guarantee is not None
    assert isinstance(plan.work, dp_gd.Descent)
    x = np.array([neighbours.LONGEST_ROW, 0.0])
    drawn = []
    for blocks in worst_tables(Relation.REPLACE_ONE, 1, x, -x):
        jobs: Any = [KernelJob(plan, blocks) for _ in range(RUNS // 2)]
        results = [job.plan.run(job) for job in jobs]
        # the matrix is known: undo it, and project on the whitened row
        drawn.append(
            np.array(
                [
                    np.linalg.solve(result.whitening, result.weights) @ direction(result.whitening, x)
                    for result in results
                    if result.whitening is not None
                ]
            )
        )
    assert [len(each) for each in drawn] == [RUNS // 2] * 2
    found = mu_lower_bound(drawn[0], drawn[1], 0.0)
    assert found <= math.sqrt(1.0 - GRAM_SHARE) * gaussian_mu(2.0, plan.guarantee.delta)
    assert 1.0 <= gaussian_epsilon(found, plan.guarantee.delta) <= 2.0


def direction(matrix: FloatArray, x: FloatArray) -> FloatArray:
    image = matrix @ x
    unit: FloatArray = image / np.linalg.norm(image)
    return unit


def moments_plan(epsilon: float, relation: Relation, labels: bool, n_features: int) -> Plan:
    problem, privacy = Problem(N, n_features, 1, "regression"), PrivacySpec(epsilon, None, relation)
    if labels:
        statistics: Plan = decide(problem, privacy, TrainSpec(method="sufficient-statistics"))
        return statistics
    found: Plan = decide(problem, privacy, TrainSpec(method="whitened-dp-gd"))
    return found


def released_moments(plan: Plan, blocks: list[bytes], runs: int, first_key: int) -> FloatArray:
    """Matrix and, where they are released, labels in one vector a run whose norm is Frobenius."""
    noise = plan.noise
    assert isinstance(noise, ComposedNoise)
    assert noise.moments is not None
    sums = KernelJob(plan, blocks).blocks.gram()
    found = []
    for key in range(first_key, first_key + runs):
        xx, xy = composed.release_moments(
            sums.xx,
            sums.xy if noise.gradient is None else None,
            noise.moments,
            Noise(key.to_bytes(32, "little")),
        )
        np.testing.assert_array_equal(xx, xx.T)
        found.append(np.concatenate([xx.reshape(-1), [] if xy is None else xy]))
    return np.array(found)


@pytest.mark.statistical
@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize("labels", [False, True])
def test_an_attack_on_second_moments_learns_no_more_than_claimed(labels: bool, relation: Relation) -> None:
    plan = moments_plan(8.0, relation, labels, 2)
    assert plan.guarantee is not None
    claimed = gaussian_mu(8.0, plan.guarantee.delta)
    if not labels:
        claimed *= math.sqrt(GRAM_SHARE)
    x = np.zeros((N, 2))
    x[:4] = [neighbours.LONGEST_ROW, 0.0]
    other = x.copy()
    y, other_y = np.ones(N), np.ones(N)
    if relation is Relation.ADD_REMOVE:
        other[0], other_y[0] = 0.0, 0.0
    elif labels:  # at an angle of 60 degrees
        other[0], other_y[0] = neighbours.LONGEST_ROW * np.array([0.5, math.sqrt(0.75)]), -1.0
    else:
        other[0] = x[0, ::-1]
    tables = [neighbours.pack("dense", *each, None, [N]) for each in ((x, y), (other, other_y))]
    exact = []
    for blocks in tables:
        sums = KernelJob(plan, blocks).blocks.gram()
        exact.append(np.concatenate([sums.xx.reshape(-1), sums.xy if labels else []]))
    axis = exact[0] - exact[1]
    runs = RUNS // 4
    one, two = (released_moments(plan, blocks, runs, 1 + i * runs) @ axis for i, blocks in enumerate(tables))
    found = mu_lower_bound(one, two, float(axis @ (exact[0] + exact[1])) / 2.0)
    assert 0.5 * claimed <= found <= claimed


@pytest.mark.statistical
@pytest.mark.parametrize("labels", [False, True])
def test_noise_of_second_moments_has_its_distribution(labels: bool) -> None:
    """Standard deviation s on the diagonal and beside it, s / sqrt 2 off it, mirrored."""
    plan = moments_plan(1.0, Relation.REPLACE_ONE, labels, 3)
    assert plan.guarantee is not None
    mu = gaussian_mu(1.0, plan.guarantee.delta)
    stddev = math.sqrt(4.5) / mu if labels else math.sqrt(2.0) / (math.sqrt(GRAM_SHARE) * mu)
    blocks = neighbours.pack("dense", np.full((N, 3), 0.5), np.ones(N), None, [N])
    sums = KernelJob(plan, blocks).blocks.gram()
    exact = np.concatenate([sums.xx.reshape(-1), sums.xy if labels else []])
    noise = released_moments(plan, blocks, RUNS // 2, 7) - exact
    diagonal, above = [0, 4, 8, *range(9, noise.shape[1])], [1, 2, 5]
    for place in (*diagonal, *above):
        scale = stddev / (math.sqrt(2.0) if place in above else 1.0)
        assert stats.kstest(noise[:, place] / scale, "norm").pvalue >= LEAST_P, place
    correlations = np.corrcoef(noise[:, [*diagonal, *above]].T) - np.eye(len(diagonal) + 3)
    assert np.max(np.abs(correlations)) < 6.0 / math.sqrt(len(noise))


@pytest.mark.statistical
@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize("method", ["dp-gd", "whitened-dp-gd"])
def test_noise_of_every_step_has_its_distribution(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a whole run, and no step's noise tells of another's."""
    steps, share = 4, 1.0 if method == "dp-gd" else 1.0 - GRAM_SHARE
    plan = step_plan(1.0, Relation.REPLACE_ONE, steps, method)
    _, gradient = parts(plan)
    assert plan.guarantee is not None
    release = composed.release_gradient
    drawn: list[FloatArray] = []

    def record(exact: FloatArray, noise: ReleaseNoise, source: Noise | None = None) -> FloatArray:
        found = release(exact, noise, source)
        places = found / gradient.grid
        np.testing.assert_array_equal(places, np.rint(places))
        drawn.append(found - exact)
        return found

    monkeypatch.setattr(composed, "release_gradient", record)
    x = np.array([0.6, 0.8])
    blocks = worst_tables(Relation.REPLACE_ONE, 1, x, x)[0]
    final_weights(plan, blocks, 2500)
    noise = np.array(drawn).reshape(-1, steps * 2)
    assert len(noise) == 2500
    # D = 2 C at C = 1/2
    stddev = 1.0 * math.sqrt(steps) / (math.sqrt(share) * gaussian_mu(1.0, plan.guarantee.delta))
    for place in noise.T:
        assert stats.kstest(place / stddev, "norm").pvalue >= LEAST_P
    correlations = np.corrcoef(noise.T) - np.eye(steps * 2)
    assert np.max(np.abs(correlations)) < 6.0 / math.sqrt(len(noise))


def test_every_run_draws_fresh_noise() -> None:
    for method in ("dp-gd", "whitened-dp-gd"):
        plan = step_plan(1.0, Relation.REPLACE_ONE, 1, method)
        blocks = worst_tables(Relation.REPLACE_ONE, 1, np.array([1.0, 0.0]), np.array([0.0, 1.0]))[0]
        assert len({tuple(weights) for weights in final_weights(plan, blocks, 20)}) == 20


def test_the_condition_of_every_released_matrix_is_as_planned() -> None:
    """Whatever the noise: P is within what rows are scaled for, and no stored row is longer than 1."""
    rng = np.random.default_rng(3)
    for n, d, epsilon in ((50, 3, 0.01), (50, 3, 100.0), (2000, 8, 1.0), (20_000, 8, 99.0)) * 20:
        problem = Problem(n, d, 1, "binary")
        plan = decide(problem, PrivacySpec(epsilon, 1e-9), TrainSpec(method="whitened-dp-gd", passes=1))
        assert isinstance(plan.work, dp_gd.Descent)
        assert plan.work.whitening is not None
        x = rng.normal(size=(n, d)) * 10.0 ** rng.uniform(-4.0, 0.0, d)
        x *= neighbours.LONGEST_ROW / np.linalg.norm(x, axis=1, keepdims=True)
        job: Any = KernelJob(plan, neighbours.pack("dense", x, np.ones(n), None, [n]))
        matrix = job.plan.run(job).whitening
        assert matrix is not None
        np.testing.assert_array_equal(matrix, matrix.T)
        condition = float(np.linalg.cond(matrix))
        assert plan.work.whitening.row_norm <= (1.0 - 2.0**-19) / (1.0 + condition * 2.0**-23)
        rows = np.vstack([replay.open_block(block).values for block in job.blocks.blocks]).astype(
            np.longdouble
        )
        assert np.all(np.sum((rows @ matrix.astype(np.longdouble)) ** 2, axis=1) <= 1.0)


def test_rows_are_scaled_for_the_rounding_of_float32() -> None:
    """A row whose image has half its length from where the row is, half from where it hardly is."""
    rng = np.random.default_rng(9)
    condition = 2.0**16
    longest = 0.0
    for _ in range(200):
        vectors = np.linalg.qr(rng.normal(size=(12, 12)))[0]
        matrix = (vectors * [1.0, *[condition] * 11]) @ vectors.T
        matrix = (matrix + matrix.T) / 2.0
        (block,) = neighbours.pack(
            "dense", 0.5 * (vectors[:, :1] + vectors[:, 1:2] / condition).T, [1.0], None, [1]
        )
        norm = composed.stored_norm(1.0001 * condition)
        row = replay.open_block(replay.whiten(block, matrix, norm)).values[0].astype(np.longdouble)
        longest = max(longest, float(np.linalg.norm((matrix.astype(np.longdouble) @ row).astype(np.float64))))
    assert 0.99 < longest <= 1.0


def test_rows_are_scaled_for_the_rounding_of_few_directions() -> None:
    """The same row, where P is known by the directions in which it is shorter."""
    rng = np.random.default_rng(9)
    condition = 2.0**16
    longest = 0.0
    for d, k in [(24, 3), (45, 1), (93, 11)] * 60:
        vectors = np.linalg.qr(rng.normal(size=(d, k + 1)))[0].T
        directions = vectors[1:] * math.sqrt(1.0 - 1.0 / condition)
        matrix = np.eye(d) - directions.T @ directions
        row = 0.5 * (vectors[1] + vectors[0] / condition)
        (block,) = neighbours.pack("dense", row[None], [1.0], None, [1])
        norm = composed.stored_norm(1.0001 * condition)
        after = replay.open_block(replay.whiten(block, directions, norm, 1.0)).values[0].astype(np.longdouble)
        image = (matrix.astype(np.longdouble) @ after).astype(np.float64)
        longest = max(longest, float(np.linalg.norm(image)))
    assert 0.99 < longest <= 1.0


# Plans.


def row_bound(problem: Problem, loss: str, clip: float | None, n_mu: float) -> float:
    """C, for rows of norm at most 1; n_mu is halved where a change replaces a gradient."""

    def wider(narrow: float) -> float:
        return narrow * min(max(n_mu / (narrow * outputs) / (800.0 * problem.n_weights), 1.0), 4.0)

    outputs = 1.0 if loss == "softmax" else math.sqrt(problem.n_outputs)
    if loss == "softmax":
        return min(math.sqrt(2.0), clip or wider(math.sqrt(1.0 - 1.0 / problem.n_outputs)))
    derivative = clip or {"logistic": wider(0.5), "squared": min(wider(0.5), 2.0)}.get(loss, math.inf)
    if loss != "squared":
        derivative = min(1.0, derivative)
    return derivative * outputs


LOSSES_OF = {
    "binary": ("logistic", "huber_svm"),
    "multiclass": ("softmax", "logistic", "huber_svm"),
    "regression": ("squared",),
}


@dataclass(frozen=True)
class Case:
    """A random plan and the numbers it was asked for."""

    plan: Plan
    epsilon: float
    delta: float
    relation: Relation
    bound: float
    """How far one unit's gradient is from zero."""


def random_case(rng: np.random.Generator, method: str) -> Case:
    task = "regression" if method == "sufficient-statistics" else str(rng.choice(list(LOSSES_OF)))
    loss = str(rng.choice(LOSSES_OF[task]))
    m = int(rng.choice([1, 1, 2, 7, 100]))
    problem = Problem(
        int(10.0 ** rng.uniform(0.0, 7.0)),
        int(10.0 ** rng.uniform(0.0, 2.5)),
        int(rng.integers(2, 12)) if task == "multiclass" else 1,
        task,
        "id" if m > 1 else None,
        m,
    )
    training: dict[str, Any] = {"method": method, "loss": loss}
    unit_clip = None
    if method != "sufficient-statistics":
        if rng.random() < 0.5:
            training["clip"] = float(10.0 ** rng.uniform(-3.0, 1.0))
        if rng.random() < 0.5:
            training["passes"] = int(rng.integers(1, 200))
        if m > 1 and method == "dp-gd" and rng.random() < 0.5:
            unit_clip = training["unit_clip"] = float(10.0 ** rng.uniform(-2.0, 2.0))
    relation = Relation.REPLACE_ONE if rng.random() < 0.5 else Relation.ADD_REMOVE
    epsilon = float(10.0 ** rng.uniform(-2.0, 1.5))
    delta = None if rng.random() < 0.3 else float(10.0 ** rng.uniform(-12.0, -2.0))
    plan = decide(problem, PrivacySpec(epsilon, delta, relation), TrainSpec(**training))
    claimed = delta if delta is not None else 1.0 / max(problem.n_units, 2) ** 2
    share = gram_share(problem, plan.noise) if method == "whitened-dp-gd" else 0.0
    of_gradients = math.sqrt(1.0 - share)
    n_mu = problem.n_units / m * of_gradients * plan.noise.mu
    n_mu /= 2.0 if relation is Relation.REPLACE_ONE else 1.0
    bound = m * row_bound(problem, loss, training.get("clip"), n_mu)
    return Case(plan, epsilon, claimed, relation, min(bound, unit_clip or math.inf))


def check_release(noise: ReleaseNoise, sensitivity: float, rounding: float, n_numbers: int) -> float:
    """The release's mu for that sensitivity and everything that rounding does."""
    assert noise.kind == "gaussian"
    assert noise.n_weights == n_numbers
    assert noise.sensitivity == pytest.approx(sensitivity, rel=1e-12)
    assert 0.5 * 2.0**-20 * sensitivity < noise.grid * math.sqrt(n_numbers) <= 2.0**-20 * sensitivity
    assert math.frexp(noise.grid)[0] == 0.5
    needed = sensitivity + noise.grid * math.sqrt(n_numbers) + rounding
    assert noise.calibrated_sensitivity >= needed * (1.0 - 1e-12)
    assert noise.calibrated_sensitivity <= 1.0101 * sensitivity
    return needed / noise.scale


@pytest.mark.parametrize("method", ["dp-gd", "whitened-dp-gd", "sufficient-statistics"])
def test_plans_computed_again(method: str) -> None:
    """200 random plans: their releases compose to mu(epsilon, delta), each for all that a unit can move."""
    rng = np.random.default_rng(len(method))
    checked, shares = 0, set[float]()
    while checked < 200:
        try:
            case = random_case(rng, method)
        except GuaranteeError:
            continue
        checked += 1
        plan, problem = case.plan, case.plan.problem
        noise = plan.noise
        assert isinstance(noise, ComposedNoise)
        assert plan.guarantee is not None
        assert (plan.guarantee.epsilon, plan.guarantee.delta) == (case.epsilon, case.delta)
        assert plan.guarantee.relation is case.relation
        assert (plan.guarantee.unit, plan.guarantee.max_rows_per_unit) == (
            problem.unit,
            problem.max_rows_per_unit,
        )
        double = 2.0 if case.relation is Relation.REPLACE_ONE else 1.0
        n, m, d = problem.n_units, problem.max_rows_per_unit, problem.n_features
        # a fold of compensated sums takes up to 2048 rows; both neighbours' sums are rounded
        plain = 2.0**-52 * min(n * m, 2048)
        mu = gaussian_mu(case.epsilon, case.delta)
        squares, of_moments = 0.0, 0.0
        if method == "dp-gd":
            assert noise.moments is None
        else:
            assert noise.moments is not None
            labels = method == "sufficient-statistics"
            square = {(2.0, False): 2.0, (1.0, False): 1.0, (2.0, True): 4.5, (1.0, True): 2.0}[
                double, labels
            ]
            of_moments = check_release(
                noise.moments, m * math.sqrt(square), n * m * plain, d * (d + 1) // 2 + (d if labels else 0)
            )
            squares += of_moments**2
        if method == "sufficient-statistics":
            assert noise.gradient is None
            assert noise.steps == 0
        else:
            assert noise.gradient is not None
            assert isinstance(plan.work, dp_gd.Descent)
            assert plan.work.steps == noise.steps
            of_step = check_release(
                noise.gradient, double * case.bound, n * case.bound * plain, problem.n_weights
            )
            squares += noise.steps * of_step**2
            options = plan.work.options()
            clipped = options.get("gradient_clip", math.inf)
            assert min(plan.work.loss.lipschitz, clipped) * m >= case.bound * (1.0 - 1e-12)
            assert min(
                min(plan.work.loss.lipschitz, clipped) * m, options.get("unit_clip", math.inf)
            ) == pytest.approx(case.bound, rel=1e-12)
        # never above what was asked for, and below it only by the head room for rounding
        assert 0.97 * mu <= math.sqrt(squares) <= mu * (1.0 + 1e-9)
        if method == "whitened-dp-gd":
            share = gram_share(problem, noise)
            shares.add(round(share, 3))
            assert of_moments**2 == pytest.approx(share * mu**2, rel=0.03)
    assert method != "whitened-dp-gd" or {0.1, 0.025} < shares


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
def test_dp_accounting_finds_the_claimed_epsilon(epsilon: float) -> None:
    problem = Problem(10_000, 20, 1, "binary")
    plan = decide(problem, PrivacySpec(epsilon, 1e-6), TrainSpec(method="whitened-dp-gd"))
    noise, gradient = parts(plan)
    assert noise.moments is not None
    library: Any = pytest.importorskip("dp_accounting", reason="dp_accounting is not installed")
    pld: Any = pytest.importorskip("dp_accounting.pld", reason="dp_accounting is not installed")
    accountant = pld.PLDAccountant(value_discretization_interval=1e-4)
    accountant.compose(library.GaussianDpEvent(noise.moments.scale / math.sqrt(2.0)))
    accountant.compose(library.GaussianDpEvent(gradient.scale / (2.0 * 0.5)), noise.steps)
    assert 0.97 * epsilon <= accountant.get_epsilon(1e-6) <= 1.02 * epsilon


def exact_sum(terms: npt.NDArray[np.float64]) -> FloatArray:
    """Correctly rounded, over the first axis of shape (n, d)."""
    return np.array([math.fsum(column) for column in terms.T])


def test_rounding_of_sums_is_within_its_allowance() -> None:
    """Both of two neighbours' sums round, so each may take half of it."""
    rng = np.random.default_rng(12)
    n, d = 4000, 6
    x = rng.random((n, d))  # all of one sign: nothing cancels
    x = (x / np.linalg.norm(x, axis=1, keepdims=True) * 0.999).astype(np.float32).astype(np.float64)
    y = np.ones(n)
    blocks = neighbours.pack("dense", x, y, None, [*range(200, n, 200), n])
    plan = decide(Problem(n, d, 1, "regression"), PrivacySpec(1.0), TrainSpec(method="dp-gd", clip=0.5))
    _, gradient = parts(plan)
    found = replay.gradient(blocks, np.zeros(d), Loss("squared", clip=0.5)).gradient
    assert found is not None
    allowance = (
        gradient.calibrated_sensitivity - gradient.sensitivity - gradient.grid * math.sqrt(gradient.n_weights)
    )
    assert 0.0 < allowance < 0.01 * gradient.sensitivity
    assert np.linalg.norm(found - exact_sum(-0.5 * x)) <= allowance / 2.0
    moments = moments_plan(1.0, Relation.REPLACE_ONE, labels=True, n_features=d).noise
    assert isinstance(moments, ComposedNoise)
    sums = replay.gram(blocks)
    above = np.triu_indices(d)
    exact = exact_sum(x[:, above[0]] * x[:, above[1]])
    wanted = composed.calibrate_moments(
        relation=Relation.ADD_REMOVE, max_rows_per_unit=1, labels=True, mu=1.0, n_units=n, n_features=d
    )
    allowance = wanted.calibrated_sensitivity - wanted.sensitivity - wanted.grid * math.sqrt(wanted.n_weights)
    assert np.linalg.norm((sums.xx - exact) * np.where(above[0] == above[1], 1.0, math.sqrt(2.0))) <= (
        allowance / 2.0
    )


def test_units_that_do_not_fit_a_block_have_no_unit_clip() -> None:
    """Pieces of a unit would be clipped one by one, and together be longer."""
    problem = Problem(1000, 2000, 1, "binary", "id", 1_000_000)
    with pytest.raises(SpecError, match="max_rows_per_unit"):
        decide(problem, PrivacySpec(1.0), TrainSpec(method="dp-gd", unit_clip=0.5))
