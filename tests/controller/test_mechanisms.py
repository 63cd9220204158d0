# SPDX-License-Identifier: PostgreSQL
"""Calibration by round trip and by two independent methods; the distribution and grid of a release."""

from __future__ import annotations

import itertools
import math
import re

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats
from scipy.special import erfcx

from pg_dpml.errors import GuaranteeError, ResolutionError
from pg_dpml.kernels import Noise
from pg_dpml.privacy import gaussian, knorm, resolution
from pg_dpml.privacy.noise import output, sums
from pg_dpml.privacy.noise.output import ReleaseNoise
from pg_dpml.spec.relation import Relation

EPSILONS = (1e-3, 1e-2, 0.05, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
DELTAS = (1e-15, 1e-12, 1e-9, 1e-6, 1e-4, 1e-2, 0.1, 0.5)
GRID = list(itertools.product(EPSILONS, DELTAS))

# A false alarm is out of the question: the keys are fixed.
LEAST_P = 1e-6


def delta_by_quadrature(epsilon: float, mu: float) -> float:
    """dG as the integral of its derivative in mu, phi(m / 2 - epsilon / m): a sum of positive numbers.

    Composite Gauss-Legendre in log m; below m = epsilon / 60 the integrand is less than 1e-700.
    """
    low, high = math.log(min(epsilon / 60.0, mu / 2.0)), math.log(mu)
    nodes, weights = np.polynomial.legendre.leggauss(20)
    edges = np.linspace(low, high, 201)
    half = (edges[1:] - edges[:-1])[:, None] / 2.0
    m = np.exp((edges[1:] + edges[:-1])[:, None] / 2.0 + half * nodes)
    density = np.exp(-0.5 * (m / 2.0 - epsilon / m) ** 2) / math.sqrt(2.0 * math.pi)
    return float(np.sum(weights * half * density * m))


def delta_by_mills_ratio(epsilon: float, mu: float) -> float:
    """dG with exp(-a^2 / 2) taken out of both terms, a = mu / 2 - epsilon / mu."""
    a, b = mu / 2.0 - epsilon / mu, -mu / 2.0 - epsilon / mu
    ratio = erfcx(-a / math.sqrt(2.0)) - erfcx(-b / math.sqrt(2.0))
    return float(0.5 * math.exp(-0.5 * a * a) * ratio)


@pytest.mark.parametrize("mu", [1e-4, 1e-2, 0.3, 1.0, 3.0, 10.0])
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_gaussian_delta_agrees_with_independent_methods(epsilon: float, mu: float) -> None:
    expected = delta_by_quadrature(epsilon, mu)
    found = gaussian.gaussian_delta(epsilon, mu)
    # Cancellation: the terms are about (1 + epsilon / mu) / mu times their difference.
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-290)
    assert delta_by_mills_ratio(epsilon, mu) == pytest.approx(expected, rel=1e-9, abs=1e-290)


def test_gaussian_delta_rises_with_mu_and_falls_with_epsilon() -> None:
    mus = np.geomspace(0.05, 20.0, 60)
    for epsilon in (0.01, 1.0, 10.0):
        deltas = [gaussian.gaussian_delta(epsilon, mu) for mu in mus]
        assert all(x <= y for x, y in itertools.pairwise(deltas))
    for mu in (0.1, 1.0, 5.0):
        deltas = [gaussian.gaussian_delta(epsilon, mu) for epsilon in np.geomspace(1e-3, 50.0, 60)]
        assert all(x >= y for x, y in itertools.pairwise(deltas))
    assert gaussian.gaussian_delta(0.0, 1.0) == pytest.approx(math.erf(1.0 / math.sqrt(8.0)), rel=1e-14)


@pytest.mark.parametrize(("epsilon", "delta"), GRID)
def test_gaussian_mu_is_the_inverse_rounded_towards_more_noise(epsilon: float, delta: float) -> None:
    mu = gaussian.gaussian_mu(epsilon, delta)
    assert delta_by_quadrature(epsilon, mu) <= delta
    # At these deltas d log dG / d log mu is below 10^5, and mu is within 1e-8 of the exact inverse.
    assert delta_by_quadrature(epsilon, mu * (1.0 + 1e-8)) > delta


