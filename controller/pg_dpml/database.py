# SPDX-License-Identifier: PostgreSQL
"""The only module that opens connections and sends SQL.

A data source is a libpq connection string (empty: the `PG*` variables and
service files decide) or an SQLAlchemy engine over psycopg 3, never an open
connection: a run decides itself when its charge is committed.
"""

from __future__ import annotations

import ipaddress
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import psycopg
import sqlalchemy as sa
from psycopg import pq, sql
from psycopg.adapt import Dumper
from psycopg.types.json import Jsonb
from sqlalchemy.pool import NullPool

from pg_dpml.errors import (
    CommitLostError,
    DpmlError,
    GuaranteeError,
    RunInterrupted,
    SpecError,
    UnavailableError,
)

__all__ = [
    "ColumnType",
    "Database",
    "Session",
    "SourceTable",
    "array_parameter",
    "json_parameter",
    "refuse_password",
    "sql",
    "verbatim",
]

_SAFE_PATH = "pg_catalog, pg_temp"
_READ_ONLY = "25006"
_MISSING_SCHEMA = "3F000"

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
_UNAVAILABLE = ("57P01", "57P02", "57P03")
_OF_NAMES = "42"
"""Class of errors about names, types and rights."""


# A name as SQL writes it, qualified or not: to_regclass raises an error on what is none.
_PART = r'(?:[^\s".]+|"(?:[^"]|"")+")'
_SQL_NAME = re.compile(rf"\s*{_PART}(?:\s*\.\s*{_PART})?\s*")

