# SPDX-License-Identifier: PostgreSQL
"""dpml.gradient, dpml.gram and dpml.whiten: against numpy, in plans with workers, with forged states."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import psycopg
import pytest
from psycopg import errors, sql

from helpers import replay
from helpers.sqltools import FloatArray, as_json, close, make_rows, numbers, scalar
from pg_dpml.kernels import Loss

pytestmark = pytest.mark.dealt

N, D, K = 1003, 11, 3

LOSSES: list[tuple[dict[str, Any], Loss]] = [
    ({"loss": "logistic"}, Loss("logistic")),
    ({"loss": "logistic", "clip": 0.3}, Loss("logistic", clip=0.3)),
    ({"loss": "huber_svm", "huber_h": 0.5}, Loss("huber_svm", huber_h=0.5)),
    ({"loss": "hinge"}, Loss("hinge")),
    ({"loss": "hinge", "clip": 0.3, "classes": K}, Loss("hinge", n_classes=K, clip=0.3)),
    ({"loss": "squared", "clip": 0.5}, Loss("squared", clip=0.5)),
    ({"loss": "softmax", "classes": K}, Loss("softmax", n_classes=K)),
    ({"loss": "logistic", "classes": K}, Loss("logistic", n_classes=K)),
    ({"loss": "softmax", "classes": 7}, Loss("softmax", n_classes=7)),
]
LOGISTIC = '{"loss": "logistic"}'
SUMS = "SELECT (r).* FROM (SELECT dpml.gradient(block, %s::float8[], %s::jsonb) AS r FROM blocks) s"
GRAM = "SELECT (r).* FROM (SELECT dpml.gram(block) AS r FROM blocks) s"
HESSIAN = "SELECT (r).* FROM (SELECT dpml.gram(block, %s::float8[], %s::jsonb) AS r FROM blocks) s"


def pack(x: FloatArray, y: FloatArray, form: str, rows: int, starts: Any = None) -> list[bytes]:
    blocks = []
    for i in range(0, len(x), rows):
        part = slice(i, i + rows)
        own = None if starts is None else starts[part]
        if form == "dense":
            blocks.append(replay.pack_dense(x[part], y[part], own))
        else:
            row, column = np.nonzero(x[part])
            row_end = np.searchsorted(row, np.arange(len(x[part])), side="right")
            blocks.append(replay.pack_csr(x.shape[1], row_end, column, x[part][row, column], y[part], own))
    return blocks


def load(connection: psycopg.Connection, blocks: list[bytes], kind: str = "TEMP") -> None:
    """A table blocks (block_no, block)."""
    connection.execute(f"CREATE {kind} TABLE blocks (block_no int, block bytea)".encode())
    connection.execute("ALTER TABLE blocks ALTER block SET STORAGE EXTERNAL")
    with connection.cursor() as cursor, cursor.copy("COPY blocks FROM STDIN") as copy:
        for number, block in enumerate(blocks):
            copy.write_row((number, block))


def labels_of(options: dict[str, Any]) -> str:
    return "softmax" if "classes" in options else str(options["loss"])


def sums(connection: psycopg.Connection, query: str, *values: Any) -> tuple[Any, Any, int]:
    """Both arrays, None where NULL, and the number of rows."""
    row = connection.execute(query.encode(), values).fetchone()
    assert row is not None
    first, second, rows = row
    return None if first is None else numbers(first), None if second is None else numbers(second), rows


def refused(connection: psycopg.Connection, query: str, *values: Any) -> str:
    with pytest.raises(psycopg.Error) as caught:
        connection.execute(query.encode(), values)
    return str(caught.value.diag.message_primary)


@pytest.mark.parametrize("form", ["dense", "csr"])
@pytest.mark.parametrize(("options", "loss"), LOSSES, ids=str)
def test_gradient(connection: psycopg.Connection, options: dict[str, Any], loss: Loss, form: str) -> None:
    """What the kernel gives, whose tests compare it with numpy."""
    x, y = make_rows(N, D, labels_of(options), classes=K)
    x[:, ::2] *= np.arange(N)[:, np.newaxis] % 2
    starts = np.arange(N) % 4 == 0
    blocks = pack(x, y, form, 40, starts)
    load(connection, blocks)
    w = np.random.default_rng(2).normal(size=3 * loss.n_classes * D)
    more: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({}, {}),
        ({"losses": False}, {"losses": False}),
        ({"gradient": False}, {"gradient": False}),
        ({"gradient_clip": 0.3, "loss_clip": 0.4}, {"gradient_clip": 0.3, "loss_clip": 0.4}),
        ({"max_rows_per_unit": 4, "unit_clip": 0.2}, {"unit_clip": 0.2}),
    ]
    if options["loss"] != "squared":
        more.append(({"errors": True, "gradient": False}, {"errors": True, "gradient": False}))
    for in_sql, in_kernel in more:
        found = sums(connection, SUMS, w.tolist(), as_json({**options, "models": 3, **in_sql}))
        wanted = replay.gradient(blocks, w, loss, models=3, **in_kernel)
        for got, expected in zip(found[:2], wanted[:2], strict=True):
            if expected is None:
                assert got is None
            else:
                close(got, expected)
        assert found[2] == N


def test_gradient_against_numpy(connection: psycopg.Connection) -> None:
    x, y = make_rows(N, D, "logistic")
    load(connection, pack(x, y, "dense", 40))
    w = np.random.default_rng(2).normal(size=D)
    margin = y * (x @ w)
    gradient, losses, rows = sums(connection, SUMS, w.tolist(), LOGISTIC)
    close(gradient, -(y / (1 + np.exp(margin))) @ x)
    close(losses, np.array([np.log1p(np.exp(-margin)).sum()]))
    assert rows == N


@pytest.mark.parametrize("form", ["dense", "csr"])
def test_gram_against_numpy(connection: psycopg.Connection, form: str) -> None:
    x, y = make_rows(N, D, "squared")
    x[:, ::2] *= np.arange(N)[:, np.newaxis] % 2
    load(connection, pack(x, y, form, 40))
    upper = np.triu_indices(D)
    xx, xy, rows = sums(connection, GRAM)
    close(xx, (x.T @ x)[upper])
    close(xy, x.T @ y)
    assert rows == N
    w = np.random.default_rng(3).normal(size=D)
    p = 1 / (1 + np.exp(-(x @ w)))
    p[y == 0] = 0
    xx, xy, rows = sums(connection, HESSIAN, w.tolist(), LOGISTIC)
    close(xx, ((x * (p * (1 - p))[:, np.newaxis]).T @ x)[upper])
    assert xy is None
    assert rows == N


def test_without_a_row(connection: psycopg.Connection) -> None:
    load(connection, [])
    for found in (
        sums(connection, SUMS, [0.0] * D, LOGISTIC),
        sums(connection, GRAM),
        sums(connection, HESSIAN, [0.0] * D, LOGISTIC),
    ):
        assert found == (None, None, 0)
    connection.execute("DROP TABLE blocks")
    load(connection, [replay.pack_dense(np.empty((0, 2)), [])])
    gradient, losses, rows = sums(connection, SUMS, [0.0] * 2, LOGISTIC)
    assert (gradient.tolist(), losses.tolist(), rows) == ([0, 0], [0], 0)


def test_groups_have_their_own_weights_and_options(connection: psycopg.Connection) -> None:
    x, y = make_rows(N, D, "logistic")
    blocks = pack(x, y, "dense", 40)
    load(connection, blocks)
    losses = [Loss("logistic"), Loss("huber_svm", huber_h=0.2)]
    found = connection.execute(
        """SELECT g, (dpml.gradient(block, array_fill(0.1 * g, '{11}'),
             CASE WHEN g % 2 = 0 THEN '{"loss": "logistic"}'::jsonb
             ELSE '{"loss": "huber_svm", "huber_h": 0.2}' END)).gradient,
           (dpml.gram(block, array_fill(0.1 * g, '{11}'), '{"loss": "logistic"}')).xx
           FROM blocks, generate_series(0, 5) AS g GROUP BY g ORDER BY g"""
    ).fetchall()
    assert len(found) == 6
    for g, gradient, xx in found:
        w = np.full(D, 0.1 * g)
        wanted = replay.gradient(blocks, w, losses[g % 2]).gradient
        assert wanted is not None
        close(numbers(gradient), wanted)
        close(numbers(xx), replay.gram(blocks, w, losses[0]).xx)


@pytest.fixture
def large(connection: psycopg.Connection) -> Iterator[tuple[psycopg.Connection, list[bytes]]]:
    """A table of 10,000 blocks as training packs them; each of the 500 returned ones is twenty of them."""
    x, y = make_rows(500 * 39, 50, "logistic")
    blocks = pack(x, y, "dense", 39)
    load(connection, blocks, "UNLOGGED")
    connection.execute("CREATE UNLOGGED TABLE large (block bytea)")
    connection.execute("ALTER TABLE large ALTER block SET STORAGE PLAIN")
    connection.execute("INSERT INTO large SELECT block FROM blocks, generate_series(1, 20)")
    connection.execute("ANALYZE large")
    connection.execute("SET max_parallel_workers_per_gather = 2")
    yield connection, blocks
    connection.execute("DROP TABLE large, blocks")


@pytest.mark.parametrize("call", ["gradient", "gram", "hessian"])
def test_workers_give_the_serial_result(large: tuple[psycopg.Connection, list[bytes]], call: str) -> None:
    """In the plan that the server chooses by itself."""
    connection, blocks = large
    w = np.random.default_rng(4).normal(size=50)
    given = (w.tolist(), LOGISTIC)
    loss = Loss("logistic")
    query, values, wanted = {
        "gradient": (SUMS, given, replay.gradient(blocks, w, loss)[:2]),
        "gram": (GRAM, (), replay.gram(blocks)[:2]),
        "hessian": (HESSIAN, given, replay.gram(blocks, w, loss)[:2]),
    }[call]
    query = query.replace("FROM blocks", "FROM large")
    plan = json.dumps(scalar(connection, f"EXPLAIN (ANALYZE, FORMAT JSON) {query}", *values))
    assert '"Partial Mode": "Partial"' in plan
    assert '"Partial Mode": "Finalize"' in plan
    assert '"Workers Launched": 2' in plan
    parallel = sums(connection, query, *values)
    connection.execute("SET max_parallel_workers_per_gather = 0")
    plan = json.dumps(scalar(connection, f"EXPLAIN (FORMAT JSON) {query}", *values))
    assert "Gather" not in plan
    serial = sums(connection, query, *values)
    assert parallel[2] == serial[2] == 20 * 500 * 39
    for one, other, expected in zip(parallel[:2], serial[:2], wanted, strict=True):
        if expected is None:
            assert one is other is None
            continue
        close(one, other)
        close(serial[0] if expected is wanted[0] else other, 20 * expected)


def test_weights_may_come_from_a_table(large: tuple[psycopg.Connection, list[bytes]]) -> None:
    """As training passes them: a scalar subquery, in a plan with workers too."""
    connection, blocks = large
    w = np.random.default_rng(4).normal(size=50)
    connection.execute("CREATE UNLOGGED TABLE w (w float8[])")
    connection.execute("INSERT INTO w VALUES (%s::float8[])", (w.tolist(),))
    query = f"SELECT dpml.gradient(block, (SELECT w FROM w), '{LOGISTIC}') AS r FROM large"
    assert "Gather" in json.dumps(scalar(connection, f"EXPLAIN (FORMAT JSON) {query}"))
    gradient, _, _ = sums(connection, f"SELECT (r).* FROM ({query}) s")
    wanted = replay.gradient(blocks, w, Loss("logistic")).gradient
    assert wanted is not None
    close(gradient, 20 * wanted)
    connection.execute("DROP TABLE w")


COUNT_UNITS = "an integer >= 1: the most rows of a unit"
BAD_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"loss": None}, '"loss" in options must be one of "logistic"'),
    ({"loss": "softmax"}, '"classes" in options must be given with the loss "softmax"'),
    ({"loss": "squared", "classes": 2}, '"classes" in options must be absent'),
    ({"models": 0}, '"models" in options must be an integer from 1 to 64'),
    ({"models": 65}, '"models" in options must be an integer from 1 to 64'),
    ({"models": "2"}, '"models" in options must be an integer from 1 to 64'),
    ({"gradient": 1}, '"gradient" in options must be true or false'),
    ({"losses": "no"}, '"losses" in options must be true or false'),
    ({"errors": 0}, '"errors" in options must be true or false'),
    ({"loss": "squared", "errors": True}, '"errors" in options must be false with the loss "squared"'),
    ({"gradient_clip": 0}, '"gradient_clip" in options must be a number > 0'),
    ({"gradient_clip": "1"}, '"gradient_clip" in options must be a number > 0'),
    ({"loss_clip": -1}, '"loss_clip" in options must be a number > 0'),
    ({"loss_clip": 1, "errors": True}, '"loss_clip" in options must be absent with "errors"'),
    ({"unit_clip": 0, "max_rows_per_unit": 2}, '"unit_clip" in options must be a number > 0'),
    ({"unit_clip": 1}, '"max_rows_per_unit" in options must be given with "unit_clip"'),
    ({"max_rows_per_unit": 0}, f'"max_rows_per_unit" in options must be {COUNT_UNITS}'),
    ({"clip": 0}, '"clip" in options must be a number > 0'),
    ({"huber_h": 0}, '"huber_h" in options must be a number from 1e-270 to 1e270'),
    ({"lambda": 1}, 'unknown key "lambda" in options'),
]
BAD_HESSIAN_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"loss": None}, '"loss" in options must be one of "logistic", "huber_svm", "squared"'),
    ({"loss": "softmax"}, '"loss" in options must be one of "logistic", "huber_svm", "squared"'),
    ({"classes": 3}, 'unknown key "classes" in options'),
    ({"clip": 0}, '"clip" in options must be a number > 0'),
]


def test_bad_options_are_named(connection: psycopg.Connection) -> None:
    x, y = make_rows(20, D, "logistic")
    load(connection, pack(x, y, "dense", 10))
    for query, cases in ((SUMS, BAD_OPTIONS), (HESSIAN, BAD_HESSIAN_OPTIONS)):
        for change, message in cases:
            options = json.dumps({"loss": "logistic", **change})
            assert refused(connection, query, [0.0] * D, options).startswith(message)
        assert refused(connection, query, [0.0] * D, None) == "options must not be null"
        assert refused(connection, query, [0.0] * D, "[]") == "options must be a JSON object"
        varying = query.replace("%s::jsonb", "jsonb_build_object('loss', 'logistic', 'clip', block_no + 1)")
        assert refused(connection, varying, [0.0] * D) == "options must be the same for all rows of a pass"


def test_bad_arguments_are_named(connection: psycopg.Connection) -> None:
    x, y = make_rows(20, 4, "logistic")
    load(connection, pack(x, y, "dense", 10))
    message = "weights must have 4 elements (1 x 1 x 4: models, classes, features of the block), not 3"
    assert refused(connection, SUMS, [0.0] * 3, LOGISTIC) == message
    message = "weights must have 24 elements (2 x 3 x 4: models, classes, features of the block), not 4"
    options = '{"loss": "softmax", "classes": 3, "models": 2}'
    assert refused(connection, SUMS, [0.0] * 4, options) == message
    message = "weights must have 4 elements, one a feature of the block, not 3"
    assert refused(connection, HESSIAN, [0.0] * 3, LOGISTIC) == message
    for query in (SUMS, HESSIAN):
        assert refused(connection, query, None, LOGISTIC) == "weights must not be null"
        assert refused(connection, query, [0.0, None, 0.0, 0.0], LOGISTIC) == "weights must not contain nulls"
    for value in (math.nan, math.inf, -math.inf):
        weights = [0.0, value, 0.0, 0.0]
        assert refused(connection, SUMS, weights, LOGISTIC) == "weights must have finite elements"
    connection.execute("INSERT INTO blocks VALUES (2, %s)", (replay.pack_dense([[1.0, 0.0]], [1.0]),))
    message = "block has 2 features, the weights have another number"
    assert refused(connection, SUMS, [0.0] * 4, LOGISTIC) == message
    message = "block has 2 features, the blocks before it had another number"
    assert refused(connection, GRAM) == message
    assert refused(connection, HESSIAN, [0.0] * 4, LOGISTIC) == message
    connection.execute("UPDATE blocks SET block = NULL WHERE block_no = 2")
    assert refused(connection, GRAM) == "block must not be null"
    assert refused(connection, SUMS, [0.0] * 4, LOGISTIC) == "block must not be null"
    connection.execute("UPDATE blocks SET block = '\\x00' WHERE block_no = 2")
    for found in (refused(connection, GRAM), refused(connection, SUMS, [0.0] * 4, LOGISTIC)):
        assert "packed block" in found


def test_support_functions_are_for_aggregates(connection: psycopg.Connection) -> None:
    for call in (
        "gradient_combine(NULL, NULL)",
        "gradient_final('\\x00')",
        "gram_transition('\\x00', '\\x00')",
        "gram_combine('\\x00', '\\x00')",
        "gram_final(NULL)",
    ):
        assert "was called outside an aggregate" in refused(connection, f"SELECT dpml.{call}")


# What makes a state of each kind, with the arguments after the block, and the transition that takes one.
STATES = {
    "gradient": ("bytea, float8[], jsonb", ", '{1,2,3,4}'::float8[], '{\"loss\": \"logistic\"}'::jsonb"),
    "gram": ("bytea", ""),
    "hessian": ("bytea, float8[], jsonb", ", '{1,2,3,4}'::float8[], '{\"loss\": \"logistic\"}'::jsonb"),
}
# Sparse blocks keep these sums, and the weights, by feature.
OF_SEVEN = (
    "bytea, float8[], jsonb",
    f', \'{{{",".join(map(str, range(28)))}}}\'::float8[], \'{{"loss": "softmax", "classes": 7}}\'::jsonb',
)


class States:
    """States of an aggregate as bytes; only an aggregate of one's own can show or forge one."""

    def __init__(
        self, connection: psycopg.Connection, kind: str, arguments: tuple[str, str] | None = None
    ) -> None:
        self._connection = connection
        self._kind = kind
        self._family = "gram" if kind == "hessian" else kind
        self._types, self._values = arguments or STATES[kind]
        connection.execute(
            f"CREATE AGGREGATE pg_temp.state_of ({self._types})"
            f" (SFUNC = dpml.{kind}_transition, STYPE = bytea);"
            f"CREATE AGGREGATE pg_temp.joined (bytea) (SFUNC = dpml.{self._family}_combine, STYPE = bytea,"
            f" FINALFUNC = dpml.{self._family}_final)".encode()
        )

    def make(self, where: str = "true") -> bytes:
        query = f"SELECT pg_temp.state_of(block{self._values}) FROM blocks WHERE {where}"
        return bytes(scalar(self._connection, query))

    def join(self, *states: bytes) -> Any:
        query = "SELECT (r).* FROM (SELECT pg_temp.joined(s ORDER BY i) AS r FROM unnest(%s::bytea[])"
        return sums(self._connection, f"{query} WITH ORDINALITY AS u (s, i)) s", list(states))

    def go_on(self, state: bytes) -> Any:
        """The result of a transition from a given state over all blocks."""
        self._connection.execute(
            sql.SQL(
                "CREATE AGGREGATE pg_temp.forged ({}) (SFUNC = dpml.{}, STYPE = bytea,"
                " FINALFUNC = dpml.{}, INITCOND = {})"
            ).format(
                sql.SQL(self._types),
                sql.Identifier(f"{self._kind}_transition"),
                sql.Identifier(f"{self._family}_final"),
                sql.Literal("\\x" + state.hex()),
            )
        )
        try:
            query = f"SELECT (r).* FROM (SELECT pg_temp.forged(block{self._values}) AS r FROM blocks) s"
            return sums(self._connection, query)
        finally:
            self._connection.execute(f"DROP AGGREGATE pg_temp.forged ({self._types})".encode())


