# SPDX-License-Identifier: PostgreSQL
"""Which noise one release takes, by what it costs."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from pg_dpml.errors import GuaranteeError
from pg_dpml.privacy.cost import Accounting, Cost, cost_of
from pg_dpml.privacy.gaussian import gaussian_share
from pg_dpml.privacy.knorm import smaller_kind
from pg_dpml.privacy.releases import GaussianRun, PureReleases, releases_of
from pg_dpml.privacy.resolution import sampler_delta
from pg_dpml.spec.relation import Relation

__all__ = [
    "NoiseChoice",
    "choose_noise",
    "cost_of_one",
]


@dataclass(frozen=True)
class NoiseChoice:
    """Which noise one release takes.

    Attributes
    ----------
    kind : {"gaussian", "k-norm"}
    reason : str
        A clause on what it costs of a budget; empty where the smaller noise is taken for its size alone.
    """

    kind: str
    reason: str = ""


def choose_noise(
    budget: Accounting | None,
    epsilon: float,
    delta: float,
    n_weights: int,
    relation: Relation,
    usual_delta: float = 0.0,
) -> NoiseChoice:
    """The noise of one release: that which costs its budget less; without one, the smaller one.

    Parameters
    ----------
    budget : Accounting or None
        Of the budget that the run is charged to; None: none.
    epsilon : float
        Of the run, in (0, inf).
    delta : float
        In [0, 1).
    n_weights : int
        Length of the released vector, >= 1.
    relation : Relation
        Of the run.
    usual_delta : float
        In [0, 1): with which Gaussian noise is compared, in words, where delta is 0; 0: nothing is said.

    Returns
    -------
    NoiseChoice
        A function of public numbers alone. By rule "basic" K-norm noise costs no more than Gaussian noise.

    Notes
    -----
    Source: privacy/README.md, "K-norm noise" and "Budgets".
    """
    smaller = smaller_kind(epsilon, delta, n_weights)
    if budget is None or budget.rule == "basic" or smaller == "gaussian":
        return NoiseChoice(smaller)

    def loss(delta: float, noise: GaussianRun) -> Decimal:
        run = (Decimal(repr(epsilon)), Decimal(repr(delta)), noise)
        return cost_of(budget.rule, *run, run=relation, budget=budget.relation).loss

    compared = delta or usual_delta
    try:
        mu = gaussian_share(epsilon, compared, n_weights) if compared > 0.0 else None
    except GuaranteeError:  # no Gaussian noise of so small a delta or epsilon
        mu = None
    if mu is None:
        return NoiseChoice(smaller)
    pure = loss(delta, PureReleases(sampler_delta(n_weights)))
    times = float(pure / loss(compared, releases_of(mu, n_weights)))
    if times <= 1.0:
        return NoiseChoice(smaller)
    if delta == 0.0:
        return NoiseChoice(
            smaller,
            f"K-norm noise, since delta = 0 asks for pure privacy, of which a {budget.rule} budget takes "
            f"{times:.3g} times what Gaussian noise at delta = {compared:.3g} costs",
        )
    return NoiseChoice(
        "gaussian",
        f"Gaussian noise, since K-norm noise, though smaller, would cost {times:.3g} times as much of a "
        f"{budget.rule} budget",
    )


def cost_of_one(budget: Accounting, epsilon: Decimal, delta: Decimal) -> Cost | None:
    """What a run with Gaussian noise, or K-norm noise where delta is 0, costs under the budget's relation.

    Parameters
    ----------
    budget : Accounting
    epsilon, delta : Decimal
        Of the run, in (0, inf) and [0, 1).

    Returns
    -------
    Cost or None
        Of a run of one noisy number; that of more is larger by less than the shares of "The sampler". None
        if the precision of the noise allows no such run.
    """
    part: GaussianRun = PureReleases(sampler_delta(1))
    if delta > 0:
        try:
            part = releases_of(gaussian_share(float(epsilon), float(delta), 1), 1)
        except GuaranteeError:
            return None
    return cost_of(budget.rule, epsilon, delta, part, run=budget.relation, budget=budget.relation)
