# SPDX-License-Identifier: PostgreSQL
"""Who may do what: rights on every object, models of roles, and SQL that no other role can bend."""

from __future__ import annotations

import ast
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from psycopg import errors
from typer.testing import CliRunner

import pg_dpml
from helpers import people
from helpers.plans import examples
from helpers.sqltools import empty_registry, scalar
from pg_dpml import Column, DataSpec, Label, PrivacySpec, TrainSpec
from pg_dpml.cli.framework import app
from pg_dpml.database.database import Database
from pg_dpml.errors import GuaranteeError
from pg_dpml.reports import plots
from pg_dpml.runs import datasets, requests
from pg_dpml.tables.checks import check_table

N = 300
PRIVACY = PrivacySpec(2.0, 1e-6)
BOLT_ON = TrainSpec(method="bolt-on", passes=1)

# A new function fails the test below until somebody has decided who may call it.
FOR_EVERYBODY = {
    "block_capacity(text,integer,integer)",
    "help(text)",
    "label(text,record)",
    "module_version()",
    "predict(text,record)",
    "predict_proba(text,record)",
    "predict_value(text,record)",
}
FOR_ANALYSTS = {
    "request(text,text,jsonb)",
    "require_autocommit()",
    "train(text,text,jsonb)",
    "withdraw_request(bigint)",
}
FOR_BOTH = {"drop_model(text)"}
FOR_CURATORS = {
    "budgets_on(oid[])",
    "duals(bytea)",
    "encode(jsonb,record)",
    "encode(jsonb,record,boolean)",
    "gradient(bytea,double precision[],jsonb)",
    "gram(bytea)",
    "gram(bytea,double precision[],jsonb)",
    "batch_sizes(bigint,integer)",
    "on_shards(bigint,text,bigint[],text[],text[],double precision[])",
    "shard_id(oid)",
    "random_key()",
    "sgd_allocated(integer,bytea,dpml.epoch,integer[],jsonb)",
    "loss(bytea,double precision[],jsonb)",
    "loss(double precision[],double precision,double precision[],jsonb)",
    'number("any")',
    'numbers("any",integer)',
    'sparse_numbers("any","any",integer,integer)',
    'sparse_numbers("any",integer)',
    "pack(bytea)",
    "pack(bytea,integer,integer)",
    "poisson_steps(bytea,integer,double precision)",
    "rows(bytea)",
    "scd_epoch(double precision[],double precision,double precision,double precision[],jsonb)",
    "scd_epoch(integer,bytea,bytea,dpml.scd_pass,jsonb)",
    "scd_gap(bytea,bytea,double precision[],jsonb)",
    "sgd_epoch(double precision[],double precision,double precision[],jsonb)",
    "sgd_epoch(integer,bytea,dpml.epoch,jsonb)",
    "sgd_poisson(integer,bytea,dpml.epoch,jsonb)",
    "sgd_poisson_steps(integer,bytea,integer,dpml.epoch,jsonb)",
    "unpack(bytea)",
    "whiten(bytea,double precision[],double precision)",
    "whiten(bytea,double precision[],double precision,double precision)",
}
FOR_NOBODY = (  # PostgreSQL calls them, for those who may call the aggregate or write to the table
    "p.prorettype = 'trigger'::regtype OR EXISTS (SELECT FROM pg_aggregate g "
    "WHERE p.oid IN (g.aggtransfn, g.aggcombinefn, g.aggfinalfn))"
)

ROLES = {
    "boss": "LOGIN SUPERUSER",
    "carol": "LOGIN IN ROLE dpml_curator",
    "ann": "LOGIN IN ROLE dpml_analyst",
    "ben": "LOGIN IN ROLE dpml_analyst",
    "outsider": "LOGIN",
    "team": "NOLOGIN",
    "mallory": "LOGIN",
}


@pytest.fixture(scope="module", autouse=True)
def world(database: str) -> Iterator[None]:
    """Roles, and tables that carol may read."""
    with psycopg.connect(database, autocommit=True) as connection:
        for role, options in ROLES.items():
            connection.execute(f"CREATE ROLE {role} {options}".encode())
        people.create_people(connection, people.make_people(N))
        connection.execute("ALTER TABLE people ADD person int; UPDATE people SET person = id / 2")
        connection.execute("CREATE TABLE known AS TABLE people")
        connection.execute("GRANT SELECT ON people, known TO carol, mallory")
        connection.execute("GRANT SELECT ON known TO ann, ben, outsider")
    yield
    with psycopg.connect(database, autocommit=True) as connection:
        for role in ROLES:
            connection.execute(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}".encode())


@pytest.fixture(autouse=True)
def nothing_spent(connection: psycopg.Connection) -> None:
    empty_registry(connection)


def as_role(database: str, role: str) -> str:
    return database.replace("user='postgres'", f"user='{role}'")


def dpml(dsn: str, *arguments: str) -> Any:
    """Run a command in this process."""
    return CliRunner().invoke(app, [*arguments, "--dsn", dsn])


def good(result: Any) -> str:
    assert (result.exit_code, result.stderr) == (0, "")
    return str(result.stdout)


