/* SPDX-License-Identifier: PostgreSQL */
/* Memory of an aggregate, checked sizes, and SQL values: float8 arrays, packed blocks, jsonb, random keys. */
#include "support.h"

#include <math.h>

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/typcache.h"

#include "kernels/status.h"

/* Steps taken before a pass: schedules are exact up to here, and counting goes on without overflow. */
#define MAX_STEPS ((int64) 1 << 53)

/*
 * The memory of an aggregate's group.  A window frame would call the final
 * function many times over a growing state, so OVER is rejected.
 */
MemoryContext
dpml_aggregate_context(FunctionCallInfo fcinfo, const char *aggregate)
{
	MemoryContext context;
	int			kind = AggCheckCallContext(fcinfo, &context);

	if (kind == AGG_CONTEXT_WINDOW)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("dpml.%s cannot be used as a window function", aggregate),
				 errhint("Remove the OVER clause; use GROUP BY for one result per group.")));
	if (kind != AGG_CONTEXT_AGGREGATE)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("a support function of dpml.%s was called outside an aggregate", aggregate),
				 errhint("Call the aggregate.")));
	return context;
}

/*
 * The state of type internal in the first argument, which begins with a pointer to
 * the very name that its aggregate passes here; NULL before the first row.  Only a
 * superuser's own aggregate can mix functions of several.
 */
void *
dpml_state_argument(FunctionCallInfo fcinfo, const char *aggregate)
{
	void	   *state = PG_ARGISNULL(0) ? NULL : PG_GETARG_POINTER(0);

	if (unlikely(state != NULL && *(const char *const *) state != aggregate))
		elog(ERROR, "state is not one of dpml.%s", aggregate);
	return state;
}

/* Zeroed memory that may be larger than 1 GB. */
void *
dpml_alloc(MemoryContext context, Size size)
{
	return MemoryContextAllocExtended(context, size, MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
}

/* Numbers in a weight matrix that must also fit a float8[]. */
Size
dpml_weights_count(int32 n_outputs, int32 n_features)
{
	uint64		n = (uint64) n_outputs * (uint64) n_features;

	if (n > (MaxAllocSize - ARR_OVERHEAD_NONULLS(1)) / sizeof(float8))
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("a model of %d x %d weights does not fit a float8[]", n_outputs, n_features),
				 errhint("Use fewer features or fewer classes.")));
	return (Size) n;
}

/* Rows (of so many that are left, > 0; n_weights weights each) to process before the next interrupt check; checks now. */
int32
dpml_rows_piece(int64 n_weights, int32 rows)
{
	CHECK_FOR_INTERRUPTS();
	return (int32) Min(rows, Max(DPML_NUMBERS_PER_CHECK / n_weights, 1));
}

ArrayType *
dpml_float8_array(const double *values, Size n)
{
	Size		size = ARR_OVERHEAD_NONULLS(1) + n * sizeof(float8);
	ArrayType  *array = palloc(size);

	SET_VARSIZE(array, size);
	array->ndim = 1;
	array->dataoffset = 0;
	array->elemtype = FLOAT8OID;
	ARR_DIMS(array)[0] = (int) n;
	ARR_LBOUND(array)[0] = 1;
	memcpy(ARR_DATA_PTR(array), values, n * sizeof(float8));
	return array;
}

/* An argument that must be a vector.  A NULL element is an error here, but not in a row. */
const double *
dpml_float8_argument(ArrayType *array, const char *name, Size *n)
{
	if (ARR_ELEMTYPE(array) != FLOAT8OID)
		elog(ERROR, "%s is not an array of float8", name);
	if (ARR_NDIM(array) != 1 || ARR_DIMS(array)[0] < 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must be a one-dimensional array with at least one element", name)));
	if (array_contains_nulls(array))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("%s must not contain nulls", name)));
	*n = (Size) ARR_DIMS(array)[0];
	return (const double *) ARR_DATA_PTR(array);
}

/* The same, of a vector that must be finite. */
const double *
dpml_finite_argument(ArrayType *array, const char *name, Size *n)
{
	const double *values = dpml_float8_argument(array, name, n);

	for (Size i = 0; i < *n; i++)
	{
		if (!isfinite(values[i]))
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("%s must have finite elements", name)));
	}
	return values;
}

