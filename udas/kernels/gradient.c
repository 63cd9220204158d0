/* SPDX-License-Identifier: PostgreSQL */
/*
 * Gradients and losses of a full batch.
 *
 * All rows see the same weights, so they go in groups of DPML_GROUP (group.h):
 * weights and sums are loaded once a group.
 */
#include "gradient.h"

#include <math.h>
#include <string.h>

#include "by_feature.h"
#include "group.h"
#include "norm.h"
#include "row.h"
#include "rowloss.h"
#include "scalar.h"
#include "vector.h"

/* Below it, the square of a norm to clip could underflow. */
#define LEAST_LANE_CLIP 1e-130

DPML_INLINE int64_t
n_outputs(const DpmlGradientOptions *options)
{
	return (int64_t) options->n_models * options->loss.n_classes;
}

/* Scores of a row: of all models only where losses are wanted. */
DPML_INLINE int64_t
n_scores(const DpmlGradientOptions *options)
{
	return options->losses != DPML_NO_LOSSES ? n_outputs(options) : options->loss.n_classes;
}

DPML_INLINE int64_t
n_weights(const DpmlGradientOptions *options)
{
	return (int64_t) options->loss.n_classes * options->n_features;
}

/* A group of rows, and its working memory. */
typedef struct Group
{
	int			in_chunks;		/* 1: dense rows for several outputs */
	int			by_feature;		/* 1: sparse rows, weights and sums by feature */
	int32_t		first;			/* row of the block */
	DpmlGroup	chunks;
	DpmlLanes  *lanes;			/* one model's scores, a row a lane */
	double	   *scores;			/* then slopes, row by row, J x K a row */
	int32_t    *start;			/* of the chunks */
} Group;

DPML_INLINE int64_t
group_memory(const DpmlGradientOptions *options)
{
	return DPML_GROUP * (n_scores(options) + options->loss.n_classes) + (options->n_features + 7) / 8;
}

DPML_INLINE Group
make_group(const DpmlGradientOptions *options, const DpmlBlock *block, double *work)
{
	Group		group = {0};

	group.in_chunks = block->kind == DPML_DENSE && options->loss.n_classes > 1 && options->n_features >= 4;
	group.by_feature = dpml_gradient_by_feature(options, block->kind);
	group.lanes = (DpmlLanes *) work;
	group.scores = work + DPML_GROUP * options->loss.n_classes;
	group.start = (int32_t *) (group.scores + DPML_GROUP * n_scores(options));
	return group;
}

