# SPDX-License-Identifier: PostgreSQL
"""Feature columns and the label, with the public constants that encode them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import date
from types import MappingProxyType
from typing import Any

from pg_dpml.errors import SpecError
from pg_dpml.kernels import MAX_FEATURES
from pg_dpml.names import shown
from pg_dpml.spec.checks import (
    as_bound,
    as_choice,
    as_flag,
    as_knots,
    as_level,
    as_levels,
    as_number,
    as_table,
    require_bounds,
    require_known,
    require_name,
    require_whole,
)
from pg_dpml.spec.files import inner_table

__all__ = [
    "DEFAULT_KEYS",
    "Column",
    "Label",
]


SCALES = ("center", "zero_based", "standard")


_CATEGORY_KEYS = ("levels", "centered")
_NUMBER_KEYS = (
    *("lower", "upper", "scale", "log1p", "mean", "sd", "length", "rows", "blur", "stride"),
    *("indices", "first_index", "knots"),
)
DEFAULT_KEYS = ("lower", "upper", "scale", "log1p", "knots", *_CATEGORY_KEYS)
"""Keys of `[defaults]`, whose values hold for columns without their own. `DataSpec` keeps `knots` of them."""


def _with_defaults(own: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a column and the defaults that fit it: a category has no bounds, a number no levels."""
    unfit: tuple[str, ...] = ()
    if not own.keys().isdisjoint(_CATEGORY_KEYS):
        unfit = _NUMBER_KEYS
    elif not own.keys().isdisjoint(_NUMBER_KEYS):
        unfit = _CATEGORY_KEYS
    return {key: value for key, value in defaults.items() if key not in unfit} | dict(own)


