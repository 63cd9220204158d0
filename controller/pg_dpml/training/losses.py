# SPDX-License-Identifier: PostgreSQL
"""The loss of a run, chosen by its task and clipped."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pg_dpml.errors import SpecError
from pg_dpml.kernels import Loss
from pg_dpml.training.plan import Problem
from pg_dpml.training.shared_options import ClippedOptions, LossOptions

__all__ = [
    "CLIP_AT_ZERO",
    "LOSS_OF_TASK",
    "Clipped",
    "choose_loss",
    "clipped_at_zero",
    "clipped_loss",
    "loss_at_zero",
    "loss_options",
    "losses_of",
    "require_one_score",
]


@dataclass(frozen=True)
class LossUse:
    """What training does with a loss.

    Attributes
    ----------
    tasks : tuple of str
        "binary", "multiclass" or "regression".
    clip_at_zero : float
        Default clip of `clipped_at_zero`, in (0, inf]; infinity for none beyond the loss's own.
    widest_clip : float
        Bound on the derivative at scores in [-1, 1] for a loss without one, or the loss's own.
    """

    tasks: tuple[str, ...]
    clip_at_zero: float = math.inf
    widest_clip: float = math.inf


LOSSES = {
    "softmax": LossUse(("multiclass",)),
    "logistic": LossUse(("binary", "multiclass"), clip_at_zero=0.5, widest_clip=1.0),
    "huber_svm": LossUse(("binary", "multiclass")),
    "hinge": LossUse(("binary",)),
    "squared": LossUse(("regression",), clip_at_zero=0.5, widest_clip=2.0),
}
"""Every loss, the default of a task before others of it; squared has no bound but its clip."""


def losses_of(*tasks: str, smooth: bool = True) -> Mapping[str, tuple[str, ...]]:
    """Losses of each of some tasks, the default first; with `smooth` those that have a gradient."""
    return {
        task: tuple(
            kind
            for kind, use in LOSSES.items()
            if task in use.tasks and not (smooth and math.isinf(_smoothness(kind)))
        )
        for task in tasks
    }


def _smoothness(kind: str) -> float:
    return Loss(kind, n_classes=2 if kind == "softmax" else 1).smoothness


LOSS_OF_TASK = losses_of("binary", "multiclass", "regression")
"""Losses of each task for a method that needs gradients."""

CLIP_AT_ZERO = {kind: use.clip_at_zero for kind, use in LOSSES.items()}
"""Clips of the derivative, by loss, that leave the gradient of the zero model as it is."""


@dataclass(frozen=True)
class Clipped:
    """A loss and what its gradients are bounded by.

    Attributes
    ----------
    loss : Loss
    gradient_clip : float
        Clip of the norm of a row's derivatives in its scores; infinity for none beyond the loss's own.
    row_bound : float
        Bound on the norm of the gradient of a row.
    bound : float
        Bound on the norm of the gradient of all rows of a unit. Source: privacy/README.md, "Unit of privacy".
    """

    loss: Loss
    gradient_clip: float
    row_bound: float
    bound: float


def choose_loss(
    problem: Problem,
    options: LossOptions,
    default_clips: Mapping[str, float],
    clip: float | None = None,
    losses: Mapping[str, tuple[str, ...]] = LOSS_OF_TASK,
) -> Loss:
    """The loss of a run, its derivative clipped at `clip`, or by default as `default_clips` says (else not).

    Raises
    ------
    SpecError
        If the loss does not fit the task, or softmax is given a clip.
    """
    allowed = losses[problem.task]
    kind = options.loss or allowed[0]
    if kind not in allowed:
        raise SpecError(f"loss for a {problem.task} label must be {' or '.join(allowed)}, not {kind}")
    if kind != "huber_svm" and "huber_h" in options.given():
        raise SpecError(f"huber_h does not go with loss = {kind}: leave it out, or take loss = huber_svm")
    if kind == "softmax":
        if clip is not None:
            raise SpecError("clip does not go with loss = softmax: leave it out")
        return Loss(kind, n_classes=problem.n_outputs)
    clip = clip or default_clips.get(kind, math.inf)
    return Loss(kind, n_classes=problem.n_outputs, huber_h=options.huber_h, clip=clip)


def clipped_loss(
    problem: Problem,
    options: ClippedOptions,
    default_clips: Mapping[str, float],
    softmax_clip: float = math.inf,
) -> Clipped:
    """The loss of a method that adds noise to gradients, and the bounds on its gradients.

    Parameters
    ----------
    problem : Problem
    options : ClippedOptions
        Its clip is that of softmax's derivatives, or of the one derivative of another loss.
    default_clips : mapping
        As in `choose_loss`.
    softmax_clip : float
        Default bound on the norm of softmax's derivatives; infinity for none.

    Raises
    ------
    SpecError
        If the loss does not fit the task.
    """
    softmax = (options.loss or LOSS_OF_TASK[problem.task][0]) == "softmax"
    loss = choose_loss(problem, options, default_clips, None if softmax else options.clip)
    gradient_clip = (options.clip or softmax_clip) if softmax else math.inf
    row_bound = min(loss.lipschitz, gradient_clip)
    return Clipped(loss, gradient_clip, row_bound, problem.max_rows_per_unit * row_bound)


def clipped_at_zero(problem: Problem, options: ClippedOptions, widening: float = 1.0) -> Clipped:
    """As `clipped_loss`, clipped by default at the gradient of the zero model: no first step is shortened.

    Parameters
    ----------
    problem : Problem
    options : ClippedOptions
    widening : float
        What the default clip is multiplied by, at least 1; it stays below the loss's own bound.
    """
    clips = {kind: min(widening * use.clip_at_zero, use.widest_clip) for kind, use in LOSSES.items()}
    softmax = min(widening * math.sqrt(1.0 - 1.0 / problem.n_outputs), math.sqrt(2.0))
    return clipped_loss(problem, options, clips, softmax)


def require_one_score(method: str, problem: Problem, others: str) -> None:
    """Refuse a label of several classes, for a method whose models have one score.

    Parameters
    ----------
    method : str
    problem : Problem
    others : str
        Methods that take such a label.

    Raises
    ------
    SpecError
    """
    if problem.task == "multiclass":
        raise SpecError(
            f"method = {method} takes labels of two classes, or numbers, not several classes: take "
            f"method = {others}"
        )


def loss_at_zero(loss: Loss) -> float:
    """Loss of a row with a label of size 1 at scores of 0, of all classes together."""
    return math.log(loss.n_classes) if loss.kind == "softmax" else loss.n_classes * loss.value(0.0, 1.0)


def loss_options(loss: Loss, gradient_clip: float = math.inf) -> dict[str, Any]:
    """A loss, and a bound on the norm of its derivatives in a row's scores, as options of an aggregate."""
    options: dict[str, Any] = {"loss": loss.kind}
    if loss.n_classes > 1:
        options["classes"] = loss.n_classes
    if loss.kind == "huber_svm":
        options["huber_h"] = loss.huber_h
    if math.isfinite(loss.clip):
        options["clip"] = loss.clip
    if math.isfinite(gradient_clip):
        options["gradient_clip"] = gradient_clip
    return options
