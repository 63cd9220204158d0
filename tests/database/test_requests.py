# SPDX-License-Identifier: PostgreSQL
"""Training without SELECT: what an analyst gets by asking, and what no analyst gets by any means."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import errors
from typer.testing import CliRunner

from helpers.faultproxy import FaultProxy, Loss
from helpers.people import create_people, make_people
from helpers.sqltools import scalar
from pg_dpml.cli.framework import app
from pg_dpml.database.database import Database
from pg_dpml.errors import BudgetError, DpmlError, GuaranteeError, SpecError
from pg_dpml.ledger import budgets, opening
from pg_dpml.privacy.gaussian import gaussian_mu
from pg_dpml.runs import datasets, requests
from pg_dpml.runs.train import train_model
from pg_dpml.server import maintenance
from pg_dpml.server.embedded import EmbeddedServer, find_pg_config

pytestmark = [pytest.mark.usefixtures("clean"), pytest.mark.dealt]

N = 200
TENTH = {"privacy": {"epsilon": 0.1, "delta": 1e-6}, "training": {"method": "bolt-on", "passes": 1}}
SPEC = """
table = "people"
[label]
column = "rich"
positive = "yes"
[columns.town]
levels = ["Aix", "Bonn", "Cork"]
[columns.age]
lower = 0
upper = 100
"""
SLOW = SPEC.replace('"people"', '"slow"\ndefinition_is_public = true')
SERVE = (sys.executable, "-c", "from pg_dpml.cli import main; main()", "serve", "--once", "--dsn")
HELD = 4711  # the advisory lock that rows of table slow wait for
ASK_OWNER = "ask role owner, which serves data set census"
ROLES = ("owner", "clerk", "ana", "ben", "eve")


def of(role: str, dsn: str) -> str:
    """The connection string with another role."""
    return dsn.replace("user='postgres'", f"user='{role}'")


@pytest.fixture(scope="module", autouse=True)
def world(database: str) -> Iterator[None]:
    """Curators owner and clerk, of whom owner may read the tables; analysts ana and ben; eve is neither."""
    with psycopg.connect(database, autocommit=True) as connection:
        create_people(connection, make_people(N))
        connection.execute(
            f"""
            CREATE ROLE owner LOGIN IN ROLE dpml_curator;
            CREATE ROLE clerk LOGIN IN ROLE dpml_curator;
            CREATE ROLE ana LOGIN IN ROLE dpml_analyst;
            CREATE ROLE ben LOGIN IN ROLE dpml_analyst;
            CREATE ROLE eve LOGIN;
            CREATE FUNCTION slowly(float8) RETURNS float8 STABLE LANGUAGE plpgsql
                AS 'BEGIN PERFORM pg_advisory_xact_lock_shared({HELD}); RETURN $1; END';
            CREATE VIEW slow AS SELECT id, slowly(age) AS age, town, rich FROM people;
            GRANT SELECT ON people, slow TO owner;
            """.encode()
        )
    yield
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"DROP OWNED BY {', '.join(ROLES)}; DROP ROLE {', '.join(ROLES)}".encode())


def open_budget(dsn: str, name: str = "census", epsilon: str = "1.0", by: str = "owner") -> None:
    with Database(of(by, dsn)).session() as session:
        opening.open_budget(session, name, epsilon=Decimal(epsilon), delta=Decimal("0.1"), rule="basic")


def register(dsn: str, spec: str = SPEC, name: str = "census", by: str = "owner", **more: Any) -> None:
    with Database(of(by, dsn)).session() as session:
        datasets.register(session, name, spec, **more)


def offer(
    dsn: str,
    spec: str = SPEC,
    name: str = "census",
    *,
    epsilon: str = "1.0",
    by: str = "owner",
    **more: Any,
) -> None:
    """Open a budget by rule basic, and register the data set."""
    open_budget(dsn, name, epsilon, by)
    register(dsn, spec, name, by, **more)


def withdraw(dsn: str, name: str = "census") -> None:
    with Database(of("owner", dsn)).session() as session:
        assert not datasets.withdraw(session, name).offered


def as_role(role: str, dsn: str, query: str, values: tuple[Any, ...] = ()) -> None:
    with psycopg.connect(of(role, dsn), autocommit=True) as other:
        other.execute(query.encode(), values)


def ask(dsn: str, model: str, options: Any = TENTH, role: str = "ana", dataset: str = "census") -> int:
    """File a request."""
    with psycopg.connect(of(role, dsn)) as analyst:
        text = options if isinstance(options, str) else json.dumps(options)
        return int(scalar(analyst, "SELECT dpml.request(%s, %s, %s)", dataset, model, text))


def serve(dsn: str, role: str = "owner") -> list[str]:
    """Answer all that waits; a line for each."""
    lines: list[str] = []
    requests.serve(Database(of(role, dsn)), once=True, report=lines.append)
    return lines


def outcome(connection: psycopg.Connection, request: int) -> tuple[str, str, int | None]:
    query = "SELECT state, coalesce(message, ''), charge FROM dpml.requests WHERE id = %s"
    row = connection.execute(query, (request,)).fetchone()
    assert row is not None
    return row


def entries(connection: psycopg.Connection) -> int:
    return int(scalar(connection, "SELECT count(*) FROM dpml.budget_entries"))


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@contextmanager
def held(connection: psycopg.Connection, dsn: str) -> Iterator[None]:
    """A run on table slow, under way: charged, and at its first row."""
    connection.execute("SELECT pg_advisory_lock(%s)", (HELD,))
    try:
        with ThreadPoolExecutor(1) as pool:
            run = pool.submit(serve, dsn)
            until(lambda: waits(connection))
            try:
                yield
            finally:
                connection.execute("SELECT pg_advisory_unlock_all()")
            run.result()
    finally:
        connection.execute("SELECT pg_advisory_unlock_all()")


def waits(connection: psycopg.Connection) -> bool:
    query = "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid = %s AND NOT granted)"
    return bool(scalar(connection, query, HELD))


# What an analyst gets


def test_who_may_not_train_is_told_what_may_be_requested(database: str, tmp_path: Path) -> None:
    """An analyst of a data set, at the command line; who is offered none hears of the GRANT alone."""
    spec = tmp_path / "census.toml"
    spec.write_text(SPEC, encoding="utf-8")

    def refused(role: str) -> str:
        arguments = ["train", str(spec), "--epsilon", "0.1", "--name", "m", "--dsn", of(role, database)]
        answer = CliRunner().invoke(app, arguments)
        assert answer.exit_code == 2, answer.output
        return answer.output

    ask_owner = "only curators (members of dpml_curator) may do that; ask the owner of the data"
    request = ", or ask in SQL for a model of census: SELECT dpml.request(...)"
    told = refused("ana")
    assert ask_owner in told
    assert request not in told
    offer(database)
    told = refused("ana")
    assert ask_owner + request in told
    assert "GRANT" not in told
    told = refused("eve")
    assert "it takes GRANT dpml_curator" in told
    assert "census" not in told


@pytest.mark.parametrize("training", [{"method": "bolt-on"}, {}, {"method": "dp-sgd", "passes": 1}])
def test_who_may_not_read_the_table_gets_a_model(
    database: str, connection: psycopg.Connection, training: dict[str, Any]
) -> None:
    offer(database, epsilon="2")
    request = ask(database, "m", {"privacy": {"epsilon": 1}, "training": training})
    assert outcome(connection, request) == ("waiting", "", None)
    assert serve(database) == [f"request {request} by 'ana' on 'census': done"]
    charge = scalar(connection, "SELECT id FROM dpml.ledger WHERE epsilon = 1 AND charged_by = 'owner'")
    assert outcome(connection, request) == ("done", "", charge)
    assert scalar(connection, "SELECT owner FROM dpml.models WHERE charge = %s", charge) == "ana"
    with psycopg.connect(of("ana", database)) as ana:
        predict = "SELECT dpml.predict('m', t) FROM (SELECT 90.0::float8 AS age, 'Cork' AS town) t"
        assert scalar(ana, predict) in ("yes", "not yes")
        with pytest.raises(errors.InsufficientPrivilege):
            ana.execute("SELECT FROM people")


def test_the_procedure_waits_for_the_model(database: str, connection: psycopg.Connection) -> None:
    offer(database, max_epsilon=Decimal("0.5"))
    notices: list[str] = []

    def call(epsilon: float) -> None:
        with psycopg.connect(of("ana", database), autocommit=True) as ana:
            ana.add_notice_handler(lambda notice: notices.append(str(notice.message_primary)))
            options = json.dumps(TENTH | {"privacy": {"epsilon": epsilon}})
            ana.execute("CALL dpml.train('census', 'm', %s)", (options,))

    with ThreadPoolExecutor(1) as pool:
        for epsilon in (0.1, 3):
            done = pool.submit(call, epsilon)
            until(lambda: serve(database))
            if epsilon == 0.1:
                done.result()
                assert notices == ["model m is ready"]
            else:
                with pytest.raises(errors.RaiseException, match=r"was refused: epsilon must be at most 0\.5"):
                    done.result()
    assert entries(connection) == 1


def test_the_procedure_says_how_to_call_it(database: str, connection: psycopg.Connection) -> None:
    """It commits what it files, and so can do neither in a transaction of the caller's."""
    offer(database)
    call = "CALL dpml.train('census', 'm', '{\"privacy\": {\"epsilon\": 0.1}}')"
    body = f"AS $$ BEGIN {call}; END $$"
    connection.execute("CREATE SCHEMA calls; GRANT USAGE ON SCHEMA calls TO ana")
    connection.execute(f"CREATE FUNCTION calls.f() RETURNS void LANGUAGE plpgsql {body}".encode())
    connection.execute(f"CREATE PROCEDURE calls.p() LANGUAGE plpgsql {body}".encode())
    caught = f"DO $$ BEGIN {call}; EXCEPTION WHEN no_data_found THEN NULL; END $$"
    own_path = f"DO $$ BEGIN {call}; END $$"
    refused = [
        (True, f"BEGIN; {call}"),
        (True, f"SELECT 1; {call}"),
        (True, "SELECT calls.f()"),
        (True, caught),
        (False, call),  # a driver that begins a transaction by itself
        (False, own_path),
        (False, "CALL calls.p()"),
    ]
    for autocommit, statement in refused:
        with psycopg.connect(of("ana", database), autocommit=autocommit) as ana:
            with pytest.raises(errors.InvalidTransactionTermination) as refusal:
                ana.execute(statement.encode())
            assert refusal.value.diag.message_primary == (
                "dpml.train waits for the model, and cannot do so inside a transaction"
            )
            hint = str(refusal.value.diag.message_hint)
            assert "autocommit" in hint
            assert "dpml.request" in hint
    assert serve(database) == []
    for statement in (own_path, "CALL calls.p()"):  # with autocommit they do
        with ThreadPoolExecutor(1) as pool, psycopg.connect(of("ana", database), autocommit=True) as ana:
            done = pool.submit(ana.execute, statement.encode())
            until(lambda: serve(database))
            done.result()
        assert scalar(connection, "DELETE FROM dpml.models WHERE name = 'm' RETURNING name") == "m"
    connection.execute("DROP SCHEMA calls CASCADE")


