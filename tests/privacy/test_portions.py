# SPDX-License-Identifier: PostgreSQL
"""Portions on workers are cut by the rank of random keys, whatever shard a key is of.

Source: privacy/README.md, "Private tuning" and "Distributed tables".
"""

from __future__ import annotations

import math
import random
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from pg_dpml.blocks import portions
from pg_dpml.blocks.distributed import Shards
from pg_dpml.database.session import sql
from pg_dpml.errors import RunFailedError

WORK = Shards(sql.Identifier("work"), (), ())


class Keys:
    """A session that knows the random keys of units, in the order in which they arrive."""

    def __init__(self, keys: Sequence[str]) -> None:
        self.keys = keys
        self.travelled = 0

    def fetch(self, query: object, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        digits = parameters["digits"]
        found: list[tuple[Any, ...]]
        if "heads" in parameters:
            found = [(key[:digits], key) for key in self.keys if key[:digits] in parameters["heads"]]
        else:
            found = list(Counter(key[:digits] for key in self.keys).items())
        self.travelled += len(found)
        return found


def keys(n: int, heads: int, seed: int = 1) -> list[str]:
    """So many keys, with at most so many different first digits."""
    draw = random.Random(seed)
    first = [draw.getrandbits(16) for _ in range(heads)]
    return [str(uuid.UUID(int=draw.choice(first) << 112 | draw.getrandbits(112))) for _ in range(n)]


@pytest.mark.parametrize("heads", [1, 3, 20, 5000])
@pytest.mark.parametrize("sizes", [(40,), (1, 1), (1, 998, 1), (500, 500), (400, 1, 1, 398, 200), (50,) * 20])
def test_every_portion_has_its_size(sizes: tuple[int, ...], heads: int) -> None:
    n = sum(sizes)
    session: Any = Keys(keys(n, heads))
    cuts = portions._cuts(session, WORK, sizes)
    in_order = sorted(uuid.UUID(key) for key in session.keys)
    assert len(cuts) == len(sizes) - 1
    assert [in_order.index(uuid.UUID(cut)) for cut in cuts] == [sum(sizes[: i + 1]) for i in range(len(cuts))]


@pytest.mark.parametrize("n", [100, 2000, 20000])
def test_few_keys_travel(n: int) -> None:
    session: Any = Keys(keys(n, 2**16))
    portions._cuts(session, WORK, (n // 2, n // 2))
    assert session.travelled < 20 * math.sqrt(n)


@pytest.mark.parametrize("sizes", [(499, 500), (501, 500), (1001,)])
def test_other_numbers_of_units_fail_the_run(sizes: tuple[int, ...]) -> None:
    session: Any = Keys(keys(1000, 1000))
    with pytest.raises(RunFailedError, match="other rows were dealt out on the workers than were counted"):
        portions._cuts(session, WORK, sizes)
