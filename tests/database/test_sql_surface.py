# SPDX-License-Identifier: PostgreSQL
"""Errors, order of blocks, number of passes, privileges, documentation of the extension."""

from __future__ import annotations

import json
import uuid
from typing import Any

import psycopg
import pytest
from psycopg import errors

from helpers.sqltools import load_blocks, load_rows, make_rows, plain_spec, scalar

GOOD = '{"loss": "logistic", "step_size": 0.1}'
POISSON = '{"loss": "logistic", "step_size": 0.1, "steps": 3, "sampling": 0.1}'
SUMS = '{"loss": "logistic"}'
ROW_FORM = "SELECT dpml.sgd_epoch(x, y, NULL, %s::jsonb ORDER BY i) FROM rows"
BLOCK_FORM = "SELECT dpml.sgd_epoch(block_no, block, NULL, %s::jsonb ORDER BY block_no) FROM blocks"


@pytest.fixture
def tables(connection: psycopg.Connection) -> psycopg.Connection:
    x, y = make_rows(50, 4, "logistic")
    load_rows(connection, x, y)
    load_blocks(connection, plain_spec(4, "logistic"), 10)
    return connection


def refused(connection: psycopg.Connection, query: str, *values: Any) -> str:
    """Message of the error that a query gives."""
    with pytest.raises(psycopg.Error) as caught:
        connection.execute(query.encode(), values)
    return str(caught.value.diag.message_primary)


POSITIVE = "a number > 0"
SCALE = "a number from 1e-270 to 1e270"
COUNT = "an integer from 1 to 2147483647"
BAD_OPTIONS: list[tuple[dict[str, Any], str, str]] = [
    ({"loss": None}, "loss", "one of"),
    ({"loss": "perceptron"}, "loss", "one of"),
    ({"loss": 1}, "loss", "one of"),
    ({"loss": "softmax"}, "classes", "given with the loss"),
    ({"loss": "softmax", "classes": 1}, "classes", "an integer from 2 to 1048576"),
    ({"loss": "softmax", "classes": 2.5}, "classes", "an integer from 2 to 1048576"),
    ({"loss": "softmax", "classes": "3"}, "classes", "an integer from 2 to 1048576"),
    ({"loss": "squared", "classes": 2}, "classes", "absent"),
    ({"loss": "softmax", "classes": 3, "clip": 1}, "clip", "absent"),
    ({"huber_h": 0}, "huber_h", SCALE),
    ({"huber_h": "1"}, "huber_h", SCALE),
    ({"huber_h": 1e-300}, "huber_h", SCALE),
    ({"clip": 0}, "clip", POSITIVE),
    ({"clip": True}, "clip", POSITIVE),
    ({"lambda": -1e-9}, "lambda", "a number >= 0"),
    ({"lambda": [1]}, "lambda", "a number >= 0"),
    ({"radius": 0}, "radius", POSITIVE),
    ({"radius": {}}, "radius", POSITIVE),
    ({"batch_size": 0}, "batch_size", COUNT),
    ({"batch_size": 1.5}, "batch_size", COUNT),
    ({"batch_size": 2**31}, "batch_size", COUNT),
    ({"batch_size": "1"}, "batch_size", COUNT),
    ({"schedule": "fast"}, "schedule", "one of"),
    ({"schedule": 3}, "schedule", "one of"),
    ({"schedule": "strongly_convex"}, "lambda", "> 0"),
    ({"step_size": 0}, "step_size", POSITIVE),
    ({"step_size": "big"}, "step_size", POSITIVE),
    ({"step_size": None}, "rows", "given"),
    ({"schedule": "decreasing"}, "rows", "given"),
    ({"schedule": "sqrt_decreasing"}, "rows", "given"),
    ({"exponent": 1.1}, "exponent", "a number from 0 to 1"),
    ({"exponent": -0.1}, "exponent", "a number from 0 to 1"),
    ({"exponent": False}, "exponent", "a number from 0 to 1"),
    ({"rows": -1}, "rows", "an integer >= 0"),
    ({"rows": 1.5}, "rows", "an integer >= 0"),
    ({"rows": "n"}, "rows", "an integer >= 0"),
    ({"average_from": 0}, "average_from", "an integer >= 1"),
    ({"average_from": "1"}, "average_from", "an integer >= 1"),
    ({"features": 0}, "features", "an integer from 1 to 1048576"),
    ({"features": 2**20 + 1}, "features", "an integer from 1 to 1048576"),
    ({"features": "4"}, "features", "an integer from 1 to 1048576"),
    ({"clip_rows": 1}, "clip_rows", "true or false"),
    ({"noise": "laplace"}, "noise", 'one of "none", "gaussian", "k-norm"'),
    ({"noise": 1}, "noise", "one of"),
    ({"noise": "gaussian"}, "noise_scale", "given with"),
    ({"noise_scale": 1}, "noise", '"gaussian" or "k-norm" with'),
    ({"noise": "k-norm", "noise_scale": 0}, "noise_scale", "a number from 1e-270 to 1e270"),
    ({"noise": "k-norm", "noise_scale": "1"}, "noise_scale", "a number from 1e-270 to 1e270"),
    ({"gradient_clip": 0}, "gradient_clip", POSITIVE),
    ({"momentum": 1}, "momentum", "a number >= 0 and < 1"),
    ({"momentum": -0.1}, "momentum", "a number >= 0 and < 1"),
    ({"steps": 0}, "steps", COUNT),
    ({"steps": 5}, "steps", "absent in dpml.sgd_epoch"),
    ({"sampling": 2}, "sampling", "a number > 0 and <= 1"),
    ({"sampling": 0.5}, "sampling", "absent in dpml.sgd_epoch"),
]


