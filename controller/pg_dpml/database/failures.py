# SPDX-License-Identifier: PostgreSQL
"""Errors of server and connection, in fixed words that quote no row."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import psycopg

from pg_dpml.database.grants import missing_grant, quoted_names
from pg_dpml.errors import (
    DpmlError,
    GuaranteeError,
    SpecError,
    UnavailableError,
)

if TYPE_CHECKING:
    from pg_dpml.database.session import Session

__all__ = ["LONGEST_SHOWN", "LOST", "is_of_statement", "raised_by_server", "translate"]

_READ_ONLY = "25006"
_MISSING_SCHEMA = "3F000"
_ROW_SECURITY = "check_enable_rls"
"""Function of the server that refuses to hide rows where `row_security` is off."""
_DENIED_BY = "aclcheck_error"
"""Function of the server that names what the role has no right to."""

LOST = "the connection to the server was lost"
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
LONGEST_SHOWN = 200
_OF_NAMES = "42"
"""Class of errors about names, types and rights: of a statement, or of text that a function takes for one."""


def translate(error: psycopg.Error, session: Session | None = None, *, connected: bool = True) -> DpmlError:
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
        translated.cause = LOST
    return translated


def is_of_statement(error: psycopg.Error) -> bool:
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
            return UnavailableError(f"{LOST}: {text}")
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
        error.sqlstate == _MISSING_SCHEMA
        and (quoted_names(primary, "dpml") or quoted_names(primary, "dpml_work"))
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
        return SpecError(primary + denied_relation(error, primary, session))
    refused = psycopg.DataError, psycopg.errors.DatatypeMismatch, psycopg.errors.InvalidSchemaName
    if isinstance(error, refused):
        return SpecError(primary)
    return DpmlError(primary)


def denied_relation(error: psycopg.Error, primary: str, session: Session | None) -> str:
    if session is None or error.diag.source_function != _DENIED_BY:
        return ""
    try:
        if session.in_transaction:
            return missing_grant(session, primary)
        with session.transaction():
            return missing_grant(session, primary)
    except psycopg.Error:  # no connection any more: the error is told without advice
        return ""
