# SPDX-License-Identifier: PostgreSQL
"""Training and predicting from start to end with columns and labels of every type."""

from __future__ import annotations

from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest
from psycopg.types.json import Jsonb

import pg_dpml
from helpers.anytable import YES, X, encoded, refused, run
from helpers.sqltools import scalar
from pg_dpml.spec.columns import Column, Label
from pg_dpml.spec.data import DataSpec

pytestmark = pytest.mark.dealt

# Types

NUMBERS = ["smallint", "integer", "bigint", "decimal", "numeric(7,2)", "real", "float8", "smallserial"]
ODD_VALUES = ["NaN", "Infinity", "-Infinity"]


@pytest.mark.parametrize("type_", NUMBERS)
def test_numbers(connection: psycopg.Connection, table: str, type_: str) -> None:
    connection.execute(f"CREATE TABLE {table} (id int, x {type_}, y bool)".encode())
    if type_ == "smallserial":
        connection.execute(f"ALTER TABLE {table} ALTER x DROP NOT NULL".encode())
    values: list[Any] = [None, 0, 1, 5, 10, 11, -30000, 30000]
    if type_ in ("decimal", "real", "float8"):
        values += ODD_VALUES
    for i, value in enumerate(values):
        connection.execute(f"INSERT INTO {table} VALUES (%s, %s, %s)".encode(), (i, value, i % 2 == 0))
    found = encoded(connection, DataSpec(table, YES, (X,), intercept=False, norm="clip"))
    # In the middle of the bounds is 0, and so is what is no number.
    wanted = [0, -1, -0.8, 0, 1, 1, -1, 1, 0, 1, -1]
    np.testing.assert_allclose(found[:, 0], wanted[: len(values)], atol=1e-5)


def test_huge_numerics_are_clamped(connection: psycopg.Connection, table: str) -> None:
    connection.execute(f"CREATE TABLE {table} (id int, x numeric, y bool)".encode())
    connection.execute(f"INSERT INTO {table} VALUES (1, 1e5000, true), (2, -1e5000, false)".encode())
    found = encoded(connection, DataSpec(table, YES, (X,), intercept=False))
    np.testing.assert_allclose(found[:, 0], [1, -1], atol=1e-5)


@pytest.mark.parametrize(
    "type_",
    ["money", "oid", "regclass", "uuid", "json", "jsonb", "interval", "time", "bytea", "inet", "point"],
)
def test_types_without_an_encoding_cost_nothing(
    connection: psycopg.Connection, table: str, type_: str
) -> None:
    connection.execute(f"CREATE TABLE {table} (x {type_}, z {type_}[], y bool, v int)".encode())
    refused(connection, DataSpec(table, YES, (X,)), f"column x: type {type_}.* has no encoding")
    listed = Column("x", levels=("a",))
    refused(connection, DataSpec(table, YES, (listed,)), f"type {type_}.* cannot be listed")
    array = Column("z", lower=0, upper=1, length=2)
    refused(connection, DataSpec(table, YES, (array,)), "column z: type .* has no encoding")
    label = Label("x", positive="a")
    refused(connection, DataSpec(table, label, (Column("v", lower=0, upper=1),)), "label x: values of type")
    label = Label("x", lower=0, upper=1)
    refused(connection, DataSpec(table, label, (Column("v", lower=0, upper=1),)), "label x: lower and upper")