@pytest.mark.parametrize("epsilon", [1e-4, 1e-5, 1e-6, 1e-8])
@pytest.mark.parametrize("delta", [1e-15, 1e-9, 1e-3])
def test_gaussian_mu_is_private_for_tiny_epsilon_too(epsilon: float, delta: float) -> None:
    assert delta_by_quadrature(epsilon, gaussian.gaussian_mu(epsilon, delta)) <= delta


@pytest.mark.parametrize(("epsilon", "delta"), [(30.0, 1e-9), (100.0, 1e-9), (700.0, 1e-6), (1e4, 1e-9)])
def test_gaussian_mu_for_large_epsilon(epsilon: float, delta: float) -> None:
    mu = gaussian.gaussian_mu(epsilon, delta)
    assert delta_by_quadrature(epsilon, mu) <= delta * (1.0 + 1e-9)
    assert delta_by_quadrature(epsilon, mu * (1.0 + 1e-6)) > delta


@pytest.mark.parametrize("epsilon", [0.01, 0.1, 0.5, 0.99])
@pytest.mark.parametrize("delta", [1e-9, 1e-6, 1e-3])
def test_gaussian_noise_is_below_the_textbook(epsilon: float, delta: float) -> None:
    textbook = math.sqrt(2.0 * math.log(1.25 / delta)) / epsilon
    assert textbook / gaussian.gaussian_stddev(1.0, gaussian.gaussian_share(epsilon, delta, 1)) > 1.10


@pytest.mark.parametrize(("epsilon", "delta"), GRID)
def test_gaussian_stddev_agrees_with_dp_accounting(epsilon: float, delta: float) -> None:
    library = pytest.importorskip("dp_accounting.gaussian_mechanism", reason="dp_accounting is not installed")
    expected = library.get_sigma_gaussian(epsilon, delta)
    assert gaussian.gaussian_stddev(1.0, gaussian.gaussian_share(epsilon, delta, 1)) == pytest.approx(
        expected, rel=1e-6
    )


@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [(0.0, 0.1), (-1.0, 0.1), (math.inf, 0.1), (math.nan, 0.1), (1.0, 0.0), (1.0, 1.0), (1.0, math.nan)],
)
def test_gaussian_mu_refuses_other_domains(epsilon: float, delta: float) -> None:
    with pytest.raises(ValueError, match=r"(epsilon|delta) must be in"):
        gaussian.gaussian_mu(epsilon, delta)


@pytest.mark.parametrize("sensitivity", [1e-6, 0.03, 1.0, 7.0])
@pytest.mark.parametrize("epsilon", [0.01, 1.0, 8.0])
def test_noise_scales(sensitivity: float, epsilon: float) -> None:
    mu = gaussian.gaussian_mu(epsilon, 1e-6)
    stddev, priced = output.scale_and_mu("gaussian", sensitivity, epsilon, 1e-6, 1)
    left = mu - resolution.sampler_mu(1)
    assert priced == pytest.approx(left, rel=1e-12)
    assert sensitivity / left <= stddev <= sensitivity / left * (1.0 + 1e-11)
    scale = knorm.knorm_scale(sensitivity, epsilon, 1)
    left = epsilon - resolution.sampler_knorm_epsilon(1)
    assert sensitivity / left <= scale <= sensitivity / left * (1.0 + 1e-11)


