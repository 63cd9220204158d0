# SPDX-License-Identifier: PostgreSQL
"""Curves and crosses from the spec to the prediction: encoder, oracle, SQL expression and messages agree."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest
from psycopg.types.json import Jsonb
from typer.testing import CliRunner

import pg_dpml
from helpers import oracles
from helpers.anytable import PRIVACY, YES, refused
from helpers.sqltools import scalar
from pg_dpml.blocks.source import resolve
from pg_dpml.cli.framework import app
from pg_dpml.database.catalog import look_up_table
from pg_dpml.database.database import Database
from pg_dpml.database.session import sql
from pg_dpml.errors import SpecError
from pg_dpml.ledger.models import Model, load_model
from pg_dpml.reports.effects import POINTS, Effect, effects
from pg_dpml.reports.model_report import model_record, model_text
from pg_dpml.reports.sql_expression import sql_expression
from pg_dpml.runs.grid import Grid
from pg_dpml.spec.columns import Column, Label
from pg_dpml.spec.data import DataSpec
from pg_dpml.spec.privacy import PrivacySpec
from pg_dpml.training.spec import TrainSpec

pytestmark = pytest.mark.dealt

N = 300
TOWNS = ("Aix", "Bonn", "it's")
COLUMNS = (
    Column("age", lower=17, upper=90, knots=4),
    Column("gain", lower=0, upper=1000, log1p=True, scale="zero_based", knots=(0, 3, 50, 1000)),
    Column("day", lower=date(2019, 12, 27), upper=date(2020, 2, 5), knots=2),
    Column("height", scale="standard", mean=170, sd=10, lower=100, upper=220, knots=(150, 190)),
    Column("town", levels=TOWNS),
    Column("ok", levels=("true", "false"), centered=False),
    Column("plain", lower=-1, upper=1),
)
CROSSES = (("age", "town"), ("gain", "age"), ("ok", "town"), ("day", "ok"))
N_FEATURES = (1 + 5) + (1 + 4) + (1 + 3) + (1 + 2) + 3 + 2 + 1 + (15 + 20 + 6 + 6) + 1
LABELS = {
    "binary": YES,
    "multiclass": Label("town", classes=TOWNS),
    "regression": Label("plain", lower=-1, upper=1),
}

ODD = (
    (None, None, None, None, None, None, None),
    (math.nan, 0.0, "infinity", "NaN", "Aix", True, math.nan),
    (math.inf, math.inf, "-infinity", "Infinity", "Rome", False, math.inf),
    (-math.inf, -5.0, "1900-01-01", "-Infinity", "it's", None, -math.inf),
    (17.0, 3.0, "2019-12-27", "150", "Bonn", True, 0.0),
    (35.25, 50.0, "2020-01-16", "190", None, True, 1.0),
    (90.0, 1000.0, "2020-02-05", "220", "Aix", False, -1.0),
    (1e300, 1e300, "2020-02-06", "1e300", "Aix", False, 2.0),
    (math.nextafter(17, 18), 1e-300, "2020-01-15", "149.99999", "Bonn", False, 0.5),
)
"""Values at knots and bounds, beside and beyond them, and none."""


@pytest.fixture(scope="module", autouse=True)
def bent(database: str) -> None:
    draw = np.random.default_rng(3)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE bent (id int, age float8, gain float8, day date, height numeric, town text, "
            "ok bool, plain float8, y bool)"
        )
        with connection.cursor() as cursor, cursor.copy("COPY bent FROM STDIN") as copy:
            for row in range(N):
                values: Sequence[Any] = (
                    draw.uniform(10, 95),
                    draw.exponential(50),
                    date.fromordinal(date(2019, 12, 20).toordinal() + int(draw.integers(60))),
                    round(draw.normal(170, 20), 2),
                    TOWNS[draw.integers(3)],
                    bool(draw.integers(2)),
                    draw.uniform(-1, 1),
                )
                values = ODD[row] if row < len(ODD) else values
                copy.write_row((row, *values, bool(draw.integers(2))))


def spec(task: str = "binary", **changes: Any) -> DataSpec:
    """The data spec of a task; a column to predict is no feature, nor are its crosses."""
    label = LABELS[task]
    columns = tuple(column for column in COLUMNS if column.name != label.column)
    crosses = tuple(pair for pair in CROSSES if label.column not in pair)
    given: dict[str, Any] = {"table": "bent", "label": label, "columns": columns, "crosses": crosses}
    return DataSpec(**(given | changes))


def trained(database: str, data: DataSpec, training: TrainSpec) -> Model:
    private = training.method not in ("lbfgs", "noiseless")
    pg_dpml.train(database, data, PRIVACY if private else None, training, name="bent")
    with Database(database).session() as session:
        return load_model(session, "bent")


def rows_for_the_oracle(connection: psycopg.Connection, names: Sequence[str]) -> list[list[Any]]:
    """The table's values, dates as numbers of days and booleans as levels."""
    read = {
        "day": "CASE WHEN isfinite(day) THEN day - DATE '2000-01-01' "
        "ELSE extract(epoch FROM day)::float8 END",
        "ok": "ok::text",
        "height": "height::float8",
    }
    listed = ", ".join(read.get(name, name) for name in names)
    return [list(row) for row in connection.execute(f"SELECT {listed} FROM bent ORDER BY id".encode())]


