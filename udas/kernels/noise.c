/* SPDX-License-Identifier: PostgreSQL */
/*
 * Normal numbers and noise.
 *
 * Gaussian: the ziggurat of Marsaglia and Tsang 2000 (ziggurat.h).  A number is drawn as a
 * place, an interval that a word names; where one grid point does not have all of it, as many
 * random digits more say where in it the number lies.  So a point's probability is right
 * however fine the grid is: privacy/README.md, "The sampler".
 * K-norm: privacy/README.md, "K-norm noise".
 */
#include "noise.h"

#include <math.h>

#include "clones.h"
#include "draw.h"
#include "ziggurat.h"

#ifndef __SIZEOF_INT128__
#error "the noise needs a 64-bit compiler that has __int128"
#endif

/*
 * An interval between two numbers of places.  A strip has 2^55 places on either side of 0, a piece of the tail as
 * many.  The tail begins where strip 0 has its last place inside, so that there is neither gap nor overlap.
 */
typedef struct Place
{
	int64_t		begin;			/* places of strip 0 before the first: 0, or all that lie inside */
	uint64_t	width;			/* of 2^55 places, in 2^-61 */
	int64_t		number;			/* of this place, from 0 */
	int			negative;		/* mirrored at 0 */
} Place;

/* The places of a strip: the low 8 bits of a word say which strip, the others which place, below 0 on the left. */
DPML_INLINE int
strip_of(uint64_t word)
{
	return (int) (word & 255);
}

DPML_INLINE int64_t
number_of(uint64_t word)
{
	return (int64_t) word >> 8;
}

/* Does the place lie under the whole strip's inner edge and so under the curve, as 99 % do? */
DPML_INLINE int
is_inside(int strip, int64_t number)
{
	int64_t		inside = ziggurat_inside[strip];

	return (uint64_t) (number + inside) < 2 * (uint64_t) inside;
}

DPML_INLINE Place
strip_place(int strip, int64_t number)
{
	Place		place = {0, ziggurat_edges[strip], number, number < 0};

	if (place.negative)
		place.number = ~number;
	return place;
}

double
dpml_normal_under_curve(int32_t strip, int64_t number)
{
	double		edge = (double) ziggurat_edges[strip] * 0x1p-61;
	/* from the middle of the place to the outer edge */
	double		gap = (double) ((INT64_C(1) << 56) - (2 * number + 1)) * 0x1p-56 * edge;

	return expm1(0.5 * gap * (2.0 * edge - gap)) / ziggurat_rise[strip];
}

double
dpml_normal_in_tail(int32_t piece, int64_t number)
{
	double		edge = (double) ziggurat_edges[1] * 0x1p-61;
	double		beyond = ((double) number + 0.5) * 0x1p-57;

	/* in two parts, as the sum of both would be rounded */
	return exp(-beyond * edge - beyond * (0.25 * piece + 0.5 * beyond));
}

/* Beyond the last edge: a piece a quarter long, drawn with the chance 2^-(j + 1), and a place in it, both thinned. */
static Place
tail_place(DpmlRng *rng, int negative)
{
	for (;;)
	{
		uint64_t	word = rng_next(rng);
		int64_t		number = (int64_t) (rng_next(rng) >> 9);
		int			piece;

		if (word == 0)
			continue;			/* 64 quarters further out: less than 2^-280 of all numbers lie there */
		piece = __builtin_clzll(word);
		if (dpml_rng_coin(rng, ziggurat_tail[piece]) && dpml_rng_coin(rng, dpml_normal_in_tail(piece, number)))
		{
			Place		place = {ziggurat_inside[0], UINT64_C(1) << 59, (int64_t) piece << 55 | number, negative};

			return place;
		}
	}
}

/* The place of a standard normal, from a word on. */
static Place
normal_place(DpmlRng *rng, uint64_t word)
{
	for (;;)
	{
		int			strip = strip_of(word);
		int64_t		number = number_of(word);
		Place		place = strip_place(strip, number);

		if (is_inside(strip, number))
			return place;
		if (strip == 0)
			return tail_place(rng, place.negative);
		if (dpml_rng_coin(rng, dpml_normal_under_curve(strip, place.number)))
			return place;
		word = rng_next(rng);
	}
}

/* A place near 0 gets more digits, until there are 50; in places. */
static double
more_digits(DpmlRng *rng, int64_t number)
{
	double		unit = 0x1p-64;
	uint64_t	word = rng_next(rng);

	/* number 0 and a word of few digits: that word takes the number's part */
	for (; number == 0 && word >> 50 == 0; unit *= 0x1p-64)
	{
		number = (int64_t) word;
		word = rng_next(rng);
	}
	return (double) number * (unit * 0x1p64) + ((double) word + 0.5) * unit;
}

