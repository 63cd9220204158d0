# SPDX-License-Identifier: PostgreSQL
"""dpml.scd_epoch and dpml.scd_gap against the oracle, with duals that go from pass to pass in a table."""

from __future__ import annotations

import itertools
import math
import struct
from typing import Any

import numpy as np
import psycopg
import pytest
from psycopg import errors

from helpers import oracles
from helpers.sqltools import (
    FloatArray,
    Options,
    as_json,
    close,
    load_blocks,
    load_rows,
    make_rows,
    numbers,
    plain_spec,
    scalar,
)

pytestmark = pytest.mark.dealt

N, D, CAPACITY = 103, 7, 10
LOSSES = ("squared", "logistic", "huber_svm", "hinge")
BASE: dict[str, Any] = {"lambda": 0.02, "rows": N, "exact": True}

ROW_FORM = "SELECT dpml.scd_epoch(x, y, NULL, NULL, %s::jsonb ORDER BY i) AS r FROM rows"
BLOCK_FORM = """
    SELECT dpml.scd_epoch(b.block_no, b.block, d.duals, (SELECT p FROM start p), %s::jsonb
        ORDER BY b.block_no) AS r
    FROM blocks b LEFT JOIN duals d USING (block_no)
"""


def load(connection: psycopg.Connection, loss: str, form: str = "dense") -> tuple[FloatArray, FloatArray]:
    x, y = make_rows(N, D, loss)
    if form == "csr":
        x[:, ::2] = 0
    load_rows(connection, x, y)
    load_blocks(connection, plain_spec(D, loss, form=form), CAPACITY)
    connection.execute(
        "CREATE TEMP TABLE duals (block_no int PRIMARY KEY, duals bytea);"
        "CREATE TEMP TABLE start OF dpml.scd_pass"
    )
    return x, y


def one_pass(
    connection: psycopg.Connection, query: str, options: Options
) -> tuple[FloatArray, int, int, FloatArray]:
    """A pass: v, steps, rows, and the duals of all blocks in their order."""
    row = connection.execute(
        f"SELECT (r).v, (r).steps, (r).rows, ARRAY(SELECT f FROM"
        " unnest((r).duals) WITH ORDINALITY AS u (d, n),"
        f" unnest(dpml.duals(d)) WITH ORDINALITY AS e (f, k) ORDER BY n, k) FROM ({query}) s".encode(),
        (as_json(options),),
    ).fetchone()
    assert row is not None
    return numbers(row[0]), row[1], row[2], numbers(row[3])


def keep(connection: psycopg.Connection, options: Options) -> None:
    """A pass over the blocks that keeps v and the duals for the next."""
    connection.execute(
        f"CREATE TEMP TABLE ended AS {BLOCK_FORM}".encode(),
        (as_json(options),),
    )
    connection.execute(
        "TRUNCATE duals, start; INSERT INTO start SELECT (r).* FROM ended;"
        "INSERT INTO duals SELECT n - 1, d FROM ended, unnest((r).duals) WITH ORDINALITY AS u (d, n);"
        "DROP TABLE ended"
    )


def in_turn(batch_size: int, n: int = N) -> list[list[int]]:
    return [list(range(i, min(i + batch_size, n))) for i in range(0, n, batch_size)]


