# SPDX-License-Identifier: PostgreSQL
"""Frank-Wolfe on a server: its rows, its steps, and models most of whose coefficients are 0."""

from __future__ import annotations

from typing import Any

import numpy as np
import psycopg
import pytest
from psycopg import sql

import pg_dpml
from helpers import oracles, people
from helpers.people import FloatArray, create_people, make_people
from helpers.sqltools import scalar
from pg_dpml.blocks.blocks import Blocks
from pg_dpml.database.database import Database
from pg_dpml.errors import SpecError
from pg_dpml.kernels import FloatArray as KernelArray
from pg_dpml.ledger.models import load_model
from pg_dpml.privacy import selection
from pg_dpml.reports.model_report import coefficients, model_record, model_text
from pg_dpml.reports.sql_expression import sql_expression
from pg_dpml.runs.compare import compare
from pg_dpml.runs.grid import Grid
from pg_dpml.runs.tuning import tune
from pg_dpml.spec.privacy import PrivacySpec
from pg_dpml.training.method import methods
from pg_dpml.training.spec import TrainSpec

pytestmark = pytest.mark.dealt

N = 60


@pytest.fixture
def rows(connection: psycopg.Connection, clean: None) -> Any:
    found = make_people(N)
    create_people(connection, found, "people")
    yield found
    connection.execute("DROP TABLE people")


@pytest.mark.parametrize(
    "example", methods()["frank-wolfe"].examples, ids=lambda one: f"{one.task} {one.options}"
)
def test_a_run_takes_the_steps_that_were_chosen(
    database: str, connection: psycopg.Connection, rows: Any, monkeypatch: pytest.MonkeyPatch, example: Any
) -> None:
    """Each chooses by the gradient of rows whose features are clipped, whatever their norm is."""
    choose, gradient = selection.choose, Blocks.gradient
    chosen: list[tuple[FloatArray, int]] = []
    at: list[FloatArray] = []

    def spied_choose(errors: KernelArray, *more: Any) -> int:
        found = choose(errors, *more)
        chosen.append((np.array(errors), found))
        return found

    def spied_gradient(self: Blocks, weights: KernelArray, *more: Any) -> Any:
        at.append(np.array(weights))
        return gradient(self, weights, *more)

    monkeypatch.setattr(selection, "choose", spied_choose)
    monkeypatch.setattr(Blocks, "gradient", spied_gradient)
    training = TrainSpec("frank-wolfe", **example.options)
    result = pg_dpml.train(database, people.spec(example.task), PrivacySpec(1.0), training, name="m")
    work: Any = result.plan.work
    assert result.model.encoder["norm"] == "clip_values"
    x, y = people.encode(result.model.encoder, rows)
    assert np.max(np.linalg.norm(x, axis=1)) > 1.2
    assert np.max(np.abs(x)) == 1.0
    assert len(at) == len(chosen) == work.steps == example.options["passes"]
    weights = np.zeros(result.plan.problem.n_weights)
    for number, (errors, place) in enumerate(chosen):
        np.testing.assert_array_equal(at[number], weights)
        matrix = weights.reshape(work.loss.n_classes, -1)
        expected = sum(
            oracles.row_gradient(work.loss.kind, matrix, one, label, clip=work.loss.clip, h=work.loss.huber_h)
            for one, label in zip(x, y, strict=True)
            if np.any(one)
        )
        expected = np.ravel(expected)
        np.testing.assert_allclose(errors, np.concatenate([expected, -expected]), rtol=1e-5, atol=1e-5)
        work.step(weights, number, place)
    np.testing.assert_array_equal(result.model.weights, weights)
    assert np.count_nonzero(weights) <= work.steps
    assert scalar(connection, "SELECT mechanism ->> 'kind' FROM dpml.ledger") == "gumbel"


def test_a_model_shows_the_coefficients_that_are_not_0(
    database: str, connection: psycopg.Connection, rows: Any
) -> None:
    """Its weights are stored as they are: PostgreSQL compresses zeros."""
    pg_dpml.train(database, people.spec(), PrivacySpec(5.0), TrainSpec("frank-wolfe", passes=3), name="m")
    with Database(database).session() as session:
        model = load_model(session, "m")
    kept = int(np.count_nonzero(model.weights))
    assert 1 <= kept <= 3
    assert len(coefficients(model)) == kept
    zeros = people.N_FEATURES - kept
    assert f"Coefficients (those of {zeros} of {people.N_FEATURES} features are 0)" in model_text(model)
    assert model_record(model)["weights"] == model.matrix.tolist()


@pytest.mark.parametrize("task", ["binary", "multiclass", "regression"])
def test_sql_expression_and_predict_agree(
    database: str, connection: psycopg.Connection, rows: Any, task: str
) -> None:
    """With features beyond their bounds, and columns without any weight."""
    pg_dpml.train(database, people.spec(task), PrivacySpec(5.0), TrainSpec("frank-wolfe", passes=4), name="m")
    with Database(database).session() as session:
        model = load_model(session, "m")
    connection.execute("UPDATE people SET height = 500 WHERE age > 50")
    expression: Any = sql_expression(model, {}, "value")
    query = sql.SQL("SELECT {}, dpml.predict_value('m', t) FROM people AS t").format(sql.SQL(expression))
    found = connection.execute(query).fetchall()
    theirs, ours = np.array(found, dtype=np.float64).T
    np.testing.assert_allclose(theirs, ours, rtol=1e-6, atol=1e-6)


def test_it_is_compared_on_rows_of_its_own_and_tuned_apart(database: str, rows: Any) -> None:
    found = compare(
        database, people.spec(), methods=("dp-gd", "frank-wolfe"), epsilons=(1.0,), splits=2, public=True
    )
    assert [(one.method, len(one.values)) for one in found.entries[:2]] == [("dp-gd", 2), ("frank-wolfe", 2)]
    mixed = Grid.from_mapping({"grid": {"method": ["dp-gd", "frank-wolfe"]}})
    with pytest.raises(SpecError, match="dp-gd and of frank-wolfe bound rows in different ways"):
        tune(database, people.spec(), PrivacySpec(1.0), mixed, name="m")
    alone = Grid.from_mapping({"grid": {"method": ["frank-wolfe"], "passes": [1, 2]}})
    tuned = tune(database, people.spec(), PrivacySpec(1.0), alone, name="m")
    assert tuned.trained.model.encoder["norm"] == "clip_values"
