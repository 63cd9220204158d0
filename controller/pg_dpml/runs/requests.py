# SPDX-License-Identifier: PostgreSQL
"""The service that answers requests for models: table dpml.requests.

An analyst who may not read a table files a request. A service under the role that registered the data set
charges its budget, trains, and gives the analyst the released model. Nothing but the request comes from the
analyst's session.
Source: privacy/README.md, "Training for others".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from pg_dpml.blocks.preparing import require_plannable
from pg_dpml.blocks.source import resolve
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
from pg_dpml.ledger import budgets, claims
from pg_dpml.names import shown, visible
from pg_dpml.runs.datasets import Dataset, load_dataset
from pg_dpml.runs.requested import read_options
from pg_dpml.runs.train import train_model

__all__ = [
    "Request",
    "Served",
    "list_requests",
    "serve",
    "serve_next",
    "withdraw_request",
]

_POLL_S = 1.0
_RETRY_S = 5.0
_LONGEST_MESSAGE = 1000


@dataclass(frozen=True)
class _Outcome:
    """State, message and charge, as in dpml.requests; and the reason in the words for who serves."""

    state: str
    message: str | None
    charge: int | None
    reason: str | None


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
        Why it was refused or failed, in the words for who serves; dpml.requests has those for who asked.
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
class Request:
    """A request as it is stored; see dpml.requests. Nobody has checked its options.

    Attributes
    ----------
    epsilon, method : str or None
        What its options say, as text, whatever that is; None where they say nothing.
    """

    id: int
    requested_at: datetime
    requested_by: str
    dataset: str
    model: str
    options: str
    state: str
    message: str | None
    charge: int | None
    epsilon: str | None
    method: str | None


def list_requests(session: Session) -> list[Request]:
    """The requests that the current role made, and those of data sets that it registered, in order."""
    rows = session.fetch(
        sql.SQL(
            "SELECT r.id, r.requested_at, r.requested_by, r.dataset, r.model, r.options::text, r.state, "
            "r.message, r.charge, "
            "pg_catalog.left(pg_catalog.jsonb_extract_path_text(r.options, 'privacy', 'epsilon'), 40), "
            "pg_catalog.left(pg_catalog.jsonb_extract_path_text(r.options, 'training', 'method'), 40) "
            "FROM dpml.requests AS r ORDER BY r.id"
        )
    )
    return [Request(*row) for row in rows]


def withdraw_request(session: Session, number: int) -> Request:
    """Withdraw a request that is waiting; nothing is charged for it.

    Raises
    ------
    SpecError
        If it is no request of the current role, or is not waiting any more.
    """
    session.must_last(f"request {number} may be withdrawn, as dpml request list shows")
    refused = session.attempt(
        lambda: session.execute(sql.SQL("SELECT dpml.withdraw_request(%(id)s::bigint)"), {"id": number})
    )
    if isinstance(refused, DpmlError):
        if type(refused) is DpmlError and refused.cause is None:
            raise SpecError(f"{refused}: dpml request list shows which requests are waiting")
        raise refused
    return next(one for one in list_requests(session) if one.id == number)


@dataclass(frozen=True)
class _Taken:
    id: int
    requested_by: str
    dataset: str
    model: str
    options: str
    allowed: bool
    served_by: str

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
    tried: list[str] = []
    while True:
        with database.session() as guard:
            # A lock distinguishes a run from one whose service ended; its transaction idles during the run.
            guard.execute(sql.SQL("SET LOCAL idle_in_transaction_session_timeout = 0"))
            dataset = _lock(guard, tried)
            if dataset is None:
                return None
            request = _take(database, dataset)
            if request is not None:
                outcome = _answer(database, request)
                _enter(database, request, outcome)
                return Served(request.id, request.requested_by, dataset, outcome.state, outcome.reason)
        tried.append(dataset)


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


def _lock(guard: Session, tried: Sequence[str]) -> str | None:
    """Lock the data set with the oldest request that no other service has, until the transaction ends."""
    found = guard.fetch(
        sql.SQL(
            "SELECT d.name FROM dpml.datasets d WHERE d.registered_by = current_user "
            "AND d.name <> ALL (%(tried)s::text[]) AND EXISTS (SELECT {}) "
            "ORDER BY (SELECT pg_catalog.min(q.id) {}) LIMIT 1 FOR NO KEY UPDATE OF d SKIP LOCKED"
        ).format(_UNFINISHED, _UNFINISHED),
        {"tried": list(tried)},
    )
    return found[0][0] if found else None


def _take(database: Database, dataset: str) -> _Taken | None:
    """Mark the oldest request of a data set as running, so that it cannot be withdrawn any more.

    None if another service answered the last one just before the lock, or all are being withdrawn, in
    transactions that are still open: nobody who asks for a model makes the service wait.
    """
    with database.session() as session:
        taken = session.fetch(
            sql.SQL(
                "UPDATE dpml.requests q SET state = 'running', message = NULL, charge = NULL "
                "FROM dpml.datasets d WHERE d.name = q.dataset AND q.id = (SELECT o.id FROM dpml.requests o "
                "WHERE o.dataset = %(dataset)s AND o.state IN ('waiting', 'running') ORDER BY o.id LIMIT 1 "
                "FOR NO KEY UPDATE SKIP LOCKED) "
                "RETURNING q.id, q.requested_by, q.dataset, q.model, q.options::text, "
                "d.offered AND EXISTS (SELECT FROM pg_catalog.pg_roles a, pg_catalog.pg_roles r "
                "WHERE a.rolname = q.requested_by AND r.rolname = d.role "
                "AND pg_catalog.pg_has_role(a.oid, r.oid, 'USAGE')), d.registered_by"
            ),
            {"dataset": dataset},
        )
    return _Taken(*taken[0]) if taken else None


def _enter(database: Database, request: _Taken, outcome: _Outcome) -> None:
    message = None if outcome.message is None else outcome.message[:_LONGEST_MESSAGE]
    with database.session() as session:
        session.execute(
            sql.SQL(
                "UPDATE dpml.requests SET state = %(state)s, message = %(message)s, charge = %(charge)s "
                "WHERE id = %(id)s"
            ),
            {"id": request.id, "state": outcome.state, "message": message, "charge": outcome.charge},
        )


def _answer(database: Database, request: _Taken) -> _Outcome:
    """Train what was asked for; the outcome says what was charged and quotes no row."""
    try:
        _train(database, request)
    except UnavailableError:
        raise  # the request is unchanged and will be continued
    except CommitLostError as error:
        raise UnavailableError(str(error)) from None  # likewise, once it is known what was written
    except RunInterrupted as interrupt:
        stopped = f"the service was stopped: {interrupt}"
        _enter(database, request, _Outcome("failed", stopped, _charge(database, request), stopped))
        raise
    except RunFailedError as error:
        return _Outcome("failed", _advised(request, str(error)), _charge(database, request), str(error))
    except (SpecError, GuaranteeError, BudgetError) as error:
        message = _advised(request, error.plain) if error.by_server else error.plain
        charge = _charge(database, request)
        if charge is None:
            return _Outcome("refused", message, None, str(error))
        # Charged before an earlier service ended, which the error does not know.
        spent = f"; entry {charge} of dpml.ledger stays charged"
        message, reason = (
            text.removesuffix(": nothing was charged") + spent for text in (message, str(error))
        )
        return _Outcome("failed", message, charge, reason)
    except Exception as error:
        charge = _charge(database, request)
        spent = "nothing was charged" if charge is None else f"entry {charge} of dpml.ledger stays charged"
        reason = f"the service met an unexpected error ({type(error).__name__}); {spent}"
        return _Outcome("failed", _advised(request, reason), charge, reason)
    return _Outcome("done", None, _charge(database, request), None)


def _train(database: Database, request: _Taken) -> None:
    with database.session() as session:
        dataset = load_dataset(session, request.dataset)
        # First what no other request would change.
        try:
            _require_trainable(session, dataset, request)
        except (SpecError, GuaranteeError, BudgetError) as error:
            raise type(error)(str(error), plain=_advised(request, error.plain)) from None
    privacy, training = read_options(request.options, dataset.terms)
    passes = training.get("passes")
    if passes is not None:  # before a plan is made, which could take long
        dataset.terms.require_passes(passes)
    if not dataset.allow_certified:
        training = training.with_fixed_passes()
    train_model(
        database,
        dataset.data,
        privacy,
        training,
        name=request.model,
        progress=None,
        charge_key=request.charge_key,
        owner=request.requested_by,
        terms=dataset.terms,
    )


def _require_trainable(session: Session, dataset: Dataset, request: _Taken) -> None:
    """Check the right to models of a data set, that its budget is open, and that it can be trained on."""
    if not request.allowed:
        raise SpecError(
            f"data set {shown(dataset.name)} is not offered to role {shown(request.requested_by)} any more"
        )
    table = look_up_table(session, dataset.data.table)
    if owner_of(session, table) != dataset.table_owner:
        raise SpecError(
            f"table {visible(dataset.table_name)} belongs to another role than when data set "
            f"{shown(dataset.name)} was registered"
        )
    budget = claims.budget_of(session, table, dataset.name)
    assert budget is not None  # it was named
    if budgets.charge_of(session, budget.dataset, request.charge_key) is None:
        budgets.require_open(budget, budgets.left_of(session, budget))
    source = resolve(session, dataset.data)
    budgets.require_unit(session, budget, source.unit)
    require_plannable(session, source)


def _advised(request: _Taken, reason: str) -> str:
    """A reason that is not in what was asked, for who cannot look any further."""
    return f"{reason}; ask role {shown(request.served_by)}, which serves data set {shown(request.dataset)}"


def _charge(database: Database, request: _Taken) -> int | None:
    with database.session() as session:
        return budgets.charge_of(session, request.dataset, request.charge_key)
