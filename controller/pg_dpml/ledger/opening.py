# SPDX-License-Identifier: PostgreSQL
"""Opening a budget."""

from __future__ import annotations

import shlex
from decimal import Decimal

from pg_dpml.database.catalog import look_up_table
from pg_dpml.database.session import Session, sql
from pg_dpml.errors import SpecError
from pg_dpml.ledger.advice import least_epsilon
from pg_dpml.ledger.budgets import find_budget, history, load_budget, lock_budget, table_name
from pg_dpml.ledger.claims import claim
from pg_dpml.ledger.terms import LEAST_BASIC_DELTA, Budget, Terms, short
from pg_dpml.names import shown
from pg_dpml.privacy.cost import RULES, limit_of
from pg_dpml.spec.privacy import MOST_EPSILON
from pg_dpml.spec.relation import Relation

__all__ = [
    "open_budget",
]

_MOST_EPSILON = {"basic": Decimal(1000), **dict.fromkeys(("zcdp", "gdp"), Decimal(int(MOST_EPSILON)))}
_LEAST_DELTA = Decimal("1e-100")
_LEAST_SHARE = Decimal("0.001")
"""Default of the least share of a budget that one charge costs."""


def open_budget(
    session: Session,
    dataset: str,
    *,
    epsilon: Decimal,
    delta: Decimal,
    rule: str,
    relation: Relation = Relation.REPLACE_ONE,
    unit: str | None = None,
    tables: tuple[str, ...] = (),
    min_epsilon: Decimal | None = None,
    min_delta: Decimal = Decimal(0),
    max_delta: Decimal | None = None,
    shared: bool = False,
) -> Budget:
    """Set the limit of a data set; it can be changed until something is charged to it.

    Parameters
    ----------
    session : Session
    dataset : str
        A new name, 1 to 200 characters; or that of a budget, open or closed, that nothing was charged to.
    epsilon : Decimal
        In (0, 100]; up to 1000 for rule "basic".
    delta : Decimal
        In [1e-30, 1) for rule "basic", else in [1e-100, 1).
    rule : {"basic", "zcdp", "gdp"}
    relation : Relation
        Guarantees under the other relation are converted.
    unit : str or None
        Column that is the unit of privacy of every run.
    tables : tuple of str
        Tables and views, as in SQL, whose runs are charged here even if they do not name the data set.
    min_epsilon : Decimal or None
        Least cost of one charge, in (0, epsilon]: epsilon at this delta, by this rule and relation.
        None: a thousandth of the budget, rounded up to three digits of epsilon.
    min_delta, max_delta : Decimal or None
        Bounds on the delta of the guarantee of one run, in [0, delta]; None: `delta`.
    shared : bool
        Allow tables that are in another budget already; only a superuser may.

    Returns
    -------
    Budget

    Raises
    ------
    SpecError
        If an argument is outside its domain, or something was charged to the budget of this name.
    GuaranteeError
        If a table, or one that it reads by the catalog, is in another budget.
    """
    if not dataset.strip() or len(dataset) > 200:
        raise SpecError("dataset must have 1 to 200 characters")
    if rule not in RULES:
        raise SpecError(f"rule must be one of {', '.join(RULES)}, not {rule!r}")
    most = _MOST_EPSILON[rule]
    if not (epsilon.is_finite() and 0 < epsilon <= most):
        raise SpecError(f"epsilon must be in (0, {most}] for rule {rule}, not {epsilon}")
    if not (delta.is_finite() and 0 <= delta < 1):
        raise SpecError(f"delta must be in [0, 1), not {delta}")
    if rule == "basic" and delta < LEAST_BASIC_DELTA:
        raise SpecError(
            f"delta must be at least {short(LEAST_BASIC_DELTA)}: the noise of a run with delta = 0 takes "
            f"a delta of 1e-36 for each number of the model; give {short(LEAST_BASIC_DELTA)}"
        )
    if rule != "basic" and delta < _LEAST_DELTA:
        raise SpecError(
            f"delta must be at least {short(_LEAST_DELTA)} for rule {rule}, which converts with it: give "
            "one well below 1 / (number of rows), or take rule basic"
        )
    before = find_budget(session, dataset)
    if before is not None:
        lock_budget(session, before)
        if any(entry.charge is not None for entry in history(session, dataset)):
            raise SpecError(
                f"data set {shown(dataset)} has a budget that runs were charged to, which is never made "
                f"larger: dpml budget show {shlex.quote(dataset)} says what is left"
            )
    found = list({table.oid: table for table in (look_up_table(session, name) for name in tables)}.values())
    for listed in found:
        unit = None if unit is None else listed.column(unit, "unit")
    limit = limit_of(rule, epsilon, delta)
    if min_epsilon is None:
        share = _LEAST_SHARE * limit.loss
        min_epsilon = min(
            least_epsilon(lambda one: limit_of(rule, one, delta).loss >= share) or epsilon, epsilon
        )
    if max_delta is None:
        max_delta = delta
    Terms("", min_epsilon, epsilon, min_delta, max_delta)  # an error if they contradict each other
    if max_delta > delta:
        raise SpecError(
            f"max_delta must be at most {short(delta)}, the delta of the budget, not {short(max_delta)}"
        )
    values = {
        "rule": rule,
        "epsilon": epsilon,
        "delta": delta,
        "relation": relation.value,
        "unit": unit,
        "tables": [table_name(table) for table in found],
        "min_epsilon": min_epsilon,
        "min_delta": min_delta,
        "max_delta": max_delta,
        "loss_limit": limit.loss,
        "delta_limit": limit.delta,
        "shared": shared,
    }
    names = sql.SQL(", ").join(map(sql.Identifier, values))
    given = sql.SQL(", ").join(map(sql.Placeholder, values))
    if before is None:
        statement = sql.SQL("INSERT INTO dpml.budgets (dataset, {}) VALUES (%(dataset)s, {})")
    else:
        statement = sql.SQL("UPDATE dpml.budgets SET ({}) = ROW ({}) WHERE dataset = %(dataset)s")
    session.execute(statement.format(names, given), {"dataset": dataset} | values)
    opened = load_budget(session, dataset)
    for table in found:
        claim(session, opened, table, listed=True)
    return opened
