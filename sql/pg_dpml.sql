/* SPDX-License-Identifier: PostgreSQL */

-- One file, however long: PostgreSQL runs an extension's script from one.
-- An object is one block: CREATE, COMMENT, GRANT. What no GRANT names is closed: see the last section.

\echo Use "CREATE EXTENSION pg_dpml" to load this file. \quit

--
-- Guard
--

-- Whoever owns or has filled the schema could add functions that callers of ours would take for ours.
DO $$
BEGIN
	IF EXISTS (SELECT FROM pg_catalog.pg_namespace AS n JOIN pg_catalog.pg_roles AS r ON r.oid OPERATOR(pg_catalog.=) n.nspowner
			WHERE n.nspname OPERATOR(pg_catalog.=) 'dpml'
			AND NOT (r.rolsuper OR r.rolname OPERATOR(pg_catalog.=) current_user))
		OR EXISTS (SELECT FROM pg_catalog.pg_depend AS d
			WHERE d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_namespace'::pg_catalog.regclass::pg_catalog.oid
			AND d.refobjid OPERATOR(pg_catalog.=) 'dpml'::pg_catalog.regnamespace::pg_catalog.oid
			AND d.classid OPERATOR(pg_catalog.<>) 'pg_catalog.pg_extension'::pg_catalog.regclass::pg_catalog.oid)
	THEN
		RAISE EXCEPTION 'schema dpml belongs to another role, or has objects that are not pg_dpml''s'
			USING ERRCODE = 'duplicate_schema', HINT = 'Look at what it holds, then drop it: the extension makes its own.';
	END IF;
END
$$;

COMMENT ON SCHEMA dpml IS 'differentially private machine learning: models, ledger, functions; see dpml.help()';

--
-- Roles
--
-- They belong to the cluster: they may exist already, and outlive the extension.

DO $$
DECLARE
	missing name;
BEGIN
	FOREACH missing IN ARRAY ARRAY['dpml_curator', 'dpml_analyst']::name[] LOOP
		CONTINUE WHEN EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = missing);
		BEGIN
			EXECUTE pg_catalog.format('CREATE ROLE %I NOLOGIN', missing);
		EXCEPTION
			WHEN insufficient_privilege THEN
				RAISE EXCEPTION 'role "%" does not exist and cannot be created without CREATEROLE', missing
					USING ERRCODE = 'insufficient_privilege', HINT = 'Have it created, then create the extension again.';
			WHEN duplicate_object OR unique_violation THEN
				NULL;
		END;
	END LOOP;
END
$$;

CREATE SCHEMA dpml_work;
COMMENT ON SCHEMA dpml_work IS
'private tables of runs of dpml: packed rows and un-noised weights, dropped when a run ends';
REVOKE ALL ON SCHEMA dpml_work FROM PUBLIC;
GRANT USAGE, CREATE ON SCHEMA dpml_work TO dpml_curator;

--
-- Ledger and budgets
--
-- Who charged, when, and under which number is not the curator's to say: these columns have no INSERT. That stops who
-- names them, but not the defaults that a role gives to the columns of its own view of a table: keep_defaults does.

CREATE FUNCTION dpml.append_only() RETURNS trigger
	LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	RAISE EXCEPTION '%.% is append-only', TG_TABLE_SCHEMA, TG_TABLE_NAME
		USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'What was spent stays spent.';
END
$$;
COMMENT ON FUNCTION dpml.append_only() IS 'trigger that refuses to change or remove what was spent';

CREATE FUNCTION dpml.keep_defaults() RETURNS trigger
	LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	kept record;
	other boolean;
BEGIN
	FOR kept IN SELECT a.attname AS name, CASE WHEN a.attidentity = '' THEN coalesce(pg_get_expr(d.adbin, d.adrelid), 'NULL')
				ELSE format('currval(%L)', pg_get_serial_sequence(format('%I.%I', TG_TABLE_SCHEMA, TG_TABLE_NAME), a.attname))
			END AS value
			FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
			WHERE a.attrelid = TG_RELID AND a.attnum > 0 AND NOT a.attisdropped
				AND NOT has_column_privilege(TG_RELID, a.attnum, 'INSERT') LOOP
		EXECUTE format('SELECT ($1).%I IS DISTINCT FROM %s', kept.name, kept.value) INTO other USING NEW;
		IF other THEN
			RAISE EXCEPTION 'role % may not set %.%.%', current_user, TG_TABLE_SCHEMA, TG_TABLE_NAME, kept.name
				USING ERRCODE = 'insufficient_privilege';
		END IF;
	END LOOP;
	RETURN NEW;
END
$$;
COMMENT ON FUNCTION dpml.keep_defaults() IS
'trigger that refuses a row in which a column that the role may not set has another value than its default';

CREATE TABLE dpml.ledger (
	id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	charged_at timestamptz NOT NULL DEFAULT pg_catalog.now(),
	charged_by name NOT NULL DEFAULT current_user,
	table_name text NOT NULL,
	model text NOT NULL,
	method text NOT NULL,
	epsilon numeric NOT NULL,
	delta numeric NOT NULL,
	relation text NOT NULL,
	n_units bigint NOT NULL,
	mechanism jsonb NOT NULL
);
COMMENT ON TABLE dpml.ledger IS
'what every private run and evaluation spent, written and committed before it reads a row';
COMMENT ON COLUMN dpml.ledger.id IS 'number of the charge';
COMMENT ON COLUMN dpml.ledger.charged_at IS 'start of the transaction that charged';
COMMENT ON COLUMN dpml.ledger.charged_by IS 'role that charged';
COMMENT ON COLUMN dpml.ledger.table_name IS 'table or view that the run reads';
COMMENT ON COLUMN dpml.ledger.model IS 'name of the model that the run was to make, or that was evaluated';
COMMENT ON COLUMN dpml.ledger.method IS 'training method, or evaluate';
COMMENT ON COLUMN dpml.ledger.epsilon IS 'epsilon of the guarantee';
COMMENT ON COLUMN dpml.ledger.delta IS 'delta of the guarantee';
COMMENT ON COLUMN dpml.ledger.relation IS 'neighbouring relation: replace_one or add_remove';
COMMENT ON COLUMN dpml.ledger.n_units IS 'public number of units of privacy';
COMMENT ON COLUMN dpml.ledger.mechanism IS 'mechanism and its parameters, from which the cost can be composed';
GRANT SELECT ON TABLE dpml.ledger TO dpml_curator;
GRANT INSERT (table_name, model, method, epsilon, delta, relation, n_units, mechanism) ON TABLE dpml.ledger TO dpml_curator;
GRANT SELECT ON SEQUENCE dpml.ledger_id_seq TO dpml_curator;	-- keep_defaults reads the number just given
SELECT pg_catalog.pg_extension_config_dump('dpml.ledger', '');
SELECT pg_catalog.pg_extension_config_dump('dpml.ledger_id_seq', '');
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON dpml.ledger
	FOR EACH STATEMENT EXECUTE FUNCTION dpml.append_only();
CREATE TRIGGER keep_defaults BEFORE INSERT ON dpml.ledger
	FOR EACH ROW EXECUTE FUNCTION dpml.keep_defaults();

-- Members of an extension go with it unasked; a view that is none holds it, so that DROP EXTENSION needs CASCADE.
-- The definer is whoever created the extension: those who charge need no right to create anything.
CREATE FUNCTION dpml.hold_extension() RETURNS trigger
	LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, dpml, pg_temp AS $$
BEGIN
	IF pg_catalog.to_regclass('dpml.ledger_in_use') IS NULL THEN
		BEGIN
			CREATE VIEW dpml.ledger_in_use AS SELECT pg_catalog.count(*) AS entries FROM dpml.ledger;
			COMMENT ON VIEW dpml.ledger_in_use IS
			'keeps DROP EXTENSION pg_dpml from deleting, without CASCADE, the record of what was spent';
		EXCEPTION
			WHEN duplicate_table OR duplicate_object OR unique_violation OR insufficient_privilege THEN
				NULL;
		END;
	END IF;
	RETURN NULL;
END
$$;
COMMENT ON FUNCTION dpml.hold_extension() IS 'trigger that makes DROP EXTENSION need CASCADE once something was spent';

CREATE TRIGGER hold_extension AFTER INSERT ON dpml.ledger
	FOR EACH STATEMENT EXECUTE FUNCTION dpml.hold_extension();

CREATE TABLE dpml.budgets (
	dataset text PRIMARY KEY,
	opened_at timestamptz NOT NULL DEFAULT pg_catalog.now(),
	opened_by name NOT NULL DEFAULT current_user,
	rule text NOT NULL CHECK (rule IN ('basic', 'zcdp', 'gdp')),
	epsilon numeric NOT NULL,
	delta numeric NOT NULL,
	relation text NOT NULL CHECK (relation IN ('replace_one', 'add_remove')),
	unit text,
	tables text[] NOT NULL,
	min_epsilon numeric NOT NULL CHECK (min_epsilon > 0),
	min_delta numeric NOT NULL CHECK (min_delta >= 0),
	max_delta numeric NOT NULL CHECK (max_delta >= min_delta AND max_delta < 1),
	loss_limit numeric NOT NULL,
	delta_limit numeric NOT NULL,
	shared boolean NOT NULL DEFAULT false
);
COMMENT ON TABLE dpml.budgets IS
'what all runs on a data set together may spend, fixed when the budget is opened; one that nothing was charged to can be opened again';
COMMENT ON COLUMN dpml.budgets.dataset IS 'name of the data set, whatever its tables are called';
COMMENT ON COLUMN dpml.budgets.opened_at IS 'start of the transaction that opened the budget';
COMMENT ON COLUMN dpml.budgets.opened_by IS 'role that opened the budget';
COMMENT ON COLUMN dpml.budgets.rule IS 'how costs compose: basic, zcdp or gdp';
COMMENT ON COLUMN dpml.budgets.epsilon IS 'epsilon of everything together';
COMMENT ON COLUMN dpml.budgets.delta IS 'delta of everything together';
COMMENT ON COLUMN dpml.budgets.relation IS 'neighbouring relation of the guarantee: replace_one or add_remove';
COMMENT ON COLUMN dpml.budgets.unit IS 'column that is the unit of privacy; null: every row is one';
COMMENT ON COLUMN dpml.budgets.tables IS 'tables and views whose runs are charged here without naming the data set';
COMMENT ON COLUMN dpml.budgets.min_epsilon IS 'what one charge costs at least: epsilon at the budget''s delta, by its rule';
COMMENT ON COLUMN dpml.budgets.min_delta IS 'least delta of one run''s own guarantee';
COMMENT ON COLUMN dpml.budgets.max_delta IS 'largest delta of one run''s own guarantee';
COMMENT ON COLUMN dpml.budgets.loss_limit IS 'most that the losses of the entries may add up to: epsilon, rho or mu^2';
COMMENT ON COLUMN dpml.budgets.delta_limit IS 'most that the deltas of the entries may add up to';
COMMENT ON COLUMN dpml.budgets.shared IS
'whether its tables may be in an earlier budget too, which opened_by, a superuser then, allowed';
GRANT SELECT ON TABLE dpml.budgets TO dpml_curator;
GRANT INSERT (dataset, rule, epsilon, delta, relation, unit, tables, min_epsilon, min_delta, max_delta,
		loss_limit, delta_limit, shared)
	ON TABLE dpml.budgets TO dpml_curator;
-- Also to lock the row while a charge is made; check_budget refuses the update of one that was charged.
GRANT UPDATE (rule, epsilon, delta, relation, unit, tables, min_epsilon, min_delta, max_delta,
		loss_limit, delta_limit, shared)
	ON TABLE dpml.budgets TO dpml_curator;
SELECT pg_catalog.pg_extension_config_dump('dpml.budgets', '');
CREATE TRIGGER append_only BEFORE DELETE OR TRUNCATE ON dpml.budgets
	FOR EACH STATEMENT EXECUTE FUNCTION dpml.append_only();
CREATE TRIGGER keep_defaults BEFORE INSERT ON dpml.budgets
	FOR EACH ROW EXECUTE FUNCTION dpml.keep_defaults();
CREATE TRIGGER hold_extension AFTER INSERT ON dpml.budgets
	FOR EACH STATEMENT EXECUTE FUNCTION dpml.hold_extension();

