# SPDX-License-Identifier: PostgreSQL
"""Tuning in a real server: portions, scores, one charge, and nothing left but the chosen model."""

from __future__ import annotations

import dataclasses
import importlib
import re
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import psycopg
import pytest

import pg_dpml
from helpers import people, replay
from helpers.people import BAD_PEOPLE, FloatArray, create_people, make_people
from helpers.sqltools import scalar
from pg_dpml import Column, DataSpec, Grid, Label, PrivacySpec, Relation, TrainSpec
from pg_dpml.blocks.packing import PackedRows
from pg_dpml.blocks.portions import equal_sizes, pack_portions
from pg_dpml.blocks.query import count_units
from pg_dpml.blocks.source import resolve
from pg_dpml.database.database import Database
from pg_dpml.database.session import Session, sql
from pg_dpml.errors import GuaranteeError, RunFailedError, RunInterrupted, SpecError
from pg_dpml.evaluation import scoring
from pg_dpml.kernels import Loss
from pg_dpml.privacy import resolution, selection
from pg_dpml.reports import result_report
from pg_dpml.runs.planning import plan_problem, problem_of
from pg_dpml.tables.labels import LeftOut
from pg_dpml.tables.measuring import ValueCount
from pg_dpml.training.job import Job, Result

pytestmark = [pytest.mark.usefixtures("clean"), pytest.mark.dealt]

PUBLIC_SCORES: Any = importlib.import_module("pg_dpml.runs.public_scores")
TUNING: Any = importlib.import_module("pg_dpml.runs.tuning")
N = 900
PRIVACY = PrivacySpec(1.0, 1e-6)
SURE = PrivacySpec(50.0, 1e-3)
"""So much that a good candidate is certain to be chosen."""
PEOPLE = [*make_people(N - len(BAD_PEOPLE)), *BAD_PEOPLE]
BAD = 1e-6
"""A ball so small that a model is lost in its noise."""
GRID = Grid({"radius": [BAD, 1e3, 2 * BAD]}, TrainSpec(method="bolt-on"))
VISITS, PATIENTS = 1200, 205
"""199 patients of six visits, and six visits of nobody known."""


