# SPDX-License-Identifier: PostgreSQL
"""How names are read, and how messages show them."""

from __future__ import annotations

import sys

import pytest

from pg_dpml.errors import DpmlError, SpecError
from pg_dpml.names import did_you_mean, nearest, parse, reads_as, shown, toml_key, visible
from pg_dpml.spec.columns import Column
from pg_dpml.spec.privacy import PrivacySpec
from pg_dpml.training.spec import TrainSpec

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ODD = [
    "plain",
    "Upper",
    "two words",
    "Sepal.Length",
    ' quoted "twice" ',
    "back\\slash",
    "\ufeffSpecies",
    "no\u00a0break",
    "trailing ",
    "new\nline",
    "tab\there",
    "\x1b[31mred",
    "\u202eright to left",
    "zero\u200bwidth",
    "blank\u3164",
    "\x7f",
    "größe",
    "gro\u0308ße",
    "\U000e0041tag",
    "",
]


@pytest.mark.parametrize(
    ("written", "parts"),
    [
        ("fish", ("fish",)),
        ("Fish", ("fish",)),
        (" a . B ", ("a", "b")),
        ('"Fish"', ("Fish",)),
        ('"Sales Dept"."Out put"', ("Sales Dept", "Out put")),
        ('"a.b"."c ""d"""', ("a.b", 'c "d"')),
        ("ÄRZTE", ("Ärzte",)),
        ("a.b.c", ("a", "b", "c")),
        ("two words", None),
        ('""', None),
        ("a..b", None),
        ('"open', None),
        ('a"b"', None),
        ("", None),
        (".", None),
    ],
)
def test_names_are_read_as_in_sql(written: str, parts: tuple[str, ...] | None) -> None:
    assert parse(written) == parts


def test_an_exact_name_comes_before_a_folded_one() -> None:
    assert reads_as("Age", ["age", "Age"]) == "Age"
    assert reads_as("AGE", ["age", "Age"]) == "age"
    assert reads_as('"Age"', ["age", "Age"]) == "Age"
    assert reads_as('"AGE"', ["age", "Age"]) is None
    assert reads_as("t.age", ["age", "t.age"]) == "t.age"
    assert reads_as("t.age", ["age"]) is None


@pytest.mark.parametrize("name", ODD)
def test_every_character_of_a_name_is_seen(name: str) -> None:
    text = shown(name)
    assert text.isprintable()
    assert all(c not in text for c in "\u3164\u0308")
    assert text == text.strip()
    assert text.startswith('"') == (name not in ("plain", "Upper", "größe"))


@pytest.mark.parametrize("name", ODD)
def test_a_key_of_toml_is_the_name(name: str) -> None:
    assert toml_key(name).isprintable()
    assert tomllib.loads(f"{toml_key(name)} = 1") == {name: 1}


def test_the_nearest_name_is_offered() -> None:
    assert nearest("Species", ["id", "\ufeffSpecies", "Weight"]) == "\ufeffSpecies"
    assert nearest("weight", ["Weight ", "Height of it"]) == "Weight "
    assert nearest("PATIENT_ID", ["patient_id"]) == "patient_id"
    assert nearest("zzz", ["id", "age"]) is None
    assert did_you_mean("Species", ["\ufeffSpecies"]) == '; did you mean "\\ufeffSpecies"?'
    assert did_you_mean("zzz", []) == ""


def test_no_error_steers_a_terminal() -> None:
    assert str(DpmlError("a \x1b[2Jb\u202e\nnext line")) == "a \\u001b[2Jb\\u202e\nnext line"
    with pytest.raises(SpecError, match=r'^column "a\\u001bb": '):
        Column("a\x1bb", lower=2, upper=1)


@pytest.mark.parametrize(
    ("make", "offer"),
    [
        (lambda: TrainSpec(method="bolton"), "did you mean bolt-on?"),
        (lambda: TrainSpec(method="DP-SGD"), "did you mean dp-sgd?"),
        (lambda: PrivacySpec(1.0, relation="replaceone"), "mean replace_one?"),  # type: ignore[arg-type]
        (lambda: Column.from_mapping("a", {"lowr": 1}), "did you mean lower?"),
    ],
)
def test_the_nearest_option_is_offered(make: object, offer: str) -> None:
    assert callable(make)
    with pytest.raises(SpecError) as caught:
        make()
    assert offer in str(caught.value)


def test_visible_leaves_what_is_seen() -> None:
    for text in ("größe", "特徴", "naïve", "a b", "Ω ≤ 1", "😀"):
        assert visible(text) == text
