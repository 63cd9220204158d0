/* SPDX-License-Identifier: PostgreSQL */
/*
 * SGD over rows: the batch that a row belongs to, and the row's part of the gradient
 * sum; sgd_step.h has the step.  At b = 1 a row goes straight into the weights, without noise and momentum.
 */
#include "sgd.h"

#include <math.h>
#include <string.h>

#include "row.h"
#include "rowloss.h"
#include "scalar.h"
#include "sgd_step.h"
#include "vector.h"

/* A batch of one row goes straight into the weights.  One of one unit may have several rows. */
DPML_INLINE int
is_direct(const DpmlSgd *state)
{
	const DpmlSgdOptions *options = &state->options;

	return options->batch_size == 1 && !options->by_unit && options->noise == DPML_NO_NOISE &&
		options->momentum == 0.0 && state->sizes == NULL;
}

/* Units of the open batch.  What comes after the last batch is one too many, which whoever counts steps will see. */
DPML_INLINE void
size_batch(DpmlSgd *state)
{
	if (state->sizes == NULL)
		state->full_batch = state->options.batch_size;
	else
		state->full_batch = state->batch < state->n_sizes ? state->sizes[state->batch] : INT32_MAX;
}

/*
 * The step of the open batch, and of the empty ones that follow it.  Out of line: this and take_row_classes,
 * inline wherever they are called, are three quarters of the time that the extension takes to compile.
 */
static __attribute__((noinline)) DPML_CLONES void
close_batch(DpmlSgd *state)
{
	do
	{
		apply_batch(state);
		state->batch++;
		size_batch(state);
	} while (state->full_batch == 0);
}

/*
 * With units a batch ends where a unit begins that does not fit any more: all
 * rows of a unit go into one batch.  The first row of a pass begins a unit
 * whatever the block says.
 */
DPML_INLINE void
begin_row(DpmlSgd *state, int starts_unit)
{
	if (state->in_batch > 0 && !starts_unit)
		return;
	if (state->in_batch >= state->full_batch)
		close_batch(state);
	state->in_batch++;
}

/* The row's step when it is a batch of its own, or the batch's when the row fills it. */
DPML_INLINE void
row_done(DpmlSgd *state)
{
	state->rows++;
	if (state->options.by_unit)
		return;
	if (is_direct(state))
		end_step(state);
	else if (++state->in_batch >= state->full_batch)
		close_batch(state);
}

/* Derivative of a loss of one score at a row's product with the weights. */
DPML_INLINE double
clipped_slope(const DpmlSgd *state, double product, double label)
{
	double		bound = state->options.gradient_clip;

	return dpml_clamp(score_slope(&state->options.loss, state->scale * product, label), -bound, bound);
}

/* The same for K scores, into state->scores. */
DPML_INLINE void
find_slopes(DpmlSgd *state, const Row *row)
{
	const DpmlSgdOptions *options = &state->options;
	int64_t		d = options->n_features;

	for (int32_t k = 0; k < options->loss.n_classes; k++)
		state->scores[k] = state->scale * row_dot(row, state->weights + k * d);
	row_slopes(&options->loss, state->scores, row->label);
	clip_slopes(options->gradient_clip, options->loss.n_classes, state->scores);
}

/* target += factor times the outer product of state->scores and the row. */
DPML_INLINE void
add_outer(DpmlSgd *state, const Row *row, double factor, double *target)
{
	int64_t		d = state->options.n_features;

	for (int32_t k = 0; k < state->options.loss.n_classes; k++)
		row_axpy(row, factor * state->scores[k], target + k * d);
}

/* A row of a loss of one score. */
DPML_INLINE void
take_row(DpmlSgd *state, const Row *row)
{
	double		slope = clipped_slope(state, row_dot(row, state->weights), row->label);

	if (is_direct(state))
		row_axpy(row, begin_step(state) * slope, state->weights);
	else
		row_axpy(row, slope, state->gradient);
	row_done(state);
}

/* A row of a loss of K scores. */
static __attribute__((noinline)) DPML_CLONES void
take_row_classes(DpmlSgd *state, const Row *row)
{
	find_slopes(state, row);
	if (is_direct(state))
		add_outer(state, row, begin_step(state), state->weights);
	else
		add_outer(state, row, 1.0, state->gradient);
	row_done(state);
}

