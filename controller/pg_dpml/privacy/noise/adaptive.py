# SPDX-License-Identifier: PostgreSQL
"""Noise of a run whose releases decide how the rest of its guarantee is spent, in zCDP.

A run consists of noisy sums of gradients and of choices by sums of losses. Both are paid for beforehand out
of one rho. The proofs: privacy/README.md, "Adaptive gradient descent".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import ClassVar

from pg_dpml.kernels import FloatArray, Noise
from pg_dpml.privacy import cost, gaussian, selection
from pg_dpml.privacy.gaussian import ROUND_UP
from pg_dpml.privacy.noise import composed, output
from pg_dpml.privacy.noise.base import Recorded
from pg_dpml.privacy.noise.output import ReleaseNoise
from pg_dpml.privacy.releases import AdaptiveRun, GaussianRun
from pg_dpml.privacy.resolution import require_share, sampler_delta, sampler_mu
from pg_dpml.spec.relation import Relation

__all__ = [
    "AdaptiveNoise",
    "Filter",
    "calibrate",
    "choice_epsilon",
    "choose",
    "gradient_noise",
    "loss_spread",
    "release_gradient",
    "run_rho",
    "sums_rounding",
]


@dataclass(frozen=True)
class AdaptiveNoise(Recorded):
    """The noise of all releases of a run.

    Attributes
    ----------
    kind : str
        "gaussian".
    rho : float
        Of all releases together.
    share : float
        rho of a choice, and of the first sum of gradients: what a pass costs at least.
    passes : int
        Most passes that rho pays for; there are no more choices, nor noisy sums.
    gradient : ReleaseNoise
        Of a sum of gradients at `share`.
    loss_spread : float
        How far the difference of two candidates' losses moves between neighbouring tables, at most.
    n_weights : int
        Length of the weight vector.
    score_stddev : float
        Of the noise in the score of a row of norm 1, at most: that of directions that are noise alone.
    """

    kind: str
    rho: float
    share: float
    passes: int
    gradient: ReleaseNoise
    loss_spread: float
    n_weights: int
    score_stddev: float

    damped: ClassVar[bool] = True
    mu: ClassVar[float] = 0.0

    @property
    def expected_norm(self) -> float:
        """Root mean square of the norm of the noise in the model, at most."""
        return self.score_stddev * math.sqrt(self.n_weights)

    @property
    def added_to(self) -> str:
        """What the noise is added to, in words."""
        return "every step's gradient, and the choice of its length"

    def releases(self) -> GaussianRun | None:
        """Sums and choices together. Source: privacy/README.md, "Adaptive gradient descent"."""
        return AdaptiveRun(
            self.rho, self.passes, choice_epsilon(self.share), sampler_delta(self.passes * self.n_weights)
        )

    def lines(self) -> Sequence[tuple[str, str]]:
        """Headings and texts that describe the noise."""
        return (
            (
                "Sensitivity",
                f"{self.gradient.sensitivity:.4g} for a sum of gradients (L2 distance one unit can move it), "
                f"{self.loss_spread:.4g} for the difference of two sums of losses",
            ),
            (
                "Noise",
                f"gaussian, standard deviation {self.gradient.scale:.4g} in the first sum of gradients, less "
                "in those that are paid more; a length is chosen by the exponential mechanism (Gumbel "
                f"noise), epsilon {choice_epsilon(self.share):.3g}. rho = {self.rho:.4g} in all.",
            ),
        )


class Filter:
    """What is left of a run's rho, in exact numbers.

    Parameters
    ----------
    rho : float
        Of all releases together.

    Notes
    -----
    Source: Feldman & Zrnic 2021; privacy/README.md, "Adaptive gradient descent".
    """

    def __init__(self, rho: float) -> None:
        self._left = Fraction(rho)

    @property
    def left(self) -> float:
        """What is not spent, in [0, rho]."""
        return float(self._left)

    def pay(self, *costs: float) -> bool:
        """Pay for releases that nobody has seen yet: all of them, or none where the rest of rho is less.

        Parameters
        ----------
        costs : float
            rho of each, >= 0.
        """
        left = self._left - sum(map(Fraction, costs))
        if left < 0:
            return False
        self._left = left
        return True


def run_rho(epsilon: float, delta: float, n_numbers: int) -> float:
    """What a run that releases so many noisy numbers at most has as rho.

    Parameters
    ----------
    epsilon : float
        In (0, inf).
    delta : float
        In [0, 1).
    n_numbers : int
        Of all releases together, >= 1.

    Returns
    -------
    float
        Largest rho that is (epsilon, delta)-private, delta less what the sampler takes, rounded down.

    Raises
    ------
    GuaranteeError
        If delta is 0, or too small for so many numbers.

    Notes
    -----
    Source: Canonne, Kamath & Steinke 2020, Proposition 12; privacy/README.md, "Adaptive gradient descent".
    """
    composed.require_delta(delta)
    left = gaussian.delta_left(delta, n_numbers)
    # the error of zcdp_delta is far below 1e-9
    return cost.zcdp_rho(epsilon, left * (1.0 - 1e-9)) / ROUND_UP


def choice_epsilon(rho: float) -> float:
    """Epsilon of a choice that costs rho: a mechanism of that bounded range is epsilon^2/8-zCDP.

    Parameters
    ----------
    rho : float
        > 0.

    Returns
    -------
    float
        sqrt(8 rho), rounded down.

    Notes
    -----
    Source: Cesar & Rogers 2021; privacy/README.md, "Adaptive gradient descent".
    """
    return math.sqrt(8.0 * rho) / ROUND_UP


def loss_spread(loss_clip: float, relation: Relation, n_units: int, max_rows_per_unit: int) -> float:
    """How far the difference of two candidates' sums of losses moves between neighbouring tables.

    Parameters
    ----------
    loss_clip : float
        C; a row's loss lies in [0, C].
    relation : Relation
    n_units : int
        n, units of privacy.
    max_rows_per_unit : int
        m.

    Returns
    -------
    float
        2 m C (`replace_one`) or m C (`add_remove`), and the rounding of the sums, rounded up.

    Notes
    -----
    Source: privacy/README.md, "Adaptive gradient descent".
    """
    of_unit = Fraction(loss_clip) * max_rows_per_unit
    rounding = sums_rounding(of_unit, n_units, max_rows_per_unit)
    return math.nextafter(float(selection.score_spread(of_unit, relation, rounding)), math.inf)


def sums_rounding(of_unit: Fraction, n_units: int, max_rows_per_unit: int) -> Fraction:
    """Bound on the rounding of one sum over all rows, each unit of which adds a number of at most this size.

    Parameters
    ----------
    of_unit : Fraction
    n_units : int
        n, units of privacy.
    max_rows_per_unit : int
        m.

    Notes
    -----
    Source: privacy/README.md, "Full-batch gradients".
    """
    # half of what is for two runs
    return n_units * of_unit * Fraction(composed.sum_rounding(max_rows_per_unit)) / 2


def calibrate(
    *,
    bound: float,
    loss_clip: float,
    relation: Relation,
    rho: float,
    passes: int,
    growth: float,
    n_units: int,
    max_rows_per_unit: int,
    n_weights: int,
    n_features: int,
    score_stddev: float,
) -> AdaptiveNoise:
    """Noise of a run that spends rho in at most so many passes.

    Parameters
    ----------
    bound : float
        On the norm of what one unit of privacy adds to a sum of gradients, in (0, inf).
    loss_clip : float
        Bound on a row's loss, in (0, inf).
    relation : Relation
    rho : float
        From `run_rho`.
    passes : int
        Most passes, >= 1.
    growth : float
        A sum of gradients that no step followed is measured again for growth times its rho, > 0.
    n_units : int
        n, units of privacy.
    max_rows_per_unit : int
        m.
    n_weights : int
        Length of the weight vector.
    n_features : int
        d.
    score_stddev : float
        See `AdaptiveNoise`.

    Returns
    -------
    AdaptiveNoise
        No noise for an empty table, whose sums are zero.

    Raises
    ------
    GuaranteeError
        If rounding could reach a hundredth of the sensitivity, or the sampler cannot draw the largest noise
        of the run.

    Notes
    -----
    Source: privacy/README.md, "Adaptive gradient descent" and "Full-batch gradients".
    """
    share = rho / passes / ROUND_UP
    gradient = composed.calibrate_gradients(
        bound=bound,
        relation=relation,
        steps=1,
        mu=_release_mu(share, n_weights),
        n_units=n_units,
        max_rows_per_unit=max_rows_per_unit,
        n_weights=n_weights,
        n_features=n_features,
    )
    gradient_noise(gradient, 0.99 * growth * share)  # the widest noise, but for the rounding of its rho
    return AdaptiveNoise(
        "gaussian",
        rho,
        share,
        passes,
        gradient,
        loss_spread(loss_clip, relation, n_units, max_rows_per_unit),
        n_weights,
        score_stddev,
    )


def gradient_noise(gradient: ReleaseNoise, rho: float) -> ReleaseNoise:
    """The noise of a sum of gradients that rho pays for.

    Parameters
    ----------
    gradient : ReleaseNoise
        Of the same sum for another rho; from `calibrate`.
    rho : float
        > 0.

    Raises
    ------
    ResolutionError
        If the sampler cannot draw it.

    Notes
    -----
    mu^2/2 = rho, with what the sampler adds to mu. Source: privacy/README.md, "Adaptive gradient descent".
    """
    if gradient.grid == 0.0:  # no row moves the sum
        return gradient
    mu = _release_mu(rho, gradient.n_weights)
    stddev = gaussian.gaussian_stddev(gradient.calibrated_sensitivity, mu)
    return output.resolved(replace(gradient, scale=stddev, mu=mu))


def _release_mu(rho: float, n_weights: int) -> float:
    return require_share(sampler_mu(n_weights), math.sqrt(2.0 * rho), "mu")


def release_gradient(gradient: FloatArray, noise: AdaptiveNoise, rho: float) -> FloatArray:
    """The private sum of gradients that rho pays for.

    Parameters
    ----------
    gradient : ndarray of shape (n_weights,)
        Un-noised.
    noise : AdaptiveNoise
    rho : float
        > 0.

    Returns
    -------
    ndarray of shape (n_weights,)
    """
    return output.release(gradient, gradient_noise(noise.gradient, rho), Noise())


def choose(losses: Sequence[Fraction], noise: AdaptiveNoise) -> int:
    """The place of a candidate, the smaller its loss the likelier; costs `noise.share`.

    Parameters
    ----------
    losses : sequence of Fraction
        Un-noised sum of the clipped losses of each candidate, and what is public of it.
    noise : AdaptiveNoise

    Notes
    -----
    Source: privacy/README.md, "Adaptive gradient descent".
    """
    return selection.choose(losses, Fraction(noise.loss_spread), choice_epsilon(noise.share))
