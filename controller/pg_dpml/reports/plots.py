# SPDX-License-Identifier: PostgreSQL
"""The pictures of a report, as bytes of a file. Matplotlib is imported when the first one is drawn."""

from __future__ import annotations

import io
import logging
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from datetime import time, timezone
from typing import TYPE_CHECKING, Any

import numpy as np

from pg_dpml.evaluation.metrics import CalibrationBin
from pg_dpml.names import visible
from pg_dpml.reports.effects import Effect, most_moved
from pg_dpml.runs.compare import MAJORITY, Comparison, ComparisonEntry
from pg_dpml.spec.dates import as_date, date_text, number_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "calibration_plot",
    "coefficient_plot",
    "comparison_plot",
    "confusion_plot",
    "effects_plot",
    "roc_plot",
]

BAR, NOISE, GUIDE, STAMP = "#3465a4", "#f4c7a1", "#888888", "#c00000"
DPI = 150
MOST_EFFECTS = 30
"""Most columns and crosses whose effects are drawn."""
MOST_NAMED = 12
"""Most levels that are named below their bars."""
LONGEST_NAME = 40
APART = 1.03
"""Ratio between the places of two methods' points at one epsilon, where their bars would overlap."""
MARGIN = 0.25
"""Length of the axis below the majority class, as a share of the length above it."""


def _canvas(width: float, height: float) -> tuple[Figure, Axes]:
    figure = _figure(width, height)
    axes = figure.add_subplot()
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure, axes


def _figure(width: float, height: float) -> Figure:
    logger = logging.getLogger("matplotlib")
    level = logger.level
    logger.setLevel(logging.ERROR)  # it warns of a home directory that takes no cache of fonts
    # No pyplot: it would keep figures, and look for a screen.
    from matplotlib.figure import Figure

    logger.setLevel(level)
    return Figure(figsize=(width, height), dpi=DPI, layout="constrained")


FORMATS: Mapping[str, Mapping[str, None]] = {
    "png": {"Software": None},
    "svg": {"Date": None},
    "pdf": {"CreationDate": None},
}
"""Formats of a picture's file, with the metadata keys to leave blank so that files are reproducible."""


def _png(figure: Figure) -> bytes:
    return _file(figure, "png")


def _file(figure: Figure, format: str) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # glyphs that the font lacks
        figure.savefig(buffer, format=format, metadata=dict(FORMATS[format]))
    return buffer.getvalue()


def _stamp(figure: Figure, words: str) -> None:
    """A warning above a picture."""
    figure.suptitle(textwrap.fill(words, 70), color=STAMP, fontsize=8, fontweight="bold")


def _label(name: str) -> str:
    """A name with visible control characters, cut to `LONGEST_NAME`."""
    clean = visible(name)
    return clean if len(clean) <= LONGEST_NAME else clean[: LONGEST_NAME - 1] + "…"


def coefficient_plot(
    names: Sequence[str], sizes: Sequence[float], noise: Sequence[float], unit: str
) -> bytes:
    """Bars of coefficients by feature, and behind them one standard deviation of the noise.

    Parameters
    ----------
    names : sequence of str
        Names of the features, the largest coefficient first.
    sizes : sequence of float
    noise : sequence of float
        Standard deviations of the noise in the bars; empty for a model without noise.
    unit : str
        What a bar is.
    """
    figure, axes = _canvas(7.5, 1.1 + 0.24 * len(names))
    places = np.arange(len(names))
    axes.barh(places, sizes, color=BAR, height=0.7, zorder=2)
    if noise:
        both_sides = min(sizes, default=0.0) < 0.0
        least = [-one if both_sides else 0.0 for one in noise]
        widths = [most - low for low, most in zip(least, noise, strict=True)]
        label = "one standard deviation of the noise"
        axes.barh(places, widths, left=least, color=NOISE, height=1.0, zorder=1, label=label)
        figure.legend(loc="outside upper right", frameon=False)
    axes.axvline(0.0, color=GUIDE, linewidth=0.8, zorder=3)
    axes.set_yticks(places, [_label(name) for name in names], parse_math=False)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlabel(unit)
    return _png(figure)


