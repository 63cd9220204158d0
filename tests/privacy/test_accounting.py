# SPDX-License-Identifier: PostgreSQL
"""The account of subsampled Gaussian noise, against closed forms, quadrature and dp_accounting."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy.integrate import trapezoid
from scipy.optimize import brentq, minimize_scalar
from scipy.special import log_ndtr, ndtr
from scipy.stats import norm

from pg_dpml.privacy.accounting import bounds, pld, search, subsampled
from pg_dpml.privacy.accounting.bst14 import advanced_multiplier, published_bst14_multiplier
from pg_dpml.privacy.accounting.subsampled import (
    Accounted,
    subsampled_gaussian_epsilon,
    subsampled_gaussian_mu,
    subsampled_gaussian_multiplier,
)
from pg_dpml.privacy.gaussian import gaussian_mu
from pg_dpml.spec.relation import Relation

FloatArray = npt.NDArray[np.float64]
Curve = Callable[[FloatArray], FloatArray]

GRID_ERROR = 0.005
"""What privacy/README.md, "Subsampled Gaussian noise", allows the grid to add to epsilon."""


def one_step_delta(epsilon: FloatArray, multiplier: float, q: float, *, removed: bool) -> FloatArray:
    """delta(epsilon) of one step for any real epsilon: P(loss > epsilon) - e^epsilon Q(loss > epsilon)."""
    a = np.exp(epsilon)
    # Of the densities N(1) and N(0), where the loss is epsilon.
    ratio = 1.0 + ((a if removed else 1.0 / a) - 1.0) / q
    with np.errstate(divide="ignore"):
        x = 0.5 + multiplier**2 * np.log(np.maximum(ratio, 0.0))
    if removed:
        return np.asarray(q * ndtr((1.0 - x) / multiplier) + (1.0 - q - a) * ndtr(-x / multiplier))
    return np.asarray((1.0 - a * (1.0 - q)) * ndtr(x / multiplier) - a * q * ndtr((x - 1.0) / multiplier))


@cache
def first_step(multiplier: float, q: float, removed: bool) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Places of one step, their density, and the loss there."""
    x = np.linspace(-11.0 * multiplier, 11.0 * multiplier + 1.0, 4001)
    base, moved = norm.pdf(x, 0.0, multiplier), norm.pdf(x, 1.0, multiplier)
    mixed = (1.0 - q) * base + q * moved
    own, other = (mixed, base) if removed else (base, mixed)
    return x, own, np.log(own / other)


def two_step_delta(epsilon: FloatArray, multiplier: float, q: float, *, removed: bool) -> FloatArray:
    """delta(epsilon) of two steps: the mean of the second's at epsilon less the first's loss."""
    x, own, loss = first_step(multiplier, q, removed)
    inner = one_step_delta(epsilon - loss, multiplier, q, removed=removed)
    return np.asarray(trapezoid(own * inner, x))


def replaced_delta(epsilon: float, removed: Curve, added: Curve) -> float:
    """delta(epsilon) of a unit that is removed and another that is added, at the best split."""

    def total(split: float) -> float:
        return float(removed(np.asarray(split)) + math.exp(split) * added(np.asarray(epsilon - split)))

    splits = np.unique([*np.linspace(0.0, epsilon, 41), *np.linspace(-2.0, epsilon + 2.0, 41)])
    best = int(np.argmin([total(split) for split in splits]))
    bounds = (splits[max(best - 1, 0)], splits[min(best + 1, len(splits) - 1)])
    return float(minimize_scalar(total, bounds=bounds, options={"xatol": 1e-9}).fun)


def true_epsilon(
    delta_at: Callable[..., FloatArray], multiplier: float, q: float, delta: float, relation: Relation
) -> float:
    removed, added = (partial(delta_at, multiplier=multiplier, q=q, removed=gone) for gone in (True, False))

    def excess(epsilon: float, curve: Curve | None) -> float:
        if curve is None:
            return replaced_delta(epsilon, removed, added) - delta
        return float(curve(np.asarray(epsilon))) - delta

    return max(
        float(brentq(excess, 0.0, 60.0, args=(curve,), xtol=1e-12)) if excess(0.0, curve) > 0.0 else 0.0
        for curve in ((removed, added) if relation is Relation.ADD_REMOVE else (None,))
    )


