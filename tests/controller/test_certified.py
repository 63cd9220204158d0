# SPDX-License-Identifier: PostgreSQL
"""The certified minimiser on packed rows and the kernels of the server, without a server."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from helpers import oracles, replay
from helpers.kernel_job import KernelJob
from helpers.neighbours import LOSSES, FloatArray, Table
from helpers.plans import decide
from pg_dpml.errors import GuaranteeError, SpecError
from pg_dpml.kernels import Loss
from pg_dpml.reports import plan_report, result_report
from pg_dpml.runs.train import TrainResult
from pg_dpml.spec.privacy import PrivacySpec
from pg_dpml.spec.relation import Relation
from pg_dpml.training import certified, minimise
from pg_dpml.training.certified import Certified, Objective, make_certified
from pg_dpml.training.job import Result
from pg_dpml.training.losses import loss_options
from pg_dpml.training.minimise import Goal
from pg_dpml.training.plan import Problem
from pg_dpml.training.spec import TrainSpec

ADULT = Problem(30_000, 105, 1, "binary")
ONE = PrivacySpec(1.0, 1e-9)
LONGEST_ROW = 1.0 - 2.0**-20
REPLACE = Relation.REPLACE_ONE
TASKS = {"logistic": "binary", "huber_svm": "binary", "squared": "regression", "softmax": "multiclass"}


def task(loss: Loss) -> str:
    return "multiclass" if loss.n_classes > 1 else TASKS[loss.kind]


class FakeJob:
    """A job whose rows are in this process: its passes are the kernels that the server runs."""

    def __init__(self, table: Table, loss: Loss, n_units: int | None = None) -> None:
        n, d = table.x.shape
        half = n // 2
        self.loss = loss
        self.packed = [
            replay.pack_dense(table.x[part], table.y[part])
            for part in (slice(half), slice(half, None))
            if len(table.y[part]) > 0
        ]
        self.blocks: Any = self
        self.problem = Problem(n_units or n, d, loss.n_classes, task(loss))
        self.plan = SimpleNamespace(problem=self.problem)
        self.rows = n
        self.passes = 0
        self.phases: list[tuple[str, int, int]] = []

    def report(self, phase: str, done: int, total: int) -> None:
        self.phases.append((phase, done, total))

    def gradient(self, weights: FloatArray, options: Mapping[str, Any]) -> Any:
        self.passes += 1
        assert options == loss_options(self.loss) | {"losses": False}
        found = replay.gradient(self.packed, weights, self.loss, losses=False)
        self.require_all(found.rows)
        return found

    def require_all(self, rows: int) -> None:
        assert rows == self.rows

    def hessian(self, weights: FloatArray, options: Mapping[str, Any]) -> FloatArray:
        self.passes += 1
        assert options == loss_options(self.loss)
        d = len(weights)
        full = np.zeros((d, d))
        full[np.triu_indices(d)] = replay.gram(self.packed, weights, self.loss).xx
        return full + np.triu(full, 1).T


def certify(job: FakeJob, lambda_: float, relation: Relation = REPLACE, m: int = 1) -> Certified:
    change = m * relation.gradient_change(job.loss.lipschitz)
    return make_certified(job.problem, Objective(job.loss, lambda_, m), change)


def answer(job: FakeJob, work: Certified) -> FloatArray:
    any_job: Any = job
    return work.objective.minimise(any_job, work.goal)[0]


def exact_gradient(table: Table, weights: FloatArray, objective: Objective, n_units: int) -> FloatArray:
    """Gradient of F in long double, from the oracle's formulas."""
    loss, lambda_ = objective.loss, objective.lambda_
    w = weights.reshape(loss.n_classes, -1).astype(np.longdouble)
    x, y = table.x.astype(np.float32).astype(np.longdouble), table.y
    scores = x @ w.T
    if loss.kind == "softmax":
        p = np.exp(scores - scores.max(axis=1, keepdims=True))
        slopes = p / p.sum(axis=1, keepdims=True)
        slopes[np.arange(len(y)), y.astype(int)] -= 1
    else:
        labels = y[:, None]
        if loss.n_classes > 1:
            labels = np.where(np.arange(loss.n_classes) == labels, 1.0, -1.0)
        slopes = _slopes(loss, scores, labels.astype(np.float32).astype(np.longdouble))
    gradient = slopes.T @ x / n_units + np.longdouble(lambda_) * w
    return np.asarray(gradient.reshape(-1))


