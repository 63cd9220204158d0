# SPDX-License-Identifier: PostgreSQL
"""Training and predicting from start to end on relations of every kind, with every name and of every size."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import psycopg
import pytest
import sqlalchemy as sa
from psycopg.sql import SQL, Composed, Identifier, Literal

import pg_dpml
from helpers.anytable import PRIVACY, TRAINING, YES, X, encoded, refused, run
from helpers.sqltools import scalar
from pg_dpml.errors import GuaranteeError, SpecError
from pg_dpml.spec.columns import Column, Label
from pg_dpml.spec.data import DataSpec
from pg_dpml.training.spec import TrainSpec

pytestmark = pytest.mark.dealt

ROWS = "SELECT g::int AS id, g % 11 AS x, g % 2 = 0 AS y FROM generate_series(1, 30) g"


@pytest.fixture(scope="module", autouse=True)
def rows(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE rows AS {ROWS}".encode())


@pytest.mark.parametrize("kind", ["VIEW", "MATERIALIZED VIEW"])
def test_views(connection: psycopg.Connection, table: str, kind: str) -> None:
    connection.execute(f"CREATE {kind} {table} AS SELECT * FROM rows WHERE x <> 3".encode())
    with pytest.raises(GuaranteeError, match="definition_is_public = true"):
        run(connection, DataSpec(table, YES, (X,)))
    assert len(encoded(connection, DataSpec(table, YES, (X,), definition_is_public=True))) == 27


@pytest.mark.parametrize("partition", ["LIST", "RANGE", "HASH"])
def test_partitioned_tables(connection: psycopg.Connection, table: str, partition: str) -> None:
    """The partitions' columns come in other orders, and one has dropped a column."""
    connection.execute(f"CREATE TABLE {table} (id int, x int, y bool) PARTITION BY {partition} (x)".encode())
    bounds = {
        "LIST": ("IN (0, 1, 2, 3, 4, 5)", "IN (6, 7, 8, 9, 10)"),
        "RANGE": ("FROM (0) TO (6)", "FROM (6) TO (11)"),
        "HASH": ("WITH (MODULUS 2, REMAINDER 0)", "WITH (MODULUS 2, REMAINDER 1)"),
    }[partition]
    connection.execute(f"CREATE TABLE {table}_a (y bool, gone int, x int, id int)".encode())
    connection.execute(f"ALTER TABLE {table}_a DROP COLUMN gone".encode())
    connection.execute(f"ALTER TABLE {table} ATTACH PARTITION {table}_a FOR VALUES {bounds[0]}".encode())
    connection.execute(f"CREATE TABLE {table}_b PARTITION OF {table} FOR VALUES {bounds[1]}".encode())
    connection.execute(f"INSERT INTO {table} SELECT * FROM rows".encode())
    assert len(encoded(connection, DataSpec(table, YES, (X,)))) == 30
    assert 0 < len(encoded(connection, DataSpec(f"{table}_a", YES, (X,)))) < 30


def test_inherited_tables(connection: psycopg.Connection, table: str) -> None:
    connection.execute(f"CREATE TABLE {table} (id int, x int, y bool)".encode())
    connection.execute(f"CREATE TABLE {table}_child (more text) INHERITS ({table})".encode())
    connection.execute(f"INSERT INTO {table} SELECT * FROM rows".encode())
    connection.execute(f"INSERT INTO {table}_child SELECT *, 'more' FROM rows".encode())
    assert len(encoded(connection, DataSpec(table, YES, (X,)))) == 60
    assert len(encoded(connection, DataSpec(f"{table}_child", YES, (X,)))) == 30


