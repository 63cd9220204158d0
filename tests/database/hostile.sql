/* SPDX-License-Identifier: PostgreSQL */
/* A schema whose functions, operators, types and tables are called as the built-in ones, and raise an error if used. */

SET check_function_bodies = off;
CREATE SCHEMA hostile;
GRANT USAGE ON SCHEMA hostile TO PUBLIC;
DO $$
DECLARE
	springs constant text := 'LANGUAGE plpgsql AS ''BEGIN RAISE EXCEPTION ''''sprung''''; END''';
	one record;
	symbol text;
BEGIN
	-- what a schema before pg_catalog can put in the place of the built-in
	FOR one IN SELECT p.proname, p.proretset, pg_get_function_identity_arguments(p.oid) AS arguments,
			pg_get_function_result(p.oid) AS result
		FROM pg_proc p
		WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.prokind = 'f' AND p.provariadic = 0
	LOOP
		BEGIN
			EXECUTE format('CREATE FUNCTION hostile.%I(%s) RETURNS %s %s',
				one.proname, one.arguments, one.result, springs);
		EXCEPTION WHEN OTHERS THEN NULL;
		END;
	END LOOP;
	FOR one IN SELECT o.oprname, o.oprcode::regproc AS code, o.oprright::regtype AS operand,
			CASE WHEN o.oprleft <> 0 THEN format('LEFTARG = %s,', o.oprleft::regtype) END AS operands
		FROM pg_operator o WHERE o.oprnamespace = 'pg_catalog'::regnamespace
	LOOP
		BEGIN
			EXECUTE format('CREATE OPERATOR hostile.%s (%s RIGHTARG = %s, FUNCTION = hostile.%I)',
				one.oprname, one.operands, one.operand, one.code);
		EXCEPTION WHEN OTHERS THEN NULL;
		END;
	END LOOP;
	FOR one IN SELECT unnest('{bool,bytea,date,float4,float8,int2,int4,int8,interval,jsonb,name,numeric,oid,text,timestamp,
			timestamptz,varchar}'::text[]) AS type
	LOOP
		EXECUTE format('CREATE DOMAIN hostile.%I AS pg_catalog.%I CHECK (hostile.version() IS NOT NULL)',
			one.type, one.type);
	END LOOP;
	FOR one IN SELECT relname FROM pg_class WHERE relnamespace = 'pg_catalog'::regnamespace AND relkind IN ('r', 'v')
		UNION ALL SELECT relname FROM pg_class WHERE relnamespace = 'dpml'::regnamespace AND relkind = 'r'
	LOOP
		EXECUTE format('CREATE VIEW hostile.%I AS SELECT hostile.version()', one.relname);
	END LOOP;
	FOR one IN SELECT * FROM (VALUES ('count', '*', ''), ('sum', 'int8', ', int8'), ('sum', 'numeric', ', numeric'),
			('bool_or', 'bool', ', bool')) v (aggregate, argument, step)
	LOOP
		EXECUTE format('CREATE FUNCTION hostile.step(int8%s) RETURNS int8 %s', one.step, springs);
		EXECUTE format('CREATE AGGREGATE hostile.%s(%s) (SFUNC = hostile.step, STYPE = int8)', one.aggregate, one.argument);
	END LOOP;
	-- and closer matches than the built-in ones, in whatever place of the path
	FOR one IN SELECT l.type AS l, r.type AS r, k.name AS kind, k.result, k.operators FROM
			unnest('{int2,int4,int8,float4,float8,numeric,text,varchar,name,oid,float8[],int4[]}'
				::regtype[]) l (type),
			unnest('{int2,int4,int8,float4,float8,numeric,text,varchar,name,oid,float8[],int4[]}'
				::regtype[]) r (type),
			(VALUES ('test', 'boolean', '{=,<,<=,>,>=}'::text[]), ('number', 'float8', '{+,-,*,/,^}')) k (name, result, operators)
	LOOP
		EXECUTE format('CREATE FUNCTION hostile.%I(%s, %s) RETURNS %s %s', one.kind, one.l, one.r, one.result, springs);
		FOREACH symbol IN ARRAY one.operators LOOP
			CONTINUE WHEN EXISTS (SELECT FROM pg_operator
				WHERE oprname = symbol AND oprleft = one.l AND oprright = one.r);
			EXECUTE format('CREATE OPERATOR hostile.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = hostile.%I)',
				symbol, one.l, one.r, one.kind);
		END LOOP;
	END LOOP;
END $$;
