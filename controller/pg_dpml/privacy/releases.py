# SPDX-License-Identifier: PostgreSQL
"""What a run releases, as a budget prices it: Gaussian releases, batches at random, pure privacy, choices."""

from __future__ import annotations

from dataclasses import dataclass

from pg_dpml.privacy.resolution import sampler_delta, sampler_mu

__all__ = [
    "AdaptiveRun",
    "AllocatedPasses",
    "GaussianRun",
    "PoissonSteps",
    "PureReleases",
    "Releases",
    "releases_of",
]


@dataclass(frozen=True)
class Releases:
    """Gaussian noise on sums of a fixed sensitivity, all of a run together.

    Attributes
    ----------
    mu : float
        Sensitivity over standard deviation, under the relation of the run, and what the finite precision
        of the sampler may add.
    delta : float
        What the end of the sampler's tail may add.
    """

    mu: float
    delta: float


@dataclass(frozen=True)
class PoissonSteps:
    """Gaussian noise on sums over Poisson batches.

    Attributes
    ----------
    multiplier : float
        Standard deviation in units of the bound on one unit's share, with its head room for rounding.
    sampling : float
        As accounted for.
    steps : int
    precision : float
        What the finite precision of the sampler may add to mu.
    delta : float
        What the end of the sampler's tail may add, and batches that are larger than accounted for.
    """

    multiplier: float
    sampling: float
    steps: int
    precision: float
    delta: float


@dataclass(frozen=True)
class AllocatedPasses:
    """Gaussian noise on sums over batches by random allocation.

    Attributes
    ----------
    multiplier : float
        Standard deviation in units of the bound on one unit's share, with its head room for rounding; where
        one allocation is for k passes, over sqrt(k).
    batches : int
        Of a pass.
    allocations : int
    precision : float
        What the finite precision of the sampler may add to mu.
    delta : float
        What the end of the sampler's tail may add, and batches that are larger than accounted for.
    """

    multiplier: float
    batches: int
    allocations: int
    precision: float
    delta: float


@dataclass(frozen=True)
class PureReleases:
    """K-norm noise: the run has its epsilon without its delta.

    Attributes
    ----------
    delta : float
        What the end of the sampler's tail may add.
    """

    delta: float


@dataclass(frozen=True)
class AdaptiveRun:
    """Gaussian releases and choices that the releases before them decide on, until their rho is spent.

    Attributes
    ----------
    rho : float
        Of all together, in zCDP, under the relation of the run.
    choices : int
        Most choices that rho pays for.
    choice_epsilon : float
        Each choice is (choice_epsilon, 0)-private, and its rho is choice_epsilon^2/8.
    delta : float
        What the end of the sampler's tail may add.
    """

    rho: float
    choices: int
    choice_epsilon: float
    delta: float


GaussianRun = Releases | PoissonSteps | AllocatedPasses | PureReleases | AdaptiveRun


def releases_of(mu: float, numbers: int) -> Releases:
    """With what the sampler takes of so many numbers. Source: privacy/README.md, "The sampler"."""
    return Releases(mu + sampler_mu(numbers), sampler_delta(numbers))
