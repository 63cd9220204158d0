# SPDX-License-Identifier: PostgreSQL
"""Attacks on the low bits of released numbers, which know the sampler to its last digit.

Each knows everything but one row, and computes of what it sees the exact likelihood: of the rounded normal,
and of the words that lead to a grid point.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from mpmath import mp, mpf
from scipy import stats

from helpers.gridpoints import EDGES, PLACES, Counts, ffi, lib, normal_probability
from helpers.neighbours import FloatArray
from pg_dpml.errors import ResolutionError
from pg_dpml.kernels import Noise
from pg_dpml.privacy import resolution
from pg_dpml.privacy.gaussian import gaussian_mu
from pg_dpml.privacy.noise import composed, output
from pg_dpml.privacy.noise.composed import ComposedNoise
from pg_dpml.privacy.noise.output import ReleaseNoise
from pg_dpml.runs.planning import plan_problem
from pg_dpml.spec.privacy import PrivacySpec
from pg_dpml.spec.relation import Relation
from pg_dpml.training.plan import Problem
from pg_dpml.training.spec import TrainSpec

LEAST_P = 1e-6  # the keys are fixed: no false alarms


def key(number: int) -> bytes:
    return number.to_bytes(32, "little")


def second_moments(n_features: int) -> tuple[FloatArray, FloatArray]:
    """Of two tables that differ in a row, by as much as rows can; as they are released."""
    rng = np.random.default_rng(n_features)
    above = np.triu_indices(n_features)
    weight = np.where(above[0] == above[1], 1.0, math.sqrt(2.0))

    def row(vector: FloatArray) -> FloatArray:
        vector = vector * (1.0 - 2.0**-20)
        return np.asarray(np.outer(vector, vector)[above] * weight)

    pair = np.linalg.qr(rng.standard_normal((n_features, 2)))[0].T
    others = 100.0 * row(np.full(n_features, n_features**-0.5))
    return others + row(pair[0]), others + row(pair[1])


def losses(
    noise: ReleaseNoise, pair: tuple[FloatArray, FloatArray], releases: int
) -> tuple[FloatArray, FloatArray]:
    """Privacy losses of releases of the first of two vectors: by the normal, and by the sampler beside it."""
    steps = noise.scale / noise.grid
    counts = Counts(steps)
    places = [np.rint(vector / noise.grid) for vector in pair]
    found = []
    for number in range(releases):
        released = output.release(pair[0], noise, Noise(key(number))) / noise.grid
        own, other = (released - place for place in places)
        by_normal = math.fsum((other - own) * (other + own)) / (2.0 * steps * steps)
        found.append((by_normal, math.fsum(counts.log_errors(own) - counts.log_errors(other))))
    return np.array(found).T[0], np.array(found).T[1]


def check_losses(releases: int) -> None:
    epsilon = 0.01
    plan = plan_problem(Problem(60_000, 785, 10, "multiclass"), PrivacySpec(epsilon), TrainSpec())
    assert plan.guarantee is not None
    assert isinstance(plan.noise, ComposedNoise)
    noise = plan.noise.moments
    assert noise is not None
    pair = second_moments(785)
    apart = float(np.linalg.norm(pair[0] - pair[1]))
    assert apart == pytest.approx(noise.sensitivity, rel=1e-5)
    by_normal, by_sampler = losses(noise, pair, releases)
    loss = by_normal + by_sampler
    mu = gaussian_mu(epsilon, plan.guarantee.delta)
    allowed = stats.norm.sf(epsilon / mu - mu / 2.0) + stats.norm.sf(epsilon / mu + mu / 2.0)
    beyond = int(np.sum(np.abs(loss) > epsilon))
    assert stats.binomtest(beyond, releases, allowed, "greater").pvalue >= LEAST_P
    # It is the loss of a Gaussian whose mu is this release's, and nothing beside it.
    own = apart / noise.scale
    assert stats.kstest((loss - own * own / 2.0) / own, "norm").pvalue >= LEAST_P
    assert np.max(np.abs(by_sampler)) <= resolution.sampler_epsilon(noise.n_weights)
    assert np.max(np.abs(by_sampler)) <= 1e-6 * own


@pytest.mark.statistical
def test_losses_of_real_releases() -> None:
    """Second moments of auto at 785 features and 10 classes, epsilon = 0.01."""
    check_losses(20)


@pytest.mark.statistical
@pytest.mark.long
def test_losses_of_many_real_releases() -> None:
    check_losses(200)


def finest(noise: ReleaseNoise) -> ReleaseNoise:
    """The same with the widest noise that is drawn on its grid."""
    share = noise.score_stddev / noise.scale
    return replace(noise, scale=2.0**45 * noise.grid / share, calibrated_sensitivity=0.0)


def right_guesses(own: FloatArray) -> float:
    """How often the sign of the loss says which table it was; ties are counted half."""
    return float(np.sum(own > 0.0)) + 0.5 * float(np.sum(own == 0.0))


@pytest.mark.statistical
def test_guesses_at_a_tiny_epsilon() -> None:
    """On tables of 107 features, far below the least epsilon that a run can have."""
    with pytest.raises(ResolutionError, match="take epsilon"):
        plan_problem(Problem(32_561, 107, 1, "binary"), PrivacySpec(3e-7), TrainSpec(method="dp-gd"))
    noise = finest(
        composed.calibrate_moments(
            relation=Relation.REPLACE_ONE,
            max_rows_per_unit=1,
            labels=False,
            mu=1e-3,
            n_units=32_561,
            n_features=107,
        )
    )
    assert noise.n_weights == 5778
    pair, guesses = second_moments(107), 300
    by_normal, by_sampler = losses(noise, pair, guesses)
    for own in (by_normal + by_sampler, by_sampler):
        assert stats.binomtest(round(right_guesses(own)), guesses, 0.5).pvalue >= LEAST_P
    assert np.max(np.abs(by_sampler)) < 1e-3 * np.std(by_normal)


# K-norm noise.


def test_a_normal_is_where_its_words_are() -> None:
    """To 2^-50 of itself: in the middle of its place, which near 0 more words make small."""
    rng, out = ffi.new("DpmlRng *"), ffi.new("double *")
    lib.dpml_rng_start(rng, key(1))
    for strip in (0, 3, 100, 254):
        for place in (PLACES // 2, PLACES // 3, 2**50, 2**50 - 1, 12345, 0, ~0, ~12345, -(2**52) - 7):
            more = 0x123456789ABCDEF0
            rng.words[0], rng.words[1] = (place % 2**56) << 8 | strip, more
            rng.used = 0
            lib.dpml_rng_normal(rng, 1, out)
            number = place if place >= 0 else ~place
            exact = (mpf(number) + mpf(0.5)) if number >= 2**50 else number + (more + mpf(0.5)) / 2**64
            exact *= mpf(EDGES[strip]) / 2**116 * (1 if place >= 0 else -1)
            assert abs(out[0] / exact - 1) < mpf(2) ** -50, (strip, place)
            assert rng.used == (1 if number >= 2**50 else 2)


@pytest.mark.parametrize("n", [1, 2, 10, 1000])
def test_k_norm_noise_is_normal_of_a_random_scale(n: int) -> None:
    """Whose square is the sum of n + 1 squared normals: this is what the density is proved of."""
    scale = 2.0**20
    for number in range(20):
        noise, again = Noise(key(number)), Noise(key(number))
        squares = np.empty(n + 1)
        lib.dpml_rng_normal(again._rng, n + 1, ffi.from_buffer("double[]", squares))
        root = math.sqrt(math.fsum(squares * squares))
        found = noise.knorm(n, scale)
        # the root may be the next float64
        np.testing.assert_allclose(found, again.gaussian(n, scale * root), atol=1.0)


@pytest.mark.parametrize("scale", [0.7, 2.0**35])
def test_k_norm_noise_of_one_number_is_laplace(scale: float) -> None:
    """Points' probabilities, integrated over the random variance: those of rounded Laplace noise."""
    for far in (0.0, 0.3, 20.0):
        point = round(far * scale)
        # at the peak of the integrand v = far + 1, near enough
        edges = [0, *[(far + 1) * mpf(2) ** j for j in range(-6, 7)], 700 + 3 * far]

        def density(v: mpf, point: int = point) -> mpf:
            return mp.exp(-v / 2) / 2 * normal_probability(point, scale * mp.sqrt(v)) if v else mpf(0)

        found = mp.quad(density, edges, maxdegree=6)
        ends = [mp.exp(-(mpf(2 * point + side) / (2 * mpf(scale)))) for side in (-1, 1)]
        ideal = (ends[0] - ends[1]) / 2 if point else 1 - ends[1]
        assert abs(found / ideal - 1) < mpf(2) ** -50, far


