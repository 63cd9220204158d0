/* SPDX-License-Identifier: PostgreSQL */
/*
 * Steps of SGD over Poisson batches, in two ways of one distribution
 * (privacy/README.md, "Poisson batches"): dpml.sgd_poisson takes all blocks into
 * memory and reads rows at random; dpml.poisson_steps draws for every unit the
 * steps it is in, and dpml.sgd_poisson_steps takes them sorted by step.
 */
#include "epoch.h"

#ifndef WIN32
#include <sys/mman.h>
#endif

#include "funcapi.h"
#include "miscadmin.h"

#include "kernels/poisson.h"

/* Room for records is made in pieces: a quarter of all so far, and at least this. */
#define SMALLEST_PIECE ((Size) 1024 * 1024)
#define HUGE_PAGE ((Size) 2 * 1024 * 1024)
#define FIRST_ENTRIES 8192

typedef struct PoissonState
{
	DpmlPass	pass;
	int32		kind;			/* enum DpmlBlockKind of the first block */
	int64		n_blocks;
	const void **rows;			/* the record of each row */
	int64	   *units;			/* first row of each unit; NULL without units */
	int64		n_rows;
	int64		n_units;
	int64		max_rows;		/* room in rows */
	int64		max_units;
	char	   *free;			/* of the newest piece */
	Size		free_size;
	Size		records;		/* bytes of all pieces */
	Size		used;			/* bytes that records, rows and units need */
	DpmlPoisson poisson;
} PoissonState;

typedef struct PoissonStepsState
{
	DpmlPass	pass;
	int64		step;			/* whose batch is open, from 1 */
	int64		rows;			/* that could be drawn */
} PoissonStepsState;

DPML_FUNCTION(dpml_sgd_poisson_step);
DPML_FUNCTION(dpml_sgd_poisson_final);
DPML_FUNCTION(dpml_poisson_steps);
DPML_FUNCTION(dpml_sgd_poisson_steps_step);
DPML_FUNCTION(dpml_sgd_poisson_steps_final);

/* Rows are read at random: huge pages, where the system gives them, save most of the way to each. */
static void
ask_for_huge_pages(void *piece, Size size)
{
#ifdef MADV_HUGEPAGE
	char	   *first = (char *) TYPEALIGN(HUGE_PAGE, piece);

	if (first + HUGE_PAGE <= (char *) piece + size)
		(void) madvise(first, TYPEALIGN_DOWN(HUGE_PAGE, (char *) piece + size - first), MADV_HUGEPAGE);
#else
	(void) piece;
	(void) size;
#endif
}

/* Room for n elements of 8 bytes in an array that has room for *most. */
static void *
reserve(MemoryContext context, void *array, int64 n, int64 *most)
{
	if (n <= *most)
		return array;
	*most = Max(Max(2 * *most, n), FIRST_ENTRIES);
	if (array == NULL)
		array = MemoryContextAllocHuge(context, *most * 8);
	else
		array = repalloc_huge(array, *most * 8);
	ask_for_huge_pages(array, *most * 8);
	return array;
}

/* Count what a row needs more against dpml.work_mem, before it is taken. */
static void
count_memory(PoissonState *state, Size more)
{
	state->used += more;
	if (likely(state->used <= (Size) dpml_work_mem * 1024))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
			 errmsg("the packed rows need more memory than dpml.work_mem, %d kB", dpml_work_mem),
			 errhint("Raise dpml.work_mem, or use dpml.sgd_poisson_steps over dpml.poisson_steps, "
					 "which sorts within work_mem.")));
}

/* Room for a record of a multiple of 4 bytes. */
static void *
new_record(PoissonState *state, Size size)
{
	char	   *record;

	if (size > state->free_size)
	{
		state->free_size = Max(Max(state->records / 4, SMALLEST_PIECE), size);
		state->free = MemoryContextAllocHuge(state->pass.context, state->free_size);
		ask_for_huge_pages(state->free, state->free_size);
		state->records += state->free_size;
	}
	record = state->free;
	state->free += size;
	state->free_size -= size;
	return record;
}

/* Keep the rows of a block, and where units begin. */
static void
keep_block(PoissonState *state, const DpmlBlock *block)
{
	MemoryContext context = state->pass.context;
	bool		units = state->pass.options.sgd.units;

	state->rows = reserve(context, state->rows, state->n_rows + block->n_rows, &state->max_rows);
	if (units)
		state->units = reserve(context, state->units, state->n_units + block->n_rows, &state->max_units);
	for (int32 i = 0; i < block->n_rows; i++)
	{
		Size		size = dpml_record_size(block, i);
		void	   *record;

		count_memory(state, size + sizeof(*state->rows) + (units ? sizeof(*state->units) : 0));
		record = new_record(state, size);
		dpml_record_write(block, i, record);
		/* the first row of a pass begins a unit whatever the block says */
		if (units && (state->n_rows == 0 || dpml_block_starts_unit(block, i)))
			state->units[state->n_units++] = state->n_rows;
		state->rows[state->n_rows++] = record;
	}
	state->n_blocks++;
}

/* What the steps read, once all rows are there. */
static DpmlStore
store_of(const PoissonState *state)
{
	return (DpmlStore) {
		.kind = state->kind,
		.n_features = state->pass.options.sgd.n_features,
		.n_rows = state->n_rows,
		.rows = state->rows,
		.units = state->units,
		.n_units = state->units != NULL ? state->n_units : state->n_rows
	};
}