@pytest.fixture(params=sorted(STATES))
def states(connection: psycopg.Connection, request: pytest.FixtureRequest) -> States:
    x, y = make_rows(90, 4, "logistic")
    load(connection, pack(x, y, "dense", 30))
    return States(connection, request.param)


def test_states_combine_in_any_grouping(states: States) -> None:
    whole = states.join(states.make())
    parts = [states.make(f"block_no = {i}") for i in range(3)]
    for found in (states.join(*parts), states.join(parts[2], parts[0], parts[1]), states.go_on(parts[0])):
        for got, expected in zip(found[:2], whole[:2], strict=True):
            assert (got is None) == (expected is None)
        assert found[2] in (90, 120)
    for got, expected in zip(states.join(*parts)[:2], whole[:2], strict=True):
        if expected is not None:
            close(got, expected)


def test_states_of_both_formats_combine(connection: psycopg.Connection) -> None:
    """Dense and sparse blocks of one group, in any order, on one worker or on several."""
    x, y = make_rows(90, 4, "softmax", classes=7)
    dense, sparse = pack(x, y, "dense", 30), pack(x, y, "csr", 30)
    load(connection, dense)
    states = States(connection, "gradient", OF_SEVEN)
    parts = [states.make(f"block_no = {i}") for i in range(3)]
    wanted = states.join(*parts)
    connection.execute("TRUNCATE blocks")
    with connection.cursor() as cursor, cursor.copy("COPY blocks FROM STDIN") as copy:
        for number, block in enumerate((sparse[0], dense[1], sparse[2])):
            copy.write_row((number, block))
    mixed = [states.make(f"block_no = {i}") for i in range(3)]
    for found in (
        states.join(*mixed),
        states.join(mixed[1], mixed[0], mixed[2]),
        states.join(parts[0], mixed[2], parts[1]),
        states.join(states.make()),
        states.join(states.make("block_no < 2"), mixed[2]),
    ):
        for got, expected in zip(found[:2], wanted[:2], strict=True):
            close(got, expected)
        assert found[2] == 90


