# SPDX-License-Identifier: PostgreSQL
"""Reading spec files: text, TOML, and the places that a template leaves to fill in."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pg_dpml.errors import SpecError
from pg_dpml.names import toml_key

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = [
    "FILL_IN",
    "inner_table",
    "left_open",
    "parse_toml",
    "read_text",
    "read_toml",
]


FILL_IN = "FILL IN"
"""A template's placeholder for what only a person knows."""


def inner_table(keys: Mapping[str, Any]) -> tuple[str, ...]:
    """Path to the innermost table among the keys: TOML makes a table of each dot in an unquoted name."""
    for key, value in keys.items():
        if isinstance(value, Mapping):
            return (key, *inner_table(value))
    return ()


def read_toml(path: str | Path) -> dict[str, Any]:
    """The keys of a TOML file."""
    return parse_toml(read_text(path), str(path))


def read_text(path: str | Path) -> str:
    """Read a UTF-8 file, with or without a byte-order mark.

    Raises
    ------
    SpecError
        If the file cannot be read, or has another encoding, such as that of some Windows editors and shells.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise SpecError(f"{path}: {error.strerror}") from error
    wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in data
    if wide:
        raise SpecError(
            f"{path} is not text of UTF-8 but of UTF-16, or no text: save it as UTF-8 (in PowerShell with "
            "Out-File -Encoding utf8 in place of >)"
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise SpecError(
            f"{path} is not text of UTF-8 (line {line}, byte {error.start + 1}): save it as UTF-8, as an "
            "editor offers in Save As"
        ) from error


def parse_toml(text: str, where: str) -> dict[str, Any]:
    """The keys of a TOML document; errors begin with `where`, its origin."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"{where} is not a TOML file: {error}") from error


def left_open(value: object, place: str) -> Iterator[str]:
    """Paths of the keys that still have a template's placeholder."""
    if value == FILL_IN:
        yield place
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from left_open(item, f"{place}.{toml_key(key)}" if place else toml_key(key))
    elif isinstance(value, list):
        for item in value:
            yield from left_open(item, place)
