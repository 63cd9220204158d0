# SPDX-License-Identifier: PostgreSQL
"""From one version to the next: upgrades of the extension, mixed versions, distributions, the doctor."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from catalogs import Snapshot, differences, snapshot
from pg_dpml.extension import Sources
from sqltools import scalar

ROOT = Path(__file__).resolve().parents[2]
RELEASED = ROOT / "tests" / "database" / "released"
"""Install scripts of released versions, as they were released: pg_dpml--VERSION.sql."""

Put = Callable[[str, str], None]


# Upgrades


def faults_of_history(changelog: str, version: str, sql: Path, released: Path) -> list[str]:
    """What is missing for an upgrade from every released version."""
    headings = re.findall(r"^## (\S+) \((.+)\)$", changelog, re.MULTILINE)
    out = [name for name, when in headings if when != "unreleased"]
    steps = {tuple(path.stem.removeprefix("pg_dpml--").split("--")) for path in sql.glob("pg_dpml--*--*.sql")}
    faults = []
    if not headings or headings[0][0] != version:
        faults.append(f"CHANGELOG.md does not begin with {version}, the version of pg_dpml.control")
    if any(when == "unreleased" for _, when in headings[1:]):
        faults.append("only the newest version can be unreleased")
    for step in steps:
        faults += [
            f"an upgrade script names {name}, no version" for name in step if name not in dict(headings)
        ]
    reached = {version}
    while more := {old for old, new in steps if new in reached} - reached:
        reached |= more
    for name in out:
        script = released / f"pg_dpml--{name}.sql"
        if not script.is_file():
            faults.append(f"the install script of {name} is not in {released.name}/")
        elif name == version and script.read_bytes() != (sql / "pg_dpml.sql").read_bytes():
            faults.append(f"pg_dpml.sql is no longer that of {name}, which is released: make a new version")
        if name not in reached:
            faults.append(f"no upgrade script leads from {name} to {version}")
    return faults


def test_every_released_version_can_be_upgraded() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert faults_of_history(changelog, Sources.find().version(), ROOT / "sql", RELEASED) == []


def test_a_version_without_an_upgrade_is_noticed(tmp_path: Path) -> None:
    """What a release may forget, one after the other."""

    def faults(*headings: str, version: str = "2.0") -> str:
        changelog = "".join(f"## {heading}\n\n- text\n\n" for heading in headings)
        return "; ".join(faults_of_history(changelog, version, tmp_path, tmp_path))

    (tmp_path / "pg_dpml.sql").write_text("new")
    assert faults("1.0 (unreleased)", version="1.0") == ""
    assert "not in" in faults("1.0 (2026-12-01)", version="1.0")
    (tmp_path / "pg_dpml--1.0.sql").write_text("old")
    assert "make a new version" in faults("1.0 (2026-12-01)", version="1.0")
    assert "does not begin with 2.0" in faults("1.0 (2026-12-01)")
    released = ("2.0 (unreleased)", "1.1 (2026-12-02)", "1.0 (2026-12-01)")
    assert faults(*released).count("no upgrade script") == 2
    (tmp_path / "pg_dpml--1.1.sql").write_text("old")
    (tmp_path / "pg_dpml--1.0--1.1.sql").touch()
    assert faults(*released).count("no upgrade script") == 2
    (tmp_path / "pg_dpml--1.1--2.0.sql").touch()
    assert faults(*released) == ""
    assert "can be unreleased" in faults("2.0 (2026-12-03)", "1.1 (unreleased)", "1.0 (2026-12-01)")
    (tmp_path / "pg_dpml--1.0--3.0.sql").touch()
    assert "names 3.0" in faults(*released)


@pytest.fixture
def put(connection: psycopg.Connection) -> Iterator[Put]:
    """Add a file to the server's extensions until the test is over."""
    folder = Path(scalar(connection, "SELECT setting FROM pg_config() WHERE name = 'SHAREDIR'"), "extension")
    added = []

    def write(name: str, text: str) -> None:
        path = folder / name
        assert not path.exists()
        added.append(path)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o644)

    yield write
    for path in added:
        path.unlink()


