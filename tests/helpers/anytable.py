# SPDX-License-Identifier: PostgreSQL
"""Training and predicting from start to end on a small table, for the tests of tables of every kind."""

from __future__ import annotations

import itertools

import numpy as np
import psycopg
import pytest
import sqlalchemy as sa
from psycopg.sql import SQL, Identifier, Literal
from psycopg.types.json import Jsonb

import pg_dpml
from helpers.sqltools import FloatArray, scalar
from pg_dpml.errors import SpecError
from pg_dpml.spec.columns import Column, Label
from pg_dpml.spec.data import DataSpec
from pg_dpml.spec.privacy import PrivacySpec
from pg_dpml.training.spec import TrainSpec

PRIVACY = PrivacySpec(1.0, 1e-6)
TRAINING = TrainSpec(method="bolt-on", passes=1)
YES = Label("y", positive=True)  # type: ignore[arg-type]
X = Column("x", lower=0, upper=10)

_numbers = itertools.count(1)


def run(connection: psycopg.Connection, data: DataSpec, source: str | sa.Engine | None = None) -> str:
    """Train, predict every row, and return the model's name."""
    name = f"model {next(_numbers)}"
    pg_dpml.train(source or connection.info.dsn, data, PRIVACY, TRAINING, name=name)
    if source is None:
        columns = [Identifier("t", name) for column in data.columns for name in column.names]
        relation = SQL(data.table)
        rows, predictions = connection.execute(
            SQL("SELECT count(*), count(dpml.predict({}, ROW({}))) FROM {} AS t").format(
                Literal(name), SQL(", ").join(columns), relation
            )
        ).fetchone() or (0, 1)
        assert rows == predictions
    return name


def encoded(connection: psycopg.Connection, data: DataSpec, order: str = "id") -> FloatArray:
    """The features of a table's rows, as a model of it sees them."""
    name = run(connection, data)
    encoder = scalar(connection, "SELECT encoder FROM dpml.models WHERE name = %s", name)
    relation = data.table.replace("%", "%%")
    rows = connection.execute(
        f"SELECT u.x::float8[] FROM {relation} t, dpml.unpack(dpml.encode(%s, t.*)) u "
        f"ORDER BY t.{order}".encode(),
        (Jsonb(encoder),),
    ).fetchall()
    return np.array([row[0] for row in rows])


def refused(connection: psycopg.Connection, data: DataSpec, message: str) -> None:
    """The spec is refused before anything is charged."""
    before = scalar(connection, "SELECT count(*) FROM dpml.ledger")
    with pytest.raises(SpecError, match=message):
        run(connection, data)
    assert scalar(connection, "SELECT count(*) FROM dpml.ledger") == before
