# SPDX-License-Identifier: PostgreSQL
"""Noise as papers publish it: the epsilon that it really gives, and the run of the product that carries it.

No switch of the product makes noise that does not keep its guarantee. A published scale is run in another
way: a function here finds the epsilon at which the product itself adds noise of this scale, for the same
steps, and the run is made at that epsilon. For most methods this epsilon is also what the published noise
really gives, by the accounts of pg_dpml.privacy; where it is not, both are returned.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import scipy

from pg_dpml import Plan, PrivacySpec, Relation, TrainSpec, kernels
from pg_dpml.kernels import Loss
from pg_dpml.privacy.accounting.bounds import exact_epsilon
from pg_dpml.privacy.accounting.bst14 import published_bst14_multiplier
from pg_dpml.privacy.accounting.objective import density_delta, determinant_epsilon, row_terms
from pg_dpml.privacy.accounting.subsampled import (
    subsampled_gaussian_epsilon,
    subsampled_gaussian_multiplier,
)
from pg_dpml.privacy.cost import zcdp_delta
from pg_dpml.runs.grid import train_options
from pg_dpml.spec.privacy import MOST_EPSILON
from pg_dpml.training.plan import Problem


@dataclass(frozen=True)
class Published:
    """A published noise.

    Attributes
    ----------
    gives : float
        The epsilon that it gives, an upper bound; infinity for none that can be shown.
    epsilon : float or None
        At which the product adds it; None where the product has no such noise.
    options : mapping
        Of the run, beside those of the line.
    """

    gives: float
    epsilon: float | None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def runs_at(self) -> float | None:
        """`epsilon` as far as the product goes: above it the noise is next to none."""
        return None if self.epsilon is None else min(self.epsilon, MOST_EPSILON)


@dataclass(frozen=True)
class Asked:
    """What a published noise is computed from: public numbers alone.

    Attributes
    ----------
    problem : Problem
    privacy : PrivacySpec
        As the paper names it.
    method : str
    options : mapping
        As in a grid file.
    """

    problem: Problem
    privacy: PrivacySpec
    method: str
    options: Mapping[str, Any]

    @property
    def n(self) -> int:
        """Rows."""
        return self.problem.n_units

    @property
    def delta(self) -> float:
        """As the paper names it."""
        return self.privacy.delta_for(self.n)

    def plan(self) -> Plan:
        """The product's plan of the same steps, at the epsilon that the paper names."""
        spec = TrainSpec(self.method, **train_options(self.options, "options"))
        return spec.decide(self.problem, self.privacy)

    def unclipped(self) -> Asked:
        """The same with the whole logistic loss, as published: the product clips it by default."""
        if self.plan().work.loss.kind != "logistic":
            return self
        return replace(self, options={**self.options, "clip": 1.0})

    @property
    def steps(self) -> tuple[float, int]:
        """Sampling probability and number of steps of Poisson batches."""
        batch_size, passes = int(self.options["batch_size"]), int(self.options["passes"])
        return min(1.0, batch_size / self.n), passes * math.ceil(self.n / batch_size)


def epsilon_of(mu: float, delta: float) -> float:
    """Epsilon of a Gaussian release with sensitivity over standard deviation mu."""
    return exact_epsilon(1.0 / mu, 1, delta, Relation.ADD_REMOVE) if mu < 1e4 else math.inf


def _classic(delta: float, top: float) -> float:
    """Standard deviation over sensitivity / epsilon, as in Dwork & Roth 2014."""
    return math.sqrt(2.0 * math.log(top / delta))


def _output(asked: Asked, sensitivity: float, top: float, moved: float | None = None) -> Published:
    """Output perturbation for a published sensitivity, with noise as in Dwork & Roth or of K-norm.

    `moved` is the true sensitivity of the published steps, where the product has others.
    """
    ours: float = asked.plan().noise.sensitivity  # type: ignore[union-attr]
    moved = ours if moved is None else moved
    clip = {name: asked.options[name] for name in ("clip",) if name in asked.options}
    epsilon = asked.privacy.epsilon
    if asked.delta == 0.0:
        same = moved <= sensitivity * (1.0 + 1e-3)
        return in_the_ball(asked) if same else Published(math.inf, epsilon * ours / sensitivity, clip)
    stddev = _classic(asked.delta, top) * sensitivity / epsilon
    return Published(epsilon_of(moved / stddev, asked.delta), epsilon_of(ours / stddev, asked.delta), clip)


def in_the_ball(asked: Asked) -> Published:
    """K-norm noise whose direction is uniform in the unit ball: its density has a pole, so no epsilon holds.

    The pole is the only difference, and noise is a share of about 1/d shorter: there is nothing else to run.
    """
    return Published(math.inf, None)


