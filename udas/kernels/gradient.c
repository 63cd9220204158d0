/* SPDX-License-Identifier: PostgreSQL */
/*
 * All rows see the same weights, so they go in groups of DPML_GROUP: weights
 * and sums are loaded once a group.  A group's scores and then its slopes lie
 * row by row, J x K a row.
 */
#include "gradient.h"

#include <math.h>
#include <string.h>

#include "row.h"
#include "rowloss.h"
#include "scalar.h"
#include "sgd.h"
#include "vector.h"

/* Scores of a row: of all models only where losses are wanted. */
DPML_INLINE int64_t
n_scores(const DpmlGradientOptions *options)
{
	return (int64_t) (options->losses != DPML_NO_LOSSES ? options->n_models : 1) * options->loss.n_classes;
}

DPML_INLINE int64_t
n_weights(const DpmlGradientOptions *options)
{
	return (int64_t) options->loss.n_classes * options->n_features;
}

/* The scores of n_rows (a constant) rows from row i on. */
DPML_INLINE void
group_scores(const DpmlGradientOptions *options, const double *weights, const DpmlBlock *block,
			 int n_rows, int32_t i, double *scores)
{
	int64_t		n = n_scores(options);
	int64_t		d = options->n_features;
	double		products[DPML_GROUP];

	for (int64_t s = 0; s < n; s++)
	{
		if (block->kind == DPML_DENSE)
			dpml_dot_rows_f32(n_rows, d, weights + s * d, block->values + i * d, products);
		else
			for (int r = 0; r < n_rows; r++)
			{
				Row			row = block_row(block, i + r);

				products[r] = row_dot(&row, weights + s * d);
			}
		for (int r = 0; r < n_rows; r++)
			scores[r * n + s] = products[r];
	}
}

DPML_INLINE void
add_losses(const DpmlGradientOptions *options, const double *scores, double label, double *losses)
{
	for (int32_t j = 0; j < options->n_models; j++)
	{
		const double *own = scores + (int64_t) j * options->loss.n_classes;

		if (options->losses == DPML_ERRORS)
			losses[j] += row_error(&options->loss, own, label);
		else
			losses[j] += dpml_clamp(row_value(&options->loss, own, label), 0.0, options->loss_clip);
	}
}

DPML_INLINE void
add_gradients(const DpmlGradientOptions *options, const double *slopes, const DpmlBlock *block,
			  int n_rows, int32_t i, double *gradient)
{
	int64_t		n = n_scores(options);
	int64_t		d = options->n_features;

	for (int32_t k = 0; k < options->loss.n_classes; k++)
	{
		double		factors[DPML_GROUP];

		for (int r = 0; r < n_rows; r++)
			factors[r] = slopes[r * n + k];
		if (block->kind == DPML_DENSE)
			rows_axpy(n_rows, d, factors, block->values + i * d, gradient + k * d);
		else
			for (int r = 0; r < n_rows; r++)
			{
				Row			row = block_row(block, i + r);

				row_axpy(&row, factors[r], gradient + k * d);
			}
	}
}

/* n_rows (a constant) rows from row i on. */
DPML_INLINE void
take_group(const DpmlGradientOptions *options, const double *weights, const DpmlBlock *block,
		   int n_rows, int32_t i, double *scores, double *gradient, double *losses)
{
	int64_t		n = n_scores(options);

	group_scores(options, weights, block, n_rows, i, scores);
	for (int r = 0; r < n_rows; r++)
	{
		if (options->losses != DPML_NO_LOSSES)
			add_losses(options, scores + r * n, block->labels[i + r], losses);
		if (options->gradient)
		{
			row_slopes(&options->loss, scores + r * n, block->labels[i + r]);
			clip_slopes(options->gradient_clip, options->loss.n_classes, scores + r * n);
		}
	}
	if (options->gradient)
		add_gradients(options, scores, block, n_rows, i, gradient);
}

static DPML_CLONES void
take_rows(const DpmlGradientOptions *options, const double *weights, const DpmlBlock *block,
		  int32_t first, int32_t end, double *scores, double *gradient, double *losses)
{
	DpmlGradientOptions local = *options;	/* no store to the arrays can alias it */
	int32_t		i = first;

	for (; end - i >= DPML_GROUP; i += DPML_GROUP)
		take_group(&local, weights, block, DPML_GROUP, i, scores, gradient, losses);
	for (; i < end; i++)
		take_group(&local, weights, block, 1, i, scores, gradient, losses);
}

/* Add a unit's gradient, shortened to norm unit_clip, and clear it.  One that is not finite counts for nothing. */
static DPML_CLONES void
add_unit(const DpmlGradientOptions *options, double *unit, double *gradient)
{
	int64_t		n = n_weights(options);
	double		norm = dpml_norm(n, unit);

	if (dpml_finite(norm))
		dpml_axpy_f64(n, norm > options->unit_clip ? options->unit_clip / norm : 1.0, unit, gradient);
	memset(unit, 0, (size_t) n * sizeof(double));
}

/* A unit ends before the next row that begins one, and with the block. */
static int32_t
unit_end(const DpmlBlock *block, int32_t first)
{
	int32_t		end = first + 1;

	while (end < block->n_rows && !dpml_block_starts_unit(block, end))
		end++;
	return end;
}

int64_t
dpml_gradient_memory(const DpmlGradientOptions *options)
{
	return DPML_GROUP * n_scores(options) + (options->unit_clip < INFINITY ? n_weights(options) : 0);
}

int32_t
dpml_gradient_rows(const DpmlGradientOptions *options, const double *weights, const DpmlBlock *block,
				   int32_t first, int32_t n, double *work, double *gradient, double *losses)
{
	double	   *unit = work + DPML_GROUP * n_scores(options);
	int32_t		end = n < block->n_rows - first ? first + n : block->n_rows;

	if (!options->gradient || !(options->unit_clip < INFINITY))
	{
		take_rows(options, weights, block, first, end, work, gradient, losses);
		return end;
	}
	while (first < end)
	{
		int32_t		next = unit_end(block, first);

		take_rows(options, weights, block, first, next, work, unit, losses);
		add_unit(options, unit, gradient);
		first = next;
	}
	return first;
}
