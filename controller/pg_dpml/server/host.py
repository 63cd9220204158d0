# SPDX-License-Identifier: PostgreSQL
"""What the embedded server needs of the machine: an account, folders it can reach, a copy of the programs."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pg_dpml.errors import DpmlError, SpecError
from pg_dpml.server.extension import tail

__all__ = ["Account", "ProgramTree", "make_folder", "run_as", "temporary_folder", "user_cache"]


@dataclass(frozen=True)
class Account:
    """Whom the server runs as when we are root, which PostgreSQL refuses."""

    name: str
    uid: int
    gid: int

    @classmethod
    def find(cls) -> Account | None:
        """None when we are not root: the server runs as ourselves."""
        if os.geteuid() != 0:
            return None
        for name in ("postgres", "nobody"):
            try:
                entry = pwd.getpwnam(name)
            except KeyError:
                continue
            if entry.pw_uid != 0:
                return cls(name, entry.pw_uid, entry.pw_gid)
        raise SpecError(
            "PostgreSQL does not run as root, and there is no account postgres or nobody to run it"
        )


def run_as(command: list[str], account: Account | None, cwd: Path, timeout_s: float = 120) -> str:
    """Run a program as the server's account; its output, or a DpmlError with the end of it."""
    environment = {"PATH": os.defpath, "LC_ALL": "C"}
    environment.update((name, os.environ[name]) for name in ("TZ", "LD_LIBRARY_PATH") if name in os.environ)
    with tempfile.TemporaryFile() as output:  # a server would hold a pipe open
        try:
            run = subprocess.run(
                command,
                user=account.uid if account else None,
                group=account.gid if account else None,
                extra_groups=[] if account else None,
                cwd=cwd,
                env=environment,
                umask=0o077,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=timeout_s,
                check=False,
            )
        except PermissionError as error:
            who = f" as {account.name}" if account else ""
            raise SpecError(f"{command[0]} cannot be run{who} from {cwd}: {error.strerror}") from error
        output.seek(0)
        text = output.read().decode(errors="replace")
    if run.returncode != 0:
        raise DpmlError(f"{Path(command[0]).name} failed:\n{tail(text)}")
    return text


def check_reachable(folder: Path, account: Account) -> None:
    """Stop if the server's account cannot enter `folder`; its permissions are the owner's to change."""
    for path in [*reversed(folder.parents), folder]:
        try:
            run_as(["/bin/sh", "-c", 'cd "$0"', str(path)], account, Path("/"))
        except DpmlError:
            raise SpecError(
                f"account {account.name}, which runs the server because PostgreSQL does not run as root, "
                f"cannot enter {path}. Choose a folder that it can reach, such as one below /var/tmp"
            ) from None


def make_folder(folder: Path, account: Account | None) -> Path:
    """`folder`, made if missing, as a place that the server's account can reach."""
    folder = folder.expanduser().absolute()
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    if account:
        check_reachable(missing[-1].parent if missing else folder, account)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in missing if account else ():
            path.chmod(0o755)  # only what was made here
    except OSError as error:
        raise SpecError(f"{folder} cannot be used as the server's folder: {error.strerror}") from error
    return folder


def temporary_folder(account: Account | None) -> Path:
    """A new folder, below the first temporary place that the server's account can reach."""
    for place in dict.fromkeys((tempfile.gettempdir(), "/var/tmp", "/tmp")):  # noqa: S108 (mkdtemp is safe there)
        try:
            if account:
                check_reachable(Path(place), account)
            folder = Path(tempfile.mkdtemp(prefix="dpml-", dir=place))
        except (SpecError, OSError):
            continue
        if account:
            folder.chmod(0o711)
        return folder
    raise SpecError("no temporary folder can be used by the server; give a folder")


def user_cache() -> Path | None:
    """Our folder in the user's cache, which need not exist."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "pg_dpml"
    except RuntimeError:  # no home
        return None


def _link_file(source: str, target: str) -> None:
    """A hard link where it can be one and all can read it, else a copy that all can read."""
    wanted = 0o555 if os.stat(source).st_mode & 0o100 else 0o444
    if os.stat(source).st_mode & wanted == wanted:
        try:
            os.link(source, target)
            return
        except OSError:  # another file system, or somebody else's file
            pass
    shutil.copyfile(source, target)
    os.chmod(target, wanted | 0o200)


def link_folder(source: Path, target: Path) -> None:
    # Never a link to an installed pg_dpml, which ours would then overwrite.
    ignore = shutil.ignore_patterns("pg_dpml*", "pgxs")
    shutil.copytree(
        source, target, symlinks=True, copy_function=_link_file, ignore=ignore, dirs_exist_ok=True
    )
    for path in [target, *(path for path in target.rglob("*") if path.is_dir() and not path.is_symlink())]:
        path.chmod(0o755)


@dataclass(frozen=True)
class ProgramTree:
    """A server's programs, linked below a folder of ours, where the extension can be added.

    PostgreSQL finds its libraries and files relative to the program that runs,
    so folders keep their places relative to each other.

    Attributes
    ----------
    root : Path
        The folder of the copy.
    original : mapping of str to str
        What the original's pg_config says.
    libraries : Path or None
        Where a wheel keeps the shared libraries of its programs: they expect
        it beside the folder that holds the common folder of all else.
    """

    root: Path
    original: Mapping[str, str]
    libraries: Path | None

    @property
    def _parts(self) -> list[Path]:
        keys = ("BINDIR", "SHAREDIR", "LIBDIR" if self.libraries else "PKGLIBDIR")
        return [Path(self.original[key]) for key in keys]

    @property
    def prefix(self) -> Path:
        """The original's folder that holds all the others."""
        return Path(os.path.commonpath(self._parts))

    @property
    def copy(self) -> Path:
        """What `prefix` is in the copy."""
        return self.root / "p" / self.prefix.name

    def path(self, key: str) -> Path:
        """A folder of the copy, by its name in pg_config."""
        return self.copy / Path(self.original[key]).relative_to(self.prefix)

    def make(self) -> None:
        """Make the copy, unless it is there."""
        made = self.root / "made-from"
        mark = f"{self.original['VERSION']}\n{self.prefix}\n"
        if made.is_file() and made.read_text(encoding="utf-8") == mark:
            return
        if self.root.exists():
            shutil.rmtree(self.root)
        for part in self._parts:
            link_folder(part, self.copy / part.relative_to(self.prefix))
        if self.libraries:
            link_folder(self.libraries, self.root / self.libraries.name)
        self.root.chmod(0o755)
        self.copy.parent.chmod(0o755)
        self.copy.chmod(0o755)
        made.write_text(mark, encoding="utf-8")
