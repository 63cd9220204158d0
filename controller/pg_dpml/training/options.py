# SPDX-License-Identifier: PostgreSQL
"""Options of methods: each has a domain, a default and one sentence, and stands in one place.

The command line, its help, `TrainSpec`, grid files, requests and docs/options.md are made from what is
declared with `option`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Protocol, TypeVar

from pg_dpml.errors import SpecError
from pg_dpml.spec.checks import as_choice, as_flag, as_number, require_whole

__all__ = [
    "HUGE",
    "TINY",
    "Choice",
    "Domain",
    "Flag",
    "Option",
    "Options",
    "Real",
    "Whole",
    "option",
    "shown_name",
]

TINY, HUGE = 1e-100, 1e100  # beyond them squares and quotients leave float64


class Domain(Protocol):
    """The values that an option may have."""

    @property
    def type(self) -> type:
        """Type of a value on the command line."""

    @property
    def text(self) -> str:
        """The domain in words."""

    def check(self, value: object, name: str) -> None:
        """Refuse a value outside of the domain, by name."""


@dataclass(frozen=True)
class Whole:
    """Whole numbers from 1 to `most`."""

    most: int
    type = int

    @property
    def text(self) -> str:
        """The domain in words."""
        return f"a whole number from 1 to {self.most:,}"

    def check(self, value: object, name: str) -> None:
        """Refuse a value outside of the domain, by name."""
        require_whole(value, name, self.most)


@dataclass(frozen=True)
class Real:
    """Numbers from `least` to `most`, these included unless `above` or `below` says otherwise."""

    least: float
    most: float
    above: bool = False
    below: bool = False
    type = float

    @property
    def text(self) -> str:
        """The domain in words."""
        return f"{'(' if self.above else '['}{self.least:g}, {self.most:g}{')' if self.below else ']'}"

    def check(self, value: object, name: str) -> None:
        """Refuse a value outside of the domain, by name."""
        number = as_number(value, name)
        if (
            number is None
            or not self.least <= number <= self.most
            or (self.above and number == self.least)
            or (self.below and number == self.most)
        ):
            raise SpecError(f"{name} must be in {self.text}, not {value!r}")


@dataclass(frozen=True)
class Choice:
    """One of some words."""

    choices: tuple[str, ...]
    type = str

    @property
    def text(self) -> str:
        """The domain in words."""
        return " | ".join(self.choices)

    def check(self, value: object, name: str) -> None:
        """Refuse a value outside of the domain, by name."""
        as_choice(value, name, self.choices)


@dataclass(frozen=True)
class Flag:
    """True or false."""

    type = bool
    text = "true | false"

    def check(self, value: object, name: str) -> None:
        """Refuse a value outside of the domain, by name."""
        as_flag(value, name)


@dataclass(frozen=True)
class Option:
    """What is declared of an option.

    Attributes
    ----------
    domain : Domain
    help : str
        One sentence on what it does.
    otherwise : str
        The default in words, where it is no constant; empty: see `default`.
    default : object
        None where the method decides by public numbers.
    """

    domain: Domain
    help: str
    otherwise: str
    default: Any


def option(domain: Domain, help: str, otherwise: str = "", default: Any = None) -> Any:
    """A field of `Options`; see `Option`."""
    return field(default=default, metadata={"option": Option(domain, help, otherwise, default)})


def shown_name(name: str) -> str:
    """An option as people write it: lambda is a word of Python, so that its field is lambda_."""
    return name.rstrip("_")


Own = TypeVar("Own", bound="Options")


@dataclass(frozen=True)
class Options:
    """The options of a method; a value that is its default counts as not given.

    Raises
    ------
    SpecError
        If a value is outside of its domain.
    """

    def __post_init__(self) -> None:
        for name, declared in self.declared().items():
            value = getattr(self, name)
            if value is not None or declared.default is not None:
                declared.domain.check(value, shown_name(name))

    @classmethod
    def declared(cls) -> dict[str, Option]:
        """What is declared of each option, by the name of its field."""
        return {f.name: f.metadata["option"] for f in fields(cls)}

    def given(self) -> Mapping[str, Any]:
        """The options that differ from their defaults."""
        return {
            name: getattr(self, name)
            for name, declared in self.declared().items()
            if getattr(self, name) != declared.default
        }

    def with_fixed_passes(self: Own) -> Own:
        """Options whose number of passes is fixed beforehand, where a default would leave it open."""
        return self