@pytest.fixture(scope="module", autouse=True)
def tables(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        create_people(connection, PEOPLE)
        connection.execute(
            "CREATE TABLE visits AS SELECT i AS id, nullif(i % 200, 7) AS patient, (i % 10) / 10.0 AS dose, "
            "i % 10 > 4 AS ill FROM generate_series(1, 1200) AS i"
        )


def visits(**changes: Any) -> DataSpec:
    plain = DataSpec(
        "visits",
        Label("ill", positive="true"),
        (Column("dose", lower=0, upper=1),),
        unit="patient",
        max_rows_per_unit=4,
    )
    return dataclasses.replace(plain, **changes)


# Portions


def portions(database: str, data: DataSpec, sizes: tuple[int, ...]) -> list[list[replay.Block]]:
    """The blocks of each portion, in physical order, their numbers checked."""
    found = []
    with Database(database).session("REPEATABLE READ") as session:
        source = resolve(session, data)
        assert count_units(session, source) == sum(sizes)
        for portion in pack_portions(session, source, sizes, needs_order=True):
            rows = session.fetch(sql.SQL("SELECT block_no, block FROM {}").format(portion.packed.blocks))
            assert [number for number, _ in rows] == list(range(len(rows)))
            portion.drop()
            found.append([replay.open_block(block) for _, block in rows])
    return found


def values(blocks: list[replay.Block]) -> FloatArray:
    """The one feature before the row was normalised: its ratio to the intercept."""
    rows = np.concatenate([block.values for block in blocks]).astype(np.float64)
    return np.asarray(rows[:, 0] / rows[:, -1])


@pytest.mark.parametrize("sizes", [(1200,), (600, 600), (1, 2, 700, 497), (300, 300, 300, 299, 1)])
def test_every_row_is_in_exactly_one_portion(database: str, sizes: tuple[int, ...]) -> None:
    data = visits(unit=None, max_rows_per_unit=1, columns=(Column("id", lower=0, upper=1201),))
    found = [values(blocks) for blocks in portions(database, data, sizes)]
    assert tuple(map(len, found)) == sizes
    ids = np.concatenate([np.rint((part + 1.0) / 2.0 * 1201) for part in found])
    assert sorted(ids) == list(range(1, 1201))
    assert abs(np.corrcoef(ids, np.arange(1200))[0, 1]) < 6 / np.sqrt(1200)


@pytest.mark.parametrize("most", [1, 4, 6, 100])
@pytest.mark.parametrize("n_portions", [1, 2, 7])
def test_every_unit_is_in_exactly_one_portion(database: str, most: int, n_portions: int) -> None:
    """Features are the patient (NULL encodes as the middle of its bounds) and the visit."""
    columns = (Column("id", lower=0, upper=1201), Column("person", lower=-1000, upper=1000))
    sizes = equal_sizes(PATIENTS, n_portions)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE OR REPLACE VIEW seen AS SELECT *, patient AS person FROM visits")
    data = visits(table="seen", definition_is_public=True, columns=columns, max_rows_per_unit=most)
    people_seen: list[int] = []
    for size, blocks in zip(sizes, portions(database, data, sizes), strict=True):
        rows = np.concatenate([block.values for block in blocks]).astype(np.float64)
        starts = np.concatenate([block.starts for block in blocks if block.starts is not None])
        assert starts[0]
        assert int(np.sum(starts)) == size
        person = np.rint(1000 * rows[:, 1] / rows[:, 2]).astype(int)
        for unit in np.split(person, np.flatnonzero(starts)[1:]):
            assert len(unit) == (min(most, 6) if unit[0] != 0 or len(unit) > 1 else 1)
            assert np.all(unit == unit[0])
            people_seen.append(int(unit[0]))
    # patient 0 and the six visits of nobody encode alike
    expected = [*(i for i in range(200) if i != 7), *[0] * 6]
    assert sorted(people_seen) == sorted(expected)


@pytest.mark.statistical
def test_portions_do_not_depend_on_values_or_places(database: str) -> None:
    """Over many deals each row is in each portion equally often, and pairs of rows are independent."""
    data = visits(unit=None, max_rows_per_unit=1, columns=(Column("id", lower=0, upper=1201),))
    deals, half = 40, 600
    together = np.zeros(1200)
    for _ in range(deals):
        first = values(portions(database, data, (half, half))[0])
        chosen = np.zeros(1200)
        chosen[np.rint((first + 1.0) / 2.0 * 1201).astype(int) - 1] = 1.0
        together += chosen
        # by place in the table, by the label's period of 10, by neighbours
        centred = chosen - 0.5
        assert abs(np.sum(centred[:600])) < 6 * np.sqrt(1200) / 2
        assert np.all(np.abs(centred.reshape(-1, 10).sum(axis=0)) < 6 * np.sqrt(120) / 2)
        assert abs(np.sum(centred[:-1] * centred[1:])) < 6 * np.sqrt(1200) / 4
    # 40 fair coins for each of 1,200 rows
    assert np.all(np.abs(together - deals / 2) < 7 * np.sqrt(deals) / 2)
    assert np.var(together) == pytest.approx(deals / 4, rel=0.3)


def test_sparse_and_wide_rows_are_dealt_out_too(database: str) -> None:
    levels = tuple(str(i) for i in range(3000))
    data = visits(unit=None, max_rows_per_unit=1, columns=(Column("patient", levels=levels, centered=False),))
    found = portions(database, data, (1000, 200))
    assert [sum(len(block.labels) for block in blocks) for blocks in found] == [1000, 200]
    dense = dataclasses.replace(data, columns=(Column("patient", levels=levels),))
    found = portions(database, dense, (1000, 200))
    assert [sum(len(block.labels) for block in blocks) for blocks in found] == [1000, 200]


def test_a_portion_is_packed_again_without_units_only(database: str) -> None:
    with Database(database).session("REPEATABLE READ") as session:
        for data, again in ((visits(unit=None, max_rows_per_unit=1), True), (visits(), False)):
            source = resolve(session, data)
            n = count_units(session, source)
            first, second = pack_portions(session, source, (50, n - 50), needs_order=True)
            if again:
                first.repack()
                first.repack()
                (seen,) = session.fetch_one(
                    sql.SQL("SELECT pg_catalog.count(*) FROM {} AS b, dpml.rows(b.block)").format(
                        first.packed.blocks
                    )
                )
                assert seen == 50
            else:
                with pytest.raises(ValueError, match="cannot be packed again"):
                    first.repack()
            for portion in (first, second):
                portion.drop()


# Scores


def unpacked(session: Session, packed: PackedRows) -> tuple[FloatArray, FloatArray]:
    found = session.fetch(
        sql.SQL("SELECT u.x, u.y FROM {} AS b, dpml.unpack(b.block) AS u(x, y)").format(packed.blocks)
    )
    x, y = (np.array(part, np.float32).astype(np.float64) for part in zip(*found, strict=True))
    return x, y


@pytest.mark.parametrize("whitened", [False, True])
@pytest.mark.parametrize("task", people.LABELS)
def test_errors_are_exact(database: str, task: str, whitened: bool) -> None:
    rng = np.random.default_rng(4)
    with Database(database).session("REPEATABLE READ") as session:
        source = resolve(session, people.spec(task))
        plan = plan_problem(problem_of(source, N, people.spec(task)), PRIVACY, TrainSpec())
        d, outputs = source.n_features, plan.problem.n_outputs
        models = []
        for i in range(5):
            p = np.eye(d) + 0.1 * rng.normal(size=(d, d))
            weights = rng.normal(size=outputs * d)
            models.append(Result(weights, 1, (p + p.T) / 2 if whitened and i % 2 else None))
        rest, blocks = pack_portions(session, source, (N - 400, 400), needs_order=False)
        x, y = unpacked(session, blocks.packed)
        found = scoring.errors(blocks, plan.problem, models)
        blocks.drop()
        rest.drop()
    for model, error in zip(models, found, strict=True):
        u = x @ model.weights.reshape(outputs, d).T
        if task == "regression":
            norms = np.ones(len(x))
            if model.whitening is not None:
                norms = np.linalg.norm(x @ model.whitening, axis=1)
            scores = np.divide(u[:, 0], norms, out=np.zeros(len(x)), where=norms > 0)
            wanted = float(np.sum(np.minimum((scores - y) ** 2, 4.0) / 4.0))
            assert error == pytest.approx(wanted, rel=1e-6)
        elif task == "multiclass":
            assert error == np.sum(np.argmax(u, axis=1) != y)
        else:
            assert error == np.sum(np.where(u[:, 0] > 0, y < 0, y > 0))


# Whole runs


def ledger(connection: psycopg.Connection) -> list[tuple[Any, ...]]:
    columns = "id, table_name, model, method, epsilon, delta, relation, n_units, mechanism"
    return connection.execute(f"SELECT {columns} FROM dpml.ledger".encode()).fetchall()


@pytest.mark.parametrize("task", people.LABELS)
def test_the_good_candidate_is_chosen_and_charged_once(
    database: str, connection: psycopg.Connection, task: str
) -> None:
    result = pg_dpml.tune(database, people.spec(task), SURE, GRID, name="m")
    assert result.chosen == 1
    assert result.sizes == (225, 225, 225, 225)
    assert result.public is None
    assert result.trained.plan.problem.n_units == 225
    ((charge, *entry),) = ledger(connection)
    assert entry[:-1] == ["public.people", "m", "tune", Decimal(50), Decimal("0.001"), "replace_one", N]
    assert entry[-1]["portions"] == [225] * 4
    assert entry[-1]["selection"]["epsilon"] == 50.0
    assert entry[-1]["selection"]["spread"] == pytest.approx(2.0, rel=1e-6)
    assert [c["setting"]["radius"] for c in entry[-1]["candidates"]] == [BAD, 1e3, 2 * BAD]
    assert all(c["scale"] > 0 and c["method"] == "bolt-on" for c in entry[-1]["candidates"])
    ((name, weights, privacy, training, of),) = connection.execute(
        "SELECT name, weights, privacy, training, charge FROM dpml.models"
    ).fetchall()
    assert (name, of) == ("m", charge)
    np.testing.assert_array_equal(weights, result.trained.model.weights)
    assert (privacy["epsilon"], privacy["delta"]) == (50.0, 1e-3)
    assert training["n_units"] == 225
    assert training["tuning"] == {
        "candidates": [{"radius": BAD}, {"radius": 1e3}, {"radius": 2 * BAD}],
        "chosen": {"radius": 1e3},
        "n_units": N,
        "portions": [225] * 4,
    }
    found = pg_dpml.evaluate(database, "m", "people", public=True)
    better = (found.accuracy or 0.0) - (found.majority or 0.0)
    assert better > 0.05 if task != "regression" else (found.r_squared or 0.0) > 0.3


@pytest.mark.parametrize("relation", Relation)
def test_units_are_dealt_out_whole(
    database: str, connection: psycopg.Connection, relation: Relation, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[Any, ...]] = []
    choose = selection.choose

    def look(errors: list[float], spread: Fraction, epsilon: float) -> int:
        seen.append((errors, spread, epsilon))
        return choose(errors, spread, epsilon)

    monkeypatch.setattr(selection, "choose", look)
    privacy = PrivacySpec(50.0, 1e-3, relation)
    result = pg_dpml.tune(database, visits(), privacy, GRID, name="m")
    assert (result.n_units, result.sizes) == (PATIENTS, (52, 51, 51, 51))
    ((errors, spread, epsilon),) = seen
    assert spread == (8 if relation is Relation.REPLACE_ONE else 4)
    assert epsilon == 50.0
    assert all(error == round(error) and 0 <= error <= 4 * 51 for error in errors)
    guarantee = result.trained.plan.guarantee
    assert guarantee is not None
    assert (guarantee.unit, guarantee.max_rows_per_unit, guarantee.relation) == ("patient", 4, relation)
    (entry,) = ledger(connection)
    assert (entry[6], entry[7]) == (relation.value, PATIENTS)
    assert entry[8]["unit"] == "patient"


def test_each_candidate_has_its_own_rows_and_full_privacy(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The portions trained on and scored are disjoint and of the sizes planned for."""
    plans, blocks = [], []
    run = TUNING.run_method

    def look(job: Job) -> Any:
        plans.append(job.plan)
        blocks.append(len(unpacked(job.blocks.session, job.blocks.packed)[1]))
        return run(job)

    monkeypatch.setattr(TUNING, "run_method", look)
    grid = Grid({"passes": [1, 2, 3, 4, 5, 6]}, TrainSpec(method="bolt-on", fresh_order=True))
    pg_dpml.tune(database, people.spec(), PrivacySpec(1.0), grid, name="m")
    assert blocks == [129, 129, 129, 129, 128, 128] == [plan.problem.n_units for plan in plans]
    assert [plan.work.passes for plan in plans] == [1, 2, 3, 4, 5, 6]
    # the default delta is that of the whole table
    assert {(plan.guarantee.epsilon, plan.guarantee.delta) for plan in plans if plan.guarantee} == {
        (1.0, 1.0 / N**2)
    }


def test_pure_privacy_charges_the_samplers_delta(database: str, connection: psycopg.Connection) -> None:
    pg_dpml.tune(database, people.spec(), PrivacySpec(1.0, 0.0), GRID, name="m")
    (entry,) = ledger(connection)
    assert entry[5] == Decimal(repr(resolution.sampler_delta(people.N_FEATURES)))


def test_time_is_not_told_where_passes_are_not(database: str) -> None:
    """Whichever candidate is chosen: the time covers them all."""
    certified: list[dict[str, list[Any]]] = [{"lambda": [0.05]}, {"passes": [2]}]
    for grid, told in ((Grid(certified, GRID.training), False), (GRID, True)):
        result = pg_dpml.tune(database, people.spec(), PRIVACY, grid, name=f"m {told}")
        assert (result.trained.seconds is not None) == told
        assert ("seconds" in result_report.tuning_record(result)) == told
        assert bool(re.search(r"[0-9.]+ s\b", result_report.tuning_text(result))) == told


# What is refused, before anything is charged


@pytest.mark.parametrize(
    ("data", "privacy", "grid", "message"),
    [
        (people.spec(), None, GRID, "private tuning needs epsilon"),
        (
            people.spec(),
            PRIVACY,
            Grid({"method": ["bolt-on", "noiseless"]}),
            "candidate method = noiseless: method noiseless is not private and",
        ),
        (
            people.spec(),
            PRIVACY,
            Grid({"loss": ["logistic", "squared"]}),
            "candidate loss = squared: loss for",
        ),
        (
            visits(),
            PRIVACY,
            Grid({"passes": [1, 2]}, TrainSpec(method="bolt-on", fresh_order=True)),
            "fresh_order does not go",
        ),
        (
            people.spec(where="id < 7", definition_is_public=True),
            PRIVACY,
            GRID,
            "3 candidates need at least 8 rows",
        ),
        (people.spec(), PrivacySpec(1.0, 1e-38), GRID, "candidate radius = 1e-06: delta"),
        (people.spec("binary", "nowhere"), PRIVACY, GRID, "table nowhere does not exist"),
    ],
)
def test_refusals(
    database: str,
    connection: psycopg.Connection,
    data: DataSpec,
    privacy: PrivacySpec | None,
    grid: Grid,
    message: str,
) -> None:
    with pytest.raises((SpecError, GuaranteeError), match=message):
        pg_dpml.tune(database, data, privacy, grid, name="m")
    assert ledger(connection) == []


def test_candidates_that_no_value_can_hold_are_refused(
    database: str, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TUNING, "MOST_SCORED", 5)
    with pytest.raises(SpecError, match="with at most 5 coefficients together: take a smaller grid"):
        pg_dpml.tune(database, people.spec(), PRIVACY, GRID, name="m")
    assert ledger(connection) == []


def test_the_smallest_table(database: str) -> None:
    data = people.spec(where="id < 8", definition_is_public=True)
    assert pg_dpml.tune(database, data, PRIVACY, GRID, name="m").sizes == (2, 2, 2, 2)
    with pytest.raises(SpecError, match="a model called m exists"):
        pg_dpml.tune(database, data, PRIVACY, GRID, name="m")


# What fails afterwards


def test_a_failed_run_stays_charged_and_quotes_nothing(database: str, connection: psycopg.Connection) -> None:
    connection.execute("CREATE VIEW poisoned AS SELECT *, (town || '-secret')::int AS code FROM people")
    columns = (*people.FEATURES, Column("code", lower=0, upper=1))
    data = people.spec(table="poisoned", columns=columns, definition_is_public=True)
    with pytest.raises(RunFailedError) as failure:
        pg_dpml.tune(database, data, PRIVACY, GRID, name="m")
    ((charge, *_),) = ledger(connection)
    assert "secret" not in str(failure.value)
    assert failure.value.__context__ is None
    assert f"epsilon = 1, delta = 1e-06 stay charged (entry {charge} of dpml.ledger)" in str(failure.value)
    assert scalar(connection, "SELECT count(*) FROM dpml.models") == 0
    connection.execute("DROP VIEW poisoned")


@pytest.mark.parametrize("at", ["candidate", "pass"])
def test_an_interrupt_leaves_nothing_but_the_charge(
    database: str, connection: psycopg.Connection, at: str
) -> None:
    def interrupt(phase: str, done: int, total: int) -> None:
        if (phase, done) == (at, 1):
            raise KeyboardInterrupt

    with pytest.raises(RunInterrupted, match="no model was stored; epsilon = 1"):
        pg_dpml.tune(database, people.spec(), PRIVACY, GRID, name="m", progress=interrupt)
    assert len(ledger(connection)) == 1
    assert scalar(connection, "SELECT count(*) FROM dpml.models") == 0


def test_rows_that_come_after_the_count_are_of_the_next_run(
    database: str, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = TUNING.start_run

    def late(session: Session) -> None:
        connection.execute("INSERT INTO people (id) VALUES (1000000)")
        start(session)

    monkeypatch.setattr(TUNING, "start_run", late)
    n_rows = scalar(connection, "SELECT count(*) FROM people")
    try:
        tuned = pg_dpml.tune(database, people.spec(), PRIVACY, GRID, name="m")
    finally:
        connection.execute("DELETE FROM people WHERE id = 1000000")
    assert (tuned.n_units, sum(tuned.sizes)) == (n_rows, n_rows)
    assert len(ledger(connection)) == 1


# On a public table


@pytest.mark.parametrize("task", people.LABELS)
def test_tuning_on_a_public_table_is_free(database: str, connection: psycopg.Connection, task: str) -> None:
    create_people(connection, make_people(400, seed=8), "known")
    phases = []
    result = pg_dpml.tune(
        database,
        people.spec(task, where="id >= 0", definition_is_public=True),
        SURE,
        GRID,
        name="m",
        public_table="known",
        progress=lambda phase, done, total: phases.append(phase),
    )
    assert (result.chosen, result.sizes, result.n_units) == (1, (), N)
    assert result.public is not None
    assert (result.public.table, result.public.n_trained, result.public.n_scored) == (
        "public.known",
        267,
        133,
    )
    assert min(result.public.errors) == result.public.errors[1]
    assert result.trained.plan.problem.n_units == N
    assert {"pack", "candidate", "pass"} <= set(phases)
    (entry,) = ledger(connection)
    assert entry[1:4] == ("public.people", "m", "bolt-on")
    assert result.trained.model.training["tuning"]["public_table"] == "public.known"
    connection.execute("DROP TABLE known")


def test_rows_left_out_of_public_scores_are_told(database: str, connection: psycopg.Connection) -> None:
    """They count as no error, whatever a candidate does."""
    create_people(connection, make_people(400, seed=8), "known")
    connection.execute(
        "UPDATE known SET rich = 'Yes.' WHERE id < 90; UPDATE known SET rich = NULL WHERE id > 380"
    )
    result = pg_dpml.tune(database, people.spec(), SURE, GRID, name="m", public_table="known")
    assert result.public is not None
    assert result.public.left_out == LeftOut(19, 90, (ValueCount("Yes.", 90),))
    words = (
        "109 rows are in no figure: 19 whose label is NULL and 90 whose label is not declared ('Yes.' 90)."
    )
    assert words in " ".join(result_report.tuning_text(result).split())
    assert result_report.tuning_record(result)["public"]["left_out"]["undeclared"] == 90
    connection.execute("DROP TABLE known")


def test_methods_that_are_not_private_are_tuned_on_public_rows(
    database: str, connection: psycopg.Connection
) -> None:
    grid = Grid({"radius": [BAD, 1e3]}, TrainSpec(method="noiseless", passes=3))
    result = pg_dpml.tune(database, people.spec("regression"), None, grid, name="m", public_table="people")
    assert (result.chosen, result.trained.model.private) == (1, False)
    assert ledger(connection) == []


@pytest.mark.parametrize(
    ("table", "message"),
    [("visits", "column age does not exist"), ("few", "needs at least 3 rows, not 2"), ("gone", "not exist")],
)
def test_public_tables_that_do_not_fit(
    database: str, connection: psycopg.Connection, table: str, message: str
) -> None:
    connection.execute("CREATE TABLE few AS SELECT * FROM people LIMIT 2")
    with pytest.raises(SpecError, match=message):
        pg_dpml.tune(database, people.spec(), PRIVACY, GRID, name="m", public_table=table)
    assert ledger(connection) == []
    connection.execute("DROP TABLE few")


@pytest.mark.parametrize(
    ("task", "label", "why"),
    [
        ("binary", "NULL", "90 whose label is NULL."),
        ("binary", "'Yes.'", "90 whose label is not declared ('Yes.' 90)."),
        ("regression", "'NaN'", "90 whose label is not declared ('NaN' 90)."),
    ],
)
def test_public_rows_without_any_label_are_refused(
    database: str, connection: psycopg.Connection, task: str, label: str, why: str
) -> None:
    """They say nothing about the candidates, and the choice would be charged all the same."""
    create_people(connection, make_people(90, seed=8), "known")
    data = people.spec(task)
    connection.execute(f"UPDATE known SET {data.label.column} = {label}".encode())
    refusal = f"no row of public table known has a declared label: 90 rows are in no figure: {why}"
    with pytest.raises(SpecError, match=re.escape(refusal)):
        pg_dpml.tune(database, data, PRIVACY, GRID, name="m", public_table="known")
    assert ledger(connection) == []
    connection.execute("DROP TABLE known")


@pytest.mark.parametrize("table", ["people", "PEOPLE", " public . people", '"people"'])
def test_the_private_table_is_no_public_one(
    database: str, connection: psycopg.Connection, table: str
) -> None:
    with pytest.raises(SpecError, match="is the private training table itself: name a table of other rows"):
        pg_dpml.tune(database, people.spec(), PRIVACY, GRID, name="m", public_table=table)
    assert ledger(connection) == []


def test_candidates_on_public_rows_find_them_as_they_were_packed(
    database: str, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[FloatArray, FloatArray]] = []
    run = PUBLIC_SCORES.run_method

    def look(job: Job) -> Any:
        seen.append(unpacked(job.blocks.session, job.blocks.packed))
        return run(job)

    monkeypatch.setattr(PUBLIC_SCORES, "run_method", look)
    create_people(connection, make_people(90, seed=8), "known")
    # one shuffles the packed rows again, one whitens them
    given: list[dict[str, list[Any]]] = [
        {"method": ["bolt-on"], "fresh_order": [True], "passes": [2]},
        {"method": ["whitened-dp-gd"], "passes": [2]},
        {"method": ["dp-gd"], "passes": [2]},
    ]
    pg_dpml.tune(database, people.spec(), PRIVACY, Grid(given), name="m", public_table="known")
    assert len(seen) == 3
    for x, y in seen[1:]:
        np.testing.assert_array_equal(x, seen[0][0])
        np.testing.assert_array_equal(y, seen[0][1])
    connection.execute("DROP TABLE known")


def test_loss_of_scores_is_the_losses_own(database: str) -> None:
    """Half the squared error is what scoring divides by."""
    sums = replay.gradient([replay.pack_dense([[0.5]], [1.0])], [1.0], Loss("squared"), gradient=False)
    assert sums.losses is not None
    assert sums.losses[0] == pytest.approx(0.125)
