/* SPDX-License-Identifier: PostgreSQL */
/* Duals of packed rows: read from a bytea, kept in an aggregate's memory, and returned. */
#include "duals.h"

#include "catalog/pg_type.h"
#include "utils/array.h"
#include "utils/memutils.h"

#include "row_store.h"
#include "support.h"

/* Before the numbers of a part, so that they are aligned; the last VARHDRSZ bytes of them are the bytea's header. */
#define DUALS_BEFORE sizeof(double)

static const char what[] = "the duals";

DPML_FUNCTION(dpml_duals_sql);

/* No duals yet, in zeroed memory; hint is kept. */
void
dpml_duals_start(DpmlDuals *duals, MemoryContext context, const char *hint)
{
	duals->context = context;
	duals->hint = hint;
}

/* Keep a copy of the duals in a start, one bytea for each block of the pass before. */
void
dpml_duals_read(DpmlDuals *duals, ArrayType *array)
{
	ArrayType  *copy;
	Datum	   *elements;
	int			n;

	if (ARR_NDIM(array) == 0)
		return;
	if (ARR_NDIM(array) != 1 || array_contains_nulls(array))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("the duals in start must be a one-dimensional array without nulls")));
	dpml_count_memory(&duals->used, VARSIZE(array) + (Size) ARR_DIMS(array)[0] * sizeof(Datum), what, duals->hint);
	copy = MemoryContextAllocHuge(duals->context, VARSIZE(array));
	memcpy(copy, array, VARSIZE(array));
	deconstruct_array(copy, BYTEAOID, -1, false, TYPALIGN_INT, &elements, NULL, &n);
	duals->given = MemoryContextAllocHuge(duals->context, (Size) n * sizeof(bytea *));
	for (int i = 0; i < n; i++)
		duals->given[i] = (const bytea *) DatumGetPointer(elements[i]);
	duals->n_given = n;
	pfree(elements);
}

/* The bytes of n_rows float8 numbers, which have no alignment. */
static const char *
numbers_of(const bytea *bytes, int32 n_rows)
{
	if (VARSIZE_ANY_EXHDR(bytes) != (Size) n_rows * sizeof(double))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("duals must be null or have %zu bytes, 8 for each row of the block, not %zu",
						(Size) n_rows * sizeof(double), (Size) VARSIZE_ANY_EXHDR(bytes))));
	return VARDATA_ANY(bytes);
}

/* The duals of n_rows rows in an argument; NULL is NULL. */
const char *
dpml_duals_argument(const NullableDatum *argument, int32 n_rows)
{
	return argument->isnull ? NULL : numbers_of(DatumGetByteaPP(argument->value), n_rows);
}

/* Those of a block in the start; NULL if it had none. */
const char *
dpml_duals_given(const DpmlDuals *duals, int64 part, int32 n_rows)
{
	if (duals->given == NULL)
		return NULL;
	if (part >= duals->n_given)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("start has the duals of %lld blocks, and there is a block %lld",
						(long long) duals->n_given, (long long) part),
				 errhint("Use the result of a pass over the same blocks.")));
	return numbers_of(duals->given[part], n_rows);
}

/* Room for the duals of a block, which must not be there yet. */
static char *
new_part(DpmlDuals *duals, int64 part, Size n_rows)
{
	int64		more = Max(part + 1 - duals->n_parts, 0);
	char	   *room;

	dpml_count_memory(&duals->used, (Size) more * sizeof(char *) + DUALS_BEFORE + n_rows * sizeof(double), what,
					  duals->hint);
	duals->parts = dpml_reserve(duals->context, duals->parts, part + 1, &duals->max_parts);
	for (; duals->n_parts <= part; duals->n_parts++)
		duals->parts[duals->n_parts] = NULL;
	if (duals->parts[part] != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("block %lld comes twice", (long long) part)));
	room = MemoryContextAllocHuge(duals->context, DUALS_BEFORE + n_rows * sizeof(double));
	duals->parts[part] = room;
	return room;
}

/* The bytea that a part is, its header included. */
static bytea *
bytea_of(char *part)
{
	return (bytea *) (part + DUALS_BEFORE - VARHDRSZ);
}

static void
set_length(char *part, Size n_rows)
{
	SET_VARSIZE(bytea_of(part), VARHDRSZ + n_rows * sizeof(double));
}

