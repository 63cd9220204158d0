# SPDX-License-Identifier: PostgreSQL
"""A session depends on nothing around it: encodings, date styles, languages, or how an engine was made."""

from __future__ import annotations

import itertools
import json
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa
from psycopg import sql
from psycopg.conninfo import make_conninfo
from psycopg.rows import dict_row
from psycopg.types.json import set_json_loads
from psycopg.types.numeric import FloatLoader
from typer.testing import CliRunner

from faultproxy import FaultProxy, german
from pg_dpml import PrivacySpec
from pg_dpml import database as database_module
from pg_dpml.cli import app
from pg_dpml.connections import opener
from pg_dpml.embedded import EmbeddedServer
from sqltools import empty_registry, scalar

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
STYLES = (
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
    """One connection at a time, with rows, numbers and JSON as its maker likes them, in an open transaction."""

    def connect() -> psycopg.Connection:
        connection = psycopg.connect(dsn, cursor_factory=psycopg.RawCursor, row_factory=dict_row)  # type: ignore[arg-type]
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
    measured = ["evaluate", f"m {number}", "--table", table, "--format", "json"]
    return [
        ["inspect", table, "--label", "day", "--format", "json"],
        ["doctor", "--table", table, "--format", "json"],
        ["check", one, "--format", "json"],
        ["plan", one, "--epsilon", "1", "--format", "json"],
        ["plan", hidden, "--epsilon", "1"],
        ["plan", denied, "--epsilon", "1"],
        ["inspect", "denied"],
        ["train", one, "--method", "lbfgs", "--lambda", "0.01", "--name", f"m {number}", "--format", "json"],
        [*measured, "--public"],
        [*measured, "--owner"],
        ["predict", f"m {number}", "--table", table, "--id", "id", "--into", "predicted", "--format", "json"],
        ["predict", f"m {number}", "--table", table, "--id", "id", "--into", "nowhere.predicted"],
        ["models", "--format", "json"],
        ["show", f"m {number}", "--format", "json"],
        ["export", f"m {number}", "--format", "json"],
        ["export", f"m {number}", "--format", "sql"],
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
        ["dataset", "withdraw", f"b {category}", "--format", "json"],
        ["budget", "close", f"b {category}", "--format", "json"],
        ["cleanup", "--format", "json"],
    ]


def comparable(text: str) -> str:
    """An answer without times, names drawn at random and numbers of entries; rows are summed in a random order."""
    text = re.sub(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d(\.\d+)?)?(\+00:00| UTC)", "TIME", text)
    text = re.sub(r'"(charge|id|entry|seconds|request)": ("[0-9a-f-]+"|[0-9.]+)', "", text)
    return re.sub(r"-?\d+\.\d+(e-?\d+)?", lambda number: f"{float(number[0]) + 0.0:.4f}", text)


def answers(
    dsn: str, encoding: str, folder: Path, boss: psycopg.Connection
) -> list[tuple[str, int, str, str]]:
    """What all commands say, but for noise and times: their exit codes, answers and errors."""
    empty_registry(boss)
    boss.execute("DROP TABLE IF EXISTS predicted")
    found = []
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
        answer = "" if random else comparable(result.stdout)
        error = re.sub(r"request \d+", "request", result.stderr)
        found.append((" ".join(command), result.exit_code, answer, error))
    query = (
        "TABLE predicted ORDER BY id" if scalar(boss, "SELECT to_regclass('predicted')") else "SELECT NULL"
    )
    rows = str(boss.execute(query.encode()).fetchall())
    found.append(("predictions", 0, comparable(rows), ""))
    state = boss.execute("SELECT state, message FROM dpml.requests").fetchall()
    found.append(("request", 0, str(state), ""))
    page = (folder / "page.html").read_text(encoding="utf-8")
    found.append(("page", 0, comparable(page), ""))
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


Answers = list[tuple[str, int, str, str]]


def run(databases: Databases, folder: Path, combination: Combination) -> Answers | None:
    """What all commands answer; None where the engine cannot connect at all."""
    encoding, client, style, language, engine = combination
    dsn = databases(encoding)
    with ExitStack() as stack:
        boss = stack.enter_context(as_boss(dsn))
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name, value in (STYLES[style] | ({} if client is None else {"PGCLIENTENCODING": client})).items():
            patch.setenv(name, value)
        patch.setattr(database_module, "opener", lambda source: opener(ENGINES[engine](source)))
        if language != "en":
            dsn = stack.enter_context(FaultProxy(dsn, german)).dsn
        if engine != "string" and not connects(dsn):
            assert CliRunner().invoke(app, ["models", "--dsn", dsn]).exit_code == 3
            return None
        return answers(dsn, encoding, folder, boss)


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


@pytest.fixture(scope="module")
def plainly(databases: Databases, folder: Path) -> Plainly:
    """What all commands answer with nothing around them, by the encoding of the database."""
    return cache(lambda encoding: run(databases, folder, (encoding, None, 0, "en", "string")))


def expect_the_same(databases: Databases, plainly: Plainly, folder: Path, combination: Combination) -> None:
    found = run(databases, folder, combination)
    expected = plainly(combination[0])
    assert expected is not None
    if found is None:
        assert {combination[0], combination[1]} in ({"LATIN1", "EUC_JP"},)
        return
    for one, other in zip(found, expected, strict=True):
        # The answers and exit codes are the same in all languages, the texts of refusals are not.
        translated = combination[3] != "en" and one[1] != 0
        assert one[: 3 if translated else 4] == other[: 3 if translated else 4]


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