/* A standard normal with a relative error of at most 2^-50. */
DPML_INLINE double
normal(DpmlRng *rng)
{
	uint64_t	word = rng_next(rng);
	int			strip = strip_of(word);
	int64_t		number = number_of(word);
	Place		place = is_inside(strip, number) ? strip_place(strip, number) : normal_place(rng, word);
	double		places = place.number >> 50 != 0 ? (double) place.number + 0.5 : more_digits(rng, place.number);
	double		x = places * ((double) place.width * 0x1p-116);

	if (place.begin != 0)
		x += (double) place.begin * ((double) ziggurat_edges[0] * 0x1p-116);
	return place.negative ? -x : x;
}

void
dpml_rng_normal(DpmlRng *rng, int64_t n, double *out)
{
	for (int64_t i = 0; i < n; i++)
		out[i] = normal(rng);
}

/* Lengths to whole steps of a grid: a length in 2^-61, times factor, is 2^(shift - 55) times as many steps. */
typedef struct Steps
{
	uint64_t	factor;
	int			shift;			/* from 64 to 125, so that all sums fit into 128 bits */
} Steps;

static Steps
begin_steps(double stddev)
{
	int			exponent;
	double		fraction = frexp(stddev, &exponent);
	Steps		steps = {(uint64_t) (fraction * 0x1p64), 116 - exponent};

	if (steps.shift > 125)		/* below 2^-9 of a step: all but e^-100,000 of the noise is 0 */
	{
		steps.factor = steps.shift > 188 ? 0 : steps.factor >> (steps.shift - 125);
		steps.shift = 125;
	}
	return steps;
}

DPML_INLINE int64_t
scaled(const Steps *steps, uint64_t length)
{
	return (int64_t) ((unsigned __int128) length * steps->factor >> 64);
}

/* Whole steps nearest to a place's number, once half a step is added to where the place begins. */
DPML_INLINE int64_t
whole_steps(const Steps *steps, __int128 number)
{
	return (int64_t) (number >> 64) >> (steps->shift - 64);
}

/* The grid point of a place, or of one of the 2^64 parts of it if the place reaches over several points. */
static int64_t
point_of(DpmlRng *rng, const Steps *steps, const Place *place)
{
	__int128	half = (__int128) 1 << (steps->shift - 1);
	int64_t		width = scaled(steps, place->width);
	__int128	from = (__int128) place->begin * scaled(steps, ziggurat_edges[0]) + (__int128) place->number * width;

	if (place->negative)
		from = -from - width;
	if (whole_steps(steps, from + half) != whole_steps(steps, from + half + width - 1))
		from += (int64_t) ((unsigned __int128) rng_next(rng) * (uint64_t) width >> 64);
	return whole_steps(steps, from + half);
}

void
dpml_noise_gaussian(DpmlRng *rng, int64_t n, double stddev, double *out)
{
	const Steps steps = begin_steps(stddev);
	const __int128 half = (__int128) 1 << (steps.shift - 1);
	/* the high digits of what is beyond a point; a place, shorter than 2^64, reaches over it only if all are ones */
	const int64_t last = (INT64_C(1) << (steps.shift - 64)) - 1;

	for (int64_t i = 0; i < n;)
	{
		const uint64_t *words;
		int64_t		most;
		int64_t		j = 0;

		if (rng->used == DPML_RNG_WORDS)
			dpml_rng_refill(rng);
		words = rng->words + rng->used;
		most = n - i < DPML_RNG_WORDS - rng->used ? n - i : DPML_RNG_WORDS - rng->used;
		for (; j < most; j++)
		{
			int			strip = strip_of(words[j]);
			int64_t		number = number_of(words[j]);
			int64_t		width = scaled(&steps, ziggurat_edges[strip]);
			int64_t		high = (int64_t) (((__int128) number * width + half) >> 64);

			if (!is_inside(strip, number) || (high & last) == last)
				break;
			out[i + j] = (double) (high >> (steps.shift - 64));
		}
		i += j;
		rng->used += (int32_t) j;
		if (j < most)
		{
			Place		place = normal_place(rng, rng_next(rng));

			out[i++] = (double) point_of(rng, &steps, &place);
		}
	}
}

/*
 * Given V, chi-squared with n + 1 degrees of freedom, normals of standard deviation scale sqrt(V) have the density
 * exp(-||z|| / scale).  The sum of squares is compensated, so that its error does not grow with n.
 */
void
dpml_noise_knorm(DpmlRng *rng, int64_t n, double scale, double *out)
{
	double		sum = 0.0;
	double		lost = 0.0;

	for (int64_t i = 0; i <= n; i++)
	{
		double		x = normal(rng);
		double		more = x * x - lost;
		double		next = sum + more;

		lost = (next - sum) - more;
		sum = next;
	}
	dpml_noise_gaussian(rng, n, scale * sqrt(sum), out);
}

double
dpml_noise_grid(double scale)
{
	int			exponent;

	/* scale = f 2^exponent with f in [1/2, 1) */
	(void) frexp(scale, &exponent);
	return ldexp(1.0, exponent - 21);
}

double
dpml_least_scale(void)
{
	return DPML_LEAST_SCALE;
}

double
dpml_most_grid_steps(void)
{
	return DPML_MOST_GRID_STEPS;
}