@pytest.mark.parametrize("n_numbers", [1, 7850, 10**9])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 100.0])
def test_the_sampler_has_its_share(epsilon: float, n_numbers: int) -> None:
    """Out of mu, of epsilon and of delta, before noise is calibrated."""
    delta = 2.5 * resolution.sampler_delta(n_numbers)
    left = gaussian.gaussian_share(epsilon, delta, n_numbers)
    assert gaussian.delta_left(delta, n_numbers) == pytest.approx(0.6 * delta)
    whole = gaussian.gaussian_mu(epsilon, 0.6 * delta)
    taken = 2.0 * math.sqrt(2.0 * math.pi) * n_numbers * 2.0**-48
    assert left == pytest.approx(whole - taken, rel=1e-9)
    assert gaussian.gaussian_delta(epsilon, left + taken) <= delta - resolution.sampler_delta(n_numbers)
    assert gaussian.gaussian_stddev(3.0, gaussian.gaussian_share(epsilon, delta, n_numbers)) == pytest.approx(
        3.0 / left
    )
    scale = knorm.knorm_scale(3.0, epsilon, n_numbers, 5) if n_numbers < 10**9 else math.inf
    if scale < math.inf:
        assert scale == pytest.approx(
            15.0 / (epsilon - 10.0 * (5.0 * n_numbers + 512.0) * 2.0**-48), rel=1e-11
        )
    with pytest.raises(GuaranteeError, match=rf"what the precision of the noise allows for {n_numbers:,}"):
        gaussian.delta_left(1.9 * resolution.sampler_delta(n_numbers), n_numbers)


def test_a_share_above_a_hundredth_is_refused() -> None:
    taken = resolution.sampler_mu(10**9)
    assert resolution.require_share(taken, 101.0 * taken, "mu") == pytest.approx(100.0 * taken)
    with pytest.raises(ResolutionError, match=r"mu = .* more than a hundredth of the run's"):
        resolution.require_share(taken, 99.0 * taken, "mu")
    with pytest.raises(ResolutionError, match="more than a hundredth"):
        gaussian.gaussian_stddev(1.0, gaussian.gaussian_share(1e-4, 1e-9, 10**9))
    with pytest.raises(ResolutionError, match=r"epsilon = .* more than a hundredth"):
        knorm.knorm_scale(1.0, 1e-10, 1)


@pytest.mark.parametrize("n_weights", [1, 30, 7850])
@pytest.mark.parametrize("delta", [0.0, 1e-9])
def test_noise_too_wide_for_its_grid_is_refused(delta: float, n_weights: int) -> None:
    """And the refusal names the least epsilon, which is one."""

    def attempt(epsilon: float) -> ReleaseNoise:
        return output.calibrate(0.01, 0.0, n_weights, epsilon, delta)

    with pytest.raises(ResolutionError, match="too wide for the released numbers") as refused:
        resolution.with_least_epsilon(attempt, 1e-7 if n_weights > 1000 else 1e-8)
    least = float(re.findall(r"take epsilon = (\S+) or more", str(refused.value))[0])
    noise = attempt(least)
    assert 2.0**44 <= noise.score_stddev / noise.grid <= 2.0**45
    with pytest.raises(ResolutionError):
        attempt(least / 1.2)
    assert resolution.with_least_epsilon(attempt, least) == noise


def test_no_epsilon_is_named_where_none_would_do() -> None:
    def attempt(epsilon: float) -> ReleaseNoise:
        raise ResolutionError("too wide")

    with pytest.raises(ResolutionError, match=r"^too wide$"):
        resolution.with_least_epsilon(attempt, 1e-9)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.inf, math.nan])
def test_knorm_scale_refuses_other_domains(epsilon: float) -> None:
    with pytest.raises(ValueError, match="epsilon"):
        knorm.knorm_scale(1.0, epsilon, 1)


@pytest.mark.parametrize("lipschitz", [0.5, 1.0, math.sqrt(2.0)])
def test_relation(lipschitz: float) -> None:
    assert Relation.REPLACE_ONE.gradient_change(lipschitz) == 2.0 * lipschitz
    assert Relation.ADD_REMOVE.gradient_change(lipschitz) == lipschitz


@pytest.mark.parametrize("n_weights", [1, 2, 105, 7850])
@pytest.mark.parametrize("sensitivity", [1.0, 3.3e-5, 1e-12, 77.0])
def test_release_grid(sensitivity: float, n_weights: int) -> None:
    grid = resolution.release_grid(sensitivity, n_weights)
    assert math.frexp(grid)[0] == 0.5  # a power of two
    assert grid * math.sqrt(n_weights) <= 2.0**-20 * sensitivity * (1.0 + 1e-12)
    assert 2.0 * grid * math.sqrt(n_weights) > 2.0**-20 * sensitivity


