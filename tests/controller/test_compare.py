# SPDX-License-Identifier: PostgreSQL
"""What is made of a comparison: means, words, stamps, pictures. No server."""

from __future__ import annotations

import importlib
import json
import re
import statistics
import time
from dataclasses import replace
from typing import Any

import pytest

from pg_dpml import Comparison, ComparisonEntry, PrivacySpec, Relation, SpecError, TrainSpec
from pg_dpml.methods.bolt_on import BoltOn
from pg_dpml.reports import comparison_report, plan_report, plots
from pg_dpml.reports.html import comparison_html
from pg_dpml.runs.compare import MAJORITY
from pg_dpml.runs.planning import Alternative, alternative, alternatives, plan_problem
from pg_dpml.training.method import methods, private_methods
from pg_dpml.training.plan import Plan, Problem

# The package's function of the same name hides the module.
TRAIN = importlib.import_module("pg_dpml.runs.train")

EVIL = "<script>alert('&')</script> $x_2$"
PRIVATE = ComparisonEntry("bolt-on", 0.1, (0.5, 0.7, 0.9), "bolt-on", 0.4, 3.0, 0.25)
ENTRIES = (
    PRIVATE,
    replace(PRIVATE, epsilon=1.0, values=(0.8, 0.9, 0.85)),
    ComparisonEntry("auto", 1.0, (0.9, 0.91, 0.92), "dp-gd", 0.3, 60.0, 1.5),
    ComparisonEntry("certified", 0.1, refusal="it wants a regulariser"),
    ComparisonEntry("noiseless", None, (0.94, 0.95, 0.96), "noiseless", None, 19.5, 2.0),
    ComparisonEntry(MAJORITY, None, (0.5, 0.55, 0.6)),
)
COMPARISON = Comparison(
    table=EVIL,
    task="binary",
    mode="owner",
    figure="accuracy",
    n_train=1200,
    n_test=300,
    unit=None,
    splits=3,
    delta=1e-7,
    relation=Relation.REPLACE_ONE,
    entries=ENTRIES,
)
PUBLIC = replace(COMPARISON, mode="public")


def test_mean_and_deviation() -> None:
    assert PRIVATE.mean == pytest.approx(0.7)
    assert PRIVATE.deviation == pytest.approx(statistics.stdev([0.5, 0.7, 0.9]))
    one = replace(PRIVATE, values=(0.5,))
    assert (one.mean, one.deviation) == (0.5, None)
    refused = ENTRIES[3]
    assert (refused.mean, refused.deviation) == (None, None)


def line_of(text: str, *words: str) -> str:
    (line,) = (line for line in text.splitlines() if line.split()[: len(words)] == list(words))
    return line


def test_text() -> None:
    text = comparison_report.comparison_text(COMPARISON)
    for words in ("Accuracy", "3 random splits", "1,200 rows to train on", "300 to measure", "replace_one"):
        assert words in " ".join(text.split())
    assert line_of(text, "bolt-on", "0.1").split()[2:] == ["70.00%", "20.00%", "3", "0.25"]
    assert "auto (dp-gd)" in text
    assert "refused: it wants a regulariser" in line_of(text, "certified", "0.1")
    assert "not private" in line_of(text, "noiseless")
    everywhere = replace(COMPARISON, entries=(replace(ENTRIES[3], epsilon=None),))
    assert "refused: it wants a regulariser" in line_of(
        comparison_report.comparison_text(everywhere), "certified", "any"
    )
    assert "55.00%" in line_of(text, "majority", "class")
    numbers = replace(COMPARISON, figure="r_squared", task="regression", unit="family", splits=1)
    text = comparison_report.comparison_text(numbers)
    for words in ("R squared", "1 random split,", "units of family", "0.7000"):
        assert words in text


def test_stamps() -> None:
    """Exact figures of private rows are stamped wherever they are shown; those of public rows nowhere."""
    stamp = "NOT PRIVATE: exact figures of private rows"
    assert comparison_report.comparison_text(COMPARISON).startswith(stamp)
    assert comparison_report.comparison_record(COMPARISON)["not_private"][0].startswith(stamp)
    assert f'<p class="stamp">{stamp}' in comparison_html(COMPARISON)
    assert stamp not in comparison_report.comparison_text(PUBLIC)
    assert "not_private" not in comparison_report.comparison_record(PUBLIC)
    assert 'class="stamp"' not in comparison_html(PUBLIC)


