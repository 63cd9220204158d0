/* SPDX-License-Identifier: PostgreSQL */
/*
 * Packing encoded rows into blocks and taking blocks apart again.
 *
 * A block puts all labels before all values, and how many rows will come is
 * unknown, so the parts are collected apart and joined once at the end.
 */
#include "dpml.h"

#include "catalog/pg_type.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "windowapi.h"

/* First allocation: what a page-sized block can hold. */
#define INITIAL_ROWS 256
#define INITIAL_VALUES (DPML_BLOCK_PAGE_BYTES / sizeof(float))

typedef struct PackState
{
	MemoryContext context;
	DpmlBlock	block;			/* the rows so far; its arrays are those below */
	int64		max_rows;		/* room in labels and row_end */
	int64		max_values;		/* room in values and columns */
	float	   *labels;
	uint32	   *starts;			/* bit i % 32 of starts[i / 32]: row i begins a unit */
	bool		has_units;		/* some block had starts: else they are left out */
	float	   *values;
	uint32	   *row_end;		/* CSR only */
	uint32	   *columns;		/* CSR only */
} PackState;

DPML_FUNCTION(dpml_pack_step);
DPML_FUNCTION(dpml_pack_final);
DPML_FUNCTION(dpml_pack_window);
DPML_FUNCTION(dpml_rows);
DPML_FUNCTION(dpml_unpack);
DPML_FUNCTION(dpml_block_capacity_sql);

static void *
grow(PackState *state, void *array, int64 n)
{
	Size		size = (Size) n * sizeof(uint32);

	if (array == NULL)
		return MemoryContextAllocHuge(state->context, size);
	return repalloc_huge(array, size);
}

/* Make room; the sizes stay far from overflow, as a block is at most 1 GB. */
static void
reserve(PackState *state, int64 n_rows, int64 n_values)
{
	bool		sparse = state->block.kind == DPML_CSR;

	if (n_rows > state->max_rows)
	{
		state->max_rows = Max(Max(2 * state->max_rows, n_rows), INITIAL_ROWS);
		state->labels = grow(state, state->labels, state->max_rows);
		state->starts = grow(state, state->starts, (state->max_rows + 31) / 32);
		if (sparse)
			state->row_end = grow(state, state->row_end, state->max_rows);
	}
	if (n_values > state->max_values)
	{
		state->max_values = Max(Max(2 * state->max_values, n_values), (int64) INITIAL_VALUES);
		state->values = grow(state, state->values, state->max_values);
		if (sparse)
			state->columns = grow(state, state->columns, state->max_values);
	}
}

static void
set_start(uint32 *starts, int32 i, int start)
{
	uint32		bit = (uint32) 1 << (i % 32);

	if (i % 32 == 0)
		starts[i / 32] = 0;
	if (start)
		starts[i / 32] |= bit;
}

/* Add the rows of a block. */
static void
append_block(PackState *state, const DpmlBlock *more)
{
	DpmlBlock  *all = &state->block;
	int64		n_rows = (int64) all->n_rows + more->n_rows;
	int64		n_values = (int64) all->n_values + more->n_values;

	if (state->labels == NULL)
	{
		all->kind = more->kind;
		all->n_features = more->n_features;
	}
	if (more->kind != all->kind || more->n_features != all->n_features)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("packed rows must have the same format and number of features"),
				 errhint("Encode all rows with one specification.")));
	if (n_rows + n_values > (int64) (MaxAllocSize / sizeof(uint32)))
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("packed block would be larger than 1 GB"),
				 errhint("Pack fewer rows into a block; dpml.block_capacity says how many are best.")));
	reserve(state, n_rows, n_values);

	memcpy(state->labels + all->n_rows, more->labels, more->n_rows * sizeof(float));
	for (int32 i = 0; i < more->n_rows; i++)
		set_start(state->starts, all->n_rows + i, dpml_block_starts_unit(more, i));
	state->has_units = state->has_units || more->starts != NULL;
	memcpy(state->values + all->n_values, more->values, more->n_values * sizeof(float));
	if (all->kind == DPML_CSR)
	{
		memcpy(state->columns + all->n_values, more->columns, more->n_values * sizeof(uint32));
		for (int32 i = 0; i < more->n_rows; i++)
			state->row_end[all->n_rows + i] = (uint32) all->n_values + more->row_end[i];
	}
	all->n_rows = (int32) n_rows;
	all->n_values = (int32) n_values;
}

static bytea *
finish_block(PackState *state)
{
	state->block.labels = state->labels;
	state->block.starts = state->has_units ? state->starts : NULL;
	state->block.values = state->values;
	state->block.row_end = state->row_end;
	state->block.columns = state->columns;
	return dpml_make_block(&state->block);
}

