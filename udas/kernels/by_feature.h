/* SPDX-License-Identifier: PostgreSQL */
/*
 * Scores and gradients of sparse rows of four outputs or more, where weights and
 * sums are by feature: a value of a row meets those of all its outputs beside
 * each other.  Eight outputs go together, as two times four; where they are not a
 * multiple of four, the last four begin earlier and share some with those before.
 */
#ifndef DPML_BY_FEATURE_H
#define DPML_BY_FEATURE_H

#include <stdint.h>

#include "row.h"
#include "vector.h"

/* A row with a slope has finite scores, so is finite itself: slopes of 0 beside it add nothing. */
DPML_INLINE int
any_slope(int32_t n_classes, const double *slopes)
{
	int			any = 0;

	for (int32_t k = 0; k < n_classes; k++)
		any |= slopes[k] != 0.0;
	return any;
}

/* Read four outputs from output at on; those before from count 0. */
DPML_INLINE void
read_outputs(const double *values, int64_t at, int64_t from, DpmlLanes *four)
{
	*four = DPML_LOAD(values + at);
	for (int i = 0; i < 4; i++)
		(*four)[i] = at + i < from ? 0.0 : (*four)[i];
}

/* Where the second four of eight outputs begin, of which there are n >= 4: the last four may be in the first, too. */
DPML_INLINE int64_t
at_most(int64_t at, int64_t n)
{
	return at < n - 4 ? at : n - 4;
}

/*
 * The scores of sparse rows: the first n >= 4 of so many outputs (stride), whose
 * weights are by feature, eight at a time.  Value i goes to sum i mod 2; the sums
 * are added at the end.
 */
static DPML_CLONES void
sparse_scores(const DpmlBlock *block, int32_t first, int32_t n_rows, int64_t n, int64_t stride,
			  const double *weights, double *scores)
{
	for (int32_t r = 0; r < n_rows; r++, scores += n)
	{
		Row			row = block_row(block, first + r);

		for (int64_t s = 0; s < n; s += 8)
		{
			const double *low = weights + at_most(s, n);
			const double *high = weights + at_most(s + 4, n);
			DpmlLanes	sums[2][2] = {{{0.0}}};
			int64_t		i = 0;

			for (; i + 2 <= row.n; i += 2)
				for (int j = 0; j < 2; j++)
				{
					int64_t		at = row.columns[i + j] * stride;
					double		x = row.f32[i + j];

					sums[j][0] += DPML_LOAD(low + at) * (DpmlLanes) {x, x, x, x};
					sums[j][1] += DPML_LOAD(high + at) * (DpmlLanes) {x, x, x, x};
				}
			if (i < row.n)
			{
				int64_t		at = row.columns[i] * stride;
				double		x = row.f32[i];

				sums[0][0] += DPML_LOAD(low + at) * (DpmlLanes) {x, x, x, x};
				sums[0][1] += DPML_LOAD(high + at) * (DpmlLanes) {x, x, x, x};
			}
			DPML_STORE(scores + at_most(s, n), sums[0][0] + sums[1][0]);
			DPML_STORE(scores + at_most(s + 4, n), sums[0][1] + sums[1][1]);
		}
	}
}

/*
 * Add sparse rows times their n >= 4 slopes to sums by feature.  An output that
 * is in both fours is stored twice, with the same sum.
 */
static DPML_CLONES void
sparse_gradients(const DpmlBlock *block, int32_t first, int32_t n_rows, int64_t n, const double *slopes,
				 int64_t stride, double *gradient)
{
	for (int32_t r = 0; r < n_rows; r++, slopes += stride)
	{
		Row			row = block_row(block, first + r);

		if (!any_slope((int32_t) n, slopes))
			continue;
		for (int64_t s = 0; s < n; s += 8)
		{
			int64_t		low = at_most(s, n);
			int64_t		high = at_most(s + 4, n);
			DpmlLanes	low_slopes;
			DpmlLanes	high_slopes;

			read_outputs(slopes, low, s, &low_slopes);
			read_outputs(slopes, high, s, &high_slopes);
			for (int64_t i = 0; i < row.n; i++)
			{
				double	   *out = gradient + row.columns[i] * n;
				double		x = row.f32[i];
				DpmlLanes	low_sum = DPML_LOAD(out + low) + low_slopes * (DpmlLanes) {x, x, x, x};
				DpmlLanes	high_sum = DPML_LOAD(out + high) + high_slopes * (DpmlLanes) {x, x, x, x};

				DPML_STORE(out + low, low_sum);
				DPML_STORE(out + high, high_sum);
			}
		}
	}
}

#endif
