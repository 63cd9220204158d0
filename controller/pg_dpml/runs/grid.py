# SPDX-License-Identifier: PostgreSQL
"""Candidates to tune over."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pg_dpml.errors import SpecError
from pg_dpml.spec.checks import as_table, require_known
from pg_dpml.spec.files import read_toml
from pg_dpml.training.method import method_options
from pg_dpml.training.options import shown_name
from pg_dpml.training.spec import TrainSpec

__all__ = [
    "Grid",
    "train_options",
]

MAX_CANDIDATES = 64


@dataclass(frozen=True)
class Grid:
    """Candidates to tune over: every combination of the values listed.

    Attributes
    ----------
    values : mapping or sequence of mappings
        Training options, named as in `TrainSpec` but `lambda`, each with a list of values. Several mappings
        are several grids, whose candidates are all tried.
    training : TrainSpec
        Options that all candidates share.
    settings : tuple of mapping
        What tells each candidate from the others.
    candidates : tuple of TrainSpec
        2 to 64 different ones.
    """

    values: Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Sequence[Any]]]
    training: TrainSpec = field(default_factory=TrainSpec)
    settings: tuple[Mapping[str, Any], ...] = field(init=False)
    candidates: tuple[TrainSpec, ...] = field(init=False)

    def __post_init__(self) -> None:
        if not isinstance(self.training, TrainSpec):
            raise SpecError(f"training must be a TrainSpec, not {self.training!r}")
        grids = [self.values] if isinstance(self.values, Mapping) else self.values
        if isinstance(grids, str) or not isinstance(grids, Sequence):
            raise SpecError(f"grid must be a table of lists, not {grids!r}")
        settings = [setting for grid in grids for setting in _combinations(grid)]
        candidates = [self.training.replace(**train_options(setting, "grid")) for setting in settings]
        if not 2 <= len(candidates) <= MAX_CANDIDATES:
            raise SpecError(
                f"grid must have 2 to {MAX_CANDIDATES} candidates, not {len(candidates)}: for one, dpml train"
            )
        for i, candidate in enumerate(candidates):
            if candidate in candidates[:i]:
                raise SpecError(f"grid has the same candidate twice: {settings[i]}")
        object.__setattr__(self, "settings", tuple(settings))
        object.__setattr__(self, "candidates", tuple(candidates))

    @classmethod
    def from_mapping(cls, given: Mapping[str, Any]) -> Grid:
        """The grid of a parsed TOML document: `grid`, and `training` for what is fixed."""
        require_known(given, ("grid", "training"), "grid file")
        if "grid" not in given:
            raise SpecError("grid file: give a [grid] table, such as lambda = [0.0, 1e-4, 1e-3]")
        fixed = train_options(as_table(given.get("training", {}), "[training]"), "[training]")
        grids = given["grid"] if isinstance(given["grid"], list) else [given["grid"]]
        listed = [grid.get("method") for grid in grids if isinstance(grid, dict)]
        named = [methods[0] for methods in listed if isinstance(methods, list) and methods]
        if "method" not in fixed and len(named) == len(grids):
            # No candidate has another method, and what they share need only fit those.
            fixed["method"] = named[0]
        return cls(given["grid"], TrainSpec(**fixed))

    @classmethod
    def from_toml(cls, path: str | Path) -> Grid:
        """Read a grid file.

        Raises
        ------
        SpecError
            If the file is missing, is not TOML, or has a bad key.
        """
        return cls.from_mapping(read_toml(path))


def _combinations(grid: object) -> list[dict[str, Any]]:
    """Every choice of one value from each list."""
    lists = as_table(grid, "grid")
    for key, values in lists.items():
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise SpecError(f"grid: {key} must be a list of values, not {values!r}")
    return [dict(zip(lists, chosen, strict=True)) for chosen in itertools.product(*lists.values())]


def train_options(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Options as TrainSpec names them; lambda is a word of Python."""
    names = {shown_name(name): name for name in ("method", *method_options())}
    require_known(given, list(names), where)
    return {names[key]: value for key, value in given.items()}