def test_forged_orders_are_refused(connection: psycopg.Connection) -> None:
    """A state by feature whose number of features is not that of its sums."""
    x, y = make_rows(60, 4, "softmax", classes=7)
    load(connection, pack(x, y, "csr", 30))
    states = States(connection, "gradient", OF_SEVEN)
    good = states.make()
    assert good[28:36] == (4).to_bytes(8, "little")
    for forged in ((3).to_bytes(8, "little"), b"\xff" * 8, b"\xff" * 7 + b"\x7f"):
        for call in (states.join, lambda s: states.join(good, s), states.go_on):
            with pytest.raises(errors.DataCorrupted, match=r"bytes are not a state of this dpml\."):
                call(good[:28] + forged + good[36:])
    with pytest.raises(errors.DataCorrupted, match=r"bytes are not a state of this dpml\."):
        states.go_on(good[:28] + (2).to_bytes(8, "little") + good[36:])
    with pytest.raises(errors.InvalidParameterValue, match="cannot be combined"):
        states.join(good, good[:28] + (2).to_bytes(8, "little") + good[36:])


def test_a_state_may_be_combined_several_times(states: States, connection: psycopg.Connection) -> None:
    """A planner may pass one partial state to several groups: it is neither changed nor kept."""
    parts = [states.make(f"block_no = {i}") for i in range(2)]
    # First in a row and unpacked, so that its bytes are where the table has them, and not a copy.
    connection.execute("CREATE TEMP TABLE parts (state bytea, part int)")
    connection.execute("ALTER TABLE parts ALTER state SET STORAGE PLAIN")
    connection.execute("INSERT INTO parts VALUES (%s, 0), (%s, 1)", parts)
    expected = states.join(*parts, *parts)
    query = "SELECT pg_temp.joined(state) FROM parts, generate_series(1, 4) AS i GROUP BY mod(i, 2)"
    for setting in ("enable_sort", "enable_hashagg"):
        connection.execute(f"SET {setting} = off".encode())
        for group in (0, 1):
            found = sums(connection, f"SELECT (j).* FROM ({query} OFFSET {group} LIMIT 1) AS g (j)")
            assert found[2] == expected[2] == 120
            for got, wanted in zip(found[:2], expected[:2], strict=True):
                assert (got is None) == (wanted is None)
                if wanted is not None:
                    close(got, wanted)
        connection.execute(f"RESET {setting}".encode())
    kept = connection.execute("SELECT state FROM parts ORDER BY part").fetchall()
    assert [bytes(state) for (state,) in kept] == parts


