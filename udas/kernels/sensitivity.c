/* SPDX-License-Identifier: PostgreSQL */
/*
 * Two runs that differ in one unit drift apart by
 *		delta_t <= rho_t delta_{t-1} + eta_t D / b	(the second term at the unit's batch only),
 *		rho_t = max(|1 - eta_t lambda|, |1 - eta_t (beta + lambda)|).
 * For the released sum of alpha_t w_t, the backward recursion
 *		A_T = |alpha_T|,  A_s = |alpha_s| + rho_{s+1} A_{s+1}
 * is the weight with which a push at step s reaches the output, so one at step
 * s moves it by c_s = (D / b) eta_s A_s.  A unit sits at one batch position a pass.
 * Source: privacy/README.md, "Growth" and "Sensitivity of any schedule".
 */
#include "sensitivity.h"

#include <math.h>

#include "scalar.h"

/* More batch positions than this use the fresh-order bound, which needs no memory. */
#define MAX_POSITIONS INT64_C(10000000)

/* Above this the rounding term 1 + T 2^-50 means nothing. */
#define MAX_STEPS (INT64_C(1) << 50)

static int64_t
batches_per_pass(const DpmlRun *run)
{
	return run->n_rows / run->batch_size + (run->n_rows % run->batch_size != 0);
}

static int
one_order(const DpmlRun *run)
{
	/* A single pass has one order however it is drawn. */
	return !run->fresh_order && run->passes > 1 && batches_per_pass(run) <= MAX_POSITIONS;
}

int64_t
dpml_sensitivity_workspace(const DpmlRun *run)
{
	if (run->n_rows < 0 || run->passes < 1 || run->batch_size < 1)
		return 0;
	return one_order(run) ? batches_per_pass(run) : 0;
}

static int
schedule_in_domain(const DpmlSchedule *schedule)
{
	if (schedule->kind < DPML_CONSTANT || schedule->kind > DPML_INVERSE_SQRT)
		return 0;
	if (schedule->kind == DPML_STRONGLY_CONVEX && !(schedule->lambda > 0.0))
		return 0;
	return schedule->max_step > 0.0 && schedule->offset >= 0.0;
}

static int
in_domain(const DpmlRun *run)
{
	double		curvature = run->smoothness + run->lambda;
	double		largest;

	if (run->n_rows < 0 || run->passes < 1 || run->batch_size < 1 || run->average_from < 0)
		return 0;
	if (!schedule_in_domain(&run->schedule))
		return 0;
	if (!(run->smoothness >= 0.0) || !(run->lambda >= 0.0) || !dpml_finite(curvature) ||
		!(run->gradient_change >= 0.0) || !dpml_finite(run->gradient_change))
		return 0;
	if (run->n_rows == 0)
		return 1;
	if (batches_per_pass(run) > MAX_STEPS / run->passes)
		return 0;
	if (run->average_from > run->passes * batches_per_pass(run))
		return 0;

	/* Every schedule falls, so its first step is its largest. */
	largest = dpml_step_size(&run->schedule, 1);
	return largest > 0.0 && dpml_finite(largest) && largest * curvature <= 2.0;
}

typedef struct Walk
{
	double		reach;			/* A_s of the step just done, 0 before the first */
	double		rho;			/* contraction factor of the step just done */
	double		weight;			/* alpha inside the released average */
	int64_t		released_from;	/* first step with alpha > 0 */
	double		step_sum;
} Walk;

/* One backward step; returns eta_s A_s. */
DPML_INLINE double
walk_back(Walk *walk, const DpmlRun *run, int64_t s)
{
	double		step = dpml_step_size(&run->schedule, s);

	walk->reach *= walk->rho;
	if (s >= walk->released_from)
		walk->reach += walk->weight;
	walk->rho = dpml_most(fabs(1.0 - step * run->lambda),
					 fabs(1.0 - step * (run->smoothness + run->lambda)));
	walk->step_sum += step;
	return step * walk->reach;
}

/* The largest total that one position collects over the passes. */
static double
worst_position(Walk *walk, const DpmlRun *run, int64_t positions, double *total)
{
	double		worst = 0.0;
	int64_t		s = positions * run->passes;

	for (int64_t p = positions; p-- > 0; s--)
		total[p] = walk_back(walk, run, s);
	for (int64_t pass = 1; pass < run->passes; pass++)
		for (int64_t p = positions; p-- > 0; s--)
			total[p] += walk_back(walk, run, s);
	for (int64_t p = 0; p < positions; p++)
		worst = total[p] > worst ? total[p] : worst;
	return worst;
}

/* The largest push of every pass, added up. */
static double
sum_of_worst(Walk *walk, const DpmlRun *run, int64_t positions)
{
	double		sum = 0.0;
	int64_t		s = positions * run->passes;

	for (int64_t pass = 0; pass < run->passes; pass++)
	{
		double		worst = 0.0;

		for (int64_t p = 0; p < positions; p++, s--)
		{
			double		push = walk_back(walk, run, s);

			worst = push > worst ? push : worst;
		}
		sum += worst;
	}
	return sum;
}

int
dpml_sensitivity(const DpmlRun *run, double *workspace, DpmlSensitivity *out)
{
	DpmlRun		local = *run;	/* a copy the compiler can keep in registers */
	Walk		walk = {0.0, 0.0, 1.0, 0, 0.0};
	int64_t		positions;
	double		push;

	out->sensitivity = out->step_sum = out->step_max = 0.0;
	out->steps = 0;
	if (!in_domain(run))
		return DPML_BAD_DOMAIN;
	if (run->n_rows == 0)
		return DPML_OK;

	positions = batches_per_pass(run);
	out->steps = positions * run->passes;
	out->step_max = dpml_step_size(&run->schedule, 1);
	walk.released_from = run->average_from > 0 ? run->average_from : out->steps;
	walk.weight = 1.0 / (double) (out->steps - walk.released_from + 1);
	push = one_order(run) ? worst_position(&walk, &local, positions, workspace) :
		sum_of_worst(&walk, &local, positions);
	out->step_sum = walk.step_sum;
	out->sensitivity = push * (run->gradient_change / run->batch_size) *
		(1.0 + (double) out->steps * 0x1p-50);
	return DPML_OK;
}
