# SPDX-License-Identifier: PostgreSQL
"""Noise of a released sum: distribution, range, and the guarantee by the probabilities of whole numbers."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from pg_dpml.kernels import Noise
from pg_dpml.privacy import gaussian
from pg_dpml.privacy.noise import sums
from pg_dpml.privacy.noise.output import ReleaseNoise

KEY = bytes(range(32))
DRAWS = 20_000
# A false alarm is out of the question: the key is fixed.
LEAST_P = 1e-6

CASES = [
    pytest.param(1, 1.0, 0.0, id="count"),
    pytest.param(1, 0.1, 1e-9, id="count with delta"),
    pytest.param(3, 0.5, 0.0, id="unit of three rows"),
    pytest.param(2**20, 1.0, 0.0, id="squared error"),
    pytest.param(1, 1.0, 0.3, id="gaussian"),
]


def cdf(noise: ReleaseNoise, at: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    """Of the noise before it is rounded."""
    law = stats.norm(scale=noise.scale) if noise.kind == "gaussian" else stats.laplace(scale=noise.scale)
    return np.asarray(law.cdf(at))


@pytest.mark.parametrize(("sensitivity", "epsilon", "delta"), CASES)
def test_the_smaller_noise_is_taken(sensitivity: int, epsilon: float, delta: float) -> None:
    noise = sums.calibrate_sum(sensitivity, epsilon, delta)
    laplace = math.sqrt(2.0) * sensitivity / epsilon
    best = laplace
    if delta > 0.0:
        best = min(laplace, sensitivity / gaussian.gaussian_mu(epsilon, delta))
    assert noise.score_stddev == pytest.approx(best, rel=1e-9)
    assert (noise.kind == "gaussian") == (best < laplace)
    assert (noise.sensitivity, noise.grid, noise.n_weights) == (sensitivity, 1.0, 1)


@pytest.mark.statistical
@pytest.mark.parametrize(("sensitivity", "epsilon", "delta"), CASES)
def test_distribution(sensitivity: int, epsilon: float, delta: float) -> None:
    """Whole numbers, with the probabilities of the rounded continuous noise."""
    noise = sums.calibrate_sum(sensitivity, epsilon, delta)
    source = Noise(KEY)
    drawn = np.array([sums.release_sum(1000, noise, source) - 1000 for _ in range(DRAWS)])
    # Edges half-way between whole numbers, in about equally likely cells.
    law = stats.norm(scale=noise.scale) if noise.kind == "gaussian" else stats.laplace(scale=noise.scale)
    edges = np.unique(np.round(law.ppf(np.linspace(0.0, 1.0, 21)[1:-1])) + 0.5)
    expected = np.diff(np.concatenate([[0.0], cdf(noise, edges), [1.0]])) * DRAWS
    found = np.bincount(np.searchsorted(edges, drawn), minlength=len(edges) + 1)
    assert stats.chisquare(found, expected).pvalue > LEAST_P


@pytest.mark.parametrize(("sensitivity", "epsilon", "delta"), CASES[:3] + CASES[4:])
def test_guarantee(sensitivity: int, epsilon: float, delta: float) -> None:
    """Hockey-stick divergence of the rounded noise and of the same moved by the sensitivity."""
    noise = sums.calibrate_sum(sensitivity, epsilon, delta)
    reach = math.ceil(60.0 * noise.scale) + sensitivity
    at = np.arange(-reach, reach + 1) + 0.5
    probabilities = np.diff(cdf(noise, at))
    moved, still = probabilities[sensitivity:], probabilities[:-sensitivity]
    for p, q in ((moved, still), (still, moved)):
        excess = float(np.sum(np.maximum(p - math.exp(epsilon) * q, 0.0)))
        assert excess <= delta + 1e-12
    if noise.kind == "k-norm":  # not more noise than needed: the ratio is nearly attained
        assert float(np.max(moved[: reach // 2] / still[: reach // 2])) > math.exp(epsilon) * (1.0 - 1e-6)


@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.999])
@pytest.mark.parametrize(("sensitivity", "epsilon", "delta"), CASES)
def test_range(sensitivity: int, epsilon: float, delta: float, confidence: float) -> None:
    noise = sums.calibrate_sum(sensitivity, epsilon, delta)
    h = sums.noise_range(noise, confidence)

    def inside(width: int) -> float:
        low, high = cdf(noise, np.array([-width - 0.5, width + 0.5]))
        return float(high - low)

    assert inside(h) >= confidence - 1e-12
    assert h == 0 or inside(h - 1) < confidence


def test_sums_are_whole_and_not_too_large() -> None:
    noise = sums.calibrate_sum(1, 1e6, 0.0)  # so little that it rounds to nothing
    for total in (0, 7, -3, 2**52 - 1):
        assert sums.release_sum(total, noise, Noise(KEY)) == total
    with pytest.raises(ValueError, match="total must be in"):
        sums.release_sum(2**52, noise, Noise(KEY))
