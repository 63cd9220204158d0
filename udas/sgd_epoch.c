/* SPDX-License-Identifier: PostgreSQL */
/*
 * dpml.sgd_epoch: one pass of SGD over rows or packed blocks.
 *
 * A group's whole state lives in the aggregate context: the parsed options
 * with the bytes they came from, and the kernel's state in one allocation of
 * its own.  Nothing is kept in fn_extra, so passes cannot share anything.
 * Temporaries of a row stay in the caller's per-row context.
 */
#include "dpml.h"
#include "rowform.h"

#include "catalog/pg_type.h"
#include "executor/executor.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/lsyscache.h"
#include "utils/typcache.h"

typedef struct EpochState
{
	MemoryContext context;		/* of the group */
	Jsonb	   *source;			/* the options as given, to refuse ones that vary */
	DpmlOptions options;		/* n_features is 0 until known */
	bool		started;		/* sgd is valid */
	int64		next_block;		/* number the next block must have */
	int64		waiting;		/* zero rows seen before the number of features was known */
	DpmlSgd		sgd;
	DpmlRowForm form;			/* row form only */
} EpochState;

/* Where a pass begins; all zero for a new model. */
typedef struct EpochStart
{
	const double *weights;		/* K x d */
	const double *average;		/* K x d: mean of the iterates so far */
	Size		n_weights;
	Size		n_average;
	int64		steps;
} EpochStart;

DPML_FUNCTION(dpml_sgd_rows_step);
DPML_FUNCTION(dpml_sgd_blocks_step);
DPML_FUNCTION(dpml_sgd_final);

/* Make the state on the group's first row, and see that the options stay the same. */
static EpochState *
get_state(FunctionCallInfo fcinfo, int options_argument, bool *first)
{
	MemoryContext context = dpml_aggregate_context(fcinfo, "sgd_epoch");
	EpochState *state;
	Jsonb	   *source;

	*first = PG_ARGISNULL(0);
	if (!*first)
	{
		state = (EpochState *) PG_GETARG_POINTER(0);
		(void) dpml_options_argument(fcinfo, options_argument, state->source);
		return state;
	}
	source = dpml_options_argument(fcinfo, options_argument, NULL);
	state = dpml_alloc(context, sizeof(EpochState));
	state->context = context;
	state->source = dpml_copy_jsonb(context, source);
	dpml_options_parse(&state->options, source, true);
	return state;
}

/* Check the start against the number of features, and set the kernel up. */
static void
start_pass(EpochState *state, const EpochStart *start, int32 n_features)
{
	DpmlSgdOptions *options = &state->options.sgd;
	int32		n_outputs = options->loss.n_classes;
	Size		n = dpml_weights_count(n_outputs, n_features);

	if (options->n_features != 0 && options->n_features != n_features)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("\"features\" in options must be %d, as in the data or the start, or absent", n_features)));
	if (start->weights != NULL && start->n_weights != n)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("start must have %zu weights (%d x %d), not %zu", n, n_outputs, n_features, start->n_weights)));
	if (start->average != NULL && start->n_average != n)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("the average in start must have %zu elements (%d x %d), not %zu",
						n, n_outputs, n_features, start->n_average)));
	if (options->average_from > 0 && start->steps >= options->average_from && start->average == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("start must have an average when it has more steps than \"average_from\" in options"),
				 errhint("Use the result of the previous pass, run with the same \"average_from\".")));

	options->n_features = n_features;
	dpml_sgd_start(&state->sgd, options, dpml_alloc(state->context, dpml_sgd_memory(options)),
				   start->weights,
				   options->average_from > 0 && start->steps >= options->average_from ? start->average : NULL,
				   start->steps);
	state->started = true;
}

static void
start_rows(EpochState *state, const EpochStart *start, int32 n_features)
{
	start_pass(state, start, n_features);
	dpml_row_form_init(&state->form, state->context, &state->options, n_features);
	for (; state->waiting > 0; state->waiting--)
	{
		if (state->waiting % DPML_ROWS_PER_CHECK == 0)
			CHECK_FOR_INTERRUPTS();
		dpml_sgd_row(&state->sgd, state->form.zero, 0.0);
	}
}

/* Features that a start with n weights has. */
static int32
features_of_start(const EpochState *state, Size n)
{
	int32		n_outputs = state->options.sgd.loss.n_classes;

	if (n % n_outputs != 0 || n / n_outputs > DPML_MAX_FEATURES)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("start must have %d times the number of features elements, at most %d features",
						n_outputs, DPML_MAX_FEATURES)));
	return (int32) (n / n_outputs);
}

/*
 * (internal, x float8[], y float8, start float8[], options jsonb).  The number
 * of features is that of the start, else the option "features", else that of
 * the first x that is a vector; the start is read from the first row.
 */