def refusal(result: Any) -> str:
    assert (result.exit_code, result.stdout) == (2, "")
    return str(result.stderr)


# The catalog


def functions(connection: psycopg.Connection, condition: str) -> set[str]:
    """Functions, procedures and aggregates of the extension, or in its schemas."""
    rows = connection.execute(
        "SELECT pg_catalog.replace(p.oid::regprocedure::text, 'dpml.', '') FROM pg_catalog.pg_proc p "
        "WHERE (p.pronamespace IN ('dpml'::regnamespace, 'dpml_work'::regnamespace) OR EXISTS (SELECT "
        "FROM pg_depend d JOIN pg_extension x ON x.oid = d.refobjid AND x.extname = 'pg_dpml' "
        "WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e')) "
        f"AND ({condition})".encode()
    ).fetchall()
    return {re.sub(r"\b(epoch|scd_pass)\b", r"dpml.\1", name) for (name,) in rows}


def test_who_may_call_what(connection: psycopg.Connection) -> None:
    def callable_by(role: str) -> set[str]:
        return functions(connection, f"has_function_privilege('{role}', p.oid, 'EXECUTE')")

    assert functions(connection, f"NOT ({FOR_NOBODY})") == (
        FOR_EVERYBODY | FOR_ANALYSTS | FOR_BOTH | FOR_CURATORS
    )
    assert len(functions(connection, FOR_NOBODY)) > 20
    assert callable_by("public") == FOR_EVERYBODY
    assert callable_by("dpml_analyst") == FOR_EVERYBODY | FOR_ANALYSTS | FOR_BOTH
    # Citus asks for the right to the transition of the aggregate that it pushes down.
    pushed = {"on_shards_transition(bigint,bigint,text,bigint[],text[],text[],double precision[])"}
    assert callable_by("dpml_curator") == FOR_EVERYBODY | FOR_BOTH | FOR_CURATORS | pushed


def test_who_may_read_and_write_what(connection: psycopg.Connection) -> None:
    rights = connection.execute(
        "SELECT c.relname, coalesce(r.rolname, 'public'), "
        "array_agg(a.privilege_type::text ORDER BY a.privilege_type) "
        "FROM pg_class c, aclexplode(coalesce(c.relacl, acldefault("
        "CASE c.relkind WHEN 'S' THEN 's' ELSE 'r' END::\"char\", c.relowner))) a "
        "LEFT JOIN pg_roles r ON r.oid = a.grantee "
        "WHERE c.relnamespace IN ('dpml'::regnamespace, 'dpml_work'::regnamespace) "
        "AND c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S') AND a.grantee <> c.relowner GROUP BY 1, 2"
    ).fetchall()
    assert {(name, role): kinds for name, role, kinds in rights} == {
        ("ledger", "dpml_curator"): ["SELECT"],
        ("budgets", "dpml_curator"): ["SELECT"],
        ("budget_entries", "dpml_curator"): ["SELECT"],
        ("budget_relations", "dpml_curator"): ["SELECT"],
        ("budget_turn", "dpml_curator"): ["SELECT"],
        ("models", "dpml_curator"): ["SELECT"],
        ("models", "dpml_analyst"): ["SELECT"],
        ("datasets", "dpml_curator"): ["SELECT"],
        ("datasets", "dpml_analyst"): ["SELECT"],
        ("closed_datasets", "dpml_curator"): ["SELECT"],
        ("closed_datasets", "dpml_analyst"): ["SELECT"],
        ("requests", "dpml_curator"): ["SELECT"],
        ("requests", "dpml_analyst"): ["SELECT"],
        # keep_defaults compares the number of a new row with the one that was given last
        ("ledger_id_seq", "dpml_curator"): ["SELECT"],
        ("requests_id_seq", "dpml_analyst"): ["SELECT"],
    }
    columns = connection.execute(
        "SELECT c.relname, a.attname, x.grantee::regrole::text, x.privilege_type FROM pg_attribute a "
        "JOIN pg_class c ON c.oid = a.attrelid, aclexplode(a.attacl) x "
        "WHERE c.relnamespace = 'dpml'::regnamespace ORDER BY 1, 2, 3"
    ).fetchall()
    assert {role for _, _, role, _ in columns} == {"dpml_analyst", "dpml_curator"}
    by_analysts = {(table, column, kind) for table, column, role, kind in columns if role == "dpml_analyst"}
    asked = {("requests", column, "INSERT") for column in ("dataset", "model", "options")}
    own = {
        ("models", "granted_to", "UPDATE"),
        ("drops", "model", "INSERT"),
        ("withdrawals", "request", "INSERT"),
    }
    assert by_analysts == own | asked
    # of the ledger and budgets nothing can be changed: a trigger refuses what is only there for its lock
    assert {kind for table, _, _, kind in columns if table in ("ledger", "budget_entries")} == {"INSERT"}
    # who charged, when, and under which number is not the curator's to say
    inserted = {(table, column) for table, column, _, kind in columns if kind == "INSERT"}
    for table, column in (
        *(("ledger", name) for name in ("id", "charged_at", "charged_by")),
        *(("budgets", name) for name in ("opened_at", "opened_by")),
        *(("budget_entries", name) for name in ("entered_at", "entered_by")),
        ("models", "created_at"),
        ("drops", "dropped_by"),
        ("withdrawals", "withdrawn_by"),
    ):
        assert (table, column) not in inserted


