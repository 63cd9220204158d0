# SPDX-License-Identifier: PostgreSQL
"""Commands about stored models: lists, exports that predict alike, reports, the doctor, leftovers."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import date, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np
import psycopg
import pytest
from typer.testing import CliRunner

import pg_dpml
from helpers import oracles, people
from helpers.people import BAD_PEOPLE, create_people, make_people
from helpers.sqltools import scalar
from pg_dpml import Column, DataSpec, Label, PrivacySpec, TrainSpec
from pg_dpml.cli.framework import app
from pg_dpml.database.database import Database
from pg_dpml.database.session import Session
from pg_dpml.ledger import models as registry
from pg_dpml.server import maintenance
from pg_dpml.server.demo_data import ADULT_SPEC, load_adult

pytestmark = pytest.mark.dealt

N = 300
COMMAND = (sys.executable, "-c", "from pg_dpml.cli import main; main()")
PLAIN = TrainSpec(method="noiseless", passes=1, tolerance=0.0)


@pytest.fixture(scope="module", autouse=True)
def models(database: str) -> None:
    """One model a task, and a private model of the census data."""
    with psycopg.connect(database, autocommit=True) as connection:
        create_people(connection, [*make_people(N - len(BAD_PEOPLE), seed=5), *BAD_PEOPLE])
        load_adult(connection)
    for task in people.LABELS:
        pg_dpml.train(database, people.spec(task), None, PLAIN, name=task)
    bolt_on = TrainSpec(method="bolt-on")
    pg_dpml.train(database, DataSpec.from_toml(ADULT_SPEC), PrivacySpec(1.0), bolt_on, name="income")


@pytest.fixture(autouse=True)
def same_signals() -> Iterator[None]:
    """A command handles SIGTERM, here in the process of the tests."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


class Result(Protocol):
    """What typer's runner gives, of click or of typer's own, by its version."""

    exit_code: int

    @property
    def stdout(self) -> str: ...

    @property
    def stderr(self) -> str: ...


Dpml = Callable[..., Result]


@pytest.fixture
def dpml(database: str) -> Dpml:
    """Runs a command in this process, with nothing on standard input."""

    def run(*arguments: str, dsn: str | None = None) -> Result:
        result: Result = CliRunner().invoke(app, [*arguments, "--dsn", database if dsn is None else dsn])
        return result

    return run


def good(result: Result) -> str:
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


def record_of(result: Result) -> dict[str, Any]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    record = json.loads(good(result), parse_constant=refuse)
    assert isinstance(record, dict)
    return record


# Lists


def test_models(dpml: Dpml) -> None:
    text = good(dpml("models"))
    lines = text.splitlines()
    assert [line.split()[0] for line in lines] == ["MODEL", "binary", "income", "multiclass", "regression"]
    assert text.count("NOT PRIVATE") == 3
    assert "32,561" in lines[2]
    record = record_of(dpml("models", "--format", "json"))
    assert [model["name"] for model in record["models"]] == ["binary", "income", "multiclass", "regression"]
    income = record["models"][1]
    assert (income["private"], income["epsilon"], income["relation"]) == (True, 1.0, "replace_one")
    datetime.fromisoformat(income["created_at"])


def test_no_models(dpml: Dpml, database: str, connection: psycopg.Connection) -> None:
    connection.execute("CREATE DATABASE without_models TEMPLATE dpml_template")
    dsn = database[: database.index("dbname=")] + "dbname='without_models'"
    assert "dpml train" in good(dpml("models", dsn=dsn))
    connection.execute("DROP DATABASE without_models")


def test_show(dpml: Dpml) -> None:
    text = " ".join(good(dpml("show", "income")).split())
    for part in ("differential privacy", "capital_gain", "public.adult_train", "standard deviation", "entry"):
        assert part in text
    assert "NOT PRIVATE" in good(dpml("show", "multiclass"))
    assert record_of(dpml("show", "income", "--format", "json")) == record_of(dpml("export", "income"))


@pytest.mark.parametrize(
    "command",
    [
        ("show", "nobody"),
        ("drop", "nobody", "--yes"),
        ("export", "nobody"),
        ("export", "nobody", "--format", "sql"),
        ("report", "nobody", "-o", "/dev/null"),
    ],
)
def test_unknown_models(dpml: Dpml, command: tuple[str, ...]) -> None:
    result = dpml(*command)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "there is no model called nobody, or it was not granted to you: dpml models lists" in result.stderr


