# SPDX-License-Identifier: PostgreSQL
"""Every error of the package, and the exit code the command line gives it.

::

    DpmlError                1   failed
     |-- SpecError           2   a bad argument: names it, its domain and the fix
     |-- UnavailableError    3   no connection, read-only server: try again
     |-- GuaranteeError      5   a condition of the privacy guarantee does not hold
     +-- RunFailedError      1   failed after the charge; never quotes the server
"""

from __future__ import annotations

EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143


class DpmlError(Exception):
    """Root of the package's errors; `exit_code` is what the command line returns."""

    exit_code = 1


class SpecError(DpmlError):
    """A bad argument, table, column or option."""

    exit_code = 2


class UnavailableError(DpmlError):
    """The server cannot be reached, or cannot be written to."""

    exit_code = 3


class GuaranteeError(DpmlError):
    """Refused because a condition of the guarantee does not hold."""

    exit_code = 5


class RunFailedError(DpmlError):
    """A run failed after its charge.

    The message is one fixed sentence: the server's own text may quote a row
    (privacy/README.md, "Bad rows never show").
    """


class RunInterrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM during a run; the message says what stays charged.

    Parameters
    ----------
    message : str
    interrupt : type
        Of the exception that ended the run.
    """

    def __init__(self, message: str, interrupt: type[BaseException]) -> None:
        super().__init__(message)
        self.interrupt = interrupt
