# SPDX-License-Identifier: PostgreSQL
"""Full-batch sums of the kernels against numpy: gradients, losses, second moments, whitened rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import oracles, replay
from pg_dpml.kernels import Loss

FloatArray = npt.NDArray[np.float64]
N, D, K = 115, 13, 3

LOSSES = {
    "logistic": Loss("logistic"),
    "logistic_clipped": Loss("logistic", clip=0.4),
    "huber_svm": Loss("huber_svm", huber_h=0.3),
    "huber_svm_clipped": Loss("huber_svm", huber_h=0.3, clip=0.6),
    "hinge": Loss("hinge"),
    "hinge_clipped": Loss("hinge", clip=0.6),
    "squared": Loss("squared"),
    "squared_clipped": Loss("squared", clip=0.5),
    "softmax": Loss("softmax", n_classes=K),
    "one_vs_all": Loss("logistic", n_classes=K, clip=0.7),
    "one_vs_all_huber": Loss("huber_svm", n_classes=K),
    "one_vs_all_hinge": Loss("hinge", n_classes=K),
    "softmax_of_4": Loss("softmax", n_classes=4),
    "softmax_of_7": Loss("softmax", n_classes=7),
    "one_vs_all_of_10": Loss("huber_svm", n_classes=10),
}
SCALAR = [name for name, loss in LOSSES.items() if loss.n_classes == 1]


def make_rows(loss: Loss, n: int = N, d: int = D, seed: int = 5) -> tuple[FloatArray, FloatArray]:
    """Float32 rows of norm at most 1, half of their features 0, and labels that the loss understands."""
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(n, d)) * (draw.random((n, d)) < 0.5)
    x /= np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1.0) * 1.001
    labels = range(loss.n_classes) if loss.n_classes > 1 else (-1, 1)
    return x.astype(np.float32).astype(np.float64), draw.choice(np.array(labels, dtype=np.float64), n)


def make_weights(loss: Loss, models: int = 1, d: int = D) -> FloatArray:
    return 2.0 * np.random.default_rng(6).normal(size=(models, loss.n_classes, d))


def pack(
    form: str, x: FloatArray, y: FloatArray, starts: npt.ArrayLike | None = None, rows_per_block: int = 39
) -> list[bytes]:
    blocks = []
    for i in range(0, len(x), rows_per_block):
        part = slice(i, i + rows_per_block)
        own = None if starts is None else np.asarray(starts)[part]
        if form == "dense":
            blocks.append(replay.pack_dense(x[part], y[part], own))
        else:
            row, column = np.nonzero(x[part])
            row_end = np.searchsorted(row, np.arange(len(x[part])), side="right")
            blocks.append(replay.pack_csr(x.shape[1], row_end, column, x[part][row, column], y[part], own))
    return blocks


def close(found: FloatArray | None, wanted: npt.ArrayLike) -> None:
    """Equal to 1e-12 of the largest number: single entries can cancel."""
    assert found is not None
    expected = np.asarray(wanted, dtype=np.float64).reshape(-1)
    scale = float(np.max(np.abs(expected), initial=0.0))
    np.testing.assert_allclose(found, expected, rtol=0.0, atol=1e-12 * scale)


def row_slopes(loss: Loss, w: FloatArray, x: FloatArray, y: float) -> tuple[float, FloatArray]:
    """A row's loss and its derivatives in the scores, shape (K,)."""
    return scores_slopes(loss, w @ x, y)


def scores_slopes(loss: Loss, scores: FloatArray, y: float) -> tuple[float, FloatArray]:
    if loss.kind == "softmax":
        return oracles.softmax(scores, int(y))
    labels = [1.0 if k == y else -1.0 for k in range(loss.n_classes)] if loss.n_classes > 1 else [y]
    each = [
        oracles.loss(loss.kind, float(u), label, clip=loss.clip, h=loss.huber_h)
        for u, label in zip(scores, labels, strict=True)
    ]
    return sum(value for value, _ in each), np.array([slope for _, slope in each])


