# SPDX-License-Identifier: PostgreSQL
"""Neighbouring tables, and runs on both in one frozen order through the kernels that the server runs.

Rows are kept as packed blocks hold them: float32, of norm at most 1 - 2^-20.
Source: privacy/README.md, "Neighbouring relation" and "Growth".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from helpers import replay
from pg_dpml import kernels
from pg_dpml.kernels import Loss, Schedule
from pg_dpml.privacy.noise import output
from pg_dpml.spec.relation import Relation
from pg_dpml.training.sgd import Sgd

FloatArray = npt.NDArray[np.float64]
Order = npt.NDArray[np.intp]

LOSSES = {
    "logistic": Loss("logistic"),
    "logistic-clipped": Loss("logistic", clip=0.3),
    "huber_svm": Loss("huber_svm", huber_h=0.5),
    "huber_svm-clipped": Loss("huber_svm", clip=0.4),
    "squared-clipped": Loss("squared", clip=0.5),
    "softmax": Loss("softmax", n_classes=3),
    "one-vs-all-clipped": Loss("logistic", n_classes=3, clip=0.3),
    "one-vs-all-huber": Loss("huber_svm", n_classes=3, huber_h=0.5),
}
SCHEDULES = ("constant", "decreasing", "sqrt_decreasing", "strongly_convex", "inverse_sqrt")
LONGEST_ROW = 1.0 - 2.0**-20


@dataclass(frozen=True)
class Table:
    """Encoded rows, shape (n, d), and their labels as the loss wants them, shape (n,).

    `starts`, shape (n,), says which rows begin a unit of privacy; an order keeps units together.
    """

    x: FloatArray
    y: FloatArray
    starts: npt.NDArray[np.bool_] | None = None

    def change(self, row: int | slice, x: npt.ArrayLike, y: npt.ArrayLike) -> Table:
        """The neighbour in which one row, or one unit's rows, are others."""
        other = Table(self.x.copy(), self.y.copy(), self.starts)
        other.x[row], other.y[row] = x, y
        return other


def pack(
    form: str, x: npt.ArrayLike, y: npt.ArrayLike, starts: npt.ArrayLike | None, ends: Sequence[int]
) -> list[bytes]:
    """Blocks, dense or csr, each of the rows from one of the `ends` to the next; the last end is n."""
    blocks = []
    for first, end in zip([0, *ends[:-1]], ends, strict=True):
        rows, labels = np.asarray(x)[first:end], np.asarray(y)[first:end]
        own = None if starts is None else np.asarray(starts)[first:end]
        if form == "dense":
            blocks.append(replay.pack_dense(rows, labels, own))
        else:
            row, column = np.nonzero(rows)
            row_end = np.searchsorted(row, np.arange(len(rows)), side="right")
            blocks.append(replay.pack_csr(rows.shape[1], row_end, column, rows[row, column], labels, own))
    return blocks


def make_run(
    loss: Loss,
    kind: str,
    *,
    n_rows: int,
    lambda_: float = 0.0,
    step_size: float = 0.1,
    exponent: float = 0.5,
    longest_step: float = 1.0,
    radius: float = math.inf,
    batch_size: int = 1,
    passes: int = 1,
    average_share: float = 0.0,
    fresh_order: bool = False,
    max_rows_per_unit: int | None = None,
) -> Sgd:
    """A run; steps are capped by longest_step / (beta + lambda), and longest_step is at most 2."""
    steps = passes * math.ceil(n_rows / batch_size)
    averaged = math.ceil(average_share * steps)
    return Sgd(
        loss=loss,
        schedule=Schedule(
            kind,
            step_size=step_size,
            offset=n_rows**exponent,
            lambda_=lambda_,
            max_step=longest_step / ((max_rows_per_unit or 1) * loss.smoothness + lambda_),
        ),
        exponent=exponent,
        lambda_=lambda_,
        radius=radius,
        batch_size=batch_size,
        passes=passes,
        average_from=steps - averaged + 1 if averaged else 0,
        fresh_order=fresh_order,
        max_rows_per_unit=max_rows_per_unit,
    )


def final_model(run: Sgd, table: Table, orders: Sequence[Order], *, as_rows: bool = False) -> FloatArray:
    """The un-noised vector a run would release; one order for every pass."""
    weights: FloatArray | None = None
    average: FloatArray | None = None
    steps = 0
    for order in orders:
        start = {
            "loss": run.loss,
            "schedule": run.schedule,
            "lambda_": run.lambda_,
            "radius": run.radius,
            "batch_size": run.batch_size,
            "weights": weights,
            "average": average,
            "steps": steps,
            "average_from": run.average_from,
            "by_unit": run.max_rows_per_unit is not None,
        }
        x, y = table.x[order], table.y[order]
        starts = None if table.starts is None else table.starts[order]
        if as_rows:
            epoch = replay.sgd_rows(x, y, **start)
        else:
            half = len(order) // 2  # two blocks, the border inside a batch as it may be
            blocks = [
                replay.pack_dense(x[part], y[part], None if starts is None else starts[part])
                for part in (slice(half), slice(half, None))
            ]
            epoch = replay.sgd_blocks(blocks, n_features=x.shape[1], **start)
        weights, average, steps = epoch.weights, epoch.average, epoch.steps
    assert weights is not None
    if run.average_from:
        assert average is not None
        return average
    return weights


def distance(run: Sgd, one: Table, other: Table, orders: Sequence[Order], *, as_rows: bool = False) -> float:
    """How far two tables' models are apart when both are read in the same orders."""
    models = [final_model(run, table, orders, as_rows=as_rows) for table in (one, other)]
    return float(np.linalg.norm(models[0] - models[1]))


def bound(run: Sgd, n_rows: int, relation: Relation, rows_per_unit: int = 1) -> kernels.Sensitivity:
    """The product's sensitivity of a run; `n_rows` counts units."""
    return kernels.sensitivity(
        schedule=run.schedule,
        smoothness=run.smoothness,
        lambda_=run.lambda_,
        gradient_change=rows_per_unit * relation.gradient_change(run.loss.lipschitz),
        n_rows=n_rows,
        passes=run.passes,
        batch_size=run.batch_size,
        average_from=run.average_from,
        fresh_order=run.fresh_order,
    )


def rounding(run: Sgd, found: kernels.Sensitivity, n_weights: int) -> float:
    """The product's allowance for float64 arithmetic, in the distance of two neighbours' models."""
    return output.rounding_error(
        steps=found.steps,
        step_sum=found.step_sum,
        step_max=found.step_max,
        lipschitz=run.loss.lipschitz,
        smoothness=run.smoothness,
        lambda_=run.lambda_,
        radius=run.radius,
        batch_size=run.batch_size,
        n_weights=n_weights,
    )


def far_rows(n_rows: int, label: float = 1e6) -> Table:
    """Rows (1, 0) whose labels no score comes near: squared loss clipped at C has gradient -C or +C at each.

    The labels alternate, so that the model stays near zero; the Hessian is zero everywhere.
    """
    x = np.zeros((n_rows, 2))
    x[:, 0] = 1.0
    return Table(x, np.where(np.arange(n_rows) % 2 == 0, label, -label))


def worst_pair(table: Table, row: int, relation: Relation) -> tuple[Table, Table]:
    """Two neighbours of far rows whose models part as far as the bound allows."""
    up = table.change(row, table.x[row], abs(table.y[row]))
    if relation is Relation.ADD_REMOVE:
        return up, table.change(row, np.zeros_like(table.x[row]), 0.0)
    return up, table.change(row, table.x[row], -abs(table.y[row]))
