# SPDX-License-Identifier: PostgreSQL
"""The private server and the package that it is built from."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import psycopg
import pytest

from pg_dpml.errors import DpmlError, SpecError, UnavailableError
from pg_dpml.server import embedded, extension
from pg_dpml.server.demo_data import ADULT_SPEC, ADULT_TABLES, load_adult
from pg_dpml.server.embedded import EmbeddedServer, find_pg_config
from pg_dpml.spec.data import DataSpec

ROOT = Path(__file__).resolve().parents[2]
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to run the server as somebody else")


def test_server_has_the_extension(server: EmbeddedServer, connection: psycopg.Connection) -> None:
    rows = connection.execute(
        "SELECT extversion, current_setting('server_version_num')::int / 10000, "
        "current_setting('listen_addresses') FROM pg_extension WHERE extname = 'pg_dpml'"
    ).fetchall()
    assert rows == [(extension.Sources.find().version(), server.major, "")]


def test_only_the_server_account_can_reach_the_socket(server: EmbeddedServer) -> None:
    sockets = Path(psycopg.conninfo.conninfo_to_dict(server.dsn)["host"])  # type: ignore[arg-type]
    assert sockets.stat().st_mode & 0o777 == 0o700
    assert server.log_path.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.one_major
def test_adult_arrives_whole(connection: psycopg.Connection) -> None:
    load_adult(connection)
    counts = [
        connection.execute(
            f"SELECT count(*), count(*) FILTER (WHERE income = '>50K') FROM {table}"
        ).fetchone()
        for table in ADULT_TABLES
    ]
    assert counts == [(32561, 7841), (16281, 3846)]
    columns = {column.name for column in DataSpec.from_toml(ADULT_SPEC).columns}
    present = connection.execute(
        "SELECT attname::text FROM pg_attribute WHERE attrelid = 'adult_train'::regclass AND attnum > 0"
    ).fetchall()
    assert columns == {name for (name,) in present} - {"id", "income"}


@pytest.fixture
def folder() -> Iterator[Path]:
    """A path to make a folder at, in a place that every account can reach; pytest's own is closed."""
    with tempfile.TemporaryDirectory(prefix="dpml-test-", dir="/var/tmp") as place:
        Path(place).chmod(0o755)
        yield Path(place) / "server"


@pytest.mark.slow
def test_folder_keeps_the_data_and_is_used_by_one(folder: Path) -> None:
    with EmbeddedServer(folder, settings={"work_mem": "5MB"}) as server:
        with psycopg.connect(server.dsn) as connection:
            connection.execute("CREATE TABLE kept AS SELECT current_setting('work_mem') AS setting")
        with pytest.raises(UnavailableError, match="another process"):
            EmbeddedServer(folder).start()
    with EmbeddedServer(folder) as server, psycopg.connect(server.dsn) as connection:
        assert connection.execute("SELECT setting FROM kept").fetchone() == ("5MB",)
    server.stop()
    with pytest.raises(DpmlError, match="not running"):
        _ = server.dsn


@pytest.mark.slow
def test_server_left_behind_is_replaced(folder: Path) -> None:
    script = (
        "import os, sys; from pathlib import Path; from pg_dpml.server.embedded import EmbeddedServer\n"
        "EmbeddedServer(Path(sys.argv[1])).start(); os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", script, folder], check=False).returncode == 9
    with EmbeddedServer(folder) as server, psycopg.connect(server.dsn) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
    assert not (folder / "run-16" / "data" / "postmaster.pid").exists()


@pytest.mark.slow
def test_long_folder_gets_a_short_socket(folder: Path) -> None:
    with EmbeddedServer(folder / ("long" * 25)) as server, psycopg.connect(server.dsn) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
        sockets = Path(server.dsn.split("'")[1])
    assert not sockets.exists()


def test_setting_that_the_server_refuses(folder: Path) -> None:
    with pytest.raises(UnavailableError, match="no_such_setting"):
        EmbeddedServer(folder, settings={"no_such_setting": "1"}).start()


@as_root
def test_unreachable_folder_is_named_and_left_alone(folder: Path) -> None:
    closed = folder / "closed"
    closed.mkdir(mode=0o700, parents=True)
    with pytest.raises(SpecError, match=f"cannot enter {closed}. "):
        EmbeddedServer(closed / "below").start()
    assert closed.stat().st_mode & 0o777 == 0o700
    assert list(closed.iterdir()) == []


def test_unknown_major() -> None:
    with pytest.raises(SpecError, match="no PostgreSQL 7 found"):
        find_pg_config(7)


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CC", "no-such-compiler")
    pg_config = find_pg_config(16)
    with pytest.raises(DpmlError, match="no C compiler found"):
        extension.build_module(pg_config, extension.Sources.find(), [], tmp_path)


def test_compile_errors_are_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "wrong.c").write_text("int wrong(void) { return nothing_of_this_name; }\n")
    for name in ("compile_flags.txt", "pg_dpml.control"):
        shutil.copy(extension.Sources.find().server / name, tmp_path)
    sources = extension.Sources(tmp_path, tmp_path)
    with pytest.raises(DpmlError, match="nothing_of_this_name"):
        extension.build_module(find_pg_config(16), sources, [], tmp_path)


