/* SPDX-License-Identifier: PostgreSQL */
/* Compensated sums: exact additions of two doubles. */
#include "sums.h"

#include "clones.h"

/* *a becomes the rounded sum; returns what rounding lost. */
DPML_INLINE double
two_sum(double *a, double b)
{
	double		sum = *a + b;
	double		b_part = sum - *a;
	double		lost = (*a - (sum - b_part)) + (b - b_part);

	*a = sum;
	return lost;
}

DPML_CLONES void
dpml_sums_fold(int64_t n, double *high, double *low)
{
	for (int64_t i = 0; i < n; i++)
		low[i] = two_sum(&high[i], low[i]);
}

DPML_CLONES void
dpml_sums_add(int64_t n, double *high, double *low, const double *other_high, const double *other_low)
{
	for (int64_t i = 0; i < n; i++)
	{
		low[i] += other_low[i];
		low[i] += two_sum(&high[i], other_high[i]);
		low[i] = two_sum(&high[i], low[i]);
	}
}
