/* SPDX-License-Identifier: PostgreSQL */
/*
 * dpml.sgd_epoch: one pass of SGD over rows or packed blocks.
 *
 * A group's whole state lives in the aggregate context: the parsed options
 * with the bytes they came from, and the kernel's state in one allocation of
 * its own.  Nothing is kept in fn_extra, so passes cannot share anything.
 * Temporaries of a row stay in the caller's per-row context.
 */
#include "epoch.h"
#include "rowform.h"

#include "miscadmin.h"

typedef struct EpochState
{
	DpmlPass	pass;
	int64		next_block;		/* number the next block must have */
	int64		waiting;		/* zero rows seen before the number of features was known */
	DpmlRowForm form;			/* row form only */
} EpochState;

DPML_FUNCTION(dpml_sgd_rows_step);
DPML_FUNCTION(dpml_sgd_blocks_step);
DPML_FUNCTION(dpml_sgd_final);

static EpochState *
get_state(FunctionCallInfo fcinfo, bool *first)
{
	return (EpochState *) dpml_pass_state(fcinfo, "sgd_epoch", 4, DPML_FOR_EPOCH, sizeof(EpochState), first);
}

static void
start_rows(EpochState *state, DpmlPassStart *start, int32 n_features)
{
	dpml_pass_start(&state->pass, start, n_features);
	dpml_row_form_init(&state->form, state->pass.context, &state->pass.options, n_features);
	for (; state->waiting > 0; state->waiting--)
	{
		CHECK_FOR_INTERRUPTS();
		dpml_sgd_row(&state->pass.sgd, state->form.zero, 0.0);
	}
}

/* Features that a start with n weights has. */
static int32
features_of_start(const EpochState *state, Size n)
{
	int32		n_outputs = state->pass.options.sgd.loss.n_classes;

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
	EpochState *state = get_state(fcinfo, &first);
	DpmlPassStart start = {0};
	const double *x;
	double		y;
	int32		n = 0;

	if (first && !PG_ARGISNULL(3))
	{
		start.sgd.weights = dpml_float8_argument(PG_GETARG_ARRAYTYPE_P(3), "start", &start.n_weights);
		n = features_of_start(state, start.n_weights);
	}
	else if (first)
		n = state->pass.options.sgd.n_features;
	if (!state->pass.started && n == 0 && !PG_ARGISNULL(1))
		n = dpml_row_form_length(PG_GETARG_DATUM(1));
	if (!state->pass.started && n > 0)
		start_rows(state, &start, n);
	if (!state->pass.started)
	{
		state->waiting++;
		PG_RETURN_POINTER(state);
	}

	CHECK_FOR_INTERRUPTS();
	x = dpml_row_form_read(&state->form, &fcinfo->args[1], &fcinfo->args[2], &y);
	dpml_sgd_row(&state->pass.sgd, x, y);
	PG_RETURN_POINTER(state);
}

/* (internal, block_no int4, block bytea, start dpml.epoch, options jsonb); the start is read from the first block. */
Datum
dpml_sgd_blocks_step(PG_FUNCTION_ARGS)
{
	bool		first;
	EpochState *state = get_state(fcinfo, &first);
	DpmlBlock	block;
	int32		n;

	dpml_pass_check_number(&fcinfo->args[1], state->next_block);
	dpml_pass_open_block(&block, &state->pass, &fcinfo->args[2], state->next_block);
	if (first)
	{
		DpmlPassStart start;

		dpml_pass_read_start(&start, &fcinfo->args[3]);
		dpml_pass_start(&state->pass, &start, block.n_features);
	}
	for (int32 i = 0; i < block.n_rows; i += n)
	{
		n = dpml_pass_piece(&state->pass, block.n_rows - i);
		dpml_sgd_block(&state->pass.sgd, &block, i, n);
	}
	state->next_block++;
	PG_RETURN_POINTER(state);
}

/* Without a row there is no start to return either: weights are NULL. */
Datum
dpml_sgd_final(PG_FUNCTION_ARGS)
{
	EpochState *state = PG_ARGISNULL(0) ? NULL : (EpochState *) PG_GETARG_POINTER(0);
	int64		rows = 0;
	int64		steps = 0;

	(void) dpml_aggregate_context(fcinfo, "sgd_epoch");
	if (state != NULL)
	{
		int32		b = state->pass.options.sgd.batch_size;

		rows = state->pass.started ? state->pass.sgd.rows : state->waiting;
		steps = (state->waiting + b - 1) / b;
	}
	PG_RETURN_DATUM(dpml_pass_result(fcinfo, (DpmlPass *) state, steps, rows));
}
