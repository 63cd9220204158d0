/* SPDX-License-Identifier: PostgreSQL */
/*
 * Inner loops, inlined into the functions that are compiled in clones.
 *
 * A sum runs in eight lanes: element i goes to lane i mod 8, and the lanes are
 * added as ((0+4)+(2+6)) + ((1+5)+(3+7)).  Whatever is left after the last
 * group of eight is added at the end, in order.  The order is written out, not
 * left to the compiler, so the result depends on no instruction set.
 */
#ifndef DPML_VECTOR_H
#define DPML_VECTOR_H

#include <math.h>
#include <stdint.h>

#include "clones.h"

/* Four lanes, loadable from any address that suits the element type. */
typedef double DpmlLanes __attribute__((vector_size(32), aligned(8), may_alias));

/* Their bits. */
typedef int64_t DpmlLaneBits __attribute__((vector_size(32), aligned(8), may_alias));

/* Rows that the grouped loops below take at most. */
#define DPML_GROUP 4

#define DPML_LOAD(p) (*(const DpmlLanes *) (p))
#define DPML_LOAD_F32(p) ((DpmlLanes) {(p)[0], (p)[1], (p)[2], (p)[3]})
#define DPML_STORE(p, v) (*(DpmlLanes *) (p) = (v))

DPML_INLINE double
dpml_lanes_sum(const DpmlLanes *low, const DpmlLanes *high)
{
	DpmlLanes	four = *low + *high;

	return (four[0] + four[2]) + (four[1] + four[3]);
}

/* Each lane of larger, if it is, into a. */
DPML_INLINE void
dpml_lanes_raise(DpmlLanes *a, const DpmlLanes *larger)
{
	DpmlLaneBits taken = (DpmlLaneBits) (*larger > *a);

	*a = (DpmlLanes) (((DpmlLaneBits) *larger & taken) | ((DpmlLaneBits) *a & ~taken));
}

DPML_INLINE double
dpml_dot_f32(int64_t n, const double *w, const float *x)
{
	DpmlLanes	low = {0.0, 0.0, 0.0, 0.0};
	DpmlLanes	high = {0.0, 0.0, 0.0, 0.0};
	double		rest = 0.0;
	int64_t		i = 0;

	for (; i + 8 <= n; i += 8)
	{
		low += DPML_LOAD(w + i) * DPML_LOAD_F32(x + i);
		high += DPML_LOAD(w + i + 4) * DPML_LOAD_F32(x + i + 4);
	}
	for (; i < n; i++)
		rest += w[i] * x[i];
	return dpml_lanes_sum(&low, &high) + rest;
}

/* The same, and the sum of the squares of x. */
DPML_INLINE double
dpml_dot_square_f32(int64_t n, const double *w, const float *x, double *square)
{
	DpmlLanes	low = {0.0, 0.0, 0.0, 0.0};
	DpmlLanes	high = {0.0, 0.0, 0.0, 0.0};
	DpmlLanes	low_square = {0.0, 0.0, 0.0, 0.0};
	DpmlLanes	high_square = {0.0, 0.0, 0.0, 0.0};
	double		rest = 0.0;
	double		rest_square = 0.0;
	int64_t		i = 0;

	for (; i + 8 <= n; i += 8)
	{
		DpmlLanes	x_low = DPML_LOAD_F32(x + i);
		DpmlLanes	x_high = DPML_LOAD_F32(x + i + 4);

		low += DPML_LOAD(w + i) * x_low;
		high += DPML_LOAD(w + i + 4) * x_high;
		low_square += x_low * x_low;
		high_square += x_high * x_high;
	}
	for (; i < n; i++)
	{
		double		value = x[i];

		rest += w[i] * value;
		rest_square += value * value;
	}
	*square = dpml_lanes_sum(&low_square, &high_square) + rest_square;
	return dpml_lanes_sum(&low, &high) + rest;
}

DPML_INLINE double
dpml_dot_f64(int64_t n, const double *w, const double *x)
{
	DpmlLanes	low = {0.0, 0.0, 0.0, 0.0};
	DpmlLanes	high = {0.0, 0.0, 0.0, 0.0};
	double		rest = 0.0;
	int64_t		i = 0;

	for (; i + 8 <= n; i += 8)
	{
		low += DPML_LOAD(w + i) * DPML_LOAD(x + i);
		high += DPML_LOAD(w + i + 4) * DPML_LOAD(x + i + 4);
	}
	for (; i < n; i++)
		rest += w[i] * x[i];
	return dpml_lanes_sum(&low, &high) + rest;
}

/* The sum of the squares of x. */
DPML_INLINE double
dpml_square_f32(int64_t n, const float *x)
{
	DpmlLanes	low = {0.0, 0.0, 0.0, 0.0};
	DpmlLanes	high = {0.0, 0.0, 0.0, 0.0};
	double		rest = 0.0;
	int64_t		i = 0;

	for (; i + 8 <= n; i += 8)
	{
		DpmlLanes	x_low = DPML_LOAD_F32(x + i);
		DpmlLanes	x_high = DPML_LOAD_F32(x + i + 4);

		low += x_low * x_low;
		high += x_high * x_high;
	}
	for (; i < n; i++)
		rest += (double) x[i] * x[i];
	return dpml_lanes_sum(&low, &high) + rest;
}

