# SPDX-License-Identifier: PostgreSQL
"""Costs and limits of budgets, against exact compositions of the runs that fit."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from itertools import product
from typing import Any

import mpmath
import numpy as np
import pytest
from scipy.stats import binom, norm

from pg_dpml.errors import GuaranteeError
from pg_dpml.ledger.terms import Budget
from pg_dpml.privacy import resolution
from pg_dpml.privacy.choice import choose_noise
from pg_dpml.privacy.cost import (
    RULES,
    Accounting,
    Cost,
    cost_of,
    epsilon_of,
    limit_of,
    zcdp_delta,
)
from pg_dpml.privacy.gaussian import gaussian_delta, gaussian_mu
from pg_dpml.privacy.noise.output import ReleaseNoise, calibrate, no_release
from pg_dpml.privacy.noise.steps import StepNoise, calibrate_passes, calibrate_poisson
from pg_dpml.privacy.releases import PoissonSteps, PureReleases, Releases
from pg_dpml.runs.planning import plan_problem
from pg_dpml.spec.privacy import PrivacySpec
from pg_dpml.spec.relation import Relation
from pg_dpml.training.plan import Problem
from pg_dpml.training.spec import TrainSpec

REPLACE, ZERO = Relation.REPLACE_ONE, Relation.ADD_REMOVE
BUDGETS = [(0.1, 1e-9), (1.0, 1e-6), (3.0, 1e-5), (10.0, 1e-3)]


def decimal(number: float) -> Decimal:
    return Decimal(repr(number))


def plain_cost(rule: str, epsilon: float, delta: float = 0.0) -> Cost:
    return cost_of(rule, decimal(epsilon), decimal(delta), None, run=REPLACE, budget=REPLACE)


def responses_delta(epsilon: float, runs: int, run_epsilon: float, run_delta: float) -> float:
    """Exact delta(epsilon) of the worst (run_epsilon, run_delta)-private runs together.

    Each tells the neighbours apart with probability run_delta and else answers truly with odds e^run_epsilon.
    """
    right = np.arange(runs + 1)
    p = 1.0 / (1.0 + math.exp(-run_epsilon))
    loss = (2 * right - runs) * run_epsilon
    hidden = np.sum(binom.pmf(right, runs, p) * np.maximum(-np.expm1(epsilon - loss), 0.0))
    kept = (1.0 - run_delta) ** runs
    return float(1.0 - kept + kept * hidden)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("epsilon", "delta"), BUDGETS)
def test_the_worst_runs_that_fit_keep_the_guarantee(rule: str, epsilon: float, delta: float) -> None:
    limit = limit_of(rule, decimal(epsilon), decimal(delta))
    for share, run_delta in product((0.5, 0.1, 0.02), (0.0, delta / 1000)):
        cost = plain_cost(rule, share * epsilon, run_delta)
        runs = int(limit.loss / cost.loss)
        if cost.delta:
            runs = min(runs, int(limit.delta / cost.delta))
        assert responses_delta(epsilon, runs, share * epsilon, run_delta) <= delta * (1 + 1e-9)


@pytest.mark.parametrize("rule", ["zcdp", "gdp"])
@pytest.mark.parametrize(("epsilon", "delta"), BUDGETS)
def test_gaussian_runs_that_fit_keep_the_guarantee(rule: str, epsilon: float, delta: float) -> None:
    limit = limit_of(rule, decimal(epsilon), decimal(delta))
    mu = gaussian_mu(epsilon / 20, delta / 10)
    part = Releases(mu, 1e-16)
    cost = cost_of(rule, decimal(epsilon / 20), decimal(delta / 10), part, run=REPLACE, budget=REPLACE)
    runs = int(limit.loss / cost.loss)
    assert runs > 20  # more than epsilons that add up
    assert gaussian_delta(epsilon, math.sqrt(runs) * mu) + runs * float(cost.delta) <= delta
    if rule == "gdp":  # and not one more: the conversion is exact
        assert gaussian_delta(epsilon, math.sqrt(runs + 1) * mu) > 0.9 * delta


@pytest.mark.parametrize(("epsilon", "delta"), BUDGETS)
def test_the_limits_are_rounded_down_and_tight(epsilon: float, delta: float) -> None:
    mu_squared = limit_of("gdp", decimal(epsilon), decimal(delta)).loss
    rho = limit_of("zcdp", decimal(epsilon), decimal(delta)).loss
    checks: list[tuple[Callable[[float], float], float]] = [
        (lambda loss: gaussian_delta(epsilon, math.sqrt(loss)), float(mu_squared)),
        (lambda loss: zcdp_delta(epsilon, loss), float(rho)),
    ]
    for spent, loss in checks:
        assert spent(loss) <= 0.9 * delta < spent(loss * (1 + 1e-6))
    assert limit_of("gdp", decimal(epsilon), decimal(delta)).delta == decimal(delta) / 10
    assert rho < mu_squared / 2  # zCDP is implied by GDP
    simple = (math.sqrt(math.log(2 / delta) + epsilon) - math.sqrt(math.log(2 / delta))) ** 2
    assert float(rho) > simple  # of rho + 2 sqrt(rho ln 1/delta)


@pytest.mark.parametrize(("epsilon", "rho"), [(0.1, 1e-4), (1.0, 0.02), (5.0, 0.5), (1e-3, 1e-9)])
def test_the_conversion_of_zcdp_takes_the_best_order(epsilon: float, rho: float) -> None:
    orders = 1 + np.exp(np.linspace(-15, 29, 400_001))
    less = orders - 1
    log_delta = less * (orders * rho - epsilon) - less * np.log1p(1 / less) - np.log(orders)
    assert math.log(zcdp_delta(epsilon, rho)) == pytest.approx(log_delta.min(), abs=1e-6)


@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 1.0, 5.0, 30.0])
def test_a_pure_run_is_as_private_as_its_gaussian(epsilon: float) -> None:
    """G_mu lies below the trade-off of (epsilon, 0), and meets it at the corner."""
    mu = math.sqrt(plain_cost("gdp", epsilon).loss)
    corner = 1 / (1 + math.exp(epsilon))
    errors = np.concatenate([np.linspace(1e-6, 1 - 1e-6, 10_001), corner * np.geomspace(1e-3, 1e3, 1001)])
    errors = errors[errors < 1]
    pure = np.maximum(1 - math.exp(epsilon) * errors, math.exp(-epsilon) * (1 - errors))
    gaussian = norm.cdf(norm.isf(errors) - mu)
    assert np.all(gaussian <= np.maximum(pure, 0) + 1e-15)
    assert norm.cdf(norm.isf(corner) - mu) == pytest.approx(corner, rel=1e-6)


@pytest.mark.parametrize("epsilon", [1e-12, 1e-11, 1e-9, 1e-6, 0.5, 0.999999, 1.0, 1.000001])
def test_a_pure_run_of_next_to_nothing_is_charged_in_full(epsilon: float) -> None:
    """mu = -2 Phi^-1(1/(1 + e^epsilon)) is sqrt(2 pi)/2 epsilon (1 + O(epsilon^2)): from 60 digits."""
    with mpmath.workdps(60):
        exact = float(math.sqrt(8) * mpmath.erfinv(mpmath.tanh(mpmath.mpf(epsilon) / 2)))
    paid = math.sqrt(plain_cost("gdp", epsilon).loss)
    assert exact * (1 - 1e-15) <= paid <= exact * (1 + 1e-8)


def test_ten_tenths_are_one() -> None:
    limit = limit_of("basic", Decimal(1), Decimal("1e-6"))
    cost = plain_cost("basic", 0.1, 1e-7)
    assert (10 * cost.loss, 10 * cost.delta) == (limit.loss, limit.delta)


def test_a_blanked_row_is_half_of_a_replaced_one() -> None:
    def cost(run: Relation, budget: Relation) -> Cost:
        return cost_of("basic", Decimal(1), Decimal("1e-6"), None, run=run, budget=budget)

    assert (
        cost(REPLACE, ZERO) == cost(REPLACE, REPLACE) == cost(ZERO, ZERO) == Cost(Decimal(1), Decimal("1e-6"))
    )
    twice = cost(ZERO, REPLACE)
    assert twice.loss == 2
    assert float(twice.delta) == pytest.approx(1e-6 * (1 + math.e))
    assert float(twice.delta) > 1e-6 * (1 + math.e)
    huge = cost_of("basic", Decimal(900), Decimal("1e-6"), None, run=ZERO, budget=REPLACE)
    assert huge.delta == 1


@pytest.mark.parametrize("rule", ["zcdp", "gdp"])
def test_what_is_left_is_worth_what_it_was(rule: str) -> None:
    epsilon, delta = Decimal(2), Decimal("1e-6")
    limit = limit_of(rule, epsilon, delta)
    budget = Budget(
        "d", datetime.now(), "me", rule, epsilon, delta, REPLACE, None, (), epsilon, delta, delta, limit
    )
    assert budget.worth(limit.loss) == pytest.approx(2.0, rel=1e-5)
    assert epsilon_of(rule, Decimal(0), limit.delta) == 0.0


def test_the_gaussian_part_of_a_release() -> None:
    noise = calibrate(0.01, 0.0, 50, 1.0, 1e-6)
    part = noise.releases()
    assert isinstance(part, Releases)
    assert part.mu == pytest.approx(gaussian_mu(1.0, 1e-6), rel=1e-9)
    assert part.delta == resolution.sampler_delta(50)
    pure = calibrate(0.01, 0.0, 50, 1.0, 0.0).releases()
    assert pure == PureReleases(resolution.sampler_delta(50))  # K-norm
    for rule in RULES:
        whole = plain_cost(rule, 1.0, 1e-6)
        cost = cost_of(rule, Decimal(1), Decimal("1e-6"), pure, run=REPLACE, budget=REPLACE)
        assert cost.loss == whole.loss
        assert float(cost.delta) == pytest.approx(resolution.sampler_delta(50), rel=1e-8)
        twice = cost_of(rule, Decimal(1), Decimal("1e-6"), pure, run=ZERO, budget=REPLACE)
        assert float(twice.delta) == pytest.approx((1 + math.e) * resolution.sampler_delta(50), rel=1e-8)
    assert no_release("gaussian", 50).releases() is None  # constant


def shuffled(epsilon: float, delta: float, passes: int = 10, relation: Relation = REPLACE) -> StepNoise:
    return calibrate_passes(
        bound=1.0,
        relation=relation,
        passes=passes,
        steps=passes * 1200,
        batch_rows=50,
        row_bound=1.0,
        n_weights=101,
        epsilon=epsilon,
        delta=delta,
    )


def poisson(
    epsilon: float,
    delta: float,
    relation: Relation = REPLACE,
    accountant: str = "pld",
    sampling: float = 0.02,
) -> StepNoise:
    return calibrate_poisson(
        bound=1.0,
        relation=relation,
        passes=10,
        steps=500,
        sampling=sampling,
        n_units=60_000,
        max_rows_per_unit=1,
        row_bound=1.0,
        n_weights=101,
        epsilon=epsilon,
        delta=delta,
        accountant=accountant,
    )[0]


@pytest.mark.parametrize("epsilon", [0.1, 1.0])
@pytest.mark.parametrize("passes", [1, 10])
def test_shuffled_passes_are_a_gaussian_release(epsilon: float, passes: int) -> None:
    delta = 1 / 60_000**2
    part = shuffled(epsilon, delta, passes).releases()
    assert isinstance(part, Releases)
    assert gaussian_mu(epsilon, delta) * (1 - 1e-3) < part.mu <= gaussian_mu(epsilon, delta)
    assert part.delta == resolution.sampler_delta(passes * 101)
    assert shuffled(epsilon, 0.0, passes).releases() is None  # K-norm


@pytest.mark.parametrize("epsilon", [0.1, 0.3, 1.0])
def test_noise_in_every_step_is_charged_what_it_is(epsilon: float) -> None:
    delta = 1 / 60_000**2
    for noise in (shuffled(epsilon, delta), poisson(epsilon, delta)):
        part = noise.releases()
        cost = cost_of("gdp", decimal(epsilon), decimal(delta), part, run=REPLACE, budget=REPLACE)
        assert 40 * cost.loss < plain_cost("gdp", epsilon, delta).loss
        assert cost.delta < delta / 10_000


@pytest.mark.parametrize("relation", Relation)
def test_steps_on_poisson_batches_are_accounted_with_their_head_room(relation: Relation) -> None:
    noise = poisson(1.0, 1e-6, relation)
    part = noise.releases()
    assert isinstance(part, PoissonSteps)
    calibrated = noise.calibrated_sensitivity / relation.gradient_change(1.0)
    assert part.multiplier == pytest.approx(noise.scale / calibrated, rel=1e-12)
    assert calibrated > 1.0
    assert part.sampling == 0.02 * (1 + 2.0**-20)
    assert part.steps == 500
    assert part.precision == 2.0 * resolution.sampler_mu(500 * 101)
    assert part.delta == pytest.approx(resolution.sampler_delta(500 * 101) + 2.0**-29 * 1e-6)
    cost = cost_of("gdp", Decimal(1), Decimal("1e-6"), part, run=relation, budget=relation)
    assert float(cost.delta) == pytest.approx(part.delta + 1e-6 * 2.0**-14, rel=1e-8)


@pytest.mark.parametrize("rule", ["zcdp", "gdp"])
def test_a_gaussian_run_of_a_blanked_row_is_two_steps_of_mu(rule: str) -> None:
    mu = gaussian_mu(1.0, 1e-6)
    one, two = (
        cost_of(rule, Decimal(1), Decimal("1e-6"), Releases(mu, 1e-16), run=ZERO, budget=budget)
        for budget in (ZERO, REPLACE)
    )
    assert float(two.loss) == pytest.approx(4 * float(one.loss), rel=1e-8)
    assert one.delta == two.delta
    # It is twice as far: the trade-off of N(0, 1) and N(2 mu, 1).
    errors = np.linspace(1e-6, 1 - 1e-6, 1001)
    middle = norm.cdf(norm.ppf(errors) + mu)
    twice = math.sqrt(float(two.loss) * (1 if rule == "gdp" else 2))
    assert norm.cdf(norm.isf(middle) - mu) == pytest.approx(norm.cdf(norm.isf(errors) - twice), rel=1e-6)


@pytest.mark.parametrize("accountant", ["pld", "advanced"])
def test_poisson_runs_cost_what_the_relation_of_the_budget_says(accountant: str) -> None:
    part = poisson(1.0, 1e-6, ZERO, accountant).releases()
    one, two = (
        float(cost_of("gdp", Decimal(1), Decimal("1e-6"), part, run=ZERO, budget=budget).loss)
        for budget in (ZERO, REPLACE)
    )
    assert 3 * one < two < 4.5 * one


def test_poisson_runs_cost_no_more_than_any_run_of_their_epsilon() -> None:
    """One step on very rare units tells little, but has losses that no Gaussian of that mu has."""
    part = PoissonSteps(0.3, 1e-4, 1, 0.0, 0.0)
    cost = cost_of("gdp", decimal(1e-3), Decimal("1e-4"), part, run=REPLACE, budget=REPLACE)
    assert cost == plain_cost("gdp", 1e-3, 1e-4)


def test_runs_of_all_kinds_that_fill_a_budget_keep_the_guarantee() -> None:
    """By dp_accounting's composition of all their privacy losses."""
    library: Any = pytest.importorskip(
        "dp_accounting.pld.privacy_loss_distribution", reason="dp_accounting is not installed"
    )
    delta = 1e-6
    runs = [poisson(0.3, 1e-8, ZERO, "pld", q) for q in (0.01, 0.02, 0.05, 0.1)]
    runs += [poisson(1.0, 1e-7, ZERO, "advanced"), *(shuffled(0.2, 1e-8, k, ZERO) for k in (1, 5, 10))]
    total, charged, pair = 0.0, 0.0, library.identity(1e-4)
    for noise in runs:
        part = noise.releases()
        cost = cost_of("gdp", decimal(0.3), decimal(1e-8), part, run=ZERO, budget=ZERO)
        total, charged = total + float(cost.loss), charged + float(cost.delta)
        if isinstance(part, Releases):
            one = library.from_gaussian_mechanism(1.0 / part.mu, value_discretization_interval=1e-4)
        else:
            assert isinstance(part, PoissonSteps)
            one = library.from_gaussian_mechanism(
                part.multiplier, sampling_prob=part.sampling, value_discretization_interval=1e-4
            ).self_compose(part.steps)
        pair = pair.compose(one)
    epsilon = epsilon_of("gdp", Decimal(total), decimal(0.9 * delta))
    assert charged < 1e-4 * delta
    assert 0.1 * delta < pair.get_delta_for_epsilon(epsilon) < 0.9 * delta + charged


