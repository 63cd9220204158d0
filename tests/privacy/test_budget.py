# SPDX-License-Identifier: PostgreSQL
"""Costs and limits of budgets, against exact compositions of the runs that fit."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from itertools import product

import numpy as np
import pytest
from scipy.stats import binom, norm

from pg_dpml.budgets import Budget
from pg_dpml.privacy import resolution
from pg_dpml.privacy.budget import RULES, Cost, cost_of, epsilon_of, gaussian_part, limit_of, zcdp_delta
from pg_dpml.privacy.mechanisms import ReleaseNoise, calibrate, gaussian_delta, gaussian_mu
from pg_dpml.privacy.relation import Relation

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
    cost = cost_of(rule, decimal(epsilon / 20), decimal(delta / 10), (mu, 1e-16), run=REPLACE, budget=REPLACE)
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
    # The Gaussian part of such a run is not used: it is about one step.
    assert cost_of("gdp", Decimal(1), Decimal(0), (0.1, 0.0), run=ZERO, budget=REPLACE) == plain_cost(
        "gdp", 2.0
    )
    huge = cost_of("basic", Decimal(900), Decimal("1e-6"), None, run=ZERO, budget=REPLACE)
    assert huge.delta == 1


@pytest.mark.parametrize("rule", ["zcdp", "gdp"])
def test_what_is_left_is_worth_what_it_was(rule: str) -> None:
    epsilon, delta = Decimal(2), Decimal("1e-6")
    limit = limit_of(rule, epsilon, delta)
    budget = Budget("d", datetime.now(), "me", rule, epsilon, delta, REPLACE, None, (), limit)
    assert budget.worth(limit.loss) == pytest.approx(2.0, rel=1e-5)
    assert epsilon_of(rule, Decimal(0), limit.delta) == 0.0


def test_the_gaussian_part_of_a_release() -> None:
    noise = calibrate(0.01, 0.0, 50, 1.0, 1e-6)
    part = gaussian_part(noise)
    assert part is not None
    assert part[0] == pytest.approx(gaussian_mu(1.0, 1e-6), rel=1e-9)
    assert part[1] == resolution.sampler_delta(50)
    assert gaussian_part(calibrate(0.01, 0.0, 50, 1.0, 0.0)) is None  # K-norm
    assert gaussian_part(ReleaseNoise("gaussian", 0.0, 0.0, 0.0, 0.0, 50)) is None  # constant