# Drop


def test_drop_keeps_the_charge(dpml: Dpml, database: str, connection: psycopg.Connection) -> None:
    model = pg_dpml.train(database, people.spec(), PrivacySpec(1.0), name="doomed").model
    refused = dpml("drop", "doomed")
    assert refused.exit_code == 2
    assert "--yes" in refused.stderr
    text = good(dpml("drop", "doomed", "--yes"))
    assert f"Entry {model.charge} of dpml.ledger" in text
    assert scalar(connection, "SELECT count(*) FROM dpml.models WHERE name = 'doomed'") == 0
    assert scalar(connection, "SELECT model FROM dpml.ledger WHERE id = %s", model.charge) == "doomed"


def on_a_terminal(arguments: Sequence[str], answer: bytes) -> tuple[int, bytes]:
    """Exit code and stderr of a command that reads an answer from a terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, *arguments], stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    os.close(theirs)
    os.write(ours, answer)
    _, shown = process.communicate(timeout=60)
    os.close(ours)
    return process.returncode, shown


@pytest.mark.parametrize(("answer", "entries", "code"), [(b"n\n", 0, 1), (b"y\n", 1, 0)])
def test_closing_a_budget_asks_on_a_terminal(
    dpml: Dpml, database: str, connection: psycopg.Connection, answer: bytes, entries: int, code: int
) -> None:
    name = f"asked {code}"
    good(dpml("budget", "open", name, "--epsilon", "1", "--delta", "1e-6"))
    found, shown = on_a_terminal(["budget", "close", name, "--dsn", database], answer)
    assert f'Close budget "{name}" for good'.encode() in shown
    assert found == code
    query = "SELECT count(*) FROM dpml.budget_entries WHERE dataset = %s"
    assert scalar(connection, query, name) == entries  # closing is an entry


@pytest.mark.parametrize(("answer", "left", "code"), [(b"n\n", 1, 1), (b"y\n", 0, 0)])
def test_drop_asks_on_a_terminal(
    database: str, connection: psycopg.Connection, answer: bytes, left: int, code: int
) -> None:
    pg_dpml.train(database, people.spec(), None, PLAIN, name="doomed")
    found, shown = on_a_terminal(["drop", "doomed", "--dsn", database], answer)
    assert b"Delete model doomed?" in shown
    assert found == code
    query = "WITH d AS (DELETE FROM dpml.models WHERE name = 'doomed' RETURNING 1) SELECT count(*) FROM d"
    assert scalar(connection, query) == left


def test_without_rights_nothing_is_dropped(dpml: Dpml, database: str, connection: psycopg.Connection) -> None:
    connection.execute("CREATE ROLE reader LOGIN IN ROLE dpml_analyst")
    good(dpml("grant", "binary", "reader"))
    result = dpml("drop", "binary", "--yes", dsn=database.replace("user='postgres'", "user='reader'"))
    good(dpml("revoke", "binary", "reader"))
    connection.execute("DROP ROLE reader")
    assert result.exit_code == 2
    assert "model binary belongs to postgres, and only a member of that role" in result.stderr
    assert scalar(connection, "SELECT count(*) FROM dpml.models WHERE name = 'binary'") == 1


# Export


def exported(dpml: Dpml, model: str, *options: str) -> str:
    text = good(dpml("export", model, "--format", "sql", *options))
    assert text.startswith("-- ")
    return text


def compared(connection: psycopg.Connection, model: str, expression: str, table: str) -> tuple[int, float]:
    """Rows, and the largest difference to dpml.predict_value."""
    row = connection.execute(
        f"SELECT count(*), max(abs(v.ours - v.theirs)) FROM (SELECT {expression} AS ours, "
        f"dpml.predict_value('{model}', t) AS theirs FROM {table} t OFFSET 0) AS v".encode()
    ).fetchone()
    assert row is not None
    return row[0], row[1]


def test_the_sql_of_the_census_model_predicts_alike(dpml: Dpml, connection: psycopg.Connection) -> None:
    """On every real row, with its unknown levels and values outside the bounds."""
    rows, difference = compared(connection, "income", exported(dpml, "income"), "adult_test")
    assert rows == 16_281
    assert difference < 1e-6
    prediction = exported(dpml, "income", "--what", "prediction")
    agreed = scalar(
        connection, f"SELECT avg((({prediction}) = dpml.predict('income', t))::int) FROM adult_test t"
    )
    assert agreed > 0.9999  # but for scores within the rounding of zero


@pytest.mark.parametrize("task", people.LABELS)
def test_sql_of_every_kind_of_column(dpml: Dpml, connection: psycopg.Connection, task: str) -> None:
    """Log1p, booleans, enums, texts, unbounded numerics, arrays; with NULL, NaN and infinity."""
    rows, difference = compared(connection, task, exported(dpml, task), "people")
    assert rows == N
    assert difference < 1e-6
    if task == "multiclass":
        prediction = exported(dpml, task, "--what", "prediction")
        agreed = f"SELECT count(*) FROM people t WHERE ({prediction}) = dpml.predict('{task}', t)"
        assert scalar(connection, agreed) >= N - 1


def test_sql_of_columns_that_need_care(dpml: Dpml, database: str, connection: psycopg.Connection) -> None:
    """Quoted names, percent signs, levels that are numbers or dates, dates as numbers, norm clip."""
    connection.execute(
        """CREATE TABLE "Odd %s" AS SELECT i % 4 AS "the ""code", (i % 3)::numeric / 2 AS half,
        (i % 3 / 2.0)::real AS r, DATE '2020-01-01' + i AS day,
        TIMESTAMP '2020-01-01' + i * INTERVAL '1 hour' AS "at",
        CASE i % 3 WHEN 0 THEN 'it''s' WHEN 1 THEN 'back\\slash' ELSE '%(x)s' END AS word, i % 2 = 0 AS y
        FROM generate_series(1, 60) AS i"""
    )
    connection.execute("""INSERT INTO "Odd %s" (day, "at", half) VALUES ('infinity', '-infinity', 'NaN')""")
    data = DataSpec(
        "Odd %s",
        Label("y", positive="true"),
        (
            Column('the "code', levels=("0", "1.0", "2")),
            Column("half", levels=("0.5", "1", "12.25"), centered=False),
            Column("r", levels=("0.5", "0")),
            Column("day", lower=date(2019, 12, 27), upper=date(2020, 2, 5)),
            Column("at", scale="standard", mean=datetime(2020, 1, 2), sd=86400),
            Column("word", levels=("it's", "back\\slash", "%(x)s")),
        ),
        norm="clip",
    )
    pg_dpml.train(database, data, None, PLAIN, name="odd %s")
    rows, difference = compared(connection, "odd %s", exported(dpml, "odd %s"), '"Odd %s"')
    assert rows == 61
    assert difference < 1e-6
    connection.execute('DROP TABLE "Odd %s"')
    result = dpml("export", "odd %s", "--format", "sql")
    assert result.exit_code == 0
    assert "the training table is gone" in result.stderr
    assert dpml("export", "odd %s", "--format", "sql", "--table", "nowhere").exit_code == 2


def test_the_json_predicts_elsewhere(dpml: Dpml, connection: psycopg.Connection) -> None:
    """Nothing but the printed JSON and the test suite's own encoder."""
    record = record_of(dpml("export", "binary"))
    everyone = [*make_people(N - len(BAD_PEOPLE), seed=5), *BAD_PEOPLE]
    encoder = record["encoder"]
    x = [oracles.encode(encoder, [getattr(p, c["name"]) for c in encoder["columns"]]) for p in everyone]
    scores = [oracles.bound_norm(row, encoder["norm"]) @ np.array(record["weights"][0]) for row in x]
    wanted = connection.execute("SELECT dpml.predict_value('binary', t) FROM people t ORDER BY id").fetchall()
    np.testing.assert_allclose(scores, [row[0] for row in wanted], atol=1e-5)
    assert record["classes"] == ["no", "yes"]
    assert len(record["features"]) == len(record["weights"][0])


