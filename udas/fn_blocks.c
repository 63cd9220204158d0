/* SPDX-License-Identifier: PostgreSQL */
/* Blocks as SQL sees them: dpml.rows and dpml.unpack take one apart, dpml.block_capacity says how large one should be. */
#include "compat.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "funcapi.h"
#include "utils/array.h"
#include "utils/builtins.h"

#include "support.h"

#include "kernels/block.h"

DPML_FUNCTION(dpml_rows);
DPML_FUNCTION(dpml_unpack);
DPML_FUNCTION(dpml_block_capacity_sql);

/* Room for the parts of a view of one row that the block does not have. */
typedef struct RowParts
{
	uint32		starts;
	uint32		row_end;
} RowParts;

/* A view of row i of a block. */
static DpmlBlock
one_row(const DpmlBlock *block, int32 i, RowParts *parts)
{
	DpmlBlock	row;

	dpml_block_part(block, i, 1, &parts->starts, &parts->row_end, &row);
	return row;
}

/* Set up a set-returning call over a copy of the block argument. */
static FuncCallContext *
first_call(FunctionCallInfo fcinfo)
{
	FuncCallContext *call = SRF_FIRSTCALL_INIT();
	MemoryContext old = MemoryContextSwitchTo(call->multi_call_memory_ctx);
	DpmlBlock  *block = palloc(sizeof(DpmlBlock));

	dpml_open_block(block, PointerGetDatum(PG_GETARG_BYTEA_P_COPY(0)));
	call->user_fctx = block;
	call->max_calls = block->n_rows;
	MemoryContextSwitchTo(old);
	return call;
}

/* (block bytea) -> setof bytea, each a block of one row */
Datum
dpml_rows(PG_FUNCTION_ARGS)
{
	FuncCallContext *call;
	DpmlBlock	row;
	RowParts	parts;

	if (SRF_IS_FIRSTCALL())
		(void) first_call(fcinfo);
	call = SRF_PERCALL_SETUP();
	if (call->call_cntr >= call->max_calls)
		SRF_RETURN_DONE(call);
	row = one_row((DpmlBlock *) call->user_fctx, (int32) call->call_cntr, &parts);
	SRF_RETURN_NEXT(call, PointerGetDatum(dpml_make_block(&row)));
}

/* The features of a one-row block as a float4[]. */
static ArrayType *
row_array(const DpmlBlock *row)
{
	Size		size = ARR_OVERHEAD_NONULLS(1) + (Size) row->n_features * sizeof(float4);
	ArrayType  *array = palloc0(size);
	float4	   *x;

	SET_VARSIZE(array, size);
	array->ndim = 1;
	array->elemtype = FLOAT4OID;
	ARR_DIMS(array)[0] = row->n_features;
	ARR_LBOUND(array)[0] = 1;
	x = (float4 *) ARR_DATA_PTR(array);
	if (row->kind == DPML_DENSE)
		memcpy(x, row->values, (Size) row->n_features * sizeof(float4));
	else
		for (int32 j = 0; j < row->n_values; j++)
			x[row->columns[j]] = row->values[j];
	return array;
}

/* (block bytea) -> table (x float4[], y float4) */
Datum
dpml_unpack(PG_FUNCTION_ARGS)
{
	FuncCallContext *call;
	DpmlBlock	row;
	RowParts	parts;
	Datum		values[2];
	bool		nulls[2] = {false, false};

	if (SRF_IS_FIRSTCALL())
	{
		TupleDesc	desc;
		MemoryContext old;

		call = first_call(fcinfo);
		old = MemoryContextSwitchTo(call->multi_call_memory_ctx);
		if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
			elog(ERROR, "the result of dpml.unpack is not a row type");
		call->tuple_desc = BlessTupleDesc(desc);
		MemoryContextSwitchTo(old);
	}
	call = SRF_PERCALL_SETUP();
	if (call->call_cntr >= call->max_calls)
		SRF_RETURN_DONE(call);
	row = one_row((DpmlBlock *) call->user_fctx, (int32) call->call_cntr, &parts);
	values[0] = PointerGetDatum(row_array(&row));
	values[1] = Float4GetDatum(row.labels[0]);
	SRF_RETURN_NEXT(call, HeapTupleGetDatum(heap_form_tuple(call->tuple_desc, values, nulls)));
}

/* (kind text, n_features int4, n_values int4) */
Datum
dpml_block_capacity_sql(PG_FUNCTION_ARGS)
{
	char	   *kind = text_to_cstring(PG_GETARG_TEXT_PP(0));
	int32		n_features = PG_GETARG_INT32(1);
	int32		n_values = PG_GETARG_INT32(2);
	bool		dense = strcmp(kind, "dense") == 0;

	if (!dense && strcmp(kind, "csr") != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("kind must be \"dense\" or \"csr\"")));
	if (n_features < 1 || n_features > DPML_MAX_FEATURES)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("n_features must be an integer from 1 to %d", DPML_MAX_FEATURES)));
	if (n_values < 0 || n_values > n_features)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("n_values must be an integer from 0 to n_features")));
	PG_RETURN_INT32(dpml_block_capacity(dense ? DPML_DENSE : DPML_CSR, n_features, n_values));
}
