# SPDX-License-Identifier: PostgreSQL
"""Dates and timestamps as the numbers that the server makes of them.

A date is the days, a timestamp the seconds since 2000-01-01, for a timestamp
with time zone since its midnight in UTC (udas/numbers.c).
"""

from __future__ import annotations

from datetime import date, datetime, time, timezone

from pg_dpml.errors import SpecError

__all__ = ["MOMENTS", "moment_number", "parse_moment", "seconds_since_epoch"]

MOMENTS = ("date", "timestamp", "timestamptz")
"""Kinds of columns (see `database.ColumnType`) whose bounds are dates or timestamps."""

_EPOCH = datetime(2000, 1, 1, tzinfo=timezone.utc)
_DAY_S = 86400.0


def parse_moment(text: str, name: str) -> date:
    """The date, or the datetime, that an ISO text is.

    Raises
    ------
    SpecError
        If it is none, by name.
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


def seconds_since_epoch(moment: date) -> float:
    """Seconds since 2000-01-01; a moment without a time zone counts as UTC."""
    if not isinstance(moment, datetime):
        moment = datetime.combine(moment, time())
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    return (moment - _EPOCH).total_seconds()


def moment_number(value: float | date, kind: str, name: str) -> float:
    """A bound as the number that values of a column are compared to.

    Parameters
    ----------
    value : float or date
        As in the spec.
    kind : str
        Of the column, see `database.ColumnType`.
    name : str
        For errors.

    Raises
    ------
    SpecError
        If a number is given for a date, a date for a number, or a time zone for a column without.
    """
    if kind not in MOMENTS:
        if isinstance(value, date):
            raise SpecError(f"{name} must be a number, not the date {value.isoformat()}")
        return value
    if not isinstance(value, date):
        example = "2000-12-31" if kind == "date" else "2000-12-31T23:59:59"
        raise SpecError(f"{name} must be a {kind}, such as {example}, not {value!r}")
    if kind != "timestamptz" and isinstance(value, datetime) and value.tzinfo is not None:
        raise SpecError(f"{name} must be without a time zone, like the column, not {value.isoformat()}")
    seconds = seconds_since_epoch(value)
    return seconds / _DAY_S if kind == "date" else seconds