SHORT = """
table = "people"
[label]
column = "rich"
positive = "yes"
[columns.town]
levels = ["Aix", "Bonn", "Cork"]
[columns.age]
lower = 0
upper = 100
[columns.gain]
lower = 0
upper = 1000
[columns.married]
[columns.height]
lower = 100
upper = 250
"""
"""Of a model with eight weights."""


@pytest.mark.one_major
@pytest.mark.parametrize("rule", ["gdp", "zcdp"])
def test_a_tenth_by_bolt_on_on_a_short_model_costs_a_tenth(
    database: str, connection: psycopg.Connection, rule: str
) -> None:
    """Below about 20 weights K-norm noise is the smaller one, and costs such budgets as pure privacy does."""
    with Database(of("owner", database)).session() as session:
        opening.open_budget(session, "census", epsilon=Decimal(3), delta=Decimal("1e-6"), rule=rule)
    register(database, SHORT, max_epsilon=Decimal("0.1"))
    privacy = {"epsilon": 0.1, "delta": 6.25e-8}
    request = ask(database, "m", {"privacy": privacy, "training": {"method": "bolt-on"}})
    serve(database)
    assert outcome(connection, request)[0] == "done", outcome(connection, request)
    noise = "SELECT privacy #>> '{noise,kind}' FROM dpml.models"
    assert scalar(connection, noise) == "gaussian"
    mechanism = "SELECT mechanism ->> 'kind' FROM dpml.ledger"
    assert scalar(connection, mechanism) == "gaussian"
    loss = float(scalar(connection, "SELECT loss FROM dpml.budget_entries"))
    mu = gaussian_mu(0.1, 6.25e-8)
    assert loss == pytest.approx(mu**2 if rule == "gdp" else mu**2 / 2, rel=1e-6)


@pytest.mark.one_major
def test_of_twelve_tenths_ten_fit(database: str, connection: psycopg.Connection) -> None:
    offer(database)
    asked = [ask(database, f"m{number}", role=("ana", "ben")[number % 2]) for number in range(12)]
    serve(database)
    outcomes = [outcome(connection, request) for request in asked]
    assert [state for state, _, _ in outcomes] == ["done"] * 10 + ["refused"] * 2
    assert outcomes[11][1].endswith("nothing was charged; what is left pays for no such run at this delta")
    assert entries(connection) == scalar(connection, "SELECT count(*) FROM dpml.models") == 10
    assert scalar(connection, "SELECT sum(epsilon) FROM dpml.ledger") == 1


@pytest.mark.one_major
@pytest.mark.parametrize(
    ("rule", "privacy"),
    [
        ("basic", {"epsilon": 0.1, "relation": "add_remove"}),
        ("gdp", {"epsilon": 0.1, "delta": 0.1}),
        ("zcdp", {"epsilon": 0.1, "delta": 0.1}),
    ],
)
def test_a_request_costs_no_more_than_one_may(
    database: str, connection: psycopg.Connection, rule: str, privacy: dict[str, Any]
) -> None:
    """By the rule and relation of the budget, whatever its own epsilon seems to say."""
    with Database(of("owner", database)).session() as session:
        opening.open_budget(session, "census", epsilon=Decimal(3), delta=Decimal("1e-6"), rule=rule)
    register(database, max_epsilon=Decimal("0.1"))
    refused = ask(database, "m", {"privacy": privacy, "training": {"method": "dp-gd"}})
    fine = ask(database, "m", {"privacy": {"epsilon": 0.1, "delta": 1e-7}, "training": {"method": "dp-gd"}})
    serve(database)
    assert outcome(connection, refused)[0] == "refused"
    assert (
        "one run may cost at most what epsilon = 0.1 at delta = 1e-06 costs"
        in outcome(connection, refused)[1]
    )
    assert outcome(connection, fine)[0] == "done"


@pytest.mark.one_major
@pytest.mark.parametrize("rule", ["basic", "zcdp", "gdp"])
def test_a_request_costs_no_less_than_one_must(
    database: str, connection: psycopg.Connection, rule: str
) -> None:
    """By default a thousandth of the budget; the refusal names the least epsilon, which then is enough."""
    with Database(of("owner", database)).session() as session:
        opening.open_budget(session, "census", epsilon=Decimal(3), delta=Decimal("1e-5"), rule=rule)

    def least(**terms: Any) -> str:
        register(database, **terms)
        training = {"method": "dp-gd"}
        refused = ask(database, "m", {"privacy": {"epsilon": 1e-4, "delta": 1e-6}, "training": training})
        serve(database)
        state, message, charge = outcome(connection, refused)
        assert (state, charge) == ("refused", None)
        assert scalar(connection, "SELECT count(*) FROM dpml.ledger") == entries(connection)
        assert "as data set census (registered by role owner) has it" in message
        epsilon = re.findall(r"epsilon must be at least (\S+) for this run", message)[0]
        options = {"privacy": {"epsilon": float(epsilon), "delta": 1e-6}, "training": training}
        accepted = ask(database, f"m{epsilon}", options)
        serve(database)
        assert outcome(connection, accepted)[0] == "done"
        return str(epsilon)

    by_budget = least()
    share = "SELECT min(loss / loss_limit) FROM dpml.budget_entries JOIN dpml.budgets USING (dataset)"
    assert Decimal("0.001") <= scalar(connection, share) < Decimal("0.00103")
    by_owner = least(min_epsilon=Decimal("0.2"))
    assert float(by_budget) < 0.2 <= float(by_owner)
    assert entries(connection) == 2


@pytest.mark.one_major
def test_advice_stays_below_the_largest_epsilon(database: str, connection: psycopg.Connection) -> None:
    """A smaller delta makes a Gaussian run cost less; where no epsilon makes up for it, a larger one does."""
    with Database(of("owner", database)).session() as session:
        opening.open_budget(session, "census", epsilon=Decimal(3), delta=Decimal("1e-5"), rule="gdp")
    register(database, min_epsilon=Decimal("0.1"), max_epsilon=Decimal("0.1"))

    def asked(delta: float) -> tuple[str, str, int | None]:
        privacy = {"epsilon": 0.1, "delta": delta}
        request = ask(database, f"m{delta}", {"privacy": privacy, "training": {"method": "dp-gd"}})
        serve(database)
        return outcome(connection, request)

    state, message, _ = asked(1e-9)
    assert (state, entries(connection)) == ("refused", 0)
    assert message.startswith(
        "delta must be larger for this run: one run must cost at least what epsilon = 0.1 at"
    )
    state, message, _ = asked(9.5e-6)  # the budget converts with nine tenths of its delta
    assert state == "refused"
    assert "one run may cost at most what epsilon = 0.1 at delta = 1e-05 costs" in message


@pytest.mark.one_major
def test_requests_for_next_to_nothing_get_nothing(database: str, connection: psycopg.Connection) -> None:
    """Hundreds of answers for a millionth of a small budget."""
    with Database(of("owner", database)).session() as session:
        opening.open_budget(session, "census", epsilon=Decimal("0.001"), delta=Decimal("1e-9"), rule="gdp")
    register(database, allow_certified=True)
    options = {
        "privacy": {"epsilon": 3.3e-10, "delta": 1e-18},
        "training": {"method": "bolt-on", "lambda": 0.001},
    }
    with psycopg.connect(of("ana", database)) as ana:
        file = "SELECT dpml.request('census', 'm' || i, %s) FROM generate_series(1, 40) AS i"
        ana.execute(file, (json.dumps(options),))
    assert len(serve(database)) == 40
    states = connection.execute("SELECT DISTINCT state, charge FROM dpml.requests").fetchall()
    assert states == [("refused", None)]
    assert scalar(connection, "SELECT count(*) FROM dpml.ledger") == 0


@pytest.mark.one_major
def test_a_request_keeps_to_the_deltas(database: str, connection: psycopg.Connection) -> None:
    offer(database, min_delta=Decimal("1e-7"), max_delta=Decimal("1e-5"))

    def asked(delta: float) -> tuple[str, str, int | None]:
        privacy = {"epsilon": 0.1, "delta": delta}
        request = ask(database, f"m{delta}", {"privacy": privacy, "training": {"method": "bolt-on"}})
        serve(database)
        return outcome(connection, request)

    for delta in (0, 9e-8, 2e-5):
        state, message, charge = asked(delta)
        assert (state, charge) == ("refused", None)
        assert "delta must be from 1e-07 to 1e-05, as data set census (registered by role owner)" in message
    assert entries(connection) == 0
    assert asked(1e-7)[0] == asked(1e-5)[0] == "done"
    register(database, min_delta=Decimal(0))
    assert asked(0)[0] == "done"


