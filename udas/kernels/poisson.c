/* SPDX-License-Identifier: PostgreSQL */
/* Poisson batches: units are drawn ahead of their turn, so that the memory of their rows can be fetched in time. */
#include "poisson.h"

#include <string.h>

#include "row.h"

#define STEP_END (-1)
#define LINE 64
#define LINES_AHEAD 16			/* of a row: what follows, the processor foresees itself */

size_t
dpml_record_size(const DpmlBlock *block, int32_t i)
{
	Row			row = block_row(block, i);

	return block->kind == DPML_CSR ? 8 + 8 * (size_t) row.n : 4 + 4 * (size_t) row.n;
}

void
dpml_record_write(const DpmlBlock *block, int32_t i, void *out)
{
	Row			row = block_row(block, i);
	size_t		size = 4 * (size_t) row.n;
	unsigned char *at = out;

	memcpy(at, block->labels + i, 4);
	at += 4;
	if (block->kind == DPML_CSR)
	{
		uint32_t	row_end = (uint32_t) row.n;

		memcpy(at, &row_end, 4);
		memcpy(at + 4, row.columns, size);
		at += 4 + size;
	}
	memcpy(at, row.f32, size);
}

/* It has no alignment but that of the record. */
double
dpml_record_dual(const void *record)
{
	double		dual;

	memcpy(&dual, (const unsigned char *) record - DPML_RECORD_DUAL, sizeof(dual));
	return dual;
}

void
dpml_record_set_dual(void *record, double dual)
{
	memcpy((unsigned char *) record - DPML_RECORD_DUAL, &dual, sizeof(dual));
}

/* A record as a block of one row. */
static DpmlBlock
record_block(const DpmlStore *store, int64_t row)
{
	const unsigned char *record = store->rows[row];
	DpmlBlock	block = {
		.kind = store->kind,
		.n_features = store->n_features,
		.n_rows = 1,
		.n_values = store->n_features,
		.labels = (const float *) record,
		.values = (const float *) (record + 4)
	};

	if (store->kind == DPML_CSR)
	{
		block.row_end = (const uint32_t *) (record + 4);
		block.n_values = (int32_t) block.row_end[0];
		block.columns = block.row_end + 1;
		block.values = (const float *) (block.columns + block.n_values);
	}
	return block;
}

/* The next unit that is in, or the end of the step: misses between hits are geometric. */
static int64_t
draw(DpmlPoisson *state)
{
	state->next_unit += dpml_coin_misses(&state->coins, state->rate);
	if (state->next_unit < state->store.n_units)
		return state->next_unit++;
	state->next_unit = 0;
	return STEP_END;
}

static int64_t
first_row(const DpmlStore *store, int64_t unit)
{
	return store->units != NULL ? store->units[unit] : unit;
}

/* Rows are read at random, so each look at memory is asked for some draws before it is needed. */
static void
fetch_unit(const DpmlStore *store, int64_t unit)
{
	if (unit != STEP_END && store->units != NULL)
		__builtin_prefetch(store->units + unit);
}

static void
fetch_row(const DpmlStore *store, int64_t unit)
{
	if (unit != STEP_END)
		__builtin_prefetch(store->rows + first_row(store, unit));
}

static void
fetch_record(const DpmlStore *store, int64_t unit)
{
	const char *record;
	int64_t		size = 4 + 4 * (int64_t) store->n_features;

	if (unit == STEP_END)
		return;
	record = store->rows[first_row(store, unit)];
	if (store->kind == DPML_CSR)
		size = LINE;			/* how long it is would have to be read first */
	if (size > LINES_AHEAD * LINE)
		size = LINES_AHEAD * LINE;
	/* from the dual on, if there is one */
	for (int64_t at = -DPML_RECORD_DUAL; at < size; at += LINE)
		__builtin_prefetch(record + at);
	__builtin_prefetch(record + size - 1);
}

void
dpml_poisson_start(DpmlPoisson *state, const DpmlStore *store, double sampling, int64_t steps, const uint8_t *key)
{
	memset(state, 0, sizeof(*state));
	state->store = *store;
	state->rate = dpml_coin_rate(sampling);
	state->steps_left = steps;
	dpml_rng_start(&state->coins, key);
	for (int i = 0; i < DPML_POISSON_AHEAD; i++)
		state->draws[i] = draw(state);
}

/* The next row of the open batch, or STEP_END where the batch is complete; steps are left. */
DPML_INLINE int64_t
next_row(DpmlPoisson *state)
{
	const DpmlStore *store = &state->store;
	int64_t    *draws = state->draws;

	while (state->next_row >= state->end_row)
	{
		int32_t		first = state->first_draw;
		int64_t		unit = draws[first];

		draws[first] = draw(state);
		fetch_unit(store, draws[first]);
		fetch_row(store, draws[(first + 2 * DPML_POISSON_STAGE) % DPML_POISSON_AHEAD]);
		fetch_record(store, draws[(first + DPML_POISSON_STAGE) % DPML_POISSON_AHEAD]);
		state->first_draw = (first + 1) % DPML_POISSON_AHEAD;
		if (unit == STEP_END)
		{
			state->steps_left--;
			return STEP_END;
		}
		if (store->units == NULL)
			return unit;
		/* a unit may have any number of rows: they are taken in the next turns */
		state->next_row = store->units[unit];
		state->end_row = unit + 1 < store->n_units ? store->units[unit + 1] : store->n_rows;
	}
	return state->next_row++;
}

int
dpml_poisson_sgd(DpmlPoisson *state, DpmlSgd *sgd, int64_t work)
{
	for (; state->steps_left > 0 && work > 0; work--)
	{
		int64_t		row = next_row(state);

		if (row == STEP_END)
			dpml_sgd_apply_batch(sgd);
		else
		{
			DpmlBlock	block = record_block(&state->store, row);

			dpml_sgd_add(sgd, &block, 0, 1);
		}
	}
	return state->steps_left > 0;
}

int
dpml_poisson_scd(DpmlPoisson *state, DpmlScd *scd, int64_t work)
{
	for (; state->steps_left > 0 && work > 0; work--)
	{
		int64_t		row = next_row(state);

		if (row == STEP_END)
			dpml_scd_apply_batch(scd);
		else
		{
			DpmlBlock	block = record_block(&state->store, row);
			double		dual = dpml_record_dual(state->store.rows[row]);

			dpml_scd_add(scd, &block, 0, 1, &dual);
			dpml_record_set_dual(state->store.rows[row], dual);
		}
	}
	return state->steps_left > 0;
}
