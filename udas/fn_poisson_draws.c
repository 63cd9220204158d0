/* SPDX-License-Identifier: PostgreSQL */
/*
 * dpml.poisson_steps: for every unit of a block, the steps whose Poisson batch it is
 * in (privacy/README.md, "Poisson batches").
 */
#include "compat.h"

#include "funcapi.h"
#include "miscadmin.h"

#include "support.h"

#include "kernels/random.h"

DPML_FUNCTION(dpml_poisson_draws);

/* A call of dpml.poisson_steps; its coins are its own and end with it. */
typedef struct DrawsCall
{
	DpmlBlock	block;
	DpmlRng		coins;
	double		rate;			/* dpml_coin_rate of the sampling probability */
	int64		steps;
	int64		step;			/* last one drawn for the unit */
	int32		first;			/* rows of the unit: first .. end - 1 */
	int32		end;
	bool		counted;		/* the rows of the block were returned */
	uint32	   *starts;			/* room for views of the block */
	uint32	   *row_end;
} DrawsCall;

static int32
unit_end(const DpmlBlock *block, int32 first)
{
	int32		end = first + 1;

	while (end < block->n_rows && !dpml_block_starts_unit(block, end))
		end++;
	return end;
}

static DrawsCall *
start_draws(FunctionCallInfo fcinfo)
{
	DrawsCall  *call = palloc0(sizeof(DrawsCall));
	double		sampling = PG_GETARG_FLOAT8(2);
	uint8		key[DPML_KEY_BYTES];

	call->steps = PG_GETARG_INT32(1);
	call->rate = dpml_coin_rate(sampling);
	if (call->steps < 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("steps must be an integer >= 1")));
	if (!(sampling > 0.0 && sampling <= 1.0))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("sampling must be a number > 0 and <= 1")));
	dpml_open_block(&call->block, PointerGetDatum(PG_GETARG_BYTEA_P_COPY(0)));
	if (call->block.n_rows > 0 && !dpml_block_starts_unit(&call->block, 0))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("packed must begin with the first row of a unit: a unit is drawn as a whole"),
				 errhint("Let dpml.pack make blocks that have room for whole units, or use dpml.sgd_poisson.")));
	call->starts = palloc(((Size) call->block.n_rows + 31) / 32 * sizeof(uint32) + sizeof(uint32));
	call->row_end = palloc(((Size) call->block.n_rows + 1) * sizeof(uint32));
	if (call->block.n_rows > 0)
		call->end = unit_end(&call->block, 0);
	dpml_random_key(key);
	dpml_rng_start(&call->coins, key);
	explicit_bzero(key, sizeof(key));
	return call;
}

/* A row of the result: n rows of the block from first on, in a step. */
static Datum
step_row(const DrawsCall *call, TupleDesc desc, int64 step, int32 first, int32 n, NullableDatum rows)
{
	DpmlBlock	part;
	Datum		values[3] = {0};
	bool		nulls[3] = {false, false, rows.isnull};

	dpml_block_part(&call->block, first, n, call->starts, call->row_end, &part);
	values[0] = Int32GetDatum((int32) step);
	values[1] = PointerGetDatum(dpml_make_block(&part));
	values[2] = rows.value;
	return HeapTupleGetDatum(heap_form_tuple(desc, values, nulls));
}

/*
 * (packed bytea, steps int4, sampling float8) -> table (step int4, block bytea, rows int4).
 * The last row of a call is an empty block, with how many rows could be drawn: a
 * pass has it even if no unit is drawn, and knows that no block is missing.  A key
 * a call: it is never shared, whatever the plan and its workers are.
 */
Datum
dpml_poisson_draws(PG_FUNCTION_ARGS)
{
	FuncCallContext *context;
	DrawsCall  *call;

	if (SRF_IS_FIRSTCALL())
	{
		MemoryContext old;
		TupleDesc	desc;

		context = SRF_FIRSTCALL_INIT();
		old = MemoryContextSwitchTo(context->multi_call_memory_ctx);
		if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
			elog(ERROR, "the result of dpml.poisson_steps is not a row type");
		context->tuple_desc = BlessTupleDesc(desc);
		context->user_fctx = start_draws(fcinfo);
		MemoryContextSwitchTo(old);
	}
	context = SRF_PERCALL_SETUP();
	call = context->user_fctx;
	while (call->first < call->block.n_rows)
	{
		int64		misses = dpml_coin_misses(&call->coins, call->rate);

		CHECK_FOR_INTERRUPTS();
		if (misses < call->steps - call->step)
		{
			call->step += misses + 1;
			SRF_RETURN_NEXT(context, step_row(call, context->tuple_desc, call->step, call->first,
											  call->end - call->first, (NullableDatum) {.isnull = true}));
		}
		call->step = 0;
		call->first = call->end;
		if (call->first < call->block.n_rows)
			call->end = unit_end(&call->block, call->first);
	}
	if (!call->counted)
	{
		NullableDatum rows = {.value = Int32GetDatum(call->block.n_rows)};

		call->counted = true;
		SRF_RETURN_NEXT(context, step_row(call, context->tuple_desc, call->steps, 0, 0, rows));
	}
	SRF_RETURN_DONE(context);
}