def test_who_may_use_the_schemas(connection: psycopg.Connection) -> None:
    def allowed(role: str) -> list[tuple[str, str]]:
        return [
            (schema, right)
            for schema in ("dpml", "dpml_work")
            for right in ("USAGE", "CREATE")
            if scalar(connection, "SELECT has_schema_privilege(%s, %s, %s)", role, schema, right)
        ]

    assert allowed("public") == allowed("dpml_analyst") == [("dpml", "USAGE")]
    assert allowed("dpml_curator") == [("dpml", "USAGE"), ("dpml_work", "USAGE"), ("dpml_work", "CREATE")]


def test_bodies_cannot_be_bent_by_a_search_path(connection: psycopg.Connection) -> None:
    """Of SQL functions names are resolved when they are created, of others by a path of their own.

    `dpml.train` commits, so it can have none: that its names are qualified is tried in a hostile path.
    """
    language = "(SELECT lanname FROM pg_language l WHERE l.oid = p.prolang)"
    assert functions(connection, f"{language} = 'sql' AND p.prosqlbody IS NULL") == set()
    own_path = "EXISTS (SELECT FROM unnest(p.proconfig) c (c) WHERE c ~ '^search_path=pg_catalog,.*pg_temp$')"
    compiled = f"{language} IN ('c', 'internal', 'sql')"
    assert functions(connection, f"NOT {compiled} AND NOT {own_path}") == {"train(text,text,jsonb)"}
    definers = connection.execute(
        "SELECT p.proname, p.proconfig FROM pg_proc p "
        "WHERE p.pronamespace = 'dpml'::regnamespace AND p.prosecdef"
    ).fetchall()
    path = ["search_path=pg_catalog, dpml, pg_temp"]
    assert sorted(definers) == [
        (n, path) for n in ("carry_out_drop", "carry_out_withdrawal", "hold_extension")
    ]


def test_every_call_in_the_controllers_sql_is_qualified() -> None:
    """Of functions; operators are tried below."""
    keywords = {"ALL", "ANY", "ARRAY", "GROUPING", "OPERATOR", "ROW", "coalesce", "greatest", "least"}
    for path in sorted(Path(pg_dpml.__file__).parent.rglob("*.py")):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(call, ast.Call) or getattr(call.func, "attr", "") not in ("SQL", "rows"):
                continue
            for text in (part.value for part in ast.walk(call) if isinstance(part, ast.Constant)):
                called = set(re.findall(r"(?<![\w.'])([A-Za-z_]{2,})\(", str(text)))
                assert called <= keywords, (path.name, text)


# Models belong to roles


def train(dsn: str, name: str, **arguments: Any) -> pg_dpml.TrainResult:
    return pg_dpml.train(dsn, people.spec(), PRIVACY, BOLT_ON, name=name, **arguments)


def seen_by(database: str, role: str) -> list[str]:
    with psycopg.connect(as_role(database, role)) as connection:
        return [name for (name,) in connection.execute("SELECT name FROM dpml.models ORDER BY name")]


def predicted_by(database: str, role: str, model: str) -> int:
    with psycopg.connect(as_role(database, role)) as connection:
        return int(scalar(connection, "SELECT count(dpml.predict(%s, t)) FROM known t", model))


