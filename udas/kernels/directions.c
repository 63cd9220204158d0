/* SPDX-License-Identifier: PostgreSQL */
/*
 * Norms ||P x|| of the rows of a block, P = scale I - V'V.
 *
 * Dense rows go in groups: first the products V x, then P x eight columns at a
 * time, which are squared and forgotten.  Reading eight columns of all rows of V
 * takes whole lines of the cache, whatever the distance from row to row.
 */
#include "directions.h"

#include <math.h>

#include "group.h"
#include "norm.h"
#include "row.h"
#include "scalar.h"
#include "vector.h"

/* The products of n_rows (a constant) dense rows with all rows of V, row by row in out. */
DPML_INLINE void
direction_products(const float *x, int n_rows, int64_t d, const double *v, int64_t n_directions, int32_t *start,
				   double *out)
{
	DpmlGroup	group = dpml_group_read(n_rows, d, x, start);
	int64_t		k = 0;

	for (; k + DPML_TILE <= n_directions; k += DPML_TILE)
		dpml_group_dot(&group, DPML_TILE, n_rows, v + k * d, n_directions, out + k);
	for (; k < n_directions; k++)
		dpml_group_dot(&group, 1, n_rows, v + k * d, n_directions, out + k);
}

/* squares[r] = ||scale x - products V||^2 of n_rows (a constant) dense rows; a product is a row's with a row of V. */
DPML_INLINE void
rest_squares(const float *x, int n_rows, int64_t d, double scale, const double *v, int64_t n_directions,
			 const double *products, double *squares)
{
	DpmlLanes	factor = {scale, scale, scale, scale};
	DpmlLanes	low[DPML_GROUP];
	DpmlLanes	high[DPML_GROUP];
	int64_t		i = 0;

	for (int r = 0; r < n_rows; r++)
		low[r] = high[r] = (DpmlLanes) {0.0, 0.0, 0.0, 0.0};
	for (; i + 8 <= d; i += 8)
	{
		DpmlLanes	y[DPML_GROUP][2];

		for (int r = 0; r < n_rows; r++)
			for (int half = 0; half < 2; half++)
				y[r][half] = factor * DPML_LOAD_F32(x + r * d + i + 4 * half);
		for (int64_t k = 0; k < n_directions; k++)
			for (int r = 0; r < n_rows; r++)
			{
				double		p = products[r * n_directions + k];

				for (int half = 0; half < 2; half++)
					y[r][half] -= (DpmlLanes) {p, p, p, p} * DPML_LOAD(v + k * d + i + 4 * half);
			}
		for (int r = 0; r < n_rows; r++)
		{
			low[r] += y[r][0] * y[r][0];
			high[r] += y[r][1] * y[r][1];
		}
	}
	for (int r = 0; r < n_rows; r++)
		squares[r] = dpml_lanes_sum(&low[r], &high[r]);
	for (; i < d; i++)
		for (int r = 0; r < n_rows; r++)
		{
			double		y = scale * x[r * d + i];

			for (int64_t k = 0; k < n_directions; k++)
				y -= products[r * n_directions + k] * v[k * d + i];
			squares[r] += y * y;
		}
}

DPML_INLINE void
group_squares(const float *x, int n_rows, int64_t d, double scale, const double *v, int64_t n_directions,
			  int32_t *start, double *products, double *squares)
{
	direction_products(x, n_rows, d, v, n_directions, start, products);
	rest_squares(x, n_rows, d, scale, v, n_directions, products, squares);
}

/* Of rows first .. end - 1, which are dense and have four features or more. */
static DPML_CLONES void
sum_squares(const DpmlBlock *block, double scale, const double *v, int32_t n_directions, int32_t first, int32_t end,
			int32_t *start, double *products, double *squares)
{
	int64_t		d = block->n_features;
	int32_t		i = first;

	for (; end - i >= DPML_GROUP; i += DPML_GROUP)
		group_squares(block->values + i * d, DPML_GROUP, d, scale, v, n_directions, start, products,
					  squares + (i - first));
	for (; i < end; i++)
		group_squares(block->values + i * d, 1, d, scale, v, n_directions, start, products, squares + (i - first));
}

/* ||P x|| of any row; 0 if it is beyond doubles, or so small that its products are not precise. */
static DPML_CLONES double
row_norm(const Row *row, int64_t d, double scale, const double *v, int32_t n_directions, double *product)
{
	double		norm;

	for (int64_t i = 0; i < d; i++)
		product[i] = 0.0;
	row_axpy(row, scale, product);
	for (int32_t k = 0; k < n_directions; k++)
		dpml_axpy_f64(d, -row_dot(row, v + k * d), v + k * d, product);
	norm = dpml_norm(d, product);
	return norm > 1e-280 && dpml_finite(norm) ? norm : 0.0;
}

int64_t
dpml_directions_memory(int32_t n_features, int32_t n_directions, int32_t n)
{
	return (int64_t) n_features + n + (int64_t) DPML_GROUP * n_directions + n_features / 8 + 1;
}

void
dpml_whiten_by_directions(const DpmlBlock *block, double scale, const double *v, int32_t n_directions, double norm,
						  int32_t first, int32_t n, double *work, float *values)
{
	int64_t		d = block->n_features;
	double	   *product = work;
	double	   *squares = product + d;
	double	   *products = squares + n;
	int32_t    *start = (int32_t *) (products + (int64_t) DPML_GROUP * n_directions);
	int32_t		end = n < block->n_rows - first ? first + n : block->n_rows;
	int			by_group = block->kind == DPML_DENSE && d >= 4;

	if (by_group)
		sum_squares(block, scale, v, n_directions, first, end, start, products, squares);
	for (int32_t i = first; i < end; i++)
	{
		Row			row = block_row(block, i);
		double		length;

		if (by_group && squares[i - first] > 1e-280 && squares[i - first] < 1e280)
			length = sqrt(squares[i - first]);
		else
			length = row_norm(&row, d, scale, v, n_directions, product);
		row_scale(&row, norm / length, values + (row.f32 - block->values));
	}
}