def make_foreign(connection: psycopg.Connection, wrapper: str, server: str, table: str) -> Composed:
    """A foreign server; the options of a table of it that has `rows`."""
    options = SQL("").format()
    where = SQL("OPTIONS (table_name 'rows')").format()
    if wrapper == "postgres_fdw":
        info = connection.info
        options = SQL("OPTIONS (host {}, port {}, dbname {})").format(
            *(Literal(str(value)) for value in (info.host, info.port, info.dbname))
        )
    connection.execute(
        SQL("CREATE SERVER {} FOREIGN DATA WRAPPER {} {}").format(
            Identifier(server), Identifier(wrapper), options
        )
    )
    if wrapper == "postgres_fdw":
        connection.execute(
            SQL("CREATE USER MAPPING FOR CURRENT_USER SERVER {} OPTIONS (user 'postgres')").format(
                Identifier(server)
            )
        )
    else:
        file = f"{scalar(connection, 'SHOW data_directory')}/{table}.csv"
        connection.execute(SQL("COPY rows TO {} (FORMAT csv)").format(Literal(file)))
        where = SQL("OPTIONS (filename {}, format 'csv')").format(Literal(file))
    return where


@pytest.mark.parametrize("wrapper", ["postgres_fdw", "file_fdw"])
def test_foreign_tables(connection: psycopg.Connection, table: str, wrapper: str) -> None:
    query = "SELECT count(*) FROM pg_available_extensions WHERE name = %s"
    if not scalar(connection, query, wrapper):
        pytest.skip(f"this server has no {wrapper}")
    connection.execute(f"CREATE EXTENSION {wrapper}".encode())
    where = make_foreign(connection, wrapper, f"server_{wrapper}", table)
    connection.execute(
        SQL("CREATE FOREIGN TABLE {} (id int, x int, y bool) SERVER {} {}").format(
            Identifier(table), Identifier(f"server_{wrapper}"), where
        )
    )
    with pytest.raises(GuaranteeError, match="foreign table"):
        run(connection, DataSpec(table, YES, (X,)))
    assert len(encoded(connection, DataSpec(table, YES, (X,), definition_is_public=True))) == 30


def test_temporary_tables(connection: psycopg.Connection, database: str) -> None:
    """Ours can be read where the engine gives the same connection, by what takes one; another's cannot."""
    connection.execute(f"CREATE TEMP TABLE passing AS {ROWS}".encode())
    schema = scalar(connection, "SELECT nspname FROM pg_namespace WHERE oid = pg_my_temp_schema()")
    for name in ("passing", "Passing", f"{schema}.passing"):
        refused(connection, DataSpec(name, YES, (X,)), "temporary table of another session.*UNLOGGED")
    engine = sa.create_engine(
        "postgresql+psycopg://", creator=lambda: psycopg.connect(database), poolclass=sa.StaticPool
    )
    with engine.begin() as opened:
        opened.execute(sa.text(f"CREATE TEMP TABLE own AS {ROWS}"))
    data = DataSpec("own", YES, (X,))
    assert pg_dpml.plan(engine, data, PRIVACY).problem.n_units == 30
    assert pg_dpml.train(engine, data, None, TrainSpec(method="lbfgs"), name="own").plan.problem.n_units == 30
    connection.execute("DELETE FROM dpml.models WHERE name = 'own'")
    with pytest.raises(SpecError, match="has two at once"):
        run(connection, data, engine)
    engine.dispose()


def test_dropped_and_generated_columns(connection: psycopg.Connection, table: str) -> None:
    connection.execute(
        f"CREATE TABLE {table} (id int, a text, x int, twice int GENERATED ALWAYS AS (x * 2) STORED, b text, "
        "y bool)".encode()
    )
    connection.execute(f"ALTER TABLE {table} DROP COLUMN a, DROP COLUMN b".encode())
    connection.execute(f"ALTER TABLE {table} ADD COLUMN more int DEFAULT 3".encode())
    connection.execute(f"INSERT INTO {table} (id, x, y) SELECT * FROM rows".encode())
    columns = (X, Column("twice", lower=0, upper=20), Column("more", lower=0, upper=3))
    found = encoded(connection, DataSpec(table, YES, columns, intercept=False))
    np.testing.assert_allclose(found[:, 0], found[:, 1], atol=1e-6)
    refused(connection, DataSpec(table, YES, (Column("a", levels=("x",)),)), "column a does not exist")


