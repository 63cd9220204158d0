/* SPDX-License-Identifier: PostgreSQL */
/*
 * Second moments, and Hessians.
 *
 * Dense rows are gathered as doubles, GRAM_ROWS at a time, in panels of
 * GRAM_PANEL columns:
 *
 *		| row 0: columns 0-7 | row 1: columns 0-7 | ... | row 0: columns 8-15 | ...
 *
 * so that a tile of 4 x 8 products is summed over all of them in registers, and
 * xx is touched once: X'X by rows taken together, as a product of matrices.  The
 * last panel is filled up with zeros.  A weight h of a row goes in as sqrt(h);
 * rows of weight 0 are left out.
 */
#include "gram.h"

#include <math.h>

#include "clones.h"

#ifdef DPML_AVX2
#include <immintrin.h>
#endif

#include "row.h"
#include "rowloss.h"
#include "scalar.h"
#include "vector.h"

#define GRAM_ROWS 64
#define GRAM_PANEL 8
#define GRAM_TILE 4				/* rows of a tile; divides GRAM_PANEL */

/* Index of the first number of row i in the triangle. */
DPML_INLINE int64_t
triangle_row(int64_t n, int64_t i)
{
	return i * n - i * (i - 1) / 2;
}

DPML_INLINE int64_t
n_panels(int32_t n_features)
{
	return ((int64_t) n_features + GRAM_PANEL - 1) / GRAM_PANEL;
}

/* Put factor x into the panels as row r. */
DPML_INLINE void
gather_row(const float *x, int64_t n, double factor, int64_t r, double *panels)
{
	for (int64_t p = 0; p * GRAM_PANEL < n; p++)
		for (int64_t c = 0; c < GRAM_PANEL; c++)
		{
			int64_t		i = p * GRAM_PANEL + c;

			panels[(p * GRAM_ROWS + r) * GRAM_PANEL + c] = i < n ? factor * x[i] : 0.0;
		}
}

/* Sums over the gathered rows of the products of GRAM_TILE columns with GRAM_PANEL columns. */
DPML_INLINE void
tile_products(int n_rows, const double *left, const double *right, DpmlLanes sums[GRAM_TILE][2])
{
	for (int r = 0; r < n_rows; r++, left += GRAM_PANEL, right += GRAM_PANEL)
		for (int i = 0; i < GRAM_TILE; i++)
		{
			DpmlLanes	factor = {left[i], left[i], left[i], left[i]};

			sums[i][0] += factor * DPML_LOAD(right);
			sums[i][1] += factor * DPML_LOAD(right + 4);
		}
}

/*
 * The same for factors that are float32 values, by fused multiply-adds where the
 * machine has them.  Such a product has at most 48 bits, so that one rounding or
 * two give the same number.
 */
#ifdef DPML_AVX2
__attribute__((target("avx2,fma"))) static void
tile_products_fma(int n_rows, const double *left, const double *right, DpmlLanes sums[GRAM_TILE][2])
{
	/* no array: gcc would store it in every turn of the loop */
	__m256d		low0 = _mm256_setzero_pd(), low1 = low0, low2 = low0, low3 = low0;
	__m256d		high0 = low0, high1 = low0, high2 = low0, high3 = low0;

	for (int r = 0; r < n_rows; r++, left += GRAM_PANEL, right += GRAM_PANEL)
	{
		__m256d		low = _mm256_loadu_pd(right);
		__m256d		high = _mm256_loadu_pd(right + 4);

		low0 = _mm256_fmadd_pd(_mm256_broadcast_sd(left), low, low0);
		high0 = _mm256_fmadd_pd(_mm256_broadcast_sd(left), high, high0);
		low1 = _mm256_fmadd_pd(_mm256_broadcast_sd(left + 1), low, low1);
		high1 = _mm256_fmadd_pd(_mm256_broadcast_sd(left + 1), high, high1);
		low2 = _mm256_fmadd_pd(_mm256_broadcast_sd(left + 2), low, low2);
		high2 = _mm256_fmadd_pd(_mm256_broadcast_sd(left + 2), high, high2);
		low3 = _mm256_fmadd_pd(_mm256_broadcast_sd(left + 3), low, low3);
		high3 = _mm256_fmadd_pd(_mm256_broadcast_sd(left + 3), high, high3);
	}
	_mm256_storeu_pd((double *) &sums[0][0], low0);
	_mm256_storeu_pd((double *) &sums[0][1], high0);
	_mm256_storeu_pd((double *) &sums[1][0], low1);
	_mm256_storeu_pd((double *) &sums[1][1], high1);
	_mm256_storeu_pd((double *) &sums[2][0], low2);
	_mm256_storeu_pd((double *) &sums[2][1], high2);
	_mm256_storeu_pd((double *) &sums[3][0], low3);
	_mm256_storeu_pd((double *) &sums[3][1], high3);
}

