/* SPDX-License-Identifier: PostgreSQL */
/* Schedules as functions for callers outside the kernels; scalar.h has the step size for the loops. */
#include "schedule.h"

#include <math.h>
#include <string.h>

#include "scalar.h"

double
dpml_schedule_step_size(const DpmlSchedule *schedule, int64_t t)
{
	return dpml_step_size(schedule, t);
}

void
dpml_schedule_resolve(const DpmlScheduleChoice *choice, DpmlSchedule *schedule)
{
	memset(schedule, 0, sizeof(*schedule));
	schedule->kind = choice->kind;
	schedule->lambda = choice->lambda;
	schedule->max_step = choice->capped ? 1.0 / (choice->smoothness + choice->lambda) : INFINITY;
	schedule->step_size = choice->step_size;
	if (choice->kind == DPML_CONSTANT && !(choice->step_size > 0.0))
		schedule->step_size = choice->n > 0.0 ? dpml_least(1.0 / sqrt(choice->n), schedule->max_step) :
			schedule->max_step;
	if (choice->kind == DPML_INVERSE_SQRT && !(choice->step_size > 0.0))
		schedule->step_size = 1.0;
	if (choice->kind == DPML_DECREASING || choice->kind == DPML_SQRT_DECREASING)
		schedule->offset = pow(choice->n, choice->exponent);
}
