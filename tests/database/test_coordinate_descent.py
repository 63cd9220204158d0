# SPDX-License-Identifier: PostgreSQL
"""Whole runs of coordinate descent: scd to the best model there is, and its three private relatives."""

from __future__ import annotations

import bisect
import json
import math
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest
from scipy import stats
from scipy.optimize import minimize
from typer.testing import CliRunner

import pg_dpml
from helpers import people
from helpers.people import BAD_PEOPLE, FloatArray, create_people, make_people
from helpers.sqltools import scalar, work_tables
from pg_dpml import DataSpec, Grid, PrivacySpec, Relation, TrainSpec
from pg_dpml.cli import app
from pg_dpml.database.database import Database
from pg_dpml.database.session import Session, sql
from pg_dpml.errors import BudgetError, RunFailedError, SpecError
from pg_dpml.ledger import opening
from pg_dpml.reports import result_report
from pg_dpml.runs import datasets, requests
from pg_dpml.spec.columns import Column, Label
from pg_dpml.training import scd as passes
from pg_dpml.training.job import Job
from pg_dpml.training.scd import Scd

pytestmark = [pytest.mark.usefixtures("clean"), pytest.mark.dealt]

N = 600
PEOPLE = [*make_people(N - len(BAD_PEOPLE)), *BAD_PEOPLE]
PRIVACY = PrivacySpec(1.0, 1e-6)
LAMBDA = 0.01
PASSES = 5
LOSSES = ("logistic", "huber_svm", "hinge", "squared")
PRIVATE = ("dp-scd", "seq-dp-scd", "primal-dp-scd")


