# SPDX-License-Identifier: PostgreSQL
"""The losses: values, derivatives and the two constants that privacy rests on."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import oracles
from pg_dpml._kernels import ffi, lib
from pg_dpml.kernels import Loss

LOSSES = [
    Loss("logistic"),
    Loss("logistic", clip=0.3),
    Loss("logistic", clip=0.9),
    Loss("huber_svm", huber_h=0.1),
    Loss("huber_svm", huber_h=0.5, clip=0.25),
    Loss("huber_svm", huber_h=2.0, clip=1.0),
    Loss("hinge"),
    Loss("hinge", clip=0.4),
    Loss("squared", clip=1.0),
    Loss("squared", clip=0.01),
    Loss("squared"),
]
losses = st.sampled_from(LOSSES)
smooth_losses = st.sampled_from([loss for loss in LOSSES if loss.smoothness < math.inf])
scores = st.floats(-30, 30)
signs = st.sampled_from([-1.0, 1.0])


@given(losses, scores, signs)
def test_agrees_with_oracle(loss: Loss, u: float, y: float) -> None:
    value, slope = oracles.loss(loss.kind, u, y, clip=loss.clip, h=loss.huber_h)
    # The oracle's kink is a bisection: its value is good to the last bits of u.
    assert loss.value(u, y) == pytest.approx(value, rel=1e-12, abs=1e-13)
    assert loss.derivative(u, y) == pytest.approx(slope, rel=1e-12, abs=1e-15)


@given(losses, scores, scores, st.floats(0, 1), signs)
def test_is_convex(loss: Loss, u: float, v: float, share: float, y: float) -> None:
    middle = share * u + (1 - share) * v
    chord = share * loss.value(u, y) + (1 - share) * loss.value(v, y)
    assert loss.value(middle, y) <= chord + 1e-12 * (1 + abs(chord))


@given(losses, st.floats(allow_nan=False), st.floats(allow_nan=False))
def test_derivative_never_exceeds_lipschitz(loss: Loss, u: float, y: float) -> None:
    """For any score and any label that can be stored, declared or not."""
    slope = loss.derivative(u, y)
    assert math.isnan(slope) or abs(slope) <= loss.lipschitz


@given(smooth_losses, scores, scores, signs)
def test_derivative_is_smooth(loss: Loss, u: float, v: float, y: float) -> None:
    change = abs(loss.derivative(u, y) - loss.derivative(v, y))
    assert change <= loss.smoothness * abs(u - v) * (1 + 1e-12) + 1e-14


@given(losses, scores, signs)
def test_value_follows_its_tangents(loss: Loss, u: float, y: float) -> None:
    """The value is the integral of the derivative: it stays within beta/2 step^2 of the tangent."""
    step = 1e-3
    for v in (u - step, u + step):
        tangent = loss.value(u, y) + loss.derivative(u, y) * (v - u)
        gap = loss.value(v, y) - tangent
        rounding = 1e-13 * (1 + abs(tangent))
        assert -rounding <= gap <= loss.smoothness / 2 * step**2 * (1 + 1e-9) + rounding


@pytest.mark.parametrize(
    ("kind", "beta"), [("logistic", 0.25), ("huber_svm", 1 / (2 * 0.3)), ("squared", 1.0)]
)
def test_smoothness_is_attained(kind: str, beta: float) -> None:
    loss = Loss(kind, huber_h=0.3)
    at = {"logistic": 0.0, "huber_svm": 1.0, "squared": 0.0}[kind]
    slope = (loss.derivative(at + 1e-4, 1.0) - loss.derivative(at - 1e-4, 1.0)) / 2e-4
    assert slope == pytest.approx(beta, rel=1e-6)
    assert loss.smoothness == pytest.approx(beta)


@pytest.mark.parametrize("clip", [math.inf, 0.4])
def test_hinge_bends_at_its_corner_alone(clip: float) -> None:
    loss, slope = Loss("hinge", clip=clip), min(1.0, clip)
    below, above = math.nextafter(1.0, 0.0), math.nextafter(1.0, 2.0)
    for y in (-1.0, 1.0):
        assert [loss.derivative(y * u, y) for u in (-1e300, below)] == [-y * slope] * 2
        assert [loss.derivative(y * u, y) for u in (1.0, above, 1e300)] == [0.0] * 3
        assert [loss.value(y * u, y) for u in (1.0, above, 1e300)] == [0.0] * 3
        assert loss.value(y * -3.0, y) == 4.0 * slope
        assert loss.value(y * below, y) == slope * 2.0**-53


@pytest.mark.parametrize("y", [0.0, math.nan])
def test_hinge_has_no_slope_for_a_label_of_no_class(y: float) -> None:
    assert [Loss("hinge").derivative(u, y) for u in (-2.0, 0.0, 2.0)] == [0.0] * 3


def test_constants() -> None:
    assert Loss("logistic").lipschitz == 1.0
    assert Loss("logistic", clip=0.3).lipschitz == 0.3
    assert Loss("huber_svm", clip=2.0).lipschitz == 1.0
    assert Loss("hinge").lipschitz == 1.0
    assert Loss("hinge", clip=0.3).lipschitz == 0.3
    assert Loss("hinge", n_classes=4).lipschitz == 2.0
    assert Loss("hinge").smoothness == math.inf
    assert Loss("squared", clip=0.7).lipschitz == 0.7
    assert Loss("squared").lipschitz == math.inf
    assert Loss("softmax", n_classes=3).lipschitz == math.sqrt(2)
    assert Loss("softmax", n_classes=3).smoothness == 0.5


def _softmax(values: list[float], label: int) -> tuple[float, list[float]]:
    array = ffi.new("double[]", values)
    gradient = ffi.new("double[]", len(values))
    lib.dpml_softmax_gradient(len(values), array, label, gradient)
    return lib.dpml_softmax_value(len(values), array, label), list(gradient)


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=7), st.data())
def test_softmax_agrees_with_oracle(values: list[float], data: st.DataObject) -> None:
    label = data.draw(st.integers(0, len(values) - 1))
    value, gradient = _softmax(values, label)
    oracle_value, oracle_gradient = oracles.softmax(np.array(values), label)
    assert value == pytest.approx(oracle_value, rel=1e-12, abs=1e-12)
    np.testing.assert_allclose(gradient, oracle_gradient, rtol=1e-12, atol=1e-12)
    assert np.linalg.norm(gradient) <= math.sqrt(2) * (1 + 1e-15)


@given(
    st.lists(st.floats(-20, 20), min_size=3, max_size=3), st.lists(st.floats(-1, 1), min_size=3, max_size=3)
)
def test_softmax_gradient_is_smooth(values: list[float], change: list[float]) -> None:
    here = np.array(_softmax(values, 0)[1])
    there = np.array(_softmax([v + c for v, c in zip(values, change, strict=True)], 0)[1])
    assert np.linalg.norm(here - there) <= 0.5 * np.linalg.norm(change) * (1 + 1e-9) + 1e-14


@pytest.mark.parametrize(
    "bad",
    [
        {"kind": "perceptron"},
        {"kind": "hinge", "clip": 0.0},
        {"kind": "softmax"},
        {"kind": "softmax", "n_classes": 3, "clip": 1.0},
        {"kind": "squared", "n_classes": 2},
        {"kind": "logistic", "clip": 0.0},
        {"kind": "huber_svm", "huber_h": -1.0},
    ],
)
def test_refuses_bad_arguments(bad: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        Loss(**bad)  # type: ignore[arg-type]
