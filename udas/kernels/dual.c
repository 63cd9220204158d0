/* SPDX-License-Identifier: PostgreSQL */
/* Duals of single rows, and the sums that a duality gap is made of. */
#include "dual.h"

#include <math.h>

#include "dual_change.h"
#include "row.h"
#include "rowloss.h"

double
dpml_dual_change(const DpmlLoss *loss, int exact, double u, double y, double alpha, double q)
{
	return dual_change(loss, exact, u, y, alpha, q);
}

/* -p ln p, and its limit 0 at 0 */
static double
entropy(double p)
{
	return p > 0.0 ? -p * log(p) : 0.0;
}

double
dpml_dual_value(const DpmlLoss *loss, double alpha, double y)
{
	double		sign = dpml_sign(y);
	double		b = sign * alpha;
	double		value;

	if (loss->kind == DPML_SQUARED)
	{
		value = alpha * (y - 0.5 * alpha);
		return dpml_finite(value) ? value : -INFINITY;
	}
	if (sign == 0.0)
		/* the loss is a constant, whose conjugate is finite at 0 alone */
		return alpha == 0.0 ? dpml_loss_value(loss, 0.0, y) : -INFINITY;
	if (!(b >= 0.0 && b <= 1.0))
		return -INFINITY;
	switch (loss->kind)
	{
		case DPML_LOGISTIC:
			return entropy(b) + entropy(1.0 - b);
		case DPML_HUBER_SVM:
			return b * (1.0 + loss->huber_h * (1.0 - b));
		default:
			return b;
	}
}

static int
is_zero(const Row *row)
{
	for (int64_t i = 0; i < row->n; i++)
		if (row->f32[i] != 0.0f)
			return 0;
	return 1;
}

DPML_CLONES void
dpml_dual_sums(const DpmlLoss *loss, const double *weights, const DpmlBlock *block,
			   int32_t first, int32_t n, const double *duals, double *sums)
{
	for (int32_t i = first; i < first + n; i++)
	{
		Row			row = block_row(block, i);
		double		score = row_dot(&row, weights);
		double		primal = row_value(loss, &score, row.label);
		double		dual = is_zero(&row) ? primal : dpml_dual_value(loss, duals[i], row.label);

		sums[DPML_PRIMAL_LOSSES] += primal;
		if (dpml_finite(dual))
			sums[DPML_DUAL_VALUES] += dual;
		else
			sums[DPML_INFEASIBLE_DUALS] += 1.0;
	}
}
