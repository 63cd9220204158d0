/* SPDX-License-Identifier: PostgreSQL */
/* Rows of packed blocks that an aggregate holds in memory, each a record, to read them at random (kernels/poisson.h). */
#ifndef DPML_ROW_STORE_H
#define DPML_ROW_STORE_H

#include "compat.h"

#include "kernels/poisson.h"

typedef struct DpmlRowStore
{
	MemoryContext context;
	const char *hint;			/* how to need less memory */
	bool		by_unit;
	bool		with_duals;		/* there is room for a dual before every record */
	int32		kind;			/* enum DpmlBlockKind of the first block */
	int32		n_features;		/* of the first block */
	void	  **rows;			/* the record of each row */
	int64	   *units;			/* first row of each unit; NULL without units */
	int64		n_rows;
	int64		n_units;
	int64		max_rows;		/* room in rows */
	int64		max_units;
	char	   *free;			/* of the newest piece */
	Size		free_size;
	Size		records;		/* bytes of all pieces */
	Size		used;			/* bytes that records, duals, rows and units need */
} DpmlRowStore;

extern void dpml_count_memory(Size *used, Size more, const char *what, const char *hint);
extern void *dpml_reserve(MemoryContext context, void *array, int64 n, int64 *most);
extern void dpml_row_store_start(DpmlRowStore *store, MemoryContext context, bool by_unit, bool with_duals,
								 const char *hint);
extern void dpml_row_store_keep(DpmlRowStore *store, const DpmlBlock *block);
extern DpmlStore dpml_row_store_view(const DpmlRowStore *store);

#endif
