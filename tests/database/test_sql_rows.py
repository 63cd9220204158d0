# SPDX-License-Identifier: PostgreSQL
"""dpml.encode against the oracle."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import psycopg
import pytest

from helpers import oracles
from helpers.sqltools import FloatArray, numbers

# float32 rounds a feature by at most 2^-24 of itself.
ROUNDING = 2.0**-23


def encoded(
    connection: psycopg.Connection, spec: dict[str, Any], record: str, source: str = ""
) -> tuple[FloatArray, float]:
    """Features and label of the one record."""
    row = connection.execute(
        f"SELECT u.x::float8[], u.y::float8 FROM (SELECT dpml.encode(%s::jsonb, {record}) AS e {source}) s,"
        " dpml.unpack(e) u".encode(),
        (json.dumps(spec),),
    ).fetchone()
    assert row is not None
    return numbers(row[0]), row[1]


def check(connection: psycopg.Connection, spec: dict[str, Any], record: str, values: Sequence[Any]) -> None:
    """The encoding of a record is the oracle's, both dense and sparse."""
    wanted = oracles.bound_norm(oracles.encode(spec, values), spec.get("norm", "normalize"))
    for form in ("dense", "csr"):
        found, label = encoded(connection, {**spec, "format": form}, record)
        np.testing.assert_allclose(found, wanted, rtol=ROUNDING, atol=1e-38)
        if spec.get("norm") == "clip_values":
            assert np.max(np.abs(found)) <= 1.0
        else:
            assert np.linalg.norm(found) <= 1 - 2.0**-20
        assert label == 0.0


def one(column: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"columns": [{"name": "a", **column}], **more}


NUMERIC = {"kind": "numeric", "lower": -2, "upper": 10}
STANDARD = {"kind": "numeric", "scale": "standard", "mean": 1.5, "sd": 2.0}
NUMBER_CASES = [
    ("7::int2", 7.0),
    ("7::int4", 7.0),
    ("(-7)::int4", -7.0),
    ("7::int8", 7.0),
    ("9223372036854775807::int8", 2.0**63),
    ("0.1::float4", float(np.float32(0.1))),
    ("0.1::float8", 0.1),
    ("'-Infinity'::float4", -math.inf),
    ("'Infinity'::float8", math.inf),
    ("'NaN'::float8", math.nan),
    ("1.7e308::float8", 1.7e308),
    ("0.1::numeric", 0.1),
    ("'NaN'::numeric", math.nan),
    ("'Infinity'::numeric", math.inf),
    ("'-Infinity'::numeric", -math.inf),
    ("1e400::numeric", math.inf),
    ("(-1e1000)::numeric", -math.inf),
    ("1e-500::numeric", 0.0),
    ("true", 1.0),
    ("'2000-01-02'::date", 1.0),
    ("'1999-12-31'::date", -1.0),
    ("'infinity'::date", math.inf),
    ("'-infinity'::date", -math.inf),
    ("'2000-01-01 00:00:01.5'::timestamp", 1.5),
    ("'2000-01-01 00:00:01.5+00'::timestamptz", 1.5),
    ("'infinity'::timestamp", math.inf),
    ("'-infinity'::timestamptz", -math.inf),
    ("NULL::date", None),
    ("NULL::int4", None),
    ("NULL::numeric", None),
]


@pytest.mark.dealt
@pytest.mark.parametrize(("sql", "value"), NUMBER_CASES, ids=str)
@pytest.mark.parametrize("norm", ["normalize", "clip", "clip_values"])
def test_numbers(connection: psycopg.Connection, sql: str, value: float | None, norm: str) -> None:
    for column in (
        NUMERIC,
        {**NUMERIC, "scale": "zero_based"},
        {**NUMERIC, "lower": 0, "log1p": True},
        {**NUMERIC, "lower": 0, "log1p": True, "scale": "zero_based"},
        STANDARD,
        {**STANDARD, "lower": 0, "upper": 5},
        {**STANDARD, "lower": 0, "log1p": True},
    ):
        for intercept in (True, False):
            check(connection, one(column, norm=norm, intercept=intercept), f"ROW({sql})", [value])


@pytest.mark.parametrize("scale", ["center", "zero_based"])
def test_booleans(connection: psycopg.Connection, scale: str) -> None:
    for sql, value in (("true", True), ("false", False), ("NULL::bool", None)):
        check(connection, one({"kind": "boolean", "scale": scale}), f"ROW({sql})", [value])


