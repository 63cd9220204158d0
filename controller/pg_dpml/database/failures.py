# SPDX-License-Identifier: PostgreSQL
"""Errors of server and connection, translated into errors of this package whose text quotes no row."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import psycopg
from psycopg import errors

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

_ROW_SECURITY = "check_enable_rls"
"""Function of the server that raises an error instead of hiding rows where `row_security` is off."""
_DENIED_BY = "aclcheck_error"
"""Function of the server that names the object which the role has no right to use."""

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
"""Failures of the server that do not depend on row values, by SQLSTATE: psycopg 3.1 has no class for some."""
_UNAVAILABLE = (errors.AdminShutdown, errors.CrashShutdown, errors.CannotConnectNow)
LONGEST_SHOWN = 200
"""Characters of a text that a message quotes at most."""
_OF_NAMES = "42"
"""SQLSTATE class of errors about names, types and rights, in a statement or in a text that is read as one."""


def translate(error: psycopg.Error, session: Session | None = None, *, connected: bool = True) -> DpmlError:
    """Translate an error of psycopg: the first line of its message, never its detail or context.

    Parameters
    ----------
    error : psycopg.Error
    session : Session or None
        The session in which it arose, to look up which right is missing. The failed statement must have been
        rolled back.
    connected : bool
        Whether the connection had been made.
    """
    translated = _in_our_words(error, session, connected=connected)
    translated.by_server = raised_by_server(error)
    if error.sqlstate:
        translated.cause = _CAUSES.get(error.sqlstate)
    elif isinstance(error, psycopg.OperationalError):
        translated.cause = LOST
    return translated


def is_of_statement(error: psycopg.Error) -> bool:
    """Whether the fault (a name, a type or a right) is in a planned statement itself, not in a function."""
    found = error.diag.statement_position or error.diag.source_function in (_DENIED_BY, _ROW_SECURITY)
    return bool((error.sqlstate or "").startswith(_OF_NAMES) and found and not error.diag.context)


def raised_by_server(error: BaseException | None) -> bool:
    """Whether the server raised an error of this package or of psycopg, so that its log has the full text."""
    if isinstance(error, DpmlError):
        return error.by_server
    return isinstance(error, psycopg.Error) and error.sqlstate is not None


def _in_our_words(error: psycopg.Error, session: Session | None, *, connected: bool) -> DpmlError:
    # Only code and fields decide: the message is in the server's language.
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
    if isinstance(error, errors.ReadOnlySqlTransaction):
        return UnavailableError(
            f"this server is read-only ({primary}): train, and write, on the primary, where "
            "default_transaction_read_only is off; dpml.predict works here"
        )
    if isinstance(error, _UNAVAILABLE):
        return UnavailableError(f"{_CAUSES[error.sqlstate or '']}: {primary}")
    missing = isinstance(error, errors.UndefinedTable | errors.UndefinedFunction)
    if (missing and re.search(r"(?<![A-Za-z0-9_])dpml\.", primary)) or (
        isinstance(error, errors.InvalidSchemaName)
        and (quoted_names(primary, "dpml") or quoted_names(primary, "dpml_work"))
    ):
        return SpecError(
            f"{primary}: is the extension installed in this database? Try CREATE EXTENSION pg_dpml; "
            "if it is, dpml doctor compares versions"
        )
    if isinstance(error, errors.CharacterNotInRepertoire):
        return SpecError(
            f"{primary}: a name or value in this database is not UTF-8, which its encoding SQL_ASCII allows; "
            "rename what is called so, or write such values anew"
        )
    if isinstance(error, errors.InsufficientPrivilege):
        if error.diag.source_function == _ROW_SECURITY:
            return GuaranteeError(
                f"{primary}, so the rows depend on who asks: copy them into a table without row-level "
                "security (CREATE TABLE ... AS TABLE ...), as a role that sees them all, and name that"
            )
        return SpecError(primary + _missing_grant(error, primary, session), plain=primary)
    refused = psycopg.DataError, errors.DatatypeMismatch, errors.InvalidSchemaName
    if isinstance(error, refused):
        return SpecError(primary)
    return DpmlError(primary)


def _missing_grant(error: psycopg.Error, primary: str, session: Session | None) -> str:
    if session is None or error.diag.source_function != _DENIED_BY:
        return ""
    try:
        if session.in_transaction:
            return missing_grant(session, primary)
        with session.transaction():
            return missing_grant(session, primary)
    except psycopg.Error:  # the connection is lost: the message has no advice then
        return ""
