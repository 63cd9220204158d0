# SPDX-License-Identifier: PostgreSQL
"""Passes of mini-batch SGD by the aggregate `dpml.sgd_epoch`: their options, and how they are run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pg_dpml.database import json_parameter, sql
from pg_dpml.errors import RunFailedError, SpecError
from pg_dpml.kernels import FloatArray, Loss, Schedule
from pg_dpml.methods.job import Job
from pg_dpml.methods.plan import Problem, loss_options
from pg_dpml.rows import repack
from pg_dpml.spec import TrainSpec

__all__ = ["Sgd", "average_start", "make_sgd", "run_passes"]

DEFAULT_TAIL = 0.5


@dataclass(frozen=True)
class Sgd:
    """Passes of mini-batch SGD, as the aggregate `dpml.sgd_epoch` runs them.

    Attributes
    ----------
    loss : Loss
    schedule : Schedule
    exponent : float
        c of the schedule's offset n^c.
    lambda_, radius : float
        L2 regulariser and radius of the ball; infinity for none.
    batch_size, passes : int
    average_from : int
        First step whose iterate enters the average; 0 releases the last iterate.
    fresh_order : bool
        A new order of the rows every pass.
    max_rows_per_unit : int or None
        m, where batches count units of privacy of up to m rows; None: rows.
    """

    loss: Loss
    schedule: Schedule
    exponent: float
    lambda_: float
    radius: float
    batch_size: int
    passes: int
    average_from: int
    fresh_order: bool
    max_rows_per_unit: int | None

    @property
    def smoothness(self) -> float:
        """Bound on the data Hessian of a step: m beta, as a batch of b units has up to b m rows.

        Source: privacy/README.md, "Unit of privacy".
        """
        return (self.max_rows_per_unit or 1) * self.loss.smoothness

    def steps(self, n_rows: int, passes: int) -> int:
        """Steps of so many passes: passes ceil(n / b)."""
        return passes * math.ceil(n_rows / self.batch_size)

    def options(self, n_rows: int) -> dict[str, Any]:
        """The aggregate's options; only public numbers."""
        options = loss_options(self.loss) | {
            "lambda": self.lambda_,
            "batch_size": self.batch_size,
            "schedule": self.schedule.kind,
            "rows": n_rows,
        }
        if self.max_rows_per_unit is not None:
            options["units"] = self.max_rows_per_unit
        if self.schedule.kind in ("constant", "inverse_sqrt"):
            options["step_size"] = self.schedule.step_size
        if self.schedule.kind in ("decreasing", "sqrt_decreasing"):
            options["exponent"] = self.exponent
        if math.isfinite(self.radius):
            options["radius"] = self.radius
        if self.average_from > 0:
            options["average_from"] = self.average_from
        return options

    def record(self, n_rows: int) -> dict[str, Any]:
        """Everything that fixes the passes, as a JSON-ready mapping of public numbers."""
        return {"options": self.options(n_rows), "fresh_order": self.fresh_order}

    def lines(self) -> Sequence[tuple[str, str]]:
        """Headings and texts that describe the passes."""
        again = ", in a fresh order each (the rows are packed again every pass)" if self.fresh_order else ""
        return (
            ("Passes", f"{self.passes} over the packed rows{again}"),
            (
                "Steps",
                f"batches of {self.batch_size}, schedule {self.schedule.kind}, first step "
                f"{self.schedule.step(1):.3g}, lambda {self.lambda_:g}",
            ),
        )