def _slopes(loss: Loss, u: Any, y: Any) -> Any:
    if loss.kind == "squared":
        return np.clip(u - y, -loss.clip, loss.clip)
    if loss.kind == "logistic":
        return -y * np.minimum(1 / (1 + np.exp(y * u)), loss.clip)
    h = np.longdouble(loss.huber_h)
    return -y * np.clip((1 + h - y * u) / (2 * h), 0.0, min(1.0, loss.clip))


def labels(rng: np.random.Generator, loss: Loss, scores: FloatArray) -> FloatArray:
    """Labels that follow a score, for any loss."""
    if loss.n_classes > 1:
        return np.digitize(scores, np.quantile(scores, [1 / 3, 2 / 3])).astype(np.float64)
    if loss.kind == "squared":
        return np.clip(scores, -1.0, 1.0)
    noise = rng.normal(scale=0.01, size=scores.shape)
    return np.where(scores + noise > 0.0, 1.0, -1.0)


def shorten(x: FloatArray) -> FloatArray:
    x = x * (LONGEST_ROW / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), LONGEST_ROW))
    return (x * (1.0 - 2.0**-22)).astype(np.float32).astype(np.float64)


def nasty(kind: str, loss: Loss, rng: np.random.Generator) -> Table:
    """Rows that optimisers do not like."""
    n, d = (12, 30) if kind == "wide" else (150, 8)
    x = rng.normal(size=(n, d))
    scores = x[:, 0].copy()
    if kind == "collinear":
        x = rng.normal(size=(n, 1)) @ rng.normal(size=(1, d)) + 1e-5 * x
    elif kind == "duplicated":
        x, scores = np.repeat(x[:15], 10, axis=0), rng.normal(size=n)
    elif kind == "constant columns":
        x[:, 1:] = 1.0
    elif kind == "scaled":
        x *= np.logspace(0, -6, d)
    elif kind == "one-sided":
        scores = np.abs(scores) + 1.0
    elif kind == "zero":
        x[:] = 0.0
    return Table(shorten(x), labels(rng, loss, scores))


KINDS = (
    *("separable", "collinear", "duplicated", "constant columns"),
    *("scaled", "one-sided", "wide", "zero"),
)


@pytest.mark.parametrize("lambda_", [1.0, 1e-3, 1e-6])
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_table_is_certified(kind: str, loss: Loss, lambda_: float) -> None:
    table = nasty(kind, loss, np.random.default_rng(7))
    job = FakeJob(table, loss)
    work = certify(job, lambda_)
    weights = answer(job, work)
    exact = exact_gradient(table, weights, work.objective, len(table.y))
    assert float(np.linalg.norm(exact)) <= work.gradient_norm
    assert np.linalg.norm(weights) <= work.radius
    assert job.passes < 500


