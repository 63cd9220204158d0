# SPDX-License-Identifier: PostgreSQL
"""The only module that opens connections and sends SQL.

A data source is a libpq connection string (empty: the `PG*` variables and
service files decide) or an SQLAlchemy engine over psycopg 3, never an open
connection: a run decides itself when its charge is committed.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
import sqlalchemy as sa
from psycopg import sql
from psycopg.types.json import Jsonb
from sqlalchemy.pool import NullPool

from pg_dpml.errors import DpmlError, SpecError, UnavailableError

__all__ = ["ColumnType", "Database", "Session", "SourceTable", "json_parameter", "refuse_password", "sql"]

_READ_ONLY = "25006"
_MISSING_SCHEMA = "3F000"


@dataclass(frozen=True)
class ColumnType:
    """Type of a column: `category` as in pg_type.typcategory of the base type, enum labels if any."""

    name: str
    category: str
    enum_labels: tuple[str, ...] | None


@dataclass(frozen=True)
class SourceTable:
    """A table as the catalog knows it."""

    schema: str
    name: str
    kind: str  # pg_class.relkind
    row_security: bool
    columns: Mapping[str, ColumnType] = field(repr=False)

    @property
    def identifier(self) -> sql.Identifier:
        """Quoted and schema-qualified."""
        return sql.Identifier(self.schema, self.name)


Query = sql.SQL | sql.Composed


class Session:
    """One open connection and its transaction; SQL comes in as `psycopg.sql`, never as a plain f-string."""

    def __init__(self, connection: sa.Connection) -> None:
        driver = connection.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)  # Database refuses other drivers
        self.connection = connection
        self.driver: psycopg.Connection[Any] = driver

    def execute(self, query: Query, parameters: Mapping[str, Any] | None = None) -> int:
        """Run one statement; the number of rows it touched."""
        return int(self.driver.execute(query, parameters).rowcount)

    def fetch(self, query: Query, parameters: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """Run one query; its rows."""
        rows: list[tuple[Any, ...]] = self.driver.execute(query, parameters).fetchall()
        return rows

    def fetch_one(self, query: Query, parameters: Mapping[str, Any] | None = None) -> tuple[Any, ...]:
        """Run one query that returns exactly one row."""
        rows = self.fetch(query, parameters)
        assert len(rows) == 1
        return rows[0]

    def relation(self, table: str) -> SourceTable:
        """Look a table up by its SQL name, or by its exact name.

        Raises
        ------
        SpecError
            If there is no such table or view, or it may not be read.
        """
        found = self.fetch(
            sql.SQL(
                "SELECT c.oid, n.nspname, c.relname, c.relkind::text, c.relrowsecurity "
                "FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
                "WHERE c.oid = coalesce(CASE WHEN {folds} THEN pg_catalog.to_regclass(%(table)s) END, "
                "pg_catalog.to_regclass(pg_catalog.quote_ident(%(table)s)))"
            ).format(folds=sql.Literal(_is_sql_name(table))),
            {"table": table},
        )
        if not found or found[0][3] not in "rpvmf":
            raise SpecError(
                f"table {table} does not exist here; write it as in SQL, schema-qualified if it is not "
                'on the search_path, and quoted ("My Table") if its name needs it'
            )
        oid, schema, name, kind, row_security = found[0]
        return SourceTable(schema, name, kind, row_security, self._columns(oid))

    def _columns(self, oid: int) -> dict[str, ColumnType]:
        rows = self.fetch(
            sql.SQL(
                "SELECT a.attname, pg_catalog.format_type(a.atttypid, NULL), b.typcategory::text, "
                "(SELECT pg_catalog.array_agg(e.enumlabel::text ORDER BY e.enumsortorder) "
                " FROM pg_catalog.pg_enum e WHERE e.enumtypid = b.oid) "
                "FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid "
                "JOIN pg_catalog.pg_type b "
                "ON b.oid = CASE t.typtype WHEN 'd' THEN t.typbasetype ELSE t.oid END "
                "WHERE a.attrelid = %(oid)s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"
            ),
            {"oid": oid},
        )
        return {
            name: ColumnType(type_name, category, tuple(labels) if labels else None)
            for name, type_name, category, labels in rows
        }


def _is_sql_name(table: str) -> bool:
    """Whether to_regclass can parse it: it raises on unbalanced quotes and empty parts."""
    return (
        table.count('"') % 2 == 0
        and all(part.strip() for part in table.split("."))
        and " " not in table.strip()
    )


def json_parameter(value: Mapping[str, Any]) -> Jsonb:
    """A mapping as a jsonb parameter."""
    return Jsonb(value)


def refuse_password(dsn: str) -> None:
    """A command line is visible to every user of the machine; a password does not belong there."""
    try:
        given = psycopg.conninfo.conninfo_to_dict(dsn)
    except psycopg.Error as error:
        raise SpecError(f"--dsn is not a libpq connection string: {str(error).strip()}") from None
    if "password" in given:
        raise SpecError(
            "--dsn must not hold a password: use a password file (PGPASSFILE), a service (PGSERVICE) "
            "or PGPASSWORD"
        )


class Database:
    """Where the rows are.

    Parameters
    ----------
    source : str or sqlalchemy.Engine
        libpq connection string or URL, or an engine over psycopg 3.
    insecure : bool
        Allow TCP without TLS to another machine.
    """

    def __init__(self, source: str | sa.Engine = "", *, insecure: bool = False) -> None:
        self._insecure = insecure
        if isinstance(source, sa.Engine):
            if source.driver != "psycopg":
                raise SpecError(
                    "the engine must use psycopg 3: create_engine('postgresql+psycopg://...'), "
                    f"not {source.driver}"
                )
            self._engine = source
        elif isinstance(source, str):

            def connect() -> psycopg.Connection[Any]:
                # Prepared statements would not survive a transaction-mode pooler.
                return psycopg.connect(source, prepare_threshold=None, application_name="dpml")

            self._engine = sa.create_engine("postgresql+psycopg://", creator=connect, poolclass=NullPool)
        else:
            raise SpecError(
                "source must be a connection string or an SQLAlchemy engine, not an open connection"
            )

    @contextmanager
    def session(self, isolation: str = "READ COMMITTED") -> Iterator[Session]:
        """One transaction: committed at the end of the block, rolled back on any exception.

        Raises
        ------
        UnavailableError
            If the server cannot be reached or is read-only.
        DpmlError
            For any other error of the server, with its first line and no detail.
        """
        try:
            connection = self._engine.connect()
        except sa.exc.DBAPIError as error:
            raise _translate(error.orig) from None
        except psycopg.Error as error:
            raise _translate(error) from None
        with connection:
            connection = connection.execution_options(isolation_level=isolation)
            try:
                with connection.begin():
                    session = Session(connection)
                    self._require_tls(session.driver)
                    yield session
            except sa.exc.DBAPIError as error:
                raise _translate(error.orig) from None
            except psycopg.Error as error:
                raise _translate(error) from None

    def _require_tls(self, driver: psycopg.Connection[Any]) -> None:
        info = driver.info
        if self._insecure or driver.pgconn.ssl_in_use or not info.hostaddr:
            return
        if not ipaddress.ip_address(info.hostaddr).is_loopback:
            raise SpecError(
                f"the connection to {info.host} is not encrypted and would carry un-noised weights: "
                "connect with sslmode=require, or pass insecure if the network is private"
            )


def _translate(error: BaseException | None) -> DpmlError:
    """A server error as ours: the first line of its message, never its detail or context."""
    text = str(error).strip().splitlines()[0] if error is not None and str(error).strip() else "unknown"
    if not isinstance(error, psycopg.Error):
        return DpmlError(text)
    if error.sqlstate is None and isinstance(error, psycopg.OperationalError):
        return UnavailableError(
            f"cannot reach PostgreSQL: {text}. Check the connection string, or PGHOST, PGPORT, PGDATABASE, "
            "PGUSER and PGSERVICE"
        )
    primary = error.diag.message_primary or text
    if error.sqlstate == _READ_ONLY:
        return UnavailableError(f"this server is read-only ({primary}): train on the primary")
    if error.sqlstate == _MISSING_SCHEMA or (
        isinstance(error, psycopg.errors.UndefinedTable | psycopg.errors.UndefinedFunction)
        and "dpml." in primary
    ):
        return SpecError(
            f"{primary}: is the extension installed in this database? Try CREATE EXTENSION pg_dpml"
        )
    if isinstance(error, psycopg.errors.InsufficientPrivilege | psycopg.errors.DataError):
        return SpecError(primary)
    return DpmlError(primary)
