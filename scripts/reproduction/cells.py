# SPDX-License-Identifier: PostgreSQL
"""The cells of entries: one model at one epsilon on one split. Each is stored once it is measured."""

from __future__ import annotations

import json
import math
import os
import platform
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

import pg_dpml
from pg_dpml import Grid, GuaranteeError, PrivacySpec, TrainSpec
from pg_dpml.runs.grid import train_options
from pg_dpml.training.method import methods as registered
from reproduction import published, tables
from reproduction.entries import AUTO, AUTO_LINEAR, CEILING, Entry, Group, Line

Record = dict[str, Any]
Report = Callable[[str, int, int], None]

Place = tuple[Any, ...]

PLACE = ("data", "group", "label", "x", "split")
"""What tells the cells of an entry from each other."""


@dataclass(frozen=True)
class Cell:
    """A model to train and to measure."""

    entry: Entry
    data: str
    group: Group
    line: Line
    x: Any
    split: int

    @property
    def place(self) -> Place:
        """As `PLACE`."""
        return (self.data, self.group.name, self.line.label, self.x, self.split)

    @property
    def options(self) -> dict[str, Any]:
        """Of the method, with that of the x axis if the method has it; the lines to compare with stay."""
        options = dict(self.line.options)
        fixed = self.line.label in (AUTO, AUTO_LINEAR, CEILING)
        if not fixed and self.group.x in _options_of(self.line.method):
            options[self.group.x] = self.x
        return options

    @property
    def privacy(self) -> PrivacySpec | None:
        """As the paper names it; None for a method that is not private."""
        if not self.line.private:
            return None
        epsilon = float(self.x) if self.group.x == "epsilon" else self.group.epsilon
        assert epsilon is not None
        return PrivacySpec(epsilon, self.group.delta, self.entry.neighbours)

    @property
    def same(self) -> str:
        """Equal for cells of several entries that are one run."""
        privacy = self.privacy
        asked = None if privacy is None else (privacy.epsilon, privacy.delta, privacy.relation.value)
        parts = (self.data, self.split, self.line.method, self.options, dict(self.line.grid), self.line.noise)
        return json.dumps([*parts, asked], sort_keys=True)


def _options_of(method: str) -> set[str]:
    return {"lambda" if name == "lambda_" else name for name in registered()[method].options.declared()}


def cells_of(entry: Entry, size: str) -> Iterator[Cell]:
    """The cells of an entry at a size; at the smallest of one data set, and the first and last group."""
    first_only = size == "smallest"
    groups = [entry.groups[0], *entry.groups[1:][-1:]] if first_only else entry.groups
    for data in entry.data[:1] if first_only else entry.data:
        for group in groups:
            for number in range(1, (entry.splits if size == "full" else 1) + 1):
                for line in entry.lines_of(data, group):
                    for x in group.of_size(size):
                        tried = line.of_two_candidates if first_only else line
                        yield Cell(entry, data, group, tried, x, number)


def runs_of(entry: Entry, size: str) -> dict[Place, str]:
    """The run of every cell of an entry."""
    return {cell.place: cell.same for cell in cells_of(entry, size)}


def place_of(record: Record) -> Place:
    """The place of a stored cell."""
    return tuple(record[key] for key in PLACE)


def machine() -> str:
    """The machine in one line."""
    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"


