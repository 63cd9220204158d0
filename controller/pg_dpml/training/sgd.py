# SPDX-License-Identifier: PostgreSQL
"""Passes of mini-batch SGD, by `dpml.sgd_epoch` or over Poisson batches: options, and how they are run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pg_dpml.blocks.packing import row_bytes, work_memory
from pg_dpml.database.adapters import json_parameter
from pg_dpml.database.session import sql
from pg_dpml.errors import RunFailedError, SpecError
from pg_dpml.kernels import FloatArray, Loss, Schedule
from pg_dpml.training.job import Job
from pg_dpml.training.losses import loss_options
from pg_dpml.training.plan import Problem

__all__ = ["Sgd", "average_start", "make_sgd", "run_passes"]

DEFAULT_TAIL = 0.5

_BYTES_OF_ROW = 16
"""In memory, beside what it takes in a block: where it and its unit are."""


@dataclass(frozen=True)
class Sgd:
    """Passes of mini-batch SGD, by `dpml.sgd_epoch`, `dpml.sgd_allocated` or `dpml.sgd_poisson`.

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
    momentum : float
        In [0, 1).
    gradient_clip : float
        Bound on the norm of a row's derivatives in its scores; infinity for none beyond the loss's own.
    noise : str or None
        "gaussian" or "k-norm", added to the sum of a batch's gradients in every step; None for none.
    noise_scale : float
        Its scale, > 0 with noise.
    sampling : float or None
        Probability, in (0, 1], of every unit to be in a batch, by a coin of its own; None: batches are cut
        from the shuffled rows.
    allocated : bool
        Whether they are cut such that every unit draws its batch of a pass; else by count.
    may_stop : bool
        Whether a run may take fewer passes, because it watches the loss.
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
    momentum: float = 0.0
    gradient_clip: float = math.inf
    noise: str | None = None
    noise_scale: float = 0.0
    sampling: float | None = None
    allocated: bool = False
    may_stop: bool = False

    @property
    def smoothness(self) -> float:
        """Bound on the data Hessian of a step: m beta, as a batch of b units has up to b m rows.

        Source: privacy/README.md, "Unit of privacy".
        """
        return self.loss.unit_smoothness(self.max_rows_per_unit or 1)

    def steps(self, n_units: int, passes: int) -> int:
        """Steps of so many passes: passes ceil(n / b)."""
        return passes * math.ceil(n_units / self.batch_size)

    def options(self, n_units: int) -> dict[str, Any]:
        """The aggregate's options; only public numbers."""
        options = loss_options(self.loss, self.gradient_clip) | {
            "lambda": self.lambda_,
            "batch_size": self.batch_size,
            "schedule": self.schedule.kind,
            "rows": n_units,
        }
        if self.max_rows_per_unit is not None:
            options["max_rows_per_unit"] = self.max_rows_per_unit
        if self.schedule.kind in ("constant", "inverse_sqrt"):
            options["step_size"] = self.schedule.step_size
        if self.schedule.kind in ("decreasing", "sqrt_decreasing"):
            options["exponent"] = self.exponent
        if math.isfinite(self.radius):
            options["radius"] = self.radius
        if self.average_from > 0:
            options["average_from"] = self.average_from
        if self.schedule.max_step == math.inf:
            options["capped"] = False
        if self.momentum > 0.0:
            options["momentum"] = self.momentum
        if self.noise is not None:
            options |= {"noise": self.noise, "noise_scale": self.noise_scale}
        if self.sampling is not None:
            options |= {"sampling": self.sampling, "steps": self.steps(n_units, 1)}
        return options

    def record(self, n_units: int) -> dict[str, Any]:
        """Everything that fixes the passes, as a JSON-ready mapping of public numbers."""
        return {
            "options": self.options(n_units),
            "fresh_order": self.fresh_order,
            "allocated": self.allocated,
        }

    def lines(self) -> Sequence[tuple[str, str]]:
        """Headings and texts that describe the passes."""
        again = ", in a fresh order each (the rows are packed again every pass)" if self.fresh_order else ""
        most = "at most " if self.may_stop else ""
        passes = f"{most}{self.passes} over the packed rows{again}"
        batches = f"batches of {self.batch_size:,}"
        if self.sampling is not None:
            passes = f"{self.passes}, each of as many steps as batches make up the table"
            batches = f"{batches} on average, drawn at random for every step"
        if self.allocated:
            batches = f"{batches} on average, by random allocation"
        first = f"first step {self.schedule.step(1):.3g}{self._cap_text()}"
        steps = [
            f"{batches}, schedule {self.schedule.kind}, {first}",
            f"lambda {self.lambda_:g}",
        ]
        if self.momentum > 0.0:
            steps.append(f"momentum {self.momentum:g}")
        if math.isfinite(self.gradient_clip):
            steps.append(f"a row's derivatives clipped at norm {self.gradient_clip:.3g}")
        if math.isfinite(self.radius):
            steps.append(f"in a ball of radius {self.radius:g}")
        if self.average_from > 0:
            steps.append(f"the model is the mean from step {self.average_from:,} on")
        return (("Passes", passes), ("Steps", ", ".join(steps)))

    def _cap_text(self) -> str:
        """That steps are shorter than their size says, where they are."""
        asked = self.schedule.step_size
        if asked <= self.schedule.max_step:
            return ""
        return f" (no step is longer: the cap 1/(beta + lambda) is below step_size {asked:.3g})"


