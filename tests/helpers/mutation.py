# SPDX-License-Identifier: PostgreSQL
"""Tests on a changed copy of the sources: each in a process of its own, and kernels without optimisation.

Processes are forked from one that has loaded the libraries, and nothing of ours: loading them takes longer
than most tests. Of the kernels, and of Python's modules, only files that were changed are compiled anew.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 300

_UNUSED_PLUGINS = ["cacheprovider", "hypothesispytest", "xdist", "xdist.looponfail"]

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    [
        "_pytest.junitxml",
        "cffi",
        "mpmath",
        "numpy.testing",
        "psycopg",
        "psycopg.types.json",
        "pytest",
        "scipy.optimize",
        "scipy.signal",
        "scipy.stats",
        "typer.testing",
    ]
)


def build(copy: Path) -> None:
    """Compile all kernels of a copy; see `compile_changed`."""
    write = (
        "from pathlib import Path; from build_kernels import make_builder; "
        "make_builder(Path('..'), Path('..')).emit_c_code('kernels/_kernels.c')"
    )
    subprocess.run([sys.executable, "-c", write], cwd=copy / "udas", check=True, timeout=TIMEOUT_S)
    compile_changed(copy, None)


def compile_changed(copy: Path, changed: Path | None) -> None:
    """Compile the C files of the kernels of a copy that read what was changed, or all; link the module."""
    kernels = copy / "udas" / "kernels"
    flags = (copy / "udas" / "compile_flags.txt").read_text(encoding="utf-8").replace("-O3", "-O0").split()
    flags.append("-DDPML_CLONES=")  # clones take as long again to compile, and compute the same
    include = ["-I", str(kernels), "-I", sysconfig.get_path("include")]
    compiler = [*shlex.split(sysconfig.get_config_var("CC")), "-fPIC"]
    sources = sorted(kernels.glob("*.c"))
    if changed is not None:
        sources = [source for source in sources if changed.name in _read_by(source)]
    for source in sources:
        target = source.with_suffix(".o")
        for written in (target, source.with_suffix(".d")):
            written.unlink(missing_ok=True)  # it may be another copy's, too
        command = [*compiler, *flags, *include, "-MMD", "-c", str(source), "-o", str(target)]
        subprocess.run(command, check=True, timeout=TIMEOUT_S)
    module = copy / "controller" / "pg_dpml" / "_kernels.abi3.so"
    module.unlink(missing_ok=True)
    objects = [str(path) for path in sorted(kernels.glob("*.o"))]
    subprocess.run([*compiler, "-shared", *objects, "-o", str(module), "-lm"], check=True, timeout=TIMEOUT_S)


def _read_by(source: Path) -> set[str]:
    """Names of the files that the compiler read for a C file of the kernels."""
    rule = source.with_suffix(".d").read_text(encoding="utf-8")
    return {Path(name).name for name in rule.split() if name != "\\"}


def run_tests(copy: Path, *tests: str, first_cases: bool = False) -> tuple[int, str]:
    """Exit code of pytest, and what it says; of tests with parameters, the first case alone if asked to."""
    report = copy / "report.txt"
    process = _FORKS.Process(target=_run, args=(copy, tests, first_cases, report))
    process.start()
    process.join(TIMEOUT_S)
    if process.exitcode is None:
        process.kill()
        process.join()
    assert process.exitcode is not None
    return process.exitcode, report.read_text(encoding="utf-8", errors="replace")


class _FirstCases:
    """A plugin that leaves out all cases of a test but its first."""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        first = {item.nodeid.partition("[")[0]: item for item in reversed(items)}
        items[:] = [item for item in items if first[item.nodeid.partition("[")[0]] is item]


def _run(copy: Path, tests: tuple[str, ...], first_cases: bool, report: Path) -> None:
    gc.freeze()  # what the libraries left is not looked through again and again
    os.chdir(copy)
    ours = {str(ROOT), str(ROOT / "controller"), str(ROOT / "tests"), ""}
    sys.path[:] = [str(copy / "controller"), *(path for path in sys.path if path not in ours)]
    os.environ["PYTHONPATH"] = sys.path[0]
    # A copy of a copy finds all modules compiled, but for what was changed.
    sys.dont_write_bytecode, sys.pycache_prefix = False, None
    with report.open("w", encoding="utf-8") as said:
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            plugins = [_FirstCases()] if first_cases else []
            unused = [f"-pno:{name}" for name in _UNUSED_PLUGINS]
            code = pytest.main(["-q", "-x", *unused, *tests], plugins)
    sys.exit(code)
