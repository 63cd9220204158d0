# SPDX-License-Identifier: PostgreSQL
"""scripts/accuracy: its files, options, JSON and exit code, on a data set of its own."""

from __future__ import annotations

import gzip
import json
import math
import os
from pathlib import Path

import numpy as np
import pytest

import accuracy
from pg_dpml import PrivacySpec
from pg_dpml.spec.relation import Relation

FILES = sorted(accuracy.SETS.glob("*.toml"))

SPEC = """
title = "Tiny"
source = "nowhere"
files = ["tiny.csv.gz"]
splits = 5
table = "x_1 float8, kind text, y int"

[[run]]
method = "noiseless"
goal = 55.0

[[run]]
method = "bolt-on"
epsilon = 2.0
goal = GOAL

[published]
epsilon = 2.0
"somebody" = [50.0, 51.5]

[spec.label]
column = "y"
positive = 1
negative = 0

[spec.columns]
x_1 = { lower = -1, upper = 1 }
kind = { levels = ["a", "b"] }
"""


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one data set of 2,000 rows and its spec, PG_DPML_DATA set to it."""
    random = np.random.default_rng(1)
    with gzip.open(tmp_path / "tiny.csv.gz", "wt", encoding="utf-8") as file:
        file.write("x-1,kind,y\n")
        for x in random.uniform(-1, 1, 2000):
            file.write(f"{x},{random.choice(['a', 'b'])},{int(x + random.normal(0, 0.2) > 0)}\n")
    (tmp_path / "tiny.toml").write_text(SPEC.replace("GOAL", "0.0"), encoding="utf-8")
    monkeypatch.setenv("PG_DPML_DATA", str(tmp_path))
    return tmp_path


def test_real_runs_and_the_exit_code(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert accuracy.main(["--json", "--quick"], tiny) == 0
    plain, private = json.loads(capsys.readouterr().out)
    for line in (plain, private):
        assert list(line) == [
            "data",
            "method",
            "epsilon",
            "mean",
            "sd",
            "runs",
            "goal",
            "auc",
            "auc_goal",
            "ok",
        ]
        assert line["data"] == "tiny"
        assert 0.0 <= line["mean"] <= 100.0
        assert (line["sd"], line["runs"]) == (None, 1)
    assert (plain["method"], plain["epsilon"], plain["ok"]) == ("noiseless", None, True)
    assert 0.9 < plain["auc"] <= 1.0
    assert (private["method"], private["epsilon"], private["goal"]) == ("bolt-on", 2.0, 0.0)

    for goal in ("100.1", "0.0\nauc_goal = 1.01"):
        (tiny / "tiny.toml").write_text(SPEC.replace("GOAL", goal), encoding="utf-8")
        assert accuracy.main(["--json", "--quick", "--method", "bolt-on"], tiny) == 1
        assert json.loads(capsys.readouterr().out)[0]["ok"] is False

    (tiny / "tiny.toml").write_text(SPEC.replace("GOAL", "100.1"), encoding="utf-8")
    assert accuracy.main(["--json", "--only", "tiny", "--method", "bolt-on"], tiny) == 1
    (missed,) = json.loads(capsys.readouterr().out)
    assert missed["ok"] is False
    assert missed["runs"] == 5
    assert missed["sd"] > 0.0


def test_missing_data_is_named(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tiny / "tiny.csv.gz").unlink()
    assert accuracy.main(["--quick"], tiny) == 2
    assert "tiny.csv.gz is missing in" in capsys.readouterr().err
    monkeypatch.delenv("PG_DPML_DATA")
    assert accuracy.main(["--quick"], tiny) == 2
    assert "set PG_DPML_DATA to the folder that holds tiny.csv.gz" in capsys.readouterr().err


def test_published_figures_are_printed_beside_ours(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = accuracy.DataSet.from_toml(tiny / "tiny.toml")
    figure = accuracy.Figure(data, data.runs[1], [80.0, 81.0])
    accuracy.show([figure])
    printed = " ".join(capsys.readouterr().out.split())
    for expected in ("tiny", "bolt-on", "80.5", "0.707", "somebody", "50 / 51.5", "Not like for like"):
        assert expected in printed


def test_a_table_of_runs_lists_epsilons_options_and_a_relation(tiny: Path) -> None:
    grid = """delta = 0.001

[[run]]
method = "dp-sgd"
epsilon = [0.5, 2.0]
loss = "huber_svm"
lambda = 0.01
relation = "add_remove"
goal = [60.0, 70.0]
"""
    spec = SPEC.replace("\n[[run]]", f"\n{grid}\n[[run]]", 1).replace("GOAL", "0.0")
    (tiny / "tiny.toml").write_text(spec, encoding="utf-8")
    first, second, plain, last = accuracy.DataSet.from_toml(tiny / "tiny.toml").runs
    assert [run.epsilon for run in (first, second, plain, last)] == [0.5, 2.0, None, 2.0]
    assert first.title == second.title == "dp-sgd, loss huber_svm, lambda 0.01, add_remove"
    assert first.privacy == PrivacySpec(0.5, 0.001, Relation.ADD_REMOVE)
    assert plain.privacy is None
    assert last.privacy == PrivacySpec(2.0, 0.001)
    assert dict(first.spec.given()) == {"loss": "huber_svm", "lambda_": 0.01}
    assert (first.goal, second.goal, plain.goal, last.goal) == (60.0, 70.0, 55.0, 0.0)


def test_a_file_completes_its_base(tiny: Path) -> None:
    """Lists replace those of the base, tables complete them; the server generates derived columns."""
    (tiny / "more.toml").write_text(
        'base = "tiny"\nderived = "z int GENERATED ALWAYS AS (2 * y) STORED"\n[[run]]\nmethod = "lbfgs"\n'
        "[spec.features]\nintercept = false\n"
        "[spec.columns]\nx_1 = { upper = 2 }\nz = { lower = 0, upper = 2 }\n",
        encoding="utf-8",
    )
    data = accuracy.DataSet.from_toml(tiny / "more.toml")
    assert [run.method for run in data.runs] == ["lbfgs"]
    assert data.title == "Tiny"
    assert data.spec.intercept is False
    assert [(c.name, c.lower, c.upper) for c in data.spec.columns] == [
        *(("x_1", -1.0, 2.0), ("kind", None, None), ("z", 0.0, 2.0)),
    ]
    assert accuracy.main(["--only", "more", "--quick"], tiny) == 0


def test_a_misspelt_option_of_a_run_is_named(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (tiny / "tiny.toml").read_text(encoding="utf-8")
    (tiny / "tiny.toml").write_text(
        text.replace("epsilon = 2.0\ngoal", "epsilom = 2.0\ngoal", 1), encoding="utf-8"
    )
    assert accuracy.main(["--quick"], tiny) == 2
    assert "epsilom" in capsys.readouterr().err


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_every_file_is_a_data_set(path: Path) -> None:
    data = accuracy.DataSet.from_toml(path)
    declared = ", ".join(filter(None, (data.table, data.derived)))
    columns = [column.split()[0].strip('"') for column in declared.replace("\n", " ").split(", ")]
    features = [column.name for column in data.spec.columns]
    assert sorted([*features, data.spec.label.column]) == sorted(columns)
    for run in data.runs:
        assert run.spec.method == run.method  # the method has its options
    goals = [run.goal for run in data.runs if run.goal is not None]
    assert all(math.isfinite(goal) and goal <= data.unit for goal in goals)
    if folder := os.environ.get("PG_DPML_DATA"):
        assert all(Path(folder, name).is_file() for name in data.files)


def test_there_are_data_sets() -> None:
    assert len(FILES) >= 7