def make_sgd(
    problem: Problem,
    spec: TrainSpec,
    *,
    loss: Loss,
    schedule: str,
    step_size: float,
    batch_size: int,
    passes: int,
) -> Sgd:
    """The passes of a run; the spec's own choices win over the method's defaults given here.

    Parameters
    ----------
    problem : Problem
    spec : TrainSpec
    loss : Loss
    schedule : str
        Default schedule.
    step_size : float
        Default step size of "constant" and "inverse_sqrt", in (0, inf).
    batch_size, passes : int
        As decided, >= 1.

    Raises
    ------
    SpecError
        For strongly convex steps without a regulariser.

    Notes
    -----
    Every step is capped by 1 / (beta + lambda).
    Source: privacy/README.md, "Schedules".
    """
    lambda_ = spec.lambda_ or 0.0
    kind = spec.schedule or schedule
    if kind == "strongly_convex" and lambda_ == 0.0:
        raise SpecError("schedule = strongly_convex needs lambda > 0")
    steps = passes * math.ceil(problem.n_rows / batch_size)
    return Sgd(
        loss=loss,
        schedule=Schedule(
            kind,
            step_size=spec.step_size or step_size,
            offset=float(max(problem.n_rows, 1)) ** spec.exponent,
            lambda_=lambda_,
            max_step=1.0 / (problem.max_rows_per_unit * loss.smoothness + lambda_),
        ),
        exponent=spec.exponent,
        lambda_=lambda_,
        radius=spec.radius or math.inf,
        batch_size=batch_size,
        passes=passes,
        average_from=average_start(spec.average or "none", spec.tail or DEFAULT_TAIL, steps),
        fresh_order=spec.fresh_order,
        max_rows_per_unit=problem.max_rows_per_unit if problem.unit is not None else None,
    )


def average_start(average: str, tail: float, steps: int) -> int:
    """First averaged step for "none", "all" or the last `tail` share of the steps; 0 for none."""
    if average == "none" or steps == 0:
        return 0
    share = 1.0 if average == "all" else tail
    return steps - max(1, math.ceil(share * steps)) + 1


def run_passes(job: Job, sgd: Sgd) -> tuple[FloatArray, int]:
    """Run the passes; un-noised weights stay on the server but for the final model.

    Returns
    -------
    weights : ndarray of shape (n_weights,)
        Un-noised: the last iterate, or the average.
    passes : int
        Passes taken.
    """
    n_rows = job.plan.problem.n_rows
    state = job.work_table("state", sql.SQL("pass integer NOT NULL, state dpml.epoch NOT NULL"))
    options = json_parameter(sgd.options(n_rows))
    previous_loss = np.inf
    done = 0
    for done in range(1, sgd.passes + 1):
        if sgd.fresh_order and done > 1:
            job.packed = repack(job.session, job.source, job.packed)
        job.session.execute(
            sql.SQL(
                "INSERT INTO {state} SELECT %(pass)s, dpml.sgd_epoch(b.block_no, b.block, "
                "(SELECT s.state FROM {state} AS s WHERE s.pass = %(pass)s - 1), %(options)s) "
                "FROM {blocks} AS b"
            ).format(state=state, blocks=job.packed.blocks),
            {"pass": done, "options": options},
        )
        job.report("pass", done, sgd.passes)
        if job.plan.tolerance is not None:
            loss = _loss(job, state, options, done)
            if previous_loss - loss < job.plan.tolerance * abs(previous_loss):
                break
            previous_loss = loss
    weights, average, steps = job.session.fetch_one(
        sql.SQL(
            "SELECT (state).weights, (state).average, (state).steps FROM {} WHERE pass = %(pass)s"
        ).format(state),
        {"pass": done},
    )
    if steps not in (None, sgd.steps(n_rows, done)):
        raise RunFailedError("a pass did not see every packed row, and no model was stored")
    final = average if average is not None else weights
    if final is None:  # an empty table: no row, no step
        return np.zeros(job.plan.problem.n_weights), done
    return np.asarray(final, dtype=np.float64), done


def _loss(job: Job, state: sql.Identifier, options: Any, done: int) -> float:
    """Objective after a pass; for runs that are not private only."""
    (loss,) = job.session.fetch_one(
        sql.SQL(
            "SELECT dpml.loss(b.block, (SELECT (s.state).weights FROM {state} AS s WHERE s.pass = %(pass)s), "
            "%(options)s) FROM {blocks} AS b"
        ).format(state=state, blocks=job.packed.blocks),
        {"pass": done, "options": options},
    )
    return float(loss) if loss is not None else 0.0
