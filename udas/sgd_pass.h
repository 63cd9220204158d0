/* SPDX-License-Identifier: PostgreSQL */
/* A pass of SGD, for all aggregates that make one: a group's state from its first row to its result, a dpml.epoch. */
#ifndef DPML_SGD_PASS_H
#define DPML_SGD_PASS_H

#include "compat.h"

#include "options_sgd.h"
#include "pass.h"

#include "kernels/sgd.h"

/* The first member of a group's state. */
typedef struct DpmlSgdPass
{
	DpmlPass	pass;
	DpmlSgdPassOptions options;
	DpmlSgd		sgd;			/* valid once the pass has begun */
} DpmlSgdPass;

/* The state at the beginning of a pass, and the lengths of its arrays; all zero for a new model. */
typedef struct DpmlSgdPassStart
{
	DpmlSgdStart sgd;
	Size		n_weights;
	Size		n_average;
	Size		n_velocity;
} DpmlSgdPassStart;

extern DpmlSgdPass *dpml_sgd_pass_state(FunctionCallInfo fcinfo, const char *aggregate, int options_argument,
										DpmlSgdUse use, Size size, bool *first);
extern DpmlSgdPass *dpml_sgd_pass_end(FunctionCallInfo fcinfo, const char *aggregate);
extern void dpml_sgd_pass_read_start(DpmlSgdPassStart *start, const NullableDatum *epoch);
extern void dpml_sgd_pass_read_sizes(const DpmlSgdPass *state, DpmlSgdPassStart *start, const NullableDatum *sizes);
extern void dpml_sgd_pass_start(DpmlSgdPass *state, DpmlSgdPassStart *start, int32 n_features);
extern Datum dpml_sgd_pass_result(FunctionCallInfo fcinfo, DpmlSgdPass *state, int64 steps, int64 rows);

#endif
