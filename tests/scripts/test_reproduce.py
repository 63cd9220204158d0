# SPDX-License-Identifier: PostgreSQL
"""scripts/reproduce: its entries, published noise, resumption, and the page made of stored results."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import reproduce
from helpers.documents import ROOT
from pg_dpml import PrivacySpec, Relation, TrainSpec, kernels
from pg_dpml.errors import SpecError
from pg_dpml.privacy.accounting.bst14 import published_bst14_multiplier
from pg_dpml.runs.grid import train_options
from pg_dpml.training.plan import Problem
from reproduction import cells, entries, figures, page, published, tables, timing
from reproduction.published import Asked

NAMES = entries.names()
RESULTS = ROOT / "docs" / page.PICTURES
PROBLEM = Problem(40_000, 60, 1, "binary")


def asked(method: str, epsilon: float, delta: float | None = None, **options: Any) -> Asked:
    names = {"lambda_": "lambda"}
    return Asked(
        PROBLEM, PrivacySpec(epsilon, delta), method, {names.get(k, k): v for k, v in options.items()}
    )


def noise_at(given: Asked, noise: published.Published) -> Any:
    """The noise of the product's plan at the epsilon that a published noise is run at."""
    options = dict(given.options) | dict(noise.options)
    spec = TrainSpec(given.method, **train_options(options, "test"))
    assert noise.runs_at is not None
    privacy = PrivacySpec(noise.runs_at, given.delta, given.privacy.relation)
    return spec.decide(given.problem, privacy).noise


@pytest.mark.parametrize("name", NAMES)
def test_every_entry_can_be_read(name: str) -> None:
    entry = entries.read(name)
    assert entry.name == name
    labels = {line.label for line in entry.lines}
    for data in entry.data:
        assert tables.read(data).spec.table == "train_rows"
    for one in entry.reported:
        assert one.data in entry.data
        assert set(one.values) <= labels, one
        assert any(one.group == group.name and one.x in group.values for group in entry.groups), one
    for claim in entry.claims:
        assert {claim.better, *claim.than} <= labels, claim
        assert set(claim.groups) <= {group.name for group in entry.groups}
        assert set(claim.data) <= set(entry.data)
    for line in entry.lines:
        assert set(line.groups) <= {group.name for group in entry.groups}, line
        assert set(line.data) <= set(entry.data), line
        TrainSpec(line.method, **train_options(line.options, name))
        if line.published:
            assert line.published["kind"] in published.KINDS
    for data, group in entry.panels() if entry.kind == "quality" else ():
        for line in entry.lines_of(data, group):
            of_several_classes = tables.read(data).spec.label.task == "multiclass"
            assert not (of_several_classes and "clip" in line.options), "clip does not go with softmax"
    for group in entry.groups:
        assert group.values
        assert set(group.quick) <= set(group.values)


def test_a_misspelt_key_is_named(tmp_path: Path) -> None:
    path = tmp_path / "paper-figure-1.toml"
    path.write_text('paper = "P"\nnumber = "1"\ntitle = "t"\nspilts = 3\n', encoding="utf-8")
    with pytest.raises(SpecError, match="no key spilts"):
        entries.Entry.from_toml(path)


def test_the_strongly_convex_bound_is_too_small_by_the_batch() -> None:
    options: dict[str, Any] = {"passes": 10, "batch_size": 50, "schedule": "strongly_convex", "lambda_": 0.01}
    found = published.wu_strongly_convex(asked("bolt-on", 0.1, **options))
    # 2 (L + 1)/(lambda n b) is a 25th of 2 L/(lambda n), so that mu is 25 times that of the epsilon named
    classic = math.sqrt(2.0 * math.log(1.25 * PROBLEM.n_units**2))
    assert found.gives == pytest.approx(
        published.epsilon_of(25.0 * 0.1 / classic, 1.0 / PROBLEM.n_units**2), rel=0.1
    )
    assert 1.5 < found.gives < 3.0
    pure = published.wu_strongly_convex(asked("bolt-on", 0.1, 0.0, **options))
    assert math.isinf(pure.gives)
    assert pure.epsilon == pytest.approx(2.5, rel=0.1)