CREATE TABLE dpml.budget_entries (
	dataset text REFERENCES dpml.budgets (dataset),
	turn bigint,
	entered_at timestamptz NOT NULL DEFAULT pg_catalog.now(),
	entered_by name NOT NULL DEFAULT current_user,
	charge_key text NOT NULL,
	charge bigint UNIQUE REFERENCES dpml.ledger (id),
	loss numeric NOT NULL CHECK (loss >= 0),
	delta numeric NOT NULL CHECK (delta >= 0),
	terms jsonb CHECK (charge IS NULL OR terms IS NULL),
	-- Two sessions that both found so many entries cannot both add the next one, whatever they have locked.
	PRIMARY KEY (dataset, turn),
	UNIQUE (dataset, charge_key)
);
COMMENT ON TABLE dpml.budget_entries IS
'what was taken out of budgets, when they were closed, and when they were opened again';
COMMENT ON COLUMN dpml.budget_entries.dataset IS 'the budget';
COMMENT ON COLUMN dpml.budget_entries.turn IS 'number of the entry, from 1';
COMMENT ON COLUMN dpml.budget_entries.entered_at IS 'start of the transaction that made the entry';
COMMENT ON COLUMN dpml.budget_entries.entered_by IS 'role that made the entry';
COMMENT ON COLUMN dpml.budget_entries.charge_key IS
'key of the charge, which is made once however often a run is repeated under it';
COMMENT ON COLUMN dpml.budget_entries.charge IS
'the charge in dpml.ledger; null: the budget was closed, or opened again';
COMMENT ON COLUMN dpml.budget_entries.loss IS 'cost by the rule of the budget: epsilon, rho or mu^2';
COMMENT ON COLUMN dpml.budget_entries.delta IS 'delta that the cost leaves to be added';
COMMENT ON COLUMN dpml.budget_entries.terms IS
'where the budget was opened again: its row of dpml.budgets until then; null: a charge, or the end of the budget';
GRANT SELECT ON TABLE dpml.budget_entries TO dpml_curator;
GRANT INSERT (dataset, turn, charge_key, charge, loss, delta, terms) ON TABLE dpml.budget_entries TO dpml_curator;
SELECT pg_catalog.pg_extension_config_dump('dpml.budget_entries', '');
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON dpml.budget_entries
	FOR EACH STATEMENT EXECUTE FUNCTION dpml.append_only();
CREATE TRIGGER keep_defaults BEFORE INSERT ON dpml.budget_entries
	FOR EACH ROW EXECUTE FUNCTION dpml.keep_defaults();

CREATE FUNCTION dpml.check_budget() RETURNS trigger
	LANGUAGE plpgsql SET search_path = pg_catalog, dpml, pg_temp AS $$
BEGIN
	IF NEW.shared AND NOT (SELECT r.rolsuper FROM pg_roles r WHERE r.rolname = current_user) THEN
		RAISE EXCEPTION 'role % may not open a second budget on a table: that takes a superuser', current_user
			USING ERRCODE = 'insufficient_privilege';
	END IF;
	IF TG_OP = 'UPDATE' THEN
		IF NEW.dataset <> OLD.dataset OR EXISTS (
				SELECT FROM dpml.budget_entries e WHERE e.dataset = OLD.dataset AND e.charge IS NOT NULL) THEN
			RAISE EXCEPTION '%.% is append-only', TG_TABLE_SCHEMA, TG_TABLE_NAME
				USING ERRCODE = 'object_not_in_prerequisite_state',
				HINT = 'Only a budget that nothing was charged to can be opened again.';
		END IF;
		NEW.opened_at := clock_timestamp();
		NEW.opened_by := current_user;
		-- As a charge does: one of an older snapshot, or a charge that this one does not see, has this number, too.
		INSERT INTO dpml.budget_entries (dataset, turn, charge_key, loss, delta, terms)
			SELECT OLD.dataset, count(*) + 1, 'open ' || gen_random_uuid(), 0, 0, to_jsonb(OLD)
			FROM dpml.budget_entries e WHERE e.dataset = OLD.dataset;
	END IF;
	RETURN NEW;
END
$$;
COMMENT ON FUNCTION dpml.check_budget() IS
'trigger that lets a budget change only while nothing was charged to it, and notes what it was';
CREATE TRIGGER check_budget BEFORE INSERT OR UPDATE ON dpml.budgets
	FOR EACH ROW EXECUTE FUNCTION dpml.check_budget();

CREATE FUNCTION dpml.check_budget_entry() RETURNS trigger
	LANGUAGE plpgsql SET search_path = pg_catalog, dpml, pg_temp AS $$
BEGIN
	-- With a gap two entries that did not see each other could have different numbers. A dump, which the owner of the
	-- extension restores, has them in any order.
	IF NEW.turn IS DISTINCT FROM (SELECT count(*) + 1 FROM dpml.budget_entries e WHERE e.dataset = NEW.dataset)
			AND NOT pg_has_role((SELECT c.relowner FROM pg_class c WHERE c.oid = TG_RELID), 'MEMBER') THEN
		RAISE EXCEPTION 'entry % of data set % does not follow the one before', NEW.turn, left(NEW.dataset, 200)
			USING ERRCODE = 'object_not_in_prerequisite_state';
	END IF;
	IF NEW.terms IS NOT NULL AND EXISTS (SELECT FROM dpml.budget_entries e
			WHERE e.dataset = NEW.dataset AND e.turn < NEW.turn AND e.charge IS NOT NULL) THEN
		RAISE EXCEPTION 'the budget of data set % was charged, and is not opened again', left(NEW.dataset, 200)
			USING ERRCODE = 'object_not_in_prerequisite_state';
	END IF;
	RETURN NEW;
END
$$;
COMMENT ON FUNCTION dpml.check_budget_entry() IS
'trigger that numbers the entries without a gap, and refuses to open a budget again that was charged';
CREATE TRIGGER check_budget_entry BEFORE INSERT ON dpml.budget_entries
	FOR EACH ROW EXECUTE FUNCTION dpml.check_budget_entry();

-- Which tables a budget is for, by what no rename changes. It is in no dump, as the numbers of another database mean
-- nothing: there the names that dpml.budgets and dpml.ledger have go on counting.
CREATE TABLE dpml.budget_relations (
	dataset text REFERENCES dpml.budgets (dataset),
	opened_at timestamptz,
	relation oid,
	listed boolean NOT NULL,
	PRIMARY KEY (relation, dataset, opened_at)
);
COMMENT ON TABLE dpml.budget_relations IS 'tables that runs of a budget read, themselves or below a view';
COMMENT ON COLUMN dpml.budget_relations.dataset IS 'the budget';
COMMENT ON COLUMN dpml.budget_relations.opened_at IS
'when it was opened: another time than in dpml.budgets if it was opened again since, for other tables';
COMMENT ON COLUMN dpml.budget_relations.relation IS 'the table, by its number in pg_class';
COMMENT ON COLUMN dpml.budget_relations.listed IS
'whether the budget was opened for it, so that its runs need not name the data set';
GRANT SELECT ON TABLE dpml.budget_relations TO dpml_curator;
GRANT INSERT (dataset, relation, listed) ON TABLE dpml.budget_relations TO dpml_curator;
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON dpml.budget_relations
	FOR EACH STATEMENT EXECUTE FUNCTION dpml.append_only();

-- Who adds a table to a budget changes this row first: others wait, and then see it; an older snapshot fails.
CREATE TABLE dpml.budget_turn (turn bigint NOT NULL);
COMMENT ON TABLE dpml.budget_turn IS 'one row, which makes tables come into budgets one after the other';
COMMENT ON COLUMN dpml.budget_turn.turn IS 'how many did';
GRANT SELECT, UPDATE (turn) ON TABLE dpml.budget_turn TO dpml_curator;
INSERT INTO dpml.budget_turn VALUES (0);
CREATE TRIGGER append_only BEFORE INSERT OR DELETE OR TRUNCATE ON dpml.budget_turn
	FOR EACH STATEMENT EXECUTE FUNCTION dpml.append_only();

CREATE FUNCTION dpml.budgets_on(relations oid[]) RETURNS TABLE (dataset text, listed boolean, unused boolean)
	LANGUAGE sql STABLE PARALLEL SAFE
BEGIN ATOMIC
	-- The rows of a partition or child are rows of its parents.
	WITH RECURSIVE part AS (
		SELECT pg_catalog.unnest(budgets_on.relations) AS relation
		UNION SELECT i.inhparent FROM part JOIN pg_catalog.pg_inherits i ON i.inhrelid = part.relation
	), named AS (
		SELECT n.nspname || '.' || c.relname AS name
		FROM part JOIN pg_catalog.pg_class c ON c.oid = part.relation
		JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.relpersistence <> 't'
	)
	SELECT b.dataset, coalesce(r.listed, false) OR EXISTS (SELECT FROM named WHERE named.name = ANY (b.tables)),
		EXISTS (SELECT FROM dpml.budget_entries e WHERE e.dataset = b.dataset)
		AND NOT EXISTS (SELECT FROM dpml.budget_entries e WHERE e.dataset = b.dataset AND e.charge IS NOT NULL)
		AND (SELECT e.terms IS NULL FROM dpml.budget_entries e WHERE e.dataset = b.dataset ORDER BY e.turn DESC LIMIT 1)
	FROM dpml.budgets b, LATERAL (
		SELECT pg_catalog.bool_or(r.listed) AS listed FROM dpml.budget_relations r JOIN part ON part.relation = r.relation
		WHERE r.dataset = b.dataset AND r.opened_at = b.opened_at) r
	WHERE r.listed IS NOT NULL
		OR EXISTS (SELECT FROM named WHERE named.name = ANY (b.tables))
		OR EXISTS (SELECT FROM dpml.budget_entries e JOIN dpml.ledger l ON l.id = e.charge
			JOIN named ON named.name = l.table_name WHERE e.dataset = b.dataset);
END;
COMMENT ON FUNCTION dpml.budgets_on(oid[]) IS
'budgets that any of these tables is in: whether it is listed there, and whether the budget was closed
before anything was charged';
GRANT EXECUTE ON FUNCTION dpml.budgets_on(oid[]) TO dpml_curator;

CREATE FUNCTION dpml.check_budget_relation() RETURNS trigger
	LANGUAGE plpgsql SET search_path = pg_catalog, dpml, pg_temp AS $$
DECLARE
	own dpml.budgets;
	other text;
BEGIN
	UPDATE dpml.budget_turn SET turn = turn + 1;
	SELECT * INTO STRICT own FROM dpml.budgets b WHERE b.dataset = NEW.dataset;
	NEW.opened_at := own.opened_at;
	SELECT o.dataset INTO other FROM dpml.budgets_on(ARRAY[NEW.relation]) o JOIN dpml.budgets b ON b.dataset = o.dataset
		WHERE o.dataset <> NEW.dataset AND NOT o.unused
		AND NOT own.shared AND NOT (b.shared AND b.opened_at > own.opened_at) ORDER BY 1 LIMIT 1;
	IF FOUND THEN
		RAISE EXCEPTION 'table % is in the budget of data set % already', NEW.relation::regclass, left(other, 200)
			USING ERRCODE = 'object_not_in_prerequisite_state';
	END IF;
	RETURN NEW;
END
$$;
COMMENT ON FUNCTION dpml.check_budget_relation() IS
'trigger that keeps a table out of a second budget, unless that budget is shared';
CREATE TRIGGER check_budget_relation BEFORE INSERT ON dpml.budget_relations
	FOR EACH ROW EXECUTE FUNCTION dpml.check_budget_relation();

--
-- Models
--

