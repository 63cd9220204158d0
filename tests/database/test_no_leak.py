# SPDX-License-Identifier: PostgreSQL
"""Nothing un-noised, and nothing of a row, is seen around a run, however much the server is told to log."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest

import leaks
import pg_dpml
from leaks import FloatArray, Secrets, Sightings, Watcher
from pg_dpml import Column, DataSpec, Grid, Label, PrivacySpec, TrainSpec
from pg_dpml.database import Database, Session, array_parameter, sql
from pg_dpml.embedded import EmbeddedServer, find_pg_config
from pg_dpml.errors import DpmlError, RunFailedError, SpecError
from pg_dpml.extension import Sources, pg_config_paths
from pg_dpml.methods import bolt_on
from pg_dpml.methods.job import Job
from pg_dpml.methods.plan import Plan
from pg_dpml.methods.sgd import Sgd

# What is written where does not depend on the version; one with auto_explain shows the most.
pytestmark = pytest.mark.one_major

# The package's function of the same name hides the module.
TRAIN = importlib.import_module("pg_dpml.train")

N = 300
PRIVACY = PrivacySpec(2.0, 1e-6)
TIMEOUT_S = 60

TALKATIVE = {
    "logging_collector": "on",
    "log_destination": "stderr,jsonlog",
    "log_filename": "server.log",
    "log_rotation_size": "0",
    "log_statement": "all",
    "log_duration": "on",
    "log_min_duration_statement": "0",
    "log_parameter_max_length": "-1",
    "log_parameter_max_length_on_error": "-1",
    "log_error_verbosity": "verbose",
    "log_min_messages": "debug1",
    "log_min_error_statement": "debug1",
    "log_temp_files": "0",
    "log_lock_waits": "on",
    "log_autovacuum_min_duration": "0",
    "log_checkpoints": "on",
    "autovacuum_naptime": "1s",
    "track_activity_query_size": "1MB",
    "track_functions": "all",
    "full_page_writes": "on",
    "wal_level": "logical",
}
EXPLAINING = {
    "shared_preload_libraries": "auto_explain,pg_stat_statements",
    "auto_explain.log_min_duration": "0",
    "auto_explain.log_analyze": "on",
    "auto_explain.log_buffers": "on",
    "auto_explain.log_verbose": "on",
    "auto_explain.log_settings": "on",
    "auto_explain.log_triggers": "on",
    "auto_explain.log_nested_statements": "on",
    "auto_explain.log_parameter_max_length": "-1",
    "pg_stat_statements.track": "all",
}

# Rows that nobody may see


FEATURES = (
    Column("age", lower=0, upper=120),
    Column("ward", levels=("north", "south")),
    Column("smoker"),
    Column("pulse", lower=0, upper=200, length=3),
)
SPARSE = (
    Column("age", lower=0, upper=120),
    Column("clinic", levels=tuple(f"c{i}" for i in range(20)), centered=False),
)
LABELS = {
    "binary": Label("outcome", positive="well", negative="ill"),
    "multiclass": Label("grade", classes=("1", "2", "3")),
    "regression": Label("cost", lower=0, upper=1000),
}
SENTINEL_TEXTS = ("@sentinel.example", "note Q93-7", "ward-Z77", "outcome-X55")
BAD_ROWS: tuple[tuple[Any, ...], ...] = (
    (8.7654321098e207, [7.1234567891e19, None, float("nan")], "ward-Z77", "c3", None, "outcome-X55", 77, -1.2345678912e99),
    (float("nan"), [1.0987654321], "ward-Z77 and more", "c-none", True, None, None, float("inf")),
    (-6.5432109876e-7, [], None, None, False, "outcome-X55", -3, 6.6677788899e7),
)  # fmt: skip


def make_rows(secrets: Secrets) -> list[tuple[Any, ...]]:
    """Rows without their number; all their long numbers and odd texts are secret."""
    rng = np.random.default_rng(6)
    rows: list[tuple[Any, ...]] = []
    for i in range(N - len(BAD_ROWS)):
        age, pulse = float(rng.uniform(0, 120)), rng.uniform(40, 200, size=3).tolist()
        ward, clinic, smoker = ("north", "south")[i % 2], f"c{int(rng.integers(20))}", bool(rng.integers(2))
        ill = age + 20 * smoker + rng.normal(scale=10) > 70
        rows.append((age, pulse, ward, clinic, smoker, "ill" if ill else "well", 1 + i % 3, age * 7.7))
    rows += BAD_ROWS
    for age, pulse, *_, cost in rows:
        secrets.add([age, *(value for value in pulse if value is not None), cost])
    secrets.texts.update(text.encode() for text in SENTINEL_TEXTS)
    # Two rows of most persons.
    return [(f"p{i // 2}@sentinel.example", f"note Q93-7 {i}", *row) for i, row in enumerate(rows)]


def spec(task: str = "binary", table: str = "patients", *, sparse: bool = False, **more: Any) -> DataSpec:
    return DataSpec(table, LABELS[task], SPARSE if sparse else FEATURES, **more)


@dataclass
class House:
    """A talkative server, and what may not be seen of its rows (`rows`) and of all runs so far (`unnoised`)."""

    server: EmbeddedServer
    data: Path
    client: Path
    explaining: bool
    rows: Secrets
    unnoised: Secrets
    known: dict[str, set[bytes]] = field(default_factory=dict)
    """Lines of every relation before there were rows."""
    furnished: float = 0.0
    offsets: dict[Path, int] = field(default_factory=dict)

    @property
    def curator(self) -> str:
        """Connection string of those who train."""
        return f"{self.server.dsn_of('house', 'curator')} options='-c client_min_messages=debug1'"

    @property
    def quiet(self) -> str:
        """Connection string of the test itself, whose own queries should fill no log."""
        silent = {"log_statement": "none", "log_duration": "off", "log_min_duration_statement": "-1"}
        silent |= {"log_min_messages": "fatal", "log_min_error_statement": "fatal"}
        if self.explaining:
            silent["auto_explain.log_min_duration"] = "-1"
        options = " ".join(f"-c {name}={value}" for name, value in silent.items())
        return f"{self.server.dsn_of('house')} options='{options}'"

    def new_log(self) -> Iterator[bytes]:
        """What the server wrote since the last look."""
        for path in [*sorted((self.data / "log").iterdir()), self.server.log_path]:
            with path.open("rb") as log:
                log.seek(self.offsets.get(path, 0))
                yield log.read()
                self.offsets[path] = log.tell()


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(False, id="first-major"),
        # PostgreSQL 15 of Debian, for which the extension is compiled anew
        pytest.param(True, id="auto_explain", marks=pytest.mark.long),
    ],
)
def house(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    major = int(request.config.getoption("--pg").split(",")[0])
    if request.param:
        major = 15
        explains = False
        with contextlib.suppress(SpecError):
            explains = (Path(pg_config_paths(find_pg_config(major))["PKGLIBDIR"]) / "auto_explain.so").is_file()
        if not explains:
            pytest.skip("there is no PostgreSQL 15 with auto_explain and pg_stat_statements")
    settings = TALKATIVE | EXPLAINING if request.param else TALKATIVE
    with EmbeddedServer(major=major, settings=settings) as server:
        data = server.log_path.parent / "data"
        found = House(server, data, tmp_path_factory.mktemp("client"), request.param, Secrets(), Secrets())
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute("CREATE DATABASE house")
        with psycopg.connect(server.dsn_of("house"), autocommit=True) as connection:
            furnish(connection, found)
            connection.execute("CHECKPOINT")
        found.furnished = time.time()
        yield found


def furnish(connection: psycopg.Connection, house: House) -> None:
    connection.execute("CREATE EXTENSION pg_dpml")
    if house.explaining:
        connection.execute("CREATE EXTENSION pg_stat_statements")
    for role, granted in (("curator", "dpml_curator"), ("analyst", "dpml_analyst")):
        connection.execute(f"CREATE ROLE {role} LOGIN IN ROLE {granted}")
    for name, lines in leaks.relations(connection):
        house.known[name] = lines
    for table in ("patients", "others"):
        connection.execute(
            f"CREATE TABLE {table} (id int, email text, note text, age float8, pulse float8[], ward text, "
            "clinic text, smoker boolean, outcome text, grade int, cost float8)"
        )
        copied = f"COPY {table} FROM STDIN".encode()
        with connection.cursor() as cursor, cursor.copy(copied) as copy:
            for i, row in enumerate(make_rows(house.rows)):
                copy.write_row((i, *row))
    connection.execute(
        "CREATE VIEW broken AS SELECT id, email, CASE WHEN id = 150 THEN note::int::float8 ELSE age END AS age, "
        "pulse, ward, clinic, smoker, outcome, grade, cost FROM patients"
    )
    connection.execute("GRANT SELECT ON patients, others, broken TO curator")


@pytest.fixture
def watcher(house: House, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watcher]:
    """Runs of this test are recorded at their sources, and watched."""
    monkeypatch.setattr(tempfile, "tempdir", str(house.client))
    leaks.record(monkeypatch, house.unnoised)
    watching = Watcher(house.quiet, [house.data / "base" / "pgsql_tmp", house.client])
    watching.hear(monkeypatch)
    with watching.watching():
        yield watching


def sweep(
    house: House, watcher: Watcher, printed: str, *, errors: list[BaseException] | None = None
) -> Sightings:
    """All places where a secret of any run so far could be seen, and what was seen there."""
    found, secrets = Sightings(), (house.rows, house.unnoised)
    watcher.look(secrets, found)
    found.look("terminal", printed.encode(), secrets)
    for error in errors or ():
        found.look("exception", "\n".join(leaks.exception_texts(error)).encode(), secrets)
    for part in leaks.contents(house.client):
        found.look("files of the client", part, secrets)
    for part in house.new_log():
        found.look("server log", part, secrets)
    with psycopg.connect(house.quiet, autocommit=True) as connection:
        connection.execute("SET SESSION AUTHORIZATION analyst")
        for name, lines in leaks.relations(connection):
            found.look(f"analyst: {name}", b"\n".join(lines - house.known.get(name, set())), secrets)
    with psycopg.connect(house.quiet, autocommit=True) as connection:
        for name, lines in leaks.relations(connection):
            # rows themselves, and statistics of their columns
            own = name in ("public.patients", "public.others", "public.broken") or "pg_stat" in name
            new = b"\n".join(lines - house.known.get(name, set()))
            found.look(f"superuser: {name}", new, secrets[1:] if own else secrets)
        left = connection.execute(
            "SELECT relname FROM pg_class WHERE relnamespace = 'dpml_work'::regnamespace"
        ).fetchall()
        if left:
            found["work tables"] = [name for (name,) in left]
        connection.execute("CHECKPOINT")
    for part in leaks.contents(house.data / "base" / "pgsql_tmp"):
        found["temporary files left"] = [f"{len(part)} bytes"]
    # Not the log, which is looked at as text.
    for folder in ("base", "pg_wal", "global", "pg_stat_tmp", "pg_replslot"):
        for part in leaks.contents(house.data / folder, since=house.furnished):
            # the unused rest of a segment is zero
            hits = house.unnoised.find_bytes(part.rstrip(b"\0") + bytes(8))
            if hits:
                found.setdefault("files of the server", []).extend(hits)
    return found


# The matrix

PURE = PrivacySpec(2.0, 0.0)
UNIT = {"unit": "email", "max_rows_per_unit": 2}
RUNS: dict[str, tuple[DataSpec, PrivacySpec, TrainSpec]] = {
    "auto": (spec(), PRIVACY, TrainSpec()),
    "whitened-dp-gd": (spec("multiclass", **UNIT), PRIVACY, TrainSpec(method="whitened-dp-gd", passes=5)),
    "dp-gd": (spec("multiclass", sparse=True), PRIVACY, TrainSpec(method="dp-gd", passes=5)),
    "dp-gd of units": (spec(**UNIT), PRIVACY, TrainSpec(method="dp-gd", passes=3, unit_clip=1.0)),
    "sufficient-statistics": (spec("regression"), PRIVACY, TrainSpec(method="sufficient-statistics")),
    "bolt-on": (spec(), PRIVACY, TrainSpec(method="bolt-on", passes=3, average="tail")),
    "bolt-on, pure": (
        spec("multiclass", sparse=True),
        PURE,
        TrainSpec(method="bolt-on", passes=2, fresh_order=True, batch_size=10),
    ),
    "bolt-on of units": (spec(**UNIT), PRIVACY, TrainSpec(method="bolt-on", passes=2)),
    "certified": (spec(), PRIVACY, TrainSpec(method="bolt-on", lambda_=0.1)),
    "certified, several classes": (spec("multiclass"), PRIVACY, TrainSpec(method="bolt-on", lambda_=0.1)),
    "dp-sgd": (spec(), PRIVACY, TrainSpec(method="dp-sgd", passes=2)),
    "bst14": (spec(sparse=True), PRIVACY, TrainSpec(method="bst14", passes=2, accountant="advanced")),
    "scs13": (spec("regression"), PURE, TrainSpec(method="scs13", passes=2)),
}


def train(house: House, name: str, data: DataSpec, privacy: PrivacySpec | None, training: TrainSpec) -> None:
    pg_dpml.train(house.curator, data, privacy, training, name=name)


def test_nothing_is_seen_of_any_method(
    house: House, watcher: Watcher, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, run in RUNS.items():
        train(house, name, *run)
    tuned = Grid({"lambda": [0.0, 0.1]}, TrainSpec(method="bolt-on", passes=1))
    whitened = Grid({"passes": [2, 3]}, TrainSpec(method="whitened-dp-gd"))
    pg_dpml.tune(house.curator, spec(), PRIVACY, tuned, name="tuned")
    pg_dpml.tune(house.curator, spec("regression"), PRIVACY, whitened, name="tuned number")
    pg_dpml.tune(house.curator, spec(), PRIVACY, tuned, name="tuned in public", public_table="others")
    private: list[tuple[str, str, dict[str, Any]]] = [
        ("bolt-on", "others", {}),
        ("scs13", "patients", {"clip": 100.0}),
    ]
    for model, table, more in private:
        pg_dpml.evaluate(house.curator, model, table, privacy=PrivacySpec(1.0), **more)
    pg_dpml.evaluate(house.curator, "auto", "others", owner=True)
    methods = ["auto", "bolt-on", "dp-sgd", "lbfgs"]
    pg_dpml.compare(house.curator, spec(), methods=methods, epsilons=[1.0], splits=1, owner=True)
    with psycopg.connect(house.server.dsn_of("house"), autocommit=True) as connection:
        connection.execute("ANALYZE")
    printed = capfd.readouterr()
    assert sweep(house, watcher, printed.out + printed.err) == {}
    assert len(house.unnoised) > 1000
    assert extension_messages(house) == []


def extension_messages(house: House) -> list[dict[str, Any]]:
    """What the extension's own C code wrote to the log, of any level: the noise of steps is known to it alone."""
    ours = {path.name for path in Sources.find().c_files()} - {"json.c", "encode.c"}  # PostgreSQL has these too
    records = [json.loads(line) for line in (house.data / "log" / "server.json").read_text().splitlines()]
    assert records
    return [record for record in records if record.get("file_name") in ours]


