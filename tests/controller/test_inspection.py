# SPDX-License-Identifier: PostgreSQL
"""Templates of data specs and advice on them, from what a catalog and a check would say."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path

import pytest

from pg_dpml.database.catalog import SourceTable
from pg_dpml.database.columns import ColumnType
from pg_dpml.errors import SpecError
from pg_dpml.spec.columns import Column, Label
from pg_dpml.spec.data import DataSpec
from pg_dpml.tables.advice import advice, check_record, check_text
from pg_dpml.tables.checks import TableCheck, UnitCheck, ValueCheck
from pg_dpml.tables.constraints import Bound, Facts, column_facts
from pg_dpml.tables.inspection import CatalogColumn, CatalogTable, looks_like_key, looks_like_person
from pg_dpml.tables.measuring import ValueCount
from pg_dpml.tables.stamp import OWNER_ONLY
from pg_dpml.tables.template import spec_template

# Constraints, as PostgreSQL writes them


def at_least(value: int | str, *, strict: bool = False) -> Facts:
    return Facts(lower=Bound(Decimal(value), strict))


def at_most(value: int | str, *, strict: bool = False) -> Facts:
    return Facts(upper=Bound(Decimal(value), strict))


def between(lower: int | str, upper: int | str, *, strict: bool = False) -> Facts:
    return at_least(lower, strict=strict).both(at_most(upper, strict=strict))


DATES = Facts(Bound("2000-01-01", strict=False), Bound("2020-12-31", strict=True))
UNDERSTOOD: list[tuple[str, dict[str, Facts]]] = [
    ("((x >= 0) AND (x <= 120))", {"x": between(0, 120)}),
    ("((x >= '-5'::integer) AND (x <= 5))", {"x": between(-5, 5)}),
    ("((x > 0) AND (x < '99999999999'::bigint))", {"x": between(0, 99999999999, strict=True)}),
    ("((x >= ('-1.5'::numeric)::double precision) AND (x <= (1)::real))", {"x": between("-1.5", 1)}),
    ("(((x)::numeric >= (0)::numeric) AND (100.50 >= (x)::numeric))", {"x": between(0, "100.50")}),
    ('(("My ""Col" >= 3) AND (7 >= "My ""Col"))', {'My "Col': between(3, 7)}),
    ("((VALUE >= 0) AND (VALUE IS NOT NULL))", {"": at_least(0)}),
    ("((VALUE)::integer < 18)", {"": at_most(18, strict=True)}),
    ("((x >= 0) AND (x > 0) AND (x >= '-9'::integer))", {"x": at_least(0, strict=True)}),
    ("((x < y) AND (x >= 0))", {"x": at_least(0)}),
    ("((x IS NULL) OR (x > 5))", {"x": at_least(5, strict=True)}),
    ("(((x % 2) = 0) AND (x >= 0) AND ((x * 2) <= 10))", {"x": at_least(0)}),
    ("((x >= '2000-01-01'::date) AND (x < '2020-12-31'::date))", {"x": DATES}),
    ("(x = ANY (ARRAY['a'::text, 'b''c'::text, 'd\\e'::text]))", {"x": Facts(levels=("a", "b'c", "d\\e"))}),
    (
        "((x)::text = ANY ((ARRAY['é'::character varying, 'ü'::character varying(9)])::text[]))",
        {"x": Facts(levels=("é", "ü"))},
    ),
    ("(x = ANY (ARRAY['a'::\"char\", 'a'::\"char\"]))", {"x": Facts(levels=("a",))}),
    ("(x = ANY (ARRAY['a'::public.\"My Enum\", 'b'::mood]))", {"x": Facts(levels=("a", "b"))}),
    ("(x = ANY (ARRAY[1, 2]))", {"x": Facts(levels=(Decimal(1), Decimal(2)))}),
    ("(x = 'z'::text)", {"x": Facts(levels=("z",))}),
    ("((x = 'a'::text) OR ('b'::text = x) OR (x IS NULL))", {"x": Facts(levels=("a", "b"))}),
    ("((array_length(x, 1) = 3) AND (cardinality(y) = 4))", {"x": Facts(length=3), "y": Facts(length=4)}),
    ("(vector_dims(x) = 3)", {"x": Facts(length=3)}),
]
NOT_UNDERSTOOD = [
    "",
    "x",
    "(",
    "(x",
    "(x >= 0",
    "(x >= 0))",
    "(length(x) < 5)",
    "(lower(x) = ANY (ARRAY['a'::text]))",
    "(x <> 0)",
    "(NOT (x < 0))",
    "((x >= 0) IS TRUE)",
    "(x >= y)",
    "(x > CURRENT_DATE)",
    "(x < 'Infinity'::double precision)",
    "(x < 'infinity'::date)",
    "(x = ANY ('{a,b}'::text[]))",
    "(x ~ '^[a-z]+$'::text)",
    "(((x >= 5) AND (x <= 1)) OR ((x >= 1) AND (x <= 5)))",
    "((x IS NULL) OR (y IS NULL) OR (x > 5))",
    "((x = 'a'::text) OR (y = 'b'::text))",
    "((x = 'a'::text) OR (x > 'b'::text))",
    "((y IS NULL) OR (x = 'a'::text) OR (x = 'b'::text))",
    "CASE WHEN (x = 'a'::text) THEN true ELSE false END",
    "((x)::character(1) COLLATE \"C\" = 'a'::bpchar)",
    "((x)::date >= '2000-01-01'::date)",
    "(array_length(x, 2) = 3)",
    "(x = 'open string)",
    "(x OPERATOR(public.>=) 0)",
]


@pytest.mark.parametrize(("expression", "facts"), UNDERSTOOD, ids=str)
def test_constraints(expression: str, facts: dict[str, Facts]) -> None:
    assert column_facts(expression) == facts


@pytest.mark.parametrize("expression", NOT_UNDERSTOOD)
def test_other_constraints_say_nothing(expression: str) -> None:
    assert column_facts(expression) == {}


# Names

PEOPLE = [
    "patient_id",
    "patientId",
    "PatientID",
    "customer",
    "user_no",
    "ssn",
    "USERNAME_HASH",
    "card_number",
]
KEYS = ["id", "order_id", "orderId", "uuid", "visit_key"]
NEITHER = ["age", "valid", "paid", "width", "idle", "customer_age", "user_count", "kidneys", "", "日本", "_"]


def test_names_of_people_and_keys() -> None:
    assert [name for name in PEOPLE if not looks_like_person(name, "number")] == ["USERNAME_HASH"]
    assert all(looks_like_key(name, "number") for name in KEYS)
    assert not any(looks_like_person(name, "number") for name in [*KEYS, *NEITHER])
    assert not any(looks_like_key(name, "text") for name in NEITHER)
    assert looks_like_key("last_name", "text")
    assert not looks_like_key("last_name", "number")
    assert not looks_like_person("patient_id", "boolean")


# Templates

NUMBER = ColumnType("double precision", "number")
WHOLE = ColumnType("integer", "number", whole=True)
TEXT = ColumnType("text", "text")


def catalog(*columns: CatalogColumn, kind: str = "r", row_security: bool = False) -> CatalogTable:
    types = {column.name: column.type for column in columns}
    source = SourceTable(1, "public", "people", kind, row_security, types)
    return CatalogTable("people", source, {column.name: column for column in columns})


def load(text: str, folder: Path, **filled: str) -> DataSpec:
    """The spec with the first open place of each key filled in."""
    for key, value in filled.items():
        text, places = re.subn(rf'^{key} = "FILL IN"', f"{key} = {value}", text, count=1, flags=re.MULTILINE)
        assert places == 1
    path = folder / "spec.toml"
    path.write_text(text, encoding="utf-8")
    return DataSpec.from_toml(path)


def ward() -> CatalogTable:
    """A column of every kind, with all that a catalog can say of it."""
    mood = ColumnType("mood", "enum", enum_labels=("low", "high"))
    return catalog(
        CatalogColumn("id", WHOLE, key="the primary key"),
        CatalogColumn("patient_id", WHOLE, key="a reference to patients"),
        CatalogColumn(
            "age", WHOLE, "in\nyears\x00", None, between(0, 120, strict=True), ("((age > 0) ...)",)
        ),
        CatalogColumn("half", WHOLE, facts=between("-0.5", "1.5")),
        CatalogColumn("height", NUMBER, facts=between("0.5", "2.5", strict=True)),
        CatalogColumn("far", NUMBER, facts=between("-1e300", "1e300")),
        CatalogColumn("price", ColumnType("numeric(5,2)", "number"), facts=between(0, 1)),
        CatalogColumn("married", ColumnType("boolean", "boolean")),
        CatalogColumn("mood", mood),
        CatalogColumn(
            'a "word".\t日本', TEXT, facts=Facts(levels=tuple(f'level "{i}" \x7f' for i in range(40)))
        ),
        CatalogColumn("grade", WHOLE, facts=Facts(levels=(Decimal(1), Decimal("2.50")))),
        CatalogColumn("since", ColumnType("date", "date"), facts=DATES),
        CatalogColumn(
            "seen",
            ColumnType("timestamp with time zone", "timestamptz"),
            facts=Facts(Bound("2000-01-01 10:00:00+00", False), Bound("2001-01-01 00:00:00.5+00", False)),
        ),
        CatalogColumn("v", ColumnType("vector(3)", "array", "number", 3), facts=Facts(length=3)),
        CatalogColumn("notes", ColumnType("json", "other")),
        CatalogColumn("email", TEXT, facts=Facts(levels=tuple("abc" * 50))),
    )


def test_a_template_is_complete_where_the_catalog_is(tmp_path: Path) -> None:
    text = spec_template(ward(), "mood")
    spec = load(text, tmp_path, lower="-1", upper="1")  # of the vector's elements
    assert spec.label == Label("mood", positive="high", negative="low")
    found = {column.name: column for column in spec.columns}
    levels = tuple(f'level "{i}" \x7f' for i in range(40))
    assert found == {
        "age": Column("age", 1, 119),
        "half": Column("half", 0, 1),
        "height": Column("height", 0.5, 2.5),
        "far": Column("far", -1e300, 1e300),
        "price": Column("price", 0, 1),
        "married": Column("married"),
        'a "word".\t日本': Column('a "word".\t日本', levels=levels),
        "grade": Column("grade", levels=("1", "2.5")),
        "since": Column("since", date(2000, 1, 1), date(2020, 12, 31)),
        "seen": Column(
            "seen",
            datetime(2000, 1, 1, 10, tzinfo=timezone.utc),
            datetime(2001, 1, 1, 0, 0, 0, 500000, tzinfo=timezone.utc),
        ),
        "v": Column("v", -1, 1),
    }
    assert '# unit = "patient_id"\n# max_rows_per_unit = 1' in text
    assert "within +-999.99" in text
    assert '"in years"' in text
    assert "no row was read" in text
    assert "never from the rows" in " ".join(text.replace("#", "").split())
    for left_out in ("id", "patient_id", "notes", "email"):
        assert f"# [columns.{left_out}]\n# Left out: " in text


@pytest.mark.parametrize(
    ("column", "named"),
    [
        (CatalogColumn("visit_id", WHOLE, "the visit", None, between(0, 9), ("((visit_id > 0))",)), 2),
        (CatalogColumn("name", TEXT, facts=Facts(levels=("a", "b"))), 1),
        (CatalogColumn("email", TEXT, facts=Facts(levels=tuple(f"a{i}@b.c" for i in range(40)))), 1),
        (CatalogColumn("period_id", ColumnType("date", "date"), facts=DATES), 2),
        (CatalogColumn("account_id", NUMBER, facts=at_least(0)), 2),
    ],
)
def test_a_section_left_out_by_its_name_says_which_lines_to_uncomment(
    column: CatalogColumn, named: int, tmp_path: Path
) -> None:
    """Those lines, and no other, lose their #, and the rest stays a comment."""
    text = spec_template(catalog(CatalogColumn("ill", ColumnType("boolean", "boolean")), column), "ill")
    head, section = text.split(f"# [columns.{column.name}]\n")
    prose = " ".join(section.replace("\n# ", " ").split())
    found = re.search(r"remove the # of the line above, and of these below: (.*?)\.", prose)
    assert found is not None
    keys = found[1].split(", ")
    assert len(keys) == named
    for key in keys:
        name, _, several = key.partition(" ")
        assert several in ("", "up to its ]")
        end = r"[^]]*\]$" if several else ".*$"
        section, places = re.subn(
            rf"^# {name} = {end}",
            lambda lines: re.sub("^# ", "", lines[0], flags=re.MULTILINE),
            section,
            flags=re.MULTILINE,
        )
        assert places == 1
    filled = {key: "1" for key in keys if f'{key} = "FILL IN"' in section}
    spec = load(f"{head}[columns.{column.name}]\n{section}", tmp_path, **filled)
    assert [one.name for one in spec.columns] == [column.name]