@pytest.mark.parametrize("method", ["bolt-on", "dp-gd", "whitened-dp-gd", "scs13", "dp-sgd", "bst14"])
@pytest.mark.parametrize(
    ("run", "budget", "runs"), [(REPLACE, REPLACE, 152), (ZERO, ZERO, 152), (ZERO, REPLACE, 38)]
)
def test_a_budget_holds_as_many_runs_as_the_documents_say(
    run: Relation, budget: Relation, runs: int, method: str
) -> None:
    privacy = PrivacySpec(0.1, relation=run)
    planned = plan_problem(Problem(60_000, 100, 1, "binary"), privacy, TrainSpec(method=method))
    assert planned.guarantee is not None
    delta = decimal(planned.guarantee.delta)
    assert planned.noise is not None
    cost = cost_of("gdp", decimal(0.1), delta, planned.noise.releases(), run=run, budget=budget)
    limit = limit_of("gdp", Decimal(1), Decimal("1e-6"))
    assert limit.loss // cost.loss == runs
    assert runs * cost.delta <= limit.delta


# Which noise a run takes


def bolt_on_cost(
    rule: str, epsilon: float, delta: float | None, n_features: int, run: Relation, budget: Relation
) -> tuple[str, Cost]:
    """Kind of the noise, and what such a run is charged."""
    problem = Problem(4000, n_features, 1, "binary", budget=Accounting(rule, budget))
    plan = plan_problem(problem, PrivacySpec(epsilon, delta, run), TrainSpec(method="bolt-on"))
    assert isinstance(plan.noise, ReleaseNoise)
    assert plan.guarantee is not None
    given = (decimal(plan.guarantee.epsilon), decimal(plan.guarantee.delta), plan.noise.releases())
    return plan.noise.kind, cost_of(rule, *given, run=run, budget=budget)


