# SPDX-License-Identifier: PostgreSQL
"""Dual coordinate descent: scd without noise, dp-scd and seq-dp-scd with noise on the sum of rows and duals.

Every row has one number, its dual; the model is v/(lambda n), v the sum of all rows times their duals
(Shalev-Shwartz & Zhang 2013; Damaskinos et al. 2021). The duals never leave the server.

Defaults come from public numbers. The noise of dp-scd in the score of a row of norm 1 has standard deviation
sqrt(T) sigma/(lambda n), sigma the noise on a batch's sum. That is nearly k C D/(lambda n mu) for k passes
and updates of at most C, whatever the batch size is, with D = 2 m (replace_one) or m. So lambda is taken such
that this is `SCORE_NOISE`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from pg_dpml.blocks.source import Source
from pg_dpml.database.session import Session
from pg_dpml.errors import SpecError
from pg_dpml.kernels import Loss
from pg_dpml.methods.noisy_steps import require_batch_size, sampling_of
from pg_dpml.privacy.noise import composed, coordinates
from pg_dpml.privacy.noise.coordinates import DualNoise
from pg_dpml.spec.privacy import PrivacySpec
from pg_dpml.training import shared_options
from pg_dpml.training.job import Job, Result
from pg_dpml.training.losses import choose_loss
from pg_dpml.training.method import Baseline, Card, Example, PrivateMethod, register
from pg_dpml.training.options import Flag, Real, option
from pg_dpml.training.plan import Plan, Problem, privacy_warnings
from pg_dpml.training.scd import Scd, require_room, run_passes
from pg_dpml.training.shared_options import LossOptions

__all__ = ["NoisyScdPlan", "ScdPlan"]

LOSSES = {"binary": ("logistic", "huber_svm", "hinge"), "regression": ("squared",)}
"""Losses of each task, the default first."""

MOST_PASSES = 1000
GAP = 1e-8
"""Of scd: relative duality gap at which it stops, and the most passes until then."""

BATCHES = 50
"""Steps of a pass of dp-scd: fewer make a batch noisier than its sum needs, more are slower."""

LARGEST_BATCH = 2**21
"""Of dp-scd by default: the plain sum of so many changes is still precise."""

PASSES = 10
CLIP = 0.2
SCORE_NOISE = 0.5
"""Of dp-scd."""

SEQUENTIAL_PASSES = 2
SEQUENTIAL_BATCH = 1
"""Of seq-dp-scd: its noise on v, over all steps, grows with the square root of the batch size."""

LEAST_LAMBDA, MOST_LAMBDA = 1e-6, 10.0
"""Of the defaults."""

WARN_SCORE_NOISE = 2.0
"""Noise in a score above which a model says little: logits of real models are a few units."""


@dataclass(frozen=True)
class ScdPlan(Plan):
    """Passes until the duality gap is small."""

    work: Scd
    tolerance: float = field(kw_only=True)

    def run(self, job: Job) -> Result:
        """Take passes until the relative duality gap is `tolerance`, or all are taken.

        Data-dependent, so never used in a private run.
        """
        return Result(*run_passes(job, self.work, self.tolerance))


@dataclass(frozen=True)
class NoisyScdPlan(Plan):
    """Steps that each carry noise."""

    work: Scd
    noise: DualNoise

    def require_room(self, session: Session, source: Source) -> None:
        """Refuse Poisson batches of more rows than the server may hold in memory."""
        if self.work.sampling is not None:
            require_room(session, source, self.problem)

    def run(self, job: Job) -> Result:
        """Take the steps on the packed rows; the sum that the server returns carries its noise."""
        return Result(*run_passes(job, self.work))


@dataclass(frozen=True)
class ScdOptions(LossOptions):
    """Options of scd."""

    lambda_: float | None = shared_options.lambda_("1/n")
    passes: int | None = shared_options.passes(f"at most {MOST_PASSES}")
    tolerance: float | None = option(
        Real(0.0, 1.0), "Stop when the duality gap is at most this share of the objective.", f"{GAP:g}"
    )


@dataclass(frozen=True)
class NoisyScdOptions(LossOptions):
    """What the steps of both private methods here have."""

    lambda_: float | None = shared_options.lambda_("by n, epsilon, passes and update_clip; more than 0")
    passes: int | None = shared_options.passes()
    batch_size: int | None = shared_options.batch_size()
    update_clip: float | None = shared_options.update_clip()


@dataclass(frozen=True)
class DpScdOptions(NoisyScdOptions):
    """Options of dp-scd."""

    dual_noise: bool = option(
        Flag(),
        "The noise as published, on the duals too, and sqrt 2 times as much; to compare.",
        default=False,
    )


@register
class ScdMethod(Baseline[ScdOptions]):
    """Exact updates of one row at a time (SDCA), until the duality gap is small."""

    name = "scd"
    summary = "not private: dual coordinate descent until the duality gap is small"
    cards = ()
    options = ScdOptions
    examples = (
        Example(options={"passes": 20}),
        Example(options={"loss": "hinge", "passes": 3}),
        Example("regression", {"passes": 20}),
    )

    def plan(self, problem: Problem, options: ScdOptions) -> ScdPlan:
        """Fix the steps, and the most passes to take."""
        scd = Scd(
            loss=_loss(self.name, problem, options, "lbfgs or noiseless"),
            n_features=problem.n_features,
            lambda_=_lambda(options.lambda_, 1.0 / max(problem.n_units, 1)),
            batch_size=1,
            passes=options.passes or MOST_PASSES,
            shuffled=True,
            exact=True,
        )
        tolerance = GAP if options.tolerance is None else options.tolerance
        return ScdPlan(self.name, problem, scd, None, None, tolerance=tolerance)


@register
class DpScd(PrivateMethod[DpScdOptions]):
    """Independent updates in Poisson batches, with noise on the sum alone (Damaskinos et al. 2021)."""

    name = "dp-scd"
    summary = "dual coordinate descent, with noise on the sum of rows and duals in every step"
    cards = (
        Card(
            theorem="Every unit has its duals to itself: they are never released, and what a unit adds to v "
            'in a step is bounded whatever they are ("Coordinate descent"; Damaskinos et al. 2021). So T '
            'steps over Poisson batches are T subsampled Gaussian steps ("Subsampled Gaussian noise").',
            sensitivity="m C for v, C = `update_clip`, when a unit that is in the batch comes or goes. With "
            "`dual_noise` sqrt(m^2 + m) C for duals and v as one vector.",
            checked="As dp-sgd; lambda > 0; all rows fit into `dpml.work_mem`, however long they are.",
            charged="(epsilon, delta).",
            post_processing="The model v/(lambda n).",
            corrected="(1) The published account takes amplification by sampling for duals whose noise "
            "shows which rows were in the batch, and for batches that are cut from a shuffled pass. Here "
            "batches are Poisson and duals are internal. (2) So noise goes to v alone, without the sqrt 2. "
            "(3) L in the update is the nominal batch size, never the realised one. (4) Constraints of the "
            "dual are kept before the update is scaled, not after the noise.",
        ),
    )
    options = DpScdOptions
    examples = (
        Example(),
        Example(options={"loss": "hinge", "passes": 2, "dual_noise": True}),
        Example("regression"),
    )

    def plan(self, problem: Problem, privacy: PrivacySpec, options: DpScdOptions) -> NoisyScdPlan:
        """Fix the steps and the noise."""
        loss = _loss(self.name, problem, options, "auto, dp-gd or dp-sgd")
        require_batch_size(problem, options.batch_size)
        n_units, delta = max(problem.n_units, 1), privacy.delta_for(problem.n_units)
        change = privacy.relation.gradient_change(problem.max_rows_per_unit)
        budget = n_units * composed.run_mu(privacy.epsilon, delta, 1) / change
        passes, clip = options.passes or PASSES, options.update_clip or CLIP
        scd = Scd(
            loss=loss,
            n_features=problem.n_features,
            lambda_=_lambda(options.lambda_, passes * clip / (SCORE_NOISE * budget)),
            batch_size=options.batch_size or min(math.ceil(n_units / BATCHES), LARGEST_BATCH),
            passes=passes,
            max_rows_per_unit=problem.max_rows_per_unit if problem.unit is not None else None,
            update_clip=clip,
        )
        noise, warning = coordinates.calibrate_independent(
            update_clip=clip,
            dual_noise=options.dual_noise,
            relation=privacy.relation,
            passes=passes,
            steps=scd.steps(problem.n_units, passes),
            sampling=sampling_of(problem, scd.batch_size),
            n_units=problem.n_units,
            max_rows_per_unit=problem.max_rows_per_unit,
            n_features=problem.n_features,
            epsilon=privacy.epsilon,
            delta=delta,
        )
        return _plan_of(self.name, problem, privacy, scd, noise, [] if warning is None else [warning])


@register
class SeqDpScd(PrivateMethod[NoisyScdOptions]):
    """Updates that see each other in shuffled batches, with noise on the duals and on their sum."""

    name = "seq-dp-scd"
    summary = "dual coordinate descent whose updates see each other, with noise on duals and sum"
    cards = (
        Card(
            theorem="Updates of a batch see each other, so a row moves the duals of others: noise goes to "
            'the duals of the batch and to v ("Batches whose updates see each other"; Damaskinos et al. '
            "2021, Algorithm 3). A unit is in one batch of each shuffled pass, so k passes are k releases.",
            sensitivity="S = 2 C sqrt(R (R + 1)), R = m L the rows of a batch, under both relations, for "
            "both vectors together. sigma = sqrt(k) S/mu(epsilon, delta), exactly.",
            checked="delta > 0 and large enough for the sampler; rounding of a sum below a hundredth of S; "
            "lambda > 0.",
            charged="(epsilon, delta).",
            post_processing="The model v/(lambda n).",
            corrected="(1) Batches are disjoint and there is no amplification by sampling: the published "
            "code shuffles and accounts as if it sampled. (2) R counts all rows of a batch of units. Noise "
            "is far larger than that of dp-scd: the method is here to compare.",
        ),
    )
    options = NoisyScdOptions
    examples = (Example(options={"batch_size": 4}), Example("regression", {"passes": 1}))

    def plan(self, problem: Problem, privacy: PrivacySpec, options: NoisyScdOptions) -> NoisyScdPlan:
        """Fix the steps and the noise."""
        loss = _loss(self.name, problem, options, "auto, dp-gd or dp-sgd")
        require_batch_size(problem, options.batch_size)
        passes, clip = options.passes or SEQUENTIAL_PASSES, options.update_clip or CLIP
        batch_size = options.batch_size or SEQUENTIAL_BATCH
        n_units = max(problem.n_units, 1)
        noise = coordinates.calibrate_sequential(
            update_clip=clip,
            passes=passes,
            steps=passes * math.ceil(problem.n_units / batch_size),
            batch_rows=min(batch_size, n_units) * problem.max_rows_per_unit,
            n_features=problem.n_features,
            epsilon=privacy.epsilon,
            delta=privacy.delta_for(problem.n_units),
        )
        scd = Scd(
            loss=loss,
            n_features=problem.n_features,
            lambda_=_lambda(options.lambda_, math.sqrt(noise.steps) * noise.scale / (SCORE_NOISE * n_units)),
            batch_size=batch_size,
            passes=passes,
            max_rows_per_unit=problem.max_rows_per_unit if problem.unit is not None else None,
            sequential=True,
            update_clip=clip,
        )
        return _plan_of(self.name, problem, privacy, scd, noise, [])


def _loss(method: str, problem: Problem, options: LossOptions, others: str) -> Loss:
    """The loss of a run; several classes are refused, with the methods that take them."""
    if problem.task not in LOSSES:
        raise SpecError(
            f"method = {method} takes labels of two classes, or numbers, not several classes: take "
            f"method = {others}"
        )
    return choose_loss(problem, options, {}, losses=LOSSES)


def _lambda(given: float | None, default: float) -> float:
    """Lambda, which the dual needs to be above 0."""
    if given == 0.0:
        raise SpecError("lambda must be above 0 in coordinate descent, whose model is v/(lambda n)")
    return min(max(default, LEAST_LAMBDA), MOST_LAMBDA) if given is None else given


def _plan_of(
    method: str, problem: Problem, privacy: PrivacySpec, scd: Scd, noise: DualNoise, warnings: list[str]
) -> NoisyScdPlan:
    """The plan of steps with their noise."""
    scd = replace(scd, noise_scale=noise.scale, dual_noise=noise.dual_noise, sampling=noise.sampling)
    if noise.steps > 0:
        stddev = math.sqrt(noise.steps) * noise.scale / (scd.lambda_ * problem.n_units)
        noise = replace(noise, score_stddev=stddev)
    delta = privacy.delta_for(problem.n_units)
    warnings = [*privacy_warnings(problem, privacy, delta), *warnings]
    if noise.score_stddev > WARN_SCORE_NOISE:
        warnings.append(
            f"the noise in a row's score has a standard deviation of up to {noise.score_stddev:.2g}, "
            "as large as the scores of a good model: expect little accuracy; take a larger lambda, a smaller "
            "update_clip or fewer passes"
        )
    return NoisyScdPlan(method, problem, scd, problem.guarantee(privacy, delta), noise, tuple(warnings))
