# SPDX-License-Identifier: PostgreSQL
"""Sums of many shards round about once, whatever their order.

Source: privacy/README.md, "Distributed tables".
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from helpers.neighbours import FloatArray
from pg_dpml.blocks.blocks import Blocks
from pg_dpml.blocks.packing import PackedRows
from pg_dpml.database.session import sql

D = 6


class Shards:
    """A session in which a sum over packed rows has one part a shard."""

    def __init__(self, sums: FloatArray) -> None:
        self.sums = sums

    def fetch(self, query: object, parameters: object, **how: object) -> list[tuple[Any, ...]]:
        return [(part, part[:1], 1) for part in self.sums]

    def execute(self, query: object, parameters: object = None) -> int:
        return 0

    def copy_row(self, *given: object) -> None:
        pass


def shards(case: str, number: int) -> FloatArray:
    draw = np.random.default_rng(number)
    if case == "large first":
        return np.vstack([np.full((1, D), 2.0**53), np.ones((number - 1, D))])
    if case == "cancel":
        half = draw.normal(size=(number // 2, D)) * 2.0 ** draw.integers(0, 60, size=(number // 2, 1))
        return np.vstack([half, draw.normal(size=(1, D)), -half])
    return draw.normal(size=(number, D)) * 2.0 ** draw.integers(-30, 30, size=(number, D))


@pytest.mark.parametrize("number", [1, 2, 33, 4096])
@pytest.mark.parametrize("case", ["large first", "cancel", "mixed"])
def test_the_sum_of_shards_is_off_by_one_rounding(case: str, number: int) -> None:
    sums = shards(case, number)
    stub: Any = Shards(sums)
    blocks = Blocks(stub, stub, PackedRows(sql.Identifier("blocks"), 1))
    gradient = blocks.gradient(np.zeros(D), {}).gradient
    assert gradient is not None
    for j in range(D):
        room = 2.0**-53 * (1.0 + len(sums) ** 2 * 2.0**-52) * math.fsum(abs(sums[:, j]))
        exact = math.fsum([*sums[:, j], -gradient[j]])
        assert abs(exact) <= room * (1.0 + 2.0**-40)


def test_sums_that_are_not_finite_stay_so() -> None:
    stub: Any = Shards(np.array([[math.inf] * D, [1.0] * D]))
    gradient = Blocks(stub, stub, PackedRows(sql.Identifier("b"), 1)).gradient(np.zeros(D), {}).gradient
    assert gradient is not None
    assert not np.any(np.isfinite(gradient))
