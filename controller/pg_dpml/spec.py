# SPDX-License-Identifier: PostgreSQL
"""What a user asks for: the data, the privacy, the training. Every check of user input is here."""

from __future__ import annotations

import codecs
import itertools
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import date
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pg_dpml.errors import SpecError
from pg_dpml.kernels import DEFAULT_HUBER_H, MAX_BLUR, MAX_FEATURES
from pg_dpml.moments import parse_moment, seconds_since_epoch
from pg_dpml.names import did_you_mean, shown, toml_key
from pg_dpml.privacy.relation import Relation

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = [
    "FILL_IN",
    "Column",
    "DataSpec",
    "Grid",
    "Label",
    "PrivacySpec",
    "TrainSpec",
    "read_options",
    "read_text",
    "require_text",
]

FILL_IN = "FILL IN"
"""What a template has where only a person knows."""

MOST_EPSILON = 100.0
"""Largest epsilon of a run. Above it the end of the sampler's tail is worth more than is taken for it."""

SCALES = ("center", "zero_based", "standard")
NORMS = ("normalize", "clip")
METHODS = (
    *("auto", "whitened-dp-gd", "dp-gd", "sufficient-statistics", "bolt-on", "dp-sgd", "bst14", "scs13"),
    *("noiseless", "lbfgs"),
)
NOT_PRIVATE_METHODS = ("noiseless", "lbfgs")
SOLVERS = ("sgd", "certified")
ACCOUNTANTS = ("pld", "advanced")
LOSSES = ("logistic", "huber_svm", "squared", "softmax")
SCHEDULES = ("constant", "decreasing", "sqrt_decreasing", "strongly_convex", "inverse_sqrt")
MAX_WEIGHTS = 2**24
"""Features times classes. A state of several such arrays stays below 1 GB, PostgreSQL's largest value."""
MAX_ROWS_PER_UNIT = 10**6
LONGEST_LEVEL = 10_000
"""Bytes of the longest level or class; longer text in a row is none of them."""
AVERAGES = ("none", "all", "tail")
MAX_CANDIDATES = 64

SGD_OPTIONS = (
    *("passes", "batch_size", "schedule", "step_size", "exponent"),
    *("radius", "average", "tail", "fresh_order"),
)
"""Fields of `TrainSpec` that only the passes of SGD use."""

_TINY, _HUGE = 1e-100, 1e100  # beyond them squares and quotients leave float64

_LOSS_OPTIONS = ("loss", "huber_h", "clip", "lambda_")
_NOISY_OPTIONS = (*_LOSS_OPTIONS, "passes", "batch_size", "radius", "average", "tail")
METHOD_OPTIONS = {
    "auto": ("loss", "huber_h"),
    "whitened-dp-gd": ("loss", "huber_h", "clip", "passes"),
    "dp-gd": (
        *("loss", "huber_h", "clip", "unit_clip", "passes", "lambda_", "step_size", "momentum"),
        *("average", "tail"),
    ),
    "sufficient-statistics": ("loss",),
    "bolt-on": (*_LOSS_OPTIONS, *SGD_OPTIONS, "solver"),
    "dp-sgd": (*_NOISY_OPTIONS, "schedule", "step_size", "momentum"),
    "bst14": (*_NOISY_OPTIONS, "accountant"),
    "scs13": (*_NOISY_OPTIONS, "schedule", "step_size", "momentum", "fresh_order"),
    "noiseless": (*_LOSS_OPTIONS, *SGD_OPTIONS, "tolerance"),
    "lbfgs": (*_LOSS_OPTIONS, "passes", "tolerance"),
}
"""Fields of `TrainSpec` that each method uses: a value for another would change nothing, and is refused."""


