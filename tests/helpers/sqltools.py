# SPDX-License-Identifier: PostgreSQL
"""Small helpers for the tests of the SQL surface."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import psycopg
from psycopg.types.json import Jsonb

FloatArray = npt.NDArray[np.float64]
Options = Mapping[str, Any]

# A row of the tests is within norm 1, so this specification only rounds it to float32.
PLAIN = {"kind": "array", "name": "x", "scale": "standard", "mean": 0, "sd": 1}


def scalar(connection: psycopg.Connection, query: str, *values: Any) -> Any:
    """The one value that a query gives."""
    row = connection.execute(query.encode(), values).fetchone()
    assert row is not None
    return row[0]


def empty_registry(connection: psycopg.Connection) -> None:
    """Remove models, budgets and the ledger, as only a superuser can who switches triggers off.

    TRUNCATE would make new files for all tables and indexes, which takes twenty times as long for few rows.
    """
    tables = ("models", "ledger", "budgets", "budget_entries", "datasets", "requests", "budget_relations")
    rows = "; ".join(f"DELETE FROM dpml.{table}" for table in tables)
    connection.execute(
        f"SET session_replication_role = replica; {rows}; RESET session_replication_role".encode()
    )


def work_tables(connection: psycopg.Connection) -> int:
    """How many tables of runs there are."""
    return int(
        scalar(connection, "SELECT count(*) FROM pg_class WHERE relnamespace = 'dpml_work'::regnamespace")
    )


def make_rows(n: int, d: int, loss: str, *, classes: int = 3, seed: int = 1) -> tuple[FloatArray, FloatArray]:
    """Rows of norm below 1, exact in float32, and labels as the loss wants them."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    x *= rng.uniform(0.2, 0.99, size=(n, 1)) / np.linalg.norm(x, axis=1, keepdims=True)
    x = x.astype(np.float32).astype(np.float64)
    if loss == "softmax":
        return x, rng.integers(0, classes, size=n).astype(np.float64)
    if loss == "squared":
        return x, rng.uniform(-1, 1, size=n).astype(np.float32).astype(np.float64)
    return x, rng.choice(np.array([-1.0, 1.0]), size=n)


def load_rows(connection: psycopg.Connection, x: FloatArray, y: FloatArray, name: str = "rows") -> None:
    """A temporary table (i, x, y), in order."""
    connection.execute(f"CREATE TEMP TABLE {name} (i int, x float8[], y float8)")
    with connection.cursor() as cursor, cursor.copy(f"COPY {name} FROM STDIN".encode()) as copy:
        for i, (row, label) in enumerate(zip(x.tolist(), y.tolist(), strict=True)):
            copy.write_row((i, row, label))


def plain_spec(d: int, loss: str, classes: int = 3, form: str = "dense") -> dict[str, Any]:
    """What encodes a row of `make_rows` as it is."""
    label: dict[str, Any] = {"name": "y", "kind": "number", "lower": -1, "upper": 1}
    if loss == "softmax":
        label = {"name": "y", "kind": "classes", "classes": list(range(classes))}
    column = {**PLAIN, "length": d}
    return {"columns": [column], "intercept": False, "norm": "clip", "format": form, "label": label}


def load_blocks(
    connection: psycopg.Connection,
    spec: Mapping[str, Any],
    capacity: int,
    source: str = "rows",
    name: str = "blocks",
) -> None:
    """A temporary table (block_no, block) of the rows of a table, in the order of i."""
    connection.execute(
        f"CREATE TEMP TABLE {name} AS SELECT i / {capacity} AS block_no,"
        f" dpml.pack(dpml.encode(%s, s) ORDER BY i) AS block FROM {source} s GROUP BY 1 ORDER BY 1".encode(),
        (Jsonb(dict(spec)),),
    )


def numbers(text: Any) -> FloatArray:
    """A float8[] as an array."""
    return np.array(text, dtype=np.float64)


def epoch(
    connection: psycopg.Connection, query: str, *values: Any
) -> tuple[FloatArray, FloatArray | None, int, int | None]:
    """Weights, average, steps and rows of a query that gives one dpml.epoch in column r."""
    row = connection.execute(f"SELECT (r).* FROM ({query}) s".encode(), values).fetchone()
    assert row is not None
    weights, average, steps, rows, _ = row
    return numbers(weights), None if average is None else numbers(average), steps, rows


def smoothness(loss: str, h: float = 0.5) -> float:
    """Beta of a data loss."""
    known = {"logistic": 0.25, "huber_svm": 1 / (2 * h), "squared": 1.0, "softmax": 0.5}
    return known[loss]


def max_step(options: Options) -> float:
    """The cap of every step."""
    beta = smoothness(options["loss"], options.get("huber_h", 0.5))
    return 1 / (beta + float(options.get("lambda", 0.0)))


def as_json(options: Options) -> str:
    return json.dumps(dict(options))


def close(found: FloatArray, wanted: FloatArray) -> None:
    """Equal to a relative 1e-12 of the largest number."""
    assert found.shape == wanted.shape
    scale = float(np.max(np.abs(wanted), initial=0.0))
    assert math.isfinite(scale)
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12 * scale)
