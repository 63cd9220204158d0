/* SPDX-License-Identifier: PostgreSQL */
/*
 * Coordinate descent over rows: the batch that a row belongs to, the change of the row's
 * dual and its part of the batch's change of v.
 */
#include "scd.h"

#include <math.h>
#include <string.h>

#include "dual_change.h"
#include "row.h"
#include "scalar.h"
#include "step_noise.h"
#include "vector.h"

/* Without noise a row goes straight into v where the rows after it may see it, or where it is a batch of its own. */
DPML_INLINE int
is_direct(const DpmlScdOptions *options)
{
	return options->noise == DPML_NO_NOISE &&
		(options->sequential || (options->batch_size == 1 && !options->by_unit));
}

DPML_INLINE void
apply_batch(DpmlScd *state)
{
	const DpmlScdOptions *options = &state->options;
	int64_t		d = options->n_features;

	state->steps++;
	state->in_batch = 0;
	if (is_direct(options))
		return;
	if (options->noise != DPML_NO_NOISE)
		add_noise(state->rng, options->noise, options->noise_scale, state->grid, d, state->change, state->noise);
	dpml_axpy_f64(d, 1.0, state->change, state->v);
	memset(state->change, 0, (size_t) d * sizeof(double));
}

/* All rows of a unit go into one batch; the first row of a pass begins a unit whatever the block says. */
DPML_INLINE void
begin_row(DpmlScd *state, int starts_unit)
{
	if (!starts_unit && state->in_batch > 0)
		return;
	if (state->in_batch >= state->options.batch_size)
		apply_batch(state);
	state->in_batch++;
}

/* Change the dual of a row, and v or the batch's change of v. */
DPML_INLINE void
take_row(DpmlScd *state, const Row *row, double *dual)
{
	const DpmlScdOptions *options = &state->options;
	int			direct = is_direct(options);
	double		factor = options->sequential ? 1.0 : (double) options->batch_size * options->max_rows_per_unit;
	double		square;
	double		product = row_dot_square(row, state->v, &square);
	double		alpha = *dual;
	double		zeta;

	if (options->sequential && !direct)
		product += row_dot(row, state->change);
	zeta = dual_change(&options->loss, options->exact, state->shrink * product, row->label, alpha,
					   factor * square * state->shrink);
	zeta = dpml_clamp(zeta, -options->update_clip, options->update_clip);
	row_axpy(row, zeta, direct ? state->v : state->change);
	if (options->dual_noise)
	{
		double		noise;

		add_noise(state->rng, options->noise, options->noise_scale, state->grid, 1, &zeta, &noise);
	}
	*dual = alpha + zeta;
	state->rows++;
}

/* Place the arrays of a state from the first cache line of the memory on; returns where the last of them ends. */
static uintptr_t
place_arrays(DpmlScd *state, const DpmlScdOptions *options, uintptr_t memory)
{
	int64_t		d = options->n_features;
	double	   *next = (double *) ((memory + 63) & ~(uintptr_t) 63);

	state->v = next;
	next += d;
	state->change = next;
	next += d;
	state->noise = options->noise != DPML_NO_NOISE ? next : NULL;
	if (state->noise != NULL)
		next += d;
	state->rng = options->noise != DPML_NO_NOISE ? (DpmlRng *) next : NULL;
	return state->rng != NULL ? (uintptr_t) (state->rng + 1) : (uintptr_t) next;
}

size_t
dpml_scd_memory(const DpmlScdOptions *options)
{
	DpmlScd		state;

	/* from an address that wastes as much as any before the first cache line */
	return (size_t) (place_arrays(&state, options, 1) - 1);
}

int
dpml_scd_valid(const DpmlScd *state)
{
	const DpmlScdOptions *options = &state->options;
	DpmlScd		placed;

	(void) place_arrays(&placed, options, (uintptr_t) state->v);
	return placed.v == state->v && placed.change == state->change && placed.noise == state->noise &&
		placed.rng == state->rng && options->n_features >= 1 && options->n_features <= DPML_MAX_FEATURES &&
		options->loss.n_classes == 1 && options->batch_size >= 1 && options->max_rows_per_unit >= 1 &&
		state->steps >= 0 && state->rows >= 0 && state->in_batch >= 0 && state->in_batch <= options->batch_size &&
		(options->noise == DPML_NO_NOISE || state->grid > 0.0);
}

void
dpml_scd_start(DpmlScd *state, const DpmlScdOptions *options, void *memory, const DpmlScdStart *start)
{
	uintptr_t	end;

	memset(state, 0, sizeof(*state));
	state->options = *options;
	state->steps = start->steps;
	state->shrink = 1.0 / (options->lambda * options->n);
	end = place_arrays(state, options, (uintptr_t) memory);
	memset(state->v, 0, end - (uintptr_t) state->v);
	if (options->noise != DPML_NO_NOISE)
		state->grid = dpml_noise_grid(options->noise_scale);
	if (state->rng != NULL)
		dpml_rng_start(state->rng, start->key);
	if (start->v != NULL)
		memcpy(state->v, start->v, (size_t) options->n_features * sizeof(double));
}

DPML_CLONES void
dpml_scd_row(DpmlScd *state, const double *x, double y, double *dual)
{
	Row			row = {ROW_F64, state->options.n_features, NULL, x, NULL, y};

	begin_row(state, 1);
	take_row(state, &row, dual);
}

DPML_CLONES void
dpml_scd_block(DpmlScd *state, const DpmlBlock *block, int32_t first, int32_t n, double *duals)
{
	DpmlScd		local = *state; /* no store to the arrays can alias it */

	/* The caller has rejected such a block with an error; the arrays must be safe from it anyway. */
	if (block->n_features != state->options.n_features)
		return;
	for (int32_t i = first; i < first + n; i++)
	{
		Row			row = block_row(block, i);

		begin_row(&local, !local.options.by_unit || dpml_block_starts_unit(block, i));
		take_row(&local, &row, duals + i);
	}
	*state = local;
}

DPML_CLONES void
dpml_scd_add(DpmlScd *state, const DpmlBlock *block, int32_t first, int32_t n, double *duals)
{
	for (int32_t i = first; i < first + n; i++)
	{
		Row			row = block_row(block, i);

		take_row(state, &row, duals + i);
	}
}

DPML_CLONES void
dpml_scd_apply_batch(DpmlScd *state)
{
	apply_batch(state);
}

void
dpml_scd_finish(DpmlScd *state)
{
	if (state->in_batch > 0)
		apply_batch(state);
}
