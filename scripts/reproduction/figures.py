# SPDX-License-Identifier: PostgreSQL
"""What stored cells say: means over splits, verdicts on claims, and where auto is not first."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from reproduction import tables
from reproduction.entries import AUTO, AUTO_LINEAR, CEILING, Claim, Entry, Group, Line

Place = tuple[str, str, str, Any]
"""Data, group, label, x."""

LEAST_DIFFERENCE = 0.3
"""In points of accuracy: what is less says nothing."""
LEAST_EPSILON = 0.05
"""Below it auto need not be first."""


@dataclass(frozen=True)
class Point:
    """A line at one x.

    Attributes
    ----------
    values : tuple of float
        One a split.
    gives : float or None
        The epsilon that a published noise gives; infinity for none.
    rejected : str or None
        Why the product does not run it.
    """

    values: tuple[float, ...]
    gives: float | None = None
    rejected: str | None = None

    @property
    def mean(self) -> float | None:
        """Over the splits."""
        return statistics.fmean(self.values) if self.values else None

    @property
    def deviation(self) -> float:
        """Of one split; 0 for a single one."""
        return statistics.stdev(self.values) if len(self.values) > 1 else 0.0


def points_of(entry: Entry, results: Mapping[str, Any]) -> dict[Place, Point]:
    """The points of the file of an entry."""
    measure = "pass_seconds" if entry.kind == "time" else entry.measure
    found: dict[Place, list[Mapping[str, Any]]] = {}
    for cell in results["cells"]:
        found.setdefault((cell["data"], cell["group"], cell["label"], cell["x"]), []).append(cell)
    return {place: _point(cells, measure) for place, cells in found.items()}


def _point(cells: list[Mapping[str, Any]], measure: str) -> Point:
    gives = None
    if "gives" in cells[0]:
        gives = max(math.inf if one["gives"] is None else float(one["gives"]) for one in cells)
    values = tuple(float(one[measure]) for one in cells if measure in one)
    return Point(values, gives, next((one["rejected"] for one in cells if "rejected" in one), None))


def unit_of(entry: Entry, data: str) -> float:
    """1 for a percentage, 0.01 for R squared, a loss or seconds, whose small differences count."""
    if entry.kind == "time" or entry.measure == "loss":
        return 0.01
    return 0.01 if tables.read(data).regression else 1.0


def sign_of(entry: Entry) -> float:
    """1 where more is better."""
    return -1.0 if entry.kind == "time" or entry.measure == "loss" else 1.0


def xs_of(points: Mapping[Place, Point], data: str, group: Group) -> list[Any]:
    """The values of x that a panel has points at."""
    found = {x for one, name, _, x in points if one == data and name == group.name}
    return [x for x in group.values if x in found]


def epsilon_at(group: Group, x: Any) -> float:
    """The epsilon that a paper names at a point."""
    return float(x if group.x == "epsilon" else group.epsilon or 0.0)


def keeps(group: Group, x: Any, point: Point) -> bool:
    """Whether a published noise gives the epsilon that it names."""
    return point.gives is None or point.gives <= epsilon_at(group, x) * (1.0 + 1e-6)


def private_lines(entry: Entry, data: str, group: Group) -> Iterator[Line]:
    """The lines of a panel whose guarantee holds: those with our noise."""
    for line in entry.lines_of(data, group):
        if line.private and line.noise == "ours" and line.label != CEILING:
            yield line


@dataclass(frozen=True)
class Behind:
    """A point at which auto is not first by more than `LEAST_DIFFERENCE` points."""

    data: str
    group: str
    x: Any
    best: str
    by: float


def auto_behind(
    entry: Entry, points: Mapping[Place, Point], *, linear: bool = False
) -> tuple[int, list[Behind]]:
    """How many points there are at epsilon >= 0.05, and those at which auto is behind.

    With `linear`, auto without curves where it has any, among lines that have none.
    """
    counted, found = 0, []
    for data, group in entry.panels():
        for x in xs_of(points, data, group):
            auto = points.get((data, group.name, AUTO, x))
            if linear:
                auto = points.get((data, group.name, AUTO_LINEAR, x), auto)
            if auto is None or auto.mean is None or epsilon_at(group, x) < LEAST_EPSILON:
                continue
            counted += 1
            others = {
                line.label: sign_of(entry) * (mean - auto.mean)
                for line in private_lines(entry, data, group)
                if not (linear and line.label == AUTO)
                if (mean := getattr(points.get((data, group.name, line.label, x)), "mean", None)) is not None
            }
            best = max(others, key=lambda label: others[label], default=AUTO)
            if others.get(best, 0.0) > LEAST_DIFFERENCE * unit_of(entry, data):
                found.append(Behind(data, group.name, x, best, others[best]))
    return counted, found


@dataclass(frozen=True)
class Verdict:
    """Whether a claim holds: in how many comparisons its line is ahead, level and behind.

    A comparison is one data set, one setting and one other line.
    """

    ahead: int
    level: int
    behind: int
    not_worse: bool = False

    @property
    def words(self) -> str:
        """In one clause."""
        counted = self.ahead + self.level + self.behind
        if counted == 0:
            return "not measured at this size"
        for name, count in (("ahead", self.ahead), ("level", self.level), ("behind", self.behind)):
            if count == counted:
                numbers = f"{name} in {'the one comparison' if counted == 1 else f'all {count} comparisons'}"
                break
        else:
            numbers = f"ahead in {self.ahead}, level in {self.level}, behind in {self.behind}"
            numbers += f" of {counted} comparisons"
        true = self.ahead + (self.level if self.not_worse else 0)
        name = "holds" if true == counted else "holds in part" if true else "does not hold"
        return f"**{name}** ({numbers})"


def verdict(entry: Entry, claim: Claim, points: Mapping[Place, Point]) -> Verdict:
    """A claim, with a difference below 0.3 points or both deviations together as level.

    Of run times a tenth is level, and where a claim says within what, that.
    """
    ahead = level = behind = 0
    for data, group in entry.panels():
        if (claim.data and data not in claim.data) or (claim.groups and group.name not in claim.groups):
            continue
        for x in xs_of(points, data, group):
            if claim.at and x not in claim.at:
                continue
            mine = points.get((data, group.name, claim.better, x))
            for other in claim.than:
                theirs = points.get((data, group.name, other, x))
                if mine is None or theirs is None or mine.mean is None or theirs.mean is None:
                    continue
                difference = sign_of(entry) * (mine.mean - theirs.mean)
                spread = max(
                    LEAST_DIFFERENCE * unit_of(entry, data), math.hypot(mine.deviation, theirs.deviation)
                )
                if entry.kind == "time":
                    spread = 0.1 * theirs.mean
                spread = claim.within or spread
                ahead += difference > spread
                behind += difference < -spread
                level += abs(difference) <= spread
    return Verdict(ahead, level, behind, claim.not_worse)
