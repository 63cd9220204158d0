# SPDX-License-Identifier: PostgreSQL
"""Passes of dual coordinate descent, by `dpml.scd_epoch`: options, and how they are run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pg_dpml.blocks.packing import row_bytes, work_memory
from pg_dpml.blocks.source import Source
from pg_dpml.database.adapters import json_parameter
from pg_dpml.database.session import Session, sql
from pg_dpml.errors import RunFailedError, SpecError
from pg_dpml.kernels import FloatArray, Loss
from pg_dpml.training.job import Job
from pg_dpml.training.losses import loss_options
from pg_dpml.training.plan import Problem

__all__ = ["Scd", "require_room", "run_passes"]

_BYTES_OF_ROW = 32
"""In memory, beside what a row takes in a block: where it and its unit are, its dual, and the dual's copy."""

_BYTES_OF_DUAL = 44
"""A dual before and after a pass, and what both need for a block, which may have a single row."""

_BYTES_OF_HEADERS = 64
"""More than the array of all duals has before them."""

_MOST_DUALS = (2**30 - 2**14) // 12
"""So many fit into one value of the server, even in blocks of a single row."""


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
        """Steps of so many passes: passes ceil(n / b), b the batch size."""
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
            ("any_order", self.shuffled),
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
        most = "at most " if self.exact else ""
        passes = f"{most}{self.passes} over the packed rows"
        batches = f"batches of {self.batch_size:,}"
        if self.sampling is not None:
            passes = f"{self.passes}, each of as many steps as batches make up the table"
            batches = f"{batches} on average, drawn at random for every step"
        if self.sequential:
            batches = f"{batches}, whose updates see each other"
        steps = [f"{batches}, lambda {self.lambda_:.3g}"]
        if math.isfinite(self.update_clip):
            steps.append(f"an update of a dual clipped at {self.update_clip:.3g}")
        if 0 < self.average_from < self.passes:
            steps.append(
                f"the model is the mean over the ends of passes {self.average_from} to {self.passes}"
            )
        return (("Passes", passes), ("Steps", ", ".join(steps)))


_RANGES = 1000
"""So many ranges of pages there are in a random order of the blocks: page by page takes twice the time."""

_ENDED = (
    "v pg_catalog.float8[] NOT NULL, steps pg_catalog.int8 NOT NULL, rows pg_catalog.int8 NOT NULL, "
    "blocks pg_catalog.int8 NOT NULL"
)


def _next_table(job: Job, ends: list[sql.Identifier]) -> sql.Identifier:
    """Put an empty table for the end of a pass first, before that of the last pass; reuse an older one."""
    session = job.blocks.session
    if len(ends) == 2:
        ends.reverse()
        session.execute(sql.SQL("TRUNCATE {}").format(ends[0]))
        return ends[0]
    ends.insert(0, job.blocks.work_table("duals", sql.SQL(_ENDED + ", ended dpml.scd_pass NOT NULL")))
    # The digits of duals are as random as the rows: not worth the time of a compression.
    session.execute(sql.SQL("ALTER TABLE {} ALTER COLUMN ended SET STORAGE EXTERNAL").format(ends[0]))
    return ends[0]


_NO_START = sql.SQL("NULL::dpml.scd_pass")
_START = sql.SQL("(SELECT l.ended FROM {last} AS l)")

# One pass. It adds v to the states, and returns the rows and the blocks that it saw.
_PASS = sql.SQL(
    "WITH ended AS ({ended}) INSERT INTO {state} SELECT %(pass)s, e.* FROM ended AS e RETURNING rows, blocks"
)
_ENDS = (
    "SELECT (e.state).v, (e.state).steps, (e.state).rows, "
    "pg_catalog.cardinality((e.state).duals) AS blocks{state} "
    "FROM (SELECT dpml.scd_epoch(b.block_no, b.block, NULL, {{start}}, %(options)s) AS state "
    "FROM {{visits}} OFFSET 0) AS e"
)
# The duals are as large as the value that they are part of, so it goes into its table at once, not through a
# temporary file. Nobody reads those of the last pass.
_WITH_DUALS = sql.SQL(
    f"INSERT INTO {{next}} {_ENDS.format(state=', e.state')} RETURNING v, steps, rows, blocks"
)
_WITHOUT_DUALS = sql.SQL(_ENDS.format(state=""))
_IN_ORDER = sql.SQL("{blocks} AS b")

# Ranges of places in the table of blocks, in random order; within a range blocks keep theirs. A sort of the
# blocks themselves would write them all.
_BY_RANGES = sql.SQL(
    "(SELECT pg_catalog.format('(%%s,0)', p.page)::pg_catalog.tid AS first, "
    "pg_catalog.format('(%%s,65535)', p.page + {pages} - 1)::pg_catalog.tid AS last "
    "FROM pg_catalog.generate_series(0, {most}, {pages}) AS p (page) ORDER BY pg_catalog.random()) AS r, "
    "LATERAL (SELECT own.block_no, own.block FROM {blocks} AS own "
    "WHERE own.ctid >= r.first AND own.ctid <= r.last OFFSET 0) AS b"
)
_ONE_BY_ONE = sql.SQL(
    "(SELECT o.ctid AS at FROM {blocks} AS o ORDER BY pg_catalog.random()) AS r, "
    "LATERAL (SELECT own.block_no, own.block FROM {blocks} AS own WHERE own.ctid = r.at OFFSET 0) AS b"
)