def test_the_convex_bound_is_right_and_its_noise_more_than_needed() -> None:
    options: dict[str, Any] = {"passes": 10, "batch_size": 50, "schedule": "constant", "step_size": 0.005}
    given = asked("bolt-on", 0.5, **options)
    found = published.wu_convex(given)
    assert 0.3 < found.gives < 0.5
    stddev = math.sqrt(2.0 * math.log(1.25 / given.delta)) * (2 * 10 * 0.005 / 50) / 0.5
    assert noise_at(given, found).scale == pytest.approx(stddev, rel=0.01)
    assert published.wu_convex(asked("bolt-on", 0.5, 0.0, **options)).epsilon is None


def test_published_bst14_is_run_with_its_own_noise() -> None:
    given = asked("bst14", 1.0, passes=2, batch_size=400)
    found = published.bst14(given)
    sampling, steps = given.steps
    multiplier = published_bst14_multiplier(1.0, given.delta, sampling, steps, Relation.ADD_REMOVE)
    assert found.gives < 0.5
    assert noise_at(given, found).noise_multiplier == pytest.approx(multiplier, rel=0.02)


def test_published_amp_keeps_its_epsilon_and_is_run_with_its_own_noise() -> None:
    given = asked("amp", 1.0)
    found = published.amp(given)
    assert 0.4 < found.gives < 1.0
    noise = noise_at(given, found)
    third = (0.887 + 0.019 / 0.99**0.373) * 0.99
    delta_1 = 0.99 * given.delta
    assert noise.convexity == pytest.approx(2.0 / (0.99 - third) / PROBLEM.n_units, rel=1e-6)
    assert noise.linear.scale == pytest.approx(
        2.0 / PROBLEM.n_units * (1.0 + math.sqrt(2.0 * math.log(1.0 / delta_1))) / third, rel=0.01
    )


def test_bolt_on_by_the_pass_gives_several_times_its_epsilon() -> None:
    given = asked(
        "bolt-on", 0.1, passes=10, batch_size=50, clip=1.0, schedule="constant", lambda_=0.01, step_size=0.99
    )  # fmt: skip
    found = published.iyengar_scpsgd(given)
    assert found.gives > 0.2
    stddev = math.sqrt(2.0 * math.log(2.0 / given.delta)) * 2.0 / (0.01 * PROBLEM.n_units) / 0.1
    assert noise_at(given, found).scale == pytest.approx(stddev, rel=0.01)


def test_published_sgd_and_frank_wolfe_keep_their_epsilon() -> None:
    sgd = asked("dp-sgd", 0.1, passes=8, batch_size=300, clip=1.0)
    found = published.iyengar_sgd(sgd)
    assert 0.02 < found.gives < 0.1
    stddev = 300 * 4.0 * math.sqrt(sgd.steps[1] * math.log(1.0 / sgd.delta)) / (PROBLEM.n_units * 0.1)
    assert noise_at(sgd, found).noise_multiplier == pytest.approx(stddev, rel=0.02)
    wolfe = published.frank_wolfe(asked("frank-wolfe", 0.1))
    assert 0.05 < wolfe.gives < 0.1
    assert wolfe.runs_at is None


def test_duals_that_show_their_batch_give_many_times_their_epsilon() -> None:
    problem = Problem(8_000, 69, 1, "binary")
    privacy = PrivacySpec(1.0, 0.001, Relation.ADD_REMOVE)
    found = published.dp_scd(Asked(problem, privacy, "dp-scd", {"dual_noise": True}))
    assert found.gives > 10.0
    assert found.epsilon == 1.0
    sequential = Asked(problem, privacy, "seq-dp-scd", {})
    noise = published.seq_dp_scd(sequential)
    assert noise.gives > 5.0
    assert noise_at(sequential, noise).scale > 0.0


