/* SPDX-License-Identifier: PostgreSQL */
/* The state that sgd_epoch and the Poisson aggregates share, from a dpml.epoch to the next. */
#include "epoch.h"

#include "catalog/pg_type.h"
#include "executor/executor.h"
#include "funcapi.h"
#include "utils/lsyscache.h"
#include "utils/typcache.h"

/* Steps taken before a pass: schedules are exact up to here, and counting goes on without overflow. */
#define MAX_STEPS ((int64) 1 << 53)

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

/*
 * The group's state, of size bytes that begin with a DpmlPass: made, zeroed but
 * for its pass, on the group's first row.  The options stay the same.
 */
DpmlPass *
dpml_pass_state(FunctionCallInfo fcinfo, const char *aggregate, int options_argument, DpmlOptionsUse use,
				Size size, bool *first)
{
	MemoryContext context = dpml_aggregate_context(fcinfo, aggregate);
	DpmlPass   *pass;
	Jsonb	   *source;

	*first = PG_ARGISNULL(0);
	if (!*first)
	{
		pass = (DpmlPass *) PG_GETARG_POINTER(0);
		(void) dpml_options_argument(fcinfo, options_argument, pass->source);
		return pass;
	}
	source = dpml_options_argument(fcinfo, options_argument, NULL);
	pass = dpml_alloc(context, size);
	pass->context = context;
	pass->source = dpml_copy_jsonb(context, source);
	dpml_options_parse(&pass->options, source, use);
	return pass;
}

/* Take a dpml.epoch apart; NULL is a new model.  The arrays stay in the caller's memory. */
void
dpml_pass_read_start(DpmlPassStart *start, const NullableDatum *epoch)
{
	HeapTupleHeader header;
	TupleDesc	desc;
	HeapTupleData tuple;
	Datum		values[N_ATTRIBUTES];
	bool		nulls[N_ATTRIBUTES];

	memset(start, 0, sizeof(*start));
	if (epoch->isnull)
		return;
	header = DatumGetHeapTupleHeader(epoch->value);
	desc = lookup_rowtype_tupdesc(HeapTupleHeaderGetTypeId(header), HeapTupleHeaderGetTypMod(header));
	if (desc->natts != N_ATTRIBUTES || TupleDescAttr(desc, WEIGHTS)->atttypid != FLOAT8ARRAYOID ||
		TupleDescAttr(desc, AVERAGE)->atttypid != FLOAT8ARRAYOID ||
		TupleDescAttr(desc, STEPS)->atttypid != INT8OID ||
		TupleDescAttr(desc, VELOCITY)->atttypid != FLOAT8ARRAYOID)
		elog(ERROR, "start is not a dpml.epoch");
	tuple.t_len = HeapTupleHeaderGetDatumLength(header);
	tuple.t_data = header;
	heap_deform_tuple(&tuple, desc, values, nulls);
	ReleaseTupleDesc(desc);

	if (!nulls[WEIGHTS])
		start->sgd.weights = dpml_float8_argument(DatumGetArrayTypeP(values[WEIGHTS]), "the weights in start",
												  &start->n_weights);
	if (!nulls[AVERAGE])
		start->sgd.average = dpml_float8_argument(DatumGetArrayTypeP(values[AVERAGE]), "the average in start",
												  &start->n_average);
	if (!nulls[VELOCITY])
		start->sgd.velocity = dpml_float8_argument(DatumGetArrayTypeP(values[VELOCITY]), "the velocity in start",
												   &start->n_velocity);
	if (!nulls[STEPS])
		start->sgd.steps = DatumGetInt64(values[STEPS]);
	if (start->sgd.steps < 0 || start->sgd.steps > MAX_STEPS)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("steps in start must be an integer from 0 to 2^53")));
}

/* An array of the start must be a model's. */
static void
check_length(const DpmlPass *pass, const char *name, const double *values, Size n, int32 n_features)
{
	int32		n_outputs = pass->options.sgd.loss.n_classes;
	Size		wanted = dpml_weights_count(n_outputs, n_features);

	if (values != NULL && n != wanted)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must have %zu elements (%d x %d), not %zu", name, wanted, n_outputs, n_features, n)));
}

/* What an earlier pass must have left where the options go on with it. */
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
dpml_pass_start(DpmlPass *pass, DpmlPassStart *start, int32 n_features)
{
	DpmlSgdOptions *options = &pass->options.sgd;
	DpmlSgdStart *sgd = &start->sgd;
	bool		averaging = options->average_from > 0 && sgd->steps >= options->average_from;
	uint8		key[DPML_KEY_BYTES];

	if (options->n_features != 0 && options->n_features != n_features)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("\"features\" in options must be %d, as in the data or the start, or absent", n_features)));
	check_length(pass, "the weights in start", sgd->weights, start->n_weights, n_features);
	check_length(pass, "the average in start", sgd->average, start->n_average, n_features);
	check_length(pass, "the velocity in start", sgd->velocity, start->n_velocity, n_features);
	require_left(sgd->average, averaging, "an average", "average_from");
	require_left(sgd->velocity, options->momentum > 0.0 && sgd->steps > 0, "a velocity", "momentum");

	options->n_features = n_features;
	if (options->noise != DPML_NO_NOISE)
	{
		dpml_random_key(key);
		sgd->key = key;
	}
	dpml_sgd_start(&pass->sgd, options, dpml_alloc(pass->context, dpml_sgd_memory(options)), sgd);
	explicit_bzero(key, sizeof(key));
	pass->started = true;
}

/* Open a block of the pass; its number is for an error about it. */
void
dpml_pass_open_block(DpmlBlock *block, const DpmlPass *pass, const NullableDatum *bytes, int64 number)
{
	if (bytes->isnull)
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("block must not be null")));
	dpml_open_block(block, bytes->value);
	if (pass->started && block->n_features != pass->options.sgd.n_features)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("block " INT64_FORMAT " has %d features, the first one has %d",
						number, block->n_features, pass->options.sgd.n_features)));
}

/* Of so many rows or steps (> 0) how many to take at once, with a look at interrupts before. */
int32
dpml_pass_piece(const DpmlPass *pass, int32 rows)
{
	const DpmlSgdOptions *options = &pass->sgd.options;

	return dpml_rows_piece((int64) options->loss.n_classes * options->n_features, rows);
}

void
dpml_pass_check_number(const NullableDatum *number, int64 expected)
{
	if (likely(!number->isnull && DatumGetInt32(number->value) == expected))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("block " INT64_FORMAT " is missing or out of order", expected),
			 errdetail("Blocks must arrive as 0, 1, 2, ..., each once."),
			 errhint("Read the table of blocks in its physical order with synchronize_seqscans off, "
					 "or write ORDER BY block_no after the last argument.")));
}

/*
 * The result, a dpml.epoch.  pass is NULL, or not started, where nothing said how
 * many features there are: then the weights are NULL and the steps those given.
 */
Datum
dpml_pass_result(FunctionCallInfo fcinfo, DpmlPass *pass, int64 steps, int64 rows)
{
	TupleDesc	desc;
	Datum		values[N_ATTRIBUTES] = {0};
	bool		nulls[N_ATTRIBUTES] = {true, true, false, false, true};

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE || desc->natts != N_ATTRIBUTES)
		elog(ERROR, "the result of an aggregate is not a dpml.epoch");
	values[STEPS] = Int64GetDatum(steps);
	values[ROWS] = Int64GetDatum(rows);
	if (pass != NULL && pass->started)
	{
		DpmlSgd    *sgd = &pass->sgd;
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
