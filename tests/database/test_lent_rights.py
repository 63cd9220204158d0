# SPDX-License-Identifier: PostgreSQL
"""Functions of one role run when another reads, with the rights of who reads: who has many must not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from functools import partial

import psycopg
import pytest

import pg_dpml
from helpers.sqltools import empty_registry, scalar
from pg_dpml import Column, DataSpec, Label, PrivacySpec, TrainSpec
from pg_dpml.database.database import Database
from pg_dpml.errors import GuaranteeError
from pg_dpml.ledger import opening
from pg_dpml.runs import datasets, requests

pytestmark = pytest.mark.dealt

PRIVACY = PrivacySpec(1.0, 1e-6)
BOLT_ON = TrainSpec(method="bolt-on", passes=1)
ROWS = "SELECT g / 100.0::float8 AS a, g % 2 = 0 AS y FROM generate_series(0, 99) g"

# What bob makes in his schema: call() tells who ran it.
BOBS = """
    CREATE TABLE lair.sprung (by name DEFAULT current_user);
    GRANT INSERT ON lair.sprung TO PUBLIC;
    CREATE FUNCTION lair.spring() RETURNS void LANGUAGE sql AS 'INSERT INTO lair.sprung DEFAULT VALUES';
    CREATE FUNCTION lair.call(a float8) RETURNS float8 IMMUTABLE LANGUAGE plpgsql
        AS 'BEGIN PERFORM lair.spring(); RETURN a; END';
    CREATE FUNCTION lair.call(a float8, b float8) RETURNS float8 IMMUTABLE LANGUAGE plpgsql
        AS 'BEGIN PERFORM lair.spring(); RETURN a + b; END';
    CREATE FUNCTION lair.compare(a float8, b float8) RETURNS int IMMUTABLE LANGUAGE plpgsql
        AS 'BEGIN PERFORM lair.spring(); RETURN sign(a - b); END';
    CREATE FUNCTION lair.fire() RETURNS trigger LANGUAGE plpgsql
        AS 'BEGIN PERFORM lair.spring(); RETURN NULL; END';
    CREATE OPERATOR lair.+ (LEFTARG = float8, RIGHTARG = float8, FUNCTION = lair.call);
    CREATE TYPE lair.mood AS ENUM ('low', 'high');
    CREATE DOMAIN lair.small AS float8;
    -- Autovacuum would call bob's functions, as bob.
    CREATE TABLE lair.part (a float8, y boolean) WITH (autovacuum_enabled = off);
    CREATE TABLE lair.leaf (a float8, y boolean) WITH (autovacuum_enabled = off);
    CREATE INDEX ON lair.part (y) WHERE lair.call(1) = 1;
    CREATE INDEX ON lair.leaf (y) WHERE lair.call(1) = 1;
    CREATE VIEW lair.shown AS SELECT a + lair.call(0) AS a, y FROM house.plain;
    GRANT USAGE ON SCHEMA lair TO PUBLIC;
