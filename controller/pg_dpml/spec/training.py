# SPDX-License-Identifier: PostgreSQL
"""How to train."""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields

from pg_dpml.errors import SpecError

if sys.version_info >= (3, 11):
    pass
else:
    pass
from pg_dpml.spec.checks import as_choice, as_flag, as_number, require_between, require_whole

__all__ = [
    "ACCOUNTANTS",
    "AVERAGES",
    "LOSSES",
    "METHODS",
    "NOT_PRIVATE_METHODS",
    "SCHEDULES",
    "SGD_OPTIONS",
    "SOLVERS",
    "TrainSpec",
]

METHODS = (
    *("auto", "whitened-dp-gd", "dp-gd", "sufficient-statistics", "bolt-on", "dp-sgd", "bst14", "scs13"),
    *("noiseless", "lbfgs"),
)
NOT_PRIVATE_METHODS = ("noiseless", "lbfgs")
SOLVERS = ("sgd", "certified")
ACCOUNTANTS = ("pld", "advanced")
LOSSES = ("logistic", "huber_svm", "squared", "softmax")
SCHEDULES = ("constant", "decreasing", "sqrt_decreasing", "strongly_convex", "inverse_sqrt")
AVERAGES = ("none", "all", "tail")

SGD_OPTIONS = (
    *("passes", "batch_size", "schedule", "step_size", "exponent"),
    *("radius", "average", "tail", "fresh_order"),
)
"""Fields of `TrainSpec` that only the passes of SGD use."""

_TINY, _HUGE = 1e-100, 1e100  # beyond them squares and quotients leave float64

_LOSS_OPTIONS = ("loss", "huber_h", "clip", "lambda_")
_NOISY_OPTIONS = (*_LOSS_OPTIONS, "passes", "batch_size", "radius", "average", "tail")
METHOD_OPTIONS = {
    "auto": ("loss", "huber_h"),
    "whitened-dp-gd": ("loss", "huber_h", "clip", "passes"),
    "dp-gd": (
        *("loss", "huber_h", "clip", "unit_clip", "passes", "lambda_", "step_size", "momentum"),
        *("average", "tail"),
    ),
    "sufficient-statistics": ("loss",),
    "bolt-on": (*_LOSS_OPTIONS, *SGD_OPTIONS, "solver"),
    "dp-sgd": (*_NOISY_OPTIONS, "schedule", "step_size", "momentum"),
    "bst14": (*_NOISY_OPTIONS, "accountant"),
    "scs13": (*_NOISY_OPTIONS, "schedule", "step_size", "momentum", "fresh_order"),
    "noiseless": (*_LOSS_OPTIONS, *SGD_OPTIONS, "tolerance"),
    "lbfgs": (*_LOSS_OPTIONS, "passes", "tolerance"),
}
"""Fields of `TrainSpec` that each method uses: a value for another would change nothing, and is refused."""


