# SPDX-License-Identifier: PostgreSQL
"""A session depends on nothing around it: encodings, date styles, languages, or how an engine was made."""

from __future__ import annotations

import difflib
import itertools
import json
import os
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
import typer.main
from matplotlib.figure import Figure
from matplotlib.text import Text
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import dict_row
from psycopg.types.datetime import TimestamptzLoader
from psycopg.types.json import set_json_loads
from psycopg.types.numeric import FloatLoader
from psycopg.types.string import TextLoader
from typer.testing import CliRunner

import pg_dpml
from helpers.faultproxy import FaultProxy, german
from helpers.sqltools import empty_registry, scalar
from pg_dpml import (
    Column,
    DataSpec,
    DpmlError,
    GuaranteeError,
    Label,
    PrivacySpec,
    SpecError,
    TrainSpec,
    UnavailableError,
)
from pg_dpml.cli.framework import app
from pg_dpml.database import database as database_module
from pg_dpml.database.connections import opener
from pg_dpml.database.database import Database
from pg_dpml.database.session import sql as psql
from pg_dpml.ledger import models as registry
from pg_dpml.reports import plots
from pg_dpml.server.embedded import EmbeddedServer

N = 120
PRIVACY = PrivacySpec(1.0)

WORDS = {
    "UTF8": ("Größe", "Πόλη", ("Αθήνα", "Kraków", "😀")),
    "LATIN1": ("Größe", "Café", ("nö", "São", "ja")),
    "SQL_ASCII": ("Größe", "Πόλη", ("Αθήνα", "Kraków", "😀")),
    "EUC_JP": ("年齢", "都市", ("東京", "大阪", "京都")),
}
"""By the encoding of a database: a number's name, a category's, its levels."""
CLIENT_ENCODINGS = (None, "LATIN1", "SQL_ASCII", "EUC_JP")
STYLES: tuple[dict[str, str], ...] = (
    {},
    {"PGDATESTYLE": "German", "PGTZ": "Asia/Kolkata", "PGOPTIONS": "-c extra_float_digits=-10"},
    {
        "PGDATESTYLE": "SQL, DMY",
        "PGTZ": "<-03>+03",
        "PGOPTIONS": "-c bytea_output=escape -c quote_all_identifiers=on -c intervalstyle=sql_standard",
    },
    {
        "PGDATESTYLE": "Postgres, YMD",
        "PGOPTIONS": "-c standard_conforming_strings=off -c array_nulls=off -c extra_float_digits=0",
    },
)
LANGUAGES = ("en", "de")


def spec(encoding: str) -> str:
    number, category, levels = WORDS[encoding]
    listed = json.dumps(levels, ensure_ascii=False)
    return f"""
table = "{category} {number}"
[label]
column = "day"
positive = "2024-01-31"
negative = "2023-12-31"
[columns."{number}"]
lower = 0
upper = 1
[columns."{category}"]
levels = {listed}
[columns.born]
lower = 2000-01-01
upper = 2010-12-31
[columns.seen]
lower = 2020-01-01T00:00:00Z
upper = 2021-01-01T00:00:00Z
[columns.choice]
levels = ["2024-02-01", "2024-03-02"]
[columns.share]
levels = ["0.1", "0.30000000000000004"]
"""


def create_table(connection: psycopg.Connection, encoding: str) -> None:
    number, category, levels = WORDS[encoding]
    name = sql.Identifier(f"{category} {number}")
    connection.execute(
        sql.SQL(
            "CREATE TABLE {table} (id int PRIMARY KEY, {number} float8, {category} text, born date, "
            "seen timestamptz, choice date, share float8, day date); GRANT SELECT ON {table} TO alice; "
            "CREATE TABLE denied AS SELECT 1 AS id; CREATE TABLE hidden AS SELECT 1 AS id; "
            "ALTER TABLE hidden ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON hidden USING (id > 1); "
            "GRANT SELECT ON hidden TO alice; GRANT CREATE ON SCHEMA public TO alice"
        ).format(table=name, number=sql.Identifier(number), category=sql.Identifier(category))
    )
    connection.execute(
        sql.SQL(
            "INSERT INTO {} SELECT i, i / {n}.0, ({levels}::text[])[1 + i % 3], date '2000-01-01' + i * 30, "
            "timestamptz '2020-01-01 00:00+00' + i * interval '3 days', date '2024-02-01' + 30 * (i % 2), "
            "CASE WHEN i % 2 = 0 THEN 0.1::float8 ELSE 0.1::float8 + 0.2::float8 END, "
            "CASE WHEN i % 2 = 0 OR i > 100 THEN date '2024-01-31' ELSE date '2023-12-31' END "
            "FROM generate_series(1, {n}) i"
        ).format(name, n=sql.Literal(N), levels=sql.Literal(list(levels)))
    )


