# SPDX-License-Identifier: PostgreSQL
"""Opening connections: by libpq connection strings, the environment and SQLAlchemy engines.

No error here quotes a connection string, or a parser's message about it: the fault may be in the password.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import pq
from psycopg.rows import tuple_row

from pg_dpml.errors import SpecError, UnavailableError

if TYPE_CHECKING:
    import sqlalchemy as sa

__all__ = ["Opened", "Opener", "opener", "refuse_password"]

_SCHEME = re.compile(r"\s*([A-Za-z][A-Za-z0-9.-]*)(\+[A-Za-z0-9_.-]*)?://")
_SECRETS = {"scram_client_key", "scram_server_key"} | {
    option.keyword.decode() for option in pq.Conninfo.get_defaults() if option.dispchar == b"*"
}


@dataclass(frozen=True)
class Opened:
    """A connection outside any transaction.

    Attributes
    ----------
    driver : psycopg.Connection
    close : callable
        Closes the connection, in whatever state it is; to be called last.
    begun : callable
        Raises the engine's event for the beginning of a transaction.
    """

    driver: psycopg.Connection[Any]
    close: Callable[[], None]
    begun: Callable[[], None] = lambda: None

    def start(self, isolation: str) -> None:
        """Begin the next transaction at an isolation level; AUTOCOMMIT makes each statement one."""
        self.driver.autocommit = isolation == "AUTOCOMMIT"
        levels = {level.name.replace("_", " "): level for level in psycopg.IsolationLevel}
        self.driver.isolation_level = levels.get(isolation)
        self.begun()


Opener = Callable[[], Opened]
"""Opens a connection; raises psycopg's errors."""


def refuse_password(dsn: str) -> None:
    """Reject a connection string of a command line, visible to every user of the machine, with a password."""
    if _SECRETS & set(_parameters(dsn, "--dsn")):
        raise SpecError(
            "--dsn must not hold a password: use a password file (PGPASSFILE), a service (PGSERVICE) "
            "or PGPASSWORD"
        )


def opener(database: str | sa.Engine) -> Opener:
    """A function that opens connections to a database.

    Parameters
    ----------
    database : str or sqlalchemy.Engine
        Connection string, or an engine over psycopg 3.

    Raises
    ------
    SpecError
        If `database` is anything else.
    """
    if isinstance(database, str):
        return _by_string(database)
    if "sqlalchemy" in sys.modules:
        import sqlalchemy as sa

        if isinstance(database, sa.Engine):
            return _by_engine(database)
    raise SpecError("database must be a connection string or an SQLAlchemy engine, not an open connection")


def _parameters(dsn: str, what: str) -> dict[str, str]:
    """The options that a connection string sets."""
    scheme = _SCHEME.match(dsn)
    if scheme is not None and (scheme[2] is not None or scheme[1] not in ("postgres", "postgresql")):
        raise SpecError(
            f"{what} is a URL for another library than libpq: write postgresql://user@host/database, or pass "
            "sqlalchemy.create_engine(URL) in Python (postgresql+psycopg)"
        )
    refusal = SpecError(
        f"{what} is not a libpq connection string, such as postgresql://user@host:5432/database or "
        "host=... dbname=... user=...: in a URL write @ : / ? # and % inside a part as %40 %3A %2F %3F %23 "
        "and %25, else quote values with blanks. It is not shown, since it may hold a password"
    )
    try:
        options = pq.Conninfo.parse(dsn.encode())
        given = {o.keyword.decode(): o.val.decode() for o in options if o.val is not None}
    except (psycopg.Error, ValueError):
        raise refusal from None
    # An @ in a URL's password makes a host of what follows, and a slash in it a port of what precedes.
    misread = scheme is not None and any("@" in given.get(part, "")[1:] for part in ("host", "dbname"))
    if misread or not re.fullmatch("[0-9, ]*", given.get("port", "")):
        raise refusal
    return given