@pytest.mark.one_major
def test_an_offer_is_no_looser_than_its_budget(database: str, connection: psycopg.Connection) -> None:
    with Database(of("owner", database)).session() as session:
        opening.open_budget(
            *(session, "census"),
            epsilon=Decimal(1),
            delta=Decimal("1e-6"),
            rule="basic",
            min_epsilon=Decimal("0.1"),
            min_delta=Decimal("1e-9"),
            max_delta=Decimal("1e-7"),
        )

    def requests_with(texts: dict[str, str]) -> None:
        numbers: dict[str, Any] = {key: Decimal(text) for key, text in texts.items()}
        register(database, **numbers)

    for given, message in (
        (
            {"min_epsilon": "0.09"},
            "min_epsilon must be at least 0.1, as the budget of data set census (opened",
        ),
        ({"max_epsilon": "1.1"}, "max_epsilon must be at most 1, as the budget of data set census (opened"),
        ({"min_epsilon": "0.6", "max_epsilon": "0.5"}, "min_epsilon must be above 0 and at most 0.5"),
        ({"max_epsilon": "0.05"}, "min_epsilon must be above 0 and at most 0.05"),
        ({"min_delta": "1e-10"}, "min_delta must be at least 1e-09, as the budget"),
        ({"max_delta": "1e-6"}, "max_delta must be at most 1e-07, as the budget"),
        ({"min_delta": "NaN"}, "min_delta must be at least 0"),
    ):
        with pytest.raises(SpecError, match=re.escape(message)):
            requests_with(given)
    register(database)
    query = "SELECT ARRAY[min_epsilon, max_epsilon, min_delta, max_delta] FROM dpml.datasets"

    def seen() -> list[str]:
        with psycopg.connect(of("ana", database)) as ana:
            return [str(number) for number in scalar(ana, query)]

    assert seen() == ["0.1", "1", "1E-9", "1E-7"]
    register(database, min_epsilon=Decimal("0.2"), max_epsilon=Decimal("0.3"), min_delta=Decimal("1e-8"))
    register(database)  # stays as it is where nothing is said
    assert seen() == ["0.2", "0.3", "1E-8", "1E-7"]
    register(database, min_epsilon=Decimal("0.1"))
    # What the owner writes into the table loosens nothing either.
    loosen = "UPDATE dpml.datasets SET min_epsilon = 1e-12, min_delta = 0, max_delta = 0.5"
    as_role("owner", database, loosen)
    request = ask(database, "m", {"privacy": {"epsilon": 0.01, "delta": 1e-8}, "training": TENTH["training"]})
    serve(database)
    state, message, _ = outcome(connection, request)
    assert state == "refused"
    assert "epsilon must be at least 0.1 for this run" in message


CERTIFIED = {"method": "bolt-on", "lambda": 0.01, "solver": "certified"}


@pytest.mark.one_major
def test_passes_that_depend_on_rows_need_the_owners_word(
    database: str, connection: psycopg.Connection
) -> None:
    offer(database, epsilon="10")

    def asked(**training: Any) -> tuple[str, str, int | None]:
        model = f"m{scalar(connection, 'SELECT count(*) FROM dpml.requests')}"
        request = ask(database, model, {"privacy": {"epsilon": 1, "delta": 1e-6}, "training": training})
        serve(database)
        return outcome(connection, request)

    def passes() -> int | None:
        query = "SELECT (training ->> 'passes')::int FROM dpml.models ORDER BY charge DESC LIMIT 1"
        return scalar(connection, query)  # type: ignore[no-any-return]

    state, message, charge = asked(**CERTIFIED)
    assert (state, charge, entries(connection)) == ("refused", None, 0)
    assert "is not allowed by data set census (registered by role owner)" in message
    assert "take solver = sgd, or ask that role for dpml dataset register --allow-certified" in message
    by_default = {key: CERTIFIED[key] for key in ("method", "lambda")}
    assert asked(**by_default)[0] == "done"
    assert passes() is not None
    as_role("owner", database, "UPDATE dpml.datasets SET allow_certified = true")
    for training in (CERTIFIED, by_default):
        assert asked(**training)[0] == "done"
        assert passes() is None
    register(database)  # stays as it is where nothing is said
    assert asked(**CERTIFIED)[0] == "done"
    register(database, allow_certified=False)
    assert asked(**CERTIFIED)[0] == "refused"


def test_the_doctor_knows_what_others_can_count(
    server: EmbeddedServer, database: str, connection: psycopg.Connection
) -> None:
    """Of the runs of a role that serves requests, by views of PostgreSQL and its extensions."""

    def notes() -> list[str]:
        with Database(of("owner", database)).session() as session:
            checks = maintenance.examine(session)
        assert all(check.ok for check in checks)
        return [check.note for check in checks if check.name == "statistics"]

    assert notes() == []
    offer(database)
    assert notes() == [""]
    register(database, allow_certified=True)
    counted = "such runs are allowed on census, until dpml dataset register DATASET SPEC --no-"
    assert (counted in notes()[0]) is (server.major >= 16)  # PostgreSQL 15 has no pg_stat_io
    register(database, allow_certified=False)
    assert notes() == [""]
    try:
        # As if pg_stat_statements were loaded, which these servers do not have.
        connection.execute("ALTER ROLE owner SET pg_stat_statements.track = 'top'")
        assert "as a superuser, ALTER ROLE owner SET pg_stat_statements.track = 'none'" in notes()[0]
        withdraw(database)
        assert notes() == []
        register(database)
        connection.execute("ALTER ROLE owner SET pg_stat_statements.track = 'none'")
        assert notes() == [""]
    finally:
        connection.execute("ALTER ROLE owner RESET ALL")
    with Database(of("eve", database)).session() as session:
        assert "statistics" not in [check.name for check in maintenance.examine(session)]


# What an analyst cannot do


def test_what_is_rolled_back_was_never_asked(database: str, connection: psycopg.Connection) -> None:
    offer(database)
    with psycopg.connect(of("ana", database)) as ana:
        ana.execute("SELECT dpml.request('census', 'm', '{\"privacy\": {\"epsilon\": 0.1}}')")
        assert serve(database) == []
        ana.rollback()
    assert serve(database) == []
    assert entries(connection) == 0


def test_locks_that_anyone_can_take_stop_nothing(database: str, connection: psycopg.Connection) -> None:
    """Whoever can log in can lock any number; the service waits for none."""
    offer(database)
    request = ask(database, "m")
    with psycopg.connect(of("eve", database)) as eve:
        for key in ("dpml.budgets census", f"dpml.requests {request}", "dpml.datasets census"):
            eve.execute("SELECT pg_advisory_lock(hashtextextended(%s, 0))", (key,))
        serve(database)
    assert outcome(connection, request)[0] == "done"


def test_a_killed_session_leaves_its_request(database: str, connection: psycopg.Connection) -> None:
    offer(database)

    def call() -> None:
        with psycopg.connect(of("ana", database), autocommit=True) as ana:
            ana.execute("CALL dpml.train('census', 'm', %s)", (json.dumps(TENTH),))

    with ThreadPoolExecutor(1) as pool:
        dead = pool.submit(call)
        until(lambda: scalar(connection, "SELECT count(*) FROM dpml.requests"))
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'ana'")
        with pytest.raises(psycopg.OperationalError):
            dead.result()
    assert len(serve(database)) == entries(connection) == 1
    assert scalar(connection, "SELECT state FROM dpml.requests") == "done"


def test_a_run_is_out_of_reach(database: str, connection: psycopg.Connection) -> None:
    offer(database, SLOW)
    ask(database, "m")
    with held(connection, database), psycopg.connect(of("ana", database), autocommit=True) as ana:
        assert scalar(ana, "SELECT state FROM dpml.requests") == "running"
        assert entries(connection) == 1
        work = "SELECT relname FROM pg_class WHERE relnamespace = 'dpml_work'::regnamespace"
        assert ana.execute(work).fetchall() == []
        seen = ana.execute("SELECT pid, query FROM pg_stat_activity WHERE usename = 'owner'").fetchall()
        assert {query for _, query in seen} == {"<insufficient privilege>"}
        assert len(seen) >= 2
        for pid, _ in seen:
            for function in ("pg_cancel_backend", "pg_terminate_backend"):
                with pytest.raises(errors.InsufficientPrivilege):
                    ana.execute(f"SELECT {function}(%s)".encode(), (pid,))
        # The requests of others go on being filed while one runs.
        ask(database, "m2", role="ben")
    assert scalar(connection, "SELECT count(*) FROM dpml.models") == 2


HOSTILE = [
    "INSERT INTO dpml.requests (dataset, model, options, requested_by) VALUES ('census', 'm', '{}', 'ben')",
    "INSERT INTO dpml.requests (dataset, model, options, state) VALUES ('census', 'm', '{}', 'done')",
    "INSERT INTO dpml.requests (dataset, model, options, charge) VALUES ('census', 'm', '{}', 1)",
    "INSERT INTO dpml.requests (id, dataset, model, options) OVERRIDING SYSTEM VALUE "
    "VALUES (1, 'census', 'm', '{}')",
    "UPDATE dpml.requests SET state = 'done'",
    "UPDATE dpml.requests SET options = '{}'",
    "DELETE FROM dpml.requests",
    "TRUNCATE dpml.requests",
    "SELECT FROM dpml.requests FOR KEY SHARE",
    "SELECT FROM dpml.datasets FOR SHARE",
    "DELETE FROM dpml.models",
    *(
        f"BEGIN; LOCK TABLE dpml.{table} IN {mode} MODE"
        for table in ("models", "drops", "requests", "withdrawals", "datasets")
        for mode in ("ROW EXCLUSIVE", "SHARE", "ACCESS EXCLUSIVE")
    ),
    "UPDATE dpml.requests SET state = 'withdrawn'",
    "INSERT INTO dpml.withdrawals (request, withdrawn_by) VALUES (1, 'ben')",
    "SELECT FROM dpml.withdrawals",
    "DELETE FROM dpml.withdrawals",
    "ALTER TABLE dpml.requests DISABLE TRIGGER check_request",
    "ALTER TABLE dpml.requests DISABLE ROW LEVEL SECURITY",
    "SELECT pg_catalog.setval('dpml.requests_id_seq', 1)",
    "UPDATE dpml.datasets SET max_epsilon = 100",
    "UPDATE dpml.datasets SET allow_certified = true",
    "INSERT INTO dpml.datasets (name, role, source, source_owner, spec, min_epsilon, max_epsilon, min_delta, "
    "max_delta, max_passes) VALUES ('census', 'ana', 'people', 'postgres', '', 1, 9, 0, 0, 9)",
    "SELECT FROM dpml.budgets",
    "SELECT FROM dpml.ledger",
    "SET session_replication_role = replica",
    "SET ROLE owner",
    "SET SESSION AUTHORIZATION owner",
]