_DENIED = re.compile(
    "permission denied for (table|view|materialized view|foreign table|schema|function|aggregate) (.+)"
)
_PRODUCTS = ("dpml", "dpml_work", "models", "ledger", "budgets", "budget_entries")
"""Names in PostgreSQL's permission errors, which say no schema, that are the extension's own."""

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
    exact : bool
        numeric, or an array of it: too wide for a plain cast to a float.
    vector : bool
        pgvector's type, not an array.
    """

    name: str
    kind: str
    element: str | None = None
    length: int | None = None
    enum_labels: tuple[str, ...] | None = None
    virtual: bool = False
    whole: bool = False
    exact: bool = False
    vector: bool = False


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


Answer = TypeVar("Answer")


class Session:
    """One open connection and its transaction; SQL comes in as `psycopg.sql`, never as a plain f-string.

    Names in it are looked up in pg_catalog alone, so that no schema of the role's search_path can put
    an operator, a function or a type of its own in their place; `owners_path` is for the owner's SQL.
    """

    def __init__(self, connection: sa.Connection, driver: psycopg.Connection[Any]) -> None:
        driver.adapters.register_dumper(_Float8Array, _Float8ArrayDumper)
        self.connection = connection
        self.driver = driver
        self.at_stake: str | None = None
        """What is said where it is not known whether the transaction was committed; see `must_last`."""
        (self._path,) = self.fetch_one(sql.SQL("SELECT pg_catalog.current_setting('search_path')"))
        self._settle()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """One transaction of a session at isolation AUTOCOMMIT, which has none of its own."""
        with self.driver.transaction():
            self._settle()
            yield

    def _settle(self) -> None:
        # Local, here and below: a pooler in transaction mode gives the connection to others.
        self.fetch(
            sql.SQL(
                "SELECT pg_catalog.set_config('search_path', %(path)s, true), "
                "pg_catalog.set_config('row_security', 'on', true)"
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
        return int(self.driver.execute(self._escaped(query), parameters or {}).rowcount)

    def fetch(self, query: Query, parameters: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """Run one query; its rows. A percent sign in `sql.SQL` is written twice."""
        rows: list[tuple[Any, ...]] = self.driver.execute(self._escaped(query), parameters or {}).fetchall()
        return rows

    def fetch_one(self, query: Query, parameters: Mapping[str, Any] | None = None) -> tuple[Any, ...]:
        """Run one query that returns exactly one row."""
        rows = self.fetch(query, parameters)
        assert len(rows) == 1
        return rows[0]

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
            return _translate(error, self.driver.info.user)

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
        with self.driver.cursor() as cursor, cursor.copy(command) as copy:
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

        def counted() -> int:
            # Without a row first, for what that says of names, types and rights.
            self.execute(sql.SQL("SET LOCAL row_security = off"))  # an error in place of hidden rows
            self.fetch(sql.SQL("EXPLAIN ") + query)
            self.execute(sql.SQL("SET LOCAL row_security = on"))
            return int(self.fetch_one(query)[0])

        return self.quoting_no_row(counted, failed)

    def quoting_no_row(self, run: Callable[[], Answer], failed: str) -> Answer:
        """Run statements that plan or run the owner's SQL.

        Planning is enough for an error to quote a value: operators are tried on those that ANALYZE has kept.

        Raises
        ------
        SpecError
            With the text `failed` in place of a server's error, unless that is about names, types or rights.
        """
        try:
            with self.owners_path():
                return run()
        except psycopg.OperationalError:  # no connection, cancelled, out of resources
            raise
        except psycopg.Error as error:
            if (error.sqlstate or "").startswith(_OF_NAMES):
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
            return verbatim(query.as_string(self.driver))
        return sql.Composed([query])

    def relation(self, table: str) -> SourceTable:
        """Look a table up by its SQL name, or by its exact name.

        Raises
        ------
        SpecError
            If there is no such table or view, or it may not be read.
        GuaranteeError
            If the session's role has rights over the server or other roles that the owner of anything that
            would be read or called has not.
        """
        with self.role_path():
            (named,) = self.fetch_one(
                sql.SQL(
                    "SELECT coalesce(CASE WHEN {folds} THEN pg_catalog.to_regclass(%(table)s) END, "
                    "pg_catalog.to_regclass(pg_catalog.quote_ident(%(table)s)))::pg_catalog.oid"
                ).format(folds=sql.Literal(_SQL_NAME.fullmatch(table) is not None)),
                {"table": table},
            )
        found = self.fetch(_RELATION, {"named": named, "views": ["v"]})
        if (found and found[0][5]) or (not found and self._is_temporary_elsewhere(table)):
            raise SpecError(
                f"table {table} is a temporary table of another session, which no other connection can read: "
                "make it a normal table, unlogged if it need not last (CREATE UNLOGGED TABLE ...)"
            )
        if not found or found[0][3] not in "rpvmf":
            raise SpecError(
                f"table {table} does not exist here; write it as in SQL, schema-qualified if it is not "
                'on the search_path, and quoted ("My Table") if its name needs it'
            )
        oid, schema, name, kind, row_security, _, involved, owner, lent = found[0]
        if involved is not None:
            raise GuaranteeError(
                f"reading {table} involves {involved} of role {owner}, whose functions could run with the "
                f"rights of role {lent}: connect as {owner}, or as a curator without such rights"
            )
        return SourceTable(oid, schema, name, kind, row_security, self._columns(oid))

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

        Raises
        ------
        SpecError
            If there is a relation of that name, or the role's search_path has no schema.
        """
        with self.role_path():
            (current,) = self.fetch_one(sql.SQL("SELECT pg_catalog.current_schema()"))
        *schema, table = name.split(".", 1)
        if not schema and current is None:
            raise SpecError(f"table {name}: no schema of the search_path exists here; write schema.{name}")
        target = sql.Identifier(*(schema or [current]), table)
        (taken,) = self.fetch_one(
            sql.SQL("SELECT pg_catalog.to_regclass(%(name)s) IS NOT NULL"), {"name": target.as_string()}
        )
        if taken:
            raise SpecError(f"table {name} exists: choose another name for --into, or drop it first")
        return target

    def _is_temporary_elsewhere(self, table: str) -> bool:
        (found,) = self.fetch_one(
            sql.SQL(
                "SELECT EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.relpersistence = 't' "
                "AND c.relname IN (%(table)s::text, pg_catalog.lower(%(table)s)) "
                "AND pg_catalog.pg_is_other_temp_schema(c.relnamespace))"
            ),
            {"table": table.strip()},
        )
        return bool(found)

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
    exact = builtin == "numeric"
    if is_vector and depth == 0:
        length = typmod if typmod > 0 else None
        return ColumnType(name, "array", "number", length, virtual=virtual, vector=True)
    if depth == 0:
        whole = builtin in ("int2", "int4", "int8")
        enum = tuple(labels) if labels else None
        return ColumnType(name, kind, enum_labels=enum, virtual=virtual, whole=whole, exact=exact)
    if depth > 1 or kind in ("text", "enum", "other"):
        return ColumnType(name, "other", virtual=virtual)
    return ColumnType(name, "array", kind, virtual=virtual, exact=exact)