@pytest.fixture
def whitened(connection: psycopg.Connection) -> Iterator[Callable[[str], str]]:
    """Stores a copy of a model with a whitening matrix, and returns its name."""
    names = []

    def store(model: str) -> str:
        names.append(f"whitened {model}")
        d = scalar(connection, "SELECT n_features FROM dpml.models WHERE name = %s", model)
        half = np.random.default_rng(d).normal(size=(d, d)) / d
        kept = "method, private, task, loss, classes, weights, n_features, encoder, privacy, training, charge"
        connection.execute(
            f"INSERT INTO dpml.models (name, whitening, {kept}) SELECT %s, %s, {kept} FROM dpml.models "
            "WHERE name = %s".encode(),
            (names[-1], (half @ half.T + np.eye(d)).ravel().tolist(), model),
        )
        return names[-1]

    yield store
    connection.execute("DELETE FROM dpml.models WHERE name = ANY (%s)", (names,))


@pytest.mark.parametrize("task", people.LABELS)
def test_sql_of_whitened_models(
    dpml: Dpml, connection: psycopg.Connection, whitened: Callable[[str], str], task: str
) -> None:
    name = whitened(task)
    rows, difference = compared(connection, name, exported(dpml, name), "people")
    assert rows == N
    assert difference < 1e-5
    apart = (
        f"SELECT max(abs(dpml.predict_value('{task}', t) - dpml.predict_value('{name}', t))) FROM people t"
    )
    assert scalar(connection, apart) > 1e-3
    prediction = exported(dpml, name, "--what", "prediction")
    wanted = f"dpml.predict('{name}', t)"
    if task == "regression":
        difference = scalar(
            connection, f"SELECT max(abs(({prediction})::float8 - {wanted}::float8)) FROM people t"
        )
        assert difference < 1e-5
    else:
        # Classes need no norm.
        assert prediction.splitlines()[1:] == exported(dpml, task, "--what", "prediction").splitlines()[1:]
        agreed = f"SELECT count(*) FROM people t WHERE ({prediction}) = {wanted}"
        assert scalar(connection, agreed) >= N - 1


