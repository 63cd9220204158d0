/* SPDX-License-Identifier: PostgreSQL */
/* dpml.encode: a record to a block of one row. */
#include "compat.h"

#include "utils/memutils.h"

#include "reader.h"
#include "spec.h"
#include "support.h"

/* Kept in fn_extra for the query. */
typedef struct EncodeCache
{
	MemoryContext context;		/* of everything here, the struct apart */
	Jsonb	   *source;			/* the specification as given */
	bool		stable;			/* the argument cannot change within the query */
	DpmlReader *reader;
} EncodeCache;

DPML_FUNCTION(dpml_encode);

static void
load_spec(EncodeCache *cache, Jsonb *source)
{
	cache->source = NULL;		/* stays so if there is an error */
	MemoryContextReset(cache->context);
	cache->reader = dpml_reader_create(source, cache->context);
	cache->source = dpml_copy_jsonb(cache->context, source);
}

static EncodeCache *
get_cache(FunctionCallInfo fcinfo)
{
	EncodeCache *cache = fcinfo->flinfo->fn_extra;
	Jsonb	   *source;

	if (likely(cache != NULL && cache->stable && cache->source != NULL))
		return cache;
	if (PG_ARGISNULL(0))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("the specification must not be null")));
	source = PG_GETARG_JSONB_P(0);
	if (cache == NULL)
	{
		cache = MemoryContextAllocZero(fcinfo->flinfo->fn_mcxt, sizeof(EncodeCache));
		cache->context = AllocSetContextCreate(fcinfo->flinfo->fn_mcxt, "dpml.encode", ALLOCSET_DEFAULT_SIZES);
		cache->stable = get_fn_expr_arg_stable(fcinfo->flinfo, 0);
		fcinfo->flinfo->fn_extra = cache;
	}
	if (cache->source == NULL || !dpml_same_bytes(cache->source, source))
		load_spec(cache, source);
	return cache;
}

/*
 * (spec jsonb, r record [, starts_unit boolean]).  A row without a declared
 * label, where the specification has one, is a zero row.
 */
Datum
dpml_encode(PG_FUNCTION_ARGS)
{
	EncodeCache *cache = get_cache(fcinfo);
	const DpmlSpec *spec = dpml_reader_spec(cache->reader);
	HeapTupleHeader record = PG_ARGISNULL(1) ? NULL : PG_GETARG_HEAPTUPLEHEADER(1);
	DpmlFeatures features;
	DpmlLabel	label;
	DpmlBlock	block = {0};
	float		y;
	uint32		row_end;
	uint32		start;

	dpml_reader_encode(cache->reader, record, &features);
	dpml_reader_label(cache->reader, record, &label);
	if (spec->label_kind != DPML_LABEL_NONE && !label.declared)
		dpml_reader_encode(cache->reader, NULL, &features);
	y = (float) label.y;

	block.kind = spec->block_kind;
	block.n_features = spec->encoder.n_features;
	block.n_rows = 1;
	block.n_values = features.n;
	block.labels = &y;
	if (PG_NARGS() > 2)
	{
		start = PG_ARGISNULL(2) || PG_GETARG_BOOL(2);
		block.starts = &start;
	}
	block.values = features.values;
	if (spec->block_kind == DPML_CSR)
	{
		row_end = (uint32) features.n;
		block.row_end = &row_end;
		block.columns = features.columns;
	}
	PG_RETURN_BYTEA_P(dpml_make_block(&block));
}
