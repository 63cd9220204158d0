/* SPDX-License-Identifier: PostgreSQL */
/*
 * dpml.sgd_epoch: one pass of SGD over rows or packed blocks; dpml.sgd_allocated: one over
 * blocks whose batches have given sizes (privacy/README.md, "Batches by random allocation").
 *
 * A group's whole state lives in the aggregate context: the parsed options
 * with the bytes they came from, and the kernel's state in one allocation of
 * its own.  Nothing is kept in fn_extra, so passes cannot share anything.
 * Temporaries of a row stay in the caller's per-row context.
 */
#include "compat.h"

#include "miscadmin.h"
#include "utils/array.h"

#include "rowform.h"
#include "sgd_pass.h"
#include "support.h"

typedef struct EpochState
{
	DpmlSgdPass sgd_pass;
	int64		waiting;		/* zero rows seen before the number of features was known */
	DpmlRowForm form;			/* row form only */
} EpochState;

static const char name[] = "sgd_epoch";
static const char allocated_name[] = "sgd_allocated";

DPML_FUNCTION(dpml_sgd_rows_transition);
DPML_FUNCTION(dpml_sgd_blocks_transition);
DPML_FUNCTION(dpml_sgd_allocated_transition);
DPML_FUNCTION(dpml_sgd_allocated_final);
DPML_FUNCTION(dpml_sgd_final);

static EpochState *
get_state(FunctionCallInfo fcinfo, bool *first)
{
	return (EpochState *) dpml_sgd_pass_state(fcinfo, name, 4, DPML_FOR_EPOCH, sizeof(EpochState), first);
}

static void
start_rows(EpochState *state, DpmlSgdPassStart *start, int32 n_features)
{
	const DpmlPass *pass = &state->sgd_pass.pass;

	dpml_sgd_pass_start(&state->sgd_pass, start, n_features);
	dpml_row_form_init(&state->form, pass->context, n_features, pass->options.loss.n_classes,
					   pass->options.clip_rows);
	for (; state->waiting > 0; state->waiting--)
	{
		CHECK_FOR_INTERRUPTS();
		dpml_sgd_row(&state->sgd_pass.sgd, state->form.zero, 0.0);
	}
}

/* Features that a start with n weights has. */
static int32
features_of_start(const EpochState *state, Size n)
{
	int32		n_outputs = state->sgd_pass.pass.options.loss.n_classes;

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
dpml_sgd_rows_transition(PG_FUNCTION_ARGS)
{
	bool		first;
	EpochState *state = get_state(fcinfo, &first);
	DpmlSgdPassStart start = {0};
	const double *x;
	double		y;
	int32		n = 0;

	if (first && !PG_ARGISNULL(3))
	{
		start.sgd.weights = dpml_float8_argument(PG_GETARG_ARRAYTYPE_P(3), "start", &start.n_weights);
		n = features_of_start(state, start.n_weights);
	}
	else if (first)
		n = state->sgd_pass.pass.options.n_features;
	if (!state->sgd_pass.pass.begun && n == 0 && !PG_ARGISNULL(1))
		n = dpml_row_form_length(PG_GETARG_DATUM(1));
	if (!state->sgd_pass.pass.begun && n > 0)
		start_rows(state, &start, n);
	if (!state->sgd_pass.pass.begun)
	{
		state->waiting++;
		PG_RETURN_POINTER(state);
	}

	CHECK_FOR_INTERRUPTS();
	x = dpml_row_form_read(&state->form, &fcinfo->args[1], &fcinfo->args[2], &y);
	dpml_sgd_row(&state->sgd_pass.sgd, x, y);
	PG_RETURN_POINTER(state);
}

/* Take a block, the second and third argument; the start, the fourth, and the sizes are read from the first one. */
static void
take_block(DpmlSgdPass *sgd_pass, FunctionCallInfo fcinfo, bool first, const NullableDatum *sizes)
{
	DpmlPass   *pass = &sgd_pass->pass;
	DpmlBlock	block;
	int32		n;

	dpml_pass_next_block(&block, pass, &fcinfo->args[1], &fcinfo->args[2]);
	if (first)
	{
		DpmlSgdPassStart start;

		dpml_sgd_pass_read_start(&start, &fcinfo->args[3]);
		if (sizes != NULL)
			dpml_sgd_pass_read_sizes(sgd_pass, &start, sizes);
		dpml_sgd_pass_start(sgd_pass, &start, block.n_features);
	}
	for (int32_t i = 0; i < block.n_rows; i += n)
	{
		n = dpml_pass_piece(pass, block.n_rows - i);
		dpml_sgd_block(&sgd_pass->sgd, &block, i, n);
	}
}

/* (internal, block_no int4, block bytea, start dpml.epoch, options jsonb) */
Datum
dpml_sgd_blocks_transition(PG_FUNCTION_ARGS)
{
	bool		first;
	EpochState *state = get_state(fcinfo, &first);

	take_block(&state->sgd_pass, fcinfo, first, NULL);
	PG_RETURN_POINTER(state);
}

/* (internal, block_no int4, block bytea, start dpml.epoch, sizes int4[], options jsonb) */
Datum
dpml_sgd_allocated_transition(PG_FUNCTION_ARGS)
{
	bool		first;
	DpmlSgdPass *sgd_pass = dpml_sgd_pass_state(fcinfo, allocated_name, 5, DPML_FOR_EPOCH, sizeof(EpochState), &first);

	take_block(sgd_pass, fcinfo, first, &fcinfo->args[4]);
	PG_RETURN_POINTER(sgd_pass);
}

/* Without a row there is no start to return either: weights are NULL. */
Datum
dpml_sgd_final(PG_FUNCTION_ARGS)
{
	EpochState *state = (EpochState *) dpml_sgd_pass_end(fcinfo, name);
	int64		rows = 0;
	int64		steps = 0;

	if (state != NULL)
	{
		int32		b = state->sgd_pass.options.sgd.batch_size;

		rows = state->sgd_pass.pass.begun ? state->sgd_pass.sgd.rows : state->waiting;
		steps = (state->waiting + b - 1) / b;
	}
	PG_RETURN_DATUM(dpml_sgd_pass_result(fcinfo, (DpmlSgdPass *) state, steps, rows));
}

Datum
dpml_sgd_allocated_final(PG_FUNCTION_ARGS)
{
	DpmlSgdPass *sgd_pass = dpml_sgd_pass_end(fcinfo, allocated_name);

	if (sgd_pass != NULL && sgd_pass->pass.begun && !dpml_sgd_is_whole(&sgd_pass->sgd))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("the blocks have another number of units than sizes add up to")));
	PG_RETURN_DATUM(dpml_sgd_pass_result(fcinfo, sgd_pass, 0, sgd_pass != NULL ? sgd_pass->sgd.rows : 0));
}
