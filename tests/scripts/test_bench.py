# SPDX-License-Identifier: PostgreSQL
"""scripts/bench: its options, its JSON and its exit code. How fast anything is, is not asked here."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import psycopg
import pytest

import bench
import bench_rows

EASY = {name: 0.0 if name in bench.AT_LEAST else math.inf for name in bench.GOALS}
IMPOSSIBLE = {name: math.inf if name in bench.AT_LEAST else 0.0 for name in bench.GOALS}


def only(*names: str) -> list[str]:
    return ["--quick", "--json", *(word for name in names for word in ("--only", name))]


def test_rows_survive_the_way_through_the_server(connection: psycopg.Connection) -> None:
    x, y = bench_rows.make_rows(60)
    bench_rows.copy_in(connection, x, y)
    again_x, again_y = bench_rows.copy_out(connection, 60)
    np.testing.assert_array_equal(again_x, x)
    np.testing.assert_array_equal(again_y, y)


def test_results_of_real_runs(capsys: pytest.CaptureFixture[str]) -> None:
    names = [
        "noiseless-vs-count",
        "noiseless-vs-rows",
        "bolt-on-overhead",
        "pack-vs-ctas",
        "pack-unordered",
        "gradient-parallel",
        "scs13-b10",
        "scs13-b50",
        "scs13-b1",
        "scs13-b10-vs-rows",
        "poisson-epoch",
        "dp-sgd-pass",
        "frank-wolfe-step",
        "auto-wide",
        "start-up",
    ]
    assert bench.main(only(*names), EASY) == 0
    shown = capsys.readouterr()
    lines = json.loads(shown.out)
    assert re.search(r"^  noiseless-vs-count  \S+  <= inf  ok  \S+ s  \S+ s$", shown.err, re.MULTILINE)
    names.insert(names.index("auto-wide"), "frank-wolfe-step-seconds")
    assert [line["name"] for line in lines] == names
    for line in lines:
        assert set(line) == {"name", "value", "goal", "ok"}
        assert 0.0 < line["value"] < 1000.0
        assert line["ok"] is True


def test_results_beside_scikit_learn(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn")
    names = ["noiseless-vs-sklearn", "end-to-end-vs-export"]
    assert bench.main(only(*names), EASY) == 0
    assert [line["name"] for line in json.loads(capsys.readouterr().out)] == names


@pytest.mark.slow
def test_growth(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(only("growth"), EASY) == 0
    lines = json.loads(capsys.readouterr().out)
    assert [line["name"] for line in lines] == [name for name in bench.GOALS if name.startswith("growth")]


def test_a_missed_goal_is_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(only("sensitivity-1e8"), EASY) == 0
    assert json.loads(capsys.readouterr().out)[0]["ok"] is True
    assert bench.main(only("sensitivity-1e8"), IMPOSSIBLE) == 1
    assert json.loads(capsys.readouterr().out)[0]["ok"] is False


@pytest.mark.parametrize(
    ("name", "value", "met"),
    [
        ("noiseless-vs-rows", 6.0, True),
        ("noiseless-vs-rows", 4.0, False),
        ("noiseless-vs-count", 1.1, True),
        ("noiseless-vs-count", 1.3, False),
    ],
)
def test_goals_have_a_direction(
    capsys: pytest.CaptureFixture[str], name: str, value: float, met: bool
) -> None:
    result = bench.Result(name, value, 1.0, 2.0)
    assert bench.report([result], bench.GOALS, as_json=False) is met
    printed = capsys.readouterr().out
    assert name in printed
    assert ("MISSED" in printed) is not met


def test_an_unknown_name_is_a_usage_error() -> None:
    with pytest.raises(SystemExit) as stopped:
        bench.main(["--only", "nothing"])
    assert stopped.value.code == 2