@pytest.mark.parametrize("form", ["dense", "csr"])
@pytest.mark.parametrize("loss", LOSSES)
def test_passes_follow_the_oracle(connection: psycopg.Connection, loss: str, form: str) -> None:
    x, y = load(connection, loss, form)
    for more in (
        {},
        {"batch_size": 9},
        {"batch_size": 9, "sequential": True},
        {"update_clip": 0.07, "batch_size": 200},
    ):
        options: dict[str, Any] = {"loss": loss, **BASE, **more}
        rules: dict[str, Any] = {"name": loss, "lambda_": 0.02, "n": N, "h": 0.5}
        rules |= {key: value for key, value in more.items() if key != "batch_size"}
        rules["batch_size"] = more.get("batch_size", 1)
        batches = in_turn(rules["batch_size"])
        v, duals = oracles.coordinate_descent(x, y, batches, **rules)
        for query in (ROW_FORM, BLOCK_FORM):
            found = one_pass(connection, query, options)
            assert found[1:3] == (len(batches), N)
            close(found[0], v)
            close(found[3], duals)
        # the second pass goes on from the tables of the first
        keep(connection, options)
        v, duals = oracles.coordinate_descent(x, y, batches, v=v, duals=duals, **rules)
        second = one_pass(connection, BLOCK_FORM, options)
        assert second[1:3] == (2 * len(batches), N)
        np.testing.assert_allclose(second[0], v, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(second[3], duals, rtol=1e-9, atol=1e-9)
        connection.execute("TRUNCATE duals, start")


@pytest.mark.parametrize("loss", LOSSES)
def test_the_gap_closes(connection: psycopg.Connection, loss: str) -> None:
    x, y = load(connection, loss)
    options: dict[str, Any] = {"loss": loss, **BASE}
    gaps = []
    for done in range(1, 61):
        keep(connection, options)
        if done not in (1, 2, 5, 20, 60):
            continue
        query = (
            "SELECT dpml.scd_gap(block, duals, (SELECT v FROM start), %s)"
            " FROM blocks JOIN duals USING (block_no)"
        )
        losses, conjugates, rows = scalar(connection, query, as_json(options))
        v = numbers(scalar(connection, "SELECT v FROM start"))
        duals = one_pass(connection, BLOCK_FORM, {**options, "update_clip": 1e-300})[3]
        primal, dual = oracles.duality_gap(x, y, v, duals, name=loss, lambda_=0.02, h=0.5)
        penalty = float(v @ v) / (2 * 0.02 * N * N)
        assert rows == N
        assert losses / N + penalty == pytest.approx(primal, rel=1e-9)
        assert conjugates / N - penalty == pytest.approx(dual, rel=1e-6, abs=1e-9)
        gaps.append(primal - dual)
    assert gaps[-1] < 1e-3 * gaps[0]
    # without duals the dual objective is that of zeros
    query = "SELECT dpml.scd_gap(block, NULL, (SELECT v FROM start), %s) FROM blocks"
    assert scalar(connection, query, as_json(options))[1] == pytest.approx(0.0)


def test_the_gap_of_duals_that_are_not_feasible(connection: psycopg.Connection) -> None:
    load(connection, "hinge")
    (n_rows,) = connection.execute(
        "SELECT count(*) FROM dpml.unpack((SELECT block FROM blocks LIMIT 1))"
    ).fetchone()  # type: ignore[misc]
    outside = struct.pack(f"={n_rows}d", *([1.5] + [0.0] * (n_rows - 1)))
    v = [0.0] * D
    options = as_json({"loss": "hinge", **BASE})
    query = "SELECT dpml.scd_gap(block, %s, %s::float8[], %s) FROM (SELECT block FROM blocks LIMIT 1) b"
    assert scalar(connection, query, outside, v, options)[1] == -math.inf


@pytest.mark.parametrize("form", ["dense", "csr"])
def test_poisson_batches_of_all_rows(connection: psycopg.Connection, form: str) -> None:
    """With probability 1 a step has every row: what the oracle does is known."""
    x, y = load(connection, "squared", form)
    more = {"sampling": 1, "steps": 3, "batch_size": N, "update_clip": 0.5}
    v, duals = oracles.coordinate_descent(
        x, y, [list(range(N))] * 3, name="squared", lambda_=0.02, n=N, batch_size=N, update_clip=0.5
    )
    found = one_pass(connection, BLOCK_FORM, {"loss": "squared", **BASE, **more})
    assert found[1:3] == (3, N)
    close(found[0], v)
    close(found[3], duals)


@pytest.mark.statistical
def test_poisson_batches_are_drawn_by_coins(connection: psycopg.Connection) -> None:
    """How many of the rows moved after one step of probability 0.3, and v is the sum of what moved."""
    x, _ = load(connection, "squared")
    options = {"loss": "squared", **BASE, "sampling": 0.3, "steps": 1, "batch_size": 30, "update_clip": 1}
    moved = []
    for _ in range(200):
        v, _, _, duals = one_pass(connection, BLOCK_FORM, options)
        close(v, duals @ x)
        moved.append(np.count_nonzero(duals))
    rows = np.count_nonzero(np.abs(x).sum(axis=1))
    deviation = math.sqrt(0.3 * 0.7 * rows / 200)
    assert abs(np.mean(moved) - 0.3 * rows) < 6 * deviation


@pytest.mark.parametrize("sampling", [None, 0.5])
@pytest.mark.parametrize("dual_noise", [False, True])
def test_noise_is_fresh_and_on_the_sum(
    connection: psycopg.Connection, sampling: float | None, *, dual_noise: bool
) -> None:
    load(connection, "logistic")
    options: dict[str, Any] = {"loss": "logistic", **BASE, "batch_size": 10, "update_clip": 1e-9}
    options |= {"noise": "gaussian", "noise_scale": 100, "dual_noise": dual_noise}
    if sampling is not None:
        options |= {"sampling": sampling, "steps": 11}
    runs = [one_pass(connection, BLOCK_FORM, options) for _ in range(30)]
    for first, second in itertools.combinations(runs, 2):
        assert (first[0] != second[0]).all()
    # 11 steps of standard deviation 100 each
    values = np.concatenate([run[0] for run in runs]) / (100 * math.sqrt(11))
    assert 0.7 < values.std() < 1.3
    noisy = np.abs(np.concatenate([run[3] for run in runs])) > 1e-6
    assert noisy.mean() > 0.9 if dual_noise else not noisy.any()


def test_units_enter_a_batch_together(connection: psycopg.Connection) -> None:
    """A unit of three rows is one unit of a batch, and the divisor of a step has its rows."""
    x, y = make_rows(30, D, "squared")
    load_rows(connection, x, y)
    spec = plain_spec(D, "squared")
    connection.execute(
        "CREATE TEMP TABLE blocks AS SELECT i / 15 AS block_no,"
        " dpml.pack(dpml.encode(%s, s, i %% 3 = 0) ORDER BY i) AS block FROM rows s GROUP BY 1 ORDER BY 1",
        (as_json(spec),),
    )
    connection.execute(
        "CREATE TEMP TABLE duals (block_no int PRIMARY KEY, duals bytea);"
        "CREATE TEMP TABLE start OF dpml.scd_pass"
    )
    options = {"loss": "squared", "lambda": 0.02, "rows": 10, "batch_size": 2, "max_rows_per_unit": 3}
    v, duals = oracles.coordinate_descent(
        x, y, in_turn(6, 30), name="squared", lambda_=0.02, n=10, batch_size=6
    )
    found = one_pass(connection, BLOCK_FORM, options)
    assert found[1:3] == (5, 30)
    close(found[0], v)
    close(found[3], duals)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": "softmax", "classes": 3}, '"loss" in options'),
        ({"loss": "squared", "classes": 2}, '"classes" in options'),
        ({"loss": "squared", "clip": 0.5}, '"clip" in options must be absent: "update_clip"'),
        ({"loss": "squared", "lambda": 0}, '"lambda" in options'),
        ({"loss": "squared", "lambda": None}, '"lambda" in options'),
        ({"loss": "squared", "rows": 0}, '"rows" in options'),
        ({"loss": "squared", "rows": None}, '"rows" in options'),
        ({"loss": "squared", "batch_size": 0}, '"batch_size" in options'),
        ({"loss": "squared", "update_clip": -1}, '"update_clip" in options'),
        ({"loss": "squared", "noise": "gaussian"}, '"noise_scale" in options'),
        (
            {"loss": "squared", "noise": "gaussian", "noise_scale": 1},
            '"update_clip" in options must be given',
        ),
        ({"loss": "squared", "noise": "k-norm", "noise_scale": 1, "update_clip": 1}, '"noise" in options'),
        ({"loss": "squared", "dual_noise": True}, '"dual_noise" in options must be false without "noise"'),
        ({"loss": "squared", "steps": 3}, '"steps" in options'),
        ({"loss": "squared", "sampling": 0.5}, '"steps" in options'),
        ({"loss": "squared", "sampling": 1.5, "steps": 3}, '"sampling" in options'),
        ({"loss": "squared", "step_size": 1}, "step_size"),
        ({"loss": "squared", "momentum": 0.5}, "momentum"),
    ],
    ids=str,
)
def test_options_that_are_rejected(connection: psycopg.Connection, options: Options, message: str) -> None:
    load(connection, "squared")
    given = {key: value for key, value in {**BASE, **options}.items() if value is not None}
    with pytest.raises(psycopg.DataError) as caught:
        one_pass(connection, BLOCK_FORM, given)
    assert message in str(caught.value)


