/* SPDX-License-Identifier: PostgreSQL */
/*
 * dpml.scd_epoch: one pass of coordinate descent over rows or packed blocks, or its
 * steps over Poisson batches of the blocks' rows.
 */
#include "compat.h"

#include <math.h>

#include "miscadmin.h"
#include "utils/array.h"

#include "row_store.h"
#include "rowform.h"
#include "scd_pass.h"
#include "support.h"

typedef struct RowsState
{
	DpmlScdPass scd_pass;
	int64		rows;			/* seen so far */
	DpmlRowForm form;			/* once the pass has begun: rows before that are zero rows */
} RowsState;

typedef struct BlocksState
{
	DpmlScdPass scd_pass;
	DpmlRowStore store;			/* Poisson batches only, like all below */
	DpmlPoisson poisson;
	int64	   *block_rows;		/* of each block */
	int64		n_blocks;
	int64		max_blocks;
} BlocksState;

DPML_FUNCTION(dpml_scd_rows_transition);
DPML_FUNCTION(dpml_scd_rows_final);
DPML_FUNCTION(dpml_scd_blocks_transition);
DPML_FUNCTION(dpml_scd_blocks_final);

/* Rows before the number of features was known are zero rows: they fill batches, and change nothing. */
static void
start_rows(RowsState *state, DpmlScdPassStart *start, int32 n_features)
{
	DpmlScdPass *scd_pass = &state->scd_pass;

	dpml_scd_pass_start(scd_pass, start, n_features);
	dpml_row_form_init(&state->form, scd_pass->pass.context, n_features, 1, scd_pass->pass.options.clip_rows);
	for (int64 row = 0; row < state->rows; row++)
	{
		CHECK_FOR_INTERRUPTS();
		dpml_scd_row(&scd_pass->scd, state->form.zero, 0.0, dpml_duals_appended(&scd_pass->duals) + row);
	}
}

/*
 * (internal, x float8[], y float8, dual float8, start float8[], options jsonb).  The number
 * of features is that of the start, else the option "features", else that of
 * the first x that is a vector; the start is read from the first row.
 */
Datum
dpml_scd_rows_transition(PG_FUNCTION_ARGS)
{
	bool		first;
	RowsState  *state = (RowsState *) dpml_scd_pass_state(fcinfo, DPML_SCD_ROWS, sizeof(RowsState), &first);
	DpmlScdPass *scd_pass = &state->scd_pass;
	DpmlScdPassStart start = {0};
	const double *x;
	double	   *dual;
	double		y;
	int32		n = 0;

	CHECK_FOR_INTERRUPTS();
	if (first && !PG_ARGISNULL(4))
	{
		start.scd.v = dpml_float8_argument(PG_GETARG_ARRAYTYPE_P(4), "start", &start.n_v);
		n = (int32) Min(start.n_v, DPML_MAX_FEATURES + 1);
		if (n > DPML_MAX_FEATURES)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("start must have at most %d elements", DPML_MAX_FEATURES)));
	}
	else if (first)
		n = scd_pass->pass.options.n_features;
	if (!scd_pass->pass.begun && n == 0 && !PG_ARGISNULL(1))
		n = dpml_row_form_length(PG_GETARG_DATUM(1));
	if (!scd_pass->pass.begun && n > 0)
		start_rows(state, &start, n);
	dual = dpml_duals_append(&scd_pass->duals, state->rows++, PG_ARGISNULL(3) ? 0.0 : PG_GETARG_FLOAT8(3));
	if (!scd_pass->pass.begun)
		PG_RETURN_POINTER(state);

	x = dpml_row_form_read(&state->form, &fcinfo->args[1], &fcinfo->args[2], &y);
	dpml_scd_row(&scd_pass->scd, x, y, dual);
	PG_RETURN_POINTER(state);
}

/* Without a row there is no start to return either: v is NULL. */
Datum
dpml_scd_rows_final(PG_FUNCTION_ARGS)
{
	RowsState  *state = (RowsState *) dpml_scd_pass_end(fcinfo);
	int64		rows = state != NULL ? state->rows : 0;
	int32		b = state != NULL ? state->scd_pass.options.scd.batch_size : 1;

	PG_RETURN_DATUM(dpml_scd_pass_result(fcinfo, (DpmlScdPass *) state, (rows + b - 1) / b, rows));
}

/* Say how much memory all rows need, from what those of the first block do. */
static const char *
memory_hint(const BlocksState *state, const DpmlBlock *block)
{
	const DpmlScdPass *scd_pass = &state->scd_pass;
	double		row = 16.0 + DPML_RECORD_DUAL + (scd_pass->options.scd.by_unit ? 8.0 : 0.0);

	if (block->n_rows == 0)
		return "Raise dpml.work_mem.";
	row += (double) dpml_block_size(block) / block->n_rows;
	return MemoryContextStrdup(scd_pass->pass.context,
							   psprintf("Raise dpml.work_mem: %.0f such rows need %.0f kB.", scd_pass->options.scd.n,
										ceil(row * scd_pass->options.scd.n / 1024.0)));
}