@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize(("steps", "delta_at"), [(1, one_step_delta), (2, two_step_delta)])
@pytest.mark.parametrize(("multiplier", "q"), [(0.5, 0.02), (0.7, 0.3), (1.0, 0.9), (2.0, 0.1), (5.0, 0.5)])
def test_few_steps_agree_with_closed_form_and_quadrature(
    relation: Relation, steps: int, delta_at: Callable[..., FloatArray], multiplier: float, q: float
) -> None:
    delta = 1e-6
    expected = true_epsilon(delta_at, multiplier, q, delta, relation)
    found = subsampled_gaussian_epsilon(multiplier, q, steps, delta, relation)
    exact = bounds.exact_epsilon(multiplier, steps, delta, relation)
    assert found <= exact
    assert min(expected, exact) * (1.0 - 1e-6) <= found <= expected * (1.0 + GRID_ERROR)


@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize(("multiplier", "q"), [(0.7, 0.01), (0.5, 0.05)])
@pytest.mark.parametrize("delta", [1e-8, 1e-12])
def test_few_steps_of_rare_units_need_a_fine_grid(
    delta: float, multiplier: float, q: float, relation: Relation
) -> None:
    """A coarse one has so few losses of an added unit that its composition shows no epsilon."""
    expected = true_epsilon(one_step_delta, multiplier, q, delta, relation)
    found = subsampled_gaussian_epsilon(multiplier, q, 1, delta, relation)
    assert expected * (1.0 - 1e-6) <= found <= expected * (1.0 + GRID_ERROR)


@pytest.mark.parametrize("delta", [1e-5, 1e-12, 1e-25])
@pytest.mark.parametrize(("multiplier", "steps"), [(20.0, 100), (1000.0, 10**6), (3.0, 1)])
def test_convolution_agrees_with_the_exact_composition_of_gaussians(
    multiplier: float, steps: int, delta: float
) -> None:
    """Also at a delta far below the rounding of a Fourier transform."""
    exact = bounds.exact_epsilon(multiplier, steps, delta, Relation.ADD_REMOVE)
    grid = subsampled._first_interval(multiplier, 1.0) / 4.0
    losses = partial(subsampled.poisson_losses, multiplier, 1.0)
    found = pld.pld_epsilon(losses, steps, delta, Relation.ADD_REMOVE, grid)
    assert exact <= found <= exact * (1.0 + GRID_ERROR)


SETTINGS = [
    # multiplier, q, steps, delta
    (2.02, 50 / 498010, 99610, 1e-9),
    (0.8, 0.01, 1000, 1e-6),
    (0.6, 0.001, 1000, 1e-8),
    (10.0, 0.1, 5000, 1e-8),
    (3.0, 0.9, 100, 1e-5),
    (1.1, 256 / 60000, 14062, 1e-5),
    (0.7, 0.01, 4, 1e-12),
]


@cache
def library_losses(library: Any, multiplier: float, q: float, steps: int, pessimistic: bool) -> Any:
    """What dp_accounting composes."""
    return library.from_gaussian_mechanism(
        multiplier,
        sampling_prob=q,
        value_discretization_interval=subsampled._first_interval(multiplier, q) / 4.0,
        pessimistic_estimate=pessimistic,
    ).self_compose(steps)


@cache
def library_curves(
    library: Any, multiplier: float, q: float, steps: int, pessimistic: bool
) -> tuple[Curve, Curve]:
    """What dp_accounting says of a unit that is removed, and of one that is added."""
    composed = library_losses(library, multiplier, q, steps, pessimistic)
    return library_curve(composed._pmf_remove), library_curve(composed._pmf_add)