@pytest.mark.parametrize(("run", "budget"), [(REPLACE, REPLACE), (ZERO, REPLACE), (ZERO, ZERO)])
@pytest.mark.parametrize("rule", ["zcdp", "gdp"])
@pytest.mark.parametrize("epsilon", [0.1, 0.5, 5.0])
@pytest.mark.parametrize("n_features", [1, 8, 200])
def test_a_short_model_costs_its_budget_what_gaussian_noise_costs(
    rule: str, epsilon: float, n_features: int, run: Relation, budget: Relation
) -> None:
    kind, cost = bolt_on_cost(rule, epsilon, None, n_features, run, budget)
    assert kind == "gaussian"
    mu = gaussian_mu(epsilon, 1 / 4000**2) * (2 if (run, budget) == (ZERO, REPLACE) else 1)
    assert float(cost.loss) == pytest.approx(mu**2 if rule == "gdp" else mu**2 / 2, rel=1e-6)


def test_by_rule_basic_and_without_a_budget_the_smaller_noise_is_taken() -> None:
    kind, cost = bolt_on_cost("basic", 0.1, None, 8, REPLACE, REPLACE)
    assert (kind, cost.loss) == ("k-norm", Decimal("0.1"))
    plan = plan_problem(Problem(4000, 8, 1, "binary"), PrivacySpec(0.1), TrainSpec(method="bolt-on"))
    assert isinstance(plan.noise, ReleaseNoise)
    assert (plan.noise.kind, plan.noise_reason) == ("k-norm", "")


