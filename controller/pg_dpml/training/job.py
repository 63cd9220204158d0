# SPDX-License-Identifier: PostgreSQL
"""One run inside its transaction: what a method's passes work on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pg_dpml.blocks.blocks import Blocks, GradientSums
from pg_dpml.errors import RunFailedError
from pg_dpml.kernels import FloatArray
from pg_dpml.training.plan import Plan

__all__ = ["Job", "Progress", "Result"]

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
    spending: Sequence[Mapping[str, Any]] = ()
    """What was released and paid, a JSON-ready mapping for each choice, where releases decide about it."""


@dataclass
class Job:
    """A run: its plan, and the packed rows that its passes work on.

    Attributes
    ----------
    blocks : Blocks
    plan : Plan
    report : callable
        See `Progress`.
    """

    blocks: Blocks
    plan: Plan
    report: Progress
    _rows: int | None = field(default=None, init=False)

    def gradient(self, weights: FloatArray, options: Mapping[str, Any]) -> GradientSums:
        """Sums over all rows, by `Blocks.gradient`; an error as of `require_all`."""
        sums = self.blocks.gradient(weights, options)
        self.require_all(sums.rows)
        return sums

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
        most = problem.n_units * problem.max_rows_per_unit
        if (
            not problem.n_units <= rows <= most
            or self._rows not in (None, rows)
            or blocks not in (None, self.blocks.packed.n_blocks)
        ):
            raise RunFailedError("a pass did not see every packed row, and no model was stored")
        self._rows = rows
