/* SPDX-License-Identifier: PostgreSQL */
/* Drawing a word from a generator, inline for the loops that draw many. */
#ifndef DPML_DRAW_H
#define DPML_DRAW_H

#include <stdint.h>

#include "clones.h"
#include "random.h"

DPML_INLINE uint64_t
rng_next(DpmlRng *rng)
{
	if (rng->used == DPML_RNG_WORDS)
		dpml_rng_refill(rng);
	return rng->words[rng->used++];
}

#endif