CREATE TABLE dpml.models (
	name text PRIMARY KEY,
	created_at timestamptz NOT NULL DEFAULT pg_catalog.now(),
	owner name NOT NULL DEFAULT current_user,
	granted_to name[] NOT NULL DEFAULT '{}' CHECK (pg_catalog.cardinality(granted_to) <= 1000),
	method text NOT NULL,
	private boolean NOT NULL,
	task text NOT NULL CHECK (task IN ('binary', 'multiclass', 'regression')),
	loss text NOT NULL,
	classes text[],
	weights float8[] NOT NULL,
	whitening float8[],
	n_features int NOT NULL,
	encoder jsonb NOT NULL,
	privacy jsonb NOT NULL,
	training jsonb NOT NULL,
	charge bigint REFERENCES dpml.ledger (id)
);
-- Compression would be tried in vain on megabytes of noisy numbers.
ALTER TABLE dpml.models ALTER COLUMN whitening SET STORAGE EXTERNAL;
COMMENT ON TABLE dpml.models IS 'released models';
COMMENT ON COLUMN dpml.models.name IS 'name that dpml.predict takes';
COMMENT ON COLUMN dpml.models.created_at IS 'start of the transaction that stored the model';
COMMENT ON COLUMN dpml.models.owner IS 'role that the model belongs to: that which stored it, unless it named another';
COMMENT ON COLUMN dpml.models.granted_to IS 'other roles that may read and apply the model; public: every role';
COMMENT ON COLUMN dpml.models.method IS 'training method';
COMMENT ON COLUMN dpml.models.private IS 'false for a model without a guarantee';
COMMENT ON COLUMN dpml.models.task IS 'binary, multiclass or regression';
COMMENT ON COLUMN dpml.models.loss IS 'logistic, huber_svm, squared, softmax or hinge';
COMMENT ON COLUMN dpml.models.classes IS 'class names; binary: negative, positive; null for regression';
COMMENT ON COLUMN dpml.models.weights IS 'released weights, one row of n_features for each class or a single row';
COMMENT ON COLUMN dpml.models.whitening IS
'symmetric matrix P, n_features x n_features, by whose norm of the encoded row the scores are divided; null: none';
COMMENT ON COLUMN dpml.models.n_features IS 'features that the encoder makes, intercept included';
COMMENT ON COLUMN dpml.models.encoder IS 'specification that dpml.encode takes';
COMMENT ON COLUMN dpml.models.privacy IS 'the guarantee and how it was calibrated';
COMMENT ON COLUMN dpml.models.training IS 'options of the training run';
COMMENT ON COLUMN dpml.models.charge IS 'the charge in dpml.ledger';
GRANT SELECT, UPDATE (granted_to) ON TABLE dpml.models TO dpml_curator;
GRANT INSERT (name, owner, method, private, task, loss, classes, weights, whitening, n_features, encoder, privacy,
		training, charge)
	ON TABLE dpml.models TO dpml_curator;
-- Of models that they own, or for SELECT were granted: see the policies.
GRANT SELECT, UPDATE (granted_to) ON TABLE dpml.models TO dpml_analyst;
SELECT pg_catalog.pg_extension_config_dump('dpml.models', '');
CREATE TRIGGER keep_defaults BEFORE INSERT ON dpml.models
	FOR EACH ROW WHEN (NEW.created_at <> pg_catalog.now() OR NEW.granted_to <> '{}')	-- as rows are large
	EXECUTE FUNCTION dpml.keep_defaults();

-- Roles go by name, as in a dump.  One that is gone is nobody: to_regrole is null then, where a cast would fail.
ALTER TABLE dpml.models ENABLE ROW LEVEL SECURITY;
CREATE POLICY owner ON dpml.models
	USING (pg_catalog.pg_has_role(pg_catalog.to_regrole(pg_catalog.quote_ident(owner)), 'USAGE'));
COMMENT ON POLICY owner ON dpml.models IS 'members of the role that owns a model read, grant and drop it';
CREATE POLICY granted ON dpml.models FOR SELECT
	USING (EXISTS (SELECT FROM pg_catalog.unnest(granted_to) AS g (role)
		WHERE g.role OPERATOR(pg_catalog.=) 'public'
		OR pg_catalog.pg_has_role(pg_catalog.to_regrole(pg_catalog.quote_ident(g.role)), 'USAGE')));
COMMENT ON POLICY granted ON dpml.models IS 'members of a role that a model was granted to read it';
CREATE POLICY curator ON dpml.models TO dpml_curator USING (true);
COMMENT ON POLICY curator ON dpml.models IS 'curators keep the models of everybody';

-- A right to delete models would be one to lock the whole table, and so to stop everybody else's runs. So who drops a
-- model names it in a row, and a trigger acts for the role that the row names: never for the session's, which stays a
-- superuser's while his ANALYZE runs a function in the index of another role. The row goes at once: a record that a dump
-- restores would drop models again.
CREATE UNLOGGED TABLE dpml.drops (
	model text,
	dropped_by name NOT NULL DEFAULT current_user
);
COMMENT ON TABLE dpml.drops IS 'models to be dropped: a row drops one, and is gone when its statement ends';
COMMENT ON COLUMN dpml.drops.model IS 'name of the model';
COMMENT ON COLUMN dpml.drops.dropped_by IS 'role that drops it';
GRANT INSERT (model) ON TABLE dpml.drops TO dpml_curator, dpml_analyst;
ALTER TABLE dpml.drops ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON dpml.drops FOR INSERT WITH CHECK (dropped_by = current_user);

CREATE FUNCTION dpml.carry_out_drop() RETURNS trigger
	LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, dpml, pg_temp AS $$
BEGIN
	DELETE FROM dpml.drops d WHERE d.model = NEW.model AND d.dropped_by = NEW.dropped_by;
	IF FOUND THEN				-- else the trigger is on another table, where anything may be written
		DELETE FROM dpml.models m WHERE m.name = NEW.model AND (
			pg_has_role(NEW.dropped_by, to_regrole(quote_ident(m.owner)), 'USAGE')
			OR pg_has_role(NEW.dropped_by, to_regrole('dpml_curator'), 'USAGE'));
	END IF;
	IF NOT FOUND THEN
		RAISE EXCEPTION 'there is no model called % that role % may drop', left(NEW.model, 200), NEW.dropped_by
			USING ERRCODE = 'no_data_found';
	END IF;
	RETURN NULL;
END
$$;
COMMENT ON FUNCTION dpml.carry_out_drop() IS 'trigger that removes the model that a row of dpml.drops names';
CREATE TRIGGER carry_out_drop AFTER INSERT ON dpml.drops
	FOR EACH ROW EXECUTE FUNCTION dpml.carry_out_drop();

CREATE FUNCTION dpml.drop_model(model text) RETURNS boolean
	LANGUAGE plpgsql SET search_path = pg_catalog, dpml, pg_temp AS $$
BEGIN
	INSERT INTO dpml.drops (model) VALUES (drop_model.model);
	RETURN true;
EXCEPTION
	WHEN no_data_found THEN
		RETURN false;
END
$$;
COMMENT ON FUNCTION dpml.drop_model(text) IS
'removes a model of a role of the caller, or for curators any; true if there was one. What it spent stays in the ledger';
GRANT EXECUTE ON FUNCTION dpml.drop_model(text) TO dpml_curator, dpml_analyst;

--
-- Requests
--
-- Who may not read a table asks for a model of it, and dpml serve, run by the data's owner, trains it.
-- Privileges say which columns a role may touch, policies which rows. Neither lets who files a request lock a row
-- that the service waits for.

CREATE TABLE dpml.datasets (
	name text PRIMARY KEY REFERENCES dpml.budgets (dataset),
	registered_at timestamptz NOT NULL DEFAULT pg_catalog.now(),
	registered_by name NOT NULL DEFAULT current_user,
	role name NOT NULL,
	source text NOT NULL,
	source_owner name NOT NULL,
	spec text NOT NULL,
	min_epsilon numeric NOT NULL CHECK (min_epsilon > 0),
	max_epsilon numeric NOT NULL CHECK (max_epsilon >= min_epsilon),
	min_delta numeric NOT NULL CHECK (min_delta >= 0),
	max_delta numeric NOT NULL CHECK (max_delta >= min_delta AND max_delta < 1),
	max_passes int NOT NULL,
	allow_certified boolean NOT NULL DEFAULT false,
	offered boolean NOT NULL DEFAULT true
);
COMMENT ON TABLE dpml.datasets IS 'data sets of which models may be requested, by dpml.request or dpml.train';
COMMENT ON COLUMN dpml.datasets.name IS 'name of the data set, and of its budget';
COMMENT ON COLUMN dpml.datasets.registered_at IS 'start of the transaction that registered it first';
COMMENT ON COLUMN dpml.datasets.registered_by IS 'role that registered it, the only one whose dpml serve trains on it';
COMMENT ON COLUMN dpml.datasets.role IS 'role whose members may request models';
COMMENT ON COLUMN dpml.datasets.source IS 'table or view, with its schema';
COMMENT ON COLUMN dpml.datasets.source_owner IS 'owner of the table: one of this name but of another owner is not read';
COMMENT ON COLUMN dpml.datasets.spec IS 'label, columns, filter and unit of privacy: the data spec as TOML';
COMMENT ON COLUMN dpml.datasets.min_epsilon IS
'what one request costs at least: epsilon at the budget''s delta, by its rule';
COMMENT ON COLUMN dpml.datasets.max_epsilon IS
'largest epsilon that one request may ask for, and what it costs at most: epsilon at the budget''s delta, by its rule';
COMMENT ON COLUMN dpml.datasets.min_delta IS 'least delta of one request';
COMMENT ON COLUMN dpml.datasets.max_delta IS 'largest delta of one request';
COMMENT ON COLUMN dpml.datasets.max_passes IS 'most passes over the table that one request may take';
COMMENT ON COLUMN dpml.datasets.allow_certified IS
'whether a request may have solver = certified, whose number of passes depends on the rows and can be counted in pg_stat_io';
COMMENT ON COLUMN dpml.datasets.offered IS 'false once it was withdrawn';
GRANT SELECT ON TABLE dpml.datasets TO dpml_curator, dpml_analyst;
GRANT INSERT (name, role, source, source_owner, spec, min_epsilon, max_epsilon, min_delta, max_delta, max_passes,
		allow_certified),
	UPDATE (role, source, source_owner, spec, min_epsilon, max_epsilon, min_delta, max_delta, max_passes,
		allow_certified, offered)
	ON TABLE dpml.datasets TO dpml_curator;
SELECT pg_catalog.pg_extension_config_dump('dpml.datasets', '');
ALTER TABLE dpml.datasets ENABLE ROW LEVEL SECURITY;

-- Analysts may not read budgets. The view, which reads them with its owner's rights, tells of a closed one to those who
-- may see the data set. A column that says so would have to be changed while a service holds its lock on the row.
CREATE VIEW dpml.closed_datasets WITH (security_barrier) AS
	SELECT d.* FROM dpml.datasets d
	WHERE (d.registered_by = current_user OR EXISTS (
			SELECT FROM pg_catalog.pg_roles r WHERE r.rolname = d.role AND pg_catalog.pg_has_role(r.oid, 'USAGE')))
		AND (SELECT e.terms IS NULL FROM dpml.budget_entries e WHERE e.dataset = d.name AND e.charge IS NULL
			ORDER BY e.turn DESC LIMIT 1);
COMMENT ON VIEW dpml.closed_datasets IS
'data sets of dpml.datasets whose budget is closed, so that no model of them can be requested; dpml.datasets shows them to nobody but who registered them';
DO $$
DECLARE
	same record;
BEGIN
	FOR same IN SELECT a.attname, pg_catalog.col_description(a.attrelid, a.attnum) AS text FROM pg_catalog.pg_attribute a
			WHERE a.attrelid = 'dpml.datasets'::pg_catalog.regclass AND a.attnum > 0 LOOP
		EXECUTE pg_catalog.format('COMMENT ON COLUMN dpml.closed_datasets.%I IS %L', same.attname, same.text);
	END LOOP;
END
$$;
GRANT SELECT ON TABLE dpml.closed_datasets TO dpml_curator, dpml_analyst;

CREATE POLICY see ON dpml.datasets FOR SELECT USING (registered_by = current_user OR EXISTS (
	SELECT FROM pg_catalog.pg_roles r
	WHERE r.rolname = datasets.role AND pg_catalog.pg_has_role(r.oid, 'USAGE'))
	AND NOT EXISTS (SELECT FROM dpml.closed_datasets c WHERE c.name = datasets.name));
CREATE POLICY register ON dpml.datasets FOR INSERT WITH CHECK (registered_by = current_user);
CREATE POLICY change ON dpml.datasets FOR UPDATE USING (registered_by = current_user);
CREATE TRIGGER keep_defaults BEFORE INSERT ON dpml.datasets
	FOR EACH ROW EXECUTE FUNCTION dpml.keep_defaults();

