# SPDX-License-Identifier: PostgreSQL
"""The matrix that whitens rows, computed from noisy second moments."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy  # which imports its parts where they are used

from pg_dpml.errors import GuaranteeError
from pg_dpml.kernels import FloatArray
from pg_dpml.privacy.noise import composed
from pg_dpml.training.plan import Problem

__all__ = ["Whitener", "Whitening", "noise_edge", "require_second_moments", "smoothed"]


LEAST_KEPT = 0.05
"""Of the spread of eigenvalues that noise hides, the least that is kept.

At 30,000 rows of 400 and 1,600 features it is below 0.02, whether their moments are alike or fall as 1/i, at
epsilon 0.1, 1 and 5; to keep none changes the accuracy there by at most 0.01 points."""

MOST_DIRECTIONS = 1.0 / 8.0
"""Of the features, the directions that may be told from the others one by one: more take longer than all."""


@dataclass(frozen=True)
class Whitener:
    """What whitens rows.

    Attributes
    ----------
    matrix : ndarray of shape (d, d)
        P, symmetric.
    largest : float
        Estimate of the largest eigenvalue of the mean of x x' for whitened rows of norm 1, in (0, 1].
    sent : ndarray of shape (d, d) or (k, d)
        What `Blocks.whiten` takes: P, or V, with at least one row, which may be 0.
    scale : float or None
        With it P = scale I - V'V, but for the rounding of P.
    """

    matrix: FloatArray
    largest: float
    sent: FloatArray
    scale: float | None


@dataclass(frozen=True)
class Whitening:
    """How rows are whitened, as far as it is known before the second moments are.

    Attributes
    ----------
    ridge : float
        lambda, added to the eigenvalues of the mean of x x'.
    most : float
        The largest eigenvalue that the mean without noise can have; larger ones are taken for it.
    row_norm : float
        ||P x|| that rows are scaled to.
    stddev : float
        Standard deviation of the noise on the diagonal of the mean of x x', that off it times sqrt 2.
    """

    ridge: float
    most: float
    row_norm: float
    stddev: float

    def of(self, noisy: FloatArray) -> Whitener:
        """The matrix that whitens.

        Parameters
        ----------
        noisy : ndarray of shape (d, d)
            The noisy mean of x x', symmetric.

        Returns
        -------
        Whitener
            Its matrix has condition number at most sqrt((most + ridge)/ridge).

        Notes
        -----
        Post-processing of the noisy mean. Source: privacy/README.md, "Whitened gradients".
        """
        values = np.asarray(np.linalg.eigvalsh(noisy), dtype=np.float64)
        stretched = np.clip(smoothed(values, self.stddev), 0.0, self.most) + self.ridge
        values = np.clip(values, 0.0, self.most)
        shares = values / stretched
        total = float(np.sum(shares))
        largest = float(np.max(shares)) / total if total > 0.0 else 1.0
        lengths = 1.0 / np.sqrt(stretched)
        # Eigenvalues rise: the first ones are hidden, and alike if nothing of their spread is kept.
        d = len(values)
        alike = int(np.count_nonzero(stretched == stretched[0]))
        if d - alike > MOST_DIRECTIONS * d:
            vectors = np.linalg.eigh(noisy)[1]
            matrix = (vectors * lengths) @ vectors.T
            matrix = (matrix + matrix.T) / 2.0
            return Whitener(matrix, largest, matrix, None)
        scale = float(lengths[0])
        directions = np.zeros((1, d))
        if alike < d:
            vectors = scipy.linalg.eigh(noisy, subset_by_index=[alike, d - 1])[1]
            directions = (vectors * np.sqrt(scale - lengths[alike:])).T
        matrix = scale * np.eye(d) - directions.T @ directions
        return Whitener((matrix + matrix.T) / 2.0, largest, directions, scale)


def require_second_moments(method: str, problem: Problem) -> None:
    """Refuse more features than second moments are computed for."""
    most = composed.MAX_WHITENED_FEATURES
    if problem.n_features > most:
        fewer = "" if problem.sparse else ", or fewer features by projection"
        raise GuaranteeError(
            f"method = {method} takes at most {most:,} features, not {problem.n_features:,}: "
            f"take method = dp-gd{fewer}"
        )


def noise_edge(stddev: float, d: int) -> float:
    """Largest eigenvalue of d x d symmetric noise, about; Wigner's semicircle has this radius."""
    return stddev * math.sqrt(2.0 * d)


def smoothed(values: FloatArray, stddev: float) -> FloatArray:
    """Eigenvalues without the spread that noise alone gives them.

    Those that stand out of the noise stay. The others are drawn towards their mean, by the part of their
    variance that the noise explains: where it explains all but `LEAST_KEPT`, they are equal, and their
    directions are not told apart.

    Parameters
    ----------
    values : ndarray of shape (d,)
        Of a symmetric matrix with noise.
    stddev : float
        Standard deviation of the noise on the diagonal, that off it times sqrt 2.

    Returns
    -------
    ndarray of shape (d,)

    Notes
    -----
    Eigenvalues of the noise have mean square (d + 1)/2 stddev^2, and stddev^2/d of it is the square of their
    mean. What is kept is the weight of linear shrinkage (Ledoit & Wolf 2004).
    """
    d = len(values)
    hidden = np.ones(d, dtype=bool)
    for _ in range(5):  # what stands out does not belong in the mean
        centre = float(np.mean(values[hidden]))
        hidden = values <= centre + noise_edge(stddev, d)
        if not np.any(hidden):
            return values
    centre = float(np.mean(values[hidden]))
    variance = float(np.mean((values[hidden] - centre) ** 2))
    of_noise = stddev**2 * ((d + 1) / 2.0 - 1.0 / d)
    kept = 1.0 - of_noise / variance if variance > 0.0 else 0.0
    kept = kept if kept >= LEAST_KEPT else 0.0
    return np.where(hidden, centre + kept * (values - centre), values)
