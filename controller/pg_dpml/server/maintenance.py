# SPDX-License-Identifier: PostgreSQL
"""Is this database fit for use, and what did runs leave behind?"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version

from pg_dpml.database.adapters import verbatim
from pg_dpml.database.catalog import look_up_table
from pg_dpml.database.session import Session, sql
from pg_dpml.database.versions import installed_version
from pg_dpml.errors import DpmlError
from pg_dpml.names import shown

__all__ = [
    "BUILD",
    "CURATOR_RIGHTS",
    "Check",
    "WorkTable",
    "drop_work_tables",
    "examine",
    "work_tables",
]


OLDEST_SERVER = 150000
"""server_version_num of PostgreSQL 15."""

ROLES = ("dpml_curator", "dpml_analyst")

BUILD = "make -C udas install PG_CONFIG=... in the sources"
"""How the server's files are installed, by its administrator."""

CURATOR_RIGHTS = {
    "INSERT ON dpml.ledger": "pg_catalog.has_any_column_privilege('dpml.ledger', 'INSERT')",
    "SELECT ON dpml.models": "pg_catalog.has_table_privilege('dpml.models', 'SELECT')",
    "INSERT ON dpml.models": "pg_catalog.has_any_column_privilege('dpml.models', 'INSERT')",
    "CREATE ON SCHEMA dpml_work": "pg_catalog.has_schema_privilege('dpml_work', 'CREATE')",
    "EXECUTE ON FUNCTION dpml.sgd_epoch": "pg_catalog.has_function_privilege("
    "'dpml.sgd_epoch(pg_catalog.int4, pg_catalog.bytea, dpml.epoch, pg_catalog.jsonb)', 'EXECUTE')",
}
"""What a run needs, and how to ask for it."""


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


def examine(session: Session, table: str | None = None) -> list[Check]:
    """Every check, in the order in which they make sense; reads no row of a user's table.

    Parameters
    ----------
    session : Session
    table : str or None
        A table whose rights are examined too.

    Raises
    ------
    SpecError
        If there is no such table.
    """
    checks = [_server(session), _writable(session), _encryption(session), _pooler(session)]
    extension = _extension(session)
    checks.append(extension)
    if installed_version(session) is not None:
        follow_ups: list[Callable[[Session], Check]] = [_module, _roles, _rights, _left_behind]
        checks += [check(session) for check in follow_ups]
        checks += _statistics(session)
    return checks if table is None else [*checks, _readable(session, table)]


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
        fix = "train on the primary; models of the primary can be applied here, with dpml predict or in SQL"
        return Check("writable", False, "a standby, which is read-only", fix)
    fix = "set default_transaction_read_only = off for this role or database"
    return Check("writable", not read_only, "read-only transactions" if read_only else "yes", fix)


def _encryption(session: Session) -> Check:
    if session.encrypted:
        return Check("encryption", True, "TLS")
    address = session.address
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
    if server_process == session.backend_pid:
        return Check("pooler", True, "none")
    return Check(
        "pooler",
        True,
        "a pooler stands between",
        note="runs work in session and transaction mode, not in statement mode, and Ctrl-C only cancels if "
        "the pooler passes it on; a limit on idle transactions or on the length of a query ends a run",
    )


def _is_older(one: str, other: str) -> bool:
    """Whether a version comes before another: by the numbers in them."""
    older, newer = ([int(number) for number in re.findall("[0-9]+", text)] for text in (one, other))
    return older < newer


