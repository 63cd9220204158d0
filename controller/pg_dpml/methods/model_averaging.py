# SPDX-License-Identifier: PostgreSQL
"""Passes of SGD on each shard of a distributed table by itself, and the mean of the shards' models.

A shard's passes are those of a table that has its units alone: schedule and average are resolved by their
number, while step size, batch size and number of passes are the same in all shards.
Source: privacy/README.md, "Models of shards".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pg_dpml.blocks.distributed import ModelOfShard, PassOfShard, ShardedBlocks
from pg_dpml.errors import RunFailedError, SpecError
from pg_dpml.kernels import FloatArray, Loss
from pg_dpml.training.job import Job
from pg_dpml.training.plan import Problem, shards_text
from pg_dpml.training.sgd import Sgd

__all__ = ["ShardedSgd", "mean_model", "run_on_shards", "sgd_of_shards"]

_OWN = ("rows", "average_from")
"""Options of the aggregate that follow from the number of a shard's units."""


@dataclass(frozen=True)
class ShardedSgd:
    """Passes over each shard.

    Attributes
    ----------
    shards : tuple of Sgd
        Of each shard, at least one.
    units : tuple of int
        Units of privacy of each shard; a shard without any is not passed over.
    """

    shards: tuple[Sgd, ...]
    units: tuple[int, ...]

    @property
    def largest(self) -> Sgd:
        """Of the shard with the most units."""
        return self.shards[max(range(len(self.units)), key=self.units.__getitem__)]

    @property
    def loss(self) -> Loss:
        """The loss that is minimised."""
        return self.largest.loss

    @property
    def passes(self) -> int:
        """Passes over every shard."""
        return self.largest.passes

    @property
    def weights(self) -> tuple[float, ...]:
        """The share of each shard in the mean: that of its units."""
        n_units = sum(self.units)
        return tuple(units / n_units if n_units > 0 else 0.0 for units in self.units)

    def options(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """The aggregate's options for all shards, and more of each."""
        found = [sgd.options(units) for sgd, units in zip(self.shards, self.units, strict=True)]
        common = {name: value for name, value in found[0].items() if name not in _OWN}
        return common, [{name: one[name] for name in _OWN if name in one} for one in found]

    def record(self, n_units: int) -> dict[str, Any]:
        """Everything that fixes the passes, as a JSON-ready mapping of public numbers."""
        common, own = self.options()
        return {
            "options": common,
            "fresh_order": self.largest.fresh_order,
            "allocated": False,
            "shards": own,
        }

    def lines(self) -> Sequence[tuple[str, str]]:
        """Headings and texts that describe the passes."""
        return (*self.largest.lines(), ("Shards", shards_text(self.units)))


def sgd_of_shards(problem: Problem, make: Callable[[Problem], Sgd]) -> ShardedSgd:
    """The passes over each shard; `make` makes those over a table of its units.

    Raises
    ------
    SpecError
        If the rows are not in shards that can be trained on one by one.
    """
    if problem.shards is None:
        raise SpecError(
            "by_shards trains on each shard of a distributed table of Citus, with all rows where they are: "
            "dpml train does that, and tuning cannot: leave by_shards out"
        )
    units = problem.shards.units
    return ShardedSgd(tuple(make(replace(problem, n_units=one, shards=None)) for one in units), units)


def run_on_shards(job: Job, work: ShardedSgd) -> FloatArray:
    """Take all passes on the workers; what leaves them is the un-noised model of each shard, once.

    Returns
    -------
    ndarray of shape (n_weights,)
        The un-noised mean.

    Raises
    ------
    RunFailedError
        If a pass did not see every row of every shard.
    """
    problem, blocks = job.plan.problem, job.blocks
    if problem.n_units == 0:
        return np.zeros(problem.n_weights)
    if not isinstance(blocks, ShardedBlocks) or len(blocks.distribution.shards.numbers) != len(work.units):
        raise RunFailedError("the shards are others than when they were counted, and no model was stored")
    states = blocks.states()
    common, own = work.options()
    before: list[PassOfShard] = []
    for number in range(1, work.passes + 1):
        if work.largest.fresh_order and number > 1:
            blocks.repack()
        seen = blocks.sgd_pass(states, number, common, own)
        _require_units(seen, before, work.units, problem.max_rows_per_unit)
        job.require_all(sum(one.rows for one in seen), sum(one.blocks for one in seen))
        before = seen
        job.report("pass", number, work.passes)
    models = blocks.models(states, work.passes)
    if [one.steps for one in models] != [
        sgd.steps(units, work.passes) for sgd, units in zip(work.shards, work.units, strict=True) if units > 0
    ]:
        raise _missed()
    return mean_model(models, work)


def mean_model(models: Sequence[ModelOfShard], work: ShardedSgd) -> FloatArray:
    """The mean of the shards' models, weighted by their units; those without any have no model."""
    weights = work.weights
    return np.asarray(sum(weights[one.place] * one.weights for one in models), dtype=np.float64)


def _require_units(
    seen: Sequence[PassOfShard], before: Sequence[PassOfShard], units: Sequence[int], most: int
) -> None:
    """Refuse a pass that saw other rows of a shard than those that were counted, or than the pass before.

    Of each unit it saw 1 to `most` rows. Blocks may differ between passes that pack them again.
    """
    places = [place for place, counted in enumerate(units) if counted > 0]
    if (
        [one.place for one in seen] != places
        or any(not units[one.place] <= one.rows <= units[one.place] * most for one in seen)
        or (before and [one.rows for one in before] != [one.rows for one in seen])
    ):
        raise _missed()


def _missed() -> RunFailedError:
    return RunFailedError(
        "a pass did not see every packed row of its shard, which may have been moved or split after its rows "
        "were counted, and no model was stored"
    )
