# SPDX-License-Identifier: PostgreSQL
"""How every command works: options in groups, results on stdout, progress on stderr, exit codes."""

from __future__ import annotations

import errno
import inspect
import io
import json
import os
import secrets
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

import pg_dpml
from pg_dpml.cli import progress
from pg_dpml.database.connections import refuse_password
from pg_dpml.database.database import Database
from pg_dpml.database.session import Session
from pg_dpml.errors import EXIT_INTERRUPTED, EXIT_PIPE, EXIT_TERMINATED, DpmlError
from pg_dpml.names import shown, visible_lines
from pg_dpml.spec.relation import Relation
from pg_dpml.training.method import declared_option, method_options, methods
from pg_dpml.training.options import shown_name

__all__ = [
    "ModelName",
    "Output",
    "OutputFormat",
    "Spec",
    "Table",
    "app",
    "command",
    "could_not_write",
    "decimal",
    "note",
    "option_help",
    "optional_decimal",
    "require_folder",
    "say",
    "settle_streams",
    "warn",
    "write_file",
]

app = typer.Typer(
    name="dpml",
    help="Differentially private machine learning inside PostgreSQL.",
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

Spec = Annotated[Path, typer.Argument(metavar="SPEC", help="Data spec, a TOML file.")]
ModelName = Annotated[str, typer.Argument(metavar="MODEL", help="Name of a stored model.")]
Table = Annotated[str, typer.Option(help="Table with the columns of the training table.")]
OutputFormat = Annotated[str, typer.Option("--format", metavar="text|json", help="What to print.")]


@dataclass(frozen=True)
class Output:
    """Where the rows are and how the answer is printed."""

    dsn: str
    insecure: bool
    format: str

    def __post_init__(self) -> None:
        if self.format not in ("text", "json"):
            raise pg_dpml.SpecError(f"--format must be text or json, not {self.format}")

    def session(self) -> AbstractContextManager[Session]:
        """One transaction on the server; the rows of models and ledger are all it should read."""
        return Database(self.dsn, insecure=self.insecure).session()

    def print(self, text: str, record: dict[str, Any]) -> None:
        """Print the answer in the format asked for."""
        say(json.dumps(record, indent=2) if self.format == "json" else visible_lines(text))


def settle_streams() -> None:
    """Prepare standard input, output and error for terminals that lack characters, and for closed ones."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:  # closed: a connection opened later must not take its number
            os.open(os.devnull, os.O_RDWR)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def say(text: str) -> None:
    """Write a line of the answer to standard output; what the terminal's encoding lacks is escaped."""
    progress.pause()
    try:
        if sys.stdout is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    except OSError as error:
        raise typer.Exit(could_not_write(error)) from None


def could_not_write(error: OSError) -> int:
    """Say why standard output took nothing; the exit code. A reader that has left, as `head` does, knows."""
    _give_up(1)
    if error.errno == errno.EPIPE:
        return EXIT_PIPE
    warn(f"standard output cannot be written, though all else is done: {error.strerror}")
    return DpmlError.exit_code


def _give_up(descriptor: int) -> None:
    """Send a stream that took nothing to nowhere: Python writes what its buffer holds when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


def warn(text: str) -> None:
    """Write a line for the user to standard error, if that takes any."""
    note(f"dpml: {text}")


def note(text: str) -> None:
    """As `warn`, of what is no line of its own."""
    progress.pause()
    if sys.stderr is not None:
        try:
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()
        except OSError:
            _give_up(2)


def require_folder(file: Path) -> None:
    """Refuse a file to write before the work is done, if its folder does not exist or takes no file."""
    if not file.parent.is_dir():
        raise pg_dpml.SpecError(f"--output: there is no folder {file.parent}")
    if file.is_dir():
        raise pg_dpml.SpecError(f"--output: {file} is a folder")
    if not _is_device(file) and not os.access(file.parent, os.W_OK | os.X_OK):
        raise DpmlError(f"--output: folder {file.parent} takes no new file: {os.strerror(errno.EACCES)}")


def _is_device(file: Path) -> bool:
    """Whether it is a device or a pipe, which has to be written to as it is."""
    return file.exists() and not file.is_file()


def write_file(file: Path, content: bytes) -> None:
    """Write a file as a whole or not at all: a file of that name keeps its content until the new one is "
    "there.

    Raises
    ------
    DpmlError
        If it cannot be written.
    """
    try:
        target = file.resolve()
        if _is_device(target):
            target.write_bytes(content)
            return
        part = target.with_name(f".{target.name[:100]}.{secrets.token_hex(4)}")
        try:
            part.write_bytes(content)
            part.replace(target)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise DpmlError(f"--output: {file} cannot be written: {error.strerror}") from None


def _as_text(option: str, value: Any) -> Any:
    """An option's value; what the locale took for bytes that are no text is read as UTF-8."""
    if isinstance(value, list):
        return [_as_text(option, item) for item in value]
    if not isinstance(value, str):
        return value
    try:
        return os.fsencode(value).decode() if any("\udc80" <= c <= "\udcff" for c in value) else value
    except UnicodeDecodeError:
        name = option.rstrip("_").replace("_", "-")
        raise pg_dpml.SpecError(f"--{name} must be text, and {shown(value)} is not UTF-8") from None


def decimal(text: str, option: str) -> Decimal:
    """An option as it is written: a float would not be exact."""
    try:
        return Decimal(text)
    except InvalidOperation:
        raise pg_dpml.SpecError(f"{option} must be a number, not {text}") from None


def optional_decimal(text: str | None, option: str) -> Decimal | None:
    """As `decimal`, of an option that may be left out."""
    return None if text is None else decimal(text, option)


Dsn = Annotated[
    str, typer.Option("--dsn", "-d", help="libpq connection string, no password. Default: PG* variables.")
]
Insecure = Annotated[bool, typer.Option("--insecure", help="Allow TCP without TLS elsewhere.")]


def _output_options(dsn: Dsn = "", insecure: Insecure = False, format: OutputFormat = "text") -> Output:
    refuse_password(dsn)
    return Output(dsn, insecure, format)


def _connection_options(dsn: Dsn = "", insecure: Insecure = False) -> Output:
    """For commands with a format of their own."""
    return _output_options(dsn, insecure)


def _privacy_options(
    epsilon: Annotated[float | None, typer.Option(help="Privacy loss, in [1e-12, 100].")] = None,
    delta: Annotated[float | None, typer.Option(help="In [0, 1); 0: pure privacy. Default: 1/n^2.")] = None,
    relation: Annotated[
        Relation, typer.Option(help="Which tables count as neighbours.")
    ] = Relation.REPLACE_ONE,
) -> pg_dpml.PrivacySpec | None:
    if epsilon is None:
        if delta is not None:
            raise pg_dpml.SpecError("--delta goes with --epsilon")
        return None
    return pg_dpml.PrivacySpec(epsilon, delta, relation)


def option_help(name: str) -> str:
    """One option in words: what it does, in which methods, with which values and which default."""
    used_by = method_options()[name]
    texts: dict[str, list[str]] = {}
    for method, declared in used_by.items():
        texts.setdefault(declared.help, []).append(method)
    if len(texts) == 1:
        words = next(iter(texts))
    else:
        words = " ".join(f"{', '.join(names)}: {text}" for text, names in texts.items())
    declared = declared_option(name)
    others = [method for method in methods() if method not in used_by]
    if len(texts) == 1 and others:
        few = len(used_by) <= len(others)
        words += f" Only in {', '.join(used_by)}." if few else f" Not in {', '.join(others)}."
    if isinstance(declared.default, bool):
        return words
    defaults = {one.otherwise for one in used_by.values()}
    otherwise = next(iter(defaults)) if len(defaults) == 1 else "by method"
    return f"{words} Values: {declared.domain.text}. Default: {otherwise or declared.default}."


def _training_options(**given: Any) -> pg_dpml.TrainSpec:
    return pg_dpml.TrainSpec(**given)


def _training_parameters() -> list[inspect.Parameter]:
    """`--method`, and every option that a method declares."""
    help_of_method = " | ".join(methods())
    found = [_parameter("method", str, "auto", typer.Option(help=help_of_method))]
    for name in method_options():
        declared = declared_option(name)
        flag = f"--{shown_name(name).replace('_', '-')}"
        given = declared.domain.type if declared.default is not None else declared.domain.type | None
        found.append(_parameter(name, given, declared.default, typer.Option(flag, help=option_help(name))))
    return found


def _parameter(name: str, given: Any, default: object, option: Any) -> inspect.Parameter:
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, keyword, default=default, annotation=Annotated[given, option])


