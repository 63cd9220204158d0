# SPDX-License-Identifier: PostgreSQL
"""Whatever a session calls the extension's C functions with: a result or an error by name, never a signal."""

from __future__ import annotations

import itertools
import json
import struct
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psycopg
import pytest
from psycopg import errors
from psycopg.types.json import Jsonb

from helpers import replay
from helpers.sqltools import plain_spec, scalar
from pg_dpml.server.embedded import EmbeddedServer

N, D = 3, 4

# Null where none may be, out of domain, columns missing or of another type, beyond a limit, out of order,
# forged bytes.
SANE = {"22004", "22023", "42703", "42804", "42704", "54000", "54001", "55000", "XX001"}
OWN = {
    "on_shards(bigint,text,bigint[],text[],text[],double precision[])": {
        "42601",
        "42P01",
    },  # it runs a statement
    "shard_id(oid)": {"42809"},
}
"""Sane states of one function."""
REFUSED = "0A000"


def packed(form: str, starts: Sequence[bool] | None = None, n: int = N) -> bytes:
    draw = np.random.default_rng(5)
    x = draw.normal(size=(n, D)) / 4
    y = draw.choice([-1.0, 1.0], size=n)
    if form == "dense":
        return replay.pack_dense(x, y, starts)
    columns = np.tile([0, 2], n)
    return replay.pack_csr(D, 2 * np.arange(1, n + 1), columns, x[:, [0, 2]].ravel(), y, starts)


BLOCKS = {
    "dense": packed("dense"),
    "csr": packed("csr"),
    "units": packed("dense", [True, False, True]),
}


def bytes_literal(data: bytes) -> str:
    return f"'\\x{data.hex()}'::bytea"


SPEC = {
    "columns": [
        {"name": "age", "kind": "numeric", "lower": 0, "upper": 90},
        {"name": "work", "kind": "category", "levels": ["a", "b"]},
        {"name": "x", "kind": "array", "length": 4, "lower": -1, "upper": 1},
    ],
    "label": {"name": "y", "kind": "binary", "positive": "yes"},
}
RECORD = "ROW(30, 'a'::text, '{1,0.5,NULL,-1}'::float8[], 'yes'::text)"
OPTIONS = {"loss": "logistic", "step_size": 0.1}
POISSON = {**OPTIONS, "steps": 3, "sampling": 0.5}
SCD = {"loss": "logistic", "lambda": 0.1, "rows": 6}

BLOCK = bytes_literal(BLOCKS["dense"])
WEIGHTS = "'{0.1,0.2,0.3,0.4}'::float8[]"
EPOCH = f"ROW({WEIGHTS}, NULL, 7, 3, NULL)::dpml.epoch"
DUALS = f"'\\x{np.full(N, 0.25).tobytes().hex()}'::bytea"
SCD_PASS = f"ROW({WEIGHTS}, 7, 3, NULL)::dpml.scd_pass"


def json_literal(value: Any) -> str:
    return f"'{json.dumps(value)}'::jsonb"


# Units of each batch, for one block of three and for two of them.
ONE_BLOCK, TWO_BLOCKS = "'{0,2,1}'::int4[]", "'{0,4,2}'::int4[]"

# Good arguments of every function, and of the first two rows of an aggregate ({i}: 0, 1).
# Of support functions all but their state: nothing gives one to a call outside an aggregate.
CALLS: dict[str, list[str]] = {
    "require_autocommit()": [],
    "sgd_epoch(double precision[],double precision,double precision[],jsonb)": [
        WEIGHTS,
        "1.0::float8",
        WEIGHTS,
        json_literal(OPTIONS),
    ],
    "sgd_epoch(integer,bytea,epoch,jsonb)": ["{i}", BLOCK, EPOCH, json_literal(OPTIONS)],
    "sgd_allocated(integer,bytea,epoch,integer[],jsonb)": [
        "{i}",
        BLOCK,
        EPOCH,
        ONE_BLOCK,
        json_literal(OPTIONS),
    ],
    "sgd_poisson(integer,bytea,epoch,jsonb)": ["{i}", BLOCK, EPOCH, json_literal(POISSON)],
    "sgd_poisson_steps(integer,bytea,integer,epoch,jsonb)": [
        "{i} + 1",
        BLOCK,
        "5",
        EPOCH,
        json_literal({**OPTIONS, "steps": 3}),
    ],
    "scd_epoch(double precision[],double precision,double precision,double precision[],jsonb)": [
        WEIGHTS,
        "1.0::float8",
        "0.5::float8",
        WEIGHTS,
        json_literal(SCD),
    ],
    "scd_epoch(integer,bytea,bytea,scd_pass,jsonb)": ["{i}", BLOCK, DUALS, SCD_PASS, json_literal(SCD)],
    "scd_gap(bytea,bytea,double precision[],jsonb)": [BLOCK, DUALS, WEIGHTS, json_literal(SCD)],
    "duals(bytea)": [DUALS],
    "loss(double precision[],double precision,double precision[],jsonb)": [
        WEIGHTS,
        "1.0::float8",
        WEIGHTS,
        json_literal(OPTIONS),
    ],
    "loss(bytea,double precision[],jsonb)": [BLOCK, WEIGHTS, json_literal(OPTIONS)],
    "gradient(bytea,double precision[],jsonb)": [BLOCK, WEIGHTS, json_literal({"loss": "logistic"})],
    "gram(bytea)": [BLOCK],
    "gram(bytea,double precision[],jsonb)": [BLOCK, WEIGHTS, json_literal({"loss": "logistic"})],
    "pack(bytea)": [BLOCK],
    "pack(bytea,integer,integer)": [BLOCK, "2", "2147483647"],
    "encode(jsonb,record)": [json_literal(SPEC), RECORD],
    "encode(jsonb,record,boolean)": [json_literal(SPEC), RECORD, "true"],
    'number("any")': ["1.5::numeric"],
    'numbers("any",integer)': ["'{1,NULL}'::numeric[]", "2"],
    'sparse_numbers("any","any",integer,integer)': ["'{1,NULL}'::numeric[]", "'{7,2}'::int8[]", "9", "1"],
    'sparse_numbers("any",integer)': ["NULL::numeric[]", "2"],
    "rows(bytea)": [BLOCK],
    "batch_sizes(bigint,integer)": ["5::int8", "3"],
    "shard_id(oid)": ["(SELECT oid FROM pg_class WHERE relname = 'pg_toast_2619')"],
    "on_shards(bigint,text,bigint[],text[],text[],double precision[])": [
        "{i}::int8",
        "'SELECT 1 FROM #t'",
        "'{0,1}'::int8[]",
        "'{#t}'::text[]",
        "'{pg_class,pg_type}'::text[]",
        "NULL::float8[]",
    ],
    "random_key()": [],
    "poisson_steps(bytea,integer,double precision)": [BLOCK, "3", "0.5::float8"],
    "unpack(bytea)": [BLOCK],
    "whiten(bytea,double precision[],double precision)": [
        BLOCK,
        "'{2,0,0,0,0,2,0,0,0,0,2,0,0,0,0,2}'::float8[]",
        "1.0::float8",
    ],
    "whiten(bytea,double precision[],double precision,double precision)": [
        BLOCK,
        "'{0.5,0.5,0,0,0,0,1,0}'::float8[]",
        "1.0::float8",
        "2.0::float8",
    ],
    "block_capacity(text,integer,integer)": ["'csr'::text", "100", "10"],
    "predict(text,record)": ["'hostile'::text", RECORD],
    "predict_value(text,record)": ["'hostile'::text", RECORD],
    "predict_proba(text,record)": ["'hostile'::text", RECORD],
    "label(text,record)": ["'hostile'::text", RECORD],
    "module_version()": [],
}
SETS = {"rows", "poisson_steps", "unpack"}

