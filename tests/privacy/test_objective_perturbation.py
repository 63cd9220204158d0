# SPDX-License-Identifier: PostgreSQL
"""Objective perturbation: the density and the determinant of minimisers, and what a plan pays for them.

Source: privacy/README.md, "Objective perturbation".
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

from helpers import neighbours
from helpers.kernel_job import KernelJob
from helpers.neighbours import LONGEST_ROW, FloatArray
from helpers.plans import decide
from pg_dpml.errors import GuaranteeError, SpecError
from pg_dpml.kernels import Loss, Noise
from pg_dpml.methods import objective_perturbation
from pg_dpml.privacy.accounting import objective as accounting
from pg_dpml.privacy.accounting.objective import RowTerms
from pg_dpml.privacy.gaussian import gaussian_delta
from pg_dpml.privacy.noise import objective
from pg_dpml.privacy.noise.objective import ObjectiveNoise
from pg_dpml.spec import privacy as privacy_spec
from pg_dpml.spec.privacy import PrivacySpec
from pg_dpml.spec.relation import Relation
from pg_dpml.training.certified import Certified
from pg_dpml.training.losses import loss_options
from pg_dpml.training.minimise import Goal, minimise
from pg_dpml.training.plan import Plan, Problem
from pg_dpml.training.spec import TrainSpec

LEAST_P = 1e-6
DRAWS = 100_000
METHODS = ("objpert", "amp", "amp-hf")
LOSSES = {
    "logistic": Loss("logistic"),
    "logistic-clipped": Loss("logistic", clip=0.3),
    "huber_svm": Loss("huber_svm", huber_h=0.5),
    "softmax": Loss("softmax", n_classes=3),
    "one-vs-all": Loss("logistic", n_classes=3),
}


def parts(plan: Plan) -> tuple[Certified, ObjectiveNoise]:
    assert isinstance(plan.work, Certified)
    assert isinstance(plan.noise, ObjectiveNoise)
    return plan.work, plan.noise


# The two factors of the ratio of densities.


def row_hessian(loss: Loss, w: FloatArray, x: FloatArray, y: float) -> FloatArray:
    """Hessian of one row's loss by the formulas, shape (K d, K d)."""
    scores = w.reshape(loss.n_classes, -1) @ x
    if loss.kind == "softmax":
        p = np.exp(scores - scores.max())
        p /= p.sum()
        curvature = np.diag(p) - np.outer(p, p)
    else:
        signs = np.array([y]) if loss.n_classes == 1 else np.where(np.arange(loss.n_classes) == y, 1.0, -1.0)
        if loss.kind == "huber_svm":
            bends = (np.abs(1.0 - signs * scores) <= loss.huber_h) / (2.0 * loss.huber_h)
        else:
            share = 1.0 / (1.0 + np.exp(signs * scores))
            bends = share * (1.0 - share) * (share < loss.clip)
        curvature = np.diag(bends)
    return np.asarray(np.kron(curvature, np.outer(x, x)))