_PAGES = sql.SQL(
    "SELECT pg_catalog.pg_relation_size(b.tableoid) / "
    "pg_catalog.current_setting('block_size')::pg_catalog.int8 FROM {blocks} AS b LIMIT 1"
)

_GAP = sql.SQL(
    "SELECT g.sums, (SELECT pg_catalog.sum(v * v) FROM pg_catalog.unnest({v}) AS v) FROM (SELECT "
    "dpml.scd_gap(b.block, d.duals, {v}, %(options)s) AS sums FROM {blocks} AS b "
    "JOIN (SELECT u.duals, u.place - 1 AS block_no FROM {last} AS l, pg_catalog.unnest((l.ended).duals) "
    "WITH ORDINALITY AS u (duals, place)) AS d USING (block_no) OFFSET 0) AS g"
)


def _visits(job: Job, scd: Scd) -> sql.Composable:
    """The blocks of a pass in its order, as a FROM list."""
    blocks = job.blocks.packed.blocks
    if not scd.shuffled:
        return _IN_ORDER.format(blocks=blocks)
    (pages,) = job.blocks.session.fetch_one(_PAGES.format(blocks=blocks))
    if pages <= _RANGES:
        return _ONE_BY_ONE.format(blocks=blocks)
    return _BY_RANGES.format(blocks=blocks, pages=sql.Literal(pages // _RANGES), most=sql.Literal(pages - 1))


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
    session = job.blocks.session
    state = job.blocks.work_table("state", sql.SQL("pass integer NOT NULL, " + _ENDED))
    ends: list[sql.Identifier] = []  # the tables of the last pass, with all duals, and of the one before
    visits = _visits(job, scd)
    options = json_parameter(scd.options(problem.n_units))
    done = rows = 0
    for done in range(1, scd.passes + 1):
        names = {"start": _START.format(last=ends[0]) if ends else _NO_START, "visits": visits}
        ended = _WITHOUT_DUALS
        if done < scd.passes or tolerance is not None:
            ended = _WITH_DUALS
            names["next"] = _next_table(job, ends)
        statement = _PASS.format(ended=ended.format(**names), state=state)
        rows, seen = session.fetch_one(statement, {"pass": done, "options": options})
        job.require_all(rows, seen)
        job.report("pass", done, scd.passes)
        if tolerance is not None and _relative_gap(job, scd, state, ends[0], done) <= tolerance:
            break
    last, *_ = states = session.fetch(
        sql.SQL("SELECT v, steps FROM {} WHERE pass >= %(first)s ORDER BY pass DESC").format(state),
        {"first": min(scd.average_from or done, done)},
    )
    # Shuffled rows are batches of their own, whatever units they are of.
    if last[1] != (rows * done if scd.shuffled else scd.steps(problem.n_units, done)):
        raise RunFailedError("a pass did not see every packed row, and no model was stored")
    v = np.mean([np.asarray(v, dtype=np.float64) for v, _ in states], axis=0)
    return np.asarray(v / (scd.lambda_ * problem.n_units)), done


def _relative_gap(job: Job, scd: Scd, state: sql.Identifier, last: sql.Identifier, done: int) -> float:
    """Duality gap after a pass, as a share of the objective; for runs that are not private only."""
    problem = job.plan.problem
    v = sql.SQL("(SELECT s.v FROM {} AS s WHERE s.pass = %(pass)s)").format(state)
    statement = _GAP.format(v=v, last=last, blocks=job.blocks.packed.blocks)
    options = json_parameter(scd.options(problem.n_units))
    (losses, conjugates, _), square = job.blocks.session.fetch_one(
        statement, {"pass": done, "options": options}
    )
    n = problem.n_units
    regulariser = 0.5 * square / (scd.lambda_ * n * n)
    primal = losses / n + regulariser
    gap = primal - (conjugates / n - regulariser)
    return float(gap / primal) if primal > 0.0 else 0.0


def require_room(session: Session, source: Source, problem: Problem, *, in_memory: bool) -> None:
    """Refuse more rows than the server may hold, however long they are and however blocks hold them.

    Parameters
    ----------
    session : Session
    source : Source
    problem : Problem
        Its largest number of rows is public.
    in_memory : bool
        Whether the run holds all rows in memory, as Poisson batches do, and not their duals alone.

    Raises
    ------
    SpecError
        Before a charge; it names how much memory is needed.

    Notes
    -----
    Source: privacy/README.md, "Poisson batches".
    """
    n_rows = problem.n_units * problem.max_rows_per_unit
    if n_rows > _MOST_DUALS:
        raise SpecError(
            f"the server can keep the duals of {_MOST_DUALS:,} rows, and the data may have {n_rows:,}: take "
            "another method, such as dp-sgd"
        )
    bytes_of_row = max(_BYTES_OF_DUAL, in_memory * (_BYTES_OF_ROW + row_bytes(source)))
    needed = _BYTES_OF_HEADERS + n_rows * bytes_of_row
    memory = work_memory(session, needed)
    if not memory.fits:
        what = "batches drawn at random need all rows" if in_memory else "the duals of all rows must be"
        raise SpecError(
            f"{what} in memory, {math.ceil(needed / 2**20):,} MB, and dpml.work_mem is {memory.limit}: set "
            "it higher for the role that trains (ALTER ROLE ... SET dpml.work_mem), or take another method, "
            "such as dp-sgd"
        )
