# SPDX-License-Identifier: PostgreSQL
"""Whether noise is resolved on the grid that it is drawn on, by points' probabilities counted in words.

`python tests/privacy/test_resolution.py` prints what plans pay for and what they deliver.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from mpmath import mp, mpf
from scipy import stats

from helpers.gridpoints import (
    EDGES,
    INSIDE,
    KEPT_PIECES,
    PIECES,
    PLACES,
    STRIPS,
    TAIL,
    WORDS,
    Counts,
    Sampler,
    in_tail,
    measured_places,
    measured_tail_places,
    strip_words,
    tail_words,
    under_curve,
)
from helpers.neighbours import FloatArray
from pg_dpml.errors import ResolutionError
from pg_dpml.kernels import Noise
from pg_dpml.privacy import resolution
from pg_dpml.privacy.gaussian import gaussian_mu
from pg_dpml.privacy.noise import adaptive, sums
from pg_dpml.privacy.noise.adaptive import AdaptiveNoise
from pg_dpml.privacy.noise.composed import ComposedNoise
from pg_dpml.privacy.noise.objective import ObjectiveNoise, answer_sensitivity
from pg_dpml.privacy.noise.output import ReleaseNoise
from pg_dpml.privacy.noise.steps import StepNoise
from pg_dpml.privacy.releases import Releases
from pg_dpml.runs.planning import plan_problem
from pg_dpml.spec.privacy import PrivacySpec
from pg_dpml.spec.relation import Relation
from pg_dpml.training.plan import Plan, Problem
from pg_dpml.training.spec import TrainSpec

LEAST_P = 1e-6  # the keys are fixed: no false alarms
BITS = (20.0, 26.0, 35.0, 40.0, 44.9)
EPSILONS = (1e-6, 1e-3, 0.01, 0.1, 1.0, 10.0)
EDGES_AT = [EDGES[strip] / 2.0**61 for strip in (2, 40, 200, 255)]
FAR = (0.0, 1e-3, 0.3, 1.7, *EDGES_AT, 3.4, TAIL, 3.7, 5.0, 7.0, 9.0)
"""Standard deviations at which points are counted."""

FAR_OF_PLANS = (0.0, 1.7, EDGES_AT[0], TAIL, 3.7, 5.0, 7.0, 9.0)


def key(number: int) -> bytes:
    return number.to_bytes(32, "little")


def normals(n: int, seed: int) -> FloatArray:
    return np.random.default_rng(seed).standard_normal(n)


# The sampler: where words lead.


@pytest.fixture(scope="module")
def sampler() -> Sampler:
    return Sampler()


def test_what_lies_under_the_curve_needs_no_coin(sampler: Sampler) -> None:
    """A place of each strip, the last inside and the first that is not, on both sides."""
    for strip in range(STRIPS):
        for place, words in ((INSIDE[strip] - 1, 1), (INSIDE[strip], 2)):
            for side in (place, ~place):
                if place < 0 or (strip > 0 and words == 2 and under_curve(strip, place) == 1.0):
                    continue  # no place is inside the last; a coin that always hits takes no word
                sampler.point(1e-30, *strip_words(strip, side, 0), 0, 0)
                assert (sampler.used == 1) == (words == 1), (strip, side)


@pytest.mark.parametrize("bits", BITS)
def test_words_lead_where_counts_say(sampler: Sampler, bits: float) -> None:
    """From which word on the C code is at a point, or at a larger one, to 2^-33 of a place."""
    stddev = 2.0**bits
    counts = Counts(stddev)
    for far in (0.0, 0.3, -0.3, 1.7, -3.2, 3.4):
        point = round(far * stddev) + 1
        strips = [i for i in range(STRIPS) if EDGES[i] > (abs(far) + 1e-3) * 2.0**61]
        for strip in strips if abs(far) > 3.0 else strips[:: 1 + len(strips) // 20]:
            found = measured_places(sampler, stddev, strip, point)
            assert abs(found - counts.places(strip, counts.bounds(point)[0])) < 2**31, (far, strip)
    for far in (TAIL + 1e-3, 3.7, 5.0, 7.0, 9.0, 12.0, 19.0):
        point = round(far * stddev)
        found = measured_tail_places(sampler, stddev, point)
        assert abs(found - counts.tail_places(counts.bounds(point)[0])) < 2**31, far


def test_both_sides_are_alike(sampler: Sampler) -> None:
    """The digits that say where in a place mirror, too: at places that reach over two points."""
    rng = np.random.default_rng(1)
    for bits in BITS:
        stddev = 2.0**bits
        counts = Counts(stddev)
        for _ in range(100):
            strip, digits = int(rng.integers(1, STRIPS)), int(rng.integers(2**62))
            point = round(float(rng.random()) * EDGES[strip] / 2.0**61 * stddev)
            place = counts.places(strip, counts.bounds(point)[1]) // WORDS
            found = sampler.point(stddev, *strip_words(strip, place, digits))
            assert found in (point, point + 1)
            assert found == -sampler.point(stddev, *strip_words(strip, ~place, WORDS - 1 - digits))
            point = round((TAIL + 4.0 * float(rng.random())) * stddev)
            place = counts.tail_places(counts.bounds(point)[1]) // WORDS
            found = sampler.point(stddev, *tail_words(place, digits))
            assert found in (point, point + 1)
            assert found == -sampler.point(stddev, *tail_words(place, WORDS - 1 - digits, negative=True))


def test_a_place_is_kept_as_the_curve_says() -> None:
    rng = np.random.default_rng(2)
    x = [mpf(edge) / 2**61 for edge in EDGES]
    for _ in range(2000):
        strip = int(rng.integers(1, STRIPS))
        beyond = int((PLACES - INSIDE[strip]) * 2.0 ** -rng.uniform(0.0, 48.0))
        place = int(rng.choice([INSIDE[strip] + beyond, PLACES - beyond])) - 1
        at = (place + mpf(0.5)) / PLACES * x[strip]
        ideal = mp.expm1((x[strip] ** 2 - at**2) / 2) / mp.expm1((x[strip] ** 2 - x[strip + 1] ** 2) / 2)
        assert abs(under_curve(strip, place) / min(mpf(1), ideal) - 1) < mpf(2) ** -50, (strip, place)
    for _ in range(500):
        piece, place = int(rng.integers(PIECES)), int(rng.integers(PLACES))
        far = x[1] + mpf(piece) / 4
        within = (place + mpf(0.5)) / PLACES / 4
        ideal = 2**piece * mp.exp((x[1] ** 2 - far**2) / 2) * mp.exp(-within * (far + within / 2))
        kept = mpf(KEPT_PIECES[piece]) * in_tail(piece, place)
        assert abs(kept / ideal - 1) < mpf(2) ** -49, (piece, place)


@pytest.mark.parametrize(
    "probability", [0.5, 1 / 3, 1.0 - 2.0**-53, 1e-9, 0.7 * 2.0**-64, 1e-25, 2.0**-64, 5e-324, 0.0]
)
def test_a_coin_has_just_its_probability(sampler: Sampler, probability: float) -> None:
    """To the last digit of float64: words below its digits hit, and where all are equal nothing does."""
    digits: list[int] = []
    left = Fraction(probability)
    while left:
        digits.append(math.floor(left * WORDS))
        left = left * WORDS - digits[-1]
    for place, digit in enumerate(digits):
        before = digits[:place]
        if digit > 0:
            assert sampler.coin(probability, *before, digit - 1) == 1
            assert sampler.used == place + 1
        assert sampler.coin(probability, *before, digit + 1) == 0
        assert sampler.used == place + 1
    assert sampler.coin(probability, *digits) == 0
    assert sampler.used == len(digits)
    assert sampler.coin(1.0) == 1
    assert sampler.used == 0


def largest_error(stddev: float, far: Sequence[float]) -> float:
    counts = Counts(stddev)
    points = {round(at * stddev) - offset for at in far for offset in (0, 1)}
    if stddev < 100.0:  # each has many strips whole
        points = {round(at * stddev) for at in (0.0, 0.3, TAIL, 9.0)}
    return max(counts.error(point) for point in points)


@pytest.mark.parametrize("bits", BITS)
def test_every_point_has_the_probability_of_the_rounded_normal(bits: float) -> None:
    """Of the points' words, some thousand million to 2^20 times as many for each, counted exactly."""
    stddev = 2.0**bits
    assert largest_error(stddev, (*FAR, 12.0, 19.0)) <= resolution.POINT_SHARE
    counts = Counts(stddev)
    errors = [counts.error(round(z * stddev)) for z in normals(100, 3)]
    assert max(errors) <= resolution.POINT_SHARE


