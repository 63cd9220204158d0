# SPDX-License-Identifier: PostgreSQL
"""Budgets: nobody gets more than is left, whatever happens to sessions, tables and databases."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
from typer.testing import CliRunner, Result

import people
import pg_dpml
from people import create_people, make_people
from pg_dpml import budgets
from pg_dpml.cli import app
from pg_dpml.database import Database, Session
from pg_dpml.embedded import EmbeddedServer, find_pg_config
from pg_dpml.errors import BudgetError, DpmlError, GuaranteeError, SpecError
from pg_dpml.methods.plan import Guarantee
from pg_dpml.privacy.budget import Cost, limit_of
from pg_dpml.privacy.mechanisms import gaussian_mu
from pg_dpml.privacy.relation import Relation
from pg_dpml.spec import PrivacySpec, TrainSpec
from sqltools import scalar

pytestmark = pytest.mark.usefixtures("clean")

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


def open_budget(dsn: str, epsilon: str = "1.0", delta: str = "0.1", rule: str = "basic", **more: Any) -> None:
    with Database(dsn).session() as session:
        budgets.open_budget(
            session, "census", epsilon=Decimal(epsilon), delta=Decimal(delta), rule=rule, **more
        )


def left(dsn: str) -> budgets.Left:
    with Database(dsn).session() as session:
        return budgets.left_of(session, budgets.load_budget(session, "census"))


def entries(dsn: str) -> list[budgets.Entry]:
    with Database(dsn).session() as session:
        return budgets.history(session, "census")


def charge(
    dsn: str,
    guarantee: Guarantee = TENTH,
    *,
    isolation: str = "READ COMMITTED",
    request: str | None = None,
    dataset: str | None = "census",
) -> budgets.Charged:
    """As a run does."""
    with Database(dsn).session(isolation) as session:
        return charge_in(session, guarantee, request, dataset)


def charge_in(
    session: Session,
    guarantee: Guarantee = TENTH,
    request: str | None = None,
    dataset: str | None = "census",
) -> budgets.Charged:
    return budgets.charge(
        session,
        session.relation("people"),
        guarantee,
        None,
        at_epsilon=lambda epsilon: (replace(guarantee, epsilon=epsilon), None),
        dataset=dataset,
        model="m",
        method="bolt-on",
        n_rows=N,
        mechanism={},
        request=request,
    )


def train(
    dsn: str,
    name: str,
    epsilon: float = 0.1,
    *,
    request: str | None = None,
    training: TrainSpec = BOLT_ON,
    **changes: Any,
) -> pg_dpml.TrainResult:
    data = people.spec(**({"dataset": "census"} | changes))
    return pg_dpml.train(dsn, data, PrivacySpec(epsilon, 1e-6), training, name=name, request=request)


Dpml = Callable[..., Result]


@pytest.fixture
def dpml(database: str) -> Dpml:
    def run(*arguments: str) -> Result:
        return CliRunner().invoke(app, [*arguments, "--dsn", database])

    return run


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
    assert left(database) == budgets.Left(10, False, Cost(Decimal(0), Decimal("0.1")))
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
            session.relation("people")  # takes the snapshot
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
        train(database, "m", request="r")
    assert left(database).cost.loss == Decimal("0.9")
    with pytest.raises(SpecError, match="stored no model"):
        train(database, "m", request="r")
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
        budgets.open_budget(
            *(session, "strict"),
            epsilon=Decimal(1),
            delta=Decimal("1e-9"),
            rule="basic",
            min_epsilon=Decimal("0.3"),
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
    first = train(database, "m", request="monday")
    again = train(database, "m", request="monday")
    assert again.model.weights.tolist() == first.model.weights.tolist()
    assert scalar(connection, "SELECT count(*) FROM dpml.ledger") == left(database).entries == 1
    with pytest.raises(SpecError, match="made model m"):
        train(database, "other", request="monday")
    train(database, "other", request="tuesday")
    assert left(database).entries == 2

    def ask(_: int) -> budgets.Charged:
        return charge(database, request="wednesday")

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
        budgets.open_budget(session, "other", epsilon=Decimal(9), delta=Decimal("1e-9"), rule="basic")
    with pytest.raises(GuaranteeError, match="belongs to data set census, not other"):
        train(database, "m2", dataset="other")
    assert scalar(connection, "SELECT count(*) FROM dpml.ledger") == 1
    with Database(database).session() as session:
        budgets.open_budget(
            session, "third", epsilon=Decimal(9), delta=Decimal("0.1"), rule="basic", tables=("people",)
        )
    with pytest.raises(SpecError, match=r"several budgets.*census, third"):
        train(database, "m2", dataset=None)


def test_without_a_budget_only_the_ledger_is_written(database: str, connection: psycopg.Connection) -> None:
    train(database, "m", dataset=None)
    assert scalar(connection, "SELECT count(*) FROM dpml.ledger") == 1
    with pytest.raises(SpecError, match="no budget: dpml budget open census"):
        train(database, "m2")
    with pytest.raises(SpecError, match="request goes with a budget"):
        train(database, "m2", dataset=None, request="r")
    assert scalar(connection, "SELECT count(*) FROM dpml.ledger") == 1


def test_another_unit_is_refused(database: str) -> None:
    open_budget(database, unit="id")
    with pytest.raises(GuaranteeError, match="is for unit = id, and this run has no unit"):
        charge(database)
    charge(database, Guarantee(0.1, 0.0, Relation.REPLACE_ONE, "id", 3))


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
        ({"max_delta": Decimal("NaN")}, "max_delta must be in"),
    ],
)
def test_bad_arguments(database: str, change: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        open_budget(database, **change)
    open_budget(database)
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
    for statement in ("DELETE FROM dpml.budget_entries", "UPDATE dpml.budgets SET loss_limit = 100"):
        with psycopg.connect(carol) as other, pytest.raises(psycopg.errors.InsufficientPrivilege):
            other.execute(statement.encode())
    connection.execute("REVOKE dpml_curator FROM carol; GRANT dpml_analyst TO carol")
    with pytest.raises(SpecError, match="GRANT dpml_curator"):
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
    train(database, "m", request="r")
    charge(database)
    with Database(database).session() as session:
        budgets.open_budget(session, "shut", epsilon=Decimal(1), delta=Decimal("1e-9"), rule="basic")
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
            charge(copy, dataset="shut")
        assert train(copy, "m", request="r").model.charge == last - 1
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
    assert (done.returncode, done.stdout) == (4, "")
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
    text = " ".join(dpml(*plan, "0.5").stdout.split())
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
