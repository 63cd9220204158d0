# SPDX-License-Identifier: PostgreSQL
"""Fuzz targets of the C code: built under AddressSanitizer and UBSan, run by libFuzzer or over a corpus.

`tests/fuzz/TARGET.c` is a target, `tests/fuzz/corpus/TARGET.hex` its corpus: an input a line,
in hexadecimal digits. With libFuzzer a target is run for minutes, and what it
finds goes into the corpus; the tests build the same targets with any compiler
and run them over the corpus (`tests/fuzz/replay.c`).
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from pg_dpml.server.embedded import find_pg_config
from pg_dpml.server.extension import Sources, pg_config_paths

__all__ = ["CORPUS", "TARGETS", "Builder", "find_clang", "main"]

ROOT = Path(__file__).resolve().parents[1]
FUZZ = ROOT / "tests" / "fuzz"
CORPUS = FUZZ / "corpus"

# Target and the files of the server's glue that it needs, which need the server's headers.
TARGETS: dict[str, tuple[str, ...]] = {
    "block": (),
    "options": ("json.c", "options.c", "options_gradient.c", "options_scd.c", "options_sgd.c"),
    "scd": (),
    "spec": ("json.c", "spec.c", "spec_column.c"),
}
PG_MAJOR = 16
LONGEST_INPUT = {"block": 256, "options": 128, "scd": 256, "spec": 192}  # so that a corpus stays small

# A target chooses how far it is optimised, and sees the symbols of the code it runs.
FLAGS = (
    *(flag for flag in Sources.find().own_flags() if flag not in ("-O3", "-fvisibility=hidden")),
    *("-g1", "-fno-strict-aliasing", "-D_GNU_SOURCE", "-fno-omit-frame-pointer", "-Werror"),
)
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def find_clang() -> str | None:
    """A clang, which has libFuzzer where its runtime is installed."""
    names = ["clang", *(f"clang-{major}" for major in range(22, 12, -1))]
    return next((name for name in names if shutil.which(name)), None)


@dataclass
class Builder:
    """Builds targets from one source folder; an object is compiled once.

    Parameters
    ----------
    folder : Path
        Where objects and programs go.
    compiler : str
    libfuzzer : bool
        Link libFuzzer in place of `tests/fuzz/replay.c`.
    optimise : str
    sources : Path
        The `udas` folder.
    """

    folder: Path
    compiler: str
    libfuzzer: bool = False
    optimise: str = "-O1"
    sources: Path = ROOT / "udas"
    _objects: dict[Path, Path] = field(default_factory=dict)

    def build(self, target: str) -> Path:
        """The program of a target."""
        return self.link(target, self.sources_of(target))

    def sources_of(self, target: str) -> list[Path]:
        """The translation units of a target."""
        own = [FUZZ / f"{target}.c"]
        if not self.libfuzzer:
            own.append(FUZZ / "replay.c")
        if TARGETS[target]:
            own.append(FUZZ / "document.c")
        glue = [self.sources / name for name in TARGETS[target]]
        return [*own, *glue, *sorted((self.sources / "kernels").glob("*.c"))]

    def link(self, target: str, sources: Iterable[Path]) -> Path:
        """Compile what is not compiled yet, and link."""
        missing = [source for source in sources if source not in self._objects]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            self._objects.update(zip(missing, pool.map(self._compile, missing), strict=True))
        program = self.folder / target
        objects = [str(self._objects[source]) for source in sources]
        wrap = ["-Wl,--wrap=dpml_projection"] if target == "spec" else []
        fuzzer = ["-fsanitize=fuzzer"] if self.libfuzzer else []
        self._run([*SANITIZERS, *fuzzer, *objects, *wrap, "-o", str(program), "-lm"])
        return program

    def _compile(self, source: Path) -> Path:
        compiled = self.folder / f"{source.parent.name}-{source.stem}.o"
        coverage = ["-fsanitize=fuzzer-no-link"] if self.libfuzzer else []
        headers = pg_config_paths(find_pg_config(PG_MAJOR))["INCLUDEDIR-SERVER"]
        folders = (self.sources, self.sources / "kernels", FUZZ)
        includes = [*(f"-I{folder}" for folder in folders), "-isystem", headers]
        command = [*FLAGS, self.optimise, *SANITIZERS, *coverage, *includes, "-c", str(source)]
        self._run([*command, "-o", str(compiled)])
        return compiled

    def _run(self, arguments: list[str]) -> None:
        run = subprocess.run([self.compiler, *arguments], capture_output=True, text=True, check=False)
        if run.returncode != 0:
            raise RuntimeError(f"{self.compiler} failed:\n{run.stderr[-4000:]}")


def _read_corpus(target: str) -> list[bytes]:
    path = CORPUS / f"{target}.hex"
    return [bytes.fromhex(line) for line in path.read_text().splitlines()] if path.exists() else []


def _write_corpus(target: str, folder: Path) -> int:
    inputs = sorted(
        {path.read_bytes() for path in folder.iterdir()} - {b""}, key=lambda data: (len(data), data)
    )
    (CORPUS / f"{target}.hex").write_text("".join(f"{data.hex()}\n" for data in inputs))
    return len(inputs)


def _fuzz(target: str, program: Path, folder: Path, seconds: int) -> bool:
    """Fuzz for some time and keep the smallest corpus that covers as much; False if there was a finding."""
    found, merged, findings = folder / f"{target}.found", folder / f"{target}.corpus", Path.cwd()
    for path in (found, merged):
        path.mkdir()
    for i, data in enumerate(_read_corpus(target)):
        (found / f"{i:06}").write_bytes(data)
    limits = [f"-max_len={LONGEST_INPUT[target]}", "-timeout=20", "-rss_limit_mb=3000"]
    run = [str(program), *limits, f"-artifact_prefix={findings}/{target}-"]
    clean = subprocess.run([*run, f"-max_total_time={seconds}", str(found)], check=False).returncode == 0
    subprocess.run([*run, "-merge=1", str(merged), str(found)], check=True)
    sys.stdout.write(
        f"{target}: {'clean' if clean else 'FAILED'}, {_write_corpus(target, merged)} inputs kept\n"
    )
    return clean


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="scripts/fuzz", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}; default: all")
    parser.add_argument("--seconds", type=int, default=600, help="for each target")
    given = parser.parse_args()
    unknown = set(given.targets) - set(TARGETS)
    if unknown:
        parser.error(f"no such target: {', '.join(sorted(unknown))}")
    compiler = find_clang()
    if compiler is None:
        parser.error("clang is missing (Debian: apt-get install clang libclang-rt-dev)")
    with tempfile.TemporaryDirectory() as scratch:
        builder = Builder(Path(scratch), compiler, libfuzzer=True)
        results = [
            _fuzz(target, builder.build(target), Path(scratch), given.seconds)
            for target in given.targets or TARGETS
        ]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
