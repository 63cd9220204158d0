# SPDX-License-Identifier: PostgreSQL
"""Training for who may not read the table: tables dpml.datasets and dpml.requests, and what serves them.

An analyst files a request; a service under the role that registered the data set charges its budget, trains,
and gives the analyst the released model. Nothing but the request comes from the analyst's session.
Source: privacy/README.md, "Training for others".
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal

from pg_dpml import budgets, registry
from pg_dpml.database import Database, Session, sql
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
from pg_dpml.names import did_you_mean, shown, visible
from pg_dpml.rows import resolve
from pg_dpml.spec import DataSpec, read_options
from pg_dpml.train import train_model

__all__ = [
    "Dataset",
    "Served",
    "list_datasets",
    "load_dataset",
    "register",
    "serve",
    "serve_next",
    "withdraw",
]

MOST_PASSES = 1000
"""Default of the most passes of a request: planning them costs time before anything is charged."""

_POLL_S = 1.0
_RETRY_S = 5.0
_LONGEST_MESSAGE = 1000

_Outcome = tuple[str, str | None, int | None]
"""State, message and charge, as in dpml.requests."""


@dataclass(frozen=True)
class Dataset:
    """What may be requested; see dpml.datasets."""

    name: str
    registered_at: datetime
    registered_by: str
    role: str
    source: str
    source_owner: str
    spec: str
    min_epsilon: Decimal
    max_epsilon: Decimal
    min_delta: Decimal
    max_delta: Decimal
    max_passes: int
    allow_certified: bool
    offered: bool

    @property
    def terms(self) -> budgets.Terms:
        """What a request must keep to, beside the terms of the budget."""
        return budgets.Terms(
            f"data set {shown(self.name)} (registered by role {shown(self.registered_by)})",
            self.min_epsilon,
            self.max_epsilon,
            self.min_delta,
            self.max_delta,
            self.allow_certified,
        )

    @property
    def data(self) -> DataSpec:
        """The spec, its table with its schema, its charges to the budget of this name."""
        data = DataSpec.from_text(self.spec, f"spec of data set {self.name}")
        return replace(data, table=self.source, dataset=self.name)


@dataclass(frozen=True)
class Served:
    """A request that the service answered.

    Attributes
    ----------
    id : int
    requested_by, dataset : str
    state : str
        "done", "refused" or "failed"; why is in dpml.requests.
    """

    id: int
    requested_by: str
    dataset: str
    state: str


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
        """Key of its charge, which is made once however often the request is run."""
        return f"dpml.requests {self.id}"


def register(
    session: Session,
    name: str,
    spec: str,
    *,
    role: str | None = None,
    min_epsilon: Decimal | None = None,
    max_epsilon: Decimal | None = None,
    min_delta: Decimal | None = None,
    max_delta: Decimal | None = None,
    max_passes: int | None = None,
    allow_certified: bool | None = None,
) -> Dataset:
    """Offer models of a data set to a role, or change the offer; only services of the current role serve it.

    What is None stays as it is where the data set is registered already.

    Parameters
    ----------
    session : Session
    name : str
        Of the data set, which must have a budget.
    spec : str
        Its data spec, a TOML document; those who may request can read it.
    role : str or None
        Whose members may request models; None: dpml_analyst.
    min_epsilon, max_epsilon : Decimal or None
        What one request must cost at least and may cost at most: epsilon at the budget's delta, by its rule
        and relation. None: what a run must cost by the budget, and all of the budget.
    min_delta, max_delta : Decimal or None
        Bounds on the delta of one request. None: the budget's.
    max_passes : int or None
        Most passes that one request may name, at least 1; None: 1,000.
    allow_certified : bool or None
        Whether a request may have solver = certified, whose number of passes depends on the rows and can be
        counted by other roles of the server. None: False.

    Returns
    -------
    Dataset

    Raises
    ------
    SpecError
        If an argument is outside its domain or looser than the budget's, the data set has no budget, or
        another role registered it.
    GuaranteeError
        If the budget is for another unit of privacy, or the table belongs to another budget.
    """
    data = DataSpec.from_text(spec, "spec")
    if data.dataset not in (None, name):
        raise SpecError(
            f"the spec says dataset = {shown(data.dataset)}, and data set {shown(name)} is to be registered"
        )
    source = resolve(session, data)
    table = source.table
    budget = budgets.budget_of(session, table, name)
    assert budget is not None  # it was named
    budgets.require_unit(session, budget, source.unit)
    before = next((one for one in list_datasets(session) if one.name == name), None)
    role = role or ("dpml_analyst" if before is None else before.role)
    kept = budget.terms if before is None else before.terms
    terms = replace(
        kept,
        min_epsilon=kept.min_epsilon if min_epsilon is None else min_epsilon,
        max_epsilon=kept.max_epsilon if max_epsilon is None else max_epsilon,
        min_delta=kept.min_delta if min_delta is None else min_delta,
        max_delta=kept.max_delta if max_delta is None else max_delta,
    )
    terms.require_within(budget.terms)
    if max_passes is None:
        max_passes = MOST_PASSES if before is None else before.max_passes
    if allow_certified is None:
        allow_certified = before is not None and before.allow_certified
    if not 1 <= max_passes <= 10**6:
        raise SpecError(f"max_passes must be in [1, {10**6}], not {max_passes}")
    role = registry.require_role(session, role, "role")
    values = {
        "name": name,
        "role": role,
        "source": table.identifier.as_string(),
        "source_owner": _owner_of(session, table.oid),
        "spec": spec,
        "min_epsilon": terms.min_epsilon,
        "max_epsilon": terms.max_epsilon,
        "min_delta": terms.min_delta,
        "max_delta": terms.max_delta,
        "max_passes": max_passes,
        "allow_certified": allow_certified,
    }
    changed = session.execute(
        sql.SQL(
            "UPDATE dpml.datasets SET role = %(role)s, source = %(source)s, source_owner = %(source_owner)s, "
            "spec = %(spec)s, min_epsilon = %(min_epsilon)s, max_epsilon = %(max_epsilon)s, "
            "min_delta = %(min_delta)s, max_delta = %(max_delta)s, max_passes = %(max_passes)s, "
            "allow_certified = %(allow_certified)s, offered = true "
            "WHERE name = %(name)s AND registered_by = current_user"
        ),
        values,
    )
    added = changed or session.execute(
        sql.SQL(
            "INSERT INTO dpml.datasets (name, role, source, source_owner, spec, min_epsilon, max_epsilon, "
            "min_delta, max_delta, max_passes, allow_certified) VALUES (%(name)s, %(role)s, %(source)s, "
            "%(source_owner)s, %(spec)s, %(min_epsilon)s, %(max_epsilon)s, %(min_delta)s, %(max_delta)s, "
            "%(max_passes)s, %(allow_certified)s) ON CONFLICT DO NOTHING"
        ),
        values,
    )
    if not added:
        raise SpecError(f"data set {shown(name)} is registered by another role, which alone may change it")
    budgets.claim(session, budget, table)
    return load_dataset(session, name)


def withdraw(session: Session, name: str) -> Dataset:
    """Accept no more requests for a data set and refuse those that wait; a run under way is waited for.

    Raises
    ------
    SpecError
        If the current role has not registered it.
    """
    changed = session.execute(
        sql.SQL(
            "UPDATE dpml.datasets SET offered = false WHERE name = %(name)s AND registered_by = current_user"
        ),
        {"name": name},
    )
    if not changed:
        raise SpecError(_no_dataset(session, name, "this role has registered no data set called"))
    session.execute(
        sql.SQL(
            "UPDATE dpml.requests SET state = 'refused', message = 'the data set was withdrawn' "
            "WHERE dataset = %(name)s AND state = 'waiting'"
        ),
        {"name": name},
    )
    return load_dataset(session, name)


def list_datasets(session: Session) -> list[Dataset]:
    """Those that the current role registered or may request, by name."""
    return [Dataset(*row) for row in session.fetch(_DATASETS + sql.SQL("ORDER BY name"))]


def load_dataset(session: Session, name: str) -> Dataset:
    """The data set of a name.

    Raises
    ------
    SpecError
        If there is none, or the current role may not see it.
    """
    found = session.fetch(_DATASETS + sql.SQL("WHERE name = %(name)s"), {"name": name})
    if not found:
        raise SpecError(_no_dataset(session, name, "there is no registered data set called"))
    return Dataset(*found[0])


def _no_dataset(session: Session, name: str, missing: str) -> str:
    offer = did_you_mean(name, [one.name for one in list_datasets(session)])
    return f"{missing} {shown(name)}{offer or ':'} dpml dataset list names those of this role"


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
                report(
                    f"request {served.id} by {served.requested_by!r} on {served.dataset!r}: {served.state}"
                )
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

    One that a service began and did not end is taken up under the name of its charge: it is run if nothing
    was charged, done if its model is there, and failed otherwise.
    """
    with database.session() as guard:
        # Its lock is what tells a run from one whose service ended, and idles as long as the run takes.
        guard.execute(sql.SQL("SET LOCAL idle_in_transaction_session_timeout = 0"))
        request = _take(guard)
        if request is None:
            return None
        _enter(database, request, ("running", None, None))
        outcome = _answer(database, request)
        _enter(database, request, outcome)
        return Served(request.id, request.requested_by, request.dataset, outcome[0])