def wanted(
    loss: Loss,
    w: FloatArray,
    x: FloatArray,
    y: FloatArray,
    *,
    gradient_clip: float = math.inf,
    loss_clip: float = math.inf,
) -> tuple[FloatArray, FloatArray]:
    """Each row's gradient, shape (n, K, d), and loss at one model's weights of shape (K, d)."""
    gradients, losses = [], []
    for row, label in zip(x, y, strict=True):
        value, slopes = row_slopes(loss, w, row, label)
        gradients.append(np.outer(oracles.project(slopes, gradient_clip), row))
        losses.append(min(value, loss_clip))
    return np.array(gradients), np.array(losses)


@pytest.mark.parametrize("form", ["dense", "csr"])
@pytest.mark.parametrize("name", LOSSES)
def test_sums_agree_with_oracle(name: str, form: str) -> None:
    loss = LOSSES[name]
    x, y = make_rows(loss)
    w = make_weights(loss, models=4)
    blocks = pack(form, x, y)
    clips: list[dict[str, Any]] = [{}, {"gradient_clip": 0.3, "loss_clip": 0.5}]
    for clip in clips:
        found = replay.gradient(blocks, w, loss, models=4, **clip)
        close(found.gradient, wanted(loss, w[0], x, y, **clip)[0].sum(axis=0))
        close(found.losses, [wanted(loss, model, x, y, **clip)[1].sum() for model in w])
        assert found.rows == N


@pytest.mark.parametrize("form", ["dense", "csr"])
@pytest.mark.parametrize("name", LOSSES)
def test_parts_are_computed_alone(name: str, form: str) -> None:
    """Bit for bit what they are together."""
    loss = LOSSES[name]
    x, y = make_rows(loss)
    w = make_weights(loss, models=3)
    blocks = pack(form, x, y)
    both = replay.gradient(blocks, w, loss, models=3)
    only_gradient = replay.gradient(blocks, w, loss, models=3, losses=False)
    only_losses = replay.gradient(blocks, w, loss, models=3, gradient=False)
    one_model = replay.gradient(blocks, w[0], loss, losses=False)
    np.testing.assert_array_equal(only_gradient.gradient, both.gradient)
    np.testing.assert_array_equal(one_model.gradient, both.gradient)
    np.testing.assert_array_equal(only_losses.losses, both.losses)
    assert only_gradient.losses is None
    assert only_losses.gradient is None
    assert only_losses.rows == N


@pytest.mark.parametrize("d", [1, 3, 4, 5, 6, 7, 8, 9, 55])
@pytest.mark.parametrize("classes", [2, 3, 4, 7])
@pytest.mark.parametrize("kind", ["softmax", "logistic"])
def test_columns_of_zeros_between_others(kind: str, classes: int, d: int) -> None:
    """Rows of several classes are read in groups, without the columns that are 0 in the whole group."""
    loss = Loss(kind, n_classes=classes)
    draw = np.random.default_rng(d)
    for n in (1, 3, 4, 21):
        x = np.zeros((n, d))
        x[:, -1] = 0.5
        x[np.arange(n), draw.integers(0, d, n)] = 0.5
        x[::5] = draw.normal(size=(len(x[::5]), d)) / (4 * d)
        x = x.astype(np.float32).astype(np.float64)
        y = draw.integers(0, classes, n).astype(np.float64)
        w = draw.normal(size=(2, classes, d)) * 3.0
        found = replay.gradient(pack("dense", x, y), w, loss, models=2, gradient_clip=0.7)
        each, losses = [], []
        for row, label in zip(x, y, strict=True):
            value, slopes = scores_slopes(loss, w[0] @ row, int(label))
            each.append(np.outer(oracles.project(slopes, 0.7), row))
            losses.append(value)
        close(found.gradient, np.sum(each, axis=0))
        assert found.losses is not None
        assert found.losses[0] == pytest.approx(sum(losses), rel=1e-12)


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_a_row_of_several_classes_counts_the_same_wherever_it_lies(classes: int) -> None:
    """Bit for bit, whatever rows and blocks are beside it; a column of its own shows what it adds."""
    loss = Loss("softmax", n_classes=classes)
    draw = np.random.default_rng(9)
    n, d = 23, 29
    x = draw.normal(size=(n, d)) * (draw.random((n, d)) < 0.1) * 0.1
    x = np.hstack([x, 0.5 * np.eye(n)]).astype(np.float32).astype(np.float64)
    y = draw.integers(0, classes, n).astype(np.float64)
    w = draw.normal(size=(classes, d + n)) * 5.0

    def shares(order: npt.NDArray[np.int64], rows_per_block: int) -> FloatArray:
        blocks = pack("dense", x[order], y[order], rows_per_block=rows_per_block)
        found = replay.gradient(blocks, w, loss, gradient_clip=0.8).gradient
        assert found is not None
        return found.reshape(classes, d + n)[:, d:]

    first = shares(np.arange(n), 1)
    for rows_per_block in (2, 4, 5, 39):
        np.testing.assert_array_equal(shares(draw.permutation(n), rows_per_block), first)


