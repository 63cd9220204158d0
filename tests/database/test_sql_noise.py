# SPDX-License-Identifier: PostgreSQL
"""Noise inside dpml.sgd_epoch, and the two forms of Poisson batches: streams, distributions, limits.

A row of these tests is a unit vector with the label 1, so that after steps of
a tiny size the weights count how often each row was in a batch.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import psycopg
import pytest
from psycopg import errors
from scipy import stats

from helpers import oracles, replay
from helpers.sqltools import Options, as_json, close, epoch, make_rows, numbers, scalar
from pg_dpml.server.embedded import EmbeddedServer

pytestmark = pytest.mark.dealt

SMALLEST_P = 1e-6
TINY = 2.0**-40
"""A step that leaves every derivative of the squared loss at -1, but for 2^-30."""

N = 60
ROWS_PER_BLOCK = 10

# The forms: one group for each g of a table, so many independent passes of one statement.
IN_MEMORY = (
    "SELECT g, dpml.sgd_poisson(block_no, block, NULL, {options} ORDER BY block_no) AS r "
    "FROM {blocks}, generate_series(1, {groups}) AS g GROUP BY g"
)
SORTED = (
    "SELECT g, dpml.sgd_poisson_steps(p.step, p.block, p.rows, NULL, {options} ORDER BY p.step) AS r "
    "FROM {blocks} AS b, generate_series(1, {groups}) AS g, "
    # 0 * g: a call of its own for every g
    "dpml.poisson_steps(b.block, {steps} + 0 * g, {sampling}) AS p GROUP BY g"
)
FORMS = pytest.mark.parametrize("form", [IN_MEMORY, SORTED], ids=["in-memory", "sorted"])


def load(connection: psycopg.Connection, blocks: list[bytes], name: str = "blocks") -> None:
    connection.execute(f"CREATE TEMP TABLE {name} (block_no int, block bytea)".encode())
    with connection.cursor() as cursor:
        cursor.executemany(f"INSERT INTO {name} VALUES (%s, %b)".encode(), list(enumerate(blocks)))


def unit_vectors(
    starts: npt.NDArray[np.bool_] | None = None, rows_per_block: int = ROWS_PER_BLOCK
) -> list[bytes]:
    parts = [slice(i, min(i + rows_per_block, N)) for i in range(0, N, rows_per_block)]
    return [
        replay.pack_dense(np.eye(N)[part], np.ones(N)[part], None if starts is None else starts[part])
        for part in parts
    ]


def passes(
    connection: psycopg.Connection, form: str, groups: int, options: Options, blocks: str = "blocks"
) -> npt.NDArray[np.float64]:
    """Weights of each group."""
    query = form.format(
        options="'" + as_json(options) + "'",
        blocks=blocks,
        groups=groups,
        steps=options["steps"],
        sampling=options["sampling"],
    )
    rows = connection.execute(f"SELECT (r).weights, (r).steps FROM ({query}) AS s".encode()).fetchall()
    assert [steps for _, steps in rows] == [options["steps"]] * groups
    return np.array([weights for weights, _ in rows])


def inclusions(
    connection: psycopg.Connection,
    form: str,
    groups: int,
    *,
    steps: int,
    sampling: float,
    batch_size: int = 1,
    **options: Any,
) -> npt.NDArray[np.int64]:
    """How often each row was in a batch, for each group."""
    counting = {"loss": "squared", "step_size": TINY, "batch_size": batch_size} | options
    weights = passes(connection, form, groups, counting | {"steps": steps, "sampling": sampling})
    counts = weights * batch_size / TINY
    np.testing.assert_allclose(counts, np.rint(counts), atol=1e-6)
    return np.rint(counts).astype(np.int64)


def check_binomial(counts: npt.NDArray[np.int64], trials: int, probability: float) -> None:
    middle = stats.binom.ppf(np.linspace(0.05, 0.95, 10), trials, probability)
    edges = np.unique([-1.0, *middle, float(trials)])
    expected = np.diff(stats.binom.cdf(edges, trials, probability)) * counts.size
    found = np.histogram(counts, edges + 0.5)[0]
    assert stats.chisquare(found, expected).pvalue >= SMALLEST_P


@FORMS
@pytest.mark.statistical
@pytest.mark.parametrize("sampling", [0.03, 0.4])
def test_batches_are_poisson(connection: psycopg.Connection, form: str, sampling: float) -> None:
    """Sizes, inclusions of every row, and no correlation between rows, of one block or of two."""
    load(connection, unit_vectors())
    groups = 3000
    found = inclusions(connection, form, groups, steps=1, sampling=sampling)
    assert found.max() == 1
    check_binomial(found.sum(axis=1), N, sampling)
    check_binomial(found.sum(axis=0), groups, sampling)
    same_block = [
        found[:, i] & found[:, j]
        for i in range(N)
        for j in range(i)
        if i // ROWS_PER_BLOCK == j // ROWS_PER_BLOCK
    ]
    others = [
        found[:, i] & found[:, j]
        for i in range(N)
        for j in range(i)
        if i // ROWS_PER_BLOCK != j // ROWS_PER_BLOCK
    ]
    for pairs in (same_block, others):
        # pairs of pairs with a common row hang together a little: a normal bound with their variance
        each = np.sum(pairs, axis=0)
        z = (each.mean() - len(pairs) * sampling**2) / (each.std() / np.sqrt(groups))
        assert 2.0 * stats.norm.sf(abs(z)) >= SMALLEST_P


@FORMS
@pytest.mark.statistical
def test_steps_are_independent(connection: psycopg.Connection, form: str) -> None:
    """Over several steps a row's inclusions are binomial; the divisor is b whatever the batch has."""
    load(connection, unit_vectors())
    found = inclusions(connection, form, 300, steps=40, sampling=0.1, batch_size=8)
    check_binomial(found.reshape(-1), 40, 0.1)
    check_binomial(found.sum(axis=1), 40 * N, 0.1)


