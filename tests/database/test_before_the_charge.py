# SPDX-License-Identifier: PostgreSQL
"""What the catalog and the server can say of a spec is said before the charge, by plan and by train alike."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import pg_dpml
from helpers.sqltools import empty_registry, scalar
from pg_dpml.cli.framework import app
from pg_dpml.errors import DpmlError, RunFailedError, SpecError
from pg_dpml.server.embedded import EmbeddedServer
from pg_dpml.spec.columns import Column, Label
from pg_dpml.spec.data import DataSpec
from pg_dpml.spec.privacy import PrivacySpec
from pg_dpml.training.spec import TrainSpec

pytestmark = pytest.mark.dealt

PRIVACY = PrivacySpec(1.0, 1e-6)
QUICK = TrainSpec(method="dp-gd", passes=1)
X = Column("x", lower=0, upper=40)
ROWS = 40

_numbers = itertools.count(1)

COLUMNS = {
    "b": ("boolean", "g % 2 = 0"),
    "i2": ("smallint", "g % 3"),
    "i4": ("int", "g % 3"),
    "i8": ("bigint", "g % 3"),
    "n": ("numeric", "g % 3"),
    "n52": ("numeric(5,2)", "g % 3"),
    "n40": ("numeric(4,0)", "g % 3"),
    "f4": ("real", "CASE g WHEN 1 THEN 'NaN'::real WHEN 2 THEN 'Infinity' ELSE g END"),
    "f8": ("float8", "CASE g WHEN 1 THEN 'NaN'::float8 WHEN 2 THEN '-Infinity' ELSE g END"),
    "t": ("text", "CASE g % 3 WHEN 0 THEN 'yes' WHEN 1 THEN 'no' END"),
    "v3": ("varchar(3)", "CASE g % 3 WHEN 0 THEN 'yes' WHEN 1 THEN 'no' END"),
    "c3": ("char(3)", "CASE g % 3 WHEN 0 THEN 'yes' WHEN 1 THEN 'no' END"),
    "nm": ("name", "CASE g % 3 WHEN 0 THEN 'yes' WHEN 1 THEN 'no' END"),
    "ch": ('"char"', "CASE g % 3 WHEN 0 THEN 'y' ELSE 'n' END::\"char\""),
    "e": ("feeling", "CASE g % 3 WHEN 0 THEN 'sad' ELSE 'happy' END::feeling"),
    "d": ("date", "CASE g WHEN 1 THEN 'infinity'::date ELSE '2024-01-01'::date + g % 2 END"),
    "ts": ("timestamp", "CASE g WHEN 1 THEN '-infinity' ELSE '2024-01-01'::timestamp END"),
    "tz": ("timestamptz", "'2024-01-01'::timestamptz"),
    "pos": ("positive", "g % 3 + 1"),
    "a": ("int[]", "ARRAY[g, NULL, 3]"),
    "a8": ("float8[]", "CASE WHEN g % 2 = 0 THEN ARRAY[g, 'NaN'::float8] END"),
    "u": ("uuid", "gen_random_uuid()"),
    "j": ("jsonb", "'{}'::jsonb"),
    "iv": ("interval", "'1 day'::interval"),
    "by": ("bytea", "'x'::bytea"),
    "p": ("point", "'(1,2)'::point"),
    "Odd name.": ("int", "g"),
}


@pytest.fixture(scope="module", autouse=True)
def tables(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "CREATE TYPE feeling AS ENUM ('sad', 'happy', 'Überglücklich'); "
            "CREATE DOMAIN positive AS int CHECK (VALUE > 0)"
        )
        shown = ", ".join(f'({value})::{type_} AS "{name}"' for name, (type_, value) in COLUMNS.items())
        connection.execute(
            f"CREATE TABLE many AS SELECT g AS id, g AS x, {shown} FROM generate_series(1, {ROWS}) g".encode()
        )
        # Statistics: planning then looks at values.
        connection.execute("ANALYZE many")


@pytest.fixture(autouse=True)
def nothing_spent(tables: None, database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        empty_registry(connection)


def refused(database: str, data: DataSpec, *words: str) -> None:
    """By plan and by train, with the same words and nothing charged."""
    said = []
    for run in (
        lambda: pg_dpml.plan(database, data, PRIVACY, QUICK),
        lambda: pg_dpml.train(database, data, PRIVACY, QUICK, name="m"),
    ):
        with pytest.raises(SpecError) as refusal:
            run()
        said.append(str(refusal.value))
    assert said[0] == said[1]
    for word in words:
        assert word in said[0], said[0]
    with psycopg.connect(database) as connection:
        assert scalar(connection, "SELECT count(*) FROM dpml.ledger") == 0


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("b", "maybe", ["boolean", "write true or false"]),
        ("b", "2", ["boolean", "true or false"]),
        ("e", "Happy", ["feeling", "'happy', "]),
        ("e", "hapy", ["feeling", "'happy', "]),
        ("i4", "one", ["integer", "whole number"]),
        ("i4", "0x10", ["integer", "whole number"]),
        ("i4", "1.5", ["integer", "whole number"]),
        ("i4", "NaN", ["integer", "whole number"]),
        ("i4", True, ["integer", "whole number"]),
        ("i2", 40000, ["smallint", "-32768 to 32767"]),
        ("i8", 2**63, ["bigint", "9223372036854775807"]),
        ("pos", "one", ["positive", "whole number"]),
        ("n", "NaN", ["numeric", "number"]),
        ("n52", "1.234", ["numeric(5,2)", "2 digits after the point"]),
        ("n52", 1000, ["numeric(5,2)", "below 10^3"]),
        ("n40", 0.5, ["numeric(4,0)", "0 digits after the point"]),
        ("f4", "1e39", ["real", "too large"]),
        ("f8", "ten", ["double precision", "number"]),
        ("v3", "yes ", ["character varying(3)", "at most 3 characters"]),
        ("c3", "maybe", ["character(3)", "at most 3 characters"]),
        ("nm", "x" * 64, ["name", "63 bytes"]),
        ("ch", "yes", ['"char"', "one byte"]),
        ("ch", "é", ['"char"', "one byte"]),
        ("d", "02/01/2024", ["date", "YEAR-MONTH-DAY"]),
        ("d", "2024-02-30", ["date", "YEAR-MONTH-DAY"]),
        ("d", "2024-01-01 00:00:00", ["date", "YEAR-MONTH-DAY"]),
        ("d", "infinity", ["date", "YEAR-MONTH-DAY"]),
        ("u", "one", ["uuid", "a view that casts it"]),
    ],
)
def test_no_value_of_the_type(database: str, column: str, value: Any, words: list[str]) -> None:
    refused(database, DataSpec("many", Label(column, positive=value), (X,)), f"label {column}", *words)
    two = (value, {"b": "t", "e": "sad", "d": "2024-01-01"}.get(column, "1"))
    refused(database, DataSpec("many", Label(column, classes=two), (X,)), f"label {column}", *words)
    label = Label("b", positive="true") if column != "b" else Label("e", positive="sad")
    levels = (Column(column, levels=two),)
    refused(database, DataSpec("many", label, levels), f"column {column}", *words)


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("b", ("t", "1")),
        ("b", (True, "yes")),
        ("i4", (1, "1.0")),
        ("i4", ("-0", 0)),
        ("i8", ("1e3", 1000)),
        ("n", ("1.50", 1.5)),
        ("f8", ("0", "-0")),
        ("f4", ("0.1", "0.10000000001")),
        ("f8", ("Infinity", "inf")),
        ("c3", ("no", "no ")),
        ("d", ("2024-1-1", "2024-01-01")),
    ],
)
def test_one_value_in_two_forms(database: str, column: str, values: tuple[Any, Any]) -> None:
    words = ["the same value of type", repr(str(values[1]))] if values[0] is not True else ["the same value"]
    refused(
        database, DataSpec("many", Label(column, classes=values), (X,)), f"label {column}: classes", *words
    )
    label = Label(column, positive=values[0], negative=values[1])
    refused(database, DataSpec("many", label, (X,)), f"label {column}: positive, negative", *words)


@pytest.mark.parametrize(
    ("column", "values", "known"),
    [
        ("b", (0, 1), ("false", "true")),
        ("b", ("f", "t"), ("false", "true")),
        ("b", ("No", "YES"), ("false", "true")),
        ("i4", ("0", "1.0"), ("0", "1")),
        ("i2", (" 0", "1e0"), ("0", "1")),
        ("d", ("2024-1-1", "2024-1-2"), ("2024-01-01", "2024-01-02")),
        ("c3", ("no ", "yes"), ("no", "yes")),
        ("v3", ("no", "yes"), ("no", "yes")),
        ("ch", ("n", "y"), ("n", "y")),
        ("n52", ("0.00", "1"), ("0.00", "1")),
    ],
)
def test_forms_that_are_taken(
    database: str, column: str, values: tuple[Any, Any], known: tuple[str, str]
) -> None:
    """Training, predictions and evaluation are of the same values: by a feature that tells, all are right."""
    label = Label(column, positive=values[1], negative=values[0])
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE twice AS SELECT {column}, {column} AS same FROM many".encode())
        try:
            data = DataSpec("twice", label, (Column("same", levels=values),))
            model = pg_dpml.train(database, data, None, TrainSpec(method="lbfgs"), name="m").model
            assert model.classes == known
            assert model.encoder["columns"][0]["levels"] == list(known)
            found = pg_dpml.evaluate(database, "m", "twice", public=True)
            assert found.accuracy == 1.0
            labelled = f"SELECT count(*) FROM twice t WHERE dpml.label('m', t) IN {known!r}"
            assert scalar(connection, labelled) > ROWS / 2
        finally:
            connection.execute("DROP TABLE twice")


# Encodings


@pytest.fixture(scope="module", params=["LATIN1", "SQL_ASCII", "UTF8"])
def encoded_database(request: pytest.FixtureRequest, server: EmbeddedServer) -> Iterator[tuple[str, str]]:
    """A database's encoding, and its connection string."""
    name = f"encoded_{next(_numbers)}"
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        places = "TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'"
        connection.execute(f"CREATE DATABASE {name} {places} ENCODING '{request.param}'".encode())
    dsn = server.dsn_of(name)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE EXTENSION pg_dpml")
        connection.execute(
            f"CREATE TABLE r AS SELECT g x, 'a' t, g % 2 y FROM generate_series(1, {ROWS}) g".encode()
        )
    yield request.param, dsn
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@pytest.mark.parametrize("level", ["Zürich", "10 €", "Αθήνα"])
@pytest.mark.parametrize("place", ["level", "class"])
def test_what_a_databases_encoding_holds(
    encoded_database: tuple[str, str], level: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is trained on, or it is refused for nothing."""
    encoding, dsn = encoded_database
    monkeypatch.setenv("PGCLIENTENCODING", "UTF8")
    if place == "level":
        data = DataSpec("r", Label("y", positive=1), (Column("t", levels=("a", level)),))  # type: ignore[arg-type]
    else:
        data = DataSpec("r", Label("t", positive="a", negative=level), (X,))
    name = f"m{next(_numbers)}"
    charged: DpmlError | None = None
    try:
        pg_dpml.train(dsn, data, PRIVACY, QUICK, name=name)
    except RunFailedError:
        raise
    except SpecError as error:
        charged = error
    with psycopg.connect(dsn) as connection:
        paid = scalar(connection, "SELECT count(*) FROM dpml.ledger WHERE model = %s", name)
    assert paid == (charged is None)
    if encoding == "UTF8" or (encoding, level) == ("LATIN1", "Zürich"):
        assert charged is None
    if encoding == "LATIN1" and level != "Zürich":
        where = "column t: levels" if place == "level" else "label t"
        assert str(charged).startswith(
            f"{where}: {level!r} cannot be written in this database, whose encoding is"
        )


@pytest.mark.parametrize("bad", ["a\0b", "\ud800"])
def test_text_that_no_database_holds_is_refused_when_it_is_read(bad: str) -> None:
    for make in (
        lambda: Label("y", positive=bad),
        lambda: Label(bad, positive="1"),
        lambda: Column("x", levels=("a", bad)),
        lambda: Column(bad, lower=0, upper=1),
        lambda: DataSpec(bad, Label("y", positive="1"), (X,)),
        lambda: DataSpec("r", Label("y", positive="1"), (X,), unit=bad),
        lambda: DataSpec("r", Label("y", positive="1"), (X,), where=bad, definition_is_public=True),
        lambda: DataSpec("r", Label("y", positive="1"), (X,), dataset=bad),
    ):
        with pytest.raises(SpecError, match="NUL characters and lone surrogates"):
            make()


# Names, rights and the server


@pytest.fixture
def carol(database: str) -> Iterator[tuple[str, psycopg.Connection]]:
    """Connection string of a curator who may read the table, and a superuser's connection."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE ROLE carol LOGIN IN ROLE dpml_curator; GRANT SELECT ON many TO carol")
        yield database.replace("user='postgres'", "user='carol'"), connection
        connection.execute("DROP OWNED BY carol; DROP ROLE carol")


B = Label("b", positive="true")


@pytest.mark.parametrize(
    ("before", "data", "words"),
    [
        (
            "CREATE FUNCTION closed(int) RETURNS boolean RETURN true; "
            "REVOKE EXECUTE ON FUNCTION closed(int) FROM PUBLIC",
            DataSpec("many", B, (X,), where="closed(x)", definition_is_public=True),
            "permission denied for function closed",
        ),
        (
            "REVOKE SELECT ON many FROM carol; GRANT SELECT (id, x) ON many TO carol",
            DataSpec("many", B, (X,)),
            "permission denied for table many",
        ),
        (
            "REVOKE SELECT ON many FROM carol; GRANT SELECT (id, x, b) ON many TO carol",
            DataSpec("many", B, (X,), unit="i4"),
            "permission denied for table many",
        ),
        ("SELECT 1", DataSpec("many", B, (X,), where="x > 0) OR (t", definition_is_public=True), "boolean"),
        ("SELECT 1", DataSpec("many", B, (X,), where="x >", definition_is_public=True), "syntax error"),
        (
            "SELECT 1",
            DataSpec("many", B, (X,), where="nowhere > 1", definition_is_public=True),
            "does not exist",
        ),
        ("SELECT 1", DataSpec("many", B, (X,), where="x", definition_is_public=True), "boolean"),
    ],
)
def test_the_servers_word_on_what_a_run_reads(
    carol: tuple[str, psycopg.Connection], before: str, data: DataSpec, words: str
) -> None:
    dsn, connection = carol
    connection.execute(before.encode())
    try:
        for run in (
            lambda: pg_dpml.plan(dsn, data, PRIVACY, QUICK),
            lambda: pg_dpml.train(dsn, data, PRIVACY, QUICK, name="m"),
        ):
            with pytest.raises(DpmlError, match=words) as refusal:
                run()
            assert not isinstance(refusal.value, RunFailedError)
    finally:
        connection.execute("DROP FUNCTION IF EXISTS closed(int)")
    assert scalar(connection, "SELECT count(*) FROM dpml.ledger") == 0


@pytest.mark.parametrize(
    "of_text",
    [
        "{}::regtype",
        "to_tsquery('simple', {})",
        "current_setting({})",
        "concat('dpml.', {})::regclass",
        "raised({}, 'insufficient_privilege')",
        "raised({}, 'datatype_mismatch')",
    ],
)
def test_an_error_about_a_name_in_a_row_quotes_no_row(
    database: str, connection: psycopg.Connection, of_text: str
) -> None:
    """Functions that take text for SQL raise the errors of names, types and rights: of rows, too."""
    connection.execute(
        "CREATE OR REPLACE FUNCTION raised(text, text) RETURNS text LANGUAGE plpgsql AS "
        "$$BEGIN RAISE EXCEPTION '%', $1 USING ERRCODE = $2; END$$"
    )
    filter_ = of_text.format("concat('secret ', t.id)") + " IS NOT NULL"
    data = DataSpec(
        "many", Label("t", positive="yes", negative="no"), (X,), where=filter_, definition_is_public=True
    )
    refused(database, data, "counting the rows of many failed", "may quote a row")
    connection.execute(f"CREATE OR REPLACE VIEW shown AS SELECT t.* FROM many t WHERE {filter_}".encode())
    refused(database, replace(data, table="shown", where=None), "counting the rows of shown failed")


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (
            "REVOKE CREATE ON SCHEMA dpml_work FROM dpml_curator",
            "GRANT CREATE ON SCHEMA dpml_work TO dpml_curator",
            "permission denied for schema dpml_work",
        ),
        (
            "ALTER ROLE carol SET default_transaction_read_only = on",
            "SELECT 1",
            "this server is read-only .*default_transaction_read_only is off",
        ),
    ],
)
def test_work_tables_that_cannot_be_made_cost_nothing(
    carol: tuple[str, psycopg.Connection], before: str, after: str, words: str
) -> None:
    dsn, connection = carol
    connection.execute(before.encode())
    try:
        with pytest.raises(DpmlError, match=words) as refusal:
            pg_dpml.train(dsn, DataSpec("many", B, (X,)), PRIVACY, QUICK, name="m")
    finally:
        connection.execute(after.encode())
    assert not isinstance(refusal.value, RunFailedError)
    assert scalar(connection, "SELECT count(*) FROM dpml.ledger") == 0


