# SPDX-License-Identifier: PostgreSQL
"""Noise that the server adds in every step of a run, to the sum of a batch's gradients.

Long because all ways to draw batches leave the same room for precision, rounding and large batches.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

from pg_dpml.errors import GuaranteeError
from pg_dpml.kernels import MAX_POISSON_STEPS
from pg_dpml.privacy import gaussian, knorm, resolution
from pg_dpml.privacy.accounting import allocated, bst14, subsampled
from pg_dpml.privacy.noise.base import Recorded
from pg_dpml.privacy.noise.batches import accounted_sampling, largest_batch, sum_rounding
from pg_dpml.privacy.releases import AllocatedPasses, GaussianRun, PoissonSteps, releases_of
from pg_dpml.spec.relation import Relation

__all__ = [
    "StepNoise",
    "bst14_multipliers",
    "calibrate_allocated",
    "calibrate_passes",
    "calibrate_poisson",
]


_TIE = 2.0**-127
"""Above the probability that two units draw the same key."""

_BATCHES_BESIDE = {
    "shuffled": "for batches cut by count",
    "poisson": "for Poisson batches",
    "fresh_order": "by random allocation with a fresh order a pass",
    "one_order": "with one order for all passes",
}
"""The accounts of random allocation and of what it is compared with, in words."""

_NO_DEARER = 1.02
"""One order for all passes, which is faster, is taken where its noise is at most so many times the least."""

_UNLIKELY = 2.0**-30
"""Share of delta that is left to batches larger than `largest_batch`."""


@dataclass(frozen=True)
class StepNoise(Recorded):
    """The noise of all steps of a run.

    Attributes
    ----------
    kind : str
        "gaussian" or "k-norm".
    scale : float
        On the sum of a batch's gradients. Gaussian: standard deviation of a coordinate. K-norm: the scale
        of the norm. 0 where no step is taken.
    noise_multiplier : float
        scale in units of the bound on what one unit of privacy adds to a sum.
    sensitivity : float
        D, how far one unit can move the sum of a batch that it is in.
    calibrated_sensitivity : float
        D with the head room for rounding and grid.
    grid : float
        Spacing of the grid that a sum and its noise are rounded to.
    steps, passes : int
    sampling : float or None
        Probability of a unit to be in a batch; None where batches are cut from a shuffled pass.
    accountant : str
        "exact", "pld", "rdp" or "advanced".
    n_weights : int
        Length of the weight vector.
    multipliers : mapping
        The noise by other accounts, to compare; `compared` has the words.
    score_stddev : float
        Of the noise that the steps add up to, in the score of a row of norm 1, if the curvature of the
        losses did not damp it: at most so much.
    accounted_sampling : float or None
        `sampling` with head room for the rounding of coins, as the accountant takes it.
    unlikely : float
        Share of delta that is left to Poisson batches larger than the rounding was bounded for.
    mu : float
        Of Gaussian noise in shuffled passes: that of all passes together, at most. Else 0.
    accounted_multiplier : float
        Of batches at random: standard deviation in units of the bound on one unit's share, as the accountant
        takes it. Else 0.
    allocations : int
        How often all units draw a batch: once for all passes, or once a pass. 0 where they do not.
    """

    kind: str
    scale: float
    noise_multiplier: float
    sensitivity: float
    calibrated_sensitivity: float
    grid: float
    steps: int
    passes: int
    sampling: float | None
    accountant: str
    n_weights: int
    multipliers: Mapping[str, float] = field(default_factory=dict)
    score_stddev: float = 0.0
    accounted_sampling: float | None = None
    unlikely: float = 0.0
    mu: float = 0.0
    accounted_multiplier: float = 0.0
    allocations: int = 0

    damped: ClassVar[bool] = True
    compared: ClassVar[str] = (
        "noise on a sum, in units of that bound: {published:.3g} as published (delta/T a step), "
        "{advanced:.3g} by strong composition with better deltas, {pld:.3g} by privacy loss distributions"
    )

    @property
    def sum_stddev(self) -> float:
        """Standard deviation of a coordinate of the noise on a sum."""
        # K-norm: E||z||^2 = d (d + 1) scale^2, spread evenly over d coordinates.
        return self.scale * (1.0 if self.kind == "gaussian" else math.sqrt(self.n_weights + 1))

    @property
    def expected_norm(self) -> float:
        """Root mean square of the norm of the noise in the model, at most."""
        return self.score_stddev * math.sqrt(self.n_weights)

    @property
    def added_to(self) -> str:
        """What the noise is added to, in words."""
        return "every step's gradient"

    @property
    def noised(self) -> str:
        """What of a batch carries noise, in words."""
        return "sum"

    @property
    def multiplied(self) -> str:
        """What `noise_multiplier` is a multiple of, in words."""
        return "the bound on what one unit adds"

    @property
    def numbers_of_step(self) -> int:
        """Noisy numbers that one step releases."""
        return self.n_weights

    def releases(self) -> GaussianRun | None:
        """All steps together. Source: privacy/README.md, "Noise at every step" and "Poisson batches"."""
        if self.kind != "gaussian" or self.scale == 0.0:
            return None
        if self.accounted_sampling is None and self.allocations == 0:
            return releases_of(self.mu, self.passes * self.numbers_of_step)
        numbers = self.steps * self.numbers_of_step
        precision = 2.0 * resolution.sampler_mu(numbers)
        delta = resolution.sampler_delta(numbers) + self.unlikely
        if self.accounted_sampling is None:
            multiplier = self.accounted_multiplier / math.sqrt(self.passes / self.allocations)
            return AllocatedPasses(multiplier, self.steps // self.passes, self.allocations, precision, delta)
        return PoissonSteps(self.accounted_multiplier, self.accounted_sampling, self.steps, precision, delta)

    def lines(self) -> Sequence[tuple[str, str]]:
        """Headings and texts that describe the noise."""
        if self.steps == 0:
            return (("Noise", "none: no step is taken"),)
        account = {
            "exact": "exact composition",
            "pld": "privacy loss distributions",
            "rdp": "Renyi differential privacy",
            "advanced": "strong composition",
        }[self.accountant]
        passes = "the one pass" if self.passes == 1 else f"each of {self.passes} passes"
        if self.allocations > 0:
            orders = "one order for all passes" if self.allocations == 1 else "a fresh order a pass"
            batches = (
                f"a unit is in one of {self.steps // self.passes:,} batches of {passes}, "
                f"drawn at random, with {orders}; account by {account}"
            )
        elif self.sampling is None:
            batches = f"a unit is in one batch of {passes}; {account}"
        else:
            batches = (
                f"{self.steps:,} Poisson batches, each with every unit with probability {self.sampling:.3g}; "
                f"account by {account}"
            )
        found = [
            (
                "Sensitivity",
                f"{self.sensitivity:.4g} (L2 distance one unit can move a batch's {self.noised})",
            ),
            (
                "Noise",
                f"{self.kind}, scale {self.scale:.4g} on every batch's {self.noised}, "
                f"{self.noise_multiplier:.3g} times {self.scale / self.noise_multiplier:.4g}, "
                f"{self.multiplied}: {batches}. It adds up to a standard deviation of at most "
                f"{self.score_stddev:.3g} in the score of a row, less where the losses' curvature damps it.",
            ),
        ]
        if self.multipliers.keys() == _BATCHES_BESIDE.keys():
            others = ", ".join(f"{self.multipliers[name]:.3g} {how}" for name, how in _BATCHES_BESIDE.items())
            found.append(("Accounts", f"noise on a sum, in units of that bound: {others}"))
        elif self.multipliers:
            found.append(("Accounts", self.compared.format(**self.multipliers)))
        return tuple(found)


def calibrate_passes(
    *,
    bound: float,
    relation: Relation,
    passes: int,
    steps: int,
    batch_rows: int,
    row_bound: float,
    n_weights: int,
    epsilon: float,
    delta: float,
) -> StepNoise:
    """Noise of every step of shuffled passes.

    Parameters
    ----------
    bound : float
        On the norm of what one unit of privacy adds to a batch's sum, in (0, inf).
    relation : Relation
    passes : int
        k >= 1.
    steps : int
        T; 0 for an empty table.
    batch_rows : int
        Most rows of a batch.
    row_bound : float
        On the norm of one row's gradient.
    n_weights : int
        Length of the weight vector.
    epsilon : float
        In (0, inf).
    delta : float
        In [0, 1); 0 for K-norm noise.

    Returns
    -------
    StepNoise
        Gaussian: sigma = sqrt(k) D / mu(epsilon, delta). K-norm: scale k D / epsilon.

    Raises
    ------
    GuaranteeError
        If delta or the precision does not allow it, or the server could not draw it.

    Notes
    -----
    Source: privacy/README.md, "Noise at every step".
    """
    kind = "gaussian" if delta > 0.0 else "k-norm"
    change = relation.gradient_change(bound)
    if steps == 0:
        return StepNoise(kind, 0.0, 0.0, 0.0, 0.0, 0.0, 0, passes, None, "exact", n_weights)
    mu = 0.0
    if delta > 0.0:
        mu = gaussian.gaussian_share(epsilon, delta, passes * n_weights)
        ratio = gaussian.gaussian_stddev(math.sqrt(passes), mu)
    else:
        ratio = knorm.knorm_scale(1.0, epsilon, n_weights, passes)
    rounding = sum_rounding(batch_rows, row_bound)
    scale, calibrated, grid = resolution.step_room(kind, ratio, change, bound, rounding, n_weights)
    return StepNoise(
        kind, scale, scale / bound, change, calibrated, grid, steps, passes, None, "exact", n_weights, mu=mu
    )


def _left_to_steps(epsilon: float, delta: float, n_numbers: int) -> tuple[float, float]:
    """What the precision of so many noisy numbers leaves of (epsilon, delta).

    Source: privacy/README.md, "The sampler".
    """
    taken = resolution.sampler_epsilon(n_numbers)
    left = resolution.require_share(taken, epsilon, "epsilon")
    return left, gaussian.delta_left(delta, n_numbers) * math.exp(-0.5 * taken)


def _delta_of_steps(delta: float) -> float:
    """What is left of delta once batches larger than `largest_batch` have had theirs."""
    return delta * (1.0 - 2.0 * _UNLIKELY)


@functools.lru_cache(maxsize=1024)
def _pld(
    epsilon: float, delta: float, sampling: float, steps: int, relation: Relation
) -> subsampled.Accounted:
    """The accountant's answer; a plan is often made twice, and this takes a second."""
    return subsampled.subsampled_gaussian_multiplier(epsilon, delta, sampling, steps, relation)


