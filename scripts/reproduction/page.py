# SPDX-License-Identifier: PostgreSQL
"""docs/reproduction.md, made of the stored results alone."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from reproduction import draw, entries, figures, tables
from reproduction.cells import Record, read_results
from reproduction.entries import (
    AS_PUBLISHED,
    AUTO,
    AUTO_LINEAR,
    CEILING,
    MADE_ROWS,
    Entry,
    Group,
    Line,
)
from reproduction.figures import Place, Point

SENTENCES = Path(__file__).with_name("sentences.md")
PICTURES = "reproduction"
"""Folder of pictures and results, beside the page."""

WIDTH = 120
SIZES = {
    "full": "all rows",
    "quick": f"at most {tables.QUICK_ROWS:,} rows, one split",
    "smallest": f"{tables.SMALLEST_ROWS} rows that are made up, one split: figures that mean nothing",
}


class Page:
    """The page of the results in a folder.

    Parameters
    ----------
    folder : Path
        With the JSON files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.entries: list[Entry] = []
        self.results: dict[str, Record] = {}
        self.points: dict[str, dict[Place, Point]] = {}
        for name in entries.names():
            found = read_results(folder, name)
            if found is not None and found["cells"]:
                entry = entries.read(name)
                self.entries.append(entry)
                self.results[name] = found
                self.points[name] = figures.points_of(entry, found)

    def text(self) -> str:
        """The page in Markdown."""
        parts = [*self._head(), *self._sentences(), *self._auto(), *self._papers(), *self._how()]
        return "\n\n".join(parts) + "\n"

    def _head(self) -> Iterator[str]:
        yield "# The papers' comparison, with noise that keeps its promise"
        yield "<!-- Made by scripts/reproduce: change its entries, not this page. -->"
        yield _wrapped(
            "Which private method should I take, and what does it cost me? Here is every table and figure "
            "of the papers that pg_dpml implements which can be drawn on data at hand. All models are "
            "trained by the product, through its public interface. Each method is run with noise that gives "
            "the epsilon it names. Where the publication adds other noise, the method is run with that noise "
            "too, and the epsilon is shown that this noise really gives."
        )
        yield "\n".join(
            _item(line)
            for line in (
                f"`{AUTO}`, the default of pg_dpml, is on every figure: the line to beat. It alone makes "
                f"curves of numeric columns where the budget pays for them; `{AUTO_LINEAR}` is it without "
                "curves, which compares methods on the same features.",
                f"`{CEILING}` has no guarantee. It is the ceiling of the lines without curves.",
                f"`{AS_PUBLISHED}` is the published noise. *gives 2.1* is the epsilon that it gives, by the "
                "accounts of pg_dpml: an upper bound, which a worst case comes near. **Bold**: more than it "
                "names. Such a line *does not keep the epsilon it names*, and its figure is no figure of a "
                "private model of that epsilon. *As ours*: the noise of ours has the same size, and only the "
                "direction that it is drawn in differs; no model was trained again.",
                "± is one standard deviation of a split, its noise included; without ± there is one split.",
                "A claim of a paper is counted in comparisons: one data set, one setting and one other line "
                "each. Two lines are level where they differ by less than 0.3 points (0.003 of R squared or "
                "of a loss), or by less than the root of the sum of both squared deviations.",
                "A picture leaves out what lies far below its other lines; the table below it has that too.",
            )
        )
        yield from self._sizes()

    def _sizes(self) -> Iterator[str]:
        sizes = {results["size"] for results in self.results.values()}
        if sizes != {"full"}:
            named = ", ".join(f"{size}: {SIZES[size]}" for size in sorted(sizes))
            yield _wrapped(
                f"**These figures are not of a full run** ({named}). Each entry says its own size."
            )

    def _sentences(self) -> Iterator[str]:
        yield "## What changes once all noise is right"
        text = SENTENCES.read_text(encoding="utf-8").strip()
        filled = re.sub(r"\{([^}]*)\}", lambda match: self._filled(match[1]), text.replace("\n   ", " "))
        yield "\n".join(
            textwrap.fill(
                line, WIDTH, subsequent_indent="    ", break_on_hyphens=False, break_long_words=False
            )
            for line in filled.splitlines()
        )

    def _filled(self, words: str) -> str:
        """What stands for words in braces.

        They are `value: ENTRY | DATA | GROUP | LABEL | X`, `gives: ...` of the same, `verdict: ENTRY | N` of
        its Nth claim, or `auto:`, or `linear:`.
        """
        kind, _, rest = words.partition(":")
        name, *place = (part.strip() for part in rest.split("|"))
        missing = "(not measured at this size)"
        if kind in ("auto", "linear"):
            counted, behind = self._auto_counts(linear=kind == "linear")
            return f"{counted - behind} of {counted}"
        if name not in self.points:
            return missing
        if kind == "verdict":
            entry = next(one for one in self.entries if one.name == name)
            return figures.verdict(entry, entry.claims[int(place[0]) - 1], self.points[name]).words
        data, group, label, x = place
        point = self.points[name].get((data, group, label, float(x)))
        if (
            point is None
            or (kind == "value" and point.mean is None)
            or (kind == "gives" and point.gives is None)
        ):
            return missing
        entry = next(one for one in self.entries if one.name == name)
        return _number(entry, data, point.mean) if kind == "value" else _epsilon(point.gives)

    def _auto_counts(self, *, linear: bool = False) -> tuple[int, int]:
        found = [
            figures.auto_behind(entry, self.points[entry.name], linear=linear) for entry in self._of_quality()
        ]
        return sum(counted for counted, _ in found), sum(len(behind) for _, behind in found)

    def _of_quality(self) -> list[Entry]:
        return [entry for entry in self.entries if entry.kind == "quality"]

    def _auto(self) -> Iterator[str]:
        yield f"## Where `{AUTO}` is first, and where it is not"
        counted, behind = self._auto_counts()
        yield _wrapped(
            f"At {counted - behind} of {counted} points with an epsilon of 0.05 or more, `{AUTO}` is first "
            "or within 0.3 points of first (0.003 of R squared or of a loss) among the lines that keep their "
            "epsilon. A point is one data set at one setting; where a figure varies an option of another "
            f"method, `{AUTO}` is the same at all of them, and counts at each."
        )
        rows = []
        for entry in self._of_quality():
            _, found = figures.auto_behind(entry, self.points[entry.name])
            for one in found:
                title = _title(entry, one.data, one.group)
                rows.append(
                    (
                        f"{entry.paper}, {entry.number}",
                        title,
                        f"{one.x:g}",
                        one.best,
                        f"{one.by:.3g}",
                        entry.auto_why,
                    )
                )
        if rows:
            yield _table(("figure", "panel", "at", "first", "ahead by", "why"), rows)

    def _papers(self) -> Iterator[str]:
        for paper in dict.fromkeys(entry.paper for entry in self.entries):
            yield f"## {paper}"
            for entry in self.entries:
                if entry.paper == paper:
                    yield from self._entry(entry)

    def _entry(self, entry: Entry) -> Iterator[str]:
        points, results = self.points[entry.name], self.results[entry.name]
        yield f"### {entry.number}: {entry.title}"
        yield f"![{entry.number}]({PICTURES}/{entry.name}.svg)"
        yield from self._tables(entry, points)
        if entry.claims:
            yield "What the paper says of it, once all noise is right:"
            yield "\n".join(
                _item(f"{claim.text} ({claim.where}): {figures.verdict(entry, claim, points).words}.")
                for claim in entry.claims
            )
        yield from self._reported(entry, points)
        for one in entry.missing:
            yield _wrapped(f"Not drawn: {one['what']}. {one['why']}")
        yield _wrapped(self._run_words(entry, results))

    def _run_words(self, entry: Entry, results: Record) -> str:
        counts = ", ".join(
            f"{_title(entry, data, '')} {train:,} rows to train on and {test:,} to test"
            for data, (train, test) in results["rows"].items()
        )
        rejected = {
            f"{label}: {point.rejected}"
            for (_, _, label, _), point in self.points[entry.name].items()
            if point.rejected
        }
        words = f"Run: {results['size']}, {results['date']}, {results['machine']}"
        words += f"; {counts}; " if counts else "; "
        words += self._guarantee_words(entry) if entry.kind == "quality" else "made rows of 50 features."
        return words + "".join(f" Rejected: {one}." for one in sorted(rejected))

    def _guarantee_words(self, entry: Entry) -> str:
        deltas = ["1/n^2" if group.delta is None else f"{group.delta:g}" for group in entry.groups]
        words = f"relation `{entry.relation}`, delta {' or '.join(dict.fromkeys(deltas))}"
        epsilons = dict.fromkeys(f"{one.epsilon:g}" for one in entry.groups if one.epsilon is not None)
        return words + (f", epsilon {' or '.join(epsilons)}." if epsilons else ".")

    def _tables(self, entry: Entry, points: Mapping[Place, Point]) -> Iterator[str]:
        """A table for each group: a row a line, a column for each x."""
        for group in entry.groups:
            rows: list[Sequence[str]] = []
            xs = [x for x in group.values if any(name == group.name and at == x for _, name, _, at in points)]
            for data in entry.data or (MADE_ROWS,):
                rows += self._rows(entry, data, group, xs, points)
            if not rows:
                continue
            if group.name:
                yield _wrapped(f"**{group.name}**, {draw.measured(entry, rows_data(entry))}:")
            else:
                yield _wrapped(f"{draw.measured(entry, rows_data(entry))}:")
            heads = ("data", "method", "noise", *(f"{group.x.replace('_', ' ')} {x:g}" for x in xs))
            yield _table(heads, rows)

    def _rows(
        self, entry: Entry, data: str, group: Group, xs: Sequence[Any], points: Mapping[Place, Point]
    ) -> Iterator[Sequence[str]]:
        title = _title(entry, data, "")
        for line in entry.lines_of(data, group):
            of_line = [points.get((data, group.name, line.label, x)) for x in xs]
            if all(point is None for point in of_line):
                continue
            if line.noise == "ours":
                noise = "ours" if line.private else "none"
                yield from self._published_row(entry, data, group, line, xs)
            else:
                noise = AS_PUBLISHED
            texts = [
                "" if point is None else _cell(entry, data, group, x, point)
                for x, point in zip(xs, of_line, strict=True)
            ]
            yield (title, line.label.removesuffix(f" {AS_PUBLISHED}"), noise, *texts)

    def _published_row(
        self, entry: Entry, data: str, group: Group, line: Line, xs: Sequence[Any]
    ) -> Iterator[Sequence[str]]:
        reported = {
            one.x: one.values[line.label]
            for one in entry.reported
            if one.data == data and one.group == group.name and line.label in one.values
        }
        if reported:
            texts = [f"*{reported[float(x)]:g}*" if float(x) in reported else "" for x in xs]
            yield (_title(entry, data, ""), line.label, "*published figure*", *texts)

    def _reported(self, entry: Entry, points: Mapping[Place, Point]) -> Iterator[str]:
        """Published figures that ours differ from by more than their spread, and why."""
        beyond = 0
        for one in entry.reported:
            for label, value in one.values.items():
                point = points.get((one.data, one.group, label, one.x))
                if point is not None and point.mean is not None:
                    deviation = max(point.deviation, self._sampling(entry, one.data, point.mean))
                    beyond += abs(point.mean - value) > 2.0 * deviation
        if entry.reported:
            where = " and ".join(dict.fromkeys(one.where for one in entry.reported))
            plots = any(one.plot for one in entry.reported)
            words = (
                f"Published figures are typed from {where}{' (some read off a picture)' if plots else ''}."
            )
            if beyond:
                words += (
                    f" {beyond} of ours differ by more than two standard deviations, of a split or of an "
                    f"accuracy on so many test rows, whichever is larger. {entry.why}"
                )
            yield _wrapped(words)
        elif entry.why:
            yield _wrapped(entry.why)

    def _sampling(self, entry: Entry, data: str, mean: float) -> float:
        """Standard deviation of an accuracy in percent by the draw of the test rows; 0 of R squared."""
        if figures.unit_of(entry, data) != 1.0:
            return 0.0
        _, test = self.results[entry.name]["rows"][data]
        return math.sqrt(mean * (100.0 - mean) / test)

    def _how(self) -> Iterator[str]:
        yield "## How to make this page"
        yield _wrapped(
            "`scripts/reproduce` runs every entry and writes this page; `scripts/reproduce --resume` "
            "goes on after an interruption. On two cores a full run takes a little more than an hour. "
            "`scripts/reproduce --help` has the other options. It wants the "
            "folder of the data sets in `PG_DPML_DATA`, as `scripts/accuracy` does. An entry is a file of "
            "`scripts/reproduce.d`, named by paper and number."
        )
        yield _wrapped(
            "The copies of the papers at hand are text without pictures and without page numbers. So no "
            "curve is read off a plot, and published figures are cited by section, figure or table."
        )
        sources = dict.fromkeys(
            (rows.data.title, rows.data.source)
            for entry in self._of_quality()
            for rows in map(tables.read, entry.data)
        )
        yield _table(("data", "source"), list(sources))


