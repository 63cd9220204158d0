# SPDX-License-Identifier: PostgreSQL
"""The transaction of a charged run: count, charge and run in one snapshot, with errors that quote no row."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from pg_dpml.database.database import Database
from pg_dpml.database.dependencies import definitions_of, locked_tables
from pg_dpml.database.failures import raised_by_server
from pg_dpml.database.session import Session, sql
from pg_dpml.errors import DpmlError, RunFailedError, RunInterrupted
from pg_dpml.ledger.charging import Charged

__all__ = ["Run", "failure_text", "run_charged"]

Decided = TypeVar("Decided")
Outcome = TypeVar("Outcome")

_log = logging.getLogger("pg_dpml")


def failure_text(error: Exception, what: str, outcome: str) -> str:
    """Message for an error whose own text may quote a row: where it arose, and which log has more.

    The server logs its own errors. This function logs the kind of any other error and its place in the code.

    Parameters
    ----------
    error : Exception
    what : str
        What failed, such as "the run".
    outcome : str
        What was charged and stored, and what was not.
    """
    if raised_by_server(error):
        return (
            f"{what} failed on the server and {outcome}. The server's log has the reason; it is not shown "
            "because it may quote a row"
        )
    frames = traceback.extract_tb(error.__traceback__)
    places = (f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames)
    _log.error("dpml: %s failed by a %s at %s", what, type(error).__name__, ", ".join(places))
    return (
        f"{what} failed in dpml, not on the server, and {outcome}. The log of dpml (Python's logger pg_dpml, "
        "else standard error) has the kind and place of the error; its text is not shown because it may "
        "quote a row"
    )


@dataclass(frozen=True)
class Run(Generic[Decided, Outcome]):
    """Result of a run.

    Attributes
    ----------
    decided : object
        What `decide` returned.
    charged : Charged or None
        None if the run is not private.
    outcome : object or None
        What the run released; None if its charge had been made before, so that it did not run again.
    """

    decided: Decided
    charged: Charged | None
    outcome: Outcome | None


def run_charged(
    database: Database,
    *,
    decide: Callable[[Session], Decided],
    charge: Callable[[Session, Decided], Charged] | None,
    body: Callable[[Session, Decided, Charged | None], Outcome],
    store: Callable[[Session, Outcome], None] | None,
    what: str,
    undone: str,
    interrupted: str,
    spent: Callable[[Decided, int], str],
) -> Run[Decided, Outcome]:
    """Count, charge and run in one snapshot, then store what was released.

    Parameters
    ----------
    database : Database
    decide : callable
        Gets the session of the run, at REPEATABLE READ, and decides what to do. It may count rows and read
        the catalog; its errors are raised unchanged. Its locks are kept.
    charge : callable or None
        Gets a session of another connection and the decision; its transaction is committed before the run
        goes on. None for a run that is not private, whose errors are raised unchanged.
    body : callable
        Gets the session of the run, the decision and the charge; returns what is released. Everything that it
        writes is undone.
    store : callable or None
        Gets a session of its own and what was released, and writes it.
    what : str
        Name of the run in messages, such as "the run".
    undone : str
        What does not exist after a failure, such as "no model was stored".
    interrupted : str
        The same after an interrupt, without a word about the rows.
    spent : callable
        Gets the decision and the number of the charge; returns what stays charged, in words.

    Returns
    -------
    Run

    Raises
    ------
    RunFailedError
        For any error after the charge; a RunFailedError of `body` keeps its text.
    RunInterrupted
        On Ctrl-C after the charge, and for any other exception that is no `Exception`, such as SystemExit.
    SpecError, UnavailableError
        If there is no second connection for the charge; nothing is charged.
    DpmlError
        If another session changed a table that is read while the run began; nothing is charged.

    Notes
    -----
    `Session.must_last` has the message for a commit whose answer is lost, of the charge or of the model.
    Source: privacy/README.md, "Order of a run" and "Bad rows never show".
    """
    # The error that ends a charged run is raised outside the except block: the server's text may quote a row,
    # and the frames of the first exception hold un-noised values.
    failure: BaseException
    charged: Charged | None = None
    try:
        with database.connection() as own:
            with database.transaction(own, "REPEATABLE READ", kept=False) as run:
                # A statement of minutes ends when this process is killed.
                run.execute(sql.SQL("SET LOCAL client_connection_check_interval = '1s'"))
                decided = decide(run)
                if charge is not None:
                    with run.discarded():
                        run.execute(sql.SQL("SET LOCAL idle_in_transaction_session_timeout = 0"))
                        with database.beside() as other:
                            _require_unchanged(run, other)
                            entered = charge(other, decided)
                            run.execute(sql.SQL("SELECT"))  # an error if the connection was lost
                        charged = entered
                    if charged.repeated:
                        return Run(decided, charged, None)
                outcome = body(run, decided, charged)
            if store is not None:
                with database.transaction(own) as last:
                    store(last, outcome)
            return Run(decided, charged, outcome)
    except BaseException as error:
        if charged is None or charged.repeated:
            raise
        failure = _failure(error, what, undone, interrupted, spent(decided, charged.entry))
    raise failure


def _require_unchanged(run: Session, other: Session) -> None:
    """Raise an error if the snapshot of a run is older than the last change of a table that it has locked."""
    tables = locked_tables(run)
    if definitions_of(run, tables) != definitions_of(other, tables):
        raise DpmlError(
            "a table that is read was altered, emptied or rewritten while the run began: nothing was "
            "charged; try again"
        )


def _failure(error: BaseException, what: str, undone: str, interrupted: str, spent: str) -> BaseException:
    """The error to raise instead of the one that ended a charged run."""
    if isinstance(error, RunFailedError):
        return type(error)(f"{error}; {spent}")
    if isinstance(error, RunInterrupted):
        return RunInterrupted(f"{error}; {spent}", error.interrupt)
    if not isinstance(error, Exception):  # Ctrl-C, or what a callback ends the program with
        return RunInterrupted(f"{interrupted}; {spent}", type(error))
    if isinstance(error, DpmlError) and error.cause is not None:
        return RunFailedError(f"{what} failed on the server and {undone}: {error.cause}; {spent}")
    return RunFailedError(failure_text(error, what, f"{undone}; {spent}"))