def test_the_queue_is_not_the_analysts_to_change(database: str, connection: psycopg.Connection) -> None:
    offer(database)
    ask(database, "bens", role="ben")
    mine = ask(database, "m")
    before = connection.execute("SELECT * FROM dpml.requests ORDER BY id").fetchall()
    with psycopg.connect(of("ana", database), autocommit=True) as ana:
        for statement in HOSTILE:
            with pytest.raises(errors.InsufficientPrivilege):
                ana.execute(statement.encode())
            ana.rollback()
        assert ana.execute("SELECT id FROM dpml.requests").fetchall() == [(mine,)]
        ana.execute("SET row_security = off")
        for statement in ("SELECT id FROM dpml.requests", "SELECT dpml.request('census', 'm', '{}')"):
            with pytest.raises(errors.InsufficientPrivilege, match="row-level security"):
                ana.execute(statement.encode())
    assert connection.execute("SELECT * FROM dpml.requests ORDER BY id").fetchall() == before
    with psycopg.connect(of("eve", database), autocommit=True) as eve:
        for statement in ("SELECT dpml.request('census', 'm')", "CALL dpml.train('census', 'm')"):
            with pytest.raises(errors.InsufficientPrivilege):
                eve.execute(statement.encode())


@pytest.mark.one_major
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nothing", "m", "{}"), "no data set called nothing is offered to role ana"),
        (("x'; DROP TABLE people; --", "m", "{}"), "no data set called x'; DROP"),
        (("x" * 10**6, "m", "{}"), "no data set called x{200} is"),
        (("census", "", "{}"), "model must have 1 to 200 characters"),
        (("census", "m" * 201, "{}"), "model must have"),
        (("census", "m", "[]"), "options must be a JSON object"),
        (("census", "m", json.dumps({"privacy": "x" * 10**6})), "at most 10000 bytes"),
        (("census", "m", '{"a":' * 10**5 + "1" + "}" * 10**5), "stack depth|at most 10000 bytes"),
        (("census", "m", '{"privacy": {"epsilon": NaN}}'), "invalid input syntax"),
        (("census", None, "{}"), "null value"),
        (("census", "m", None), "null value"),
    ],
)
def test_requests_that_are_not_taken(
    database: str, connection: psycopg.Connection, arguments: tuple[str, ...], message: str
) -> None:
    offer(database)
    with pytest.raises(psycopg.Error, match=message):
        as_role("ana", database, "SELECT dpml.request(%s, %s, %s)", arguments)
    assert scalar(connection, "SELECT count(*) FROM dpml.requests") == 0


@pytest.mark.one_major
def test_a_superuser_is_told_of_a_data_set_that_nobody_registered(connection: psycopg.Connection) -> None:
    with pytest.raises(errors.UndefinedObject, match="no data set called nothing is registered"):
        connection.execute("SELECT dpml.request('nothing', 'm', '{}')")


BAD_OPTIONS = {
    "{}": "must have an epsilon",
    '{"privacy": []}': "privacy must be a table of keys",
    '{"privacy": {"epsilon": 1e999}}': "epsilon must be finite",
    '{"privacy": {"epsilon": 1' + "0" * 5000 + "}}": "JSON object of ordinary numbers|epsilon must be finite",
    '{"privacy": {"epsilon": "0.1"}}': "epsilon must be a number",
    '{"privacy": {"epsilon": true}}': "epsilon must be a number",
    '{"privacy": {"epsilon": 0}}': "epsilon must be in",
    '{"privacy": {"epsilon": -1}}': "epsilon must be in",
    '{"privacy": {"epsilon": 0.1, "delta": 1}}': "delta must be in",
    '{"privacy": {"epsilon": 0.1, "relation": "none"}}': "relation must be one of",
    '{"privacy": {"epsilon": 0.1, "unit": "id"}}': "unknown key 'unit'",
    '{"privacy": {"epsilon": 0.1}, "data": {"table": "people"}}': "unknown key 'data'",
    '{"privacy": {"epsilon": 0.1}, "training": {"seed": 1}}': "unknown key 'seed'",
    '{"privacy": {"epsilon": 0.1}, "training": {"method": "noiseless"}}': "is not private",
    '{"privacy": {"epsilon": 0.1}, "training": {"method": "lbfgs"}}': "is not private",
    '{"privacy": {"epsilon": 0.1}, "training": {"method": {"a": [1]}}}': "method must be one of",
    '{"privacy": {"epsilon": 0.1}, "training": {"method": "dp-gs"}}': (
        r"method must be one of auto, (?!.*(lbfgs|noiseless)).*, not 'dp-gs'; did you mean"
    ),
    '{"privacy": {"epsilon": 0.1}, "training": {"method": "dp-gd", "passes": 1001}}': (
        "would read the table 1001 times, and data set census .* allows 1000 passes a request"
    ),
    '{"privacy": {"epsilon": 0.1}, "training": '
    '{"method": "primal-dp-scd", "passes": 500, "coordinates": 1}}': r"would read the table \d{4,} times",
    '{"privacy": {"epsilon": 0.1}, "training": {"method": "bolt-on", "lambda": 1e999}}': "lambda must be",
    '{"privacy": {"epsilon": 0.1}, "training": {"method": "dp-sgd", "batch_size": 100000}}': "batch",
    '{"privacy": {"epsilon": 0.51}}': (
        r"^epsilon must be at most 0\.5, as data set census \(registered by role owner\) has it, and this "
        r"request asks for 0\.51: nothing was charged$"
    ),
    '{"privacy": {"epsilon": 101}}': "epsilon must be at most 0.5, as data set census .* asks for 101: ",
    '{"privacy": ' + "[" * 4000 + "]" * 4000 + "}": "options|privacy",
}


@pytest.mark.one_major
def test_bad_options_are_refused_and_charge_nothing(database: str, connection: psycopg.Connection) -> None:
    offer(database, max_epsilon=Decimal("0.5"))
    asked = {ask(database, "m", options): message for options, message in BAD_OPTIONS.items()}
    assert len(serve(database)) == len(asked)
    for request, message in asked.items():
        state, text, charge = outcome(connection, request)
        assert (state, charge) == ("refused", None), text
        assert len(text) <= 1000
        with pytest.raises(AssertionError, match=message):
            raise AssertionError(text)
    assert scalar(connection, "SELECT count(*) FROM dpml.ledger") == 0


@pytest.mark.one_major
def test_names_are_only_names(database: str, connection: psycopg.Connection) -> None:
    offer(database)
    for name in ("'; DROP TABLE people; --", '"%s" %(a)s {} \\', "\x1b[2J\n"):
        ask(database, name)
        assert serve(database)[0].endswith("by 'ana' on 'census': done")
        assert scalar(connection, "SELECT owner FROM dpml.models WHERE name = %s", name) == "ana"


@pytest.mark.one_major
def test_no_more_than_a_hundred_wait(database: str, connection: psycopg.Connection) -> None:
    offer(database)
    flood = "SELECT dpml.request('census', 'm', '{}') FROM generate_series(1, %s)"
    with psycopg.connect(of("ana", database), autocommit=True) as ana:
        ana.execute(flood, (99,))
        with pytest.raises(errors.ConfigurationLimitExceeded, match="100 requests of role ana are waiting"):
            ana.execute(flood, (2,))
        ana.execute(flood, (1,))
    ask(database, "m", role="ben")
    assert scalar(connection, "SELECT count(*) FROM dpml.requests") == 101


@pytest.mark.one_major
@pytest.mark.parametrize("state", ["withdrawn", "refused"])
def test_no_more_than_a_thousand_a_day_end_without_a_charge(
    database: str, connection: psycopg.Connection, state: str
) -> None:
    """Their rows stay: who files and withdraws in turn would fill the disk."""
    offer(database)
    connection.execute(
        "INSERT INTO dpml.requests (requested_by, dataset, model, options, state, requested_at) "
        "SELECT 'ana', 'census', 'm', '{}', %s, now() - interval '23 hours' FROM generate_series(1, 1000)",
        (state,),
    )
    message = "1000 requests of role ana were withdrawn or refused within a day"
    with pytest.raises(errors.ConfigurationLimitExceeded, match=message):
        ask(database, "m")
    ask(database, "m", role="ben")
    one = "ALTER TABLE dpml.requests {} TRIGGER check_request"
    connection.execute(one.format("DISABLE").encode())
    connection.execute("UPDATE dpml.requests SET requested_at = requested_at - interval '2 hours'")
    connection.execute(one.format("ENABLE").encode())
    ask(database, "m")


