/* SPDX-License-Identifier: PostgreSQL */
/* dpml.loss: mean data loss + lambda/2 ||w||^2 over rows or packed blocks. */
#include "compat.h"

#include "miscadmin.h"
#include "utils/array.h"

#include "options_sgd.h"
#include "pass.h"
#include "rowform.h"
#include "support.h"

#include "kernels/norm.h"
#include "kernels/score.h"

typedef struct LossState
{
	DpmlPass	pass;
	double	   *weights;		/* K x d, from the first row */
	double	   *scores;			/* K */
	double		penalty;		/* lambda/2 ||w||^2 */
	double		sum;			/* of data losses */
	int64		rows;
	DpmlRowForm form;			/* row form only */
} LossState;

static const char name[] = "loss";

DPML_FUNCTION(dpml_loss_rows_transition);
DPML_FUNCTION(dpml_loss_blocks_transition);
DPML_FUNCTION(dpml_loss_final);

static void
take_weights(LossState *state, ArrayType *array)
{
	const DpmlPassOptions *options = &state->pass.options;
	MemoryContext context = state->pass.context;
	int32		n_outputs = options->loss.n_classes;
	Size		n;
	const double *weights = dpml_float8_argument(array, "weights", &n);
	double		norm;

	if (n % n_outputs != 0 || n / n_outputs > DPML_MAX_FEATURES ||
		(options->n_features != 0 && n / n_outputs != (Size) options->n_features))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("weights must have %d times the number of features elements", n_outputs)));
	dpml_pass_begin(&state->pass, (int32) (n / n_outputs));
	state->weights = dpml_alloc(context, n * sizeof(double));
	memcpy(state->weights, weights, n * sizeof(double));
	state->scores = dpml_alloc(context, (Size) n_outputs * sizeof(double));
	norm = dpml_norm((int64) n, weights);
	state->penalty = options->lambda > 0 ? 0.5 * options->lambda * norm * norm : 0.0;
}

/* The group's state; the weights come before the options, which are the last argument. */
static LossState *
get_state(FunctionCallInfo fcinfo, int options_argument)
{
	bool		first;
	LossState  *state = (LossState *) dpml_pass_state(fcinfo, name, options_argument, sizeof(LossState), &first);
	DpmlPass   *pass = &state->pass;
	DpmlSgdPassOptions unused;

	if (first)
	{
		if (PG_ARGISNULL(options_argument - 1))
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("weights must not be null")));
		dpml_sgd_options_parse(&pass->options, &unused, pass->source, DPML_FOR_LOSS);
		take_weights(state, PG_GETARG_ARRAYTYPE_P(options_argument - 1));
		dpml_row_form_init(&state->form, pass->context, pass->options.n_features, pass->options.loss.n_classes,
						   pass->options.clip_rows);
	}
	Assert(pass->begun && state->weights != NULL && state->rows >= 0);
	return state;
}

/* (internal, x float8[], y float8, weights float8[], options jsonb) */
Datum
dpml_loss_rows_transition(PG_FUNCTION_ARGS)
{
	LossState  *state = get_state(fcinfo, 4);
	const DpmlPassOptions *options = &state->pass.options;
	double		y;
	const double *x = dpml_row_form_read(&state->form, &fcinfo->args[1], &fcinfo->args[2], &y);

	CHECK_FOR_INTERRUPTS();
	state->sum += dpml_loss_sum_row(&options->loss, state->weights, options->n_features, x, y, state->scores);
	state->rows++;
	PG_RETURN_POINTER(state);
}

/* (internal, block bytea, weights float8[], options jsonb) */
Datum
dpml_loss_blocks_transition(PG_FUNCTION_ARGS)
{
	LossState  *state = get_state(fcinfo, 3);
	const DpmlPassOptions *options = &state->pass.options;
	DpmlBlock	block;
	int32		n;

	dpml_block_argument(&block, &fcinfo->args[1]);
	if (block.n_features != options->n_features)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("block has %d features, the weights have %d", block.n_features, options->n_features)));
	for (int32 i = 0; i < block.n_rows; i += n)
	{
		n = dpml_pass_piece(&state->pass, block.n_rows - i);
		state->sum += dpml_loss_sum_block(&options->loss, state->weights, &block, i, n, state->scores);
	}
	state->rows += block.n_rows;
	PG_RETURN_POINTER(state);
}

/* NULL without a row. */
Datum
dpml_loss_final(PG_FUNCTION_ARGS)
{
	LossState  *state = (LossState *) dpml_pass_end(fcinfo, name);

	if (state == NULL || state->rows == 0)
		PG_RETURN_NULL();
	PG_RETURN_FLOAT8(state->sum / (double) state->rows + state->penalty);
}
