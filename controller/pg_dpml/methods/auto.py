# SPDX-License-Identifier: PostgreSQL
"""The default: a method chosen by public numbers alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pg_dpml.blocks.encoder import FEWEST_PIECES, MOST_PIECES
from pg_dpml.errors import GuaranteeError
from pg_dpml.methods.bolt_on import BoltOn
from pg_dpml.methods.dp_gd import DpGd
from pg_dpml.methods.sufficient_statistics import SufficientStatistics
from pg_dpml.methods.whitened_dp_gd import WhitenedDpGd
from pg_dpml.privacy import gaussian
from pg_dpml.privacy.noise import composed
from pg_dpml.spec.privacy import PrivacySpec
from pg_dpml.training.method import Example, PrivateMethod, register
from pg_dpml.training.options import Choice, option
from pg_dpml.training.plan import Plan, Problem
from pg_dpml.training.shared_options import LossOptions
from pg_dpml.training.spec import TrainSpec

__all__ = ["Auto", "AutoOptions"]

STATISTICS_BUDGET = 100.0
"""n mu/(m d^2) from which the second moments of rows and labels were at least as good as gradients, on
average over public and made-up regressions: they need no steps, but their noise grows with d^2."""


CURVE_BUDGET = {"binary": 15.0, "multiclass": 15.0, "regression": 40.0}
"""n mu/m, for each numeric column and output, that is worth one more piece of the columns' curves, by task:
labels in [-1, 1] tolerate less noise than logits.

Means of two splits, without curves and by the number of pieces. Adult at epsilon 0.1: 83.7, 84.2 to 84.9 with
2 to 12. Bank at 0.1: 88.5, 88.7 to 89.1 with 2 to 6, 88.5 with 12. California, a regression, at 0.1:
R^2 0.62, 0.51 to 0.56 with 2 to 12; at 1: 0.67, 0.67 with 2 to 4, 0.70 with 9 or 12.

Eight public tables that the numbers were not fitted on (20,000 to 330,000 rows: diamonds, food budgets,
movies, late flights, and four of health), five splits. At epsilon 1 curves are ahead on seven, by 0.3 to 3.5
points of accuracy or 5 to 7 of R^2, and behind on one (diamonds: 0.919 to 0.927). At 0.1 they are ahead on
four, by up to 1.9 points, and within 0.15 points on the others."""


@dataclass(frozen=True)
class AutoOptions(LossOptions):
    """Options of auto."""

    features: str = option(
        Choice(("auto", "linear")),
        "Whether numeric columns without knots get curves, where public numbers say that these pay.",
        default="auto",
    )


@register
class Auto(PrivateMethod[AutoOptions]):
    """The policy that chooses a method; the plan, the model and the ledger name the one chosen."""

    name = "auto"
    summary = "chooses the method by public numbers"
    cards = ()
    options = AutoOptions
    examples = (Example(), Example("multiclass"), Example("regression"))

    def plan(self, problem: Problem, privacy: PrivacySpec, options: AutoOptions) -> Plan:
        """The plan of the method chosen, with the reason.

        Where a method would have to release more numbers than the precision of its noise allows, the curves
        go first. Then dp-gd comes next, which releases fewer, and then bolt-on, which releases the model
        alone.
        """
        pieces, why = _curves(problem, privacy, options)
        if pieces:
            with_curves = problem.curved(pieces)
            method, reason = _choice(with_curves, privacy)
            try:
                return _planned(method, with_curves, privacy, options, f"{reason}; {why}")
            except GuaranteeError as error:
                why = f"no curves, with which {method} cannot run: {error}"
        method, reason = _choice(problem, privacy)
        if why:
            reason = f"{reason}; {why}"
        ways = [method] if method == BoltOn.name else list(dict.fromkeys((method, DpGd.name, BoltOn.name)))
        for name in ways[:-1]:
            try:
                return _planned(name, problem, privacy, options, reason)
            except GuaranteeError as error:
                reason = f"{name} cannot run: {error}"
        return _planned(ways[-1], problem, privacy, options, reason)


def _budget(problem: Problem, privacy: PrivacySpec) -> float:
    """N mu/m: the units, times mu of the guarantee, over the rows of a unit; for delta > 0."""
    mu = gaussian.gaussian_mu(privacy.epsilon, privacy.delta_for(problem.n_units))
    return problem.n_units * mu / problem.max_rows_per_unit


def _choice(problem: Problem, privacy: PrivacySpec) -> tuple[str, str]:
    """Name of the method to take, and why."""
    if privacy.delta_for(problem.n_units) == 0.0:
        return BoltOn.name, "of bolt-on and scs13, whose noise needs no delta, bolt-on adds far less"
    d, most = problem.n_features, composed.MAX_WHITENED_FEATURES
    if d > most:
        return DpGd.name, f"whitening the rows, which is more accurate, takes at most {most:,} features"
    if problem.task == "regression":
        needed = STATISTICS_BUDGET * d**2
        budget = _budget(problem, privacy)
        if budget >= needed:
            return SufficientStatistics.name, (
                f"n mu = {budget:,.0f} (rows times mu of the guarantee) is at least {STATISTICS_BUDGET:g} "
                f"d^2 = {needed:,.0f} for d features, enough for one release of all second moments to beat "
                "noisy gradients"
            )
    return WhitenedDpGd.name, (
        f"usually the most accurate for up to {most:,} features with so many rows, and in few passes"
    )


def _curves(problem: Problem, privacy: PrivacySpec, options: AutoOptions) -> tuple[int, str]:
    """How many pieces the curves of numeric columns get, and why; 0: there are none."""
    columns = len(problem.most_pieces)
    if not columns or options.features == "linear" or privacy.delta_for(problem.n_units) == 0.0:
        return 0, ""
    budget = _budget(problem, privacy)
    pieces = min(int(budget / (CURVE_BUDGET[problem.task] * columns * problem.n_outputs)), MOST_PIECES)
    told = f"n mu = {budget:,.0f} (rows times mu of the guarantee) and {columns} numeric columns"
    if pieces < FEWEST_PIECES:
        return 0, f"no curves, which {told} do not pay for"
    if problem.curved(pieces).n_features > composed.MAX_WHITENED_FEATURES:
        return 0, f"no curves, since whitening takes at most {composed.MAX_WHITENED_FEATURES:,} features"
    return pieces, f"curves of {pieces} pieces, which {told} pay for (features = linear leaves them out)"


def _planned(method: str, problem: Problem, privacy: PrivacySpec, options: AutoOptions, reason: str) -> Plan:
    """The plan of a method with the options that were given, all of which it must have."""
    given = {name: value for name, value in options.given().items() if name != "features"}
    return replace(TrainSpec(method, **given).decide(problem, privacy), reason=reason)