@pytest.mark.parametrize("clip", [math.inf, 1.0, 1e-3, 1e-200])
def test_softmax_of_any_scores(clip: float) -> None:
    """Four rows at a time, against numpy with longer numbers."""
    draw = np.random.default_rng(10)
    scores = draw.normal(size=(400, 3)) * np.repeat([0.1, 1.0, 30.0, 500.0], 100)[:, np.newaxis]
    scores[:3] = [[0.0, 0.0, 0.0], [720.0, 0.0, -720.0], [1e300, -1e300, 0.0]]
    x, y = 0.5 * np.eye(4), np.array([0.0, 1.0, 2.0, 0.0])
    for four in scores.reshape(100, 4, 3):
        found = replay.gradient(
            pack("dense", x, y), 2.0 * four.T, Loss("softmax", n_classes=3), gradient_clip=clip
        ).gradient
        assert found is not None
        slopes = 2.0 * found.reshape(3, 4).T
        powers = np.exp(four.astype(np.longdouble) - four.max(axis=1, keepdims=True))
        exact = powers / powers.sum(axis=1, keepdims=True)
        exact[np.arange(4), y.astype(int)] -= 1
        norm = np.sqrt(np.sum(exact**2, axis=1, keepdims=True))
        factor = np.minimum(clip / np.maximum(norm, 1e-300), 1.0)
        # 1 - p has an error of an ulp of 1, which a clip can enlarge
        assert np.all(np.abs(slopes - exact * factor) <= 4e-16 * factor + 1e-15 * np.minimum(norm, clip))


@pytest.mark.parametrize("form", ["dense", "csr"])
@pytest.mark.parametrize("name", ["logistic", "softmax"])
def test_units_are_clipped_as_sums(name: str, form: str) -> None:
    """A unit is cut where a block ends, as the kernel sees one block."""
    loss = LOSSES[name]
    x, y = make_rows(loss)
    w = make_weights(loss)
    starts = np.random.default_rng(7).random(N) < 0.4
    gradients, losses = wanted(loss, w[0], x, y, gradient_clip=0.8)
    for unit_clip in (0.05, 0.5, 100.0):
        expected = np.zeros_like(gradients[0])
        first = 0
        for i in range(1, N + 1):
            if i == N or starts[i] or i % 39 == 0:
                expected += oracles.project(gradients[first:i].sum(axis=0), unit_clip)
                first = i
        found = replay.gradient(pack(form, x, y, starts), w, loss, gradient_clip=0.8, unit_clip=unit_clip)
        close(found.gradient, expected)
        close(found.losses, losses.sum())
    alone = replay.gradient(pack(form, x, y), w, loss, unit_clip=0.05)
    expected = sum(
        (oracles.project(g, 0.05) for g in wanted(loss, w[0], x, y)[0]), np.zeros_like(gradients[0])
    )
    close(alone.gradient, expected)


