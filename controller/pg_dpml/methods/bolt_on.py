# SPDX-License-Identifier: PostgreSQL
"""Bolt-on output perturbation: train without noise in the database, then one noise on the finished model.

Wu, Li, Kumar, Chaudhuri, Jha & Naughton 2017, Algorithms 1 and 2, with the
sensitivity of privacy/README.md, "Sensitivity of any schedule", in place of
the published bounds; or, with lambda > 0, the minimiser itself in place of
SGD's last iterate, by "Certified minimiser".

Defaults of SGD are functions of public numbers (n, d, classes, epsilon, delta) and of
the rule of the budget. With N = n mu / D, mu as in `mechanisms.best_mu`, a total step length tau = c N makes
the noise in the score of a row of norm 1 have standard deviation c, whatever
the batch size and the number of passes: only tau matters, so the passes are the
fewest that keep a step well below its cap.

Long because its two solvers share options, noise and warnings.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

from pg_dpml import kernels
from pg_dpml.errors import SpecError
from pg_dpml.kernels import FloatArray, Loss
from pg_dpml.methods.model_averaging import ShardedSgd, run_on_shards, sgd_of_shards
from pg_dpml.privacy import knorm, resolution
from pg_dpml.privacy.choice import NoiseChoice, choose_noise
from pg_dpml.privacy.meaning import share_text
from pg_dpml.privacy.noise import output
from pg_dpml.privacy.noise.output import ReleaseNoise
from pg_dpml.spec.privacy import PrivacySpec
from pg_dpml.training import shared_options
from pg_dpml.training.certified import Certified, Objective, make_certified
from pg_dpml.training.job import Job, Result
from pg_dpml.training.losses import choose_loss
from pg_dpml.training.method import Card, Example, PrivateMethod, register
from pg_dpml.training.options import Choice, Flag, option
from pg_dpml.training.plan import Plan, Problem, privacy_warnings
from pg_dpml.training.sgd import Sgd, make_sgd, run_passes
from pg_dpml.training.shared_options import RegularisedOptions, SgdOptions

__all__ = [
    "BoltOn",
    "BoltOnOptions",
    "BoltOnPlan",
    "release",
]

DEFAULT_CLIP = {"logistic": 0.5, "squared": 0.25}
"""Derivative clip: for logistic the gradient of the zero model, so that no first step is shortened."""

SCORE_NOISE = 0.4
"""c above: more step length would cost more accuracy by its noise than it gains by training."""

WIDEST_BATCH = 50
NARROWEST_BATCH = 10
MOST_PASSES = 20
PASSES_WITH_LAMBDA = 10
"""In one pass the last batch is not contracted by lambda; ten spread every row over the run."""

STRONGLY_CONVEX_PASSES = 5
DEFAULT_RADIUS = 1000.0
"""Far beyond the norm of a useful model; it keeps the rounding of very long runs within its allowance."""

WARN_ROUNDING = 0.1
"""tau over D/n above which rounding, and not the rows, decides on the noise of a certified minimiser."""

WARN_STEP_SUM = 20.0
"""Total step length below which a model hardly leaves zero."""

WARN_SHARE_OF_STEPS = 0.1
"""Share of the budget's step length below which the passes over small shards waste most of epsilon."""

WARN_SCORE_NOISE = 1.0
"""Noise in a score above which a model says little: logits of real models are a few units."""


SGD_OPTIONS = (
    *(name for name in SgdOptions.declared() if name not in RegularisedOptions.declared()),
    "by_shards",
)
"""Options that only the passes of SGD use."""


@dataclass(frozen=True)
class BoltOnOptions(SgdOptions):
    """Options of bolt-on."""

    solver: str | None = option(
        Choice(("sgd", "certified")),
        "How the model is found: passes of SGD, or the minimiser itself, which needs lambda > 0.",
        "certified with lambda above 0 and none of "
        + ", ".join(name.replace("_", "-") for name in SGD_OPTIONS)
        + "; else sgd",
    )
    by_shards: bool = option(
        Flag(),
        "Train on each shard of a table distributed by Citus, on its worker, and release the mean of these "
        "models. The values of the column that distributes the table become public.",
        default=False,
    )

    def with_fixed_passes(self) -> BoltOnOptions:
        """SGD where lambda would make the certified minimiser the default."""
        return self if self.solver is not None else replace(self, solver="sgd")


