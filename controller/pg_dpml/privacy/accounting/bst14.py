# SPDX-License-Identifier: PostgreSQL
"""Composition of the published BST14."""

from __future__ import annotations

import math

import scipy  # which imports its parts where they are used

from pg_dpml.privacy.accounting.bounds import ROUND_UP
from pg_dpml.privacy.accounting.subsampled import check_sampling
from pg_dpml.spec.relation import Relation

__all__ = [
    "advanced_multiplier",
    "published_bst14_multiplier",
]


def _check_bst14(epsilon: float, delta: float, sampling_probability: float, steps: int) -> None:
    check_sampling(
        sampling_probability=sampling_probability, steps=steps, delta=delta, positive={"epsilon": epsilon}
    )


def _bst14(epsilon: float, step_delta: float, q: float, steps: int, relation: Relation) -> float:
    log_delta = math.log(1.0 / step_delta)

    def excess(step_epsilon: float) -> float:
        return (
            steps * step_epsilon * math.expm1(step_epsilon)
            + math.sqrt(2.0 * steps * log_delta) * step_epsilon
            - epsilon
        )

    # The second term alone reaches epsilon at the upper end.
    step_epsilon = float(
        scipy.optimize.brentq(excess, 0.0, epsilon / math.sqrt(2.0 * steps * log_delta), rtol=1e-12)
    )
    sampled_epsilon = min(1.0, step_epsilon / (2.0 * q))
    stddev = math.sqrt(2.0 * math.log(1.25 / step_delta)) / sampled_epsilon
    return stddev * relation.gradient_change(1.0) * ROUND_UP


def advanced_multiplier(
    epsilon: float, delta: float, sampling_probability: float, steps: int, relation: Relation
) -> float:
    """Noise on the sums over Poisson batches by strong composition, as in BST14.

    Parameters
    ----------
    epsilon : float
        In (0, inf).
    delta : float
        In (0, 1).
    sampling_probability : float
        q, in (0, 1].
    steps : int
        T >= 1.
    relation : Relation

    Returns
    -------
    float
        Standard deviation in units of L.

    Raises
    ------
    ValueError
        If an argument is outside its domain.

    Notes
    -----
    Source: Bassily, Smith & Thakurta 2014, Algorithm 1, in the form of Wu et al. 2017, Algorithm 5;
    privacy/README.md, "BST14".
    """
    _check_bst14(epsilon, delta, sampling_probability, steps)
    q = sampling_probability
    return _bst14(epsilon, delta / (1.0 + q * steps), q, steps, relation)


def published_bst14_multiplier(
    epsilon: float, delta: float, sampling_probability: float, steps: int, relation: Relation
) -> float:
    """What `advanced_multiplier` is with the published delta / T. For comparison only.

    Parameters
    ----------
    epsilon, delta, sampling_probability, steps, relation
        As in `advanced_multiplier`.

    Returns
    -------
    float
        Standard deviation in units of L.

    Notes
    -----
    Source: Wu et al. 2017, Algorithm 5; privacy/README.md, "BST14".
    """
    _check_bst14(epsilon, delta, sampling_probability, steps)
    return _bst14(epsilon, delta / steps, sampling_probability, steps, relation)