@pytest.mark.one_major
def test_a_model_that_no_value_can_hold_is_refused(database: str, connection: psycopg.Connection) -> None:
    """Its state would not fit into 1 GB, which a pass meets only after the charge."""
    connection.execute("CREATE TABLE wide AS SELECT '{0}'::float8[] AS x, '0' AS kind")
    classes = tuple(map(str, range(33)))
    data = DataSpec("wide", Label("kind", classes=classes), (Column("x", 0, 1, length=2**19 - 1),))
    words = r"label kind: classes: a model of 33 classes may have at most 508,400 features, not 524,288"
    for run in (partial(pg_dpml.plan, database, data), partial(pg_dpml.train, database, data, name="wide")):
        with pytest.raises(SpecError, match=words):
            run(privacy=PrivacySpec(1.0, 1e-6))
    assert scalar(connection, "SELECT count(*) FROM dpml.ledger WHERE model = 'wide'") == 0
    fewer = replace(data, label=Label("kind", classes=classes[:32]))
    assert pg_dpml.plan(database, fewer, PrivacySpec(1.0, 1e-6)).problem.n_weights == 2**24
    connection.execute("DROP TABLE wide")


def test_case_insensitive_text(database: str, connection: psycopg.Connection) -> None:
    if not scalar(connection, "SELECT count(*) FROM pg_available_extensions WHERE name = 'citext'"):
        pytest.skip("this server has no citext")
    connection.execute("CREATE EXTENSION citext; CREATE TABLE ci AS SELECT x, b, t::citext AS c FROM many")
    try:
        refused(database, DataSpec("ci", Label("c", positive="yes"), (X,)), "label c", "view that casts it")
        refused(
            database, DataSpec("ci", B, (Column("c", levels=("yes",)),)), "column c", "view that casts it"
        )
        refused(database, DataSpec("ci", B, (X,), unit="c"), "unit c", "ann from ANN", "lower(c::text)")
    finally:
        connection.execute("DROP TABLE ci; DROP EXTENSION citext")


