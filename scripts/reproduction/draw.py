# SPDX-License-Identifier: PostgreSQL
"""The picture of an entry: a panel for each data set and group, in SVG with text as text."""

from __future__ import annotations

import io
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pg_dpml.reports.plots import FORMATS, GUIDE, STAMP
from reproduction import figures, tables
from reproduction.entries import AUTO, AUTO_LINEAR, CEILING, Entry, Group
from reproduction.figures import Place, Point

WIDTH, HEIGHT = 4.2, 2.9
MARKERS = "os^Dv<>Ph*"
FAR = 4.0
"""How far below the best a panel reaches, in distances from the best to the median."""
BROKEN = "(does not keep the epsilon it names)"


def draw(entry: Entry, results: Mapping[str, Any]) -> bytes:
    """The picture as a file."""
    points = figures.points_of(entry, results)
    panels = [(data, group) for data, group in entry.panels() if figures.xs_of(points, data, group)]
    across = min(len(panels), 2)
    down = -(-len(panels) // across)
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": entry.name, "font.size": 8.5}):
        figure = Figure(figsize=(WIDTH * across, HEIGHT * down + 0.9), layout="constrained")
        grid = figure.subplots(down, across, squeeze=False).ravel()
        styles = _styles(entry)
        for axes, (data, group) in zip(grid, panels, strict=False):
            _draw_panel(axes, entry, data, group, points, styles)
        for axes in grid[len(panels) :]:
            axes.set_axis_off()
        shown: dict[str, Artist] = {}
        for axes in grid[: len(panels)]:
            handles, labels = axes.get_legend_handles_labels()
            shown |= {str(label): one for label, one in zip(labels, handles, strict=True)}
        columns = 2 if across > 1 else 1
        figure.legend(
            list(shown.values()),
            list(shown),
            loc="outside lower center",
            ncols=columns,
            frameon=False,
            fontsize=8,
        )
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", metadata=dict(FORMATS["svg"]))
    return b"\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + b"\n"


def _styles(entry: Entry) -> dict[str, tuple[str, str]]:
    """Colour and marker of each line that has our noise."""
    found = {AUTO: ("black", "s"), AUTO_LINEAR: ("dimgray", "s"), CEILING: (GUIDE, "")}
    others = dict.fromkeys(line.label for line in entry.lines if line.label not in found)
    return found | {label: (f"C{i % 10}", MARKERS[i % 10]) for i, label in enumerate(others)}


def _draw_panel(
    axes: Axes,
    entry: Entry,
    data: str,
    group: Group,
    points: Mapping[Place, Point],
    styles: Mapping[str, tuple[str, str]],
) -> None:
    xs = figures.xs_of(points, data, group)
    for line in entry.lines_of(data, group):
        drawn = [
            (x, point)
            for x in xs
            if (point := points.get((data, group.name, line.label, x))) is not None and point.mean is not None
        ]
        if not drawn:
            continue
        means = [point.mean or 0.0 for _, point in drawn]
        if line.label == CEILING:
            label = f"{line.label} ({line.method})"
            axes.axhline(sum(means) / len(means), color=GUIDE, linestyle="--", linewidth=1.0, label=label)
            continue
        ours = line.noise == "ours"
        colour, marker = styles[line.label if ours else line.label.removesuffix(" as published")]
        broken = not all(figures.keeps(group, x, point) for x, point in drawn)
        label = f"{line.label} {BROKEN}" if broken else line.label
        axes.errorbar(
            [float(x) for x, _ in drawn],
            means,
            yerr=[point.deviation for _, point in drawn],
            label=label,
            color=colour,
            marker=marker if ours else "x",
            markeredgecolor=STAMP if broken else colour,
            markersize=4,
            linestyle=":" if not ours else "-" if line.private else "--",
            linewidth=2.0 if line.label == AUTO else 1.1,
            capsize=2,
        )
    bottom = _bottom(entry, data, group, points)
    if bottom is not None:
        axes.set_ylim(bottom=bottom)
    _mark(axes, entry, data, group, xs)


def _bottom(entry: Entry, data: str, group: Group, points: Mapping[Place, Point]) -> float | None:
    """Where the axis of a quality begins, if some lines lie far below the others."""
    if figures.sign_of(entry) < 0.0:
        return None
    means = sorted(
        point.mean
        for (one, name, _, _), point in points.items()
        if one == data and name == group.name and point.mean is not None
    )
    top, middle = means[-1], statistics.median(means)
    bottom = top - FAR * (top - middle)
    return bottom if means[0] < bottom < top else None


def _mark(axes: Axes, entry: Entry, data: str, group: Group, xs: Sequence[Any]) -> None:
    title = "" if entry.kind == "time" else tables.read(data).data.title
    axes.set_title(", ".join(part for part in (title, group.name) if part), fontsize=9)
    if all(float(x) > 0.0 for x in xs):
        axes.set_xscale("log")
    axes.set_xticks([float(x) for x in xs], [f"{x:,}" if isinstance(x, int) else f"{x:g}" for x in xs])
    axes.set_xticks([], minor=True)
    axes.set_xlabel(group.x.replace("_", " "))
    axes.set_ylabel(measured(entry, data))
    if figures.sign_of(entry) < 0.0:
        axes.set_yscale("log")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.grid(axis="y", color=GUIDE, alpha=0.2)


def measured(entry: Entry, data: str) -> str:
    """What the panels have from below to above."""
    if entry.kind == "time":
        return "seconds a pass"
    if entry.measure == "loss":
        return "mean logistic loss"
    return "R squared" if tables.read(data).regression else "accuracy, %"