def verbatim(text: str) -> sql.Composed:
    """SQL text as it stands: `sql.SQL` takes only literals, and a lone percent sign for a placeholder."""
    return sql.Composed([sql.SQL(text.replace("%", "%%"))])  # type: ignore[arg-type, unused-ignore]


def json_parameter(value: Mapping[str, Any]) -> Jsonb:
    """A mapping as a jsonb parameter."""
    return Jsonb(value)


def array_parameter(values: npt.NDArray[np.float64]) -> object:
    """A large array of shape (n,), n at least 1, as a float8[] parameter; never of un-noised numbers."""
    return _Float8Array(values)


def _begin_safely(connection: psycopg.Connection[Any], _: object) -> None:
    connection.execute(f"SET LOCAL search_path = {_SAFE_PATH}")


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
            # SQLAlchemy's own questions to a new server, of one transaction, qualify nothing.
            sa.event.listen(self._engine, "first_connect", _begin_safely)
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
            If the server cannot be reached or is read-only, or the connection is lost.
        CommitLostError, RunInterrupted
            If the answer to the commit is lost, or not waited for, of a transaction that `must_last`.
        DpmlError
            For any other error of the server, with its first line and no detail.
        """
        try:
            connection = self._engine.connect()
        except sa.exc.DBAPIError as error:
            raise _translate(error.orig, connected=False) from None
        except psycopg.Error as error:
            raise _translate(error, connected=False) from None
        with connection:
            connection = connection.execution_options(isolation_level=isolation)
            role = ""
            try:
                with connection.begin() as transaction:
                    driver = connection.connection.driver_connection
                    assert isinstance(driver, psycopg.Connection)  # __init__ refuses other drivers
                    role = driver.info.user
                    self._require_tls(driver)
                    session = Session(connection, driver)
                    try:
                        yield session
                    except BaseException as error:
                        # No rollback can be sent while a statement may still be running, as after an
                        # interrupt, or on a lost connection.
                        if not isinstance(error, Exception):
                            with suppress(psycopg.Error):
                                session.driver.cancel()
                            connection.invalidate()
                        elif session.driver.closed:
                            connection.invalidate()
                        raise
                    _commit(transaction, session)
            except sa.exc.DBAPIError as error:
                raise _translate(error.orig, role) from None
            except psycopg.Error as error:
                raise _translate(error, role) from None

    def _require_tls(self, driver: psycopg.Connection[Any]) -> None:
        info = driver.info
        if self._insecure or driver.pgconn.ssl_in_use or not info.hostaddr:
            return
        if not ipaddress.ip_address(info.hostaddr).is_loopback:
            raise SpecError(
                f"the connection to {info.host} is not encrypted and would carry un-noised weights: "
                "connect with sslmode=require, or pass insecure if the network is private"
            )


def _commit(transaction: sa.RootTransaction, session: Session) -> None:
    """Commit, and say so where nobody knows whether the server did."""
    try:
        transaction.commit()
    except BaseException as error:
        original = error.orig if isinstance(error, sa.exc.DBAPIError) else error
        if isinstance(original, psycopg.Error) and original.diag.severity_nonlocalized == "ERROR":
            raise  # the server refused
        session.connection.invalidate()
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


def _grant(primary: str, role: str) -> str:
    """The GRANT that a permission error asks for; empty for a message that is not understood."""
    found = _DENIED.fullmatch(primary)
    if found is None:
        return ""
    kind, name = found.groups()
    grantee = sql.Identifier(role).as_string()
    if kind in ("function", "aggregate") or name in _PRODUCTS:
        return (
            f": it takes GRANT dpml_curator TO {grantee} (dpml_analyst, to apply models only), by a superuser"
        )
    thing = sql.Identifier(name).as_string()
    if kind == "schema":
        return (
            f": it takes GRANT USAGE ON SCHEMA {thing} TO {grantee}, and to write a table there GRANT CREATE"
        )
    return f": it takes GRANT SELECT ON {thing} TO {grantee}, by its owner"


def _translate(error: BaseException | None, role: str = "", *, connected: bool = True) -> DpmlError:
    """A server error as ours: the first line of its message, never its detail or context."""
    translated = _in_our_words(error, role, connected=connected)
    translated.by_server = raised_by_server(error)
    if isinstance(error, psycopg.Error) and error.sqlstate:
        translated.cause = _CAUSES.get(error.sqlstate)
    elif isinstance(error, psycopg.OperationalError):
        translated.cause = _LOST
    return translated


def raised_by_server(error: BaseException | None) -> bool:
    """Whether the server raised an error, ours or the driver's, so that its log has it in full."""
    if isinstance(error, DpmlError):
        return error.by_server
    original = error.orig if isinstance(error, sa.exc.DBAPIError) else error
    return isinstance(original, psycopg.Error) and original.sqlstate is not None