"""
OWN_ORDER = (
    "CREATE OPERATOR CLASS own FOR TYPE float8 USING btree AS OPERATOR 1 <, OPERATOR 2 <=, OPERATOR 3 =, "
    "OPERATOR 4 >=, OPERATOR 5 >, FUNCTION 1 lair.compare(float8, float8)"
)
# How a superuser makes a table "read", and what is bob's in it.
REFUSED = {
    "inheritance child": (
        "CREATE TABLE read (LIKE plain); ALTER TABLE lair.part INHERIT read",
        "table lair.part",
    ),
    "grandchild": (
        "CREATE TABLE read (LIKE plain); CREATE TABLE child () INHERITS (read); "
        "ALTER TABLE lair.part INHERIT child",
        "table lair.part",
    ),
    "partition": (
        "CREATE TABLE read (LIKE plain) PARTITION BY LIST (y); "
        "ALTER TABLE read ATTACH PARTITION lair.part DEFAULT",
        "table lair.part",
    ),
    "partition of a partition": (
        "CREATE TABLE read (LIKE plain) PARTITION BY LIST (y); "
        "CREATE TABLE child PARTITION OF read DEFAULT PARTITION BY RANGE (a); "
        "ALTER TABLE child ATTACH PARTITION lair.part DEFAULT",
        "table lair.part",
    ),
    "foreign partition": (
        "CREATE FOREIGN DATA WRAPPER nowhere; CREATE SERVER nowhere FOREIGN DATA WRAPPER nowhere; "
        "CREATE TABLE read (LIKE plain) PARTITION BY LIST (y); "
        "CREATE FOREIGN TABLE lair.far PARTITION OF read DEFAULT SERVER nowhere; "
        "ALTER TABLE lair.far OWNER TO bob",
        "foreign table lair.far",
    ),
    "foreign child": (
        "CREATE FOREIGN DATA WRAPPER nowhere; CREATE SERVER nowhere FOREIGN DATA WRAPPER nowhere; "
        "CREATE TABLE read (LIKE plain); CREATE FOREIGN TABLE lair.far () INHERITS (read) SERVER nowhere; "
        "ALTER TABLE lair.far OWNER TO bob",
        "foreign table lair.far",
    ),
    "child below a view": (
        "CREATE TABLE parent (LIKE plain); ALTER TABLE lair.part INHERIT parent; "
        "CREATE VIEW read AS SELECT p.a, p.y FROM plain s JOIN parent p USING (a)",
        "table lair.part",
    ),
    "view below a view": ("CREATE VIEW read AS TABLE lair.shown", "view lair.shown"),
    "table in a condition of a view": (
        "CREATE VIEW read AS SELECT * FROM plain WHERE a NOT IN (SELECT a FROM lair.part)",
        "table lair.part",
    ),
    "function in a view": (
        "CREATE VIEW read AS SELECT lair.call(a) AS a, y FROM plain",
        "function lair.call(double precision)",
    ),
    "operator in a view": (
        "CREATE VIEW read AS SELECT a OPERATOR(lair.+) 0 AS a, y FROM plain",
        "function lair.call(double precision,double precision)",
    ),
    "body of a function in a view": (
        "CREATE FUNCTION own(a float8) RETURNS float8 RETURN lair.call(a); "
        "CREATE VIEW read AS SELECT own(a) AS a, y FROM plain",
        "function lair.call(double precision)",
    ),
    "table in a body of a function": (
        "CREATE FUNCTION own() RETURNS SETOF plain BEGIN ATOMIC SELECT * FROM lair.part; END; "
        "CREATE VIEW read AS SELECT * FROM own()",
        "table lair.part",
    ),
    "domain of his in a view": (
        "CREATE VIEW read AS SELECT a::lair.small::float8 AS a, y FROM plain",
        "type lair.small",
    ),
    "domain in an index": (
        "CREATE DOMAIN small AS float8 CHECK (VALUE < 9 + lair.call(1)); CREATE TABLE read AS TABLE plain; "
        "CREATE INDEX ON read (a) WHERE 1::float8::small = 1",
        "function lair.call(double precision)",
    ),
    "aggregate": (
        "CREATE AGGREGATE own(float8) (SFUNC = lair.call, STYPE = float8, INITCOND = '0'); "
        "CREATE VIEW read AS SELECT own(a) AS a, y FROM plain GROUP BY y",
        "function lair.call(double precision,double precision)",
    ),
    "index expression": (
        "CREATE TABLE read AS TABLE plain; CREATE INDEX ON read ((a + lair.call(1)))",
        "function lair.call(double precision)",
    ),
    "index predicate": (
        "CREATE TABLE read AS TABLE plain; CREATE INDEX ON read (a) WHERE lair.call(1) = 1",
        "function lair.call(double precision)",
    ),
    "operator in an index": (
        "CREATE TABLE read AS TABLE plain; CREATE INDEX ON read (a) WHERE 1::float8 OPERATOR(lair.+) 1 = 2",
        "function lair.call(double precision,double precision)",
    ),
    "index of a partition": (
        "CREATE TABLE read (LIKE plain) PARTITION BY LIST (y); CREATE TABLE child PARTITION OF read DEFAULT; "
        "CREATE INDEX ON child (a) WHERE lair.call(1) = 1",
        "function lair.call(double precision)",
    ),
    "index of a materialized view": (
        "CREATE MATERIALIZED VIEW read AS TABLE plain; CREATE INDEX ON read (a) WHERE lair.call(1) = 1",
        "function lair.call(double precision)",
    ),
    "exclusion constraint": (
        "CREATE TABLE read AS TABLE plain; ALTER TABLE read ADD EXCLUDE ((a + lair.call(1)) WITH =)",
        "function lair.call(double precision)",
    ),
    "statistics": (
        "CREATE TABLE read AS TABLE plain; CREATE STATISTICS s ON (a + lair.call(1)) FROM read",
        "function lair.call(double precision)",
    ),
    "constraint": (
        "CREATE TABLE read AS TABLE plain; ALTER TABLE read ADD CHECK (a < 9 + lair.call(1))",
        "function lair.call(double precision)",
    ),
    "order of partitions": (
        f"{OWN_ORDER}; CREATE TABLE read (LIKE plain) PARTITION BY RANGE (a own); "
        "CREATE TABLE child PARTITION OF read FOR VALUES FROM (0) TO (9)",
        "function lair.compare(double precision,double precision)",
    ),
    "order of an index": (
        f"{OWN_ORDER}; CREATE TABLE read AS TABLE plain; CREATE INDEX ON read (a own)",
        "function lair.compare(double precision,double precision)",
    ),
    "partition key": (
        "CREATE TABLE read (LIKE plain) PARTITION BY RANGE ((a + lair.call(1)))",
        "function lair.call(double precision)",
    ),
}
FINE = {
    "a copy of what a view showed": "CREATE MATERIALIZED VIEW read AS TABLE lair.shown",
    "a child of a parent that is not read": "CREATE TABLE read () INHERITS (lair.part); "
    "INSERT INTO read TABLE plain",
    "an enum of his": "CREATE TABLE own AS SELECT *, 'low'::lair.mood AS m FROM plain; "
    "CREATE VIEW read AS SELECT a, y FROM own WHERE m = 'low'",
    "a default": "CREATE TABLE read AS TABLE plain; ALTER TABLE read ALTER a SET DEFAULT lair.call(1)",
    "a trigger": "CREATE TABLE read AS TABLE plain; "
    "CREATE TRIGGER t AFTER INSERT ON read EXECUTE FUNCTION lair.fire()",
    "a view of it": "CREATE TABLE read AS TABLE plain; GRANT SELECT ON read TO bob; "
    "CREATE VIEW lair.look AS TABLE read; ALTER VIEW lair.look OWNER TO bob",
}


@pytest.fixture(scope="module", autouse=True)
def roles(database: str) -> Iterator[None]:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE ROLE bob LOGIN")
    yield
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("DROP ROLE bob")


@pytest.fixture(autouse=True)
def schemas(database: str, connection: psycopg.Connection) -> Iterator[None]:
    """The superuser's, which is where his connection makes things, and bob's."""
    empty_registry(connection)
    connection.execute(
        "CREATE SCHEMA house; GRANT USAGE ON SCHEMA house TO bob; SET search_path = house; "
        f"CREATE TABLE plain AS {ROWS}; GRANT SELECT ON plain TO bob; "
        "CREATE SCHEMA lair AUTHORIZATION bob".encode()
    )
    with psycopg.connect(as_role(database, "bob"), autocommit=True) as bob:
        bob.execute(BOBS)
        bob.execute(f"INSERT INTO lair.part {ROWS}".encode())
    connection.execute("TRUNCATE lair.sprung")
    yield
    connection.execute("DROP SCHEMA house, lair CASCADE; DROP FOREIGN DATA WRAPPER IF EXISTS nowhere CASCADE")


def as_role(database: str, role: str) -> str:
    return database.replace("user='postgres'", f"user='{role}'")


def data(table: str = "house.read") -> DataSpec:
    column = Column("a", lower=0, upper=1)
    return DataSpec(table, Label("y", positive="true"), (column,), definition_is_public=True)


def ran_as(connection: psycopg.Connection) -> set[str]:
    return {role for (role,) in connection.execute("SELECT by FROM lair.sprung").fetchall()}


# What the catalog knows to be read


@pytest.mark.parametrize("way", REFUSED)
def test_whatever_is_another_roles_is_refused(
    database: str, connection: psycopg.Connection, way: str
) -> None:
    make, involved = REFUSED[way]
    connection.execute(make.encode())
    connection.execute("TRUNCATE lair.sprung")
    message = re.escape(f"reading house.read involves {involved} of role bob, whose functions could run with")
    for run in (pg_dpml.plan, partial(pg_dpml.train, name="m")):
        with pytest.raises(GuaranteeError, match=f"^{message}.*: connect as bob, or as a curator"):
            run(database, data(), PRIVACY, BOLT_ON)
    assert ran_as(connection) == set()
    assert scalar(connection, "SELECT count(*) FROM dpml.ledger") == 0


@pytest.mark.parametrize("way", FINE)
def test_what_is_not_read_is_not_refused(database: str, connection: psycopg.Connection, way: str) -> None:
    connection.execute(FINE[way].encode())
    connection.execute("TRUNCATE lair.sprung")
    assert pg_dpml.train(database, data(), PRIVACY, BOLT_ON, name="m").model.name == "m"
    assert ran_as(connection) == set()


@pytest.mark.parametrize(
    "way",
    [
        *("inheritance child", "partition", "order of partitions"),
        *("index predicate", "statistics", "constraint", "view below a view"),
    ],
)
def test_they_would_run_with_the_readers_rights(connection: psycopg.Connection, way: str) -> None:
    """What the refusals are for, done by hand."""
    connection.execute(REFUSED[way][0].encode())
    connection.execute("TRUNCATE lair.sprung")
    connection.execute("SET constraint_exclusion = on; EXPLAIN ANALYZE SELECT a FROM read WHERE a < 9 AND y")
    assert ran_as(connection) == {"postgres"}


def test_a_role_put_on_can_be_taken_off(database: str, connection: psycopg.Connection) -> None:
    """A superuser who is bob for the session: what bob's functions do first is RESET ROLE."""
    connection.execute("GRANT dpml_curator TO bob")
    with pytest.raises(GuaranteeError, match=r"table lair\.part of role bob"):
        pg_dpml.train(f"{database} options='-c role=bob'", data("lair.part"), PRIVACY, BOLT_ON, name="m")
    assert ran_as(connection) == set()
    assert pg_dpml.train(as_role(database, "bob"), data("lair.part"), PRIVACY, BOLT_ON, name="m").model
    assert ran_as(connection) <= {"bob"}
    connection.execute("REVOKE dpml_curator FROM bob")


