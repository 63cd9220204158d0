# SPDX-License-Identifier: PostgreSQL
"""Curves and crosses of a data spec: places of knots, names of features, and what is refused."""

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
