# SPDX-License-Identifier: PostgreSQL
"""What a run costs: costs that add up, and the limits they may add up to.

Everything is an exact decimal: a cost is rounded up, a limit down. The proofs:
privacy/README.md, "Budgets".
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

import numpy as np
import scipy  # which imports its parts where they are used

from pg_dpml.privacy.accounting import allocated, subsampled
from pg_dpml.privacy.gaussian import gaussian_delta, gaussian_mu
from pg_dpml.privacy.releases import (
    AdaptiveRun,
    AllocatedPasses,
    GaussianRun,
    PoissonSteps,
    PureReleases,
    Releases,
)
from pg_dpml.spec.relation import Relation

__all__ = [
    "RULES",
    "Accounting",
    "Cost",
    "cost_of",
    "epsilon_of",
    "limit_of",
    "zcdp_delta",
    "zcdp_rho",
]


RULES = ("basic", "zcdp", "gdp")

_UP = Context(prec=20, rounding=ROUND_CEILING)
_DOWN = Context(prec=20, rounding=ROUND_FLOOR)
_ROOM = 1e-9
"""Above the relative error of every float64 formula here."""

_OTHERS = Decimal("0.1")
"""Share of a budget's delta for what is not Gaussian noise; with the rest `loss` is converted."""

_SPARE = 2.0**-14
"""Share of a run's delta with which batches at random may be no Gaussian release: 1,638 runs of a budget's
delta fill _OTHERS by it."""


@dataclass(frozen=True)
class Cost:
    """What adds up over runs.

    Attributes
    ----------
    loss : Decimal
        Rule "basic": epsilon. "zcdp": rho. "gdp": mu^2.
    delta : Decimal
        Rule "basic": delta. Else the probability, at most, that a run is not what its `loss` says.
    """

    loss: Decimal
    delta: Decimal


@dataclass(frozen=True)
class Accounting:
    """How a budget adds up.

    Attributes
    ----------
    rule : {"basic", "zcdp", "gdp"}
    relation : Relation
        Which neighbours its guarantee is about.
    """

    rule: str
    relation: Relation


def limit_of(rule: str, epsilon: Decimal, delta: Decimal) -> Cost:
    """What the costs under a budget of (epsilon, delta) may add up to.

    Parameters
    ----------
    rule : {"basic", "zcdp", "gdp"}
    epsilon : Decimal
        In (0, inf).
    delta : Decimal
        In [0, 1); in (0, 1) but for "basic".

    Returns
    -------
    Cost
        Rounded down. But for "basic", a tenth of delta is for the deltas of runs that are no Gaussian
        release, and `loss` is converted with the rest.

    Notes
    -----
    Source: Rogers, Roth, Ullman & Vadhan 2016 ("basic"); Canonne, Kamath & Steinke 2020,
    Proposition 12 ("zcdp"); Balle & Wang 2018, Theorem 8 ("gdp"); privacy/README.md, "Budgets".
    """
    if rule == "basic":
        return Cost(epsilon, delta)
    others = _DOWN.multiply(_OTHERS, delta)
    rest = float(_DOWN.subtract(delta, others)) * (1.0 - _ROOM)
    loss = gaussian_mu(float(epsilon), rest) ** 2 if rule == "gdp" else zcdp_rho(float(epsilon), rest)
    return Cost(_DOWN.create_decimal_from_float(loss * (1.0 - _ROOM)), others)


def cost_of(
    rule: str,
    epsilon: Decimal,
    delta: Decimal,
    gaussian: GaussianRun | None,
    *,
    run: Relation,
    budget: Relation,
) -> Cost:
    """What an (epsilon, delta)-private run costs.

    Parameters
    ----------
    rule : {"basic", "zcdp", "gdp"}
    epsilon, delta : Decimal
        Of the run, in (0, inf) and [0, 1).
    gaussian : Releases, PoissonSteps, AllocatedPasses, PureReleases, AdaptiveRun or None
        See `RunNoise.releases`.
    run, budget : Relation
        Which neighbours the guarantee of the run, and of the budget, is about. A zero row is one of the
        values that `replace_one` replaces with; the other way takes two steps.

    Returns
    -------
    Cost
        Rounded up.

    Notes
    -----
    Source: Dong, Roth & Su 2022 and Bun & Steinke 2016 for Gaussian noise; Kairouz, Oh & Viswanath 2015
    for all others; privacy/README.md, "Budgets".
    """
    if isinstance(gaussian, PureReleases):
        delta, gaussian = min(delta, _ceiling(gaussian.delta)), None
    twice = run is Relation.ADD_REMOVE and budget is Relation.REPLACE_ONE
    whole, whole_delta = epsilon, delta
    if twice:
        growth = math.exp(float(epsilon)) if epsilon < 700 else math.inf
        whole, whole_delta = 2 * epsilon, _ceiling(float(delta) * (1.0 + growth)) if delta else delta
    whole_delta = min(whole_delta, Decimal(1))
    if rule == "basic":
        return Cost(whole, whole_delta)
    if rule == "zcdp":
        cost = Cost(_UP.divide(_UP.multiply(whole, whole), Decimal(2)), whole_delta)
    else:
        cost = Cost(_ceiling(_pure_mu(float(whole)) ** 2), whole_delta)
    if gaussian is None:
        return cost
    if isinstance(gaussian, AdaptiveRun):
        own = _adaptive_cost(rule, gaussian, steps=2 if twice else 1)
        return min(own, cost, key=lambda one: one.loss)
    if isinstance(gaussian, Releases):
        mu, rest = (2.0 * gaussian.mu if twice else gaussian.mu), gaussian.delta
    else:
        spare = _SPARE * float(delta)
        mu = _mu_of_batches(gaussian, spare, budget) + gaussian.precision
        rest = gaussian.delta + spare * math.exp(gaussian.precision)
    own = Cost(_ceiling(mu**2 if rule == "gdp" else 0.5 * mu**2), _ceiling(rest))
    return min(own, cost, key=lambda one: one.loss)


