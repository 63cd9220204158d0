# SPDX-License-Identifier: PostgreSQL
"""`dpml inspect` and `dpml check` on real tables: what the catalog says, and what the rows are."""

from __future__ import annotations

import json
import re
from datetime import date
from pathlib import Path

import psycopg
import pytest
from typer.testing import CliRunner

import pg_dpml
from helpers import people
from helpers.anytable import PRIVACY, TRAINING
from helpers.sqltools import scalar
from pg_dpml.cli.framework import app
from pg_dpml.spec.columns import Column, Label
from pg_dpml.spec.data import DataSpec
from pg_dpml.tables.advice import advice
from pg_dpml.tables.checks import TableCheck, ValueCheck, check_table
from pg_dpml.tables.inspection import inspect_table
from pg_dpml.tables.measuring import ValueCount
from pg_dpml.tables.stamp import OWNER_ONLY
from pg_dpml.tables.template import spec_template

pytestmark = pytest.mark.dealt

WARD = """
CREATE TYPE temper AS ENUM ('low', 'high');
CREATE DOMAIN years AS int CHECK (VALUE >= 0);
CREATE DOMAIN age AS years CHECK (VALUE < 130);
CREATE TABLE patients (id int PRIMARY KEY);
CREATE TABLE ward (
    visit bigint GENERATED ALWAYS AS IDENTITY,
    patient_id int NOT NULL REFERENCES patients,
    code text UNIQUE,
    age age,
    weight numeric(4,1) CHECK (weight > 0 AND weight <= 500),
    "Blood Group" char(2) CHECK ("Blood Group" IN ('A', 'B', 'AB', '0')),
    since date CHECK (since BETWEEN '2000-01-01' AND '2030-12-31'),
    mood temper,
    smoker boolean,
    scan real[] CHECK (cardinality(scan) = 2),
    notes jsonb,
    stay interval,
    ill boolean
);
COMMENT ON COLUMN ward.weight IS 'in kg';
INSERT INTO patients VALUES (1), (2);
"""


