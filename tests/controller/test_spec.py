# SPDX-License-Identifier: PostgreSQL
"""Every check of user input refuses by name, and a spec file says the same as the API."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from pg_dpml.blocks.encoder import columns_read
from pg_dpml.blocks.features import FeatureNames
from pg_dpml.errors import SpecError
from pg_dpml.runs.grid import Grid
from pg_dpml.spec.columns import Column, Label
from pg_dpml.spec.data import DataSpec
from pg_dpml.spec.files import read_text
from pg_dpml.spec.privacy import PrivacySpec
from pg_dpml.spec.relation import Relation
from pg_dpml.training.spec import TrainSpec

BINARY = Label("income", positive=">50K")
AGE = Column("age", lower=17, upper=90)
TOWN = Column("town", levels=("Aix", "Bonn"))

SPEC = """
table = "people"
where = "age > 16"
definition_is_public = true

[label]
column = "income"
positive = ">50K"
negative = "<=50K"

[features]
intercept = false
norm = "clip"

[columns.age]
lower = 17
upper = 90

[columns.gain]
lower = 0
upper = 99999.5
log1p = true
scale = "zero_based"

[columns.work]
levels = ["Private", "Gov", 3, true, 1.5]
centered = false

[columns."Hours per week"]
scale = "standard"
mean = 40
sd = 12.5

[columns.pixels]
lower = 0
upper = 255
length = 784

