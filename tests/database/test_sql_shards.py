# SPDX-License-Identifier: PostgreSQL
"""dpml.on_shards and dpml.shard_id in SQL, on tables named like shards: no Citus is needed for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql

from helpers.sqltools import scalar

COMMAND = "DELETE FROM public.done WHERE false; INSERT INTO #into SELECT i + $1[1] FROM #from"
CALL = (
    "SELECT dpml.on_shards(dpml.shard_id(t.tableoid), {command}, {shards}, {tokens}, {names}, {value}) "
    "FROM numbers_17 AS t"
)
GIVEN = {
    "command": f"'{COMMAND}'",
    "shards": "'{4, 17}'::int8[]",
    "tokens": "'{#into, #from}'::text[]",
    "names": "'{public.missing, public.missing, public.done, public.numbers_17}'::text[]",
    "value": "'{100}'::float8[]",
}


@pytest.fixture(autouse=True)
def tables(connection: psycopg.Connection) -> Iterator[None]:
    connection.execute("CREATE TABLE numbers_17 AS SELECT i FROM generate_series(1, 5) AS i")
    connection.execute("CREATE TABLE done (i float8)")
    yield
    connection.execute("DROP TABLE numbers_17, done")


def call(connection: psycopg.Connection, **changed: str) -> Any:
    return scalar(connection, CALL.format(**(GIVEN | changed)))


def test_a_statement_runs_once_for_all_rows(connection: psycopg.Connection) -> None:
    assert call(connection) == 5
    assert connection.execute("SELECT array_agg(i ORDER BY i) FROM done").fetchone() == (
        [101, 102, 103, 104, 105],
    )


def test_a_value_may_be_null(connection: psycopg.Connection) -> None:
    assert call(connection, value="NULL") == 5
    assert scalar(connection, "SELECT count(*) FROM done WHERE i IS NULL") == 5


def test_without_rows_nothing_runs(connection: psycopg.Connection) -> None:
    connection.execute("DELETE FROM numbers_17")
    assert call(connection) is None
    assert scalar(connection, "SELECT count(*) FROM done") == 0


def test_states_are_added(connection: psycopg.Connection) -> None:
    """What the partial results of two workers are combined by."""
    (combine,) = connection.execute(
        "SELECT aggcombinefn::regprocedure::text FROM pg_aggregate "
        "WHERE aggfnoid::regproc = 'dpml.on_shards'::regproc"
    ).fetchone() or ("",)
    assert combine == "int8pl(bigint,bigint)"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"shards": "'{4, 5}'::int8[]"}, "shard 17 is not one of those that the statement is for"),
        (
            {"names": "'{a, b, c}'::text[]"},
            "names must have an element for each shard and token: 2 x 2, not 3",
        ),
        ({"shards": "'{17, NULL}'::int8[]"}, "shards, tokens and names must have no nulls"),
        ({"tokens": "'{#into, NULL}'::text[]"}, "shards, tokens and names must have no nulls"),
        ({"command": "NULL"}, "shard, command, shards, tokens and names must not be null"),
        ({"names": "NULL"}, "shard, command, shards, tokens and names must not be null"),
        ({"command": "'SELECT 1 / 0'"}, "division by zero"),
        ({"command": "'COMMIT'"}, "dpml.on_shards cannot run such a statement"),
        ({"command": "'COPY public.done FROM STDIN'"}, "dpml.on_shards cannot run such a statement"),
    ],
)
def test_bad_arguments(connection: psycopg.Connection, changed: dict[str, str], message: str) -> None:
    with pytest.raises(psycopg.Error, match=message):
        call(connection, **changed)
    assert scalar(connection, "SELECT count(*) FROM done") == 0


@pytest.mark.parametrize(
    "setting",
    [
        "SET search_path = elsewhere",
        "SET LOCAL search_path = elsewhere",
        "SELECT set_config('search_path', 'elsewhere', true)",
    ],
)
def test_settings_of_a_statement_end_with_it(connection: psycopg.Connection, setting: str) -> None:
    """A shard of the coordinator runs it in the session of whoever asks."""
    with connection.transaction():
        before = scalar(connection, "SHOW search_path")
        command = f"{setting}; INSERT INTO #into VALUES (length(current_setting('search_path')))"
        assert call(connection, command=sql.Literal(command).as_string(connection)) == 1
        assert scalar(connection, "SHOW search_path") == before
    assert scalar(connection, "SELECT i FROM done") == len("elsewhere")


@pytest.mark.parametrize("table", ["pg_class", "done"])
def test_a_table_that_is_no_shard(connection: psycopg.Connection, table: str) -> None:
    with pytest.raises(psycopg.Error, match="the table is not a shard of a distributed table"):
        connection.execute("SELECT dpml.shard_id(%s::regclass)", (table,))


def test_statements_have_the_rights_of_the_caller(connection: psycopg.Connection) -> None:
    connection.execute("CREATE ROLE shard_curator; GRANT dpml_curator TO shard_curator")
    connection.execute("GRANT SELECT ON numbers_17 TO shard_curator")
    try:
        connection.execute("SET ROLE shard_curator")
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="done"):
            call(connection)
        connection.execute(
            "RESET ROLE; GRANT SELECT, DELETE, INSERT ON done TO shard_curator; SET ROLE shard_curator"
        )
        assert call(connection) == 5
        connection.execute("RESET ROLE; REVOKE dpml_curator FROM shard_curator; SET ROLE shard_curator")
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match=r"shard_id|on_shards"):
            call(connection)
    finally:
        connection.execute("RESET ROLE; DROP OWNED BY shard_curator; DROP ROLE shard_curator")
