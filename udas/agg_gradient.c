/* SPDX-License-Identifier: PostgreSQL */
/*
 * dpml.gradient: sums of gradients and losses over packed blocks.
 *
 * All that a group knows is in its state (sums_state.h).  What depends on the options
 * alone is kept in fn_extra, for the options that were last seen.
 */
#include "compat.h"

#include "options.h"
#include "options_gradient.h"
#include "sums_state.h"
#include "support.h"

#include "kernels/gradient.h"

typedef struct GradientCall
{
	Jsonb	   *source;			/* the options that were parsed */
	DpmlGradientOptions options;	/* n_features is that of work */
	double	   *work;			/* the kernel's memory; NULL until n_features is known */
} GradientCall;

DPML_FUNCTION(dpml_gradient_transition);
DPML_FUNCTION(dpml_gradient_combine);
DPML_FUNCTION(dpml_gradient_final);

/* The call site's options, parsed. */
static GradientCall *
get_call(FunctionCallInfo fcinfo, Jsonb *source)
{
	GradientCall *call = fcinfo->flinfo->fn_extra;
	DpmlGradientOptions options;

	if (likely(call != NULL && dpml_same_bytes(call->source, source)))
		return call;
	dpml_gradient_options_parse(&options, source);
	if (call == NULL)
		call = MemoryContextAllocZero(fcinfo->flinfo->fn_mcxt, sizeof(GradientCall));
	else
	{
		pfree(call->source);
		if (call->work != NULL)
			pfree(call->work);
	}
	call->source = dpml_copy_jsonb(fcinfo->flinfo->fn_mcxt, source);
	call->options = options;
	call->work = NULL;
	fcinfo->flinfo->fn_extra = call;
	return call;
}

/* The kernel's memory for so many features: zero, as the kernel leaves it. */
static void
set_features(GradientCall *call, MemoryContext context, int32 n_features)
{
	if (likely(call->work != NULL && call->options.n_features == n_features))
		return;
	if (call->work != NULL)
		pfree(call->work);
	call->work = NULL;
	call->options.n_features = n_features;
	call->work = dpml_alloc(context, (Size) dpml_gradient_memory(&call->options) * sizeof(double));
}

/* A state of zeros for the weights of the group's first row. */
static DpmlSums *
make_state(FunctionCallInfo fcinfo, const GradientCall *call, int32 n_features)
{
	const DpmlGradientOptions *options = &call->options;
	Size		n_outputs = (Size) options->n_models * (Size) options->loss.n_classes;
	Size		n;
	const double *weights;

	if (PG_ARGISNULL(2))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("weights must not be null")));
	/* where products with zeros are left out, a score would depend on the rows beside it otherwise */
	weights = dpml_finite_argument(PG_GETARG_ARRAYTYPE_P(2), "weights", &n);
	if (n != n_outputs * (Size) n_features)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("weights must have %zu elements (%d x %d x %d: models, classes, features of the block), not %zu",
						n_outputs * (Size) n_features, options->n_models, options->loss.n_classes, n_features, n)));
	return dpml_sums_create(DPML_SUMS_GRADIENT,
							options->gradient ? (Size) options->loss.n_classes * (Size) n_features : 0,
							options->losses != DPML_NO_LOSSES ? (Size) options->n_models : 0,
							weights, n, call->source);
}

/* A state must be one of these options and of blocks with so many features. */
static void
check_state(const DpmlSums *sums, const GradientCall *call, int32 n_features)
{
	const DpmlGradientOptions *options = &call->options;
	int64		n_gradient = (int64) options->loss.n_classes * n_features;

	dpml_sums_check_options(sums, call->source);
	if (sums->n_weights != options->n_models * n_gradient)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("block has %d features, the weights have another number", n_features)));
	if ((sums->by_feature != 0 && sums->by_feature != n_features) ||
		sums->n_first != (options->gradient ? n_gradient : 0) ||
		sums->n_second != (options->losses != DPML_NO_LOSSES ? options->n_models : 0))
		dpml_sums_reject(DPML_SUMS_GRADIENT);
}

/* (state bytea, block bytea, weights float8[], options jsonb); weights are read from the group's first row. */
Datum
dpml_gradient_transition(PG_FUNCTION_ARGS)
{
	GradientCall *call;
	DpmlBlock	block;
	DpmlSums   *sums;
	double	   *low;
	int64		row_products;
	int32		n;

	(void) dpml_aggregate_context(fcinfo, "gradient");
	call = get_call(fcinfo, dpml_options_argument(fcinfo, 3, NULL));
	dpml_block_argument(&block, &fcinfo->args[1]);
	if (PG_ARGISNULL(0))
		sums = make_state(fcinfo, call, block.n_features);
	else
	{
		sums = dpml_sums_argument(fcinfo, 0, DPML_SUMS_GRADIENT);
		check_state(sums, call, block.n_features);
	}
	set_features(call, fcinfo->flinfo->fn_mcxt, block.n_features);
	dpml_sums_turn(sums, block.n_features, dpml_gradient_by_feature(&call->options, block.kind));

	low = dpml_sums_low(sums);
	row_products = 2 * (int64) call->options.n_models * call->options.loss.n_classes * block.n_features;
	for (int32 i = 0; i < block.n_rows; i += n)
	{
		n = Min(dpml_sums_piece(row_products), block.n_rows - i);
		dpml_gradient_rows(&call->options, dpml_sums_weights(sums), &block, i, n, call->work, low, low + sums->n_first);
		dpml_sums_added(sums, n);
	}
	PG_RETURN_POINTER(sums);
}

Datum
dpml_gradient_combine(PG_FUNCTION_ARGS)
{
	return dpml_sums_combine(fcinfo, DPML_SUMS_GRADIENT);
}

Datum
dpml_gradient_final(PG_FUNCTION_ARGS)
{
	return dpml_sums_final(fcinfo, DPML_SUMS_GRADIENT);
}
