# SPDX-License-Identifier: PostgreSQL
"""Comparisons in a real server: disjoint portions, figures as numpy has them, and nothing left behind."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest
from typer.testing import CliRunner, Result

import pg_dpml
from helpers import people
from helpers.people import BAD_PEOPLE, FloatArray, create_people, make_people
from helpers.sqltools import scalar
from pg_dpml import DataSpec, Relation, cli
from pg_dpml.blocks.blocks import Blocks
from pg_dpml.blocks.packing import PackedRows
from pg_dpml.blocks.source import Source
from pg_dpml.database.session import Session, sql
from pg_dpml.errors import DpmlError, GuaranteeError, RunFailedError, SpecError
from pg_dpml.reports import comparison_report
from pg_dpml.reports.html import comparison_html
from pg_dpml.runs.compare import MAJORITY, default_methods
from pg_dpml.tables.measuring import ValueCount
from pg_dpml.tables.stamp import OWNER_ONLY
from pg_dpml.training.job import Job
from pg_dpml.training.method import methods

pytestmark = pytest.mark.dealt

# The package's function of the same name hides the module.
SPLITS = importlib.import_module("pg_dpml.runs.splits")

N = 503
METHODS = ("bolt-on", "noiseless")


@pytest.fixture(scope="module", autouse=True)
def tables(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        create_people(connection, [*make_people(N - len(BAD_PEOPLE), seed=7), *BAD_PEOPLE])
        connection.execute("ALTER TABLE people ADD COLUMN family int")
        connection.execute("UPDATE people SET family = CASE WHEN id % 10 = 9 THEN NULL ELSE id % 70 END")
        connection.execute(
            "CREATE TABLE unlabelled AS SELECT id, age, gain, married, mood, town, height, pixels, "
            "'maybe'::text AS rich, 5.0::float8 AS price FROM people LIMIT 50"
        )


@pytest.fixture(autouse=True)
def nothing_is_left(connection: psycopg.Connection) -> Iterator[None]:
    """No test stores a model, charges, or leaves a table."""
    yield
    assert scalar(connection, "SELECT count(*) FROM dpml.models") == 0
    assert scalar(connection, "SELECT count(*) FROM dpml.ledger") == 0
    query = "SELECT count(*) FROM pg_class WHERE relnamespace = 'dpml_work'::regnamespace"
    assert scalar(connection, query) == 0


class Spy:
    """What a comparison keeps to itself: the portions of every split, and the models."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[Sequence[int]] = []
        self.portions: list[list[tuple[FloatArray, FloatArray]]] = []
        self.models: list[Any] = []
        pack_portions, run_method = SPLITS.pack_portions, SPLITS.run_method

        def spied_portions(
            session: Session, source: Source, sizes: Sequence[int], *, needs_order: bool
        ) -> list[Blocks]:
            dealt: list[Blocks] = pack_portions(session, source, sizes, needs_order=needs_order)
            self.sizes.append(sizes)
            self.portions.append([unpacked(session, portion.packed) for portion in dealt])
            return dealt

        def spied_run(job: Job) -> Any:
            seen = unpacked(job.blocks.session, job.blocks.packed)
            for found, dealt in zip(seen, self.portions[-1][0], strict=True):
                np.testing.assert_array_equal(found, dealt)  # earlier methods left the rows as they were
            result = run_method(job)
            self.models.append((len(self.portions) - 1, job.plan, result))
            return result

        monkeypatch.setattr(SPLITS, "pack_portions", spied_portions)
        monkeypatch.setattr(SPLITS, "run_method", spied_run)


def unpacked(session: Session, packed: PackedRows) -> tuple[FloatArray, FloatArray]:
    """Rows and labels of blocks, in order."""
    found = session.fetch(
        sql.SQL(
            "SELECT u.x, u.y FROM {} AS b, dpml.unpack(b.block) WITH ORDINALITY AS u(x, y, place) "
            "ORDER BY b.block_no, u.place"
        ).format(packed.blocks)
    )
    x, y = (np.array(part, np.float32).astype(np.float64) for part in zip(*found, strict=True))
    return x, y


