# SPDX-License-Identifier: PostgreSQL
"""Figures in three modes: exact ones against numpy, the noisy one charged before any row is read."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np
import psycopg
import pytest

import pg_dpml
from helpers import people
from helpers.people import BAD_PEOPLE, create_people, make_people
from helpers.sqltools import scalar
from pg_dpml import Evaluation, PrivacySpec, Relation, TrainSpec
from pg_dpml.database.database import Database
from pg_dpml.errors import GuaranteeError, RunFailedError, RunInterrupted, SpecError
from pg_dpml.ledger import models as registry
from pg_dpml.privacy import resolution
from pg_dpml.privacy.noise import sums
from pg_dpml.reports import evaluation_report, words
from pg_dpml.tables.labels import LeftOut
from pg_dpml.tables.measuring import ValueCount
from pg_dpml.tables.stamp import OWNER_ONLY

pytestmark = pytest.mark.dealt

NOISY = importlib.import_module("pg_dpml.evaluation.noisy_error")

N = 400
EXACT = PrivacySpec(100.0)
"""Its noise rounds to nothing."""


@pytest.fixture(scope="module", autouse=True)
def models(database: str) -> None:
    """A model of each task, called as the task, of rows where some are bad."""
    with psycopg.connect(database, autocommit=True) as connection:
        create_people(connection, [*make_people(N - len(BAD_PEOPLE), seed=4), *BAD_PEOPLE])
        connection.execute("ALTER TABLE people ADD COLUMN family int")
        connection.execute("UPDATE people SET family = CASE WHEN id % 10 = 9 THEN NULL ELSE id % 70 END")
    training = TrainSpec(method="noiseless", passes=2, tolerance=0.0)
    for task in people.LABELS:
        pg_dpml.train(database, people.spec(task), None, training, name=task)


@pytest.fixture(autouse=True)
def clean(connection: psycopg.Connection) -> None:
    connection.execute(
        "SET session_replication_role = replica; DELETE FROM dpml.ledger WHERE method = 'evaluate'; "
        "RESET session_replication_role"
    )


def charges(connection: psycopg.Connection) -> list[tuple[Any, ...]]:
    columns = "table_name, model, method, epsilon, delta, relation, n_units, mechanism"
    return connection.execute(
        f"SELECT {columns} FROM dpml.ledger WHERE method = 'evaluate' ORDER BY id".encode()
    ).fetchall()


# One mode, no more and no less


@pytest.mark.parametrize(
    "modes",
    [
        {},
        {"public": True, "owner": True},
        {"public": True, "privacy": EXACT},
        {"owner": True, "privacy": EXACT},
        {"public": True, "owner": True, "privacy": EXACT},
    ],
)
def test_exactly_one_mode(database: str, connection: psycopg.Connection, modes: dict[str, Any]) -> None:
    with pytest.raises(GuaranteeError) as refusal:
        pg_dpml.evaluate(database, "binary", "people", **modes)
    assert refusal.value.exit_code == 5
    for way in ("--public", "--owner", "--epsilon E"):
        assert way in str(refusal.value)
    assert charges(connection) == []


def test_options_of_another_mode(database: str) -> None:
    for options in ({"clip": 1.0}, {"definition_is_public": True}):
        with pytest.raises(SpecError, match="go with epsilon"):
            pg_dpml.evaluate(database, "regression", "people", public=True, **options)


def test_the_owners_figures_are_stamped(database: str) -> None:
    public = pg_dpml.evaluate(database, "binary", "people", public=True)
    owner = pg_dpml.evaluate(database, "binary", "people", owner=True)
    assert (public.mode, owner.mode) == ("public", "owner")
    for name in ("accuracy", "confusion", "auc", "roc", "calibration", "n_rows"):
        assert getattr(public, name) == getattr(owner, name)
    text, record = evaluation_report.evaluation_text(owner), evaluation_report.evaluation_record(owner)
    assert text.startswith(OWNER_ONLY)
    assert OWNER_ONLY in record["not_private"]
    json.dumps(record, allow_nan=False)
    assert OWNER_ONLY not in evaluation_report.evaluation_text(public)
    assert evaluation_report.evaluation_record(public)["not_private"] == [
        words.NOT_PRIVATE
    ]  # because of the model


# Exact figures


def scored(connection: psycopg.Connection, model: str, what: str) -> list[tuple[Any, ...]]:
    """Declared label, prediction and one more thing of every row that has a label."""
    functions = ", ".join(f"dpml.{name}('{model}', t)" for name in ("label", "predict", what))
    query = f"SELECT {functions} FROM people t"
    return [row for row in connection.execute(query.encode()) if row[0] is not None]


def test_area_under_the_curve_counts_ties_half(database: str, connection: psycopg.Connection) -> None:
    connection.execute("CREATE TABLE tied AS SELECT * FROM people")
    connection.execute("UPDATE tied SET age = round(age / 25) * 25, gain = 0, married = true, mood = 'low'")
    connection.execute("UPDATE tied SET height = 170, pixels = '{0,0,0}'")
    found = pg_dpml.evaluate(database, "binary", "tied", public=True)
    rows = connection.execute(
        "SELECT dpml.label('binary', t), dpml.predict_value('binary', t) FROM tied t"
    ).fetchall()
    yes, no = (np.array([value for label, value in rows if label == name]) for name in ("yes", "no"))
    assert len(np.unique(yes)) < len(yes) / 2
    wins = np.mean(yes[:, None] > no) + 0.5 * np.mean(yes[:, None] == no)
    assert found.auc == pytest.approx(wins, rel=1e-12)
    assert found.roc[0] == (0.0, 0.0)
    assert found.roc[-1] == (1.0, 1.0)
    for fp, tp in found.roc[1:]:  # every point is one of the curve
        assert any(
            (np.mean(no >= cut), np.mean(yes >= cut)) == pytest.approx((fp, tp)) for cut in {*yes, *no}
        )
    assert list(found.roc) == sorted(found.roc)
    connection.execute("DROP TABLE tied")


def test_one_class_has_no_curve(database: str, connection: psycopg.Connection) -> None:
    connection.execute("CREATE TABLE rich AS SELECT * FROM people WHERE rich = 'yes'")
    found = pg_dpml.evaluate(database, "binary", "rich", public=True)
    assert (found.auc, found.roc, found.majority) == (None, (), 1.0)
    evaluation_report.evaluation_text(found)
    connection.execute("DROP TABLE rich")


@pytest.mark.parametrize("task", ["binary", "multiclass"])
def test_calibration(database: str, connection: psycopg.Connection, task: str) -> None:
    found = pg_dpml.evaluate(database, task, "people", public=True)
    rows = scored(connection, task, "predict_proba")
    if task == "binary":
        p = np.array([row[2][1] for row in rows])
        hit = np.array([row[0] == "yes" for row in rows])
    else:
        p = np.array([max(row[2]) for row in rows])
        hit = np.array([row[0] == row[1] for row in rows])
    tenths = np.minimum((p * 10).astype(int), 9)
    assert [round(10 * b.lower) for b in found.calibration] == sorted(set(tenths))
    for b in found.calibration:
        inside = tenths == round(10 * b.lower)
        assert b.n_rows == inside.sum()
        assert b.predicted == pytest.approx(p[inside].mean(), rel=1e-9)
        assert b.observed == pytest.approx(hit[inside].mean(), rel=1e-9)
    assert sum(b.n_rows for b in found.calibration) == found.n_rows == len(rows)


def test_a_loss_without_probabilities_has_no_calibration(database: str) -> None:
    training = TrainSpec(method="noiseless", loss="huber_svm", passes=1, tolerance=0.0)
    pg_dpml.train(database, people.spec(), None, training, name="svm")
    found = pg_dpml.evaluate(database, "svm", "people", public=True)
    assert found.calibration == ()
    assert found.auc is not None


def test_a_hinge_model_is_evaluated_as_another_of_its_weights(database: str) -> None:
    """The same figures and the same noisy error, but no calibration."""
    with Database(database).session() as session:
        registry.store_model(session, replace(registry.load_model(session, "binary"), name="h", loss="hinge"))
    logistic, hinge = (pg_dpml.evaluate(database, name, "people", public=True) for name in ("binary", "h"))
    assert logistic.calibration
    assert hinge.calibration == ()
    for figure in ("accuracy", "confusion", "auc"):
        assert getattr(hinge, figure) == getattr(logistic, figure)
    noisy = pg_dpml.evaluate(database, "h", "people", privacy=EXACT)
    assert noisy.error is not None
    assert hinge.accuracy is not None
    assert noisy.error.value == pytest.approx(1.0 - hinge.accuracy, abs=0.01)


# Rows that are in no figure


@pytest.fixture
def respelt(connection: psycopg.Connection) -> Iterator[str]:
    """100 people: 40 with a declared label, 25 and 20 spelt otherwise, 15 without one."""
    connection.execute(
        "CREATE TABLE respelt AS SELECT * FROM people WHERE rich IN ('yes', 'no') ORDER BY id LIMIT 100"
    )
    connection.execute(
        "UPDATE respelt SET rich = CASE WHEN n <= 25 THEN 'Yes.' WHEN n <= 45 THEN 'No.' "
        "WHEN n <= 60 THEN NULL ELSE rich END, "
        "price = CASE WHEN n <= 7 THEN 'NaN' WHEN n <= 9 THEN NULL ELSE price END "
        "FROM (SELECT id AS place, row_number() OVER (ORDER BY id) AS n FROM respelt) AS r WHERE place = id"
    )
    yield "respelt"
    connection.execute("DROP TABLE respelt")


@pytest.mark.parametrize("mode", ["public", "owner"])
def test_rows_left_out_of_exact_figures_are_told(database: str, respelt: str, mode: str) -> None:
    found = pg_dpml.evaluate(database, "binary", respelt, **{mode: True})  # type: ignore[arg-type]
    assert found.n_rows == 40
    assert found.left_out == LeftOut(15, 45, (ValueCount("Yes.", 25), ValueCount("No.", 20)))
    assert found.left_out.n_rows == 60
    text = " ".join(evaluation_report.evaluation_text(found).split())
    assert (
        "60 rows are in no figure: 15 whose label is NULL and "
        "45 whose label is not declared ('Yes.' 25, 'No.' 20)."
    ) in text
    record = json.loads(json.dumps(evaluation_report.evaluation_record(found), allow_nan=False))
    assert record["left_out"]["nulls"] == 15
    assert record["left_out"]["undeclared"] == 45
    assert record["left_out"]["undeclared_values"][0] == {"value": "Yes.", "rows": 25}


def test_numbers_left_out_of_exact_figures_are_told(database: str, respelt: str) -> None:
    found = pg_dpml.evaluate(database, "regression", respelt, public=True)
    assert (found.n_rows, found.left_out) == (91, LeftOut(2, 7, (ValueCount("NaN", 7),)))


def test_a_class_without_a_row_is_warned_of(database: str, connection: psycopg.Connection) -> None:
    connection.execute("CREATE TABLE poor AS SELECT * FROM people WHERE rich = 'no'")
    found = pg_dpml.evaluate(database, "binary", "poor", public=True)
    assert found.left_out == LeftOut(empty_classes=("yes",))
    assert "Warning: No row is of class 'yes'" in evaluation_report.evaluation_text(found)
    assert evaluation_report.evaluation_record(found)["left_out"]["empty_classes"] == ("yes",)
    connection.execute("DROP TABLE poor")


@pytest.mark.parametrize("task", people.LABELS)
def test_a_table_whose_rows_are_all_left_out_says_why(
    database: str, connection: psycopg.Connection, task: str
) -> None:
    connection.execute("CREATE TABLE strange AS SELECT * FROM people LIMIT 9")
    connection.execute("UPDATE strange SET rich = '>50K.', grade = 77, price = 'NaN'")
    connection.execute("UPDATE strange SET rich = NULL, grade = NULL, price = NULL WHERE id = 0")
    value = {"binary": ">50K.", "multiclass": "77", "regression": "NaN"}[task]
    words = f"1 whose label is NULL and 8 whose label is not declared ('{value}' 8)"
    with pytest.raises(SpecError) as refusal:
        pg_dpml.evaluate(database, task, "strange", public=True)
    assert words in str(refusal.value)
    assert OWNER_ONLY not in str(refusal.value)
    with pytest.raises(SpecError) as refusal:
        pg_dpml.evaluate(database, task, "strange", owner=True)
    assert f"{words}. {OWNER_ONLY}" in str(refusal.value)
    connection.execute('ALTER TABLE strange RENAME TO "Strange ones"')
    with pytest.raises(SpecError, match=f'^no row of "Strange ones" has a label that model {task} knows'):
        pg_dpml.evaluate(database, task, "Strange ones", public=True)
    connection.execute('DROP TABLE "Strange ones"')


def test_who_may_only_read_model_and_table_is_told_what_is_left_out(
    database: str, connection: psycopg.Connection, respelt: str
) -> None:
    connection.execute("CREATE ROLE onlooker LOGIN IN ROLE dpml_analyst; GRANT SELECT ON respelt TO onlooker")
    connection.execute("UPDATE dpml.models SET granted_to = '{onlooker}' WHERE name = 'binary'")
    dsn = database.replace("user='postgres'", "user='onlooker'")
    found = pg_dpml.evaluate(dsn, "binary", respelt, public=True)
    assert found.left_out is not None
    assert found.left_out.n_rows == 60
    connection.execute("DROP OWNED BY onlooker; DROP ROLE onlooker")
    connection.execute("UPDATE dpml.models SET granted_to = '{}' WHERE name = 'binary'")


# The noisy error


def test_exact_count_of_errors(database: str, connection: psycopg.Connection) -> None:
    """Without noise to speak of: rows without a declared label are errors, and n is all rows."""
    for task in ("binary", "multiclass"):
        rows = scored(connection, task, "predict_value")
        wrong = N - sum(label == predicted for label, predicted, _ in rows)
        assert wrong >= N - len(rows) > 0
        found = pg_dpml.evaluate(database, task, "people", privacy=EXACT)
        assert found.error is not None
        assert (found.mode, found.n_rows) == ("private", N)
        assert found.error.value == wrong / N
        assert found.left_out is None  # none is
        assert found.accuracy == pytest.approx(1.0 - wrong / N)
        assert (found.confusion, found.auc, found.calibration, found.majority) == ((), None, (), None)


@pytest.mark.parametrize("clip", [None, 0.5, 1e9])
def test_exact_sum_of_squared_errors(
    database: str, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch, clip: float | None
) -> None:
    """Of what is released but for its noise."""
    monkeypatch.setattr(sums, "release_sum", lambda total, noise, source: total)
    rows = scored(connection, "regression", "predict_value")
    bound = min(clip or 100.0, 100.0)
    errors = [min((float(label) - value) ** 2, bound) for label, _, value in rows]
    expected = (sum(errors) + bound * (N - len(rows))) / N
    found = pg_dpml.evaluate(database, "regression", "people", privacy=EXACT, clip=clip)
    assert found.error is not None
    assert found.error.clip == bound
    assert found.error.value == found.mean_squared_error == pytest.approx(expected, abs=bound * 2**-20)
    assert found.accuracy is None


def test_noise_and_its_bar(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    exact = pg_dpml.evaluate(database, "binary", "people", privacy=EXACT).error
    found = pg_dpml.evaluate(database, "binary", "people", privacy=PrivacySpec(0.5)).error
    assert exact is not None
    assert found is not None
    noise = sums.calibrate_sum(1, 0.5, 0.0)
    assert found.half_width == sums.noise_range(noise, 0.95) / N
    assert abs(found.value - exact.value) * N < 40.0 * noise.scale
    # Clamped: an error rate is in [0, 1].
    for far, value in ((-(10**6), 0.0), (10**6, 1.0)):
        monkeypatch.setattr(sums, "release_sum", lambda total, noise, source, far=far: far)
        clamped = pg_dpml.evaluate(database, "binary", "people", privacy=PrivacySpec(0.5)).error
        assert clamped is not None
        assert clamped.value == value


def test_every_evaluation_draws_fresh_noise(database: str) -> None:
    privacy = PrivacySpec(0.01)
    found = {_error(pg_dpml.evaluate(database, "binary", "people", privacy=privacy)) for _ in range(5)}
    assert len(found) > 1


def _error(evaluation: Evaluation) -> float:
    assert evaluation.error is not None
    return evaluation.error.value


@pytest.mark.parametrize("relation", list(Relation))
def test_what_is_charged(database: str, connection: psycopg.Connection, relation: Relation) -> None:
    found = pg_dpml.evaluate(database, "binary", "people", privacy=PrivacySpec(0.5, relation=relation))
    ((*entry, mechanism),) = charges(connection)
    delta = Decimal(repr(resolution.sampler_delta(1)))
    assert entry == ["public.people", "binary", "evaluate", Decimal("0.5"), delta, relation.value, N]
    assert mechanism["kind"] == "k-norm"
    assert mechanism["scale"] == pytest.approx(2.0)
    assert (mechanism["sensitivity"], mechanism["grid"]) == (1, 1.0)
    assert (mechanism["release"], mechanism["clip"], mechanism["unit"]) == ("errors", None, None)
    assert found.error is not None
    assert found.error.charge == scalar(connection, "SELECT max(id) FROM dpml.ledger")
    text = " ".join(evaluation_report.evaluation_text(found).split())
    for expected in ("private rows", "+-", f"entry {found.error.charge}", relation.value, "(0.5, "):
        assert expected in text
    assert "Rows whose label is NULL or undeclared count as errors." in text
    record = evaluation_report.evaluation_record(found)
    assert record["error"]["guarantee"]["relation"] == relation.value
    assert "confusion" not in record
    json.dumps(record, allow_nan=False)


def test_what_a_regression_is_charged(database: str, connection: psycopg.Connection) -> None:
    found = pg_dpml.evaluate(database, "regression", "people", privacy=PrivacySpec(2.0, 1e-3), clip=4.0)
    ((*entry, mechanism),) = charges(connection)
    assert entry[3:5] == [Decimal("2.0"), Decimal("0.001")]
    assert (mechanism["release"], mechanism["clip"]) == ("clipped squared errors", 4.0)
    assert mechanism["sensitivity"] == 2**20
    assert mechanism["scale"] == pytest.approx(2**20 / 2.0)
    assert "clipped at 4" in evaluation_report.evaluation_text(found)
    assert "NULL or no number count with the largest error, 4." in evaluation_report.evaluation_text(found)


def test_units_of_the_model(database: str, connection: psycopg.Connection) -> None:
    """At most so many rows of a unit are used, and the noise is for all of them."""
    data = people.spec(unit="family", max_rows_per_unit=3)
    pg_dpml.train(database, data, PrivacySpec(1.0), name="units")
    found = pg_dpml.evaluate(database, "units", "people", privacy=PrivacySpec(1.0))
    sizes = connection.execute("SELECT family, count(*) FROM people GROUP BY family").fetchall()
    used = sum(n if family is None else min(n, 3) for family, n in sizes)
    assert used < N
    ((*entry, mechanism),) = charges(connection)
    assert (found.n_rows, entry[-1]) == (used, used)
    assert (mechanism["unit"], mechanism["max_rows_per_unit"], mechanism["sensitivity"]) == ("family", 3, 3)
    assert "privacy of all rows with one value of family, of which at most 3" in " ".join(
        evaluation_report.evaluation_text(found).split()
    )


# The order: charge, then read


def test_a_failed_evaluation_stays_charged_and_says_nothing_of_a_row(
    database: str, connection: psycopg.Connection
) -> None:
    connection.execute(
        "CREATE VIEW poisoned AS SELECT id, age, gain, married, mood, town, height, pixels, "
        "town::int::text AS rich FROM people"
    )
    with pytest.raises(GuaranteeError, match="--definition-is-public"):
        pg_dpml.evaluate(database, "binary", "poisoned", privacy=PrivacySpec(1.0))
    assert charges(connection) == []
    with pytest.raises(RunFailedError) as failure:
        pg_dpml.evaluate(database, "binary", "poisoned", privacy=PrivacySpec(1.0), definition_is_public=True)
    assert "stays charged" in str(failure.value)
    assert failure.value.__cause__ is None
    for word in ("Aix", "Bonn", "Cork", "integer", "syntax"):
        assert word not in str(failure.value)
    assert len(charges(connection)) == 1
    connection.execute("DROP VIEW poisoned")


def test_a_view_that_cannot_be_counted_costs_nothing_and_says_nothing_of_a_row(
    database: str, connection: psycopg.Connection
) -> None:
    connection.execute("CREATE VIEW failing AS SELECT * FROM people WHERE town::int > 0")
    with pytest.raises(SpecError, match="counting the rows of failing failed") as refusal:
        pg_dpml.evaluate(database, "binary", "failing", privacy=PrivacySpec(1.0), definition_is_public=True)
    for word in ("Aix", "Bonn", "Cork"):
        assert word not in str(refusal.value)
    assert charges(connection) == []
    connection.execute("DROP VIEW failing")


def test_computed_columns_need_the_owners_word(database: str, connection: psycopg.Connection) -> None:
    if connection.info.server_version < 180000:
        pytest.skip("virtual generated columns came with PostgreSQL 18")
    connection.execute("CREATE TABLE computed AS SELECT * FROM people")
    connection.execute("ALTER TABLE computed DROP COLUMN gain")
    connection.execute("ALTER TABLE computed ADD COLUMN gain int GENERATED ALWAYS AS (100 / id) VIRTUAL")
    with pytest.raises(GuaranteeError, match="column gain, which is computed"):
        pg_dpml.evaluate(database, "binary", "computed", privacy=PrivacySpec(1.0))
    assert charges(connection) == []
    connection.execute("DROP TABLE computed")


def test_the_charge_is_committed_before_a_row_is_read(
    database: str, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen from another connection where the rows are counted, and where they are read."""
    count, sum_, seen = NOISY._count, NOISY._sum, []

    def counted(*given: Any) -> int:
        seen.append(len(charges(connection)))
        return int(count(*given))

    def summed(*given: Any) -> object:
        seen.append(len(charges(connection)))
        if seen[-1]:
            connection.execute("INSERT INTO people (id) VALUES (1000000)")  # of the next run
        return sum_(*given)

    monkeypatch.setattr(NOISY, "_count", counted)
    monkeypatch.setattr(NOISY, "_sum", summed)
    try:
        found = pg_dpml.evaluate(database, "binary", "people", privacy=EXACT)
    finally:
        connection.execute("DELETE FROM people WHERE id = 1000000")
    assert found.n_rows == N
    assert seen == [0, 0, 1]  # counted, prepared, read


