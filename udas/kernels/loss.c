/* SPDX-License-Identifier: PostgreSQL */
/*
 * Losses, their derivatives and their bounds.
 *
 * With m = y u, a clip C bounds |phi'| by following the tangent of slope C from
 * the point m0 where the derivative reaches C: still convex, same smoothness
 * (privacy/README.md, "Losses").
 */
#include "loss.h"

#include <math.h>

#include "scalar.h"

/* ln(1 + exp(-m)) without overflow. */
static double
log1p_exp_minus(double m)
{
	return m > 0.0 ? log1p(exp(-m)) : log1p(exp(m)) - m;
}

static double
logistic_value(double m, double clip)
{
	if (clip < 1.0)
	{
		double		kink = log1p(-clip) - log(clip);	/* 1 / (1 + exp(kink)) = clip */

		if (m < kink)
			return clip * (kink - m) - log1p(-clip);
	}
	return log1p_exp_minus(m);
}

static double
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

static double
hinge_value(double m, double clip)
{
	return m < 1.0 ? dpml_least(1.0, clip) * (1.0 - m) : 0.0;
}

static double
squared_value(double residual, double clip)
{
	double		size = fabs(residual);

	if (size <= clip)
		return 0.5 * size * size;
	return clip * (size - 0.5 * clip);
}

double
dpml_default_huber_h(void)
{
	return 0.5;
}

double
dpml_loss_value(const DpmlLoss *loss, double u, double y)
{
	switch (loss->kind)
	{
		case DPML_LOGISTIC:
			return logistic_value(dpml_sign(y) * u, loss->clip);
		case DPML_HUBER_SVM:
			return huber_svm_value(dpml_sign(y) * u, loss->huber_h, loss->clip);
		case DPML_HINGE:
			return hinge_value(dpml_sign(y) * u, loss->clip);
		default:
			return squared_value(u - y, loss->clip);
	}
}

double
dpml_loss_derivative(const DpmlLoss *loss, double u, double y)
{
	return dpml_derivative(loss, u, y);
}

/* p (1 - p) of p = 1 / (1 + exp(m)), without cancellation. */
static double
logistic_curvature(double m, double clip)
{
	double		e = exp(-fabs(m));

	if ((m > 0.0 ? e : 1.0) / (1.0 + e) > clip)
		return 0.0;
	return e / ((1.0 + e) * (1.0 + e));
}

double
dpml_loss_curvature(const DpmlLoss *loss, double u, double y)
{
	double		slope;

	switch (loss->kind)
	{
		case DPML_LOGISTIC:
			return dpml_sign(y) == 0.0 ? 0.0 : logistic_curvature(dpml_sign(y) * u, loss->clip);
		case DPML_HUBER_SVM:
			slope = fabs(dpml_derivative(loss, u, y));
			return slope > 0.0 && slope < dpml_least(1.0, loss->clip) ? 1.0 / (2.0 * loss->huber_h) : 0.0;
		case DPML_HINGE:
			return 0.0;
		default:
			return fabs(u - y) <= loss->clip ? 1.0 : 0.0;
	}
}

/* The largest score, which every exponent is taken relative to. */
static double
softmax_shift(int32_t n_classes, const double *scores)
{
	double		largest = scores[0];

	for (int32_t k = 1; k < n_classes; k++)
		if (scores[k] > largest)
			largest = scores[k];
	return largest;
}

double
dpml_softmax_value(int32_t n_classes, const double *scores, int32_t label)
{
	double		shift = softmax_shift(n_classes, scores);
	double		sum = 0.0;

	for (int32_t k = 0; k < n_classes; k++)
		sum += exp(scores[k] - shift);
	return log(sum) + (shift - scores[label]);
}

/* gradient may be the same array as scores. */
void
dpml_softmax_gradient(int32_t n_classes, const double *scores, int32_t label, double *gradient)
{
	double		shift = softmax_shift(n_classes, scores);
	double		sum = 0.0;

	for (int32_t k = 0; k < n_classes; k++)
	{
		gradient[k] = exp(scores[k] - shift);
		sum += gradient[k];
	}
	for (int32_t k = 0; k < n_classes; k++)
		gradient[k] /= sum;
	gradient[label] -= 1.0;
}

double
dpml_classes_value(const DpmlLoss *loss, const double *scores, int32_t label)
{
	double		sum = 0.0;

	if (loss->kind == DPML_SOFTMAX)
		return dpml_softmax_value(loss->n_classes, scores, label);
	for (int32_t k = 0; k < loss->n_classes; k++)
		sum += dpml_loss_value(loss, scores[k], k == label ? 1.0 : -1.0);
	return sum;
}

void
dpml_classes_gradient(const DpmlLoss *loss, const double *scores, int32_t label, double *gradient)
{
	if (loss->kind == DPML_SOFTMAX)
	{
		dpml_softmax_gradient(loss->n_classes, scores, label, gradient);
		return;
	}
	for (int32_t k = 0; k < loss->n_classes; k++)
		gradient[k] = dpml_derivative(loss, scores[k], k == label ? 1.0 : -1.0);
}

double
dpml_loss_lipschitz(const DpmlLoss *loss)
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

double
dpml_loss_smoothness(const DpmlLoss *loss)
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

double
dpml_loss_unit_smoothness(const DpmlLoss *loss, int32_t max_rows_per_unit)
{
	return max_rows_per_unit * dpml_loss_smoothness(loss);
}