def calibrate_poisson(
    *,
    bound: float,
    relation: Relation,
    passes: int,
    steps: int,
    sampling: float,
    n_units: int,
    max_rows_per_unit: int,
    row_bound: float,
    n_weights: int,
    epsilon: float,
    delta: float,
    accountant: str = "pld",
) -> tuple[StepNoise, str | None]:
    """Noise of every step over Poisson batches.

    Parameters
    ----------
    bound : float
        C, on the norm of what one unit of privacy adds to a batch's sum, in (0, inf).
    relation : Relation
    passes, steps : int
        k and T; T = 0 for an empty table.
    sampling : float
        q, in (0, 1].
    n_units : int
        n.
    max_rows_per_unit : int
        m.
    row_bound : float
        On the norm of one row's gradient.
    n_weights : int
        Length of the weight vector.
    epsilon : float
        In (0, inf).
    delta : float
        In [0, 1).
    accountant : str
        "pld", or "advanced" for BST14's strong composition.

    Returns
    -------
    StepNoise
    str or None
        A warning of the accountant.

    Raises
    ------
    GuaranteeError
        If delta or the precision does not allow it, or the server could not draw it or take the steps.

    Notes
    -----
    Source: privacy/README.md, "Poisson batches", "Subsampled Gaussian noise" and "BST14".
    """
    if delta == 0.0:
        raise GuaranteeError(
            "delta = 0 has no Gaussian noise, which this method adds: leave delta out (1/n^2 then), or take "
            "method = bolt-on, whose K-norm noise needs none"
        )
    if steps == 0:
        return StepNoise("gaussian", 0.0, 0.0, 0.0, 0.0, 0.0, 0, passes, sampling, "exact", n_weights), None
    if steps > passes * MAX_POISSON_STEPS:
        raise GuaranteeError(
            f"a pass of {steps // passes:,} steps is longer than {MAX_POISSON_STEPS:,}, the most that the "
            "server takes: take a larger batch_size"
        )
    epsilon, delta = _left_to_steps(epsilon, delta, steps * n_weights)
    most = largest_batch(n_units, sampling, delta * _UNLIKELY / steps)
    unlikely = 2.0 * _UNLIKELY * delta
    delta = _delta_of_steps(delta)
    q = accounted_sampling(sampling, n_units, steps)
    if accountant == "advanced":
        found = bst14.advanced_multiplier(epsilon, delta, q, steps, relation)
        name, warning = accountant, None
    else:
        accounted = _pld(epsilon, delta, q, steps, relation)
        if not accounted.epsilon <= epsilon:
            raise GuaranteeError(
                f"no noise could be shown to cost at most epsilon = {epsilon:g} over {steps:,} steps: take a "
                "larger epsilon or delta, or fewer passes"
            )
        found, name, warning = accounted.noise_multiplier, accounted.accountant, accounted.warning
    rounding = sum_rounding(most * max_rows_per_unit, row_bound)
    noise = _gaussian_steps(
        found, name, bound, relation, rounding, passes, steps, n_weights,
        sampling=sampling, accounted_sampling=q, unlikely=unlikely,
    )  # fmt: skip
    return noise, warning


