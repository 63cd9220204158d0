/* SPDX-License-Identifier: PostgreSQL */
/*
 * dpml.number, dpml.numbers, dpml.sparse_numbers: what the encoder reads in a value.  dpml check
 * counts with them the values that the encoder changes.
 */
#include "compat.h"

#include <math.h>

#include "catalog/pg_type.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"

#include "numbers.h"
#include "sparse.h"

#include "kernels/block.h"

/* Kept in fn_extra for the query. */
typedef struct ValueCache
{
	DpmlToNumber number;
	DpmlArrayReader array;
	DpmlSparseReader sparse;
	bool	   *nulls;
	Datum	   *elements;
} ValueCache;

DPML_FUNCTION(dpml_number);
DPML_FUNCTION(dpml_numbers);
DPML_FUNCTION(dpml_sparse_numbers);

static Oid
argument_type(FunctionCallInfo fcinfo, int argument)
{
	return getBaseType(get_fn_expr_argtype(fcinfo->flinfo, argument));
}

pg_noreturn static void
reject_value(Oid type, const char *what)
{
	ereport(ERROR,
			(errcode(ERRCODE_DATATYPE_MISMATCH),
			 errmsg("a value of type %s cannot be read as %s", format_type_be(type), what)));
}

/* (value "any"): the number that the encoder reads */
Datum
dpml_number(PG_FUNCTION_ARGS)
{
	ValueCache *cache = fcinfo->flinfo->fn_extra;

	if (cache == NULL)
	{
		cache = MemoryContextAllocZero(fcinfo->flinfo->fn_mcxt, sizeof(ValueCache));
		cache->number = dpml_number_reader(argument_type(fcinfo, 0));
		if (cache->number == NULL)
			reject_value(argument_type(fcinfo, 0), "a number");
		fcinfo->flinfo->fn_extra = cache;
	}
	PG_RETURN_FLOAT8(cache->number(PG_GETARG_DATUM(0)));
}

/* A cache with room for so many elements, in the current context. */
static ValueCache *
array_cache(int32 length)
{
	ValueCache *cache;

	if (length < 1 || length > DPML_MAX_FEATURES)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("the length must be from 1 to %d", DPML_MAX_FEATURES)));
	cache = palloc0(sizeof(ValueCache));
	cache->nulls = palloc(length * sizeof(bool));
	cache->elements = palloc(length * sizeof(Datum));
	return cache;
}

/* Numbers as an array, NULL for NaN. */
static Datum
numbers_array(ValueCache *cache, const double *numbers, int n)
{
	int			first = 1;

	for (int i = 0; i < n; i++)
	{
		cache->nulls[i] = isnan(numbers[i]);
		cache->elements[i] = Float8GetDatum(numbers[i]);
	}
	return PointerGetDatum(construct_md_array(cache->elements, cache->nulls, 1, &n, &first,
											  FLOAT8OID, sizeof(float8), true, TYPALIGN_DOUBLE));
}

/* (value "any", length int4): the numbers that the encoder reads from an array, null for those that it leaves out */
Datum
dpml_numbers(PG_FUNCTION_ARGS)
{
	ValueCache *cache = fcinfo->flinfo->fn_extra;
	int32		length = PG_GETARG_INT32(1);
	const double *numbers;
	int			n;

	if (cache == NULL || cache->array.width != length)
	{
		MemoryContext old = MemoryContextSwitchTo(fcinfo->flinfo->fn_mcxt);

		cache = array_cache(length);
		if (!dpml_array_reader_init(&cache->array, argument_type(fcinfo, 0), length))
			reject_value(argument_type(fcinfo, 0), "an array of numbers");
		MemoryContextSwitchTo(old);
		fcinfo->flinfo->fn_extra = cache;
	}
	numbers = dpml_array_read(&cache->array, PG_GETARG_DATUM(0), &n);
	if (numbers == NULL)
		PG_RETURN_NULL();
	PG_RETURN_DATUM(numbers_array(cache, numbers, n));
}

/*
 * (numbers "any", indices "any", length int4, first_index int4), or (vector "any", length int4) of pgvector's
 * sparsevec: the numbers that the encoder reads, null for those that it leaves out; null for a bad row.
 */
Datum
dpml_sparse_numbers(PG_FUNCTION_ARGS)
{
	ValueCache *cache = fcinfo->flinfo->fn_extra;
	bool		pair = PG_NARGS() > 2;
	int32		length = PG_GETARG_INT32(pair ? 2 : 1);
	int32		first_index = pair ? PG_GETARG_INT32(3) : 0;
	DpmlValue	value;

	if (cache == NULL || cache->sparse.width != length || cache->sparse.first_index != first_index)
	{
		MemoryContext old = MemoryContextSwitchTo(fcinfo->flinfo->fn_mcxt);

		if (first_index != 0 && first_index != 1)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("the first index must be 0 or 1")));
		cache = array_cache(length);
		if (!dpml_sparse_reader_init(&cache->sparse, argument_type(fcinfo, 0),
									 pair ? argument_type(fcinfo, 1) : InvalidOid, length, first_index))
			reject_value(argument_type(fcinfo, 0), pair ? "a sparse column with these indices" : "a sparse vector");
		MemoryContextSwitchTo(old);
		fcinfo->flinfo->fn_extra = cache;
	}
	dpml_sparse_read(&cache->sparse, &fcinfo->args[0], &fcinfo->args[1], &value);
	if (value.elements == NULL)
		PG_RETURN_NULL();
	PG_RETURN_DATUM(numbers_array(cache, value.elements, value.length));
}
