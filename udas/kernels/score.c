/* SPDX-License-Identifier: PostgreSQL */
/* Scores and losses, row by row. */
#include "score.h"

#include "row.h"
#include "rowloss.h"
#include "vector.h"

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

DPML_CLONES void
dpml_scores_sparse(int32_t n_outputs, int32_t n_features, const double *weights, int32_t n, const uint32_t *columns,
				   const float *x, double *scores)
{
	for (int32_t k = 0; k < n_outputs; k++)
		scores[k] = dpml_dot_sparse(n, weights + (int64_t) k * n_features, columns, x);
}