Datum
dpml_sgd_rows_step(PG_FUNCTION_ARGS)
{
	bool		first;
	EpochState *state = get_state(fcinfo, 4, &first);
	EpochStart	start = {0};
	const double *x;
	double		y;
	int32		n = 0;

	if (first && !PG_ARGISNULL(3))
	{
		start.weights = dpml_float8_argument(PG_GETARG_ARRAYTYPE_P(3), "start", &start.n_weights);
		n = features_of_start(state, start.n_weights);
	}
	else if (first)
		n = state->options.sgd.n_features;
	if (!state->started && n == 0 && !PG_ARGISNULL(1))
		n = dpml_row_form_length(PG_GETARG_DATUM(1));
	if (!state->started && n > 0)
		start_rows(state, &start, n);
	if (!state->started)
	{
		state->waiting++;
		PG_RETURN_POINTER(state);
	}

	x = dpml_row_form_read(&state->form, &fcinfo->args[1], &fcinfo->args[2], &y);
	dpml_sgd_row(&state->sgd, x, y);
	if (state->sgd.rows % DPML_ROWS_PER_CHECK == 0)
		CHECK_FOR_INTERRUPTS();
	PG_RETURN_POINTER(state);
}

/* Take a dpml.epoch apart; the arrays stay in the caller's memory. */
static void
read_start(EpochStart *start, HeapTupleHeader epoch)
{
	TupleDesc	desc = lookup_rowtype_tupdesc(HeapTupleHeaderGetTypeId(epoch), HeapTupleHeaderGetTypMod(epoch));
	HeapTupleData tuple;
	Datum		values[4];
	bool		nulls[4];

	if (desc->natts != 4 || TupleDescAttr(desc, 0)->atttypid != FLOAT8ARRAYOID ||
		TupleDescAttr(desc, 1)->atttypid != FLOAT8ARRAYOID || TupleDescAttr(desc, 2)->atttypid != INT8OID)
		elog(ERROR, "start is not a dpml.epoch");
	tuple.t_len = HeapTupleHeaderGetDatumLength(epoch);
	tuple.t_data = epoch;
	heap_deform_tuple(&tuple, desc, values, nulls);
	ReleaseTupleDesc(desc);

	if (!nulls[0])
		start->weights = dpml_float8_argument(DatumGetArrayTypeP(values[0]), "the weights in start", &start->n_weights);
	if (!nulls[1])
		start->average = dpml_float8_argument(DatumGetArrayTypeP(values[1]), "the average in start", &start->n_average);
	if (!nulls[2])
		start->steps = DatumGetInt64(values[2]);
	if (start->steps < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("steps in start must be an integer >= 0")));
}

static void
check_block_number(const EpochState *state, const NullableDatum *number)
{
	if (likely(!number->isnull && DatumGetInt32(number->value) == state->next_block))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("block " INT64_FORMAT " is missing or out of order", state->next_block),
			 errdetail("Blocks must arrive as 0, 1, 2, ..., each once."),
			 errhint("Read the table of blocks in its physical order with synchronize_seqscans off, "
					 "or write dpml.sgd_epoch(... ORDER BY block_no).")));
}

/* (internal, block_no int4, block bytea, start dpml.epoch, options jsonb); the start is read from the first block. */
Datum
dpml_sgd_blocks_step(PG_FUNCTION_ARGS)
{
	bool		first;
	EpochState *state = get_state(fcinfo, 4, &first);
	DpmlBlock	block;

	CHECK_FOR_INTERRUPTS();
	check_block_number(state, &fcinfo->args[1]);
	if (PG_ARGISNULL(2))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("block must not be null")));
	dpml_open_block(&block, PG_GETARG_DATUM(2));
	if (first)
	{
		EpochStart	start = {0};

		if (!PG_ARGISNULL(3))
			read_start(&start, PG_GETARG_HEAPTUPLEHEADER(3));
		start_pass(state, &start, block.n_features);
	}
	else if (block.n_features != state->options.sgd.n_features)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("block " INT64_FORMAT " has %d features, the first one has %d",
						state->next_block, block.n_features, state->options.sgd.n_features)));
	dpml_sgd_block(&state->sgd, &block);
	state->next_block++;
	PG_RETURN_POINTER(state);
}

/* The result, a dpml.epoch.  Without a row there is no start to return either: weights are NULL. */
Datum
dpml_sgd_final(PG_FUNCTION_ARGS)
{
	EpochState *state = PG_ARGISNULL(0) ? NULL : (EpochState *) PG_GETARG_POINTER(0);
	TupleDesc	desc;
	Datum		values[4] = {0};
	bool		nulls[4] = {true, true, false, false};

	(void) dpml_aggregate_context(fcinfo, "sgd_epoch");
	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE || desc->natts != 4)
		elog(ERROR, "the result of dpml.sgd_epoch is not a dpml.epoch");
	if (state != NULL && state->started)
	{
		DpmlSgd    *sgd = &state->sgd;
		Size		n = dpml_weights_count(sgd->options.loss.n_classes, sgd->options.n_features);

		dpml_sgd_finish(sgd);
		values[0] = PointerGetDatum(dpml_float8_array(sgd->weights, n));
		nulls[0] = false;
		if (sgd->options.average_from > 0 && sgd->averaged > 0)
		{
			values[1] = PointerGetDatum(dpml_float8_array(sgd->average, n));
			nulls[1] = false;
		}
		values[2] = Int64GetDatum(sgd->steps);
		values[3] = Int64GetDatum(sgd->rows);
	}
	else if (state != NULL)
	{
		int32		b = state->options.sgd.batch_size;

		values[2] = Int64GetDatum((state->waiting + b - 1) / b);
		values[3] = Int64GetDatum(state->waiting);
	}
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls)));
}
