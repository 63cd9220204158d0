# SPDX-License-Identifier: PostgreSQL
"""The command line as its users meet it: exit codes, pipes, a terminal, Ctrl-C."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from helpers.people import create_people, make_people
from helpers.sqltools import scalar
from pg_dpml.server.demo_data import ADULT_SPEC

# The command line does not depend on the server, and every command starts an interpreter.
pytestmark = [pytest.mark.one_major, pytest.mark.usefixtures("clean")]

N = 300
TIMEOUT_S = 120

SPEC = """
table = "TABLE"

[label]
column = "rich"
positive = "yes"

[columns.age]
lower = 0
upper = 100

[columns.town]
levels = ["Aix", "Bonn", "Cork"]
"""
SLOW_SPEC = SPEC.replace("TABLE", "slow").replace("[label]", "definition_is_public = true\n[label]")


@pytest.fixture(scope="module", autouse=True)
def tables(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        create_people(connection, make_people(N))
        create_people(connection, make_people(N, seed=8), "known")
        connection.execute(
            "CREATE FUNCTION slowly(float8) RETURNS float8 STABLE LANGUAGE plpgsql "
            "AS 'BEGIN PERFORM pg_sleep(0.2); RETURN $1; END'"
        )
        # Counting evaluates no column; encoding the rows takes a minute.
        connection.execute("CREATE VIEW slow AS SELECT id, slowly(age) AS age, town, rich FROM people")
        connection.execute("CREATE VIEW slow4 AS SELECT * FROM slow LIMIT 4")
        connection.execute("CREATE VIEW slow12 AS SELECT * FROM slow LIMIT 12")


@pytest.fixture
def spec(tmp_path: Path) -> str:
    path = tmp_path / "people.toml"
    path.write_text(SPEC.replace("TABLE", "people"), encoding="utf-8")
    return str(path)


@pytest.fixture
def slow_spec(tmp_path: Path) -> str:
    path = tmp_path / "slow.toml"
    path.write_text(SLOW_SPEC, encoding="utf-8")
    return str(path)


@pytest.fixture
def environment(dpml_program: Path) -> dict[str, str]:
    """With `dpml` on the path, without the PG* variables of whoever runs the tests, and plain for rich."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("PG", "FORCE_", "TTY_"))
    }
    path = f"{dpml_program.parent}:{kept['PATH']}"
    return kept | {"PATH": path, "TERM": "xterm", "COLUMNS": "100", "PYTHONDEVMODE": ""}


Dpml = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def dpml(database: str, environment: dict[str, str]) -> Dpml:
    """Runs a command with both outputs piped."""

    def run(*arguments: str, dsn: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["dpml", *arguments, "--dsn", database if dsn is None else dsn],
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )

    return run


def one_line(result: subprocess.CompletedProcess[str]) -> str:
    """The one line of an expected error."""
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("dpml: ")
    return line


def test_a_whole_session(dpml: Dpml, spec: str, connection: psycopg.Connection) -> None:
    planned = dpml("plan", spec, "--epsilon", "1", "--delta", "1e-6")
    assert (planned.returncode, planned.stderr) == (0, "")
    assert "(1, 1e-06)-differential privacy" in planned.stdout
    for word in ("300 rows", "Passes", "Sensitivity", "Noise", "replace_one"):
        assert word in planned.stdout
    assert scalar(connection, "SELECT count(*) FROM dpml.ledger") == 0

    trained = dpml("train", spec, "--epsilon", "1", "--name", "m")
    assert (trained.returncode, trained.stderr) == (0, "")  # piped: no progress
    assert "dpml evaluate m --table" in trained.stdout
    assert "dpml.ledger" in trained.stdout

    evaluated = dpml("evaluate", "m", "--table", "people", "--public")
    assert (evaluated.returncode, evaluated.stderr) == (0, "")
    assert "Accuracy" in evaluated.stdout
    assert "NOT PRIVATE" not in evaluated.stdout

    predicted = dpml("predict", "m", "--table", "people", "--id", "id", "--into", "predictions")
    assert (predicted.returncode, predicted.stderr) == (0, "")
    assert scalar(connection, "SELECT count(*) FROM predictions WHERE prediction IN ('yes', 'not yes')") == N
    connection.execute("DROP TABLE predictions")