@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_determinants_of_neighbours_stay_within_what_is_paid(loss: Loss, relation: Relation) -> None:
    rng = np.random.default_rng(3)
    terms = accounting.row_terms(loss)
    reached = 0.0
    for _ in range(400):
        m, d = int(rng.choice([1, 1, 2, 3])), int(rng.integers(1, 6))
        others = int(rng.choice([0, 0, 1, 3]))
        size, regulariser = loss.n_classes * d, float(10.0 ** rng.uniform(-2.0, 2.0))
        w = rng.normal(size=size) * rng.choice([0.0, 0.3, 3.0])
        if loss.kind == "huber_svm":
            w[0] = 1.0  # into the bend
        x = rng.normal(size=(others + 2 * m, d))
        x[:, 0] += rng.choice([0.0, 5.0])
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        y = (
            rng.integers(loss.n_classes, size=len(x))
            if loss.n_classes > 1
            else rng.choice([-1.0, 1.0], len(x))
        )
        rows = [row_hessian(loss, w, *row) for row in zip(x, y, strict=True)]
        rest = sum(rows[2 * m :], np.zeros((size, size))) + regulariser * np.eye(size)
        one, other = rest + sum(rows[:m]), rest + sum(rows[m : 2 * m])
        if relation is Relation.ADD_REMOVE:
            other = rest
        moved = abs(float(np.linalg.slogdet(one)[1] - np.linalg.slogdet(other)[1]))
        allowed = accounting.determinant_epsilon(terms, m, regulariser)
        assert moved <= allowed
        reached = max(reached, moved / allowed)
    assert reached > 0.6


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_the_determinant_is_attained_by_one_row(loss: Loss) -> None:
    """Where scores are 0, or in the Huber SVM's bend, and no other row has curvature."""
    terms = accounting.row_terms(loss)
    w = np.zeros(loss.n_classes * 2)
    if loss.kind == "huber_svm":
        w[0] = 1.0
    hessian = row_hessian(loss, w, np.array([1.0, 0.0]), 1.0)
    if loss.clip < 0.5:  # at 0 the clip has cut the curve off; beta is a bound
        return
    moved = float(np.linalg.slogdet(hessian + 0.7 * np.eye(len(w)))[1]) - len(w) * math.log(0.7)
    assert moved == pytest.approx(accounting.determinant_epsilon(terms, 1, 0.7), rel=1e-6)
    epsilon = 0.3
    assert accounting.determinant_epsilon(
        terms, 2, accounting.least_regulariser(terms, 2, epsilon)
    ) == pytest.approx(epsilon, rel=1e-6)


def vertices(loss: Loss, relation: Relation) -> FloatArray:
    """All vertices of the set of shifts of one row in two dimensions; opposite rows are the worst."""
    if loss.kind == "softmax":
        simplex = np.eye(3) - np.eye(3)[0]
        one = np.array([np.outer(v, [1.0, 0.0]).ravel() for v in simplex])
        other = np.array([-np.outer(v, [-1.0, 0.0]).ravel() for v in simplex])
    else:
        bits = np.array(list(itertools.product([0.0, 1.0], repeat=loss.n_classes)))
        bits *= loss.lipschitz / math.sqrt(loss.n_classes)
        one = np.array([np.outer(v, [1.0, 0.0]).ravel() for v in bits])
        other = one
    if relation is Relation.ADD_REMOVE:
        return one
    return np.array([a + b for a in one for b in other])


@pytest.mark.parametrize("epsilon", [0.1, 1.0])
@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_the_worst_shift_for_each_noise_stays_within_delta(
    loss: Loss, relation: Relation, epsilon: float
) -> None:
    """An adversary who sees b and takes the vertex with the largest loss."""
    rng = np.random.default_rng(4)
    shifts = vertices(loss, relation)
    terms = accounting.row_terms(loss)
    n_rows = 2 if relation is Relation.REPLACE_ONE else 1
    mu = accounting.density_mu(epsilon, 0.02, terms, n_rows)
    assert accounting.density_delta(epsilon, mu, terms, n_rows) == pytest.approx(0.02, rel=1e-6)
    stddev = n_rows * terms.lipschitz / mu
    assert max(np.linalg.norm(shifts, axis=1)) <= n_rows * terms.lipschitz * (1.0 + 1e-12)
    b = rng.normal(scale=stddev, size=(DRAWS, shifts.shape[1]))
    losses = (b @ shifts.T + 0.5 * np.sum(shifts**2, axis=1)) / stddev**2
    seen = -np.expm1(np.minimum(epsilon - losses.max(axis=1), 0.0))
    assert float(seen.mean()) <= 0.02 + 5.0 * float(seen.std()) / math.sqrt(DRAWS)
    assert float(seen.mean()) >= 0.02 / (2.0 * len(shifts))


