# SPDX-License-Identifier: PostgreSQL
"""Noise of every step over batches by random allocation, with one order of the rows or a fresh one a pass."""

from __future__ import annotations

import functools
import math

from pg_dpml.errors import GuaranteeError
from pg_dpml.privacy import resolution
from pg_dpml.privacy.accounting import allocated, subsampled
from pg_dpml.privacy.noise.batches import largest_batch, sum_rounding
from pg_dpml.privacy.noise.steps import UNLIKELY, StepNoise, delta_of_steps, left_to_steps
from pg_dpml.spec.relation import Relation

__all__ = ["calibrate_allocated"]

_TIE = 2.0**-127
"""Above the probability that two units draw the same key."""

_NO_DEARER = 1.02
"""One order for all passes, which is faster, is taken where its noise is at most so many times the least."""


@functools.lru_cache(maxsize=64)
def _allocated(
    epsilon: float, delta: float, batches: int, passes: int, relation: Relation
) -> subsampled.Accounted:
    """The accountant's answer; a plan is often made twice, and this takes a second."""
    return allocated.allocated_gaussian_multiplier(epsilon, delta, batches, passes, relation)


def calibrate_allocated(
    *,
    bound: float,
    relation: Relation,
    passes: int,
    steps: int,
    n_units: int,
    max_rows_per_unit: int,
    row_bound: float,
    n_weights: int,
    epsilon: float,
    delta: float,
    fresh_order: bool | None,
) -> StepNoise:
    """Noise of every step over batches by random allocation.

    Parameters
    ----------
    bound, relation, passes, steps, n_units, max_rows_per_unit, row_bound, n_weights, epsilon, delta
        As in `calibrate_poisson`.
    fresh_order : bool or None
        Whether every pass has an allocation of its own; None: if that needs less noise.

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
    epsilon, delta = left_to_steps(epsilon, delta, steps * n_weights)
    most = largest_batch(n_units, 1.0 / batches, delta * UNLIKELY / steps)
    ties = passes * n_units * _TIE
    if ties > UNLIKELY * delta:
        raise GuaranteeError(
            f"delta = {delta:.3g} is too small for the keys of a random order: take a larger one"
        )
    unlikely = 2.0 * UNLIKELY * delta + ties
    delta = delta_of_steps(delta) - ties
    orders = {}
    if fresh_order is not False:
        orders[passes] = _allocated(epsilon, delta, batches, passes, relation)
    if fresh_order is not True:
        orders[1] = _allocated(epsilon, delta, batches, 1, relation)
    multipliers = {
        allocations: math.sqrt(passes / allocations) * found.noise_multiplier
        for allocations, found in orders.items()
    }
    allocations = (
        1 if multipliers.get(1, math.inf) <= _NO_DEARER * multipliers.get(passes, math.inf) else passes
    )
    rounding = sum_rounding(most * max_rows_per_unit, row_bound)
    scale, calibrated, grid = resolution.step_room(
        "gaussian", multipliers[allocations], bound, bound, rounding, n_weights
    )
    change = relation.gradient_change(bound)
    return StepNoise(
        "gaussian", scale, scale / bound, change, relation.gradient_change(calibrated), grid, steps, passes,
        None, orders[allocations].accountant, n_weights, unlikely=unlikely,
        accounted_multiplier=scale / calibrated, allocations=allocations,
    )  # fmt: skip
