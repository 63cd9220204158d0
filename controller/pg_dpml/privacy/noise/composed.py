# SPDX-License-Identifier: PostgreSQL
"""Noise of a run of several Gaussian releases, whose shares of the guarantee are fixed beforehand.

Each release is of a sum over rows: of gradients, or of second moments. Releases
with mu_1, ..., mu_T together are one Gaussian release with
mu^2 = mu_1^2 + ... + mu_T^2, exactly (Dong, Roth & Su 2022).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pg_dpml.errors import GuaranteeError
from pg_dpml.kernels import FOLD_ROWS, MAX_GRAM_FEATURES, FloatArray, Noise
from pg_dpml.privacy import gaussian, resolution
from pg_dpml.privacy.noise import output
from pg_dpml.privacy.noise.base import Recorded
from pg_dpml.privacy.noise.output import ReleaseNoise
from pg_dpml.privacy.releases import GaussianRun, releases_of
from pg_dpml.spec.relation import Relation

__all__ = [
    "MAX_WHITENED_FEATURES",
    "ComposedNoise",
    "calibrate_gradients",
    "calibrate_moments",
    "largest_condition",
    "release_gradient",
    "release_moments",
    "require_delta",
    "run_mu",
    "stored_norm",
    "sum_rounding",
    "triangle_size",
]

MAX_WHITENED_FEATURES = MAX_GRAM_FEATURES
"""Most features of a released matrix; "Whitened gradients" counts on it."""

_ULP = 2.0**-52
_MOST_CONDITION = 2.0**16


@dataclass(frozen=True)
class ComposedNoise(Recorded):
    """The noise of all releases of a run.

    Attributes
    ----------
    kind : str
        "gaussian".
    mu : float
        Of all releases together.
    steps : int
        T, releases of a sum of gradients.
    gradient : ReleaseNoise or None
        Of each sum of gradients.
    moments : ReleaseNoise or None
        Of the one release of second moments.
    n_weights : int
        Length of the weight vector.
    score_stddev : float
        Of the noise that the steps add up to, in the score of a row of norm 1; in a whitened run, of
        a whitened row.
    """

    kind: str
    mu: float
    steps: int
    gradient: ReleaseNoise | None
    moments: ReleaseNoise | None
    n_weights: int
    score_stddev: float

    damped: ClassVar[bool] = True

    @property
    def expected_norm(self) -> float:
        """Root mean square of the norm of the noise in the model."""
        return self.score_stddev * math.sqrt(self.n_weights)

    @property
    def added_to(self) -> str:
        """What the noise is added to, in words."""
        if self.moments is None:
            return "every step's gradient"
        return "the second moments" + ("" if self.gradient is None else ", and every step's gradient")

    def releases(self) -> GaussianRun | None:
        """All releases together. Source: privacy/README.md, "Full-batch gradients"."""
        numbers = self.steps * self.n_weights if self.gradient is not None else 0
        numbers += self.moments.n_weights if self.moments is not None else 0
        return releases_of(self.mu, numbers)

    def lines(self) -> Sequence[tuple[str, str]]:
        """Headings and texts that describe the noise."""
        releases = []
        if self.moments is not None:
            releases.append(("the sum of second moments", self.moments))
        if self.gradient is not None:
            releases.append((f"each of {self.steps} sums of gradients", self.gradient))
        moves = ", ".join(f"{one.sensitivity:.4g} for {name}" for name, one in releases)
        stddevs = ", ".join(f"standard deviation {one.scale:.4g} in {name}" for name, one in releases)
        return (
            ("Sensitivity", f"{moves} (L2 distance one unit can move it)"),
            (
                "Noise",
                f"gaussian, {stddevs}: mu = {self.mu:.4g} in all. Adds a standard deviation of at "
                f"most {self.score_stddev:.3g} to the score of a row.",
            ),
        )


def run_mu(epsilon: float, delta: float, n_numbers: int) -> float:
    """What a run that releases so many numbers has as mu for its Gaussian noise.

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
        mu(epsilon, delta), less what the sampler takes.

    Raises
    ------
    GuaranteeError
        If delta is 0, or delta or epsilon is too small for so many numbers.

    Notes
    -----
    Source: privacy/README.md, "Gaussian noise" and "The sampler".
    """
    require_delta(delta)
    return gaussian.gaussian_share(epsilon, delta, n_numbers)


def require_delta(delta: float) -> None:
    """Refuse a run with delta = 0, which has no Gaussian noise.

    Raises
    ------
    GuaranteeError
    """
    if delta == 0.0:
        raise GuaranteeError(
            "delta = 0 has no Gaussian noise, which this method adds: leave delta out (1/n^2 then), or take "
            "method = bolt-on, whose K-norm noise needs none"
        )


def calibrate_gradients(
    *,
    bound: float,
    relation: Relation,
    steps: int,
    mu: float,
    n_units: int,
    max_rows_per_unit: int,
    n_weights: int,
    n_features: int,
    condition: float | None = None,
) -> ReleaseNoise:
    """Noise of each of T releases of a sum of gradients.

    Parameters
    ----------
    bound : float
        On the norm of what one unit of privacy adds to the sum, in (0, inf).
    relation : Relation
    steps : int
        T >= 1.
    mu : float
        Of the T releases together, in (0, inf).
    n_units : int
        n, units of privacy.
    max_rows_per_unit : int
        m.
    n_weights : int
        Length of the weight vector.
    n_features : int
        d.
    condition : float or None
        Bound on the condition of P, where sums are multiplied by it; None: they are not.

    Returns
    -------
    ReleaseNoise
        Standard deviation D sqrt(T)/mu, D = 2 bound (`replace_one`) or bound (`add_remove`), and
        head room for rounding and grid. No noise for an empty table, whose sums are zero.

    Raises
    ------
    GuaranteeError
        If rounding could reach a hundredth of the sensitivity.

    Notes
    -----
    Source: privacy/README.md, "Full-batch gradients" and "Floating point".
    """
    if n_units == 0:
        return output.no_release("gaussian", n_weights)
    rounding = n_units * bound * sum_rounding(max_rows_per_unit)
    if condition is not None:
        rounding = n_units * bound * condition * _product_rounding(max_rows_per_unit, n_features)
    return output.calibrate_gaussian(
        relation.gradient_change(bound), rounding, n_weights, mu / math.sqrt(steps)
    )


def calibrate_moments(
    *,
    relation: Relation,
    max_rows_per_unit: int,
    labels: bool,
    mu: float,
    n_units: int,
    n_features: int,
) -> ReleaseNoise:
    """Noise of one release of the sum of x x', or of it and the sum of y x.

    Parameters
    ----------
    relation : Relation
    max_rows_per_unit : int
        m.
    labels : bool
        With the sum of y x, for abs(y) <= 1.
    mu : float
        In (0, inf).
    n_units : int
        n, units of privacy.
    n_features : int
        d.

    Returns
    -------
    ReleaseNoise
        For the vector of `release_moments`. No noise for an empty table, whose sums are zero.

    Raises
    ------
    GuaranteeError
        If rounding could reach a hundredth of the sensitivity.

    Notes
    -----
    In Frobenius norm a row moves X'X by at most sqrt 2 (`replace_one`) or 1 (`add_remove`), and
    (X'X, X'y) by sqrt 4.5 or sqrt 2.
    Source: privacy/README.md, "Whitened gradients", "Sufficient statistics" and "Floating point".
    """
    size = triangle_size(n_features) + (n_features if labels else 0)
    if n_units == 0:
        return output.no_release("gaussian", size)
    square = {
        (Relation.REPLACE_ONE, False): 2.0,
        (Relation.ADD_REMOVE, False): 1.0,
        (Relation.REPLACE_ONE, True): 4.5,
        (Relation.ADD_REMOVE, True): 2.0,
    }[relation, labels]
    rounding = n_units * max_rows_per_unit * math.sqrt(2.0) * sum_rounding(max_rows_per_unit)
    return output.calibrate_gaussian(max_rows_per_unit * math.sqrt(square), rounding, size, mu)


def release_gradient(gradient: FloatArray, noise: ReleaseNoise, source: Noise | None = None) -> FloatArray:
    """The private sum of gradients.

    Parameters
    ----------
    gradient : ndarray of shape (n_weights,)
        Un-noised.
    noise : ReleaseNoise
        From `calibrate_gradients`.
    source : Noise or None
        None draws from a fresh generator keyed by the operating system.

    Returns
    -------
    ndarray of shape (n_weights,)
    """
    return output.release(gradient, noise, source or Noise())


def release_moments(
    xx: FloatArray, xy: FloatArray | None, noise: ReleaseNoise, source: Noise | None = None
) -> tuple[FloatArray, FloatArray | None]:
    """The private second moments.

    Parameters
    ----------
    xx : ndarray of shape (d, d)
        Un-noised, symmetric.
    xy : ndarray of shape (d,) or None
        Un-noised.
    noise : ReleaseNoise
        From `calibrate_moments`.
    source : Noise or None
        None draws from a fresh generator keyed by the operating system.

    Returns
    -------
    xx : ndarray of shape (d, d)
        Symmetric: noise of the noise's scale on the diagonal, of scale / sqrt 2 off it.
    xy : ndarray of shape (d,) or None

    Notes
    -----
    The vector that is released has the diagonal, and sqrt 2 times what is above it, so that its norm is
    the Frobenius norm of the matrix. Source: privacy/README.md, "Whitened gradients".
    """
    d = len(xx)
    above = np.triu_indices(d)
    weight = np.where(above[0] == above[1], 1.0, math.sqrt(2.0))
    released = output.release(
        np.concatenate([xx[above] * weight, [] if xy is None else xy]), noise, source or Noise()
    )
    noisy = np.zeros((d, d))
    noisy[above] = released[: len(weight)] / weight
    return noisy + np.triu(noisy, 1).T, None if xy is None else released[len(weight) :]


def triangle_size(n_features: int) -> int:
    """Numbers of a symmetric matrix of d rows."""
    return n_features * (n_features + 1) // 2


def largest_condition(n_units: int, max_rows_per_unit: int, n_features: int) -> float:
    """The largest condition of P at which rounding takes at most half of its allowance.

    Parameters
    ----------
    n_units : int
        n, units of privacy.
    max_rows_per_unit : int
        m.
    n_features : int
        d.

    Notes
    -----
    For D >= m C, the smaller of both relations. Source: privacy/README.md, "Whitened gradients".
    """
    allowed = (
        0.5 * resolution.ROUNDING_LIMIT / (max(n_units, 1) * _product_rounding(max_rows_per_unit, n_features))
    )
    return min(allowed, _MOST_CONDITION)


def stored_norm(condition: float) -> float:
    """||P x|| to which rows are scaled in float64, so that no stored row exceeds 1.

    Parameters
    ----------
    condition : float
        Bound on ||P|| ||P^-1||.

    Returns
    -------
    float
        (1 - 2^-19) / (1 + condition 2^-23).

    Notes
    -----
    Source: privacy/README.md, "Whitened gradients".
    """
    return (1.0 - 2.0**-19) / (1.0 + condition * 2.0**-23)


def sum_rounding(max_rows_per_unit: int) -> float:
    """Rounding of a sum over rows, for two runs, relative to the sum of the norms of its terms.

    Fewer than 2 FOLD_ROWS rows, or as many and a unit, are added one by one between two folds.
    """
    return _ULP * (2 * FOLD_ROWS + max_rows_per_unit + 16)


def _product_rounding(max_rows_per_unit: int, n_features: int) -> float:
    """The same for P times a sum, relative to the condition of P and the norms of P times a term."""
    return sum_rounding(max_rows_per_unit) + _ULP * n_features * math.sqrt(n_features)
