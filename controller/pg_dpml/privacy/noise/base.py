# SPDX-License-Identifier: PostgreSQL
"""What every noise of a run says of itself: how large it is, what it costs a budget, and how it reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Protocol

from pg_dpml.privacy.releases import GaussianRun

__all__ = ["Recorded", "RunNoise"]


class RunNoise(Protocol):
    """The noise of a whole run: what is charged, stored with the model and shown.

    A class of noise has every member below; none has a default, so that a forgotten one is a type error.
    """

    damped: ClassVar[bool]
    """True if later steps shrink the noise; what is said of a score is then an upper bound."""

    @property
    def mu(self) -> float:
        """Sensitivity over standard deviation of all Gaussian releases together; 0 for other noise."""

    @property
    def score_stddev(self) -> float | None:
        """Standard deviation of the noise in the score of a row of norm 1; None where no number has noise."""

    @property
    def expected_norm(self) -> float | None:
        """Root mean square of the norm of the noise in the model; None where no number has noise."""

    @property
    def added_to(self) -> str:
        """What the noise is added to, in words."""

    def releases(self) -> GaussianRun | None:
        """What a budget prices the run by, beyond its epsilon and delta; None: by these alone.

        Source: privacy/README.md, "Budgets".
        """

    def record(self) -> dict[str, Any]:
        """The noise as a JSON-ready mapping, as it is charged, stored and shown."""

    def lines(self) -> Sequence[tuple[str, str]]:
        """Headings and texts that describe the noise."""


@dataclass(frozen=True)
class Recorded:
    """A base of noise whose record is its fields and what follows from them."""

    def record(self) -> dict[str, Any]:
        """The noise as a JSON-ready mapping, as it is charged, stored and shown."""
        shown = ("score_stddev", "expected_norm", "damped")
        return asdict(self) | {name: getattr(self, name) for name in shown}
