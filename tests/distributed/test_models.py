# SPDX-License-Identifier: PostgreSQL
"""Stored models on all nodes: predictions over distributed tables, rights, and what dpml doctor sees."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import psycopg
import pytest
from psycopg import sql
from typer.testing import CliRunner

from citus import Cluster
from helpers.points import PRIVACY
from pg_dpml import Column, DataSpec, Label, PrivacySpec, TrainSpec, cli, evaluate, predict, train
from pg_dpml.database.database import Database
from pg_dpml.ledger import models as registry
from pg_dpml.ledger import nodes
from pg_dpml.server.workers import examine_workers

DATA = DataSpec("points", Label("yes", positive="true"), (Column("x", length=4, lower=-1, upper=1),))
MODELS = ("whitened", "it's one's", "several")
"""Of them the second has quotes in its name."""


@pytest.fixture(scope="module", autouse=True)
def stored(two: Cluster, one: Cluster) -> Iterator[None]:
    """Models on the coordinator, and the same on the server without workers."""
    train(two.dsn, DATA, PRIVACY, TrainSpec("auto"), name=MODELS[0])
    train(two.dsn, DATA, PRIVACY, TrainSpec("bolt-on", lambda_=0.01), name=MODELS[1])
    kinds = DataSpec("points", Label("kind", classes=("a", "b", "c")), DATA.columns)
    train(two.dsn, kinds, PRIVACY, TrainSpec("dp-gd"), name=MODELS[2])
    with Database(two.dsn).session() as there, Database(one.dsn).session() as here:
        for name in MODELS:
            model = registry.load_model(there, name)
            registry.store_model(here, registry.Model(**{**vars(model), "charge": None, "owner": None}))
    yield
    with psycopg.connect(two.dsn, autocommit=True) as connection:
        for (name,) in connection.execute("SELECT name FROM dpml.models").fetchall():
            CliRunner().invoke(cli.app, ["drop", name, "--yes", "--dsn", two.dsn])


PLANS = [
    "SELECT count(*)::float8 FROM {table} AS t WHERE dpml.predict({model}, t) = dpml.label({model}, t)",
    "SELECT sum(dpml.predict_value({model}, t)) FROM {table} AS t",
    "SELECT sum(p) FROM {table} AS t, "
    "LATERAL unnest(dpml.predict_proba({model}, t)) WITH ORDINALITY AS u (p, i) WHERE i = 1",
    "SELECT dpml.predict_value({model}, t) FROM {table} AS t WHERE id = 7",
    "SELECT max(v) FROM (SELECT id % 5 AS g, avg(dpml.predict_value({model}, t)) AS v "
    "FROM {table} AS t GROUP BY 1) AS s",
    "SELECT sum(dpml.predict_value({model}, s)) "
    "FROM (SELECT x, yes, kind, number FROM {table} ORDER BY id LIMIT 40) AS s",
    "WITH picked AS MATERIALIZED (SELECT id, dpml.predict_value({model}, t) AS v "
    "FROM {table} AS t WHERE id < 30) SELECT sum(v * number) FROM picked JOIN {table} USING (id)",
]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("query", PLANS)
def test_predictions_are_those_of_one_server(one: Cluster, two: Cluster, query: str, model: str) -> None:
    found = []
    for cluster in (one, two):
        with psycopg.connect(cluster.dsn, autocommit=True) as connection:
            text = sql.SQL(query).format(  # type: ignore[arg-type, unused-ignore]
                model=sql.Literal(model), table=sql.Identifier("points")
            )
            ((value,),) = connection.execute(text).fetchall()
            found.append(value)
    assert found[0] is not None
    assert found[1] == pytest.approx(found[0], rel=1e-9)


@pytest.mark.parametrize("model", MODELS[:2])
def test_figures_are_those_of_one_server(one: Cluster, two: Cluster, model: str) -> None:
    exact = [evaluate(cluster.dsn, model, "points", owner=True) for cluster in (one, two)]
    # Means over rows are sums in another order.
    bins = [[(b.lower, b.n_rows, b.observed, b.predicted) for b in one.calibration] for one in exact]
    assert np.array(bins[1]) == pytest.approx(np.array(bins[0]), rel=1e-9)
    assert replace(exact[0], calibration=()) == replace(exact[1], calibration=())
    noisy = evaluate(two.dsn, model, "points", privacy=PrivacySpec(20.0))
    assert noisy.accuracy == pytest.approx(exact[1].accuracy, abs=0.01)


def test_an_error_of_units_in_several_shards(two: Cluster) -> None:
    data = DataSpec("points", DATA.label, DATA.columns, unit="person", max_rows_per_unit=2)
    train(two.dsn, data, PRIVACY, TrainSpec("dp-gd"), name="of persons")
    noisy = evaluate(two.dsn, "of persons", "points", privacy=PrivacySpec(20.0))
    assert noisy.n_rows == 2 * 666 + 2


@pytest.mark.parametrize(("id_column", "distributed"), [("id", True), ("person", False)])
def test_predictions_into_a_table(
    two: Cluster, connection: psycopg.Connection, id_column: str, distributed: bool
) -> None:
    connection.execute("DROP TABLE IF EXISTS predicted")
    assert predict(two.dsn, MODELS[0], "points", id_column=id_column, into="predicted") == 2000
    kinds = connection.execute(
        "SELECT partmethod::text FROM pg_dist_partition WHERE logicalrelid = 'predicted'::regclass"
    ).fetchall()
    assert kinds == ([("h",)] if distributed else [])
    wrong = connection.execute(
        "SELECT count(*) FROM predicted AS p JOIN points AS t USING (id) "
        "WHERE p.value <> dpml.predict_value(%s, t)"
        if distributed
        else "SELECT 2000 - count(*) FROM predicted",
        (MODELS[0],) if distributed else (),
    ).fetchone()
    assert wrong == (0,)
    connection.execute("DROP TABLE predicted")


@pytest.fixture(scope="module")
def roles(two: Cluster) -> None:
    """A curator, and two analysts, on every node."""
    with psycopg.connect(two.dsn, autocommit=True) as connection:
        connection.execute("CREATE ROLE keeper LOGIN; CREATE ROLE ann LOGIN; CREATE ROLE bob LOGIN")
        connection.execute("GRANT dpml_curator TO keeper; GRANT dpml_analyst TO ann, bob")
        connection.execute("GRANT SELECT ON points TO keeper, ann, bob")


def answer(cluster: Cluster, role: str, model: str) -> Any:
    with psycopg.connect(cluster.dsn_of(role), autocommit=True) as connection:
        query = "SELECT count(dpml.predict(%s, t)) FROM points AS t"
        return connection.execute(query, (model,)).fetchone()


def test_a_curator_trains_and_grants_go_to_every_node(two: Cluster, roles: None) -> None:
    dsn = two.dsn_of("keeper")
    result = train(dsn, DATA, PRIVACY, TrainSpec("auto"), name="of the keeper")
    assert "only sums travel" in result.plan.place
    run = CliRunner().invoke
    assert answer(two, "keeper", "of the keeper") == (2000,)
    for role in ("ann", "bob"):
        with pytest.raises(psycopg.Error, match="does not exist, or was not granted"):
            answer(two, role, "of the keeper")
    assert run(cli.app, ["grant", "of the keeper", "ann", "--dsn", dsn]).exit_code == 0
    assert answer(two, "ann", "of the keeper") == (2000,)
    with pytest.raises(psycopg.Error, match="does not exist, or was not granted"):
        answer(two, "bob", "of the keeper")
    assert run(cli.app, ["revoke", "of the keeper", "ann", "--dsn", dsn]).exit_code == 0
    with pytest.raises(psycopg.Error, match="does not exist, or was not granted"):
        answer(two, "ann", "of the keeper")
    assert run(cli.app, ["drop", "of the keeper", "--yes", "--dsn", dsn]).exit_code == 0
    names = two.on_nodes("SELECT count(*)::int FROM dpml.models WHERE name = 'of the keeper'")
    assert names == [[(0,)]] * 3


def test_copies_have_no_charge_and_no_ledger(two: Cluster) -> None:
    for rows in two.on_nodes(
        "SELECT count(*)::int FROM dpml.ledger UNION ALL SELECT count(charge) FROM dpml.models"
    )[1:]:
        assert rows == [(0,), (0,)]


def test_doctor_looks_at_every_worker(two: Cluster, roles: None) -> None:
    with Database(two.dsn).session() as session:
        checks = examine_workers(session)
    assert [check.ok for check in checks] == [True, True]
    assert all(check.name.startswith("worker ") and check.found.endswith("all models") for check in checks)


def test_doctor_names_what_a_worker_lacks_and_share_brings_it(two: Cluster) -> None:
    worker = two.workers[0].dsn_of(two.database)
    with psycopg.connect(worker, autocommit=True) as there:
        there.execute("SELECT dpml.drop_model(%s)", (MODELS[1],))
    run = CliRunner().invoke
    doctor = run(cli.app, ["doctor", "--format", "json", "--dsn", two.dsn])
    assert doctor.exit_code != 0
    (amiss,) = [check for check in json.loads(doctor.stdout)["checks"] if not check["ok"]]
    assert MODELS[1] in amiss["found"]
    assert "dpml share" in amiss["fix"]
    assert run(cli.app, ["share", MODELS[1], "--dsn", two.dsn]).exit_code == 0
    with Database(two.dsn).session() as session:
        assert nodes.lacking_models(session) == []


def test_doctor_tells_rights_and_versions(two: Cluster, roles: None) -> None:
    with psycopg.connect(two.workers[1].dsn_of(two.database), autocommit=True) as there:
        there.execute("SET citus.enable_ddl_propagation = off")
        there.execute("REVOKE CREATE ON SCHEMA dpml_work FROM dpml_curator")
        try:
            with Database(two.dsn_of("keeper")).session() as session:
                (amiss,) = [check for check in examine_workers(session) if not check.ok]
        finally:
            there.execute("GRANT CREATE ON SCHEMA dpml_work TO dpml_curator")
    assert "CREATE ON SCHEMA dpml_work" in amiss.found
    assert "GRANT CREATE ON SCHEMA dpml_work" in amiss.fix


def test_share_without_workers_is_refused(one: Cluster) -> None:
    result = CliRunner().invoke(cli.app, ["share", MODELS[0], "--dsn", one.dsn])
    assert result.exit_code != 0
    assert "no workers of Citus" in result.stderr