@pytest.mark.dealt
@pytest.mark.parametrize(("change", "key", "domain"), BAD_OPTIONS, ids=str)
def test_options_are_refused_by_name(
    tables: psycopg.Connection, change: dict[str, Any], key: str, domain: str
) -> None:
    options = json.dumps({**json.loads(GOOD), **change})
    for query in (ROW_FORM, BLOCK_FORM):
        message = refused(tables, query, options)
        assert message.startswith(f'"{key}" in options must be {domain}')
    about_steps = domain in ("given", "> 0", "absent in dpml.sgd_epoch")
    query = "SELECT dpml.loss(block, '{0,0,0,0,0,0,0,0,0,0,0,0}', %s::jsonb) FROM blocks"
    if not about_steps:
        assert refused(tables, query, options) == message


POISSON_FORM = "SELECT dpml.sgd_poisson(block_no, block, NULL, %s::jsonb ORDER BY block_no) FROM blocks"
POISSON_STEPS_FORM = "SELECT dpml.sgd_poisson_steps(1, block, NULL, NULL, %s::jsonb) FROM blocks"
HESSIAN_FORM = "SELECT dpml.gram(block, '{0,0,0,0}', %s::jsonb) FROM blocks"


@pytest.mark.parametrize(
    ("query", "options", "needed_by"),
    [
        (ROW_FORM, GOOD, "SGD"),
        (BLOCK_FORM, GOOD, "SGD"),
        (POISSON_FORM, POISSON, "SGD"),
        (POISSON_STEPS_FORM, POISSON, "SGD"),
        (HESSIAN_FORM, SUMS, "a Hessian"),
    ],
)
def test_a_loss_that_is_not_smooth_is_refused(
    tables: psycopg.Connection, query: str, options: str, needed_by: str
) -> None:
    """The hinge has no gradient at its corner; the aggregates that need none take it."""
    assert refused(tables, query, options.replace("logistic", "hinge")) == (
        f'"loss" in options must be smooth for {needed_by}, and "hinge" is not:'
        " use dpml.scd_epoch, or another loss"
    )


