# SPDX-License-Identifier: PostgreSQL
"""Training on a distributed table against one server: the same rows, and as many cores for both."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping

import psycopg

import citus
import pg_dpml
from bench_rows import FEATURES
from pg_dpml import Column, DataSpec, Label, PrivacySpec, TrainSpec

WORKERS = 2
"""Workers of the cluster, and parallel workers of the one server."""

_SPEC = DataSpec("wide", Label("y", positive="true"), (Column("x", length=FEATURES, lower=-1, upper=1),))


def auto_distributed(n_rows: int, runs: int, settings: Mapping[str, str]) -> tuple[list[float], list[float]]:
    """Seconds of `auto` on two workers and on one server, in turns, the first run of each left out.

    The workers have no parallel workers of their own: two processes scan on both sides.
    """
    asked = {**settings, "max_parallel_workers_per_gather": str(WORKERS), "shared_buffers": "1GB"}
    times: dict[str, list[float]] = {"two": [], "one": []}
    with citus.started_servers(asked) as servers:
        two = servers.cluster("two", WORKERS)
        one = citus.Cluster("one", two.coordinator, ())
        with psycopg.connect(two.coordinator.dsn, autocommit=True) as connection:
            connection.execute("CREATE DATABASE one")
        with psycopg.connect(one.dsn, autocommit=True) as connection:
            connection.execute("CREATE EXTENSION pg_dpml")
        for worker in two.workers:
            with psycopg.connect(worker.dsn, autocommit=True) as connection:
                connection.execute("ALTER SYSTEM SET max_parallel_workers_per_gather = 0")
                connection.execute("SELECT pg_reload_conf()")
        for cluster in (two, one):
            _load(cluster, n_rows)
        for run in range(runs + 1):
            for name, cluster in (("two", two), ("one", one)):
                started = time.perf_counter()
                training = TrainSpec("auto")
                pg_dpml.train(
                    cluster.dsn, _SPEC, PrivacySpec(1.0), training, name=f"run {secrets.token_hex(8)}"
                )
                if run:
                    times[name].append(time.perf_counter() - started)
    return times["two"], times["one"]


def _load(cluster: citus.Cluster, n_rows: int) -> None:
    with psycopg.connect(cluster.dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE wide (id bigint, x float8[], y boolean)")
        if cluster.workers:
            connection.execute("SELECT create_distributed_table('wide', 'id')")
        connection.execute(
            "INSERT INTO wide "
            "SELECT i, (SELECT array_agg(sin(i * k * 0.7)) FROM generate_series(1, %s) AS k), "
            "sin(i * 0.7) + sin(13 * i) > 0 FROM generate_series(1, %s) AS i",
            (FEATURES, n_rows),
        )
        connection.execute("VACUUM ANALYZE wide")
