# SPDX-License-Identifier: PostgreSQL
"""Tables as the catalog describes them, looked up by the name that a user wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from psycopg import sql

from pg_dpml import names
from pg_dpml.database.columns import ColumnType, columns_of
from pg_dpml.database.dependencies import READ_OBJECTS
from pg_dpml.errors import GuaranteeError, SpecError

if TYPE_CHECKING:
    from pg_dpml.database.session import Session

__all__ = ["SourceTable", "look_up_table", "offer_schema", "owner_of"]

# `lent`: an object that is read or called, its owner, and a right of the session's role that the owner lacks.
_TABLE = READ_OBJECTS + sql.SQL("""
    SELECT c.oid, n.nspname, c.relname, c.relkind::text,
        (SELECT pg_catalog.bool_or(t.relrowsecurity) FROM read r
            JOIN pg_catalog.pg_class t ON t.tableoid = r.class AND t.oid = r.object WHERE r.named),
        pg_catalog.pg_is_other_temp_schema(n.oid), lent.*
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    LEFT JOIN LATERAL (
        SELECT i.type || ' ' || i.identity, pg_catalog.pg_get_userbyid(o.owner),
            pg_catalog.concat(m.rolname, CASE WHEN m.rolsuper THEN ' (SUPERUSER)'
                WHEN m.rolcreaterole THEN ' (CREATEROLE)' WHEN m.rolbypassrls THEN ' (BYPASSRLS)'
                WHEN m.rolreplication THEN ' (REPLICATION)' END)
        FROM read r
        JOIN (
            SELECT t.tableoid, t.oid, t.relowner FROM pg_catalog.pg_class t
            WHERE t.relkind NOT IN ('i', 'I')
            UNION ALL SELECT p.tableoid, p.oid, p.proowner FROM pg_catalog.pg_proc p
            UNION ALL SELECT y.tableoid, y.oid, y.typowner FROM pg_catalog.pg_type y WHERE y.typtype = 'd'
        ) o (class, object, owner) ON o.class = r.class AND o.object = r.object
        JOIN pg_catalog.pg_roles m
            ON (m.rolsuper OR m.rolcreaterole OR m.rolbypassrls OR m.rolreplication
                OR m.rolname IN ('pg_read_server_files', 'pg_write_server_files',
                    'pg_execute_server_program', 'pg_read_all_data', 'pg_write_all_data'))
            AND pg_catalog.pg_has_role(session_user, m.oid, 'MEMBER')
            AND NOT pg_catalog.pg_has_role(o.owner, m.oid, 'MEMBER'),
        LATERAL pg_catalog.pg_identify_object(o.class, o.object, 0) i
        ORDER BY o.class <> c.tableoid, o.object <> c.oid, i.identity,
            NOT m.rolsuper, m.rolname <> session_user, m.rolname
        LIMIT 1
    ) lent ON true
    WHERE c.oid = %(named)s
""")


@dataclass(frozen=True)
class SourceTable:
    """A table as the catalog knows it.

    Attributes
    ----------
    oid : int
    schema, name : str
    kind : str
        pg_class.relkind.
    row_security : bool
        Whether it, or a table that it shows as a view, has row-level security.
    columns : mapping of str to ColumnType
        In the table's order.
    """

    oid: int
    schema: str
    name: str
    kind: str
    row_security: bool
    columns: Mapping[str, ColumnType] = field(repr=False)

    @property
    def identifier(self) -> sql.Identifier:
        """Its name, quoted and schema-qualified."""
        return sql.Identifier(self.schema, self.name)

    def column(self, name: str, argument: str | None = None) -> str:
        """The exact name of a column that is written exactly so, or as in SQL.

        Parameters
        ----------
        name : str
        argument : str or None
            The argument that the name was given as, for the message.

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


