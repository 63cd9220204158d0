/* SPDX-License-Identifier: PostgreSQL */
/*
 * Dual coordinates.  The primal objective over n rows is
 *		P(w) = (1/n) sum phi(<w, x_i>, y_i) + lambda/2 ||w||^2.
 * Every row has a dual alpha, and w = v / (lambda n) with v = sum alpha_i x_i.  The dual objective is
 *		D(alpha) = (1/n) sum -phi*(-alpha_i) - ||v||^2 / (2 lambda n^2) <= P(w),
 * with equality at the optimum.  Losses have one score and no clip.  For a loss of two
 * classes, y alpha is in [0, 1].
 *
 * Source: Shalev-Shwartz and Zhang, Stochastic dual coordinate ascent methods for
 * regularized loss minimization, 2013; the batch's factor in q: Damaskinos et al.,
 * Differentially private stochastic coordinate descent, 2021, equation (8).
 */
#ifndef DPML_DUAL_H
#define DPML_DUAL_H

#include <stdint.h>

#include "block.h"
#include "loss.h"

/* What dpml_dual_sums adds up. */
enum DpmlDualSum
{
	DPML_PRIMAL_LOSSES = 0,		/* phi(<w, x_i>, y_i) */
	DPML_DUAL_VALUES = 1,		/* -phi*(-alpha_i) where that is a number */
	DPML_INFEASIBLE_DUALS = 2,	/* rows where it is minus infinity */
	DPML_DUAL_SUMS = 3			/* how many sums there are */
};

/*
 * The change of alpha that raises
 *		-phi*(-(alpha + change)) - u change - q change^2 / 2
 * most: u is the row's score, q = L ||x||^2 / (lambda n) > 0 where L rows change at once.  A
 * loss of two classes keeps y (alpha + change) in [0, 1].  The logistic loss has no closed
 * form: exact is 1 to iterate until nothing moves any more, 0 for one step of Newton's
 * method.  The change is 0 where a number is not finite, where q is 0, and where the label
 * is no class.
 */
double		dpml_dual_change(const DpmlLoss *loss, int exact, double u, double y, double alpha, double q);

/* -phi*(-alpha), or minus infinity. */
double		dpml_dual_value(const DpmlLoss *loss, double alpha, double y);

/*
 * Add the sums of enum DpmlDualSum over rows first .. first + n - 1 of a block, at weights (d)
 * and duals (of all rows of the block).  The dual of a zero row is in no sum of the
 * model: its best value, phi(0, y), counts.
 */
void		dpml_dual_sums(const DpmlLoss *loss, const double *weights, const DpmlBlock *block,
						   int32_t first, int32_t n, const double *duals, double *sums);

#endif
