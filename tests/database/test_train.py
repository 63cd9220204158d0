# SPDX-License-Identifier: PostgreSQL
"""Whole runs in a real server: what the oracle says, in the promised order, and with nothing left behind."""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import re
import threading
import time
import traceback
from collections.abc import Iterator
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np
import psycopg
import pytest
import sqlalchemy as sa
from psycopg.pq import TransactionStatus

import pg_dpml
from helpers import oracles, people
from helpers.people import BAD_PEOPLE, FloatArray, create_people, make_people
from helpers.plans import examples
from helpers.sqltools import scalar, work_tables
from pg_dpml.blocks import blocks as blocks_module
from pg_dpml.blocks import distributed, packing, source
from pg_dpml.blocks.packing import PackedRows
from pg_dpml.blocks.source import Source
from pg_dpml.database.database import Database
from pg_dpml.database.session import Session, sql
from pg_dpml.errors import (
    DpmlError,
    GuaranteeError,
    RunFailedError,
    RunInterrupted,
    SpecError,
    UnavailableError,
)
from pg_dpml.ledger import charging
from pg_dpml.ledger import models as registry
from pg_dpml.methods import bolt_on
from pg_dpml.methods.bolt_on import BoltOnPlan
from pg_dpml.privacy import resolution
from pg_dpml.runs.grid import Grid
from pg_dpml.spec.columns import Column, Label
from pg_dpml.spec.privacy import PrivacySpec
from pg_dpml.tables.stamp import OWNER_ONLY
from pg_dpml.training import sgd as sgd_passes
from pg_dpml.training.sgd import Sgd
from pg_dpml.training.spec import TrainSpec

pytestmark = [pytest.mark.usefixtures("clean"), pytest.mark.dealt]

# The package's function of the same name hides the module.
TRAIN = importlib.import_module("pg_dpml.runs.train")

N = 200
PRIVACY = PrivacySpec(1.0, 1e-6)
PEOPLE = [*make_people(N - len(BAD_PEOPLE)), *BAD_PEOPLE]


@pytest.fixture(scope="module", autouse=True)
def tables(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        create_people(connection, PEOPLE)


def ledger(connection: psycopg.Connection) -> list[tuple[Any, ...]]:
    columns = "id, table_name, model, method, epsilon, delta, relation, n_units, mechanism"
    return connection.execute(f"SELECT {columns} FROM dpml.ledger".encode()).fetchall()


# Against the oracle


class Spy:
    """What a run keeps to itself: its packed rows, in order, of each packing; the model before the noise."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.orders: list[tuple[FloatArray, FloatArray]] = []
        self.without_noise: FloatArray | None = None
        pack, repack, release = packing.pack, packing.repack, bolt_on.release

        def spied_pack(session: Session, source: Source, *, ordered: bool) -> PackedRows:
            return self.look(session, pack(session, source, ordered=ordered))

        def spied_repack(session: Session, source: Source, packed: PackedRows) -> PackedRows:
            return self.look(session, repack(session, source, packed))

        def spied_release(plan: BoltOnPlan, weights: FloatArray) -> FloatArray:
            self.without_noise = weights.copy()
            return release(plan, weights)

        monkeypatch.setattr(distributed, "pack", spied_pack)
        monkeypatch.setattr(blocks_module, "repack", spied_repack)
        monkeypatch.setattr(bolt_on, "release", spied_release)

    def look(self, session: Session, packed: PackedRows) -> PackedRows:
        found = session.fetch(
            sql.SQL(
                "SELECT u.x, u.y FROM {} AS b, dpml.unpack(b.block) WITH ORDINALITY AS u(x, y, place) "
                "ORDER BY b.block_no, u.place"
            ).format(packed.blocks)
        )
        # They come as the shortest decimals that float32 can tell apart.
        x, y = (np.array(part, np.float32).astype(np.float64) for part in zip(*found, strict=True))
        self.orders.append((x, y))
        return packed

    def expected(self, sgd: Sgd, n_rows: int) -> FloatArray:
        """The oracle's un-noised model of the same passes over the same orders."""
        smoothness = sgd.loss.smoothness
        step = oracles.schedule(
            sgd.schedule.kind,
            step_size=sgd.schedule.step_size,
            offset=n_rows**sgd.exponent,
            lambda_=sgd.lambda_,
            max_step=1.0 / (smoothness + sgd.lambda_),
        )
        orders = self.orders if sgd.fresh_order else self.orders * sgd.passes
        found = [np.zeros((sgd.loss.n_classes, self.orders[0][0].shape[1]))]
        for x, y in orders:
            done = len(found) - 1
            found += oracles.iterates(
                x,
                y,
                name=sgd.loss.kind,
                step=lambda t, done=done: step(t + done),  # type: ignore[misc]
                lambda_=sgd.lambda_,
                radius=sgd.radius,
                batch_size=sgd.batch_size,
                n_outputs=sgd.loss.n_classes,
                start=found[-1],
                clip=sgd.loss.clip,
                h=sgd.loss.huber_h,
            )[1:]
        final = oracles.average(found, sgd.average_from) if sgd.average_from else found[-1]
        return np.asarray(final).reshape(-1)


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> Spy:
    return Spy(monkeypatch)


def close(found: FloatArray, wanted: FloatArray) -> None:
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12 * float(np.max(np.abs(wanted))))


def by_rows(x: FloatArray, y: FloatArray) -> FloatArray:
    """Rows with their labels, sorted, for a comparison that knows no order."""
    table = np.column_stack([x, y])
    return np.asarray(table[np.lexsort(np.round(table, 5).T)])


