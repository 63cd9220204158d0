# SPDX-License-Identifier: PostgreSQL
"""dpml.sgd_epoch and dpml.loss against the oracle."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import psycopg
import pytest

from helpers import oracles
from helpers.sqltools import (
    FloatArray,
    Options,
    as_json,
    close,
    epoch,
    load_blocks,
    load_rows,
    make_rows,
    max_step,
    plain_spec,
    scalar,
)

pytestmark = pytest.mark.dealt

N, D, K = 103, 7, 3

LOSSES: list[dict[str, Any]] = [
    {"loss": "logistic"},
    {"loss": "logistic", "clip": 0.3},
    {"loss": "huber_svm"},
    {"loss": "huber_svm", "huber_h": 0.1, "clip": 0.7},
    {"loss": "squared"},
    {"loss": "squared", "clip": 0.5},
    {"loss": "softmax", "classes": K},
]
NOT_SMOOTH: list[dict[str, Any]] = [{"loss": "hinge"}, {"loss": "hinge", "clip": 0.4}]
STEPS: list[dict[str, Any]] = [
    {"step_size": 0.3},
    {"rows": N},
    {"schedule": "decreasing", "rows": N},
    {"schedule": "sqrt_decreasing", "rows": N, "exponent": 0.25},
    {"schedule": "strongly_convex", "lambda": 0.01},
    {"schedule": "inverse_sqrt"},
    {"schedule": "inverse_sqrt", "step_size": 0.5, "lambda": 0.1},
]
ROW_FORM = "SELECT dpml.sgd_epoch(x, y, NULL, %s::jsonb ORDER BY i) AS r FROM rows"
BLOCK_FORM = "SELECT dpml.sgd_epoch(block_no, block, NULL, %s::jsonb ORDER BY block_no) AS r FROM blocks"


def wanted(x: FloatArray, y: FloatArray, options: Options, passes: int = 1) -> list[FloatArray]:
    """Every iterate by the oracle, the options read as the documentation says."""
    cap = max_step(options)
    kind = options.get("schedule", "constant")
    default = 1.0 if kind == "inverse_sqrt" else min(1 / math.sqrt(options.get("rows", 1)), cap)
    step = oracles.schedule(
        kind,
        step_size=options.get("step_size", default),
        offset=options.get("rows", 0) ** options.get("exponent", 0.5),
        lambda_=options.get("lambda", 0.0),
        max_step=cap,
    )
    return oracles.iterates(
        x,
        y,
        name=options["loss"],
        step=step,
        lambda_=options.get("lambda", 0.0),
        radius=options.get("radius", math.inf),
        batch_size=options.get("batch_size", 1),
        passes=passes,
        n_outputs=options.get("classes", 1),
        clip=options.get("clip", math.inf),
        h=options.get("huber_h", 0.5),
    )


def load(connection: psycopg.Connection, loss: str, form: str = "dense") -> tuple[FloatArray, FloatArray]:
    x, y = make_rows(N, D, loss, classes=K)
    if form == "csr":
        x[:, ::2] = 0
    load_rows(connection, x, y)
    load_blocks(connection, plain_spec(D, loss, K, form), 10)
    return x, y


@pytest.mark.parametrize("steps", STEPS, ids=str)
@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_losses_and_schedules(connection: psycopg.Connection, loss: Options, steps: Options) -> None:
    x, y = load(connection, loss["loss"])
    for more in ({}, {"batch_size": 10, "radius": 0.4}, {"batch_size": 500, "average_from": 1}):
        options = {**loss, **steps, **more}
        found = wanted(x, y, options)
        for query in (ROW_FORM, BLOCK_FORM):
            weights, average, n_steps, n_rows = epoch(connection, query, as_json(options))
            close(weights, found[-1].ravel())
            assert (n_steps, n_rows) == (len(found) - 1, N)
            if "average_from" in options:
                assert average is not None
                close(average, oracles.average(found, 1).ravel())
            else:
                assert average is None


@pytest.mark.parametrize("form", ["dense", "csr"])
@pytest.mark.parametrize("average_from", [1, 5, 21, 22, 30, 42, 100])
def test_two_passes_by_epoch(connection: psycopg.Connection, average_from: int, form: str) -> None:
    x, y = load(connection, "logistic", form)
    options = {
        "loss": "logistic",
        "lambda": 0.01,
        "radius": 2.0,
        "batch_size": 5,
        "schedule": "inverse_sqrt",
        "average_from": average_from,
    }
    found = wanted(x, y, options, passes=2)
    weights, average, n_steps, n_rows = epoch(
        connection,
        "SELECT dpml.sgd_epoch(block_no, block, (SELECT dpml.sgd_epoch(block_no, block, NULL, %s::jsonb"
        " ORDER BY block_no) FROM blocks), %s::jsonb ORDER BY block_no) AS r FROM blocks",
        as_json(options),
        as_json(options),
    )
    close(weights, found[-1].ravel())
    assert (n_steps, n_rows) == (42, N)
    if average_from > 42:
        assert average is None
    else:
        assert average is not None
        close(average, oracles.average(found, average_from).ravel())


def test_row_form_starts_from_weights(connection: psycopg.Connection) -> None:
    x, y = load(connection, "softmax")
    options = {"loss": "softmax", "classes": K, "step_size": 0.1, "radius": 1.0}
    start = np.linspace(-1, 1, K * D)
    weights, _, _, _ = epoch(
        connection,
        "SELECT dpml.sgd_epoch(x, y, %s::float8[], %s::jsonb ORDER BY i) AS r FROM rows",
        start.tolist(),
        as_json(options),
    )
    step = oracles.schedule("constant", step_size=0.1)
    found = oracles.iterates(x, y, name="softmax", step=step, radius=1.0, n_outputs=K, start=start)
    close(weights, found[-1].ravel())


@pytest.mark.parametrize("loss", LOSSES + NOT_SMOOTH, ids=str)
@pytest.mark.parametrize("form", ["dense", "csr"])
def test_loss(connection: psycopg.Connection, loss: Options, form: str) -> None:
    x, y = load(connection, loss["loss"], form)
    w = np.random.default_rng(3).normal(size=(loss.get("classes", 1), D))
    options = {**loss, "lambda": 0.2, "batch_size": 7, "schedule": "decreasing"}
    total = 0.0
    for row, label in zip(x, y, strict=True):
        if loss["loss"] == "softmax":
            total += oracles.softmax(w @ row, int(label))[0]
        else:
            total += oracles.loss(
                loss["loss"],
                float(w[0] @ row),
                float(label),
                clip=loss.get("clip", math.inf),
                h=loss.get("huber_h", 0.5),
            )[0]
    expected = total / N + 0.1 * float(np.sum(w * w))
    given = (w.ravel().tolist(), as_json(options))
    rows = scalar(connection, "SELECT dpml.loss(x, y, %s::float8[], %s::jsonb) FROM rows", *given)
    blocks = scalar(connection, "SELECT dpml.loss(block, %s::float8[], %s::jsonb) FROM blocks", *given)
    assert rows == pytest.approx(expected, rel=1e-12)
    assert blocks == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("loss", ["logistic", "huber_svm"])
def test_one_vs_all_is_one_model_a_class(connection: psycopg.Connection, loss: str) -> None:
    x, y = make_rows(N, D, "softmax", classes=K)
    load_rows(connection, x, y)
    load_blocks(connection, plain_spec(D, "softmax", K), 10)
    options = {"loss": loss, "step_size": 0.1, "lambda": 0.01, "batch_size": 4}
    found = [wanted(x, np.where(y == k, 1.0, -1.0), options)[-1] for k in range(K)]
    for query in (ROW_FORM, BLOCK_FORM):
        weights, _, _, _ = epoch(connection, query, as_json({**options, "classes": K}))
        close(weights, np.concatenate(found).ravel())


BAD_ROWS = [
    ("NULL", "1"),
    ("array_fill(0.1::float8, '{7}')", "NULL"),
    ("array_fill(0.1::float8, '{7}')", "'NaN'"),
    ("array_fill(0.1::float8, '{7}')", "'Infinity'"),
    ("array_fill('NaN'::float8, '{7}')", "1"),
    ("array_fill('-Infinity'::float8, '{7}')", "1"),
    ("array_fill(NULL::float8, '{7}')", "1"),
    ("array_fill(0.1::float8, '{6}')", "1"),
    ("array_fill(0.1::float8, '{8}')", "1"),
    ("array_fill(0.1::float8, '{1,7}')", "1"),
    ("'{}'", "1"),
]


def test_bad_rows_are_zero_rows(connection: psycopg.Connection) -> None:
    """They count, take their step and change nothing else; no notice tells."""
    x, y = load(connection, "squared")
    heard: list[str] = []
    connection.add_notice_handler(lambda diagnostic: heard.append(str(diagnostic.message_primary)))
    for j, (row, label) in enumerate(BAD_ROWS):
        connection.execute(f"INSERT INTO rows VALUES ({N + j}, {row}, {label})".encode())
    padded_x = np.vstack([x, np.zeros((len(BAD_ROWS), D))])
    padded_y = np.concatenate([y, np.zeros(len(BAD_ROWS))])
    for batch_size in (1, 4):
        options = {"loss": "squared", "lambda": 0.1, "step_size": 0.2, "batch_size": batch_size}
        weights, _, _, n_rows = epoch(connection, ROW_FORM, as_json(options))
        close(weights, wanted(padded_x, padded_y, options)[-1].ravel())
        assert n_rows == N + len(BAD_ROWS)
    w = np.linspace(-1, 1, D)
    losses = [
        oracles.squared(float(w @ row), label)[0] for row, label in zip(padded_x, padded_y, strict=True)
    ]
    found = scalar(
        connection, 'SELECT dpml.loss(x, y, %s::float8[], \'{"loss": "squared"}\') FROM rows', w.tolist()
    )
    assert found == pytest.approx(float(np.mean(losses)), rel=1e-12)
    assert heard == []


def test_steps_are_capped_unless_the_options_say_otherwise(connection: psycopg.Connection) -> None:
    """One row, from zero: the derivative of logistic loss is -1/2, and the cap 4."""
    query = "SELECT (dpml.sgd_epoch('{1}'::float8[], 1, NULL, %s::jsonb)).weights[1]"
    for kind, step, wanted in (
        ("constant", 100, 50.0),
        ("inverse_sqrt", 100, 50.0),
        ("strongly_convex", None, 500.0),
        ("constant", 2, 1.0),
    ):
        options: dict[str, Any] = {"loss": "logistic", "schedule": kind}
        options |= {"lambda": 1e-3} if step is None else {"step_size": step}
        cap = 0.5 / (0.25 + (1e-3 if step is None else 0.0))
        for more, found in (
            ({}, min(cap, wanted)),
            ({"capped": True}, min(cap, wanted)),
            ({"capped": False}, wanted),
        ):
            assert scalar(connection, query, as_json(options | more)) == pytest.approx(found, rel=1e-12)
    for kind in ("decreasing", "sqrt_decreasing"):
        options = {"loss": "logistic", "schedule": kind, "rows": 1, "capped": False}
        with pytest.raises(psycopg.Error, match='"capped" in options must be true'):
            scalar(connection, query, as_json(options))


def test_softmax_labels_that_are_no_class(connection: psycopg.Connection) -> None:
    x, y = load(connection, "softmax")
    connection.execute(
        "UPDATE rows SET y = CASE i WHEN 3 THEN 3 WHEN 5 THEN -1 WHEN 7 THEN 0.5 END WHERE i IN (3, 5, 7)"
    )
    x[[3, 5, 7]] = 0
    y[[3, 5, 7]] = 0
    options = {"loss": "softmax", "classes": K, "step_size": 0.1}
    weights, _, _, _ = epoch(connection, ROW_FORM, as_json(options))
    close(weights, wanted(x, y, options)[-1].ravel())


def test_long_rows_are_scaled_to_norm_one(connection: psycopg.Connection) -> None:
    x, y = make_rows(N, D, "logistic")
    x[::3] *= 50
    x[1] *= 1e200
    x[2] = 1.5e308
    load_rows(connection, x, y)
    options = {"loss": "logistic", "step_size": 0.2}
    clipped = np.vstack([oracles.bound_norm(row, "clip") for row in x])
    # The oracle bounds the norm of encoded rows, just below 1; rows given as they are go to 1.
    long = np.max(np.abs(x), axis=1) > np.max(np.abs(clipped), axis=1)
    clipped[long] /= 1 - 2.0**-19
    assert long.sum() == 37
    weights, _, _, _ = epoch(connection, ROW_FORM, as_json(options))
    close(weights, wanted(clipped, y, options)[-1].ravel())

    connection.execute("DELETE FROM rows WHERE i IN (1, 2)")
    raw_x, raw_y = np.delete(x, [1, 2], axis=0), np.delete(y, [1, 2])
    weights, _, _, _ = epoch(connection, ROW_FORM, as_json({**options, "clip_rows": False}))
    close(weights, wanted(raw_x, raw_y, options)[-1].ravel())


def test_number_of_features(connection: psycopg.Connection) -> None:
    """From the start, else the option, else the first vector; rows before it are zero rows."""
    load_rows(connection, np.array([[0.5, 0.5]]), np.array([1.0]))
    connection.execute("UPDATE rows SET i = 2")
    connection.execute("INSERT INTO rows VALUES (0, NULL, 1), (1, '{}', 1), (3, '{1}', 1)")
    options = '{"loss": "squared", "step_size": 0.5, "lambda": 0.5}'
    weights, _, steps, rows = epoch(connection, ROW_FORM, options)
    assert (weights.size, steps, rows) == (2, 4, 4)
    weights, _, _, _ = epoch(connection, ROW_FORM, options.replace("{", '{"features": 1, '))
    assert weights.size == 1
    weights, _, _, _ = epoch(
        connection, "SELECT dpml.sgd_epoch(x, y, '{0,0,0}', %s::jsonb ORDER BY i) AS r FROM rows", options
    )
    assert weights.size == 3
    none = scalar(
        connection,
        "SELECT dpml.sgd_epoch(NULL, y, NULL, %s::jsonb)::text FROM rows",
        options.replace("{", '{"batch_size": 3, '),
    )
    assert none == "(,,2,4,)"


def test_group_by_and_filter(connection: psycopg.Connection) -> None:
    x, y = load(connection, "logistic")
    options = {"loss": "logistic", "step_size": 0.2}
    rows = connection.execute(
        b"SELECT g, (r).weights, (r).rows FROM (SELECT mod(i, 3) AS g,"
        b" dpml.sgd_epoch(x, y, NULL, %s::jsonb ORDER BY i) FILTER (WHERE i < 50) AS r"
        b" FROM rows GROUP BY 1) s ORDER BY g",
        (as_json(options),),
    ).fetchall()
    assert len(rows) == 3
    for g, weights, n_rows in rows:
        part = slice(g, 50, 3)
        close(np.array(weights), wanted(x[part], y[part], options)[-1].ravel())
        assert n_rows == len(x[part])


def test_no_rows(connection: psycopg.Connection) -> None:
    load(connection, "logistic")
    options = '{"loss": "logistic", "step_size": 1}'
    for query in (ROW_FORM, BLOCK_FORM):
        assert scalar(connection, query.replace("AS r", "::text") + " WHERE false", options) == "(,,0,0,)"
    assert (
        scalar(connection, "SELECT dpml.loss(x, y, '{0}', %s::jsonb) FROM rows WHERE false", options) is None
    )
    assert (
        scalar(connection, "SELECT dpml.loss(block, '{0}', %s::jsonb) FROM blocks WHERE false", options)
        is None
    )
    assert scalar(connection, "SELECT dpml.pack(block) FROM blocks WHERE false") is None
