# SPDX-License-Identifier: PostgreSQL
"""One transaction on the server."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import psycopg
from psycopg import sql

from pg_dpml import names
from pg_dpml.database.adapters import Cursor, Float8Array, text_of, verbatim
from pg_dpml.database.catalog import (
    DEFINITIONS,
    DENIED,
    LOCKED,
    READ,
    RELATION,
    ColumnType,
    SourceTable,
    column_type,
    quoted_names,
)
from pg_dpml.database.failures import is_of_statement, translate
from pg_dpml.errors import (
    DpmlError,
    GuaranteeError,
    SpecError,
)

__all__ = [
    "Session",
    "sql",
]


_UNQUOTED = re.compile(r"\s*(?:[^\W\d][\w$]*)?(?:\s*\.\s*(?:[^\W\d][\w$]*)?)?\s*")
"""What may stand beside the quoted parts of the name of a new table."""


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

Query = sql.SQL | sql.Composed
_Answer = TypeVar("_Answer")


class Session:
    """One open connection and its transaction; SQL comes in as `psycopg.sql`, never as a plain f-string.

    Names in it are looked up in pg_catalog alone, so that no schema of the role's search_path can put
    an operator, a function or a type of its own in their place; `owners_path` is for the owner's SQL.
    """

    def __init__(self, driver: psycopg.Connection[Any]) -> None:
        self.driver = driver
        self.at_stake: str | None = None
        """What is said where it is not known whether the transaction was committed; see `must_last`."""
        self._context = Cursor(driver)
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
        with text_of():
            return int(self._run(query, parameters).rowcount)

    def fetch(self, query: Query, parameters: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """Run one query; its rows. A percent sign in `sql.SQL` is written twice."""
        with text_of():
            return self._run(query, parameters).fetchall()

    def _run(self, query: Query, parameters: Mapping[str, Any] | None) -> Cursor:
        # Prepared statements would not survive a transaction-mode pooler.
        return Cursor(self.driver).execute(self._escaped(query), parameters or {}, prepare=False)

    def fetch_one(self, query: Query, parameters: Mapping[str, Any] | None = None) -> tuple[Any, ...]:
        """Run one query that returns exactly one row."""
        rows = self.fetch(query, parameters)
        assert len(rows) == 1
        return rows[0]

    def locked(self) -> list[int]:
        """Tables, views and indexes that this transaction has locked, but for those of PostgreSQL itself."""
        return [oid for (oid,) in self.fetch(LOCKED)]

    def definitions(self, relations: Sequence[int]) -> str:
        """A digest of how relations are defined and stored, as this session's snapshot has them."""
        (digest,) = self.fetch_one(DEFINITIONS, {"relations": list(relations)})
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
            return translate(error, self)

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
        row = [Float8Array(np.asarray(v)) if isinstance(v, arrays) else v for v in values]
        command = self._escaped(sql.SQL("COPY {} FROM STDIN (FORMAT binary)").format(table))
        with text_of(), Cursor(self.driver) as cursor, cursor.copy(command) as copy:
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
        self._quoting_no_row(sql.SQL("EXPLAIN ") + query, parameters, failed, is_of_statement)

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
        found = self.fetch(RELATION, {"named": named, "views": ["v"]})
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
            READ
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
        rows = self.fetch(DENIED, {"message": message, "looked_up": self._looked_up})
        named = [row for row in rows if quoted_names(message, row[1])]
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
        return {row[0]: column_type(*row[1:]) for row in rows}

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