def installed(connection: psycopg.Connection, *statements: str, name: str = "pg_dpml") -> Snapshot:
    """What an extension consists of after some statements, which are undone."""
    connection.execute("BEGIN")
    try:
        # A released script may name C functions that a newer module has no longer.
        connection.execute("SET LOCAL check_function_bodies = off")
        connection.execute("SET LOCAL client_min_messages = warning")
        connection.execute(f"DROP EXTENSION IF EXISTS {name} CASCADE".encode())
        connection.execute("DROP SCHEMA IF EXISTS dpml CASCADE")
        for statement in statements:
            connection.execute(statement.encode())
        return snapshot(connection, name)
    finally:
        connection.execute("ROLLBACK")


# An older version made up of the present one, for as long as none is released.
MADE_UP = "0.0.1"
SINCE = """
CREATE FUNCTION dpml.gone() RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE OR REPLACE FUNCTION dpml.append_only() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
GRANT SELECT ON dpml.models TO PUBLIC;
"""


@pytest.mark.parametrize(
    "version", [MADE_UP, *(p.stem.removeprefix("pg_dpml--") for p in RELEASED.glob("pg_dpml--*.sql"))]
)
def test_an_upgrade_equals_a_fresh_install(connection: psycopg.Connection, put: Put, version: str) -> None:
    """From every version, object by object."""
    now = Sources.find().version()
    fresh = installed(connection, "CREATE EXTENSION pg_dpml")
    if version == MADE_UP:
        body = scalar(connection, "SELECT pg_get_functiondef('dpml.append_only()'::regprocedure)")
        put(f"pg_dpml--{MADE_UP}.sql", (ROOT / "sql" / "pg_dpml.sql").read_text(encoding="utf-8") + SINCE)
        change = f"DROP FUNCTION dpml.gone(); {body}; REVOKE SELECT ON dpml.models FROM PUBLIC;"
        put(f"pg_dpml--{MADE_UP}--{now}.sql", change)
        old = installed(connection, f"CREATE EXTENSION pg_dpml VERSION '{MADE_UP}'")
        found = [line.partition(":")[0] for line in differences(old, fresh)]
        assert found == [
            *("extension", "function dpml.append_only()", "not in a fresh install", "table dpml.models")
        ]
    elif version != now:
        put(f"pg_dpml--{version}.sql", (RELEASED / f"pg_dpml--{version}.sql").read_text(encoding="utf-8"))
    upgraded = installed(
        connection, f"CREATE EXTENSION pg_dpml VERSION '{version}'", "ALTER EXTENSION pg_dpml UPDATE"
    )
    assert differences(upgraded, fresh) == []
    assert len(fresh) > 100