def test_options_that_are_no_object(tables: psycopg.Connection) -> None:
    for options in ("1", "[]", "null", '"logistic"'):
        assert refused(tables, ROW_FORM, options) == "options must be a JSON object"
    for query in (ROW_FORM, BLOCK_FORM, "SELECT dpml.loss(x, y, '{0}', %s::jsonb) FROM rows"):
        assert refused(tables, query, None) == "options must not be null"


def test_unknown_key(tables: psycopg.Connection) -> None:
    with pytest.raises(errors.InvalidParameterValue) as caught:
        tables.execute(ROW_FORM.encode(), ('{"loss": "logistic", "lamda": 1}',))
    assert caught.value.diag.message_primary == 'unknown key "lamda" in options'
    assert '"lambda", "radius", "batch_size"' in str(caught.value.diag.message_hint)


def test_huge_numbers_are_refused_not_overflowed(tables: psycopg.Connection) -> None:
    for number in ("1e400", "-1e400", "1e99999"):
        assert "in options must be" in refused(
            tables, ROW_FORM, f'{{"loss": "logistic", "step_size": {number}}}'
        )


def test_null_means_absent(tables: psycopg.Connection) -> None:
    options = '{"loss": "logistic", "step_size": 0.1, "radius": null, "average_from": null, "clip": null}'
    assert scalar(tables, ROW_FORM, options) == scalar(tables, ROW_FORM, GOOD)


def test_options_must_not_vary(tables: psycopg.Connection) -> None:
    varying = "jsonb_build_object('loss', 'logistic', 'step_size', i + 1)"
    query = f"SELECT dpml.sgd_epoch(x, y, NULL, {varying}) FROM rows"
    assert refused(tables, query) == "options must be the same for all rows of a pass"
    query = f"SELECT dpml.loss(x, y, '{{0,0,0,0}}', {varying}) FROM rows"
    assert refused(tables, query) == "options must be the same for all rows of a pass"


@pytest.mark.parametrize(
    ("rows", "missing"),
    [
        ("SELECT * FROM blocks ORDER BY block_no DESC", 0),
        ("SELECT * FROM blocks WHERE block_no <> 2 ORDER BY 1", 2),
        ("SELECT * FROM blocks UNION ALL SELECT * FROM blocks ORDER BY 1", 1),
        ("SELECT nullif(block_no, 3) AS block_no, block FROM blocks ORDER BY blocks.block_no", 3),
        ("SELECT block_no + 1 AS block_no, block FROM blocks ORDER BY 1", 0),
    ],
)
def test_block_order_is_enforced(tables: psycopg.Connection, rows: str, missing: int) -> None:
    for aggregate, options in (("sgd_epoch", GOOD), ("sgd_poisson", POISSON)):
        query = f"SELECT dpml.{aggregate}(block_no, block, NULL, %s::jsonb) FROM ({rows}) s"
        assert refused(tables, query, options) == f"block {missing} is missing or out of order"