def _extension(session: Session) -> Check:
    """The extension in this database and its files on the server, against the version of this package."""
    package, installed = version("pg_dpml"), installed_version(session)
    rows = session.fetch(
        sql.SQL("SELECT default_version FROM pg_catalog.pg_available_extensions WHERE name = 'pg_dpml'")
    )
    available = str(rows[0][0]) if rows else None
    build = f"on the server, {BUILD} of version {package}, then "
    if installed is None:
        create = "as a superuser, CREATE EXTENSION pg_dpml"
        if available is not None and _is_older(package, available):
            fix = f"install the package in version {available} here; then, {create}"
        else:
            fix = create if available == package else build + create
        return Check("extension", False, f"not in this database{'' if available else ' or server'}", fix)
    if installed == package:
        found = f"version {installed}, as the package"
        if available == installed:
            return Check("extension", True, found)
        note = f"the server has the files of {available or 'no version'}: {BUILD} of version {installed}"
        if available is not None and _is_older(installed, available):
            note = f"version {available} is ready: ALTER EXTENSION pg_dpml UPDATE, and update the package too"
        return Check("extension", True, found, note=note)
    found = f"version {installed}, the package is {package}"
    keep = f"install the package in version {installed} here"
    if _is_older(package, installed):
        return Check("extension", False, found, keep)
    update = "as a superuser, ALTER EXTENSION pg_dpml UPDATE"
    if available != package:
        return Check("extension", False, found, f"{build}{update}; or {keep}")
    rows = session.fetch(
        sql.SQL(
            "SELECT FROM pg_catalog.pg_extension_update_paths('pg_dpml') "
            "WHERE source = %(installed)s AND target = %(package)s AND path IS NOT NULL"
        ),
        {"installed": installed, "package": package},
    )
    if not rows:
        return Check("extension", False, found, f"{keep}: no upgrade leads from {installed} to {package}")
    return Check("extension", False, found, f"{update}; or {keep}")


def _module(session: Session) -> Check:
    """Whether the C module loads, and is of the same version as the SQL in this database."""
    installed = installed_version(session)
    answer = session.attempt(lambda: session.fetch_one(sql.SQL("SELECT dpml.module_version()")))
    fix = f"on the server, {BUILD} of version {installed}; or as a superuser, ALTER EXTENSION pg_dpml UPDATE"
    if isinstance(answer, DpmlError):
        reason = str(answer).partition(": is the extension")[0]
        return Check("module", False, f"the server module does not answer: {reason}", fix)
    (module,) = answer
    if module == installed:
        return Check("module", True, f"version {module}, as its SQL")
    return Check("module", False, f"version {module}, its SQL in this database is {installed}", fix)


def _roles(session: Session) -> Check:
    rows = session.fetch(
        sql.SQL("SELECT rolname FROM pg_catalog.pg_roles WHERE rolname = ANY (%(names)s::pg_catalog.name[])"),
        {"names": list(ROLES)},
    )
    missing = [name for name in ROLES if (name,) not in rows]
    fix = (
        "; ".join(f"CREATE ROLE {name} NOLOGIN" for name in missing)
        + "; then grant what pg_dpml.sql grants to them, or drop and create the extension with its models"
    )
    found = f"missing: {', '.join(missing)}" if missing else "dpml_curator and dpml_analyst exist"
    return Check("roles", not missing, found, fix)


def _rights(session: Session) -> Check:
    tests = sql.SQL(", ").join(verbatim(test) for test in CURATOR_RIGHTS.values())
    role, curator, *held = session.fetch_one(
        sql.SQL(
            "SELECT pg_catalog.quote_ident(current_user), EXISTS (SELECT FROM pg_catalog.pg_roles AS r "
            "WHERE r.rolname = 'dpml_curator' AND pg_catalog.pg_has_role(r.oid, 'USAGE')), "
        )
        + tests
    )
    missing = [right for right, holds in zip(CURATOR_RIGHTS, held, strict=True) if not holds]
    if not missing:
        return Check("rights", True, f"{role} may train and apply models")
    if curator:
        fix = "; ".join(f"GRANT {right} TO dpml_curator" for right in missing)
        return Check("rights", False, f"dpml_curator, as which {role} acts, lacks rights it came with", fix)
    if "SELECT ON dpml.models" not in missing:
        note = "dpml dataset list shows what to request models of; else ask curators, who may train"
        return Check("rights", True, f"{role} may request and apply models, not train", note=note)
    return Check(
        "rights",
        False,
        f"{role} may neither train nor apply models",
        f"to train: GRANT dpml_curator TO {role}; to request and apply models: GRANT dpml_analyst TO {role}",
    )


