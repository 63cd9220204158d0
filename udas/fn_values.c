/* SPDX-License-Identifier: PostgreSQL */
/*
 * dpml.number, dpml.numbers: the number that the encoder reads in a value.  dpml check
 * counts with them the values that the encoder changes.
 */
#include "compat.h"

#include <math.h>

#include "catalog/pg_type.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"

#include "numbers.h"

#include "kernels/block.h"

/* Kept in fn_extra for the query. */
typedef struct ValueCache
{
	DpmlToNumber number;
	DpmlArrayReader array;
	bool	   *nulls;
	Datum	   *elements;
} ValueCache;

DPML_FUNCTION(dpml_number);
DPML_FUNCTION(dpml_numbers);

static Oid
value_type(FunctionCallInfo fcinfo)
{
	return getBaseType(get_fn_expr_argtype(fcinfo->flinfo, 0));
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
		cache->number = dpml_number_reader(value_type(fcinfo));
		if (cache->number == NULL)
			reject_value(value_type(fcinfo), "a number");
		fcinfo->flinfo->fn_extra = cache;
	}
	PG_RETURN_FLOAT8(cache->number(PG_GETARG_DATUM(0)));
}

/* (value "any", length int4): the numbers that the encoder reads from an array, null for those that it leaves out */
Datum
dpml_numbers(PG_FUNCTION_ARGS)
{
	ValueCache *cache = fcinfo->flinfo->fn_extra;
	int32		length = PG_GETARG_INT32(1);
	const double *numbers;
	int			n;
	int			first = 1;

	if (cache == NULL || cache->array.width != length)
	{
		MemoryContext old;

		if (length < 1 || length > DPML_MAX_FEATURES)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("the length must be from 1 to %d", DPML_MAX_FEATURES)));
		old = MemoryContextSwitchTo(fcinfo->flinfo->fn_mcxt);
		cache = palloc0(sizeof(ValueCache));
		if (!dpml_array_reader_init(&cache->array, value_type(fcinfo), length))
			reject_value(value_type(fcinfo), "an array of numbers");
		cache->nulls = palloc(length * sizeof(bool));
		cache->elements = palloc(length * sizeof(Datum));
		MemoryContextSwitchTo(old);
		fcinfo->flinfo->fn_extra = cache;
	}
	numbers = dpml_array_read(&cache->array, PG_GETARG_DATUM(0), &n);
	if (numbers == NULL)
		PG_RETURN_NULL();
	for (int i = 0; i < length; i++)
	{
		cache->nulls[i] = isnan(numbers[i]);
		cache->elements[i] = Float8GetDatum(numbers[i]);
	}
	PG_RETURN_ARRAYTYPE_P(construct_md_array(cache->elements, cache->nulls, 1, &length, &first,
											 FLOAT8OID, sizeof(float8), true, TYPALIGN_DOUBLE));
}