@pytest.mark.parametrize(
    ("task", "training"),
    [
        ("binary", {}),
        ("binary", {"loss": "huber_svm", "batch_size": 7, "passes": 3, "radius": 0.5}),
        ("binary", {"lambda_": 0.05, "schedule": "strongly_convex", "passes": 2, "average": "tail"}),
        ("binary", {"passes": 3, "fresh_order": True, "average": "all", "batch_size": 3}),
        ("binary", {"schedule": "decreasing", "exponent": 0.25, "batch_size": 1}),
        ("binary", {"schedule": "sqrt_decreasing", "batch_size": 1000}),
        ("multiclass", {"passes": 2}),
        ("multiclass", {"passes": 2, "batch_size": 1, "lambda_": 0.01, "schedule": "inverse_sqrt"}),
        ("regression", {}),
        ("regression", {"passes": 4, "fresh_order": True, "lambda_": 0.1, "clip": 0.1}),
    ],
)
def test_a_private_run_is_the_oracles_run_plus_noise(
    database: str, spy: Spy, task: str, training: dict[str, Any]
) -> None:
    result = pg_dpml.train(
        database, people.spec(task), PRIVACY, TrainSpec(method="bolt-on", **training), name="m"
    )
    sgd: Any = result.plan.work
    assert len(spy.orders) == (sgd.passes if sgd.fresh_order else 1)
    expected = people.encode(result.model.encoder, PEOPLE)
    for x, y in spy.orders:
        np.testing.assert_allclose(by_rows(x, y), by_rows(*expected), rtol=3e-7, atol=1e-7)
        assert np.max(np.linalg.norm(x, axis=1)) <= 1.0 - 2.0**-20
    assert spy.without_noise is not None
    close(spy.without_noise, spy.expected(sgd, N))
    noise = result.model.weights - spy.without_noise
    assert result.plan.noise is not None
    assert result.plan.noise.expected_norm is not None
    assert 0.0 < np.linalg.norm(noise) < 6.0 * result.plan.noise.expected_norm
    assert result.passes == sgd.passes


@pytest.mark.parametrize("task", people.LABELS)
def test_a_noiseless_run_is_the_oracles_run(database: str, spy: Spy, task: str) -> None:
    training = TrainSpec(method="noiseless", passes=3, tolerance=0.0)
    result = pg_dpml.train(database, people.spec(task), None, training, name="m")
    assert spy.without_noise is None
    work: Any = result.plan.work
    sgd = dataclasses.replace(work, passes=result.passes)
    close(result.model.weights, spy.expected(sgd, N))


