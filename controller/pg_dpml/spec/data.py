# SPDX-License-Identifier: PostgreSQL
"""The data of a run: table, label, features and the unit of privacy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pg_dpml.errors import SpecError
from pg_dpml.kernels import MAX_BLUR, MAX_FEATURES
from pg_dpml.names import did_you_mean, shown, toml_key
from pg_dpml.spec.checks import (
    MOST_KNOTS,
    as_choice,
    as_flag,
    as_table,
    require_known,
    require_name,
    require_text,
    require_whole,
)
from pg_dpml.spec.columns import DEFAULT_KEYS, Column, Label
from pg_dpml.spec.files import left_open, parse_toml, read_text

__all__ = ["MAX_WEIGHTS", "PROJECTED_SPARSE", "DataSpec"]

NORMS = ("normalize", "clip")
MAX_WEIGHTS = 2**24
"""Features times classes. A state of several such arrays stays below 1 GB, PostgreSQL's largest value."""
MAX_ROWS_PER_UNIT = 10**6
PROJECTED_SPARSE = (
    "projection takes no sparse columns: it would multiply a row by every feature, given or not; leave it out"
)


@dataclass(frozen=True)
class DataSpec:
    """A table, its label and its feature columns.

    Attributes
    ----------
    table : str
        Name as in SQL, schema-qualified or not, quoted where SQL would need it.
    label : Label
    columns : tuple of Column
        In the order of the model's features.
    crosses : tuple of pairs of str
        Names of two columns each, with levels or knots: the products of their levels and hat functions are
        features, after those of all columns.
    knots : int or None
        `knots` of `[defaults]`: pieces of equal length in the curve of every number and date that has bounds
        and no knots of its own. Integers without log1p have at most a piece a step. 0: no curve, whatever the
        method says. None: a curve only if the method gives one.
    where : str or None
        SQL condition on the rows; needs `definition_is_public`.
    definition_is_public : bool
        The owner's word that the filter, or the view behind `table`, is public.
    intercept : bool
        Add a constant feature; it is regularised like every other.
    norm : str
        "normalize" (every row to norm 1) or "clip" (only longer rows).
    projection : int or None
        Number of features after projection by a Gaussian random matrix; None: no projection.
    projection_seed : int
        Seed of the matrix, public and stored with the model.
    unit : str or None
        Column whose equal values are one unit of privacy, such as a patient;
        None: every row is one.
    max_rows_per_unit : int
        Largest number of rows of a unit that are used.
    dataset : str or None
        Name of the budget that runs are charged to; None: the budget that lists `table`, if there is one.

    Notes
    -----
    Source: privacy/README.md, "Vectors come from public knowledge".
    """

    table: str
    label: Label
    columns: tuple[Column, ...]
    where: str | None = None
    definition_is_public: bool = False
    intercept: bool = True
    norm: str = "normalize"
    projection: int | None = None
    projection_seed: int = 0
    unit: str | None = None
    max_rows_per_unit: int = 1
    dataset: str | None = None
    crosses: tuple[tuple[str, str], ...] = ()
    knots: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", tuple(self.columns))
        if not isinstance(self.table, str) or not self.table.strip():
            raise SpecError("table must be the name of a table")
        require_text(self.table, "table")
        if not self.columns:
            raise SpecError("columns: list at least one feature column, as [columns.NAME]")
        names = [name for column in self.columns for name in column.names]
        if len(set(names)) != len(names):
            raise SpecError("columns: every column may be listed once, and be the indices of one")
        if self.label.column in names:
            raise SpecError(f"column {shown(self.label.column)} is the label and cannot be a feature")
        object.__setattr__(self, "crosses", self._checked_crosses())
        self._require_pieces()
        if sum(column.blur_cost for column in self.columns) > MAX_BLUR:
            raise SpecError(
                "columns: with blur, the features of all images of a row are means of more than 2^26 pixels; "
                "choose a smaller blur or a larger stride"
            )
        as_choice(self.norm, "norm", NORMS)
        if self.projection is not None:
            require_whole(self.projection, "projection", MAX_FEATURES - 1)
            if any(column.indices is not None for column in self.columns):
                raise SpecError(PROJECTED_SPARSE)
        if self.projection_seed != 0:
            require_whole(self.projection_seed, "projection_seed", 2**53)
        require_whole(self.max_rows_per_unit, "max_rows_per_unit", MAX_ROWS_PER_UNIT)
        for key in ("where", "unit", "dataset"):
            if getattr(self, key) is not None and not isinstance(getattr(self, key), str):
                raise SpecError(f"{key} must be text, not {getattr(self, key)!r}")
            require_text(getattr(self, key) or "", key)
        if self.unit is None and self.max_rows_per_unit != 1:
            raise SpecError("max_rows_per_unit goes with unit = COLUMN")
        if self.unit is not None and (self.unit == self.label.column or self.unit in names):
            raise SpecError(
                f"unit {shown(self.unit)} is who a row is about and cannot be a feature or the label"
            )
        as_flag(self.intercept, "intercept")
        as_flag(self.definition_is_public, "definition_is_public")
        if self.where is not None and not self.definition_is_public:
            raise SpecError(
                "where: a filter is part of the guarantee only if it is public; if the owner agrees "
                "that which rows it keeps is no secret, add definition_is_public = true"
            )

    def _require_pieces(self) -> None:
        """Reject knots of all columns that are no number of pieces."""
        if self.knots is None or (type(self.knots) is int and 0 <= self.knots < MOST_KNOTS):
            return
        raise SpecError(
            f"[defaults]: knots must be a whole number of pieces from 1 to {MOST_KNOTS - 1}, or 0 for no "
            f"curves, not {self.knots!r}: places of knots belong to a single column, under [columns.NAME]"
        )

    def _checked_crosses(self) -> tuple[tuple[str, str], ...]:
        """The crosses, if they are different pairs of the columns."""
        form = 'a list of pairs of columns, such as [["age", "town"]]'
        if isinstance(self.crosses, str) or not isinstance(self.crosses, Sequence):
            raise SpecError(f"crosses must be {form}, not {self.crosses!r}")
        names = [column.name for column in self.columns]
        found: list[tuple[str, str]] = []
        for pair in self.crosses:
            if isinstance(pair, str) or not isinstance(pair, Sequence) or len(pair) != 2:
                raise SpecError(f"crosses must be {form}, and {pair!r} is no pair")
            for name in pair:
                require_name(name, "crosses")
                if name not in names:
                    offer = did_you_mean(name, names) or f": give it a section [columns.{toml_key(name)}]"
                    raise SpecError(f"crosses: {shown(name)} is no column of the spec{offer}")
            if pair[0] == pair[1]:
                raise SpecError(
                    f"crosses: {shown(pair[0])} cannot be crossed with itself: a finer curve has more knots"
                )
            if tuple(pair) in found or tuple(reversed(pair)) in found:
                raise SpecError(f"crosses: list {shown(pair[0])} with {shown(pair[1])} only once")
            found.append((pair[0], pair[1]))
        return tuple(found)

    @classmethod
    def from_mapping(cls, given: Mapping[str, Any]) -> DataSpec:
        """The spec of a parsed TOML document; an unknown key is an error that names it."""
        own = ("table", "dataset", "where", "definition_is_public", "unit", "max_rows_per_unit", "crosses")
        allowed = (*own, "label", "defaults", "columns", "features")
        require_known(given, allowed, "data spec")
        if not isinstance(given.get("table"), str):
            raise SpecError("data spec: give table = NAME")
        if "label" not in given:
            raise SpecError("data spec: give a [label] table")
        features = as_table(given.get("features", {}), "[features]")
        require_known(features, ("intercept", "norm", "projection", "projection_seed"), "[features]")
        defaults = dict(as_table(given.get("defaults", {}), "[defaults]"))
        require_known(defaults, DEFAULT_KEYS, "[defaults]")
        # Which columns are numbers, to which these belong, is known from the catalog alone.
        knots = defaults.pop("knots", None)
        columns = as_table(given.get("columns", {}), "[columns]")
        return cls(
            label=Label.from_mapping(given["label"]),
            columns=tuple(Column.from_mapping(name, keys, defaults) for name, keys in columns.items()),
            knots=knots,
            **{key: given[key] for key in own if key in given},
            **features,
        )

    @classmethod
    def from_toml(cls, path: str | Path) -> DataSpec:
        """Read a spec file.

        Raises
        ------
        SpecError
            If the file is missing, is not TOML, or has a bad key.
        """
        return cls.from_text(read_text(path), str(path))

    @classmethod
    def from_text(cls, text: str, where: str) -> DataSpec:
        """The spec of a TOML document; errors begin with `where`, its origin."""
        document = parse_toml(text, where)
        missing = list(left_open(document, ""))
        if missing:
            raise SpecError(f"{where}: fill in {', '.join(missing)}")
        return cls.from_mapping(document)
