# SPDX-License-Identifier: PostgreSQL
"""Code of one role that runs in the session of another: who is taken for the one who asks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import psycopg
import pytest
from psycopg import errors

from helpers.sqltools import empty_registry, scalar

pytestmark = pytest.mark.dealt

ROLES = {
    "boss": "LOGIN SUPERUSER",
    "carol": "LOGIN IN ROLE dpml_curator",
    "ann": "LOGIN IN ROLE dpml_analyst",
    "mallory": "LOGIN IN ROLE dpml_analyst",
}


@dataclass(frozen=True)
class Entry:
    """A way of mallory's into the session of another role.

    Attributes
    ----------
    trap : str
        What she makes in schema lair, of her function lair.act(), which returns 1.
    spring : str
        What the other role does.
    hers : bool
        PostgreSQL runs the function with her rights, not with those of the other role.
    definer : bool
        The function itself is SECURITY DEFINER.
    """

    trap: str
    spring: str
    hers: bool = True
    definer: bool = False


_INDEX = "CREATE TABLE lair.bait AS SELECT 1 AS a; CREATE INDEX ON lair.bait ((a + lair.act()))"
_STATISTICS = (
    "CREATE TABLE lair.bait AS SELECT g AS a FROM generate_series(1, 9) g; "
    "CREATE STATISTICS lair.s ON (a + lair.act()) FROM lair.bait"
)
_KEPT = "CREATE MATERIALIZED VIEW lair.bait AS SELECT lair.act()"
_VIEW = "CREATE VIEW lair.bait AS SELECT lair.act(); GRANT SELECT ON lair.bait TO PUBLIC"
_TRIGGER = (
    "CREATE TABLE lair.bait (a int); CREATE FUNCTION lair.fire() RETURNS trigger {} LANGUAGE plpgsql "
    "AS 'BEGIN PERFORM lair.act(); RETURN NULL; END'; "
    "CREATE TRIGGER fire AFTER INSERT ON lair.bait EXECUTE FUNCTION lair.fire(); "
    "GRANT INSERT ON lair.bait TO PUBLIC"
)
MAINTENANCE = {
    "index, ANALYZE": Entry(_INDEX, "ANALYZE lair.bait"),
    "index, REINDEX": Entry(_INDEX, "REINDEX TABLE lair.bait"),
    "index, VACUUM FULL": Entry(_INDEX, "VACUUM FULL lair.bait"),
    "statistics, ANALYZE": Entry(_STATISTICS, "ANALYZE lair.bait"),
    "materialized view": Entry(_KEPT, "REFRESH MATERIALIZED VIEW lair.bait"),
}
USE = {
    "trigger": Entry(_TRIGGER.format(""), "INSERT INTO lair.bait VALUES (1)", hers=False),
    "definer's trigger": Entry(_TRIGGER.format("SECURITY DEFINER"), "INSERT INTO lair.bait VALUES (1)"),
    "view": Entry(_VIEW, "TABLE lair.bait", hers=False),
    "definer in a view": Entry(_VIEW, "TABLE lair.bait", definer=True),
    "definer": Entry("", "SELECT lair.act()", definer=True),
}
ENTRIES = MAINTENANCE | USE


@pytest.fixture(scope="module", autouse=True)
def roles(database: str) -> Iterator[None]:
    with psycopg.connect(database, autocommit=True) as connection:
        for role, options in ROLES.items():
            connection.execute(f"CREATE ROLE {role} {options}".encode())
    yield
    with psycopg.connect(database, autocommit=True) as connection:
        for role in ROLES:
            connection.execute(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}".encode())


@pytest.fixture(autouse=True)
def lair(connection: psycopg.Connection) -> Iterator[None]:
    """A schema of mallory's; no models and charges."""
    empty_registry(connection)
    connection.execute("CREATE SCHEMA lair AUTHORIZATION mallory; GRANT USAGE ON SCHEMA lair TO PUBLIC")
    yield
    connection.execute("DROP SCHEMA lair CASCADE")


