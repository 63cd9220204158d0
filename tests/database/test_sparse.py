# SPDX-License-Identifier: PostgreSQL
"""Sparse columns from the table to the prediction: pairs of arrays, and pgvector's sparsevec."""

from __future__ import annotations

import json
import os
import re
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest
from psycopg.types.json import Jsonb
from typer.testing import CliRunner

import pg_dpml
from helpers.anytable import PRIVACY, YES, encoded, refused, run
from helpers.sqltools import scalar
from pg_dpml.blocks.blocks import Blocks
from pg_dpml.blocks.packing import pack
from pg_dpml.blocks.query import from_clause, record_of
from pg_dpml.blocks.source import resolve
from pg_dpml.cli.framework import app
from pg_dpml.database.database import Database
from pg_dpml.database.session import sql
from pg_dpml.errors import GuaranteeError, SpecError
from pg_dpml.runs.train import start_run
from pg_dpml.spec.columns import Column, Label
from pg_dpml.spec.data import DataSpec
from pg_dpml.spec.privacy import PrivacySpec
from pg_dpml.tables.checks import check_table
from pg_dpml.tables.loading import load_svmlight
from pg_dpml.training.spec import TrainSpec

pytestmark = pytest.mark.dealt

D = 20
VALUES = Column("v", indices="i", first_index=1, length=D)
PAIR: dict[str, Any] = {"name": "v", "kind": "sparse", "indices": "i", "first_index": 1, "length": D}
AS_IT_IS: dict[str, Any] = {"scale": "standard", "mean": 0, "sd": 1}
ARRAY: dict[str, Any] = {"name": "x", "kind": "array", "length": D}


def encoder(column: dict[str, Any], **more: Any) -> Jsonb:
    return Jsonb({"columns": [column], "intercept": True, "format": "csr", **more})