# Faults


def fail(
    house: House, data: DataSpec, training: TrainSpec, name: str, at_pass: Callable[[Session], None] | None, watcher: Watcher
) -> BaseException:
    """The error of a run that something is done to after its second pass."""

    def progress(phase: str, done: int, total: int) -> None:
        if at_pass is not None and phase == "pass" and done == 2:
            at_pass(watcher.sessions[-1])

    with pytest.raises(RunFailedError, match="stay charged") as caught:
        pg_dpml.train(house.curator, data, PRIVACY, training, name=name, progress=progress)
    return caught.value


LONG = TrainSpec(method="bolt-on", passes=500)
LONG_DESCENT = TrainSpec(method="whitened-dp-gd", passes=500)


def test_nothing_is_seen_of_runs_that_fail(
    house: House, watcher: Watcher, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def signal_backend(function: str, session: Session, *, often: bool) -> None:
        def send() -> None:
            with psycopg.connect(house.quiet, autocommit=True) as connection:
                pid = session.driver.info.backend_pid
                # A cancelled backend that is between two statements goes on.
                until = time.monotonic() + TIMEOUT_S
                while time.monotonic() < until:
                    alive = connection.execute(f"SELECT pg_catalog.{function}({pid})").fetchone()
                    if not often or alive != (True,):
                        return
                    time.sleep(0.0005)

        thread = threading.Thread(target=send)
        thread.start()
        if not often:
            thread.join()

    def cancel(session: Session) -> None:
        signal_backend("pg_cancel_backend", session, often=True)

    def terminate(session: Session) -> None:
        signal_backend("pg_terminate_backend", session, often=False)

    def hurry(session: Session) -> None:
        session.execute(sql.SQL("SET LOCAL statement_timeout = 1"))

    def spoil(session: Session) -> None:
        """The next un-noised weights to arrive are too few, which the server says in its own words."""
        copy = Session.copy_row

        def cut(self: Session, table: sql.Identifier, types: Any, values: Any) -> None:
            copy(self, table, types, [values[0][:-1]])

        monkeypatch.setattr(Session, "copy_row", cut)

    errors = []
    for name, training in (("bolt-on", LONG), ("whitened", LONG_DESCENT)):
        for what in (cancel, terminate, hurry):
            errors.append(fail(house, spec(), training, f"{name}, {what.__name__}", what, watcher))
    errors.append(fail(house, spec(), LONG_DESCENT, "spoiled", spoil, watcher))
    monkeypatch.undo
    printed = capfd.readouterr()
    assert sweep(house, watcher, printed.out + printed.err, errors=errors) == {}
