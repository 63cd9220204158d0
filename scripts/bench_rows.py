# SPDX-License-Identifier: PostgreSQL
"""The rows of scripts/bench, and how they get into a table and out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import psycopg

from pg_dpml import Column, DataSpec, Label

FEATURES = 50

_BLOCK_MAGIC, _BLOCK_VERSION, _BLOCK_CSR = 0x4B4C4244, 1, 1
ROWS_OF_BLOCK = 1000

Floats = npt.NDArray[np.float64]

_ELEMENT = np.dtype([("bytes", ">i4"), ("value", ">f8")])
_FLOAT8 = 701
_COPY_START = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_COPY_END = b"\xff\xff"


def _copy_row(n_features: int) -> npt.NDArray[np.void]:
    """One row of COPY's binary format: every array has so many elements, so all rows have one size."""
    fields = np.dtype(
        [
            ("fields", ">i2"),
            ("x_bytes", ">i4"),
            ("array", ">i4", 5),  # dimensions, whether there are nulls, element type, length, lower index
            ("x", _ELEMENT, n_features),
            ("y_bytes", ">i4"),
            ("y", ">f8"),
        ]
    )
    row = np.zeros((), fields)
    row["fields"], row["x_bytes"] = 2, 20 + n_features * _ELEMENT.itemsize
    row["array"], row["x"]["bytes"], row["y_bytes"] = (1, 0, _FLOAT8, n_features, 1), 8, 8
    return row


def make_rows(n_rows: int, n_features: int = FEATURES) -> tuple[Floats, Floats]:
    """Random rows of norm 1, and labels that a linear model gets right in about nine of ten cases."""
    random = np.random.default_rng(2012)
    x = random.standard_normal((n_rows, n_features))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    noise = 0.3 * random.standard_normal(n_rows)
    return x, np.where(x @ random.standard_normal(n_features) + noise > 0.0, 1.0, -1.0)


def copy_in(connection: psycopg.Connection[Any], x: Floats, y: Floats, table: str = "source") -> None:
    """A new table of these rows, frozen and all-visible from the start."""
    row, rows_at_a_time = _copy_row(x.shape[1]), 2_500_000 // x.shape[1]
    with connection.transaction(), connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE {table} (x float8[] NOT NULL, y float8 NOT NULL)".encode())
        with cursor.copy(f"COPY {table} FROM STDIN (FORMAT binary, FREEZE)".encode()) as copy:
            copy.write(_COPY_START)
            for start in range(0, len(y), rows_at_a_time):
                part = slice(start, start + rows_at_a_time)
                records = np.full(len(y[part]), row)
                records["x"]["value"] = x[part]
                records["y"] = y[part]
                copy.write(records.tobytes())
            copy.write(_COPY_END)
    connection.execute(f"VACUUM (FREEZE, ANALYZE) {table}".encode())


def copy_out(connection: psycopg.Connection[Any], n_rows: int) -> tuple[Floats, Floats]:
    """Table `source` as arrays, by the fastest way there is."""
    with connection.cursor().copy("COPY source TO STDOUT (FORMAT binary)") as copy:
        raw = b"".join(copy)
    records = np.frombuffer(raw, _copy_row(FEATURES).dtype, n_rows, len(_COPY_START))
    return records["x"]["value"].astype(np.float64), records["y"].astype(np.float64)


def spec(table: str = "source", n_features: int = FEATURES) -> DataSpec:
    """The rows as they are: so many features, no intercept."""
    x = Column("x", lower=-1.0, upper=1.0, length=n_features)
    return DataSpec(table, Label("y", positive="1", negative="-1"), (x,), intercept=False)


def copy_in_sparse(connection: psycopg.Connection[Any], n_rows: int, n_features: int, n_values: int) -> None:
    """Table `dpml_work.sparse_blocks` of sparse rows, and `sparse_rows`, as large as these rows unpacked."""
    with connection.transaction(), connection.cursor() as cursor:
        cursor.execute("CREATE UNLOGGED TABLE dpml_work.sparse_blocks (block_no integer, block bytea)")
        cursor.execute("ALTER TABLE dpml_work.sparse_blocks ALTER COLUMN block SET STORAGE EXTERNAL")
        with cursor.copy("COPY dpml_work.sparse_blocks FROM STDIN (FORMAT binary)") as copy:
            copy.set_types(["int4", "bytea"])
            for number, block in enumerate(_sparse_blocks(n_rows, n_features, n_values)):
                copy.write_row((number, block))
        cursor.execute(
            "CREATE TABLE sparse_rows AS SELECT array_fill(0, ARRAY[%(values)s::int]) AS indices, "
            "array_fill(0::float4, ARRAY[%(values)s::int]) AS values, 1 AS y "
            "FROM generate_series(1, %(rows)s::int)",
            {"values": n_values, "rows": n_rows},
        )
    connection.execute("VACUUM (FREEZE, ANALYZE) sparse_rows")


def _sparse_blocks(n_rows: int, n_features: int, n_values: int) -> Iterator[bytes]:
    """Blocks of rows with so many random features that are not 0, of the form in udas/kernels/block.h."""
    random = np.random.default_rng(2014)
    for start in range(0, n_rows, ROWS_OF_BLOCK):
        n = min(ROWS_OF_BLOCK, n_rows - start)
        columns = np.sort(random.integers(0, n_features - n_values, (n, n_values)), axis=1)
        columns += np.arange(n_values)  # no column twice
        values = random.uniform(-1.0, 1.0, columns.shape)
        labels = np.where(np.sum(values * (columns < n_features // 10), axis=1) > 0.0, 1.0, -1.0)
        header = np.array([_BLOCK_MAGIC, _BLOCK_VERSION | _BLOCK_CSR << 16, n_features, n], dtype=np.uint32)
        ends = np.arange(1, n + 1, dtype=np.uint32) * n_values
        yield header.tobytes() + b"".join(
            part.tobytes()
            for part in (
                labels.astype(np.float32),
                ends.astype(np.uint32),
                columns.astype(np.uint32),
                values.astype(np.float32),
            )
        )
