# SPDX-License-Identifier: PostgreSQL
"""The numbers that noise in every step is calibrated with, computed again from the rules.

The accountant's own numbers are the subject of test_accounting.py: here it is asked, and answers what it is
told to. Source: privacy/README.md, "Noise inside a pass", "Noise at every step" and "Poisson batches".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
from scipy.stats import binom

from helpers.plans import decide
from pg_dpml.errors import GuaranteeError
from pg_dpml.privacy import gaussian, resolution
from pg_dpml.privacy.accounting import bst14, subsampled
from pg_dpml.privacy.noise import steps as step_noise
from pg_dpml.privacy.noise.steps import StepNoise
from pg_dpml.spec.privacy import PrivacySpec
from pg_dpml.spec.relation import Relation
from pg_dpml.training.plan import Problem
from pg_dpml.training.spec import TrainSpec

METHODS = ("scs13", "bst14", "dp-sgd")
MULTIPLIER = 1.5
UNLIKELY = 2.0**-30
CLIP = 0.25
MANY = 10**8


@dataclass(frozen=True)
class Question:
    epsilon: float
    delta: float
    sampling: float
    steps: int
    relation: Relation


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Question]:
    """What the accountants are asked; each answers with MULTIPLIER."""
    questions: list[Question] = []

    def answer(*arguments: Any) -> float:
        questions.append(Question(*arguments))
        return MULTIPLIER

    def account(*arguments: Any) -> subsampled.Accounted:
        return subsampled.Accounted(answer(*arguments), arguments[0], "pld", 0.0)

    monkeypatch.setattr(step_noise, "_pld", account)
    monkeypatch.setattr(bst14, "advanced_multiplier", answer)
    monkeypatch.setattr(bst14, "published_bst14_multiplier", answer)
    return questions


def problem_of(n_units: int, rows_per_unit: int, n_weights: int) -> Problem:
    unit = None if rows_per_unit == 1 else "unit"
    return Problem(n_units, n_weights, 1, "binary", unit, rows_per_unit)


def planned(method: str, problem: Problem, privacy: PrivacySpec, **options: Any) -> StepNoise:
    noise = decide(problem, privacy, TrainSpec(method=method, clip=CLIP, **options)).noise
    assert isinstance(noise, StepNoise)
    return noise


def rounding(rows: float) -> float:
    """Of two sums of so many gradients of norm CLIP."""
    return 2.0**-52 * rows * (rows + 8.0) * CLIP


def check_grid_and_scale(noise: StepNoise, multiplier: float, change: float) -> None:
    """The scale is the multiplier times a change with all its head room, and not much more."""
    assert noise.grid <= 2.0**-20 * noise.scale < 2.0 * noise.grid
    assert math.frexp(noise.grid)[0] == 0.5
    assert multiplier * change <= noise.scale <= 1.001 * multiplier * change


@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize("n_weights", [5, 10_000])
@pytest.mark.parametrize("rows_per_unit", [1, 3])
@pytest.mark.parametrize(("n", "batch_size"), [(1000, 1), (MANY, 300_000), (200_000, 300_000)])
def test_head_room_of_shuffled_passes(
    n: int, batch_size: int, rows_per_unit: int, n_weights: int, relation: Relation
) -> None:
    """A batch has as many rows as there are, and all rows of each unit."""
    problem = problem_of(n, rows_per_unit, n_weights)
    noise = planned(
        "scs13", problem, PrivacySpec(1.0, 1e-6, relation), batch_size=batch_size, passes=4, radius=1.0
    )
    change = rows_per_unit * CLIP * (2.0 if relation is Relation.REPLACE_ONE else 1.0)
    room = noise.grid * math.sqrt(n_weights) + rounding(rows_per_unit * min(batch_size, n))
    assert noise.sensitivity == pytest.approx(change, rel=1e-15)
    assert noise.calibrated_sensitivity - change == pytest.approx(room, rel=1e-6)
    check_grid_and_scale(noise, 2.0 / gaussian.gaussian_mu(1.0, 1e-6), change + room)


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize("n_weights", [5, 10_000])
@pytest.mark.parametrize("rows_per_unit", [1, 3])
@pytest.mark.parametrize("method", ["bst14", "dp-sgd"])
def test_head_room_of_poisson_batches(
    method: str, rows_per_unit: int, n_weights: int, relation: Relation
) -> None:
    """A batch may be larger than its mean: no batch of a run is beyond what has been allowed for, nearly."""
    n, batch_size, delta = 10**6, 100_000, 1e-6
    problem = problem_of(n, rows_per_unit, n_weights)
    noise = planned(
        method, problem, PrivacySpec(1.0, delta, relation), batch_size=batch_size, passes=4, radius=1.0
    )
    bound = rows_per_unit * CLIP
    factor = 2.0 if relation is Relation.REPLACE_ONE else 1.0
    assert noise.sensitivity == pytest.approx(factor * bound, rel=1e-15)
    room = noise.calibrated_sensitivity / factor - bound
    left = room - noise.grid * math.sqrt(n_weights)
    rows = math.sqrt(left / (2.0**-52 * CLIP) + 16.0) - 4.0
    units = rows / rows_per_unit
    assert units == pytest.approx(round(units), abs=1e-2)
    assert binom.sf(round(units), n, batch_size / n) <= UNLIKELY * delta / noise.steps
    assert units <= batch_size + 12.0 * math.sqrt(batch_size)
    assert noise.steps == 40
    check_grid_and_scale(noise, MULTIPLIER, bound + room)


@pytest.mark.parametrize("accountant", ["pld", "advanced", "beside each other"])
@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize(
    ("n", "batch_size", "passes", "room"),
    [
        (1000, 50, 3, 2.0**-20),
        (2**34, 2**10, 1, 2.0**-16),  # 2^-50 n
        (2**30, 1, 8, 2.0**-17),  # 2^-50 T
        (1000, 1000, 3, 0.0),  # no coin is tossed
    ],
)
def test_what_the_accountant_is_asked(
    asked: list[Question],
    n: int,
    batch_size: int,
    passes: int,
    room: float,
    relation: Relation,
    accountant: str,
) -> None:
    """Of coins that hit a little more often, with a delta that has paid for batches too large."""
    epsilon, delta, q = 0.7, 1e-6, batch_size / n
    steps = passes * math.ceil(n / batch_size)
    if accountant == "beside each other":
        step_noise.bst14_multipliers(epsilon, delta, q, n, steps, relation)
        assert len(asked) == 3
    else:
        noise, _ = step_noise.calibrate_poisson(
            bound=1.0,
            relation=relation,
            passes=passes,
            steps=steps,
            sampling=q,
            n_units=n,
            max_rows_per_unit=1,
            row_bound=1.0,
            n_weights=5,
            epsilon=epsilon,
            delta=delta,
            accountant=accountant,
        )
        assert (noise.accountant, noise.sampling) == (accountant, q)
        assert len(asked) == 1
    for question in asked:
        assert (question.steps, question.relation) == (steps, relation)
        assert 0.999 * epsilon <= question.epsilon <= epsilon
        left = delta * math.exp(-resolution.sampler_epsilon(5 * steps))
        assert left * (1.0 - 4.0 * UNLIKELY) <= question.delta <= delta * (1.0 - UNLIKELY)
        assert q * (1.0 + room) * (1.0 - 1e-15) <= question.sampling <= min(1.0, q * (1.0 + 2.0 * room))


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize("method", METHODS)
def test_delta_covers_every_number_of_noise(method: str) -> None:
    """Of all passes, or of all steps of Poisson batches; that of one alone would be refused much later."""
    problem = problem_of(10_000, 1, 7)
    releases = 6 if method == "scs13" else 6 * 200
    floor = 2.0 * resolution.sampler_delta(releases * 7)
    with pytest.raises(GuaranteeError, match=f"for {releases * 7:,} noisy numbers"):
        planned(method, problem, PrivacySpec(1.0, 0.9 * floor), batch_size=50, passes=6)
    noise = planned(method, problem, PrivacySpec(1.0, 1.1 * floor), batch_size=50, passes=6)
    assert (noise.kind, noise.steps) == ("gaussian", 6 * 200)


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize("rows_per_unit", [1, 4])
@pytest.mark.parametrize("method", METHODS)
def test_the_largest_batch(method: str, rows_per_unit: int) -> None:
    """Its rounding may be a hundredth of what a unit can add: 2^-52 N (N + 8) C <= m C/100."""
    problem, privacy = problem_of(MANY, rows_per_unit, 5), PrivacySpec(1.0, 1e-6)
    longest = math.sqrt(2.0**52 * rows_per_unit / 100.0 + 16.0) - 4.0  # rows
    units = longest / rows_per_unit
    # Poisson batches of this mean may be half a percent larger.
    fits, too_large = (-1.0, 1.0) if method == "scs13" else (-0.01 * units, -0.002 * units)
    planned(method, problem, privacy, batch_size=math.floor(units + fits), passes=1, radius=1.0)
    with pytest.raises(GuaranteeError, match="rounding of a batch"):
        planned(method, problem, privacy, batch_size=math.ceil(units + too_large), passes=1, radius=1.0)
