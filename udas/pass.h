/* SPDX-License-Identifier: PostgreSQL */
/*
 * A pass over rows, whichever solver makes it: a group's memory, the options as
 * given, the order of blocks, and pieces between two checks for interrupts.
 *
 * A solver's state begins with a DpmlPass.  Its transition function
 *	 gets the state by dpml_pass_state; on the first row it parses its options,
 *	 reads the next block by dpml_pass_next_block,
 *	 on the first block calls dpml_pass_begin and sets itself up,
 *	 and takes the block's rows in pieces of dpml_pass_piece.
 * Its final function gets the state by dpml_pass_end.
 */
#ifndef DPML_PASS_H
#define DPML_PASS_H

#include "compat.h"

#include "options.h"

#include "kernels/block.h"

/* In the aggregate's memory: noise and coins are never shared between groups. */
typedef struct DpmlPass
{
	const char *aggregate;		/* as dpml_state_argument wants it */
	MemoryContext context;		/* of the group */
	Jsonb	   *source;			/* the options as given: those of a later row must be the same */
	DpmlPassOptions options;	/* n_features is 0 until known */
	bool		begun;			/* n_features is known, and the solver is set up */
	int64		next_block;		/* number that the next block must have */
} DpmlPass;

extern DpmlPass *dpml_pass_state(FunctionCallInfo fcinfo, const char *aggregate, int options_argument, Size size,
								 bool *first);
extern DpmlPass *dpml_pass_end(FunctionCallInfo fcinfo, const char *aggregate);
extern void dpml_pass_begin(DpmlPass *pass, int32 n_features);
extern void dpml_pass_open_block(DpmlBlock *block, const DpmlPass *pass, const NullableDatum *bytes, int64 number);
extern void dpml_pass_next_block(DpmlBlock *block, DpmlPass *pass, const NullableDatum *number,
								 const NullableDatum *bytes);
extern int64 dpml_pass_any_block(DpmlBlock *block, const DpmlPass *pass, const NullableDatum *number,
								 const NullableDatum *bytes);
extern int64 dpml_pass_weights(const DpmlPass *pass);
extern int32 dpml_pass_piece(const DpmlPass *pass, int32 rows);

#endif