CREATE TABLE dpml.requests (
	id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	requested_at timestamptz NOT NULL DEFAULT pg_catalog.now(),
	requested_by name NOT NULL DEFAULT current_user,
	dataset text NOT NULL REFERENCES dpml.datasets (name),
	model text NOT NULL,
	options jsonb NOT NULL,
	state text NOT NULL DEFAULT 'waiting'
		CHECK (state IN ('waiting', 'running', 'done', 'refused', 'failed', 'withdrawn')),
	message text,
	charge bigint REFERENCES dpml.ledger (id)
);
CREATE INDEX requests_unfinished ON dpml.requests (dataset, id) WHERE state IN ('waiting', 'running');
COMMENT ON TABLE dpml.requests IS 'requests of models; each role sees its own, and those of data sets that it registered';
COMMENT ON COLUMN dpml.requests.id IS 'number of the request; they are served in this order';
COMMENT ON COLUMN dpml.requests.requested_at IS 'start of the transaction that filed the request';
COMMENT ON COLUMN dpml.requests.requested_by IS 'role that filed it and will own the model';
COMMENT ON COLUMN dpml.requests.dataset IS 'data set, see dpml.datasets';
COMMENT ON COLUMN dpml.requests.model IS 'name of the new model';
COMMENT ON COLUMN dpml.requests.options IS 'objects privacy (epsilon, delta, relation) and training (method and its options)';
COMMENT ON COLUMN dpml.requests.state IS
'waiting, running, done, refused or withdrawn (nothing was charged), or failed (see charge)';
COMMENT ON COLUMN dpml.requests.message IS 'why it was refused or failed';
COMMENT ON COLUMN dpml.requests.charge IS 'the charge in dpml.ledger; null: nothing was charged';
GRANT SELECT ON TABLE dpml.requests TO dpml_curator, dpml_analyst;
GRANT UPDATE (state, message, charge) ON TABLE dpml.requests TO dpml_curator;
GRANT INSERT (dataset, model, options) ON TABLE dpml.requests TO dpml_analyst;
GRANT SELECT ON SEQUENCE dpml.requests_id_seq TO dpml_analyst;
SELECT pg_catalog.pg_extension_config_dump('dpml.requests', '');
SELECT pg_catalog.pg_extension_config_dump('dpml.requests_id_seq', '');
ALTER TABLE dpml.requests ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON dpml.requests FOR SELECT USING (requested_by = current_user);
CREATE POLICY file ON dpml.requests FOR INSERT WITH CHECK (requested_by = current_user);
CREATE POLICY see ON dpml.requests FOR SELECT USING (EXISTS (
	SELECT FROM dpml.datasets d WHERE d.name = requests.dataset AND d.registered_by = current_user));
CREATE POLICY serve ON dpml.requests FOR UPDATE USING (EXISTS (
	SELECT FROM dpml.datasets d WHERE d.name = requests.dataset AND d.registered_by = current_user));

CREATE FUNCTION dpml.check_request() RETURNS trigger
	LANGUAGE plpgsql SET search_path = pg_catalog, dpml, pg_temp AS $$
DECLARE
	ended_by name;
	whom CONSTANT text := 'Ask role %s, who registered it; SELECT name FROM dpml.datasets WHERE offered lists other data sets.';
BEGIN
	IF TG_OP = 'UPDATE' THEN
		IF OLD.state NOT IN ('waiting', 'running') OR NEW.state = 'waiting'
				OR (NEW.state = 'withdrawn' AND OLD.state <> 'waiting')
				OR (NEW.state = 'done' AND OLD.state <> 'running') THEN
			RAISE EXCEPTION 'request % is % and cannot become %', OLD.id, OLD.state, NEW.state
				USING ERRCODE = 'object_not_in_prerequisite_state';
		END IF;
		RETURN NEW;
	END IF;
	IF NOT row_security_active('dpml.requests') THEN	-- the extension's owner, who also restores a dump
		IF NOT EXISTS (SELECT FROM dpml.datasets d WHERE d.name = NEW.dataset) THEN
			RAISE EXCEPTION 'no data set called % is registered', left(NEW.dataset, 200)
				USING ERRCODE = 'undefined_object', HINT = 'SELECT name FROM dpml.datasets lists those that are.';
		END IF;
		RETURN NEW;
	END IF;
	SELECT c.registered_by INTO ended_by FROM dpml.closed_datasets c WHERE c.name = NEW.dataset;
	IF FOUND THEN
		RAISE EXCEPTION 'the budget of data set % is closed, and no model of it can be requested', left(NEW.dataset, 200)
			USING ERRCODE = 'object_not_in_prerequisite_state', HINT = format(whom, ended_by);
	END IF;
	IF NOT EXISTS (SELECT FROM dpml.datasets d JOIN pg_roles r ON r.rolname = d.role
			WHERE d.name = NEW.dataset AND d.offered AND pg_has_role(r.oid, 'USAGE')) THEN
		SELECT d.registered_by INTO ended_by FROM dpml.datasets d	-- which row-level security lets the role see
			WHERE d.name = NEW.dataset AND NOT d.offered;
		IF FOUND THEN
			RAISE EXCEPTION 'data set % was withdrawn, and no model of it can be requested', left(NEW.dataset, 200)
				USING ERRCODE = 'undefined_object', HINT = format(whom, ended_by);
		END IF;
		RAISE EXCEPTION 'no data set called % is offered to role %', left(NEW.dataset, 200), current_user
			USING ERRCODE = 'undefined_object', HINT = 'SELECT name FROM dpml.datasets WHERE offered lists those that are.';
	END IF;
	IF length(NEW.model) NOT BETWEEN 1 AND 200 THEN
		RAISE EXCEPTION 'model must have 1 to 200 characters' USING ERRCODE = 'invalid_parameter_value';
	END IF;
	IF jsonb_typeof(NEW.options) <> 'object' OR octet_length(NEW.options::text) > 10000 THEN
		RAISE EXCEPTION 'options must be a JSON object of at most 10000 bytes'
			USING ERRCODE = 'invalid_parameter_value',
			HINT = 'Such as {"privacy": {"epsilon": 0.3}, "training": {"method": "dp-gd"}}.';
	END IF;
	IF (SELECT count(*) FROM dpml.requests q WHERE q.state = 'waiting' AND q.requested_by = current_user) >= 100 THEN
		RAISE EXCEPTION '100 requests of role % are waiting', current_user
			USING ERRCODE = 'configuration_limit_exceeded', HINT = 'Wait until some of them are done, or take some back by dpml.withdraw_request.';
	END IF;
	IF (SELECT count(*) FROM dpml.requests q WHERE q.state IN ('withdrawn', 'refused') AND q.requested_by = current_user
			AND q.requested_at > now() - interval '1 day') >= 1000 THEN	-- they cost nothing, and their rows stay
		RAISE EXCEPTION '1000 requests of role % were withdrawn or refused within a day', current_user
			USING ERRCODE = 'configuration_limit_exceeded', HINT = 'Ask again tomorrow.';
	END IF;
	RETURN NEW;
END
$$;
COMMENT ON FUNCTION dpml.check_request() IS 'trigger that checks new requests, and keeps what became of one as it is';
CREATE TRIGGER check_request BEFORE INSERT OR UPDATE ON dpml.requests
	FOR EACH ROW EXECUTE FUNCTION dpml.check_request();
CREATE TRIGGER keep_defaults BEFORE INSERT ON dpml.requests
	FOR EACH ROW EXECUTE FUNCTION dpml.keep_defaults();

CREATE FUNCTION dpml.request(dataset text, model text, options jsonb DEFAULT '{}') RETURNS bigint
	LANGUAGE sql VOLATILE PARALLEL UNSAFE
BEGIN ATOMIC
	INSERT INTO dpml.requests (dataset, model, options) VALUES (dataset, model, options) RETURNING id;
END;
COMMENT ON FUNCTION dpml.request(text, text, jsonb) IS
'asks for a model of a data set that the caller need not be able to read; see dpml.requests for what becomes of it
It returns the number of the request, also of one that will be refused. dpml.help(''requests'') has examples.';
GRANT EXECUTE ON FUNCTION dpml.request(text, text, jsonb) TO dpml_analyst;

-- An UPDATE right would be one to lock rows that the service is at. So who withdraws a request names it in a row, as who
-- drops a model does; of the two that want a request that waits, this trigger and the service, one finds it changed.
CREATE UNLOGGED TABLE dpml.withdrawals (
	request bigint,
	withdrawn_by name NOT NULL DEFAULT current_user
);
COMMENT ON TABLE dpml.withdrawals IS
'requests to be withdrawn: a row withdraws one, and is gone when its statement ends';
COMMENT ON COLUMN dpml.withdrawals.request IS 'number of the request';
COMMENT ON COLUMN dpml.withdrawals.withdrawn_by IS 'role that withdraws it';
GRANT INSERT (request) ON TABLE dpml.withdrawals TO dpml_analyst;
ALTER TABLE dpml.withdrawals ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON dpml.withdrawals FOR INSERT WITH CHECK (withdrawn_by = current_user);

CREATE FUNCTION dpml.carry_out_withdrawal() RETURNS trigger
	LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, dpml, pg_temp AS $$
DECLARE
	found_state text;
BEGIN
	DELETE FROM dpml.withdrawals w WHERE w.request = NEW.request AND w.withdrawn_by = NEW.withdrawn_by;
	IF FOUND THEN				-- else the trigger is on another table, where anything may be written
		UPDATE dpml.requests q SET state = 'withdrawn'
			WHERE q.id = NEW.request AND q.requested_by = NEW.withdrawn_by AND q.state = 'waiting';
		IF FOUND THEN
			RETURN NULL;
		END IF;
		SELECT q.state INTO found_state FROM dpml.requests q
			WHERE q.id = NEW.request AND q.requested_by = NEW.withdrawn_by;
	END IF;
	-- An error, not an answer: it gives up a lock on a row that the service has changed meanwhile.
	IF found_state IS NULL THEN
		RAISE EXCEPTION 'role % has made no request %', NEW.withdrawn_by, NEW.request
			USING ERRCODE = 'no_data_found', HINT = 'SELECT id, model, state FROM dpml.requests ORDER BY id lists your requests.';
	END IF;
	RAISE EXCEPTION 'request % %', NEW.request, CASE found_state
			WHEN 'running' THEN 'is running and cannot be withdrawn, as the service has taken it, and charges it unless it is refused'
			WHEN 'done' THEN 'is done and cannot be withdrawn, as its model was trained and charged'
			WHEN 'withdrawn' THEN 'is already withdrawn, and nothing was charged'
			WHEN 'refused' THEN 'was refused, and nothing was charged'
			ELSE 'has failed and cannot be withdrawn' END
		USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Only a request that is waiting can be withdrawn.';
END
$$;
COMMENT ON FUNCTION dpml.carry_out_withdrawal() IS
'trigger that withdraws the request that a row of dpml.withdrawals names';
CREATE TRIGGER carry_out_withdrawal AFTER INSERT ON dpml.withdrawals
	FOR EACH ROW EXECUTE FUNCTION dpml.carry_out_withdrawal();

CREATE FUNCTION dpml.withdraw_request(request bigint) RETURNS void
	LANGUAGE sql VOLATILE PARALLEL UNSAFE
BEGIN ATOMIC
	INSERT INTO dpml.withdrawals (request) VALUES (withdraw_request.request);
END;
COMMENT ON FUNCTION dpml.withdraw_request(bigint) IS
'takes back a request of the caller''s that is waiting, so that nothing is charged for it; an error for any other';
GRANT EXECUTE ON FUNCTION dpml.withdraw_request(bigint) TO dpml_analyst;

CREATE FUNCTION dpml.require_autocommit() RETURNS void
	LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'dpml_require_autocommit';
COMMENT ON FUNCTION dpml.require_autocommit() IS
'raises an error unless the procedure that calls it may commit: not in a transaction block, function or exception block';
GRANT EXECUTE ON FUNCTION dpml.require_autocommit() TO dpml_analyst;

-- A procedure that commits has no search_path of its own: what it looks up at run time is written with its schema.
CREATE PROCEDURE dpml.train(dataset text, model text, options jsonb DEFAULT '{}')
	LANGUAGE plpgsql AS $$
DECLARE
	request pg_catalog.int8;
	filed pg_catalog.timestamptz;
	said boolean := false;
	outcome pg_catalog.text;
	reason pg_catalog.text;