def test_deltas_of_vertices_are_the_formulas_of_one_row() -> None:
    """As published for one-signed derivatives, and by counts for classes and units."""
    mu, epsilon = 0.7, 0.4
    one = RowTerms(1.0, 0.0, 1, 0.25)

    def dg(share: float) -> float:
        return gaussian_delta(epsilon, share * mu)

    assert accounting.density_delta(epsilon, mu, one, 1) == pytest.approx(dg(1.0), rel=1e-8)
    assert accounting.density_delta(epsilon, mu, one, 2) == pytest.approx(dg(1.0) + 2.0 * dg(0.5), rel=1e-8)
    softmax = accounting.row_terms(Loss("softmax", n_classes=5))
    assert accounting.density_delta(epsilon, mu, softmax, 1) == pytest.approx(4.0 * dg(1.0), rel=1e-8)
    assert accounting.density_delta(epsilon, mu, softmax, 2) == pytest.approx(
        16.0 * dg(1.0) + 8.0 * dg(0.5), rel=1e-8
    )
    for n_rows in (3, 8, 9, 20):
        exact = sum(math.comb(n_rows, j) * 2.0**j * dg(j / n_rows) for j in range(1, n_rows + 1))
        found = accounting.density_delta(epsilon, mu, RowTerms(1.0, math.log(2.0), 2, 1.0 / 3.0), n_rows)
        assert exact * (1.0 - 1e-9) <= found or found > 1.0


# The mechanism itself: minimisers of random objectives, and the densities of both tables there.


def gradient_sum(loss: Loss, w: FloatArray, x: FloatArray, y: FloatArray) -> FloatArray:
    """Sum of the rows' gradients at each of many models, shape (draws, K d)."""
    models = w.reshape(len(w), loss.n_classes, -1)
    scores = np.einsum("skd,rd->srk", models, x)
    if loss.kind == "softmax":
        p = np.exp(scores - scores.max(axis=2, keepdims=True))
        slopes = p / p.sum(axis=2, keepdims=True) - np.eye(loss.n_classes)[y.astype(int)]
    else:
        slopes = -y[:, None] / (1.0 + np.exp(y[:, None] * scores))
    return np.asarray(np.einsum("srk,rd->skd", slopes, x).reshape(len(w), -1))


def hessian_sum(loss: Loss, w: FloatArray, x: FloatArray) -> FloatArray:
    """Sum of the rows' Hessians, shape (draws, K d, K d)."""
    k, d = loss.n_classes, x.shape[1]
    scores = np.einsum("skd,rd->srk", w.reshape(len(w), k, -1), x)
    if loss.kind == "softmax":
        p = np.exp(scores - scores.max(axis=2, keepdims=True))
        p /= p.sum(axis=2, keepdims=True)
        curvature = p[..., None] * np.eye(k) - p[..., None] * p[..., None, :]
    else:
        p = 1.0 / (1.0 + np.exp(scores))
        curvature = (p * (1.0 - p))[..., None]
    found = np.einsum("srkl,rd,re->skdle", curvature, x, x)
    return np.asarray(found.reshape(len(w), k * d, k * d))


def minimisers(
    loss: Loss, x: FloatArray, y: FloatArray, regulariser: float, linear: FloatArray
) -> FloatArray:
    """Zeros of sum of gradients + Lambda w + n b, by Newton's method with halved steps."""
    w = np.zeros_like(linear)

    def residual(at: FloatArray) -> FloatArray:
        return gradient_sum(loss, at, x, y) + regulariser * at + linear

    for _ in range(60):
        now = residual(w)
        norms = np.linalg.norm(now, axis=1)
        if norms.max() < 1e-10 * (1.0 + np.abs(linear).max()):
            break
        system = hessian_sum(loss, w, x) + regulariser * np.eye(w.shape[1])
        step = -np.linalg.solve(system, now[..., None])[..., 0]
        share = np.ones(len(w))
        for _ in range(30):
            worse = np.linalg.norm(residual(w + share[:, None] * step), axis=1) > norms
            if not worse.any():
                break
            share[worse] *= 0.5
        w = w + share[:, None] * step
    assert np.linalg.norm(residual(w), axis=1).max() < 1e-6 * (1.0 + np.abs(linear).max())
    return w


