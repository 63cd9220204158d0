/* SPDX-License-Identifier: PostgreSQL */
/*
 * dpml.pack: encoded rows into one block, as an aggregate and as a window function.
 *
 * A block puts all labels before all values, and how many rows will come is
 * unknown, so the parts are collected apart and joined once at the end.
 */
#include "compat.h"

#include "miscadmin.h"
#include "utils/memutils.h"
#include "windowapi.h"

#include "support.h"

#include "kernels/block.h"

/* First allocation: what a page-sized block can hold. */
#define INITIAL_ROWS 256
#define INITIAL_VALUES (DPML_BLOCK_PAGE_BYTES / sizeof(float))

typedef struct PackState
{
	const char *aggregate;		/* as dpml_state_argument wants it; NULL in a window */
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

static const char name[] = "pack";

DPML_FUNCTION(dpml_pack_transition);
DPML_FUNCTION(dpml_pack_final);
DPML_FUNCTION(dpml_pack_window);

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

/* The rows that a state holds are within the room it has for them. */
static void
check_state(const PackState *state)
{
	Assert(state->block.n_rows >= 0 && state->block.n_rows <= state->max_rows);
	Assert(state->block.n_values >= 0 && state->block.n_values <= state->max_values);
	Assert(state->labels == NULL || state->block.n_features >= 1);
	(void) state;
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
	check_state(state);
	state->block.labels = state->labels;
	state->block.starts = state->has_units ? state->starts : NULL;
	state->block.values = state->values;
	state->block.row_end = state->row_end;
	state->block.columns = state->columns;
	return dpml_make_block(&state->block);
}

/* (internal, block bytea) */
Datum
dpml_pack_transition(PG_FUNCTION_ARGS)
{
	MemoryContext context = dpml_aggregate_context(fcinfo, name);
	PackState  *state = dpml_state_argument(fcinfo, name);
	DpmlBlock	block;

	dpml_block_argument(&block, &fcinfo->args[1]);
	if (state == NULL)
	{
		state = MemoryContextAllocZero(context, sizeof(PackState));
		state->aggregate = name;
		state->context = context;
	}
	check_state(state);
	CHECK_FOR_INTERRUPTS();
	append_block(state, &block);
	PG_RETURN_POINTER(state);
}

Datum
dpml_pack_final(PG_FUNCTION_ARGS)
{
	PackState  *state;

	(void) dpml_aggregate_context(fcinfo, name);
	state = dpml_state_argument(fcinfo, name);
	if (state == NULL)
		PG_RETURN_NULL();
	PG_RETURN_BYTEA_P(finish_block(state));
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

/* A place where a block can end without cutting a unit: before a row of the window that begins one. */
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
		dpml_block_argument(&block, &(NullableDatum) {row, isnull});
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