def library_curve(masses: Any) -> Curve:
    """delta of rising epsilons, by the sums over larger losses that dp_accounting adds up one by one."""
    dense = masses.to_dense_pmf()
    losses = dense._discretization * (dense._lower_loss + np.arange(dense.size))
    upper, lower = (
        np.append(np.cumsum(sums[::-1])[::-1], 0.0) for sums in (dense._probs, dense._probs * np.exp(-losses))
    )

    def curve(epsilons: FloatArray) -> FloatArray:
        above = np.searchsorted(losses, epsilons, side="right")
        found = dense._infinity_mass + upper[above] - np.exp(epsilons) * lower[above]
        few = np.linspace(0, len(epsilons) - 1, 7).astype(np.int64)
        np.testing.assert_allclose(
            found[few], [masses.get_delta_for_epsilon(float(one)) for one in epsilons[few]], 1e-7, 1e-13
        )
        return np.asarray(found)

    return curve


@pytest.mark.parametrize(("multiplier", "q", "steps", "delta"), SETTINGS)
def test_agrees_with_dp_accounting(multiplier: float, q: float, steps: int, delta: float) -> None:
    """Between its optimistic and its pessimistic estimate; these deltas bear its plain transform."""
    library: Any = pytest.importorskip(
        "dp_accounting.pld.privacy_loss_distribution", reason="dp_accounting is not installed"
    )
    found = subsampled_gaussian_epsilon(multiplier, q, steps, delta, Relation.ADD_REMOVE)
    upper, lower = (
        library_losses(library, multiplier, q, steps, upper).get_epsilon_for_delta(delta)
        for upper in (True, False)
    )
    assert lower <= found
    assert found == pytest.approx(upper, rel=GRID_ERROR)


@pytest.mark.parametrize("q", [1e-4, 0.01, 0.5])
@pytest.mark.parametrize(("multiplier", "steps"), [(1.0, 100), (20.0, 10**4)])
def test_renyi_agrees_with_dp_accounting(q: float, multiplier: float, steps: int) -> None:
    library: Any = pytest.importorskip("dp_accounting", reason="dp_accounting is not installed")
    accountant = library.rdp.RdpAccountant(bounds._RDP_ORDERS)
    accountant.compose(library.PoissonSampledDpEvent(q, library.GaussianDpEvent(multiplier)), steps)
    found = bounds.rdp_epsilon(multiplier, q, steps, 1e-6, Relation.ADD_REMOVE)
    assert found == pytest.approx(accountant.get_epsilon(1e-6), rel=1e-5)
    assert found >= subsampled_gaussian_epsilon(multiplier, q, steps, 1e-6, Relation.ADD_REMOVE)


@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize(("epsilon", "delta"), [(0.01, 1e-12), (0.1, 1e-6), (1.0, 1e-5), (10.0, 1e-9)])
def test_full_batches_are_the_exact_composition(relation: Relation, epsilon: float, delta: float) -> None:
    steps = 300
    found = subsampled_gaussian_multiplier(epsilon, delta, 1.0, steps, relation)
    change = relation.gradient_change(1.0)
    assert found.noise_multiplier == pytest.approx(
        math.sqrt(steps) * change / gaussian_mu(epsilon, delta), rel=1e-8
    )
    assert (found.accountant, found.discretization) == ("exact", 0.0)
    assert epsilon * (1.0 - 1e-6) <= found.epsilon <= epsilon


# n = 498,010, b = 50, 10 passes, epsilon = 0.1, delta = 1 / n^2.
KDD = (0.1, 1.0 / 498010**2, 50 / 498010, 10 * 9961)


@pytest.mark.parametrize(
    ("relation", "published", "advanced", "pld"),
    [(Relation.ADD_REMOVE, "48.0", "36.5", "2.02"), (Relation.REPLACE_ONE, "96.1", "73.0", "3.83")],
)
def test_three_accounts_of_bst14(relation: Relation, published: str, advanced: str, pld: str) -> None:
    assert f"{published_bst14_multiplier(*KDD, relation):.1f}" == published
    assert f"{advanced_multiplier(*KDD, relation):.1f}" == advanced
    assert f"{subsampled_gaussian_multiplier(*KDD, relation).noise_multiplier:.2f}" == pld