def pairs(
    loss: Loss, relation: Relation
) -> tuple[tuple[FloatArray, FloatArray], tuple[FloatArray, FloatArray]]:
    """Two tables of two rows that differ in the first one, as far as they can."""
    x = np.array([[1.0, 0.0], [0.6, 0.8]])
    other = x.copy()
    other[0] = [0.0, 0.0] if relation is Relation.ADD_REMOVE else [-1.0, 0.0]
    y = np.array([1.0, 1.0]) if loss.n_classes == 1 else np.array([0.0, 2.0])
    return (x, y), (other, y)


@pytest.mark.statistical
@pytest.mark.parametrize("pure", [False, True], ids=["gaussian", "pure"])
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize("loss", [LOSSES["logistic"], LOSSES["softmax"]], ids=["logistic", "softmax"])
def test_minimisers_of_neighbours_are_as_private_as_paid_for(
    loss: Loss, relation: Relation, swapped: bool, pure: bool
) -> None:
    """10^5 draws: the mean of the ratio is 1, so densities are right; their excess stays below delta_1."""
    rng = np.random.default_rng(5)
    terms = accounting.row_terms(loss)
    spent, left, delta = 0.4, 0.6, 0.05
    regulariser = accounting.least_regulariser(terms, 1, spent)
    n_rows = 2 if relation is Relation.REPLACE_ONE else 1
    change = n_rows * terms.lipschitz
    (x, y), (other_x, other_y) = pairs(loss, relation)[:: -1 if swapped else 1]
    size = loss.n_classes * x.shape[1]
    if pure:
        scale = change / left
        radius = rng.gamma(size, scale, size=DRAWS)
        direction = rng.normal(size=(DRAWS, size))
        linear = radius[:, None] * direction / np.linalg.norm(direction, axis=1, keepdims=True)
    else:
        scale = change / accounting.density_mu(left, delta, terms, n_rows)
        linear = rng.normal(scale=scale, size=(DRAWS, size))
    w = minimisers(loss, x, y, regulariser, linear)
    shifted = -gradient_sum(loss, w, other_x, other_y) - regulariser * w
    if pure:
        density = (np.linalg.norm(shifted, axis=1) - np.linalg.norm(linear, axis=1)) / scale
    else:
        density = (np.sum(shifted**2, axis=1) - np.sum(linear**2, axis=1)) / (2.0 * scale**2)
    identity = regulariser * np.eye(size)
    determinant = (
        np.linalg.slogdet(hessian_sum(loss, w, x) + identity)[1]
        - np.linalg.slogdet(hessian_sum(loss, w, other_x) + identity)[1]
    )
    privacy_loss = density + determinant
    ratio = np.exp(-privacy_loss)
    assert float(ratio.mean()) == pytest.approx(1.0, abs=5.0 * float(ratio.std()) / math.sqrt(DRAWS))
    assert float(np.abs(determinant).max()) <= spent * (1.0 + 1e-6)
    excess = -np.expm1(np.minimum(spent + left - privacy_loss, 0.0))
    if pure:
        assert float(privacy_loss.max()) <= spent + left + 1e-9
        assert float(privacy_loss.max()) > 0.25
    else:
        assert float(excess.mean()) <= delta + 5.0 * float(excess.std()) / math.sqrt(DRAWS)


# What plans pay for.


