# SPDX-License-Identifier: PostgreSQL
"""The guarantee that a user asks for."""

from __future__ import annotations

from dataclasses import dataclass

from pg_dpml.errors import SpecError
from pg_dpml.spec.checks import as_choice, as_number, require_between
from pg_dpml.spec.relation import Relation

__all__ = ["MOST_EPSILON", "PrivacySpec"]


MOST_EPSILON = 100.0
"""Largest epsilon of a run: delta allows for the cut tail of the sampler only up to this."""


@dataclass(frozen=True)
class PrivacySpec:
    """The guarantee asked for.

    Attributes
    ----------
    epsilon : float
        In [1e-12, 100].
    delta : float or None
        In [0, 1); 0 asks for pure differential privacy; None means 1 / n^2.
    relation : Relation
    """

    epsilon: float
    delta: float | None = None
    relation: Relation = Relation.REPLACE_ONE

    def __post_init__(self) -> None:
        require_between(self.epsilon, "epsilon", 1e-12, MOST_EPSILON)
        object.__setattr__(self, "epsilon", float(self.epsilon))
        delta = as_number(self.delta, "delta")
        if delta is not None and not 0.0 <= delta < 1.0:
            raise SpecError(f"delta must be in [0, 1), not {self.delta!r}")
        object.__setattr__(self, "delta", delta)
        if not isinstance(self.relation, Relation):
            names = [relation.value for relation in Relation]
            object.__setattr__(self, "relation", Relation(as_choice(self.relation, "relation", names)))

    def delta_for(self, n_units: int) -> float:
        """delta, or its default 1 / n^2 for a table of n units."""
        return self.delta if self.delta is not None else 1.0 / max(n_units, 2) ** 2
