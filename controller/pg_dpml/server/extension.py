# SPDX-License-Identifier: PostgreSQL
"""Building and installing the server side from the C and SQL sources that the package carries.

Two ways lead to one module from the same files with the same flags: cffi's
compile step, which needs a C compiler and the server's headers, for the
embedded server; and PGXS, the way of server administrators. A wheel that was
built with PG_DPML_PG_CONFIG carries modules for the servers named there, which
are used before anything is compiled.

`python -m pg_dpml.server.extension PG_CONFIG` installs into the server of that pg_config.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pg_dpml.errors import DpmlError, SpecError

__all__ = [
    "Sources",
    "build_module",
    "copy_extension",
    "install_extension",
    "pg_config_paths",
    "prebuild",
    "prebuilt_module",
    "replace_file",
    "tail",
]

# What PostgreSQL's own code relies on; PGXS says it by itself.
_SERVER_FLAGS = ("-fno-strict-aliasing", "-fwrapv", "-D_GNU_SOURCE")
COMPILE_TIMEOUT_S = 600


@dataclass(frozen=True)
class Sources:
    """The server side's source folders: inside the installed package, or in a checkout."""

    server: Path  # *.c, kernels/, Makefile, control, compile_flags.txt
    sql: Path

    @classmethod
    def find(cls) -> Sources:
        """Where they are now."""
        package = Path(__file__).resolve().parents[1]
        checkout = package.parents[1]
        for server, sql in ((package / "_server", package / "_sql"), (checkout / "udas", checkout / "sql")):
            if (server / "pg_dpml.control").is_file():
                return cls(server, sql)
        raise DpmlError(f"the extension's sources are missing beside {package}; install pg_dpml again")

    def c_files(self) -> list[Path]:
        """Every translation unit, in a fixed order."""
        return sorted([*self.server.glob("*.c"), *(self.server / "kernels").glob("*.c")])

    def sql_files(self) -> Iterable[tuple[Path, str]]:
        """SQL sources and their names when installed."""
        yield self.sql / "pg_dpml.sql", f"pg_dpml--{self.version()}.sql"
        for delta in sorted(self.sql.glob("pg_dpml--*--*.sql")):
            yield delta, delta.name

    def version(self) -> str:
        """The extension's version, from its control file."""
        control = (self.server / "pg_dpml.control").read_text(encoding="utf-8")
        match = re.search(r"^default_version\s*=\s*'([^']+)'", control, re.MULTILINE)
        if match is None:
            raise DpmlError("pg_dpml.control names no default_version")
        return match[1]

    def own_flags(self) -> list[str]:
        """Flags of every build, from the file that the Makefile reads too: the same bits on every machine."""
        return (self.server / "compile_flags.txt").read_text(encoding="utf-8").split()

    def compile_flags(self) -> list[str]:
        """Flags for the server module, where PGXS does not give its own."""
        return [*self.own_flags(), *_SERVER_FLAGS, f'-DDPML_VERSION="{self.version()}"']

    def digest(self, *more: str) -> str:
        """A name for what compiling these sources gives; `more` says with what else."""
        digest = hashlib.sha256("\0".join([*self.compile_flags(), *more]).encode())
        headers = sorted([*self.server.glob("*.h"), *(self.server / "kernels").glob("*.h")])
        for path in [*self.c_files(), *headers]:
            content = path.read_bytes()
            digest.update(f"{path.relative_to(self.server)} {len(content)}\n".encode() + content)
        return digest.hexdigest()[:20]


