# SPDX-License-Identifier: PostgreSQL
"""The rows of scripts/bench, and how they get into a table and out."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import psycopg

from pg_dpml import Column, DataSpec, Label

FEATURES = 50

Floats = npt.NDArray[np.float64]

# One row of COPY's binary format: every array has FEATURES elements, so all rows have one size.
_ELEMENT = np.dtype([("bytes", ">i4"), ("value", ">f8")])
_COPY_ROW = np.dtype(
    [
        ("fields", ">i2"),
        ("x_bytes", ">i4"),
        ("array", ">i4", 5),  # dimensions, whether there are nulls, element type, length, lower index
        ("x", _ELEMENT, FEATURES),
        ("y_bytes", ">i4"),
        ("y", ">f8"),
    ]
)
_FLOAT8 = 701
_EMPTY_ROW = np.zeros((), _COPY_ROW)
_EMPTY_ROW["fields"], _EMPTY_ROW["x_bytes"] = 2, 20 + FEATURES * _ELEMENT.itemsize
_EMPTY_ROW["array"], _EMPTY_ROW["x"]["bytes"], _EMPTY_ROW["y_bytes"] = (1, 0, _FLOAT8, FEATURES, 1), 8, 8
_COPY_START = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_COPY_END = b"\xff\xff"


def make_rows(n_rows: int) -> tuple[Floats, Floats]:
    """Random rows of norm 1, and labels that a linear model gets right in about nine of ten cases."""
    random = np.random.default_rng(2012)
    x = random.standard_normal((n_rows, FEATURES))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    noise = 0.3 * random.standard_normal(n_rows)
    return x, np.where(x @ random.standard_normal(FEATURES) + noise > 0.0, 1.0, -1.0)


def copy_in(connection: psycopg.Connection[Any], x: Floats, y: Floats) -> None:
    """Table `source`, frozen and all-visible from the start."""
    with connection.transaction(), connection.cursor() as cursor:
        cursor.execute("CREATE TABLE source (x float8[] NOT NULL, y float8 NOT NULL)")
        with cursor.copy("COPY source FROM STDIN (FORMAT binary, FREEZE)") as copy:
            copy.write(_COPY_START)
            for start in range(0, len(y), 50_000):
                part = slice(start, start + 50_000)
                records = np.full(len(y[part]), _EMPTY_ROW)
                records["x"]["value"] = x[part]
                records["y"] = y[part]
                copy.write(records.tobytes())
            copy.write(_COPY_END)
    connection.execute("VACUUM (FREEZE, ANALYZE) source")


def copy_out(connection: psycopg.Connection[Any], n_rows: int) -> tuple[Floats, Floats]:
    """Table `source` as arrays, by the fastest way there is."""
    with connection.cursor().copy("COPY source TO STDOUT (FORMAT binary)") as copy:
        raw = b"".join(copy)
    records = np.frombuffer(raw, _COPY_ROW, n_rows, len(_COPY_START))
    return records["x"]["value"].astype(np.float64), records["y"].astype(np.float64)


def spec(table: str = "source") -> DataSpec:
    """The rows as they are: 50 features, no intercept."""
    x = Column("x", lower=-1.0, upper=1.0, length=FEATURES)
    return DataSpec(table, Label("y", positive="1", negative="-1"), (x,), intercept=False)
