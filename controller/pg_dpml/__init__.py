# SPDX-License-Identifier: PostgreSQL
"""Differentially private machine learning inside PostgreSQL."""

from pg_dpml.errors import (
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
from pg_dpml.spec import Column, DataSpec, Label, PrivacySpec, TrainSpec
from pg_dpml.train import TrainResult, plan, train

__all__ = [
    "Column",
    "DataSpec",
    "DpmlError",
    "Evaluation",
    "GuaranteeError",
    "Label",
    "Plan",
    "PrivacySpec",
    "Relation",
    "RunFailedError",
    "RunInterrupted",
    "SpecError",
    "TrainResult",
    "TrainSpec",
    "UnavailableError",
    "evaluate",
    "plan",
    "predict",
    "train",
]