def each_pass(asked: Asked) -> Published:
    """Hardwarsing 2018, section 4.3: epsilon for each of several passes, with a direction in the ball."""
    return Published(math.inf, asked.privacy.epsilon * asked.options["passes"])


def wu_convex(asked: Asked) -> Published:
    """Wu et al. 2017, Algorithm 1 and its batches: 2 k L eta / b."""
    asked = asked.unclipped()
    plan = asked.plan()
    schedule = plan.work.schedule  # type: ignore[attr-defined]
    step = min(schedule.step_size, schedule.max_step)
    sensitivity = 2.0 * plan.work.loss.lipschitz * step * plan.work.passes / asked.options["batch_size"]
    return _output(asked, sensitivity, 1.25)


def wu_strongly_convex(asked: Asked) -> Published:
    """Wu et al. 2017, Algorithm 2 and its batches: 2 (L + lambda R) / (lambda n b) with R = 1/lambda.

    Its steps are at most 1/(beta + lambda) with beta = 1 for the logistic loss, where beta is 1/4.
    """
    asked = asked.unclipped()
    plan, lambda_ = asked.plan(), asked.options["lambda"]
    loss = plan.work.loss
    steps = kernels.Schedule(
        "strongly_convex", lambda_=lambda_, max_step=1.0 / (max(loss.smoothness, 1.0) + lambda_)
    )
    moved = kernels.sensitivity(
        schedule=steps,
        smoothness=loss.smoothness,
        lambda_=lambda_,
        gradient_change=asked.privacy.relation.gradient_change(loss.lipschitz),
        n_rows=asked.n,
        passes=plan.work.passes or 1,
        batch_size=asked.options["batch_size"],
    ).sensitivity
    published = 2.0 * (loss.lipschitz + 1.0) / (lambda_ * asked.n * asked.options["batch_size"])
    return _output(asked, published, 1.25, moved)


def bst14(asked: Asked) -> Published:
    """Wu et al. 2017, Algorithms 4 and 5: strong composition with delta/T, for a sensitivity of L."""
    sampling, steps = asked.steps
    return _bst14(asked.privacy.epsilon, asked.delta, sampling, steps, asked.privacy.relation)


@functools.lru_cache(maxsize=256)
def _bst14(epsilon: float, delta: float, sampling: float, steps: int, relation: Relation) -> Published:
    multiplier = published_bst14_multiplier(epsilon, delta, sampling, steps, Relation.ADD_REMOVE)
    gives = subsampled_gaussian_epsilon(multiplier, sampling, steps, delta, relation)
    return Published(gives, gives)


def dp_scd(asked: Asked) -> Published:
    """Damaskinos et al. 2021, Algorithm 1.

    Its noise on the duals shows which rows were in a batch, so sampling hides nothing of what the account
    covers: k passes are k Gaussian releases. The run of the product has this noise (`dual_noise`) on Poisson
    batches, whose duals are not released, and is private.
    """
    passes: int = asked.plan().work.passes  # type: ignore[assignment]
    multiplier = asked.plan().noise.noise_multiplier  # type: ignore[union-attr]
    gives = exact_epsilon(multiplier, passes, asked.delta, asked.privacy.relation)
    return Published(gives, asked.privacy.epsilon)


def seq_dp_scd(asked: Asked) -> Published:
    """Damaskinos et al. 2021, Algorithm 3: the account of sampled batches, for batches that it shows."""
    plan = asked.plan()
    batch_size, passes = plan.work.batch_size, plan.work.passes  # type: ignore[attr-defined]
    gives = _seq_dp_scd(
        asked.privacy.epsilon, asked.delta, min(1.0, batch_size / asked.n), math.ceil(asked.n / batch_size),
        passes or 1,
    )  # fmt: skip
    return Published(gives, gives)


@functools.lru_cache(maxsize=64)
def _seq_dp_scd(epsilon: float, delta: float, sampling: float, batches: int, passes: int) -> float:
    relation = Relation.ADD_REMOVE
    found = subsampled_gaussian_multiplier(epsilon, delta, sampling, passes * batches, relation)
    return exact_epsilon(found.noise_multiplier, passes, delta, relation)