def effects_plot(
    effects: Sequence[Effect], outputs: Sequence[str], stamp: str | None = None, format: str = "png"
) -> bytes:
    """What columns and crosses add to the scores: curves of numbers, bars of levels, maps of crosses.

    Parameters
    ----------
    effects : sequence of Effect
        At least one; the first `MOST_EFFECTS` are drawn.
    outputs : sequence of str
        What the model's outputs speak for: one name, or one a class.
    stamp : str or None
        A warning above the picture.
    format : str
        "png", "svg" or "pdf".
    """
    drawn = effects[:MOST_EFFECTS]
    across = min(len(drawn), 3)
    down = -(-len(drawn) // across)
    figure = _figure(2.7 * across, 0.7 + 2.3 * down)
    grid = figure.subplots(down, across, squeeze=False).ravel()
    for axes, effect in zip(grid, drawn, strict=False):
        if len(effect.columns) == 2:
            _draw_map(figure, axes, effect, outputs)
        else:
            _draw_effect(axes, effect, outputs)
        axes.set_title(_label(" * ".join(effect.columns)), fontsize=9, parse_math=False)
        axes.tick_params(labelsize=7)
    for axes in grid[len(drawn) :]:
        axes.set_axis_off()
    single = [axes for axes, effect in zip(grid, drawn, strict=False) if len(effect.columns) == 1]
    if single:
        ends = [end for axes in single for end in axes.get_ylim()]
        for axes in single:
            axes.set_ylim(min(ends), max(ends))
        handles, labels = single[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    if stamp is not None:
        _stamp(figure, stamp)
    return _file(figure, format)


def _draw_effect(axes: Axes, effect: Effect, outputs: Sequence[str]) -> None:
    """A curve or bars, with one standard deviation of the noise on both sides."""
    (axis,) = effect.axes
    levels = not isinstance(axis, np.ndarray)
    places = np.arange(len(axis)) if levels else axis
    axes.axhline(0.0, color=GUIDE, linewidth=0.8)
    for k, (values, output) in enumerate(zip(effect.values, outputs, strict=True)):
        color = BAR if len(outputs) == 1 else f"C{k % 10}"
        if levels:
            width = 0.8 / len(outputs)
            beside = places + width * (k - (len(outputs) - 1) / 2)
            axes.bar(
                beside, values, width, color=color, label=visible(output), yerr=effect.noise, ecolor=NOISE
            )
            continue
        if effect.noise is not None:
            axes.fill_between(places, values - effect.noise, values + effect.noise, color=NOISE, alpha=0.6)
        axes.plot(places, values, color=color, linewidth=1.3, label=visible(output))
    if effect.log1p and not levels:
        axes.set_xscale("symlog", linthresh=1.0)
    _mark_axis(axes.xaxis, axis, effect.dates[0])


def _draw_map(figure: Figure, axes: Axes, effect: Effect, outputs: Sequence[str]) -> None:
    """A cross by both of its columns; with several outputs, that of the one that it moves most."""
    k = most_moved(effect)
    values = effect.values[k]
    most = float(np.abs(values).max()) or 1.0
    places = [axis if isinstance(axis, np.ndarray) else np.arange(len(axis)) for axis in effect.axes]
    smooth = all(isinstance(axis, np.ndarray) for axis in effect.axes)
    mesh = axes.pcolormesh(
        *places, values.T, cmap="RdBu_r", vmin=-most, vmax=most, shading="gouraud" if smooth else "nearest"
    )
    for one, axis, kind in zip((axes.xaxis, axes.yaxis), effect.axes, effect.dates, strict=True):
        _mark_axis(one, axis, kind)
    bar = figure.colorbar(mesh, ax=axes)
    bar.ax.tick_params(labelsize=7)
    if len(outputs) > 1:
        bar.set_label(_label(outputs[k]), fontsize=7, parse_math=False)


def _mark_axis(one: Any, axis: Any, kind: str | None) -> None:
    """Name levels, if they are few, and the dates of a kind of date."""
    if kind is not None and isinstance(axis, np.ndarray):
        _mark_dates(one, float(axis[0]), float(axis[-1]), kind)
    if not isinstance(axis, np.ndarray):
        few = list(axis) if len(axis) <= MOST_NAMED else []
        one.set_ticks(range(len(few)), [_label(level)[:14] for level in few], parse_math=False)
        if one.axis_name == "x":
            one.set_tick_params(rotation=90 if len(few) > 3 else 0)


def _mark_dates(one: Any, first: float, last: float, kind: str) -> None:
    """Ticks at dates or times of the calendar; numbers stay where some have no date."""
    import matplotlib.dates

    calendar: Any = matplotlib.dates  # has no types
    lower, upper = as_date(first, kind), as_date(last, kind)
    if lower is None or upper is None:
        return
    locator = calendar.AutoDateLocator(tz=timezone.utc, minticks=2, maxticks=4)
    found = [calendar.num2date(tick, timezone.utc) for tick in locator.tick_values(lower, upper)]
    inside = [tick for tick in found if lower <= tick <= upper and (kind != "date" or tick.time() == time())]
    ticks = inside or [lower, upper]
    one.set_ticks([number_of(tick, kind) for tick in ticks], [date_text(tick, "\n") for tick in ticks])
    if one.axis_name == "x":
        for label in one.get_ticklabels():
            label.set(rotation=45, ha="right", rotation_mode="anchor")
    if kind == "timestamptz":
        one.set_label_text("UTC", fontsize=7)


def confusion_plot(classes: Sequence[str], cells: Sequence[tuple[str, str, int]]) -> bytes:
    """Rows by actual and predicted class; the shade is the share of the actual class."""
    at = {name: i for i, name in enumerate(classes)}
    counts = np.zeros((len(classes), len(classes)))
    for actual, predicted, n in cells:
        counts[at[actual], at[predicted]] = n
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1.0)
    side = 2.2 + 0.65 * len(classes)
    figure, axes = _canvas(side + 0.8, side)
    axes.imshow(shares, cmap="Blues", vmin=0.0, vmax=1.0)
    for i, j in np.ndindex(counts.shape):
        colour = "white" if shares[i, j] > 0.6 else "black"
        axes.text(j, i, f"{counts[i, j]:,.0f}", ha="center", va="center", color=colour, fontsize=8)
    labels = [_label(name) for name in classes]
    axes.set_xticks(range(len(classes)), labels, rotation=45, ha="right", parse_math=False)
    axes.set_yticks(range(len(classes)), labels, parse_math=False)
    axes.set_xlabel("predicted")
    axes.set_ylabel("actual")
    return _png(figure)


def calibration_plot(bins: Sequence[CalibrationBin]) -> bytes:
    """Observed share against predicted probability; the larger a dot, the more rows."""
    figure, axes = _canvas(4.2, 4.0)
    axes.plot([0, 1], [0, 1], color=GUIDE, linewidth=0.8, linestyle="--")
    predicted, observed = [b.predicted for b in bins], [b.observed for b in bins]
    most = max(b.n_rows for b in bins)
    axes.plot(predicted, observed, color=BAR, linewidth=1.0)
    axes.scatter(predicted, observed, s=[12 + 100 * b.n_rows / most for b in bins], color=BAR)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.set_xlabel("predicted probability")
    axes.set_ylabel("observed share")
    return _png(figure)


def roc_plot(points: Sequence[tuple[float, float]]) -> bytes:
    """True against false positive rate."""
    figure, axes = _canvas(4.2, 4.0)
    axes.plot([0, 1], [0, 1], color=GUIDE, linewidth=0.8, linestyle="--")
    axes.plot([x for x, _ in points], [y for _, y in points], color=BAR)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.01)
    axes.set_xlabel("false positive rate")
    axes.set_ylabel("true positive rate")
    return _png(figure)