RUN = {
    "steps": 1000,
    "step_sum": 30.0,
    "step_max": 0.25,
    "lipschitz": 0.5,
    "smoothness": 0.25,
    "lambda_": 0.0,
    "radius": math.inf,
    "batch_size": 50,
    "n_weights": 105,
}


@pytest.mark.parametrize(
    ("changes", "bound"),
    [
        ({}, 15.0),  # L sum eta
        ({"radius": 3.0}, 3.0),
        ({"lambda_": 0.1}, 5.0),  # L / lambda
        ({"lambda_": 0.1, "radius": 4.0}, 4.0),
        ({"lambda_": 1e-3}, 15.0),
    ],
)
def test_rounding_error(changes: dict[str, float], bound: float) -> None:
    run = RUN | changes
    eta, lambda_ = 0.25, run["lambda_"]
    terms = (6.0 + eta * lambda_) * bound, eta * (50 + 8) * 0.5, eta * 0.25 * (105 + 2) * bound
    found = output.rounding_error(**run)  # type: ignore[arg-type]
    assert found == pytest.approx(1000 * 2.0**-52 * sum(terms), rel=1e-12)


def test_calibration_has_head_room_for_grid_and_rounding() -> None:
    noise = output.calibrate(0.01, 0.00005, 105, 1.0, 1e-6)
    grid = resolution.release_grid(0.01, 105)
    assert (noise.kind, noise.sensitivity, noise.grid, noise.n_weights) == ("gaussian", 0.01, grid, 105)
    assert noise.calibrated_sensitivity == pytest.approx(0.01 + grid * math.sqrt(105) + 0.00005, rel=1e-15)
    assert noise.scale >= noise.calibrated_sensitivity / gaussian.gaussian_mu(1.0, 1e-6)
    pure = output.calibrate(0.01, 0.00005, 105, 0.5, 0.0)
    assert pure.kind == "k-norm"
    assert pure.scale == pytest.approx(noise.calibrated_sensitivity / 0.5, rel=1e-11)


@pytest.mark.parametrize("n_weights", [1, 2, 5, 20, 100, 1000])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-9, 1e-6, 0.01])
def test_the_smaller_noise_is_taken(epsilon: float, delta: float, n_weights: int) -> None:
    noise = output.calibrate(1.0, 0.0, n_weights, epsilon, delta)
    stddevs = {
        "gaussian": gaussian.gaussian_stddev(1.0, gaussian.gaussian_share(epsilon, delta, 1)),
        "k-norm": knorm.knorm_scale(1.0, epsilon, 1) * math.sqrt(n_weights + 1),
    }
    assert noise.kind in stddevs
    assert noise.score_stddev == pytest.approx(min(stddevs.values()), rel=2e-6)
    assert knorm.best_mu(epsilon, delta, n_weights) == pytest.approx(1.0 / noise.score_stddev, rel=2e-6)


@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_rounding_is_refused_above_a_hundredth(delta: float) -> None:
    output.calibrate(1.0, 0.00999, 10, 1.0, delta)
    with pytest.raises(
        GuaranteeError, match=r"rounding.*fewer passes, a larger batch_size or a smaller radius"
    ):
        output.calibrate(1.0, 0.01001, 10, 1.0, delta)


@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_nothing_to_hide_needs_no_noise(delta: float) -> None:
    noise = output.calibrate(None, 0.0, 3, 1.0, delta)
    assert (noise.scale, noise.grid, noise.score_stddev, noise.expected_norm) == (0.0, 0.0, 0.0, 0.0)
    np.testing.assert_array_equal(output.release(np.zeros(3), noise, Noise()), np.zeros(3))


@pytest.mark.parametrize("sensitivity", [0.0, 5e-324, 1e-300, 0.99e-290, math.nan])
def test_a_sensitivity_that_float64_cannot_carry_is_refused(sensitivity: float) -> None:
    """Above all one that vanished, which would look as if there were nothing to hide."""
    for delta in (0.0, 1e-6):
        with pytest.raises(GuaranteeError, match="too small for float64: take a larger clip"):
            output.calibrate(sensitivity, 0.0, 3, 1.0, delta)
    with pytest.raises(GuaranteeError, match="too small for float64: take a larger clip"):
        output.calibrate_gaussian(sensitivity, 0.0, 3, 0.5)
    assert output.calibrate_gaussian(1e-290, 0.0, 3, 0.5).scale > 0.0


