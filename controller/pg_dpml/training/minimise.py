# SPDX-License-Identifier: PostgreSQL
"""Minimise a smooth and strongly convex function by its gradients alone.

Three methods in turn, each from the best point so far: L-BFGS, which is nearly
always enough; Newton's, where a Hessian is at hand; and an accelerated gradient
method whose end is certain, for every function of the class. None looks at the
function's value, whose last digits are gone long before those of its gradient.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import scipy  # which imports its parts where they are used

from pg_dpml.kernels import FloatArray

__all__ = ["Goal", "minimise"]

FIRST_PASSES = 100
"""Of L-BFGS, before a Hessian is worth its price of a few dozen gradients."""

MEMORY = 20
"""Pairs of L-BFGS."""

NEWTON_STEPS = 50
SHORTEST_NEWTON_STEP = 2.0**-10
LINE_STEPS = 20
FLATTER = (-0.9, 0.5)
"""A line search ends where the slope is within these multiples of the first slope's size."""

Gradient = Callable[[FloatArray], FloatArray]


class Goal(NamedTuple):
    """What a point must fulfil."""

    gradient_norm: float
    """Bound on the norm of the computed gradient, in (0, inf)."""
    radius: float = math.inf
    """Bound on the norm of the point, in (0, inf]."""
    most_passes: int | None = None
    """Gradients after which to give up; None for never."""


@dataclass
class _Search:
    """The best point so far, and what it takes to find a better one."""

    function: Gradient
    goal: Goal
    point: FloatArray
    gradient: FloatArray = field(init=False)
    norm: float = field(default=math.inf, init=False)
    passes: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.gradient = self.evaluate(self.point)

    @property
    def done(self) -> bool:
        reached = self.norm <= self.goal.gradient_norm
        return reached or (self.goal.most_passes is not None and self.passes >= self.goal.most_passes)

    def allows(self, point: FloatArray) -> bool:
        """Within the radius, and finite: `dpml.gradient` rejects other weights."""
        return bool(np.all(np.isfinite(point))) and float(np.linalg.norm(point)) <= self.goal.radius

    def evaluate(self, point: FloatArray) -> FloatArray:
        """The gradient; the point is kept if it is allowed and better than any before."""
        gradient = self.function(point)
        self.passes += 1
        norm = float(np.linalg.norm(gradient))
        if norm < self.norm and self.allows(point):
            self.point, self.gradient, self.norm = point, gradient, norm
        return gradient


def minimise(
    function: Gradient,
    start: FloatArray,
    goal: Goal,
    *,
    convexity: float,
    smoothness: float,
    hessian: Callable[[FloatArray], FloatArray] | None = None,
) -> tuple[FloatArray, int]:
    """A point whose computed gradient is small.

    Parameters
    ----------
    function : callable
        The gradient of F at a point, each an ndarray of shape (n,).
    start : ndarray of shape (n,)
        Within the goal's radius.
    goal : Goal
    convexity, smoothness : float
        Bounds of the Hessian of F from below, in [0, inf), and from above, in (0, inf).
    hessian : callable or None
        The Hessian of F, or at a kink of its gradient one of the limits, an ndarray of shape (n, n).

    Returns
    -------
    point : ndarray of shape (n,)
        The goal is fulfilled, but for `most_passes`.
    passes : int
        Gradients and Hessians computed.

    Notes
    -----
    With convexity > 0 it ends for every F, if the gradient's error f is so small that
    gradient_norm >= (4 sqrt(smoothness / convexity) + 3) f and the radius is at least
    ||w*|| + gradient_norm / convexity.
    Source: privacy/README.md, "Certified minimiser".
    """
    search = _Search(function, goal, start)
    limit = _certain_passes(search.norm, goal, convexity, smoothness)
    if hessian is not None:
        _lbfgs(search, smoothness, FIRST_PASSES)
        _newton(search, hessian)
    _lbfgs(search, smoothness, limit)
    if convexity > 0.0:
        _accelerated(search, convexity, smoothness)
    return search.point, search.passes


def _period(convexity: float, smoothness: float) -> int:
    """Accelerated steps that divide the distance in function value by at least four."""
    return math.ceil(2.0 * math.sqrt(smoothness / convexity) * math.log(8.0))


def _certain_passes(norm: float, goal: Goal, convexity: float, smoothness: float) -> float:
    """Passes that the accelerated method needs at most; infinite without convexity."""
    if convexity == 0.0 or norm <= goal.gradient_norm:
        return math.inf
    condition = smoothness / convexity
    return _period(convexity, smoothness) * (
        1.0 + math.log(condition * (norm / goal.gradient_norm) ** 2, 4.0)
    )