def test_dates_and_timestamps(connection: psycopg.Connection, table: str, tmp_path: Path) -> None:
    """Bounds as TOML writes them, or as ISO text; infinities and far ages are clamped."""
    connection.execute(
        f"CREATE TABLE {table} (id int, a date, b timestamp, c timestamptz, d timestamptz, y bool)".encode()
    )
    connection.execute("SET timezone = 'Asia/Kolkata'")
    connection.execute(
        f"INSERT INTO {table} VALUES "
        "(1, '2000-01-01', '2020-01-01 00:00', '2020-01-01 00:00+00', '2020-01-01 05:30+05:30', true), "
        "(2, '2010-01-01', '2020-01-01 18:00', '2020-01-01 18:00+00', '2020-01-01 18:00+00', false), "
        "(3, 'infinity', 'infinity', 'infinity', 'infinity', false), "
        "(4, '-infinity', '-infinity', '-infinity', '-infinity', true), "
        "(5, '4713-01-01 BC', '4713-01-01 BC', '290000-01-01', '2020-01-01 12:00+00', true), "
        "(6, NULL, NULL, NULL, NULL, NULL), (7, NULL, NULL, NULL, NULL, true)".encode()
    )
    spec = tmp_path / "spec.toml"
    spec.write_text(
        f'table = "{table}"\n[features]\nintercept = false\nnorm = "clip"\n'
        '[label]\ncolumn = "y"\npositive = true\n'
        "[columns.a]\nlower = 1990-01-01\nupper = 2010-01-01\n"
        "[columns.b]\nlower = 2020-01-01T00:00:00\nupper = 2020-01-02\n"
        "[columns.c]\nlower = 2020-01-01T05:30:00+05:30\nupper = 2020-01-02T00:00:00Z\n"
        '[columns.d]\nlower = "2020-01-01"\nupper = "2020-01-02T00:00:00Z"\n'
    )
    data = DataSpec.from_toml(spec)
    alone = [
        encoded(connection, DataSpec(table, YES, (column,), intercept=False, norm="clip"))[:, 0]
        for column in data.columns
    ]
    assert run(connection, data)
    clamped = [1, -1, -1, 0, 0]
    np.testing.assert_allclose(alone[0], [0, 1, *clamped], atol=1e-3)
    np.testing.assert_allclose(alone[1], [-1, 0.5, *clamped], atol=1e-5)
    np.testing.assert_allclose(alone[2], [-1, 0.5, 1, -1, 1, 0, 0], atol=1e-5)
    np.testing.assert_allclose(alone[3], [-1, 0.5, 1, -1, 0, 0, 0], atol=1e-5)


@pytest.mark.parametrize(
    ("type_", "column", "message"),
    [
        ("date", X, "lower must be a date, such as 2000-12-31, not 0.0"),
        ("timestamp", X, "lower must be a timestamp, such as 2000-12-31T23:59:59"),
        (
            "int",
            Column("x", lower=date(2000, 1, 1), upper=date(2001, 1, 1)),
            "lower must be a number, not the date",
        ),
        (
            "timestamp",
            Column("x", lower=date(2000, 1, 1), upper=datetime(2001, 1, 1, tzinfo=timezone.utc)),
            "upper must be without a time zone",
        ),
        ("timestamp", Column("x", levels=("2000-01-01",)), "values of type timestamp .* cannot be listed"),
    ],
)
def test_bounds_of_another_kind(
    connection: psycopg.Connection, table: str, type_: str, column: Column, message: str
) -> None:
    connection.execute(f"CREATE TABLE {table} (x {type_}, y bool)".encode())
    refused(connection, DataSpec(table, YES, (column,)), message)


def test_standardised_dates(connection: psycopg.Connection, table: str) -> None:
    connection.execute(f"CREATE TABLE {table} (id int, x date, y bool)".encode())
    connection.execute(
        f"INSERT INTO {table} VALUES (1, '2000-01-11', true), (2, '-infinity', false)".encode()
    )
    column = Column("x", scale="standard", mean=date(2000, 1, 1), sd=20)
    found = encoded(connection, DataSpec(table, YES, (column,), intercept=False, norm="clip"))
    np.testing.assert_allclose(found[:, 0], [0.5, 0], atol=1e-6)


@pytest.fixture
def types(connection: psycopg.Connection) -> psycopg.Connection:
    connection.execute(
        "DO $$ BEGIN CREATE TYPE town AS ENUM ('Aix', 'Bonn'); CREATE DOMAIN townish AS town; "
        "CREATE DOMAIN tag AS varchar(9) CHECK (length(VALUE) > 0); CREATE DOMAIN tags AS tag; "
        "CREATE DOMAIN years AS int; CREATE DOMAIN ages AS years; CREATE DOMAIN vec AS ages[]; "
        "EXCEPTION WHEN duplicate_object THEN END $$"
    )
    return connection


@pytest.mark.parametrize(
    "type_",
    ["text", "varchar", "varchar(5)", "char(6)", "bpchar", "name", "town", "townish", "tag", "tags"],
)
def test_categories(types: psycopg.Connection, table: str, type_: str) -> None:
    types.execute(f"CREATE TABLE {table} (id int, x {type_}, y bool)".encode())
    values = "(1, 'Aix', true), (2, 'Bonn', false), (3, NULL, true)"
    types.execute(f"INSERT INTO {table} VALUES {values}".encode())
    levels = None if type_.startswith("town") else ("Aix", "Bonn")  # an enum brings its own
    data = DataSpec(table, YES, (Column("x", levels=levels, centered=False),), intercept=False)
    np.testing.assert_allclose(encoded(types, data), [[1, 0], [0, 1], [0, 0]], atol=1e-5)


