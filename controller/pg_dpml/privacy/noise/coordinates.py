# SPDX-License-Identifier: PostgreSQL
"""Noise of coordinate descent: on v, the sum of the rows times their duals, or on coordinates of the model.

C is `update_clip`, the most by which one update moves its number.
Source: privacy/README.md, "Coordinate descent".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import ClassVar

from pg_dpml.privacy.gaussian import gaussian_stddev
from pg_dpml.privacy.noise import output
from pg_dpml.privacy.noise.batches import sum_rounding
from pg_dpml.privacy.noise.composed import ComposedNoise, run_mu
from pg_dpml.privacy.noise.steps import StepNoise, calibrate_poisson
from pg_dpml.privacy.resolution import step_room
from pg_dpml.spec.relation import Relation

__all__ = [
    "CoordinateNoise",
    "DualNoise",
    "calibrate_coordinates",
    "calibrate_independent",
    "calibrate_sequential",
    "coordinate_bound",
    "dual_bound",
    "sequential_bound",
]


@dataclass(frozen=True)
class DualNoise(StepNoise):
    """The noise of all steps of dual coordinate descent.

    Attributes
    ----------
    dual_noise : bool
        Whether the duals of a batch carry noise of the same scale, too.
    released_duals : int
        Duals of a batch that count as released, because the guarantee rests on their noise.
    """

    dual_noise: bool = False
    released_duals: int = 0

    compared: ClassVar[str] = (
        "noise that the same guarantee takes, in units of the update_clip: {sum:.3g} on the sum alone, "
        "{published:.3g} on the sum and on the duals, as the publication adds it (dual_noise)"
    )

    @property
    def added_to(self) -> str:
        """What the noise is added to, in words."""
        return f"{'the duals, and ' if self.dual_noise else ''}the sum of rows times duals, in every step"

    @property
    def noised(self) -> str:
        """What of a batch carries noise, in words."""
        return "duals and sum" if self.dual_noise else "sum"

    @property
    def multiplied(self) -> str:
        """What `noise_multiplier` is a multiple of, in words."""
        return "the sensitivity" if self.released_duals > 0 else super().multiplied

    @property
    def numbers_of_step(self) -> int:
        """Noisy numbers that one step releases."""
        return self.n_weights + self.released_duals


@dataclass(frozen=True)
class CoordinateNoise(ComposedNoise):
    """The noise of all steps of coordinate descent on the model itself."""

    @property
    def added_to(self) -> str:
        """What the noise is added to, in words."""
        return "the model's coordinates, in every step"

    def lines(self) -> Sequence[tuple[str, str]]:
        """Headings and texts that describe the noise."""
        assert self.gradient is not None  # each of the releases
        one = self.gradient
        return (
            (
                "Sensitivity",
                f"{one.sensitivity:.4g} (L2 distance one unit can move a step's {one.n_weights} coordinates)",
            ),
            (
                "Noise",
                f"gaussian, standard deviation {one.scale:.4g} in each coordinate of {self.steps:,} steps: "
                f"mu = {self.mu:.4g} in all. It adds up to a standard deviation of at most "
                f"{self.score_stddev:.3g} in the score of a row, less where the losses' curvature damps it.",
            ),
        )


def dual_bound(update_clip: float, max_rows_per_unit: int, *, dual_noise: bool) -> float:
    """Bound on what one unit of privacy adds to a batch: to v alone, or to its duals and v as one vector.

    Parameters
    ----------
    update_clip : float
        C, in (0, inf).
    max_rows_per_unit : int
        m.
    dual_noise : bool

    Returns
    -------
    float
        m C, or sqrt(m + m^2) C: m duals move by at most C each.

    Notes
    -----
    Source: privacy/README.md, "Coordinate descent".
    """
    m = max_rows_per_unit
    return update_clip * (math.sqrt(m * (m + 1.0)) if dual_noise else m)


def sequential_bound(update_clip: float, batch_rows: int) -> float:
    """S, how far one unit moves the duals of its batch and v, as one vector, where updates see each other.

    Parameters
    ----------
    update_clip : float
        C, in (0, inf).
    batch_rows : int
        r, most rows of a batch.

    Returns
    -------
    float
        2 C sqrt(r (r + 1)), under both neighbouring relations.

    Notes
    -----
    Source: privacy/README.md, "Batches whose updates see each other".
    """
    return 2.0 * update_clip * math.sqrt(batch_rows * (batch_rows + 1.0))


def coordinate_bound(update_clip: float, coordinates: int) -> float:
    """S, how far one unit moves the coordinates of a step, as one vector.

    Parameters
    ----------
    update_clip : float
        C, in (0, inf).
    coordinates : int
        c, of a step.

    Returns
    -------
    float
        2 C sqrt(c), under both neighbouring relations.

    Notes
    -----
    Source: privacy/README.md, "Coordinates of the model".
    """
    return 2.0 * update_clip * math.sqrt(coordinates)


def calibrate_independent(
    *,
    update_clip: float,
    dual_noise: bool,
    relation: Relation,
    passes: int,
    steps: int,
    sampling: float,
    n_units: int,
    max_rows_per_unit: int,
    n_features: int,
    epsilon: float,
    delta: float,
) -> tuple[DualNoise, str | None]:
    """Noise on v in every step over Poisson batches whose updates do not see each other.

    Parameters
    ----------
    update_clip : float
        C, in (0, inf).
    dual_noise : bool
        True for noise on the duals, too, as in the publication, calibrated for both as one vector.
    relation : Relation
    passes, steps : int
        k and T; T = 0 for an empty table.
    sampling : float
        q, in (0, 1].
    n_units : int
        n.
    max_rows_per_unit : int
        m.
    n_features : int
        d, the length of v.
    epsilon : float
        In (0, inf).
    delta : float
        In (0, 1).

    Returns
    -------
    DualNoise
        `multipliers` has the noise with and without `dual_noise`, in units of C.
    str or None
        A warning of the accountant.

    Raises
    ------
    GuaranteeError
        As `calibrate_poisson`.

    Notes
    -----
    Source: privacy/README.md, "Coordinate descent" and "Poisson batches".
    """
    bounds = {
        name: dual_bound(update_clip, max_rows_per_unit, dual_noise=noisy)
        for name, noisy in (("sum", False), ("published", True))
    }
    noise, warning = calibrate_poisson(
        bound=bounds["published" if dual_noise else "sum"],
        relation=relation,
        passes=passes,
        steps=steps,
        sampling=sampling,
        n_units=n_units,
        max_rows_per_unit=max_rows_per_unit,
        row_bound=update_clip,
        n_weights=n_features,
        epsilon=epsilon,
        delta=delta,
    )
    found = {field.name: getattr(noise, field.name) for field in fields(noise)}
    if steps > 0:
        found["multipliers"] = {
            name: noise.noise_multiplier * bound / update_clip for name, bound in bounds.items()
        }
    return DualNoise(**found, dual_noise=dual_noise), warning


def calibrate_sequential(
    *,
    update_clip: float,
    passes: int,
    steps: int,
    batch_rows: int,
    n_features: int,
    epsilon: float,
    delta: float,
) -> DualNoise:
    """Noise on v and on the duals in every step of shuffled passes whose updates see each other.

    Parameters
    ----------
    update_clip : float
        C, in (0, inf).
    passes : int
        k >= 1.
    steps : int
        T; 0 for an empty table.
    batch_rows : int
        r, most rows of a batch.
    n_features : int
        d, the length of v.
    epsilon : float
        In (0, inf).
    delta : float
        In (0, 1).

    Returns
    -------
    DualNoise
        sigma = sqrt(k) S / mu(epsilon, delta), S from `sequential_bound`.

    Raises
    ------
    GuaranteeError
        If delta or the precision does not allow it, or the server could not draw it.

    Notes
    -----
    Source: privacy/README.md, "Batches whose updates see each other".
    """
    numbers = n_features + batch_rows
    mu = run_mu(epsilon, delta, passes * numbers)
    if steps == 0:
        scale = change = calibrated = grid = mu = 0.0
    else:
        change = sequential_bound(update_clip, batch_rows)
        ratio = gaussian_stddev(math.sqrt(passes), mu)
        rounding = sum_rounding(batch_rows, update_clip)
        scale, calibrated, grid = step_room("gaussian", ratio, change, change, rounding, numbers)
    return DualNoise(
        "gaussian",
        scale,
        scale / change if change > 0.0 else 0.0,
        change,
        calibrated,
        grid,
        steps,
        passes,
        None,
        "exact",
        n_features,
        mu=mu,
        dual_noise=True,
        released_duals=batch_rows,
    )


def calibrate_coordinates(
    *,
    update_clip: float,
    coordinates: int,
    passes: int,
    n_units: int,
    n_weights: int,
    epsilon: float,
    delta: float,
) -> CoordinateNoise:
    """Noise on the coordinates that every step changes, for steps that read all rows.

    Parameters
    ----------
    update_clip : float
        C, in (0, inf).
    coordinates : int
        c, of a step, in [1, n_weights].
    passes : int
        k >= 1; each takes ceil(n_weights / c) steps, and changes every coordinate once.
    n_units : int
        n.
    n_weights : int
        Length of the weight vector.
    epsilon : float
        In (0, inf).
    delta : float
        In (0, 1).

    Returns
    -------
    CoordinateNoise
        Standard deviation S sqrt(T)/mu for T steps, S from `coordinate_bound`. No noise for an empty table.

    Raises
    ------
    GuaranteeError
        If delta or the precision does not allow it.

    Notes
    -----
    Source: privacy/README.md, "Coordinates of the model".
    """
    steps = passes * math.ceil(n_weights / coordinates)
    mu = run_mu(epsilon, delta, steps * n_weights)
    if n_units == 0:
        release = output.no_release("gaussian", coordinates)
    else:
        bound = coordinate_bound(update_clip, coordinates)
        release = output.calibrate_gaussian(bound, 0.0, coordinates, mu / math.sqrt(steps))
    return CoordinateNoise("gaussian", mu, steps, release, None, n_weights, math.sqrt(passes) * release.scale)
