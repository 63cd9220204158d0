# SPDX-License-Identifier: PostgreSQL
"""Methods that sum over rows, on one server, two and four workers: the same rows and coins, one model."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import psycopg
import pytest

from citus import Cluster
from helpers.points import PRIVACY, N, spec
from pg_dpml import DataSpec, Grid, RunFailedError, SpecError, TrainSpec, plan, train, tune
from pg_dpml.blocks import distributed, portions, query
from pg_dpml.database.session import Session, sql

RUNS_TRAIN = "pg_dpml.runs.train"

RUNS: list[tuple[str, str, Mapping[str, Any]]] = [
    ("auto", "binary", {}),
    ("auto", "multiclass", {}),
    ("sufficient-statistics", "regression", {}),
    ("bolt-on", "binary", {"lambda_": 0.01}),
    ("bolt-on", "multiclass", {"lambda_": 0.01}),
    ("dp-gd", "binary", {}),
    ("amp", "binary", {}),
    ("dp-agd", "binary", {}),
    ("frank-wolfe", "binary", {}),
    ("primal-dp-scd", "binary", {}),
    ("lbfgs", "binary", {}),
    ("majority", "multiclass", {}),
]


def trained(cluster: Cluster, data: DataSpec, method: str, options: Mapping[str, Any]) -> Any:
    privacy = None if method in ("lbfgs", "majority") else PRIVACY
    name = f"model {secrets.token_hex(8)}"
    return train(cluster.dsn, data, privacy, TrainSpec(method, **options), name=name)


def work_tables(cluster: Cluster) -> list[int]:
    """Of each node."""
    query = "SELECT count(*)::int FROM pg_class WHERE relnamespace = 'dpml_work'::regnamespace"
    return [int(str(rows[0][0])) for rows in cluster.on_nodes(query)]


@pytest.mark.parametrize(("method", "task", "options"), RUNS)
def test_the_same_rows_and_coins_give_the_same_model_on_any_number_of_workers(
    one: Cluster,
    two: Cluster,
    four: Cluster,
    same_coins: Any,
    method: str,
    task: str,
    options: Mapping[str, Any],
) -> None:
    found = []
    for cluster in (one, two, four):
        same_coins()
        result = trained(cluster, spec(task), method, options)
        assert ("only sums travel" in result.plan.place) == bool(cluster.workers)
        assert not any(work_tables(cluster))
        found.append(result.model)
    for model in found[1:]:
        assert np.any(found[0].weights)
        np.testing.assert_allclose(model.weights, found[0].weights, rtol=1e-9, atol=1e-9)
        if found[0].whitening is not None:
            np.testing.assert_allclose(model.whitening, found[0].whitening, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("method", "options"), [("auto", {}), ("bolt-on", {"lambda_": 0.01})])
def test_units_by_which_a_table_is_distributed_stay_on_the_workers(
    one: Cluster, two: Cluster, four: Cluster, same_coins: Any, method: str, options: Mapping[str, Any]
) -> None:
    data = spec(table="visits", unit="person", max_rows_per_unit=3)
    found = []
    for cluster in (one, two, four):
        same_coins()
        result = trained(cluster, data, method, options)
        assert ("only sums travel" in result.plan.place) == bool(cluster.workers)
        found.append(result.model.weights)
    for weights in found[1:]:
        np.testing.assert_allclose(weights, found[0], rtol=1e-9, atol=1e-9)


def test_units_in_several_shards_travel_with_the_reason(two: Cluster) -> None:
    result = trained(two, spec(unit="person", max_rows_per_unit=3), "auto", {})
    assert result.plan.place == (
        "the rows travel to the coordinator and are packed there: "
        "the rows of a unit may lie in several shards, as the table is distributed by id, not by person"
    )
    assert not any(work_tables(two))


class Passes:
    """The plans of all statements over rows and work tables of runs, each planned just before it runs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, analyze: bool = False) -> None:
        self.plans: list[str] = []
        fetch = Session.fetch

        def planned(session: Session, query: Any, parameters: Any = None, **how: Any) -> Any:
            text = query.as_string(None)
            if re.search(r"dpml\.(gram|gradient|on_shards)\(", text) and not text.startswith("EXPLAIN"):
                run = sql.SQL("ANALYZE, " if analyze and "on_shards" not in text else "")
                explain = sql.SQL("EXPLAIN ({}VERBOSE, COSTS OFF) ").format(run)
                lines = fetch(session, explain + query, parameters)
                self.plans.append("\n".join(line for (line,) in lines))
            return fetch(session, query, parameters, **how)

        monkeypatch.setattr(Session, "fetch", planned)


