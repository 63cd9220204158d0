/* SPDX-License-Identifier: PostgreSQL */
/* The entries of a public random projection. */
#ifndef DPML_PROJECTION_H
#define DPML_PROJECTION_H

#include <stdint.h>

#include "random.h"

enum DpmlProjectionConstant
{
	DPML_MAX_PROJECTION = 67108864	/* entries of a matrix, 2^26: a second to make, 256 MB to keep */
};

/*
 * A Gaussian random projection from n_raw to n_projected features, which keeps
 * squared norms on average; the seed is public.  The matrix comes row by row, the
 * next n entries at each call: an even number, but for the last ones.
 */
void		dpml_projection_start(DpmlRng *rng, uint64_t seed);
void		dpml_projection(DpmlRng *rng, int32_t n_projected, int64_t n, float *out);

#endif
