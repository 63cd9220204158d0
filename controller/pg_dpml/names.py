# SPDX-License-Identifier: PostgreSQL
"""Names of tables, columns, models and the like: how they are read, and how messages show them."""

from __future__ import annotations

import difflib
import re
import string
import unicodedata
from collections.abc import Collection, Iterable

__all__ = [
    "did_you_mean",
    "nearest",
    "parse",
    "reads_as",
    "shown",
    "toml_key",
    "toml_text",
    "visible",
    "visible_lines",
]

_PART = r'(?:[^\s".]+|"(?:[^"]|"")+")'
_NAME = re.compile(rf"\s*{_PART}(?:\s*\.\s*{_PART})*\s*")
_PLAIN = re.compile(r"[^\s\"'`.,;:!?()\[\]{}\\]+")
_SHORT_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_BLANK = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Characters that Unicode calls printable, and that nothing is seen of."""

_UPPER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
"""How SQL folds a name that is not quoted: no other letters."""

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def parse(name: str) -> tuple[str, ...] | None:
    """The parts of a name that is written as in SQL.

    Parameters
    ----------
    name : str
        Parts separated by dots; a part in double quotes is taken as it is, with a doubled quote for a quote
        in it, and any other part is folded.

    Returns
    -------
    tuple of str or None
        None for what is no name in SQL.
    """
    if _NAME.fullmatch(name) is None:
        return None
    parts = re.findall(_PART, name)
    return tuple(p[1:-1].replace('""', '"') if p.startswith('"') else p.translate(_UPPER) for p in parts)


def reads_as(written: str, candidates: Collection[str]) -> str | None:
    """Which of the names of columns, roles and the like is meant: the one written exactly so, or as in SQL.

    The exact name comes first, since a file or a program that has read a name from the catalog quotes none.
    """
    if written in candidates:
        return written
    parts = parse(written)
    return parts[0] if parts is not None and len(parts) == 1 and parts[0] in candidates else None


def visible(text: str) -> str:
    r"""A text in which every character can be seen: others are written as \n, \ufeff and \U000e0020 are.

    Accents that are characters of their own are escaped where one character with the accent looks the same.
    """
    decomposed = unicodedata.normalize("NFC", text) != text
    return "".join(map(_escaped_mark if decomposed else _escaped, text))


def visible_lines(text: str) -> str:
    """As `visible`, of a text of several lines."""
    return "\n".join(map(visible, text.split("\n")))


def _escaped(character: str) -> str:
    if character.isprintable() and _BLANK.match(character) is None:
        return character
    code = ord(character)
    return _SHORT_ESCAPES.get(character) or (f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")


def _escaped_mark(character: str) -> str:
    return f"\\u{ord(character):04x}" if unicodedata.combining(character) else _escaped(character)


def shown(name: str) -> str:
    """A name, or a value that a column may have, as messages show it.

    In double quotes, with a doubled quote for a quote in it, where it would else not be told from the words
    around it; and with escapes for what cannot be seen.
    """
    escaped = visible(name)
    if escaped == name and _PLAIN.fullmatch(name):
        return name
    return '"' + escaped.replace('"', '""') + '"'


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """The candidate that a misspelt name is most like; None if it is like none.

    Case, blanks, and characters that cannot be seen make no difference.
    """
    by_key: dict[str, str] = {}
    for candidate in candidates:
        by_key.setdefault(_key(candidate), candidate)
    found = difflib.get_close_matches(_key(name), by_key, n=1)
    return by_key[found[0]] if found else None


def _key(name: str) -> str:
    text = unicodedata.normalize("NFKC", name).casefold()
    return "".join(c for c in text if not c.isspace() and _escaped(c) == c)


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """The end of a message about a name that does not exist: offers the nearest, if there is one."""
    found = nearest(name, candidates)
    return "" if found is None else f"; did you mean {shown(found)}?"


def toml_text(text: str) -> str:
    """A basic string of TOML."""
    return '"' + visible(text.replace("\\", "\\\\").replace('"', '\\"')) + '"'


def toml_key(name: str) -> str:
    """A key of TOML, quoted where it has to be."""
    return name if _BARE_KEY.fullmatch(name) else toml_text(name)