def rows_data(entry: Entry) -> str:
    """The first data set, which says what is measured."""
    return entry.data[0] if entry.data else MADE_ROWS


def _title(entry: Entry, data: str, group: str) -> str:
    title = data if entry.kind == "time" else tables.read(data).data.title
    return ", ".join(part for part in (title, group) if part)


def _number(entry: Entry, data: str, value: float | None) -> str:
    if value is None:
        return ""
    if entry.kind == "time":
        return f"{value:.3g}"
    return f"{value:.1f}" if figures.unit_of(entry, data) == 1.0 else f"{value:.3f}"


def _epsilon(value: float | None) -> str:
    assert value is not None
    return "none" if math.isinf(value) else f"{value:.2g}" if value < 1.0 else f"{value:.3g}"


def _cell(entry: Entry, data: str, group: Group, x: Any, point: Point) -> str:
    text = _number(entry, data, point.mean)
    if len(point.values) > 1:
        text += f" ± {_number(entry, data, point.deviation)}"
    if not text and point.rejected:
        text = "rejected"
    elif not text and point.gives is not None:
        text = "as ours" if math.isinf(point.gives) else "not run"
    if point.gives is not None:
        given = _epsilon(point.gives)
        if figures.keeps(group, x, point):
            return f"{text} (gives {given})".strip()
        if math.isfinite(point.gives) and float(given) <= figures.epsilon_at(group, x):
            given = f"{point.gives:.4g}"  # so that it can be seen to be more
        text += f" (**gives {given}**)"
    return text.strip()


def _wrapped(text: str) -> str:
    return textwrap.fill(text, WIDTH, break_on_hyphens=False, break_long_words=False)


def _item(text: str) -> str:
    return textwrap.fill(
        f"- {text}", WIDTH, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False
    )


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def write(folder: Path) -> Path:
    """Write the pictures into `reproduction` and the page beside it; returns the page."""
    results = folder / PICTURES
    page = Page(results)
    for entry in page.entries:
        (results / f"{entry.name}.svg").write_bytes(draw.draw(entry, page.results[entry.name]))
    path = folder / "reproduction.md"
    path.write_text(page.text(), encoding="utf-8")
    return path
