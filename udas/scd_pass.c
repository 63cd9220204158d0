/* SPDX-License-Identifier: PostgreSQL */
/* A pass of coordinate descent, from a dpml.scd_pass to the next. */
#include "scd_pass.h"

#include "catalog/pg_type.h"
#include "funcapi.h"

#include "support.h"

/* Attributes of dpml.scd_pass. */
enum
{
	V,
	STEPS,
	ROWS,
	DUALS,
	N_ATTRIBUTES
};

/* The options are the last argument of each form. */
#define OPTIONS_ARGUMENT 5

static const char name[] = "scd_epoch";

/* The group's state, as dpml_pass_state returns it; parses the options on the first row. */
DpmlScdPass *
dpml_scd_pass_state(FunctionCallInfo fcinfo, DpmlScdUse use, Size size, bool *first)
{
	DpmlScdPass *state = (DpmlScdPass *) dpml_pass_state(fcinfo, name, OPTIONS_ARGUMENT, size, first);

	if (*first)
	{
		dpml_scd_options_parse(&state->pass.options, &state->options, state->pass.source, use);
		dpml_duals_start(&state->duals, state->pass.context, "Raise dpml.work_mem: each row needs 8 bytes.");
	}
	Assert(!state->pass.begun || dpml_scd_valid(&state->scd));
	return state;
}

/* The state in a final function, as dpml_pass_end returns it. */
DpmlScdPass *
dpml_scd_pass_end(FunctionCallInfo fcinfo)
{
	DpmlScdPass *state = (DpmlScdPass *) dpml_pass_end(fcinfo, name);

	Assert(state == NULL || !state->pass.begun || dpml_scd_valid(&state->scd));
	return state;
}

/* Take a dpml.scd_pass apart; NULL is a new model.  The duals are in the context, and nobody else's. */
void
dpml_scd_pass_read_start(DpmlScdPassStart *start, MemoryContext context, const NullableDatum *given)
{
	static const Oid wanted[N_ATTRIBUTES] = {FLOAT8ARRAYOID, INT8OID, InvalidOid, BYTEAARRAYOID};
	HeapTupleHeader header;
	Datum		values[N_ATTRIBUTES];
	bool		nulls[N_ATTRIBUTES];
	MemoryContext old;

	memset(start, 0, sizeof(*start));
	if (given->isnull)
		return;
	/* duals are large: those that come from a table are read into the context, and not copied again */
	old = MemoryContextSwitchTo(context);
	header = DatumGetHeapTupleHeader(given->value);
	dpml_take_apart(PointerGetDatum(header), "dpml.scd_pass", wanted, N_ATTRIBUTES, values, nulls);
	if (!nulls[V])
		start->scd.v = dpml_float8_argument(DatumGetArrayTypeP(values[V]), "v in start", &start->n_v);
	if (!nulls[DUALS])
	{
		start->duals = DatumGetArrayTypeP(values[DUALS]);
		if (PointerGetDatum(header) == given->value && PointerGetDatum(start->duals) == values[DUALS])
			start->duals = DatumGetArrayTypePCopy(values[DUALS]);
	}
	MemoryContextSwitchTo(old);
	start->scd.steps = dpml_steps_before(values[STEPS], nulls[STEPS]);
}

/* Check the start against the number of features, and set the kernel up. */
void
dpml_scd_pass_start(DpmlScdPass *state, DpmlScdPassStart *start, int32 n_features)
{
	DpmlScdOptions *options = &state->options.scd;
	uint8		key[DPML_KEY_BYTES];

	dpml_pass_begin(&state->pass, n_features);
	if (start->scd.v != NULL && start->n_v != (Size) n_features)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("v in start must have %d elements, not %zu", n_features, start->n_v)));
	if (start->duals != NULL)
		dpml_duals_read(&state->duals, start->duals);
	options->n_features = n_features;
	if (options->noise != DPML_NO_NOISE)
	{
		dpml_random_key(key);
		start->scd.key = key;
	}
	dpml_scd_start(&state->scd, options, dpml_alloc(state->pass.context, dpml_scd_memory(options)), &start->scd);
	Assert(dpml_scd_valid(&state->scd));
	explicit_bzero(key, sizeof(key));
}

/*
 * The result, a dpml.scd_pass.  state is NULL, or its pass has not begun, where
 * nothing said how many features there are: then v is NULL and the steps those given.
 */
Datum
dpml_scd_pass_result(FunctionCallInfo fcinfo, DpmlScdPass *state, int64 steps, int64 rows)
{
	DpmlDuals	none = {0};
	TupleDesc	desc;
	Datum		values[N_ATTRIBUTES] = {0};
	bool		nulls[N_ATTRIBUTES] = {true, false, false, false};

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE || desc->natts != N_ATTRIBUTES)
		elog(ERROR, "the result of an aggregate is not a dpml.scd_pass");
	values[STEPS] = Int64GetDatum(steps);
	values[ROWS] = Int64GetDatum(rows);
	if (state != NULL && state->pass.begun)
	{
		dpml_scd_finish(&state->scd);
		values[V] = PointerGetDatum(dpml_float8_array(state->scd.v, (Size) state->options.scd.n_features));
		nulls[V] = false;
		values[STEPS] = Int64GetDatum(state->scd.steps);
	}
	values[DUALS] = dpml_duals_result(state != NULL ? &state->duals : &none);
	return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls));
}