def test_exit_codes(database: str, tmp_path: Any) -> None:
    path = tmp_path / "many.toml"
    path.write_text(
        'table = "many"\n[label]\ncolumn = "e"\npositive = "Happy"\n[columns.x]\nlower = 0\nupper = 40\n',
        encoding="utf-8",
    )
    for command in (["plan", str(path)], ["train", str(path), "--name", "m"]):
        shown = CliRunner().invoke(app, [*command, "--epsilon", "1", "--dsn", database])
        assert shown.exit_code == 2, shown.output
        assert "label e" in shown.output


# Any spec

TEXTS = (
    *("1", "0", "true", "t", "yes", "no", "Yes", "sad", "Happy", "happy", "Überglücklich", "y", "n"),
    *("2024-01-01", "2024-1-1", "02/01/2024", "infinity", "NaN", "Infinity", "-0", "1.0", "1e3", "1e-400"),
    *("abc", "abcd", "", " ", " 1 ", "é", "€", "0x10", "99999999999999999999", "x" * 64, "1.234", "%s", "{}"),
)
VALUES = st.one_of(
    st.sampled_from(TEXTS), st.booleans(), st.integers(-(2**70), 2**70), st.integers(-3, 3), st.floats()
)
BOUNDS = st.sampled_from([-1, 0, 1, 40, 1e300, -1e300, "2024-01-01", "2025-01-01", "2024-01-01T12:00:00Z"])
NAMES = st.sampled_from([*COLUMNS, "x", "nowhere", "ctid", "tableoid"])


