# SPDX-License-Identifier: PostgreSQL
"""Passes of dual coordinate descent, by `dpml.scd_epoch`: options, and how they are run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pg_dpml.blocks.packing import rows_in_memory
from pg_dpml.blocks.source import Source
from pg_dpml.database.adapters import json_parameter
from pg_dpml.database.session import Session, sql
from pg_dpml.errors import RunFailedError, SpecError
from pg_dpml.kernels import FloatArray, Loss
from pg_dpml.training.job import Job
from pg_dpml.training.losses import loss_options
from pg_dpml.training.plan import Problem

__all__ = ["Scd", "require_room", "run_passes"]

_BYTES_OF_ROW = 24
"""In memory, beside what a row takes in a block: where it and its unit are, and its dual."""


@dataclass(frozen=True)
class Scd:
    """Passes of dual coordinate descent, as the aggregate `dpml.scd_epoch` runs them.

    Attributes
    ----------
    loss : Loss
    lambda_ : float
        L2 regulariser, in (0, inf): the model is v/(lambda n).
    batch_size, passes : int
    average_from : int
        First pass whose v, as it is at the end of the pass, enters the average; 0 releases the last.
    max_rows_per_unit : int or None
        m, where batches count units of privacy of up to m rows; None: rows.
    sequential : bool
        Whether the updates of a batch see each other.
    shuffled : bool
        Whether every pass visits the blocks in a fresh random order.
    exact : bool
        Whether the update of a logistic loss is exact; else it is one Newton step.
    update_clip : float
        C, the most by which one update moves a dual; infinity for no bound.
    noise_scale : float
        Standard deviation of the noise on v in every step; 0 for none.
    dual_noise : bool
        Whether the duals of a batch have noise of the same scale.
    sampling : float or None
        Probability, in (0, 1], of every unit to be in a batch, by a coin of its own; None: batches are cut
        from the shuffled rows.
    """

    loss: Loss
    lambda_: float
    batch_size: int
    passes: int
    average_from: int = 0
    max_rows_per_unit: int | None = None
    sequential: bool = False
    shuffled: bool = False
    exact: bool = False
    update_clip: float = math.inf
    noise_scale: float = 0.0
    dual_noise: bool = False
    sampling: float | None = None

    def steps(self, n_units: int, passes: int) -> int:
        """Steps of so many passes: passes ceil(n / L)."""
        return passes * math.ceil(n_units / self.batch_size)

    def options(self, n_units: int) -> dict[str, Any]:
        """The aggregate's options; only public numbers."""
        options = loss_options(self.loss) | {
            "lambda": self.lambda_,
            "rows": n_units,
            "batch_size": self.batch_size,
        }
        if self.max_rows_per_unit is not None:
            options["max_rows_per_unit"] = self.max_rows_per_unit
        for name, given in (
            ("sequential", self.sequential),
            ("exact", self.exact),
            ("dual_noise", self.dual_noise and self.noise_scale > 0.0),
        ):
            if given:
                options[name] = True
        if math.isfinite(self.update_clip):
            options["update_clip"] = self.update_clip
        if self.noise_scale > 0.0:
            options |= {"noise": "gaussian", "noise_scale": self.noise_scale}
        if self.sampling is not None:
            options |= {"sampling": self.sampling, "steps": self.steps(n_units, 1)}
        return options

    def record(self, n_units: int) -> dict[str, Any]:
        """Everything that fixes the passes, as a JSON-ready mapping of public numbers."""
        return {"options": self.options(n_units), "average_from": self.average_from}

    def lines(self) -> Sequence[tuple[str, str]]:
        """Headings and texts that describe the passes."""
        passes = f"{self.passes} over the packed rows"
        batches = f"batches of {self.batch_size}"
        if self.sampling is not None:
            passes = f"{self.passes} of ceil(n / L) steps"
            batches = f"{batches} on average, drawn at random for every step"
        if self.sequential:
            batches = f"{batches}, whose updates see each other"
        steps = [f"{batches}, lambda {self.lambda_:.3g}"]
        if math.isfinite(self.update_clip):
            steps.append(f"an update of a dual clipped at {self.update_clip:.3g}")
        if self.average_from > 0:
            steps.append(
                f"the model is the mean over the ends of passes {self.average_from} to {self.passes}"
            )
        return (("Passes", passes), ("Steps", ", ".join(steps)))


