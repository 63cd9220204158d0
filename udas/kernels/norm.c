/* SPDX-License-Identifier: PostgreSQL */
/* The norm takes the fast way where squares neither overflow nor underflow, and scales the entries elsewhere. */
#include "norm.h"

#include <math.h>

#include "clones.h"
#include "scalar.h"
#include "vector.h"

DPML_CLONES double
dpml_norm(int64_t n, const double *x)
{
	double		squares = dpml_dot_f64(n, x, x);
	double		largest = 0.0;

	if (squares > 1e-280 && squares < 1e280)
		return sqrt(squares);
	for (int64_t i = 0; i < n; i++)
	{
		if (!dpml_finite(x[i]))
			return fabs(x[i]);
		largest = dpml_most(largest, fabs(x[i]));
	}
	if (largest == 0.0)
		return 0.0;
	squares = 0.0;
	for (int64_t i = 0; i < n; i++)
		squares += (x[i] / largest) * (x[i] / largest);
	return largest * sqrt(squares);
}
