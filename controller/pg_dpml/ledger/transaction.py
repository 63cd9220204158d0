# SPDX-License-Identifier: PostgreSQL
"""Count, charge and run in one snapshot, and errors that say what was spent and quote no row."""

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
    """What is told of an error whose own text may quote a row: where it arose, and which log says more.

    The server logs what it raises; of any other error the kind and the place in the code are logged here.

    Parameters
    ----------
    error : Exception
    what : str
        That failed, such as "the run".
    outcome : str
        What there is, and is not, now.
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
    """What came of a run.

    Attributes
    ----------
    decided : object
        What it was to do.
    charged : Charged or None
        None for what is not private.
    outcome : object or None
        What it released; None where its charge had been made before, so that it was not run.
    """

    decided: Decided
    charged: Charged | None
    outcome: Outcome | None


def run_charged(
    database: Database,
    *,
    decide: Callable[[Session], Decided],
    charge: Callable[[Session, Decided], Charged] | None,
    work: Callable[[Session, Decided, Charged | None], Outcome],
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
        Gets the session of the run, at REPEATABLE READ, and says what is to be done: it may count rows and
        read the catalog, and what it raises is raised as it is. What it locks stays locked.
    charge : callable or None
        Gets a session of another connection and what was decided; committed before the run goes on. None
        for what is not private, whose errors are shown as they are.
    work : callable
        Gets the session of the run, what was decided, and the charge; returns what is released. All that it
        writes is undone.
    store : callable or None
        Gets a session of its own and what was released, which it writes.
    what : str
        That may fail, such as "the run".
    undone : str
        What there is not, then.
    interrupted : str
        The same of an interrupt, without a word about the rows.
    spent : callable
        What stays charged, of what was decided and the number of the charge.

    Returns
    -------
    Run

    Raises
    ------
    RunFailedError
        For any error after the charge; one raised by `work` as such keeps its text.
    RunInterrupted
        On Ctrl-C after the charge, and for any other exception that is none of `Exception`, as SystemExit.
    SpecError, UnavailableError
        If there is no second connection for the charge; nothing is charged.
    DpmlError
        If a table that is read was changed by others while the run began; nothing is charged.

    Notes
    -----
    What is said of a commit whose answer was lost, of the model too, is `Session.must_last`'s.
    Source: privacy/README.md, "Order of a run" and "Bad rows never show".
    """
    # What ends a charged run is raised anew, outside the except block: the server's text may quote a row,
    # and the frames of the first exception hold un-noised values.
    failure: BaseException
    charged: Charged | None = None
    try:
        with database.connection() as own:
            with database.transaction(own, "REPEATABLE READ", kept=False) as run:
                # So that a statement of minutes ends when this process is killed.
                run.execute(sql.SQL("SET LOCAL client_connection_check_interval = '1s'"))
                decided = decide(run)
                if charge is not None:
                    with run.discarded():
                        run.execute(sql.SQL("SET LOCAL idle_in_transaction_session_timeout = 0"))
                        with database.beside() as other:
                            _require_unchanged(run, other)
                            entered = charge(other, decided)
                            run.execute(sql.SQL("SELECT"))  # it is still there
                        charged = entered
                    if charged.repeated:
                        return Run(decided, charged, None)
                outcome = work(run, decided, charged)
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
    """Refuse a run whose snapshot is older than the last change of what it has locked."""
    tables = locked_tables(run)
    if definitions_of(run, tables) != definitions_of(other, tables):
        raise DpmlError(
            "a table that is read was altered, emptied or rewritten while the run began: nothing was "
            "charged; try again"
        )


def _failure(error: BaseException, what: str, undone: str, interrupted: str, spent: str) -> BaseException:
    """What is raised in place of what ended a charged run."""
    if isinstance(error, RunFailedError):
        return type(error)(f"{error}; {spent}")
    if isinstance(error, RunInterrupted):
        return RunInterrupted(f"{error}; {spent}", error.interrupt)
    if not isinstance(error, Exception):  # Ctrl-C, or what a callback ends the program with
        return RunInterrupted(f"{interrupted}; {spent}", type(error))
    if isinstance(error, DpmlError) and error.cause is not None:
        return RunFailedError(f"{what} failed on the server and {undone}: {error.cause}; {spent}")
    return RunFailedError(failure_text(error, what, f"{undone}; {spent}"))
