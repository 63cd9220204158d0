# SPDX-License-Identifier: PostgreSQL
"""Baselines to compare with. None is private, and every report says so."""

from __future__ import annotations

from pg_dpml.errors import SpecError
from pg_dpml.methods.job import Job, Result
from pg_dpml.methods.plan import Plan, Problem, choose_loss
from pg_dpml.methods.sgd import Sgd, make_sgd, run_passes
from pg_dpml.spec import PrivacySpec, TrainSpec

__all__ = ["plan", "run"]

DEFAULT_BATCH_SIZE = 10
MOST_PASSES = 20
FIRST_STEP = 4.0
"""inverse_sqrt step at t = 1, before the cap: the largest that logistic loss allows."""


def plan(problem: Problem, privacy: PrivacySpec | None, spec: TrainSpec) -> Plan:
    """Plain SGD until the loss falls by less than `tolerance` in a pass, or `passes` are done.

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

    Notes
    -----
    Bismarck's convergence test (Feng et al. 2012); data-dependent, so never used in a private run.
    """
    if spec.average in ("all", "tail") and spec.tolerance > 0.0:
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
    return Plan("noiseless", problem, sgd, None, None, spec.tolerance)


def run(job: Job) -> Result:
    """Train on the packed rows."""
    assert isinstance(job.plan.work, Sgd)
    return Result(*run_passes(job, job.plan.work))
