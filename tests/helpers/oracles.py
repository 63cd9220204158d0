# SPDX-License-Identifier: PostgreSQL
"""The mathematics of the product in plain numpy, written from the formulas alone.

Nothing here calls the package.  Tests compare the kernels, the aggregates and
whole runs with these.  A loss is given by its name and the keywords `clip`
and `h`; an encoder is the JSON that `dpml.encode` takes.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
Step = Callable[[int], float]


# Losses: privacy/README.md, "Losses".


def logistic(u: float, y: float) -> tuple[float, float]:
    """ln(1 + exp(-y u)) and its derivative in u."""
    m = y * u
    value = math.log1p(math.exp(-m)) if m > 0 else math.log1p(math.exp(m)) - m
    p = 1.0 / (1.0 + math.exp(m)) if m < 700 else 0.0
    return value, -y * p


def huber_svm(u: float, y: float, h: float) -> tuple[float, float]:
    """The hinge, its corner rounded where |1 - y u| <= h, and its derivative in u."""
    m = y * u
    if m > 1 + h:
        return 0.0, 0.0
    if m >= 1 - h:
        return (1 + h - m) ** 2 / (4 * h), -y * (1 + h - m) / (2 * h)
    return 1 - m, -y


def hinge(u: float, y: float) -> tuple[float, float]:
    """max(0, 1 - y u) and a derivative in u; 0 at the corner."""
    m = y * u
    return (1 - m, -y) if m < 1 else (0.0, 0.0)


def squared(u: float, y: float) -> tuple[float, float]:
    """(u - y)^2 / 2 and its derivative in u."""
    return (u - y) ** 2 / 2, u - y


def plain(name: str, u: float, y: float, h: float = 0.1) -> tuple[float, float]:
    """Value and derivative of a loss that is not clipped."""
    if name == "huber_svm":
        return huber_svm(u, y, h)
    return {"logistic": logistic, "hinge": hinge, "squared": squared}[name](u, y)


def slope(name: str, u: float, y: float, *, clip: float = math.inf, h: float = 0.1) -> float:
    """The derivative of a loss, clipped to [-clip, clip]."""
    return min(max(plain(name, u, y, h)[1], -clip), clip)


def loss(name: str, u: float, y: float, *, clip: float = math.inf, h: float = 0.1) -> tuple[float, float]:
    """Value and derivative of a loss whose derivative is clipped to [-clip, clip].

    Beyond the point where the derivative reaches the clip, the value goes on
    along the tangent.  That point is found by bisection, not by a formula.
    """
    value, derivative = plain(name, u, y, h)
    if abs(derivative) <= clip:
        return value, derivative
    sign = math.copysign(1.0, derivative)
    # The derivative rises with v, so sign times it falls from u towards `inside`.
    inside, outside = u, u
    width = 1.0
    while sign * plain(name, inside, y, h)[1] > clip:
        inside -= sign * width
        width *= 2
    for _ in range(200):
        middle = (inside + outside) / 2
        if sign * plain(name, middle, y, h)[1] > clip:
            outside = middle
        else:
            inside = middle
    return plain(name, inside, y, h)[0] + clip * abs(u - inside), sign * clip


def softmax(scores: FloatArray, label: int) -> tuple[float, FloatArray]:
    """-ln p_y and its gradient in the scores, p - e_y."""
    largest = float(np.max(scores))
    log_sum = largest + math.log(float(np.sum(np.exp(scores - largest))))
    gradient = np.exp(scores - log_sum)
    gradient[label] -= 1.0
    return log_sum - float(scores[label]), gradient


# Steps: privacy/README.md, "Schedules".


def schedule(
    kind: str,
    *,
    step_size: float = 0.0,
    offset: float = 0.0,
    lambda_: float = 0.0,
    max_step: float = math.inf,
) -> Step:
    """The step sizes as a function of t = 1, 2, ..."""
    raw: dict[str, Step] = {
        "constant": lambda t: step_size,
        "decreasing": lambda t: 2 * max_step / (t + offset),
        "sqrt_decreasing": lambda t: 2 * max_step / (math.sqrt(t) + offset),
        "strongly_convex": lambda t: 1 / (lambda_ * t),
        "inverse_sqrt": lambda t: step_size / math.sqrt(t),
    }
    return lambda t: min(raw[kind](t), max_step)


# Passes: privacy/README.md, "Growth".


def row_gradient(
    name: str, w: FloatArray, x: FloatArray, y: float, *, clip: float = math.inf, h: float = 0.1
) -> FloatArray:
    """Gradient of one row's loss in w of shape (K, d)."""
    if name == "softmax":
        return np.outer(softmax(w @ x, int(y))[1], x)
    return loss(name, float(w[0] @ x), y, clip=clip, h=h)[1] * x[np.newaxis, :]


def project(w: FloatArray, radius: float) -> FloatArray:
    """The nearest point of the ball of that radius."""
    norm = float(np.linalg.norm(w))
    return w * (radius / norm) if norm > radius else w