static void
refuse_null_block(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
			 errmsg("block must not be null")));
}

/* (internal, block bytea) */
Datum
dpml_pack_step(PG_FUNCTION_ARGS)
{
	MemoryContext context = dpml_aggregate_context(fcinfo, "pack");
	PackState  *state;
	DpmlBlock	block;

	if (PG_ARGISNULL(1))
		refuse_null_block();
	dpml_open_block(&block, PG_GETARG_DATUM(1));
	if (PG_ARGISNULL(0))
	{
		state = MemoryContextAllocZero(context, sizeof(PackState));
		state->context = context;
	}
	else
		state = (PackState *) PG_GETARG_POINTER(0);
	CHECK_FOR_INTERRUPTS();
	append_block(state, &block);
	PG_RETURN_POINTER(state);
}

Datum
dpml_pack_final(PG_FUNCTION_ARGS)
{
	(void) dpml_aggregate_context(fcinfo, "pack");
	if (PG_ARGISNULL(0))
		PG_RETURN_NULL();
	PG_RETURN_BYTEA_P(finish_block((PackState *) PG_GETARG_POINTER(0)));
}

/* A limit among the arguments of the window function. */
static int32
window_limit(WindowObject window, int argument, const char *name)
{
	bool		isnull;
	int32		limit = DatumGetInt32(WinGetFuncArgCurrent(window, argument, &isnull));

	if (isnull || limit < 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must be an integer >= 1", name),
				 errhint("dpml.block_capacity says how many rows are best.")));
	return limit;
}

/* Bytes of the rows so far and of one more block. */
static Size
size_with(const PackState *state, const DpmlBlock *more)
{
	DpmlBlock	both = *more;

	both.n_rows += state->block.n_rows;
	both.n_values += state->block.n_values;
	if (state->has_units)
		both.starts = state->starts;
	return dpml_block_size(&both);
}

/* Where a block can end without cutting a unit: before a row of the window that begins one. */
typedef struct Border
{
	int64		next;			/* that row of the window */
	int32		n_rows;			/* of the block before it */
	int32		n_values;
} Border;

/* Forget the rows from a border on. */
static void
cut_at(PackState *state, const Border *border)
{
	int32		rest = border->n_rows % 32;

	state->block.n_rows = border->n_rows;
	state->block.n_values = border->n_values;
	if (rest != 0)
		state->starts[border->n_rows / 32] &= ((uint32) 1 << rest) - 1;
}

/*
 * Window function (block bytea, capacity int4, max_bytes int4): on the first
 * row of every block the block, NULL on its other rows.  A block ends after
 * capacity rows, or before a row that would make it larger than max_bytes; and
 * earlier than that, where it would cut a unit that did not begin it.
 * One sort gives both the order and the blocks.
 */
Datum
dpml_pack_window(PG_FUNCTION_ARGS)
{
	WindowObject window = PG_WINDOW_OBJECT();
	int64		position = WinGetCurrentPosition(window);
	int64	   *next = WinGetPartitionLocalMemory(window, sizeof(int64));	/* first row of the next block */
	PackState	state = {0};
	Border		border = {0};
	int32		capacity;
	Size		max_bytes;

	if (position != *next)
		PG_RETURN_NULL();
	capacity = window_limit(window, 1, "capacity");
	max_bytes = (Size) window_limit(window, 2, "max_bytes");
	WinSetMarkPosition(window, position);	/* earlier rows can go */
	state.context = CurrentMemoryContext;
	for (;; (*next)++)
	{
		DpmlBlock	block;
		bool		isnull;
		bool		isout;
		bool		whole;
		Datum		row = WinGetFuncArgInPartition(window, 0, *next, WINDOW_SEEK_HEAD, false, &isnull, &isout);

		if (isout)
			break;
		if (isnull)
			refuse_null_block();
		dpml_open_block(&block, row);
		whole = block.n_rows == 0 || dpml_block_starts_unit(&block, 0);
		if (*next - position >= capacity ||
			(state.labels != NULL && size_with(&state, &block) > max_bytes))
		{
			if (!whole && border.next > position)
			{
				cut_at(&state, &border);
				*next = border.next;
			}
			break;
		}
		if (whole)
			border = (Border) {*next, state.block.n_rows, state.block.n_values};
		CHECK_FOR_INTERRUPTS();
		append_block(&state, &block);
	}
	PG_RETURN_BYTEA_P(finish_block(&state));
}

