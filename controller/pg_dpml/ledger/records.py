# SPDX-License-Identifier: PostgreSQL
"""The JSON columns `privacy` and `training` of dpml.models, as typed records.

`from_json(record.to_json())` is `record`. A key that is missing in a stored record has the field's default.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from pg_dpml.privacy.guarantee import Guarantee
from pg_dpml.spec.relation import Relation

__all__ = ["PrivacyRecord", "TrainingRecord"]


@dataclass(frozen=True)
class PrivacyRecord:
    """What a stored model protects.

    Attributes
    ----------
    unit : str or None
        Column whose equal values are one unit of privacy; None: every row is one.
    max_rows_per_unit : int
        Most rows of a unit that were used.
    guarantee : Guarantee or None
        None for a model that is not private.
    noise : mapping or None
        The noise's own record; None for a model that is not private.
    """

    unit: str | None = None
    max_rows_per_unit: int = 1
    guarantee: Guarantee | None = None
    noise: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """The record as it is stored."""
        if self.guarantee is None:
            return {"private": False, "unit": self.unit, "max_rows_per_unit": self.max_rows_per_unit}
        return self.guarantee.protects() | {
            "private": True,
            "epsilon": self.guarantee.epsilon,
            "delta": self.guarantee.delta,
            "relation": self.guarantee.relation.value,
            "noise": self.noise,
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> PrivacyRecord:
        """The record that was stored."""
        unit, most = stored.get("unit"), int(stored.get("max_rows_per_unit", 1))
        if "epsilon" not in stored:
            return cls(unit, most)
        relation = Relation(stored["relation"])
        placed_by = stored.get("placed_by")
        guarantee = Guarantee(stored["epsilon"], stored["delta"], relation, unit, most, placed_by)
        return cls(unit, most, guarantee, stored.get("noise"))


@dataclass(frozen=True)
class TrainingRecord:
    """How a stored model was trained.

    Attributes
    ----------
    table_name : str or None
        Schema and name of the training table, as the ledger has them.
    where : str or None
        The public filter.
    n_units : int
        Units of privacy in the table.
    passes : int or None
        Passes taken; None if the number depends on private rows and is therefore not disclosed.
    features : tuple of str or None
        One name a feature, in order; None where a column is sparse, whose names the encoder gives.
    versions : mapping of str to str
        Versions of package, extension and server.
    method : mapping
        What the method adds: everything that fixes its passes.
    tuning : mapping or None
        How the settings were chosen, if they were tuned.
    spending : sequence of mapping
        What a run released and paid choice by choice, where its releases decide about it; else empty.
    dates : mapping of str to str, or None
        Kinds of the columns whose numbers are dates or timestamps (see `DATE_KINDS`), by name; None: the
        model was stored before they were kept.
    """

    table_name: str | None = None
    where: str | None = None
    n_units: int = 0
    passes: int | None = None
    features: tuple[str, ...] | None = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    method: Mapping[str, Any] = field(default_factory=dict)
    tuning: Mapping[str, Any] | None = None
    spending: Sequence[Mapping[str, Any]] = ()
    dates: Mapping[str, str] | None = None

    def to_json(self) -> dict[str, Any]:
        """The record as it is stored; what the method adds stands beside the other keys."""
        stored = {
            "table_name": self.table_name,
            "where": self.where,
            "n_units": self.n_units,
            "passes": self.passes,
            "features": None if self.features is None else list(self.features),
            "versions": dict(self.versions),
        }
        more = {"spending": [dict(one) for one in self.spending]} if self.spending else {}
        tuning = {} if self.tuning is None else {"tuning": dict(self.tuning)}
        dates = {} if self.dates is None else {"dates": dict(self.dates)}
        return stored | dict(self.method) | more | tuning | dates

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> TrainingRecord:
        """The record that was stored."""
        given = dict(stored)
        own = {f.name: given.pop(f.name) for f in fields(cls) if f.name in given and f.name != "method"}
        features = own.get("features", ())
        own["features"] = None if features is None else tuple(features)
        own["spending"] = tuple(own.get("spending", ()))
        return cls(**own, method=given)