LARGE_ARRAY = "array_fill(0.01::float8, '{100000}')"
ARRAYS = [
    "NULL::float8[]",
    "'{}'::float8[]",
    "'{{1,2},{3,4}}'::float8[]",
    "'{{1},{2},{3},{4}}'::float8[]",
    "'{1,NULL,3,4}'::float8[]",
    "array_fill(NULL::float8, '{4}')",
    "'{NaN,1,2,3}'::float8[]",
    "'{Infinity,-Infinity,0,0}'::float8[]",
    "'{1}'::float8[]",
    "'{1,2,3,4,5}'::float8[]",
    "'[0:3]={1,2,3,4}'::float8[]",
    "'[-2147483648:-2147483645]={1,2,3,4}'::float8[]",
    "'{1e308,-1e308,1e308,1e308}'::float8[]",
    "'{5e-324,0,0,0}'::float8[]",
    "array_append('{1,2,3}'::float8[], 4)",
    "array_append('{1,2,3}'::float8[], NULL)",
    LARGE_ARRAY,
    "array_fill(NULL::float8, '{100000}')",
    "array_fill(1::float8, '{300,300}')",
    *(
        f"(SELECT x FROM hostile_arrays WHERE name = '{name}')"
        for name in ("external", "compressed", "plain", "short")
    ),
]
NUMBERS = ["NULL", "'NaN'", "'Infinity'", "'-Infinity'", "0", "-1", "1e308", "-1e308", "5e-324", "0.3"]
INTEGERS = ["NULL", "0", "-1", "1", "2", "2147483647", "-2147483648"]
TEXTS = ["NULL", "''", "'dense'", "'DENSE'", "'nobody'", "repeat('x', 100000)", "E'\\u00e4\\n%s'"]
RECORDS = [
    "NULL::record",
    "ROW()",
    "ROW(1)",
    "ROW(NULL)",
    "ROW(NULL, NULL, NULL, NULL)",
    "ROW(NULL, NULL, NULL)",
    "ROW(ROW(1, 2), ROW(), ROW(NULL), 1)",
    "ROW(1, 'a'::text, '{}'::float8[], 'yes'::text)",
    "ROW(1e308, repeat('a', 100000), array_fill(1::float8, '{100000}'), repeat('yes', 10000))",
    "ROW('NaN'::numeric, 'a'::name, '{{1,2},{3,NULL}}'::numeric[], 'yes'::varchar)",
    "ROW('infinity'::date, 'a'::bpchar, '[5:8]={1,2,3,4}'::int8[], 'yes'::text)",
    "ROW('-infinity'::timestamptz, 'b'::text, '{2020-01-01,-infinity,NULL,0001-01-01}'::date[], NULL::text)",
    "ROW(1, 1::int8, '{t,f,t,f}'::bool[], 'yes'::text)",
    "ROW('9'::json, 'a'::text, '{1,2,3,4}'::float8[], 'yes'::text)",
    "ROW(1, 'a'::text, '{a,b,c,d}'::text[], 'yes'::text)",
    "ROW(1, 'a'::text, (SELECT x FROM hostile_arrays WHERE name = 'external'), 'yes'::text)",
    "(SELECT r FROM hostile_records AS r LIMIT 1)",
    "(SELECT r::hostile_domain FROM hostile_records AS r LIMIT 1)",
    "(SELECT h FROM hostile_arrays AS h WHERE name = 'external')",
    f"ROW({', '.join(['1'] * 1600)})",
]
EPOCHS = [
    "NULL::dpml.epoch",
    "ROW(NULL, NULL, NULL, NULL, NULL)::dpml.epoch",
    *(f"ROW({array}, NULL, 0, 0, NULL)::dpml.epoch" for array in ARRAYS),
    *(f"ROW({WEIGHTS}, {array}, 0, 0, {array})::dpml.epoch" for array in ARRAYS),
    *(
        f"ROW(NULL, NULL, {steps}, 0, NULL)::dpml.epoch"
        for steps in ("-1", "-9223372036854775808", "9223372036854775807", "9007199254740992", "NULL")
    ),
]

PASSES = [
    "NULL::dpml.scd_pass",
    "ROW(NULL, NULL, NULL, NULL)::dpml.scd_pass",
    *(f"ROW({array}, 0, 0, NULL)::dpml.scd_pass" for array in ARRAYS),
    *(
        f"ROW(NULL, {steps}, 0, '{{NULL}}'::bytea[])::dpml.scd_pass"
        for steps in ("-1", "-9223372036854775808", "9223372036854775807", "9007199254740992", "NULL")
    ),
    *(
        f"ROW(NULL, 0, 0, {duals})::dpml.scd_pass"
        for duals in (
            "'{}'",
            "ARRAY[''::bytea]",
            "ARRAY['\\x00'::bytea]",
            "ARRAY[ARRAY[''::bytea]]",
            "'[0:0]={a}'",
        )
    ),
]

