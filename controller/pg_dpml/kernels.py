# SPDX-License-Identifier: PostgreSQL
"""The C kernels of the server module, called from Python.

The same sources are compiled into both, so that a noise scale computed here
belongs to the very step-size function that the server runs.

Long because every symbol of the compiled kernels comes in by this one door.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pg_dpml._kernels import ffi as _untyped_ffi
from pg_dpml._kernels import lib as _untyped_lib

__all__ = [
    "BLOCK_HEADER_BYTES",
    "BLOCK_MAX_BYTES",
    "BLOCK_PAGE_BYTES",
    "DEFAULT_HUBER_H",
    "FOLD_ROWS",
    "LEAST_SCALE",
    "LOSS_KINDS",
    "MAX_BLUR",
    "MAX_FEATURES",
    "MAX_GRAM_FEATURES",
    "MAX_POISSON_STEPS",
    "MAX_PROJECTION",
    "MOST_STEPS",
    "TARGET_NORM",
    "FloatArray",
    "Loss",
    "Noise",
    "Schedule",
    "Sensitivity",
    "ffi",
    "has_probability",
    "lib",
    "noise_grid",
    "pointer",
    "projection",
    "require",
    "sensitivity",
]

FloatArray = npt.NDArray[np.float64]

# The compiled module has no types.
ffi: Any = _untyped_ffi
lib: Any = _untyped_lib

BLOCK_HEADER_BYTES: int = lib.DPML_BLOCK_HEADER
"""Of a packed block, before its rows."""

BLOCK_PAGE_BYTES: int = lib.DPML_BLOCK_PAGE_BYTES
"""Largest packed block that fits one heap page beside its number."""

BLOCK_MAX_BYTES: int = lib.DPML_BLOCK_MAX_BYTES
"""Largest packed block that is stored out of line."""

FOLD_ROWS: int = lib.DPML_FOLD_ROWS
"""Rows after which sums over rows are folded into their compensated part."""

MAX_FEATURES: int = lib.DPML_MAX_FEATURES
"""Most features of a row, the intercept included."""

MAX_GRAM_FEATURES: int = lib.DPML_GRAM_MAX_FEATURES
"""Most features of a matrix that the server sums."""

MAX_PROJECTION: int = lib.DPML_MAX_PROJECTION
"""Most entries of a projection matrix."""

MAX_BLUR: int = lib.DPML_MAX_BLUR
"""Most pixels that the blurred pixels of a row look at."""

MAX_POISSON_STEPS: int = lib.DPML_MAX_POISSON_STEPS
"""Most steps of a pass over Poisson batches."""

LEAST_SCALE: float = lib.dpml_least_scale()
"""Least scale of noise in the server; the largest is its inverse."""

MOST_STEPS: float = lib.dpml_most_grid_steps()
"""Largest standard deviation of noise, in steps of its grid: all numbers are whole, and exact in float64."""

TARGET_NORM: float = lib.dpml_target_norm()
"""Norm that the encoder brings rows to before it rounds them to float32."""

DEFAULT_HUBER_H: float = lib.dpml_default_huber_h()
"""Half width of the Huber SVM's bend where none is chosen."""

_MAX_COUNT = 2**62
_MAX_BATCH = 2**31 - 1

LOSS_KINDS: dict[str, int] = {
    ffi.string(lib.dpml_loss_facts(kind).name).decode(): kind for kind in range(lib.DPML_LOSS_KINDS)
}
"""Every loss, in the order of the kernels."""

_SCHEDULES = {
    "constant": lib.DPML_CONSTANT,
    "decreasing": lib.DPML_DECREASING,
    "sqrt_decreasing": lib.DPML_SQRT_DECREASING,
    "strongly_convex": lib.DPML_STRONGLY_CONVEX,
    "inverse_sqrt": lib.DPML_INVERSE_SQRT,
}


def require(condition: bool, message: str) -> None:
    """Refuse a bad argument."""
    if not condition:
        raise ValueError(message)


def pointer(array: npt.NDArray[Any], kind: str = "double") -> Any:
    """View of an array for C; it keeps the array alive."""
    return ffi.from_buffer(f"{kind}[]", array)


def has_probability(kind: str) -> bool:
    """Whether scores of a model of a loss give probabilities; False for a loss that there is not."""
    return kind in LOSS_KINDS and bool(lib.dpml_loss_facts(LOSS_KINDS[kind]).has_probability)


