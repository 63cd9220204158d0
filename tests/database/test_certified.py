# SPDX-License-Identifier: PostgreSQL
"""Certified minimisers and the baseline in a real server: right to many digits, and silent on the way."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest
from scipy.optimize import minimize

import pg_dpml
from helpers import oracles, people
from helpers.people import BAD_PEOPLE, FloatArray, create_people, make_people
from helpers.sqltools import scalar
from pg_dpml.blocks.blocks import Blocks
from pg_dpml.database.session import Session, sql
from pg_dpml.errors import RunFailedError, SpecError
from pg_dpml.methods import bolt_on
from pg_dpml.methods.bolt_on import BoltOnPlan
from pg_dpml.server.embedded import EmbeddedServer
from pg_dpml.spec.privacy import PrivacySpec
from pg_dpml.training import certified
from pg_dpml.training.spec import TrainSpec

pytestmark = [pytest.mark.usefixtures("clean"), pytest.mark.dealt]

PRIVACY = PrivacySpec(1.0, 1e-6)
LAMBDA = 0.02
N = 200


@pytest.fixture(scope="module", autouse=True)
def tables(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        create_people(connection, make_people(N), "clean")
        create_people(connection, [*make_people(N - len(BAD_PEOPLE)), *BAD_PEOPLE], "people")


class Spy:
    """What a run keeps to itself: its packed rows, the weights it sends, the model before the noise."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.x = np.zeros((0, 0))
        self.y = np.zeros(0)
        self.sent: list[float] = []
        self.tables = 0
        self.without_noise = np.zeros(0)
        release, gradient, work_table = bolt_on.release, Blocks.gradient, Blocks.work_table
        copy_row = Session.copy_row

        def spied_release(plan: BoltOnPlan, weights: FloatArray) -> FloatArray:
            self.without_noise = weights.copy()
            return release(plan, weights)

        def spied_gradient(blocks: Blocks, weights: FloatArray, options: Any) -> Any:
            if not len(self.y):
                self.look(blocks)
            return gradient(blocks, weights, options)

        def spied_table(blocks: Blocks, kind: str, columns: sql.SQL) -> sql.Identifier:
            self.tables += 1
            return work_table(blocks, kind, columns)

        def spied_copy(session: Session, table: Any, types: Sequence[str], values: Sequence[Any]) -> None:
            self.sent.extend(values[0].tolist())
            copy_row(session, table, types, values)

        monkeypatch.setattr(bolt_on, "release", spied_release)
        monkeypatch.setattr(Blocks, "gradient", spied_gradient)
        monkeypatch.setattr(Blocks, "work_table", spied_table)
        monkeypatch.setattr(Session, "copy_row", spied_copy)

    def look(self, blocks: Blocks) -> None:
        query = sql.SQL("SELECT u.x, u.y FROM {} AS b, dpml.unpack(b.block) AS u(x, y)")
        x, y = zip(*blocks.session.fetch(query.format(blocks.packed.blocks)), strict=True)
        self.x, self.y = (np.array(part, np.float32).astype(np.float64) for part in (x, y))


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> Spy:
    return Spy(monkeypatch)


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """A certificate as small as float64 allows, so that minimisers can be compared."""
    monkeypatch.setattr(certified, "DEFAULT_SHARE", 0.0)


def oracle_gradient(spy: Spy, weights: FloatArray, loss: Any, lambda_: float, n: int = N) -> FloatArray:
    """Gradient of F by the formulas, row by row."""
    w = weights.reshape(loss.n_classes, -1)
    total = n * lambda_ * w
    for x, y in zip(spy.x, spy.y, strict=True):
        if loss.kind == "softmax" or loss.n_classes == 1:
            slopes = oracles.row_gradient(loss.kind, w, x, y, clip=loss.clip, h=loss.huber_h)
        else:
            slopes = np.concatenate(
                [
                    oracles.row_gradient(
                        loss.kind, w[k : k + 1], x, 1.0 if k == y else -1.0, clip=loss.clip, h=loss.huber_h
                    )
                    for k in range(loss.n_classes)
                ]
            )
        total = total + (slopes if np.any(x) else 0.0)
    return np.asarray(total / n).reshape(-1)