def test_forged_states_are_refused(states: States) -> None:
    """A cut or a wrong header is an error by name; any other byte an error or a result, never a crash."""
    good = states.make()
    draw = np.random.default_rng(11)
    for length in (0, 1, 4, 12, 27, 28, 35, 36, 37, 60, len(good) - 8, len(good) - 1):
        for forged in (good[:length], good[:length] + bytes(2 * len(good))):
            for call in (lambda s: states.join(s), lambda s: states.join(good, s), states.go_on):
                with pytest.raises(errors.DataCorrupted, match=r"bytes are not a state of this dpml\."):
                    call(forged)
    # kind, version, pending, rows < 0, features, and each length of the header, small and huge
    forgeries = [(0, b"?"), (1, b"\x07"), (2, b"\xff\xff"), (4, b"\xff" * 8)]
    forgeries.append((28, (1 << 40).to_bytes(8, "little")))
    for at in (12, 16, 20, 24):
        forgeries += [(at, b"\xff" * 4), (at, b"\xff\xff\xff\x7f"), (at, b"\x02\0\0\0")]
    for at, bits in forgeries:
        forged = good[:at] + bits + good[at + len(bits) :]
        for call in (lambda s: states.join(good, s), states.go_on):
            with pytest.raises(errors.DataCorrupted, match=r"bytes are not a state of this dpml\."):
                call(forged)
    for _ in range(200):
        noise = bytearray(good)
        for at in draw.integers(0, len(good), size=3):
            noise[at] = draw.integers(0, 256)
        for pair in ((good, bytes(noise)), (bytes(noise), good)):
            with contextlib.suppress(errors.DataCorrupted, errors.InvalidParameterValue):
                states.join(*pair)
    assert states.join(good)[2] == 90


