# SPDX-License-Identifier: PostgreSQL
"""Dual coordinate descent: scd without noise, dp-scd and seq-dp-scd with noise on the sum of rows and duals.

Every row has one number, its dual; the model is v/(lambda n), v the sum of all rows times their duals
(Shalev-Shwartz & Zhang 2013; Damaskinos et al. 2021). The duals never leave the server.

Defaults of dp-scd come from public numbers. Let kappa = D/mu, D = 2 m (replace_one) or m. The noise of P
passes in the score of a row of norm 1 has standard deviation sqrt(T) sigma/(lambda n), sigma the noise on a
batch's sum; that is nearly kappa P C/(lambda n) for updates of at most C, if the losses did not damp it. Let
r = b/(lambda n), b the batch size: a full update goes 1/(1 + r) of the way from a row's score to its label,
so C = g/(1 + r) shortens the updates of residuals above g. Given r and g, the noise in the score is about
kappa P g/b. So b = a g kappa P makes it 1/a, with a = (500 kappa/n)^(1/4): the fewer rows, the less noise is
good for. But b is at least n/(kappa^2 P): below it a batch has less noise than its own bound, and sampling no
longer helps. P is 20, or up to 50 where that makes both equal. lambda is b/(r n). The constants were best
over the training rows of public data sets; twice or half of each is nearly as good.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar

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
from pg_dpml.training.losses import choose_loss, losses_of, require_one_score
from pg_dpml.training.method import Baseline, Card, Example, PrivateMethod, register
from pg_dpml.training.options import TINY, Flag, Real, option
from pg_dpml.training.plan import Plan, Problem, budget_warnings, privacy_warnings
from pg_dpml.training.scd import Scd, require_room, run_passes
from pg_dpml.training.sgd import average_start
from pg_dpml.training.shared_options import LossOptions

__all__ = ["NoisyScdPlan", "ScdPlan"]

LOSSES = losses_of("binary", "regression", smooth=False)
"""Losses of each task; a dual needs no gradient."""

MOST_PASSES = 1000
GAP = 1e-8
"""Of scd: relative duality gap at which it stops, and the most passes until then."""

LARGEST_BATCH = 2**21
"""Of dp-scd by default: the plain sum of so many changes is still precise."""

LEAST_PASSES, MOST_PRIVATE_PASSES = 20, 50
REACH = {"binary": 0.5, "regression": 0.25}
RATIO = 25.0
FEW_ROWS = 500.0
TAIL = 0.25
"""Of dp-scd: bounds on P, g by task, r, n/kappa at which a is 1, and the share of the passes whose v are
averaged."""

SEQUENTIAL_PASSES = 1
SEQUENTIAL_BATCH = 1
SEQUENTIAL_CLIP = 0.1
SEQUENTIAL_NOISE = {"binary": 3.0, "regression": 0.3}
"""Of seq-dp-scd: the noise on v grows with the square root of the batch size, and with the passes; lambda
makes that in a score SEQUENTIAL_NOISE."""


@dataclass(frozen=True)
class ScdPlan(Plan):
    """Passes until the duality gap is small."""

    work: Scd
    tolerance: float = field(kw_only=True)

    goal: ClassVar[str] = "its duality gap was as small as its tolerance"

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
        """Refuse more duals, or for Poisson batches rows, than the server may hold in memory."""
        require_room(session, source, self.problem, in_memory=self.work.sampling is not None)

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

    lambda_: float | None = shared_options.lambda_("by n, epsilon, passes and batch_size; more than 0")
    passes: int | None = shared_options.passes()
    batch_size: int | None = shared_options.batch_size()
    update_clip: float | None = shared_options.update_clip()
    average: str | None = shared_options.average()
    tail: float | None = shared_options.tail()


@dataclass(frozen=True)
class DpScdOptions(NoisyScdOptions):
    """Options of dp-scd."""

    dual_noise: bool = option(
        Flag(),
        "Noise on the duals too, as in the publication, and sqrt 2 times as much; the guarantee is the same.",
        default=False,
    )


@register
class ScdMethod(Baseline[ScdOptions]):
    """Exact updates of one row at a time (SDCA), until the duality gap is small."""

    name = "scd"
    summary = "not private: dual coordinate descent until the duality gap is small"
    losses = LOSSES
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
            lambda_=options.lambda_ or 1.0 / max(problem.n_units, 1),
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
    losses = LOSSES
    cards = (
        Card(
            theorem="Every unit has its duals to itself: they are never released, and what a unit adds to "
            'v, the sum of all rows times their duals, in a step is bounded whatever they are ("Coordinate '
            'descent"; Damaskinos et al. 2021). So T steps over Poisson batches are T subsampled Gaussian '
            'steps ("Subsampled Gaussian noise").',
            sensitivity="A unit adds at most m C to v, C = `update_clip`, in a step whose batch it is in: "
            "D = 2 m C (`replace_one`) or m C. With `dual_noise` sqrt(m^2 + m) in place of m, for duals and "
            "v as one vector; the guarantee is the same.",
            checked="As dp-sgd; lambda > 0; all rows fit into `dpml.work_mem`, each "
            "counted as if all its features were set, since the real length is private.",
            charged="(epsilon, delta).",
            post_processing="The model v/(lambda n).",
            corrected="(1) The published account takes amplification by sampling for duals whose noise "
            "shows which rows were in the batch, and for batches that are cut from a shuffled pass. Here "
            "batches are Poisson and duals are internal. (2) So noise goes to v alone, without the sqrt 2. "
            "(3) The batch size in the update is the nominal b, never the realised one. (4) Constraints of "
            "the dual are kept before the update is scaled, not after the noise.",
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
        reach = REACH[problem.task]
        change = privacy.relation.gradient_change(problem.max_rows_per_unit)
        kappa = change / composed.run_mu(privacy.epsilon, delta, 1)
        passes, batch_size = _passes_and_batch_size(n_units, kappa, reach, options.passes)
        batch_size = options.batch_size or batch_size
        lambda_ = options.lambda_ or batch_size / (RATIO * n_units)
        clip = options.update_clip or reach / (1.0 + batch_size / (lambda_ * n_units))
        scd = Scd(
            loss=loss,
            lambda_=lambda_,
            batch_size=batch_size,
            passes=passes,
            average_from=_average_from(options, passes),
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
        warnings = budget_warnings(problem, n_units / kappa) + ([] if warning is None else [warning])
        return _plan_of(self.name, problem, privacy, scd, noise, warnings)


@register
class SeqDpScd(PrivateMethod[NoisyScdOptions]):
    """Updates that see each other in shuffled batches, with noise on the duals and on their sum."""

    name = "seq-dp-scd"
    comparison = True
    summary = "dual coordinate descent whose updates see each other, with noise on duals and sum"
    losses = LOSSES
    cards = (
        Card(
            theorem="Updates of a batch see each other, so a row moves the duals of others: noise goes to "
            'the duals of the batch and to v ("Batches whose updates see each other"; Damaskinos et al. '
            "2021, Algorithm 3). A unit is in one batch of each shuffled pass, so k passes are k releases.",
            sensitivity="S = 2 C sqrt(r (r + 1)), r = m b the rows of a batch, under both relations, for "
            "both vectors together. sigma = sqrt(k) S/mu(epsilon, delta), exactly.",
            checked="delta > 0 and large enough for the sampler; rounding of a sum below a hundredth of S; "
            "lambda > 0.",
            charged="(epsilon, delta).",
            post_processing="The model v/(lambda n).",
            corrected="(1) Batches are disjoint and there is no amplification by sampling: the published "
            "code shuffles and accounts as if it sampled. (2) r counts all rows of a batch of units. Noise "
            "is far larger than that of dp-scd: the method is here to compare.",
        ),
    )
    options = NoisyScdOptions
    examples = (Example(options={"loss": "hinge"}), Example("regression", {"passes": 1}))

    def plan(self, problem: Problem, privacy: PrivacySpec, options: NoisyScdOptions) -> NoisyScdPlan:
        """Fix the steps and the noise."""
        loss = _loss(self.name, problem, options, "auto, dp-gd or dp-sgd")
        require_batch_size(problem, options.batch_size)
        passes, clip = options.passes or SEQUENTIAL_PASSES, options.update_clip or SEQUENTIAL_CLIP
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
        stddev = math.sqrt(noise.steps) * noise.scale
        scd = Scd(
            loss=loss,
            lambda_=options.lambda_ or stddev / (SEQUENTIAL_NOISE[problem.task] * n_units) or 1.0,
            batch_size=batch_size,
            passes=passes,
            average_from=_average_from(options, passes),
            max_rows_per_unit=problem.max_rows_per_unit if problem.unit is not None else None,
            sequential=True,
            update_clip=clip,
        )
        return _plan_of(self.name, problem, privacy, scd, noise, [])


def _loss(method: str, problem: Problem, options: ScdOptions | NoisyScdOptions, others: str) -> Loss:
    """The loss of a run; several classes, and a lambda of 0 or next to it, are refused."""
    require_one_score(method, problem, others)
    if options.lambda_ is not None and options.lambda_ < TINY:
        raise SpecError(
            f"lambda must be at least {TINY:g} for method = {method}, whose model is v/(lambda n): leave "
            f"lambda out, or take method = {others}"
        )
    return choose_loss(problem, options, {}, losses=LOSSES)


def _passes_and_batch_size(n_units: int, kappa: float, reach: float, passes: int | None) -> tuple[int, int]:
    """Default batch size of dp-scd, and its default number of passes where none is given."""
    pull = (FEW_ROWS * kappa / n_units) ** 0.25 * reach * kappa
    needed = n_units / kappa**2
    both_equal = math.sqrt(needed / pull)
    passes = passes or math.ceil(min(max(both_equal, LEAST_PASSES), MOST_PRIVATE_PASSES))
    return passes, math.ceil(min(max(pull * passes, needed / passes), n_units, LARGEST_BATCH))


def _average_from(options: NoisyScdOptions, passes: int) -> int:
    """First pass whose v enters the average; 0 releases the last."""
    average = options.average or "tail"
    shared_options.refuse_unused_tail(options.tail, average)
    return average_start(average, options.tail or TAIL, passes)


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
    return NoisyScdPlan(method, problem, scd, problem.guarantee(privacy, delta), noise, tuple(warnings))