def test_interrupted(database: str, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(sums, "release_sum", interrupt)
    with pytest.raises(RunInterrupted, match="stays charged"):
        pg_dpml.evaluate(database, "binary", "people", privacy=PrivacySpec(1.0))
    assert len(charges(connection)) == 1


@pytest.mark.parametrize(
    ("change", "options", "words"),
    [
        ("TRUNCATE changed", {}, "has no rows"),
        ("ALTER TABLE changed DROP COLUMN town", {}, "column town does not exist"),
        ("ALTER TABLE changed DROP COLUMN rich", {}, "column rich does not exist"),
        ("ALTER TABLE changed ALTER COLUMN age TYPE jsonb USING to_jsonb(age)", {}, "of type jsonb"),
        ("ALTER TABLE changed ALTER COLUMN rich TYPE jsonb USING to_jsonb(rich)", {}, "of type jsonb"),
        ("SELECT 1", {"clip": 1.0}, "clip bounds the squared errors of a regression"),
    ],
)
def test_bad_arguments_cost_nothing(
    database: str, connection: psycopg.Connection, change: str, options: dict[str, Any], words: str
) -> None:
    connection.execute("CREATE TABLE changed AS SELECT * FROM people")
    connection.execute(change.encode())
    try:
        with pytest.raises(SpecError, match=words):
            pg_dpml.evaluate(database, "binary", "changed", privacy=PrivacySpec(1.0), **options)
    finally:
        connection.execute("DROP TABLE changed")
    assert charges(connection) == []


@pytest.mark.parametrize("clip", [0.0, -1.0, float("inf"), float("nan")])
def test_clips_have_a_domain(database: str, connection: psycopg.Connection, clip: float) -> None:
    with pytest.raises(SpecError, match="clip must be in"):
        pg_dpml.evaluate(database, "regression", "people", privacy=PrivacySpec(1.0), clip=clip)
    assert charges(connection) == []


def test_rights_are_checked_before_the_charge(database: str, connection: psycopg.Connection) -> None:
    """Of every column that will be read, without reading one."""
    connection.execute("CREATE ROLE evaluator LOGIN IN ROLE dpml_curator")
    connection.execute(
        "GRANT SELECT (id, age, gain, married, mood, height, pixels, rich) ON people TO evaluator"
    )
    dsn = database.replace("user='postgres'", "user='evaluator'")
    try:
        with pytest.raises(SpecError, match="permission denied"):
            pg_dpml.evaluate(dsn, "binary", "people", privacy=PrivacySpec(1.0))
        assert charges(connection) == []
        connection.execute("GRANT SELECT (town) ON people TO evaluator")
        assert pg_dpml.evaluate(dsn, "binary", "people", privacy=EXACT).n_rows == N
        assert (
            scalar(connection, "SELECT charged_by FROM dpml.ledger WHERE method = 'evaluate'") == "evaluator"
        )
    finally:
        connection.execute("DROP OWNED BY evaluator")
        connection.execute("DROP ROLE evaluator")


def test_row_security_is_refused(database: str, connection: psycopg.Connection) -> None:
    connection.execute("CREATE TABLE secured AS SELECT * FROM people")
    connection.execute("ALTER TABLE secured ENABLE ROW LEVEL SECURITY")
    with pytest.raises(GuaranteeError, match="row-level security"):
        pg_dpml.evaluate(database, "binary", "secured", privacy=PrivacySpec(1.0))
    assert charges(connection) == []
    connection.execute("DROP TABLE secured")
