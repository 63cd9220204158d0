/* SPDX-License-Identifier: PostgreSQL */
/*
 * Second moments, and Hessians.
 *
 * Dense rows are gathered as doubles, GRAM_ROWS at a time, in panels of
 * GRAM_PANEL columns:
 *
 *		| row 0: columns 0-3 | row 1: columns 0-3 | ... | row 0: columns 4-7 | ...
 *
 * so that a tile of 4 x 12 products, of a panel with three panels, is summed over
 * all of them in registers, and xx is touched once: X'X by rows taken together, as
 * a product of matrices.  The right sides of GRAM_STRIP columns stay in the cache
 * while the left ones pass by.  The last panels are filled up with zeros.  A weight
 * h of a row goes in as sqrt(h); rows of weight 0 are left out.
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

#define GRAM_ROWS 192
#define GRAM_PANEL 4
#define GRAM_SIZE (GRAM_PANEL * GRAM_ROWS)	/* of a panel */
#define GRAM_WIDTH 3			/* panels on the right of a tile */
#define GRAM_COLUMNS (GRAM_WIDTH * GRAM_PANEL)
#define GRAM_STRIP (8 * GRAM_COLUMNS)

/* Sums of the products of a panel with GRAM_WIDTH panels. */
typedef DpmlLanes Tile[GRAM_PANEL][GRAM_WIDTH];

/* Index of the first number of row i in the triangle. */
DPML_INLINE int64_t
triangle_row(int64_t n, int64_t i)
{
	return i * n - i * (i - 1) / 2;
}

/* Columns of the panels: as many as whole tiles have. */
DPML_INLINE int64_t
n_columns(int64_t n_features)
{
	return (n_features + GRAM_COLUMNS - 1) / GRAM_COLUMNS * GRAM_COLUMNS;
}

/* Put factor x into the panels as row r. */
DPML_INLINE void
gather_row(const float *x, int64_t n, double factor, int64_t r, double *panels)
{
	DpmlLanes	factors = {factor, factor, factor, factor};
	DpmlLanes	zeros = {0.0, 0.0, 0.0, 0.0};
	double	   *out = panels + r * GRAM_PANEL;
	double	   *end = panels + n_columns(n) * GRAM_ROWS;
	int64_t		i = 0;

	for (; i + GRAM_PANEL <= n; i += GRAM_PANEL, out += GRAM_SIZE)
		DPML_STORE(out, factors * DPML_LOAD_F32(x + i));
	for (double *rest = out; rest < end; rest += GRAM_SIZE)
		DPML_STORE(rest, zeros);
	for (int64_t c = 0; i + c < n; c++)
		out[c] = factor * x[i + c];
}

/* Sums over the gathered rows of the products of a panel with the GRAM_WIDTH panels on the right. */
DPML_INLINE void
tile_products(int n_rows, const double *left, const double *right, Tile sums)
{
	for (int i = 0; i < GRAM_PANEL; i++)
		for (int k = 0; k < GRAM_WIDTH; k++)
			sums[i][k] = (DpmlLanes) {0.0, 0.0, 0.0, 0.0};
	for (int r = 0; r < n_rows; r++, left += GRAM_PANEL, right += GRAM_PANEL)
		for (int i = 0; i < GRAM_PANEL; i++)
		{
			DpmlLanes	factor = {left[i], left[i], left[i], left[i]};

			for (int k = 0; k < GRAM_WIDTH; k++)
				sums[i][k] += factor * DPML_LOAD(right + k * GRAM_SIZE);
		}
}

/*
 * The same for factors that are float32 values, by fused multiply-adds where the
 * machine has them.  Such a product has at most 48 bits, so that one rounding or
 * two give the same number.
 */
