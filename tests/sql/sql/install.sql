-- What CREATE EXTENSION makes. The other files of this folder use it.
SET client_min_messages = warning;
CREATE EXTENSION pg_dpml;

-- The C module is that of the SQL.
SELECT extnamespace::regnamespace, extversion = dpml.module_version() AS same_version
FROM pg_extension WHERE extname = 'pg_dpml';

SELECT rolname, rolcanlogin, rolsuper FROM pg_roles WHERE rolname IN ('dpml_analyst', 'dpml_curator') ORDER BY 1;

SELECT relname FROM pg_class WHERE relnamespace = 'dpml'::regnamespace AND relkind = 'r' ORDER BY relname COLLATE "C";

-- Everything has a comment.
SELECT p.oid::regprocedure FROM pg_proc AS p
WHERE p.pronamespace = 'dpml'::regnamespace AND obj_description(p.oid, 'pg_proc') IS NULL;
