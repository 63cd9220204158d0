# SPDX-License-Identifier: PostgreSQL
"""Frank-Wolfe: how far a unit moves what a step chooses by, the distribution of choices, and their account.

Source of what is checked: privacy/README.md, "Frank-Wolfe".
"""

from __future__ import annotations

import itertools
import math
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import chisquare

from helpers import replay
from helpers.plans import decide
from pg_dpml.kernels import Loss
from pg_dpml.privacy import cost, selection
from pg_dpml.privacy.noise import choices
from pg_dpml.spec.privacy import PrivacySpec
from pg_dpml.spec.relation import Relation
from pg_dpml.training.plan import Problem
from pg_dpml.training.spec import TrainSpec

FloatArray = npt.NDArray[np.float64]

N = 40
D = 3
TASKS = {"logistic": "binary", "huber_svm": "binary", "squared": "regression", "softmax": "multiclass"}
RELATIONS = list(Relation)


def plan_of(loss: str, relation: Relation, m: int = 1, epsilon: float = 1.0, **options: Any) -> Any:
    """The plan of a table of N units of m rows."""
    task = TASKS[loss]
    problem = Problem(N, D, 3 if task == "multiclass" else 1, task, "unit" if m > 1 else None, m)
    privacy = PrivacySpec(epsilon, 1e-6, relation)
    return decide(problem, privacy, TrainSpec("frank-wolfe", loss=loss, **options))


def encoded(rng: np.random.Generator, n: int) -> FloatArray:
    """Rows as the encoder makes them of any numbers, most of them far beyond what a feature may be."""
    column = replay.Column("numeric", "standard", lower=-math.inf, upper=math.inf)
    encoder = replay.Encoder((column,) * (D - 1), clip_values=True)
    raw = rng.choice([-1e300, -50.0, -1.0, -0.3, 0.0, 0.7, 1.0, 9.0, 1e300], size=(n, D - 1))
    return np.array([replay.encode_row(encoder, row.tolist()) for row in raw], dtype=np.float64)


def labels(rng: np.random.Generator, loss: str, n: int) -> FloatArray:
    choice = {"squared": [-1.0, 1.0, 0.2], "softmax": [0.0, 1.0, 2.0]}.get(loss, [-1.0, 1.0])
    return np.asarray(rng.choice(choice, size=n))


def errors(x: FloatArray, y: FloatArray, weights: FloatArray, loss: Loss) -> FloatArray:
    """What a step chooses by."""
    found = replay.gradient([replay.pack_dense(x, y)], weights, loss, losses=False).gradient
    assert found is not None
    return np.concatenate([found, -found])


def movement(before: FloatArray, after: FloatArray) -> float:
    """How far the difference of any two candidates' errors moved."""
    change = after - before
    return float(change.max() - change.min())


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("loss", TASKS)
@pytest.mark.parametrize("m", [1, 3])
def test_a_unit_moves_the_difference_of_two_candidates_by_the_spread(
    loss: str, relation: Relation, m: int
) -> None:
    """Never by more, on any of many pairs of neighbours; the worst pair reaches 0.99 of it."""
    rng = np.random.default_rng(7)
    plan = plan_of(loss, relation, m)
    weighted = plan.work.loss
    worst = 0.0
    for trial in range(360):
        scale = 0.0 if trial % 4 == 0 else 10.0 ** rng.integers(-1, 4)
        weights = scale * rng.normal(size=plan.problem.n_weights)
        x, y = encoded(rng, N * m), labels(rng, loss, N * m)
        other_x, other_y = x.copy(), y.copy()
        other_x[:m], other_y[:m] = encoded(rng, m), labels(rng, loss, m)
        if trial >= 40:  # the worst pair: every row at a corner, and its score far from its label
            x[:m, :-1] = rng.choice([-1.0, 1.0], size=D - 1)
            other_x[:m, :-1] = rng.choice([-1.0, 1.0], size=D - 1)
            y[:m], other_y[:m] = labels(rng, loss, 1), labels(rng, loss, 1)
            weights = np.zeros_like(weights)
            weights[rng.integers(weights.size)] = rng.choice([-1e4, 0.0, 1e4])
        if relation is Relation.ADD_REMOVE:
            other_x[:m], other_y[:m] = 0.0, 0.0
        moved = movement(errors(x, y, weights, weighted), errors(other_x, other_y, weights, weighted))
        worst = max(worst, moved)
    assert 0.99 * plan.noise.spread <= worst <= plan.noise.spread