def test_columns_computed_on_reading(connection: psycopg.Connection, table: str) -> None:
    """Reading one may fail, and that would depend on a row."""
    if connection.info.server_version < 180000:
        pytest.skip("before PostgreSQL 18 every generated column is stored")
    connection.execute(
        f"CREATE TABLE {table} (id int, x int, y bool, z int GENERATED ALWAYS AS (100 / x) VIRTUAL)".encode()
    )
    connection.execute(f"INSERT INTO {table} (id, x, y) SELECT * FROM rows WHERE x > 0".encode())
    z = Column("z", lower=0, upper=10)
    with pytest.raises(GuaranteeError, match="column z is computed"):
        run(connection, DataSpec(table, YES, (z,)))
    assert len(encoded(connection, DataSpec(table, YES, (z,), definition_is_public=True))) == 28


# Names

NAMES = [
    "user",
    "select",
    "Mixed Case",
    "CamelCase",
    "dots.in.it",
    'quotes " in " it',
    "it's",
    "50% of it %s %(x)s {}",
    "naïve 日本語 🙂",
    "back\\slash",
    "x" * 63,
    "é" * 31,
    " blanks ",
    "t",
    "row",
    "1st",
    "a;b--c/*",
    "new\nline",
]


@pytest.fixture
def schema(connection: psycopg.Connection) -> Iterator[str]:
    connection.execute('CREATE SCHEMA "A schema. 50%"')
    yield "A schema. 50%"
    connection.execute('DROP SCHEMA "A schema. 50%" CASCADE')


@pytest.mark.parametrize("name", NAMES)
def test_names(connection: psycopg.Connection, schema: str, name: str) -> None:
    """Of tables, columns, labels and levels, quoted as in SQL."""
    label = f"{name}!" if len(name.encode()) < 62 else "label"
    table, x, y = Identifier(schema, name), Identifier(name), Identifier(label)
    connection.execute(
        SQL(
            "CREATE TABLE {} AS SELECT id, CASE WHEN y THEN {} ELSE 'b' END AS {}, y::text AS {} FROM rows"
        ).format(table, Literal(name), x, y)
    )
    data = DataSpec(
        table.as_string(connection),
        Label(label, positive="true", negative="false"),
        (Column(name, levels=(name, "b"), centered=False),),
        intercept=False,
        where=SQL("{} LIKE '%%' AND id %% 2 >= 0 -- all").format(x).as_string(connection).replace("%%", "%"),
        definition_is_public=True,
    )
    found = encoded(connection, data)
    assert {tuple(row) for row in np.round(found).tolist()} == {(1.0, 0.0), (0.0, 1.0)}
    query = "SELECT name FROM dpml.models ORDER BY created_at DESC LIMIT 1"
    model = scalar(connection, query)
    assert pg_dpml.evaluate(connection.info.dsn, model, data.table, public=True).n_rows == 30
    assert pg_dpml.predict(connection.info.dsn, model, data.table, id_column=name, into="predicted") == 30
    connection.execute("DROP TABLE predicted")


@pytest.mark.one_major
@pytest.mark.parametrize("name", NAMES)
def test_bare_names(connection: psycopg.Connection, name: str) -> None:
    """A table on the search path may be written without quotes, as it is called."""
    connection.execute(SQL("CREATE TABLE {} AS SELECT * FROM rows").format(Identifier(name)))
    with_model = f"model of {name}"
    pg_dpml.train(connection.info.dsn, DataSpec(name, YES, (X,)), PRIVACY, TRAINING, name=with_model)
    assert pg_dpml.evaluate(connection.info.dsn, with_model, name, public=True).n_rows == 30
    connection.execute(SQL("DROP TABLE {}").format(Identifier(name)))