@pytest.mark.one_major
def test_models_are_seen_by_owner_grantees_and_curators(
    database: str, connection: psycopg.Connection
) -> None:
    carol, ann, ben = (as_role(database, role) for role in ("carol", "ann", "ben"))
    assert train(carol, "own").model.name == "own"
    train(carol, "for ann", owner="ann")
    train(carol, "for team", owner="team")
    train(database, "superuser's")
    everything = ["for ann", "for team", "own", "superuser's"]
    assert seen_by(database, "carol") == seen_by(database, "postgres") == everything
    assert (seen_by(database, "ann"), seen_by(database, "ben")) == (["for ann"], [])
    with pytest.raises(errors.InsufficientPrivilege):
        seen_by(database, "outsider")
    assert predicted_by(database, "ann", "for ann") == N

    # what one may not see does not exist
    for command in (
        ("show",),
        ("export",),
        ("report", "-o", "/dev/null"),
        ("drop", "--yes"),
        ("grant", "ann"),
    ):
        message = refusal(dpml(ben, command[0], "own", *command[1:]))
        assert message.startswith("dpml: there is no model called own, or it was not granted to you")
    message = refusal(dpml(ben, "evaluate", "own", "--table", "known", "--public"))
    assert "or it was not granted to you" in message
    with pytest.raises(errors.UndefinedObject, match='model "own" does not exist, or was not granted to you'):
        predicted_by(database, "ben", "own")
    assert "No models yet" in good(dpml(ben, "models"))

    # the owner grants and revokes, a grantee does neither
    assert good(dpml(ann, "grant", "for ann", "ben")) == 'Model "for ann" belongs to ann, granted to ben\n'
    assert predicted_by(database, "ben", "for ann") == N
    for command in (("grant", "outsider"), ("revoke", "ben"), ("drop", "--yes")):
        assert "belongs to ann, and only a member" in refusal(dpml(ben, command[0], "for ann", *command[1:]))
    good(dpml(ann, "grant", "for ann", "ben"))
    granted_to = "SELECT granted_to::text FROM dpml.models WHERE name = 'for ann'"
    assert scalar(connection, granted_to) == "{ben}"
    assert "Granted to  ben" in good(dpml(ben, "show", "for ann"))
    assert (
        good(dpml(ann, "revoke", "for ann", "ben")) == 'Model "for ann" belongs to ann, granted to nobody\n'
    )
    assert seen_by(database, "ben") == []
    good(dpml(carol, "grant", "own", "PUBLIC"))
    assert seen_by(database, "ben") == ["own"]
    assert "was not granted to ben, but to public" in refusal(dpml(carol, "revoke", "own", "ben"))
    good(dpml(carol, "revoke", "own", "Public"))
    assert "no role called nobody" in refusal(dpml(carol, "grant", "own", "nobody"))

    assert "Warning" not in good(dpml(carol, "grant", "own", "carol"))
    good(dpml(carol, "revoke", "own", "carol"))

    # a grant to a role is one to its members, and what a role owns is its members'
    good(dpml(carol, "grant", "superuser's", "team"))
    connection.execute("GRANT team TO ben")
    assert seen_by(database, "ben") == ["for team", "superuser's"]
    good(dpml(ben, "drop", "for team", "--yes"))
    good(dpml(carol, "drop", "for ann", "--yes"))
    connection.execute("REVOKE team FROM ben")
    assert (seen_by(database, "ann"), seen_by(database, "ben")) == ([], [])


@pytest.mark.one_major
def test_models_in_sql(database: str, connection: psycopg.Connection) -> None:
    train(database, "m", owner="ann")
    with psycopg.connect(as_role(database, "ann"), autocommit=True) as own:
        own.execute("UPDATE dpml.models SET granted_to = '{ben,public}' WHERE name = 'm'")
        for statement in (
            "UPDATE dpml.models SET owner = 'ben'",
            "UPDATE dpml.models SET weights = '{}'",
            "INSERT INTO dpml.models SELECT * FROM dpml.models",
            "TRUNCATE dpml.models",
            "ALTER TABLE dpml.models DISABLE ROW LEVEL SECURITY",
            "CREATE POLICY mine ON dpml.models USING (true)",
        ):
            with pytest.raises(errors.InsufficientPrivilege):
                own.execute(statement.encode())
        own.execute("UPDATE dpml.models SET granted_to = '{}'")
    with psycopg.connect(as_role(database, "ben"), autocommit=True) as other:
        # a function of one's own is not asked about rows that a policy hides
        other.execute(
            "CREATE FUNCTION pg_temp.leak(text) RETURNS boolean LANGUAGE plpgsql COST 0.0001 "
            "AS $$BEGIN RAISE EXCEPTION 'model %', $1; END$$"
        )
        assert scalar(other, "SELECT count(*) FROM dpml.models WHERE pg_temp.leak(name)") == 0
        assert scalar(other, "SELECT count(*) FROM pg_stats WHERE tablename = 'models'") == 0
        assert not scalar(other, "SELECT dpml.drop_model('m')")
    with psycopg.connect(as_role(database, "carol")) as curator, pytest.raises(errors.InsufficientPrivilege):
        curator.execute("UPDATE dpml.models SET owner = 'carol'")
    assert scalar(connection, "SELECT owner FROM dpml.models") == "ann"
    # a superuser who has become ben has ben's rights, and ann's as ann
    with psycopg.connect(database, autocommit=True) as boss:
        for role, dropped in (("ben", False), ("ann", True), ("ann", False)):
            boss.execute(f"SET ROLE {role}".encode())
            assert scalar(boss, "SELECT dpml.drop_model('m')") is dropped
    assert scalar(connection, "SELECT count(*) FROM dpml.models") == 0


@pytest.mark.one_major
def test_a_role_that_is_gone_owns_nothing(database: str, connection: psycopg.Connection) -> None:
    connection.execute('CREATE ROLE "gone\'s" IN ROLE dpml_analyst')
    train(database, "m", owner="gone's")
    train(database, "other", owner="ann")
    good(dpml(database, "grant", "other", "gone's"))
    connection.execute('DROP ROLE "gone\'s"')
    assert seen_by(database, "carol") == ["m", "other"]
    assert (seen_by(database, "ann"), seen_by(database, "ben")) == (["other"], [])
    good(dpml(database, "revoke", "other", "gone's"))
    good(dpml(as_role(database, "carol"), "drop", "m", "--yes"))


def test_an_owner_must_exist_before_the_charge(database: str, connection: psycopg.Connection) -> None:
    with pytest.raises(pg_dpml.SpecError, match="owner: there is no role called nobody"):
        train(database, "m", owner="nobody")
    assert scalar(connection, "SELECT count(*) FROM dpml.ledger") == 0


# What the two roles can do, and no more