def _lower_edge(comparison: Comparison) -> float | None:
    """Start of the axis; None if no mean is far below the figure that needs no model."""
    private = [
        entry.mean for entry in comparison.entries if entry.epsilon is not None and entry.mean is not None
    ]
    others = [entry for entry in comparison.entries if entry.epsilon is None and entry.mean is not None]
    if comparison.figure == "accuracy":
        floor = next((entry.mean for entry in others if entry.method == MAJORITY), None)
    else:
        floor = 0.0
    top = max([*private, *(entry.mean or 0.0 for entry in others)], default=None)
    if floor is None or top is None or not private or not top > floor:
        return None
    edge = floor - MARGIN * (top - floor)
    return edge if min(private) < edge else None


def comparison_plot(comparison: Comparison, stamp: str | None, format: str = "png") -> bytes:
    """Figures against epsilon, a line with error bars for each method.

    Bars are one standard deviation of a split. Methods that are not private and the
    majority class are horizontal lines. The axis ends a little below the majority class, or
    below an R squared of 0: a triangle on its edge marks a mean that is lower, and the legend
    says how low.

    Parameters
    ----------
    comparison : Comparison
    stamp : str or None
        A warning above the picture.
    format : str
        "png", "svg" or "pdf".
    """
    figure, axes = _canvas(5.8, 5.4)
    unit = 100.0 if comparison.figure == "accuracy" else 1.0
    edge = _lower_edge(comparison)
    curves: dict[str, list[ComparisonEntry]] = {}
    for entry in comparison.entries:
        if entry.values and entry.epsilon is not None:
            curves.setdefault(entry.method, []).append(entry)
        elif entry.values:
            style = ("--", ":", "-.")[len(axes.lines) % 3]
            label = entry.method if entry.chosen is None else f"{entry.method} (not private)"
            axes.axhline(unit * (entry.mean or 0.0), color=GUIDE, linestyle=style, label=label)
    for i, entries in enumerate(curves.values()):
        aside = APART ** (i - (len(curves) - 1) / 2)
        label = ", ".join(dict.fromkeys(entry.label for entry in entries))
        means = [entry.mean or 0.0 for entry in entries]
        low = [entry for entry in entries if edge is not None and (entry.mean or 0.0) < edge]
        if low and edge is not None:
            label += f"\n(down to {unit * min(means):.3g}{'%' if unit > 1.0 else ''}, below the axis)"
            axes.plot(
                [(entry.epsilon or 0.0) * aside for entry in low],
                [unit * edge] * len(low),
                color=f"C{i % 10}",
                marker=7,  # a triangle that points down to its place
                markersize=8,
                linestyle="none",
                clip_on=False,
                zorder=4,
            )
        axes.errorbar(
            [(entry.epsilon or 0.0) * aside for entry in entries],
            [unit * mean for mean in means],
            yerr=[unit * (entry.deviation or 0.0) for entry in entries],
            label=label,
            color=f"C{i % 10}",
            marker="os^Dv<>P"[i % 8],
            markersize=5,
            capsize=3,
            linewidth=1.5,
        )
    if edge is not None:
        axes.set_ylim(bottom=unit * edge)
    axes.set_xscale("log")
    epsilons = sorted({entry.epsilon for entry in comparison.entries if entry.epsilon is not None})
    axes.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("epsilon")
    axes.set_ylabel("accuracy, %" if comparison.figure == "accuracy" else "R squared")
    axes.set_title(_label(comparison.table), parse_math=False)
    axes.grid(axis="y", color=GUIDE, alpha=0.2)
    labels = [str(label) for label in axes.get_legend_handles_labels()[1]]
    longest = max((len(line) for label in labels for line in label.split("\n")), default=0)
    figure.legend(loc="outside lower center", ncols=2 if longest <= LONGEST_NAME else 1, frameon=False)
    if stamp is not None:
        _stamp(figure, stamp)
    return _file(figure, format)
