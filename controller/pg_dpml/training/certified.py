# SPDX-License-Identifier: PostgreSQL
"""The minimiser of the regularised loss over packed rows, certified by the norm of its gradient.

F(w) = (1/n) sum of the rows' losses + lambda/2 ||w||^2, n units of privacy, to which a method may add
a linear term <b, w>. With ||grad F(w)|| <= tau the answer lies within tau / lambda of the one minimiser,
whatever the rows and however it was found.
Source: privacy/README.md, "Certified minimiser".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pg_dpml.errors import GuaranteeError
from pg_dpml.kernels import FOLD_ROWS, MAX_GRAM_FEATURES, FloatArray, Loss
from pg_dpml.training.job import Job
from pg_dpml.training.losses import loss_at_zero, loss_options
from pg_dpml.training.minimise import Goal, minimise
from pg_dpml.training.plan import Problem

__all__ = ["Certified", "Objective", "certify", "make_certified"]

SMALLEST_GOAL = 1e-140
"""Of a gradient's norm, whose square float64 still tells from zero."""

LARGEST_RADIUS = 1e100
"""Of the answer: far beyond it float64 cannot square a norm, and no search would end."""

DEFAULT_SHARE = 0.01
"""tau = 0.01 D / n makes the noise 2 % larger than the exact minimiser would need."""

PLAIN_ROWS = 2 * FOLD_ROWS
"""Most rows between two compensated additions of dpml.gradient: twice DPML_FOLD_ROWS of kernels/sums.h."""

MOST_FEATURES_OF_HESSIAN = MAX_GRAM_FEATURES
"""Limit of dpml.gram."""

_ULP = 2.0**-52
_NORM_ROUNDING = 2.0**-20
"""Far above the rounding of a norm of up to 2^31 numbers."""


@dataclass(frozen=True)
class Objective:
    """F of one run, by full passes.

    Attributes
    ----------
    loss : Loss
    lambda_ : float
        In [0, inf).
    max_rows_per_unit : int
        m: the losses are divided by the number of units, each of up to m rows.
    linear_norm : float
        B: bound on the norm of b, in [0, inf); 0 where there is no linear term.
    """

    loss: Loss
    lambda_: float
    max_rows_per_unit: int
    linear_norm: float = 0.0

    @property
    def smoothness(self) -> float:
        """Bound on the Hessian, m beta + lambda."""
        return self.max_rows_per_unit * self.loss.smoothness + self.lambda_

    @property
    def largest_minimiser(self) -> float:
        """Bound on the norm of the minimiser, for rows of norm at most 1 and numbers to predict in [-1, 1].

        lambda ||w*|| = ||mean gradient + b|| <= m L + B, and lambda/2 ||w*||^2 - B ||w*|| <= F(w*) <= F(0).
        """
        if self.lambda_ == 0.0:
            return math.inf
        linear, m = self.linear_norm, self.max_rows_per_unit
        return min(
            (m * self.loss.lipschitz + linear) / self.lambda_,
            linear / self.lambda_
            + math.hypot(linear / self.lambda_, math.sqrt(2.0 * m * loss_at_zero(self.loss) / self.lambda_)),
        )

    def rounding(self, norm: float, n_features: int) -> float:
        """Bound on the error of a gradient computed at weights of at most a norm.

        Parameters
        ----------
        norm : float
            W, in [0, inf).
        n_features : int
            d, >= 1.

        Returns
        -------
        float
            fp = 2^-52 [m beta ((d + K + 8) W + 4 (1 + h)) + m L (2048 + K + 32) + 16 (m beta + lambda) W
            + 4 B], the term 4 (1 + h) for the Huber SVM only.

        Notes
        -----
        Source: privacy/README.md, "Certified minimiser".
        """
        n_classes, m = self.loss.n_classes, self.max_rows_per_unit
        bend = 4.0 * (1.0 + self.loss.huber_h) if self.loss.kind == "huber_svm" else 0.0
        scores = (n_features + n_classes + 8) * norm + bend
        return _ULP * (
            m * self.loss.smoothness * scores
            + m * self.loss.lipschitz * (PLAIN_ROWS + n_classes + 32)
            + 16.0 * self.smoothness * norm
            + 4.0 * self.linear_norm
        )

    def record(self, n_units: int) -> dict[str, Any]:
        """Loss, lambda and what the losses are divided by, as a JSON-ready mapping."""
        more: dict[str, Any] = {"lambda": self.lambda_, "rows": n_units}
        if self.max_rows_per_unit > 1:
            more["max_rows_per_unit"] = self.max_rows_per_unit
        return loss_options(self.loss) | more

    def minimise(self, job: Job, goal: Goal, linear: FloatArray | None = None) -> tuple[FloatArray, int]:
        """Minimise over the job's packed rows, from zero; un-noised weights travel by COPY.

        Parameters
        ----------
        job : Job
        goal : Goal
        linear : ndarray of shape (n_weights,) or None
            b of the linear term, which stays in this process.

        Returns
        -------
        weights : ndarray of shape (n_weights,)
            Un-noised.
        passes : int
            Passes taken.
        """
        problem = job.plan.problem
        zero = np.zeros(problem.n_weights)
        constant = zero if linear is None else linear
        if problem.n_units == 0:
            return zero, 0
        options = loss_options(self.loss)
        only_gradient = options | {"losses": False}

        def gradient(weights: FloatArray) -> FloatArray:
            sums = job.gradient(weights, only_gradient)
            assert sums.gradient is not None  # there are rows
            return sums.gradient / problem.n_units + self.lambda_ * weights + constant

        def hessian(weights: FloatArray) -> FloatArray:
            mean = job.blocks.hessian(weights, options) / problem.n_units
            return mean + self.lambda_ * np.eye(len(weights))

        job.report("minimise", 0, 1)  # no count on the way: it depends on the rows
        with np.errstate(all="ignore"):  # so would a warning
            found = minimise(
                gradient,
                zero,
                goal,
                convexity=self.lambda_,
                smoothness=self.smoothness,
                hessian=hessian if self._has_hessian(problem) else None,
            )
        job.report("minimise", 1, 1)
        return found

    def _has_hessian(self, problem: Problem) -> bool:
        return self.loss.n_classes == 1 and problem.n_features <= MOST_FEATURES_OF_HESSIAN


