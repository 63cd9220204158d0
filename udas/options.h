/* SPDX-License-Identifier: PostgreSQL */
/*
 * Options of aggregates that several of them read in the same way.  Options are a
 * JSON object, the same for all rows.  A solver's own keys and their parser are in a
 * file of the solver, such as options_sgd.
 */
#ifndef DPML_OPTIONS_H
#define DPML_OPTIONS_H

#include "compat.h"

#include "json.h"

#include "kernels/loss.h"

/* Losses that a parser takes. */
typedef enum DpmlLossChoice
{
	DPML_SCALAR_LOSSES,			/* those of one score */
	DPML_ALL_LOSSES
} DpmlLossChoice;

/* Options of every pass over rows, whichever solver makes it. */
typedef struct DpmlPassOptions
{
	DpmlLoss	loss;
	double		lambda;			/* L2 regulariser, >= 0, on every coordinate */
	int32		n_features;		/* d; 0 unless "features" was given */
	int32		max_rows_per_unit;	/* m, where batches count units of privacy; 0: every row is one */
	bool		clip_rows;		/* scale longer rows to norm 1 (row form) */
} DpmlPassOptions;

/* The keys that dpml_pass_options_parse reads, for a solver's list of its keys. */
#define DPML_PASS_KEYS \
	"loss", "classes", "huber_h", "clip", "features", "clip_rows", "max_rows_per_unit", "lambda"

/* Domains that several parsers know. */
extern const DpmlDomain dpml_positive;
extern const DpmlDomain dpml_not_negative;
extern const DpmlDomain dpml_scale;
extern const DpmlDomain dpml_batch_size;
extern const DpmlDomain dpml_pass_steps;
extern const DpmlDomain dpml_probability;

/* The largest integer up to which every integer is a float8. */
#define DPML_MAX_EXACT 9007199254740992.0

extern Jsonb *dpml_options_argument(FunctionCallInfo fcinfo, int argument, const Jsonb *before);
extern void dpml_options_loss(DpmlLoss *loss, const DpmlJson *json, DpmlLossChoice choice);
extern void dpml_options_require_smooth(const DpmlLoss *loss, const DpmlJson *json, const char *needed_by);
extern double dpml_options_bound(const DpmlJson *json, const char *key);
extern int64 dpml_options_integer(const DpmlJson *json, const char *key, const DpmlDomain *domain, int64 absent);
extern int32 dpml_options_max_rows_per_unit(const DpmlJson *json);
extern int32 dpml_options_noise(const DpmlJson *json, int last, const char *where, double *scale);
extern void dpml_pass_options_parse(DpmlPassOptions *options, const DpmlJson *json);

#endif
