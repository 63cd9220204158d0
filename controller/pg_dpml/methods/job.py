# SPDX-License-Identifier: PostgreSQL
"""One run inside its transaction: what a method's passes work on."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from pg_dpml.blocks.rows import PackedRows, Source, whiten
from pg_dpml.database.database import Session, json_parameter, sql
from pg_dpml.errors import RunFailedError
from pg_dpml.kernels import FloatArray
from pg_dpml.methods.plan import Plan, Problem
from pg_dpml.spec.spec import PrivacySpec, TrainSpec

__all__ = ["GradientSums", "GramSums", "Job", "Method", "Progress", "Result"]

Progress = Callable[[str, int, int], None]
"""Called with a phase ("pack", "pass", "minimise"), the units done and the units in all."""


class Result(NamedTuple):
    """What a method releases: it carries its noise already, where the run is private."""

    weights: FloatArray
    """Shape (n_weights,), for the rows as they are encoded."""
    passes: int | None
    """Passes taken; None where their number depends on the rows of a private run, so that nobody is told."""
    whitening: FloatArray | None = None
    """P, shape (n_features, n_features), where a score is <w, x> / ||P x||."""


class GradientSums(NamedTuple):
    """Un-noised sums over packed rows; None where they were not asked for."""

    gradient: FloatArray | None
    """Shape (n_weights,), of the first model."""
    losses: FloatArray | None
    """Shape (n_models,)."""
    rows: int


class GramSums(NamedTuple):
    """Un-noised second moments of packed rows."""

    xx: FloatArray
    """Sum of x x', shape (n_features, n_features)."""
    xy: FloatArray
    """Sum of y x, shape (n_features,)."""
    rows: int