def test_advanced_multiplier_solves_its_equation() -> None:
    epsilon, delta, q, steps = 0.7, 1e-6, 0.01, 500
    stddev = advanced_multiplier(epsilon, delta, q, steps, Relation.ADD_REMOVE)
    log_delta = math.log((1.0 + q * steps) / delta)
    eps_1 = 2.0 * q * math.sqrt(2.0 * (log_delta + math.log(1.25))) / stddev
    total = steps * eps_1 * math.expm1(eps_1) + math.sqrt(2.0 * steps * log_delta) * eps_1
    assert total == pytest.approx(epsilon, rel=1e-7)
    # eps_2 is at most 1, whatever epsilon allows
    capped = advanced_multiplier(100.0, delta, 1e-4, 1, Relation.ADD_REMOVE)
    assert capped == pytest.approx(math.sqrt(2.0 * math.log(1.25 * (1.0 + 1e-4) / delta)), rel=1e-7)


def random_settings(count: int) -> list[tuple[float, float, float, int, Relation]]:
    """(epsilon, delta, q, steps, relation) of tables of 1,000 to 10 million rows and all batch sizes."""
    rng = np.random.default_rng(20)
    found = []
    for i in range(count):
        n = int(10 ** rng.uniform(3, 7))
        b = max(1, int(n ** rng.uniform(0, 1)))
        passes = int(10 ** rng.uniform(0, 2))
        epsilon, delta = 10 ** rng.uniform(-2, 1), float(n) ** -rng.uniform(1, 2)
        found.append((epsilon, delta, b / n, passes * math.ceil(n / b), list(Relation)[i % 2]))
    return found


@pytest.mark.slow
def test_random_settings_end_on_the_private_side_and_in_time() -> None:
    for epsilon, delta, q, steps, relation in random_settings(60):
        begin = time.process_time()
        found = subsampled_gaussian_multiplier(epsilon, delta, q, steps, relation)
        seconds = time.process_time() - begin
        setting = (epsilon, delta, q, steps, relation, found)
        recomputed = subsampled_gaussian_epsilon(found.noise_multiplier, q, steps, delta, relation)
        assert recomputed == found.epsilon, setting
        assert 0.98 * epsilon <= recomputed <= epsilon, setting
        assert found.accountant != "rdp", setting
        assert found.warning is None
        # 2.7 seconds where this was written
        assert seconds < 5.0, setting


@pytest.mark.slow
@pytest.mark.parametrize("relation", Relation)
def test_monotone_in_every_argument(relation: Relation) -> None:
    """But for the share that the grid may add."""
    rng = np.random.default_rng(21)
    for _ in range(3):
        n = int(10 ** rng.uniform(3, 5))
        b = max(10, int(n ** rng.uniform(0.2, 0.9)))
        epsilon, delta, q, steps = 10 ** rng.uniform(-1.5, 0.7), 1.0 / n**1.5, b / n, 3 * math.ceil(n / b)
        base = subsampled_gaussian_multiplier(epsilon, delta, q, steps, relation).noise_multiplier
        for factor in (1.01, 2.0):
            less = [(epsilon * factor, delta, q, steps), (epsilon, delta * factor, q, steps)]
            more = [
                (epsilon, delta, min(1.0, q * factor), steps),
                (epsilon, delta, q, math.ceil(steps * factor)),
            ]
            for setting, sign in itertools.chain(((s, 1.0) for s in less), ((s, -1.0) for s in more)):
                other = subsampled_gaussian_multiplier(*setting, relation).noise_multiplier
                assert sign * math.log(base / other) > -GRID_ERROR, (relation, setting)


