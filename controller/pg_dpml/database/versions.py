# SPDX-License-Identifier: PostgreSQL
"""Versions of package, extension and server."""

from __future__ import annotations

from importlib.metadata import version

from pg_dpml.database.session import Session, sql

__all__ = [
    "installed_version",
    "versions",
]


def versions(session: Session) -> dict[str, str]:
    """Versions of package, extension and server."""
    (server,) = session.fetch_one(sql.SQL("SELECT pg_catalog.current_setting('server_version')"))
    return {
        "pg_dpml": version("pg_dpml"),
        "Extension": installed_version(session) or "not installed",
        "PostgreSQL": str(server),
    }


def installed_version(session: Session) -> str | None:
    """Version of the extension in this database; None if it is not there."""
    rows = session.fetch(sql.SQL("SELECT extversion FROM pg_catalog.pg_extension WHERE extname = 'pg_dpml'"))
    return str(rows[0][0]) if rows else None