def random_pair(rng: np.random.Generator, loss: Loss, relation: Relation) -> tuple[Table, Table]:
    n, d = int(rng.integers(1, 40)), int(rng.integers(1, 6))
    x = shorten(rng.normal(size=(n, d)) * rng.choice([0.1, 1.0, 10.0]))
    table = Table(x, labels(rng, loss, rng.normal(size=n)))
    row = int(rng.integers(n))
    if relation is Relation.ADD_REMOVE:  # a zero row has a zero gradient, whatever its label
        return table, table.change(row, np.zeros(d), 0.0)
    return table, table.change(row, shorten(rng.normal(size=(1, d)) * 10.0)[0], rng.permutation(table.y)[0])


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_neighbours_are_no_farther_apart_than_the_sensitivity(loss: Loss) -> None:
    """A thousand pairs, over all losses."""
    rng = np.random.default_rng(11)
    for _ in range(125):
        relation = Relation.REPLACE_ONE if rng.random() < 0.5 else Relation.ADD_REMOVE
        pair = random_pair(rng, loss, relation)
        jobs = [FakeJob(table, loss) for table in pair]
        work = certify(jobs[0], float(10.0 ** rng.uniform(-5, 1)), relation)
        assert work == certify(jobs[1], work.objective.lambda_, relation)
        one, other = (answer(job, work) for job in jobs)
        change = relation.gradient_change(loss.lipschitz)
        assert np.linalg.norm(one - other) <= work.sensitivity(change, len(pair[0].y))


@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize(
    ("loss", "lambda_"),
    [
        (Loss("huber_svm", huber_h=0.5), 1.0),
        (Loss("logistic", clip=0.3), 1.0),
        (Loss("squared", clip=0.1), 1.0),
    ],
)
def test_worst_pair_reaches_the_sensitivity(loss: Loss, lambda_: float, relation: Relation) -> None:
    """Rows (1, 0) on the straight parts of their losses: the minimiser is their mean slope over lambda."""
    y = np.where(np.arange(50) % 2 == 0, 1.0, -1.0)
    x = np.zeros((50, 2))
    x[:, 0] = 1.0
    table = Table(shorten(x), y)
    zero_row = relation is Relation.ADD_REMOVE
    other = table.change(0, [0.0, 0.0], 0.0) if zero_row else table.change(0, table.x[0], -1.0)
    jobs = [FakeJob(t, loss) for t in (table, other)]
    work = certify(jobs[0], lambda_, relation)
    distance = np.linalg.norm(answer(jobs[0], work) - answer(jobs[1], work))
    bound = work.sensitivity(relation.gradient_change(loss.lipschitz), 50)
    assert 0.97 * bound <= distance <= bound