@pytest.mark.parametrize(("epsilon", "gain"), [(0.1, 0.998), (1.0, 0.98), (4.0, 0.92)])
def test_replacing_costs_more_than_removing_and_less_than_half_the_epsilon_each(
    epsilon: float, gain: float
) -> None:
    delta, q, steps = 1e-10, 0.02, 500
    removing = subsampled_gaussian_multiplier(epsilon, delta, q, steps, Relation.ADD_REMOVE)
    replacing = subsampled_gaussian_multiplier(epsilon, delta, q, steps, Relation.REPLACE_ONE)
    half = (0.5 * epsilon, delta / (1.0 + math.exp(0.5 * epsilon)))
    halved = subsampled_gaussian_multiplier(*half, q, steps, Relation.ADD_REMOVE)
    assert removing.noise_multiplier < replacing.noise_multiplier < gain * halved.noise_multiplier


@pytest.mark.parametrize(("multiplier", "q", "steps", "delta"), [s for s in SETTINGS if s[1] < 0.9])
def test_replacing_agrees_with_dp_accounting(multiplier: float, q: float, steps: int, delta: float) -> None:
    """Above the best split of its optimistic curves, and near that of its pessimistic ones."""
    library: Any = pytest.importorskip(
        "dp_accounting.pld.privacy_loss_distribution", reason="dp_accounting is not installed"
    )
    found = subsampled_gaussian_epsilon(multiplier, q, steps, delta, Relation.REPLACE_ONE)

    for pessimistic, factor, sign in (
        (False, 1.0, -1),
        (True, 1.0 + GRID_ERROR, -1),
        (True, 1.0 - GRID_ERROR, 1),
    ):
        removed, added = library_curves(library, multiplier, q, steps, pessimistic)
        splits = np.linspace(0.0, factor * found, 2001)
        split_delta = float(np.min(removed(splits) + np.exp(splits) * added(splits)[::-1]))
        assert sign * (split_delta - delta) >= -1e-15 * math.exp(found)  # what it cuts off


def mixture_delta(epsilon: FloatArray, mu: float, spare: float) -> FloatArray:
    """delta(epsilon) of what tells all with probability spare and else is a Gaussian release."""
    own, other = log_ndtr(0.5 * mu - epsilon / mu), log_ndtr(-0.5 * mu - epsilon / mu)
    return np.asarray(spare + (1.0 - spare) * (np.exp(own) - np.exp(epsilon + other)))


@pytest.mark.parametrize(
    ("multiplier", "q", "steps"),
    [
        (24.0, 0.02, 500),
        (2.7, 0.02, 500),
        (1.0, 0.001, 10_000),
        (3.0, 0.9, 100),
        (0.6, 0.001, 50),
        (0.8, 0.01, 1),
        (1.5, 0.5, 2),
    ],
)
@pytest.mark.parametrize("spare", [1e-5, 1e-9])
def test_a_gaussian_dominates_poisson_batches(multiplier: float, q: float, steps: int, spare: float) -> None:
    """Both directions by dp_accounting, at every epsilon, on either side of 0."""
    library: Any = pytest.importorskip(
        "dp_accounting.pld.privacy_loss_distribution", reason="dp_accounting is not installed"
    )
    mu = subsampled_gaussian_mu(multiplier, q, steps, spare, Relation.ADD_REMOVE)
    epsilons = mu * np.linspace(-12.0, 40.0, 5001)
    largest = np.zeros(len(epsilons))
    for curve in library_curves(library, multiplier, q, steps, True):
        largest = np.maximum(largest, (curve(epsilons) - 1e-11) / mixture_delta(epsilons, mu, spare))
    assert np.max(largest) <= 1.0 + GRID_ERROR
    assert np.max(largest[epsilons > 0.0]) >= 0.97  # nor is mu larger than it must be
    twice = subsampled_gaussian_mu(multiplier, q, steps, spare, Relation.REPLACE_ONE)
    assert mu < twice < 2.3 * mu


