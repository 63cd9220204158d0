# SPDX-License-Identifier: PostgreSQL
"""Steps that each carry noise: what all methods of that kind share; no method itself is declared here."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from pg_dpml.blocks.packing import unit_fits_block
from pg_dpml.errors import GuaranteeError, SpecError
from pg_dpml.privacy.noise import growth
from pg_dpml.privacy.noise import steps as step_noise
from pg_dpml.privacy.noise.steps import StepNoise
from pg_dpml.spec.privacy import PrivacySpec
from pg_dpml.training import shared_options
from pg_dpml.training.job import Job, Result
from pg_dpml.training.losses import Clipped
from pg_dpml.training.plan import Plan, Problem, privacy_warnings
from pg_dpml.training.sgd import Sgd, run_passes
from pg_dpml.training.shared_options import RegularisedOptions

__all__ = [
    "NoisyOptions",
    "NoisyStepsPlan",
    "allocated_noise",
    "least_noise",
    "plan_of",
    "poisson_noise",
    "require_batch_size",
    "require_sampling",
    "require_schedule",
    "sampling_of",
]

WARN_SCORE_NOISE = 2.0
"""Noise in a score above which a model says little: logits of real models are a few units."""

_NO_MORE = 1.005
"""Two noises are equal up to this factor: each account is good to about half a percent."""

_WORTH = 1.1
"""Beyond what a rough account may be above a good one."""


@dataclass(frozen=True)
class NoisyOptions(RegularisedOptions):
    """What the steps of all methods here have."""

    passes: int | None = shared_options.passes("10")
    batch_size: int | None = shared_options.batch_size()
    radius: float | None = shared_options.radius()
    average: str | None = shared_options.average()
    tail: float | None = shared_options.tail()


@dataclass(frozen=True)
class NoisyStepsPlan(Plan):
    """Steps that each carry noise."""

    work: Sgd
    noise: StepNoise

    def run(self, job: Job) -> Result:
        """Take the steps on the packed rows; what the server returns carries its noise."""
        return Result(*run_passes(job, self.work))


def require_schedule(method: str, schedule: str | None) -> None:
    """Refuse a schedule that is for capped steps."""
    if schedule not in (None, "constant", "inverse_sqrt", "strongly_convex"):
        raise SpecError(
            f"schedule of {method} must be constant, inverse_sqrt or strongly_convex, not "
            f"{schedule}: the others are for steps that are capped"
        )


def require_sampling(method: str, sampling: str | None, own: str) -> None:
    """Refuse batches that are another method's."""
    if sampling not in (None, own, "allocation"):
        raise SpecError(f"sampling of {method} must be {own} or allocation, not {sampling}")


def require_batch_size(problem: Problem, batch_size: int | None) -> None:
    """Refuse more units in a batch than there are."""
    if batch_size is not None and batch_size > max(problem.n_units, 1):
        raise SpecError(
            f"batch_size must be at most the number of {'units' if problem.unit else 'rows'}, "
            f"{problem.n_units:,}, not {batch_size:,}"
        )


def poisson_noise(
    problem: Problem,
    privacy: PrivacySpec,
    clipped: Clipped,
    batch_size: int,
    passes: int,
    accountant: str = "pld",
) -> tuple[StepNoise, str | None]:
    """Noise of every step over Poisson batches, and a warning of the accountant."""
    if not unit_fits_block(problem.max_rows_per_unit, problem.n_features):
        raise GuaranteeError(
            f"Poisson batches need a unit's rows in one block, and {problem.max_rows_per_unit:,} rows of "
            f"{problem.n_features:,} features are too long for one: take a smaller max_rows_per_unit"
        )
    return step_noise.calibrate_poisson(
        bound=clipped.bound,
        relation=privacy.relation,
        passes=passes,
        steps=passes * math.ceil(problem.n_units / batch_size),
        sampling=sampling_of(problem, batch_size),
        n_units=problem.n_units,
        max_rows_per_unit=problem.max_rows_per_unit,
        row_bound=clipped.row_bound,
        n_weights=problem.n_weights,
        epsilon=privacy.epsilon,
        delta=privacy.delta_for(problem.n_units),
        accountant=accountant,
    )


