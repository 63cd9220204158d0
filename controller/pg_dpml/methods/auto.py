# SPDX-License-Identifier: PostgreSQL
"""The default: a method chosen by public numbers alone."""

from __future__ import annotations

from dataclasses import replace

from pg_dpml.errors import GuaranteeError
from pg_dpml.methods import bolt_on, full_batch, sufficient_statistics
from pg_dpml.privacy import gaussian
from pg_dpml.privacy.noise import composed
from pg_dpml.spec.privacy import PrivacySpec
from pg_dpml.training.plan import Plan, Problem
from pg_dpml.training.spec import TrainSpec

__all__ = ["plan"]

STATISTICS_BUDGET = 100.0
"""n mu/(m d^2) from which the second moments of rows and labels were at least as good as gradients, on
average over public and made-up regressions: they need no steps, but their noise grows with d^2."""


def plan(problem: Problem, privacy: PrivacySpec, spec: TrainSpec) -> Plan:
    """The plan of the method chosen, with the reason.

    Parameters
    ----------
    problem : Problem
    privacy : PrivacySpec
    spec : TrainSpec
        Of method "auto".

    Returns
    -------
    Plan
        Its method is the one chosen.

    Raises
    ------
    SpecError
        If the loss does not fit the task.
    GuaranteeError
        If no method can give the guarantee.
    """
    delta = privacy.delta_for(problem.n_units)
    if delta == 0.0:
        reason = "of bolt-on and scs13, whose noise needs no delta, bolt-on adds far less"
        return _choose(problem, privacy, spec, "bolt-on", reason)
    d, most = problem.n_features, composed.MAX_WHITENED_FEATURES
    if d > most:
        reason = f"whitening the rows, which is more accurate, takes at most {most:,} features"
        return _choose(problem, privacy, spec, "dp-gd", reason)
    if problem.task == "regression":
        needed = STATISTICS_BUDGET * d**2
        budget = problem.n_units * gaussian.gaussian_mu(privacy.epsilon, delta) / problem.max_rows_per_unit
        if budget >= needed:
            reason = (
                f"n mu = {budget:,.0f} is at least {STATISTICS_BUDGET:g} d^2 = {needed:,.0f}, enough for one "
                "release of all second moments to beat noisy gradients"
            )
            return _choose(problem, privacy, spec, "sufficient-statistics", reason)
    reason = f"usually the most accurate for up to {most:,} features with so many rows, and in few passes"
    return _choose(problem, privacy, spec, "whitened-dp-gd", reason)


def _choose(problem: Problem, privacy: PrivacySpec, spec: TrainSpec, method: str, reason: str) -> Plan:
    """The plan of `method`, or of one that releases fewer numbers, where precision does not allow so many."""
    plans = {
        "sufficient-statistics": sufficient_statistics.plan,
        "whitened-dp-gd": full_batch.plan,
        "dp-gd": full_batch.plan,
        "bolt-on": bolt_on.plan,
    }
    for name in dict.fromkeys((method, "dp-gd")):
        try:
            return replace(plans[name](problem, privacy, replace(spec, method=name)), reason=reason)
        except GuaranteeError as error:
            reason = f"{name} cannot run: {error}"
    return replace(plans["bolt-on"](problem, privacy, replace(spec, method="bolt-on")), reason=reason)
