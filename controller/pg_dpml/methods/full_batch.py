# SPDX-License-Identifier: PostgreSQL
"""Gradient descent on noisy sums over all rows: dp-gd, and whitened-dp-gd on rows of a better shape.

Constants of both are those that were best over many public data sets; all are
functions of public numbers. tau, the length of all steps together, is what
matters: the steps' noise adds up to a standard deviation of tau D/(n mu) in a
score, however many steps there are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from pg_dpml.errors import GuaranteeError, SpecError
from pg_dpml.kernels import FloatArray, Loss
from pg_dpml.methods.job import Job, Result
from pg_dpml.methods.plan import (
    Guarantee,
    Plan,
    Problem,
    choose_clipped_loss,
    loss_options,
    privacy_warnings,
)
from pg_dpml.methods.sgd import average_start
from pg_dpml.privacy import composed
from pg_dpml.privacy.composed import ComposedNoise
from pg_dpml.rows import unit_fits_block
from pg_dpml.spec import PrivacySpec, TrainSpec

__all__ = ["Descent", "Whitening", "plan", "run"]

DEFAULT_CLIP = {"logistic": 0.5, "squared": 0.5}
"""Of the derivative: for logistic the gradient of the zero model, so that no first step is shortened."""

GRAM_SHARE = 0.1
"""Of mu^2, for the second moments."""

RIDGE = 0.5
"""Of the largest eigenvalue of the noise in the second moments, about s sqrt(2 d)."""

TAIL = 0.25
STEPS = 60
MOMENTUM = 0.9

WHITENED_STEPS = (10, 60)
WHITENED_STEP_BUDGET = 200.0
"""n mu that is worth one more step."""
WHITENED_MOMENTUM = 0.5
MANY_ROWS = 200_000
"""From here on a pass takes so long that fewer steps, of more momentum, are the better bargain."""
MANY_ROWS_STEPS = 20
MANY_ROWS_MOMENTUM = 0.75
SPREAD = 1.5
"""The largest eigenvalue of normalised whitened rows, over its estimate."""

WARN_BUDGET = 20.0
"""n mu/D below which a model says little."""


@dataclass(frozen=True)
class Whitening:
    """How rows are whitened, as far as it is known before the second moments are.

    Attributes
    ----------
    ridge : float
        lambda, added to the eigenvalues of the mean of x x'.
    most : float
        The largest eigenvalue that the mean without noise can have; larger ones are taken for it.
    row_norm : float
        ||P x|| that rows are scaled to.
    """

    ridge: float
    most: float
    row_norm: float


@dataclass(frozen=True)
class Descent:
    """Steps v <- momentum v + g, w <- w - eta v, on noisy means g of the gradients of all rows.

    Attributes
    ----------
    loss : Loss
    lambda_ : float
        L2 regulariser.
    gradient_clip : float
        Bound on the norm of a row's derivatives in its scores; infinity for none beyond the loss's own.
    unit_clip : float
        Bound on the norm of the gradient of a unit's rows; infinity for none.
    steps : int
        T.
    momentum : float
        In [0, 1).
    tau : float
        eta T/(1 - momentum), the length of all steps together.
    average_from : int
        First step whose iterate enters the average; 0 releases the last iterate.
    max_rows_per_unit : int
        m.
    whitening : Whitening or None
        With it, tau is a bound: see `step_size`.
    """

    loss: Loss
    lambda_: float
    gradient_clip: float
    unit_clip: float
    steps: int
    momentum: float
    tau: float
    average_from: int
    max_rows_per_unit: int
    whitening: Whitening | None

    @property
    def passes(self) -> int:
        """Passes over the packed rows."""
        return self.steps + (0 if self.whitening is None else 2)

    @property
    def smoothness(self) -> float:
        """Bound on the Hessian of the mean over units: m beta."""
        return self.max_rows_per_unit * self.loss.smoothness

    def options(self) -> dict[str, Any]:
        """The aggregate's options; only public numbers."""
        options = loss_options(self.loss) | {"losses": False}
        if math.isfinite(self.gradient_clip):
            options["gradient_clip"] = self.gradient_clip
        if math.isfinite(self.unit_clip):
            options |= {"unit_clip": self.unit_clip, "max_rows_per_unit": self.max_rows_per_unit}
        return options

    def step_size(self, largest: float = 1.0) -> float:
        """Eta.

        Parameters
        ----------
        largest : float
            Estimate of the largest eigenvalue of the mean of x x', for rows as they are stepped on: a
            whitened run shortens tau to what it allows.
        """
        tau = self.tau
        if self.whitening is not None:
            tau = min(tau, _longest(self.steps, self.momentum, _whitened_curvature(self.smoothness, largest)))
        return (1.0 - self.momentum) * tau / self.steps

    def record(self, n_rows: int) -> dict[str, Any]:
        """Everything that fixes the passes, as a JSON-ready mapping of public numbers."""
        found = {
            "options": self.options(),
            "steps": self.steps,
            "momentum": self.momentum,
            "tau": self.tau,
            "average_from": self.average_from,
        }
        if self.lambda_ > 0.0:
            found["lambda"] = self.lambda_
        if self.whitening is not None:
            found["whitening"] = asdict(self.whitening)
        return found

    def lines(self) -> Sequence[tuple[str, str]]:
        """Headings and texts that describe the passes."""
        first = (
            "" if self.whitening is None else ", after one for second moments and one that whitens the rows"
        )
        length = (
            "in all" if self.whitening is None else "in all at most, less where the second moments say so"
        )
        shares = []
        if math.isfinite(self.gradient_clip):
            shares.append(f"a row's derivatives clipped at norm {self.gradient_clip:.3g}")
        if math.isfinite(self.unit_clip):
            shares.append(f"a unit's gradient clipped at norm {self.unit_clip:g}")
        if self.lambda_ > 0.0:
            shares.append(f"lambda {self.lambda_:g}")
        averaged = self.steps - self.average_from + 1
        end = f"mean of the last {averaged}" if self.average_from > 0 else "the last"
        steps = f"momentum {self.momentum:g}, length {self.tau:.3g} {length}; the model is {end}"
        return (
            ("Passes", f"{self.steps} over all rows, one a step{first}"),
            ("Steps", "; ".join([steps, *shares])),
        )


