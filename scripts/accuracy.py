# SPDX-License-Identifier: PostgreSQL
"""How accurate private models are with default options, on public data sets.

Every file of accuracy.d is one data set: its columns, its spec, which methods
run on it, and the least mean that each must reach. A model is trained on 80 % of
the rows and measured on the others, with a fresh split each time; splits are
the same in every run of this program, noise never is.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import signal
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import psycopg
from psycopg import sql
from rich import box
from rich.console import Console
from rich.table import Table

import pg_dpml
from pg_dpml import DataSpec, PrivacySpec, TrainSpec
from pg_dpml.errors import EXIT_TERMINATED, DpmlError, SpecError
from pg_dpml.server import demo_data
from pg_dpml.server.embedded import EmbeddedServer
from pg_dpml.spec.files import read_toml
from pg_dpml.spec.relation import Relation

SETS = Path(__file__).resolve().with_suffix(".d")
QUICK_SHARE = 5
"""--quick takes one split of this many."""

SETTINGS = {"shared_buffers": "512MB", "max_wal_size": "4GB"}
NOT_LIKE_FOR_LIKE = (
    "Published: Iyengar et al. 2019, logistic regression / Huber SVM, delta = 1/n^2, replace-one. Not like "
    "for like: features and numbers of rows differ, and their settings were tuned on the test data."
)

TABLE_WIDTH = 110
"""Of the table for people, in a narrower terminal, too: cells cut short would say little."""

log = Console(stderr=True, highlight=False, soft_wrap=True)


@dataclass(frozen=True)
class Run:
    """A method on a data set.

    Attributes
    ----------
    method : str
    epsilon : float or None
        None for a method that is not private.
    delta : float or None
        None for the default, 1/n^2.
    goal : float or None
        None for no goal.
    auc_goal : float or None
        Of the area under the ROC curve; None for no goal.
    options : mapping
        Of the method, by the names of a data set's file, where `lambda` has no underscore. A lambda is for
        what has no default of it: the certified minimiser, tuned on the data set as those figures were
        that it is compared with.
    relation : Relation
        Another than the default only to compare with figures of that relation.
    """

    method: str
    epsilon: float | None = None
    delta: float | None = None
    goal: float | None = None
    auc_goal: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    relation: Relation = Relation.REPLACE_ONE

    @classmethod
    def read(cls, given: Mapping[str, Any], delta: float | None) -> Iterator[Run]:
        """The runs of one table of a file: one for each epsilon, with its goals, if it lists several."""
        own = ("method", "epsilon", "goal", "auc_goal", "relation")
        options = {name: given[name] for name in given if name not in own}
        relation = Relation(given.get("relation", "replace_one"))
        epsilons, goals, auc_goals = (given.get(name) for name in ("epsilon", "goal", "auc_goal"))
        if not isinstance(epsilons, list):
            epsilons, goals, auc_goals = [epsilons], [goals], [auc_goals]
        absent = [None] * len(epsilons)
        for epsilon, goal, auc_goal in zip(epsilons, goals or absent, auc_goals or absent, strict=True):
            yield cls(given["method"], epsilon, delta, goal, auc_goal, options, relation)

    @property
    def title(self) -> str:
        """The method, what it was given, and a relation that is not the default."""
        given = (f"{name} {shown_option(value)}" for name, value in self.options.items())
        other = () if self.relation is Relation.REPLACE_ONE else (self.relation.value,)
        return ", ".join((self.method, *given, *other))

    @property
    def privacy(self) -> PrivacySpec | None:
        """The guarantee, if the method gives one."""
        return None if self.epsilon is None else PrivacySpec(self.epsilon, self.delta, self.relation)

    @property
    def spec(self) -> TrainSpec:
        """The method with its options."""
        options = {"lambda_" if name == "lambda" else name: value for name, value in self.options.items()}
        return TrainSpec(self.method, **options)


def shown_option(value: object) -> str:
    """The value of an option as a file of accuracy.d has it."""
    return f"{value:g}" if isinstance(value, float) else str(value).lower()


@dataclass(frozen=True)
class DataSet:
    """One file of accuracy.d.

    Attributes
    ----------
    name, title, source : str
        Of the file; of the data set; where it comes from.
    files : tuple of str
        In the data's folder: CSV with one header line, gzipped, or NumPy's npz.
    table : str
        Columns and types of the CSV in its order, as in CREATE TABLE.
    derived : str or None
        More columns, as in CREATE TABLE, that the server generates from these.
    spec : DataSpec
    runs : tuple of Run
    splits : int
    sample : int or None
        Keep so many random rows.
    published : mapping
        Epsilon, and figures by method.
    """

    name: str
    title: str
    source: str
    files: tuple[str, ...]
    table: str
    spec: DataSpec
    runs: tuple[Run, ...]
    splits: int
    sample: int | None = None
    derived: str | None = None
    published: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_toml(cls, path: Path) -> DataSet:
        """Read a file; `base` names another one whose keys it takes over."""
        given = _document(path)
        spec = given.pop("spec")
        if isinstance(spec, str):
            data = DataSpec.from_toml(demo_data.ADULT_SPEC.with_name(spec))
        else:
            data = DataSpec.from_mapping({"table": "rows", **spec})
        delta = given.pop("delta", None)
        runs = tuple(run for table in given.pop("run") for run in Run.read(table, delta))
        files = tuple(given.pop("files"))
        return cls(name=path.stem, files=files, spec=replace(data, table="train_rows"), runs=runs, **given)

    @property
    def unit(self) -> float:
        """Figures are percent of rows classified rightly, or R^2."""
        return 1.0 if self.spec.label.task == "regression" else 100.0


def _document(path: Path) -> dict[str, Any]:
    document = read_toml(path)
    base = document.pop("base", None)
    return document if base is None else _merged(_document(path.with_name(f"{base}.toml")), document)


def _merged(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """A document with the keys of its base that it does not have itself, in the tables inside, too."""
    tables = [key for key in own if isinstance(own[key], dict) and isinstance(base.get(key), dict)]
    return {**base, **own, **{key: _merged(base[key], own[key]) for key in tables}}


@dataclass
class Figure:
    """Results of one run over the splits."""

    data: DataSet
    run: Run
    values: list[float] = field(default_factory=list)
    aucs: list[float] = field(default_factory=list)

    @property
    def auc(self) -> float | None:
        """Mean area under the ROC curve; None unless there are two classes."""
        return statistics.fmean(self.aucs) if self.aucs else None

    @property
    def mean(self) -> float:
        """Mean over the splits."""
        return statistics.fmean(self.values)

    @property
    def deviation(self) -> float | None:
        """Standard deviation of one split, its noise included."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    @property
    def met(self) -> bool:
        """Whether the goals are met that there are."""
        auc_met = self.run.auc_goal is None or (self.auc is not None and self.auc >= self.run.auc_goal)
        return auc_met and (self.run.goal is None or self.mean >= self.run.goal)

    @property
    def record(self) -> dict[str, Any]:
        """The line of --json."""
        deviation = self.deviation
        return {
            "data": self.data.name,
            "method": self.run.title,
            "epsilon": self.run.epsilon,
            "mean": round(self.mean, 4),
            "sd": None if deviation is None else round(deviation, 4),
            "runs": len(self.values),
            "goal": self.run.goal,
            "auc": None if self.auc is None else round(self.auc, 4),
            "auc_goal": self.run.auc_goal,
            "ok": self.met,
        }


