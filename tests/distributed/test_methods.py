# SPDX-License-Identifier: PostgreSQL
"""Every method on a distributed table: it trains, where its plan says, and leaves nothing on any node."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from citus import Cluster
from helpers.points import COLUMNS, LABELS, PRIVACY
from pg_dpml import DataSpec, SpecError, TrainSpec, train
from pg_dpml.tables.checks import check_table
from pg_dpml.training.method import methods

ORDERED = {
    *(
        "bolt-on",
        "noiseless",
        "scs13",
        "bst14",
        "dp-sgd",
        "output-perturbation",
        "scd",
        "dp-scd",
        "seq-dp-scd",
    ),
}
"""Methods whose passes take the rows in one order; bolt-on does with fixed passes."""

EXAMPLES = [
    pytest.param(name, example, id=f"{name}-{number}")
    for name, method in methods().items()
    for number, example in enumerate(method.examples)
]


@pytest.fixture(scope="module")
def few(two: Cluster) -> Iterator[str]:
    """A distributed table of few rows."""
    with psycopg.connect(two.dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE few_points (LIKE points)")
        connection.execute("SELECT create_distributed_table('few_points', 'person')")
        connection.execute("INSERT INTO few_points SELECT * FROM points WHERE id < 240")
        yield "few_points"
        connection.execute("DROP TABLE few_points")


def work_tables(cluster: Cluster) -> list[Any]:
    """Names on any node."""
    query = "SELECT relname::text FROM pg_class WHERE relnamespace = 'dpml_work'::regnamespace"
    return [name for rows in cluster.on_nodes(query) for (name,) in rows]


@pytest.mark.parametrize(("method", "example"), EXAMPLES)
def test_every_method_trains(two: Cluster, few: str, method: str, example: Any) -> None:
    data = DataSpec(few, LABELS[example.task], COLUMNS)
    privacy = PRIVACY if methods()[method].private else None
    result = train(
        two.dsn, data, privacy, TrainSpec(method, **example.options), name=f"m {secrets.token_hex(8)}"
    )
    place = result.plan.place
    if result.plan.needs_order:
        assert method in ORDERED
        assert "the method takes all rows in one random order" in place
    else:
        assert "only sums travel" in place
    assert work_tables(two) == []


@pytest.mark.parametrize("unit", [None, "id", "person"])
@pytest.mark.parametrize("method", ["scs13", "dp-sgd", "dp-gd"])
def test_units_anywhere(two: Cluster, few: str, method: str, unit: str | None) -> None:
    data = DataSpec(few, LABELS["binary"], COLUMNS, unit=unit, max_rows_per_unit=2 if unit else 1)
    result = train(two.dsn, data, PRIVACY, TrainSpec(method), name=f"m {secrets.token_hex(8)}")
    assert ("only sums travel" in result.plan.place) == (method == "dp-gd" and unit != "id")
    assert work_tables(two) == []


def test_a_check_is_refused_by_name(two: Cluster, few: str) -> None:
    with pytest.raises(SpecError, match="few_points is distributed by Citus, which cannot plan"):
        check_table(two.dsn, DataSpec(few, LABELS["binary"], COLUMNS))


def test_a_view_of_a_distributed_table_travels(
    two: Cluster, few: str, connection: psycopg.Connection
) -> None:
    connection.execute(f"CREATE VIEW some_points AS SELECT * FROM {few} WHERE id % 2 = 0".encode())
    try:
        data = DataSpec("some_points", LABELS["binary"], COLUMNS, definition_is_public=True)
        result = train(two.dsn, data, PRIVACY, TrainSpec("dp-gd"), name=f"m {secrets.token_hex(8)}")
        assert "a view or a partitioned table has no shards of its own" in result.plan.place
    finally:
        connection.execute("DROP VIEW some_points")


def test_a_partitioned_table_and_a_reference_table(two: Cluster, connection: psycopg.Connection) -> None:
    connection.execute("CREATE TABLE parted (LIKE points) PARTITION BY RANGE (id)")
    connection.execute("CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (100)")
    connection.execute("SELECT create_distributed_table('parted', 'person')")
    connection.execute("CREATE TABLE reference (LIKE points)")
    connection.execute("SELECT create_reference_table('reference')")
    try:
        for table in ("parted", "reference"):
            connection.execute(f"INSERT INTO {table} SELECT * FROM points WHERE id < 100".encode())
            data = DataSpec(table, LABELS["binary"], COLUMNS)
            result = train(two.dsn, data, PRIVACY, TrainSpec("dp-gd"), name=f"m {secrets.token_hex(8)}")
            assert ("the rows travel" in result.plan.place) == (table == "parted")
        assert work_tables(two) == []
    finally:
        connection.execute("DROP TABLE parted, reference")