def make_sgd(
    problem: Problem,
    *,
    loss: Loss,
    schedule: str,
    step_size: float,
    batch_size: int,
    passes: int,
    lambda_: float = 0.0,
    exponent: float = 0.5,
    radius: float | None = None,
    average: str | None = None,
    tail: float | None = None,
    fresh_order: bool = False,
    momentum: float = 0.0,
    capped: bool = True,
) -> Sgd:
    """The passes of a run, by what was decided.

    Parameters
    ----------
    problem : Problem
    loss : Loss
    schedule : str
        Kind of the schedule.
    step_size : float
        Of "constant" and "inverse_sqrt", in (0, inf).
    batch_size, passes : int
        >= 1.
    lambda_ : float
        In [0, inf).
    exponent : float
        c of n^c, in [0, 1].
    radius : float or None
        None for no ball.
    average : str or None
        See `average_start`; None for the last iterate.
    tail : float or None
        In (0, 1]; None for `DEFAULT_TAIL`.
    fresh_order : bool
    momentum : float
        In [0, 1).
    capped : bool
        False where noise in every step makes any step size safe.

    Raises
    ------
    SpecError
        For strongly convex steps without a regulariser.

    Notes
    -----
    Every step is capped by 1 / (beta + lambda), unless `capped` is false.
    Source: privacy/README.md, "Schedules".
    """
    if schedule == "strongly_convex" and lambda_ == 0.0:
        raise SpecError("schedule = strongly_convex needs lambda > 0")
    steps = passes * math.ceil(problem.n_units / batch_size)
    return Sgd(
        loss=loss,
        schedule=Schedule.resolve(
            schedule,
            step_size=step_size,
            exponent=exponent,
            n=problem.n_units,
            smoothness=loss.unit_smoothness(problem.max_rows_per_unit),
            lambda_=lambda_,
            capped=capped,
        ),
        exponent=exponent,
        lambda_=lambda_,
        radius=radius or math.inf,
        batch_size=batch_size,
        passes=passes,
        average_from=average_start(average or "none", tail or DEFAULT_TAIL, steps),
        fresh_order=fresh_order,
        max_rows_per_unit=problem.max_rows_per_unit if problem.unit is not None else None,
        momentum=momentum,
    )


def average_start(average: str, tail: float, steps: int) -> int:
    """First averaged step for "none", "all" or the last `tail` share of the steps; 0 for none."""
    if average == "none" or steps == 0:
        return 0
    share = 1.0 if average == "all" else tail
    return steps - max(1, math.ceil(share * steps)) + 1


