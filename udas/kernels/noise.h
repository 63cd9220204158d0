/* SPDX-License-Identifier: PostgreSQL */
/* ChaCha20 (RFC 8439) as a generator, and what is drawn from it: noise and coins. */
#ifndef DPML_NOISE_H
#define DPML_NOISE_H

#include <stdint.h>

/* Keyed by the operating system, fresh for every run and process; never copied, stored or reused. */
typedef struct DpmlRng
{
	uint64_t	words[64];		/* eight key-stream blocks, side by side: word 8 w + i is word w of block i */
	uint64_t	counter;		/* number of the next key-stream block, a multiple of 8 */
	uint32_t	key[8];
	int32_t		used;			/* words handed out; 64 when none is left */
} DpmlRng;

/* The RFC's block function, for its test vectors. */
void		dpml_chacha20_block(const uint32_t key[8], uint32_t counter, const uint32_t nonce[3], uint32_t out[16]);

void		dpml_rng_start(DpmlRng *rng, const uint8_t key[32]);
uint64_t	dpml_rng_word(DpmlRng *rng);
double		dpml_rng_uniform(DpmlRng *rng);	/* in (0, 1) */

void		dpml_noise_gaussian(DpmlRng *rng, int64_t n, double stddev, double *out);
double		dpml_noise_gamma(DpmlRng *rng, double shape);	/* scale 1, shape >= 1 */

/* Density proportional to exp(-||z|| / scale) in R^n: radius Gamma(n, scale), direction uniform on the sphere. */
void		dpml_noise_knorm(DpmlRng *rng, int64_t n, double scale, double *out);

/* Grid that sums and noise of so large a scale (> 0) are rounded to: the largest power of two <= 2^-20 scale. */
double		dpml_noise_grid(double scale);

/*
 * Misses before the next hit of a coin, INT64_MAX / 2 at most.  rate is dpml_coin_rate of the probability q in
 * (0, 1] that it hits.
 */
double		dpml_coin_rate(double q);
int64_t		dpml_coin_misses(DpmlRng *rng, double rate);

#endif