def test_units_of_several_rows() -> None:
    """m rows of one unit on the straight part of the loss move the answer by m D / (lambda n)."""
    loss, m, units = LOSSES["huber_svm"], 3, 40
    x = np.zeros((m * units, 2))
    x[:, 0] = 1.0
    table = Table(shorten(x), np.where(np.arange(m * units) // m % 2 == 0, 1.0, -1.0))
    other = table.change(slice(m), table.x[:m], -1.0)
    jobs = [FakeJob(t, loss, units) for t in (table, other)]
    work = certify(jobs[0], 1.0, m=m)
    assert work.objective.smoothness == m * loss.smoothness + 1.0
    distance = np.linalg.norm(answer(jobs[0], work) - answer(jobs[1], work))
    assert 0.97 * work.sensitivity(2.0 * m, units) <= distance <= work.sensitivity(2.0 * m, units)


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize("norm", [0.0, 0.5, 30.0, 1000.0])
def test_rounding_of_a_gradient_is_bounded(loss: Loss, norm: float) -> None:
    rng = np.random.default_rng(3)
    for n, d in ((3000, 5), (200, 300)):
        x = shorten(rng.normal(size=(n, d)) * 100.0)
        table = Table(x, labels(rng, loss, x[:, 0]))
        objective = Objective(loss, 0.01, 1)
        weights = rng.normal(size=loss.n_classes * d)
        weights *= norm / np.linalg.norm(weights)
        found = FakeJob(table, loss).gradient(weights, loss_options(loss) | {"losses": False}).gradient
        error = found / n + 0.01 * weights - exact_gradient(table, weights, objective, n)
        assert float(np.linalg.norm(error)) <= objective.rounding(norm, d)


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_no_minimiser_is_longer_than_its_bound(loss: Loss) -> None:
    """The bound on the norm is nearly attained where all rows are one row."""
    for lambda_ in (1e-3, 0.1, 10.0):
        table = Table(shorten(np.ones((4, 1))), np.ones(4))
        job = FakeJob(table, loss)
        work = certify(job, lambda_)
        assert np.linalg.norm(answer(job, work)) <= work.objective.largest_minimiser + 1e-6 / lambda_
    at_zero = np.log(3.0) if loss.kind == "softmax" else 0.0
    if loss.kind != "softmax":
        at_zero = loss.n_classes * oracles.loss(loss.kind, 0.0, 1.0, clip=loss.clip, h=loss.huber_h)[0]
    assert Objective(loss, 1e-6, 1).largest_minimiser == pytest.approx(math.sqrt(2e6 * at_zero))


# The optimiser


def quadratic(eigenvalues: FloatArray, target: FloatArray) -> Callable[[FloatArray], FloatArray]:
    return lambda w: eigenvalues * (w - target)


@pytest.mark.parametrize("condition", [1.0, 30.0, 1e4])
@pytest.mark.parametrize("error", ["none", "constant", "alternating", "random", "away"])
def test_the_last_method_alone_reaches_what_is_proved(error: str, condition: float) -> None:
    """With errors of norm f in every gradient, and within the proved number of passes."""
    rng = np.random.default_rng(5)
    d, f = 20, 1e-9
    eigenvalues = np.geomspace(1.0 / condition, 1.0, d)
    target = rng.normal(size=d)
    exact = quadratic(eigenvalues, target)
    direction = rng.normal(size=d)
    calls = 0

    def noisy(w: FloatArray) -> FloatArray:
        nonlocal calls
        calls += 1
        e = {
            "none": np.zeros(d),
            "constant": direction,
            "alternating": direction * (-1.0) ** calls,
            "random": rng.normal(size=d),
            "away": target - w,
        }[error]
        return exact(w) + e * (f / max(float(np.linalg.norm(e)), 1e-300))

    bound = (4.0 * math.sqrt(condition) + 3.0) * f
    search = minimise._Search(noisy, Goal(bound), np.zeros(d))
    first = search.norm
    minimise._accelerated(search, 1.0 / condition, 1.0)
    assert search.norm <= bound
    periods = math.ceil(math.log((first / f) ** 2 / 2.0, 4.0))
    assert calls <= periods * minimise._period(1.0 / condition, 1.0) + 2


@pytest.mark.parametrize("useless", [None, -1.0, 1e-9, math.nan])
def test_a_method_that_fails_is_followed_by_one_that_does_not(
    monkeypatch: pytest.MonkeyPatch, useless: float | None
) -> None:
    """Line searches that always fail, and a Hessian that is of no use."""
    monkeypatch.setattr(minimise, "_line_search", lambda *given: None)
    d = 6
    eigenvalues = np.geomspace(1e-3, 1.0, d)
    with np.errstate(all="ignore"):
        point, passes = minimise.minimise(
            quadratic(eigenvalues, np.ones(d)),
            np.zeros(d),
            Goal(1e-10, 10.0),
            convexity=1e-3,
            smoothness=1.0,
            hessian=None if useless is None else lambda w: np.diag(np.full(d, useless)),
        )
    assert np.linalg.norm(eigenvalues * (point - 1.0)) <= 1e-10
    assert passes < 3000


def test_a_point_outside_the_ball_is_not_accepted() -> None:
    """A gradient that lies about a far point."""

    def lying(w: FloatArray) -> FloatArray:
        return np.zeros(1) if abs(w[0]) > 2.0 else w - 1.0

    for start in (np.zeros(1), np.array([1.9])):
        point, _ = minimise.minimise(lying, start, Goal(1e-8, 2.0), convexity=0.01, smoothness=100.0)
        assert abs(point[0] - 1.0) <= 1e-8


def test_without_convexity_it_gives_up() -> None:
    """A logistic loss of one row has no minimiser."""
    point, passes = minimise.minimise(
        lambda w: -1.0 / (1.0 + np.exp(w)),
        np.zeros(1),
        Goal(0.0, math.inf, 40),
        convexity=0.0,
        smoothness=0.25,
    )
    assert passes <= 40
    assert point[0] > 5.0


# The plan


def plan(problem: Problem = ADULT, privacy: PrivacySpec = ONE, **training: Any) -> Any:
    return decide(problem, privacy, TrainSpec(method="bolt-on", **training))


@pytest.mark.parametrize("delta", [0.0, None])
@pytest.mark.parametrize("relation", Relation)
def test_noise_of_a_certified_run(relation: Relation, delta: float | None) -> None:
    found = plan(privacy=PrivacySpec(1.0, delta, relation), lambda_=1e-3)
    assert isinstance(found.work, Certified)
    change = relation.gradient_change(0.5)  # the default clip
    assert found.work.gradient_norm == pytest.approx(0.01 * change / 30_000)
    assert found.noise.sensitivity == pytest.approx(1.02 * change / (1e-3 * 30_000))
    assert found.noise.calibrated_sensitivity > found.noise.sensitivity
    assert found.noise.kind == ("k-norm" if delta == 0.0 else "gaussian")
    assert found.warnings == () or "noise" in found.warnings[0]
    assert found.work.passes is None


def test_classes_and_units_count_as_in_sgd() -> None:
    one = plan(dataclasses.replace(ADULT, n_units=900), lambda_=0.1).noise.sensitivity
    joint = plan(Problem(900, 5, 4, "multiclass"), loss="logistic", lambda_=0.1).noise.sensitivity
    units = plan(dataclasses.replace(ADULT, n_units=900, unit="id", max_rows_per_unit=3), lambda_=0.1)
    assert joint == pytest.approx(2.0 * one)
    assert units.noise.sensitivity == pytest.approx(3.0 * one)
    assert units.work.objective.smoothness == 3 * 0.25 + 0.1


def test_tau_is_above_the_rounding_whatever_n() -> None:
    """Decided from public numbers: 0.01 D / n, or what the last method is sure to reach."""
    for n_rows in (1, 10**3, 10**6, 10**9, 10**15):
        for lambda_ in (1e-6, 1e-3, 1.0, 1e6):
            for problem in (Problem(n_rows, 50, 1, "binary"), Problem(n_rows, 500, 10, "multiclass")):
                work: Certified = plan(problem, lambda_=lambda_).work
                kappa = work.objective.smoothness / lambda_
                least = 4.0 * (1.0 + math.sqrt(kappa)) * work.rounding
                assert work.gradient_norm >= least * (1.0 - 1e-9)
                share = 0.01 * 2.0 * work.loss.lipschitz / n_rows
                assert work.gradient_norm == pytest.approx(max(share, least), rel=1e-6)
                assert work.radius == work.objective.largest_minimiser + work.gradient_norm / lambda_
                assert 0.0 < work.goal.gradient_norm < work.gradient_norm - work.rounding
                assert work.rounding == work.objective.rounding(work.radius, problem.n_features)
    assert plan(Problem(10**6, 50, 1, "binary"), lambda_=1e-4).warnings == ()
    (warning, *_) = plan(Problem(10**12, 50, 1, "binary"), lambda_=1e-4).warnings
    assert "larger lambda" in warning


def test_a_lambda_too_small_for_float64_is_refused() -> None:
    with pytest.raises(GuaranteeError, match=r"lambda = 1e-15.*solver = sgd"):
        plan(lambda_=1e-15)
    with pytest.raises(GuaranteeError, match=r"clip"):
        plan(lambda_=1e6, clip=1e-300)


@pytest.mark.parametrize("huber_h", [1e200, 1e270])
def test_a_minimiser_too_long_for_float64_is_not_looked_for(huber_h: float) -> None:
    """No point would be short enough to be kept, and for most tables the search would have no end."""
    problem = Problem(5, 1, 1, "binary")
    with pytest.raises(GuaranteeError, match=r"minimiser may be as long as \d\.\de\+[12]\d\d.*larger lambda"):
        plan(problem, loss="huber_svm", huber_h=huber_h, lambda_=1e-160, solver="certified")
    blocks = [replay.pack_dense(np.full((5, 1), 0.99), np.ones(5), None)]
    for method in ("objpert", "amp", "amp-hf"):
        chosen = decide(problem, ONE, TrainSpec(method, loss="huber_svm", huber_h=huber_h))
        for _ in range(5):
            assert np.all(np.isfinite(chosen.run(KernelJob(chosen, blocks)).weights))


def test_the_solver_is_chosen_by_what_is_given() -> None:
    sgd: list[dict[str, Any]] = [
        {},
        {"lambda_": 0.0},
        {"lambda_": 0.1, "solver": "sgd"},
        {"lambda_": 0.1, "passes": 3},
        {"lambda_": 0.1, "batch_size": 10},
        {"lambda_": 0.1, "schedule": "constant"},
        {"lambda_": 0.1, "schedule": "constant", "step_size": 0.1},
        {"lambda_": 0.1, "average": "all"},
        {"lambda_": 0.1, "radius": 1.0},
        {"lambda_": 0.1, "fresh_order": True},
    ]
    assert not any(isinstance(plan(**training).work, Certified) for training in sgd)
    exact: list[dict[str, Any]] = [
        {},
        {"solver": "certified"},
        {"clip": 0.1},
        {"loss": "huber_svm", "huber_h": 1.0},
    ]
    assert all(isinstance(plan(lambda_=0.1, **training).work, Certified) for training in exact)


@pytest.mark.parametrize(
    ("training", "words"),
    [
        ({}, ["certified needs lambda > 0", "solver = sgd"]),
        ({"lambda_": 0.0}, ["certified needs lambda > 0"]),
        ({"lambda_": 0.1, "radius": 1.0}, ["radius belongs to solver = sgd"]),
        ({"lambda_": 0.1, "passes": 5}, ["passes belongs to solver = sgd"]),
        ({"lambda_": 0.1, "average": "all"}, ["average belongs"]),
        ({"lambda_": 0.1, "fresh_order": True}, ["fresh_order belongs"]),
    ],
)
def test_refusals(training: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(SpecError) as refusal:
        plan(solver="certified", **training)
    for word in words:
        assert word in str(refusal.value)


def test_an_empty_table_and_a_table_of_one() -> None:
    empty = plan(Problem(0, 3, 1, "binary"), lambda_=0.1)
    assert (empty.noise.scale, empty.noise.sensitivity) == (0.0, 0.0)
    assert "empty" in empty.warnings[0]
    job: Any = SimpleNamespace(plan=empty)
    assert empty.work.objective.minimise(job, empty.work.goal)[0].tolist() == [0.0, 0.0, 0.0]
    assert plan(Problem(1, 3, 1, "binary"), lambda_=0.1).noise.sensitivity == pytest.approx(1.02 / 0.1)


def test_a_run_tells_no_number_of_passes() -> None:
    """Neither the result, nor progress, nor a report has what depends on the rows."""
    loss = LOSSES["logistic-clipped"]
    seen = []
    for table in (nasty(kind, loss, np.random.default_rng(2)) for kind in ("scaled", "constant columns")):
        job: Any = FakeJob(table, loss)
        job.plan = plan(job.problem, clip=0.3, lambda_=1e-3)
        result: Result = job.plan.run(job)
        assert result.passes is None
        seen.append((job.passes, job.phases))
    assert seen[0][0] != seen[1][0]
    assert seen[0][1] == seen[1][1] == [("minimise", 0, 1), ("minimise", 1, 1)]
    record = plan_report.plan_record(job.plan)
    assert (record["passes"], record["solver"]) == (None, "certified")
    json.dumps(record, allow_nan=False)
    text = " ".join(plan_report.plan_text(job.plan).split())
    assert "until the norm of the gradient is certified" in text
    training: dict[str, Any] = {"features": []}
    weights = np.zeros(1)
    model: Any = SimpleNamespace(
        name="m", charge=1, classes=None, training=training, weights=weights, whitening=None
    )
    done = TrainResult(model, job.plan, None, 12.345)
    assert "12.3" not in result_report.result_text(done)
    assert {"seconds", "passes_taken"}.isdisjoint(result_report.result_record(done))


# The baseline


def lbfgs(problem: Problem = ADULT, **training: Any) -> Any:
    return decide(problem, None, TrainSpec(method="lbfgs", **training))


def test_no_point_beyond_float64_is_tried() -> None:
    """Of a function that falls for ever; the server rejects weights that are not finite."""
    tried: list[FloatArray] = []

    def slope(point: FloatArray) -> FloatArray:
        tried.append(point)
        return np.array([-1.0, 0.0])

    with np.errstate(over="ignore"):
        minimise.minimise(slope, np.zeros(2), Goal(0.0, math.inf, 60), convexity=0.0, smoothness=1e-300)
    assert len(tried) > 5
    assert np.all(np.isfinite(tried))


def test_the_baseline_minimises_and_is_not_private() -> None:
    loss = Loss("logistic")
    table = nasty("duplicated", loss, np.random.default_rng(1))
    for training, norm in (({}, 1e-8), ({"tolerance": 1e-3}, 1e-3), ({"lambda_": 0.0}, 1e-8)):
        job: Any = FakeJob(table, loss)
        job.plan = lbfgs(job.problem, **training)
        assert (job.plan.private, job.plan.method, job.plan.work.tolerance) == (False, "lbfgs", norm)
        assert job.plan.work.loss.clip == math.inf
        result = job.plan.run(job)
        assert result.passes == job.passes <= job.plan.work.passes
        objective = Objective(loss, training.get("lambda_", 1e-6), 1)
        exact = exact_gradient(table, result.weights, objective, len(table.y))
        assert float(np.linalg.norm(exact)) <= 1.001 * norm


def test_the_baseline_stops_after_the_passes_asked_for() -> None:
    loss = Loss("logistic")
    job: Any = FakeJob(nasty("separable", loss, np.random.default_rng(1)), loss)
    job.plan = lbfgs(job.problem, lambda_=0.0, passes=7)
    assert job.plan.run(job).passes == 7


def test_options_of_others_are_refused() -> None:
    given: dict[str, Any] = {"batch_size": 10, "schedule": "constant", "radius": 1.0, "average": "all"}
    for name, value in given.items():
        with pytest.raises(SpecError, match=f"{name} belongs to method"):
            lbfgs(**{name: value})
    for method in ("lbfgs", "noiseless"):
        with pytest.raises(SpecError, match="solver belongs to method bolt-on"):
            TrainSpec(method=method, solver="sgd")


def test_limits_are_those_of_the_server() -> None:
    assert certified.MOST_FEATURES_OF_HESSIAN == 2500
    wide = Problem(100, 2501, 1, "binary")
    assert not Objective(Loss("logistic"), 0.1, 1)._has_hessian(wide)
    assert not Objective(LOSSES["softmax"], 0.1, 1)._has_hessian(ADULT)


def test_squares_that_vanish_are_no_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    """L-BFGS divides by the square of a change of the gradient."""
    found = iter([(np.ones(2), np.full(2, 3e-200)), None])
    monkeypatch.setattr(minimise, "_line_search", lambda *given: next(found))
    search = minimise._Search(lambda w: np.ones(2), Goal(1e-300), np.zeros(2))
    search.gradient = np.full(2, 1e-200)
    minimise._lbfgs(search, 1.0, 10)
    assert next(found, "all read") == "all read"


def test_a_gradient_too_small_for_float64_is_refused() -> None:
    with pytest.raises(GuaranteeError, match="cannot be certified in float64"):
        plan(Problem(1000, 2, 1, "binary"), lambda_=1.0, clip=1.572e-162)
