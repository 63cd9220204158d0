/* SPDX-License-Identifier: PostgreSQL */
/* The options of passes of SGD, and of dpml.loss, which takes those of the pass before it. */
#ifndef DPML_OPTIONS_SGD_H
#define DPML_OPTIONS_SGD_H

#include "compat.h"

#include "options.h"

#include "kernels/sgd.h"

/* The function that the options are for: it decides which of them are required, and which are rejected. */
typedef enum DpmlSgdUse
{
	DPML_FOR_LOSS,				/* options about steps are checked, but none is required */
	DPML_FOR_EPOCH,
	DPML_FOR_POISSON,			/* the aggregate draws the batches */
	DPML_FOR_POISSON_STEPS		/* the batches were drawn before */
} DpmlSgdUse;

/* The kernel's options, except n_features, which the data decides; and how batches are drawn. */
typedef struct DpmlSgdPassOptions
{
	DpmlSgdOptions sgd;
	int64		steps;			/* of a pass over Poisson batches; 0 if not given */
	double		sampling;		/* probability that a unit is in a batch; 0 if not given */
} DpmlSgdPassOptions;

extern void dpml_sgd_options_parse(DpmlPassOptions *pass, DpmlSgdPassOptions *options, Jsonb *jsonb, DpmlSgdUse use);

#endif
