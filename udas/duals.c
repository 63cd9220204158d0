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

/* Memory for parts comes in pieces of at most so many bytes, and a quarter of what is in use. */
#define PIECE ((Size) 1 << 20)

static const char what[] = "the duals";

DPML_FUNCTION(dpml_duals_sql);

/* No duals yet, in zeroed memory; hint is kept. */
void
dpml_duals_start(DpmlDuals *duals, MemoryContext context, const char *hint)
{
	duals->context = context;
	duals->hint = hint;
}

/*
 * Keep the duals in a start, one bytea for each block of the pass before.  The array is changed
 * by the pass: it is the caller's own, in the context of the duals.
 */
void
dpml_duals_read(DpmlDuals *duals, ArrayType *array)
{
	Datum	   *elements;
	int			n;
	MemoryContext old;

	if (ARR_NDIM(array) == 0)
		return;
	if (ARR_NDIM(array) != 1 || array_contains_nulls(array))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("the duals in start must be a one-dimensional array without nulls")));
	dpml_count_memory(&duals->used, VARSIZE(array) + (Size) ARR_DIMS(array)[0] * sizeof(Datum), what, duals->hint);
	old = MemoryContextSwitchTo(duals->context);
	deconstruct_array(array, BYTEAOID, -1, false, TYPALIGN_INT, &elements, NULL, &n);
	MemoryContextSwitchTo(old);
	ARR_LBOUND(array)[0] = 1;	/* as in every result */
	duals->given = elements;
	duals->n_given = n;
	duals->array = array;
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
	return numbers_of((const bytea *) DatumGetPointer(duals->given[part]), n_rows);
}

/* Memory for a part: of a piece for many, as an allocation for each would take almost twice the memory. */
static char *
new_room(DpmlDuals *duals, Size size)
{
	char	   *room;

	if (size > duals->room)
	{
		duals->room = Max(size, Min(duals->used / 4, PIECE));
		dpml_count_memory(&duals->used, duals->room, what, duals->hint);
		duals->next = MemoryContextAllocHuge(duals->context, duals->room);
	}
	room = duals->next;
	duals->next += size;
	duals->room -= size;
	return room;
}

/* The bytea for the duals of a block, which must not be there yet: the one that the start has for it, or a new one. */
static bytea *
new_part(DpmlDuals *duals, int64 part, Size n_rows)
{
	int64		more = Max(part + 1 - duals->n_parts, 0);

	dpml_count_memory(&duals->used, (Size) more * sizeof(bytea *), what, duals->hint);
	duals->parts = dpml_reserve(duals->context, duals->parts, part + 1, &duals->max_parts);
	for (; duals->n_parts <= part; duals->n_parts++)
		duals->parts[duals->n_parts] = NULL;
	if (duals->parts[part] != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("block %lld comes twice", (long long) part)));
	if (part < duals->n_given &&
		VARSIZE_ANY_EXHDR(DatumGetPointer(duals->given[part])) == n_rows * sizeof(double))
	{
		duals->n_reused++;
		duals->parts[part] = (bytea *) DatumGetPointer(duals->given[part]);
	}
	else
	{
		duals->parts[part] = (bytea *) (new_room(duals, DUALS_BEFORE + n_rows * sizeof(double)) + DUALS_BEFORE - VARHDRSZ);
		SET_VARSIZE(duals->parts[part], VARHDRSZ + n_rows * sizeof(double));
	}
	return duals->parts[part];
}

/* Aligned room for the numbers of one block. */
static char *
aligned_room(DpmlDuals *duals, int64 n_rows)
{
	Size		size = (Size) n_rows * sizeof(double);

	if (n_rows > duals->max_aligned)
	{
		dpml_count_memory(&duals->used, size - (Size) duals->max_aligned * sizeof(double), what, duals->hint);
		duals->aligned = duals->aligned == NULL ? MemoryContextAllocHuge(duals->context, size)
			: repalloc_huge(duals->aligned, size);
		duals->max_aligned = n_rows;
	}
	return (char *) duals->aligned;
}

