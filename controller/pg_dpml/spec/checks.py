# SPDX-License-Identifier: PostgreSQL
"""Checks of single values, each with an error that names the argument and its domain."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from pg_dpml.errors import SpecError
from pg_dpml.names import did_you_mean
from pg_dpml.spec.dates import parse_date, seconds_since_epoch

__all__ = [
    "LONGEST_LEVEL",
    "MOST_KNOTS",
    "as_bound",
    "as_choice",
    "as_flag",
    "as_knots",
    "as_level",
    "as_levels",
    "as_number",
    "as_table",
    "require_between",
    "require_bounds",
    "require_known",
    "require_name",
    "require_text",
    "require_whole",
]

LONGEST_LEVEL = 10_000
"""Bytes of the longest level or class; longer text in a row matches none."""

MOST_KNOTS = 1000
"""Most knots of a column: more would say less of each, and take as many features."""


def as_number(value: object, name: str) -> float | None:
    """A finite float, or None; an error for anything else."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SpecError(f"{name} must be a number, not {value!r}")
    try:
        number = float(value)
    except OverflowError:  # an integer of hundreds of digits
        number = math.inf
    if not math.isfinite(number):
        raise SpecError(f"{name} must be finite, not {value!r}")
    return number


def require_between(value: object, name: str, least: float, most: float) -> None:
    """Reject anything but a number in [least, most]."""
    number = as_number(value, name)
    if number is None or not least <= number <= most:
        raise SpecError(f"{name} must be in [{least:g}, {most:g}], not {value!r}")


def as_bound(value: object, name: str) -> float | date | None:
    """A finite float, a date or datetime (also as ISO text), or None."""
    if isinstance(value, date):
        return value
    return parse_date(value, name) if isinstance(value, str) else as_number(value, name)


def require_whole(value: object, name: str, most: int) -> None:
    """Reject anything but a whole number from 1 to `most`."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise SpecError(f"{name} must be a whole number from 1 to {most}, not {value!r}")


def as_choice(value: object, name: str, choices: Sequence[str]) -> str:
    """One of the choices; the error for anything else offers the nearest."""
    if not isinstance(value, str) or value not in choices:
        offer = did_you_mean(value, choices) if isinstance(value, str) else ""
        raise SpecError(f"{name} must be one of {', '.join(choices)}, not {value!r}{offer}")
    return value


def as_flag(value: object, name: str) -> bool:
    """True or False; an error for anything else."""
    if not isinstance(value, bool):
        raise SpecError(f"{name} must be true or false, not {value!r}")
    return value


def require_text(value: str, name: str) -> None:
    """Reject text that no database can store: a NUL, or half a pair of surrogates."""
    if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
        raise SpecError(f"{name} must be text without NUL characters and lone surrogates, not {value!r}")


def as_level(value: object, name: str) -> str:
    """A level of a category, or a class, as text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        require_text(value, name)
    if isinstance(value, str) and len(value.encode()) > LONGEST_LEVEL:
        raise SpecError(f"{name} must have values of at most {LONGEST_LEVEL} bytes")
    if isinstance(value, str | int | float | date):
        return str(value)
    raise SpecError(f"{name} must be text, a number, a boolean or a date, not {value!r}")


def as_levels(value: object, name: str, at_least: int) -> tuple[str, ...] | None:
    """A list of at least `at_least` different levels as texts; or None."""
    if value is None:
        return None
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise SpecError(f"{name} must be a list, not {value!r}")
    levels = tuple(as_level(item, name) for item in value)
    if len(levels) < at_least:
        raise SpecError(f"{name} must list at least {at_least} different values")
    if len(set(levels)) != len(levels):
        twice = next(level for level in levels if levels.count(level) > 1)
        raise SpecError(f"{name} must list different values, and {twice!r} only once")
    return levels


def require_bounds(lower: float | date | None, upper: float | date | None, name: str) -> None:
    """Reject bounds unless both are given, of one kind and in order."""
    if lower is None and upper is None:
        return
    if lower is None or upper is None:
        raise SpecError(f"{name}: give both lower and upper, or neither")
    if isinstance(lower, date) != isinstance(upper, date):
        raise SpecError(f"{name}: lower and upper must be two numbers or two dates, not {lower} and {upper}")
    if not _comparable(lower) < _comparable(upper):
        raise SpecError(f"{name}: lower must be below upper, not {lower} and {upper}")


def as_knots(
    value: object, name: str, lower: float | date | None, upper: float | date | None
) -> int | tuple[float | date, ...] | None:
    """Knots of a column: a number of equal pieces, or a list of places inside the bounds; or None.

    Parameters
    ----------
    value : object
        As the spec gives it.
    name : str
        Of the key, for errors.
    lower, upper : float, date or None
        Bounds of the column.

    Raises
    ------
    SpecError
        If it is neither, the places do not rise or leave the bounds, or there are no bounds.
    """
    if value is None:
        return None
    if lower is None or upper is None:
        raise SpecError(f"{name} needs the public bounds lower and upper, between which a curve bends")
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value < MOST_KNOTS:
        return value
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise SpecError(
            f"{name} must be a whole number of pieces from 1 to {MOST_KNOTS - 1}, or a list of places "
            f"between lower and upper, or 0 for no curve, not {value!r}"
        )
    if not 2 <= len(value) <= MOST_KNOTS:
        raise SpecError(f"{name} must list 2 to {MOST_KNOTS} places, not {len(value)}")
    places = [place for place in (as_bound(item, name) for item in value) if place is not None]
    if len(places) < len(value) or any(isinstance(p, date) != isinstance(lower, date) for p in places):
        raise SpecError(f"{name} must list numbers, or dates, as lower and upper are")
    for before, after in itertools.pairwise(places):
        if not _comparable(before) < _comparable(after):
            raise SpecError(f"{name} must list rising places, each once: {after} is not above {before}")
    if _comparable(places[0]) < _comparable(lower) or _comparable(places[-1]) > _comparable(upper):
        raise SpecError(
            f"{name} must lie between lower = {lower} and upper = {upper}, to which values beyond are moved"
        )
    return tuple(places)


def _comparable(value: float | date) -> float:
    """A bound as a number that is compared with another."""
    return seconds_since_epoch(value) if isinstance(value, date) else value


def require_known(given: Mapping[str, object], allowed: Sequence[str], where: str) -> None:
    """Reject keys that are not allowed; the error offers the nearest."""
    for key in given:
        if key not in allowed:
            offer = did_you_mean(str(key), allowed)
            known = f"{offer} Known" if offer else "; known"
            raise SpecError(f"{where}: unknown key {key!r}{known} are {', '.join(allowed)}")


def require_name(value: object, name: str) -> None:
    """Reject anything but the name of a column."""
    if not isinstance(value, str):
        raise SpecError(f"{name} must be the name of a column, not {value!r}")
    require_text(value, name)


def as_table(value: object, where: str) -> Mapping[str, Any]:
    """A table of keys; an error for anything else."""
    if not isinstance(value, Mapping):
        raise SpecError(f"{where} must be a table of keys, not {value!r}")
    return value