@FORMS
@pytest.mark.parametrize("rows_per_block", [60, 10])
def test_a_unit_has_one_coin(connection: psycopg.Connection, form: str, rows_per_block: int) -> None:
    starts = np.zeros(N, dtype=bool)
    starts[[0, 1, 4, 10, 20, 22, 27, 30, 40, 50, 51]] = True
    load(connection, unit_vectors(starts, rows_per_block))
    found = inclusions(connection, form, 30, steps=20, sampling=0.3, max_rows_per_unit=10)
    for group in found:
        for unit in np.split(group, np.flatnonzero(starts)[1:]):
            assert np.all(unit == unit[0])
    assert len({tuple(group) for group in found}) == 30


def test_a_unit_that_goes_on_in_the_next_block(connection: psycopg.Connection) -> None:
    starts = np.zeros(N, dtype=bool)
    starts[::7] = True
    load(connection, unit_vectors(starts))
    found = inclusions(connection, IN_MEMORY, 30, steps=20, sampling=0.3, max_rows_per_unit=7)
    for group in found:
        for unit in np.split(group, np.flatnonzero(starts)[1:]):
            assert np.all(unit == unit[0])
    with pytest.raises(
        errors.InvalidParameterValue, match="must begin with the first row of a unit"
    ) as caught:
        connection.execute("SELECT dpml.poisson_steps(block, 5, 0.5) FROM blocks WHERE block_no = 1")
    assert "dpml.sgd_poisson" in str(caught.value.diag.message_hint)


@FORMS
@pytest.mark.statistical
@pytest.mark.parametrize("sampling", [1e-15, 0.02])
def test_every_step_has_noise(connection: psycopg.Connection, form: str, sampling: float) -> None:
    """Empty batches too: the noise of all steps adds up, whatever the batches."""
    zeros = replay.pack_dense(np.zeros((20, 8)), np.ones(20))
    load(connection, [zeros])
    options = {"loss": "logistic", "step_size": 0.5, "batch_size": 2, "steps": 25, "sampling": sampling}
    weights = passes(connection, form, 500, {**options, "noise": "gaussian", "noise_scale": 3.0})
    # 25 steps of 0.5 / 2 times noise of scale 3
    assert stats.kstest(weights.reshape(-1) / (5 * 0.25 * 3.0), "norm").pvalue >= SMALLEST_P
    weights = passes(connection, form, 500, {**options, "steps": 1, "noise": "k-norm", "noise_scale": 3.0})
    radius = np.linalg.norm(weights, axis=1)
    assert stats.kstest(radius / (0.25 * 3.0), stats.gamma(8).cdf).pvalue >= SMALLEST_P


