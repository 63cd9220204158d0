/* SPDX-License-Identifier: PostgreSQL */
/*
 * Predictions of a stored model from raw columns, with the encoding it was
 * trained with.  They are STRICT: no record, no prediction.
 */
#include "compat.h"

#include <math.h>

#include "utils/builtins.h"
#include "utils/float.h"

#include "model.h"
#include "support.h"

#include "kernels/loss.h"
#include "kernels/score.h"
#include "kernels/whiten.h"

DPML_FUNCTION(dpml_predict);
DPML_FUNCTION(dpml_predict_value);
DPML_FUNCTION(dpml_predict_proba);
DPML_FUNCTION(dpml_label);

/*
 * Scores of a record, in model->scores.  With a whitening P a score is
 * <w, x> / ||P x||, and 0 where the norm is 0.  The norm, d^2 multiplications,
 * changes neither sign nor order: classes go without it.
 */
static void
score(DpmlModel *model, HeapTupleHeader record)
{
	int32		n_features = dpml_reader_spec(model->reader)->encoder.n_features;
	const float *features;
	DpmlFeatures row;
	double		norm;

	if (model->whitening == NULL)
	{
		dpml_reader_encode(model->reader, record, &row);
		if (row.columns != NULL)
			dpml_scores_sparse(model->n_outputs, n_features, model->weights, row.n, row.columns, row.values,
							   model->scores);
		else
			dpml_scores(model->n_outputs, n_features, model->weights, row.values, model->scores);
		return;
	}
	features = dpml_reader_features(model->reader, record);
	dpml_scores(model->n_outputs, n_features, model->weights, features, model->scores);
	norm = dpml_whitened_norm(n_features, model->whitening, features, model->whitened);
	for (int k = 0; k < model->n_outputs; k++)
		model->scores[k] = norm > 0.0 ? model->scores[k] / norm : 0.0;
}

/* Index of the largest score; the first one of equal scores. */
static int
largest_score(const DpmlModel *model)
{
	int			best = 0;

	for (int k = 1; k < model->n_outputs; k++)
	{
		if (model->scores[k] > model->scores[best])
			best = k;
	}
	return best;
}

/* A regression's score in label units, inside the label's public bounds. */
static double
label_units(const DpmlModel *model)
{
	const DpmlSpec *spec = dpml_reader_spec(model->reader);
	double		u = Min(Max(model->scores[0], -1.0), 1.0);

	return spec->label_lower + 0.5 * (u + 1.0) * (spec->label_upper - spec->label_lower);
}

static text *
number_text(double value)
{
	return cstring_to_text(float8out_internal(value));
}

/* (model text, r record): the class, or a regression's value as text */
Datum
dpml_predict(PG_FUNCTION_ARGS)
{
	DpmlModel  *model = dpml_model_get(fcinfo, PG_GETARG_TEXT_PP(0), DPML_USE_CLASSES);

	score(model, PG_GETARG_HEAPTUPLEHEADER(1));
	switch (model->task)
	{
		case DPML_TASK_BINARY:
			PG_RETURN_TEXT_P(model->classes[model->scores[0] > 0.0 ? 1 : 0]);
		case DPML_TASK_MULTICLASS:
			PG_RETURN_TEXT_P(model->classes[largest_score(model)]);
		default:
			PG_RETURN_TEXT_P(number_text(label_units(model)));
	}
}

/* (model text, r record): decision value, largest score, or the value in label units */
Datum
dpml_predict_value(PG_FUNCTION_ARGS)
{
	DpmlModel  *model = dpml_model_get(fcinfo, PG_GETARG_TEXT_PP(0), DPML_USE_VALUES);

	score(model, PG_GETARG_HEAPTUPLEHEADER(1));
	switch (model->task)
	{
		case DPML_TASK_BINARY:
			PG_RETURN_FLOAT8(model->scores[0]);
		case DPML_TASK_MULTICLASS:
			PG_RETURN_FLOAT8(model->scores[largest_score(model)]);
		default:
			PG_RETURN_FLOAT8(label_units(model));
	}
}

/* 1 / (1 + exp(-u)) without overflow */
static double
logistic(double u)
{
	double		e = exp(-fabs(u));

	return u >= 0 ? 1.0 / (1.0 + e) : e / (1.0 + e);
}

/* One-vs-all: each class's own probability, scaled to a sum of 1. */
static void
one_vs_all(int n, double *scores)
{
	double		sum = 0.0;

	for (int k = 0; k < n; k++)
	{
		scores[k] = logistic(scores[k]);
		sum += scores[k];
	}
	for (int k = 0; k < n; k++)
		scores[k] = sum > 0.0 ? scores[k] / sum : 1.0 / n;
}

static void
softmax(int n, double *scores, double largest)
{
	double		sum = 0.0;

	for (int k = 0; k < n; k++)
	{
		scores[k] = exp(scores[k] - largest);
		sum += scores[k];
	}
	for (int k = 0; k < n; k++)
		scores[k] /= sum;
}

/* The facts of a stored model's loss; NULL for a loss that there is not. */
static const DpmlLossFacts *
loss_of_name(const char *name)
{
	for (int32 kind = 0; kind < DPML_LOSS_KINDS; kind++)
		if (strcmp(name, dpml_loss_facts(kind)->name) == 0)
			return dpml_loss_facts(kind);
	return NULL;
}

/* (model text, r record): probabilities in the order of the model's classes */
Datum
dpml_predict_proba(PG_FUNCTION_ARGS)
{
	DpmlModel  *model = dpml_model_get(fcinfo, PG_GETARG_TEXT_PP(0), DPML_USE_VALUES);
	const DpmlLossFacts *facts = loss_of_name(model->loss);
	double		pair[2];

	if (facts == NULL || !facts->has_probability)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("model \"%s\" with loss \"%s\" has no probabilities", model->name, model->loss),
				 errhint("dpml.predict and dpml.predict_value take models of every loss.")));
	score(model, PG_GETARG_HEAPTUPLEHEADER(1));
	if (model->task == DPML_TASK_BINARY)
	{
		pair[0] = logistic(-model->scores[0]);
		pair[1] = logistic(model->scores[0]);
		PG_RETURN_ARRAYTYPE_P(dpml_float8_array(pair, 2));
	}
	if (facts->label == DPML_SIGN_LABEL)
		one_vs_all(model->n_outputs, model->scores);
	else
		softmax(model->n_outputs, model->scores, model->scores[largest_score(model)]);
	PG_RETURN_ARRAYTYPE_P(dpml_float8_array(model->scores, (Size) model->n_outputs));
}

/* (model text, r record): the declared class of the row's own label, or its clamped value as text; else NULL */
Datum
dpml_label(PG_FUNCTION_ARGS)
{
	DpmlModel  *model = dpml_model_get(fcinfo, PG_GETARG_TEXT_PP(0), DPML_USE_CLASSES);
	HeapTupleHeader record = PG_GETARG_HEAPTUPLEHEADER(1);
	DpmlFeatures row;
	DpmlLabel	label;

	dpml_reader_encode(model->reader, record, &row);
	dpml_reader_label(model->reader, record, &label);
	if (!label.declared)
		PG_RETURN_NULL();
	if (model->task == DPML_TASK_REGRESSION)
		PG_RETURN_TEXT_P(number_text(label.value));
	PG_RETURN_TEXT_P(model->classes[label.index]);
}