@pytest.mark.parametrize("kind", ["gradient", "hessian"])
def test_states_of_other_weights_or_options_do_not_mix(connection: psycopg.Connection, kind: str) -> None:
    """Weights and options are the last of a state."""
    x, y = make_rows(90, 4, "logistic")
    load(connection, pack(x, y, "dense", 30))
    states = States(connection, kind)
    good = states.make()
    options = good.index(b"logistic")
    for at in (options, len(good) - 1, options - 48):
        other = bytearray(good)
        other[at] ^= 1
        with pytest.raises(errors.InvalidParameterValue, match="cannot be combined"):
            states.join(good, bytes(other))
    with pytest.raises(errors.InvalidParameterValue, match="options must be the same"):
        states.go_on(good[:options] + b"LOGISTIC" + good[options + 8 :])


def test_states_need_blocks_that_fit(states: States, connection: psycopg.Connection) -> None:
    good = states.make()
    connection.execute("UPDATE blocks SET block = %s", (replay.pack_dense(np.ones((2, 5)), [1.0, 1.0]),))
    with pytest.raises(errors.InvalidParameterValue, match="features"):
        states.go_on(good)


@pytest.mark.parametrize("form", ["dense", "csr"])
def test_wide_gradient(connection: psycopg.Connection, form: str) -> None:
    d = 50_000
    draw = np.random.default_rng(12)
    x = np.zeros((300, d))
    x[np.arange(300)[:, np.newaxis], draw.integers(0, d, size=(300, 50))] = np.float32(0.1)
    y = draw.choice(np.array([-1.0, 1.0]), size=300)
    load(connection, pack(x, y, form, 5 if form == "dense" else 20))
    w = draw.normal(size=d)
    gradient, losses, rows = sums(connection, SUMS, w.tolist(), LOGISTIC)
    margin = y * (x @ w)
    close(gradient, -(y / (1 + np.exp(margin))) @ x)
    close(losses, np.array([np.log1p(np.exp(-margin)).sum()]))
    assert rows == 300


