# SPDX-License-Identifier: PostgreSQL
"""What the catalog says of tables and columns."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from psycopg import sql

from pg_dpml import names
from pg_dpml.errors import (
    SpecError,
)

__all__ = [
    "DEFINITIONS",
    "DENIED",
    "LOCKED",
    "READ",
    "RELATION",
    "ColumnType",
    "SourceTable",
    "column_type",
    "quoted_names",
]


_KINDS = {
    **dict.fromkeys(("int2", "int4", "int8", "float4", "float8", "numeric"), "number"),
    **dict.fromkeys(("text", "varchar", "bpchar", "name", "char"), "text"),
    "bool": "boolean",
    "date": "date",
    "timestamp": "timestamp",
    "timestamptz": "timestamptz",
}


@dataclass(frozen=True)
class ColumnType:
    """Type of a column, domains seen through.

    Attributes
    ----------
    name : str
        As SQL writes it, the domain's own name for a domain.
    kind : str
        "number", "boolean", "text", "enum", "date", "timestamp", "timestamptz",
        "array" (or pgvector's vector), or "other": no encoding.
    element : str or None
        Kind of an array's elements.
    length : int or None
        Elements of a vector whose type says so.
    enum_labels : tuple of str or None
        In the enum's order.
    virtual : bool
        Computed by an expression whenever it is read.
    whole : bool
        An integer type.
    collated : bool
        Text whose equality a collation could widen.
    vector : bool
        pgvector's type, not an array.
    base : str or None
        PostgreSQL's own name of a built-in type that is no array.
    modifier : int
        Its limit of length or digits, as the catalog has it; -1: none.
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
    base: str | None = None
    modifier: int = -1


@dataclass(frozen=True)
class SourceTable:
    """A table as the catalog knows it."""

    oid: int
    schema: str
    name: str
    kind: str  # pg_class.relkind
    row_security: bool  # its own, or of a table that it shows as a view
    columns: Mapping[str, ColumnType] = field(repr=False)

    @property
    def identifier(self) -> sql.Identifier:
        """Quoted and schema-qualified."""
        return sql.Identifier(self.schema, self.name)

    def column(self, name: str, argument: str | None = None) -> str:
        """The exact name of a column that is named by it, or as in SQL.

        Parameters
        ----------
        name : str
        argument : str or None
            What it was given as, for the message.

        Raises
        ------
        SpecError
            If there is no such column; the message offers the nearest.
        """
        found = names.reads_as(name, self.columns)
        if found is None:
            offer = names.did_you_mean(name, self.columns)
            some = ", ".join(map(names.shown, list(self.columns)[:20]))
            raise SpecError(
                f"{'' if argument is None else f'{argument}: '}column {names.shown(name)} does not exist in "
                f"{names.shown(self.name)}{f'{offer} It' if offer else '; it'} has {some or 'no columns'}"
            )
        return found


LOCKED = sql.SQL(
    "SELECT DISTINCT l.relation::pg_catalog.int8 FROM pg_catalog.pg_locks l "
    "WHERE l.pid = pg_catalog.pg_backend_pid() AND l.locktype = 'relation' AND l.relation >= 16384 "
    "AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d "
    "WHERE d.datname = pg_catalog.current_database())"
)

# Each change of a definition, and each new file, writes a row of the catalog anew; VACUUM and ANALYZE do not.
DEFINITIONS = sql.SQL(
    "SELECT coalesce(pg_catalog.md5(pg_catalog.string_agg(pg_catalog.concat_ws(' ', c.oid, c.xmin, "
    "(SELECT pg_catalog.string_agg(a.xmin::text, ' ' ORDER BY a.attnum) FROM pg_catalog.pg_attribute a "
    "WHERE a.attrelid = c.oid)), ', ' ORDER BY c.oid)), '') "
    "FROM pg_catalog.pg_class c WHERE c.oid = ANY (%(relations)s::pg_catalog.int8[]::pg_catalog.oid[])"
)

# A query runs functions of its views, and its planner those of indexes, statistics and constraints, with the
# rights of who asks; RESET ROLE in them would bring back those that SET ROLE put aside.
READ = sql.SQL(
    # All that is read or called, as the catalog has it; `named`: the table itself, or shown by it as a view.
    "WITH RECURSIVE read (class, object, named) AS ("
    "SELECT c.tableoid, c.oid, true FROM pg_catalog.pg_class c WHERE c.oid = %(named)s "
    "UNION SELECT next.* FROM read r, LATERAL (SELECT part.* FROM ("
    "SELECT r.class, i.inhrelid, false FROM pg_catalog.pg_inherits i WHERE i.inhparent = r.object "
    "UNION ALL SELECT r.class, x.indexrelid, false FROM pg_catalog.pg_index x WHERE x.indrelid = r.object "
    "UNION ALL SELECT s.tableoid, s.oid, false "
    "FROM pg_catalog.pg_statistic_ext s WHERE s.stxrelid = r.object "
    "UNION ALL SELECT k.tableoid, k.oid, false "
    "FROM pg_catalog.pg_constraint k WHERE k.conrelid = r.object AND k.contype = 'c' "
    "UNION ALL SELECT w.tableoid, w.oid, r.named FROM pg_catalog.pg_rewrite w "
    "JOIN pg_catalog.pg_class v ON v.oid = w.ev_class AND v.relkind = ANY (%(views)s) "
    "WHERE w.ev_class = r.object"
    ") part WHERE r.class = 'pg_class'::regclass "
    "UNION ALL SELECT k.tableoid, k.oid, false "
    "FROM pg_catalog.pg_constraint k WHERE r.class = 'pg_type'::regclass AND k.contypid = r.object "
    # What these name, but not the tables that a table or a type names, which are not read for its sake.
    "UNION ALL SELECT d.refclassid, d.refobjid, r.named FROM pg_catalog.pg_depend d "
    "WHERE d.classid = r.class AND d.objid = r.object "
    "AND (d.refclassid IN ('pg_proc'::regclass, 'pg_operator'::regclass, 'pg_type'::regclass, "
    "'pg_opclass'::regclass) "
    "OR (d.refclassid = 'pg_class'::regclass AND r.class IN ('pg_rewrite'::regclass, 'pg_proc'::regclass)))"
    # What orders an index, or the bounds of partitions.
    "UNION ALL SELECT f.class, f.object, r.named FROM pg_catalog.pg_opclass o, LATERAL ("
    "SELECT 'pg_proc'::regclass, m.amproc FROM pg_catalog.pg_amproc m WHERE m.amprocfamily = o.opcfamily "
    "UNION ALL SELECT 'pg_operator'::regclass, m.amopopr "
    "FROM pg_catalog.pg_amop m WHERE m.amopfamily = o.opcfamily"
    ") f (class, object) WHERE r.class = 'pg_opclass'::regclass AND o.oid = r.object"
    ") next) "
)
RELATION = READ + sql.SQL(
    "SELECT c.oid, n.nspname, c.relname, c.relkind::text, (SELECT pg_catalog.bool_or(t.relrowsecurity) "
    "FROM read r JOIN pg_catalog.pg_class t ON t.tableoid = r.class AND t.oid = r.object WHERE r.named), "
    "pg_catalog.pg_is_other_temp_schema(n.oid), lent.* "
    "FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
    "LEFT JOIN LATERAL (SELECT i.type || ' ' || i.identity, pg_catalog.pg_get_userbyid(o.owner), "
    "pg_catalog.concat(m.rolname, CASE WHEN m.rolsuper THEN ' (SUPERUSER)' "
    "WHEN m.rolcreaterole THEN ' (CREATEROLE)' WHEN m.rolbypassrls THEN ' (BYPASSRLS)' "
    "WHEN m.rolreplication THEN ' (REPLICATION)' END) "
    "FROM read r JOIN (SELECT t.tableoid, t.oid, t.relowner FROM pg_catalog.pg_class t "
    "WHERE t.relkind NOT IN ('i', 'I') "
    "UNION ALL SELECT p.tableoid, p.oid, p.proowner FROM pg_catalog.pg_proc p "
    "UNION ALL SELECT y.tableoid, y.oid, y.typowner FROM pg_catalog.pg_type y WHERE y.typtype = 'd') "
    "o (class, object, owner) "
    "ON o.class = r.class AND o.object = r.object "
    "JOIN pg_catalog.pg_roles m ON (m.rolsuper OR m.rolcreaterole OR m.rolbypassrls OR m.rolreplication "
    "OR m.rolname IN ('pg_read_server_files', 'pg_write_server_files', 'pg_execute_server_program', "
    "'pg_read_all_data', 'pg_write_all_data')) "
    "AND pg_catalog.pg_has_role(session_user, m.oid, 'MEMBER') "
    "AND NOT pg_catalog.pg_has_role(o.owner, m.oid, 'MEMBER'), "
    "LATERAL pg_catalog.pg_identify_object(o.class, o.object, 0) i "
    "ORDER BY o.class <> c.tableoid, o.object <> c.oid, i.identity, "
    "NOT m.rolsuper, m.rolname <> session_user, m.rolname LIMIT 1) lent ON true "
    "WHERE c.oid = %(named)s"
)


# What a message names and the role may not use, the likeliest first; and whether it is the extension's.
DENIED = sql.SQL(
    "SELECT oid, name, schema, ours, current_user::text FROM ("
    "SELECT c.oid, c.relname, n.nspname, n.nspname IN ('dpml', 'dpml_work') "
    "FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
    "WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') "
    "AND (NOT pg_catalog.has_table_privilege(c.oid, 'SELECT') OR (n.nspname = 'dpml' "
    "AND NOT (pg_catalog.has_table_privilege(c.oid, 'INSERT') "
    "AND pg_catalog.has_table_privilege(c.oid, 'UPDATE')))) "
    "UNION ALL SELECT p.oid, p.proname, n.nspname, true "
    "FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace "
    "WHERE n.nspname = 'dpml' AND NOT pg_catalog.has_function_privilege(p.oid, 'EXECUTE') "
    "UNION ALL SELECT NULL, n.nspname, NULL, n.nspname IN ('dpml', 'dpml_work') "
    "FROM pg_catalog.pg_namespace n WHERE NOT (pg_catalog.has_schema_privilege(n.oid, 'USAGE') "
    "AND pg_catalog.has_schema_privilege(n.oid, 'CREATE'))"
    ") denied (oid, name, schema, ours) WHERE pg_catalog.strpos(%(message)s, name) > 0 "
    "ORDER BY coalesce(oid = ANY (%(looked_up)s::oid[]), false) DESC, pg_catalog.length(name) DESC, "
    "ours DESC, oid"
)


def quoted_names(message: str, name: str) -> bool:
    """Whether a message, in any language, has a name as a word of its own."""
    return re.search(f"(?<![A-Za-z0-9_]){re.escape(name)}(?![A-Za-z0-9_])", message) is not None


def column_type(
    name: str,
    virtual: bool,
    depth: int,
    typmod: int,
    builtin: str | None,
    is_vector: bool,
    labels: list[str] | None,
) -> ColumnType:
    """A row of `Session._columns`: what lies below `depth` arrays."""
    kind = "enum" if labels else _KINDS.get(builtin or "", "other")
    if is_vector and depth == 0:
        length = typmod if typmod > 0 else None
        return ColumnType(name, "array", "number", length, virtual=virtual, vector=True)
    if depth == 0:
        whole = builtin in ("int2", "int4", "int8")
        enum = tuple(labels) if labels else None
        collated = kind == "text" and builtin != "char"
        return ColumnType(
            name,
            kind,
            enum_labels=enum,
            virtual=virtual,
            whole=whole,
            collated=collated,
            base=builtin,
            modifier=typmod,
        )
    if depth > 1 or kind in ("text", "enum", "other"):
        return ColumnType(name, "other", virtual=virtual)
    return ColumnType(name, "array", kind, virtual=virtual)
