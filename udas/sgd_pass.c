/* SPDX-License-Identifier: PostgreSQL */
/* A pass of SGD, from a dpml.epoch to the next. */
#include "sgd_pass.h"

#include "catalog/pg_type.h"
#include "funcapi.h"

#include "support.h"

/* Attributes of dpml.epoch. */
enum
{
	WEIGHTS,
	AVERAGE,
	STEPS,
	ROWS,
	VELOCITY,
	N_ATTRIBUTES
};

/* The group's state, as dpml_pass_state returns it; parses the options of SGD on the first row. */
DpmlSgdPass *
dpml_sgd_pass_state(FunctionCallInfo fcinfo, const char *aggregate, int options_argument, DpmlSgdUse use,
					Size size, bool *first)
{
	DpmlSgdPass *state = (DpmlSgdPass *) dpml_pass_state(fcinfo, aggregate, options_argument, size, first);

	if (*first)
		dpml_sgd_options_parse(&state->pass.options, &state->options, state->pass.source, use);
	Assert(!state->pass.begun || dpml_sgd_valid(&state->sgd));
	return state;
}

/* The state in a final function, as dpml_pass_end returns it. */
DpmlSgdPass *
dpml_sgd_pass_end(FunctionCallInfo fcinfo, const char *aggregate)
{
	DpmlSgdPass *state = (DpmlSgdPass *) dpml_pass_end(fcinfo, aggregate);

	Assert(state == NULL || !state->pass.begun || dpml_sgd_valid(&state->sgd));
	return state;
}

/* Take a dpml.epoch apart; NULL is a new model.  The arrays stay in the caller's memory. */
void
dpml_sgd_pass_read_start(DpmlSgdPassStart *start, const NullableDatum *epoch)
{
	static const Oid wanted[N_ATTRIBUTES] = {FLOAT8ARRAYOID, FLOAT8ARRAYOID, INT8OID, InvalidOid, FLOAT8ARRAYOID};
	Datum		values[N_ATTRIBUTES];
	bool		nulls[N_ATTRIBUTES];

	memset(start, 0, sizeof(*start));
	if (epoch->isnull)
		return;
	dpml_take_apart(epoch->value, "dpml.epoch", wanted, N_ATTRIBUTES, values, nulls);
	if (!nulls[WEIGHTS])
		start->sgd.weights = dpml_float8_argument(DatumGetArrayTypeP(values[WEIGHTS]), "the weights in start",
												  &start->n_weights);
	if (!nulls[AVERAGE])
		start->sgd.average = dpml_float8_argument(DatumGetArrayTypeP(values[AVERAGE]), "the average in start",
												  &start->n_average);
	if (!nulls[VELOCITY])
		start->sgd.velocity = dpml_float8_argument(DatumGetArrayTypeP(values[VELOCITY]), "the velocity in start",
												   &start->n_velocity);
	start->sgd.steps = dpml_steps_before(values[STEPS], nulls[STEPS]);
}

/* The units of each batch, int4[]: they are kept as long as the pass. */
void
dpml_sgd_pass_read_sizes(const DpmlSgdPass *state, DpmlSgdPassStart *start, const NullableDatum *sizes)
{
	ArrayType  *array = sizes->isnull ? NULL : DatumGetArrayTypeP(sizes->value);
	int32	   *kept;
	Size		n;

	if (array == NULL || ARR_NDIM(array) != 1 || ARR_HASNULL(array) || ARR_ELEMTYPE(array) != INT4OID)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("sizes must be an array of numbers of units, as dpml.batch_sizes returns it")));
	n = (Size) ARR_DIMS(array)[0];
	kept = dpml_alloc(state->pass.context, n * sizeof(int32));
	memcpy(kept, ARR_DATA_PTR(array), n * sizeof(int32));
	for (Size i = 0; i < n; i++)
		if (kept[i] < 0)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("sizes must be numbers >= 0")));
	start->sgd.sizes = kept;
	start->sgd.n_sizes = (int64) n;
}

/* An array of the start must be a model's. */
static void
check_length(const DpmlSgdPass *state, const char *name, const double *values, Size n, int32 n_features)
{
	int32		n_outputs = state->pass.options.loss.n_classes;
	Size		wanted = dpml_weights_count(n_outputs, n_features);

	if (values != NULL && n != wanted)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must have %zu elements (%d x %d), not %zu", name, wanted, n_outputs, n_features, n)));
}

/* Require an array that an earlier pass must have left, where the options continue with it. */
static void
require_left(const double *values, bool needed, const char *name, const char *option)
{
	if (!needed || values != NULL)
		return;
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("start must have %s, as \"%s\" in options goes on with it", name, option),
			 errhint("Use the result of the previous pass, run with the same \"%s\".", option)));
}

/* Check the start against the number of features, and set the kernel up. */
void
dpml_sgd_pass_start(DpmlSgdPass *state, DpmlSgdPassStart *start, int32 n_features)
{
	DpmlSgdOptions *options = &state->options.sgd;
	DpmlSgdStart *sgd = &start->sgd;
	bool		averaging = options->average_from > 0 && sgd->steps >= options->average_from;
	uint8		key[DPML_KEY_BYTES];

	dpml_pass_begin(&state->pass, n_features);
	check_length(state, "the weights in start", sgd->weights, start->n_weights, n_features);
	check_length(state, "the average in start", sgd->average, start->n_average, n_features);
	check_length(state, "the velocity in start", sgd->velocity, start->n_velocity, n_features);
	require_left(sgd->average, averaging, "an average", "average_from");
	require_left(sgd->velocity, options->momentum > 0.0 && sgd->steps > 0, "a velocity", "momentum");

	options->n_features = n_features;
	if (options->noise != DPML_NO_NOISE)
	{
		dpml_random_key(key);
		sgd->key = key;
	}
	dpml_sgd_start(&state->sgd, options, dpml_alloc(state->pass.context, dpml_sgd_memory(options)), sgd);
	Assert(dpml_sgd_valid(&state->sgd));
	explicit_bzero(key, sizeof(key));
}

/*
 * The result, a dpml.epoch.  state is NULL, or its pass has not
 * begun, where nothing said how many features there are: then the weights are NULL
 * and the steps those given.
 */
Datum
dpml_sgd_pass_result(FunctionCallInfo fcinfo, DpmlSgdPass *state, int64 steps, int64 rows)
{
	TupleDesc	desc;
	Datum		values[N_ATTRIBUTES] = {0};
	bool		nulls[N_ATTRIBUTES] = {true, true, false, false, true};

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE || desc->natts != N_ATTRIBUTES)
		elog(ERROR, "the result of an aggregate is not a dpml.epoch");
	values[STEPS] = Int64GetDatum(steps);
	values[ROWS] = Int64GetDatum(rows);
	if (state != NULL && state->pass.begun)
	{
		DpmlSgd    *sgd = &state->sgd;
		Size		n = dpml_weights_count(sgd->options.loss.n_classes, sgd->options.n_features);

		dpml_sgd_finish(sgd);
		values[WEIGHTS] = PointerGetDatum(dpml_float8_array(sgd->weights, n));
		nulls[WEIGHTS] = false;
		if (sgd->options.average_from > 0 && sgd->averaged > 0)
		{
			values[AVERAGE] = PointerGetDatum(dpml_float8_array(sgd->average, n));
			nulls[AVERAGE] = false;
		}
		if (sgd->velocity != NULL)
		{
			values[VELOCITY] = PointerGetDatum(dpml_float8_array(sgd->velocity, n));
			nulls[VELOCITY] = false;
		}
		values[STEPS] = Int64GetDatum(sgd->steps);
	}
	return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls));
}