@pytest.mark.parametrize("m", [1, 3])
@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize(
    ("task", "loss", "n_outputs"),
    [("binary", "logistic", 1), ("binary", "huber_svm", 1), ("multiclass", "softmax", 3)],
)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("epsilon", [0.05, 1.0, 10.0])
def test_a_plan_pays_for_its_parts(
    method: str, task: str, loss: str, n_outputs: int, relation: Relation, m: int, epsilon: float
) -> None:
    """By the rules, written again: epsilon and delta of determinant, density and answer."""
    n, d, delta = 5000, 30, 1e-7
    problem = Problem(n, d, n_outputs, task, "id" if m > 1 else None, m)
    for given in (None, 0.3):
        spec = TrainSpec(method=method, loss=loss, lambda_=given)
        plan = decide(problem, PrivacySpec(epsilon, delta, relation), spec)
        work, noise = parts(plan)
        clip = 0.5 if loss == "logistic" and method != "amp-hf" else 1.0
        lipschitz = math.sqrt(2.0) if loss == "softmax" else clip
        rank, curvature = (
            (2, 1.0 / 3.0) if loss == "softmax" else (1, {"logistic": 0.25, "huber_svm": 1.0}[loss])
        )
        regulariser = noise.convexity * n
        assert work.objective.lambda_ == noise.convexity
        assert given is None or regulariser == pytest.approx(given * n, rel=1e-12)
        paid = m * rank * math.log1p(curvature / regulariser)
        assert 0.0 < paid <= 0.1 * epsilon * (1.0 + 1e-6)
        left = 0.99 * epsilon - paid
        rows = m * (2 if relation is Relation.REPLACE_ONE else 1)
        change = rows * lipschitz / n
        if noise.linear.kind == "gaussian":
            steps = range(1, rows + 1)
            spent = sum(
                math.comb(rows, j)
                * (n_outputs - 1 if n_outputs > 1 else 1) ** j
                * gaussian_delta(left, j * lipschitz / n / noise.linear.scale)
                for j in steps
            )
            assert 0.97 * delta <= spent <= 0.99 * delta
        else:
            assert change / noise.linear.scale <= left
        # the answer
        wanted = 2.0 * work.gradient_norm / noise.convexity
        assert noise.answer.sensitivity == pytest.approx(wanted, rel=1e-12)
        if noise.answer.kind == "gaussian":
            assert gaussian_delta(0.01 * epsilon, wanted / noise.answer.scale) <= 0.01 * delta
        else:
            assert wanted / noise.answer.scale <= 0.01 * epsilon
        moved = 0.5 * noise.linear.grid * math.sqrt(noise.n_weights)
        rounding = work.objective.rounding(work.radius, d)
        assert work.rounding == pytest.approx(rounding + moved, rel=1e-9, abs=0.0)
        assert moved <= work.gradient_norm / 512.0
        assert work.gradient_norm >= 1.0 / n**2 or method == "objpert"
        assert (
            work.goal.gradient_norm
            >= (4.0 * math.sqrt(work.objective.smoothness / noise.convexity) + 2.0) * rounding
        )


def test_bad_arguments_are_refused() -> None:
    problem, privacy = Problem(1000, 5, 1, "regression"), PrivacySpec(1.0)
    for method in METHODS:
        with pytest.raises(SpecError, match=f"method = {method} is for a label of classes, not for a number"):
            decide(problem, privacy, TrainSpec(method=method))
        with pytest.raises(SpecError, match="loss for a binary label"):
            decide(Problem(1000, 5, 1, "binary"), privacy, TrainSpec(method=method, loss="softmax"))
        with pytest.raises(SpecError, match=f"method {method} needs epsilon"):
            decide(Problem(1000, 5, 1, "binary"), None, TrainSpec(method=method))
    for options in ({"output_share": 0.0}, {"regulariser_share": 0.6}):
        with pytest.raises(SpecError, match="_share must be in"):
            TrainSpec(method="amp", **options)
    for method, relation, clip in itertools.product(METHODS, Relation, (1e-310, 5e-324)):
        with pytest.raises(GuaranteeError, match="too small for float64: take a larger clip"):
            decide(Problem(5, 1, 1, "binary"), PrivacySpec(1.0, 1e-6, relation), TrainSpec(method, clip=clip))
    with pytest.raises(SpecError, match="split must be"):
        TrainSpec(method="amp-hf", split="best")


