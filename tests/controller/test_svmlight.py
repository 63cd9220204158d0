# SPDX-License-Identifier: PostgreSQL
"""Reading svmlight files: what is a row, and which errors name which line."""

from __future__ import annotations

import gzip
import io
import math
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pg_dpml.errors import SpecError
from pg_dpml.tables.svmlight import SparseRow, read_row, read_rows


@pytest.mark.parametrize(
    ("line", "label", "indices", "values"),
    [
        ("1 1:0.5 3:-2", 1, [1, 3], [0.5, -2]),
        ("+1 7:1e-3\r\n", 1, [7], [0.001]),
        ("-1\n", -1, [], []),
        ("  2.5   4:.5\t9:3.  \n", 2.5, [4, 9], [0.5, 3]),
        ("0 9:1 2:2 5:3", 0, [2, 5, 9], [2, 3, 1]),
        ("1 2:3 # 4:5 a comment", 1, [2], [3]),
        ("1 2:3# no blank", 1, [2], [3]),
        ("1 1048575:1", 1, [1048575], [1]),
        ("1 007:1", 1, [7], [1]),
        ("1 1:0", 1, [1], [0]),
        ("1 1:1e-999", 1, [1], [0]),
    ],
)
def test_rows(line: str, label: float, indices: list[int], values: list[float]) -> None:
    assert read_row(line, 1) == SparseRow(label, indices, values, False)


@pytest.mark.parametrize("line", ["", "\n", "\r\n", " \t ", "# 1 2:3", "   # x"])
def test_lines_without_a_row(line: str) -> None:
    assert read_row(line, 1) is None


def test_queries_are_left_out() -> None:
    assert read_row("3 qid:17 1:0.5", 1) == SparseRow(3.0, [1], [0.5], True)


def test_indices_from_0_are_asked_for() -> None:
    assert read_row("1 0:2 4:1", 0) == SparseRow(1.0, [0, 4], [2.0, 1.0], False)
    with pytest.raises(SpecError, match=r"index 0, and the first feature .* say --first-index 0"):
        read_row("1 0:2 4:1", 1)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("a 1:2", "the label, which comes first, must be a finite number"),
        ("1:2 3:4", 'the label, which comes first, must be a finite number .* not "1:2"'),
        ("nan 1:2", "the label"),
        ("1,2 1:2", "the label"),
        ("1e999 1:2", "the label"),
        ("1 2", "2 is no index:value"),
        ("1 2 :3", "2 is no index:value"),
        ("1 2: 3", "the value of index 2 must be a finite number"),
        ("1 :3", "is no index:value"),
        ("1 -2:3", "is no index:value"),
        ("1 1.5:3", "is no index:value"),
        ("1 1_0:3", "is no index:value"),
        ("1 ２:3", "is no index:value"),
        ("1 sid:3", "is no index:value"),
        ("1 1:2 qid:3", "is no index:value"),
        ("1 1:2:3", "the value of index 1 must be a finite number"),
        ("1 1:x", "the value of index 1 must be a finite number"),
        ("1 1:inf", "the value of index 1 must be a finite number"),
        ("1 1:NaN", "the value of index 1 must be a finite number"),
        ("1 1:1e400", "the value of index 1 must be a finite number"),
        ("1 1:1_0", "the value of index 1 must be a finite number"),
        ("1 1:0x1", "the value of index 1 must be a finite number"),
        ("1 7:1 3:2 7:1", "index 7 is there twice"),
        ("1 7:1 7:1", "index 7 is there twice"),
        ("1 1048576:1", "at most 1,048,575 features: leave rare features out of the file, or hash all"),
        (f"1 {'9' * 5000}:1", "at most 1,048,575 features"),
        (f"1 1:{'x' * 5000}", r'not "x{40}\.\.\."$'),
    ],
)
def test_bad_lines(line: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        read_row(line, 1)


@given(
    st.floats(allow_nan=False, allow_infinity=False),
    st.dictionaries(st.integers(1, 2**20 - 1), st.floats(allow_nan=False, allow_infinity=False), max_size=9),
    st.randoms(),
)
def test_what_is_written_is_read(label: float, features: dict[int, float], random: object) -> None:
    pairs = list(features.items())
    random.shuffle(pairs)  # type: ignore[attr-defined]
    row = read_row(" ".join([repr(label), *(f"{index}:{value!r}" for index, value in pairs)]), 1)
    assert row == SparseRow(label, sorted(features), [features[i] for i in sorted(features)], False)


@given(st.text())
def test_any_text_is_a_row_or_a_clear_error(line: str) -> None:
    said = ""
    try:
        row = read_row(line, 1)
    except SpecError as error:
        row, said = None, str(error)
    assert row is None or (math.isfinite(row.label) and all(map(math.isfinite, row.values)))
    assert not said or 10 < len(said) < 400


FILE = b"# from somewhere\r\n+1 1:0.5 3:2\r\n\r\n-1 qid:3 2:1 # the last\n0"


@pytest.mark.parametrize("packed", [False, True])
def test_files(tmp_path: Path, packed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain and compressed, whatever the name; with CRLF, blank lines, comments, and no last line feed."""
    data = gzip.compress(FILE) if packed else b"\xef\xbb\xbf" + FILE
    path = tmp_path / "rows"
    path.write_bytes(data)
    wanted = [(1.0, [1, 3]), (-1.0, [2]), (0.0, [])]
    assert [(row.label, row.indices) for row in read_rows(str(path))] == wanted
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert [(row.label, row.indices) for row in read_rows("-")] == wanted


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "has no rows"),
        (b"\n# nothing\n\n", "has no rows"),
        (gzip.compress(b"", mtime=0), "has no rows"),
        (b"1 1:2\n\n# 1\n1 3:x\n", "line 4: the value of index 3 .*; nothing was loaded"),
        (gzip.compress(b"1 1:2\n1 0:2\n", mtime=0), "line 2: index 0"),
        (b"1 1:2\n\xff\xfe 1", "line 2: this is no text of UTF-8"),
        (b"1 1:2\n" + b"BZh91AY&SY\xd1\xd2", "line 2: this is no text of UTF-8"),
        (gzip.compress(b"1 1:2\n" * 9000, mtime=0)[:-20], "is damaged or cut off after line"),
        (gzip.compress(b"1 1:2\n", mtime=0)[:5] + b"\0" * 9, "is damaged or cut off after line 0"),
        (gzip.compress(b"1 1:2\n", mtime=0)[:-8] + b"\1" * 8, "is damaged or cut off after line 1"),
        (b"+1 1:2\r-1 2:3\r", "line 1: 2:3 is no index:value|line 1: -1 is no index:value"),
    ],
)
def test_bad_files(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "rows.svm"
    path.write_bytes(data)
    with pytest.raises(SpecError, match=message):
        list(read_rows(str(path)))


def test_files_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SpecError, match=r"nowhere\.svm: No such file"):
        list(read_rows(str(tmp_path / "nowhere.svm")))
    with pytest.raises(SpecError, match="Is a directory"):
        list(read_rows(str(tmp_path)))
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(SpecError, match="standard input is closed"):
        list(read_rows("-"))


def test_progress_is_told_in_bytes(tmp_path: Path) -> None:
    path = tmp_path / "rows.svm"
    path.write_text("1 1:2\n" * 5000, encoding="utf-8")
    told: list[tuple[int, int]] = []
    rows = list(read_rows(str(path), progress=lambda done, size: told.append((done, size))))
    assert len(rows) == 5000
    assert len(told) == 5
    assert told[-1] == (30000, 30000)
