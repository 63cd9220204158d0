/* SPDX-License-Identifier: PostgreSQL */
/*
 * Step sizes eta_t, t = 1, 2, ...: one function for the update and for its
 * sensitivity, and one that derives what both are given (privacy/README.md, "Schedules").
 */
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

/* A user's choice, and the numbers that step sizes depend on beside it.  All of them are public. */
typedef struct DpmlScheduleChoice
{
	int32_t		kind;			/* enum DpmlScheduleKind */
	int32_t		capped;			/* 0: no cap, where noise in every step makes any step size safe */
	double		step_size;		/* > 0; 0 for the kind's own: constant 1 / sqrt n, inverse_sqrt 1 */
	double		exponent;		/* c in [0, 1], for the two decreasing kinds */
	double		n;				/* units of privacy, >= 0 */
	double		smoothness;		/* bound on the data Hessian of a step: dpml_loss_unit_smoothness */
	double		lambda;			/* L2 regulariser, >= 0 */
} DpmlScheduleChoice;

/* Derive the schedule of a choice: its cap 1 / (smoothness + lambda), its offset n^c and its own step size. */
void		dpml_schedule_resolve(const DpmlScheduleChoice *choice, DpmlSchedule *schedule);

/* eta_t of a schedule. */
double		dpml_schedule_step_size(const DpmlSchedule *schedule, int64_t t);

#endif