def amp(asked: Asked) -> Published:
    """Iyengar et al. 2019, Algorithm 1, with the shares of its hyperparameter-free form, for two classes."""
    epsilon, n = asked.privacy.epsilon, asked.n
    first, answer_share = 0.99 * epsilon, 0.01
    many = asked.problem.n_features > 0.1 * n
    curve = 0.97 if many else min(0.887 + 0.019 / first**0.373, 0.99)
    third = max(curve, 1.0 - 0.99 / first) * first
    kind, huber_h = asked.options.get("loss", "logistic"), asked.options.get("huber_h", 0.5)
    loss = Loss(kind, n_classes=1, huber_h=huber_h)
    smoothness = 1.0 if kind == "logistic" else loss.smoothness
    regulariser = 2.0 * smoothness / (first - third)
    delta_1, delta_2 = 0.99 * asked.delta, 0.01 * asked.delta
    stddev = (2.0 / n) * (1.0 + math.sqrt(2.0 * math.log(1.0 / delta_1))) / third
    terms = row_terms(loss)
    rows = 2 if asked.privacy.relation is Relation.REPLACE_ONE else 1
    density = _least(lambda e: density_delta(e, rows / (n * stddev), terms, rows), delta_1)
    determinant = determinant_epsilon(terms, 1, regulariser)
    mu = 2.0 * (0.01 * epsilon) / (1.0 + math.sqrt(2.0 * math.log(1.0 / delta_2)))
    runs_at = (density + determinant) / (1.0 - answer_share)
    options = {
        "lambda": regulariser / n,
        "clip": 1.0,
        "output_share": answer_share,
        "regulariser_share": min(max(1.001 * determinant / runs_at, 1e-6), 0.499),
    }
    return Published(density + determinant + epsilon_of(mu, delta_2), runs_at, options)


def iyengar_sgd(asked: Asked) -> Published:
    """Iyengar et al. 2019, Algorithm 2: 4 L sqrt(T ln(1/delta)) / (n epsilon) on a batch's mean."""
    sampling, steps = asked.steps
    stddev = 4.0 * math.sqrt(steps * math.log(1.0 / asked.delta)) / (asked.n * asked.privacy.epsilon)
    multiplier = stddev * asked.options["batch_size"]
    gives = _poisson(multiplier, sampling, steps, asked.delta, asked.privacy.relation)
    return Published(gives, gives)


@functools.lru_cache(maxsize=64)
def _poisson(multiplier: float, sampling: float, steps: int, delta: float, relation: Relation) -> float:
    return subsampled_gaussian_epsilon(multiplier, sampling, steps, delta, relation)


def iyengar_psgd(asked: Asked) -> Published:
    """Iyengar et al. 2019, Algorithm 3: 2 T L eta / b, with ln(2/delta)."""
    options = asked.options
    step = options["step_size"]
    return _output(asked, 2.0 * options["passes"] * step / options["batch_size"], 2.0)


def iyengar_scpsgd(asked: Asked) -> Published:
    """Iyengar et al. 2019, Algorithm 4: 2 L / (lambda n), for steps that fall by the pass.

    The first 1/lambda passes all have the step 1/(1 + lambda) of its cap, so fewer of them are passes of a
    constant step.
    """
    return _output(asked, 2.0 / (asked.options["lambda"] * asked.n), 2.0)


def frank_wolfe(asked: Asked) -> Published:
    """Iyengar et al. 2019, Algorithm 5: T choices by noise of scale sqrt(32 T ln(1/delta)) L C/(n epsilon).

    A choice by such Laplace noise is epsilon_0-private, epsilon_0 = epsilon/sqrt(2 T ln(1/delta)) under
    replace-one, and T of them are T epsilon_0^2/2-zCDP, whatever T is. The product draws Gumbel noise and
    has no Laplace noise to run.
    """
    rho = asked.privacy.epsilon**2 / (4.0 * math.log(1.0 / asked.delta))
    return Published(_least(lambda e: zcdp_delta(e, rho), asked.delta), None)


def _least(delta_of: Callable[[float], float], delta: float) -> float:
    """The least epsilon whose delta is at most so much."""
    high = 1e-6
    while delta_of(high) > delta:
        high *= 2.0
    if high == 1e-6:
        return high
    return float(
        scipy.optimize.brentq(lambda e: math.log(max(delta_of(e), 1e-300) / delta), high / 2.0, high)
    )


KINDS: Mapping[str, Callable[[Asked], Published]] = {
    "in_the_ball": in_the_ball,
    "each_pass": each_pass,
    "wu_convex": wu_convex,
    "wu_strongly_convex": wu_strongly_convex,
    "bst14": bst14,
    "dp_scd": dp_scd,
    "seq_dp_scd": seq_dp_scd,
    "amp": amp,
    "iyengar_sgd": iyengar_sgd,
    "iyengar_psgd": iyengar_psgd,
    "iyengar_scpsgd": iyengar_scpsgd,
    "frank_wolfe": frank_wolfe,
}
