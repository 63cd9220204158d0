# SPDX-License-Identifier: PostgreSQL
"""Data sets whose models a role may request without reading the table: table dpml.datasets.

Source: privacy/README.md, "Training for others".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal

from pg_dpml.blocks.source import resolve
from pg_dpml.database.catalog import owner_of
from pg_dpml.database.session import Session, sql
from pg_dpml.errors import SpecError
from pg_dpml.ledger import budgets, claims, models, terms
from pg_dpml.names import did_you_mean, shown
from pg_dpml.spec.data import DataSpec

__all__ = ["Dataset", "list_datasets", "load_dataset", "register", "withdraw"]

MOST_PASSES = 1000
"""Default of the largest number of passes of a request: planning takes time before anything is charged."""

_COLUMNS = sql.SQL(
    "name, registered_at, registered_by, role, source, source_owner, spec, min_epsilon, max_epsilon, "
    "min_delta, max_delta, max_passes, allow_certified, offered"
)
# Who registered a data set whose budget is closed sees it in both relations, others only in the second.
_DATASETS = sql.SQL(
    "SELECT {}, false FROM dpml.datasets WHERE name NOT IN (SELECT name FROM dpml.closed_datasets) "
    "UNION ALL SELECT {}, true FROM dpml.closed_datasets ORDER BY name"
).format(_COLUMNS, _COLUMNS)


@dataclass(frozen=True)
class Dataset:
    """A data set whose models may be requested; see dpml.datasets."""

    name: str
    registered_at: datetime
    registered_by: str
    role: str
    table_name: str
    table_owner: str
    spec: str
    min_epsilon: Decimal
    max_epsilon: Decimal
    min_delta: Decimal
    max_delta: Decimal
    max_passes: int
    allow_certified: bool
    offered: bool
    closed: bool
    """Whether its budget is closed, so that no model of it can be requested, offered or not."""

    @property
    def terms(self) -> terms.Terms:
        """Limits of a request, beside the terms of the budget."""
        return terms.Terms(
            f"data set {shown(self.name)} (registered by role {shown(self.registered_by)})",
            self.min_epsilon,
            self.max_epsilon,
            self.min_delta,
            self.max_delta,
            self.allow_certified,
            self.max_passes,
        )

    @property
    def data(self) -> DataSpec:
        """The spec, with the qualified name of its table, charged to the budget of this name."""
        data = DataSpec.from_text(self.spec, f"spec of data set {self.name}")
        return replace(data, table=self.table_name, dataset=self.name)


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

    If the data set is already registered, an argument that is None leaves its value unchanged.

    Parameters
    ----------
    session : Session
    name : str
        Name of the data set, which must have a budget.
    spec : str
        Its data spec, a TOML document, which everyone who may request models can read.
    role : str or None
        Role whose members may request models; None: dpml_analyst.
    min_epsilon, max_epsilon : Decimal or None
        Least and largest cost of one request: epsilon at the budget's delta, by its rule and relation. None:
        the least cost of a run by the budget, and the whole budget.
    min_delta, max_delta : Decimal or None
        Bounds on the delta of one request. None: the budget's.
    max_passes : int or None
        Largest number of passes of one request, at least 1; None: 1,000.
    allow_certified : bool or None
        Whether a request may have solver = certified, whose number of passes depends on the rows and can be
        counted by other roles of the server. None: False.

    Returns
    -------
    Dataset

    Raises
    ------
    BudgetError
        If the budget is closed.
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
    budget = claims.budget_of(session, table, name)
    assert budget is not None  # it was named
    budgets.require_open(budget, budgets.left_of(session, budget))
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
    role = models.require_role(session, role, "role")
    values = {
        "name": name,
        "role": role,
        "source": table.identifier.as_string(),
        "source_owner": owner_of(session, table),
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
    claims.claim(session, budget, table)
    return load_dataset(session, name)


def withdraw(session: Session, name: str) -> Dataset:
    """Accept no more requests for a data set and reject waiting ones; waits for a run under way.

    Raises
    ------
    SpecError
        If the current role has not registered the data set.
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
            "WHERE id IN (SELECT id FROM dpml.requests WHERE dataset = %(name)s AND state = 'waiting' "
            "FOR NO KEY UPDATE SKIP LOCKED)"  # one that is being withdrawn is not waited for
        ),
        {"name": name},
    )
    return load_dataset(session, name)


def list_datasets(session: Session) -> list[Dataset]:
    """The data sets that the current role registered or may request models of, by name; also closed ones."""
    return [Dataset(*row) for row in session.fetch(_DATASETS)]


def load_dataset(session: Session, name: str) -> Dataset:
    """The data set of a name.

    Raises
    ------
    SpecError
        If there is no such data set, or the current role may not see it.
    """
    found = next((one for one in list_datasets(session) if one.name == name), None)
    if found is None:
        raise SpecError(_no_dataset(session, name, "there is no registered data set called"))
    return found


def _no_dataset(session: Session, name: str, missing: str) -> str:
    offer = did_you_mean(name, [one.name for one in list_datasets(session)])
    return f"{missing} {shown(name)}{offer or ':'} dpml dataset list names those of this role"