def test_widest_gram(connection: psycopg.Connection) -> None:
    d = 2500
    x, y = make_rows(60, d, "squared")
    load(connection, pack(x, y, "dense", 26))
    xx, xy, _ = sums(connection, GRAM)
    close(xx, (x.T @ x)[np.triu_indices(d)])
    close(xy, x.T @ y)
    xx, _, _ = sums(connection, HESSIAN, [0.0] * d, LOGISTIC)
    close(xx, 0.25 * (x.T @ x)[np.triu_indices(d)])
    connection.execute("TRUNCATE blocks")
    connection.execute("INSERT INTO blocks VALUES (0, %s)", (replay.pack_dense(np.ones((1, d + 1)), [1.0]),))
    message = "block has 2501 features, dpml.gram takes at most 2500"
    assert refused(connection, GRAM) == message
    assert refused(connection, HESSIAN, [0.0] * (d + 1), LOGISTIC) == message


def test_states_are_at_most_one_gigabyte(connection: psycopg.Connection) -> None:
    wide = replay.pack_csr(2**20, [1], [0], [1.0], [0.0])
    load(connection, [wide])
    options = '{"loss": "softmax", "classes": 50, "losses": false}'
    weights = "array_fill(0::float8, '{52428800}')"
    message = "the state of dpml.gradient would be larger than 1 GB"
    assert refused(connection, SUMS.replace("%s::float8[]", weights), options) == message


