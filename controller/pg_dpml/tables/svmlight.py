# SPDX-License-Identifier: PostgreSQL
"""Files in the svmlight format: a row a line, `label [qid:N] index:value ...`, and # before a comment.

No parser of a library fits: those that there are guess whether indices count from 0 or 1, and name no line.
"""

from __future__ import annotations

import gzip
import io
import itertools
import math
import re
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from pg_dpml.errors import SpecError
from pg_dpml.kernels import MAX_FEATURES
from pg_dpml.names import shown

__all__ = ["STANDARD_INPUT", "SparseRow", "read_row", "read_rows"]

STANDARD_INPUT = "-"
"""In place of a file's name."""

_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_INDEX = re.compile(r"[0-9]+")
_GZIP = b"\x1f\x8b"
_BOM = "\ufeff"
_LONGEST_SHOWN = 40


@dataclass(frozen=True)
class SparseRow:
    """A row of a file.

    Attributes
    ----------
    label : float
        Finite.
    indices : sequence of int
        Rising strictly, as the file counts them.
    values : sequence of float
        Finite, one for each index.
    has_query : bool
        Whether the line has a qid, which is left out.
    """

    label: float
    indices: Sequence[int]
    values: Sequence[float]
    has_query: bool


def read_row(line: str, first_index: int) -> SparseRow | None:
    """The row of a line, or None for a line without one.

    Parameters
    ----------
    line : str
    first_index : int
        Index of the first feature, 0 or 1.

    Raises
    ------
    SpecError
        What is wrong with the line, and how to fix it; without its number.
    """
    tokens = line.partition("#")[0].split()
    if not tokens:
        return None
    label = _number(tokens[0], "the label, which comes first,")
    has_query = len(tokens) > 1 and tokens[1].startswith("qid:")
    pairs = [_pair(token, first_index) for token in tokens[1 + has_query :]]
    if any(left[0] >= right[0] for left, right in itertools.pairwise(pairs)):
        pairs.sort()
        for (index, _), (following, _) in itertools.pairwise(pairs):
            if index == following:
                raise SpecError(f"index {index} is there twice: keep one of the two")
    return SparseRow(label, [index for index, _ in pairs], [value for _, value in pairs], has_query)


def _pair(token: str, first_index: int) -> tuple[int, float]:
    index, colon, value = token.partition(":")
    if not colon or not _INDEX.fullmatch(index):
        raise SpecError(
            f"{_cut(token)} is no index:value: write the index of a feature, a colon and its number, without "
            "blanks around the colon"
        )
    number = int(index) if len(index) < 10 else MAX_FEATURES + 1
    if number < first_index:
        raise SpecError(
            f"index {number}, and the first feature of this format has index 1: say --first-index 0 if the "
            "file counts from 0"
        )
    if number - first_index >= MAX_FEATURES - 1:
        raise SpecError(
            f"index {_cut(index)}, and a model has at most {MAX_FEATURES - 1:,} features: leave rare "
            "features out of the file, or hash all to fewer"
        )
    return number, _number(value, f"the value of index {number}")


def _number(token: str, what: str) -> float:
    number = float(token) if _NUMBER.fullmatch(token) else math.nan
    if not math.isfinite(number):
        raise SpecError(f"{what} must be a finite number such as 0.5 or -1, not {_cut(token)}")
    return number


def _cut(token: str) -> str:
    return shown(token if len(token) <= _LONGEST_SHOWN else f"{token[:_LONGEST_SHOWN]}...")


def read_rows(
    file: str, first_index: int = 1, progress: Callable[[int, int], None] | None = None
) -> Iterator[SparseRow]:
    """The rows of a file, plain or compressed by gzip, one by one.

    Parameters
    ----------
    file : str
        A path, or "-" for standard input.
    first_index : int
        Index of the first feature, 0 or 1.
    progress : callable or None
        Called now and then with the bytes of the file that were read and with all of them; 0 if unknown.

    Raises
    ------
    SpecError
        For a file that cannot be read, that is damaged or that has no row; for a bad line, with its number.
    """
    name = "standard input" if file == STANDARD_INPUT else file
    rows = 0
    with _opened(file, name) as (raw, size):
        for number, line in enumerate(_lines(raw, name), 1):
            try:
                row = read_row(line.removeprefix(_BOM) if number == 1 else line, first_index)
            except SpecError as error:
                raise SpecError(f"{name}, line {number}: {error}; nothing was loaded") from None
            if progress is not None and number % 1000 == 0:
                progress(raw.tell() if size else 0, size)
            if row is not None:
                rows += 1
                yield row
    if rows == 0:
        raise SpecError(f"{name} has no rows: every line is empty or a comment")


@contextmanager
def _opened(file: str, name: str) -> Iterator[tuple[BinaryIO, int]]:
    """The bytes of a file, and how many there are; 0 if unknown."""
    if file == STANDARD_INPUT:
        if sys.stdin is None:
            raise SpecError("standard input is closed: give the name of a file")
        yield sys.stdin.buffer, 0
        return
    with ExitStack() as opened:
        try:
            raw = opened.enter_context(Path(file).open("rb"))
        except OSError as error:
            raise SpecError(f"{name}: {error.strerror}") from None
        yield raw, Path(file).stat().st_size


def _lines(raw: BinaryIO, name: str) -> Iterator[str]:
    buffered = raw if isinstance(raw, io.BufferedReader) else io.BufferedReader(raw)  # type: ignore[type-var]
    number = 0
    try:
        packed = buffered.peek(len(_GZIP)).startswith(_GZIP)
        for line in gzip.GzipFile(fileobj=buffered) if packed else buffered:
            number += 1
            yield line.decode("utf-8")
    except UnicodeDecodeError:
        raise SpecError(
            f"{name}, line {number}: this is no text of UTF-8, so no svmlight file, or a packed one: "
            "gzip is read as it is, unpack other formats first; nothing was loaded"
        ) from None
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise SpecError(
            f"{name} is damaged or cut off after line {number}: fetch it again; nothing was loaded"
        ) from None
    except OSError as error:
        raise SpecError(f"{name}: {error.strerror}") from None
