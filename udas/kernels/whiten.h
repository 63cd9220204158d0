/* SPDX-License-Identifier: PostgreSQL */
/* The norm ||P x||_2 of a row as a matrix P sees it, and rows brought to one such norm. */
#ifndef DPML_WHITEN_H
#define DPML_WHITEN_H

#include <stdint.h>

#include "block.h"

/* Doubles of working memory for n rows. */
int64_t		dpml_whiten_memory(int32_t n_features, int32_t n);

/* A d x d matrix P, row-major, in the order in which sparse rows read it; and how many doubles that takes. */
int64_t		dpml_whiten_panels_size(int32_t n_features);
void		dpml_whiten_panels(int32_t n_features, const double *p, double *panels);

/*
 * Rows first .. first + n - 1 of a block as x norm / ||P x||_2, in values, which
 * has room for all values of the block.  p is d x d, row-major; panels are those
 * of p, and are read for sparse rows alone.  A zero row, and
 * one whose new values are not finite in float32 or whose ||P x|| is beyond
 * doubles, becomes a zero row.  Rounding to float32 can then lengthen P x by a
 * factor of 1 + 2^-24 cond(P), which norm has to leave room for.
 */
void		dpml_whiten_rows(const DpmlBlock *block, const double *p, const double *panels, double norm,
							 int32_t first, int32_t n, double *work, float *values);

/*
 * ||P x||_2 of one float32 row; p is d x d, symmetric, work has d doubles.  0 where it is
 * beyond doubles, or so small that its products are not precise.
 */
double		dpml_whitened_norm(int32_t n_features, const double *p, const float *x, double *work);

#endif