def test_block_arguments(tables: psycopg.Connection) -> None:
    start = "SELECT dpml.sgd_epoch(block_no, block, %s, '{GOOD}') FROM blocks".replace("{GOOD}", GOOD)
    assert (
        refused(tables, start % "ROW('{1,2,3}', NULL, 0, 0, NULL)")
        == "the weights in start must have 4 elements (1 x 4), not 3"
    )
    assert (
        refused(tables, start % "ROW('{1,2,NULL,4}', NULL, 0, 0, NULL)")
        == "the weights in start must not contain nulls"
    )
    assert "one-dimensional" in refused(tables, start % "ROW('{{1,2},{3,4}}', NULL, 0, 0, NULL)")
    assert "steps in start" in refused(tables, start % "ROW(NULL, NULL, -1, 0, NULL)")
    assert "average in start must have 4" in refused(tables, start % "ROW(NULL, '{1}', 1, 0, NULL)")
    averaged = start.replace('"step_size"', '"average_from": 2, "step_size"')
    assert "start must have an average" in refused(tables, averaged % "ROW('{1,2,3,4}', NULL, 2, 0, NULL)")
    assert '"features" in options must be 4' in refused(
        tables, BLOCK_FORM, GOOD.replace("{", '{"features": 5, ')
    )
    assert "block must not be null" in refused(
        tables, "SELECT dpml.sgd_epoch(0, NULL, NULL, %s::jsonb)", GOOD
    )
    tables.execute(
        "CREATE TEMP TABLE mixed AS SELECT * FROM blocks WHERE block_no = 0 UNION ALL"
        ' SELECT 1, dpml.encode(\'{"columns": [{"name": "a", "kind": "boolean"}]}\', ROW(true))'
    )
    query = "SELECT dpml.sgd_epoch(block_no, block, NULL, %s::jsonb ORDER BY block_no) FROM mixed"
    assert refused(tables, query, GOOD) == "block 1 has 2 features, the first one has 4"
    poisson = query.replace("sgd_epoch", "sgd_poisson")
    assert refused(tables, poisson, POISSON) == "block 1 has 2 features, the first one has 4"
    assert "same format" in refused(tables, "SELECT dpml.pack(block) FROM mixed")
    assert "block has 4 features, the weights have 2" in refused(
        tables, "SELECT dpml.loss(block, '{1,2}', %s::jsonb) FROM blocks", GOOD
    )


def test_row_arguments(tables: psycopg.Connection) -> None:
    query = "SELECT dpml.sgd_epoch(x, y, '{1,2,3,4}', %s::jsonb) FROM rows"
    assert "start must have 3 times" in refused(
        tables, query, '{"loss": "softmax", "classes": 3, "step_size": 1}'
    )
    assert '"features" in options must be 4' in refused(tables, query, GOOD.replace("{", '{"features": 3, '))
    query = "SELECT dpml.loss(x, y, NULL, %s::jsonb) FROM rows"
    assert refused(tables, query, GOOD) == "weights must not be null"
    big = '{"loss": "softmax", "classes": 1048576, "features": 1048576, "step_size": 1}'
    assert "does not fit a float8[]" in refused(tables, ROW_FORM, big)


@pytest.mark.parametrize(
    "call",
    [
        f"dpml.sgd_epoch(x, y, NULL, '{GOOD}')",
        f"dpml.sgd_epoch(block_no, block, NULL, '{GOOD}')",
        f"dpml.sgd_allocated(block_no, block, NULL, '{{9}}', '{GOOD}')",
        f"dpml.sgd_poisson(block_no, block, NULL, '{POISSON}')",
        f"dpml.sgd_poisson_steps(1, block, NULL, NULL, '{POISSON}')",
        f"dpml.loss(x, y, '{{0,0,0,0}}', '{GOOD}')",
        f"dpml.loss(block, '{{0,0,0,0}}', '{GOOD}')",
        f"dpml.gradient(block, '{{0,0,0,0}}', '{SUMS}')",
        "dpml.gram(block)",
        f"dpml.gram(block, '{{0,0,0,0}}', '{SUMS}')",
        "dpml.pack(block)",
    ],
)
def test_window_use_is_refused(tables: psycopg.Connection, call: str) -> None:
    with pytest.raises(errors.FeatureNotSupported):
        tables.execute(f"SELECT {call} OVER (ORDER BY i) FROM rows JOIN blocks ON i = block_no".encode())


def test_one_statement_is_one_pass(tables: psycopg.Connection) -> None:
    """The documented shape runs the aggregate once; (agg(...)).* would run it once a column."""
    tables.execute("CREATE TEMP SEQUENCE seen")
    tables.execute(
        "SELECT (r).* FROM (SELECT dpml.sgd_epoch(x, y + 0 * nextval('seen'), NULL, %s::jsonb"
        " ORDER BY random()) AS r FROM rows) s",
        (GOOD,),
    )
    assert scalar(tables, "SELECT last_value FROM seen") == 50
    tables.execute(
        "SELECT (r).* FROM (SELECT dpml.sgd_epoch((block_no + 0 * nextval('seen'))::int, block, NULL,"
        " %s::jsonb) AS r FROM blocks) s",
        (GOOD,),
    )
    assert scalar(tables, "SELECT last_value FROM seen") == 55