def test_a_template_names_what_is_open(tmp_path: Path) -> None:
    table = catalog(
        CatalogColumn("y", TEXT),
        CatalogColumn("n", NUMBER, facts=at_least(0)),
        CatalogColumn("c", TEXT),
        CatalogColumn("d", ColumnType("date", "date"), facts=at_least(0)),
        CatalogColumn("a", ColumnType("real[]", "array", "number")),
        CatalogColumn("e", WHOLE, facts=between(5, 5)),
    )
    text = spec_template(table)
    with pytest.raises(SpecError) as caught:
        load(text, tmp_path)
    listed = str(caught.value).partition("fill in ")[2].split(", ")
    assert listed[:2] == ["label.column", "label.positive"]
    assert {"columns.n.upper", "columns.c.levels", "columns.d.lower", "columns.a.length"} <= set(listed)
    assert "columns.n.lower" not in listed
    text = re.sub(r"\[columns\.y\].*\[columns\.n\]", "[columns.n]", text, flags=re.DOTALL)
    text = text.replace('"FILL IN"   # such', "2000-01-01   # such", 1)
    text = text.replace('"FILL IN"   # such', "2001-01-01   # such", 1)
    text = text.replace('levels = ["FILL IN"]', 'levels = ["a", "b"]')
    for _ in "nae":
        text = re.sub('^upper = "FILL IN"', "upper = 9", text, count=1, flags=re.MULTILINE)
    for _ in "ae":
        text = re.sub('^lower = "FILL IN"', "lower = 0", text, count=1, flags=re.MULTILINE)
    spec = load(text, tmp_path, column='"y"', positive='"yes"', length="3")
    assert [column.name for column in spec.columns] == ["n", "c", "d", "a", "e"]
    assert spec.label == Label("y", positive="yes")


