/* SPDX-License-Identifier: PostgreSQL */
/*
 * The generator of every random number, ChaCha20 (RFC 8439, section 2.3, eight
 * blocks at a time), and the coins that are tossed with it.
 */
#include "random.h"

#include <math.h>
#include <string.h>

#include "clones.h"
#include "draw.h"

/* The same word of eight blocks. */
typedef uint32_t Lanes32 __attribute__((vector_size(32)));

#define ROTATE(v, n) (((v) << (n)) | ((v) >> (32 - (n))))

/* rotate_16 and rotate_8 are macros of one word: a vector unit may have something shorter than shifts. */
#define QUARTER_ROUND(a, b, c, d, rotate_16, rotate_8) \
	do { \
		a += b; d ^= a; d = rotate_16(d); \
		c += d; b ^= c; b = ROTATE(b, 12); \
		a += b; d ^= a; d = rotate_8(d); \
		c += d; b ^= c; b = ROTATE(b, 7); \
	} while (0)

#define ROUNDS(x, rotate_16, rotate_8) \
	for (int round = 0; round < 10; round++) \
	{ \
		QUARTER_ROUND(x[0], x[4], x[8], x[12], rotate_16, rotate_8); \
		QUARTER_ROUND(x[1], x[5], x[9], x[13], rotate_16, rotate_8); \
		QUARTER_ROUND(x[2], x[6], x[10], x[14], rotate_16, rotate_8); \
		QUARTER_ROUND(x[3], x[7], x[11], x[15], rotate_16, rotate_8); \
		QUARTER_ROUND(x[0], x[5], x[10], x[15], rotate_16, rotate_8); \
		QUARTER_ROUND(x[1], x[6], x[11], x[12], rotate_16, rotate_8); \
		QUARTER_ROUND(x[2], x[7], x[8], x[13], rotate_16, rotate_8); \
		QUARTER_ROUND(x[3], x[4], x[9], x[14], rotate_16, rotate_8); \
	}

#define SHIFT_16(v) ROTATE(v, 16)
#define SHIFT_8(v) ROTATE(v, 8)

static const uint32_t constants[4] = {0x61707865, 0x3320646e, 0x79622d32, 0x6b206574};

void
dpml_chacha20_block(const uint32_t key[8], uint32_t counter, const uint32_t nonce[3], uint32_t out[16])
{
	uint32_t	start[16];
	uint32_t	x[16];

	memcpy(start, constants, sizeof(constants));
	memcpy(start + 4, key, 8 * sizeof(uint32_t));
	start[12] = counter;
	memcpy(start + 13, nonce, 3 * sizeof(uint32_t));
	memcpy(x, start, sizeof(x));
	ROUNDS(x, SHIFT_16, SHIFT_8);
	for (int i = 0; i < 16; i++)
		out[i] = x[i] + start[i];
}

/* The state before the first round.  The upper half of the 64-bit block number is the first nonce word. */
DPML_INLINE void
begin_blocks(const DpmlRng *rng, Lanes32 start[16])
{
	memset(start, 0, 16 * sizeof(Lanes32));
	for (int w = 0; w < 4; w++)
		start[w] += constants[w];
	for (int w = 0; w < 8; w++)
		start[4 + w] += rng->key[w];
	start[12] = (Lanes32) {0, 1, 2, 3, 4, 5, 6, 7} + (uint32_t) rng->counter;
	start[13] += (uint32_t) (rng->counter >> 32);
}

DPML_INLINE void
end_blocks(DpmlRng *rng, const Lanes32 start[16], Lanes32 x[16])
{
	for (int w = 0; w < 16; w++)
		x[w] += start[w];
	memcpy(rng->words, x, sizeof(rng->words));
	rng->counter += 8;
	rng->used = 0;
}

static void
refill_plain(DpmlRng *rng)
{
	Lanes32		start[16];
	Lanes32		x[16];

	begin_blocks(rng, start);
	memcpy(x, start, sizeof(x));
	ROUNDS(x, SHIFT_16, SHIFT_8);
	end_blocks(rng, start, x);
}

#ifdef DPML_AVX2

/* With AVX2 a rotation by whole bytes is one shuffle; the generic code for one without it is very slow. */
#define SHUFFLE_16(v) ((Lanes32) __builtin_shuffle((Lanes8) (v), rotation_16))
#define SHUFFLE_8(v) ((Lanes32) __builtin_shuffle((Lanes8) (v), rotation_8))

typedef uint8_t Lanes8 __attribute__((vector_size(32)));