/* The part of a block, whose duals the caller writes. */
double *
dpml_duals_add(DpmlDuals *duals, int64 part, int32 n_rows)
{
	char	   *room = new_part(duals, part, (Size) n_rows);

	set_length(room, (Size) n_rows);
	return (double *) (room + DUALS_BEFORE);
}

/* The dual of row `row`, the next one, in a part of all rows.  The pointer is good until the next call. */
double *
dpml_duals_append(DpmlDuals *duals, int64 row, double dual)
{
	double	   *room;

	if (row >= duals->max_rows)
	{
		int64		more = Max(duals->max_rows, 1024);

		if (duals->n_parts == 0)
			(void) new_part(duals, 0, (Size) more);
		else
		{
			Size		size = DUALS_BEFORE + (Size) (duals->max_rows + more) * sizeof(double);

			dpml_count_memory(&duals->used, (Size) more * sizeof(double), what, duals->hint);
			if (size > MaxAllocSize)
				ereport(ERROR,
						(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
						 errmsg("the duals of %lld rows are too large for one bytea", (long long) row + 1),
						 errhint("Pack the rows by dpml.pack, and use the form of dpml.scd_epoch over blocks.")));
			duals->parts[0] = repalloc_huge(duals->parts[0], size);
		}
		duals->max_rows += more;
	}
	set_length(duals->parts[0], (Size) row + 1);
	room = (double *) (duals->parts[0] + DUALS_BEFORE) + row;
	*room = dual;
	return room;
}

/* The numbers of a part. */
double *
dpml_duals_of(const DpmlDuals *duals, int64 part)
{
	Assert(part >= 0 && part < duals->n_parts);
	return (double *) (duals->parts[part] + DUALS_BEFORE);
}

/* All parts as a bytea[].  It can be large, so its bytes are written once: construct_array would clear them first. */
Datum
dpml_duals_result(const DpmlDuals *duals)
{
	Size		size = ARR_OVERHEAD_NONULLS(1);
	ArrayType  *array;
	char	   *end;

	if (duals->n_parts == 0)
		return PointerGetDatum(construct_empty_array(BYTEAOID));
	for (int64 i = 0; i < duals->n_parts; i++)
	{
		if (duals->parts[i] == NULL)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("block %lld is missing", (long long) i),
					 errhint("Blocks must have the numbers 0, 1, 2, ..., each once.")));
		size += VARSIZE(bytea_of(duals->parts[i]));
	}
	/* the array is part of a row, whose header is less than a page */
	if (size > MaxAllocSize - BLCKSZ)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("the duals need %zu bytes, and a result of dpml.scd_epoch has room for %zu",
						size, (Size) MaxAllocSize - BLCKSZ),
				 errhint("Use fewer rows: each needs 8 bytes.")));
	array = palloc(size);
	SET_VARSIZE(array, size);
	array->ndim = 1;
	array->dataoffset = 0;
	array->elemtype = BYTEAOID;
	ARR_DIMS(array)[0] = (int) duals->n_parts;
	ARR_LBOUND(array)[0] = 1;
	end = ARR_DATA_PTR(array);
	for (int64 i = 0; i < duals->n_parts; i++)
	{
		const bytea *part = bytea_of(duals->parts[i]);

		/* a multiple of 4 bytes each, so that the next one is aligned */
		memcpy(end, part, VARSIZE(part));
		end += VARSIZE(part);
	}
	return PointerGetDatum(array);
}

/* (duals bytea) -> float8[] */
Datum
dpml_duals_sql(PG_FUNCTION_ARGS)
{
	bytea	   *bytes = PG_GETARG_BYTEA_PP(0);
	Size		size = VARSIZE_ANY_EXHDR(bytes);
	double	   *numbers;

	if (size % sizeof(double) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("duals must have 8 bytes for each row, and %zu is no multiple of 8", size)));
	if (size == 0)
		PG_RETURN_ARRAYTYPE_P(construct_empty_array(FLOAT8OID));
	numbers = palloc(size);
	memcpy(numbers, VARDATA_ANY(bytes), size);
	PG_RETURN_ARRAYTYPE_P(dpml_float8_array(numbers, size / sizeof(double)));
}