def everything(dsn: str, folder: Path) -> None:
    """Every command and method, on tables people and known."""
    data = people.spec()
    filtered = replace(data, where="age >= 0::float8", definition_is_public=True)
    grouped = replace(filtered, unit="person", max_rows_per_unit=2)
    with_lambda = pg_dpml.Grid({"lambda": [0.0, 1e-3]}, BOLT_ON)
    pg_dpml.plan(dsn, data, PRIVACY)
    pg_dpml.train(dsn, data, PRIVACY, name="auto")
    for name, (task, training) in examples(private=True).items():
        if name != "auto":
            pg_dpml.train(dsn, replace(data, label=people.LABELS[task]), PRIVACY, training, name=name)
    pg_dpml.train(dsn, replace(data, label=people.LABELS["multiclass"]), PRIVACY, name="classes")
    pg_dpml.train(dsn, data, None, TrainSpec(method="lbfgs"), name="lbfgs")
    for method in ("auto", "bolt-on"):
        pg_dpml.train(dsn, grouped, PRIVACY, TrainSpec(method=method), name=f"grouped {method}")
    pg_dpml.tune(dsn, data, PRIVACY, with_lambda, name="tuned")
    pg_dpml.tune(dsn, grouped, PRIVACY, with_lambda, name="grouped")
    for model in ("auto", "classes", "sufficient-statistics", "grouped"):
        pg_dpml.evaluate(dsn, model, "known", public=True)
        pg_dpml.evaluate(dsn, model, "known", privacy=PRIVACY, definition_is_public=True)
    pg_dpml.compare(dsn, data, methods=("auto",), epsilons=(1.0,), splits=1, public=True)
    spec, file = folder / "spec.toml", str(folder / "report.html")
    spec.write_text(good(dpml(dsn, "inspect", "people")), encoding="utf-8")
    check_table(dsn, data)
    opened = dpml(dsn, "budget", "open", "people", "--epsilon", "10", "--delta", "1e-3", "--table", "people")
    assert (opened.exit_code, "column person may say whose a row is" in opened.stderr) == (0, True)
    for command in (
        ("models",),
        ("show", "auto"),
        ("grant", "auto", "ann"),
        ("revoke", "auto", "ann"),
        ("export", "auto", "--format", "sql"),
        ("report", "auto", "-o", file, "--table", "known", "--public"),
        ("budget", "show", "people"),
        ("budget", "history", "people"),
        ("cleanup",),
    ):
        good(dpml(dsn, *command))
    pg_dpml.train(dsn, data, PRIVACY, name="charged", charge_key="once")
    assert pg_dpml.train(dsn, data, PRIVACY, name="charged", charge_key="once").model.name == "charged"
    good(dpml(dsn, "budget", "close", "people"))
    assert '"ok": true' in good(dpml(dsn, "doctor", "--format", "json"))
    good(dpml(dsn, "drop", "auto", "--yes"))


# Hostile surroundings