def _by_string(dsn: str) -> Opener:
    given = _parameters(dsn, "the connection string")
    # psycopg looks up the host that PGHOST names, but does not name it in the error if there is none.
    if not {"host", "hostaddr", "service"} & set(given) and "PGSERVICE" not in os.environ:
        given.update({"host": os.environ["PGHOST"]} if os.environ.get("PGHOST") else {})

    def connect() -> Opened:
        # In UTF-8 from the start: an encoding that Python lacks would stop the first statement.
        settings: dict[str, Any] = {**given, "application_name": "dpml", "client_encoding": "UTF8"}
        driver = psycopg.connect("", **settings)
        return Opened(driver, driver.close)

    return connect


def _by_engine(engine: sa.Engine) -> Opener:
    """Open connections by an engine, with its events; they leave its pool, which could be too small."""
    import sqlalchemy as sa

    if engine.driver != "psycopg":
        raise SpecError(
            f"the engine must use psycopg 3: create_engine('postgresql+psycopg://...'), not {engine.driver}"
        )

    lent: set[psycopg.Connection[Any]] = set()

    def connect() -> Opened:
        one = isinstance(engine.pool, sa.StaticPool | sa.SingletonThreadPool)
        connection = _connected(engine, only=one)
        driver = connection.connection.driver_connection
        idle = isinstance(driver, psycopg.Connection) and (
            driver.info.transaction_status == pq.TransactionStatus.IDLE
        )
        if not isinstance(driver, psycopg.Connection) or driver in lent or (one and not idle):
            connection.close()
            raise SpecError(
                "the engine must give each session a psycopg connection of its own, outside any transaction, "
                "and a run that is charged has two at once: make it with poolclass=sqlalchemy.NullPool"
            )
        lent.add(driver)
        if not one:
            connection.detach()
            driver.commit()  # what the engine's creator or events have set
        before = driver.autocommit, driver.isolation_level

        def begun() -> None:
            """Raise the engine's event; the driver ends the transaction without the engine's knowledge."""
            earlier = connection.get_transaction()
            if earlier is not None:
                earlier.close()
            connection.begin()

        def close() -> None:
            lent.discard(driver)
            if driver.closed:
                connection.invalidate()
            elif one:
                driver.rollback()
                driver.autocommit, driver.isolation_level = before
            connection.close()

        return Opened(driver, close, begun)

    return connect


def _connected(engine: sa.Engine, *, only: bool) -> sa.Connection:
    import sqlalchemy as sa

    try:
        # SQLAlchemy asks only the first connection of an engine for the server's version.
        if only or engine.dialect.server_version_info is not None:
            return engine.connect()
        with _readable(engine):
            return engine.connect()
    except sa.exc.DBAPIError as error:
        if isinstance(error.orig, psycopg.Error):
            raise error.orig from None
        raise UnavailableError("cannot reach PostgreSQL by the engine: its connection was lost") from None
    except sa.exc.TimeoutError:
        raise UnavailableError(
            "the engine's pool has no connection left: wait for those that are in use, or give it more "
            "(pool_size, max_overflow, or poolclass=NullPool)"
        ) from None
    except psycopg.Error:
        raise
    except Exception as error:
        raise SpecError(
            f"the engine cannot connect (a {type(error).__name__}, whose text is not shown since it may hold "
            "a password): try engine.connect()"
        ) from None


@contextmanager
def _readable(engine: sa.Engine) -> Iterator[None]:
    """Let new connections of this thread answer SQLAlchemy's own queries, however they are set up."""
    import sqlalchemy as sa

    thread = threading.get_ident()

    def settle(driver: object, _: object) -> None:
        if threading.get_ident() == thread and isinstance(driver, psycopg.Connection):
            driver.cursor_factory, driver.row_factory = psycopg.Cursor, tuple_row
            driver.pgconn.exec_(b"SET client_encoding = 'UTF8'")

    sa.event.listen(engine, "connect", settle, insert=True)
    try:
        yield
    finally:
        sa.event.remove(engine, "connect", settle)
