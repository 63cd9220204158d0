# SPDX-License-Identifier: PostgreSQL
"""Options that several methods share: one domain, one sentence and one default each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pg_dpml.errors import SpecError
from pg_dpml.kernels import DEFAULT_HUBER_H, LOSS_KINDS
from pg_dpml.training.options import HUGE, TINY, Choice, Flag, Options, Real, Whole, option

__all__ = [
    "ClippedOptions",
    "LossOptions",
    "RegularisedOptions",
    "SgdOptions",
    "average",
    "batch_size",
    "exponent",
    "fresh_order",
    "lambda_",
    "loss",
    "momentum",
    "passes",
    "radius",
    "refuse_unused_step_options",
    "refuse_unused_tail",
    "sampling",
    "schedule",
    "step_size",
    "tail",
    "update_clip",
]


def loss() -> Any:
    """Which loss is minimised."""
    return option(
        Choice(tuple(LOSS_KINDS)),
        "Loss that is minimised.",
        "by the label: logistic for two classes, softmax for several, squared for a number",
    )


def lambda_(otherwise: str) -> Any:
    """The regulariser."""
    return option(Real(0.0, 1e6), "L2 regulariser, on every coefficient and the intercept.", otherwise)


def passes(otherwise: str = "by method") -> Any:
    """Number of passes."""
    return option(Whole(10**6), "Passes over the rows.", otherwise)


def batch_size() -> Any:
    """Size of a batch."""
    return option(Whole(2**31 - 1), "Rows, or units of privacy, in a step.", "by method")


def schedule() -> Any:
    """Kind of the step sizes."""
    kinds = ("constant", "decreasing", "sqrt_decreasing", "strongly_convex", "inverse_sqrt")
    return option(Choice(kinds), "How the step size falls.", "by method and lambda")


def step_size() -> Any:
    """Length of a step."""
    return option(
        Real(TINY, HUGE),
        "Step of constant and inverse_sqrt; capped by 1/(beta + lambda) where steps carry no noise.",
        "by method",
    )


def momentum() -> Any:
    """Share of the last step that is taken again."""
    return option(Real(0.0, 1.0, below=True), "Share of the last step that is taken again.", "by method")


def radius() -> Any:
    """Radius of the ball that models are projected on."""
    return option(Real(TINY, HUGE), "Keep the model in a ball of this radius.", "by method")


def average() -> Any:
    """Which iterates are released."""
    return option(
        Choice(("none", "all", "tail")),
        "Release the last iterate, the mean of all, or the mean of the last --tail share.",
        "tail in dp-gd, dp-sgd, dp-scd and seq-dp-scd, else none",
    )


def tail() -> Any:
    """Share of the iterates that are averaged."""
    return option(Real(0.0, 1.0, above=True), "Share of the iterates that --average tail takes.", "by method")


def fresh_order() -> Any:
    """Whether the rows are shuffled before every pass."""
    return option(Flag(), "Shuffle before every pass.", default=False)


def sampling() -> Any:
    """How a unit comes into its batches."""
    return option(
        Choice(("shuffled", "poisson", "allocation")),
        "How batches are drawn: cut by count from a shuffled pass, by a coin for every unit and step, or by "
        "one batch for every unit and pass.",
        "shuffled in scs13; in dp-sgd allocation with one order for all passes, where that needs no more "
        "noise than poisson, else poisson",
    )


def exponent() -> Any:
    """Power of n in the offset of the decreasing schedules."""
    return option(Real(0.0, 1.0), "c of n^c in the decreasing schedules.", default=0.5)


def update_clip() -> Any:
    """Bound on the updates of coordinate descent."""
    return option(
        Real(TINY, HUGE),
        "The most by which an update of coordinate descent changes its dual, or its coordinate.",
        "by method, epsilon, passes and, in primal-dp-scd, features",
    )


@dataclass(frozen=True)
class LossOptions(Options):
    """Which loss is minimised."""

    loss: str | None = loss()
    huber_h: float = option(
        Real(1e-270, 1e270), "Half width of the bend of the Huber SVM.", default=DEFAULT_HUBER_H
    )


@dataclass(frozen=True)
class ClippedOptions(LossOptions):
    """Options of methods that bound the derivative of the loss."""

    clip: float | None = option(
        Real(0.0, HUGE, above=True),
        "Bound on the derivative of the loss by the score; for softmax, in methods that add noise to "
        "gradients, on the norm of a row's derivatives.",
        "by method and loss",
    )


@dataclass(frozen=True)
class RegularisedOptions(ClippedOptions):
    """Options of methods with a regulariser."""

    lambda_: float | None = lambda_("0")


@dataclass(frozen=True)
class SgdOptions(RegularisedOptions):
    """Options of passes of SGD whose steps carry no noise."""

    passes: int | None = passes()
    batch_size: int | None = batch_size()
    schedule: str | None = schedule()
    step_size: float | None = step_size()
    exponent: float = exponent()
    radius: float | None = radius()
    average: str | None = average()
    tail: float | None = tail()
    fresh_order: bool = fresh_order()


def refuse_unused_tail(tail: float | None, average: str) -> None:
    """Refuse a tail that the average does not use: it would change nothing.

    Raises
    ------
    SpecError
    """
    if tail is not None and average != "tail":
        raise SpecError(
            f"tail belongs to average = tail, not to {average}: leave tail out, or give average = tail"
        )


def refuse_unused_step_options(options: Options, schedule: str) -> None:
    """Refuse a step size or an exponent that the schedule does not use: it would change nothing.

    Raises
    ------
    SpecError
    """
    users = {"step_size": ("constant", "inverse_sqrt"), "exponent": ("decreasing", "sqrt_decreasing")}
    for name, schedules in users.items():
        if name in options.given() and schedule not in schedules:
            raise SpecError(
                f"{name} belongs to schedule {' or '.join(schedules)}, not to {schedule}: leave {name} out, "
                "or give schedule"
            )