FORMS: dict[str, tuple[str, ...]] = {
    "b": ("1", "0", "t", "false", "yes", "no"),
    "t": ("yes", "no", "Überglücklich", "x" * 64, "%s", "{}"),
    "v3": ("yes", "no", "é€"),
    "c3": ("yes", "no ", "€"),
    "nm": ("yes", "no"),
    "ch": ("y", "n"),
    "e": ("sad", "happy", "Überglücklich"),
    "d": ("2024-01-01", "2024-1-2", "0001-01-01", "9999-12-31"),
    "n": ("0", "1.0", "1e3", "1e-400", "Infinity", "0.1"),
    "n52": ("0", "1.00", "999.99"),
    "f4": ("0", "1", "Infinity", "1e-400", "0.1"),
    "f8": ("0", "1", "-inf", "1e-400", "0.1"),
}
"""Values that fit; of whole numbers, 0 to 2."""

FITTING: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(FORMS, ("levels",)),
    **dict.fromkeys(("i2", "i4", "i8", "n", "n52", "n40"), ("levels", "bounds", "standard")),
    **dict.fromkeys(("f4", "f8", "pos", "x"), ("levels", "bounds", "standard")),
    **dict.fromkeys(("b", "e"), ("plain", "levels")),
    **dict.fromkeys(("d", "ts", "tz"), ("bounds",)),
    **dict.fromkeys(("a", "a8"), ("array",)),
}
"""How columns are encoded; in one case of six any column is, anyhow."""