@pytest.mark.parametrize(("multiplier", "q"), [(0.7, 0.3), (1.0, 0.9), (0.8, 0.01), (2.0, 0.1)])
@pytest.mark.parametrize("relation", Relation)
def test_a_gaussian_dominates_one_step(multiplier: float, q: float, relation: Relation) -> None:
    spare = 1e-8
    mu = subsampled_gaussian_mu(multiplier, q, 1, spare, relation)
    removed, added = (
        partial(one_step_delta, multiplier=multiplier, q=q, removed=gone) for gone in (True, False)
    )
    ratios = []
    for epsilon in mu * np.linspace(0.0, 12.0, 101):
        if relation is Relation.REPLACE_ONE:
            found = replaced_delta(float(epsilon), removed, added)
        else:
            found = max(float(removed(np.asarray(epsilon))), float(added(np.asarray(epsilon))))
        ratios.append(found / float(mixture_delta(np.asarray(epsilon), mu, spare)))
    assert 0.97 < max(ratios) <= 1.0 + 1e-6


@pytest.mark.parametrize("relation", Relation)
def test_a_gaussian_of_full_batches_is_exact(relation: Relation) -> None:
    change = relation.gradient_change(1.0)
    assert subsampled_gaussian_mu(20.0, 1.0, 100, 1e-9, relation) == 10.0 * change / 20.0
    # Sampling that helps next to nothing cannot hurt.
    assert subsampled_gaussian_mu(20.0, 1.0 - 1e-9, 100, 1e-9, relation) <= 10.0 * change / 20.0 * (
        1.0 + 1e-8
    )
    # Nor can a grid that does not fit.
    assert subsampled_gaussian_mu(20.0, 1e-3, 10**12, 1e-9, relation) <= 1e6 * change / 20.0 * (1.0 + 1e-8)


def test_so_many_steps_that_renyi_takes_over() -> None:
    found = subsampled_gaussian_multiplier(1.0, 1e-6, 1e-3, 10**10, Relation.ADD_REMOVE)
    assert found.accountant == "rdp"
    assert 0.98 <= found.epsilon <= 1.0
    assert found.warning is not None
    assert "batch_size" in found.warning
    # by the central limit theorem
    expected = 1e-3 * math.sqrt(10**10 * math.expm1(found.noise_multiplier**-2))
    assert 0.8 < expected / gaussian_mu(1.0, 1e-6) < 1.0


def test_a_grid_that_cannot_fit_leaves_the_exact_composition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pld, "_MOST_POINTS", 10)
    found = subsampled_gaussian_epsilon(1.0, 0.999, 10, 1e-6, Relation.ADD_REMOVE)
    assert found <= bounds.exact_epsilon(1.0, 10, 1e-6, Relation.ADD_REMOVE)


def test_almost_no_noise_where_delta_alone_covers_the_batch() -> None:
    found = subsampled_gaussian_multiplier(1.0, 0.01, 0.001, 1, Relation.ADD_REMOVE)
    assert found == Accounted(search._LEAST_MULTIPLIER, 0.0, "pld", found.discretization)


@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize("n", [2, 5, 10, 20])
def test_a_cost_of_zero_on_the_way_does_not_end_the_search(n: int, relation: Relation) -> None:
    """Where a little more noise makes delta alone enough."""
    found = subsampled_gaussian_multiplier(1e-3, 1.0 / n**2, 1.0 / n, 10 * n, relation)
    assert found.epsilon <= 1e-3
    assert found.noise_multiplier > 0.0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("epsilon", value) for value in (0.0, -1.0, math.inf, math.nan)),
        *(("delta", value) for value in (0.0, 1.0, math.nan)),
        *(("sampling_probability", value) for value in (0.0, 1.1, math.nan)),
        ("steps", 0),
    ],
)
def test_domains(name: str, value: float) -> None:
    arguments: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "sampling_probability": 0.1, "steps": 10}
    arguments[name] = value
    for function in (subsampled_gaussian_multiplier, advanced_multiplier, published_bst14_multiplier):
        with pytest.raises(ValueError, match=f"{name} must be"):
            function(**arguments, relation=Relation.ADD_REMOVE)
    if name == "epsilon":
        arguments["noise_multiplier"] = value
        name = "noise_multiplier"
    else:
        arguments["noise_multiplier"] = 1.0
    del arguments["epsilon"]
    with pytest.raises(ValueError, match=f"{name} must be"):
        subsampled_gaussian_epsilon(**arguments, relation=Relation.ADD_REMOVE)
