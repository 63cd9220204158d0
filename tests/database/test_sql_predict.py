# SPDX-License-Identifier: PostgreSQL
"""The predict family, on models stored by hand."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import psycopg
import pytest
from psycopg import errors

from helpers import oracles
from helpers.sqltools import FloatArray, scalar

pytestmark = pytest.mark.dealt

COLUMNS = [
    {"name": "age", "kind": "numeric", "lower": 0, "upper": 100},
    {"name": "work", "kind": "category", "levels": ["Private", "Gov"], "centered": True},
]
LABELS: dict[str, dict[str, Any]] = {
    "binary": {"name": "income", "kind": "binary", "positive": ">50K", "negative": "<=50K"},
    "rest": {"name": "income", "kind": "binary", "positive": ">50K", "negative": None},
    "multiclass": {"name": "income", "kind": "classes", "classes": ["a", "b", "c"]},
    "regression": {"name": "income", "kind": "number", "lower": 10, "upper": 20},
}
CLASSES = {
    "binary": ["<=50K", ">50K"],
    "rest": ["not >50K", ">50K"],
    "multiclass": ["a", "b", "c"],
    "regression": None,
}
LOSSES = {"binary": "logistic", "rest": "logistic", "multiclass": "softmax", "regression": "squared"}
D = 4

PEOPLE: list[tuple[float | None, str | None]] = [
    (30, "Private"),
    (90, "Gov"),
    (-5, None),
    (None, "elsewhere"),
    (61, "Gov"),
    (10, "Private"),
]


def store(connection: psycopg.Connection, kind: str, **change: Any) -> FloatArray:
    """A model of that name; its weights of shape (K, d)."""
    k = 3 if kind == "multiclass" else 1
    weights = np.array([[1.0, -0.5, 0.7, 0.05], [-0.3, 0.9, 0.1, 0.2], [0.2, 0.4, -0.8, 0.1]])[:k]
    model = {
        "name": kind,
        "task": "binary" if kind == "rest" else kind,
        "loss": LOSSES[kind],
        "classes": CLASSES[kind],
        "weights": weights.ravel().tolist(),
        "n_features": D,
        "encoder": json.dumps({"columns": COLUMNS, "label": LABELS[kind]}),
        "whitening": None,
        **change,
    }
    connection.execute("DELETE FROM dpml.models WHERE name = %s", (model["name"],))
    connection.execute(
        "INSERT INTO dpml.models (name, method, private, task, loss, classes, weights, n_features, encoder,"
        " whitening, privacy, training) VALUES (%(name)s, 'by hand', false, %(task)s, %(loss)s,"
        " %(classes)s::text[], %(weights)s::float8[], %(n_features)s, %(encoder)s::jsonb,"
        " %(whitening)s::float8[], '{}', '{}')",
        model,
    )
    return weights


def features(age: float | None, work: str | None) -> FloatArray:
    spec = {"columns": COLUMNS}
    row = oracles.bound_norm(oracles.encode(spec, [age, work]), "normalize")
    return row.astype(np.float32).astype(np.float64)


@pytest.fixture
def people(connection: psycopg.Connection) -> psycopg.Connection:
    connection.execute("CREATE TEMP TABLE people (id int, work varchar(20), age numeric, income text)")
    for i, (age, work) in enumerate(PEOPLE):
        connection.execute("INSERT INTO people VALUES (%s, %s, %s, '>50K')", (i, work, age))
    return connection


def ask(connection: psycopg.Connection, function: str, model: str, record: str = "people") -> list[Any]:
    query = f"SELECT dpml.{function}(%s, {record}) FROM people ORDER BY id"
    return [row[0] for row in connection.execute(query.encode(), (model,))]


P = np.array([[2.0, 0.3, -0.1, 0.4], [0.3, 5.0, 0.2, 0.0], [-0.1, 0.2, 0.5, -0.3], [0.4, 0.0, -0.3, 1.0]])
WHITENING = P.ravel().tolist()


def whitened(person: tuple[float | None, str | None]) -> FloatArray:
    x = features(*person)
    return x / np.linalg.norm(P @ x)


def sigmoid(u: float) -> float:
    return 1 / (1 + math.exp(-u))


@pytest.mark.parametrize("kind", ["binary", "rest"])
def test_binary(people: psycopg.Connection, kind: str) -> None:
    w = store(people, kind)[0]
    scores = [float(w @ features(*person)) for person in PEOPLE]
    assert len({score > 0 for score in scores}) == 2
    np.testing.assert_allclose(ask(people, "predict_value", kind), scores, rtol=1e-6)
    assert ask(people, "predict", kind) == [CLASSES[kind][score > 0] for score in scores]  # type: ignore[index]
    np.testing.assert_allclose(
        ask(people, "predict_proba", kind), [[sigmoid(-u), sigmoid(u)] for u in scores], rtol=1e-6
    )


def test_binary_tie_is_negative(people: psycopg.Connection) -> None:
    store(people, "binary", weights=[0.0] * D)
    assert set(ask(people, "predict", "binary")) == {"<=50K"}
    assert ask(people, "predict_proba", "binary") == [[0.5, 0.5]] * len(PEOPLE)


def test_extreme_scores(people: psycopg.Connection) -> None:
    store(people, "binary", weights=[0.0, 0.0, 0.0, 1e6])
    assert ask(people, "predict_proba", "binary") == [[0.0, 1.0]] * len(PEOPLE)
    store(people, "multiclass", weights=[0.0, 0.0, 0.0, 1e6, 0.0, 0.0, 0.0, -1e6, 0.0, 0.0, 0.0, 1e6])
    assert ask(people, "predict_proba", "multiclass") == [[0.5, 0.0, 0.5]] * len(PEOPLE)
    assert set(ask(people, "predict", "multiclass")) == {"a"}


def test_multiclass(people: psycopg.Connection) -> None:
    w = store(people, "multiclass")
    scores = [w @ features(*person) for person in PEOPLE]
    assert ask(people, "predict", "multiclass") == ["abc"[int(np.argmax(u))] for u in scores]
    np.testing.assert_allclose(
        ask(people, "predict_value", "multiclass"), [u.max() for u in scores], rtol=1e-6
    )
    np.testing.assert_allclose(
        ask(people, "predict_proba", "multiclass"), [np.exp(u) / np.exp(u).sum() for u in scores], rtol=1e-6
    )


def test_one_vs_all_probabilities(people: psycopg.Connection) -> None:
    """Each class's own probability, scaled to a sum of 1."""
    w = store(people, "multiclass", loss="logistic")
    own = [[sigmoid(float(u)) for u in w @ features(*person)] for person in PEOPLE]
    wanted = [np.array(p) / sum(p) for p in own]
    np.testing.assert_allclose(ask(people, "predict_proba", "multiclass"), wanted, rtol=1e-6)