TIMES = ("d", "ts", "tz")
WILD = st.integers(0, 5).map(lambda drawn: drawn == 0)


def values(name: str, wild: bool, at_least: int) -> st.SearchStrategy[list[Any]]:
    one = VALUES if wild else st.sampled_from(FORMS.get(name, ("0", "1.0", " 2")))
    return st.lists(one, min_size=at_least, max_size=3, unique_by=str)


def bounds(draw: st.DrawFn, name: str, wild: bool) -> dict[str, Any]:
    if wild:
        return {"lower": draw(BOUNDS), "upper": draw(BOUNDS)}
    low, high = ("2024-01-01", "2024-12-31") if name in TIMES else (0, draw(st.sampled_from([1, 40, 1e300])))
    return {"lower": low, "upper": high}


@st.composite
def columns(draw: st.DrawFn) -> Column:
    wild = draw(WILD)
    name = draw(NAMES if wild else st.sampled_from(list(FITTING)))
    kinds = ("plain", "levels", "bounds", "standard", "array") if wild else FITTING[name]
    kind = draw(st.sampled_from(kinds))
    given: dict[str, Any] = {"name": name}
    if kind == "levels":
        given["levels"] = draw(values(name, wild, 1))
    elif kind == "standard":
        given |= {
            "scale": "standard",
            "mean": draw(BOUNDS) if wild else 1,
            "sd": draw(st.sampled_from([1e-300, 1, 1e300])),
        }
    elif kind != "plain":
        given |= bounds(draw, name, wild) | {"log1p": name not in TIMES and draw(st.booleans())}
    if kind == "array":
        given["length"] = draw(st.sampled_from([1, 2, 3, 6, 1000]))
        given["rows"] = draw(st.sampled_from([None, 1]))
    return Column(**given)