# Who has what to lend


MIGHT = {
    "CREATEROLE": ("ALTER ROLE alice CREATEROLE", "alice (CREATEROLE)"),
    "BYPASSRLS": ("ALTER ROLE alice BYPASSRLS", "alice (BYPASSRLS)"),
    "REPLICATION": ("ALTER ROLE alice REPLICATION", "alice (REPLICATION)"),
    "SUPERUSER by membership": ("GRANT postgres TO alice", "postgres (SUPERUSER)"),
    "CREATEROLE by SET ROLE only": (
        "CREATE ROLE wardens CREATEROLE; CREATE ROLE stairs NOINHERIT; "
        "GRANT wardens TO stairs; GRANT stairs TO alice",
        "wardens (CREATEROLE)",
    ),
    **{
        role: (f"GRANT {role} TO alice", role)
        for role in (
            *("pg_read_server_files", "pg_write_server_files", "pg_execute_server_program"),
            *("pg_read_all_data", "pg_write_all_data"),
        )
    },
}
SPEC = """
table = "lair.part"
label = {column = "y", positive = "true"}
columns.a = {lower = 0, upper = 1}
"""


@pytest.fixture
def curators(connection: psycopg.Connection) -> Iterator[None]:
    """Alice and bob; alice may read bob's table."""
    connection.execute(
        "CREATE ROLE alice LOGIN; GRANT dpml_curator TO alice, bob; "
        "GRANT SELECT ON lair.part TO alice; GRANT USAGE ON SCHEMA house TO alice"
    )
    yield
    connection.execute(
        "REVOKE dpml_curator FROM bob; DROP OWNED BY alice CASCADE; DROP ROLE alice; "
        "DROP ROLE IF EXISTS wardens, stairs"
    )