@pytest.mark.statistical
@pytest.mark.parametrize("n", [1, 2, 5])
def test_k_norm_noise_has_its_radius(n: int) -> None:
    noise = Noise(key(n))
    drawn = np.array([noise.knorm(n, 2.0**30) for _ in range(20_000)]) * 2.0**-30
    assert stats.kstest(np.linalg.norm(drawn, axis=1), stats.gamma(n).cdf).pvalue >= LEAST_P


def fits(points: FloatArray, scale: float, tries: int = 20) -> int:
    """Most points that round from a normal of some float64 standard deviation near the likeliest.

    What told tables apart when noise was one float64 number times another.
    """
    root = float(np.linalg.norm(points)) / math.sqrt(len(points))
    best = 0
    for _ in range(tries):
        root = math.nextafter(root, math.inf)
        x = points / root
        near = [np.rint(root * each) == points for each in (x, np.nextafter(x, 9.0), np.nextafter(x, -9.0))]
        best = max(best, int(np.sum(near[0] | near[1] | near[2])))
    return best


@pytest.mark.statistical
def test_k_norm_noise_tells_no_tables_apart() -> None:
    """By its gaps, by its losses, and by the sampler's errors though the random scale be known."""
    n, guesses = 100, 200
    with pytest.raises(ResolutionError):
        output.calibrate(1e-3, 0.0, n, 1e-10, 0.0)
    rng = np.random.default_rng(5)
    first = rng.normal(size=n)
    step = rng.normal(size=n)
    pair = first, first + 1e-3 * step / np.linalg.norm(step)
    noise = finest(output.calibrate(1e-3, 0.0, n, 0.1, 0.0))
    assert noise.kind == "k-norm"
    steps = noise.scale / noise.grid
    epsilon = 1e-3 / noise.scale
    by_density, by_sampler = [], []
    for number in range(guesses):
        released = output.release(pair[0], noise, Noise(key(number))) / noise.grid
        own, other = (released - np.rint(vector / noise.grid) for vector in pair)
        by_density.append((float(np.linalg.norm(other)) - float(np.linalg.norm(own))) / steps)
        assert fits(own, steps) == fits(other, steps) == n
        squares = np.empty(n + 1)
        lib.dpml_rng_normal(Noise(key(number))._rng, n + 1, ffi.from_buffer("double[]", squares))
        counts = Counts(steps * math.sqrt(math.fsum(squares * squares)))
        by_sampler.append(math.fsum(counts.log_errors(own) - counts.log_errors(other)))
    assert np.max(np.abs(by_density)) <= epsilon * (1.0 + 1e-5) + 1e-12
    assert np.max(np.abs(by_sampler)) <= resolution.sampler_knorm_epsilon(n)
    for guess in (by_density, by_sampler):
        assert stats.binomtest(round(right_guesses(np.array(guess))), guesses, 0.5).pvalue >= LEAST_P


