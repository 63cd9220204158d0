# SPDX-License-Identifier: PostgreSQL
"""The tables, views and functions that a query of a table uses by the catalog, and changes to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from psycopg import sql

if TYPE_CHECKING:
    from pg_dpml.database.catalog import SourceTable
    from pg_dpml.database.session import Session

__all__ = ["READ_OBJECTS", "definitions_of", "locked_tables", "tables_read"]

# A query runs the functions of its views, and its planner runs those of indexes, statistics and constraints,
# with the rights of the role that asks; RESET ROLE in them would restore the rights that SET ROLE put aside.
READ_OBJECTS = sql.SQL("""
    WITH RECURSIVE read (class, object, named) AS (
        SELECT c.tableoid, c.oid, true FROM pg_catalog.pg_class c WHERE c.oid = %(named)s
        UNION
        SELECT next.* FROM read r, LATERAL (
            SELECT part.* FROM (
                SELECT r.class, i.inhrelid, false FROM pg_catalog.pg_inherits i
                WHERE i.inhparent = r.object
                UNION ALL
                SELECT r.class, x.indexrelid, false FROM pg_catalog.pg_index x
                WHERE x.indrelid = r.object
                UNION ALL
                SELECT s.tableoid, s.oid, false FROM pg_catalog.pg_statistic_ext s
                WHERE s.stxrelid = r.object
                UNION ALL
                SELECT k.tableoid, k.oid, false FROM pg_catalog.pg_constraint k
                WHERE k.conrelid = r.object AND k.contype = 'c'
                UNION ALL
                SELECT w.tableoid, w.oid, r.named FROM pg_catalog.pg_rewrite w
                JOIN pg_catalog.pg_class v ON v.oid = w.ev_class AND v.relkind = ANY (%(views)s)
                WHERE w.ev_class = r.object
            ) part WHERE r.class = 'pg_class'::regclass
            UNION ALL
            SELECT k.tableoid, k.oid, false FROM pg_catalog.pg_constraint k
            WHERE r.class = 'pg_type'::regclass AND k.contypid = r.object
            -- What these name, but not the tables that a table or a type names: a query does not read them.
            UNION ALL
            SELECT d.refclassid, d.refobjid, r.named FROM pg_catalog.pg_depend d
            WHERE d.classid = r.class AND d.objid = r.object
            AND (d.refclassid IN ('pg_proc'::regclass, 'pg_operator'::regclass, 'pg_type'::regclass,
                'pg_opclass'::regclass)
                OR (d.refclassid = 'pg_class'::regclass
                    AND r.class IN ('pg_rewrite'::regclass, 'pg_proc'::regclass)))
            -- What orders an index, or the bounds of partitions.
            UNION ALL
            SELECT f.class, f.object, r.named FROM pg_catalog.pg_opclass o, LATERAL (
                SELECT 'pg_proc'::regclass, m.amproc FROM pg_catalog.pg_amproc m
                WHERE m.amprocfamily = o.opcfamily
                UNION ALL
                SELECT 'pg_operator'::regclass, m.amopopr FROM pg_catalog.pg_amop m
                WHERE m.amopfamily = o.opcfamily
            ) f (class, object) WHERE r.class = 'pg_opclass'::regclass AND o.oid = r.object
        ) next
    )
""")
"""WITH clause of `read`: every object that a query of the table with the oid `named` reads or calls.

`class` and `object` identify it as in pg_depend. `named` is true for the table itself and for what it shows
as a view. The definitions of views of the kinds `views` are followed.
"""

_TABLES_READ = READ_OBJECTS + sql.SQL("""
    SELECT DISTINCT c.oid <> %(named)s, c.oid FROM read r
    JOIN pg_catalog.pg_class c ON c.tableoid = r.class AND c.oid = r.object
    WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f')
    AND c.relnamespace NOT IN ('pg_catalog'::pg_catalog.regnamespace,
        'information_schema'::pg_catalog.regnamespace)
    ORDER BY 1, 2
""")

_LOCKED = sql.SQL("""
    SELECT DISTINCT l.relation::pg_catalog.int8 FROM pg_catalog.pg_locks l
    WHERE l.pid = pg_catalog.pg_backend_pid() AND l.locktype = 'relation' AND l.relation >= 16384
    AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d
        WHERE d.datname = pg_catalog.current_database())
""")

# Each change of a definition, and each new file, writes a row of the catalog anew; VACUUM and ANALYZE do not.
_DEFINITIONS = sql.SQL("""
    SELECT coalesce(pg_catalog.md5(pg_catalog.string_agg(pg_catalog.concat_ws(' ', c.oid, c.xmin,
        (SELECT pg_catalog.string_agg(a.xmin::text, ' ' ORDER BY a.attnum)
            FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid)), ', ' ORDER BY c.oid)), '')
    FROM pg_catalog.pg_class c
    WHERE c.oid = ANY (%(tables)s::pg_catalog.int8[]::pg_catalog.oid[])
""")


def tables_read(session: Session, table: SourceTable) -> list[int]:
    """Oids of the tables and views whose rows a table or view shows, its own first.

    They include those below views and materialized views, inheritance children and partitions, and those that
    functions written as SQL statements name. Tables that a function names in a text are missing: the catalog
    does not know them.
    """
    rows = session.fetch(_TABLES_READ, {"named": table.oid, "views": ["v", "m"]})
    return [oid for _, oid in rows]


def locked_tables(session: Session) -> list[int]:
    """Oids of the tables, views and indexes that the transaction has locked, but not PostgreSQL's own."""
    return [oid for (oid,) in session.fetch(_LOCKED)]


def definitions_of(session: Session, tables: Sequence[int]) -> str:
    """A digest of how these tables, views and indexes are defined and stored, by the session's snapshot."""
    (digest,) = session.fetch_one(_DEFINITIONS, {"tables": list(tables)})
    return str(digest)
