# SPDX-License-Identifier: PostgreSQL
"""Nothing un-noised, and nothing of a row, is seen around a run, however much the server is told to log."""

from __future__ import annotations

import base64
import contextlib
import importlib
import itertools
import json
import logging
import math
import os
import pickle
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest

import pg_dpml
from helpers import leaks
from helpers.leaks import Evidence, FloatArray, Secrets, Sightings, Watcher
from helpers.sqltools import scalar
from pg_dpml import Column, DataSpec, Grid, Label, PrivacySpec, TrainSpec
from pg_dpml.database.adapters import array_parameter
from pg_dpml.database.database import Database
from pg_dpml.database.session import Session, sql
from pg_dpml.errors import DpmlError, RunFailedError, RunInterrupted, SpecError
from pg_dpml.ledger import opening
from pg_dpml.methods import bolt_on
from pg_dpml.methods.bolt_on import BoltOnPlan
from pg_dpml.runs import datasets, requests
from pg_dpml.server.embedded import EmbeddedServer, find_pg_config
from pg_dpml.server.extension import Sources, pg_config_paths
from pg_dpml.training.method import private_methods
from pg_dpml.training.sgd import Sgd

# What is written where does not depend on the version; one with auto_explain shows the most.
pytestmark = pytest.mark.one_major

# The package's function of the same name hides the module.
TRAIN = importlib.import_module("pg_dpml.runs.train")

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

CLOCKS_S = 2.0
"""By how much the times of files may differ from the clock."""

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
PAIRS = (
    Column("age", lower=0, upper=120),
    Column("pulse", indices="places", first_index=1, length=6, lower=-200, upper=200),
)
LABELS = {
    "binary": Label("outcome", positive="well", negative="ill"),
    "multiclass": Label("grade", classes=("1", "2", "3")),
    "regression": Label("cost", lower=0, upper=1000),
}
SPEC = """
definition_is_public = true
[label]
column = "outcome"
positive = "well"
negative = "ill"
[columns.age]
lower = 0
upper = 120
[columns.ward]
levels = ["north", "south"]
"""
SENTINEL_TEXTS = ("@sentinel.example", "note Q93-7", "ward-Z77", "outcome-X55")
# Age, pulse, ward, clinic, smoker, outcome, grade, cost.
BAD_ROWS: tuple[tuple[Any, ...], ...] = (
    (
        8.7654321098e207,
        [7.12345678e19, None, math.nan],
        "ward-Z77",
        "c3",
        None,
        "outcome-X55",
        77,
        -1.23456789e99,
    ),
    (math.nan, [1.0987654321], "ward-Z77 and more", "c-none", True, None, None, math.inf),
    (-6.5432109876e-7, [], None, None, False, "outcome-X55", -3, 6.6677788899e7),
)


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
    # Two rows of most persons. Some row has each of the 6 places: of a feature that none has, the noise
    # alone is released.
    return [
        (f"p{i // 2}@sentinel.example", f"note Q93-7 {i}", *row, [1 + i % 2, 3 + i % 2, 5 + i % 2])
        for i, row in enumerate(rows)
    ]


def spec(task: str = "binary", table: str = "patients", *, sparse: bool = False, **more: Any) -> DataSpec:
    return DataSpec(table, LABELS[task], SPARSE if sparse else FEATURES, **more)


