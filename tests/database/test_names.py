# SPDX-License-Identifier: PostgreSQL
"""One reading of the names of tables, columns and roles wherever they are given, and what messages offer."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

import pg_dpml
from helpers.sqltools import scalar
from pg_dpml.database.catalog import look_up_table
from pg_dpml.database.database import Database
from pg_dpml.errors import GuaranteeError, SpecError
from pg_dpml.ledger import budgets, opening
from pg_dpml.ledger import models as registry
from pg_dpml.reports.sql_expression import sql_expression
from pg_dpml.spec.columns import Column, Label
from pg_dpml.spec.data import DataSpec
from pg_dpml.spec.privacy import PrivacySpec
from pg_dpml.tables.advice import check_text
from pg_dpml.tables.checks import check_table
from pg_dpml.tables.inspection import inspect_table
from pg_dpml.tables.template import spec_template
from pg_dpml.training.spec import TrainSpec

pytestmark = pytest.mark.dealt

COLUMNS = ("id", "Patient", "\ufeffSpecies", "Weight ", "Sepal.Length", "age")
PRIVACY = PrivacySpec(1.0, 1e-6)
TRAINING = TrainSpec(method="bolt-on", passes=1)


@pytest.fixture(scope="module", autouse=True)
def odd(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute('CREATE SCHEMA "Sales Dept"')
        connection.execute('CREATE SCHEMA "a.b"')
        connection.execute(
            SQL("CREATE TABLE fish ({} int, {} int, {} text, {} float8, {} float8, {} int)").format(
                *map(Identifier, COLUMNS)
            )
        )
        connection.execute(
            "INSERT INTO fish SELECT g, g / 2, CASE WHEN g % 3 = 0 THEN 'b ' ELSE 'a' END, g % 7, g % 5, "
            "g % 11 FROM generate_series(1, 60) g"
        )
        connection.execute('CREATE TABLE "Sales Dept"."Out put" AS TABLE fish')
        connection.execute('CREATE TABLE "a.b"."c.d" AS TABLE fish')


def spec(table: str = "fish", **changes: Any) -> DataSpec:
    given: dict[str, Any] = {
        "label": Label("\ufeffSpecies", positive="b "),
        "columns": (Column("Weight ", lower=0, upper=10), Column("AGE", lower=0, upper=20)),
    }
    return DataSpec(table, **given | changes)


@pytest.fixture(scope="module")
def model(database: str) -> str:
    pg_dpml.train(database, spec(), PRIVACY, TRAINING, name="fishes")
    return "fishes"


@pytest.fixture
def made(connection: psycopg.Connection) -> Iterator[None]:
    before = connection.execute("SELECT oid FROM pg_class").fetchall()
    yield
    new = connection.execute(
        "SELECT oid::regclass::text FROM pg_class WHERE relkind = 'r' AND oid <> ALL (%s) "
        "AND relnamespace NOT IN ('dpml'::regnamespace, 'pg_toast'::regnamespace)",
        ([oid for (oid,) in before],),
    ).fetchall()
    for (table,) in new:
        connection.execute(f"DROP TABLE {table}".encode())


@pytest.mark.parametrize(
    ("into", "schema", "table"),
    [
        ("p", "public", "p"),
        ("Pred2", "public", "pred2"),
        ('"Pred2"', "public", "Pred2"),
        ('"Out put"', "public", "Out put"),
        ('"Sales Dept"."Out put 2"', "Sales Dept", "Out put 2"),
        (' PUBLIC . "a.b" ', "public", "a.b"),
        ('"a.b"."say ""hi"" %s"', "a.b", 'say "hi" %s'),
        ("größe", "public", "größe"),
        ('"' + "x" * 63 + '"', "public", "x" * 63),
    ],
)
@pytest.mark.usefixtures("made")
def test_the_new_table_is_named_as_in_sql(
    connection: psycopg.Connection, model: str, into: str, schema: str, table: str
) -> None:
    rows = pg_dpml.predict(connection.info.dsn, model, "fish", id_column="ID", into=into)
    found = connection.execute(SQL("SELECT count(*) FROM {}").format(Identifier(schema, table))).fetchone()
    assert found == (rows,) == (60,)
    # And what was written can be read by the same name.
    with Database(connection.info.dsn).session() as session:
        relation = look_up_table(session, into)
    assert (relation.schema, relation.name) == (schema, table)


@pytest.mark.parametrize(
    ("into", "message"),
    [
        ("", "into must be the name of a new table as in SQL"),
        ("   ", "into must be the name of a new table as in SQL"),
        ('""', "into must be the name of a new table as in SQL"),
        ("My Table", r'into must be .*"My Table"'),
        ("2024-rows", r'into must be .*"2024-rows"'),
        ("a.b.c", "into must be the name of a new table as in SQL"),
        ("x; DROP TABLE fish", "into must be the name of a new table as in SQL"),
        ("nosuch.p", "^into: there is no schema nosuch$"),
        ('"sales dept".p', '^into: there is no schema "sales dept"; did you mean "Sales Dept"\\?$'),
        ("publik.p", r"^into: there is no schema publik; did you mean public\?$"),
        ("noschema.p", "^into: there is no schema noschema$"),  # not information_schema
        ("fish", "table fish exists: choose another name"),
        ("FISH", "table FISH exists: choose another name"),
        ("fish_key", "table fish_key exists: choose another name"),
        ("mood", "table mood exists: choose another name"),
        ("x" * 64, "has 64 bytes, and a name in PostgreSQL has at most 63"),
        ('"' + "ä" * 40 + '"', "has 80 bytes, and a name in PostgreSQL has at most 63"),
        ("pg_temp.p", "temporary table is gone when dpml ends"),
        ("dpml_work.p", "schema dpml_work is for the extension's own tables"),
    ],
)
def test_bad_names_of_the_new_table(
    connection: psycopg.Connection, model: str, into: str, message: str
) -> None:
    connection.execute("CREATE INDEX IF NOT EXISTS fish_key ON fish (id)")
    if not scalar(connection, "SELECT EXISTS (SELECT FROM pg_type WHERE typname = 'mood')"):
        connection.execute("CREATE TYPE mood AS ENUM ('sad')")
    with pytest.raises(SpecError, match=message) as caught:
        pg_dpml.predict(connection.info.dsn, model, "fish", id_column="id", into=into)
    assert "extension installed" not in str(caught.value)


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("FISH", "fish"),
        ('"Sales Dept"."Out put"', "Out put"),
        ("Sales Dept.Out put", "Out put"),
        ('"a.b"."c.d"', "c.d"),
        ("a.b.c.d", "c.d"),
        ("PUBLIC.Fish", "fish"),
    ],
)
def test_tables_are_named_as_in_sql_or_exactly(
    connection: psycopg.Connection, written: str, name: str
) -> None:
    with Database(connection.info.dsn).session() as session:
        assert look_up_table(session, written).name == name


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("fihs", "table fihs does not exist here; did you mean fish\\? Write it as in SQL"),
        ('"Fish"', "did you mean fish\\?"),
        ("Outputs", 'did you mean "Sales Dept"."Out put"\\?'),
        ('"sales dept".x', 'there is no schema "sales dept"; did you mean "Sales Dept"\\?'),
        ('"Sales Dept"."Output"', 'did you mean "Sales Dept"."Out put"\\?'),
        ("fi\ufeffsh", r"table fi\\ufeffsh does not exist here; did you mean fish\?"),
        ("x" * 80, "x{80} does not exist"),
        ("  ", "table must be the name of a table"),
    ],
)
def test_the_nearest_table_is_offered(connection: psycopg.Connection, table: str, message: str) -> None:
    with Database(connection.info.dsn).session() as session, pytest.raises(SpecError, match=message):
        look_up_table(session, table)


def test_a_name_is_not_cut_to_one_that_exists(connection: psycopg.Connection) -> None:
    connection.execute(f"CREATE TABLE {'y' * 63} (id int)".encode())
    with (
        Database(connection.info.dsn).session() as session,
        pytest.raises(SpecError, match=r"does not exist here; did you mean y{63}"),
    ):
        look_up_table(session, "y" * 64)


def test_columns_are_named_as_in_sql_or_exactly(connection: psycopg.Connection) -> None:
    data = spec(
        label=Label('"\ufeffSpecies"', positive="b "),
        columns=(
            Column('"Weight "', lower=0, upper=10),
            Column("Age", lower=0, upper=20),
            Column("Sepal.Length", lower=0, upper=5),
        ),
        unit='"Patient"',
        max_rows_per_unit=2,
    )
    found = pg_dpml.train(connection.info.dsn, data, PRIVACY, TrainSpec(), name="by names").model
    assert [column["name"] for column in found.encoder["columns"]] == ["Weight ", "age", "Sepal.Length"]
    assert (found.encoder["label"]["name"], found.privacy["unit"]) == ("\ufeffSpecies", "Patient")
    checked = check_table(connection.info.dsn, data)
    assert [column.name for column in checked.columns] == ["Weight ", "age", "Sepal.Length"]
    assert [(unit.column, unit.declared) for unit in checked.units] == [("Patient", True)]
    text = check_text(checked)
    assert '\n  "Weight "' in text
    assert '\n  "\\ufeffSpecies"' in text
    assert '"b ": 20' in text
    template = spec_template(inspect_table(connection.info.dsn, "FISH"), "ID")
    assert 'column = "id"' in template
    assert '[columns."\\ufeffSpecies"]' in template
    assert '[columns."Weight "]' in template


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"label": Label("Species", positive="a")},
            r'column Species does not exist in fish; did you mean "\\ufeffSpecies"\? It has id, Patient, ',
        ),
        (
            {"columns": (Column("Weight", lower=0, upper=1),)},
            r'column Weight does not exist in fish; did you mean "Weight "\?',
        ),
        ({"unit": "patient", "max_rows_per_unit": 2}, r"did you mean Patient\?"),
        ({"columns": (Column("zzzzz", lower=0, upper=1),)}, "does not exist in fish; it has id, Patient"),
        (
            {"columns": (Column("age", lower=0, upper=1), Column("AGE", lower=0, upper=1))},
            "every column may be listed once",
        ),
    ],
)
def test_the_nearest_column_is_offered(
    connection: psycopg.Connection, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        pg_dpml.plan(connection.info.dsn, spec(**changes), PRIVACY)


def test_the_id_column_is_named_alike(connection: psycopg.Connection, model: str) -> None:
    with pytest.raises(
        SpecError, match=r'^id: column weight does not exist in fish; did you mean "Weight "\?'
    ):
        pg_dpml.predict(connection.info.dsn, model, "fish", id_column="weight", into="p")


def test_a_budgets_unit_is_named_alike(connection: psycopg.Connection) -> None:
    amounts: dict[str, Any] = {"epsilon": Decimal(3), "delta": Decimal("1e-6"), "rule": "gdp"}
    with Database(connection.info.dsn).session() as session:
        opened = opening.open_budget(
            session, "a", unit='"Patient"', tables=('"Sales Dept"."Out put"',), **amounts
        )
        assert opened.unit == "Patient"
        with pytest.raises(
            SpecError, match=r"^unit: column patiens does not exist .* did you mean Patient\?"
        ):
            opening.open_budget(session, "b", unit="patiens", tables=("fish",), **amounts)
        loose = opening.open_budget(session, "c", unit="AGE", **amounts)
        budgets.require_unit(session, loose, "age")
        with pytest.raises(GuaranteeError, match="unit = AGE, and this run has unit = Patient"):
            budgets.require_unit(session, loose, "Patient")
        with pytest.raises(SpecError, match=r"data set aa has no budget; did you mean a\?"):
            budgets.load_budget(session, "aa")


def test_roles_and_models_are_named_alike(connection: psycopg.Connection, model: str) -> None:
    for role in ("reader_x", '"Reader Y"'):
        connection.execute(f"CREATE ROLE {role}".encode())
    try:
        with Database(connection.info.dsn).session() as session:
            for written, name in (
                ("READER_X", "reader_x"),
                ("Reader Y", "Reader Y"),
                ('"Reader Y"', "Reader Y"),
            ):
                assert registry.grant_model(session, model, written).granted_to == (name,)
                assert registry.revoke_model(session, model, written).granted_to == ()
            with pytest.raises(
                SpecError, match=r'^role: there is no role called "reader y"; did you mean "Rea'
            ):
                registry.grant_model(session, model, "reader y")
            with pytest.raises(
                SpecError, match=r"no model called fishs, .* granted to you; did you mean fishes"
            ):
                registry.load_model(session, "fishs")
    finally:
        connection.execute('DROP ROLE reader_x, "Reader Y"')


def test_types_are_found_for_a_table_whose_schema_has_a_dot(connection: psycopg.Connection) -> None:
    pg_dpml.train(connection.info.dsn, spec('"a.b"."c.d"'), PRIVACY, TRAINING, name="dotted")
    with Database(connection.info.dsn).session() as session:
        model = registry.load_model(session, "dotted")
        types = look_up_table(session, str(model.training["table_name"])).columns
    assert "AS" in sql_expression(model, types)
