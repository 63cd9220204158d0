# SPDX-License-Identifier: PostgreSQL
"""Whatever befalls a run, its connection or its server: no half a model, no work table, and a true ledger."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest

import people
import pg_dpml
from faultproxy import FaultProxy, Loss
from people import create_people, make_people
from pg_dpml import budgets
from pg_dpml.database import Database
from pg_dpml.embedded import EmbeddedServer
from pg_dpml.errors import DpmlError, RunFailedError, RunInterrupted, UnavailableError
from pg_dpml.spec import Grid, PrivacySpec, TrainSpec
from sqltools import empty_registry, scalar

N = 200
PRIVACY = PrivacySpec(1, 1e-6)
METHODS = ("bolt-on", "dp-gd", "whitened-dp-gd", "dp-sgd", "bst14", "scs13")
STAYS = r"epsilon = 1, delta = 1e-06 stay charged \(entry {entry} of dpml.ledger\)"
OURS = "application_name = 'dpml' AND datname = current_database() AND backend_type = 'client backend'"
WORK_TABLES = "SELECT count(*) FROM pg_class WHERE relnamespace = 'dpml_work'::regnamespace"

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
        "CREATE VIEW slow AS SELECT id, age, gain, married, mood, slowly(town) AS town, height, pixels, rich, "
        "grade, price FROM people"
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
    return pg_dpml.train(dsn, data, PRIVACY, training, name=name, **given)


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


def sgd(method: str) -> Run:
    return lambda dsn: train(dsn, training=TrainSpec(method=method, passes=2))


RUNS: dict[str, Run] = {method: sgd(method) for method in METHODS} | {
    "certified": lambda dsn: train(dsn, training=TrainSpec(method="bolt-on", lambda_=0.01)),
    "sufficient-statistics": lambda dsn: train(
        dsn, data=people.spec("regression"), training=TrainSpec(method="sufficient-statistics")
    ),
    "units": lambda dsn: train(
        dsn, data=people.spec(columns=(people.FEATURES[0],), unit="gain", max_rows_per_unit=2)
    ),
    "tune": lambda dsn: pg_dpml.tune(
        dsn, people.spec(), PRIVACY, Grid({"passes": [1, 2]}, TrainSpec(method="dp-gd")), name="m"
    ),
}
OFTEN = ("dp-gd", "tune")
"""The others differ from these in their passes only."""


@pytest.mark.one_major
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind in OFTEN else pytest.mark.long) for kind in RUNS]
)
@pytest.mark.parametrize("how", [Loss.REQUEST, Loss.ANSWER], ids=["request", "answer"])
def test_a_connection_lost_anywhere(
    proxy: FaultProxy, clean: psycopg.Connection, kind: str, how: Loss
) -> None:
    """At every request of a run: what is left is what the message says."""
    proxy.arm()
    RUNS[kind](proxy.dsn)
    requests = proxy.requests
    charge, store = (number for number, text in enumerate(requests, 1) if text == "COMMIT")
    assert store == len(requests)
    for number in range(1, store + 1):
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
            assert type(raised.value) is RunFailedError
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
            assert "model m may be stored, as dpml models tells" in message
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
    charge, end = (number for number, text in enumerate(proxy.requests, 1) if text == "COMMIT")
    assert end == len(proxy.requests)
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
            assert f"nothing was released: the connection to the server was lost; epsilon = 0.5 stays " in message
            assert f"(entry {entry} of dpml.ledger)" in message


@pytest.mark.one_major
@pytest.mark.parametrize("how", [Loss.REQUEST, Loss.ANSWER], ids=["request", "answer"])
def test_a_budget_is_charged_with_the_ledger_or_not_at_all(
    database: str, proxy: FaultProxy, clean: psycopg.Connection, how: Loss
) -> None:
    """And a repeat under the same request pays nothing twice."""
    with Database(database).session() as session:
        budgets.open_budget(session, "census", epsilon=Decimal(100), delta=Decimal("0.1"), rule="basic")
    data = people.spec(dataset="census")
    proxy.arm()
    train(proxy.dsn, data=data, name="first", request="first")
    charge, store = (number for number, text in enumerate(proxy.requests, 1) if text == "COMMIT")
    paid = "SELECT count(*) FROM dpml.budget_entries WHERE request = %s"
    both = (
        "SELECT (SELECT array_agg(id ORDER BY id) FROM dpml.ledger) "
        "= (SELECT array_agg(charge ORDER BY charge) FROM dpml.budget_entries)"
    )
    for number in range(10, store + 1):
        name = f"m{number}"
        proxy.arm(lose(number, how))
        with pytest.raises(DpmlError):
            train(proxy.dsn, data=data, name=name, request=name)
        settle(clean)
        assert scalar(clean, both)
        charged = number > charge or (number == charge and how is Loss.ANSWER)
        assert scalar(clean, paid, name) == charged
        if charged and not (number == store and how is Loss.ANSWER):
            with pytest.raises(DpmlError, match="stored no model"):
                train(database, data=data, name=name, request=name)
        else:
            assert train(database, data=data, name=name, request=name).model.name == name
        assert scalar(clean, paid, name) == 1
    assert scalar(clean, both)


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
    return int(scalar(connection, f"SELECT pid FROM pg_stat_activity WHERE {OURS}"))


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
    with reconnected(alone) as connection:
        failed_once(connection, raised.value, "the connection to the server was lost")
        assert left_on_disk(own, connection) == []


INDEX_META_PAGE = (0x53162).to_bytes(4, "little")


def left_on_disk(server: EmbeddedServer, connection: psycopg.Connection) -> list[Path]:
    """Files of the database that belong to no relation, but for empty ones, of zeros or with the first page of an index."""
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


LIMITS = [
    Limit("statement_timeout", "the statement was cancelled, or took longer than statement_timeout", "slow", 0),
    Limit("lock_timeout", "a lock was not granted within lock_timeout", "people", 0),
    Limit(
        "idle_in_transaction_session_timeout",
        "the transaction was idle for longer than idle_in_transaction_session_timeout",
        "people",
        1.0,
    ),
    Limit("transaction_timeout", "the transaction took longer than transaction_timeout", "people", 1.0),
]


@pytest.fixture
def alice(database: str, clean: psycopg.Connection) -> Iterator[str]:
    """Connection string of a role that trains."""
    clean.execute("CREATE ROLE alice LOGIN IN ROLE dpml_curator")
    clean.execute("GRANT SELECT ON people, slow TO alice")
    yield database.replace("user='postgres'", "user='alice'")
    settle(clean)
    clean.execute("DROP OWNED BY alice")
    clean.execute("DROP ROLE alice")


@pytest.mark.parametrize("limit", LIMITS, ids=[limit.setting for limit in LIMITS])
def test_limits_of_time(alice: str, database: str, clean: psycopg.Connection, limit: Limit) -> None:
    """Set for the role that trains; each ends the run after its charge."""
    if limit.setting == "transaction_timeout" and clean.info.server_version < 170000:
        pytest.skip("transaction_timeout is PostgreSQL 17's")
    clean.execute(f"ALTER ROLE alice SET {limit.setting} = '500ms'".encode())
    with psycopg.connect(database) as other:

        def disturb() -> None:
            if limit.setting == "lock_timeout":
                other.execute("LOCK TABLE people IN ACCESS EXCLUSIVE MODE")
            time.sleep(limit.pause_s)

        with pytest.raises(RunFailedError) as raised:
            data = people.spec(table=limit.table, definition_is_public=True)
            train(alice, data=data, progress=at("pack 0", disturb))
    failed_once(clean, raised.value, limit.cause)