@dataclass(frozen=True)
class Certified:
    """Passes until the gradient is certified to be small; how many depends on the rows, so nobody is told.

    Attributes
    ----------
    objective : Objective
        With lambda > 0.
    gradient_norm : float
        tau: bound on the norm of the exact gradient at the answer.
    rounding : float
        fp: of a gradient computed at the answer.
    radius : float
        W: bound on the norm of the answer.
    """

    objective: Objective
    gradient_norm: float
    rounding: float
    radius: float

    @property
    def loss(self) -> Loss:
        """The loss that is minimised."""
        return self.objective.loss

    @property
    def passes(self) -> None:
        """Not fixed beforehand, and never shown."""
        return None

    @property
    def goal(self) -> Goal:
        """The certificate: computed norm + fp <= tau."""
        return Goal((self.gradient_norm - self.rounding) * (1.0 - _NORM_ROUNDING), self.radius)

    def sensitivity(self, gradient_change: float, n_units: int) -> float:
        """L2 sensitivity of the answer, D / (lambda n) + 2 tau / lambda.

        Parameters
        ----------
        gradient_change : float
            D of one unit of privacy.
        n_units : int
            n > 0, units of privacy.

        Notes
        -----
        Source: privacy/README.md, "Certified minimiser".
        """
        return (gradient_change / n_units + 2.0 * self.gradient_norm) / self.objective.lambda_

    def record(self, n_units: int) -> dict[str, Any]:
        """Everything that fixes the answer, as a JSON-ready mapping of public numbers."""
        return {
            "solver": "certified",
            "options": self.objective.record(n_units),
            "gradient_norm": self.gradient_norm,
        }

    def lines(self) -> Sequence[tuple[str, str]]:
        """Headings and texts that describe the passes."""
        linear = " + <b, w>, b drawn at random" if self.objective.linear_norm > 0.0 else ""
        return (
            (
                "Passes",
                f"until the norm of the gradient is certified to be at most {self.gradient_norm:.3g}, which "
                "every table reaches; how many that takes depends on the rows and is not told",
            ),
            (
                "Solver",
                f"certified minimiser of the mean loss + {self.objective.lambda_:g}/2 ||w||^2{linear}",
            ),
        )


def make_certified(problem: Problem, objective: Objective, gradient_change: float) -> Certified:
    """The certificate of a run whose answer is released with noise for neighbours' minimisers.

    Parameters
    ----------
    problem : Problem
    objective : Objective
        With lambda > 0.
    gradient_change : float
        D of one unit of privacy.

    Returns
    -------
    Certified
        As of `certify`, with tau = 0.01 D / n where float64 can reach that.
    """
    wanted = DEFAULT_SHARE * gradient_change / max(problem.n_units, 1)
    return certify(problem, objective, wanted, "take a larger lambda, or solver = sgd")


def certify(problem: Problem, objective: Objective, wanted: float, advice: str) -> Certified:
    """Fix the certificate of a private run from public numbers.

    Parameters
    ----------
    problem : Problem
    objective : Objective
        With lambda > 0.
    wanted : float
        tau, unless rounding alone asks for more; in [0, inf).
    advice : str
        What makes the rounding smaller.

    Returns
    -------
    Certified

    Raises
    ------
    GuaranteeError
        If lambda is so small that rounding alone could keep a gradient from being small, or a number of the
        search could leave float64.

    Notes
    -----
    tau = 4 (1 + sqrt kappa) fp where that is more than what is wanted, kappa = (m beta + lambda) / lambda:
    what the last method of `minimise` reaches for every table. W = ||w*|| + tau / lambda, so that fp
    is linear in tau.
    Source: privacy/README.md, "Certified minimiser".
    """
    lambda_ = objective.lambda_
    head_room = 4.0 * (1.0 + math.sqrt(objective.smoothness / lambda_))
    largest = objective.largest_minimiser
    at_largest = head_room * objective.rounding(largest, problem.n_features)
    by_tau = head_room * (
        objective.rounding(1.0, problem.n_features) - objective.rounding(0.0, problem.n_features)
    )
    if by_tau > 0.5 * lambda_:
        raise GuaranteeError(
            f"lambda = {lambda_:g} is too small for a certified minimiser in float64: {advice}"
        )
    tau = max(wanted, at_largest / (1.0 - by_tau / lambda_))
    if tau < SMALLEST_GOAL:
        raise GuaranteeError(
            f"a gradient of norm {tau:.1e} cannot be certified in float64, whose squares vanish: "
            "take a larger clip"
        )
    radius = largest + tau / lambda_
    if radius > LARGEST_RADIUS:
        raise GuaranteeError(
            f"the minimiser may be as long as {radius:.1e}, whose square float64 cannot hold: {advice}"
        )
    return Certified(objective, tau, objective.rounding(radius, problem.n_features), radius)
