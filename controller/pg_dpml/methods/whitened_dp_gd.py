# SPDX-License-Identifier: PostgreSQL
"""Full-batch gradient descent on rows that a noisy release of their second moments whitens."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

from pg_dpml.methods.dp_gd import (
    MOMENTA,
    TAIL,
    Descent,
    DescentPlan,
    longest,
    noise_length,
    plan_of,
    whitened_curvature,
    widening,
)
from pg_dpml.methods.whitening import Whitening, noise_edge, require_second_moments
from pg_dpml.privacy.noise import composed
from pg_dpml.privacy.noise.composed import ComposedNoise
from pg_dpml.spec.privacy import PrivacySpec
from pg_dpml.training import shared_options
from pg_dpml.training.losses import clipped_at_zero
from pg_dpml.training.method import Card, Example, PrivateMethod, register
from pg_dpml.training.plan import Problem
from pg_dpml.training.sgd import average_start
from pg_dpml.training.shared_options import ClippedOptions

__all__ = [
    "WhitenedDpGd",
    "WhitenedOptions",
]


GRAM_SHARE = 0.1
"""Of mu^2, for the second moments, at most."""

RIDGE = 0.25
"""Of the largest eigenvalue of the noise in the second moments, about s sqrt(2 d): what is added to
eigenvalues where neither of the next two asks for more.

At epsilon 0.1 and with 0.5, Adult, Bank and KDD lost 0.01 points, Covertype 0.04, California 0.002 of R^2;
rows of 100 and 400 features lost 0.03 to 0.06 where their eigenvalues fall as 1/i, nothing where they are
alike."""

RIDGE_OF_FEW_STEPS = 1.0
"""RIDGE where the steps end before their noise does: they come farther where fewer directions are stretched.

Covertype at epsilon 1 gained 0.3 points over 0.25."""

RIDGE_OF_HIDDEN = 2.0
"""RIDGE where noise hides MOST_HIDDEN as many directions as HIDDEN says."""

HIDDEN = 25.0
"""Largest eigenvalue of the noise in the second moments at GRAM_SHARE, over the eigenvalue m/d of rows that
have no direction, times the root of the outputs: from here on noise hides most directions. Then less is spent
on second moments, and they whiten less.

At epsilon 1 the number is 9 for 30,000 rows of 400 features, which are best at GRAM_SHARE and RIDGE. It is 43
for MNIST, which gains 0.3 points by less, and 74 for 1,600 features, where isotropic rows gain 0.5. It is 22
at most for Adult, Bank and California at epsilon 0.1, which would lose up to 0.4 points, or 0.03 of R^2."""

MOST_HIDDEN = 4.0
"""What GRAM_SHARE is divided by, at most."""

SEVERAL_CLASSES = 0.9
"""Length of all steps with several classes, whose scores are compared, over that with one score, where noise
ends it.

With 0.85 Covertype at epsilon 0.1 gained 0.03 points."""

WHITENED_STEPS = (10, 60)
WHITENED_STEP_BUDGET = 200.0
"""n mu that is worth one more step."""
FEW_VALUES = 2_000_000
"""Rows times features up to which a pass takes so little time that all steps are taken."""
MANY_VALUES = 20_000_000
MANY_VALUES_STEPS = 20
"""From MANY_VALUES rows times features on a pass takes so long that fewer steps are the better bargain.