@pytest.mark.parametrize("form", ["dense", "csr"])
def test_errors_are_wrong_predictions(form: str) -> None:
    loss = LOSSES["logistic"]
    x, y = make_rows(loss)
    x[:5], y[5:9] = 0.0, 0.0
    w = make_weights(loss, models=2)
    found = replay.gradient(pack(form, x, y), w, loss, models=2, errors=True)
    for model, count in zip(w, found.losses if found.losses is not None else [], strict=True):
        predicted = np.where(x @ model[0] > 0, 1.0, -1.0)
        assert count == np.sum((predicted != y) & (y != 0.0))
    loss = LOSSES["softmax"]
    x, y = make_rows(loss)
    x[:5], y[5:9] = 0.0, [-1.0, 0.5, 3.0, np.nan]
    w = make_weights(loss)
    found = replay.gradient(pack(form, x, y), w, loss, gradient=False, errors=True)
    declared = np.isin(y, range(K))
    close(found.losses, np.sum((np.argmax(x @ w[0].T, axis=1) != y) & declared))


@pytest.mark.parametrize("form", ["dense", "csr"])
@pytest.mark.parametrize("name", LOSSES)
def test_what_is_not_finite_counts_for_nothing(name: str, form: str) -> None:
    loss = LOSSES[name]
    x, y = make_rows(loss, n=20)
    w = make_weights(loss)
    good = replay.gradient(pack(form, x, y), w, loss)
    bad = np.vstack([x, x[:4]])
    bad[20, :], bad[21, 3], bad[22, :], bad[23, 0] = np.nan, np.inf, -np.inf, np.nan
    found = replay.gradient(pack(form, bad, np.append(y, y[:4])), w, loss, unit_clip=1e9)
    close(found.gradient, good.gradient if good.gradient is not None else [])
    close(found.losses, good.losses if good.losses is not None else [])
    if loss.n_classes > 1:
        undeclared = replay.gradient(pack(form, x, np.full(20, loss.n_classes + 0.5)), w, loss)
        assert undeclared.gradient is not None
        assert not undeclared.gradient.any()
    if loss.n_classes == 1:
        moments = replay.gram(pack(form, bad, np.append(y, y[:4])))
        close(moments.xx, replay.gram(pack(form, x, y)).xx)
        hessian = replay.gram(pack(form, bad, np.append(y, y[:4])), w, loss)
        close(hessian.xx, replay.gram(pack(form, x, y), w, loss).xx)


def upper(matrix: FloatArray) -> FloatArray:
    return matrix[np.triu_indices(len(matrix))]


@pytest.mark.parametrize("form", ["dense", "csr"])
@pytest.mark.parametrize("d", [1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 16, 50])
@pytest.mark.parametrize("rows_per_block", [1, 39, 200])
def test_second_moments(d: int, form: str, rows_per_block: int) -> None:
    x, y = make_rows(LOSSES["logistic"], n=300, d=d)
    y = y * np.random.default_rng(8).random(len(y)).astype(np.float32)
    found = replay.gram(pack(form, x, y, rows_per_block=rows_per_block))
    close(found.xx, upper(x.T @ x))
    close(found.xy, x.T @ y)
    assert found.rows == 300


def curvature(loss: Loss, u: float, y: float) -> float:
    """Second derivative, by the definitions of the losses."""
    slope = oracles.loss(loss.kind, u, y, h=loss.huber_h)[1]
    if abs(slope) > loss.clip:
        return 0.0
    if loss.kind == "logistic":
        return abs(slope) * (1 - abs(slope))
    if loss.kind == "huber_svm":
        return 1 / (2 * loss.huber_h) if 0 < abs(slope) < 1 else 0.0
    if loss.kind == "hinge":
        return 0.0
    return 1.0


@pytest.mark.parametrize("form", ["dense", "csr"])
@pytest.mark.parametrize("name", SCALAR)
def test_hessian(name: str, form: str) -> None:
    loss = LOSSES[name]
    x, y = make_rows(loss)
    w = make_weights(loss)[0, 0]
    weights = np.array([curvature(loss, float(w @ row), label) for row, label in zip(x, y, strict=True)])
    assert (np.count_nonzero(weights) > 0) == (loss.kind != "hinge")
    assert ("clip" in name or loss.kind in ("huber_svm", "hinge")) == (np.count_nonzero(weights) < N)
    found = replay.gram(pack(form, x, y), w, loss)
    close(found.xx, upper((x * weights[:, np.newaxis]).T @ x))
    assert found.xy is None