/* What a view of one row points to beside the block. */
typedef struct RowParts
{
	uint32		starts;
	uint32		row_end;
} RowParts;

/* A view of row i of a block. */
static DpmlBlock
one_row(const DpmlBlock *block, int32 i, RowParts *parts)
{
	DpmlBlock	row;

	dpml_block_part(block, i, 1, &parts->starts, &parts->row_end, &row);
	return row;
}

/* Set up a set-returning call over a copy of the block argument. */
static FuncCallContext *
first_call(FunctionCallInfo fcinfo)
{
	FuncCallContext *call = SRF_FIRSTCALL_INIT();
	MemoryContext old = MemoryContextSwitchTo(call->multi_call_memory_ctx);
	DpmlBlock  *block = palloc(sizeof(DpmlBlock));

	dpml_open_block(block, PointerGetDatum(PG_GETARG_BYTEA_P_COPY(0)));
	call->user_fctx = block;
	call->max_calls = block->n_rows;
	MemoryContextSwitchTo(old);
	return call;
}

/* (block bytea) -> setof bytea, each a block of one row */
Datum
dpml_rows(PG_FUNCTION_ARGS)
{
	FuncCallContext *call;
	DpmlBlock	row;
	RowParts	parts;

	if (SRF_IS_FIRSTCALL())
		(void) first_call(fcinfo);
	call = SRF_PERCALL_SETUP();
	if (call->call_cntr >= call->max_calls)
		SRF_RETURN_DONE(call);
	row = one_row((DpmlBlock *) call->user_fctx, (int32) call->call_cntr, &parts);
	SRF_RETURN_NEXT(call, PointerGetDatum(dpml_make_block(&row)));
}

/* The features of a one-row block as a float4[]. */
static ArrayType *
row_array(const DpmlBlock *row)
{
	Size		size = ARR_OVERHEAD_NONULLS(1) + (Size) row->n_features * sizeof(float4);
	ArrayType  *array = palloc0(size);
	float4	   *x;

	SET_VARSIZE(array, size);
	array->ndim = 1;
	array->elemtype = FLOAT4OID;
	ARR_DIMS(array)[0] = row->n_features;
	ARR_LBOUND(array)[0] = 1;
	x = (float4 *) ARR_DATA_PTR(array);
	if (row->kind == DPML_DENSE)
		memcpy(x, row->values, (Size) row->n_features * sizeof(float4));
	else
		for (int32 j = 0; j < row->n_values; j++)
			x[row->columns[j]] = row->values[j];
	return array;
}

/* (block bytea) -> table (x float4[], y float4) */
Datum
dpml_unpack(PG_FUNCTION_ARGS)
{
	FuncCallContext *call;
	DpmlBlock	row;
	RowParts	parts;
	Datum		values[2];
	bool		nulls[2] = {false, false};

	if (SRF_IS_FIRSTCALL())
	{
		TupleDesc	desc;
		MemoryContext old;

		call = first_call(fcinfo);
		old = MemoryContextSwitchTo(call->multi_call_memory_ctx);
		if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
			elog(ERROR, "the result of dpml.unpack is not a row type");
		call->tuple_desc = BlessTupleDesc(desc);
		MemoryContextSwitchTo(old);
	}
	call = SRF_PERCALL_SETUP();
	if (call->call_cntr >= call->max_calls)
		SRF_RETURN_DONE(call);
	row = one_row((DpmlBlock *) call->user_fctx, (int32) call->call_cntr, &parts);
	values[0] = PointerGetDatum(row_array(&row));
	values[1] = Float4GetDatum(row.labels[0]);
	SRF_RETURN_NEXT(call, HeapTupleGetDatum(heap_form_tuple(call->tuple_desc, values, nulls)));
}

/* (kind text, n_features int4, n_values int4) */
Datum
dpml_block_capacity_sql(PG_FUNCTION_ARGS)
{
	char	   *kind = text_to_cstring(PG_GETARG_TEXT_PP(0));
	int32		n_features = PG_GETARG_INT32(1);
	int32		n_values = PG_GETARG_INT32(2);
	bool		dense = strcmp(kind, "dense") == 0;

	if (!dense && strcmp(kind, "csr") != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("kind must be \"dense\" or \"csr\"")));
	if (n_features < 1 || n_features > DPML_MAX_FEATURES)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("n_features must be an integer from 1 to %d", DPML_MAX_FEATURES)));
	if (n_values < 0 || n_values > n_features)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("n_values must be an integer from 0 to n_features")));
	PG_RETURN_INT32(dpml_block_capacity(dense ? DPML_DENSE : DPML_CSR, n_features, n_values));
}
