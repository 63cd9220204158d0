# SPDX-License-Identifier: PostgreSQL
"""Budgets: nobody gets more than is left, whatever happens to sessions, tables and databases."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
from typer.testing import CliRunner, Result

import pg_dpml
from helpers import people
from helpers.people import create_people, make_people
from helpers.sqltools import scalar
from pg_dpml.cli.framework import app
from pg_dpml.database.catalog import look_up_table
from pg_dpml.database.database import Database
from pg_dpml.database.session import Session
from pg_dpml.errors import BudgetError, DpmlError, GuaranteeError, SpecError
from pg_dpml.ledger import budgets, charging, claims, opening, terms
from pg_dpml.privacy import resolution
from pg_dpml.privacy.cost import Cost, epsilon_of, limit_of
from pg_dpml.privacy.gaussian import gaussian_delta, gaussian_mu
from pg_dpml.privacy.guarantee import Guarantee
from pg_dpml.server.embedded import EmbeddedServer, find_pg_config
from pg_dpml.spec.privacy import PrivacySpec
from pg_dpml.spec.relation import Relation
from pg_dpml.training.spec import TrainSpec

pytestmark = [pytest.mark.usefixtures("clean"), pytest.mark.dealt]

N = 200
BOLT_ON = TrainSpec(method="bolt-on", passes=1)
GAUSSIAN = TrainSpec(method="dp-gd", passes=2)
SHUFFLED = TrainSpec(method="scs13", passes=2)
POISSON = TrainSpec(method="dp-sgd", passes=2)
AGES = """
table = "people"
[label]
column = "rich"
positive = "yes"
[columns.age]
lower = 0
upper = 100
"""
TENTH = Guarantee(0.1, 0.0, Relation.REPLACE_ONE)


@pytest.fixture(scope="module", autouse=True)
def tables(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        create_people(connection, make_people(N))
        connection.execute("CREATE TABLE pets (id int)")


def open_budget(dsn: str, epsilon: str = "1.0", delta: str = "0.1", rule: str = "basic", **more: Any) -> None:
    with Database(dsn).session() as session:
        opening.open_budget(
            session, "census", epsilon=Decimal(epsilon), delta=Decimal(delta), rule=rule, **more
        )


def left(dsn: str) -> terms.Left:
    with Database(dsn).session() as session:
        return budgets.left_of(session, budgets.load_budget(session, "census"))


def entries(dsn: str) -> list[terms.Entry]:
    with Database(dsn).session() as session:
        return budgets.history(session, "census")


def charge(
    dsn: str,
    guarantee: Guarantee = TENTH,
    *,
    isolation: str = "READ COMMITTED",
    charge_key: str | None = None,
    dataset: str | None = "census",
    table: str = "people",
) -> charging.Charged:
    """As a run does."""
    with Database(dsn).session(isolation) as session:
        return charge_in(session, guarantee, charge_key, dataset, table)


def charge_in(
    session: Session,
    guarantee: Guarantee = TENTH,
    charge_key: str | None = None,
    dataset: str | None = "census",
    table: str = "people",
) -> charging.Charged:
    return charging.charge(
        session,
        look_up_table(session, table),
        guarantee,
        None,
        at_epsilon=lambda epsilon: (replace(guarantee, epsilon=epsilon), None),
        dataset=dataset,
        model="m",
        method="bolt-on",
        n_units=N,
        mechanism={},
        charge_key=charge_key,
    )


def train(
    dsn: str,
    name: str,
    epsilon: float = 0.1,
    *,
    charge_key: str | None = None,
    training: TrainSpec = BOLT_ON,
    **changes: Any,
) -> pg_dpml.TrainResult:
    data = people.spec(**({"dataset": "census"} | changes))
    return pg_dpml.train(dsn, data, PrivacySpec(epsilon, 1e-6), training, name=name, charge_key=charge_key)


Dpml = Callable[..., Result]


@pytest.fixture
def dpml(database: str) -> Dpml:
    def run(*arguments: str) -> Result:
        return CliRunner().invoke(app, [*arguments, "--dsn", database])

    return run


def test_an_evaluation_shows_what_is_left_of_the_budget(database: str, dpml: Dpml) -> None:
    open_budget(database, "3", tables=("people",))
    train(database, "m")
    asked = ("evaluate", "m", "--table", "people", "--epsilon", "0.5", "--delta", "1e-9")
    done = dpml(*asked)
    assert done.exit_code == 0, done.stderr
    assert "Budget      census: " in done.stdout
    again = dpml(*asked, "--format", "json")
    assert set(json.loads(again.stdout)["budget"]) == {"dataset", "left", "runs_left"}


# Nobody gets more than is left


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_of_twenty_sessions_ten_get_a_tenth(
    database: str, connection: psycopg.Connection, isolation: str
) -> None:
    open_budget(database)

    def ask(_: int) -> bool:
        while True:
            try:
                charge(database, isolation=isolation)
            except BudgetError:
                return False
            except DpmlError:  # an older snapshot than the last entry
                if isolation == "READ COMMITTED":
                    raise
            else:
                return True

    with ThreadPoolExecutor(20) as pool:
        assert sorted(pool.map(ask, range(20))) == [False] * 10 + [True] * 10
    assert left(database) == terms.Left(10, False, Cost(Decimal(0), Decimal("0.1")))
    assert scalar(connection, "SELECT sum(epsilon) FROM dpml.ledger") == 1
    turns = connection.execute("SELECT turn FROM dpml.budget_entries ORDER BY 1").fetchall()
    assert [turn for (turn,) in turns] == list(range(1, 11))


@pytest.mark.parametrize("isolation", ["read committed", "serializable"])
def test_of_twenty_runs_ten_get_a_model(
    database: str, connection: psycopg.Connection, isolation: str
) -> None:
    name = scalar(connection, "SELECT current_database()")
    connection.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = '{isolation}'".encode())
    open_budget(database)

    def run(number: int) -> bool:
        try:
            train(database, f"m{number}")
        except BudgetError:
            return False
        return True

    with ThreadPoolExecutor(20) as pool:
        assert sum(pool.map(run, range(20))) == 10
    assert scalar(connection, "SELECT count(*) FROM dpml.models") == 10
    assert scalar(connection, "SELECT sum(loss) FROM dpml.budget_entries") == 1
    connection.execute(f"ALTER DATABASE {name} RESET default_transaction_isolation".encode())


def test_first_charges_may_come_together(database: str, connection: psycopg.Connection) -> None:
    """Each of them finds that nothing holds the extension yet."""
    connection.execute("DROP VIEW IF EXISTS dpml.ledger_in_use")
    with ThreadPoolExecutor(10) as pool:
        list(pool.map(lambda _: charge(database, dataset=None), range(10)))
    assert scalar(connection, "SELECT entries FROM dpml.ledger_in_use") == 10


def test_a_stale_snapshot_charges_nothing(database: str) -> None:
    open_budget(database)

    def charge_late() -> None:
        with Database(database).session("REPEATABLE READ") as session:
            look_up_table(session, "people")  # takes the snapshot
            charge(database)
            charge_in(session)

    with pytest.raises(DpmlError):
        charge_late()
    assert left(database).entries == 1


def test_a_failed_run_stays_charged(database: str, connection: psycopg.Connection) -> None:
    open_budget(database)
    connection.execute(
        "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''no''; END'"
    )
    connection.execute("CREATE TRIGGER fail BEFORE INSERT ON dpml.models EXECUTE FUNCTION fail()")
    with pytest.raises(DpmlError, match="stay charged"):
        train(database, "m", charge_key="r")
    assert left(database).cost.loss == Decimal("0.9")
    with pytest.raises(SpecError, match="stored no model"):
        train(database, "m", charge_key="r")
    connection.execute("DROP TRIGGER fail ON dpml.models; DROP FUNCTION fail()")


@pytest.mark.parametrize("training", [GAUSSIAN, SHUFFLED, POISSON], ids=lambda training: training.method)
@pytest.mark.parametrize("rule", ["gdp", "zcdp"])
def test_gaussian_runs_compose_better_than_they_add_up(database: str, rule: str, training: TrainSpec) -> None:
    open_budget(database, "1", "1e-5", rule)
    for number in range(8):  # 3 by "basic"
        train(database, f"m{number}", 0.3, training=training)
    with pytest.raises(BudgetError, match=r"has (mu\^2|rho) = .* left, and this run costs"):
        train(database, "m", 0.9, training=training)


def test_tuning_and_noisy_errors_are_charged(database: str) -> None:
    open_budget(database)
    train(database, "m")
    grid = pg_dpml.Grid({"passes": [1, 2]}, BOLT_ON)
    pg_dpml.tune(database, people.spec(dataset="census"), PrivacySpec(0.2, 1e-6), grid, name="tuned")
    assert left(database).cost.loss == Decimal("0.7")
    # The training table of a model belongs to the data set that the model was charged to.
    pg_dpml.evaluate(database, "m", "people", privacy=PrivacySpec(0.3))
    assert left(database).cost.loss == Decimal("0.4")
    pg_dpml.evaluate(database, "m", "people", privacy=PrivacySpec(0.3), dataset="census")
    with pytest.raises(BudgetError):
        pg_dpml.evaluate(database, "m", "people", privacy=PrivacySpec(0.3))
    assert left(database).cost.loss == Decimal("0.1")


@pytest.mark.parametrize("rule", ["gdp", "zcdp"])
def test_a_plan_shows_the_noise_that_the_run_then_takes(
    dpml: Dpml, database: str, connection: psycopg.Connection, tmp_path: Path, rule: str
) -> None:
    spec = tmp_path / "people.toml"
    spec.write_text(AGES, encoding="utf-8")
    run = (str(spec), "--epsilon", "0.1", "--delta", "1e-7", "--method", "bolt-on", "--format", "json")
    assert json.loads(dpml("plan", *run).stdout)["noise"]["kind"] == "k-norm"
    open_budget(database, "3", "1e-6", rule, tables=("people",))
    plan = json.loads(dpml("plan", *run).stdout)
    assert plan["noise"]["kind"] == "gaussian"
    assert "K-norm noise, though smaller, would cost" in plan["noise_reason"]
    trained = dpml("train", *run, "--name", "m")
    assert trained.exit_code == 0, trained.stderr + repr(trained.exception)
    assert json.loads(trained.stdout)["plan"]["noise"] == plan["noise"]
    assert str(scalar(connection, "SELECT loss FROM dpml.budget_entries")) == plan["budget"]["cost"]["loss"]
    text = " ".join(dpml("plan", *run[:-2]).stdout.split())
    assert plan["noise_reason"] in text
    pure = " ".join(dpml("plan", *run[:3], "--delta", "0", "--method", "bolt-on").stdout.split())
    assert f"delta = 0 asks for pure privacy, of which a {rule} budget takes" in pure


def test_a_noisy_error_takes_the_noise_that_costs_less(database: str, connection: psycopg.Connection) -> None:
    open_budget(database, "3", "1e-6", "gdp", tables=("people",))
    train(database, "m")
    pg_dpml.evaluate(database, "m", "people", privacy=PrivacySpec(0.1, 1e-7))
    mechanism = "SELECT mechanism ->> 'kind' FROM dpml.ledger ORDER BY id DESC LIMIT 1"
    assert scalar(connection, mechanism) == "gaussian"
    loss = float(scalar(connection, "SELECT loss FROM dpml.budget_entries ORDER BY turn DESC LIMIT 1"))
    assert loss == pytest.approx(gaussian_mu(0.1, 1e-7) ** 2, rel=1e-6)


@pytest.mark.parametrize("rule", ["basic", "zcdp", "gdp"])
def test_the_default_delta_of_a_noisy_error_is_what_costs_its_budget_less(
    database: str, connection: psycopg.Connection, rule: str
) -> None:
    open_budget(database, "3", "1e-4", rule, tables=("people",))
    train(database, "m")
    found = pg_dpml.evaluate(database, "m", "people", privacy=PrivacySpec(0.2)).error
    assert found is not None
    exact = resolution.sampler_delta(1)
    assert found.guarantee.delta == (exact if rule == "basic" else found.n_rows**-2.0)
    mechanism = "SELECT mechanism ->> 'kind' FROM dpml.ledger ORDER BY id DESC LIMIT 1"
    assert scalar(connection, mechanism) == ("k-norm" if rule == "basic" else "gaussian")
    without = pg_dpml.evaluate(database, "m", "people", privacy=PrivacySpec(0.2, 0.0)).error
    assert without is not None
    assert without.guarantee.delta == exact
    losses = [float(entry.loss) for entry in entries(database)[-2:]]
    assert losses[0] == losses[1] if rule == "basic" else losses[0] < 0.5 * losses[1]


# What one run may be


def least(message: str) -> str:
    """The least epsilon that a refusal names."""
    found = re.search(r"epsilon must be at least (\S+) for this run", message)
    assert found is not None, message
    return found.group(1)


def below(epsilon: str) -> float:
    """A little less, in the third digit."""
    return float(Decimal(epsilon) * Decimal("0.9999") - Decimal(f"1e{Decimal(epsilon).adjusted() - 2}"))


@pytest.mark.one_major
@pytest.mark.parametrize("rule", ["basic", "zcdp", "gdp"])
@pytest.mark.parametrize(
    "training",
    [BOLT_ON, GAUSSIAN, TrainSpec(method="dp-sgd", passes=1), TrainSpec(method="scs13", passes=1)],
    ids=lambda training: training.method,
)
def test_the_least_epsilon_is_named_and_accepted(
    database: str, connection: psycopg.Connection, rule: str, training: TrainSpec
) -> None:
    open_budget(database, "0.5", "1e-5", rule)
    with pytest.raises(
        BudgetError, match=r"opened by role postgres\) has it, .* nothing was charged"
    ) as refusal:
        train(database, "m", 1e-4, training=training)
    epsilon = least(str(refusal.value))
    with pytest.raises(BudgetError) as again:
        train(database, "m", below(epsilon), training=training)
    assert least(str(again.value)) == epsilon
    assert scalar(connection, "SELECT count(*) FROM dpml.ledger") == left(database).entries == 0
    train(database, "m", float(epsilon), training=training)
    query = (
        "SELECT loss * 1000 >= loss_limit, loss FROM dpml.budget_entries JOIN dpml.budgets USING (dataset)"
    )
    assert scalar(connection, query) is True


@pytest.mark.one_major
@pytest.mark.parametrize("rule", ["basic", "zcdp", "gdp"])
@pytest.mark.parametrize("epsilon", ["0.001", "0.3333", "3", "100"])
def test_a_run_costs_a_thousandth_unless_the_owner_says_otherwise(
    database: str, epsilon: str, rule: str
) -> None:
    open_budget(database, epsilon, "1e-9", rule)
    with Database(database).session() as session:
        opened = budgets.load_budget(session, "census")

    def cost(of: Decimal) -> Decimal:
        return limit_of(rule, of, opened.delta).loss

    share = opened.limit.loss / 1000
    assert cost(opened.min_epsilon) >= share > cost(Decimal(below(str(opened.min_epsilon))))
    assert (opened.min_delta, opened.max_delta) == (Decimal(0), Decimal("1e-9"))


def test_the_owner_sets_the_least_epsilon(database: str) -> None:
    open_budget(database, min_epsilon=Decimal("0.00001"))
    charge(database, Guarantee(1e-5, 0.0, Relation.REPLACE_ONE))
    with pytest.raises(BudgetError, match=r"at least 1e-05 for this run: .* epsilon = 1e-05 at delta = 0.1"):
        charge(database, Guarantee(9e-6, 0.0, Relation.REPLACE_ONE))
    charge(database, Guarantee(6e-6, 0.0, Relation.ADD_REMOVE))  # by the relation of the budget
    with Database(database).session() as session:
        opening.open_budget(
            *(session, "strict"),
            epsilon=Decimal(1),
            delta=Decimal("1e-9"),
            rule="basic",
            min_epsilon=Decimal("0.3"),
            shared=True,
        )
    with pytest.raises(BudgetError, match=r"at least 0\.3 for this run"):
        charge(database, dataset="strict")
    charge(database, replace(TENTH, epsilon=0.3), dataset="strict")


def test_tuning_and_noisy_errors_have_a_least_epsilon(database: str, connection: psycopg.Connection) -> None:
    open_budget(database, min_epsilon=Decimal("0.05"))
    train(database, "m")
    grid = pg_dpml.Grid({"passes": [1, 2]}, BOLT_ON)
    for run in (
        lambda: pg_dpml.tune(
            database, people.spec(dataset="census"), PrivacySpec(0.04, 1e-6), grid, name="tuned"
        ),
        lambda: pg_dpml.evaluate(database, "m", "people", privacy=PrivacySpec(0.04)),
        lambda: pg_dpml.evaluate(database, "m", "people", privacy=PrivacySpec(0.04, 1e-6)),
    ):
        with pytest.raises(BudgetError, match=r"epsilon must be at least 0\.05 for this run"):
            run()
    assert scalar(connection, "SELECT count(*) FROM dpml.ledger") == 1
    pg_dpml.evaluate(database, "m", "people", privacy=PrivacySpec(0.05))


@pytest.mark.one_major
def test_a_run_too_small_at_any_epsilon(database: str) -> None:
    """Its delta is what makes it cheap: no epsilon that can be asked for costs enough."""
    open_budget(database, "100", "0.5", "gdp", min_epsilon=Decimal(100))
    with pytest.raises(BudgetError, match="delta must be larger for this run"):
        pg_dpml.train(
            database,
            people.spec(dataset="census"),
            PrivacySpec(1, 1e-15),
            GAUSSIAN,
            name="m",
        )


def test_a_run_keeps_to_the_deltas(database: str, connection: psycopg.Connection) -> None:
    open_budget(database, min_delta=Decimal("1e-7"), max_delta=Decimal("1e-5"))
    for delta in (0.0, 9.9e-8, 1.1e-5):
        with pytest.raises(
            BudgetError, match=rf"delta must be from 1e-07 to 1e-05, as .* {delta:g}: nothing"
        ):
            charge(database, replace(TENTH, delta=delta))
    assert scalar(connection, "SELECT count(*) FROM dpml.ledger") == 0
    for delta in (1e-7, 1e-5):
        charge(database, replace(TENTH, delta=delta))


# What a request is charged to


def test_a_request_is_charged_once(database: str, connection: psycopg.Connection) -> None:
    open_budget(database)
    first = train(database, "m", charge_key="monday")
    again = train(database, "m", charge_key="monday")
    assert again.model.weights.tolist() == first.model.weights.tolist()
    assert scalar(connection, "SELECT count(*) FROM dpml.ledger") == left(database).entries == 1
    with pytest.raises(SpecError, match="made model m"):
        train(database, "other", charge_key="monday")
    train(database, "other", charge_key="tuesday")
    assert left(database).entries == 2

    def ask(_: int) -> charging.Charged:
        return charge(database, charge_key="wednesday")

    with ThreadPoolExecutor(10) as pool:
        charged = list(pool.map(ask, range(10)))
    assert len({one.entry for one in charged}) == 1
    assert sum(not one.repeated for one in charged) == 1
    assert left(database).entries == 3


def test_a_listed_table_is_charged_unasked(database: str, connection: psycopg.Connection) -> None:
    open_budget(database, tables=("people",))
    train(database, "m", dataset=None)
    assert left(database).entries == 1
    with Database(database).session() as session:
        opening.open_budget(session, "other", epsilon=Decimal(9), delta=Decimal("1e-9"), rule="basic")
    with pytest.raises(GuaranteeError, match="belongs to data set census, not other"):
        train(database, "m2", dataset="other")
    assert scalar(connection, "SELECT count(*) FROM dpml.ledger") == 1
    with Database(database).session() as session:
        opening.open_budget(
            *(session, "third"),
            epsilon=Decimal(9),
            delta=Decimal("0.1"),
            rule="basic",
            tables=("people",),
            shared=True,
        )
    with pytest.raises(SpecError, match=r"several budgets.*census, third"):
        train(database, "m2", dataset=None)


def test_without_a_budget_only_the_ledger_is_written(database: str, connection: psycopg.Connection) -> None:
    train(database, "m", dataset=None)
    assert scalar(connection, "SELECT count(*) FROM dpml.ledger") == 1
    with pytest.raises(SpecError, match="no budget: dpml budget open census"):
        train(database, "m2")
    with pytest.raises(SpecError, match="charge_key goes with a budget"):
        train(database, "m2", dataset=None, charge_key="r")
    assert scalar(connection, "SELECT count(*) FROM dpml.ledger") == 1


def test_another_unit_is_refused(database: str) -> None:
    open_budget(database, unit="id")
    with pytest.raises(GuaranteeError, match="is for unit = id, and this run has no unit"):
        charge(database)
    charge(database, Guarantee(0.1, 0.0, Relation.REPLACE_ONE, "id", 3))


def test_a_run_that_takes_shards_for_public_is_for_a_budget_of_units_that_decide_them(
    database: str, connection: psycopg.Connection
) -> None:
    open_budget(database)
    with pytest.raises(GuaranteeError, match="protects a row whatever its id is, which by_shards") as refused:
        charge(database, replace(TENTH, placed_by="id"))
    assert str(refused.value).endswith("takes for public: leave by_shards out")
    assert refused.value.plain.endswith("takes for public")
    assert scalar(connection, "SELECT count(*) FROM dpml.ledger") == 0
    open_budget(database, unit="id")
    charge(database, Guarantee(0.1, 0.0, Relation.REPLACE_ONE, "id", 3, placed_by="id"))
    assert scalar(connection, "SELECT mechanism ->> 'placed_by' FROM dpml.ledger") == "id"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epsilon": "0"}, "epsilon must be in"),
        ({"epsilon": "NaN"}, "epsilon must be in"),
        ({"epsilon": "1001"}, "epsilon must be in"),
        ({"delta": "1"}, "delta must be in"),
        ({"delta": "-1"}, "delta must be in"),
        ({"delta": "0", "rule": "gdp"}, "delta must be at least"),
        ({"rule": "best"}, "rule must be one of basic, zcdp, gdp"),
        ({"tables": ("nowhere",)}, "table nowhere does not exist"),
        ({"min_epsilon": Decimal(0)}, "min_epsilon must be above 0 and at most 1, the largest"),
        ({"min_epsilon": Decimal("1.1")}, "min_epsilon must be"),
        ({"min_epsilon": Decimal("NaN")}, "min_epsilon must be"),
        ({"min_delta": Decimal("-1e-9")}, r"min_delta must be at least 0 and at most 0\.1"),
        ({"min_delta": Decimal("0.2")}, "min_delta must be"),
        ({"max_delta": Decimal(1)}, "max_delta must be in"),
        ({"max_delta": Decimal("0.11")}, r"max_delta must be at most 0\.1, the delta of the budget"),
        ({"max_delta": Decimal("NaN")}, "max_delta must be in"),
    ],
)
def test_bad_arguments(database: str, change: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        open_budget(database, **change)
    open_budget(database)
    charge(database)
    with pytest.raises(SpecError, match="never made larger"):
        open_budget(database, "100")


# What was spent stays spent


@pytest.mark.parametrize("table", ["ledger", "budgets", "budget_entries"])
def test_the_tables_are_append_only(database: str, connection: psycopg.Connection, table: str) -> None:
    open_budget(database)
    charge(database)
    for statement in (f"DELETE FROM dpml.{table}", f"TRUNCATE dpml.{table} CASCADE"):
        with pytest.raises(psycopg.Error, match="is append-only"):
            connection.execute(statement.encode())
    column = scalar(
        connection,
        "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum = 4",
        f"dpml.{table}",
    )
    with pytest.raises(psycopg.Error, match="is append-only"):
        connection.execute(f"UPDATE dpml.{table} SET {column} = {column}".encode())
    assert left(database).entries == 1


def test_a_curator_charges_and_an_analyst_does_not(database: str, connection: psycopg.Connection) -> None:
    connection.execute("CREATE ROLE carol LOGIN IN ROLE dpml_curator")
    connection.execute("GRANT SELECT ON people TO carol")
    carol = database.replace("user='postgres'", "user='carol'")
    connection.execute("DROP VIEW IF EXISTS dpml.ledger_in_use")
    open_budget(carol)
    train(carol, "m")
    assert scalar(connection, "SELECT entered_by FROM dpml.budget_entries") == "carol"
    assert scalar(connection, "SELECT count(*) FROM pg_views WHERE viewname = 'ledger_in_use'") == 1
    for statement, refusal in (
        ("DELETE FROM dpml.budget_entries", psycopg.errors.InsufficientPrivilege),
        ("UPDATE dpml.budgets SET loss_limit = 100", psycopg.errors.ObjectNotInPrerequisiteState),
        ("UPDATE dpml.budgets SET dataset = 'x'", psycopg.errors.InsufficientPrivilege),
        ("UPDATE dpml.budgets SET opened_by = 'x'", psycopg.errors.InsufficientPrivilege),
    ):
        with psycopg.connect(carol) as other, pytest.raises(refusal):
            other.execute(statement.encode())
    connection.execute("REVOKE dpml_curator FROM carol; GRANT dpml_analyst TO carol")
    with pytest.raises(
        SpecError, match=r"only curators \(members of dpml_curator\) may do that; ask the owner"
    ):
        charge(carol)
    connection.execute("DROP OWNED BY carol; DROP ROLE carol")


def test_a_rename_changes_nothing(dpml: Dpml, database: str, connection: psycopg.Connection) -> None:
    open_budget(database, "0.2", tables=("people",))
    train(database, "m1")
    connection.execute(
        "ALTER TABLE people RENAME TO citizens; CREATE SCHEMA moved; ALTER TABLE citizens SET SCHEMA moved"
    )
    try:
        train(database, "m2", table="moved.citizens")
        with pytest.raises(BudgetError):
            train(database, "m3", table="moved.citizens")
        assert "Warning   public.people: gone" in dpml("budget", "show", "census").stdout
    finally:
        connection.execute(
            "ALTER TABLE moved.citizens SET SCHEMA public; ALTER TABLE citizens RENAME TO people; "
            "DROP SCHEMA moved"
        )


@pytest.mark.parametrize("form", ["plain", "custom"])
def test_a_dump_keeps_budgets(
    server: EmbeddedServer, database: str, connection: psycopg.Connection, tmp_path: Path, form: str
) -> None:
    open_budget(database)
    train(database, "m", charge_key="r")
    charge(database)
    with Database(database).session() as session:
        opening.open_budget(session, "shut", epsilon=Decimal(1), delta=Decimal("1e-9"), rule="basic")
        budgets.close_budget(session, "shut")
    connection.execute("UPDATE dpml.models SET granted_to = '{dpml_analyst}'")
    last = scalar(connection, "SELECT max(id) FROM dpml.ledger")
    folder = find_pg_config(server.major).parent
    file = str(tmp_path / "dump")
    restored = f"restored_{form}"

    def tool(name: str, *arguments: str) -> None:
        done = subprocess.run([folder / name, *arguments], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")

    tool("pg_dump", "--format", form, "--file", file, "--dbname", database)
    connection.execute(f"CREATE DATABASE {restored}".encode())
    copy = server.dsn_of(restored)
    try:
        if form == "plain":
            tool(
                "psql", "--no-psqlrc", "--quiet", "-v", "ON_ERROR_STOP=1", "-o", "/dev/null", "-f", file, copy
            )
        else:
            tool("pg_restore", "--exit-on-error", "--dbname", copy, file)
        assert left(copy) == left(database)
        assert entries(copy) == entries(database)
        with psycopg.connect(copy) as other:
            for kept in (
                "SELECT pg_catalog.array_agg(owner || granted_to::text) FROM dpml.models",
                "SELECT count(*) FROM pg_catalog.pg_policy WHERE polrelid = 'dpml.models'::regclass",
            ):
                assert scalar(other, kept) == scalar(connection, kept)
        with pytest.raises(BudgetError, match="closed"):
            charge(copy, dataset="shut", table="pets")
        assert train(copy, "m", charge_key="r").model.charge == last - 1
        assert charge(copy).entry == last + 1
        assert charge(copy, dataset=None).entry == last + 2
        with psycopg.connect(copy) as other, pytest.raises(psycopg.Error, match="cannot drop extension"):
            other.execute("DROP EXTENSION pg_dpml")
        with psycopg.connect(copy) as other, pytest.raises(psycopg.Error, match="append-only"):
            other.execute("DELETE FROM dpml.budget_entries")
    finally:
        connection.execute(f"DROP DATABASE {restored} WITH (FORCE)".encode())


def test_dropping_the_extension_needs_cascade(server: EmbeddedServer, connection: psycopg.Connection) -> None:
    connection.execute("CREATE DATABASE dropping TEMPLATE dpml_template")
    dsn = server.dsn_of("dropping")
    try:
        with psycopg.connect(dsn, autocommit=True) as other:
            other.execute("DROP EXTENSION pg_dpml")  # nothing was spent
            other.execute("CREATE EXTENSION pg_dpml")
            open_budget(dsn)
            with pytest.raises(psycopg.errors.DependentObjectsStillExist) as refusal:
                other.execute("DROP EXTENSION pg_dpml")
            assert "view dpml.ledger_in_use depends on table dpml.ledger" in str(
                refusal.value.diag.message_detail
            )
            assert "CASCADE" in str(refusal.value.diag.message_hint)
            other.execute("DROP EXTENSION pg_dpml CASCADE")
            other.execute("CREATE EXTENSION pg_dpml")
            assert scalar(other, "SELECT count(*) FROM dpml.budgets") == 0
    finally:
        connection.execute("DROP DATABASE dropping WITH (FORCE)")


# What is left, for people


@pytest.mark.parametrize("rule", ["basic", "zcdp", "gdp"])
def test_as_many_runs_fit_as_were_said_to(
    dpml: Dpml, database: str, connection: psycopg.Connection, tmp_path: Path, rule: str
) -> None:
    spec = tmp_path / "people.toml"
    spec.write_text(AGES, encoding="utf-8")
    run = (str(spec), "--epsilon", "0.2", "--delta", "1e-8", "--format", "json", "--name")
    # Five runs of 0.2 by the sum of epsilons, and more by mu^2 or rho.
    open_budget(database, {"basic": "1", "zcdp": "0.5", "gdp": "0.5"}[rule], "1e-6", rule, tables=("people",))
    first = json.loads(dpml("train", *run, "m0").stdout)["budget"]
    (said,) = first["runs_left"]
    assert said["count"] > 3
    assert said["text"].startswith(f"{said['count']} more like the last run (epsilon = 0.2 and delta = 1e-08")
    for number in range(1, said["count"] + 1):
        done = dpml("train", *run, f"m{number}")
        assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["budget"]["runs_left"][0]["count"] == 0
    assert dpml("train", *run, "m").exit_code == 4
    shown = json.loads(dpml("budget", "show", "census", "--format", "json").stdout)
    assert shown["runs_left"][0]["count"] == 0
    text = dpml("budget", "show", "census").stdout
    assert "Models    no more like the last run (epsilon = 0.2 and delta = 1e-08 by " in text


@pytest.mark.parametrize(("epsilon", "share"), [("3", 0.5), ("0.7", 0.1), ("0.1", 0.01)])
def test_a_new_budget_says_how_many_models_it_pays_for(
    dpml: Dpml, database: str, epsilon: str, share: float
) -> None:
    """As an exact composition of Gaussian releases has it: so many keep the guarantee, and no more do."""
    opened = dpml(
        *("budget", "open", "census", "--epsilon", epsilon, "--delta", "1e-6", "--table", "people"),
        *("--format", "json"),
    )
    (runs,) = json.loads(opened.stdout)["runs_left"]
    assert (float(runs["epsilon"]), float(runs["delta"]), runs["method"]) == (share, 1e-6, "auto")
    mu = gaussian_mu(share, 1e-6)
    assert gaussian_delta(float(epsilon), mu * runs["count"] ** 0.5) <= 0.9e-6
    assert gaussian_delta(float(epsilon), mu * (runs["count"] + 1) ** 0.5) > 0.9e-6
    text = dpml("budget", "show", "census").stdout
    assert f"about {runs['count']} more models of epsilon = {share:g} and delta = 1e-06 by auto" in text


def test_what_train_prints_names_the_budget(dpml: Dpml, database: str, tmp_path: Path) -> None:
    spec = tmp_path / "people.toml"
    spec.write_text(AGES, encoding="utf-8")
    run = ("train", str(spec), "--epsilon", "0.5", "--delta", "1e-8")
    assert "Budget" not in dpml(*run, "--name", "free").stdout
    open_budget(database, "3", "1e-6", "gdp", tables=("people",))
    text = " ".join(dpml(*run, "--name", "m").stdout.split())
    assert "Budget census: mu^2 = " in text
    assert re.search(r"left; \d+ more like the last run \(epsilon = 0\.5 and delta = 1e-08 by ", text)


@pytest.mark.parametrize("rule", ["basic", "zcdp", "gdp"])
@pytest.mark.parametrize("training", [BOLT_ON, GAUSSIAN], ids=lambda training: training.method)
def test_a_run_that_is_too_expensive_is_told_what_fits(
    database: str, connection: psycopg.Connection, rule: str, training: TrainSpec
) -> None:
    open_budget(database, "1", "1e-5", rule)
    train(database, "m0", 0.3, training=training)
    named = set()
    for epsilon, words in (
        (
            1.1 if rule == "gdp" else 1,
            r"ask for less: at most epsilon = (\S+) at delta = 1e-06 is left for it",
        ),
        (50, r"epsilon must be at most (\S+) at delta = 1e-06 for this run: one run may cost at most what"),
    ):
        with pytest.raises(BudgetError) as refusal:
            train(database, "m", epsilon, training=training)
        found = re.search(words, str(refusal.value))
        assert found is not None, refusal.value
        named.add(found.group(1))
    assert len(named) == 1
    most = Decimal(named.pop())
    above = float(most + Decimal(1).scaleb(most.adjusted() - 2))
    with pytest.raises(BudgetError):
        train(database, "m", above, training=training)
    train(database, "m", float(most), training=training)
    # Where nothing that a run may be is left, none is named; by rule gdp there still is.
    left = "ask for less: at most" if rule == "gdp" else "what is left pays for no such run at this delta$"
    with pytest.raises(BudgetError, match=f"nothing was charged; {left}"):
        train(database, "m2", 0.3, training=training)


def test_of_two_least_epsilons_the_larger_is_named_at_once(database: str) -> None:
    open_budget(database, "1", "1e-5")
    with pytest.raises(BudgetError, match=r"too small for the precision .* still be refused") as refusal:
        pg_dpml.train(database, people.spec(dataset="census"), PrivacySpec(1e-12, 0), BOLT_ON, name="m")
    train(database, "m", float(least(str(refusal.value))))
    with pytest.raises(BudgetError, match="still be refused"):
        pg_dpml.evaluate(database, "m", "people", privacy=PrivacySpec(1e-12))


def test_terms_are_said_in_one_meaning_of_epsilon(database: str) -> None:
    open_budget(database, "3", "1e-6", "gdp", min_epsilon=Decimal("0.1"))
    with pytest.raises(BudgetError) as refusal:
        train(database, "m", 0.05, training=GAUSSIAN)
    cost = rf"{limit_of('gdp', Decimal('0.1'), Decimal('1e-6')).loss:.6g}"
    assert re.match(
        r"epsilon must be at least \S+ for this run: one run must cost at least what epsilon = 0\.1 at "
        rf"delta = 1e-06 costs by rule gdp for replace_one \(mu\^2 = {re.escape(cost)}\), as the budget of "
        r"data set census \(opened by role postgres\) has it, and this run costs mu\^2 = \S+: nothing "
        r"was charged$",
        str(refusal.value),
    )
    open_budget_named(database, "other", min_delta=Decimal("1e-9"))
    data = people.spec(dataset="other", table="copy_of_people")
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE copy_of_people AS TABLE people")
    with pytest.raises(BudgetError, match=r"has it, and this run's is 0: nothing"):
        pg_dpml.train(database, data, PrivacySpec(0.1, 0), BOLT_ON, name="m")


def test_an_amount_that_delta_alone_is_worth_is_no_epsilon(database: str) -> None:
    assert epsilon_of("gdp", Decimal("1e-20"), Decimal("1e-6")) == 0.0
    assert epsilon_of("zcdp", Decimal("1e-20"), Decimal("1e-6")) == 0.0


# Opened by mistake


def open_budget_named(dsn: str, name: str, **more: Any) -> None:
    given: dict[str, Any] = {"epsilon": Decimal(9), "delta": Decimal("0.1"), "rule": "basic"}
    with Database(dsn).session() as session:
        opening.open_budget(session, name, **(given | more))


def test_a_column_of_a_person_without_a_unit_draws_a_warning(
    dpml: Dpml, database: str, connection: psycopg.Connection, table: str
) -> None:
    connection.execute(f"CREATE TABLE {table} (patient_id int, age float8, ok boolean)".encode())
    run = ("budget", "open", "visits", "--epsilon", "3", "--delta", "1e-6", "--table", table)
    opened = dpml(*run, "--format", "json")
    assert opened.exit_code == 0
    assert "warning: column patient_id may say whose a row is" in opened.stderr
    assert "open it again with --unit patient_id" in opened.stderr
    assert json.loads(opened.stdout)["likely_units"] == ["patient_id"]
    again = dpml(*run, "--unit", "patient_id")
    assert (again.exit_code, again.stderr) == (0, "")
    assert "all rows with one value of patient_id may be" in " ".join(again.stdout.split())


@pytest.mark.parametrize("closed", [False, True])
def test_a_budget_that_nothing_was_charged_to_is_opened_again(
    dpml: Dpml, database: str, connection: psycopg.Connection, closed: bool
) -> None:
    open_budget(database, "1.0", tables=("people",))
    with pytest.raises(GuaranteeError) as refusal:
        charge(database, Guarantee(0.1, 0.0, Relation.REPLACE_ONE, "id", 3))
    fix = re.search(r"open it again for the other unit: dpml (budget open .*)$", str(refusal.value))
    assert fix is not None, refusal.value
    if closed:
        assert dpml("budget", "close", "census").exit_code == 0
    assert dpml(*fix.group(1).split()).exit_code == 0
    assert scalar(connection, "SELECT unit || tables::text FROM dpml.budgets") == "id{public.people}"
    assert not left(database).closed
    charge(database, Guarantee(0.1, 0.0, Relation.REPLACE_ONE, "id", 3), dataset=None)
    told = dpml("budget", "history", "census").stdout
    assert (
        "opened again; until then epsilon = 1, delta = 0.1 by rule basic for replace_one, unit a row" in told
    )
    with pytest.raises(SpecError, match="runs were charged to"):
        open_budget(database, "2")
    with pytest.raises(GuaranteeError) as refusal:
        charge(database)
    assert str(refusal.value).endswith('one unit of privacy; give unit = "id"')
    # Nor does a curator's own SQL change it, or undo that it was closed.
    dpml("budget", "close", "census")
    for statement in (
        "UPDATE dpml.budgets SET epsilon = 100",
        "INSERT INTO dpml.budget_entries (dataset, turn, charge_key, loss, delta, terms) "
        "VALUES ('census', 90, 'x', 0, 0, '{}')",
    ):
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
            connection.execute(statement.encode())
    assert left(database).closed


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("first", ["charge", "open"])
def test_a_charge_and_an_opening_do_not_both_happen(
    database: str, connection: psycopg.Connection, isolation: str, first: str
) -> None:
    """A charge by the old terms, and larger new ones, would be more than either allows."""
    open_budget(database, "0.1", tables=("people",))

    def reopen(session: Session) -> None:
        opening.open_budget(session, "census", epsilon=Decimal(1), delta=Decimal("0.1"), rule="basic")

    steps: dict[str, Callable[[Session], Any]] = {"charge": charge_in, "open": reopen}
    second = next(name for name in steps if name != first)

    def late() -> str:
        try:
            with Database(database).session(isolation) as session:
                look_up_table(session, "people")  # takes the snapshot
                ready.set()
                go.wait(30)
                steps[second](session)
        except DpmlError as error:
            return str(error)
        return "done"

    ready, go = threading.Event(), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        with Database(database).session() as session:
            other = pool.submit(late)
            assert ready.wait(30)
            steps[first](session)
            go.set()
            wait_for_lock(connection)
        result = other.result()
    assert result != "done", result
    epsilon = scalar(connection, "SELECT epsilon FROM dpml.budgets")
    charges = scalar(connection, "SELECT count(*) FROM dpml.budget_entries WHERE charge IS NOT NULL")
    assert (epsilon, charges) == ((Decimal("0.1"), 1) if first == "charge" else (Decimal(1), 0))


def test_a_curators_own_sql_leaves_no_gap_between_entries(
    database: str, connection: psycopg.Connection
) -> None:
    """With one, a charge and new terms that do not see each other would have different numbers."""
    open_budget(database, "0.1", tables=("people",))
    connection.execute("CREATE ROLE carol LOGIN IN ROLE dpml_curator")
    entry = "INSERT INTO dpml.budget_entries (dataset, turn, charge_key, loss, delta, terms) VALUES "
    with psycopg.connect(database.replace("user='postgres'", "user='carol'"), autocommit=True) as carol:
        for turn in (-7, 0, 2, 90):
            for terms in ("'{}'", "NULL"):
                with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="does not follow"):
                    carol.execute(f"{entry} ('census', {turn}, 'x', 0, 0, {terms})".encode())
        with psycopg.connect(database.replace("user='postgres'", "user='carol'")) as older:
            older.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            older.execute("SELECT FROM dpml.budgets")
            carol.execute(f"{entry} ('census', 1, 'x', 0, 0, '{{}}')".encode())
            charge(database)
            with pytest.raises(psycopg.errors.UniqueViolation):
                older.execute("UPDATE dpml.budgets SET loss_limit = 100")
    turns = scalar(connection, "SELECT array_agg(turn ORDER BY turn) FROM dpml.budget_entries")
    assert turns == [1, 2]
    connection.execute("DROP OWNED BY carol; DROP ROLE carol")


def wait_for_lock(connection: psycopg.Connection) -> None:
    """Until some session waits for a lock, of a row or of who has it."""
    query = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock')"
    for _ in range(1000):
        if scalar(connection, query):
            return
        time.sleep(0.01)
    raise AssertionError("nobody waits")


# One table, one budget


RELATIONS = {
    "itself": "people",
    "view": "CREATE VIEW other AS SELECT * FROM people WHERE age > 3",
    "view of a view": "CREATE VIEW one AS TABLE people; CREATE VIEW other AS TABLE one",
    "materialized view": "CREATE MATERIALIZED VIEW other AS TABLE people",
    "function": "CREATE FUNCTION all_people() RETURNS SETOF people STABLE "
    "BEGIN ATOMIC SELECT * FROM people; END; CREATE VIEW other AS SELECT * FROM all_people()",
    "child": "CREATE TABLE other () INHERITS (people)",
    "parent": "CREATE TABLE other (LIKE people); ALTER TABLE people INHERIT other",
}
UNDO = (
    "DROP VIEW IF EXISTS other; DROP VIEW IF EXISTS one; DROP FUNCTION IF EXISTS all_people",
    "DROP MATERIALIZED VIEW IF EXISTS other",
    "ALTER TABLE people NO INHERIT other; DROP TABLE other",
    "DROP TABLE IF EXISTS other",
)


@pytest.fixture
def undo(connection: psycopg.Connection) -> Iterator[None]:
    """No relation of RELATIONS is left."""
    yield
    for statement in UNDO:
        with suppress(psycopg.Error):
            connection.execute(statement.encode())


@pytest.mark.usefixtures("undo")
@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("kind", RELATIONS)
def test_a_table_is_not_in_a_second_budget(
    database: str, connection: psycopg.Connection, kind: str, closed: bool, listed: bool
) -> None:
    """Nor one that shows its rows; whether a budget lists it, or a spec named the data set."""
    open_budget(database, tables=("people",) if listed else ())
    charge(database)
    if closed:
        with Database(database).session() as session:
            budgets.close_budget(session, "census")
    other = "people"
    if kind != "itself":
        connection.execute(RELATIONS[kind].encode())
        other = "other"
    with pytest.raises(GuaranteeError, match=r"in the budget of data set census already, .* superuser"):
        open_budget_named(database, "second", tables=(other,))
    open_budget_named(database, "second")
    with pytest.raises(GuaranteeError, match="belongs to data set census, not second"):
        charge(database, dataset="second", table=other)
    with Database(database).session() as session:
        found = claims.budget_of(session, look_up_table(session, other), None)
        assert (None if found is None else found.dataset) == ("census" if listed else None)


def test_a_refused_second_budget_is_told_by_names_as_they_are_typed(
    database: str, connection: psycopg.Connection
) -> None:
    """The command names the table with its schema, and quotes what a shell would take apart."""
    connection.execute('CREATE SCHEMA wards; CREATE TABLE wards."My Visits" AS SELECT 1 AS id')
    try:
        open_budget_named(database, "the first", tables=('wards."My Visits"',))
        command = "dpml budget open 'the second' --table 'wards.My Visits' --allow-second-budget"
        with pytest.raises(GuaranteeError, match=f'data set "the first" already.*{command}') as refused:
            open_budget_named(database, "the second", tables=('wards."My Visits"',))
        assert str(refused.value).startswith('table "My Visits", or')
        with Database(database).session() as session:
            assert look_up_table(session, "wards.My Visits").name == "My Visits"
    finally:
        connection.execute("DROP SCHEMA wards CASCADE")


def test_a_table_named_twice_is_listed_once(database: str) -> None:
    open_budget(database, tables=("people", "public.people", '"people"', "pets"))
    with Database(database).session() as session:
        assert budgets.load_budget(session, "census").tables == ("public.people", "public.pets")


def test_rows_of_other_tables_are_not_in_it(database: str, connection: psycopg.Connection) -> None:
    connection.execute(
        "CREATE TABLE parts (id int, year int) PARTITION BY LIST (year); "
        "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES IN (1); "
        "CREATE TABLE parts_2 PARTITION OF parts FOR VALUES IN (2)"
    )
    try:
        open_budget(database, tables=("parts_1", "pets"))
        open_budget_named(database, "second", tables=("parts_2",))
        with pytest.raises(GuaranteeError, match="census, second already"):
            open_budget_named(database, "whole", tables=("parts",))
        # A part that comes later is found when it is read.
        connection.execute("CREATE TABLE more (LIKE parts); ALTER TABLE parts DETACH PARTITION parts_2")
        open_budget_named(database, "third", tables=("more",))
        connection.execute("ALTER TABLE parts ATTACH PARTITION more FOR VALUES IN (3)")
        with pytest.raises(GuaranteeError, match="belongs to data set census, third, not second"):
            charge(database, dataset="second", table="parts")
    finally:
        connection.execute("DROP TABLE parts; DROP TABLE IF EXISTS parts_2")


def test_a_renamed_table_is_the_same_and_a_new_one_of_its_name_too(
    database: str, connection: psycopg.Connection
) -> None:
    open_budget(database, tables=("people",))
    connection.execute("ALTER TABLE people RENAME TO citizens; CREATE TABLE people (LIKE citizens)")
    try:
        for name in ("citizens", "people"):
            with pytest.raises(GuaranteeError, match="census already"):
                open_budget_named(database, "second", tables=(name,))
        charge(database, dataset=None, table="citizens")
        assert left(database).entries == 1
    finally:
        connection.execute("DROP TABLE people; ALTER TABLE citizens RENAME TO people")


def test_a_budget_closed_unused_keeps_no_table(database: str) -> None:
    open_budget(database, tables=("people",))
    with Database(database).session() as session:
        budgets.close_budget(session, "census")
    with pytest.raises(BudgetError, match="closed"):
        charge(database, dataset=None)
    open_budget_named(database, "second", tables=("people",))
    charge(database, dataset=None)
    with pytest.raises(GuaranteeError, match="second already"):
        open_budget(database, tables=("people",))
    open_budget(database)  # again, for no table
    assert charge(database, dataset="second").entry


def test_only_a_superuser_allows_a_second_budget(
    dpml: Dpml, database: str, connection: psycopg.Connection
) -> None:
    connection.execute("CREATE ROLE carol LOGIN IN ROLE dpml_curator; GRANT SELECT ON people TO carol")
    try:
        carol = database.replace("user='postgres'", "user='carol'")
        open_budget(carol, tables=("people",))
        allow: dict[str, Any] = {"tables": ("people",), "shared": True}
        for dsn in (carol, f"{database} options='-c role=carol'"):
            with pytest.raises(DpmlError, match="role carol may not open a second budget"):
                open_budget_named(dsn, "second", **allow)
        for statement in (
            "INSERT INTO dpml.budgets (dataset, rule, epsilon, delta, relation, tables, min_epsilon, "
            "min_delta, max_delta, loss_limit, delta_limit, shared) "
            "VALUES ('x', 'basic', 1, 0, 'replace_one', '{}', 1, 0, 0, 1, 0, true)",
            "UPDATE dpml.budgets SET shared = true",
            "DELETE FROM dpml.budget_relations",
            "UPDATE dpml.budget_relations SET relation = 0",
            "TRUNCATE dpml.budget_turn",
        ):
            with psycopg.connect(carol) as other, pytest.raises(psycopg.errors.InsufficientPrivilege):
                other.execute(statement.encode())
        shown = dpml(
            *("budget", "open", "second", "--epsilon", "1", "--delta", "1e-6", "--table", "people"),
            "--allow-second-budget",
        )
        assert shown.exit_code == 0, shown.stderr
        assert "Shared    a table may be in an earlier budget, too: allowed by postgres" in shown.stdout
        with pytest.raises(SpecError, match=r"several budgets.*census, second"):
            charge(carol, dataset=None)
        for name in ("census", "second"):
            charge(carol, dataset=name)
        with pytest.raises(GuaranteeError, match="census, second already"):
            open_budget_named(database, "third", tables=("people",))
    finally:
        connection.execute("DROP OWNED BY carol; DROP ROLE carol")


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("by_charge", [False, True])
def test_of_ten_budgets_on_one_table_one_is_opened(
    database: str, connection: psycopg.Connection, isolation: str, by_charge: bool
) -> None:
    """Or, where none lists the table, one is charged for it."""
    start = threading.Barrier(10, timeout=60)
    if by_charge:
        for number in range(10):
            open_budget_named(database, f"b{number}")

    def ask(number: int) -> bool:
        try:
            with Database(database).session(isolation) as session:
                look_up_table(session, "people")  # takes the snapshot
                start.wait()
                if by_charge:
                    charge_in(session, dataset=f"b{number}")
                else:
                    given: dict[str, Any] = {"epsilon": Decimal(9), "delta": Decimal("0.1"), "rule": "basic"}
                    opening.open_budget(session, f"b{number}", tables=("people",), **given)
        except DpmlError:
            return False
        return True

    with ThreadPoolExecutor(10) as pool:
        assert sum(pool.map(ask, range(10))) == 1
    table = "dpml.budget_entries" if by_charge else "dpml.budgets"
    assert scalar(connection, f"SELECT count(*) FROM {table}") == 1


def test_a_restored_dump_knows_tables_by_their_names(
    server: EmbeddedServer, database: str, connection: psycopg.Connection, tmp_path: Path
) -> None:
    open_budget(database, tables=("people",))
    open_budget_named(database, "alias")
    charge(database, dataset="alias", table="pets")
    open_budget(database, "2", tables=("people",))  # again, so that its row comes last
    file = str(tmp_path / "dump")
    folder = find_pg_config(server.major).parent
    subprocess.run([folder / "pg_dump", "--file", file, "--dbname", database], check=True)
    connection.execute("CREATE DATABASE restored_tables")
    copy = server.dsn_of("restored_tables")
    try:
        done = subprocess.run(
            [folder / "psql", "-Xqv", "ON_ERROR_STOP=1", "-o", "/dev/null", "-f", file, copy],
            check=False,
            capture_output=True,
            text=True,
        )
        assert (done.returncode, done.stderr) == (0, "")
        for name, owner in (("people", "census"), ("pets", "alias")):
            with pytest.raises(GuaranteeError, match=f"{owner} already"):
                open_budget_named(copy, "second", tables=(name,))
            charge(copy, dataset=owner, table=name)
        with psycopg.connect(copy, autocommit=True) as other:
            other.execute("ALTER TABLE pets RENAME TO animals")
        with pytest.raises(GuaranteeError, match="alias already"):
            open_budget_named(copy, "second", tables=("animals",))
    finally:
        connection.execute("DROP DATABASE restored_tables WITH (FORCE)")


# The commands


def test_the_commands(dpml: Dpml, database: str) -> None:
    opened = dpml(
        *("budget", "open", "census", "--epsilon", "1.0", "--delta", "1e-6", "--rule", "basic"),
        *("--table", "people", "--min-epsilon", "0.01", "--min-delta", "0", "--max-delta", "1e-7"),
    )
    assert (opened.exit_code, opened.stderr) == (0, "")
    assert "One run   epsilon from 0.01 to 1, delta from 0 to 1e-07\n" in opened.stdout
    assert "epsilon = 1, delta = 1e-06 by rule basic" in opened.stdout
    assert "public.people" in opened.stdout
    assert "Warning" not in opened.stdout
    charge(database)
    shown = json.loads(dpml("budget", "show", "census", "--format", "json").stdout)
    assert (shown["epsilon"], shown["left"]["loss"], shown["closed"]) == ("1.0", "0.9", False)
    assert (shown["min_epsilon"], shown["min_delta"], shown["max_delta"]) == ("0.01", "0", "1E-7")
    listed = dpml("budget", "history", "census")
    assert "epsilon = 0.1 and delta = 0, entry" in listed.stdout
    entries = json.loads(dpml("budget", "history", "census", "--format", "json").stdout)["entries"]
    assert [entry["loss"] for entry in entries] == ["0.1"]
    assert dpml("budget", "close", "census").exit_code == 0
    again = dpml("budget", "close", "census")
    assert (again.exit_code, again.stdout) == (4, "")
    assert "closed" in dpml("budget", "show", "census").stdout
    with pytest.raises(BudgetError, match="closed"):
        charge(database)
    assert dpml("budget", "open", "census", "--epsilon", "1", "--delta", "0").exit_code == 2
    assert dpml("budget", "show", "nobody").exit_code == 2
    assert dpml("budget", "open", "x", "--epsilon", "one", "--delta", "0").exit_code == 2


def test_a_refusal_is_exit_code_4_and_says_what_is_left(database: str, tmp_path: Path) -> None:
    open_budget(database, "0.5", "1e-5")
    charge(database)
    spec = tmp_path / "people.toml"
    spec.write_text(
        'table = "people"\ndataset = "census"\n[label]\ncolumn = "rich"\npositive = "yes"\n'
        "[columns.age]\nlower = 0\nupper = 100\n",
        encoding="utf-8",
    )
    command = "import sys; from pg_dpml.cli import main; main()"
    options = ("--epsilon", "0.5", "--delta", "1e-6", "--name", "m", "--dsn", database)
    done = subprocess.run(
        [sys.executable, "-c", command, "train", str(spec), *options],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (4, ""), done.stderr
    assert (
        "the budget of data set census (epsilon = 0.5, delta = 1e-05 by rule basic) has epsilon = 0.4"
        in done.stderr
    )
    assert "this run costs epsilon = 0.5 and delta = 1e-06: nothing was charged" in done.stderr
    assert left(database).entries == 1


def test_a_plan_says_what_it_would_cost(dpml: Dpml, database: str, tmp_path: Path) -> None:
    spec = tmp_path / "people.toml"
    spec.write_text(
        'table = "people"\n[label]\ncolumn = "rich"\npositive = "yes"\n'
        "[columns.age]\nlower = 0\nupper = 100\n",
        encoding="utf-8",
    )
    plan = ("plan", str(spec), "--delta", "1e-6", "--epsilon")
    assert "Budget" not in dpml(*plan, "0.3").stdout
    open_budget(database, "0.5", "1e-5", tables=("people",))
    charge(database)
    found = [
        json.loads(dpml(*plan, epsilon, "--format", "json").stdout)["budget"] for epsilon in ("0.4", "0.5")
    ]
    assert found[0] == {
        "dataset": "census",
        "cost": {"loss": "0.4", "delta": "0.000001"},
        "left": {"loss": "0.4", "delta": "0.00001"},
        "fits": True,
        "breach": None,
    }
    assert (found[1]["fits"], found[1]["breach"]) == (False, None)
    done = dpml(*plan, "0.5")
    assert done.exit_code == 0, done.stderr + repr(done.exception)
    text = " ".join(done.stdout.split())
    assert (
        "Budget census: the run costs epsilon = 0.5 and delta = 1e-06; left: epsilon = 0.4 and "
        "delta = 1e-05; the run would be refused" in text
    )
    small = json.loads(dpml(*plan, "1e-5", "--format", "json").stdout)["budget"]
    assert (small["fits"], least(small["breach"])) == (False, "0.0005")
    text = " ".join(dpml(*plan, "1e-5").stdout.split())
    assert "the run would be refused: epsilon must be at least 0.0005 for this run" in text
    dpml("budget", "close", "census")
    assert "it is closed; the run would be refused" in " ".join(dpml(*plan, "0.1").stdout.split())