@dataclass
class Job:
    """The packed rows of a run and the transaction they live in.

    Attributes
    ----------
    session : Session
        At REPEATABLE READ; whatever is un-noised vanishes with it.
    source : Source
    plan : Plan
    packed : PackedRows
        Replaced when the rows are packed again.
    report : callable
        See `Progress`.
    """

    session: Session
    source: Source
    plan: Plan
    packed: PackedRows
    report: Progress
    _tables: list[sql.Identifier] = field(default_factory=list)
    _weights: sql.Identifier | None = None
    _rows: int | None = None

    def work_table(self, kind: str, columns: sql.SQL) -> sql.Identifier:
        """A new unlogged table of a random name, which only the running role can read."""
        table = sql.Identifier("dpml_work", f"{kind}_{secrets.token_hex(8)}")
        self.session.execute(sql.SQL("CREATE UNLOGGED TABLE {} ({})").format(table, columns))
        self._tables.append(table)
        return table

    def gradient(self, weights: FloatArray, options: Mapping[str, Any]) -> GradientSums:
        """Sums over all packed rows at fixed weights, un-noised.

        Parameters
        ----------
        weights : ndarray of shape (n_models * n_outputs * n_features,)
            They travel by COPY.
        options : mapping
            Of the aggregate `dpml.gradient`.

        Returns
        -------
        GradientSums
        """
        gradient, losses, rows = self.session.fetch_one(
            sql.SQL(
                "SELECT (g.sums).gradient, (g.sums).losses, (g.sums).rows FROM (SELECT "
                "dpml.gradient(b.block, (SELECT w.weights FROM {weights} AS w), %(options)s) AS sums "
                "FROM {blocks} AS b OFFSET 0) AS g"
            ).format(weights=self._send(weights), blocks=self.packed.blocks),
            {"options": json_parameter(options)},
        )
        return GradientSums(
            None if gradient is None else np.asarray(gradient, dtype=np.float64),
            None if losses is None else np.asarray(losses, dtype=np.float64),
            rows or 0,
        )

    def hessian(self, weights: FloatArray, options: Mapping[str, Any]) -> FloatArray:
        """Sum of the Hessians of the rows' losses, un-noised.

        Parameters
        ----------
        weights : ndarray of shape (n_features,)
            They travel by COPY.
        options : mapping
            Of the aggregate `dpml.gram`.

        Returns
        -------
        ndarray of shape (n_features, n_features)
            Symmetric.
        """
        (triangle,) = self.session.fetch_one(
            sql.SQL(
                "SELECT (g.sums).xx FROM (SELECT "
                "dpml.gram(b.block, (SELECT w.weights FROM {weights} AS w), %(options)s) AS sums "
                "FROM {blocks} AS b OFFSET 0) AS g"
            ).format(weights=self._send(weights), blocks=self.packed.blocks),
            {"options": json_parameter(options)},
        )
        return _symmetric(triangle, len(weights))

    def gram(self) -> GramSums:
        """Second moments of all packed rows, un-noised."""
        xx, xy, rows = self.session.fetch_one(
            sql.SQL(
                "SELECT (g.sums).xx, (g.sums).xy, (g.sums).rows "
                "FROM (SELECT dpml.gram(b.block) AS sums FROM {blocks} AS b OFFSET 0) AS g"
            ).format(blocks=self.packed.blocks)
        )
        d = self.plan.problem.n_features
        return GramSums(_symmetric(xx, d), np.zeros(d) if xy is None else np.asarray(xy), rows or 0)

    def whiten(self, whitening: FloatArray, norm: float) -> None:
        """Pack every row x again as x norm / ||P x||; P, shape (n_features, n_features), travels by COPY."""
        table = self.work_table("whitening", sql.SQL("matrix pg_catalog.float8[] NOT NULL"))
        self.session.copy_row(table, ["float8[]"], [whitening.reshape(-1)])
        self.packed = whiten(self.session, self.source, self.packed, table, norm)

    def require_all(self, rows: int, blocks: int | None = None) -> None:
        """Refuse a pass that did not see every packed row.

        Parameters
        ----------
        rows : int
            As many as in the pass before, of each unit 1 to m.
        blocks : int or None
            As many as were packed; None where the pass did not count them.

        Raises
        ------
        RunFailedError
            The run stays charged.
        """
        problem = self.plan.problem
        most = problem.n_rows * problem.max_rows_per_unit
        if (
            not problem.n_rows <= rows <= most
            or self._rows not in (None, rows)
            or blocks not in (None, self.packed.n_blocks)
        ):
            raise RunFailedError("a pass did not see every packed row, and no model was stored")
        self._rows = rows

    def _send(self, weights: FloatArray) -> sql.Identifier:
        """Weights in a work table of one row; one table for all passes, as each holds locks to the end."""
        if self._weights is None:
            self._weights = self.work_table("weights", sql.SQL("weights pg_catalog.float8[] NOT NULL"))
        else:
            # not TRUNCATE, which searches all shared buffers at once
            self.session.execute(sql.SQL("DELETE FROM {}").format(self._weights))
        self.session.copy_row(self._weights, ["float8[]"], [weights])
        return self._weights

    def close(self) -> None:
        """Drop the work tables: the transaction may commit, so a rollback does not see to it."""
        for table in (*self._tables, self.packed.blocks):
            self.session.execute(sql.SQL("DROP TABLE {}").format(table))


def _symmetric(triangle: Sequence[float] | None, size: int) -> FloatArray:
    """A symmetric matrix of its upper triangle, row by row; None: of no rows, so zeros."""
    full = np.zeros((size, size))
    if triangle is not None:
        full[np.triu_indices(size)] = triangle
    return full + np.triu(full, 1).T


class Method(Protocol):
    """What a module of this package offers to the one loop in train.py."""

    def plan(self, problem: Problem, privacy: PrivacySpec | None, spec: TrainSpec) -> Plan:
        """Fix passes and noise from public numbers; privacy is None exactly where nothing is private."""

    def run(self, job: Job) -> Result:
        """Take the passes and release the model."""
