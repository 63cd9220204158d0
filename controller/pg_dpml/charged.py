# SPDX-License-Identifier: PostgreSQL
"""What follows a charge: one snapshot, and errors that say what was spent and quote no row."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pg_dpml.database import Database, Session, sql
from pg_dpml.errors import DpmlError, RunFailedError, RunInterrupted

__all__ = ["run_charged"]

Outcome = TypeVar("Outcome")


def run_charged(
    database: Database,
    work: Callable[[Session], Outcome],
    *,
    charged: bool,
    failed: str,
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
    failed, interrupted : str
        First part of the message, without a word about the rows.
    spent : str
        Its last part.

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
            text = f"{failed}: {cause}; {spent}"
        else:
            reason = "The server's log has the reason; it is not shown because it may quote a row"
            text = f"{failed}; {spent}. {reason}"
        failure = RunFailedError(text)
    except BaseException as interrupt:  # Ctrl-C, or what a callback ends the program with
        failure = RunInterrupted(f"{interrupted}; {spent}", type(interrupt))
    raise failure
