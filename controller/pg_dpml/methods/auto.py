# SPDX-License-Identifier: PostgreSQL
"""The default: a method chosen by public numbers alone."""

from __future__ import annotations

from dataclasses import replace

from pg_dpml.errors import GuaranteeError
from pg_dpml.methods.bolt_on import BoltOn
from pg_dpml.methods.dp_gd import DpGd
from pg_dpml.methods.sufficient_statistics import SufficientStatistics
from pg_dpml.methods.whitened_dp_gd import WhitenedDpGd
from pg_dpml.privacy import gaussian
from pg_dpml.privacy.noise import composed
from pg_dpml.spec.privacy import PrivacySpec
from pg_dpml.training.method import Example, PrivateMethod, register
from pg_dpml.training.plan import Plan, Problem
from pg_dpml.training.shared_options import LossOptions
from pg_dpml.training.spec import TrainSpec

__all__ = ["Auto"]

STATISTICS_BUDGET = 100.0
"""n mu/(m d^2) from which the second moments of rows and labels were at least as good as gradients, on
average over public and made-up regressions: they need no steps, but their noise grows with d^2."""


@register
class Auto(PrivateMethod[LossOptions]):
    """The policy that chooses a method; the plan, the model and the ledger name the one chosen."""

    name = "auto"
    summary = "chooses the method by public numbers"
    cards = ()
    options = LossOptions
    examples = (Example(), Example("multiclass"), Example("regression"))

    def plan(self, problem: Problem, privacy: PrivacySpec, options: LossOptions) -> Plan:
        """The plan of the method chosen, with the reason.

        Where a method would have to release more numbers than the precision of its noise allows, dp-gd
        comes next, which releases fewer, and then bolt-on, which releases the model alone.
        """
        method, reason = _choice(problem, privacy)
        ways = [method] if method == BoltOn.name else list(dict.fromkeys((method, DpGd.name, BoltOn.name)))
        for name in ways[:-1]:
            try:
                return _planned(name, problem, privacy, options, reason)
            except GuaranteeError as error:
                reason = f"{name} cannot run: {error}"
        return _planned(ways[-1], problem, privacy, options, reason)


def _choice(problem: Problem, privacy: PrivacySpec) -> tuple[str, str]:
    """Name of the method to take, and why."""
    delta = privacy.delta_for(problem.n_units)
    if delta == 0.0:
        return BoltOn.name, "of bolt-on and scs13, whose noise needs no delta, bolt-on adds far less"
    d, most = problem.n_features, composed.MAX_WHITENED_FEATURES
    if d > most:
        return DpGd.name, f"whitening the rows, which is more accurate, takes at most {most:,} features"
    if problem.task == "regression":
        needed = STATISTICS_BUDGET * d**2
        budget = problem.n_units * gaussian.gaussian_mu(privacy.epsilon, delta) / problem.max_rows_per_unit
        if budget >= needed:
            return SufficientStatistics.name, (
                f"n mu = {budget:,.0f} is at least {STATISTICS_BUDGET:g} d^2 = {needed:,.0f}, enough for one "
                "release of all second moments to beat noisy gradients"
            )
    return WhitenedDpGd.name, (
        f"usually the most accurate for up to {most:,} features with so many rows, and in few passes"
    )


def _planned(method: str, problem: Problem, privacy: PrivacySpec, options: LossOptions, reason: str) -> Plan:
    """The plan of a method with the options that were given, all of which it must have."""
    return replace(TrainSpec(method, **options.given()).decide(problem, privacy), reason=reason)