@pytest.mark.parametrize("rule", RULES)
def test_the_noise_chosen_never_costs_more_than_the_other(rule: str) -> None:
    tried = 0
    for epsilon, delta, n in product((1e-6, 0.1, 1, 10, 30, 90), (1e-33, 1e-15, 1e-6, 0.01, 0.3), (1, 9, 90)):
        kind = choose_noise(Accounting(rule, REPLACE), epsilon, delta, n, REPLACE).kind
        losses = {}
        for other in ("gaussian", "k-norm"):
            try:
                part = calibrate(0.01, 0.0, n, epsilon, delta, other).releases()
            except GuaranteeError:
                continue  # there is no such noise
            given = (decimal(epsilon), decimal(delta), part)
            losses[other] = float(cost_of(rule, *given, run=REPLACE, budget=REPLACE).loss)
        if kind in losses:  # else epsilon is refused as too small for it
            assert losses[kind] <= min(losses.values()) * (1 + 1e-9)
            tried += 1
    assert tried > 70


def test_a_plan_says_what_its_noise_costs_and_why() -> None:
    def reason(delta: float | None) -> str:
        problem = Problem(4000, 8, 1, "binary", budget=Accounting("gdp", REPLACE))
        return plan_problem(problem, PrivacySpec(0.1, delta), TrainSpec(method="bolt-on")).noise_reason

    pure = (-2 * norm.ppf(1 / (1 + math.exp(0.1)))) ** 2
    times = pure / gaussian_mu(0.1, 1 / 4000**2) ** 2
    assert 20 < times < 40
    assert reason(None).startswith("Gaussian noise, since K-norm noise, though smaller, would cost")
    assert f"cost {times:.3g} times as much of a gdp budget" in reason(None)
    assert f"a gdp budget takes {times:.3g} times what Gaussian noise at delta = 6.25e-08" in reason(0.0)
