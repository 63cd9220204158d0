# SPDX-License-Identifier: PostgreSQL
"""Baselines on a server: the majority class, output perturbation and PrivGene."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import psycopg
import pytest

import pg_dpml
from helpers import people
from helpers.people import Person, create_people, make_people
from helpers.sqltools import scalar
from pg_dpml.blocks.blocks import Blocks
from pg_dpml.errors import SpecError
from pg_dpml.privacy import selection
from pg_dpml.privacy.noise import output
from pg_dpml.spec.privacy import PrivacySpec
from pg_dpml.training.spec import TrainSpec

pytestmark = pytest.mark.dealt

N = 60


@pytest.fixture
def rows(connection: psycopg.Connection, clean: None) -> Iterator[list[Person]]:
    found = make_people(N)
    create_people(connection, found, "people")
    yield found
    connection.execute("DROP TABLE people")


@pytest.mark.parametrize(
    ("task", "column"), [("binary", "rich"), ("multiclass", "grade")], ids=["binary", "multiclass"]
)
def test_majority_predicts_the_most_frequent_class(
    database: str, connection: psycopg.Connection, rows: list[Person], task: str, column: str
) -> None:
    result = pg_dpml.train(database, people.spec(task), None, TrainSpec("majority"), name="m")
    assert (result.model.private, result.model.charge, result.passes) == (False, None, 1)
    classes = result.model.classes
    assert classes is not None
    labels = [str(getattr(one, column)) for one in rows]
    wanted = max(classes, key=labels.count)
    found = connection.execute("SELECT DISTINCT dpml.predict('m', t) FROM people AS t").fetchall()
    assert found == [(wanted,)]


def test_majority_of_numbers_is_their_mean(
    database: str, connection: psycopg.Connection, rows: list[Person]
) -> None:
    """Of the rows with a label, clamped to its bounds."""
    result = pg_dpml.train(database, people.spec("regression"), None, TrainSpec("majority"), name="m")
    _, y = people.encode(result.model.encoder, rows)
    known = [
        label for one, label in zip(rows, y, strict=True)
        if people.encode_label(result.model.encoder["label"], one.price) is not None
    ]  # fmt: skip
    found = connection.execute("SELECT DISTINCT dpml.predict_value('m', t) FROM people AS t").fetchall()
    assert [value for (value,) in found] == pytest.approx([5.0 + 5.0 * float(np.mean(known))], rel=1e-6)


def test_majority_needs_an_intercept(database: str, rows: list[Person]) -> None:
    without = replace(people.spec(), intercept=False)
    with pytest.raises(SpecError, match="majority needs the intercept"):
        pg_dpml.plan(database, without, None, TrainSpec("majority"))


def test_output_perturbation_is_gradient_descent_and_one_noise(
    database: str, connection: psycopg.Connection, rows: list[Person], monkeypatch: pytest.MonkeyPatch
) -> None:
    release = output.release
    before: list[Any] = []

    def spied(weights: Any, *more: Any) -> Any:
        before.append(np.array(weights))
        return release(weights, *more)

    monkeypatch.setattr(output, "release", spied)
    training = TrainSpec("output-perturbation", passes=7, step_size=0.5)
    result = pg_dpml.train(database, people.spec(), PrivacySpec(1.0), training, name="m")
    work: Any = result.plan.work
    assert (work.batch_size, result.plan.method, result.model.method) == (N, *["output-perturbation"] * 2)
    x, y = people.encode(result.model.encoder, rows)
    weights = np.zeros(x.shape[1])
    for _ in range(7):
        slopes = np.array(
            [work.loss.derivative(float(u), float(v)) for u, v in zip(x @ weights, y, strict=True)]
        )
        weights -= 0.5 * x.T @ (slopes * (np.abs(x).sum(axis=1) > 0)) / N
    np.testing.assert_allclose(before[0], weights, rtol=1e-5, atol=1e-6)
    noise: Any = result.plan.noise
    assert noise.sensitivity == pytest.approx(7 * 0.5 * 2 * 0.5 / N)  # steps, each of D/n


def test_priv_gene_chooses_parents_by_clipped_losses(
    database: str, connection: psycopg.Connection, rows: list[Person], monkeypatch: pytest.MonkeyPatch
) -> None:
    choose, gradient = selection.choose, Blocks.gradient
    choices: list[tuple[Any, int]] = []
    generations: list[Any] = []

    def spied_choose(errors: Any, *more: Any) -> int:
        choices.append((np.array(errors), choose(errors, *more)))
        return choices[-1][1]

    def spied_gradient(self: Blocks, weights: Any, *more: Any) -> Any:
        generations.append(np.array(weights).reshape(-1, people.N_FEATURES))
        return gradient(self, weights, *more)

    monkeypatch.setattr(selection, "choose", spied_choose)
    monkeypatch.setattr(Blocks, "gradient", spied_gradient)
    training = TrainSpec("priv-gene", passes=4)
    result = pg_dpml.train(database, people.spec(), PrivacySpec(1.0), training, name="m")
    work: Any = result.plan.work
    assert len(generations) == 4
    assert [len(errors) for errors, _ in choices] == [64, 63, 64, 63, 64, 63, 64]
    assert result.plan.noise is not None
    assert work.choices == 7
    x, y = people.encode(result.model.encoder, rows)
    for models, (losses, _) in zip(generations, choices[::2], strict=True):
        values = np.logaddexp(0.0, -y[:, np.newaxis] * (x @ models.T))
        np.testing.assert_allclose(losses, np.minimum(values, work.loss_clip).sum(axis=0), rtol=1e-5)
    for number in range(3):  # a child has weights of its parents, but for one
        first, second = choices[2 * number][1], choices[2 * number + 1][1]
        parents = generations[number][[first, second + (second >= first)]]
        kept = (generations[number + 1][:, np.newaxis] == parents).any(axis=1)
        assert np.all(np.count_nonzero(~kept, axis=1) <= 1)
    np.testing.assert_array_equal(result.model.weights, generations[3][choices[-1][1]])
    assert scalar(connection, "SELECT mechanism ->> 'choices' FROM dpml.ledger") == "7"