def _adaptive_cost(rule: str, run: AdaptiveRun, steps: int) -> Cost:
    """What a run costs between tables so many steps apart, by "zcdp" or "gdp".

    Group privacy multiplies rho by steps^2, as it does mu^2. A choice is (epsilon, 0)-private and costs the
    mu^2 of that: the dearest history has Gaussian releases alone, or choices alone.
    Source: privacy/README.md, "Adaptive gradient descent".
    """
    loss = run.rho if rule == "zcdp" else max(2.0 * run.rho, run.choices * _pure_mu(run.choice_epsilon) ** 2)
    return Cost(_ceiling(steps**2 * loss), _ceiling(run.delta))


@functools.lru_cache(maxsize=64)
def _mu_of_batches(run: PoissonSteps | AllocatedPasses, spare: float, relation: Relation) -> float:
    """Kept, since a plan is often made twice and this can take a second."""
    if isinstance(run, AllocatedPasses):
        return allocated.allocated_gaussian_mu(run.multiplier, run.batches, run.allocations, spare, relation)
    return subsampled.subsampled_gaussian_mu(run.multiplier, run.sampling, run.steps, spare, relation)


def epsilon_of(rule: str, loss: Decimal, delta: Decimal) -> float:
    """The epsilon that an amount of `Cost.loss` is worth at a delta, to 1e-6; for what is shown.

    Parameters
    ----------
    rule : {"basic", "zcdp", "gdp"}
    loss : Decimal
        In [0, inf).
    delta : Decimal
        In (0, 1); not used by "basic".
    """
    amount = float(loss)
    if rule == "basic" or amount <= 0.0:
        return max(amount, 0.0)

    def spent(epsilon: float) -> float:
        return gaussian_delta(epsilon, math.sqrt(amount)) if rule == "gdp" else zcdp_delta(epsilon, amount)

    low, high = 0.0, 1.0
    if spent(low) <= float(delta):
        return low  # delta alone is worth it
    while spent(high) > float(delta):
        low, high = high, 2.0 * high
    while high - low > 1e-6 * high and high > 1e-12:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if spent(middle) > float(delta) else (low, middle)
    return high


def zcdp_delta(epsilon: float, rho: float) -> float:
    """A delta for which rho-zCDP is (epsilon, delta)-private.

    Parameters
    ----------
    epsilon : float
        In [0, inf).
    rho : float
        In (0, inf).

    Returns
    -------
    float
        min over alpha > 1 of exp((alpha - 1)(alpha rho - epsilon)) (1 - 1/alpha)^alpha / (alpha - 1);
        every alpha gives a valid one, so the search for the best cannot err on the wrong side.

    Notes
    -----
    Source: Canonne, Kamath & Steinke 2020, Proposition 12.
    """

    def slope(log_order: float) -> float:
        """The derivative of the logarithm, which rises, in alpha - 1."""
        less = math.exp(log_order)
        return (1.0 + 2.0 * less) * rho - epsilon - math.log1p(1.0 / less)

    least, most = -20.0, 30.0
    if slope(least) >= 0.0:
        best = least
    else:
        best = scipy.optimize.brentq(slope, least, most, xtol=1e-9) if slope(most) > 0.0 else most
    less = math.exp(best)
    log_delta = less * ((1.0 + less) * rho - epsilon - math.log1p(1.0 / less)) - math.log1p(less)
    return math.exp(min(log_delta, 0.0))


def zcdp_rho(epsilon: float, delta: float) -> float:
    """Largest rho for which rho-zCDP is (epsilon, delta)-private, rounded down.

    Parameters
    ----------
    epsilon : float
        In (0, inf).
    delta : float
        In (0, 1/2).

    Notes
    -----
    Inverse of `zcdp_delta` in rho.
    """
    low, high = math.log(epsilon) - 200.0, math.log(epsilon)  # rho = epsilon is too much for delta < 1/2
    while high - low > 1e-12:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if zcdp_delta(epsilon, math.exp(middle)) <= delta else (low, middle)
    return math.exp(low)


def _pure_mu(epsilon: float) -> float:
    """The mu of a Gaussian release that tells two neighbours apart no worse than any (epsilon, 0) run."""
    if epsilon < 1.0:  # where next to 1/2 a probability has lost its digits
        return float(math.sqrt(8.0) * scipy.special.erfinv(math.tanh(0.5 * epsilon)))
    return float(-2.0 * scipy.special.ndtri_exp(-np.logaddexp(0.0, epsilon)))


def _ceiling(value: float) -> Decimal:
    if not math.isfinite(value):
        return Decimal("1e300")  # more than any limit
    return _UP.create_decimal_from_float(value * (1.0 + _ROOM))
