# SPDX-License-Identifier: PostgreSQL
"""The SQL files of `make installcheck`, which test the extension with nothing but PostgreSQL."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import psycopg
import pytest

from pg_dpml.server.embedded import EmbeddedServer, find_pg_config

ROOT = Path(__file__).resolve().parents[2]
FILES = ROOT / "tests" / "sql"
DATABASE = "contrib_regression"


def names() -> list[str]:
    """The files that the Makefile lists, in its order."""
    (listed,) = re.findall(r"^REGRESS = (.*)$", (ROOT / "udas" / "Makefile").read_text("utf-8"), re.MULTILINE)
    return str(listed).split()


def environment(server: EmbeddedServer) -> dict[str, str]:
    plain = {key: value for key, value in os.environ.items() if not key.startswith("PG")}
    return plain | server.environment | {"LC_ALL": "C"}


def test_every_file_is_listed() -> None:
    for folder, suffix in (("sql", ".sql"), ("expected", ".out")):
        assert sorted(path.name for path in (FILES / folder).iterdir()) == sorted(
            name + suffix for name in names()
        )


def test_psql_prints_what_is_expected(server: EmbeddedServer) -> None:
    """As pg_regress does, which some servers come without."""
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {DATABASE}_psql".encode())
        try:
            for name in names():
                with (FILES / "sql" / f"{name}.sql").open("rb") as script:
                    run = subprocess.run(
                        [server.programs / "psql", "-X", "-a", "-q", "-d", f"{DATABASE}_psql"],
                        stdin=script,
                        env=environment(server),
                        stdout=subprocess.PIPE,
                        stderr=subprocess.STDOUT,
                        text=True,
                        check=True,
                    )
                assert run.stdout == (FILES / "expected" / f"{name}.out").read_text(encoding="utf-8"), name
        finally:
            connection.execute(f"DROP DATABASE {DATABASE}_psql WITH (FORCE)".encode())


def has_pg_regress(pg_config: Path) -> bool:
    """Whether a server came with one that runs; that of the wheel of PostgreSQL 18 does not."""
    command = [str(pg_config), "--pgxs"]
    pgxs = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    driver = Path(pgxs).parents[1] / "test" / "regress" / "pg_regress"
    return driver.is_file() and subprocess.run([str(driver), "--version"], check=False).returncode == 0


def test_make_installcheck(server: EmbeddedServer, tmp_path: Path) -> None:
    """The command of CONTRIBUTING.md; the results stay out of the checkout."""
    pg_config = find_pg_config(server.major)
    if shutil.which("make") is None or not has_pg_regress(pg_config):
        pytest.skip("no make or no pg_regress that runs: the test above compares the same files")
    command = ["make", "-C", str(ROOT / "udas"), "installcheck", f"PG_CONFIG={pg_config}"]
    run = subprocess.run(
        [*command, f"REGRESS_RESULTS={tmp_path}"],
        env=environment(server),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {DATABASE} WITH (FORCE)".encode())
    differences = tmp_path / "regression.diffs"
    assert run.returncode == 0, differences.read_text("utf-8") if differences.exists() else run.stderr
    assert sorted(path.stem for path in (tmp_path / "results").iterdir()) == sorted(names())
