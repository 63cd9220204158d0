# SPDX-License-Identifier: PostgreSQL
"""Differentially private machine learning inside PostgreSQL."""

from pg_dpml.compare import Comparison, ComparisonEntry, compare
from pg_dpml.errors import (
    BudgetError,
    DpmlError,
    GuaranteeError,
    RunFailedError,
    RunInterrupted,
    SpecError,
    UnavailableError,
)
from pg_dpml.evaluate import Evaluation, evaluate, predict
from pg_dpml.methods.plan import Plan
from pg_dpml.privacy.relation import Relation
from pg_dpml.spec import Column, DataSpec, Grid, Label, PrivacySpec, TrainSpec
from pg_dpml.train import TrainResult, plan, train
from pg_dpml.tuning import PublicScores, TuneResult, tune

__all__ = [
    "BudgetError",
    "Column",
    "Comparison",
    "ComparisonEntry",
    "DataSpec",
    "DpmlError",
    "Evaluation",
    "Grid",
    "GuaranteeError",
    "Label",
    "Plan",
    "PrivacySpec",
    "PublicScores",
    "Relation",
    "RunFailedError",
    "RunInterrupted",
    "SpecError",
    "TrainResult",
    "TrainSpec",
    "TuneResult",
    "UnavailableError",
    "compare",
    "evaluate",
    "plan",
    "predict",
    "train",
    "tune",
]