_training_options.__signature__ = inspect.Signature(_training_parameters())  # type: ignore[attr-defined]


class _Terminated(KeyboardInterrupt):
    """SIGTERM, handled like Ctrl-C."""


def _terminate(signum: int, frame: FrameType | None) -> None:
    raise _Terminated


_GROUPS: dict[str, Callable[..., Any]] = {
    "output": _output_options,
    "connection": _connection_options,
    "privacy": _privacy_options,
    "training": _training_options,
}


def command(function: Callable[..., None], *, to: typer.Typer = app, name: str | None = None) -> None:
    """Register a command: expand its option groups, and turn expected errors into exit codes.

    A parameter named as in `_GROUPS` stands for all options of that group. `to` is the group of commands, and
    `name` the command's name if it is not the function's.
    """
    own = inspect.signature(function, eval_str=True).parameters
    groups = {
        name: inspect.signature(_GROUPS[name], eval_str=True).parameters for name in own if name in _GROUPS
    }
    expanded = [p for name in own for p in (groups[name].values() if name in groups else [own[name]])]

    shown_name = name or function.__name__

    def run(**given: Any) -> None:
        signal.signal(signal.SIGTERM, _terminate)
        try:
            given = {option: _as_text(option, value) for option, value in given.items()}
            for name, parameters in groups.items():
                given[name] = _GROUPS[name](**{key: given.pop(key) for key in parameters})
            with progress.signs_of_life(shown_name):
                function(**given)
        except DpmlError as error:
            warn(f"{error}")
            raise typer.Exit(error.exit_code) from None
        except KeyboardInterrupt as interrupt:
            warn(f"{str(interrupt) or 'interrupted'}")
            terminated = _Terminated in (type(interrupt), getattr(interrupt, "interrupt", None))
            raise typer.Exit(EXIT_TERMINATED if terminated else EXIT_INTERRUPTED) from None

    keyword = inspect.Parameter.KEYWORD_ONLY
    signature = inspect.Signature([p.replace(kind=keyword) for p in expanded])
    run.__signature__ = signature  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in expanded}
    to.command(name=shown_name, help=function.__doc__)(run)


def _version(value: bool) -> None:
    if value:
        say(f"dpml {version('pg_dpml')}")
        raise typer.Exit


@app.callback()
def _root(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Differentially private machine learning inside PostgreSQL."""