def _gaussian_steps(
    multiplier: float,
    accountant: str,
    bound: float,
    relation: Relation,
    rounding: float,
    passes: int,
    steps: int,
    n_weights: int,
    **more: Any,
) -> StepNoise:
    """Noise of so many times the bound on what a unit adds to a batch's sum, with room for its rounding."""
    scale, calibrated, grid = resolution.step_room("gaussian", multiplier, bound, bound, rounding, n_weights)
    return StepNoise(
        kind="gaussian",
        scale=scale,
        noise_multiplier=scale / bound,
        sensitivity=relation.gradient_change(bound),
        calibrated_sensitivity=relation.gradient_change(calibrated),
        grid=grid,
        steps=steps,
        passes=passes,
        accountant=accountant,
        n_weights=n_weights,
        accounted_multiplier=scale / calibrated,
        **more,
    )


def bst14_multipliers(
    epsilon: float, delta: float, sampling: float, n_units: int, steps: int, relation: Relation
) -> dict[str, float]:
    """Noise on a sum in units of L: as published, by strong composition, by privacy loss distributions.

    Parameters
    ----------
    epsilon, delta, sampling, n_units, steps, relation
        As in `calibrate_poisson`.

    Notes
    -----
    Source: privacy/README.md, "BST14".
    """
    q = accounted_sampling(sampling, n_units, steps)
    arguments = (epsilon, _delta_of_steps(delta), q, steps, relation)
    return {
        "published": bst14.published_bst14_multiplier(*arguments),
        "advanced": bst14.advanced_multiplier(*arguments),
        "pld": _pld(*arguments).noise_multiplier,
    }