#ifdef DPML_AVX2
/* Row i of the tile is in variables of its own: gcc would store an array in every turn of the loop. */
#define ADD_ROW(i) \
	do { \
		__m256d		factor = _mm256_broadcast_sd(left + (i)); \
		row##i##_0 = _mm256_fmadd_pd(factor, right_0, row##i##_0); \
		row##i##_1 = _mm256_fmadd_pd(factor, right_1, row##i##_1); \
		row##i##_2 = _mm256_fmadd_pd(factor, right_2, row##i##_2); \
	} while (0)
#define STORE_ROW(i) \
	do { \
		_mm256_storeu_pd((double *) &sums[i][0], row##i##_0); \
		_mm256_storeu_pd((double *) &sums[i][1], row##i##_1); \
		_mm256_storeu_pd((double *) &sums[i][2], row##i##_2); \
	} while (0)

__attribute__((target("avx2,fma"))) static void
tile_products_fma(int n_rows, const double *left, const double *right, Tile sums)
{
	__m256d		row0_0 = _mm256_setzero_pd(), row0_1 = row0_0, row0_2 = row0_0;
	__m256d		row1_0 = row0_0, row1_1 = row0_0, row1_2 = row0_0;
	__m256d		row2_0 = row0_0, row2_1 = row0_0, row2_2 = row0_0;
	__m256d		row3_0 = row0_0, row3_1 = row0_0, row3_2 = row0_0;

	for (int r = 0; r < n_rows; r++, left += GRAM_PANEL, right += GRAM_PANEL)
	{
		__m256d		right_0 = _mm256_loadu_pd(right);
		__m256d		right_1 = _mm256_loadu_pd(right + GRAM_SIZE);
		__m256d		right_2 = _mm256_loadu_pd(right + 2 * GRAM_SIZE);

		ADD_ROW(0);
		ADD_ROW(1);
		ADD_ROW(2);
		ADD_ROW(3);
	}
	STORE_ROW(0);
	STORE_ROW(1);
	STORE_ROW(2);
	STORE_ROW(3);
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

/* Add the sums of the tile of row a and column b to xx, those on or above the diagonal. */
DPML_INLINE void
add_tile(int64_t n, int64_t a, int64_t b, Tile sums, double *xx)
{
	double	   *out = xx + triangle_row(n, a) - a;
	int			whole = b >= a + GRAM_PANEL && b + GRAM_COLUMNS <= n;

	for (int64_t i = a; i < a + GRAM_PANEL && i < n; out += n - ++i)
	{
		if (whole)
			for (int64_t k = 0; k < GRAM_WIDTH; k++)
				DPML_STORE(out + b + 4 * k, DPML_LOAD(out + b + 4 * k) + sums[i - a][k]);
		else
			for (int64_t j = b > i ? b : i; j < b + GRAM_COLUMNS && j < n; j++)
				out[j] += sums[i - a][(j - b) / 4][(j - b) % 4];
	}
}

/* xx += the gathered rows; fma: they are float32 values, of a machine that has it. */
static DPML_CLONES void
add_panels(int64_t n, int n_rows, const double *panels, int fma, double *xx)
{
	for (int64_t strip = 0; strip < n; strip += GRAM_STRIP)
		for (int64_t a = 0; a < n && a < strip + GRAM_STRIP; a += GRAM_PANEL)
			for (int64_t b = strip; b < n && b < strip + GRAM_STRIP; b += GRAM_COLUMNS)
			{
				Tile		sums;

				if (a >= b + GRAM_COLUMNS)	/* below the diagonal */
					continue;
				if (fma)
					tile_products_fma(n_rows, panels + a * GRAM_ROWS, panels + b * GRAM_ROWS, sums);
				else
					tile_products(n_rows, panels + a * GRAM_ROWS, panels + b * GRAM_ROWS, sums);
				add_tile(n, a, b, sums, xx);
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

/* The sum of squares of float32 values is finite if each of them is. */
DPML_INLINE int
row_finite(const Row *row)
{
	return dpml_finite(dpml_square_f32(row->n, row->f32)) && dpml_finite(row->label);
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
	return n_columns(n_features) * GRAM_ROWS;
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