class Store:
    """The results of entries, each in a file of its own that is written after every cell.

    Parameters
    ----------
    folder : Path
    size : str
    resume : bool
        Keep the cells that are there already, if they are of this size.
    """

    def __init__(self, folder: Path, size: str, *, resume: bool) -> None:
        self.folder, self.size, self._resume = folder, size, resume
        self._found: dict[str, Record] = {}
        self._runs: dict[str, Record] = {}
        self._order: dict[str, dict[Place, int]] = {}

    def open(self, entry: Entry, wanted: Mapping[Place, str]) -> None:
        """Read what is there of an entry, or begin with none of its cells.

        Parameters
        ----------
        entry : Entry
        wanted : mapping
            The run of every cell. A stored cell of another run, as of an entry that was changed since, is
            made again.
        """
        known = read_results(self.folder, entry.name) if self._resume else None
        if known is None or known["size"] != self.size:
            known = {"entry": entry.name, "size": self.size, "rows": {}, "cells": []}
        known["cells"] = [
            one
            for one in known["cells"]
            if wanted.get(place_of(one)) == one["same"] and (entry.measure in one or "accuracy" not in one)
        ]
        self._found[entry.name] = known
        self._order[entry.name] = {place: number for number, place in enumerate(wanted)}
        for one in known["cells"]:
            self._runs.setdefault(one["same"], one)

    def has(self, entry: Entry, place: Place) -> bool:
        """Whether a cell is there."""
        return any(place_of(one) == place for one in self.cells(entry.name))

    def cells(self, name: str) -> list[Record]:
        """Those of an entry."""
        found: list[Record] = self._found[name]["cells"]
        return found

    def run(self, same: str) -> Record | None:
        """The same run in another entry."""
        return self._runs.get(same)

    def add(self, entry: Entry, record: Record) -> None:
        """Keep a cell in its place, and write the file of its entry."""
        known, order = self._found[entry.name], self._order[entry.name]
        known["cells"].append(record)
        known["cells"].sort(key=lambda one: order[place_of(one)])
        self._runs.setdefault(record["same"], record)
        known |= {"date": date.today().isoformat(), "machine": machine()}
        write_results(self.folder, known)

    def count_rows(self, entry: Entry, data: str, rows: tuple[int, int]) -> None:
        """Keep how many rows a data set has to train on and to test."""
        self._found[entry.name]["rows"][data] = list(rows)


def read_results(folder: Path, name: str) -> Record | None:
    """The file of an entry; None if there is none."""
    path = folder / f"{name}.json"
    if not path.exists():
        return None
    found: Record = json.loads(path.read_text(encoding="utf-8"))
    return found


def write_results(folder: Path, results: Mapping[str, Any]) -> None:
    """Write the file of an entry, one cell a line; a kill leaves the one before."""
    folder.mkdir(parents=True, exist_ok=True)
    head = json.dumps({key: value for key, value in results.items() if key != "cells"})
    lines = ",\n".join(json.dumps(cell) for cell in results["cells"])
    path = folder / f"{results['entry']}.json"
    beside = path.with_suffix(".new")
    beside.write_text(f'{head[:-1]}, "cells": [\n{lines}\n]}}\n', encoding="utf-8")
    beside.replace(path)


def run(dsn: str, entries: Sequence[Entry], store: Store, folder: Path | None, report: Report) -> None:
    """Measure every cell that the store lacks, one data set after the other, on all cores."""
    wanted = [cell for entry in entries for cell in cells_of(entry, store.size)]
    losses = {cell.same for cell in wanted if cell.entry.measure == "loss"}
    open_cells = [cell for cell in wanted if not store.has(cell.entry, cell.place)]
    done = len(wanted) - len(open_cells)
    with psycopg.connect(dsn, autocommit=True) as connection:
        for data in dict.fromkeys(cell.data for cell in open_cells):
            of_data = [cell for cell in open_cells if cell.data == data]
            rows = tables.read(data)
            report(f"{rows.data.title}: loading", done, len(wanted))
            tables.load(connection, rows, store.size, folder)
            for number in sorted({cell.split for cell in of_data}):
                counts = tables.split(connection, number)
                of_split = [cell for cell in of_data if cell.split == number]
                for cell, found in _measured(_Split(dsn, rows, losses), of_split, store):
                    store.count_rows(cell.entry, data, counts)
                    store.add(cell.entry, found | dict(zip(PLACE, cell.place, strict=True)))
                    done += 1
                    report(f"{cell.entry.name}: {rows.data.title}, {cell.line.label}", done, len(wanted))
    report("", done, len(wanted))


