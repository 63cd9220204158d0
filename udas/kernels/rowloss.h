/* SPDX-License-Identifier: PostgreSQL */
/*
 * From a row's K scores to the loss, its derivatives in them, and whether the class is wrong.
 * A row whose score, derivative or loss is not finite contributes nothing.  The
 * encoder makes no such row; forged bytes can.
 */
#ifndef DPML_ROWLOSS_H
#define DPML_ROWLOSS_H

#include <math.h>
#include <stdint.h>

#include "loss.h"
#include "loss_kinds.h"
#include "norm.h"
#include "row.h"
#include "scalar.h"

/* Derivative of a loss of one score; 0 for a row that contributes nothing. */
DPML_INLINE double
score_slope(const DpmlLoss *loss, double score, double label)
{
	double		slope = loss_derivative(loss, score, label);

	return dpml_finite(score) && dpml_finite(slope) ? slope : 0.0;
}

DPML_INLINE int
all_finite(int32_t n, const double *values)
{
	int			finite = 1;

	for (int32_t i = 0; i < n; i++)
		finite = finite && dpml_finite(values[i]);
	return finite;
}

/* Turn the scores into the loss's derivatives in them. */
DPML_INLINE void
row_slopes(const DpmlLoss *loss, double *scores, double label)
{
	int32_t		n_classes = loss->n_classes;
	int32_t		class;

	if (n_classes == 1)
	{
		scores[0] = score_slope(loss, scores[0], label);
		return;
	}
	class = class_index(label, n_classes);
	if (class >= 0 && all_finite(n_classes, scores))
		dpml_classes_gradient(loss, scores, class, scores);
	else
		for (int32_t k = 0; k < n_classes; k++)
			scores[k] = 0.0;
}

/* Shorten K derivatives to a norm of at most bound: the row has norm at most 1, so its gradient is no longer. */
DPML_INLINE void
clip_slopes(double bound, int32_t n_classes, double *slopes)
{
	double		norm;

	if (!(bound < INFINITY))
		return;
	norm = n_classes == 1 ? fabs(slopes[0]) : dpml_norm(n_classes, slopes);
	if (norm > bound)
		for (int32_t k = 0; k < n_classes; k++)
			slopes[k] *= bound / norm;
}

DPML_INLINE double
row_value(const DpmlLoss *loss, const double *scores, double label)
{
	double		value = 0.0;

	if (loss->n_classes > 1)
	{
		int32_t		class = class_index(label, loss->n_classes);

		if (class >= 0)
			value = dpml_classes_value(loss, scores, class);
	}
	else
		value = loss_value(loss, scores[0], label);
	return dpml_finite(value) ? value : 0.0;
}

/*
 * 1 if prediction misses the label: positive is a score above 0, and of equal
 * scores the first wins.  A label that is no class cannot be missed.
 */
DPML_INLINE double
row_error(const DpmlLoss *loss, const double *scores, double label)
{
	int32_t		class;
	int32_t		best = 0;

	if (!all_finite(loss->n_classes, scores))
		return 0.0;
	if (loss->n_classes == 1)
		return (scores[0] > 0.0 ? label < 0.0 : label > 0.0) ? 1.0 : 0.0;
	class = class_index(label, loss->n_classes);
	for (int32_t k = 1; k < loss->n_classes; k++)
		if (scores[k] > scores[best])
			best = k;
	return class >= 0 && class != best ? 1.0 : 0.0;
}

#endif
