/* SPDX-License-Identifier: PostgreSQL */
/*
 * Norms ||P x|| of the rows of a block.
 *
 * Several rows of P at a time stay in the cache while all rows of the block pass
 * by: a wide P is read once for the block, not once for a row.  Sparse rows read
 * it in panels of WHITEN_PANEL rows, each column by column:
 *
 *		| rows 0-31: column 0 | column 1 | ... | rows 32-63: column 0 | ...
 *
 * The last panel is filled up with zeros.
 */
#include "whiten.h"

#include <math.h>

#include "group.h"
#include "norm.h"
#include "row.h"
#include "scalar.h"
#include "vector.h"

/* Values of P that stay in the cache, and rows of it that are read at a time at least. */
#define WHITEN_VALUES 4096
#define WHITEN_ROWS 8

/* Rows of P in a panel, for sparse rows. */
#define WHITEN_PANEL 32
#define WHITEN_LANES (WHITEN_PANEL / 4)

/* add_squares of dense rows. */
DPML_INLINE void
add_group_squares(const DpmlBlock *block, const double *p, int n_rows, int32_t i, int64_t from, int64_t to,
				  int32_t *start, double *squares)
{
	int64_t		d = block->n_features;
	DpmlGroup	group = dpml_group_read(n_rows, d, block->values + i * d, start);
	double		products[DPML_TILE * DPML_GROUP];
	int64_t		k = from;

	for (; k + DPML_TILE <= to; k += DPML_TILE)
	{
		dpml_group_dot(&group, DPML_TILE, n_rows, p + k * d, DPML_TILE, products);
		for (int r = 0; r < n_rows; r++)
			for (int t = 0; t < DPML_TILE; t++)
				squares[r] += products[r * DPML_TILE + t] * products[r * DPML_TILE + t];
	}
	for (; k < to; k++)
	{
		dpml_group_dot(&group, 1, n_rows, p + k * d, 1, products);
		for (int r = 0; r < n_rows; r++)
			squares[r] += products[r] * products[r];
	}
}

/*
 * squares[r] += the squares of elements from .. to - 1 of P x, for n_rows (a constant) dense rows from row i
 * on; start has room for n_features / 4 columns.
 */
DPML_INLINE void
add_squares(const DpmlBlock *block, const double *p, int n_rows, int32_t i, int64_t from, int64_t to,
			int32_t *start, double *squares)
{
	int64_t		d = block->n_features;

	if (d >= 4)
	{
		add_group_squares(block, p, n_rows, i, from, to, start, squares);
		return;
	}
	for (int r = 0; r < n_rows; r++)
	{
		Row			row = block_row(block, i + r);

		for (int64_t k = from; k < to; k++)
		{
			double		product = row_dot(&row, p + k * d);

			squares[r] += product * product;
		}
	}
}

/* Of rows first .. end - 1, which are dense. */
static DPML_CLONES void
sum_squares(const DpmlBlock *block, const double *p, int32_t first, int32_t end, int32_t *start, double *squares)
{
	int64_t		d = block->n_features;
	int64_t		step = WHITEN_VALUES / d > WHITEN_ROWS ? WHITEN_VALUES / d : WHITEN_ROWS;

	for (int64_t from = 0; from < d; from += step)
	{
		int64_t		to = from + step < d ? from + step : d;
		int32_t		i = first;

		for (; end - i >= DPML_GROUP; i += DPML_GROUP)
			add_squares(block, p, DPML_GROUP, i, from, to, start, squares + (i - first));
		for (; i < end; i++)
			add_squares(block, p, 1, i, from, to, start, squares + (i - first));
	}
}

