# SPDX-License-Identifier: PostgreSQL
"""One server, and clusters of Citus with two and four workers; tests of them say why they could not run."""

from __future__ import annotations

import hashlib
import itertools
import os
import random
import secrets
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from citus import Cluster, Servers, address, started_servers, why_not
from helpers.points import FEATURES, N
from pg_dpml.privacy import selection


@pytest.fixture(scope="session")
def citus_servers() -> Iterator[Servers]:
    """Servers with Citus, on which clusters are made."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    with started_servers({"log_statement": "all"}) as servers:  # what an operator of a node can see
        yield servers


@pytest.fixture(scope="session")
def two(citus_servers: Servers) -> Cluster:
    """A coordinator and two workers."""
    return furnished(citus_servers.cluster("two", 2))


@pytest.fixture(scope="session")
def four(citus_servers: Servers) -> Cluster:
    """The same coordinator, in another database, and four workers."""
    return furnished(citus_servers.cluster("four", 4))


@pytest.fixture(scope="session")
def one(citus_servers: Servers) -> Cluster:
    """The same coordinator, in a database without Citus."""
    (server,) = citus_servers.take(1)
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute("CREATE DATABASE one")
    cluster = Cluster("one", server, ())
    with psycopg.connect(cluster.dsn, autocommit=True) as connection:
        connection.execute("CREATE EXTENSION pg_dpml")
    return furnished(cluster)


@pytest.fixture(scope="session")
def alone(citus_servers: Servers) -> Cluster:
    """The same coordinator, in another database, which has the shards itself."""
    cluster = citus_servers.cluster("alone", 0)
    with psycopg.connect(cluster.dsn, autocommit=True) as connection:
        connection.execute(
            "SELECT citus_set_node_property(%s, %s, 'shouldhaveshards', true)", address(cluster.coordinator)
        )
    return furnished(cluster, distributed=True)


@pytest.fixture
def connection(two: Cluster) -> Iterator[psycopg.Connection]:
    """A superuser's connection to the coordinator of two workers, in autocommit mode."""
    with psycopg.connect(two.dsn, autocommit=True) as opened:
        yield opened


@pytest.fixture
def same_coins(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Called before a run: noise and choices of all runs are the same."""

    def start() -> None:
        numbers, choices = itertools.count(), random.Random(1)

        def token_bytes(size: int = 32) -> bytes:
            # Names of tables are drawn too: those stay random.
            return hashlib.sha256(str(next(numbers)).encode()).digest() if size == 32 else os.urandom(size)

        monkeypatch.setattr(secrets, "token_bytes", token_bytes)
        defaults = (*(selection.choose.__defaults__ or ())[:-1], choices.randrange)
        monkeypatch.setattr(selection.choose, "__defaults__", defaults)

    return start


def furnished(cluster: Cluster, *, distributed: bool | None = None) -> Cluster:
    """With the tables of the tests, the same rows everywhere, distributed where there are workers."""
    distributed = bool(cluster.workers) if distributed is None else distributed
    with psycopg.connect(cluster.dsn, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE points (id bigint, person int, x float8[], yes boolean, kind text, number float8)"
        )
        connection.execute("CREATE TABLE visits (LIKE points)")
        if distributed:
            connection.execute("SELECT create_distributed_table('points', 'id')")
            connection.execute("SELECT create_distributed_table('visits', 'person')")
        # Three visits of a person.
        rows = (
            "SELECT i, i / 3, x, x[1] + x[2] / 2 + sin(77 * i) / 3 > 0, "
            "(ARRAY['a', 'b', 'c'])[1 + (i * 7 + (x[3] > 0)::int) %% 3], x[1] / 2 + x[4] / 3 "
            "FROM generate_series(0, %s) AS i, "
            "LATERAL (SELECT array_agg(sin(i * (2 * k + 1) * 1.7)) AS x "
            "FROM generate_series(1, %s) AS k) AS f"
        )
        for table in ("points", "visits"):
            connection.execute(f"INSERT INTO {table} {rows}".encode(), (N - 1, FEATURES))
    return cluster
