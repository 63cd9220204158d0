# SPDX-License-Identifier: PostgreSQL
"""The only module that sends SQL, in sessions that depend on nothing around them.

A data source is a libpq connection string (empty: the `PG*` variables and
service files decide) or an SQLAlchemy engine over psycopg 3, never an open
connection: a run decides itself when its charge is committed.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
import psycopg
from psycopg import postgres, pq, sql
from psycopg.abc import AdaptContext, Buffer
from psycopg.adapt import AdaptersMap, Dumper, Loader
from psycopg.rows import tuple_row
from psycopg.types.array import register_all_arrays
from psycopg.types.datetime import TimestamptzLoader
from psycopg.types.json import Jsonb

from pg_dpml import names
from pg_dpml.database.connections import Opened, opener
from pg_dpml.errors import (
    CommitLostError,
    DpmlError,
    GuaranteeError,
    RunInterrupted,
    SpecError,
    UnavailableError,
)

if TYPE_CHECKING:
    import sqlalchemy as sa

__all__ = [
    "ColumnType",
    "Database",
    "Session",
    "SourceTable",
    "array_parameter",
    "json_parameter",
    "sql",
    "verbatim",
]

_SAFE_PATH = "pg_catalog, pg_temp"
_SETTINGS = {
    # Names and levels come from any language; a database that cannot hold one says so.
    "client_encoding": "UTF8",
    # Of dates that are read. In which order 1/2/2024 is taken stays as it was: it is for the owner's SQL.
    "DateStyle": "ISO",
    # All digits of float8 and float4, so that a model is read as it was stored.
    "extra_float_digits": "1",
    "bytea_output": "hex",
    # Of constants in SQL, and of NULL in arrays, as they are written here.
    "standard_conforming_strings": "on",
    "array_nulls": "on",
    # Names of types are shown, and compared, as the catalog writes them.
    "quote_all_identifiers": "off",
    # No error where a policy hides rows: whether there is one is looked up.
    "row_security": "on",
}
"""What shapes values on their way, or the meaning of SQL of ours, set in every transaction.