@FORMS
@pytest.mark.statistical
def test_coins_and_noise_have_different_keys(connection: psycopg.Connection, form: str) -> None:
    """With one key the first word would decide both whether the row is drawn and the sign of the noise."""
    load(connection, [replay.pack_dense([[0.0, 1.0]], [1.0])])
    options = {"loss": "squared", "step_size": 1, "steps": 1, "sampling": 0.5}
    weights = passes(connection, form, 400, {**options, "noise": "gaussian", "noise_scale": 0.01})
    drawn, negative = weights[:, 1] > 0.5, weights[:, 0] > 0.0
    for events in (drawn, negative, drawn == negative):
        assert stats.binomtest(int(np.sum(events)), 400).pvalue >= SMALLEST_P / 10.0


@FORMS
def test_all_rows_in_every_step(connection: psycopg.Connection, form: str) -> None:
    """With sampling 1 nothing is random: gradient descent, the oracle's."""
    x, y = make_rows(53, 6, "softmax")
    load(connection, [replay.pack_dense(x[i : i + 9], y[i : i + 9]) for i in range(0, 53, 9)])
    options = {
        "loss": "softmax",
        "classes": 3,
        "step_size": 0.7,
        "lambda": 0.1,
        "batch_size": 53,
        "radius": 0.3,
    }
    options |= {"momentum": 0.4, "gradient_clip": 0.8, "steps": 7, "sampling": 1}
    found = oracles.iterates(
        x,
        y,
        name="softmax",
        step=oracles.schedule("constant", step_size=0.7),
        lambda_=0.1,
        radius=0.3,
        batch_size=53,
        n_outputs=3,
        momentum=0.4,
        gradient_clip=0.8,
        batches=[range(53)] * 7,
    )
    close(passes(connection, form, 1, options)[0], found[-1].ravel())


@pytest.mark.parametrize("shape", ["dense", "csr"])
def test_passes_join_by_epoch(connection: psycopg.Connection, shape: str) -> None:
    """Weights, average, steps and velocity go from a pass to the next, between the forms too."""
    x, y = make_rows(40, 5, "logistic")
    x[:, ::2] = 0.0
    parts = [slice(i, i + 7) for i in range(0, 40, 7)]
    if shape == "dense":
        load(connection, [replay.pack_dense(x[part], y[part]) for part in parts])
    else:
        load(
            connection,
            [
                replay.pack_csr(
                    5,
                    np.arange(1, len(x[part]) + 1) * 2,
                    [1, 3] * len(x[part]),
                    x[part][:, [1, 3]].ravel(),
                    y[part],
                )
                for part in parts
            ],
        )
    options = {
        "loss": "logistic",
        "schedule": "inverse_sqrt",
        "batch_size": 40,
        "momentum": 0.5,
        "average_from": 3,
    }
    poisson = as_json({**options, "steps": 2, "sampling": 1})
    one = "SELECT dpml.sgd_epoch(block_no, block, NULL, %s::jsonb ORDER BY block_no) FROM blocks"
    two = f"SELECT dpml.sgd_poisson(block_no, block, ({one}), %s::jsonb ORDER BY block_no) FROM blocks"
    three = (
        f"SELECT dpml.sgd_poisson_steps(p.step, p.block, p.rows, ({two}), %s::jsonb ORDER BY p.step) AS r "
        "FROM blocks AS b, dpml.poisson_steps(b.block, 2, 1) AS p"
    )
    weights, mean, steps, rows = epoch(connection, three, as_json(options), poisson, poisson)
    found = oracles.iterates(
        x,
        y,
        name="logistic",
        step=oracles.schedule("inverse_sqrt", step_size=1.0, max_step=4.0),
        momentum=0.5,
        batch_size=40,
        batches=[range(40)] * 5,
    )
    assert (steps, rows) == (5, 40)
    close(weights, found[-1].ravel())
    assert mean is not None
    close(mean, oracles.average(found, 3).ravel())


