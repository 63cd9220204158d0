# SPDX-License-Identifier: PostgreSQL
"""The features that an encoder makes of a row: their names, and how many of them can be other than 0."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

__all__ = ["FeatureNames", "basis_names", "completed", "stored_values"]


_DEFAULTS: dict[str, Any] = {
    "scale": "center",
    "log1p": False,
    "lower": None,
    "upper": None,
    "mean": 0.0,
    "sd": 1.0,
    "centered": True,
    "length": 1,
    "image": None,
    "knots": (),
}
"""What the keys of a column mean where they are absent, as in udas/spec.c."""


def completed(column: Mapping[str, Any]) -> dict[str, Any]:
    """A column of a stored encoder, with the default of every key that is absent or null."""
    return _DEFAULTS | {key: value for key, value in column.items() if value is not None}


class FeatureNames(Sequence[str]):
    """The names of an encoder's features, in order; those of a sparse column are made when asked for.

    Parameters
    ----------
    encoder : mapping
        With the keys columns, intercept and, where it has them, crosses and projection.
    """

    def __init__(self, encoder: Mapping[str, Any]) -> None:
        columns: Sequence[Mapping[str, Any]] = encoder["columns"]
        self._parts: list[Sequence[str]] = [_names(column) for column in columns]
        crosses: Sequence[Sequence[str]] = encoder.get("crosses") or ()
        basis = {column["name"]: basis_names(column) for column in columns} if crosses else {}
        self._parts += [_Crossed(basis[first], basis[second]) for first, second in crosses]
        if encoder.get("projection") is not None:
            self._parts = [[f"projection {i + 1}" for i in range(encoder["projection"]["features"])]]
        if encoder["intercept"]:
            self._parts.append(["intercept"])
        self._ends = list(itertools.accumulate(map(len, self._parts)))

    def __len__(self) -> int:
        return self._ends[-1]

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[str]: ...
    def __getitem__(self, at: int | slice) -> str | Sequence[str]:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(len(self)))]
        place = range(len(self))[at]
        part = bisect.bisect_right(self._ends, place)
        return self._parts[part][place - self._ends[part] + len(self._parts[part])]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FeatureNames) and self._parts == other._parts

    def __hash__(self) -> int:
        return hash(tuple(self._ends))


@dataclass(frozen=True)
class _Numbered(Sequence[str]):
    """Names such as x[0], x[1], made when they are asked for."""

    column: str
    first: int
    length: int

    def __len__(self) -> int:
        return self.length

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[str]: ...
    def __getitem__(self, at: int | slice) -> str | Sequence[str]:
        numbers = range(self.first, self.first + self.length)[at]
        if isinstance(numbers, range):
            return [f"{self.column}[{number}]" for number in numbers]
        return f"{self.column}[{numbers}]"


@dataclass(frozen=True)
class _Crossed(Sequence[str]):
    """Names such as age@40 * town=Aix, made when they are asked for."""

    first: Sequence[str]
    second: Sequence[str]

    def __len__(self) -> int:
        return len(self.first) * len(self.second)

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[str]: ...
    def __getitem__(self, at: int | slice) -> str | Sequence[str]:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(len(self)))]
        row, place = divmod(range(len(self))[at], len(self.second))
        return f"{self.first[row]} * {self.second[place]}"


def basis_names(column: Mapping[str, Any]) -> list[str]:
    """Names of the levels or of the hat functions of an encoded column; none for any other column.

    A hat function is called age@40 by its knot: with six digits, or more where those are alike.
    """
    if column["kind"] == "category":
        return [f"{column['name']}={level}" for level in column["levels"]]
    knots = completed(column)["knots"]
    for digits in range(6, 18):
        places = [f"{float(f'{knot:.{digits}g}'):.15g}" for knot in knots]
        if len(set(places)) == len(places):
            break
    return [f"{column['name']}@{place}" for place in places]


def _names(column: Mapping[str, Any]) -> Sequence[str]:
    """Names of the features of an encoded column."""
    if column["kind"] == "category":
        return basis_names(column)
    if column.get("image") is not None:
        image = column["image"]
        pixels = (
            (row, place)
            for row in range(0, image["rows"], image["stride"])
            for place in range(0, image["columns"], image["stride"])
        )
        return [f"{column['name']}[{row + 1},{place + 1}]" for row, place in pixels]
    if column["kind"] in ("array", "sparse"):
        return _Numbered(column["name"], column.get("first_index", 1), column["length"])
    return [column["name"], *basis_names(column)]


def stored_values(encoder: Mapping[str, Any]) -> int:
    """Largest number of non-zero features of the columns and crosses of one row.

    Parameters
    ----------
    encoder : mapping
        With the keys columns and, where it has them, crosses.
    """
    columns: Sequence[Mapping[str, Any]] = encoder["columns"]
    basis = {column["name"]: 1 if column["kind"] == "category" else 2 for column in columns}
    crossed = (basis[first] * basis[second] for first, second in encoder.get("crosses") or ())
    return sum(map(_stored_values, columns)) + sum(crossed)


def _stored_values(column: Mapping[str, Any]) -> int:
    if column["kind"] == "category":
        return len(column["levels"]) if column["centered"] else 1
    return int(column.get("length", 1)) + (2 if column.get("knots") else 0)
