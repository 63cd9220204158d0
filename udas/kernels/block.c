/* SPDX-License-Identifier: PostgreSQL */
/* Packed blocks are checked, viewed, written and measured here; block.h draws their layout. */
#include "block.h"

#include <string.h>

#include "clones.h"


/* The first DPML_BLOCK_HEADER bytes; its members leave no padding. */
typedef struct BlockHeader
{
	uint32_t	magic;
	uint16_t	version;
	uint16_t	kind;
	uint32_t	n_features;
	uint32_t	n_rows;
} BlockHeader;

static size_t
starts_size(int32_t n_rows)
{
	return 4 * (((size_t) n_rows + 31) / 32);
}

size_t
dpml_block_size(const DpmlBlock *block)
{
	size_t		size = DPML_BLOCK_HEADER + (block->starts != NULL ? starts_size(block->n_rows) : 0);
	int64_t		most = (int64_t) block->n_rows * block->n_features;

	if (block->n_features < 1 || block->n_features > DPML_MAX_FEATURES || block->n_rows < 0 ||
		block->n_values < 0)
		return 0;
	if (block->kind == DPML_DENSE && most == block->n_values)
		return size + 4 * ((size_t) block->n_rows + (size_t) block->n_values);
	if (block->kind == DPML_CSR && most >= block->n_values)
		return size + 8 * ((size_t) block->n_rows + (size_t) block->n_values);
	return 0;
}

int
dpml_block_starts_unit(const DpmlBlock *block, int32_t i)
{
	return block->starts == NULL || (block->starts[i / 32] >> (i % 32) & 1) != 0;
}

void
dpml_block_part(const DpmlBlock *block, int32_t first, int32_t n, uint32_t *starts, uint32_t *row_end,
				DpmlBlock *part)
{
	*part = *block;
	part->n_rows = n;
	part->labels = block->labels + first;
	if (block->starts != NULL)
	{
		memset(starts, 0, starts_size(n));
		for (int32_t i = 0; i < n; i++)
			starts[i / 32] |= (uint32_t) dpml_block_starts_unit(block, first + i) << (i % 32);
		part->starts = starts;
	}
	if (block->kind == DPML_DENSE)
	{
		part->n_values = n * block->n_features;
		part->values = block->values + (int64_t) first * block->n_features;
	}
	else
	{
		uint32_t	before = first > 0 ? block->row_end[first - 1] : 0;

		for (int32_t i = 0; i < n; i++)
			row_end[i] = block->row_end[first + i] - before;
		part->n_values = n > 0 ? (int32_t) row_end[n - 1] : 0;
		part->row_end = row_end;
		part->columns = block->columns + before;
		part->values = block->values + before;
	}
}

/* How many of n <= INT32_MAX columns are not above the one before. */
static DPML_CLONES uint32_t
count_falls(int32_t n, const uint32_t *columns)
{
	uint32_t	falls = 0;

	for (int32_t i = 1; i < n; i++)
		falls += columns[i] <= columns[i - 1];
	return falls;
}

/* Row ends must not fall, columns must rise strictly inside a row and name a feature. */
static int
check_sparse(const DpmlBlock *block)
{
	uint32_t	falls = 0;		/* between the last column of a row and the first one of the next */
	uint32_t	at = 0;

	for (int32_t i = 0; i < block->n_rows; i++)
	{
		uint32_t	end = block->row_end[i];

		if (end < at || end > (uint32_t) block->n_values)
			return DPML_BAD_LAYOUT;
		if (end == at)
			continue;
		falls += at > 0 && block->columns[at] <= block->columns[at - 1];
		if (block->columns[end - 1] >= (uint32_t) block->n_features)
			return DPML_BAD_LAYOUT;
		at = end;
	}
	return count_falls((int32_t) at, block->columns) == falls ? DPML_OK : DPML_BAD_LAYOUT;
}

