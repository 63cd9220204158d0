# SPDX-License-Identifier: PostgreSQL
"""Is this database fit for use, and what did runs leave behind?"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version

from pg_dpml.database import Session, sql

__all__ = ["Check", "WorkTable", "drop_work_tables", "examine", "versions", "work_tables"]

OLDEST_SERVER = 150000
"""server_version_num of PostgreSQL 15."""

ROLES = ("dpml_curator", "dpml_analyst")

CURATOR_RIGHTS = """
pg_catalog.has_any_column_privilege('dpml.ledger', 'INSERT')
AND pg_catalog.has_table_privilege('dpml.models', 'SELECT')
AND pg_catalog.has_any_column_privilege('dpml.models', 'INSERT')
AND pg_catalog.has_schema_privilege('dpml_work', 'CREATE')
AND pg_catalog.has_function_privilege('dpml.sgd_epoch(int4, bytea, dpml.epoch, jsonb)', 'EXECUTE')
"""


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Attributes
    ----------
    name : str
    ok : bool
    found : str
        What was found.
    fix : str
        What to do if it is not ok.
    note : str
        What is worth knowing all the same.
    """

    name: str
    ok: bool
    found: str
    fix: str = ""
    note: str = ""


@dataclass(frozen=True)
class WorkTable:
    """A table in schema dpml_work.

    Attributes
    ----------
    name, owner : str
    bytes : int
    in_use : bool
        A live transaction holds a lock on it.
    ours : bool
        The current role may drop it.
    """

    name: str
    owner: str
    bytes: int
    in_use: bool
    ours: bool


def examine(session: Session) -> list[Check]:
    """Every check, in the order in which they make sense; reads no row of a user's table."""
    checks = [_server(session), _writable(session), _encryption(session), _pooler(session)]
    extension = _extension(session)
    checks.append(extension)
    if _installed(session) is None:
        return checks
    follow_ups: list[Callable[[Session], Check]] = [_module, _roles, _rights, _left_behind]
    return checks + [check(session) for check in follow_ups]


def versions(session: Session) -> dict[str, str]:
    """Versions of package, extension and server."""
    (server,) = session.fetch_one(sql.SQL("SELECT pg_catalog.current_setting('server_version')"))
    return {
        "pg_dpml": version("pg_dpml"),
        "Extension": _installed(session) or "not installed",
        "PostgreSQL": str(server),
    }


def _installed(session: Session) -> str | None:
    rows = session.fetch(sql.SQL("SELECT extversion FROM pg_catalog.pg_extension WHERE extname = 'pg_dpml'"))
    return str(rows[0][0]) if rows else None


def _server(session: Session) -> Check:
    (number, text) = session.fetch_one(
        sql.SQL(
            "SELECT pg_catalog.current_setting('server_version_num')::pg_catalog.int4, "
            "pg_catalog.current_setting('server_version')"
        )
    )
    return Check("server", number >= OLDEST_SERVER, f"PostgreSQL {text}", "PostgreSQL 15 or newer is needed")


def _writable(session: Session) -> Check:
    standby, read_only = session.fetch_one(
        sql.SQL(
            "SELECT pg_catalog.pg_is_in_recovery(), "
            "pg_catalog.current_setting('transaction_read_only')::pg_catalog.bool"
        )
    )
    if standby:
        return Check("writable", False, "a standby, which is read-only", "train on the primary")
    fix = "set default_transaction_read_only = off for this role or database"
    return Check("writable", not read_only, "read-only transactions" if read_only else "yes", fix)


def _encryption(session: Session) -> Check:
    if session.driver.pgconn.ssl_in_use:
        return Check("encryption", True, "TLS")
    address = session.driver.info.hostaddr
    if not address or ipaddress.ip_address(address).is_loopback:
        return Check("encryption", True, "none needed, the server is on this machine")
    return Check(
        "encryption",
        False,
        "TCP without TLS: un-noised weights would cross the network in the clear",
        "connect with sslmode=require, or use --insecure if the network is private",
    )


def _pooler(session: Session) -> Check:
    """A pooler answers with a process number of its own."""
    (server_process,) = session.fetch_one(sql.SQL("SELECT pg_catalog.pg_backend_pid()"))
    if server_process == session.driver.info.backend_pid:
        return Check("pooler", True, "none")
    return Check(
        "pooler",
        True,
        "a pooler stands between",
        note="runs work in session and transaction mode, but Ctrl-C only cancels if the pooler passes it on",
    )


