# SPDX-License-Identifier: PostgreSQL
"""The account of random allocation, against closed forms, quadrature and a published table.

Source: privacy/README.md, "Random allocation".
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from scipy.integrate import trapezoid
from scipy.optimize import brentq, minimize_scalar
from scipy.special import ndtr
from scipy.stats import norm

from pg_dpml.privacy.accounting import allocated, bounds, ratios
from pg_dpml.privacy.accounting.allocated import (
    allocated_gaussian_epsilon,
    allocated_gaussian_mu,
    allocated_gaussian_multiplier,
)
from pg_dpml.privacy.accounting.subsampled import subsampled_gaussian_multiplier
from pg_dpml.privacy.gaussian import gaussian_delta, gaussian_mu
from pg_dpml.spec.relation import Relation

GRID_ERROR = 0.01
"""What the points may add to epsilon."""

ZERO, REPLACED = Relation.ADD_REMOVE, Relation.REPLACE_ONE


@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize(("multiplier", "passes"), [(0.7, 1), (3.0, 4), (200.0, 50)])
def test_one_batch_is_a_gaussian_release(multiplier: float, passes: int, relation: Relation) -> None:
    delta = 1e-9
    mu = math.sqrt(passes) * relation.gradient_change(1.0) / multiplier
    found = allocated_gaussian_epsilon(multiplier, 1, passes, delta, relation)
    assert gaussian_delta(found, mu) == pytest.approx(delta, rel=1e-6)
    wanted = allocated_gaussian_multiplier(found, delta, 1, passes, relation)
    assert wanted.noise_multiplier == pytest.approx(multiplier, rel=1e-6)


def two_batches_delta(epsilon: float, multiplier: float, *, removed: bool) -> float:
    """delta(epsilon) of one pass of two batches: given the first's noise, the mean is a closed form."""
    slope = 1.0 / multiplier
    z = np.linspace(-14.0, 14.0 + slope, 8_001)
    first = np.exp(slope * z - 0.5 * slope * slope)
    # E (W - c)_+ and E (c - W)_+ for a lognormal of mean 1; S - a = (W - (2 a - first)) / 2
    c = 2.0 * math.exp(epsilon if removed else -epsilon) - first
    with np.errstate(divide="ignore", invalid="ignore"):
        edge = (-np.log(np.maximum(c, 0.0)) + 0.5 * slope * slope) / slope
    if removed:
        inner = np.where(c > 0.0, ndtr(edge) - c * ndtr(edge - slope), 1.0 - c)
        return float(trapezoid(0.5 * inner * norm.pdf(z), z))
    inner = np.where(c > 0.0, c * ndtr(slope - edge) - ndtr(-edge), 0.0)
    return float(trapezoid(0.5 * math.exp(epsilon) * inner * norm.pdf(z), z))


def crossing(delta_at: Callable[[float], float], delta: float) -> float:
    return float(brentq(lambda epsilon: delta_at(epsilon) / delta - 1.0, 1e-9, 40.0, xtol=1e-12))


@pytest.mark.parametrize("multiplier", [0.6, 1.0, 3.0, 20.0])
@pytest.mark.parametrize("delta", [1e-4, 1e-9])
def test_two_batches_agree_with_quadrature(multiplier: float, delta: float) -> None:
    """In the worse direction, and at the best split where a unit is removed and another added."""
    removed, added = (
        partial(two_batches_delta, multiplier=multiplier, removed=gone) for gone in (True, False)
    )
    expected = max(crossing(removed, delta), crossing(added, delta))
    found = allocated_gaussian_epsilon(multiplier, 2, 1, delta, ZERO)
    assert expected * (1.0 - 1e-6) <= found <= expected * (1.0 + GRID_ERROR)

    def replaced(epsilon: float) -> float:
        best = minimize_scalar(
            lambda split: removed(split) + math.exp(split) * added(epsilon - split),
            bounds=(0.2 * epsilon, 0.8 * epsilon),
            options={"xatol": 1e-6},
        )
        return float(best.fun)

    exact = bounds.exact_epsilon(multiplier, 1, delta, REPLACED)
    low, high = 0.5 * found, 4.0 * found
    for _ in range(20):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if replaced(middle) > delta else (low, middle)
    found = allocated_gaussian_epsilon(multiplier, 2, 1, delta, REPLACED)
    assert min(low, exact) * (1.0 - 1e-5) <= found <= min(high, exact) * (1.0 + GRID_ERROR)


@pytest.mark.parametrize(
    ("batches", "passes", "multiplier", "fresh", "one"),
    [
        (50, 3, 2.0, 0.733, 1.653),
        (50, 3, 4.0, 0.337, 0.354),
        (20, 3, 6.0, 0.352, 0.359),
        (20, 3, 8.0, 0.261, 0.264),
        (20, 1, 4.0, 0.307, 0.307),
        (50, 10, 8.0, 0.303, 0.318),
    ],
)
def test_agrees_with_the_upper_bounds_of_pld_accounting(
    batches: int, passes: int, multiplier: float, fresh: float, one: float
) -> None:
    """Of PLD-accounting 2.0 (Feldman & Shenfeld 2026) at delta = 6e-10, to three digits."""
    delta = 6e-10
    for expected, found in (
        (fresh, allocated_gaussian_epsilon(multiplier, batches, passes, delta, ZERO)),
        (one, allocated_gaussian_epsilon(multiplier / math.sqrt(passes), batches, 1, delta, ZERO)),
    ):
        assert expected * 0.975 <= found <= expected + 0.002


