# SPDX-License-Identifier: PostgreSQL
"""Noise of a run that releases nothing but choices, each made by the exponential mechanism (Gumbel noise).

The proofs: privacy/README.md, "Frank-Wolfe".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from pg_dpml.kernels import FloatArray
from pg_dpml.privacy import cost, selection
from pg_dpml.privacy.gaussian import ROUND_UP
from pg_dpml.privacy.noise import adaptive
from pg_dpml.privacy.noise.base import Recorded
from pg_dpml.privacy.releases import AdaptiveRun, GaussianRun
from pg_dpml.spec.relation import Relation

__all__ = ["ChoiceNoise", "calibrate", "choose", "run_epsilon", "sums_spread"]


@dataclass(frozen=True)
class ChoiceNoise(Recorded):
    """The noise of all choices of a run.

    Attributes
    ----------
    kind : str
        "gumbel".
    choices : int
        T.
    candidates : int
        Of each choice.
    choice_epsilon : float
        The log ratio of a candidate's probabilities on two neighbouring tables lies in a range of this width.
    spread : float
        How far the difference of two candidates' errors moves between neighbouring tables, at most.
    rho : float
        Of all choices together, in zCDP.
    """

    kind: str
    choices: int
    candidates: int
    choice_epsilon: float
    spread: float
    rho: float

    damped: ClassVar[bool] = False
    mu: ClassVar[float] = 0.0
    score_stddev: ClassVar[None] = None
    expected_norm: ClassVar[None] = None

    @property
    def added_to(self) -> str:
        """What the noise is added to, in words."""
        return "the sums that choices are made by"

    def releases(self) -> GaussianRun | None:
        """All choices together. Source: privacy/README.md, "Frank-Wolfe"."""
        return AdaptiveRun(self.rho, self.choices, self.choice_epsilon, 0.0)

    def lines(self) -> Sequence[tuple[str, str]]:
        """Headings and texts that describe the noise."""
        scale = self.spread / self.choice_epsilon
        return (
            (
                "Sensitivity",
                f"{self.spread:.4g} (how far one unit can move the difference of two of the sums that are "
                "chosen by)",
            ),
            (
                "Noise",
                f"gumbel, scale {scale:.4g} on each of the {self.candidates:,} sums of a choice: "
                f"{self.choices:,} choices of epsilon = {self.choice_epsilon:.3g} each, "
                f"rho = {self.rho:.4g} in all. What is chosen is random; its numbers carry no noise.",
            ),
        )


def run_epsilon(epsilon: float, delta: float, choices: int) -> float:
    """Epsilon of each of some choices, each by the results of those before, that are private together.

    Parameters
    ----------
    epsilon : float
        Of all together, in (0, inf).
    delta : float
        Of all together, in [0, 1/2).
    choices : int
        T >= 1.

    Returns
    -------
    float
        The larger of epsilon/T and, with delta > 0, sqrt(8 rho/T); rounded down.

    Notes
    -----
    Source: Canonne, Kamath & Steinke 2020, Proposition 12; Cesar & Rogers 2021; privacy/README.md,
    "Frank-Wolfe".
    """
    pure = epsilon / choices / ROUND_UP
    if delta == 0.0:
        return pure
    # the error of zcdp_delta is far below 1e-9
    rho = cost.zcdp_rho(epsilon, delta * (1.0 - 1e-9)) / choices / ROUND_UP
    return max(pure, adaptive.choice_epsilon(rho))


def sums_spread(bound: float, relation: Relation, n_units: int, max_rows_per_unit: int) -> float:
    """How far the difference of two sums over all rows moves between neighbouring tables.

    Parameters
    ----------
    bound : float
        On the size of what a row adds to a sum, in (0, inf); it may have either sign, and a zero row adds 0.
    relation : Relation
    n_units : int
        n, units of privacy.
    max_rows_per_unit : int
        m.

    Returns
    -------
    float
        4 m bound (`replace_one`) or 2 m bound (`add_remove`), and the rounding of the sums, rounded up.

    Notes
    -----
    Source: privacy/README.md, "Frank-Wolfe".
    """
    of_unit = Fraction(bound) * max_rows_per_unit
    rounding = adaptive.sums_rounding(of_unit, n_units, max_rows_per_unit)
    return math.nextafter(float(selection.signed_spread(of_unit, relation, rounding)), math.inf)


def calibrate(spread: float, choices: int, candidates: int, epsilon: float, delta: float) -> ChoiceNoise:
    """Noise of choices by a sum over all rows for each candidate.

    Parameters
    ----------
    spread : float
        From `sums_spread`, or from `adaptive.loss_spread`.
    choices : int
        T >= 1.
    candidates : int
        Of each choice, at most.
    epsilon : float
        Of all choices together, in (0, inf).
    delta : float
        Of all choices together, in [0, 1/2).

    Returns
    -------
    ChoiceNoise

    Notes
    -----
    Source: privacy/README.md, "Frank-Wolfe".
    """
    each = run_epsilon(epsilon, delta, choices)
    return ChoiceNoise("gumbel", choices, candidates, each, spread, choices * each**2 / 8.0 * ROUND_UP)


def choose(sums: FloatArray, noise: ChoiceNoise) -> int:
    """The place of a candidate, the smaller its sum the likelier.

    Parameters
    ----------
    sums : ndarray of shape (n_candidates,)
        Un-noised.
    noise : ChoiceNoise
    """
    return selection.choose(sums, Fraction(noise.spread), noise.choice_epsilon)