def run_passes(job: Job, sgd: Sgd, tolerance: float | None = None) -> tuple[FloatArray, int]:
    """Run the passes; weights without noise stay on the server but for the final model.

    Parameters
    ----------
    job : Job
    sgd : Sgd
    tolerance : float or None
        Stop when the loss falls by less than this share in a pass; for runs that are not private only.
        None: take all passes.

    Returns
    -------
    weights : ndarray of shape (n_weights,)
        The last iterate, or the average; un-noised but for the noise of the steps.
    passes : int
        Passes taken.
    """
    n_units = job.plan.problem.n_units
    if n_units == 0:
        return np.zeros(job.plan.problem.n_weights), sgd.passes
    state = job.blocks.work_table(
        "state", sql.SQL("pass integer NOT NULL, state dpml.epoch NOT NULL, blocks pg_catalog.int8 NOT NULL")
    )
    options = json_parameter(sgd.options(n_units))
    parameters = {"options": options, "steps": sgd.steps(n_units, 1), "sampling": sgd.sampling}
    in_memory = sgd.sampling is not None and _fits_in_memory(job)
    sizes = None
    if sgd.allocated:
        sizes = job.blocks.work_table("sizes", sql.SQL("sizes pg_catalog.int4[] NOT NULL"))
        # Random numbers compress badly, and to try takes a third of the time that it takes to draw them.
        job.blocks.session.execute(
            sql.SQL("ALTER TABLE {} ALTER COLUMN sizes SET STORAGE EXTERNAL").format(sizes)
        )
    previous_loss = np.inf
    done = 0
    for done in range(1, sgd.passes + 1):
        if sgd.fresh_order and done > 1:
            job.blocks.repack()
        if sizes is not None and (sgd.fresh_order or done == 1):
            _allocate(job, sizes, n_units, sgd.steps(n_units, 1))
        statement = _pass_statement(sgd, in_memory=in_memory).format(
            state=state, sizes=sizes, blocks=job.blocks.packed.blocks
        )
        rows, blocks = job.blocks.session.fetch_one(statement, parameters | {"pass": done})
        job.require_all(rows, blocks)
        job.report("pass", done, sgd.passes)
        if tolerance is not None:
            loss = _loss(job, state, options, done)
            if previous_loss - loss < tolerance * abs(previous_loss):
                break
            previous_loss = loss
    weights, average, steps = job.blocks.session.fetch_one(
        sql.SQL(
            "SELECT (state).weights, (state).average, (state).steps FROM {} WHERE pass = %(pass)s"
        ).format(state),
        {"pass": done},
    )
    if steps != sgd.steps(n_units, done):
        raise RunFailedError("a pass did not see every packed row, and no model was stored")
    return np.asarray(weights if average is None else average, dtype=np.float64), done


def _allocate(job: Job, sizes: sql.Identifier, n_units: int, batches: int) -> None:
    """Let every unit draw its batch; the counts stay on the server.

    Source: privacy/README.md, "Batches by random allocation".
    """
    job.blocks.session.execute(sql.SQL("DELETE FROM {}").format(sizes))
    job.blocks.session.execute(
        sql.SQL("INSERT INTO {} SELECT dpml.batch_sizes(%(units)s, %(batches)s)").format(sizes),
        {"units": n_units, "batches": batches},
    )


def _pass_statement(sgd: Sgd, *, in_memory: bool) -> sql.SQL:
    """The statement of one pass; it adds a row to the states, and returns the rows and the blocks it saw."""
    start = "(SELECT s.state FROM {state} AS s WHERE s.pass = %(pass)s - 1)"
    if sgd.allocated:
        return sql.SQL(
            f"INSERT INTO {{state}} SELECT %(pass)s, dpml.sgd_allocated(b.block_no, b.block, {start}, "
            "(TABLE {sizes}), %(options)s), pg_catalog.count(*) FROM {blocks} AS b "
            "RETURNING (state).rows, blocks"
        )
    if sgd.sampling is None or in_memory:
        name = "sgd_epoch" if sgd.sampling is None else "sgd_poisson"
        return sql.SQL(
            f"INSERT INTO {{state}} SELECT %(pass)s, dpml.{name}(b.block_no, b.block, {start}, %(options)s), "
            "pg_catalog.count(*) FROM {blocks} AS b RETURNING (state).rows, blocks"
        )
    # Each block has one row that is not drawn, with the number of its rows.
    return sql.SQL(
        "INSERT INTO {state} SELECT %(pass)s, "
        f"dpml.sgd_poisson_steps(d.step, d.block, d.rows, {start}, %(options)s), pg_catalog.count(d.rows) "
        "FROM (SELECT p.step, p.block, p.rows "
        "FROM {blocks} AS b, dpml.poisson_steps(b.block, %(steps)s::integer, %(sampling)s) AS p "
        "ORDER BY p.step) AS d RETURNING (state).rows, blocks"
    )


def _fits_in_memory(job: Job) -> bool:
    """Whether `dpml.sgd_poisson` could hold all rows. Source: privacy/README.md, "Poisson batches"."""
    session, source, problem = job.blocks.session, job.blocks.source, job.plan.problem
    n_rows = problem.n_units * problem.max_rows_per_unit
    return work_memory(session, n_rows * (_BYTES_OF_ROW + row_bytes(source))).fits


def _loss(job: Job, state: sql.Identifier, options: Any, done: int) -> float:
    """Objective after a pass; for runs that are not private only."""
    (loss,) = job.blocks.session.fetch_one(
        sql.SQL(
            "SELECT dpml.loss(b.block, (SELECT (s.state).weights FROM {state} AS s WHERE s.pass = %(pass)s), "
            "%(options)s) FROM {blocks} AS b"
        ).format(state=state, blocks=job.blocks.packed.blocks),
        {"pass": done, "options": options},
    )
    return float(loss) if loss is not None else 0.0