@dataclass(frozen=True)
class Loss:
    """A loss phi(u, y) of a linear score u.

    Parameters
    ----------
    kind : str
        One of logistic, huber_svm, hinge (y is -1 or +1), squared (y is a
        number), softmax (y is a class index).
    n_classes : int
        K, at least 2 for softmax; with logistic, huber_svm and hinge K > 1 means
        one loss a class against all others; 1 for squared.
    huber_h : float
        Half width of the Huber SVM's bend, in [1e-270, 1e270].
    clip : float
        Bound on the derivative in one score, in (0, inf]; inf for softmax.

    Notes
    -----
    Source: privacy/README.md, "Losses".
    """

    kind: str
    n_classes: int = 1
    huber_h: float = DEFAULT_HUBER_H
    clip: float = math.inf

    def __post_init__(self) -> None:
        softmax = self.kind == "softmax"
        require(self.kind in LOSS_KINDS, f"loss must be one of {', '.join(LOSS_KINDS)}, not {self.kind!r}")
        require(
            (2 if softmax else 1) <= self.n_classes <= (1 if self.kind == "squared" else _MAX_BATCH),
            "n_classes must be at least 2 for softmax and 1 for squared",
        )
        require(1e-270 <= self.huber_h <= 1e270, "huber_h must be in [1e-270, 1e270]")
        require(self.clip > 0.0, "clip must be in (0, inf]")
        require(not softmax or self.clip == math.inf, "the softmax loss has no clip")

    @property
    def lipschitz(self) -> float:
        """Bound on the norm of one row's gradient, for a row of norm at most 1."""
        return float(lib.dpml_loss_lipschitz(self._c()))

    @property
    def smoothness(self) -> float:
        """Bound on the norm of one row's Hessian, for a row of norm at most 1; infinity for hinge."""
        return float(lib.dpml_loss_smoothness(self._c()))

    def unit_smoothness(self, max_rows_per_unit: int) -> float:
        """Bound on the Hessian of a batch of b units of at most so many rows each, divided by b.

        Source: privacy/README.md, "Unit of privacy".
        """
        require(1 <= max_rows_per_unit <= _MAX_BATCH, "max_rows_per_unit must be at least 1")
        return float(lib.dpml_loss_unit_smoothness(self._c(), max_rows_per_unit))

    def value(self, u: float, y: float) -> float:
        """phi(u, y); not for softmax."""
        require(self.kind != "softmax", "the softmax loss has no single score")
        return float(lib.dpml_loss_value(self._c(), u, y))

    def derivative(self, u: float, y: float) -> float:
        """Derivative of phi(u, y) in u; not for softmax."""
        require(self.kind != "softmax", "the softmax loss has no single score")
        return float(lib.dpml_loss_derivative(self._c(), u, y))

    def _c(self) -> Any:
        return ffi.new("DpmlLoss *", self.c_fields())

    def c_fields(self) -> dict[str, float]:
        """Members of the C struct."""
        return {
            "kind": LOSS_KINDS[self.kind],
            "n_classes": self.n_classes,
            "huber_h": self.huber_h,
            "clip": self.clip,
        }