@pytest.mark.statistical
@pytest.mark.parametrize("noise", ["gaussian", "k-norm"])
def test_noise_of_sgd_epoch(connection: psycopg.Connection, noise: str) -> None:
    """Rows and blocks; 5 rows at b = 2 are three steps, the last of one row."""
    connection.execute(
        "CREATE TEMP TABLE nothing AS SELECT array_fill(0.0::float8, '{4}') AS x FROM generate_series(1, 5)"
    )
    load(connection, [replay.pack_dense(np.zeros((5, 4)), np.ones(5))])
    options = as_json(
        {"loss": "logistic", "step_size": 1, "batch_size": 2, "noise": noise, "noise_scale": 4, "radius": 1e9}
    )
    seen = set()
    for start, table in (("x, 1", "nothing"), ("block_no, block", "blocks")):
        call = (
            f"SELECT g, dpml.sgd_epoch({start}, NULL, '{options}') AS r "
            f"FROM {table}, generate_series(1, 1000) AS g GROUP BY g"
        )
        rows = connection.execute(f"SELECT (r).weights, (r).steps FROM ({call}) AS s".encode()).fetchall()
        assert {steps for _, steps in rows} == {3}
        weights = np.array([row[0] for row in rows])
        seen |= {tuple(row) for row in weights.tolist()}
        if noise == "gaussian":
            expected = stats.kstest(weights.reshape(-1) / (4 / 2 * np.sqrt(3)), "norm")
            assert expected.pvalue >= SMALLEST_P
        else:
            # the sum of three: E ||z||^2 = 3 d (d + 1) scale^2
            squares = np.sum(weights**2, axis=1)
            assert abs(squares.mean() - 3 * 20 * 4.0) < 6 * squares.std() / np.sqrt(len(squares))
    assert len(seen) == 2000


def test_parameters_of_the_sorted_form(connection: psycopg.Connection) -> None:
    block = replay.pack_dense([[0.5, 0.25]], [1.0])
    for steps, sampling, message in (
        (0, 0.5, "steps must be an integer >= 1"),
        (5, 0.0, "sampling must be a number > 0 and <= 1"),
        (5, 1.1, "sampling must be"),
        (5, float("nan"), "sampling must be"),
    ):
        with pytest.raises(errors.InvalidParameterValue, match=message):
            connection.execute("SELECT dpml.poisson_steps(%b, %s, %s)", (block, steps, sampling))
    assert connection.execute("SELECT dpml.poisson_steps(NULL, 5, 0.5)").fetchall() == []
    empty = replay.pack_dense(np.empty((0, 2)), [])
    query = "SELECT * FROM dpml.poisson_steps(%b, 3, 1)"
    assert connection.execute(query, (empty,)).fetchall() == [(3, empty, 0)]
    found = connection.execute(query, (block,)).fetchall()
    assert found == [*((step, block, None) for step in (1, 2, 3)), (3, empty, 1)]

    query = "SELECT dpml.sgd_poisson_steps(s, b, {}, NULL, %s::jsonb) AS r FROM (VALUES {}) AS v(s, b)"
    options = as_json({"loss": "logistic", "step_size": 1, "steps": 5})
    one_row = f"'\\x{block.hex()}'::bytea"
    for rows, message in (
        (f"(0, {one_row})", 'step must be an integer from 1 to "steps" in options, 5'),
        (f"(6, {one_row})", "step must be an integer from 1"),
        (f"(NULL::int, {one_row})", "step must be an integer from 1"),
        (f"(2, {one_row}), (1, {one_row})", "steps must not go backwards"),
        ("(5, NULL::bytea)", "block must not be null"),
    ):
        with pytest.raises(psycopg.Error) as caught:
            connection.execute(query.format("NULL", rows).encode(), (options,))
        assert message in str(caught.value.diag.message_primary)
    with pytest.raises(errors.InvalidParameterValue, match="rows must be an integer >= 0, or null"):
        connection.execute(query.format("-1", f"(1, {one_row})").encode(), (options,))
    alone = query.format("7", f"(2, '\\x{empty.hex()}'::bytea)")
    weights, _, steps, n_rows = epoch(connection, alone, options)
    assert (weights.tolist(), steps, n_rows) == ([0.0, 0.0], 5, 7)


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"sampling": 0.5}, "steps"),
        ({"steps": 5}, "sampling"),
        ({"steps": 0, "sampling": 0.5}, "steps"),
        ({"steps": 1.5, "sampling": 0.5}, "steps"),
        ({"steps": 5, "sampling": 0}, "sampling"),
        ({"steps": 5, "sampling": 1.01}, "sampling"),
        ({"steps": 5, "sampling": "1"}, "sampling"),
        ({"steps": 5, "sampling": 0.5, "noise": "gaussian"}, "noise_scale"),
        ({"steps": 5, "sampling": 0.5, "momentum": 1}, "momentum"),
    ],
)
def test_bad_options_of_poisson_steps(connection: psycopg.Connection, options: Options, key: str) -> None:
    load(connection, unit_vectors())
    given = as_json({"loss": "logistic", "step_size": 1, **options})
    with pytest.raises(errors.InvalidParameterValue, match=f'"{key}" in options must be'):
        connection.execute("SELECT dpml.sgd_poisson(block_no, block, NULL, %s::jsonb) FROM blocks", (given,))
    if key == "sampling" and "sampling" not in options:
        return
    with pytest.raises(errors.InvalidParameterValue, match=f'"{key}" in options must be'):
        connection.execute(
            "SELECT dpml.sgd_poisson_steps(1, block, NULL, NULL, %s::jsonb) FROM blocks", (given,)
        )


