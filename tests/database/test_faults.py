# SPDX-License-Identifier: PostgreSQL
"""Whatever befalls a run, its connection or its server: no half a model, no work table, and a true ledger."""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psycopg
import pytest
import sqlalchemy as sa
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus
from typer.testing import CliRunner, Result

import pg_dpml
from helpers import people
from helpers.faultproxy import FaultProxy, Loss
from helpers.people import create_people, make_people
from helpers.plans import examples
from helpers.sqltools import empty_registry, scalar
from pg_dpml.cli.framework import app
from pg_dpml.database.database import Database
from pg_dpml.errors import CommitLostError, DpmlError, RunFailedError, RunInterrupted, UnavailableError
from pg_dpml.kernels import Noise
from pg_dpml.ledger import models as registry
from pg_dpml.ledger import opening
from pg_dpml.methods import objective_perturbation
from pg_dpml.privacy.noise import adaptive
from pg_dpml.runs.grid import Grid
from pg_dpml.server.embedded import EmbeddedServer
from pg_dpml.server.host import Account, run_as, temporary_folder
from pg_dpml.spec.columns import Column, Label
from pg_dpml.spec.data import DataSpec
from pg_dpml.spec.privacy import PrivacySpec
from pg_dpml.training.spec import TrainSpec

N = 200
PRIVACY = PrivacySpec(1, 1e-6)
STAYS = r"epsilon = 1, delta = 1e-06 stay charged \(entry {entry} of dpml.ledger\)"
OURS = "application_name = 'dpml' AND datname = current_database() AND backend_type = 'client backend'"
WORK_TABLES = "SELECT count(*) FROM pg_class WHERE relnamespace = 'dpml_work'::regnamespace"

COMMAND = (sys.executable, "-c", "import sys; from pg_dpml.cli import main; sys.argv[0] = 'dpml'; main()")

Run = Callable[[str], object]
"""A charged run, of a connection string."""