def test_order_dependent_aggregates_stay_serial(tables: psycopg.Connection) -> None:
    tables.execute("SET max_parallel_workers_per_gather = 2; SET min_parallel_table_scan_size = 0")
    tables.execute("SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0")
    tables.execute(
        "CREATE TABLE many AS SELECT g AS i, ARRAY[1.0::float8] AS x, 1.0::float8 AS y"
        " FROM generate_series(1, 9999) g"
    )
    plan = scalar(tables, "EXPLAIN (FORMAT JSON) SELECT count(*) FROM many")
    assert "Gather" in json.dumps(plan)
    for call in (
        f"dpml.sgd_epoch(x, y, NULL, '{GOOD}')",
        f"dpml.sgd_allocated(i, NULL, NULL, NULL, '{GOOD}')",
        f"dpml.sgd_poisson(i, NULL, NULL, '{POISSON}')",
        f"dpml.sgd_poisson_steps(i, NULL, NULL, NULL, '{POISSON}')",
        "dpml.pack(NULL)",
    ):
        plan = scalar(tables, f"EXPLAIN (FORMAT JSON) SELECT {call} FROM many")
        assert "Gather" not in json.dumps(plan)
    tables.execute("DROP TABLE many")


@pytest.fixture
def plain_role(tables: psycopg.Connection) -> str:
    """A fresh role that may read the tables and create none."""
    name = f"dpml_test_{uuid.uuid4().hex}"
    tables.execute(f"CREATE ROLE {name}; GRANT SELECT ON rows, blocks TO {name}".encode())
    return name


def run_as(connection: psycopg.Connection, role: str, query: str) -> None:
    connection.execute(f"SET ROLE {role}".encode())
    try:
        connection.execute(query.encode())
    finally:
        connection.execute("RESET ROLE")


CURATOR_CALLS = [
    f"SELECT dpml.sgd_epoch(x, y, NULL, '{GOOD}') FROM rows",
    f"SELECT dpml.sgd_epoch(block_no, block, NULL, '{GOOD}' ORDER BY block_no) FROM blocks",
    f"SELECT dpml.sgd_allocated(block_no, block, NULL, '{{50}}', '{GOOD}' ORDER BY block_no) FROM blocks",
    f"SELECT dpml.sgd_poisson(block_no, block, NULL, '{POISSON}' ORDER BY block_no) FROM blocks",
    "SELECT dpml.batch_sizes(9, 2)",
    "SELECT dpml.random_key()",
    f"SELECT dpml.sgd_poisson_steps(1, block, NULL, NULL, '{POISSON}') FROM blocks",
    "SELECT dpml.poisson_steps(block, 3, 0.5) FROM blocks",
    f"SELECT dpml.loss(x, y, '{{0,0,0,0}}', '{GOOD}') FROM rows",
    f"SELECT dpml.loss(block, '{{0,0,0,0}}', '{GOOD}') FROM blocks",
    f"SELECT dpml.gradient(block, '{{0,0,0,0}}', '{SUMS}') FROM blocks",
    "SELECT dpml.gram(block) FROM blocks",
    f"SELECT dpml.gram(block, '{{0,0,0,0}}', '{SUMS}') FROM blocks",
    "SELECT dpml.whiten(block, '{1,0,0,0,0,1,0,0,0,0,1,0,0,0,0,1}', 1) FROM blocks",
    "SELECT dpml.whiten(block, '{1,0,0,0}', 1, 2) FROM blocks",
    "SELECT dpml.pack(block) FROM blocks",
    "SELECT dpml.pack(block, 10) OVER () FROM blocks",
    "SELECT dpml.rows(block) FROM blocks",
    "SELECT * FROM blocks, dpml.unpack(block)",
    """SELECT dpml.encode('{"columns": [{"name": "y", "kind": "boolean"}]}', rows) FROM rows""",
    "SELECT * FROM dpml.ledger",
    "CREATE TABLE dpml_work.scratch (w float8[])",
]