def _lbfgs(search: _Search, smoothness: float, passes: float) -> None:
    """Limited-memory BFGS, until it stalls or has taken so many passes."""
    last = search.passes + passes
    point, gradient = search.point, search.gradient
    pairs: deque[tuple[FloatArray, FloatArray]] = deque(maxlen=MEMORY)
    while not search.done and search.passes < last:
        direction = -_inverse_hessian_times(pairs, gradient) if pairs else -gradient / smoothness
        found = _line_search(search, point, direction, float(gradient @ direction))
        if found is None:
            if not pairs:
                return
            pairs.clear()
            continue
        step, change = found[0] - point, found[1] - gradient
        # always, but for rounding and squares that vanish
        if float(step @ change) > 0.0 and float(change @ change) > 0.0:
            pairs.append((step, change))
        point, gradient = found


def _inverse_hessian_times(pairs: deque[tuple[FloatArray, FloatArray]], gradient: FloatArray) -> FloatArray:
    """The two-loop recursion. Source: Nocedal & Wright 2006, Algorithm 7.4."""
    vector = gradient.copy()
    shares = []
    for step, change in reversed(pairs):
        share = float(step @ vector) / float(step @ change)
        vector -= share * change
        shares.append(share)
    step, change = pairs[-1]
    vector *= float(step @ change) / float(change @ change)
    for (step, change), share in zip(pairs, reversed(shares), strict=True):
        vector += (share - float(change @ vector) / float(step @ change)) * step
    return vector


def _line_search(
    search: _Search, point: FloatArray, direction: FloatArray, slope: float
) -> tuple[FloatArray, FloatArray] | None:
    """A point along the direction where the slope is flatter, and its gradient; None if there is none to see.

    The slope of a convex function rises along a line, so its sign says on which side the minimum lies.
    """
    if not (slope < 0.0 and np.all(np.isfinite(direction))):
        return None
    low, low_slope, high, high_slope = 0.0, slope, math.inf, math.inf
    step = 1.0
    for _ in range(LINE_STEPS):
        trial = point + step * direction
        if not search.allows(trial):
            high, high_slope = step, math.inf
        else:
            gradient = search.evaluate(trial)
            found = float(gradient @ direction)
            if search.done or FLATTER[0] <= found / -slope <= FLATTER[1]:
                return trial, gradient
            if found < 0.0:
                low, low_slope = step, found
            else:
                high, high_slope = step, found
        step = _next_step(low, low_slope, high, high_slope, slope)
    return None


def _next_step(low: float, low_slope: float, high: float, high_slope: float, slope: float) -> float:
    """Where a straight line through the slopes meets zero, kept well inside the bracket."""
    if math.isinf(high):
        gain = low_slope - slope
        ahead = -low * low_slope / gain if gain > 0.0 else math.inf
        return low + min(max(ahead, low), 9.0 * low)
    if math.isinf(high_slope):
        return 0.5 * (low + high)
    share = low_slope / (low_slope - high_slope)
    return low + min(max(share, 0.1), 0.9) * (high - low)


def _newton(search: _Search, hessian: Callable[[FloatArray], FloatArray]) -> None:
    """Newton's method, each step halved until the gradient's norm falls; ends where that takes too long."""
    for _ in range(NEWTON_STEPS):
        if search.done:
            return
        point, norm = search.point, search.norm
        search.passes += 1
        try:
            factor = scipy.linalg.cho_factor(hessian(point), overwrite_a=True, check_finite=False)
        except scipy.linalg.LinAlgError:  # at lambda = 0, or rounded from a tiny one
            return
        direction = -scipy.linalg.cho_solve(factor, search.gradient, check_finite=False)
        step = 1.0
        while step >= SHORTEST_NEWTON_STEP and not search.done:
            trial = point + step * direction
            if search.allows(trial):
                search.evaluate(trial)
            if search.norm <= (1.0 - 0.1 * step) * norm:
                break
            step *= 0.5
        else:
            return


def _accelerated(search: _Search, convexity: float, smoothness: float) -> None:
    """Nesterov's constant-momentum method, brought to rest again and again.

    Notes
    -----
    In a period the function value falls to a quarter of its distance, or to what the gradient's
    error allows. The first gradient of a period is that of the point where the last one led.
    Source: Nesterov 2018, section 2.2.1; privacy/README.md, "Certified minimiser".
    """
    share = math.sqrt(convexity / smoothness)
    leader = search.point
    while not search.done:
        follower = leader
        for _ in range(_period(convexity, smoothness)):
            middle = (leader + share * follower) / (1.0 + share)
            gradient = search.evaluate(middle)
            if search.done:
                return
            leader = middle - gradient / smoothness
            follower = (1.0 - share) * follower + share * (middle - gradient / convexity)
