/* SPDX-License-Identifier: PostgreSQL */
/* What weights say about rows: scores and losses; and the norm that every bound is checked by. */
#include "sgd.h"

#include <math.h>

#include "row.h"
#include "rowloss.h"
#include "scalar.h"
#include "vector.h"

DPML_CLONES double
dpml_norm(int64_t n, const double *x)
{
	double		squares = dpml_dot_f64(n, x, x);
	double		largest = 0.0;

	if (squares > 1e-280 && squares < 1e280)
		return sqrt(squares);
	for (int64_t i = 0; i < n; i++)
	{
		if (!dpml_finite(x[i]))
			return fabs(x[i]);
		largest = dpml_most(largest, fabs(x[i]));
	}
	if (largest == 0.0)
		return 0.0;
	squares = 0.0;
	for (int64_t i = 0; i < n; i++)
		squares += (x[i] / largest) * (x[i] / largest);
	return largest * sqrt(squares);
}

DPML_INLINE double
row_loss(const DpmlLoss *loss, const double *weights, int32_t n_features, const Row *row, double *scores)
{
	for (int32_t k = 0; k < loss->n_classes; k++)
		scores[k] = row_dot(row, weights + (int64_t) k * n_features);
	return row_value(loss, scores, row->label);
}

DPML_CLONES double
dpml_loss_sum_block(const DpmlLoss *loss, const double *weights, const DpmlBlock *block,
					int32_t first, int32_t n, double *scores)
{
	double		sum = 0.0;

	for (int32_t i = first; i < first + n; i++)
	{
		Row			row = block_row(block, i);

		sum += row_loss(loss, weights, block->n_features, &row, scores);
	}
	return sum;
}

double
dpml_loss_sum_row(const DpmlLoss *loss, const double *weights, int32_t n_features,
				  const double *x, double y, double *scores)
{
	Row			row = {ROW_F64, n_features, NULL, x, NULL, y};

	return row_loss(loss, weights, n_features, &row, scores);
}

DPML_CLONES void
dpml_scores(int32_t n_outputs, int32_t n_features, const double *weights, const float *x, double *scores)
{
	for (int32_t k = 0; k < n_outputs; k++)
		scores[k] = dpml_dot_f32(n_features, weights + (int64_t) k * n_features, x);
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