On 30,000 rows of 1,600 features 20 steps gained 0.2 to 0.3 points over 28 at epsilon 1, and differed from 60
at epsilon 5 by less than the noise, whether their eigenvalues are alike or fall as 1/i."""
WHITENED_MOMENTUM = 0.5
LEAST_REACH = 4.0
"""Steps times 1 - momentum, at least: the first steps of a larger momentum are too short."""


@dataclass(frozen=True)
class WhitenedOptions(ClippedOptions):
    """Options of whitened-dp-gd."""

    passes: int | None = shared_options.passes()


@register
class WhitenedDpGd(PrivateMethod[WhitenedOptions]):
    """Gradient descent on rows that a noisy release of their second moments whitens."""

    name = "whitened-dp-gd"
    summary = "dp-gd on rows that noisy second moments whiten first"
    cards = (
        Card(
            theorem="Gaussian releases with fixed mu_t compose to sqrt(sum mu_t^2), exactly (Dong, Roth &"
            " Su 2022): one noisy Gram matrix with at most a tenth of mu^2, T noisy gradients with "
            "the rest. mu from (epsilon, delta) by Balle & Wang 2018, Theorem 8.",
            sensitivity="Gram sum X'X: sqrt 2 m in Frobenius norm (`replace_one`), m (`add_remove`). Gradient"
            ' sum: D = 2 m C or m C, since the stored rows have ||P x|| <= 1 ("Whitened '
            'gradients").',
            checked='delta > 0 and large enough for the sampler ("Floating point"); features at most '
            "2,500; rounding of the sums below a hundredth of their sensitivity.",
            charged="(epsilon, delta), mechanism `gaussian` with its mu, steps and scales.",
            post_processing="Eigenvectors, P, number and length of steps, momentum, average of the last "
            "quarter, folding P into the weights.",
            corrected="There is no publication to follow. Against common implementations of DP-GD: mu is "
            "exact at every epsilon (not sqrt(2 ln(1.25/delta))/epsilon), and the clip bounds the"
            " derivative of the score, so that no row's norm is computed.",
        ),
    )
    options = WhitenedOptions
    examples = (
        Example(),
        Example(options={"passes": 2}),
        Example("multiclass"),
        Example("regression"),
    )

    def plan(self, problem: Problem, privacy: PrivacySpec, options: WhitenedOptions) -> DescentPlan:
        """Fix the steps and the noise, but for what the noisy second moments shorten."""
        return _plan_whitened(problem, privacy, options)


def _plan_whitened(problem: Problem, privacy: PrivacySpec, options: WhitenedOptions) -> DescentPlan:
    d, m = problem.n_features, problem.max_rows_per_unit
    require_second_moments(WhitenedDpGd.name, problem)
    n_units = max(problem.n_units, 1)
    delta = privacy.delta_for(problem.n_units)
    most_steps = options.passes or WHITENED_STEPS[1]
    mu = composed.run_mu(privacy.epsilon, delta, most_steps * problem.n_weights + composed.triangle_size(d))
    calibrate_moments = partial(
        composed.calibrate_moments,
        relation=privacy.relation,
        max_rows_per_unit=m,
        labels=False,
        n_units=problem.n_units,
        n_features=d,
    )
    hidden = _hidden(problem, calibrate_moments(mu=math.sqrt(GRAM_SHARE) * mu).scale / n_units)
    share = GRAM_SHARE / hidden
    gradient_mu = math.sqrt(1.0 - share) * mu
    clipped = clipped_at_zero(problem, options, widening(problem, privacy, options, gradient_mu))
    steps = options.passes or _steps(n_units * m, d, n_units * mu / m)
    most_momentum = max(
        (momentum for momentum in MOMENTA if steps * (1.0 - momentum) >= LEAST_REACH - 1e-9),
        default=WHITENED_MOMENTUM,
    )
    moments = calibrate_moments(mu=math.sqrt(share) * mu)
    budget = n_units * gradient_mu / privacy.relation.gradient_change(clipped.bound)
    curvature = whitened_curvature(m * clipped.loss.smoothness, 1.0 / d)
    wanted = noise_length(problem, budget) * (SEVERAL_CLASSES if problem.n_outputs > 1 else 1.0)
    reached = longest(steps, most_momentum, curvature)
    condition = composed.largest_condition(problem.n_units, m, d)
    # 1.01 for the rounding of P itself
    ridge = max(
        _ridge(wanted / reached, hidden) * noise_edge(moments.scale / n_units, d),
        m / max((condition / 1.01) ** 2 - 1.0, 1e-3),
    )
    condition = 1.01 * math.sqrt(1.0 + m / ridge)
    gradient = composed.calibrate_gradients(
        bound=clipped.bound,
        relation=privacy.relation,
        steps=steps,
        mu=gradient_mu,
        n_units=problem.n_units,
        max_rows_per_unit=problem.max_rows_per_unit,
        n_weights=problem.n_weights,
        n_features=d,
        condition=condition,
    )
    descent = Descent(
        loss=clipped.loss,
        lambda_=0.0,
        gradient_clip=clipped.gradient_clip,
        unit_clip=math.inf,
        steps=steps,
        momentum=WHITENED_MOMENTUM,
        most_momentum=most_momentum,
        tau=min(wanted, reached),
        average_from=average_start("tail", TAIL, steps),
        max_rows_per_unit=m,
        whitening=Whitening(ridge, float(m), composed.stored_norm(condition), moments.scale / n_units),
    )
    score_stddev = descent.tau / budget if problem.n_units > 0 else 0.0
    noise = ComposedNoise("gaussian", mu, steps, gradient, moments, problem.n_weights, score_stddev)
    return plan_of(problem, privacy, delta, WhitenedDpGd.name, descent, noise, budget)


def _hidden(problem: Problem, stddev: float) -> float:
    """By how much less the second moments whiten, in [1, MOST_HIDDEN]; stddev is theirs at GRAM_SHARE."""
    d = problem.n_features
    without_direction = problem.max_rows_per_unit / d
    edge = noise_edge(stddev, d) / without_direction * math.sqrt(problem.n_outputs)
    return min(max((edge / HIDDEN) ** 2, 1.0), MOST_HIDDEN)


def _ridge(wanted: float, hidden: float) -> float:
    """What is added to eigenvalues, over the largest one of the noise.

    wanted is the length of all steps that the noise allows, over what they reach; hidden as of `_hidden`.
    """
    ridge = RIDGE + min(wanted, 1.0) * (RIDGE_OF_FEW_STEPS - RIDGE)
    return ridge + (hidden - 1.0) / (MOST_HIDDEN - 1.0) * (RIDGE_OF_HIDDEN - ridge)


def _steps(n_rows: int, n_features: int, budget: float) -> int:
    """How many steps, by public numbers; budget is n mu/m."""
    fewest, most = WHITENED_STEPS
    n_values = n_rows * n_features
    if n_values <= FEW_VALUES:
        return most
    return min(
        max(math.ceil(budget / WHITENED_STEP_BUDGET), fewest),
        MANY_VALUES_STEPS if n_values >= MANY_VALUES else most,
    )
