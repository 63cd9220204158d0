/* SPDX-License-Identifier: PostgreSQL */
/* Options that several aggregates read in the same way: the argument, the loss, units of privacy, bounds. */
#include "options.h"

#include <math.h>

#include "support.h"

#include "kernels/noise.h"

/* In the order of enum DpmlLossKind. */
static const char *const loss_names[] = {"logistic", "huber_svm", "squared", "softmax", "hinge"};

const DpmlDomain dpml_positive = {0, HUGE_VAL, true, false, "a number > 0"};
const DpmlDomain dpml_not_negative = {0, HUGE_VAL, false, false, "a number >= 0"};
/* A scale whose inverse, and its product with any count, is a number, too. */
const DpmlDomain dpml_scale = {DPML_LEAST_SCALE, 1.0 / DPML_LEAST_SCALE, false, false, "a number from 1e-270 to 1e270"};
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
	const char *names[lengthof(loss_names)];
	int32		kinds[lengthof(loss_names)];
	int			n = 0;

	for (int32 kind = 0; kind < (int32) lengthof(loss_names); kind++)
	{
		if (kind == DPML_SOFTMAX && choice == DPML_SCALAR_LOSSES)
			continue;
		names[n] = loss_names[kind];
		kinds[n++] = kind;
	}
	return kinds[dpml_json_choice(json, "loss", names, n, -1)];
}

/* The loss and what belongs to it. */
void
dpml_options_loss(DpmlLoss *loss, const DpmlJson *json, DpmlLossChoice choice)
{
	double		classes;

	loss->kind = loss_kind(json, choice);
	loss->n_classes = 1;
	loss->huber_h = dpml_default_huber_h();
	loss->clip = HUGE_VAL;
	(void) dpml_json_number(json, "huber_h", &dpml_scale, &loss->huber_h);

	if (dpml_json_number(json, "classes", &class_count, &classes))
	{
		if (loss->kind == DPML_SQUARED)
			dpml_json_reject(json, "classes", "absent with the loss \"squared\"");
		loss->n_classes = (int32) classes;
	}
	else if (loss->kind == DPML_SOFTMAX)
		dpml_json_reject(json, "classes", "given with the loss \"softmax\": an integer from 2 to 1048576");

	if (dpml_json_number(json, "clip", &dpml_positive, &loss->clip) && loss->kind == DPML_SOFTMAX)
		dpml_json_reject(json, "clip", "absent with the loss \"softmax\"");
}

/* Reject a loss whose derivative jumps, where `needed_by` needs one that does not. */
void
dpml_options_require_smooth(const DpmlLoss *loss, const DpmlJson *json, const char *needed_by)
{
	if (isinf(dpml_loss_smoothness(loss)))
		dpml_json_reject(json, "loss", psprintf("smooth for %s, and \"%s\" is not: use dpml.scd_epoch, or another loss",
												needed_by, loss_names[loss->kind]));
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
