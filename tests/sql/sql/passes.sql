-- Rows, packed into blocks, and what passes over them give. All numbers are dyadic, so that every digit is exact.
CREATE TABLE points (id int PRIMARY KEY, a float8, b float8, y float8);
INSERT INTO points VALUES (1, 0.5, 0.5, 1), (2, 0.75, 0, -1), (3, 0, -0.5, 0.5);

CREATE TABLE spec AS SELECT '{
	"columns": [{"name": "a", "kind": "numeric", "lower": -1, "upper": 1},
		{"name": "b", "kind": "numeric", "lower": -1, "upper": 1}],
	"intercept": false, "norm": "clip", "format": "dense",
	"label": {"name": "y", "kind": "number", "lower": -1, "upper": 1}}'::jsonb AS spec;

-- Two rows a block; the values of the rows stay what they are, as their norms are below 1.
CREATE TABLE blocks AS
SELECT (row_number() OVER (ORDER BY id) - 1)::int AS block_no, block FROM (
	SELECT id, dpml.pack(dpml.encode(spec, p), 2) OVER (ORDER BY id) AS block FROM points AS p, spec) AS packed
WHERE block IS NOT NULL;
SELECT block_no, x, y FROM blocks, dpml.unpack(block) ORDER BY block_no, x;

-- w is 0, then w - 1/2 (w'x - y) x for one row after the other: (1/4, 1/4), (-25/128, 1/4), (-25/128, 3/32).
SELECT (r).* FROM (SELECT dpml.sgd_epoch(ARRAY[a, b], y, NULL,
	'{"loss": "squared", "step_size": 0.5}' ORDER BY id) AS r FROM points) AS s;
SELECT (r).* FROM (SELECT dpml.sgd_epoch(block_no, block, NULL,
	'{"loss": "squared", "step_size": 0.5}' ORDER BY block_no) AS r FROM blocks) AS s;

-- A second pass starts where the first ended, and both count.
WITH first AS (SELECT dpml.sgd_epoch(block_no, block, NULL, '{"loss": "squared", "step_size": 0.5}'
	ORDER BY block_no) AS r FROM blocks)
SELECT (r).steps, (r).rows FROM (SELECT dpml.sgd_epoch(block_no, block, (SELECT r FROM first),
	'{"loss": "squared", "step_size": 0.5}' ORDER BY block_no) AS r FROM blocks) AS s;

-- At w = 0 a row's gradient is -y x, and its loss y^2/2.
SELECT (r).* FROM (SELECT dpml.gradient(block, '{0,0}', '{"loss": "squared"}') AS r FROM blocks) AS s;
SELECT dpml.loss(block, '{0,0}', '{"loss": "squared"}') FROM blocks;
SELECT dpml.loss(ARRAY[a, b], y, '{0,0}', '{"loss": "squared"}') FROM points;
SELECT round(dpml.loss(ARRAY[a, b], sign(y), '{0,0}', '{"loss": "logistic"}')::numeric, 6) AS ln_2 FROM points;

-- Sums of x x' and y x; weights make the first the Hessian.
SELECT (r).* FROM (SELECT dpml.gram(block) AS r FROM blocks) AS s;
SELECT (r).* FROM (SELECT dpml.gram(block, '{0,0}', '{"loss": "squared"}') AS r FROM blocks) AS s;

-- Of Poisson batches only the numbers of steps and rows are not random.
SELECT (r).steps, (r).rows FROM (SELECT dpml.sgd_poisson(block_no, block, NULL, '{"loss": "squared", "step_size": 0.5,
	"steps": 4, "sampling": 0.5, "batch_size": 2}' ORDER BY block_no) AS r FROM blocks) AS s;

-- Coordinate descent: y times the dual of the hinge rises from 0 to its bound 1 in each row, and v is the sum of dual
-- times row. With update_clip no dual of the squared loss moves further than 1/4.
SELECT (r).v, (r).steps, (r).rows, dpml.duals((r).duals[1]) FROM (SELECT dpml.scd_epoch(ARRAY[a, b], sign(y), NULL, NULL,
	'{"loss": "hinge", "lambda": 1, "rows": 4}' ORDER BY id) AS r FROM points) AS s;
CREATE TABLE pass AS SELECT dpml.scd_epoch(block_no, block, NULL, NULL,
	'{"loss": "squared", "lambda": 0.25, "rows": 4, "update_clip": 0.25}' ORDER BY block_no) AS r FROM blocks;
SELECT (r).v, (r).steps, (r).rows, dpml.duals((r).duals[1]) AS first, dpml.duals((r).duals[2]) AS second FROM pass;
SELECT dpml.scd_gap(block, NULL, '{0,0}', '{"loss": "squared", "lambda": 0.25, "rows": 4}') FROM blocks;

-- The second pass goes on with v, steps and the duals of each block.
SELECT (r).steps, (r).rows, cardinality((r).duals) FROM (SELECT dpml.scd_epoch(block_no, block,
	(SELECT (r).duals[block_no + 1] FROM pass), (SELECT r FROM pass), '{"loss": "squared", "lambda": 0.25, "rows": 4}'
	ORDER BY block_no) AS r FROM blocks) AS s;
SELECT (r).steps, (r).rows FROM (SELECT dpml.scd_epoch(block_no, block, NULL, NULL, '{"loss": "hinge", "lambda": 1,
	"rows": 4, "steps": 4, "sampling": 0.5, "batch_size": 2, "noise": "gaussian", "noise_scale": 1, "update_clip": 1}'
	ORDER BY block_no) AS r FROM blocks) AS s;