@dataclass(frozen=True)
class BoltOnPlan(Plan):
    """A run whose finished model is given noise once."""

    noise: ReleaseNoise


@dataclass(frozen=True)
class _SgdPlan(BoltOnPlan):
    work: Sgd

    def run(self, job: Job) -> Result:
        """Take all passes, then add the noise."""
        weights, passes = run_passes(job, self.work)
        return Result(release(self, weights), passes)


@dataclass(frozen=True)
class _ShardsPlan(BoltOnPlan):
    work: ShardedSgd

    by_shards: ClassVar[bool] = True

    def run(self, job: Job) -> Result:
        """Take all passes on each shard, then add the noise to the mean of the models."""
        return Result(release(self, run_on_shards(job, self.work)), self.work.passes)


@dataclass(frozen=True)
class _CertifiedPlan(BoltOnPlan):
    work: Certified

    needs_order: ClassVar[bool] = False

    def run(self, job: Job) -> Result:
        """Find the minimiser, then add the noise; the number of passes is not disclosed."""
        weights, _ = self.work.objective.minimise(job, self.work.goal)
        return Result(release(self, weights), None)


@register
class BoltOn(PrivateMethod[BoltOnOptions]):
    """Output perturbation."""

    name = "bolt-on"
    summary = "train without noise, then one noise on the finished model"
    cards = (
        Card(
            theorem="Output perturbation: plain SGD whose distance between neighbours is bounded by the "
            'recursion of "Growth" and "Sensitivity of any schedule"; one noise on the finished '
            "model (Wu et al. 2017, Algorithms 1 and 2).",
            sensitivity="The recursion, in C, over the very step sizes that the aggregate takes. Sampling is "
            "one random order (or a fresh one a pass), without amplification.",
            checked="Every step at most 1/(beta + lambda); passes fixed beforehand; rounding below a "
            "hundredth of the sensitivity; delta against the sampler.",
            charged="(epsilon, delta); with delta = 0, delta = dimension 2^-120.",
            corrected="(1) The strongly convex mini-batch bound is D/(lambda n) whatever b is: the "
            "published extra factor 1/b understates the noise b times. (2) The regulariser "
            "cancels between neighbours, so lambda R is not in the bound: half the published "
            "noise. (3) A short last batch is divided by the nominal b. (4) The K-norm direction "
            "is uniform on the sphere, not in the ball. (5) With units of m rows the smoothness "
            "of a step is m beta. (6) The number of passes never depends on the loss.",
        ),
        Card(
            title="solver = certified",
            theorem="Every table's answer lies within tau/lambda of its unique minimiser, minimisers of "
            'neighbours within D/(lambda n) ("Certified minimiser"); one noise on the answer.',
            sensitivity="D/(lambda n) + 2 tau/lambda, tau = D/(100 n) by default.",
            checked="lambda > 0, large enough for float64; no option of SGD; tau is raised to what the "
            "rounding of a gradient allows, by public numbers.",
            charged="(epsilon, delta); delta = 0 as above.",
            corrected="The number of passes depends on the rows, so it is neither stored nor shown, and "
            'there is no failure exit: "not reached, no release" would be a release.',
        ),
        Card(
            title="by_shards",
            theorem="Plain SGD on each shard of a distributed table by itself; the mean of the models, "
            'weighted by their units, gets one noise ("Models of shards").',
            sensitivity="max_p (n_p/n) Delta_p, with Delta_p by the recursion for the n_p units of shard p: "
            "with strongly convex steps, without an average, at most D/(lambda n). Rounding: that of a "
            "shard's run, and of the mean.",
            checked="All rows of a unit lie in one shard; the column of the distribution, or one generated "
            "from it, is neither a feature nor the label; the n_p are counted before the charge, and every "
            "pass counts the rows of every shard.",
            charged="(epsilon, delta); delta = 0 as above. In which shard a row lies is public: neighbours "
            "have the same values of the column by which the table is distributed.",
            corrected="Weights n_p/n in place of equal ones, with which the units of small shards would "
            "move the mean most.",
        ),
    )
    options = BoltOnOptions
    examples = (
        Example(),
        Example(options={"solver": "certified", "lambda_": 0.01}),
        Example(options={"passes": 2, "fresh_order": True, "average": "all"}),
        Example("multiclass", {"loss": "softmax"}),
        Example("regression"),
    )

    def plan(self, problem: Problem, privacy: PrivacySpec, options: BoltOnOptions) -> BoltOnPlan:
        """Fix the solver, its passes and the noise, calibrated to the run's own sensitivity."""
        loss = choose_loss(problem, options, DEFAULT_CLIP, options.clip)
        if _choose_solver(options) == "certified":
            return _plan_certified(problem, privacy, options, loss)
        return _plan_sgd(problem, privacy, options, loss)