def test_the_type_of_one_byte_and_booleans(connection: psycopg.Connection, table: str) -> None:
    connection.execute(f'CREATE TABLE {table} (id int, x "char", b bool, y bool)'.encode())
    connection.execute(f"INSERT INTO {table} VALUES (1, 'a', true, true), (2, 'b', NULL, false)".encode())
    columns = (Column("x", levels=("a", "b")), Column("b"), Column("id", levels=(1, 2)))  # type: ignore[arg-type]
    assert encoded(connection, DataSpec(table, YES, columns)).shape == (2, 2 + 1 + 2 + 1)


def test_numbers_dates_and_booleans_as_categories(connection: psycopg.Connection, table: str) -> None:
    connection.execute(f"CREATE TABLE {table} (id int, a numeric, b date, c bool, d real, y bool)".encode())
    connection.execute(
        f"INSERT INTO {table} VALUES (1, 1.50, '2020-02-29', true, 0.1, true), "
        "(2, 2, 'infinity', false, 'NaN', false)".encode()
    )
    columns = (
        Column("a", levels=(1.5, 3), centered=False),  # type: ignore[arg-type]
        Column("b", levels=("2020-02-29", "2020-3-1"), centered=False),
        Column("c", levels=(False, True), centered=False),  # type: ignore[arg-type]
        Column("d", levels=("0.1",), centered=False),
    )
    found = encoded(connection, DataSpec(table, YES, columns, intercept=False, norm="clip"))
    assert (found > 0).astype(int).tolist() == [[1, 0, 1, 0, 0, 1, 1], [0, 0, 0, 0, 1, 0, 0]]


ARRAYS = ["smallint", "int", "bigint", "numeric", "real", "float8", "bool", "years", "ages"]


@pytest.mark.parametrize("type_", [f"{element}[]" for element in ARRAYS] + ["vec", "int[3]", "int[][]"])
def test_arrays(types: psycopg.Connection, table: str, type_: str) -> None:
    types.execute(f"CREATE TABLE {table} (id int, x {type_}, y bool)".encode())
    one, zero = ("t", "f") if type_ == "bool[]" else ("1", "0")
    types.execute(
        f"INSERT INTO {table} VALUES (1, '{{{one},{zero},NULL}}', true), (2, '{{{one}}}', true), "
        "(3, '{}', false), (4, NULL, true)".encode()
    )
    column = Column("x", lower=0, upper=1, length=3, scale="zero_based")
    found = encoded(types, DataSpec(table, YES, (column,), intercept=False))
    np.testing.assert_allclose(found, [[1, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0]], atol=1e-5)


def test_arrays_of_dates(connection: psycopg.Connection, table: str) -> None:
    connection.execute(f"CREATE TABLE {table} (id int, x date[], y bool)".encode())
    connection.execute(f"INSERT INTO {table} VALUES (1, '{{2000-01-01,infinity}}', true)".encode())
    column = Column("x", lower=date(1990, 1, 1), upper=date(2000, 1, 1), length=2)
    found = encoded(connection, DataSpec(table, YES, (column,), intercept=False))
    np.testing.assert_allclose(found, [[0.5**0.5, 0.5**0.5]], atol=1e-5)


@pytest.fixture
def pgvector(connection: psycopg.Connection) -> psycopg.Connection:
    if not scalar(connection, "SELECT count(*) FROM pg_available_extensions WHERE name = 'vector'"):
        pytest.skip("this server has no pgvector")
    connection.execute("CREATE SCHEMA IF NOT EXISTS ext")
    connection.execute("CREATE EXTENSION IF NOT EXISTS vector SCHEMA ext")
    connection.execute(
        "DO $$ BEGIN CREATE DOMAIN embedding AS ext.vector(3); EXCEPTION WHEN duplicate_object THEN END $$"
    )
    return connection


@pytest.mark.parametrize(
    ("type_", "length"),
    [("ext.vector(3)", None), ("ext.vector(3)", 3), ("ext.vector", 3), ("embedding", None)],
)
def test_vectors(pgvector: psycopg.Connection, table: str, type_: str, length: int | None) -> None:
    pgvector.execute(f"CREATE TABLE {table} (id int, x {type_}, y bool)".encode())
    pgvector.execute(f"INSERT INTO {table} VALUES (1, '[1,0.5,-1]', true), (2, NULL, false)".encode())
    if type_ == "ext.vector":
        pgvector.execute(f"INSERT INTO {table} VALUES (3, '[1]', true)".encode())
    column = Column("x", lower=-1, upper=1, length=length)
    found = encoded(pgvector, DataSpec(table, YES, (column,), intercept=False))
    wanted = np.zeros((len(found), 3))
    wanted[0] = np.array([1, 0.5, -1]) / 1.5
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_lengths_of_vectors(pgvector: psycopg.Connection, table: str) -> None:
    pgvector.execute(f"CREATE TABLE {table} (a ext.vector(3), b ext.vector, c ext.vector[], y bool)".encode())
    for column, message in (
        (Column("a", lower=0, upper=1, length=4), "has 3 elements by its type, not length = 4"),
        (Column("b", lower=0, upper=1), "needs length"),
        (Column("c", lower=0, upper=1, length=3), "has no encoding"),
    ):
        refused(pgvector, DataSpec(table, YES, (column,)), message)