@pytest.mark.parametrize("name", ["logistic", "logistic_clipped", "huber_svm", "squared_clipped"])
def test_hessian_is_the_slope_of_the_gradient(name: str) -> None:
    """An independent way to it: differences of gradients, away from the kinks."""
    loss = LOSSES[name]
    x, y = make_rows(loss, n=1)
    w = make_weights(loss)[0, 0] * 0.1
    blocks = pack("dense", x, y)
    found = replay.gram(blocks, w, loss).xx
    matrix = np.zeros((D, D))
    for i in range(D):
        step = np.zeros(D)
        step[i] = 1e-6
        up, down = replay.gradient(blocks, w + step, loss), replay.gradient(blocks, w - step, loss)
        assert up.gradient is not None
        assert down.gradient is not None
        matrix[i] = (up.gradient - down.gradient) / 2e-6
    np.testing.assert_allclose(found, upper(matrix), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("form", ["dense", "csr"])
@pytest.mark.parametrize("d", [1, 4, 8, 13, 32, 50])
def test_whitened_rows_have_one_norm(d: int, form: str) -> None:
    x, y = make_rows(LOSSES["logistic"], n=43, d=d)
    x[7] = 0.0
    p = np.random.default_rng(9).normal(size=(d, d)) + d * np.eye(d)
    starts = np.arange(43) % 3 == 0
    (block,) = pack(form, x, y, starts, rows_per_block=50)
    before, after = replay.open_block(block), replay.open_block(replay.whiten(block, p, 0.9))
    for part in ("labels", "starts", "row_end", "columns"):
        np.testing.assert_array_equal(getattr(after, part), getattr(before, part))
    rows = np.zeros((43, d))
    if form == "dense":
        rows = after.values.astype(np.float64)
    else:
        assert after.row_end is not None
        assert after.columns is not None
        counts = np.diff(after.row_end, prepend=0)
        rows[np.repeat(np.arange(43), counts), after.columns] = after.values
    norms = np.linalg.norm(x @ p.T, axis=1, keepdims=True)
    expected = np.divide(0.9 * x, norms, out=np.zeros_like(x), where=norms > 0)
    np.testing.assert_allclose(rows, expected, rtol=2.0**-23, atol=0.0)


@pytest.mark.parametrize("form", ["dense", "csr"])
@pytest.mark.parametrize("k", [0, 1, 2, 5])
@pytest.mark.parametrize("d", [1, 3, 4, 8, 13, 32, 50])
def test_few_directions_whiten_as_their_matrix_does(d: int, k: int, form: str) -> None:
    x, y = make_rows(LOSSES["logistic"], n=43, d=d)
    x[7] = 0.0
    v = np.random.default_rng(9).normal(size=(k, d)) / (2.0 * d)
    (block,) = pack(form, x, y, rows_per_block=50)
    found = replay.open_block(replay.whiten(block, v, 0.9, 1.5))
    wanted = replay.open_block(replay.whiten(block, 1.5 * np.eye(d) - v.T @ v, 0.9))
    np.testing.assert_allclose(found.values, wanted.values, rtol=2.0**-23, atol=0.0)


@pytest.mark.parametrize("form", ["dense", "csr"])
@pytest.mark.parametrize("piece", [1, 3, 5, 16, 100])
@pytest.mark.parametrize("d", [3, 13, 32])
def test_rows_are_whitened_alike_in_pieces(d: int, piece: int, form: str) -> None:
    x, y = make_rows(LOSSES["logistic"], n=43, d=d)
    x *= np.exp(np.arange(43.0))[:, None] / 1e9  # no row's norm is good for another
    v = np.random.default_rng(9).normal(size=(2, d)) / (2.0 * d)
    (block,) = pack(form, x, y, rows_per_block=50)
    for p, scale in ((v, 1.5), (1.5 * np.eye(d) - v.T @ v, None)):
        assert replay.whiten(block, p, 0.9, scale, piece) == replay.whiten(block, p, 0.9, scale)


@settings(max_examples=200, deadline=None)
@given(st.integers(-44, 38), st.integers(-300, 300), st.integers(-300, 300))
def test_whitening_is_finite_at_any_scale(row_scale: int, p_scale: int, norm_scale: int) -> None:
    """Rows that would leave float32 become zero rows; the others have the norm they should."""
    draw = np.random.default_rng(10).normal(size=(5, 5))
    p = np.eye(5) + 0.01 * (draw + draw.T)
    x = (np.ones((1, 5)) * 10.0**row_scale).astype(np.float32)
    norm = 10.0**norm_scale
    block = replay.pack_dense(x, [1.0])
    v = np.full((1, 5), 0.1)
    for after, image in (
        (replay.whiten(block, p * 10.0**p_scale, norm), p),
        (replay.whiten(block, v * 10.0 ** (p_scale / 2), norm, 10.0**p_scale), np.eye(5) - v.T @ v),
    ):
        values = replay.open_block(after).values
        assert np.isfinite(values).all()
        exponent = norm_scale - p_scale
        if -278 < row_scale + p_scale < 307 and -36 < exponent < 37 and x.any():
            assert np.linalg.norm(values.astype(np.float64) @ image) == pytest.approx(
                10.0**exponent, rel=1e-6
            )
        if exponent > 40 or not x.any():
            assert not values.any()


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_sums_do_not_depend_on_how_rows_are_packed(data: Any) -> None:
    """Any cut into blocks, either form, any width: the same sums to rounding."""
    loss = LOSSES[data.draw(st.sampled_from(sorted(LOSSES)))]
    n, d = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 20))
    x, y = make_rows(loss, n=n, d=d, seed=data.draw(st.integers(0, 100)))
    w = make_weights(loss, d=d)
    gradients, losses = wanted(loss, w[0], x, y)
    form = data.draw(st.sampled_from(["dense", "csr"]))
    blocks = pack(form, x, y, rows_per_block=data.draw(st.integers(1, 40)))
    found = replay.gradient(blocks, w, loss)
    assert found.gradient is not None
    np.testing.assert_allclose(found.gradient, gradients.sum(axis=0).ravel(), rtol=0.0, atol=1e-12 * n)
    assert found.losses is not None
    np.testing.assert_allclose(found.losses, [losses.sum()], rtol=1e-12, atol=1e-12)


