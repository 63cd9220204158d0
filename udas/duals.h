/* SPDX-License-Identifier: PostgreSQL */
/* Duals as SQL values: a bytea holds float8 numbers in the machine's byte order, one for each row of a block. */
#ifndef DPML_DUALS_H
#define DPML_DUALS_H

#include "compat.h"

#include "utils/array.h"

/*
 * The duals of a pass, in the group's memory: those given at its beginning, and those that
 * it returns, a bytea for each block, or a single one for rows that come one by one.
 */
typedef struct DpmlDuals
{
	MemoryContext context;
	const char *hint;			/* how to need less memory */
	ArrayType  *array;			/* given in the start, and changed in place; NULL: it had none */
	Datum	   *given;			/* its elements, one a block */
	int64		n_given;
	int64		n_reused;		/* parts that are such elements */
	bytea	  **parts;			/* of each block; those that are not there yet are NULL */
	int64		n_parts;
	int64		max_parts;		/* room in parts */
	char	   *next;			/* where the memory of the next new part begins */
	Size		room;			/* bytes from there on */
	int64		max_rows;		/* room in the single part that rows are appended to */
	bytea	   *begun;			/* the part whose numbers the caller changes */
	double	   *aligned;		/* those numbers, where the part's own are not aligned */
	int64		max_aligned;
	Size		used;			/* bytes */
} DpmlDuals;

extern void dpml_duals_start(DpmlDuals *duals, MemoryContext context, const char *hint);
extern void dpml_duals_read(DpmlDuals *duals, ArrayType *array);
extern const char *dpml_duals_argument(const NullableDatum *argument, int32 n_rows);
extern const char *dpml_duals_given(const DpmlDuals *duals, int64 part, int32 n_rows);
extern double *dpml_duals_begin(DpmlDuals *duals, int64 part, int32 n_rows, const char *given);
extern void dpml_duals_end(DpmlDuals *duals, const double *numbers);
extern double *dpml_duals_append(DpmlDuals *duals, int64 row, double dual);
extern double *dpml_duals_appended(const DpmlDuals *duals);
extern Datum dpml_duals_result(const DpmlDuals *duals);

#endif
