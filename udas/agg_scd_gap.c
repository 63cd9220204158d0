/* SPDX-License-Identifier: PostgreSQL */
/* dpml.scd_gap: the sums over packed rows that the duality gap of coordinate descent is made of. */
#include "compat.h"

#include <math.h>

#include "utils/array.h"

#include "duals.h"
#include "options_scd.h"
#include "sums_state.h"
#include "support.h"

#include "kernels/dual.h"

/* Kept in fn_extra of the transition function: the options last seen. */
typedef struct GapCall
{
	Jsonb	   *source;			/* as given; NULL without */
	DpmlLoss	loss;
	double		shrink;			/* 1 / (lambda n) */
	double	   *zeros;			/* duals of a block that comes without */
	int32		n_zeros;
} GapCall;

DPML_FUNCTION(dpml_scd_gap_transition);
DPML_FUNCTION(dpml_scd_gap_combine);
DPML_FUNCTION(dpml_scd_gap_final);

/* The options of this row, and room for n_rows zeros. */
static GapCall *
get_call(FunctionCallInfo fcinfo, Jsonb *source, int32 n_rows)
{
	GapCall    *call = fcinfo->flinfo->fn_extra;
	MemoryContext context = fcinfo->flinfo->fn_mcxt;

	if (call == NULL)
	{
		call = MemoryContextAllocZero(context, sizeof(GapCall));
		fcinfo->flinfo->fn_extra = call;
	}
	if (unlikely(call->source == NULL || !dpml_same_bytes(call->source, source)))
	{
		DpmlPassOptions pass;
		DpmlScdPassOptions options;

		dpml_scd_options_parse(&pass, &options, source, DPML_SCD_GAP);
		if (call->source != NULL)
			pfree(call->source);
		call->source = dpml_copy_jsonb(context, source);
		call->loss = options.scd.loss;
		call->shrink = 1.0 / (options.scd.lambda * options.scd.n);
	}
	if (n_rows > call->n_zeros)
	{
		if (call->zeros != NULL)
			pfree(call->zeros);
		call->zeros = NULL;
		call->n_zeros = 0;
		call->zeros = dpml_alloc(context, (Size) n_rows * sizeof(double));
		call->n_zeros = n_rows;
	}
	return call;
}

/* A state of zeros for the weights that v of the group's first row stands for. */
static DpmlSums *
make_sums(FunctionCallInfo fcinfo, const GapCall *call, int32 n_features)
{
	Size		n;
	const double *v;
	double	   *weights;

	if (PG_ARGISNULL(3))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("v must not be null")));
	v = dpml_float8_argument(PG_GETARG_ARRAYTYPE_P(3), "v", &n);
	if (n != (Size) n_features)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("v must have %d elements, one a feature of the block, not %zu", n_features, n)));
	weights = palloc(n * sizeof(double));
	for (Size i = 0; i < n; i++)
		weights[i] = call->shrink * v[i];
	return dpml_sums_create(DPML_SUMS_GAP, DPML_DUAL_SUMS, 0, weights, n, call->source);
}

/* (state bytea, block bytea, duals bytea, v float8[], options jsonb); v is read from the group's first row. */
Datum
dpml_scd_gap_transition(PG_FUNCTION_ARGS)
{
	Jsonb	   *source;
	DpmlBlock	block;
	GapCall    *call;
	DpmlSums   *sums;
	const char *given;
	double	   *duals;
	int32		n;

	(void) dpml_aggregate_context(fcinfo, "scd_gap");
	source = dpml_options_argument(fcinfo, 4, NULL);
	dpml_block_argument(&block, &fcinfo->args[1]);
	given = dpml_duals_argument(&fcinfo->args[2], block.n_rows);
	call = get_call(fcinfo, source, block.n_rows);
	if (PG_ARGISNULL(0))
		sums = make_sums(fcinfo, call, block.n_features);
	else
	{
		sums = dpml_sums_argument(fcinfo, 0, DPML_SUMS_GAP);
		if (sums->n_first != DPML_DUAL_SUMS || sums->n_second != 0)
			dpml_sums_reject(DPML_SUMS_GAP);
		if (sums->n_weights != block.n_features)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("block has %d features, v has %d", block.n_features, sums->n_weights)));
		dpml_sums_check_options(sums, source);
	}

	duals = call->zeros;
	if (given != NULL)
	{
		duals = dpml_alloc(CurrentMemoryContext, (Size) block.n_rows * sizeof(double));
		memcpy(duals, given, (Size) block.n_rows * sizeof(double));
	}
	for (int32 i = 0; i < block.n_rows; i += n)
	{
		n = Min(dpml_sums_piece(block.n_features), block.n_rows - i);
		dpml_dual_sums(&call->loss, dpml_sums_weights(sums), &block, i, n, duals, dpml_sums_low(sums));
		dpml_sums_added(sums, n);
	}
	if (given != NULL)
		pfree(duals);
	PG_RETURN_POINTER(sums);
}

Datum
dpml_scd_gap_combine(PG_FUNCTION_ARGS)
{
	return dpml_sums_combine(fcinfo, DPML_SUMS_GAP);
}

/* {sum of primal losses, sum of dual values, rows}; NULL without a row. */
Datum
dpml_scd_gap_final(PG_FUNCTION_ARGS)
{
	const double *high;
	const double *low;
	DpmlSums   *sums;
	double		result[3];

	(void) dpml_aggregate_context(fcinfo, "scd_gap");
	if (PG_ARGISNULL(0))
		PG_RETURN_NULL();
	sums = dpml_sums_argument(fcinfo, 0, DPML_SUMS_GAP);
	if (sums->n_first != DPML_DUAL_SUMS || sums->n_second != 0)
		dpml_sums_reject(DPML_SUMS_GAP);
	high = sums->data;
	low = dpml_sums_low(sums);
	result[0] = high[DPML_PRIMAL_LOSSES] + low[DPML_PRIMAL_LOSSES];
	result[1] = high[DPML_DUAL_VALUES] + low[DPML_DUAL_VALUES];
	if (high[DPML_INFEASIBLE_DUALS] + low[DPML_INFEASIBLE_DUALS] > 0.0)
		result[1] = -INFINITY;
	result[2] = (double) sums->rows;
	PG_RETURN_ARRAYTYPE_P(dpml_float8_array(result, 3));
}
