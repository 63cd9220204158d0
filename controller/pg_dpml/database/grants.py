# SPDX-License-Identifier: PostgreSQL
"""Which GRANT a permission error asks for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from psycopg import sql

from pg_dpml import names

if TYPE_CHECKING:
    from pg_dpml.database.session import Session

__all__ = ["missing_grant", "quoted_names"]


@dataclass(frozen=True)
class _Fix:
    """The end of a permission error: what is missing, or whom to ask.

    Attributes
    ----------
    text : str
    joint : str
        What joins it to an offer of data sets, whose models one requests without it; empty for no offer.
    """

    text: str
    joint: str


_FOR_ANALYSTS = ("datasets", "closed_datasets", "requests", "withdraw_request")
"""What the commands of those who request models use, of the schema dpml."""

# Tables, functions and schemas that a message names and the role may not use, the likeliest first; `ours`:
# the extension's.
_DENIED = sql.SQL("""
    SELECT oid, name, schema, ours, current_user::text FROM (
        SELECT c.oid, c.relname, n.nspname, n.nspname IN ('dpml', 'dpml_work')
        FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f')
        AND (NOT pg_catalog.has_table_privilege(c.oid, 'SELECT') OR (n.nspname = 'dpml'
            AND NOT (pg_catalog.has_table_privilege(c.oid, 'INSERT')
            AND pg_catalog.has_table_privilege(c.oid, 'UPDATE'))))
        UNION ALL
        SELECT p.oid, p.proname, n.nspname, true
        FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
        WHERE n.nspname = 'dpml' AND NOT pg_catalog.has_function_privilege(p.oid, 'EXECUTE')
        UNION ALL
        SELECT NULL, n.nspname, NULL, n.nspname IN ('dpml', 'dpml_work') FROM pg_catalog.pg_namespace n
        WHERE NOT (pg_catalog.has_schema_privilege(n.oid, 'USAGE')
            AND pg_catalog.has_schema_privilege(n.oid, 'CREATE'))
    ) denied (oid, name, schema, ours)
    WHERE pg_catalog.strpos(%(message)s, name) > 0
    ORDER BY coalesce(oid = ANY (%(looked_up)s::oid[]), false) DESC, pg_catalog.length(name) DESC,
        ours DESC, oid
""")


def missing_grant(session: Session, message: str) -> str:
    """The end of a permission error: the GRANT that is missing, or whom to ask, and what works without.

    The error has no field for the object that may not be used, but its message, in the server's language,
    names it. Empty if no such object is found.
    """
    fix = _fix(session, message)
    if fix is None:
        return ""
    offered = _offered_data_sets(session) if fix.joint and _is_analyst(session) else ""
    return f"{fix.text}{fix.joint}{offered}" if offered else fix.text


def quoted_names(message: str, name: str) -> bool:
    """Whether a message, in any language, has a name as a word of its own."""
    return re.search(f"(?<![A-Za-z0-9_]){re.escape(name)}(?![A-Za-z0-9_])", message) is not None


def _fix(session: Session, message: str) -> _Fix | None:
    rows = session.fetch(_DENIED, {"message": message, "looked_up": session.looked_up})
    named = [row for row in rows if quoted_names(message, row[1])]
    if not named:
        return None
    oid, name, schema, ours, role = named[0]
    grantee = sql.Identifier(role).as_string()
    if ours and name == "withdraw_request" and _is_member(session, "dpml_curator"):
        return _Fix(
            ": only the role that made a request can withdraw it, as a member of dpml_analyst; dpml dataset "
            "withdraw NAME ends the offer of a data set, and refuses all requests of it that wait",
            "",
        )
    if ours and _is_analyst(session):
        # Who is not the one to ask for a curator's rights.
        return _Fix(
            ": only curators (members of dpml_curator) may do that; ask the owner of the data", ", or "
        )
    if ours and name in _FOR_ANALYSTS:
        return _Fix(
            f": it takes GRANT dpml_analyst TO {grantee} (dpml_curator, to train models and offer them), by "
            "a superuser",
            "",
        )
    if ours:
        return _Fix(
            f": it takes GRANT dpml_curator TO {grantee} (dpml_analyst, to request and apply models), by a "
            "superuser",
            "",
        )
    if oid is None:
        thing = sql.Identifier(name).as_string()
        return _Fix(
            f": it takes GRANT USAGE ON SCHEMA {thing} TO {grantee}, and to write a table there GRANT CREATE",
            "",
        )
    with session.role_path():
        (visible,) = session.fetch_one(
            sql.SQL("SELECT pg_catalog.pg_table_is_visible(%(oid)s)"), {"oid": oid}
        )
    thing = sql.Identifier(*([] if visible else [schema]), name).as_string()
    return _Fix(f": it takes GRANT SELECT ON {thing} TO {grantee}, by its owner", "; without it, ")


def _is_member(session: Session, role: str) -> bool:
    """Whether the current role has the rights of another, which need not exist."""
    (member,) = session.fetch_one(
        sql.SQL(
            "SELECT coalesce(pg_catalog.pg_has_role(pg_catalog.to_regrole(%(role)s)::pg_catalog.oid, "
            "'USAGE'), false)"
        ),
        {"role": role},
    )
    return bool(member)


def _is_analyst(session: Session) -> bool:
    """Whether the role may request models."""
    (analyst,) = session.fetch_one(
        sql.SQL(
            "SELECT coalesce(pg_catalog.has_function_privilege("
            "pg_catalog.to_regprocedure('dpml.request(text,text,jsonb)')::pg_catalog.oid, 'EXECUTE'), false)"
        )
    )
    return bool(analyst)


def _offered_data_sets(session: Session) -> str:
    """The data sets whose models the role may request without a right on their tables, in words."""
    rows = session.fetch(
        sql.SQL(
            "SELECT name FROM dpml.datasets WHERE offered AND registered_by <> current_user "
            "AND name NOT IN (SELECT name FROM dpml.closed_datasets) ORDER BY name"
        )
    )
    if not rows:
        return ""
    offered = ", ".join(names.shown(name) for (name,) in rows)
    return (
        f"ask in SQL for a model of {offered}: SELECT dpml.request(...), as SELECT dpml.help('requests') "
        "explains"
    )
