/* SPDX-License-Identifier: PostgreSQL */
/* ChaCha20 (RFC 8439) as a generator, and the noise drawn from it. */
#ifndef DPML_NOISE_H
#define DPML_NOISE_H

#include <stdint.h>

/* Keyed by the operating system, fresh for every run and process; never copied, stored or reused. */
typedef struct DpmlRng
{
	uint32_t	key[8];
	uint64_t	counter;		/* block number of the next 64 bytes */
	uint32_t	buffer[16];		/* current key-stream block */
	int32_t		used;			/* words of buffer handed out; 16 when empty */
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

#endif
