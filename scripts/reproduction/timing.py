# SPDX-License-Identifier: PostgreSQL
"""Entries about run time: seconds of a pass of each method, on made rows in memory and beyond it."""

from __future__ import annotations

import json
import secrets
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

import pg_dpml
from bench_rows import copy_in, make_rows, spec
from pg_dpml import PrivacySpec, TrainSpec
from pg_dpml.runs.grid import train_options
from pg_dpml.server.embedded import EmbeddedServer
from reproduction.cells import PLACE, Report, Store
from reproduction.entries import MADE_ROWS, Entry

SMALLEST_ROWS = 400


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


def places_of(entry: Entry, size: str) -> Iterator[tuple[Any, ...]]:
    """The cells of an entry, as `PLACE`."""
    for setting in settings_of(entry, size):
        for line in entry.lines:
            yield (MADE_ROWS, setting.group, line.label, setting.x, 1)


def run(entries: Sequence[Entry], store: Store, report: Report) -> None:
    """Measure every cell that the store lacks, one server after the other."""
    total = sum(len(list(places_of(entry, store.size))) for entry in entries)
    done = sum(store.has(entry, place) for entry in entries for place in places_of(entry, store.size))
    for entry in entries:
        for setting in settings_of(entry, store.size):
            lines = [
                line
                for line in entry.lines
                if not store.has(entry, (MADE_ROWS, setting.group, line.label, setting.x, 1))
            ]
            if not lines:
                continue
            report(f"{entry.name}: {setting.rows:,} rows, {setting.shared_buffers} of buffers", done, total)
            buffers = {"shared_buffers": setting.shared_buffers, "jit": "off"}
            with EmbeddedServer(settings=buffers | {"max_parallel_workers_per_gather": "0"}) as server:
                with psycopg.connect(server.dsn, autocommit=True) as connection:
                    connection.execute("CREATE EXTENSION pg_dpml")
                    copy_in(connection, *make_rows(setting.rows))
                for line in lines:
                    report(f"{entry.name}: {line.label}", done, total)
                    options = {"batch_size": setting.batch_size} | dict(line.options)
                    value = _pass_seconds(server.dsn, line.method, options, entry.groups[0].epsilon)
                    place = (MADE_ROWS, setting.group, line.label, setting.x, 1)
                    same = json.dumps([entry.name, *place])
                    store.add(
                        entry, dict(zip(PLACE, place, strict=True)) | {"same": same, "pass_seconds": value}
                    )
                    done += 1
    report("", done, total)


def _pass_seconds(dsn: str, method: str, options: Mapping[str, Any], epsilon: float | None) -> float:
    """Median time of a pass inside a run."""
    training = TrainSpec(method, **train_options({"passes": 4} | dict(options), "options"))
    privacy = PrivacySpec(epsilon or 0.1) if training.chosen.private else None
    clock = PassClock()
    pg_dpml.train(dsn, spec(), privacy, training, name=f"timed_{secrets.token_hex(6)}", progress=clock)
    return round(statistics.median(clock.passes), 6)
