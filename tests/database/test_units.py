# SPDX-License-Identifier: PostgreSQL
"""Whole runs with units of privacy, one-vs-all, random projections, images and sparse rows."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import psycopg
import pytest

import pg_dpml
from helpers import replay
from pg_dpml import Column, DataSpec, Label, PrivacySpec, TrainSpec
from pg_dpml.blocks import packing
from pg_dpml.blocks.packing import pack, repack
from pg_dpml.blocks.projection import projection_matrix
from pg_dpml.blocks.query import count_units
from pg_dpml.blocks.source import resolve
from pg_dpml.database.database import Database
from pg_dpml.database.session import sql
from pg_dpml.runs.train import start_run

pytestmark = pytest.mark.dealt

PRIVACY = PrivacySpec(10.0, 1e-6)
ROWS = 1200
PATIENTS = 200
"""Every patient has six rows but one, whose rows have a NULL in place of the patient."""


@pytest.fixture(scope="module")
def visits(database: str) -> str:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE visits AS SELECT i AS id, nullif(i % 200, 7) AS patient, (i % 10) / 10.0 AS dose, "
            "i % 10 > 4 AS ill, (array['a', 'b', 'c'])[1 + i % 3] AS ward, "
            "(SELECT array_agg(((i * 7 + j * 13) % 256)::float4 ORDER BY j) "
            "FROM generate_series(1, 36) AS j) AS scan FROM generate_series(1, 1200) AS i"
        )
    return "visits"


def spec(**changes: object) -> DataSpec:
    columns = (Column("dose", lower=0, upper=1), Column("ward", levels=("a", "b", "c")))
    plain = DataSpec("visits", Label("ill", positive="true"), columns)
    return dataclasses.replace(plain, **changes)  # type: ignore[arg-type]


def packed(database: str, data: DataSpec, *, again: bool = False, ordered: bool = True) -> list[replay.Block]:
    """The blocks a run would read, in physical order, their numbers checked."""
    with Database(database).session("REPEATABLE READ") as session:
        source = resolve(session, data)
        found = pack(session, source, ordered=ordered)
        if again:
            found = repack(session, source, found)
        rows = session.fetch(sql.SQL("SELECT block_no, block FROM {}").format(found.blocks))
        session.execute(sql.SQL("DROP TABLE {}").format(found.blocks))
    assert [number for number, _ in rows] == list(range(len(rows)))
    return [replay.open_block(block) for _, block in rows]


def ids(blocks: list[replay.Block]) -> npt.NDArray[np.int64]:
    """Of rows whose one feature is the id, which the encoder brings to [-1, 1], beside the intercept."""
    values = np.concatenate([block.values for block in blocks])
    return np.asarray(np.rint((values[:, 0] / values[:, 1] + 1.0) / 2.0 * ROWS), np.int64)


@pytest.mark.parametrize("how", [{}, {"again": True}, {"ordered": False}])
@pytest.mark.parametrize("most", [1, 4, 6, 100])
def test_rows_of_a_unit_stay_together(database: str, visits: str, most: int, how: dict[str, bool]) -> None:
    """The dose tells the patient's last digit, so a unit's rows show it."""
    blocks = packed(database, spec(unit="patient", max_rows_per_unit=most), **how)
    starts = np.concatenate([block.starts for block in blocks if block.starts is not None])
    values = np.concatenate([block.values for block in blocks])
    sizes = np.diff([*np.flatnonzero(starts), len(starts)])
    assert starts[0]
    # 199 patients of six rows, and the six rows without one
    assert sorted(sizes) == [1] * 6 + [min(most, 6)] * 199 if most > 1 else sizes.tolist() == [1] * 205
    doses = values[:, 0] / values[:, -1]
    for unit in np.split(doses, np.flatnonzero(starts)[1:]):
        np.testing.assert_allclose(unit, unit[0], rtol=1e-5)


def test_orders_differ_and_are_uniform_enough(database: str, visits: str) -> None:
    """Neither the place of a unit nor that of a row follows from where it lies in the table."""
    data = spec(columns=(Column("id", lower=0, upper=ROWS),), label=Label("ill", positive="true"))
    orders = []
    for _ in range(2):
        values = np.concatenate([block.values for block in packed(database, data)])
        orders.append(np.argsort(values[:, 0] / values[:, 1]))
    for one in (orders[0], orders[1], orders[1][np.argsort(orders[0])]):
        assert abs(np.corrcoef(one, np.arange(ROWS))[0, 1]) < 6 / np.sqrt(ROWS)


@pytest.mark.parametrize("ordered", [False, True])
def test_which_rows_of_a_unit_are_used_is_random(database: str, visits: str, ordered: bool) -> None:
    """Two of six rows, not the same ones twice, and no row by its place or value more often than others."""
    data = spec(unit="patient", max_rows_per_unit=2, columns=(Column("id", lower=0, upper=ROWS),))
    used = []
    for _ in range(2):
        used.append(ids(packed(database, data, ordered=ordered)))
    assert len(used[0]) == len(used[1]) == 2 * (PATIENTS - 1) + ROWS // PATIENTS
    assert set(used[0]) != set(used[1])
    visits_used = (np.concatenate(used) - 1) // PATIENTS  # of a patient's six, in the table's order
    counts = np.bincount(visits_used, minlength=6)
    assert np.all(np.abs(counts - 4 * PATIENTS / 6) < 6 * np.sqrt(4 * PATIENTS / 6))


def test_rows_without_an_order_are_the_same_rows(database: str, visits: str) -> None:
    """They come as the scan finds them, each once; the statement has no sort, and workers may encode."""
    data = spec(columns=(Column("id", lower=0, upper=ROWS),))
    everyone = list(range(1, ROWS + 1))
    assert sorted(ids(packed(database, data))) == everyone
    assert list(ids(packed(database, data, ordered=False))) == everyone
    settings = " ".join(
        f"-c {name}={value}"
        for name, value in {
            "parallel_setup_cost": 0,
            "parallel_tuple_cost": 0,
            "min_parallel_table_scan_size": 0,
            "max_parallel_workers_per_gather": 2,
        }.items()
    )
    with Database(f"{database} options='{settings}'").session() as session:
        source = resolve(session, data)
        plans = {}
        for how in (packing.shuffled, packing.grouped):
            rows = how(source)
            statement = packing.packing_statement(source, rows.encoded, rows.order)
            plan = session.fetch(sql.SQL("EXPLAIN (VERBOSE) ") + statement, rows.parameters)
            plans[how] = "\n".join(line for (line,) in plan)
    assert "Sort" in plans[packing.shuffled]
    assert "Sort" not in plans[packing.grouped]
    below = plans[packing.grouped].partition("Gather")[2]
    assert "encode(" in below
    assert "pack(" not in below


def test_workers_share_wide_rows(database: str, connection: psycopg.Connection) -> None:
    """Blocks that are stored out of line lie on several pages, and a pass over them has workers."""
    connection.execute(
        "CREATE TABLE wide AS SELECT i % 2 AS y, array_fill(i / 6000.0::float4, ARRAY[1200]) AS x "
        "FROM generate_series(1, 6000) AS i"
    )
    data = DataSpec(
        "wide", Label("y", positive="1"), (Column("x", lower=-1, upper=1, length=1200),), intercept=False
    )
    with Database(database).session("REPEATABLE READ") as session:
        start_run(session)
        found = pack(session, resolve(session, data), ordered=False)
        pages = "SELECT count(DISTINCT (b.ctid::text::point)[0]), count(*) FROM {} AS b"
        (n_pages, n_blocks) = session.fetch_one(sql.SQL(pages).format(found.blocks))
        query = sql.SQL("EXPLAIN SELECT dpml.gram(b.block) FROM {} AS b").format(found.blocks)
        plan = "\n".join(line for (line,) in session.fetch(query))
        session.driver.rollback()
    connection.execute("DROP TABLE wide")
    assert n_blocks == found.n_blocks == 28
    assert 1 < n_pages < n_blocks
    assert "Partial Aggregate" in plan


def test_units_are_counted(database: str, visits: str) -> None:
    with Database(database).session() as session:
        assert count_units(session, resolve(session, spec(unit="patient"))) == PATIENTS - 1 + ROWS // PATIENTS
        assert count_units(session, resolve(session, spec())) == ROWS


@pytest.mark.parametrize("fresh_order", [False, True])
@pytest.mark.parametrize("batch_size", [1, 7, 50])
def test_training_by_unit(
    database: str, connection: psycopg.Connection, visits: str, batch_size: int, fresh_order: bool
) -> None:
    name = f"unit_{batch_size}_{fresh_order}"
    data = spec(unit="patient", max_rows_per_unit=6)
    training = TrainSpec(method="bolt-on", passes=3, batch_size=batch_size, fresh_order=fresh_order)
    result = pg_dpml.train(database, data, PRIVACY, training, name=name)
    assert result.plan.problem.n_units == 205
    assert result.plan.guarantee is not None
    assert result.plan.guarantee.unit == "patient"
    assert result.model.privacy["unit"] == "patient"
    assert result.model.privacy["max_rows_per_unit"] == 6
    (mechanism,) = (
        connection.execute("SELECT mechanism FROM dpml.ledger WHERE model = %s", (name,)).fetchone() or ()
    )
    assert mechanism["unit"] == "patient"
    found = pg_dpml.evaluate(database, name, visits, public=True)
    assert found.accuracy is not None
    assert found.accuracy > 0.75


def test_a_missing_unit_column_is_named(database: str, visits: str) -> None:
    with pytest.raises(pg_dpml.SpecError, match="column person does not exist"):
        pg_dpml.plan(database, spec(unit="person"), PRIVACY)


def test_one_vs_all(database: str, connection: psycopg.Connection, visits: str) -> None:
    columns = (Column("dose", lower=0, upper=1), Column("ill"))
    data = spec(label=Label("ward", classes=("a", "b", "c")), columns=columns)
    for loss in ("logistic", "huber_svm"):
        result = pg_dpml.train(
            database, data, PRIVACY, TrainSpec(method="bolt-on", loss=loss), name=f"ova_{loss}"
        )
        assert result.model.weights.shape == (3 * 3,)
    rows = connection.execute(
        "SELECT dpml.predict_proba('ova_logistic', v), dpml.predict('ova_logistic', v) FROM visits v LIMIT 20"
    ).fetchall()
    for chances, predicted in rows:
        assert sum(chances) == pytest.approx(1.0)
        assert predicted == "abc"[int(np.argmax(chances))]


def test_one_vs_all_pass_is_k_binary_passes(connection: psycopg.Connection) -> None:
    """The joint pass takes the very steps that K passes over relabelled rows take."""
    rng = np.random.default_rng(2)
    connection.execute("CREATE TEMP TABLE r (i int, x float8[], y float8)")
    for i in range(60):
        row = rng.normal(size=4)
        row /= 2 * np.linalg.norm(row)
        connection.execute("INSERT INTO r VALUES (%s, %s, %s)", (i, row.tolist(), float(rng.integers(3))))
    options = '"batch_size": 7, "clip": 0.4, "step_size": 0.7, "lambda": 0.01'
    call = (
        "SELECT (dpml.sgd_epoch(x, {y}, NULL, "
        '\'{{"loss": "logistic", {options}{more}}}\' ORDER BY i)).weights FROM r'
    )

    def weights(y: str, more: str) -> list[float]:
        query = call.format(y=y, options=options, more=more)
        (found,) = connection.execute(query.encode()).fetchone() or ()
        return list(found)

    joint = weights("y", ', "classes": 3')
    for k in range(3):
        alone = weights(f"CASE WHEN y = {k} THEN 1 ELSE -1 END", "")
        np.testing.assert_allclose(joint[4 * k : 4 * k + 4], alone, rtol=1e-12)


def test_projection(database: str, connection: psycopg.Connection, visits: str) -> None:
    scan = Column("scan", lower=0, upper=255, length=36)
    data = spec(columns=(scan, Column("dose", lower=0, upper=1)), projection=5, projection_seed=12)
    result = pg_dpml.train(database, data, PRIVACY, TrainSpec(method="bolt-on"), name="projected")
    assert result.plan.problem.n_features == 6
    assert result.model.encoder["projection"] == {"features": 5, "seed": 12}
    pixels, dose, value = (
        connection.execute(
            "SELECT scan, dose::float8, dpml.predict_value('projected', v) FROM visits v WHERE id = 5"
        ).fetchone()
        or ()
    )
    raw = np.append(2 * np.array(pixels) / 255 - 1, 2 * dose - 1)
    row = np.append(projection_matrix(12, 5, 37).astype(np.float64) @ raw, 1.0)
    expected = result.model.weights @ row / np.linalg.norm(row)
    assert value == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_image(database: str, visits: str) -> None:
    data = spec(columns=(Column("scan", lower=0, upper=255, length=36, rows=6),))
    result = pg_dpml.train(database, data, PRIVACY, name="image")
    assert result.plan.problem.n_features == 9 + 1
    assert result.model.training["features"][:2] == ["scan[1,1]", "scan[1,3]"]


@pytest.mark.parametrize("n_levels", [300, 30_000])
def test_sparse_blocks_lie_in_order(database: str, connection: psycopg.Connection, n_levels: int) -> None:
    """Blocks of sparse rows differ in size; none may land on an earlier page."""
    connection.execute("DROP TABLE IF EXISTS sparse")
    connection.execute(
        "CREATE TABLE sparse AS SELECT i % 2 = 0 AS y, nullif(i % 400, 3)::text AS c, (i % 7)::text AS e "
        "FROM generate_series(1, 20000) AS i"
    )
    columns = (
        Column("c", levels=tuple(map(str, range(n_levels))), centered=False),
        Column("e", levels=tuple(map(str, range(5))), centered=False),
    )
    data = DataSpec("sparse", Label("y", positive="true"), columns)
    blocks = packed(database, data)
    assert {block.kind for block in blocks} == {"csr"}
    assert sum(len(block.labels) for block in blocks) == 20000
    assert packed(database, data, again=True)
    result = pg_dpml.train(
        database,
        data,
        PRIVACY,
        TrainSpec(method="bolt-on", fresh_order=True, passes=2),
        name=f"sparse_{n_levels}",
    )
    assert result.passes == 2


@pytest.mark.parametrize(
    ("most", "n_features"), [(1, 9), (2, 131_072), (3, 100_000), (4, 70_000), (33, 9000)]
)
def test_a_block_has_room_for_a_whole_unit(most: int, n_features: int) -> None:
    """Also just above the usual largest block: the header, words of 32 bits for the starts, the rows."""
    source: Any = SimpleNamespace(
        encoder={"format": "dense", "columns": []},
        n_features=n_features,
        n_values=n_features,
        max_rows_per_unit=most,
    )
    needed = 16 + 4 * -(-most // 32) + most * (4 + 4 * n_features)
    assert packing._block_bytes(source) >= needed
