# SPDX-License-Identifier: PostgreSQL
"""Curves and crosses: places of knots, names of features, what is refused, and effects as text."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import date, datetime, timezone
from typing import Any

import numpy as np
import pytest

from pg_dpml.blocks.encoder import curved, encode_column, most_pieces, require_crossed, with_knots
from pg_dpml.blocks.features import FeatureNames, stored_values
from pg_dpml.database.columns import ColumnType
from pg_dpml.errors import SpecError
from pg_dpml.ledger.models import Model
from pg_dpml.reports import plots
from pg_dpml.reports.html import model_html
from pg_dpml.reports.model_report import model_text
from pg_dpml.spec.columns import Column
from pg_dpml.spec.data import DataSpec

REAL = ColumnType("real", "number")


def places(knots: Any, type_: ColumnType = REAL, **more: Any) -> Any:
    """The knots of a column as the encoder has them."""
    return encode_column(Column("age", knots=knots, **more), {"age": type_})["knots"]


def test_places_of_knots() -> None:
    """Equal pieces, after log1p where the column has it; the bounds are the first and the last knot."""
    assert places(4, lower=10, upper=20) == [10.0, 12.5, 15.0, 17.5, 20.0]
    assert places(1, lower=-3, upper=7, scale="standard", mean=0, sd=1) == [-3.0, 7.0]
    found = places(8, lower=0, upper=99999, log1p=True)
    assert (found[0], found[-1]) == (0.0, 99999.0)
    np.testing.assert_allclose(np.diff(np.log1p(found)), math.log1p(99999) / 8, rtol=1e-12)
    assert places([1, 3, 7.5], lower=0, upper=10, log1p=True) == [1.0, 3.0, 7.5]
    assert places(2, lower=-1.7e308, upper=1.7e308) == [-1.7e308, 0.0, 1.7e308]


def test_places_of_knots_of_dates() -> None:
    """In days, or in seconds, as the column counts."""
    ends = {"lower": date(2000, 1, 1), "upper": date(2000, 1, 11)}
    assert places(2, ColumnType("date", "date"), **ends) == [0.0, 5.0, 10.0]
    assert places([date(2000, 1, 2), date(2000, 1, 11)], ColumnType("date", "date"), **ends) == [1.0, 10.0]
    hours = [datetime(2000, 1, 1, 12), datetime(2000, 1, 2)]
    assert places(hours, ColumnType("timestamp", "timestamp"), **ends) == [43200.0, 86400.0]
    zoned = [date(2000, 1, 1), datetime(2000, 1, 2, tzinfo=timezone.utc)]
    with pytest.raises(SpecError, match=r"column age: knots must be without a time zone"):
        places(zoned, ColumnType("timestamp", "timestamp"), **ends)


def test_knots_that_cannot_be() -> None:
    for type_ in ("text", "boolean", "array", "enum", "sparse", "other"):
        with pytest.raises(SpecError, match="column age: knots belong to a number or a date"):
            places(2, ColumnType("the type", type_), lower=0, upper=1)
    for knots, ends in ((3, (1.0, math.nextafter(1.0, 2.0))), ([1e17, 1e17 + 16], (0, 1e18))):
        with pytest.raises(SpecError, match="close together"):
            places(knots, lower=ends[0], upper=ends[1], log1p=True)


WHOLE = ColumnType("integer", "number", whole=True, base="int4")


@pytest.mark.parametrize(
    ("column", "type_", "most"),
    [
        (Column("age", lower=0, upper=10), REAL, 12),
        (Column("age", lower=0, upper=10), WHOLE, 10),
        (Column("age", lower=0.5, upper=3.5), WHOLE, 2),
        (Column("age", lower=0, upper=1), WHOLE, 0),
        (Column("age", lower=0, upper=1000, log1p=True), WHOLE, 12),
        (Column("age", lower=0, upper=10, knots=2), REAL, 0),
        (Column("age", lower=0, upper=10, knots=0), REAL, 0),
        (Column("age", levels=("1", "2", "3")), WHOLE, 0),
        (Column("age"), ColumnType("boolean", "boolean"), 0),
        (Column("age", scale="standard", mean=5, sd=2), REAL, 0),
        (Column("age", scale="standard", mean=5, sd=2, lower=0, upper=10), REAL, 12),
        (Column("age", lower=0, upper=1, length=3), ColumnType("real[]", "array", "number"), 0),
        (Column("age", lower=date(2000, 1, 1), upper=date(2001, 1, 1)), ColumnType("date", "date"), 12),
        (Column("age", lower=1.0, upper=math.nextafter(1.0, 2.0)), REAL, 0),
    ],
)
def test_most_pieces_of_a_curve_that_a_method_may_choose(
    column: Column, type_: ColumnType, most: int
) -> None:
    entry = encode_column(column, {"age": type_})
    assert most_pieces(column, entry, type_) == most
    if most:
        for pieces in range(2, most + 1):
            assert curved(entry, pieces) == encode_column(replace(column, knots=pieces), {"age": type_})
        assert curved(entry, 1) == curved(entry, 0) == entry


DAY = ColumnType("date", "date")
DAYS: Any = {"lower": date(2000, 1, 1), "upper": date(2001, 1, 1)}


@pytest.mark.parametrize(
    ("column", "type_", "knots"),
    [
        (Column("age", lower=0, upper=10), REAL, 8),
        (Column("age", lower=0, upper=10, knots=3), REAL, 3),
        (Column("age", lower=0, upper=10, knots=0), REAL, 0),
        (Column("age", lower=0, upper=10, knots=(0, 5)), REAL, (0, 5)),
        (Column("age", **DAYS), DAY, 8),
        (Column("age", **DAYS), WHOLE, 8),
        (Column("age", scale="standard", mean=5, sd=2, lower=0, upper=10), REAL, 8),
        (Column("age", lower=0, upper=100), WHOLE, 8),
        (Column("age", lower=0, upper=3), WHOLE, 3),
        (Column("age", lower=0, upper=1), WHOLE, 1),
        (Column("age", lower=0.2, upper=0.8), WHOLE, 1),
        (Column("age", lower=0, upper=3, log1p=True), WHOLE, 8),
        (Column("age"), REAL, None),
        (Column("age", scale="standard", mean=5, sd=2), REAL, None),
        (Column("age", levels=("1", "2")), WHOLE, None),
        (Column("age", lower=0, upper=1, length=3), ColumnType("real[]", "array", "number"), None),
        (Column("age", lower=0, upper=1, length=3), REAL, None),
        (Column("age", lower=0, upper=1), ColumnType("vector(3)", "array", "number", 3, vector=True), None),
        (Column("age", lower=0, upper=1), ColumnType("boolean", "boolean"), None),
        (Column("age", lower=0, upper=1), ColumnType("mood", "enum", enum_labels=("a", "b")), None),
        (Column("age", lower=0, upper=1), ColumnType("text", "text"), None),
        (Column("age", lower=0, upper=1), ColumnType("point", "other"), None),
    ],
)
def test_default_knots_are_for_what_can_have_a_curve(column: Column, type_: ColumnType, knots: Any) -> None:
    found = with_knots(column, type_, 8)
    assert found == replace(column, knots=knots)
    assert with_knots(column, type_, None) == column
    assert with_knots(column, type_, 0) == (column if found == column else replace(column, knots=0))


CURVE = {"name": "age", "kind": "numeric", "lower": 0, "upper": 9, "knots": [0.0, 1 / 3, 9]}
CATEGORY = {"name": "town", "kind": "category", "levels": ["Aix", "Bonn"], "centered": True}


def test_names_of_curves_and_crosses() -> None:
    encoder = {
        "columns": [CURVE, CATEGORY],
        "crosses": [["town", "age"], ["age", "town"]],
        "intercept": True,
    }
    names = FeatureNames(encoder)
    assert names[:6] == ["age", "age@0", "age@0.333333", "age@9", "town=Aix", "town=Bonn"]
    assert names[6:9] == ["town=Aix * age@0", "town=Aix * age@0.333333", "town=Aix * age@9"]
    assert names[12:14] == ["age@0 * town=Aix", "age@0 * town=Bonn"]
    assert len(names) == 6 + 6 + 6 + 1
    assert names[-1] == "intercept"
    close = CURVE | {"knots": [1e6, 1e6 + 0.125, 12345678]}
    assert FeatureNames({"columns": [close], "intercept": False})[1:] == [
        *("age@1000000", "age@1000000.1", "age@12345678"),
    ]


def test_values_that_a_row_stores() -> None:
    """Two hats of a curve beside its number, a level, and their products."""
    plain = CATEGORY | {"centered": False}
    assert stored_values({"columns": [CURVE, plain]}) == 3 + 1
    assert stored_values({"columns": [CURVE, CATEGORY]}) == 3 + 2
    other = CURVE | {"name": "height"}
    crosses = [["age", "town"], ["age", "height"]]
    assert stored_values({"columns": [CURVE, plain, other], "crosses": crosses}) == 3 + 1 + 3 + 2 + 4


@pytest.mark.parametrize(
    ("entry", "advice"),
    [
        ({"kind": "numeric", "lower": 0, "upper": 1}, "knots = 8, or levels"),
        ({"kind": "boolean"}, r"levels = \[false, true\]"),
        ({"kind": "array", "length": 2}, "takes no array"),
        ({"kind": "sparse", "length": 2}, "takes no array"),
    ],
)
def test_columns_that_cannot_be_crossed(entry: dict[str, Any], advice: str) -> None:
    require_crossed([("age", "town")], [CURVE, CATEGORY])
    for pair in (("x", "age"), ("age", "x")):
        with pytest.raises(SpecError, match=f"crosses: column x has neither levels nor knots: .*{advice}"):
            require_crossed([pair], [CURVE, {"name": "x"} | entry])


TOWNS = ["Aix", "Bonn", "Cork", "Ulm", "a town of a long name"]


def model(weights: dict[str, float], noise: float | None = None, **encoder: Any) -> Model:
    """A model with weights for some features, the others 0."""
    columns = [
        {"name": "age", "kind": "numeric", "lower": 10, "upper": 17, "knots": [10, 12, 17]},
        {"name": "gain", "kind": "numeric", "lower": 0, "upper": 1023, "log1p": True, "knots": [0, 31, 1023]},
        {"name": "day", "kind": "numeric", "lower": 0.0, "upper": 366.0, "knots": [0.0, 91.5, 366.0]},
        {"name": "town", "kind": "category", "levels": TOWNS, "centered": False},
        {"name": "ok", "kind": "boolean"},
        {"name": "idle", "kind": "numeric", "lower": 0, "upper": 1},
    ]
    given: dict[str, Any] = {"columns": columns, "crosses": [["day", "town"]], "intercept": True}
    given |= {"norm": "normalize", "label": {"name": "rich"}} | encoder
    names = FeatureNames(given)
    return Model(
        name="m",
        method="whitened-dp-gd",
        private=noise is not None,
        task="binary",
        loss="logistic",
        classes=("no", "yes"),
        weights=np.array([weights.get(name, 0.0) for name in names]),
        n_features=len(names),
        encoder=given,
        privacy={"epsilon": 1.0, "delta": 0.1, "relation": "replace_one", "noise": {"score_stddev": noise}}
        if noise is not None
        else {},
        training={"dates": {"day": "date"}},
        charge=None,
    )


WEIGHTS = {
    "age@10": 0.7,
    "gain@1023": -2.0,
    "day@366": 1.0,
    "town=Aix": 0.25,
    "town=Ulm": -0.25,
    "town=a town of a long name": 0.5,
    "ok": 0.1,
    "day@91.5 * town=Bonn": 3.0,
}


def effect_lines(text: str) -> list[str]:
    """The lines of a model's text that are about effects."""
    lines = text.split("\n")
    first = next((i for i, line in enumerate(lines) if line.startswith("Effects")), len(lines))
    last = next(i for i, line in enumerate(lines) if "oefficients" in line)
    return lines[first:last]