def test_sums_of_many_rows_lose_nothing() -> None:
    """A plain sum of these is off by more than 1e-12."""
    n = 400_000
    x = np.full((n, 1), np.float32(0.1))
    y = np.where(np.arange(n) < n // 2, 1.0, -1.0).astype(np.float32)
    y[0] = 3e6
    blocks = pack("dense", x.astype(np.float64), y.astype(np.float64), rows_per_block=1000)
    found = replay.gram(blocks)
    assert found.xy is not None
    exact = math.fsum(float(np.float32(0.1)) * float(label) for label in y)
    assert found.xy[0] == pytest.approx(exact, rel=1e-15)


def test_bad_arguments_are_refused() -> None:
    x, y = make_rows(LOSSES["logistic"])
    blocks = pack("dense", x, y)
    refused: list[Any] = [
        lambda: replay.gradient(blocks, np.zeros(D + 1), LOSSES["logistic"]),
        lambda: replay.gradient(blocks, np.zeros(D), LOSSES["logistic"], models=2),
        lambda: replay.gradient(blocks, np.zeros(D), LOSSES["logistic"], gradient_clip=0.0),
        lambda: replay.gram([]),
        lambda: replay.gram(blocks, np.zeros(D)),
        lambda: replay.gram(blocks, np.zeros(D * K), LOSSES["softmax"]),
        lambda: replay.gram(blocks, np.zeros(D - 1), LOSSES["logistic"]),
        lambda: replay.whiten(blocks[0], np.zeros(D), 1.0),
        lambda: replay.whiten(blocks[0], np.eye(D), math.inf),
        lambda: replay.whiten(blocks[0], np.zeros(D + 1), 1.0, 1.0),
        lambda: replay.whiten(blocks[0], np.zeros(D), 1.0, math.inf),
    ]
    for call in refused:
        with pytest.raises(ValueError, match="must"):
            call()