@dataclass(frozen=True)
class TrainSpec:
    """How to train. None means the documented default, a function of public numbers.

    Attributes
    ----------
    method : str
        "auto" (the default), which chooses one by public numbers, or "whitened-dp-gd", "dp-gd",
        "sufficient-statistics", "bolt-on", "dp-sgd", "bst14", "scs13", "noiseless" or "lbfgs". What a method
        does not use is refused.
    solver : str or None
        Of "bolt-on": "sgd", or "certified", the minimiser itself, which needs lambda > 0. None takes
        "certified" where lambda > 0 and no option of SGD is given, but in requests only if the data set
        allows it.
    loss : str or None
        "logistic", "huber_svm" (two classes), "softmax" (several), "squared" (a number).
    passes : int or None
        k >= 1; for noiseless and lbfgs the most passes to take.
    batch_size : int or None
        b >= 1.
    lambda_ : float or None
        L2 regulariser in [0, inf), on every coordinate, the intercept included.
    schedule : str or None
        "constant", "decreasing", "sqrt_decreasing", "strongly_convex" or "inverse_sqrt".
    step_size : float or None
        Of "constant" and "inverse_sqrt", in [1e-100, 1e100]; capped by 1 / (beta + lambda), but not in
        dp-gd, dp-sgd and scs13.
    momentum : float or None
        Of dp-gd, dp-sgd and scs13, in [0, 1): the share of the last step that is taken again.
    exponent : float
        c of n^c in the decreasing schedules, in [0, 1].
    radius : float or None
        Project the model on the ball of this radius, in [1e-100, 1e100].
    average : str or None
        Release the last iterate ("none"), the mean of all, or of the last `tail` share.
    tail : float or None
        In (0, 1].
    fresh_order : bool
        A new random order of the rows in every pass.
    clip : float or None
        Bound on the scalar derivative of the loss, in (0, 1e100]. For softmax: on the norm of a row's
        derivatives, in methods with noise on gradients only.
    unit_clip : float or None
        Of dp-gd with a unit of privacy: bound on the norm of the gradient of all rows of a unit, in
        (0, 1e100].
    huber_h : float
        Half width of the Huber SVM's bend, in [1e-270, 1e270].
    tolerance : float or None
        In [0, 1]. Of noiseless: stop when the loss falls by less than this share in a pass, by default
        1e-4. Of lbfgs: stop at a gradient of this norm, by default 1e-8.
    accountant : str or None
        Of bst14: "pld", by default, or "advanced", the composition of its publication.
    """

    method: str = "auto"
    solver: str | None = None
    loss: str | None = None
    passes: int | None = None
    batch_size: int | None = None
    lambda_: float | None = None
    schedule: str | None = None
    step_size: float | None = None
    momentum: float | None = None
    exponent: float = 0.5
    radius: float | None = None
    average: str | None = None
    tail: float | None = None
    fresh_order: bool = False
    clip: float | None = None
    unit_clip: float | None = None
    huber_h: float = 0.5
    tolerance: float | None = None
    accountant: str | None = None

    def __post_init__(self) -> None:
        as_choice(self.method, "method", METHODS)
        for key, choices in (
            ("solver", SOLVERS),
            ("loss", LOSSES),
            ("schedule", SCHEDULES),
            ("average", AVERAGES),
            ("accountant", ACCOUNTANTS),
        ):
            if getattr(self, key) is not None:
                as_choice(getattr(self, key), key, choices)
        for key, most in (("passes", 10**6), ("batch_size", 2**31 - 1)):
            value = getattr(self, key)
            if value is not None:
                require_whole(value, key, most)
        for key in ("step_size", "radius"):
            if getattr(self, key) is not None:
                require_between(getattr(self, key), key, _TINY, _HUGE)
        for key in ("clip", "unit_clip"):
            if getattr(self, key) is not None:
                clip = as_number(getattr(self, key), key)
                if clip is None or not 0.0 < clip <= _HUGE:
                    raise SpecError(f"{key} must be in (0, {_HUGE:g}], not {clip!r}")
        require_between(self.huber_h, "huber_h", 1e-270, 1e270)
        if self.lambda_ is not None:
            require_between(self.lambda_, "lambda", 0.0, 1e6)
        require_between(self.exponent, "exponent", 0.0, 1.0)
        if self.tolerance is not None:
            require_between(self.tolerance, "tolerance", 0.0, 1.0)
        if self.tail is not None:
            tail = as_number(self.tail, "tail")
            if tail is None or not 0.0 < tail <= 1.0:
                raise SpecError(f"tail must be in (0, 1], not {self.tail!r}")
        if self.momentum is not None:
            momentum = as_number(self.momentum, "momentum")
            if momentum is None or not 0.0 <= momentum < 1.0:
                raise SpecError(f"momentum must be in [0, 1), not {self.momentum!r}")
        as_flag(self.fresh_order, "fresh_order")
        self._refuse_unused()

    def _refuse_unused(self) -> None:
        for option in fields(self):
            used_by = [method for method, used in METHOD_OPTIONS.items() if option.name in used]
            given = getattr(self, option.name) != option.default
            if option.name != "method" and given and self.method not in used_by:
                name = option.name.rstrip("_")
                way_out = "name the method" if self.method == "auto" else f"take method = {used_by[0]}"
                raise SpecError(
                    f"{name} belongs to method {' or '.join(used_by)}, not to {self.method}: "
                    f"leave {name} out, or {way_out}"
                )