@dataclass(frozen=True)
class _Steps:
    schedule: str
    step_size: float
    batch_size: int
    passes: int
    length: float = 0.0
    """Of all steps together, as the budget allows it; 0 where the schedule fixes it."""


def _gradient_change(problem: Problem, privacy: PrivacySpec, loss: Loss) -> float:
    """D of one unit of privacy. Source: privacy/README.md, "Unit of privacy"."""
    return problem.max_rows_per_unit * privacy.relation.gradient_change(loss.lipschitz)


def _choose_noise(problem: Problem, privacy: PrivacySpec) -> NoiseChoice:
    n_units = problem.n_units
    return choose_noise(
        problem.budget,
        privacy.epsilon,
        privacy.delta_for(n_units),
        problem.n_weights,
        privacy.relation,
        usual_delta=replace(privacy, delta=None).delta_for(n_units),
    )


def _step_budget(problem: Problem, privacy: PrivacySpec, loss: Loss) -> float:
    """Total step length tau at lambda = 0."""
    change = _gradient_change(problem, privacy, loss)
    kind = _choose_noise(problem, privacy).kind
    mu = knorm.best_mu(privacy.epsilon, privacy.delta_for(problem.n_units), problem.n_weights, kind)
    # finite for every clip, whose sensitivity may be refused later
    budget = min(max(problem.n_units, 1) * mu / change, 1e300)
    if loss.n_classes > 1:  # the noise of a difference of two scores
        return SCORE_NOISE / math.sqrt(2.0) * budget
    if loss.kind == "squared":  # labels in [-1, 1] stand less noise than logits do
        return SCORE_NOISE * min(math.pow(budget, 0.75), budget)
    return SCORE_NOISE * budget


def _default_steps(problem: Problem, privacy: PrivacySpec, options: BoltOnOptions, loss: Loss) -> _Steps:
    """Schedule, step size, batch size and passes, as far as the user left them open."""
    lambda_ = options.lambda_ or 0.0
    cap = 1.0 / (problem.max_rows_per_unit * loss.smoothness + lambda_)
    tau = _step_budget(problem, privacy, loss)
    n_units = max(problem.n_units, 1)
    # of one model: its share in the mean makes up for what fewer units move it more
    n_own = max(*problem.shards.units, 1) if options.by_shards and problem.shards else n_units
    too_strong = lambda_ * tau >= 0.9  # a constant step could not use the budget up
    schedule = options.schedule or ("strongly_convex" if too_strong else "constant")
    if lambda_ > 0.0 and not too_strong:  # the contraction makes room for a longer run at the same noise
        tau = -math.log1p(-lambda_ * tau) / lambda_
    batch_size = options.batch_size or WIDEST_BATCH
    if options.batch_size is None and schedule == "constant":
        batch_size = min(max(math.floor(2.5 * cap * n_own / tau), NARROWEST_BATCH), WIDEST_BATCH)
    batches = math.ceil(n_own / batch_size)
    if schedule not in ("constant", "inverse_sqrt"):
        return _Steps(schedule, 1.0, batch_size, options.passes or STRONGLY_CONVEX_PASSES)
    passes = options.passes
    if passes is None:
        fewest = PASSES_WITH_LAMBDA if lambda_ > 0.0 else 1
        target = options.step_size or 0.5 * cap
        passes = min(max(math.ceil(tau / (batches * target)), fewest), MOST_PASSES)
    steps = passes * batches
    # sum of 1 / sqrt t over t = 1 .. T is at most 2 sqrt T - 1
    units = float(steps) if schedule == "constant" else 2.0 * math.sqrt(steps) - 1.0
    return _Steps(schedule, tau / units, batch_size, passes, tau)


def _choose_solver(options: BoltOnOptions) -> str:
    """The solver asked for; by default certified where lambda > 0 and nothing that only SGD uses is given."""
    regularised = options.lambda_ is not None and options.lambda_ > 0.0
    if options.solver == "certified":
        for name in _sgd_options(options):
            raise SpecError(f"{name} belongs to solver = sgd: leave {name} out, or take that solver")
        if not regularised:
            raise SpecError("solver = certified needs lambda > 0: give lambda, or take solver = sgd")
    if options.solver is not None:
        return options.solver
    return "certified" if regularised and not _sgd_options(options) else "sgd"