@dataclass(frozen=True)
class Schedule:
    """Step sizes eta_t for t = 1, 2, ...

    Parameters
    ----------
    kind : str
        constant (step_size), decreasing (2 max_step / (t + offset)),
        sqrt_decreasing (2 max_step / (sqrt t + offset)),
        strongly_convex (1 / (lambda t)) or inverse_sqrt (step_size / sqrt t).
    step_size : float
        In (0, inf) where the kind uses it.
    offset : float
        In [0, inf), for the two decreasing kinds.
    lambda_ : float
        The L2 regulariser, in (0, inf) for strongly_convex.
    max_step : float
        Cap of every step, in (0, inf]: 1 / (smoothness + lambda).

    Notes
    -----
    Source: privacy/README.md, "Schedules".
    """

    kind: str
    step_size: float = 0.0
    offset: float = 0.0
    lambda_: float = 0.0
    max_step: float = math.inf

    def __post_init__(self) -> None:
        decreasing = self.kind in ("decreasing", "sqrt_decreasing")
        require(
            self.kind in _SCHEDULES, f"schedule must be one of {', '.join(_SCHEDULES)}, not {self.kind!r}"
        )
        require(
            self.kind not in ("constant", "inverse_sqrt") or 0.0 < self.step_size < math.inf,
            "step_size must be in (0, inf)",
        )
        require(0.0 <= self.offset < math.inf, "offset must be in [0, inf)")
        require(
            self.kind != "strongly_convex" or 0.0 < self.lambda_ < math.inf,
            "a strongly convex schedule needs lambda in (0, inf)",
        )
        require(
            0.0 < self.max_step <= (math.inf if not decreasing else 1e300),
            "max_step must be in (0, inf], and finite for the decreasing schedules",
        )

    @classmethod
    def resolve(
        cls,
        kind: str,
        *,
        step_size: float = 0.0,
        exponent: float = 0.5,
        n: int,
        smoothness: float,
        lambda_: float,
        capped: bool = True,
    ) -> Schedule:
        """Derive the schedule that a pass in the server derives from the same public numbers.

        Parameters
        ----------
        kind : str
            As above.
        step_size : float
            In (0, inf); 0 for the kind's own: 1 / sqrt(n) for constant, 1 for inverse_sqrt.
        exponent : float
            c in [0, 1], of the offset n^c of the two decreasing kinds.
        n : int
            Units of privacy, at least 0.
        smoothness : float
            `Loss.unit_smoothness`, in (0, inf).
        lambda_ : float
            The L2 regulariser, in [0, inf).
        capped : bool
            False for steps without a cap; not for the two decreasing kinds.

        Notes
        -----
        Source: privacy/README.md, "Schedules".
        """
        require(kind in _SCHEDULES, f"schedule must be one of {', '.join(_SCHEDULES)}, not {kind!r}")
        choice = ffi.new(
            "DpmlScheduleChoice *",
            {
                "kind": _SCHEDULES[kind],
                "capped": capped,
                "step_size": step_size,
                "exponent": exponent,
                "n": n,
                "smoothness": smoothness,
                "lambda": lambda_,
            },
        )
        found = ffi.new("DpmlSchedule *")
        lib.dpml_schedule_resolve(choice, found)
        return cls(kind, found.step_size, found.offset, getattr(found, "lambda"), found.max_step)

    def step(self, t: int) -> float:
        """eta_t, for t >= 1."""
        require(1 <= t <= _MAX_COUNT, "t must be at least 1")
        return float(lib.dpml_schedule_step_size(ffi.new("DpmlSchedule *", self.c_fields()), t))

    def c_fields(self) -> dict[str, float]:
        """Members of the C struct."""
        return {
            "kind": _SCHEDULES[self.kind],
            "step_size": self.step_size,
            "offset": self.offset,
            "lambda": self.lambda_,
            "max_step": self.max_step,
        }


class Sensitivity(NamedTuple):
    """What a run's noise is calibrated for."""

    sensitivity: float
    """L2 sensitivity of the released weights, rounded up."""
    step_sum: float
    """Sum of all step sizes."""
    step_max: float
    """Largest step size."""
    steps: int
    """Number of steps, passes times batches a pass."""


def sensitivity(
    *,
    schedule: Schedule,
    smoothness: float,
    lambda_: float,
    gradient_change: float,
    n_rows: int,
    passes: int,
    batch_size: int,
    average_from: int = 0,
    fresh_order: bool = False,
) -> Sensitivity:
    """L2 sensitivity of a whole bolt-on run.

    Parameters
    ----------
    schedule : Schedule
    smoothness : float
        beta of the data loss, in [0, inf).
    lambda_ : float
        L2 regulariser, in [0, inf).
    gradient_change : float
        D, how far one unit can move a gradient sum, in [0, inf): it carries the
        neighbouring relation.
    n_rows : int
        n >= 0, public.
    passes, batch_size : int
        At least 1.
    average_from : int
        First step whose iterate enters the released average; 0 releases the last.
    fresh_order : bool
        A new order every pass instead of one for all.

    Returns
    -------
    Sensitivity

    Raises
    ------
    ValueError
        A number outside its domain, or a step above 2 / (smoothness + lambda).

    Notes
    -----
    Source: privacy/README.md, "Sensitivity of any schedule".
    """
    require(0 <= n_rows <= _MAX_COUNT, "n_rows must be at least 0")
    require(1 <= passes <= _MAX_COUNT, "passes must be at least 1")
    require(1 <= batch_size <= _MAX_BATCH, "batch_size must be at least 1")
    require(0 <= average_from <= _MAX_COUNT, "average_from must be at least 0")
    run = ffi.new(
        "DpmlRun *",
        {
            "schedule": schedule.c_fields(),
            "smoothness": smoothness,
            "lambda": lambda_,
            "gradient_change": gradient_change,
            "n_rows": n_rows,
            "passes": passes,
            "average_from": average_from,
            "batch_size": batch_size,
            "fresh_order": fresh_order,
        },
    )
    workspace = np.empty(lib.dpml_sensitivity_workspace(run))
    result = ffi.new("DpmlSensitivity *")
    if lib.dpml_sensitivity(run, pointer(workspace), result) != lib.DPML_OK:
        raise ValueError(
            "the run is outside the domain of its sensitivity bound: smoothness, lambda and gradient_change "
            "must be finite and >= 0, average_from at most the number of steps, "
            "and no step above 2 / (smoothness + lambda)"
        )
    return Sensitivity(result.sensitivity, result.step_sum, result.step_max, result.steps)


