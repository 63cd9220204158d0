/* SPDX-License-Identifier: PostgreSQL */
/*
 * Second moments of the rows of a block: sum x x' and sum y x, or the Hessian
 * sum phi''(u) x x' of the data loss at weights.  A symmetric d x d matrix is its
 * upper triangle, row by row: d (d + 1) / 2 numbers.
 */
#ifndef DPML_GRAM_H
#define DPML_GRAM_H

#include <stdint.h>

#include "block.h"
#include "loss.h"

enum DpmlGramConstant
{
	DPML_GRAM_MAX_FEATURES = 2500
};

/* Doubles of working memory. */
int64_t		dpml_gram_memory(int32_t n_features);

/*
 * Add rows first .. first + n - 1 of a block to xx, and to xy (d).  A row with a
 * number that is not finite counts for nothing.
 */
void		dpml_gram_rows(const DpmlBlock *block, int32_t first, int32_t n, double *work, double *xx, double *xy);

/* The same for the Hessian of a loss of one score at weights (d). */
void		dpml_hessian_rows(const DpmlLoss *loss, const double *weights, const DpmlBlock *block,
							  int32_t first, int32_t n, double *work, double *xx);

#endif
