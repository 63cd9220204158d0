# SPDX-License-Identifier: PostgreSQL
"""Baselines to compare with. None is private, and every report says so."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from pg_dpml.errors import SpecError
from pg_dpml.kernels import FloatArray, Loss
from pg_dpml.training import shared_options
from pg_dpml.training.certified import Objective
from pg_dpml.training.job import Job, Result
from pg_dpml.training.losses import choose_loss, loss_options
from pg_dpml.training.method import Baseline, Example, register
from pg_dpml.training.minimise import Goal
from pg_dpml.training.options import Real, option
from pg_dpml.training.plan import Plan, Problem
from pg_dpml.training.sgd import Sgd, make_sgd, run_passes
from pg_dpml.training.shared_options import LossOptions, RegularisedOptions, SgdOptions

__all__ = ["Constant", "Lbfgs", "LbfgsPlan", "MajorityPlan", "NoiselessPlan"]

DEFAULT_BATCH_SIZE = 10
MOST_PASSES = 20
FIRST_STEP = 4.0
"""inverse_sqrt step at t = 1, before the cap: the largest that logistic loss allows."""

LOSS_TOLERANCE = 1e-4
LBFGS_LAMBDA = 1e-6
LBFGS_PASSES = 1000
LBFGS_TOLERANCE = 1e-8


@dataclass(frozen=True)
class Lbfgs:
    """Full passes until the gradient is small: a minimiser, the ceiling of all methods in training.

    Attributes
    ----------
    objective : Objective
    passes : int
        The most to take.
    tolerance : float
        Norm of the gradient at which to stop.
    """

    objective: Objective
    passes: int
    tolerance: float

    @property
    def loss(self) -> Loss:
        """The loss that is minimised."""
        return self.objective.loss

    def record(self, n_units: int) -> dict[str, Any]:
        """Everything that fixes the passes, as a JSON-ready mapping of public numbers."""
        return {"options": self.objective.record(n_units), "tolerance": self.tolerance}

    def lines(self) -> Sequence[tuple[str, str]]:
        """Headings and texts that describe the passes."""
        return (
            ("Passes", f"until the norm of the gradient is {self.tolerance:g}, at most {self.passes}"),
            ("Solver", f"minimiser of the mean loss + {self.objective.lambda_:g}/2 ||w||^2"),
        )


@dataclass(frozen=True)
class NoiselessPlan(Plan):
    """SGD until the loss hardly falls."""

    work: Sgd
    tolerance: float = field(kw_only=True)

    def run(self, job: Job) -> Result:
        """Take passes until the loss falls by less than `tolerance` in one; all, where that is 0.

        Bismarck's convergence test (Feng et al. 2012); data-dependent, so never used in a private run.
        """
        return Result(*run_passes(job, self.work, self.tolerance if self.work.may_stop else None))


@dataclass(frozen=True)
class LbfgsPlan(Plan):
    """The minimiser."""

    work: Lbfgs

    goal: ClassVar[str] = "its gradient was as small as its tolerance"
    needs_order: ClassVar[bool] = False

    def run(self, job: Job) -> Result:
        """Minimise over the packed rows."""
        goal = Goal(self.work.tolerance, math.inf, self.work.passes)
        return Result(*self.work.objective.minimise(job, goal))


@dataclass(frozen=True)
class NoiselessOptions(SgdOptions):
    """Options of noiseless."""

    passes: int | None = shared_options.passes("at most 20")
    tolerance: float | None = option(
        Real(0.0, 1.0), "Stop when the loss falls by less than this share in a pass; 0: take all.", "1e-4"
    )


@register
class Noiseless(Baseline[NoiselessOptions]):
    """Plain SGD, as if nobody's privacy mattered."""

    name = "noiseless"
    summary = "not private: plain SGD"
    cards = ()
    options = NoiselessOptions
    examples = (Example(), Example("multiclass"), Example("regression"))

    def plan(self, problem: Problem, options: NoiselessOptions) -> NoiselessPlan:
        """Fix the steps, and the most passes to take."""
        tolerance = LOSS_TOLERANCE if options.tolerance is None else options.tolerance
        if options.average in ("all", "tail") and tolerance > 0.0:
            raise SpecError("average needs a number of passes that is known beforehand: give tolerance = 0")
        schedule = options.schedule or "inverse_sqrt"
        shared_options.refuse_unused_step_options(options, schedule)
        shared_options.refuse_unused_tail(options.tail, options.average or "none")
        sgd = make_sgd(
            problem,
            loss=choose_loss(problem, options, {}, options.clip),
            schedule=schedule,
            step_size=options.step_size or FIRST_STEP,
            batch_size=options.batch_size or DEFAULT_BATCH_SIZE,
            passes=options.passes or MOST_PASSES,
            lambda_=options.lambda_ or 0.0,
            exponent=options.exponent,
            radius=options.radius,
            average=options.average,
            tail=options.tail,
            fresh_order=options.fresh_order,
        )
        sgd = replace(sgd, may_stop=tolerance > 0.0)
        return NoiselessPlan(self.name, problem, sgd, None, None, tolerance=tolerance)