@pytest.mark.usefixtures("curators")
@pytest.mark.parametrize("might", MIGHT)
def test_who_has_rights_over_the_server_lends_them_to_nobody(
    database: str, connection: psycopg.Connection, might: str
) -> None:
    alice, run = as_role(database, "alice"), partial(pg_dpml.train, privacy=PRIVACY, training=BOLT_ON)
    assert run(alice, data("lair.part"), name="before").model
    grant, role = MIGHT[might]
    connection.execute(grant.encode())
    message = (
        f"table lair.part of role bob, whose functions could run with the rights of role {role}: connect"
    )
    with pytest.raises(GuaranteeError, match=re.escape(message)):
        run(alice, data("lair.part"), name="after")
    # a table of her own, one of a superuser's, and one of who has the same rights
    connection.execute(
        "CREATE TABLE hers AS TABLE plain; ALTER TABLE hers OWNER TO alice; GRANT SELECT ON plain TO alice"
    )
    for table in ("house.hers", "house.plain"):
        assert run(alice, data(table), name=table).model
    if "alice" not in role:
        connection.execute(f"GRANT {role.split()[0]} TO bob".encode())
        assert run(alice, data("lair.part"), name="after").model
        connection.execute(f"REVOKE {role.split()[0]} FROM bob".encode())
    assert ran_as(connection) <= {"alice"}


