# SPDX-License-Identifier: PostgreSQL
"""Differentially private machine learning inside PostgreSQL."""

from pg_dpml.blocks.projection import projection_matrix
from pg_dpml.errors import (
    BudgetError,
    DpmlError,
    GuaranteeError,
    RunFailedError,
    RunInterrupted,
    SpecError,
    UnavailableError,
)
from pg_dpml.evaluation.evaluate import Evaluation, evaluate, predict
from pg_dpml.runs.compare import Comparison, ComparisonEntry, compare
from pg_dpml.runs.grid import Grid
from pg_dpml.runs.public_scores import PublicScores
from pg_dpml.runs.train import TrainResult, plan, train
from pg_dpml.runs.tuning import TuneResult, tune
from pg_dpml.spec.columns import Column, Label
from pg_dpml.spec.data import DataSpec
from pg_dpml.spec.privacy import PrivacySpec
from pg_dpml.spec.relation import Relation
from pg_dpml.training.plan import Plan
from pg_dpml.training.spec import TrainSpec

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
    "projection_matrix",
    "train",
    "tune",
]
