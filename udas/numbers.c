/* SPDX-License-Identifier: PostgreSQL */
/*
 * SQL numbers, dates and timestamps, and arrays of them, as float8: total, so
 * numeric uses the conversion that cannot overflow.  A date is its days, a
 * timestamp its seconds since 2000-01-01.
 */
#include "numbers.h"

#include <math.h>

#include "access/htup_details.h"
#include "catalog/dependency.h"
#include "catalog/pg_type.h"
#include "commands/extension.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/date.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

static double
from_bool(Datum value)
{
	return DatumGetBool(value) ? 1.0 : 0.0;
}

static double
from_int2(Datum value)
{
	return (double) DatumGetInt16(value);
}

static double
from_int4(Datum value)
{
	return (double) DatumGetInt32(value);
}

static double
from_int8(Datum value)
{
	return (double) DatumGetInt64(value);
}

static double
from_float4(Datum value)
{
	return (double) DatumGetFloat4(value);
}

static double
from_float8(Datum value)
{
	return DatumGetFloat8(value);
}

static double
from_numeric(Datum value)
{
	return DatumGetFloat8(DirectFunctionCall1(numeric_float8_no_overflow, value));
}

static double
from_date(Datum value)
{
	DateADT		date = DatumGetDateADT(value);

	if (DATE_IS_NOBEGIN(date))
		return -HUGE_VAL;
	return DATE_IS_NOEND(date) ? HUGE_VAL : (double) date;
}

/* With a time zone or without: microseconds since 2000-01-01, in UTC or as it stands. */
static double
from_timestamp(Datum value)
{
	Timestamp	timestamp = DatumGetTimestamp(value);

	if (TIMESTAMP_IS_NOBEGIN(timestamp))
		return -HUGE_VAL;
	return TIMESTAMP_IS_NOEND(timestamp) ? HUGE_VAL : (double) timestamp / USECS_PER_SEC;
}

/* Function that reads a base type as a number; NULL if the type has no numbers. */
DpmlToNumber
dpml_number_reader(Oid type)
{
	switch (type)
	{
		case BOOLOID:
			return from_bool;
		case INT2OID:
			return from_int2;
		case INT4OID:
			return from_int4;
		case INT8OID:
			return from_int8;
		case FLOAT4OID:
			return from_float4;
		case FLOAT8OID:
			return from_float8;
		case NUMERICOID:
			return from_numeric;
		case DATEOID:
			return from_date;
		case TIMESTAMPOID:
		case TIMESTAMPTZOID:
			return from_timestamp;
		default:
			return NULL;
	}
}

/* True for pgvector's type of a name, known by its names: neither the build nor a server without it needs anything of it. */
bool
dpml_is_pgvector(Oid type, const char *type_name)
{
	HeapTuple	tuple = SearchSysCache1(TYPEOID, ObjectIdGetDatum(type));
	bool		named;
	Oid			extension;
	char	   *name;

	if (!HeapTupleIsValid(tuple))
		return false;
	named = strcmp(NameStr(((Form_pg_type) GETSTRUCT(tuple))->typname), type_name) == 0;
	ReleaseSysCache(tuple);
	if (!named)
		return false;
	extension = getExtensionOfObject(TypeRelationId, type);
	name = OidIsValid(extension) ? get_extension_name(extension) : NULL;
	return name != NULL && strcmp(name, "vector") == 0;
}

/* Prepare for arrays of a type, in the current context; false if it is no array of numbers. */
bool
dpml_array_reader_init(DpmlArrayReader *reader, Oid array_type, int width)
{
	Oid			element = get_element_type(array_type);

	reader->vector = !OidIsValid(element) && dpml_is_pgvector(array_type, "vector");
	if (reader->vector)
		element = FLOAT4OID;
	if (!OidIsValid(element))
		return false;
	reader->element = getBaseType(element);
	reader->read = dpml_number_reader(reader->element);
	if (reader->read == NULL)
		return false;
	get_typlenbyvalalign(reader->element, &reader->length, &reader->by_value, &reader->align);
	reader->width = width;
	reader->at_most = false;
	reader->scratch = palloc((Size) width * sizeof(double));
	return true;
}

/* The common fixed-length types without NULLs, whose elements lie side by side. */
static bool
read_plain(const DpmlArrayReader *reader, const void *data, int n)
{
	double	   *out = reader->scratch;

	switch (reader->element)
	{
		case FLOAT4OID:
			for (int i = 0; i < n; i++)
				out[i] = ((const float4 *) data)[i];
			return true;
		case INT2OID:
			for (int i = 0; i < n; i++)
				out[i] = ((const int16 *) data)[i];
			return true;
		case INT4OID:
			for (int i = 0; i < n; i++)
				out[i] = ((const int32 *) data)[i];
			return true;
		case INT8OID:
			for (int i = 0; i < n; i++)
				out[i] = (double) ((const int64 *) data)[i];
			return true;
		default:
			return false;
	}
}

/* Layout of a value of pgvector on disk, since its version 0.1. */
typedef struct PgVector
{
	int32		vl_len_;
	int16		n;
	int16		unused;
	float4		values[FLEXIBLE_ARRAY_MEMBER];
} PgVector;

static const double *
read_pgvector(const DpmlArrayReader *reader, Datum value, int *length)
{
	const PgVector *vector = (const PgVector *) PG_DETOAST_DATUM(value);
	Size		size = VARSIZE(vector);

	*length = size >= offsetof(PgVector, values) ? vector->n : -1;
	if (*length != reader->width || size != offsetof(PgVector, values) + *length * sizeof(float4))
		return NULL;
	(void) read_plain(reader, vector->values, *length);
	return reader->scratch;
}

/*
 * The elements of an array, row-major if it has several dimensions, NaN for
 * NULL.  Only *length is set if that is not the declared width, or with at_most
 * beyond it.
 */
const double *
dpml_array_read(DpmlArrayReader *reader, Datum value, int *length)
{
	ArrayType  *array;
	Datum	   *elements;
	bool	   *nulls;
	int			n;

	if (reader->vector)
		return read_pgvector(reader, value, length);
	array = DatumGetArrayTypeP(value);
	*length = ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array));
	if (*length > reader->width || (*length < reader->width && !reader->at_most))
		return NULL;
	if (!ARR_HASNULL(array))
	{
		if (reader->element == FLOAT8OID)
			return (const double *) ARR_DATA_PTR(array);
		if (read_plain(reader, ARR_DATA_PTR(array), *length))
			return reader->scratch;
	}
	deconstruct_array(array, ARR_ELEMTYPE(array), reader->length, reader->by_value, reader->align,
					  &elements, &nulls, &n);
	for (int i = 0; i < n; i++)
		reader->scratch[i] = nulls[i] ? NAN : reader->read(elements[i]);
	return reader->scratch;
}