@dataclass(frozen=True)
class LbfgsOptions(RegularisedOptions):
    """Options of lbfgs."""

    passes: int | None = shared_options.passes("at most 1000")
    tolerance: float | None = option(Real(0.0, 1.0), "Stop at a gradient of this norm.", "1e-8")


@register
class LbfgsMethod(Baseline[LbfgsOptions]):
    """The minimiser, the ceiling of all methods in training; lambda may be 0."""

    name = "lbfgs"
    summary = "not private: the minimiser, the ceiling of all methods"
    cards = ()
    options = LbfgsOptions
    examples = (Example(), Example("multiclass"), Example("regression"))

    def plan(self, problem: Problem, options: LbfgsOptions) -> LbfgsPlan:
        """Fix the objective, and when to stop."""
        lambda_ = LBFGS_LAMBDA if options.lambda_ is None else options.lambda_
        loss = choose_loss(problem, options, {}, options.clip)
        objective = Objective(loss, lambda_, problem.max_rows_per_unit)
        tolerance = LBFGS_TOLERANCE if options.tolerance is None else options.tolerance
        work = Lbfgs(objective, options.passes or LBFGS_PASSES, tolerance)
        return LbfgsPlan(self.name, problem, work, None, None)


@dataclass(frozen=True)
class Constant:
    """A score that is the same for every row: the intercept's coefficient alone is not 0.

    Attributes
    ----------
    loss : Loss
        Whose gradient at the zero model says what is most frequent, or what the mean is.
    """

    loss: Loss

    @property
    def passes(self) -> int:
        """Passes over the packed rows."""
        return 2 if self.loss.kind == "squared" else 1

    def record(self, n_units: int) -> dict[str, Any]:
        """Everything that fixes the passes, as a JSON-ready mapping of public numbers."""
        return {"options": loss_options(self.loss)}

    def lines(self) -> Sequence[tuple[str, str]]:
        """Headings and texts that describe the passes."""
        what = "the mean of the labels" if self.loss.kind == "squared" else "the most frequent class"
        return (("Passes", f"{self.passes} over all rows"), ("Model", f"always {what}; features are ignored"))


@dataclass(frozen=True)
class MajorityPlan(Plan):
    """Counting of classes, by the gradient at the zero model."""

    work: Constant

    needs_order: ClassVar[bool] = False
    norm: ClassVar[str] = "clip_values"  # the intercept is 1 in every row

    def run(self, job: Job) -> Result:
        """Find the most frequent class, or the mean."""
        weights = np.zeros((self.problem.n_outputs, self.problem.n_features))
        at_zero = self._gradient(job, weights)
        if self.problem.task == "regression":
            at_one = weights.copy()
            at_one[0, -1] = 1.0
            rows = self._gradient(job, at_one) - at_zero  # with a label; at zero it is minus their sum
            weights[0, -1] = -at_zero[0] / rows[0] if rows[0] > 0.0 else 0.0
        elif self.problem.task == "binary":
            weights[0, -1] = -np.sign(at_zero[0])
        elif np.any(at_zero):
            weights[np.argmin(at_zero), -1] = 1.0
        return Result(weights.reshape(-1), self.work.passes)

    def _gradient(self, job: Job, weights: FloatArray) -> FloatArray:
        """Of the intercepts of all classes."""
        sums = job.gradient(weights.reshape(-1), loss_options(self.work.loss) | {"losses": False})
        return (
            np.zeros(len(weights)) if sums.gradient is None else sums.gradient.reshape(weights.shape)[:, -1]
        )


@register
class Majority(Baseline[LossOptions]):
    """The most frequent class, or the mean: the floor of all methods."""

    name = "majority"
    summary = "not private: always the most frequent class, or the mean"
    cards = ()
    options = LossOptions
    examples = (Example(), Example("multiclass"), Example("regression"))

    def plan(self, problem: Problem, options: LossOptions) -> MajorityPlan:
        """The loss decides how the score reads; the prediction is the same."""
        if not problem.intercept:
            raise SpecError(
                "method = majority needs the intercept, its only coefficient: give intercept = true"
            )
        return MajorityPlan(self.name, problem, Constant(choose_loss(problem, options, {})), None, None)
