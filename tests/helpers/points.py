# SPDX-License-Identifier: PostgreSQL
"""The table `points` of a cluster, and how models are trained on it."""

from __future__ import annotations

from typing import Any

from pg_dpml import Column, DataSpec, Label, PrivacySpec

FEATURES = 4
N = 2000
COLUMNS = (Column("x", length=FEATURES, lower=-1, upper=1),)
LABELS = {
    "binary": Label("yes", positive="true"),
    "multiclass": Label("kind", classes=("a", "b", "c")),
    "regression": Label("number", lower=-1, upper=1),
}
PRIVACY = PrivacySpec(2.0, 1e-6)


def spec(task: str = "binary", table: str = "points", **more: Any) -> DataSpec:
    return DataSpec(table, LABELS[task], COLUMNS, **more)
