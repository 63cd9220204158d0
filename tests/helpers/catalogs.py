# SPDX-License-Identifier: PostgreSQL
"""What an extension consists of, as the catalogs describe it, without OIDs: equal for equal installs."""

from __future__ import annotations

from typing import Any

import psycopg

Snapshot = dict[str, Any]
"""Descriptions by "type identity"."""

# Members, and what belongs to them: indexes, constraints, defaults, row types, sequences, policies, rules.
_OBJECTS = """
CREATE TEMP TABLE objects ON COMMIT DROP AS
WITH RECURSIVE home AS (SELECT oid, extnamespace FROM pg_extension WHERE extname = %(name)s),
object (classid, objid, member) AS (
	SELECT 'pg_namespace'::regclass::oid, extnamespace, EXISTS (
		SELECT FROM pg_depend d WHERE (d.classid, d.objid) = ('pg_namespace'::regclass, extnamespace)
		AND d.deptype = 'e') FROM home
	UNION SELECT d.classid, d.objid, true FROM pg_depend d, home
		WHERE (d.refclassid, d.refobjid) = ('pg_extension'::regclass, home.oid) AND d.deptype = 'e'
	UNION SELECT d.classid, d.objid, false FROM pg_depend d JOIN object o
		ON (d.refclassid, d.refobjid) = (o.classid, o.objid) WHERE d.deptype IN ('i', 'a')
)
SELECT o.classid::regclass::text AS catalog, o.objid, bool_or(o.member) AS member, i.type, i.identity
FROM object o, pg_identify_object(o.classid, o.objid, 0) i
WHERE i.schema IS DISTINCT FROM 'pg_toast' AND NOT (
	o.classid = 'pg_trigger'::regclass AND (SELECT tgisinternal FROM pg_trigger WHERE oid = o.objid))
GROUP BY 1, 2, 4, 5
"""

# Whatever else is in the extension's schemas: an upgrade script cannot make what is no member by itself.
_STRAYS = """
SELECT i.type || ' ' || i.identity FROM pg_depend d, pg_identify_object(d.classid, d.objid, 0) i
WHERE d.refclassid = 'pg_namespace'::regclass
AND d.refobjid IN (SELECT objid FROM objects WHERE catalog = 'pg_namespace')
AND d.classid <> 'pg_extension'::regclass
AND NOT EXISTS (SELECT FROM objects o WHERE (o.catalog, o.objid) = (d.classid::regclass::text, d.objid))
ORDER BY 1
"""


def _acl(privileges: str, kind: str, owner: str) -> str:
    given = f"coalesce({privileges}, acldefault('{kind}', {owner}))"
    return f"ARRAY(SELECT a::text FROM unnest({given}) a ORDER BY 1)"


# pg_attver is a counter of the server: seen in 15.20.
_COLUMNS = f"""
(SELECT jsonb_agg(jsonb_build_object('name', a.attname, 'type', format_type(a.atttypid, a.atttypmod),
	'not null', a.attnotnull, 'identity', a.attidentity, 'generated', a.attgenerated, 'storage', a.attstorage,
	'compression', a.attcompression, 'collation', a.attcollation::regcollation,
	'options', ARRAY(SELECT o FROM unnest(a.attoptions) o WHERE o NOT LIKE 'pg_attver=%%' ORDER BY 1),
	'statistics', a.attstattarget, 'acl', {_acl("a.attacl", "c", "c.relowner")}) ORDER BY a.attnum)
FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped)
"""