def test_regression(people: psycopg.Connection) -> None:
    """In label units, inside the label's bounds."""
    w = store(people, "regression")[0]
    scores = np.clip([float(w @ features(*person)) for person in PEOPLE], -1, 1)
    values = ask(people, "predict_value", "regression")
    np.testing.assert_allclose(values, 15 + 5 * scores, rtol=1e-6)
    assert [float(text) for text in ask(people, "predict", "regression")] == values
    store(people, "regression", weights=[0.0, 0.0, 0.0, -1e300])
    assert ask(people, "predict", "regression") == ["10"] * len(PEOPLE)


def test_the_label_of_a_record_does_not_matter(people: psycopg.Connection) -> None:
    """Here it is text where the model's label is a number."""
    store(people, "regression")
    assert ask(people, "predict", "regression") == ask(people, "predict", "regression", "ROW(age, work)")
    with pytest.raises(
        errors.DatatypeMismatch, match='column "income" of type text cannot be read as a number'
    ):
        ask(people, "label", "regression")


def test_a_null_without_a_type_is_told_its_cast(people: psycopg.Connection) -> None:
    """It is of type unknown in a record, and of type text from a subquery; one cast cures both."""
    store(people, "regression")
    alone = "SELECT dpml.predict('regression', ROW({}, 'Private'::text))"
    joined = "SELECT dpml.predict('regression', t) FROM (SELECT {} AS age, 'Private'::text AS work) t"
    for query, type_ in ((alone, "unknown"), (joined, "text")):
        with pytest.raises(errors.DatatypeMismatch, match=f"of type {type_} cannot be read") as caught:
            people.execute(query.format("NULL"))
        assert "such as NULL::integer" in (caught.value.diag.message_hint or "")
        assert people.execute(query.format("NULL::integer")).fetchone() is not None
    with pytest.raises(errors.DatatypeMismatch) as caught:
        people.execute(alone.format("'12:00'::time"))
    assert "NULL" not in (caught.value.diag.message_hint or "")