def test_rows_take_no_poisson_batches(connection: psycopg.Connection) -> None:
    load(connection, "squared")
    with pytest.raises(psycopg.DataError, match="sampling"):
        one_pass(connection, ROW_FORM, {"loss": "squared", **BASE, "sampling": 0.5, "steps": 2})


def test_duals_of_another_length(connection: psycopg.Connection) -> None:
    load(connection, "squared")
    connection.execute("INSERT INTO duals VALUES (0, '\\x0000')")
    with pytest.raises(
        psycopg.DataError, match="duals must be null or have 80 bytes, 8 for each row of the block, not 2"
    ):
        one_pass(connection, BLOCK_FORM, {"loss": "squared", **BASE})
    with pytest.raises(psycopg.DataError, match="no multiple of 8"):
        connection.execute("SELECT dpml.duals('\\x0000')")


def test_work_mem_is_kept(connection: psycopg.Connection) -> None:
    """Duals, and with Poisson batches rows too, count; the error says how much is needed."""
    connection.execute(
        "CREATE TEMP TABLE blocks AS SELECT g AS block_no, (SELECT dpml.pack(dpml.encode(%s, s)) FROM"
        " (SELECT ARRAY[0.1, 0.2]::float8[] AS x, 1.0::float8 AS y FROM generate_series(1, 1000)) s) AS block"
        " FROM generate_series(0, 199) g",
        (as_json(plain_spec(2, "squared")),),
    )
    options = {"loss": "squared", "lambda": 0.1, "rows": 200_000}
    query = "SELECT (dpml.scd_epoch(block_no, block, NULL, NULL, %s ORDER BY block_no)).rows FROM blocks"
    assert scalar(connection, query, as_json(options)) == 200_000
    connection.execute("SET dpml.work_mem = '1MB'")
    with pytest.raises(
        errors.ProgramLimitExceeded, match=r"the duals need more memory than dpml\.work_mem"
    ) as caught:
        scalar(connection, query, as_json(options))
    assert "each row needs 8 bytes" in str(caught.value.diag.message_hint)
    drawn = {**options, "sampling": 0.1, "steps": 2, "batch_size": 20_000}
    with pytest.raises(errors.ProgramLimitExceeded, match="the packed rows need more memory") as caught:
        scalar(connection, query, as_json(drawn))
    assert "200000 such rows need" in str(caught.value.diag.message_hint)
    connection.execute("SET dpml.work_mem = '64MB'")
    assert scalar(connection, query, as_json(drawn)) == 200_000