def _extension(session: Session) -> Check:
    package = version("pg_dpml")
    installed = _installed(session)
    rows = session.fetch(
        sql.SQL("SELECT default_version FROM pg_catalog.pg_available_extensions WHERE name = 'pg_dpml'")
    )
    available = str(rows[0][0]) if rows else None
    if installed == package:
        return Check("extension", True, f"version {installed}, as the package")
    if available != package:
        fix = (
            "build and install it on the server: make -C udas install PG_CONFIG=..., then "
            + ("CREATE EXTENSION pg_dpml" if installed is None else "ALTER EXTENSION pg_dpml UPDATE")
            + "; or install the package of the server's version"
        )
    elif installed is None:
        fix = "as a superuser: CREATE EXTENSION pg_dpml"
    else:
        fix = "as a superuser: ALTER EXTENSION pg_dpml UPDATE"
    found = "not in this database" if installed is None else f"version {installed}, the package is {package}"
    return Check("extension", False, found, fix)


def _module(session: Session) -> Check:
    """Whether the C module loads and answers."""
    (capacity,) = session.fetch_one(sql.SQL("SELECT dpml.block_capacity('dense', 50, 50)"))
    return Check("module", capacity > 0, "the server module answers", "install the extension again")


def _roles(session: Session) -> Check:
    rows = session.fetch(
        sql.SQL("SELECT rolname FROM pg_catalog.pg_roles WHERE rolname = ANY (%(names)s::pg_catalog.name[])"),
        {"names": list(ROLES)},
    )
    missing = [name for name in ROLES if (name,) not in rows]
    fix = (
        "; ".join(f"CREATE ROLE {name} NOLOGIN" for name in missing)
        + "; then grant as pg_dpml.sql does at its end, or drop and create the extension with its models"
    )
    found = f"missing: {', '.join(missing)}" if missing else "dpml_curator and dpml_analyst exist"
    return Check("roles", not missing, found, fix)


def _rights(session: Session) -> Check:
    role, curator, analyst = session.fetch_one(
        sql.SQL(
            "SELECT current_user, (" + CURATOR_RIGHTS + "), "
            "pg_catalog.has_table_privilege('dpml.models', 'SELECT')"
        )
    )
    if curator:
        return Check("rights", True, f"{role} may train and apply models")
    advice = f"to train: GRANT dpml_curator TO {role}"
    if analyst:
        return Check("rights", True, f"{role} may apply models, not train", note=advice)
    return Check(
        "rights",
        False,
        f"{role} may neither train nor apply models",
        f"{advice}; to apply models: GRANT dpml_analyst TO {role}",
    )


def _left_behind(session: Session) -> Check:
    tables = work_tables(session)
    orphans = [table for table in tables if not table.in_use]
    if orphans:
        size = sum(table.bytes for table in orphans) / 2**20
        found = f"{len(orphans)} tables left in dpml_work, {size:.1f} MB, with un-noised rows or weights"
        return Check("work tables", False, found, "dpml cleanup")
    advice = "a file copy of the server taken during a run may hold its rows; a dump does not"
    return Check("work tables", True, "of live runs only" if tables else "none left", note=advice)


def work_tables(session: Session) -> list[WorkTable]:
    """Tables in dpml_work that this transaction can see; those of a run itself it cannot."""
    rows = session.fetch(
        sql.SQL(
            "SELECT c.relname, pg_catalog.pg_get_userbyid(c.relowner), "
            "pg_catalog.pg_total_relation_size(c.oid), "
            "EXISTS (SELECT FROM pg_catalog.pg_locks AS l WHERE l.relation = c.oid "
            " AND l.locktype = 'relation' AND l.pid <> pg_catalog.pg_backend_pid() "
            " AND l.database = (SELECT d.oid FROM pg_catalog.pg_database AS d "
            "  WHERE d.datname = pg_catalog.current_database())), "
            "pg_catalog.pg_has_role(c.relowner, 'USAGE') "
            "FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace "
            "WHERE n.nspname = 'dpml_work' AND c.relkind IN ('r', 'p') ORDER BY c.relname"
        )
    )
    return [WorkTable(*row) for row in rows]


def drop_work_tables(session: Session, tables: list[WorkTable]) -> Iterator[WorkTable]:
    """Drop those that no live transaction uses and that are ours; yields each that is gone."""
    session.execute(sql.SQL("SET LOCAL lock_timeout = '3s'"))
    for table in tables:
        if not table.in_use and table.ours:
            session.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier("dpml_work", table.name)))
            yield table
