# SPDX-License-Identifier: PostgreSQL
"""The random projection of a data spec, for who reads the weights of a projected model."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pg_dpml import kernels

__all__ = ["projection_matrix"]


def projection_matrix(seed: int, n_projected: int, n_raw: int) -> npt.NDArray[np.float32]:
    """The Gaussian random projection of a public seed.

    Parameters
    ----------
    seed : int
        `projection_seed` of the data spec.
    n_projected : int
        k, `projection` of the data spec.
    n_raw : int
        d, features before the projection, without the intercept.

    Returns
    -------
    ndarray of shape (n_projected, n_raw)
        P: a model w of the projected features has the coefficients w P.
    """
    return kernels.projection(seed, n_projected, n_raw)