@pytest.mark.parametrize("call", ["gradient", "gram", "whiten"])
def test_cancelling_takes_less_than_a_second(connection: psycopg.Connection, call: str) -> None:
    """All rows in one block, which takes many seconds."""
    d = 2000
    x, y = make_rows(2000, d, "squared")
    load(connection, [replay.pack_dense(np.tile(x, (4, 1)), np.tile(y, 4))])
    options = '{"loss": "squared", "models": 64}'
    query = {
        "gradient": f"SELECT dpml.gradient(block, array_fill(0.1::float8, '{{128000}}'), '{options}')"
        " FROM blocks, generate_series(1, 100)",
        "gram": "SELECT dpml.gram(block) FROM blocks",
        "whiten": "SELECT dpml.whiten(block, array_fill(0.1::float8, '{4000000}'), 1) FROM blocks",
    }[call]
    connection.execute("SET statement_timeout = 500")
    start = time.monotonic()
    with pytest.raises(errors.QueryCanceled):
        connection.execute(query.encode())
    assert time.monotonic() - start < 1.5


@pytest.mark.parametrize("form", ["dense", "csr"])
@pytest.mark.parametrize("d", [3, 60])
def test_whiten(connection: psycopg.Connection, d: int, form: str) -> None:
    """The matrix from where it may come: a constant, or a table, in line, compressed or out of line."""
    x, y = make_rows(100, d, "softmax")
    x[4] = 0.0
    blocks = pack(x, y, form, 30, np.arange(100) % 3 == 0)
    load(connection, blocks)
    draw = np.random.default_rng(13).normal(size=(d, d))
    matrices = [draw + draw.T + 3 * d * np.eye(d), np.eye(d), 2.5 * np.eye(d) + 0.5]
    connection.execute("CREATE TEMP TABLE matrices (i int, p float8[])")
    for storage in ("EXTERNAL", "EXTENDED"):
        connection.execute(f"ALTER TABLE matrices ALTER p SET STORAGE {storage}".encode())
        for i, matrix in enumerate(matrices):
            connection.execute(
                "INSERT INTO matrices VALUES (%s, %s::float8[])", (i, matrix.reshape(-1).tolist())
            )
    found = connection.execute(
        "SELECT i, block_no, dpml.whiten(block, p, 0.75) FROM blocks, matrices ORDER BY random()"
    ).fetchall()
    assert len(found) == 2 * 3 * len(blocks)
    for i, number, block in found:
        assert bytes(block) == replay.whiten(blocks[number], matrices[i], 0.75)
    wanted = [replay.whiten(block, matrices[0], 0.75) for block in blocks]
    stored = "(SELECT p FROM matrices WHERE i = 0 LIMIT 1)"
    constant = f"ARRAY{matrices[0].reshape(-1).tolist()}::float8[]"
    for p in (stored, f"array_cat({stored}, '{{}}')", constant):
        query = f"SELECT dpml.whiten(block, {p}, 0.75) FROM blocks ORDER BY block_no"
        assert [bytes(row[0]) for row in connection.execute(query.encode())] == wanted