@pytest.mark.parametrize("lambda_", [0.0, 1e-9])
@pytest.mark.parametrize("method", METHODS)
def test_a_lambda_below_its_part_of_epsilon_is_refused_with_the_least(method: str, lambda_: float) -> None:
    """What the refusal names is accepted, and taken as it is; without a lambda it is no more than that."""
    problem, privacy = Problem(32_561, 105, 1, "binary"), PrivacySpec(1.0)
    with pytest.raises(
        GuaranteeError, match=f"lambda = {lambda_:g} is too small for method = {method} at"
    ) as refused:
        decide(problem, privacy, TrainSpec(method, lambda_=lambda_))
    named = re.search(r"take lambda = (\S+) or more, or leave lambda out$", str(refused.value))
    assert named is not None
    least = float(named[1])
    taken = decide(problem, privacy, TrainSpec(method, lambda_=least))
    usual = decide(problem, privacy, TrainSpec(method))
    assert taken.noise.convexity == pytest.approx(least, rel=1e-12)
    assert least / 1.01 < usual.noise.convexity <= least
    assert "lambda n is the least that 0.1 allows" in usual.reason
    assert "least" not in taken.reason


def test_a_plan_says_how_epsilon_is_divided() -> None:
    spec = TrainSpec("amp", output_share=0.2, regulariser_share=0.25, lambda_=1.0)
    plan = decide(Problem(10, 5, 1, "binary"), PrivacySpec(2.0, 1e-6), spec)
    spent = math.log1p(0.25 / 10.0)
    assert plan.reason == (
        f"of epsilon 0.4 is for the noise on the minimiser, {spent:.3g} for lambda n = 10, and "
        f"{1.6 - spent:.3g} for the linear term"
    )


def test_the_published_split_is_that_of_the_paper() -> None:
    """f_1 of section V-A at the values it was fitted to."""
    few, many = Problem(10_000, 20, 1, "binary"), Problem(5000, 5000, 1, "binary")
    for first, share in ((0.0099, 0.99), (0.0313, 0.957), (0.313, 0.916), (0.99, 0.906), (9.99, 0.901)):
        found = objective_perturbation._published_share(few, first / 0.99) / 0.99
        assert 1.0 - found == pytest.approx(share, abs=2e-3)
    assert objective_perturbation._published_share(many, 1.0) == pytest.approx(0.03 * 0.99)
    tight = decide(few, PrivacySpec(0.1), TrainSpec(method="amp-hf"))
    published = decide(few, PrivacySpec(0.1), TrainSpec(method="amp-hf", split="published"))
    assert published.noise.convexity > tight.noise.convexity
    assert published.noise.linear.scale < tight.noise.linear.scale


# Replay of neighbours.


def answer(plan: Plan, blocks: list[bytes], start: FloatArray, linear: FloatArray, goal: Goal) -> FloatArray:
    """What the run's solver makes of a first guess and a linear term."""
    work, _ = parts(plan)
    job: Any = KernelJob(plan, blocks)
    gradient = gradient_of(plan, job, linear)
    convexity = work.objective.lambda_
    return minimise(gradient, start, goal, convexity=convexity, smoothness=work.objective.smoothness)[0]


def gradient_of(plan: Plan, job: Any, linear: FloatArray) -> Callable[[FloatArray], FloatArray]:
    work, _ = parts(plan)
    options = loss_options(work.loss) | {"losses": False}

    def gradient(weights: FloatArray) -> FloatArray:
        sums = job.blocks.gradient(weights, options).gradient
        return np.asarray(sums / plan.problem.n_units + work.objective.lambda_ * weights + linear)

    return gradient


