# SPDX-License-Identifier: PostgreSQL
"""What the C sources promise as a whole: they need nothing, and they do not depend on the instruction set."""

from __future__ import annotations

import importlib.util
import math
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import cffi
import numpy as np
import pytest

from helpers import replay, replay_scd
from pg_dpml import _kernels, kernels
from pg_dpml.kernels import FloatArray, Loss, Schedule

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ROOT / "udas" / "kernels"
COMPILER = shutil.which("cc") or shutil.which("gcc")

# libm, memory, and what the compiler's own load-time choice of a clone reads.
ALLOWED = {
    *("cos", "exp", "expm1", "fabs", "floor", "frexp", "ldexp", "log", "log1p", "pow"),
    *("rint", "sin", "sincos", "sqrt"),
    *("memcpy", "memmove", "memset", "memcmp"),
    *("__cpu_model", "__cpu_indicator_init", "_GLOBAL_OFFSET_TABLE_"),
}

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C compiler")


@pytest.fixture(scope="module")
def builder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_kernels", ROOT / "udas" / "build_kernels.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compile_kernels(builder: ModuleType, *arguments: str) -> None:
    sources = [str(source) for source in sorted(KERNELS.glob("*.c"))]
    flags = [flag for flag in builder.COMPILE_ARGS if flag != "-fvisibility=hidden"]
    command = [str(COMPILER), *flags, "-Werror", "-fPIC", *sources, *arguments]
    subprocess.run(command, check=True, timeout=120)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the symbols of an ELF file")
def test_kernels_need_only_libm_and_keep_no_state(builder: ModuleType, tmp_path: Path) -> None:
    target = tmp_path / "kernels.o"
    compile_kernels(builder, "-nostdlib", "-r", "-o", str(target))
    listing = subprocess.run(["nm", str(target)], check=True, capture_output=True, text=True, timeout=60)
    symbols = [line.split()[-2:] for line in listing.stdout.splitlines()]
    needed = {name.split("@")[0] for kind, name in symbols if kind in "Uw"}
    assert {"exp", "memset"} <= needed <= ALLOWED
    assert not [name for kind, name in symbols if kind in "BbDdC"]


def includes(path: Path) -> list[str]:
    return re.findall(r'^#include "(.+)"$', path.read_text(encoding="utf-8"), re.MULTILINE)


def test_a_c_file_declares_in_the_header_of_its_name(builder: ModuleType) -> None:
    declared = builder.headers(KERNELS)
    for source in KERNELS.glob("*.c"):
        assert includes(source)[0] == f"{source.stem}.h"
        assert f"{source.stem}.h" in declared


def test_includes_run_one_way() -> None:
    """Headers in an order in which each includes only those before it."""
    left = {path.name: set(includes(path)) for path in KERNELS.glob("*.h")}
    assert len(left) > 20
    while left:
        free = {name for name, needed in left.items() if not needed & left.keys()}
        assert free, f"a circle of includes among {sorted(left)}"
        left = {name: needed for name, needed in left.items() if name not in free}


def test_what_needs_no_solver_includes_none() -> None:
    """Solvers are built on norms, noise, losses and rows, and none of them on a solver."""
    solvers = {"sgd.h", "sgd_step.h", "scd.h", "poisson.h"}
    for path in KERNELS.glob("*.[ch]"):
        if path.stem not in ("sgd", "sgd_step", "scd", "poisson"):
            assert not solvers & set(includes(path)), path.name


def blocks(d: int) -> list[bytes]:
    draw = np.random.default_rng(8)
    x = draw.normal(size=(300, d))
    x /= np.linalg.norm(x, axis=1, keepdims=True) * 1.01
    y = draw.choice([0.0, 1.0], 300)
    return [replay.pack_dense(x[i : i + 39], y[i : i + 39]) for i in range(0, 300, 39)]


def results(d: int) -> list[Any]:
    """Passes in every shape of the inner loops, sums of a full batch, whitened rows."""
    draw = np.random.default_rng(9)
    row, matrix = draw.normal(size=d), draw.normal(size=(d, d))
    found: list[Any] = [replay.scores(row, matrix, d).tobytes(), replay.whitened_norm(row, matrix)]
    found += [part.tobytes() for part in of_sparse_rows(d)]
    for loss in (
        Loss("logistic"),
        Loss("huber_svm"),
        Loss("hinge"),
        Loss("squared"),
        Loss("softmax", n_classes=3),
    ):
        for batch_size in (1, 2, 7):
            epoch = replay.sgd_blocks(
                blocks(d),
                n_features=d,
                loss=loss,
                schedule=Schedule("inverse_sqrt", 0.5),
                lambda_=0.01,
                radius=0.6,
                batch_size=batch_size,
                average_from=1,
            )
            assert epoch.average is not None
            found += [epoch.weights.tobytes(), epoch.average.tobytes()]
            found.append(replay.loss_sum_blocks(blocks(d), epoch.weights, loss))
        found += [part.tobytes() for part in full_batch(d, loss, epoch.weights)]
        found += [part.tobytes() for part in noisy(d, loss)]
        if loss.n_classes == 1:
            found += [part.tobytes() for part in descent(d, loss)]
    found.append(replay.whiten(blocks(d)[0], np.linspace(-0.2, 0.2, 3 * d), 0.9, 1.1))
    found.append(replay.whiten(blocks(d)[0], np.eye(d) + 0.1, 0.9))
    return found


