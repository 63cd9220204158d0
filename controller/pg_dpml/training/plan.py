# SPDX-License-Identifier: PostgreSQL
"""What a run will do and what it will cost, fixed before any row is read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from pg_dpml.blocks.distributed import ShardUnits
from pg_dpml.blocks.source import EncoderChange
from pg_dpml.errors import SpecError
from pg_dpml.kernels import Loss
from pg_dpml.privacy.cost import Accounting
from pg_dpml.privacy.guarantee import Guarantee
from pg_dpml.privacy.noise.base import RunNoise
from pg_dpml.spec.data import MAX_WEIGHTS
from pg_dpml.spec.privacy import PrivacySpec

if TYPE_CHECKING:
    from pg_dpml.blocks.source import Source
    from pg_dpml.database.session import Session
    from pg_dpml.training.job import Job, Result

__all__ = [
    "Plan",
    "Problem",
    "Work",
    "budget_warnings",
    "privacy_warnings",
    "require_models",
    "shards_text",
]

WARN_BUDGET = 20.0
"""n mu/D below which a model says little."""


@dataclass(frozen=True)
class Problem:
    """The public numbers of a training problem.

    Attributes
    ----------
    n_units : int
        n, the size of the table, public; units, where a unit of privacy is declared.
    n_features : int
        d, the intercept included.
    n_outputs : int
        K, the number of classes, of a multiclass problem; else 1.
    task : str
        "binary", "multiclass" or "regression".
    unit : str or None
        Column whose equal values are one unit of privacy; None: every row is one.
    max_rows_per_unit : int
        Rows used of a unit, each of which may move a gradient by D.
    budget : Accounting or None
        How the budget adds up that a run is charged to; None: none, or the run is charged by its epsilon and
        delta alone.
    most_pieces : tuple of int
        For each numeric column without a curve, the most pieces of one that a method may give it, at least 2.
    pieces : int
        Pieces of the curves that the method gives them, where that many fit; below 2: it gives none.
    intercept : bool
        Whether the last feature of every row is 1.
    sparse : bool
        Whether there are sparse columns, which no projection takes.
    shards : ShardUnits or None
        Units of each shard of a distributed table, where a run is to train on each by itself; else None.
    """

    n_units: int
    n_features: int
    n_outputs: int
    task: str
    unit: str | None = None
    max_rows_per_unit: int = 1
    budget: Accounting | None = None
    most_pieces: tuple[int, ...] = ()
    pieces: int = 0
    intercept: bool = True
    sparse: bool = False
    shards: ShardUnits | None = None

    def curved(self, pieces: int) -> Problem:
        """The same problem with curves of so many pieces, at least 2, which have a feature for each knot."""
        added = sum(min(pieces, most) + 1 for most in self.most_pieces)
        return replace(self, n_features=self.n_features + added, most_pieces=(), pieces=pieces)

    @property
    def n_weights(self) -> int:
        """Length of the weight vector."""
        return self.n_outputs * self.n_features

    def guarantee(self, privacy: PrivacySpec, delta: float) -> Guarantee:
        """The guarantee that is asked for, with the delta that is reported."""
        return Guarantee(
            privacy.epsilon,
            delta,
            privacy.relation,
            self.unit,
            self.max_rows_per_unit,
            None if self.shards is None else self.shards.key,
        )


class Work(Protocol):
    """What the passes of a method do: options for the server, and lines for people."""

    @property
    def loss(self) -> Loss:
        """The loss that is minimised."""

    @property
    def passes(self) -> int | None:
        """Passes over the packed rows; the most there can be, where a run may need fewer; None: not fixed."""

    def record(self, n_units: int) -> dict[str, Any]:
        """Everything that fixes the passes, as a JSON-ready mapping of public numbers."""

    def lines(self) -> Sequence[tuple[str, str]]:
        """Headings and texts that describe the passes."""


@dataclass(frozen=True)
class Plan(ABC):
    """One run, decided from public numbers alone; each method has plans of its own.

    Attributes
    ----------
    method : str
    problem : Problem
    work : Work
        Its passes.
    guarantee : Guarantee or None
        None stamps the run as not private.
    noise : RunNoise or None
    warnings : tuple of str
    reason : str
        A sentence on why these passes and this noise, where the method chose among several ways.
    noise_reason : str
        Which kind of noise it is and what that means for the budget, where the budget has a say.
    place : str
        Where the rows of a distributed table are packed; empty for any other table.
    """

    method: str
    problem: Problem
    work: Work
    guarantee: Guarantee | None
    noise: RunNoise | None
    warnings: tuple[str, ...] = ()
    reason: str = ""
    noise_reason: str = ""
    place: str = ""

    norm: ClassVar[str | None] = None
    """How the encoder must bound rows for the guarantee to hold; None: to norm 1, as the spec says."""

    needs_order: ClassVar[bool] = True
    """Whether the guarantee or the passes need the rows in a random order, drawn without looking at them.

    False for passes that only add up all rows: a bound on the rounding of such a sum holds in any order.
    Source: privacy/README.md, "Randomness" and "Full-batch gradients".
    """

    by_shards: ClassVar[bool] = False
    """Whether it trains on each shard of a distributed table by itself, in a random order of its own.

    Source: privacy/README.md, "Models of shards".
    """

    goal: ClassVar[str | None] = None
    """What ends the passes of a baseline before it has taken all it may; None: nothing that is told."""

    @property
    def private(self) -> bool:
        """False for baselines."""
        return self.guarantee is not None

    @property
    def encoder_change(self) -> EncoderChange:
        """How rows must be encoded for it."""
        return EncoderChange(self.norm, self.problem.pieces)

    def require_room(self, session: Session, source: Source) -> None:  # noqa: B027
        """Refuse, before a charge, a run that the server has not enough memory for; most runs need none.

        Raises
        ------
        SpecError
        """

    @abstractmethod
    def run(self, job: Job) -> Result:
        """Take the passes on the packed rows and release the model."""


def privacy_warnings(problem: Problem, privacy: PrivacySpec, delta: float) -> list[str]:
    """What is said of a guarantee that promises little, and of an empty table."""
    found = []
    if problem.n_units == 0:
        found.append("the table is empty: the model will be zero")
    elif delta > 1.0 / problem.n_units:
        found.append(
            f"delta = {delta:.3g} is above 1/n = {1.0 / problem.n_units:.3g}: a mechanism that publishes one "
            "whole row at random would pass; take delta well below 1/n"
        )
    if privacy.epsilon > 20.0:
        found.append(f"epsilon = {privacy.epsilon:g} promises next to nothing; values up to 10 are usual")
    return found


def shards_text(units: Sequence[int]) -> str:
    """What a run does that trains on each shard by itself, by their units of privacy."""
    some = [one for one in units if one > 0] or [0]
    sizes = f"{some[0]:,}" if min(some) == max(some) else f"{min(some):,} to {max(some):,}"
    return (
        f"{len(some)} with rows, of {sizes} units: the passes are over each by itself, and the model is the "
        "mean of their models, weighted by their units"
    )


def require_models(method: str, problem: Problem, models: int) -> None:
    """Refuse a model so large that a pass cannot take so many of them at once.

    Raises
    ------
    SpecError
    """
    if models * problem.n_weights > MAX_WEIGHTS:
        raise SpecError(
            f"method = {method} takes at most {MAX_WEIGHTS // models:,} coefficients, not "
            f"{problem.n_weights:,}: take method = auto, frank-wolfe or dp-gd"
        )


def budget_warnings(problem: Problem, budget: float) -> list[str]:
    """What is said of n mu/D, the number of units in units of the noise on a sum, where it is small."""
    if problem.n_units == 0 or budget >= WARN_BUDGET:
        return []
    return [
        f"n mu/D = {budget:.2g}, the rows over the noise on their sum, is little to learn from: expect "
        "a model that is mostly noise; it takes more rows or a larger epsilon"
    ]