@pytest.fixture
def types(connection: psycopg.Connection) -> psycopg.Connection:
    connection.execute(
        "DROP TYPE IF EXISTS mood CASCADE; CREATE TYPE mood AS ENUM ('sad', 'it''s ok', 'so glad')"
    )
    connection.execute(
        "DROP DOMAIN IF EXISTS years, tag, vec; CREATE DOMAIN years AS int CHECK (VALUE < 200)"
    )
    connection.execute("CREATE DOMAIN tag AS varchar(20); CREATE DOMAIN vec AS years[]")
    return connection


LEVEL_CASES: list[tuple[str, list[Any], str | None]] = [
    ("'b'::text", ["a", "b", "c"], "b"),
    ("'b '::text", ["a", "b", "c"], None),
    ("''::text", ["a", ""], ""),
    ("'é'::text", ["e", "é"], "é"),
    ("repeat('x', 10000)", ["a", "x" * 10000], "x" * 10000),
    ("'b'::varchar(5)", ["a", "b"], "b"),
    ("'b'::char(7)", ["a", "b  "], "b  "),
    ("'b  '::bpchar", ["a", "b"], "b"),
    ("'b'::tag", ["a", "b"], "b"),
    ("'b'::name", ["a", "b"], "b"),
    ("'b'::\"char\"", ["a", "b"], "b"),
    ("'it''s ok'::mood", ["so glad", "it's ok", "other"], "it's ok"),
    ("'sad'::mood", ["so glad", "it's ok", "other"], None),
    ("true", ["false", "true"], "true"),
    ("3::int2", ["1", "3"], "3"),
    ("3::int4", ["1", " 3"], " 3"),
    ("3::int8", [1, 3], "3"),
    ("3::years", ["1", "3.0"], "3.0"),
    ("9007199254740993::int8", ["9007199254740992", "9007199254740993"], "9007199254740993"),
    ("0.1::float4", ["0.1", "0.2"], "0.1"),
    ("0.1::float8", ["0.10", "0.2"], "0.10"),
    ("'-0'::float8", ["0", "1"], "0"),
    ("'NaN'::float8", ["NaN", "1"], None),
    ("1.50::numeric", ["1.5", "x"], "1.5"),
    ("5::numeric", [5.0, 6], "5.0"),
    ("'2020-02-29'::date", ["2020-02-28", "2020-02-29"], "2020-02-29"),
    ("'infinity'::date", ["2020-02-30", "2020-13-01", "infinity", "01-01-2020"], None),
    ("NULL::text", ["a"], None),
    ("'c'::text", ["a", "b"], None),
]


@pytest.mark.parametrize(("sql", "levels", "level"), LEVEL_CASES, ids=lambda v: str(v)[:40])
def test_categories(types: psycopg.Connection, sql: str, levels: list[Any], level: str | None) -> None:
    texts = [item if isinstance(item, str) else str(item) for item in levels]
    for centered in (True, False):
        spec = one({"kind": "category", "levels": levels, "centered": centered})
        oracle = one({"kind": "category", "levels": texts, "centered": centered})
        wanted = oracles.bound_norm(oracles.encode(oracle, [level]), "normalize")
        found, _ = encoded(types, spec, f"ROW({sql})")
        np.testing.assert_allclose(found, wanted, rtol=ROUNDING)


def test_many_levels(connection: psycopg.Connection) -> None:
    spec = one(
        {"kind": "category", "levels": [f"level {i}" for i in range(3000)], "centered": False},
        intercept=False,
    )
    found = connection.execute(
        b"SELECT array_position(u.x, (SELECT max(v) FROM unnest(u.x) v)) - 1"
        b" FROM generate_series(0, 2999, 7) g,"
        b" dpml.unpack(dpml.encode(%s::jsonb, ROW('level ' || g))) u ORDER BY g",
        (json.dumps(spec),),
    ).fetchall()
    assert [row[0] for row in found] == list(range(0, 3000, 7))


