/* SPDX-License-Identifier: PostgreSQL */
#include "schedule.h"

#include "scalar.h"

double
dpml_schedule_step(const DpmlSchedule *schedule, int64_t t)
{
	return dpml_step(schedule, t);
}