def test_privileges(tables: psycopg.Connection, plain_role: str) -> None:
    for query in CURATOR_CALLS:
        with pytest.raises(errors.InsufficientPrivilege):
            run_as(tables, plain_role, query)
    run_as(tables, plain_role, "SELECT dpml.block_capacity('dense', 50, 50)")
    predict = "SELECT dpml.predict('none', rows) FROM rows"
    with pytest.raises(errors.InsufficientPrivilege):
        run_as(tables, plain_role, predict)
    tables.execute(f"GRANT dpml_analyst TO {plain_role}".encode())
    with pytest.raises(errors.UndefinedObject):
        run_as(tables, plain_role, predict)
    with pytest.raises(errors.InsufficientPrivilege):
        run_as(tables, plain_role, CURATOR_CALLS[0])
    tables.execute(f"GRANT dpml_curator TO {plain_role}".encode())
    for query in CURATOR_CALLS:
        run_as(tables, plain_role, query)
    with pytest.raises(errors.InsufficientPrivilege):
        run_as(tables, plain_role, "DELETE FROM dpml.ledger")
    tables.execute(f"DROP OWNED BY {plain_role}; DROP ROLE {plain_role}".encode())


def test_everything_is_documented_and_closed(connection: psycopg.Connection) -> None:
    """Every member has a comment; PUBLIC may call only what predicts."""
    undocumented = connection.execute(
        """SELECT pg_describe_object(classid, objid, 0) FROM pg_depend
           WHERE refobjid = (SELECT oid FROM pg_extension WHERE extname = 'pg_dpml') AND deptype = 'e'
           AND obj_description(objid, classid::regclass::name) IS NULL
           AND pg_describe_object(classid, objid, 0) NOT LIKE 'sequence%'
           AND pg_describe_object(classid, objid, 0) NOT LIKE 'type dpml.%[]'
           AND NOT (classid = 'pg_type'::regclass AND (SELECT typrelid FROM pg_type WHERE oid = objid) IN
                    ('dpml.ledger'::regclass, 'dpml.models'::regclass, 'dpml.drops'::regclass,
                     'dpml.budgets'::regclass, 'dpml.budget_entries'::regclass,
                     'dpml.datasets'::regclass, 'dpml.requests'::regclass,
                     'dpml.withdrawals'::regclass))"""
    ).fetchall()
    assert [row[0] for row in undocumented if "type" not in row[0] or "epoch" in row[0]] == []
    columns = connection.execute(
        """SELECT attrelid::regclass, attname FROM pg_attribute
           WHERE attrelid IN ('dpml.ledger'::regclass, 'dpml.models'::regclass, 'dpml.drops'::regclass,
                     'dpml.budgets'::regclass, 'dpml.budget_entries'::regclass,
                     'dpml.datasets'::regclass, 'dpml.requests'::regclass,
                     'dpml.withdrawals'::regclass) AND attnum > 0
           AND col_description(attrelid, attnum) IS NULL"""
    ).fetchall()
    assert columns == []
    public = connection.execute(
        """SELECT proname FROM pg_proc WHERE pronamespace = 'dpml'::regnamespace
           AND has_function_privilege('public', oid, 'EXECUTE') ORDER BY 1"""
    ).fetchall()
    assert [row[0] for row in public] == [
        "block_capacity",
        "help",
        "label",
        "module_version",
        "predict",
        "predict_proba",
        "predict_value",
    ]


def test_extension_can_be_dropped_and_made_again(connection: psycopg.Connection) -> None:
    connection.execute("DROP EXTENSION pg_dpml")
    assert scalar(connection, "SELECT count(*) FROM pg_proc WHERE pronamespace = 'dpml'::regnamespace") == 0
    connection.execute("CREATE EXTENSION pg_dpml")