# Every key there is: what is wrong with its value is the parser's to say.
KEYS = [
    *(
        "loss",
        "classes",
        "huber_h",
        "clip",
        "lambda",
        "radius",
        "batch_size",
        "schedule",
        "step_size",
        "exponent",
    ),
    *(
        "rows",
        "average_from",
        "features",
        "clip_rows",
        "max_rows_per_unit",
        "noise",
        "noise_scale",
        "gradient_clip",
    ),
    *("momentum", "steps", "sampling", "capped", "models", "gradient", "losses", "errors", "unit_clip"),
    *("update_clip", "sequential", "dual_noise", "exact", "any_order"),
    *("loss_clip", "columns", "intercept", "norm", "format", "label", "projection", "unknown", ""),
]
VALUES = [
    *("null", "true", "0", "-1", "1", "0.5", "3", "1e400", "-1e400", "1e-400", "2147483648", "1048577"),
    *('"x"', '"softmax"', '""', "[]", "{}", "[[[[[[]]]]]]", '{"a": {"b": [1, 2]}}', '"\\u00e4"'),
]
DOCUMENTS = [
    "NULL::jsonb",
    *(f"'{text}'::jsonb" for text in ("null", "1", '"x"', "[]", "{}", "[{}]", "true", '{"loss": null}')),
    "(repeat('[', 1000) || repeat(']', 1000))::jsonb",
    "(repeat('{\"loss\":', 1000) || '1' || repeat('}', 1000))::jsonb",
    "(SELECT jsonb_object_agg('k' || g, g) FROM generate_series(1, 100000) AS g)",
    "(SELECT jsonb_agg(g) FROM generate_series(1, 100000) AS g)",
    '\'{"loss": "logistic", "loss": 1, "loss": "squared"}\'::jsonb',
    "jsonb_build_object('loss', repeat('x', 100000))",
]


def with_key(good: str, key: str, value: str) -> str:
    """A good document with one key set."""
    return f"{good} || '{{\"{key}\": {value}}}'::jsonb"


LEVELS = "(SELECT jsonb_agg('level ' || g) FROM generate_series(1, {n}) AS g)"
SPECS = [
    f"jsonb_set({json_literal(SPEC)}, '{{columns,0,{key}}}', '{value}')"
    for key, value in itertools.product(("name", "kind", "lower", "upper", "scale", "log1p", "mean"), VALUES)
]
SPECS += [
    f"jsonb_set({json_literal(SPEC)}, '{{columns,2,{key}}}', '{value}')"
    for key, value in itertools.product(
        ("length", "image", "scale", "sd"),
        (*VALUES, '{"rows": 2, "columns": 2, "blur": 1048575, "stride": 1048576}', '{"rows": 3}'),
    )
]
SPECS += [
    f"jsonb_set({json_literal(SPEC)}, '{{columns,1,levels}}', {LEVELS.format(n=n)})"
    for n in (100_000, 1_048_577)
]
SPECS += [
    f"jsonb_set({json_literal(SPEC)}, '{{label,{key}}}', '{value}')"
    for key in ("kind", "positive", "negative", "classes")
    for value in VALUES
]
SPARSE = {
    "name": "v",
    "kind": "sparse",
    "indices": "i",
    "first_index": 1,
    "length": 4,
    "lower": -1,
    "upper": 1,
}
SPECS += [
    f"jsonb_set({json_literal({'columns': [SPARSE]})}, '{{columns,0,{key}}}', '{value}')"
    for key, value in itertools.product(("indices", "first_index", "length", "lower", "image"), VALUES)
]
SPECS += [
    # what would take hours a row, or gigabytes, if it were taken
    json_literal(
        {
            "columns": [
                {"name": "x", "kind": "array", "length": 2**20, "lower": 0, "upper": 1}
                | {"image": {"rows": 1024, "columns": 1024, "blur": 1023, "stride": 1}}
            ]
        }
    ),
    json_literal({**SPEC, "projection": {"features": 2**20 - 1}}),
    json_literal({**SPEC, "projection": {"features": 2, "seed": -1}}),
    'jsonb_build_object(\'columns\', (SELECT jsonb_agg(\'{"name": "a", "kind": "boolean"}\'::jsonb)'
    " FROM generate_series(1, 100000)))",
]