def test_a_small_pass_over_many_rows() -> None:
    """n = 498,010, b = 50, ten passes, epsilon 0.1: as little noise as with Poisson batches."""
    n = 498_010
    batches, delta = math.ceil(n / 50), n**-2.0
    for relation, one_order in ((ZERO, 1.65), (REPLACED, 1.2)):
        poisson = subsampled_gaussian_multiplier(0.1, delta, 50 / n, 10 * batches, relation).noise_multiplier
        start = time.perf_counter()
        fresh = allocated_gaussian_multiplier(0.1, delta, batches, 10, relation)
        one = allocated_gaussian_multiplier(0.1, delta, batches, 1, relation)
        assert time.perf_counter() - start < 20.0
        assert fresh.epsilon <= 0.1
        assert 0.98 <= fresh.noise_multiplier / poisson <= 1.02
        assert math.sqrt(10.0) * one.noise_multiplier / poisson <= one_order


def least_epsilon(multiplier: float, batches: int, passes: int, delta: float) -> float:
    """Shown by the mean of all batches' noise: mu = sqrt(k / T) / sigma; or by the largest of one pass."""
    mu = math.sqrt(passes / batches) / multiplier
    shown = bounds.least_epsilon(lambda epsilon: gaussian_delta(epsilon, mu), mu * (0.5 * mu + 40.0), delta)
    t = np.linspace(0.0, 1.0 / multiplier + 14.0, 4001)
    others = ndtr(-t)
    own = -np.expm1((batches - 1) * np.log1p(-others) + np.log1p(-ndtr(1.0 / multiplier - t)))
    base = -np.expm1(batches * np.log1p(-others))
    with np.errstate(divide="ignore", invalid="ignore"):
        largest = np.log(np.where(own > delta, own - delta, 0.0) / base)
    return max(shown if math.isfinite(shown) else 0.0, float(np.nanmax(largest)))


@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize("delta", [1e-5, 1e-30])
@pytest.mark.parametrize("passes", [1, 1000])
@pytest.mark.parametrize("batches", [2, 100])
@pytest.mark.parametrize("multiplier", [0.3, 1.0, 30.0, 1e4])
def test_extreme_settings(
    multiplier: float, batches: int, passes: int, delta: float, relation: Relation
) -> None:
    """Never below what simple attacks show, never above what a known batch costs."""
    found = allocated_gaussian_epsilon(multiplier, batches, passes, delta, relation)
    assert least_epsilon(multiplier, batches, passes, delta) * (1.0 - 1e-9) <= found
    assert found <= bounds.exact_epsilon(multiplier, passes, delta, relation)


def test_a_ratio_is_above_the_true_one_in_the_convex_order() -> None:
    """Its mean is 1; its variance and means of (a - S)_+ are no less than the true ones, and hardly more."""
    multiplier, batches = 1.5, 37
    found = ratios.mean_ratios(multiplier, batches, 0.06, 8.0)
    assert float(found.masses.sum()) == pytest.approx(1.0, abs=1e-12)
    assert float(found.masses @ found.values) + found.infinite == pytest.approx(1.0, abs=1e-12)
    variance = math.expm1(multiplier**-2) / batches
    spread = float(found.masses @ (found.values - 1.0) ** 2)
    assert variance * (1.0 - 1e-9) <= spread <= variance * 1.02
    first = ratios.mean_ratios(multiplier, 1, 0.06, 8.0)
    for level in (0.2, 1.0, 5.0):
        edge = multiplier * math.log(level) + 0.5 / multiplier
        below = level * ndtr(edge) - ndtr(edge - 1.0 / multiplier)
        mean = float(first.masses @ np.maximum(level - first.values, 0.0))
        assert below * (1.0 - 1e-9) <= mean <= below * 1.01


@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize(("multiplier", "batches", "passes"), [(2.0, 50, 3), (1.0, 400, 1)])
def test_mu_bounds_the_whole_curve(multiplier: float, batches: int, passes: int, relation: Relation) -> None:
    spare = 1e-9
    mu = allocated_gaussian_mu(multiplier, batches, passes, spare, relation)
    exact = math.sqrt(passes) * relation.gradient_change(1.0) / multiplier
    assert mu <= exact * (1.0 + 1e-6)
    for delta in (1e-2, 1e-5, 1e-8):
        epsilon = allocated_gaussian_epsilon(multiplier, batches, passes, delta, relation)
        assert spare + (1.0 - spare) * gaussian_delta(epsilon * 0.98, mu) >= delta * 0.999
    assert mu >= math.sqrt(passes / batches) / multiplier


def test_the_multiplier_costs_what_was_asked_for() -> None:
    for relation in Relation:
        found = allocated_gaussian_multiplier(1.0, 1e-8, 50, 5, relation)
        assert 0.98 <= found.epsilon <= 1.0
        spent = allocated_gaussian_epsilon(found.noise_multiplier, 50, 5, 1e-8, relation)
        assert spent <= 1.0 + 1e-12
        known = math.sqrt(5.0) * relation.gradient_change(1.0) / gaussian_mu(1.0, 1e-8)
        assert found.noise_multiplier < known


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.0, 5, 1, 1e-6, ZERO), "noise_multiplier must be in"),
        ((1.0, 0, 1, 1e-6, ZERO), "batches must be from 1 to"),
        ((1.0, allocated.MOST_BATCHES + 1, 1, 1e-6, ZERO), "batches must be from 1 to"),
        ((1.0, 5, 0, 1e-6, ZERO), "steps must be at least 1"),
        ((1.0, 5, 1, 1.0, ZERO), "delta must be in"),
    ],
)
def test_arguments_outside_their_domains_are_rejected(
    arguments: tuple[float, int, int, float, Relation], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        allocated_gaussian_epsilon(*arguments)
