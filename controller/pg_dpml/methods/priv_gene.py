# SPDX-License-Identifier: PostgreSQL
"""PrivGene: a genetic algorithm whose parents are chosen privately.

Zhang, Xiao, Yang, Zhang & Winslett 2013. Every generation has the same number of models. Two of them are
chosen by their losses; the next generation are their children. A generation costs one pass, which sums the
losses of all its models.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from pg_dpml.kernels import FloatArray, Loss
from pg_dpml.privacy.noise import adaptive, choices
from pg_dpml.privacy.noise.choices import ChoiceNoise
from pg_dpml.spec.privacy import PrivacySpec
from pg_dpml.training import shared_options
from pg_dpml.training.job import Job, Result
from pg_dpml.training.losses import choose_loss, loss_at_zero, loss_options
from pg_dpml.training.method import Card, Example, PrivateMethod, register
from pg_dpml.training.plan import Plan, Problem, privacy_warnings, require_models
from pg_dpml.training.shared_options import LossOptions

__all__ = ["Evolution", "PrivGene", "PrivGenePlan"]

MODELS = 64
GENERATIONS = 20
LOSS_CLIP = 2.0
"""Bound on a row's loss, over that of the zero model."""

FIRST_CHANGE = 4.0
LAST_CHANGE = 0.25


@dataclass(frozen=True)
class Evolution:
    """Generations of models, each the children of two models of the one before.

    Attributes
    ----------
    loss : Loss
    models : int
        Of a generation.
    generations : int
        Each reads all rows.
    loss_clip : float
        C; a row's loss is clipped to [0, C].
    """

    loss: Loss
    models: int
    generations: int
    loss_clip: float

    @property
    def passes(self) -> int:
        """Passes over the packed rows."""
        return self.generations

    @property
    def choices(self) -> int:
        """Two parents of every generation but the last, of which one model is chosen."""
        return 2 * self.generations - 1

    def options(self) -> dict[str, Any]:
        """The aggregate's options; only public numbers."""
        own = {"models": self.models, "gradient": False, "loss_clip": self.loss_clip}
        return loss_options(self.loss) | own

    def change(self, generation: int) -> float:
        """How far a child's changed weight moves; it falls from generation to generation."""
        done = generation / max(self.generations - 1, 1)
        return FIRST_CHANGE * math.pow(LAST_CHANGE / FIRST_CHANGE, done)

    def children(self, parents: FloatArray, change: float) -> FloatArray:
        """A generation, shape (models, n_weights), of parents of shape (2, n_weights): crossed, then changed.

        A child has the first weights of one parent and the last ones of the other. Then one weight moves by
        `change` up or down. No coin depends on a row.
        """
        size = parents.shape[1]
        found = np.empty((self.models, size))
        for child in found:
            first, end = secrets.randbelow(2), secrets.randbelow(size + 1)
            child[:end], child[end:] = parents[first, :end], parents[1 - first, end:]
            child[secrets.randbelow(size)] += change * (2 * secrets.randbelow(2) - 1)
        return found

    def record(self, n_units: int) -> dict[str, Any]:
        """Everything that fixes the generations, as a JSON-ready mapping of public numbers."""
        return {"options": self.options(), "generations": self.generations}

    def lines(self) -> Sequence[tuple[str, str]]:
        """Headings and texts that describe the generations."""
        return (
            ("Passes", f"{self.generations:,} over all rows, one a generation"),
            (
                "Steps",
                f"{self.models} models a generation, children of two that were chosen by the sums of their "
                f"losses, each row's clipped to [0, {self.loss_clip:g}]",
            ),
        )


@dataclass(frozen=True)
class PrivGenePlan(Plan):
    """Generations whose parents are chosen privately."""

    work: Evolution
    noise: ChoiceNoise

    needs_order: ClassVar[bool] = False

    def run(self, job: Job) -> Result:
        """Take the generations; of the rows each sees what was chosen alone."""
        work = self.work
        parents = np.zeros((2, self.problem.n_weights))
        for generation in range(work.generations):
            models = work.children(parents, work.change(generation))
            sums = job.gradient(models.reshape(-1), work.options())
            job.report("pass", generation + 1, work.generations)
            if sums.losses is None:  # the model of an empty table is zero
                continue
            losses = sums.losses
            first = choices.choose(losses, self.noise)
            if generation + 1 == work.generations:
                parents = models[[first, first]]
                continue
            others = np.delete(np.arange(work.models), first)
            parents = models[[first, others[choices.choose(losses[others], self.noise)]]]
        return Result(parents[0], work.passes)


@dataclass(frozen=True)
class PrivGeneOptions(LossOptions):
    """Options of priv-gene."""

    passes: int | None = shared_options.passes()


@register
class PrivGene(PrivateMethod[PrivGeneOptions]):
    """A genetic algorithm."""

    name = "priv-gene"
    comparison = True
    summary = "a genetic algorithm whose parents are chosen by noisy losses"
    cards = (
        Card(
            theorem="2 G - 1 choices by the exponential mechanism in G generations, each of bounded range "
            'epsilon_0 ("Frank-Wolfe"; Zhang, Xiao, Yang, Zhang & Winslett 2013).',
            sensitivity="2 m C' or m C' for the difference of two models' sums of losses, each row's clipped "
            "to [0, C'].",
            checked="As many weights as a pass can hold models of. No condition on delta, which may be 0.",
            charged="(epsilon, delta); of a `zcdp` budget (2 G - 1) epsilon_0^2/8.",
            post_processing="Crossings and changes, whose coins no row decides.",
            corrected="Gumbel noise drawn exactly, and epsilon_0 by the best conversion of its bounded "
            "range, in place of epsilon divided by the choices; losses are clipped to a public range.",
        ),
    )
    options = PrivGeneOptions
    examples = (
        Example(options={"passes": 3}),
        Example("multiclass", {"passes": 2}),
        Example("regression", {"passes": 2}),
    )

    def plan(self, problem: Problem, privacy: PrivacySpec, options: PrivGeneOptions) -> PrivGenePlan:
        """Fix the generations and the noise."""
        require_models(self.name, problem, MODELS)
        loss = choose_loss(problem, options, {})
        delta = privacy.delta_for(problem.n_units)
        work = Evolution(loss, MODELS, options.passes or GENERATIONS, LOSS_CLIP * loss_at_zero(loss))
        spread = adaptive.loss_spread(
            work.loss_clip, privacy.relation, problem.n_units, problem.max_rows_per_unit
        )
        noise = choices.calibrate(spread, work.choices, work.models, privacy.epsilon, delta)
        warnings = tuple(privacy_warnings(problem, privacy, delta))
        return PrivGenePlan(self.name, problem, work, problem.guarantee(privacy, delta), noise, warnings)
