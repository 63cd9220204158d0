# SPDX-License-Identifier: PostgreSQL
"""Bounds, levels and lengths of columns, read from CHECK constraints in the text form of pg_get_expr.

Only expressions of these forms are understood; others are ignored.

::

    x >= 0 AND x < 120, x BETWEEN 0 AND 120     bounds; numbers, dates and timestamps
    x IN ('a', 'b'), x = 'a' OR x = 'b'         levels
    cardinality(x) = 3, array_length(x, 1) = 3  length
    x IS NULL OR ..., x IS NOT NULL AND ...     the rest of the expression
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal

__all__ = ["DOMAIN_VALUE", "Bound", "Facts", "column_facts"]

DOMAIN_VALUE = ""
"""Name that `column_facts` gives to VALUE in a domain's constraint."""

_NUMBER_TYPES = {"smallint", "integer", "bigint", "numeric", "real", "double precision"}
_TIME_TYPES = {"date", "timestamp without time zone", "timestamp with time zone"}
_TEXT_TYPES = {"text", "character varying", "bpchar", "character", "name", '"char"'}
_LENGTH_CALLS = {"cardinality", "array_length", "vector_dims"}
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "="}
_ISO = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}( [0-9:.]+([+-][0-9:]+)?)?")


@dataclass(frozen=True)
class Bound:
    """A bound of a column.

    Attributes
    ----------
    value : Decimal or str
        A number, or a date or timestamp in ISO form.
    strict : bool
        Whether the bound itself is excluded.
    """

    value: Decimal | str
    strict: bool


@dataclass(frozen=True)
class Facts:
    """What constraints require of one column; None where they require nothing."""

    lower: Bound | None = None
    upper: Bound | None = None
    levels: tuple[str | Decimal, ...] | None = None
    length: int | None = None

    def both(self, other: Facts) -> Facts:
        """The facts if both hold: the tighter bounds, and levels and length of the first that has them."""
        return Facts(
            lower=_tighter(self.lower, other.lower, 1),
            upper=_tighter(self.upper, other.upper, -1),
            levels=self.levels if self.levels is not None else other.levels,
            length=self.length if self.length is not None else other.length,
        )


def _tighter(one: Bound | None, two: Bound | None, sign: int) -> Bound | None:
    if one is None or two is None:
        return one or two
    if isinstance(one.value, Decimal) and isinstance(two.value, Decimal):
        difference = sign * (one.value - two.value)
    elif isinstance(one.value, str) and isinstance(two.value, str) and len(one.value) == len(two.value):
        difference = Decimal(sign * ((one.value > two.value) - (one.value < two.value)))
    else:
        return one
    if difference == 0:
        return one if one.strict else two
    return one if difference > 0 else two


def column_facts(expression: str) -> dict[str, Facts]:
    """What a constraint requires of each column.

    Parameters
    ----------
    expression : str
        Expression of a CHECK constraint of a table, or of a domain (see `DOMAIN_VALUE`), by pg_get_expr.
        Dates must be in ISO form.

    Returns
    -------
    dict of str to Facts
        Only columns with a requirement that is understood.
    """
    try:
        return _understand(_Parser(expression).whole())
    except _UnknownFormError:
        return {}


class _UnknownFormError(Exception):
    """The expression is of no form that is understood."""


# Expressions


@dataclass(frozen=True)
class _Column:
    name: str


@dataclass(frozen=True)
class _Constant:
    text: str
    type: str


@dataclass(frozen=True)
class _List:
    """An array of constants; or `ANY (array)`."""

    items: tuple[_Constant, ...]


@dataclass(frozen=True)
class _Call:
    """A function, or an operator by its symbol, or AND and OR."""

    name: str
    arguments: tuple[_Node, ...]


