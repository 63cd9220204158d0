/* SPDX-License-Identifier: PostgreSQL */
/* A random projection: normal numbers from a generator with a public key. */
#include "projection.h"

#include <math.h>

#include "noise.h"

void
dpml_projection_start(DpmlRng *rng, uint64_t seed)
{
	uint8_t		key[32] = {0};

	for (int i = 0; i < 8; i++)
		key[i] = (uint8_t) (seed >> (8 * i));
	dpml_rng_start(rng, key);
}

/* Johnson & Lindenstrauss 1984: independent N(0, 1 / n_projected) entries. */
void
dpml_projection(DpmlRng *rng, int32_t n_projected, int64_t n, float *out)
{
	double		scale = 1.0 / sqrt((double) n_projected);
	double		pair[2];

	for (int64_t i = 0; i < n; i += 2)
	{
		dpml_rng_normal(rng, 2, pair);
		out[i] = (float) (scale * pair[0]);
		if (i + 1 < n)
			out[i + 1] = (float) (scale * pair[1]);
	}
}