def test_a_column_called_user_is_not_the_user(connection: psycopg.Connection, table: str) -> None:
    connection.execute(f'CREATE TABLE {table} (id int, "user" text, y bool)'.encode())
    connection.execute(f"INSERT INTO {table} VALUES (1, 'postgres', true), (2, 'ann', false)".encode())
    user = Column("user", levels=("ann", "postgres"), centered=False)
    data = DataSpec(table, YES, (user,), intercept=False)
    np.testing.assert_allclose(encoded(connection, data), [[0, 1], [1, 0]], atol=1e-5)


@pytest.mark.parametrize("names", [("f2", "f1"), ("f1", "x"), ("x", "f1")])
def test_columns_called_as_row_calls_fields(
    connection: psycopg.Connection, table: str, names: tuple[str, str]
) -> None:
    """Of ROW(t.f2, t.f1) the first field is called f1."""
    connection.execute(f"CREATE TABLE {table} (id int, {names[0]} int, {names[1]} int, y bool)".encode())
    connection.execute(f"INSERT INTO {table} VALUES (1, 10, 5, true)".encode())
    columns = tuple(Column(name, lower=0, upper=10, scale="zero_based") for name in names)
    data = DataSpec(table, YES, columns, intercept=False)
    wanted = [[2 / 5**0.5, 1 / 5**0.5]]
    np.testing.assert_allclose(encoded(connection, data), wanted, atol=1e-5)
    name = scalar(connection, "SELECT name FROM dpml.models ORDER BY created_at DESC LIMIT 1")
    by_name, by_position = connection.execute(
        f"SELECT dpml.predict_value(%s, t.*), dpml.predict_value(%s, ROW(t.{names[0]}, t.{names[1]})) "
        f"FROM {table} t".encode(),
        (name, name),
    ).fetchone() or (0, 1)
    assert by_name == by_position


@pytest.mark.parametrize("name", ["nothing", "no.such", "a..b", '"', "", ".", "a.b.c.d", "x" * 70, 'a"b.c'])
def test_names_of_nothing(connection: psycopg.Connection, name: str) -> None:
    if not name:
        with pytest.raises(SpecError, match="table must be the name"):
            DataSpec(name, YES, (X,))
        return
    refused(connection, DataSpec(name, YES, (X,)), "does not exist here")


@pytest.mark.parametrize(
    ("where", "rows"),
    [
        ("id % 2 = 0", 15),
        ("id % 2 = 0 -- a comment", 15),
        ("id::text LIKE '1%'", 11),
        ("id::text LIKE '%s' OR '%(x)s' = 'no'", 0),
        ("x > 3 OR true", 30),
        ("id IN (SELECT id FROM rows WHERE y)", 15),
        ("t.id = 1", 1),
    ],
)
def test_filters(connection: psycopg.Connection, where: str, rows: int) -> None:
    model = run(connection, DataSpec("rows", YES, (X,), where=where, definition_is_public=True))
    query = "SELECT n_units FROM dpml.ledger WHERE model = %s"
    assert scalar(connection, query, model) == rows