def test_no_row_and_groups(connection: psycopg.Connection) -> None:
    load(connection, "hinge")
    options = as_json({"loss": "hinge", **BASE})
    for query in (ROW_FORM, BLOCK_FORM):
        row = connection.execute(
            f"SELECT (r).* FROM ({query.replace('FROM rows', 'FROM rows WHERE false')}) s".encode()
            if query == ROW_FORM
            else f"SELECT (r).* FROM ({query} WHERE false) s".encode(),
            (options,),
        ).fetchone()
        assert row == (None, 0, 0, [])
    apart = connection.execute(
        "SELECT i %% 2, (dpml.scd_epoch(x, y, NULL, NULL, %s ORDER BY i)).v FROM rows GROUP BY 1 ORDER BY 1",
        (options,),
    ).fetchall()
    alone = [
        scalar(
            connection,
            f"SELECT (dpml.scd_epoch(x, y, NULL, NULL, %s ORDER BY i)).v FROM rows WHERE i %% 2 = {part}",
            options,
        )
        for part in (0, 1)
    ]
    assert [v for _, v in apart] == alone


def test_blocks_out_of_order(connection: psycopg.Connection) -> None:
    load(connection, "squared")
    query = "SELECT dpml.scd_epoch(block_no, block, NULL, NULL, %s ORDER BY block_no DESC) FROM blocks"
    with pytest.raises(errors.ObjectNotInPrerequisiteState, match="block 0 is missing or out of order"):
        scalar(connection, query, as_json({"loss": "squared", **BASE}))


