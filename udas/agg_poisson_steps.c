/* SPDX-License-Identifier: PostgreSQL */
/*
 * dpml.sgd_poisson_steps: steps of SGD over Poisson batches (privacy/README.md,
 * "Poisson batches"), over the rows that dpml.poisson_steps drew, sorted by step.
 */
#include "compat.h"

#include "miscadmin.h"

#include "sgd_pass.h"
#include "support.h"

typedef struct StepsState
{
	DpmlSgdPass sgd_pass;
	int64		step;			/* whose batch is open, from 1; 0 before the first row */
	int64		rows;			/* that could be drawn */
} StepsState;

static const char name[] = "sgd_poisson_steps";

DPML_FUNCTION(dpml_sgd_poisson_steps_transition);
DPML_FUNCTION(dpml_sgd_poisson_steps_final);

/* Take the steps before a step; batches that no row is in are steps too. */
static void
advance(StepsState *state, int64 step)
{
	for (; state->step < step; state->step++)
	{
		CHECK_FOR_INTERRUPTS();
		dpml_sgd_apply_batch(&state->sgd_pass.sgd);
	}
}

/*
 * (internal, step int4, block bytea, rows int4, start dpml.epoch, options jsonb),
 * by rising step.  rows says how many rows could be drawn, NULL being none.
 */
Datum
dpml_sgd_poisson_steps_transition(PG_FUNCTION_ARGS)
{
	bool		first;
	StepsState *state = (StepsState *) dpml_sgd_pass_state(fcinfo, name, 5, DPML_FOR_POISSON_STEPS,
														   sizeof(StepsState), &first);
	int64		steps = state->sgd_pass.options.steps;
	int64		step = PG_ARGISNULL(1) ? 0 : PG_GETARG_INT32(1);
	int32		rows = PG_ARGISNULL(3) ? 0 : PG_GETARG_INT32(3);
	DpmlBlock	block;
	int32		n;

	Assert(state->step >= 0 && state->step <= steps && state->rows >= 0);
	if (step < 1 || step > steps)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("step must be an integer from 1 to \"steps\" in options, " INT64_FORMAT, steps)));
	if (rows < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("rows must be an integer >= 0, or null")));
	dpml_pass_open_block(&block, &state->sgd_pass.pass, &fcinfo->args[2], step);
	if (first)
	{
		DpmlSgdPassStart start;

		dpml_sgd_pass_read_start(&start, &fcinfo->args[4]);
		dpml_sgd_pass_start(&state->sgd_pass, &start, block.n_features);
		state->step = 1;
	}
	if (step < state->step)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("steps must not go backwards"),
				 errhint("Write ORDER BY step after the last argument.")));
	advance(state, step);
	for (int32 i = 0; i < block.n_rows; i += n)
	{
		n = dpml_pass_piece(&state->sgd_pass.pass, block.n_rows - i);
		dpml_sgd_add(&state->sgd_pass.sgd, &block, i, n);
	}
	state->rows += rows;
	PG_RETURN_POINTER(state);
}

/* Takes the steps that are left.  rows are the rows that could be drawn; the number actually drawn is never revealed. */
Datum
dpml_sgd_poisson_steps_final(PG_FUNCTION_ARGS)
{
	StepsState *state = (StepsState *) dpml_sgd_pass_end(fcinfo, name);

	if (state != NULL)
		advance(state, state->sgd_pass.options.steps + 1);
	PG_RETURN_DATUM(dpml_sgd_pass_result(fcinfo, (DpmlSgdPass *) state, 0, state != NULL ? state->rows : 0));
}
