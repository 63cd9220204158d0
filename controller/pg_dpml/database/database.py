# SPDX-License-Identifier: PostgreSQL
"""A database: how its connections and transactions begin and end."""

from __future__ import annotations

import ipaddress
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import psycopg

from pg_dpml.database.connections import Opened, opener
from pg_dpml.database.failures import LOST, translate
from pg_dpml.database.session import Session
from pg_dpml.errors import (
    CommitLostError,
    RunInterrupted,
    SpecError,
    UnavailableError,
)

__all__ = [
    "Database",
]


if TYPE_CHECKING:
    import sqlalchemy as sa

_PATIENCE_S = 10.0
"""Seconds within which a second connection must be served."""


class Database:
    """The database that has the rows.

    Parameters
    ----------
    database : str or sqlalchemy.Engine
        libpq connection string or URL, or an engine over psycopg 3. Each session has a connection of its
        own, which leaves the engine's pool and is closed. A pool with a single connection (StaticPool) lends
        that one, if it is in no transaction.
    insecure : bool
        Allow TCP without TLS to another machine.
    """

    def __init__(self, database: str | sa.Engine = "", *, insecure: bool = False) -> None:
        self._insecure = insecure
        self._connect = opener(database)

    @contextmanager
    def session(self, isolation: str = "READ COMMITTED") -> Iterator[Session]:
        """One transaction: committed at the end of the block, rolled back on any exception.

        Raises
        ------
        UnavailableError
            If the server cannot be reached or is read-only, or the connection is lost.
        CommitLostError, RunInterrupted
            If the answer to the commit of a transaction that `must_last` is lost, or not waited for.
        DpmlError
            For any other error of the server; the message is its first line, without detail.
        """
        with self.connection() as opened, self.transaction(opened, isolation) as session:
            yield session

    @contextmanager
    def connection(self) -> Iterator[Opened]:
        """Open a connection, for one `transaction` after another.

        Raises
        ------
        UnavailableError
            If the server cannot be reached, or the engine's pool has no connection within its timeout.
        """
        try:
            opened = self._connect()
        except psycopg.Error as error:
            raise translate(error, connected=False) from None
        try:
            self._require_tls(opened.driver)
            yield opened
        finally:
            opened.close()

    @contextmanager
    def transaction(
        self, opened: Opened, isolation: str = "READ COMMITTED", *, kept: bool = True
    ) -> Iterator[Session]:
        """Like `session`, on a connection without a transaction; rolled back at the end if not `kept`."""
        driver = opened.driver
        session = None
        try:
            opened.start(isolation)
            session = Session(driver)
            yield session
            if kept:
                _commit(driver, session.at_stake)
            else:
                driver.rollback()
        except BaseException as error:
            # No rollback can be sent while a statement may still be running, as after an interrupt, or on
            # a lost connection.
            if not isinstance(error, Exception):
                with suppress(psycopg.Error):
                    driver.cancel()
                driver.close()
            with suppress(psycopg.Error):
                driver.rollback()
            if isinstance(error, psycopg.Error):
                raise translate(error, session) from None
            raise

    @contextmanager
    def beside(self) -> Iterator[Session]:
        """Like `session`, on a second connection while the first has a transaction.

        Raises
        ------
        SpecError
            If the engine lends one connection only.
        UnavailableError
            If the second connection is not served in time, as by a pooler with one connection to the server.
        """
        with self.connection() as second:
            late = threading.Event()
            # A statement that a pooler holds back cannot be cancelled: only closing its connection ends it.
            patience = threading.Timer(_PATIENCE_S, _hang_up, (second.driver, late))
            patience.daemon = True
            patience.start()
            try:
                with self.transaction(second) as session:
                    patience.cancel()
                    yield session
            except UnavailableError:
                if not late.is_set():
                    raise
                raise UnavailableError(
                    "a run that is charged takes two connections at once, one to read and one to charge, and "
                    f"the server or pooler did not serve the second within {_PATIENCE_S:g} seconds: allow "
                    "more connections, such as default_pool_size of PgBouncer; nothing was charged"
                ) from None
            finally:
                patience.cancel()

    def _require_tls(self, driver: psycopg.Connection[Any]) -> None:
        info = driver.info
        if self._insecure or driver.pgconn.ssl_in_use or not info.hostaddr:
            return
        if not ipaddress.ip_address(info.hostaddr).is_loopback:
            raise SpecError(
                f"the connection to {info.host} is not encrypted and would carry un-noised weights: "
                "connect with sslmode=require, or pass insecure if the network is private"
            )


def _hang_up(driver: psycopg.Connection[Any], late: threading.Event) -> None:
    """Close a connection for which another thread waits."""
    late.set()
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(driver.fileno())) as line:
        line.shutdown(socket.SHUT_RDWR)


def _commit(driver: psycopg.Connection[Any], at_stake: str | None) -> None:
    """Commit; an error says so if the outcome is unknown.

    `at_stake`: see `Session.must_last`.
    """
    try:
        driver.commit()
    except BaseException as error:
        if isinstance(error, psycopg.Error) and error.diag.severity_nonlocalized == "ERROR":
            raise  # the server rejected it
        driver.close()
        if not isinstance(error, Exception):
            if at_stake is None:
                raise
            raise RunInterrupted(f"interrupted during the commit: {at_stake}", type(error)) from None
        if at_stake is None:
            lost = UnavailableError(
                f"{LOST} during the commit, so what was asked for may be done: look before you repeat it"
            )
            lost.cause = LOST
            raise lost from None
        raise CommitLostError(f"{LOST} during the commit: {at_stake}") from None