def parsed(result: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert (result.returncode, result.stderr) == (0, "")

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    record = json.loads(result.stdout, parse_constant=refuse)
    assert isinstance(record, dict)
    return record


def test_json(dpml: Dpml, spec: str, connection: psycopg.Connection) -> None:
    options = ("--epsilon", "0.5", "--delta", "0", "--relation", "add_remove", "--format", "json")
    planned = parsed(dpml("plan", spec, *options))
    assert "bolt-on" in [method["method"] for method in planned.pop("methods")]
    assert (planned["epsilon"], planned["relation"], planned["n_units"]) == (0.5, "add_remove", N)
    assert planned["noise"]["kind"] == "k-norm"

    trained = parsed(dpml("train", spec, *options, "--name", "m"))
    assert trained["plan"] == planned
    assert trained["weights"] == scalar(connection, "SELECT weights FROM dpml.models")
    assert trained["charge"] == scalar(connection, "SELECT id FROM dpml.ledger")
    assert trained["features"] == ["age", "town=Aix", "town=Bonn", "town=Cork", "intercept"]
    assert trained["classes"] == ["not yes", "yes"]

    evaluated = parsed(dpml("evaluate", "m", "--table", "people", "--public", "--format", "json"))
    assert evaluated["n_rows"] == N
    assert sum(cell["rows"] for cell in evaluated["confusion"]) == N
    into = ("--id", "id", "--into", "predictions", "--format", "json")
    assert parsed(dpml("predict", "m", "--table", "people", *into)) == {"table": "predictions", "rows": N}
    connection.execute("DROP TABLE predictions")


def test_tuning(dpml: Dpml, spec: str, tmp_path: Path, connection: psycopg.Connection) -> None:
    grid = tmp_path / "tune.toml"
    grid.write_text(
        "[grid]\nlambda = [0.01, 0.0]\n[training]\nmethod = 'bolt-on'\npasses = 2\n", encoding="utf-8"
    )
    options = ("--grid", str(grid), "--epsilon", "60")
    tuned = dpml("tune", spec, *options, "--name", "m")
    assert (tuned.returncode, tuned.stderr) == (0, "")
    assert tuned.stdout.count("\n  * lambda = ") == 1
    assert "Tuned privately on 300 rows" in tuned.stdout
    assert "100 rows" in tuned.stdout
    assert "errors  " not in tuned.stdout
    assert "Next: dpml evaluate m --table" in tuned.stdout
    assert "SELECT dpml.predict('m', t)" in tuned.stdout
    assert "Tuned       privately: lambda = " in dpml("show", "m").stdout
    assert scalar(connection, "SELECT count(*) FROM dpml.ledger") == 1

    public = ("--public-table", "known", "--name", "m2")
    tuned = dpml("tune", spec, *options, *public)
    assert "Tuned on public.known, whose rows are public by your word, at no cost" in tuned.stdout
    assert tuned.stdout.count("errors  lambda = ") == 2
    record = parsed(dpml("tune", spec, *options, "--name", "m3", "--format", "json"))
    assert record["chosen"] in record["candidates"] == [{"lambda": 0.01}, {"lambda": 0.0}]
    assert (record["n_units"], record["portions"]) == (N, [100] * 3)
    assert record["plan"]["n_units"] == 100
    assert record["charge"] == scalar(connection, "SELECT max(id) FROM dpml.ledger")
    record = parsed(
        dpml("tune", spec, *options, "--public-table", "known", "--name", "m4", "--format", "json")
    )
    assert (record["public"]["n_trained"], record["public"]["n_scored"]) == (200, 100)
    assert "of 2 candidates" in dpml("show", "m4").stdout

    refused = dpml("tune", spec, "--grid", str(tmp_path / "none.toml"), "--epsilon", "1", "--name", "m5")
    assert refused.returncode == 2
    assert "none.toml" in one_line(refused)
    refused = dpml("tune", spec, "--grid", str(grid), "--name", "m5")
    assert refused.returncode == 2
    assert "needs epsilon" in one_line(refused)


def test_not_private_is_said_everywhere(dpml: Dpml, spec: str) -> None:
    for command in (
        ("plan", spec, "--method", "noiseless"),
        ("train", spec, "--method", "noiseless", "--name", "m"),
        ("evaluate", "m", "--table", "people", "--public"),
    ):
        result = dpml(*command)
        assert result.returncode == 0
        assert "NOT PRIVATE" in result.stdout
    record = parsed(dpml("evaluate", "m", "--table", "people", "--public", "--format", "json"))
    assert record["private"] is False


def test_every_training_option_arrives(dpml: Dpml, spec: str) -> None:
    record = parsed(
        dpml(
            *("plan", spec, "--epsilon", "1", "--format", "json", "--method", "bolt-on"),
            *("--loss", "huber_svm", "--passes", "3"),
            *("--batch-size", "7", "--lambda", "0.01", "--schedule", "decreasing", "--exponent", "0.3"),
            *("--radius", "2", "--average", "tail", "--tail", "0.5", "--fresh-order", "--clip", "0.4"),
            *("--huber-h", "0.2"),
        )
    )
    steps = 3 * -(-N // 7)
    assert (record["passes"], record["fresh_order"]) == (3, True)
    assert record["options"] == {
        "loss": "huber_svm",
        "huber_h": 0.2,
        "clip": 0.4,
        "lambda": 0.01,
        "batch_size": 7,
        "schedule": "decreasing",
        "exponent": 0.3,
        "radius": 2.0,
        "rows": N,
        "average_from": steps - -(-steps // 2) + 1,
    }


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("plan", "none.toml", "--epsilon", "1"), "none.toml: No such file"),
        (("plan", "SPEC"), "method auto needs epsilon: give one, such as --epsilon 1"),
        (("plan", "SPEC", "--delta", "0.1"), "--delta goes with --epsilon"),
        (("plan", "SPEC", "--epsilon", "0"), "epsilon must be in [1e-12, 100]"),
        (("plan", "SPEC", "--epsilon", "1", "--delta", "1"), "delta must be in [0, 1)"),
        (("plan", "SPEC", "--epsilon", "1", "--method", "magic"), "method must be one of auto, "),
        (("plan", "SPEC", "--epsilon", "1", "--radius", "1"), "radius belongs to method bolt-on or "),
        (
            ("plan", "SPEC", "--epsilon", "1", "--method", "bolt-on", "--schedule", "strongly_convex"),
            "needs lambda > 0",
        ),
        (("plan", "SPEC", "--epsilon", "1", "--format", "xml"), "--format must be text or json"),
        (("evaluate", "nobody", "--table", "people", "--public"), "there is no model called nobody"),
        (("predict", "nobody", "--table", "people", "--id", "id", "--into", "p"), "no model called nobody"),
    ],
)
def test_bad_arguments_exit_with_2(dpml: Dpml, spec: str, arguments: tuple[str, ...], words: str) -> None:
    result = dpml(*(spec if argument == "SPEC" else argument for argument in arguments))
    assert result.returncode == 2
    assert words in one_line(result)