/* The sum of the squares of a panel of P x, for a sparse row: P x is a sum of columns of P. */
DPML_INLINE double
panel_square(const Row *row, const double *panel)
{
	DpmlLanes	sums[WHITEN_LANES] = {{0.0}};
	DpmlLanes	square = {0.0, 0.0, 0.0, 0.0};

	for (int64_t i = 0; i < row->n; i++)
	{
		const double *part = panel + row->columns[i] * (int64_t) WHITEN_PANEL;
		double		x = row->f32[i];

		for (int k = 0; k < WHITEN_LANES; k++)
			sums[k] += DPML_LOAD(part + 4 * k) * (DpmlLanes) {x, x, x, x};
	}
	for (int k = 0; k < WHITEN_LANES; k++)
		square += sums[k] * sums[k];
	return (square[0] + square[2]) + (square[1] + square[3]);
}

/* sum_squares of sparse rows, by the panels of P. */
static DPML_CLONES void
sum_sparse_squares(const DpmlBlock *block, const double *panels, int32_t first, int32_t end, double *squares)
{
	int64_t		d = block->n_features;

	for (int64_t from = 0; from < d; from += WHITEN_PANEL)
		for (int32_t i = first; i < end; i++)
		{
			Row			row = block_row(block, i);

			squares[i - first] += panel_square(&row, panels + from * d);
		}
}

/* ||P x|| of a row whose sum of squares has left the range in which it is precise; 0 if the products have, too. */
static double
careful_norm(const DpmlBlock *block, const double *p, int32_t i, double *product)
{
	Row			row = block_row(block, i);
	double		norm;

	for (int64_t k = 0; k < block->n_features; k++)
		product[k] = row_dot(&row, p + k * block->n_features);
	norm = dpml_norm(block->n_features, product);
	return norm > 1e-280 ? norm : 0.0;
}

int64_t
dpml_whiten_memory(int32_t n_features, int32_t n)
{
	return (int64_t) n_features + n + n_features / 8 + 1;
}

int64_t
dpml_whiten_panels_size(int32_t n_features)
{
	return ((int64_t) n_features + WHITEN_PANEL - 1) / WHITEN_PANEL * WHITEN_PANEL * n_features;
}

void
dpml_whiten_panels(int32_t n_features, const double *p, double *panels)
{
	int64_t		d = n_features;

	for (int64_t from = 0; from < d; from += WHITEN_PANEL)
		for (int64_t i = 0; i < d; i++)
			for (int64_t k = from; k < from + WHITEN_PANEL; k++)
				*panels++ = k < d ? p[k * d + i] : 0.0;
}

void
dpml_whiten_rows(const DpmlBlock *block, const double *p, const double *panels, double norm, int32_t first,
				 int32_t n, double *work, float *values)
{
	double	   *product = work;
	double	   *squares = work + block->n_features;
	int32_t    *start = (int32_t *) (squares + n);
	int32_t		end = n < block->n_rows - first ? first + n : block->n_rows;

	for (int32_t i = first; i < end; i++)
		squares[i - first] = 0.0;
	if (block->kind == DPML_DENSE)
		sum_squares(block, p, first, end, start, squares);
	else
		sum_sparse_squares(block, panels, first, end, squares);
	for (int32_t i = first; i < end; i++)
	{
		Row			row = block_row(block, i);
		double		square = squares[i - first];
		double		length;

		if (square > 1e-280 && square < 1e280)
			length = sqrt(square);
		else
			length = careful_norm(block, p, i, product);
		row_scale(&row, norm / length, values + (row.f32 - block->values));
	}
}

/* P x as a sum of columns, which are rows too: those of features that are 0, many in an image, are not read. */
DPML_CLONES double
dpml_whitened_norm(int32_t n_features, const double *p, const float *x, double *work)
{
	double		norm;

	for (int32_t i = 0; i < n_features; i++)
		work[i] = 0.0;
	for (int32_t i = 0; i < n_features; i++)
	{
		if (x[i] != 0.0f)
			dpml_axpy_f64(n_features, x[i], p + (int64_t) i * n_features, work);
	}
	norm = dpml_norm(n_features, work);
	return norm > 1e-280 && dpml_finite(norm) ? norm : 0.0;
}
