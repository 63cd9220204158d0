# SPDX-License-Identifier: PostgreSQL
"""SGD with noise on the gradients of every step: scs13, bst14 and dp-sgd.

scs13 takes shuffled passes (Song, Chaudhuri & Sarwate 2013), the others Poisson
batches: bst14 as in Bassily, Smith & Thakurta 2014 with the constant number of
passes of Wu et al. 2017, dp-sgd with the steps that do best. The server adds the
noise, so the model it returns is what is released: step sizes, momentum,
averages and projections are post-processing.

Defaults of dp-sgd come from public numbers. Its noise in the score of a row of
norm 1 has standard deviation tau sigma/(b sqrt(T)), tau the length of all steps
together and sigma the noise on a batch's sum; sigma/(b sqrt(T)) is nearly
D/(n mu) whatever b and T are, as in dp-gd. So tau alone matters, and is taken
such that this is 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from pg_dpml.blocks.packing import unit_fits_block
from pg_dpml.errors import GuaranteeError, SpecError
from pg_dpml.kernels import Loss
from pg_dpml.privacy import resolution
from pg_dpml.privacy.guarantee import Guarantee
from pg_dpml.privacy.noise import steps as step_noise
from pg_dpml.privacy.noise.steps import StepNoise
from pg_dpml.spec.privacy import PrivacySpec
from pg_dpml.training.job import Job, Result
from pg_dpml.training.losses import choose_clipped_loss
from pg_dpml.training.plan import Plan, Problem, privacy_warnings
from pg_dpml.training.sgd import Sgd, make_sgd, run_passes
from pg_dpml.training.spec import TrainSpec

__all__ = ["plan", "run"]

CLIP = {"squared": 0.5}
"""Of scs13 and bst14: as published, but for a loss that has no bound of its own."""

DP_SGD_CLIP = {"logistic": 0.5, "squared": 0.5}
"""For logistic the gradient of the zero model, so that no first step is shortened."""

BATCH_SIZE = 50
PASSES = 10
"""Of scs13 and bst14 in the comparison of Wu et al. 2017."""

FIRST_STEP = 1.0
"""c of c/sqrt(t) in scs13, as there."""

RADIUS = 10.0
"""Of convex bst14, whose steps are as long as the radius says: scores of rows of norm 1 up to 10."""

DP_SGD_STEPS = 50
"""Steps of a pass of dp-sgd: fewer make a batch noisier than its sum needs, more are slower."""

LARGEST_BATCH = 2**21
"""Of dp-sgd by default: the plain sum of so many gradients is still precise."""

MOMENTUM = 0.9
TAIL = 0.25
WARN_SCORE_NOISE = 2.0
"""Noise in a score above which a model says little: logits of real models are a few units."""


@dataclass(frozen=True)
class _Clipped:
    """A loss and what its gradients are bounded by."""

    loss: Loss
    gradient_clip: float
    row_bound: float
    bound: float
    """Of the gradients of all rows of a unit. Source: privacy/README.md, "Unit of privacy"."""


def _clipped(problem: Problem, spec: TrainSpec) -> _Clipped:
    dp_sgd = spec.method == "dp-sgd"
    loss, gradient_clip = choose_clipped_loss(
        problem,
        spec,
        DP_SGD_CLIP if dp_sgd else CLIP,
        math.sqrt(1.0 - 1.0 / problem.n_outputs) if dp_sgd else math.inf,
    )
    row_bound = min(loss.lipschitz, gradient_clip)
    return _Clipped(loss, gradient_clip, row_bound, problem.max_rows_per_unit * row_bound)


def plan(problem: Problem, privacy: PrivacySpec | None, spec: TrainSpec) -> Plan:
    """Fix the steps and the noise of scs13, bst14 or dp-sgd.

    Parameters
    ----------
    problem : Problem
    privacy : PrivacySpec
    spec : TrainSpec

    Returns
    -------
    Plan

    Raises
    ------
    SpecError
        If options do not go together.
    GuaranteeError
        If delta is 0 where noise is Gaussian, or too small, rounding would spoil the guarantee, or the
        server could not take the steps.
    """
    assert privacy is not None
    if spec.schedule not in (None, "constant", "inverse_sqrt", "strongly_convex"):
        raise SpecError(
            f"schedule of {spec.method} must be constant, inverse_sqrt or strongly_convex, not "
            f"{spec.schedule}: the others are for steps that are capped"
        )
    _refuse_unused(spec)
    if spec.batch_size is not None and spec.batch_size > max(problem.n_units, 1) and spec.method != "scs13":
        raise SpecError(
            f"batch_size must be at most the number of {'units' if problem.unit else 'rows'}, "
            f"{problem.n_units:,}, not {spec.batch_size:,}"
        )
    clipped = _clipped(problem, spec)
    if spec.method == "scs13":
        return _plan_scs13(problem, privacy, spec, clipped)
    if spec.method == "bst14":
        return _plan_bst14(problem, privacy, spec, clipped)
    return _plan_dp_sgd(problem, privacy, spec, clipped)


def _refuse_unused(spec: TrainSpec) -> None:
    """Refuse what the schedule or the average does not use: it would change nothing."""
    average = spec.average or ("tail" if spec.method == "dp-sgd" else "none")
    if spec.tail is not None and average != "tail":
        raise SpecError(
            f"tail belongs to average = tail, not to {average}: leave tail out, or give average = tail"
        )
    strongly_convex = spec.method == "scs13" and (spec.lambda_ or 0.0) > 0.0
    schedule = spec.schedule or ("strongly_convex" if strongly_convex else None)
    if spec.step_size is not None and schedule == "strongly_convex":
        raise SpecError(
            "step_size belongs to schedule constant or inverse_sqrt: steps of strongly_convex are "
            "1/(lambda t); leave step_size out, or give schedule"
        )


def _plan_scs13(problem: Problem, privacy: PrivacySpec, spec: TrainSpec, clipped: _Clipped) -> Plan:
    batch_size, passes = spec.batch_size or BATCH_SIZE, spec.passes or PASSES
    strongly_convex = (spec.lambda_ or 0.0) > 0.0
    sgd = make_sgd(
        problem,
        spec,
        loss=clipped.loss,
        schedule="strongly_convex" if strongly_convex else "inverse_sqrt",
        step_size=FIRST_STEP,
        batch_size=batch_size,
        passes=passes,
        capped=False,
    )
    if sgd.schedule.kind == "strongly_convex" and spec.radius is None:
        sgd = replace(sgd, radius=clipped.bound / sgd.lambda_)
    delta = privacy.delta_for(problem.n_units)
    noise = step_noise.calibrate_passes(
        bound=clipped.bound,
        relation=privacy.relation,
        passes=passes,
        steps=sgd.steps(problem.n_units, passes),
        batch_rows=min(batch_size, problem.n_units) * problem.max_rows_per_unit,
        row_bound=clipped.row_bound,
        n_weights=problem.n_weights,
        epsilon=privacy.epsilon,
        delta=delta,
    )
    if delta == 0.0:
        delta = resolution.sampler_delta(passes * problem.n_weights)
    return _plan(problem, privacy, spec, clipped, sgd, noise, delta, None)


def _poisson_noise(
    problem: Problem, privacy: PrivacySpec, spec: TrainSpec, clipped: _Clipped, batch_size: int, passes: int
) -> tuple[StepNoise, str | None]:
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
        sampling=_sampling(problem, batch_size),
        n_units=problem.n_units,
        max_rows_per_unit=problem.max_rows_per_unit,
        row_bound=clipped.row_bound,
        n_weights=problem.n_weights,
        epsilon=privacy.epsilon,
        delta=privacy.delta_for(problem.n_units),
        accountant=spec.accountant or "pld",
    )


def _sampling(problem: Problem, batch_size: int) -> float:
    """Probability q = min(1, b/n). Source: privacy/README.md, "Poisson batches"."""
    return min(1.0, batch_size / max(problem.n_units, 1))


def _plan_bst14(problem: Problem, privacy: PrivacySpec, spec: TrainSpec, clipped: _Clipped) -> Plan:
    """Steps by the publication: 2R/(G sqrt t) on sums, or 1/(lambda t) on averages.

    Source: privacy/README.md, "BST14".
    """
    batch_size, passes = spec.batch_size or BATCH_SIZE, spec.passes or PASSES
    noise, warning = _poisson_noise(problem, privacy, spec, clipped, batch_size, passes)
    strongly_convex = (spec.lambda_ or 0.0) > 0.0
    radius = spec.radius or (clipped.bound / (spec.lambda_ or 1.0) if strongly_convex else RADIUS)
    gradient_norm = math.hypot(math.sqrt(problem.n_weights) * noise.scale, batch_size * clipped.bound)
    sgd = make_sgd(
        problem,
        replace(spec, radius=radius),
        loss=clipped.loss,
        schedule="strongly_convex" if strongly_convex else "inverse_sqrt",
        step_size=batch_size * 2.0 * radius / gradient_norm,
        batch_size=batch_size,
        passes=passes,
        capped=False,
    )
    if noise.steps > 0:
        multipliers = step_noise.bst14_multipliers(
            privacy.epsilon,
            privacy.delta_for(problem.n_units),
            _sampling(problem, batch_size),
            problem.n_units,
            noise.steps,
            privacy.relation,
        )
        noise = replace(noise, multipliers=multipliers)
    return _plan(problem, privacy, spec, clipped, sgd, noise, privacy.delta_for(problem.n_units), warning)


def _plan_dp_sgd(problem: Problem, privacy: PrivacySpec, spec: TrainSpec, clipped: _Clipped) -> Plan:
    n_units = max(problem.n_units, 1)
    batch_size = spec.batch_size or min(math.ceil(n_units / DP_SGD_STEPS), LARGEST_BATCH)
    passes = spec.passes or PASSES
    noise, warning = _poisson_noise(problem, privacy, spec, clipped, batch_size, passes)
    momentum = MOMENTUM if spec.momentum is None else spec.momentum
    schedule = spec.schedule or "constant"
    lambda_ = spec.lambda_ or 0.0
    sgd = make_sgd(
        problem,
        replace(spec, momentum=momentum, average=spec.average or "tail", tail=spec.tail or TAIL),
        loss=clipped.loss,
        schedule=schedule,
        step_size=_first_step(problem, clipped, noise, schedule, batch_size, momentum, lambda_),
        batch_size=batch_size,
        passes=passes,
        capped=False,
    )
    return _plan(problem, privacy, spec, clipped, sgd, noise, privacy.delta_for(problem.n_units), warning)


def _first_step(
    problem: Problem,
    clipped: _Clipped,
    noise: StepNoise,
    schedule: str,
    batch_size: int,
    momentum: float,
    lambda_: float,
) -> float:
    """Step size at which the noise in a score is about 1, or the longest that is far from diverging."""
    smoothness = problem.max_rows_per_unit * clipped.loss.smoothness + lambda_
    longest = (1.0 + momentum) / smoothness
    if noise.steps == 0:
        return longest
    budget = batch_size * math.sqrt(noise.steps) / noise.scale
    if problem.task == "regression":  # labels in [-1, 1] stand less noise than logits do
        budget = min(budget, math.pow(budget, 0.75))
    # sum of 1 / sqrt t over t = 1 .. T is at most 2 sqrt T - 1
    units = float(noise.steps) if schedule == "constant" else 2.0 * math.sqrt(noise.steps) - 1.0
    return min((1.0 - momentum) * budget / units, longest)


def _plan(
    problem: Problem,
    privacy: PrivacySpec,
    spec: TrainSpec,
    clipped: _Clipped,
    sgd: Sgd,
    noise: StepNoise,
    delta: float,
    warning: str | None,
) -> Plan:
    """The plan of steps with their noise; delta is the one reported."""
    step_noise.require_stable(sgd.schedule, sgd.lambda_)
    sgd = replace(
        sgd,
        gradient_clip=clipped.gradient_clip,
        noise=noise.kind if noise.scale > 0.0 else None,
        noise_scale=noise.scale,
        sampling=noise.sampling,
    )
    noise = replace(
        noise,
        score_stddev=step_noise.noise_growth(
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
    guarantee = Guarantee(privacy.epsilon, delta, privacy.relation, problem.unit, problem.max_rows_per_unit)
    return Plan(spec.method, problem, sgd, guarantee, noise, None, tuple(warnings))


def run(job: Job) -> Result:
    """Take the steps on the packed rows; what the server returns carries its noise."""
    assert isinstance(job.plan.work, Sgd)
    return Result(*run_passes(job, job.plan.work))