def _longest(steps: int, momentum: float, curvature: float) -> float:
    """Tau of steps of eta = (1 + momentum)/curvature, half of what diverges (Polyak 1964)."""
    return steps * (1.0 + momentum) / ((1.0 - momentum) * curvature)


def _whitened_curvature(smoothness: float, largest: float) -> float:
    """Of the mean loss of whitened rows, at most, where the mean of x x' has that largest eigenvalue."""
    return smoothness * min(1.0, SPREAD * largest)


def plan(problem: Problem, privacy: PrivacySpec | None, spec: TrainSpec) -> Plan:
    """Fix the steps and the noise of dp-gd or whitened-dp-gd.

    Parameters
    ----------
    problem : Problem
    privacy : PrivacySpec
    spec : TrainSpec

    Returns
    -------
    Plan

    Raises
    ------
    SpecError
        If options do not go together.
    GuaranteeError
        If delta is 0 or too small, there are too many features, or rounding would spoil the guarantee.
    """
    assert privacy is not None
    loss, gradient_clip = choose_clipped_loss(
        problem, spec, DEFAULT_CLIP, math.sqrt(1.0 - 1.0 / problem.n_outputs)
    )
    bound = problem.max_rows_per_unit * min(loss.lipschitz, gradient_clip)
    if spec.method == "whitened-dp-gd":
        return _plan_whitened(problem, privacy, spec, loss, gradient_clip, bound)
    if spec.unit_clip is not None:
        if problem.unit is None:
            raise SpecError("unit_clip needs a unit of privacy: declare unit in the data spec, or take clip")
        if not unit_fits_block(problem.max_rows_per_unit, problem.n_features):
            raise SpecError("unit_clip needs a unit's rows in one block: take a smaller max_rows_per_unit")
        bound = min(bound, spec.unit_clip)
    return _plan_plain(problem, privacy, spec, loss, gradient_clip, bound)