static __attribute__((target("avx2"))) void
refill_avx2(DpmlRng *rng)
{
	static const Lanes8 rotation_16 = {
		2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13,
		18, 19, 16, 17, 22, 23, 20, 21, 26, 27, 24, 25, 30, 31, 28, 29
	};
	static const Lanes8 rotation_8 = {
		3, 0, 1, 2, 7, 4, 5, 6, 11, 8, 9, 10, 15, 12, 13, 14,
		19, 16, 17, 18, 23, 20, 21, 22, 27, 24, 25, 26, 31, 28, 29, 30
	};
	Lanes32		start[16];
	Lanes32		x[16];

	begin_blocks(rng, start);
	memcpy(x, start, sizeof(x));
	ROUNDS(x, SHUFFLE_16, SHUFFLE_8);
	end_blocks(rng, start, x);
}

#endif

void
dpml_rng_refill(DpmlRng *rng)
{
#ifdef DPML_AVX2
	if (__builtin_cpu_supports("avx2"))
	{
		refill_avx2(rng);
		return;
	}
#endif
	refill_plain(rng);
}

void
dpml_rng_start(DpmlRng *rng, const uint8_t key[32])
{
	memset(rng, 0, sizeof(*rng));
	for (int i = 0; i < 8; i++)
		rng->key[i] = (uint32_t) key[4 * i] | (uint32_t) key[4 * i + 1] << 8 |
			(uint32_t) key[4 * i + 2] << 16 | (uint32_t) key[4 * i + 3] << 24;
	rng->used = DPML_RNG_WORDS;
}

uint64_t
dpml_rng_word(DpmlRng *rng)
{
	return rng_next(rng);
}

int
dpml_rng_coin(DpmlRng *rng, double probability)
{
	if (!(probability < 1.0))
		return 1;
	/* digit by digit: all of this is exact */
	while (probability > 0.0)
	{
		double		scaled = probability * 0x1p64;
		uint64_t	digit = (uint64_t) scaled;
		uint64_t	word = rng_next(rng);

		if (word != digit)
			return word < digit;
		probability = scaled - (double) digit;
	}
	return 0;
}

/*
 * The upper half of n times a word, drawn again where its lower half is one of the 2^64 mod n that would be too many.
 * These are below n, so that hardly a draw needs the division (Lemire 2019).
 */
int64_t
dpml_rng_below(DpmlRng *rng, int64_t n)
{
	unsigned __int128 product = (unsigned __int128) rng_next(rng) * (uint64_t) n;

	if ((uint64_t) product < (uint64_t) n)
	{
		uint64_t	too_many = -(uint64_t) n % (uint64_t) n;

		while ((uint64_t) product < too_many)
			product = (unsigned __int128) rng_next(rng) * (uint64_t) n;
	}
	return (int64_t) (product >> 64);
}

/* Count one of n bins: the upper half of n times 32 bits, or where those are of the too many, a draw from 64 bits. */
DPML_INLINE void
deal_one(DpmlRng *rng, uint32_t bits, uint32_t n, uint32_t too_many, int32_t *counts)
{
	uint64_t	product = (uint64_t) bits * n;

	if ((uint32_t) product < too_many)
		counts[dpml_rng_below(rng, n)]++;
	else
		counts[product >> 32]++;
}

/* Two draws a word.  A draw that is refused is drawn again by itself, so that every bin keeps exactly its chance. */
void
dpml_rng_deal(DpmlRng *rng, int64_t draws, int32_t n, int32_t *counts)
{
	uint32_t	too_many = -(uint32_t) n % (uint32_t) n;

	for (int64_t i = 0; i < draws; i += 2)
	{
		uint64_t	word = rng_next(rng);

		deal_one(rng, (uint32_t) word, (uint32_t) n, too_many, counts);
		if (i + 1 < draws)
			deal_one(rng, (uint32_t) (word >> 32), (uint32_t) n, too_many, counts);
	}
}

/* The standard exponential of a word.  64 bits at either end of the uniform: it reaches 45, and starts at 2^-65. */
static double
exponential_of(uint64_t word)
{
	if (word >> 63 != 0)
		return -log1p(-((double) ~word + 0.5) * 0x1p-64);
	return -log(((double) word + 0.5) * 0x1p-64);
}

double
dpml_coin_rate(double q)
{
	return -log1p(-q);
}

/*
 * An exponential of that rate, rounded down, is geometric: the chance to be above m is (1 - q)^m.  One beyond
 * 8 ln 2, for which 56 bits would be left, is that much and a fresh one: it has no memory.
 */
int64_t
dpml_coin_misses(DpmlRng *rng, double rate)
{
	const double eight_ln_2 = 0x1.62e42fefa39efp+2;
	double		misses;
	uint64_t	word;
	int			turns = 0;

	while ((word = rng_next(rng)) >> 56 == 0)
		turns++;
	misses = (eight_ln_2 * turns + exponential_of(word)) / rate;
	return misses < (double) (INT64_MAX / 2) ? (int64_t) misses : INT64_MAX / 2;
}