# One vector, released again and again.


def struck_out(candidates: FloatArray, released: FloatArray, noise: ReleaseNoise) -> FloatArray:
    """Of the candidates for a number, in steps of the grid, those to which all releases may belong.

    A difference belongs to no noise that is one float64 number times the standard deviation, rounded, if
    no neighbour of its quotient leads to it.
    """
    steps = noise.scale / noise.grid
    for place in released:
        points = place - candidates
        x = points / steps
        possible = np.rint(steps * x) == points
        for end in (-np.inf, np.inf):
            possible |= np.rint(steps * np.nextafter(x, end)) == points
        candidates = candidates[possible]
    return candidates


def released_again(delta: float) -> tuple[ReleaseNoise, FloatArray, FloatArray]:
    """One vector's noise at the least epsilon, its whole steps, and those of 3000 releases."""

    def calibrate(epsilon: float) -> ReleaseNoise:
        return output.calibrate(2e-5, 0.0, 9, epsilon, delta)

    with pytest.raises(ResolutionError, match="take epsilon = ") as refusal:
        resolution.with_least_epsilon(calibrate, 1e-12)
    least = float(str(refusal.value).split("take epsilon = ")[1].split()[0])
    noise = calibrate(least)
    assert noise.kind == ("gaussian" if delta else "k-norm")
    assert 2.0**44.5 < noise.score_stddev / noise.grid <= 2.0**45
    weights = np.random.default_rng(7).normal(size=9) * 4.0
    released = [output.release(weights, noise, Noise(key(number))) for number in range(3000)]
    return noise, np.rint(weights / noise.grid), np.array(released) / noise.grid