@pytest.mark.parametrize("relation", Relation)
def test_answers_with_one_minimiser_reach_the_sensitivity(relation: Relation) -> None:
    """Both tables have the same exact minimiser, by their own b, and answers on either side of it."""
    n = 50
    problem = Problem(n, 2, 1, "binary")
    spec = TrainSpec(method="amp", loss="huber_svm", lambda_=1.0)
    plan = decide(problem, PrivacySpec(1.0, 1e-6, relation), spec)
    work, noise = parts(plan)
    lambda_ = noise.convexity
    x = np.zeros((n, 2))
    x[:, 0] = np.float32(LONGEST_ROW)
    y = np.where(np.arange(n) % 2 == 0, 1.0, -1.0)
    other_x, other_y = x.copy(), y.copy()
    if relation is Relation.ADD_REMOVE:
        other_x[0], other_y[0] = 0.0, 0.0
    else:
        other_y[0] = -1.0
    minimiser = np.array([0.1, -0.2])  # where every loss is straight
    answers = []
    for rows, labels, sign in ((x, y, 1.0), (other_x, other_y, -1.0)):
        blocks = neighbours.pack("dense", rows, labels, None, [n])
        ideal = np.array([float(labels @ rows[:, 0]) / n, 0.0]) - lambda_ * minimiser
        linear = np.rint(ideal / noise.linear.grid) * noise.linear.grid
        edge = minimiser + np.array([sign * work.goal.gradient_norm * 0.999 / lambda_, 0.0])
        edge -= (linear - ideal) / lambda_
        found = answer(plan, blocks, edge, linear, work.goal)
        np.testing.assert_array_equal(found, edge)  # accepted as it is
        answers.append(found)
    apart = float(np.linalg.norm(answers[0] - answers[1]))
    assert 0.99 * noise.answer.sensitivity <= apart <= noise.answer.sensitivity


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("task", "loss", "n_outputs"),
    [("binary", "logistic", 1), ("binary", "huber_svm", 1), ("multiclass", "softmax", 3)],
)
def test_answers_of_neighbours_stay_within_the_noise_on_them(
    method: str, task: str, loss: str, n_outputs: int
) -> None:
    """Random tables; the other table's b is the one that leads to the same minimiser, rounded to the grid."""
    rng = np.random.default_rng(6)
    for _ in range(15):
        m, units, d = int(rng.choice([1, 3])), int(rng.integers(2, 25)), int(rng.integers(1, 6))
        n, relation = m * units, Relation.REPLACE_ONE if rng.random() < 0.5 else Relation.ADD_REMOVE
        problem = Problem(units, d, n_outputs, task, "id" if m > 1 else None, m)
        spec = TrainSpec(
            method=method, loss=loss, lambda_=30.0 / units * float(10.0 ** rng.uniform(0.0, 2.0))
        )
        plan = decide(problem, PrivacySpec(1.0, 1e-6, relation), spec)
        work, noise = parts(plan)
        x = rng.normal(size=(n, d))
        x *= 0.999 / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 0.999)
        x = x.astype(np.float32).astype(np.float64)
        y = rng.integers(n_outputs, size=n).astype(float) if n_outputs > 1 else rng.choice([-1.0, 1.0], n)
        other_x, other_y = x.copy(), y.copy()
        other_x[:m] = 0.0 if relation is Relation.ADD_REMOVE else -x[:m]
        starts = np.arange(n) % m == 0
        jobs: list[Any] = [
            KernelJob(plan, neighbours.pack("dense", rows, labels, starts, [n]))
            for rows, labels in ((x, y), (other_x, other_y))
        ]
        linear = objective.draw_linear(noise, Noise())
        assert np.linalg.norm(linear) <= work.objective.linear_norm
        first = work.objective.minimise(jobs[0], work.goal, linear)[0]
        assert np.linalg.norm(gradient_of(plan, jobs[0], linear)(first)) <= work.goal.gradient_norm
        closer = Goal(max(work.rounding, 1e-14), work.radius)
        exact = answer(plan, jobs[0].blocks.blocks, first, linear, closer)
        moved = gradient_of(plan, jobs[0], linear)(exact) - gradient_of(plan, jobs[1], linear)(exact)
        placed = np.rint((linear + moved) / noise.linear.grid) * noise.linear.grid
        second = work.objective.minimise(jobs[1], work.goal, placed)[0]
        assert np.linalg.norm(first - second) <= noise.answer.sensitivity


# What is drawn and released.


