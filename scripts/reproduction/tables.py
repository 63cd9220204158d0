# SPDX-License-Identifier: PostgreSQL
"""The rows of scripts/reproduce: data sets of accuracy.d, changes of them, and rows that are made.

A file of reproduce.d/data changes a data set of accuracy.d (`base`), describes rows to make (`made`), or is a
data set as those of accuracy.d are.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psycopg
from psycopg import sql

import accuracy
from pg_dpml import Column, DataSpec, Label
from pg_dpml.spec.files import read_toml
from reproduction.entries import ENTRIES

CHANGES = ENTRIES / "data"
QUICK_ROWS, SMALLEST_ROWS = 12_000, 1_000
QUICK_NUMBERS = 2_000_000
"""Features of all made rows at size quick."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Made:
    """Rows to make.

    Attributes
    ----------
    kind : str
        "clusters": two clusters a class, at corners of a cube with sides of 4 in the informative features;
        "sphere": uniform on the sphere, separable with a margin.
    rows, features : int
    informative : int
        Features that tell the classes apart; the others are noise. Of clusters.
    margin : float
        Of the sphere.
    """

    kind: str
    rows: int
    features: int
    informative: int = 0
    margin: float = 0.0

    def make(self, rows: int) -> tuple[Floats, npt.NDArray[np.int_]]:
        """Features of so many rows, and their labels 1 and -1."""
        random = np.random.default_rng(2019)
        if self.kind == "sphere":
            return self._sphere(random, rows)
        y = np.where(random.random(rows) < 0.5, 1, -1)
        centres = np.where(random.random((2, 2, self.informative)) < 0.5, 2.0, -2.0)
        mixing = random.uniform(-1.0, 1.0, (2, 2, self.informative, self.informative))
        x = random.standard_normal((rows, self.features))
        cluster = random.integers(0, 2, rows)
        for sign in (0, 1):
            for which in (0, 1):
                at = (y == 2 * sign - 1) & (cluster == which)
                spread = x[at, : self.informative] @ mixing[sign, which]
                x[at, : self.informative] = spread + centres[sign, which]
        return x, y

    def _sphere(self, random: np.random.Generator, rows: int) -> tuple[Floats, npt.NDArray[np.int_]]:
        normal = random.standard_normal(self.features)
        normal /= np.linalg.norm(normal)
        x = random.standard_normal((2 * rows, self.features))
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        x = x[np.abs(x @ normal) > self.margin][:rows]
        return x, np.where(x @ normal > 0.0, 1, -1)


@dataclass(frozen=True)
class Rows:
    """A data set.

    Attributes
    ----------
    data : accuracy.DataSet
    made : Made or None
        For rows that are made, and not read.
    """

    data: accuracy.DataSet
    made: Made | None = None

    @property
    def spec(self) -> DataSpec:
        """Of the rows to train on."""
        return self.data.spec

    @property
    def regression(self) -> bool:
        """Whether its label is a number to predict."""
        return self.spec.label.task == "regression"


@functools.cache
def read(name: str) -> Rows:
    """A data set by its name."""
    path = CHANGES / f"{name}.toml"
    if not path.exists():
        return Rows(accuracy.DataSet.from_toml(accuracy.SETS / f"{name}.toml"))
    given = read_toml(path)
    title = given["title"]
    if "made" in given:
        made = Made(**given["made"])
        column = Column("x", lower=-given["bound"], upper=given["bound"], length=made.features)
        spec = DataSpec("train_rows", Label("y", positive="1", negative="-1"), (column,))
        data = accuracy.DataSet(name, title, given["source"], (), "x real[], y int", spec, (), 1)
        return Rows(data, made)
    if "base" not in given:
        return Rows(accuracy.DataSet.from_toml(path))
    base = accuracy.DataSet.from_toml(accuracy.SETS / f"{given['base']}.toml")
    changes: dict[str, Any] = {}
    if "label" in given:
        changes["label"] = Label(**given["label"])
    if "projection" in given:
        changes["projection"] = given["projection"]
    if given.get("numbers_only"):
        changes["columns"] = tuple(column for column in base.spec.columns if column.levels is None)
    sample = given.get("sample", base.sample)
    return Rows(replace(base, name=name, title=title, sample=sample, spec=replace(base.spec, **changes)))


