# SPDX-License-Identifier: PostgreSQL
"""A session: the settings of one transaction, and the statements sent in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import psycopg
from psycopg import pq, sql

from pg_dpml.database.adapters import Cursor, Float8Array, TextCursor, encodable_text
from pg_dpml.database.failures import is_of_statement, translate
from pg_dpml.errors import DpmlError, SpecError

__all__ = [
    "Session",
    "sql",
]


_SAFE_PATH = "pg_catalog, pg_temp"
_SETTINGS = {
    # Names and levels come from any language; a database that cannot hold one says so.
    "client_encoding": "UTF8",
    # How dates are sent. The order in which 1/2/2024 is read is kept: it is for the owner's SQL.
    "DateStyle": "ISO",
    # All digits of float8 and float4, so that a model is read as it was stored.
    "extra_float_digits": "1",
    "bytea_output": "hex",
    # This package writes constants in SQL, and NULL in arrays, in this way.
    "standard_conforming_strings": "on",
    "array_nulls": "on",
    # Names of types are shown, and compared, as the catalog writes them.
    "quote_all_identifiers": "off",
    # A policy that hides rows raises no error: `look_up_table` finds out whether there is one.
    "row_security": "on",
}
"""Settings that change how values are sent or what SQL of this package means, set in every transaction.

The others keep their value. Some of them are for the owner's SQL, which runs as in psql: TimeZone (times are
read as UTC whatever it is), IntervalStyle (no interval is read), transform_null_equals. Only a superuser may
set others, such as lc_messages (errors are recognised by their code and fields). The rest limit time and
memory.
"""

_ON_WORKERS = (
    "DateStyle",
    "IntervalStyle",
    "TimeZone",
    "array_nulls",
    "default_text_search_config",
    "extra_float_digits",
    "standard_conforming_strings",
    "transform_null_equals",
)
"""Settings that decide what a statement means, which workers of Citus do not have from here."""
_PROPAGATED = "citus.propagate_set_commands"
"""Whether Citus sends SET LOCAL to the workers."""

Query = sql.SQL | sql.Composed
_HAS_CITUS = sql.SQL(
    "EXISTS (SELECT FROM pg_catalog.pg_extension x "
    "WHERE x.extname OPERATOR(pg_catalog.=) 'citus'::pg_catalog.name)"
)
# One statement, since it begins every transaction. The role's own search_path still holds in it, so that the
# operator names its schema; and that path is read before it is set.
_SETTLE = sql.SQL(
    "WITH was (path, citus) AS MATERIALIZED (SELECT pg_catalog.current_setting('search_path'), {}) "
    "SELECT path, citus, {} FROM was"
).format(
    _HAS_CITUS,
    sql.SQL(", ").join(
        sql.SQL("pg_catalog.set_config({}, {}, true)").format(sql.Literal(name), sql.Literal(value))
        for name, value in {**_SETTINGS, "search_path": _SAFE_PATH}.items()
    ),
)
"""Changes the settings; returns the role's search_path, and whether the database has the extension citus."""
_Answer = TypeVar("_Answer")


