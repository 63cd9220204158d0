/* SPDX-License-Identifier: PostgreSQL */
/* Sparse columns: the elements that a row gives, and their places. */
#ifndef DPML_SPARSE_H
#define DPML_SPARSE_H

#include "compat.h"

#include "numbers.h"

#include "kernels/encode.h"

typedef struct DpmlSparseReader
{
	bool		vector;			/* pgvector's sparsevec, not a pair of arrays */
	DpmlArrayReader values;
	DpmlArrayReader indices;
	int			width;			/* elements, given or not */
	int			first_index;	/* of the pair's indices: 0 or 1 */
	uint32	   *places;			/* room for width of each */
	double	   *elements;
	uint64	   *order;
} DpmlSparseReader;

extern bool dpml_sparse_reader_init(DpmlSparseReader *reader, Oid values_type, Oid indices_type, int width,
									int first_index);
extern void dpml_sparse_read(DpmlSparseReader *reader, const NullableDatum *values, const NullableDatum *indices,
							 DpmlValue *value);

#endif