def make_table(connection: psycopg.Connection, table: str, n: int = 300, d: int = D) -> None:
    """Rows as a pair of arrays in falling order of the indices, and as one dense array."""
    draw = np.random.default_rng(n)
    connection.execute(f"CREATE TABLE {table} (id int, v float8[], i int[], x float8[], y bool)".encode())
    with connection.cursor() as cursor, cursor.copy(f"COPY {table} FROM STDIN".encode()) as copy:
        for row in range(n):
            places = np.sort(draw.choice(d, draw.integers(0, 5), replace=False))[::-1]
            numbers = draw.normal(size=len(places)).round(3)
            dense = np.zeros(d)
            dense[places] = numbers
            label = bool(dense[: d // 2].sum() > dense[d // 2 :].sum())
            copy.write_row((row, numbers.tolist(), (places + 1).tolist(), dense.tolist(), label))


@pytest.fixture(scope="module", autouse=True)
def tables(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        make_table(connection, "rows")


# What is encoded


@pytest.mark.parametrize("numbers", ["real", "float8", "numeric", "smallint", "boolean", "date"])
@pytest.mark.parametrize("indices", ["smallint", "integer", "bigint"])
def test_types(connection: psycopg.Connection, numbers: str, indices: str) -> None:
    given = {"boolean": "true,false", "date": "2000-01-02,2000-01-04"}.get(numbers, "1,3")
    record = f"ROW('{{{given}}}'::{numbers}[], '{{4,2}}'::{indices}[])"
    found = connection.execute(
        f"SELECT u.x FROM dpml.unpack(dpml.encode(%s, {record})) u".encode(),
        (encoder({**PAIR, **AS_IT_IS, "length": 4}, intercept=False),),
    ).fetchone()
    wanted = np.array([0, 0, 0, 1] if numbers == "boolean" else [0, 3, 0, 1])
    assert found is not None
    np.testing.assert_allclose(found[0], wanted / np.linalg.norm(wanted), rtol=1e-5)


@pytest.mark.parametrize(
    "scaling",
    [
        AS_IT_IS,
        {"scale": "center", "lower": -1, "upper": 1},
        {"scale": "zero_based", "lower": 0, "upper": 2},
        {"scale": "zero_based", "lower": 0, "upper": 2, "log1p": True},
        {"scale": "standard", "mean": 0, "sd": 3, "lower": -1, "upper": 2},
    ],
)
@pytest.mark.parametrize("norm", ["normalize", "clip"])
def test_blocks_are_those_of_the_dense_array_bit_for_bit(
    connection: psycopg.Connection, scaling: dict[str, Any], norm: str
) -> None:
    """So every method makes the same model of both, with the same coins."""
    label = {"name": "y", "kind": "binary", "positive": True}
    packed = [
        scalar(
            connection,
            "SELECT dpml.pack(dpml.encode(%s, r) ORDER BY id) FROM rows r",
            encoder({**column, **scaling}, norm=norm, label=label),
        )
        for column in (PAIR, ARRAY)
    ]
    assert len(packed[0]) > 5000
    assert packed[0] == packed[1]


def test_a_model_is_that_of_the_dense_array(
    connection: psycopg.Connection, database: str, clean: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pg_dpml.kernels.secrets.token_bytes", bytes)
    dense = Column("x", length=D, scale="standard", mean=0, sd=1)
    weights = []
    for column in (VALUES, dense):
        result = pg_dpml.train(
            database, DataSpec("rows", YES, (column,)), PRIVACY, TrainSpec("dp-gd"), name=f"of {column.name}"
        )
        weights.append(result.model.weights)
    assert np.abs(weights[0]).max() > 0.01
    np.testing.assert_allclose(weights[0], weights[1], rtol=0, atol=1e-6 * np.abs(weights[0]).max())
    answers = connection.execute(
        "SELECT dpml.predict_value('of v', r), dpml.predict_value('of x', r), "
        "dpml.predict_value('of v', ROW(v, i)) FROM rows r"
    ).fetchall()
    found = np.array(answers, dtype=np.float64)
    np.testing.assert_allclose(found[:, 0], found[:, 1], rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(found[:, 0], found[:, 2])


BAD = {
    "null numbers": (None, "{1,2}"),
    "null indices": ("{1,2}", None),
    "more numbers": ("{1,2,3}", "{1,2}"),
    "more indices": ("{1,2}", "{1,2,3}"),
    "null index": ("{1,2}", "{1,NULL}"),
    "index before the first": ("{1,2}", "{0,2}"),
    "negative index": ("{1,2}", "{-1,2}"),
    "index after the last": ("{1,2}", f"{{1,{D + 1}}}"),
    "largest index": ("{1,2}", "{1,9223372036854775807}"),
    "smallest index": ("{1,2}", "{1,-9223372036854775808}"),
    "repeated index": ("{1,2,3}", "{7,2,7}"),
    "more than there are": (f"{{{','.join(['1'] * (D + 1))}}}", f"{{{','.join(map(str, range(D + 1)))}}}"),
    "no elements": ("{}", "{}"),
    "only NaN": ("{NaN,NULL}", "{1,2}"),
}


@pytest.mark.parametrize("bad", BAD)
def test_bad_rows_are_zero(connection: psycopg.Connection, table: str, clean: None, bad: str) -> None:
    connection.execute(f"CREATE TABLE {table} (id int, v float8[], i bigint[], y bool)".encode())
    connection.execute(
        f"INSERT INTO {table} VALUES (1, '{{3,4}}', '{{2,1}}', true), (2, %s, %s, true)".encode(), BAD[bad]
    )
    found = encoded(connection, DataSpec(table, YES, (VALUES,), intercept=False))
    wanted = np.zeros((2, D))
    wanted[0, :2] = 0.8, 0.6
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_numbers_too_long_for_a_record_are_zeros(
    connection: psycopg.Connection, database: str, table: str, clean: None
) -> None:
    """A row of many such numbers would make a record of more than 1 GB, and so an error."""
    length = 2**20 - 1
    digits = 2**29 // length - 16
    values = (10**digits - 1, 10**digits, f"0.{'0' * (digits - 1)}1", f"0.{'0' * digits}1", "NaN", "Infinity")
    connection.execute(f"CREATE TABLE {table} (id int, v numeric[], i int[], y bool)".encode())
    for row, value in enumerate(values):
        connection.execute(
            f"INSERT INTO {table} VALUES (%s, ARRAY[%s, '0.5']::numeric[], '{{1,2}}', true)".encode(),
            (row, str(value)),
        )
    column = Column("v", indices="i", first_index=1, length=length, lower=-1, upper=1)
    with Database(database).session() as session:
        source = resolve(session, DataSpec(table, YES, (column,), intercept=False))
        record = record_of(source.encoder, source.table, with_label=False)
        seen = session.fetch(
            sql.SQL("SELECT (r.v).f1 IS NULL FROM (SELECT t.id, {} AS v {}) AS r ORDER BY r.id").format(
                record, from_clause(source)
            )
        )
    assert [null for (null,) in seen] == [False, True, False, True, False, False]


def test_strange_numbers_are_those_of_an_array(connection: psycopg.Connection) -> None:
    bounded = {"scale": "center", "lower": -2, "upper": 2}
    found = connection.execute(
        "SELECT a.x, b.x FROM dpml.unpack(dpml.encode(%s, "
        "ROW('{Infinity,-Infinity,NaN,1e308,NULL,1}'::float8[], '{6,5,4,3,2,1}'::int[]))) a, "
        "dpml.unpack(dpml.encode(%s, ROW('{1,NULL,1e308,NaN,-Infinity,Infinity}'::float8[]))) b",
        (
            encoder({**PAIR, **bounded, "length": 6}),
            encoder({**ARRAY, **bounded, "length": 6}),
        ),
    ).fetchone()
    assert found is not None
    assert found[0] == found[1]
    assert np.count_nonzero(found[0]) == 5


def test_a_row_of_a_million_features(connection: psycopg.Connection) -> None:
    """Short rows and the longest one, falling: the longest costs a sort."""
    long = encoder({**PAIR, **AS_IT_IS, "length": 2**20 - 1})
    for n in (1, 2**20 - 1):
        numbers, largest = connection.execute(
            "SELECT cardinality(array_remove(u.x, 0)), (SELECT max(e) FROM unnest(u.x) e) "
            "FROM (SELECT array_agg(1.5::real) AS v, array_agg(g ORDER BY g DESC) AS i "
            "FROM generate_series(%s, 1048575) g) s, dpml.unpack(dpml.encode(%s, ROW(s.v, s.i))) u",
            (2**20 - n, long),
        ).fetchone() or (0, 0)
        assert numbers == n + 1
        assert largest == pytest.approx(1.5 / np.sqrt(2.25 * n + 1), rel=1e-4)


def test_by_name_and_in_order(connection: psycopg.Connection) -> None:
    label = {"name": "y", "kind": "binary", "positive": True}
    spec = encoder({**PAIR, **AS_IT_IS}, label=label)
    by_name = scalar(connection, "SELECT dpml.encode(%s, r) FROM rows r WHERE id = 7", spec)
    in_order = scalar(connection, "SELECT dpml.encode(%s, ROW(v, i, y)) FROM rows r WHERE id = 7", spec)
    assert by_name == in_order


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ("ROW(v)", r'no column "v"'),
        ("(SELECT s FROM (SELECT r.v, r.y) s)", r'no column "i"'),
        ("(SELECT s FROM (SELECT r.v, r.i, r.i) s)", r'several columns "i"'),
        ("ROW(v, v)", r'column "i" of type double precision\[\] cannot be read as the indices'),
        ("ROW(7, i)", r'column "v" of type integer cannot be read as the values of a sparse column'),
        ("ROW(v, 7)", r'column "i" of type integer cannot be read as the indices'),
        ("ROW(ARRAY['a'], i)", r'column "v" of type text\[\] cannot be read as the values'),
    ],
)
def test_records_that_do_not_fit(connection: psycopg.Connection, record: str, message: str) -> None:
    with pytest.raises(psycopg.Error, match=message):
        connection.execute(
            f"SELECT dpml.encode(%s, {record}) FROM rows r WHERE id = 7".encode(),
            (encoder({**PAIR, **AS_IT_IS}),),
        )


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"indices": ""}, '"indices" in .* must be the name of a column'),
        ({"indices": None}, '"first_index" in .* must be given with "indices"'),
        ({"first_index": None}, '"first_index" in .* must be given with "indices"'),
        ({"first_index": 2}, '"first_index" in .* must be 0 or 1'),
        ({"length": 0}, '"length" in .* must be an integer'),
        ({"mean": 1}, '"scale" in .* must be one that leaves 0 at 0'),
        ({"lower": 1, "upper": 2}, '"scale" in .* must be one that leaves 0 at 0'),
        ({"scale": "zero_based", "mean": None, "sd": None, "lower": -1, "upper": 2}, "leaves 0 at 0"),
        ({"scale": "center", "mean": None, "sd": None, "lower": -1, "upper": 2}, "leaves 0 at 0"),
        ({"image": {}}, "image"),
    ],
)
def test_specifications_that_are_none(
    connection: psycopg.Connection, keys: dict[str, Any], message: str
) -> None:
    column = {key: value for key, value in {**PAIR, **AS_IT_IS, **keys}.items() if value is not None}
    with pytest.raises(psycopg.Error, match=message):
        connection.execute("SELECT dpml.encode(%s, r) FROM rows r", (encoder(column),))