/* The scores of n_rows (a constant) rows. */
DPML_INLINE void
group_scores(const DpmlGradientOptions *options, const double *weights, const DpmlBlock *block, int n_rows, Group *group)
{
	int64_t		n = n_scores(options);
	int64_t		d = options->n_features;
	int64_t		s = 0;

	if (group->by_feature)
	{
		sparse_scores(block, group->first, n_rows, n, n_outputs(options), weights, group->scores);
		return;
	}
	if (group->in_chunks)
	{
		group->chunks = dpml_group_read(n_rows, d, block->values + group->first * d, group->start);
		for (; n - s >= DPML_TILE; s += DPML_TILE)
			dpml_group_dot(&group->chunks, DPML_TILE, n_rows, weights + s * d, n, group->scores + s);
		if (s < n)
			dpml_group_dot(&group->chunks, 1, n_rows, weights + s * d, n, group->scores + s);
		return;
	}
	for (; s < n; s++)
	{
		double		products[DPML_GROUP];

		if (block->kind == DPML_DENSE)
			dpml_dot_rows_f32(n_rows, d, weights + s * d, block->values + group->first * d, products);
		else
			for (int r = 0; r < n_rows; r++)
			{
				Row			row = block_row(block, group->first + r);

				products[r] = row_dot(&row, weights + s * d);
			}
		for (int r = 0; r < n_rows; r++)
			group->scores[r * n + s] = products[r];
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

/* clip_slopes for a row a lane, without a branch: about half of the rows are clipped. */
DPML_INLINE void
clip_lanes(double clip, int32_t n_classes, DpmlLanes *lanes)
{
	DpmlLanes	norm = {0.0, 0.0, 0.0, 0.0};
	DpmlLanes	factor = {1.0, 1.0, 1.0, 1.0};
	DpmlLaneBits longer;

	for (int32_t k = 0; k < n_classes; k++)
		norm += lanes[k] * lanes[k];
	norm = (DpmlLanes) {sqrt(norm[0]), sqrt(norm[1]), sqrt(norm[2]), sqrt(norm[3])};
	longer = (DpmlLaneBits) (norm > clip);
	factor = (DpmlLanes) (((DpmlLaneBits) (clip / norm) & longer) | ((DpmlLaneBits) factor & ~longer));
	for (int32_t k = 0; k < n_classes; k++)
		lanes[k] *= factor;
}

/*
 * Softmax of n_rows (a constant) rows, a row a lane, so that no sum goes across
 * lanes.  A lane without a row, or whose row contributes nothing, comes to 0.  Clipped.
 */
DPML_INLINE void
softmax_slopes(int n_rows, int32_t n_classes, int64_t stride, const float *labels, double clip, DpmlLanes *lanes,
			   double *scores)
{
	double		class[DPML_GROUP] = {-1.0, -1.0, -1.0, -1.0};
	const double *row[DPML_GROUP];
	DpmlLanes	classes;
	DpmlLanes	shift;
	DpmlLanes	sum = {0.0, 0.0, 0.0, 0.0};
	DpmlLaneBits counts;

	for (int r = 0; r < DPML_GROUP; r++)
		row[r] = scores + (r < n_rows ? r : 0) * stride;
	for (int r = 0; r < n_rows; r++)
		class[r] = class_index(labels[r], n_classes);
	classes = (DpmlLanes) {class[0], class[1], class[2], class[3]};
	counts = (DpmlLaneBits) (classes >= 0.0);
	for (int32_t k = 0; k < n_classes; k++)
	{
		lanes[k] = (DpmlLanes) {row[0][k], row[1][k], row[2][k], row[3][k]};
		counts &= (DpmlLaneBits) (lanes[k] * 0.0 == 0.0);	/* finite */
	}
	shift = lanes[0];
	for (int32_t k = 1; k < n_classes; k++)
		dpml_lanes_raise(&shift, &lanes[k]);
	for (int32_t k = 0; k < n_classes; k++)
	{
		lanes[k] -= shift;
		dpml_exp_lanes(&lanes[k]);
		sum += lanes[k];
	}
	for (int32_t k = 0; k < n_classes; k++)
	{
		DpmlLanes	one = {1.0, 1.0, 1.0, 1.0};

		one = (DpmlLanes) ((DpmlLaneBits) one & (DpmlLaneBits) (classes == (double) k));
		lanes[k] = (DpmlLanes) ((DpmlLaneBits) (lanes[k] / sum - one) & counts);
	}
	if (clip < INFINITY)
		clip_lanes(clip, n_classes, lanes);
	for (int32_t k = 0; k < n_classes; k++)
		for (int r = 0; r < n_rows; r++)
			scores[r * stride + k] = lanes[k][r];
}

/* Scores become the loss's derivatives in them, clipped. */
DPML_INLINE void
group_slopes(const DpmlGradientOptions *options, const DpmlBlock *block, int n_rows, Group *group)
{
	int64_t		stride = n_scores(options);
	const float *labels = block->labels + group->first;

	if (options->loss.kind == DPML_SOFTMAX && options->gradient_clip >= LEAST_LANE_CLIP)
	{
		softmax_slopes(n_rows, options->loss.n_classes, stride, labels, options->gradient_clip, group->lanes,
					   group->scores);
		return;
	}
	for (int r = 0; r < n_rows; r++)
	{
		row_slopes(&options->loss, group->scores + r * stride, labels[r]);
		clip_slopes(options->gradient_clip, options->loss.n_classes, group->scores + r * stride);
	}
}

DPML_INLINE void
add_gradients(const DpmlGradientOptions *options, const DpmlBlock *block, int n_rows, const Group *group,
			  double *gradient)
{
	int64_t		stride = n_scores(options);
	int64_t		d = options->n_features;
	int32_t		n_classes = options->loss.n_classes;
	int			in_chunks = group->in_chunks;
	int32_t		k = 0;

	if (group->by_feature)
	{
		sparse_gradients(block, group->first, n_rows, n_classes, group->scores, stride, gradient);
		return;
	}
	for (int r = 0; r < n_rows; r++)
		in_chunks = in_chunks && any_slope(n_classes, group->scores + r * stride);
	if (in_chunks)
	{
		for (; n_classes - k >= DPML_TILE; k += DPML_TILE)
			dpml_group_axpy(&group->chunks, DPML_TILE, n_rows, group->scores + k, stride, gradient + k * d);
		if (k < n_classes)
			dpml_group_axpy(&group->chunks, 1, n_rows, group->scores + k, stride, gradient + k * d);
		return;
	}
	for (; k < n_classes; k++)
	{
		double		factors[DPML_GROUP];

		for (int r = 0; r < n_rows; r++)
			factors[r] = group->scores[r * stride + k];
		if (block->kind == DPML_DENSE)
			rows_axpy(n_rows, d, factors, block->values + group->first * d, gradient + k * d);
		else
			for (int r = 0; r < n_rows; r++)
			{
				Row			row = block_row(block, group->first + r);

				row_axpy(&row, factors[r], gradient + k * d);
			}
	}
}

/* n_rows (a constant) rows from the group's first on. */
DPML_INLINE void
take_group(const DpmlGradientOptions *options, const double *weights, const DpmlBlock *block,
		   int n_rows, Group *group, double *gradient, double *losses)
{
	group_scores(options, weights, block, n_rows, group);
	if (options->losses != DPML_NO_LOSSES)
		for (int r = 0; r < n_rows; r++)
			add_losses(options, group->scores + r * n_scores(options), block->labels[group->first + r], losses);
	if (options->gradient)
	{
		group_slopes(options, block, n_rows, group);
		add_gradients(options, block, n_rows, group, gradient);
	}
}

static DPML_CLONES void
take_rows(const DpmlGradientOptions *options, const double *weights, const DpmlBlock *block,
		  int32_t first, int32_t end, double *work, double *gradient, double *losses)
{
	DpmlGradientOptions local = *options;	/* no store to the arrays can alias it */
	Group		group = make_group(&local, block, work);
	int32_t		i = first;

	for (; end - i >= DPML_GROUP; i += DPML_GROUP)
	{
		group.first = i;
		take_group(&local, weights, block, DPML_GROUP, &group, gradient, losses);
	}
	for (; i < end; i++)
	{
		group.first = i;
		take_group(&local, weights, block, 1, &group, gradient, losses);
	}
}

/*
 * Add a unit's gradient, shortened to norm unit_clip, and clear it.  One that is
 * not finite counts for nothing.  The margin is for the rounding of the norm.
 */
static DPML_CLONES void
add_unit(const DpmlGradientOptions *options, double *unit, double *gradient)
{
	int64_t		n = n_weights(options);
	double		norm = dpml_norm(n, unit);
	double		limit = options->unit_clip * (1.0 - 0x1p-42);

	if (dpml_finite(norm))
		dpml_axpy_f64(n, norm > limit ? limit / norm : 1.0, unit, gradient);
	memset(unit, 0, (size_t) n * sizeof(double));
}

/* A unit ends before the next row that begins one, and with the block. */
static int
ends_unit(const DpmlBlock *block, int32_t i)
{
	return i == block->n_rows || dpml_block_starts_unit(block, i);
}

int
dpml_gradient_by_feature(const DpmlGradientOptions *options, int32_t kind)
{
	return kind == DPML_CSR && options->loss.n_classes >= 4;
}

int64_t
dpml_gradient_memory(const DpmlGradientOptions *options)
{
	return group_memory(options) + (options->unit_clip < INFINITY ? n_weights(options) : 0);
}

void
dpml_gradient_rows(const DpmlGradientOptions *options, const double *weights, const DpmlBlock *block,
				   int32_t first, int32_t n, double *work, double *gradient, double *losses)
{
	double	   *unit = work + group_memory(options);
	int32_t		end = n < block->n_rows - first ? first + n : block->n_rows;

	if (!options->gradient || !(options->unit_clip < INFINITY))
	{
		take_rows(options, weights, block, first, end, work, gradient, losses);
		return;
	}
	while (first < end)
	{
		int32_t		next = first + 1;

		while (next < end && !ends_unit(block, next))
			next++;
		take_rows(options, weights, block, first, next, work, unit, losses);
		if (ends_unit(block, next))
			add_unit(options, unit, gradient);
		first = next;
	}
}
