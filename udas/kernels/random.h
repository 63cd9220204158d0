/* SPDX-License-Identifier: PostgreSQL */
/* ChaCha20 (RFC 8439) as a generator of random words, and the coins that are tossed with it. */
#ifndef DPML_RANDOM_H
#define DPML_RANDOM_H

#include <stdint.h>

enum DpmlRandomConstant
{
	DPML_KEY_BYTES = 32,			/* of a generator's key */
	DPML_RNG_WORDS = 64			/* made at a time */
};

/* Keyed by the operating system, fresh for every run and process; never copied, stored or reused. */
typedef struct DpmlRng
{
	uint64_t	words[DPML_RNG_WORDS];	/* eight key-stream blocks, side by side: word 8 w + i is word w of block i */
	uint64_t	counter;		/* number of the next key-stream block, a multiple of 8 */
	uint32_t	key[8];
	int32_t		used;			/* words handed out; DPML_RNG_WORDS when none is left */
} DpmlRng;

/* The RFC's block function, for its test vectors. */
void		dpml_chacha20_block(const uint32_t key[8], uint32_t counter, const uint32_t nonce[3], uint32_t out[16]);

void		dpml_rng_start(DpmlRng *rng, const uint8_t key[32]);
uint64_t	dpml_rng_word(DpmlRng *rng);

/* Replace the words that were handed out by those of the next eight key-stream blocks. */
void		dpml_rng_refill(DpmlRng *rng);

/* 1 with exactly that probability, which is a double in [0, 1]. */
int			dpml_rng_coin(DpmlRng *rng, double probability);

/* One of 0 .. n - 1, each with exactly the same probability; n >= 1. */
int64_t		dpml_rng_below(DpmlRng *rng, int64_t n);

/* Draw one of n >= 1 bins so many times, each bin with exactly the same probability, and add to their counts. */
void		dpml_rng_deal(DpmlRng *rng, int64_t draws, int32_t n, int32_t *counts);

/*
 * Misses before the next hit of a coin, INT64_MAX / 2 at most.  rate is dpml_coin_rate of the probability q in
 * (0, 1] that it hits.
 */
double		dpml_coin_rate(double q);
int64_t		dpml_coin_misses(DpmlRng *rng, double rate);

#endif