def _sgd_options(options: BoltOnOptions) -> list[str]:
    """Options that only SGD uses, and that are given."""
    return [name for name in SGD_OPTIONS if name in options.given()]


def _plan_sgd(problem: Problem, privacy: PrivacySpec, options: BoltOnOptions, loss: Loss) -> BoltOnPlan:
    """Fix passes and steps.

    The number of passes is fixed here, before training: stopping when the
    loss stops falling would depend on the rows.
    Source: privacy/README.md, "Passes are fixed beforehand".
    """
    steps = _default_steps(problem, privacy, options, loss)
    shared_options.refuse_unused_step_options(options, steps.schedule)
    shared_options.refuse_unused_tail(options.tail, options.average or "none")

    def passes(radius: float | None) -> Sgd | ShardedSgd:
        def over(rows: Problem) -> Sgd:
            return make_sgd(
                rows,
                loss=loss,
                schedule=steps.schedule,
                step_size=options.step_size or steps.step_size,
                batch_size=steps.batch_size,
                passes=steps.passes,
                lambda_=options.lambda_ or 0.0,
                exponent=options.exponent,
                radius=radius,
                average=options.average,
                tail=options.tail,
                fresh_order=options.fresh_order,
            )

        return sgd_of_shards(problem, over) if options.by_shards else over(problem)

    work = passes(options.radius)
    moved = _measure(problem, privacy, work)
    if options.radius is None and moved.rounding > 0.1 * resolution.ROUNDING_LIMIT * moved.sensitivity:
        work = passes(DEFAULT_RADIUS)
        moved = _measure(problem, privacy, work)
    warnings = []
    own = problem.shards.units if options.by_shards and problem.shards is not None else ()
    by_default = options.passes is None and options.step_size is None and problem.n_units > 0
    if own and by_default and moved.step_sum < WARN_SHARE_OF_STEPS * steps.length:
        share = share_text(moved.step_sum / steps.length)
        warnings.append(
            f"{steps.passes} passes over shards of at most {max(own):,} units, in batches of "
            f"{steps.batch_size:,}, leave {share} of the step length that epsilon allows: give more passes, "
            "distribute the table in fewer shards, or leave by_shards out"
        )
    elif problem.n_units > 0 and moved.step_sum < WARN_STEP_SUM:
        warnings.append(
            f"all steps together have length {moved.step_sum:.2g}, too little to learn much from: this many "
            "rows allow it only with a larger epsilon"
        )
    reason = (
        "by default the noise in a score is the same for every epsilon: a larger one buys longer steps"
        if not _sgd_options(options)
        else ""
    )
    return _add_noise(
        problem,
        privacy,
        _ShardsPlan if options.by_shards else _SgdPlan,
        work,
        (moved.sensitivity if moved.step_sum > 0.0 else None, moved.rounding),
        reason,
        warnings,
        "take fewer passes, smaller steps or a larger lambda",
    )


def _plan_certified(problem: Problem, privacy: PrivacySpec, options: BoltOnOptions, loss: Loss) -> BoltOnPlan:
    """Fix the certificate.

    The number of passes depends on the rows, and is not released; its answer
    is within tau / lambda of the minimiser whatever it is.
    Source: privacy/README.md, "Certified minimiser".
    """
    assert options.lambda_ is not None
    objective = Objective(loss, options.lambda_, problem.max_rows_per_unit)
    change = _gradient_change(problem, privacy, loss)
    certified = make_certified(problem, objective, change)
    sensitivity = certified.sensitivity(change, problem.n_units) if problem.n_units > 0 else None
    share = certified.gradient_norm * problem.n_units / change
    warnings = []
    if share > WARN_ROUNDING:
        warnings.append(
            "float64 cannot certify a smaller gradient over so many rows, which makes the noise "
            f"{1.0 + 2.0 * share:.2g} times what the minimiser needs: take a larger lambda, or solver = sgd"
        )
    return _add_noise(
        problem,
        privacy,
        _CertifiedPlan,
        certified,
        (sensitivity, 0.0),  # rounding is within the certificate
        "with lambda > 0 the minimiser itself carries no more noise than SGD's last iterate",
        warnings,
        "take a larger lambda",
    )