def test_a_noiseless_run_without_tolerance_takes_all_passes(
    database: str, spy: Spy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where the loss rises; else the average would be one of too few."""
    rising = itertools.count(1.0)
    monkeypatch.setattr(sgd_passes, "_loss", lambda *_: next(rising))
    training = TrainSpec("noiseless", passes=8, tolerance=0.0, average="tail")
    result = pg_dpml.train(database, people.spec(), None, training, name="m")
    assert result.passes == 8
    work: Any = result.plan.work
    close(result.model.weights, spy.expected(work, N))


def test_orders_are_random_and_fresh_ones_differ(database: str, spy: Spy) -> None:
    training = TrainSpec(method="bolt-on", passes=3, fresh_order=True)
    pg_dpml.train(database, people.spec(), PRIVACY, training, name="m")
    pg_dpml.train(database, people.spec(), PRIVACY, training, name="m2")
    assert len({x.tobytes() for x, _ in spy.orders}) == 6


def test_the_encoder_says_what_the_spec_says(database: str) -> None:
    data = people.spec("multiclass", intercept=False, norm="clip")
    model = pg_dpml.train(database, data, PRIVACY, name="m").model
    assert model.encoder == {
        "columns": [
            {
                "name": "age",
                "kind": "numeric",
                "scale": "center",
                "log1p": False,
                "lower": 0.0,
                "upper": 100.0,
            },
            {
                "name": "gain",
                "kind": "numeric",
                "scale": "zero_based",
                "log1p": True,
                "lower": 0.0,
                "upper": 1000.0,
            },
            {"name": "married", "kind": "boolean", "scale": "center"},
            {"name": "mood", "kind": "category", "levels": ["low", "middle", "high"], "centered": True},
            {"name": "town", "kind": "category", "levels": ["Aix", "Bonn", "Cork"], "centered": True},
            {
                "name": "height",
                "kind": "numeric",
                "scale": "standard",
                "log1p": False,
                "lower": None,
                "upper": None,
                "mean": 170.0,
                "sd": 10.0,
            },
            {
                "name": "pixels",
                "kind": "array",
                "length": 3,
                "scale": "center",
                "log1p": False,
                "lower": 0.0,
                "upper": 255.0,
            },
        ],
        "intercept": False,
        "norm": "clip",
        "format": "dense",
        "label": {"name": "grade", "kind": "classes", "classes": ["1", "2", "3"]},
    }
    assert model.n_features == people.N_FEATURES - 1
    assert model.weights.shape == (3 * model.n_features,)


def test_wide_one_hot_rows_are_sparse(database: str, connection: psycopg.Connection, spy: Spy) -> None:
    levels = tuple(f"level {i}" for i in range(50))
    connection.execute("CREATE TABLE sparse (word text, y boolean)")
    connection.execute(
        "INSERT INTO sparse SELECT 'level ' || i % 60, i % 3 = 0 FROM generate_series(1, 300) AS i"
    )
    data = pg_dpml.DataSpec(
        "sparse", Label("y", positive="true"), (Column("word", levels=levels, centered=False),)
    )
    result = pg_dpml.train(database, data, PRIVACY, TrainSpec(method="bolt-on", passes=2), name="m")
    assert result.model.encoder["format"] == "csr"
    assert spy.without_noise is not None
    work: Any = result.plan.work
    close(spy.without_noise, spy.expected(work, 300))
    connection.execute("DROP TABLE sparse")


# What a run does with its models


@pytest.mark.parametrize("task", people.LABELS)
@pytest.mark.parametrize("private", [True, False])
def test_a_model_predicts_what_it_learned(
    database: str, connection: psycopg.Connection, task: str, private: bool
) -> None:
    create_people(connection, make_people(2000, seed=2), "learned")
    create_people(connection, make_people(500, seed=3), "held_out")
    privacy = PrivacySpec(20.0, 1e-4) if private else None
    training = TrainSpec(method="bolt-on" if private else "noiseless")
    result = pg_dpml.train(database, people.spec(task, "learned"), privacy, training, name="m")
    found = pg_dpml.evaluate(database, "m", "held_out", public=True)
    assert (found.private, found.n_rows, result.model.private) == (private, 500, private)
    written = pg_dpml.predict(database, "m", "held_out", id_column="id", into="predictions")
    assert written == 500
    pairs = connection.execute(
        "SELECT h.rich, h.grade, h.price, p.prediction, p.value FROM held_out h JOIN predictions p USING (id)"
    ).fetchall()
    assert len(pairs) == 500
    if task == "regression":
        actual = np.clip([row[2] for row in pairs], 0.0, 10.0)
        error = float(np.mean((actual - [row[4] for row in pairs]) ** 2))
        assert found.mean_squared_error == pytest.approx(error, rel=1e-9)
        assert found.r_squared == pytest.approx(1.0 - error / np.var(actual), rel=1e-9)
        assert found.r_squared is not None
        assert found.r_squared > 0.5
        assert found.accuracy is None
    else:
        actual = [row[0] if task == "binary" else str(row[1]) for row in pairs]
        right = sum(a == row[3] for a, row in zip(actual, pairs, strict=True))
        assert found.accuracy == right / 500
        assert found.majority == max(actual.count(a) for a in set(actual)) / 500
        assert found.accuracy is not None
        assert found.majority is not None
        assert found.accuracy > found.majority + 0.05
        assert sum(n for _, _, n in found.confusion) == 500
        assert found.mean_squared_error is None
    connection.execute("DROP TABLE learned, held_out, predictions")


def test_what_is_stored(database: str, connection: psycopg.Connection) -> None:
    result = pg_dpml.train(database, people.spec(), PRIVACY, TrainSpec(method="bolt-on", passes=2), name="m")
    ((charge, *entry),) = ledger(connection)
    assert result.plan.noise is not None
    noise = result.plan.noise.record()
    expected = ["public.people", "m", "bolt-on", Decimal(1), Decimal("0.000001"), "replace_one", N]
    assert entry[:-1] == expected
    assert entry[-1] | noise == entry[-1]
    stored = connection.execute(
        "SELECT owner, method, private, task, loss, classes, weights, n_features, privacy, training, charge "
        "FROM dpml.models WHERE name = 'm'"
    ).fetchone()
    assert stored is not None
    assert stored[:6] == ("postgres", "bolt-on", True, "binary", "logistic", ["no", "yes"])
    np.testing.assert_array_equal(stored[6], result.model.weights)
    assert stored[7] == people.N_FEATURES
    assert (stored[8]["epsilon"], stored[8]["delta"], stored[8]["relation"]) == (1.0, 1e-6, "replace_one")
    assert (stored[9]["n_units"], stored[9]["passes"]) == (N, 2)
    assert len(stored[9]["features"]) == people.N_FEATURES
    assert stored[10] == charge == result.model.charge


def test_pure_privacy_charges_the_samplers_delta(database: str, connection: psycopg.Connection) -> None:
    privacy = PrivacySpec(0.1, 0.0, pg_dpml.Relation.ADD_REMOVE)
    pg_dpml.train(database, people.spec(), privacy, name="m")
    (entry,) = ledger(connection)
    assert entry[4:7] == (
        Decimal("0.1"),
        Decimal(repr(resolution.sampler_delta(people.N_FEATURES))),
        "add_remove",
    )
    assert entry[8]["kind"] == "k-norm"


def test_noiseless_models_are_stamped_and_charge_nothing(
    database: str, connection: psycopg.Connection
) -> None:
    training = TrainSpec(method="noiseless", tolerance=0.9)
    result = pg_dpml.train(database, people.spec(), None, training, name="m")
    assert result.passes is not None
    assert result.plan.work.passes is not None
    assert result.passes < result.plan.work.passes  # the convergence test
    assert ledger(connection) == []
    assert scalar(connection, "SELECT private FROM dpml.models WHERE name = 'm'") is False
    assert result.model.privacy == {"private": False, "unit": None, "max_rows_per_unit": 1}
    with pytest.raises(SpecError, match="not private: leave epsilon"):
        pg_dpml.train(database, people.spec(), PRIVACY, training, name="m2")
    with pytest.raises(SpecError, match="needs epsilon"):
        pg_dpml.train(database, people.spec(), None, name="m2")


@pytest.mark.parametrize("delta", [None, 0.0])
@pytest.mark.parametrize("n", [0, 1, 2, 5])
@pytest.mark.parametrize("task", people.LABELS)
def test_tiny_tables(
    database: str, connection: psycopg.Connection, task: str, n: int, delta: float | None
) -> None:
    """Fewer rows than a batch, and than features."""
    create_people(connection, make_people(n), "tiny")
    for fresh_order in (False, True):
        training = TrainSpec(method="bolt-on", passes=2, fresh_order=fresh_order, average="all")
        name = f"m{fresh_order}"
        result = pg_dpml.train(
            database, people.spec(task, "tiny"), PrivacySpec(1.0, delta), training, name=name
        )
        assert np.all(np.isfinite(result.model.weights))
        assert np.any(result.model.weights != 0.0) == (n > 0)
        assert result.plan.problem.n_units == n
    assert len(ledger(connection)) == 2
    training = TrainSpec(method="noiseless", passes=2)
    pg_dpml.train(database, people.spec(task, "tiny"), None, training, name="plain")
    connection.execute("DROP TABLE tiny")


@pytest.mark.parametrize("n", [0, 1, 3])
def test_every_method_trains_on_few_rows(database: str, connection: psycopg.Connection, n: int) -> None:
    create_people(connection, make_people(n), "tiny")
    for private in (True, False):
        for name, (task, training) in examples(private=private).items():
            privacy = PrivacySpec(1.0, 0.01) if private else None
            result = pg_dpml.train(database, people.spec(task, "tiny"), privacy, training, name=name)
            assert np.all(np.isfinite(result.model.weights))
            assert np.any(result.model.weights != 0.0) <= (n > 0)
    connection.execute("DROP TABLE tiny")


# The order of a run


def test_the_charge_is_committed_before_a_row_is_read(
    database: str, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack = packing.pack
    seen = []

    def look_first(session: Session, source: Source, *, ordered: bool) -> PackedRows:
        seen.append(len(ledger(connection)))
        packed = pack(session, source, ordered=ordered)
        seen.append(work_tables(connection))  # no other session sees the un-noised state
        return packed

    monkeypatch.setattr(distributed, "pack", look_first)
    pg_dpml.train(database, people.spec(), PRIVACY, name="m")
    assert seen == [1, 0]


@pytest.fixture
def poisoned(connection: psycopg.Connection) -> Iterator[str]:
    """A view that can be counted but not read: the server's error quotes a row."""
    connection.execute("CREATE VIEW poisoned AS SELECT *, (town || '-secret')::int AS code FROM people")
    yield "poisoned"
    connection.execute("DROP VIEW poisoned")


def test_a_failed_run_stays_charged_and_quotes_nothing(
    database: str, connection: psycopg.Connection, poisoned: str
) -> None:
    columns = (*people.FEATURES, Column("code", lower=0, upper=1))
    data = people.spec(table=poisoned, columns=columns, definition_is_public=True)
    assert pg_dpml.plan(database, data, PRIVACY).problem.n_units == N  # a plan reads no row
    assert ledger(connection) == []
    with pytest.raises(RunFailedError) as failure:
        pg_dpml.train(database, data, PRIVACY, name="m")
    (entry,) = ledger(connection)
    assert str(failure.value) == (
        "the run failed on the server and no model was stored; epsilon = 1, delta = 1e-06 "
        f"stay charged (entry {entry[0]} of dpml.ledger). The server's log has the reason; it is not shown "
        "because it may quote a row"
    )
    assert "secret" not in "".join(traceback.format_exception(failure.value))
    assert scalar(connection, "SELECT count(*) FROM dpml.models") == 0


@pytest.mark.one_major
def test_an_error_that_is_not_the_servers_is_in_our_log(
    database: str,
    connection: psycopg.Connection,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ValueError("SECRET")

    monkeypatch.setattr(importlib.import_module("pg_dpml.runs.train"), "released_model", fail)
    with pytest.raises(RunFailedError) as failure:
        pg_dpml.train(database, people.spec(), PRIVACY, name="m")
    (entry,) = ledger(connection)
    assert str(failure.value) == (
        "the run failed in dpml, not on the server, and no model was stored; epsilon = 1, delta = 1e-06 stay "
        f"charged (entry {entry[0]} of dpml.ledger). The log of dpml (Python's logger pg_dpml, else standard "
        "error) has the kind and place of the error; its text is not shown because it may quote a row"
    )
    (logged,) = caplog.records
    assert (logged.name, logged.levelname, logged.exc_info) == ("pg_dpml", "ERROR", None)
    places = r"transaction\.py:\d+, train\.py:\d+, train\.py:\d+, test_train\.py:\d+"
    assert re.fullmatch(f"dpml: the run failed by a ValueError at {places}", logged.getMessage())
    assert "SECRET" not in "".join(traceback.format_exception(failure.value))


@pytest.mark.one_major
def test_an_error_in_counting_after_the_charge_is_the_servers(
    database: str, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reported in words of ours, and in the server's log all the same."""
    train = importlib.import_module("pg_dpml.runs.train")
    start = train.start_run

    def late(session: Session, *arguments: Any) -> None:
        with Database(database).session() as other:
            other.execute(sql.SQL("CREATE OR REPLACE FUNCTION picky(text) RETURNS int RETURN $1::int"))
        start(session, *arguments)

    connection.execute("CREATE FUNCTION picky(text) RETURNS int RETURN 1")
    data = people.spec(where="picky(town) > 0", definition_is_public=True)
    monkeypatch.setattr(train, "start_run", late)
    try:
        with pytest.raises(
            RunFailedError, match=r"failed on the server and .* The server's log has the reason"
        ):
            pg_dpml.train(database, data, PRIVACY, name="m")
    finally:
        connection.execute("DROP FUNCTION picky")


@pytest.mark.parametrize("run", ["plan", "train"])
def test_an_error_before_the_charge_quotes_no_row_either(
    database: str, connection: psycopg.Connection, run: str
) -> None:
    """A filter is evaluated by the count already, and the server's own text would quote its value."""
    data = people.spec(where="town::int > 0", definition_is_public=True)
    options = {"name": "m"} if run == "train" else {}
    with pytest.raises(DpmlError) as failure:
        getattr(pg_dpml, run)(database, data, PRIVACY, **options)
    shown = "".join(traceback.format_exception(failure.value))
    assert not any(town in shown for town in people.TOWNS)
    assert ledger(connection) == []


def test_an_interrupt_while_a_statement_is_sent_is_still_one(
    database: str, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection is then busy and cannot roll back, which must not hide the interrupt."""
    wait = psycopg.Connection.wait
    armed = []

    def progress(phase: str, done: int, total: int) -> None:
        if done:
            armed.append(phase)

    def interrupted_wait(self: Any, generator: Any, *rest: Any, **options: Any) -> Any:
        if armed == ["pack"]:
            armed.append("interrupted")
            next(generator)  # sends
            raise KeyboardInterrupt
        return wait(self, generator, *rest, **options)

    monkeypatch.setattr(psycopg.Connection, "wait", interrupted_wait)
    with pytest.raises(RunInterrupted, match=r"interrupted.*epsilon = 1.*stay charged"):
        pg_dpml.train(database, people.spec(), PRIVACY, name="m", progress=progress)
    assert len(ledger(connection)) == 1


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_a_callback_that_ends_the_program_leaves_nothing_but_the_charge(
    database: str, connection: psycopg.Connection, end: type[BaseException]
) -> None:
    """What is raised has no frame of the run in it, whose variables are un-noised."""

    def progress(phase: str, done: int, total: int) -> None:
        if phase == "pass":
            raise end

    with pytest.raises(RunInterrupted, match=r"interrupted.*epsilon = 1.*stay charged") as raised:
        pg_dpml.train(database, people.spec(), PRIVACY, name="m", progress=progress)
    assert raised.value.interrupt is end
    assert raised.value.__context__ is None
    assert all(entry.name not in ("_run", "run_passes") for entry in raised.traceback)
    assert len(ledger(connection)) == 1
    assert scalar(connection, "SELECT count(*) FROM dpml.models") == 0


def test_rows_are_counted_charged_and_packed_in_one_snapshot(
    database: str, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What others do with the rows after the count is of the next run."""
    charge, packed = charging.charge, []

    def charge_and_change(*given: Any, **named: Any) -> charging.Charged:
        connection.execute("INSERT INTO people (id) SELECT generate_series(1000000, 1000004)")
        connection.execute("UPDATE people SET town = NULL")
        return charge(*given, **named)

    def pack_and_count(session: Session, source: Source, *, ordered: bool) -> PackedRows:
        blocks = packing.pack(session, source, ordered=ordered)
        packed.append(
            session.fetch(
                sql.SQL("SELECT u.y FROM {} AS b, dpml.unpack(b.block) AS u (x, y)").format(blocks.blocks)
            )
        )
        assert ledger(connection) != []  # committed before
        return blocks

    connection.execute("CREATE TABLE kept AS TABLE people")
    monkeypatch.setattr(charging, "charge", charge_and_change)
    monkeypatch.setattr(distributed, "pack", pack_and_count)
    try:
        result = pg_dpml.train(database, people.spec(), PRIVACY, name="m")
    finally:
        connection.execute("TRUNCATE people; INSERT INTO people TABLE kept; DROP TABLE kept")
    assert result.model.training["n_units"] == N
    assert [len(read) for read in packed] == [N]
    assert len(ledger(connection)) == 1


class Churn:
    """`with Churn(dsn, table):` rows come and go all the time."""

    def __init__(self, dsn: str, table: str) -> None:
        self.dsn, self.table = dsn, table
        self.rounds = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as other:
            while not self._end.is_set():
                self.rounds += 1
                other.execute(
                    f"INSERT INTO {self.table} (id, age, rich) "
                    f"SELECT g, 40, 'yes' FROM generate_series(1000000, 1000002) g".encode()
                )
                if self.rounds % 3 == 0:
                    other.execute(
                        f"DELETE FROM {self.table} WHERE ctid = ANY (ARRAY(SELECT ctid FROM {self.table} "
                        f"WHERE id >= 1000000 LIMIT 5))".encode()
                    )

    def __enter__(self) -> Churn:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        self._thread.join()


def test_every_run_on_a_busy_table_succeeds(database: str, connection: psycopg.Connection) -> None:
    connection.execute("CREATE TABLE busy AS TABLE people")
    data = people.spec(table="busy")
    ledger_rows = "SELECT array_agg(n_units ORDER BY id) FROM dpml.ledger"
    counts: list[int] = []
    with Churn(database, "busy") as churn:
        for i in range(4):
            trained = pg_dpml.train(
                database, data, PRIVACY, TrainSpec(method="dp-gd", passes=2), name=f"m{i}"
            )
            counts.append(trained.model.training["n_units"])
        tuned = pg_dpml.tune(
            database, data, PRIVACY, Grid({"passes": [1, 2]}, TrainSpec(method="dp-gd")), name="tuned"
        )
        counts.append(tuned.n_units)
        counts.append(pg_dpml.evaluate(database, "m0", "busy", privacy=PRIVACY).n_rows)
        counts.append(
            pg_dpml.train(database, data, None, TrainSpec(method="lbfgs"), name="b").plan.problem.n_units
        )
        assert churn.rounds > len(counts)
    assert len(set(counts)) > 1
    assert scalar(connection, ledger_rows) == counts[:-1]
    connection.execute("DROP TABLE busy")


CHANGES = (
    "TRUNCATE other",
    "ALTER TABLE other ALTER age TYPE text",
    "ALTER TABLE other ENABLE ROW LEVEL SECURITY",
)


@pytest.mark.parametrize("change", CHANGES)
def test_a_table_that_is_changed_while_the_run_begins(
    database: str, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """Between the snapshot and the first lock; the next try is on the table as it is then."""
    connection.execute("CREATE TABLE other AS TABLE people")
    resolve = source.resolve

    def resolve_and_change(session: Session, data: pg_dpml.DataSpec) -> Source:
        found = resolve(session, data)
        if session.driver.info.transaction_status == TransactionStatus.INTRANS:
            connection.execute(change.encode())
        return found

    monkeypatch.setattr(TRAIN, "resolve", resolve_and_change)
    with pytest.raises(DpmlError) as refusal:
        pg_dpml.train(database, people.spec(table="other", columns=people.FEATURES[1:2]), PRIVACY, name="m")
    assert "nothing was charged; try again" in str(refusal.value)
    assert ledger(connection) == []
    connection.execute("DROP TABLE other")


@pytest.mark.one_major
@pytest.mark.parametrize(
    "poolclass",
    [sa.SingletonThreadPool, sa.StaticPool],
)
def test_an_engine_that_lends_one_connection_costs_nothing(
    database: str, connection: psycopg.Connection, poolclass: type[sa.Pool]
) -> None:
    engine = sa.create_engine(
        "postgresql+psycopg://", creator=lambda: psycopg.connect(database), poolclass=poolclass
    )
    started = time.monotonic()
    with pytest.raises(SpecError, match=r"two at once.*poolclass=sqlalchemy\.NullPool"):
        pg_dpml.train(engine, people.spec(), PRIVACY, name="m")
    assert time.monotonic() - started < 5
    assert ledger(connection) == []
    lbfgs = TrainSpec(method="lbfgs")
    assert pg_dpml.train(engine, people.spec(), None, lbfgs, name="m").model.name == "m"
    assert pg_dpml.plan(engine, people.spec(), PRIVACY).problem.n_units == N
    engine.dispose()


@pytest.mark.one_major
def test_a_pool_of_one_connection_is_enough(database: str, connection: psycopg.Connection) -> None:
    """The connection of a session leaves its pool."""
    engine = sa.create_engine(
        "postgresql+psycopg://",
        creator=lambda: psycopg.connect(database),
        poolclass=sa.QueuePool,
        pool_size=1,
        max_overflow=0,
    )
    assert pg_dpml.train(engine, people.spec(), PRIVACY, name="m").model.name == "m"
    assert len(ledger(connection)) == 1
    engine.dispose()


@pytest.mark.one_major
def test_the_same_connection_lent_twice_costs_nothing(database: str, connection: psycopg.Connection) -> None:
    with psycopg.connect(database) as opened:
        engine = sa.create_engine("postgresql+psycopg://", creator=lambda: opened)
        with pytest.raises(SpecError, match=r"two at once.*poolclass=sqlalchemy\.NullPool"):
            pg_dpml.train(engine, people.spec(), PRIVACY, name="m")
    assert ledger(connection) == []


@pytest.mark.one_major
def test_a_run_whose_snapshot_is_lost_while_its_charge_waits_costs_nothing(
    database: str, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    charge = charging.charge

    def charge_and_end(*given: Any, **named: Any) -> charging.Charged:
        charged = charge(*given, **named)
        connection.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'dpml' "
            "AND datname = current_database() AND pid <> %s",
            (given[0].driver.info.backend_pid,),
        )
        return charged

    monkeypatch.setattr(charging, "charge", charge_and_end)
    with pytest.raises(UnavailableError):
        pg_dpml.train(database, people.spec(), PRIVACY, name="m")
    assert ledger(connection) == []


def test_a_name_that_is_taken_costs_nothing(database: str, connection: psycopg.Connection) -> None:
    pg_dpml.train(database, people.spec(), PRIVACY, name="it's")
    for name in ("it's", "", "x" * 201):
        with pytest.raises(SpecError, match=r"name must have|a model called"):
            pg_dpml.train(database, people.spec(), PRIVACY, name=name)
    assert len(ledger(connection)) == 1


def test_progress(database: str) -> None:
    seen: list[tuple[str, int, int]] = []

    def progress(phase: str, done: int, total: int) -> None:
        seen.append((phase, done, total))

    pg_dpml.train(
        database, people.spec(), PRIVACY, TrainSpec(method="bolt-on", passes=3), name="m", progress=progress
    )
    assert seen == [("pack", 0, 1), ("pack", 1, 1), ("pass", 1, 3), ("pass", 2, 3), ("pass", 3, 3)]


def test_bad_rows_are_silent(database: str) -> None:
    """No notice, whatever is in a row. What they encode to is in the runs against the oracle."""
    notices: list[str] = []

    def connect() -> psycopg.Connection:
        opened = psycopg.connect(database)
        opened.add_notice_handler(lambda notice: notices.append(str(notice.message_primary)))
        opened.execute("SET client_min_messages = debug1")
        opened.commit()
        return opened

    engine = sa.create_engine("postgresql+psycopg://", creator=connect)
    pg_dpml.train(engine, people.spec(), PRIVACY, name="m")
    # PostgreSQL's own: of the work tables, of its caches, of names that are looked up, of its compiler
    own = ('index "pg_toast_', "rehashing catalog cache", "does not exist", "JIT")
    assert notices
    assert [notice for notice in notices if not any(text in notice for text in own)] == []
    engine.dispose()


# Refusals


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"table": "nowhere"}, ["table nowhere does not exist"]),
        ({"table": "no.such.thing.at.all"}, ["table no.such.thing.at.all does not exist"]),
        ({"table": "people; DROP TABLE people"}, ["does not exist"]),
        ({"columns": (Column("agee", lower=0, upper=1),)}, ["column agee does not exist in people", "age"]),
        ({"label": Label("reich", positive="yes")}, ["column reich does not exist"]),
        (
            {"columns": (Column("age"),)},
            ["column age", "lower and upper", "[columns.age]", "levels", "standard"],
        ),
        ({"columns": (Column("town"),)}, ["column town (text)", "levels = [...]", "[columns.town]", "enum"]),
        ({"columns": (Column("pixels", lower=0, upper=1),)}, ["column pixels", "length"]),
        ({"columns": (Column("pixels", length=3),)}, ["column pixels", "lower and upper"]),
        ({"columns": (Column("age", lower=0, upper=1, length=3),)}, ["column age", "length", "array"]),
        ({"columns": (Column("home", lower=0, upper=1),)}, ["column home", "point"]),
        ({"columns": (Column("pixels", levels=("1",)),)}, ["column pixels", "real[]"]),
        ({"columns": (Column("married", scale="standard", mean=0, sd=1),)}, ["column married", "boolean"]),
        (
            {"label": Label("town", lower=0, upper=1), "columns": people.FEATURES[:1]},
            ["label town", "lower and upper", "number"],
        ),
    ],
)
def test_bad_specs_cost_nothing(
    database: str, connection: psycopg.Connection, data: dict[str, Any], words: list[str]
) -> None:
    connection.execute("ALTER TABLE people ADD COLUMN home point")
    try:
        for run in (pg_dpml.plan, lambda *given: pg_dpml.train(*given, name="m")):
            with pytest.raises(SpecError) as refusal:
                run(database, people.spec(**data), PRIVACY)
            for word in words:
                assert word in str(refusal.value)
    finally:
        connection.execute("ALTER TABLE people DROP COLUMN home")
    assert ledger(connection) == []


@pytest.mark.parametrize("kind", ["VIEW", "MATERIALIZED VIEW"])
def test_views_need_the_owners_word(database: str, connection: psycopg.Connection, kind: str) -> None:
    connection.execute(f"CREATE {kind} adults AS SELECT * FROM people WHERE age > 18".encode())
    with pytest.raises(GuaranteeError, match="definition_is_public = true") as refusal:
        pg_dpml.train(database, people.spec(table="adults"), PRIVACY, name="m")
    assert refusal.value.exit_code == 5
    assert ledger(connection) == []
    data = people.spec(table="adults", definition_is_public=True)
    n_rows = scalar(connection, "SELECT count(*) FROM adults")
    assert pg_dpml.train(database, data, PRIVACY, name="m").plan.problem.n_units == n_rows
    connection.execute(f"DROP {kind} adults".encode())


@pytest.mark.parametrize("condition", ["t.age > 18", "id % 2 = 0", "town LIKE '%n%' OR town = '{}'"])
def test_filters(database: str, connection: psycopg.Connection, spy: Spy, condition: str) -> None:
    data = people.spec(where=condition, definition_is_public=True)
    counted = connection.execute(f"SELECT count(*) FROM people AS t WHERE {condition}".encode()).fetchone()
    assert counted is not None
    n_rows = counted[0]
    assert pg_dpml.plan(database, data, PRIVACY).problem.n_units == n_rows
    pg_dpml.train(database, data, PRIVACY, name="m")
    assert len(spy.orders[0][0]) == n_rows < N


def test_row_security_is_refused(database: str, connection: psycopg.Connection) -> None:
    connection.execute("ALTER TABLE people ENABLE ROW LEVEL SECURITY")
    try:
        with pytest.raises(GuaranteeError, match=r"row-level security.*CREATE TABLE \.\.\. AS TABLE people"):
            pg_dpml.train(database, people.spec(), PRIVACY, name="m")
    finally:
        connection.execute("ALTER TABLE people DISABLE ROW LEVEL SECURITY")
    assert ledger(connection) == []


def test_names_that_need_quotes(database: str, connection: psycopg.Connection) -> None:
    connection.execute('CREATE SCHEMA "My Schema"')
    connection.execute('CREATE TABLE "My Schema"."The %Table\'s" ("x ""1" int, "Y%s" boolean)')
    connection.execute(
        'INSERT INTO "My Schema"."The %Table\'s" SELECT i, i > 5 FROM generate_series(1, 10) AS i'
    )
    data = pg_dpml.DataSpec(
        '"My Schema"."The %Table\'s"', Label("Y%s", positive="true"), (Column('x "1', lower=0, upper=10),)
    )
    pg_dpml.train(database, data, PRIVACY, name="m %s {}")
    table = '"My Schema"."The %Table\'s"'
    assert pg_dpml.evaluate(database, "m %s {}", table, public=True).n_rows == 10
    assert pg_dpml.predict(database, "m %s {}", table, id_column='x "1', into="out") == 10
    connection.execute('DROP SCHEMA "My Schema" CASCADE')
    connection.execute("DROP TABLE out")


def test_a_read_only_server_is_unavailable(database: str, connection: psycopg.Connection) -> None:
    dsn = f"{database} options='-c default_transaction_read_only=on'"
    with pytest.raises(UnavailableError, match="read-only"):
        pg_dpml.train(dsn, people.spec(), PRIVACY, name="m")
    assert ledger(connection) == []


def test_no_server_is_unavailable() -> None:
    with pytest.raises(UnavailableError, match="cannot reach PostgreSQL"):
        pg_dpml.train("host=/nonexistent", people.spec(), PRIVACY, name="m")


def test_sources_other_than_a_dsn_or_engine_are_refused(
    database: str, connection: psycopg.Connection
) -> None:
    with pytest.raises(SpecError, match="not an open connection"):
        pg_dpml.train(connection, people.spec(), PRIVACY, name="m")  # type: ignore[arg-type]


def test_evaluate_and_predict_refusals(database: str, connection: psycopg.Connection) -> None:
    pg_dpml.train(database, people.spec(), PRIVACY, name="m")
    with pytest.raises(GuaranteeError, match="--public"):
        pg_dpml.evaluate(database, "m", "people", public=False)
    with pytest.raises(SpecError, match="no model called nobody"):
        pg_dpml.evaluate(database, "nobody", "people", public=True)
    with pytest.raises(SpecError, match="no model called nobody"):
        pg_dpml.predict(database, "nobody", "people", id_column="id", into="p")
    with pytest.raises(SpecError, match="table people exists"):
        pg_dpml.predict(database, "m", "people", id_column="id", into="people")
    with pytest.raises(
        SpecError, match=r"id: column key does not exist in people; it has id, age.*; ALTER TABLE"
    ):
        pg_dpml.predict(database, "m", "people", id_column="key", into="p")
    connection.execute("CREATE TABLE partial AS SELECT id, age, rich FROM people")
    with pytest.raises(SpecError, match="column gain does not exist in partial"):
        pg_dpml.evaluate(database, "m", "partial", public=True)
    connection.execute("DROP TABLE partial")
    connection.execute("CREATE TABLE unlabelled AS SELECT * FROM people WHERE rich = 'maybe'")
    with pytest.raises(SpecError, match="no row of unlabelled has a label"):
        pg_dpml.evaluate(database, "m", "unlabelled", public=True)
    with pytest.raises(SpecError, match=re.escape(OWNER_ONLY)):
        pg_dpml.evaluate(database, "m", "unlabelled", owner=True)
    connection.execute("DROP TABLE unlabelled")


# Roles


@pytest.fixture
def curator(database: str, connection: psycopg.Connection) -> Iterator[str]:
    """Connection string of a role that may train on people, and of no other power."""
    connection.execute("CREATE ROLE alice LOGIN IN ROLE dpml_curator")
    connection.execute("GRANT SELECT ON people TO alice")
    yield database.replace("user='postgres'", "user='alice'")
    connection.execute("DROP OWNED BY alice")
    connection.execute("DROP ROLE alice")


def test_a_curator_needs_no_superuser(database: str, connection: psycopg.Connection, curator: str) -> None:
    training = TrainSpec(method="bolt-on", passes=2, fresh_order=True)
    result = pg_dpml.train(curator, people.spec(), PRIVACY, training, name="m")
    assert scalar(connection, "SELECT charged_by FROM dpml.ledger") == "alice"
    assert pg_dpml.evaluate(curator, "m", "people", public=True).model == result.model.name


def test_without_rights_nothing_is_charged(
    database: str, connection: psycopg.Connection, curator: str
) -> None:
    """And the errors have what to type."""
    connection.execute("REVOKE SELECT ON people FROM alice")
    denied = 'permission denied for table people: it takes (GRANT SELECT ON "people" TO "alice")'
    connection.execute(granted(curator, denied))
    connection.execute("REVOKE dpml_curator FROM alice")
    denied = 'permission denied for function encode: it takes (GRANT dpml_curator TO "alice")'
    connection.execute(granted(curator, denied))
    connection.execute('CREATE SCHEMA "hid den"')
    connection.execute('CREATE TABLE "hid den".people AS TABLE people')
    data = people.spec(table='"hid den".people')
    denied = 'schema hid den: it takes (GRANT USAGE ON SCHEMA "hid den" TO "alice"), and to write'
    connection.execute(granted(curator, denied, data))
    denied = r'table people: it takes (GRANT SELECT ON "hid den"\."people" TO "alice")'
    connection.execute(granted(curator, denied, data))
    connection.execute('DROP SCHEMA "hid den" CASCADE')
    assert ledger(connection) == []
    pg_dpml.train(curator, people.spec(), PRIVACY, name="m")


def granted(dsn: str, message: str, data: pg_dpml.DataSpec | None = None) -> bytes:
    """The statement that the error of a run names."""
    with pytest.raises(SpecError) as refusal:
        pg_dpml.train(dsn, data or people.spec(), PRIVACY, name="m")
    found = re.search(message, str(refusal.value))
    assert found is not None, refusal.value
    return found[1].encode()


def test_the_registry_reads_what_it_wrote(database: str) -> None:
    engine = sa.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(database))
    result = pg_dpml.train(engine, people.spec("multiclass"), PRIVACY, name="m")
    with Database(engine).session() as session:
        found = registry.load_model(session, "m")
    engine.dispose()
    np.testing.assert_array_equal(found.weights, result.model.weights)
    np.testing.assert_array_equal(found.whitening, result.model.whitening)
    without_arrays = partial(dataclasses.replace, weights=None, whitening=None)
    assert without_arrays(found) == without_arrays(result.model)