# pgvector's sparsevec


def sparsevec(dim: int, places: Sequence[int], numbers: Sequence[float]) -> str:
    """The bytes of a value after its length, as the text of a bytea."""
    data = struct.pack(f"=iii{len(places)}i{len(numbers)}f", dim, len(places), 0, *places, *numbers)
    return f"\\x{data.hex()}"


@pytest.fixture
def pgvector(connection: psycopg.Connection) -> Iterator[psycopg.Connection]:
    """A type of the names and the layout of pgvector's, as no test server has pgvector."""
    connection.execute("SET allow_system_table_mods = on")
    connection.execute("CREATE SCHEMA standin")
    connection.execute(
        "INSERT INTO pg_extension (oid, extname, extowner, extnamespace, extrelocatable, extversion) "
        "VALUES (999999, 'vector', 10, 'standin'::regnamespace, true, '0.8')"
    )
    connection.execute("CREATE TYPE standin.sparsevec")
    for way, argument, result, source in (
        ("in", "cstring", "standin.sparsevec", "byteain"),
        ("out", "standin.sparsevec", "cstring", "byteaout"),
    ):
        connection.execute(
            f"CREATE FUNCTION standin.sparsevec_{way}({argument}) RETURNS {result} LANGUAGE internal "
            f"IMMUTABLE STRICT PARALLEL SAFE AS '{source}'".encode()
        )
    connection.execute(
        "CREATE TYPE standin.sparsevec (INPUT = standin.sparsevec_in, OUTPUT = standin.sparsevec_out, "
        "STORAGE = external)"
    )
    connection.execute("ALTER EXTENSION vector ADD TYPE standin.sparsevec")
    yield connection
    connection.execute("ALTER EXTENSION vector DROP TYPE standin.sparsevec")
    connection.execute("DROP SCHEMA standin CASCADE")
    connection.execute("DELETE FROM pg_extension WHERE extname = 'vector'")