def _add_noise(
    problem: Problem,
    privacy: PrivacySpec,
    make: Callable[..., BoltOnPlan],
    work: Sgd | ShardedSgd | Certified,
    moved: tuple[float | None, float],
    reason: str,
    warnings: list[str],
    advice: str,
) -> BoltOnPlan:
    """The plan of a run whose model one unit moves by so much: exactly, and by its own rounding."""
    delta = privacy.delta_for(problem.n_units)
    chosen = _choose_noise(problem, privacy)
    noise = output.calibrate(*moved, problem.n_weights, privacy.epsilon, delta, chosen.kind)
    reported = delta if delta > 0.0 else resolution.sampler_delta(problem.n_weights)
    guarantee = problem.guarantee(privacy, reported)
    warnings = [*warnings, *_warnings(problem, privacy, noise, reported, advice)]
    return make(BoltOn.name, problem, work, guarantee, noise, tuple(warnings), reason, chosen.reason)


class _Moved(NamedTuple):
    """How far one unit moves the model, and by what steps."""

    sensitivity: float
    rounding: float
    """How far the rounding of two runs can move their models apart."""
    step_sum: float
    """Length of all steps; of the longest run, where shards have runs of their own."""
    norm: float
    """Bound on the norm of a model."""


def _measure(problem: Problem, privacy: PrivacySpec, work: Sgd | ShardedSgd) -> _Moved:
    """Of a run over all rows, or of the mean of the models of shards."""
    if isinstance(work, Sgd):
        return _measure_one(problem, privacy, work)
    models = [
        (share, _measure_one(replace(problem, n_units=units), privacy, sgd))
        for sgd, units, share in zip(work.shards, work.units, work.weights, strict=True)
        if units > 0
    ]
    if not models:
        return _Moved(0.0, 0.0, 0.0, 0.0)
    norm = max(own.norm for _, own in models)
    # One unit lies in one shard. Source: privacy/README.md, "Models of shards".
    return _Moved(
        max(share * own.sensitivity for share, own in models) * (1.0 + 2.0**-50),
        max(share * own.rounding for share, own in models) + output.mean_rounding(len(models), norm),
        max(own.step_sum for _, own in models),
        norm,
    )


def _measure_one(problem: Problem, privacy: PrivacySpec, sgd: Sgd) -> _Moved:
    run = kernels.sensitivity(
        schedule=sgd.schedule,
        smoothness=sgd.smoothness,
        lambda_=sgd.lambda_,
        gradient_change=_gradient_change(problem, privacy, sgd.loss),
        n_rows=problem.n_units,
        passes=sgd.passes,
        batch_size=sgd.batch_size,
        average_from=sgd.average_from,
        fresh_order=sgd.fresh_order,
    )
    # of a batch's mean gradient, to which a unit adds up to m rows
    lipschitz = problem.max_rows_per_unit * sgd.loss.lipschitz
    rounding = output.rounding_error(
        steps=run.steps,
        step_sum=run.step_sum,
        step_max=run.step_max,
        lipschitz=lipschitz,
        smoothness=sgd.smoothness,
        lambda_=sgd.lambda_,
        radius=sgd.radius,
        batch_size=sgd.batch_size * problem.max_rows_per_unit,
        n_weights=problem.n_weights,
    )
    norm = output.norm_bound(
        step_sum=run.step_sum, lipschitz=lipschitz, lambda_=sgd.lambda_, radius=sgd.radius
    )
    return _Moved(run.sensitivity, rounding, run.step_sum, norm)


def _warnings(
    problem: Problem,
    privacy: PrivacySpec,
    noise: output.ReleaseNoise,
    delta: float,
    advice: str,
) -> list[str]:
    found = privacy_warnings(problem, privacy, delta)
    if noise.score_stddev > WARN_SCORE_NOISE:
        found.append(
            f"the noise in a row's score has standard deviation {noise.score_stddev:.2g}, as large as the "
            f"scores of a good model: expect little accuracy; {advice}"
        )
    return found


def release(plan: BoltOnPlan, weights: FloatArray, source: kernels.Noise | None = None) -> FloatArray:
    """The private model of a finished run.

    Parameters
    ----------
    plan : BoltOnPlan
        Of this run.
    weights : ndarray of shape (n_weights,)
        Un-noised.
    source : Noise or None
        None draws from a fresh generator keyed by the operating system.

    Returns
    -------
    ndarray of shape (n_weights,)
    """
    return output.release(weights, plan.noise, source or kernels.Noise())
