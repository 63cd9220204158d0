# SPDX-License-Identifier: PostgreSQL
"""The table `points` of a cluster, and how models are trained on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg

from citus import Cluster
from pg_dpml import Column, DataSpec, Label, PrivacySpec

FEATURES = 4
N = 2000
COLUMNS = (Column("x", length=FEATURES, lower=-1, upper=1),)
LABELS = {
    "binary": Label("yes", positive="true"),
    "multiclass": Label("kind", classes=("a", "b", "c")),
    "regression": Label("number", lower=-1, upper=1),
}
PRIVACY = PrivacySpec(2.0, 1e-6)


def spec(task: str = "binary", table: str = "points", **more: Any) -> DataSpec:
    return DataSpec(table, LABELS[task], COLUMNS, **more)


@contextmanager
def table_like_points(clusters: Sequence[Cluster], name: str, columns: str, select: str) -> Iterator[str]:
    """A table of each cluster, distributed by id where there are workers, with more columns than points."""
    for cluster in clusters:
        with psycopg.connect(cluster.dsn, autocommit=True) as connection:
            connection.execute(f"CREATE TABLE {name} (LIKE points{columns})".encode())
            if cluster.workers:
                connection.execute("SELECT create_distributed_table(%s, 'id')", [name])
            connection.execute(f"INSERT INTO {name} SELECT {select} FROM points".encode())
    yield name
    for cluster in clusters:
        with psycopg.connect(cluster.dsn, autocommit=True) as connection:
            connection.execute(f"DROP TABLE {name}".encode())
