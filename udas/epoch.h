/* SPDX-License-Identifier: PostgreSQL */
/*
 * What the aggregates that take steps share: a group's state from its first row
 * to its result, a dpml.epoch.
 */
#ifndef DPML_EPOCH_H
#define DPML_EPOCH_H

#include "dpml.h"

/* The first member of a group's state, in the aggregate's memory: noise and coins are never shared between groups. */
typedef struct DpmlPass
{
	MemoryContext context;		/* of the group */
	Jsonb	   *source;			/* the options as given, to refuse ones that vary */
	DpmlOptions options;		/* n_features is 0 until known */
	bool		started;		/* sgd is valid */
	DpmlSgd		sgd;
} DpmlPass;

/* Where a pass begins; all zero for a new model. */
typedef struct DpmlPassStart
{
	DpmlSgdStart sgd;
	Size		n_weights;
	Size		n_average;
	Size		n_velocity;
} DpmlPassStart;

extern DpmlPass *dpml_pass_state(FunctionCallInfo fcinfo, const char *aggregate, int options_argument,
								 DpmlOptionsUse use, Size size, bool *first);
extern void dpml_pass_read_start(DpmlPassStart *start, const NullableDatum *epoch);
extern void dpml_pass_start(DpmlPass *pass, DpmlPassStart *start, int32 n_features);
extern void dpml_pass_open_block(DpmlBlock *block, const DpmlPass *pass, const NullableDatum *bytes, int64 number);
extern int32 dpml_pass_piece(const DpmlPass *pass, int32 rows);
extern void dpml_pass_check_number(const NullableDatum *number, int64 expected);
extern Datum dpml_pass_result(FunctionCallInfo fcinfo, DpmlPass *pass, int64 steps, int64 rows);

#endif
