# SPDX-License-Identifier: PostgreSQL
"""Objective perturbation: minimise the losses plus a random linear term, and release the minimiser.

Chaudhuri, Monteleoni & Sarwate 2011; Kifer, Smith & Thakurta 2012; and Iyengar, Near, Song, Thakkar,
Thakurta & Wang 2019, Algorithm 1 (AMP), with the constants of privacy/README.md, "Objective perturbation",
in place of the published ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

from pg_dpml.errors import GuaranteeError, ResolutionError, SpecError
from pg_dpml.kernels import Loss, Noise
from pg_dpml.privacy import resolution
from pg_dpml.privacy.accounting.objective import determinant_epsilon, least_regulariser, row_terms
from pg_dpml.privacy.noise import objective, output
from pg_dpml.privacy.noise.objective import ObjectiveNoise
from pg_dpml.privacy.noise.output import no_release
from pg_dpml.spec.privacy import PrivacySpec
from pg_dpml.training import shared_options
from pg_dpml.training.certified import Certified, Objective, certify
from pg_dpml.training.job import Job, Result
from pg_dpml.training.losses import choose_loss
from pg_dpml.training.method import Card, Example, PrivateMethod, register
from pg_dpml.training.options import Choice, Real, option
from pg_dpml.training.plan import Plan, Problem, privacy_warnings
from pg_dpml.training.shared_options import RegularisedOptions

__all__ = ["Amp", "AmpHf", "AmpHfOptions", "AmpOptions", "ObjPert", "ObjPertOptions", "ObjectivePlan"]

DEFAULT_CLIP = {"logistic": 0.5}
"""Of objpert and amp: the gradient of the zero model, at half the noise of the whole logistic loss."""

OUTPUT_SHARE = 0.01
REGULARISER_SHARE = 0.1

LEAST_GAMMA = 2.0**-44
"""Smallest gradient norm that amp asks for; 1/n^2 of more than four million rows is below it."""

MANY_FEATURES = 0.1
"""Features over units above which the published split is the one for many features."""

ANSWER_NOISE = 0.1
"""Noise on the answer, in the score of a row, above which lambda is raised: with a larger one float64 can
certify a smaller gradient. Logits of a good model are a few units."""

O = TypeVar("O", bound="ObjPertOptions")  # noqa: E741


@dataclass(frozen=True)
class _Split:
    """How a run divides its guarantee."""

    output: float
    """Share of epsilon and of delta for the noise on the answer."""
    regulariser: float
    """Share of epsilon that the determinant may take."""


@dataclass(frozen=True)
class ObjectivePlan(Plan):
    """The minimiser of an objective with a random linear term, and noise on it."""

    work: Certified
    noise: ObjectiveNoise

    needs_order: ClassVar[bool] = False

    def run(self, job: Job) -> Result:
        """Draw the linear term, find the minimiser, add the noise; the number of passes is not disclosed."""
        linear = objective.draw_linear(self.noise, Noise())
        weights, _ = self.work.objective.minimise(job, self.work.goal, linear)
        return Result(output.release(weights, self.noise.answer, Noise()), None)


def _plan(
    method: PrivateMethod[O],
    problem: Problem,
    privacy: PrivacySpec,
    options: O,
    split: _Split,
    clips: dict[str, float],
    gamma: float,
) -> ObjectivePlan:
    """Fix regulariser, noise and certificate, all from public numbers.

    Notes
    -----
    Source: privacy/README.md, "Objective perturbation".
    """
    if problem.task == "regression":
        raise SpecError(
            f"method = {method.name} is for a label of classes, not for a number to predict: leave method out"
        )
    loss = choose_loss(problem, options, clips, options.clip)
    terms, m = row_terms(loss), problem.max_rows_per_unit
    n_units = max(problem.n_units, 1)
    needed = least_regulariser(terms, m, split.regulariser * privacy.epsilon)
    fixed = options.lambda_ is not None
    regulariser = needed if options.lambda_ is None else options.lambda_ * n_units
    if regulariser < needed:
        # with room for the rounding of the product
        least = resolution.rounded_up(needed / n_units * (1.0 + 1e-9))
        raise GuaranteeError(
            f"lambda = {options.lambda_:g} is too small for method = {method.name} at epsilon = "
            f"{privacy.epsilon:g}: take lambda = {least:g} or more, or leave lambda out"
        )
    if regulariser == 0.0:
        raise GuaranteeError(
            f"method = {method.name} at epsilon = {privacy.epsilon:g} needs lambda > 0: give lambda"
        )
    why = "" if fixed else f"; lambda n is the least that {split.regulariser * privacy.epsilon:.3g} allows"
    while True:
        try:
            work, noise = _measure(problem, privacy, split, loss, regulariser, gamma)
        except GuaranteeError as error:
            # a larger Lambda makes a gradient certifiable, but resolves no noise
            if fixed or regulariser >= problem.n_units or isinstance(error, ResolutionError):
                raise
        else:
            enough = work.gradient_norm <= gamma or noise.answer.score_stddev <= ANSWER_NOISE
            if enough or fixed or regulariser >= problem.n_units:
                break
        regulariser *= 2.0
        why = (
            "; with a smaller lambda n float64 certifies no gradient so small over so many rows that the "
            "noise on the minimiser is small"
        )
    delta = privacy.delta_for(problem.n_units)
    reported = delta if delta > 0.0 else resolution.sampler_delta(2 * problem.n_weights)
    warnings = privacy_warnings(problem, privacy, reported)
    if fixed and work.gradient_norm > gamma and noise.answer.score_stddev > ANSWER_NOISE:
        warnings.append(
            "float64 cannot certify a smaller gradient over so many rows, so the noise on the minimiser has "
            f"a standard deviation of {noise.answer.score_stddev:.2g} in the score of a row: take a larger "
            "lambda"
        )
    guarantee = problem.guarantee(privacy, reported)
    reason = _shares_text(privacy.epsilon, split, determinant_epsilon(terms, m, regulariser), regulariser)
    return ObjectivePlan(method.name, problem, work, guarantee, noise, tuple(warnings), reason + why)


def _shares_text(epsilon: float, split: _Split, determinant: float, regulariser: float) -> str:
    """How epsilon is divided, in words."""
    answer = split.output * epsilon
    return (
        f"of epsilon {answer:.3g} is for the noise on the minimiser, {determinant:.3g} for lambda n = "
        f"{regulariser:.3g}, and {epsilon - answer - determinant:.3g} for the linear term"
    )


def _measure(
    problem: Problem, privacy: PrivacySpec, split: _Split, loss: Loss, regulariser: float, gamma: float
) -> tuple[Certified, ObjectiveNoise]:
    """Certificate and noise for one Lambda."""
    n_units, m, n_weights = max(problem.n_units, 1), problem.max_rows_per_unit, problem.n_weights
    epsilon, delta = privacy.epsilon, privacy.delta_for(problem.n_units)
    terms = row_terms(loss)
    rest = (1.0 - split.output) * epsilon - determinant_epsilon(terms, m, regulariser)
    linear = objective.calibrate_linear(
        terms, privacy.relation, n_units, m, n_weights, rest, (1.0 - split.output) * delta
    )
    convexity = regulariser / n_units
    certified = certify(
        problem,
        Objective(loss, convexity, m, objective.linear_norm(linear)),
        max(gamma, resolution.hidden_gradient_norm(linear.score_stddev, n_weights)),
        "take a larger lambda",
    )
    if problem.n_units == 0:
        nothing = no_release(linear.kind, n_weights)
        return certified, ObjectiveNoise(linear.kind, nothing, nothing, convexity, n_weights)
    linear = objective.place_linear(linear, certified.gradient_norm)
    answer = objective.calibrate_answer(
        certified.gradient_norm, convexity, n_weights, split.output * epsilon, split.output * delta
    )
    # the exact minimiser is that of b before it was rounded to its grid
    moved = 0.5 * linear.grid * math.sqrt(n_weights)
    return (
        replace(certified, rounding=certified.rounding + moved),
        ObjectiveNoise(linear.kind, linear, answer, convexity, n_weights),
    )


def _gamma(problem: Problem) -> float:
    """The published gradient norm 1/n^2, as far as float64 goes."""
    return max(1.0 / max(problem.n_units, 1) ** 2, LEAST_GAMMA)


THEOREM = (
    "Minimising (1/n) sum of losses + (Lambda/2n) ||w||^2 + <b, w> maps b to the minimiser; the densities of "
    "neighbours' minimisers differ by the density of b and by a determinant (Chaudhuri, Monteleoni & Sarwate "
    "2011; Kifer, Smith & Thakurta 2012). Noise on the answer covers that it is approximate "
    '("Objective perturbation"). '
)
SENSITIVITY = (
    "D/n for the gradient, D = 2 m L (`replace_one`) or m L. What a unit shifts b by depends on b, so the "
    "delta of Gaussian b is bounded for all shifts together: a sum over the corners of the set that they lie "
    "in. 2 gamma n/Lambda for two answers with one minimiser."
)
CHECKED = (
    "Losses of classes only; a given lambda at least what its part of epsilon asks for, and rejected below "
    "it; without one Lambda is that least, or larger where float64 needs it. gamma above what rounding "
    "allows, by public numbers; the grids of b and of the answer against the sampler."
)
CHARGED = (
    "(epsilon, delta); with delta = 0, delta = 2 dimension 2^-120. A `gdp` or `zcdp` budget has no better "
    'account of it than "every other run" of "Budgets", so that few such runs fit.'
)
CORRECTED = (
    "(1) The determinant is at most 1 + beta/Lambda under both relations, so Lambda is less than half the "
    "published one and epsilon_1 - epsilon_3 < 1 is not needed; softmax has a bound of its own. (2) The "
    "shift depends on b, so the density is bounded at the vertices of all shifts, not by one Gaussian. (3) "
    "Two approximate answers lie 2 gamma n/Lambda apart; the published noise lacks the factor 2. (4) sigma "
    "by the exact curve, not by (1 + sqrt(2 ln 1/delta))/epsilon. (5) gamma covers the rounding of gradients "
    "and of b. (6) The number of passes depends on the rows, so it is neither stored nor shown, and every "
    "table reaches gamma."
)


@dataclass(frozen=True)
class ObjPertOptions(RegularisedOptions):
    """Options of objpert."""

    lambda_: float | None = shared_options.lambda_("the least that epsilon allows")


@register
class ObjPert(PrivateMethod[ObjPertOptions]):
    """Objective perturbation to the certified minimum."""

    name = "objpert"
    summary = "minimise the losses plus a random linear term"
    cards = (
        Card(
            theorem=THEOREM + "gamma is the least that float64 can certify.",
            sensitivity=SENSITIVITY,
            checked=CHECKED,
            charged=CHARGED,
            corrected=CORRECTED + " (7) The published release is the exact minimum, which no computer has.",
        ),
    )
    options = ObjPertOptions
    examples = (Example(), Example(options={"loss": "huber_svm", "lambda_": 100.0}), Example("multiclass"))

    def plan(self, problem: Problem, privacy: PrivacySpec, options: ObjPertOptions) -> ObjectivePlan:
        """The smallest gradient norm; a hundredth of the guarantee is for the noise on the answer."""
        return _plan(
            self, problem, privacy, options, _Split(OUTPUT_SHARE, REGULARISER_SHARE), DEFAULT_CLIP, 0.0
        )


@dataclass(frozen=True)
class AmpOptions(ObjPertOptions):
    """Options of amp."""

    output_share: float = option(
        Real(1e-6, 0.5), "Share of epsilon and delta for the noise on the minimiser.", default=OUTPUT_SHARE
    )
    regulariser_share: float = option(
        Real(1e-6, 0.499),
        "Share of epsilon that the regulariser may take; the smaller it is, the larger lambda must be.",
        default=REGULARISER_SHARE,
    )


@register
class Amp(PrivateMethod[AmpOptions]):
    """Approximate minima perturbation."""

    name = "amp"
    comparison = True
    summary = "approximate minima perturbation: objpert to a gradient of norm 1/n^2"
    cards = (
        Card(
            theorem=THEOREM + "gamma = max(1/n^2, 2^-44) (Iyengar et al. 2019, Algorithm 1).",
            sensitivity=SENSITIVITY,
            checked=CHECKED,
            charged=CHARGED,
            corrected="As objpert, (1) to (6).",
        ),
    )
    options = AmpOptions
    examples = (
        Example(options={"output_share": 0.05}),
        Example("multiclass", {"loss": "logistic", "regulariser_share": 0.2}),
    )

    def plan(self, problem: Problem, privacy: PrivacySpec, options: AmpOptions) -> ObjectivePlan:
        """The shares that were asked for."""
        split = _Split(options.output_share, options.regulariser_share)
        return _plan(self, problem, privacy, options, split, DEFAULT_CLIP, _gamma(problem))


@dataclass(frozen=True)
class AmpHfOptions(ObjPertOptions):
    """Options of amp-hf."""

    split: str = option(
        Choice(("tight", "published")),
        "How epsilon is divided: a tenth for the regulariser, or the curve of the publication.",
        default="tight",
    )


@register
class AmpHf(PrivateMethod[AmpHfOptions]):
    """AMP without anything to choose."""

    name = "amp-hf"
    comparison = True
    summary = "amp with all shares of epsilon fixed beforehand"
    cards = (
        Card(
            theorem=THEOREM
            + "gamma = max(1/n^2, 2^-44); epsilon_2 = 0.01 epsilon, delta_2 = 0.01 delta, a tenth of "
            "epsilon for the determinant, or with `split = published` what the curve of Iyengar et al. 2019, "
            "section V-A, leaves to it.",
            sensitivity=SENSITIVITY,
            checked=CHECKED,
            charged=CHARGED,
            corrected="As objpert, (1) to (6). The curve of epsilon_3 is the published one; Lambda and sigma "
            "are ours.",
        ),
    )
    options = AmpHfOptions
    examples = (Example(), Example("multiclass", {"split": "published"}))

    def plan(self, problem: Problem, privacy: PrivacySpec, options: AmpHfOptions) -> ObjectivePlan:
        """All shares from epsilon, and in the published split from n and d."""
        share = REGULARISER_SHARE if options.split == "tight" else _published_share(problem, privacy.epsilon)
        return _plan(self, problem, privacy, options, _Split(OUTPUT_SHARE, share), {}, _gamma(problem))


def _published_share(problem: Problem, epsilon: float) -> float:
    """1 - epsilon_3/epsilon_1 of the published curve, times epsilon_1/epsilon.

    Notes
    -----
    Source: Iyengar et al. 2019, section V-A, the strategy for hyperparameter-free AMP.
    """
    first = (1.0 - OUTPUT_SHARE) * epsilon
    many = problem.n_features > MANY_FEATURES * problem.n_units
    curve = 0.97 if many else min(0.887 + 0.019 / first**0.373, 0.99)
    return (1.0 - max(curve, 1.0 - 0.99 / first)) * (1.0 - OUTPUT_SHARE)
