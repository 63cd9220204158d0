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

from helpers import replay
from helpers.sqltools import load_blocks, load_rows, make_rows, numbers, plain_spec, scalar


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
@pytest.mark.parametrize(("capacity", "max_bytes"), [(6, 2**31 - 1), (1000, 400), (1, 2**31 - 1)])
def test_window_pack_keeps_units_whole(
    connection: psycopg.Connection, form: str, capacity: int, max_bytes: int
) -> None:
    """A block ends before a unit that does not fit; only one too large for any goes on in the next."""
    x, y = make_rows(120, 7, "squared")
    load_rows(connection, x, y)
    starts = np.random.default_rng(4).random(120) < 0.4
    starts[0], starts[60:80] = True, False  # a unit of more than 20 rows
    blocks = connection.execute(
        "SELECT block FROM (SELECT i, dpml.pack(e, %s, %s) OVER (ORDER BY i) AS block FROM"
        " (SELECT i, dpml.encode(%s::jsonb, s, (%s::bool[])[i + 1]) AS e FROM rows s) t) u"
        " WHERE block IS NOT NULL ORDER BY i",
        (capacity, max_bytes, json.dumps(plain_spec(7, "squared", form=form)), starts.tolist()),
    ).fetchall()
    opened = [replay.open_block(bytes(block)) for (block,) in blocks]
    np.testing.assert_array_equal(np.concatenate([block.labels for block in opened]), y.astype(np.float32))
    found = np.concatenate([block.starts for block in opened if block.starts is not None])
    np.testing.assert_array_equal(found, starts)
    values = np.concatenate([block.values.reshape(-1) for block in opened])
    np.testing.assert_array_equal(values, x.astype(np.float32).reshape(-1))
    sizes = np.diff([*np.flatnonzero(starts), 120])
    row_bytes = 4 + 4 * 7 if form == "dense" else 8 + 8 * 7
    most = min(capacity, (max_bytes - 20) // row_bytes)
    place = 0
    for (block,), rows in zip(blocks, opened, strict=True):
        assert len(block) <= max_bytes
        assert len(rows.labels) <= capacity
        unit = int(np.searchsorted(np.flatnonzero(starts), place, side="right")) - 1
        assert starts[place] or sizes[unit] > most, "a unit that would fit was cut"
        place += len(rows.labels)


def test_window_pack_of_blocks_of_several_rows(connection: psycopg.Connection) -> None:
    """A unit that goes on in the next of them is cut no more than one of single rows."""
    rows = np.eye(4, dtype=np.float32)
    parts = [replay.pack_dense(rows, np.full(4, i), [i != 2, False, False, True]) for i in range(4)]
    connection.execute("CREATE TEMP TABLE parts (i int, part bytea)")
    connection.cursor().executemany("INSERT INTO parts VALUES (%s, %b)", list(enumerate(parts)))
    found = connection.execute(
        "SELECT block FROM (SELECT i, dpml.pack(part, 2) OVER (ORDER BY i) AS block FROM parts) s"
        " WHERE block IS NOT NULL ORDER BY i"
    ).fetchall()
    labels = [replay.open_block(bytes(block)).labels.tolist() for (block,) in found]
    assert labels == [[0.0] * 4, [1.0] * 4 + [2.0] * 4, [3.0] * 4]


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
    steps = '{"loss": "logistic", "step_size": 1, "steps": 1, "sampling": 1}'
    for query in (
        """SELECT dpml.sgd_epoch(0, %b, NULL, '{"loss": "logistic", "step_size": 1}')""",
        f"SELECT dpml.sgd_poisson(0, %b, NULL, '{steps}')",
        f"SELECT dpml.sgd_poisson_steps(1, %b, NULL, NULL, '{steps}')",
        "SELECT dpml.poisson_steps(%b, 1, 1)",
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