def _measured(split: _Split, wanted: Sequence[Cell], store: Store) -> Iterator[tuple[Cell, Record]]:
    """Every cell of a split with its figures, as soon as there are any; those of one run together."""
    runs: dict[str, list[Cell]] = {}
    for cell in wanted:
        known = store.run(cell.same)
        if known is not None and (cell.entry.measure in known or "accuracy" not in known):
            yield cell, known
        else:
            runs.setdefault(cell.same, []).append(cell)
    pool = ThreadPoolExecutor(os.cpu_count())
    try:
        measured = {pool.submit(split.record, cells[0]): cells for cells in runs.values()}
        running = set(measured)
        while running:
            ended, running = wait(running, return_when=FIRST_COMPLETED)
            for future in sorted(ended, key=lambda one: one.exception() is not None):
                found = future.result()
                yield from ((cell, found) for cell in measured[future])
    finally:
        pool.shutdown(cancel_futures=True)


class _Split:
    """The cells of one split, whose rows are in train_rows and test_rows; threads may share it.

    Parameters
    ----------
    dsn : str
    rows : Rows
    losses : set of str
        Runs, by `Cell.same`, of which the loss is wanted too.
    """

    def __init__(self, dsn: str, rows: tables.Rows, losses: set[str]) -> None:
        self._dsn, self._rows, self._losses = dsn, rows, losses
        self._problem = pg_dpml.plan(dsn, rows.spec, PrivacySpec(1.0), TrainSpec()).problem

    def record(self, cell: Cell) -> Record:
        """The figures of a run."""
        started = time.monotonic()
        found: Record = {"same": cell.same}
        try:
            self._measure(cell, found)
        except GuaranteeError as error:
            found["rejected"] = str(error)
        return found | {"seconds": round(time.monotonic() - started, 2)}

    def _measure(self, cell: Cell, found: Record) -> None:
        """Add what a published noise gives, and the figures of a model."""
        privacy, options = cell.privacy, cell.options
        if cell.line.noise != "ours":
            assert privacy is not None
            asked = published.Asked(
                self._problem, privacy, cell.line.method, options | _first_of(cell.line.grid)
            )
            noise = published.KINDS[cell.line.noise](asked)
            found["gives"] = None if math.isinf(noise.gives) else round(noise.gives, 6)
            if noise.runs_at is None:
                return
            # delta is that of the paper, whatever the epsilon
            privacy = replace(privacy, epsilon=noise.runs_at)
            options |= noise.options
        name = f"reproduced_{secrets.token_hex(6)}"
        training = TrainSpec(cell.line.method, **train_options(options, cell.entry.name))
        spec = self._rows.spec
        if cell.line.grid:
            pg_dpml.tune(self._dsn, spec, privacy, Grid(cell.line.grid, training), name=name)
        else:
            pg_dpml.train(self._dsn, spec, privacy, training, name=name)
        figures = pg_dpml.evaluate(self._dsn, name, "test_rows", public=True)
        value = figures.r_squared if self._rows.regression else figures.accuracy
        assert value is not None
        found["accuracy"] = round(value * self._rows.data.unit, 4)
        if cell.same in self._losses:
            with psycopg.connect(self._dsn, autocommit=True) as connection:
                found["loss"] = round(_mean_loss(connection, self._rows, name), 6)


def _first_of(grid: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """A candidate: by what factor published noise is smaller is the same for all."""
    return {name: values[0] for name, values in grid.items()}


LOSS = """
SELECT avg(-ln(greatest(CASE WHEN t.{label}::text = %(positive)s THEN (p.p)[2] ELSE (p.p)[1] END, 1e-300)))
FROM test_rows t, dpml.predict_proba(%(model)s, t) AS p (p)
"""


def _mean_loss(connection: psycopg.Connection[Any], rows: tables.Rows, model: str) -> float:
    """Mean logistic loss of the test rows."""
    label = rows.spec.label
    query = sql.SQL(LOSS).format(label=sql.Identifier(label.column))
    found = connection.execute(query, {"positive": str(label.positive), "model": model}).fetchone()
    assert found is not None
    return float(found[0])
