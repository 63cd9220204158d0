# SPDX-License-Identifier: PostgreSQL
"""The norm of a whitened row, against numpy."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest

from helpers import replay


def make(d: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float32]]:
    """A symmetric matrix and a row."""
    draw = np.random.default_rng(d)
    half = draw.normal(size=(d, d))
    return half + half.T, draw.normal(size=d).astype(np.float32)


@pytest.mark.parametrize("d", [1, 2, 7, 8, 9, 33, 785])
def test_agrees_with_numpy(d: int) -> None:
    p, x = make(d)
    wanted = float(np.linalg.norm(p @ x.astype(np.float64)))
    assert replay.whitened_norm(x, p) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("size", [1e-250, 1e-160, 1e160, 1e300])
def test_squares_do_not_leave_the_range(size: float) -> None:
    p, x = make(9)
    assert replay.whitened_norm(x, p * size) / size == pytest.approx(replay.whitened_norm(x, p), rel=1e-12)


@pytest.mark.parametrize("factor", [0.0, 1e-300, math.inf, math.nan])
def test_what_is_no_length_is_zero(factor: float) -> None:
    p, x = make(5)
    assert replay.whitened_norm(x, p * factor) == 0.0
    assert replay.whitened_norm(np.ones(5), np.full((5, 5), 1e308)) == 0.0  # beyond doubles
    assert replay.whitened_norm(np.zeros(5), p) == 0.0


def test_a_prediction_sees_the_rows_of_training() -> None:
    """One norm in both: a score is that of the whitened row, zero rows included."""
    p, _ = make(13)
    x = np.random.default_rng(1).normal(size=(20, 13)).astype(np.float32)
    x[3] = 0.0
    rows = replay.open_block(replay.whiten(replay.pack_dense(x, np.ones(20)), p, 1.0)).values
    norms = [replay.whitened_norm(row, p) for row in x]
    wanted = [row / norm if norm > 0.0 else row for row, norm in zip(x, norms, strict=True)]
    np.testing.assert_allclose(rows, wanted, rtol=1e-6)


def test_the_shape_is_checked() -> None:
    with pytest.raises(ValueError, match=r"shape \(d, d\)"):
        replay.whitened_norm(np.ones(3), np.ones(9))
