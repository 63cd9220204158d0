# SPDX-License-Identifier: PostgreSQL
"""The name of a table that a command is to create."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from psycopg import sql

from pg_dpml import names
from pg_dpml.database.catalog import offer_schema
from pg_dpml.errors import SpecError

if TYPE_CHECKING:
    from pg_dpml.database.session import Session

__all__ = ["new_table"]

_UNQUOTED = re.compile(r"\s*(?:[^\W\d][\w$]*)?(?:\s*\.\s*(?:[^\W\d][\w$]*)?)?\s*")
"""What may stand beside the quoted parts of the name."""


def new_table(session: Session, name: str, argument: str = "into") -> sql.Identifier:
    """The qualified name of a new table; without a schema, in the one where the role creates tables.

    Parameters
    ----------
    name : str
        As in SQL: schema-qualified or not, and folded where it is not quoted.
    argument : str
        What gives the name, for messages.

    Raises
    ------
    SpecError
        If `name` is no such name or too long for one, if its schema does not exist or holds only tables that
        do not last, or if the name is taken.
    """
    parts = names.parse(name)
    unquoted = re.sub('"(?:[^"]|"")+"', "", name)
    if parts is None or len(parts) > 2 or not _UNQUOTED.fullmatch(unquoted):
        raise SpecError(
            f"{argument} must be the name of a new table as in SQL, such as predictions, or "
            "schema.predictions, with double quotes around what SQL would not take without, such as "
            f"{sql.Identifier(name.strip() or 'My Table').as_string()}; not {names.shown(name)}"
        )
    shown = names.visible(name.strip())
    with session.role_path():
        (current,) = session.fetch_one(sql.SQL("SELECT pg_catalog.current_schema()"))
    *given, table = parts
    if not given and current is None:
        raise SpecError(f"{argument}: no schema of the search_path exists here; write schema.{shown}")
    schema = given[0] if given else current
    if schema.startswith("pg_temp"):
        raise SpecError(
            f"{argument}: a temporary table is gone when dpml ends; name another schema for {shown}"
        )
    if schema in ("dpml", "dpml_work"):
        raise SpecError(f"{argument}: schema {schema} is for the extension's own tables; name another")
    offer = offer_schema(session, schema)
    if offer is not None:
        raise SpecError(f"{argument}: there is no schema {names.shown(schema)}{offer}")
    taken, length, longest = session.fetch_one(
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
            f"{argument}: {names.shown(table)} has {length} bytes, and a name in PostgreSQL has at most "
            f"{longest}"
        )
    if taken:
        option = "--into" if argument == "into" else argument
        raise SpecError(f"table {shown} exists: choose another name for {option}, or drop it first")
    return sql.Identifier(schema, table)