def expected(encoder: dict[str, Any], rows: Sequence[Sequence[Any]]) -> Any:
    return np.array([oracles.bound_norm(oracles.encode(encoder, row), encoder["norm"]) for row in rows])


@pytest.mark.parametrize("norm", ["normalize", "clip"])
def test_rows_are_those_of_the_oracle(
    connection: psycopg.Connection, database: str, clean: None, norm: str
) -> None:
    """Sparse and dense; every value of a row has an encoding."""
    model = trained(database, spec(norm=norm), TrainSpec("noiseless", passes=1))
    encoder = dict(model.encoder)
    assert model.n_features == N_FEATURES
    assert encoder["format"] == "csr"
    assert encoder["crosses"] == [list(pair) for pair in CROSSES]
    wanted = expected(encoder, rows_for_the_oracle(connection, [c["name"] for c in encoder["columns"]]))
    for form in ("csr", "dense"):
        query = "SELECT u.x::float8[] FROM bent t, dpml.unpack(dpml.encode(%s, t)) u ORDER BY t.id"
        found = connection.execute(query.encode(), (Jsonb({**encoder, "format": form}),)).fetchall()
        # Features are rounded to float32.
        np.testing.assert_allclose(np.array([row[0] for row in found]), wanted, atol=2e-6)


METHODS = [
    ("binary", TrainSpec("lbfgs")),
    ("multiclass", TrainSpec("lbfgs")),
    ("regression", TrainSpec("lbfgs")),
    ("binary", TrainSpec("whitened-dp-gd")),
    ("binary", TrainSpec("frank-wolfe", passes=8)),
]


@pytest.mark.parametrize(("task", "training"), METHODS, ids=lambda value: getattr(value, "method", value))
def test_sql_expression_and_predict_agree(
    connection: psycopg.Connection, database: str, clean: None, task: str, training: TrainSpec
) -> None:
    model = trained(database, spec(task), training)
    with Database(database).session() as session:
        types = look_up_table(session, "bent").columns
    expression: Any = sql_expression(model, types, "value")
    query = sql.SQL("SELECT {}, dpml.predict_value('bent', t) FROM bent AS t").format(sql.SQL(expression))
    theirs, ours = np.array(connection.execute(query).fetchall(), dtype=np.float64).T
    assert np.ptp(ours) > 0
    np.testing.assert_allclose(theirs, ours, rtol=1e-6, atol=1e-6)