/*
 * n_rows (a constant) dense rows that stay inside the open batch, for a loss of
 * one score: they all see the same weights, so they can go together.  The numbers
 * are those of n_rows calls of take_row.
 */
DPML_INLINE void
take_group(DpmlSgd *state, int n_rows, const float *x, const float *labels)
{
	const DpmlSgdOptions *options = &state->options;
	double		slope[DPML_GROUP];

	dpml_dot_rows_f32(n_rows, options->n_features, state->weights, x, slope);
	for (int r = 0; r < n_rows; r++)
		slope[r] = clipped_slope(state, slope[r], labels[r]);
	rows_axpy(n_rows, options->n_features, slope, x, state->gradient);
	state->rows += n_rows;
	state->in_batch += n_rows;
	if (state->in_batch >= state->full_batch)
		close_batch(state);
}

DPML_INLINE void
take_dense(DpmlSgd *state, const DpmlBlock *block, int32_t first, int32_t end)
{
	int			grouped = !is_direct(state);
	int64_t		n = block->n_features;

	for (int32_t i = first; i < end;)
	{
		const float *x = block->values + i * n;
		int32_t		room = state->full_batch - state->in_batch;

		if (room > end - i)
			room = end - i;
		if (grouped && room >= 4)
		{
			take_group(state, 4, x, block->labels + i);
			i += 4;
		}
		else if (grouped && room >= 2)
		{
			take_group(state, 2, x, block->labels + i);
			i += 2;
		}
		else
		{
			Row			row = {ROW_F32, n, x, NULL, NULL, block->labels[i]};

			take_row(state, &row);
			i++;
		}
	}
}

/*
 * Place the arrays of a state from the first cache line of the memory on, so that
 * no load of four lanes straddles two; returns where the last of them ends.
 */
static uintptr_t
place_arrays(DpmlSgd *state, const DpmlSgdOptions *options, uintptr_t memory)
{
	int64_t		n = n_weights(options);
	double	   *next = (double *) ((memory + 63) & ~(uintptr_t) 63);

	state->weights = next;
	next += n;
	state->gradient = next;
	next += n;
	state->average = next;
	next += n;
	state->scores = next;
	next += options->loss.n_classes;
	state->velocity = options->momentum > 0.0 ? next : NULL;
	if (state->velocity != NULL)
		next += n;
	state->noise = NULL;
	state->rng = NULL;
	if (options->noise != DPML_NO_NOISE)
	{
		state->noise = next;
		next += n;
		state->rng = (DpmlRng *) next;
		return (uintptr_t) (state->rng + 1);
	}
	return (uintptr_t) next;
}

size_t
dpml_sgd_memory(const DpmlSgdOptions *options)
{
	DpmlSgd		state;

	/* from an address that wastes as much as any before the first cache line */
	return (size_t) (place_arrays(&state, options, 1) - 1);
}

int
dpml_sgd_valid(const DpmlSgd *state)
{
	const DpmlSgdOptions *options = &state->options;
	DpmlSgd		placed;

	(void) place_arrays(&placed, options, (uintptr_t) state->weights);
	return placed.weights == state->weights && placed.gradient == state->gradient &&
		placed.average == state->average && placed.scores == state->scores &&
		placed.velocity == state->velocity && placed.noise == state->noise && placed.rng == state->rng &&
		options->n_features >= 1 && options->n_features <= DPML_MAX_FEATURES && options->loss.n_classes >= 1 &&
		options->batch_size >= 1 && state->steps >= 0 && state->rows >= 0 &&
		state->averaged >= 0 && state->averaged <= state->steps &&
		state->in_batch >= 0 && state->in_batch <= state->full_batch && state->batch >= 0 &&
		(options->noise == DPML_NO_NOISE || state->grid > 0.0);
}