Not among them is what is for the owner's SQL, as psql would run it: TimeZone (times are read as UTC whatever
it is), IntervalStyle (no interval is read), transform_null_equals; what only a superuser may set, such as
lc_messages (errors are told by their code and fields); and what limits time and memory.
"""
_READ_ONLY = "25006"
_MISSING_SCHEMA = "3F000"
_ROW_SECURITY = "check_enable_rls"
"""Function of the server that refuses to hide rows where `row_security` is off."""
_DENIED_BY = "aclcheck_error"
"""Function of the server that names what the role has no right to."""

_LOST = "the connection to the server was lost"
_ENDED = "the server ended the connection, as at a restart or by an administrator"
_CAUSES = {
    "25P03": "the transaction was idle for longer than idle_in_transaction_session_timeout",
    "25P04": "the transaction took longer than transaction_timeout",
    "53100": "the server's disk, or the tablespace of the work tables, is full",
    "53200": "the server is out of memory",
    "53400": "a limit in the server's configuration was reached, such as temp_file_limit",
    "55P03": "a lock was not granted within lock_timeout",
    "57014": "the statement was cancelled, or took longer than statement_timeout",
    "57P01": _ENDED,
    "57P02": "the server crashed, or was stopped at once",
    "57P03": "the server is starting up or shutting down",
}
"""What befalls a server whatever its rows hold, by SQLSTATE."""
_PATIENCE_S = 10.0
"""How long a second connection may take to be served."""
_UNAVAILABLE = ("57P01", "57P02", "57P03")
_LONGEST_SHOWN = 200
_OF_NAMES = "42"
"""Class of errors about names, types and rights: of a statement, or of text that a function takes for one."""


_UNQUOTED = re.compile(r"\s*(?:[^\W\d][\w$]*)?(?:\s*\.\s*(?:[^\W\d][\w$]*)?)?\s*")
"""What may stand beside the quoted parts of the name of a new table."""

_KINDS = {
    **dict.fromkeys(("int2", "int4", "int8", "float4", "float8", "numeric"), "number"),
    **dict.fromkeys(("text", "varchar", "bpchar", "name", "char"), "text"),
    "bool": "boolean",
    "date": "date",
    "timestamp": "timestamp",
    "timestamptz": "timestamptz",
}


@dataclass(frozen=True)
class ColumnType:
    """Type of a column, domains seen through.

    Attributes
    ----------
    name : str
        As SQL writes it, the domain's own name for a domain.
    kind : str
        "number", "boolean", "text", "enum", "date", "timestamp", "timestamptz",
        "array" (or pgvector's vector), or "other": no encoding.
    element : str or None
        Kind of an array's elements.
    length : int or None
        Elements of a vector whose type says so.
    enum_labels : tuple of str or None
        In the enum's order.
    virtual : bool
        Computed by an expression whenever it is read.
    whole : bool
        An integer type.
    collated : bool
        Text whose equality a collation could widen.
    vector : bool
        pgvector's type, not an array.
    base : str or None
        PostgreSQL's own name of a built-in type that is no array.
    modifier : int
        Its limit of length or digits, as the catalog has it; -1: none.
    """

    name: str
    kind: str
    element: str | None = None
    length: int | None = None
    enum_labels: tuple[str, ...] | None = None
    virtual: bool = False
    whole: bool = False
    collated: bool = False
    vector: bool = False
    base: str | None = None
    modifier: int = -1


@dataclass(frozen=True)
class SourceTable:
    """A table as the catalog knows it."""

    oid: int
    schema: str
    name: str
    kind: str  # pg_class.relkind
    row_security: bool  # its own, or of a table that it shows as a view
    columns: Mapping[str, ColumnType] = field(repr=False)

    @property
    def identifier(self) -> sql.Identifier:
        """Quoted and schema-qualified."""
        return sql.Identifier(self.schema, self.name)

    def column(self, name: str, argument: str | None = None) -> str:
        """The exact name of a column that is named by it, or as in SQL.

        Parameters
        ----------
        name : str
        argument : str or None
            What it was given as, for the message.

        Raises
        ------
        SpecError
            If there is no such column; the message offers the nearest.
        """
        found = names.reads_as(name, self.columns)
        if found is None:
            offer = names.did_you_mean(name, self.columns)
            some = ", ".join(map(names.shown, list(self.columns)[:20]))
            raise SpecError(
                f"{'' if argument is None else f'{argument}: '}column {names.shown(name)} does not exist in "
                f"{names.shown(self.name)}{f'{offer} It' if offer else '; it'} has {some or 'no columns'}"
            )
        return found


Query = sql.SQL | sql.Composed
_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class _Float8Array:
    values: npt.NDArray[np.float64]


class _Float8ArrayDumper(Dumper):
    """A float8[] of one dimension in binary: of a list, psycopg would write every number out as text."""

    format = pq.Format.BINARY
    oid = psycopg.postgres.types["float8"].array_oid

    def dump(self, obj: _Float8Array | Sequence[float] | npt.NDArray[np.float64]) -> bytes:
        # COPY of a float8[] comes here with any sequence: `copy_row` names types, not classes.
        values = obj.values if isinstance(obj, _Float8Array) else np.asarray(obj, dtype=np.float64)
        items = np.empty(values.size, [("length", ">i4"), ("value", ">f8")])
        items["length"], items["value"] = 8, values
        # Dimensions, whether there are NULLs, element type; then length and lower bound.
        head = struct.pack("!5i", 1, 0, psycopg.postgres.types["float8"].oid, items.size, 1)
        return head + items.tobytes()


class _JsonLoader(Loader):
    """Of json and jsonb: UTF-8, as the session's encoding is."""

    def load(self, data: Buffer) -> Any:
        return json.loads(bytes(data))


class _UtcLoader(TimestamptzLoader):
    """Of timestamptz, which is an instant: in UTC, as Python does not know every zone of PostgreSQL."""

    def __init__(self, oid: int, context: AdaptContext | None = None) -> None:
        super().__init__(oid)  # without a connection, UTC

    def load(self, data: Buffer) -> datetime:
        return super().load(data)


def _adapters() -> AdaptersMap:
    """psycopg's, whatever the program has registered for itself, then those of this module."""
    adapters = AdaptersMap()
    postgres.register_default_types(adapters.types)
    postgres.register_default_adapters(adapters)
    register_all_arrays(adapters)
    adapters.register_dumper(_Float8Array, _Float8ArrayDumper)
    adapters.register_loader("json", _JsonLoader)
    adapters.register_loader("jsonb", _JsonLoader)
    adapters.register_loader("timestamptz", _UtcLoader)
    return adapters


_ADAPTERS = _adapters()


class _Cursor(psycopg.Cursor[tuple[Any, ...]]):
    """psycopg's own, whatever cursors, rows and adapters the connection was given."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        super().__init__(connection, row_factory=tuple_row)

    @property
    def adapters(self) -> AdaptersMap:
        return _ADAPTERS


@contextmanager
def _text() -> Iterator[None]:
    """A part in which text is sent: what is not UTF-8 is an error of the driver, as NUL is."""
    try:
        yield
    except UnicodeEncodeError as error:
        shown = error.object.encode("utf-8", "backslashreplace").decode()
        raise psycopg.DataError(f"text that is not UTF-8 was given: {shown[:_LONGEST_SHOWN]}") from None


class Session:
    """One open connection and its transaction; SQL comes in as `psycopg.sql`, never as a plain f-string.

    Names in it are looked up in pg_catalog alone, so that no schema of the role's search_path can put
    an operator, a function or a type of its own in their place; `owners_path` is for the owner's SQL.
    """

    def __init__(self, driver: psycopg.Connection[Any]) -> None:
        self.driver = driver
        self.at_stake: str | None = None
        """What is said where it is not known whether the transaction was committed; see `must_last`."""
        self._context = _Cursor(driver)
        self._path = ""
        self._looked_up: list[int] = []
        if not driver.autocommit:
            self._settle()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """One transaction of a session at isolation AUTOCOMMIT, which has none of its own."""
        with self.driver.transaction():
            self._settle()
            yield

    def _settle(self) -> None:
        # Local, here and below: a pooler in transaction mode gives the connection to others.
        set_config = sql.SQL("pg_catalog.set_config({}, {}, true)")
        settings = [
            set_config.format(sql.Literal(name), sql.Literal(value)) for name, value in _SETTINGS.items()
        ]
        self.execute(sql.SQL("SELECT ") + sql.SQL(", ").join(settings))
        (self._path, _) = self.fetch_one(
            sql.SQL(
                "WITH was (path) AS MATERIALIZED (SELECT pg_catalog.current_setting('search_path')) "
                "SELECT path, pg_catalog.set_config('search_path', %(path)s, true) FROM was"
            ),
            {"path": _SAFE_PATH},
        )

    def _search(self, path: str) -> None:
        self.fetch(sql.SQL("SELECT pg_catalog.set_config('search_path', %(path)s, true)"), {"path": path})

    @contextmanager
    def owners_path(self) -> Iterator[None]:
        """A part whose statements read the owner's table, by a filter or view that may use the role's path.

        pg_catalog stays in front. Functions must be qualified even so, and operators be built in for
        exactly the types they get: a closer match in another schema would be taken for them. An
        exception undoes the whole transaction.
        """
        own = [self._path] if self._path.strip() else []
        self._search(", ".join(["pg_catalog", *own, "pg_temp"]))
        yield
        self._search(_SAFE_PATH)

    @contextmanager
    def role_path(self) -> Iterator[None]:
        """A part that looks up names as a user wrote them; functions must be qualified, operators absent."""
        self._search(self._path)
        yield
        self._search(_SAFE_PATH)

    def execute(self, query: Query, parameters: Mapping[str, Any] | None = None) -> int:
        """Run one statement; the number of rows it touched. A percent sign in `sql.SQL` is written twice."""
        with _text():
            return int(self._run(query, parameters).rowcount)

    def fetch(self, query: Query, parameters: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """Run one query; its rows. A percent sign in `sql.SQL` is written twice."""
        with _text():
            return self._run(query, parameters).fetchall()

    def _run(self, query: Query, parameters: Mapping[str, Any] | None) -> _Cursor:
        # Prepared statements would not survive a transaction-mode pooler.
        return _Cursor(self.driver).execute(self._escaped(query), parameters or {}, prepare=False)

    def fetch_one(self, query: Query, parameters: Mapping[str, Any] | None = None) -> tuple[Any, ...]:
        """Run one query that returns exactly one row."""
        rows = self.fetch(query, parameters)
        assert len(rows) == 1
        return rows[0]

    def locked(self) -> list[int]:
        """Tables, views and indexes that this transaction has locked, but for those of PostgreSQL itself."""
        return [oid for (oid,) in self.fetch(_LOCKED)]

    def definitions(self, relations: Sequence[int]) -> str:
        """A digest of how relations are defined and stored, as this session's snapshot has them."""
        (digest,) = self.fetch_one(_DEFINITIONS, {"relations": list(relations)})
        return str(digest)

    def must_last(self, at_stake: str) -> None:
        """Once committed, this transaction outlives a crash of the server, whatever the role's settings.

        Parameters
        ----------
        at_stake : str
            What is not known if the answer to the commit is lost, and how to find out.
        """
        self.at_stake = at_stake
        self.execute(
            sql.SQL(
                "SELECT pg_catalog.set_config('synchronous_commit', 'on', true) "
                "WHERE pg_catalog.current_setting('synchronous_commit') = 'off'"
            )
        )

    def attempt(self, queries: Callable[[], _Answer]) -> _Answer | DpmlError:
        """Run queries of which an error of the server undoes them alone, and is returned."""
        try:
            with self.driver.transaction():  # a savepoint
                return queries()
        except psycopg.Error as error:
            if self.driver.closed:
                raise
            return _translate(error, self)

    @contextmanager
    def discarded(self) -> Iterator[None]:
        """A part of the transaction that is undone at its end: what it made is gone, what it dropped is back.

        The disk space is free at once, which a DROP would see to only when the transaction ends. An
        exception undoes the whole transaction.
        """
        self.execute(sql.SQL("SAVEPOINT discarded"))
        yield
        self.execute(sql.SQL("ROLLBACK TO SAVEPOINT discarded"))
        self.execute(sql.SQL("RELEASE SAVEPOINT discarded"))

    def copy_row(self, table: sql.Identifier, types: Sequence[str], values: Sequence[Any]) -> None:
        """Append one row by COPY: its values are in no statement, so no log of statements has them.

        Arrays are of floats, as ndarray or list.
        """
        arrays = (list, np.ndarray)
        row = [_Float8Array(np.asarray(v)) if isinstance(v, arrays) else v for v in values]
        command = self._escaped(sql.SQL("COPY {} FROM STDIN (FORMAT binary)").format(table))
        with _text(), _Cursor(self.driver) as cursor, cursor.copy(command) as copy:
            copy.set_types(types)
            copy.write_row(row)

    def count(self, query: Query, failed: str) -> int:
        """Run one query that counts rows.

        Raises
        ------
        GuaranteeError
            If row-level security would hide rows of a table that the query reads, itself or by a view.
        SpecError
            With the text `failed` in place of a server's error that may quote a row.
        """
        # Without a row first, for what that says of names, types and rights.
        self.execute(sql.SQL("SET LOCAL row_security = off"))  # an error in place of hidden rows
        self.require_readable(query, failed)
        self.execute(sql.SQL("SET LOCAL row_security = on"))
        (number,) = self._quoting_no_row(query, None, failed)[0]
        return int(number)

    def require_readable(
        self, query: Query, failed: str, parameters: Mapping[str, Any] | None = None
    ) -> None:
        """Let the server plan a query that has the owner's SQL, and read no row.

        Raises
        ------
        SpecError
            With the text `failed` in place of a server's error, unless that is about names, types or rights
            of the query itself.
        """
        # Planning is enough for an error to quote a value: operators are tried on what ANALYZE has kept.
        self._quoting_no_row(sql.SQL("EXPLAIN ") + query, parameters, failed, _is_of_statement)

    def _quoting_no_row(
        self,
        query: Query,
        parameters: Mapping[str, Any] | None,
        failed: str,
        but: Callable[[psycopg.Error], bool] = lambda error: False,
    ) -> list[tuple[Any, ...]]:
        """The rows of a query with the owner's SQL: `failed` is said instead of errors, `but` for some."""
        try:
            with self.owners_path():
                return self.fetch(query, parameters)
        except psycopg.OperationalError:  # no connection, cancelled, out of resources
            raise
        except psycopg.Error as error:
            if but(error):
                raise
        # Outside the except block: the server's error, which may quote a row, is no part of this one.
        refusal = SpecError(failed)
        refusal.by_server = True
        raise refusal

    def _escaped(self, query: sql.Composable) -> sql.Composed:
        """With the percent signs of identifiers and literals doubled: psycopg looks for placeholders."""
        if isinstance(query, sql.Composed):
            return sql.Composed([self._escaped(part) for part in query])
        if isinstance(query, sql.Identifier | sql.Literal):
            return verbatim(query.as_string(self._context))
        return sql.Composed([query])

    def relation(self, table: str) -> SourceTable:
        """Look a table up by its SQL name, or by its exact name, with its schema before a dot or without.

        Raises
        ------
        SpecError
            If there is no such table or view, or it may not be read.
        GuaranteeError
            If the session's role has rights over the server or other roles that the owner of anything that
            would be read or called has not.
        """
        if not table.strip():
            raise SpecError("table must be the name of a table, not empty")
        parts = names.parse(table) or ()
        written = sql.Identifier(*parts).as_string() if len(parts) in (1, 2) else None
        with self.role_path():
            (named,) = self.fetch_one(
                sql.SQL(
                    "SELECT coalesce(pg_catalog.to_regclass(%(written)s), "
                    "pg_catalog.to_regclass(%(exact)s))::pg_catalog.oid"
                ),
                {"written": written, "exact": sql.Identifier(table).as_string()},
            )
        if named is None:
            qualified = self.fetch(
                sql.SQL(
                    "SELECT c.oid FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n "
                    "ON n.oid = c.relnamespace WHERE pg_catalog.concat(n.nspname, '.', c.relname) = %(table)s"
                ),
                {"table": table},
            )
            named = qualified[0][0] if len(qualified) == 1 else None
        self._looked_up += [] if named is None else [named]
        found = self.fetch(_RELATION, {"named": named, "views": ["v"]})
        shown = names.visible(table.strip()) if parts else names.shown(table)
        if (found and found[0][5]) or (not found and self._is_temporary_elsewhere({table, *parts[-1:]})):
            raise SpecError(
                f"table {shown} is a temporary table of another session, which no other connection can read: "
                "make it a normal table, unlogged if it need not last (CREATE UNLOGGED TABLE ...)"
            )
        if not found or found[0][3] not in "rpvmf" or not self._is_meant(table, parts, *found[0][1:3]):
            raise self._no_relation(shown, parts)
        oid, schema, name, kind, row_security, _, involved, owner, lent = found[0]
        if involved is not None:
            raise GuaranteeError(
                f"reading {shown} involves {names.visible(involved)} of role {names.shown(owner)}, whose "
                f"functions could run with the rights of role {names.visible(lent)}: connect as "
                f"{names.shown(owner)}, or as a curator without such rights"
            )
        self._require_utf8(table, oid)
        return SourceTable(oid, schema, name, kind, row_security, self._columns(oid))

    def _is_meant(self, table: str, parts: Sequence[str], schema: str, name: str) -> bool:
        """Whether a relation has the name asked for: the server cuts what is longer than a name can be."""
        return name in (table, *parts[-1:]) or f"{schema}.{name}" == table

    def _no_relation(self, shown: str, parts: Sequence[str]) -> SpecError:
        """What to say of a table that does not exist."""
        if len(parts) == 2:
            offer = self._offer_schema(parts[0])
            if offer is not None:
                return SpecError(
                    f"table {shown} does not exist here: there is no schema {names.shown(parts[0])}{offer}"
                )
        with self.role_path():
            (path,) = self.fetch_one(sql.SQL("SELECT pg_catalog.current_schemas(false)::text[]"))
        rows = self.fetch(
            sql.SQL(
                "SELECT n.nspname, c.relname FROM pg_catalog.pg_class c "
                "JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
                "WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND NOT pg_catalog.starts_with(n.nspname, "
                "'pg_') "
                "AND n.nspname NOT IN ('information_schema', 'dpml', 'dpml_work') ORDER BY 1, 2"
            )
        )
        known: dict[str, str] = {}
        for schema, name in rows:
            qualified = f"{names.shown(schema)}.{names.shown(name)}"
            known.setdefault(name, names.shown(name) if schema in path else qualified)
            known[f"{schema}.{name}"] = qualified
        close = names.nearest(".".join(parts) or shown, known)
        offer = f"; did you mean {known[close]}? Write" if close is not None else "; write"
        return SpecError(
            f"table {shown} does not exist here{offer} it as in SQL, schema-qualified if it is not "
            'on the search_path, and quoted ("My Table") if its name needs it'
        )

    def _offer_schema(self, schema: str) -> str | None:
        """The end of a message about a schema that does not exist; None if it does."""
        known = [name for (name,) in self.fetch(sql.SQL("SELECT nspname FROM pg_catalog.pg_namespace"))]
        return None if schema in known else names.did_you_mean(schema, known)

    def relations_read(self, table: SourceTable) -> list[int]:
        """Numbers of the tables and views whose rows a table or view shows, its own first.

        Those below views and materialized views, inheritance children and partitions, and what functions
        name that are written as SQL statements; not what functions hold as text, which no catalog tells.
        """
        rows = self.fetch(
            _READ
            + sql.SQL(
                "SELECT DISTINCT c.oid <> %(named)s, c.oid FROM read r JOIN pg_catalog.pg_class c "
                "ON c.tableoid = r.class AND c.oid = r.object WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') "
                "AND c.relnamespace NOT IN ('pg_catalog'::pg_catalog.regnamespace, "
                "'information_schema'::pg_catalog.regnamespace) ORDER BY 1, 2"
            ),
            {"named": table.oid, "views": ["v", "m"]},
        )
        return [oid for _, oid in rows]

    def new_table(self, name: str) -> sql.Identifier:
        """A new table's name, qualified: without a schema, by the one where the role creates tables.

        Parameters
        ----------
        name : str
            As in SQL: schema-qualified or not, and folded where it is not quoted.

        Raises
        ------
        SpecError
            If it is no such name or too long for one, its schema does not exist or is of tables that do not
            last, or the name is taken.
        """
        parts = names.parse(name)
        unquoted = re.sub('"(?:[^"]|"")+"', "", name)
        if parts is None or len(parts) > 2 or not _UNQUOTED.fullmatch(unquoted):
            raise SpecError(
                "into must be the name of a new table as in SQL, such as predictions, or "
                "schema.predictions, with double quotes around what SQL would not take without, such as "
                f"{sql.Identifier(name.strip() or 'My Table').as_string()}; not {names.shown(name)}"
            )
        shown = names.visible(name.strip())
        with self.role_path():
            (current,) = self.fetch_one(sql.SQL("SELECT pg_catalog.current_schema()"))
        *given, table = parts
        if not given and current is None:
            raise SpecError(f"into: no schema of the search_path exists here; write schema.{shown}")
        schema = given[0] if given else current
        if schema.startswith("pg_temp"):
            raise SpecError(
                f"into: a temporary table is gone when dpml ends; name another schema for {shown}"
            )
        if schema in ("dpml", "dpml_work"):
            raise SpecError(f"into: schema {schema} is for the extension's own tables; name another")
        offer = self._offer_schema(schema)
        if offer is not None:
            raise SpecError(f"into: there is no schema {names.shown(schema)}{offer}")
        taken, length, longest = self.fetch_one(
            sql.SQL(
                "SELECT EXISTS (SELECT FROM pg_catalog.pg_class WHERE relname = %(table)s::text "
                "AND relnamespace = n.oid UNION ALL SELECT FROM pg_catalog.pg_type "
                "WHERE typname = %(table)s::text AND typnamespace = n.oid), "
                "pg_catalog.octet_length(%(table)s::text), "
                "pg_catalog.current_setting('max_identifier_length')::pg_catalog.int4 "
                "FROM pg_catalog.pg_namespace n WHERE n.nspname = %(schema)s"
            ),
            {"schema": schema, "table": table},
        )
        if length > longest:
            raise SpecError(
                f"into: {names.shown(table)} has {length} bytes, and a name in PostgreSQL has at most "
                f"{longest}"
            )
        if taken:
            raise SpecError(f"table {shown} exists: choose another name for --into, or drop it first")
        return sql.Identifier(schema, table)

    def _is_temporary_elsewhere(self, candidates: set[str]) -> bool:
        (found,) = self.fetch_one(
            sql.SQL(
                "SELECT EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.relpersistence = 't' "
                "AND c.relname = ANY (%(candidates)s::text[]) "
                "AND pg_catalog.pg_is_other_temp_schema(c.relnamespace))"
            ),
            {"candidates": list(candidates)},
        )
        return bool(found)

    def missing_grant(self, message: str) -> str:
        """What a permission error asks for: the GRANT, and what goes without it; empty if it cannot be told.

        The error has no field for what may not be used, but a message in the server's language names it.
        """
        grant = self._grant(message)
        return grant + self._requestable() if grant else ""

    def _requestable(self) -> str:
        """The end of a message about a right: of which data sets the role may request models without it."""
        (readable,) = self.fetch_one(
            sql.SQL(
                "SELECT coalesce(pg_catalog.has_table_privilege("
                "pg_catalog.to_regclass('dpml.datasets')::pg_catalog.oid, 'SELECT'), false)"
            )
        )
        if not readable:
            return ""
        rows = self.fetch(
            sql.SQL(
                "SELECT name FROM dpml.datasets WHERE offered AND registered_by <> current_user ORDER BY name"
            )
        )
        if not rows:
            return ""
        offered = ", ".join(names.shown(name) for (name,) in rows)
        return (
            f"; without it, ask in SQL for a model of {offered}: SELECT dpml.request(...), as "
            "SELECT dpml.help('requests') explains"
        )

    def _grant(self, message: str) -> str:
        rows = self.fetch(_DENIED, {"message": message, "looked_up": self._looked_up})
        named = [row for row in rows if _names(message, row[1])]
        if not named:
            return ""
        oid, name, schema, ours, role = named[0]
        grantee = sql.Identifier(role).as_string()
        if ours:
            return (
                f": it takes GRANT dpml_curator TO {grantee} (dpml_analyst, to apply models only), "
                "by a superuser"
            )
        if oid is None:
            thing = sql.Identifier(name).as_string()
            return (
                f": it takes GRANT USAGE ON SCHEMA {thing} TO {grantee}, and to write a table there "
                "GRANT CREATE"
            )
        with self.role_path():
            (visible,) = self.fetch_one(
                sql.SQL("SELECT pg_catalog.pg_table_is_visible(%(oid)s)"), {"oid": oid}
            )
        thing = sql.Identifier(*([] if visible else [schema]), name).as_string()
        return f": it takes GRANT SELECT ON {thing} TO {grantee}, by its owner"

    def _columns(self, oid: int) -> dict[str, ColumnType]:
        """The columns' types: through domains, into arrays, and through the elements' domains."""
        rows = self.fetch(
            sql.SQL(
                "WITH RECURSIVE part (attnum, depth, typmod, type) AS ("
                "SELECT a.attnum, 0, a.atttypmod, a.atttypid FROM pg_catalog.pg_attribute a "
                "WHERE a.attrelid = %(oid)s AND a.attnum > 0 AND NOT a.attisdropped "
                "UNION ALL SELECT p.attnum, p.depth + (t.typtype <> 'd')::integer, "
                "CASE WHEN t.typtype = 'd' THEN t.typtypmod ELSE -1 END, "
                "CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.typelem END "
                "FROM part p JOIN pg_catalog.pg_type t ON t.oid = p.type "
                "WHERE t.typtype = 'd' OR (t.typcategory = 'A' AND t.typelem <> 0)) "
                "SELECT a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod), a.attgenerated = 'v', "
                "p.depth, p.typmod, CASE t.typnamespace WHEN 'pg_catalog'::pg_catalog.regnamespace "
                "THEN t.typname END, "
                "t.typname = 'vector' AND EXISTS (SELECT FROM pg_catalog.pg_depend d "
                "JOIN pg_catalog.pg_extension x ON x.oid = d.refobjid AND x.extname = 'vector' "
                "WHERE d.classid = 'pg_catalog.pg_type'::pg_catalog.regclass AND d.objid = t.oid "
                "AND d.refclassid = 'pg_catalog.pg_extension'::pg_catalog.regclass AND d.deptype = 'e'), "
                "(SELECT pg_catalog.array_agg(e.enumlabel::text ORDER BY e.enumsortorder) "
                "FROM pg_catalog.pg_enum e WHERE e.enumtypid = t.oid) "
                "FROM part p JOIN pg_catalog.pg_type t ON t.oid = p.type AND t.typtype <> 'd' "
                "AND NOT (t.typcategory = 'A' AND t.typelem <> 0) "
                "JOIN pg_catalog.pg_attribute a ON a.attrelid = %(oid)s AND a.attnum = p.attnum "
                "ORDER BY p.attnum"
            ),
            {"oid": oid},
        )
        return {row[0]: _column_type(*row[1:]) for row in rows}

    def _require_utf8(self, table: str, oid: int) -> None:
        """Refuse column names that cannot be sent; only a database of encoding SQL_ASCII has such."""
        if self.driver.info.parameter_status("server_encoding") != "SQL_ASCII":
            return
        rows = self.fetch(
            sql.SQL(
                "SELECT pg_catalog.convert_to(attname, 'SQL_ASCII') FROM pg_catalog.pg_attribute "
                "WHERE attrelid = %(oid)s AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
            ),
            {"oid": oid},
        )
        shown = [name.decode("utf-8", "backslashreplace") for (name,) in rows]
        others = [text for text, (name,) in zip(shown, rows, strict=True) if text.encode() != name]
        if others:
            raise SpecError(
                f"table {table}: the names of columns {', '.join(others)} are not UTF-8: rename them, or "
                "name a view that does"
            )


_LOCKED = sql.SQL(
    "SELECT DISTINCT l.relation::pg_catalog.int8 FROM pg_catalog.pg_locks l "
    "WHERE l.pid = pg_catalog.pg_backend_pid() AND l.locktype = 'relation' AND l.relation >= 16384 "
    "AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d "
    "WHERE d.datname = pg_catalog.current_database())"
)

# Each change of a definition, and each new file, writes a row of the catalog anew; VACUUM and ANALYZE do not.
_DEFINITIONS = sql.SQL(
    "SELECT coalesce(pg_catalog.md5(pg_catalog.string_agg(pg_catalog.concat_ws(' ', c.oid, c.xmin, "
    "(SELECT pg_catalog.string_agg(a.xmin::text, ' ' ORDER BY a.attnum) FROM pg_catalog.pg_attribute a "
    "WHERE a.attrelid = c.oid)), ', ' ORDER BY c.oid)), '') "
    "FROM pg_catalog.pg_class c WHERE c.oid = ANY (%(relations)s::pg_catalog.int8[]::pg_catalog.oid[])"
)

# A query runs functions of its views, and its planner those of indexes, statistics and constraints, with the
# rights of who asks; RESET ROLE in them would bring back those that SET ROLE put aside.
_READ = sql.SQL(
    # All that is read or called, as the catalog has it; `named`: the table itself, or shown by it as a view.
    "WITH RECURSIVE read (class, object, named) AS ("
    "SELECT c.tableoid, c.oid, true FROM pg_catalog.pg_class c WHERE c.oid = %(named)s "
    "UNION SELECT next.* FROM read r, LATERAL (SELECT part.* FROM ("
    "SELECT r.class, i.inhrelid, false FROM pg_catalog.pg_inherits i WHERE i.inhparent = r.object "
    "UNION ALL SELECT r.class, x.indexrelid, false FROM pg_catalog.pg_index x WHERE x.indrelid = r.object "
    "UNION ALL SELECT s.tableoid, s.oid, false "
    "FROM pg_catalog.pg_statistic_ext s WHERE s.stxrelid = r.object "
    "UNION ALL SELECT k.tableoid, k.oid, false "
    "FROM pg_catalog.pg_constraint k WHERE k.conrelid = r.object AND k.contype = 'c' "
    "UNION ALL SELECT w.tableoid, w.oid, r.named FROM pg_catalog.pg_rewrite w "
    "JOIN pg_catalog.pg_class v ON v.oid = w.ev_class AND v.relkind = ANY (%(views)s) "
    "WHERE w.ev_class = r.object"
    ") part WHERE r.class = 'pg_class'::regclass "
    "UNION ALL SELECT k.tableoid, k.oid, false "
    "FROM pg_catalog.pg_constraint k WHERE r.class = 'pg_type'::regclass AND k.contypid = r.object "
    # What these name, but not the tables that a table or a type names, which are not read for its sake.
    "UNION ALL SELECT d.refclassid, d.refobjid, r.named FROM pg_catalog.pg_depend d "
    "WHERE d.classid = r.class AND d.objid = r.object "
    "AND (d.refclassid IN ('pg_proc'::regclass, 'pg_operator'::regclass, 'pg_type'::regclass, "
    "'pg_opclass'::regclass) "
    "OR (d.refclassid = 'pg_class'::regclass AND r.class IN ('pg_rewrite'::regclass, 'pg_proc'::regclass)))"
    # What orders an index, or the bounds of partitions.
    "UNION ALL SELECT f.class, f.object, r.named FROM pg_catalog.pg_opclass o, LATERAL ("
    "SELECT 'pg_proc'::regclass, m.amproc FROM pg_catalog.pg_amproc m WHERE m.amprocfamily = o.opcfamily "
    "UNION ALL SELECT 'pg_operator'::regclass, m.amopopr "
    "FROM pg_catalog.pg_amop m WHERE m.amopfamily = o.opcfamily"
    ") f (class, object) WHERE r.class = 'pg_opclass'::regclass AND o.oid = r.object"
    ") next) "
)
_RELATION = _READ + sql.SQL(
    "SELECT c.oid, n.nspname, c.relname, c.relkind::text, (SELECT pg_catalog.bool_or(t.relrowsecurity) "
    "FROM read r JOIN pg_catalog.pg_class t ON t.tableoid = r.class AND t.oid = r.object WHERE r.named), "
    "pg_catalog.pg_is_other_temp_schema(n.oid), lent.* "
    "FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
    "LEFT JOIN LATERAL (SELECT i.type || ' ' || i.identity, pg_catalog.pg_get_userbyid(o.owner), "
    "pg_catalog.concat(m.rolname, CASE WHEN m.rolsuper THEN ' (SUPERUSER)' "
    "WHEN m.rolcreaterole THEN ' (CREATEROLE)' WHEN m.rolbypassrls THEN ' (BYPASSRLS)' "
    "WHEN m.rolreplication THEN ' (REPLICATION)' END) "
    "FROM read r JOIN (SELECT t.tableoid, t.oid, t.relowner FROM pg_catalog.pg_class t "
    "WHERE t.relkind NOT IN ('i', 'I') "
    "UNION ALL SELECT p.tableoid, p.oid, p.proowner FROM pg_catalog.pg_proc p "
    "UNION ALL SELECT y.tableoid, y.oid, y.typowner FROM pg_catalog.pg_type y WHERE y.typtype = 'd') "
    "o (class, object, owner) "
    "ON o.class = r.class AND o.object = r.object "
    "JOIN pg_catalog.pg_roles m ON (m.rolsuper OR m.rolcreaterole OR m.rolbypassrls OR m.rolreplication "
    "OR m.rolname IN ('pg_read_server_files', 'pg_write_server_files', 'pg_execute_server_program', "
    "'pg_read_all_data', 'pg_write_all_data')) "
    "AND pg_catalog.pg_has_role(session_user, m.oid, 'MEMBER') "
    "AND NOT pg_catalog.pg_has_role(o.owner, m.oid, 'MEMBER'), "
    "LATERAL pg_catalog.pg_identify_object(o.class, o.object, 0) i "
    "ORDER BY o.class <> c.tableoid, o.object <> c.oid, i.identity, "
    "NOT m.rolsuper, m.rolname <> session_user, m.rolname LIMIT 1) lent ON true "
    "WHERE c.oid = %(named)s"
)


# What a message names and the role may not use, the likeliest first; and whether it is the extension's.
_DENIED = sql.SQL(
    "SELECT oid, name, schema, ours, current_user::text FROM ("
    "SELECT c.oid, c.relname, n.nspname, n.nspname IN ('dpml', 'dpml_work') "
    "FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
    "WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') "
    "AND (NOT pg_catalog.has_table_privilege(c.oid, 'SELECT') OR (n.nspname = 'dpml' "
    "AND NOT (pg_catalog.has_table_privilege(c.oid, 'INSERT') "
    "AND pg_catalog.has_table_privilege(c.oid, 'UPDATE')))) "
    "UNION ALL SELECT p.oid, p.proname, n.nspname, true "
    "FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace "
    "WHERE n.nspname = 'dpml' AND NOT pg_catalog.has_function_privilege(p.oid, 'EXECUTE') "
    "UNION ALL SELECT NULL, n.nspname, NULL, n.nspname IN ('dpml', 'dpml_work') "
    "FROM pg_catalog.pg_namespace n WHERE NOT (pg_catalog.has_schema_privilege(n.oid, 'USAGE') "
    "AND pg_catalog.has_schema_privilege(n.oid, 'CREATE'))"
    ") denied (oid, name, schema, ours) WHERE pg_catalog.strpos(%(message)s, name) > 0 "
    "ORDER BY coalesce(oid = ANY (%(looked_up)s::oid[]), false) DESC, pg_catalog.length(name) DESC, "
    "ours DESC, oid"
)


def _names(message: str, name: str) -> bool:
    """Whether a message, in any language, has a name as a word of its own."""
    return re.search(f"(?<![A-Za-z0-9_]){re.escape(name)}(?![A-Za-z0-9_])", message) is not None


def _column_type(
    name: str,
    virtual: bool,
    depth: int,
    typmod: int,
    builtin: str | None,
    is_vector: bool,
    labels: list[str] | None,
) -> ColumnType:
    """A row of `Session._columns`: what lies below `depth` arrays."""
    kind = "enum" if labels else _KINDS.get(builtin or "", "other")
    if is_vector and depth == 0:
        length = typmod if typmod > 0 else None
        return ColumnType(name, "array", "number", length, virtual=virtual, vector=True)
    if depth == 0:
        whole = builtin in ("int2", "int4", "int8")
        enum = tuple(labels) if labels else None
        collated = kind == "text" and builtin != "char"
        return ColumnType(
            name,
            kind,
            enum_labels=enum,
            virtual=virtual,
            whole=whole,
            collated=collated,
            base=builtin,
            modifier=typmod,
        )
    if depth > 1 or kind in ("text", "enum", "other"):
        return ColumnType(name, "other", virtual=virtual)
    return ColumnType(name, "array", kind, virtual=virtual)


def verbatim(text: str) -> sql.Composed:
    """SQL text as it stands: `sql.SQL` takes only literals, and a lone percent sign for a placeholder."""
    return sql.Composed([sql.SQL(text.replace("%", "%%"))])  # type: ignore[arg-type, unused-ignore]


def json_parameter(value: Mapping[str, Any]) -> Jsonb:
    """A mapping as a jsonb parameter; not escaped, as a database of encoding SQL_ASCII takes no escapes."""
    return Jsonb(value, dumps=_json)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def array_parameter(values: npt.NDArray[np.float64]) -> object:
    """A large array of shape (n,), n at least 1, as a float8[] parameter; never of un-noised numbers."""
    return _Float8Array(values)


class Database:
    """Where the rows are.

    Parameters
    ----------
    source : str or sqlalchemy.Engine
        libpq connection string or URL, or an engine over psycopg 3. Each session has a connection of its
        own, which leaves the engine's pool and is closed; of a pool that has one alone (StaticPool), that
        one, if it is in no transaction.
    insecure : bool
        Allow TCP without TLS to another machine.
    """

    def __init__(self, source: str | sa.Engine = "", *, insecure: bool = False) -> None:
        self._insecure = insecure
        self._connect = opener(source)

    @contextmanager
    def session(self, isolation: str = "READ COMMITTED") -> Iterator[Session]:
        """One transaction: committed at the end of the block, rolled back on any exception.

        Raises
        ------
        UnavailableError
            If the server cannot be reached or is read-only, or the connection is lost.
        CommitLostError, RunInterrupted
            If the answer to the commit is lost, or not waited for, of a transaction that `must_last`.
        DpmlError
            For any other error of the server, with its first line and no detail.
        """
        with self.connection() as opened, self.transaction(opened, isolation) as session:
            yield session

    @contextmanager
    def connection(self) -> Iterator[Opened]:
        """A connection, for one `transaction` after another.

        Raises
        ------
        UnavailableError
            If the server cannot be reached, or the engine's pool gives no connection in its time.
        """
        try:
            opened = self._connect()
        except psycopg.Error as error:
            raise _translate(error, connected=False) from None
        try:
            self._require_tls(opened.driver)
            yield opened
        finally:
            opened.close()

    @contextmanager
    def transaction(
        self, opened: Opened, isolation: str = "READ COMMITTED", *, kept: bool = True
    ) -> Iterator[Session]:
        """As `session`, of a connection that has no transaction; rolled back at its end if not `kept`."""
        driver = opened.driver
        session = None
        try:
            opened.start(isolation)
            session = Session(driver)
            yield session
            if kept:
                _commit(session)
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
                raise _translate(error, session) from None
            raise

    @contextmanager
    def beside(self) -> Iterator[Session]:
        """As `session`, of a second connection, while a first one has a transaction.

        Raises
        ------
        SpecError
            If the engine lends one connection only.
        UnavailableError
            If the second one is not served in time, as by a pooler with one connection to the server.
        """
        with self.connection() as second:
            late = threading.Event()
            # A statement that a pooler holds back cannot be cancelled, only its connection be ended.
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
    """End a connection that another thread waits at."""
    late.set()
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(driver.fileno())) as line:
        line.shutdown(socket.SHUT_RDWR)


