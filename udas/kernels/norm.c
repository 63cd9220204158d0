/* SPDX-License-Identifier: PostgreSQL */
/* The norm takes the fast way where squares neither overflow nor underflow, and scales the entries elsewhere. */
#include "norm.h"

#include <math.h>

#include "clones.h"
#include "scalar.h"
#include "vector.h"

/* The norm by entries divided by the largest. */
static double
scaled_norm(int64_t n, const double *x)
{
	double		squares = 0.0;
	double		largest = 0.0;

	for (int64_t i = 0; i < n; i++)
	{
		if (!dpml_finite(x[i]))
			return fabs(x[i]);
		largest = dpml_most(largest, fabs(x[i]));
	}
	if (largest == 0.0)
		return 0.0;
	for (int64_t i = 0; i < n; i++)
		squares += (x[i] / largest) * (x[i] / largest);
	return largest * sqrt(squares);
}

static int
in_range(double squares)
{
	return squares > 1e-280 && squares < 1e280;
}

DPML_CLONES double
dpml_norm(int64_t n, const double *x)
{
	double		squares = dpml_dot_f64(n, x, x);

	return in_range(squares) ? sqrt(squares) : scaled_norm(n, x);
}

/* The squares go to the lanes, and to the rest after the last full eight, that dpml_dot_f64 puts them in. */
double
dpml_norm_sparse(int64_t n_all, int64_t n, const uint32_t *columns, const double *x)
{
	uint32_t	lanes_end = (uint32_t) (n_all - n_all % 8);
	double		lane[8] = {0.0};
	double		rest = 0.0;
	double		squares;

	for (int64_t i = 0; i < n; i++)
	{
		if (columns[i] < lanes_end)
			lane[columns[i] % 8] += x[i] * x[i];
		else
			rest += x[i] * x[i];
	}
	squares = (((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]))) + rest;
	return in_range(squares) ? sqrt(squares) : scaled_norm(n, x);
}