def test_another_type_called_vector(connection: psycopg.Connection, table: str) -> None:
    """Only the extension's is read as it is laid out."""
    connection.execute("CREATE SCHEMA IF NOT EXISTS fake")
    connection.execute("CREATE TYPE fake.vector AS (a float4, b float4)")
    connection.execute(f"CREATE TABLE {table} (x fake.vector, y bool)".encode())
    refused(connection, DataSpec(table, YES, (Column("x", lower=0, upper=1, length=2),)), "has no encoding")
    column = {"name": "x", "kind": "array", "length": 2, "lower": 0, "upper": 1}
    with pytest.raises(psycopg.errors.DatatypeMismatch, match=r'column "x" of type fake\.vector'):
        connection.execute(
            "SELECT dpml.encode(%s, ROW(ROW(1, 2)::fake.vector))", (Jsonb({"columns": [column]}),)
        )
    connection.execute("DROP TYPE fake.vector CASCADE")


LABELS: list[tuple[str, Label, list[str]]] = [
    ("int", Label("y", positive=1), ["1", "0"]),  # type: ignore[arg-type]
    ("smallint", Label("y", classes=(1, 2, 3)), ["1", "3"]),  # type: ignore[arg-type]
    ("bigint", Label("y", lower=0, upper=9), ["1", "99"]),
    ("numeric", Label("y", positive="1.0", negative="0"), ["1.00", "0.000"]),
    ("numeric", Label("y", lower=0, upper=9), ["1e900", "NaN"]),
    ("real", Label("y", positive=0.1), ["0.1", "7"]),  # type: ignore[arg-type]
    ("boolean", Label("y", positive=True), ["t", "f"]),  # type: ignore[arg-type]
    ("boolean", Label("y", lower=0, upper=1), ["t", "f"]),
    ("text", Label("y", positive="it's", negative="50%"), ["it's", "50%"]),
    ("char(9)", Label("y", classes=("é", "日本", "")), ["é", ""]),
    ("town", Label("y", positive="Bonn"), ["Aix", "Bonn"]),
    ("townish", Label("y", classes=("Aix", "Bonn")), ["Aix", "Bonn"]),
    ("date", Label("y", positive="2020-01-01"), ["2020-01-01", "infinity"]),
    ("date", Label("y", lower=date(2020, 1, 1), upper=date(2020, 1, 11)), ["2020-01-06", "-infinity"]),
    ("timestamptz", Label("y", lower=date(2020, 1, 1), upper=date(2020, 1, 11)), ["2020-01-06", "infinity"]),
]


@pytest.mark.parametrize(("type_", "label", "values"), LABELS, ids=str)
def test_labels(types: psycopg.Connection, table: str, type_: str, label: Label, values: list[str]) -> None:
    types.execute(f"CREATE TABLE {table} (x int, y {type_})".encode())
    for i, value in enumerate([*values, None]):
        types.execute(f"INSERT INTO {table} VALUES (%s, %s)".encode(), (i, value))
    name = run(types, DataSpec(table, label, (X,)))
    rows = types.execute(
        f"SELECT dpml.label(%s, t), dpml.predict(%s, t) FROM {table} t ORDER BY x".encode(), (name, name)
    ).fetchall()
    assert rows[0][0] is not None
    assert rows[-1][0] is None
    assert all(row[1] is not None for row in rows)
    if type_ == "date" and label.positive is None:
        assert [row[0] for row in rows[:2]] == ["7310", "7305"]  # days since 2000-01-01
    assert pg_dpml.evaluate(types.info.dsn, name, table, public=True).n_rows >= 1


def test_two_classes_of_a_date(connection: psycopg.Connection, table: str, tmp_path: Path) -> None:
    connection.execute(f"CREATE TABLE {table} (x int, y date)".encode())
    connection.execute(f"INSERT INTO {table} VALUES (1, '2020-01-01'), (2, '2020-01-02')".encode())
    spec = tmp_path / "spec.toml"
    spec.write_text(
        f'table = "{table}"\n[label]\ncolumn = "y"\nclasses = [2020-01-01, 2020-01-02]\n'
        "[columns.x]\nlower = 0\nupper = 10\n"
    )
    run(connection, DataSpec.from_toml(spec))