@pytest.mark.parametrize(
    ("kind", "given", "wanted"),
    [
        (
            "binary",
            ["'>50K'", "'<=50K'", "'?'", "NULL", "''", "'>50k'"],
            [">50K", "<=50K", None, None, None, None],
        ),
        (
            "rest",
            ["'>50K'", "'<=50K'", "'?'", "NULL", "''", "'>50k'"],
            [">50K", *["not >50K"] * 2, None, *["not >50K"] * 2],
        ),
        ("multiclass", ["'a'", "'b'", "'c'", "NULL", "'d'", "'A'"], ["a", "b", "c", None, None, None]),
        (
            "regression",
            ["1", "12.5", "1e9", "NULL", "'NaN'", "'-Infinity'"],
            ["10", "12.5", "20", None, None, "10"],
        ),
    ],
)
def test_label(people: psycopg.Connection, kind: str, given: list[str], wanted: list[str | None]) -> None:
    store(people, kind)
    if kind == "regression":
        people.execute("ALTER TABLE people ALTER income TYPE float8 USING 0")
    for i, value in enumerate(given):
        people.execute(f"UPDATE people SET income = {value} WHERE id = {i}".encode())
    assert ask(people, "label", kind) == wanted
    with pytest.raises(errors.UndefinedColumn, match='no label column "income"'):
        ask(people, "label", kind, "ROW(age, work)")


def test_records(people: psycopg.Connection) -> None:
    """Whole rows, sub-selects without the label, and ROW() by position; NULL gives NULL."""
    store(people, "binary")
    wanted = ask(people, "predict_value", "binary")
    assert ask(people, "predict_value", "binary", "ROW(age, work)") == wanted
    assert ask(people, "predict_value", "binary", "ROW(age, work, 17)") == wanted
    part = people.execute(
        "SELECT dpml.predict_value('binary', p) FROM (SELECT work, age FROM people ORDER BY id) p"
    ).fetchall()
    assert [row[0] for row in part] == wanted
    assert ask(people, "predict_value", "binary", "NULL::people") == [None] * len(PEOPLE)
    assert scalar(people, "SELECT dpml.predict(NULL, people) FROM people LIMIT 1") is None
    with pytest.raises(errors.UndefinedColumn, match='no column "age"'):
        ask(people, "predict", "binary", "ROW(age)")
    for columns in ("age AS x, work AS y", "age AS f1, work AS y", "age AS x, work AS y, 17 AS z"):
        with pytest.raises(errors.UndefinedColumn, match='no column "age"'):  # of other names, so not these
            people.execute(f"SELECT dpml.predict('binary', p) FROM (SELECT {columns} FROM people) p".encode())


def test_missing_model(people: psycopg.Connection) -> None:
    for function in ("predict", "predict_value", "predict_proba", "label"):
        with pytest.raises(errors.UndefinedObject, match='model "nobody" does not exist') as caught:
            ask(people, function, "nobody")
        assert "dpml.models" in str(caught.value.diag.message_hint)


def test_many_models_in_one_query(people: psycopg.Connection) -> None:
    single = {kind: (store(people, kind), ask(people, "predict", kind))[1] for kind in LABELS}
    rows = people.execute(
        "SELECT name, id, dpml.predict(name, people) FROM people, dpml.models ORDER BY random()"
    ).fetchall()
    assert len(rows) == len(LABELS) * len(PEOPLE)
    for name, i, found in rows:
        assert found == single[name][i]


def test_search_path_is_not_trusted(people: psycopg.Connection) -> None:
    """A table or operator of the caller's must not be taken for the catalog's."""
    store(people, "binary")
    wanted = ask(people, "predict", "binary")
    people.execute("CREATE SCHEMA evil")
    people.execute("CREATE FUNCTION evil.no(text, text) RETURNS bool LANGUAGE sql AS 'SELECT false'")
    people.execute("CREATE OPERATOR evil.= (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.no)")
    people.execute("SET search_path = evil, pg_temp, public, pg_catalog")
    assert ask(people, "predict", "binary") == wanted
    people.execute("RESET search_path; DROP SCHEMA evil CASCADE")


