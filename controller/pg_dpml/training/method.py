# SPDX-License-Identifier: PostgreSQL
"""A method as one object: its options, its plan, its guarantee card and examples; and the registry of all.

A method is a subclass of `PrivateMethod` or `Baseline` in a module of `pg_dpml.methods`, decorated with
`register`. Nothing else in the package lists methods.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from pg_dpml.errors import SpecError
from pg_dpml.spec.privacy import PrivacySpec
from pg_dpml.training.losses import LOSS_OF_TASK
from pg_dpml.training.options import Option, Options
from pg_dpml.training.plan import Plan, Problem

__all__ = [
    "Baseline",
    "Card",
    "Example",
    "Method",
    "PrivateMethod",
    "declared_option",
    "method_options",
    "methods",
    "nearest_method",
    "private_methods",
    "register",
    "without_comparisons",
]

O = TypeVar("O", bound=Options)  # noqa: E741
M = TypeVar("M", bound="type[Method[Any]]")


@dataclass(frozen=True)
class Example:
    """A run of a method that shows one of its ways: tests of leaks, faults and tiny tables take each.

    Attributes
    ----------
    task : str
        "binary", "multiclass" or "regression".
    options : mapping
        As `TrainSpec` takes them.
    """

    task: str = "binary"
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Card:
    """The guarantee of a method on one card, in Markdown; docs/guarantees.md is made of them.

    Attributes
    ----------
    theorem, sensitivity, checked, charged : str
        What it rests on, how far one unit moves what is released, what is checked before a charge, and what
        is charged.
    post_processing : str
        What costs nothing, because it sees noisy numbers only.
    corrected : str
        What differs from the publication, and why.
    title : str
        Of one of several ways of a method.
    """

    theorem: str
    sensitivity: str
    checked: str
    charged: str
    corrected: str
    post_processing: str = ""
    title: str = ""


class Method(ABC, Generic[O]):
    """What all methods are.

    Attributes
    ----------
    name : str
        As in `TrainSpec`, the command line and dpml.models.
    private : bool
    summary : str
        What it does, in one clause.
    cards : tuple of Card
        One for each of its ways that has a guarantee of its own.
    options : type
        Its options.
    examples : tuple of Example
        At least one.
    losses : mapping
        Losses that it takes, by task, the default first; those with a gradient unless it says otherwise.
    comparison : bool
        Whether it is here to compare with publications only: no message suggests such a method where
        another one will do, and plans say so.
    """

    name: str
    private: bool
    summary: str
    cards: tuple[Card, ...]
    options: type[O]
    examples: tuple[Example, ...]
    losses: Mapping[str, tuple[str, ...]] = LOSS_OF_TASK
    comparison: bool = False

    @abstractmethod
    def decide(self, problem: Problem, privacy: PrivacySpec | None, options: O) -> Plan:
        """Fix passes and noise from public numbers.

        Raises
        ------
        SpecError
            If options do not go together, or privacy is given just where it has no meaning.
        GuaranteeError
            If the method cannot give the guarantee.
        """


class PrivateMethod(Method[O]):
    """A method with a guarantee."""

    private = True

    def decide(self, problem: Problem, privacy: PrivacySpec | None, options: O) -> Plan:
        """As of `Method`; privacy is needed."""
        if privacy is None:
            raise SpecError(
                f"method {self.name} needs epsilon: give one, such as --epsilon 1 (in Python "
                "PrivacySpec(1)); a smaller one is a stronger guarantee, and more noise"
            )
        _require_loss(self, problem, options)
        return self.plan(problem, privacy, options)

    @abstractmethod
    def plan(self, problem: Problem, privacy: PrivacySpec, options: O) -> Plan:
        """Fix passes and noise from public numbers; errors as of `Method.decide`."""


class Baseline(Method[O]):
    """A method without a guarantee, to compare with; every report says so."""

    private = False

    def decide(self, problem: Problem, privacy: PrivacySpec | None, options: O) -> Plan:
        """As of `Method`; privacy is refused."""
        if privacy is not None:
            raise SpecError(f"method {self.name} is not private: leave epsilon and delta out")
        _require_loss(self, problem, options)
        return self.plan(problem, options)

    @abstractmethod
    def plan(self, problem: Problem, options: O) -> Plan:
        """Fix the passes from public numbers; errors as of `Method.decide`."""


def _require_loss(method: Method[Any], problem: Problem, options: Options) -> None:
    """Refuse a loss that other methods take and this one does not, by their names.

    Raises
    ------
    SpecError
    """
    loss = options.given().get("loss")
    if loss is None or loss in method.losses.get(problem.task, ()):
        return
    able = [
        name
        for name, other in methods().items()
        if other.private == method.private and loss in other.losses.get(problem.task, ())
    ]
    if able:
        raise SpecError(
            f"method = {method.name} does not take loss = {loss}: take another loss, "
            f"or method = {' or '.join(without_comparisons(able))}"
        )


def without_comparisons(names: Collection[str]) -> list[str]:
    """Those of some methods that are not for comparison only; all of them where there are no others."""
    return [name for name in names if not methods()[name].comparison] or list(names)


def nearest_method(method: Method[Any], names: Collection[str]) -> str:
    """Which of some methods to take in place of this one: as private, and with the most of its options."""
    own = method.options.declared().keys()

    def distance(name: str) -> tuple[bool, int]:
        other = methods()[name]
        return other.private != method.private, -len(own & other.options.declared().keys())

    return min(without_comparisons(names), key=distance)


_REGISTERED: dict[str, Method[Any]] = {}


def register(method: M) -> M:
    """Add a method to the registry, a decorator of its class."""
    if method.name in _REGISTERED:
        raise ValueError(f"two methods have the name {method.name}")
    _REGISTERED[method.name] = method()
    return method


@functools.cache
def methods() -> Mapping[str, Method[Any]]:
    """Every method by its name: `auto`, then the private ones, then the others."""
    package = importlib.import_module("pg_dpml.methods")
    for module in pkgutil.iter_modules(package.__path__, "pg_dpml.methods."):
        importlib.import_module(module.name)
    found = sorted(_REGISTERED.values(), key=lambda one: (one.name != "auto", not one.private, one.name))
    return {method.name: method for method in found}


def private_methods() -> tuple[str, ...]:
    """Names of the methods with a guarantee, `auto` first."""
    return tuple(name for name, method in methods().items() if method.private)


@functools.cache
def method_options() -> Mapping[str, Mapping[str, Option]]:
    """What each option is in each method that has it, by the name of the option's field."""
    found: dict[str, dict[str, Option]] = {}
    for name, method in methods().items():
        for field_name, declared in method.options.declared().items():
            found.setdefault(field_name, {})[name] = declared
    return found


def declared_option(name: str) -> Option:
    """What an option is in the first method that has it: its domain and its default are those of all."""
    return next(iter(method_options()[name].values()))