BEGIN
	PERFORM dpml.require_autocommit();
	request := dpml.request(dataset, model, options);
	filed := pg_catalog.clock_timestamp();
	LOOP
		COMMIT;
		SELECT q.state, q.message INTO STRICT outcome, reason FROM dpml.requests q
			WHERE q.id OPERATOR(pg_catalog.=) request;
		EXIT WHEN outcome OPERATOR(pg_catalog.<>) 'waiting' AND outcome OPERATOR(pg_catalog.<>) 'running';
		IF NOT said AND outcome OPERATOR(pg_catalog.=) 'waiting' AND pg_catalog.clock_timestamp()
				OPERATOR(pg_catalog.>) (filed OPERATOR(pg_catalog.+) '10 seconds'::pg_catalog.interval) THEN
			said := true;
			RAISE NOTICE 'request % is waiting for dpml serve', request
				USING HINT = pg_catalog.format(
					'Cancelling the call leaves it there, until SELECT dpml.withdraw_request(%s).', request);
		END IF;
		COMMIT;
		PERFORM pg_catalog.pg_sleep(0.2);
	END LOOP;
	IF outcome OPERATOR(pg_catalog.=) 'refused' THEN
		RAISE EXCEPTION 'request % was refused: %', request, reason;
	ELSIF outcome OPERATOR(pg_catalog.=) 'failed' THEN
		RAISE EXCEPTION 'request % failed: %', request, reason;
	ELSIF outcome OPERATOR(pg_catalog.=) 'withdrawn' THEN
		RAISE EXCEPTION 'request % was withdrawn', request;
	END IF;
	RAISE NOTICE 'model % is ready', model;
END
$$;
COMMENT ON PROCEDURE dpml.train(text, text, jsonb) IS
'requests a model as dpml.request does, and waits for it; an error if the request was refused or withdrawn, or failed';
GRANT EXECUTE ON PROCEDURE dpml.train(text, text, jsonb) TO dpml_analyst;

--
-- Types
--

CREATE TYPE dpml.epoch AS (weights float8[], average float8[], steps bigint, rows bigint, velocity float8[]);
COMMENT ON TYPE dpml.epoch IS
'result of a pass: weights (one row of features for each class), mean of the iterates or null, steps of all passes so far, rows of this pass, velocity or null';
COMMENT ON COLUMN dpml.epoch.weights IS 'weights after the pass: n_features for each class, or once';
COMMENT ON COLUMN dpml.epoch.average IS 'mean of the weights since the step average_from; null if it is not asked for';
COMMENT ON COLUMN dpml.epoch.steps IS 'steps of this pass and all before it';
COMMENT ON COLUMN dpml.epoch.rows IS 'rows of this pass; of Poisson batches the rows that could be drawn';
COMMENT ON COLUMN dpml.epoch.velocity IS 'velocity after the pass, like weights; null without momentum';

CREATE TYPE dpml.scd_pass AS (v float8[], steps bigint, rows bigint, duals bytea[]);
COMMENT ON TYPE dpml.scd_pass IS
'result of a pass of coordinate descent: v, steps of all passes so far, rows of this pass, the duals of its blocks';
COMMENT ON COLUMN dpml.scd_pass.v IS 'sum of dual times row; the weights are v / (lambda rows)';
COMMENT ON COLUMN dpml.scd_pass.steps IS 'batches of this pass and all before it';
COMMENT ON COLUMN dpml.scd_pass.rows IS 'rows of this pass; of Poisson batches the rows that could be drawn';
COMMENT ON COLUMN dpml.scd_pass.duals IS
'of each block the duals of its rows, as dpml.duals reads them; of rows that came one by one a single element';

CREATE TYPE dpml.gradient_sums AS (gradient float8[], losses float8[], rows bigint);
COMMENT ON TYPE dpml.gradient_sums IS 'result of dpml.gradient: sums over rows, without noise, regulariser or division';
COMMENT ON COLUMN dpml.gradient_sums.gradient IS
'sum of the gradients of the first model''s losses, n_features for each class, or once; null if it is not asked for';
COMMENT ON COLUMN dpml.gradient_sums.losses IS
'sum of the losses, or number of wrong rows, of each model; null if it is not asked for';
COMMENT ON COLUMN dpml.gradient_sums.rows IS 'rows of the blocks';

CREATE TYPE dpml.gram_sums AS (xx float8[], xy float8[], rows bigint);
COMMENT ON TYPE dpml.gram_sums IS 'result of dpml.gram: sums over rows, without noise';
COMMENT ON COLUMN dpml.gram_sums.xx IS
'upper triangle, row by row, of the sum of x x'', each times the second derivative of its loss if weights are given';
COMMENT ON COLUMN dpml.gram_sums.xy IS 'sum of y x; null if weights are given';
COMMENT ON COLUMN dpml.gram_sums.rows IS 'rows of the blocks';

--
-- Aggregates
--
-- They touch no ledger, and add noise only where options ask for it: they are for the data's curator. Support functions
-- stand before their aggregate: PostgreSQL calls them for those who may call it.

CREATE FUNCTION dpml.sgd_rows_transition(internal, float8[], float8, float8[], jsonb) RETURNS internal
	LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'dpml_sgd_rows_transition';
COMMENT ON FUNCTION dpml.sgd_rows_transition(internal, float8[], float8, float8[], jsonb) IS
'transition of dpml.sgd_epoch over rows';

CREATE FUNCTION dpml.sgd_blocks_transition(internal, int4, bytea, dpml.epoch, jsonb) RETURNS internal
	LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'dpml_sgd_blocks_transition';
COMMENT ON FUNCTION dpml.sgd_blocks_transition(internal, int4, bytea, dpml.epoch, jsonb) IS
'transition of dpml.sgd_epoch over blocks';

CREATE FUNCTION dpml.sgd_final(internal) RETURNS dpml.epoch
	LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'dpml_sgd_final';
COMMENT ON FUNCTION dpml.sgd_final(internal) IS 'end of dpml.sgd_epoch';

-- The order of the rows is part of the result, so a plan with workers would change it.
CREATE AGGREGATE dpml.sgd_epoch(x float8[], y float8, start float8[], options jsonb) (
	SFUNC = dpml.sgd_rows_transition, STYPE = internal,
	FINALFUNC = dpml.sgd_final, FINALFUNC_MODIFY = READ_WRITE, PARALLEL = UNSAFE
);
COMMENT ON AGGREGATE dpml.sgd_epoch(float8[], float8, float8[], jsonb) IS
'one pass of SGD over rows, in the order they come; charges nothing, and is not private without noise
SELECT (r).* FROM (SELECT dpml.sgd_epoch(x, y, (SELECT w FROM start),
  ''{"loss": "logistic", "step_size": 0.1}'' ORDER BY random()) AS r FROM t) s
x float8[] has norm at most 1 (longer rows are shortened), y is -1 or 1, a number, or a class number from 0.
Keep the subquery: (dpml.sgd_epoch(...)).* would run a pass for every column of the result.
See also: options, loss, pack.';
GRANT EXECUTE ON FUNCTION dpml.sgd_epoch(float8[], float8, float8[], jsonb) TO dpml_curator;

CREATE AGGREGATE dpml.sgd_epoch(block_no int4, block bytea, start dpml.epoch, options jsonb) (
	SFUNC = dpml.sgd_blocks_transition, STYPE = internal,
	FINALFUNC = dpml.sgd_final, FINALFUNC_MODIFY = READ_WRITE, PARALLEL = UNSAFE
);
COMMENT ON AGGREGATE dpml.sgd_epoch(int4, bytea, dpml.epoch, jsonb) IS
'one pass of SGD over blocks of dpml.pack, which must come as 0, 1, 2, ...; charges nothing, not private without noise';
GRANT EXECUTE ON FUNCTION dpml.sgd_epoch(int4, bytea, dpml.epoch, jsonb) TO dpml_curator;

CREATE FUNCTION dpml.sgd_allocated_transition(internal, int4, bytea, dpml.epoch, int4[], jsonb) RETURNS internal
	LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'dpml_sgd_allocated_transition';
COMMENT ON FUNCTION dpml.sgd_allocated_transition(internal, int4, bytea, dpml.epoch, int4[], jsonb) IS
'transition of dpml.sgd_allocated';

CREATE FUNCTION dpml.sgd_allocated_final(internal) RETURNS dpml.epoch
	LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'dpml_sgd_allocated_final';
COMMENT ON FUNCTION dpml.sgd_allocated_final(internal) IS 'end of dpml.sgd_allocated';

CREATE AGGREGATE dpml.sgd_allocated(block_no int4, block bytea, start dpml.epoch, sizes int4[], options jsonb) (
	SFUNC = dpml.sgd_allocated_transition, STYPE = internal,
	FINALFUNC = dpml.sgd_allocated_final, FINALFUNC_MODIFY = READ_WRITE, PARALLEL = UNSAFE
);
COMMENT ON AGGREGATE dpml.sgd_allocated(int4, bytea, dpml.epoch, int4[], jsonb) IS
'dpml.sgd_epoch over blocks, batch t of sizes[t] rows (units), an empty one a step, too; see also: allocation
It charges nothing, and is not private without noise.';
GRANT EXECUTE ON FUNCTION dpml.sgd_allocated(int4, bytea, dpml.epoch, int4[], jsonb) TO dpml_curator;

CREATE FUNCTION dpml.sgd_poisson_transition(internal, int4, bytea, dpml.epoch, jsonb) RETURNS internal
	LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'dpml_sgd_poisson_transition';
COMMENT ON FUNCTION dpml.sgd_poisson_transition(internal, int4, bytea, dpml.epoch, jsonb) IS
'transition of dpml.sgd_poisson';

CREATE FUNCTION dpml.sgd_poisson_final(internal) RETURNS dpml.epoch
	LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'dpml_sgd_poisson_final';
COMMENT ON FUNCTION dpml.sgd_poisson_final(internal) IS 'end of dpml.sgd_poisson, which takes its steps';

CREATE AGGREGATE dpml.sgd_poisson(block_no int4, block bytea, start dpml.epoch, options jsonb) (
	SFUNC = dpml.sgd_poisson_transition, STYPE = internal,
	FINALFUNC = dpml.sgd_poisson_final, FINALFUNC_MODIFY = READ_WRITE, PARALLEL = UNSAFE
);
COMMENT ON AGGREGATE dpml.sgd_poisson(int4, bytea, dpml.epoch, jsonb) IS
'steps of SGD over Poisson batches of the rows of blocks, held in memory (dpml.work_mem); see also: poisson
It charges nothing, and is not private without noise.';
GRANT EXECUTE ON FUNCTION dpml.sgd_poisson(int4, bytea, dpml.epoch, jsonb) TO dpml_curator;

CREATE FUNCTION dpml.sgd_poisson_steps_transition(internal, int4, bytea, int4, dpml.epoch, jsonb) RETURNS internal
	LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'dpml_sgd_poisson_steps_transition';
COMMENT ON FUNCTION dpml.sgd_poisson_steps_transition(internal, int4, bytea, int4, dpml.epoch, jsonb) IS
'transition of dpml.sgd_poisson_steps';

CREATE FUNCTION dpml.sgd_poisson_steps_final(internal) RETURNS dpml.epoch
	LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'dpml_sgd_poisson_steps_final';
COMMENT ON FUNCTION dpml.sgd_poisson_steps_final(internal) IS 'end of dpml.sgd_poisson_steps';

CREATE AGGREGATE dpml.sgd_poisson_steps(step int4, block bytea, rows int4, start dpml.epoch, options jsonb) (
	SFUNC = dpml.sgd_poisson_steps_transition, STYPE = internal,
	FINALFUNC = dpml.sgd_poisson_steps_final, FINALFUNC_MODIFY = READ_WRITE, PARALLEL = UNSAFE
);
COMMENT ON AGGREGATE dpml.sgd_poisson_steps(int4, bytea, int4, dpml.epoch, jsonb) IS
'steps of SGD over the batches that dpml.poisson_steps drew (write ORDER BY step); see also: poisson
It charges nothing, and is not private without noise.';
GRANT EXECUTE ON FUNCTION dpml.sgd_poisson_steps(int4, bytea, int4, dpml.epoch, jsonb) TO dpml_curator;

CREATE FUNCTION dpml.loss_rows_transition(internal, float8[], float8, float8[], jsonb) RETURNS internal
	LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL SAFE AS 'MODULE_PATHNAME', 'dpml_loss_rows_transition';
COMMENT ON FUNCTION dpml.loss_rows_transition(internal, float8[], float8, float8[], jsonb) IS
'transition of dpml.loss over rows';

CREATE FUNCTION dpml.loss_blocks_transition(internal, bytea, float8[], jsonb) RETURNS internal
	LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL SAFE AS 'MODULE_PATHNAME', 'dpml_loss_blocks_transition';
COMMENT ON FUNCTION dpml.loss_blocks_transition(internal, bytea, float8[], jsonb) IS
'transition of dpml.loss over blocks';

CREATE FUNCTION dpml.loss_final(internal) RETURNS float8
	LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL SAFE AS 'MODULE_PATHNAME', 'dpml_loss_final';