def test_record() -> None:
    record = json.loads(json.dumps(comparison_report.comparison_record(COMPARISON), allow_nan=False))
    assert [record[key] for key in ("figure", "n_train", "n_test", "mode")] == [
        "accuracy",
        1200,
        300,
        "owner",
    ]
    assert len(record["results"]) == len(ENTRIES)
    first = record["results"][0]
    assert first["values"] == [0.5, 0.7, 0.9]
    assert [first[key] for key in ("data", "method", "epsilon", "runs")] == [EVIL, "bolt-on", 0.1, 3]
    assert first["mean"] == pytest.approx(0.7)
    assert first["sd"] == pytest.approx(0.2)
    assert record["results"][3]["refusal"] == "it wants a regulariser"
    assert record["results"][4]["epsilon"] is None


@pytest.mark.parametrize(("format", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_pictures(format: str, start: bytes) -> None:
    picture = plots.comparison_plot(COMPARISON, comparison_report.comparison_stamp(COMPARISON), format)
    assert picture.startswith(start)
    assert len(picture) > 5000


def test_a_picture_has_a_line_for_every_method(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(plots, "_file", lambda figure, format: drawn.append(figure))
    plots.comparison_plot(COMPARISON, "DO NOT PUBLISH")
    (figure,) = drawn
    (axes,) = figure.axes
    assert axes.get_xscale() == "log"
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0.1", "1"]
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert sorted(labels) == sorted(["bolt-on", "auto (dp-gd)", "noiseless (not private)", "majority class"])
    assert "DO NOT PUBLISH" in figure.get_suptitle()
    bolt_on = next(c for c in axes.containers if c.get_label() == "bolt-on")
    assert list(bolt_on.lines[0].get_xdata()) == pytest.approx([0.1, 1.0], rel=0.05)  # set a little apart
    assert list(bolt_on.lines[0].get_ydata()) == pytest.approx([70.0, 85.0])
    (bars,) = bolt_on.lines[2]
    assert bars.get_segments()[0][:, 1] == pytest.approx([50.0, 90.0])


@pytest.mark.parametrize("figure", ["accuracy", "r_squared"])
def test_one_bad_method_does_not_squeeze_the_others(monkeypatch: pytest.MonkeyPatch, figure: str) -> None:
    """The axis begins a little below what needs no model; what is lower is marked on its edge."""
    drawn: list[Any] = []
    monkeypatch.setattr(plots, "_file", lambda figure, format: drawn.append(figure))
    floor = 0.75 if figure == "accuracy" else 0.0
    good = [replace(PRIVATE, epsilon=e, values=(v, v)) for e, v in ((0.1, 0.76), (1.0, 0.84))]
    bad = [replace(PRIVATE, method="scs13", epsilon=e, values=(v, v)) for e, v in ((0.1, -0.46), (1.0, 0.8))]
    rest = [] if figure == "r_squared" else [ComparisonEntry(MAJORITY, None, (floor, floor))]
    plots.comparison_plot(replace(PUBLIC, entries=(*good, *bad, *rest), figure=figure), None)
    (axes,) = drawn[0].axes
    unit = 100.0 if figure == "accuracy" else 1.0
    low, high = axes.get_ylim()
    assert unit * (floor - 0.3 * (0.84 - floor)) < low < unit * floor
    assert high > unit * 0.84
    (mark,) = (line for line in axes.lines if line.get_marker() == 7)
    assert list(mark.get_xdata()) == pytest.approx([0.1], rel=0.05)
    assert list(mark.get_ydata()) == [low]
    legend = [text.get_text() for text in drawn[0].legends[0].get_texts()]
    (marked,) = (label for label in legend if "below the axis" in label)
    assert marked.startswith("scs13")
    assert f"{unit * -0.46:.3g}" in marked
    # Where nothing is far below, nothing is cut.
    plots.comparison_plot(replace(PUBLIC, entries=(*good, *rest), figure=figure), None)
    assert not any(line.get_marker() == 7 for line in drawn[1].axes[0].lines)


def test_a_method_that_chooses_several_names_them_in_the_legend(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(plots, "_file", lambda figure, format: drawn.append(figure))
    chosen = ("dp-gd", "dp-gd", "bolt-on")
    entries = tuple(
        replace(PRIVATE, method="auto", chosen=name, epsilon=e)
        for name, e in zip(chosen, (0.1, 1.0, 2.0), strict=True)
    )
    plots.comparison_plot(replace(PUBLIC, entries=entries), None)
    assert [text.get_text() for text in drawn[0].legends[0].get_texts()] == ["auto (dp-gd), auto (bolt-on)"]


def test_a_picture_of_one_split_and_one_epsilon() -> None:
    entry = replace(PRIVATE, values=(0.5,))
    for figure in ("accuracy", "r_squared"):
        assert plots.comparison_plot(replace(PUBLIC, entries=(entry,), figure=figure), None)
    assert plots.comparison_plot(replace(PUBLIC, entries=ENTRIES[4:]), None)  # nothing private


def test_html_loads_nothing_and_escapes() -> None:
    document = comparison_html(COMPARISON)
    assert "<script" not in document
    assert document.count("base64,") == 1
    without_picture = re.sub(r"base64,[A-Za-z0-9+/=]+", "", document)
    assert not re.search(r"https?:|//|url\(|@import", without_picture)
    assert "<td colspan=4>refused: it wants a regulariser" in document


# Plans side by side

PROBLEMS = [
    Problem(40_000, 109, 1, "binary"),
    Problem(400_000, 55, 7, "multiclass"),
    Problem(16_000, 9, 1, "regression"),
]


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: str(problem.task))
@pytest.mark.parametrize("privacy", [PrivacySpec(0.01), PrivacySpec(1.0, 0.0)], ids=["small", "pure"])
def test_alternatives_are_the_methods_own_plans(problem: Problem, privacy: PrivacySpec) -> None:
    started = time.monotonic()
    found = alternatives(problem, privacy)
    assert time.monotonic() - started < len(found)  # under a second each
    assert [other.method for other in found] == [method for method in private_methods() if method != "auto"]
    for other in found:
        if other.plan is None:
            assert other.refusal is not None
            with pytest.raises(Exception, match=re.escape(other.refusal.removeprefix("it "))):
                plan_problem(problem, privacy, TrainSpec(method=other.method))
        else:
            assert other.plan == plan_problem(problem, privacy, TrainSpec(method=other.method))
            assert other.refusal is None


def test_plans_side_by_side() -> None:
    privacy = PrivacySpec(1.0)
    plan = plan_problem(PROBLEMS[0], privacy, TrainSpec(method="bolt-on", passes=7))
    others = (*alternatives(PROBLEMS[0], privacy), Alternative("magic", None, "it is not real"))
    text = plan_report.plan_text(plan, others)
    assert "default options under the same guarantee" in text
    bolt_on = next(other.plan for other in others if other.method == "bolt-on")
    assert bolt_on is not None
    assert bolt_on.noise is not None
    assert line_of(text, "bolt-on").split(maxsplit=3) == [
        "bolt-on", str(bolt_on.work.passes), f"{bolt_on.noise.score_stddev:.3g}", "the finished model, once"
    ]  # fmt: skip
    assert line_of(text, "whitened-dp-gd").endswith("the second moments, and every step's gradient")
    assert line_of(text, "dp-gd").endswith("  every step's gradient")
    assert (
        line_of(text, "sufficient-statistics")
        .split(maxsplit=3)[3]
        .startswith("it is for a number to predict")
    )
    numbers = plan_problem(PROBLEMS[2], privacy, TrainSpec(method="sufficient-statistics"))
    assert line_of(plan_report.plan_text(numbers), "Noise", "on").endswith("on    the second moments")
    assert line_of(text, "magic").endswith("it is not real")
    record = plan_report.plan_record(plan, others)
    assert record["passes"] == 7
    methods = {method["method"]: method for method in record["methods"]}
    assert methods["bolt-on"]["score_stddev"] == bolt_on.noise.score_stddev
    assert methods["magic"]["refusal"] == "it is not real"
    assert "methods" not in plan_report.plan_record(plan)


def test_a_method_that_has_no_room_is_listed_with_that() -> None:
    def require_room(plan: Plan) -> None:
        if plan.method == "dp-scd":
            raise SpecError("batches need all rows in memory, 9 MB, and dpml.work_mem is 1MB: set it higher")

    found = {one.method: one for one in alternatives(PROBLEMS[0], PrivacySpec(1.0), require_room)}
    refused = found.pop("dp-scd")
    assert (refused.plan, refused.refusal) == (
        None, "batches need all rows in memory, 9 MB, and dpml.work_mem is 1MB"
    )  # fmt: skip
    assert sum(one.plan is not None for one in found.values()) > 10


def test_plans_say_which_methods_are_for_comparison() -> None:
    privacy = PrivacySpec(1.0)
    others = alternatives(PROBLEMS[0], privacy)
    text = plan_report.plan_text(plan_problem(PROBLEMS[0], privacy, TrainSpec()), others)
    for other in others:
        if other.plan is not None:
            chosen = methods()[other.method].comparison
            assert line_of(text, other.method).endswith("; for comparison with publications") is chosen
            alone = " ".join(plan_report.plan_text(other.plan).split())
            assert ("for comparison with publications: auto is usually" in alone) is chosen


def test_a_refusal_is_cut_to_its_first_words() -> None:
    def refuse(*given: Any) -> None:
        raise SpecError("lambda must be above 0: give one; or take another method")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BoltOn, "plan", refuse)
        found = alternative(PROBLEMS[0], PrivacySpec(1.0), "bolt-on")
    assert (found.plan, found.refusal) == (None, "lambda must be above 0")