def noise_grid(scale: float) -> float:
    """Spacing of the grid that a batch's sum and its noise of a scale in (0, inf) are rounded to.

    Source: privacy/README.md, "Noise inside a pass".
    """
    require(0.0 < scale < math.inf, "scale must be in (0, inf)")
    return float(lib.dpml_noise_grid(scale))


def projection(seed: int, n_projected: int, n_raw: int) -> npt.NDArray[np.float32]:
    """The Gaussian random projection of a public seed, ndarray of shape (n_projected, n_raw)."""
    out = np.empty((n_projected, n_raw), dtype=np.float32)
    rng = ffi.new("DpmlRng *")
    lib.dpml_projection_start(rng, seed)
    lib.dpml_projection(rng, n_projected, out.size, pointer(out, "float"))
    return out


class Noise:
    """Cryptographic noise, keyed by the operating system.

    Parameters
    ----------
    key : bytes, optional
        32 bytes; for tests of the samplers only, never where a result is released.

    Notes
    -----
    Source: privacy/README.md, "Randomness".
    """

    def __init__(self, key: bytes | None = None) -> None:
        if key is None:
            key = secrets.token_bytes(32)
        require(len(key) == 32, "key must have 32 bytes")
        self._rng = ffi.new("DpmlRng *")
        lib.dpml_rng_start(self._rng, key)

    def misses(self, probability: float) -> int:
        """Misses before the next hit of a coin that hits with a probability in (0, 1].

        Source: privacy/README.md, "Poisson batches".
        """
        require(0.0 < probability <= 1.0, "probability must be in (0, 1]")
        return int(lib.dpml_coin_misses(self._rng, lib.dpml_coin_rate(probability)))

    def gaussian(self, n: int, stddev: float) -> FloatArray:
        """Independent normals, rounded to whole numbers.

        Parameters
        ----------
        n : int
            >= 0.
        stddev : float
            In steps of the grid that the noise is for, in [0, 2^45].

        Returns
        -------
        ndarray of shape (n,)
            Whole numbers below 2^53 in size.

        Notes
        -----
        Source: privacy/README.md, "The sampler".
        """
        return self._draw(lib.dpml_noise_gaussian, n, stddev, stddev)

    def knorm(self, n: int, scale: float) -> FloatArray:
        """Noise of density proportional to exp(-||z|| / scale), rounded to whole numbers.

        Parameters
        ----------
        n : int
            >= 0.
        scale : float
            In steps of the grid that the noise is for; scale sqrt(n + 1), the standard deviation
            of a number, in [0, 2^45].

        Returns
        -------
        ndarray of shape (n,)
            Whole numbers below 2^53 in size.

        Notes
        -----
        Source: privacy/README.md, "K-norm noise" and "The sampler".
        """
        return self._draw(lib.dpml_noise_knorm, n, scale, scale * math.sqrt(n + 1))

    def _draw(self, sample: Callable[..., None], n: int, scale: float, stddev: float) -> FloatArray:
        require(0.0 <= stddev <= MOST_STEPS, "the standard deviation must be in [0, 2^45] steps of the grid")
        out = np.empty(n)
        sample(self._rng, n, scale, pointer(out))
        return out