def test_effects_as_text() -> None:
    """A line for each column and cross that moves the score, the one that does most first."""
    assert effect_lines(model_text(model(WEIGHTS))) == [
        "Effects     what each column adds to the score, before the length of the row divides it",
        "  EFFECT      FROM    TO      SHAPE",
        "  day * town  +0.000  +3.000  low at 2000-01-01, Aix; high at 2000-04-01, Bonn",
        "  gain        -2.000  +0.000  0 ███████████▇▆▅▅▄▃▂▂▁ 1023",
        "  day         +0.000  +1.000  2000-01-01 ▁▁▁▁▁▁▂▂▃▃▄▄▅▅▆▆▇▇██ 2001-01-01",
        "  town        -0.250  +0.500  a town of a… +0.50, Aix +0.25, ..., Cork +0.00, Ulm -0.25",
        "  age         +0.000  +0.700  10 █▇▅▄▃▂▁▁▁▁▁▁▁▁▁▁▁▁▁▁ 17",
        "  ok          -0.100  +0.100  true +0.10, false -0.10",
    ]


def test_effects_as_text_beside_their_noise() -> None:
    """As in the pictures; what two standard deviations hide everywhere is marked."""
    lines = effect_lines(model_text(model(WEIGHTS, noise=0.2)))
    found = {line.split("  ")[1]: line.split() for line in lines if line.startswith("  ")}
    assert found["ok"][3:5] == ["0.2", "~"]
    assert found["town"][3] == "0.2"
    assert "~" not in found["town"]
    assert float(found["gain"][3]) == pytest.approx(0.2 * math.sqrt(2), abs=1e-3)
    assert "the noise in it has at most the standard deviation beside it" in " ".join(" ".join(lines).split())
    assert max(map(len, lines)) <= 100


