# SPDX-License-Identifier: PostgreSQL
"""How many more runs a budget pays for."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_FLOOR, Context, Decimal
from fractions import Fraction

from pg_dpml.database.session import Session, sql
from pg_dpml.ledger.terms import Budget, Left, asked, short
from pg_dpml.privacy.choice import cost_of_one
from pg_dpml.privacy.cost import Cost, epsilon_of

__all__ = [
    "Runs",
    "runs_left",
]

_DOWN = Context(prec=6, rounding=ROUND_FLOOR)


@dataclass(frozen=True)
class Runs:
    """How many more runs of one kind a budget pays for.

    Attributes
    ----------
    count : int
    epsilon, delta : Decimal
        Guarantee of each run.
    method : str
    exact : bool
        Whether such a run was charged before. Otherwise its noise is assumed to be Gaussian (K-norm if its
        delta is 0), and its delta the largest allowed.
    """

    count: int
    epsilon: Decimal
    delta: Decimal
    method: str
    exact: bool

    @property
    def text(self) -> str:
        """The number of runs in words."""
        run = f"epsilon = {short(self.epsilon)} and delta = {asked(self.delta)} by {self.method}"
        models = "model" if self.count == 1 else "models"
        if self.exact:
            return f"{self.count or 'no'} more like the last run ({run})"
        return f"about {self.count} more {models} of {run}"


def runs_left(session: Session, budget: Budget, left: Left) -> list[Runs]:
    """Numbers of runs that still fit: runs like the last one, and smaller runs if none of those fits.

    The costs of the runs add up.
    """
    if left.closed:
        return []
    last = session.fetch(
        sql.SQL(
            "SELECT l.epsilon, l.delta, l.method, e.loss, e.delta FROM dpml.budget_entries e "
            "JOIN dpml.ledger l ON l.id = e.charge WHERE e.dataset = %(dataset)s ORDER BY e.turn DESC LIMIT 1"
        ),
        {"dataset": budget.dataset},
    )
    found = []
    for epsilon, delta, method, *cost in last:
        found.append(Runs(_count(left.cost, Cost(*cost)), epsilon, delta, method, True))
    if not any(run.count for run in found):
        usual = _usual_runs(budget, left.cost)
        found += [usual] if usual is not None else []
    return found


def _usual_runs(budget: Budget, rest: Cost) -> Runs | None:
    """Runs with a round epsilon of which a few fit; None if none does."""
    worth = epsilon_of(budget.rule, rest.loss, budget.delta - budget.limit.delta)
    if worth <= 0.0:
        return None
    share = Decimal(worth) / 6
    place = Decimal(1).scaleb(share.adjusted())
    epsilon = max((n * place for n in (5, 2, 1) if n * place <= share), default=place)
    epsilon = max(epsilon, budget.min_epsilon)
    delta = budget.max_delta
    if budget.rule == "basic":  # deltas add up, so that each run has a share
        count = int(rest.loss / epsilon)
        delta = min(delta, _DOWN.divide(rest.delta, Decimal(max(count, 1))))
    cost = cost_of_one(budget.accounting, epsilon, delta)
    if cost is None:
        return None
    count = _count(rest, cost)
    return Runs(count, epsilon, delta, "auto", False) if count else None


def _count(rest: Cost, cost: Cost) -> int:
    """How many times a cost fits into what is left."""
    pairs = ((rest.loss, cost.loss), (rest.delta, cost.delta))
    return min((max(Fraction(left) // Fraction(one), 0) for left, one in pairs if one > 0), default=0)
