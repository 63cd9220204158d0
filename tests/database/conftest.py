# SPDX-License-Identifier: PostgreSQL
"""Fixtures of the tests that need a server."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import psycopg
import pytest

from helpers.sqltools import empty_registry, work_tables

_numbers = itertools.count(1)


@pytest.fixture
def table(connection: psycopg.Connection) -> Iterator[str]:
    """A new name for a table, dropped at the end, whatever kind of relation it became."""
    name = f"t{next(_numbers)}"
    yield name
    kinds = {"v": "VIEW", "m": "MATERIALIZED VIEW", "f": "FOREIGN TABLE"}
    for kind, schema in connection.execute(
        "SELECT relkind::text, relnamespace::regnamespace::text FROM pg_class WHERE relname = %s", (name,)
    ).fetchall():
        word = kinds.get(kind, "TABLE")
        connection.execute(f"DROP {word} {schema}.{name} CASCADE".encode())


@pytest.fixture
def clean(connection: psycopg.Connection) -> Iterator[None]:
    """The test starts without models, budgets and charges, and leaves no work table."""
    empty_registry(connection)
    yield
    assert work_tables(connection) == 0