_DATASETS = sql.SQL(
    "SELECT name, registered_at, registered_by, role, source, source_owner, spec, min_epsilon, max_epsilon, "
    "min_delta, max_delta, max_passes, allow_certified, offered FROM dpml.datasets "
)

_UNFINISHED = sql.SQL("FROM dpml.requests q WHERE q.dataset = d.name AND q.state IN ('waiting', 'running')")


def _wait(database: Database) -> None:
    """Return once there is something to do; by one connection, and no transaction that lasts."""
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
    """The oldest request of a data set that no other service has; it is ours while the transaction lasts."""
    free = sql.SQL(
        "SELECT d.name FROM dpml.datasets d WHERE d.registered_by = current_user AND EXISTS (SELECT {}) "
        "ORDER BY (SELECT pg_catalog.min(q.id) {}) LIMIT 1 FOR NO KEY UPDATE OF d SKIP LOCKED"
    ).format(_UNFINISHED, _UNFINISHED)
    # Another service may have answered its last request just before the lock.
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
    """Train what was asked for; whatever happens, say what was charged and quote no row."""
    try:
        _train(database, request)
    except UnavailableError:
        raise  # the request stays as it is, and is taken up again
    except CommitLostError as error:
        raise UnavailableError(str(error)) from None  # the same: then it is known what was written
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
        if _owner_of(session, session.relation(data.table).oid) != dataset.source_owner:
            raise SpecError(
                f"table {visible(dataset.source)} belongs to another role than when data set "
                f"{shown(dataset.name)} was registered: its owner must register it again"
            )
    privacy, training = read_options(request.options, dataset.max_epsilon)
    if training.passes is not None and training.passes > dataset.max_passes:
        raise SpecError(f"passes must be at most {dataset.max_passes} a request, not {training.passes}")
    if training.method == "bolt-on" and training.solver is None and not dataset.allow_certified:
        training = replace(training, solver="sgd")  # not certified, which lambda would make the default
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


def _owner_of(session: Session, table: int) -> str:
    (owner,) = session.fetch_one(
        sql.SQL("SELECT pg_catalog.pg_get_userbyid(relowner) FROM pg_catalog.pg_class WHERE oid = %(oid)s"),
        {"oid": table},
    )
    return str(owner)
