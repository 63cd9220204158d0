/* SPDX-License-Identifier: PostgreSQL */
/*
 * dpml.sgd_poisson: steps of SGD over Poisson batches (privacy/README.md, "Poisson
 * batches").  All rows are taken into memory and read at random.
 */
#include "compat.h"

#include "miscadmin.h"

#include "row_store.h"
#include "sgd_pass.h"
#include "support.h"

typedef struct PoissonState
{
	DpmlSgdPass sgd_pass;
	DpmlRowStore store;
	DpmlPoisson poisson;
} PoissonState;

static const char name[] = "sgd_poisson";

DPML_FUNCTION(dpml_sgd_poisson_transition);
DPML_FUNCTION(dpml_sgd_poisson_final);

/* (internal, block_no int4, block bytea, start dpml.epoch, options jsonb) */
Datum
dpml_sgd_poisson_transition(PG_FUNCTION_ARGS)
{
	bool		first;
	PoissonState *state = (PoissonState *) dpml_sgd_pass_state(fcinfo, name, 4, DPML_FOR_POISSON,
															   sizeof(PoissonState), &first);
	DpmlBlock	block;

	CHECK_FOR_INTERRUPTS();
	dpml_pass_next_block(&block, &state->sgd_pass.pass, &fcinfo->args[1], &fcinfo->args[2]);
	if (first)
	{
		DpmlSgdPassStart start;

		dpml_sgd_pass_read_start(&start, &fcinfo->args[3]);
		dpml_sgd_pass_start(&state->sgd_pass, &start, block.n_features);
		dpml_row_store_start(&state->store, state->sgd_pass.pass.context, state->sgd_pass.options.sgd.by_unit, false,
							 "Raise dpml.work_mem, or use dpml.sgd_poisson_steps over dpml.poisson_steps, "
							 "which sorts within work_mem.");
	}
	dpml_row_store_keep(&state->store, &block);
	PG_RETURN_POINTER(state);
}

/* All steps of the pass; rows are the rows that could be drawn. */
Datum
dpml_sgd_poisson_final(PG_FUNCTION_ARGS)
{
	PoissonState *state = (PoissonState *) dpml_sgd_pass_end(fcinfo, name);
	int64		rows = 0;

	if (state != NULL)
	{
		const DpmlSgdPassOptions *options = &state->sgd_pass.options;
		const DpmlPass *pass = &state->sgd_pass.pass;
		DpmlStore	store = dpml_row_store_view(&state->store);
		uint8		key[DPML_KEY_BYTES];

		rows = store.n_rows;
		dpml_random_key(key);
		dpml_poisson_start(&state->poisson, &store, options->sampling, options->steps, key);
		explicit_bzero(key, sizeof(key));
		while (dpml_poisson_sgd(&state->poisson, &state->sgd_pass.sgd, dpml_pass_piece(pass, PG_INT32_MAX)))
			;
	}
	PG_RETURN_DATUM(dpml_sgd_pass_result(fcinfo, (DpmlSgdPass *) state, 0, rows));
}
