# SPDX-License-Identifier: PostgreSQL
"""Whole runs with noise in every step: scs13, bst14 and dp-sgd."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import psycopg
import pytest

import pg_dpml
from helpers import people
from helpers.people import BAD_PEOPLE, create_people, make_people
from helpers.sqltools import scalar
from pg_dpml import DataSpec, PrivacySpec, Relation, TrainSpec
from pg_dpml.blocks import distributed, packing
from pg_dpml.database.session import Session, sql
from pg_dpml.errors import GuaranteeError, RunFailedError
from pg_dpml.privacy import resolution
from pg_dpml.training import sgd
from pg_dpml.training.sgd import Sgd

pytestmark = [pytest.mark.usefixtures("clean"), pytest.mark.dealt]

N = 600
PEOPLE = [*make_people(N - len(BAD_PEOPLE)), *BAD_PEOPLE]
GENEROUS = PrivacySpec(50.0, 1e-6)
METHODS = ("scs13", "bst14", "dp-sgd")
NEXT_TO_NOTHING = 1e-9


@pytest.fixture(scope="module", autouse=True)
def tables(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        create_people(connection, PEOPLE)
        create_people(connection, [], "nobody")
        create_people(connection, PEOPLE[:1], "hermit")
        create_people(connection, make_people(3 * N), "crowd")
        connection.execute(
            "CREATE TABLE visits AS SELECT i % 300 AS patient, (i % 10) / 10.0 AS dose, i % 10 > 4 AS ill "
            "FROM generate_series(1, 6000) AS i"
        )


VISITS = DataSpec.from_mapping(
    {
        "table": "visits",
        "unit": "patient",
        "max_rows_per_unit": 15,
        "label": {"column": "ill", "positive": True, "negative": False},
        "columns": {"dose": {"lower": 0, "upper": 1}},
    }
)


def spec_of(method: str, **options: Any) -> TrainSpec:
    """Of dp-sgd with Poisson batches, which bst14 has anyway."""
    return TrainSpec(method, **options, **({"sampling": "poisson"} if method == "dp-sgd" else {}))


class Spy:
    """The statements that take steps, with their options, and the steps that a model is made of."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        self.options: list[dict[str, Any]] = []
        self.steps: list[int] = []
        statement, fetch_one = sgd._pass_statement, Session.fetch_one

        def spied_statement(run: Sgd, *, in_memory: bool) -> sql.SQL:
            self.names.append(
                "sgd_epoch" if run.sampling is None else "sgd_poisson" if in_memory else "sgd_poisson_steps"
            )
            self.options.append(run.options(0))
            return statement(run, in_memory=in_memory)

        def spied_fetch(session: Any, query: Any, *given: Any, **named: Any) -> tuple[Any, ...]:
            found = fetch_one(session, query, *given, **named)
            if "(state).steps" in repr(query):
                self.steps.append(found[2])
            return found

        monkeypatch.setattr(sgd, "_pass_statement", spied_statement)
        monkeypatch.setattr(Session, "fetch_one", spied_fetch)


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> Spy:
    return Spy(monkeypatch)


@pytest.mark.parametrize("task", ["binary", "multiclass", "regression"])
@pytest.mark.parametrize("method", METHODS)
def test_learns(database: str, spy: Spy, method: str, task: str) -> None:
    result = pg_dpml.train(
        database, people.spec(task), GENEROUS, TrainSpec(method=method, average="tail"), name="m"
    )
    work, noise = result.plan.work, result.plan.noise
    assert isinstance(work, Sgd)
    assert noise is not None
    assert spy.steps == [work.passes * math.ceil(N / work.batch_size)]
    assert result.model.method == method
    assert result.model.private
    assert result.model.training["options"]["noise"] == "gaussian"
    assert np.all(np.isfinite(result.model.weights))
    found = pg_dpml.evaluate(database, "m", "people", public=True)
    if task == "regression":
        assert found.r_squared is not None
        assert found.r_squared > (0.6 if method == "dp-sgd" else 0.0)
    else:
        assert found.accuracy is not None
        assert found.accuracy > (0.85 if task == "binary" else 0.6)


@pytest.mark.parametrize("method", METHODS)
def test_what_is_charged_is_what_the_plan_says(
    database: str, connection: psycopg.Connection, method: str
) -> None:
    privacy = PrivacySpec(0.7, 1e-5, Relation.ADD_REMOVE)
    decided = pg_dpml.plan(database, people.spec(), privacy, TrainSpec(method=method))
    result = pg_dpml.train(database, people.spec(), privacy, TrainSpec(method=method), name="m")
    assert result.plan == decided
    ((mechanism, epsilon, delta, relation, charged),) = connection.execute(
        "SELECT mechanism, epsilon, delta, relation, method FROM dpml.ledger"
    ).fetchall()
    assert (float(epsilon), float(delta), relation, charged) == (0.7, 1e-5, "add_remove", method)
    assert decided.noise is not None
    assert mechanism["scale"] == decided.noise.__dict__["scale"] > 0.0
    assert result.model.training["options"]["noise_scale"] == mechanism["scale"]


