/* SPDX-License-Identifier: PostgreSQL */
/* The noise of one step, inline for the solvers that add it to the sum of each batch. */
#ifndef DPML_STEP_NOISE_H
#define DPML_STEP_NOISE_H

#include <math.h>
#include <stdint.h>

#include "clones.h"
#include "noise.h"

/*
 * Add fresh noise of a kind other than DPML_NO_NOISE to n sums.  Sums and noise are
 * whole steps of grid both, and grid is dpml_noise_grid(scale).  noise is scratch for n
 * numbers (privacy/README.md, "Noise inside a pass").
 */
DPML_INLINE void
add_noise(DpmlRng *rng, int kind, double scale, double grid, int64_t n, double *sums, double *noise)
{
	double		per_step = 1.0 / grid;	/* powers of two: exact */

	if (kind == DPML_KNORM)
		dpml_noise_knorm(rng, n, scale * per_step, noise);
	else
		dpml_noise_gaussian(rng, n, scale * per_step, noise);
	for (int64_t i = 0; i < n; i++)
		sums[i] = (rint(sums[i] * per_step) + noise[i]) * grid;
}

#endif
