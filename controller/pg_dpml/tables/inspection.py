# SPDX-License-Identifier: PostgreSQL
"""Describing a table by the catalog: types, comments, keys and constraints. No row is read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pg_dpml.database.catalog import SourceTable, look_up_table
from pg_dpml.database.columns import ColumnType
from pg_dpml.database.database import Database
from pg_dpml.database.session import Session, sql
from pg_dpml.tables.constraints import DOMAIN_VALUE, Facts, column_facts

if TYPE_CHECKING:
    import sqlalchemy as sa

__all__ = [
    "CatalogColumn",
    "CatalogTable",
    "inspect_table",
    "looks_like_key",
    "looks_like_person",
    "sparse_pairs",
]

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[^\W\d_A-Z]+|[0-9]+")
_KEY_WORDS = {"id", "ids", "uuid", "guid", "key", "pk", "rowid", "ssn", "nhs", "mrn", "iban"}
_PRIVATE_WORDS = {
    *("name", "firstname", "lastname", "surname", "fullname", "username", "login", "email", "mail"),
    *("phone", "telephone", "mobile", "address", "street", "url", "ip", "token", "password"),
}
_PERSON_WORDS = {
    *("person", "people", "patient", "customer", "client", "user", "member", "subject", "participant"),
    *("employee", "worker", "student", "pupil", "citizen", "resident", "respondent", "applicant"),
    *("household", "family", "account", "subscriber", "passenger", "driver", "borrower", "donor"),
    *("voter", "player", "visitor", "owner", "tenant", "card", "device", "ssn", "nhs", "mrn", "email"),
}

_INDEX_WORDS = {"index", "indices", "indexes", "idx", "place", "places", "position", "positions"}
_VALUE_WORDS = {"value", "values", "val", "vals", "number", "numbers", "weight", "weights"}


@dataclass(frozen=True)
class CatalogColumn:
    """A column as the catalog describes it.

    Attributes
    ----------
    name : str
    type : ColumnType
    comment : str or None
        COMMENT ON COLUMN.
    key : str or None
        Why its values identify rows rather than describing them; None if they do not.
    facts : Facts
        Facts from CHECK constraints of the table and of the column's domain.
    checks : tuple of str
        The expressions of these constraints.
    """

    name: str
    type: ColumnType
    comment: str | None = None
    key: str | None = None
    facts: Facts = field(default_factory=Facts)
    checks: tuple[str, ...] = ()


@dataclass(frozen=True)
class CatalogTable:
    """A table as the catalog describes it.

    Attributes
    ----------
    name : str
        As SQL writes it.
    source : SourceTable
    columns : mapping of str to CatalogColumn
        In the table's order.
    """

    name: str
    source: SourceTable
    columns: Mapping[str, CatalogColumn] = field(repr=False)


def looks_like_key(column: str, kind: str) -> bool:
    """Whether a column of this name and kind seems to identify people or rows."""
    words = _words(column)
    if not words or kind in ("boolean", "enum", "array", "sparse"):
        return False
    return words[-1] in _KEY_WORDS or (kind == "text" and not _PRIVATE_WORDS.isdisjoint(words))


def looks_like_person(column: str, kind: str) -> bool:
    """Whether a column of this name and kind seems to identify the person that a row is about."""
    words = _words(column)
    if kind not in ("number", "text", "other") or _PERSON_WORDS.isdisjoint(words):
        return False
    return len(words) == 1 or words[-1] in _KEY_WORDS | {"no", "nr", "number", "hash", "code", "name"}


def sparse_pairs(columns: Mapping[str, CatalogColumn]) -> dict[str, str]:
    """Columns of numbers with the columns that seem to be their indices, by the names of two arrays."""
    arrays = [c for c in columns.values() if c.type.kind == "array" and c.type.element == "number"]
    stems = {c.name: set(_words(c.name)) - _INDEX_WORDS - _VALUE_WORDS for c in arrays}
    places = [c.name for c in arrays if c.type.whole and not _INDEX_WORDS.isdisjoint(_words(c.name))]
    numbers = [c.name for c in arrays if c.name not in places and not c.type.vector]
    pairs: dict[str, str] = {}
    for place in places:
        alike = [name for name in numbers if stems[name] == stems[place] and name not in pairs]
        if alike:
            pairs[alike[0]] = place
    return pairs


def inspect_table(database: str | sa.Engine, table: str, *, insecure: bool = False) -> CatalogTable:
    """Describe a table from the catalog alone.

    Parameters
    ----------
    database : str or sqlalchemy.Engine
        libpq connection string, or an engine over psycopg 3.
    table : str
        Name as in SQL.
    insecure : bool
        Allow TCP without TLS to another machine.

    Raises
    ------
    SpecError
        If there is no such table.
    UnavailableError
        If the server cannot be reached.
    """
    with Database(database, insecure=insecure).session() as session:
        found = look_up_table(session, table)
        # pg_get_expr writes dates by these settings.
        for setting, value in (("datestyle", "ISO, YMD"), ("timezone", "UTC")):
            session.execute(
                sql.SQL("SELECT pg_catalog.set_config(%(setting)s, %(value)s, true)"),
                {"setting": setting, "value": value},
            )
        return _describe(session, found)


def _words(name: str) -> list[str]:
    """Lower-case words of patient_id, patientId and PatientID."""
    return [word.lower() for word in _WORD.findall(name)]


def _describe(session: Session, table: SourceTable) -> CatalogTable:
    with session.role_path():
        (name,) = session.fetch_one(
            sql.SQL("SELECT %(oid)s::pg_catalog.oid::pg_catalog.regclass::pg_catalog.text"),
            {"oid": table.oid},
        )
    facts: dict[str, Facts] = {}
    checks: dict[str, list[str]] = {}
    for column, expression in [*_table_checks(session, table), *_domain_checks(session, table)]:
        for named, said in column_facts(expression).items():
            about = column if named == DOMAIN_VALUE else named
            if about is not None:
                facts[about] = facts.get(about, Facts()).both(said)
                checks.setdefault(about, []).append(expression)
    keys = _keys(session, table)
    comments = _comments(session, table)
    columns = {
        column: CatalogColumn(
            name=column,
            type=type_,
            comment=comments.get(column),
            key=keys.get(column),
            facts=facts.get(column, Facts()),
            checks=tuple(checks.get(column, ())),
        )
        for column, type_ in table.columns.items()
    }
    return CatalogTable(name, table, columns)


def _table_checks(session: Session, table: SourceTable) -> list[tuple[str | None, str]]:
    """CHECK expressions of the table."""
    rows = session.fetch(
        sql.SQL(
            "SELECT NULL, pg_catalog.pg_get_expr(k.conbin, k.conrelid) FROM pg_catalog.pg_constraint k "
            "WHERE k.conrelid = %(oid)s AND k.contype = 'c' ORDER BY k.conname"
        ),
        {"oid": table.oid},
    )
    return [(column, expression) for column, expression in rows]


def _domain_checks(session: Session, table: SourceTable) -> list[tuple[str | None, str]]:
    """Columns with the CHECK expressions of their domains, and of the domains below."""
    rows = session.fetch(
        sql.SQL(
            "WITH RECURSIVE part (attnum, attname, type) AS ("
            "SELECT a.attnum, a.attname, a.atttypid FROM pg_catalog.pg_attribute a "
            "WHERE a.attrelid = %(oid)s AND a.attnum > 0 AND NOT a.attisdropped "
            "UNION ALL SELECT p.attnum, p.attname, t.typbasetype FROM part p "
            "JOIN pg_catalog.pg_type t ON t.oid = p.type WHERE t.typtype = 'd') "
            "SELECT p.attname, pg_catalog.pg_get_expr(k.conbin, 0) FROM part p "
            "JOIN pg_catalog.pg_constraint k ON k.contypid = p.type AND k.contype = 'c' "
            "ORDER BY p.attnum, k.conname"
        ),
        {"oid": table.oid},
    )
    return [(column, expression) for column, expression in rows]


def _keys(session: Session, table: SourceTable) -> dict[str, str]:
    """The strongest reason why a column is a key, by column."""
    rows = session.fetch(
        sql.SQL(
            "SELECT r.attname, r.reason FROM ("
            "SELECT 1 AS rank, a.attname, CASE WHEN i.indisprimary AND i.indnkeyatts > 1 "
            "THEN 'part of the primary key' WHEN i.indisprimary THEN 'the primary key' "
            "ELSE 'unique' END AS reason "
            "FROM pg_catalog.pg_index i JOIN pg_catalog.pg_attribute a "
            "ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey) "
            "WHERE i.indrelid = %(oid)s AND i.indisunique AND i.indpred IS NULL "
            "AND (i.indisprimary OR i.indnkeyatts = 1) "
            "UNION ALL SELECT 2, a.attname, 'a reference to ' || k.confrelid::pg_catalog.regclass::text "
            "FROM pg_catalog.pg_constraint k JOIN pg_catalog.pg_attribute a "
            "ON a.attrelid = k.conrelid AND a.attnum = ANY (k.conkey) "
            "WHERE k.conrelid = %(oid)s AND k.contype = 'f' "
            "UNION ALL SELECT 3, a.attname, 'numbered automatically' FROM pg_catalog.pg_attribute a "
            "LEFT JOIN pg_catalog.pg_attrdef f ON f.adrelid = a.attrelid AND f.adnum = a.attnum "
            "WHERE a.attrelid = %(oid)s AND a.attnum > 0 AND (a.attidentity <> '' "
            "OR pg_catalog.starts_with(pg_catalog.pg_get_expr(f.adbin, f.adrelid), 'nextval('))"
            ") AS r ORDER BY r.rank DESC"
        ),
        {"oid": table.oid},
    )
    return dict(rows)


def _comments(session: Session, table: SourceTable) -> dict[str, str]:
    rows = session.fetch(
        sql.SQL(
            "SELECT a.attname, d.description FROM pg_catalog.pg_attribute a "
            "JOIN pg_catalog.pg_description d ON d.objoid = a.attrelid AND d.objsubid = a.attnum "
            "AND d.classoid = 'pg_catalog.pg_class'::pg_catalog.regclass "
            "WHERE a.attrelid = %(oid)s AND a.attnum > 0 AND NOT a.attisdropped"
        ),
        {"oid": table.oid},
    )
    return dict(rows)
