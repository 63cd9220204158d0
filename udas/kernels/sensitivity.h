/* SPDX-License-Identifier: PostgreSQL */
/*
 * L2 sensitivity of a whole bolt-on run: any schedule, batch size, number of
 * passes and averaging (privacy/README.md, "Sensitivity of any schedule").
 */
#ifndef DPML_SENSITIVITY_H
#define DPML_SENSITIVITY_H

#include <stdint.h>

#include "schedule.h"
#include "status.h"

typedef struct DpmlRun
{
	DpmlSchedule schedule;
	double		smoothness;		/* beta of the data loss */
	double		lambda;			/* L2 regulariser */
	double		gradient_change;	/* D: how far one unit can move a gradient sum */
	int64_t		n_rows;			/* n, >= 0, public */
	int64_t		passes;			/* k >= 1 */
	int64_t		average_from;	/* as in DpmlSgdOptions; 0 releases the last iterate */
	int32_t		batch_size;		/* b >= 1 */
	int32_t		fresh_order;	/* 1: a new order every pass; 0: one order for all */
} DpmlRun;

typedef struct DpmlSensitivity
{
	double		sensitivity;	/* Delta, rounded up */
	double		step_sum;		/* sum of eta_t */
	double		step_max;		/* max of eta_t */
	int64_t		steps;			/* T = k ceil(n / b) */
} DpmlSensitivity;

/* Doubles of workspace the recursion needs: batches a pass, or 0 where the fresh-order bound is used. */
int64_t		dpml_sensitivity_workspace(const DpmlRun *run);

/* DPML_BAD_DOMAIN if a step exceeds 2 / (beta + lambda), where the map is not a contraction. */
int			dpml_sensitivity(const DpmlRun *run, double *workspace, DpmlSensitivity *out);

#endif