def test_effects_of_several_classes_as_text() -> None:
    """That of the class that a column moves most."""
    one = model(WEIGHTS)
    several = replace(
        one, task="multiclass", classes=("a", "b"), weights=np.append(-0.5 * one.weights, one.weights)
    )
    lines = effect_lines(model_text(several))
    assert "adds to the score of the class that it moves most, before" in lines[0]
    assert lines[2].split() == ["EFFECT", "CLASS", "FROM", "TO", "SHAPE"]
    assert lines[3].split()[3:6] == ["b", "+0.000", "+3.000"]


def test_many_effects_are_cut() -> None:
    columns = [
        {"name": f"x{i}", "kind": "numeric", "lower": 0, "upper": 1, "knots": [0, 1]} for i in range(23)
    ]
    wide = model({f"x{i}@1": 1.0 + i for i in range(23)}, columns=columns, crosses=[])
    lines = effect_lines(model_text(wide))
    assert [line.split()[0] for line in lines[2:-1]] == [f"x{i}" for i in range(22, 2, -1)]
    assert lines[-1] == "  ... and 3 more: dpml plot"


def test_models_whose_effects_are_no_curves_have_none_as_text() -> None:
    straight = [{"name": "age", "kind": "numeric", "lower": 0, "upper": 1}]
    for other in (
        model({"age": 1.0}, columns=straight, crosses=[]),
        model({"projection 1": 1.0}, projection={"features": 2, "seed": 1}),
        model({"intercept": 1.0}),
        replace(model({"age": 1.0}), encoder={}),
    ):
        assert effect_lines(model_text(other)) == []


