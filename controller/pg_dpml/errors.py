# SPDX-License-Identifier: PostgreSQL
"""Every error of the package, and the exit code the command line gives it.

::

    DpmlError                1   failed
     |-- SpecError           2   a bad argument: names it, its domain and the fix
     |-- UnavailableError    3   no connection, read-only server: try again
     |-- BudgetError         4   the budget of the data set, or its owner, does not allow the charge
     |-- GuaranteeError      5   a condition of the privacy guarantee does not hold
     |    +-- ResolutionError     epsilon is too small for the precision of the noise
     +-- RunFailedError      1   failed after the charge; never quotes the server
"""

from __future__ import annotations

from pg_dpml.names import visible_lines

__all__ = [
    "EXIT_INTERRUPTED",
    "EXIT_PIPE",
    "EXIT_TERMINATED",
    "BudgetError",
    "CommitLostError",
    "DpmlError",
    "GuaranteeError",
    "ResolutionError",
    "RunFailedError",
    "RunInterrupted",
    "SpecError",
    "UnavailableError",
]

EXIT_INTERRUPTED = 130
EXIT_PIPE = 141
"""The reader of the output closed it early: the exit code of a program that SIGPIPE ended."""
EXIT_TERMINATED = 143


class DpmlError(Exception):
    """Root of the package's errors; `exit_code` is what the command line returns.

    Parameters
    ----------
    message : str
        Characters that cannot be seen, or would steer a terminal, are escaped.
    plain : str or None
        The message for somebody who asked the session's role to act: without what that role alone may see or
        do. None: the whole message.

    Attributes
    ----------
    cause : str or None
        Cause of a server or connection failure, in fixed wording that never contains row values; None for
        other errors.
    by_server : bool
        Whether the server raised the error, so that its log has the full text.
    """

    exit_code = 1
    cause: str | None = None
    by_server: bool = False

    def __init__(self, message: str, plain: str | None = None) -> None:
        super().__init__(visible_lines(message))
        self.plain = visible_lines(message if plain is None else plain)


class SpecError(DpmlError):
    """A bad argument, table, column or option."""

    exit_code = 2


class UnavailableError(DpmlError):
    """The server cannot be reached, or cannot be written to."""

    exit_code = 3


class BudgetError(DpmlError):
    """The budget of the data set, or the terms of its owner, do not allow the run; nothing was charged."""

    exit_code = 4


class GuaranteeError(DpmlError):
    """A condition of the guarantee does not hold."""

    exit_code = 5


class ResolutionError(GuaranteeError):
    """Epsilon is so small that the noise would outgrow the precision of its sampler.

    Attributes
    ----------
    least : float or None
        The least epsilon that is large enough; None where none was looked for.
    """

    least: float | None = None


class RunFailedError(DpmlError):
    """A run failed after its charge.

    The message is one fixed sentence: the server's own text may quote a row
    (privacy/README.md, "Bad rows never show").
    """


class CommitLostError(RunFailedError):
    """The answer to a commit was lost: it is unknown whether a charge, or a model, was written."""


class RunInterrupted(KeyboardInterrupt):
    """Ctrl-C, SIGTERM or an exit during a run; the message says what stays charged.

    Parameters
    ----------
    message : str
    interrupt : type
        The exception that ended the run.
    """

    def __init__(self, message: str, interrupt: type[BaseException]) -> None:
        super().__init__(message)
        self.interrupt = interrupt