@pytest.fixture(scope="module", autouse=True)
def tables(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        create_people(connection, PEOPLE)
        create_people(connection, make_people(N, seed=2), "known")
        create_people(connection, make_people(3 * N), "crowd")
        create_people(connection, make_people(9 * N), "throng")
        connection.execute("CREATE TABLE visits AS SELECT *, id / 4 AS who FROM known")


def task_of(loss: str) -> str:
    return "regression" if loss == "squared" else "binary"


def losses(kind: str, u: FloatArray, y: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Losses of scores u, and their derivatives."""
    m = y * u
    if kind == "logistic":
        return np.logaddexp(0.0, -m), -y / (1.0 + np.exp(m))
    if kind == "hinge":
        return np.maximum(0.0, 1.0 - m), np.where(m < 1.0, -y, 0.0)
    if kind == "huber_svm":
        bend = np.clip(1.5 - m, 0.0, 1.0)
        return np.where(m < 0.5, 1.0 - m, bend**2 / 2.0), -y * bend
    return (u - y) ** 2 / 2.0, u - y


def objective(kind: str, w: FloatArray, x: FloatArray, y: FloatArray, n: int) -> tuple[float, FloatArray]:
    """The regularised mean loss and its gradient; a zero row's loss does not depend on w and is left out."""
    value, slope = losses(kind, x @ w, y)
    value = value * np.any(x, axis=1)
    return float(value.sum() / n + LAMBDA / 2 * w @ w), slope @ x / n + LAMBDA * w


@pytest.fixture
def gaps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The relative duality gap after each pass of scd."""
    found: list[float] = []
    relative_gap = passes._relative_gap

    def recorded(*given: Any) -> float:
        found.append(relative_gap(*given))
        return found[-1]

    monkeypatch.setattr(passes, "_relative_gap", recorded)
    return found


@pytest.mark.parametrize("loss", LOSSES)
def test_scd_finds_the_best_model(
    database: str, connection: psycopg.Connection, gaps: list[float], loss: str
) -> None:
    """Its duality gap says so, and so do scipy and scikit-learn; the gap is shown to nobody."""
    training = TrainSpec("scd", loss=loss, lambda_=LAMBDA)
    result = pg_dpml.train(database, people.spec(task_of(loss)), None, training, name="m")
    assert gaps[-1] <= 1e-8
    assert result.passes == len(gaps) < 1000
    assert result_report.result_warnings(result) == ()
    assert all(gap > 1e-8 for gap in gaps[:-1])
    assert min(gaps) >= -1e-12
    x, y = people.encode(result.model.encoder, PEOPLE)
    found, _ = objective(loss, result.model.weights, x, y, N)
    if loss == "hinge":
        svm = pytest.importorskip("sklearn.svm")
        used = np.any(x, axis=1)
        model = svm.LinearSVC(
            loss="hinge", C=1.0 / (LAMBDA * N), fit_intercept=False, tol=1e-8, max_iter=10_000_000
        )
        best = model.fit(x[used], y[used]).coef_.reshape(-1)
    else:
        options = {"ftol": 0.0, "gtol": 1e-12, "maxiter": 10_000}
        start = np.zeros(x.shape[1])
        best = minimize(
            lambda w: objective(loss, w, x, y, N), start, jac=True, method="L-BFGS-B", options=options
        ).x
    assert found == pytest.approx(objective(loss, best, x, y, N)[0], rel=1e-6)
    record = json.dumps(scalar(connection, "SELECT to_jsonb(m) FROM dpml.models AS m"))
    assert not any(f"{gap:.9e}"[:9] in record for gap in gaps)
    assert scalar(connection, "SELECT private FROM dpml.models") is False


def test_scd_takes_the_passes_that_it_may(database: str, gaps: list[float]) -> None:
    for given, taken in (({"passes": 2}, 2), ({"tolerance": 1.0}, 1), ({"tolerance": 0.0, "passes": 5}, 5)):
        gaps.clear()
        result = pg_dpml.train(database, people.spec(), None, TrainSpec("scd", **given), name=f"m{taken}")
        assert (result.passes, len(gaps)) == (taken, taken)
        if "passes" not in given:
            assert result_report.result_warnings(result) == ()
            continue
        (warning,) = result_report.result_warnings(result)
        assert f"all {taken} passes were taken before its duality gap was as small" in warning
        assert warning in " ".join(result_report.result_text(result).split())
        assert result_report.result_record(result)["warnings"] == [warning]


def test_blocks_are_visited_in_ranges_where_they_are_many(
    database: str, gaps: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranges of pages, of which the last is shorter, hold every block once."""
    monkeypatch.setattr(passes, "_RANGES", 3)
    statements: list[str] = []
    fetch_one = Session.fetch_one

    def noted(session: Session, statement: sql.SQL | sql.Composed, *more: Any, **named: Any) -> Any:
        statements.append(statement.as_string())
        return fetch_one(session, statement, *more, **named)

    monkeypatch.setattr(Session, "fetch_one", noted)
    result = pg_dpml.train(
        database, people.spec(table="throng"), None, TrainSpec("scd", lambda_=LAMBDA), name="m"
    )
    assert result.plan.problem.n_units == 9 * N
    assert gaps[-1] <= 1e-8
    visits = [statement for statement in statements if "scd_epoch" in statement]
    assert len(visits) == result.passes
    assert all("generate_series(0, " in statement for statement in visits)


def test_scd_of_units_divides_by_their_number(database: str, gaps: list[float]) -> None:
    data = people.spec(table="visits", unit="who", max_rows_per_unit=4)
    result = pg_dpml.train(database, data, None, TrainSpec("scd", lambda_=LAMBDA), name="m")
    assert result.plan.problem.n_units == N // 4
    assert gaps[-1] <= 1e-8
    x, y = people.encode(result.model.encoder, make_people(N, seed=2))
    _, gradient = objective("logistic", result.model.weights, x, y, N // 4)
    assert np.linalg.norm(gradient) <= 1e-3


@pytest.mark.parametrize("method", ["scd", "dp-scd", "seq-dp-scd"])
def test_v_is_the_sum_of_rows_and_duals(database: str, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    """The duals of a pass are those of the one before and its changes, whatever order it visits them in."""
    seen: list[tuple[FloatArray, FloatArray, float]] = []
    require_all = Job.require_all

    def look(job: Job, rows: int, blocks: int | None = None) -> None:
        require_all(job, rows, blocks)
        if len(seen) == PASSES - 1:
            return  # nobody needs the duals of the last pass
        state, *duals = job.blocks.tables
        (v,) = job.blocks.session.fetch(sql.SQL("SELECT v FROM {} ORDER BY pass DESC LIMIT 1").format(state))[
            0
        ]
        own = duals[len(seen) % 2]
        (sums,) = job.blocks.session.fetch_one(
            sql.SQL(
                "SELECT array_agg(s.total ORDER BY s.place) "
                "FROM (SELECT f.place, pg_catalog.sum(f.x * w.dual) AS total "
                "FROM {blocks} AS b JOIN (SELECT e.duals, e.place - 1 AS block_no "
                "FROM {duals} AS l, pg_catalog.unnest((l.ended).duals) WITH ORDINALITY AS e (duals, place)) "
                "AS d USING (block_no), "
                "dpml.unpack(b.block) WITH ORDINALITY AS u (x, y, row_no), "
                "pg_catalog.unnest(dpml.duals(d.duals)) WITH ORDINALITY AS w (dual, row_no), "
                "pg_catalog.unnest(u.x) WITH ORDINALITY AS f (x, place) "
                "WHERE w.row_no = u.row_no GROUP BY f.place) AS s"
            ).format(blocks=job.blocks.packed.blocks, duals=own)
        )
        noise = job.plan.work.noise_scale if isinstance(job.plan.work, Scd) else math.nan
        seen.append((np.array(v), np.array(sums), noise))

    monkeypatch.setattr(Job, "require_all", look)
    private = method != "scd"
    more: dict[str, Any] = {"update_clip": 0.1} if private else {"tolerance": 0.0}
    training = TrainSpec(method, passes=PASSES, lambda_=LAMBDA, **more)
    pg_dpml.train(database, people.spec(), PrivacySpec(90.0, 1e-3) if private else None, training, name="m")
    assert len(seen) == PASSES - 1
    for v, sums, noise in seen:
        assert np.linalg.norm(v) > 0.0
        spread = 8.0 * noise * np.sqrt(4.0 * N * (2.0 if method == "seq-dp-scd" else 1.0))
        np.testing.assert_allclose(v, sums, rtol=1e-9, atol=1e-9 + spread)
    assert not np.array_equal(seen[1][0], seen[3][0])


@pytest.mark.parametrize("task", ["binary", "regression"])
@pytest.mark.parametrize("method", PRIVATE)
def test_private_runs_take_the_passes_that_were_planned(
    database: str, connection: psycopg.Connection, method: str, task: str
) -> None:
    result = pg_dpml.train(database, people.spec(task), PRIVACY, TrainSpec(method, passes=2), name="m")
    planned = pg_dpml.plan(database, people.spec(task), PRIVACY, TrainSpec(method, passes=2))
    assert planned.work == result.plan.work
    assert result.passes == planned.work.passes
    assert np.all(np.isfinite(result.model.weights))
    assert np.any(result.model.weights != 0.0)
    (mechanism, charged), *more = connection.execute("SELECT mechanism, method FROM dpml.ledger").fetchall()
    assert more == []
    assert charged == method
    assert planned.noise is not None
    wanted = json.loads(json.dumps(planned.noise.record()))
    assert {name: mechanism[name] for name in wanted} == wanted


@pytest.mark.parametrize("loss", LOSSES)
def test_dp_scd_learns_where_noise_is_small(database: str, loss: str) -> None:
    task = task_of(loss)
    training = TrainSpec("dp-scd", loss=loss, batch_size=20)
    pg_dpml.train(database, people.spec(task), PrivacySpec(50.0, 1e-3), training, name="m")
    figures = pg_dpml.evaluate(database, "m", "known", public=True)
    if task == "binary":
        assert figures.accuracy is not None
        assert figures.majority is not None
        assert figures.accuracy > figures.majority + 0.1
    else:
        assert figures.r_squared is not None
        assert figures.r_squared > 0.5


def test_the_mean_of_the_last_passes_is_released(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ends: list[FloatArray] = []
    fetch = Session.fetch

    def spied(session: Session, query: Any, *given: Any, **named: Any) -> list[tuple[Any, ...]]:
        found = fetch(session, query, *given, **named)
        if "SELECT v, steps FROM" in repr(query):
            ends.extend(np.array(v) for v, _ in found)
        return found

    monkeypatch.setattr(Session, "fetch", spied)
    for average, count in (("tail", 3), ("all", 5), ("none", 1)):
        ends.clear()
        tail = {"tail": 0.6} if average == "tail" else {}
        training = TrainSpec("dp-scd", passes=5, average=average, lambda_=0.5, **tail)
        result = pg_dpml.train(database, people.spec(), PRIVACY, training, name=average)
        assert len(ends) == count
        np.testing.assert_allclose(result.model.weights, np.mean(ends, axis=0) / (0.5 * N), rtol=1e-12)


def test_units_of_several_rows(database: str) -> None:
    data = people.spec(table="visits", unit="who", max_rows_per_unit=3)
    for method in PRIVATE:
        result = pg_dpml.train(database, data, PRIVACY, TrainSpec(method, passes=2), name=method)
        assert result.plan.problem.n_units == N // 4
        assert np.all(np.isfinite(result.model.weights))


def test_rows_that_memory_does_not_hold_are_refused_before_the_charge(
    database: str, connection: psycopg.Connection, tmp_path: Path
) -> None:
    small = f"{database} options='-c dpml.work_mem=64kB'"
    crowd, training = people.spec(table="crowd"), TrainSpec("dp-scd")
    grid = Grid({"passes": [1, 2]}, training)
    for run in (
        lambda: pg_dpml.plan(small, crowd, PRIVACY, training),
        lambda: pg_dpml.train(small, crowd, PRIVACY, training, name="m"),
        lambda: pg_dpml.tune(small, people.spec(table="throng"), PRIVACY, grid, name="m"),
    ):
        with pytest.raises(SpecError, match=r"need all rows in memory, 1 MB, and dpml\.work_mem is 64kB"):
            run()
    with pytest.raises(SpecError, match=r"must be in memory, 1 MB, and dpml\.work_mem is 64kB"):
        pg_dpml.train(small, crowd, PRIVACY, TrainSpec("seq-dp-scd"), name="m")
    listed = " ".join(dpml(small, "plan", str(spec_file(tmp_path, "crowd")), "--epsilon", "1").split())
    for method, what in (("dp-scd", "need all rows"), ("seq-dp-scd", "the duals of all rows must be")):
        assert re.search(rf" {method} - - [a-z ]*{what} in memory, 1 MB, and dpml\.work_mem is 64kB", listed)
    assert scalar(connection, "SELECT count(*) FROM dpml.ledger") == 0


@pytest.mark.parametrize(("method", "unit"), [("dp-scd", None), ("dp-scd", "id"), ("seq-dp-scd", "id")])
def test_memory_that_is_accepted_suffices_for_the_longest_rows(
    database: str, connection: psycopg.Connection, table: str, method: str, unit: str | None
) -> None:
    """Else a row that is longer than a zero row would decide whether a charged run fails."""
    levels = tuple(f"level {i}" for i in range(40))
    connection.execute(
        f"CREATE TABLE {table} AS SELECT i AS id, 'level ' || i % 40 AS level, "
        "CASE WHEN i % 2 = 0 THEN 'yes' ELSE 'no' END AS y FROM generate_series(1, 3000) AS i".encode()
    )
    label = Label("y", positive="yes", negative="no")
    data = DataSpec(table, label, (Column("level", levels=levels, centered=False),), unit=unit)
    train_with_least_memory(database, data, TrainSpec(method, passes=2))


def test_memory_that_is_accepted_suffices_for_blocks_of_single_rows(
    database: str, connection: psycopg.Connection, table: str
) -> None:
    """The most memory for a dual; at this number of rows, more of it would just have been taken."""
    connection.execute(
        f"CREATE TABLE {table} AS SELECT i AS id, CASE WHEN i % 2 = 0 THEN 'yes' ELSE 'no' END AS y, "
        "array_fill(1.0::float8, ARRAY[600]) AS v, ARRAY(SELECT generate_series(1, 600)) AS places "
        "FROM generate_series(1, 2013) AS i".encode()
    )
    column = Column("v", indices="places", first_index=1, length=1000)
    data = DataSpec(table, Label("y", positive="yes", negative="no"), (column,))
    train_with_least_memory(database, data, TrainSpec("seq-dp-scd", passes=3))


def train_with_least_memory(database: str, data: DataSpec, training: TrainSpec) -> None:
    """Train with the least dpml.work_mem that a plan accepts."""

    def connected(kilobytes: int) -> str:
        return f"{database} options='-c dpml.work_mem={kilobytes}kB'"

    def accepted(kilobytes: int) -> bool:
        try:
            pg_dpml.plan(connected(kilobytes), data, PRIVACY, training)
        except SpecError:
            return False
        return True

    least = bisect.bisect_left(range(1024), True, lo=64, key=accepted)
    assert 64 < least < 1024
    pg_dpml.train(connected(least), data, PRIVACY, training, name="m")


def test_a_pass_that_misses_a_block_stores_no_model(
    database: str, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    visits = passes._visits

    def losing(job: Job, scd: Scd) -> sql.Composable:
        last = sql.SQL("DELETE FROM {0} WHERE block_no = (SELECT pg_catalog.max(block_no) FROM {0})")
        job.blocks.session.execute(last.format(job.blocks.packed.blocks))
        return visits(job, scd)

    monkeypatch.setattr(passes, "_visits", losing)
    with pytest.raises(RunFailedError, match="did not see every packed row"):
        pg_dpml.train(database, people.spec(), PRIVACY, TrainSpec("seq-dp-scd"), name="m")
    assert scalar(connection, "SELECT count(*) FROM dpml.models") == 0
    assert scalar(connection, "SELECT count(*) FROM dpml.ledger") == 1
    assert work_tables(connection) == 0


# Everything that other methods have


def spec_file(folder: Path, table: str) -> Path:
    """A spec of a table of people."""
    file = folder / f"{table}.toml"
    file.write_text(
        f'table = "{table}"\n[label]\ncolumn = "rich"\npositive = "yes"\nnegative = "no"\n'
        "[columns.age]\nlower = 0\nupper = 100\n"
        '[columns.town]\nlevels = ["Aix", "Bonn", "Cork"]\n'
    )
    return file


def dpml(dsn: str, *arguments: str) -> str:
    result = CliRunner().invoke(app, [*arguments, "--dsn", dsn])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def budget(database: str) -> str:
    with Database(database).session() as session:
        opening.open_budget(
            session, "people", epsilon=Decimal(3), delta=Decimal("1e-4"), rule="gdp", tables=("people",)
        )
    return "people"


@pytest.mark.parametrize("method", PRIVATE)
def test_a_budget_is_charged_by_mu(
    database: str, connection: psycopg.Connection, budget: str, method: str
) -> None:
    """Less than the epsilon and delta alone would cost."""
    data = people.spec(dataset=budget)
    pg_dpml.train(database, data, PRIVACY, TrainSpec(method, passes=2), name="m")
    cost = float(scalar(connection, "SELECT loss FROM dpml.budget_entries WHERE loss > 0"))
    alone = 2.0 * float(stats.norm.ppf(1.0 / (1.0 + np.exp(1.0))))
    assert 0.0 < cost < alone**2
    with pytest.raises(BudgetError):
        pg_dpml.train(database, data, PrivacySpec(90.0, 1e-6), TrainSpec(method, passes=2), name="m2")


def test_commands(database: str, connection: psycopg.Connection, tmp_path: Path) -> None:
    spec = spec_file(tmp_path, "people")
    hinge = ("--method", "dp-scd", "--loss", "hinge", "--passes", "4")
    plan = json.loads(
        dpml(database, "plan", str(spec), "--epsilon", "1", *hinge, "--dual-noise", "--format", "json")
    )
    assert set(plan["noise"]["multipliers"]) == {"sum", "published"}
    text = " ".join(dpml(database, "plan", str(spec), "--epsilon", "1", *hinge).split())
    assert "on the sum and on the duals, as the publication adds it (dual_noise)" in text
    assert "seq-dp-scd" in text
    dpml(database, "train", str(spec), "--epsilon", "8", *hinge, "--name", "m")
    shown = json.loads(dpml(database, "show", "m", "--format", "json"))
    assert (shown["method"], shown["loss"]) == ("dp-scd", "hinge")
    report = tmp_path / "report.html"
    dpml(database, "report", "m", "-o", str(report), "--table", "known", "--public")
    assert "dp-scd" in report.read_text(encoding="utf-8")
    expression = dpml(database, "export", "m", "--format", "sql")
    assert "age" in expression
    dpml(database, "evaluate", "m", "--table", "known", "--public")
    grid = tmp_path / "grid.toml"
    grid.write_text('[grid]\nupdate_clip = [0.01, 0.1]\n[training]\nmethod = "dp-scd"\npasses = 2\n')
    dpml(database, "tune", str(spec), "--grid", str(grid), "--epsilon", "1", "--name", "tuned")
    methods = ("--methods", "dp-scd,scd,primal-dp-scd", "--epsilons", "1", "--splits", "1")
    compared = dpml(database, "compare", str(spec), "--public", *methods)
    assert compared.count("dp-scd") >= 2
    assert scalar(connection, "SELECT count(*) FROM dpml.ledger") == 2


def test_it_can_be_requested(database: str, connection: psycopg.Connection) -> None:
    connection.execute("DROP ROLE IF EXISTS asker")
    connection.execute("CREATE ROLE asker LOGIN IN ROLE dpml_analyst")
    with Database(database).session() as session:
        opening.open_budget(
            session, "offer", epsilon=Decimal(3), delta=Decimal("0.1"), rule="gdp", shared=True
        )
    text = (
        'table = "people"\n[label]\ncolumn = "rich"\npositive = "yes"\nnegative = "no"\n'
        "[columns.age]\nlower = 0\nupper = 100\n"
    )
    with Database(database).session() as session:
        datasets.register(session, "offer", text)
    options = {"privacy": {"epsilon": 1, "delta": 1e-6}, "training": {"method": "dp-scd", "passes": 2}}
    with psycopg.connect(database, autocommit=True) as other:
        other.execute("SET SESSION AUTHORIZATION asker")
        other.execute("SELECT dpml.request('offer', 'wanted', %s)", (json.dumps(options),))
    assert requests.serve_next(Database(database)) is not None
    state, message = connection.execute("SELECT state, message FROM dpml.requests").fetchall()[0]
    assert (state, message) == ("done", None)
    assert scalar(connection, "SELECT method FROM dpml.models WHERE name = 'wanted'") == "dp-scd"
    connection.execute("DELETE FROM dpml.requests")


def test_relations_are_told_apart(database: str, connection: psycopg.Connection) -> None:
    data: DataSpec = people.spec()
    for relation in Relation:
        privacy = PrivacySpec(1.0, 1e-6, relation)
        pg_dpml.train(database, data, privacy, TrainSpec("dp-scd", passes=2), name=relation.value)
    found = connection.execute("SELECT relation FROM dpml.ledger ORDER BY id").fetchall()
    assert [relation for (relation,) in found] == [relation.value for relation in Relation]