@pytest.mark.one_major
def test_a_message_never_holds_a_row(database: str, connection: psycopg.Connection) -> None:
    """Errors of the server before and after the charge, from functions of a view of the owner."""
    connection.execute(
        """CREATE FUNCTION shout(float8) RETURNS float8 STABLE LANGUAGE plpgsql
            AS 'BEGIN RAISE division_by_zero USING MESSAGE = ''SECRET '' || $1; END';
        CREATE VIEW loud AS SELECT id, shout(age) AS age, town, rich FROM people;
        CREATE VIEW loud_filter AS SELECT * FROM people WHERE shout(age) > 0;
        GRANT SELECT ON loud, loud_filter TO owner"""
    )
    offer(database, SLOW.replace("slow", "loud"))
    request = ask(database, "m")
    serve(database)
    state, text, charge = outcome(connection, request)
    assert (state, charge is None) == ("failed", False)
    assert "stay charged" in text
    connection.execute("CREATE OR REPLACE VIEW loud AS SELECT id, age, town, rich FROM loud_filter")
    request = ask(database, "m")
    serve(database)
    state, counted, charge = outcome(connection, request)
    assert (state, charge) == ("refused", None)
    assert "SECRET" not in text + counted
    connection.execute("DROP VIEW loud, loud_filter; DROP FUNCTION shout")