/* Point the view at its parts and check that they are exactly the bytes there are. */
static int
open_parts(DpmlBlock *block, const unsigned char *bytes, size_t length, int has_starts)
{
	const unsigned char *rest = bytes + DPML_BLOCK_HEADER;
	size_t		rows_size = 4 * (size_t) block->n_rows;
	size_t		needed;

	block->labels = (const float *) rest;
	rest += rows_size;
	if (has_starts)
	{
		block->starts = (const uint32_t *) rest;
		rest += starts_size(block->n_rows);
	}
	if (block->kind == DPML_DENSE)
	{
		int64_t		n_values = (int64_t) block->n_rows * block->n_features;

		if (n_values > INT32_MAX)
			return DPML_BAD_LAYOUT;
		block->n_values = (int32_t) n_values;
		block->values = (const float *) rest;
	}
	else
	{
		if (length < (size_t) (rest - bytes) + rows_size)
			return DPML_TRUNCATED;
		block->row_end = (const uint32_t *) rest;
		if (block->n_rows > 0)
		{
			uint32_t	n_values = block->row_end[block->n_rows - 1];

			if (n_values > INT32_MAX)
				return DPML_BAD_LAYOUT;
			block->n_values = (int32_t) n_values;
		}
		block->columns = (const uint32_t *) (rest + rows_size);
		block->values = (const float *) (rest + rows_size + 4 * (size_t) block->n_values);
	}
	needed = dpml_block_size(block);
	if (needed == 0)
		return DPML_BAD_LAYOUT;
	return needed == length ? DPML_OK : DPML_TRUNCATED;
}

int
dpml_block_open(DpmlBlock *block, const void *bytes, size_t length)
{
	BlockHeader header;
	int			status;
	int			has_starts;

	memset(block, 0, sizeof(*block));
	if (length < DPML_BLOCK_HEADER)
		return DPML_TRUNCATED;
	if ((uintptr_t) bytes % 4 != 0)
		return DPML_BAD_LAYOUT;
	memcpy(&header, bytes, sizeof(header));
	if (header.magic != DPML_BLOCK_MAGIC)
		return DPML_BAD_MAGIC;
	if (header.version != DPML_BLOCK_VERSION)
		return DPML_BAD_VERSION;
	has_starts = (header.kind & DPML_BLOCK_UNITS) != 0;
	header.kind &= (uint16_t) ~DPML_BLOCK_UNITS;
	if ((header.kind != DPML_DENSE && header.kind != DPML_CSR) ||
		header.n_features < 1 || header.n_features > DPML_MAX_FEATURES ||
		header.n_rows > INT32_MAX)
		return DPML_BAD_LAYOUT;
	block->kind = header.kind;
	block->n_features = (int32_t) header.n_features;
	block->n_rows = (int32_t) header.n_rows;
	status = open_parts(block, bytes, length, has_starts);
	if (status == DPML_OK && block->kind == DPML_CSR)
		status = check_sparse(block);
	return status;
}

void
dpml_block_write(const DpmlBlock *block, void *out)
{
	unsigned char *at = out;
	BlockHeader header = {
		.magic = DPML_BLOCK_MAGIC,
		.version = DPML_BLOCK_VERSION,
		.kind = (uint16_t) (block->kind | (block->starts != NULL ? DPML_BLOCK_UNITS : 0)),
		.n_features = (uint32_t) block->n_features,
		.n_rows = (uint32_t) block->n_rows
	};
	size_t		rows_size = 4 * (size_t) block->n_rows;
	size_t		values_size = 4 * (size_t) block->n_values;

	memcpy(at, &header, sizeof(header));
	at += sizeof(header);
	if (rows_size == 0)
		return;
	memcpy(at, block->labels, rows_size);
	at += rows_size;
	if (block->starts != NULL)
	{
		memcpy(at, block->starts, starts_size(block->n_rows));
		at += starts_size(block->n_rows);
	}
	if (block->kind == DPML_CSR)
	{
		memcpy(at, block->row_end, rows_size);
		at += rows_size;
		if (values_size > 0)
			memcpy(at, block->columns, values_size);
		at += values_size;
	}
	if (values_size > 0)
		memcpy(at, block->values, values_size);
}

int32_t
dpml_block_capacity(int32_t kind, int32_t n_features, int32_t n_values)
{
	/* label and values of a dense row; a sparse one adds its end and its columns */
	int64_t		row_bytes = kind == DPML_CSR ? 8 + 8 * (int64_t) n_values : 4 + 4 * (int64_t) n_features;
	int64_t		limit = DPML_BLOCK_PAGE_BYTES;
	int64_t		rows;

	if (row_bytes > 4 + 4 * DPML_BLOCK_PAGE_FEATURES)
		limit = DPML_BLOCK_MAX_BYTES;
	/* an eighth of a byte a row for starts, rounded up to 4 */
	rows = (limit - DPML_BLOCK_HEADER - 4) * 8 / (8 * row_bytes + 1);
	return rows < 1 ? 1 : (int32_t) rows;
}