@dataclass(frozen=True)
class Column:
    """One feature column and the public constants that encode it.

    Attributes
    ----------
    name : str
        Column of the table.
    lower, upper : float, date or None
        Public bounds of a numeric column or of an array's elements. For a date or timestamp: dates or
        datetimes (in UTC if they have no time zone), or their ISO text.
    scale : str
        "center" (bounds to -1 and +1), "zero_based" (bounds to 0 and 1) or
        "standard" ((v - mean) / sd).
    log1p : bool
        Replace value and bounds v by ln(1 + v) first; needs lower >= 0.
    mean, sd : float or None
        Public constants of scale "standard"; sd > 0. For a date or timestamp the mean is one too; sd is in
        days for a date, in seconds for a timestamp.
    levels : tuple of str or None
        Public list of categories.
    centered : bool
        Subtract 1 / (number of levels) from every one-hot feature.
    length : int or None
        Number of elements of an array column; of a sparse column, those included that are not given.
    indices : str or None
        Column with the places of the elements; then the column is sparse, and all other elements are 0.
    first_index : int or None
        Index of the first element of a sparse pair: 0 or 1.
    knots : int, tuple of float, tuple of date or None
        Places between the bounds where a curve may bend, which the model has beside the linear feature: a
        number k of pieces of equal length, which has k + 1 knots (after log1p, if that is true), or the
        places themselves, rising, in units of the column. 0: no curve, whatever `[defaults]` and the method
        say. None: the knots of `[defaults]`; without these, a curve only if the method gives one.
    rows : int or None
        If given, the array is an image with this number of rows, row by row, which is reduced.
    blur, stride : int
        The features of an image are means of blur x blur pixels (blur is odd), at every stride-th pixel of
        every stride-th row.

    Notes
    -----
    Source: privacy/README.md, "Vectors come from public knowledge".
    """

    name: str
    lower: float | date | None = None
    upper: float | date | None = None
    scale: str = "center"
    log1p: bool = False
    mean: float | date | None = None
    sd: float | None = None
    levels: tuple[str, ...] | None = None
    centered: bool = True
    length: int | None = None
    rows: int | None = None
    blur: int = 3
    stride: int = 2
    indices: str | None = None
    first_index: int | None = None
    knots: int | tuple[float | date, ...] | None = None

    def __post_init__(self) -> None:
        where = f"column {shown(self.name)}"
        require_name(self.name, "column")
        as_choice(self.scale, f"{where}: scale", SCALES)
        as_flag(self.log1p, f"{where}: log1p")
        as_flag(self.centered, f"{where}: centered")
        for key in ("lower", "upper", "mean"):
            object.__setattr__(self, key, as_bound(getattr(self, key), f"{where}: {key}"))
        object.__setattr__(self, "sd", as_number(self.sd, f"{where}: sd"))
        object.__setattr__(self, "levels", as_levels(self.levels, f"{where}: levels", 1))
        require_bounds(self.lower, self.upper, where)
        if self.levels is not None and self.lower is not None:
            raise SpecError(f"{where}: give levels (a category) or bounds (a number), not both")
        if self.scale == "standard" and (self.mean is None or self.sd is None or self.sd <= 0.0):
            raise SpecError(f"{where}: scale standard needs public constants mean and sd > 0")
        if self.scale != "standard" and (self.mean is not None or self.sd is not None):
            raise SpecError(f"{where}: mean and sd belong to scale = 'standard'")
        if self.log1p and self.lower is not None and (isinstance(self.lower, date) or self.lower < 0.0):
            raise SpecError(f"{where}: log1p needs lower >= 0, not {self.lower}")
        if self.log1p and self.lower is None:
            raise SpecError(f"{where}: log1p needs the public bounds lower and upper")
        self._require_curve(where)
        if self.length is not None:
            require_whole(self.length, f"{where}: length", MAX_FEATURES - 1)
        for key in ("blur", "stride"):
            require_whole(getattr(self, key), f"{where}: {key}", MAX_FEATURES)
        if self.blur % 2 == 0:
            raise SpecError(f"{where}: blur must be odd, not {self.blur}")
        if self.rows is not None:
            require_whole(self.rows, f"{where}: rows", MAX_FEATURES)
            if self.length is None or self.length % self.rows != 0:
                raise SpecError(
                    f"{where}: rows belongs to an image, an array whose length is a multiple of it"
                )

        if self.indices is not None or self.first_index is not None:
            self._require_sparse(where)

    def _require_curve(self, where: str) -> None:
        """Reject knots of a column that is no number."""
        if self.knots is None or (type(self.knots) is int and self.knots == 0):
            return
        if self.levels is not None:
            raise SpecError(f"{where}: knots belong to a number; a category has a feature for each level")
        if self.length is not None or self.rows is not None or self.indices is not None:
            raise SpecError(
                f"{where}: knots belong to a number, not to an array: give the elements that need a curve "
                "columns of their own, such as those of a view"
            )
        knots = as_knots(self.knots, f"{where}: knots", self.lower, self.upper)
        object.__setattr__(self, "knots", knots)

    def _require_sparse(self, where: str) -> None:
        """Reject a sparse pair that is not one."""
        if self.indices is None:
            raise SpecError(f"{where}: first_index goes with indices = COLUMN")
        require_name(self.indices, f"{where}: indices")
        if self.indices == self.name:
            raise SpecError(f"{where}: indices must be another column, with the places of these numbers")
        if type(self.first_index) is not int or self.first_index not in (0, 1):
            raise SpecError(
                f"{where}: say which index the first feature has in {shown(self.indices)}: first_index = 1, "
                "as in svmlight files, or first_index = 0"
            )
        if self.length is None:
            raise SpecError(
                f"{where}: give length = NUMBER OF FEATURES, those included that no row has: a public "
                "number, from the documentation of the data and never from the rows"
            )
        if self.levels is not None or self.rows is not None:
            raise SpecError(f"{where}: a sparse column is neither a category nor an image")

    @property
    def names(self) -> tuple[str, ...]:
        """The columns of the table that it is made of."""
        return (self.name,) if self.indices is None else (self.name, self.indices)

    @property
    def blur_cost(self) -> int:
        """Number of pixels that are read to blur an image; 0 for any other column."""
        if self.rows is None or self.length is None:
            return 0
        sides = (self.rows, self.length // self.rows)
        return math.prod(-(-side // self.stride) * min(self.blur, side) for side in sides)

    @classmethod
    def from_mapping(
        cls, name: str, given: object, defaults: Mapping[str, Any] = MappingProxyType({})
    ) -> Column:
        """The column of a `[columns.NAME]` table, completed by `[defaults]`."""
        where = f"column {shown(name)}"
        keys = as_table(given, where)
        cut = inner_table(keys)
        if cut:
            whole = json.dumps(".".join((name, *cut)), ensure_ascii=False)
            raise SpecError(
                f"{where}: {cut[0]} is a table, and no key of a column is one; quote names with dots: "
                f"[columns.{whole}]"
            )
        require_known(keys, [f.name for f in fields(cls) if f.name != "name"], where)
        return cls(name=name, **_with_defaults(keys, defaults))


@dataclass(frozen=True)
class Label:
    """The column that is predicted, with exactly one of `positive`, `classes` and bounds.

    Attributes
    ----------
    column : str
        Column of the table.
    positive : str or None
        The value of class +1, as text whatever its type.
    negative : str or None
        The value of class -1; None means every other value.
    classes : tuple of str or None
        The classes of a multiclass model, in the order of its scores.
    lower, upper : float, date or None
        Public bounds of a number, or of a date or timestamp, to predict (regression).
    """

    column: str
    positive: str | None = None
    negative: str | None = None
    classes: tuple[str, ...] | None = None
    lower: float | date | None = None
    upper: float | date | None = None

    def __post_init__(self) -> None:
        where = f"label {shown(self.column)}"
        require_name(self.column, "label: column")
        for key in ("positive", "negative"):
            value = getattr(self, key)
            if value is not None:
                object.__setattr__(self, key, as_level(value, f"{where}: {key}"))
        for key in ("lower", "upper"):
            object.__setattr__(self, key, as_bound(getattr(self, key), f"{where}: {key}"))
        object.__setattr__(self, "classes", as_levels(self.classes, f"{where}: classes", 2))
        require_bounds(self.lower, self.upper, where)
        ways = [self.positive is not None, self.classes is not None, self.lower is not None]
        if sum(ways) != 1:
            raise SpecError(
                f"{where}: say what is predicted by exactly one of positive = VALUE (two classes), "
                "classes = [VALUES] (several classes), or lower and upper (a number)"
            )
        if self.negative is not None and (self.positive is None or self.negative == self.positive):
            raise SpecError(f"{where}: negative goes with a different positive value")

    @property
    def task(self) -> str:
        """One of "binary", "multiclass" and "regression"."""
        if self.positive is not None:
            return "binary"
        return "multiclass" if self.classes is not None else "regression"

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """Class labels in the order of `dpml.predict_proba`; None for regression."""
        if self.positive is not None:
            return (self.negative or f"not {self.positive}", self.positive)
        return self.classes

    @classmethod
    def from_mapping(cls, given: object) -> Label:
        """The label of a `[label]` table."""
        keys = as_table(given, "[label]")
        cut = inner_table(keys)
        if cut:
            whole = json.dumps(".".join(cut), ensure_ascii=False)
            raise SpecError(
                f"[label]: {cut[0]} is a table, and no key of the label is one; quote names with dots: "
                f"column = {whole}"
            )
        require_known(keys, [f.name for f in fields(cls)], "[label]")
        if not isinstance(keys.get("column"), str):
            raise SpecError("[label] needs column = NAME")
        return cls(**keys)
