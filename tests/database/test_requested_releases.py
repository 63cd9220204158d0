# SPDX-License-Identifier: PostgreSQL
"""What an analyst learns who requests a model again and again, each time for next to nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import psycopg
import pytest
from scipy import stats

from helpers.neighbours import FloatArray
from helpers.people import create_people, make_people
from helpers.sqltools import scalar
from pg_dpml.database.database import Database
from pg_dpml.ledger import opening
from pg_dpml.runs import datasets, requests
from pg_dpml.training import certified

pytestmark = pytest.mark.one_major

ROLES = ("curator", "analyst")
SPEC = """
table = "people"
[label]
column = "rich"
positive = "yes"
[columns.town]
levels = ["Aix", "Bonn", "Cork"]
[columns.age]
lower = 0
upper = 100
"""
RELEASES = 12


def of(role: str, dsn: str) -> str:
    """The connection string with another role."""
    return dsn.replace("user='postgres'", f"user='{role}'")


@pytest.fixture(autouse=True)
def offered(database: str, connection: psycopg.Connection, clean: None) -> Iterator[None]:
    """The table of a curator, who offers it to an analyst for a tiny budget."""
    create_people(connection, make_people(300))
    connection.execute(
        "CREATE ROLE curator LOGIN IN ROLE dpml_curator; CREATE ROLE analyst LOGIN IN ROLE dpml_analyst; "
        "GRANT SELECT ON people TO curator"
    )
    with Database(of("curator", database)).session() as session:
        opening.open_budget(
            session,
            "census",
            epsilon=Decimal("0.001"),
            delta=Decimal("1e-8"),
            rule="gdp",
            min_epsilon=Decimal("1e-12"),
        )
        datasets.register(session, "census", SPEC, allow_certified=True)
    yield
    connection.execute(f"DROP TABLE people; DROP OWNED BY {', '.join(ROLES)}".encode())
    connection.execute(f"DROP ROLE {', '.join(ROLES)}".encode())


def ask(dsn: str, model: str, epsilon: float, delta: float) -> int:
    options = {
        "privacy": {"epsilon": epsilon, "delta": delta},
        "training": {"method": "bolt-on", "lambda": 0.001},
    }
    with psycopg.connect(of("analyst", dsn)) as analyst:
        return int(scalar(analyst, "SELECT dpml.request('census', %s, %s)", model, json.dumps(options)))


def serve(dsn: str) -> None:
    requests.serve(Database(of("curator", dsn)), once=True, report=lambda _: None)


def states(dsn: str) -> list[tuple[str, str]]:
    with psycopg.connect(of("analyst", dsn)) as analyst:
        return analyst.execute(
            "SELECT state, coalesce(message, '') FROM dpml.requests ORDER BY id"
        ).fetchall()


def possible(candidates: FloatArray, place: float, steps: float) -> Any:
    """Those whose difference to a release is some float64 number times the standard deviation, rounded."""
    points = place - candidates
    x = points / steps
    found = np.rint(steps * x) == points
    for end in (-np.inf, np.inf):
        found |= np.rint(steps * np.nextafter(x, end)) == points
    return found


@pytest.mark.statistical
@pytest.mark.parametrize(("delta", "expected"), [(3e-10, "gaussian"), (0.0, "k-norm")])
def test_requests_for_next_to_nothing_tell_next_to_nothing(
    database: str, monkeypatch: pytest.MonkeyPatch, delta: float, expected: str
) -> None:
    """Too small an epsilon is refused uncharged; releases at the least one hide the exact model."""
    minimise, exact = certified.Objective.minimise, []

    def record(*arguments: Any, **more: Any) -> Any:
        found = minimise(*arguments, **more)
        exact.append(found[0].copy())
        return found

    monkeypatch.setattr(certified.Objective, "minimise", record)
    ask(database, "none", 2.5e-10, delta)
    serve(database)
    ((state, message),) = states(database)
    assert state == "refused"
    refusal = re.search(r"take epsilon = (\S+) or more", message)
    assert refusal, message
    least = float(refusal.group(1))
    assert exact == []
    for number in range(RELEASES):
        ask(database, f"m{number}", least, delta)
    serve(database)
    assert [state for state, _ in states(database)[1:]] == ["done"] * RELEASES
    with psycopg.connect(of("analyst", database)) as analyst:
        rows = analyst.execute(
            "SELECT weights, (privacy->'noise'->>'grid')::float8, (privacy->'noise'->>'scale')::float8, "
            "privacy->'noise'->>'kind' FROM dpml.models ORDER BY name"
        ).fetchall()
    assert len(rows) == len(exact) == RELEASES
    grid, scale, kind = rows[0][1:]
    assert kind == expected
    assert all(row[1:] == (grid, scale, kind) for row in rows)
    released = np.array([row[0] for row in rows]) / grid
    places = np.rint(exact[0] / grid)
    assert all(np.array_equal(np.rint(weights / grid), places) for weights in exact)
    np.testing.assert_array_equal(released, np.rint(released))
    stddev = scale / grid * (np.sqrt(len(places) + 1) if kind == "k-norm" else 1.0)
    assert 2.0**44 < stddev <= 2.0**45
    # Every candidate near the exact weight is left, as the exact one is.
    for weight in range(len(places)):
        candidates = places[weight] + np.arange(-(2.0**17), 2.0**17)
        for place in released[:, weight]:
            assert np.all(possible(candidates, place, stddev))
    # So are the parities of what was added, and of what was not.
    for offset in (0.0, 1.0, 12345.0):
        odd = int(np.sum(np.mod(released - places - offset, 2.0)))
        assert stats.binomtest(odd, released.size, 0.5).pvalue >= 1e-6
    assert float(np.linalg.norm(released - places, axis=1).min()) > 2.0**40
