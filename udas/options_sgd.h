/* SPDX-License-Identifier: PostgreSQL */
/* The options of passes of SGD, and of dpml.loss, which takes those of the pass before it. */
#ifndef DPML_OPTIONS_SGD_H
#define DPML_OPTIONS_SGD_H

#include "compat.h"

#include "options.h"

#include "kernels/sgd.h"

/* Which options must be there, and which must not. */
typedef enum DpmlSgdUse
{
	DPML_FOR_LOSS,				/* all about steps may be there, incomplete */
	DPML_FOR_EPOCH,
	DPML_FOR_POISSON,			/* sampling in the aggregate */
	DPML_FOR_POISSON_STEPS		/* rows drawn before */
} DpmlSgdUse;

/* What the kernel is given, without n_features, which the data decides; and how batches are drawn. */
typedef struct DpmlSgdPassOptions
{
	DpmlSgdOptions sgd;
	int64		steps;			/* of a pass over Poisson batches; 0 if not given */
	double		sampling;		/* probability that a unit is in a batch; 0 if not given */
} DpmlSgdPassOptions;

extern void dpml_sgd_options_parse(DpmlPassOptions *pass, DpmlSgdPassOptions *options, Jsonb *jsonb, DpmlSgdUse use);

#endif
