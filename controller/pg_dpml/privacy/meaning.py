# SPDX-License-Identifier: PostgreSQL
"""What a guarantee means for a person: how far an attacker's belief can move, in words."""

from __future__ import annotations

import math

from pg_dpml.names import shown
from pg_dpml.privacy.guarantee import Guarantee
from pg_dpml.spec.relation import Relation

__all__ = [
    "belief_text",
    "chance_text",
    "odds_factor",
    "posterior",
    "protected",
    "share_text",
    "suspicion",
    "unprotected",
]

_LARGE = (
    ("quintillion", 1e18),
    ("quadrillion", 1e15),
    ("trillion", 1e12),
    ("billion", 1e9),
    ("million", 1e6),
)


def posterior(prior: float, epsilon: float) -> float:
    """Largest belief that an attacker can reach, except with probability delta.

    Parameters
    ----------
    prior : float
        Belief before, in (0, 1).
    epsilon : float
        Logarithm of the factor by which the odds grow at most. With -epsilon the result is the least belief.
    """
    return prior / (prior + (1.0 - prior) * math.exp(-epsilon))


def odds_factor(epsilon: float) -> str:
    """e^epsilon, the factor between the odds before and after; never exactly 1."""
    if epsilon < 0.01:
        return f"1 + {math.expm1(epsilon):.3g}"
    return f"{math.exp(min(epsilon, 700.0)):.3g}"


def share_text(value: float) -> str:
    """A probability as a percentage that never reads as certainty."""
    if value > 0.9999:
        return "more than 99.99 %"
    return f"{100.0 * value:.{3 if value < 0.9995 else 4}g} %"


def chance_text(delta: float) -> str:
    """A small probability as "one in so many", in words.

    Parameters
    ----------
    delta : float
        In [0, 1).
    """
    if delta <= 0.0:
        return "never"
    many = float(f"{min(1.0 / delta, 1e99):.3g}")
    if many > 1e21:
        return "less than one in a thousand quintillions"
    for name, size in _LARGE:
        if many >= size:
            return f"one in {'a' if many == size else f'{many / size:.3g}'} {name}"
    return f"one in {many:,.0f}" if many >= 10.0 else f"one in {many:.3g}"


def protected(guarantee: Guarantee) -> str:
    """What the guarantee is about: a row but for what is public of it, or the rows of a unit of privacy."""
    return f"{_rows(guarantee)}{unprotected(guarantee)}"


def unprotected(guarantee: Guarantee) -> str:
    """The column of the protected rows that is public, as it decides their shards; empty if none is."""
    key = guarantee.public_column
    return "" if key is None else f" but its {shown(key)}"


def suspicion(guarantee: Guarantee) -> str:
    """The claim that an attacker weighs, under the relation of the guarantee."""
    if guarantee.relation is Relation.REPLACE_ONE:
        return f"guesses the values of {protected(guarantee)}"
    kept = unprotected(guarantee)
    how = f"blanked out in all{kept}" if kept else "blanked out"
    return f"guesses that {_rows(guarantee)} took part, rather than being {how}"


def _rows(guarantee: Guarantee) -> str:
    """One row, or those of a unit of privacy."""
    return "one row" if guarantee.unit is None else f"all rows with one value of {shown(guarantee.unit)}"


def belief_text(guarantee: Guarantee) -> str:
    """The meaning of the guarantee for a belief of 50 %, in one sentence."""
    after = share_text(posterior(0.5, guarantee.epsilon))
    failure = ""
    if guarantee.delta > 0.0:
        failure = f", except with probability {guarantee.delta:.3g} ({chance_text(guarantee.delta)})"
    return (
        f"where an attacker knows all other rows and {suspicion(guarantee)}, a belief of 50 % becomes "
        f"at most {after} by seeing the model{failure}"
    )