@pytest.mark.parametrize(
    ("method", "kinds"),
    [("auto", {"on_shards", "gram", "gradient"}), ("bolt-on", {"on_shards", "gradient"})],
)
def test_no_row_leaves_its_worker(
    two: Cluster, monkeypatch: pytest.MonkeyPatch, method: str, kinds: set[str]
) -> None:
    passes = Passes(monkeypatch)
    trained(two, spec(), method, {} if method == "auto" else {"lambda_": 0.01})
    seen = set()
    for text in passes.plans:
        # One task a shard, each an aggregate over it; only a work table of one row is sent there.
        above, _, task = text.partition("->  Task")
        assert "Task Count: 4" in above
        nodes = re.findall(r"->  (\w+)", task)
        assert nodes[0] == "Aggregate" or nodes[:2] == ["Subquery", "HashAggregate"], text
        assert all(
            re.search("weights_|whitening_", line) for line in above.splitlines() if "Seq Scan" in line
        )
        seen.update(re.findall(r"dpml\.(gram|gradient|on_shards)\(", task))
    assert seen == kinds


def test_what_travels_in_a_pass_does_not_grow_with_the_rows(
    two: Cluster, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    received = []
    for share in (1, 4):
        connection.execute(f"CREATE TABLE part_{share} (LIKE points)".encode())
        connection.execute(f"SELECT create_distributed_table('part_{share}', 'id')".encode())
        connection.execute(f"INSERT INTO part_{share} SELECT * FROM points WHERE id % 4 < {share}".encode())
        with monkeypatch.context() as patched:
            passes = Passes(patched, analyze=True)
            trained(two, spec(table=f"part_{share}"), "dp-gd", {"passes": 3})
        lines = [line.strip() for text in passes.plans for line in text.splitlines() if "from nodes" in line]
        assert len(lines) >= 3
        received.append(lines)
    assert received[0] == received[1]


@pytest.mark.parametrize("ids", ["", "WHERE id = 7", "WHERE id < 3"])
def test_shards_without_rows(two: Cluster, connection: psycopg.Connection, ids: str) -> None:
    connection.execute("CREATE TABLE few (LIKE points)")
    try:
        connection.execute("SELECT create_distributed_table('few', 'id')")
        if ids:
            connection.execute(f"INSERT INTO few SELECT * FROM points {ids}".encode())
        for method, options in (("auto", {}), ("bolt-on", {"lambda_": 0.1})):
            assert trained(two, spec(table="few"), method, options).plan.place
    finally:
        connection.execute("DROP TABLE few")


def test_a_filter_is_kept_on_the_workers(one: Cluster, two: Cluster, same_coins: Any) -> None:
    found = []
    for cluster in (one, two):
        same_coins()
        # An operator and a percent sign of the owner's SQL; a comment ends it.
        data = spec(where="id % 2 = 0 -- of each pair", definition_is_public=True)
        result = trained(cluster, data, "dp-gd", {})
        assert result.plan.problem.n_units == N // 2
        found.append(result.model.weights)
    np.testing.assert_allclose(found[1], found[0], rtol=1e-9, atol=1e-9)


def test_a_filter_that_reads_another_table_makes_the_rows_travel(two: Cluster) -> None:
    data = spec(where="id IN (SELECT 2 * i FROM generate_series(0, 400) AS i)", definition_is_public=True)
    result = trained(two, data, "dp-gd", {})
    assert "the filter may read other tables" in result.plan.place


def test_a_shard_that_moved_between_runs_changes_nothing(
    two: Cluster, connection: psycopg.Connection, same_coins: Any
) -> None:
    found = []
    for _ in range(2):
        same_coins()
        found.append(trained(two, spec(table="visits"), "dp-gd", {}).model.weights)
        shard, host, port = connection.execute(
            "SELECT shardid, nodename, nodeport FROM citus_shards "
            "WHERE table_name = 'visits'::regclass LIMIT 1"
        ).fetchone() or (0, "", 0)
        other = connection.execute(
            "SELECT nodename, nodeport FROM pg_dist_node "
            "WHERE groupid <> 0 AND (nodename, nodeport) <> (%s, %s)",
            (host, port),
        ).fetchone()
        assert other is not None
        connection.execute(
            "SELECT citus_move_shard_placement(%s, %s, %s, %s, %s, 'block_writes')",
            (shard, host, port, *other),
        )
    np.testing.assert_allclose(found[1], found[0], rtol=1e-9, atol=1e-9)


@pytest.fixture
def in_a_run(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is in the list is called once the rows of a run are packed."""
    calls: list[Any] = []

    def then_called(pack: Any) -> Any:
        def packed(*given: Any, **more: Any) -> Any:
            blocks = pack(*given, **more)
            for call in calls:
                call()
            return blocks

        return packed

    monkeypatch.setattr(RUNS_TRAIN + ".packed_blocks", then_called(distributed.packed_blocks))
    monkeypatch.setattr("pg_dpml.runs.tuning.pack_portions", then_called(portions.pack_portions))
    return calls


@pytest.mark.parametrize(
    "run",
    [
        partial(train, training=TrainSpec("dp-gd")),
        partial(train, training=TrainSpec("bolt-on", by_shards=True)),
        partial(tune, grid=Grid({"passes": [2, 3]}, TrainSpec("dp-gd"))),
    ],
    ids=["dp-gd", "by shards", "tune"],
)
def test_a_worker_that_dies_fails_the_run_which_stays_charged(
    two: Cluster, connection: psycopg.Connection, in_a_run: list[Any], run: Any
) -> None:
    name = f"of a dead worker {secrets.token_hex(8)}"

    def die() -> None:
        with psycopg.connect(two.workers[0].dsn_of(two.database), autocommit=True) as worker:
            killed = worker.execute(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid() "
                "AND state = 'idle in transaction'"
            ).fetchone()
        assert killed is not None
        assert killed[0] >= 1

    in_a_run.append(die)
    with pytest.raises(RunFailedError, match="stay charged"):
        run(two.dsn, spec(), PRIVACY, name=name)
    charged = connection.execute("SELECT count(*) FROM dpml.ledger WHERE model = %s", (name,)).fetchone()
    assert charged == (1,)
    assert not any(work_tables(two))
    in_a_run.clear()
    run(two.dsn, spec(), PRIVACY, name=f"after {name}")


def test_rows_written_during_a_run_are_not_in_it(
    two: Cluster, connection: psycopg.Connection, same_coins: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All statements of a run on a worker share the snapshot of the count."""
    same_coins()
    expected = trained(two, spec(), "dp-gd", {}).model.weights
    pack = distributed.packed_blocks

    def write_and_pack(*given: Any, **more: Any) -> Any:
        connection.execute(
            "INSERT INTO points SELECT id + 100000, person, x, NOT yes, kind, number FROM points"
        )
        return pack(*given, **more)

    monkeypatch.setattr(RUNS_TRAIN + ".packed_blocks", write_and_pack)
    same_coins()
    try:
        result = trained(two, spec(), "dp-gd", {})
    finally:
        connection.execute("DELETE FROM points WHERE id >= 100000")
    assert result.plan.problem.n_units == N
    np.testing.assert_allclose(result.model.weights, expected, rtol=1e-9, atol=1e-9)


def test_a_pass_that_sees_other_rows_than_were_counted_fails_the_run(
    two: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = query.count_units
    monkeypatch.setattr(RUNS_TRAIN + ".count_units", lambda *given: count(*given) + 1)
    with pytest.raises(RunFailedError, match="did not see every packed row"):
        train(two.dsn, spec(), PRIVACY, TrainSpec("dp-gd"), name="of other rows")
    assert not any(work_tables(two))


def test_a_worker_without_the_module_is_refused_before_the_charge(
    two: Cluster, connection: psycopg.Connection
) -> None:
    before = connection.execute("SELECT count(*) FROM dpml.ledger").fetchone()
    with psycopg.connect(two.workers[1].dsn_of(two.database), autocommit=True) as worker:
        worker.execute("SET citus.enable_ddl_propagation = off")
        worker.execute("ALTER FUNCTION dpml.encode(jsonb, record) RENAME TO encoded")
        try:
            with pytest.raises(SpecError, match="message is not shown"):
                trained(two, spec(), "dp-gd", {})
        finally:
            worker.execute("ALTER FUNCTION dpml.encoded(jsonb, record) RENAME TO encode")
    assert connection.execute("SELECT count(*) FROM dpml.ledger").fetchone() == before


def test_the_plan_says_where(one: Cluster, two: Cluster) -> None:
    places = {
        method: plan(two.dsn, spec(), PRIVACY, TrainSpec(method)).place
        for method in ("dp-gd", "dp-sgd", "scs13")
    }
    assert places["dp-gd"] == "packed and summed on the workers, in 4 shards: only sums travel"
    for method in ("dp-sgd", "scs13"):
        assert places[method] == (
            "the rows travel to the coordinator and are packed there: "
            "the method takes all rows in one random order"
        )
    assert plan(one.dsn, spec(), PRIVACY, TrainSpec("dp-gd")).place == ""