def _readable(session: Session, table: str) -> Check:
    """Whether this role may read a table, which no role of the extension gives it."""
    source = session.attempt(lambda: look_up_table(session, table))
    if isinstance(source, DpmlError):
        reason, _, fix = str(source).partition(": it takes ")
        return Check("table", False, reason, fix or "ask its owner")
    role, name, refused = session.fetch_one(
        sql.SQL(
            "SELECT pg_catalog.quote_ident(current_user), "
            "pg_catalog.format('%%I.%%I', n.nspname, c.relname), ARRAY("
            "SELECT a.attname::text FROM pg_catalog.pg_attribute AS a WHERE a.attrelid = c.oid "
            "AND a.attnum > 0 AND NOT a.attisdropped "
            "AND NOT pg_catalog.has_column_privilege(c.oid, a.attnum, 'SELECT') ORDER BY a.attnum) "
            "FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace "
            "WHERE c.oid = %(oid)s"
        ),
        {"oid": source.oid},
    )
    if source.row_security:
        fix = f"train on a table without, made by a role that sees all rows: CREATE TABLE ... AS TABLE {name}"
        return Check("table", False, f"{name} has row-level security", fix)
    if len(refused) == len(source.columns):
        fix = f"GRANT SELECT ON {name} TO {role}, by its owner"
        return Check("table", False, f"{role} may not read {name}", fix)
    if refused:
        note = f"all but {', '.join(map(shown, refused))}, which no spec can name then"
        return Check("table", True, f"{role} may read columns of {name}", note=note)
    return Check("table", True, f"{role} may read {name}")


def _statistics(session: Session) -> list[Check]:
    """What other roles can count of the runs of a role that serves requests; nothing for any other role.

    Source: privacy/README.md, "Training for others".
    """
    offers = session.attempt(
        lambda: session.fetch(
            sql.SQL(
                "SELECT name, allow_certified FROM dpml.datasets "
                "WHERE offered AND registered_by = current_user "
                "AND name NOT IN (SELECT name FROM dpml.closed_datasets) ORDER BY name"
            )
        )
    )
    if isinstance(offers, DpmlError) or not offers:
        return []
    role, statements, blocks = session.fetch_one(
        sql.SQL(
            "SELECT pg_catalog.quote_ident(current_user), "
            "coalesce(pg_catalog.current_setting('pg_stat_statements.track', true), 'none') <> 'none', "
            "pg_catalog.to_regclass('pg_catalog.pg_stat_io') IS NOT NULL"
        )
    )
    notes = []
    if statements:
        notes.append(
            "pg_stat_statements shows other roles how many statements, rows and blocks a run took, which may "
            f"depend on its rows: as a superuser, ALTER ROLE {role} SET pg_stat_statements.track = 'none'"
        )
    certified = [name for name, allowed in offers if allowed]
    if certified and blocks:
        notes.append(
            "pg_stat_io shows every role how many blocks were read, and so the passes of a certified run, "
            f"which depend on its rows: such runs are allowed on {', '.join(map(shown, certified))}, until "
            "dpml dataset register DATASET SPEC --no-allow-certified"
        )
    found = (
        "they show other roles what depends on rows" if notes else "none known to show what depends on rows"
    )
    return [Check("statistics", True, found, note="; ".join(notes))]


def _left_behind(session: Session) -> Check:
    tables = work_tables(session)
    orphans = [table for table in tables if not table.in_use]
    if orphans:
        size = sum(table.bytes for table in orphans) / 2**20
        found = f"{len(orphans)} tables left in dpml_work, {size:.1f} MB, with un-noised rows or weights"
        others = sorted({table.owner for table in orphans if not table.ours})
        fix = (
            f"dpml cleanup, as a superuser or as {', '.join(map(shown, others))}"
            if others
            else "dpml cleanup"
        )
        return Check("work tables", False, found, fix)
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
