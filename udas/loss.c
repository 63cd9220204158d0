/* SPDX-License-Identifier: PostgreSQL */
/* dpml.loss: mean data loss + lambda/2 ||w||^2 over rows or packed blocks. */
#include "dpml.h"
#include "rowform.h"

#include "miscadmin.h"

typedef struct LossState
{
	Jsonb	   *source;			/* the options as given, to refuse ones that vary */
	DpmlOptions options;		/* n_features is that of the weights */
	double	   *weights;		/* K x d, from the first row */
	double	   *scores;			/* K */
	double		penalty;		/* lambda/2 ||w||^2 */
	double		sum;			/* of data losses */
	int64		rows;
	DpmlRowForm form;			/* row form only */
} LossState;

DPML_FUNCTION(dpml_loss_rows_step);
DPML_FUNCTION(dpml_loss_blocks_step);
DPML_FUNCTION(dpml_loss_final);

static void
take_weights(LossState *state, MemoryContext context, ArrayType *array)
{
	DpmlSgdOptions *options = &state->options.sgd;
	int32		n_outputs = options->loss.n_classes;
	Size		n;
	const double *weights = dpml_float8_argument(array, "weights", &n);
	double		norm;

	if (n % n_outputs != 0 || n / n_outputs > DPML_MAX_FEATURES ||
		(options->n_features != 0 && n / n_outputs != (Size) options->n_features))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("weights must have %d times the number of features elements", n_outputs)));
	options->n_features = (int32) (n / n_outputs);
	state->weights = dpml_alloc(context, n * sizeof(double));
	memcpy(state->weights, weights, n * sizeof(double));
	state->scores = dpml_alloc(context, (Size) n_outputs * sizeof(double));
	norm = dpml_norm((int64) n, weights);
	state->penalty = options->lambda > 0 ? 0.5 * options->lambda * norm * norm : 0.0;
}

static LossState *
make_state(MemoryContext context, FunctionCallInfo fcinfo, int weights_argument, Jsonb *source)
{
	LossState  *state = MemoryContextAllocZero(context, sizeof(LossState));

	if (PG_ARGISNULL(weights_argument))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("weights must not be null")));
	state->source = dpml_copy_jsonb(context, source);
	dpml_options_parse(&state->options, source, DPML_FOR_LOSS);
	take_weights(state, context, PG_GETARG_ARRAYTYPE_P(weights_argument));
	dpml_row_form_init(&state->form, context, &state->options, state->options.sgd.n_features);
	return state;
}

/* The group's state; weights come before the options, which are the last argument. */
static LossState *
get_state(FunctionCallInfo fcinfo, int options_argument)
{
	MemoryContext context = dpml_aggregate_context(fcinfo, "loss");
	LossState  *state;

	if (PG_ARGISNULL(0))
		return make_state(context, fcinfo, options_argument - 1,
						  dpml_options_argument(fcinfo, options_argument, NULL));
	state = (LossState *) PG_GETARG_POINTER(0);
	(void) dpml_options_argument(fcinfo, options_argument, state->source);
	return state;
}

/* (internal, x float8[], y float8, weights float8[], options jsonb) */
Datum
dpml_loss_rows_step(PG_FUNCTION_ARGS)
{
	LossState  *state = get_state(fcinfo, 4);
	const DpmlSgdOptions *options = &state->options.sgd;
	double		y;
	const double *x = dpml_row_form_read(&state->form, &fcinfo->args[1], &fcinfo->args[2], &y);

	CHECK_FOR_INTERRUPTS();
	state->sum += dpml_loss_sum_row(&options->loss, state->weights, options->n_features, x, y, state->scores);
	state->rows++;
	PG_RETURN_POINTER(state);
}

/* (internal, block bytea, weights float8[], options jsonb) */
Datum
dpml_loss_blocks_step(PG_FUNCTION_ARGS)
{
	LossState  *state = get_state(fcinfo, 3);
	const DpmlSgdOptions *options = &state->options.sgd;
	DpmlBlock	block;
	int32		n;

	if (PG_ARGISNULL(1))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("block must not be null")));
	dpml_open_block(&block, PG_GETARG_DATUM(1));
	if (block.n_features != options->n_features)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("block has %d features, the weights have %d", block.n_features, options->n_features)));
	for (int32 i = 0; i < block.n_rows; i += n)
	{
		n = dpml_rows_piece((int64) options->loss.n_classes * options->n_features, block.n_rows - i);
		state->sum += dpml_loss_sum_block(&options->loss, state->weights, &block, i, n, state->scores);
	}
	state->rows += block.n_rows;
	PG_RETURN_POINTER(state);
}

/* NULL without a row. */
Datum
dpml_loss_final(PG_FUNCTION_ARGS)
{
	LossState  *state;

	(void) dpml_aggregate_context(fcinfo, "loss");
	if (PG_ARGISNULL(0))
		PG_RETURN_NULL();
	state = (LossState *) PG_GETARG_POINTER(0);
	if (state->rows == 0)
		PG_RETURN_NULL();
	PG_RETURN_FLOAT8(state->sum / (double) state->rows + state->penalty);
}
