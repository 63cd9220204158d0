# SPDX-License-Identifier: PostgreSQL
"""Dates and timestamps as the numbers that the server makes of them.

A date becomes the number of days, a timestamp the number of seconds since 2000-01-01; for a timestamp with
time zone, since the midnight of that day in UTC (udas/numbers.c).
"""

from __future__ import annotations

from datetime import date, datetime, time, timedelta, timezone

from pg_dpml.errors import SpecError

__all__ = [
    "DATE_KINDS",
    "as_date",
    "date_number",
    "date_text",
    "number_of",
    "parse_date",
    "seconds_since_epoch",
]

DATE_KINDS = ("date", "timestamp", "timestamptz")
"""Kinds of columns (see `ColumnType`) whose bounds are dates or timestamps."""

_EPOCH = datetime(2000, 1, 1, tzinfo=timezone.utc)
_DAY_S = 86400.0


def parse_date(text: str, name: str) -> date:
    """Read a date, or a datetime, from its ISO text.

    Raises
    ------
    SpecError
        If the text is neither; the message begins with `name`.
    """
    written = text.strip()
    try:
        return date.fromisoformat(written)
    except ValueError:
        pass
    if written[-1:] in ("Z", "z"):
        written = written[:-1] + "+00:00"  # Python 3.10 does not know Z
    try:
        return datetime.fromisoformat(written)
    except ValueError:
        raise SpecError(
            f"{name} must be a number without quotes, or a date such as 2000-12-31, or a timestamp such as "
            f"2000-12-31T23:59:59, not {text!r}"
        ) from None


def seconds_since_epoch(value: date) -> float:
    """Seconds from 2000-01-01 to a date or timestamp; one without a time zone counts as UTC."""
    if not isinstance(value, datetime):
        value = datetime.combine(value, time())
    if value.tzinfo is None:
        value = value.replace(tzinfo=timezone.utc)
    return (value - _EPOCH).total_seconds()


def date_number(value: float | date, kind: str, name: str) -> float:
    """A bound as the number that values of a column are compared to.

    Parameters
    ----------
    value : float or date
        As in the spec.
    kind : str
        Kind of the column, see `ColumnType`.
    name : str
        Name of the bound, for errors.

    Raises
    ------
    SpecError
        If a number is given for a date, a date for a number, or a time zone for a column without.
    """
    if kind not in DATE_KINDS:
        if isinstance(value, date):
            raise SpecError(f"{name} must be a number, not the date {value.isoformat()}")
        return value
    if not isinstance(value, date):
        example = "2000-12-31" if kind == "date" else "2000-12-31T23:59:59"
        raise SpecError(f"{name} must be a {kind}, such as {example}, not {value!r}")
    if kind != "timestamptz" and isinstance(value, datetime) and value.tzinfo is not None:
        raise SpecError(f"{name} must be without a time zone, like the column, not {value.isoformat()}")
    return number_of(value, kind)


def number_of(value: date, kind: str) -> float:
    """A date or timestamp, in UTC if it has no time zone, as days for the kind "date", else as seconds."""
    seconds = seconds_since_epoch(value)
    return seconds / _DAY_S if kind == "date" else seconds


def as_date(number: float, kind: str) -> datetime | None:
    """The date or timestamp (in UTC) of a number of such a column; None outside of the years 1 to 9999."""
    try:
        return _EPOCH + timedelta(seconds=number * (_DAY_S if kind == "date" else 1.0))
    except OverflowError:
        return None


def date_text(value: datetime, between: str = " ") -> str:
    """A date or timestamp in ISO form, without a time zone, and with no more of its time than is not 0."""
    if value.time() == time():
        return value.date().isoformat()
    timespec = "auto" if value.second or value.microsecond else "minutes"
    return value.replace(tzinfo=None).isoformat(between, timespec)
