# SPDX-License-Identifier: PostgreSQL
"""Entries of scripts/reproduce: one file of reproduce.d is one figure or table of a paper."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from pg_dpml import Relation
from pg_dpml.errors import SpecError
from pg_dpml.spec.files import read_toml
from pg_dpml.training.method import methods as registered

ENTRIES = Path(__file__).resolve().parents[1] / "reproduce.d"

SIZES = ("full", "quick", "smallest")
AUTO, AUTO_LINEAR, CEILING = "auto", "auto, linear", "without privacy"
CURVED = ("adult", "bank", "california", "covertype", "covertype2", "kdd", "kdd70k")
"""Data sets of whose numbers `auto` makes curves, where delta is above 0."""
AS_PUBLISHED = "as published"
MADE_ROWS = "made rows"
"""In place of a data set, in entries about run time."""

P = TypeVar("P")


def make(kind: type[P], given: Mapping[str, Any], where: str) -> P:
    """A dataclass of the keys of a table.

    Raises
    ------
    SpecError
        For a key that there is not.
    """
    known = [one.name for one in fields(kind)]  # type: ignore[arg-type]
    for name in given:
        if name not in known:
            raise SpecError(f"{where}: there is no key {name}; keys are {', '.join(known)}")
    return kind(**given)


@dataclass(frozen=True)
class Group:
    """Lines that one panel has for every data set.

    Attributes
    ----------
    name : str
        As it stands above a panel; empty for the only group of an entry.
    x : str
        What the panel has from left to right: "epsilon", or an option of methods.
    values : tuple
        Of x.
    quick : tuple
        Of x, at size quick.
    epsilon : float or None
        Of all lines, where x is something else.
    delta : float or None
        None: 1/n^2.
    """

    name: str = ""
    x: str = "epsilon"
    values: Sequence[Any] = ()
    quick: Sequence[Any] = ()
    epsilon: float | None = None
    delta: float | None = None

    def of_size(self, size: str) -> Sequence[Any]:
        """The values of x at a size."""
        small = self.quick or self.values
        return {"full": self.values, "quick": small, "smallest": small[:1]}[size]


@dataclass(frozen=True)
class Line:
    """A line of a panel.

    Attributes
    ----------
    label : str
    method : str
        Of the product.
    options : mapping
        As in a grid file, `lambda` without an underscore.
    groups, data : tuple of str
        Where it is drawn; empty for everywhere.
    grid : mapping
        Options that are chosen privately, by Algorithm 3 of Wu et al.
    published : mapping
        `kind`, a function of published.py: makes another line, with that noise. `method`, `options`,
        `groups` and `data` may differ from those of the line.
    noise : str
        "ours"; or the kind of published noise.
    """

    label: str
    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    groups: Sequence[str] = ()
    data: Sequence[str] = ()
    grid: Mapping[str, Any] = field(default_factory=dict)
    published: Mapping[str, Any] = field(default_factory=dict)
    noise: str = "ours"

    @property
    def private(self) -> bool:
        """Whether its method gives a guarantee."""
        return registered()[self.method].private

    @property
    def of_two_candidates(self) -> Line:
        """The line with a grid of two candidates, if it has a grid."""
        counts = {name: 2 if place == 0 else 1 for place, name in enumerate(self.grid)}
        return replace(self, grid={name: self.grid[name][:count] for name, count in counts.items()})

    def is_in(self, data: str, group: Group) -> bool:
        """Whether it is drawn in a panel."""
        return (not self.groups or group.name in self.groups) and (not self.data or data in self.data)

    @property
    def as_published(self) -> Line | None:
        """The line with the published noise, if there is one to tell from ours."""
        if not self.published:
            return None
        return replace(
            self,
            label=f"{self.label} {AS_PUBLISHED}",
            method=self.published.get("method", self.method),
            options=self.published.get("options", self.options),
            groups=self.published.get("groups", self.groups),
            data=self.published.get("data", self.data),
            published={},
            noise=self.published["kind"],
        )


@dataclass(frozen=True)
class Reported:
    """Figures that a paper reports.

    Attributes
    ----------
    data, group : str
    x : float
    where : str
        Section, figure or table.
    values : mapping
        By the label of a line.
    plot : bool
        Whether they were read off a picture.
    """

    data: str
    x: float
    where: str
    values: Mapping[str, float]
    group: str = ""
    plot: bool = False


@dataclass(frozen=True)
class Claim:
    """What a paper says of its figure, as a comparison of lines that can be made again.

    Attributes
    ----------
    text, where : str
    better : str
        A line.
    than : tuple of str
        Lines that it is better than.
    data, groups : tuple of str
        Where; empty for everywhere.
    at : tuple
        Values of x; empty for all.
    not_worse : bool
        The claim is that the line is not worse, so that a level point counts for it.
    within : float
        In units of the figure: what counts as level; 0 for the spread.
    """

    text: str
    where: str
    better: str
    than: Sequence[str]
    at: Sequence[Any] = ()
    not_worse: bool = False
    within: float = 0.0
    data: Sequence[str] = ()
    groups: Sequence[str] = ()


@dataclass(frozen=True)
class Entry:
    """A figure or table.

    Attributes
    ----------
    name, paper, number, title : str
    data : tuple of str
        Data sets of tables.py.
    kind : str
        "quality", or "time" for the entries of timing.py.
    measure : str
        "accuracy" (or R squared) or "loss", the mean logistic loss of the test rows.
    relation : str
    splits : int
    ceiling : str
        The method that is not private, with `ceiling_options`.
    groups, lines, reported, claims
    missing : tuple of mapping
        `what` of the publication is not drawn, and `why`.
    why : str
        What makes figures differ from the published ones.
    auto_why : str
        Why auto is not first, where it is not.
    time : mapping
        Of an entry of kind "time".
    """

    name: str
    paper: str
    number: str
    title: str
    data: Sequence[str] = ()
    kind: str = "quality"
    measure: str = "accuracy"
    relation: str = "replace_one"
    splits: int = 1
    ceiling: str = "lbfgs"
    ceiling_options: Mapping[str, Any] = field(default_factory=dict)
    groups: Sequence[Group] = ()
    lines: Sequence[Line] = ()
    reported: Sequence[Reported] = ()
    claims: Sequence[Claim] = ()
    missing: Sequence[Mapping[str, str]] = ()
    why: str = ""
    auto_why: str = ""
    time: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_toml(cls, path: Path) -> Entry:
        """Read a file."""
        given, where = read_toml(path), path.name
        own = {
            name: given.pop(name) for name in ("x", "values", "quick", "epsilon", "delta") if name in given
        }
        groups = [own | group for group in given.pop("group", [{}])]
        lines = [make(Line, line, where) for line in given.pop("method", [])]
        if given.get("kind", "quality") == "quality":
            ceiling = given.get("ceiling", "lbfgs")
            curved = [data for data in given.get("data", ()) if data in CURVED]
            approximate = [group.get("name", "") for group in groups if group.get("delta") != 0.0]
            linear = Line(AUTO_LINEAR, "auto", {"features": "linear"}, approximate, curved)
            lines = [
                Line(AUTO, "auto"),
                *([linear] if curved and approximate else []),
                *lines,
                Line(CEILING, ceiling, given.get("ceiling_options", {})),
            ]
        parts = {
            "groups": [make(Group, group, where) for group in groups],
            "lines": lines,
            "reported": [make(Reported, one, where) for one in given.pop("reported", [])],
            "claims": [make(Claim, one, where) for one in given.pop("claim", [])],
        }
        return make(cls, {"name": path.stem, **given, **parts}, where)

    def panels(self) -> Iterator[tuple[str, Group]]:
        """Data set and group of each panel."""
        for data in self.data or (MADE_ROWS,):
            for group in self.groups:
                yield data, group

    def lines_of(self, data: str, group: Group) -> Iterator[Line]:
        """The lines of a panel, each with its published noise after it."""
        for line in self.lines:
            for one in (line, line.as_published):
                if one is not None and one.is_in(data, group):
                    yield one

    @property
    def neighbours(self) -> Relation:
        """The relation of its guarantees."""
        return Relation(self.relation)


def names() -> list[str]:
    """Of all entries, in the order of their files."""
    return sorted(path.stem for path in ENTRIES.glob("*.toml"))


def read(name: str) -> Entry:
    """An entry by its name."""
    return Entry.from_toml(ENTRIES / f"{name}.toml")