void
dpml_sgd_start(DpmlSgd *state, const DpmlSgdOptions *options, void *memory, const DpmlSgdStart *start)
{
	int64_t		n = n_weights(options);
	size_t		size = (size_t) n * sizeof(double);
	uintptr_t	end;

	memset(state, 0, sizeof(*state));
	state->options = *options;
	state->steps = start->steps;
	state->sizes = start->sizes;
	state->n_sizes = start->n_sizes;
	state->scale = 1.0;
	size_batch(state);
	end = place_arrays(state, options, (uintptr_t) memory);
	memset(state->weights, 0, end - (uintptr_t) state->weights);
	if (state->velocity != NULL && start->velocity != NULL)
		memcpy(state->velocity, start->velocity, size);
	if (options->noise != DPML_NO_NOISE)
	{
		state->grid = dpml_noise_grid(options->noise_scale);
		dpml_rng_start(state->rng, start->key);
	}

	if (start->weights != NULL)
		memcpy(state->weights, start->weights, size);
	if (options->radius < INFINITY)
		project(state);
	if (start->average != NULL && options->average_from > 0 && start->steps >= options->average_from)
	{
		state->averaged = start->steps - options->average_from + 1;
		for (int64_t i = 0; i < n; i++)
			state->average[i] = start->average[i] * (double) state->averaged;
	}
	if (state->full_batch == 0)
		close_batch(state);
}

DPML_CLONES void
dpml_sgd_row(DpmlSgd *state, const double *x, double y)
{
	Row			row = {ROW_F64, state->options.n_features, NULL, x, NULL, y};

	if (state->options.by_unit)
		begin_row(state, 1);
	if (state->options.loss.n_classes > 1)
		take_row_classes(state, &row);
	else
		take_row(state, &row);
}

/* Blocks with units: row by row, as a batch may end before any row. */
static DPML_CLONES void
take_units(DpmlSgd *state, const DpmlBlock *block, int32_t first, int32_t end)
{
	for (int32_t i = first; i < end; i++)
	{
		Row			row = block_row(block, i);

		begin_row(state, dpml_block_starts_unit(block, i));
		if (state->options.loss.n_classes > 1)
			take_row_classes(state, &row);
		else
			take_row(state, &row);
	}
}

static DPML_CLONES void
take_classes(DpmlSgd *state, const DpmlBlock *block, int32_t first, int32_t end)
{
	for (int32_t i = first; i < end; i++)
	{
		Row			row = block_row(block, i);

		take_row_classes(state, &row);
	}
}

static DPML_CLONES void
take_sparse(DpmlSgd *state, const DpmlBlock *block, int32_t first, int32_t end)
{
	for (int32_t i = first; i < end; i++)
	{
		Row			row = block_row(block, i);

		row.form = ROW_SPARSE;
		take_row(state, &row);
	}
}

DPML_CLONES void
dpml_sgd_block(DpmlSgd *state, const DpmlBlock *block, int32_t first, int32_t n)
{
	DpmlSgd		local = *state; /* no store to the arrays can alias it */
	int32_t		end = first + n;

	/* The caller has rejected such a block with an error; the arrays must be safe from it anyway. */
	if (block->n_features != state->options.n_features)
		return;
	if (state->options.by_unit)
		take_units(&local, block, first, end);
	else if (state->options.loss.n_classes > 1)
		take_classes(&local, block, first, end);
	else if (block->kind == DPML_CSR)
		take_sparse(&local, block, first, end);
	else
		take_dense(&local, block, first, end);
	*state = local;
}

DPML_CLONES void
dpml_sgd_add(DpmlSgd *state, const DpmlBlock *block, int32_t first, int32_t n)
{
	for (int32_t i = first; i < first + n; i++)
	{
		Row			row = block_row(block, i);

		if (state->options.loss.n_classes > 1)
		{
			find_slopes(state, &row);
			add_outer(state, &row, 1.0, state->gradient);
		}
		else
			row_axpy(&row, clipped_slope(state, row_dot(&row, state->weights), row.label), state->gradient);
	}
	state->rows += n;
}

DPML_CLONES void
dpml_sgd_apply_batch(DpmlSgd *state)
{
	apply_batch(state);
}

int
dpml_sgd_is_whole(const DpmlSgd *state)
{
	int64_t		missing = 0;

	for (int64_t t = state->batch; t < state->n_sizes; t++)
		missing += state->sizes[t];
	return missing == state->in_batch && state->batch <= state->n_sizes;
}

void
dpml_sgd_finish(DpmlSgd *state)
{
	int64_t		n = n_weights(&state->options);

	if (state->in_batch > 0)
		close_batch(state);
	while (state->batch < state->n_sizes)
		close_batch(state);
	fold_scale(state);
	if (state->averaged > 0)
		for (int64_t i = 0; i < n; i++)
			state->average[i] /= (double) state->averaged;
}