@pytest.fixture(scope="module")
def hostile(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(Path(__file__).with_name("hostile.sql").read_bytes())


@pytest.mark.one_major
@pytest.mark.parametrize(
    ("role", "path"), [("boss", "hostile, public, pg_catalog"), ("carol", "hostile, public")]
)
def test_a_hostile_search_path(
    database: str,
    hostile: None,
    connection: psycopg.Connection,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    role: str,
    path: str,
) -> None:
    """Nothing in a schema of the path is taken for what is built in, for a superuser least of all.

    And a curator needs no right but dpml_curator and SELECT on the tables.
    """
    # What a path can bend are statements: the figures of a report are asked for, but not drawn.
    monkeypatch.setattr(plots, "_file", lambda figure, format: b"")
    connection.execute(f"ALTER ROLE {role} SET search_path = {path}".encode())
    dsn = as_role(database, role)
    with psycopg.connect(dsn, autocommit=True) as victim:
        for query in (
            "SELECT 1 = 1",
            "SELECT count(*) FROM people",
            "SELECT 1.5::float8 > 1",
            "SELECT 1 ^ 2",
        ):
            if path.endswith("pg_catalog") or "float8" in query or "^" in query:
                with pytest.raises(errors.RaiseException, match="sprung"):
                    victim.execute(query.encode())
        # What the extension's own functions do is not bent either.
        victim.execute("SELECT dpml.help('models')")
    everything(dsn, tmp_path)
    requested(database, dsn)
    if role == "boss":
        # a table without a schema is made where the role makes them
        assert pg_dpml.predict(dsn, "tuned", "known", id_column="id", into="predicted") == N
        assert scalar(connection, "SELECT count(*) FROM hostile.predicted") == N
    connection.execute(f"ALTER ROLE {role} RESET search_path".encode())


def requested(database: str, owner: str) -> None:
    """Ann asks for models in the hostile path, and her requests are served in it."""
    spec = """
    table = "known"
    label = {column = "married", positive = "true"}
    columns.age = {lower = 0, upper = 100}
    """
    good(dpml(owner, "budget", "open", "known", "--epsilon", "10", "--rule", "basic", "--delta", "0.1"))
    with Database(owner).session() as session:
        datasets.register(session, "known", spec)
    with psycopg.connect(as_role(database, "ann"), autocommit=True) as analyst:
        analyst.execute("SET search_path = hostile, pg_catalog")
        calling = threading.Thread(
            target=analyst.execute,
            args=("""CALL dpml.train('known', 'asked', '{"privacy": {"epsilon": 1}}')""",),
        )
        calling.start()
        while (served := requests.serve_next(Database(owner))) is None:
            time.sleep(0.1)
        calling.join()
        assert served.state == "done"
        assert scalar(analyst, "SELECT dpml.predict('asked', k) FROM public.known k LIMIT 1").endswith("true")
    with Database(owner).session() as session:
        datasets.withdraw(session, "known")


@pytest.mark.one_major
def test_who_may_apply_no_model_is_told_the_grant(database: str, connection: psycopg.Connection) -> None:
    """And not whether there is one of that name."""
    carol = as_role(database, "carol")
    train(carol, "own")
    connection.execute('CREATE ROLE "odd one" LOGIN; GRANT SELECT ON known TO "odd one"')
    try:
        told = "cannot apply the model yet: a superuser does GRANT dpml_analyst TO {}, or to members of it\n"
        for role, shown in (("outsider", "outsider"), ("odd one", '"odd one"')):
            text = good(dpml(carol, "grant", "own", role))
            quoted = f'"{role}"'
            assert text.endswith(f"\nWarning: {shown} {told.format(quoted)}")
        assert "Warning" not in good(dpml(carol, "grant", "own", "ann"))
        assert "Warning" not in good(dpml(carol, "grant", "own", "public"))
        asked = ("predict", "predict_value", "predict_proba", "label")
        for role, quoted in (("outsider", "outsider"), ("odd one", '"odd one"')):
            dsn = as_role(database, f"{role}")
            for function, model in [(function, "own") for function in asked] + [("predict", "nothing")]:
                with psycopg.connect(dsn) as other, pytest.raises(errors.InsufficientPrivilege) as caught:
                    other.execute(f"SELECT dpml.{function}('{model}', t) FROM known t".encode())
                said = caught.value.diag
                assert said.message_primary == f'role "{role}" may not apply models'
                assert f"GRANT dpml_analyst TO {quoted};" in str(said.message_hint)
                assert said.context is None
        # a grant of columns will do, as it did
        connection.execute("GRANT SELECT ON dpml.models TO outsider")
        assert "Warning" not in good(dpml(carol, "grant", "own", "outsider"))
        assert predicted_by(database, "outsider", "own") == N
    finally:
        connection.execute(
            'REVOKE ALL ON dpml.models FROM outsider; DROP OWNED BY "odd one"; DROP ROLE "odd one"'
        )


@pytest.mark.one_major
def test_temporary_tables_called_as_the_products(database: str) -> None:
    engine = sa.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(database))
    engine.connect().close()  # SQLAlchemy's own questions to a new server

    @sa.event.listens_for(engine, "checkout")
    def trap(driver: Any, *_: object) -> None:
        names = ("models", "ledger", "pg_class", "pg_namespace", "pg_attribute", "float8", "int8", "text")
        for name in names:
            driver.execute(f"CREATE TEMP TABLE IF NOT EXISTS {name} (trap pg_catalog.int4)")
        driver.commit()

    pg_dpml.train(engine, people.spec(), PRIVACY, name="m")
    pg_dpml.evaluate(engine, "m", "known", public=True)
    engine.dispose()