@pytest.mark.parametrize("delta", [1e-6, 0.0])
@pytest.mark.parametrize(
    ("task", "training"),
    [
        ("binary", {}),
        ("binary", {"clip": 1.0, "lambda_": 1e-5}),
        ("binary", {"loss": "huber_svm"}),
        ("multiclass", {}),
        ("multiclass", {"loss": "logistic"}),
        ("regression", {}),
    ],
)
def test_a_private_run_is_the_minimiser_plus_noise(
    database: str, connection: psycopg.Connection, spy: Spy, task: str, training: dict[str, Any], delta: float
) -> None:
    """By the certificate alone: a gradient below tau is within tau / lambda of the minimiser."""
    given: dict[str, Any] = {"method": "bolt-on", "lambda_": LAMBDA}
    spec = TrainSpec(**(given | training))
    privacy = PrivacySpec(1.0, delta)
    result = pg_dpml.train(database, people.spec(task), privacy, spec, name="m")
    work: Any = result.plan.work
    found = oracle_gradient(spy, spy.without_noise, work.loss, work.objective.lambda_)
    assert np.linalg.norm(found) <= work.gradient_norm
    assert result.plan.noise is not None
    assert result.plan.noise.expected_norm is not None
    noise = np.linalg.norm(result.model.weights - spy.without_noise)
    assert 0.0 < noise < 8.0 * result.plan.noise.expected_norm
    assert result.passes is None
    assert spy.tables == 1  # locks are held to the end of the transaction, so passes must share a table
    stored = connection.execute("SELECT training, weights FROM dpml.models").fetchone()
    assert stored is not None
    assert (stored[0]["passes"], stored[0]["solver"]) == (None, "certified")
    np.testing.assert_array_equal(stored[1], result.model.weights)
    mechanism = scalar(connection, "SELECT mechanism FROM dpml.ledger")
    assert mechanism["kind"] == ("k-norm" if delta == 0.0 else result.plan.noise.kind)  # type: ignore[attr-defined]


def test_it_agrees_with_scipy(database: str, spy: Spy, exact: None) -> None:
    training = TrainSpec(method="bolt-on", loss="huber_svm", lambda_=LAMBDA)
    pg_dpml.train(database, people.spec(), PRIVACY, training, name="m")

    def objective(w: FloatArray) -> tuple[float, FloatArray]:
        m = spy.y * (spy.x @ w)
        bend = np.clip(1.5 - m, 0.0, 1.0)
        losses = np.where(m < 0.5, 1.0 - m, bend**2 / 2.0) * np.any(spy.x, axis=1)
        slopes = -spy.y * bend
        return losses.sum() / N + LAMBDA / 2 * w @ w, slopes @ spy.x / N + LAMBDA * w

    options = {"ftol": 0.0, "gtol": 1e-10, "maxiter": 10_000}
    best = minimize(objective, np.zeros(spy.x.shape[1]), jac=True, method="L-BFGS-B", options=options)
    np.testing.assert_allclose(spy.without_noise, best.x, atol=1e-6)


@pytest.mark.parametrize("solver", ["lbfgs", "newton-cg", "newton-cholesky"])
@pytest.mark.parametrize("task", ["binary", "multiclass"])
def test_it_agrees_with_scikit_learn(database: str, spy: Spy, exact: None, task: str, solver: str) -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    training = TrainSpec(method="bolt-on", lambda_=LAMBDA, clip=1.0 if task == "binary" else None)
    pg_dpml.train(database, people.spec(task, "clean"), PRIVACY, training, name="m")
    model = linear_model.LogisticRegression(
        C=1.0 / (N * LAMBDA), fit_intercept=False, solver=solver, tol=1e-12, max_iter=10_000
    )
    model.fit(spy.x, spy.y)
    np.testing.assert_allclose(spy.without_noise, model.coef_.reshape(-1), atol=1e-6)


@pytest.mark.parametrize("task", people.LABELS)
def test_the_baseline_is_the_minimiser_without_noise(
    database: str, connection: psycopg.Connection, spy: Spy, task: str
) -> None:
    training = TrainSpec(method="lbfgs", lambda_=LAMBDA)
    result = pg_dpml.train(database, people.spec(task), None, training, name="m")
    work: Any = result.plan.work
    assert np.linalg.norm(oracle_gradient(spy, result.model.weights, work.loss, LAMBDA)) <= 1e-8
    assert scalar(connection, "SELECT private FROM dpml.models") is False
    assert scalar(connection, "SELECT count(*) FROM dpml.ledger") == 0
    assert scalar(connection, "SELECT training -> 'passes' FROM dpml.models") == result.passes
    with pytest.raises(SpecError, match="not private: leave epsilon"):
        pg_dpml.train(database, people.spec(task), PRIVACY, training, name="m2")


