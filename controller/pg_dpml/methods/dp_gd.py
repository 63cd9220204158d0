# SPDX-License-Identifier: PostgreSQL
"""Gradient descent on noisy sums over all rows.

Constants, here and in whitened-dp-gd, are those that were best over many public data sets; all are
functions of public numbers. tau, the length of all steps together, is what
matters: the steps' noise adds up to a standard deviation of tau D/(n mu) in a
score, however many steps there are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np

from pg_dpml.blocks.packing import unit_fits_block
from pg_dpml.errors import SpecError
from pg_dpml.kernels import FloatArray, Loss
from pg_dpml.methods.whitening import Whitening
from pg_dpml.privacy.noise import composed, growth
from pg_dpml.privacy.noise.composed import ComposedNoise
from pg_dpml.privacy.noise.output import ReleaseNoise
from pg_dpml.spec.privacy import PrivacySpec
from pg_dpml.training import shared_options
from pg_dpml.training.job import Job, Result
from pg_dpml.training.losses import clipped_at_zero, loss_options
from pg_dpml.training.method import Card, Example, PrivateMethod, register
from pg_dpml.training.options import HUGE, Real, option
from pg_dpml.training.plan import Plan, Problem, budget_warnings, privacy_warnings
from pg_dpml.training.sgd import average_start
from pg_dpml.training.shared_options import ClippedOptions, RegularisedOptions

__all__ = [
    "MOMENTA",
    "STEPS",
    "TAIL",
    "Descent",
    "DescentPlan",
    "DpGd",
    "DpGdOptions",
    "longest",
    "noise_length",
    "plan_of",
    "whitened_curvature",
    "widening",
]


TAIL = 0.25
STEPS = 60
MOMENTUM = 0.9
MOMENTA = (0.5, 0.75, 0.9)
"""What a whitened run takes its momentum from."""
CLIP_BUDGET = 800.0
"""n mu/D a weight from which a clip's bias is more than its noise, on made-up tables with up to 200 rows of a
class to one of the other."""
MOST_WIDENING = 4.0
SPREAD = 1.5
"""The largest eigenvalue of normalised whitened rows, over its estimate."""


@dataclass(frozen=True)
class Descent:
    """Steps v <- momentum v + g, w <- w - eta v, on noisy means g of the gradients of all rows.

    Attributes
    ----------
    loss : Loss
    lambda_ : float
        L2 regulariser.
    gradient_clip : float
        Bound on the norm of a row's derivatives in its scores; infinity for none beyond the loss's own.
    unit_clip : float
        Bound on the norm of the gradient of a unit's rows; infinity for none.
    steps : int
        T.
    momentum : float
        In [0, 1).
    most_momentum : float
        What a whitened run may raise the momentum to, where the length needs it.
    tau : float
        eta T/(1 - momentum), the length of all steps together.
    average_from : int
        First step whose iterate enters the average; 0 releases the last iterate.
    max_rows_per_unit : int
        m.
    whitening : Whitening or None
        With it, tau is a bound: see `pace`.
    """

    loss: Loss
    lambda_: float
    gradient_clip: float
    unit_clip: float
    steps: int
    momentum: float
    most_momentum: float
    tau: float
    average_from: int
    max_rows_per_unit: int
    whitening: Whitening | None

    @property
    def passes(self) -> int:
        """Passes over the packed rows."""
        return self.steps + (0 if self.whitening is None else 2)

    @property
    def smoothness(self) -> float:
        """Bound on the Hessian of the mean over units: m beta."""
        return self.max_rows_per_unit * self.loss.smoothness

    def options(self) -> dict[str, Any]:
        """The aggregate's options; only public numbers."""
        options = loss_options(self.loss, self.gradient_clip) | {"losses": False}
        if math.isfinite(self.unit_clip):
            options |= {"unit_clip": self.unit_clip, "max_rows_per_unit": self.max_rows_per_unit}
        return options

    def pace(self, largest: float = 1.0) -> tuple[float, float]:
        """Momentum and eta.

        Parameters
        ----------
        largest : float
            Estimate of the largest eigenvalue of the mean of x x', for rows as they are stepped on: a
            whitened run takes the least momentum that reaches tau, and shortens tau to what the most reaches.
        """
        momentum, tau = self.momentum, self.tau
        if self.whitening is not None:
            curvature = whitened_curvature(self.smoothness, largest)
            momenta = [m for m in MOMENTA if momentum <= m <= self.most_momentum]
            reached = {m: longest(self.steps, m, curvature) for m in momenta}
            momentum = min((m for m in momenta if reached[m] >= tau), default=self.most_momentum)
            tau = min(tau, reached[momentum])
        return momentum, (1.0 - momentum) * tau / self.steps

    def record(self, n_units: int) -> dict[str, Any]:
        """Everything that fixes the passes, as a JSON-ready mapping of public numbers."""
        found = {
            "options": self.options(),
            "steps": self.steps,
            "momentum": self.momentum,
            "tau": self.tau,
            "average_from": self.average_from,
        }
        if self.most_momentum > self.momentum:
            found["most_momentum"] = self.most_momentum
        if self.lambda_ > 0.0:
            found["lambda"] = self.lambda_
        if self.whitening is not None:
            found["whitening"] = asdict(self.whitening)
        return found

    def lines(self) -> Sequence[tuple[str, str]]:
        """Headings and texts that describe the passes."""
        first = (
            "" if self.whitening is None else ", after one for second moments and one that whitens the rows"
        )
        length = (
            "in all" if self.whitening is None else "in all at most, less where the second moments say so"
        )
        shares = []
        if math.isfinite(self.gradient_clip):
            shares.append(f"a row's derivatives clipped at norm {self.gradient_clip:.3g}")
        if math.isfinite(self.unit_clip):
            shares.append(f"a unit's gradient clipped at norm {self.unit_clip:g}")
        if self.lambda_ > 0.0:
            shares.append(f"lambda {self.lambda_:g}")
        averaged = self.steps - self.average_from + 1
        end = f"mean of the last {averaged}" if self.average_from > 0 else "the last"
        momentum = f"{self.momentum:g}"
        if self.most_momentum > self.momentum:
            momentum += f" to {self.most_momentum:g}"
        steps = f"momentum {momentum}, length {self.tau:.3g} {length}; the model is {end}"
        return (
            ("Passes", f"{self.steps} over all rows, one a step{first}"),
            ("Steps", "; ".join([steps, *shares])),
        )