def as_role(database: str, role: str) -> str:
    return database.replace("user='postgres'", f"user='{role}'")


def run(database: str, role: str, *statements: str) -> None:
    """Each in a transaction of its own."""
    with psycopg.connect(as_role(database, role), autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def do(database: str, statement: str) -> None:
    """What mallory's function does from now on."""
    run(
        database,
        "mallory",
        "CREATE OR REPLACE FUNCTION lair.deed() RETURNS void LANGUAGE plpgsql "
        f"AS $deed$BEGIN {statement}; END$deed$",
    )


def set_trap(database: str, entry: Entry) -> None:
    """Made while the function does nothing."""
    do(database, "NULL")
    security = "SECURITY DEFINER" if entry.definer else ""
    act = (
        f"CREATE FUNCTION lair.act() RETURNS int IMMUTABLE {security} LANGUAGE plpgsql "
        "AS 'BEGIN PERFORM lair.deed(); RETURN 1; END'"
    )
    run(database, "mallory", act, entry.trap)


# Models


MODEL = "method, private, task, loss, weights, n_features, encoder, privacy, training"
VALUES = "'x', false, 'binary', 'logistic', '{0}', 1, '{}', '{}', '{}'"


def models(connection: psycopg.Connection) -> set[str]:
    return {name for (name,) in connection.execute("SELECT name FROM dpml.models").fetchall()}


def owned(connection: psycopg.Connection, **owners: str) -> None:
    """The only models there are, by name."""
    connection.execute("DELETE FROM dpml.models")
    for name, owner in owners.items():
        insert = f"INSERT INTO dpml.models (name, owner, {MODEL}) VALUES (%s, %s, {VALUES})"
        connection.execute(insert.encode(), (name, owner))


@pytest.mark.parametrize(
    ("entry", "role"),
    [(entry, "boss") for entry in ENTRIES] + [(entry, "carol") for entry in USE],
)
def test_a_model_is_dropped_by_the_rights_in_force(
    database: str, connection: psycopg.Connection, entry: str, role: str
) -> None:
    """What runs with mallory's rights drops models of hers, however mighty the role of the session.

    A view and a trigger run what they call with the rights of who uses them: a curator's reach all models.
    """
    way = ENTRIES[entry]
    set_trap(database, way)
    do(database, "PERFORM dpml.drop_model(m) FROM unnest('{anns,hers,nobodys}'::text[]) m")
    owned(connection, anns="ann", hers="mallory")
    run(database, role, way.spring)
    assert models(connection) == ({"anns"} if way.hers else set())


def test_a_definer_lends_its_own_rights(database: str, connection: psycopg.Connection) -> None:
    """What ann lets others call drops her models, whoever calls, and no other."""
    connection.execute("CREATE SCHEMA desk AUTHORIZATION ann; GRANT USAGE ON SCHEMA desk TO PUBLIC")
    run(
        database,
        "ann",
        "CREATE FUNCTION desk.tidy() RETURNS bool[] SECURITY DEFINER "
        "RETURN ARRAY[dpml.drop_model('anns'), dpml.drop_model('hers')]",
    )
    for role in ("mallory", "carol", "boss"):
        owned(connection, anns="ann", hers="mallory")
        with psycopg.connect(as_role(database, role), autocommit=True) as caller:
            assert scalar(caller, "SELECT desk.tidy()") == [True, False]
        assert models(connection) == {"hers"}
    connection.execute("DROP SCHEMA desk CASCADE")


def test_who_drops_cannot_be_said(database: str, connection: psycopg.Connection) -> None:
    """Not by a row, not by a view of the table, and not by its trigger on a table of one's own."""
    owned(connection, anns="ann", hers="mallory")
    forged = "INSERT INTO {} (model, dropped_by) VALUES ('anns', 'ann')"
    seen = "CREATE VIEW lair.drops AS TABLE dpml.drops"
    put = "CREATE TRIGGER t AFTER INSERT ON lair.own FOR EACH ROW EXECUTE FUNCTION dpml.carry_out_drop()"
    run(database, "mallory", "CREATE TABLE lair.own (model text, dropped_by name)")
    for statement in (forged.format("dpml.drops"), f"{seen}; {forged.format('lair.drops')}", put):
        with pytest.raises(errors.InsufficientPrivilege):
            run(database, "mallory", statement)
    # even with rights that nobody should have
    connection.execute(
        "GRANT ALL ON ALL TABLES IN SCHEMA dpml TO mallory; "
        "GRANT ALL ON ALL FUNCTIONS IN SCHEMA dpml TO mallory"
    )
    for statement in (forged.format("dpml.drops"), f"{seen}; {forged.format('lair.drops')}"):
        with pytest.raises(errors.InsufficientPrivilege, match="row-level security"):
            run(database, "mallory", statement)
    with pytest.raises(errors.NoDataFound, match="no model called anns that role ann may drop"):
        run(database, "mallory", put, forged.format("lair.own"))
    assert models(connection) == {"anns", "hers"}
    # a view lends the right to ask, not the name: who inserts through it is the one who asks
    run(
        database,
        "mallory",
        "DROP TABLE lair.own; CREATE VIEW lair.drops AS SELECT model FROM dpml.drops; "
        "GRANT INSERT ON lair.drops TO ann",
    )
    with pytest.raises(errors.NoDataFound):
        run(database, "ann", "INSERT INTO lair.drops VALUES ('hers')")
    run(database, "ann", "INSERT INTO lair.drops VALUES ('anns')")
    assert models(connection) == {"hers"}
    connection.execute(
        "REVOKE ALL ON ALL TABLES IN SCHEMA dpml FROM mallory; "
        "REVOKE ALL ON ALL FUNCTIONS IN SCHEMA dpml FROM mallory"
    )


def test_an_open_drop_stops_nobody_else(database: str, connection: psycopg.Connection) -> None:
    """Neither one that dropped a model nor one of a model that is another's."""
    owned(connection, anns="ann", hers="mallory", carols="carol")
    with psycopg.connect(as_role(database, "mallory")) as mallory:
        for model, dropped in (("hers", True), ("anns", False), ("nobodys", False), (None, False)):
            assert scalar(mallory, "SELECT dpml.drop_model(%s)", model) is dropped
        drop = "SET lock_timeout = '3s'; SELECT dpml.drop_model('{}')"
        run(database, "ann", drop.format("anns"))
        run(database, "carol", drop.format("carols"))
        connection.execute(f"INSERT INTO dpml.models (name, {MODEL}) VALUES ('nobodys', {VALUES})".encode())
        assert models(connection) == {"hers", "nobodys"}
    assert models(connection) == {"nobodys"}
    assert scalar(connection, "SELECT count(*) FROM dpml.drops") == 0


# Requests


def requested(connection: psycopg.Connection, *roles: str) -> list[int]:
    """The only requests there are, one of each role, of a data set that is offered."""
    connection.execute(
        f"INSERT INTO dpml.budgets {WHO['budgets.opened_by']} ON CONFLICT DO NOTHING; "
        f"INSERT INTO dpml.datasets {WHO['datasets.registered_by'].replace('free', 'x')} "
        "ON CONFLICT DO NOTHING; TRUNCATE dpml.requests".encode()
    )
    insert = "INSERT INTO dpml.requests (dataset, model, options, requested_by) VALUES ('x', 'm', '{}', %s)"
    return [scalar(connection, f"{insert} RETURNING id", role) for role in roles]


def states(connection: psycopg.Connection) -> list[str]:
    return [state for (state,) in connection.execute("SELECT state FROM dpml.requests ORDER BY id")]


@pytest.mark.parametrize(
    ("entry", "role"),
    [(entry, "boss") for entry in ENTRIES] + [(entry, "carol") for entry in USE],
)
def test_a_request_is_withdrawn_by_the_rights_in_force(
    database: str, connection: psycopg.Connection, entry: str, role: str
) -> None:
    """What runs with mallory's rights withdraws what she asked for; with those of others, nothing."""
    way = ENTRIES[entry]
    set_trap(database, way)
    attempts = (
        f"BEGIN PERFORM dpml.withdraw_request({number}); "
        "EXCEPTION WHEN no_data_found OR object_not_in_prerequisite_state OR insufficient_privilege "
        "THEN NULL; END"
        for number in requested(connection, "ann", "mallory")
    )
    do(database, "; ".join(attempts))
    run(database, role, way.spring)
    assert states(connection) == ["waiting", "withdrawn" if way.hers else "waiting"]


def test_who_withdraws_cannot_be_said(database: str, connection: psycopg.Connection) -> None:
    """Not by a row, not by a view of the table, and not by its trigger on a table of one's own."""
    anns, hers = requested(connection, "ann", "mallory")
    forged = f"INSERT INTO {{}} (request, withdrawn_by) VALUES ({anns}, 'ann')"
    seen = "CREATE VIEW lair.withdrawals AS TABLE dpml.withdrawals"
    put = (
        "CREATE TRIGGER t AFTER INSERT ON lair.own FOR EACH ROW EXECUTE FUNCTION dpml.carry_out_withdrawal()"
    )
    run(database, "mallory", "CREATE TABLE lair.own (request bigint, withdrawn_by name)")
    through = f"{seen}; {forged.format('lair.withdrawals')}"
    for statement in (forged.format("dpml.withdrawals"), through, put):
        with pytest.raises(errors.InsufficientPrivilege):
            run(database, "mallory", statement)
    # even with rights that nobody should have
    connection.execute(
        "GRANT ALL ON dpml.withdrawals TO mallory; GRANT ALL ON ALL FUNCTIONS IN SCHEMA dpml TO mallory"
    )
    for statement in (forged.format("dpml.withdrawals"), through):
        with pytest.raises(errors.InsufficientPrivilege, match="row-level security"):
            run(database, "mallory", statement)
    with pytest.raises(errors.NoDataFound, match=f"role ann has made no request {anns}"):
        run(database, "mallory", put, forged.format("lair.own"))
    assert states(connection) == ["waiting", "waiting"]
    # a view lends the right to withdraw, not the name: who inserts through it is the one who asks
    run(
        database,
        "mallory",
        "DROP TABLE lair.own; CREATE VIEW lair.withdrawals AS SELECT request FROM dpml.withdrawals; "
        "GRANT INSERT ON lair.withdrawals TO ann",
    )
    with pytest.raises(errors.NoDataFound):
        run(database, "ann", f"INSERT INTO lair.withdrawals VALUES ({hers})")
    run(database, "ann", f"INSERT INTO lair.withdrawals VALUES ({anns})")
    assert states(connection) == ["withdrawn", "waiting"]
    connection.execute(
        "REVOKE ALL ON dpml.withdrawals FROM mallory; REVOKE ALL ON ALL FUNCTIONS IN SCHEMA dpml FROM mallory"
    )


# Who did what


WHO = {
    "ledger.charged_by": "(table_name, model, method, epsilon, delta, relation, n_units, mechanism) "
    "VALUES ('x', 'x', 'x', 1, 0, 'replace_one', 1, '{}')",
    "models.owner": f"(name, {MODEL}) VALUES ('x', {VALUES})",
    "budgets.opened_by": "(dataset, rule, epsilon, delta, relation, tables, min_epsilon, min_delta, "
    "max_delta, loss_limit, delta_limit) VALUES ('x', 'basic', 1, 0, 'replace_one', '{}', 0.001, 0, 0, 1, 0)",
    "budget_entries.entered_by": "(dataset, turn, charge_key, loss, delta) SELECT "
    "'offered', count(*) + 1, 'x', "
    "0, 0 FROM dpml.budget_entries WHERE dataset = 'offered'",
    "datasets.registered_by": "(name, role, source, source_owner, spec, min_epsilon, max_epsilon, min_delta, "
    "max_delta, max_passes) VALUES ('free', 'dpml_analyst', 'x', 'x', 'x', 0.001, 1, 0, 0, 1)",
    "requests.requested_by": "(dataset, model, options) VALUES ('offered', 'x', '{}')",
    "drops.dropped_by": "(model) VALUES ('x')",
    "withdrawals.withdrawn_by": "(request) VALUES (1)",
}
"""Columns that say who did something, and what a curator inserts without them."""


def test_no_function_asks_the_session(connection: psycopg.Connection) -> None:
    asking = connection.execute(
        "SELECT proname FROM pg_proc WHERE pronamespace = 'dpml'::regnamespace "
        "AND prosrc || coalesce(pg_get_function_sqlbody(oid), '') ~* 'session_user|system_user|''role'''"
    )
    assert asking.fetchall() == []


def test_no_function_and_no_column_is_left_out(connection: psycopg.Connection) -> None:
    """A new one fails here until it is tried in the tests of this file."""
    definers = "SELECT proname FROM pg_proc WHERE pronamespace = 'dpml'::regnamespace AND prosecdef"
    assert {name for (name,) in connection.execute(definers.encode())} == {
        "carry_out_drop",
        "carry_out_withdrawal",
        "hold_extension",
    }
    roles = connection.execute(
        "SELECT c.relname || '.' || a.attname, pg_get_expr(d.adbin, d.adrelid), ARRAY("
        "SELECT x.privilege_type::text FROM aclexplode(a.attacl) x) "
        "FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.atttypid = 'name'::regtype "
        "LEFT JOIN pg_attrdef d ON (d.adrelid, d.adnum) = (a.attrelid, a.attnum) "
        "WHERE c.relnamespace = 'dpml'::regnamespace AND c.relkind = 'r'"
    ).fetchall()
    did = {column: (default, rights) for column, default, rights in roles if default is not None}
    # the other roles of a data set are those that its owner means
    assert {column for column, _, _ in roles} - did.keys() == {"datasets.role", "datasets.source_owner"}
    assert did.keys() == WHO.keys()
    for column, (default, rights) in did.items():
        # the service of a data set's owner names the analyst who asked for the model, see below
        assert (default, rights) == ("CURRENT_USER", ["INSERT"] if column == "models.owner" else [])


@pytest.fixture
def curators(connection: psycopg.Connection) -> Iterator[None]:
    """Mallory is one; of two budgets one has an offer."""
    quoted, offered, free = "'x'", "'offered'", "'free'"
    connection.execute(
        "GRANT dpml_curator TO mallory; DROP VIEW IF EXISTS dpml.ledger_in_use; "
        f"INSERT INTO dpml.budgets {WHO['budgets.opened_by'].replace(quoted, offered, 1)}; "
        f"INSERT INTO dpml.budgets {WHO['budgets.opened_by'].replace(quoted, free, 1)}; "
        f"INSERT INTO dpml.datasets {WHO['datasets.registered_by'].replace('free', 'offered')}; "
        "ALTER TABLE dpml.drops DISABLE TRIGGER carry_out_drop; "
        "ALTER TABLE dpml.withdrawals DISABLE TRIGGER carry_out_withdrawal".encode()
    )
    yield
    connection.execute(
        "REVOKE dpml_curator FROM mallory; TRUNCATE dpml.drops, dpml.withdrawals; "
        "ALTER TABLE dpml.drops ENABLE TRIGGER carry_out_drop; "
        "ALTER TABLE dpml.withdrawals ENABLE TRIGGER carry_out_withdrawal"
    )


@pytest.mark.usefixtures("curators")
@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("column", WHO)
def test_who_did_it_is_whose_rights_were_used(
    database: str, connection: psycopg.Connection, column: str, entry: str
) -> None:
    """And whose were not can be said nowhere, but by curators of a new model."""
    way = ENTRIES[entry]
    table, who = column.split(".")
    set_trap(database, way)
    do(database, f"INSERT INTO dpml.{table} {WHO[column]} ON CONFLICT DO NOTHING")
    run(database, "boss", way.spring)
    found = f"SELECT DISTINCT {who} FROM dpml.{table} WHERE {who} <> 'postgres'"
    assert scalar(connection, found) == ("mallory" if way.hers else "boss")
    if table in ("ledger", "budgets"):  # what hold_extension makes is the extension's, whoever charges
        view = "SELECT pg_get_userbyid(relowner) FROM pg_class WHERE oid = 'dpml.ledger_in_use'::regclass"
        assert scalar(connection, view) == "postgres"
    if way.hers:
        forged = f"INSERT INTO dpml.{table} ({who}) VALUES ('ann')"
        do(database, forged)
        error = errors.NotNullViolation if column == "models.owner" else errors.InsufficientPrivilege
        with pytest.raises(error):
            run(database, "boss", way.spring)
        with pytest.raises(error):
            run(database, "mallory", forged)


OTHER = {"bigint": "-5", "boolean": "false", "name": "'ann'", "name[]": "'{ann}'", "text": "'done'"}
"""Of each type a value that is no default; of times it is one that is past."""


@pytest.mark.usefixtures("curators")
@pytest.mark.parametrize("column", WHO)
def test_no_default_of_a_view_sets_what_its_owner_may_not(
    database: str, connection: psycopg.Connection, column: str
) -> None:
    """PostgreSQL asks for no right on a column that a view sets by a default of its own."""
    table = column.split(".")[0]
    columns = connection.execute(
        "SELECT a.attname, format_type(a.atttypid, NULL) FROM pg_attribute a WHERE a.attrelid = %s::regclass "
        "AND a.attnum > 0 AND NOT has_column_privilege('mallory', a.attrelid, a.attnum, 'INSERT')",
        (f"dpml.{table}",),
    ).fetchall()
    assert columns
    rows, values = WHO[column].split(") ", 1)
    insert = f"INSERT INTO lair.own {rows}) OVERRIDING SYSTEM VALUE {values}"
    before = connection.execute(f"TABLE dpml.{table}".encode()).fetchall()
    for name, kind in columns:
        value = OTHER.get(kind, "now() - interval '1 day'")
        run(
            database,
            "mallory",
            f"CREATE VIEW lair.own AS TABLE dpml.{table}",
            f"ALTER VIEW lair.own ALTER {name} SET DEFAULT {value}",
        )
        with psycopg.connect(as_role(database, "mallory"), autocommit=True) as mallory:
            # a number that was given, which hers is compared with
            mallory.execute(f"BEGIN; INSERT INTO dpml.{table} {WHO[column]}; ROLLBACK".encode())
            with pytest.raises(errors.InsufficientPrivilege):
                mallory.execute(insert.encode())
            mallory.execute("DROP VIEW lair.own")
    assert connection.execute(f"TABLE dpml.{table}".encode()).fetchall() == before


@pytest.mark.usefixtures("curators")
def test_no_view_jams_the_queue(database: str) -> None:
    """By numbers that come next, or by requests that do not count as waiting."""
    run(
        database,
        "mallory",
        "CREATE VIEW lair.own AS TABLE dpml.requests; CREATE SEQUENCE lair.next; "
        "ALTER VIEW lair.own ALTER requested_by SET DEFAULT 'mallory'; "
        "ALTER VIEW lair.own ALTER state SET DEFAULT 'running'",
    )
    many = (
        "INSERT INTO lair.own (dataset, model, options) {} "
        "SELECT 'offered', 'x', '{{}}' FROM generate_series(1, 101)"
    )
    with pytest.raises(errors.InsufficientPrivilege, match=r"may not set dpml\.requests\.state"):
        run(database, "mallory", many.format(""))
    run(
        database,
        "mallory",
        "ALTER VIEW lair.own ALTER state SET DEFAULT 'waiting'; "
        "ALTER VIEW lair.own ALTER id SET DEFAULT nextval('lair.next') + 10^6",
    )
    with pytest.raises(psycopg.Error, match=r"requests_id_seq|may not set"):
        run(database, "mallory", many.format("OVERRIDING SYSTEM VALUE"))