def _number(value: object, name: str) -> float | None:
    """A finite float, or None; anything else is refused by name."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SpecError(f"{name} must be a number, not {value!r}")
    try:
        number = float(value)
    except OverflowError:  # an integer of hundreds of digits
        number = math.inf
    if not math.isfinite(number):
        raise SpecError(f"{name} must be finite, not {value!r}")
    return number


def _between(value: object, name: str, least: float, most: float) -> None:
    number = _number(value, name)
    if number is None or not least <= number <= most:
        raise SpecError(f"{name} must be in [{least:g}, {most:g}], not {value!r}")


def _bound(value: object, name: str) -> float | date | None:
    """A finite float, a date or datetime (also as ISO text), or None."""
    if isinstance(value, date):
        return value
    return parse_moment(value, name) if isinstance(value, str) else _number(value, name)


def _whole(value: object, name: str, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise SpecError(f"{name} must be a whole number from 1 to {most}, not {value!r}")


def _choice(value: object, name: str, choices: Sequence[str]) -> str:
    if not isinstance(value, str) or value not in choices:
        offer = did_you_mean(value, choices) if isinstance(value, str) else ""
        raise SpecError(f"{name} must be one of {', '.join(choices)}, not {value!r}{offer}")
    return value


def _flag(value: object, name: str) -> bool:
    if not isinstance(value, bool):
        raise SpecError(f"{name} must be true or false, not {value!r}")
    return value


def require_text(value: str, name: str) -> None:
    """Refuse text that no database holds: a NUL, or half a pair of surrogates."""
    if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
        raise SpecError(f"{name} must be text without NUL characters and lone surrogates, not {value!r}")


def _level(value: object, name: str) -> str:
    """A category level or class as the text the server compares."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        require_text(value, name)
    if isinstance(value, str) and len(value.encode()) > LONGEST_LEVEL:
        raise SpecError(f"{name} must have values of at most {LONGEST_LEVEL} bytes")
    if isinstance(value, str | int | float | date):
        return str(value)
    raise SpecError(f"{name} must be text, a number, a boolean or a date, not {value!r}")


def _levels(value: object, name: str, at_least: int) -> tuple[str, ...] | None:
    if value is None:
        return None
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise SpecError(f"{name} must be a list, not {value!r}")
    levels = tuple(_level(item, name) for item in value)
    if len(levels) < at_least:
        raise SpecError(f"{name} must list at least {at_least} different values")
    if len(set(levels)) != len(levels):
        twice = next(level for level in levels if levels.count(level) > 1)
        raise SpecError(f"{name} must list different values, and {twice!r} only once")
    return levels


def _bounds(lower: float | date | None, upper: float | date | None, name: str) -> None:
    if lower is None and upper is None:
        return
    if lower is None or upper is None:
        raise SpecError(f"{name}: give both lower and upper, or neither")
    if isinstance(lower, date) != isinstance(upper, date):
        raise SpecError(f"{name}: lower and upper must be two numbers or two dates, not {lower} and {upper}")
    least, most = (seconds_since_epoch(v) if isinstance(v, date) else v for v in (lower, upper))
    if not least < most:
        raise SpecError(f"{name}: lower must be below upper, not {lower} and {upper}")


_CATEGORY_KEYS = ("levels", "centered")
_NUMBER_KEYS = ("lower", "upper", "scale", "log1p", "mean", "sd", "length", "rows", "blur", "stride")
_DEFAULT_KEYS = ("lower", "upper", "scale", "log1p", *_CATEGORY_KEYS)
"""Keys of `[defaults]`, which columns that do not say otherwise share."""