@dataclass(frozen=True)
class _Tables:
    """Work tables of a run: v after each pass, and the duals after the passes with even and odd numbers."""

    state: sql.Identifier
    duals: tuple[sql.Identifier, sql.Identifier]

    @classmethod
    def create(cls, job: Job) -> _Tables:
        state = job.blocks.work_table(
            "state",
            sql.SQL(
                "pass integer NOT NULL, v pg_catalog.float8[] NOT NULL, steps pg_catalog.int8 NOT NULL, "
                "rows pg_catalog.int8 NOT NULL, blocks pg_catalog.int8 NOT NULL"
            ),
        )
        return cls(state, (_table_of_duals(job), _table_of_duals(job)))

    def after(self, done: int) -> sql.Identifier:
        """The duals after so many passes, and until the next but one."""
        return self.duals[done % 2]


def _table_of_duals(job: Job) -> sql.Identifier:
    table = job.blocks.work_table(
        "duals", sql.SQL("block_no integer PRIMARY KEY, duals pg_catalog.bytea NOT NULL")
    )
    # Their digits are as random as the rows: not worth the time of a compression.
    job.blocks.session.execute(
        sql.SQL("ALTER TABLE {} ALTER COLUMN duals SET STORAGE EXTERNAL").format(table)
    )
    return table


_DUALS_OF_BLOCK = sql.SQL("(SELECT d.duals FROM {duals} AS d WHERE d.block_no = b.block_no)")

# One pass, over blocks that come with their places in its order. It adds v to the states and keeps the duals,
# and returns the rows and the blocks that it saw.
_PASS = sql.SQL(
    "WITH {places}ended AS MATERIALIZED (SELECT dpml.scd_epoch({place}, {block}, {duals_of_block}, "
    "(SELECT ROW(s.v, s.steps, s.rows, NULL)::dpml.scd_pass FROM {state} AS s WHERE s.pass = %(pass)s - 1), "
    "%(options)s) AS state, pg_catalog.count(*) AS blocks FROM {ordered} AS b), "
    "kept AS (INSERT INTO {next_duals} SELECT {block_no}, d.duals FROM ended AS e, "
    "pg_catalog.unnest((e.state).duals) WITH ORDINALITY AS d (duals, place){to_block_no}) "
    "INSERT INTO {state} SELECT %(pass)s, (e.state).v, (e.state).steps, (e.state).rows, e.blocks "
    "FROM ended AS e RETURNING rows, blocks"
)
_IN_ORDER = {
    "places": sql.SQL(""),
    "place": sql.SQL("b.block_no"),
    "block": sql.SQL("b.block"),
    "block_no": sql.SQL("d.place - 1"),
    "to_block_no": sql.SQL(""),
}
# Not by a join or a sort of the blocks themselves: that would write them all.
_SHUFFLED = {
    "places": sql.SQL(
        "places AS MATERIALIZED (SELECT (pg_catalog.row_number() OVER () - 1)::integer AS place, o.block_no, "
        "o.at FROM (SELECT b.block_no, b.ctid AS at FROM {blocks} AS b ORDER BY pg_catalog.random()) AS o), "
    ),
    "place": sql.SQL("b.place"),
    "block": sql.SQL("(SELECT own.block FROM {blocks} AS own WHERE own.ctid = b.at)"),
    "block_no": sql.SQL("p.block_no"),
    "to_block_no": sql.SQL(" JOIN places AS p ON p.place = d.place - 1"),
}

_GAP = sql.SQL(
    "SELECT g.sums, (SELECT pg_catalog.sum(v * v) FROM pg_catalog.unnest({v}) AS v) FROM (SELECT "
    "dpml.scd_gap(b.block, {duals_of_block}, {v}, %(options)s) AS sums FROM {blocks} AS b OFFSET 0) AS g"
)


