# SPDX-License-Identifier: PostgreSQL
"""The demo on a part of its data."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from pg_dpml.server import demo
from pg_dpml.server.demo_data import load_adult


@pytest.mark.one_major
def test_without_privacy_is_the_minimiser(database: str, connection: psycopg.Connection) -> None:
    """Another method may stop early, and then privacy seems to help."""
    load_adult(connection)
    for table in ("adult_train", "adult_test"):
        connection.execute(f"DELETE FROM {table} WHERE ctid > '(20,0)'".encode())
    server: Any = SimpleNamespace(dsn=database)
    found = demo.run_demo(server, 1.0, lambda: nullcontext(None))
    methods = connection.execute("SELECT name, method FROM dpml.models").fetchall()
    assert (demo.PLAIN_MODEL, "lbfgs") in methods
    assert found.plain.n_rows == found.private.n_rows > 100
    assert "without privacy" in found.text
    plan = found.run.plan
    for pieces in (0, 4):
        curved = replace(plan, problem=replace(plan.problem, pieces=pieces))
        text = replace(found, run=replace(found.run, plan=curved)).text
        assert ("a linear model, without the private one's curves" in text) is (pieces > 0)
