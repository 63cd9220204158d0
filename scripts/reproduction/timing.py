# SPDX-License-Identifier: PostgreSQL
"""Entries about run time: seconds of a pass of each method, on made rows in memory and beyond it."""

from __future__ import annotations

import json
import secrets
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from itertools import groupby
from typing import Any

import psycopg

import pg_dpml
from bench_rows import copy_in, make_rows, spec
from pg_dpml import PrivacySpec, TrainSpec
from pg_dpml.runs.grid import train_options
from pg_dpml.server.embedded import EmbeddedServer
from reproduction.cells import PLACE, Place, Report, Store
from reproduction.entries import MADE_ROWS, Entry, Line

SMALLEST_ROWS = 400
PASSES = 4


class PassClock:
    """A progress callback: seconds of every pass but the first, which also warms the cache."""

    def __init__(self) -> None:
        self.passes: list[float] = []
        self._started = 0.0

    def __call__(self, phase: str, done: int, total: int) -> None:
        """One progress report."""
        now = time.perf_counter()
        if phase == "pass" and done > 1:
            self.passes.append(now - self._started)
        self._started = now


@dataclass(frozen=True)
class Setting:
    """A server and its rows.

    Attributes
    ----------
    group : str
    shared_buffers : str
    rows : int
    batch_size : int
    x : int
        What the panel has from left to right: rows or batch size.
    """

    group: str
    shared_buffers: str
    rows: int
    batch_size: int
    x: int


def settings_of(entry: Entry, size: str) -> Iterator[Setting]:
    """The settings of an entry: its groups, each with its buffers, and rows or batch sizes."""
    for group in entry.groups:
        given = entry.time[group.name] if group.name else entry.time
        for x in group.of_size(size):
            rows = int(x) if group.x == "rows" else int(given["rows"])
            if size != "full":
                rows = SMALLEST_ROWS if size == "smallest" else min(rows, int(given["quick_rows"]))
            batch_size = int(x) if group.x == "batch_size" else int(given["batch_size"])
            yield Setting(group.name, given["shared_buffers"], rows, batch_size, int(x))


@dataclass(frozen=True)
class Timed:
    """A method in a setting: a cell."""

    setting: Setting
    line: Line

    @property
    def place(self) -> Place:
        """As `PLACE`."""
        return (MADE_ROWS, self.setting.group, self.line.label, self.setting.x, 1)

    @property
    def options(self) -> dict[str, Any]:
        """Of the method."""
        return {"passes": PASSES, "batch_size": self.setting.batch_size} | dict(self.line.options)

    @property
    def same(self) -> str:
        """The run, in words that a changed entry changes."""
        return json.dumps([astuple(self.setting), self.line.method, self.options], sort_keys=True)


def cells_of(entry: Entry, size: str) -> Iterator[Timed]:
    """The cells of an entry."""
    for setting in settings_of(entry, size):
        for line in entry.lines:
            yield Timed(setting, line)


def runs_of(entry: Entry, size: str) -> dict[Place, str]:
    """The run of every cell of an entry."""
    return {cell.place: cell.same for cell in cells_of(entry, size)}


def run(entries: Sequence[Entry], store: Store, report: Report) -> None:
    """Measure every cell that the store lacks, one server after the other."""
    wanted = [(entry, cell) for entry in entries for cell in cells_of(entry, store.size)]
    left = [(entry, cell) for entry, cell in wanted if not store.has(entry, cell.place)]
    total, done = len(wanted), len(wanted) - len(left)
    for (name, setting), of_server in groupby(left, lambda one: (one[0].name, one[1].setting)):
        report(f"{name}: {setting.rows:,} rows, {setting.shared_buffers} of buffers", done, total)
        settings = {"shared_buffers": setting.shared_buffers, "jit": "off"}
        with EmbeddedServer(settings=settings | {"max_parallel_workers_per_gather": "0"}) as server:
            with psycopg.connect(server.dsn, autocommit=True) as connection:
                connection.execute("CREATE EXTENSION pg_dpml")
                copy_in(connection, *make_rows(setting.rows))
            for entry, cell in of_server:
                report(f"{name}: {cell.line.label}", done, total)
                value = _pass_seconds(server.dsn, cell, entry.groups[0].epsilon)
                place = dict(zip(PLACE, cell.place, strict=True))
                store.add(entry, place | {"same": cell.same, "pass_seconds": value})
                done += 1
    report("", done, total)


def _pass_seconds(dsn: str, cell: Timed, epsilon: float | None) -> float:
    """Median time of a pass inside a run."""
    training = TrainSpec(cell.line.method, **train_options(cell.options, "options"))
    privacy = PrivacySpec(epsilon or 0.1) if training.chosen.private else None
    clock = PassClock()
    pg_dpml.train(dsn, spec(), privacy, training, name=f"timed_{secrets.token_hex(6)}", progress=clock)
    return round(statistics.median(clock.passes), 6)