COMMENT ON FUNCTION dpml.loss_final(internal) IS 'end of dpml.loss';

CREATE AGGREGATE dpml.loss(x float8[], y float8, weights float8[], options jsonb) (
	SFUNC = dpml.loss_rows_transition, STYPE = internal,
	FINALFUNC = dpml.loss_final, FINALFUNC_MODIFY = READ_WRITE, PARALLEL = SAFE
);
COMMENT ON AGGREGATE dpml.loss(float8[], float8, float8[], jsonb) IS
'mean loss of weights over rows, plus lambda/2 ||w||^2; not private: the result carries no noise
SELECT dpml.loss(x, y, weights, options) FROM t
logistic   ln(1 + exp(-y u)), y = -1 or 1
huber_svm  the hinge loss, its corner rounded where |1 - y u| <= huber_h
hinge      max(0, 1 - y u), y = -1 or 1; no loss of SGD, as its derivative jumps
squared    (u - y)^2 / 2, linear beyond a difference of clip
softmax    -ln of the probability of class y = 0, 1, ...; classes is required
logistic, huber_svm and hinge with classes: one model a class against all others. See also: options.';
GRANT EXECUTE ON FUNCTION dpml.loss(float8[], float8, float8[], jsonb) TO dpml_curator;

CREATE AGGREGATE dpml.loss(block bytea, weights float8[], options jsonb) (
	SFUNC = dpml.loss_blocks_transition, STYPE = internal,
	FINALFUNC = dpml.loss_final, FINALFUNC_MODIFY = READ_WRITE, PARALLEL = SAFE
);
COMMENT ON AGGREGATE dpml.loss(bytea, float8[], jsonb) IS
'mean loss of weights over packed blocks, plus lambda/2 ||w||^2; not private: the result carries no noise';
GRANT EXECUTE ON FUNCTION dpml.loss(bytea, float8[], jsonb) TO dpml_curator;

CREATE FUNCTION dpml.scd_rows_transition(internal, float8[], float8, float8, float8[], jsonb) RETURNS internal
	LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'dpml_scd_rows_transition';
COMMENT ON FUNCTION dpml.scd_rows_transition(internal, float8[], float8, float8, float8[], jsonb) IS
'transition of dpml.scd_epoch over rows';

CREATE FUNCTION dpml.scd_rows_final(internal) RETURNS dpml.scd_pass
	LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'dpml_scd_rows_final';
COMMENT ON FUNCTION dpml.scd_rows_final(internal) IS 'end of dpml.scd_epoch over rows';

CREATE FUNCTION dpml.scd_blocks_transition(internal, int4, bytea, bytea, dpml.scd_pass, jsonb) RETURNS internal
	LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'dpml_scd_blocks_transition';
COMMENT ON FUNCTION dpml.scd_blocks_transition(internal, int4, bytea, bytea, dpml.scd_pass, jsonb) IS
'transition of dpml.scd_epoch over blocks';

CREATE FUNCTION dpml.scd_blocks_final(internal) RETURNS dpml.scd_pass
	LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'dpml_scd_blocks_final';
COMMENT ON FUNCTION dpml.scd_blocks_final(internal) IS
'end of dpml.scd_epoch over blocks, which takes the steps over Poisson batches';

CREATE AGGREGATE dpml.scd_epoch(x float8[], y float8, dual float8, start float8[], options jsonb) (
	SFUNC = dpml.scd_rows_transition, STYPE = internal,
	FINALFUNC = dpml.scd_rows_final, FINALFUNC_MODIFY = READ_WRITE, PARALLEL = UNSAFE
);
COMMENT ON AGGREGATE dpml.scd_epoch(float8[], float8, float8, float8[], jsonb) IS
'one pass of coordinate descent over rows, in the order they come; charges nothing, and is not private without noise
SELECT (r).v, dpml.duals((r).duals[1]) FROM (SELECT dpml.scd_epoch(x, y, dual, (SELECT v FROM start),
  ''{"loss": "hinge", "lambda": 0.01, "rows": 1000}'' ORDER BY id) AS r FROM t) s
x float8[] has norm at most 1 (longer rows are shortened), y is -1 or 1, or a number; a dual that is null is 0, and a
start that is null is v = 0. The weights are v / (lambda rows). See also: scd, loss.';
GRANT EXECUTE ON FUNCTION dpml.scd_epoch(float8[], float8, float8, float8[], jsonb) TO dpml_curator;

CREATE AGGREGATE dpml.scd_epoch(block_no int4, block bytea, duals bytea, start dpml.scd_pass, options jsonb) (
	SFUNC = dpml.scd_blocks_transition, STYPE = internal,
	FINALFUNC = dpml.scd_blocks_final, FINALFUNC_MODIFY = READ_WRITE, PARALLEL = UNSAFE
);
COMMENT ON AGGREGATE dpml.scd_epoch(int4, bytea, bytea, dpml.scd_pass, jsonb) IS
'one pass of coordinate descent over blocks of dpml.pack, which must come as 0, 1, 2, ...; see also: scd
It charges nothing, and is not private without noise. duals are those of the block''s rows, null for those in start, or
zeros. With any_order blocks may come in any order.';
GRANT EXECUTE ON FUNCTION dpml.scd_epoch(int4, bytea, bytea, dpml.scd_pass, jsonb) TO dpml_curator;

CREATE FUNCTION dpml.scd_gap_transition(bytea, bytea, bytea, float8[], jsonb) RETURNS bytea
	LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL SAFE COST 100 AS 'MODULE_PATHNAME', 'dpml_scd_gap_transition';
COMMENT ON FUNCTION dpml.scd_gap_transition(bytea, bytea, bytea, float8[], jsonb) IS 'transition of dpml.scd_gap';

CREATE FUNCTION dpml.scd_gap_combine(bytea, bytea) RETURNS bytea
	LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL SAFE AS 'MODULE_PATHNAME', 'dpml_scd_gap_combine';
COMMENT ON FUNCTION dpml.scd_gap_combine(bytea, bytea) IS 'joins two states of dpml.scd_gap';

CREATE FUNCTION dpml.scd_gap_final(bytea) RETURNS float8[]
	LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL SAFE AS 'MODULE_PATHNAME', 'dpml_scd_gap_final';
COMMENT ON FUNCTION dpml.scd_gap_final(bytea) IS 'end of dpml.scd_gap';

CREATE AGGREGATE dpml.scd_gap(block bytea, duals bytea, v float8[], options jsonb) (
	SFUNC = dpml.scd_gap_transition, STYPE = bytea, COMBINEFUNC = dpml.scd_gap_combine,
	FINALFUNC = dpml.scd_gap_final, PARALLEL = SAFE
);
COMMENT ON AGGREGATE dpml.scd_gap(bytea, bytea, float8[], jsonb) IS
'{sum of losses at v / (lambda rows), sum of dual values, rows} over packed blocks; not private: no noise
With n = rows and w = v / (lambda n), the primal objective is the first / n + lambda/2 ||w||^2, the dual objective the
second / n - lambda/2 ||w||^2, and their difference the duality gap. The sum of dual values is -Infinity where duals
are not feasible.';
GRANT EXECUTE ON FUNCTION dpml.scd_gap(bytea, bytea, float8[], jsonb) TO dpml_curator;

CREATE FUNCTION dpml.duals(duals bytea) RETURNS float8[]
	LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'dpml_duals_sql';
COMMENT ON FUNCTION dpml.duals(bytea) IS 'the duals that dpml.scd_epoch returned for a block, in the order of its rows';
GRANT EXECUTE ON FUNCTION dpml.duals(bytea) TO dpml_curator;

CREATE FUNCTION dpml.gradient_transition(bytea, bytea, float8[], jsonb) RETURNS bytea
	LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL SAFE COST 100 AS 'MODULE_PATHNAME', 'dpml_gradient_transition';
COMMENT ON FUNCTION dpml.gradient_transition(bytea, bytea, float8[], jsonb) IS 'transition of dpml.gradient';

CREATE FUNCTION dpml.gradient_combine(bytea, bytea) RETURNS bytea
	LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL SAFE AS 'MODULE_PATHNAME', 'dpml_gradient_combine';
COMMENT ON FUNCTION dpml.gradient_combine(bytea, bytea) IS 'joins two states of dpml.gradient';

CREATE FUNCTION dpml.gradient_final(bytea) RETURNS dpml.gradient_sums
	LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL SAFE AS 'MODULE_PATHNAME', 'dpml_gradient_final';
COMMENT ON FUNCTION dpml.gradient_final(bytea) IS 'end of dpml.gradient';

-- Sums, in any order and in plans with workers: the state is a bytea that any of them can pass on.
CREATE AGGREGATE dpml.gradient(block bytea, weights float8[], options jsonb) (
	SFUNC = dpml.gradient_transition, STYPE = bytea, COMBINEFUNC = dpml.gradient_combine,
	FINALFUNC = dpml.gradient_final, PARALLEL = SAFE
);
COMMENT ON AGGREGATE dpml.gradient(bytea, float8[], jsonb) IS
'sums of gradients and losses of weights over packed blocks; not private: the result carries no noise
SELECT (r).* FROM (SELECT dpml.gradient(block, (SELECT w FROM start), ''{"loss": "logistic"}'') AS r FROM blocks) s
gradient, losses and rows are sums: not divided by n, no regulariser. Keep the subquery. Options, a JSON object:
loss (required), classes, huber_h, clip, as in the topic options
models (1, at most 64): weights hold so many models; the gradient is that of the first, losses has one sum each
gradient (true), losses (true): what to compute; errors (false): count wrong rows in place of losses
gradient_clip: bound on the norm of the derivatives in a row''s scores; loss_clip: bound on a row''s loss
max_rows_per_unit: as in options; unit_clip: bound on the gradient of a unit''s rows in one block
See also: pack, loss, gram, whiten.';
GRANT EXECUTE ON FUNCTION dpml.gradient(bytea, float8[], jsonb) TO dpml_curator;

CREATE FUNCTION dpml.gram_transition(bytea, bytea) RETURNS bytea
	LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL SAFE COST 100 AS 'MODULE_PATHNAME', 'dpml_gram_transition';
COMMENT ON FUNCTION dpml.gram_transition(bytea, bytea) IS 'transition of dpml.gram over rows';

CREATE FUNCTION dpml.hessian_transition(bytea, bytea, float8[], jsonb) RETURNS bytea
	LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL SAFE COST 100 AS 'MODULE_PATHNAME', 'dpml_hessian_transition';
COMMENT ON FUNCTION dpml.hessian_transition(bytea, bytea, float8[], jsonb) IS 'transition of dpml.gram at weights';

CREATE FUNCTION dpml.gram_combine(bytea, bytea) RETURNS bytea
	LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL SAFE AS 'MODULE_PATHNAME', 'dpml_gram_combine';
COMMENT ON FUNCTION dpml.gram_combine(bytea, bytea) IS 'joins two states of dpml.gram';

CREATE FUNCTION dpml.gram_final(bytea) RETURNS dpml.gram_sums
	LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL SAFE AS 'MODULE_PATHNAME', 'dpml_gram_final';
COMMENT ON FUNCTION dpml.gram_final(bytea) IS 'end of dpml.gram';

CREATE AGGREGATE dpml.gram(block bytea) (
	SFUNC = dpml.gram_transition, STYPE = bytea, COMBINEFUNC = dpml.gram_combine,
	FINALFUNC = dpml.gram_final, PARALLEL = SAFE
);
COMMENT ON AGGREGATE dpml.gram(bytea) IS
'sums of x x'' and y x over packed blocks; not private: the result carries no noise
xx is the upper triangle, row by row; at most 2500 features.';
GRANT EXECUTE ON FUNCTION dpml.gram(bytea) TO dpml_curator;

CREATE AGGREGATE dpml.gram(block bytea, weights float8[], options jsonb) (
	SFUNC = dpml.hessian_transition, STYPE = bytea, COMBINEFUNC = dpml.gram_combine,
	FINALFUNC = dpml.gram_final, PARALLEL = SAFE
);
COMMENT ON AGGREGATE dpml.gram(bytea, float8[], jsonb) IS
'Hessian of the summed losses of weights over packed blocks; not private: the result carries no noise
The options are a JSON object of loss (logistic, huber_svm or squared), huber_h and clip.';
GRANT EXECUTE ON FUNCTION dpml.gram(bytea, float8[], jsonb) TO dpml_curator;