@pytest.mark.parametrize(
    ("kind", "loss"),
    [
        *(("binary", "huber_svm"), ("regression", "squared"), ("multiclass", "huber_svm")),
        *(("binary", "hinge"), ("binary", "perceptron")),
    ],
)
def test_no_probabilities(people: psycopg.Connection, kind: str, loss: str) -> None:
    store(people, kind, loss=loss)
    with pytest.raises(errors.FeatureNotSupported, match=f'with loss "{loss}" has no probabilities'):
        ask(people, "predict_proba", kind)


def test_a_hinge_model_predicts_scores_of_two_classes(people: psycopg.Connection) -> None:
    w = store(people, "binary", loss="hinge")[0]
    scores = [float(w @ features(*person)) for person in PEOPLE]
    np.testing.assert_allclose(ask(people, "predict_value", "binary"), scores, rtol=1e-6)
    assert ask(people, "predict", "binary") == [CLASSES["binary"][u > 0] for u in scores]  # type: ignore[index]


def test_whitened_binary(people: psycopg.Connection) -> None:
    w = store(people, "binary", whitening=WHITENING)[0]
    scores = [float(w @ whitened(person)) for person in PEOPLE]
    assert max(abs(u - w @ features(*person)) for u, person in zip(scores, PEOPLE, strict=True)) > 0.1
    np.testing.assert_allclose(ask(people, "predict_value", "binary"), scores, rtol=1e-6)
    np.testing.assert_allclose(
        ask(people, "predict_proba", "binary"), [[sigmoid(-u), sigmoid(u)] for u in scores], rtol=1e-6
    )
    assert ask(people, "predict", "binary") == [CLASSES["binary"][u > 0] for u in scores]  # type: ignore[index]


@pytest.mark.parametrize("loss", ["softmax", "logistic"])
def test_whitened_classes(people: psycopg.Connection, loss: str) -> None:
    w = store(people, "multiclass", loss=loss, whitening=WHITENING)
    scores = [w @ whitened(person) for person in PEOPLE]
    assert ask(people, "predict", "multiclass") == ["abc"[int(np.argmax(u))] for u in scores]
    np.testing.assert_allclose(
        ask(people, "predict_value", "multiclass"), [u.max() for u in scores], rtol=1e-6
    )
    own = np.array([np.exp(u) if loss == "softmax" else 1 / (1 + np.exp(-u)) for u in scores])
    np.testing.assert_allclose(
        ask(people, "predict_proba", "multiclass"), own / own.sum(axis=1, keepdims=True), rtol=1e-6
    )


def test_whitened_regression(people: psycopg.Connection) -> None:
    w = store(people, "regression", whitening=WHITENING)[0]
    values = ask(people, "predict_value", "regression")
    wanted = [15 + 5 * np.clip(w @ whitened(person), -1, 1) for person in PEOPLE]
    np.testing.assert_allclose(values, wanted, rtol=1e-6)
    assert [float(text) for text in ask(people, "predict", "regression")] == values


@pytest.mark.parametrize(("whitening", "age"), [(2.0, "NULL"), (0.0, "7"), (1e-290, "7")])
def test_a_whitened_row_without_length_scores_zero(
    people: psycopg.Connection, whitening: float, age: str
) -> None:
    """A zero row, and what P makes one."""
    people.execute(f"UPDATE people SET age = {age}".encode())
    encoder = {"columns": COLUMNS[:1], "intercept": False}
    for kind, wanted in (("binary", 0.0), ("regression", 15.0)):
        store(
            people,
            kind,
            weights=[3.0],
            n_features=1,
            encoder=json.dumps({**encoder, "label": LABELS[kind]}),
            whitening=[whitening],
        )
        assert ask(people, "predict_value", kind) == [wanted] * len(PEOPLE)
    assert ask(people, "predict_proba", "binary") == [[0.5, 0.5]] * len(PEOPLE)