Databases = Callable[[str], str]
Answers = list[tuple[str, int, str, str]]
"""Commands, their exit codes, what they answered and their errors."""


@pytest.fixture(scope="module")
def databases(server: EmbeddedServer) -> Iterator[Databases]:
    """Connection strings, of a curator, for databases by their encoding."""
    made: dict[str, str] = {}

    def make(encoding: str) -> str:
        if encoding not in made:
            name = f"surroundings_{encoding.lower()}"
            with psycopg.connect(server.dsn, autocommit=True) as connection:
                if connection.execute("SELECT FROM pg_roles WHERE rolname = 'alice'").fetchone() is None:
                    connection.execute("CREATE ROLE alice LOGIN")
                connection.execute(
                    f"CREATE DATABASE {name} TEMPLATE template0 ENCODING '{encoding}' "
                    "LC_COLLATE 'C' LC_CTYPE 'C'".encode()
                )
            boss = make_conninfo(server.dsn_of(name), client_encoding="UTF8")
            with psycopg.connect(boss, autocommit=True) as connection:
                connection.execute("CREATE EXTENSION pg_dpml; GRANT dpml_curator, dpml_analyst TO alice")
                create_table(connection, encoding)
            made[encoding] = make_conninfo(server.dsn_of(name), user="alice")
        return made[encoding]

    yield make
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        for encoding in made:
            connection.execute(f"DROP DATABASE surroundings_{encoding.lower()} WITH (FORCE)".encode())
        connection.execute("DROP ROLE IF EXISTS alice")