@pytest.mark.parametrize(
    ("type_", "facts", "lines"),
    [
        (ColumnType("boolean", "boolean"), Facts(), ["positive = true"]),
        (TEXT, Facts(), ['positive = "FILL IN"', '# negative = "FILL IN"']),
        (TEXT, Facts(levels=("no", "yes")), ['positive = "yes"', 'negative = "no"']),
        (WHOLE, Facts(levels=(Decimal(1), Decimal(2), Decimal(3))), ["classes = [1, 2, 3]"]),
        (
            WHOLE,
            Facts(),
            [
                "# Two classes: for a label of 0 and 1, positive = 1 and negative = 0.",
                *('positive = "FILL IN"', 'negative = "FILL IN"'),
                "# Or several classes, in the order of the scores:",
                '# classes = ["FILL IN", "FILL IN"]',
                "# Or a number to predict:",
                *('# lower = "FILL IN"', '# upper = "FILL IN"'),
            ],
        ),
        (
            WHOLE,
            between(0, 1),
            [
                *("positive = 1", "negative = 0"),
                *("# Or a number to predict:", "# lower = 0", "# upper = 1"),
            ],
        ),
        (WHOLE, between(0, 3), ["classes = [0, 1, 2, 3]", "# Or a number to predict:", "# lower = 0"]),
        (
            WHOLE,
            between(0, 50),
            ["lower = 0", "upper = 50", "# Or, if its values are two classes, or several:"],
        ),
        (NUMBER, Facts(), ['lower = "FILL IN"', 'upper = "FILL IN"']),
        (ColumnType("date", "date"), DATES, ["lower = 2000-01-01", "upper = 2020-12-31"]),
    ],
    ids=str,
)
def test_labels_by_type(type_: ColumnType, facts: Facts, lines: list[str]) -> None:
    table = catalog(CatalogColumn("y", type_, facts=facts), CatalogColumn("x", NUMBER))
    text = spec_template(table, "y").split("\n")
    start = text.index('column = "y"')
    assert text[start + 1 : start + 1 + len(lines)] == lines
    assert "[columns.y]" not in text


