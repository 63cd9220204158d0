/* SPDX-License-Identifier: PostgreSQL */
/*
 * dpml.sgd_poisson: steps of SGD over Poisson batches (privacy/README.md, "Poisson
 * batches").  All rows are taken into memory and read at random.
 */
#include "compat.h"

#ifndef WIN32
#include <sys/mman.h>
#endif

#include "miscadmin.h"

#include "module.h"
#include "sgd_pass.h"
#include "support.h"

#include "kernels/poisson.h"

/* Room for records is made in pieces: a quarter of all so far, and at least this. */
#define SMALLEST_PIECE ((Size) 1024 * 1024)
#define HUGE_PAGE ((Size) 2 * 1024 * 1024)
#define FIRST_ENTRIES 8192

typedef struct PoissonState
{
	DpmlSgdPass sgd_pass;
	int32		kind;			/* enum DpmlBlockKind of the first block */
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

static const char name[] = "sgd_poisson";

DPML_FUNCTION(dpml_sgd_poisson_transition);
DPML_FUNCTION(dpml_sgd_poisson_final);

/* The rows that a state holds are within the room it has for them. */
static void
check_rows(const PoissonState *state)
{
	Assert(state->n_rows >= 0 && state->n_rows <= state->max_rows);
	Assert(state->n_units >= 0 && state->n_units <= Min(state->n_rows, state->max_units));
	Assert((state->units != NULL) == (state->max_units > 0));
	Assert(state->free_size <= state->records);
	(void) state;
}

static PoissonState *
get_state(FunctionCallInfo fcinfo, bool *first)
{
	PoissonState *state = (PoissonState *) dpml_sgd_pass_state(fcinfo, name, 4, DPML_FOR_POISSON,
															   sizeof(PoissonState), first);

	check_rows(state);
	return state;
}

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

/* Count the memory that one more row needs against dpml.work_mem, before the row is taken. */
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
		state->free = MemoryContextAllocHuge(state->sgd_pass.pass.context, state->free_size);
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
	MemoryContext context = state->sgd_pass.pass.context;
	bool		by_unit = state->sgd_pass.options.sgd.by_unit;

	state->rows = reserve(context, state->rows, state->n_rows + block->n_rows, &state->max_rows);
	if (by_unit)
		state->units = reserve(context, state->units, state->n_units + block->n_rows, &state->max_units);
	for (int32 i = 0; i < block->n_rows; i++)
	{
		Size		size = dpml_record_size(block, i);
		void	   *record;

		count_memory(state, size + sizeof(*state->rows) + (by_unit ? sizeof(*state->units) : 0));
		record = new_record(state, size);
		dpml_record_write(block, i, record);
		/* the first row of a pass begins a unit whatever the block says */
		if (by_unit && (state->n_rows == 0 || dpml_block_starts_unit(block, i)))
			state->units[state->n_units++] = state->n_rows;
		state->rows[state->n_rows++] = record;
	}
}

/* The rows as the steps read them, once all of them have been taken. */
static DpmlStore
store_of(const PoissonState *state)
{
	return (DpmlStore) {
		.kind = state->kind,
		.n_features = state->sgd_pass.pass.options.n_features,
		.n_rows = state->n_rows,
		.rows = state->rows,
		.units = state->units,
		.n_units = state->units != NULL ? state->n_units : state->n_rows
	};
}

/* (internal, block_no int4, block bytea, start dpml.epoch, options jsonb) */
Datum
dpml_sgd_poisson_transition(PG_FUNCTION_ARGS)
{
	bool		first;
	PoissonState *state = get_state(fcinfo, &first);
	DpmlBlock	block;

	CHECK_FOR_INTERRUPTS();
	dpml_pass_next_block(&block, &state->sgd_pass.pass, &fcinfo->args[1], &fcinfo->args[2]);
	if (first)
	{
		DpmlSgdPassStart start;

		dpml_sgd_pass_read_start(&start, &fcinfo->args[3]);
		dpml_sgd_pass_start(&state->sgd_pass, &start, block.n_features);
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
	PoissonState *state = (PoissonState *) dpml_sgd_pass_end(fcinfo, name);
	int64		rows = 0;

	if (state != NULL)
	{
		const DpmlSgdPassOptions *options = &state->sgd_pass.options;
		const DpmlPass *pass = &state->sgd_pass.pass;
		DpmlStore	store = store_of(state);
		uint8		key[DPML_KEY_BYTES];

		check_rows(state);
		rows = state->n_rows;
		dpml_random_key(key);
		dpml_poisson_start(&state->poisson, &store, options->sampling, options->steps, key);
		explicit_bzero(key, sizeof(key));
		while (dpml_poisson_run(&state->poisson, &state->sgd_pass.sgd, dpml_pass_piece(pass, PG_INT32_MAX)))
			;
	}
	PG_RETURN_DATUM(dpml_sgd_pass_result(fcinfo, (DpmlSgdPass *) state, 0, rows));
}
