# SPDX-License-Identifier: PostgreSQL
"""The fuzz targets under AddressSanitizer and UBSan: over their corpus, changes of it, and planted bugs."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from fuzz import CORPUS, SANITIZERS, TARGETS, Builder

COMPILER = shutil.which("cc") or shutil.which("gcc")
ROUNDS = 1500


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    folder = tmp_path_factory.mktemp("sanitizers")
    if COMPILER is None:
        pytest.skip("needs a C compiler")
    empty = folder / "empty.c"
    empty.write_text("int main(void) { return 0; }\n")
    command = [COMPILER, *SANITIZERS, str(empty), "-o", str(folder / "empty")]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("the C compiler has no AddressSanitizer or UBSan")
    return Builder(folder, COMPILER, optimise="-O0")


def replay(program: Path, target: str, rounds: int) -> subprocess.CompletedProcess[str]:
    """Run a target over its corpus, and over so many random changes of it."""
    return subprocess.run(
        [program, str(CORPUS / f"{target}.hex"), str(rounds), "1"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "ASAN_OPTIONS": "detect_leaks=0"},
    )


@pytest.mark.slow
@pytest.mark.parametrize("target", sorted(TARGETS))
def test_corpus_and_changes_of_it_are_clean(builder: Builder, target: str) -> None:
    run = replay(builder.build(target), target, ROUNDS)
    assert run.returncode == 0, run.stderr
    inputs, _, changed = run.stdout.partition(" inputs, ")
    assert int(inputs) == len((CORPUS / f"{target}.hex").read_text().splitlines()) > 100
    assert changed == f"{ROUNDS} changed\n"


# Target, file, what is there, what is planted, what the sanitizers or the target say.
PLANTED = [
    (
        *("block", "kernels/block.c"),
        "return needed == length ? DPML_OK",
        "return needed <= length + 4 ? DPML_OK",
        "not so",
    ),
    (
        *("block", "kernels/block.c"),
        "if (length < (size_t) (rest - bytes) + rows_size)",
        "if (length + 4 < (size_t) (rest - bytes) + rows_size)",
        "heap-buffer-overflow",
    ),
    (
        *("block", "kernels/block.c"),
        "(int64_t) block->n_rows * block->n_features;\n\n\t\tif (n_values",
        "block->n_rows * block->n_features;\n\n\t\tif (n_values",
        "signed integer overflow",
    ),
    (
        *("block", "kernels/block.c"),
        "if (block->columns[end - 1] >= (uint32_t) block->n_features)",
        "if (0)",
        "AddressSanitizer",
    ),
    ("block", "kernels/block.c", "if ((uintptr_t) bytes % 4 != 0)", "if (0)", ""),
    (
        "block",
        "kernels/poisson.c",
        "(const uint32_t *) (record + 4)",
        "(const uint32_t *) (record + 5)",
        "misaligned",
    ),
    (
        "block",
        "kernels/gram.c",
        "j < b + GRAM_COLUMNS && j < n",
        "j < b + GRAM_COLUMNS",
        "heap-buffer-overflow",
    ),
    (
        "block",
        "kernels/score.c",
        "for (int32_t i = first; i < first + n; i++)",
        "for (int32_t i = first; i <= first + n; i++)",
        "overflow",
    ),
    (
        *("scd", "kernels/scd.c"),
        "i < first + n; i++)\n\t{\n\t\tRow\t\t\trow = block_row(block, i);\n\n\t\tbegin_row",
        "i <= first + n; i++)\n\t{\n\t\tRow\t\t\trow = block_row(block, i);\n\n\t\tbegin_row",
        "overflow",
    ),
    (
        *("scd", "kernels/poisson.c"),
        "memcpy((unsigned char *) record - DPML_RECORD_DUAL, &dual",
        "memcpy((unsigned char *) record - 2 * DPML_RECORD_DUAL, &dual",
        "heap-buffer-overflow",
    ),
    (
        *("scd", "kernels/scd.c"),
        "if (block->n_features != state->options.n_features)",
        "if (0)",
        "heap-buffer-overflow",
    ),
    ("spec", "kernels/encode.c", "i < image->rows; i++", "i <= image->rows; i++", "overflow"),
    (
        *("spec", "kernels/encode.c"),
        "value->places[i] >= (uint32_t) column->width ||",
        "value->places[i] > (uint32_t) column->width ||",
        "not so",
    ),
    ("spec", "kernels/encode.c", "value->places[i] <= value->places[i - 1]", "0", "not so"),
    ("spec", "kernels/encode.c", "target_norm = 1.0 - 0x1p-19", "target_norm = 1.0 + 0x1p-19", "not so"),
    (
        "spec",
        "kernels/basis.c",
        "high = column->n_knots - 1",
        "high = column->n_knots",
        "heap-buffer-overflow",
    ),
    ("spec", "kernels/basis.c", "if (!dpml_finite(v))", "if (0)", "not so"),
    ("spec", "spec.c", "width *= dpml_basis_size(", "width = dpml_basis_size(", "not so"),
    (
        "spec",
        "json.c",
        "palloc(sizeof(char *) * Max(n, 1))",
        "palloc(sizeof(char *) * Max(n - 1, 1))",
        "overflow",
    ),
    ("options", "json.c", "strlen(keys[i]) == (size_t) key.val.string.len &&", "", "buffer-overflow"),
    ("options", "options.c", "{DPML_LEAST_SCALE, 1.0 ", "{0, 1.0 ", "not so"),
]


@pytest.mark.parametrize(("target", "name", "old", "new", "said"), PLANTED, ids=lambda value: str(value)[:40])
def test_planted_bugs_are_caught(
    builder: Builder, tmp_path: Path, target: str, name: str, old: str, new: str, said: str
) -> None:
    original = builder.sources / name
    text = original.read_text(encoding="utf-8")
    assert text.count(old) == 1
    planted = tmp_path / original.name
    planted.write_text(text.replace(old, new), encoding="utf-8")
    sources = [planted if source == original else source for source in builder.sources_of(target)]
    run = replay(builder.link(target, sources), target, ROUNDS)
    assert run.returncode != 0
    assert said in run.stderr
