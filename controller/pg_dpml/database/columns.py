# SPDX-License-Identifier: PostgreSQL
"""The types of a table's columns, as far as an encoding or a message depends on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from psycopg import sql

if TYPE_CHECKING:
    from pg_dpml.database.session import Session

__all__ = ["ColumnType", "columns_of"]

_KINDS = {
    **dict.fromkeys(("int2", "int4", "int8", "float4", "float8", "numeric"), "number"),
    **dict.fromkeys(("text", "varchar", "bpchar", "name", "char"), "text"),
    "bool": "boolean",
    "date": "date",
    "timestamp": "timestamp",
    "timestamptz": "timestamptz",
}

# A column's type, then what lies below its domain, its array and the domain of its elements.
_COLUMNS = sql.SQL("""
    WITH RECURSIVE part (attnum, depth, typmod, type) AS (
        SELECT a.attnum, 0, a.atttypmod, a.atttypid FROM pg_catalog.pg_attribute a
        WHERE a.attrelid = %(oid)s AND a.attnum > 0 AND NOT a.attisdropped
        UNION ALL
        SELECT p.attnum, p.depth + (t.typtype <> 'd')::integer,
            CASE WHEN t.typtype = 'd' THEN t.typtypmod ELSE -1 END,
            CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.typelem END
        FROM part p JOIN pg_catalog.pg_type t ON t.oid = p.type
        WHERE t.typtype = 'd' OR (t.typcategory = 'A' AND t.typelem <> 0)
    )
    SELECT a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod), a.attgenerated = 'v',
        p.depth, p.typmod,
        CASE t.typnamespace WHEN 'pg_catalog'::pg_catalog.regnamespace THEN t.typname END,
        CASE WHEN t.typname IN ('vector', 'sparsevec') AND EXISTS (
            SELECT FROM pg_catalog.pg_depend d
            JOIN pg_catalog.pg_extension x ON x.oid = d.refobjid AND x.extname = 'vector'
            WHERE d.classid = 'pg_catalog.pg_type'::pg_catalog.regclass AND d.objid = t.oid
            AND d.refclassid = 'pg_catalog.pg_extension'::pg_catalog.regclass AND d.deptype = 'e')
            THEN t.typname END,
        (SELECT pg_catalog.array_agg(e.enumlabel::text ORDER BY e.enumsortorder)
            FROM pg_catalog.pg_enum e WHERE e.enumtypid = t.oid)
    FROM part p
    JOIN pg_catalog.pg_type t ON t.oid = p.type AND t.typtype <> 'd'
        AND NOT (t.typcategory = 'A' AND t.typelem <> 0)
    JOIN pg_catalog.pg_attribute a ON a.attrelid = %(oid)s AND a.attnum = p.attnum
    ORDER BY p.attnum
""")


@dataclass(frozen=True)
class ColumnType:
    """Type of a column; a domain counts as the type below it.

    Attributes
    ----------
    name : str
        As SQL writes it, the domain's own name for a domain.
    kind : str
        "number", "boolean", "text", "enum", "date", "timestamp", "timestamptz",
        "array" (or pgvector's vector), "sparse" (pgvector's sparsevec), or "other": no encoding.
    element : str or None
        Kind of the elements of an array or sparse vector.
    length : int or None
        Number of elements of a vector whose type fixes it.
    enum_labels : tuple of str or None
        In the enum's order.
    virtual : bool
        An expression computes the column whenever it is read.
    whole : bool
        An integer type, or an array of one.
    collated : bool
        Text whose equality a collation could widen.
    vector : bool
        A type of pgvector, not an array.
    exact : bool
        An array of numeric, whose numbers have up to 147,455 digits each.
    base : str or None
        PostgreSQL's own name of a built-in type that is no array.
    modifier : int
        The type's limit of length or digits, as the catalog stores it; -1: none.
    """

    name: str
    kind: str
    element: str | None = None
    length: int | None = None
    enum_labels: tuple[str, ...] | None = None
    virtual: bool = False
    whole: bool = False
    collated: bool = False
    vector: bool = False
    exact: bool = False
    base: str | None = None
    modifier: int = -1


def columns_of(session: Session, oid: int) -> dict[str, ColumnType]:
    """The types of all columns of the table with this oid, by column name in the table's order."""
    return {row[0]: _column_type(*row[1:]) for row in session.fetch(_COLUMNS, {"oid": oid})}


def _column_type(
    name: str,
    virtual: bool,
    depth: int,
    modifier: int,
    builtin: str | None,
    pgvector: str | None,
    labels: list[str] | None,
) -> ColumnType:
    """The type in a row of _COLUMNS; `depth` is the number of arrays around the type that was found."""
    kind = "enum" if labels else _KINDS.get(builtin or "", "other")
    whole = builtin in ("int2", "int4", "int8")
    if pgvector is not None and depth == 0:
        length = modifier if modifier > 0 else None
        own = "sparse" if pgvector == "sparsevec" else "array"
        return ColumnType(name, own, "number", length, virtual=virtual, vector=True)
    if depth == 0:
        return ColumnType(
            name,
            kind,
            enum_labels=tuple(labels) if labels else None,
            virtual=virtual,
            whole=whole,
            collated=kind == "text" and builtin != "char",
            base=builtin,
            modifier=modifier,
        )
    if depth > 1 or kind in ("text", "enum", "other"):
        return ColumnType(name, "other", virtual=virtual)
    return ColumnType(name, "array", kind, virtual=virtual, whole=whole, exact=builtin == "numeric")
