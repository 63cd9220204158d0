# SPDX-License-Identifier: PostgreSQL
"""One run inside its transaction: what a method's passes work on."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from pg_dpml.database import Session, sql
from pg_dpml.kernels import FloatArray
from pg_dpml.methods.plan import Plan, Problem
from pg_dpml.rows import PackedRows, Source
from pg_dpml.spec import PrivacySpec, TrainSpec

__all__ = ["Job", "Method", "Progress", "Result"]

Progress = Callable[[str, int, int], None]
"""Called with a phase ("pack", "pass"), the units done and the units in all."""


class Result(NamedTuple):
    """What a method releases: it carries its noise already, where the run is private."""

    weights: FloatArray
    """Shape (n_weights,), for the rows as they are encoded."""
    passes: int
    """Passes taken."""
    whitening: FloatArray | None = None
    """P, shape (n_features, n_features), where a score is <w, x> / ||P x||."""


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

    def work_table(self, kind: str, columns: sql.SQL) -> sql.Identifier:
        """A new unlogged table of a random name, which only the running role can read."""
        table = sql.Identifier("dpml_work", f"{kind}_{secrets.token_hex(8)}")
        self.session.execute(sql.SQL("CREATE UNLOGGED TABLE {} ({})").format(table, columns))
        self._tables.append(table)
        return table

    def close(self) -> None:
        """Drop the work tables: the transaction may commit, so a rollback does not see to it."""
        for table in (*self._tables, self.packed.blocks):
            self.session.execute(sql.SQL("DROP TABLE {}").format(table))


class Method(Protocol):
    """What a module of this package offers to the one loop in train.py."""

    def plan(self, problem: Problem, privacy: PrivacySpec | None, spec: TrainSpec) -> Plan:
        """Fix passes and noise from public numbers; privacy is None exactly where nothing is private."""

    def run(self, job: Job) -> Result:
        """Take the passes and release the model."""