def test_sparsevec(pgvector: psycopg.Connection, table: str, clean: None) -> None:
    good = [sparsevec(5, [0, 4], [3, -4]), sparsevec(5, [], []), None]
    bad = [
        sparsevec(4, [0], [1]),
        sparsevec(5, [0, 5], [1, 1]),
        sparsevec(5, [-1], [1]),
        sparsevec(5, [2, 2], [1, 1]),
        sparsevec(5, [2, 1], [1]),
        "\\x",
        "\\x05000000ffffffff00000000",
        "\\x05000000ffffff7f00000000",
    ]
    pgvector.execute(f"CREATE TABLE {table} (id int, e standin.sparsevec, y bool)".encode())
    for number, value in enumerate([*good, *bad]):
        pgvector.execute(f"INSERT INTO {table} VALUES (%s, %s, true)".encode(), (number, value))
    data = DataSpec(table, YES, (Column("e", length=5),), intercept=False)
    found = encoded(pgvector, data)
    wanted = np.zeros((len(good) + len(bad), 5))
    wanted[0, [0, 4]] = 0.6, -0.8
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    (column,) = check_table(pgvector.info.dsn, data).columns
    assert (column.nulls, column.misplaced) == (1, len(bad))
    name = run(pgvector, data)
    shown = CliRunner().invoke(app, ["show", name, "--dsn", pgvector.info.dsn])
    assert "e[5]" in shown.stdout
    refusal = CliRunner().invoke(app, ["export", name, "--format", "sql", "--dsn", pgvector.info.dsn])
    assert "sparsevec" in refusal.stderr
    template = CliRunner().invoke(app, ["inspect", table, "--label", "y", "--dsn", pgvector.info.dsn])
    assert "[columns.e]\n# standin.sparsevec\nlength = " in template.stdout
    refused(pgvector, DataSpec(table, YES, (Column("e"),)), "needs length")
    refused(
        pgvector,
        DataSpec(table, YES, (Column("e", indices="id", first_index=0, length=5),)),
        "has its own indices",
    )
    with pytest.raises(psycopg.Error, match=r'column "x" of type double precision.* as a sparse vector'):
        pgvector.execute(
            "SELECT dpml.encode(%s, r) FROM rows r",
            (encoder({"name": "x", "kind": "sparse", "length": 5, **AS_IT_IS}),),
        )