@dataclass(frozen=True)
class DescentPlan(Plan):
    """Steps on noisy sums of gradients, for rows as they are or whitened."""

    work: Descent
    noise: ComposedNoise

    needs_order: ClassVar[bool] = False

    def run(self, job: Job) -> Result:
        """Take the steps on the packed rows."""
        descent, gradient, moments = self.work, self.noise.gradient, self.noise.moments
        assert gradient is not None  # of a descent
        if descent.whitening is None:
            return Result(_descend(job, descent, None, descent.pace(), gradient), descent.passes)
        assert moments is not None  # of a whitened one
        matrix, pace = _whiten(job, descent, descent.whitening, moments)
        return Result(_descend(job, descent, matrix, pace, gradient), descent.passes, matrix)


@dataclass(frozen=True)
class DpGdOptions(RegularisedOptions):
    """Options of dp-gd."""

    unit_clip: float | None = option(
        Real(0.0, HUGE, above=True),
        "With a unit of privacy: bound on the norm of the gradient of all rows of a unit.",
        "none",
    )
    passes: int | None = shared_options.passes()
    step_size: float | None = shared_options.step_size()
    momentum: float | None = shared_options.momentum()
    average: str | None = shared_options.average()
    tail: float | None = shared_options.tail()


@register
class DpGd(PrivateMethod[DpGdOptions]):
    """Gradient descent on noisy sums over all rows."""

    name = "dp-gd"
    summary = "gradient descent, with noise on the sum of all gradients in every step"
    cards = (
        Card(
            theorem='T Gaussian gradient sums, exact composition ("Full-batch gradients").',
            sensitivity="D = 2 m C or m C; with `unit_clip` = U the sum of a unit's gradients is clipped, and"
            " D = 2 U or U.",
            checked='delta > 0 and large enough for the sampler ("Floating point"); rounding of the '
            "sums below a hundredth of their sensitivity; steps at most 2/lambda, so that the model stays "
            "finite. No limit of its own on the features.",
            charged="(epsilon, delta).",
            corrected="Divided by the public n, never by the number of rows that a clip left alone.",
        ),
    )
    options = DpGdOptions
    examples = (
        Example(),
        Example(options={"passes": 3, "lambda_": 0.01, "average": "none"}),
        Example("multiclass"),
        Example("regression"),
    )

    def plan(self, problem: Problem, privacy: PrivacySpec, options: DpGdOptions) -> DescentPlan:
        """Fix the steps and the noise."""
        return _plan_plain(problem, privacy, options)


