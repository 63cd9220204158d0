# SPDX-License-Identifier: PostgreSQL
"""Packed blocks: what is written is read again, and bytes from anywhere are checked."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import replay

DENSE = replay.pack_dense(np.arange(12).reshape(4, 3), [1, -1, 1, -1])
CSR = replay.pack_csr(9, [2, 2, 5], [0, 8, 1, 4, 5], [1, 2, 3, 4, 5], [1, -1, 1])


@given(st.integers(0, 9), st.integers(1, 9), st.integers(0, 2**32))
def test_dense_round_trip(n: int, d: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(n, d)).astype(np.float32)
    y = draw.normal(size=n).astype(np.float32)
    data = replay.pack_dense(x, y)
    assert len(data) == 16 + 4 * n * (d + 1)
    block = replay.open_block(data)
    assert (block.kind, block.n_features, block.row_end, block.columns) == ("dense", d, None, None)
    np.testing.assert_array_equal(block.values.reshape(n, d), x)
    np.testing.assert_array_equal(block.labels, y)


@given(st.integers(0, 9), st.integers(1, 30), st.integers(0, 2**32))
def test_csr_round_trip(n: int, d: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    rows = [np.flatnonzero(draw.random(d) < 0.3) for _ in range(n)]
    columns = np.concatenate([*rows, []]).astype(np.uint32)
    row_end = np.cumsum([len(row) for row in rows])
    values = draw.normal(size=len(columns)).astype(np.float32)
    y = draw.normal(size=n).astype(np.float32)
    data = replay.pack_csr(d, row_end, columns, values, y)
    assert len(data) == 16 + 8 * n + 8 * len(columns)
    block = replay.open_block(data)
    assert (block.kind, block.n_features) == ("csr", d)
    for got, expected in zip(
        (block.labels, block.row_end, block.columns, block.values), (y, row_end, columns, values), strict=True
    ):
        np.testing.assert_array_equal(got, expected)


def test_layout_is_the_documented_one() -> None:
    assert struct.unpack_from("=IHHII", DENSE) == (0x4B4C4244, 1, 0, 3, 4)
    np.testing.assert_array_equal(np.frombuffer(DENSE, np.float32, offset=16)[:4], [1, -1, 1, -1])
    assert struct.unpack_from("=IHHII", CSR) == (0x4B4C4244, 1, 1, 9, 3)


@pytest.mark.parametrize("data", [DENSE, CSR], ids=["dense", "csr"])
def test_every_other_length_is_refused(data: bytes) -> None:
    for length in range(len(data)):
        with pytest.raises(ValueError):
            replay.open_block(data[:length])
    with pytest.raises(ValueError, match="length"):
        replay.open_block(data + bytes(4))


def _forge(data: bytes, offset: int, code: str, value: int) -> bytes:
    forged = bytearray(data)
    struct.pack_into(f"={code}", forged, offset, value)
    return bytes(forged)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (_forge(DENSE, 0, "I", 1), "not a packed block"),
        (_forge(DENSE, 4, "H", 2), "version"),
        (_forge(DENSE, 6, "H", 2), "inconsistent"),
        (_forge(DENSE, 8, "I", 0), "inconsistent"),
        (_forge(DENSE, 8, "I", 2**20 + 1), "inconsistent"),
        (_forge(DENSE, 8, "I", 2**32 - 1), "inconsistent"),
        (_forge(DENSE, 12, "I", 2**32 - 1), "inconsistent"),
        (_forge(DENSE, 12, "I", 2**31 - 1), "inconsistent"),
        (_forge(CSR, 12, "I", 2**31 - 1), "length"),
        (_forge(CSR, 28, "I", 6), "inconsistent"),  # a row that ends after the next
        (_forge(CSR, 32, "I", 1), "inconsistent"),  # a row that ends before it starts
        (_forge(CSR, 36, "I", 6), "length"),
        (_forge(CSR, 36, "I", 2**32 - 1), "inconsistent"),
        (_forge(CSR, 44, "I", 0), "inconsistent"),  # a column that does not rise
        (_forge(CSR, 44, "I", 9), "inconsistent"),  # a column beyond the features
        (_forge(CSR, 44, "I", 2**32 - 1), "inconsistent"),
    ],
)
def test_forged_headers_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replay.open_block(data)


@given(
    st.sampled_from([DENSE, CSR]), st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=4)
)
def test_forged_bytes_open_inside_themselves_or_not_at_all(
    data: bytes, changes: list[tuple[int, int]]
) -> None:
    forged = bytearray(data)
    for position, byte in changes:
        forged[position % len(forged)] = byte
    try:
        block = replay.open_block(bytes(forged))
    except ValueError:
        return
    assert block.n_features >= 1
    if block.columns is not None and block.row_end is not None:
        assert np.all(np.diff(block.row_end.astype(np.int64)) >= 0)
        assert np.all(block.columns < block.n_features)


@given(st.binary(max_size=80))
def test_any_bytes_are_safe(data: bytes) -> None:
    with pytest.raises(ValueError):
        replay.open_block(data)
    try:
        replay.open_block(DENSE[:8] + data)
        replay.open_block(CSR[:8] + data)
    except ValueError:
        pass


def test_capacity() -> None:
    assert replay.block_capacity("dense", 50) == 39
    assert replay.block_capacity("dense", 1000) == 2
    assert replay.block_capacity("dense", 1001) == (2**20 - 16) // 4008
    assert replay.block_capacity("dense", 2**20) == 1
    assert replay.block_capacity("csr", 2**20, 10) == (8112 - 16 - 12) // 88  # 12 bytes of starts
    assert replay.block_capacity("csr", 2**20, 2**20) == 1


@given(st.integers(1, 2**20))
def test_a_full_block_fits_its_limit(d: int) -> None:
    rows = replay.block_capacity("dense", d)
    size = 16 + 4 * rows * (d + 1) + 4 * math.ceil(rows / 32)  # with starts
    assert rows == 1 or size <= (8112 if d <= 1000 else 2**20)