def test_the_json_predicts_elsewhere(connection: psycopg.Connection, database: str, clean: None) -> None:
    """Nothing but the record of a model and the test suite's own encoder."""
    model = trained(database, spec(), TrainSpec("lbfgs"))
    record = json.loads(json.dumps(model_record(model)))
    rows = rows_for_the_oracle(connection, [c["name"] for c in record["encoder"]["columns"]])
    scores = expected(record["encoder"], rows) @ np.array(record["weights"][0])
    wanted = connection.execute("SELECT dpml.predict_value('bent', t) FROM bent t ORDER BY id").fetchall()
    np.testing.assert_allclose(scores, [row[0] for row in wanted], atol=1e-5)
    assert len(record["features"]) == N_FEATURES
    assert {"age", "age@35.25", "gain@3", "age@17 * town=it's", "gain@50 * age@90"} < set(record["features"])
    assert "age@" in model_text(model)
    assert record["training"]["dates"] == {"day": "date"}


PLAIN = tuple(replace(column, knots=None) for column in COLUMNS)
"""The columns without their knots."""


def curves_of(encoder: Mapping[str, Any]) -> dict[str, int]:
    """The columns of an encoder that have knots, and how many pieces."""
    return {column["name"]: len(column["knots"]) - 1 for column in encoder["columns"] if column.get("knots")}


def test_auto_chooses_curves_and_says_so(connection: psycopg.Connection, database: str, clean: None) -> None:
    """What the plan says is what is trained, and predictions are those of the oracle's rows."""
    data, generous = spec(columns=PLAIN, crosses=()), PrivacySpec(5.0, 1e-3)
    decided = pg_dpml.plan(database, data, generous)
    pieces = decided.encoder_change.pieces
    assert 2 <= pieces <= 12
    numeric = [column.name for column in PLAIN if column.levels is None]
    made = pg_dpml.train(database, data, generous, name="bent")
    model = made.model
    assert made.plan == decided
    assert curves_of(model.encoder) == dict.fromkeys(numeric, pieces)
    given = tuple(replace(c, knots=pieces) if c.name in numeric else c for c in PLAIN)
    with Database(database).session() as session:
        source = resolve(session, replace(data, columns=given))
        assert dict(model.encoder) == dict(source.encoder)
        assert model.n_features == source.n_features == decided.problem.n_features
    rows = rows_for_the_oracle(connection, [column["name"] for column in model.encoder["columns"]])
    weights = scalar(connection, "SELECT weights FROM dpml.models WHERE name = 'bent'")
    predicted = connection.execute("SELECT dpml.predict_value('bent', t) FROM bent t ORDER BY id").fetchall()
    features = expected(dict(model.encoder), rows)
    assert model.whitening is not None
    lengths = np.linalg.norm(features @ np.array(model.whitening), axis=1)
    wanted = features @ np.array(weights) / np.where(lengths > 0.0, lengths, 1.0)
    np.testing.assert_allclose([row[0] for row in predicted], wanted, atol=1e-4)
    linear = pg_dpml.train(database, data, generous, TrainSpec(features="linear"), name="straight").model
    assert curves_of(linear.encoder) == {}
    own = replace(data, columns=(COLUMNS[0], *PLAIN[1:]))  # a column's own knots stay
    mixed = pg_dpml.train(database, own, generous, name="mixed").model
    assert curves_of(mixed.encoder)["age"] == 4
    assert len(curves_of(mixed.encoder)) == len(numeric)


def test_curves_that_auto_chooses_with_other_methods_beside_it(database: str, clean: None) -> None:
    """A comparison packs rows both ways; a tuning run packs them once, so that no candidate has curves."""
    data = spec(columns=PLAIN, crosses=())
    compared = pg_dpml.compare(
        database, data, methods=["auto", "whitened-dp-gd"], epsilons=[5.0], delta=1e-3, splits=2, public=True
    )
    assert [entry.method for entry in compared.entries] == ["auto", "whitened-dp-gd", "majority class"]
    assert all(len(entry.values) == 2 for entry in compared.entries)
    grid = Grid({"method": ["auto", "bolt-on"]})
    tuned = pg_dpml.tune(database, data, PrivacySpec(50.0, 1e-3), grid, name="tuned")
    assert curves_of(tuned.trained.model.encoder) == {}
    grid = Grid({"huber_h": [0.1, 0.5]}, TrainSpec(loss="huber_svm"))
    tuned = pg_dpml.tune(database, data, PrivacySpec(50.0, 1e-3), grid, name="alike")
    assert curves_of(tuned.trained.model.encoder) != {}
    with pytest.raises(SpecError, match="features cannot be tuned here"):
        pg_dpml.tune(
            database, data, PrivacySpec(50.0, 1e-3), Grid({"features": ["auto", "linear"]}), name="none"
        )