@pytest.fixture(scope="module", autouse=True)
def tables(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(WARD.encode())
        people.create_people(connection, [*people.make_people(50), *people.BAD_PEOPLE])


def cli(*arguments: str) -> str:
    """What the command prints."""
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_inspect(connection: psycopg.Connection, database: str, tmp_path: Path) -> None:
    """Everything of the catalog, and a spec that trains once the one open place is filled in."""
    text = cli("inspect", "ward", "--label", "ill", "--dsn", database)
    assert re.findall(r"^# \[columns\.(.+)\]\n# Left out: (.{9})", text, re.MULTILINE) == [
        ("visit", "numbered "),
        ("patient_id", "a referen"),
        ("code", "unique, i"),
        ("notes", "this type"),
        ("stay", "this type"),
    ]
    assert '# unit = "patient_id"' in text
    assert '# numeric(4,1), whose values are within +-999.9, "in kg", CHECK' in text
    path = tmp_path / "ward.toml"
    section = text.index("[columns.scan]")
    scan = (
        text[section:]
        .replace('lower = "FILL IN"', "lower = 0", 1)
        .replace('upper = "FILL IN"', "upper = 1", 1)
    )
    path.write_text(text[:section] + scan, encoding="utf-8")
    data = DataSpec.from_toml(path)
    assert data.label == Label("ill", positive="true")
    assert [column.name for column in data.columns] == [
        *("age", "weight", "Blood Group", "since", "mood", "smoker", "scan"),
    ]
    assert data.columns[:3] == (
        Column("age", 0, 129),
        Column("weight", 0, 500),
        Column("Blood Group", levels=("A", "B", "AB", "0")),
    )
    assert data.columns[-1] == Column("scan", 0, 1, length=2)
    pg_dpml.train(database, data, PRIVACY, TRAINING, name="ward")
    connection.execute("DELETE FROM dpml.models")


def test_inspect_reads_no_row(connection: psycopg.Connection, database: str) -> None:
    """A role that may not read the table can inspect it."""
    connection.execute("CREATE ROLE onlooker LOGIN")
    onlooker = database.replace("user='postgres'", "user='onlooker'")
    assert onlooker != database
    with psycopg.connect(onlooker) as other, pytest.raises(psycopg.errors.InsufficientPrivilege):
        other.execute("SELECT age FROM ward")
    record = json.loads(cli("inspect", "ward", "--format", "json", "--dsn", onlooker))
    assert record["table"] == "ward"
    assert record["spec"] == spec_template(inspect_table(database, "ward"))
    connection.execute("DROP ROLE onlooker")


def test_inspect_writes_names_as_sql_does(connection: psycopg.Connection, database: str) -> None:
    connection.execute('CREATE SCHEMA "My schema"')
    connection.execute('CREATE TABLE "My schema"."a ""table""" (x float8, y text)')
    table = inspect_table(database, '"My schema"."a ""table"""')
    assert table.name == '"My schema"."a ""table"""'
    assert 'table = "\\"My schema\\".\\"a \\"\\"table\\"\\"\\""' in spec_template(table)
    connection.execute('DROP SCHEMA "My schema" CASCADE')


# Checks


def by_name(check: TableCheck) -> dict[str, ValueCheck]:
    return {column.name: column for column in (*check.columns, check.label)}


def test_check_of_people(database: str) -> None:
    """Against the counts by hand of the bad ones; the good ones are within the bounds."""
    check = check_table(database, people.spec("binary"))
    found = by_name(check)
    assert check.n_rows == 55
    assert check.units == ()
    age = found["age"]
    assert (age.nulls, age.nan, age.infinite, age.below, age.above) == (1, 1, 1, 0, 1)
    gain = found["gain"]
    assert (gain.nulls, gain.below, gain.above) == (1, 1, 1)
    height = found["height"]
    assert (height.nulls, height.nan, height.infinite, height.far) == (1, 1, 2, 2)
    assert found["married"].nulls == 2
    town = found["town"]
    assert (town.nulls, town.unknown) == (1, 3)
    assert town.unknown_values == (ValueCount("", 1), ValueCount("Rome", 1), ValueCount("aix", 1))
    assert sum(level.rows for level in town.levels or ()) == 51
    assert [level.value for level in found["mood"].levels or ()] == list(people.MOODS)
    assert found["mood"].nulls == 2
    pixels = found["pixels"]
    assert (pixels.nulls, pixels.wrong_length, pixels.null_elements, pixels.outside_elements) == (1, 3, 0, 1)
    label = found["rich"]
    assert (label.nulls, label.unknown, label.unknown_values) == (2, 1, (ValueCount("maybe", 1),))
    assert not any(column.constant for column in check.columns)


@pytest.mark.parametrize("task", ["multiclass", "regression"])
def test_check_of_other_labels(database: str, task: str) -> None:
    label = check_table(database, people.spec(task)).label
    if task == "multiclass":
        assert [level.value for level in label.levels or ()] == ["1", "2", "3"]
        assert {(value.value, value.rows) for value in label.unknown_values} == {("7", 1), ("-3", 1)}
    else:
        assert (label.nulls, label.nan, label.infinite) == (2, 1, 1)
        assert label.above >= 1


@pytest.mark.parametrize(
    ("type_", "values", "said"),
    [
        ("int", "g % 2", "two values only, 0 and 1: did you mean positive = 1 and negative = 0"),
        ("numeric(3,1)", "1 + g % 2", "two values only, 1 and 2: did you mean positive = 2 and negative = 1"),
        ("boolean", "g % 2 = 0", "two values only, false and true: did you mean positive = true"),
        ("real", "g % 4", "4 whole values only: did you mean classes = [0, 1, 2, 3]"),
        (
            "float8",
            "CASE WHEN g = 1 THEN float8 'NaN' WHEN g = 2 THEN NULL ELSE g % 2 END",
            "two values only, 0 and 1",
        ),
        ("int", "g", None),
        ("float8", "0.5 + g % 4", None),
        ("date", "date '2000-01-01' + g % 2", None),
    ],
)
def test_a_number_to_predict_that_looks_like_a_class(
    connection: psycopg.Connection, database: str, type_: str, values: str, said: str | None
) -> None:
    connection.execute(
        f"CREATE TABLE few AS SELECT g AS x, ({values})::{type_} AS y FROM generate_series(1, 40) g".encode()
    )
    bounds = (date(1999, 1, 1), date(2001, 1, 1)) if type_ == "date" else (0, 50)
    data = DataSpec("few", Label("y", lower=bounds[0], upper=bounds[1]), (Column("x", 0, 50),))
    lines = " ".join(advice(check_table(database, data)).get("y", []))
    assert said in lines if said else "did you mean" not in lines
    connection.execute("DROP TABLE few")


def test_many_alike_columns_need_their_bounds_once(
    connection: psycopg.Connection, database: str, tmp_path: Path
) -> None:
    """A table of 31 columns of -1, 0 and 1 and a label of 0 and 1: four places to fill in."""
    listed = ", ".join(f"(g % {i + 2} % 3 - 1)::smallint AS v{i}" for i in range(31))
    connection.execute(
        f"CREATE TABLE sites AS SELECT {listed}, g % 2 AS phishing FROM generate_series(1, 60) g".encode()
    )
    text = cli("inspect", "sites", "--label", "phishing", "--dsn", database)
    places = [line for line in text.splitlines() if '"FILL IN"' in line and not line.startswith("#")]
    assert places == [
        'positive = "FILL IN"',
        'negative = "FILL IN"',
        'lower = "FILL IN"',
        'upper = "FILL IN"',
    ]
    assert text.index("positive = 1 and negative = 0") < text.index("lower =")
    for place, value in zip(places, (1, 0, -1, 1), strict=True):
        text = text.replace(f"\n{place}", "\n" + place.replace('"FILL IN"', str(value)), 1)
    path = tmp_path / "sites.toml"
    path.write_text(text, encoding="utf-8")
    data = DataSpec.from_toml(path)
    assert data.columns == tuple(Column(f"v{i}", -1, 1) for i in range(31))
    pg_dpml.train(database, data, PRIVACY, TRAINING, name="sites")
    connection.execute("DELETE FROM dpml.models; DROP TABLE sites")


TYPES = """
CREATE TABLE many (a smallint, b numeric, c date, d timestamp, e timestamptz, f boolean[], g date[],
    h timestamptz[], i "char", j numeric[], k boolean, l text, user_id uuid, "50% %s" int, m date, y date);
INSERT INTO many SELECT g, 'NaN', '2000-01-01', '2000-01-01', '2000-01-01 00:00Z', '{t,f}',
    '{2000-01-01,2000-01-05}', '{infinity,-infinity}', 'x', '{1,NaN}', true, repeat('x', 1000) || g,
    md5((g % 2)::text)::uuid, 5, '2000-01-01', '2000-01-01' FROM generate_series(1, 10) g;
INSERT INTO many (b, c, d, e, f, j)
    VALUES (1e2000, 'infinity', '-infinity', 'infinity', '{t}', '{{1},{1e999}}');
"""


def test_check_of_many_types(connection: psycopg.Connection, database: str) -> None:
    """Nothing raises; values that no plain cast survives are counted."""
    connection.execute(TYPES.encode())
    old, new = date(1999, 1, 1), date(2001, 1, 1)
    columns = (
        *(Column(name, 0, 5) for name in ("a", "b", "50% %s")),
        *(Column(name, old, new) for name in ("c", "d", "e")),
        Column("f", 0, 5, length=2),
        *(Column(name, old, new, length=2) for name in ("g", "h")),
        Column("i", levels=("x",)),
        Column("j", 0, 5, length=2),
        Column("k"),
        Column("l", levels=("x",)),
        Column("m", levels=("2000-01-01", "2000-01-02")),
    )
    label = Label("y", classes=("2000-01-01", "2000-01-02"))
    check = check_table(
        database, DataSpec("many", label, columns, where="'%s' <> '%'", definition_is_public=True)
    )
    found = by_name(check)
    assert (found["a"].nulls, found["a"].above, found["a"].constant) == (1, 5, False)
    assert (found["b"].nan, found["b"].infinite, found["b"].above) == (10, 1, 0)  # 1e2000 is beyond float8
    for name in "cde":
        assert (found[name].infinite, found[name].below, found[name].above) == (1, 0, 0)
    assert (found["f"].wrong_length, found["f"].outside_elements) == (1, 0)
    assert (found["g"].outside_elements, found["h"].outside_elements) == (0, 10)
    j = found["j"]
    assert (j.wrong_length, j.null_elements, j.outside_elements) == (0, 10, 1)  # NaN counts as nothing
    assert found["k"].constant
    assert found["50% %s"].constant
    assert (found["l"].unknown, len(found["l"].unknown_values)) == (10, 5)
    assert all(len(value.value) == 60 for value in found["l"].unknown_values)
    assert [level.rows for level in found["m"].levels or ()] == [10, 0]
    assert [level.rows for level in found["y"].levels or ()] == [10, 0]
    assert [(unit.column, unit.units, unit.most_rows, unit.several) for unit in check.units] == [
        ("user_id", 2, 5, 2)
    ]
    connection.execute("DROP TABLE many")


def test_check_of_vectors(connection: psycopg.Connection, database: str) -> None:
    if not scalar(connection, "SELECT count(*) FROM pg_available_extensions WHERE name = 'vector'"):
        pytest.skip("this server has no pgvector")
    connection.execute("CREATE SCHEMA ext; CREATE EXTENSION vector SCHEMA ext")
    connection.execute("CREATE TABLE seen (v ext.vector, w ext.vector(2), y int)")
    connection.execute(
        "INSERT INTO seen VALUES ('[1,2]', '[0,1]', 1), ('[1]', '[0,9]', 2), (NULL, NULL, NULL)"
    )
    columns = (Column("v", 0, 5, length=2), Column("w", 0, 5))
    found = by_name(check_table(database, DataSpec("seen", Label("y", positive="1"), columns)))
    assert (found["v"].nulls, found["v"].wrong_length, found["v"].outside_elements) == (1, 1, 0)
    assert (found["w"].nulls, found["w"].wrong_length, found["w"].outside_elements) == (1, 0, 1)
    connection.execute("DROP EXTENSION vector CASCADE; DROP TABLE seen; DROP SCHEMA ext")


def test_check_of_an_empty_table(connection: psycopg.Connection, database: str, tmp_path: Path) -> None:
    connection.execute("CREATE TABLE nothing (x int, c text, y text)")
    path = tmp_path / "nothing.toml"
    path.write_text(
        'table = "nothing"\n[label]\ncolumn = "y"\npositive = "a"\n[columns.x]\nlower = 0\nupper = 1\n'
        '[columns.c]\nlevels = ["a"]\n'
    )
    assert "public.nothing, 0 rows" in cli("check", str(path), "--dsn", database)
    connection.execute("DROP TABLE nothing")


def test_check_of_more_columns_than_a_query_takes(connection: psycopg.Connection, database: str) -> None:
    numbers = [f"n{i}" for i in range(70)]
    texts = [f"c{i}" for i in range(70)]
    listed = ", ".join([*(f"{i} AS n{i}" for i in range(70)), *(f"'v{i}' AS c{i}" for i in range(70))])
    connection.execute(f"CREATE TABLE wide AS SELECT {listed}, true AS y FROM generate_series(1, 3)".encode())
    columns = [*(Column(n, -1, 100) for n in numbers), *(Column(c, levels=(f"v{c[1:]}", "w")) for c in texts)]
    check = check_table(database, DataSpec("wide", Label("y", positive="true"), tuple(columns)))
    assert [column.name for column in check.columns] == [*numbers, *texts]
    for column in check.columns:
        assert column.constant
        assert column.levels is None or [level.rows for level in column.levels] == [3, 0]
    connection.execute("DROP TABLE wide")


def test_units(connection: psycopg.Connection, database: str) -> None:
    connection.execute(
        "CREATE TABLE visits AS SELECT g % 4 AS patient_id, g AS visit_id, g % 2 AS x, true AS y "
        "FROM generate_series(1, 10) g"
    )
    connection.execute("INSERT INTO visits VALUES (NULL, 0, 0, true)")
    data = DataSpec("visits", Label("y", positive="true"), (Column("x", 0, 1),))
    (unit,) = check_table(database, data).units
    assert (unit.column, unit.declared, unit.units, unit.most_rows, unit.several) == (
        "patient_id",
        False,
        4,
        3,
        4,
    )
    declared = DataSpec("visits", data.label, data.columns, unit="patient_id", max_rows_per_unit=2)
    (unit,) = check_table(database, declared).units
    assert (unit.declared, unit.unused_rows) == (True, 2)
    connection.execute("DROP TABLE visits")


def test_the_command_stamps_and_charges_nothing(
    connection: psycopg.Connection, database: str, tmp_path: Path
) -> None:
    path = tmp_path / "people.toml"
    path.write_text(
        'table = "people"\n[label]\ncolumn = "rich"\npositive = "yes"\n'
        '[columns.town]\nlevels = ["Aix", "Bonn"]\n'
        "[columns.age]\nlower = 0\nupper = 100\n"
    )
    before = scalar(connection, "SELECT count(*) FROM dpml.ledger")
    text = cli("check", str(path), "--dsn", database)
    record = json.loads(cli("check", str(path), "--format", "json", "--dsn", database))
    assert text.startswith(OWNER_ONLY + "\n")
    assert record["stamp"] == OWNER_ONLY
    assert record["private"] is False
    assert "'Cork'" in text
    assert [column["name"] for column in record["columns"]] == ["town", "age"]
    assert record["advice"]["town"]
    assert scalar(connection, "SELECT count(*) FROM dpml.ledger") == before