def _in_our_words(error: BaseException | None, role: str, *, connected: bool) -> DpmlError:
    text = str(error).strip().splitlines()[0] if error is not None and str(error).strip() else "unknown"
    if not isinstance(error, psycopg.Error):
        return DpmlError(text)
    if error.sqlstate is None and isinstance(error, psycopg.OperationalError):
        if connected:
            return UnavailableError(f"{_LOST}: {text}")
        return UnavailableError(
            f"cannot reach PostgreSQL: {text}. Check the connection string, or PGHOST, PGPORT, PGDATABASE, "
            "PGUSER and PGSERVICE"
        )
    primary = error.diag.message_primary or text
    if error.sqlstate == _READ_ONLY:
        return UnavailableError(
            f"this server is read-only ({primary}): train, and write, on the primary; dpml.predict works here"
        )
    if error.sqlstate in _UNAVAILABLE:
        return UnavailableError(f"{_CAUSES[error.sqlstate]}: {primary}")
    if error.sqlstate == _MISSING_SCHEMA or (
        isinstance(error, psycopg.errors.UndefinedTable | psycopg.errors.UndefinedFunction)
        and "dpml." in primary
    ):
        return SpecError(
            f"{primary}: is the extension installed in this database? Try CREATE EXTENSION pg_dpml; "
            "if it is, dpml doctor compares versions"
        )
    if isinstance(error, psycopg.errors.InsufficientPrivilege) and "row-level security" in primary:
        return GuaranteeError(
            f"{primary}, so the rows depend on who asks: copy them into a table without row-level security "
            "(CREATE TABLE ... AS TABLE ...), as a role that sees them all, and name that"
        )
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return SpecError(primary + _grant(primary, role))
    if isinstance(error, psycopg.errors.DataError | psycopg.errors.DatatypeMismatch):
        return SpecError(primary)
    return DpmlError(primary)
