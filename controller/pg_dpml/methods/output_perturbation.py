# SPDX-License-Identifier: PostgreSQL
"""Output perturbation of plain gradient descent: bolt-on with a batch of all rows, for comparison.

Chaudhuri, Monteleoni & Sarwate 2011 and Zhang, Zheng, Mou & Wang 2017, with the sensitivity of
privacy/README.md, "Sensitivity of any schedule", for b = n in place of the published bounds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pg_dpml.methods.bolt_on import BoltOn, BoltOnOptions, BoltOnPlan
from pg_dpml.spec.privacy import PrivacySpec
from pg_dpml.training import shared_options
from pg_dpml.training.method import Card, Example, PrivateMethod, register
from pg_dpml.training.plan import Problem
from pg_dpml.training.shared_options import RegularisedOptions

__all__ = ["OutputPerturbation"]

STEPS = 100


@dataclass(frozen=True)
class OutputPerturbationOptions(RegularisedOptions):
    """Options of output-perturbation."""

    passes: int | None = shared_options.passes()
    step_size: float | None = shared_options.step_size()


@register
class OutputPerturbation(PrivateMethod[OutputPerturbationOptions]):
    """Gradient descent, then one noise."""

    name = "output-perturbation"
    comparison = True
    summary = "gradient descent on all rows without noise, then one noise on the finished model"
    cards = (
        Card(
            theorem="Output perturbation of gradient descent with fixed steps: the recursion of "
            '"Growth" and "Sensitivity of any schedule" with a batch of all rows, b = n.',
            sensitivity="The recursion; without lambda the sum of all steps, times D/n.",
            checked="Every step at most 1/(beta + lambda); passes fixed beforehand; rounding below a "
            "hundredth of the sensitivity, which some ten million rows exceed; delta against the sampler.",
            charged="(epsilon, delta); with delta = 0, delta = dimension 2^-120.",
            corrected="As of `bolt-on`: the number of steps never depends on the loss, the regulariser is "
            "not in the bound, and noise is calibrated exactly.",
        ),
    )
    options = OutputPerturbationOptions
    examples = (
        Example(options={"passes": 5}),
        Example("multiclass", {"passes": 3, "lambda_": 0.01}),
        Example("regression", {"passes": 4, "step_size": 0.1}),
    )

    def plan(self, problem: Problem, privacy: PrivacySpec, options: OutputPerturbationOptions) -> BoltOnPlan:
        """A plan of bolt-on whose batches have all rows."""
        whole = BoltOnOptions(
            **options.given(),
            solver="sgd",
            schedule="constant",
            batch_size=max(problem.n_units, 1),
        )
        if options.passes is None:
            whole = replace(whole, passes=STEPS)
        return replace(BoltOn().plan(problem, privacy, whole), method=self.name)
