# SPDX-License-Identifier: PostgreSQL
"""The service that answers requests for models: table dpml.requests.

An analyst who may not read a table files a request. A service under the role that registered the data set
charges its budget, trains, and gives the analyst the released model. Nothing but the request comes from the
analyst's session.
Source: privacy/README.md, "Training for others".
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from pg_dpml.database.catalog import look_up_table, owner_of
from pg_dpml.database.database import Database
from pg_dpml.database.session import Session, sql
from pg_dpml.errors import (
    BudgetError,
    CommitLostError,
    DpmlError,
    GuaranteeError,
    RunFailedError,
    RunInterrupted,
    SpecError,
    UnavailableError,
)
from pg_dpml.ledger import budgets
from pg_dpml.names import shown, visible
from pg_dpml.runs.datasets import load_dataset
from pg_dpml.runs.requested import read_options
from pg_dpml.runs.train import train_model

__all__ = [
    "Served",
    "serve",
    "serve_next",
]

_POLL_S = 1.0
_RETRY_S = 5.0
_LONGEST_MESSAGE = 1000

_Outcome = tuple[str, str | None, int | None]
"""State, message and charge, as in dpml.requests."""


@dataclass(frozen=True)
class Served:
    """A request that the service answered.

    Attributes
    ----------
    id : int
    requested_by, dataset : str
    state : str
        "done", "refused" or "failed".
    message : str or None
        Why it was refused or failed, as dpml.requests has it.
    """

    id: int
    requested_by: str
    dataset: str
    state: str
    message: str | None

    @property
    def line(self) -> str:
        """What happened, for the log of the service."""
        reason = "" if self.message is None else f": {visible(self.message)}"
        return f"request {self.id} by {self.requested_by!r} on {self.dataset!r}: {self.state}{reason}"


@dataclass(frozen=True)
class _Request:
    id: int
    requested_by: str
    dataset: str
    model: str
    options: str
    allowed: bool

    @property
    def charge_key(self) -> str:
        """Name of the charge, which is made once however often the request runs."""
        return f"dpml.requests {self.id}"


def serve(database: Database, *, once: bool, report: Callable[[str], None]) -> None:
    """Answer requests for the data sets that the current role registered, in order.

    Several services may run at once: each data set has one run at a time.

    Parameters
    ----------
    database : Database
    once : bool
        Return when nothing is waiting; else wait for more, also for a server that is away.
    report : callable
        Gets a line about every request that was answered.
    """
    while True:
        try:
            served = serve_next(database)
            if served is not None:
                report(served.line)
            elif once:
                return
            else:
                time.sleep(_POLL_S)
                _wait(database)
        except DpmlError as error:
            if once or type(error) not in (DpmlError, UnavailableError):
                raise
            report(f"{error}; trying again")
            time.sleep(_RETRY_S)


def serve_next(database: Database) -> Served | None:
    """Answer the oldest request that no other service has taken; None if there is none.

    A request that another service began and did not end is continued under the name of its charge: it runs if
    nothing was charged, is done if its model is stored, and has failed otherwise.
    """
    with database.session() as guard:
        # A lock distinguishes a run from one whose service ended; its transaction idles during the run.
        guard.execute(sql.SQL("SET LOCAL idle_in_transaction_session_timeout = 0"))
        request = _take(guard)
        if request is None:
            return None
        _enter(database, request, ("running", None, None))
        outcome = _answer(database, request)
        _enter(database, request, outcome)
        state, message, _ = outcome
        return Served(request.id, request.requested_by, request.dataset, state, message)


_UNFINISHED = sql.SQL("FROM dpml.requests q WHERE q.dataset = d.name AND q.state IN ('waiting', 'running')")


def _wait(database: Database) -> None:
    """Wait for a request, on one connection and without a long transaction."""
    query = sql.SQL(
        "SELECT FROM dpml.datasets d WHERE d.registered_by = current_user AND EXISTS (SELECT {})"
    ).format(_UNFINISHED)
    with database.session("AUTOCOMMIT") as session:
        while True:
            with session.transaction():
                if session.fetch(query):
                    return
            time.sleep(_POLL_S)


def _take(guard: Session) -> _Request | None:
    """Take the oldest request of a data set that no other service has, for the length of the transaction."""
    free = sql.SQL(
        "SELECT d.name FROM dpml.datasets d WHERE d.registered_by = current_user AND EXISTS (SELECT {}) "
        "ORDER BY (SELECT pg_catalog.min(q.id) {}) LIMIT 1 FOR NO KEY UPDATE OF d SKIP LOCKED"
    ).format(_UNFINISHED, _UNFINISHED)
    # Another service may have answered the data set's last request just before the lock.
    while locked := guard.fetch(free):
        found = guard.fetch(
            sql.SQL(
                "SELECT q.id, q.requested_by, q.dataset, q.model, q.options::text, "
                "d.offered AND EXISTS (SELECT FROM pg_catalog.pg_roles a, pg_catalog.pg_roles r "
                "WHERE a.rolname = q.requested_by AND r.rolname = d.role "
                "AND pg_catalog.pg_has_role(a.oid, r.oid, 'USAGE')) "
                "FROM dpml.requests q JOIN dpml.datasets d ON d.name = q.dataset "
                "WHERE d.name = %(name)s AND q.state IN ('waiting', 'running') ORDER BY q.id LIMIT 1"
            ),
            {"name": locked[0][0]},
        )
        if found:
            return _Request(*found[0])
    return None


def _enter(database: Database, request: _Request, outcome: _Outcome) -> None:
    state, message, charge = outcome
    with database.session() as session:
        session.execute(
            sql.SQL(
                "UPDATE dpml.requests SET state = %(state)s, message = %(message)s, charge = %(charge)s "
                "WHERE id = %(id)s"
            ),
            {
                "id": request.id,
                "state": state,
                "message": None if message is None else message[:_LONGEST_MESSAGE],
                "charge": charge,
            },
        )


def _answer(database: Database, request: _Request) -> _Outcome:
    """Train what was asked for; the outcome says what was charged and quotes no row."""
    try:
        _train(database, request)
    except UnavailableError:
        raise  # the request is unchanged and will be continued
    except CommitLostError as error:
        raise UnavailableError(str(error)) from None  # likewise, once it is known what was written
    except RunInterrupted as interrupt:
        _enter(
            database, request, ("failed", f"the service was stopped: {interrupt}", _charge(database, request))
        )
        raise
    except RunFailedError as error:
        return "failed", str(error), _charge(database, request)
    except (SpecError, GuaranteeError, BudgetError) as error:
        charge = _charge(database, request)
        if charge is None:
            return "refused", str(error), None
        return "failed", f"{error}; entry {charge} of dpml.ledger stays charged", charge
    except Exception as error:
        charge = _charge(database, request)
        spent = "nothing was charged" if charge is None else f"entry {charge} of dpml.ledger stays charged"
        return "failed", f"the service met an unexpected error ({type(error).__name__}); {spent}", charge
    return "done", None, _charge(database, request)


def _train(database: Database, request: _Request) -> None:
    with database.session() as session:
        dataset = load_dataset(session, request.dataset)
        data = dataset.data
        if not request.allowed:
            raise SpecError(
                f"data set {shown(dataset.name)} is not offered to role {shown(request.requested_by)} any "
                "more"
            )
        if owner_of(session, look_up_table(session, data.table)) != dataset.table_owner:
            raise SpecError(
                f"table {visible(dataset.table_name)} belongs to another role than when data set "
                f"{shown(dataset.name)} was registered: its owner must register it again"
            )
    privacy, training = read_options(request.options, dataset.max_epsilon)
    passes = training.get("passes")
    if passes is not None:  # before a plan is made, which could take long
        dataset.terms.require_passes(passes)
    if not dataset.allow_certified:
        training = training.with_fixed_passes()
    train_model(
        database,
        data,
        privacy,
        training,
        name=request.model,
        progress=None,
        charge_key=request.charge_key,
        owner=request.requested_by,
        terms=dataset.terms,
    )


def _charge(database: Database, request: _Request) -> int | None:
    with database.session() as session:
        return budgets.charge_of(session, request.dataset, request.charge_key)