def test_sql_of_a_wide_whitened_model_is_refused(dpml: Dpml, whitened: Callable[[str], str]) -> None:
    name = whitened("income")
    result = dpml("export", name, "--format", "sql")
    assert (result.exit_code, result.stdout) == (2, "")
    for way in ("dpml.predict_value", "dpml.predict_proba", "--format json", "--what prediction"):
        assert way in result.stderr
    exported(dpml, name, "--what", "prediction")


def test_the_json_of_a_whitened_model_predicts_elsewhere(
    dpml: Dpml, connection: psycopg.Connection, whitened: Callable[[str], str]
) -> None:
    name = whitened("binary")
    record = record_of(dpml("export", name))
    assert record == record_of(dpml("show", name, "--format", "json"))
    everyone = [*make_people(N - len(BAD_PEOPLE), seed=5), *BAD_PEOPLE]
    encoder, p = record["encoder"], np.array(record["whitening"])
    x = [oracles.encode(encoder, [getattr(q, c["name"]) for c in encoder["columns"]]) for q in everyone]
    rows = [oracles.bound_norm(row, encoder["norm"]) for row in x]
    scores = [row @ np.array(record["weights"][0]) / np.linalg.norm(p @ row) for row in rows]
    query = f"SELECT dpml.predict_value('{name}', t) FROM people t ORDER BY id"
    np.testing.assert_allclose(scores, [row[0] for row in connection.execute(query.encode())], atol=1e-5)


def test_whitened_models_are_listed_shown_and_measured(
    dpml: Dpml, connection: psycopg.Connection, whitened: Callable[[str], str], tmp_path: Path
) -> None:
    """The figures go through dpml.predict and its kin."""
    name = whitened("binary")
    assert name in good(dpml("models"))
    assert "whitening matrix" in " ".join(good(dpml("show", name)).split())
    file = tmp_path / "r.html"
    good(dpml("report", name, "-o", str(file), "--table", "people", "--public"))
    assert "divides each score by a length that depends on the row" in file.read_text(encoding="utf-8")
    ours, plain = (
        record_of(dpml("evaluate", m, "--table", "people", "--public", "--format", "json"))
        for m in (name, "binary")
    )
    assert ours["accuracy"] == plain["accuracy"]
    exact = scalar(
        connection,
        f"SELECT avg((dpml.predict_proba('{name}', t))[2]) FROM people t "
        f"WHERE dpml.label('{name}', t) IS NOT NULL",
    )
    bins = ours["calibration"]
    mean = sum(one["predicted"] * one["n_rows"] for one in bins) / sum(one["n_rows"] for one in bins)
    assert mean == pytest.approx(exact, rel=1e-9)
    released = record_of(dpml("evaluate", name, "--table", "people", "--epsilon", "50", "--format", "json"))
    assert 0.0 <= released["accuracy"] <= 1.0