def test_labels_that_cannot_be() -> None:
    table = catalog(CatalogColumn("y", ColumnType("json", "other")))
    with pytest.raises(SpecError, match="label y: type json cannot be predicted"):
        spec_template(table, "y")
    with pytest.raises(SpecError, match="column z does not exist in people; it has y"):
        spec_template(table, "z")


def test_views_and_row_security() -> None:
    column = CatalogColumn("x", NUMBER)
    assert "# definition_is_public = true" in spec_template(catalog(column, kind="v"))
    assert "row-level security" in spec_template(catalog(column, row_security=True))
    assert "definition_is_public" not in spec_template(catalog(column))


def test_many_alike_columns_share_their_bounds(tmp_path: Path) -> None:
    """Those of the most frequent type, but for what constraints or the type say otherwise."""
    whole = [CatalogColumn(f"w{i}", WHOLE) for i in range(12)]
    few = [CatalogColumn(f"n{i}", NUMBER) for i in range(3)]
    own = [
        CatalogColumn("age", WHOLE, facts=between(0, 120)),
        CatalogColumn("mood", TEXT, facts=Facts(levels=("a", "b"))),
    ]
    key = CatalogColumn("patient_id", WHOLE)
    text = spec_template(catalog(CatalogColumn("y", WHOLE), *whole, *few, *own, key), "y")
    section = text.index("\n[defaults]")
    assert len(re.findall('^[a-z]+ = "FILL IN"', text[section:], re.MULTILINE)) == 2 + 2 * len(few)
    assert "the 12 columns of type integer below" in " ".join(text.replace("#", "").split())
    with pytest.raises(SpecError, match=r"defaults\.lower, defaults\.upper"):
        load(text, tmp_path)
    for bound in ("lower = -1", "upper = 1"):
        text = text.replace(f'\n{bound.split()[0]} = "FILL IN"', f"\n{bound}")
    text = text.replace('positive = "FILL IN"', "positive = 1", 1).replace(
        'negative = "FILL IN"', "negative = 0", 1
    )
    columns = {column.name: column for column in load(text, tmp_path).columns}
    assert all(columns[column.name] == Column(column.name, -1, 1) for column in (*whole, *few))
    assert columns["age"] == Column("age", 0, 120)
    assert columns["mood"] == Column("mood", levels=("a", "b"))
    assert "patient_id" not in columns
    assert "\n[defaults]" not in spec_template(catalog(CatalogColumn("y", WHOLE), *few, *own), "y")