/* (internal, block_no int4, block bytea, start dpml.epoch, options jsonb) */
Datum
dpml_sgd_poisson_step(PG_FUNCTION_ARGS)
{
	bool		first;
	PoissonState *state = (PoissonState *) dpml_pass_state(fcinfo, "sgd_poisson", 4, DPML_FOR_POISSON,
														   sizeof(PoissonState), &first);
	DpmlBlock	block;

	CHECK_FOR_INTERRUPTS();
	dpml_pass_check_number(&fcinfo->args[1], state->n_blocks);
	dpml_pass_open_block(&block, &state->pass, &fcinfo->args[2], state->n_blocks);
	if (first)
	{
		DpmlPassStart start;

		dpml_pass_read_start(&start, &fcinfo->args[3]);
		dpml_pass_start(&state->pass, &start, block.n_features);
		state->kind = block.kind;
	}
	if (block.kind != state->kind)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("packed rows must have the same format and number of features"),
				 errhint("Encode all rows with one specification.")));
	keep_block(state, &block);
	PG_RETURN_POINTER(state);
}

/* All steps of the pass; rows are the rows that could be drawn. */
Datum
dpml_sgd_poisson_final(PG_FUNCTION_ARGS)
{
	PoissonState *state = PG_ARGISNULL(0) ? NULL : (PoissonState *) PG_GETARG_POINTER(0);
	int64		rows = 0;

	(void) dpml_aggregate_context(fcinfo, "sgd_poisson");
	if (state != NULL)
	{
		const DpmlOptions *options = &state->pass.options;
		DpmlStore	store = store_of(state);
		uint8		key[DPML_KEY_BYTES];

		rows = state->n_rows;
		dpml_random_key(key);
		dpml_poisson_start(&state->poisson, &store, options->sampling, options->steps, key);
		explicit_bzero(key, sizeof(key));
		while (dpml_poisson_run(&state->poisson, &state->pass.sgd, dpml_pass_piece(&state->pass, PG_INT32_MAX)))
			;
	}
	PG_RETURN_DATUM(dpml_pass_result(fcinfo, (DpmlPass *) state, 0, rows));
}

/* A call of dpml.poisson_steps; its coins are its own and end with it. */
typedef struct StepsCall
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
} StepsCall;

static int32
unit_end(const DpmlBlock *block, int32 first)
{
	int32		end = first + 1;

	while (end < block->n_rows && !dpml_block_starts_unit(block, end))
		end++;
	return end;
}

static StepsCall *
start_steps(FunctionCallInfo fcinfo)
{
	StepsCall  *call = palloc0(sizeof(StepsCall));
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
step_row(const StepsCall *call, TupleDesc desc, int64 step, int32 first, int32 n, NullableDatum rows)
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
dpml_poisson_steps(PG_FUNCTION_ARGS)
{
	FuncCallContext *context;
	StepsCall  *call;

	if (SRF_IS_FIRSTCALL())
	{
		MemoryContext old;
		TupleDesc	desc;

		context = SRF_FIRSTCALL_INIT();
		old = MemoryContextSwitchTo(context->multi_call_memory_ctx);
		if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
			elog(ERROR, "the result of dpml.poisson_steps is not a row type");
		context->tuple_desc = BlessTupleDesc(desc);
		context->user_fctx = start_steps(fcinfo);
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

/* Take the steps before a step; batches that no row is in are steps too. */
static void
advance(PoissonStepsState *state, int64 step)
{
	for (; state->step < step; state->step++)
	{
		CHECK_FOR_INTERRUPTS();
		dpml_sgd_apply_batch(&state->pass.sgd);
	}
}

/*
 * (internal, step int4, block bytea, rows int4, start dpml.epoch, options jsonb),
 * by rising step.  rows says how many rows could be drawn, NULL being none.
 */
Datum
dpml_sgd_poisson_steps_step(PG_FUNCTION_ARGS)
{
	bool		first;
	PoissonStepsState *state = (PoissonStepsState *) dpml_pass_state(fcinfo, "sgd_poisson_steps", 5,
																	 DPML_FOR_POISSON_STEPS,
																	 sizeof(PoissonStepsState), &first);
	int64		steps = state->pass.options.steps;
	int64		step = PG_ARGISNULL(1) ? 0 : PG_GETARG_INT32(1);
	int32		rows = PG_ARGISNULL(3) ? 0 : PG_GETARG_INT32(3);
	DpmlBlock	block;
	int32		n;

	if (step < 1 || step > steps)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("step must be an integer from 1 to \"steps\" in options, " INT64_FORMAT, steps)));
	if (rows < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("rows must be an integer >= 0, or null")));
	dpml_pass_open_block(&block, &state->pass, &fcinfo->args[2], step);
	if (first)
	{
		DpmlPassStart start;

		dpml_pass_read_start(&start, &fcinfo->args[4]);
		dpml_pass_start(&state->pass, &start, block.n_features);
		state->step = 1;
	}
	if (step < state->step)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("steps must not go backwards"),
				 errhint("Write ORDER BY step after the last argument.")));
	advance(state, step);
	for (int32 i = 0; i < block.n_rows; i += n)
	{
		n = dpml_pass_piece(&state->pass, block.n_rows - i);
		dpml_sgd_add(&state->pass.sgd, &block, i, n);
	}
	state->rows += rows;
	PG_RETURN_POINTER(state);
}

/* The steps that are left.  rows are the rows that could be drawn: how many were stays a secret of the coins. */
Datum
dpml_sgd_poisson_steps_final(PG_FUNCTION_ARGS)
{
	PoissonStepsState *state = PG_ARGISNULL(0) ? NULL : (PoissonStepsState *) PG_GETARG_POINTER(0);

	(void) dpml_aggregate_context(fcinfo, "sgd_poisson_steps");
	if (state != NULL)
		advance(state, state->pass.options.steps + 1);
	PG_RETURN_DATUM(dpml_pass_result(fcinfo, (DpmlPass *) state, 0, state != NULL ? state->rows : 0));
}
