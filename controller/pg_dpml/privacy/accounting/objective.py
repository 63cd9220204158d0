# SPDX-License-Identifier: PostgreSQL
"""Density and determinant of the minimisers of randomly perturbed objectives, in epsilon and delta."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pg_dpml.errors import GuaranteeError
from pg_dpml.kernels import Loss
from pg_dpml.privacy.gaussian import gaussian_delta, gaussian_mu

__all__ = [
    "RowTerms",
    "density_delta",
    "density_mu",
    "determinant_epsilon",
    "least_regulariser",
    "row_terms",
]

_TERMS = 8
"""Sizes of vertices that `density_delta` sums one by one."""

_SMALLEST_DELTA = 1e-300
_ROOM = 1.0 + 1e-9


@dataclass(frozen=True)
class RowTerms:
    """What one row of norm at most 1 adds to the gradient and to the Hessian of the objective.

    Attributes
    ----------
    lipschitz : float
        L: bound on the norm of its gradient.
    log_vertices : float
        Logarithm of the number of vertices other than 0 of the polytope that its gradients lie in.
    rank : int
        Of its Hessian, at most.
    curvature : float
        Trace of its Hessian over `rank`, at most.
    """

    lipschitz: float
    log_vertices: float
    rank: int
    curvature: float


def row_terms(loss: Loss) -> RowTerms:
    """The terms of a row.

    Parameters
    ----------
    loss : Loss
        logistic, huber_svm or softmax: a residual loss has derivatives of both signs.

    Notes
    -----
    Source: privacy/README.md, "Objective perturbation".
    """
    if loss.kind == "squared":
        raise ValueError("the derivative of a squared loss has both signs")
    n_classes = loss.n_classes
    if loss.kind == "softmax":
        return RowTerms(loss.lipschitz, math.log(n_classes - 1), n_classes - 1, 1.0 / n_classes)
    log_vertices = n_classes * math.log(2.0) if n_classes > 1 else 0.0
    return RowTerms(loss.lipschitz, log_vertices, n_classes, loss.smoothness)


def determinant_epsilon(terms: RowTerms, max_rows_per_unit: int, regulariser: float) -> float:
    """What the regulariser leaves of the change of variables, in epsilon.

    Parameters
    ----------
    terms : RowTerms
    max_rows_per_unit : int
        m >= 1.
    regulariser : float
        Lambda, in (0, inf).

    Returns
    -------
    float
        m rank ln(1 + curvature / Lambda), under both relations.

    Notes
    -----
    Source: privacy/README.md, "Objective perturbation", determinant.
    """
    return max_rows_per_unit * terms.rank * math.log1p(terms.curvature / regulariser) * _ROOM


def least_regulariser(terms: RowTerms, max_rows_per_unit: int, epsilon: float) -> float:
    """Least Lambda whose `determinant_epsilon` is at most so much.

    Parameters
    ----------
    terms : RowTerms
    max_rows_per_unit : int
        m >= 1.
    epsilon : float
        In (0, inf).

    Returns
    -------
    float
        curvature / (exp(epsilon / (m rank)) - 1), rounded up; 0 where epsilon allows any Lambda of float64.

    Notes
    -----
    Source: privacy/README.md, "Objective perturbation", determinant.
    """
    share = epsilon / (max_rows_per_unit * terms.rank)
    return terms.curvature / math.expm1(share / _ROOM) * _ROOM if share < 700.0 else 0.0


def density_delta(epsilon: float, mu: float, terms: RowTerms, n_rows: int) -> float:
    """Bound on the delta of the density of b for neighbours, at one epsilon.

    Parameters
    ----------
    epsilon : float
        epsilon_3, in [0, inf).
    mu : float
        L n_rows / (n sigma_1), in (0, inf): the whole shift over the standard deviation.
    terms : RowTerms
    n_rows : int
        r >= 1: rows whose gradients differ, m under add_remove and 2 m under replace_one.

    Returns
    -------
    float
        sum over j = 1 .. r of C(r, j) V^j dG(epsilon; j mu / r), V vertices. Where r is above 8, the
        smaller vertices count as if they were as long as the longest of them.

    Notes
    -----
    Source: privacy/README.md, "Objective perturbation", density.
    """

    def log_count(size: int) -> float:
        choices = math.lgamma(n_rows + 1) - math.lgamma(size + 1) - math.lgamma(n_rows - size + 1)
        return choices + size * terms.log_vertices

    def log_delta(size: int) -> float:
        return math.log(max(gaussian_delta(epsilon, mu * size / n_rows), _SMALLEST_DELTA))

    smallest = max(n_rows - _TERMS + 1, 1)
    logs = [log_count(size) + log_delta(size) for size in range(smallest, n_rows + 1)]
    if smallest > 1:
        everything = n_rows * (terms.log_vertices + math.log1p(math.exp(-terms.log_vertices)))
        logs.append(everything + log_delta(smallest - 1))
    return sum(math.exp(min(one, 1.0)) for one in logs) * _ROOM


def density_mu(epsilon: float, delta: float, terms: RowTerms, n_rows: int) -> float:
    """Largest mu whose `density_delta` is at most delta, rounded towards more noise.

    Parameters
    ----------
    epsilon : float
        epsilon_3, in (0, inf).
    delta : float
        delta_1, in (0, 1).
    terms : RowTerms
    n_rows : int
        As of `density_delta`.

    Raises
    ------
    GuaranteeError
        If there are so many vertices that float64 has no such delta.

    Notes
    -----
    Source: privacy/README.md, "Objective perturbation", density.
    """
    high = gaussian_mu(epsilon, delta)  # of the longest vertex alone
    low = high
    while density_delta(epsilon, low, terms, n_rows) > delta:
        low *= 0.5
        if low < 1e-3 * high:
            raise GuaranteeError(
                f"{n_rows} rows of a unit have too many vertices for Gaussian noise in the objective: take a "
                "smaller max_rows_per_unit, or delta = 0"
            )
    while high - low > 1e-9 * high:
        middle = 0.5 * (low + high)
        low, high = (
            (middle, high) if density_delta(epsilon, middle, terms, n_rows) <= delta else (low, middle)
        )
    return low