def data_folder(sets: Sequence[DataSet]) -> Path:
    """The folder of PG_DPML_DATA, with every file that the data sets need.

    Raises
    ------
    SpecError
        If it is not set or a file is missing.
    """
    where = os.environ.get("PG_DPML_DATA")
    if not where:
        wanted = ", ".join(dict.fromkeys(name for data in sets for name in data.files))
        raise SpecError(f"set PG_DPML_DATA to the folder that holds {wanted}")
    for data in sets:
        for name in data.files:
            if not Path(where, name).is_file():
                raise SpecError(f"{name} is missing in {where} (PG_DPML_DATA). It is from {data.source}")
    return Path(where)


def _copy_csv(cursor: psycopg.Cursor[Any], table: str, path: Path) -> None:
    """Append a CSV file to `everything`; its header must name the columns of `table`, hyphens apart."""
    columns = [column.split()[0] for column in table.replace("\n", " ").split(", ")]
    with gzip.open(path) as file:
        header = file.readline().decode().strip().lower().replace("-", "_").split(",")
        if header != [column.strip('"') for column in columns]:
            raise SpecError(f"{path} has columns {', '.join(header)}; {', '.join(columns)} are expected")
        statement = f"COPY everything ({', '.join(columns)}) FROM STDIN (FORMAT csv)"
        with cursor.copy(statement) as copy:  # type: ignore[arg-type, unused-ignore]
            shutil.copyfileobj(file, cast("IO[bytes]", copy))