def _commit(session: Session) -> None:
    """Commit, and say so where nobody knows whether the server did."""
    try:
        session.driver.commit()
    except BaseException as error:
        if isinstance(error, psycopg.Error) and error.diag.severity_nonlocalized == "ERROR":
            raise  # the server refused
        session.driver.close()
        at_stake = session.at_stake
        if not isinstance(error, Exception):
            if at_stake is None:
                raise
            raise RunInterrupted(f"interrupted during the commit: {at_stake}", type(error)) from None
        if at_stake is None:
            lost = UnavailableError(
                f"{_LOST} during the commit, so what was asked for may be done: look before you repeat it"
            )
            lost.cause = _LOST
            raise lost from None
        raise CommitLostError(f"{_LOST} during the commit: {at_stake}") from None


def _translate(error: psycopg.Error, session: Session | None = None, *, connected: bool = True) -> DpmlError:
    """A driver's error as ours: the first line of its message, never its detail or context.

    Parameters
    ----------
    error : psycopg.Error
    session : Session or None
        Where it arose, to look up which right is missing; what failed must be rolled back.
    connected : bool
    """
    translated = _in_our_words(error, session, connected=connected)
    translated.by_server = raised_by_server(error)
    if error.sqlstate:
        translated.cause = _CAUSES.get(error.sqlstate)
    elif isinstance(error, psycopg.OperationalError):
        translated.cause = _LOST
    return translated


