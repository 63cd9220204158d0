/* SPDX-License-Identifier: PostgreSQL */
/* Options that several aggregates read in the same way: the argument, the loss, units of privacy, bounds. */
#include "options.h"

#include <math.h>

#include "support.h"

#include "kernels/poisson.h"

const DpmlDomain dpml_positive = {0, HUGE_VAL, true, false, "a number > 0"};
const DpmlDomain dpml_not_negative = {0, HUGE_VAL, false, false, "a number >= 0"};
/* A scale whose inverse, and its product with any count, is a number, too. */
const DpmlDomain dpml_scale = {DPML_LEAST_SCALE, 1.0 / DPML_LEAST_SCALE, false, false, "a number from 1e-270 to 1e270"};
const DpmlDomain dpml_batch_size = {1, PG_INT32_MAX, false, true, "an integer from 1 to 2147483647"};
const DpmlDomain dpml_pass_steps = {1, DPML_MAX_POISSON_STEPS, false, true, "an integer from 1 to 2147483647"};
const DpmlDomain dpml_probability = {0, 1, true, false, "a number > 0 and <= 1"};
static const DpmlDomain unit_rows = {1, PG_INT32_MAX, false, true, "an integer >= 1: the most rows of a unit"};
static const DpmlDomain class_count = {2, DPML_MAX_FEATURES, false, true, "an integer from 2 to 1048576"};
static const DpmlDomain feature_count = {1, DPML_MAX_FEATURES, false, true, "an integer from 1 to 1048576"};

/* An aggregate's options: the same for all rows, so those of the first row, if any, in before. */
Jsonb *
dpml_options_argument(FunctionCallInfo fcinfo, int argument, const Jsonb *before)
{
	Jsonb	   *options;

	if (PG_ARGISNULL(argument))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("options must not be null"),
				 errhint("Give at least {\"loss\": ...}.")));
	options = PG_GETARG_JSONB_P(argument);
	if (before != NULL && unlikely(!dpml_same_bytes(before, options)))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("options must be the same for all rows of a pass")));
	return options;
}

/* Which of the losses that a parser takes an object names. */
static int32
loss_kind(const DpmlJson *json, DpmlLossChoice choice)
{
	const char *names[DPML_LOSS_KINDS];
	int32		kinds[DPML_LOSS_KINDS];
	int			n = 0;

	for (int32 kind = 0; kind < DPML_LOSS_KINDS; kind++)
	{
		if (choice == DPML_SCALAR_LOSSES && dpml_loss_facts(kind)->label == DPML_CLASS_LABEL)
			continue;
		names[n] = dpml_loss_facts(kind)->name;
		kinds[n++] = kind;
	}
	return kinds[dpml_json_choice(json, "loss", names, n, -1)];
}

/* The loss and what belongs to it. */
void
dpml_options_loss(DpmlLoss *loss, const DpmlJson *json, DpmlLossChoice choice)
{
	const DpmlLossFacts *facts;
	double		classes;

	loss->kind = loss_kind(json, choice);
	facts = dpml_loss_facts(loss->kind);
	loss->n_classes = 1;
	loss->huber_h = dpml_default_huber_h();
	loss->clip = HUGE_VAL;
	(void) dpml_json_number(json, "huber_h", &dpml_scale, &loss->huber_h);

	if (dpml_json_number(json, "classes", &class_count, &classes))
	{
		if (facts->label == DPML_NUMBER_LABEL)
			dpml_json_reject(json, "classes", psprintf("absent with the loss \"%s\"", facts->name));
		loss->n_classes = (int32) classes;
	}
	else if (facts->label == DPML_CLASS_LABEL)
		dpml_json_reject(json, "classes", psprintf("given with the loss \"%s\": %s", facts->name, class_count.text));

	if (dpml_json_number(json, "clip", &dpml_positive, &loss->clip) && facts->label == DPML_CLASS_LABEL)
		dpml_json_reject(json, "clip", psprintf("absent with the loss \"%s\"", facts->name));
}

/* Reject a loss whose derivative jumps, where `needed_by` needs one that does not. */
void
dpml_options_require_smooth(const DpmlLoss *loss, const DpmlJson *json, const char *needed_by)
{
	if (isinf(dpml_loss_smoothness(loss)))
		dpml_json_reject(json, "loss", psprintf("smooth for %s, and \"%s\" is not: use dpml.scd_epoch, or another loss",
												needed_by, dpml_loss_facts(loss->kind)->name));
}

/* The bound at a key, a number > 0; infinity where the key is absent. */
double
dpml_options_bound(const DpmlJson *json, const char *key)
{
	double		bound = HUGE_VAL;

	(void) dpml_json_number(json, key, &dpml_positive, &bound);
	return bound;
}

/* The integer at a key, or `absent` where the key is absent. */
int64
dpml_options_integer(const DpmlJson *json, const char *key, const DpmlDomain *domain, int64 absent)
{
	double		number;

	return dpml_json_number(json, key, domain, &number) ? (int64) number : absent;
}

/* The most rows of a unit of privacy; 0 where every row is a unit. */
int32
dpml_options_max_rows_per_unit(const DpmlJson *json)
{
	return (int32) dpml_options_integer(json, "max_rows_per_unit", &unit_rows, 0);
}

/* In the order of enum DpmlStepNoise. */
static const char *const noise_names[] = {"none", "gaussian", "k-norm"};

/*
 * Noise of every step, with its scale or without both.  `last` is the last of enum
 * DpmlStepNoise that the solver can add; `where` is what the scale is on.
 */
int32
dpml_options_noise(const DpmlJson *json, int last, const char *where, double *scale)
{
	bool		has_scale = dpml_json_number(json, "noise_scale", &dpml_scale, scale);
	int32		noise = dpml_json_choice(json, "noise", noise_names, last + 1, DPML_NO_NOISE);

	if (noise != DPML_NO_NOISE && !has_scale)
		dpml_json_reject(json, "noise_scale", psprintf("given with \"noise\": its scale on %s, > 0", where));
	if (noise == DPML_NO_NOISE && has_scale)
		dpml_json_reject(json, "noise", last == DPML_GAUSSIAN ? "\"gaussian\" with \"noise_scale\"" :
						 "\"gaussian\" or \"k-norm\" with \"noise_scale\"");
	return noise;
}

/* The keys of DPML_PASS_KEYS. */
void
dpml_pass_options_parse(DpmlPassOptions *options, const DpmlJson *json)
{
	memset(options, 0, sizeof(*options));
	dpml_options_loss(&options->loss, json, DPML_ALL_LOSSES);
	options->max_rows_per_unit = dpml_options_max_rows_per_unit(json);
	(void) dpml_json_number(json, "lambda", &dpml_not_negative, &options->lambda);
	options->n_features = (int32) dpml_options_integer(json, "features", &feature_count, 0);
	options->clip_rows = dpml_json_bool(json, "clip_rows", true);
}