CREATE FUNCTION dpml.shard_id(tableoid oid) RETURNS bigint
	LANGUAGE C STABLE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'dpml_shard_id';
COMMENT ON FUNCTION dpml.shard_id(oid) IS
'number of the shard of a distributed table that tableoid is, by its name; see on_shards';
GRANT EXECUTE ON FUNCTION dpml.shard_id(oid) TO dpml_curator;

CREATE FUNCTION dpml.on_shards_transition(bigint, bigint, text, bigint[], text[], text[], float8[]) RETURNS bigint
	LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'dpml_on_shards_transition';
COMMENT ON FUNCTION dpml.on_shards_transition(bigint, bigint, text, bigint[], text[], text[], float8[]) IS 'transition of dpml.on_shards';
-- Citus asks for this right of those who call the aggregate, too.
GRANT EXECUTE ON FUNCTION dpml.on_shards_transition(bigint, bigint, text, bigint[], text[], text[], float8[]) TO dpml_curator;

CREATE AGGREGATE dpml.on_shards(shard bigint, command text, shards bigint[], tokens text[], names text[], value float8[]) (
	SFUNC = dpml.on_shards_transition, STYPE = bigint, COMBINEFUNC = pg_catalog.int8pl, PARALLEL = UNSAFE
);
COMMENT ON AGGREGATE dpml.on_shards(bigint, text, bigint[], text[], text[], float8[]) IS
'runs statements once in each shard of a distributed table of Citus that has rows, with the caller''s rights
SELECT dpml.on_shards(dpml.shard_id(t.tableoid), ''DELETE FROM #copy'', ''{102008}'', ''{#copy}'',
''{public.copy_102040}'', NULL) FROM t
For the shard that is the i-th of shards, the tokens stand for the names i, as many as there are tokens; $1 stands
for value. The result is the number of rows of the last statements. They run where the rows are, in the transaction
of the query: call it in a transaction block, or each worker commits for itself. Settings that they make end with them.';
GRANT EXECUTE ON FUNCTION dpml.on_shards(bigint, text, bigint[], text[], text[], float8[]) TO dpml_curator;

CREATE FUNCTION dpml.pack_transition(internal, bytea) RETURNS internal
	LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'dpml_pack_transition';
COMMENT ON FUNCTION dpml.pack_transition(internal, bytea) IS 'transition of dpml.pack';

CREATE FUNCTION dpml.pack_final(internal) RETURNS bytea
	LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'dpml_pack_final';
COMMENT ON FUNCTION dpml.pack_final(internal) IS 'end of dpml.pack';

CREATE AGGREGATE dpml.pack(block bytea) (
	SFUNC = dpml.pack_transition, STYPE = internal,
	FINALFUNC = dpml.pack_final, FINALFUNC_MODIFY = READ_WRITE, PARALLEL = UNSAFE
);
COMMENT ON AGGREGATE dpml.pack(bytea) IS 'one block of the rows of many, in the order they come';
GRANT EXECUTE ON FUNCTION dpml.pack(bytea) TO dpml_curator;

--
-- Functions
--

CREATE FUNCTION dpml.encode(spec jsonb, r record) RETURNS bytea
	LANGUAGE C STABLE CALLED ON NULL INPUT PARALLEL SAFE COST 200 AS 'MODULE_PATHNAME', 'dpml_encode';
COMMENT ON FUNCTION dpml.encode(jsonb, record) IS
'a record as a block of one row, by a specification of its columns; no value of a row is an error
It reads values as dpml.number, dpml.numbers and dpml.sparse_numbers do. See also: spec, pack.';
GRANT EXECUTE ON FUNCTION dpml.encode(jsonb, record) TO dpml_curator;

CREATE FUNCTION dpml.encode(spec jsonb, r record, starts_unit boolean) RETURNS bytea
	LANGUAGE C STABLE CALLED ON NULL INPUT PARALLEL SAFE COST 200 AS 'MODULE_PATHNAME', 'dpml_encode';
COMMENT ON FUNCTION dpml.encode(jsonb, record, boolean) IS
'a record as a block of one row that says whether the row is the first of its unit of privacy';
GRANT EXECUTE ON FUNCTION dpml.encode(jsonb, record, boolean) TO dpml_curator;

CREATE FUNCTION dpml.number(value "any") RETURNS float8
	LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'dpml_number';
COMMENT ON FUNCTION dpml.number("any") IS
'the number that dpml.encode reads a value of a numeric column as, before it is moved into the bounds';
GRANT EXECUTE ON FUNCTION dpml.number("any") TO dpml_curator;

CREATE FUNCTION dpml.numbers(value "any", length int4) RETURNS float8[]
	LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE COST 10 AS 'MODULE_PATHNAME', 'dpml_numbers';
COMMENT ON FUNCTION dpml.numbers("any", int4) IS
'the numbers that dpml.encode reads from an array, null for an element that it leaves out;
null for an array of another length';
GRANT EXECUTE ON FUNCTION dpml.numbers("any", int4) TO dpml_curator;

CREATE FUNCTION dpml.sparse_numbers(numbers "any", indices "any", length int4, first_index int4) RETURNS float8[]
	LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE COST 10 AS 'MODULE_PATHNAME', 'dpml_sparse_numbers';
COMMENT ON FUNCTION dpml.sparse_numbers("any", "any", int4, int4) IS
'the numbers that dpml.encode reads from a sparse pair of arrays, by rising index, null for one that it leaves out;
null where the arrays have different lengths, or an index is missing, repeated or outside';
GRANT EXECUTE ON FUNCTION dpml.sparse_numbers("any", "any", int4, int4) TO dpml_curator;

CREATE FUNCTION dpml.sparse_numbers(vector "any", length int4) RETURNS float8[]
	LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE COST 10 AS 'MODULE_PATHNAME', 'dpml_sparse_numbers';
COMMENT ON FUNCTION dpml.sparse_numbers("any", int4) IS
'the same numbers of a sparsevec of pgvector; null for one of another number of dimensions';
GRANT EXECUTE ON FUNCTION dpml.sparse_numbers("any", int4) TO dpml_curator;

CREATE FUNCTION dpml.pack(block bytea, capacity int4, max_bytes int4 DEFAULT 2147483647) RETURNS bytea
	LANGUAGE C WINDOW IMMUTABLE CALLED ON NULL INPUT PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'dpml_pack_window';
COMMENT ON FUNCTION dpml.pack(bytea, int4, int4) IS
'window function: at its first row a block of the next rows, at most capacity and within max_bytes, and where it can
without cutting a unit; null at the others
SELECT dpml.pack(dpml.encode(spec, t), capacity) OVER (ORDER BY ...) FROM t
Passes over packed blocks are several times faster than passes over rows. Number them 0, 1, 2, ... for dpml.sgd_epoch.
dpml.block_capacity(kind, n_features, n_values) is the capacity of one block; dpml.rows(block) and
dpml.unpack(block) lead back to blocks of one row, or to x and y. See also: encode, spec.';
GRANT EXECUTE ON FUNCTION dpml.pack(bytea, int4, int4) TO dpml_curator;

CREATE FUNCTION dpml.rows(block bytea) RETURNS SETOF bytea
	LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE ROWS 50 AS 'MODULE_PATHNAME', 'dpml_rows';
COMMENT ON FUNCTION dpml.rows(bytea) IS 'the rows of a block, each as a block of one row';
GRANT EXECUTE ON FUNCTION dpml.rows(bytea) TO dpml_curator;

CREATE FUNCTION dpml.batch_sizes(units int8, batches int4) RETURNS int4[]
	LANGUAGE C VOLATILE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'dpml_batch_sizes';
COMMENT ON FUNCTION dpml.batch_sizes(int8, int4) IS
'how many of so many units are in each of so many batches, where each is in one at random; see also: allocation';
GRANT EXECUTE ON FUNCTION dpml.batch_sizes(int8, int4) TO dpml_curator;

CREATE FUNCTION dpml.random_key() RETURNS uuid
	LANGUAGE C VOLATILE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'dpml_random_uuid';
COMMENT ON FUNCTION dpml.random_key() IS
'128 bits of a cryptographic generator, to put rows in a secret random order; see also: allocation';
GRANT EXECUTE ON FUNCTION dpml.random_key() TO dpml_curator;

-- Every call draws from a key of its own, so workers need not agree on anything.
CREATE FUNCTION dpml.poisson_steps(packed bytea, steps int4, sampling float8) RETURNS TABLE (step int4, block bytea, rows int4)
	LANGUAGE C VOLATILE STRICT PARALLEL SAFE ROWS 50 AS 'MODULE_PATHNAME', 'dpml_poisson_draws';
COMMENT ON FUNCTION dpml.poisson_steps(bytea, int4, float8) IS
'for each row (unit) of a block the steps 1 .. steps that it is in, each with probability sampling, as blocks of one row
(unit); last an empty block, with how many rows there are';
GRANT EXECUTE ON FUNCTION dpml.poisson_steps(bytea, int4, float8) TO dpml_curator;

CREATE FUNCTION dpml.unpack(block bytea) RETURNS TABLE (x float4[], y float4)
	LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE ROWS 50 AS 'MODULE_PATHNAME', 'dpml_unpack';
COMMENT ON FUNCTION dpml.unpack(bytea) IS 'the rows of a block as features and label';
GRANT EXECUTE ON FUNCTION dpml.unpack(bytea) TO dpml_curator;

CREATE FUNCTION dpml.whiten(block bytea, p float8[], norm float8) RETURNS bytea
	LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE COST 2000 AS 'MODULE_PATHNAME', 'dpml_whiten';
COMMENT ON FUNCTION dpml.whiten(bytea, float8[], float8) IS
'the block with every row x as x norm / ||p x||; p is a symmetric matrix, row by row';
GRANT EXECUTE ON FUNCTION dpml.whiten(bytea, float8[], float8) TO dpml_curator;

CREATE FUNCTION dpml.whiten(block bytea, v float8[], norm float8, scale float8) RETURNS bytea
	LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE COST 2000 AS 'MODULE_PATHNAME', 'dpml_whiten_by_directions_of';
COMMENT ON FUNCTION dpml.whiten(bytea, float8[], float8, float8) IS
'the block with every row x as x norm / ||scale x - v'' v x||; v is a matrix of few rows, row by row';
GRANT EXECUTE ON FUNCTION dpml.whiten(bytea, float8[], float8, float8) TO dpml_curator;

CREATE FUNCTION dpml.block_capacity(kind text, n_features int4, n_values int4) RETURNS int4
	LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'dpml_block_capacity_sql';
COMMENT ON FUNCTION dpml.block_capacity(text, int4, int4) IS
'rows for one block: kind dense or csr, features of a row, at most n_values of them stored (csr)';

CREATE FUNCTION dpml.module_version() RETURNS text
	LANGUAGE C STABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'dpml_module_version';
COMMENT ON FUNCTION dpml.module_version() IS
'version of the C module that this session has loaded; dpml doctor compares it with that of the SQL';

-- Predictions, with the caller's own rights: for everyone who may read the model in dpml.models
CREATE FUNCTION dpml.predict(model text, r record) RETURNS text
	LANGUAGE C STABLE STRICT PARALLEL SAFE COST 10 AS 'MODULE_PATHNAME', 'dpml_predict';
COMMENT ON FUNCTION dpml.predict(text, record) IS
'class that a model predicts for a record of raw columns; for regression the value as text
SELECT dpml.predict(''MODEL'', t) FROM t
t is the row of raw columns, found by name; the label may be missing. ROW(a, b, ...) gives the columns in the
order of the specification. Unknown, missing and outlying values are encoded as in training.
See also: predict_value, predict_proba, label.';

CREATE FUNCTION dpml.predict_value(model text, r record) RETURNS float8
	LANGUAGE C STABLE STRICT PARALLEL SAFE COST 10 AS 'MODULE_PATHNAME', 'dpml_predict_value';
COMMENT ON FUNCTION dpml.predict_value(text, record) IS
'decision value (binary; above 0: the second class), largest score (multiclass) or predicted value (regression)';

CREATE FUNCTION dpml.predict_proba(model text, r record) RETURNS float8[]
	LANGUAGE C STABLE STRICT PARALLEL SAFE COST 10 AS 'MODULE_PATHNAME', 'dpml_predict_proba';
COMMENT ON FUNCTION dpml.predict_proba(text, record) IS
'probabilities in the order of dpml.models.classes, for the losses logistic and softmax';