PROBE = """
CREATE TABLE probe.t (
	a int PRIMARY KEY, b text DEFAULT 'x' CHECK (b <> ''), c int GENERATED ALWAYS AS IDENTITY);
CREATE FUNCTION probe.f(x int) RETURNS int LANGUAGE sql STABLE AS 'SELECT x';
CREATE FUNCTION probe.g() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
CREATE TRIGGER r BEFORE INSERT ON probe.t FOR EACH ROW EXECUTE FUNCTION probe.g();
CREATE TYPE probe.pair AS (a int, b int);
CREATE AGGREGATE probe.total(int) (SFUNC = int4pl, STYPE = int, INITCOND = '0');
CREATE VIEW probe.v AS SELECT a FROM probe.t;
CREATE POLICY p ON probe.t USING (a > 0);
CREATE FUNCTION probe.h() RETURNS int RETURN 1;
"""
FORGOTTEN = {
    "a body": "CREATE OR REPLACE FUNCTION probe.f(x int) RETURNS int LANGUAGE sql STABLE AS 'SELECT x + 1'",
    "a body in SQL": "CREATE OR REPLACE FUNCTION probe.h() RETURNS int RETURN 2",
    "volatility": "ALTER FUNCTION probe.f(int) IMMUTABLE",
    "parallel": "ALTER FUNCTION probe.f(int) PARALLEL SAFE",
    "cost": "ALTER FUNCTION probe.f(int) COST 7",
    "strict": "ALTER FUNCTION probe.f(int) STRICT",
    "definer": "ALTER FUNCTION probe.f(int) SECURITY DEFINER",
    "settings": "ALTER FUNCTION probe.f(int) SET search_path = pg_catalog",
    "default of an argument": "CREATE OR REPLACE FUNCTION probe.f(x int = 1) RETURNS int LANGUAGE sql STABLE "
    "AS 'SELECT x'",
    "privileges of a function": "REVOKE ALL ON FUNCTION probe.f(int) FROM PUBLIC",
    "privileges of a table": "GRANT SELECT ON probe.t TO PUBLIC",
    "privileges of a column": "GRANT INSERT (a) ON probe.t TO PUBLIC",
    "privileges of a schema": "GRANT USAGE ON SCHEMA probe TO PUBLIC",
    "owner": "ALTER TABLE probe.t OWNER TO dpml_curator",
    "a comment": "COMMENT ON FUNCTION probe.f(int) IS 'f'",
    "a comment of a column": "COMMENT ON COLUMN probe.t.a IS 'a'",
    "a new function": "CREATE FUNCTION probe.f(x int, y int) RETURNS int LANGUAGE sql AS 'SELECT x'",
    "a function that is gone": "DROP FUNCTION probe.f(int)",
    "no member": "ALTER EXTENSION probe DROP FUNCTION probe.f(int)",
    "a new column": "ALTER TABLE probe.t ADD COLUMN d int",
    "a column's default": "ALTER TABLE probe.t ALTER COLUMN b SET DEFAULT 'y'",
    "a column's type": "ALTER TABLE probe.t ALTER COLUMN b TYPE varchar",
    "not null": "ALTER TABLE probe.t ALTER COLUMN b SET NOT NULL",
    "storage": "ALTER TABLE probe.t ALTER COLUMN b SET STORAGE PLAIN",
    "identity": "ALTER TABLE probe.t ALTER COLUMN c SET GENERATED BY DEFAULT",
    "sequence": "ALTER TABLE probe.t ALTER COLUMN c SET INCREMENT BY 2",
    "a constraint": "ALTER TABLE probe.t ADD CHECK (a > 1)",
    "an index": "CREATE INDEX ON probe.t (b)",
    "a trigger": "ALTER TABLE probe.t ENABLE ALWAYS TRIGGER r",
    "row security": "ALTER TABLE probe.t ENABLE ROW LEVEL SECURITY",
    "a policy": "ALTER POLICY p ON probe.t USING (a > 1)",
    "a composite type": "ALTER TYPE probe.pair ADD ATTRIBUTE c int",
    "an aggregate": "CREATE OR REPLACE AGGREGATE probe.total(int) "
    "(SFUNC = int4pl, STYPE = int, INITCOND = '1')",
    "a view": "CREATE OR REPLACE VIEW probe.v AS SELECT a + 0 AS a FROM probe.t",
    "a rule": "CREATE RULE n AS ON DELETE TO probe.v DO INSTEAD NOTHING",
    "what a dump takes along": "SELECT pg_extension_config_dump('probe.t', '')",
}


def test_whatever_an_upgrade_forgets_is_found(connection: psycopg.Connection, put: Put) -> None:
    """A change at a time: made by the upgrade, the two are equal; forgotten, a difference is found."""
    put("probe.control", "default_version = '0'\nrelocatable = false\nschema = probe\n")
    for number, change in enumerate(["", *FORGOTTEN.values()]):
        put(f"probe--{number}.sql", PROBE + change)
        if number:
            put(f"probe--0--{number}.sql", change)

    def probe(version: str, *then: str) -> Snapshot:
        found = installed(connection, f"CREATE EXTENSION probe VERSION '{version}'", *then, name="probe")
        found["extension"] = [row[1:] for row in found["extension"]]  # but the version
        return found

    old = probe("0")
    for number, name in enumerate(FORGOTTEN, start=1):
        fresh = probe(str(number))
        assert differences(old, fresh) != [], name
        assert differences(probe("0", f"ALTER EXTENSION probe UPDATE TO '{number}'"), fresh) == [], name
