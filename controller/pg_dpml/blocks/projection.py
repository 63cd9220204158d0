# SPDX-License-Identifier: PostgreSQL
"""The random projection of a data spec, for who reads the weights of a projected model."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pg_dpml import kernels
from pg_dpml.errors import SpecError
from pg_dpml.kernels import MAX_FEATURES, MAX_PROJECTION
from pg_dpml.spec.checks import require_whole

__all__ = ["projection_matrix"]


def projection_matrix(seed: int, n_projected: int, n_raw: int) -> npt.NDArray[np.float32]:
    """The Gaussian random projection of a public seed.

    Parameters
    ----------
    seed : int
        `projection_seed` of the data spec, in [0, 2^53].
    n_projected : int
        k >= 1, `projection` of the data spec.
    n_raw : int
        d >= 1, features before the projection, without the intercept. k d is at most 2^26.

    Returns
    -------
    ndarray of shape (n_projected, n_raw)
        P: a model w of the projected features has the coefficients w P.

    Raises
    ------
    SpecError
        For a number out of its domain.
    """
    if seed != 0:
        require_whole(seed, "seed", 2**53)
    require_whole(n_projected, "n_projected", MAX_FEATURES - 1)
    require_whole(n_raw, "n_raw", MAX_FEATURES - 1)
    if n_projected * n_raw > MAX_PROJECTION:
        raise SpecError(
            f"n_projected must be at most {MAX_PROJECTION // n_raw} for {n_raw} features, not {n_projected}"
        )
    return kernels.projection(seed, n_projected, n_raw)