def test_a_verdict_counts_points_beyond_their_spread() -> None:
    entry = entries.read("hardwarsing-2018-figure-6")
    (claim,) = entry.claims
    points = {
        ("sphere", "", claim.better, 1): figures.Point((0.5,)),
        ("sphere", "", claim.than[0], 1): figures.Point((0.9,)),
        ("sphere", "", claim.better, 5): figures.Point((0.5, 0.7)),
        ("sphere", "", claim.than[0], 5): figures.Point((0.6, 0.8)),
    }
    assert figures.verdict(entry, claim, points) == figures.Verdict(1, 1, 0)
    words = figures.verdict(entry, claim, points).words
    assert words == "**holds in part** (ahead in 1, level in 1, behind in 0 of 2 comparisons)"
    not_worse = figures.verdict(entry, replace(claim, not_worse=True), points)
    assert not_worse == figures.Verdict(1, 1, 0, not_worse=True)
    assert not_worse.words == "**holds** (ahead in 1, level in 1, behind in 0 of 2 comparisons)"
    assert figures.verdict(entry, replace(claim, at=(1,)), points) == figures.Verdict(1, 0, 0)
    turned = replace(claim, better=claim.than[0], than=(claim.better,))
    assert figures.verdict(entry, turned, points).words == (
        "**does not hold** (ahead in 0, level in 1, behind in 1 of 2 comparisons)"
    )
    within = figures.verdict(entry, replace(turned, not_worse=True, within=0.5), points)
    assert within.words == "**holds** (level in all 2 comparisons)"
    strict = figures.verdict(entry, replace(turned, not_worse=True, within=0.05), points)
    assert strict.words == "**does not hold** (behind in all 2 comparisons)"


def test_auto_is_compared_with_lines_that_keep_their_epsilon() -> None:
    entry = entries.read("wu-2017-figure-8")
    group = entry.groups[0].name
    points = {
        ("kdd", group, "auto", 0.1): figures.Point((90.0,)),
        ("kdd", group, "SCS13", 0.1): figures.Point((91.0,)),
        ("kdd", group, "bolt-on as published", 0.1): figures.Point((99.0,), 2.0),
        ("kdd", group, "without privacy", 0.1): figures.Point((99.9,)),
        ("kdd", group, "auto", 0.01): figures.Point((50.0,)),  # an epsilon too small to count
        ("kdd", group, "SCS13", 0.01): figures.Point((60.0,)),
    }
    assert figures.auto_behind(entry, points) == (1, [figures.Behind("kdd", group, 0.1, "SCS13", 1.0)])
    points["kdd", group, "auto", 0.1] = figures.Point((95.0,))
    points["kdd", group, "auto, linear", 0.1] = figures.Point((90.5,))
    assert figures.auto_behind(entry, points) == (1, [])
    behind = figures.Behind("kdd", group, 0.1, "SCS13", 0.5)
    assert figures.auto_behind(entry, points, linear=True) == (1, [behind])


def test_the_entries_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert reproduce.main(["--list"]) == 0
    printed = capsys.readouterr().out
    assert all(f"{name}\n" in printed for name in NAMES)


def test_a_full_run_is_not_replaced_by_a_smaller_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = {"entry": NAMES[0], "size": "full", "rows": {}, "cells": []}
    cells.write_results(tmp_path / page.PICTURES, results)
    assert reproduce.main(["--quick", "--only", NAMES[0], "--folder", str(tmp_path)]) == 2
    assert "give another --folder" in " ".join(capsys.readouterr().err.split())


def test_an_interrupted_run_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "hardwarsing-2018-figure-6"
    command = ["--smallest", "--only", name, "--folder", str(tmp_path)]
    measured: list[str] = []
    original = cells._Split.record

    def record(self: cells._Split, cell: cells.Cell) -> cells.Record:
        if len(measured) == 2:
            raise KeyboardInterrupt
        measured.append(cell.line.label)
        return original(self, cell)

    monkeypatch.setattr("os.cpu_count", lambda: 1)  # else the one that is interrupted may not be the third
    monkeypatch.setattr(cells._Split, "record", record)
    with pytest.raises(KeyboardInterrupt):
        reproduce.main(command)
    results = cells.read_results(tmp_path / page.PICTURES, name)
    assert results is not None
    before = results["cells"]
    assert [cell["label"] for cell in before] == measured

    monkeypatch.setattr(cells._Split, "record", original)
    assert reproduce.main([*command, "--resume"]) == 0
    results = cells.read_results(tmp_path / page.PICTURES, name)
    assert results is not None
    assert results["cells"][:2] == before
    places = [cells.place_of(cell) for cell in results["cells"]]
    assert places == list(cells.runs_of(entries.read(name), "smallest"))