def allocated_noise(
    problem: Problem,
    privacy: PrivacySpec,
    clipped: Clipped,
    batch_size: int,
    passes: int,
    fresh_order: bool | None,
    worth: float = math.inf,
) -> StepNoise:
    """Noise of every step over batches by random allocation; `worth` is as in `calibrate_allocated`.

    A portion of a table with a unit of privacy cannot be packed again: there one order is for all passes.
    """
    if problem.unit is not None:
        if fresh_order:
            raise SpecError("fresh_order does not go with sampling = allocation and a unit: leave it out")
        fresh_order = False
    return step_noise.calibrate_allocated(
        bound=clipped.bound,
        relation=privacy.relation,
        passes=passes,
        steps=passes * math.ceil(problem.n_units / batch_size),
        sampling=sampling_of(problem, batch_size),
        n_units=problem.n_units,
        max_rows_per_unit=problem.max_rows_per_unit,
        row_bound=clipped.row_bound,
        n_weights=problem.n_weights,
        epsilon=privacy.epsilon,
        delta=privacy.delta_for(problem.n_units),
        fresh_order=fresh_order,
        worth=worth,
    )


def least_noise(
    problem: Problem, privacy: PrivacySpec, clipped: Clipped, batch_size: int, passes: int
) -> tuple[StepNoise, str | None, str]:
    """Noise of every step where the method chooses the batches, a warning of the accountant, and why so.

    Batches by random allocation, with one order for all passes, are taken where the noise on a sum is at most
    `_NO_MORE` times that of Poisson batches, under the same guarantee, with the same batch size and passes;
    Poisson batches everywhere else. Both noises follow from public numbers alone. A pass over allocated
    batches reads the packed rows in their order, while one over Poisson batches jumps between them. A fresh
    order a pass would need less noise than one order, but packs the rows again in every pass: who wants it
    asks for sampling = allocation.
    Source: privacy/README.md, "Batches by random allocation".
    """
    poisson, warning = poisson_noise(problem, privacy, clipped, batch_size, passes)
    if poisson.steps == 0:
        return poisson, warning, ""
    try:
        drawn = allocated_noise(
            problem, privacy, clipped, batch_size, passes, fresh_order=False, worth=_WORTH
        )
    except GuaranteeError as error:
        return poisson, warning, f"Poisson batches, since random allocation cannot run: {error}"
    times = f"{drawn.noise_multiplier / poisson.noise_multiplier:.3f} times the noise of Poisson batches"
    if drawn.scale <= _NO_MORE * poisson.scale:
        return drawn, None, f"batches by random allocation, which need {times} and are read faster"
    reason = f"Poisson batches, since random allocation with one order for all passes needs {times}"
    return replace(poisson, multipliers=drawn.multipliers), warning, reason


def sampling_of(problem: Problem, batch_size: int) -> float:
    """Probability q = min(1, b/n). Source: privacy/README.md, "Poisson batches"."""
    return min(1.0, batch_size / max(problem.n_units, 1))


def plan_of(
    method: str,
    problem: Problem,
    privacy: PrivacySpec,
    clipped: Clipped,
    sgd: Sgd,
    noise: StepNoise,
    delta: float,
    warning: str | None,
) -> NoisyStepsPlan:
    """The plan of steps with their noise; delta is the one reported."""
    if sgd.schedule.kind != "strongly_convex":
        growth.require_stable(sgd.schedule.step(1), sgd.lambda_)
    sgd = replace(
        sgd,
        gradient_clip=clipped.gradient_clip,
        noise=noise.kind if noise.scale > 0.0 else None,
        noise_scale=noise.scale,
        sampling=noise.sampling,
        allocated=noise.allocations > 0,
        fresh_order=noise.allocations > 1 or (sgd.fresh_order and noise.allocations == 0),
    )
    noise = replace(
        noise,
        score_stddev=growth.noise_growth(
            schedule=sgd.schedule,
            steps=noise.steps,
            lambda_=sgd.lambda_,
            momentum=sgd.momentum,
            average_from=sgd.average_from,
            batch_size=sgd.batch_size,
            radius=sgd.radius,
            sum_stddev=noise.sum_stddev,
        ),
    )
    warnings = privacy_warnings(problem, privacy, delta)
    if warning is not None:
        warnings.append(warning)
    if noise.score_stddev > WARN_SCORE_NOISE:
        warnings.append(
            f"the noise in a row's score has a standard deviation of up to {noise.score_stddev:.2g}, "
            "as large as the scores of a good model: expect little accuracy; take a larger batch_size, "
            "smaller steps or fewer passes"
        )
    return NoisyStepsPlan(method, problem, sgd, problem.guarantee(privacy, delta), noise, tuple(warnings))