def released(noise: ReleaseNoise, weights: npt.NDArray[np.float64], runs: int) -> npt.NDArray[np.float64]:
    """Releases with fixed keys, shape (runs, n_weights)."""
    keys = (run.to_bytes(32, "little") for run in range(runs))
    return np.array([output.release(weights, noise, Noise(key)) for key in keys])


@pytest.mark.parametrize("delta", [0.0, 0.05])
@pytest.mark.parametrize("size", [1.0, 1e5])
def test_release_lies_on_the_grid(delta: float, size: float) -> None:
    noise = output.calibrate(0.01, 0.0, 7, 1.0, delta)
    weights = size * np.array([0.1, -0.7, 1.0 / 3.0, 0.0, math.pi, -1e-9, 0.011])
    places = released(noise, weights, 50) / noise.grid
    np.testing.assert_array_equal(places, np.rint(places))
    # The weights are rounded before the noise is added: their low bits leave no trace.
    rounded = np.rint(weights / noise.grid) * noise.grid
    np.testing.assert_array_equal(released(noise, rounded, 50), places * noise.grid)


@pytest.mark.statistical
def test_gaussian_release_distribution() -> None:
    noise = output.calibrate(0.01, 0.0, 5, 1.0, 0.05)
    assert noise.kind == "gaussian"
    weights = np.array([0.3, -0.2, 0.0, 1.1, -5.0])
    drawn = released(noise, weights, 8000) - weights
    for coordinate in drawn.T:
        assert stats.kstest(coordinate / noise.scale, "norm").pvalue >= LEAST_P
    for i, j in itertools.combinations(range(5), 2):
        assert stats.pearsonr(drawn[:, i], drawn[:, j]).pvalue >= LEAST_P
    assert noise.score_stddev == noise.scale
    assert np.sqrt(np.mean(np.sum(drawn**2, axis=1))) == pytest.approx(noise.expected_norm, rel=0.02)


@pytest.mark.statistical
@pytest.mark.parametrize("n_weights", [1, 2, 5])
def test_knorm_release_distribution(n_weights: int) -> None:
    noise = output.calibrate(0.01, 0.0, n_weights, 2.0, 0.0)
    assert noise.kind == "k-norm"
    weights = np.linspace(-1.0, 1.0, n_weights)
    drawn = released(noise, weights, 8000) - weights
    radius = np.linalg.norm(drawn, axis=1)
    assert stats.kstest(radius / noise.scale, stats.gamma(n_weights).cdf).pvalue >= LEAST_P
    direction = drawn / radius[:, None]
    assert stats.binomtest(int(np.sum(direction[:, 0] > 0.0)), 8000).pvalue >= LEAST_P
    if n_weights > 1:  # a squared coordinate of a point on the sphere is Beta(1/2, (d - 1)/2)
        squares = stats.beta(0.5, (n_weights - 1) / 2.0).cdf
        for coordinate in direction.T:
            assert stats.kstest(coordinate**2, squares).pvalue >= LEAST_P
        assert stats.pearsonr(radius, direction[:, 0] ** 2).pvalue >= LEAST_P
    assert np.std(drawn[:, 0]) == pytest.approx(noise.score_stddev, rel=0.05)


@pytest.mark.parametrize("shape", [(4,), (3, 1), ()])
def test_release_refuses_other_shapes(shape: tuple[int, ...]) -> None:
    noise = output.calibrate(0.01, 0.0, 3, 1.0, 1e-6)
    with pytest.raises(ValueError, match=r"shape \(3,\)"):
        output.release(np.zeros(shape), noise, Noise())


def test_sums_that_float64_does_not_count_are_refused() -> None:
    noise = sums.calibrate_sum(1, 1.0, 0.0)
    assert abs(sums.release_sum(sums.MOST_SUM - 1, noise, Noise()) - sums.MOST_SUM) < 100
    for total in (sums.MOST_SUM, -sums.MOST_SUM):
        with pytest.raises(ValueError, match="total must be in"):
            sums.release_sum(total, noise, Noise())
