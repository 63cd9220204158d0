# SPDX-License-Identifier: PostgreSQL
"""DP-AGD in a real server: the sums that it chooses by, what it stores, and what a budget takes."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import psycopg
import pytest

import pg_dpml
from helpers import oracles, people
from helpers.people import FloatArray, create_people, make_people
from helpers.sqltools import scalar
from pg_dpml.blocks.blocks import Blocks
from pg_dpml.database.database import Database
from pg_dpml.database.session import sql
from pg_dpml.ledger import opening
from pg_dpml.spec.privacy import PrivacySpec
from pg_dpml.spec.relation import Relation
from pg_dpml.training.spec import TrainSpec

pytestmark = [pytest.mark.usefixtures("clean"), pytest.mark.dealt]

N = 120


def clipped_loss(loss: Any, w: FloatArray, x: FloatArray, y: float, clip: float) -> float:
    """Of one row at one candidate, by the oracle's formulas."""
    scores = w.reshape(loss.n_classes, -1) @ x
    if loss.kind == "softmax":
        value = 0.0 if y < 0 else oracles.softmax(scores, int(y))[0]
    else:
        value = oracles.loss(loss.kind, float(scores[0]), y, clip=loss.clip, h=loss.huber_h)[0]
    return min(max(value, 0.0), clip)


@pytest.mark.parametrize(
    ("task", "options"),
    [
        ("binary", {"loss_clip": 0.6}),
        ("binary", {"loss": "huber_svm", "lambda_": 0.1}),
        ("multiclass", {}),
        ("regression", {"clip": 0.5}),
    ],
)
def test_choices_are_made_by_clipped_losses(
    database: str,
    connection: psycopg.Connection,
    monkeypatch: pytest.MonkeyPatch,
    task: str,
    options: dict[str, Any],
) -> None:
    create_people(connection, make_people(N), "people")
    asked: list[tuple[FloatArray, FloatArray]] = []
    rows: list[tuple[FloatArray, float]] = []
    gradient = Blocks.gradient

    def spied(blocks: Blocks, weights: FloatArray, wanted: Any) -> Any:
        sums = gradient(blocks, weights, wanted)
        if sums.losses is not None:
            asked.append((weights, sums.losses))
            query = sql.SQL("SELECT u.x, u.y FROM {} AS b, dpml.unpack(b.block) AS u(x, y)")
            packed = blocks.session.fetch(query.format(blocks.packed.blocks))
            rows[:] = [(np.array(x, np.float32).astype(float), float(np.float32(y))) for x, y in packed]
        return sums

    monkeypatch.setattr(Blocks, "gradient", spied)
    training = TrainSpec("dp-agd", passes=8, **options)
    result = pg_dpml.train(database, people.spec(task), PrivacySpec(1.0, 1e-6), training, name="m")
    work: Any = result.plan.work
    assert 0 < len(asked) <= 8
    for weights, losses in (asked[0], asked[-1]):
        for candidate, found in zip(weights.reshape(len(losses), -1)[::6], losses[::6], strict=True):
            terms = [clipped_loss(work.loss, candidate, x, y, work.loss_clip) for x, y in rows]
            assert found == pytest.approx(sum(terms), rel=1e-9)
    stored = scalar(connection, "SELECT training FROM dpml.models")
    assert stored["passes"] == result.passes
    assert len(stored["spending"]) == len(asked)
    paid = sum(Decimal(one["gradient_rho"]) + Decimal(one["choice_rho"]) for one in stored["spending"])
    mechanism = scalar(connection, "SELECT mechanism FROM dpml.ledger")
    assert paid <= Decimal(mechanism["rho"])
    assert scalar(connection, "SELECT epsilon FROM dpml.ledger") == 1
    connection.execute("DROP TABLE people")


def test_a_zcdp_budget_takes_rho(database: str, connection: psycopg.Connection) -> None:
    create_people(connection, make_people(N), "people")
    privacy = PrivacySpec(1.0, 1e-6, Relation.ADD_REMOVE)
    with Database(database).session() as session:
        opening.open_budget(
            session,
            "study",
            epsilon=Decimal(3),
            delta=Decimal("1e-5"),
            rule="zcdp",
            relation=Relation.ADD_REMOVE,
        )
    data = people.spec("binary", dataset="study")
    result = pg_dpml.train(database, data, privacy, TrainSpec("dp-agd", passes=4), name="m")
    noise: Any = result.plan.noise
    taken = scalar(connection, "SELECT loss FROM dpml.budget_entries WHERE charge IS NOT NULL")
    assert float(taken) == pytest.approx(noise.rho, rel=1e-6)
    connection.execute("DROP TABLE people")
