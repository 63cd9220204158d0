/* SPDX-License-Identifier: PostgreSQL */
/* Rows held in memory: pieces of it that records are cut from, and how much of dpml.work_mem they need. */
#include "row_store.h"

#ifndef WIN32
#include <sys/mman.h>
#endif

#include "utils/memutils.h"

#include "module.h"

/* Room for records is made in pieces: a quarter of all so far, and at least this. */
#define SMALLEST_PIECE ((Size) 1024 * 1024)
#define HUGE_PAGE ((Size) 2 * 1024 * 1024)
#define FIRST_ENTRIES 8192

/* The rows that a store holds are within the room it has for them. */
static void
check_store(const DpmlRowStore *store)
{
	Assert(store->n_rows >= 0 && store->n_rows <= store->max_rows);
	Assert(store->n_units >= 0 && store->n_units <= Min(store->n_rows, store->max_units));
	Assert((store->units != NULL) == (store->max_units > 0));
	Assert(store->free_size <= store->records);
	(void) store;
}

/* Count memory against dpml.work_mem before it is taken; what needs it is a plural, for the error. */
void
dpml_count_memory(Size *used, Size more, const char *what, const char *hint)
{
	*used += more;
	if (likely(*used <= (Size) dpml_work_mem * 1024))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
			 errmsg("%s need more memory than dpml.work_mem, %d kB", what, dpml_work_mem),
			 errhint("%s", hint)));
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
void *
dpml_reserve(MemoryContext context, void *array, int64 n, int64 *most)
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

/* Room for a record of a multiple of 4 bytes. */
static char *
new_record(DpmlRowStore *store, Size size)
{
	char	   *record;

	if (size > store->free_size)
	{
		store->free_size = Max(Max(store->records / 4, SMALLEST_PIECE), size);
		store->free = MemoryContextAllocHuge(store->context, store->free_size);
		ask_for_huge_pages(store->free, store->free_size);
		store->records += store->free_size;
	}
	record = store->free;
	store->free += size;
	store->free_size -= size;
	return record;
}

/* An empty store in zeroed memory; hint is kept. */
void
dpml_row_store_start(DpmlRowStore *store, MemoryContext context, bool by_unit, bool with_duals, const char *hint)
{
	store->context = context;
	store->by_unit = by_unit;
	store->with_duals = with_duals;
	store->hint = hint;
}

/* Keep the rows of a block, and where units begin.  Room for duals is left as it is. */
void
dpml_row_store_keep(DpmlRowStore *store, const DpmlBlock *block)
{
	Size		before = store->with_duals ? DPML_RECORD_DUAL : 0;
	Size		entries = sizeof(*store->rows) + (store->by_unit ? sizeof(*store->units) : 0);

	check_store(store);
	if (store->n_features == 0)
	{
		store->kind = block->kind;
		store->n_features = block->n_features;
	}
	if (block->kind != store->kind || block->n_features != store->n_features)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("packed rows must have the same format and number of features"),
				 errhint("Encode all rows with one specification.")));
	store->rows = dpml_reserve(store->context, store->rows, store->n_rows + block->n_rows, &store->max_rows);
	if (store->by_unit)
		store->units = dpml_reserve(store->context, store->units, store->n_units + block->n_rows, &store->max_units);
	for (int32 i = 0; i < block->n_rows; i++)
	{
		Size		size = before + dpml_record_size(block, i);
		char	   *record;

		dpml_count_memory(&store->used, size + entries, "the packed rows", store->hint);
		record = new_record(store, size) + before;
		dpml_record_write(block, i, record);
		/* the first row of a pass begins a unit whatever the block says */
		if (store->by_unit && (store->n_rows == 0 || dpml_block_starts_unit(block, i)))
			store->units[store->n_units++] = store->n_rows;
		store->rows[store->n_rows++] = record;
	}
}

/* The rows as the steps read them, once all of them have been taken. */
DpmlStore
dpml_row_store_view(const DpmlRowStore *store)
{
	check_store(store);
	return (DpmlStore) {
		.kind = store->kind,
		.n_features = store->n_features,
		.n_rows = store->n_rows,
		.rows = store->rows,
		.units = store->units,
		.n_units = store->units != NULL ? store->n_units : store->n_rows
	};
}
