/* SPDX-License-Identifier: PostgreSQL */
/* Scores and losses of rows at given weights. */
#ifndef DPML_SCORE_H
#define DPML_SCORE_H

#include <stdint.h>

#include "block.h"
#include "loss.h"

/*
 * Sum of losses at weights (K x d) over rows first .. first + n - 1, which must exist, of a block, and over one
 * float64 row; scores has K doubles.
 */
double		dpml_loss_sum_block(const DpmlLoss *loss, const double *weights, const DpmlBlock *block,
								int32_t first, int32_t n, double *scores);
double		dpml_loss_sum_row(const DpmlLoss *loss, const double *weights, int32_t n_features,
							  const double *x, double y, double *scores);

/* Scores (K) of one float32 row at weights (K x d); what prediction uses. */
void		dpml_scores(int32_t n_outputs, int32_t n_features, const double *weights, const float *x, double *scores);

/* The same of a row of which n features, at rising columns, are not 0. */
void		dpml_scores_sparse(int32_t n_outputs, int32_t n_features, const double *weights, int32_t n,
							   const uint32_t *columns, const float *x, double *scores);

#endif