@pytest.mark.parametrize("method", ["lbfgs", "whitened-dp-gd", "dp-gd"])
def test_curves_drawn_from_the_weights_are_what_the_server_predicts(
    connection: psycopg.Connection, database: str, clean: None, method: str
) -> None:
    """For rows that give one column alone, or the two of a cross: a score times what divided it."""
    model = trained(database, spec(), TrainSpec(method))
    found = {effect.columns: effect for effect in effects(model)}
    assert [found[name,].dates for name in ("age", "day", "ok")] == [(None,), ("date",), (None,)]
    assert found["day", "ok"].dates == ("date", None)
    assert list(found) == [*((column.name,) for column in COLUMNS), *CROSSES]
    connection.execute(
        "CREATE TEMP TABLE points (n serial, age float8, gain float8, day float8, height float8, town text, "
        "ok text, plain float8)"
    )
    wanted: list[float] = []
    with (
        connection.cursor() as cursor,
        cursor.copy("COPY points (age, gain, day, height, town, ok, plain) FROM STDIN") as copy,
    ):
        for columns, effect in found.items():
            values, noise = effect.values[0], effect.noise
            assert noise is None if method == "lbfgs" else (noise is not None and noise.min() >= 0.0)
            for place in np.ndindex(values.shape):
                given = {name: axis[i] for name, axis, i in zip(columns, effect.axes, place, strict=True)}
                copy.write_row([given.get(column.name) for column in COLUMNS])
                alone = sum(at(found[(name,)], given[name]) for name in columns) if len(columns) > 1 else 0.0
                wanted.append(float(values[place]) + alone)
    assert len(wanted) >= 5 * POINTS
    rows = connection.execute(
        "SELECT dpml.predict_value('bent', t), u.x::float8[] FROM points t, "
        "dpml.unpack(dpml.encode(%s, t)) u ORDER BY t.n",
        (Jsonb({**model.encoder, "label": None}),),
    ).fetchall()
    connection.execute("DROP TABLE points")
    x = np.array([row[1] for row in rows])
    divided = 1.0 if model.whitening is None else np.linalg.norm(x @ model.whitening.T, axis=1)
    # The intercept's feature is 1 before the row is brought to its norm.
    scores = np.array([row[0] for row in rows]) * divided / x[:, -1] - model.matrix[0, -1]
    np.testing.assert_allclose(scores, wanted, atol=1e-5 * np.abs(model.matrix).max())


def at(effect: Effect, value: Any) -> float:
    """A curve or bars at one of the values that they are drawn at."""
    (axis,) = effect.axes
    if isinstance(axis, np.ndarray):
        return float(effect.values[0][np.argmin(np.abs(axis - value))])
    return float(effect.values[0][list(axis).index(value)])


@pytest.mark.one_major
def test_a_projected_model_has_no_curves(database: str, clean: None) -> None:
    model = trained(database, spec(projection=3), TrainSpec("noiseless", passes=1))
    with pytest.raises(pg_dpml.SpecError, match="model bent projects its features"):
        effects(model)


def numeric(**more: Any) -> dict[str, Any]:
    return {"name": "age", "kind": "numeric", "lower": 0, "upper": 9} | more