def noisy(d: int, loss: Loss) -> Iterator[FloatArray]:
    """Passes with noise in every step, over the rows in order and over Poisson batches."""
    options: dict[str, Any] = {
        "n_features": d,
        "loss": loss,
        "schedule": Schedule("constant", 0.5),
        "batch_size": 5,
        "noise_scale": 2.0,
        "noise_key": bytes(32),
        "gradient_clip": 0.4,
    }
    for noise, momentum in (("gaussian", 0.0), ("k-norm", 0.5)):
        yield replay.sgd_blocks(blocks(d), noise=noise, momentum=momentum, **options).weights
    yield replay.sgd_poisson(
        blocks(d), n_steps=50, sampling=0.02, coin_key=bytes(32), noise="gaussian", **options
    ).weights


def descent(d: int, loss: Loss) -> Iterator[FloatArray]:
    """Passes of coordinate descent, one row at a time and in noisy batches, and the sums of their gap."""
    options: dict[str, Any] = {"n_features": d, "loss": loss, "lambda_": 0.01, "n": 300}
    noise: dict[str, Any] = {"update_clip": 0.3, "batch_size": 5, "noise_scale": 2.0, "dual_noise": True}
    found = replay_scd.scd_blocks(blocks(d), exact=True, **options)
    yield from (found.v, found.duals)
    yield np.array(replay_scd.sums(blocks(d), found.v / 3.0, found.duals, loss))
    for sequential in (False, True):
        yield replay_scd.scd_blocks(blocks(d), sequential=sequential, **options, **noise).v
    yield replay_scd.scd_poisson(
        blocks(d), n_steps=50, sampling=0.02, coin_key=bytes(32), **options, **noise
    ).duals


def full_batch(d: int, loss: Loss, weights: FloatArray) -> Iterator[FloatArray]:
    for unit_clip in (math.inf, 0.3):
        sums = replay.gradient(blocks(d), weights, loss, gradient_clip=0.5, unit_clip=unit_clip)
        yield from (part for part in sums[:2] if part is not None)
    if loss.n_classes == 1:
        moments = replay.gram(blocks(d))
        yield from (part for part in moments[:2] if part is not None)
        yield replay.gram(blocks(d), weights, loss).xx


def of_sparse_rows(d: int) -> Iterator[FloatArray]:
    """Sums over sparse rows, of few classes and of many, and such rows whitened."""
    draw = np.random.default_rng(10)
    x = draw.normal(size=(43, d)) * (draw.random((43, d)) < 0.6)
    x /= np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1.0) * 1.01
    row, column = np.nonzero(x)
    row_end = np.searchsorted(row, np.arange(43), side="right")
    block = replay.pack_csr(d, row_end, column, x[row, column], draw.integers(0, 3, size=43))
    for n_classes in (3, 4, 7, 10):
        weights = draw.normal(size=(2, n_classes, d))
        loss = Loss("softmax", n_classes=n_classes)
        sums = replay.gradient([block], weights, loss, models=2, gradient_clip=0.5)
        yield from (part for part in sums[:2] if part is not None)
    moments = replay.gram([block])
    yield from (part for part in moments[:2] if part is not None)
    yield replay.open_block(replay.whiten(block, draw.normal(size=(d, d)), 0.9)).values.astype(np.float64)


@pytest.mark.parametrize("flags", [("-O3",), ("-O1",)])
def test_clones_agree_bit_for_bit(
    builder: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...]
) -> None:
    """The module, with its choice of clones, against a build for the oldest processor."""
    target = tmp_path / "plain.so"
    compile_kernels(builder, "-DDPML_CLONES=", "-shared", *flags, "-o", str(target), "-lm")
    widths = (1, 7, 8, 13, 50)
    chosen = [results(d) for d in widths]
    ffi = cffi.FFI()
    ffi.cdef(builder.declarations(KERNELS))
    plain = ffi.dlopen(str(target))
    for module in (kernels, replay, replay_scd):
        monkeypatch.setattr(module, "ffi", ffi)
        monkeypatch.setattr(module, "lib", plain)
    assert plain is not _kernels.lib
    assert [results(d) for d in widths] == chosen
    assert np.isfinite(np.frombuffer(chosen[-1][-3])).all()
