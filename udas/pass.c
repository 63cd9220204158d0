/* SPDX-License-Identifier: PostgreSQL */
/* A pass over rows: its state, the order of its blocks, and where it may be interrupted. */
#include "pass.h"

#include "miscadmin.h"
#include "utils/memutils.h"

#include "support.h"

/* Assert the invariants of a state between two calls. */
static void
check_pass(const DpmlPass *pass)
{
	Assert(MemoryContextIsValid(pass->context));
	Assert(pass->source != NULL && pass->next_block >= 0);
	Assert(pass->options.loss.n_classes >= 1);
	Assert(pass->options.n_features >= 0 && pass->options.n_features <= DPML_MAX_FEATURES);
	Assert(!pass->begun || pass->options.n_features > 0);
	(void) pass;
}

/*
 * The group's state, of size bytes that begin with a DpmlPass.  On the group's
 * first row it is made, all zero but for what is said here, and the caller
 * parses the options; on a later row the options must be the same.
 */
DpmlPass *
dpml_pass_state(FunctionCallInfo fcinfo, const char *aggregate, int options_argument, Size size, bool *first)
{
	MemoryContext context = dpml_aggregate_context(fcinfo, aggregate);
	DpmlPass   *pass;
	Jsonb	   *source;

	pass = dpml_state_argument(fcinfo, aggregate);
	*first = pass == NULL;
	if (!*first)
	{
		check_pass(pass);
		Assert(pass->context == context);
		(void) dpml_options_argument(fcinfo, options_argument, pass->source);
		return pass;
	}
	source = dpml_options_argument(fcinfo, options_argument, NULL);
	pass = dpml_alloc(context, size);
	pass->aggregate = aggregate;
	pass->context = context;
	pass->source = dpml_copy_jsonb(context, source);
	return pass;
}

/* The state in a final function; NULL without a row. */
DpmlPass *
dpml_pass_end(FunctionCallInfo fcinfo, const char *aggregate)
{
	DpmlPass   *pass;

	(void) dpml_aggregate_context(fcinfo, aggregate);
	pass = dpml_state_argument(fcinfo, aggregate);
	if (pass != NULL)
		check_pass(pass);
	return pass;
}

/* The number of features is known: the solver can be set up. */
void
dpml_pass_begin(DpmlPass *pass, int32 n_features)
{
	DpmlPassOptions *options = &pass->options;

	if (options->n_features != 0 && options->n_features != n_features)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("\"features\" in options must be %d, as in the data or the start, or absent", n_features)));
	options->n_features = n_features;
	pass->begun = true;
}

/* Open a block of the pass; its number is for an error about it. */
void
dpml_pass_open_block(DpmlBlock *block, const DpmlPass *pass, const NullableDatum *bytes, int64 number)
{
	dpml_block_argument(block, bytes);
	if (pass->begun && block->n_features != pass->options.n_features)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("block " INT64_FORMAT " has %d features, the first one has %d",
						number, block->n_features, pass->options.n_features)));
}

/* Open the block that comes next; any other number is an error. */
void
dpml_pass_next_block(DpmlBlock *block, DpmlPass *pass, const NullableDatum *number, const NullableDatum *bytes)
{
	if (unlikely(number->isnull || DatumGetInt32(number->value) != pass->next_block))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("block " INT64_FORMAT " is missing or out of order", pass->next_block),
				 errdetail("Blocks must arrive as 0, 1, 2, ..., each once."),
				 errhint("Read the table of blocks in its physical order with synchronize_seqscans off, "
						 "or write ORDER BY block_no after the last argument.")));
	dpml_pass_open_block(block, pass, bytes, pass->next_block);
	pass->next_block++;
}

/* Open a block of a pass that takes them in any order; returns its number, and the caller sees that each comes once. */
int64
dpml_pass_any_block(DpmlBlock *block, const DpmlPass *pass, const NullableDatum *number, const NullableDatum *bytes)
{
	if (number->isnull || DatumGetInt32(number->value) < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("block_no must be an integer >= 0")));
	dpml_pass_open_block(block, pass, bytes, DatumGetInt32(number->value));
	return DatumGetInt32(number->value);
}

/* Numbers in the weights, K x d. */
int64
dpml_pass_weights(const DpmlPass *pass)
{
	return (int64) pass->options.loss.n_classes * pass->options.n_features;
}

/* Rows or steps (of so many that are left, > 0) to process before the next interrupt check; checks now. */
int32
dpml_pass_piece(const DpmlPass *pass, int32 rows)
{
	return dpml_rows_piece(dpml_pass_weights(pass), rows);
}