def files_of(rows: Sequence[Rows]) -> Path | None:
    """The folder of PG_DPML_DATA if any of the data sets is read from it."""
    read_from = [one.data for one in rows if one.data.files]
    return accuracy.data_folder(read_from) if read_from else None


def load(connection: psycopg.Connection[Any], rows: Rows, size: str, folder: Path | None) -> None:
    """Fill table `everything` at a size; smallest makes up rows that a spec allows."""
    if size == "smallest":
        _copy(connection, rows.data.table, _made_up(rows.data, SMALLEST_ROWS))
        return
    if rows.made is not None:
        made = rows.made
        count = made.rows if size == "full" else min(made.rows, QUICK_ROWS, QUICK_NUMBERS // made.features)
        x, y = made.make(count)
        _copy(connection, rows.data.table, zip(x.tolist(), y.tolist(), strict=True))
        return
    assert folder is not None
    sample = rows.data.sample
    if size == "quick":
        sample = QUICK_ROWS if sample is None else min(sample, QUICK_ROWS)
    accuracy.load(connection, replace(rows.data, sample=sample), folder)


def _copy(connection: psycopg.Connection[Any], table: str, rows: Iterator[Sequence[Any]]) -> None:
    names = [column.split()[0] for column in table.replace("\n", " ").split(", ")]
    with connection.transaction(), connection.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS everything")
        columns = f"id bigint GENERATED ALWAYS AS IDENTITY, {table}"
        cursor.execute(f"CREATE UNLOGGED TABLE everything ({columns})")  # type: ignore[arg-type, unused-ignore]
        statement = f"COPY everything ({', '.join(names)}) FROM STDIN"
        with cursor.copy(statement) as copy:  # type: ignore[arg-type, unused-ignore]
            for row in rows:
                copy.write_row([_text(value) if isinstance(value, list) else value for value in row])


def _text(numbers: Sequence[float]) -> str:
    """An array as PostgreSQL reads it: psycopg looks at every number for longer than the server does."""
    return f"{{{','.join(map(str, numbers))}}}"


def _made_up(data: accuracy.DataSet, count: int) -> Iterator[list[Any]]:
    """Rows of the data set's table that its spec allows, from its public bounds and levels alone."""
    random = np.random.default_rng(1)
    columns: Mapping[str, Column] = {column.name: column for column in data.spec.columns}
    label = data.spec.label
    names = [one.split()[0].strip('"') for one in data.table.replace("\n", " ").split(", ")]

    def value(name: str, sign: bool) -> Any:
        if name == label.column:
            if label.classes is not None:
                return label.classes[int(random.integers(len(label.classes)))]
            if label.positive is not None:
                return label.positive if sign else (label.negative if label.negative is not None else 1)
            return float(label.upper if sign else label.lower)  # type: ignore[arg-type]
        column = columns.get(name)
        if column is None:
            return 0
        if column.levels is not None:
            return str(random.choice(column.levels))
        low, high = float(column.lower), float(column.upper)  # type: ignore[arg-type]
        if column.length is not None:
            return np.floor(random.uniform(low, high, column.length)).astype(int).tolist()
        return int(random.uniform(0.5 * (low + high) if sign else low, high))

    for _ in range(count):
        sign = bool(random.random() < 0.5)
        yield [value(name, sign) for name in names]


def split(connection: psycopg.Connection[Any], number: int) -> tuple[int, int]:
    """Deal the rows of `everything` to train_rows and test_rows; how many they are."""
    accuracy.split(connection, number)
    counts = [
        connection.execute(sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(table))).fetchone()
        for table in ("train_rows", "test_rows")
    ]
    return counts[0][0], counts[1][0]  # type: ignore[index]
