/* SPDX-License-Identifier: PostgreSQL */
/* Rows brought to one norm ||P x||_2, as in whiten.h, for P = scale I - V'V where V has few rows. */
#ifndef DPML_DIRECTIONS_H
#define DPML_DIRECTIONS_H

#include <stdint.h>

#include "block.h"

/* Doubles of working memory for n rows; V has n_directions rows. */
int64_t		dpml_directions_memory(int32_t n_features, int32_t n_directions, int32_t n);

/*
 * As dpml_whiten_rows; v is n_directions x d, row-major.  P x is scale x less the
 * rows of V, each times its product with x: P itself is never made.
 */
void		dpml_whiten_by_directions(const DpmlBlock *block, double scale, const double *v, int32_t n_directions,
									  double norm, int32_t first, int32_t n, double *work, float *values);

#endif
