# SPDX-License-Identifier: PostgreSQL
"""Dates and timestamps as bounds."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone

import pytest

from pg_dpml.errors import SpecError
from pg_dpml.spec.columns import Column
from pg_dpml.spec.dates import date_number, parse_date


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
