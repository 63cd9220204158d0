# SPDX-License-Identifier: PostgreSQL
"""Dates and timestamps as bounds, and on the axes of pictures."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone

import numpy as np
import pytest
from matplotlib.figure import Figure

from pg_dpml.errors import SpecError
from pg_dpml.reports import plots
from pg_dpml.spec.columns import Column
from pg_dpml.spec.dates import as_date, date_number, date_text, parse_date


def test_dates_as_numbers() -> None:
    noon = datetime(2000, 1, 2, 12)
    east = timezone(timedelta(hours=6))
    assert date_number(date(2000, 1, 2), "date", "x") == 1
    assert date_number(date(1999, 12, 31), "date", "x") == -1
    assert date_number(noon, "date", "x") == 1.5
    assert date_number(date(2000, 1, 2), "timestamp", "x") == 86400
    assert date_number(noon, "timestamptz", "x") == 129600
    assert date_number(noon.replace(tzinfo=east), "timestamptz", "x") == 129600 - 6 * 3600
    assert date_number(2.5, "number", "x") == 2.5


def test_numbers_as_dates() -> None:
    """And back: what the server makes of a date reads as that date, in UTC."""
    for kind in ("date", "timestamp", "timestamptz"):
        for text in (
            "0001-01-01",
            "1999-12-31",
            "2000-02-29 12:30",
            "2020-01-01 00:00:00.250000",
            "9999-12-31",
        ):
            found = as_date(date_number(datetime.fromisoformat(text), kind, "x"), kind)
            assert found is not None
            assert date_text(found) == text
            assert found.tzinfo == timezone.utc
        assert as_date(1e12, kind) is None
        assert as_date(-1e12, kind) is None
        assert as_date(1e300, kind) is None
    assert date_text(datetime(2020, 1, 2, 3), "T") == "2020-01-02T03:00"
    assert date_text(datetime(2020, 1, 2, 3, 4, 5)) == "2020-01-02 03:04:05"


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("2000-12-31", date(2000, 12, 31)),
        (" 2000-12-31 ", date(2000, 12, 31)),
        ("2000-12-31T23:59:59", datetime(2000, 12, 31, 23, 59, 59)),
        ("2000-12-31 23:59:59.500000", datetime(2000, 12, 31, 23, 59, 59, 500000)),
        ("2000-12-31T23:59:59Z", datetime(2000, 12, 31, 23, 59, 59, tzinfo=timezone.utc)),
        ("2000-12-31T23:59:59+00:00", datetime(2000, 12, 31, 23, 59, 59, tzinfo=timezone.utc)),
    ],
)
def test_dates_as_text(text: str, meant: date) -> None:
    assert parse_date(text, "x") == meant


@pytest.mark.parametrize("text", ["", "17", "yesterday", "2000-13-01", "Z"])
def test_texts_that_are_no_dates(text: str) -> None:
    with pytest.raises(SpecError, match="lower must be a number without quotes, or a date"):
        parse_date(text, "lower")


@pytest.mark.parametrize(
    ("lower", "upper", "message"),
    [
        (date(2000, 1, 1), 5, "two numbers or two dates"),
        (date(2000, 1, 2), datetime(2000, 1, 1), "lower must be below upper"),
        (datetime(2000, 1, 1, 5), datetime(2000, 1, 1, 5, tzinfo=timezone.utc), "lower must be below upper"),
    ],
)
def test_bounds_that_do_not_fit(lower: date, upper: float | date, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        Column("x", lower, upper)
    with pytest.raises(SpecError, match="log1p needs lower >= 0"):
        Column("x", date(2000, 1, 1), date(2001, 1, 1), log1p=True)


NOON_S = 43200.0


@pytest.mark.parametrize(
    ("kind", "first", "last", "wanted"),
    [
        ("date", 0, 366, ["2000-01-01", "2000-05-01", "2000-09-01", "2001-01-01"]),
        ("date", -7000, 3000, ["1990-01-01", "2000-01-01"]),
        ("date", 0, 1, ["2000-01-01", "2000-01-02"]),
        ("date", 0.25, 0.5, ["2000-01-01 06:00", "2000-01-01 12:00"]),
        ("date", -730119, 2921939, ["0001-01-01", "4001-01-01", "8001-01-01"]),
        ("timestamp", 0, NOON_S, ["2000-01-01", *(f"2000-01-01 {hour}:00" for hour in ("04", "08", "12"))]),
        ("timestamptz", 0, 60, ["2000-01-01", "2000-01-01 00:00:30", "2000-01-01 00:01"]),
        ("date", 0, 1e9, None),
        (None, 0, 366, None),
    ],
)
def test_ticks_of_dates(kind: str | None, first: float, last: float, wanted: list[str] | None) -> None:
    """Dates of the calendar, at their numbers; where there are none, the numbers stay."""
    axes = Figure().add_subplot()
    numbers = axes.xaxis.get_major_formatter()
    plots._mark_axis(axes.xaxis, np.array([first, last], dtype=float), kind)
    if wanted is None:
        assert axes.xaxis.get_major_formatter() is numbers
        return
    assert kind is not None
    labels = [label.get_text().replace("\n", " ") for label in axes.get_xticklabels()]
    assert labels == wanted
    for place, label in zip(axes.get_xticks(), labels, strict=True):
        assert place == pytest.approx(date_number(parse_date(label, "x"), kind, "x"), abs=1e-4)
    assert axes.get_xlabel() == ("UTC" if kind == "timestamptz" else "")