def longest(steps: int, momentum: float, curvature: float) -> float:
    """Tau of steps of eta = (1 + momentum)/curvature, half of what diverges (Polyak 1964)."""
    return steps * (1.0 + momentum) / ((1.0 - momentum) * curvature)


def whitened_curvature(smoothness: float, largest: float) -> float:
    """Of the mean loss of whitened rows, at most, where the mean of x x' has that largest eigenvalue."""
    return smoothness * min(1.0, SPREAD * largest)


def widening(problem: Problem, privacy: PrivacySpec, options: ClippedOptions, mu: float) -> float:
    """What the budget multiplies the clip by: a bias that noise hides costs nothing, any other does.

    Parameters
    ----------
    problem : Problem
    privacy : PrivacySpec
    options : ClippedOptions
    mu : float
        For the gradients.

    Returns
    -------
    float
        In [1, MOST_WIDENING]: n mu over the change that a unit makes and the weights that are learnt, over
        CLIP_BUDGET.
    """
    narrow = clipped_at_zero(problem, options).bound
    budget = problem.n_units * mu / privacy.relation.gradient_change(narrow)
    return min(max(budget / (problem.n_weights * CLIP_BUDGET), 1.0), MOST_WIDENING)


def _plan_plain(problem: Problem, privacy: PrivacySpec, options: DpGdOptions) -> DescentPlan:
    delta = privacy.delta_for(problem.n_units)
    average = options.average or "tail"
    shared_options.refuse_unused_tail(options.tail, average)
    steps = options.passes or STEPS
    momentum = MOMENTUM if options.momentum is None else options.momentum
    mu = composed.run_mu(privacy.epsilon, delta, steps * problem.n_weights)
    clipped = clipped_at_zero(problem, options, widening(problem, privacy, options, mu))
    bound = clipped.bound
    if options.unit_clip is not None:
        if problem.unit is None:
            raise SpecError("unit_clip needs a unit of privacy: declare unit in the data spec, or take clip")
        if not unit_fits_block(problem.max_rows_per_unit, problem.n_features):
            raise SpecError("unit_clip needs a unit's rows in one block: take a smaller max_rows_per_unit")
        bound = min(bound, options.unit_clip)
    gradient = composed.calibrate_gradients(
        bound=bound,
        relation=privacy.relation,
        steps=steps,
        mu=mu,
        n_units=problem.n_units,
        max_rows_per_unit=problem.max_rows_per_unit,
        n_weights=problem.n_weights,
        n_features=problem.n_features,
    )
    budget = max(problem.n_units, 1) * mu / privacy.relation.gradient_change(bound)
    lambda_ = options.lambda_ or 0.0
    smoothness = problem.max_rows_per_unit * clipped.loss.smoothness + lambda_
    if options.step_size is not None:
        growth.require_stable(options.step_size, lambda_)
        tau = options.step_size * steps / (1.0 - momentum)
    else:
        tau = 2.0 * budget if problem.task == "binary" else noise_length(problem, budget)
        tau = min(tau, longest(steps, momentum, smoothness))
    descent = Descent(
        loss=clipped.loss,
        lambda_=lambda_,
        gradient_clip=clipped.gradient_clip,
        unit_clip=options.unit_clip or math.inf,
        steps=steps,
        momentum=momentum,
        most_momentum=momentum,
        tau=tau,
        average_from=average_start(average, options.tail or TAIL, steps),
        max_rows_per_unit=problem.max_rows_per_unit,
        whitening=None,
    )
    score_stddev = tau / budget if problem.n_units > 0 else 0.0
    noise = ComposedNoise("gaussian", mu, steps, gradient, None, problem.n_weights, score_stddev)
    return plan_of(problem, privacy, delta, DpGd.name, descent, noise, budget)