ARRAY_CASES: list[tuple[str, list[float | None] | None]] = [
    ("'{1,2,3}'::float8[]", [1, 2, 3]),
    ("'{1,2,3}'::float4[]", [1, 2, 3]),
    ("'{1,2,3}'::int2[]", [1, 2, 3]),
    ("'{1,2,3}'::int4[]", [1, 2, 3]),
    ("'{1,2,3}'::int8[]", [1, 2, 3]),
    ("'{1,2.5,1e400}'::numeric[]", [1, 2.5, math.inf]),
    ("'{t,f,NULL}'::bool[]", [1, 0, None]),
    ("'{1,NULL,3}'::float8[]", [1, None, 3]),
    ("'{NULL,2,3}'::int4[]", [None, 2, 3]),
    ("'{NaN,-Infinity,3}'::float8[]", [math.nan, -math.inf, 3]),
    ("'{1,2,3}'::vec", [1, 2, 3]),
    ("'{{1},{2},{3}}'::float8[]", [1, 2, 3]),
    ("'[5:7]={1,2,3}'::float8[]", [1, 2, 3]),
    ("'{1,2}'::float8[]", [1, 2]),
    ("'{1,2,3,4}'::float4[]", [1, 2, 3, 4]),
    ("'{}'::float8[]", []),
    ("NULL::float8[]", None),
]


@pytest.mark.parametrize(("sql", "values"), ARRAY_CASES, ids=str)
def test_arrays(types: psycopg.Connection, sql: str, values: list[float | None] | None) -> None:
    for column in (
        {"kind": "array", "length": 3, "lower": 0, "upper": 4, "scale": "zero_based"},
        {"kind": "array", "length": 3, "lower": 0, "upper": 4, "log1p": True},
        {"kind": "array", "length": 3, "scale": "standard", "mean": 1, "sd": 3},
    ):
        check(types, one(column), f"ROW({sql})", [values])


MIXED = {
    "columns": [
        {"name": "Age (years)", "kind": "numeric", "lower": 0, "upper": 100},
        {"name": "select", "kind": "category", "levels": ["x", "y"], "centered": True},
        {"name": "v", "kind": "array", "length": 2, "lower": -1, "upper": 1},
        {"name": "ok", "kind": "boolean"},
    ],
    "label": {"name": "L", "kind": "binary", "positive": ">50K", "negative": "<=50K"},
}


def test_columns_by_name(connection: psycopg.Connection) -> None:
    """In any order, quoted or not, others ignored, dropped ones too; a wrong case is another name."""
    connection.execute(
        'CREATE TEMP TABLE people (gone int, "L" text, ok bool, extra numeric, "select" varchar, v float4[],'
        ' "Age (years)" int)'
    )
    connection.execute("INSERT INTO people VALUES (1, '>50K', false, 1, 'y', '{0.5,1}', 30)")
    connection.execute("ALTER TABLE people DROP COLUMN gone")
    wanted = oracles.bound_norm(oracles.encode(MIXED, [30, "y", [0.5, 1.0], False]), "normalize")
    for record, source in (
        ("people", "FROM people"),
        ("p.*", "FROM people p"),
        ("q", 'FROM (SELECT ok, v, "L", "Age (years)", "select" FROM people) q'),
        ("ROW(30, 'y'::text, '{0.5,1}'::float8[], false, '>50K'::text)", ""),
    ):
        found, label = encoded(connection, MIXED, record, source)
        np.testing.assert_allclose(found, wanted, rtol=ROUNDING)
        assert label == 1.0
    for record, source, missing in (
        (
            "q",
            'FROM (SELECT ok, v, "L", "Age (years)", "select" AS "SELECT" FROM people) q',
            'no column "select"',
        ),
        ("q", 'FROM (SELECT ok, v, "Age (years)", "select" FROM people) q', 'no label column "L"'),
        ("ROW(30, 'y'::text, '{1}'::float8[], false)", "", 'no label column "L"'),
        ("ROW(30, 'y'::text, false)", "", 'no column "Age (years)"'),
    ):
        with pytest.raises(psycopg.errors.UndefinedColumn, match=re.escape(missing)):
            encoded(connection, MIXED, record, source)
    connection.execute("DROP TABLE people")


def test_row_type_changes_within_a_query(connection: psycopg.Connection) -> None:
    found = connection.execute(
        b"SELECT (SELECT u.x FROM dpml.unpack(dpml.encode(%s::jsonb, r)) u)::float8[] FROM"
        b" (VALUES (1, ROW(1::int)), (2, ROW(1::float8)), (3, ROW(NULL::text)), (4, ROW(1::numeric))) s(i, r)"
        b" ORDER BY i",
        (json.dumps(one({"kind": "category", "levels": [1, 2], "centered": False}, intercept=False)),),
    ).fetchall()
    assert [row[0][0] > 0.9 for row in found] == [True, True, False, True]