@pytest.mark.parametrize(
    ("dates", "words"),
    [(None, ". Dates are days"), ({}, None), ({"day": "date"}, "In names of coefficients, dates are days")],
)
def test_the_report_says_how_dates_count_where_they_are_numbers(
    dates: dict[str, str] | None, words: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In names alone, but in a model that was stored before it said which columns are dates."""
    for name in plots.__all__:
        monkeypatch.setattr(plots, name, lambda *given: b"")
    training = {} if dates is None else {"dates": dates}
    page = model_html(replace(model(WEIGHTS), training=training), charges=None, evaluation=None, versions={})
    assert ("2000-01-01" in page) is (words is not None)
    assert words is None or words in page


SPEC = """
table = "people"
crosses = [["age", "town"], ["day", "age"]]

[label]
column = "rich"
positive = true

[columns.age]
lower = 17
upper = 90
knots = 8

[columns.day]
lower = 2020-01-01
upper = 2021-01-01
knots = [2020-01-01, "2020-07-01", 2021-01-01]

[columns.town]
levels = ["Aix", "Bonn"]
"""


def test_toml() -> None:
    data = DataSpec.from_text(SPEC, "spec")
    days = (date(2020, 1, 1), date(2020, 7, 1), date(2021, 1, 1))
    assert [column.knots for column in data.columns] == [8, days, None]
    assert data.crosses == (("age", "town"), ("day", "age"))
