# SPDX-License-Identifier: PostgreSQL
"""What the kernels do with rows, replayed in memory: encoding, packing, passes, full-batch sums, losses.

The product runs these in the server. Here they are for tests, which
call the very code that the server runs.  Shapes are written with n rows, d
features (the intercept included) and K outputs: the classes of the softmax
loss, 1 for the others.  Weights are flat, K rows of d.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pg_dpml.kernels import FloatArray, Loss, Schedule, ffi, lib, pointer, require

__all__ = [
    "Block",
    "Column",
    "Encoder",
    "Epoch",
    "GradientSums",
    "GramSums",
    "Image",
    "block_capacity",
    "clip_row",
    "encode_row",
    "encode_sparse",
    "gradient",
    "gram",
    "key_of",
    "loss_sum_blocks",
    "loss_sum_rows",
    "open_block",
    "pack_csr",
    "pack_dense",
    "scores",
    "sgd_blocks",
    "sgd_models",
    "sgd_poisson",
    "sgd_poisson_models",
    "sgd_rows",
    "views_of",
    "whiten",
    "whitened_norm",
]

_BLOCK_KINDS = {"dense": lib.DPML_DENSE, "csr": lib.DPML_CSR}
_BLOCK_PROBLEMS = {
    lib.DPML_TRUNCATED: "its length is not what its header promises",
    lib.DPML_BAD_MAGIC: "it is not a packed block",
    lib.DPML_BAD_VERSION: "it has another format version",
    lib.DPML_BAD_LAYOUT: "its header, offsets or column numbers are inconsistent",
}
_COLUMN_KINDS = {
    "numeric": lib.DPML_NUMERIC,
    "category": lib.DPML_CATEGORY,
    "array": lib.DPML_ARRAY,
    "sparse": lib.DPML_SPARSE,
}
_STEP_NOISES = {"none": lib.DPML_NO_NOISE, "gaussian": lib.DPML_GAUSSIAN, "k-norm": lib.DPML_KNORM}
_SCALES = {"center": lib.DPML_CENTER, "zero_based": lib.DPML_ZERO_BASED, "standard": lib.DPML_STANDARD}


def _floats(values: npt.ArrayLike) -> FloatArray:
    return np.ascontiguousarray(values, dtype=np.float64)


class Block(NamedTuple):
    """The parts of a packed block."""

    kind: str
    """dense or csr."""
    n_features: int
    labels: npt.NDArray[np.float32]
    """Shape (n,)."""
    starts: npt.NDArray[np.bool_] | None
    """Which rows begin a unit, shape (n,); None: all."""
    values: npt.NDArray[np.float32]
    """Shape (n, d) when dense, else (stored values,)."""
    row_end: npt.NDArray[np.uint32] | None
    """CSR: where each row ends in values and columns, shape (n,)."""
    columns: npt.NDArray[np.uint32] | None
    """CSR: the feature of each value."""


class Epoch(NamedTuple):
    """Where a pass ended."""

    weights: FloatArray
    """Shape (K * d,)."""
    average: FloatArray | None
    """Mean of the iterates from step average_from on, shape (K * d,)."""
    steps: int
    """Steps so far, earlier passes included."""
    rows: int
    """Rows of this pass: with Poisson batches, rows that could be drawn."""
    velocity: FloatArray | None = None
    """With momentum, shape (K * d,)."""


class GradientSums(NamedTuple):
    """Sums over rows: not divided by n, without a regulariser."""

    gradient: FloatArray | None
    """Of the first model's losses, shape (K * d,)."""
    losses: FloatArray | None
    """Of each model, or numbers of wrong rows, shape (J,)."""
    rows: int


class GramSums(NamedTuple):
    """Second moments of rows."""

    xx: FloatArray
    """Upper triangle of a symmetric matrix, row by row, shape (d (d + 1) / 2,)."""
    xy: FloatArray | None
    """Sum of y x, shape (d,); None for a Hessian."""
    rows: int


def block_capacity(kind: str, n_features: int, n_values: int = 0) -> int:
    """Rows that fit one block; n_values is the most a CSR row stores."""
    return int(lib.dpml_block_capacity(_BLOCK_KINDS[kind], n_features, n_values))


def _view(data: Any) -> Any:
    view = ffi.new("DpmlBlock *")
    status = lib.dpml_block_open(view, data, len(data))
    require(status == lib.DPML_OK, f"the block cannot be read: {_BLOCK_PROBLEMS.get(status)}")
    return view