def declared(portion: tuple[FloatArray, FloatArray]) -> tuple[FloatArray, FloatArray]:
    x, y = portion
    real = np.any(x != 0.0, axis=1) | (y != 0.0)
    return x[real], y[real]


def expected_figure(task: str, weights: FloatArray, portion: tuple[FloatArray, FloatArray]) -> float:
    x, y = declared(portion)
    scores = x @ weights.reshape(-1, x.shape[1]).T
    if task == "binary":
        return float(np.mean(np.where(scores[:, 0] > 0.0, 1.0, -1.0) == y))
    if task == "multiclass":
        return float(np.mean(np.argmax(scores, axis=1) == y))
    errors = np.minimum((scores[:, 0] - y) ** 2, 4.0)
    return 1.0 - float(errors.sum() / ((y - y.mean()) ** 2).sum())


@pytest.mark.parametrize("task", people.LABELS)
def test_figures_of_every_split(database: str, monkeypatch: pytest.MonkeyPatch, task: str) -> None:
    spy = Spy(monkeypatch)
    seen: list[tuple[str, int, int]] = []
    found = pg_dpml.compare(
        database,
        people.spec(task),
        methods=METHODS,
        epsilons=[50.0, 0.5],
        splits=2,
        owner=True,
        progress=lambda *given: seen.append(given),
    )
    assert (found.task, found.mode, found.splits, found.unit) == (task, "owner", 2, None)
    assert (found.n_train, found.n_test) == (N - N // 5, N // 5)
    assert found.delta == 1.0 / (N - N // 5) ** 2
    assert found.figure == ("r_squared" if task == "regression" else "accuracy")
    private, baselines = found.entries[:2], found.entries[2:]
    assert [(entry.method, entry.epsilon) for entry in private] == [("bolt-on", 0.5), ("bolt-on", 50.0)]
    assert [entry.epsilon for entry in baselines] == [None] * len(baselines)
    names = ["noiseless"] if task == "regression" else ["noiseless", MAJORITY]
    assert [entry.method for entry in baselines] == names
    assert seen == [("models", i, 6) for i in range(7)]

    for entry in found.entries[:3]:
        models = [
            (split, plan, result)
            for split, plan, result in spy.models
            if plan.method == entry.method
            and (plan.guarantee.epsilon if plan.guarantee is not None else None) == entry.epsilon
        ]
        figures = [expected_figure(task, result.weights, spy.portions[i][1]) for i, _, result in models]
        assert entry.values == pytest.approx(figures, abs=1e-9)
        assert entry.passes == np.mean([result.passes for _, _, result in models])
        assert entry.chosen == entry.method
        noise = models[0][1].noise
        assert entry.noise == (None if noise is None else noise.score_stddev)
        assert entry.seconds is not None
        assert entry.seconds > 0.0
    assert found.entries[2].mean is not None
    assert found.entries[2].mean > 0.7  # there is something to learn
    if task != "regression":
        for value, (trained, tested) in zip(found.entries[3].values, spy.portions, strict=True):
            classes, counts = np.unique(declared(trained)[1], return_counts=True)
            assert value == np.mean(declared(tested)[1] == classes[np.argmax(counts)])


def test_portions_are_disjoint_and_dealt_anew(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are told apart by their age."""
    spy = Spy(monkeypatch)
    data = people.spec(
        columns=(people.FEATURES[0],), norm="clip", where="id < 400", definition_is_public=True
    )
    found = pg_dpml.compare(database, data, methods=["bolt-on"], epsilons=[1.0], splits=3, public=True)
    assert spy.sizes == [(320, 80)] * 3
    assert (found.n_train, found.n_test) == (320, 80)
    deals = []
    for trained, tested in spy.portions:
        ages = [ages_of(x) for x, _ in (trained, tested)]
        assert [len(part) for part in ages] == [320, 80]
        assert len(ages[0] | ages[1]) == 400
        deals.append(ages[1])
    assert deals[0] != deals[1] != deals[2] != deals[0]


def ages_of(x: FloatArray) -> set[float]:
    return {round(float(age), 6) for age in x[:, 0] / x[:, 1]}


def test_units_stay_together(
    database: str, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    spy = Spy(monkeypatch)
    data = people.spec(
        columns=(people.FEATURES[0],),
        norm="clip",
        where="id < 400",
        definition_is_public=True,
        unit="family",
        max_rows_per_unit=4,
    )
    n_units = scalar(
        connection,
        "SELECT count(DISTINCT family) + count(*) FILTER (WHERE family IS NULL) FROM people WHERE id < 400",
    )
    found = pg_dpml.compare(database, data, methods=METHODS, epsilons=[1.0], splits=2, public=True)
    assert (found.n_test, found.n_train) == (n_units // 5, n_units - n_units // 5)
    assert found.unit == "family"
    rows = connection.execute("SELECT age / 50 - 1, family FROM people WHERE id < 400").fetchall()
    families = {round(float(np.float32(age)), 5): family for age, family in rows}
    for trained, tested in spy.portions:
        units = []
        for x, _ in (trained, tested):
            of_rows = [families[round(float(age), 5)] for age in x[:, 0] / x[:, 1]]
            known = [family for family in of_rows if family is not None]
            assert max(known.count(family) for family in known) <= 4
            units.append((set(known), of_rows.count(None)))
        assert not units[0][0] & units[1][0]
        assert [len(known) + alone for known, alone in units] == [found.n_train, found.n_test]


def test_a_method_that_refuses_is_named_with_its_reason(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the others run."""
    tiny = 1e-38  # below what the precision of the noise allows for
    found = pg_dpml.compare(
        database, people.spec(), methods=METHODS, epsilons=[1.0, 2.0], splits=1, delta=tiny, public=True
    )
    refused, ran, majority = found.entries  # one line, as every epsilon is refused for the same reason
    assert (refused.method, refused.epsilon, refused.values) == ("bolt-on", None, ())
    assert refused.refusal is not None
    assert "delta = 1e-38" in refused.refusal
    assert len(ran.values) == len(majority.values) == 1
    with pytest.raises(SpecError, match=r"methods: none of them runs here; bolt-on: delta = 1e-38"):
        pg_dpml.compare(database, people.spec(), methods=["bolt-on"], delta=tiny, public=True)


def test_what_auto_chooses_is_one_run(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At an epsilon that pays for no curves, with which the run of `auto` would be another."""
    spy = Spy(monkeypatch)
    asked = ("whitened-dp-gd", "auto", "dp-gd")
    found = pg_dpml.compare(database, people.spec(), methods=asked, epsilons=[0.1], splits=1, public=True)
    assert [entry.label for entry in found.entries] == ["auto (whitened-dp-gd)", "dp-gd", MAJORITY]
    assert [plan.method for _, plan, _ in spy.models] == ["whitened-dp-gd", "dp-gd"]
    spy.models.clear()
    chosen = pg_dpml.compare(
        database, people.spec(), methods=asked[:1], epsilons=[0.1], splits=1, public=True
    )
    assert [entry.label for entry in chosen.entries] == ["whitened-dp-gd", MAJORITY]


def test_the_minimiser_alone_stands_for_no_privacy_by_default() -> None:
    not_private = [method for method in default_methods() if not methods()[method].private]
    assert not_private == ["lbfgs"]


@pytest.mark.parametrize("task", people.LABELS)
def test_rows_left_out_of_the_figures_are_told(
    database: str, connection: psycopg.Connection, task: str
) -> None:
    column = people.LABELS[task].column
    connection.execute("CREATE TABLE odd AS SELECT * FROM people")
    other = {"binary": "'Yes.'", "multiclass": "9", "regression": "'NaN'"}[task]
    connection.execute(f"UPDATE odd SET {column} = {other} WHERE id < 60".encode())
    connection.execute(f"UPDATE odd SET {column} = NULL WHERE id BETWEEN 60 AND 89".encode())
    found = pg_dpml.compare(database, people.spec(task, "odd"), methods=["noiseless"], splits=1, public=True)
    assert found.left_out is not None
    assert found.left_out.nulls >= 30
    assert found.left_out.undeclared_values[0] == ValueCount(
        other.strip("'"), found.left_out.undeclared_values[0].rows
    )
    assert found.left_out.undeclared_values[0].rows >= 60
    assert found.left_out.empty_classes == ()
    words = f"{found.left_out.nulls} whose label is NULL and {found.left_out.undeclared} whose label is not"
    assert words in " ".join(comparison_report.comparison_text(found).split())
    assert words in comparison_html(found)
    assert comparison_report.comparison_record(found)["left_out"]["nulls"] == found.left_out.nulls
    connection.execute("DROP TABLE odd")


@pytest.mark.parametrize("modes", [{}, {"public": True, "owner": True}])
def test_exactly_one_mode(database: str, modes: dict[str, Any]) -> None:
    with pytest.raises(GuaranteeError, match=r"exactly one of: --public .* --owner"):
        pg_dpml.compare(database, people.spec(), **modes)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"methods": []}, "methods must be a list of at least one"),
        ({"methods": "bolt-on"}, "methods must be a list"),
        ({"methods": ["bolt-on", "bolt-on"]}, "methods must be different, and bolt-on only once"),
        ({"methods": ["bolt-on", "magic"]}, "methods must be of auto, .* not 'magic'"),
        ({"epsilons": []}, "epsilons must be a list of at least one"),
        ({"epsilons": [1.0, 1]}, "epsilons must be different"),
        ({"epsilons": [0.0]}, r"epsilon must be in \[1e-12, 100\]"),
        ({"delta": 1.0}, r"delta must be in \[0, 1\)"),
        ({"splits": 0}, "splits must be a whole number from 1 to 1000"),
        ({"splits": 1001}, "splits must be"),
        ({"splits": True}, "splits must be"),
    ],
)
def test_bad_arguments_are_named(database: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        pg_dpml.compare(database, people.spec(), public=True, **options)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (people.spec(where="id < 4", definition_is_public=True), "table people has 4 rows .* takes 5"),
        (people.spec(table="unlabelled"), "label rich: no row of a test portion has a declared value"),
        (people.spec("regression", table="unlabelled"), "label price has a single value in a test portion"),
    ],
    ids=["few", "unlabelled", "constant"],
)
def test_tables_without_figures(database: str, data: DataSpec, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        pg_dpml.compare(database, data, methods=["noiseless"], splits=1, owner=True)


@pytest.mark.parametrize("task", ["binary", "regression"])
def test_what_is_said_of_private_rows_is_stamped(database: str, task: str) -> None:
    data = people.spec(task, table="unlabelled")
    for owner in (True, False):
        with pytest.raises(SpecError, match="a test portion") as refusal:
            pg_dpml.compare(database, data, methods=["noiseless"], splits=1, owner=owner, public=not owner)
        assert (OWNER_ONLY in str(refusal.value)) == owner


def test_server_errors_on_private_rows_quote_none(database: str, connection: psycopg.Connection) -> None:
    connection.execute("CREATE VIEW poisoned AS SELECT *, town::int AS code FROM people")
    data = people.spec(table="poisoned", definition_is_public=True)
    data = replace(data, columns=(*data.columns, pg_dpml.Column("code", lower=0, upper=1)))
    try:
        with pytest.raises(RunFailedError, match="nothing was charged or stored") as failure:
            pg_dpml.compare(database, data, methods=["bolt-on"], splits=1, owner=True)
        for word in ("Aix", "Bonn", "Cork", "integer"):
            assert word not in str(failure.value)
        assert failure.value.__context__ is None
        with pytest.raises(DpmlError, match="invalid input syntax"):
            pg_dpml.compare(database, data, methods=["bolt-on"], splits=1, public=True)
    finally:
        connection.execute("DROP VIEW poisoned")


@pytest.mark.one_major
def test_our_own_errors_on_private_rows_quote_none(
    database: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> None:
        raise ValueError("SECRET")

    monkeypatch.setattr(SPLITS, "run_method", fail)
    with pytest.raises(RunFailedError, match="failed in dpml, not on the server, and nothing was") as failure:
        pg_dpml.compare(database, people.spec(), methods=["bolt-on"], splits=1, owner=True)
    assert "the comparison failed by a ValueError at compare.py:" in caplog.text
    assert "SECRET" not in caplog.text + str(failure.value)
    assert failure.value.__context__ is None


def test_interrupted(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def interrupt(job: Job) -> Any:
        calls.append(job)
        raise KeyboardInterrupt

    monkeypatch.setattr(SPLITS, "run_method", interrupt)
    with pytest.raises(KeyboardInterrupt):
        pg_dpml.compare(database, people.spec(), methods=["bolt-on"], owner=True)
    assert len(calls) == 1


# The command


@pytest.fixture
def spec_file(tmp_path: Path) -> Path:
    path = tmp_path / "people.toml"
    path.write_text(
        'table = "people"\n[label]\ncolumn = "rich"\npositive = "yes"\n'
        "[columns.age]\nlower = 0\nupper = 100\n",
        encoding="utf-8",
    )
    return path


def run(database: str, spec: Path, *arguments: str) -> Result:
    given = ["compare", str(spec), "--dsn", database, "--methods", "bolt-on,noiseless", *arguments]
    return CliRunner().invoke(cli.app, given)


@pytest.mark.one_major
@pytest.mark.parametrize("suffix", ["png", "svg", "pdf", "html"])
def test_command(database: str, spec_file: Path, tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"plot.{suffix}"
    options = ("--epsilons", "0.1, 1", "--splits", "2", "--relation", "add_remove", "-o", str(file))
    result = run(database, spec_file, "--owner", *options)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("NOT PRIVATE")
    assert "add_remove" in result.stdout
    content = file.read_bytes()
    assert content.startswith(
        {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF", "html": b"<!DOCTYPE"}[suffix]
    )
    if suffix == "html":
        assert b"NOT PRIVATE" in content


@pytest.mark.one_major
def test_command_json(database: str, spec_file: Path) -> None:
    result = run(database, spec_file, "--public", "--splits", "2", "--format", "json", "--delta", "1e-6")
    record = json.loads(result.stdout)
    assert record["delta"] == 1e-6
    found = [(line["method"], line["epsilon"], line["runs"]) for line in record["results"]]
    private = [("bolt-on", epsilon, 2) for epsilon in (0.01, 0.1, 1.0)]
    assert found == [*private, ("noiseless", None, 2), (MAJORITY, None, 2)]
    assert record["relation"] == Relation.REPLACE_ONE.value
    assert "not_private" not in record


@pytest.mark.one_major
@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ((), 5, "--public"),
        (("--public", "--owner"), 5, "exactly one"),
        (("--public", "--epsilons", "much"), 2, "--epsilons must be numbers separated by commas, not much"),
        (("--public", "--splits", "0"), 2, "splits must be"),
        (("--public", "-o", "plot.gif"), 2, "--output must end in .png, .svg, .pdf or .html, not plot.gif"),
        (("--public", "--splits", "-1"), 2, "splits must be a whole number from 1 to 1000"),
        (("--public", "--methods", "bolt-on,bolton"), 2, "methods must be of auto, "),
        (("--public", "--epsilons", "0.1,0"), 2, "epsilon must be in [1e-12, 100]"),
        (("--public", "--epsilons", "0.1,inf"), 2, "epsilon must be finite"),
        (("--public", "--epsilons", "nan"), 2, "epsilon must be finite"),
        (("--public", "--epsilons", ","), 2, "epsilons must be a list of at least one"),
        (("--public", "-o", "/nonexistent/plot.png"), 2, "--output: there is no folder /nonexistent"),
    ],
)
def test_command_refuses(
    monkeypatch: pytest.MonkeyPatch,
    database: str,
    spec_file: Path,
    arguments: tuple[str, ...],
    code: int,
    words: str,
) -> None:
    """Before anything is trained."""
    monkeypatch.setattr(SPLITS, "run_method", lambda job: pytest.fail("a model was trained"))
    result = run(database, spec_file, *arguments)
    assert result.exit_code == code
    assert words in result.stderr
