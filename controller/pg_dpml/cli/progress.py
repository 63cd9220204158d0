# SPDX-License-Identifier: PostgreSQL
"""Signs of life on a terminal: bars of phases that count, and the time of whatever takes long."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress

    from pg_dpml.training.job import Progress as RunProgress

__all__ = ["pause", "progress_bar", "resume", "signs_of_life"]

PATIENCE_S = 1.5
"""How long a command may say nothing."""


def _on_a_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def _bars() -> Progress:
    # Imported where something takes long: rich takes longer than many a command.
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[count]}"))
    return Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True)


class _SignOfLife:
    """The name of a command and how long it has run, once it has said nothing for some time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._command = ""
        self._begun = 0.0
        self._timer: threading.Timer | None = None
        self._bars: Progress | None = None

    def start(self, command: str) -> None:
        self.stop()
        if _on_a_terminal():
            self._command = command
            self._begun = time.monotonic()
            self._timer = threading.Timer(PATIENCE_S, self._show)
            self._timer.daemon = True
            self._timer.start()

    def resume(self) -> None:
        self.start(self._command)

    def stop(self) -> None:
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self._bars is not None:
                self._bars.stop()
                self._bars = None

    def _show(self) -> None:
        with self._lock:
            if self._timer is threading.current_thread():
                self._bars = _bars()
                self._bars.add_task(self._command, total=None, count="")
                self._bars.tasks[0].start_time = self._begun
                self._bars.start()


_sign = _SignOfLife()


@contextmanager
def signs_of_life(command: str) -> Iterator[None]:
    """A part that shows, on a terminal, how long it takes, while it says nothing else."""
    _sign.start(command)
    try:
        yield
    finally:
        _sign.stop()


def pause() -> None:
    """End what is shown, before something else is written; `resume` begins again."""
    _sign.stop()


def resume() -> None:
    """Show again how long it takes, from now on."""
    _sign.resume()


@contextmanager
def progress_bar() -> Iterator[RunProgress | None]:
    """A bar on stderr while a run lasts; nothing where stderr is not a terminal."""
    if not _on_a_terminal():
        yield None
        return
    _sign.stop()
    with _bars() as bars:
        tasks: dict[str, Any] = {}

        def show(phase: str, done: int, total: int) -> None:
            # A phase of one step has no count on the way.
            count, known = ("", None) if done < total == 1 else (f"{done}/{total}", total)
            if phase not in tasks:
                tasks[phase] = bars.add_task(phase, total=known, count=count)
            bars.update(tasks[phase], completed=done, total=known, count=count)

        yield show
    _sign.resume()