def test_momentum_needs_its_velocity(connection: psycopg.Connection) -> None:
    load(connection, [replay.pack_dense([[0.5, 0.25]], [1.0])])
    query = "SELECT dpml.sgd_epoch(block_no, block, {}, %s::jsonb) AS r FROM blocks"
    options = as_json({"loss": "logistic", "step_size": 1, "momentum": 0.5})
    with pytest.raises(errors.InvalidParameterValue, match="start must have a velocity"):
        connection.execute(query.format("ROW('{1,1}', NULL, 3, 0, NULL)").encode(), (options,))
    with pytest.raises(errors.InvalidParameterValue, match="the velocity in start must have 2 elements"):
        connection.execute(query.format("ROW('{1,1}', NULL, 3, 0, '{1}')").encode(), (options,))
    started = "SELECT (r).velocity FROM (" + query.format("ROW('{0,0}', NULL, 3, 0, '{1,2}')") + ") AS s"
    velocity = numbers(scalar(connection, started, options))
    close(velocity, np.array([0.5 - 0.25, 1.0 - 0.125]))


def test_work_mem_is_kept(connection: psycopg.Connection) -> None:
    """1 GB by default; the error names the setting and the way out; nothing is taken beyond it."""
    rows = np.zeros((100, 200))
    load(connection, [replay.pack_dense(rows, np.ones(100))] * 30)
    query = "SELECT dpml.sgd_poisson(block_no, block, NULL, %s::jsonb ORDER BY block_no) AS r FROM blocks"
    options = as_json({"loss": "logistic", "step_size": 1, "steps": 3, "sampling": 0.1})
    assert epoch(connection, query, options)[2:] == (3, 3000)
    assert scalar(connection, "SHOW dpml.work_mem") == "1GB"
    connection.execute("SET dpml.work_mem = '2MB'")
    with pytest.raises(
        errors.ProgramLimitExceeded, match=r"more memory than dpml\.work_mem, 2048 kB"
    ) as caught:
        connection.execute(query.encode(), (options,))
    assert "dpml.poisson_steps" in str(caught.value.diag.message_hint)
    # 3000 rows of 804 bytes, and 8 for each
    connection.execute("SET dpml.work_mem = '2379kB'")
    assert epoch(connection, query, options)[2:] == (3, 3000)
    for value in ("0", "-1", "'much'"):
        with pytest.raises(errors.InvalidParameterValue):
            connection.execute(f"SET dpml.work_mem = {value}".encode())