def iterates(
    x: FloatArray,
    y: FloatArray,
    *,
    name: str,
    step: Step,
    lambda_: float = 0.0,
    radius: float = math.inf,
    batch_size: int = 1,
    passes: int = 1,
    n_outputs: int = 1,
    start: FloatArray | None = None,
    clip: float = math.inf,
    h: float = 0.1,
    gradient_clip: float = math.inf,
    momentum: float = 0.0,
    batches: Sequence[Sequence[int]] | None = None,
    noise: Callable[[FloatArray], FloatArray] = lambda gradient: gradient,
) -> list[FloatArray]:
    """Every iterate w_0, w_1, ..., w_T of mini-batch SGD, each of shape (K, d).

    `batches` lists the rows of each step, in place of consecutive batch_size
    rows; `noise` makes the sum of a batch's gradients what the step uses.
    """
    n, d = x.shape
    if batches is None:
        batches = [range(first, min(first + batch_size, n)) for first in range(0, n, batch_size)] * passes
    w = np.zeros((n_outputs, d)) if start is None else start.reshape(n_outputs, d)
    found = [project(w, radius)]
    velocity = np.zeros_like(w)
    for batch in batches:
        w = found[-1]
        gradient = np.zeros_like(w)
        for i in batch:
            row = row_gradient(name, w, x[i], y[i], clip=clip, h=h)
            # of an outer product of slopes and x, so this is the norm of the slopes
            slopes = float(np.linalg.norm(row)) / (float(np.linalg.norm(x[i])) or 1.0)
            gradient += row * min(1.0, gradient_clip / slopes) if slopes > 0.0 else row
        # A batch of another size is divided by the nominal size too.
        velocity = momentum * velocity + noise(gradient) / batch_size + lambda_ * w
        found.append(project(w - step(len(found)) * velocity, radius))
    return found


def average(found: Sequence[FloatArray], average_from: int) -> FloatArray:
    """Mean of the iterates w_average_from .. w_T."""
    mean: FloatArray = np.mean(np.stack(found[average_from:]), axis=0)
    return mean


# Sensitivity: privacy/README.md, "Growth" and "Sensitivity of any schedule".


def sensitivity(
    step: Step,
    *,
    smoothness: float,
    lambda_: float,
    gradient_change: float,
    n_rows: int,
    passes: int,
    batch_size: int,
    average_from: int = 0,
    fresh_order: bool = False,
) -> float:
    """How far one unit can move the released weights, by following every push forwards.

    A push of eta_s D / b at step s is carried through every later step's
    contraction; the output is the last iterate or the mean of the last ones.
    """
    batches = math.ceil(n_rows / batch_size)
    last = passes * batches
    if last == 0:
        return 0.0
    first = average_from or last
    moved = np.zeros((passes, batches))
    for s in range(1, last + 1):
        size = step(s) * gradient_change / batch_size
        for t in range(s, last + 1):
            if t > s:
                eta = step(t)
                size *= max(abs(1 - eta * lambda_), abs(1 - eta * (smoothness + lambda_)))
            if t >= first:
                moved[divmod(s - 1, batches)] += size / (last - first + 1)
    if fresh_order:
        return float(moved.max(axis=1).sum())
    return float(moved.sum(axis=0).max())


# Encoding: privacy/README.md, "Vectors come from public knowledge" and "Bad rows never show".


def encode(spec: Mapping[str, Any], values: Sequence[Any]) -> FloatArray:
    """A row before its norm is bounded, as float64.

    `values` has for each column a number, a level's text or a list of numbers;
    None is NULL.
    """
    features: list[float] = []
    for column, value in zip(spec["columns"], values, strict=True):
        features += _column(column, value)
    given = zip(spec["columns"], values, strict=True)
    by_name = {column.get("name"): (column, value) for column, value in given}
    for pair in spec.get("crosses", ()):
        first, second = (_basis(*by_name[name]) for name in pair)
        features += [a * b for a in first for b in second]
    if spec.get("intercept", True):
        features.append(1.0)
    return np.array(features)


def bound_norm(row: FloatArray, norm: str) -> FloatArray:
    """The row with its norm set ("normalize") or limited ("clip") to about 1 - 2^-19, or values clipped."""
    if norm == "clip_values":
        return np.asarray(np.minimum(np.maximum(row, -1.0), 1.0))
    largest = float(np.max(np.abs(row), initial=0.0))
    if largest == 0.0:
        return row
    direction = row / largest
    length = float(np.linalg.norm(direction))
    target = 1.0 - 2.0**-19
    if norm == "normalize" or length > target / largest:
        return direction * (target / length)
    return row


def _column(column: Mapping[str, Any], value: Any) -> list[float]:
    if column["kind"] == "category":
        levels = column["levels"]
        if value not in levels:
            return [0.0] * len(levels)
        shift = 1.0 / len(levels) if column.get("centered") else 0.0
        return [float(level == value) - shift for level in levels]
    if column["kind"] == "boolean":
        if value is None:
            return [0.0]
        return [float(value) if column.get("scale") == "zero_based" else 2.0 * value - 1.0]
    if column["kind"] == "array":
        if value is None or len(value) != column["length"]:
            return [0.0] * column["length"]
        return [_number(column, item) for item in value]
    return [_number(column, value), *(_basis(column, value) if column.get("knots") else ())]