def _copy_images(cursor: psycopg.Cursor[Any], path: Path) -> None:
    """Append the images and digits of MNIST to `everything`."""
    text = [str(value) for value in range(256)]
    with np.load(path, allow_pickle=False) as arrays:
        for part in ("train", "test"):
            pixels, digits = arrays[f"x_{part}"], arrays[f"y_{part}"]
            with cursor.copy("COPY everything (image, digit) FROM STDIN") as copy:
                for image, digit in zip(pixels.reshape(len(digits), -1), digits, strict=True):
                    copy.write(f"{{{','.join([text[v] for v in image.tolist()])}}}\t{digit}\n")


def load(connection: psycopg.Connection[Any], data: DataSet, folder: Path) -> None:
    """Fill table `everything`; its id is the row's number in the files."""
    with connection.transaction(), connection.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS everything")
        columns = ", ".join(
            filter(None, ("id bigint GENERATED ALWAYS AS IDENTITY", data.table, data.derived))
        )
        cursor.execute(f"CREATE UNLOGGED TABLE everything ({columns})")  # type: ignore[arg-type, unused-ignore]
        for name in data.files:
            if name.endswith(".npz"):
                _copy_images(cursor, folder / name)
            else:
                _copy_csv(cursor, data.table, folder / name)
        if data.sample is not None:
            cursor.execute(
                "DELETE FROM everything WHERE id NOT IN "
                "(SELECT id FROM everything ORDER BY hashint8extended(id, 0) LIMIT %s)",
                [data.sample],
            )


def split(connection: psycopg.Connection[Any], number: int) -> None:
    """Copy `everything` to train_rows and test_rows, by a hash of the row's number."""
    for table, condition in (("train_rows", "<>"), ("test_rows", "=")):
        with connection.transaction():
            connection.execute(f"DROP TABLE IF EXISTS {table}")
            connection.execute(
                sql.SQL(
                    "CREATE UNLOGGED TABLE {} AS SELECT * FROM everything "
                    "WHERE hashint8extended(id, {}) % 5 {} 0"
                ).format(sql.Identifier(table), sql.Literal(number), sql.SQL(condition))
            )
        connection.execute(f"VACUUM ANALYZE {table}")


def measure(dsn: str, data: DataSet, run: Run, name: str) -> tuple[float, float | None]:
    """One model by the public interface: its figure on test_rows, and the area under the curve, if any."""
    pg_dpml.train(dsn, data.spec, run.privacy, run.spec, name=name)
    found = pg_dpml.evaluate(dsn, name, "test_rows", public=True)
    value = found.r_squared if data.spec.label.task == "regression" else found.accuracy
    if value is None:
        raise SpecError(f"{data.name}: the test rows have no figure")
    return value * data.unit, found.auc