/*
 * Begin the duals of a block: those given, as dpml_duals_given returns them, or zeros.  The caller
 * changes them, and ends the block by dpml_duals_end before it begins another.
 */
double *
dpml_duals_begin(DpmlDuals *duals, int64 part, int32 n_rows, const char *given)
{
	bytea	   *bytes = new_part(duals, part, (Size) n_rows);
	Size		size = (Size) n_rows * sizeof(double);
	char	   *numbers = VARDATA_ANY(bytes);

	/* those in an array have no alignment */
	if (numbers != (char *) TYPEALIGN(sizeof(double), numbers))
		numbers = aligned_room(duals, Max(n_rows, 1));
	if (given == NULL)
		memset(numbers, 0, size);
	else if (given != numbers)
		memcpy(numbers, given, size);
	duals->begun = bytes;
	return (double *) numbers;
}

/* End the duals of a block that dpml_duals_begin returned. */
void
dpml_duals_end(DpmlDuals *duals, const double *numbers)
{
	if ((const char *) numbers != VARDATA_ANY(duals->begun))
		memcpy(VARDATA_ANY(duals->begun), numbers, VARSIZE_ANY_EXHDR(duals->begun));
}

/* The dual of row `row`, the next one, in a part of all rows.  The pointer is good until the next call. */
double *
dpml_duals_append(DpmlDuals *duals, int64 row, double dual)
{
	double	   *numbers;

	if (row >= duals->max_rows)
	{
		int64		more = Max(duals->max_rows, 1024);
		Size		size = DUALS_BEFORE + (Size) (duals->max_rows + more) * sizeof(double);
		char	   *room;

		dpml_count_memory(&duals->used, (Size) more * sizeof(double), what, duals->hint);
		if (size > MaxAllocSize)
			ereport(ERROR,
					(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
					 errmsg("the duals of %lld rows are too large for one bytea", (long long) row + 1),
					 errhint("Pack the rows by dpml.pack, and use the form of dpml.scd_epoch over blocks.")));
		if (duals->n_parts == 0)
		{
			duals->parts = dpml_reserve(duals->context, duals->parts, 1, &duals->max_parts);
			duals->n_parts = 1;
			room = MemoryContextAllocHuge(duals->context, size);
		}
		else
			room = repalloc_huge((char *) duals->parts[0] + VARHDRSZ - DUALS_BEFORE, size);
		duals->parts[0] = (bytea *) (room + DUALS_BEFORE - VARHDRSZ);
		duals->max_rows += more;
	}
	SET_VARSIZE(duals->parts[0], VARHDRSZ + (Size) (row + 1) * sizeof(double));
	numbers = (double *) VARDATA(duals->parts[0]);
	numbers[row] = dual;
	return numbers + row;
}

/* The numbers of all rows so far, which were appended. */
double *
dpml_duals_appended(const DpmlDuals *duals)
{
	Assert(duals->n_parts == 1);
	return (double *) VARDATA(duals->parts[0]);
}

/*
 * All parts as a bytea[].  It can be large, so its bytes are written once, or not at all where it is
 * the array of the start: construct_array would clear them first.
 */
Datum
dpml_duals_result(const DpmlDuals *duals)
{
	bool		in_place = duals->n_reused == duals->n_parts && duals->n_parts == duals->n_given;
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
		size += VARHDRSZ + VARSIZE_ANY_EXHDR(duals->parts[i]);
	}
	/* the array is part of a row, whose header is less than a page */
	if (size > MaxAllocSize - BLCKSZ)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("the duals need %zu bytes, and a result of dpml.scd_epoch has room for %zu",
						size, (Size) MaxAllocSize - BLCKSZ),
				 errhint("Use fewer rows: each needs 8 bytes.")));
	if (in_place)
		return PointerGetDatum(duals->array);
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
		Size		length = VARSIZE_ANY_EXHDR(duals->parts[i]);

		/* a multiple of 4 bytes each, so that the next one is aligned */
		SET_VARSIZE(end, VARHDRSZ + length);
		memcpy(VARDATA(end), VARDATA_ANY(duals->parts[i]), length);
		end += VARHDRSZ + length;
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