@pytest.mark.parametrize(
    "arguments", [("plan",), ("train", "SPEC", "--epsilon", "1"), ("fly",), ("plan", "--x")]
)
def test_usage_exits_with_2(dpml: Dpml, spec: str, arguments: tuple[str, ...]) -> None:
    result = dpml(*(spec if argument == "SPEC" else argument for argument in arguments))
    assert result.returncode == 2
    assert "Usage: dpml" in result.stderr
    assert "Traceback" not in result.stderr


def test_missing_bounds_exit_with_2(dpml: Dpml, tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text(SPEC.replace("TABLE", "people").replace("lower = 0\nupper = 100", ""), encoding="utf-8")
    result = dpml("train", str(path), "--epsilon", "1", "--name", "m")
    assert result.returncode == 2
    assert "column age" in one_line(result)
    assert "lower and upper" in one_line(result)


def test_a_missing_extension_exits_with_2(dpml: Dpml, spec: str, database: str) -> None:
    without = database[: database.index("dbname=")] + "dbname='postgres'"
    result = dpml("evaluate", "m", "--table", "people", "--public", dsn=without)
    assert result.returncode == 2
    assert "CREATE EXTENSION pg_dpml" in one_line(result)


def test_no_server_exits_with_3(dpml: Dpml, spec: str, database: str) -> None:
    for dsn in ("host=/nonexistent", f"{database} options='-c default_transaction_read_only=on'"):
        result = dpml("train", spec, "--epsilon", "1", "--name", "m", dsn=dsn)
        assert result.returncode == 3
        one_line(result)


def test_conditions_of_the_guarantee_exit_with_5(
    dpml: Dpml, spec: str, tmp_path: Path, connection: psycopg.Connection
) -> None:
    assert dpml("train", spec, "--epsilon", "1", "--name", "m").returncode == 0
    result = dpml("evaluate", "m", "--table", "people")
    assert result.returncode == 5
    assert "--public" in one_line(result)
    view = tmp_path / "view.toml"
    view.write_text(SPEC.replace("TABLE", "slow"), encoding="utf-8")
    result = dpml("train", str(view), "--epsilon", "1", "--name", "m2")
    assert result.returncode == 5
    assert "definition_is_public" in one_line(result)
    assert scalar(connection, "SELECT count(*) FROM dpml.ledger") == 1


def test_a_failed_run_exits_with_1_and_stays_charged(
    dpml: Dpml, tmp_path: Path, connection: psycopg.Connection
) -> None:
    connection.execute("CREATE VIEW poisoned AS SELECT age, town, rich, town::int AS code FROM people")
    path = tmp_path / "poisoned.toml"
    text = SLOW_SPEC.replace('"slow"', '"poisoned"') + "[columns.code]\nlower = 0\nupper = 1\n"
    path.write_text(text, encoding="utf-8")
    result = dpml("train", str(path), "--epsilon", "1", "--name", "m")
    assert result.returncode == 1
    assert "stay charged" in one_line(result)
    for town in ("Aix", "Bonn", "Cork", "integer"):
        assert town not in result.stderr
    assert scalar(connection, "SELECT count(*) FROM dpml.ledger") == 1
    connection.execute("DROP VIEW poisoned")


@pytest.mark.parametrize("dsn", ["password=hush host=x", "postgresql://me:hush@x/y", "no connection string"])
def test_passwords_do_not_belong_on_a_command_line(dpml: Dpml, spec: str, dsn: str) -> None:
    result = dpml("plan", spec, "--epsilon", "1", dsn=dsn)
    assert result.returncode == 2
    assert "--dsn" in one_line(result)
    assert "hush" not in result.stderr


def test_connection_variables(database: str, environment: dict[str, str], spec: str) -> None:
    variables = dict(part.split("=", 1) for part in database.split())
    names = {"host": "PGHOST", "port": "PGPORT", "user": "PGUSER", "dbname": "PGDATABASE"}
    environment |= {names[key]: value.strip("'") for key, value in variables.items()}
    result = subprocess.run(
        ["dpml", "plan", spec, "--epsilon", "1"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")


PLACES = {"pack": "encode", "passes": "sgd_epoch"}
"""What the server is doing when a run is stopped."""


def stopped(
    connection: psycopg.Connection,
    environment: dict[str, str],
    command: list[str],
    wanted: str,
    sent: signal.Signals,
    code: int,
) -> str:
    """The one line of a command that is sent a signal once the server fills a work table by `wanted`."""
    running = subprocess.Popen(
        ["dpml", *command],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    busy = (
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'dpml' AND query LIKE %s "
        "AND datname = current_database()"
    )
    try:
        deadline = time.monotonic() + 60
        while not scalar(connection, busy, f'%"dpml_work"%{wanted}%'):
            assert running.poll() is None, running.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        running.send_signal(sent)
        sent_at = time.monotonic()
        out, err = running.communicate(timeout=30)
        assert time.monotonic() - sent_at < 10.0  # the statement was cancelled, not waited for
    finally:
        running.kill()
    assert running.returncode == code, err
    assert out == ""
    deadline = time.monotonic() + 5
    while scalar(connection, busy, "%") and time.monotonic() < deadline:
        time.sleep(0.02)
    assert scalar(connection, busy, "%") == 0
    (line,) = err.splitlines()
    return str(line)


@pytest.mark.parametrize(
    ("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["Ctrl-C", "SIGTERM"]
)
@pytest.mark.parametrize("place", PLACES)
def test_interrupts(
    database: str,
    environment: dict[str, str],
    connection: psycopg.Connection,
    spec: str,
    slow_spec: str,
    sent: signal.Signals,
    code: int,
    place: str,
) -> None:
    """Stopped inside one long statement, and between many short ones."""
    many_passes = ("--method", "bolt-on", "--passes", "100000", "--batch-size", "300")
    long_run = [slow_spec] if place == "pack" else [spec, *many_passes]
    command = ["train", *long_run, "--epsilon", "1", "--name", "m", "--dsn", database]
    line = stopped(connection, environment, command, f"dpml.{PLACES[place]}", sent, code)
    assert "interrupted" in line
    assert "epsilon = 1" in line
    assert "stay charged" in line
    assert scalar(connection, "SELECT count(*) FROM dpml.models") == 0
    assert scalar(connection, "SELECT count(*) FROM dpml.ledger") == 1


def test_an_interrupted_comparison_leaves_nothing(
    database: str, environment: dict[str, str], connection: psycopg.Connection, slow_spec: str
) -> None:
    command = ["compare", slow_spec, "--owner", "--dsn", database]
    line = stopped(connection, environment, command, "dpml.encode", signal.SIGINT, 130)
    assert line == "dpml: interrupted"
    assert scalar(connection, "SELECT count(*) FROM dpml.ledger") == 0


def in_a_terminal(command: list[str], environment: dict[str, str]) -> tuple[int, str, str]:
    """Exit code, stdout (piped) and stderr (a pseudo-terminal)."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=theirs, text=True)
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 4096)
        except OSError:  # Linux: the other end is closed
            break
        if not part:
            break
        shown += part
    out, _ = process.communicate(timeout=TIMEOUT_S)
    os.close(ours)
    return process.returncode, out, shown.decode()


def test_a_terminal_shows_progress_and_a_pipe_does_not(
    database: str, environment: dict[str, str], spec: str
) -> None:
    command = [
        "dpml",
        "train",
        spec,
        "--epsilon",
        "1",
        "--method",
        "dp-gd",
        "--passes",
        "3",
        "--dsn",
        database,
        "--format",
        "json",
    ]
    code, out, shown = in_a_terminal([*command, "--name", "m"], environment)
    assert code == 0
    assert json.loads(out)["model"] == "m"  # the bar does not touch stdout
    assert "pass" in shown
    assert "3/3" in shown
    assert "\x1b[" in shown
    code, out, shown = in_a_terminal([*command, "--name", "m"], environment)  # now the name is taken
    assert (code, out) == (2, "")
    assert "a model called m exists" in " ".join(shown.split())


@pytest.mark.parametrize(
    "command",
    [
        ("evaluate", "m", "--table", "slow4", "--public"),
        ("predict", "m", "--table", "slow12", "--id", "id", "--into", "slow_predictions"),
    ],
)
def test_a_terminal_shows_how_long_it_takes(
    database: str, dpml: Dpml, environment: dict[str, str], spec: str, command: tuple[str, ...]
) -> None:
    assert dpml("train", spec, "--epsilon", "1", "--name", "m").returncode == 0
    code, out, shown = in_a_terminal(["dpml", *command, "--dsn", database], environment)
    assert code == 0
    assert f"{command[3].removeprefix('slow')} p" in out  # public rows, or predictions
    assert command[0] in shown
    assert re.search(r"0:00:0[1-9]", shown)  # a busy machine may show no second 1
    code, _, shown = in_a_terminal(["dpml", "models", "--dsn", database], environment)
    assert (code, shown) == (0, "")  # what does not take long shows nothing


@pytest.mark.parametrize("command", [(), ("plan",), ("train",), ("compare",), ("evaluate",), ("demo",)])
def test_help(environment: dict[str, str], command: tuple[str, ...]) -> None:
    result = subprocess.run(
        ["dpml", *command, "--help"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert "Usage: dpml" in result.stdout


def test_the_demo_prints_its_spec(environment: dict[str, str]) -> None:
    result = subprocess.run(
        ["dpml", "demo", "--spec"], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (result.returncode, result.stdout) == (0, ADULT_SPEC.read_text(encoding="utf-8"))


LATER = ("scipy.optimize", "scipy.special", "scipy.stats", "sqlalchemy", "matplotlib", "rich", "pandas")
"""Libraries that take longer to import than most commands take to run."""


@pytest.mark.parametrize(
    ("command", "may_import"),
    [
        (("--help",), ()),
        (("models", "--dsn", "DSN"), ()),
        (("plan", "SPEC", "--method", "lbfgs", "--dsn", "DSN"), ()),
        (
            ("plan", "SPEC", "--epsilon", "1", "--dsn", "DSN"),
            ("scipy.optimize", "scipy.special", "scipy.stats"),
        ),
    ],
)
def test_a_command_imports_what_it_needs(
    database: str,
    environment: dict[str, str],
    spec: str,
    command: tuple[str, ...],
    may_import: tuple[str, ...],
) -> None:
    script = (
        "import sys; from pg_dpml.cli import main\n"
        "try: main()\n"
        f"finally: sys.stderr.write(' '.join(name for name in {LATER} if name in sys.modules))"
    )
    values = {"DSN": database, "SPEC": spec}
    result = subprocess.run(
        [sys.executable, "-c", script, *(values.get(word, word) for word in command)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0
    assert set(result.stderr.split()) <= set(may_import)


@pytest.mark.parametrize("group", [(), ("budget",), ("dataset",)])
def test_no_command_is_described_in_half(environment: dict[str, str], group: tuple[str, ...]) -> None:
    result = subprocess.run(
        ["dpml", *group, "--help"],
        env=environment | {"COLUMNS": "80"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    _, commands = result.stdout.split("Commands:\n")
    assert "..." not in commands
    assert all(line.endswith(".") for line in commands.splitlines())
    assert all(len(line) <= 80 for line in result.stdout.splitlines())