# Commands


SPEC = """
table = "rows"
[label]
column = "y"
positive = true
[columns.v]
indices = "i"
first_index = 1
length = 20
"""


def dpml(database: str, *arguments: str) -> str:
    done = CliRunner().invoke(app, [*arguments, "--dsn", database])
    assert done.exit_code == 0, done.stderr
    return done.stdout


def test_commands(connection: psycopg.Connection, database: str, clean: None, tmp_path: Path) -> None:
    spec = tmp_path / "rows.toml"
    spec.write_text(SPEC)
    assert "as the spec says" in dpml(database, "check", str(spec))
    trained = dpml(database, "train", str(spec), "--epsilon", "5", "--name", "m", "--format", "json")
    assert json.loads(trained)["features"] is None
    assert len(json.loads(trained)["weights"]) == D + 1
    assert scalar(connection, "SELECT training ->> 'features' FROM dpml.models") is None
    assert "v[1]" in dpml(database, "show", "m")
    assert "rows" in dpml(database, "evaluate", "m", "--table", "rows", "--public")
    expression = dpml(database, "export", "m", "--format", "sql")
    connection.execute("CREATE TABLE odd (v float8[], i int[], y bool)")
    with connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO odd VALUES (%s, %s, true)",
            [(v, i) for v, i in BAD.values() if i is None or "92" not in i],
        )
    for source in ("rows", "odd"):
        pairs = connection.execute(
            f"SELECT dpml.predict_value('m', t), {expression} FROM {source} t".encode()
        ).fetchall()
        found = np.array(pairs, dtype=np.float64)
        np.testing.assert_allclose(found[:, 0], found[:, 1], rtol=1e-5, atol=1e-6)
    connection.execute("DROP TABLE odd")


def test_template_of_a_pair(connection: psycopg.Connection, table: str, database: str) -> None:
    connection.execute(
        f"CREATE TABLE {table} (label float8, indices int[], values real[], word_idx bigint[], "
        "word_weights numeric[], loose int[])".encode()
    )
    template = dpml(database, "inspect", table, "--label", "label")
    assert "[columns.values]\n# real[]\n# Sparse: these numbers stand at the places in indices" in template
    assert 'indices = "indices"\nfirst_index = "FILL IN"' in template
    assert "[columns.word_weights]" in template
    assert 'indices = "word_idx"' in template
    assert "[columns.loose]" in template
    assert "[columns.indices]" not in template