def _with_defaults(own: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a column: a category by its own keys takes no bounds, a number no levels."""
    unfit: tuple[str, ...] = ()
    if not own.keys().isdisjoint(_CATEGORY_KEYS):
        unfit = _NUMBER_KEYS
    elif not own.keys().isdisjoint(_NUMBER_KEYS):
        unfit = _CATEGORY_KEYS
    return {key: value for key, value in defaults.items() if key not in unfit} | dict(own)


def _known(given: Mapping[str, object], allowed: Sequence[str], where: str) -> None:
    for key in given:
        if key not in allowed:
            offer = did_you_mean(str(key), allowed)
            known = f"{offer} Known" if offer else "; known"
            raise SpecError(f"{where}: unknown key {key!r}{known} are {', '.join(allowed)}")


def _name(value: object, name: str) -> None:
    if not isinstance(value, str):
        raise SpecError(f"{name} must be the name of a column, not {value!r}")
    require_text(value, name)


def _inner_table(keys: Mapping[str, Any]) -> tuple[str, ...]:
    """Path to the innermost table among the keys, which TOML makes of each dot in a name without quotes."""
    for key, value in keys.items():
        if isinstance(value, Mapping):
            return (key, *_inner_table(value))
    return ()


def _table(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise SpecError(f"{where} must be a table of keys, not {value!r}")
    return value


def _read_toml(path: str | Path) -> dict[str, Any]:
    return _parse_toml(read_text(path), str(path))


def read_text(path: str | Path) -> str:
    """The text of a file of UTF-8, with or without a byte-order mark.

    Raises
    ------
    SpecError
        If the file cannot be read, or has another encoding, as editors and shells of Windows write it.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise SpecError(f"{path}: {error.strerror}") from error
    wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in data
    if wide:
        raise SpecError(
            f"{path} is not text of UTF-8 but of UTF-16, or no text: save it as UTF-8 (in PowerShell with "
            "Out-File -Encoding utf8 in place of >)"
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise SpecError(
            f"{path} is not text of UTF-8 (line {line}, byte {error.start + 1}): save it as UTF-8, as an "
            "editor offers in Save As"
        ) from error


def _parse_toml(text: str, where: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"{where} is not a TOML file: {error}") from error


def _left_open(value: object, place: str) -> Iterator[str]:
    """Where a template is not filled in."""
    if value == FILL_IN:
        yield place
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _left_open(item, f"{place}.{toml_key(key)}" if place else toml_key(key))
    elif isinstance(value, list):
        for item in value:
            yield from _left_open(item, place)


@dataclass(frozen=True)
class Column:
    """One feature column and the public constants that encode it.

    Attributes
    ----------
    name : str
        Column of the table.
    lower, upper : float, date or None
        Public bounds of a numeric column or of an array's elements. For a date or
        timestamp: dates or datetimes, without a time zone in UTC, or their ISO text.
    scale : str
        "center" (bounds to -1 and +1), "zero_based" (bounds to 0 and 1) or
        "standard" ((v - mean) / sd).
    log1p : bool
        Take ln(1 + v) of value and bounds first; needs lower >= 0.
    mean, sd : float or None
        Public constants of scale "standard"; sd > 0. For a date the mean is a date and
        sd in days, for a timestamp in seconds.
    levels : tuple of str or None
        Public list of categories.
    centered : bool
        Subtract 1 / (number of levels) from every one-hot feature.
    length : int or None
        Elements of an array column.
    rows : int or None
        The array is an image of so many rows, row by row; it is reduced.
    blur, stride : int
        Of an image: take the mean of blur x blur pixels (odd), at every
        stride-th pixel of every stride-th row.

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

    def __post_init__(self) -> None:
        where = f"column {shown(self.name)}"
        _name(self.name, "column")
        _choice(self.scale, f"{where}: scale", SCALES)
        _flag(self.log1p, f"{where}: log1p")
        _flag(self.centered, f"{where}: centered")
        for key in ("lower", "upper", "mean"):
            object.__setattr__(self, key, _bound(getattr(self, key), f"{where}: {key}"))
        object.__setattr__(self, "sd", _number(self.sd, f"{where}: sd"))
        object.__setattr__(self, "levels", _levels(self.levels, f"{where}: levels", 1))
        _bounds(self.lower, self.upper, where)
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
        if self.length is not None:
            _whole(self.length, f"{where}: length", MAX_FEATURES)
        for key in ("blur", "stride"):
            _whole(getattr(self, key), f"{where}: {key}", MAX_FEATURES)
        if self.blur % 2 == 0:
            raise SpecError(f"{where}: blur must be odd, not {self.blur}")
        if self.rows is not None:
            _whole(self.rows, f"{where}: rows", MAX_FEATURES)
            if self.length is None or self.length % self.rows != 0:
                raise SpecError(
                    f"{where}: rows belongs to an image, an array whose length is a multiple of it"
                )

    @property
    def blur_cost(self) -> int:
        """Pixels that the blurred pixels of an image look at; 0 for what is no image."""
        if self.rows is None or self.length is None:
            return 0
        sides = (self.rows, self.length // self.rows)
        return math.prod(-(-side // self.stride) * min(self.blur, side) for side in sides)

    @classmethod
    def from_mapping(
        cls, name: str, given: object, defaults: Mapping[str, Any] = MappingProxyType({})
    ) -> Column:
        """The column of a `[columns.NAME]` table, and of `[defaults]` where that says nothing."""
        where = f"column {shown(name)}"
        keys = _table(given, where)
        cut = _inner_table(keys)
        if cut:
            whole = json.dumps(".".join((name, *cut)), ensure_ascii=False)
            raise SpecError(
                f"{where}: {cut[0]} is a table, and no key of a column is one; quote names with dots: "
                f"[columns.{whole}]"
            )
        _known(keys, [f.name for f in fields(cls) if f.name != "name"], where)
        return cls(name=name, **_with_defaults(keys, defaults))


@dataclass(frozen=True)
class Label:
    """What is predicted: exactly one of `positive`, `classes` and bounds.

    Attributes
    ----------
    column : str
        Column of the table.
    positive : str or None
        The value that is +1; any type, as text.
    negative : str or None
        The value that is -1; None means every other value.
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
        _name(self.column, "label: column")
        for key in ("positive", "negative"):
            value = getattr(self, key)
            if value is not None:
                object.__setattr__(self, key, _level(value, f"{where}: {key}"))
        for key in ("lower", "upper"):
            object.__setattr__(self, key, _bound(getattr(self, key), f"{where}: {key}"))
        object.__setattr__(self, "classes", _levels(self.classes, f"{where}: classes", 2))
        _bounds(self.lower, self.upper, where)
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
        keys = _table(given, "[label]")
        cut = _inner_table(keys)
        if cut:
            whole = json.dumps(".".join(cut), ensure_ascii=False)
            raise SpecError(
                f"[label]: {cut[0]} is a table, and no key of the label is one; quote names with dots: "
                f"column = {whole}"
            )
        _known(keys, [f.name for f in fields(cls)], "[label]")
        if not isinstance(keys.get("column"), str):
            raise SpecError("[label] needs column = NAME")
        return cls(**keys)


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
    where : str or None
        SQL condition on the rows; needs `definition_is_public`.
    definition_is_public : bool
        The owner's word that the filter, or the view behind `table`, is public.
    intercept : bool
        Add a constant feature; it is regularised like every other.
    norm : str
        "normalize" (every row to norm 1) or "clip" (only longer rows).
    projection : int or None
        Project the features to so many by a Gaussian random matrix.
    projection_seed : int
        Its seed, public and stored with the model.
    unit : str or None
        Column whose equal values are one unit of privacy, such as a patient;
        None: every row is one.
    max_rows_per_unit : int
        At most so many rows of a unit are used.
    dataset : str or None
        Name of the budget that runs are charged to; None: that which lists `table`, if any does.

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

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", tuple(self.columns))
        if not isinstance(self.table, str) or not self.table.strip():
            raise SpecError("table must be the name of a table")
        require_text(self.table, "table")
        if not self.columns:
            raise SpecError("columns: list at least one feature column, as [columns.NAME]")
        names = [column.name for column in self.columns]
        if len(set(names)) != len(names):
            raise SpecError("columns: every column may be listed once")
        if self.label.column in names:
            raise SpecError(f"column {shown(self.label.column)} is the label and cannot be a feature")
        if sum(column.blur_cost for column in self.columns) > MAX_BLUR:
            raise SpecError(
                "columns: with blur, the features of all images of a row are means of more than 2^26 pixels; "
                "choose a smaller blur or a larger stride"
            )
        _choice(self.norm, "norm", NORMS)
        if self.projection is not None:
            _whole(self.projection, "projection", MAX_FEATURES - 1)
        if self.projection_seed != 0:
            _whole(self.projection_seed, "projection_seed", 2**53)
        _whole(self.max_rows_per_unit, "max_rows_per_unit", MAX_ROWS_PER_UNIT)
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
        _flag(self.intercept, "intercept")
        _flag(self.definition_is_public, "definition_is_public")
        if self.where is not None and not self.definition_is_public:
            raise SpecError(
                "where: a filter is part of the guarantee only if it is public; if the owner agrees "
                "that which rows it keeps is no secret, add definition_is_public = true"
            )

    @classmethod
    def from_mapping(cls, given: Mapping[str, Any]) -> DataSpec:
        """The spec of a parsed TOML document; unknown keys are refused by name."""
        own = ("table", "dataset", "where", "definition_is_public", "unit", "max_rows_per_unit")
        allowed = (*own, "label", "defaults", "columns", "features")
        _known(given, allowed, "data spec")
        if not isinstance(given.get("table"), str):
            raise SpecError("data spec: give table = NAME")
        if "label" not in given:
            raise SpecError("data spec: give a [label] table")
        features = _table(given.get("features", {}), "[features]")
        _known(features, ("intercept", "norm", "projection", "projection_seed"), "[features]")
        defaults = _table(given.get("defaults", {}), "[defaults]")
        _known(defaults, _DEFAULT_KEYS, "[defaults]")
        columns = _table(given.get("columns", {}), "[columns]")
        return cls(
            label=Label.from_mapping(given["label"]),
            columns=tuple(Column.from_mapping(name, keys, defaults) for name, keys in columns.items()),
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
        """The spec of a TOML document; `where` it is from is said in errors."""
        document = _parse_toml(text, where)
        missing = list(_left_open(document, ""))
        if missing:
            raise SpecError(f"{where}: fill in {', '.join(missing)}")
        return cls.from_mapping(document)


@dataclass(frozen=True)
class PrivacySpec:
    """The guarantee asked for.

    Attributes
    ----------
    epsilon : float
        In [1e-12, 100].
    delta : float or None
        In [0, 1); 0 asks for pure differential privacy; None means 1 / n^2.
    relation : Relation
    """

    epsilon: float
    delta: float | None = None
    relation: Relation = Relation.REPLACE_ONE

    def __post_init__(self) -> None:
        _between(self.epsilon, "epsilon", 1e-12, MOST_EPSILON)
        object.__setattr__(self, "epsilon", float(self.epsilon))
        delta = _number(self.delta, "delta")
        if delta is not None and not 0.0 <= delta < 1.0:
            raise SpecError(f"delta must be in [0, 1), not {self.delta!r}")
        object.__setattr__(self, "delta", delta)
        if not isinstance(self.relation, Relation):
            names = [relation.value for relation in Relation]
            object.__setattr__(self, "relation", Relation(_choice(self.relation, "relation", names)))

    def delta_for(self, n_rows: int) -> float:
        """delta, or its default 1 / n^2 for a table of n rows."""
        return self.delta if self.delta is not None else 1.0 / max(n_rows, 2) ** 2


@dataclass(frozen=True)
class TrainSpec:
    """How to train. None means the documented default, a function of public numbers.

    Attributes
    ----------
    method : str
        "auto" (the default), which chooses one by public numbers, or "whitened-dp-gd", "dp-gd",
        "sufficient-statistics", "bolt-on", "dp-sgd", "bst14", "scs13", "noiseless" or "lbfgs". What a method
        does not use is refused.
    solver : str or None
        Of "bolt-on": "sgd", or "certified", the minimiser itself, which needs lambda > 0. None takes
        "certified" where lambda > 0 and no option of SGD is given, but in requests only if the data set
        allows it.
    loss : str or None
        "logistic", "huber_svm" (two classes), "softmax" (several), "squared" (a number).
    passes : int or None
        k >= 1; for noiseless and lbfgs the most passes to take.
    batch_size : int or None
        b >= 1.
    lambda_ : float or None
        L2 regulariser in [0, inf), on every coordinate, the intercept included.
    schedule : str or None
        "constant", "decreasing", "sqrt_decreasing", "strongly_convex" or "inverse_sqrt".
    step_size : float or None
        Of "constant" and "inverse_sqrt", in [1e-100, 1e100]; capped by 1 / (beta + lambda), but not in
        dp-gd, dp-sgd and scs13.
    momentum : float or None
        Of dp-gd, dp-sgd and scs13, in [0, 1): the share of the last step that is taken again.
    exponent : float
        c of n^c in the decreasing schedules, in [0, 1].
    radius : float or None
        Project the model on the ball of this radius, in [1e-100, 1e100].
    average : str or None
        Release the last iterate ("none"), the mean of all, or of the last `tail` share.
    tail : float or None
        In (0, 1].
    fresh_order : bool
        A new random order of the rows in every pass.
    clip : float or None
        Bound on the scalar derivative of the loss, in (0, 1e100]. For softmax: on the norm of a row's
        derivatives, in methods with noise on gradients only.
    unit_clip : float or None
        Of dp-gd with a unit of privacy: bound on the norm of the gradient of all rows of a unit, in
        (0, 1e100].
    huber_h : float
        Half width of the Huber SVM's bend, in [1e-270, 1e270].
    tolerance : float or None
        In [0, 1]. Of noiseless: stop when the loss falls by less than this share in a pass, by default
        1e-4. Of lbfgs: stop at a gradient of this norm, by default 1e-8.
    accountant : str or None
        Of bst14: "pld", by default, or "advanced", the composition of its publication.
    """

    method: str = "auto"
    solver: str | None = None
    loss: str | None = None
    passes: int | None = None
    batch_size: int | None = None
    lambda_: float | None = None
    schedule: str | None = None
    step_size: float | None = None
    momentum: float | None = None
    exponent: float = 0.5
    radius: float | None = None
    average: str | None = None
    tail: float | None = None
    fresh_order: bool = False
    clip: float | None = None
    unit_clip: float | None = None
    huber_h: float = DEFAULT_HUBER_H
    tolerance: float | None = None
    accountant: str | None = None

    def __post_init__(self) -> None:
        _choice(self.method, "method", METHODS)
        for key, choices in (
            ("solver", SOLVERS),
            ("loss", LOSSES),
            ("schedule", SCHEDULES),
            ("average", AVERAGES),
            ("accountant", ACCOUNTANTS),
        ):
            if getattr(self, key) is not None:
                _choice(getattr(self, key), key, choices)
        for key, most in (("passes", 10**6), ("batch_size", 2**31 - 1)):
            value = getattr(self, key)
            if value is not None:
                _whole(value, key, most)
        for key in ("step_size", "radius"):
            if getattr(self, key) is not None:
                _between(getattr(self, key), key, _TINY, _HUGE)
        for key in ("clip", "unit_clip"):
            if getattr(self, key) is not None:
                clip = _number(getattr(self, key), key)
                if clip is None or not 0.0 < clip <= _HUGE:
                    raise SpecError(f"{key} must be in (0, {_HUGE:g}], not {clip!r}")
        _between(self.huber_h, "huber_h", 1e-270, 1e270)
        if self.lambda_ is not None:
            _between(self.lambda_, "lambda", 0.0, 1e6)
        _between(self.exponent, "exponent", 0.0, 1.0)
        if self.tolerance is not None:
            _between(self.tolerance, "tolerance", 0.0, 1.0)
        if self.tail is not None:
            tail = _number(self.tail, "tail")
            if tail is None or not 0.0 < tail <= 1.0:
                raise SpecError(f"tail must be in (0, 1], not {self.tail!r}")
        if self.momentum is not None:
            momentum = _number(self.momentum, "momentum")
            if momentum is None or not 0.0 <= momentum < 1.0:
                raise SpecError(f"momentum must be in [0, 1), not {self.momentum!r}")
        _flag(self.fresh_order, "fresh_order")
        self._refuse_unused()

    def _refuse_unused(self) -> None:
        for option in fields(self):
            used_by = [method for method, used in METHOD_OPTIONS.items() if option.name in used]
            given = getattr(self, option.name) != option.default
            if option.name != "method" and given and self.method not in used_by:
                name = option.name.rstrip("_")
                way_out = "name the method" if self.method == "auto" else f"take method = {used_by[0]}"
                raise SpecError(
                    f"{name} belongs to method {' or '.join(used_by)}, not to {self.method}: "
                    f"leave {name} out, or {way_out}"
                )


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
    training: TrainSpec = TrainSpec()
    settings: tuple[Mapping[str, Any], ...] = field(init=False)
    candidates: tuple[TrainSpec, ...] = field(init=False)

    def __post_init__(self) -> None:
        if not isinstance(self.training, TrainSpec):
            raise SpecError(f"training must be a TrainSpec, not {self.training!r}")
        grids = [self.values] if isinstance(self.values, Mapping) else self.values
        if isinstance(grids, str) or not isinstance(grids, Sequence):
            raise SpecError(f"grid must be a table of lists, not {grids!r}")
        settings = [setting for grid in grids for setting in _combinations(grid)]
        candidates = [replace(self.training, **_train_options(setting, "grid")) for setting in settings]
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
        _known(given, ("grid", "training"), "grid file")
        if "grid" not in given:
            raise SpecError("grid file: give a [grid] table, such as lambda = [0.0, 1e-4, 1e-3]")
        fixed = _train_options(_table(given.get("training", {}), "[training]"), "[training]")
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
        return cls.from_mapping(_read_toml(path))


def _combinations(grid: object) -> list[dict[str, Any]]:
    """Every choice of one value from each list."""
    lists = _table(grid, "grid")
    for key, values in lists.items():
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise SpecError(f"grid: {key} must be a list of values, not {values!r}")
    return [dict(zip(lists, chosen, strict=True)) for chosen in itertools.product(*lists.values())]


def _train_options(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Options as TrainSpec names them; lambda is a word of Python."""
    names = {f.name.rstrip("_"): f.name for f in fields(TrainSpec)}
    _known(given, list(names), where)
    return {names[key]: value for key, value in given.items()}


def read_options(text: str, max_epsilon: Decimal) -> tuple[PrivacySpec, TrainSpec]:
    """Privacy and training of a request: a JSON object of somebody who is not trusted.

    Parameters
    ----------
    text : str
        {"privacy": {"epsilon": ..., ...}, "training": {"method": ..., ...}}, named as in a grid file.
    max_epsilon : Decimal
        Largest epsilon of a request.

    Returns
    -------
    PrivacySpec, TrainSpec

    Raises
    ------
    SpecError
        If it is anything else, or the method is not private.
    """
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):  # also for numbers of thousands of digits
        raise SpecError("options must be a JSON object of ordinary numbers and words") from None
    _known(_table(given, "options"), ("privacy", "training"), "options")
    privacy = _table(given.get("privacy", {}), "privacy")
    _known(privacy, [f.name for f in fields(PrivacySpec)], "privacy")
    if "epsilon" not in privacy:
        raise SpecError('options must have an epsilon, such as {"privacy": {"epsilon": 0.1}}')
    if type(privacy["epsilon"]) in (int, float):
        epsilon = Decimal(repr(privacy["epsilon"]))
        if max_epsilon < epsilon < Decimal("1e300"):  # else it is refused below, as no number for a computer
            raise SpecError(f"epsilon must be at most {max_epsilon:.12g} a request, not {epsilon:.12g}")
    training = TrainSpec(**_train_options(_table(given.get("training", {}), "training"), "training"))
    if training.method in NOT_PRIVATE_METHODS:
        raise SpecError(f"method {training.method} is not private, and no model of it can be requested")
    return PrivacySpec(**privacy), training
