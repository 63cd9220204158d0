/* SPDX-License-Identifier: PostgreSQL */
/*
 * Every kind of loss: its facts, its formulas and its bounds.
 *
 * A new loss is an entry of enum DpmlLossKind (loss.h), and here a row of facts, its formulas, and a
 * case of each switch.  A switch, and inline: the hot loop takes a derivative a row.
 *
 * A loss of two classes is a function of the margin m = y u.  A clip C bounds |phi'| by following
 * the tangent of slope C from the point where the derivative reaches C: still convex, same
 * smoothness (privacy/README.md, "Losses").
 */
#ifndef DPML_LOSS_KINDS_H
#define DPML_LOSS_KINDS_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#include "clones.h"
#include "loss.h"
#include "scalar.h"

DPML_INLINE const DpmlLossFacts *
loss_facts(int32_t kind)
{
	static const DpmlLossFacts facts[DPML_LOSS_KINDS] = {
		[DPML_LOGISTIC] = {"logistic", DPML_SIGN_LABEL, 1},
		[DPML_HUBER_SVM] = {"huber_svm", DPML_SIGN_LABEL, 0},
		[DPML_SQUARED] = {"squared", DPML_NUMBER_LABEL, 0},
		[DPML_SOFTMAX] = {"softmax", DPML_CLASS_LABEL, 1},
		[DPML_HINGE] = {"hinge", DPML_SIGN_LABEL, 0},
	};

	return kind >= 0 && kind < DPML_LOSS_KINDS ? &facts[kind] : NULL;
}

/* logistic: ln(1 + exp(-m)), without overflow */

DPML_INLINE double
logistic_slope(double m, double clip)
{
	return -dpml_least(1.0 / (1.0 + exp(m)), clip);
}

DPML_INLINE double
logistic_value(double m, double clip)
{
	if (clip < 1.0)
	{
		double		kink = log1p(-clip) - log(clip);	/* 1 / (1 + exp(kink)) = clip */

		if (m < kink)
			return clip * (kink - m) - log1p(-clip);
	}
	return m > 0.0 ? log1p(exp(-m)) : log1p(exp(m)) - m;
}

/* p (1 - p) of p = 1 / (1 + exp(m)), without cancellation. */
DPML_INLINE double
logistic_curvature(double m, double clip)
{
	double		e = exp(-fabs(m));

	if ((m > 0.0 ? e : 1.0) / (1.0 + e) > clip)
		return 0.0;
	return e / ((1.0 + e) * (1.0 + e));
}

/* huber_svm: the hinge, its corner rounded where |1 - m| <= h */

DPML_INLINE double
huber_svm_slope(double m, double h, double clip)
{
	return -dpml_clamp((1.0 + h - m) / (2.0 * h), 0.0, dpml_least(1.0, clip));
}

DPML_INLINE double
huber_svm_value(double m, double h, double clip)
{
	double		slope = dpml_least(1.0, clip);
	double		kink = 1.0 + h - 2.0 * h * slope;

	if (m > 1.0 + h)
		return 0.0;
	if (m >= kink)
		return (1.0 + h - m) * ((1.0 + h - m) / (4.0 * h));
	return slope * (kink - m) + h * slope * slope;
}

DPML_INLINE double
huber_svm_curvature(double m, double h, double clip)
{
	double		size = -huber_svm_slope(m, h, clip);

	return size > 0.0 && size < dpml_least(1.0, clip) ? 1.0 / (2.0 * h) : 0.0;
}

/* hinge: max(0, 1 - m) */

DPML_INLINE double
hinge_slope(double m, double clip)
{
	return m < 1.0 ? -dpml_least(1.0, clip) : 0.0;
}

DPML_INLINE double
hinge_value(double m, double clip)
{
	return m < 1.0 ? dpml_least(1.0, clip) * (1.0 - m) : 0.0;
}

/* squared: (u - y)^2 / 2, a function of the residual u - y */

DPML_INLINE double
squared_value(double residual, double clip)
{
	double		size = fabs(residual);

	if (size <= clip)
		return 0.5 * size * size;
	return clip * (size - 0.5 * clip);
}

/* dpml_loss_value */
DPML_INLINE double
loss_value(const DpmlLoss *loss, double u, double y)
{
	double		m = dpml_sign(y) * u;

	switch (loss->kind)
	{
		case DPML_LOGISTIC:
			return logistic_value(m, loss->clip);
		case DPML_HUBER_SVM:
			return huber_svm_value(m, loss->huber_h, loss->clip);
		case DPML_HINGE:
			return hinge_value(m, loss->clip);
		default:
			return squared_value(u - y, loss->clip);
	}
}

/* dpml_loss_derivative; 0 for the label 0 of a loss of two classes */
DPML_INLINE double
loss_derivative(const DpmlLoss *loss, double u, double y)
{
	double		sign = dpml_sign(y);

	switch (loss->kind)
	{
		case DPML_LOGISTIC:
			return sign * logistic_slope(sign * u, loss->clip);
		case DPML_HUBER_SVM:
			return sign * huber_svm_slope(sign * u, loss->huber_h, loss->clip);
		case DPML_HINGE:
			return sign * hinge_slope(sign * u, loss->clip);
		default:
			return dpml_clamp(u - y, -loss->clip, loss->clip);
	}
}

/* dpml_loss_curvature */
DPML_INLINE double
loss_curvature(const DpmlLoss *loss, double u, double y)
{
	double		sign = dpml_sign(y);

	switch (loss->kind)
	{
		case DPML_LOGISTIC:
			return sign == 0.0 ? 0.0 : logistic_curvature(sign * u, loss->clip);
		case DPML_HUBER_SVM:
			return sign == 0.0 ? 0.0 : huber_svm_curvature(sign * u, loss->huber_h, loss->clip);
		case DPML_HINGE:
			return 0.0;
		default:
			return fabs(u - y) <= loss->clip ? 1.0 : 0.0;
	}
}

/* dpml_loss_lipschitz */
DPML_INLINE double
loss_lipschitz(const DpmlLoss *loss)
{
	/* K gradients of norm L each: privacy/README.md, "Several classes" */
	double		joint = sqrt((double) loss->n_classes);

	switch (loss->kind)
	{
		case DPML_LOGISTIC:
		case DPML_HUBER_SVM:
		case DPML_HINGE:
			return joint * dpml_least(1.0, loss->clip);
		case DPML_SQUARED:
			return loss->clip;
		default:
			return sqrt(2.0);
	}
}

/* dpml_loss_smoothness */
DPML_INLINE double
loss_smoothness(const DpmlLoss *loss)
{
	switch (loss->kind)
	{
		case DPML_LOGISTIC:
			return 0.25;
		case DPML_HUBER_SVM:
			return 1.0 / (2.0 * loss->huber_h);
		case DPML_HINGE:
			return INFINITY;
		case DPML_SQUARED:
			return 1.0;
		default:
			return 0.5;
	}
}

#endif