static int
has_fma(void)
{
	return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
#else
#define tile_products_fma tile_products
#define has_fma() 0
#endif

/* Add a tile's sums to xx, those on or above the diagonal. */
DPML_INLINE void
add_tile(int64_t n, int64_t a, int64_t b, DpmlLanes sums[GRAM_TILE][2], double *xx)
{
	for (int64_t i = 0; i < GRAM_TILE && a + i < n; i++)
	{
		double	   *out = xx + triangle_row(n, a + i) - (a + i);

		if (b >= a + i && b + GRAM_PANEL <= n)
		{
			DPML_STORE(out + b, DPML_LOAD(out + b) + sums[i][0]);
			DPML_STORE(out + b + 4, DPML_LOAD(out + b + 4) + sums[i][1]);
		}
		else
			for (int64_t j = b > a + i ? b : a + i; j < b + GRAM_PANEL && j < n; j++)
				out[j] += sums[i][(j - b) / 4][(j - b) % 4];
	}
}

/* xx += the gathered rows; fma: they are float32 values, of a machine that has it. */
static DPML_CLONES void
add_panels(int64_t n, int n_rows, const double *panels, int fma, double *xx)
{
	for (int64_t a = 0; a < n; a += GRAM_TILE)
	{
		const double *left = panels + a / GRAM_PANEL * GRAM_PANEL * GRAM_ROWS + a % GRAM_PANEL;

		for (int64_t b = a / GRAM_PANEL * GRAM_PANEL; b < n; b += GRAM_PANEL)
		{
			DpmlLanes	sums[GRAM_TILE][2] = {{{0.0}}};

			if (fma)
				tile_products_fma(n_rows, left, panels + b * GRAM_ROWS, sums);
			else
				tile_products(n_rows, left, panels + b * GRAM_ROWS, sums);
			add_tile(n, a, b, sums, xx);
		}
	}
}

/* xx += h x x' of a sparse row; its columns rise.  Four columns beside each other go together. */
DPML_INLINE void
add_sparse(const Row *row, double h, int64_t n, double *xx)
{
	const uint32_t *columns = row->columns;

	for (int64_t a = 0; a < row->n; a++)
	{
		double	   *out = xx + triangle_row(n, columns[a]) - columns[a];
		double		factor = h * row->f32[a];
		int64_t		b = a;

		while (b < row->n)
		{
			if (b + 4 <= row->n && columns[b + 3] - columns[b] == 3)
			{
				dpml_axpy_f32(4, factor, row->f32 + b, out + columns[b]);
				b += 4;
			}
			else
			{
				out[columns[b]] += factor * row->f32[b];
				b++;
			}
		}
	}
}

DPML_INLINE int
row_finite(const Row *row)
{
	for (int64_t i = 0; i < row->n; i++)
		if (!dpml_finite(row->f32[i]))
			return 0;
	return dpml_finite(row->label);
}

/* Weight of a row's outer product in xx: phi''(<w, x>), or 1 without a loss; 0 if a number of the row is not finite. */
DPML_INLINE double
row_weight(const DpmlLoss *loss, const double *weights, const Row *row)
{
	double		score;
	double		h;

	if (!row_finite(row))
		return 0.0;
	if (loss == NULL)
		return 1.0;
	score = row_dot(row, weights);
	h = dpml_loss_curvature(loss, score, row->label);
	return dpml_finite(score) && dpml_finite(h) ? h : 0.0;
}

static DPML_CLONES void
add_rows(const DpmlLoss *loss, const double *weights, const DpmlBlock *block,
		 int32_t first, int32_t end, double *panels, double *xx, double *xy)
{
	int64_t		d = block->n_features;
	int			fma = loss == NULL && has_fma();
	int			gathered = 0;

	for (int32_t i = first; i < end; i++)
	{
		Row			row = block_row(block, i);
		double		h = row_weight(loss, weights, &row);

		if (h == 0.0)
			continue;
		if (xy != NULL)
			row_axpy(&row, row.label, xy);
		if (block->kind == DPML_CSR)
		{
			add_sparse(&row, h, d, xx);
			continue;
		}
		gather_row(row.f32, d, sqrt(h), gathered++, panels);
		if (gathered == GRAM_ROWS)
		{
			add_panels(d, gathered, panels, fma, xx);
			gathered = 0;
		}
	}
	if (gathered > 0)
		add_panels(d, gathered, panels, fma, xx);
}

int64_t
dpml_gram_memory(int32_t n_features)
{
	return n_panels(n_features) * GRAM_PANEL * GRAM_ROWS;
}

void
dpml_gram_rows(const DpmlBlock *block, int32_t first, int32_t n, double *work, double *xx, double *xy)
{
	add_rows(NULL, NULL, block, first, n < block->n_rows - first ? first + n : block->n_rows, work, xx, xy);
}

void
dpml_hessian_rows(const DpmlLoss *loss, const double *weights, const DpmlBlock *block,
				  int32_t first, int32_t n, double *work, double *xx)
{
	add_rows(loss, weights, block, first, n < block->n_rows - first ? first + n : block->n_rows, work, xx, NULL);
}