# Columns of the catalogs that hold OIDs, of which the expression gives the names.
_AGGREGATE = """
(SELECT to_jsonb(a) - '{aggfnoid,aggtranstype,aggmtranstype,aggsortop}'::text[] || jsonb_build_object(
	'state', a.aggtranstype::regtype, 'moving state', a.aggmtranstype::regtype,
	'order', a.aggsortop::regoperator)
FROM pg_aggregate a WHERE a.aggfnoid = p.oid)
"""
_PROC_OIDS = (
    "oid,pronamespace,proowner,prolang,provariadic,prorettype,proargtypes,proallargtypes,proargdefaults,"
    "protrftypes,prosqlbody,proacl"
)
_TYPE_OIDS = (
    "oid,typnamespace,typowner,typrelid,typsubscript,typelem,typarray,typbasetype,typcollation,typdefaultbin,"
    "typacl"
)
_DESCRIPTIONS = {
    "pg_namespace": f"""
SELECT n.oid, jsonb_build_object('owner', n.nspowner::regrole, 'acl', {_acl("n.nspacl", "n", "n.nspowner")})
FROM pg_namespace n""",
    "pg_proc": f"""
SELECT p.oid, to_jsonb(p) - '{{{_PROC_OIDS}}}'::text[] || jsonb_build_object(
	'owner', p.proowner::regrole, 'acl', {_acl("p.proacl", "f", "p.proowner")},
	'language', (SELECT lanname FROM pg_language WHERE oid = p.prolang),
	'result', pg_get_function_result(p.oid), 'arguments', pg_get_function_arguments(p.oid),
	'sql body', pg_get_function_sqlbody(p.oid), 'aggregate', {_AGGREGATE})
FROM pg_proc p""",
    "pg_class": f"""
SELECT c.oid, jsonb_build_object('kind', c.relkind, 'persistence', c.relpersistence, 'options', c.reloptions,
	'owner', c.relowner::regrole, 'row security', c.relrowsecurity, 'forced', c.relforcerowsecurity,
	'replica identity', c.relreplident, 'tablespace', c.reltablespace, 'access', (
		SELECT amname FROM pg_am WHERE oid = c.relam),
	'acl', CASE WHEN c.relkind = 'S' THEN {_acl("c.relacl", "s", "c.relowner")}
		ELSE {_acl("c.relacl", "r", "c.relowner")} END,
	'columns', {_COLUMNS}, 'view', CASE WHEN c.relkind IN ('v', 'm') THEN pg_get_viewdef(c.oid) END,
	'index', CASE WHEN c.relkind IN ('i', 'I') THEN pg_get_indexdef(c.oid) END,
	'sequence', (SELECT to_jsonb(s) - '{{seqrelid,seqtypid}}'::text[] ||
		jsonb_build_object('type', s.seqtypid::regtype) FROM pg_sequence s WHERE s.seqrelid = c.oid))
FROM pg_class c""",
    "pg_type": f"""
SELECT t.oid, to_jsonb(t) - '{{{_TYPE_OIDS}}}'::text[] || jsonb_build_object(
	'owner', t.typowner::regrole, 'acl', {_acl("t.typacl", "T", "t.typowner")},
	'base', format_type(t.typbasetype, t.typtypmod), 'element', t.typelem::regtype,
	'collation', t.typcollation::regcollation, 'subscript', t.typsubscript::text,
	'labels', ARRAY(SELECT enumlabel FROM pg_enum WHERE enumtypid = t.oid ORDER BY enumsortorder))
FROM pg_type t""",
    "pg_constraint": """
SELECT c.oid, jsonb_build_object('definition', pg_get_constraintdef(c.oid), 'deferrable', c.condeferrable,
	'deferred', c.condeferred, 'validated', c.convalidated, 'inherited', NOT c.conislocal)
FROM pg_constraint c""",
    "pg_attrdef": "SELECT d.oid, to_jsonb(pg_get_expr(d.adbin, d.adrelid)) FROM pg_attrdef d",
    "pg_trigger": """
SELECT t.oid, jsonb_build_object('definition', pg_get_triggerdef(t.oid), 'enabled', t.tgenabled)
FROM pg_trigger t""",
    "pg_rewrite": """
SELECT r.oid, jsonb_build_object('definition', pg_get_ruledef(r.oid), 'enabled', r.ev_enabled)
FROM pg_rewrite r""",
    "pg_policy": """
SELECT p.oid, jsonb_build_object('command', p.polcmd, 'permissive', p.polpermissive,
	'roles', ARRAY(SELECT CASE r WHEN 0 THEN 'public' ELSE r::regrole::text END
		FROM unnest(p.polroles) r ORDER BY 1),
	'using', pg_get_expr(p.polqual, p.polrelid), 'check', pg_get_expr(p.polwithcheck, p.polrelid))
FROM pg_policy p""",
}


def snapshot(connection: psycopg.Connection, name: str = "pg_dpml") -> Snapshot:
    """Everything of an extension, in the transaction that is open.

    Definitions and bodies, columns, constraints, triggers, policies, owners, privileges (now and as the
    extension gave them), comments, membership, and the tables that a dump takes along.
    """

    def rows(query: str, **values: Any) -> list[tuple[Any, ...]]:
        return connection.execute(query.encode(), values).fetchall()

    connection.execute(_OBJECTS.encode(), {"name": name})
    found: Snapshot = {}
    names = {}
    for catalog, number, member, kind, identity in rows("SELECT * FROM objects ORDER BY catalog, identity"):
        assert catalog in _DESCRIPTIONS, f"{__name__} cannot describe a {kind} yet: {identity}"
        names[catalog, number] = f"{kind} {identity}"
        found[f"{kind} {identity}"] = {"member": member}
    for catalog, query in _DESCRIPTIONS.items():
        chosen = f"{query} WHERE oid IN (SELECT objid FROM objects WHERE catalog = '{catalog}')"
        for number, description in rows(chosen):
            found[names[catalog, number]]["description"] = description
    for catalog, number, part, text in rows(
        "SELECT o.catalog, o.objid, d.objsubid, d.description FROM objects o JOIN pg_description d "
        "ON (d.classoid::regclass::text, d.objoid) = (o.catalog, o.objid)"
    ):
        found[names[catalog, number]][f"comment {part}"] = text
    for catalog, number, part, given in rows(
        "SELECT o.catalog, o.objid, p.objsubid, ARRAY(SELECT i::text FROM unnest(p.initprivs) i ORDER BY 1) "
        "FROM objects o JOIN pg_init_privs p ON (p.classoid::regclass::text, p.objoid) = (o.catalog, o.objid)"
    ):
        found[names[catalog, number]][f"initial privileges {part}"] = given
    found["strays"] = [stray for (stray,) in rows(_STRAYS)]
    found["extension"] = rows(
        "SELECT extversion, extnamespace::regnamespace::text, extrelocatable, "
        "ARRAY(SELECT c.id::regclass::text || ' ' || c.condition "
        "FROM unnest(extconfig, extcondition) AS c (id, condition) ORDER BY 1) "
        "FROM pg_extension WHERE extname = %(name)s",
        name=name,
    )
    return found


def differences(found: Snapshot, wanted: Snapshot) -> list[str]:
    """What one snapshot has and the other has not, or describes otherwise."""
    lines = [f"missing: {key}" for key in wanted.keys() - found.keys()]
    lines += [f"not in a fresh install: {key}" for key in found.keys() - wanted.keys()]
    for key in found.keys() & wanted.keys():
        if found[key] != wanted[key]:
            lines.append(f"{key}: {found[key]!r} instead of {wanted[key]!r}")
    return sorted(lines)
