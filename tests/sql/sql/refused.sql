-- Calls that are refused, by errors that name the argument and quote no row.
\set VERBOSITY terse
SELECT dpml.sgd_epoch(ARRAY[a, b], y, NULL, '{"loss": "perceptron", "step_size": 0.5}') FROM points;
SELECT dpml.sgd_epoch(ARRAY[a, b], y, NULL, '{"loss": "hinge", "step_size": 0.5}') FROM points;
SELECT dpml.gram(block, '{0, 0}', '{"loss": "hinge"}') FROM blocks;
SELECT dpml.sgd_epoch(ARRAY[a, b], y, NULL, '{"loss": "squared", "step_size": -1}') FROM points;
SELECT dpml.sgd_epoch(ARRAY[a, b], y, NULL, '{"loss": "squared", "step_size": 0.5, "radios": 1}') FROM points;
SELECT dpml.sgd_epoch(block_no, block, NULL, '{"loss": "squared", "step_size": 0.5}' ORDER BY block_no DESC) FROM blocks;
SELECT dpml.gradient(block, '{0}', '{"loss": "squared"}') FROM blocks;
SELECT dpml.scd_epoch(ARRAY[a, b], y, NULL, NULL, '{"loss": "hinge", "lambda": 0, "rows": 3}') FROM points;
SELECT dpml.scd_epoch(ARRAY[a, b], y, NULL, NULL, '{"loss": "softmax", "lambda": 1, "rows": 3}') FROM points;
SELECT dpml.scd_epoch(block_no, block, '\x00', NULL, '{"loss": "hinge", "lambda": 1, "rows": 3}' ORDER BY block_no) FROM blocks;
SELECT dpml.scd_gap(block, NULL, '{0}', '{"loss": "hinge", "lambda": 1, "rows": 3}') FROM blocks;
SELECT dpml.unpack('\x00'::bytea);
SELECT dpml.encode('{"columns": []}', p) FROM points AS p;
SELECT dpml.sgd_epoch(ARRAY[a, b], y, NULL, '{"loss": "squared", "step_size": 0.5}') OVER () FROM points;
BEGIN;
CALL dpml.train('nothing', 'm');
ROLLBACK;