def _plan_plain(
    problem: Problem, privacy: PrivacySpec, spec: TrainSpec, loss: Loss, gradient_clip: float, bound: float
) -> Plan:
    delta = privacy.delta_for(problem.n_rows)
    steps = spec.passes or STEPS
    momentum = MOMENTUM if spec.momentum is None else spec.momentum
    mu = composed.run_mu(privacy.epsilon, delta, steps * problem.n_weights)
    gradient = composed.calibrate_gradients(
        bound=bound,
        relation=privacy.relation,
        steps=steps,
        mu=mu,
        n_rows=problem.n_rows,
        max_rows_per_unit=problem.max_rows_per_unit,
        n_weights=problem.n_weights,
        n_features=problem.n_features,
    )
    budget = max(problem.n_rows, 1) * mu / privacy.relation.gradient_change(bound)
    lambda_ = spec.lambda_ or 0.0
    smoothness = problem.max_rows_per_unit * loss.smoothness + lambda_
    if spec.step_size is not None:
        tau = spec.step_size * steps / (1.0 - momentum)
    else:
        tau = 2.0 * budget if problem.task == "binary" else _noise_length(problem, budget)
        tau = min(tau, _longest(steps, momentum, smoothness))
    descent = Descent(
        loss=loss,
        lambda_=lambda_,
        gradient_clip=gradient_clip,
        unit_clip=spec.unit_clip or math.inf,
        steps=steps,
        momentum=momentum,
        tau=tau,
        average_from=average_start(spec.average or "tail", spec.tail or TAIL, steps),
        max_rows_per_unit=problem.max_rows_per_unit,
        whitening=None,
    )
    score_stddev = tau / budget if problem.n_rows > 0 else 0.0
    noise = ComposedNoise("gaussian", mu, steps, gradient, None, problem.n_weights, score_stddev)
    return _plan(problem, privacy, delta, spec.method, descent, noise, budget)


def _plan_whitened(
    problem: Problem, privacy: PrivacySpec, spec: TrainSpec, loss: Loss, gradient_clip: float, bound: float
) -> Plan:
    d, m = problem.n_features, problem.max_rows_per_unit
    if d > composed.MAX_WHITENED_FEATURES:
        raise GuaranteeError(
            f"method = whitened-dp-gd takes at most {composed.MAX_WHITENED_FEATURES} features, not {d}: "
            "take method = dp-gd, or fewer features by projection"
        )
    n_rows = max(problem.n_rows, 1)
    delta = privacy.delta_for(problem.n_rows)
    most_steps = spec.passes or WHITENED_STEPS[1]
    mu = composed.run_mu(privacy.epsilon, delta, most_steps * problem.n_weights + composed.triangle_size(d))
    fewest, most = WHITENED_STEPS
    steps = spec.passes or min(max(math.ceil(n_rows * mu / (m * WHITENED_STEP_BUDGET)), fewest), most)
    momentum = WHITENED_MOMENTUM
    if spec.passes is None and n_rows >= MANY_ROWS and steps > MANY_ROWS_STEPS:
        steps, momentum = MANY_ROWS_STEPS, MANY_ROWS_MOMENTUM
    moments = composed.calibrate_moments(
        relation=privacy.relation,
        max_rows_per_unit=m,
        labels=False,
        mu=math.sqrt(GRAM_SHARE) * mu,
        n_rows=problem.n_rows,
        n_features=d,
    )
    condition = composed.largest_condition(problem.n_rows, m, d)
    # 1.01 for the rounding of P itself
    ridge = max(
        RIDGE * moments.scale / n_rows * math.sqrt(2.0 * d), m / max((condition / 1.01) ** 2 - 1.0, 1e-3)
    )
    condition = 1.01 * math.sqrt(1.0 + m / ridge)
    gradient_mu = math.sqrt(1.0 - GRAM_SHARE) * mu
    gradient = composed.calibrate_gradients(
        bound=bound,
        relation=privacy.relation,
        steps=steps,
        mu=gradient_mu,
        n_rows=problem.n_rows,
        max_rows_per_unit=problem.max_rows_per_unit,
        n_weights=problem.n_weights,
        n_features=d,
        condition=condition,
    )
    budget = n_rows * gradient_mu / privacy.relation.gradient_change(bound)
    curvature = _whitened_curvature(m * loss.smoothness, 1.0 / d)
    tau = min(_noise_length(problem, budget), _longest(steps, momentum, curvature))
    descent = Descent(
        loss=loss,
        lambda_=0.0,
        gradient_clip=gradient_clip,
        unit_clip=math.inf,
        steps=steps,
        momentum=momentum,
        tau=tau,
        average_from=average_start("tail", TAIL, steps),
        max_rows_per_unit=m,
        whitening=Whitening(ridge, float(m), composed.stored_norm(condition)),
    )
    score_stddev = tau / budget if problem.n_rows > 0 else 0.0
    noise = ComposedNoise("gaussian", mu, steps, gradient, moments, problem.n_weights, score_stddev)
    return _plan(problem, privacy, delta, spec.method, descent, noise, budget)


