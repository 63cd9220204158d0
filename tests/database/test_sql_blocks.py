# SPDX-License-Identifier: PostgreSQL
"""dpml.pack, dpml.rows, dpml.unpack and dpml.block_capacity; forged blocks."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence

import numpy as np
import psycopg
import pytest

from sqltools import load_blocks, load_rows, make_rows, numbers, plain_spec, scalar


@pytest.mark.parametrize("form", ["dense", "csr"])
@pytest.mark.parametrize("capacity", [1, 7, 200])
def test_pack_and_take_apart(connection: psycopg.Connection, form: str, capacity: int) -> None:
    x, y = make_rows(103, 5, "squared")
    x[4] = 0
    x[:, 2] = 0
    load_rows(connection, x, y)
    load_blocks(connection, plain_spec(5, "squared", form=form), capacity)
    assert scalar(connection, "SELECT count(*) FROM blocks") == math.ceil(103 / capacity)
    rows = connection.execute(
        "SELECT u.x::float8[], u.y::float8 FROM blocks, dpml.unpack(block) WITH ORDINALITY u(x, y, j)"
        " ORDER BY block_no, j"
    ).fetchall()
    np.testing.assert_array_equal(numbers([row[0] for row in rows]), x)
    np.testing.assert_array_equal(numbers([row[1] for row in rows]), y)
    again = scalar(
        connection,
        "SELECT bool_and(p.b = block) FROM blocks, LATERAL (SELECT dpml.pack(r ORDER BY j) AS b"
        " FROM dpml.rows(block) WITH ORDINALITY s(r, j)) p",
    )
    assert again is True
    windowed = connection.execute(
        f"SELECT block FROM (SELECT i, dpml.pack(r, {capacity}) OVER (ORDER BY i) AS block FROM"
        f" (SELECT block_no * {capacity} + j AS i, r FROM blocks,"
        " dpml.rows(block) WITH ORDINALITY s(r, j)) s) t"
        " WHERE block IS NOT NULL ORDER BY i".encode()
    ).fetchall()
    assert windowed == connection.execute("SELECT block FROM blocks ORDER BY block_no").fetchall()


def test_window_pack_by_bytes(connection: psycopg.Connection) -> None:
    """Blocks of rows of different sizes end where the next row would not fit; every row is in one."""
    rng = np.random.default_rng(2)
    x, y = make_rows(300, 60, "squared")
    x[rng.random(x.shape) < rng.random((300, 1))] = 0
    load_rows(connection, x, y)
    blocks = connection.execute(
        "SELECT block FROM (SELECT i, dpml.pack(e, 1000, 2000) OVER (ORDER BY i) AS block FROM"
        " (SELECT i, dpml.encode(%s::jsonb, s) AS e FROM rows s) t) u WHERE block IS NOT NULL ORDER BY i",
        (json.dumps(plain_spec(60, "squared", form="csr")),),
    ).fetchall()
    row_bytes = iter((8 + 8 * np.count_nonzero(x, axis=1)).tolist())
    filled = next(row_bytes)
    for i, (block,) in enumerate(blocks):
        size = 16
        while filled is not None and size + filled <= 2000:
            size += filled
            filled = next(row_bytes, None)
        assert len(block) == size, i
    assert filled is None
    one = "SELECT dpml.pack(e, 1000, 1) OVER () FROM (SELECT dpml.encode(%s::jsonb, s) AS e FROM rows s) t"
    alone = connection.execute(one.encode(), (json.dumps(plain_spec(60, "squared")),)).fetchall()
    assert len({len(block) for (block,) in alone}) == 1
    assert None not in {block for (block,) in alone}


@pytest.mark.parametrize("form", ["dense", "csr"])
@pytest.mark.parametrize("limits", ["7", "1000, 700"])
def test_window_pack_keeps_units_whole(connection: psycopg.Connection, limits: str, form: str) -> None:
    """Units of 1 to 5 rows go to one block each; one of 30 rows is larger than a block and is cut."""
    x, y = make_rows(300, 12, "squared")
    load_rows(connection, x, y)
    unit = "CASE WHEN i < 30 THEN -1 ELSE (i - mod(i, 10)) * 4 + floor(sqrt(mod(i, 10)))::int END"
    connection.execute(
        "CREATE TABLE cut AS SELECT dense_rank() OVER (ORDER BY first) - 1 AS block_no, block FROM ("
        f"SELECT i AS first, dpml.pack(e, {limits}) OVER (ORDER BY i) AS block FROM ("
        "SELECT i, dpml.encode(%s::jsonb, s, u IS DISTINCT FROM lag(u) OVER (ORDER BY i)) AS e FROM ("
        f"SELECT s.*, {unit} AS u FROM rows s) s) t) v WHERE block IS NOT NULL".encode(),
        (json.dumps(plain_spec(12, "squared", form=form)),),
    )
    blocks = connection.execute(
        "SELECT block_no, array_agg(round(r.y)) FROM cut, dpml.unpack(block) WITH ORDINALITY r(x, y, place) "
        "GROUP BY 1 ORDER BY 1"
    ).fetchall()
    sizes = [len(rows) for _, rows in blocks]
    assert sum(sizes) == 300
    starts = [0]
    for k in range(1, 300):
        units = [-1 if i < 30 else (i - i % 10) * 4 + math.isqrt(i % 10) for i in (k - 1, k)]
        starts += [k] if units[0] != units[1] else []
    borders = np.cumsum(sizes)[:-1]
    assert {int(border) for border in borders if border > 30} <= set(starts)
    assert any(border < 30 for border in borders)
    connection.execute("DROP TABLE cut")


def test_window_pack_in_partitions(connection: psycopg.Connection) -> None:
    x, y = make_rows(50, 4, "squared")
    load_rows(connection, x, y)
    found = connection.execute(
        "SELECT g, count(*), sum((length(block) - 16) / 20) FROM (SELECT mod(i, 3) AS g, dpml.pack(e, 4)"
        " OVER (PARTITION BY mod(i, 3) ORDER BY i) AS block FROM (SELECT i, dpml.encode(%s::jsonb, s) AS e"
        " FROM rows s) t) u WHERE block IS NOT NULL GROUP BY g ORDER BY g",
        (json.dumps(plain_spec(4, "squared")),),
    ).fetchall()
    assert found == [(0, 5, 17), (1, 5, 17), (2, 4, 16)]


def test_window_pack_arguments(connection: psycopg.Connection) -> None:
    for limits, name in (
        ("0", "capacity"),
        ("NULL", "capacity"),
        ("1, 0", "max_bytes"),
        ("1, NULL", "max_bytes"),
    ):
        with pytest.raises(psycopg.errors.InvalidParameterValue, match=f"{name} must be an integer >= 1"):
            connection.execute(f"SELECT dpml.pack('', {limits}) OVER ()".encode())
    with pytest.raises(psycopg.errors.NullValueNotAllowed):
        connection.execute("SELECT dpml.pack(NULL, 3) OVER ()")
    with pytest.raises(psycopg.errors.NullValueNotAllowed):
        connection.execute("SELECT dpml.pack(NULL)")


def test_capacity_fits_a_page(connection: psycopg.Connection) -> None:
    assert scalar(connection, "SELECT dpml.block_capacity('dense', 50, 0)") == 39
    assert scalar(connection, "SELECT dpml.block_capacity('csr', 50, 10)") == 91
    assert scalar(connection, "SELECT dpml.block_capacity('dense', 1048576, 0)") == 1
    for call in ("'sparse', 1, 1", "'dense', 0, 0", "'dense', 1048577, 0", "'csr', 5, 6", "'csr', 5, -1"):
        with pytest.raises(psycopg.errors.InvalidParameterValue):
            connection.execute(f"SELECT dpml.block_capacity({call})".encode())


def dense(
    n_features: int, n_rows: int, numbers_: Sequence[float], magic: int = 0x4B4C4244, version: int = 1
) -> bytes:
    return (
        struct.pack("=IHHII", magic, version, 0, n_features, n_rows)
        + np.array(numbers_, np.float32).tobytes()
    )


def csr(n_features: int, row_end: Sequence[int], columns: Sequence[int]) -> bytes:
    header = struct.pack("=IHHII", 0x4B4C4244, 1, 1, n_features, len(row_end))
    zeros = np.zeros(len(row_end), np.float32).tobytes()
    values = np.ones(len(columns), np.float32).tobytes()
    return (
        header
        + zeros
        + np.array(row_end, np.uint32).tobytes()
        + np.array(columns, np.uint32).tobytes()
        + values
    )


FORGED = [
    b"",
    b"DBLK",
    dense(2, 1, [1, 0.5, 0.5])[:-1],
    dense(2, 1, [1, 0.5, 0.5]) + b"\0",
    dense(2, 2**31, [1]),
    dense(2**20 + 1, 1, [1]),
    dense(0, 1, [1]),
    dense(2, 1, [1, 0.5, 0.5], magic=1),
    dense(2, 1, [1, 0.5, 0.5], version=2),
    csr(4, [2], [1, 1]),
    csr(4, [2], [2, 1]),
    csr(4, [2], [1, 4]),
    csr(4, [2, 1], [1, 2]),
    csr(4, [3], [1, 2]),
    csr(4, [2**32 - 1], [1, 2]),
]


@pytest.mark.parametrize("block", FORGED, ids=lambda block: block.hex()[:80])
def test_forged_blocks_are_refused(connection: psycopg.Connection, block: bytes) -> None:
    for query in (
        """SELECT dpml.sgd_epoch(0, %b, NULL, '{"loss": "logistic", "step_size": 1}')""",
        """SELECT dpml.loss(%b, '{1,2}', '{"loss": "logistic"}')""",
        "SELECT dpml.pack(%b)",
        "SELECT dpml.pack(%b, 1) OVER ()",
        "SELECT dpml.rows(%b)",
        "SELECT * FROM dpml.unpack(%b)",
    ):
        with pytest.raises(psycopg.errors.DataCorrupted):
            connection.execute(query.encode(), (block,))


def test_forged_numbers_do_no_harm(connection: psycopg.Connection) -> None:
    """A block can hold any label and feature; what the loss cannot use contributes nothing."""
    for loss in ('"logistic"', '"squared"', '"softmax", "classes": 2'):
        for numbers_ in (
            [1e9, 0.5, 0.5],
            [math.nan, 0.5, 0.5],
            [1, math.inf, math.nan],
            [-1, -math.inf, 3e38],
        ):
            connection.execute(
                f"""SELECT dpml.sgd_epoch(0, %b, NULL, '{{"loss": {loss}, "step_size": 1}}')""".encode(),
                (dense(2, 1, numbers_),),
            )