def test_spec_may_come_from_a_column(connection: psycopg.Connection) -> None:
    """Not only as a constant: a changed specification is noticed."""
    specs = [one({**NUMERIC, "upper": upper}, norm="clip", intercept=False) for upper in (10, 20, 10, 30)]
    found = connection.execute(
        b"SELECT u.x[1] FROM jsonb_array_elements(%s::jsonb) WITH ORDINALITY s(spec, i),"
        b" dpml.unpack(dpml.encode(spec, ROW(7))) u ORDER BY i",
        (json.dumps(specs),),
    ).fetchall()
    wanted = [oracles.encode(spec, [7.0])[0] for spec in specs]
    np.testing.assert_allclose([row[0] for row in found], wanted, rtol=ROUNDING)


BINARY = {"name": "y", "kind": "binary", "positive": "yes", "negative": "no"}
LABEL_CASES: list[tuple[dict[str, Any], str, float | None]] = [
    (BINARY, "'yes'::text", 1.0),
    (BINARY, "'no'::text", -1.0),
    (BINARY, "'maybe'::text", None),
    (BINARY, "NULL::text", None),
    ({**BINARY, "negative": None}, "'maybe'::text", -1.0),
    ({**BINARY, "negative": None}, "NULL::text", None),
    ({**BINARY, "positive": True, "negative": None}, "true", 1.0),
    ({**BINARY, "positive": True, "negative": None}, "false", -1.0),
    ({**BINARY, "positive": 1, "negative": 0}, "0::int2", -1.0),
    ({**BINARY, "positive": 1, "negative": 0}, "1.0::numeric", 1.0),
    ({**BINARY, "positive": 1, "negative": None}, "'NaN'::float8", -1.0),
    ({"name": "y", "kind": "classes", "classes": ["a", "b", "c"]}, "'c'::char(3)", 2.0),
    ({"name": "y", "kind": "classes", "classes": ["a", "b", "c"]}, "'d'::text", None),
    ({"name": "y", "kind": "classes", "classes": [1, 2, 3]}, "2::float8", 1.0),
    ({"name": "y", "kind": "number", "lower": 0, "upper": 5}, "4", 0.6),
    ({"name": "y", "kind": "number", "lower": 0, "upper": 5}, "99::numeric", 1.0),
    ({"name": "y", "kind": "number", "lower": 0, "upper": 5}, "'-Infinity'::float8", -1.0),
    ({"name": "y", "kind": "number", "lower": 0, "upper": 5}, "'NaN'::float8", None),
    ({"name": "y", "kind": "number", "lower": 0, "upper": 5}, "NULL::int", None),
]


@pytest.mark.parametrize(("label", "sql", "wanted"), LABEL_CASES, ids=str)
def test_labels(
    connection: psycopg.Connection, label: dict[str, Any], sql: str, wanted: float | None
) -> None:
    """An undeclared label makes a zero row."""
    found, y = encoded(connection, one(NUMERIC, label=label), f"ROW(7, {sql})")
    if wanted is None:
        assert (found.tolist(), y) == ([0.0, 0.0], 0.0)
    else:
        assert found.any()
        assert y == np.float32(wanted)


def test_null_record_is_a_zero_row(connection: psycopg.Connection) -> None:
    for label in (None, BINARY):
        found, y = encoded(connection, one(NUMERIC, label=label), "NULL::pg_class")
        assert (found.tolist(), y) == ([0.0, 0.0], 0.0)


def test_unsupported_types_name_the_column(connection: psycopg.Connection) -> None:
    for column, sql in (
        (NUMERIC, "'x'::text"),
        (NUMERIC, "'1 day'::interval"),
        ({"kind": "boolean"}, "'t'::text"),
        ({"kind": "category", "levels": ["a"]}, "'a'::bytea"),
        ({"kind": "array", "length": 1, "lower": 0, "upper": 1}, "1"),
        ({"kind": "array", "length": 1, "lower": 0, "upper": 1}, "'{x}'::text[]"),
    ):
        for value in (sql, f"nullif({sql}, {sql})"):
            with pytest.raises(psycopg.errors.DatatypeMismatch, match='column "a" of type'):
                encoded(connection, one(column), f"ROW({value})")