def _is_of_statement(error: psycopg.Error) -> bool:
    """Whether a planned statement itself, no function in it, has a wrong name or type or lacks a right."""
    found = error.diag.statement_position or error.diag.source_function in (_DENIED_BY, _ROW_SECURITY)
    return bool((error.sqlstate or "").startswith(_OF_NAMES) and found and not error.diag.context)


def raised_by_server(error: BaseException | None) -> bool:
    """Whether the server raised an error, ours or the driver's, so that its log has it in full."""
    if isinstance(error, DpmlError):
        return error.by_server
    return isinstance(error, psycopg.Error) and error.sqlstate is not None


def _in_our_words(error: psycopg.Error, session: Session | None, *, connected: bool) -> DpmlError:
    # By code and fields alone: the message is in the server's language.
    text = (str(error).strip().splitlines() or ["unknown"])[0]
    if error.sqlstate is None and isinstance(error, psycopg.OperationalError):
        if connected:
            return UnavailableError(f"{_LOST}: {text}")
        return UnavailableError(
            f"cannot reach PostgreSQL: {text}. Check the connection string, or PGHOST, PGPORT, PGDATABASE, "
            "PGUSER and PGSERVICE"
        )
    if error.sqlstate is None and isinstance(error, psycopg.NotSupportedError):
        return SpecError(f"{text}: make the engine with connect_args={{'client_encoding': 'UTF8'}}")
    primary = error.diag.message_primary or text
    if error.sqlstate == _READ_ONLY:
        return UnavailableError(
            f"this server is read-only ({primary}): train, and write, on the primary, where "
            "default_transaction_read_only is off; dpml.predict works here"
        )
    if error.sqlstate in _UNAVAILABLE:
        return UnavailableError(f"{_CAUSES[error.sqlstate]}: {primary}")
    missing = isinstance(error, psycopg.errors.UndefinedTable | psycopg.errors.UndefinedFunction)
    if (missing and re.search(r"(?<![A-Za-z0-9_])dpml\.", primary)) or (
        error.sqlstate == _MISSING_SCHEMA and (_names(primary, "dpml") or _names(primary, "dpml_work"))
    ):
        return SpecError(
            f"{primary}: is the extension installed in this database? Try CREATE EXTENSION pg_dpml; "
            "if it is, dpml doctor compares versions"
        )
    if isinstance(error, psycopg.errors.CharacterNotInRepertoire):
        return SpecError(
            f"{primary}: a name or value in this database is not UTF-8, which its encoding SQL_ASCII allows; "
            "rename what is called so, or write such values anew"
        )
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        if error.diag.source_function == _ROW_SECURITY:
            return GuaranteeError(
                f"{primary}, so the rows depend on who asks: copy them into a table without row-level "
                "security (CREATE TABLE ... AS TABLE ...), as a role that sees them all, and name that"
            )
        return SpecError(primary + _missing_grant(error, primary, session))
    refused = psycopg.DataError, psycopg.errors.DatatypeMismatch, psycopg.errors.InvalidSchemaName
    if isinstance(error, refused):
        return SpecError(primary)
    return DpmlError(primary)


def _missing_grant(error: psycopg.Error, primary: str, session: Session | None) -> str:
    if session is None or error.diag.source_function != _DENIED_BY:
        return ""
    try:
        if session.driver.info.transaction_status != pq.TransactionStatus.IDLE:
            return session.missing_grant(primary)
        with session.transaction():
            return session.missing_grant(primary)
    except psycopg.Error:  # no connection any more: the error is told without advice
        return ""