def duals_of(
    connection: psycopg.Connection, query: str, options: Options
) -> tuple[FloatArray, int, list[bytes]]:
    """v, steps and the duals of each block, after a pass that is the start of the next one."""
    row = connection.execute(
        f"WITH ended AS (SELECT r.* FROM ({query}) AS s, LATERAL (SELECT (s.r).*) AS r), "
        "gone AS (DELETE FROM start), kept AS (INSERT INTO start SELECT * FROM ended) "
        "SELECT v, steps, duals FROM ended".encode(),
        (as_json(options),),
    ).fetchone()
    assert row is not None
    return numbers(row[0]), row[1], row[2]


@pytest.mark.parametrize("sampling", [None, 1.0])
def test_a_start_has_the_duals_of_its_blocks(connection: psycopg.Connection, sampling: float | None) -> None:
    """Without duals of their own, blocks take those of the start; passes are those with a table of duals."""
    load(connection, "hinge")
    options: dict[str, Any] = {**BASE, "loss": "hinge", "batch_size": 8}
    if sampling is not None:
        options |= {"sampling": sampling, "steps": 3}
    chained = (
        "SELECT dpml.scd_epoch(block_no, block, NULL, (SELECT p FROM start p), %s::jsonb "
        "ORDER BY block_no) AS r FROM blocks"
    )
    found = [duals_of(connection, chained, options) for _ in range(3)]
    connection.execute("TRUNCATE start")
    expected = []
    for _ in range(3):
        expected.append(duals_of(connection, BLOCK_FORM, options))
        connection.execute(
            "DELETE FROM duals; INSERT INTO duals SELECT place - 1, d.duals FROM start, "
            "unnest(start.duals) WITH ORDINALITY AS d (duals, place); UPDATE start SET duals = NULL"
        )
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one[0], other[0])
        assert one[1:] == other[1:]
    assert found[0][2] != found[2][2]


def test_blocks_in_any_order(connection: psycopg.Connection) -> None:
    """Duals come back by the number of their block, whatever the order was; each block comes once."""
    x, y = load(connection, "logistic")
    options: dict[str, Any] = {**BASE, "loss": "logistic", "any_order": True}
    query = (
        "SELECT dpml.scd_epoch(block_no, block, NULL, (SELECT p FROM start p), %s::jsonb ORDER BY {}) AS r "
        "FROM blocks"
    )
    orders = {"block_no": 1, "block_no DESC": -1}
    v: FloatArray | None = None
    duals: FloatArray | None = None
    for order, step in orders.items():
        rows = [list(range(i, min(i + CAPACITY, N))) for i in range(0, N, CAPACITY)][::step]
        v, duals = oracles.coordinate_descent(
            x, y, [[i] for block in rows for i in block], name="logistic", lambda_=0.02, n=N, v=v, duals=duals
        )
        found = duals_of(connection, query.format(order), options)
        close(found[0], v)
        np.testing.assert_allclose(
            np.concatenate([np.frombuffer(part) for part in found[2]]), duals, rtol=1e-8, atol=1e-9
        )
    for source, message in (
        ("(TABLE blocks UNION ALL TABLE blocks)", "block 0 comes twice"),
        ("(SELECT * FROM blocks WHERE block_no <> 3)", "block 3 is missing"),
        ("(SELECT -block_no AS block_no, block FROM blocks)", "block_no must be an integer >= 0"),
        ("(SELECT NULL::int AS block_no, block FROM blocks)", "block_no must be an integer >= 0"),
        ("(SELECT block_no + 2147483000 AS block_no, block FROM blocks)", "need more memory"),
    ):
        connection.execute("TRUNCATE start")
        with pytest.raises(errors.Error, match=message):
            connection.execute(
                query.format("block_no").replace("FROM blocks", f"FROM {source} AS b").encode(),
                (as_json(options),),
            )