@pytest.mark.parametrize("stddev", [0.03, 0.3, 1.0, 1.37, 20.0])
def test_every_point_of_a_coarse_grid_has_its_probability(stddev: float) -> None:
    """As of a noisy number of errors at a large epsilon."""
    counts = Counts(stddev)
    for point in range(-2, 12):
        assert counts.error(point) <= resolution.POINT_SHARE


def test_no_noise_is_no_noise(sampler: Sampler) -> None:
    for stddev in (0.0, 5e-324, 2.0**-70, 2.0**-9):
        assert sampler.point(stddev, *strip_words(1, -PLACES // 3, 0)) == 0
        assert not np.any(Noise(key(1)).gaussian(1000, stddev))


# Plans.


@dataclass(frozen=True)
class Case:
    """A private method on the largest tables that it allows, and on smaller ones."""

    method: str
    task: str
    tables: tuple[tuple[int, int, int], ...]
    """n, d, K."""
    delta: float | None = None
    training: Mapping[str, Any] = field(default_factory=dict)


MNIST, ADULT, WIDE = (60_000, 785, 10), (32_561, 107, 1), (10**8, 2500, 1)
CASES = {
    "bolt-on": Case("bolt-on", "multiclass", (MNIST, (10**9, 2**20, 10)), training={"lambda_": 1e-3}),
    "bolt-on-sgd": Case("bolt-on", "binary", (ADULT, (10**7, 2500, 1))),
    "bolt-on-k-norm": Case("bolt-on", "multiclass", (MNIST, (10**9, 2**20, 10)), 0.0, {"lambda_": 1e-3}),
    "auto": Case("auto", "multiclass", (MNIST, (10**7, 2500, 10))),
    "whitened": Case("whitened-dp-gd", "binary", (ADULT, WIDE)),
    "dp-gd": Case("dp-gd", "multiclass", (MNIST, (10**8, 2500, 10))),
    "dp-agd": Case("dp-agd", "multiclass", (MNIST, (10**8, 2500, 10)), training={"growth": 1e-3}),
    "sufficient-statistics": Case("sufficient-statistics", "regression", (ADULT, WIDE)),
    "scs13": Case("scs13", "binary", (ADULT, (10**8, 2500, 1))),
    "scs13-k-norm": Case("scs13", "binary", (ADULT, (10**8, 2500, 1)), 0.0),
    "dp-sgd": Case("dp-sgd", "binary", (ADULT, (10**7, 2500, 1)), training={"passes": 1}),
    "objpert": Case("objpert", "binary", (ADULT, (10**8, 2500, 1))),
    "objpert-k-norm": Case("objpert", "multiclass", (MNIST, (10**8, 2500, 10)), 0.0),
    "amp": Case("amp", "multiclass", (MNIST, (10**8, 2500, 10))),
    "bst14": Case("bst14", "binary", (ADULT, (10**6, 2500, 1)), training={"passes": 1, "batch_size": 5000}),
}


def releases(noise: object) -> Iterator[tuple[ReleaseNoise | StepNoise, int]]:
    """What of a plan's noise is drawn, and how many times."""
    if isinstance(noise, ComposedNoise):
        if noise.moments is not None:
            yield noise.moments, 1
        if noise.gradient is not None:
            yield noise.gradient, noise.steps
    elif isinstance(noise, AdaptiveNoise):
        yield noise.gradient, noise.passes
        yield adaptive.gradient_noise(noise.gradient, 1e-3 * noise.share), 1  # after a choice of no step
    elif isinstance(noise, ObjectiveNoise):
        yield noise.linear, 1
        yield noise.answer, 1
    elif isinstance(noise, ReleaseNoise):
        yield noise, 1
    else:
        assert isinstance(noise, StepNoise)
        yield noise, noise.steps


def drawn_stddevs(noise: ReleaseNoise | StepNoise) -> list[float]:
    """Standard deviations of the normals that are drawn, in steps of the grid; some of K-norm noise."""
    steps = noise.scale / noise.grid
    if noise.kind == "gaussian":
        return [steps]
    return [steps * math.sqrt(v) for v in stats.chi2.ppf([1e-9, 0.5, 1.0 - 1e-9], noise.n_weights + 1)]


def check_resolved(noise: object) -> None:
    """Every grid is the one that the proof is about, and every point of it has its probability."""
    for drawn, _ in releases(noise):
        assert math.frexp(drawn.grid)[0] == 0.5
        if isinstance(drawn, StepNoise):
            assert drawn.grid <= 2.0**-20 * drawn.scale < 2.0 * drawn.grid
            per_number = math.sqrt(drawn.n_weights + 1) if drawn.kind == "k-norm" else 1.0
        else:
            per_number = drawn.score_stddev / drawn.scale
            if drawn.grid != 1.0 or drawn.n_weights > 1:
                share = 2.0**-20 * drawn.sensitivity / math.sqrt(drawn.n_weights)
                if isinstance(noise, ObjectiveNoise) and drawn is noise.linear:
                    gamma = noise.answer.sensitivity / answer_sensitivity(1.0, noise.convexity)
                    share = min(share, resolution.HIDDEN_SHARE * gamma / math.sqrt(drawn.n_weights))
                assert drawn.grid <= share * (1.0 + 1e-12) < 2.0 * drawn.grid * (1.0 + 1e-11)
        assert drawn.scale * per_number <= 2.0**45 * drawn.grid
        for stddev in drawn_stddevs(drawn):
            assert largest_error(stddev, FAR_OF_PLANS) <= resolution.POINT_SHARE


def check_all(
    attempt: Callable[[float], object], plan: Callable[[float], object], check: Callable[[Any], None]
) -> int:
    """Plan for every epsilon, or for the least one that the refusal names; how many were refused.

    `attempt` is what `plan` tries for one epsilon after the other.
    """
    refusals: dict[float, str] = {}
    for epsilon in EPSILONS:
        try:
            check(plan(epsilon))
        except ResolutionError as error:
            refusals[epsilon] = str(error)
    named = []
    for epsilon, refusal in refusals.items():
        found = re.search(r"take epsilon = (\S+) or more \(", refusal)
        assert found, refusal
        named.append(float(found.group(1)))
        assert named[-1] > epsilon
    if named:
        check(plan(named[-1]))
        with pytest.raises(ResolutionError):
            attempt(0.8 * named[-1])
    return len(refusals)


@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize("name", CASES)
def test_every_plan_is_resolved_or_refused(name: str, relation: Relation) -> None:
    case = CASES[name]
    for n, d, k in case.tables:
        problem = Problem(n, d, k, case.task)
        training = TrainSpec(method=case.method, **case.training)

        def plan(epsilon: float, problem: Problem = problem, training: TrainSpec = training) -> Plan:
            return plan_problem(problem, PrivacySpec(epsilon, case.delta, relation), training)

        def attempt(epsilon: float, problem: Problem = problem, training: TrainSpec = training) -> Plan:
            return training.decide(problem, PrivacySpec(epsilon, case.delta, relation))

        check_all(attempt, plan, lambda found: check_resolved(found.noise))


@pytest.mark.parametrize("delta", [0.0, 1e-9])
@pytest.mark.parametrize("units", [1, 2, 10**6, 2**40])
def test_every_noisy_error_is_resolved_or_refused(units: int, delta: float) -> None:
    def attempt(epsilon: float) -> ReleaseNoise:
        return sums.calibrate_sum(units, epsilon, delta)

    check_all(attempt, lambda epsilon: resolution.with_least_epsilon(attempt, epsilon), check_resolved)


# What plans pay for, and what they deliver.


ROWS = (
    ("auto", ADULT, 1.0),
    ("auto", ADULT, 0.1),
    ("auto", ADULT, 0.01),
    ("dp-gd", MNIST, 1.0),
    ("dp-gd", MNIST, 0.1),
    ("dp-gd", MNIST, 0.01),
    ("auto", MNIST, 1.0),
    ("auto", MNIST, 0.1),
    ("auto", MNIST, 0.01),
    ("auto", (10**7, 2500, 1), 0.1),
    ("auto", (10**7, 2500, 1), 0.01),
    ("dp-gd", (10**7, 2500, 1), 0.1),
    ("dp-gd", (10**7, 2500, 1), 0.01),
    ("auto", (10**8, 785, 10), 0.01),
    ("dp-gd", (10**8, 785, 10), 0.01),
    ("dp-gd", (10**8, 785, 10), 0.001),
    ("bolt-on", MNIST, 0.1),
    ("bolt-on", MNIST, 0.01),
    ("bolt-on", (10**6, 785, 10), 0.001),
)
"""Method, n, d and K, and epsilon."""


@dataclass(frozen=True)
class Delivered:
    """A run's privacy in mu."""

    paid: float
    """mu(epsilon, delta)."""
    charged: float
    """What a budget that counts in mu is charged."""
    counted: float
    """Of the Gaussian, and of the relative errors of random points as if those were independent."""
    worst: float
    """The same if every number of the run is off by as much as the proof allows."""
    numbers: int
    steps: float
    """Standard deviation of a number, in steps of its grid; the largest of the run."""
    error: float
    """Root of the mean square of the relative errors of points."""


def delivered(method: str, table: tuple[int, int, int], epsilon: float) -> Delivered:
    n, d, k = table
    plan = plan_problem(
        Problem(n, d, k, "multiclass" if k > 1 else "binary"), PrivacySpec(epsilon), TrainSpec(method=method)
    )
    assert plan.guarantee is not None
    gaussian, extra, numbers, steps, error = 0.0, 0.0, 0, 0.0, 0.0
    for drawn, times in releases(plan.noise):
        assert drawn.kind == "gaussian"
        gaussian += times * (drawn.calibrated_sensitivity / drawn.scale) ** 2
        steps = max(steps, drawn.scale / drawn.grid)
        counts = Counts(drawn.scale / drawn.grid)
        errors = np.array([counts.error(round(z * counts.stddev)) for z in normals(60, 4)])
        error = max(error, math.sqrt(float(np.mean(errors**2))))
        numbers += times * drawn.n_weights
        extra += 2.0 * times * drawn.n_weights * float(np.mean(errors**2))
    assert plan.noise is not None
    part = plan.noise.releases()
    assert isinstance(part, Releases)
    return Delivered(
        gaussian_mu(epsilon, plan.guarantee.delta),
        part.mu,
        math.sqrt(gaussian + extra),
        math.sqrt(gaussian) + resolution.sampler_mu(numbers),
        numbers,
        steps,
        error,
    )


@pytest.mark.parametrize(("method", "table", "epsilon"), ROWS)
def test_no_run_delivers_less_than_it_pays_for(
    method: str, table: tuple[int, int, int], epsilon: float
) -> None:
    found = delivered(method, table, epsilon)
    assert found.counted <= 1.0001 * found.paid
    assert found.worst <= (1.0 + 1e-9) * found.paid
    assert found.worst <= (1.0 + 1e-9) * found.charged <= (1.0 + 2e-9) * found.paid


if __name__ == "__main__":
    heads = [
        "method",
        "n",
        "d",
        "K",
        "epsilon",
        "numbers",
        "sd/grid",
        "error",
        "paid",
        "counted/paid",
        "worst/paid",
    ]
    widths = (8, 12, 5, 3, 8, 9, 8, 8, 10, 13, 12)
    print(*(f"{head:>{width}}" for head, width in zip(heads, widths, strict=True)))  # noqa: T201
    for method, (n, d, k), epsilon in ROWS:
        found = delivered(method, (n, d, k), epsilon)
        cells = (
            *(method, f"{n:,d}", d, k, epsilon, f"{found.numbers:,d}"),
            *(f"2^{math.log2(found.steps):.1f}", f"2^{math.log2(found.error):.1f}", f"{found.paid:.4g}"),
            *(f"{found.counted / found.paid:.9f}", f"{found.worst / found.paid:.9f}"),
        )
        print(*(f"{cell!s:>{width}}" for cell, width in zip(cells, widths, strict=True)))  # noqa: T201
