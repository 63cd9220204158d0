/* SPDX-License-Identifier: PostgreSQL */
/* Losses for callers outside of the kernels, and the losses of several scores; loss_kinds.h has the formulas. */
#include "loss.h"

#include <math.h>

#include "loss_kinds.h"

const DpmlLossFacts *
dpml_loss_facts(int32_t kind)
{
	return loss_facts(kind);
}

double
dpml_default_huber_h(void)
{
	return 0.5;
}

double
dpml_loss_value(const DpmlLoss *loss, double u, double y)
{
	return loss_value(loss, u, y);
}

double
dpml_loss_derivative(const DpmlLoss *loss, double u, double y)
{
	return loss_derivative(loss, u, y);
}

double
dpml_loss_curvature(const DpmlLoss *loss, double u, double y)
{
	return loss_curvature(loss, u, y);
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
		sum += loss_value(loss, scores[k], k == label ? 1.0 : -1.0);
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
		gradient[k] = loss_derivative(loss, scores[k], k == label ? 1.0 : -1.0);
}

double
dpml_loss_lipschitz(const DpmlLoss *loss)
{
	return loss_lipschitz(loss);
}

double
dpml_loss_smoothness(const DpmlLoss *loss)
{
	return loss_smoothness(loss);
}

double
dpml_loss_unit_smoothness(const DpmlLoss *loss, int32_t max_rows_per_unit)
{
	return max_rows_per_unit * loss_smoothness(loss);
}