def _basis(column: Mapping[str, Any], value: Any) -> list[float]:
    """Indicators of levels; or hat functions, as what interpolates 1 at one knot and 0 at the others."""
    if column["kind"] == "category":
        return [float(level == value) for level in column["levels"]]
    knots = np.array(column["knots"], dtype=np.float64)
    if value is None or math.isnan(value):
        return [0.0] * len(knots)
    v = min(max(float(value), column["lower"]), column["upper"])
    if column.get("log1p"):
        v, knots = math.log1p(v), np.log1p(knots)
    half = 0.5 if math.isinf(knots[-1] - knots[0]) else 1.0  # for the largest doubles
    return [float(np.interp(half * v, half * knots, one)) for one in np.eye(len(knots))]


def _number(column: Mapping[str, Any], value: float | None) -> float:
    lower = column.get("lower")
    upper = column.get("upper")
    lower = -math.inf if lower is None else float(lower)
    upper = math.inf if upper is None else float(upper)
    if value is None or math.isnan(value):
        return 0.0
    v = min(max(float(value), lower), upper)
    if math.isinf(v):
        return 0.0
    ends = [lower, upper]
    if column.get("log1p"):
        v, ends = math.log1p(v), [math.log1p(end) for end in ends if end >= 0]
    scale = column.get("scale", "center")
    if scale == "standard":
        scaled: float = (v - column["mean"]) / column["sd"]
        return min(max(scaled, -sys.float_info.max), sys.float_info.max)
    # Halves where upper - lower is beyond the largest double.
    half = 1.0 if math.isfinite(ends[1] - ends[0]) else 0.5
    share = (half * v - half * ends[0]) / (half * ends[1] - half * ends[0])
    return share if scale == "zero_based" else 2 * share - 1


# Coordinate descent: privacy/README.md, "Coordinate descent".


def dual_change(name: str, u: float, y: float, alpha: float, q: float, *, h: float = 0.1) -> float:
    """The change of a dual, from the primal loss alone.

    At the best change c the score s = u + q c has alpha + c = -phi'(s), or lies in
    a corner of the loss: s - u + q (phi'(s) + alpha) rises through 0 there.
    """
    low, high = -1.0, 1.0
    while low - u + q * (plain(name, low, y, h)[1] + alpha) > 0:
        low *= 2
    while high - u + q * (plain(name, high, y, h)[1] + alpha) < 0:
        high *= 2
    for _ in range(200):
        s = (low + high) / 2
        if s - u + q * (plain(name, s, y, h)[1] + alpha) > 0:
            high = s
        else:
            low = s
    return (s - u) / q


def dual_value(name: str, alpha: float, y: float, *, h: float = 0.1) -> float:
    """-phi*(-alpha), the least of phi(s) + alpha s, by trisection."""
    low, high = -64.0, 64.0
    for _ in range(400):
        left, right = (2 * low + high) / 3, (low + 2 * high) / 3
        if loss(name, left, y, h=h)[0] + alpha * left < loss(name, right, y, h=h)[0] + alpha * right:
            high = right
        else:
            low = left
    return loss(name, low, y, h=h)[0] + alpha * low


def coordinate_descent(
    x: FloatArray,
    y: FloatArray,
    batches: Sequence[Sequence[int]],
    *,
    name: str,
    lambda_: float,
    n: int,
    batch_size: int = 1,
    sequential: bool = False,
    update_clip: float = math.inf,
    h: float = 0.1,
    v: FloatArray | None = None,
    duals: FloatArray | None = None,
) -> tuple[FloatArray, FloatArray]:
    """v and the duals after batches of rows (numbers of rows), without noise."""
    v = np.zeros(x.shape[1]) if v is None else v.copy()
    duals = np.zeros(len(x)) if duals is None else duals.copy()
    for batch in batches:
        before = v.copy()
        for i in batch:
            q = (1 if sequential else batch_size) * float(x[i] @ x[i]) / (lambda_ * n)
            usable = q > 0 and (name == "squared" or y[i] != 0)
            u = float(x[i] @ (v if sequential else before)) / (lambda_ * n)
            zeta = dual_change(name, u, y[i], duals[i], q, h=h) if usable else 0.0
            zeta = min(max(zeta, -update_clip), update_clip)
            duals[i] += zeta
            v += zeta * x[i]
    return v, duals


def duality_gap(
    x: FloatArray,
    y: FloatArray,
    v: FloatArray,
    duals: FloatArray,
    *,
    name: str,
    lambda_: float,
    h: float = 0.1,
) -> tuple[float, float]:
    """P at v / (lambda n), and D."""
    n = len(x)
    w = v / (lambda_ * n)
    primal = sum(loss(name, float(row @ w), label, h=h)[0] for row, label in zip(x, y, strict=True))
    dual = sum(dual_value(name, a, label, h=h) for a, label in zip(duals, y, strict=True))
    penalty = lambda_ / 2 * float(w @ w)
    return primal / n + penalty, dual / n - penalty