def run_passes(job: Job, scd: Scd, tolerance: float | None = None) -> tuple[FloatArray, int]:
    """Run the passes; the duals, and v without noise, stay on the server but for v at the end.

    Parameters
    ----------
    job : Job
    scd : Scd
    tolerance : float or None
        Stop when the duality gap is at most this share of the objective; for runs that are not private
        only. None: take all passes.

    Returns
    -------
    weights : ndarray of shape (n_features,)
        v/(lambda n), of the last v or of their average; un-noised but for the noise of the steps.
    passes : int
        Passes taken.

    Notes
    -----
    Source: privacy/README.md, "Coordinate descent".
    """
    problem = job.plan.problem
    if problem.n_units == 0:
        return np.zeros(problem.n_weights), scd.passes
    session, blocks = job.blocks.session, job.blocks.packed.blocks
    tables = _Tables.create(job)
    options = json_parameter(scd.options(problem.n_units))
    done = rows = 0
    for done in range(1, scd.passes + 1):
        if done > 2:
            session.execute(sql.SQL("TRUNCATE {}").format(tables.after(done)))
        parts = _SHUFFLED if scd.shuffled else _IN_ORDER
        statement = _PASS.format(
            duals_of_block=_DUALS_OF_BLOCK.format(duals=tables.after(done - 1)),
            next_duals=tables.after(done),
            state=tables.state,
            ordered=sql.SQL("places") if scd.shuffled else blocks,
            **{name: part.format(blocks=blocks) for name, part in parts.items()},
        )
        rows, seen = session.fetch_one(statement, {"pass": done, "options": options})
        job.require_all(rows, seen)
        job.report("pass", done, scd.passes)
        if tolerance is not None and _relative_gap(job, scd, tables, done) <= tolerance:
            break
    last, *_ = ended = session.fetch(
        sql.SQL("SELECT v, steps FROM {} WHERE pass >= %(first)s ORDER BY pass DESC").format(tables.state),
        {"first": min(scd.average_from or done, done)},
    )
    # Shuffled rows are batches of their own, whatever units they are of.
    if last[1] != (rows * done if scd.shuffled else scd.steps(problem.n_units, done)):
        raise RunFailedError("a pass did not see every packed row, and no model was stored")
    v = np.mean([np.asarray(v, dtype=np.float64) for v, _ in ended], axis=0)
    return np.asarray(v / (scd.lambda_ * problem.n_units)), done


def _relative_gap(job: Job, scd: Scd, tables: _Tables, done: int) -> float:
    """Duality gap after a pass, as a share of the objective; for runs that are not private only."""
    problem = job.plan.problem
    v = sql.SQL("(SELECT s.v FROM {} AS s WHERE s.pass = %(pass)s)").format(tables.state)
    statement = _GAP.format(
        v=v,
        duals_of_block=_DUALS_OF_BLOCK.format(duals=tables.after(done)),
        blocks=job.blocks.packed.blocks,
    )
    options = json_parameter(scd.options(problem.n_units))
    (losses, conjugates, _), square = job.blocks.session.fetch_one(
        statement, {"pass": done, "options": options}
    )
    n = problem.n_units
    regulariser = 0.5 * square / (scd.lambda_ * n * n)
    primal = losses / n + regulariser
    gap = primal - (conjugates / n - regulariser)
    return float(gap / primal) if primal > 0.0 else 0.0


def require_room(session: Session, source: Source, problem: Problem) -> None:
    """Refuse Poisson batches of more rows than the server may hold, however long they are: this is public.

    Raises
    ------
    SpecError
        Before a charge; it names how much memory is needed.

    Notes
    -----
    Source: privacy/README.md, "Poisson batches".
    """
    n_rows = problem.n_units * problem.max_rows_per_unit
    needed = rows_in_memory(session, source, n_rows, _BYTES_OF_ROW)
    if needed.fits is False:
        raise SpecError(
            f"batches drawn at random need all rows in memory, {math.ceil(needed.size / 2**20):,} MB, and "
            f"dpml.work_mem is {needed.limit}: set it higher for the role that trains (ALTER ROLE ... SET "
            "dpml.work_mem), or take another method, such as dp-sgd"
        )