@pytest.fixture(scope="module", autouse=True)
def tables(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        prepare(connection)


def prepare(connection: psycopg.Connection) -> None:
    """The table of people, and a model to evaluate."""
    create_people(connection, make_people(N))
    # Reading a town takes long, counting the rows does not.
    connection.execute(
        "CREATE FUNCTION slowly(t text) RETURNS text LANGUAGE plpgsql STABLE "
        "AS 'BEGIN PERFORM pg_sleep(0.05); RETURN t; END'"
    )
    connection.execute(
        "CREATE VIEW slow AS SELECT id, age, gain, married, mood, slowly(town) AS town, height, pixels, "
        "rich, grade, price FROM people"
    )


@pytest.fixture
def clean(connection: psycopg.Connection) -> Iterator[psycopg.Connection]:
    empty_registry(connection)
    yield connection
    settle(connection)
    assert scalar(connection, WORK_TABLES) == 0


@pytest.fixture(scope="module")
def proxy(database: str) -> Iterator[FaultProxy]:
    with FaultProxy(database) as running:
        yield running


def settle(connection: psycopg.Connection) -> None:
    """Wait until the server has noticed that its clients are gone."""
    wait_until(connection, f"SELECT count(*) = 0 FROM pg_stat_activity WHERE {OURS}")


def wait_until(connection: psycopg.Connection, query: str, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not scalar(connection, query):
        assert time.monotonic() < deadline, query
        time.sleep(0.01)


def train(dsn: str, name: str = "m", **given: Any) -> pg_dpml.TrainResult:
    """A run of a few passes."""
    data = given.pop("data", None) or people.spec()
    training = given.pop("training", TrainSpec(method="dp-gd", passes=2))
    return pg_dpml.train(dsn, data, given.pop("privacy", PRIVACY), training, name=name, **given)


def cli(*arguments: str, dsn: str) -> Result:
    """A command, in the process of the tests; it handles SIGTERM."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        return CliRunner().invoke(app, [*arguments, "--dsn", dsn])
    finally:
        signal.signal(signal.SIGTERM, before)


class State(NamedTuple):
    """What is found after a run: ids of charges, and names of models by their charge."""

    charges: list[int]
    models: dict[int, str]


def state(connection: psycopg.Connection) -> State:
    charges = connection.execute("SELECT id FROM dpml.ledger ORDER BY id").fetchall()
    models = connection.execute("SELECT charge, name FROM dpml.models").fetchall()
    return State([entry for (entry,) in charges], dict(models))


def failed_once(connection: psycopg.Connection, raised: BaseException, cause: str) -> None:
    """One charge, which the message names with the cause, and no model."""
    settle(connection)
    found = state(connection)
    (entry,) = found.charges
    assert found.models == {}
    assert re.fullmatch(f".*: {cause}; {STAYS.format(entry=entry)}", str(raised)), str(raised)
    assert scalar(connection, WORK_TABLES) == 0


# The connection


def lose(number: int, how: Loss) -> Callable[[int, str], Loss]:
    return lambda request, text: how if request == number else Loss.NONE


def run_of(task: str, training: TrainSpec) -> Run:
    return lambda dsn: train(dsn, data=people.spec(task), training=training)


RUNS: dict[str, Run] = {name: run_of(*given) for name, given in examples(private=True).items()} | {
    "units": lambda dsn: train(
        dsn, data=people.spec(columns=(people.FEATURES[0],), unit="gain", max_rows_per_unit=2)
    ),
    "tune": lambda dsn: pg_dpml.tune(
        dsn, people.spec(), PRIVACY, Grid({"passes": [1, 2]}, TrainSpec(method="dp-gd")), name="m"
    ),
}


@pytest.mark.one_major
@pytest.mark.parametrize(
    ("kind", "every"),
    [("dp-gd 1", 1), ("tune", 10), *(pytest.param(kind, 1, marks=pytest.mark.long) for kind in RUNS)],
)
@pytest.mark.parametrize("how", [Loss.REQUEST, Loss.ANSWER], ids=["request", "answer"])
def test_a_connection_lost_anywhere(
    proxy: FaultProxy,
    clean: psycopg.Connection,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    every: int,
    how: Loss,
) -> None:
    """At every request of a run, or one in so many: what is left is what the message says.

    How many passes objective perturbation takes depends on its noise, and those of dp-agd on its choices, so
    both are the same in every run.
    """
    monkeypatch.setattr(objective_perturbation, "Noise", lambda: Noise(bytes(32)))
    monkeypatch.setattr(adaptive, "choose", lambda losses, noise: 1)
    proxy.arm()
    RUNS[kind](proxy.dsn)
    requests = proxy.requests
    charge, store = (number for number, text in enumerate(requests, 1) if text == "COMMIT")
    assert store == len(requests)
    for number in sorted({charge, store, *range(1, store, every)}):
        empty_registry(clean)
        proxy.arm(lose(number, how))
        with pytest.raises(DpmlError) as raised:
            RUNS[kind](proxy.dsn)
        settle(clean)
        assert scalar(clean, WORK_TABLES) == 0
        found, message = state(clean), str(raised.value)
        if number < charge:
            assert type(raised.value) is UnavailableError
            assert found == ([], {})
        elif number == charge:
            assert type(raised.value) is CommitLostError
            assert "epsilon = 1, delta = 1e-06 may be charged, unless dpml.ledger has no entry" in message
            assert len(found.charges) == (how is Loss.ANSWER)
            assert found.models == {}
            assert all(message.endswith(f" {entry}; no row was read") for entry in found.charges)
        elif number < store:
            failed_once(clean, raised.value, "the connection to the server was lost")
            assert "no model was stored" in message
        else:
            (entry,) = found.charges
            assert found.models == ({entry: "m"} if how is Loss.ANSWER else {})
            assert type(raised.value) is CommitLostError
            assert "model m may be stored, as dpml models shows" in message
            assert re.search(STAYS.format(entry=entry), message)


@pytest.mark.one_major
@pytest.mark.parametrize("how", [Loss.REQUEST, Loss.ANSWER], ids=["request", "answer"])
def test_a_connection_lost_in_an_evaluation(
    database: str, proxy: FaultProxy, clean: psycopg.Connection, how: Loss
) -> None:
    train(database)

    def run() -> pg_dpml.Evaluation:
        return pg_dpml.evaluate(proxy.dsn, "m", "people", privacy=PrivacySpec(0.5))

    proxy.arm()
    run()
    (charge,) = (number for number, text in enumerate(proxy.requests, 1) if text == "COMMIT")
    end = len(proxy.requests)
    assert proxy.requests[-1] == "ROLLBACK"
    for number in range(1, end + 1):
        before = state(clean)
        proxy.arm(lose(number, how))
        with pytest.raises(DpmlError) as raised:
            run()
        settle(clean)
        found, message = state(clean), str(raised.value)
        new = [entry for entry in found.charges if entry not in before.charges]
        assert found.models == before.models
        if number < charge:
            assert type(raised.value) is UnavailableError
            assert new == []
        elif number == charge:
            assert "may be charged, unless dpml.ledger has no entry" in message
            assert len(new) == (how is Loss.ANSWER)
        else:
            (entry,) = new
            assert message == (
                "the evaluation failed on the server and nothing was released: the connection to the server "
                f"was lost; epsilon = 0.5 stays charged (entry {entry} of dpml.ledger)"
            )


@pytest.mark.one_major
@pytest.mark.parametrize("how", [Loss.REQUEST, Loss.ANSWER], ids=["request", "answer"])
def test_a_budget_is_charged_with_the_ledger_or_not_at_all(
    database: str, proxy: FaultProxy, clean: psycopg.Connection, how: Loss
) -> None:
    """And a repeat under the same request pays nothing twice."""
    with Database(database).session() as session:
        opening.open_budget(session, "census", epsilon=Decimal(100), delta=Decimal("0.1"), rule="basic")
    data = people.spec(dataset="census")
    train(database, data=data, name="claims the table", charge_key="claims the table")
    proxy.arm()
    train(proxy.dsn, data=data, name="first", charge_key="first")
    charge, store = (number for number, text in enumerate(proxy.requests, 1) if text == "COMMIT")
    paid = "SELECT count(*) FROM dpml.budget_entries WHERE charge_key = %s"
    both = (
        "SELECT (SELECT array_agg(id ORDER BY id) FROM dpml.ledger) "
        "= (SELECT array_agg(charge ORDER BY charge) FROM dpml.budget_entries)"
    )
    for number in (charge - 1, charge, charge + 1, store - 1, store):
        name = f"m{number}"
        proxy.arm(lose(number, how))
        with pytest.raises(DpmlError):
            train(proxy.dsn, data=data, name=name, charge_key=name)
        settle(clean)
        assert scalar(clean, both)
        charged = number > charge or (number == charge and how is Loss.ANSWER)
        assert scalar(clean, paid, name) == charged
        if charged and not (number == store and how is Loss.ANSWER):
            with pytest.raises(DpmlError, match="stored no model"):
                train(database, data=data, name=name, charge_key=name)
        else:
            assert train(database, data=data, name=name, charge_key=name).model.name == name
        assert scalar(clean, paid, name) == 1
    assert scalar(clean, both)


@pytest.mark.one_major
@pytest.mark.parametrize("refused", ["ledger", "models"])
def test_a_commit_that_the_server_refuses(database: str, clean: psycopg.Connection, refused: str) -> None:
    """Then it is known that nothing was written."""
    clean.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE 'never'; END$$; "
        f"CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON dpml.{refused} DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION refuse()".encode()
    )
    try:
        with pytest.raises(DpmlError) as raised:
            train(database)
    finally:
        clean.execute("DROP FUNCTION refuse CASCADE")
    if refused == "ledger":
        assert str(raised.value) == "never"
        assert state(clean) == ([], {})
    else:
        (entry,) = state(clean).charges
        assert state(clean).models == {}
        assert re.search(f"no model was stored; {STAYS.format(entry=entry)}", str(raised.value))


# The server


@pytest.fixture(scope="module")
def own(server: EmbeddedServer) -> Iterator[EmbeddedServer]:
    """A server that may be killed. It writes its log to disk late, when nobody waits for a commit."""
    lazy = {"synchronous_commit": "off", "wal_writer_delay": "10s", "wal_level": "replica"}
    with EmbeddedServer(major=server.major, settings=lazy) as running:
        with psycopg.connect(running.dsn, autocommit=True) as connection:
            connection.execute("CREATE EXTENSION pg_dpml")
            prepare(connection)
        yield running


@pytest.fixture
def alone(own: EmbeddedServer) -> str:
    """Connection string of a server without models and charges."""
    with psycopg.connect(own.dsn, autocommit=True) as connection:
        empty_registry(connection)
        connection.execute("CHECKPOINT")
    return own.dsn


def backend(connection: psycopg.Connection) -> int:
    """Process of the run that is going on."""
    return int(
        scalar(connection, f"SELECT pid FROM pg_stat_activity WHERE {OURS} AND xact_start IS NOT NULL")
    )


def at(phase: str, action: Callable[[], None]) -> Callable[[str, int, int], None]:
    """A progress callback that acts when it is first told `phase`, such as "pack 0" or "pass 1"."""
    armed = [phase]

    def progress(kind: str, done: int, total: int) -> None:
        if f"{kind} {done}" in armed:
            armed.clear()
            action()

    return progress


def reconnected(dsn: str) -> psycopg.Connection:
    """A connection, once the server takes some."""
    deadline = time.monotonic() + 30
    while True:
        try:
            return psycopg.connect(dsn, autocommit=True)
        except psycopg.OperationalError:
            assert time.monotonic() < deadline
            time.sleep(0.02)


PHASES = ("pack 0", "pack 1", "pass 1", "pass 2")
ENDED = "the server ended the connection, as at a restart or by an administrator"


@pytest.mark.parametrize("phase", PHASES)
def test_a_run_that_an_administrator_ends(database: str, clean: psycopg.Connection, phase: str) -> None:
    def terminate() -> None:
        assert scalar(clean, "SELECT pg_terminate_backend(%s, 5000)", backend(clean))

    with pytest.raises(RunFailedError) as raised:
        train(database, progress=at(phase, terminate))
    failed_once(clean, raised.value, ENDED)


@pytest.mark.one_major
@pytest.mark.parametrize("phase", PHASES)
def test_a_run_whose_process_is_killed(own: EmbeddedServer, alone: str, phase: str) -> None:
    """All sessions end, and the charge outlives the crash although this server commits lazily."""
    with psycopg.connect(alone, autocommit=True) as connection:
        with pytest.raises(RunFailedError) as raised:
            train(alone, progress=at(phase, lambda: os.kill(backend(connection), signal.SIGKILL)))
        with pytest.raises(psycopg.OperationalError):
            wait_until(connection, "SELECT false")  # the server restarts
    with reconnected(alone) as connection:
        failed_once(connection, raised.value, "the connection to the server was lost")
        assert left_on_disk(own, connection) == []


INDEX_META_PAGE = (0x53162).to_bytes(4, "little")


def left_on_disk(server: EmbeddedServer, connection: psycopg.Connection) -> list[Path]:
    """Files of the database that belong to no relation, but for zeros and first pages of indexes."""
    base = server.folder / f"run-{server.major}" / "data" / "base"
    number = scalar(connection, "SELECT oid::text FROM pg_database WHERE datname = current_database()")
    known = connection.execute("SELECT pg_relation_filenode(oid)::text FROM pg_class").fetchall()
    strays = [
        path
        for path in (base / number).iterdir()
        if path.name[0].isdigit() and (re.split("[._]", path.name)[0],) not in known
    ]
    pages = {path: path.read_bytes() for path in strays}
    return [path for path, page in pages.items() if any(page) and page[24:28] != INDEX_META_PAGE]


@pytest.mark.one_major
@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_server_that_restarts(own: EmbeddedServer, alone: str, mode: str) -> None:
    def restart() -> None:
        own._pg_ctl("-m", mode, "-l", str(own.log_path), "-w", "restart")

    with pytest.raises(RunFailedError) as raised:
        train(alone, progress=at("pass 1", restart))
    with reconnected(alone) as connection:
        failed_once(connection, raised.value, "(the server|the connection).*")
        assert left_on_disk(own, connection) == []
        assert train(alone, name="again").model.name == "again"


@pytest.mark.one_major
def test_a_cancelled_statement(database: str, clean: psycopg.Connection) -> None:
    slow = people.spec(table="slow", definition_is_public=True)
    busy = f"SELECT count(*) > 0 FROM pg_stat_activity WHERE {OURS} AND wait_event = 'PgSleep'"

    def cancel() -> None:
        with psycopg.connect(database, autocommit=True) as other:
            wait_until(other, busy)
            other.execute("SELECT pg_cancel_backend(%s)", (backend(other),))

    canceller = threading.Thread(target=cancel)
    with pytest.raises(RunFailedError) as raised:
        train(database, data=slow, progress=at("pack 0", canceller.start))
    canceller.join()
    failed_once(clean, raised.value, "the statement was cancelled, or took longer than statement_timeout")


# Limits of time


class Limit(NamedTuple):
    setting: str
    cause: str
    table: str
    pause_s: float


LIMITS = (
    Limit(
        "statement_timeout", "the statement was cancelled, or took longer than statement_timeout", "slow", 0
    ),
    Limit("lock_timeout", "a lock was not granted within lock_timeout", "people", 0),
    Limit(
        "idle_in_transaction_session_timeout",
        "the transaction was idle for longer than idle_in_transaction_session_timeout",
        "people",
        1.5,
    ),
)


@pytest.fixture
def alice(database: str, clean: psycopg.Connection) -> Iterator[str]:
    """Connection string of a role that trains."""
    clean.execute("CREATE ROLE alice LOGIN IN ROLE dpml_curator")
    clean.execute("GRANT SELECT ON people, slow TO alice")
    yield database.replace("user='postgres'", "user='alice'")
    settle(clean)
    clean.execute("DROP OWNED BY alice")
    clean.execute("DROP ROLE alice")


@pytest.mark.one_major
@pytest.mark.parametrize("limit", LIMITS, ids=[limit.setting for limit in LIMITS])
def test_limits_of_time(alice: str, database: str, clean: psycopg.Connection, limit: Limit) -> None:
    reaches(limit, alice, database, clean)


def test_the_limit_of_a_transaction(alice: str, database: str, clean: psycopg.Connection) -> None:
    if clean.info.server_version < 170000:
        pytest.skip("transaction_timeout is PostgreSQL 17's")
    cause = "the transaction took longer than transaction_timeout"
    reaches(Limit("transaction_timeout", cause, "people", 1.5), alice, database, clean)


def reaches(limit: Limit, alice: str, database: str, clean: psycopg.Connection) -> None:
    """Set for the role that trains, it ends the run after its charge."""
    clean.execute(f"ALTER ROLE alice SET {limit.setting} = '1s'".encode())
    with psycopg.connect(database) as other:

        def disturb() -> None:
            if limit.setting == "lock_timeout":
                other.execute("LOCK TABLE dpml.models IN ACCESS EXCLUSIVE MODE")
            time.sleep(limit.pause_s)

        data = people.spec(table=limit.table, definition_is_public=True)
        with pytest.raises(RunFailedError) as raised:
            train(alice, data=data, progress=at("pack 0", disturb))
    failed_once(clean, raised.value, limit.cause)


# Space


DISK = "the server's disk, or the tablespace of the work tables, is full"


@pytest.fixture
def wide(own: EmbeddedServer, alone: str) -> Iterator[str]:
    """A table whose encoded rows take about 30 MB."""
    with psycopg.connect(alone, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE wide AS SELECT g AS id, array_fill(g % 7, ARRAY[200])::float4[] AS x, "
            "g % 2 AS y FROM generate_series(1, 36000) g"
        )
        yield "wide"
        connection.execute("DROP TABLE wide")


WIDE = DataSpec("wide", Label("y", positive="1", negative="0"), (Column("x", lower=0, upper=7, length=200),))


def recovers(dsn: str, connection: psycopg.Connection) -> None:
    """The same run with room."""
    assert train(dsn, name="again", data=WIDE).model.name == "again"
    assert scalar(connection, WORK_TABLES) == 0


@pytest.fixture
def small_tablespace(own: EmbeddedServer) -> Iterator[str]:
    """A tablespace of 4 MB."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    folder = own.folder / "small"
    folder.mkdir()
    options = f"size=4M,mode=700,uid={own.log_path.stat().st_uid}"
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=False)
    if mounted.returncode != 0:
        folder.rmdir()
        pytest.skip("this machine lets nobody mount a small file system")
    try:
        with psycopg.connect(own.dsn, autocommit=True) as connection:
            connection.execute(f"CREATE TABLESPACE small LOCATION '{folder}'".encode())
            yield "small"
            connection.execute("DROP TABLESPACE small")
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.mark.one_major
def test_a_full_disk(alone: str, wide: str, small_tablespace: str) -> None:
    with psycopg.connect(alone, autocommit=True) as connection:
        connection.execute("ALTER ROLE postgres SET default_tablespace = small")
        try:
            with pytest.raises(RunFailedError) as raised:
                train(alone, data=WIDE)
        finally:
            connection.execute("ALTER ROLE postgres RESET default_tablespace")
        failed_once(connection, raised.value, DISK)
        assert scalar(connection, "SELECT pg_tablespace_size('small')") < 100_000
        recovers(alone, connection)


@pytest.mark.one_major
def test_a_limit_of_temporary_files(alone: str, wide: str) -> None:
    with psycopg.connect(alone, autocommit=True) as connection:
        connection.execute("ALTER ROLE postgres SET temp_file_limit = '1MB'")
        connection.execute("ALTER ROLE postgres SET work_mem = '64kB'")
        try:
            with pytest.raises(RunFailedError) as raised:
                train(alone, training=TrainSpec("bolt-on", passes=1), data=WIDE)  # which sorts the rows
        finally:
            connection.execute("ALTER ROLE postgres RESET ALL")
        failed_once(
            connection,
            raised.value,
            "a limit in the server's configuration was reached, such as temp_file_limit",
        )
        recovers(alone, connection)


@pytest.mark.one_major
def test_a_limit_of_file_sizes(alone: str, wide: str) -> None:
    """As a full disk, for those who may mount nothing. Files of the log are smaller than the limit."""
    most = 20 * 2**20 + 4096
    with psycopg.connect(alone, autocommit=True) as connection:

        def limit() -> None:
            resource.prlimit(backend(connection), resource.RLIMIT_FSIZE, (most, most))

        with pytest.raises(RunFailedError) as raised:
            train(alone, data=WIDE, progress=at("pack 0", limit))
        settle(connection)
        (entry,) = state(connection).charges
        assert re.search(f"no model was stored.*{STAYS.format(entry=entry)}", str(raised.value))
        assert state(connection).models == {}
        recovers(alone, connection)


# Interrupts


@pytest.fixture
def unanswered(own: EmbeddedServer, alone: str) -> Iterator[Callable[[], None]]:
    """From when it is called, a commit that must last waits for a standby that never comes."""
    with psycopg.connect(alone, autocommit=True) as connection:

        def begin() -> None:
            connection.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
            connection.execute("SELECT pg_reload_conf()")
            with psycopg.connect(alone) as other:
                wait_until(other, "SELECT current_setting('synchronous_standby_names') = 'nobody'")

        yield begin
        connection.execute("ALTER SYSTEM RESET synchronous_standby_names")
        connection.execute("SELECT pg_reload_conf()")


@pytest.mark.one_major
@pytest.mark.parametrize("commit", ["charge", "model"])
def test_an_interrupt_during_a_commit(
    own: EmbeddedServer, alone: str, unanswered: Callable[[], None], commit: str
) -> None:
    """The server has committed; the client cannot know, and says so."""

    def interrupt() -> None:
        with psycopg.connect(alone, autocommit=True) as other:
            wait_until(
                other, f"SELECT count(*) > 0 FROM pg_stat_activity WHERE {OURS} AND wait_event = 'SyncRep'"
            )
            os.kill(os.getpid(), signal.SIGINT)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    if commit == "charge":
        unanswered()
    with pytest.raises(RunInterrupted) as raised:
        train(alone, progress=at("pass 2", unanswered))
    interrupter.join()
    with psycopg.connect(alone, autocommit=True) as connection:
        settle(connection)
        (entry,) = state(connection).charges
        if commit == "charge":
            assert state(connection).models == {}
            assert str(raised.value) == (
                "interrupted during the commit: epsilon = 1, delta = 1e-06 may be charged, unless "
                f"dpml.ledger has no entry {entry}; no row was read"
            )
        else:
            assert state(connection).models == {entry: "m"}
            assert re.fullmatch(
                "interrupted during the commit: model m may be stored, as dpml models shows; "
                + STAYS.format(entry=entry),
                str(raised.value),
            )
        assert scalar(connection, WORK_TABLES) == 0


SPEC = """
table = "slow"
definition_is_public = true
[label]
column = "rich"
positive = "yes"
[columns.town]
levels = ["Aix", "Bonn", "Cork"]
"""


@pytest.mark.one_major
def test_a_killed_controller(database: str, clean: psycopg.Connection, tmp_path: Path) -> None:
    """The server notices within a second or two, in the middle of a statement of ten seconds."""
    path = tmp_path / "slow.toml"
    path.write_text(SPEC, encoding="utf-8")
    command = ["train", str(path), "--epsilon", "1", "--name", "m", "--dsn", database]
    running = subprocess.Popen([*COMMAND, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(
            clean, f"SELECT count(*) > 0 FROM pg_stat_activity WHERE {OURS} AND wait_event = 'PgSleep'"
        )
    finally:
        running.kill()
        running.wait()
    wait_until(clean, f"SELECT count(*) = 0 FROM pg_stat_activity WHERE {OURS}", seconds=5)
    found = state(clean)
    assert len(found.charges) == 1
    assert found.models == {}


# Read-only servers


@pytest.fixture(scope="module")
def standby(own: EmbeddedServer) -> Iterator[EmbeddedServer]:
    """A streaming standby of `own`."""
    with tempfile.TemporaryDirectory(prefix="standby-", dir=own.folder.parent) as place:
        os.chmod(place, 0o711)
        folder = Path(place) / "server"
        folder.mkdir(mode=0o711)
        run = folder / f"run-{own.major}"
        run.mkdir(mode=0o700)
        account = Account.find()
        if account is not None:
            os.chown(run, account.uid, account.gid)
        program = str(own._tree.path("BINDIR") / "pg_basebackup") if own._tree else ""
        where = [f"--{key}={own.environment[name]}" for key, name in CONNECTION.items()]
        options = ["--checkpoint=fast", "--no-sync", "--write-recovery-conf", "--pgdata", str(run / "data")]
        run_as([program, *where, *options], account, run)
        with EmbeddedServer(folder, own.major) as running:
            yield running


CONNECTION = {"host": "PGHOST", "port": "PGPORT", "username": "PGUSER"}


@pytest.mark.one_major
def test_a_standby(own: EmbeddedServer, alone: str, standby: EmbeddedServer, tmp_path: Path) -> None:
    train(alone)
    with psycopg.connect(alone) as connection:
        sent = scalar(connection, "SELECT pg_current_wal_lsn()::text")
    with psycopg.connect(standby.dsn, autocommit=True) as connection:
        assert scalar(connection, "SELECT pg_is_in_recovery()")
        wait_until(connection, f"SELECT pg_last_wal_replay_lsn() >= '{sent}'")
    read_only(standby.dsn, tmp_path)
    shown = cli("doctor", dsn=standby.dsn)
    assert shown.exit_code == 1
    assert "a standby, which is read-only" in shown.stdout


@pytest.mark.one_major
def test_read_only_transactions(database: str, clean: psycopg.Connection, tmp_path: Path) -> None:
    train(database)
    read_only(f"{database} options='-c default_transaction_read_only=on'", tmp_path)


def read_only(dsn: str, tmp_path: Path) -> None:
    """Model m is applied and measured; what would write fails with exit code 3."""
    spec = tmp_path / "people.toml"
    spec.write_text(SPEC.replace('"slow"', '"people"'), encoding="utf-8")
    with psycopg.connect(dsn) as connection:
        assert scalar(connection, "SELECT count(dpml.predict('m', t)) FROM people t") == N
        assert scalar(connection, "SELECT count(dpml.predict_proba('m', t)) FROM people t") == N
        charges = state(connection).charges
    for command in (
        ["plan", str(spec), "--epsilon", "1"],
        ["evaluate", "m", "--table", "people", "--public"],
        ["show", "m"],
        ["export", "m"],
        ["models"],
    ):
        assert cli(*command, dsn=dsn).exit_code == 0, command
    for command in (
        ["train", str(spec), "--epsilon", "1", "--name", "new"],
        ["evaluate", "m", "--table", "people", "--epsilon", "1"],
        ["predict", "m", "--table", "people", "--id", "id", "--into", "predictions"],
        ["drop", "m", "--yes"],
        ["budget", "open", "census", "--epsilon", "1", "--delta", "1e-9", "--rule", "basic"],
    ):
        shown = cli(*command, dsn=dsn)
        assert shown.exit_code == 3, (command, shown.output)
        assert "this server is read-only" in shown.output
    with psycopg.connect(dsn) as connection:
        assert state(connection).charges == charges


# Poolers


@pytest.fixture
def pooler(request: pytest.FixtureRequest, database: str, clean: psycopg.Connection) -> Iterator[str]:
    """Connection string of PgBouncer with so many connections, each for one transaction at a time."""
    program = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        pytest.skip("there is no pgbouncer here (on Debian: apt-get install pgbouncer)")
    account = Account.find()
    folder = temporary_folder(account)
    host = conninfo_to_dict(database)["host"]
    (folder / "users").write_text('"postgres" ""\n"alice" ""\n', encoding="utf-8")
    (folder / "pgbouncer.ini").write_text(
        f"[databases]\n* = host={host} port=5432\n[pgbouncer]\npool_mode = transaction\n"
        f"default_pool_size = {request.param}\nmax_client_conn = 20\nauth_type = trust\nlisten_addr =\n"
        "listen_port = 5432\n"
        f"unix_socket_dir = {folder}\nauth_file = {folder}/users\nlogfile = {folder}/log\n",
        encoding="utf-8",
    )
    for path in (folder, *folder.iterdir()):
        if account is not None:
            os.chown(path, account.uid, account.gid)
    running = subprocess.Popen(
        [program, "-q", str(folder / "pgbouncer.ini")],
        user=account.uid if account else None,
        group=account.gid if account else None,
        extra_groups=[] if account else None,
        stderr=subprocess.DEVNULL,
    )
    dsn = make_conninfo(database, host=str(folder))
    try:
        reconnected(dsn).close()
        yield dsn
    finally:
        running.terminate()
        running.wait()
        shutil.rmtree(folder)


AS_A_RUN_NEEDS = pytest.mark.parametrize("pooler", [2], indirect=True)


@AS_A_RUN_NEEDS
@pytest.mark.one_major
def test_a_pooler_in_transaction_mode(
    pooler: str, database: str, clean: psycopg.Connection, tmp_path: Path
) -> None:
    """Every command, over two connections to the server that others use in between."""
    spec, grid = tmp_path / "people.toml", tmp_path / "grid.toml"
    spec.write_text(SPEC.replace('"slow"', '"people"'), encoding="utf-8")
    grid.write_text('[grid]\npasses = [1, 2]\n[training]\nmethod = "dp-gd"\n', encoding="utf-8")
    private = [str(spec), "--epsilon", "1"]
    for command in (
        ["plan", *private],
        ["train", *private, "--name", "m"],
        ["train", *private, "--name", "steps", "--method", "bolt-on"],
        ["tune", *private, "--grid", str(grid), "--name", "tuned"],
        ["evaluate", "m", "--table", "people", "--public"],
        ["evaluate", "m", "--table", "people", "--epsilon", "1"],
        ["predict", "m", "--table", "people", "--id", "id", "--into", "predictions"],
        ["inspect", "people", "--label", "rich"],
        ["cleanup"],
    ):
        shown = cli(*command, dsn=pooler)
        assert shown.exit_code == 0, (command, shown.output)
        with psycopg.connect(pooler, prepare_threshold=None) as other:
            # What a run sets ends with its transaction.
            settings = other.execute(
                "SELECT current_setting('jit'), current_setting('synchronize_seqscans'), "
                "current_setting('client_connection_check_interval'), "
                "current_setting('transaction_isolation')"
            ).fetchone()
            assert settings == ("on", "on", "0", "read committed")
    clean.execute("DROP TABLE predictions")
    assert (
        scalar(clean, "SELECT count(DISTINCT pid) FROM pg_stat_activity WHERE application_name = 'dpml'") <= 2
    )
    shown = cli("doctor", dsn=pooler)
    assert "a pooler stands between" in shown.output


@pytest.mark.parametrize("pooler", [1], indirect=True)
@pytest.mark.one_major
def test_a_pooler_with_one_connection_costs_nothing(
    pooler: str, clean: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second is waited for a while, not as long as the pooler has patience."""
    monkeypatch.setattr("pg_dpml.database.database._PATIENCE_S", 0.5)
    started = time.monotonic()
    with pytest.raises(
        UnavailableError, match=r"two connections at once.*default_pool_size.*nothing was charged"
    ):
        train(pooler)
    assert time.monotonic() - started < 10
    assert state(clean) == ([], {})
    assert train(pooler, training=TrainSpec(method="lbfgs"), privacy=None).model.name == "m"


@AS_A_RUN_NEEDS
@pytest.mark.one_major
def test_odd_clients_of_a_pooler(pooler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Encoding and date style are settings that PgBouncer keeps for each client; others keep theirs."""
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    monkeypatch.setenv("PGDATESTYLE", "German")

    def connect() -> psycopg.Connection:
        return psycopg.connect(pooler, cursor_factory=psycopg.ClientCursor, prepare_threshold=0)

    engine = sa.create_engine("postgresql+psycopg://", creator=connect, isolation_level="AUTOCOMMIT")
    with reconnected(pooler) as other:
        for source in (pooler, engine):
            name = f"Πόλη of a {type(source).__name__}"
            weights = pg_dpml.train(source, people.spec(), PRIVACY, name=name).model.weights
            with Database(source).session() as session:
                found = registry.load_model(session, name)
            np.testing.assert_array_equal(found.weights, weights)
            shown = other.execute(
                "SELECT current_setting('client_encoding'), current_setting('datestyle')"
            ).fetchone()
            assert shown == ("LATIN1", "German, DMY")
    engine.dispose()


@pytest.mark.one_major
@AS_A_RUN_NEEDS
def test_an_interrupt_through_a_pooler(pooler: str, clean: psycopg.Connection) -> None:
    def interrupt() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)

    with pytest.raises(RunInterrupted):
        train(pooler, progress=at("pass 1", interrupt))
    assert len(state(clean).charges) == 1
    assert train(pooler, name="again").model.name == "again"  # the pool's only connection is free again


@AS_A_RUN_NEEDS
@pytest.mark.one_major
def test_a_start_parameter_that_the_pooler_refuses(pooler: str) -> None:
    with pytest.raises(UnavailableError, match="unsupported startup parameter"):
        train(f"{pooler} options='-c work_mem=1MB'")


# Locks


@pytest.mark.one_major
def test_locks_on_the_table(
    database: str, clean: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ACCESS SHARE and no more, whatever a run does: what a transaction locks, it holds to its end."""
    modes: set[str] = set()
    own = clean.execute(
        "SELECT 'public.people'::regclass::oid "
        "UNION SELECT indexrelid FROM pg_index WHERE indrelid = 'public.people'::regclass"
    ).fetchall()
    oids = ", ".join(str(oid) for (oid,) in own)
    held = f"SELECT mode FROM pg_locks WHERE pid = pg_backend_pid() AND relation IN ({oids})".encode()
    send = psycopg.Cursor.execute

    def watch(self: psycopg.Cursor, *given: Any, **options: Any) -> psycopg.Cursor:
        cursor = send(self, *given, **options)
        if self.connection.info.transaction_status == TransactionStatus.INTRANS:
            with psycopg.Cursor(self.connection) as other:
                modes.update(mode for (mode,) in send(other, held).fetchall())
        return cursor

    monkeypatch.setattr(psycopg.Cursor, "execute", watch)
    for kind in RUNS:
        empty_registry(clean)
        RUNS[kind](database)
    pg_dpml.evaluate(database, "m", "people", privacy=PrivacySpec(1))
    pg_dpml.evaluate(database, "m", "people", public=True)
    pg_dpml.predict(database, "m", "people", id_column="id", into="predictions")
    clean.execute("DROP TABLE predictions")
    assert modes == {"AccessShareLock"}


HARMLESS = (
    "INSERT INTO people (id) VALUES (-1)",
    "UPDATE people SET age = 50 WHERE id = -1",
    "DELETE FROM people WHERE id = -1",
    "ANALYZE people",
    "VACUUM people",
    "CREATE INDEX people_age ON people (age)",
)
WAITING = ("ALTER TABLE people ADD COLUMN more int", "TRUNCATE people", "DROP TABLE people CASCADE")


@pytest.mark.one_major
@pytest.mark.parametrize("phase", ["pack 1", "pass 1"])
def test_what_a_run_blocks(database: str, clean: psycopg.Connection, phase: str) -> None:
    """Nobody who reads or writes rows, only changes of the table itself."""

    def others() -> None:
        with psycopg.connect(database, autocommit=True) as other:
            other.execute("SET lock_timeout = '100ms'")
            for statement in HARMLESS:
                other.execute(statement.encode())
            for statement in WAITING:
                with pytest.raises(psycopg.errors.LockNotAvailable):
                    other.execute(statement.encode())

    train(database, progress=at(phase, others))
    clean.execute("DROP INDEX people_age")