@pytest.mark.parametrize("form", ["filter", "view"])
def test_what_planning_meets_is_not_quoted(connection: psycopg.Connection, table: str, form: str) -> None:
    """An estimator tries the owner's operator on values that ANALYZE has kept, before a row is read."""
    connection.execute(
        f"CREATE TABLE {table} AS SELECT id, x, y, CASE WHEN y THEN 'secret ' || x % 3 ELSE 'b' END AS note "
        f"FROM rows; ANALYZE {table}; CREATE SCHEMA own; "
        "CREATE FUNCTION own.same(a text, b text) RETURNS boolean IMMUTABLE LANGUAGE plpgsql AS "
        "$$BEGIN IF a LIKE 'secret%%' THEN RAISE 'cannot parse %', a USING ERRCODE = '22P02'; END IF; "
        "RETURN a = b; END$$; "
        "CREATE OPERATOR own.=== "
        "(LEFTARG = text, RIGHTARG = text, FUNCTION = own.same, RESTRICT = eqsel)".encode()
    )
    where = "note OPERATOR(own.===) 'x'"
    with pytest.raises(psycopg.errors.InvalidTextRepresentation, match="cannot parse secret"):
        connection.execute(f"EXPLAIN SELECT FROM {table} WHERE {where}".encode())
    data = DataSpec(table, YES, (X,), where=where, definition_is_public=True)
    if form == "view":
        connection.execute(f"CREATE VIEW own.shown AS SELECT x, y FROM {table} WHERE {where}".encode())
        data = DataSpec("own.shown", YES, (X,), definition_is_public=True)
    with pytest.raises(SpecError) as refused:
        run(connection, data)
    error: BaseException | None = refused.value
    assert "not shown because it may quote a row" in str(error)
    while error is not None:
        assert "secret" not in str(error)
        error = error.__cause__ or error.__context__
    connection.execute("DROP SCHEMA own CASCADE")


# Sizes


@pytest.mark.parametrize("n_rows", [0, 1, 2])
@pytest.mark.parametrize(
    "label",
    [YES, Label("id", classes=(1, 2, 3)), Label("x", lower=0, upper=10)],  # type: ignore[arg-type]
    ids=["binary", "classes", "number"],
)
def test_few_rows(connection: psycopg.Connection, table: str, n_rows: int, label: Label) -> None:
    connection.execute(f"CREATE TABLE {table} AS SELECT *, x AS z FROM rows WHERE id <= {n_rows}".encode())
    data = DataSpec(table, label, (Column("z", lower=0, upper=10),))
    run(connection, data)
    for training in (TrainSpec(), TrainSpec(method="noiseless")):
        privacy = None if training.method == "noiseless" else PRIVACY
        name = f"{training.method} {label.column} {n_rows}"
        pg_dpml.train(connection.info.dsn, data, privacy, training, name=name)


@pytest.mark.parametrize("length", [1, 50_000])
def test_few_and_many_features(connection: psycopg.Connection, table: str, length: int) -> None:
    array = f"array_fill(x, ARRAY[{length}]) AS x"
    connection.execute(f"CREATE TABLE {table} AS SELECT id, y, {array} FROM rows WHERE id <= 5".encode())
    found = encoded(
        connection,
        DataSpec(table, YES, (Column("x", lower=0, upper=10, length=length),), intercept=False),
    )
    assert found.shape == (5, length)


def test_many_columns(connection: psycopg.Connection, table: str) -> None:
    """More features than rows, by a table as wide as they come."""
    wide = ", ".join(f"x AS c{i}" for i in range(1590))
    connection.execute(f"CREATE TABLE {table} AS SELECT id, y, {wide} FROM rows WHERE id <= 3".encode())
    columns = tuple(Column(f"c{i}", lower=0, upper=10) for i in range(1590))
    assert encoded(connection, DataSpec(table, YES, columns)).shape == (3, 1591)


@pytest.mark.one_major
@pytest.mark.parametrize("value", ["0", "5", "10", "NULL"])
@pytest.mark.parametrize("answer", ["true", "false", "NULL"])
def test_constant_columns_and_one_class(
    connection: psycopg.Connection, table: str, value: str, answer: str
) -> None:
    """A value in the middle of the bounds is 0: with it, without an intercept, every row is a zero row."""
    columns = f"{value}::int AS x, {answer}::bool AS y"
    connection.execute(f"CREATE TABLE {table} AS SELECT {columns} FROM rows".encode())
    data = DataSpec(table, YES, (X,), intercept=answer == "true")
    run(connection, data)
    name = f"constant {value} {answer}"
    pg_dpml.train(connection.info.dsn, data, None, TrainSpec(method="noiseless"), name=name)
