# SPDX-License-Identifier: PostgreSQL
"""Builds the C kernels as the Python module `pg_dpml._kernels`.

setup.py names `ffibuilder`.  For development, without an installation,
`python udas/build_kernels.py` puts the module beside the package's sources.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path

from cffi import FFI

_ROOT = Path(__file__).resolve().parent.parent

# Those of the server module.  Without contraction a replay agrees bit for bit with a pass in the server.
COMPILE_ARGS = (_ROOT / "udas" / "compile_flags.txt").read_text(encoding="utf-8").split()


def headers(kernels: Path) -> list[str]:
    """Names of the headers that declare kernels, each after those it includes.

    These are the header of every C file and what it includes. The other headers
    are inline code for the C files.
    """
    ordered: list[str] = []

    def add(name: str) -> None:
        if name not in ordered:
            text = (kernels / name).read_text(encoding="utf-8")
            for included in re.findall(r'^#include "(.+)"$', text, re.MULTILINE):
                add(included)
            ordered.append(name)

    for source in sorted(kernels.glob("*.c")):
        add(f"{source.stem}.h")
    return ordered


def declarations(kernels: Path) -> str:
    """Text of the headers in their order, without their preprocessor lines."""
    lines: list[str] = []
    for name in headers(kernels):
        text = (kernels / name).read_text(encoding="utf-8")
        lines += (line for line in text.splitlines() if not line.startswith("#"))
    return "\n".join(lines)


def make_builder(root: Path, prefix: Path) -> FFI:
    """Builder of the module.

    `root` is the project's folder; `prefix` is how the compiler is told of it:
    setuptools wants sources relative to the project.
    """
    kernels = root / "udas" / "kernels"
    builder = FFI()
    builder.cdef(declarations(kernels))
    builder.set_source(
        "pg_dpml._kernels",
        "\n".join(f'#include "{name}"' for name in headers(kernels)),
        sources=[str(prefix / "udas" / "kernels" / source.name) for source in sorted(kernels.glob("*.c"))],
        include_dirs=[str(prefix / "udas" / "kernels")],
        depends=[str(prefix / "udas" / "kernels" / header.name) for header in sorted(kernels.glob("*.h"))],
        libraries=["m"],
        extra_compile_args=COMPILE_ARGS,
        py_limited_api=True,
    )
    return builder


def build_in_place(root: Path) -> Path:
    """Compile the module into controller/pg_dpml and return its path."""
    with tempfile.TemporaryDirectory() as folder:
        built = Path(make_builder(root, root).compile(tmpdir=folder))
        target = root / "controller" / "pg_dpml" / built.name
        # A new file, not new bytes in the old one: a process may have that one mapped.
        target.unlink(missing_ok=True)
        shutil.copyfile(built, target)
    return target


ffibuilder = make_builder(_ROOT, Path())

if __name__ == "__main__":
    print(build_in_place(_ROOT))  # noqa: T201