def test_what_a_method_whitened_is_stored(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = pg_dpml.train.__globals__["run_method"]
    matrix = np.random.default_rng(3).normal(size=(people.N_FEATURES, people.N_FEATURES))
    monkeypatch.setitem(
        pg_dpml.train.__globals__, "run_method", lambda job: run(job)._replace(whitening=matrix + matrix.T)
    )
    pg_dpml.train(database, people.spec(), None, PLAIN, name="doomed")
    with Database(database).session() as session:
        whitening = registry.load_model(session, "doomed").whitening
        assert whitening is not None
        np.testing.assert_array_equal(whitening, matrix + matrix.T)
        assert registry.load_model(session, "binary").whitening is None
        assert all(model.whitening is None for model in registry.list_models(session))
        registry.drop_model(session, "doomed")


def test_the_errors_of_a_whitened_regression(
    dpml: Dpml, connection: psycopg.Connection, whitened: Callable[[str], str]
) -> None:
    name = whitened("regression")
    record = record_of(dpml("evaluate", name, "--table", "people", "--public", "--format", "json"))
    exact = scalar(
        connection,
        f"SELECT avg((dpml.label('{name}', t)::float8 - dpml.predict_value('{name}', t)) ^ 2) FROM people t",
    )
    assert record["mean_squared_error"] == pytest.approx(exact, rel=1e-9)
    released = record_of(dpml("evaluate", name, "--table", "people", "--epsilon", "100", "--format", "json"))
    unlabelled = scalar(connection, f"SELECT count(*) FROM people t WHERE dpml.label('{name}', t) IS NULL")
    # Rows without a label count with the largest error, which is that of the label's range.
    wanted = (exact * (N - unlabelled) + 100.0 * unlabelled) / N
    assert released["mean_squared_error"] == pytest.approx(wanted, rel=1e-2)


def test_what_has_no_sql_is_refused(dpml: Dpml, database: str) -> None:
    pg_dpml.train(database, people.spec(projection=3), None, PLAIN, name="projected")
    result = dpml("export", "projected", "--format", "sql")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--format json" in result.stderr
    record_of(dpml("export", "projected"))
    for options in (("--format", "xml"), ("--format", "sql", "--what", "everything")):
        assert dpml("export", "binary", *options).exit_code == 2


# Report


@pytest.fixture
def hinge(database: str, connection: psycopg.Connection) -> Iterator[str]:
    """A model of the hinge loss, with the weights of another."""
    with Database(database).session() as session:
        found = registry.load_model(session, "binary")
        registry.store_model(session, replace(found, name="hinge", loss="hinge"))
    yield "hinge"
    connection.execute("DELETE FROM dpml.models WHERE name = 'hinge'")


def test_a_hinge_model_is_shown_exported_and_reported(
    dpml: Dpml, connection: psycopg.Connection, hinge: str, tmp_path: Path
) -> None:
    """As one of huber_svm: a score of two classes, and no probability."""
    assert "loss hinge" in good(dpml("show", hinge))
    record = record_of(dpml("export", hinge))
    assert (record["task"], record["loss"]) == ("binary", "hinge")
    rows, difference = compared(connection, hinge, exported(dpml, hinge), "people")
    assert rows == N
    assert difference < 1e-6
    prediction = exported(dpml, hinge, "--what", "prediction")
    agreed = f"SELECT count(*) FROM people t WHERE ({prediction}) = dpml.predict('{hinge}', t)"
    assert scalar(connection, agreed) >= N - 1
    file = tmp_path / "hinge.html"
    good(dpml("report", hinge, "-o", str(file), "--table", "people", "--public"))
    page = file.read_text(encoding="utf-8")
    assert "loss hinge" in page
    assert "Calibration" not in page
    good(dpml("report", "binary", "-o", str(file), "--table", "people", "--public"))
    assert "Calibration" in file.read_text(encoding="utf-8")


def test_report(dpml: Dpml, tmp_path: Path) -> None:
    file = tmp_path / "income.html"
    assert str(file) in good(dpml("report", "income", "-o", str(file), "--table", "adult_test", "--public"))
    html = file.read_text(encoding="utf-8")
    for part in ("What an attacker learns at most", "73.1 %", "capital_gain", "Accuracy", "this model"):
        assert part in html
    assert html.count("data:image/png") == 4
    plain = tmp_path / "plain.html"
    good(dpml("report", "regression", "-o", str(plain)))
    assert "NOT PRIVATE" in plain.read_text(encoding="utf-8")


def test_report_refusals(dpml: Dpml, tmp_path: Path) -> None:
    file = tmp_path / "r.html"
    private = dpml("report", "income", "-o", str(file), "--table", "adult_test")
    assert private.exit_code == 5
    assert "--public" in private.stderr
    assert dpml("report", "income", "-o", str(file), "--public").exit_code == 2
    assert not file.exists()
    nowhere = dpml("report", "income", "-o", str(tmp_path / "no" / "r.html"))
    assert nowhere.exit_code == 2
    assert "there is no folder" in nowhere.stderr


def test_report_of_an_analyst(
    dpml: Dpml, database: str, connection: psycopg.Connection, tmp_path: Path
) -> None:
    connection.execute("CREATE ROLE reader LOGIN IN ROLE dpml_analyst")
    file = tmp_path / "r.html"
    dsn = database.replace("user='postgres'", "user='reader'")
    good(dpml("grant", "income", "reader"))
    good(dpml("report", "income", "-o", str(file), dsn=dsn))
    connection.execute("DROP ROLE reader")
    assert "may not read dpml.ledger" in file.read_text(encoding="utf-8")


# Doctor and cleanup


def findings(result: Result) -> dict[str, dict[str, Any]]:
    return {check["name"]: check for check in json.loads(result.stdout)["checks"]}


def test_a_healthy_database(dpml: Dpml) -> None:
    text = good(dpml("doctor"))
    assert "WRONG" not in text
    assert "a dump does not" in text
    found = findings(dpml("doctor", "--format", "json"))
    assert set(found) == {
        *("server", "writable", "encryption", "pooler", "extension", "module"),
        *("roles", "rights", "work tables"),
    }
    assert all(check["ok"] for check in found.values())


def test_the_doctor_without_the_extension(dpml: Dpml, database: str) -> None:
    result = dpml("doctor", dsn=database[: database.index("dbname=")] + "dbname='postgres'")
    assert result.exit_code == 1
    assert "WRONG extension" in result.stdout
    assert "CREATE EXTENSION pg_dpml" in result.stdout


def test_the_doctor_on_a_read_only_server(dpml: Dpml, database: str) -> None:
    dsn = f"{database} options='-c default_transaction_read_only=on'"
    result = dpml("doctor", "--format", "json", dsn=dsn)
    assert result.exit_code == 1
    assert [name for name, check in findings(result).items() if not check["ok"]] == ["writable"]


def test_the_doctor_knows_versions(dpml: Dpml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pg_dpml.server.maintenance.version", lambda name: "9.9.9")
    result = dpml("doctor", "--format", "json")
    assert result.exit_code == 1
    check = findings(result)["extension"]
    assert not check["ok"]
    assert "ALTER EXTENSION pg_dpml UPDATE" in check["fix"]


def test_the_doctor_knows_rights(dpml: Dpml, database: str, connection: psycopg.Connection) -> None:
    connection.execute("CREATE ROLE patient LOGIN")
    dsn = database.replace("user='postgres'", "user='patient'")
    try:
        result = dpml("doctor", "--format", "json", dsn=dsn)
        assert result.exit_code == 1
        assert "GRANT dpml_curator TO patient" in findings(result)["rights"]["fix"]
        connection.execute("GRANT dpml_analyst TO patient")
        result = dpml("doctor", "--format", "json", dsn=dsn)
        assert result.exit_code == 0
        assert "request and apply models, not train" in findings(result)["rights"]["found"]
        connection.execute("GRANT dpml_curator TO patient")
        assert "may train" in findings(dpml("doctor", "--format", "json", dsn=dsn))["rights"]["found"]
    finally:
        connection.execute("DROP ROLE patient")


def test_the_doctor_needs_a_server(dpml: Dpml) -> None:
    assert dpml("doctor", dsn="host=/nonexistent").exit_code == 3


def test_the_doctor_sees_poolers_and_open_networks() -> None:
    """What no server of the tests can show."""

    def session(address: str, process: int, tls: bool) -> Any:
        made: Any = Session.__new__(Session)
        made.driver = SimpleNamespace(
            info=SimpleNamespace(hostaddr=address, backend_pid=process),
            pgconn=SimpleNamespace(ssl_in_use=tls),
        )
        made.fetch_one = lambda query: (1,)
        return made

    assert "transaction mode" in maintenance._pooler(session("127.0.0.1", 2, False)).note
    assert maintenance._pooler(session("127.0.0.1", 1, False)).found == "none"
    for address, tls, ok in (("192.0.2.1", False, False), ("192.0.2.1", True, True), ("::1", False, True)):
        assert maintenance._encryption(session(address, 1, tls)).ok is ok
    assert "sslmode=require" in maintenance._encryption(session("192.0.2.1", 1, False)).fix


def test_cleanup(dpml: Dpml, database: str, connection: psycopg.Connection) -> None:
    """Drops what a crashed run could leave, and spares what a live transaction uses."""
    assert "No work tables" in good(dpml("cleanup"))
    connection.execute("CREATE UNLOGGED TABLE dpml_work.blocks_dead (block bytea)")
    connection.execute("CREATE UNLOGGED TABLE dpml_work.blocks_live (block bytea)")
    with psycopg.connect(database) as run:
        run.execute("SELECT FROM dpml_work.blocks_live")
        sick = dpml("doctor")
        assert sick.exit_code == 1
        assert "1 tables left" in sick.stdout
        assert "fix: dpml cleanup" in sick.stdout
        assert "would be dropped" in good(dpml("cleanup", "--dry-run"))
        assert record_of(dpml("cleanup", "--dry-run", "--format", "json"))["dropped"] == []
        assert record_of(dpml("cleanup", "--format", "json"))["dropped"] == ["blocks_dead"]
        assert "kept, a live transaction uses it" in good(dpml("cleanup"))
        good(dpml("doctor"))
    connection.execute("CREATE ROLE other LOGIN IN ROLE dpml_curator")
    dsn = database.replace("user='postgres'", "user='other'")
    assert "belongs to postgres" in good(dpml("cleanup", dsn=dsn))
    connection.execute("DROP ROLE other")
    assert record_of(dpml("cleanup", "--format", "json"))["dropped"] == ["blocks_live"]


def test_cleanup_spares_a_run(dpml: Dpml, database: str, connection: psycopg.Connection) -> None:
    """Tables of a run's own transaction are invisible until it ends."""
    with psycopg.connect(database) as run:
        run.execute("CREATE UNLOGGED TABLE dpml_work.blocks_of_a_run (block bytea)")
        assert "No work tables" in good(dpml("cleanup"))
        run.execute("SELECT FROM dpml_work.blocks_of_a_run")
        run.rollback()


# Evaluate, as the command line offers it


def test_evaluate_modes(dpml: Dpml, connection: psycopg.Connection) -> None:
    none = dpml("evaluate", "income", "--table", "adult_test")
    both = dpml("evaluate", "income", "--table", "adult_test", "--owner", "--epsilon", "1")
    for refused in (none, both):
        assert (refused.exit_code, refused.stdout) == (5, "")
        assert "--owner" in refused.stderr
    owner = good(dpml("evaluate", "income", "--table", "adult_test", "--owner"))
    assert "NOT PRIVATE" in owner
    assert "Area under ROC" in owner
    options = ("--epsilon", "0.1", "--relation", "add_remove", "--format", "json")
    record = record_of(dpml("evaluate", "income", "--table", "adult_test", *options))
    assert record["mode"] == "private"
    assert 0.8 < record["accuracy"] < 0.9
    charged = scalar(connection, "SELECT relation FROM dpml.ledger WHERE id = %s", record["error"]["charge"])
    assert charged == "add_remove"


# Completion


@pytest.mark.parametrize(("typed", "offered"), [("dpml ev", "evaluate"), ("dpml rep", "report")])
def test_shell_completion(typed: str, offered: str) -> None:
    result = subprocess.run(
        [sys.executable, "-c", "import sys; sys.argv[0] = 'dpml'; from pg_dpml.cli import main; main()"],
        env=os.environ | {"_DPML_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert offered in result.stdout.split()