def test_a_pass_does_not_change_its_start(connection: psycopg.Connection) -> None:
    """Wherever the start is kept, and however long its arrays; a shorter pass forgets the rest."""
    load(connection, "hinge")
    options = as_json({"loss": "hinge", **BASE})
    epoch = "dpml.scd_epoch(b.block_no, b.block, NULL, {}, %(options)s::jsonb ORDER BY b.block_no)"
    first = f"SELECT {epoch.format('NULL::dpml.scd_pass')} AS e FROM blocks AS b"
    connection.execute(f"CREATE TEMP TABLE stored AS {first}".encode(), {"options": options})
    for kept in (f"WITH s AS MATERIALIZED ({first})", "WITH s AS (TABLE stored)"):
        second = f"(SELECT {epoch.format('s.e')} FROM blocks AS b)"
        part = f"(SELECT {epoch.format('s.e')} FROM blocks AS b WHERE b.block_no < 3)"
        again = f"(SELECT {epoch.format('t.e')} FROM blocks AS b)"
        row = connection.execute(
            f"{kept}, t AS MATERIALIZED (SELECT {second} AS e FROM s) "
            f"SELECT s.e::text, {second}::text, ({part}).duals, {second}::text, {again}::text, t.e::text, "
            "s.e::text FROM s, t".encode(),
            {"options": options},
        ).fetchone()
        assert row is not None
        start, ours, shorter, once_more, third, ours_kept, start_after = row
        assert start == start_after == scalar(connection, "SELECT e::text FROM stored")
        assert ours == once_more == ours_kept
        assert len({start, ours, third}) == 3
        assert shorter == scalar(connection, "SELECT (%s::dpml.scd_pass).duals[1:3]", ours)


def test_the_duals_of_a_result_begin_at_one(connection: psycopg.Connection) -> None:
    load(connection, "hinge")
    keep(connection, {"loss": "hinge", **BASE})
    start = "(SELECT ROW(v, steps, rows, ('[0:10]=' || duals::text)::bytea[])::dpml.scd_pass FROM start)"
    epoch = f"dpml.scd_epoch(block_no, block, NULL, {start}, %s ORDER BY block_no)"
    query = f"SELECT array_dims(({epoch}).duals) FROM blocks"
    assert scalar(connection, query, as_json({"loss": "hinge", **BASE})) == "[1:11]"


def test_duals_of_a_start_that_do_not_fit(connection: psycopg.Connection) -> None:
    load(connection, "hinge")
    for duals, message in (
        ("ARRAY['\\x00'::bytea]", "duals must be null or have 80 bytes"),
        (f"ARRAY['\\x{bytes(80).hex()}'::bytea]", "start has the duals of 1 blocks, and there is a block 1"),
        ("ARRAY[NULL::bytea]", "the duals in start must be a one-dimensional array without nulls"),
        ("ARRAY[['\\x00'::bytea]]", "the duals in start must be a one-dimensional array without nulls"),
    ):
        with pytest.raises(errors.InvalidParameterValue, match=message):
            connection.execute(
                f"SELECT dpml.scd_epoch(block_no, block, NULL, ROW(NULL, 0, 0, {duals})::dpml.scd_pass, "
                "%s::jsonb ORDER BY block_no) FROM blocks".encode(),
                (as_json({**BASE, "loss": "hinge"}),),
            )