/* On the first block: begin the pass. */
static void
start_blocks(BlocksState *state, const DpmlBlock *block, const NullableDatum *given)
{
	DpmlScdPass *scd_pass = &state->scd_pass;
	DpmlScdPassStart start;

	dpml_scd_pass_read_start(&start, scd_pass->pass.context, given);
	dpml_scd_pass_start(scd_pass, &start, block->n_features);
	if (scd_pass->options.sampling > 0.0)
		dpml_row_store_start(&state->store, scd_pass->pass.context, scd_pass->options.scd.by_unit, true,
							 memory_hint(state, block));
}

/* Keep the rows of a block for Poisson batches, and before each its dual. */
static void
keep_block(BlocksState *state, const DpmlBlock *block, const char *duals)
{
	int64		first = state->store.n_rows;

	dpml_row_store_keep(&state->store, block);
	/* the final function may return the duals in memory of their own */
	dpml_count_memory(&state->store.used, (Size) block->n_rows * sizeof(double), "the packed rows", state->store.hint);
	for (int32 i = 0; i < block->n_rows; i++)
	{
		double		dual = 0.0;

		if (duals != NULL)
			memcpy(&dual, duals + (Size) i * sizeof(double), sizeof(double));
		dpml_record_set_dual(state->store.rows[first + i], dual);
	}
	state->block_rows = dpml_reserve(state->scd_pass.pass.context, state->block_rows, state->n_blocks + 1,
									 &state->max_blocks);
	state->block_rows[state->n_blocks++] = block->n_rows;
}

/* Go over the rows of a block, whose duals are the bytes given, or zeros. */
static void
take_block(BlocksState *state, const DpmlBlock *block, int64 number, const char *given)
{
	DpmlScdPass *scd_pass = &state->scd_pass;
	double	   *duals = dpml_duals_begin(&scd_pass->duals, number, block->n_rows, given);
	int32		n;

	for (int32 i = 0; i < block->n_rows; i += n)
	{
		n = dpml_pass_piece(&scd_pass->pass, block->n_rows - i);
		dpml_scd_block(&scd_pass->scd, block, i, n, duals);
	}
	dpml_duals_end(&scd_pass->duals, duals);
}

/*
 * (internal, block_no int4, block bytea, duals bytea, start dpml.scd_pass, options jsonb);
 * the start is read from the first block.
 */
Datum
dpml_scd_blocks_transition(PG_FUNCTION_ARGS)
{
	bool		first;
	BlocksState *state = (BlocksState *) dpml_scd_pass_state(fcinfo, DPML_SCD_BLOCKS, sizeof(BlocksState), &first);
	DpmlPass   *pass = &state->scd_pass.pass;
	DpmlBlock	block;
	const char *duals;
	int64		number = pass->next_block;

	CHECK_FOR_INTERRUPTS();
	if (state->scd_pass.options.any_order)
		number = dpml_pass_any_block(&block, pass, &fcinfo->args[1], &fcinfo->args[2]);
	else
		dpml_pass_next_block(&block, pass, &fcinfo->args[1], &fcinfo->args[2]);
	if (first)
		start_blocks(state, &block, &fcinfo->args[4]);
	duals = dpml_duals_argument(&fcinfo->args[3], block.n_rows);
	if (duals == NULL)
		duals = dpml_duals_given(&state->scd_pass.duals, number, block.n_rows);
	if (state->scd_pass.options.sampling > 0.0)
		keep_block(state, &block, duals);
	else
		take_block(state, &block, number, duals);
	PG_RETURN_POINTER(state);
}

/* All steps of a pass over Poisson batches; then the duals of each block. */
static void
take_poisson_steps(BlocksState *state)
{
	DpmlScdPass *scd_pass = &state->scd_pass;
	DpmlStore	store = dpml_row_store_view(&state->store);
	uint8		key[DPML_KEY_BYTES];
	int64		row = 0;

	dpml_random_key(key);
	dpml_poisson_start(&state->poisson, &store, scd_pass->options.sampling, scd_pass->options.steps, key);
	explicit_bzero(key, sizeof(key));
	while (dpml_poisson_scd(&state->poisson, &scd_pass->scd, dpml_pass_piece(&scd_pass->pass, PG_INT32_MAX)))
		;
	for (int64 i = 0; i < state->n_blocks; i++)
	{
		double	   *duals = dpml_duals_begin(&scd_pass->duals, i, (int32) state->block_rows[i], NULL);

		CHECK_FOR_INTERRUPTS();
		for (int64 j = 0; j < state->block_rows[i]; j++)
			duals[j] = dpml_record_dual(store.rows[row++]);
		dpml_duals_end(&scd_pass->duals, duals);
	}
}

/* rows of Poisson batches are the rows that could be drawn */
Datum
dpml_scd_blocks_final(PG_FUNCTION_ARGS)
{
	BlocksState *state = (BlocksState *) dpml_scd_pass_end(fcinfo);
	int64		rows = 0;

	if (state != NULL && state->scd_pass.options.sampling > 0.0)
	{
		take_poisson_steps(state);
		rows = state->store.n_rows;
	}
	else if (state != NULL)
		rows = state->scd_pass.scd.rows;
	PG_RETURN_DATUM(dpml_scd_pass_result(fcinfo, (DpmlScdPass *) state, 0, rows));
}