def hostile_blocks() -> list[str]:
    """Every prefix of good blocks, every bit of their headers the other way, sizes that lie, noise."""
    draw = np.random.default_rng(7)
    found = [b"", b"\0", b"\xff" * 16]
    for block in BLOCKS.values():
        found += [block[:n] for n in range(len(block))]
        found += [block + b"\0", block + b"\0" * 4, block + block]
        for bit in range(8 * 16):
            flipped = bytearray(block)
            flipped[bit // 8] ^= 1 << bit % 8
            found.append(bytes(flipped))
        for _ in range(60):
            noise = bytearray(block)
            for at in draw.integers(16, len(block), size=3):
                noise[at] = draw.choice([0, 1, 127, 128, 255])
            found.append(bytes(noise))
        head = block[:8]
        for shape in itertools.product(
            (1, 4, 2**20, 2**31 - 1, 2**32 - 1), (0, 1, 3, 2**28, 2**31 - 1, 2**32 - 1)
        ):
            found.append(head + struct.pack("=II", *shape) + block[16:])
    found += [head + draw.bytes(int(n)) for n in draw.integers(1, 300, size=30)]
    found += [packed("dense", n=0), packed("csr", n=0), packed("csr", [True] * 40, n=40)]
    stored = [
        f"(SELECT b FROM hostile_bytes WHERE name = '{name}')" for name in ("external", "compressed", "short")
    ]
    return ["NULL::bytea", *map(bytes_literal, found), *stored]


class Attempt(NamedTuple):
    function: str
    query: str


class Outcome(NamedTuple):
    function: str
    query: str
    state: str
    message: str
    seconds: float


@pytest.fixture
def hostile(connection: psycopg.Connection, server: EmbeddedServer) -> Iterator[psycopg.Connection]:
    """A connection that is still to the same process at the end, with stored values of every kind."""
    log = Path(server.log_path)
    before = log.stat().st_size
    pid = connection.info.backend_pid
    zeros = replay.pack_dense(np.zeros((2000, D)), np.ones(2000))
    many = replay.pack_dense(np.random.default_rng(1).normal(size=(2000, D)) / 9, np.ones(2000))
    connection.execute(
        "DROP TABLE IF EXISTS hostile_arrays, hostile_bytes, hostile_records CASCADE;"
        "DROP DOMAIN IF EXISTS hostile_domain;"
        "CREATE TABLE hostile_arrays (name text, x float8[]);"
        "CREATE TABLE hostile_bytes (name text, b bytea);"
        "ALTER TABLE hostile_arrays ALTER x SET STORAGE EXTERNAL; INSERT INTO hostile_arrays VALUES"
        " ('external', array_fill(0.5::float8, '{100000}')), ('short', '{1,2,3,4}');"
        "ALTER TABLE hostile_arrays ALTER x SET STORAGE MAIN; INSERT INTO hostile_arrays VALUES"
        " ('compressed', array_fill(0::float8, '{4000}'));"
        "ALTER TABLE hostile_arrays ALTER x SET STORAGE PLAIN; INSERT INTO hostile_arrays VALUES"
        " ('plain', array_fill(0.1::float8, '{500}'));"
        "CREATE TABLE hostile_records (gone int, age numeric, y text, work text, x float4[], more text);"
        "INSERT INTO hostile_records VALUES (1, 30, 'yes', 'b', '{1,2,3,4}', 'more');"
        "ALTER TABLE hostile_records DROP gone; ALTER TABLE hostile_records ADD late int DEFAULT 7;"
        "CREATE DOMAIN hostile_domain AS hostile_records"
    )
    connection.execute("INSERT INTO hostile_bytes VALUES ('short', %s)", (BLOCKS["csr"],))
    connection.execute("INSERT INTO hostile_bytes VALUES ('compressed', %s)", (zeros,))
    connection.execute("ALTER TABLE hostile_bytes ALTER b SET STORAGE EXTERNAL")
    connection.execute("INSERT INTO hostile_bytes VALUES ('external', %s)", (many,))
    connection.execute("DELETE FROM dpml.models WHERE name = 'hostile'")
    connection.execute(
        "INSERT INTO dpml.models (name, method, private, task, loss, classes, weights, n_features, encoder,"
        " privacy, training) VALUES ('hostile', 'by hand', false, 'binary', 'logistic', '{no,yes}',"
        " array_fill(0.1::float8, '{8}'), 8, %s, '{}', '{}')",
        (Jsonb(SPEC),),
    )
    yield connection
    assert scalar(connection, "SELECT pg_backend_pid()") == pid
    with log.open("rb") as lines:
        lines.seek(before)
        said = lines.read().decode(errors="replace")
    for bad in ("terminated by signal", "server process", "TRAP:", "PANIC"):
        assert bad not in said


ATTEMPT = """
DO $do$
DECLARE
	attempt record;
	started timestamptz;
	state text;
	message text;
BEGIN
	FOR attempt IN SELECT * FROM attempts ORDER BY id LOOP
		started := clock_timestamp();
		state := '00000';
		message := '';
		BEGIN
			EXECUTE attempt.query;
		EXCEPTION WHEN OTHERS THEN
			state := SQLSTATE;
			message := SQLERRM;
		END;
		INSERT INTO outcomes VALUES
			(attempt.id, state, message, extract(epoch FROM clock_timestamp() - started));
	END LOOP;
END
$do$
"""


def run(connection: psycopg.Connection, attempts: Iterable[Attempt]) -> list[Outcome]:
    """What comes of the queries, each alone: all in one round trip."""
    kept = list(attempts)
    connection.execute(
        "DROP TABLE IF EXISTS attempts, outcomes; CREATE TEMP TABLE attempts (id int, query text);"
        "CREATE TEMP TABLE outcomes (id int, state text, message text, seconds float8)"
    )
    with connection.cursor() as cursor, cursor.copy("COPY attempts FROM STDIN") as copy:
        for i, attempt in enumerate(kept):
            copy.write_row((i, attempt.query))
    connection.execute(ATTEMPT)
    rows = connection.execute("SELECT id, state, message, seconds FROM outcomes ORDER BY id").fetchall()
    assert len(rows) == len(kept)
    return [Outcome(*kept[i], state, message, seconds) for i, state, message, seconds in rows]


def call(function: str, kind: str, *rows: Sequence[str]) -> str:
    """A query that calls a function with one row of arguments, or an aggregate over several."""
    name = function.partition("(")[0]
    if kind == "f" and name in SETS:
        return f"SELECT dpml.{name}({', '.join(rows[0])}) LIMIT 500"
    if kind == "f":
        return f"SELECT dpml.{name}({', '.join(rows[0])})"
    over = " OVER ()" if kind == "w" else ""
    selects = (f"SELECT {', '.join(f'{value} AS a{i}' for i, value in enumerate(row))}" for row in rows)
    arguments = ", ".join(f"a{i}" for i in range(len(rows[0])))
    return f"SELECT dpml.{name}({arguments}){over} FROM ({' UNION ALL '.join(selects)}) AS s"


class Function(NamedTuple):
    signature: str
    kind: str  # f, a, w
    types: tuple[str, ...]
    support: bool


def functions(connection: psycopg.Connection) -> list[Function]:
    """Every function of the extension that runs C, and what it takes."""
    rows = connection.execute(
        "SELECT replace(p.oid::regprocedure::text, 'dpml.', ''), p.prokind::text,"
        " ARRAY(SELECT format_type(t, NULL) FROM unnest(p.proargtypes) AS t),"
        " EXISTS (SELECT FROM pg_aggregate AS a WHERE p.oid IN (a.aggtransfn, a.aggfinalfn, a.aggcombinefn))"
        " FROM pg_proc AS p JOIN pg_language AS l ON l.oid = p.prolang"
        " JOIN pg_depend AS d ON d.objid = p.oid AND d.classid = 'pg_proc'::regclass AND d.deptype = 'e'"
        " JOIN pg_extension AS e ON e.oid = d.refobjid AND e.extname = 'pg_dpml'"
        " WHERE l.lanname = 'c' OR p.prokind = 'a' ORDER BY 1"
    )
    return [Function(signature, kind, tuple(types), support) for signature, kind, types, support in rows]


ANYTHING = [
    *ARRAYS,
    *(f"{number}::float8" for number in NUMBERS),
    *(
        "'x'",
        "'x'::text",
        "'{}'::jsonb",
        "'{a}'::text[]",
        "'5874897-12-31'::date",
        "'{infinity,NULL}'::date[]",
    ),
    *("'1 2'::int2vector", "repeat('9', 9999)::numeric", "'(1,2)'::point", "NULL", "NULL::numeric", "now()"),
    RECORD,
]


SIZES = [
    *("NULL", "'{}'", "'{NULL}'", "'{0}'", "'{-1}'", "'{1,NULL,5}'", "'{2147483647}'", "'{{1,2},{3,4}}'"),
    *("array_fill(0, ARRAY[9999])", "array_fill(2147483647, ARRAY[99])", "'[-3:-1]={2,2,2}'"),
]


def hostile_values(type_: str, good: str) -> list[str]:
    """Bad values of a type, in the place of a good one."""
    if type_ == "jsonb":
        keyed = [with_key(good, key, value) for key, value in itertools.product(KEYS, VALUES)]
        return [*DOCUMENTS, *keyed, *(SPECS if "columns" in good else [])]
    return {
        "bytea": HOSTILE_BLOCKS,
        "double precision[]": ARRAYS,
        "double precision": [f"{number}::float8" for number in NUMBERS],
        "integer": [f"({number})::int4" for number in INTEGERS],
        "bigint": ["NULL::int8", "-1::int8", "2147483648::int8", "9223372036854775807::int8", "0::int8"],
        "integer[]": [f"{value}::int4[]" for value in SIZES],
        "bigint[]": [f"{value}::int8[]" for value in SIZES],
        "text[]": [
            "NULL::text[]",
            *(f"{value}::text[]" for value in ("'{}'", "'{NULL}'", "'{{a,b},{c,d}}'")),
        ],
        "oid": ["NULL::oid", "0::oid", "4294967295::oid", "'pg_class'::regclass::oid"],
        "boolean": ["NULL::boolean", "false"],
        "text": [f"{text}::text" for text in TEXTS],
        "record": RECORDS,
        '"any"': ANYTHING,
        "dpml.epoch": EPOCHS,
        "dpml.scd_pass": PASSES,
    }[type_]


HOSTILE_BLOCKS = hostile_blocks()


def attempts_on(function: Function) -> Iterator[Attempt]:
    """One bad argument at a time: as the only row, and of aggregates after a good row."""
    good = CALLS[function.signature]
    first, second = ([value.replace("{i}", str(i)) for value in good] for i in (0, 1))
    for at, type_ in enumerate(function.types):
        for value in hostile_values(type_, good[at]):
            yield Attempt(
                function.signature,
                call(function.signature, function.kind, [*first[:at], value, *first[at + 1 :]]),
            )
            # with all values tried on the first row, a few are enough on the second
            if function.kind == "a" and len(value) % 7 == 0:
                yield Attempt(
                    function.signature,
                    call(function.signature, function.kind, first, [*second[:at], value, *second[at + 1 :]]),
                )


def test_every_function_is_attacked(hostile: psycopg.Connection) -> None:
    named = [function for function in functions(hostile) if not function.support]
    assert {function.signature for function in named} == set(CALLS), "give good arguments of the new function"
    for function in named:
        good = [value.replace("{i}", "0") for value in CALLS[function.signature]]
        if function.signature == "require_autocommit()":  # it refuses all but calls by a procedure
            with pytest.raises(errors.InvalidTransactionTermination):
                hostile.execute(call(function.signature, function.kind, good).encode())
            continue
        hostile.execute(call(function.signature, function.kind, good).encode())
        if function.kind == "a":
            both = [
                [
                    value.replace("{i}", i).replace(ONE_BLOCK, TWO_BLOCKS)
                    for value in CALLS[function.signature]
                ]
                for i in "01"
            ]
            hostile.execute(call(function.signature, function.kind, *both).encode())


def judge(outcomes: Iterable[Outcome]) -> dict[str, int]:
    """Refuse an outcome that is neither a result nor a sane error, or took long; errors by function."""
    refused: dict[str, int] = defaultdict(int)
    for outcome in outcomes:
        assert outcome.state in SANE | OWN.get(outcome.function, set()) | {"00000"}, outcome
        assert outcome.seconds < 5, outcome
        assert outcome.state == "00000" or outcome.message, outcome
        refused[outcome.function] += outcome.state != "00000"
    return refused


@pytest.mark.slow
@pytest.mark.one_major
def test_hostile_arguments(hostile: psycopg.Connection) -> None:
    named = [function for function in functions(hostile) if not function.support]
    attempts = [attempt for function in named for attempt in attempts_on(function)]
    assert len(attempts) > 10_000
    refused = judge(run(hostile, attempts))
    assert {signature for signature, errors_ in refused.items() if errors_ > 0} == {
        signature for signature, good in CALLS.items() if good
    }


def test_support_functions_refuse_direct_calls(hostile: psycopg.Connection) -> None:
    """With any bytes for a state, and with NULL, the only value there is of type internal."""
    values = {
        "internal": ["NULL"],
        "bytea": ["NULL", *(bytes_literal(data) for data in (b"", b"\0" * 40, BLOCKS["dense"]))],
        "double precision[]": ["NULL", WEIGHTS],
        "jsonb": ["NULL", json_literal(OPTIONS)],
        "dpml.epoch": ["NULL", EPOCH],
        "dpml.scd_pass": ["NULL", SCD_PASS],
        "integer": ["NULL", "0"],
        "integer[]": ["NULL", "'{1,2}'::int4[]"],
        "double precision": ["NULL", "1"],
        "bigint": ["NULL", "1"],
        "bigint[]": ["NULL", "'{1}'::int8[]"],
        "text": ["NULL", "'SELECT 1'"],
        "text[]": ["NULL", "'{}'::text[]"],
    }
    support = [function for function in functions(hostile) if function.support]
    assert len(support) > 15
    attempts = [
        Attempt(function.signature, call(function.signature, "f", arguments))
        for function in support
        for arguments in itertools.product(*(values[type_] for type_ in function.types))
    ]
    # Some servers find no function for a NULL of type internal, not even one of their own.
    (own,) = run(hostile, [Attempt("numeric_avg", "SELECT pg_catalog.numeric_avg(NULL)")])
    refused = {REFUSED, "42883"} if own.state == "42883" else {REFUSED}
    assert {outcome.state for outcome in run(hostile, attempts)} <= refused


# Transition and combination of each kind of state that is bytes, and the arguments after the block.
STATES = {
    "gradient": ("gradient", "bytea, float8[], jsonb", f", {WEIGHTS}, {json_literal({'loss': 'logistic'})}"),
    "gram": ("gram", "bytea", ""),
    "hessian": ("gram", "bytea, float8[], jsonb", f", {WEIGHTS}, {json_literal({'loss': 'logistic'})}"),
    "scd_gap": ("scd_gap", "bytea, bytea, float8[], jsonb", f", {DUALS}, {WEIGHTS}, {json_literal(SCD)}"),
}


@pytest.mark.parametrize("kind", sorted(STATES))
def test_every_cut_and_every_bit_of_a_state(hostile: psycopg.Connection, kind: str) -> None:
    """Only an aggregate of one's own can forge a state: combined with a good one, and gone on with."""
    family, types, arguments = STATES[kind]
    hostile.execute(
        f"CREATE AGGREGATE pg_temp.state_of ({types}) (SFUNC = dpml.{kind}_transition, STYPE = bytea);"
        f"CREATE AGGREGATE pg_temp.joined (bytea) (SFUNC = dpml.{family}_combine, STYPE = bytea,"
        f" FINALFUNC = dpml.{family}_final)".encode()
    )
    good = bytes(scalar(hostile, f"SELECT pg_temp.state_of({BLOCK}{arguments})"))
    forged = [good[:n] for n in range(len(good))] + [good + b"\0" * 8]
    for bit in range(28 * 8):
        flipped = bytearray(good)
        flipped[bit // 8] ^= 1 << bit % 8
        forged.append(bytes(flipped))
    joins = (
        Attempt("join", f"SELECT pg_temp.joined(s ORDER BY i) FROM (VALUES {rows}) AS v (i, s)")
        for bytes_ in forged
        for rows in (
            f"(0, {bytes_literal(good)}), (1, {bytes_literal(bytes_)})",
            f"(0, {bytes_literal(bytes_)}), (1, {bytes_literal(good)})",
        )
    )
    steps = (
        Attempt(
            "go on",
            f"CREATE AGGREGATE pg_temp.forged ({types}) (SFUNC = dpml.{kind}_transition, STYPE = bytea,"
            f" FINALFUNC = dpml.{family}_final, INITCOND = '\\x{bytes_.hex()}');"
            f"SELECT pg_temp.forged({BLOCK}{arguments}); DROP AGGREGATE pg_temp.forged ({types})",
        )
        for bytes_ in forged
    )
    refused = judge(run(hostile, [*joins, *steps]))
    # every cut, both ways round
    assert refused["join"] >= 2 * len(good)
    assert refused["go on"] >= len(good)


FINALS = {
    "sgd_final": "sgd_epoch",
    "sgd_allocated_final": "sgd_allocated",
    "sgd_poisson_final": "sgd_poisson",
    "sgd_poisson_steps_final": "sgd_poisson_steps",
    "scd_rows_final": "scd_epoch",
    "scd_blocks_final": "scd_epoch",
    "loss_final": "loss",
    "pack_final": "pack",
}


@pytest.mark.one_major
@pytest.mark.parametrize("final", sorted(FINALS))
def test_a_state_of_another_aggregate_is_refused(hostile: psycopg.Connection, final: str) -> None:
    """A superuser can write an aggregate out of functions of several."""
    made = {
        "pack": ("bytea", "dpml.pack_transition", BLOCK),
        "loss": ("bytea, float8[], jsonb", "dpml.loss_blocks_transition", f"{BLOCK}, {WEIGHTS}, {SUMS}"),
    }
    types, transition, arguments = made["loss" if final == "pack_final" else "pack"]
    hostile.execute(
        f"CREATE AGGREGATE pg_temp.mixed ({types}) (SFUNC = {transition}, STYPE = internal,"
        f" FINALFUNC = dpml.{final})".encode()
    )
    with pytest.raises(psycopg.errors.InternalError, match=f"state is not one of dpml.{FINALS[final]}$"):
        hostile.execute(f"SELECT pg_temp.mixed({arguments})".encode())


SPREAD = json.dumps(plain_spec(D, "logistic"))

SUMS = json_literal({"loss": "logistic"})

# Name and arguments of every aggregate, over the columns (i, x, y, block) of the rows of a group.
AGGREGATES = {
    "sgd_epoch of rows": ("sgd_epoch", f"x, y, NULL::float8[], {json_literal({**OPTIONS, 'momentum': 0.5})}"),
    "sgd_epoch": ("sgd_epoch", f"i, block, NULL::dpml.epoch, {json_literal(OPTIONS)}"),
    "sgd_allocated": (
        "sgd_allocated",
        f"i, block, NULL::dpml.epoch, '{{0,1,1}}'::int4[], {json_literal(OPTIONS)}",
    ),
    "sgd_poisson": ("sgd_poisson", f"i, block, NULL::dpml.epoch, {json_literal({**POISSON, 'sampling': 1})}"),
    "sgd_poisson_steps": (
        "sgd_poisson_steps",
        f"i + 1, block, i, NULL::dpml.epoch, {json_literal({**OPTIONS, 'steps': 3})}",
    ),
    "scd_epoch of rows": ("scd_epoch", f"x, y, i / 2.0, NULL::float8[], {json_literal(SCD)}"),
    "scd_epoch": ("scd_epoch", f"i, block, NULL::bytea, NULL::dpml.scd_pass, {json_literal(SCD)}"),
    "scd_poisson": (
        "scd_epoch",
        f"i, block, NULL::bytea, NULL::dpml.scd_pass, {json_literal({**SCD, 'steps': 3, 'sampling': 1})}",
    ),
    "scd_gap": ("scd_gap", f"block, NULL::bytea, {WEIGHTS}, {json_literal(SCD)}"),
    "loss of rows": ("loss", f"x, y, {WEIGHTS}, {json_literal(OPTIONS)}"),
    "loss": ("loss", f"block, {WEIGHTS}, {json_literal(OPTIONS)}"),
    "gradient": ("gradient", f"block, {WEIGHTS}, {SUMS}"),
    "gram": ("gram", "block"),
    "hessian": ("gram", f"block, {WEIGHTS}, {SUMS}"),
    "pack": ("pack", "block"),
}


def aggregate(name: str, before: str = "", after: str = "") -> str:
    """The call, with DISTINCT before its arguments or an order after them."""
    function, arguments = AGGREGATES[name]
    return f"dpml.{function}({before}{arguments}{after})"


@pytest.fixture(scope="module")
def groups(database: str) -> str:
    """A table of 10,000 groups of two rows, in order of i inside each."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE many AS SELECT g, i, x, y, dpml.encode(%s, ROW(x, y)) AS block FROM (SELECT g, i,"
            " ARRAY[sin(g) / 2, cos(g + i) / 2, sin(2 * g) / 4, i / 2.0]::float8[] AS x,"
            " (g + i) %% 2 * 2 - 1.0::float8 AS y"
            " FROM generate_series(1, 10000) AS g, generate_series(0, 1) AS i) AS s ORDER BY i, g",
            (SPREAD,),
        )
        connection.execute("ANALYZE many")
    return database


def hashed(plan: Any) -> Iterator[dict[str, Any]]:
    """Hash aggregates of a plan."""
    if plan.get("Strategy") == "Hashed":
        yield plan
    for child in plan.get("Plans", []):
        yield from hashed(child)


@pytest.mark.one_major
@pytest.mark.parametrize("name", sorted(AGGREGATES))
def test_ten_thousand_groups_that_spill(groups: str, name: str) -> None:
    """Hashed with 64 kB of memory and sorted: the same of every group, and no memory is kept."""
    used = "SELECT sum(total_bytes) FROM pg_backend_memory_contexts"
    result = f"SELECT g, md5({aggregate(name, after='{}')}::text) AS r FROM many GROUP BY g"
    with psycopg.connect(groups, autocommit=True) as connection:
        connection.execute(
            "SET work_mem = '64kB'; SET max_parallel_workers_per_gather = 0; SET enable_sort = off"
        )
        connection.execute(f"SELECT {aggregate(name)} FROM many WHERE g = 1".encode())
        before = scalar(connection, used)
        plan = scalar(
            connection,
            f"EXPLAIN (ANALYZE, FORMAT JSON) CREATE UNLOGGED TABLE spilled AS {result.replace('{}', '')}",
        )
        (node,) = hashed(plan[0]["Plan"])
        assert node["HashAgg Batches"] > 1
        assert node["Disk Usage"] > 0
        assert scalar(connection, used) - before < 1_000_000
        connection.execute("SET enable_sort = on; SET enable_hashagg = off; SET work_mem = '64MB'")
        connection.execute(f"CREATE TEMP TABLE sorted AS {result.replace('{}', ' ORDER BY i')}".encode())
        assert scalar(connection, "SELECT count(DISTINCT g) FROM spilled") == 10_000
        assert scalar(connection, "SELECT count(DISTINCT r) FROM sorted") > 1
        assert scalar(connection, "SELECT count(*) FROM (TABLE sorted EXCEPT TABLE spilled) AS s") == 0
        connection.execute("DROP TABLE spilled")


@pytest.mark.parametrize("name", sorted(AGGREGATES))
def test_distinct_and_filter_and_no_row(groups: str, name: str) -> None:
    with psycopg.connect(groups, autocommit=True) as connection:
        function, arguments = AGGREGATES[name]
        connection.execute(
            "CREATE TEMP TABLE twice AS SELECT m.* FROM many AS m, generate_series(1, 2) WHERE g = 7;"
            f"CREATE TEMP TABLE once AS SELECT DISTINCT {arguments} FROM twice;".encode()
        )
        # DISTINCT sorts by all arguments
        distinct = scalar(connection, f"SELECT {aggregate(name, 'DISTINCT ')} FROM twice")
        n = scalar(
            connection, "SELECT count(*) FROM pg_attribute WHERE attrelid = 'once'::regclass AND attnum > 0"
        )
        listed = ", ".join(f"c{i}" for i in range(n))
        query = f"SELECT dpml.{function}({listed} ORDER BY {listed}) FROM once AS o ({listed})"
        assert scalar(connection, query) == distinct
        whole = f"SELECT {aggregate(name, after=' ORDER BY i')}"
        assert scalar(connection, f"{whole} FROM many WHERE g = 7") == scalar(
            connection, f"{whole} FILTER (WHERE g = 7) FROM many WHERE g < 20"
        )
        nothing = scalar(connection, f"{whole} FROM many WHERE false")
        assert scalar(connection, f"{whole} FILTER (WHERE false) FROM many WHERE g < 9") == nothing


@pytest.mark.parametrize("name", ["gradient", "gram", "hessian", "scd_gap"])
def test_workers_without_a_row(groups: str, name: str) -> None:
    """One row, or none, for all workers: the others have a state of NULL to combine."""
    with psycopg.connect(groups, autocommit=True) as connection:
        wanted = {
            where: scalar(connection, f"SELECT {aggregate(name)}::text FROM many WHERE {where}")
            for where in ("g + 0 > 9999 AND i = 1", "g + 0 < 0")
        }
        connection.execute(
            "SET max_parallel_workers_per_gather = 4; SET min_parallel_table_scan_size = 0;"
            "SET parallel_setup_cost = 0; ALTER TABLE many SET (parallel_workers = 4)"
        )
        for leader in ("on", "off"):
            connection.execute(f"SET parallel_leader_participation = {leader}".encode())
            for where, result in wanted.items():
                query = f"SELECT {aggregate(name)}::text FROM many WHERE {where}"
                plan = json.dumps(scalar(connection, f"EXPLAIN (ANALYZE, FORMAT JSON) {query}"))
                assert '"Partial Mode": "Partial"' in plan
                assert '"Workers Launched": 0' not in plan
                assert scalar(connection, query) == result


@pytest.mark.one_major
@pytest.mark.parametrize(
    "name", sorted(set(AGGREGATES) - {"pack", "sgd_poisson", "scd_poisson", "scd_epoch", "scd_epoch of rows"})
)
def test_memory_does_not_grow_with_rows(database: str, name: str) -> None:
    """60,000 rows that have to be unpacked; what keeps all rows is left out."""
    x = np.zeros((200, D))
    with psycopg.connect(database, autocommit=True) as connection:
        # The code that PostgreSQL compiles takes memory of its own.
        connection.execute("SET jit = off; CREATE TEMP TABLE source (x float8[], y float8, block bytea)")
        connection.execute(
            "INSERT INTO source SELECT array_fill(0.1::float8, '{4}'), 1, %s FROM generate_series(1, 20)",
            (replay.pack_dense(x, np.ones(200)),),
        )
        assert scalar(connection, "SELECT max(pg_column_size(block)) FROM source") < 1000
        peak = Path(f"/proc/{connection.info.backend_pid}/status")
        if not peak.exists():
            pytest.skip("the peak of a process's memory is read from /proc")
        query = (
            f"SELECT {aggregate(name).replace('i + 1', '1')} FROM"
            " (SELECT (row_number() OVER ())::int - 1 AS i, s.*"
            " FROM source AS s, generate_series(1, %s)) AS r"
        )

        def run_over(copies: int) -> None:
            of_all = query.replace("{0,1,1}", f"{{0,1,{4000 * copies - 1}}}")
            connection.execute(of_all.encode(), (copies,))

        run_over(1)
        before = _peak(peak)
        run_over(3000)
        assert _peak(peak) - before < 30_000


def _peak(status: Path) -> int:
    """Most memory that a process ever had, in kB."""
    return int(next(line for line in status.read_text().splitlines() if line.startswith("VmHWM")).split()[1])


WIDE = 2000
ROW_OF_ONE = f"array_fill(0.01::float8, '{{{WIDE}}}')"
MANY = "array_fill(0.01::float8, '{2000000}')"
SOFTMAX = {"loss": "softmax", "classes": 1000}


def steps(**more: Any) -> str:
    return json_literal({**SOFTMAX, "step_size": 1, **more})


NOISY = {**OPTIONS, "noise": "k-norm", "noise_scale": 1, "momentum": 0.5}
IMAGE: dict[str, Any] = {"name": "f1", "kind": "array", "length": 2**20 - 1, "lower": 0, "upper": 1}
IMAGE["image"] = {"rows": 1023, "columns": 1025, "blur": 5, "stride": 1}
PROJECTED = {
    "columns": [{"name": "f1", "kind": "array", "length": 1024, "lower": 0, "upper": 1}],
    "projection": {"features": 2**16},
}
BLOCKS_OF = "wide, generate_series(1, 100000000) WHERE name ="

# What would take many seconds, each alone: what is called, and over what.
LONG = {
    "sgd_epoch": (f"dpml.sgd_epoch(0, block, NULL, {steps()})", "wide WHERE name = 'rows'"),
    "units": (f"dpml.sgd_epoch(0, block, NULL, {steps(max_rows_per_unit=2000)})", "wide WHERE name = 'unit'"),
    "noise": (f"dpml.sgd_epoch(0, block, NULL, {json_literal(NOISY)})", "wide WHERE name = 'sparse'"),
    "sgd_epoch of rows": (
        f"dpml.sgd_epoch({ROW_OF_ONE}, 1, NULL, {steps()})",
        "generate_series(1, 100000)",
    ),
    "rows before the first vector": (
        f"dpml.sgd_epoch(CASE g WHEN 4000 THEN {ROW_OF_ONE} END, 1, NULL, {steps()})",
        "generate_series(1, 4000) AS g",
    ),
    "scd_epoch of a unit": (
        f"dpml.scd_epoch(0, block, NULL, NULL, "
        f"{json_literal({**SCD, 'max_rows_per_unit': 2000, 'sampling': 1, 'steps': 10**6})})",
        "wide WHERE name = 'unit'",
    ),
    "scd_gap": (f"dpml.scd_gap(block, NULL, {ROW_OF_ONE}, {json_literal(SCD)})", f"{BLOCKS_OF} 'rows'"),
    "loss": (f"dpml.loss(block, {MANY}, {json_literal(SOFTMAX)})", "wide WHERE name = 'rows'"),
    "loss of rows": (
        f"dpml.loss({ROW_OF_ONE}, 1, w, {json_literal(SOFTMAX)})",
        f"generate_series(1, 100000), (SELECT {MANY} AS w) AS s",
    ),
    "sgd_poisson of one unit": (
        f"dpml.sgd_poisson(0, block, NULL, {steps(max_rows_per_unit=2000, steps=3, sampling=1)})",
        "wide WHERE name = 'unit'",
    ),
    "sgd_poisson_steps": (
        f"dpml.sgd_poisson_steps(1, block, NULL, NULL, {steps(steps=3)})",
        "wide WHERE name = 'rows'",
    ),
    "gradient of one unit": (
        f"dpml.gradient(block, {MANY}, "
        f"{json_literal({**SOFTMAX, 'unit_clip': 1, 'max_rows_per_unit': 2000})})",
        "wide WHERE name = 'unit'",
    ),
    "hessian": (f"dpml.gram(block, {ROW_OF_ONE}, {SUMS})", f"{BLOCKS_OF} 'rows'"),
    "pack": ("length(dpml.pack(block))", f"{BLOCKS_OF} 'row'"),
    "pack window": ("dpml.pack(block, 2147483647) OVER ()", f"{BLOCKS_OF} 'row'"),
    "rows": ("count(*)", "wide, generate_series(1, 1000000), dpml.rows(block) WHERE name = 'rows'"),
    "unpack": ("count(*)", "wide, generate_series(1, 1000000), dpml.unpack(block) WHERE name = 'rows'"),
    "encode": (f"count(dpml.encode({json_literal(SPEC)}, {RECORD}))", "generate_series(1, 100000000)"),
    "images": (
        f"count(dpml.encode({json_literal({'columns': [IMAGE]})}, ROW(x)))",
        "generate_series(1, 1000), (SELECT array_fill(0.5::float8, '{1048575}') AS x) AS s",
    ),
    "projection": (
        f"count(dpml.encode({json_literal(PROJECTED)}, ROW(x)))",
        "generate_series(1, 100000), (SELECT array_fill(0.5::float8, '{1024}') AS x) AS s",
    ),
    "predict": (f"count(dpml.predict('hostile', {RECORD}))", "generate_series(1, 100000000)"),
}


@pytest.fixture(scope="module")
def wide(database: str) -> str:
    """Blocks of one row, of 2000 rows and features, of one unit of so many, and of a million features."""
    x = np.zeros((WIDE, WIDE), dtype=np.float32)
    x[:] = np.random.default_rng(3).normal(size=WIDE) / 100
    y = np.ones(WIDE)
    blocks = {
        "row": BLOCKS["csr"],
        "rows": replay.pack_dense(x, y),
        "unit": replay.pack_dense(x, y, [True] + [False] * (WIDE - 1)),
        "sparse": replay.pack_csr(2**20, np.arange(1, 1001), np.arange(1000), np.ones(1000), np.ones(1000)),
    }
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE wide (name text, block bytea)")
        connection.execute("ALTER TABLE wide ALTER block SET STORAGE EXTERNAL")
        for name, block in blocks.items():
            connection.execute("INSERT INTO wide VALUES (%s, %s)", (name, block))
    return database


@pytest.mark.one_major
@pytest.mark.parametrize("name", sorted(LONG))
def test_every_loop_is_cancelled_within_a_second(wide: str, hostile: psycopg.Connection, name: str) -> None:
    called, source = LONG[name]
    hostile.execute("SET statement_timeout = 200")
    start = time.monotonic()
    with pytest.raises(errors.QueryCanceled):
        hostile.execute(f"SELECT {called} FROM {source}".encode())
    assert time.monotonic() - start < 1.2
    hostile.execute("RESET statement_timeout")
