/* SPDX-License-Identifier: PostgreSQL */
/*
 * A group of dense rows that several outputs read, in chunks of four columns.
 * A chunk of zeros in every row, common where categories are columns, is left
 * out: its products with finite weights are zeros, so no result depends on that.
 * Columns that do not fill a chunk are the end of the last four, of which the
 * others count 0.
 *
 * In a product, element i is in lane i mod 4, or in the lane of its place among
 * the last four columns; lanes are added as (0+2) + (1+3).
 */
#ifndef DPML_GROUP_H
#define DPML_GROUP_H

#include <stdint.h>
#include <string.h>

#include "vector.h"

/* Outputs that the loops below take at most. */
#define DPML_TILE 2

typedef struct DpmlGroup
{
	const float *x;				/* the rows, n_features each */
	int64_t		n_features;		/* at least 4 */
	int64_t		n_chunks;
	int32_t    *start;			/* first column of each chunk */
} DpmlGroup;

/* Choose the chunks of n_rows (a constant) rows; start has room for n_features / 4. */
DPML_INLINE DpmlGroup
dpml_group_read(int n_rows, int64_t n_features, const float *x, int32_t *start)
{
	DpmlGroup	group = {x, n_features, 0, start};

	for (int64_t i = 0; i + 4 <= n_features; i += 4)
	{
		uint64_t	any = 0;

		for (int r = 0; r < n_rows; r++)
		{
			uint64_t	bits[2];

			memcpy(bits, x + r * n_features + i, sizeof(bits));
			any |= bits[0] | bits[1];
		}
		start[group.n_chunks] = (int32_t) i;
		group.n_chunks += any != 0;
	}
	return group;
}

/* The products of n_rows rows with n_outputs weight vectors (both constants), row by row in out, stride apart. */
DPML_INLINE void
dpml_group_dot(const DpmlGroup *group, int n_outputs, int n_rows, const double *w, int64_t stride, double *out)
{
	int64_t		n = group->n_features;
	DpmlLaneBits end = {0, -(n % 4 > 2), -(n % 4 > 1), -1};	/* lanes that belong to no chunk */
	DpmlLanes	sum[DPML_TILE][DPML_GROUP];

	for (int k = 0; k < n_outputs; k++)
		for (int r = 0; r < n_rows; r++)
			sum[k][r] = (DpmlLanes) {0.0, 0.0, 0.0, 0.0};
	for (int64_t c = 0; c < group->n_chunks; c++)
	{
		int64_t		i = group->start[c];

		for (int r = 0; r < n_rows; r++)
		{
			DpmlLanes	values = DPML_LOAD_F32(group->x + r * n + i);

			for (int k = 0; k < n_outputs; k++)
				sum[k][r] += DPML_LOAD(w + k * n + i) * values;
		}
	}
	if (n % 4 != 0)
		for (int r = 0; r < n_rows; r++)
		{
			DpmlLanes	values = DPML_LOAD_F32(group->x + r * n + n - 4);

			values = (DpmlLanes) ((DpmlLaneBits) values & end);
			for (int k = 0; k < n_outputs; k++)
				sum[k][r] += DPML_LOAD(w + k * n + n - 4) * values;
		}
	for (int k = 0; k < n_outputs; k++)
		for (int r = 0; r < n_rows; r++)
			out[r * stride + k] = (sum[k][r][0] + sum[k][r][2]) + (sum[k][r][1] + sum[k][r][3]);
}

/*
 * Of each output k (outputs and rows are constants), out[k] += a[k] x[0] +
 * a[stride + k] x[1] + ..., added in that order.
 */
DPML_INLINE void
dpml_group_axpy(const DpmlGroup *group, int n_outputs, int n_rows, const double *a, int64_t stride, double *out)
{
	int64_t		n = group->n_features;
	double		factor[DPML_GROUP][DPML_TILE];

	for (int r = 0; r < n_rows; r++)
		for (int k = 0; k < n_outputs; k++)
			factor[r][k] = a[r * stride + k];
	for (int64_t c = 0; c < group->n_chunks; c++)
	{
		int64_t		i = group->start[c];
		DpmlLanes	sum[DPML_TILE];

		for (int k = 0; k < n_outputs; k++)
			sum[k] = DPML_LOAD(out + k * n + i);
		for (int r = 0; r < n_rows; r++)
		{
			DpmlLanes	values = DPML_LOAD_F32(group->x + r * n + i);

			for (int k = 0; k < n_outputs; k++)
				sum[k] += (DpmlLanes) {factor[r][k], factor[r][k], factor[r][k], factor[r][k]} * values;
		}
		for (int k = 0; k < n_outputs; k++)
			DPML_STORE(out + k * n + i, sum[k]);
	}
	for (int64_t i = n - n % 4; i < n; i++)
		for (int k = 0; k < n_outputs; k++)
			for (int r = 0; r < n_rows; r++)
				out[k * n + i] += factor[r][k] * group->x[r * n + i];
}

#endif
