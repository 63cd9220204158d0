/* SPDX-License-Identifier: PostgreSQL */
/* The rows of a block as records in memory, for fuzz targets that draw rows. */
#ifndef DPML_FUZZ_RECORDS_H
#define DPML_FUZZ_RECORDS_H

#include "fuzz.h"

#include "kernels/block.h"
#include "kernels/poisson.h"

typedef struct Records
{
	DpmlStore	store;			/* its arrays are those below */
	void	  **rooms;			/* what is allocated for each row */
	void	  **rows;
	int64_t    *units;
} Records;

/* before: bytes in front of each record, DPML_RECORD_DUAL for a dual */
static inline Records
make_records(const DpmlBlock *block, int by_unit, size_t before)
{
	size_t		n = (size_t) block->n_rows + 1;
	Records		records = {
		.rooms = allocate(n * sizeof(void *)),
		.rows = allocate(n * sizeof(void *)),
		.units = allocate(n * sizeof(int64_t))
	};
	DpmlStore  *store = &records.store;

	*store = (DpmlStore) {
		.kind = block->kind,
		.n_features = block->n_features,
		.n_rows = block->n_rows,
		.rows = records.rows,
		.units = by_unit ? records.units : NULL
	};
	for (int32_t i = 0; i < block->n_rows; i++)
	{
		records.rooms[i] = allocate(before + dpml_record_size(block, i));
		records.rows[i] = (char *) records.rooms[i] + before;
		dpml_record_write(block, i, records.rows[i]);
		if (!by_unit || i == 0 || dpml_block_starts_unit(block, i))
			records.units[store->n_units++] = i;
	}
	return records;
}

static inline void
free_records(Records *records)
{
	for (int64_t i = 0; i < records->store.n_rows; i++)
		free(records->rooms[i]);
	free(records->rooms);
	free(records->rows);
	free(records->units);
}

#endif