# Advice

DATA = DataSpec(
    "people",
    Label("y", positive="yes", negative="no"),
    (Column("x", 0, 100), Column("c", levels=("a", "b"))),
)
GOOD_LABEL = ValueCheck("y", "text", levels=(ValueCount("yes", 40), ValueCount("no", 60)))
GOOD = (
    ValueCheck("x", "integer", lowest_tenth=10, highest_tenth=10),
    ValueCheck("c", "text", levels=(ValueCount("a", 50), ValueCount("b", 50))),
)


def checked(
    x: ValueCheck = GOOD[0],
    c: ValueCheck = GOOD[1],
    label: ValueCheck = GOOD_LABEL,
    units: tuple[UnitCheck, ...] = (),
    data: DataSpec = DATA,
) -> TableCheck:
    return TableCheck(data, "public.people", 100, (x, c), label, units)


def test_no_advice_where_the_spec_fits() -> None:
    assert advice(checked()) == {}
    text = check_text(checked())
    assert text.startswith(OWNER_ONLY)
    assert text.count("as the spec says") == 2
    assert "yes: 40; no: 60" in text
    assert check_record(checked())["stamp"] == OWNER_ONLY


@pytest.mark.parametrize(
    ("check", "said"),
    [
        (checked(ValueCheck("x", "integer", nulls=60)), "mostly NULL"),
        (checked(ValueCheck("x", "integer", constant=True)), "constant: leave it out"),
        (checked(ValueCheck("x", "integer", above=2)), "outside the bounds"),
        (checked(ValueCheck("x", "integer", far=1)), "far from the mean"),
        (checked(ValueCheck("x", "integer", lowest_tenth=95)), 'try log1p = true, scale = "zero_based"'),
        (checked(ValueCheck("x", "integer", highest_tenth=95)), "highest tenth"),
        (checked(ValueCheck("x", "integer", at_lower=60)), 'scale = "zero_based" makes them 0'),
        (checked(ValueCheck("x", "real[]", wrong_length=1)), "another length"),
        (checked(ValueCheck("x", "real[]", outside_elements=9)), "elements outside"),
        (checked(c=ValueCheck("c", "text", unknown=5, unknown_values=(ValueCount("z", 5),))), "no level"),
        (
            checked(label=ValueCheck("y", "text", nulls=1, unknown=2, levels=GOOD_LABEL.levels)),
            "3 rows without",
        ),
        (
            checked(label=ValueCheck("y", "text", levels=(ValueCount("yes", 9), ValueCount("no", 0)))),
            "of one class",
        ),
        (
            checked(label=ValueCheck("y", "text", levels=(ValueCount("yes", 999), ValueCount("no", 1)))),
            "one class is rare",
        ),
        (
            checked(units=(UnitCheck("patient_id", False, 50, 7, 20, 50),)),
            'Declare unit = "patient_id"',
        ),
        (checked(units=(UnitCheck("patient_id", True, 50, 7, 20, 50),)), "50 rows beyond max_rows_per_unit"),
    ],
)
def test_advice(check: TableCheck, said: str) -> None:
    assert said in " ".join(line for lines in advice(check).values() for line in lines)
    text = " ".join(check_text(check).split())
    assert said in text
    assert "->" in text


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (("0", "1"), "did you mean positive = 1 and negative = 0"),
        (("false", "true"), "did you mean positive = true and negative = false"),
        (("-1", "0", "1"), "3 whole values only: did you mean classes = [-1, 0, 1]"),
        (("0.5", "1", "1.5"), None),
        ((), None),
    ],
    ids=str,
)
def test_a_number_to_predict_of_few_values_may_be_a_class(values: tuple[str, ...], said: str | None) -> None:
    data = DataSpec("people", Label("y", lower=0, upper=1), DATA.columns)
    label = ValueCheck("y", "integer", few_values=tuple(ValueCount(value, 25) for value in values))
    lines = advice(checked(label=label, data=data)).get("y", [])
    assert (said is None) == (lines == [])
    assert said is None or said in lines[0]
    rows_alone = replace(label, few_values=tuple(ValueCount(value, 1) for value in values))
    assert advice(checked(label=rows_alone, data=data)) == {}


def test_every_other_value_is_a_class() -> None:
    data = DataSpec("people", Label("y", positive="yes"), DATA.columns)
    label = ValueCheck("y", "text", levels=(ValueCount("yes", 40),), unknown=60)
    assert advice(checked(label=label, data=data)) == {}
    assert "yes: 40; not yes: 60" in check_text(checked(label=label, data=data))
