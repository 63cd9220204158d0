# SPDX-License-Identifier: PostgreSQL
"""SGD with noise on the gradients of every step: scs13, bst14 and dp-sgd.

scs13 takes shuffled passes (Song, Chaudhuri & Sarwate 2013), bst14 Poisson batches
as in Bassily, Smith & Thakurta 2014 with the constant number of passes of Wu et
al. 2017, dp-sgd the steps that do best, over batches by random allocation where
these need no more noise than Poisson batches. The server adds the noise, so the
model it returns is what is released: step sizes, momentum, averages and
projections are post-processing.

Defaults of dp-sgd come from public numbers. Its noise in the score of a row of
norm 1 has standard deviation tau sigma/(b sqrt(T)), tau the length of all steps
together and sigma the noise on a batch's sum; sigma/(b sqrt(T)) is nearly
D/(n mu) whatever b and T are, as in dp-gd. So tau alone matters, and is taken
such that this is 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from pg_dpml.methods.noisy_steps import (
    NoisyOptions,
    NoisyStepsPlan,
    allocated_noise,
    least_noise,
    plan_of,
    poisson_noise,
    require_batch_size,
    require_sampling,
    require_schedule,
    sampling_of,
)
from pg_dpml.privacy import resolution
from pg_dpml.privacy.noise import steps as step_noise
from pg_dpml.privacy.noise.steps import StepNoise
from pg_dpml.spec.privacy import PrivacySpec
from pg_dpml.training import shared_options
from pg_dpml.training.losses import Clipped, clipped_at_zero, clipped_loss
from pg_dpml.training.method import Card, Example, PrivateMethod, register
from pg_dpml.training.options import Choice, option
from pg_dpml.training.plan import Problem
from pg_dpml.training.sgd import make_sgd

__all__ = []


CLIP = {"squared": 0.5}
"""Of scs13 and bst14: as published, but for a loss that has no bound of its own."""

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


@dataclass(frozen=True)
class Scs13Options(NoisyOptions):
    """Options of scs13."""

    schedule: str | None = shared_options.schedule()
    step_size: float | None = shared_options.step_size()
    momentum: float | None = shared_options.momentum()
    sampling: str | None = shared_options.sampling()
    fresh_order: bool = shared_options.fresh_order()


@dataclass(frozen=True)
class Bst14Options(NoisyOptions):
    """Options of bst14."""

    accountant: str | None = option(
        Choice(("pld", "advanced")),
        "Account of the steps: privacy loss distributions, or the composition of the publication.",
        "pld",
    )


@dataclass(frozen=True)
class DpSgdOptions(NoisyOptions):
    """Options of dp-sgd."""

    schedule: str | None = shared_options.schedule()
    step_size: float | None = shared_options.step_size()
    momentum: float | None = shared_options.momentum()
    sampling: str | None = shared_options.sampling()


@register
class Scs13(PrivateMethod[Scs13Options]):
    """Noise on the gradients of shuffled batches (Song, Chaudhuri & Sarwate 2013)."""

    name = "scs13"
    comparison = True
    summary = "SGD with noise on every batch of shuffled passes"
    cards = (
        Card(
            theorem="Noise on the gradient sum of every batch of shuffled passes; a unit is in one batch "
            'a pass, so k passes are k releases ("Noise at every step"; Song, Chaudhuri & Sarwate'
            " 2013).",
            sensitivity="D = 2 m L (`replace_one`) or m L, for every step. sigma = sqrt(k) D/mu(epsilon, "
            "delta), exactly; with delta = 0 K-norm noise at epsilon/k.",
            checked="delta against the sampler; rounding of a sum below a hundredth of a unit's share; "
            "steps at most 2/lambda, so that the model stays finite. Steps have no other cap.",
            charged="(epsilon, delta); with delta = 0, delta = k dimension 2^-120.",
            post_processing="Steps c/sqrt t (c = 1), 1/(lambda t) or constant, projection, momentum, "
            "averages.",
            corrected="(1) Several passes cost sqrt(k) (k for delta = 0), where the published algorithm "
            "takes one. (2) The K-norm direction is uniform on the sphere. (3) A short last batch"
            " is divided by the nominal b. (4) mu is exact at every epsilon.",
        ),
    )
    options = Scs13Options
    examples = (
        Example(),
        Example(options={"passes": 2, "fresh_order": True}),
        Example("multiclass"),
        Example(options={"sampling": "allocation", "passes": 2}),
    )

    def plan(self, problem: Problem, privacy: PrivacySpec, options: Scs13Options) -> NoisyStepsPlan:
        """Fix the steps and the noise."""
        return _plan_scs13(problem, privacy, options)


@register
class Bst14(PrivateMethod[Bst14Options]):
    """Noise on the gradients of Poisson batches, with the steps of its publication."""

    name = "bst14"
    comparison = True
    summary = "SGD with noise on Poisson batches, by the steps of its publication"
    cards = (
        Card(
            theorem='T = k ceil(n/b) steps over Poisson batches ("Poisson batches"; Bassily, Smith & '
            "Thakurta 2014 with the constant number of passes of Wu et al. 2017, Algorithms 4 and"
            " 5).",
            sensitivity="A unit moves the sum of a batch that it is in by m L when it comes or goes. Account:"
            ' privacy loss distributions ("Subsampled Gaussian noise") or, with `accountant = '
            'advanced`, strong composition ("BST14").',
            checked="delta > 0 and large enough for the sampler; rounding of a sum below a hundredth of a"
            " unit's share. Convex: R = 10 by default.",
            charged="(epsilon, delta).",
            corrected="(1) The published noise has iota = 1, the sensitivity under `add_remove`, but claims"
            " replace-one: D = 2 L. (2) delta_1 = delta/(1 + qT) in place of delta/T, which "
            "wastes noise, and exceeds delta where q > 1 - 1/T. (3) G has the noise with its "
            "sensitivity in it. (4) Coins are independent, and the divisor is the nominal b. "
            "`dpml plan` prints the published multiplier beside ours.",
        ),
    )
    options = Bst14Options
    examples = (Example(), Example(options={"passes": 2, "accountant": "advanced"}), Example("multiclass"))

    def plan(self, problem: Problem, privacy: PrivacySpec, options: Bst14Options) -> NoisyStepsPlan:
        """Fix the steps and the noise."""
        return _plan_bst14(problem, privacy, options)


@register
class DpSgd(PrivateMethod[DpSgdOptions]):
    """Noise on the gradients of batches drawn at random, with the steps that do best."""

    name = "dp-sgd"
    summary = "SGD with noise on batches drawn at random, by the steps that do best"
    cards = (
        Card(
            theorem='As bst14, with the steps that do best ("Poisson batches", "Subsampled Gaussian noise"); '
            "or a unit is in exactly one batch of a pass, drawn at random "
            '("Batches by random allocation", "Random allocation"), which is the default where its noise is '
            "at most that of Poisson batches.",
            sensitivity="m C: C = 1/2 for logistic by default, sqrt(1 - 1/K) for softmax, the norm of the "
            "gradient at the zero model.",
            checked="As bst14.",
            charged="(epsilon, delta).",
            post_processing="Steps, momentum, the average of the last quarter.",
            corrected="Against common implementations: (1) batches are really Poisson, or every unit draws "
            "its own; none is cut by count from a shuffled pass. (2) The sum is divided by the nominal b, "
            "never by the realised batch size; empty batches are steps with noise. (3) With units there is "
            "one coin, or one draw, a unit, not a row. (4) The account is for zero-out neighbours with n "
            "public, converted for "
            "`replace_one`.",
        ),
    )
    options = DpSgdOptions
    examples = (
        Example(),
        Example(options={"passes": 2, "momentum": 0.5}),
        Example("multiclass"),
        Example("regression"),
        Example(options={"sampling": "allocation", "passes": 2}),
    )

    def plan(self, problem: Problem, privacy: PrivacySpec, options: DpSgdOptions) -> NoisyStepsPlan:
        """Fix the steps and the noise."""
        return _plan_dp_sgd(problem, privacy, options)


def _plan_scs13(problem: Problem, privacy: PrivacySpec, options: Scs13Options) -> NoisyStepsPlan:
    lambda_ = options.lambda_ or 0.0
    schedule = options.schedule or ("strongly_convex" if lambda_ > 0.0 else "inverse_sqrt")
    require_schedule(Scs13.name, options.schedule)
    require_sampling(Scs13.name, options.sampling, "shuffled")
    shared_options.refuse_unused_tail(options.tail, options.average or "none")
    shared_options.refuse_unused_step_options(options, schedule)
    clipped = clipped_loss(problem, options, CLIP)
    batch_size, passes = options.batch_size or BATCH_SIZE, options.passes or PASSES
    sgd = make_sgd(
        problem,
        loss=clipped.loss,
        schedule=schedule,
        step_size=options.step_size or FIRST_STEP,
        batch_size=batch_size,
        passes=passes,
        lambda_=lambda_,
        radius=options.radius,
        average=options.average,
        tail=options.tail,
        fresh_order=options.fresh_order,
        momentum=options.momentum or 0.0,
        capped=False,
    )
    if schedule == "strongly_convex" and options.radius is None:
        sgd = replace(sgd, radius=clipped.bound / sgd.lambda_)
    delta = privacy.delta_for(problem.n_units)
    if options.sampling == "allocation":
        require_batch_size(problem, options.batch_size)
        batch_size = min(batch_size, max(problem.n_units, 1))
        noise = allocated_noise(problem, privacy, clipped, batch_size, passes, options.fresh_order or None)
        return plan_of(Scs13.name, problem, privacy, clipped, sgd, noise, delta, None)
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
    return plan_of(Scs13.name, problem, privacy, clipped, sgd, noise, delta, None)


def _plan_bst14(problem: Problem, privacy: PrivacySpec, options: Bst14Options) -> NoisyStepsPlan:
    """Steps by the publication: 2R/(G sqrt t) on sums, or 1/(lambda t) on averages.

    Source: privacy/README.md, "BST14".
    """
    shared_options.refuse_unused_tail(options.tail, options.average or "none")
    require_batch_size(problem, options.batch_size)
    clipped = clipped_loss(problem, options, CLIP)
    batch_size, passes = options.batch_size or BATCH_SIZE, options.passes or PASSES
    noise, warning = poisson_noise(problem, privacy, clipped, batch_size, passes, options.accountant or "pld")
    lambda_ = options.lambda_ or 0.0
    radius = options.radius or (clipped.bound / lambda_ if lambda_ > 0.0 else RADIUS)
    gradient_norm = math.hypot(math.sqrt(problem.n_weights) * noise.scale, batch_size * clipped.bound)
    sgd = make_sgd(
        problem,
        loss=clipped.loss,
        schedule="strongly_convex" if lambda_ > 0.0 else "inverse_sqrt",
        step_size=batch_size * 2.0 * radius / gradient_norm,
        batch_size=batch_size,
        passes=passes,
        lambda_=lambda_,
        radius=radius,
        average=options.average,
        tail=options.tail,
        capped=False,
    )
    if noise.steps > 0:
        multipliers = step_noise.bst14_multipliers(
            privacy.epsilon,
            privacy.delta_for(problem.n_units),
            sampling_of(problem, batch_size),
            problem.n_units,
            noise.steps,
            privacy.relation,
        )
        noise = replace(noise, multipliers=multipliers)
    return plan_of(
        Bst14.name, problem, privacy, clipped, sgd, noise, privacy.delta_for(problem.n_units), warning
    )


def _plan_dp_sgd(problem: Problem, privacy: PrivacySpec, options: DpSgdOptions) -> NoisyStepsPlan:
    schedule, average = options.schedule or "constant", options.average or "tail"
    require_schedule(DpSgd.name, options.schedule)
    require_sampling(DpSgd.name, options.sampling, "poisson")
    shared_options.refuse_unused_tail(options.tail, average)
    shared_options.refuse_unused_step_options(options, schedule)
    require_batch_size(problem, options.batch_size)
    clipped = clipped_at_zero(problem, options)
    n_units = max(problem.n_units, 1)
    batch_size = options.batch_size or min(math.ceil(n_units / DP_SGD_STEPS), LARGEST_BATCH)
    passes = options.passes or PASSES
    reason = ""
    if options.sampling is None:
        noise, warning, reason = least_noise(problem, privacy, clipped, batch_size, passes)
    elif options.sampling == "allocation":
        noise, warning = allocated_noise(problem, privacy, clipped, batch_size, passes, None), None
    else:
        noise, warning = poisson_noise(problem, privacy, clipped, batch_size, passes)
    momentum = MOMENTUM if options.momentum is None else options.momentum
    lambda_ = options.lambda_ or 0.0
    first_step = _first_step(problem, clipped, noise, schedule, batch_size, momentum, lambda_)
    sgd = make_sgd(
        problem,
        loss=clipped.loss,
        schedule=schedule,
        step_size=options.step_size or first_step,
        batch_size=batch_size,
        passes=passes,
        lambda_=lambda_,
        radius=options.radius,
        average=average,
        tail=options.tail or TAIL,
        momentum=momentum,
        capped=False,
    )
    plan = plan_of(
        DpSgd.name, problem, privacy, clipped, sgd, noise, privacy.delta_for(problem.n_units), warning
    )
    return replace(plan, reason=reason)


def _first_step(
    problem: Problem,
    clipped: Clipped,
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
    if problem.task == "regression":  # labels in [-1, 1] tolerate less noise than logits
        budget = min(budget, math.pow(budget, 0.75))
    # sum of 1 / sqrt t over t = 1 .. T is at most 2 sqrt T - 1
    units = float(noise.steps) if schedule == "constant" else 2.0 * math.sqrt(noise.steps) - 1.0
    return min((1.0 - momentum) * budget / units, longest)