def test_a_server_of_the_system_is_compiled_for_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By its PGXS, which a shell script stands for; and anew when pg_config says something else."""
    programs, cache = tmp_path / "bin", tmp_path / "cache"
    programs.mkdir()
    (tmp_path / "server").mkdir()
    for name in ("pgxs.mk", "server/postgres.h"):
        (tmp_path / name).touch()
    make = programs / "make"
    make.write_text(
        "#!/bin/sh\n"
        f"echo made >>{tmp_path}/log\n"
        "for word; do case $word in DESTDIR=*) folder=${word#DESTDIR=}/lib ;; esac; done\n"
        "mkdir -p $folder && echo module >$folder/pg_dpml.so\n",
        encoding="utf-8",
    )
    make.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setattr(shutil, "which", lambda name: str(make) if name == "make" else None)
    said = {
        "VERSION": "PostgreSQL 15.1",
        "INCLUDEDIR-SERVER": f"{tmp_path}/server",
        "PGXS": f"{tmp_path}/pgxs.mk",
        "PKGLIBDIR": "/lib",
    }
    monkeypatch.setattr(extension, "pg_config_paths", lambda _: dict(said))
    modules = set()
    for flags in ("-O2", "-O2", "-O3"):
        said["CFLAGS"] = flags
        module = extension.build_module(
            Path("pg_config"), extension.Sources.find(), [cache], tmp_path, pgxs=True
        )
        assert module.read_text(encoding="utf-8") == "module\n"
        modules.add(module)
    assert modules == set(cache.iterdir())
    assert (tmp_path / "log").read_text(encoding="utf-8") == "made\nmade\n"


@pytest.mark.slow
def test_install_needs_the_right_to_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(DpmlError, match="cannot be written"):
        extension.install_extension(find_pg_config(16))


def test_package_version_is_the_extension_version() -> None:
    assert version("pg_dpml") == extension.Sources.find().version()
    assert embedded.__all__ == ["EmbeddedServer", "find_pg_config"]


PG_CONFIG = """#!/bin/sh
case $1 in
--version) echo "PostgreSQL {version}" ;;
--pgxs) echo {folder}/pgxs.mk ;;
--includedir-server) echo {folder} ;;
esac
"""


@pytest.mark.parametrize(
    ("version", "files", "complaint"),
    [
        (None, (), "is not there, or not the pg_config of a PostgreSQL."),
        ("", (), "is not there, or not the pg_config of a PostgreSQL."),
        ("14.9 (Debian 14.9-1)", ("pgxs.mk", "postgres.h"), "pg_dpml needs PostgreSQL 15 or newer."),
        ("9.6.1", ("pgxs.mk", "postgres.h"), "pg_dpml needs PostgreSQL 15 or newer."),
        ("17.2", (), "PostgreSQL 17.2 lacks its development files: no {folder}/pgxs.mk."),
        ("18beta1", ("pgxs.mk",), "PostgreSQL 18beta1 lacks its development files: no {folder}/postgres.h."),
    ],
)
def test_make_says_what_it_lacks(
    version: str | None, files: tuple[str, ...], complaint: str, tmp_path: Path
) -> None:
    """In one line, with the package or the option that brings it."""
    pg_config = tmp_path / "pg_config"
    if version is not None:
        text = PG_CONFIG.format(version=version, folder=tmp_path) if version else "#!/bin/sh\nexit 1\n"
        pg_config.write_text(text, encoding="utf-8")
        pg_config.chmod(0o755)
    for name in files:
        (tmp_path / name).touch()
    command = [
        "make",
        "--no-print-directory",
        "-n",
        "-C",
        str(ROOT / "udas"),
        f"PG_CONFIG={pg_config}",
        "all",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert complaint.format(folder=tmp_path) in done.stderr
    assert "PG_CONFIG" in done.stderr
    if "needs" not in complaint:
        assert f"apt-get install postgresql-server-dev-{(version or '15')[:2]}" in done.stderr


@pytest.mark.slow
def test_the_demo_says_what_ctrl_c_deletes(folder: Path, dpml_program: Path) -> None:
    """And of a folder that is kept it deletes nothing but the demo's own models."""
    command = [str(dpml_program), "demo", "--keep"]

    def run(*options: str, then: str) -> str:
        with subprocess.Popen(
            [*command, *options], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as demo:
            assert demo.stderr is not None
            said = ""
            try:
                for line in demo.stderr:
                    said += line
                    if "export PATH=" in line:
                        programs = Path(line.strip().rpartition(":")[2])
                    if "export PGHOST=" in line:
                        assert programs.joinpath("psql").is_file()
                        settings = dict(word.split("=", 1) for word in line.split()[1:])
                        dsn = f"host={settings['PGHOST']} user={settings['PGUSER']} dbname=postgres"
                        with psycopg.connect(dsn) as connection:
                            connection.execute(then.encode())
                    if "adult.toml" in line:
                        demo.send_signal(signal.SIGINT)
                assert demo.wait(60) == 130
            finally:
                demo.terminate()  # where an assertion failed, it would run for ever
        return said

    mine = (
        "CREATE TEMP TABLE m AS SELECT * FROM dpml.models LIMIT 1; UPDATE m SET name = 'mine'; "
        "INSERT INTO dpml.models TABLE m"
    )
    kept = run("--folder", str(folder), then=mine)
    assert f"which stops it; its tables and models stay in {folder}" in kept
    assert "\nStopping the server ...\n" in kept
    three = "(SELECT count(*) = 3 AND 'mine' = ANY (array_agg(name)) FROM dpml.models)"
    there = f"DO $$ BEGIN ASSERT {three}; END $$"
    run("--folder", str(folder), then=there)
    lost = run(then="SELECT 1")
    assert "which deletes it with all its tables and models (--folder FOLDER keeps them)" in lost
    assert "\nStopping the server and deleting it ...\n" in lost