/* out += a x */
DPML_INLINE void
dpml_axpy_f32(int64_t n, double a, const float *x, double *out)
{
	DpmlLanes	factor = {a, a, a, a};
	int64_t		i = 0;

	for (; i + 4 <= n; i += 4)
		DPML_STORE(out + i, DPML_LOAD(out + i) + factor * DPML_LOAD_F32(x + i));
	for (; i < n; i++)
		out[i] += a * x[i];
}

DPML_INLINE void
dpml_axpy_f64(int64_t n, double a, const double *x, double *out)
{
	DpmlLanes	factor = {a, a, a, a};
	int64_t		i = 0;

	for (; i + 4 <= n; i += 4)
		DPML_STORE(out + i, DPML_LOAD(out + i) + factor * DPML_LOAD(x + i));
	for (; i < n; i++)
		out[i] += a * x[i];
}

/* The products of n_rows (a constant) rows with w, each summed as above; w is loaded once. */
DPML_INLINE void
dpml_dot_rows_f32(int n_rows, int64_t n, const double *w, const float *x, double *out)
{
	DpmlLanes	low[DPML_GROUP] = {{0.0}};
	DpmlLanes	high[DPML_GROUP] = {{0.0}};
	double		rest[DPML_GROUP] = {0.0};
	int64_t		i = 0;

	for (; i + 8 <= n; i += 8)
		for (int r = 0; r < n_rows; r++)
		{
			low[r] += DPML_LOAD(w + i) * DPML_LOAD_F32(x + r * n + i);
			high[r] += DPML_LOAD(w + i + 4) * DPML_LOAD_F32(x + r * n + i + 4);
		}
	for (; i < n; i++)
		for (int r = 0; r < n_rows; r++)
			rest[r] += w[i] * x[r * n + i];
	for (int r = 0; r < n_rows; r++)
		out[r] = dpml_lanes_sum(&low[r], &high[r]) + rest[r];
}

/* out += a[0] x[0] + a[1] x[1] + ..., added in that order: the same numbers as n_rows calls for one row. */
DPML_INLINE void
dpml_axpy_rows_f32(int n_rows, int64_t n, const double *a, const float *x, double *out)
{
	int64_t		i = 0;

	for (; i + 4 <= n; i += 4)
	{
		DpmlLanes	sum = DPML_LOAD(out + i);

		for (int r = 0; r < n_rows; r++)
		{
			DpmlLanes	factor = {a[r], a[r], a[r], a[r]};

			sum += factor * DPML_LOAD_F32(x + r * n + i);
		}
		DPML_STORE(out + i, sum);
	}
	for (; i < n; i++)
		for (int r = 0; r < n_rows; r++)
			out[i] += a[r] * x[r * n + i];
}

/* A sparse row: n values at rising columns.  Value i goes to lane i mod 4. */
DPML_INLINE double
dpml_dot_sparse(int64_t n, const double *w, const uint32_t *columns, const float *x)
{
	double		lane[4] = {0.0, 0.0, 0.0, 0.0};
	double		rest = 0.0;
	int64_t		i = 0;

	for (; i + 4 <= n; i += 4)
	{
		lane[0] += w[columns[i]] * x[i];
		lane[1] += w[columns[i + 1]] * x[i + 1];
		lane[2] += w[columns[i + 2]] * x[i + 2];
		lane[3] += w[columns[i + 3]] * x[i + 3];
	}
	for (; i < n; i++)
		rest += w[columns[i]] * x[i];
	return ((lane[0] + lane[2]) + (lane[1] + lane[3])) + rest;
}

DPML_INLINE void
dpml_axpy_sparse(int64_t n, double a, const uint32_t *columns, const float *x, double *out)
{
	for (int64_t i = 0; i < n; i++)
		out[columns[i]] += a * x[i];
}

/*
 * exp of four numbers that are at most 709: 2^k exp(r), |r| <= ln(2) / 2, with
 * exp(r) summed to its term of degree 13, so within 2 ulp; what would be below
 * the normal numbers is 0.
 */
DPML_INLINE void
dpml_exp_lanes(DpmlLanes *x)
{
	const double round = 0x1.8p52;	/* adding it leaves a whole number in the low bits */
	DpmlLanes	shifted = *x * 0x1.71547652b82fep0 + round; /* 1 / ln 2 */
	DpmlLanes	k = shifted - round;
	DpmlLanes	r = (*x - k * 0x1.62e42feep-1) - k * 0x1.a39ef35793c76p-33;	/* ln 2, of which the first is short */
	DpmlLanes	square = r * r;
	DpmlLanes	even = square * (1.0 / 479001600.0) + 1.0 / 3628800.0;
	DpmlLanes	odd = square * (1.0 / 6227020800.0) + 1.0 / 39916800.0;
	DpmlLaneBits power = ((DpmlLaneBits) shifted + 1023) << 52;
	DpmlLaneBits kept = ~(DpmlLaneBits) (*x < -708.0);

	even = even * square + 1.0 / 40320.0;
	odd = odd * square + 1.0 / 362880.0;
	even = even * square + 1.0 / 720.0;
	odd = odd * square + 1.0 / 5040.0;
	even = even * square + 1.0 / 24.0;
	odd = odd * square + 1.0 / 120.0;
	even = even * square + 0.5;
	odd = odd * square + 1.0 / 6.0;
	even = even * square + 1.0;
	odd = odd * square + 1.0;
	even = (even + r * odd) * (DpmlLanes) power;
	*x = (DpmlLanes) ((DpmlLaneBits) even & kept);
}

#endif
