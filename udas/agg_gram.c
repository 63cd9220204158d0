/* SPDX-License-Identifier: PostgreSQL */
/* dpml.gram: second moments of packed rows, or the Hessian of a loss at weights. */
#include "compat.h"

#include "options.h"
#include "options_gradient.h"
#include "sums_state.h"
#include "support.h"

#include "kernels/gram.h"

/* Kept in fn_extra of a transition function: working memory, and the loss of the options last seen. */
typedef struct GramCall
{
	Jsonb	   *source;			/* the options that were parsed; NULL without */
	DpmlLoss	loss;
	int32		n_features;		/* that work is for */
	double	   *work;			/* the kernel's memory */
} GramCall;

DPML_FUNCTION(dpml_gram_transition);
DPML_FUNCTION(dpml_hessian_transition);
DPML_FUNCTION(dpml_gram_combine);
DPML_FUNCTION(dpml_gram_final);

static GramCall *
get_call(FunctionCallInfo fcinfo, int32 n_features)
{
	GramCall   *call = fcinfo->flinfo->fn_extra;
	MemoryContext context = fcinfo->flinfo->fn_mcxt;

	if (n_features > DPML_GRAM_MAX_FEATURES)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("block has %d features, dpml.gram takes at most %d", n_features, DPML_GRAM_MAX_FEATURES),
				 errhint("Project the features to fewer: \"projection\" in the specification of dpml.encode.")));
	if (call == NULL)
	{
		call = MemoryContextAllocZero(context, sizeof(GramCall));
		fcinfo->flinfo->fn_extra = call;
	}
	if (call->n_features != n_features)
	{
		if (call->work != NULL)
			pfree(call->work);
		call->work = NULL;
		call->n_features = 0;
		call->work = dpml_alloc(context, (Size) dpml_gram_memory(n_features) * sizeof(double));
		call->n_features = n_features;
	}
	return call;
}

/* Rows to take at once, of a product of matrices, which takes an eighth of the time of products one by one. */
static int32
piece(const DpmlSums *sums)
{
	return dpml_sums_piece(sums->n_first / 8);
}

static Size
triangle(int32 n_features)
{
	return (Size) n_features * ((Size) n_features + 1) / 2;
}

/* The state in argument 0, of blocks with so many features. */
static DpmlSums *
get_state(FunctionCallInfo fcinfo, int32 n_features, int32 n_second)
{
	DpmlSums   *sums = dpml_sums_argument(fcinfo, 0, DPML_SUMS_GRAM);

	if (sums->n_first != (int64) triangle(n_features))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("block has %d features, the blocks before it had another number", n_features)));
	if (sums->n_second != n_second || sums->n_weights != n_features - n_second)
		dpml_sums_reject(DPML_SUMS_GRAM);
	return sums;
}

/* (state bytea, block bytea) */
Datum
dpml_gram_transition(PG_FUNCTION_ARGS)
{
	DpmlBlock	block;
	GramCall   *call;
	DpmlSums   *sums;
	double	   *low;
	int32		n;

	(void) dpml_aggregate_context(fcinfo, "gram");
	dpml_block_argument(&block, &fcinfo->args[1]);
	call = get_call(fcinfo, block.n_features);
	if (PG_ARGISNULL(0))
		sums = dpml_sums_create(DPML_SUMS_GRAM, triangle(block.n_features), (Size) block.n_features, NULL, 0, NULL);
	else
		sums = get_state(fcinfo, block.n_features, block.n_features);

	low = dpml_sums_low(sums);
	for (int32 i = 0; i < block.n_rows; i += n)
	{
		n = Min(piece(sums), block.n_rows - i);
		dpml_gram_rows(&block, i, n, call->work, low, low + sums->n_first);
		dpml_sums_added(sums, n);
	}
	PG_RETURN_POINTER(sums);
}

static void
parse_options(GramCall *call, MemoryContext context, Jsonb *source)
{
	DpmlLoss	loss;

	if (likely(call->source != NULL && dpml_same_bytes(call->source, source)))
		return;
	dpml_hessian_options_parse(&loss, source);
	if (call->source != NULL)
		pfree(call->source);
	call->source = dpml_copy_jsonb(context, source);
	call->loss = loss;
}

/* A state of zeros for the weights of the group's first row. */
static DpmlSums *
make_hessian(FunctionCallInfo fcinfo, const GramCall *call)
{
	Size		n;
	const double *weights;

	if (PG_ARGISNULL(2))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("weights must not be null")));
	weights = dpml_float8_argument(PG_GETARG_ARRAYTYPE_P(2), "weights", &n);
	if (n != (Size) call->n_features)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("weights must have %d elements, one a feature of the block, not %zu", call->n_features, n)));
	return dpml_sums_create(DPML_SUMS_GRAM, triangle(call->n_features), 0, weights, n, call->source);
}

/* (state bytea, block bytea, weights float8[], options jsonb); weights are read from the group's first row. */
Datum
dpml_hessian_transition(PG_FUNCTION_ARGS)
{
	Jsonb	   *source;
	DpmlBlock	block;
	GramCall   *call;
	DpmlSums   *sums;
	int32		n;

	(void) dpml_aggregate_context(fcinfo, "gram");
	source = dpml_options_argument(fcinfo, 3, NULL);
	dpml_block_argument(&block, &fcinfo->args[1]);
	call = get_call(fcinfo, block.n_features);
	parse_options(call, fcinfo->flinfo->fn_mcxt, source);
	if (PG_ARGISNULL(0))
		sums = make_hessian(fcinfo, call);
	else
	{
		sums = get_state(fcinfo, block.n_features, 0);
		dpml_sums_check_options(sums, source);
	}

	for (int32 i = 0; i < block.n_rows; i += n)
	{
		n = Min(piece(sums), block.n_rows - i);
		dpml_hessian_rows(&call->loss, dpml_sums_weights(sums), &block, i, n, call->work, dpml_sums_low(sums));
		dpml_sums_added(sums, n);
	}
	PG_RETURN_POINTER(sums);
}

Datum
dpml_gram_combine(PG_FUNCTION_ARGS)
{
	return dpml_sums_combine(fcinfo, DPML_SUMS_GRAM);
}

Datum
dpml_gram_final(PG_FUNCTION_ARGS)
{
	return dpml_sums_final(fcinfo, DPML_SUMS_GRAM);
}
