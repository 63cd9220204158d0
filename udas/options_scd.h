/* SPDX-License-Identifier: PostgreSQL */
/* The options of passes of coordinate descent, and of the sums of their duality gap. */
#ifndef DPML_OPTIONS_SCD_H
#define DPML_OPTIONS_SCD_H

#include "compat.h"

#include "options.h"

#include "kernels/scd.h"

/* The function that the options are for: it decides which of them are rejected. */
typedef enum DpmlScdUse
{
	DPML_SCD_BLOCKS,
	DPML_SCD_ROWS,				/* no Poisson batches */
	DPML_SCD_GAP				/* options about steps are checked, and have no effect */
} DpmlScdUse;

/* The kernel's options, except n_features, which the data decides; and how batches are drawn. */
typedef struct DpmlScdPassOptions
{
	DpmlScdOptions scd;
	int64		steps;			/* of a pass over Poisson batches; 0 without */
	bool		any_order;		/* blocks come in any order, each once */
	double		sampling;		/* probability that a unit is in a batch; 0 without Poisson batches */
} DpmlScdPassOptions;

extern void dpml_scd_options_parse(DpmlPassOptions *pass, DpmlScdPassOptions *options, Jsonb *jsonb, DpmlScdUse use);

#endif