@pytest.mark.parametrize("size", [1e-140, 1e200])
def test_the_size_of_a_whitening(people: psycopg.Connection, size: float) -> None:
    """Its squares would leave the range of a double."""
    w = store(people, "binary", whitening=(P * size).ravel().tolist())[0]
    wanted = [float(w @ whitened(person)) / size for person in PEOPLE]
    np.testing.assert_allclose(ask(people, "predict_value", "binary"), wanted, rtol=1e-6)


@pytest.mark.parametrize(
    ("whitening", "detail"),
    [
        (WHITENING[:-1], "flat array of 16 float8"),
        (P.tolist(), "flat array of 16 float8"),
        ([], "flat array of 16 float8"),
        ([None, *WHITENING[1:]], "null"),
        ([math.nan, *WHITENING[1:]], "not finite"),
        ([*WHITENING[1:], -math.inf], "not finite"),
    ],
)
@pytest.mark.parametrize("function", ["predict", "predict_value", "predict_proba", "label"])
def test_bad_whitenings(people: psycopg.Connection, function: str, whitening: list[Any], detail: str) -> None:
    store(people, "binary", whitening=whitening)
    with pytest.raises(errors.DataCorrupted, match="is inconsistent") as caught:
        ask(people, function, "binary")
    assert 'model "binary"' in str(caught.value.diag.message_primary)
    assert detail in str(caught.value.diag.message_detail)


def test_whitenings_of_many_models_in_one_query(people: psycopg.Connection) -> None:
    """Each model's own, and none for the model that has none; a change shows in the next query."""
    for i, whitening in enumerate((WHITENING, None, np.eye(D).ravel().tolist(), (2 * P).ravel().tolist())):
        store(people, "binary", name=f"m{i}", whitening=whitening)
    query = (
        "SELECT name, dpml.predict_value(name, people) FROM people, dpml.models WHERE name LIKE 'm_'"
        " ORDER BY id, name"
    )
    found = np.array([row[1] for row in people.execute(query)]).reshape(len(PEOPLE), 4)
    np.testing.assert_allclose(found[:, 0], 2 * found[:, 3], rtol=1e-12)
    np.testing.assert_allclose(found[:, 1], found[:, 2], rtol=3e-6)  # rows have norm 1 - 2^-19
    assert np.min(np.abs(found[:, 0] - found[:, 1])) > 1e-3
    people.execute("UPDATE dpml.models SET whitening = NULL WHERE name = 'm0'")
    changed = np.array([row[1] for row in people.execute(query)]).reshape(len(PEOPLE), 4)
    np.testing.assert_array_equal(changed[:, 0], found[:, 1])
    people.execute("DELETE FROM dpml.models WHERE name LIKE 'm_'")


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("binary", {"n_features": 5}),
        ("binary", {"weights": [1.0]}),
        ("binary", {"classes": ["a", "b", "c"]}),
        ("binary", {"classes": None}),
        ("binary", {"classes": [None, "a"]}),
        ("multiclass", {"classes": ["a", "b"]}),
        ("multiclass", {"encoder": json.dumps({"columns": COLUMNS})}),
        ("regression", {"encoder": json.dumps({"columns": COLUMNS, "label": LABELS["binary"]})}),
    ],
)
def test_damaged_models(people: psycopg.Connection, kind: str, change: dict[str, Any]) -> None:
    store(people, kind, **change)
    with pytest.raises(errors.DataCorrupted, match="is inconsistent"):
        ask(people, "predict", kind)


def test_parallel_plan(people: psycopg.Connection) -> None:
    """Prediction may run in workers."""
    store(people, "binary")
    people.execute(
        "CREATE TABLE crowd AS SELECT g AS id, mod(g, 120) AS age, 'Gov' AS work"
        " FROM generate_series(1, 20000) g"
    )
    wanted = scalar(people, "SELECT sum(dpml.predict_value('binary', crowd)) FROM crowd")
    people.execute("SET max_parallel_workers_per_gather = 2; SET min_parallel_table_scan_size = 0")
    people.execute("SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0")
    query = "SELECT sum(dpml.predict_value('binary', crowd)) FROM crowd"
    assert "Gather" in json.dumps(scalar(people, f"EXPLAIN (FORMAT JSON) {query}"))
    assert scalar(people, query) == pytest.approx(wanted, rel=1e-12)
    people.execute("DROP TABLE crowd")
