# SPDX-License-Identifier: PostgreSQL
"""What follows a charge: one snapshot, and errors that say what was spent and quote no row."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pg_dpml.database import Database, Session, raised_by_server, sql
from pg_dpml.errors import DpmlError, RunFailedError, RunInterrupted

__all__ = ["failure_text", "run_charged"]

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


def run_charged(
    database: Database,
    work: Callable[[Session], Outcome],
    *,
    charged: bool,
    what: str,
    undone: str,
    interrupted: str,
    spent: str,
) -> Outcome:
    """Do what was charged for in one REPEATABLE READ transaction.

    Parameters
    ----------
    database : Database
    work : callable
        Gets the session; what it returns is returned.
    charged : bool
        False for what is not private: its errors are shown as they are.
    what : str
        That may fail, such as "the run".
    undone : str
        What there is not, then.
    interrupted : str
        The same of an interrupt, without a word about the rows.
    spent : str
        What stays charged.

    Raises
    ------
    RunFailedError
        For any error; one raised by `work` as such keeps its text.
    RunInterrupted
        On Ctrl-C, and for any other exception that is none of `Exception`, such as SystemExit.

    Notes
    -----
    What is said of a commit whose answer was lost, of the model too, is `Session.must_last`'s.
    Source: privacy/README.md, "Order of a run" and "Bad rows never show".
    """
    # What ends a charged run is raised anew, outside the except block: the server's text may quote a row,
    # and the frames of the first exception hold un-noised values.
    failure: BaseException
    try:
        with database.session("REPEATABLE READ") as session:
            # So that a statement of minutes ends when this process is killed.
            session.execute(sql.SQL("SET LOCAL client_connection_check_interval = '1s'"))
            return work(session)
    except RunFailedError as error:
        failure = type(error)(f"{error}; {spent}")
    except RunInterrupted as interrupt:
        failure = RunInterrupted(f"{interrupt}; {spent}", interrupt.interrupt)
    except Exception as error:
        if not charged:
            raise
        cause = error.cause if isinstance(error, DpmlError) else None
        if cause is not None:
            text = f"{what} failed on the server and {undone}: {cause}; {spent}"
        else:
            text = failure_text(error, what, f"{undone}; {spent}")
        failure = RunFailedError(text)
    except BaseException as interrupt:  # Ctrl-C, or what a callback ends the program with
        failure = RunInterrupted(f"{interrupted}; {spent}", type(interrupt))
    raise failure