CREATE FUNCTION dpml.label(model text, r record) RETURNS text
	LANGUAGE C STABLE STRICT PARALLEL SAFE COST 10 AS 'MODULE_PATHNAME', 'dpml_label';
COMMENT ON FUNCTION dpml.label(text, record) IS
'declared class that a record''s own label belongs to, null if none; for regression the label inside its bounds, as text';

--
-- Help
--
-- A topic is a guide, of which there are some here, or a function of dpml, whose comments are its help.

CREATE FUNCTION dpml.help(topic text DEFAULT '') RETURNS text
	LANGUAGE sql STABLE CALLED ON NULL INPUT PARALLEL SAFE
BEGIN ATOMIC
	WITH guide (topic, text) AS (VALUES
('train',
'Training is a command outside the server, which runs one SQL statement a pass:
  dpml plan  SPEC.toml --epsilon 1                 guarantee, noise and passes; reads no row
  dpml train SPEC.toml --epsilon 1 --name MODEL    charges dpml.ledger, trains, stores in dpml.models
  dpml inspect TABLE > SPEC.toml                   a specification to fill in
The role needs dpml_curator and SELECT on the table, to plan SELECT alone. See also: spec, models, privacy, sgd_epoch.'),
('evaluate',
'dpml evaluate MODEL --table T --public       rows are public: accuracy, confusion, AUC, calibration
dpml evaluate MODEL --table T --owner        rows are private: the same for their owner alone, NOT PRIVATE
dpml evaluate MODEL --table T --epsilon 0.1  rows are private: one noisy error, charged in dpml.ledger
In SQL, on public rows:
SELECT dpml.label(''MODEL'', t), dpml.predict(''MODEL'', t), count(*) FROM t GROUP BY 1, 2'),
('poisson',
'SGD over Poisson batches: at every step each row (unit) is in with probability sampling, from a cryptographic
generator. An empty batch is a step. The sum is divided by batch_size, whatever the batch has. Options as in the topic
options, and steps, the steps of this pass; sampling, usually batch_size/n. Two forms of one distribution:
SELECT (r).* FROM (SELECT dpml.sgd_poisson(block_no, block, (SELECT e FROM start),
  ''{"loss": "logistic", "step_size": 0.1, "steps": 100, "sampling": 0.01, "batch_size": 10}'' ORDER BY block_no) AS r
  FROM blocks) s                    holds all rows in memory: dpml.work_mem (1 GB) is the limit
SELECT (r).* FROM (SELECT dpml.sgd_poisson_steps(p.step, p.block, p.rows, (SELECT e FROM start), OPTIONS
  ORDER BY p.step) AS r FROM blocks AS b, dpml.poisson_steps(b.block, 100, 0.01) AS p) s    sorts the drawn rows'),
('allocation',
'SGD over batches by random allocation: every row (unit) is in exactly one batch of a pass, drawn at random, so that a
batch may be empty, which is a step. The sum is divided by batch_size, whatever the batch has. Rows in a secret random
order are cut by sizes that were drawn as if every unit had drawn its batch:
SELECT (r).* FROM (SELECT dpml.sgd_allocated(block_no, block, (SELECT e FROM start), (SELECT sizes FROM drawn),
  ''{"loss": "logistic", "step_size": 0.1, "batch_size": 10}'' ORDER BY block_no) AS r FROM blocks) s
dpml.batch_sizes(n, batches) draws the sizes, dpml.random_key() keys to sort by. See also: options, pack.'),
('scd',
'Stochastic dual coordinate ascent: every row has a dual, v is the sum of dual times row, weights are v / (lambda rows).
SELECT (r).* FROM (SELECT dpml.scd_epoch(block_no, block, NULL, (SELECT p FROM start p),
  ''{"loss": "logistic", "lambda": 0.001, "rows": 1000, "exact": true}'' ORDER BY block_no) AS r FROM blocks) s
start is the result of the pass before, with the duals of all blocks. dpml.scd_gap says how far the optimum is.
loss (squared, logistic, huber_svm, hinge), lambda and rows are required; rows is n, what the loss is a mean of
huber_h (0.5); batch_size (1): rows that change at once; sequential (false): they see each other''s changes
update_clip: bound on the change of a dual; exact (false): solve the logistic loss to convergence, not by one step
features; clip_rows (true); max_rows_per_unit: as in the topic options; any_order (false): blocks may come in any
order, each once. Without noise, an order that is random in every pass converges much faster.
noise (none): gaussian, fresh in every batch, of noise_scale on its change of v; dual_noise (false): on duals, too
sampling, steps: Poisson batches of rows that are held in memory (dpml.work_mem), as in the topic poisson'),
('options',
'Keys of the options of dpml.sgd_epoch, dpml.loss and dpml.sgd_poisson, a JSON object:
loss (required), classes, huber_h (0.5), clip: the loss; clip bounds its derivative
lambda (0), radius: L2 regulariser, and the ball that weights are kept in
batch_size (1), schedule (constant), step_size, exponent (0.5), rows: the steps; rows is n, for n^c and 1/sqrt(n)
schedules: constant, decreasing, sqrt_decreasing, strongly_convex (needs lambda), inverse_sqrt
average_from: first step whose weights enter the average; features; clip_rows (true); capped (true): steps
at most 1/(smoothness + lambda)
max_rows_per_unit: the most rows of a unit of privacy, where blocks say which rows make one and batches count them
noise (none): gaussian or k-norm, fresh in every step, of noise_scale on the sum of a batch''s gradients
gradient_clip: bound on the norm of the derivatives in a row''s scores; momentum (0): share of the last step kept
steps, sampling: see the topic poisson'),
('spec',
'{"columns": [{"name": "age", "kind": "numeric", "lower": 17, "upper": 90, "scale": "center", "log1p": false},
  {"name": "ok", "kind": "boolean"}, {"name": "work", "kind": "category", "levels": ["a", "b"]},
  {"name": "pixels", "kind": "array", "length": 784, "lower": 0, "upper": 255, "scale": "zero_based"}],
 "intercept": true, "norm": "normalize", "format": "dense",
 "label": {"name": "income", "kind": "binary", "positive": ">50K"}}
scale: center, zero_based, or standard with mean and sd; norm: normalize, clip or clip_values; format: dense or csr;
label kinds: binary, classes (with classes), number (with lower and upper). dpml writes it from SPEC.toml.
An array may be an image: "image": {"rows": 28, "columns": 28, "blur": 3, "stride": 2} blurs and thins it. A number
with bounds may have "knots": [17, 30, 65], where its curve bends. Beside "columns", "crosses": [["age", "work"]]
multiplies levels and knots; "projection": {"features": 50, "seed": 0} multiplies all by a public random matrix.
{"name": "x", "kind": "sparse", "indices": "i", "first_index": 1, "length": 1000000, "scale": "standard", "mean": 0,
"sd": 1} reads two arrays, of numbers and of their indices; a sparsevec of pgvector is read without such indices.'),
('models',
'dpml.models holds the released models: name, task, classes, weights, whitening, encoder, privacy, training, charge.
A model with a whitening P divides its scores by the norm of P x; its classes do not depend on that.
SELECT name, task, privacy ->> ''epsilon'' AS epsilon, created_at FROM dpml.models;
dpml models | show MODEL | report MODEL -o FILE.html | plot MODEL -o FILE.png | export MODEL --format json|sql | drop
A model belongs to the role that trained or requested it. Members of dpml_analyst see and apply the models of their
roles, and those granted to one: dpml grant MODEL bob | revoke MODEL bob; in SQL, where public is every role,
UPDATE dpml.models SET granted_to = ''{bob,carol}'' WHERE name = ''MODEL''
Members of dpml_curator see, grant and drop every model. To all others a model that they may not see does not exist.
SELECT dpml.drop_model(''MODEL'') is dpml drop. dpml.module_version() is the version of the C module, for dpml doctor.'),
('ledger',
'dpml.ledger lists what every private run and evaluation spent; entries are written before a row is read, and stay.
SELECT table_name, count(*), sum(epsilon) AS epsilon, sum(delta) AS delta FROM dpml.ledger GROUP BY table_name;
Runs on the same rows add up; dpml budget open DATASET --epsilon E --table TABLE sets a limit, in dpml.budgets.
dpml budget show | history | close DATASET; SELECT * FROM dpml.budgets_on(ARRAY[''TABLE''::regclass]::oid[]).
Direct calls of the aggregates are not in it, and are not private.'),
('requests',
'Models of tables that you may not read. Their owner registers a data set, which has a budget, and runs the service:
dpml dataset register NAME SPEC.toml --role ROLE    and then, under the same role:    dpml serve
Members of ROLE with dpml_analyst ask for models, and own them:
SELECT name, role, spec, min_epsilon, max_epsilon, min_delta, max_delta FROM dpml.datasets WHERE offered;
CALL dpml.train(''NAME'', ''MODEL'', ''{"privacy": {"epsilon": 0.3}, "training": {"method": "dp-gd"}}'');
SELECT dpml.request(''NAME'', ''MODEL'', ''{"privacy": {"epsilon": 0.1}}''); does not wait; dpml.requests has its state.
CALL goes in autocommit mode only (by dpml.require_autocommit()), and a request is seen once it is committed.
What is committed is run and charged, even if the session ends. SELECT dpml.withdraw_request(ID) takes back what waits.
privacy: epsilon, delta, relation. training: method and its options, as in the topic train; of bolt-on with lambda the
default is solver sgd, unless the data set has allow_certified.'),
('privacy',
'A model of (epsilon, delta) changes the odds of any claim about one row by at most a factor e^epsilon, except with
probability delta, whatever else an attacker knows. From even odds: epsilon 0.1 to 52.5 %, 1 to 73.1 %, 3 to 95.3 %.
replace_one: the values of one row change. add_remove: one row is blanked out. The number of rows is public.
Bounds and levels must come from the meaning of a column, never from its rows. Every rule: privacy/README.md.')
	), function (topic, kind, text) AS (
		SELECT p.proname, p.prokind, pg_catalog.format(E'dpml.%s(%s)\n%s', p.proname,
			pg_catalog.pg_get_function_arguments(p.oid), pg_catalog.obj_description(p.oid, 'pg_proc'))
		FROM pg_catalog.pg_proc AS p
		WHERE p.pronamespace = 'dpml'::pg_catalog.regnamespace AND p.prorettype <> 'pg_catalog.trigger'::pg_catalog.regtype
			AND NOT EXISTS (SELECT FROM pg_catalog.pg_aggregate AS a
				WHERE p.oid IN (a.aggtransfn, a.aggcombinefn, a.aggfinalfn))
	), found (text) AS (
		SELECT g.text FROM guide AS g WHERE g.topic = pg_catalog.lower(help.topic)
		UNION ALL
		SELECT pg_catalog.string_agg(f.text, E'\n' ORDER BY f.text) FROM function AS f
		WHERE f.topic = pg_catalog.lower(help.topic)
	)
	SELECT coalesce((SELECT pg_catalog.string_agg(f.text, E'\n') FROM found AS f), pg_catalog.format(
E'pg_dpml: differentially private machine learning. SELECT dpml.help(TOPIC) with one of the topics\n%s\n'
'or with an aggregate\n%s\nor another function\n%s',
		(SELECT pg_catalog.string_agg(g.topic, ', ') FROM guide AS g),
		(SELECT pg_catalog.string_agg(DISTINCT f.topic, ', ') FROM function AS f WHERE f.kind = 'a'),
		(SELECT pg_catalog.regexp_replace(pg_catalog.string_agg(DISTINCT f.topic, ', '), '(.{1,110}), ', E'\\1,\n', 'g')
			FROM function AS f WHERE f.kind <> 'a')));
END;
COMMENT ON FUNCTION dpml.help(text) IS 'how to use the extension, by topic; without one, the topics';

--
-- PUBLIC
--
-- PostgreSQL opens every new function to everybody, and an administrator's default privileges may open more. These are
-- the only objects of dpml that stay open.

REVOKE ALL ON SCHEMA dpml FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA dpml FROM PUBLIC;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA dpml FROM PUBLIC;
REVOKE ALL ON ALL ROUTINES IN SCHEMA dpml FROM PUBLIC;

GRANT USAGE ON SCHEMA dpml TO PUBLIC;
GRANT EXECUTE ON FUNCTION
	dpml.block_capacity(text, int4, int4),
	dpml.help(text),
	dpml.label(text, record),
	dpml.module_version(),
	dpml.predict(text, record),
	dpml.predict_proba(text, record),
	dpml.predict_value(text, record)
TO PUBLIC;