[columns.married]
"""


def column(**given: object) -> Column:
    return Column.from_mapping("age", given)


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({"scale": "log"}, ["column age: scale", "center", "zero_based", "standard", "log"]),
        ({"scale": 3}, ["column age: scale"]),
        ({"log1p": "yes"}, ["column age: log1p", "true or false"]),
        ({"log1p": 1}, ["column age: log1p"]),
        ({"centered": 0}, ["column age: centered"]),
        ({"lower": "0", "upper": 1}, ["column age: lower", "number"]),
        ({"lower": True, "upper": 2}, ["column age: lower", "number"]),
        ({"lower": 0, "upper": math.inf}, ["column age: upper", "finite"]),
        ({"lower": math.nan, "upper": 1}, ["column age: lower", "finite"]),
        ({"lower": 0, "upper": 10**400}, ["column age: upper", "finite"]),
        ({"lower": 0}, ["column age", "both lower and upper"]),
        ({"upper": 0}, ["column age", "both lower and upper"]),
        ({"lower": 1, "upper": 1}, ["column age", "lower must be below upper"]),
        ({"lower": 2, "upper": 1}, ["column age", "lower must be below upper"]),
        ({"levels": ["a"], "lower": 0, "upper": 1}, ["column age", "levels", "bounds", "not both"]),
        ({"levels": "abc"}, ["column age: levels", "list"]),
        ({"levels": 3}, ["column age: levels", "list"]),
        ({"levels": []}, ["column age: levels", "at least 1"]),
        ({"levels": ["a", "b", "a"]}, ["column age: levels", "different"]),
        ({"levels": ["1", 1]}, ["column age: levels", "different"]),
        ({"levels": [["a"]]}, ["column age: levels", "text, a number"]),
        ({"levels": [None]}, ["column age: levels"]),
        ({"scale": "standard"}, ["column age", "mean and sd > 0"]),
        ({"scale": "standard", "mean": 1}, ["column age", "mean and sd > 0"]),
        ({"scale": "standard", "mean": 1, "sd": 0}, ["column age", "sd > 0"]),
        ({"scale": "standard", "mean": 1, "sd": -2}, ["column age", "sd > 0"]),
        ({"scale": "standard", "mean": 1, "sd": math.inf}, ["column age: sd", "finite"]),
        ({"lower": 0, "upper": 1, "mean": 3}, ["column age", "mean and sd", "standard"]),
        ({"lower": 0, "upper": 1, "sd": 3}, ["column age", "mean and sd", "standard"]),
        ({"log1p": True, "lower": -1, "upper": 1}, ["column age", "log1p", "lower >= 0", "-1"]),
        ({"log1p": True}, ["column age", "log1p", "bounds"]),
        ({"lower": 0, "upper": 1, "length": 0}, ["column age: length", "whole number"]),
        ({"lower": 0, "upper": 1, "length": 2.0}, ["column age: length", "whole number"]),
        ({"lower": 0, "upper": 1, "length": True}, ["column age: length", "whole number"]),
        ({"lower": 0, "upper": 1, "length": 2**20}, ["column age: length", "1048575"]),
        ({"first_index": 1}, ["column age", "first_index goes with indices"]),
        ({"indices": "places", "length": 9}, ["column age", "first_index = 1", "first_index = 0", "places"]),
        ({"indices": "places", "length": 9, "first_index": 2}, ["column age", "first_index = 1"]),
        ({"indices": "places", "length": 9, "first_index": True}, ["column age", "first_index = 1"]),
        ({"indices": "places", "length": 9, "first_index": 1.0}, ["column age", "first_index = 1"]),
        ({"indices": "places", "first_index": 1}, ["column age", "length = NUMBER OF FEATURES", "public"]),
        ({"indices": 7, "length": 9, "first_index": 1}, ["column age: indices", "name of a column"]),
        ({"indices": "age", "length": 9, "first_index": 1}, ["column age", "another column"]),
        (
            {"indices": "places", "length": 9, "first_index": 1, "levels": ["a"]},
            ["column age", "neither a category nor an image"],
        ),
        (
            {"indices": "places", "length": 9, "first_index": 1, "rows": 3},
            ["column age", "neither a category nor an image"],
        ),
        ({"knots": 8}, ["column age: knots", "public bounds lower and upper"]),
        ({"knots": 8, "scale": "standard", "mean": 0, "sd": 1}, ["column age: knots", "lower and upper"]),
        (
            {"lower": 0, "upper": 1, "knots": -1},
            ["column age: knots", "1 to 999", "list of places", "0 for no"],
        ),
        ({"lower": 0, "upper": 1, "knots": False}, ["column age: knots", "whole number"]),
        ({"lower": 0, "upper": 1, "knots": 1000}, ["column age: knots", "1 to 999"]),
        ({"lower": 0, "upper": 1, "knots": True}, ["column age: knots", "whole number"]),
        ({"lower": 0, "upper": 1, "knots": 8.0}, ["column age: knots", "whole number"]),
        ({"lower": 0, "upper": 1, "knots": "8"}, ["column age: knots", "whole number"]),
        ({"lower": 0, "upper": 1, "knots": []}, ["column age: knots", "2 to 1000 places", "not 0"]),
        ({"lower": 0, "upper": 1, "knots": [0.5]}, ["column age: knots", "2 to 1000 places", "not 1"]),
        ({"lower": 0, "upper": 1, "knots": [i / 2000 for i in range(1001)]}, ["2 to 1000 places"]),
        ({"lower": 0, "upper": 1, "knots": [0, "a"]}, ["column age: knots", "number"]),
        ({"lower": 0, "upper": 1, "knots": [0, None]}, ["column age: knots", "as lower and upper are"]),
        ({"lower": 0, "upper": 1, "knots": [0, math.inf]}, ["column age: knots", "finite"]),
        ({"lower": 0, "upper": 1, "knots": [0, date(2020, 1, 1)]}, ["as lower and upper are"]),
        ({"lower": 0, "upper": 1, "knots": [0, 0.5, 0.5]}, ["column age: knots", "0.5 is not above 0.5"]),
        ({"lower": 0, "upper": 1, "knots": [0, 2]}, ["column age: knots", "lower = 0", "upper = 1"]),
        ({"lower": 0, "upper": 1, "knots": [-1, 1]}, ["column age: knots", "lower = 0", "upper = 1"]),
        ({"levels": ["a"], "knots": 8}, ["column age", "knots belong to a number", "each level"]),
        ({"lower": 0, "upper": 1, "length": 3, "knots": 8}, ["column age", "not to an array", "view"]),
        ({"lowr": 0}, ["column age", "unknown key", "lowr", "lower"]),
        ({"name": "other"}, ["column age", "unknown key", "name"]),
    ],
)
def test_column_refusals(given: dict[str, object], names: list[str]) -> None:
    with pytest.raises(SpecError) as refusal:
        column(**given)
    for name in names:
        assert name in str(refusal.value)


def test_column_is_a_table_of_keys() -> None:
    with pytest.raises(SpecError, match="column age must be a table"):
        Column.from_mapping("age", 3)


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({}, ["label y", "positive", "classes", "lower and upper"]),
        ({"positive": "a", "classes": ["a", "b"]}, ["label y", "exactly one"]),
        ({"positive": "a", "lower": 0, "upper": 1}, ["label y", "exactly one"]),
        ({"classes": ["a", "b"], "lower": 0, "upper": 1}, ["label y", "exactly one"]),
        ({"classes": ["a"]}, ["label y: classes", "at least 2"]),
        ({"classes": ["a", "a"]}, ["label y: classes", "different"]),
        ({"classes": "ab"}, ["label y: classes", "list"]),
        ({"lower": 0}, ["label y", "both lower and upper"]),
        ({"lower": 1, "upper": 0}, ["label y", "lower must be below upper"]),
        ({"lower": 0, "upper": math.inf}, ["label y: upper", "finite"]),
        ({"positive": ["a"]}, ["label y: positive"]),
        ({"positive": "a", "negative": ["b"]}, ["label y: negative"]),
        ({"positive": "a", "negative": "a"}, ["label y", "negative"]),
        ({"positive": 1, "negative": "1"}, ["label y", "negative"]),
        ({"classes": ["a", "b"], "negative": "a"}, ["label y", "negative"]),
        ({"positive": "a", "postive": 1}, ["[label]", "unknown key", "postive"]),
        ({"column": 3, "positive": "a"}, ["[label]", "column = NAME"]),
    ],
)
def test_label_refusals(given: dict[str, object], names: list[str]) -> None:
    with pytest.raises(SpecError) as refusal:
        Label.from_mapping({"column": "y"} | given)
    for name in names:
        assert name in str(refusal.value)


def test_label_tasks_and_class_names() -> None:
    assert BINARY.task == "binary"
    assert BINARY.class_names == ("not >50K", ">50K")
    assert Label("y", positive=True, negative=False).class_names == ("false", "true")  # type: ignore[arg-type]
    several = Label("y", classes=(3, 1, 2))  # type: ignore[arg-type]
    assert (several.task, several.class_names) == ("multiclass", ("3", "1", "2"))
    number = Label("y", lower=0, upper=5)
    assert (number.task, number.class_names) == ("regression", None)


def data(**changes: Any) -> DataSpec:
    given: dict[str, Any] = {"table": "people", "label": BINARY, "columns": (AGE,)}
    return DataSpec(**(given | changes))


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"table": " "}, ["table"]),
        ({"table": 3}, ["table"]),
        ({"columns": ()}, ["columns", "[columns.NAME]"]),
        ({"columns": (AGE, AGE)}, ["columns", "once"]),
        ({"columns": (AGE, Column("income", levels=("a",)))}, ["column income", "label"]),
        ({"norm": "unit"}, ["norm", "normalize", "clip", "unit"]),
        ({"intercept": "yes"}, ["intercept", "true or false"]),
        ({"definition_is_public": 1}, ["definition_is_public", "true or false"]),
        ({"where": "age > 30"}, ["where", "definition_is_public = true"]),
        ({"where": 3, "definition_is_public": True}, ["where"]),
        ({"max_rows_per_unit": 2}, ["max_rows_per_unit", "unit = COLUMN"]),
        ({"unit": "id", "max_rows_per_unit": 0}, ["max_rows_per_unit", "whole number"]),
        ({"unit": "age"}, ["unit age", "feature"]),
        ({"unit": "income"}, ["unit income", "label"]),
        ({"unit": 3}, ["unit"]),
        ({"crosses": "age"}, ["crosses", "list of pairs"]),
        ({"crosses": 3}, ["crosses", "list of pairs"]),
        ({"crosses": ["age", "town"]}, ["crosses", "'age' is no pair"]),
        ({"crosses": [["age"]]}, ["crosses", "is no pair"]),
        ({"crosses": [["age", 3]]}, ["crosses", "name of a column, not 3"]),
        ({"crosses": [["age", "agee"]]}, ["crosses: agee is no column of the spec", "did you mean age"]),
        ({"crosses": [["age", "town"]]}, ["crosses: town is no column", "[columns.town]"]),
        ({"crosses": [["age", "age"]]}, ["crosses: age", "with itself"]),
        ({"columns": (AGE, TOWN), "crosses": [["age", "town"], ["town", "age"]]}, ["crosses", "only once"]),
    ],
)
def test_data_refusals(changes: dict[str, Any], names: list[str]) -> None:
    with pytest.raises(SpecError) as refusal:
        data(**changes)
    for name in names:
        assert name in str(refusal.value)


def write(folder: Path, text: str) -> Path:
    path = folder / "spec.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_blur_has_a_limit() -> None:
    """As in the server: 2^26 pixels, of all images together."""
    pixels = (2**10 - 1) * 2**10
    image = Column("a", lower=0.0, upper=1.0, length=pixels, rows=2**10 - 1, blur=7, stride=1)
    assert image.blur_cost == 49 * pixels
    DataSpec("t", Label("y", positive="1"), (image,))
    with pytest.raises(SpecError, match="blur"):
        DataSpec("t", Label("y", positive="1"), (image, dataclasses.replace(image, name="b")))
    whole = dataclasses.replace(image, blur=2**20 - 1, stride=2**20)
    assert whole.blur_cost == pixels


WORDS = Column("counts", indices="words", first_index=1, length=9)


def test_sparse_columns() -> None:
    assert WORDS.names == ("counts", "words")
    assert AGE.names == ("age",)
    data = DataSpec("t", BINARY, (WORDS, AGE))
    for change, message in (
        ({"columns": (WORDS, Column("words", length=3, lower=0, upper=1))}, "listed once"),
        ({"columns": (WORDS, dataclasses.replace(WORDS, name="others"))}, "listed once"),
        ({"label": Label("words", positive="a")}, "is the label"),
        ({"unit": "words"}, "who a row is about"),
        ({"projection": 3}, "projection takes no sparse columns"),
    ):
        with pytest.raises(SpecError, match=message):
            dataclasses.replace(data, **change)


def test_names_of_features_are_made_when_asked_for() -> None:
    sparse = {"name": "counts", "kind": "sparse", "indices": "words", "first_index": 0, "length": 2**20 - 7}
    columns = [
        {"name": "town", "kind": "category", "levels": ["Aix", "Bonn"]},
        sparse,
        {"name": "scan", "kind": "array", "length": 2},
        {"name": "e", "kind": "sparse", "length": 1},
    ]
    names = FeatureNames({"columns": columns, "intercept": True})
    assert len(names) == 2**20 - 1
    assert names[:4] == ["town=Aix", "town=Bonn", "counts[0]", "counts[1]"]
    assert names[-5:] == [f"counts[{2**20 - 8}]", "scan[1]", "scan[2]", "e[1]", "intercept"]
    assert names[-1] == "intercept"
    with pytest.raises(IndexError):
        names[len(names)]
    assert names == FeatureNames({"columns": columns, "intercept": True})
    assert names != FeatureNames({"columns": columns, "intercept": False})
    assert names != FeatureNames({"columns": [*columns[:1], sparse | {"first_index": 1}], "intercept": True})
    assert columns_read({"columns": columns}) == ["town", "counts", "words", "scan", "e"]
    projected = FeatureNames({"columns": columns, "intercept": True, "projection": {"features": 2}})
    assert list(projected) == ["projection 1", "projection 2", "intercept"]


def test_toml(tmp_path: Path) -> None:
    assert DataSpec.from_toml(write(tmp_path, SPEC)) == DataSpec(
        table="people",
        label=Label("income", positive=">50K", negative="<=50K"),
        columns=(
            Column("age", lower=17.0, upper=90.0),
            Column("gain", lower=0.0, upper=99999.5, log1p=True, scale="zero_based"),
            Column("work", levels=("Private", "Gov", "3", "true", "1.5"), centered=False),
            Column("Hours per week", scale="standard", mean=40.0, sd=12.5),
            Column("pixels", lower=0.0, upper=255.0, length=784),
            Column("married"),
        ),
        where="age > 16",
        definition_is_public=True,
        intercept=False,
        norm="clip",
    )


@pytest.mark.parametrize(
    ("old", "new", "names"),
    [
        ('table = "people"', "", ["table = NAME"]),
        ('table = "people"', "table = 3", ["table = NAME"]),
        ('table = "people"', 'tabel = "people"', ["tabel", "table"]),
        ("[label]", "[lable]", ["lable", "label"]),
        ('column = "income"', "", ["[label]", "column = NAME"]),
        ("intercept = false", "intercpt = false", ["[features]", "intercpt", "intercept"]),
        ("[features]", "[[features]]", ["[features]", "table of keys"]),
        ("[columns.married]", "[columns]\nmarried = 3", ["column married", "table of keys"]),
        ("lower = 17", "lower = inf", ["column age: lower", "finite"]),
        ("lower = 17", "lowest = 17", ["column age", "lowest", "lower"]),
        ("definition_is_public = true", "definition_is_public = 'yes'", ["definition_is_public"]),
        ("definition_is_public = true", "", ["where", "definition_is_public = true"]),
        ('where = "age > 16"', "where = 3", ["where"]),
    ],
)
def test_toml_refusals(tmp_path: Path, old: str, new: str, names: list[str]) -> None:
    assert old in SPEC
    with pytest.raises(SpecError) as refusal:
        DataSpec.from_toml(write(tmp_path, SPEC.replace(old, new)))
    for name in names:
        assert name in str(refusal.value)


def test_toml_without_label(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"\[label\]"):
        DataSpec.from_toml(write(tmp_path, 'table = "t"\n[columns.a]\n'))


def test_toml_without_columns(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"columns.*\[columns.NAME\]"):
        DataSpec.from_toml(write(tmp_path, 'table = "t"\n[label]\ncolumn = "y"\npositive = 1\n'))


def test_unreadable_files(tmp_path: Path) -> None:
    missing = tmp_path / "none.toml"
    with pytest.raises(SpecError, match=r"none\.toml: No such file"):
        DataSpec.from_toml(missing)
    with pytest.raises(SpecError, match="not a TOML file"):
        DataSpec.from_toml(write(tmp_path, "table = people"))
    latin = tmp_path / "latin.toml"
    latin.write_bytes(b'table = "M\xfcnchen"')
    with pytest.raises(SpecError, match="not text of UTF-8"):
        DataSpec.from_toml(latin)
    with pytest.raises(SpecError):
        DataSpec.from_toml(tmp_path)


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({"epsilon": 0.0}, ["epsilon", "[1e-12, 100]"]),
        ({"epsilon": -1.0}, ["epsilon", "[1e-12, 100]", "-1"]),
        ({"epsilon": None}, ["epsilon", "[1e-12, 100]"]),
        ({"epsilon": math.inf}, ["epsilon", "finite"]),
        ({"epsilon": math.nan}, ["epsilon", "finite"]),
        ({"epsilon": "1"}, ["epsilon", "number"]),
        ({"epsilon": True}, ["epsilon", "number"]),
        ({"epsilon": 10**400}, ["epsilon", "finite"]),
        ({"epsilon": 1, "delta": 1.0}, ["delta", "[0, 1)"]),
        ({"epsilon": 1, "delta": -1e-9}, ["delta", "[0, 1)"]),
        ({"epsilon": 1, "delta": math.nan}, ["delta", "finite"]),
        ({"epsilon": 1, "relation": "swap"}, ["relation", "replace_one", "add_remove", "swap"]),
        ({"epsilon": 1, "relation": None}, ["relation"]),
    ],
)
def test_privacy_refusals(given: dict[str, Any], names: list[str]) -> None:
    with pytest.raises(SpecError) as refusal:
        PrivacySpec(**given)
    for name in names:
        assert name in str(refusal.value)


def test_privacy_defaults() -> None:
    spec = PrivacySpec(1)
    assert spec.relation is Relation.REPLACE_ONE
    assert spec.delta_for(1000) == 1e-6
    assert PrivacySpec(1, relation="add_remove").relation is Relation.ADD_REMOVE  # type: ignore[arg-type]
    assert PrivacySpec(1, delta=0).delta_for(1000) == 0.0
    for n_rows in (0, 1):  # never a delta of 1 or more
        assert 0.0 < spec.delta_for(n_rows) < 1.0


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({"method": "bolton"}, ["method", "bolt-on", "noiseless"]),
        ({"loss": "perceptron"}, ["loss", "logistic", "softmax"]),
        ({"schedule": "fast"}, ["schedule", "constant", "inverse_sqrt"]),
        ({"average": "some"}, ["average", "none", "all", "tail"]),
        ({"passes": 0}, ["passes", "whole number"]),
        ({"passes": 1.0}, ["passes", "whole number"]),
        ({"passes": 10**6 + 1}, ["passes", "1000000"]),
        ({"batch_size": 0}, ["batch_size", "whole number"]),
        ({"batch_size": 2**31}, ["batch_size"]),
        ({"batch_size": True}, ["batch_size"]),
        ({"step_size": 0.0}, ["step_size", "[1e-100, 1e+100]"]),
        ({"step_size": -1}, ["step_size", "[1e-100, 1e+100]"]),
        ({"step_size": math.inf}, ["step_size", "finite"]),
        ({"radius": 0}, ["radius", "[1e-100, 1e+100]"]),
        ({"radius": math.inf}, ["radius", "finite"]),
        ({"clip": 0}, ["clip", "(0, 1e+100]"]),
        ({"clip": 1e101}, ["clip", "(0, 1e+100]"]),
        ({"clip": "1"}, ["clip", "number"]),
        ({"huber_h": 0}, ["huber_h", "[1e-270, 1e+270]"]),
        ({"huber_h": None}, ["huber_h"]),
        ({"lambda_": -1e-9}, ["lambda must", "[0, 1e+06]"]),
        ({"lambda_": math.nan}, ["lambda must", "finite"]),
        ({"lambda_": 1e7}, ["lambda must", "1e+06"]),
        ({"exponent": 1.5}, ["exponent", "[0, 1]"]),
        ({"exponent": -0.1}, ["exponent", "[0, 1]"]),
        ({"exponent": None}, ["exponent"]),
        ({"tolerance": -1.0}, ["tolerance", "[0, 1]"]),
        ({"tolerance": 2.0}, ["tolerance", "[0, 1]"]),
        ({"tolerance": "1"}, ["tolerance", "number"]),
        ({"solver": "newton"}, ["solver", "sgd", "certified"]),
        ({"tail": 0.0}, ["tail", "(0, 1]"]),
        ({"tail": 1.1}, ["tail", "(0, 1]"]),
        ({"momentum": 1.0}, ["momentum", "[0, 1)"]),
        ({"momentum": -0.1}, ["momentum", "[0, 1)"]),
        ({"unit_clip": 0.0}, ["unit_clip", "(0, 1e+100]"]),
        ({"unit_clip": 2e100}, ["unit_clip", "(0, 1e+100]"]),
        ({"fresh_order": "no"}, ["fresh_order", "true or false"]),
    ],
)
def test_train_refusals(given: dict[str, Any], names: list[str]) -> None:
    with pytest.raises(SpecError) as refusal:
        TrainSpec(**given)
    for name in names:
        assert name in str(refusal.value)
    assert refusal.value.exit_code == 2


def test_specs_are_frozen() -> None:
    for spec in (AGE, BINARY, data(), PrivacySpec(1), TrainSpec()):
        with pytest.raises(dataclasses.FrozenInstanceError):
            spec.extra = 1  # type: ignore[union-attr]


# Files


SMALL = 'table = "fish"\n[label]\ncolumn = "y"\npositive = "Zürich"\n[columns.x]\nlower = 0\nupper = 1\n'


@pytest.mark.parametrize("read", [DataSpec.from_toml, Grid.from_toml])
def test_byte_order_marks_are_skipped(read: Callable[[Path], object], tmp_path: Path) -> None:
    text = SMALL if read == DataSpec.from_toml else "[grid]\npasses = [1, 2]\n[training]\nmethod = 'dp-gd'\n"
    path = tmp_path / "file.toml"
    path.write_bytes(text.encode())
    plain = read(path)
    path.write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    assert read(path) == plain


@pytest.mark.parametrize("read", [DataSpec.from_toml, Grid.from_toml, read_text])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf16_names_the_fix(read: Callable[[Path], object], encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "file.toml"
    path.write_bytes(SMALL.encode(encoding))
    with pytest.raises(SpecError, match=r"file\.toml is not text of UTF-8 but of UTF-16.*save it as UTF-8"):
        read(path)


@pytest.mark.parametrize("read", [DataSpec.from_toml, Grid.from_toml, read_text])
@pytest.mark.parametrize("encoding", ["cp1252", "cp850", "latin-1"])
def test_code_pages_name_the_line_and_the_fix(
    read: Callable[[Path], object], encoding: str, tmp_path: Path
) -> None:
    path = tmp_path / "file.toml"
    path.write_bytes(SMALL.encode(encoding))
    with pytest.raises(
        SpecError, match=r"file\.toml is not text of UTF-8 \(line 4, byte \d+\): save it as UTF-8"
    ):
        read(path)


@pytest.mark.parametrize(
    ("columns", "name"),
    [
        ("[columns.Sepal.Length]\nlower = 0\nupper = 1", '[columns."Sepal.Length"]'),
        ("[columns.sepal.length]\nlower = 0\nupper = 1", '[columns."sepal.length"]'),
        ("[columns]\nsepal.length.in.cm = {lower = 0, upper = 1}", '[columns."sepal.length.in.cm"]'),
        ("[columns]\na.lower.lower = 0\na.lower.upper = 1", '[columns."a.lower"]'),
        ("[columns.a]\nlower = 0\nupper = 1\n[columns.a.b]\nlower = 0\nupper = 1", '[columns."a.b"]'),
        ('[columns."my x"."é"]\nlower = 0', '[columns."my x.é"]'),
        ("[columns.x]\nlower = 0\nupper = 1\n[label.Sepal.Length]\npositive = 1", 'column = "Sepal.Length"'),
    ],
)
def test_names_with_dots_need_quotes(columns: str, name: str) -> None:
    with pytest.raises(SpecError) as refusal:
        DataSpec.from_text(
            f'table = "iris"\nlabel.column = "y"\nlabel.positive = 1\n{columns}\n', "iris.toml"
        )
    assert f"quote names with dots: {name}" in str(refusal.value)


DEFAULTS = """
table = "people"
label = {column = "income", positive = 1}
[defaults]
lower = -1
upper = 1
scale = "zero_based"
[columns]
a = {}
b = {upper = 5}
c = {levels = ["x", "y"]}
d = {scale = "center", lower = 0, upper = 2}
e = {centered = false, levels = ["x"]}
"""


def test_columns_take_from_defaults_what_they_do_not_say() -> None:
    assert DataSpec.from_text(DEFAULTS, "spec").columns == (
        Column("a", -1, 1, "zero_based"),
        Column("b", -1, 5, "zero_based"),
        Column("c", levels=("x", "y")),
        Column("d", 0, 2),
        Column("e", levels=("x",), centered=False),
    )


def test_default_levels_are_for_columns_without_bounds() -> None:
    text = DEFAULTS.replace('lower = -1\nupper = 1\nscale = "zero_based"', 'levels = ["no", "yes"]', 1)
    text = text.replace("b = {upper = 5}", "b = {lower = 0, upper = 5}")
    columns = DataSpec.from_text(text, "spec").columns
    assert columns[:3] == (
        Column("a", levels=("no", "yes")),
        Column("b", 0, 5),
        Column("c", levels=("x", "y")),
    )


def test_default_knots_are_those_of_the_spec() -> None:
    """Which columns take them is known from the catalog alone; a column may say 0."""
    text = DEFAULTS.replace("[defaults]\n", "[defaults]\nknots = 8\n").replace("a = {}", "a = {knots = 0}")
    data = DataSpec.from_text(text, "spec")
    assert data.knots == 8
    assert [column.knots for column in data.columns] == [0, None, None, None, None]
    assert data == DataSpec(
        "people",
        Label("income", positive="1"),
        (
            Column("a", -1, 1, "zero_based", knots=0),
            Column("b", -1, 5, "zero_based"),
            Column("c", levels=("x", "y")),
            Column("d", 0, 2),
            Column("e", levels=("x",), centered=False),
        ),
        knots=8,
    )
    assert DataSpec.from_text(DEFAULTS, "spec").knots is None


@pytest.mark.parametrize("knots", ["-1", "1000", "true", "8.0", '"8"', "[0, 1]"])
def test_default_knots_are_a_number_of_pieces(knots: str) -> None:
    text = DEFAULTS.replace("[defaults]\n", f"[defaults]\nknots = {knots}\n")
    with pytest.raises(
        SpecError, match=r"\[defaults\]: knots must be a whole number of pieces from 1 to 999, or 0"
    ):
        DataSpec.from_text(text, "spec")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("upper = 1\n", "upper = 1\nlength = 3\n"), r"\[defaults\]: unknown key 'length'; known are lower"),
        (("upper = 1\n", 'upper = 1\nlevels = ["x"]\n'), "column a: give levels .* or bounds"),
        (("upper = 1\n", "upper = -2\n"), "column a: lower must be below upper"),
        (("[defaults]\nlower = -1\n", "[defaults]\n"), "column a: give both lower and upper"),
        (('[defaults]\nlower = -1\nupper = 1\nscale = "zero_based"', "defaults = 3"), "must be a table"),
    ],
)
def test_bad_defaults_are_refused_by_name(change: tuple[str, str], words: str) -> None:
    text = DEFAULTS.replace(*change)
    assert text != DEFAULTS
    if "defaults = 3" in text:
        text = "defaults = 3\n" + text.replace("defaults = 3\n", "")
    with pytest.raises(SpecError, match=words):
        DataSpec.from_text(text, "spec")


def test_what_is_not_filled_in_is_named_as_toml_writes_it() -> None:
    text = 'label = {column = "y", positive = "FILL IN"}\ncolumns."Blood Pressure".lower = "FILL IN"\n'
    words = r'^spec: fill in label\.positive, columns\."Blood Pressure"\.lower$'
    with pytest.raises(SpecError, match=words):
        DataSpec.from_text(text, "spec")
