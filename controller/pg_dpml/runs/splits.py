# SPDX-License-Identifier: PostgreSQL
"""One random split of a table: train a method on one portion, measure its model on the other.

The figures are exact and not private; `compare` states who may see them.
"""

from __future__ import annotations

import time
from dataclasses import replace

from pg_dpml.blocks.blocks import Blocks
from pg_dpml.blocks.portions import pack_portions
from pg_dpml.blocks.source import Source
from pg_dpml.database.session import Session, sql
from pg_dpml.errors import SpecError
from pg_dpml.evaluation import scoring
from pg_dpml.names import shown
from pg_dpml.runs.train import run_method
from pg_dpml.training.job import Job
from pg_dpml.training.plan import Plan, Problem

__all__ = ["Split"]


class Split:
    """Two random portions of the units, packed: one to train on, one to measure on.

    Parameters
    ----------
    session : Session
        In a part that `Session.discarded` undoes, which drops the portions.
    source : Source
    problem : Problem
        Its n_units is the size of the portion to train on.
    n_test : int
        Units of the other portion.
    needs_order : bool
        Whether a method that is measured takes rows in a random order.

    Raises
    ------
    SpecError
        If the other portion has no figure.
    """

    def __init__(
        self, session: Session, source: Source, problem: Problem, n_test: int, *, needs_order: bool
    ) -> None:
        self.session = session
        self.source = source
        self.problem = problem
        sizes = (problem.n_units, n_test)
        self.trained, self.tested = pack_portions(session, source, sizes, needs_order=needs_order)
        self.n_labels, self.spread = self._labels()

    def _labels(self) -> tuple[int, float]:
        """Number of test rows with a declared label, and the sum of squared deviations of their labels."""
        summary = sql.SQL("pg_catalog.count(*), coalesce(pg_catalog.var_pop(u.y), 0)")
        ((n_labels, variance),) = self.session.fetch(_labelled(summary, self.tested))
        label = self.source.encoder["label"]["name"]
        if n_labels == 0:
            raise SpecError(f"label {shown(label)}: no row of a test portion has a declared value")
        if self.problem.task == "regression" and variance == 0.0:
            raise SpecError(
                f"label {shown(label)} has a single value in a test portion, so that R squared is undefined"
            )
        return n_labels, n_labels * variance

    def majority(self) -> list[float]:
        """Accuracy of predicting the training portion's most frequent class; empty for a regression."""
        if self.problem.task == "regression":
            return []
        trained, tested = self._classes(self.trained), self._classes(self.tested)
        most_frequent = max(sorted(trained), key=lambda y: trained[y], default=0.0)
        return [tested.get(most_frequent, 0) / self.n_labels]

    def _classes(self, portion: Blocks) -> dict[float, int]:
        """Number of rows of every class that has rows."""
        counts = sql.SQL("u.y, pg_catalog.count(*)")
        return dict(self.session.fetch(_labelled(counts, portion) + sql.SQL("GROUP BY u.y")))

    def measure(self, plan: Plan) -> tuple[float, int | None, float]:
        """Train and measure a model: its figure, passes and seconds. The portions are unchanged."""
        with self.session.discarded():
            started = time.monotonic()
            # Copies, since they have the work tables of this model.
            result = run_method(Job(replace(self.trained), plan, _ignore))
            seconds = time.monotonic() - started
            (errors,) = scoring.errors(replace(self.tested), self.problem, [result])
        if self.problem.task == "regression":
            value = 1.0 - float(scoring.LARGEST_SQUARED_ERROR * errors / self.spread)
        else:
            value = 1.0 - float(errors / self.n_labels)
        return value, result.passes, seconds


def _labelled(select: sql.SQL, portion: Blocks) -> sql.Composed:
    """Query of the packed rows u with a declared label; the others are zero rows with label 0."""
    return sql.SQL(
        "SELECT {} FROM {} AS b, dpml.unpack(b.block) AS u (x, y) "
        "WHERE (u.y <> 0 OR 0::pg_catalog.float4 <> ANY (u.x)) "
    ).format(select, portion.packed.blocks)


def _ignore(phase: str, done: int, total: int) -> None:
    """The progress of one model among many is not shown."""
