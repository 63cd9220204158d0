# SPDX-License-Identifier: PostgreSQL
"""Rows, losses and oracle runs that the tests of the SGD kernel share."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from helpers import oracles, replay
from pg_dpml.kernels import Loss

N_ROWS = 115
N_FEATURES = 13
LAMBDA = 0.02
CLASSES = 3

LOSSES = {
    "logistic": Loss("logistic"),
    "logistic_clipped": Loss("logistic", clip=0.4),
    "huber_svm": Loss("huber_svm", huber_h=0.3),
    "squared": Loss("squared"),
    "squared_clipped": Loss("squared", clip=0.5),
    "softmax": Loss("softmax", n_classes=CLASSES),
}
SCHEDULES = ("constant", "decreasing", "sqrt_decreasing", "strongly_convex", "inverse_sqrt")


class Data(NamedTuple):
    x: npt.NDArray[np.float64]
    y: npt.NDArray[np.float64]
    dense: list[bytes]
    sparse: list[bytes]


def make_data(loss: Loss, n: int = N_ROWS, d: int = N_FEATURES, rows_per_block: int = 9) -> Data:
    """Float32 rows of norm at most 1, half of their features 0, with labels that the loss understands."""
    draw = np.random.default_rng(17)
    x = draw.normal(size=(n, d)) * (draw.random((n, d)) < 0.5)
    x /= np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1.0) * 1.001
    x = x.astype(np.float32).astype(np.float64)
    labels = range(CLASSES) if loss.kind == "softmax" else (-1, 1)
    y = draw.choice(np.array(labels, dtype=np.float64), n)
    parts = [slice(i, i + rows_per_block) for i in range(0, n, rows_per_block)]
    dense = [replay.pack_dense(x[part], y[part]) for part in parts]
    sparse = [pack_sparse(x[part], y[part]) for part in parts]
    return Data(x, y, dense, sparse)


def pack_sparse(x: npt.NDArray[np.float64], y: npt.NDArray[np.float64]) -> bytes:
    row, column = np.nonzero(x)
    row_end = np.searchsorted(row, np.arange(len(x)), side="right")
    return replay.pack_csr(x.shape[1], row_end, column, x[row, column], y)


def make_schedule(kind: str, loss: Loss, lambda_: float = LAMBDA) -> dict[str, Any]:
    return {
        "kind": kind,
        "step_size": 0.7,
        "offset": 3.0,
        "lambda_": lambda_,
        "max_step": 1 / (loss.smoothness + lambda_),
    }


def run_oracle(
    loss: Loss, data: Data, schedule: dict[str, Any], **options: Any
) -> list[npt.NDArray[np.float64]]:
    return oracles.iterates(
        data.x,
        data.y,
        name=loss.kind,
        step=oracles.schedule(**schedule),
        n_outputs=loss.n_classes,
        clip=loss.clip,
        h=loss.huber_h,
        **options,
    )


def assert_close(got: npt.NDArray[np.float64] | None, expected: npt.NDArray[np.float64]) -> None:
    """Relative to the vector: single entries can cancel."""
    assert got is not None
    scale = float(np.max(np.abs(expected)))
    np.testing.assert_allclose(got, expected.reshape(-1), rtol=1e-12, atol=1e-12 * scale)