def _noise_length(problem: Problem, budget: float) -> float:
    """Tau of unit noise in a score; labels in [-1, 1] stand less than logits do."""
    return min(budget, math.pow(budget, 0.75)) if problem.task == "regression" else budget


def _plan(
    problem: Problem,
    privacy: PrivacySpec,
    delta: float,
    method: str,
    descent: Descent,
    noise: ComposedNoise,
    budget: float,
) -> Plan:
    warnings = privacy_warnings(problem, privacy, delta)
    if problem.n_rows > 0 and budget < WARN_BUDGET:
        warnings.append(
            f"n mu/D = {budget:.2g} is little to learn from: expect a model that is mostly noise; "
            "it takes more rows or a larger epsilon"
        )
    guarantee = Guarantee(privacy.epsilon, delta, privacy.relation, problem.unit, problem.max_rows_per_unit)
    return Plan(method, problem, descent, guarantee, noise, None, tuple(warnings))


def run(job: Job) -> Result:
    """Take the steps on the packed rows."""
    descent = job.plan.work
    assert isinstance(descent, Descent)
    if descent.whitening is None:
        return Result(_descend(job, descent, None, descent.step_size()), descent.passes)
    matrix, step_size = _whiten(job, descent, descent.whitening)
    return Result(_descend(job, descent, matrix, step_size), descent.passes, matrix)


def _whiten(job: Job, descent: Descent, whitening: Whitening) -> tuple[FloatArray, float]:
    """P of the noisy second moments, and eta; the packed rows are whitened.

    All but the sum itself is post-processing. Source: privacy/README.md, "Whitened gradients".
    """
    noise = job.plan.noise
    assert isinstance(noise, ComposedNoise)
    assert noise.moments is not None
    sums = job.gram()
    job.require_all(sums.rows)
    noisy, _ = composed.release_moments(sums.xx, None, noise.moments)
    values, vectors = np.linalg.eigh(noisy / max(job.plan.problem.n_rows, 1))
    values = np.clip(values, 0.0, whitening.most)
    matrix = (vectors / np.sqrt(values + whitening.ridge)) @ vectors.T
    matrix = (matrix + matrix.T) / 2.0
    job.report("pass", 1, descent.passes)
    job.whiten(matrix, whitening.row_norm)
    job.report("pass", 2, descent.passes)
    shares = values / (values + whitening.ridge)
    total = float(np.sum(shares))
    return matrix, descent.step_size(float(np.max(shares)) / total if total > 0.0 else 1.0)


def _descend(job: Job, descent: Descent, matrix: FloatArray | None, step_size: float) -> FloatArray:
    """The released weights, for the rows as they are encoded; every step sees a noisy sum only."""
    problem, noise = job.plan.problem, job.plan.noise
    assert isinstance(noise, ComposedNoise)
    assert noise.gradient is not None
    shape = (problem.n_outputs, problem.n_features)

    def folded(weights: FloatArray) -> FloatArray:
        return weights if matrix is None else weights @ matrix

    weights, velocity, mean = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    first = descent.average_from or descent.steps
    for step in range(1, descent.steps + 1):
        sums = job.gradient(folded(weights).reshape(-1), descent.options())
        job.require_all(sums.rows)
        gradient = np.zeros(shape) if sums.gradient is None else folded(sums.gradient.reshape(shape))
        noisy = composed.release_gradient(gradient.reshape(-1), noise.gradient).reshape(shape)
        move = noisy / max(problem.n_rows, 1) + descent.lambda_ * weights
        velocity = descent.momentum * velocity + move
        weights = weights - step_size * velocity
        if step >= first:
            mean += (weights - mean) / (step - first + 1)
        job.report("pass", descent.passes - descent.steps + step, descent.passes)
    return folded(mean).reshape(-1)