@pytest.mark.one_major
def test_a_table_of_traps(database: str, connection: psycopg.Connection) -> None:
    """A curator trains on another role's table: nothing of hers runs with his rights; a superuser may not."""
    with psycopg.connect(as_role(database, "postgres"), autocommit=True) as boss:
        boss.execute(
            "CREATE SCHEMA lair AUTHORIZATION mallory; GRANT CREATE ON SCHEMA public TO carol; "
            "ALTER ROLE carol SET search_path = lair, public; "
            "ALTER ROLE postgres SET search_path = lair, public"
        )
    with psycopg.connect(as_role(database, "mallory"), autocommit=True) as mallory:
        mallory.execute(
            """
            SET search_path = lair;
            CREATE TYPE mood AS ENUM ('low', 'high');
            CREATE TABLE sprung (by name DEFAULT current_user);
            CREATE FUNCTION spring() RETURNS boolean LANGUAGE plpgsql AS
                $$BEGIN INSERT INTO lair.sprung DEFAULT VALUES; RETURN true; END$$;
            CREATE FUNCTION spring(mood) RETURNS text LANGUAGE plpgsql AS
                $$BEGIN PERFORM lair.spring(); RETURN 'low'; END$$;
            CREATE FUNCTION fire() RETURNS trigger LANGUAGE plpgsql AS
                $$BEGIN PERFORM lair.spring(); RETURN NULL; END$$;
            CREATE CAST (mood AS text) WITH FUNCTION spring(mood) AS IMPLICIT;
            CREATE DOMAIN small AS numeric;
            CREATE TABLE bait (id int, age float8, size small, mood mood, town text,
                twice int GENERATED ALWAYS AS (id * 2) STORED, rich text);
            INSERT INTO bait (id, age, size, mood, town, rich)
                SELECT id, age, gain, 'high', town, rich FROM public.people;
            ALTER DOMAIN small ADD CHECK (lair.spring()) NOT VALID;
            ALTER TABLE bait ADD CHECK (lair.spring()) NOT VALID;
            ALTER TABLE bait ALTER town SET DEFAULT lair.spring()::text;
            CREATE FUNCTION count(small) RETURNS int LANGUAGE sql AS 'SELECT lair.spring()::int';
            CREATE FUNCTION at_least(small, numeric) RETURNS boolean LANGUAGE sql AS 'SELECT lair.spring()';
            CREATE OPERATOR > (LEFTARG = small, RIGHTARG = numeric, FUNCTION = at_least);
            CREATE OPERATOR < (LEFTARG = small, RIGHTARG = numeric, FUNCTION = at_least);
            CREATE TRIGGER fire AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON bait EXECUTE FUNCTION fire();
            CREATE RULE spring AS ON UPDATE TO bait DO ALSO INSERT INTO sprung DEFAULT VALUES;
            GRANT USAGE ON SCHEMA lair TO carol;
            GRANT SELECT ON bait TO carol;
            """
        )
        columns = (
            Column("age", lower=0, upper=100),
            Column("size", lower=0, upper=1000),
            Column("mood"),
            Column("town", levels=people.TOWNS),
            Column("twice", lower=0, upper=2 * N),
        )
        data = DataSpec("bait", Label("rich", positive="yes", negative="no"), columns)
        carol = as_role(database, "carol")
        pg_dpml.train(carol, data, PRIVACY, name="m")
        for unit in ("size", "mood"):
            others = tuple(column for column in columns if column.name != unit)
            own = replace(data, unit=unit, columns=others)
            pg_dpml.train(carol, own, PRIVACY, BOLT_ON, name=f"by {unit}")
        pg_dpml.evaluate(carol, "m", "bait", public=True)
        pg_dpml.predict(carol, "m", "bait", id_column="mood", into="public.predicted")
        check_table(carol, data)
        good(dpml(carol, "inspect", "bait"))
        good(dpml(carol, "export", "m", "--format", "sql"))
        assert scalar(mallory, "SELECT count(*) FROM lair.sprung") == 0
        # PostgreSQL's planner itself runs what an index is made of
        mallory.execute(
            "CREATE FUNCTION lair.trap(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS "
            "$$BEGIN PERFORM lair.spring(); RETURN 1; END$$; CREATE INDEX ON lair.bait ((id + lair.trap(1)))"
        )
        mallory.execute("TRUNCATE lair.sprung")
        for run in (pg_dpml.plan, partial(pg_dpml.train, name="m2")):
            with pytest.raises(GuaranteeError, match=r"table lair\.bait of role mallory, whose functions"):
                run(database, data, PRIVACY)
        assert scalar(mallory, "SELECT count(*) FROM lair.sprung") == 0
        assert scalar(mallory, "SELECT lair.spring('low'::lair.mood) IS NOT NULL")
        assert scalar(mallory, "SELECT count(*) FROM lair.sprung") == 1
    connection.execute(
        "ALTER ROLE postgres RESET search_path; ALTER ROLE carol RESET search_path; "
        "DROP TABLE public.predicted; REVOKE CREATE ON SCHEMA public FROM carol"
    )


# Row-level security of the owner's table


@pytest.mark.one_major
def test_row_security_is_refused_wherever_it_hides(database: str, connection: psycopg.Connection) -> None:
    """Of the table, and below views of either kind; a policy of a partition has no say in its parent."""
    connection.execute(
        """
        CREATE TABLE wards AS TABLE people;
        ALTER TABLE wards ENABLE ROW LEVEL SECURITY;
        CREATE POLICY own ON wards USING (town = current_user);
        CREATE VIEW shown AS TABLE wards;
        CREATE VIEW asked WITH (security_invoker) AS SELECT s.* FROM shown s;
        CREATE FUNCTION walk() RETURNS SETOF people BEGIN ATOMIC SELECT * FROM asked; END;
        CREATE VIEW walked AS SELECT * FROM walk();
        CREATE MATERIALIZED VIEW kept AS TABLE wards;
        CREATE TABLE parted (LIKE people) PARTITION BY LIST (town);
        CREATE TABLE part PARTITION OF parted DEFAULT;
        INSERT INTO parted TABLE people;
        ALTER TABLE part ENABLE ROW LEVEL SECURITY;
        GRANT SELECT ON wards, shown, asked, walked, kept, parted, part TO carol;
        """
    )
    train(database, "m")
    before = scalar(connection, "SELECT count(*) FROM dpml.ledger")
    for dsn in (as_role(database, "carol"), database):
        for table in ("wards", "shown", "asked", "walked", "part"):
            data = people.spec(table=table, definition_is_public=True)
            with pytest.raises(pg_dpml.GuaranteeError, match=r"row-level security.*copy them into a table"):
                pg_dpml.train(dsn, data, PRIVACY, BOLT_ON, name="x")
            with pytest.raises(pg_dpml.GuaranteeError, match="row-level security"):
                pg_dpml.plan(dsn, data, PRIVACY, BOLT_ON)
            with pytest.raises(pg_dpml.GuaranteeError, match="row-level security"):
                pg_dpml.evaluate(dsn, "m", table, privacy=PRIVACY, definition_is_public=True)
        for table in ("kept", "parted"):
            data = people.spec(table=table, definition_is_public=True)
            assert pg_dpml.plan(dsn, data, PRIVACY, BOLT_ON).problem.n_units == N
    # in a filter, where it would hide rows of the role that asks
    data = people.spec(where="id IN (SELECT id FROM wards)", definition_is_public=True)
    with pytest.raises(pg_dpml.GuaranteeError, match=r'policy for table "wards".*copy them into a table'):
        pg_dpml.train(as_role(database, "carol"), data, PRIVACY, BOLT_ON, name="x")
    assert pg_dpml.plan(database, data, PRIVACY, BOLT_ON).problem.n_units == N
    assert scalar(connection, "SELECT count(*) FROM dpml.ledger") == before
    connection.execute(
        "DROP VIEW walked; DROP FUNCTION walk; DROP VIEW asked, shown; DROP MATERIALIZED VIEW kept; "
        "DROP TABLE wards, parted"
    )