_Node = _Column | _Constant | _List | _Call

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<string>'(?:[^']|'')*')
      | (?P<quoted>"(?:[^"]|"")*")
      | (?P<number>[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|\.[0-9]+)
      | (?P<word>[^\W\d][\w$]*)
      | (?P<mark>::|[()\[\],.])
      | (?P<operator>[-+*/<>=~!@\#%^&|`?]+)
    )""",
    re.VERBOSE,
)
_RESERVED = {"AND", "OR", "NOT", "IS", "ANY", "ARRAY", "NULL", "CASE"}


class _Parser:
    """Recursive descent over the forms above; every operator's arguments are in parentheses."""

    def __init__(self, text: str) -> None:
        self.tokens: list[tuple[str, str]] = []
        at = 0
        text = text.rstrip()
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None or match.lastgroup is None:
                raise _UnknownFormError
            self.tokens.append((match.lastgroup, match[match.lastgroup]))
            at = match.end()
        self.at = 0

    def whole(self) -> _Node:
        node = self.disjunction()
        if self.at < len(self.tokens):
            raise _UnknownFormError
        return node

    def peek(self) -> tuple[str, str]:
        return self.tokens[self.at] if self.at < len(self.tokens) else ("end", "")

    def take(self, text: str) -> bool:
        kind, found = self.peek()
        if found != text or kind in ("string", "quoted"):
            return False
        self.at += 1
        return True

    def require(self, text: str) -> None:
        if not self.take(text):
            raise _UnknownFormError

    def disjunction(self) -> _Node:
        return self._chain("OR", lambda: self._chain("AND", self.comparison))

    def _chain(self, word: str, part: Callable[[], _Node]) -> _Node:
        parts = [part()]
        while self.take(word):
            parts.append(part())
        return parts[0] if len(parts) == 1 else _Call(word, tuple(parts))

    def comparison(self) -> _Node:
        if self.take("NOT"):
            return _Call("NOT", (self.comparison(),))
        left = self.operand()
        kind, symbol = self.peek()
        if kind == "operator":
            self.at += 1
            return _Call(symbol, (left, self.operand()))
        if self.take("IS"):
            words = ["IS"]
            while self.peek()[0] == "word" and self.peek()[1] not in ("AND", "OR"):
                words.append(self.peek()[1])
                self.at += 1
            return _Call(" ".join(words), (left,))
        return left

    def operand(self) -> _Node:
        node = self.primary()
        while self.take("::"):
            node = _cast(node, self.type())
        return node

    def primary(self) -> _Node:
        kind, text = self.peek()
        self.at += 1
        if text == "(" and kind == "mark":
            node = self.disjunction()
            self.require(")")
            return node
        if kind == "string":
            return _Constant(text[1:-1].replace("''", "'"), "unknown")
        if kind == "number":
            return _Constant(text, "numeric")
        if kind == "quoted":
            return self._name(text[1:-1].replace('""', '"'))
        if kind != "word":
            raise _UnknownFormError
        if text == "ANY":
            return self.primary()
        if text == "ARRAY":
            return self._list()
        if text == "VALUE":
            return _Column(DOMAIN_VALUE)
        if text in _RESERVED:
            raise _UnknownFormError
        return self._name(text)

    def _name(self, name: str) -> _Node:
        if not self.take("("):
            return _Column(name)
        arguments: list[_Node] = []
        while not self.take(")"):
            arguments.append(self.disjunction())
            if self.peek() != ("mark", ")"):
                self.require(",")
        return _Call(name, tuple(arguments))

    def _list(self) -> _Node:
        self.require("[")
        items: list[_Constant] = []
        while not self.take("]"):
            item = self.operand()
            if not isinstance(item, _Constant):
                raise _UnknownFormError
            items.append(item)
            if self.peek() != ("mark", "]"):
                self.require(",")
        return _List(tuple(items))

    def type(self) -> str:
        """A type's name, without modifiers; words of SQL's own types are several."""
        words = []
        while self.peek()[0] in ("word", "quoted") and self.peek()[1] not in _RESERVED:
            words.append(self.peek()[1])
            self.at += 1
            if self.take("."):
                words.pop()
            elif self.take("("):
                while not self.take(")"):
                    self.at += 1
                    if self.at > len(self.tokens):
                        raise _UnknownFormError
        if not words:
            raise _UnknownFormError
        if self.take("["):
            self.require("]")
            words[-1] += "[]"
        return " ".join(words)


def _cast(node: _Node, name: str) -> _Node:
    """Drop casts that keep the order of numbers or the text of texts; treat others as unknown functions."""
    if isinstance(node, _Constant) and not name.endswith("[]"):
        return _Constant(node.text, name)
    if isinstance(node, _List) or name in _NUMBER_TYPES or name in _TEXT_TYPES:
        return node
    return _Call(f"::{name}", (node,))


# Their meaning


def _understand(node: _Node) -> dict[str, Facts]:
    if not isinstance(node, _Call):
        return {}
    if node.name == "AND":
        found: dict[str, Facts] = {}
        for part in node.arguments:
            for name, facts in _understand(part).items():
                found[name] = found.get(name, Facts()).both(facts)
        return found
    if node.name == "OR":
        return _either(node.arguments)
    if node.name in _MIRRORED and len(node.arguments) == 2:
        return _compare(node.name, *node.arguments)
    return {}


def _either(parts: Sequence[_Node]) -> dict[str, Facts]:
    """Join the levels of one column; ignore a part that only allows NULL."""
    tests = [part for part in parts if isinstance(part, _Call) and part.name == "IS NULL"]
    nullable = {test.arguments[0] for test in tests}
    rest = [_understand(part) for part in parts if part not in tests]
    if len(rest) == 1:
        return {name: facts for name, facts in rest[0].items() if nullable == {_Column(name)}}
    names = {name for found in rest for name in found}
    if len(names) != 1 or not nullable <= {_Column(name) for name in names}:
        return {}
    (name,) = names
    levels = [found[name].levels if name in found else None for found in rest]
    if any(some is None for some in levels):
        return {}
    return {name: Facts(levels=tuple(dict.fromkeys(level for some in levels for level in some or ())))}


def _compare(symbol: str, left: _Node, right: _Node) -> dict[str, Facts]:
    if isinstance(left, _Constant):
        left, right, symbol = right, left, _MIRRORED[symbol]
    if isinstance(left, _Column) and symbol == "=" and isinstance(right, _List | _Constant):
        items = right.items if isinstance(right, _List) else (right,)
        return {left.name: Facts(levels=tuple(dict.fromkeys(map(_level, items))))} if items else {}
    if not isinstance(right, _Constant):
        return {}
    value = _ordered(right)
    if isinstance(left, _Column) and value is not None and symbol != "=":
        bound = Bound(value, strict=len(symbol) == 1)
        return {left.name: Facts(lower=bound) if symbol[0] == ">" else Facts(upper=bound)}
    if isinstance(left, _Call) and left.name in _LENGTH_CALLS and symbol == "=":
        column, *dimension = left.arguments
        if isinstance(column, _Column) and dimension in ([], [_Constant("1", "numeric")]):
            return {column.name: Facts(length=int(right.text))} if right.text.isdecimal() else {}
    return {}


def _ordered(constant: _Constant) -> Decimal | str | None:
    """The finite number, date or timestamp that a constant is; None for any other."""
    if constant.type in _NUMBER_TYPES:
        value = Decimal(constant.text)
        return value if value.is_finite() else None
    if constant.type in _TIME_TYPES and _ISO.fullmatch(constant.text):
        return constant.text
    return None


def _level(constant: _Constant) -> str | Decimal:
    number = _ordered(constant)
    return number if number is not None else constant.text
