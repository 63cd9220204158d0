# SPDX-License-Identifier: PostgreSQL
"""Distributed tables under attack: names and settings of a role, shards as tables, workers as servers.

Long because every attack trains on the same rows by the same spec.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest
from psycopg import conninfo, sql
from typer.testing import CliRunner

from citus import Cluster
from helpers.points import PRIVACY, table_like_points
from pg_dpml import (
    Column,
    DataSpec,
    Grid,
    GuaranteeError,
    Label,
    PrivacySpec,
    SpecError,
    TrainSpec,
    cli,
    compare,
    evaluate,
    plan,
    predict,
    train,
    tune,
)
from pg_dpml.blocks import distributed
from pg_dpml.database.database import Database
from pg_dpml.ledger import nodes, opening
from pg_dpml.runs import datasets, requests
from pg_dpml.server.workers import examine_workers

COLUMNS = (Column("x", length=4, lower=-1, upper=1),)
DP_GD = TrainSpec("dp-gd")
HOSTILE = Path(__file__).parents[1] / "database" / "hostile.sql"


SPRINGS = "LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''sprung''; END'"
CLOSER = f"""
    CREATE FUNCTION hostile.sprung(bigint, int) RETURNS bigint {SPRINGS};
    CREATE AGGREGATE hostile.count(int) (SFUNC = hostile.sprung, STYPE = bigint);
    CREATE FUNCTION hostile.sprung(oid, regnamespace) RETURNS boolean {SPRINGS};
    CREATE OPERATOR hostile.= (LEFTARG = oid, RIGHTARG = regnamespace, FUNCTION = hostile.sprung);