@pytest.mark.usefixtures("curators")
def test_the_service_lends_no_such_right(database: str, connection: psycopg.Connection) -> None:
    """It is told so at registration, and before every charge: owners and rights change."""
    alice = as_role(database, "alice")
    connection.execute("CREATE ROLE ana LOGIN IN ROLE dpml_analyst")
    with Database(alice).session() as session:
        opening.open_budget(session, "parts", epsilon=Decimal(9), delta=Decimal("0.1"), rule="basic")

    def register() -> None:
        with Database(alice).session() as session:
            datasets.register(session, "parts", SPEC)

    def asked(model: str) -> tuple[str, str | None]:
        options = '{"privacy": {"epsilon": 1, "delta": 1e-6}, "training": {"method": "bolt-on"}}'
        with psycopg.connect(as_role(database, "ana"), autocommit=True) as ana:
            number = scalar(ana, "SELECT dpml.request('parts', %s, %s)", model, options)
        requests.serve(Database(alice), once=True, report=lambda line: None)
        answer = "SELECT state, message FROM dpml.requests WHERE id = %s"
        (row,) = connection.execute(answer.encode(), (number,)).fetchall()
        return row

    connection.execute("ALTER ROLE alice CREATEROLE")
    with pytest.raises(GuaranteeError, match=r"table lair\.part of role bob"):
        register()
    connection.execute("ALTER ROLE alice NOCREATEROLE")
    register()
    assert asked("first") == ("done", None)
    connection.execute("ALTER ROLE alice CREATEROLE")
    state, reason = asked("second")
    assert state == "refused"
    assert reason is not None
    assert "could run with the rights of role alice (CREATEROLE); ask role alice, which serves" in reason
    assert scalar(connection, "SELECT count(*) FROM dpml.ledger") == 1
    connection.execute("ALTER ROLE alice NOCREATEROLE")
    assert asked("third") == ("done", None)
    assert ran_as(connection) <= {"alice"}
    connection.execute("DROP OWNED BY ana; DROP ROLE ana")
