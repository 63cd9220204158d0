# SPDX-License-Identifier: PostgreSQL
"""Noise on an integer sum."""

from __future__ import annotations

import math

import numpy as np
import scipy  # which imports its parts where they are used

from pg_dpml.kernels import Noise
from pg_dpml.privacy.knorm import smaller_kind
from pg_dpml.privacy.noise.output import ReleaseNoise, release, resolved, scale_and_mu

__all__ = [
    "MOST_SUM",
    "calibrate_sum",
    "noise_range",
    "release_sum",
]


MOST_SUM = 2**52
"""Above every sum of integers that can be released: with its noise it is whole in float64."""


def calibrate_sum(sensitivity: int, epsilon: float, delta: float, kind: str | None = None) -> ReleaseNoise:
    """Noise for one sum of integers, such as a number of errors.

    Parameters
    ----------
    sensitivity : int
        Most that one unit of privacy moves the sum, >= 1; the same under both relations
        where a row's terms lie in [0, sensitivity].
    epsilon : float
        In (0, inf).
    delta : float
        In [0, 1); in (0, 1) for Gaussian noise.
    kind : {"gaussian", "k-norm"} or None
        None: K-norm noise, here Laplace noise, where delta is 0 or it is the smaller one.

    Returns
    -------
    ReleaseNoise
        With a grid of 1: sums are exact, so nothing is added for rounding.

    Notes
    -----
    Source: privacy/README.md, "Scores and errors".
    """
    kind = kind or smaller_kind(epsilon, delta, 1)
    scale, mu = scale_and_mu(kind, sensitivity, epsilon, delta, 1)
    return resolved(ReleaseNoise(kind, scale, sensitivity, sensitivity, 1.0, 1, mu))


def noise_range(noise: ReleaseNoise, confidence: float) -> int:
    """Least whole h that the rounded noise of one sum stays within, -h to h, with a given probability.

    Parameters
    ----------
    noise : ReleaseNoise
        From `calibrate_sum`.
    confidence : float
        In (0, 1).
    """
    if noise.kind == "gaussian":
        quantile = noise.scale * float(scipy.special.ndtri(0.5 + 0.5 * confidence))
    else:
        quantile = -noise.scale * math.log1p(-confidence)
    return max(0, math.ceil(quantile - 0.5))


def release_sum(total: int, noise: ReleaseNoise, source: Noise) -> int:
    """The private sum: noise rounded to a whole number, added.

    Parameters
    ----------
    total : int
        Exact, in (-2^52, 2^52).
    noise : ReleaseNoise
        From `calibrate_sum`.
    source : Noise
        A generator keyed by the operating system, used for this release alone.

    Notes
    -----
    Source: privacy/README.md, "Scores and errors".
    """
    if abs(total) >= MOST_SUM:
        raise ValueError("total must be in (-2^52, 2^52)")
    return int(release(np.array([float(total)]), noise, source)[0])
