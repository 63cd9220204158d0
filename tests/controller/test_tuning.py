# SPDX-License-Identifier: PostgreSQL
"""Grids and portions: what is decided of a tuning run without a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pg_dpml.blocks.portions import equal_sizes
from pg_dpml.errors import SpecError
from pg_dpml.runs.grid import Grid
from pg_dpml.training.spec import TrainSpec


def test_a_grid_is_every_combination() -> None:
    grid = Grid({"lambda": [0.0, 0.01], "passes": [1, 2, 3]}, TrainSpec(method="bolt-on", batch_size=7))
    assert len(grid.candidates) == 6
    assert grid.candidates[0] == TrainSpec(method="bolt-on", lambda_=0.0, passes=1, batch_size=7)
    assert grid.candidates[-1] == TrainSpec(method="bolt-on", lambda_=0.01, passes=3, batch_size=7)
    assert grid.settings[-1] == {"lambda": 0.01, "passes": 3}


def test_several_grids_are_joined() -> None:
    given: list[dict[str, list[Any]]] = [
        {"lambda": [0.0, 0.01]},
        {"loss": ["huber_svm"], "huber_h": [0.1, 0.2, 0.3]},
    ]
    grid = Grid(given, TrainSpec(method="bolt-on"))
    assert [len(setting) for setting in grid.settings] == [1, 1, 2, 2, 2]
    assert grid.candidates[2] == TrainSpec(method="bolt-on", loss="huber_svm", huber_h=0.1)


@pytest.mark.parametrize(
    ("text", "n"),
    [
        ('[grid]\nmethod = ["bolt-on"]\nlambda = [1e-4, 1e-3]\n', 2),
        (
            "[grid]\nlambda = [1e-4, 1e-3]\npasses = [1, 2]\n"
            "[training]\nmethod = 'bolt-on'\nbatch_size = 5\n",
            4,
        ),
        (
            '[[grid]]\nmethod = ["dp-gd"]\nlambda = [0.0]\n'
            '[[grid]]\nloss = ["huber_svm"]\nhuber_h = [0.1, 0.5]\n',
            3,
        ),
        (
            '[grid]\nmethod = ["bolt-on", "dp-gd"]\npasses = [2, 5]\n[training]\nlambda = 0.01\n',
            4,
        ),
    ],
)
def test_grid_files(tmp_path: Path, text: str, n: int) -> None:
    path = tmp_path / "grid.toml"
    path.write_text(text, encoding="utf-8")
    assert len(Grid.from_toml(path).candidates) == n


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "give a .grid. table"),
        ({"grid": {"lambda": [0.0, 0.1]}, "tuning": {}}, "unknown key 'tuning'"),
        ({"grid": {"lambda": 0.1}}, "lambda must be a list of values, not 0.1"),
        ({"grid": {"lambda": []}}, "lambda must be a list"),
        ({"grid": {"loss": "logistic"}}, "loss must be a list"),
        ({"grid": {"method": "bolt-on"}}, "method must be a list"),
        (
            {"grid": {"method": ["bolt-on", "dp-gd"]}, "training": {"solver": "sgd"}},
            "solver belongs to method bolt-on, not to dp-gd",
        ),
        (
            {"grid": [{"method": ["bolt-on"]}, {"loss": ["logistic"]}], "training": {"lambda": 0.1}},
            "lambda belongs to method .*dp-gd",
        ),
        ({"grid": {"alpha": [1, 2]}}, "unknown key 'alpha'; known are method, loss"),
        ({"grid": {"lambda_": [1, 2]}}, "unknown key 'lambda_'"),
        ({"grid": {"lambda": [0.0, 0.1]}}, "lambda belongs to method .*dp-gd.*name the method"),
        ({"grid": {"passes": [1, 0]}, "training": {"method": "bolt-on"}}, "passes must be a whole number"),
        (
            {"grid": {"passes": [1]}, "training": {"method": "bolt-on"}},
            "2 to 64 candidates, not 1: for one, dpml train",
        ),
        (
            {"grid": {"passes": list(range(1, 66))}, "training": {"method": "bolt-on"}},
            "2 to 64 candidates, not 65",
        ),
        (
            {"grid": {"passes": [1, 2, 1]}, "training": {"method": "bolt-on"}},
            "the same candidate twice: {'passes': 1}",
        ),
        ({"grid": {"passes": [1, 2]}, "training": {"step": 1}}, "training.: unknown key 'step'"),
        ({"grid": {"passes": [1, 2]}, "training": 3}, "must be a table of keys"),
        ({"grid": 3}, "must be a table of lists"),
        ({"grid": "passes"}, "must be a table of lists"),
        ({"grid": [3]}, "must be a table of keys"),
    ],
)
def test_bad_grids_are_refused_by_name(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        Grid.from_mapping(given)


def test_a_missing_grid_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"none\.toml"):
        Grid.from_toml(tmp_path / "none.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("[grid", encoding="utf-8")
    with pytest.raises(SpecError, match="is not a TOML file"):
        Grid.from_toml(broken)


def test_the_shared_options_must_be_options() -> None:
    with pytest.raises(SpecError, match="must be a TrainSpec"):
        Grid({"passes": [1, 2]}, {"batch_size": 3})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("n", "portions", "sizes"), [(10, 5, (2,) * 5), (13, 5, (3, 3, 3, 2, 2)), (3, 3, (1, 1, 1))]
)
def test_portions_are_as_equal_as_possible(n: int, portions: int, sizes: tuple[int, ...]) -> None:
    assert equal_sizes(n, portions) == sizes