def test_units_of_several_rows(database: str, connection: psycopg.Connection, spy: Spy) -> None:
    """n counts units, and the losses of all kept rows are divided by it."""
    connection.execute("CREATE TABLE visits AS SELECT *, id / 4 AS who FROM clean")
    data = people.spec(table="visits", unit="who", max_rows_per_unit=3)
    result = pg_dpml.train(database, data, PRIVACY, TrainSpec(method="bolt-on", lambda_=LAMBDA), name="m")
    work: Any = result.plan.work
    assert (result.plan.problem.n_units, len(spy.y)) == (N // 4, N // 4 * 3)
    found = oracle_gradient(spy, spy.without_noise, work.loss, LAMBDA, N // 4)
    assert np.linalg.norm(found) <= work.gradient_norm
    connection.execute("DROP TABLE visits")


def test_workers_find_the_same_minimiser(database: str, spy: Spy, exact: None) -> None:
    settings = {
        "parallel_setup_cost": "0",
        "parallel_tuple_cost": "0",
        "min_parallel_table_scan_size": "0",
        "max_parallel_workers_per_gather": "2",
    }
    dsn = f"{database} options='{' '.join(f'-c {key}={value}' for key, value in settings.items())}'"
    found = []
    for i, place in enumerate((database, dsn)):
        pg_dpml.train(
            place,
            people.spec("multiclass"),
            PRIVACY,
            TrainSpec(method="bolt-on", lambda_=LAMBDA),
            name=f"m{i}",
        )
        found.append(spy.without_noise)
    np.testing.assert_allclose(found[0], found[1], atol=1e-8)


def texts(values: Sequence[float]) -> set[str]:
    """The leading digits by which a number would be found in a text, however it was rounded at the end."""
    digits = (re.sub(r"e.*|[-.]", "", f"{value:.12e}") for value in values if value not in (0.0, 1.0))
    return {text.lstrip("0")[:9] for text in digits}


@pytest.mark.parametrize("task", people.LABELS)
def test_no_statement_holds_a_weight(database: str, server: EmbeddedServer, spy: Spy, task: str) -> None:
    """The server's log of all statements and parameters, which is all that pg_stat_activity can show."""
    start = Path(server.log_path).stat().st_size
    dsn = (
        f"{database} options='-c log_statement=all -c log_min_messages=debug1 -c log_parameter_max_length=-1'"
    )
    result = pg_dpml.train(
        dsn, people.spec(task), PRIVACY, TrainSpec(method="bolt-on", lambda_=1e-3), name="m"
    )
    with Path(server.log_path).open(encoding="utf-8", errors="replace") as file:
        file.seek(start)
        log = file.read()
    assert log.count("dpml.gradient") > 3
    assert "COPY" in log
    digits = re.sub(r"[-.]", "", log)
    sent = texts([*spy.sent, *spy.without_noise.tolist()])
    assert len(sent) > 20
    assert not [text for text in sent if text in digits]
    # the released weights are in the statement that stores them, so the search finds what is there
    assert any(text in digits for text in texts(result.model.weights.tolist()))


def test_a_failure_says_nothing_of_the_rows(
    database: str, monkeypatch: pytest.MonkeyPatch, connection: psycopg.Connection
) -> None:
    """The charge stays, and the message has no number of the run."""
    gradient, calls = Blocks.gradient, []

    def fail_late(blocks: Blocks, weights: FloatArray, options: Any) -> Any:
        calls.append(gradient(blocks, weights, options))
        if len(calls) == 4:
            blocks.session.execute(sql.SQL("SELECT 1 / 0"))
        return calls[-1]

    monkeypatch.setattr(Blocks, "gradient", fail_late)
    with pytest.raises(RunFailedError) as failure:
        pg_dpml.train(database, people.spec(), PRIVACY, TrainSpec(method="bolt-on", lambda_=LAMBDA), name="m")
    assert re.fullmatch(r"the run failed on the server and no model was stored; .*", str(failure.value))
    assert "division" not in str(failure.value)
    assert scalar(connection, "SELECT count(*) FROM dpml.ledger") == 1
    assert scalar(connection, "SELECT count(*) FROM dpml.models") == 0


@pytest.mark.parametrize("n", [0, 1, 2])
@pytest.mark.parametrize("task", people.LABELS)
def test_tiny_tables(database: str, connection: psycopg.Connection, task: str, n: int) -> None:
    create_people(connection, make_people(n), "tiny")
    result = pg_dpml.train(
        database,
        people.spec(task, "tiny"),
        PRIVACY,
        TrainSpec(method="bolt-on", lambda_=LAMBDA),
        name="private",
    )
    assert np.any(result.model.weights != 0.0) == (n > 0)
    baseline = TrainSpec(method="lbfgs")
    plain = pg_dpml.train(database, people.spec(task, "tiny"), None, baseline, name="plain")
    assert np.all(np.isfinite(plain.model.weights))
    assert dataclasses.asdict(plain.plan.problem)["n_units"] == n
    connection.execute("DROP TABLE tiny")