@functools.lru_cache(maxsize=1024)
def _allocated_pld(
    epsilon: float, delta: float, batches: int, passes: int, relation: Relation, *, rough: bool
) -> subsampled.Accounted:
    """The accountant's answer; a plan is often made twice, and this takes a second."""
    return allocated.allocated_gaussian_multiplier(epsilon, delta, batches, passes, relation, rough=rough)


def calibrate_allocated(
    *,
    bound: float,
    relation: Relation,
    passes: int,
    steps: int,
    sampling: float,
    n_units: int,
    max_rows_per_unit: int,
    row_bound: float,
    n_weights: int,
    epsilon: float,
    delta: float,
    fresh_order: bool | None,
    worth: float = math.inf,
) -> StepNoise:
    """Noise of every step over batches by random allocation.

    Parameters
    ----------
    bound, relation, passes, steps, n_units, max_rows_per_unit, row_bound, n_weights, epsilon, delta
        As in `calibrate_poisson`.
    sampling : float
        q of the Poisson batches that the plan shows it beside.
    fresh_order : bool or None
        Whether every pass has an allocation of its own; None: if that needs less noise.
    worth : float
        The most noise with one order, in times that of Poisson batches, for which the account is worth its
        time. Where a rough one finds more than that, it is the one taken: a guarantee, with more noise than
        it needs.

    Returns
    -------
    StepNoise

    Raises
    ------
    GuaranteeError
        If delta or the precision does not allow it, or the server could not draw it or take the steps.

    Notes
    -----
    Source: privacy/README.md, "Batches by random allocation" and "Random allocation".
    """
    if delta == 0.0:
        raise GuaranteeError(
            "delta = 0 has no Gaussian noise, which random allocation is accounted with: leave delta out "
            "(1/n^2 then), or leave sampling out"
        )
    if steps == 0:
        return StepNoise(
            "gaussian", 0.0, 0.0, 0.0, 0.0, 0.0, 0, passes, None, "exact", n_weights, allocations=1
        )
    batches = steps // passes
    if n_units >= 2**31:
        raise GuaranteeError(
            f"sampling = allocation is for fewer than 2^31 units of privacy, not {n_units:,}: leave it out"
        )
    if batches > allocated.MOST_BATCHES:
        raise GuaranteeError(
            f"a pass of {batches:,} batches is longer than {allocated.MOST_BATCHES:,}, the most that random "
            "allocation is accounted for: take a larger batch_size"
        )
    epsilon, delta = _left_to_steps(epsilon, delta, n_weights * steps)
    most = largest_batch(n_units, 1.0 / batches, delta * _UNLIKELY / steps)
    ties = passes * n_units * _TIE
    if ties > _UNLIKELY * delta:
        raise GuaranteeError(
            f"delta = {delta:.3g} is too small for the keys of a random order: take a larger one"
        )
    unlikely = 2.0 * _UNLIKELY * delta + ties
    delta = _delta_of_steps(delta) - ties
    change = relation.gradient_change(bound)
    poisson = _pld(
        epsilon, delta, accounted_sampling(sampling, n_units, steps), steps, relation
    ).noise_multiplier
    account = partial(_allocated_pld, epsilon, delta, batches, relation=relation)
    rough = (
        worth < math.inf
        and math.sqrt(passes) * account(passes=1, rough=True).noise_multiplier > worth * poisson
    )
    orders = {count: account(passes=count, rough=rough) for count in {1, passes}}
    multipliers = {
        count: math.sqrt(passes / count) * found.noise_multiplier for count, found in orders.items()
    }
    beside = {
        "shuffled": math.sqrt(passes) * change / bound / gaussian.gaussian_mu(epsilon, delta),
        "poisson": poisson,
        "fresh_order": multipliers[passes],
        "one_order": multipliers[1],
    }
    if fresh_order is None:
        fresh_order = multipliers[1] > _NO_DEARER * multipliers[passes]
    allocations = passes if fresh_order else 1
    rounding = sum_rounding(max_rows_per_unit * most, row_bound)
    return _gaussian_steps(
        multipliers[allocations], orders[allocations].accountant, bound, relation, rounding, passes, steps,
        n_weights, sampling=None, unlikely=unlikely, allocations=allocations, multipliers=beside,
    )  # fmt: skip