def look_up_table(session: Session, table: str) -> SourceTable:
    """Look a table up by its SQL name, or by its exact name, with its schema before a dot or without.

    Raises
    ------
    SpecError
        If there is no such table or view, or it may not be read.
    GuaranteeError
        If the session's role has rights over the server or other roles that the owner of anything that
        would be read or called lacks.
    """
    if not table.strip():
        raise SpecError("table must be the name of a table, not empty")
    parts = names.parse(table) or ()
    named = _oid_of(session, table, parts)
    if named is not None:
        session.looked_up.append(named)
    found = session.fetch(_TABLE, {"named": named, "views": ["v"]})
    shown = names.visible(table.strip()) if parts else names.shown(table)
    if (found and found[0][5]) or (not found and _is_temporary_elsewhere(session, {table, *parts[-1:]})):
        raise SpecError(
            f"table {shown} is a temporary table of another session, which no other connection can read: "
            "make it a normal table, unlogged if it need not last (CREATE UNLOGGED TABLE ...)"
        )
    if not found or found[0][3] not in "rpvmf" or not _is_meant(table, parts, *found[0][1:3]):
        raise _no_table(session, shown, parts)
    oid, schema, name, kind, row_security, _, involved, owner, lent = found[0]
    if involved is not None:
        fault = (
            f"reading {shown} involves {names.visible(involved)} of role {names.shown(owner)}, whose "
            f"functions could run with the rights of role {names.visible(lent)}"
        )
        fix = f"connect as {names.shown(owner)}, or as a curator without such rights"
        raise GuaranteeError(f"{fault}: {fix}", plain=fault)
    _require_utf8(session, table, oid)
    session.settle_workers()
    return SourceTable(oid, schema, name, kind, row_security, columns_of(session, oid))


def owner_of(session: Session, table: SourceTable) -> str:
    """The role that owns a table."""
    (owner,) = session.fetch_one(
        sql.SQL("SELECT pg_catalog.pg_get_userbyid(relowner) FROM pg_catalog.pg_class WHERE oid = %(oid)s"),
        {"oid": table.oid},
    )
    return str(owner)


def offer_schema(session: Session, schema: str) -> str | None:
    """The end of a message about a schema that does not exist; None if it does exist."""
    known = [name for (name,) in session.fetch(sql.SQL("SELECT nspname FROM pg_catalog.pg_namespace"))]
    if schema in known:
        return None
    own = ("pg_", "information_schema")  # of the server: no table of a user is there
    return names.did_you_mean(schema, [name for name in known if not name.startswith(own)])


def _oid_of(session: Session, table: str, parts: Sequence[str]) -> int | None:
    """The oid of the table with this name as in SQL, else with this exact name, else None."""
    written = sql.Identifier(*parts).as_string() if len(parts) in (1, 2) else None
    with session.role_path():
        (named,) = session.fetch_one(
            sql.SQL(
                "SELECT coalesce(pg_catalog.to_regclass(%(written)s), "
                "pg_catalog.to_regclass(%(exact)s))::pg_catalog.oid"
            ),
            {"written": written, "exact": sql.Identifier(table).as_string()},
        )
    if named is None:
        qualified = session.fetch(
            sql.SQL(
                "SELECT c.oid FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n "
                "ON n.oid = c.relnamespace WHERE pg_catalog.concat(n.nspname, '.', c.relname) = %(table)s"
            ),
            {"table": table},
        )
        named = qualified[0][0] if len(qualified) == 1 else None
    return None if named is None else int(named)


def _is_meant(table: str, parts: Sequence[str], schema: str, name: str) -> bool:
    """Whether a table has the name asked for: the server cuts names that are too long."""
    return name in (table, *parts[-1:]) or f"{schema}.{name}" == table


def _is_temporary_elsewhere(session: Session, candidates: set[str]) -> bool:
    (found,) = session.fetch_one(
        sql.SQL(
            "SELECT EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.relpersistence = 't' "
            "AND c.relname = ANY (%(candidates)s::text[]) "
            "AND pg_catalog.pg_is_other_temp_schema(c.relnamespace))"
        ),
        {"candidates": list(candidates)},
    )
    return bool(found)


def _no_table(session: Session, shown: str, parts: Sequence[str]) -> SpecError:
    """The error for a table that does not exist."""
    if len(parts) == 2:
        offer = offer_schema(session, parts[0])
        if offer is not None:
            return SpecError(
                f"table {shown} does not exist here: there is no schema {names.shown(parts[0])}{offer}"
            )
    with session.role_path():
        (path,) = session.fetch_one(sql.SQL("SELECT pg_catalog.current_schemas(false)::text[]"))
    rows = session.fetch(
        sql.SQL(
            "SELECT n.nspname, c.relname FROM pg_catalog.pg_class c "
            "JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
            "WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND NOT pg_catalog.starts_with(n.nspname, 'pg_') "
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


def _require_utf8(session: Session, table: str, oid: int) -> None:
    """Reject column names that cannot be sent; only a database of encoding SQL_ASCII has such names."""
    if session.server_encoding != "SQL_ASCII":
        return
    rows = session.fetch(
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
