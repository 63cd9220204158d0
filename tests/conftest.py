# SPDX-License-Identifier: PostgreSQL
"""Servers and databases for the tests: `--pg 16,18` runs each test that needs one on each major version."""

from __future__ import annotations

import gc
import itertools
import signal
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import psycopg
import pytest
import typer.testing

from helpers import prefork
from pg_dpml.server.embedded import EmbeddedServer

# Typer makes the tree of all commands anew for every call in a test, which takes longer than most commands.
typer.testing._get_command = cache(typer.testing._get_command)  # type: ignore[attr-defined]

_TEMPLATE = "dpml_template"
_numbers = itertools.count(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--pg", default="16", metavar="MAJORS", help="PostgreSQL majors to test, such as 16,18")
    parser.addoption("--long", action="store_true", help="run the tests marked long, too")


def pytest_configure(config: pytest.Config) -> None:
    # Workers of pytest-xdist ignore Ctrl-C, as does what shells start in the background: so would children.
    if hasattr(config, "workerinput") or signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _majors(config: pytest.Config) -> list[int]:
    try:
        return [int(major) for major in config.getoption("--pg").split(",")]
    except ValueError:
        raise pytest.UsageError("--pg takes major versions separated by commas, such as 16,18") from None


def pytest_report_header(config: pytest.Config) -> str:
    return f"PostgreSQL: {', '.join(map(str, _majors(config)))}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "server" in metafunc.fixturenames:
        majors = _majors(metafunc.config)
        if metafunc.definition.get_closest_marker("one_major"):
            majors = majors[:1]
        names = [f"pg{major}" for major in majors]
        metafunc.parametrize("server", majors, ids=names, indirect=True, scope="session")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is marked long, and of `dealt` cases all but one major each; then order the files.

    What is left out counts as deselected, not as passed and not as skipped. Files with slow tests come first:
    at the end they would keep one process busy while the others have nothing to do.
    """
    long, majors = config.getoption("--long"), _majors(config)
    left_out = {
        item
        for item in items
        if (item.get_closest_marker("long") and not long) or _is_dealt_to_another(item, majors)
    }
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_collection_finish() -> None:
    """Look for garbage less often, and not among what all tests use: that took a tenth of the time."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def _is_dealt_to_another(item: pytest.Item, majors: list[int]) -> bool:
    """Whether a case of a test marked `dealt` is for another major than this one, by a hash of its name."""
    if not isinstance(item, pytest.Function) or item.get_closest_marker("dealt") is None:
        return False
    if item.get_closest_marker("one_major") or "server" not in item.fixturenames:
        return False
    major = item.callspec.params["server"]
    case = item.name.replace(f"pg{major}", "")
    return majors[zlib.crc32(case.encode()) % len(majors)] != major


@pytest.fixture(scope="session")
def servers() -> Iterator[Callable[[int], EmbeddedServer]]:
    """Private servers by major, started when first asked for; in each a template with the extension."""
    with ExitStack() as started:

        @cache
        def start(major: int) -> EmbeddedServer:
            running = started.enter_context(EmbeddedServer(major=major))
            with psycopg.connect(running.dsn, autocommit=True) as connection:
                connection.execute(f"CREATE DATABASE {_TEMPLATE}")
            with psycopg.connect(running.dsn_of(_TEMPLATE), autocommit=True) as connection:
                connection.execute("CREATE EXTENSION pg_dpml")
            return running

        yield start


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest, servers: Callable[[int], EmbeddedServer]) -> EmbeddedServer:
    """The server of a major of --pg. It outlives this fixture, which every file goes through anew."""
    return servers(request.param)


@pytest.fixture(scope="module")
def database(server: EmbeddedServer) -> Iterator[str]:
    """Connection string of a database with the extension, one for each test module; role postgres."""
    name = f"dpml_test_{next(_numbers)}"
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {_TEMPLATE}")
    yield server.dsn_of(name)
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="session")
def dpml_program() -> Iterator[Path]:
    """The command `dpml`; see `helpers.prefork`."""
    with prefork.program() as dpml:
        yield dpml


@pytest.fixture
def connection(database: str) -> Iterator[psycopg.Connection]:
    """A superuser's connection to `database`, in autocommit mode."""
    with psycopg.connect(database, autocommit=True) as opened:
        yield opened
