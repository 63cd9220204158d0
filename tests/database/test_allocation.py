# SPDX-License-Identifier: PostgreSQL
"""Batches by random allocation in the server: sizes, orders, refused arguments and whole runs."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import psycopg
import pytest
from psycopg import errors

import pg_dpml
from helpers import people, replay
from helpers.people import create_people, make_people
from helpers.sqltools import scalar
from pg_dpml import PrivacySpec, TrainSpec
from pg_dpml.training import sgd
from pg_dpml.training.sgd import Sgd

pytestmark = [pytest.mark.usefixtures("clean"), pytest.mark.dealt]

N = 600
GENEROUS = PrivacySpec(50.0, 1e-6)
OPTIONS = '{"loss": "squared", "step_size": 0.5, "batch_size": 2}'


@pytest.fixture(scope="module", autouse=True)
def tables(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        create_people(connection, make_people(N))


def test_sizes_are_those_of_units_that_draw(connection: psycopg.Connection) -> None:
    sizes = np.array(
        [
            row[0]
            for row in connection.execute("SELECT dpml.batch_sizes(1000, 4) FROM generate_series(1, 2000)")
        ]
    )
    assert sizes.shape == (2000, 4)
    assert np.all(sizes.sum(axis=1) == 1000)
    assert np.all(np.abs(sizes.mean(axis=0) - 250.0) <= 6.0 * math.sqrt(187.5 / 2000))
    # variance n (1/T) (1 - 1/T), far from that of batches cut by count
    assert np.all(np.abs(sizes.var(axis=0) / 187.5 - 1.0) <= 6.0 * math.sqrt(2.0 / 2000))
    assert scalar(connection, "SELECT dpml.batch_sizes(0, 3)") == [0, 0, 0]
    keys = scalar(connection, "SELECT count(DISTINCT dpml.random_key()) FROM generate_series(1, 1000)")
    assert keys == 1000


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT dpml.batch_sizes(-1, 3)", "units must be an integer from 0"),
        ("SELECT dpml.batch_sizes(5, 0)", "batches must be an integer from 1"),
        ("SELECT dpml.sgd_allocated(0, b, NULL, NULL, {}) FROM one", "sizes must be an array"),
        ("SELECT dpml.sgd_allocated(0, b, NULL, '{{{{1}}}}', {}) FROM one", "sizes must be an array"),
        ("SELECT dpml.sgd_allocated(0, b, NULL, '{{1,NULL}}', {}) FROM one", "sizes must be an array"),
        ("SELECT dpml.sgd_allocated(0, b, NULL, '{{3,-1}}', {}) FROM one", "sizes must be numbers >= 0"),
    ],
)
def test_bad_arguments_are_rejected(connection: psycopg.Connection, query: str, message: str) -> None:
    connection.execute(
        "CREATE TEMP TABLE one AS SELECT dpml.pack(dpml.encode("
        """'{"columns": [{"name": "x", "kind": "numeric", "lower": 0, "upper": 1}]}', ROW(0.5))) AS b"""
    )
    with pytest.raises(psycopg.Error, match=message):
        connection.execute(query.format(f"'{OPTIONS}'").encode())


@pytest.mark.parametrize("by_unit", [False, True])
@pytest.mark.parametrize("sizes", [[5], [2, 0, 3], [0, 0, 5, 0], [1, 1, 1, 1, 1]])
def test_a_pass_over_another_number_of_units_fails(
    connection: psycopg.Connection, by_unit: bool, sizes: list[int]
) -> None:
    """Fewer would all be in the first batches, whoever they are."""
    starts = np.arange(10) % 2 == 0 if by_unit else np.ones(5, dtype=bool)
    block = replay.pack_dense(np.full((len(starts), 2), 0.5), np.ones(len(starts)), starts)
    options: dict[str, Any] = {"loss": "logistic", "step_size": 0.1, "batch_size": 2}
    if by_unit:
        options["max_rows_per_unit"] = 2

    def steps(given: list[int]) -> object:
        query = "SELECT (dpml.sgd_allocated(0, %b, NULL, %s::int4[], %s)).steps"
        (found,) = connection.execute(query, (block, given, json.dumps(options))).fetchone() or (None,)
        return found

    assert steps(sizes) == len(sizes)
    for more in (-1, 1, 4):
        changed = [*sizes[:-1], sizes[-1] + more] if sizes[-1] + more >= 0 else [*sizes, 1]
        with pytest.raises(errors.InvalidParameterValue, match="another number of units"):
            steps(changed)


@pytest.mark.parametrize("method", ["scs13", "dp-sgd"])
@pytest.mark.parametrize("fresh", [False, True])
def test_learns(database: str, monkeypatch: pytest.MonkeyPatch, method: str, fresh: bool) -> None:
    """Units draw once for one order, and again for every fresh one; every batch is a step."""
    drawn: list[tuple[int, int]] = []
    allocate = sgd._allocate

    def spied(job: object, sizes: object, n_units: int, batches: int) -> None:
        drawn.append((n_units, batches))
        allocate(job, sizes, n_units, batches)  # type: ignore[arg-type]

    monkeypatch.setattr(sgd, "_allocate", spied)
    batch_size, passes, epsilon = (60, 3, 50.0) if fresh else (300, 3, 0.2)
    training = TrainSpec(method=method, sampling="allocation", batch_size=batch_size, passes=passes)
    result = pg_dpml.train(database, people.spec(), PrivacySpec(epsilon, 1e-6), training, name="m")
    work = result.plan.work
    assert isinstance(work, Sgd)
    assert (work.allocated, work.fresh_order) == (True, fresh)
    assert drawn == [(N, N // batch_size)] * (passes if fresh else 1)
    assert result.model.private
    assert np.all(np.isfinite(result.model.weights))
    if fresh:
        accuracy = pg_dpml.evaluate(database, "m", "people", public=True).accuracy
        assert accuracy is not None
        assert accuracy > 0.8