def test_the_spread_is_that_of_the_relation() -> None:
    """2 m L and 4 m L; softmax's derivatives are at most 1, those of logistic are clipped at a half."""
    for loss, bound in (("softmax", 1.0), ("logistic", 0.5), ("huber_svm", 1.0), ("squared", 0.5)):
        for m, (relation, factor) in itertools.product((1, 5), ((RELATIONS[0], 4), (RELATIONS[1], 2))):
            assert plan_of(loss, relation, m).noise.spread == pytest.approx(factor * m * bound, rel=1e-9)
    assert RELATIONS == [Relation.REPLACE_ONE, Relation.ADD_REMOVE]
    assert plan_of("logistic", RELATIONS[0], clip=0.1).noise.spread == pytest.approx(0.4)


# The distribution of choices


def of_gap(gap: float, noise: Any, draws: int) -> FloatArray:
    """Shares of two candidates whose errors differ by so much."""
    sums = np.array([0.0, gap])
    return np.bincount([choices.choose(sums, noise) for _ in range(draws)], minlength=2) / draws


@pytest.mark.statistical
@pytest.mark.parametrize("digits", [8, selection.DIGITS])
def test_choices_follow_the_exponential_mechanism(monkeypatch: pytest.MonkeyPatch, digits: int) -> None:
    """With few digits at first, most choices need more of them."""
    monkeypatch.setattr(selection, "DIGITS", digits)
    plan = plan_of("logistic", Relation.REPLACE_ONE, passes=1, epsilon=2.0)
    sums = np.array([0.0, 0.5, 3.0, 1.0, 6.0, 0.0, -2.0, 4.0])
    expected = np.exp(-sums * plan.noise.choice_epsilon / plan.noise.spread)
    draws = 8_000
    found = np.bincount([choices.choose(sums, plan.noise) for _ in range(draws)], minlength=sums.size)
    assert chisquare(found, draws * expected / expected.sum()).pvalue > 1e-6


@pytest.mark.statistical
def test_the_worst_pair_stays_below_the_divergence_that_is_charged() -> None:
    """Renyi divergence of order alpha is at most alpha epsilon_0^2/8, and not far below it."""
    plan = plan_of("logistic", Relation.REPLACE_ONE, passes=1, epsilon=1.0)
    epsilon, spread = plan.noise.choice_epsilon, plan.noise.spread
    assert epsilon == pytest.approx(1.0)
    draws = 8_000
    # the difference moves from one half of the spread to the other
    p, q = of_gap(spread / 2, plan.noise, draws), of_gap(-spread / 2, plan.noise, draws)
    for alpha in (1.5, 2.0, 4.0):
        divergence = math.log(float(np.sum(p**alpha * q ** (1.0 - alpha)))) / (alpha - 1.0)
        assert 0.6 * alpha * epsilon**2 / 8.0 < divergence < 1.2 * alpha * epsilon**2 / 8.0


def test_every_pair_stays_below_the_divergence_that_is_charged() -> None:
    """Of the formula, for every two-point pair of bounded range, and every order."""
    for epsilon in (0.01, 0.5, 2.0, 8.0):
        for t in np.linspace(0.02, 0.98, 25) * epsilon:
            q = (1.0 - math.exp(t - epsilon)) / (math.exp(t) - math.exp(t - epsilon))
            p = q * math.exp(t)
            for alpha in (1.01, 2.0, 8.0, 64.0):
                first = alpha * math.log(p) + (1 - alpha) * math.log(q)
                other = alpha * math.log1p(-p) + (1 - alpha) * math.log1p(-q)
                divergence = np.logaddexp(first, other) / (alpha - 1.0)
                assert divergence <= alpha * epsilon**2 / 8.0 * (1 + 1e-9)