@pytest.mark.slow
def test_every_entry_runs_at_its_smallest_size(tmp_path: Path) -> None:
    assert reproduce.main(["--smallest", "--folder", str(tmp_path)]) == 0
    text = (tmp_path / "reproduction.md").read_text(encoding="utf-8")
    for name in NAMES:
        entry = entries.read(name)
        results = cells.read_results(tmp_path / page.PICTURES, name)
        assert results is not None
        wanted = (timing if entry.kind == "time" else cells).runs_of(entry, "smallest")
        assert {cells.place_of(cell): cell["same"] for cell in results["cells"]} == wanted
        for cell in results["cells"]:
            assert "rejected" not in cell, cell
            assert {entry.measure, "pass_seconds", "gives"} & set(cell), cell
        assert (tmp_path / page.PICTURES / f"{name}.svg").read_bytes().startswith(b"<?xml")
        assert f"{page.PICTURES}/{name}.svg" in text


def test_the_page_is_that_of_the_stored_results() -> None:
    made = page.Page(RESULTS)
    assert {entry.name for entry in made.entries} == set(NAMES)
    assert (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8") == made.text()
    assert sorted(path.stem for path in RESULTS.glob("*.svg")) == NAMES
    assert sorted(path.stem for path in RESULTS.glob("*.json")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_the_figures_of_the_page_are_in_the_stored_results(name: str) -> None:
    """Without the code that makes the page: every number of an entry's tables is the mean of its cells."""
    entry = entries.read(name)
    results = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    text = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    section = text.partition(f"{page.PICTURES}/{name}.svg)")[2].partition("\n### ")[0].partition("\n## ")[0]
    measure = "pass_seconds" if entry.kind == "time" else entry.measure
    sums: dict[tuple[Any, ...], list[float]] = {}
    for cell in results["cells"]:
        if measure in cell:
            sums.setdefault((cell["data"], cell["group"], cell["label"], cell["x"]), []).append(cell[measure])
    shown = [
        float(number)
        for line in section.splitlines()
        if line.startswith("| ") and "published figure" not in line and "| --- |" not in line
        for column in line.split(" | ")[3:]
        if (number := (re.match(r"-?\d[\d.]*(e-\d+)?", column) or [""])[0])
    ]
    means = sorted(sum(values) / len(values) for values in sums.values())
    heads = [line for line in section.splitlines() if line.startswith("| data |")]
    assert len(shown) == len(means), heads
    for value, mean in zip(sorted(shown), means, strict=True):
        assert value == pytest.approx(mean, rel=0.006, abs=0.051)


def test_made_rows_are_those_of_their_description() -> None:
    clusters = tables.read("synthetic_h").made
    assert clusters is not None
    x, y = clusters.make(300)
    assert x.shape == (300, 5000)
    assert set(y) == {-1, 1}
    apart = abs(x[y == 1].mean(axis=0) - x[y == -1].mean(axis=0))
    assert apart[10:].max() < 1.0  # features beyond the ten that matter are noise
    sphere = tables.read("sphere").made
    assert sphere is not None
    x, y = sphere.make(2000)
    assert (abs((x**2).sum(axis=1) - 1.0) < 1e-9).all()
    assert len(y) == 2000


def test_the_kernel_agrees_that_a_batch_does_not_divide_the_strongly_convex_bound() -> None:
    schedule = kernels.Schedule("strongly_convex", lambda_=0.01, max_step=1.0 / 1.01)
    moved = [
        kernels.sensitivity(
            schedule=schedule, smoothness=0.25, lambda_=0.01, gradient_change=2.0, n_rows=40_000, passes=10,
            batch_size=batch_size,
        ).sensitivity
        for batch_size in (1, 50)
    ]  # fmt: skip
    assert moved == pytest.approx([2.0 / (0.01 * 40_000)] * 2, rel=0.1)