def view_of(data: bytes) -> Any:
    """The kernels' view of the bytes of a block; ValueError if they are not one."""
    return _view(ffi.from_buffer(data))


def views_of(blocks: Sequence[bytes], n_features: int) -> list[Any]:
    """The kernels' views of blocks that have this number of features; they do not keep the bytes alive."""
    views = [view_of(data) for data in blocks]
    require(all(view.n_features == n_features for view in views), "a block has another number of features")
    return views


def open_block(data: bytes) -> Block:
    """Check the bytes of a block and return views of its parts; ValueError if they are not one."""
    buffer = ffi.from_buffer(data)
    view = _view(buffer)

    def part(start: Any, length: int, dtype: type[Any]) -> Any:
        offset = int(ffi.cast("uintptr_t", start)) - int(ffi.cast("uintptr_t", buffer))
        return np.frombuffer(data, dtype, length, offset) if length else np.empty(0, dtype)

    labels = part(view.labels, view.n_rows, np.float32)
    starts = None
    if view.starts != ffi.NULL:
        words = part(view.starts, -(-view.n_rows // 32), np.uint32)
        starts = np.unpackbits(words.view(np.uint8), count=view.n_rows, bitorder="little").astype(bool)
    values = part(view.values, view.n_values, np.float32)
    if view.kind == lib.DPML_DENSE:
        return Block(
            "dense",
            view.n_features,
            labels,
            starts,
            values.reshape(view.n_rows, view.n_features),
            None,
            None,
        )
    row_end = part(view.row_end, view.n_rows, np.uint32)
    columns = part(view.columns, view.n_values, np.uint32)
    return Block("csr", view.n_features, labels, starts, values, row_end, columns)


def _starts(first: npt.ArrayLike, n_rows: int) -> npt.NDArray[np.uint32]:
    """Which rows begin a unit, one bit a row."""
    flags = np.asarray(first, dtype=bool)
    require(flags.shape == (n_rows,), "starts must have one entry a row")
    padded = np.zeros(-(-n_rows // 32) * 32, dtype=bool)
    padded[:n_rows] = flags
    return np.packbits(padded, bitorder="little").view(np.uint32)


def _pack(
    kind: str, n_features: int, labels: npt.NDArray[np.float32], parts: dict[str, npt.NDArray[Any]]
) -> bytes:
    n_values = parts["values"].size
    kept = {
        name: pointer(part, "uint32_t" if part.dtype == np.uint32 else "float")
        for name, part in parts.items()
    }
    block = ffi.new(
        "DpmlBlock *",
        {
            "kind": _BLOCK_KINDS[kind],
            "n_features": n_features,
            "n_rows": len(labels),
            "n_values": n_values,
            "labels": pointer(labels, "float"),
            **kept,
        },
    )
    size = lib.dpml_block_size(block)
    require(size > 0, "the block's numbers are out of range")
    out = bytearray(size)
    lib.dpml_block_write(block, ffi.from_buffer(out))
    return bytes(out)


def pack_dense(x: npt.ArrayLike, y: npt.ArrayLike, starts: npt.ArrayLike | None = None) -> bytes:
    """Pack rows of shape (n, d) and labels of shape (n,) into a block.

    `starts` of shape (n,) says which rows begin a unit of privacy; None: all.
    """
    values = np.ascontiguousarray(x, dtype=np.float32)
    labels = np.ascontiguousarray(y, dtype=np.float32)
    require(values.ndim == 2 and labels.shape == values.shape[:1], "x must have shape (n, d) and y (n,)")
    parts: dict[str, npt.NDArray[Any]] = {"values": values}
    if starts is not None:
        parts["starts"] = _starts(starts, len(labels))
    return _pack("dense", values.shape[1], labels, parts)


def pack_csr(
    n_features: int,
    row_end: npt.ArrayLike,
    columns: npt.ArrayLike,
    values: npt.ArrayLike,
    y: npt.ArrayLike,
    starts: npt.ArrayLike | None = None,
) -> bytes:
    """Pack sparse rows: row i is values and columns from row_end[i - 1] to row_end[i].

    `starts` as in pack_dense.
    """
    labels = np.ascontiguousarray(y, dtype=np.float32)
    parts: dict[str, npt.NDArray[Any]] = {
        "row_end": np.ascontiguousarray(row_end, dtype=np.uint32),
        "columns": np.ascontiguousarray(columns, dtype=np.uint32),
        "values": np.ascontiguousarray(values, dtype=np.float32),
    }
    require(parts["row_end"].shape == labels.shape, "row_end and y must have one entry a row")
    require(parts["columns"].shape == parts["values"].shape, "columns and values must have the same length")
    if starts is not None:
        parts["starts"] = _starts(starts, len(labels))
    return _pack("csr", n_features, labels, parts)


@lru_cache(maxsize=16)
def _sgd_options(
    *,
    loss: Loss,
    schedule: Schedule,
    lambda_: float,
    radius: float,
    average_from: int,
    n_features: int,
    batch_size: int,
    by_unit: bool,
    noise: str,
    noise_scale: float,
    gradient_clip: float,
    momentum: float,
) -> Any:
    """The options as the kernels read them, kept for the many passes of a test that have the same."""
    require(0.0 <= lambda_ < math.inf, "lambda must be in [0, inf)")
    require(radius > 0.0, "radius must be in (0, inf]")
    require(1 <= batch_size < 2**31, "batch_size must be at least 1")
    require(1 <= n_features <= lib.DPML_MAX_FEATURES, "n_features is out of range")
    require(average_from >= 0, "average_from must be at least 0")
    require(noise in _STEP_NOISES, f"noise must be one of {', '.join(_STEP_NOISES)}")
    require(gradient_clip > 0.0, "gradient_clip must be in (0, inf]")
    require(0.0 <= momentum < 1.0, "momentum must be in [0, 1)")
    return ffi.new(
        "DpmlSgdOptions *",
        {
            "loss": loss.c_fields(),
            "schedule": schedule.c_fields(),
            "lambda": lambda_,
            "radius": radius,
            "average_from": average_from,
            "n_features": n_features,
            "batch_size": batch_size,
            "by_unit": by_unit,
            "noise": _STEP_NOISES[noise],
            "noise_scale": noise_scale,
            "gradient_clip": gradient_clip,
            "momentum": momentum,
        },
    )


class _Pass:
    """One pass of the SGD kernel and the memory it works in."""

    def __init__(
        self,
        n_features: int,
        *,
        loss: Loss,
        schedule: Schedule,
        lambda_: float = 0.0,
        radius: float = math.inf,
        batch_size: int = 1,
        weights: npt.ArrayLike | None = None,
        average: npt.ArrayLike | None = None,
        steps: int = 0,
        average_from: int = 0,
        by_unit: bool = False,
        noise: str = "none",
        noise_scale: float = 0.0,
        noise_key: bytes | None = None,
        gradient_clip: float = math.inf,
        momentum: float = 0.0,
        velocity: npt.ArrayLike | None = None,
        sizes: npt.ArrayLike | None = None,
    ) -> None:
        self._options = _sgd_options(
            loss=loss,
            schedule=schedule,
            lambda_=lambda_,
            radius=radius,
            average_from=average_from,
            n_features=n_features,
            batch_size=batch_size,
            by_unit=by_unit,
            noise=noise,
            noise_scale=noise_scale,
            gradient_clip=gradient_clip,
            momentum=momentum,
        )
        require(steps >= 0, "steps must be at least 0")
        require(
            noise == "none" or (0.0 < noise_scale < math.inf and noise_key is not None),
            "noise needs noise_scale in (0, inf) and noise_key",
        )
        require(noise_key is None or len(noise_key) == 32, "noise_key must have 32 bytes")
        self._size = loss.n_classes * n_features
        self._memory = ffi.new("char[]", lib.dpml_sgd_memory(self._options))
        self.state = ffi.new("DpmlSgd *")
        kept = [self._start(values) for values in (weights, average, velocity)]
        key = ffi.NULL if noise_key is None else ffi.from_buffer("uint8_t[]", noise_key)
        self._sizes = None if sizes is None else np.ascontiguousarray(sizes, dtype=np.int32)
        units = [ffi.NULL, 0] if self._sizes is None else [pointer(self._sizes, "int32_t"), len(self._sizes)]
        self._began = ffi.new("DpmlSgdStart *", [*kept, steps, *units, key])
        lib.dpml_sgd_start(self.state, self._options, self._memory, self._began)

    def _start(self, values: npt.ArrayLike | None) -> Any:
        if values is None:
            return ffi.NULL
        flat = _floats(values).reshape(-1)
        require(flat.size == self._size, f"weights must have {self._size} entries")
        return pointer(flat)

    def again(self, noise_key: bytes, steps: int = 0) -> None:
        """Begin the same pass with another key: after some steps where it ended, else at zero weights."""
        kept = self.weights() if steps else None
        self._began.weights, self._began.steps = self._start(kept), steps
        key = ffi.from_buffer("uint8_t[]", noise_key)
        self._began.key = key
        lib.dpml_sgd_start(self.state, self._options, self._memory, self._began)

    def take(self, views: Iterable[Any]) -> None:
        """The rows of blocks."""
        for view in views:
            lib.dpml_sgd_block(self.state, view, 0, view.n_rows)

    def draw(self, store: Store, sampling: float, n_steps: int, coin_key: bytes) -> None:
        """Steps over Poisson batches of the store."""
        state = store.poisson(sampling, n_steps, coin_key)
        while lib.dpml_poisson_sgd(state, self.state, 1000):
            pass

    def weights(self) -> FloatArray:
        """Where it stands."""
        return np.frombuffer(ffi.buffer(self.state.weights, 8 * self._size), dtype=np.float64).copy()

    def finish(self) -> Epoch:
        lib.dpml_sgd_finish(self.state)

        def copy(values: Any) -> FloatArray:
            return np.frombuffer(ffi.buffer(values, 8 * self._size), dtype=np.float64).copy()

        average = copy(self.state.average) if self.state.averaged > 0 else None
        velocity = copy(self.state.velocity) if self.state.velocity != ffi.NULL else None
        return Epoch(copy(self.state.weights), average, self.state.steps, self.state.rows, velocity)


def sgd_rows(x: npt.ArrayLike, y: npt.ArrayLike, **options: Any) -> Epoch:
    """One pass over float64 rows of shape (n, d), in the order given.

    Parameters
    ----------
    x, y
        Rows and their labels, as the loss wants them.
    options
        loss : Loss; schedule : Schedule; lambda_ : float, in [0, inf);
        radius : float, in (0, inf]; batch_size : int; weights, average :
        ndarray of shape (K * d,) and steps : int, where an earlier pass ended;
        average_from : int, the first step whose iterate is averaged, 0 for none;
        by_unit : bool, batches count units of privacy and not rows;
        noise : str, one of none, gaussian, k-norm, of noise_scale on the sum of
        a batch's gradients, from the generator of noise_key, 32 bytes;
        gradient_clip : float, in (0, inf], bound on the norm of a row's
        derivatives in its scores; momentum : float, in [0, 1), and velocity,
        where an earlier pass ended; sizes : units of each batch of the pass, None
        for batch_size each.
    """
    rows, labels = _floats(x), _floats(y)
    require(rows.ndim == 2 and labels.shape == rows.shape[:1], "x must have shape (n, d) and y (n,)")
    run = _Pass(rows.shape[1], **options)
    for row, label in zip(rows, labels, strict=True):
        lib.dpml_sgd_row(run.state, pointer(row), label)
    return run.finish()


def sgd_blocks(blocks: Iterable[bytes], *, n_features: int, **options: Any) -> Epoch:
    """One pass over packed blocks, in the order given; options as in sgd_rows."""
    kept = tuple(blocks)
    run = _Pass(n_features, **options)
    run.take(views_of(kept, n_features))
    return run.finish()


def key_of(number: int) -> bytes:
    """A key of a generator, of a number >= 0."""
    return number.to_bytes(32, "little")


def sgd_models(
    blocks: Sequence[bytes], keys: Iterable[int], *, n_features: int, passes: int = 1, **options: Any
) -> FloatArray:
    """Models of as many runs as there are keys, shape (runs, K * d).

    A run's first pass is that of `sgd_blocks` with `key_of(passes * key)` as its noise_key; each further one
    begins with its weights and steps, and the next key. What the runs have in common is prepared once.
    """
    views = views_of(blocks, n_features)
    run = _Pass(n_features, noise_key=bytes(32), **options)
    found = []
    for key in keys:
        steps = 0
        for number in range(passes):
            run.again(key_of(passes * key + number), steps)
            run.take(views)
            lib.dpml_sgd_finish(run.state)
            steps = run.state.steps
        found.append(run.weights())
    return np.array(found)


class Store:
    """The rows of blocks as records in memory, each with room for a dual before it."""

    def __init__(self, blocks: Iterable[bytes], n_features: int, *, by_unit: bool) -> None:
        self.records: list[Any] = []
        self._rooms: list[Any] = []
        units: list[int] = []
        kind = lib.DPML_DENSE
        for data in blocks:
            view = view_of(data)
            require(view.n_features == n_features, "the block has another number of features")
            kind = view.kind
            for i in range(view.n_rows):
                if not self.records or lib.dpml_block_starts_unit(view, i):
                    units.append(len(self.records))
                before = lib.DPML_RECORD_DUAL // 4
                self._rooms.append(ffi.new("uint32_t[]", before + lib.dpml_record_size(view, i) // 4))
                self.records.append(self._rooms[-1] + before)
                lib.dpml_record_write(view, i, self.records[-1])
        self._rows = ffi.new("void *[]", self.records)
        self._firsts = np.array(units, dtype=np.int64)
        self._store = ffi.new(
            "DpmlStore *",
            {
                "kind": kind,
                "n_features": n_features,
                "n_rows": len(self.records),
                "rows": self._rows,
                "units": pointer(self._firsts, "int64_t") if by_unit else ffi.NULL,
                "n_units": len(units) if by_unit else len(self.records),
            },
        )

    def poisson(self, sampling: float, n_steps: int, coin_key: bytes) -> Any:
        """The draws of Poisson batches, at their beginning."""
        state = ffi.new("DpmlPoisson *")
        lib.dpml_poisson_start(state, self._store, sampling, n_steps, ffi.from_buffer("uint8_t[]", coin_key))
        return state


@lru_cache(maxsize=2)
def store_of(blocks: tuple[bytes, ...], n_features: int, by_unit: bool) -> Store:
    """The records, kept for the many passes of a test over the same rows, with duals of the last pass."""
    return Store(blocks, n_features, by_unit=by_unit)


def sgd_poisson(
    blocks: Iterable[bytes],
    *,
    n_features: int,
    n_steps: int,
    sampling: float,
    coin_key: bytes,
    **options: Any,
) -> Epoch:
    """Steps over Poisson batches of the blocks' rows.

    Parameters
    ----------
    blocks
        Packed blocks.
    n_steps : int
        Steps of this call, at least 1.
    sampling : float
        Probability that a unit is in a batch, in (0, 1].
    coin_key : bytes
        32 bytes, of the generator that draws them.
    options
        As in sgd_rows; every batch is divided by batch_size, whatever it has.

    Notes
    -----
    Source: privacy/README.md, "Poisson batches".
    """
    require(n_steps >= 1 and 0.0 < sampling <= 1.0, "n_steps must be at least 1, sampling in (0, 1]")
    require(len(coin_key) == 32, "coin_key must have 32 bytes")
    run = _Pass(n_features, **options)
    store = store_of(tuple(blocks), n_features, bool(options.get("by_unit")))
    run.draw(store, sampling, n_steps, coin_key)
    return run.finish()._replace(rows=len(store.records))


def sgd_poisson_models(
    blocks: Iterable[bytes],
    keys: Iterable[int],
    *,
    n_features: int,
    n_steps: int,
    sampling: float,
    first_coin_key: int,
    **options: Any,
) -> FloatArray:
    """Models of as many runs of `sgd_poisson` as there are keys, shape (runs, K * d).

    Of a key, noise_key is `key_of(key)` and coin_key is `key_of(first_coin_key + key)`.
    """
    store = store_of(tuple(blocks), n_features, bool(options.get("by_unit")))
    run = _Pass(n_features, noise_key=bytes(32), **options)
    found = []
    for key in keys:
        run.again(key_of(key))
        run.draw(store, sampling, n_steps, key_of(first_coin_key + key))
        lib.dpml_sgd_finish(run.state)
        found.append(run.weights())
    return np.array(found)


def loss_sum_blocks(blocks: Iterable[bytes], weights: npt.ArrayLike, loss: Loss) -> float:
    """Sum of the losses of the blocks' rows at weights of shape (K * d,)."""
    flat = _floats(weights).reshape(-1)
    work = np.empty(loss.n_classes)
    total = 0.0
    for data in blocks:
        view = _view(ffi.from_buffer(data))
        require(view.n_features * loss.n_classes == flat.size, "the block has another number of features")
        total += lib.dpml_loss_sum_block(
            ffi.new("DpmlLoss *", loss.c_fields()), pointer(flat), view, 0, view.n_rows, pointer(work)
        )
    return total


def loss_sum_rows(x: npt.ArrayLike, y: npt.ArrayLike, weights: npt.ArrayLike, loss: Loss) -> float:
    """Sum of the losses of float64 rows at weights of shape (K * d,)."""
    rows, flat = _floats(x), _floats(weights).reshape(-1)
    require(rows.shape[1] * loss.n_classes == flat.size, "weights and rows do not fit")
    work = np.empty(loss.n_classes)
    c_loss = ffi.new("DpmlLoss *", loss.c_fields())
    return float(
        sum(
            lib.dpml_loss_sum_row(c_loss, pointer(flat), rows.shape[1], pointer(row), label, pointer(work))
            for row, label in zip(rows, _floats(y), strict=True)
        )
    )


class _Sums:
    """Sums that kernels add to, as the states of the aggregates hold them."""

    def __init__(self, size: int) -> None:
        self._high = np.zeros(size)
        self.low = np.zeros(size)

    def fold(self) -> None:
        lib.dpml_sums_fold(self.low.size, pointer(self._high), pointer(self.low))

    def turn(self, n: int, columns: int) -> None:
        """Transpose the first n sums, a matrix of so many columns."""
        for part in (self._high, self.low):
            part[:n] = part[:n].reshape(-1, columns).T.reshape(-1)

    def total(self, start: int, end: int) -> FloatArray:
        return (self._high + self.low)[start:end]


def gradient(
    blocks: Iterable[bytes],
    weights: npt.ArrayLike,
    loss: Loss,
    *,
    models: int = 1,
    gradient: bool = True,
    losses: bool = True,
    errors: bool = False,
    gradient_clip: float = math.inf,
    unit_clip: float = math.inf,
    loss_clip: float = math.inf,
) -> GradientSums:
    """Sums of gradients and losses over the blocks' rows.

    Parameters
    ----------
    blocks
        At least one.
    weights
        Shape (J * K * d,), J = `models`. The gradient is that of the first model.
    gradient, losses
        What to compute.
    errors
        Count wrong rows in place of losses.
    gradient_clip
        Bound on the norm of a row's derivatives in its scores, in (0, inf].
    unit_clip
        Bound on the norm of the gradient of a unit's rows in a block, in (0, inf].
    loss_clip
        Bound on a row's loss, in (0, inf].
    """
    flat = _floats(weights).reshape(-1)
    require(models >= 1 and flat.size % (models * loss.n_classes) == 0, "weights must have J * K * d entries")
    require(min(gradient_clip, unit_clip, loss_clip) > 0.0, "clips must be in (0, inf]")
    n_features = flat.size // (models * loss.n_classes)
    options = ffi.new(
        "DpmlGradientOptions *",
        {
            "loss": loss.c_fields(),
            "gradient_clip": gradient_clip,
            "unit_clip": unit_clip,
            "loss_clip": loss_clip,
            "n_features": n_features,
            "n_models": models,
            "gradient": gradient,
            "losses": (lib.DPML_ERRORS if errors else lib.DPML_LOSSES) if losses else lib.DPML_NO_LOSSES,
        },
    )
    work = pointer(np.zeros(lib.dpml_gradient_memory(options)))
    n_gradient = loss.n_classes * n_features if gradient else 0
    turned = np.ascontiguousarray(flat.reshape(-1, n_features).T)
    sums = _Sums(n_gradient + (models if losses else 0))
    rows = 0
    for data in blocks:
        view = _view(ffi.from_buffer(data))
        require(view.n_features == n_features, "the block must have as many features as the weights")
        low = pointer(sums.low)
        targets = [low, low + n_gradient]
        by_feature = lib.dpml_gradient_by_feature(options, view.kind)
        if by_feature:
            sums.turn(n_gradient, n_features)
        at = turned if by_feature else flat
        lib.dpml_gradient_rows(options, pointer(at), view, 0, view.n_rows, work, *targets)
        if by_feature:
            sums.turn(n_gradient, loss.n_classes)
        rows += view.n_rows
        sums.fold()
    return GradientSums(
        sums.total(0, n_gradient) if gradient else None,
        sums.total(n_gradient, sums.low.size) if losses else None,
        rows,
    )


def gram(blocks: Sequence[bytes], weights: npt.ArrayLike | None = None, loss: Loss | None = None) -> GramSums:
    """Second moments of the blocks' rows, or with weights of shape (d,) the Hessian of their summed losses.

    There must be a block, and the loss must have one score.
    """
    require(len(blocks) > 0, "there must be a block")
    require((weights is None) == (loss is None), "weights and loss must go together")
    d = _view(ffi.from_buffer(blocks[0])).n_features
    flat = np.zeros(d) if weights is None else _floats(weights).reshape(-1)
    require(flat.size == d, f"weights must have {d} entries")
    require(loss is None or loss.n_classes == 1, "the loss must have one score")
    c_loss = None if loss is None else ffi.new("DpmlLoss *", loss.c_fields())
    work = pointer(np.empty(lib.dpml_gram_memory(d)))
    n_xx = d * (d + 1) // 2
    sums = _Sums(n_xx + (d if loss is None else 0))
    rows = 0
    for data in blocks:
        view = _view(ffi.from_buffer(data))
        require(view.n_features == d, "the block must have as many features as the first one")
        low = pointer(sums.low)
        if c_loss is None:
            lib.dpml_gram_rows(view, 0, view.n_rows, work, low, low + n_xx)
        else:
            lib.dpml_hessian_rows(c_loss, pointer(flat), view, 0, view.n_rows, work, low)
        rows += view.n_rows
        sums.fold()
    return GramSums(sums.total(0, n_xx), sums.total(n_xx, sums.low.size) if loss is None else None, rows)


def whiten(
    block: bytes, p: npt.ArrayLike, norm: float, scale: float | None = None, piece: int | None = None
) -> bytes:
    """The block with every row x as x norm / ||P x||; norm is in (0, inf).

    P is p, of shape (d, d), or with a scale in (0, inf) it is scale I - p'p, of shape (k, d).
    `piece`: rows of a call; None: all.
    """
    view = _view(ffi.from_buffer(block))
    d = view.n_features
    matrix = _floats(p).reshape(-1)
    require(0.0 < norm < math.inf, "norm must be in (0, inf)")
    values = np.empty(view.n_values, dtype=np.float32)
    piece = max(view.n_rows, 1) if piece is None else piece
    if scale is None:
        require(matrix.size == d * d, f"p must have shape ({d}, {d})")
        panels = np.empty(lib.dpml_whiten_panels_size(d))
        lib.dpml_whiten_panels(d, pointer(matrix), pointer(panels))
        work = np.empty(lib.dpml_whiten_memory(d, piece))
        call = partial(lib.dpml_whiten_rows, view, pointer(matrix), pointer(panels), norm)
    else:
        require(matrix.size % d == 0, f"p must have {d} columns")
        require(0.0 < scale < math.inf, "scale must be in (0, inf)")
        k = matrix.size // d
        work = np.empty(lib.dpml_directions_memory(d, k, piece))
        call = partial(lib.dpml_whiten_by_directions, view, scale, pointer(matrix), k, norm)
    for first in range(0, view.n_rows, piece):
        call(first, piece, pointer(work), pointer(values, "float"))
    view.values = pointer(values, "float")
    out = bytearray(lib.dpml_block_size(view))
    lib.dpml_block_write(view, ffi.from_buffer(out))
    return bytes(out)


def scores(x: npt.ArrayLike, weights: npt.ArrayLike, n_outputs: int = 1) -> FloatArray:
    """Scores of one float32 row of shape (d,), ndarray of shape (K,)."""
    row = np.ascontiguousarray(x, dtype=np.float32)
    flat = _floats(weights).reshape(-1)
    require(flat.size == n_outputs * row.size, "weights and row do not fit")
    out = np.empty(n_outputs)
    lib.dpml_scores(n_outputs, row.size, pointer(flat), pointer(row, "float"), pointer(out))
    return out


def whitened_norm(x: npt.ArrayLike, whitening: npt.ArrayLike) -> float:
    """||P x|| of one float32 row of shape (d,) and a symmetric P of shape (d, d), or 0 if it is no length."""
    row = np.ascontiguousarray(x, dtype=np.float32)
    matrix = _floats(whitening)
    require(matrix.shape == (row.size, row.size), "whitening must have shape (d, d)")
    work = np.empty(row.size)
    return float(lib.dpml_whitened_norm(row.size, pointer(matrix), pointer(row, "float"), pointer(work)))


def clip_row(x: npt.ArrayLike) -> FloatArray:
    """The row scaled to norm at most 1; zeros if it is not finite."""
    row = np.array(x, dtype=np.float64)
    lib.dpml_clip_row(row.size, pointer(row))
    return row


class Image(NamedTuple):
    """An array that is an image, and how it is reduced."""

    rows: int
    columns: int
    blur: int
    stride: int


@dataclass(frozen=True)
class Column:
    """How one column is encoded; the fields are those of udas/kernels/encode.h."""

    kind: str
    scale: str = "center"
    log1p: bool = False
    width: int = 1
    centered: bool = False
    lower: float = -math.inf
    upper: float = math.inf
    mean: float = 0.0
    sd: float = 1.0
    image: Image | None = None
    knots: tuple[float, ...] = ()
    """After log1p; the column's width is 1 and their number."""

    @property
    def basis_size(self) -> int:
        """Basis functions: levels or knots."""
        return self.width if self.kind == "category" else len(self.knots)


@dataclass(frozen=True)
class Encoder:
    """How a row is encoded."""

    columns: tuple[Column, ...]
    intercept: bool = True
    normalize: bool = False
    clip_values: bool = False
    """Every feature to [-1, 1]; the norm of the row is not bounded then."""
    projection: npt.NDArray[np.float32] | None = None
    """Shape (projected features, raw features); see `projection_matrix`."""
    crosses: tuple[tuple[int, int], ...] = ()
    """Pairs of columns, by their places."""

    @cached_property
    def n_raw(self) -> int:
        """Features of a row before the projection."""
        sizes = [column.basis_size for column in self.columns]
        products = sum(sizes[first] * sizes[second] for first, second in self.crosses)
        return sum(column.width for column in self.columns) + products

    @cached_property
    def n_features(self) -> int:
        """Features of a row, the intercept included."""
        return (self.n_raw if self.projection is None else len(self.projection)) + self.intercept

    @cached_property
    def in_c(self) -> tuple[Any, list[Any]]:
        """The encoder for C, and what must live as long as it does."""
        knots = [np.array(column.knots, dtype=np.float64) for column in self.columns]
        columns = [
            {
                **vars(column),
                "kind": _COLUMN_KINDS[column.kind],
                "scale": _SCALES[column.scale],
                "image": column.image or (0, 0, 0, 0),
                "n_knots": own.size,
                "knots": pointer(own),
            }
            for column, own in zip(self.columns, knots, strict=True)
        ]
        c_columns = ffi.new("DpmlColumn[]", columns)
        for i in range(len(columns)):
            lib.dpml_complete_column(c_columns + i)
        c_crosses = ffi.new("DpmlCross[]", list(self.crosses))
        matrix = None if self.projection is None else np.ascontiguousarray(self.projection, dtype=np.float32)
        c_encoder = ffi.new(
            "DpmlEncoder *",
            {
                "columns": c_columns,
                "n_columns": len(columns),
                "crosses": c_crosses,
                "n_crosses": len(self.crosses),
                "n_raw": self.n_raw,
                "n_features": self.n_features,
                "intercept": self.intercept,
                "norm": lib.DPML_CLIP_VALUES if self.clip_values else int(self.normalize),
                "projection": ffi.NULL if matrix is None else pointer(matrix, "float"),
            },
        )
        return c_encoder, [c_columns, c_crosses, knots, matrix]


def _c_value(column: Column, value: Any, kept: list[Any]) -> dict[str, Any]:
    if column.kind == "numeric":
        return {"number": math.nan if value is None else value}
    if column.kind == "category":
        return {"level": -1 if value is None else value}
    if value is None:
        return {"elements": ffi.NULL}
    places, numbers = value if column.kind == "sparse" else ((), value)
    elements = np.array([math.nan if item is None else item for item in numbers], dtype=np.float64)
    own = np.array(places, dtype=np.uint32)
    kept += [elements, own]
    return {"length": elements.size, "elements": pointer(elements), "places": pointer(own, "uint32_t")}


def _c_values(encoder: Encoder, values: Sequence[Any]) -> tuple[Any, list[Any]]:
    """A row's values for C, and what must live as long as they do."""
    kept: list[Any] = []
    pairs = zip(encoder.columns, values, strict=True)
    return ffi.new("DpmlValue[]", [_c_value(column, value, kept) for column, value in pairs]), kept


def encode_row(encoder: Encoder, values: Sequence[Any]) -> npt.NDArray[np.float32]:
    """Encode a row, ndarray of shape (d,).

    `values` has, for each column, a number, a level's index, a sequence of numbers, or for a sparse column
    a pair of sequences, places and numbers; None is a NULL, of a column or of an array's element.
    """
    c_values, kept = _c_values(encoder, values)
    work = np.empty(encoder.n_raw + encoder.n_features)
    out = np.empty(encoder.n_features, dtype=np.float32)
    lib.dpml_encode_row(encoder.in_c[0], c_values, pointer(work), pointer(out, "float"))
    kept.clear()
    return out


def encode_sparse(
    encoder: Encoder, values: Sequence[Any]
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.float32]]:
    """As `encode_row`, the columns and values of the features that are not 0."""
    c_values, kept = _c_values(encoder, values)
    work = np.empty(encoder.n_features)
    columns = np.empty(encoder.n_features, dtype=np.uint32)
    out = np.empty(encoder.n_features, dtype=np.float32)
    n = lib.dpml_encode_sparse(
        encoder.in_c[0], c_values, pointer(work), pointer(columns, "uint32_t"), pointer(out, "float")
    )
    kept.clear()
    return columns[:n], out[:n]
