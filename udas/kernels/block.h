/* SPDX-License-Identifier: PostgreSQL */
/*
 * Packed rows, native byte order, every part aligned to 4 bytes:
 *
 *	| magic u32 | version u16 | kind u16 | n_features u32 | n_rows u32 |
 *	| labels f32[n_rows] | starts u32[ceil(n_rows / 32)], only with the flag DPML_BLOCK_UNITS in kind |
 *	dense: | values f32[n_rows * n_features] (row-major) |
 *	CSR:   | row_end u32[n_rows] | columns u32[nnz] | values f32[nnz] |
 *
 * Bit i % 32 of starts[i / 32] says that row i is the first of its unit of
 * privacy; without starts every row is a unit.  row_end[i] is the end of row i in
 * columns and values; columns rise strictly inside a row.
 */
#ifndef DPML_BLOCK_H
#define DPML_BLOCK_H

#include <stddef.h>
#include <stdint.h>

#include "status.h"

enum DpmlBlockConstant
{
	DPML_BLOCK_MAGIC = 0x4b4c4244,	/* "DBLK" in little-endian bytes */
	DPML_BLOCK_VERSION = 1,
	DPML_BLOCK_HEADER = 16,
	DPML_BLOCK_PAGE_BYTES = 8112,	/* largest payload of a block that fits one heap page beside its number */
	DPML_BLOCK_MAX_BYTES = 1048576,	/* largest payload of a block stored out of line */
	DPML_BLOCK_PAGE_FEATURES = 1000,	/* wider dense rows go out of line */
	DPML_BLOCK_UNITS = 256,		/* flag in the header's kind: the block has starts */
	DPML_MAX_FEATURES = 1048576
};

enum DpmlBlockKind
{
	DPML_DENSE = 0,
	DPML_CSR = 1
};

/* A view into validated bytes; it owns nothing. */
typedef struct DpmlBlock
{
	int32_t		kind;			/* enum DpmlBlockKind */
	int32_t		n_features;
	int32_t		n_rows;
	int32_t		n_values;		/* stored values: n_rows * n_features, or nnz */
	const float *labels;
	const uint32_t *starts;		/* first rows of units, as above; NULL: every row */
	const float *values;
	const uint32_t *row_end;	/* CSR only, else NULL */
	const uint32_t *columns;	/* CSR only, else NULL */
} DpmlBlock;

/* Check every length and number in untrusted bytes, then point block into them.  bytes must be 4-byte aligned. */
int			dpml_block_open(DpmlBlock *block, const void *bytes, size_t length);

/* Bytes that dpml_block_write needs for the block a view describes; 0 if its numbers are out of range. */
size_t		dpml_block_size(const DpmlBlock *block);

/* 1 if row i of a block begins a unit. */
int			dpml_block_starts_unit(const DpmlBlock *block, int32_t i);

/*
 * A view of rows first .. first + n - 1.  starts has room for ceil(n / 32) words, row_end for n; they must live
 * as long as the view, and are not used where the block has no such part.
 */
void		dpml_block_part(const DpmlBlock *block, int32_t first, int32_t n, uint32_t *starts, uint32_t *row_end,
							DpmlBlock *part);

/* Write the block that the view describes to out, which has dpml_block_size bytes. */
void		dpml_block_write(const DpmlBlock *block, void *out);

/* Rows of n_features (n_values stored values each at most) that fit a block; at least 1. */
int32_t		dpml_block_capacity(int32_t kind, int32_t n_features, int32_t n_values);

#endif
