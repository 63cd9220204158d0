# SPDX-License-Identifier: PostgreSQL
"""From one version to the next: upgrades of the extension, mixed versions, distributions, the doctor."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from psycopg import sql
from typer.testing import CliRunner

from helpers.catalogs import Snapshot, differences, snapshot
from helpers.sqltools import scalar
from pg_dpml.cli.framework import app
from pg_dpml.server import extension, maintenance
from pg_dpml.server.embedded import EmbeddedServer, find_pg_config
from pg_dpml.server.extension import Sources, prebuilt_module

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


def test_default_privileges_open_nothing_to_everybody(connection: psycopg.Connection) -> None:
    """What an administrator gives PUBLIC of every new object, the extension takes away again."""
    opened = [
        f"ALTER DEFAULT PRIVILEGES GRANT ALL ON {kind} TO PUBLIC"
        for kind in ("SCHEMAS", "TABLES", "SEQUENCES")
    ]
    usual = installed(connection, "CREATE EXTENSION pg_dpml")
    assert differences(installed(connection, *opened, "CREATE EXTENSION pg_dpml"), usual) == []


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


@pytest.mark.one_major
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


# Distributions


def run(*command: object, cwd: Path, **environment: str) -> str:
    """What a program prints in an environment without ours; it must succeed."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "PYTHON"))}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=plain | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.one_major