@pytest.mark.statistical
@pytest.mark.parametrize(("delta", "kind"), [(1e-6, "gaussian"), (0.0, "k-norm")])
def test_the_linear_term_has_its_distribution_on_its_grid(delta: float, kind: str) -> None:
    problem = Problem(500, 100, 1, "binary")
    plan = decide(problem, PrivacySpec(1.0, delta), TrainSpec(method="objpert"))
    _, noise = parts(plan)
    assert noise.kind == noise.linear.kind == kind
    source = Noise((7).to_bytes(32, "little"))
    drawn = np.array([objective.draw_linear(noise, source) for _ in range(300)])
    steps = drawn / noise.linear.grid
    np.testing.assert_array_equal(steps, np.rint(steps))
    assert np.mean(steps % 2.0) == pytest.approx(0.5, abs=0.02)  # down to the last step
    assert np.mean(steps // 2.0 % 2.0) == pytest.approx(0.5, abs=0.02)
    if kind == "gaussian":
        change = 1.0 / 500  # a clipped logistic loss, twice
        assert noise.linear.scale * noise.linear.mu == pytest.approx(change, rel=1e-9)
        found = stats.kstest(drawn.ravel() / (change / noise.linear.mu), "norm")
    else:
        norms = np.linalg.norm(drawn, axis=1) / noise.linear.scale
        found = stats.kstest(norms, stats.gamma(100).cdf)
    assert found.pvalue >= LEAST_P


@pytest.mark.statistical
@pytest.mark.parametrize("delta", [1e-6, 0.0])
@pytest.mark.parametrize("method", METHODS)
def test_a_run_over_zero_rows_shows_both_noises(
    method: str, delta: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without data the minimiser is -b n/Lambda; what is released beyond it is the noise on the answer."""
    n, d = 20, 50
    plan = decide(Problem(n, d, 1, "binary"), PrivacySpec(1.0, delta), TrainSpec(method=method))
    _, noise = parts(plan)
    job: Any = KernelJob(plan, neighbours.pack("dense", np.zeros((n, d)), np.zeros(n), None, [n]))
    linear: list[FloatArray] = []
    draw = objective.draw_linear

    def kept(*given: Any) -> FloatArray:
        linear.append(draw(*given))
        return linear[-1]

    monkeypatch.setattr(objective, "draw_linear", kept)
    released = np.array([plan.run(job).weights for _ in range(200)])
    assert plan.run(job).passes is None
    beyond = released + np.array(linear[:200]) / noise.convexity
    steps = released / noise.answer.grid
    np.testing.assert_array_equal(steps, np.rint(steps))
    for drawn, values in ((noise.linear, np.array(linear)), (noise.answer, beyond)):
        if drawn.kind == "gaussian":
            # the answer lies within half of a standard deviation's hundredth of the minimiser
            assert stats.kstest(values.ravel() / drawn.scale, "norm").pvalue >= LEAST_P
        else:
            norms = np.linalg.norm(values, axis=1) / drawn.scale
            assert stats.kstest(norms, stats.gamma(d).cdf).pvalue >= LEAST_P
    assert np.abs(beyond).max() < 20.0 * noise.answer.score_stddev


# Without noise.


@pytest.mark.parametrize("n_outputs", [1, 3])
@pytest.mark.parametrize("method", METHODS)
def test_with_a_huge_epsilon_it_agrees_with_scikit_learn(
    method: str, n_outputs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    monkeypatch.setattr(privacy_spec, "MOST_EPSILON", 1e4)
    rng = np.random.default_rng(8)
    n, d, lambda_ = 40_000, 4, 0.3
    x = rng.normal(size=(n, d))
    x *= 0.999 / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 0.999)
    x = x.astype(np.float32).astype(np.float64)
    scores = x @ rng.normal(size=d) + 0.3 * rng.normal(size=n)
    y = np.digitize(scores, [-0.3, 0.3]).astype(float) if n_outputs > 1 else np.where(scores > 0.1, 1.0, -1.0)
    task, clip = ("multiclass", None) if n_outputs > 1 else ("binary", 1.0)
    plan = decide(
        Problem(n, d, n_outputs, task),
        PrivacySpec(1e4, 1e-9),
        TrainSpec(method=method, lambda_=lambda_, clip=clip),
    )
    job: Any = KernelJob(plan, neighbours.pack("dense", x, y, None, [n]))
    found = plan.run(job).weights
    model = linear_model.LogisticRegression(
        C=1.0 / (n * lambda_), fit_intercept=False, tol=1e-12, max_iter=10_000
    )
    model.fit(x, y)
    np.testing.assert_allclose(found, model.coef_.reshape(-1), atol=1e-6)
