/* SPDX-License-Identifier: PostgreSQL */
/*
 * ChaCha20: RFC 8439, section 2.3.
 * Gaussian: Box and Muller 1958.  Gamma: Marsaglia and Tsang 2000.
 * K-norm: privacy/README.md, "K-norm noise".
 */
#include "noise.h"

#include <math.h>
#include <string.h>

#include "sgd.h"

#define ROTATE(v, n) (((v) << (n)) | ((v) >> (32 - (n))))

#define QUARTER_ROUND(a, b, c, d) \
	do { \
		a += b; d ^= a; d = ROTATE(d, 16); \
		c += d; b ^= c; b = ROTATE(b, 12); \
		a += b; d ^= a; d = ROTATE(d, 8); \
		c += d; b ^= c; b = ROTATE(b, 7); \
	} while (0)

static const double two_pi = 6.283185307179586476925287;

void
dpml_chacha20_block(const uint32_t key[8], uint32_t counter, const uint32_t nonce[3], uint32_t out[16])
{
	uint32_t	start[16] = {0x61707865, 0x3320646e, 0x79622d32, 0x6b206574};
	uint32_t	x[16];

	memcpy(start + 4, key, 8 * sizeof(uint32_t));
	start[12] = counter;
	memcpy(start + 13, nonce, 3 * sizeof(uint32_t));
	memcpy(x, start, sizeof(x));
	for (int round = 0; round < 10; round++)
	{
		QUARTER_ROUND(x[0], x[4], x[8], x[12]);
		QUARTER_ROUND(x[1], x[5], x[9], x[13]);
		QUARTER_ROUND(x[2], x[6], x[10], x[14]);
		QUARTER_ROUND(x[3], x[7], x[11], x[15]);
		QUARTER_ROUND(x[0], x[5], x[10], x[15]);
		QUARTER_ROUND(x[1], x[6], x[11], x[12]);
		QUARTER_ROUND(x[2], x[7], x[8], x[13]);
		QUARTER_ROUND(x[3], x[4], x[9], x[14]);
	}
	for (int i = 0; i < 16; i++)
		out[i] = x[i] + start[i];
}

void
dpml_rng_start(DpmlRng *rng, const uint8_t key[32])
{
	memset(rng, 0, sizeof(*rng));
	for (int i = 0; i < 8; i++)
		rng->key[i] = (uint32_t) key[4 * i] | (uint32_t) key[4 * i + 1] << 8 |
			(uint32_t) key[4 * i + 2] << 16 | (uint32_t) key[4 * i + 3] << 24;
	rng->used = 16;
}

uint64_t
dpml_rng_word(DpmlRng *rng)
{
	uint64_t	word;

	if (rng->used > 14)
	{
		/* The upper half of the 64-bit block number is the first nonce word. */
		uint32_t	nonce[3] = {(uint32_t) (rng->counter >> 32), 0, 0};

		dpml_chacha20_block(rng->key, (uint32_t) rng->counter, nonce, rng->buffer);
		rng->counter++;
		rng->used = 0;
	}
	word = (uint64_t) rng->buffer[rng->used + 1] << 32 | rng->buffer[rng->used];
	rng->used += 2;
	return word;
}

/* An odd multiple of 2^-53: exact, and neither 0 nor 1. */
double
dpml_rng_uniform(DpmlRng *rng)
{
	return ((double) (dpml_rng_word(rng) >> 12) + 0.5) * 0x1p-52;
}

/* Two independent standard normals.  64 bits in the first uniform reach 9.4 standard deviations. */
static void
gaussian_pair(DpmlRng *rng, double *first, double *second)
{
	double		uniform = ((double) dpml_rng_word(rng) + 0.5) * 0x1p-64;
	double		radius = sqrt(fabs(2.0 * log(uniform)));
	double		angle = two_pi * dpml_rng_uniform(rng);

	*first = radius * cos(angle);
	*second = radius * sin(angle);
}

void
dpml_noise_gaussian(DpmlRng *rng, int64_t n, double stddev, double *out)
{
	double		first,
				second;

	for (int64_t i = 0; i + 1 < n; i += 2)
	{
		gaussian_pair(rng, &first, &second);
		out[i] = stddev * first;
		out[i + 1] = stddev * second;
	}
	if (n > 0 && n % 2 != 0)
	{
		gaussian_pair(rng, &first, &second);
		out[n - 1] = stddev * first;
	}
}

double
dpml_noise_gamma(DpmlRng *rng, double shape)
{
	double		d = shape - 1.0 / 3.0;
	double		c = 1.0 / sqrt(9.0 * d);

	for (;;)
	{
		double		x,
					unused,
					v;

		gaussian_pair(rng, &x, &unused);
		v = 1.0 + c * x;
		if (v <= 0.0)
			continue;
		v = v * v * v;
		if (log(dpml_rng_uniform(rng)) < 0.5 * x * x + d * (1.0 - v + log(v)))
			return d * v;
	}
}

void
dpml_noise_knorm(DpmlRng *rng, int64_t n, double scale, double *out)
{
	double		radius,
				norm;

	if (n < 1)
		return;
	radius = scale * dpml_noise_gamma(rng, (double) n);
	do
	{
		dpml_noise_gaussian(rng, n, 1.0, out);
		norm = dpml_norm(n, out);
	} while (norm == 0.0);
	for (int64_t i = 0; i < n; i++)
		out[i] = radius * (out[i] / norm);
}