"""
"""Closer than count("any") and oid = oid."""


def spec(table: str = "points", **more: Any) -> DataSpec:
    return DataSpec(table, Label("yes", positive="true"), COLUMNS, **more)


def name() -> str:
    return f"model {secrets.token_hex(8)}"


def charges(connection: psycopg.Connection) -> Any:
    return connection.execute("SELECT count(*) FROM dpml.ledger").fetchone()


@pytest.fixture
def victim(two: Cluster, connection: psycopg.Connection) -> Iterator[str]:
    """A superuser in whose search_path, on every node, there are closer matches than what is built in."""
    for node in two.nodes:
        with psycopg.connect(node.dsn_of(two.database), autocommit=True) as there:
            there.execute("SET citus.enable_ddl_propagation = off")
            there.execute("SET citus.enable_metadata_sync = off")
            there.execute(HOSTILE.read_bytes())
            there.execute(CLOSER.encode())
    connection.execute("CREATE ROLE victim LOGIN SUPERUSER")
    connection.execute("ALTER ROLE victim SET search_path = public, hostile")
    yield two.dsn_of("victim")
    connection.execute("DROP OWNED BY victim; DROP ROLE victim")
    for node in two.nodes:
        with psycopg.connect(node.dsn_of(two.database), autocommit=True) as there:
            there.execute("SET citus.enable_ddl_propagation = off")
            there.execute("SET client_min_messages = error")
            there.execute("DROP SCHEMA hostile CASCADE")


def test_no_worker_takes_a_closer_match_in_the_search_path(two: Cluster, victim: str) -> None:
    for node in two.workers:
        with (
            psycopg.connect(node.dsn_of(two.database, "victim"), autocommit=True) as there,
            pytest.raises(psycopg.Error, match="sprung"),
        ):
            there.execute("SELECT 1.5::float8 > 1")
    data = spec(where="number > 0::float8 OR number <= 0::float8", definition_is_public=True)
    model = name()
    assert "only sums travel" in train(victim, data, PRIVACY, TrainSpec("auto"), name=model).plan.place
    units = spec(
        "visits",
        unit="person",
        max_rows_per_unit=2,
        where="id < 1000000000::bigint",
        definition_is_public=True,
    )
    train(victim, units, PRIVACY, DP_GD, name=name())
    train(victim, data, PRIVACY, TrainSpec("scs13"), name=name())
    for asked in (data, units):
        train(victim, asked, PRIVACY, TrainSpec("bolt-on", by_shards=True, fresh_order=True), name=name())
    train(victim, spec(unit="person", max_rows_per_unit=2), PRIVACY, DP_GD, name=name())
    regression = DataSpec("points", Label("number", lower=-1, upper=1), COLUMNS)
    numbers = name()
    train(victim, regression, PRIVACY, DP_GD, name=numbers)
    for stored in (model, numbers):
        assert evaluate(victim, stored, "points", owner=True).n_rows == 2000
        evaluate(victim, stored, "points", privacy=PrivacySpec(1.0))
    assert predict(victim, model, "points", id_column="id", into="public.foretold") == 2000
    tried = Grid({"passes": [2, 3]}, DP_GD)
    for asked in (data, units):
        assert "only sums travel" in tune(victim, asked, PRIVACY, tried, name=name()).trained.plan.place
    tune(victim, spec(), PRIVACY, tried, name=name(), public_table="visits")
    for asked in (data, units, regression):
        compare(victim, asked, methods=("dp-gd",), epsilons=(2.0,), splits=1, owner=True)
    with psycopg.connect(victim, autocommit=True) as connected:
        connected.execute("DROP TABLE public.foretold")
    run = CliRunner().invoke
    for command in (["share", model], ["grant", model, "public"], ["revoke", model, "public"]):
        done = run(cli.app, [*command, "--dsn", victim])
        assert done.exit_code == 0, done.output
    with Database(victim).session() as session:
        assert [check.ok for check in examine_workers(session)] == [True, True]
    assert run(cli.app, ["drop", model, "--yes", "--dsn", victim]).exit_code == 0
    assert two.on_nodes(f"SELECT count(*)::int FROM dpml.models WHERE name = '{model}'") == [[(0,)]] * 3


@pytest.fixture(scope="module")
def times(one: Cluster, two: Cluster) -> Iterator[str]:
    """The points, each with a time and a date that is written in two orders."""
    at = "'2024-01-01 00:00+00'::timestamptz + id * interval '1 minute'"
    day = "'2024-01-01'::date + (id % 50)::int"
    select = f"*, {at}, {day}"
    with table_like_points((one, two), "times", ", at timestamptz, day date", select) as name:
        yield name


@pytest.mark.parametrize(
    ("setting", "where"),
    [
        ("TimeZone=Asia/Tokyo", "at < '2024-01-01 20:00'"),
        ("DateStyle=SQL,DMY", "day <> '02/01/2024'"),  # as many rows have the first of February
        ("transform_null_equals=on", "NOT (kind = NULL)"),
    ],
)
def test_a_filter_means_on_a_worker_what_it_means_on_the_coordinator(
    one: Cluster, two: Cluster, times: str, same_coins: Any, setting: str, where: str
) -> None:
    found = []
    for cluster in (one, two):
        same_coins()
        dsn = conninfo.make_conninfo(cluster.dsn, options=f"-c {setting}")
        result = train(dsn, spec(times, where=where, definition_is_public=True), PRIVACY, DP_GD, name=name())
        assert ("only sums travel" in result.plan.place) == bool(cluster.workers)
        found.append(result.model.weights)
    np.testing.assert_allclose(found[1], found[0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("binary", ["on", "off"])
@pytest.mark.parametrize(("method", "options"), [("auto", {}), ("bolt-on", {"lambda_": 0.01})])
def test_sums_and_weights_travel_with_all_their_digits(
    two: Cluster,
    connection: psycopg.Connection,
    same_coins: Any,
    method: str,
    options: dict[str, Any],
    binary: str,
) -> None:
    """Else a sum moves by more than its sensitivity."""
    connection.execute("CREATE ROLE rough LOGIN IN ROLE dpml_curator; GRANT SELECT ON points TO rough")
    connection.execute("ALTER ROLE rough SET extra_float_digits = -14")
    dsn = conninfo.make_conninfo(two.dsn_of("rough"), options=f"-c citus.enable_binary_protocol={binary}")
    try:
        found = []
        for asked in (two.dsn, dsn):
            same_coins()
            result = train(asked, spec(), PRIVACY, TrainSpec(method, **options), name=name())
            assert "only sums travel" in result.plan.place
            found.append(result.model.weights)
    finally:
        connection.execute("DROP OWNED BY rough; DROP ROLE rough")
    np.testing.assert_array_equal(found[1], found[0])


def test_statements_share_a_snapshot_whatever_the_roles_settings(
    two: Cluster, connection: psycopg.Connection
) -> None:
    options = "-c citus.select_opens_transaction_block=off -c citus.force_max_query_parallelization=on"
    dsn = conninfo.make_conninfo(two.dsn, options=options)
    count = sql.SQL("SELECT pg_catalog.count(*) FROM public.points")
    try:
        with Database(dsn).session("REPEATABLE READ") as session:
            distributed.use_one_snapshot(session)
            before = session.fetch_one(count)
            connection.execute("INSERT INTO points SELECT id + 100000, person, x, yes, kind, 0 FROM points")
            assert session.fetch_one(count) == before
    finally:
        connection.execute("DELETE FROM points WHERE id >= 100000")


@pytest.mark.parametrize(("method", "options"), [("auto", {}), ("bolt-on", {"lambda_": 0.01}), ("scs13", {})])
def test_a_coordinator_that_has_the_shards(
    one: Cluster, alone: Cluster, same_coins: Any, method: str, options: dict[str, Any]
) -> None:
    found = []
    for cluster in (one, alone):
        same_coins()
        result = train(cluster.dsn, spec(), PRIVACY, TrainSpec(method, **options), name=name())
        assert ("only sums travel" in result.plan.place) == (cluster is alone and method != "scs13")
        found.append(result.model.weights)
    if method != "scs13":  # which shuffles the rows
        np.testing.assert_allclose(found[1], found[0], rtol=1e-9, atol=1e-9)
    left = alone.on_nodes("SELECT relname::text FROM pg_class WHERE relnamespace = 'dpml_work'::regnamespace")
    assert left == [[]]


@pytest.mark.parametrize("shown", [True, False])
def test_a_shard_is_not_charged_beside_the_budget_of_its_table(alone: Cluster, shown: bool) -> None:
    options = f"-c citus.override_table_visibility={'off' if shown else 'on'}"
    dsn = conninfo.make_conninfo(alone.dsn, options=options)
    with psycopg.connect(alone.dsn, autocommit=True) as connection:
        (shard,) = connection.execute(
            "SELECT shard_name(logicalrelid, shardid) FROM pg_dist_shard "
            "WHERE logicalrelid = 'points'::regclass LIMIT 1"
        ).fetchone() or ("",)
        connection.execute("SET citus.enable_ddl_propagation = off")
        connection.execute(f"CREATE OR REPLACE VIEW part AS SELECT * FROM {shard}".encode())
        before = charges(connection)
        for table in [shard, "part"] if shown else ["part"]:
            with pytest.raises(GuaranteeError, match=f"{shard} is a shard of a distributed table"):
                train(dsn, spec(table, definition_is_public=True), PRIVACY, DP_GD, name=name())
        if not shown:
            with pytest.raises(SpecError, match="does not exist here"):
                train(dsn, spec(shard), PRIVACY, DP_GD, name=name())
        assert charges(connection) == before
        connection.execute("DROP VIEW part")


def test_a_worker_charges_nothing(two: Cluster) -> None:
    dsn = two.workers[0].dsn_of(two.database)
    model = name()
    train(two.dsn, spec(), PRIVACY, DP_GD, name=model)
    with pytest.raises(GuaranteeError, match="this server is a worker of Citus"):
        plan(dsn, spec(), PRIVACY, DP_GD)
    with pytest.raises(GuaranteeError, match="this server is a worker of Citus"):
        train(dsn, spec(), PRIVACY, DP_GD, name=name())
    with pytest.raises(GuaranteeError, match="this server is a worker of Citus"):
        evaluate(dsn, model, "points", privacy=PrivacySpec(1.0))
    with psycopg.connect(dsn, autocommit=True) as worker:
        assert charges(worker) == (0,)


def test_no_shard_moves_while_its_rows_are_summed(
    two: Cluster, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []
    pack = distributed.packed_blocks

    def packed_and_moved(*given: Any, **more: Any) -> Any:
        blocks = pack(*given, **more)
        (shard, *place) = connection.execute(
            "SELECT s.shardid, s.nodename, s.nodeport, n.nodename, n.nodeport "
            "FROM citus_shards AS s, pg_dist_node AS n WHERE s.table_name = 'points'::regclass "
            "AND n.groupid <> 0 AND (n.nodename, n.nodeport) <> (s.nodename, s.nodeport) LIMIT 1"
        ).fetchone() or (0,)
        with pytest.raises(psycopg.Error, match="could not acquire the lock required to move") as refused:
            connection.execute(
                "SELECT citus_move_shard_placement(%s, %s, %s, %s, %s, 'block_writes')", (shard, *place)
            )
        tried.append(refused)
        return blocks

    monkeypatch.setattr("pg_dpml.runs.train.packed_blocks", packed_and_moved)
    train(two.dsn, spec(), PRIVACY, DP_GD, name=name())
    assert tried


@pytest.mark.parametrize(
    ("change", "made"),
    [
        ("UPDATE dpml.models SET granted_to = '{keeper_of_old}' WHERE name = %s", "granted_to"),
        ("UPDATE dpml.models SET weights[1] = weights[1] + 1 WHERE name = %s", "weights"),
    ],
)
def test_an_old_copy_is_found_and_no_error_is_charged_with_it(
    two: Cluster, connection: psycopg.Connection, change: str, made: str
) -> None:
    model = name()
    train(two.dsn, spec(), PRIVACY, DP_GD, name=model)
    with psycopg.connect(two.workers[1].dsn_of(two.database), autocommit=True) as worker:
        worker.execute("SET session_replication_role = replica")
        worker.execute(change.encode(), (model,))
    before = charges(connection)
    with Database(two.dsn).session() as session:
        ((_, lacking),) = nodes.lacking_models(session)
    assert lacking == (model,)
    with pytest.raises(SpecError, match="dpml share"):
        evaluate(two.dsn, model, "points", privacy=PrivacySpec(1.0))
    assert charges(connection) == before
    assert CliRunner().invoke(cli.app, ["share", model, "--dsn", two.dsn]).exit_code == 0
    assert evaluate(two.dsn, model, "points", privacy=PrivacySpec(1.0)).n_rows == 2000


@pytest.mark.parametrize(
    ("create", "reason"),
    [
        (
            "SET citus.shard_replication_factor = 2; CREATE TABLE odd (LIKE points)",
            "each shard is on several workers",
        ),
        (
            "CREATE DOMAIN number AS bigint NOT NULL; "
            "CREATE TABLE odd (LIKE points); ALTER TABLE odd ALTER id TYPE number",
            "the type of id is a domain",
        ),
    ],
    ids=["copies", "domain"],
)
def test_tables_whose_rows_travel(
    one: Cluster, two: Cluster, connection: psycopg.Connection, same_coins: Any, create: str, reason: str
) -> None:
    for statement in create.split("; "):
        connection.execute(statement.encode())
    try:
        connection.execute("SELECT create_distributed_table('odd', 'id', colocate_with => 'none')")
        connection.execute("INSERT INTO odd SELECT * FROM points")
        same_coins()
        result = train(two.dsn, spec("odd"), PRIVACY, DP_GD, name=name())
        assert reason in result.plan.place
        same_coins()
        expected = train(one.dsn, spec(), PRIVACY, DP_GD, name=name()).model.weights
        np.testing.assert_allclose(result.model.weights, expected, rtol=1e-9, atol=1e-9)
    finally:
        connection.execute("DROP TABLE odd")
        connection.execute("DROP DOMAIN IF EXISTS number")


def test_a_filter_that_reads_another_table_by_name_makes_the_rows_travel(
    two: Cluster, connection: psycopg.Connection
) -> None:
    connection.execute("CREATE TABLE chosen AS SELECT 2 * i AS id FROM generate_series(0, 400) AS i")
    try:
        data = spec(where="id IN (TABLE public.chosen)", definition_is_public=True)
        result = train(two.dsn, data, PRIVACY, DP_GD, name=name())
        assert "the filter may read other tables" in result.plan.place
    finally:
        connection.execute("DROP TABLE chosen")


@pytest.mark.parametrize("table", ["points", "some_points"])
@pytest.mark.parametrize(("body", "runs"), [("public.is_even(i)", True), ("is_even(i)", False)])
def test_a_function_of_the_owner_qualifies_names_or_is_refused_before_the_charge(
    two: Cluster, connection: psycopg.Connection, table: str, body: str, runs: bool
) -> None:
    function = (
        "CREATE FUNCTION public.{} RETURNS boolean IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN {}; END'"
    )
    connection.execute(function.format("is_even(i bigint)", "i % 2 = 0").encode())
    connection.execute(function.format("chosen(i bigint)", body).encode())
    connection.execute("CREATE VIEW some_points AS SELECT * FROM points")
    data = spec(table, where="public.chosen(id)", definition_is_public=True)
    before = charges(connection)
    try:
        if runs:
            result = train(two.dsn, data, PRIVACY, DP_GD, name=name())
            assert result.plan.problem.n_units == 1000
        else:
            with pytest.raises(SpecError, match="message is not shown"):
                train(two.dsn, data, PRIVACY, DP_GD, name=name())
            assert charges(connection) == before
    finally:
        connection.execute("DROP VIEW some_points")
        connection.execute("DROP FUNCTION public.chosen(bigint), public.is_even(bigint)")


def test_names_and_levels_are_never_read_as_statements(
    one: Cluster, two: Cluster, connection: psycopg.Connection, same_coins: Any
) -> None:
    """They are part of the text that workers run."""
    table, key = '"a;b%s"."t""x\'; DROP TABLE points; -- $1"', '"k""; -- %(y)s"'
    levels = ("it's", "back\\slash", "\\'; DROP TABLE points; --", "100%", "$1", "%(encoder)s")
    found = []
    for cluster in (one, two):
        with psycopg.connect(cluster.dsn, autocommit=True) as there:
            there.execute('CREATE SCHEMA "a;b%s"')
            there.execute(f"CREATE TABLE {table} ({key} bigint, word text, yes boolean)".encode())
            if cluster.workers:
                there.execute(
                    "SELECT create_distributed_table(%s, %s)", (table, key[1:-1].replace('""', '"'))
                )
            rows = "INSERT INTO {} SELECT id, ({}::text[])[1 + id % 6], id % 6 < 3 FROM points"
            there.execute(sql.SQL(rows).format(sql.SQL(table), sql.Literal(list(levels))))
        connection.execute("ALTER ROLE postgres SET standard_conforming_strings = off")
        try:
            same_coins()
            word = Column("word", levels=levels)
            data = DataSpec(
                table,
                Label("yes", positive="true"),
                (word,),
                where="word <> '\\' AND word <> '; DROP SCHEMA public; --'",
                definition_is_public=True,
            )
            result = train(cluster.dsn, data, PRIVACY, DP_GD, name=name())
            assert ("only sums travel" in result.plan.place) == bool(cluster.workers)
            found.append(result.model.weights)
        finally:
            connection.execute("ALTER ROLE postgres RESET standard_conforming_strings")
            with psycopg.connect(cluster.dsn, autocommit=True) as there:
                there.execute('DROP SCHEMA "a;b%s" CASCADE')
    np.testing.assert_allclose(found[1], found[0], rtol=1e-9, atol=1e-9)
    assert connection.execute("SELECT count(*) FROM points").fetchone() == (2000,)


def test_an_analyst_gets_a_model_of_a_distributed_table_and_nothing_else(
    two: Cluster, connection: psycopg.Connection
) -> None:
    connection.execute("CREATE ROLE asker LOGIN IN ROLE dpml_analyst")
    connection.execute("CREATE ROLE answerer LOGIN IN ROLE dpml_curator")
    connection.execute("CREATE TABLE held (LIKE points)")
    connection.execute("SELECT create_distributed_table('held', 'id')")
    connection.execute("INSERT INTO held SELECT * FROM points")
    connection.execute("GRANT SELECT ON held TO answerer")
    asker, answerer = two.dsn_of("asker"), two.dsn_of("answerer")
    offered = """
    table = "held"
    label = {column = "yes", positive = "true"}
    columns.x = {length = 4, lower = -1, upper = 1}
    """
    training = {"method": "bolt-on", "lambda": 0.01, "solver": "certified"}
    options = json.dumps({"privacy": {"epsilon": 1}, "training": training})
    with Database(answerer).session() as session:
        opening.open_budget(
            session, "held", epsilon=Decimal(3), delta=Decimal("1e-5"), rule="gdp", tables=("held",)
        )
        datasets.register(session, "held", offered, allow_certified=True)
    with psycopg.connect(asker, autocommit=True) as analyst:
        call = "CALL dpml.train('held', 'asked for', %s)"
        calling = threading.Thread(target=analyst.execute, args=(call, (options,)))
        calling.start()
        while (served := requests.serve_next(Database(answerer))) is None:
            time.sleep(0.1)
        calling.join()
        assert served.state == "done"
        assert analyst.execute("SELECT name FROM dpml.models").fetchall() == [("asked for",)]
        ((shard,),) = analyst.execute(
            "SELECT shard_name(logicalrelid, shardid) FROM pg_dist_shard "
            "WHERE logicalrelid = 'held'::regclass LIMIT 1"
        ).fetchall()
        statements = [
            f"SELECT count(*) FROM {shard}",
            f"SELECT dpml.on_shards(102008, 'SELECT 1 FROM {shard}', '{{102008}}', '{{}}', '{{}}', NULL)",
            "SELECT count(*) FROM dpml.ledger",
            "SELECT dpml.gradient(NULL::bytea, NULL::float8[], '{}'::jsonb)",
        ]
        for statement in statements:
            answers = analyst.execute("SELECT * FROM run_command_on_workers(%s)", (statement,)).fetchall()
            assert len(answers) == 2
            for _, _, success, answer in answers:
                assert not success
                assert "permission denied" in answer or "does not exist" in answer, answer
    owners = two.on_nodes("SELECT owner::text, charge IS NULL FROM dpml.models WHERE name = 'asked for'")
    assert owners == [[("asker", False)], [("asker", True)], [("asker", True)]]
