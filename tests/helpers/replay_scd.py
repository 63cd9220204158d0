# SPDX-License-Identifier: PostgreSQL
"""Coordinate descent by the kernels, in memory: passes, Poisson batches and the duality gap."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from helpers.replay import Store, key_of, store_of, view_of, views_of
from pg_dpml.kernels import FloatArray, Loss, ffi, lib, pointer, require

__all__ = [
    "Models",
    "Pass",
    "Sums",
    "dual_change",
    "dual_value",
    "gap",
    "scd_blocks",
    "scd_models",
    "scd_poisson",
    "scd_poisson_models",
    "scd_rows",
    "sums",
]


class Pass(NamedTuple):
    """Where a pass ended."""

    v: FloatArray
    """Shape (d,); the weights are v / (lambda n)."""
    duals: FloatArray
    """In the order of the rows, shape (rows,)."""
    steps: int
    """Batches so far, earlier passes included."""
    rows: int
    """Rows of this pass: with Poisson batches, rows that could be drawn."""


class Models(NamedTuple):
    """Where the passes of many keys ended."""

    v: FloatArray
    """Shape (runs, d)."""
    duals: FloatArray
    """Shape (runs, rows)."""


class Sums(NamedTuple):
    """Sums over rows, of which a duality gap is made."""

    primal: float
    dual: float
    infeasible: int
    """Rows whose dual value is minus infinity."""


def _c_loss(loss: Loss) -> Any:
    return ffi.new("DpmlLoss *", loss.c_fields())


def dual_change(loss: Loss, u: float, y: float, alpha: float, q: float, *, exact: bool = True) -> float:
    """The change of one dual, for a row of score u."""
    return float(lib.dpml_dual_change(_c_loss(loss), exact, u, y, alpha, q))


def dual_value(loss: Loss, alpha: float, y: float) -> float:
    """-phi*(-alpha)."""
    return float(lib.dpml_dual_value(_c_loss(loss), alpha, y))


class _Run:
    """One pass of the kernel and the memory it works in."""

    def __init__(
        self,
        n_features: int,
        *,
        loss: Loss,
        lambda_: float,
        n: int,
        update_clip: float = math.inf,
        batch_size: int = 1,
        by_unit: bool = False,
        sequential: bool = False,
        exact: bool = False,
        noise_scale: float | None = None,
        dual_noise: bool = False,
        max_rows_per_unit: int = 1,
        key: bytes = bytes(32),
        v: npt.ArrayLike | None = None,
        steps: int = 0,
    ) -> None:
        require(0.0 < lambda_ < math.inf and n >= 1, "lambda must be in (0, inf), n at least 1")
        self._options = ffi.new(
            "DpmlScdOptions *",
            {
                "loss": loss.c_fields(),
                "lambda": lambda_,
                "n": n,
                "update_clip": update_clip,
                "noise_scale": noise_scale or 0.0,
                "n_features": n_features,
                "batch_size": batch_size,
                "by_unit": by_unit,
                "noise": lib.DPML_NO_NOISE if noise_scale is None else lib.DPML_GAUSSIAN,
                "dual_noise": dual_noise,
                "sequential": sequential,
                "exact": exact,
                "max_rows_per_unit": max_rows_per_unit,
            },
        )
        self._memory = ffi.new("char[]", lib.dpml_scd_memory(self._options))
        self.state = ffi.new("DpmlScd *")
        self._v = None if v is None else np.ascontiguousarray(v, dtype=np.float64)
        require(self._v is None or self._v.shape == (n_features,), "v must have one number a feature")
        self._began = ffi.new(
            "DpmlScdStart *",
            [
                ffi.NULL if self._v is None else pointer(self._v),
                steps,
                ffi.from_buffer("uint8_t[]", key) if noise_scale is not None else ffi.NULL,
            ],
        )
        self._start()

    def _start(self) -> None:
        lib.dpml_scd_start(self.state, self._options, self._memory, self._began)
        require(bool(lib.dpml_scd_valid(self.state)), "the state is not valid")

    def again(self, key: bytes) -> None:
        """Begin the same pass with another key."""
        own = ffi.from_buffer("uint8_t[]", key)
        self._began.key = own
        self._start()

    def take(self, views: Sequence[Any], duals: FloatArray) -> None:
        """The rows of blocks, and their duals."""
        first = 0
        for view in views:
            lib.dpml_scd_block(self.state, view, 0, view.n_rows, pointer(duals[first:]))
            first += view.n_rows

    def draw(self, store: Store, duals: FloatArray, sampling: float, n_steps: int, coin_key: bytes) -> None:
        """Steps over Poisson batches of the store, whose duals these become first."""
        for record, dual in zip(store.records, duals, strict=True):
            lib.dpml_record_set_dual(record, dual)
        state = store.poisson(sampling, n_steps, coin_key)
        while lib.dpml_poisson_scd(state, self.state, 1000):
            pass

    def finish(self, duals: FloatArray) -> Pass:
        require(bool(lib.dpml_scd_valid(self.state)), "the state is not valid")
        lib.dpml_scd_finish(self.state)
        d = self.state.options.n_features
        v = np.frombuffer(ffi.buffer(self.state.v, 8 * d), dtype=np.float64).copy()
        return Pass(v, duals, self.state.steps, self.state.rows)


def _duals(given: npt.ArrayLike | None, n: int) -> FloatArray:
    duals = np.zeros(n) if given is None else np.array(given, dtype=np.float64)
    require(duals.shape == (n,), "duals must have one number a row")
    return duals


def scd_rows(
    x: npt.ArrayLike, y: npt.ArrayLike, *, duals: npt.ArrayLike | None = None, **options: Any
) -> Pass:
    """One pass over float64 rows of shape (n, d), in the order given.

    Parameters
    ----------
    x, y
        Rows and their labels, as the loss wants them.
    duals
        Of the rows, shape (n,); None for zeros.
    options
        loss : Loss; lambda_ : float, in (0, inf); n : int, at least 1, what the
        loss is a mean over; update_clip : float, in (0, inf]; batch_size : int;
        max_rows_per_unit : int; by_unit, sequential, exact, dual_noise : bool;
        noise_scale : float or None, of Gaussian noise; key : 32 bytes, its own;
        v : ndarray of shape (d,) and steps : int, where an earlier pass ended.
    """
    rows, labels = np.ascontiguousarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    run = _Run(rows.shape[1], **options)
    kept = _duals(duals, len(rows))
    for i, (row, label) in enumerate(zip(rows, labels, strict=True)):
        lib.dpml_scd_row(run.state, pointer(row), label, pointer(kept[i : i + 1]))
    return run.finish(kept)


def scd_blocks(
    blocks: Sequence[bytes], *, n_features: int, duals: npt.ArrayLike | None = None, **options: Any
) -> Pass:
    """One pass over packed blocks, in the order given; options as in scd_rows."""
    run = _Run(n_features, **options)
    views = views_of(blocks, n_features)
    kept = _duals(duals, sum(view.n_rows for view in views))
    run.take(views, kept)
    return run.finish(kept)


def scd_models(
    blocks: Sequence[bytes],
    keys: Iterable[int],
    *,
    n_features: int,
    duals: npt.ArrayLike | None = None,
    **options: Any,
) -> Models:
    """As many runs of `scd_blocks` as there are keys, each with its `key_of`; the rest is prepared once."""
    run = _Run(n_features, **options)
    views = views_of(blocks, n_features)
    begun = _duals(duals, sum(view.n_rows for view in views))
    v, kept = [], []
    for key in keys:
        run.again(key_of(key))
        kept.append(begun.copy())
        run.take(views, kept[-1])
        v.append(run.finish(kept[-1]).v)
    return Models(np.array(v), np.array(kept))


def scd_poisson(
    blocks: Iterable[bytes],
    *,
    n_features: int,
    n_steps: int,
    sampling: float,
    coin_key: bytes,
    duals: npt.ArrayLike | None = None,
    **options: Any,
) -> Pass:
    """Steps over Poisson batches; parameters as in replay.sgd_poisson, options as in scd_rows."""
    run = _Run(n_features, **options)
    store = store_of(tuple(blocks), n_features, bool(options.get("by_unit")))
    run.draw(store, _duals(duals, len(store.records)), sampling, n_steps, coin_key)
    kept = np.array([lib.dpml_record_dual(record) for record in store.records])
    return run.finish(kept)._replace(rows=len(kept))


def scd_poisson_models(
    blocks: Iterable[bytes],
    keys: Iterable[int],
    *,
    n_features: int,
    n_steps: int,
    sampling: float,
    first_coin_key: int,
    duals: npt.ArrayLike | None = None,
    **options: Any,
) -> FloatArray:
    """v, shape (runs, d), of as many runs of `scd_poisson` as there are keys.

    Of a key, the noise's is `key_of(key)` and coin_key is `key_of(first_coin_key + key)`.
    """
    run = _Run(n_features, **options)
    store = store_of(tuple(blocks), n_features, bool(options.get("by_unit")))
    begun = _duals(duals, len(store.records))
    found = []
    for key in keys:
        run.again(key_of(key))
        run.draw(store, begun, sampling, n_steps, key_of(first_coin_key + key))
        found.append(run.finish(begun).v)
    return np.array(found)


def sums(blocks: Iterable[bytes], weights: npt.ArrayLike, duals: FloatArray, loss: Loss) -> Sums:
    """The sums of a duality gap at weights of shape (d,), over the rows of blocks."""
    flat = np.ascontiguousarray(weights, dtype=np.float64)
    total = np.zeros(lib.DPML_DUAL_SUMS)
    first = 0
    for data in blocks:
        view = view_of(data)
        kept = pointer(np.ascontiguousarray(duals[first : first + view.n_rows]))
        lib.dpml_dual_sums(_c_loss(loss), pointer(flat), view, 0, view.n_rows, kept, pointer(total))
        first += view.n_rows
    return Sums(float(total[0]), float(total[1]), int(total[2]))


def gap(blocks: Sequence[bytes], found: Pass, loss: Loss, lambda_: float, n: int) -> tuple[float, float]:
    """P and D after a pass; D is minus infinity at duals that are not feasible."""
    weights = found.v / (lambda_ * n)
    total = sums(blocks, weights, found.duals, loss)
    penalty = lambda_ / 2 * float(weights @ weights)
    dual = -math.inf if total.infeasible else total.dual
    return total.primal / n + penalty, dual / n - penalty