BAD_SPECS: list[tuple[Any, str]] = [
    (1, "the specification must be a JSON object"),
    ({}, '"columns" in the specification must be an array of 1 to 1048576 columns'),
    ({"columns": []}, '"columns" in the specification must be an array of 1 to 1048576 columns'),
    ({"columns": [1]}, '"columns" in the specification must be an array of objects'),
    ({"columns": [[]]}, "column 1 of the specification must be a JSON object"),
    ({"columns": [{"kind": "numeric"}]}, '"name" in column 1 of the specification must be'),
    (one({}), '"kind" in column "a" must be one of "numeric", "boolean", "category", "array"'),
    (one({"kind": "number"}), '"kind" in column "a" must be one of'),
    (one({**NUMERIC, "mean": 1}), '"mean" in column "a" must be absent'),
    (one({**NUMERIC, "sd": 1}), '"sd" in column "a" must be absent'),
    (one({**NUMERIC, "levels": []}), 'unknown key "levels" in column "a"'),
    (one({"kind": "numeric", "upper": 1}), '"lower" in column "a" must be a finite number'),
    (one({"kind": "numeric", "lower": 1}), '"upper" in column "a" must be a finite number'),
    (one({**NUMERIC, "lower": 10}), '"lower" in column "a" must be less than "upper"'),
    (one({**NUMERIC, "lower": "0"}), '"lower" in column "a" must be a finite number'),
    (one({**NUMERIC, "log1p": True}), '"lower" in column "a" must be given and >= 0'),
    (one({**NUMERIC, "log1p": 1}), '"log1p" in column "a" must be true or false'),
    (
        one({**NUMERIC, "scale": "log"}),
        '"scale" in column "a" must be one of "center", "zero_based", "standard"',
    ),
    (one({"kind": "numeric", "scale": "standard", "sd": 1}), '"mean" in column "a" must be given'),
    (one({"kind": "numeric", "scale": "standard", "mean": 1}), '"sd" in column "a" must be given'),
    (one({**STANDARD, "sd": 0}), '"sd" in column "a" must be a number > 0'),
    (one({**STANDARD, "log1p": True}), '"lower" in column "a" must be given and >= 0'),
    (
        one({"kind": "boolean", "scale": "standard"}),
        '"scale" in column "a" must be one of "center", "zero_based"',
    ),
    (one({"kind": "category"}), '"levels" in column "a" must be given'),
    (one({"kind": "category", "levels": []}), '"levels" in column "a" must be an array of at least 1'),
    (one({"kind": "category", "levels": [None]}), '"levels" in column "a" must be an array'),
    (one({"kind": "category", "levels": "x"}), '"levels" in column "a" must be an array'),
    (
        one({"kind": "array", "lower": 0, "upper": 1}),
        '"length" in column "a" must be an integer from 1 to 1048576',
    ),
    (
        one({"kind": "array", "lower": 0, "upper": 1, "length": 0}),
        '"length" in column "a" must be an integer',
    ),
    (
        one({"kind": "array", "lower": 0, "upper": 1, "length": 2**20}),
        "the specification has 1048577 features",
    ),
    (one(NUMERIC, intercept="yes"), '"intercept" in the specification must be true or false'),
    (
        one(NUMERIC, norm="l2"),
        '"norm" in the specification must be one of "clip", "normalize", "clip_values"',
    ),
    (one(NUMERIC, format="coo"), '"format" in the specification must be one of "dense", "csr"'),
    (one(NUMERIC, labels={}), 'unknown key "labels" in the specification'),
    (one(NUMERIC, label="y"), '"label" in the specification must be an object'),
    (one(NUMERIC, label={"kind": "binary"}), '"name" in the label must be'),
    (one(NUMERIC, label={"name": "y"}), '"kind" in the label must be one of "binary", "classes", "number"'),
    (one(NUMERIC, label={"name": "y", "kind": "binary"}), '"positive" in the label must be'),
    (one(NUMERIC, label={**BINARY, "negative": "yes"}), '"negative" in the label must be another value'),
    (one(NUMERIC, label={**BINARY, "classes": []}), 'unknown key "classes" in the label'),
    (one(NUMERIC, label={"name": "y", "kind": "classes"}), '"classes" in the label must be given'),
    (
        one(NUMERIC, label={"name": "y", "kind": "classes", "classes": ["a"]}),
        '"classes" in the label must be an array',
    ),
    (
        one(NUMERIC, label={"name": "y", "kind": "number", "lower": 0}),
        '"upper" in the label must be a finite number',
    ),
    (
        one(NUMERIC, label={"name": "y", "kind": "number", "lower": 1, "upper": 1}),
        '"lower" in the label must be less',
    ),
]


@pytest.mark.parametrize(("spec", "message"), BAD_SPECS, ids=str)
def test_bad_specifications(connection: psycopg.Connection, spec: Any, message: str) -> None:
    with pytest.raises(psycopg.errors.Error) as caught:
        connection.execute("SELECT dpml.encode(%s::jsonb, ROW(1, 'yes'::text))", (json.dumps(spec),))
    assert str(caught.value.diag.message_primary).startswith(message)
