-- What PUBLIC may do, which is little, and that roles may do no more than they are for.
\set VERBOSITY terse
SELECT p.oid::regprocedure FROM pg_proc AS p
WHERE p.pronamespace = 'dpml'::regnamespace AND has_function_privilege('public', p.oid, 'EXECUTE')
ORDER BY p.proname COLLATE "C";
SELECT nspname, has_schema_privilege('public', oid, 'USAGE') AS usage, has_schema_privilege('public', oid, 'CREATE') AS "create"
FROM pg_namespace WHERE nspname IN ('dpml', 'dpml_work') ORDER BY 1;
SELECT c.relname FROM pg_class AS c WHERE c.relnamespace = 'dpml'::regnamespace AND c.relkind = 'r'
AND has_table_privilege('public', c.oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER');

CREATE ROLE regress_dpml_nobody;
GRANT SELECT ON points, blocks, spec TO regress_dpml_nobody;
SET ROLE regress_dpml_nobody;
SELECT dpml.sgd_epoch(ARRAY[a, b], y, NULL, '{"loss": "squared", "step_size": 0.5}') FROM points;
SELECT dpml.encode(spec, p) FROM points AS p, spec;
SELECT dpml.gradient(block, '{0,0}', '{"loss": "squared"}') FROM blocks;
SELECT count(*) FROM dpml.ledger;
SELECT count(*) FROM dpml.models;
SELECT dpml.drop_model('loan');
CREATE TABLE dpml_work.mine (a int);
RESET ROLE;

GRANT dpml_curator TO regress_dpml_nobody;
SET ROLE regress_dpml_nobody;
SELECT (r).rows FROM (SELECT dpml.gradient(block, '{0,0}', '{"loss": "squared"}') AS r FROM blocks) AS s;
SELECT count(*) FROM dpml.ledger;
INSERT INTO dpml.ledger (charged_by, table_name, model, method, epsilon, delta, relation, n_units, mechanism)
VALUES ('somebody', 'public.points', 'm', 'bolt-on', 1, 0, 'replace_one', 3, '{}');
DELETE FROM dpml.ledger;
RESET ROLE;
DROP OWNED BY regress_dpml_nobody;
DROP ROLE regress_dpml_nobody;

-- What was spent stays spent, for a superuser too.
BEGIN;
INSERT INTO dpml.ledger (table_name, model, method, epsilon, delta, relation, n_units, mechanism)
VALUES ('public.points', 'm', 'bolt-on', 1, 0, 'replace_one', 3, '{}');
SAVEPOINT spent;
DELETE FROM dpml.ledger;
ROLLBACK TO spent;
UPDATE dpml.ledger SET epsilon = 0;
ROLLBACK;