def noise_length(problem: Problem, budget: float) -> float:
    """Tau of unit noise in a score; labels in [-1, 1] tolerate less noise than logits."""
    return min(budget, math.pow(budget, 0.75)) if problem.task == "regression" else budget


def plan_of(
    problem: Problem,
    privacy: PrivacySpec,
    delta: float,
    method: str,
    descent: Descent,
    noise: ComposedNoise,
    budget: float,
) -> DescentPlan:
    """The plan of a descent with its noise."""
    warnings = privacy_warnings(problem, privacy, delta) + budget_warnings(problem, budget)
    return DescentPlan(method, problem, descent, problem.guarantee(privacy, delta), noise, tuple(warnings))


def _whiten(
    job: Job, descent: Descent, whitening: Whitening, noise: ReleaseNoise
) -> tuple[FloatArray, tuple[float, float]]:
    """P of the noisy second moments, momentum and eta; the packed rows are whitened."""
    sums = job.blocks.gram()
    job.require_all(sums.rows)
    noisy, _ = composed.release_moments(sums.xx, None, noise)
    whitener = whitening.of(noisy / max(job.plan.problem.n_units, 1))
    job.report("pass", 1, descent.passes)
    job.blocks.whiten(whitener.sent, whitening.row_norm, whitener.scale)
    job.report("pass", 2, descent.passes)
    return whitener.matrix, descent.pace(whitener.largest)


def _descend(
    job: Job, descent: Descent, matrix: FloatArray | None, pace: tuple[float, float], noise: ReleaseNoise
) -> FloatArray:
    """The released weights, for the rows as they are encoded; every step sees a noisy sum only."""
    problem = job.plan.problem
    shape = (problem.n_outputs, problem.n_features)
    momentum, step_size = pace

    def folded(weights: FloatArray) -> FloatArray:
        if matrix is None:
            return weights
        # Not by BLAS, whose threads then keep processors busy that the workers of the next pass need.
        product: FloatArray = np.einsum("kd,de->ke", weights, matrix)
        return product

    weights, velocity, mean = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    first = descent.average_from or descent.steps
    for step in range(1, descent.steps + 1):
        sums = job.gradient(folded(weights).reshape(-1), descent.options())
        gradient = np.zeros(shape) if sums.gradient is None else folded(sums.gradient.reshape(shape))
        noisy = composed.release_gradient(gradient.reshape(-1), noise).reshape(shape)
        move = noisy / max(problem.n_units, 1) + descent.lambda_ * weights
        velocity = momentum * velocity + move
        weights = weights - step_size * velocity
        if step >= first:
            mean += (weights - mean) / (step - first + 1)
        job.report("pass", descent.passes - descent.steps + step, descent.passes)
    return folded(mean).reshape(-1)