@pytest.mark.parametrize(
    "query",
    [
        "SELECT dpml.sgd_poisson(block_no, block, NULL, %s::jsonb ORDER BY block_no) FROM blocks",
        "SELECT dpml.sgd_poisson_steps(1, block, NULL, NULL, %s::jsonb) FROM blocks",
        "SELECT count(*) FROM blocks AS b, dpml.poisson_steps(b.block, 2147483647, 1), (SELECT %s) AS o",
    ],
    ids=["in-memory", "sorted", "drawing"],
)
def test_cancel_within_a_second(database: str, query: str) -> None:
    options = as_json(
        {
            "loss": "logistic",
            "step_size": 1,
            "steps": 2**31 - 1,
            "sampling": 1e-9,
            "noise": "gaussian",
            "noise_scale": 1,
        }
    )
    with psycopg.connect(database, autocommit=True) as connection:
        load(connection, unit_vectors())
        cancelled: list[float] = []

        def cancel() -> None:
            cancelled.append(time.monotonic())
            connection.cancel()

        timer = threading.Timer(1.0, cancel)
        timer.start()
        with pytest.raises(errors.QueryCanceled):
            connection.execute(query.encode(), (options,))
        assert time.monotonic() - cancelled[0] < 1.0


@pytest.fixture(scope="module")
def preloaded(server: EmbeddedServer) -> Iterator[str]:
    """A server whose every process is forked with the library already loaded."""
    settings = {"shared_preload_libraries": "pg_dpml", "max_worker_processes": "8"}
    with EmbeddedServer(major=server.major, settings=settings) as running:
        with psycopg.connect(running.dsn, autocommit=True) as connection:
            connection.execute("CREATE EXTENSION pg_dpml")
            connection.execute("CREATE TABLE blocks (block_no int, block bytea) WITH (parallel_workers = 2)")
            with connection.cursor() as cursor:
                cursor.executemany(
                    "INSERT INTO blocks VALUES (%s, %b)",
                    [(i, replay.pack_dense(np.zeros((40, 3)), np.ones(40))) for i in range(60)],
                )
        yield running.dsn


DRAWS = "SELECT b.block_no, p.step FROM blocks AS b, dpml.poisson_steps(b.block, 10, 0.5) AS p"


def coins(connection: psycopg.Connection) -> list[object]:
    """The steps drawn for the units of each block, in order."""
    drawn: dict[int, list[int]] = {}
    for block_no, step in connection.execute(DRAWS.encode()):
        drawn.setdefault(block_no, []).append(step)
    return [tuple(steps) for steps in drawn.values()]


def streams_of_a_session(dsn: str) -> list[object]:
    """Noise of two passes; coins of calls in this process, and in workers that it forks."""
    options = {"loss": "logistic", "step_size": 1, "batch_size": 2400, "noise": "gaussian", "noise_scale": 1}
    found: list[object] = []
    with psycopg.connect(dsn, autocommit=True) as connection:
        assert scalar(connection, "SHOW shared_preload_libraries") == "pg_dpml"
        for form, more in (("sgd_epoch", {}), ("sgd_poisson", {"steps": 1, "sampling": 1e-12})):
            query = f"SELECT dpml.{form}(block_no, block, NULL, %s::jsonb ORDER BY block_no) AS r FROM blocks"
            found.append(tuple(epoch(connection, query, as_json(options | more))[0].tolist()))
        found += coins(connection)
        for setting in ("parallel_setup_cost", "parallel_tuple_cost", "min_parallel_table_scan_size"):
            connection.execute(f"SET {setting} = 0".encode())
        connection.execute("SET max_parallel_workers_per_gather = 2; SET parallel_leader_participation = off")
        plan = json.dumps(scalar(connection, f"EXPLAIN (ANALYZE, FORMAT JSON) {DRAWS}"))
        assert '"Workers Launched": 2' in plan
        found += coins(connection)
    return found


def test_no_two_streams_are_equal(preloaded: str) -> None:
    """Eight sessions and their workers, forked from a process that has the library loaded."""
    with ThreadPoolExecutor(2) as pool:
        sessions = list(pool.map(lambda _: streams_of_a_session(preloaded), range(8)))
    found = [stream for session in sessions for stream in session]
    assert len(found) == 8 * (2 + 60 + 60)
    assert len(set(found)) == len(found)