@pytest.fixture(scope="module")
def again() -> tuple[ReleaseNoise, FloatArray, FloatArray]:
    return released_again(1e-9)


def test_no_candidate_is_struck_out(again: tuple[ReleaseNoise, FloatArray, FloatArray]) -> None:
    noise, exact, released = again
    for weight in (0, 4):
        candidates = exact[weight] + np.arange(-(2**19), 2**19)
        assert len(struck_out(candidates, released[:4, weight], noise)) == 2**20
        assert len(struck_out(exact[weight] + np.arange(-50.0, 50.0), released[:, weight], noise)) == 100


@pytest.mark.long
def test_no_candidate_is_struck_out_by_all_releases(
    again: tuple[ReleaseNoise, FloatArray, FloatArray],
) -> None:
    noise, exact, released = again
    for weight in range(9):
        candidates = exact[weight] + np.arange(-(2**19), 2**19)
        assert len(struck_out(candidates, released[:200, weight], noise)) == 2**20


@pytest.mark.statistical
@pytest.mark.parametrize("delta", [1e-9, 0.0])
def test_low_bits_of_releases_are_uniform(delta: float) -> None:
    """Of the differences to the exact weights, to wrong ones, and from one release to the next."""
    _, exact, released = released_again(delta)
    for differences in (released - exact, released - exact - 12345.0, released[1:] - released[:-1]):
        for bits in (1, 4, 8):
            found = np.bincount(np.mod(differences, 2.0**bits).astype(int).ravel(), minlength=2**bits)
            assert stats.chisquare(found).pvalue >= LEAST_P


@pytest.mark.statistical
def test_exact_weights_are_no_likelier_than_wrong_ones(
    again: tuple[ReleaseNoise, FloatArray, FloatArray],
) -> None:
    """By the sampler's errors over all releases, against candidates that lie near."""
    noise, exact, released = again
    counts = Counts(noise.scale / noise.grid)
    offsets = np.unique(np.random.default_rng(8).integers(-(2**19), 2**19, 30))
    for weight in (0, 4, 8):
        points = released[:1000, weight] - exact[weight]
        scores = [math.fsum(counts.log_errors(points - offset)) for offset in (0, *offsets)]
        others = np.array(scores[1:])
        assert abs(scores[0] - np.mean(others)) < 6.0 * np.std(others)
        assert max(map(abs, scores)) <= 1000 * resolution.POINT_SHARE
