/* SPDX-License-Identifier: PostgreSQL */
#include "schedule.h"

#include "scalar.h"

double
dpml_schedule_step_size(const DpmlSchedule *schedule, int64_t t)
{
	return dpml_step_size(schedule, t);
}
