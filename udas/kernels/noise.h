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
int			dpml_rng_coin(DpmlRng *rng, double probability);	/* 1 with just that probability */
void		dpml_rng_normal(DpmlRng *rng, int64_t n, double *out);	/* standard normals as float64 */

/*
 * Noise in whole steps of a grid.  stddev and scale count in steps: standard deviation of a normal, and, for a density
 * proportional to exp(-||z|| / scale) in R^n, its scale; in [0, 2^45], which for K-norm noise is meant of scale sqrt(n + 1).
 */
void		dpml_noise_gaussian(DpmlRng *rng, int64_t n, double stddev, double *out);
void		dpml_noise_knorm(DpmlRng *rng, int64_t n, double scale, double *out);

/*
 * How much of a place of 2^-55 of a strip > 0 lies under the curve, and how much of one of a piece of the tail is kept.
 */
double		dpml_normal_under_curve(int32_t strip, int64_t number);
double		dpml_normal_in_tail(int32_t piece, int64_t number);

/* Grid that sums and noise of so large a scale (> 0) are rounded to: the largest power of two <= 2^-20 scale. */
double		dpml_noise_grid(double scale);

/*
 * Misses before the next hit of a coin, INT64_MAX / 2 at most.  rate is dpml_coin_rate of the probability q in
 * (0, 1] that it hits.
 */
double		dpml_coin_rate(double q);
int64_t		dpml_coin_misses(DpmlRng *rng, double rate);

#endif
