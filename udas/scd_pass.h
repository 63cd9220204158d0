/* SPDX-License-Identifier: PostgreSQL */
/* A pass of coordinate descent, whichever form its rows have: a group's state from its first row to a dpml.scd_pass. */
#ifndef DPML_SCD_PASS_H
#define DPML_SCD_PASS_H

#include "compat.h"

#include "duals.h"
#include "options_scd.h"
#include "pass.h"

#include "kernels/scd.h"

/* The first member of a group's state. */
typedef struct DpmlScdPass
{
	DpmlPass	pass;
	DpmlScdPassOptions options;
	DpmlScd		scd;			/* valid once the pass has begun */
	DpmlDuals	duals;
} DpmlScdPass;

/* The state at the beginning of a pass, the length of v, and the duals of blocks; all zero for a new model. */
typedef struct DpmlScdPassStart
{
	DpmlScdStart scd;
	Size		n_v;
	ArrayType  *duals;
} DpmlScdPassStart;

extern DpmlScdPass *dpml_scd_pass_state(FunctionCallInfo fcinfo, DpmlScdUse use, Size size, bool *first);
extern DpmlScdPass *dpml_scd_pass_end(FunctionCallInfo fcinfo);
extern void dpml_scd_pass_read_start(DpmlScdPassStart *start, MemoryContext context, const NullableDatum *given);
extern void dpml_scd_pass_start(DpmlScdPass *state, DpmlScdPassStart *start, int32 n_features);
extern Datum dpml_scd_pass_result(FunctionCallInfo fcinfo, DpmlScdPass *state, int64 steps, int64 rows);

#endif