def test_whiten_by_few_directions(connection: psycopg.Connection) -> None:
    blocks = [
        replay.pack_dense(np.random.default_rng(i).normal(size=(40, 13)), np.ones(40)) for i in range(3)
    ]
    load(connection, blocks)
    for k in (1, 4):
        v = np.random.default_rng(14).normal(size=(k, 13)) / 13
        query = "SELECT dpml.whiten(block, %s::float8[], 0.75, 1.5) FROM blocks ORDER BY block_no"
        found = connection.execute(query, (v.reshape(-1).tolist(),)).fetchall()
        assert [bytes(row[0]) for row in found] == [replay.whiten(block, v, 0.75, 1.5) for block in blocks]


def test_whiten_sees_a_variable_change(connection: psycopg.Connection) -> None:
    """PL/pgSQL keeps an array expanded and changes it in place."""
    load(connection, [replay.pack_dense([[0.5, 0.25]], [1.0])])
    connection.execute(
        """CREATE FUNCTION pg_temp.each() RETURNS SETOF bytea LANGUAGE plpgsql AS $$
        DECLARE p float8[] := '{1,0,0,1}'; b bytea := (SELECT block FROM blocks);
        BEGIN FOR i IN 1..5 LOOP p[1] := i; RETURN NEXT dpml.whiten(b, p, 1); END LOOP; END $$"""
    )
    block = replay.pack_dense([[0.5, 0.25]], [1.0])
    found = connection.execute("SELECT pg_temp.each()").fetchall()
    wanted = [replay.whiten(block, np.diag([float(i), 1.0]), 1.0) for i in range(1, 6)]
    assert [bytes(row[0]) for row in found] == wanted


def test_whiten_arguments(connection: psycopg.Connection) -> None:
    block = replay.pack_dense([[0.5, 0.25]], [1.0])
    call = "SELECT dpml.whiten(%s, %s::float8[], %s)"
    message = "p must have 4 elements, those of a 2 x 2 matrix as the block has 2 features, not 3"
    assert refused(connection, call, block, [1.0, 0.0, 1.0], 1.0) == message
    for norm in (0.0, -1.0, float("nan"), float("inf")):
        assert refused(connection, call, block, [1.0, 0.0, 0.0, 1.0], norm) == "norm must be a number > 0"
    assert (
        refused(connection, call, block, [1.0, 0.0, 0.0, float("nan")], 1.0) == "p must have finite elements"
    )
    assert refused(connection, call, block, [1.0, 0.0, 0.0, None], 1.0) == "p must not contain nulls"
    assert "one-dimensional" in refused(connection, call, block, [[1.0, 0.0], [0.0, 1.0]], 1.0)
    assert "packed block" in refused(connection, call, b"?", [1.0], 1.0)
    assert scalar(connection, call, block, None, 1.0) is None
    few = "SELECT dpml.whiten(%s, %s::float8[], %s, %s)"
    message = "v must have 2 elements a row, as the block has features, not 3 elements in all"
    assert refused(connection, few, block, [1.0, 0.0, 1.0], 1.0, 1.0) == message
    assert refused(connection, few, block, [1.0, float("inf")], 1.0, 1.0) == "v must have finite elements"
    message = "v must have at most 2 rows, as many as the block has features, not 3"
    assert refused(connection, few, block, [1.0] * 6, 1.0, 1.0) == message
    assert scalar(connection, few, block, [1.0] * 4, 1.0, 1.0)
    for wrong in (0.0, -1.0, float("nan"), float("inf")):
        assert refused(connection, few, block, [1.0, 0.0], wrong, 1.0) == "norm must be a number > 0"
        assert refused(connection, few, block, [1.0, 0.0], 1.0, wrong) == "scale must be a number > 0"
