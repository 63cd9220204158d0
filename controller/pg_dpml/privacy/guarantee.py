# SPDX-License-Identifier: PostgreSQL
"""The guarantee of a run, as it is charged and reported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pg_dpml.spec.relation import Relation

__all__ = [
    "Guarantee",
]


@dataclass(frozen=True)
class Guarantee:
    """(epsilon, delta)-differential privacy under a relation.

    Attributes
    ----------
    epsilon, delta : float
        As charged and reported.
    relation : Relation
    unit : str or None
        Column whose equal values are one unit of privacy; None: every row is one.
    max_rows_per_unit : int
        Rows used of a unit.
    placed_by : str or None
        Column that decides in which shard of a distributed table a row lies, where that must be public:
        neighbours have the same values of it. None: it need not.
    """

    epsilon: float
    delta: float
    relation: Relation
    unit: str | None = None
    max_rows_per_unit: int = 1
    placed_by: str | None = None

    @property
    def public_column(self) -> str | None:
        """The column of a protected row that is public; None where the whole row, or unit, is protected."""
        return None if self.placed_by == self.unit else self.placed_by

    def protects(self) -> dict[str, Any]:
        """What is protected, as it is stored: a JSON-ready mapping."""
        placed = {} if self.placed_by is None else {"placed_by": self.placed_by}
        return {"unit": self.unit, "max_rows_per_unit": self.max_rows_per_unit} | placed