TOWN: dict[str, Any] = {"name": "town", "kind": "category", "levels": list(TOWNS)}
CURVE = numeric(knots=[0, 4.5, 9])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"columns": [numeric(knots=8)]}, '"knots" in column "age" must be an array of at least 2 rising'),
        ({"columns": [numeric(knots=[1])]}, "at least 2 rising numbers"),
        ({"columns": [numeric(knots=[1, "b"])]}, "at least 2 rising numbers"),
        ({"columns": [numeric(knots=[1, 1])]}, "at least 2 rising numbers"),
        ({"columns": [numeric(knots=[3, 2])]}, "at least 2 rising numbers"),
        ({"columns": [numeric(knots=[-1, 2])]}, 'between "lower" and "upper"'),
        ({"columns": [numeric(knots=[1, 10])]}, 'between "lower" and "upper"'),
        ({"columns": [numeric(upper=1e18, log1p=True, knots=[1e17, 1e17 + 16])]}, "rising numbers"),
        (
            {"columns": [{"name": "age", "kind": "numeric", "scale": "standard", "mean": 0, "sd": 1,
                "knots": [0, 1]}]},
            'must be with "lower" and "upper"',
        ),
        ({"columns": [TOWN | {"knots": [0, 1]}]}, 'unknown key "knots" in column "town"'),
        ({"columns": [CURVE, TOWN], "crosses": "age"}, "an array of pairs of different columns"),
        ({"columns": [CURVE, TOWN], "crosses": ["age", "town"]}, "an array of pairs"),
        ({"columns": [CURVE, TOWN], "crosses": [["age"]]}, "an array of pairs"),
        ({"columns": [CURVE, TOWN], "crosses": [["age", 3]]}, "an array of pairs"),
        ({"columns": [CURVE, TOWN], "crosses": [["age", "age"]]}, "pairs of different columns"),
        ({"columns": [CURVE, TOWN], "crosses": [["age", "tow"]]}, 'column "tow", which is none of "columns"'),
        ({"columns": [numeric(), TOWN], "crosses": [["age", "town"]]}, 'column "age" has neither levels nor'),
        (
            {"columns": [numeric(upper=1e9, knots=list(range(1100))), numeric(name="b", upper=1e9,
                knots=list(range(1100)))], "crosses": [["age", "b"]]},
            "the specification has 1212203 features",
        ),
    ],
)  # fmt: skip
def test_specifications_that_are_refused(
    connection: psycopg.Connection, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(psycopg.Error, match=message):
        connection.execute("SELECT dpml.encode(%s, r) FROM bent r", (Jsonb(given),))


def test_a_specification_without_them_is_as_ever(connection: psycopg.Connection) -> None:
    """As a model has it that was stored before there were knots and crosses."""
    query = "SELECT dpml.encode(%s, r) FROM (SELECT 3.5::float8 AS age, 'Aix' AS town) r"
    plain = {"columns": [numeric(), TOWN]}
    bare = {"columns": [numeric(knots=None), TOWN], "crosses": None}
    empty = {"columns": [numeric(), TOWN], "crosses": []}
    found = [scalar(connection, query, Jsonb(one)) for one in (plain, bare, empty)]
    assert found[0] == found[1] == found[2]


@pytest.mark.one_major
def test_specs_are_refused_before_the_charge(connection: psycopg.Connection, clean: None) -> None:
    age, plain = COLUMNS[0], COLUMNS[6]
    for columns, crosses, message in (
        ((age, plain), (("age", "plain"),), "column plain has neither levels nor knots: give it knots"),
        ((age, Column("ok")), (("age", "ok"),), r"column ok has neither.*levels = \[false, true\]"),
        ((age, Column("ok", lower=0, upper=1, knots=2)), (), "column ok: knots belong to a number or a date"),
        ((Column("age", lower=0, upper=1e9, log1p=True, knots=(1e8, 1e8 + 1e-8)),), (), "close together"),
        ((age, Column("day", lower=0, upper=1, knots=2)), (), "column day: lower must be a date"),
    ):
        refused(connection, DataSpec("bent", YES, columns, crosses=crosses), message)


@pytest.mark.one_major
def test_default_knots(connection: psycopg.Connection, database: str, clean: None) -> None:
    """Types of the catalog say which columns take them; what is declared is not for auto to choose."""
    connection.execute("CREATE TYPE mood AS ENUM ('low', 'high')")
    connection.execute(
        "CREATE TABLE kinds (age real, few int, day date, flag bool, mood mood, town text, many real[], "
        "line real, own real, y bool)"
    )
    connection.execute("INSERT INTO kinds SELECT random(), 1 FROM generate_series(1, 1000)")
    data = DataSpec.from_text(KINDS, "kinds")
    generous = PrivacySpec(50.0, 1e-3)
    try:
        for name, training in (
            ("a", TrainSpec()),
            ("b", TrainSpec(features="linear")),
            ("c", TrainSpec("dp-gd")),
        ):
            model = pg_dpml.train(database, data, generous, training, name=name).model
            assert curves_of(model.encoder) == {"age": 4, "few": 2, "day": 4, "own": 3}
        plan = pg_dpml.plan(database, replace(data, knots=None), generous)
        assert plan.encoder_change.pieces > 1
        assert "3 numeric columns" in plan.reason  # age, few and day
        with Database(database).session() as session:
            assert curves_of(resolve(session, replace(data, knots=0)).encoder) == {"own": 3}
            assert resolve(session, replace(data, knots=0)).most_pieces == (0,) * 9
            crossed = resolve(session, replace(data, crosses=(("age", "mood"),)))
            assert "age@0 * mood=low" in list(crossed.feature_names)
            with pytest.raises(SpecError, match="column line has neither levels nor knots: give it knots"):
                resolve(session, replace(data, crosses=(("line", "mood"),)))
    finally:
        connection.execute("DROP TABLE kinds")
        connection.execute("DROP TYPE mood")


@pytest.mark.one_major
def test_names_of_crosses_are_read_as_sql_reads_them(
    connection: psycopg.Connection, database: str, clean: None
) -> None:
    columns = (Column("AGE", lower=17, upper=90, knots=2), Column("Town", levels=TOWNS))
    model = trained(
        database,
        DataSpec("bent", YES, columns, crosses=(("AGE", "Town"),)),
        TrainSpec("noiseless", passes=1),
    )
    assert model.encoder["crosses"] == [["age", "town"]]


KINDS = """
table = "kinds"
label = {column = "y", positive = true}
[defaults]
lower = 0
upper = 1
knots = 4
[columns]
age = {}
few = {upper = 2}
day = {lower = 2020-01-01, upper = 2021-01-01}
flag = {}
mood = {}
town = {levels = ["Aix", "Bonn"]}
many = {length = 2}
line = {knots = 0}
own = {knots = 3}
"""

SPEC = """
table = "bent"
crosses = [["age", "town"]]

[label]
column = "y"
positive = true

[columns.age]
lower = 17
upper = 90
knots = 4

[columns.town]
levels = ["Aix", "Bonn", "it's"]
"""


@pytest.mark.one_major
def test_commands(database: str, clean: None, tmp_path: Path) -> None:
    def dpml(*arguments: str) -> str:
        done = CliRunner().invoke(app, [*arguments, "--dsn", database])
        assert done.exit_code == 0, done.stderr
        return done.stdout

    file = tmp_path / "bent.toml"
    file.write_text(SPEC, encoding="utf-8")
    assert "below the bounds" in dpml("check", str(file))
    assert "25 features" in dpml("plan", str(file), "--epsilon", "5")
    dpml("train", str(file), "--epsilon", "5", "--name", "m")
    shown = dpml("show", "m")
    assert "age@" in shown
    assert re.search(r"\n  age  +[+-][0-9.]+  +[+-][0-9.]+  +[0-9.]+ .* 17 [▁-█]{20} 90\n", shown)
    report = tmp_path / "m.html"
    dpml("report", "m", "-o", str(report))
    page = report.read_text(encoding="utf-8")
    for words in (
        "age * town",
        "@35.25",
        "linear",
        "<h2>Curves</h2>",
        "standard deviation of the noise on both",
    ):
        assert words in page
    assert page.count("data:image/png") == 2
    for name, begins in (("m.png", b"\x89PNG"), ("m.svg", b"<?xml"), ("m.pdf", b"%PDF")):
        assert name in dpml("plot", "m", "-o", str(tmp_path / name))
        assert (tmp_path / name).read_bytes().startswith(begins)
    refusal = CliRunner().invoke(app, ["plot", "m", "-o", str(tmp_path / "m.txt"), "--dsn", database])
    assert (refusal.exit_code, "must end in .png, .svg or .pdf" in refusal.stderr) == (2, True)
    assert "crosses" in dpml("export", "m")
    assert "knots = 8" in dpml("inspect", "bent", "--label", "y")