def figures(dsn: str, sets: Sequence[DataSet], folder: Path, *, quick: bool) -> Iterator[Figure]:
    """Run everything, one data set after the other."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE EXTENSION pg_dpml")
        for data in sets:
            log.print(f"{data.title}: loading")
            load(connection, data, folder)
            found = [Figure(data, run) for run in data.runs]
            splits = max(1, data.splits // QUICK_SHARE) if quick else data.splits
            for number in range(1, splits + 1):
                split(connection, number)
                for position, figure in enumerate(found):
                    name = f"{data.name}_{number}_{position}"
                    value, auc = measure(dsn, data, figure.run, name)
                    figure.values.append(value)
                    if auc is not None:
                        figure.aucs.append(auc)
                last = ", ".join(f"{figure.run.title} {figure.values[-1]:.4g}" for figure in found)
                log.print(f"{data.title}: split {number} of {splits}: {last}")
            yield from found


def show(found: Sequence[Figure]) -> None:
    """The results for people, the published figures beside them."""
    table = Table("data", "method", "epsilon", "mean", "sd", "runs", "goal", "AUC", box=box.SIMPLE)
    for column in table.columns:
        column.no_wrap = True
    shown: list[DataSet] = []
    for figure in found:
        run, deviation = figure.run, figure.deviation
        new = figure.data not in shown
        if new:
            _show_published(table, shown)
            shown.append(figure.data)
        epsilon = "none" if run.epsilon is None else f"{run.epsilon:g}"
        verdict = "ok" if figure.met else "MISSED"
        goal = "" if run.goal is None else f">= {run.goal:g}  {verdict}"
        auc = "" if figure.auc is None else f"{figure.auc:.3f}"
        if run.auc_goal is not None:
            auc += f" (>= {run.auc_goal:g})"
        deviation_text = "" if deviation is None else f"{deviation:.3g}"
        table.add_row(
            figure.data.name if new else "", run.title, epsilon, f"{figure.mean:.4g}", deviation_text,
            str(len(figure.values)), goal, auc,
        )  # fmt: skip
    _show_published(table, shown)
    console = Console(width=max(Console().width, TABLE_WIDTH))
    console.print(table)
    legend = "Percent of rows classified rightly, R^2 for a regression; sd is that of one split."
    console.print(f"{legend}\n{NOT_LIKE_FOR_LIKE}", highlight=False)


def _show_published(table: Table, shown: Sequence[DataSet]) -> None:
    """Published figures of the last data set, and a line below it."""
    if not shown:
        return
    published = dict(shown[-1].published)
    epsilon = published.pop("epsilon", None)
    for method, values in published.items():
        text = " / ".join(f"{value:g}" for value in values)
        epsilon_text = "none" if method == "without privacy" else f"{epsilon:g}"
        table.add_row("  published", method, epsilon_text, text, style="dim")
    table.add_section()


def main(arguments: Sequence[str] | None = None, folder: Path = SETS) -> int:
    """Run the command line; 1 if a goal is missed."""
    names = sorted(path.stem for path in folder.glob("*.toml"))
    parser = argparse.ArgumentParser(prog="scripts/accuracy", description=__doc__)
    parser.add_argument("--only", action="append", choices=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--method", help="only this method")
    parser.add_argument("--quick", action="store_true", help="fewer splits")
    parser.add_argument(
        "--json",
        action="store_true",
        help="a list of data, method, epsilon, mean, sd, runs, goal, auc, auc_goal and ok",
    )
    options = parser.parse_args(arguments)
    try:
        sets = [DataSet.from_toml(folder / f"{name}.toml") for name in options.only or names]
        if options.method is not None:
            chosen = ((data, [run for run in data.runs if run.method == options.method]) for data in sets)
            sets = [replace(data, runs=tuple(runs)) for data, runs in chosen if runs]
        data = data_folder(sets)
        with EmbeddedServer(settings=SETTINGS) as server:
            found = list(figures(server.dsn, sets, data, quick=options.quick))
    except DpmlError as error:
        log.print(f"scripts/accuracy: {error}")
        return error.exit_code
    if options.json:
        sys.stdout.write(json.dumps([figure.record for figure in found], indent=2) + "\n")
    else:
        show(found)
    return 0 if all(figure.met for figure in found) else 1


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_TERMINATED))  # the server is stopped on the way
    sys.exit(main())