def test_check_counts_bad_rows(connection: psycopg.Connection, table: str, database: str) -> None:
    connection.execute(f"CREATE TABLE {table} (v float8[], i bigint[], y bool)".encode())
    with connection.cursor() as cursor:
        cursor.executemany(f"INSERT INTO {table} VALUES (%s, %s, true)".encode(), list(BAD.values()))
    bounds = Column("v", indices="i", first_index=1, length=D, lower=-1, upper=1)
    (column,) = check_table(database, DataSpec(table, YES, (bounds,))).columns
    assert (column.nulls, column.misplaced, column.null_elements) == (2, 10, 1)
    (column,) = check_table(database, DataSpec("rows", YES, (bounds,))).columns
    assert column.misplaced == column.nulls == 0
    assert column.outside_elements == scalar(
        connection, "SELECT count(*) FROM rows WHERE EXISTS (SELECT FROM unnest(v) e WHERE abs(e) > 1)"
    )


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (Column("v", indices="nope", first_index=1, length=D), "nope"),
        (
            Column("v", indices="x", first_index=1, length=D),
            "must be an array of smallint, integer or bigint",
        ),
        (Column("y", indices="i", first_index=1, length=D), "label"),
        (Column("id", indices="i", first_index=1, length=D), "the numbers of a sparse column are an array"),
        (Column("v", indices="i", first_index=1, length=D, lower=0, upper=1), "must stay 0"),
        (
            Column("v", indices="i", first_index=1, length=D, scale="standard", mean=1, sd=1),
            "must stay 0",
        ),
    ],
)
def test_specs_that_do_not_fit(connection: psycopg.Connection, column: Column, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        run(connection, DataSpec("rows", YES, (column,)))


def test_units_of_several_rows(connection: psycopg.Connection, table: str, clean: None) -> None:
    """The rows of a unit must fit a block, however many features they have."""
    connection.execute(f"CREATE TABLE {table} AS SELECT id / 3 AS person, v, i, y FROM rows".encode())
    data = DataSpec(table, YES, (VALUES,), unit="person", max_rows_per_unit=3)
    pg_dpml.train(connection.info.dsn, data, PRIVACY, TrainSpec("dp-gd", passes=2), name="people")
    wide = Column("v", indices="i", first_index=1, length=2**20 - 1)
    refused(
        connection,
        DataSpec(table, YES, (wide,), unit="person", max_rows_per_unit=100),
        "max_rows_per_unit must be at most 64",
    )


@pytest.mark.parametrize("method", ["whitened-dp-gd", "sufficient-statistics"])
def test_methods_of_a_matrix_say_which_take_so_many_features(database: str, method: str) -> None:
    label = {"lower": 0, "upper": 1} if method == "sufficient-statistics" else {"positive": True}
    data = DataSpec("rows", Label("y", **label), (Column("v", indices="i", first_index=1, length=10**6),))
    with pytest.raises(GuaranteeError, match=r"at most 2,500 features, not 1,000,001: take method = dp-gd$"):
        pg_dpml.plan(database, data, PRIVACY, TrainSpec(method))


def test_auto_takes_a_million_features(database: str, clean: None) -> None:
    data = DataSpec("rows", YES, (Column("v", indices="i", first_index=1, length=10**6),))
    privacy = PrivacySpec(5.0, 1e-4)
    assert pg_dpml.plan(database, data, privacy, TrainSpec()).method == "dp-gd"
    result = pg_dpml.train(database, data, privacy, TrainSpec("dp-gd", passes=1), name="wide")
    assert len(result.model.weights) == 10**6 + 1


def test_predictions_and_noisy_errors(
    connection: psycopg.Connection, table: str, database: str, clean: None
) -> None:
    """The column of indices is looked for, and has to be public in its definition, too."""
    name = "nearly without noise"  # with more, a model may give all rows one class
    pg_dpml.train(
        database, DataSpec("rows", YES, (VALUES,)), PrivacySpec(100.0), TrainSpec("dp-gd"), name=name
    )
    dpml(database, "predict", name, "--table", "rows", "--id", "id", "--into", table)
    assert scalar(connection, f"SELECT count(prediction) FROM {table}") == 300
    connection.execute(
        f"CREATE VIEW scored AS SELECT id, dpml.predict('{name}', r) AS p FROM rows r".encode()
    )
    different = f"SELECT count(*) FROM scored JOIN {table} USING (id) WHERE p <> prediction"
    assert scalar(connection, different) == 0
    assert scalar(connection, "SELECT count(DISTINCT p) FROM scored") == 2
    connection.execute("DROP VIEW scored")
    assert "error" in dpml(database, "evaluate", name, "--table", "rows", "--epsilon", "1")
    connection.execute("CREATE TABLE lacking AS SELECT id, v, y FROM rows")
    with pytest.raises(SpecError, match="column i does not exist in lacking"):
        pg_dpml.evaluate(database, name, "lacking", public=True)
    connection.execute("DROP TABLE lacking")
    if connection.info.server_version >= 180000:
        connection.execute(
            "CREATE TABLE computed (v float8[], i int[] GENERATED ALWAYS AS (ARRAY[1]) VIRTUAL, y bool)"
        )
        noisy = ["evaluate", name, "--table", "computed", "--epsilon", "1", "--dsn", database]
        assert "column i, which is computed" in CliRunner().invoke(app, noisy).stderr
        with pytest.raises(GuaranteeError, match="column i is computed"):
            run(connection, DataSpec("computed", YES, (VALUES,)))
        connection.execute("DROP TABLE computed")


# svmlight files


def write(path: Path, lines: str) -> str:
    path.write_text(lines, encoding="utf-8")
    return str(path)


def test_load(connection: psycopg.Connection, table: str, database: str, tmp_path: Path) -> None:
    """Unsorted indices are sorted, comments, qid, CRLF and blank lines are no rows and no features."""
    file = write(tmp_path / "rows.svm", "# made\r\n+1 3:2 1:0.5\r\n\r\n-1 qid:7 2:1e-3 # last\n0.25\n")
    said = dpml(database, "load", file, table)
    assert connection.execute(f"SELECT * FROM {table}".encode()).fetchall() == [
        (1, 1.0, [1, 3], [0.5, 2.0]),
        (2, -1.0, [2], [0.001]),
        (3, 0.25, [], []),
    ]
    assert "NOT PRIVATE" in said
    assert (
        f"{table}: 3 rows of id, label, indices and values; largest index 3, at most 2 numbers a row" in said
    )
    assert "1 lines have a qid" in said
    assert f"Next: dpml inspect {table} --label label" in said
    assert "first_index = 1" in said
    assert "3 or more" in said
    template = dpml(database, "inspect", table, "--label", "label")
    assert 'indices = "indices"' in template
    assert "[columns.id]" not in re.sub("^#.*$", "", template, flags=re.MULTILINE)  # it is no feature


def test_load_takes_names_literally(connection: psycopg.Connection, database: str, tmp_path: Path) -> None:
    file = write(tmp_path / "rows.svm", "1 1:2\n")
    dpml(database, "load", file, '"100%s of %(it)s"')
    assert scalar(connection, 'SELECT label FROM "100%%s of %%(it)s"') == 1.0
    connection.execute('DROP TABLE "100%s of %(it)s"')


def test_load_from_0(connection: psycopg.Connection, table: str, database: str, tmp_path: Path) -> None:
    file = write(tmp_path / "rows.svm", "1 0:2 4:1\n")
    said = dpml(database, "load", file, table, "--first-index", "0", "--format", "json")
    found = json.loads(said)
    assert (found["rows"], found["largest_index"], found["first_index"]) == (1, 4, 0)
    assert scalar(connection, f"SELECT indices FROM {table}") == [0, 4]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("1 1:2\n" * 5000 + "1 0:2\n", "line 5001: index 0, .* --first-index 0 .*; nothing was loaded"),
        ("1 1:2\n1 2:x\n", "line 2: the value of index 2"),
        ("1 7:1 7:1\n", "line 1: index 7 is there twice"),
        ("", "has no rows"),
    ],
)
def test_nothing_is_half_loaded(
    connection: psycopg.Connection, database: str, tmp_path: Path, lines: str, message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        load_svmlight(database, write(tmp_path / "rows.svm", lines), "half")
    assert scalar(connection, "SELECT to_regclass('half')") is None


def test_load_names_a_new_table(connection: psycopg.Connection, database: str, tmp_path: Path) -> None:
    file = write(tmp_path / "rows.svm", "1 1:2\n")
    for name, message in (
        ("rows", "table rows exists: choose another name for TABLE, or drop it first"),
        ("no.where", "TABLE: there is no schema no"),
        ("a b", "TABLE must be the name of a new table"),
        ("dpml.x", "TABLE: schema dpml is for the extension's own tables"),
    ):
        with pytest.raises(SpecError, match=message):
            load_svmlight(database, file, name)
    said = dpml(database, "load", file, '"My rows"')
    assert "Next: dpml inspect '\"My rows\"' --label label" in said
    assert scalar(connection, 'SELECT values FROM "My rows"') == [2.0]
    connection.execute('DROP TABLE "My rows"')
    with pytest.raises(SpecError, match="--first-index must be 0 or 1, not 2"):
        load_svmlight(database, file, "other", first_index=2)


def test_load_from_standard_input(connection: psycopg.Connection, table: str, database: str) -> None:
    done = CliRunner().invoke(app, ["load", "-", table, "--dsn", database], input=b"1 1:2\n-1 2:3\n")
    assert done.exit_code == 0, done.stderr
    assert scalar(connection, f"SELECT count(*) FROM {table}") == 2


@pytest.mark.parametrize(
    ("name", "length", "epsilon", "least"), [("a9a", 123, 1.0, 0.80), ("rcv1_small", 47236, 50.0, 0.60)]
)
def test_public_files(
    connection: psycopg.Connection,
    database: str,
    clean: None,
    name: str,
    length: int,
    epsilon: float,
    least: float,
) -> None:
    """Load, train, predict, evaluate and export."""
    folder = os.environ.get("PG_DPML_DATA")
    if folder is None or not (Path(folder) / f"{name}_train.svm.gz").exists():
        pytest.skip(f"PG_DPML_DATA names no folder with {name}_train.svm.gz")
    for part in ("train", "test"):
        load_svmlight(database, str(Path(folder) / f"{name}_{part}.svm.gz"), f"{name}_{part}")
    column = Column("values", indices="indices", first_index=1, length=length)
    label = Label("label", positive=1, negative=-1)  # type: ignore[arg-type]
    data = DataSpec(f"{name}_train", label, (column,), intercept=False)
    pg_dpml.train(database, data, PrivacySpec(epsilon, 1e-6), TrainSpec("dp-gd"), name=name)
    found = pg_dpml.evaluate(database, name, f"{name}_test", public=True)
    assert found.accuracy is not None
    assert found.accuracy > least
    exported = json.loads(dpml(database, "export", name))
    assert len(exported["weights"][0]) == length
    expression = dpml(database, "export", name, "--format", "sql")
    worst = scalar(
        connection,
        f"SELECT max(abs(dpml.predict_value('{name}', t) - {expression})) "
        f"FROM (SELECT * FROM {name}_test LIMIT 200) t",
    )
    assert worst < 1e-5


def test_long_rows_among_short_ones_keep_their_place(
    connection: psycopg.Connection, database: str, table: str, clean: None
) -> None:
    """A row longer than a page is a block by itself, out of line, and the blocks stay in order."""
    connection.execute(
        f"CREATE TABLE {table} AS SELECT g % 2 = 0 AS y, s.v, s.i FROM generate_series(1, 300) g, LATERAL "
        "(SELECT array_agg(p + 0.5::float8) AS v, array_agg(p) AS i "
        "FROM generate_series(1, CASE WHEN g % 7 = 0 THEN 4000 ELSE 3 END) p) s".encode()
    )
    column = Column("v", indices="i", first_index=1, length=5000)
    with Database(database).session("REPEATABLE READ") as session:
        source = resolve(session, DataSpec(table, YES, (column,)))
        start_run(session)
        packed = pack(session, source)
        numbers = session.fetch(sql.SQL("SELECT block_no FROM {}").format(packed.blocks))
        rows = session.fetch(
            sql.SQL(
                "SELECT pg_catalog.octet_length(r.row) FROM {} AS b, dpml.rows(b.block) AS r(row)"
            ).format(packed.blocks)
        )
        Blocks(session, source, packed).drop()
    assert [number for (number,) in numbers] == list(range(packed.n_blocks))
    assert sorted(size for (size,) in rows) == [24 + 4 * 8] * 258 + [24 + 4001 * 8] * 42
    assert 43 <= packed.n_blocks <= 90


@pytest.mark.parametrize("method", ["auto", "bolt-on", "dp-sgd", "dp-scd"])
@pytest.mark.parametrize("rows", ["LIMIT 0", "LIMIT 1", "WHERE id < 4"])
def test_tiny_tables(
    connection: psycopg.Connection, table: str, database: str, clean: None, method: str, rows: str
) -> None:
    """No row, one, and rows none of which has a number in its place."""
    bad = "v" if "LIMIT" in rows else "'{1}'::float8[] AS v"
    connection.execute(f"CREATE TABLE {table} AS SELECT {bad}, i, y FROM rows {rows}".encode())
    training = TrainSpec(method)
    found = pg_dpml.train(database, DataSpec(table, YES, (VALUES,)), PRIVACY, training, name="tiny")
    assert np.isfinite(found.model.weights).all()
