# SPDX-License-Identifier: PostgreSQL
"""dpml.help() and the comments: complete, and in step with what the C code takes."""

from __future__ import annotations

import re

import psycopg
import pytest

from helpers.sqltools import scalar

TOPICS = (
    *("train", "predict", "evaluate", "sgd_epoch", "poisson", "gradient", "pack", "loss", "options", "spec"),
    *("models", "ledger", "requests", "privacy", "scd", "scd_epoch", "scd_gap"),
)


def help_of(connection: psycopg.Connection, topic: str | None) -> str:
    return str(scalar(connection, "SELECT dpml.help(%s)", topic))


def test_without_a_topic_the_topics_are_listed(connection: psycopg.Connection) -> None:
    listed = str(scalar(connection, "SELECT dpml.help()"))
    for topic in TOPICS:
        assert topic in listed
    for nothing in ("", None, "no such topic"):
        assert help_of(connection, nothing) == listed


def functions(connection: psycopg.Connection) -> list[str]:
    """Functions of the extension but those that only PostgreSQL calls: of triggers and of aggregates."""
    rows = connection.execute(
        """SELECT DISTINCT proname FROM pg_proc p WHERE pronamespace = 'dpml'::regnamespace
        AND prorettype <> 'trigger'::regtype AND NOT EXISTS (
            SELECT FROM pg_aggregate a WHERE p.oid IN (a.aggtransfn, a.aggcombinefn, a.aggfinalfn))"""
    )
    return [name for (name,) in rows]


@pytest.mark.parametrize("topic", TOPICS)
def test_topics(connection: psycopg.Connection, topic: str) -> None:
    text = help_of(connection, topic)
    assert text != help_of(connection, "")
    assert text == help_of(connection, topic.upper())
    assert max(map(len, text.splitlines())) <= 120
    assert len(text.splitlines()) <= 12


def test_every_user_function_has_help(connection: psycopg.Connection) -> None:
    """Its comment, of every form that it has."""
    listed = re.findall(r"\w+", help_of(connection, ""))
    for name in functions(connection):
        assert name in listed
        text = help_of(connection, name)
        comments = connection.execute(
            "SELECT obj_description(oid, 'pg_proc') FROM pg_proc "
            "WHERE pronamespace = 'dpml'::regnamespace AND proname = %s",
            (name,),
        ).fetchall()
        assert text.count(f"dpml.{name}(") >= len(comments)
        assert all(comment in text for (comment,) in comments), name
        assert max(map(len, text.splitlines())) <= 120, name
        assert len(text.splitlines()) <= 12, name


def keys(connection: psycopg.Connection, query: str) -> list[str]:
    """The keys that an error about an unknown one lists."""
    with pytest.raises(psycopg.Error) as refusal:
        connection.execute(query.encode())
    return re.findall(r'"(\w+)"', str(refusal.value.diag.message_hint))


def test_every_key_has_help(connection: psycopg.Connection) -> None:
    options = keys(connection, "SELECT dpml.loss('{1}'::float8[], 1, '{1}', '{\"?\": 1}')")
    assert len(options) > 10
    for key in options:
        assert re.search(rf"\b{key}\b", help_of(connection, "options")), key
    block = 'dpml.encode(\'{"columns": [{"name": "a", "kind": "boolean"}]}\', ROW(true))'
    for call in ("gradient", "gram"):
        sums = keys(connection, f"SELECT dpml.{call}({block}, '{{1,1}}', '{{\"?\": 1}}')")
        assert len(sums) >= 3
        for key in sums:
            assert re.search(rf"\b{key}\b", help_of(connection, call)), key
    descent = keys(connection, "SELECT dpml.scd_epoch('{1}'::float8[], 1, 0, NULL, '{\"?\": 1}')")
    assert len(descent) > 10
    for key in set(descent) - {"classes", "clip"}:  # coordinate descent rejects them
        assert re.search(rf"\b{key}\b", help_of(connection, "scd")), key
    spec = keys(connection, "SELECT dpml.encode('{\"?\": 1}', ROW(1))")
    for key in {*spec, "numeric", "boolean", "category", "array", "classes", "number", "standard", "clip"}:
        assert re.search(rf"\b{key}\b", help_of(connection, "spec")), key


def test_the_sql_of_the_help_runs(connection: psycopg.Connection) -> None:
    """Statements about the tables of the extension, as they stand."""
    for topic in ("models", "ledger", "requests"):
        (statement,) = re.findall(r"^SELECT .*;$", help_of(connection, topic), re.MULTILINE)
        connection.execute(statement.encode())


def test_everyone_may_ask_for_help(connection: psycopg.Connection) -> None:
    connection.execute("CREATE ROLE novice")
    try:
        connection.execute("SET ROLE novice")
        assert "train" in help_of(connection, "")
    finally:
        connection.execute("RESET ROLE")
        connection.execute("DROP ROLE novice")


def test_every_object_has_a_comment(connection: psycopg.Connection) -> None:
    """Members of the extension, its schema, and the columns of its tables and types."""
    members = """SELECT classid, objid FROM pg_depend WHERE deptype = 'e'
        AND refclassid = 'pg_extension'::regclass
        AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'pg_dpml')"""
    # Sequences of identity columns, and types of tables, views and arrays, belong to what has a comment.
    silent = connection.execute(
        f"""WITH m AS ({members} UNION SELECT 'pg_namespace'::regclass, 'dpml'::regnamespace)
        SELECT pg_describe_object(m.classid, m.objid, 0) FROM m
        LEFT JOIN pg_class c ON m.classid = 'pg_class'::regclass AND c.oid = m.objid
        LEFT JOIN pg_type y ON m.classid = 'pg_type'::regclass AND y.oid = m.objid
        LEFT JOIN pg_class r ON r.oid = y.typrelid
        WHERE obj_description(m.objid, m.classid::regclass::name) IS NULL
        AND c.relkind IS DISTINCT FROM 'S' AND coalesce(r.relkind NOT IN ('r', 'v'), true)
        AND coalesce(y.typelem, 0) = 0""".encode()
    ).fetchall()
    assert silent == []
    columns = connection.execute(
        """SELECT a.attrelid::regclass, a.attname FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
        WHERE c.relnamespace = 'dpml'::regnamespace AND c.relkind IN ('r', 'c', 'v') AND a.attnum > 0
        AND col_description(a.attrelid, a.attnum) IS NULL"""
    ).fetchall()
    assert columns == []
