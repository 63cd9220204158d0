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

from collections.abc import Iterator
from contextlib import contextmanager

from pg_dpml.names import visible_lines

EXIT_INTERRUPTED = 130
EXIT_PIPE = 141
"""Nobody read the output to its end: as of a program that SIGPIPE has ended."""
EXIT_TERMINATED = 143

OWNER_ONLY = "NOT PRIVATE: exact figures of private rows, for their owner's eyes only; do not publish them."
"""Stamp of figures, and of errors, that come from private rows without noise."""


class DpmlError(Exception):
    """Root of the package's errors; `exit_code` is what the command line returns.

    Parameters
    ----------
    message : str
        What is in it and cannot be seen, or would steer a terminal, is escaped.

    Attributes
    ----------
    cause : str or None
        What befell server or connection, in words of ours, which quote no row; None for anything else.
    by_server : bool
        Whether the server raised it, whose log then has it in full.
    """

    exit_code = 1
    cause: str | None = None
    by_server: bool = False

    def __init__(self, message: str) -> None:
        super().__init__(visible_lines(message))


class SpecError(DpmlError):
    """A bad argument, table, column or option."""

    exit_code = 2


class UnavailableError(DpmlError):
    """The server cannot be reached, or cannot be written to."""

    exit_code = 3


class BudgetError(DpmlError):
    """Refused by the budget of the data set, or by terms of its owner; nothing was charged."""

    exit_code = 4


class GuaranteeError(DpmlError):
    """Refused because a condition of the guarantee does not hold."""

    exit_code = 5


class ResolutionError(GuaranteeError):
    """Refused because epsilon is so small that the noise would outgrow the precision of its sampler.

    Attributes
    ----------
    least : float or None
        The least epsilon that is not, where it was looked for.
    """

    least: float | None = None


class RunFailedError(DpmlError):
    """A run failed after its charge.

    The message is one fixed sentence: the server's own text may quote a row
    (privacy/README.md, "Bad rows never show").
    """


class CommitLostError(RunFailedError):
    """The answer to a commit was lost: whether a charge, or a model, was written is not known."""


class RunInterrupted(KeyboardInterrupt):
    """Ctrl-C, SIGTERM or an exit during a run; the message says what stays charged.

    Parameters
    ----------
    message : str
    interrupt : type
        Of the exception that ended the run.
    """

    def __init__(self, message: str, interrupt: type[BaseException]) -> None:
        super().__init__(message)
        self.interrupt = interrupt


@contextmanager
def owner_stamp(owner: bool) -> Iterator[None]:
    """Stamp a `SpecError` that was found by looking at private rows, if it is for their owner alone.

    Parameters
    ----------
    owner : bool
        Whether the rows are private; errors about public rows stay as they are.
    """
    try:
        yield
    except SpecError as error:
        if not owner:
            raise
        raise SpecError(f"{str(error).rstrip('.')}. {OWNER_ONLY}") from None
