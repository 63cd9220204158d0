# SPDX-License-Identifier: PostgreSQL
"""Baselines to compare with. None is private, and every report says so."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pg_dpml.errors import SpecError
from pg_dpml.kernels import Loss
from pg_dpml.spec.privacy import PrivacySpec
from pg_dpml.training.certified import Objective
from pg_dpml.training.job import Job, Result
from pg_dpml.training.losses import choose_loss
from pg_dpml.training.minimise import Goal
from pg_dpml.training.plan import Plan, Problem
from pg_dpml.training.sgd import Sgd, make_sgd, run_passes
from pg_dpml.training.spec import TrainSpec

__all__ = ["Lbfgs", "plan", "run"]

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


def plan(problem: Problem, privacy: PrivacySpec | None, spec: TrainSpec) -> Plan:
    """Decide the passes of a baseline.

    Parameters
    ----------
    problem : Problem
    privacy : None
    spec : TrainSpec

    Returns
    -------
    Plan
        Without guarantee or noise: not private.

    Raises
    ------
    SpecError
        If options do not go together.
    """
    return _plan_lbfgs(problem, spec) if spec.method == "lbfgs" else _plan_noiseless(problem, spec)


def _plan_noiseless(problem: Problem, spec: TrainSpec) -> Plan:
    """Plain SGD until the loss falls by less than `tolerance` in a pass, or `passes` are done.

    Bismarck's convergence test (Feng et al. 2012); data-dependent, so never used in a private run.
    """
    tolerance = LOSS_TOLERANCE if spec.tolerance is None else spec.tolerance
    if spec.average in ("all", "tail") and tolerance > 0.0:
        raise SpecError("average needs a number of passes that is known beforehand: give tolerance = 0")
    sgd = make_sgd(
        problem,
        spec,
        loss=choose_loss(problem, spec, {}),
        schedule="inverse_sqrt",
        step_size=FIRST_STEP,
        batch_size=spec.batch_size or DEFAULT_BATCH_SIZE,
        passes=spec.passes or MOST_PASSES,
    )
    return Plan("noiseless", problem, sgd, None, None, tolerance)


def _plan_lbfgs(problem: Problem, spec: TrainSpec) -> Plan:
    """The minimiser, as far as `tolerance` and `passes` let it come; lambda may be 0."""
    lambda_ = LBFGS_LAMBDA if spec.lambda_ is None else spec.lambda_
    objective = Objective(choose_loss(problem, spec, {}), lambda_, problem.max_rows_per_unit)
    tolerance = LBFGS_TOLERANCE if spec.tolerance is None else spec.tolerance
    return Plan(
        "lbfgs", problem, Lbfgs(objective, spec.passes or LBFGS_PASSES, tolerance), None, None, tolerance
    )


def run(job: Job) -> Result:
    """Train on the packed rows."""
    work = job.plan.work
    if isinstance(work, Lbfgs):
        return Result(*work.objective.minimise(job, Goal(work.tolerance, math.inf, work.passes)))
    assert isinstance(work, Sgd)
    return Result(*run_passes(job, work))
