# SPDX-License-Identifier: PostgreSQL
"""The papers' figures and tables made again, with noise that keeps its promise.

Every file of reproduce.d is a figure or a table of a paper. Results, pictures and
the page docs/reproduction.md are written below --folder. Every model is stored as
soon as it is measured: after an interruption, --resume goes on where it was.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psycopg
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import accuracy
from pg_dpml.errors import EXIT_TERMINATED, DpmlError, SpecError
from pg_dpml.server.embedded import EmbeddedServer
from reproduction import cells, entries, page, tables, timing
from reproduction.cells import Report, Store
from reproduction.entries import Entry

FOLDER = Path(__file__).resolve().parents[1] / "docs"

log = Console(stderr=True, highlight=False, soft_wrap=True)


@contextmanager
def progress(part: str) -> Iterator[Report]:
    """A bar with the time that is left, on a terminal; nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda text, done, total: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    left = TimeRemainingColumn(elapsed_when_finished=True)
    with Progress(*columns, left, console=log, speed_estimate_period=600.0) as bars:
        task = bars.add_task(part, total=None)

        def show(text: str, done: int, total: int) -> None:
            bars.update(task, description=text or part, completed=done, total=total)

        yield show


def show_list(chosen: Sequence[Entry]) -> None:
    """The entries: name, paper and number, title, data."""
    for entry in chosen:
        data = ", ".join(entry.data) or "made rows"
        sys.stdout.write(f"{entry.name}\n    {entry.paper}, {entry.number}: {entry.title} ({data})\n")


def require_free(folder: Path, chosen: Sequence[Entry], size: str) -> None:
    """Refuse to replace the results of a full run by smaller ones.

    Raises
    ------
    SpecError
    """
    for entry in chosen:
        known = cells.read_results(folder, entry.name)
        if size != "full" and known is not None and known["size"] == "full":
            raise SpecError(
                f"{folder / entry.name}.json is of a full run: give another --folder for a run of size {size}"
            )


def run(chosen: Sequence[Entry], store: Store, folder: Path | None) -> None:
    """Measure what the store lacks."""
    quality = [entry for entry in chosen if entry.kind == "quality"]
    if quality:
        with EmbeddedServer(settings=accuracy.SETTINGS) as server, progress("models") as report:
            with psycopg.connect(server.dsn, autocommit=True) as connection:
                connection.execute("CREATE EXTENSION pg_dpml")
            cells.run(server.dsn, quality, store, folder, report)
    timed = [entry for entry in chosen if entry.kind == "time"]
    if timed:
        with progress("times") as report:
            timing.run(timed, store, report)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    names = entries.names()
    parser = argparse.ArgumentParser(prog="scripts/reproduce", description=__doc__)
    parser.add_argument("--list", action="store_true", help="the entries, and nothing else")
    parser.add_argument("--only", action="append", choices=names, metavar="NAME", help="only this entry")
    parser.add_argument("--quick", action="store_true", help="few rows, one split, fewer epsilons")
    parser.add_argument("--smallest", action="store_true", help="made-up rows: does every entry work?")
    parser.add_argument("--resume", action="store_true", help="keep what an interrupted run has measured")
    parser.add_argument("--page", action="store_true", help="write the page of the results that are there")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="of reproduction.md; default: docs")
    options = parser.parse_args(arguments)
    size = "smallest" if options.smallest else "quick" if options.quick else "full"
    results = options.folder / page.PICTURES
    try:
        chosen = [entries.read(name) for name in options.only or names]
        if options.list:
            show_list(chosen)
            return 0
        if not options.page:
            require_free(results, chosen, size)
            sets = [tables.read(data) for data in dict.fromkeys(d for entry in chosen for d in entry.data)]
            folder = None if size == "smallest" else tables.files_of(sets)
            store = Store(results, size, resume=options.resume)
            for entry in chosen:
                runs_of = timing.runs_of if entry.kind == "time" else cells.runs_of
                store.open(entry, runs_of(entry, size))
            run(chosen, store, folder)
        log.print(f"wrote {page.write(options.folder)}")
    except DpmlError as error:
        log.print(f"scripts/reproduce: {error}")
        return error.exit_code
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_TERMINATED))  # the server is stopped on the way
    sys.exit(main())