def pg_config_paths(pg_config: Path) -> dict[str, str]:
    """What a server's pg_config says: BINDIR, PKGLIBDIR, VERSION and so on."""
    try:
        run = subprocess.run([pg_config], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise SpecError(f"{pg_config} does not run: {error}") from error
    return {
        key.strip(): value.strip()
        for key, _, value in (line.partition("=") for line in run.stdout.splitlines())
    }


def _prebuilt(pg_config: Path, sources: Sources) -> str:
    """File name of a module in a wheel: a server loads any that was built for its major version."""
    [major] = re.findall(r"PostgreSQL (\d+)", pg_config_paths(pg_config)["VERSION"])
    return f"pg_dpml-{major}-{sources.digest(major, sysconfig.get_platform())}.so"


def prebuilt_module(pg_config: Path, sources: Sources) -> Path | None:
    """The module for a server that the package carries, if it was built with one from these very sources."""
    module = sources.server / "prebuilt" / _prebuilt(pg_config, sources)
    return module if module.is_file() else None


def prebuild(pg_configs: Iterable[Path], sources: Sources, server: Path) -> None:
    """Compile modules for some servers into a package that is being built.

    Parameters
    ----------
    pg_configs : iterable of Path
        The servers' pg_config; one of each major version is enough.
    sources : Sources
        What to compile.
    server : Path
        The folder that will be `Sources.server` of the package.
    """
    (server / "prebuilt").mkdir(exist_ok=True)
    for pg_config in pg_configs:
        with tempfile.TemporaryDirectory(prefix="dpml-") as scratch:
            module = build_module(pg_config, sources, [], Path(scratch))
            replace_file(module, server / "prebuilt" / _prebuilt(pg_config, sources))


def build_module(
    pg_config: Path, sources: Sources, caches: Iterable[Path | None], scratch: Path, *, pgxs: bool = False
) -> Path:
    """Compile the server module for a server.

    Parameters
    ----------
    pg_config : Path
        The server's pg_config; its headers must be installed.
    sources : Sources
        What to compile.
    caches : iterable of Path or None
        Where modules compiled before may be: the first that can be written is used.
    scratch : Path
        Folder for the objects, and for the module when there is no cache.
    pgxs : bool
        By PGXS, with the flags of the server's own build, which needs make; by cffi otherwise.

    Returns
    -------
    Path
        The module, in a cache or in `scratch`.
    """
    config = pg_config_paths(pg_config)
    includes = Path(config["INCLUDEDIR-SERVER"])
    if not pgxs and not (includes / "postgres.h").is_file():
        raise DpmlError(f"PostgreSQL's server headers are missing: no postgres.h in {includes}")
    # PGXS takes the flags that pg_config tells, and its rules from our Makefile.
    server = [str(config), (sources.server / "Makefile").read_text()] if pgxs else [config["VERSION"]]
    name = sources.digest(*server, sysconfig.get_platform(), os.environ.get("CC", ""))
    folder = next(filter(_writable, caches), None) or scratch
    module = folder / f"pg_dpml-{name}.so"
    if not module.is_file():
        with tempfile.TemporaryDirectory(prefix="build-", dir=scratch) as build:
            if pgxs:
                _pgxs(pg_config, sources, Path(build), [f"DESTDIR={build}"])
                built = Path(build) / Path(config["PKGLIBDIR"]).relative_to("/") / "pg_dpml.so"
            else:
                built = _compile(sources, includes, Path(build))
            replace_file(built, module)  # in one step: another process may be doing the same
    return module


def _writable(cache: Path | None) -> bool:
    if cache is None:
        return False
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(cache, os.W_OK)


def _compile(sources: Sources, includes: Path, build: Path) -> Path:
    flags = [*sources.compile_flags(), "-isystem", str(includes)]
    main, *others = [str(path) for path in sources.c_files()]
    # In a process of its own: distutils works in the current folder and prints as it likes.
    command = [sys.executable, "-c", _COMPILE_STEP, str(build), main, str(len(others)), *others, *flags]
    environment = dict(os.environ, CC=_compiler(), LC_ALL="C")  # the log is read: `_first_error`
    environment.setdefault("LDSHARED", f"{environment['CC']} -shared")
    run = subprocess.run(
        command,
        cwd=build,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=COMPILE_TIMEOUT_S,
        check=False,
    )
    if run.returncode != 0:
        hint = ""
        if "install the distutils or setuptools" in run.stdout:
            hint = " (pip install 'pg_dpml[embedded]' brings setuptools, which cffi needs)"
        raise DpmlError(f"the server module did not compile{hint}:\n{_first_error(run.stdout)}")
    return Path(run.stdout.splitlines()[-1])


_COMPILE_STEP = """
import sys
from cffi import VerificationError, ffiplatform
build, main, count, *rest = sys.argv[1:]
others, flags = rest[:int(count)], rest[int(count):]
extension = ffiplatform.get_extension(
    main, "pg_dpml", sources=others, extra_compile_args=flags, libraries=["m"]
)
try:
    print(ffiplatform.compile(build, extension))
except VerificationError:
    sys.exit(1)  # the compiler has said why
"""


def _compiler() -> str:
    """The C compiler: $CC, the one that Python was built with, or cc."""
    for command in (os.environ.get("CC"), sysconfig.get_config_var("CC"), "cc", "gcc", "clang"):
        if command and shutil.which(command.split()[0]):
            return str(command)
    raise DpmlError(
        "no C compiler found, and the extension is compiled on the spot. "
        "Install one (Debian: apt-get install gcc libc6-dev) or name it in CC"
    )


def copy_extension(module: Path, sources: Sources, library: Path, share: Path) -> None:
    """Put module, control file and SQL into a server's library and share folders.

    Files are replaced, never changed in place: a running server keeps its module.
    """
    extension = share / "extension"
    copies = [
        (module, library / "pg_dpml.so"),
        (sources.server / "pg_dpml.control", extension / "pg_dpml.control"),
        *((source, extension / name) for source, name in sources.sql_files()),
    ]
    for source, target in copies:
        replace_file(source, target)


def replace_file(source: Path, target: Path) -> None:
    """Copy a file beside its target, readable by all, then rename it into place."""
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.copyfile(source, partial)
    partial.chmod(0o755 if target.suffix == ".so" else 0o644)
    partial.replace(target)


def install_extension(pg_config: Path) -> None:
    """Install into the server that `pg_config` belongs to, whose folders must be ours to write into.

    Without a module for it in the package it is built by PGXS, as by
    `make -C udas install` in a checkout: that needs make, a C compiler and the
    server's development files.
    """
    paths = pg_config_paths(pg_config)
    for key in ("PKGLIBDIR", "SHAREDIR"):
        if not os.access(paths[key], os.W_OK):
            raise DpmlError(f"{paths[key]} cannot be written: run as the account that installed PostgreSQL")
    sources = Sources.find()
    module = prebuilt_module(pg_config, sources)
    if module is not None:
        copy_extension(module, sources, Path(paths["PKGLIBDIR"]), Path(paths["SHAREDIR"]))
        return
    with tempfile.TemporaryDirectory(prefix="dpml-") as scratch:
        _pgxs(pg_config, sources, Path(scratch), [])


def _pgxs(pg_config: Path, sources: Sources, scratch: Path, variables: list[str]) -> None:
    paths = pg_config_paths(pg_config)
    make = shutil.which("gmake") or shutil.which("make")
    if make is None:
        raise DpmlError("make is missing (Debian: apt-get install make)")
    if not Path(paths["PGXS"]).is_file() or not (Path(paths["INCLUDEDIR-SERVER"]) / "postgres.h").is_file():
        raise DpmlError(
            f"{paths['VERSION']} lacks its development files (Debian: apt-get install "
            f"postgresql-server-dev-{paths['VERSION'].split()[1].split('.')[0]})"
        )
    with tempfile.TemporaryDirectory(prefix="pgxs-", dir=scratch) as build:
        # A copy, so that objects are never left in, or taken from, the sources. Names as in a checkout.
        shutil.copytree(
            sources.server, Path(build, "udas"), ignore=shutil.ignore_patterns("*.o", "*.bc", "*.so")
        )
        shutil.copytree(sources.sql, Path(build, "sql"))
        # Debian's PGXS would also make bitcode, by a clang that need not be there.
        command = [
            make,
            f"-j{os.cpu_count() or 1}",
            "-C",
            f"{build}/udas",
            f"PG_CONFIG={pg_config}",
            "with_llvm=no",
            "install",
            *variables,
        ]
        run = subprocess.run(
            command,
            env=dict(os.environ, LC_ALL="C"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMPILE_TIMEOUT_S,
            check=False,
        )
    if run.returncode != 0:
        raise DpmlError(f"the extension did not build for {paths['VERSION']}:\n{_first_error(run.stdout)}")


def _first_error(log: str, lines: int = 20) -> str:
    """The part of a compiler's log that says what is wrong: what follows is often only its consequence."""
    found = re.search(r"^.*\berror\b", log, re.IGNORECASE | re.MULTILINE)
    return "\n".join(log[found.start() :].splitlines()[:lines]) if found else tail(log)


def tail(text: str, lines: int = 25) -> str:
    """The last lines of a log, for an error message."""
    return "\n".join(text.strip().splitlines()[-lines:])


def _main(*arguments: str) -> int:
    try:
        if len(arguments) != 1:
            raise SpecError("say which server: python -m pg_dpml.server.extension /path/to/its/pg_config")
        install_extension(Path(arguments[0]))
    except DpmlError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
