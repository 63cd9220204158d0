# SPDX-License-Identifier: PostgreSQL
"""What a run will do and what it will cost, fixed before any row is read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pg_dpml.errors import SpecError
from pg_dpml.kernels import Loss, Schedule
from pg_dpml.privacy.mechanisms import ReleaseNoise
from pg_dpml.privacy.relation import Relation
from pg_dpml.spec import TrainSpec

__all__ = ["Guarantee", "Plan", "Problem", "Sgd", "choose_loss", "make_sgd"]

LOSS_OF_TASK = {
    "binary": ("logistic", "huber_svm"),
    "multiclass": ("softmax", "logistic", "huber_svm"),
    "regression": ("squared",),
}
"""Losses of each task, the default first."""


@dataclass(frozen=True)
class Problem:
    """The public numbers of a training problem.

    Attributes
    ----------
    n_rows : int
        n, the size of the table, public; units, where a unit of privacy is declared.
    n_features : int
        d, the intercept included.
    n_outputs : int
        K, the number of classes, of a multiclass problem; else 1.
    task : str
        "binary", "multiclass" or "regression".
    unit : str or None
        Column whose equal values are one unit of privacy; None: every row is one.
    max_rows_per_unit : int
        Rows used of a unit, each of which may move a gradient by D.
    """

    n_rows: int
    n_features: int
    n_outputs: int
    task: str
    unit: str | None = None
    max_rows_per_unit: int = 1

    @property
    def n_weights(self) -> int:
        """Length of the weight vector."""
        return self.n_outputs * self.n_features


@dataclass(frozen=True)
class Sgd:
    """Passes of mini-batch SGD, as the aggregate `dpml.sgd_epoch` runs them.

    Attributes
    ----------
    loss : Loss
    schedule : Schedule
    exponent : float
        c of the schedule's offset n^c.
    lambda_, radius : float
        L2 regulariser and radius of the ball; infinity for none.
    batch_size, passes : int
    average_from : int
        First step whose iterate enters the average; 0 releases the last iterate.
    fresh_order : bool
        A new order of the rows every pass.
    max_rows_per_unit : int or None
        m, where batches count units of privacy of up to m rows; None: rows.
    """

    loss: Loss
    schedule: Schedule
    exponent: float
    lambda_: float
    radius: float
    batch_size: int
    passes: int
    average_from: int
    fresh_order: bool
    max_rows_per_unit: int | None

    @property
    def smoothness(self) -> float:
        """Bound on the data Hessian of a step: m beta, as a batch of b units has up to b m rows.

        Source: privacy/README.md, "Unit of privacy".
        """
        return (self.max_rows_per_unit or 1) * self.loss.smoothness

    def steps(self, n_rows: int, passes: int) -> int:
        """Steps of so many passes: passes ceil(n / b)."""
        return passes * math.ceil(n_rows / self.batch_size)

    def options(self, n_rows: int) -> dict[str, Any]:
        """The aggregate's options; only public numbers."""
        options: dict[str, Any] = {
            "loss": self.loss.kind,
            "lambda": self.lambda_,
            "batch_size": self.batch_size,
            "schedule": self.schedule.kind,
            "rows": n_rows,
        }
        if self.max_rows_per_unit is not None:
            options["units"] = self.max_rows_per_unit
        if self.loss.n_classes > 1:
            options["classes"] = self.loss.n_classes
        if self.loss.kind == "huber_svm":
            options["huber_h"] = self.loss.huber_h
        if self.schedule.kind in ("constant", "inverse_sqrt"):
            options["step_size"] = self.schedule.step_size
        if self.schedule.kind in ("decreasing", "sqrt_decreasing"):
            options["exponent"] = self.exponent
        if math.isfinite(self.loss.clip):
            options["clip"] = self.loss.clip
        if math.isfinite(self.radius):
            options["radius"] = self.radius
        if self.average_from > 0:
            options["average_from"] = self.average_from
        return options


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
    """

    epsilon: float
    delta: float
    relation: Relation
    unit: str | None = None
    max_rows_per_unit: int = 1


@dataclass(frozen=True)
class Plan:
    """One run, decided from public numbers alone.

    Attributes
    ----------
    method : str
    problem : Problem
    sgd : Sgd
    guarantee : Guarantee or None
        None stamps the run as not private.
    noise : ReleaseNoise or None
    tolerance : float or None
        Of the convergence test of non-private runs.
    warnings : tuple of str
    """

    method: str
    problem: Problem
    sgd: Sgd
    guarantee: Guarantee | None
    noise: ReleaseNoise | None
    tolerance: float | None
    warnings: tuple[str, ...] = ()

    @property
    def private(self) -> bool:
        """False for baselines."""
        return self.guarantee is not None


def choose_loss(problem: Problem, spec: TrainSpec, default_clips: Mapping[str, float]) -> Loss:
    """The loss of a run, its derivative clipped by default as `default_clips` says (else not).

    Raises
    ------
    SpecError
        If the loss does not fit the task, or softmax is given a clip.
    """
    allowed = LOSS_OF_TASK[problem.task]
    kind = spec.loss or allowed[0]
    if kind not in allowed:
        raise SpecError(f"loss for a {problem.task} label must be {' or '.join(allowed)}, not {kind}")
    if kind == "softmax":
        if spec.clip is not None:
            raise SpecError("clip does not go with loss = softmax: leave it out")
        return Loss(kind, n_classes=problem.n_outputs)
    clip = spec.clip or default_clips.get(kind, math.inf)
    return Loss(kind, n_classes=problem.n_outputs, huber_h=spec.huber_h, clip=clip)


def make_sgd(
    problem: Problem,
    spec: TrainSpec,
    *,
    loss: Loss,
    schedule: str,
    step_size: float,
    batch_size: int,
    passes: int,
) -> Sgd:
    """The passes of a run; the spec's own choices win over the method's defaults given here.

    Parameters
    ----------
    problem : Problem
    spec : TrainSpec
    loss : Loss
    schedule : str
        Default schedule.
    step_size : float
        Default step size of "constant" and "inverse_sqrt", in (0, inf).
    batch_size, passes : int
        As decided, >= 1.

    Raises
    ------
    SpecError
        For strongly convex steps without a regulariser.

    Notes
    -----
    Every step is capped by 1 / (beta + lambda).
    Source: privacy/README.md, "Schedules".
    """
    lambda_ = spec.lambda_ or 0.0
    kind = spec.schedule or schedule
    if kind == "strongly_convex" and lambda_ == 0.0:
        raise SpecError("schedule = strongly_convex needs lambda > 0")
    steps = passes * math.ceil(problem.n_rows / batch_size)
    return Sgd(
        loss=loss,
        schedule=Schedule(
            kind,
            step_size=spec.step_size or step_size,
            offset=float(max(problem.n_rows, 1)) ** spec.exponent,
            lambda_=lambda_,
            max_step=1.0 / (problem.max_rows_per_unit * loss.smoothness + lambda_),
        ),
        exponent=spec.exponent,
        lambda_=lambda_,
        radius=spec.radius or math.inf,
        batch_size=batch_size,
        passes=passes,
        average_from=_average_start(spec.average or "none", spec.tail, steps),
        fresh_order=spec.fresh_order,
        max_rows_per_unit=problem.max_rows_per_unit if problem.unit is not None else None,
    )


def _average_start(average: str, tail: float, steps: int) -> int:
    """First averaged step for "none", "all" or the last `tail` share of the steps; 0 for none."""
    if average == "none" or steps == 0:
        return 0
    share = 1.0 if average == "all" else tail
    return steps - max(1, math.ceil(share * steps)) + 1