/*
 * The attributes of a composite value, which must be of the types wanted; InvalidOid
 * is one that is not read.  The values stay in the caller's memory.
 */
void
dpml_take_apart(Datum composite, const char *type, const Oid *wanted, int n, Datum *values, bool *nulls)
{
	HeapTupleHeader header = DatumGetHeapTupleHeader(composite);
	TupleDesc	desc = lookup_rowtype_tupdesc(HeapTupleHeaderGetTypeId(header), HeapTupleHeaderGetTypMod(header));
	HeapTupleData tuple;

	if (desc->natts != n)
		elog(ERROR, "start is not a %s", type);
	for (int i = 0; i < n; i++)
		if (OidIsValid(wanted[i]) && TupleDescAttr(desc, i)->atttypid != wanted[i])
			elog(ERROR, "start is not a %s", type);
	tuple.t_len = HeapTupleHeaderGetDatumLength(header);
	tuple.t_data = header;
	heap_deform_tuple(&tuple, desc, values, nulls);
	ReleaseTupleDesc(desc);
}

/* The steps in a start: those of the passes before. */
int64
dpml_steps_before(Datum steps, bool isnull)
{
	int64		before = isnull ? 0 : DatumGetInt64(steps);

	if (before < 0 || before > MAX_STEPS)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("steps in start must be an integer from 0 to 2^53")));
	return before;
}

static const char *
block_status_text(int status)
{
	switch (status)
	{
		case DPML_TRUNCATED:
			return "packed block has another length than its header says";
		case DPML_BAD_MAGIC:
			return "bytes are not a packed block";
		case DPML_BAD_VERSION:
			return "packed block has an unknown format version";
		default:
			return "packed block is inconsistent";
	}
}

/*
 * Validate a bytea and view it in place.  One that is plain on its page or in
 * a sort is not copied: its payload follows a 4-byte header and is aligned.
 */
void
dpml_open_block(DpmlBlock *block, Datum bytes)
{
	bytea	   *value = DatumGetByteaP(bytes);
	int			status;

	/* Typalign of bytea is 4, so this copies nothing but the odd forged datum. */
	if (((uintptr_t) VARDATA(value)) % sizeof(uint32) != 0)
	{
		bytea	   *copy = palloc(VARSIZE(value));

		memcpy(copy, value, VARSIZE(value));
		value = copy;
	}
	status = dpml_block_open(block, VARDATA(value), VARSIZE(value) - VARHDRSZ);
	if (status != DPML_OK)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("%s", block_status_text(status)),
				 errhint("Blocks are made by dpml.encode and dpml.pack, on a machine of the same byte order.")));
}

/* The block in an argument that must not be null. */
void
dpml_block_argument(DpmlBlock *block, const NullableDatum *argument)
{
	if (argument->isnull)
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("block must not be null")));
	dpml_open_block(block, argument->value);
}

/* The bytes of a block as a new bytea. */
bytea *
dpml_make_block(const DpmlBlock *block)
{
	Size		size = dpml_block_size(block);
	bytea	   *value;

	if (size == 0 || size > MaxAllocSize - VARHDRSZ)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("packed block would be larger than 1 GB"),
				 errhint("Pack fewer rows into a block; dpml.block_capacity says how many are best.")));
	value = palloc(size + VARHDRSZ);
	SET_VARSIZE(value, size + VARHDRSZ);
	dpml_block_write(block, VARDATA(value));
	return value;
}

/* A key from the operating system, for one generator. */
void
dpml_random_key(uint8 key[DPML_KEY_BYTES])
{
	if (!pg_strong_random(key, DPML_KEY_BYTES))
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("the operating system gave no random bytes for noise or sampling")));
}

/* Are two detoasted values the same bytes? */
bool
dpml_same_bytes(const void *a, const void *b)
{
	return VARSIZE(a) == VARSIZE(b) && memcmp(a, b, VARSIZE(a)) == 0;
}

Jsonb *
dpml_copy_jsonb(MemoryContext context, Jsonb *json)
{
	Jsonb	   *copy = MemoryContextAlloc(context, VARSIZE(json));

	memcpy(copy, json, VARSIZE(json));
	return copy;
}
