# SPDX-License-Identifier: PostgreSQL
"""One table with a column of every type and odd values: what `dpml check` counts, what the encoder
makes of each value, what a model predicts from a row, and what an evaluation counts agree."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timezone
from functools import cached_property
from typing import Any

import psycopg
import pytest
from psycopg import errors, sql

import pg_dpml
from helpers.sqltools import scalar
from pg_dpml.blocks.query import record_of
from pg_dpml.blocks.source import resolve
from pg_dpml.database.catalog import look_up_table
from pg_dpml.database.database import Database
from pg_dpml.spec.checks import LONGEST_LEVEL
from pg_dpml.spec.columns import Column, Label
from pg_dpml.spec.data import DataSpec
from pg_dpml.tables.checks import ValueCheck, check_table

pytestmark = pytest.mark.dealt

OLD, NEW = date(1999, 1, 1), date(2001, 1, 2)
ZONED = (datetime(1999, 1, 1, tzinfo=timezone.utc), datetime(2001, 1, 2, tzinfo=timezone.utc))


@dataclass(frozen=True)
class Numbers:
    """A column of numbers with bounds, its values as SQL writes them, and what a check must count."""

    type: str
    values: Sequence[str]
    counts: Mapping[str, int]
    bounds: tuple[Any, Any] = (0.5, 10)
    length: int | None = None


@dataclass(frozen=True)
class Levels:
    """A column of categories, its values as SQL writes them, and the level of each: -1 for none."""

    type: str
    levels: tuple[str, ...]
    values: Mapping[str, int]


FLOATS = ("'-0'", "'NaN'", "'Infinity'", "'-Infinity'", "0.5", "10", "10.5", "-3", "7", "'1e-40'")
FLOAT_COUNTS = {"nan": 1, "infinite": 2, "below": 3, "above": 1, "at_lower": 5}
MOMENTS = (
    *("'1999-01-01'", "'2001-01-02'", "'1998-12-31'", "'2001-01-03'", "'0044-03-15 BC'"),
    *("'infinity'", "'-infinity'", "'2000-06-01'"),
)
MOMENT_COUNTS = {"infinite": 2, "below": 2, "above": 1, "at_lower": 4}

NUMBERS: dict[str, Numbers] = {
    "int2": Numbers("smallint", ("-32768", "32767", "0", "1", "10"), {"below": 2, "above": 1, "at_lower": 2}),
    "int4": Numbers("int", ("-2147483648", "2147483647", "1"), {"below": 1, "above": 1, "at_lower": 1}),
    "int8": Numbers(
        "bigint",
        (
            *("-9223372036854775808", "9223372036854775807", "9007199254740993", "9007199254740992"),
            "4503599627370",
        ),
        {"below": 1, "above": 1, "at_lower": 1},
        bounds=(2, 9007199254740992),  # the one above it is the same float8
    ),
    "float4": Numbers("real", FLOATS, FLOAT_COUNTS),
    "float8": Numbers("float8", (*FLOATS[:-1], "'5e-324'", "1e308"), FLOAT_COUNTS | {"above": 2}),
    "num": Numbers(
        "numeric",
        ("'NaN'", "'Infinity'", "1e2000", "-1e2000", "0.49999999999999999999", "0.5", "1e-3000", "7", "10.1"),
        {"nan": 1, "infinite": 3, "below": 1, "above": 1, "at_lower": 4},
    ),
    "d": Numbers(
        "date",
        (*MOMENTS, "'5874897-12-31'", "'4713-01-01 BC'"),
        MOMENT_COUNTS | {"above": 2, "below": 3, "at_lower": 5},
        bounds=(OLD, NEW),
    ),
    "ts": Numbers(
        "timestamp",
        (*MOMENTS, "'294276-12-31 23:59:59.999999'", "'4713-01-01 BC'", "'1998-12-31 23:59:59.999999'"),
        MOMENT_COUNTS | {"above": 2, "below": 4, "at_lower": 6},
        bounds=(OLD, NEW),
    ),
    "tz": Numbers(
        "timestamptz",
        (
            *("'1999-01-01 00:00+00'", "'1999-01-01 00:00+01'", "'2001-01-01 23:30-01'"),
            *("'2000-06-01 00:00+00'",),
            *("'infinity'", "'-infinity'", "'294276-12-31 00:00+00'", "'4713-01-02 00:00+00 BC'"),
        ),
        {"infinite": 2, "below": 2, "above": 2, "at_lower": 4},
        bounds=ZONED,
    ),
    "share": Numbers("share", ("0", "0.5", "1"), {"at_lower": 2, "below": 1}, bounds=(0.5, 10)),
    "bools": Numbers("boolean[]", ("'{t,f}'", "'{t}'", "'{t,NULL}'"), {"wrong_length": 1, "null_elements": 1},
        bounds=(-1, 2), length=2),
    "ints": Numbers("int[]",
        ("'{1,2}'", "'[5:6]={1,11}'", "'{{1,2}}'", "'{{1},{-2147483648}}'", "'{}'", "'{1,2,3}'"),
        {"wrong_length": 2, "outside_elements": 2}, length=2),
    "longs": Numbers("bigint[]", ("'{1,2}'", "'{1,9223372036854775807}'"), {"outside_elements": 1}, length=2),
    "reals": Numbers("real[]", ("'{1,NaN}'", "'{NULL,NULL}'", "'{NaN,Infinity}'", "'{1,2}'"),
        {"null_elements": 2, "outside_elements": 1}, length=2),
    "doubles": Numbers("float8[]", ("'{1,NaN}'", "'{-0,1}'", "'{5e-324,1}'", "'{0.5,10}'"),
        {"null_elements": 1, "outside_elements": 2}, length=2),
    "nums": Numbers("numeric[]", ("'{1,NaN}'", "'{1e2000,1}'", "'{0.49999999999999999999,1}'", "'{1,2}'"),
        {"null_elements": 1, "outside_elements": 1}, length=2),
    "dates": Numbers("date[]",
        ("'{2000-01-01,5874897-12-31}'", "'{2000-01-01,2000-01-01}'", "'{infinity,NULL}'"),
        {"outside_elements": 2}, bounds=(OLD, NEW), length=2),
    "stamps": Numbers("timestamptz[]", ("'{2000-01-01 00:00+00,-infinity}'", "'{2000-01-01 00:00+00,NULL}'"),
        {"outside_elements": 1, "null_elements": 1}, bounds=ZONED, length=2),
    "shares": Numbers("share[]", ("'{0.5,1}'", "'{0,1}'"), {"outside_elements": 1}, length=2),
}  # fmt: skip

TEXTS = {"'Aix'": 0, "'aix'": 1, "'AIX'": -1, "''": -1, "'Aix '": -1, "'é'": 2, "E'e\\u0301'": -1}
TOWNS = ("Aix", "aix", "é")
CHARS = {"'Aix'": 0, "'aix'": 1, "'AIX'": -1, "''": -1, "'Aix '": 0, "'é'": 2}
LEVELS: dict[str, Levels] = {
    "plain": Levels("text", TOWNS, TEXTS),
    "tc": Levels('text COLLATE "C"', TOWNS, TEXTS),
    "ti": Levels("text COLLATE no_case", TOWNS, TEXTS),
    "vi": Levels("varchar(9) COLLATE no_case", TOWNS, TEXTS),
    "bi": Levels("char(9) COLLATE no_case", TOWNS, CHARS),
    "di": Levels("town", TOWNS, TEXTS),
    "long": Levels("text", ("a",), {"'a'": 0, f"repeat('a', {LONGEST_LEVEL + 1})": -1}),
    "n": Levels("name", TOWNS, TEXTS),
    "c": Levels('"char"', ("a", "b"), {"'a'": 0, "'b'": 1, "'A'": -1, "''": -1}),
    "m": Levels("mood", ("low", "Low"), {"'low'": 0, "'Low'": 1, "'high'": -1}),
    "md": Levels("moody", ("low", "Low"), {"'low'": 0, "'Low'": 1, "'high'": -1}),
    "b": Levels("boolean", ("true", "false"), {"true": 0, "false": 1}),
    "i2": Levels("smallint", ("1", "2.0"), {"1": 0, "2": 1, "3": -1, "-32768": -1}),
    "i8": Levels(
        "bigint",
        ("9007199254740992", "9007199254740993.0", "-9223372036854775808"),
        {"9007199254740992": 0, "9007199254740993": 1, "9007199254740994": -1, "-9223372036854775808": 2},
    ),
    "nu": Levels(
        "numeric",
        ("9007199254740992", "9007199254740993", "0.1", "1e3", "Infinity"),
        {
            "9007199254740992": 0, "9007199254740993": 1, "9007199254740994": -1,
            "0.1": 2, "0.10": 2, "0.1000000000000000055511151231257827": -1, "1000.00": 3,
            "'Infinity'": 4, "1e2000": -1, "'-Infinity'": -1, "'NaN'": -1,
        },
    ),
    "f4": Levels("real", ("0.1", "0", "1e-3"),
        {"0.1": 0, "'-0'": 1, "0": 1, "0.001": 2, "'NaN'": -1, "0.2": -1}),
    "f8": Levels("float8", ("0.1", "0", "inf"),
        {"0.1": 0, "'-0'": 1, "0.1::real": -1, "'Infinity'": 2, "'NaN'": -1}),
    "da": Levels(
        "date",
        ("2000-02-29", "0001-01-01"),
        {
            "'2000-02-29'": 0, "'0001-01-01'": 1, "'infinity'": -1,
            "'5874897-12-31'": -1, "'0044-03-15 BC'": -1,
        },
    ),
}  # fmt: skip

N_NULLS = 2


def _table() -> sql.Composed:
    """Every column has its values once, and NULL in the other rows."""
    columns = [(name, column.type, list(column.values)) for name, column in (NUMBERS | LEVELS).items()]
    n_rows = max(len(values) for _, _, values in columns) + N_NULLS
    listed = [sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(type_)) for name, type_, _ in columns]
    rows = [
        sql.SQL("({})").format(
            sql.SQL(", ").join(
                sql.SQL(values[row] if row < len(values) else "NULL") for _, _, values in columns
            )
        )
        for row in range(n_rows)
    ]
    return sql.SQL(
        "CREATE TABLE odd (id int GENERATED ALWAYS AS IDENTITY, {}); INSERT INTO odd ({}) VALUES {}"
    ).format(
        sql.SQL(", ").join(listed),
        sql.SQL(", ").join(sql.Identifier(name) for name, _, _ in columns),
        sql.SQL(", ").join(rows),
    )


class Odd:
    """The table, and what each part of the product makes of it."""

    def __init__(self, dsn: str, connection: psycopg.Connection) -> None:
        self.dsn = dsn
        self.connection = connection
        self.connection.execute(
            "DO $$ BEGIN CREATE COLLATION no_case (provider = icu, locale = 'und-u-ks-level1', "
            # A server without ICU has no such collation.
            "deterministic = false); EXCEPTION WHEN feature_not_supported THEN "
            'CREATE COLLATION no_case FROM "C"; END $$; '
            "CREATE DOMAIN town AS text COLLATE no_case; "
            "CREATE DOMAIN share AS numeric(5, 2) CHECK (VALUE < 99); "
            "CREATE TYPE mood AS ENUM ('high', 'low', 'Low'); CREATE DOMAIN moody AS mood"
        )
        self.connection.execute(_table())

    def rows(self, query: str, *values: Any) -> list[Any]:
        return [row[0] for row in self.connection.execute(query.encode(), values)]

    @cached_property
    def checks(self) -> dict[str, ValueCheck]:
        """All columns at once, as features."""
        columns = (*(feature(name) for name in NUMBERS), *(feature(name) for name in LEVELS))
        check = check_table(self.dsn, DataSpec("odd", Label("id", lower=0, upper=100), columns))
        return {column.name: column for column in check.columns}

    def encoder(self, name: str, label: Label | None = None) -> dict[str, Any]:
        """Of one column, whose features are as they come: no intercept, no unit norm."""
        with Database(self.dsn).session() as session:
            data = DataSpec(
                "odd",
                label or Label("id", lower=0, upper=100),
                (feature(name),),
                intercept=False,
                norm="clip",
            )
            return dict(resolve(session, data).encoder)

    def encoded(self, encoder: Mapping[str, Any], record: str) -> list[list[float]]:
        query = (
            "SELECT u.x::float8[] FROM odd AS t, "
            f"LATERAL dpml.unpack(dpml.encode(%s::jsonb, {record})) AS u ORDER BY t.id"
        )
        return self.rows(query, json.dumps(encoder))

    def features(self, name: str) -> list[list[float]]:
        """Of every row, without a label."""
        encoder = self.encoder(name)
        del encoder["label"]
        return self.encoded(encoder, f'ROW("{name}")')

    def store(
        self, name: str, encoder: Mapping[str, Any], weights: list[float], classes: list[str] | None
    ) -> None:
        task = {"binary": "binary", "classes": "multiclass", "number": "regression"}[encoder["label"]["kind"]]
        loss = {"binary": "logistic", "multiclass": "softmax", "regression": "squared"}[task]
        rows = len(classes) if task == "multiclass" and classes else 1
        self.connection.execute("DELETE FROM dpml.models WHERE name = %s", (name,))
        self.connection.execute(
            "INSERT INTO dpml.models (name, method, private, task, loss, classes, weights, n_features, "
            "encoder, privacy, training) "
            "VALUES (%s, 'by hand', false, %s, %s, %s, %s, %s, %s::jsonb, '{}', '{}')",
            (name, task, loss, classes, weights * rows, len(weights), json.dumps(encoder)),
        )


def feature(name: str) -> Column:
    if name in NUMBERS:
        column = NUMBERS[name]
        return Column(name, *column.bounds, length=column.length)
    return Column(name, levels=LEVELS[name].levels, centered=False)


@pytest.fixture(scope="module")
def odd(database: str) -> Iterator[Odd]:
    with psycopg.connect(database, autocommit=True) as connection:
        yield Odd(database, connection)


# What a check counts is what the encoder does


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_are_counted_as_they_are_encoded(odd: Odd, name: str) -> None:
    column, check = NUMBERS[name], odd.checks[name]
    n_rows = scalar(odd.connection, "SELECT count(*) FROM odd")
    nulls = n_rows - len(column.values)
    found = {key: getattr(check, key) for key in check.__dataclass_fields__ if key not in ("name", "type")}
    expected = {key: column.counts.get(key, 0) for key in found} | {"nulls": nulls}
    others = ("lowest_tenth", "highest_tenth", "constant", "levels", "unknown", "unknown_values")
    for key in (*others, "few_values"):
        del expected[key], found[key]
    assert found == expected

    encoded = odd.features(name)
    if column.length is None:
        values = [row[0] for row in encoded]
        assert values.count(0.0) == check.nulls + check.nan
        assert sum(value < -0.99999 for value in values) == check.at_lower
        above = check.above + sum(value == "'Infinity'" or value == "'infinity'" for value in column.values)
        assert sum(value > 0.99999 for value in values) >= above
    else:
        nothing = sum(all(value == 0.0 for value in row) for row in encoded)
        assert nothing >= check.nulls + check.wrong_length
        assert any(value == 0.0 for row in encoded for value in row) == bool(
            check.nulls + check.wrong_length + check.null_elements
        )


def test_without_bounds_what_is_not_finite_is_counted(odd: Odd) -> None:
    """The encoder takes it for nothing."""
    columns = tuple(
        Column(name, scale="standard", mean=0, sd=1, length=NUMBERS[name].length)
        for name in ("float8", "num", "doubles", "nums", "reals")
    )
    check = check_table(odd.dsn, DataSpec("odd", Label("id", lower=0, upper=100), columns))
    found = {column.name: column for column in check.columns}
    assert [(found[name].nan, found[name].infinite) for name in ("float8", "num")] == [(1, 2), (1, 3)]
    arrays = [found[name] for name in ("doubles", "nums", "reals")]
    assert [(a.null_elements, a.outside_elements) for a in arrays] == [(1, 0), (1, 1), (2, 1)]


@pytest.mark.parametrize("name", LEVELS)
def test_levels_are_counted_as_they_are_encoded(odd: Odd, name: str) -> None:
    column, check = LEVELS[name], odd.checks[name]
    encoded = odd.features(name)
    levels = [row.index(max(row)) if max(row) > 0.0 else -1 for row in encoded]
    assert levels[: len(column.values)] == list(column.values.values())
    assert set(levels[len(column.values) :]) == {-1}
    assert check.nulls == len(encoded) - len(column.values)
    assert check.unknown == list(column.values.values()).count(-1)
    assert check.levels is not None
    assert [level.rows for level in check.levels] == [levels.count(i) for i in range(len(column.levels))]
    assert sum(value.rows for value in check.unknown_values) == check.unknown or check.unknown > 5
    assert check.constant == (len(set(column.values.values())) == 1)


# A row by the names of its fields


@pytest.mark.parametrize("name", [*NUMBERS, *LEVELS])
def test_predictions_read_values_as_training_does(odd: Odd, name: str) -> None:
    """A record with names, one in another order with more fields, and the record that training makes."""
    encoder = odd.encoder(name, Label("id", positive="1"))
    encoded = odd.encoded(encoder, f'ROW("{name}", 1)')
    weights = [float(2**i) for i in range(len(encoded[0]))]
    odd.store("odd", encoder, weights, ["not 1", "1"])
    wanted = [sum(w * x for w, x in zip(weights, row, strict=True)) for row in encoded]
    with Database(odd.dsn).session() as session:
        record = record_of(encoder, look_up_table(session, "odd"), with_label=False)
    as_trained = record.as_string(odd.connection)
    records = ("t", f'(SELECT r FROM (SELECT 1 AS extra, t."{name}", t.id) AS r)', as_trained)
    for given in records:
        found = odd.rows(f"SELECT dpml.predict_value('odd', {given}) FROM odd AS t ORDER BY t.id")
        assert found == pytest.approx(wanted, rel=1e-12, abs=0.0), given


# Labels


def _task_labels(name: str) -> list[Label]:
    if name in NUMBERS:
        return [Label(name, lower=NUMBERS[name].bounds[0], upper=NUMBERS[name].bounds[1])]
    levels = LEVELS[name].levels
    labels = [Label(name, positive=levels[0])]
    if len(levels) > 1:
        labels += [Label(name, positive=levels[0], negative=levels[1]), Label(name, classes=levels)]
    return labels


LABELS = [
    label for name in [*NUMBERS, *LEVELS] if name not in NUMBERS or NUMBERS[name].length is None
    for label in _task_labels(name)
]  # fmt: skip


@pytest.mark.parametrize("label", LABELS, ids=lambda label: f"{label.column}-{label.task}-{label.negative}")
def test_labels_are_counted_as_they_are_trained_on(odd: Odd, label: Label) -> None:
    """By a check, by the encoder, by an evaluation, and by the record that training makes."""
    data = DataSpec("odd", label, (Column("id", 0, 100),))
    check = check_table(odd.dsn, data).label
    with Database(odd.dsn).session() as session:
        source = resolve(session, data)
        record = record_of(source.encoder, source.table, with_label=True)
    encoder = dict(source.encoder)
    zero = [not any(row) for row in odd.encoded(encoder, record.as_string(odd.connection))]
    odd.store("labelled", encoder, [0.0] * source.n_features, list(source.class_names or ()) or None)
    known = odd.rows("SELECT dpml.label('labelled', t) FROM odd AS t ORDER BY t.id")
    assert [value is None for value in known] == zero

    others = label.positive is not None and label.negative is None
    undeclared = check.nan if label.task == "regression" else 0 if others else check.unknown
    assert sum(zero) == check.nulls + undeclared
    if all(zero):
        with pytest.raises(pg_dpml.SpecError, match="no row of odd has a label"):
            pg_dpml.evaluate(odd.dsn, "labelled", "odd", public=True)
        return
    found = pg_dpml.evaluate(odd.dsn, "labelled", "odd", public=True)
    assert found.left_out is not None
    assert (found.left_out.nulls, found.left_out.undeclared) == (check.nulls, undeclared)
    assert found.n_rows == len(zero) - sum(zero)
    if label.task != "regression":
        if not others:
            assert found.left_out.undeclared_values == check.unknown_values
        assert check.levels is not None
        sizes = {level.value: level.rows for level in check.levels}
        if others:
            assert source.class_names is not None
            sizes[source.class_names[0]] = check.unknown
        counted = dict.fromkeys(sizes, 0)
        for actual, _, rows in found.confusion:
            counted[actual] += rows
        assert counted == sizes
        assert set(found.left_out.empty_classes) == {value for value, rows in sizes.items() if rows == 0}


# Two fields of one name


@pytest.mark.parametrize("function", ["predict", "predict_value", "predict_proba", "label"])
def test_a_name_that_two_fields_have_is_refused(odd: Odd, function: str) -> None:
    """Which one is meant depends on the order of a join; a name that the model does not read may stand."""
    encoder = odd.encoder("float8", Label("int4", positive="1"))
    odd.store("twice", encoder, [1.0], ["not 1", "1"])
    call = f"SELECT dpml.{function}('twice', r) FROM (SELECT {{}} FROM odd AS a, odd AS b LIMIT 1) AS r"
    with pytest.raises(errors.AmbiguousColumn, match='the record has several columns "float8"') as refusal:
        odd.rows(call.format("a.*, b.*"))
    assert "Rename the others" in str(refusal.value.diag.message_hint)
    odd.rows(call.format("a.*, b.id AS id"))
    only_label = call.format("a.float8, a.int4, b.int4")
    if function == "label":
        with pytest.raises(errors.AmbiguousColumn, match='several columns "int4"'):
            odd.rows(only_label)
    else:
        odd.rows(only_label)


def test_the_encoder_refuses_a_name_that_two_fields_have(odd: Odd) -> None:
    encoder = json.dumps(odd.encoder("float8"))
    with pytest.raises(errors.AmbiguousColumn, match='the record has several columns "float8"'):
        odd.rows(
            "SELECT dpml.encode(%s::jsonb, r) FROM (SELECT a.float8, b.float8 FROM odd a, odd b LIMIT 1) r",
            encoder,
        )


# The functions that a check asks


def test_what_is_no_number_is_refused_by_its_type(odd: Odd) -> None:
    for call, words in {
        "dpml.number('x'::text)": "type text cannot be read as a number",
        "dpml.numbers(7, 1)": "type integer cannot be read as an array of numbers",
        "dpml.numbers('{a}'::text[], 1)": r"type text\[\] cannot be read as an array of numbers",
        "dpml.numbers('{1}'::int[], 0)": "the length must be from 1 to 1048576",
    }.items():
        with pytest.raises(psycopg.Error, match=words):
            odd.rows(f"SELECT {call}")
    assert odd.rows("SELECT dpml.number(NULL::date)") == [None]
    assert odd.rows(
        "SELECT dpml.numbers(v, n) FROM (VALUES ('{1,NaN}'::real[], 2), ('{1}', 2), ('{1}', 1)) t (v, n)"
    ) == [
        [1.0, None],
        None,
        [1.0],
    ]