class Session:
    """One open connection and its transaction; SQL comes in as `psycopg.sql`, never as a plain f-string.

    Names in that SQL are looked up in pg_catalog alone, so that no schema of the role's search_path can
    replace an operator, a function or a type by one of its own; `owners_path` is for the owner's SQL.
    """

    def __init__(self, driver: psycopg.Connection[Any]) -> None:
        self.driver = driver
        """For this room alone; other rooms ask the session."""
        self.at_stake: str | None = None
        """Message for the user if the outcome of the commit is unknown; see `must_last`."""
        self.looked_up: list[int] = []
        """Oids of tables that were looked up: a permission error is most likely about one of them."""
        self._context = Cursor(driver)
        self._path = ""
        self._has_citus: bool | None = None
        if not driver.autocommit:
            self._settle()

    @property
    def encrypted(self) -> bool:
        """Whether the connection uses TLS."""
        return bool(self.driver.pgconn.ssl_in_use)

    @property
    def address(self) -> str | None:
        """The server's IP address; None over a socket of this machine."""
        return self.driver.info.hostaddr or None

    @property
    def backend_pid(self) -> int:
        """The process that the connection says it talks to: a pooler's answer is not the server's."""
        return self.driver.info.backend_pid

    @property
    def server_encoding(self) -> str | None:
        """Encoding of the database."""
        return self.driver.info.parameter_status("server_encoding")

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open, or failed and not yet rolled back."""
        return self.driver.info.transaction_status != pq.TransactionStatus.IDLE

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Run one transaction in a session at isolation AUTOCOMMIT, which has none of its own."""
        with self.driver.transaction():
            self._settle()
            yield

    def _settle(self) -> None:
        # Settings are local, here and below: a pooler in transaction mode lends the connection to others.
        self._path, self._has_citus, *_ = self.fetch_one(_SETTLE)

    def has_citus(self) -> bool:
        """Whether the database has the extension citus, as at the start of the transaction."""
        if self._has_citus is None:
            (self._has_citus,) = self.fetch_one(sql.SQL("SELECT {}").format(_HAS_CITUS))
        return self._has_citus

    def _search(self, path: str) -> None:
        self.fetch(sql.SQL("SELECT pg_catalog.set_config('search_path', %(path)s, true)"), {"path": path})

    def settle_workers(self) -> None:
        """Let workers of Citus read what this transaction sends them as this server would.

        Citus writes built-in operators and functions without a schema, and a worker looks names up by the
        search_path that the role has there, in which something could be a closer match.
        """
        if not self.has_citus():
            return
        found = self.fetch(
            sql.SQL(
                "SELECT n.name, pg_catalog.current_setting(n.name, true) "
                "FROM pg_catalog.unnest(%(names)s::pg_catalog.text[]) AS n (name)"
            ),
            {"names": [*_ON_WORKERS, _PROPAGATED]},
        )
        settings = dict(found)
        was = settings.pop(_PROPAGATED)
        self.set_local(_PROPAGATED, "local")
        self.execute(sql.SQL("SET LOCAL search_path = ") + sql.SQL(_SAFE_PATH))
        for name, value in settings.items():
            self.set_local(name, value)
        self.set_local(_PROPAGATED, was)

    def setting(self, name: str) -> str:
        """The value of a setting; empty for one that the server does not know."""
        (value,) = self.fetch_one(
            sql.SQL("SELECT coalesce(pg_catalog.current_setting(%(name)s, true), '')"), {"name": name}
        )
        return str(value)

    def set_local(self, name: str, value: str) -> None:
        """Change a setting until the transaction ends."""
        setting = sql.Identifier(*name.split("."))
        self.execute(sql.SQL("SET LOCAL {} = {}").format(setting, sql.Literal(value)))

    @contextmanager
    def owners_path(self) -> Iterator[None]:
        """Look names up by the role's search_path, for the owner's filter or view; pg_catalog stays in front.

        Functions must be qualified even so, and operators must be built in for exactly the types of their
        operands: PostgreSQL prefers a closer match in another schema. An exception undoes the whole
        transaction.
        """
        own = [self._path] if self._path.strip() else []
        self._search(", ".join(["pg_catalog", *own, "pg_temp"]))
        yield
        self._search(_SAFE_PATH)

    @contextmanager
    def role_path(self) -> Iterator[None]:
        """Look names up as for the user who wrote them; functions must be qualified, operators absent."""
        self._search(self._path)
        yield
        self._search(_SAFE_PATH)

    def execute(self, query: Query, parameters: Mapping[str, Any] | None = None) -> int:
        """Run one statement and return how many rows it touched; write a percent sign in `sql.SQL` twice."""
        with encodable_text():
            return int(self._run(query, parameters).rowcount)

    def fetch(
        self, query: Query, parameters: Mapping[str, Any] | None = None, *, binary: bool = False
    ) -> list[tuple[Any, ...]]:
        """Run one query and return its rows; write a percent sign in `sql.SQL` twice.

        `binary`: values are sent in binary, which for long arrays of numbers takes a tenth of the time.
        """
        with encodable_text():
            return self._run(query, parameters, binary=binary).fetchall()

    def _run(self, query: Query, parameters: Mapping[str, Any] | None, *, binary: bool = False) -> Cursor:
        # Prepared statements would not survive a transaction-mode pooler.
        return Cursor(self.driver).execute(self._text(query), parameters or {}, prepare=False, binary=binary)

    def text(self, query: Query, parameters: Mapping[str, Any] | None = None) -> str:
        """A statement as one text with its parameters, for another node to run, which may log it."""
        with encodable_text():
            return TextCursor(self.driver).mogrify(self._text(query), parameters or {})

    def fetch_one(self, query: Query, parameters: Mapping[str, Any] | None = None) -> tuple[Any, ...]:
        """Run one query that returns exactly one row."""
        rows = self.fetch(query, parameters)
        assert len(rows) == 1
        return rows[0]

    def must_last(self, at_stake: str) -> None:
        """Make the commit outlive a crash of the server, whatever the role's settings.

        Parameters
        ----------
        at_stake : str
            Message for the user if the answer to the commit is lost: what may have been written, and how to
            find out.
        """
        self.at_stake = at_stake
        self.execute(
            sql.SQL(
                "SELECT pg_catalog.set_config('synchronous_commit', 'on', true) "
                "WHERE pg_catalog.current_setting('synchronous_commit') = 'off'"
            )
        )

    def attempt(self, queries: Callable[[], _Answer]) -> _Answer | DpmlError:
        """Run queries; an error of the server undoes only them, and is returned instead of raised."""
        try:
            with self.driver.transaction():  # a savepoint
                return queries()
        except psycopg.Error as error:
            if self.driver.closed:
                raise
            return translate(error, self)

    @contextmanager
    def discarded(self) -> Iterator[None]:
        """Undo all statements of the block at its end.

        Disk space is freed at once, while DROP would free it only when the transaction ends. An exception
        undoes the whole transaction.
        """
        self.execute(sql.SQL("SAVEPOINT discarded"))
        yield
        self.execute(sql.SQL("ROLLBACK TO SAVEPOINT discarded"))
        self.execute(sql.SQL("RELEASE SAVEPOINT discarded"))

    def copy_row(self, table: sql.Identifier, types: Sequence[str], values: Sequence[Any]) -> None:
        """Append one row by COPY: its values are in no statement, so a log of statements never has them.

        Arrays hold floats, as ndarray or list.
        """
        arrays = (list, np.ndarray)
        row = [Float8Array(np.asarray(v)) if isinstance(v, arrays) else v for v in values]
        command = sql.SQL("COPY {} FROM STDIN (FORMAT binary)").format(table)
        with encodable_text(), Cursor(self.driver) as cursor, cursor.copy(command) as copy:
            copy.set_types(types)
            copy.write_row(row)

    def copy_lines(self, table: sql.Identifier, columns: Sequence[str], lines: Iterable[str]) -> None:
        """Append rows of some columns by COPY, each a line of its text format with the line feed."""
        named = sql.SQL(", ").join(map(sql.Identifier, columns))
        command = sql.SQL("COPY {} ({}) FROM STDIN").format(table, named)
        with encodable_text(), Cursor(self.driver) as cursor, cursor.copy(command) as copy:
            for line in lines:
                copy.write(line)

    def count(self, query: Query, failed: str) -> int:
        """Run one query that counts rows; errors as of `counts`."""
        (number,) = self.counts(query, failed)[0]
        return int(number)

    def counts(self, query: Query, failed: str) -> list[tuple[Any, ...]]:
        """Run one query that counts rows in several places, and return its rows.

        Raises
        ------
        GuaranteeError
            If row-level security would hide rows of a table that the query reads, itself or by a view.
        SpecError
            With the text `failed`, instead of a server's error that may quote a row.
        """
        # First without reading a row: errors about names, types and rights may be shown then.
        self.execute(sql.SQL("SET LOCAL row_security = off"))  # an error in place of hidden rows
        self.require_readable(query, failed)
        self.execute(sql.SQL("SET LOCAL row_security = on"))
        return self._quoting_no_row(query, None, failed)

    def require_runs(self, query: Query, failed: str, parameters: Mapping[str, Any] | None = None) -> None:
        """Run a query that lets other nodes plan the owner's SQL; errors as of `require_readable`."""
        self._quoting_no_row(query, parameters, failed, is_of_statement)

    def require_readable(
        self, query: Query, failed: str, parameters: Mapping[str, Any] | None = None
    ) -> None:
        """Let the server plan, but not run, a query that contains the owner's SQL.

        Raises
        ------
        SpecError
            With the text `failed`, instead of a server's error that is not about names, types or rights in
            the query itself.
        """
        # An error of planning can quote a value: the planner applies operators to values that ANALYZE kept.
        self._quoting_no_row(sql.SQL("EXPLAIN ") + query, parameters, failed, is_of_statement)

    def _quoting_no_row(
        self,
        query: Query,
        parameters: Mapping[str, Any] | None,
        failed: str,
        may_show: Callable[[psycopg.Error], bool] = lambda error: False,
    ) -> list[tuple[Any, ...]]:
        """Run a query that contains the owner's SQL; only errors that `may_show` admits keep their text."""
        try:
            with self.owners_path():
                return self.fetch(query, parameters)
        except psycopg.OperationalError:  # no connection, cancelled, out of resources
            raise
        except psycopg.Error as error:
            if may_show(error):
                raise
        # Outside the except block, so that this error does not carry the server's, which may quote a row.
        refusal = SpecError(failed)
        refusal.by_server = True
        raise refusal

    def _text(self, query: sql.Composable) -> bytes:
        """A statement, with percent signs in identifiers and literals doubled: they are no placeholders."""
        if isinstance(query, sql.Composed):
            return b"".join(map(self._text, query))
        text = bytes(query.as_bytes(self._context))
        return text.replace(b"%", b"%%") if isinstance(query, sql.Identifier | sql.Literal) else text