@pytest.mark.parametrize("loss", ["logistic", "huber_svm"])
@pytest.mark.parametrize("method", METHODS)
def test_losses_and_one_vs_all(database: str, method: str, loss: str) -> None:
    for task in ("binary", "multiclass"):
        training = TrainSpec(method=method, loss=loss, passes=2, lambda_=0.01, average="all")
        result = pg_dpml.train(database, people.spec(task), GENEROUS, training, name=task)
        assert len(result.model.weights) == people.N_FEATURES * (3 if task == "multiclass" else 1)


def test_pure_privacy(database: str) -> None:
    result = pg_dpml.train(
        database, people.spec(), PrivacySpec(20.0, 0.0), TrainSpec(method="scs13", passes=3), name="m"
    )
    assert result.model.training["options"]["noise"] == "k-norm"
    assert result.plan.guarantee is not None
    assert result.plan.guarantee.delta == resolution.sampler_delta(3 * people.N_FEATURES)
    for method in ("bst14", "dp-sgd"):
        with pytest.raises(GuaranteeError, match="take method = bolt-on"):
            pg_dpml.train(
                database, people.spec(), PrivacySpec(1.0, 0.0), TrainSpec(method=method), name=method
            )


@pytest.mark.parametrize("method", METHODS)
def test_units(database: str, spy: Spy, method: str) -> None:
    training = TrainSpec(method=method, batch_size=7, passes=3)
    result = pg_dpml.train(database, VISITS, GENEROUS, training, name="m")
    assert spy.steps == [3 * math.ceil(300 / 7)]
    assert all(options["max_rows_per_unit"] == 15 for options in spy.options)
    row = pg_dpml.train(
        database, replace(VISITS, unit=None, max_rows_per_unit=1), GENEROUS, training, name="rows"
    )
    assert result.plan.noise is not None
    assert row.plan.noise is not None
    assert result.plan.noise.__dict__["sensitivity"] == 15 * row.plan.noise.__dict__["sensitivity"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("table", ["nobody", "hermit"])
def test_small_tables(database: str, method: str, table: str) -> None:
    result = pg_dpml.train(
        database, people.spec(table=table), PrivacySpec(1.0, 0.01), TrainSpec(method=method), name="m"
    )
    if table == "nobody":
        assert not np.any(result.model.weights)
    else:
        assert np.all(result.model.weights != 0.0)


def test_fresh_order_momentum_and_radius(database: str, spy: Spy) -> None:
    training = TrainSpec(
        method="scs13",
        fresh_order=True,
        momentum=0.8,
        radius=0.5,
        passes=4,
        batch_size=50,
        schedule="constant",
        step_size=5.0,
    )
    result = pg_dpml.train(database, people.spec(), PrivacySpec(1.0, 1e-6), training, name="m")
    assert spy.steps == [48]
    assert np.linalg.norm(result.model.weights) == pytest.approx(0.5, rel=1e-9)
    assert spy.options[0]["momentum"] == 0.8
    assert spy.options[0]["capped"] is False


@pytest.mark.parametrize("spec", ["crowd", "visits"])
@pytest.mark.parametrize("method", ["bst14", "dp-sgd"])
def test_rows_beyond_the_memory_allowed_are_sorted(
    database: str, connection: psycopg.Connection, spy: Spy, method: str, spec: str
) -> None:
    data = VISITS if spec == "visits" else people.spec("multiclass", table="crowd")
    training = spec_of(method, passes=4, batch_size=20)
    pg_dpml.train(database, data, GENEROUS, training, name="memory")
    name = scalar(connection, "SELECT current_database()")
    connection.execute(f"ALTER DATABASE \"{name}\" SET dpml.work_mem = '64kB'".encode())
    try:
        pg_dpml.train(database, data, GENEROUS, training, name="sorted")
    finally:
        connection.execute(f'ALTER DATABASE "{name}" RESET dpml.work_mem'.encode())
    half = len(spy.names) // 2
    assert spy.names == ["sgd_poisson"] * half + ["sgd_poisson_steps"] * half
    assert len(set(spy.steps)) == 1


def test_the_form_of_a_pass_does_not_depend_on_the_rows(
    database: str, connection: psycopg.Connection, spy: Spy
) -> None:
    """Sparse rows of NULLs are stored in a seventh of the bytes that rows of levels take."""
    columns = [f"c{i}" for i in range(6)]
    levels = [f"level {i}" for i in range(30)]
    for table, value in (("nulls", "NULL"), ("levels", "'level 1'")):
        connection.execute(
            f"CREATE TABLE {table} AS SELECT i % 2 = 0 AS ill, "
            f"{', '.join(f'{value}::text AS {name}' for name in columns)} "
            "FROM generate_series(1, 2000) AS i".encode()
        )
    name = scalar(connection, "SELECT current_database()")
    used = []
    for memory in (64, 120, 155, 158, 400):  # 2000 rows of up to 16 + 8 + 7 * 8 bytes: 157 kB
        connection.execute(f"ALTER DATABASE \"{name}\" SET dpml.work_mem = '{memory}kB'".encode())
        for table in ("nulls", "levels"):
            data = DataSpec.from_mapping(
                {
                    "table": table,
                    "label": {"column": "ill", "positive": True, "negative": False},
                    "columns": {column: {"levels": levels, "centered": False} for column in columns},
                }
            )
            training = spec_of("dp-sgd", passes=1, batch_size=500)
            pg_dpml.train(database, data, GENEROUS, training, name=f"{table} {memory}")
        used.append(spy.names[-2:])
    connection.execute(f'ALTER DATABASE "{name}" RESET dpml.work_mem'.encode())
    assert used == [["sgd_poisson_steps"] * 2] * 3 + [["sgd_poisson"] * 2] * 2


def noiseless_models(
    database: str, monkeypatch: pytest.MonkeyPatch, count: int, *, in_memory: bool
) -> npt.NDArray[np.float64]:
    """Models of dp-sgd whose noise is far below what the coins do."""
    monkeypatch.setattr(sgd, "_fits_in_memory", lambda job: in_memory)
    options = Sgd.options

    def quiet(run: Sgd, n_rows: int) -> dict[str, Any]:
        return options(run, n_rows) | {"noise_scale": NEXT_TO_NOTHING}

    monkeypatch.setattr(Sgd, "options", quiet)
    training = spec_of("dp-sgd", passes=1, batch_size=60, step_size=0.5, momentum=0.0, average="none")
    found = []
    for i in range(count):
        name = f"{in_memory} {i}"
        found.append(pg_dpml.train(database, people.spec(), GENEROUS, training, name=name).model.weights)
    monkeypatch.undo()
    return np.array(found)


@pytest.mark.slow
@pytest.mark.statistical
@pytest.mark.one_major
def test_both_samplers_have_one_distribution(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = noiseless_models(database, monkeypatch, 30, in_memory=True)
    sorted_ = noiseless_models(database, monkeypatch, 30, in_memory=False)
    assert np.all(np.std(memory[:, :3], axis=0) > 1e3 * NEXT_TO_NOTHING)  # the coins differ
    for models in (memory, sorted_):
        assert len(np.unique(models, axis=0)) == 30
    difference = memory.mean(axis=0) - sorted_.mean(axis=0)
    error = np.sqrt((memory.var(axis=0) + sorted_.var(axis=0)) / 30)
    assert np.all(np.abs(difference) <= 6.0 * error)
    ratio = memory.std(axis=0) / sorted_.std(axis=0)
    assert np.all((ratio > 0.4) & (ratio < 2.5))


@pytest.mark.parametrize("block", ["min", "max"])
@pytest.mark.parametrize("spec", ["people", "visits"])
@pytest.mark.parametrize("form", ["in memory", "sorted"])
def test_a_pass_that_misses_rows_is_refused(
    database: str,
    connection: psycopg.Connection,
    monkeypatch: pytest.MonkeyPatch,
    form: str,
    spec: str,
    block: str,
) -> None:
    """With units, too, where the rows that are left could be all there are."""
    pack = packing.pack

    def short(session: Any, source: Any, *, ordered: bool) -> Any:
        packed = pack(session, source, ordered=ordered)
        assert packed.n_blocks > 1
        session.execute(
            sql.SQL(
                f"DELETE FROM {{blocks}} WHERE block_no = (SELECT {block}(block_no) FROM {{blocks}})"
            ).format(blocks=packed.blocks)
        )
        return packed

    monkeypatch.setattr(distributed, "pack", short)
    monkeypatch.setattr(sgd, "_fits_in_memory", lambda job: form == "in memory")
    data = VISITS if spec == "visits" else people.spec()
    for method in METHODS:
        # The numbers of blocks are checked on the server where it must have them in order.
        ordered = block == "min" and (method == "scs13" or form == "in memory")
        message = "failed on the server" if ordered else "did not see every packed row"
        with pytest.raises(RunFailedError, match=message):
            pg_dpml.train(database, data, GENEROUS, spec_of(method, passes=1), name="short")
    assert scalar(connection, "SELECT count(*) FROM dpml.models") == 0