@dataclass
class House:
    """A talkative server, and what nobody may see: of its rows, and of all runs so far (`unnoised`)."""

    server: EmbeddedServer
    data: Path
    client: Path
    explaining: bool
    rows: Secrets
    unnoised: Secrets
    settings: str = ""
    known: dict[str, set[bytes]] = field(default_factory=dict)
    """Lines of every relation before there were rows; by role and relation, those that were looked at."""
    looked: float = 0.0
    """When the files of the server were looked at."""
    offsets: dict[Path, int] = field(default_factory=dict)

    @property
    def curator(self) -> str:
        """Connection string of those who train."""
        options = f"-c client_min_messages=debug1 {self.settings}"
        return f"{self.server.dsn_of('house', 'curator')} options='{options}'"

    @property
    def quiet(self) -> str:
        """Connection string of the test itself, whose own queries should fill no log."""
        silent = {"log_statement": "none", "log_duration": "off", "log_min_duration_statement": "-1"}
        silent |= {"log_min_messages": "fatal", "log_min_error_statement": "fatal"}
        if self.explaining:
            silent["auto_explain.log_min_duration"] = "-1"
        options = " ".join(f"-c {name}={value}" for name, value in silent.items())
        return f"{self.server.dsn_of('house')} options='{options}'"

    def new_lines(self, role: str, relation: str, lines: set[bytes]) -> tuple[str, bytes]:
        """The place, and its lines but those that an earlier look saw, which are older than later secrets."""
        place = f"{role}: {relation}"
        known = self.known.setdefault(place, set(self.known.get(relation, ())))
        new = lines - known
        known |= new
        return place, b"\n".join(new)

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
            explains = (
                Path(pg_config_paths(find_pg_config(major))["PKGLIBDIR"]) / "auto_explain.so"
            ).is_file()
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
        found.looked = time.time()
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
            "clinic text, smoker boolean, outcome text, grade int, cost float8, places int[])"
        )
        copied = f"COPY {table} FROM STDIN".encode()
        with connection.cursor() as cursor, cursor.copy(copied) as copy:
            for i, row in enumerate(make_rows(house.rows)):
                copy.write_row((i, *row))
    connection.execute(
        "CREATE VIEW broken AS SELECT id, email, "
        "CASE WHEN id = 150 THEN note::int::float8 ELSE age END AS age, pulse, ward, clinic, smoker, "
        "outcome, grade, cost FROM patients"
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
    """All places where a secret of any run so far could be seen, and what is new there that shows one."""
    found, secrets = Sightings(), (house.rows, house.unnoised)
    began = time.time()
    watcher.look(secrets, found)
    found.look("terminal", printed.encode(), secrets)
    for error in errors or ():
        found.look("exception", "\n".join(leaks.exception_texts(error)).encode(), secrets)
    for path, part in leaks.contents(house.client):
        found.look("files of the client", part, secrets, many_numbers=path.suffix == ".html")
    for part in house.new_log():
        found.look("server log", part, secrets)
    with psycopg.connect(house.quiet, autocommit=True) as connection:
        # Of the models, an analyst reads what was granted.
        connection.execute("UPDATE dpml.models SET granted_to = '{public}'")
        connection.execute("SET SESSION AUTHORIZATION analyst")
        for name, lines in leaks.relations(connection):
            found.look(*house.new_lines("analyst", name, lines), secrets, many_numbers="pg_stat" in name)
    with psycopg.connect(house.quiet, autocommit=True) as connection:
        for name, lines in leaks.relations(connection):
            statistics = "pg_stat" in name
            # rows themselves, and statistics of their columns
            own = statistics or name in ("public.patients", "public.others", "public.broken")
            new = house.new_lines("superuser", name, lines)
            found.look(*new, secrets[1:] if own else secrets, many_numbers=statistics)
        left = connection.execute(
            "SELECT relname FROM pg_class WHERE relnamespace = 'dpml_work'::regnamespace"
        ).fetchall()
        if left:
            found["work tables"] = [name for (name,) in left]
        (database,) = connection.execute("SELECT oid FROM pg_database WHERE datname = 'house'").fetchall()[0]
        connection.execute("CHECKPOINT")
    for _, part in leaks.contents(house.data / "base" / "pgsql_tmp"):
        found["temporary files left"] = [f"{len(part)} bytes"]
    # Not the log, which is looked at as text.
    for folder in ("base", "pg_wal", "global", "pg_stat_tmp", "pg_replslot"):
        for path, part in leaks.contents(house.data / folder, since=house.looked - CLOCKS_S):
            # the unused rest of a segment is zero
            known = leaks.without_padding(part.rstrip(b"\0") + bytes(8), database)
            hits = house.unnoised.find_bytes(known)
            if hits:
                found.setdefault("files of the server", []).extend(f"{path.name}: {hit}" for hit in hits)
    house.looked = began
    return found


# The matrix

PURE = PrivacySpec(2.0, 0.0)
UNIT: dict[str, Any] = {"unit": "email", "max_rows_per_unit": 2}
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
    "bolt-on of pairs": (
        DataSpec("patients", LABELS["binary"], PAIRS),
        PRIVACY,
        TrainSpec(method="bolt-on", passes=2),
    ),
    "bolt-on of units": (spec(**UNIT), PRIVACY, TrainSpec(method="bolt-on", passes=2)),
    "certified": (spec(), PRIVACY, TrainSpec(method="bolt-on", lambda_=0.1)),
    "certified, several classes": (spec("multiclass"), PRIVACY, TrainSpec(method="bolt-on", lambda_=0.1)),
    "objpert": (spec(), PRIVACY, TrainSpec(method="objpert")),
    "objpert, pure": (spec("multiclass"), PURE, TrainSpec(method="objpert", lambda_=1.0)),
    "amp of units": (spec(**UNIT), PRIVACY, TrainSpec(method="amp")),
    "amp-hf": (spec("multiclass", sparse=True), PRIVACY, TrainSpec(method="amp-hf")),
    "dp-agd": (spec(sparse=True), PRIVACY, TrainSpec(method="dp-agd", passes=12)),
    "dp-agd of units": (
        spec("regression", **UNIT),
        PRIVACY,
        TrainSpec(method="dp-agd", passes=9, lambda_=0.1),
    ),
    "frank-wolfe": (spec(sparse=True), PRIVACY, TrainSpec(method="frank-wolfe", passes=6)),
    # softmax's first sums are thirds of round numbers, as public numbers of other runs are
    "frank-wolfe, pure": (
        spec("multiclass", **UNIT),
        PURE,
        TrainSpec(method="frank-wolfe", loss="logistic", passes=3),
    ),
    "output-perturbation": (spec("regression"), PRIVACY, TrainSpec(method="output-perturbation", passes=3)),
    "priv-gene": (spec("multiclass"), PRIVACY, TrainSpec(method="priv-gene", passes=3)),
    "dp-sgd": (spec(), PRIVACY, TrainSpec(method="dp-sgd", passes=2)),
    "bst14": (spec(sparse=True), PRIVACY, TrainSpec(method="bst14", passes=2, accountant="advanced")),
    "scs13": (spec("regression"), PURE, TrainSpec(method="scs13", passes=2)),
    "dp-scd": (spec(), PRIVACY, TrainSpec(method="dp-scd", passes=3, update_clip=1.0, lambda_=1.0)),
    "dp-scd of units": (
        spec(sparse=True, **UNIT),
        PRIVACY,
        TrainSpec(method="dp-scd", loss="hinge", passes=2, update_clip=1.0, lambda_=1.0, dual_noise=True),
    ),
    "seq-dp-scd": (spec("regression"), PRIVACY, TrainSpec(method="seq-dp-scd", passes=2, batch_size=7)),
    "primal-dp-scd": (spec(), PRIVACY, TrainSpec(method="primal-dp-scd", passes=2, coordinates=3)),
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
    assert request(house, "patients", "asked for") == ("done", None)
    private: list[tuple[str, str, dict[str, Any]]] = [
        ("bolt-on", "others", {}),
        ("scs13", "patients", {"clip": 100.0}),
    ]
    for model, table, more in private:
        pg_dpml.evaluate(house.curator, model, table, privacy=PrivacySpec(1.0), **more)
    pg_dpml.evaluate(house.curator, "auto", "others", owner=True)
    methods = ["auto", "bolt-on", "dp-sgd", "dp-scd", "lbfgs", "scd"]
    pg_dpml.compare(house.curator, spec(), methods=methods, epsilons=[1.0], splits=1, owner=True)
    with psycopg.connect(house.server.dsn_of("house"), autocommit=True) as connection:
        connection.execute("ANALYZE")
        if house.explaining:
            plans = "SELECT count(*) FROM pg_stat_statements WHERE query LIKE '%%dpml.gradient%%'"
            assert scalar(connection, plans) > 0
    logged = (house.data / "log" / "server.log").read_text()
    assert ("Query Text:" in logged) == house.explaining
    assert "parameters: $1 = " in logged
    printed = capfd.readouterr()
    assert sweep(house, watcher, printed.out + printed.err) == {}
    assert len(house.unnoised) > 1000
    assert extension_messages(house) == []


@pytest.mark.long
def test_nothing_is_seen_of_any_combination(
    house: House, watcher: Watcher, capfd: pytest.CaptureFixture[str]
) -> None:
    """Every private method, kind of label, format of rows and unit, also with Poisson batches on disk."""
    private = private_methods()
    on_disk = replace(house, settings="-c dpml.work_mem=64kB")
    trained = 0
    for method, task, sparse, unit in itertools.product(private, LABELS, (False, True), ({}, UNIT)):
        for place in (house, on_disk) if method in ("dp-sgd", "bst14") else (house,):
            data = spec(task, sparse=sparse, **unit)
            with contextlib.suppress(SpecError):  # sufficient-statistics wants a number
                train(place, f"combination {trained}", data, PRIVACY, TrainSpec(method=method))
                trained += 1
    assert trained > 100
    printed = capfd.readouterr()
    assert sweep(house, watcher, printed.out + printed.err) == {}
    assert extension_messages(house) == []


def request(house: House, table: str, model: str) -> tuple[str, str | None]:
    """State and message of a request of the analyst's that the curator's service has answered."""
    data = f'table = "{table}"\n' + SPEC
    with Database(
        house.server.dsn_of("house")
    ).session() as session:  # a superuser, as the table has a budget
        opening.open_budget(
            session, model, epsilon=Decimal(1), delta=Decimal("0.1"), rule="basic", shared=True
        )
    with Database(house.curator).session() as session:
        datasets.register(session, model, data)
    options = '{"privacy": {"epsilon": 1, "delta": 1e-6}, "training": {"method": "bolt-on"}}'
    with psycopg.connect(house.server.dsn_of("house", "analyst"), autocommit=True) as connection:
        connection.execute("SELECT dpml.request(%s, %s, %s)", (model, model, options))
        assert requests.serve_next(Database(house.curator)) is not None
        found = connection.execute("SELECT state, message FROM dpml.requests WHERE model = %s", (model,))
        ((state, message),) = found.fetchall()
    return state, message


def extension_messages(house: House) -> list[dict[str, Any]]:
    """What the extension's own C code wrote to the log, of any level: it alone knows the noise of steps."""
    theirs = {"json.c", "encode.c"}  # names of files of PostgreSQL, too
    ours = {path.name for path in Sources.find().c_files()} - theirs
    records = [json.loads(line) for line in (house.data / "log" / "server.json").read_text().splitlines()]
    assert records
    return [record for record in records if record.get("file_name") in ours]


# Faults


def fail(
    house: House,
    data: DataSpec,
    training: TrainSpec,
    name: str,
    at_pass: Callable[[Session], None] | None,
    watcher: Watcher,
) -> BaseException:
    """The error of a run that something is done to after its second pass."""

    def progress(phase: str, done: int, total: int) -> None:
        if at_pass is not None and phase == "pass" and done == 2:
            assert watcher.run is not None
            at_pass(watcher.run)

    with pytest.raises((RunFailedError, RunInterrupted), match="stay charged") as caught:
        pg_dpml.train(house.curator, data, PRIVACY, training, name=name, progress=progress)
    return caught.value


LONG = TrainSpec(method="bolt-on", passes=500)
LONG_DESCENT = TrainSpec(method="whitened-dp-gd", passes=500)
LONG_DUALS = TrainSpec(method="dp-scd", passes=500, batch_size=150, update_clip=1.0, lambda_=1.0)


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
        """A pass of few rows takes less than a millisecond, unless the backend is held up."""
        session.execute(sql.SQL("SET LOCAL statement_timeout = 1"))
        pid = session.driver.info.backend_pid

        def hold_up() -> None:
            until = time.monotonic() + TIMEOUT_S
            with contextlib.suppress(ProcessLookupError):  # it is gone
                while time.monotonic() < until:
                    os.kill(pid, signal.SIGSTOP)
                    time.sleep(0.005)
                    os.kill(pid, signal.SIGCONT)
                    time.sleep(0.0005)

        threading.Thread(target=hold_up).start()

    def spoil(session: Session) -> None:
        """The next un-noised weights to arrive are too few, which the server says in its own words."""
        copy = Session.copy_row

        def cut(self: Session, table: sql.Identifier, types: Any, values: Any) -> None:
            copy(self, table, types, [values[0][:-1]])

        monkeypatch.setattr(Session, "copy_row", cut)

    def interrupt(session: Session) -> None:
        raise KeyboardInterrupt

    errors = []
    for name, training in (("bolt-on", LONG), ("whitened", LONG_DESCENT), ("duals", LONG_DUALS)):
        for what in (cancel, terminate, hurry, interrupt):
            errors.append(fail(house, spec(), training, f"{name}, {what.__name__}", what, watcher))
    errors.append(fail(house, spec(), LONG_DESCENT, "spoiled", spoil, watcher))
    printed = capfd.readouterr()
    assert sweep(house, watcher, printed.out + printed.err, errors=errors) == {}


@pytest.mark.parametrize("training", [LONG, LONG_DUALS], ids=lambda training: training.method)
def test_nothing_is_left_by_a_killed_backend(
    training: TrainSpec, house: House, watcher: Watcher, capfd: pytest.CaptureFixture[str]
) -> None:
    def kill(session: Session) -> None:
        os.kill(session.driver.info.backend_pid, signal.SIGKILL)

    def starts() -> int:
        return (house.data / "log" / "server.log").read_text().count("ready to accept connections")

    before = starts()
    error = fail(house, spec(), training, f"{training.method} killed", kill, watcher)
    until = time.monotonic() + TIMEOUT_S
    while starts() == before:  # the whole server starts again
        assert time.monotonic() < until
        time.sleep(0.05)
    printed = capfd.readouterr()
    assert sweep(house, watcher, printed.out + printed.err, errors=[error]) == {}


def test_what_a_row_makes_fail_is_told_to_the_server_log_alone(
    house: House, watcher: Watcher, capfd: pytest.CaptureFixture[str]
) -> None:
    """PostgreSQL itself writes the value that a view or a filter of the owner's fails on to its log."""
    errors: list[BaseException] = []
    data = spec(table="broken", definition_is_public=True)
    errors.append(fail(house, data, TrainSpec(method="bolt-on", passes=1), "broken", None, watcher))
    filtered = spec(where="note::int > 0", definition_is_public=True)
    with pytest.raises(SpecError, match="may quote a row") as refused:
        pg_dpml.plan(house.curator, filtered, PRIVACY)
    errors.append(refused.value)
    with pytest.raises(DpmlError) as compared:
        pg_dpml.compare(house.curator, data, methods=["bolt-on"], epsilons=[1.0], splits=1, owner=True)
    errors.append(compared.value)
    state, message = request(house, "broken", "asked in vain")
    assert state == "failed"
    assert message is not None
    assert message.startswith("the run failed on the server")
    logged = b"".join(house.new_log())
    assert b'invalid input syntax for type integer: "note Q93-7' in logged
    printed = capfd.readouterr()
    assert sweep(house, watcher, printed.out + printed.err, errors=errors) == {}


# The command line


def test_nothing_is_seen_of_commands(house: House, watcher: Watcher, tmp_path: Path) -> None:
    (tmp_path / "spec.toml").write_text('table = "patients"\n' + SPEC)
    (tmp_path / "grid.toml").write_text(
        '[grid]\nlambda = [0.0, 0.1]\n[training]\nmethod = "bolt-on"\npasses = 2\n'
    )
    data = str(tmp_path / "spec.toml")
    epsilon, as_json = ("--epsilon", "1"), ("--format", "json")
    bolt_on = ("--method", "bolt-on")
    commands = [
        ("train", data, *epsilon, *bolt_on, "--lambda", "0.1", "--name", "by command"),
        ("train", data, *epsilon, "--name", "by command too", *as_json),
        ("tune", data, *epsilon, "--grid", str(tmp_path / "grid.toml"), "--name", "tuned by command"),
        ("evaluate", "by command", "--table", "others", *epsilon, *as_json),
        ("compare", data, "--owner", "--epsilons", "1", "--splits", "1", "--methods", "bolt-on,lbfgs"),
        ("report", "by command", "--table", "others", "--public", "-o", str(house.client / "report.html")),
        ("show", "by command", *as_json),
    ]
    environment = os.environ | house.server.environment
    environment |= {"PGDATABASE": "house", "PGUSER": "curator", "TMPDIR": str(house.client)}
    ours = os.pathsep.join(map(str, (Path(pg_dpml.__file__).parents[1], leaks.TESTS[0].parent)))
    environment |= {"PYTHONPATH": ours, "PYTHONDONTWRITEBYTECODE": "1"}
    secrets = tmp_path / "secrets"
    driver = "import sys; from helpers import leaks; leaks.run_commands(*sys.argv[1:])"
    run = subprocess.run(
        [sys.executable, "-c", driver, str(secrets), json.dumps(commands)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=TIMEOUT_S,
        check=True,
    )
    house.unnoised.merge(pickle.loads(secrets.read_bytes()))
    # The comparison was shown to the owner, with the label that is not declared, on the terminal alone.
    assert run.stdout.count("NOT PRIVATE") > 0
    assert run.stdout.count("'outcome-X55'") == 1
    assert (house.client / "report.html").stat().st_size > 0
    assert sweep(house, watcher, run.stdout.replace("'outcome-X55'", "") + run.stderr) == {}


# The search

HIDING_PLACES: dict[str, Callable[[FloatArray], bytes]] = {
    "repr": lambda w: repr(w.tolist()).encode(),
    "numpy": lambda w: str(w).encode(),
    "8 digits": lambda w: " ".join(f"{value:.7e}" for value in w).encode(),
    "8 digits, cut off": lambda w: b" ".join(repr(value).encode()[:11] for value in abs(w).tolist()),
    "15 digits": lambda w: ",".join(f"{value:.15g}" for value in w).encode(),
    "an array in JSON in a log": lambda w: f'"line\\n{w[0]!r}\\t{w[1]!r}"'.encode(),
    "without the point": lambda w: f"{abs(w[0]) * 1e3:.12f}".encode(),
    "float4 as text": lambda w: str(w.astype(np.float32).tolist()).encode(),
    "float8": lambda w: b"x" + w.tobytes(),
    "float8, network order": lambda w: b"xyz" + w.astype(">f8").tobytes(),
    "float4": lambda w: b"x" + w.astype("<f4").tobytes(),
    "float4, network order": lambda w: b"x" + w.astype(">f4").tobytes(),
    "float4, each with its length": lambda w: b"".join(b"\0\0\0\4" + struct.pack(">f", v) for v in w),
    "hexadecimal": lambda w: b"\\x" + w.tobytes().hex().encode(),
    "hexadecimal, cut": lambda w: b"f" + w.tobytes().hex().upper().encode(),
    "base64": lambda w: b"data:" + base64.b64encode(b"ab" + w.tobytes()),
    "escapes of a bytea": lambda w: "".join(f"\\{byte:03o}" for byte in w.tobytes()).encode(),
    "bytes of Python": lambda w: repr(w.tobytes()).encode(),
    "minus the value": lambda w: (-w).tobytes(),
}


@pytest.mark.parametrize("place", HIDING_PLACES)
def test_the_search_finds_numbers_in_any_form(place: str) -> None:
    weights = np.array([0.12345678912345, -3.9876543298765, 4.4332211009988e-5, 271828.18284590])
    secrets = Secrets()
    secrets.add(weights)
    shown = HIDING_PLACES[place](weights)
    assert secrets.find(Evidence(shown)) != []
    assert secrets.find(Evidence(b"before " + shown + b" after")) != []
    assert secrets.find(Evidence(HIDING_PLACES[place](weights * 1.00001))) == []


def test_the_search_leaves_others_numbers_alone() -> None:
    rng = np.random.default_rng(3)
    secrets = Secrets()
    secrets.add(rng.normal(size=5000))
    secrets.add([0.0, 0.5, -1.0, 300.0, 0.125, 2.0**-24])
    others = rng.normal(size=5000)
    text = (
        b"0.5 300 0.125 2026-11-28 09:22:04.123 duration: 0.123 ms weights_0123456789abcdef "
        + str(others.tolist()).encode()
    )
    assert secrets.find(Evidence(text + others.tobytes() + others.astype("<f4").tobytes())) == []


def test_the_search_knows_a_released_number_from_the_secret_that_it_is_like() -> None:
    released = np.array([0.03234013915061951, -1.2345678806304932])  # of few bits, as on a grid
    like = released * (1 + 1e-9)  # the float4 of each is the released number
    rows, unnoised = Secrets(), Secrets()
    rows.add(like)
    text = f"{{{released[0]!r},{released[1]!r}}}".encode()
    found = Sightings()
    found.look("not released", text, (rows, unnoised))
    assert len(found.pop("not released")) == 2
    unnoised.publish(released + 0.125, released)
    found.look("released", text, (rows, unnoised))
    assert found == {}
    found.look("a secret beside it", text + repr(like.tolist()).encode(), (rows, unnoised))
    assert len(found["a secret beside it"]) == 2
    for bare in (like, released):
        without_noise = Secrets()
        without_noise.add(like)
        without_noise.publish(bare, released)
        assert len(without_noise.find(Evidence(text, public=without_noise.public))) == 2


# Planted leaks

STORED: dict[str, float] = {}
LEAKS: dict[str, tuple[str, Callable[[Session, FloatArray], None]]] = {}


def leak(place: str) -> Callable[[Callable[[Session, FloatArray], None]], Callable[..., None]]:
    def remember(function: Callable[[Session, FloatArray], None]) -> Callable[..., None]:
        LEAKS[function.__name__] = place, function
        return function

    return remember


@leak("notices")
def in_a_notice(session: Session, weights: FloatArray) -> None:
    session.execute(sql.SQL("DO {}").format(sql.Literal(f"BEGIN RAISE NOTICE 'w = {weights}'; END")))


@leak("server log")
def as_a_parameter(session: Session, weights: FloatArray) -> None:
    session.fetch(sql.SQL("SELECT %(w)s::float8[]"), {"w": weights.tolist()})


@leak("server log")
def as_a_binary_parameter(session: Session, weights: FloatArray) -> None:
    session.fetch(sql.SQL("SELECT %(w)s"), {"w": array_parameter(weights)})


@leak("server log")
def as_bytes(session: Session, weights: FloatArray) -> None:
    session.fetch(sql.SQL("SELECT %(w)s"), {"w": weights.tobytes()})


@leak("server log")
def in_a_statement(session: Session, weights: FloatArray) -> None:
    session.fetch(sql.SQL("SELECT {}").format(sql.Literal(" ".join(f"{weight:.8g}" for weight in weights))))


@leak("server log")
def in_a_failed_copy(session: Session, weights: FloatArray) -> None:
    session.execute(sql.SQL("SAVEPOINT s"))
    session.execute(sql.SQL("CREATE TEMP TABLE w (weights int)"))
    with contextlib.suppress(psycopg.Error), session.driver.cursor().copy("COPY w FROM STDIN") as copy:
        copy.write(f"{weights[0]!r}\n")
    session.execute(sql.SQL("ROLLBACK TO s"))


@leak("server log")
def in_a_constraint(session: Session, weights: FloatArray) -> None:
    session.execute(sql.SQL("SAVEPOINT s"))
    session.execute(sql.SQL("CREATE TEMP TABLE w (weights float8[] CHECK (cardinality(weights) = 0))"))
    with contextlib.suppress(psycopg.Error):
        session.copy_row(sql.Identifier("w"), ["float8[]"], [weights])
    session.execute(sql.SQL("ROLLBACK TO s"))


@leak("activity")
def in_the_name_of_the_session(session: Session, weights: FloatArray) -> None:
    session.execute(sql.SQL("SET application_name = {}").format(sql.Literal(f"loss {weights[0]!r}")))
    time.sleep(0.2)


@leak("analyst: dpml.models")
def in_the_stored_model(session: Session, weights: FloatArray) -> None:
    STORED["loss"] = float(weights[0])


@leak("superuser: dpml_work.left_over")
def in_a_table_left(session: Session, weights: FloatArray) -> None:
    session.execute(sql.SQL("CREATE UNLOGGED TABLE dpml_work.left_over (w float8[])"))
    session.copy_row(sql.Identifier("dpml_work", "left_over"), ["float8[]"], [weights])
    session.driver.commit()  # the transaction of a run is rolled back


@leak("files of the server")
def in_a_logged_table(session: Session, weights: FloatArray) -> None:
    session.execute(sql.SQL("CREATE TABLE dpml_work.logged (w float8[])"))
    session.copy_row(sql.Identifier("dpml_work", "logged"), ["float8[]"], [weights])
    session.execute(sql.SQL("DROP TABLE dpml_work.logged"))


@leak("files of the client")
def in_a_file(session: Session, weights: FloatArray) -> None:
    handle, _ = tempfile.mkstemp()
    with os.fdopen(handle, "wb") as file:
        np.save(file, weights.astype(np.float32))


@leak("terminal")
def on_the_terminal(session: Session, weights: FloatArray) -> None:
    print(weights, file=sys.stderr)  # noqa: T201


@leak("logs of Python")
def in_a_log_of_python(session: Session, weights: FloatArray) -> None:
    logging.getLogger("pg_dpml").debug("weights %s", weights)


@leak("exception")
def in_what_an_exception_hides(session: Session, weights: FloatArray) -> None:
    raise ValueError(f"no model: {weights}")


# Those that show in one place each, and in no other's, share a run.
SILENT = ("in_the_stored_model", "in_a_file", "on_the_terminal", "in_a_log_of_python")


@pytest.mark.parametrize(
    "names", [SILENT, *((name,) for name in LEAKS if name not in SILENT)], ids=lambda names: names[0]
)
def test_a_planted_leak_is_found(
    names: tuple[str, ...],
    house: House,
    watcher: Watcher,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    places = {LEAKS[name][0] for name in names}
    release, run_charged, record = bolt_on.release, TRAIN.run_charged, Sgd.record

    def leaking_release(plan: BoltOnPlan, weights: FloatArray) -> FloatArray:
        released = release(plan, weights)
        for name in names:
            assert watcher.run is not None
            LEAKS[name][1](watcher.run, weights)
        return released

    def hiding(database: Database, **parts: Any) -> Any:
        """As it should not be: raised inside the except block."""

        hidden: list[Exception] = []

        def body(*given: Any) -> Any:
            try:
                return parts["body"](*given)
            except Exception as error:
                hidden.append(error)
                raise

        try:
            return run_charged(database, **(parts | {"body": body}))
        except RunFailedError:
            try:
                raise hidden[0]
            except Exception:
                raise RunFailedError("the run failed") from None

    monkeypatch.setattr(bolt_on, "release", leaking_release)
    monkeypatch.setattr(TRAIN, "run_charged", hiding if "exception" in places else run_charged)
    monkeypatch.setattr(Sgd, "record", lambda self, n_rows: record(self, n_rows) | STORED)
    STORED.clear()
    errors: list[BaseException] = []
    try:
        train(house, f"planted {names[0]}", spec(), PRIVACY, TrainSpec(method="bolt-on", passes=1))
    except RunFailedError as error:
        errors.append(error)
    printed = capfd.readouterr()
    found = sweep(house, watcher, printed.out + printed.err, errors=errors)
    for path in house.client.iterdir():
        path.unlink()
    with psycopg.connect(house.quiet, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS dpml_work.left_over")
        connection.execute("DELETE FROM dpml.models")
    assert places <= set(found)
