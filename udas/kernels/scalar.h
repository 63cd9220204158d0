/* SPDX-License-Identifier: PostgreSQL */
/*
 * Scalars of the hot loop.  The step size is here so that the pass and the
 * sensitivity recursion inline the very code that schedule.c exports.
 */
#ifndef DPML_SCALAR_H
#define DPML_SCALAR_H

#include <float.h>
#include <math.h>
#include <stdint.h>

#include "clones.h"
#include "schedule.h"

DPML_INLINE int
dpml_finite(double v)
{
	return fabs(v) <= DBL_MAX;
}

/* A label as -1, 0 or +1, so that no stored number can exceed the Lipschitz constant; NaN is 0. */
DPML_INLINE double
dpml_sign(double y)
{
	return (double) ((y > 0.0) - (y < 0.0));
}

DPML_INLINE double
dpml_clamp(double v, double lower, double upper)
{
	if (v < lower)
		return lower;
	return v > upper ? upper : v;
}

/* Smaller and larger without the libm calls that fmin and fmax are; a NaN in the first argument stays. */
DPML_INLINE double
dpml_least(double a, double b)
{
	return a > b ? b : a;
}

DPML_INLINE double
dpml_most(double a, double b)
{
	return a < b ? b : a;
}

DPML_INLINE double
dpml_step_size(const DpmlSchedule *schedule, int64_t t)
{
	double		step;

	switch (schedule->kind)
	{
		case DPML_DECREASING:
			step = 2.0 * schedule->max_step / ((double) t + schedule->offset);
			break;
		case DPML_SQRT_DECREASING:
			step = 2.0 * schedule->max_step / (sqrt((double) t) + schedule->offset);
			break;
		case DPML_STRONGLY_CONVEX:
			step = 1.0 / (schedule->lambda * (double) t);
			break;
		case DPML_INVERSE_SQRT:
			step = schedule->step_size / sqrt((double) t);
			break;
		default:
			step = schedule->step_size;
			break;
	}
	return step > schedule->max_step ? schedule->max_step : step;
}

#endif
