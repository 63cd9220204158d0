/* SPDX-License-Identifier: PostgreSQL */
/*
 * dpml.batch_sizes and dpml.random_key: which batch a unit is in, and a random order
 * (privacy/README.md, "Batches by random allocation").
 */
#include "compat.h"

#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/uuid.h"

#include "support.h"

#include "kernels/random.h"

#define UNITS_PER_CHECK ((int64) 1 << 20)
#define MOST_BATCHES (1 << 24)

DPML_FUNCTION(dpml_batch_sizes);
DPML_FUNCTION(dpml_random_uuid);

/* (units int8, batches int4) -> int4[]: every unit draws a batch, and they are counted. */
Datum
dpml_batch_sizes(PG_FUNCTION_ARGS)
{
	int64		units = PG_GETARG_INT64(0);
	int32		batches = PG_GETARG_INT32(1);
	uint8		key[DPML_KEY_BYTES];
	DpmlRng    *rng;
	int32	   *sizes;
	ArrayType  *array;

	if (units < 0 || units > PG_INT32_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("units must be an integer from 0 to %d", PG_INT32_MAX)));
	if (batches < 1 || batches > MOST_BATCHES)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("batches must be an integer from 1 to %d", MOST_BATCHES)));
	array = palloc0(ARR_OVERHEAD_NONULLS(1) + (Size) batches * sizeof(int32));
	SET_VARSIZE(array, ARR_OVERHEAD_NONULLS(1) + (Size) batches * sizeof(int32));
	array->ndim = 1;
	array->elemtype = INT4OID;
	ARR_DIMS(array)[0] = batches;
	ARR_LBOUND(array)[0] = 1;
	sizes = (int32 *) ARR_DATA_PTR(array);
	rng = palloc(sizeof(*rng));
	dpml_random_key(key);
	dpml_rng_start(rng, key);
	explicit_bzero(key, sizeof(key));
	for (int64 i = 0; i < units; i += UNITS_PER_CHECK)
	{
		CHECK_FOR_INTERRUPTS();
		dpml_rng_deal(rng, Min(units - i, UNITS_PER_CHECK), batches, sizes);
	}
	explicit_bzero(rng, sizeof(*rng));
	PG_RETURN_ARRAYTYPE_P(array);
}

/* () -> uuid of 128 random bits.  The generator is the plan's in this process: it has a key of its own and ends with it. */
Datum
dpml_random_uuid(PG_FUNCTION_ARGS)
{
	DpmlRng    *rng = fcinfo->flinfo->fn_extra;
	pg_uuid_t  *uuid = palloc(sizeof(pg_uuid_t));
	uint64		words[2];

	if (rng == NULL)
	{
		uint8		key[DPML_KEY_BYTES];

		dpml_random_key(key);
		rng = MemoryContextAlloc(fcinfo->flinfo->fn_mcxt, sizeof(*rng));
		dpml_rng_start(rng, key);
		explicit_bzero(key, sizeof(key));
		fcinfo->flinfo->fn_extra = rng;
	}
	words[0] = dpml_rng_word(rng);
	words[1] = dpml_rng_word(rng);
	memcpy(uuid->data, words, sizeof(words));
	PG_RETURN_UUID_P(uuid);
}