# An analyst


@pytest.mark.one_major
def test_an_analyst_plans_and_predicts_and_no_more(database: str, connection: psycopg.Connection) -> None:
    ann = as_role(database, "ann")
    train(database, "m", owner="ann")
    connection.execute("CREATE SCHEMA desk; GRANT USAGE, CREATE ON SCHEMA desk TO ann")
    known = people.spec(table="known")
    assert pg_dpml.plan(ann, known, PRIVACY).problem.n_units == N
    assert pg_dpml.predict(ann, "m", "known", id_column="id", into="desk.predicted") == N
    assert pg_dpml.evaluate(ann, "m", "known", public=True).n_rows > 0
    with pytest.raises(pg_dpml.SpecError, match=r'table people: it takes GRANT SELECT ON "people" TO "ann"'):
        pg_dpml.plan(ann, people.spec(), PRIVACY)
    curators = r"only curators \(members of dpml_curator\) may do that; ask the owner of the data$"
    with pytest.raises(pg_dpml.SpecError, match=curators):
        pg_dpml.train(ann, known, PRIVACY, BOLT_ON, name="x")
    with pytest.raises(pg_dpml.SpecError, match=curators):
        pg_dpml.evaluate(ann, "m", "known", privacy=PRIVACY)
    with pytest.raises(pg_dpml.DpmlError, match="permission denied"):
        pg_dpml.compare(ann, known, methods=("bolt-on",), epsilons=(1.0,), splits=1, public=True)
    assert scalar(connection, "SELECT count(*) FROM dpml.ledger") == 1
    connection.execute("DROP SCHEMA desk CASCADE")


# The extension itself


@pytest.mark.parametrize(
    ("schema", "found"),
    [
        ("CREATE SCHEMA dpml AUTHORIZATION mallory", "schema dpml belongs to another role"),
        ("CREATE SCHEMA dpml CREATE VIEW dpml.waiting AS SELECT 1", "has objects that are not pg_dpml's"),
        ("CREATE SCHEMA dpml", None),
    ],
)
def test_a_schema_made_before(database: str, schema: str, found: str | None) -> None:
    """A stranger's functions in it would be called in the place of the extension's."""
    name = "made_before"
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    with psycopg.connect(database, autocommit=True, dbname=name) as connection:
        connection.execute(schema.encode())
        if found is None:
            connection.execute("CREATE EXTENSION pg_dpml; DROP EXTENSION pg_dpml; CREATE EXTENSION pg_dpml")
        else:
            with pytest.raises(errors.DuplicateSchema, match=found):
                connection.execute("CREATE EXTENSION pg_dpml")
            connection.execute("SET ROLE mallory")
            with pytest.raises(errors.InsufficientPrivilege, match="permission denied to create extension"):
                connection.execute("CREATE EXTENSION pg_dpml")
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name}".encode())


@pytest.mark.parametrize("missing", ["dpml_curator", "dpml_analyst"])
def test_roles_that_cannot_be_created(database: str, connection: psycopg.Connection, missing: str) -> None:
    """Where a hosted server lets others create extensions: nothing is made without the roles it is for."""
    script = scalar(
        connection,
        "SELECT pg_read_file(setting || '/extension/pg_dpml--' || (SELECT extversion FROM pg_extension "
        "WHERE extname = 'pg_dpml') || '.sql') FROM pg_config WHERE name = 'SHAREDIR'",
    )
    (block,) = (
        part for part in re.findall(r"^DO \$\$.*?^\$\$;", script, re.DOTALL | re.MULTILINE) if missing in part
    )
    assert script.index(block) < script.index("CREATE TABLE")
    with (
        psycopg.connect(as_role(database, "mallory"), autocommit=True) as poor,
        pytest.raises(errors.InsufficientPrivilege, match=f'"no_{missing}" does not exist') as refused,
    ):
        poor.execute(block.replace(missing, f"no_{missing}"))
    assert refused.value.diag.message_hint == "Have it created, then create the extension again."
