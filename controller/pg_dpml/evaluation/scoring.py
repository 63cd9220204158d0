# SPDX-License-Identifier: PostgreSQL
"""Exact, un-noised errors of finished models on packed rows, by which a mechanism chooses.

The term of a row lies in [0, 1], and that of a zero row is 0 for every model.
Source: privacy/README.md, "Private tuning".
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from pg_dpml.blocks.blocks import Blocks
from pg_dpml.kernels import FloatArray
from pg_dpml.training.job import Result
from pg_dpml.training.plan import Problem

__all__ = ["LARGEST_SQUARED_ERROR", "errors", "rounding"]

LARGEST_WEIGHT = 1e150
"""In magnitude, for a model's errors: then all scores and their squares are finite."""

LARGEST_SQUARED_ERROR = 4.0
"""Largest squared error of a label and a prediction in [-1, 1], where a row's squared error is clamped."""

ROUNDING_BITS = 35


def rounding(task: str, n_rows: int) -> Fraction:
    """Bound on how far `errors` over at most n_rows rows are from their exact sums.

    Numbers of wrong rows are exact. Squared errors, at most 2 a row, are added without compensation over less
    than 2^11 rows and then with compensation, in any order of the workers: the error is below 2^-40 n_rows.
    """
    return Fraction(n_rows, 2**ROUNDING_BITS) if task == "regression" else Fraction(0)


def errors(blocks: Blocks, problem: Problem, models: Sequence[Result]) -> list[float]:
    """Errors of each model, summed over packed rows.

    Parameters
    ----------
    blocks : Blocks
        The rows to predict on.
    problem : Problem
        The problem that the models solve.
    models : sequence of Result
        At most 64.

    Returns
    -------
    list of float
        Classification: rows whose class is predicted wrongly. Regression: sums of squared
        errors in label units [-1, 1], each divided by the largest possible one and clamped to 1.
    """
    if problem.task != "regression":
        # The norm that a whitened model's scores are divided by changes no sign and no order.
        loss: dict[str, Any] = {"loss": "logistic"}
        if problem.n_outputs > 1:
            loss = {"loss": "softmax", "classes": problem.n_outputs}
        return _sums(blocks, [model.weights for model in models], loss | {"errors": True})
    found = [0.0] * len(models)
    clamped = {"loss": "squared", "loss_clip": LARGEST_SQUARED_ERROR / 2.0}
    plain = [i for i, model in enumerate(models) if model.whitening is None]
    if plain:
        for i, error in zip(plain, _sums(blocks, [models[i].weights for i in plain], clamped), strict=True):
            found[i] = error
    for i, model in enumerate(models):
        if model.whitening is not None:
            white = blocks.whitened(model.whitening)
            (found[i],) = _sums(white, [model.weights], clamped)
    # The loss is half the squared error.
    return [error / (LARGEST_SQUARED_ERROR / 2.0) for error in found]


def _sums(blocks: Blocks, weights: Sequence[FloatArray], options: dict[str, Any]) -> list[float]:
    """Summed losses of models of equal shape, in one pass."""
    more = {"models": len(weights), "gradient": False}
    # a model that is not finite is one like any other, and wrong: NaN would hide its errors
    finite = np.clip(np.nan_to_num(np.concatenate(weights)), -LARGEST_WEIGHT, LARGEST_WEIGHT)
    sums = blocks.gradient(finite, options | more)
    assert sums.losses is not None  # there are rows
    return [float(loss) for loss in sums.losses]
