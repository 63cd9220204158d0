# SPDX-License-Identifier: PostgreSQL
"""Levels and classes, read as values of the column's type.

`dpml.encode` compares values with the texts that this module returns. The rules depend on the catalog's type
alone, so that an error discloses nothing about a row.
"""

from __future__ import annotations

import difflib
import re
import struct
from collections.abc import Callable, Hashable, Sequence
from datetime import date
from decimal import Decimal

from pg_dpml.database.columns import ColumnType
from pg_dpml.errors import SpecError

__all__ = ["as_compared"]

_TRUE = {"true", "t", "yes", "y", "on", "1"}
_FALSE = {"false", "f", "no", "n", "off", "0"}
_DECIMAL = re.compile(r" *[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]{1,4})? *", re.IGNORECASE)
_INFINITY = re.compile(r" *([+-]?)inf(inity)? *", re.IGNORECASE)
_LARGEST_EXPONENT = 6000
_DATE = re.compile(r" *([0-9]{4})-([0-9]{1,2})-([0-9]{1,2}) *")
_RANGES = {"int2": 15, "int4": 31, "int8": 63}
_HEADER = 4
"""The modifier of varchar(n) and char(n) is n plus this."""
_LONGEST_NAME = 63
_SHOWN = 5

_Known = tuple[str, Hashable]
"""The text that values are compared with, and a key that is equal for equal values."""


class _NoValueError(Exception):
    """The text is no value of the type; the message describes one that is."""


def as_compared(given: Sequence[str], column_type: ColumnType, where: str) -> tuple[str, ...]:
    """Levels or classes, written as the encoder compares values with them.

    Parameters
    ----------
    given : sequence of str
        As in a spec: every form of a value is accepted, such as t and true for a boolean.
    column_type : ColumnType
        A type that has levels.
    where : str
        Beginning of error messages, such as "column a: levels".

    Returns
    -------
    tuple of str

    Raises
    ------
    SpecError
        If no value of the type can be one of them, or two are the same value.
    """
    read = _READERS[column_type.kind]
    found: dict[Hashable, str] = {}
    texts = []
    for level in given:
        try:
            text, value = read(level, column_type)
        except _NoValueError as error:
            raise SpecError(f"{where}: {level!r} does not fit type {column_type.name}: {error}") from None
        if value in found:
            raise SpecError(
                f"{where}: {found[value]!r} and {level!r} are the same value of type {column_type.name}: "
                "list it once"
            )
        found[value] = level
        texts.append(text)
    return tuple(texts)


def _boolean(text: str, _: ColumnType) -> _Known:
    word = text.strip().lower()
    if word not in _TRUE | _FALSE:
        raise _NoValueError("write true or false; t and f, yes and no, on and off, 1 and 0 will do")
    known = "true" if word in _TRUE else "false"
    return known, known


def _enum(text: str, column_type: ColumnType) -> _Known:
    labels = column_type.enum_labels or ()
    if text in labels:
        return text, text
    likely = text.strip().casefold()
    near = difflib.get_close_matches(likely, [label.strip().casefold() for label in labels], _SHOWN, 0.4)
    ordered = sorted(
        labels,
        key=lambda label: (
            near.index(label.strip().casefold()) if label.strip().casefold() in near else len(near)
        ),
    )
    more = "" if len(ordered) <= _SHOWN else f" and {len(ordered) - _SHOWN} more"
    raise _NoValueError(f"its labels are {', '.join(map(repr, ordered[:_SHOWN]))}{more}")


def _number(text: str, column_type: ColumnType) -> _Known:
    base = column_type.base
    infinite = _INFINITY.fullmatch(text)
    if infinite is not None and not column_type.whole:
        if base == "numeric" and column_type.modifier >= 0:
            raise _NoValueError("its number of digits is limited")
        known = f"{'-' if infinite[1] == '-' else ''}Infinity"
        return known, known
    if _DECIMAL.fullmatch(text) is None:
        raise _NoValueError(f"write a {'whole ' if column_type.whole else ''}number, such as 1")
    number = Decimal(text.strip())
    if number and not -_LARGEST_EXPONENT <= number.adjusted() <= _LARGEST_EXPONENT:
        raise _NoValueError("it is too large or too small")
    if column_type.whole:
        return _whole(number, base or "")
    if base == "numeric":
        _require_digits(number, column_type.modifier)
        return text.strip(), number  # equal numbers have equal hashes, however they are written
    value = float(number)
    if base == "float4":
        value = _single(value)
    if value in (float("inf"), float("-inf")):
        raise _NoValueError("it is too large")
    return text.strip(), value


def _whole(number: Decimal, base: str) -> _Known:
    limit = 2 ** _RANGES[base]
    if number != number.to_integral_value():
        raise _NoValueError("write a whole number, such as 1")
    if not -limit <= number < limit:
        raise _NoValueError(f"its values go from {-limit} to {limit - 1}")
    return str(int(number)), int(number)


def _single(value: float) -> float:
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return float("inf")


def _require_digits(number: Decimal, modifier: int) -> None:
    """Reject a number that has more digits than numeric(p, s) allows."""
    if modifier < 0:
        return
    # PostgreSQL packs the scale into 11 bits, with a sign.
    precision = (modifier - _HEADER) >> 16 & 0xFFFF
    scale = ((modifier - _HEADER & 0x7FF) ^ 1024) - 1024
    digits = number.normalize().as_tuple()
    last = digits.exponent if isinstance(digits.exponent, int) else 0
    if number and last < -scale:
        raise _NoValueError(f"its numbers have {max(scale, 0)} digits after the point")
    if number and number.adjusted() >= precision - scale:
        raise _NoValueError(f"its numbers are below 10^{precision - scale}")


def _date(text: str, _: ColumnType) -> _Known:
    found = _DATE.fullmatch(text)
    try:
        assert found is not None
        known = date(*(int(part) for part in found.groups())).isoformat()
    except (AssertionError, ValueError):
        raise _NoValueError("write a date as YEAR-MONTH-DAY, such as 2024-01-31") from None
    return known, known


def _text(text: str, column_type: ColumnType) -> _Known:
    base, most = column_type.base, column_type.modifier - _HEADER
    if base == "char":
        if len(text.encode()) != 1:
            raise _NoValueError("its values have one byte")
    elif base == "name":
        if len(text.encode()) > _LONGEST_NAME:
            raise _NoValueError(f"its values have at most {_LONGEST_NAME} bytes")
    else:
        if base == "bpchar":
            text = text.rstrip(" ")  # as values are compared
        if column_type.modifier >= 0 and len(text) > most:
            raise _NoValueError(f"its values have at most {most} characters, and this has {len(text)}")
    return text, text


_READERS: dict[str, Callable[[str, ColumnType], _Known]] = {
    "boolean": _boolean,
    "enum": _enum,
    "number": _number,
    "date": _date,
    "text": _text,
}
