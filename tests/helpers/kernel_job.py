# SPDX-License-Identifier: PostgreSQL
"""The job of a run over blocks in memory: the kernels that the server runs, without a server."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from helpers import replay
from pg_dpml.blocks.blocks import GradientSums, GramSums
from pg_dpml.kernels import FloatArray, Loss
from pg_dpml.training.plan import Plan


def symmetric(triangle: FloatArray, size: int) -> FloatArray:
    """The matrix of an upper triangle, row by row."""
    full = np.zeros((size, size))
    full[np.triu_indices(size)] = triangle
    return full + np.triu(full, 1).T


def split(options: Mapping[str, Any]) -> tuple[Loss, dict[str, Any]]:
    """An aggregate's options as the loss, and what else the kernels take."""
    given = dict(options)
    loss = Loss(
        given.pop("loss"),
        n_classes=given.pop("classes", 1),
        huber_h=given.pop("huber_h", 0.5),
        clip=given.pop("clip", math.inf),
    )
    given.pop("max_rows_per_unit", None)
    return loss, given


@lru_cache(maxsize=8)
def _split(options: tuple[tuple[str, Any], ...]) -> tuple[Loss, dict[str, Any]]:
    """Kept, too: the options of a run's steps are the same."""
    return split(dict(options))


@lru_cache(maxsize=8)
def _gradient(
    blocks: tuple[bytes, ...], weights: bytes, options: tuple[tuple[str, Any], ...]
) -> GradientSums:
    """Kept for the many runs of a test that begin at the same weights; nobody can write into it."""
    loss, more = _split(options)
    found = GradientSums(*replay.gradient(blocks, np.frombuffer(weights), loss, **more))
    for part in (found.gradient, found.losses):
        if part is not None:
            part.flags.writeable = False
    return found


@lru_cache(maxsize=8)
def _gram(blocks: tuple[bytes, ...], n_features: int) -> GramSums:
    """Kept as those of `_gradient`."""
    sums = replay.gram(blocks)
    assert sums.xy is not None
    found = GramSums(symmetric(sums.xx, n_features), sums.xy, sums.rows)
    found.xx.flags.writeable = found.xy.flags.writeable = False
    return found


@dataclass
class KernelBlocks:
    """What methods ask of `pg_dpml.blocks.blocks.Blocks`."""

    blocks: list[bytes]
    n_features: int

    def gradient(self, weights: FloatArray, options: Mapping[str, Any]) -> GradientSums:
        at = np.asarray(weights, dtype=np.float64).tobytes()
        return _gradient(tuple(self.blocks), at, tuple(options.items()))

    def hessian(self, weights: FloatArray, options: Mapping[str, Any]) -> FloatArray:
        return symmetric(replay.gram(self.blocks, weights, split(options)[0]).xx, len(weights))

    def gram(self) -> GramSums:
        return _gram(tuple(self.blocks), self.n_features)

    def whiten(self, matrix: FloatArray, norm: float, scale: float | None = None) -> None:
        self.blocks = [replay.whiten(block, matrix, norm, scale) for block in self.blocks]


class KernelJob:
    """What methods ask of `pg_dpml.training.job.Job`."""

    def __init__(self, plan: Plan, blocks: list[bytes]) -> None:
        self.plan = plan
        self.blocks = KernelBlocks(blocks, plan.problem.n_features)

    def gradient(self, weights: FloatArray, options: Mapping[str, Any]) -> GradientSums:
        """The kernels skip no row."""
        return self.blocks.gradient(weights, options)

    def require_all(self, rows: int) -> None:
        """As of `gradient`."""

    def report(self, phase: str, done: int, total: int) -> None:
        """Nobody looks."""