@pytest.mark.parametrize("digits", [36, 72, 144])
def test_bounds_of_an_exponential_enclose_it(digits: int) -> None:
    for gamma in (
        Fraction(0),
        Fraction(1, 10**30),
        Fraction(1, 3),
        Fraction(17),
        Fraction(digits),
        Fraction(10**6),
    ):
        low, high = selection._exp_bounds(gamma, digits)
        with localcontext() as context:
            context.prec = 200
            exact = (Decimal(-gamma.numerator) / Decimal(gamma.denominator)).exp() * 2**digits
        assert low <= exact <= high
        assert high - low <= 3


def test_a_candidate_far_behind_is_nearly_never_chosen() -> None:
    """Its height is 2 units, and what is drawn in them lies above the exponential."""
    assert {selection.choose(np.array([1e9, 0.0, 1e300]), Fraction(4), 1.0) for _ in range(50)} == {1}
    whole = (1 << selection.DIGITS) + 2
    for place in (0, 1):
        drawn = iter(
            [whole + place, 7, 0]
        )  # its place, another digit where one is needed, the best one's first
        assert (
            selection.choose([0, 10**6], Fraction(1), 1.0, partial(lambda these, _: next(these), drawn)) == 0
        )


# The account


@pytest.mark.parametrize("epsilon", [0.01, 0.1, 1.0, 10.0])
@pytest.mark.parametrize("delta", [0.0, 1e-12, 1e-6])
@pytest.mark.parametrize("steps", [1, 5, 40, 1000])
def test_all_choices_together_are_private(epsilon: float, delta: float, steps: int) -> None:
    """As pure privacy adds up, or as rho does, whichever allows more."""
    each = choices.run_epsilon(epsilon, delta, steps)
    pure = steps * each <= epsilon
    in_zcdp = delta > 0.0 and cost.zcdp_delta(epsilon, steps * each**2 / 8.0) <= delta
    assert pure or in_zcdp
    more = each * (1.0 + 1e-5)
    assert steps * more > epsilon
    assert delta == 0.0 or cost.zcdp_delta(epsilon, steps * more**2 / 8.0) > delta


def test_a_plan_charges_what_its_choices_are() -> None:
    plan = plan_of("logistic", Relation.REPLACE_ONE, passes=30)
    noise = plan.noise
    assert (noise.choices, noise.candidates, plan.work.steps) == (30, 2 * D, 30)
    assert noise.choice_epsilon == choices.run_epsilon(1.0, 1e-6, 30)
    releases = noise.releases()
    assert releases.rho == pytest.approx(30 * noise.choice_epsilon**2 / 8.0)
    assert (releases.choices, releases.choice_epsilon) == (30, noise.choice_epsilon)
    price = cost.cost_of(
        "zcdp", Decimal(1), Decimal("1e-6"), releases, run=Relation.REPLACE_ONE, budget=Relation.REPLACE_ONE
    )
    assert float(price.loss) == pytest.approx(noise.rho)


# The steps


def test_steps_stay_in_the_ball_and_are_the_mean_of_what_was_chosen() -> None:
    work = plan_of("logistic", Relation.REPLACE_ONE, radius=4.0, passes=6).work
    weights = np.zeros(D)
    chosen = [5, 0, 4, 1, 1, 3]
    for number, place in enumerate(chosen):
        work.step(weights, number, place)
        assert np.sum(np.abs(weights)) <= 4.0 * (1 + 1e-12)
    expected = np.zeros(D)
    for place in chosen:
        expected[place % D] += (1 if place < D else -1) * 4.0 / 6
    np.testing.assert_allclose(weights, expected, rtol=1e-12, atol=1e-12)


def test_defaults_follow_from_public_numbers() -> None:
    """More rows and a larger epsilon buy more steps; there is always one."""

    def steps(n: int, epsilon: float) -> int:
        found = decide(Problem(n, 105, 1, "binary"), PrivacySpec(epsilon), TrainSpec("frank-wolfe"))
        return int(found.work.steps)

    assert steps(0, 1.0) >= 1
    assert steps(5, 0.01) == 1
    assert 1 < steps(10_000, 0.1) < steps(40_000, 0.1) < steps(40_000, 1.0) <= steps(10**7, 1.0)