@st.composite
def labels(draw: st.DrawFn) -> Label:
    wild = draw(WILD)
    name = draw(NAMES if wild else st.sampled_from(list(FITTING)))
    kind = draw(st.sampled_from(["positive", "both", "classes", "bounds"]))
    if kind == "bounds" or (name in ("ts", "tz") and not wild):
        return Label(name, **bounds(draw, name, wild))
    listed = draw(values(name, wild, 2))
    if kind == "classes":
        return Label(name, classes=listed)  # type: ignore[arg-type]
    return Label(name, positive=listed[0], negative=listed[1] if kind == "both" else None)


@st.composite
def specs(draw: st.DrawFn) -> DataSpec:
    wild = draw(WILD)
    wheres = ["x > 3", "b", "t LIKE '%'", "x > 3 -- more"] + (["x = 'a'", "x > 3; --", "x > 3) OR (b"] * wild)
    where = draw(st.sampled_from([None, *wheres]))
    units = [name for name in COLUMNS if name not in ("j", "iv", "p", "a", "a8")]
    unit = draw(st.sampled_from([None, *(COLUMNS if wild else units)]))
    return DataSpec(
        draw(st.sampled_from(["many", "MANY", "nowhere"])) if wild else "many",
        draw(labels()),
        tuple(draw(st.lists(columns(), min_size=1, max_size=3, unique_by=lambda column: column.name))),
        where=where,
        definition_is_public=where is not None,
        unit=unit,
        max_rows_per_unit=1 if unit is None else draw(st.sampled_from([1, 3, 10**6])),
        projection=draw(st.sampled_from([None, None, 1, 5])),
        intercept=draw(st.booleans()),
        norm=draw(st.sampled_from(["normalize", "clip"])),
    )


