-- Models as rows of dpml.models, applied to raw columns.
INSERT INTO dpml.models (name, method, private, task, loss, classes, weights, n_features, encoder, privacy, training)
VALUES ('loan', 'lbfgs', false, 'binary', 'logistic', '{no,yes}', '{2,-1}', 2,
	'{"columns": [{"name": "income", "kind": "numeric", "lower": -1, "upper": 1}], "intercept": true, "norm": "clip",
	"label": {"name": "paid", "kind": "binary", "positive": "yes"}}', '{}', '{}');

CREATE TABLE people (id int, income float8, paid text);
INSERT INTO people VALUES (1, 1, 'yes'), (2, -1, 'no'), (3, NULL, NULL), (4, 1000, 'perhaps');
SELECT id, dpml.predict('loan', p), round(dpml.predict_value('loan', p)::numeric, 4) AS score,
	ARRAY(SELECT round(x::numeric, 4) FROM unnest(dpml.predict_proba('loan', p)) AS x) AS probabilities,
	dpml.label('loan', p)
FROM people AS p ORDER BY id;

-- The columns are found by name, or in the order of the specification.
SELECT dpml.predict('loan', ROW(1));
SELECT dpml.predict('loan', p) FROM (SELECT 'yes' AS paid, 1 AS income) AS p;

SELECT dpml.predict('nobody', p) FROM people AS p;
SELECT dpml.predict('loan', p) FROM (SELECT 1 AS outcome) AS p;

-- Who owns a model drops it.
SELECT dpml.drop_model('loan'), dpml.drop_model('loan') AS again;
DROP TABLE people;
