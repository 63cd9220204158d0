/* SPDX-License-Identifier: PostgreSQL */
/* The change of one dual, inline for the pass and for the function that dual.c exports. */
#ifndef DPML_DUAL_CHANGE_H
#define DPML_DUAL_CHANGE_H

#include <math.h>

#include "clones.h"
#include "loss.h"
#include "scalar.h"

/* Steps of Newton's method, and halvings, at most; some five are enough, but where numbers are extreme. */
#define NEWTON_STEPS 100

DPML_INLINE double
logistic_of(double s)
{
	return 1.0 / (1.0 + exp(-s));
}

/*
 * The p in (0, 1) with ln(p / (1 - p)) + m + q (p - b) = 0, by Newton's method in s = ln(p / (1 - p)), or
 * one step of it.  s lies between -m, which solves it for q = 0, and -m + q (b - p(-m)): at the
 * optimum both are the same, and one step stays there.  It begins where the tangent of the
 * logistic function at 0 says.
 */
DPML_INLINE double
logistic_dual(int exact, double m, double b, double q)
{
	double		reach = q * (b - logistic_of(-m));
	double		low = reach < 0.0 ? reach - m : -m;
	double		high = reach < 0.0 ? -m : reach - m;
	double		s = dpml_clamp((q * (b - 0.5) - m) / (1.0 + 0.25 * q), low, high);

	for (int i = 0; i < (exact ? NEWTON_STEPS : 1); i++)
	{
		double		before = s;
		double		p = logistic_of(s);
		double		value = (s + m) + q * (p - b);

		if (value > 0.0)
			high = s;
		else
			low = s;
		s -= value / (1.0 + q * p * (1.0 - p));
		if (!(s >= low && s <= high))
			s = low + 0.5 * (high - low);
		if (fabs(s - before) <= 1e-9 * (1.0 + fabs(s)))
			break;				/* convergence is quadratic: the error is far less */
	}
	return logistic_of(s);
}

/* dpml_dual_change */
DPML_INLINE double
dual_change(const DpmlLoss *loss, int exact, double u, double y, double alpha, double q)
{
	double		sign = dpml_sign(y);
	double		b = sign * alpha;
	double		m = sign * u;
	double		change;

	if (!(q > 0.0 && dpml_finite(q) && dpml_finite(u) && dpml_finite(alpha)))
		return 0.0;
	switch (loss->kind)
	{
		case DPML_LOGISTIC:
			change = sign * (logistic_dual(exact, m, b, q) - b);
			break;
		case DPML_HUBER_SVM:
			change = sign * (dpml_clamp((1.0 + loss->huber_h - m + q * b) / (2.0 * loss->huber_h + q), 0.0, 1.0) - b);
			break;
		case DPML_HINGE:
			change = sign * (dpml_clamp(b + (1.0 - m) / q, 0.0, 1.0) - b);
			break;
		default:
			change = (y - alpha - u) / (1.0 + q);
			break;
	}
	return dpml_finite(change) ? change : 0.0;
}

#endif