@pytest.fixture(autouse=True)
def same_signals() -> Iterator[None]:
    """A command handles SIGTERM, here in the process of the tests."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def as_boss(dsn: str) -> psycopg.Connection:
    return psycopg.connect(dsn, user="postgres", client_encoding="UTF8", autocommit=True)


# Engines as others make them


def client_cursors(dsn: str) -> sa.Engine:
    def connect() -> psycopg.Connection:
        return psycopg.connect(dsn, cursor_factory=psycopg.ClientCursor, prepare_threshold=0)

    return sa.create_engine("postgresql+psycopg://", creator=connect, isolation_level="AUTOCOMMIT")


def raw_cursors(dsn: str) -> sa.Engine:
    """One connection at a time, with rows, numbers and JSON as its maker likes, in an open transaction."""

    def connect() -> psycopg.Connection:
        connection = psycopg.connect(dsn, cursor_factory=psycopg.RawCursor, row_factory=dict_row)
        set_json_loads(lambda text: ["JSON", text], connection)
        connection.adapters.register_loader("numeric", FloatLoader)
        connection.adapters.register_loader("int8", FloatLoader)
        connection.execute("SET statement_timeout = '10min'")
        return connection

    return sa.create_engine("postgresql+psycopg://", creator=connect, pool_size=1, max_overflow=0)


ENGINES: dict[str, Callable[[str], str | sa.Engine]] = {
    "string": str,
    "plain": lambda dsn: sa.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(dsn)),
    "client cursors": client_cursors,
    "raw cursors": raw_cursors,
}


# Every command


def commands(encoding: str, folder: Path) -> list[list[str]]:
    """All commands, in an order in which they find what they need; `demo` has a server of its own."""
    number, category, _ = WORDS[encoding]
    table = f'"{category} {number}"'
    (folder / "spec.toml").write_text(spec(encoding), encoding="utf-8")
    filtered = f'where = "id IN (SELECT id FROM hidden)"\ndefinition_is_public = true\n{spec(encoding)}'
    (folder / "filtered.toml").write_text(filtered, encoding="utf-8")
    (folder / "denied.toml").write_text(filtered.replace("hidden", "denied"), encoding="utf-8")
    (folder / "grid.toml").write_text(
        '[grid]\npasses = [1, 2]\n[training]\nmethod = "dp-gd"\n', encoding="utf-8"
    )
    (one, hidden, denied, grid) = (
        str(folder / f"{name}.toml") for name in ("spec", "filtered", "denied", "grid")
    )
    page = str(folder / "page.html")
    sparse = folder / "rows.svm"
    sparse.write_text("1 1:0.5 3:2\n-1 2:1\n", encoding="utf-8")
    measured = ["evaluate", f"m {number}", "--table", table, "--format", "json"]
    return [
        ["inspect", table, "--label", "day", "--format", "json"],
        ["doctor", "--table", table, "--format", "json"],
        ["check", one, "--format", "json"],
        ["plan", one, "--epsilon", "1", "--format", "json"],
        ["plan", hidden, "--epsilon", "1"],
        ["plan", denied, "--epsilon", "1"],
        ["inspect", "denied"],
        ["load", str(sparse), f'"loaded {category}"', "--format", "json"],
        ["train", one, "--method", "lbfgs", "--lambda", "0.01", "--name", f"m {number}", "--format", "json"],
        [*measured, "--public"],
        [*measured, "--owner"],
        ["predict", f"m {number}", "--table", table, "--id", "id", "--into", "predicted", "--format", "json"],
        ["predict", f"m {number}", "--table", table, "--id", "id", "--into", "nowhere.predicted"],
        ["models", "--format", "json"],
        ["show", f"m {number}", "--format", "json"],
        ["export", f"m {number}", "--format", "json"],
        ["export", f"m {number}", "--format", "sql"],
        ["plot", f"m {number}", "-o", str(folder / "curves.png")],
        ["report", f"m {number}", "-o", page, "--table", table, "--public"],
        ["compare", one, "--methods", "lbfgs,bolt-on", "--epsilons", "1", "--splits", "1", "--public"],
        ["grant", f"m {number}", "public", "--format", "json"],
        ["revoke", f"m {number}", "public", "--format", "json"],
        ["drop", f"m {number}", "--yes", "--format", "json"],
        ["show", f"m {number}"],
        *(["budget", "open", f"b {category}", "--epsilon", "50", "--delta", "0.001", "--table", table],),
        ["train", one, "--epsilon", "1", "--name", "private"],
        ["tune", one, "--grid", grid, "--epsilon", "1", "--name", "tuned"],
        ["evaluate", "private", "--table", table, "--epsilon", "1"],
        ["budget", "show", f"b {category}", "--format", "json"],
        ["budget", "history", f"b {category}", "--format", "json"],
        ["dataset", "register", f"b {category}", one, "--format", "json"],
        ["dataset", "list", "--format", "json"],
        ["serve", "--once"],
        ["request", "list", "--format", "json"],
        ["request", "withdraw", str(2**62), "--format", "json"],
        ["dataset", "withdraw", f"b {category}", "--format", "json"],
        ["budget", "close", f"b {category}", "--format", "json"],
        ["cleanup", "--format", "json"],
    ]


def comparable(text: str, version: str) -> str:
    """An answer without times, version, random names and numbers; rows are summed in a random order."""
    text = re.sub(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d(\.\d+)?)?(\+00:00| UTC)", "TIME", text)
    text = re.sub(r'"(charge|id|entry|seconds|charge_key)": ("[0-9a-f-]+"|[0-9.]+)', "", text)
    text = text.replace(version, "VERSION")  # after the times: one may have its digits
    return re.sub(r"-?\d+\.\d+(e-?\d+)?", lambda number: f"{float(number[0]) + 0.0:.4f}", text)


def answers(dsn: str, encoding: str, folder: Path, boss: psycopg.Connection) -> Answers:
    """What all commands say, but for noise and times: their exit codes, answers and errors."""
    empty_registry(boss)
    boss.execute("DROP TABLE IF EXISTS predicted")
    boss.execute(f'DROP TABLE IF EXISTS "loaded {WORDS[encoding][1]}"'.encode())
    version = scalar(boss, "SHOW server_version")
    found: Answers = []
    for command in commands(encoding, folder):
        if command[0] == "serve" and found[-1][1] == 0:
            request = "SELECT dpml.request(%s, 'requested', %s)"
            name = f"b {WORDS[encoding][1]}"
            boss.execute("SET ROLE alice")
            boss.execute(request, (name, json.dumps({"privacy": {"epsilon": 1}})))
            boss.execute("RESET ROLE")
        result = CliRunner().invoke(app, [*command, "--dsn", dsn])
        assert result.exception is None or isinstance(result.exception, SystemExit), (
            command,
            result.exception,
        )
        # With noise, or random splits.
        random = command[0] in ("tune", "compare") or (
            command[0] in ("train", "evaluate") and "--epsilon" in command
        )
        answer = "" if random else comparable(result.stdout, version)
        error = re.sub(r"request \d+", "request", result.stderr)
        found.append((" ".join(command), result.exit_code, answer, error))
    query = (
        "TABLE predicted ORDER BY id" if scalar(boss, "SELECT to_regclass('predicted')") else "SELECT NULL"
    )
    rows = str(boss.execute(query.encode()).fetchall())
    found.append(("predictions", 0, comparable(rows, version), ""))
    state = boss.execute("SELECT state, message FROM dpml.requests").fetchall()
    found.append(("request", 0, str(state), ""))
    page = (folder / "page.html").read_text(encoding="utf-8")
    found.append(("page", 0, comparable(page, version), ""))
    return found


Combination = tuple[str, str | None, int, str, str]


def well_spread() -> list[Combination]:
    """16 of them, in which any two values of any two surroundings meet: an orthogonal array of strength 2."""
    doubled = (0, 2, 3, 1)  # in the field of four elements, whose addition is ^
    combinations = []
    for a, b in itertools.product(range(4), repeat=2):
        client, style = list(CLIENT_ENCODINGS)[a ^ b], a ^ doubled[b]
        engine = list(ENGINES)[a ^ doubled[doubled[b]]]
        combinations.append((list(WORDS)[a], client, style, LANGUAGES[b % 2], engine))
    return combinations


SURROUNDINGS = list(itertools.product(WORDS, CLIENT_ENCODINGS, range(4), LANGUAGES, ENGINES))


def test_the_sample_is_well_spread() -> None:
    chosen = well_spread()
    assert set(chosen) <= set(SURROUNDINGS)
    for one, other in itertools.combinations(range(5), 2):
        meetings = {(combination[one], combination[other]) for combination in SURROUNDINGS}
        assert {(combination[one], combination[other]) for combination in chosen} == meetings


def run(databases: Databases, folder: Path, combination: Combination) -> Answers | None:
    """What all commands answer; None where the engine cannot connect at all."""
    encoding, client, style, language, engine = combination
    dsn = databases(encoding)
    with ExitStack() as stack:
        boss = stack.enter_context(as_boss(dsn))
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name, value in (STYLES[style] | ({} if client is None else {"PGCLIENTENCODING": client})).items():
            patch.setenv(name, value)
        patch.setattr(plots, "_file", words_of)
        patch.setattr(database_module, "opener", lambda source: opener(ENGINES[engine](source)))
        if language != "en":
            dsn = stack.enter_context(FaultProxy(dsn, german)).dsn
        if engine != "string" and not connects(dsn):
            assert CliRunner().invoke(app, ["models", "--dsn", dsn]).exit_code == 3
            return None
        return answers(dsn, encoding, folder, boss)


def words_of(figure: Figure, _format: str) -> bytes:
    """What stands for the file of a picture, which takes as long to draw as all else: the words in it."""
    return str([text.get_text() for text in figure.findobj(Text) if isinstance(text, Text)]).encode()


def connects(dsn: str) -> bool:
    """PostgreSQL converts between UTF-8 and others only: an engine for two others connects for nobody."""
    try:
        psycopg.connect(dsn).close()
    except psycopg.OperationalError:
        return False
    return True


Plainly = Callable[[str], Answers | None]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("surroundings")


@pytest.fixture(scope="session")
def known() -> dict[str, Answers | None]:
    """What all commands answered with nothing around them, by the encoding of the database."""
    return {}


@pytest.fixture(scope="module")
def plainly(databases: Databases, folder: Path, known: dict[str, Answers | None]) -> Plainly:
    """These answers; one server gives them for all, since a version changes only where it is named."""

    def look(encoding: str) -> Answers | None:
        if encoding not in known:
            known[encoding] = run(databases, folder, (encoding, None, 0, "en", "string"))
        return known[encoding]

    return look


def expect_the_same(databases: Databases, plainly: Plainly, folder: Path, combination: Combination) -> None:
    found = run(databases, folder, combination)
    expected = plainly(combination[0])
    assert expected is not None
    if found is None:
        assert {combination[0], combination[1]} in ({"LATIN1", "EUC_JP"},)
        return
    for one, other in zip(found, expected, strict=True):
        # The answers and exit codes are the same in all languages, the texts of refusals are not.
        compared = 3 if combination[3] != "en" and one[1] != 0 else 4
        if one[:compared] != other[:compared]:
            changes = "\n".join(difflib.unified_diff(lines(other), lines(one), "plainly", str(combination)))
            pytest.fail(f"{one[0]} answers otherwise:\n{changes}")


def lines(answer: Sequence[object]) -> list[str]:
    """An answer as lines of text."""
    return [line for part in answer for line in str(part).splitlines()]


@pytest.mark.dealt
@pytest.mark.parametrize("combination", well_spread(), ids=str)
def test_every_command_answers_alike_in_a_sample_of_surroundings(
    databases: Databases, plainly: Plainly, folder: Path, combination: Combination
) -> None:
    expect_the_same(databases, plainly, folder, combination)


@pytest.mark.long
@pytest.mark.parametrize("combination", SURROUNDINGS, ids=str)
def test_every_command_answers_alike_in_all_surroundings(
    databases: Databases, plainly: Plainly, folder: Path, combination: Combination
) -> None:
    expect_the_same(databases, plainly, folder, combination)


def test_no_command_is_left_out(tmp_path: Path) -> None:
    def below(command: Any, path: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
        parts = getattr(command, "commands", None)
        return {path} if parts is None else {p for n, c in parts.items() for p in below(c, (*path, n))}

    tried = {tuple(words) for line in commands("UTF8", tmp_path) for words in (line[:1], line[:2])}
    # tests/distributed tries `share`, which refuses a server without Citus.
    assert below(typer.main.get_command(app)) - tried == {("demo",), ("share",)}


# One surrounding at a time


X = Column("x", lower=0, upper=1)
DATA = DataSpec("rows", Label("y", positive="true"), (X,))
EXACT = TrainSpec(method="lbfgs", lambda_=0.1)


@pytest.fixture
def curator(databases: Databases) -> Iterator[str]:
    """Connection string of a curator, for a database with a table of her own and an empty registry."""
    dsn = databases("UTF8")
    with as_boss(dsn) as boss:
        empty_registry(boss)
        boss.execute(
            "CREATE TABLE rows AS SELECT i / 50.0 AS x, i > 20 AS y FROM generate_series(1, 50) i; "
            "GRANT SELECT ON rows TO alice"
        )
        yield dsn
        boss.execute("DROP TABLE rows")


def entries(dsn: str) -> int:
    with as_boss(dsn) as boss:
        return int(scalar(boss, "SELECT count(*) FROM dpml.ledger"))


def test_settings_of_database_role_service_and_string(
    curator: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = conninfo_to_dict(curator)
    (tmp_path / "services").write_text(
        f"[odd]\nhost={given['host']}\nport={given['port']}\nclient_encoding=LATIN1\n", encoding="utf-8"
    )
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
    name = str(given["dbname"])
    model = pg_dpml.train(curator, DATA, None, EXACT, name="Πόλη").model
    with as_boss(curator) as boss:
        boss.execute(
            f"ALTER DATABASE {name} SET datestyle = 'German'; ALTER ROLE alice SET bytea_output = escape"
        )
        boss.execute(f"ALTER ROLE alice IN DATABASE {name} SET extra_float_digits = -15".encode())
        try:
            for dsn in (
                f"service=odd dbname={name} user=alice",
                f"{curator} options='-c client_encoding=LATIN1 -c datestyle=SQL'",
            ):
                with Database(dsn).session() as session:
                    (found,) = registry.list_models(session)
                assert found.name == "Πόλη"
                assert found.weights.tobytes() == model.weights.tobytes()
        finally:
            boss.execute(f"ALTER DATABASE {name} RESET datestyle; ALTER ROLE alice RESET ALL".encode())
            boss.execute(f"ALTER ROLE alice IN DATABASE {name} RESET ALL".encode())


def test_what_is_set_ends_with_the_transaction(curator: str) -> None:
    """So that a pooler can give the connection to others."""
    query = psql.SQL(
        "SELECT current_setting('client_encoding'), current_setting('datestyle'), "
        "current_setting('extra_float_digits')"
    )
    with Database(curator).session("AUTOCOMMIT") as session:
        session.execute(psql.SQL("SET client_encoding = 'LATIN1'"))
        session.execute(psql.SQL("SET datestyle = 'German'"))
        session.execute(psql.SQL("SET extra_float_digits = 0"))
        with session.transaction():
            assert session.fetch_one(query) == ("UTF8", "ISO, DMY", "1")
        assert session.fetch_one(query) == ("LATIN1", "German, DMY", "0")


def test_adapters_of_the_program_are_not_ours(curator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = pg_dpml.train(curator, DATA, None, EXACT, name="m").model
    monkeypatch.setattr("psycopg.types.json._JsonLoader._loads", lambda text: None)
    monkeypatch.setattr("psycopg.types.json._JsonDumper._dumps", lambda value: "{}")
    psycopg.adapters.register_loader("float8", TextLoader)
    psycopg.adapters.register_loader("timestamptz", TextLoader)
    try:
        with Database(curator).session() as session:
            found = registry.load_model(session, "m")
            assert found.weights.tobytes() == plain.weights.tobytes()
            assert (found.encoder, found.training) == (plain.encoder, plain.training)
            assert isinstance(found.created_at, datetime)
    finally:
        psycopg.adapters.register_loader("float8", FloatLoader)
        psycopg.adapters.register_loader("timestamptz", TimestamptzLoader)


def test_predictions_in_sql_do_not_depend_on_the_session(curator: str) -> None:
    """Dates, floats, booleans and text as levels, whatever the settings of who predicts."""
    columns = (
        Column("day", levels=("2024-02-01", "2024-03-02")),
        Column("share", levels=("0.1", "0.30000000000000004")),
        Column("word", levels=("nö", "ja")),
        Column("yes"),
    )
    with as_boss(curator) as boss:
        boss.execute(
            "CREATE TABLE mixed AS SELECT date '2024-02-01' + 30 * (i % 2) AS day, CASE WHEN i % 3 = 0 "
            "THEN 0.1::float8 ELSE 0.1::float8 + 0.2::float8 END AS share, CASE WHEN i % 5 = 0 THEN 'nö' "
            "ELSE 'ja' END AS word, i % 7 = 0 AS yes, date '2024-01-02' + i % 2 AS y "
            "FROM generate_series(1, 50) i; GRANT SELECT ON mixed TO alice"
        )
        data = DataSpec("mixed", Label("y", classes=("2024-01-02", "2024-01-03")), columns)
        pg_dpml.train(curator, data, None, EXACT, name="m")
    query = "SELECT dpml.predict('m', t), dpml.predict_proba('m', t) FROM mixed t"
    answers = set()
    for setting in (
        "SET datestyle = 'ISO, YMD'",
        "SET datestyle = 'German'",
        "SET datestyle = 'SQL, DMY'",
        "SET extra_float_digits = -15",
        "SET client_encoding = 'LATIN1'",
        "SET timezone = 'Asia/Kolkata'",
        "SET lc_numeric = 'C'",
        "SET standard_conforming_strings = off",
    ):
        with psycopg.connect(curator, autocommit=True) as connection:
            connection.execute(setting.encode())
            with connection.cursor(binary=True) as cursor:
                answers.add(str(cursor.execute(query).fetchall()))
    with as_boss(curator) as boss:
        boss.execute("DROP TABLE mixed")
    assert len(answers) == 1


# Text that is not UTF-8


def test_bytes_that_are_not_utf8_are_refused_by_name(databases: Databases, tmp_path: Path) -> None:
    """Only a database of encoding SQL_ASCII holds them."""
    dsn = databases("SQL_ASCII")
    with psycopg.connect(dsn, user="postgres", client_encoding="SQL_ASCII", autocommit=True) as boss:
        boss.execute(b'CREATE TABLE latin AS SELECT 1 AS "n\xf6", true AS y; GRANT SELECT ON latin TO alice')
        boss.execute(
            b"CREATE TABLE words AS SELECT 'n\xf6' AS word, true AS y; GRANT SELECT ON words TO alice"
        )
        spec = tmp_path / "spec.toml"
        spec.write_text(
            'table = "words"\n[label]\ncolumn = "y"\npositive = true\n[columns.word]\nlevels = ["ja"]\n',
            encoding="utf-8",
        )
        try:
            for command, named in (
                (["inspect", "latin"], r"columns n\xf6"),
                (["inspect", os.fsdecode(b"t\xff")], r"t\udcff"),
                (["show", os.fsdecode(b"m\xff")], r"m\udcff"),
                (["check", str(spec)], "0xf6"),
            ):
                shown = CliRunner().invoke(app, [*command, "--dsn", dsn])
                assert shown.exit_code == 2, (shown.output, shown.exception)
                assert "not UTF-8" in shown.stderr
                assert named in shown.stderr
        finally:
            boss.execute(b"DROP TABLE latin, words")


def test_a_level_that_the_database_cannot_hold(databases: Databases) -> None:
    dsn = databases("LATIN1")
    with pytest.raises(SpecError):
        pg_dpml.plan(dsn, DataSpec("Πόλη", Label("y", positive="true"), (X,)), PRIVACY)


# Messages in another language


@pytest.fixture
def german_server(curator: str) -> Iterator[str]:
    with FaultProxy(curator, german) as proxy:
        yield proxy.dsn


def refusal(dsn: str, kind: type[DpmlError], data: DataSpec = DATA) -> str:
    with pytest.raises(kind) as error:
        pg_dpml.train(dsn, data, PRIVACY, name="x")
    assert type(error.value) is kind
    return str(error.value)


def test_advice_does_not_depend_on_the_servers_language(curator: str, german_server: str) -> None:
    filtered = replace(DATA, where="EXISTS (SELECT FROM {})", definition_is_public=True)
    hidden = replace(filtered, where="EXISTS (SELECT FROM hidden)")
    assert "without row-level security (CREATE TABLE" in refusal(german_server, GuaranteeError, hidden)
    denied = replace(filtered, where="EXISTS (SELECT FROM denied)")
    assert 'Tabelle denied: it takes GRANT SELECT ON "denied" TO "alice"' in refusal(
        german_server, SpecError, denied
    )
    with as_boss(curator) as boss:
        boss.execute(
            'CREATE SCHEMA "Tabelle für"; CREATE TABLE "Tabelle für".rows AS TABLE rows; '
            "CREATE FUNCTION secret() RETURNS boolean LANGUAGE sql AS 'SELECT true'; "
            "REVOKE EXECUTE ON FUNCTION secret() FROM PUBLIC"
        )
        other = replace(DATA, table='"Tabelle für".rows')
        said = refusal(german_server, SpecError, other)
        assert 'it takes GRANT USAGE ON SCHEMA "Tabelle für" TO "alice"' in said
        boss.execute('GRANT USAGE ON SCHEMA "Tabelle für" TO alice')
        said = refusal(german_server, SpecError, other)
        assert 'it takes GRANT SELECT ON "Tabelle für"."rows" TO "alice"' in said
        # Not a function of the extension: no role of the extension gives the right.
        with pytest.raises(DpmlError) as error:
            pg_dpml.train(german_server, replace(filtered, where="secret()"), PRIVACY, name="x")
        assert "keine Berechtigung für Funktion secret" in str(error.value)
        assert "dpml_curator" not in str(error.value)
        boss.execute(
            'DROP SCHEMA "Tabelle für" CASCADE; DROP FUNCTION secret(); REVOKE dpml_curator FROM alice'
        )
        try:
            assert "only curators (members of dpml_curator) may do that" in refusal(german_server, SpecError)
            boss.execute("REVOKE dpml_analyst FROM alice")
            assert 'it takes GRANT dpml_curator TO "alice"' in refusal(german_server, SpecError)
        finally:
            boss.execute("GRANT dpml_curator, dpml_analyst TO alice")
    assert entries(curator) == 0


def test_only_the_extensions_own_absence_is_called_so(server: EmbeddedServer, german_server: str) -> None:
    with FaultProxy(server.dsn, german) as proxy:  # a database without the extension
        shown = CliRunner().invoke(app, ["models", "--dsn", proxy.dsn])
        assert shown.exit_code == 2
        assert "Try CREATE EXTENSION pg_dpml" in shown.stderr
    pg_dpml.train(german_server, DATA, None, EXACT, name="m")
    with Database(german_server).session() as session:
        pass
    with pytest.raises(SpecError) as error, Database(german_server).session() as session:
        session.execute(psql.SQL("CREATE TABLE nowhere.t ()"))
    assert "nowhere" in str(error.value)
    assert "extension" not in str(error.value)


def test_the_grant_names_the_current_role(curator: str) -> None:
    with as_boss(curator) as boss:
        boss.execute("CREATE ROLE reader; GRANT reader TO alice; GRANT dpml_curator TO reader")
        try:
            said = refusal(f"{curator} options='-c role=reader'", SpecError)
            assert 'it takes GRANT SELECT ON "rows" TO "reader"' in said
        finally:
            boss.execute("DROP ROLE reader")


# Connection strings


SECRET = "S3cr3t"


@pytest.mark.parametrize(
    "dsn",
    [
        f"postgresql+psycopg://joe:{SECRET}@h/d",
        f"postgresql+psycopg2://joe:{SECRET}@h/d",
        f"mysql://joe:{SECRET}@h/d",
        f"postgresql://joe:{SECRET}%ZZ@h/d",
        f"postgresql://joe:x@{SECRET}@h/d",
        f"postgresql://joe:x/{SECRET}@h/d",
        f"postgresql://joe:12/{SECRET}@h/d",
        f"postgresql://joe@h:{SECRET}/d",
        f"postgresql://joe@h/d?password={SECRET}&sslmod={SECRET}",
        f"host=h password=x {SECRET} user=joe",
        f"host=h password='{SECRET}",
        f"host=h pasword={SECRET}",
        f"{SECRET}=1",
        SECRET,
        f"host=h port={SECRET}",
    ],
)
def test_no_part_of_a_connection_string_is_echoed(dsn: str) -> None:
    with pytest.raises(SpecError) as error:
        pg_dpml.plan(dsn, DATA, PRIVACY)
    assert SECRET not in str(error.value)
    assert error.value.__cause__ is None
    assert "postgresql://" in str(error.value)
    shown = CliRunner().invoke(app, ["models", "--dsn", dsn])
    assert shown.exit_code == 2
    assert SECRET not in shown.output


def test_a_wrong_host_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGHOST", "db.invalid")
    for dsn in ("", "dbname=x", "postgresql:///x"):
        with pytest.raises(UnavailableError, match=r"cannot reach PostgreSQL.*db\.invalid") as error:
            pg_dpml.plan(dsn, DATA, PRIVACY)
        assert "None" not in str(error.value)


# Engines


def test_an_engine_that_fails_in_its_own_way_shows_no_secret() -> None:
    def connect() -> psycopg.Connection:
        raise RuntimeError(f"postgresql://joe:{SECRET}@h/d")

    engine = sa.create_engine("postgresql+psycopg://", creator=connect)
    with pytest.raises(SpecError, match=r"the engine cannot connect \(a RuntimeError") as error:
        pg_dpml.plan(engine, DATA, PRIVACY)
    assert SECRET not in str(error.value)


def test_a_connection_that_is_in_use_is_refused_before_any_charge(curator: str) -> None:
    opened = psycopg.connect(curator)
    engine = sa.create_engine("postgresql+psycopg://", creator=lambda: opened, poolclass=sa.StaticPool)
    with engine.connect() as connection:
        connection.exec_driver_sql("CREATE TEMP TABLE mine AS SELECT 1")
        with pytest.raises(SpecError, match="of its own, outside any transaction"):
            pg_dpml.train(engine, DATA, PRIVACY, name="x")
    engine.dispose()
    assert entries(curator) == 0


def test_a_pool_without_a_free_connection_is_unavailable(curator: str) -> None:
    engine = sa.create_engine(
        "postgresql+psycopg://",
        creator=lambda: psycopg.connect(curator),
        pool_size=1,
        max_overflow=0,
        pool_timeout=0.1,
    )
    with engine.connect(), pytest.raises(UnavailableError, match="pool has no connection left"):
        pg_dpml.train(engine, DATA, PRIVACY, name="x")
    # Of a small pool that is free, each session leaves the place to the next, also while it lasts.
    with Database(engine).session(), Database(engine).session() as session:
        assert session.fetch(psql.SQL("SELECT 1")) == [(1,)]
    engine.dispose()


@pytest.mark.parametrize("kind", ["string", "plain", "client cursors"])
def test_an_engine_is_left_as_it_was(curator: str, kind: str) -> None:
    engine = ENGINES[kind](curator)
    if isinstance(engine, str):  # a pool of one connection
        engine = sa.create_engine(
            "postgresql+psycopg://", creator=lambda: psycopg.connect(curator), poolclass=sa.StaticPool
        )
    with engine.connect() as connection:
        before = driver_state(connection)
    # What is charged takes two connections.
    lbfgs = TrainSpec(method="lbfgs")
    pg_dpml.train(engine, DATA, *((None, lbfgs) if kind == "string" else (PRIVACY,)), name="x")
    with engine.connect() as connection:
        assert driver_state(connection) == before
    assert not [listener for listener in engine.pool.dispatch.connect if "settle" in repr(listener)]
    engine.dispose()


def driver_state(connection: sa.Connection) -> tuple[object, ...]:
    driver = connection.connection.driver_connection
    assert isinstance(driver, psycopg.Connection)
    status = [driver.info.parameter_status(name) for name in ("client_encoding", "DateStyle")]
    return driver.autocommit, driver.isolation_level, driver.cursor_factory, driver.row_factory, *status


def test_events_of_an_engine_count(curator: str) -> None:
    """As SET ROLE at the beginning of each transaction."""
    with as_boss(curator) as boss:
        boss.execute("CREATE ROLE reader; GRANT reader TO alice; GRANT dpml_curator TO reader")
    engine = sa.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(curator))

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql("SET LOCAL ROLE reader")

    try:
        database = Database(engine)
        with database.connection() as opened:
            for isolation in ("READ COMMITTED", "REPEATABLE READ"):
                for kept in (True, False):
                    with database.transaction(opened, isolation, kept=kept) as session:
                        assert session.fetch_one(psql.SQL("SELECT current_user::text")) == ("reader",)
    finally:
        engine.dispose()
        with as_boss(curator) as boss:
            boss.execute("DROP ROLE reader")
