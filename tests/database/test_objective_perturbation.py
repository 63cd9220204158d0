# SPDX-License-Identifier: PostgreSQL
"""Objective perturbation in a real server: the minimiser of the perturbed objective, and noise on it."""

from __future__ import annotations

from typing import Any

import numpy as np
import psycopg
import pytest

import pg_dpml
from helpers import oracles, people
from helpers.people import FloatArray, create_people, make_people
from helpers.sqltools import scalar
from pg_dpml.blocks.blocks import Blocks
from pg_dpml.database.session import Session, sql
from pg_dpml.privacy.noise import objective, output
from pg_dpml.spec.privacy import PrivacySpec
from pg_dpml.training.spec import TrainSpec

pytestmark = [pytest.mark.usefixtures("clean"), pytest.mark.dealt]

N = 200


class Spy:
    """What a run keeps to itself: its rows, the linear term, the answer before its noise, what was sent."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.linear = self.answer = np.zeros(0)
        self.sent: list[float] = []
        draw, release, gradient, copy_row = (
            objective.draw_linear,
            output.release,
            Blocks.gradient,
            Session.copy_row,
        )
        self.x, self.y = np.zeros((0, 0)), np.zeros(0)

        def spied_draw(*given: Any) -> FloatArray:
            self.linear = draw(*given)
            return self.linear

        def spied_release(weights: FloatArray, *more: Any) -> FloatArray:
            self.answer = weights.copy()
            return release(weights, *more)

        def spied_gradient(blocks: Blocks, *given: Any) -> Any:
            query = sql.SQL("SELECT u.x, u.y FROM {} AS b, dpml.unpack(b.block) AS u(x, y)")
            x, y = zip(*blocks.session.fetch(query.format(blocks.packed.blocks)), strict=True)
            self.x, self.y = (np.array(part, np.float32).astype(np.float64) for part in (x, y))
            return gradient(blocks, *given)

        def spied_copy(session: Session, table: Any, types: Any, values: Any) -> None:
            self.sent.extend(values[0].tolist())
            copy_row(session, table, types, values)

        monkeypatch.setattr(objective, "draw_linear", spied_draw)
        monkeypatch.setattr(output, "release", spied_release)
        monkeypatch.setattr(Blocks, "gradient", spied_gradient)
        monkeypatch.setattr(Session, "copy_row", spied_copy)

    def gradient_norm(self, work: Any) -> float:
        """Of the objective at the answer, by the oracle's formulas, row by row."""
        loss, w = work.loss, self.answer.reshape(work.loss.n_classes, -1)
        total = N * (work.objective.lambda_ * w + self.linear.reshape(w.shape))
        for x, y in zip(self.x, self.y, strict=True):
            if np.any(x):
                total = total + oracles.row_gradient(loss.kind, w, x, y, clip=loss.clip, h=loss.huber_h)
        return float(np.linalg.norm(total / N))


@pytest.mark.parametrize("delta", [1e-6, 0.0])
@pytest.mark.parametrize(
    ("task", "training"),
    [
        ("binary", {"method": "objpert"}),
        ("binary", {"method": "amp", "loss": "huber_svm"}),
        ("multiclass", {"method": "amp-hf"}),
    ],
)
def test_a_run_is_the_minimiser_of_its_objective_plus_noise(
    database: str,
    connection: psycopg.Connection,
    monkeypatch: pytest.MonkeyPatch,
    task: str,
    training: dict[str, Any],
    delta: float,
) -> None:
    create_people(connection, make_people(N), "people")
    spy = Spy(monkeypatch)
    result = pg_dpml.train(
        database, people.spec(task), PrivacySpec(1.0, delta), TrainSpec(**training), name="m"
    )
    noise: Any = result.plan.noise
    assert spy.gradient_norm(result.plan.work) <= noise.answer.sensitivity * noise.convexity / 2.0
    assert np.any(spy.linear != 0.0)
    assert not set(np.abs(spy.linear)) & set(np.abs(spy.sent))  # it never leaves the controller
    beyond = np.linalg.norm(result.model.weights - spy.answer)
    assert 0.0 < beyond < 8.0 * noise.answer.expected_norm
    assert result.passes is None
    stored = scalar(connection, "SELECT training FROM dpml.models")
    assert (stored["passes"], stored["solver"]) == (None, "certified")
    mechanism = scalar(connection, "SELECT mechanism FROM dpml.ledger")
    assert mechanism["kind"] == ("k-norm" if delta == 0.0 else noise.kind)
    charged = scalar(connection, "SELECT epsilon FROM dpml.ledger")
    assert charged == 1
    connection.execute("DROP TABLE people")
