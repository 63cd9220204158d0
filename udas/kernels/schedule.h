/* SPDX-License-Identifier: PostgreSQL */
/* Step sizes eta_t, t = 1, 2, ...; one function for the update and for its sensitivity. */
#ifndef DPML_SCHEDULE_H
#define DPML_SCHEDULE_H

#include <stdint.h>

enum DpmlScheduleKind
{
	DPML_CONSTANT = 0,			/* step_size */
	DPML_DECREASING = 1,		/* 2 max_step / (t + offset) */
	DPML_SQRT_DECREASING = 2,	/* 2 max_step / (sqrt t + offset) */
	DPML_STRONGLY_CONVEX = 3,	/* 1 / (lambda t) */
	DPML_INVERSE_SQRT = 4		/* step_size / sqrt t */
};

typedef struct DpmlSchedule
{
	int32_t		kind;			/* enum DpmlScheduleKind */
	double		step_size;		/* > 0 where the kind uses it */
	double		offset;			/* n^c, >= 0, for the two decreasing kinds */
	double		lambda;			/* L2 regulariser, > 0 for strongly convex */
	double		max_step;		/* 1 / (beta + lambda): every step is capped by it */
} DpmlSchedule;

double		dpml_schedule_step_size(const DpmlSchedule *schedule, int64_t t);

#endif