@st.composite
def valid_parts(draw: st.DrawFn) -> DataSpec:
    """What the checks of single values leave; `specs` is refused by them most of the time."""
    for _ in range(20):
        with suppress(SpecError):
            return draw(specs())
    return DataSpec("many", B, (X,))


TRAININGS = st.sampled_from(
    [
        QUICK,
        TrainSpec(method="bolt-on", passes=1),
        TrainSpec(method="scs13", passes=1),
        TrainSpec(method="sufficient-statistics"),
    ]
)


def never_refused_after_the_charge(database: str, data: DataSpec, training: TrainSpec) -> None:
    name = f"drawn {next(_numbers)}"
    said: dict[str, str | None] = {"plan": None, "train": None}
    try:
        pg_dpml.plan(database, data, PRIVACY, training)
    except DpmlError as error:
        said["plan"] = str(error)
    try:
        pg_dpml.train(database, data, PRIVACY, training, name=name)
    except RunFailedError:
        raise
    except DpmlError as error:
        said["train"] = str(error)
    assert said["plan"] == said["train"]
    with psycopg.connect(database) as connection:
        paid = scalar(connection, "SELECT count(*) FROM dpml.ledger WHERE model = %s", name)
        made = scalar(connection, "SELECT count(*) FROM dpml.models WHERE name = %s", name)
    assert paid == made == (said["train"] is None)


ANYTHING = settings(
    deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None, print_blob=True
)


@pytest.mark.one_major
@settings(ANYTHING, max_examples=100)
@given(data=valid_parts(), training=TRAININGS)
def test_no_spec_is_refused_after_the_charge(database: str, data: DataSpec, training: TrainSpec) -> None:
    never_refused_after_the_charge(database, data, training)


@pytest.mark.long
@pytest.mark.one_major
@settings(ANYTHING, max_examples=2000, derandomize=False)
@given(data=valid_parts(), training=TRAININGS)
def test_no_spec_of_many_is_refused_after_the_charge(
    database: str, data: DataSpec, training: TrainSpec
) -> None:
    never_refused_after_the_charge(database, data, training)