@pytest.mark.one_major
def test_an_unexpected_error_is_not_quoted(
    database: str, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(database)
    request, other = ask(database, "m"), ask(database, "m2")

    def fail(*_: Any, name: str, **__: Any) -> None:
        raise ValueError("SECRET") if name == "m" else DpmlError("SECRET")

    monkeypatch.setattr(requests, "train_model", fail)
    assert len(serve(database)) == 2
    text = "the service met an unexpected error ({}); nothing was charged; " + ASK_OWNER
    assert outcome(connection, request) == ("failed", text.format("ValueError"), None)
    assert outcome(connection, other) == ("failed", text.format("DpmlError"), None)


@pytest.mark.one_major
def test_an_error_of_the_service_is_found_in_its_own_log(
    database: str, connection: psycopg.Connection
) -> None:
    """The kind and the place, not the text: as the server's log, it is the owner's to read."""
    broken = """import importlib
def fail(*_, **__): raise ValueError('SECRET')
importlib.import_module('pg_dpml.runs.train').released_model = fail
from pg_dpml.cli import main; main()"""
    offer(database)
    request = ask(database, "m")
    command = (sys.executable, "-c", broken, *SERVE[3:], of("owner", database))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert re.search(r"^dpml: the run failed by a ValueError at transaction\.py:", done.stderr, re.MULTILINE)
    state, message, charge = outcome(connection, request)
    assert (done.returncode, state, charge is None) == (0, "failed", False)
    assert "the run failed in dpml, not on the server, and no model was stored" in message
    assert message.endswith("; " + ASK_OWNER)
    assert ASK_OWNER not in done.stderr
    assert "SECRET" not in message + done.stderr + done.stdout


# Requests that are withdrawn


def withdraw_request(dsn: str, request: int, role: str = "ana") -> None:
    as_role(role, dsn, "SELECT dpml.withdraw_request(%s)", (request,))


def test_who_asked_withdraws_what_waits(database: str, connection: psycopg.Connection) -> None:
    offer(database)
    request, kept = ask(database, "m"), ask(database, "m2")
    withdraw_request(database, request)
    assert outcome(connection, request) == ("withdrawn", "", None)
    assert serve(database) == [f"request {kept} by 'ana' on 'census': done"]
    assert entries(connection) == scalar(connection, "SELECT count(*) FROM dpml.ledger") == 1
    assert scalar(connection, "SELECT array_agg(name) FROM dpml.models") == ["m2"]
    assert outcome(connection, request) == ("withdrawn", "", None)  # it stays as a record
    assert scalar(connection, "SELECT count(*) FROM dpml.withdrawals") == 0
    again = ask(database, "m")  # its name is free
    serve(database)
    assert outcome(connection, again)[0] == "done"


def test_nobody_withdraws_anything_else(database: str, connection: psycopg.Connection) -> None:
    """Neither the request of another, which does not exist for him, nor one that has been taken."""
    offer(database, max_epsilon=Decimal("0.5"))
    done, refused = ask(database, "m"), ask(database, "m2", TENTH | {"privacy": {"epsilon": 3}})
    serve(database)
    waiting, withdrawn = ask(database, "m3"), ask(database, "m4")
    withdraw_request(database, withdrawn)
    for number, role in ((waiting, "ben"), (10**9, "ben"), (None, "ben")):
        with pytest.raises(errors.NoDataFound, match=f"^role {role} has made no request {number or ''}"):
            withdraw_request(database, number, role)  # type: ignore[arg-type]
    failed = ask(database, "m5")
    connection.execute("UPDATE dpml.requests SET state = 'failed' WHERE id = %s", (failed,))
    for number, state, reason in (
        (done, "done", "is done and cannot be withdrawn, as its model was trained and charged"),
        (refused, "refused", "was refused, and nothing was charged"),
        (withdrawn, "withdrawn", "is already withdrawn, and nothing was charged"),
        (failed, "failed", "has failed and cannot be withdrawn"),
    ):
        with pytest.raises(errors.ObjectNotInPrerequisiteState, match=f"^request {number} {reason}\n"):
            withdraw_request(database, number)
        assert outcome(connection, number)[0] == state
    for role in ("owner", "clerk", "eve"):
        with pytest.raises(errors.InsufficientPrivilege):
            withdraw_request(database, waiting, role)
    assert outcome(connection, waiting)[0] == "waiting"
    assert scalar(connection, "SELECT count(*) FROM dpml.withdrawals") == 0


def test_what_runs_is_not_withdrawn(database: str, connection: psycopg.Connection) -> None:
    """And who tries keeps no lock on the row that the service waits for."""
    offer(database, SLOW)
    request = ask(database, "m")
    with psycopg.connect(of("ana", database)) as ana:
        with held(connection, database):
            ana.execute("SAVEPOINT s")
            with pytest.raises(errors.ObjectNotInPrerequisiteState, match="is running and cannot be withd"):
                ana.execute("SELECT dpml.withdraw_request(%s)", (request,))
            ana.execute("ROLLBACK TO SAVEPOINT s")
            # nor does the service call it so
            with pytest.raises(errors.ObjectNotInPrerequisiteState, match="running and cannot become withd"):
                as_role("owner", database, "UPDATE dpml.requests SET state = 'withdrawn'")
        assert outcome(connection, request)[0] == "done"  # while ana's transaction is open


@pytest.mark.parametrize("kept", [True, False], ids=["commit", "rollback"])
def test_an_open_withdrawal_stops_nobody(database: str, connection: psycopg.Connection, kept: bool) -> None:
    """The service passes it over, and so does the owner who withdraws the data set."""
    connection.execute("CREATE TABLE others AS TABLE people; GRANT SELECT ON others TO owner")
    offer(database)
    offer(database, SPEC.replace("people", "others"), name="other")
    first = ask(database, "m")
    with psycopg.connect(of("ana", database)) as ana:
        ana.execute("SELECT dpml.withdraw_request(%s)", (first,))
        assert serve(database) == []
        second, third = ask(database, "m2", role="ben"), ask(database, "m3", dataset="other")
        assert len(serve(database)) == 2
        assert outcome(connection, first)[0] == "waiting"
        withdraw(database)
        register(database)
        ana.commit() if kept else ana.rollback()
    assert outcome(connection, second)[0] == outcome(connection, third)[0] == "done"
    assert len(serve(database)) == (0 if kept else 1)
    assert outcome(connection, first)[0] == ("withdrawn" if kept else "done")
    assert entries(connection) == (2 if kept else 3)
    connection.execute("DROP TABLE others")


@pytest.mark.parametrize("kept", [True, False], ids=["commit", "rollback"])
def test_a_withdrawal_waits_for_who_takes_the_request(
    database: str, connection: psycopg.Connection, kept: bool
) -> None:
    """As a service does on its way: of the two who want the row, the later one finds it changed."""
    offer(database)
    request = ask(database, "m")
    blocked = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'ana' AND wait_event_type = 'Lock'"
    with ThreadPoolExecutor(1) as pool, psycopg.connect(of("owner", database)) as owner:
        owner.execute("UPDATE dpml.requests SET state = 'running'")
        late = pool.submit(withdraw_request, database, request)
        until(lambda: scalar(connection, blocked))
        owner.commit() if kept else owner.rollback()
        if kept:
            with pytest.raises(errors.ObjectNotInPrerequisiteState, match="is running"):
                late.result()
        else:
            late.result()
    assert len(serve(database)) == (1 if kept else 0)
    assert outcome(connection, request)[0] == ("done" if kept else "withdrawn")
    assert entries(connection) == int(kept)


@pytest.mark.one_major
def test_a_race_has_one_winner(database: str, connection: psycopg.Connection) -> None:
    """Two services, and an analyst who withdraws from the other end: each request ends in one of two ways."""
    offer(database)
    asked = [ask(database, f"m{number}") for number in range(10)]
    withdrawn: set[int] = set()

    def take_back() -> None:
        for request in reversed(asked):
            with suppress(errors.ObjectNotInPrerequisiteState):
                withdraw_request(database, request)
                withdrawn.add(request)
            time.sleep(0.1)

    with ThreadPoolExecutor(3) as pool:
        services = [pool.submit(serve, database) for _ in range(2)]
        pool.submit(take_back).result()
        for service in services:
            service.result()
    ended = {request: outcome(connection, request)[0] for request in asked}
    done = {request for request, state in ended.items() if state == "done"}
    assert {request for request, state in ended.items() if state == "withdrawn"} == withdrawn
    assert done | withdrawn == set(asked)
    assert done
    assert withdrawn
    assert entries(connection) == scalar(connection, "SELECT count(*) FROM dpml.models") == len(done)


@pytest.mark.one_major
def test_the_procedure_hears_of_a_withdrawal(database: str, connection: psycopg.Connection) -> None:
    offer(database)
    call = (json.dumps(TENTH),)
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(as_role, "ana", database, "CALL dpml.train('census', 'm', %s)", call)
        until(lambda: scalar(connection, "SELECT count(*) FROM dpml.requests"))
        request = scalar(connection, "SELECT id FROM dpml.requests")
        withdraw_request(database, request)
        with pytest.raises(errors.RaiseException, match=f"request {request} was withdrawn"):
            done.result()


@pytest.mark.one_major
def test_the_commands_of_who_asks(database: str, connection: psycopg.Connection) -> None:
    offer(database)

    def dpml(*arguments: str, role: str = "ana") -> Any:
        return CliRunner().invoke(app, [*arguments, "--dsn", of(role, database)])

    assert dpml("request", "list").stdout.startswith("This role made no request, and")
    odd = {"privacy": {"epsilon": [3, "\x1b[2J" * 20]}, "training": {"method": "bolt-on"}}
    first, second, third = (
        ask(database, "m"),
        ask(database, "m 2\n", {"privacy": {"epsilon": 3}}),
        ask(database, "o", odd),
    )
    taken_back = dpml("request", "withdraw", str(first))
    line = (
        rf"{first}  \S+ \S+ \S+  withdrawn  model m of census with epsilon = 0\.1 by bolt-on for role ana\n"
    )
    assert re.fullmatch(line, taken_back.stdout), taken_back.output
    serve(database)
    for role in ("ana", "owner"):
        listed = dpml("request", "list", role=role).stdout
        refusal = (
            rf'{second}  .*  refused    model "m 2\\n" of census with epsilon = 3 for role ana: epsilon .*\n'
            rf"{third}  .*  refused    model o of census with epsilon = .* by bolt-on for role ana: .*\n"
        )
        assert re.fullmatch(line + refusal, listed), listed
        assert "\x1b" not in listed
        found = json.loads(dpml("request", "list", "--format", "json", role=role).stdout)["requests"]
        assert [(one["id"], one["state"], one["charge"]) for one in found] == [
            (first, "withdrawn", None),
            (second, "refused", None),
            (third, "refused", None),
        ]
        assert json.loads(found[0]["options"]) == TENTH
        assert [(one["epsilon"], one["method"]) for one in found[:2]] == [("0.1", "bolt-on"), ("3", None)]
    assert dpml("request", "list", role="ben").stdout.startswith("This role made no request")
    for number, role, message in (
        (first, "ana", f"request {first} is already withdrawn, and nothing was charged: dpml request list"),
        (first, "ben", f"role ben has made no request {first}: dpml request list shows"),
        (0, "ana", "Invalid value for 'ID'"),
        (2**63, "ana", "Invalid value for 'ID'"),
        (
            first,
            "owner",
            "permission denied for function withdraw_request: only the role that made a request can withdraw "
            "it, as a member of dpml_analyst; dpml dataset withdraw NAME ends the offer",
        ),
        (
            first,
            "eve",
            'permission denied for function withdraw_request: it takes GRANT dpml_analyst TO "eve" '
            "(dpml_curator, to train models and offer them), by a superuser",
        ),
    ):
        refused = dpml("request", "withdraw", str(number), role=role)
        assert (refused.exit_code, refused.stdout) == (2, "")
        assert message in refused.stderr
    for group in ("dataset", "request"):
        told = dpml(group, "list", role="eve")
        assert told.exit_code == 2
        assert 'it takes GRANT dpml_analyst TO "eve" (dpml_curator, to train models and' in told.stderr
    third = ask(database, "m3")
    record = json.loads(dpml("request", "withdraw", str(third), "--format", "json").stdout)
    assert (record["id"], record["state"]) == (third, "withdrawn")


# Budgets that are closed


def close(dsn: str, name: str = "census", by: str = "clerk") -> None:
    """As a curator who has not registered the data set."""
    with Database(of(by, dsn)).session() as session:
        budgets.close_budget(session, name)


def test_a_closed_budget_offers_nothing(
    database: str, connection: psycopg.Connection, tmp_path: Path
) -> None:
    offer(database)
    waiting = ask(database, "m")
    close(database)

    def dpml(*arguments: str, role: str = "ana") -> Any:
        return CliRunner().invoke(app, [*arguments, "--dsn", of(role, database)])

    names = "SELECT array_agg(name) FROM dpml.{}"
    with psycopg.connect(of("ana", database)) as ana:
        assert scalar(ana, names.format("datasets")) is None
        assert scalar(ana, names.format("closed_datasets")) == ["census"]
        with pytest.raises(errors.ObjectNotInPrerequisiteState) as refused:
            ana.execute("SELECT dpml.request('census', '', '[]')")  # and its other faults are named later
        primary = "the budget of data set census is closed, and no model of it can be requested"
        assert refused.value.diag.message_primary == primary
        assert str(refused.value.diag.message_hint).startswith("Ask role owner, who registered it; SELECT")
    assert scalar(connection, "SELECT count(*) FROM dpml.requests") == 1
    for role in ("ana", "owner"):
        assert "offered to nobody: its budget is closed; " in dpml("dataset", "list", role=role).stdout
        (found,) = json.loads(dpml("dataset", "list", "--format", "json", role=role).stdout)["datasets"]
        assert (found["name"], found["offered"], found["closed"]) == ("census", False, True)
    spec = tmp_path / "census.toml"
    spec.write_text(SPEC, encoding="utf-8")
    told = dpml("train", str(spec), "--epsilon", "0.1", "--name", "m").stderr
    assert "ask the owner of the data\n" in told
    with pytest.raises(BudgetError, match="the budget of data set census is closed"):
        register(database)
    serve(database)
    assert outcome(connection, waiting) == (
        "refused",
        "the budget of data set census is closed, so nothing is left for any run: nothing was charged; ask "
        "role owner, which serves data set census",
        None,
    )
    open_budget(database)  # nothing was charged: it is opened again, and with it the offer
    with psycopg.connect(of("ana", database)) as ana:
        assert scalar(ana, names.format("datasets")) == ["census"]
        assert scalar(ana, names.format("closed_datasets")) is None
    request = ask(database, "m")
    serve(database)
    assert outcome(connection, request)[0] == "done"


@pytest.mark.one_major
def test_a_closed_budget_is_told_to_its_role_alone(database: str, connection: psycopg.Connection) -> None:
    connection.execute("CREATE ROLE cardiology; GRANT cardiology TO ben")
    try:
        offer(database, name="heart", role="cardiology")
        open_budget(database, "never registered")
        for name in ("heart", "never registered"):
            close(database, name)
        for name in ("heart", "never registered"):
            with pytest.raises(
                errors.UndefinedObject, match=f"no data set called {name} is offered to role ana"
            ):
                ask(database, "m", dataset=name)
        with psycopg.connect(of("ana", database)) as ana:
            assert scalar(ana, "SELECT count(*) FROM dpml.closed_datasets") == 0
        with pytest.raises(errors.ObjectNotInPrerequisiteState, match="heart is closed"):
            ask(database, "m", dataset="heart", role="ben")
    finally:
        connection.execute("TRUNCATE dpml.datasets CASCADE; DROP ROLE cardiology")


def test_a_run_under_way_does_not_hold_up_the_closing(database: str, connection: psycopg.Connection) -> None:
    offer(database, SLOW)
    request, next_one = ask(database, "m"), ask(database, "m2")
    with held(connection, database):
        close(database)
        with pytest.raises(errors.ObjectNotInPrerequisiteState, match="is closed"):
            ask(database, "m3")
    assert outcome(connection, request)[0] == "done"
    assert outcome(connection, next_one)[0] == "refused"


def charged_and_left(database: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """A request whose model was stored by a service that ended before it said so."""
    offer(database)
    request = ask(database, "m")

    def train_and_die(*arguments: Any, **more: Any) -> None:
        train_model(*arguments, **more)
        raise KeyboardInterrupt

    monkeypatch.setattr(requests, "train_model", train_and_die)
    with pytest.raises(KeyboardInterrupt):
        serve(database)
    monkeypatch.undo()
    return request


@pytest.mark.one_major
def test_what_was_charged_before_the_limits_changed_stays_charged(
    database: str, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service ended after the charge, and the offer of now does not allow what was asked for."""
    request = charged_and_left(database, monkeypatch)
    register(database, max_epsilon=Decimal("0.05"))
    serve(database)
    state, message, charge = outcome(connection, request)
    assert state == "failed"
    assert message.endswith(f"asks for 0.1; entry {charge} of dpml.ledger stays charged")


@pytest.mark.one_major
def test_what_was_charged_before_the_closing_is_done(
    database: str, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service ended after the model was stored, and before it said so."""
    request = charged_and_left(database, monkeypatch)
    close(database)
    assert serve(database) == [f"request {request} by 'ana' on 'census': done"]
    assert entries(connection) == 2  # the charge and the end


# Which fault is named first


@pytest.mark.one_major
def test_the_greater_fault_is_named_first(database: str, connection: psycopg.Connection) -> None:
    """Exists, right, open, limits of a request, what is left: each beside all faults that come after it."""
    offer(
        database,
        epsilon="1",
        max_epsilon=Decimal("0.5"),
        max_delta=Decimal("1e-3"),
        min_epsilon=Decimal("0.1"),
    )
    far = {"privacy": {"epsilon": 3, "delta": 0.01}, "training": {"method": "bolt-on", "passes": 10**4}}

    def asked(options: Any, model: str = "m") -> str:
        request = ask(database, model, options)
        serve(database)
        state, message, charge = outcome(connection, request)
        assert (state, charge) == ("refused", None), message
        return message

    # when it is filed
    withdraw(database)
    for dataset, fault in (("nothing", "no data set called"), ("census", "data set census was withdrawn")):
        with pytest.raises(errors.UndefinedObject, match=f"^{fault}"):
            ask(database, "", "[]", dataset=dataset)
    register(database)
    # when it is served: the right, before what is asked for
    late = ask(database, "m", far)
    connection.execute("REVOKE dpml_analyst FROM ana")
    serve(database)
    connection.execute("GRANT dpml_analyst TO ana")
    assert outcome(connection, late)[1].startswith(
        "data set census is not offered to role ana any more; ask role"
    )
    # that the table may be read, before what is asked for
    connection.execute("REVOKE SELECT ON people FROM owner")
    assert asked(far) == "permission denied for table people; ask role owner, which serves data set census"
    connection.execute("GRANT SELECT ON people TO owner")
    # limits of one request, before what is left of the budget
    for number in range(2):
        ask(
            database,
            f"spent{number}",
            {"privacy": {"epsilon": 0.5, "delta": 1e-6}, "training": {"method": "bolt-on"}},
        )
    assert [line.rsplit(": ")[-1] for line in serve(database)] == ["done", "done"]
    misspelt = {"privacy": far["privacy"], "training": {"method": "bolt"}}
    assert asked(misspelt).startswith("method must be one of")
    assert asked(far).startswith("epsilon must be at most 0.5, as data set census (registered by role owner)")
    within = {"epsilon": 0.5, "delta": 0.01}
    assert asked({"privacy": within, "training": {"method": "bolt-on"}}).startswith(
        "delta must be from 0 to 0.001"
    )
    low = {"epsilon": 1e-3, "delta": 1e-6}
    assert asked({"privacy": low, "training": {"method": "bolt-on"}}).startswith(
        "epsilon must be at least 0.1"
    )
    fine = {"epsilon": 0.2, "delta": 1e-6}
    assert "has epsilon = 0 and delta" in asked(
        {"privacy": fine, "training": {"method": "bolt-on"}}, "spent0"
    )
    # an end of the budget, before all of these, also for what was filed before it
    before = [ask(database, "m", options) for options in (far, {"privacy": {"epsilon": 1e-11}}, "{}")]
    close(database)
    serve(database)
    for request in before:
        assert "the budget of data set census is closed" in outcome(connection, request)[1]


def test_a_message_tells_no_more_than_its_reader_may_know(
    database: str, connection: psycopg.Connection
) -> None:
    """The log of the service has what its own role may do, and the names of other data sets."""
    offer(database)
    connection.execute("GRANT dpml_analyst TO owner")
    open_budget(database, "secret", by="clerk")
    connection.execute("GRANT SELECT ON people TO clerk")
    try:
        for fault, mend, log, told in (
            (
                "REVOKE SELECT ON people FROM owner",
                "GRANT SELECT ON people TO owner",
                'it takes GRANT SELECT ON "people" TO "owner"',
                "permission denied for table people",
            ),
            (
                "UPDATE dpml.budgets SET unit = 'id' WHERE dataset = 'census'",
                "UPDATE dpml.budgets SET unit = NULL WHERE dataset = 'census'",
                "open it again for the other unit: dpml budget open census",
                "the budget of data set census is for unit = id, and this run has no unit: one budget has "
                "one unit of privacy",
            ),
            (
                "INSERT INTO dpml.budget_relations (dataset, relation, listed) "
                "VALUES ('secret', 'people'::regclass, true)",
                "SET session_replication_role = replica; TRUNCATE dpml.budget_relations; "
                "RESET session_replication_role",
                "belongs to data set secret, not census",
                "the table, or one that it shares rows with, is in the budget of another data set",
            ),
        ):
            connection.execute(fault.encode())
            request = ask(database, "m")
            (line,) = serve(database)
            connection.execute(mend.encode())
            assert log in line
            state, message, charge = outcome(connection, request)
            assert (state, charge) == ("refused", None)
            assert message == f"{told}; {ASK_OWNER}"
    finally:
        connection.execute("REVOKE dpml_analyst FROM owner; REVOKE SELECT ON people FROM clerk")


# What has changed since the data set was registered


@pytest.mark.one_major
def test_a_name_that_is_taken(database: str, connection: psycopg.Connection) -> None:
    offer(database)
    first, second = ask(database, "m"), ask(database, "m", role="ben")
    serve(database)
    assert outcome(connection, first)[0] == "done"
    state, message, charge = outcome(connection, second)
    assert (state, charge) == ("refused", None)
    assert message.startswith("a model called m exists: choose another name")
    assert entries(connection) == 1


@pytest.mark.one_major
def test_only_the_table_that_was_registered_is_read(database: str, connection: psycopg.Connection) -> None:
    offer(database)
    connection.execute("ALTER TABLE people RENAME TO citizens")
    try:
        gone = ask(database, "m")
        serve(database)
        assert outcome(connection, gone)[0] == "refused"
        assert 'table "public"."people" does not exist' in outcome(connection, gone)[1]
        connection.execute("CREATE VIEW people AS SELECT * FROM citizens; ALTER VIEW people OWNER TO ana")
        connection.execute("GRANT SELECT ON people TO owner")
        other = ask(database, "m")
        serve(database)
        assert "belongs to another role than when" in outcome(connection, other)[1]
        # One that comes earlier on the search_path is not it either.
        connection.execute("DROP VIEW people; ALTER TABLE citizens RENAME TO people")
        connection.execute('CREATE SCHEMA "owner"; CREATE TABLE "owner".people (x int)')
        shadowed = ask(database, "m")
        serve(database)
        assert outcome(connection, shadowed)[0] == "done"
    finally:
        connection.execute('DROP SCHEMA IF EXISTS "owner" CASCADE; DROP VIEW IF EXISTS people_view')
    assert entries(connection) == 1


@pytest.mark.one_major
def test_who_lost_the_right_is_refused(database: str, connection: psycopg.Connection) -> None:
    offer(database)
    late = ask(database, "m")
    connection.execute("REVOKE dpml_analyst FROM ana")
    try:
        serve(database)
        assert "not offered to role ana any more" in outcome(connection, late)[1]
    finally:
        connection.execute("GRANT dpml_analyst TO ana")
    waiting = ask(database, "m", role="ben")
    withdraw(database)
    assert outcome(connection, waiting) == ("refused", "the data set was withdrawn", None)
    with pytest.raises(errors.UndefinedObject, match="data set census was withdrawn, and") as told:
        ask(database, "m")
    assert str(told.value.diag.message_hint).startswith("Ask role owner, who registered it; SELECT")
    register(database)  # offered again: what was refused stays refused
    assert serve(database) == []
    assert entries(connection) == 0


@pytest.mark.one_major
def test_a_data_set_is_for_its_role_alone(database: str, connection: psycopg.Connection) -> None:
    connection.execute("CREATE ROLE cardiology; GRANT cardiology TO ben")
    try:
        offer(database, name="heart", max_epsilon=Decimal("0.5"))
        register(database, name="heart", role="cardiology")  # the offer is changed
        register(database, name="heart")  # and stays as it is where nothing is said
        query = "SELECT role || max_epsilon FROM dpml.datasets"
        assert scalar(connection, query) == "cardiology0.5"
        with pytest.raises(errors.UndefinedObject):
            ask(database, "m", dataset="heart")
        assert outcome(connection, ask(database, "m", dataset="heart", role="ben"))[0] == "waiting"
        with Database(of("ana", database)).session() as session:
            assert datasets.list_datasets(session) == []
        with Database(of("ben", database)).session() as session:
            assert [found.spec for found in datasets.list_datasets(session)] == [SPEC]
        withdraw(database, "heart")
        for role, told in (("ben", "data set heart was withdrawn"), ("ana", "no data set called heart is")):
            with pytest.raises(errors.UndefinedObject, match=f"^{told}"):
                ask(database, "m", role=role, dataset="heart")
    finally:
        connection.execute("DROP ROLE cardiology")
    serve(database)
    assert scalar(connection, "SELECT state FROM dpml.requests") == "refused"


# Other curators


def test_a_service_serves_what_its_own_role_registered(database: str, connection: psycopg.Connection) -> None:
    """Else who may not read a table could have another's service read it, for a budget of his own."""
    connection.execute("GRANT SELECT ON people TO clerk")
    offer(database, name="mine", epsilon="1000", by="clerk")
    connection.execute("REVOKE SELECT ON people FROM clerk")
    request = ask(database, "m", dataset="mine")
    assert serve(database) == []
    with psycopg.connect(of("owner", database), autocommit=True) as owner:
        for statement in (
            "UPDATE dpml.requests SET state = 'failed'",
            "UPDATE dpml.datasets SET role = 'eve'",
        ):
            assert owner.execute(statement.encode()).rowcount == 0
    with pytest.raises(SpecError, match="registered by another role"):
        register(database, name="mine")
    with pytest.raises(SpecError, match="has registered no data set called mine"):
        withdraw(database, "mine")
    (line,) = serve(database, "clerk")
    assert line.startswith(
        f"request {request} by 'ana' on 'mine': refused: permission denied for table people"
    )
    assert "permission denied for table people" in outcome(connection, request)[1]
    assert entries(connection) == 0


@pytest.mark.one_major
def test_an_owner_refuses_one_request(database: str, connection: psycopg.Connection) -> None:
    """By hand, while it waits; what the service did not train is not done."""
    offer(database)
    request, kept = ask(database, "m"), ask(database, "m2")
    with psycopg.connect(of("owner", database), autocommit=True) as owner:
        with pytest.raises(errors.ObjectNotInPrerequisiteState, match="is waiting and cannot become done"):
            owner.execute("UPDATE dpml.requests SET state = 'done'")
        refuse = "UPDATE dpml.requests SET state = 'refused', message = 'no' WHERE id = %s AND state = %s"
        assert owner.execute(refuse, (request, "waiting")).rowcount == 1
    assert serve(database) == [f"request {kept} by 'ana' on 'census': done"]
    assert outcome(connection, request) == ("refused", "no", None)


def test_what_became_of_a_request_stays(database: str, connection: psycopg.Connection) -> None:
    offer(database)
    ask(database, "m")
    serve(database)
    with psycopg.connect(of("owner", database), autocommit=True) as owner:
        with pytest.raises(errors.ObjectNotInPrerequisiteState, match="is done and cannot become waiting"):
            owner.execute("UPDATE dpml.requests SET state = 'waiting'")
        for statement in ("UPDATE dpml.requests SET model = 'x'", "DELETE FROM dpml.requests"):
            with pytest.raises(errors.InsufficientPrivilege):
                owner.execute(statement.encode())


@pytest.mark.one_major
@pytest.mark.parametrize(
    ("spec", "more", "error", "message"),
    [
        (SPEC.replace("people", "nowhere"), {}, SpecError, "nowhere does not exist"),
        (SPEC.replace('"people"', '"people"\ndataset = "x"'), {}, SpecError, "dataset = x"),
        (SPEC.replace('"people"', '"people"\nunit = "id"'), {}, GuaranteeError, "is for no unit"),
        (SPEC, {"role": "nobody"}, SpecError, "role: there is no role called nobody"),
        (SPEC, {"max_epsilon": Decimal("NaN")}, SpecError, "max_epsilon must be"),
        (SPEC, {"min_epsilon": Decimal("NaN")}, SpecError, "min_epsilon must be"),
        (SPEC, {"max_passes": 0}, SpecError, "max_passes must be"),
        ("table =", {}, SpecError, "is not a TOML file"),
    ],
)
def test_what_is_not_registered(
    database: str, connection: psycopg.Connection, spec: str, more: dict[str, Any], error: type, message: str
) -> None:
    with pytest.raises(error, match=message):
        offer(database, spec, **more)
    assert scalar(connection, "SELECT count(*) FROM dpml.datasets") == 0


@pytest.mark.one_major
def test_a_data_set_has_a_budget(database: str) -> None:
    with pytest.raises(SpecError, match="no budget: dpml budget open census"):
        register(database)


# Services that die


@pytest.mark.one_major
def test_services_share_the_work(database: str, connection: psycopg.Connection) -> None:
    connection.execute("CREATE TABLE others AS TABLE people; GRANT SELECT ON others TO owner")
    offer(database)
    offer(database, SPEC.replace("people", "others"), name="other")
    for number in range(4):
        ask(database, f"a{number}")
        ask(database, f"b{number}", dataset="other")
    with ThreadPoolExecutor(4) as pool:
        lines = [line for lines in pool.map(lambda _: serve(database), range(4)) for line in lines]
    assert len(lines) == len(set(lines)) == 8
    assert entries(connection) == scalar(connection, "SELECT count(*) FROM dpml.models") == 8


@pytest.mark.one_major
def test_what_a_service_began_is_ended_by_the_next(
    database: str, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(database)
    request = ask(database, "m")

    def die(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(requests, "train_model", die)  # before the charge
    with pytest.raises(KeyboardInterrupt):
        serve(database)
    assert outcome(connection, request) == ("running", "", None)

    def train_and_die(*arguments: Any, **more: Any) -> None:
        train_model(*arguments, **more)
        raise KeyboardInterrupt

    monkeypatch.setattr(requests, "train_model", train_and_die)  # the model is stored, and nobody knows
    with pytest.raises(KeyboardInterrupt):
        serve(database)
    monkeypatch.undo()
    assert outcome(connection, request) == ("running", "", None)
    weights = scalar(connection, "SELECT weights FROM dpml.models")
    assert serve(database) == [f"request {request} by 'ana' on 'census': done"]
    assert scalar(connection, "SELECT weights FROM dpml.models") == weights
    assert entries(connection) == 1


@pytest.mark.one_major
@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGTERM])
def test_a_service_that_ends_during_a_run(
    database: str, connection: psycopg.Connection, by: signal.Signals
) -> None:
    """What was charged stays charged, and is not run again."""
    offer(database, SLOW)
    request = ask(database, "m")
    connection.execute("SELECT pg_advisory_lock(%s)", (HELD,))
    service = subprocess.Popen([*SERVE, of("owner", database)], stderr=subprocess.PIPE, text=True)
    try:
        until(lambda: waits(connection))
        os.kill(service.pid, by)
        _, stderr = service.communicate(timeout=60)
    finally:
        service.kill()
        connection.execute("SELECT pg_advisory_unlock_all()")
    if by is signal.SIGTERM:
        assert service.returncode == 143
        assert outcome(connection, request)[0] == "failed"
        assert "stay charged" in stderr
    else:
        assert outcome(connection, request)[0] == "running"
    until(lambda: not scalar(connection, "SELECT count(*) FROM pg_stat_activity WHERE usename = 'owner'"))
    serve(database)
    state, text, charge = outcome(connection, request)
    assert (state, entries(connection)) == ("failed", 1)
    assert f"entry {charge} of dpml.ledger" in text
    assert scalar(connection, "SELECT count(*) FROM dpml.models") == 0


@pytest.mark.one_major
@pytest.mark.parametrize("how", [Loss.REQUEST, Loss.ANSWER], ids=["request", "answer"])
@pytest.mark.parametrize("all_requests", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_connection_lost_while_serving(
    database: str, connection: psycopg.Connection, how: Loss, all_requests: bool
) -> None:
    """The next service finds out what was written, and nothing is charged twice."""
    offer(database, epsilon="100")
    with FaultProxy(of("owner", database)) as proxy:
        ask(database, "first")
        assert len(serve(proxy.dsn)) == 1
        texts = proxy.requests
        for number in range(1, len(texts) + 1):
            if not all_requests and texts[number - 1] != "COMMIT":
                continue
            before, name = entries(connection), f"m{number}"
            request = ask(database, name)
            proxy.arm(lambda n, text, number=number: how if n == number else Loss.NONE)  # type: ignore[misc]
            with suppress(DpmlError):
                serve(proxy.dsn)
            until(
                lambda: (
                    not scalar(connection, "SELECT count(*) FROM pg_stat_activity WHERE usename = 'owner'")
                )
            )
            serve(database)
            state, message, charge = outcome(connection, request)
            stored = scalar(connection, "SELECT count(*) FROM dpml.models WHERE charge = %s", charge)
            assert (state, stored) in (("done", 1), ("failed", 0)), message
            assert entries(connection) == before + 1


@pytest.mark.one_major
def test_a_service_outlives_its_connections(database: str, connection: psycopg.Connection) -> None:
    offer(database, SLOW)
    first = ask(database, "m")
    with pytest.raises(DpmlError), held(connection, database):
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'owner'")
    assert outcome(connection, first)[0] == "failed"
    second = ask(database, "m")
    serve(database)
    assert outcome(connection, second)[0] == "done"
    assert entries(connection) == 2


@pytest.mark.one_major
def test_a_dump_keeps_requests(
    server: EmbeddedServer, database: str, connection: psycopg.Connection, tmp_path: Path
) -> None:
    offer(database)
    ask(database, "m")
    serve(database)
    withdraw_request(database, ask(database, "m1"))
    waiting = ask(database, "m2")
    folder = find_pg_config(server.major).parent
    file = str(tmp_path / "dump")

    def tool(name: str, *arguments: str) -> None:
        done = subprocess.run([folder / name, *arguments], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")

    tool("pg_dump", "--format", "custom", "--file", file, "--dbname", database)
    connection.execute("CREATE DATABASE restored_requests")
    copy = server.dsn_of("restored_requests")
    try:
        tool("pg_restore", "--exit-on-error", "--dbname", copy, file)
        query = "SELECT * FROM dpml.requests ORDER BY id"
        with psycopg.connect(copy, autocommit=True) as other:
            assert other.execute(query).fetchall() == connection.execute(query).fetchall()
            assert serve(copy) == [f"request {waiting} by 'ana' on 'census': done"]
            assert ask(copy, "m3") > waiting
    finally:
        connection.execute("DROP DATABASE restored_requests WITH (FORCE)")


# The commands


@pytest.mark.one_major
def test_the_commands(database: str, connection: psycopg.Connection, tmp_path: Path) -> None:
    spec = tmp_path / "census.toml"
    spec.write_text(SPEC, encoding="utf-8")

    def dpml(*arguments: str, role: str = "owner") -> Any:
        return CliRunner().invoke(app, [*arguments, "--dsn", of(role, database)])

    assert dpml("dataset", "register", "census", str(spec)).exit_code == 2
    dpml("budget", "open", "census", "--epsilon", "1", "--delta", "1e-5")
    done = dpml("dataset", "register", "census", str(spec), "--max-epsilon", "0.5", "--max-passes", "10")
    assert (done.exit_code, done.stdout) == (
        0,
        'census: table "public"."people", offered to role dpml_analyst; epsilon from 0.0228 to 0.5, '
        "delta from 0 to 1e-05 and up to 10 passes a request; served by role owner\n",
    )
    listed = dpml("dataset", "list", "--format", "json", role="ana")
    (found,) = json.loads(listed.stdout)["datasets"]
    assert [found[key] for key in ("min_epsilon", "max_epsilon")] == ["0.0228", "0.5"]
    assert [found[key] for key in ("min_delta", "max_delta")] == ["0", "0.00001"]
    changed = dpml(
        *("dataset", "register", "census", str(spec), "--format", "json"),
        *("--min-epsilon", "0.03", "--min-delta", "1e-9", "--max-delta", "1e-6", "--allow-certified"),
    )
    assert (found["allow_certified"], json.loads(changed.stdout)["allow_certified"]) == (False, True)
    assert "10 passes a request, solver certified allowed; served by" in dpml("dataset", "list").stdout
    found = json.loads(changed.stdout)
    assert [found[key] for key in ("min_epsilon", "min_delta", "max_delta")] == ["0.03", "1E-9", "0.000001"]
    request = ask(database, "m")
    done = dpml("serve", "--once")
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr == (
        f"dpml: role owner serves census\ndpml: request {request} by 'ana' on 'census': done\n"
    )
    assert dpml("serve", "--once", role="clerk").stderr == (
        "dpml: role clerk serves nothing: it has registered no data set\n"
    )
    assert "withdrawn" in dpml("dataset", "withdraw", "census").stdout
    assert dpml("dataset", "withdraw", "nothing").exit_code == 2
    assert dpml("serve", "--once", role="eve").exit_code == 2