def test_a_module_of_the_package_is_taken_for_its_server_and_sources_only(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    pg_config = find_pg_config(server.major)
    sources = Sources(tmp_path / "udas", tmp_path / "sql")
    shutil.copytree(Sources.find().server, sources.server)
    assert prebuilt_module(pg_config, sources) is None
    (sources.server / "prebuilt").mkdir()
    module = sources.server / "prebuilt" / extension._prebuilt(pg_config, sources)
    module.touch()
    assert prebuilt_module(pg_config, sources) == module
    assert prebuilt_module(find_pg_config(18 if server.major == 16 else 16), sources) is None
    with (sources.server / "kernels" / "block.h").open("a") as header:
        header.write("/* newer */\n")
    assert prebuilt_module(pg_config, sources) is None


def test_installing_needs_a_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, message in (([], "say which server"), ([str(tmp_path / "pg_config")], "does not run")):
        assert extension._main(*arguments) == 2
        assert message in capsys.readouterr().err


STARTED = """
import sys, psycopg
from pg_dpml import extension
from pg_dpml.server.embedded import EmbeddedServer
assert str(extension.Sources.find().server).startswith(sys.argv[1]), extension.Sources.find()
with EmbeddedServer(major=int(sys.argv[2])) as server, psycopg.connect(server.dsn) as connection:
    connection.execute("CREATE EXTENSION pg_dpml")
    print(connection.execute("SELECT dpml.module_version()").fetchone()[0])
"""


def built(kind: str, source: Path, target: Path, **environment: str) -> Path:
    """An sdist or a wheel of a folder, by the build backend itself: nothing is downloaded."""
    step = "import setuptools.build_meta as b, sys; print(getattr(b, 'build_' + sys.argv[1])(sys.argv[2]))"
    return target / run(sys.executable, "-c", step, kind, target, cwd=source, **environment).split()[-1]


@pytest.fixture
def sdist(tmp_path: Path) -> Path:
    """What is in an sdist of the checkout."""
    copy = tmp_path / "copy"
    for name in ("controller", "udas", "sql"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("*.o", "*.so", "__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    (tmp_path / "sdist").mkdir()
    run("tar", "-xzf", built("sdist", copy, tmp_path), "-C", tmp_path / "sdist", cwd=tmp_path)
    [unpacked] = (tmp_path / "sdist").iterdir()
    return unpacked


@pytest.mark.slow
def test_distributions_carry_the_sources(sdist: Path, tmp_path: Path) -> None:
    """An sdist builds a wheel, and both have what compiling the server module needs."""
    flags = sdist / "udas" / "compile_flags.txt"
    optimised = flags.read_text(encoding="utf-8")
    assert "-O3" in optimised
    flags.write_text(optimised.replace("-O3", "-O0"), encoding="utf-8")  # nobody runs the wheel
    with zipfile.ZipFile(built("wheel", sdist, tmp_path)) as wheel:
        names = set(wheel.namelist())
    expected = {
        "pg_dpml/server/data/adult.toml",
        "pg_dpml/server/data/adult_train.csv.gz",
        "pg_dpml/server/data/README.md",
        "pg_dpml/privacy/README.md",
        "pg_dpml/py.typed",
        "pg_dpml/_server/Makefile",
        "pg_dpml/_server/compile_flags.txt",
        "pg_dpml/_server/pg_dpml.control",
        "pg_dpml/_sql/pg_dpml.sql",
        *(f"pg_dpml/_server/{path.relative_to(ROOT / 'udas')}" for path in (ROOT / "udas").rglob("*.[ch]")),
        *(str(path.relative_to(ROOT / "controller")) for path in (ROOT / "controller").rglob("*.py")),
    }
    assert expected <= names
    assert any(name.startswith("pg_dpml/_kernels.") for name in names)


@pytest.mark.long
@pytest.mark.one_major
def test_a_wheel_with_a_module_needs_no_compiler(server: EmbeddedServer, sdist: Path, tmp_path: Path) -> None:
    """From the checkout to an sdist, a wheel, an installed package, a server of its own and one of others."""
    pg_config = find_pg_config(server.major)
    wheel = built("wheel", sdist, tmp_path, PG_DPML_PG_CONFIG=str(pg_config))
    target = tmp_path / "target"
    pip = (sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", target)
    run(*pip, wheel, cwd=tmp_path)
    now = Sources.find().version()
    bare = {"PYTHONPATH": str(target), "PATH": str(tmp_path), "CC": "no-such-compiler"}
    bare["XDG_CACHE_HOME"] = str(tmp_path / "cache")
    assert run(sys.executable, "-c", STARTED, target, server.major, cwd=tmp_path, **bare) == now
    # A server as its administrator has it, with all its files and without the extension.
    root = tmp_path / "site"
    shutil.copytree(pg_config.parents[1], root / pg_config.parents[1].name, symlinks=True)
    installed = root / pg_config.relative_to(pg_config.parents[2])
    paths = extension.pg_config_paths(installed)
    run(sys.executable, "-m", "pg_dpml.server.extension", installed, cwd=tmp_path, **bare)
    [module] = (target / "pg_dpml" / "_server" / "prebuilt").iterdir()
    assert Path(paths["PKGLIBDIR"], "pg_dpml.so").read_bytes() == module.read_bytes()
    assert Path(paths["SHAREDIR"], "extension", f"pg_dpml--{now}.sql").is_file()


@pytest.mark.slow
def test_an_install_outside_of_the_server_s_folders() -> None:
    """PostgreSQL 18 finds it by two settings, in a folder that its administrator need not own."""
    with (
        tempfile.TemporaryDirectory(prefix="dpml-test-", dir="/var/tmp") as place,
        EmbeddedServer(major=18) as server,
    ):
        own = Path(place) / "own"
        # its place is looked at, not its speed
        extension._pgxs(
            find_pg_config(18), Sources.find(), Path(place), [f"prefix={own}", "PG_CFLAGS=-std=gnu11 -O0"]
        )
        for path in (Path(place), *Path(place).rglob("*")):
            path.chmod(0o755)
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            folders: dict[str, str] = dict(
                connection.execute("SELECT name, setting FROM pg_config()").fetchall()
            )
            Path(folders["PKGLIBDIR"], "pg_dpml.so").unlink()
            for path in Path(folders["SHAREDIR"], "extension").glob("pg_dpml*"):
                path.unlink()
            with pytest.raises(psycopg.errors.FeatureNotSupported, match="is not available"):
                connection.execute("CREATE EXTENSION pg_dpml")
            # As docs/install.md says.
            connection.execute(
                f"ALTER SYSTEM SET extension_control_path = '{own}/share/postgresql:$system'".encode()
            )
            connection.execute(
                f"ALTER SYSTEM SET dynamic_library_path = '{own}/lib/postgresql:$libdir'".encode()
            )
            connection.execute("SELECT pg_reload_conf()")
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute("CREATE EXTENSION pg_dpml")
            assert scalar(connection, "SELECT dpml.module_version()") == Sources.find().version()
            loaded = "SELECT module_name, version FROM pg_get_loaded_modules() WHERE file_name = 'pg_dpml.so'"
            assert connection.execute(loaded).fetchall() == [("pg_dpml", Sources.find().version())]


# The doctor


@pytest.fixture
def doctor(database: str) -> Callable[..., dict[str, dict[str, Any]]]:
    """Findings by name, of a role or of another server, and the exit code under ""."""

    def run(*arguments: str, dsn: str = database, user: str = "postgres") -> dict[str, dict[str, Any]]:
        dsn = dsn.replace("user='postgres'", f"user='{user}'")
        result = CliRunner().invoke(app, ["doctor", "--format", "json", "--dsn", dsn, *arguments])
        assert result.stderr == ""
        record = json.loads(result.stdout)
        assert record["ok"] == (result.exit_code == 0) == all(check["ok"] for check in record["checks"])
        assert all(check["fix"] for check in record["checks"] if not check["ok"])
        return {check["name"]: check for check in record["checks"]}

    return run


Doctor = Callable[..., dict[str, dict[str, Any]]]


def wrong(findings: dict[str, dict[str, Any]]) -> list[str]:
    return [name for name, check in findings.items() if not check["ok"]]


def test_the_module_says_its_version(connection: psycopg.Connection, doctor: Doctor) -> None:
    now = Sources.find().version()
    assert scalar(connection, "SELECT dpml.module_version()") == now
    assert doctor()["module"]["found"] == f"version {now}, as its SQL"


@pytest.mark.parametrize(
    ("package", "installed", "files", "fix"),
    [
        (
            "0.2.0",
            "0.1.0",
            "0.1.0",
            "in the sources of version 0.2.0, then as a superuser, ALTER EXTENSION pg_dpml UPDATE",
        ),
        ("0.2.0", "0.1.0", "0.2.0", "ALTER EXTENSION pg_dpml UPDATE"),
        ("0.2.0", "0.1.0", "0.2.0 without an upgrade", "no upgrade leads from 0.1.0 to 0.2.0"),
        ("0.9.0", "0.10.0", "0.10.0", "install the package in version 0.10.0 here"),
        ("0.2.0", None, "0.2.0", "CREATE EXTENSION pg_dpml"),
        ("0.2.0", None, "0.1.0", "then as a superuser, CREATE EXTENSION pg_dpml"),
        ("0.2.0", None, None, "then as a superuser, CREATE EXTENSION pg_dpml"),
        ("0.1.0", None, "0.2.0", "install the package in version 0.2.0 here"),
    ],
)
def test_the_doctor_explains_versions(
    monkeypatch: pytest.MonkeyPatch, package: str, installed: str | None, files: str | None, fix: str
) -> None:
    """Package, SQL in the database, files on the server: each combination has its own way out."""

    def fetch(query: sql.Composable, parameters: object = None) -> list[tuple[str, ...]]:
        text = query.as_string()
        if "pg_extension_update_paths" in text:
            return [] if files and "without" in files else [()]
        value = files and files.split()[0] if "pg_available_extensions" in text else installed
        return [(value,)] if value else []

    monkeypatch.setattr(maintenance, "version", lambda name: package)
    check = maintenance._extension(SimpleNamespace(fetch=fetch))  # type: ignore[arg-type]
    assert not check.ok
    assert fix in check.fix
    monkeypatch.setattr(maintenance, "version", lambda name: installed)
    if installed is not None:
        same = maintenance._extension(SimpleNamespace(fetch=fetch))  # type: ignore[arg-type]
        assert same.ok
        assert ("is ready" in same.note) == (files != installed)


@pytest.mark.one_major
def test_the_doctor_finds_a_module_of_another_version(
    connection: psycopg.Connection, doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that lacks a function of the SQL, none at all, and one that says another number."""
    connection.execute("SET allow_system_table_mods = on")  # CREATE FUNCTION would look for the function
    change = "UPDATE pg_proc SET {} WHERE oid = 'dpml.module_version()'::regprocedure"
    right = "prosrc = 'dpml_module_version', probin = '$libdir/pg_dpml', prolang = 13"
    for instead, found in (
        ("prosrc = 'dpml_of_tomorrow'", "could not find function"),
        ("probin = '$libdir/gone'", "could not access file"),
        (
            "prosrc = $$SELECT '0.0.9'$$, probin = NULL, prolang = 14",
            "version 0.0.9, its SQL in this database",
        ),
    ):
        connection.execute(change.format(instead).encode())
        try:
            findings = doctor()
        finally:
            connection.execute(change.format(right).encode())
        assert wrong(findings) == ["module"]
        assert found in findings["module"]["found"]
        assert "ALTER EXTENSION pg_dpml UPDATE" in findings["module"]["fix"]
    assert wrong(doctor()) == []
    monkeypatch.setattr(maintenance, "version", lambda name: "9.0")
    assert wrong(doctor()) == ["extension"]


@pytest.mark.one_major
def test_the_doctor_names_the_grant_that_is_missing(connection: psycopg.Connection, doctor: Doctor) -> None:
    connection.execute("CREATE SCHEMA ward; CREATE TABLE ward.visits (a int, b int)")
    connection.execute("CREATE ROLE nurse LOGIN")
    findings: dict[str, dict[str, Any]] = {}
    try:
        for grant, bad in (
            ("SELECT", ["rights", "table"]),
            ("GRANT dpml_curator TO nurse", ["table"]),
            ("GRANT USAGE ON SCHEMA ward TO nurse", ["table"]),
            ("GRANT SELECT ON ward.visits TO nurse", []),
            ("ALTER TABLE ward.visits ENABLE ROW LEVEL SECURITY", ["table"]),
        ):
            if grant.startswith("GRANT"):
                assert any(grant in check["fix"].replace('"', "") for check in findings.values())
            connection.execute(grant.encode())
            findings = doctor("--table", "ward.visits", user="nurse")
            assert wrong(findings) == bad, grant
        assert "row-level security" in findings["table"]["found"]
        connection.execute("ALTER TABLE ward.visits DISABLE ROW LEVEL SECURITY")
        connection.execute(
            "REVOKE SELECT ON ward.visits FROM nurse; GRANT SELECT (a) ON ward.visits TO nurse"
        )
        assert "all but b" in doctor("--table", "ward.visits", user="nurse")["table"]["note"]
        connection.execute("REVOKE CREATE ON SCHEMA dpml_work FROM dpml_curator")
        assert doctor(user="nurse")["rights"]["fix"] == "GRANT CREATE ON SCHEMA dpml_work TO dpml_curator"
        connection.execute("GRANT CREATE ON SCHEMA dpml_work TO dpml_curator")
        connection.execute("CREATE TABLE dpml_work.blocks_dead (block bytea)")
        assert doctor(user="nurse")["work tables"]["fix"] == "dpml cleanup, as a superuser or as postgres"
        assert doctor()["work tables"]["fix"] == "dpml cleanup"
    finally:
        connection.execute("DROP TABLE IF EXISTS dpml_work.blocks_dead; DROP SCHEMA ward CASCADE")
        connection.execute("GRANT CREATE ON SCHEMA dpml_work TO dpml_curator; DROP ROLE nurse")


@pytest.mark.one_major
def test_the_doctor_knows_a_standby(server: EmbeddedServer, doctor: Doctor) -> None:
    """A server that replays for ever, as a replica does."""
    with tempfile.TemporaryDirectory(prefix="dpml-test-", dir="/var/tmp") as place:
        Path(place).chmod(0o755)
        with EmbeddedServer(Path(place) / "server", server.major) as primary:
            with psycopg.connect(primary.dsn) as connection:
                connection.execute("CREATE EXTENSION pg_dpml")
            data = primary.log_path.parent / "data"
        (data / "standby.signal").touch()
        with EmbeddedServer(Path(place) / "server", server.major) as standby:
            findings = doctor(dsn=standby.dsn)
    assert wrong(findings) == ["writable"]
    assert "train on the primary" in findings["writable"]["fix"]
