# SPDX-License-Identifier: PostgreSQL
"""DP-AGD: what one unit moves, what a choice costs, and that nothing is read that was not paid for.

Source: privacy/README.md, "Adaptive gradient descent".
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from scipy import stats

from helpers import neighbours
from helpers.kernel_job import KernelBlocks, KernelJob
from helpers.neighbours import LONGEST_ROW, FloatArray
from helpers.plans import decide
from pg_dpml.blocks.blocks import GradientSums
from pg_dpml.errors import GuaranteeError, ResolutionError, SpecError
from pg_dpml.methods.dp_agd import LENGTHS, LONGEST, AdaptivePlan
from pg_dpml.privacy import cost, resolution
from pg_dpml.privacy.noise import adaptive
from pg_dpml.privacy.noise.adaptive import AdaptiveNoise
from pg_dpml.privacy.releases import AdaptiveRun
from pg_dpml.spec.privacy import PrivacySpec
from pg_dpml.spec.relation import Relation
from pg_dpml.training.job import Result
from pg_dpml.training.plan import Problem
from pg_dpml.training.spec import TrainSpec

LEAST_P = 1e-6
SEARCH = (Phase.explicit, Phase.generate)
"""Without shrinking, which can take minutes of runs: a failure shows the example as it was found."""
D = 4
ORDERS = (1.001, 1.1, 2.0, 5.0, 32.0, 1000.0)

LOSSES = {
    "logistic": (TrainSpec("dp-agd", loss="logistic", clip=0.4, loss_clip=2.0), 1),
    "huber_svm": (TrainSpec("dp-agd", loss="huber_svm"), 1),
    "squared": (TrainSpec("dp-agd", loss="squared", clip=3.0, loss_clip=3.0), 1),
    "softmax": (TrainSpec("dp-agd", loss="softmax", clip=0.9), 3),
}
"""Options, and the number of scores."""


def plan_of(
    name: str, n_units: int, relation: Relation, max_rows_per_unit: int = 1, **options: Any
) -> AdaptivePlan:
    spec, n_outputs = LOSSES[name]
    task = {"squared": "regression", "softmax": "multiclass"}.get(name, "binary")
    unit = None if max_rows_per_unit == 1 else "id"
    problem = Problem(n_units, D, n_outputs, task, unit, max_rows_per_unit)
    privacy = PrivacySpec(options.pop("epsilon", 1.0), 1e-6, relation)
    plan = decide(problem, privacy, spec.replace(**options))
    assert isinstance(plan, AdaptivePlan)
    return plan


def random_rows(rng: np.random.Generator, name: str, n: int) -> tuple[FloatArray, FloatArray]:
    """Rows of norm at most 1 as blocks hold them, and labels."""
    x = rng.normal(size=(n, D))
    x *= LONGEST_ROW * rng.choice([1.0, 1.0, 0.3], size=(n, 1)) / np.linalg.norm(x, axis=1, keepdims=True)
    y = {"squared": rng.uniform(-1.0, 1.0, n), "softmax": rng.integers(3, size=n).astype(np.float64)}
    return x.astype(np.float32).astype(np.float64), y.get(name, rng.choice(np.array([-1.0, 1.0]), n))


def neighbour(
    rng: np.random.Generator, name: str, x: FloatArray, y: FloatArray, unit: slice, relation: Relation
) -> tuple[FloatArray, FloatArray]:
    other_x, other_y = x.copy(), y.copy()
    if relation is Relation.ADD_REMOVE:
        other_x[unit], other_y[unit] = 0.0, -1.0 if name == "softmax" else 0.0
    elif rng.random() < 0.5:
        other_x[unit] = -x[unit]
    else:
        other_x[unit], other_y[unit] = random_rows(rng, name, 1)
    return other_x, other_y


def blocks_of(x: FloatArray, y: FloatArray) -> KernelBlocks:
    return KernelBlocks(neighbours.pack("dense", x, y, None, [len(y)]), D)


# What one unit moves.


@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize("m", [1, 3])
@pytest.mark.parametrize("name", LOSSES)
def test_sums_of_neighbours(name: str, m: int, relation: Relation) -> None:
    """A sum of gradients moves by at most its sensitivity, a difference of losses by at most the spread."""
    rng = np.random.default_rng(list(LOSSES).index(name) + 10 * m)
    n = 5
    plan = plan_of(name, n, relation, m)
    work, noise = plan.work, plan.noise
    size = plan.problem.n_weights
    gradients, differences = 0.0, 0.0
    for _ in range(150):
        x, y = random_rows(rng, name, n * m)
        unit = slice(m, 2 * m)
        x[unit], y[unit] = x[m], y[m]  # rows of one unit that pull one way move it farthest
        other = neighbour(rng, name, x, y, unit, relation)
        candidates = rng.normal(size=(LENGTHS, size)) * rng.choice([0.0, 1.0, 30.0, 1e4], size=(LENGTHS, 1))
        one, two = blocks_of(x, y), blocks_of(*other)
        moved = [blocks.gradient(candidates[0], work.gradient_options()).gradient for blocks in (one, two)]
        assert moved[0] is not None
        assert moved[1] is not None
        gradients = max(gradients, float(np.linalg.norm(moved[0] - moved[1])))
        sums = [
            blocks.gradient(candidates.reshape(-1), work.choice_options()).losses for blocks in (one, two)
        ]
        assert sums[0] is not None
        assert sums[1] is not None
        differences = max(differences, float(np.ptp(sums[0] - sums[1])))
    assert 0.7 * noise.gradient.sensitivity < gradients <= noise.gradient.calibrated_sensitivity
    assert 0.7 * noise.loss_spread < differences <= noise.loss_spread


@pytest.mark.parametrize("name", LOSSES)
def test_a_zero_row_has_one_loss_at_all_candidates(name: str) -> None:
    rng = np.random.default_rng(4)
    plan = plan_of(name, 3, Relation.ADD_REMOVE)
    candidates = rng.normal(size=(LENGTHS, plan.problem.n_weights)) * 1e3
    blocks = blocks_of(np.zeros((3, D)), np.full(3, -1.0 if name == "softmax" else 0.0))
    losses = blocks.gradient(candidates.reshape(-1), plan.work.choice_options()).losses
    assert losses is not None
    assert np.ptp(losses) == 0.0


@pytest.mark.parametrize("clip", [0.5, 3.0])
def test_losses_are_clipped_from_above_and_below(clip: float) -> None:
    """One far row adds C, however far, and a row on the right side nothing less than 0."""
    plan = plan_of("logistic", 1, Relation.REPLACE_ONE, loss_clip=clip)
    x, y = np.eye(D)[:1] * LONGEST_ROW, np.ones(1)
    for size in (1e3, 1e100):
        candidates = np.zeros((LENGTHS, D))
        candidates[:, 0] = np.where(np.arange(LENGTHS) % 2 == 0, -size, size)
        losses = blocks_of(x, y).gradient(candidates.reshape(-1), plan.work.choice_options()).losses
        assert losses is not None
        np.testing.assert_array_equal(losses[::2], clip)
        np.testing.assert_array_equal(losses[1::2], 0.0)


def test_the_spread_by_hand() -> None:
    """2 m C or m C, and four times the rounding of a sum."""
    rounding = 1000 * 3 * 2.5 * 2.0**-53 * (2 * 1024 + 3 + 16)
    assert adaptive.loss_spread(2.5, Relation.REPLACE_ONE, 1000, 3) == pytest.approx(
        15.0 + 4 * rounding, rel=1e-15
    )
    spread = Fraction(adaptive.loss_spread(2.5, Relation.ADD_REMOVE, 1000, 3))
    assert spread - Fraction(7.5) >= 4 * Fraction(rounding)
    assert float(spread - Fraction(7.5)) == pytest.approx(4 * rounding, rel=1e-5)


# A choice, and what it costs.


def noise_of(share: float, relation: Relation, loss_clip: float = 3.0) -> AdaptiveNoise:
    plan = plan_of("logistic", 1000, relation, loss_clip=loss_clip)
    return replace(plan.noise, share=share)


def log_chances(losses: FloatArray, noise: AdaptiveNoise) -> FloatArray:
    """Of each candidate, by the rule."""
    exponents = -math.sqrt(8.0 * noise.share) * losses / noise.loss_spread
    return np.asarray(exponents - np.logaddexp.reduce(exponents))


@pytest.mark.statistical
@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize("losses", [[0.0, 0.0, 3.0], [700.25, 701.0, 703.5, 709.0], [9.0, 5.0, 7.0, 5.5]])
def test_a_choice_has_the_distribution_of_gumbel_noise(losses: list[float], relation: Relation) -> None:
    noise = noise_of(1.0, relation)
    draws = 8_000
    exact = [Fraction(loss) for loss in losses]
    found = np.bincount([adaptive.choose(exact, noise) for _ in range(draws)], minlength=len(losses))
    expected = draws * np.exp(log_chances(np.array(losses), noise))
    assert stats.chisquare(found, expected).pvalue > LEAST_P
    rng = np.random.default_rng(3)
    scores = np.array(losses) * math.sqrt(8.0) / noise.loss_spread
    by_noise = np.bincount(
        np.argmin(scores - rng.gumbel(size=(draws, len(losses))), axis=1), minlength=len(losses)
    )
    assert stats.chisquare(by_noise, expected).pvalue > LEAST_P


def renyi(log_p: FloatArray, log_q: FloatArray, order: float) -> float:
    """Divergence of that order, in nats."""
    return float(np.logaddexp.reduce(order * log_p + (1.0 - order) * log_q)) / (order - 1.0)


def worst_cost(noise: AdaptiveNoise, relation: Relation, loss_clip: float) -> float:
    """Largest divergence over its order, of many pairs of tables that one row makes differ."""
    rng = np.random.default_rng(8)
    worst = 0.0
    for _ in range(1_500):
        k = int(rng.integers(2, 6))
        base = rng.uniform(0.0, 1.0, k) * rng.choice([0.0, 1.0, 3.0, 20.0]) * noise.loss_spread
        own = loss_clip * rng.choice([0.0, 1.0, 1.0, rng.random()], k)
        change = own - (loss_clip - own if relation is Relation.REPLACE_ONE else rng.random())
        one, two = log_chances(base, noise), log_chances(base + change, noise)
        for order in ORDERS:
            worst = max(worst, renyi(one, two, order) / order, renyi(two, one, order) / order)
    return worst


@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize("share", [1e-6, 1e-3, 0.1])
def test_the_worst_pair_costs_no_more_than_is_paid(share: float, relation: Relation) -> None:
    """At most epsilon_0^2/8 in zCDP, and nearly that; with half of the spread it would be more."""
    noise = noise_of(share, relation)
    found = worst_cost(noise, relation, 3.0)
    assert adaptive.choice_epsilon(share) ** 2 / 8.0 <= share
    assert 0.9 * share < found <= share * (1.0 + 1e-6)
    assert worst_cost(replace(noise, loss_spread=0.5 * noise.loss_spread), relation, 3.0) > 2.0 * share


# The noise on gradients.


@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize(("name", "bound"), [("logistic", 0.4), ("huber_svm", 1.0), ("squared", 3.0)])
def test_a_measurement_is_as_private_as_what_is_paid(name: str, bound: float, relation: Relation) -> None:
    """D^2/(2 sigma^2) is rho, with what grid, rounding and sampler take."""
    plan = plan_of(name, 400, relation, 2)
    change = 2.0 * bound * (2.0 if relation is Relation.REPLACE_ONE else 1.0)
    first = plan.noise.gradient
    assert first.sensitivity == pytest.approx(change, rel=1e-12)
    assert first == adaptive.gradient_noise(first, plan.noise.share)
    for rho in (0.1 * plan.noise.share, plan.noise.share, 0.7):
        noise = adaptive.gradient_noise(first, rho)
        with_sampler = noise.calibrated_sensitivity / noise.scale + resolution.sampler_mu(D)
        assert 0.5 * with_sampler**2 <= rho
        assert 0.5 * (change / noise.scale) ** 2 == pytest.approx(rho, rel=1e-5)


@pytest.mark.statistical
def test_released_gradients_carry_that_noise() -> None:
    noise = plan_of("huber_svm", 400, Relation.REPLACE_ONE).noise
    exact = np.array([1.0, -2.0, 0.5, 100.0])
    rho = 3e-3
    drawn = np.array([adaptive.release_gradient(exact, noise, rho) - exact for _ in range(500)]).ravel()
    assert stats.kstest(drawn / (2.0 / math.sqrt(2.0 * rho)), "norm").pvalue > LEAST_P


@pytest.mark.parametrize("epsilon", [0.01, 0.1, 1.0, 8.0])
@pytest.mark.parametrize("delta", [1e-4, 1e-10])
def test_rho_is_the_most_that_delta_allows(epsilon: float, delta: float) -> None:
    rho = adaptive.run_rho(epsilon, delta, 10_000)
    left = delta - resolution.sampler_delta(10_000)
    assert cost.zcdp_delta(epsilon, rho) <= left
    assert cost.zcdp_delta(epsilon, rho * (1.0 + 1e-6)) > left
    published = (math.sqrt(math.log(1.0 / delta) + epsilon) - math.sqrt(math.log(1.0 / delta))) ** 2
    assert rho > 1.1 * published


def test_what_has_no_such_noise_is_refused() -> None:
    problem = Problem(1000, D, 1, "binary")
    with pytest.raises(GuaranteeError, match="delta = 0"):
        decide(problem, PrivacySpec(1.0, 0.0), TrainSpec("dp-agd"))
    with pytest.raises(SpecError, match="at least 2"):
        decide(problem, PrivacySpec(1.0), TrainSpec("dp-agd", passes=1))
    with pytest.raises(ResolutionError):
        decide(problem, PrivacySpec(1e-11), TrainSpec("dp-agd"))


def test_candidates_that_no_value_can_hold_are_refused() -> None:
    with pytest.raises(SpecError, match=r"dp-agd takes at most 838,860 coefficients, not 7,000,000: take"):
        decide(Problem(1000, 1_000_000, 7, "multiclass"), PrivacySpec(1.0), TrainSpec("dp-agd"))


# Runs whose releases are given.


@dataclass
class Script:
    """Takes the place of both releases, and keeps what was asked and paid for.

    Attributes
    ----------
    seed : int
        Of what is released.
    zeros : float
        Share of the choices that are of length 0.
    """

    seed: int
    zeros: float
    paid: Fraction = Fraction(0)
    made: Fraction = Fraction(0)
    asked: list[FloatArray] = field(default_factory=list)
    released: list[tuple[FloatArray, float]] = field(default_factory=list)
    chosen: list[int] = field(default_factory=list)

    def run(self, plan: AdaptivePlan, x: FloatArray, y: FloatArray) -> Result:
        """A run on a table; every sum must have been paid for when it is asked for."""
        rng = np.random.default_rng(self.seed)
        blocks = blocks_of(x, y)
        job: Any = KernelJob(plan, blocks.blocks)
        gradient, pay = job.blocks.gradient, adaptive.Filter.pay
        choice = plan.noise.share

        def asked(weights: FloatArray, options: dict[str, Any]) -> GradientSums:
            assert self.made < self.paid
            self.asked.append(weights.copy())
            sums: GradientSums = gradient(weights, options)
            return sums

        def paying(own: adaptive.Filter, *costs: float) -> bool:
            found = pay(own, *costs)
            self.paid += sum(map(Fraction, costs)) if found else 0
            return found

        def measured(exact: FloatArray, noise: AdaptiveNoise, rho: float) -> FloatArray:
            self.made += Fraction(rho)
            assert self.made <= self.paid
            self.released.append((rng.normal(size=exact.shape) * rng.choice([0.1, 50.0]), rho))
            return self.released[-1][0]

        def chose(losses: list[Fraction], noise: AdaptiveNoise) -> int:
            self.made += Fraction(choice)
            assert self.made <= self.paid
            self.chosen.append(0 if rng.random() < self.zeros else int(rng.integers(1, len(losses))))
            return self.chosen[-1]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(job.blocks, "gradient", asked)
            patch.setattr(adaptive.Filter, "pay", paying)
            patch.setattr(adaptive, "release_gradient", measured)
            patch.setattr(adaptive, "choose", chose)
            return plan.run(job)


@pytest.mark.parametrize("zeros", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("name", LOSSES)
def test_a_run_depends_on_its_releases_alone(name: str, zeros: float) -> None:
    """On two tables that have nothing in common, the same releases lead to the same questions and costs."""
    rng = np.random.default_rng(2)
    plan = plan_of(name, 6, Relation.REPLACE_ONE, passes=24, lambda_=0.01)
    one, two = Script(5, zeros), Script(5, zeros)
    first = one.run(plan, *random_rows(rng, name, 6))
    second = two.run(plan, *random_rows(rng, name, 6))
    np.testing.assert_array_equal(first.weights, second.weights)
    assert (first.passes, first.spending) == (second.passes, second.spending)
    assert len(one.asked) == len(two.asked) == first.passes
    for ours, theirs in zip(one.asked, two.asked, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@settings(max_examples=60, deadline=None, phases=SEARCH)
@given(
    zeros=st.floats(0.0, 1.0),
    passes=st.integers(2, 60),
    growth=st.floats(1e-3, 20.0),
    epsilon=st.floats(1e-3, 20.0),
    seed=st.integers(0, 2**32),
)
def test_rho_is_never_overdrawn(zeros: float, passes: int, growth: float, epsilon: float, seed: int) -> None:
    """Whatever is released: nothing is made before it is paid for, and all together is within rho."""
    rng = np.random.default_rng(1)
    plan = plan_of("logistic", 5, Relation.ADD_REMOVE, passes=passes, growth=growth, epsilon=epsilon)
    script = Script(seed, zeros)
    result = script.run(plan, *random_rows(rng, "logistic", 5))
    rho = Fraction(plan.noise.rho)
    assert script.made == script.paid <= rho
    assert len(script.chosen) == len(result.spending) <= passes
    assert len(script.released) <= passes
    assert result.passes is not None
    assert 2 <= result.passes == len(script.asked) <= passes
    spent = sum(Fraction(one["gradient_rho"]) + Fraction(one["choice_rho"]) for one in result.spending)
    assert spent == script.paid
    assert result.spending[-1]["rho_left"] == float(rho - spent)


@settings(phases=SEARCH)
@given(rho=st.floats(1e-300, 1e3), costs=st.lists(st.lists(st.floats(0.0, 1e3), max_size=3), max_size=30))
def test_the_filter_pays_what_is_left_and_no_more(rho: float, costs: list[list[float]]) -> None:
    left, spent = adaptive.Filter(rho), Fraction(0)
    for several in costs:
        whole = sum(map(Fraction, several))
        fits = spent + whole <= Fraction(rho)
        assert left.pay(*several) == fits
        spent += whole if fits else 0
        assert left.left == float(Fraction(rho) - spent)


def test_the_first_payment_that_does_not_fit_ends_a_run() -> None:
    """With two passes there is one step; a third would be overdrawn by a little."""
    rng = np.random.default_rng(1)
    rows = random_rows(rng, "logistic", 5)
    for passes, steps in ((2, 1), (3, 1), (4, 2), (120, 60)):
        result = Script(1, 0.0).run(plan_of("logistic", 5, Relation.ADD_REMOVE, passes=passes), *rows)
        assert (len(result.spending), result.passes) == (steps, 2 * steps)


def test_steps_are_of_the_length_that_was_chosen() -> None:
    """Against the mean of all measurements at the same weights, each as it was released."""
    rng = np.random.default_rng(6)
    lambda_, growth = 0.05, 0.4
    plan = plan_of("logistic", 7, Relation.REPLACE_ONE, lambda_=lambda_, growth=growth)
    script = Script(9, 0.5)
    result = script.run(plan, *random_rows(rng, "logistic", 7))
    asked, weights, longest, lengths = list(script.asked), np.zeros(D), LONGEST, list[float]()
    mean, known, share = np.zeros(D), 0.0, plan.noise.share
    assert {0} < set(script.chosen)
    for (released, rho), chosen, line in zip(script.released, script.chosen, result.spending, strict=True):
        if known == 0.0:
            np.testing.assert_allclose(asked.pop(0), weights, atol=1e-12)
        assert rho == pytest.approx(share - known)
        mean, known = (known * mean + rho * released) / (known + rho), known + rho
        move = mean / 7 + lambda_ * weights
        tried = np.linspace(0.0, longest, LENGTHS)
        candidates = weights - np.outer(tried, move / np.linalg.norm(move))
        np.testing.assert_allclose(asked.pop(0).reshape(LENGTHS, D), candidates, atol=1e-12)
        assert line["length"] == pytest.approx(tried[chosen])
        if chosen == 0:
            share *= 1.0 + growth
            continue
        weights, known = candidates[chosen], 0.0
        lengths.append(tried[chosen])
        if len(lengths) % 10 == 0:
            longest = 1.1 * max(lengths[-10:])
    assert asked == []
    np.testing.assert_allclose(result.weights, weights, atol=1e-12)


def test_the_regulariser_is_in_the_losses() -> None:
    """Exactly: n lambda/2 ||w||^2 beside the sum over rows."""
    rng = np.random.default_rng(6)
    x, y = random_rows(rng, "logistic", 7)
    seen: list[list[Fraction]] = []

    def third(losses: list[Fraction], _: AdaptiveNoise) -> int:
        seen.append(losses)
        return 3

    for lambda_ in (0.0, 0.5):
        plan = plan_of("logistic", 7, Relation.REPLACE_ONE, passes=2, lambda_=lambda_)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(adaptive, "release_gradient", lambda exact, *_: np.ones(D))
            patch.setattr(adaptive, "choose", third)
            job: Any = KernelJob(plan, blocks_of(x, y).blocks)
            result = plan.run(job)
    lengths = np.linspace(0.0, LONGEST, LENGTHS)
    added = [float(with_it - plain) for plain, with_it in zip(*seen, strict=True)]
    np.testing.assert_allclose(added, 7 * 0.25 * lengths**2, atol=1e-12)
    assert float(np.linalg.norm(result.weights)) == pytest.approx(lengths[3])


def test_a_table_without_rows_has_a_model_of_zeros() -> None:
    plan = decide(Problem(0, D, 1, "binary"), PrivacySpec(1.0, 1e-6), TrainSpec("dp-agd"))
    job: Any = KernelJob(plan, [])
    result = plan.run(job)
    assert result.weights.tolist() == [0.0] * D


# What it costs.


@pytest.mark.parametrize("relation", Relation)
def test_a_budget_takes_the_run_by_its_own_account(relation: Relation) -> None:
    """Of zCDP its rho; of mu^2 at least what the dearest history would cost; never more than by epsilon."""
    noise = plan_of("logistic", 10**5, relation).noise
    part = noise.releases()
    assert part == AdaptiveRun(
        noise.rho, 120, adaptive.choice_epsilon(noise.share), resolution.sampler_delta(120 * D)
    )
    twice = 2 if relation is Relation.ADD_REMOVE else 1

    def priced(rule: str, budget: Relation) -> float:
        run = (Decimal(1), Decimal("1e-6"), part)
        return float(cost.cost_of(rule, *run, run=relation, budget=budget).loss)

    for budget, steps in ((relation, 1), (Relation.REPLACE_ONE, twice)):
        assert priced("zcdp", budget) == pytest.approx(steps**2 * noise.rho, rel=1e-6)
        assert priced("zcdp", budget) >= steps**2 * noise.rho
        epsilon_0 = adaptive.choice_epsilon(noise.share)
        of_choice = (2.0 * stats.norm.ppf(1.0 / (1.0 + math.exp(epsilon_0)))) ** 2
        for choices in (1, 60, 109, 120):
            history = 2.0 * (noise.rho - choices * noise.share) + choices * of_choice
            assert priced("gdp", budget) >= steps**2 * history * (1.0 - 1e-9)
        assert priced("gdp", budget) == pytest.approx(steps**2 * 120 * of_choice, rel=1e-6)
        assert priced("basic", budget) == steps


def test_a_dear_run_is_taken_by_its_epsilon() -> None:
    part = AdaptiveRun(1.0, 10, 5.0, 1e-12)
    run = (Decimal("0.5"), Decimal("1e-6"), part)
    found = cost.cost_of("zcdp", *run, run=Relation.ADD_REMOVE, budget=Relation.ADD_REMOVE)
    assert (found.loss, found.delta) == (Decimal("0.125"), Decimal("1e-6"))


def test_the_defaults() -> None:
    """Those of the publication for classes; a number has its own clips."""
    for task, n_outputs, clips in (
        ("binary", 1, (math.inf, 1.0, 3.0)),
        ("multiclass", 3, (3.0, math.sqrt(2.0), 3.0)),
        ("regression", 1, (math.inf, 0.5, 1.0)),
    ):
        plan = decide(Problem(500, D, n_outputs, task), PrivacySpec(1.0, 1e-6), TrainSpec("dp-agd"))
        work, noise = plan.work, plan.noise
        found = (work.gradient_clip, noise.gradient.sensitivity / 2.0, work.loss_clip)
        assert found == pytest.approx(clips)
        assert (work.passes, work.growth) == (120, 0.1)


def test_the_noise_of_a_score_is_that_of_a_random_walk() -> None:
    """Of steps as long as they can get: 2, and 1.1 times more after every ten."""
    for passes, square in ((2, 4.0), (20, 40.0), (24, 40.0 + 2 * 2.2**2), (10**6, 1000.0**2 * 5e5)):
        noise = plan_of("logistic", 10**5, Relation.REPLACE_ONE, passes=passes).noise
        assert noise.score_stddev == pytest.approx(math.sqrt(square / D), rel=1e-3)
        assert noise.expected_norm == pytest.approx(math.sqrt(square), rel=1e-3)


def test_a_plan_bounds_the_passes() -> None:
    plan = plan_of("logistic", 10**5, Relation.REPLACE_ONE)
    assert plan.work.passes == 120
    assert plan.noise.share * 120 <= plan.noise.rho
    assert plan.noise.share * 120 == pytest.approx(plan.noise.rho)
    assert "at most 120" in dict(plan.work.lines())["Passes"]
