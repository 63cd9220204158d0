/* SPDX-License-Identifier: PostgreSQL */
/* The options of the aggregates, each from one JSON object. */
#include "dpml.h"

#include <math.h>

static const char *const option_keys[] = {
	"loss", "classes", "huber_h", "clip", "lambda", "radius", "batch_size", "schedule", "step_size",
	"exponent", "rows", "average_from", "features", "clip_rows", "units", "noise", "noise_scale", "gradient_clip",
	"momentum", "steps", "sampling", "capped"
};

static const char *const gradient_keys[] = {
	"loss", "classes", "huber_h", "clip", "models", "gradient", "losses", "errors", "gradient_clip", "unit_clip",
	"loss_clip", "units"
};

static const char *const hessian_keys[] = {"loss", "huber_h", "clip"};

/* In the order of enum DpmlLossKind: those of one score first. */
static const char *const loss_names[] = {"logistic", "huber_svm", "squared", "softmax"};
#define SCALAR_LOSSES 3

/* In the order of enum DpmlScheduleKind. */
static const char *const schedule_names[] = {
	"constant", "decreasing", "sqrt_decreasing", "strongly_convex", "inverse_sqrt"
};

/* In the order of enum DpmlStepNoise. */
static const char *const noise_names[] = {"none", "gaussian", "k-norm"};

/* The largest integer up to which every integer is a float8. */
#define MAX_EXACT 9007199254740992.0

static const DpmlDomain positive = {0, HUGE_VAL, true, false, "a number > 0"};
static const DpmlDomain not_negative = {0, HUGE_VAL, false, false, "a number >= 0"};
static const DpmlDomain fraction = {0, 1, false, false, "a number from 0 to 1"};
static const DpmlDomain count = {0, MAX_EXACT, false, true, "an integer >= 0"};
static const DpmlDomain step_number = {1, MAX_EXACT, false, true, "an integer >= 1"};
static const DpmlDomain batch_rows = {1, PG_INT32_MAX, false, true, "an integer from 1 to 2147483647"};
static const DpmlDomain unit_rows = {1, PG_INT32_MAX, false, true, "an integer >= 1: the most rows of a unit"};
static const DpmlDomain step_count = {1, PG_INT32_MAX, false, true, "an integer from 1 to 2147483647"};
static const DpmlDomain probability = {0, 1, true, false, "a number > 0 and <= 1"};
/* A scale whose inverse, and its product with any count, is a number, too. */
static const DpmlDomain scale = {0x1p-900, 0x1p900, false, false, "a number from 1e-270 to 1e270"};
static const DpmlDomain below_one = {0, 1 - 0x1p-53, false, false, "a number >= 0 and < 1"};
static const DpmlDomain model_count = {1, DPML_MAX_MODELS, false, true, "an integer from 1 to 64"};
static const DpmlDomain class_count = {2, DPML_MAX_FEATURES, false, true, "an integer from 2 to 1048576"};
static const DpmlDomain feature_count = {1, DPML_MAX_FEATURES, false, true, "an integer from 1 to 1048576"};

/* A loss of one of the first n_kinds kinds. */
static void
parse_loss(DpmlLoss *loss, const DpmlJson *json, int n_kinds)
{
	double		classes;

	loss->kind = dpml_json_choice(json, "loss", loss_names, n_kinds, -1);
	loss->n_classes = 1;
	loss->huber_h = 0.1;
	loss->clip = HUGE_VAL;
	(void) dpml_json_number(json, "huber_h", &scale, &loss->huber_h);

	if (dpml_json_number(json, "classes", &class_count, &classes))
	{
		if (loss->kind == DPML_SQUARED)
			dpml_json_refuse(json, "classes", "absent with the loss \"squared\"");
		loss->n_classes = (int32) classes;
	}
	else if (loss->kind == DPML_SOFTMAX)
		dpml_json_refuse(json, "classes", "given with the loss \"softmax\": an integer from 2 to 1048576");

	if (dpml_json_number(json, "clip", &positive, &loss->clip) && loss->kind == DPML_SOFTMAX)
		dpml_json_refuse(json, "clip", "absent with the loss \"softmax\"");
}

/* The number of rows, where a default or n^c needs it. */
static double
required_rows(const DpmlJson *json, const char *why)
{
	double		rows;

	if (!dpml_json_number(json, "rows", &count, &rows))
		dpml_json_refuse(json, "rows", why);
	return rows;
}

/*
 * Step sizes: privacy/README.md, "Schedules".  Incomplete is enough where no step
 * is taken.  The cap serves the sensitivity of a whole pass; noise in every step
 * needs none.
 */
static void
parse_schedule(DpmlSchedule *schedule, const DpmlJson *json, double smoothness, double lambda, bool complete)
{
	double		exponent = 0.5;
	double		rows;
	bool		has_step;

	memset(schedule, 0, sizeof(*schedule));
	schedule->kind = dpml_json_choice(json, "schedule", schedule_names, lengthof(schedule_names), DPML_CONSTANT);
	schedule->lambda = lambda;
	schedule->max_step = 1.0 / (smoothness + lambda);
	has_step = dpml_json_number(json, "step_size", &positive, &schedule->step_size);
	(void) dpml_json_number(json, "exponent", &fraction, &exponent);
	(void) dpml_json_number(json, "rows", &count, &rows);
	if (!dpml_json_bool(json, "capped", true))
	{
		if (schedule->kind == DPML_DECREASING || schedule->kind == DPML_SQRT_DECREASING)
			dpml_json_refuse(json, "capped", "true with a decreasing schedule, which begins at the cap");
		schedule->max_step = HUGE_VAL;
	}
	if (!complete)
		return;

	switch (schedule->kind)
	{
		case DPML_CONSTANT:
			if (!has_step)
			{
				rows = required_rows(json, "given, as the default step_size of schedule \"constant\" is 1/sqrt(rows)");
				schedule->step_size = rows > 0 ? Min(1.0 / sqrt(rows), schedule->max_step) : schedule->max_step;
			}
			break;
		case DPML_DECREASING:
		case DPML_SQRT_DECREASING:
			rows = required_rows(json, "given with a decreasing schedule, which uses rows ^ exponent");
			schedule->offset = pow(rows, exponent);
			break;
		case DPML_STRONGLY_CONVEX:
			if (!(lambda > 0))
				dpml_json_refuse(json, "lambda", "> 0 with schedule \"strongly_convex\"");
			break;
		case DPML_INVERSE_SQRT:
			if (!has_step)
				schedule->step_size = 1.0;
			break;
	}
}

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

/* The number at a key that is a bound, infinity if absent. */
static double
parse_bound(const DpmlJson *json, const char *key)
{
	double		bound = HUGE_VAL;

	(void) dpml_json_number(json, key, &positive, &bound);
	return bound;
}

/* Noise on the sum of a batch's gradients, with its scale or without both. */
static void
parse_noise(DpmlSgdOptions *sgd, const DpmlJson *json)
{
	bool		has_scale = dpml_json_number(json, "noise_scale", &scale, &sgd->noise_scale);

	sgd->noise = dpml_json_choice(json, "noise", noise_names, lengthof(noise_names), DPML_NO_NOISE);
	if (sgd->noise != DPML_NO_NOISE && !has_scale)
		dpml_json_refuse(json, "noise_scale", "given with \"noise\": its scale on the sum of a batch's gradients, > 0");
	if (sgd->noise == DPML_NO_NOISE && has_scale)
		dpml_json_refuse(json, "noise", "\"gaussian\" or \"k-norm\" with \"noise_scale\"");
}

/* Poisson batches are drawn, and counted, apart from the order of the rows. */
static void
parse_sampling(DpmlOptions *options, const DpmlJson *json, DpmlOptionsUse use)
{
	double		steps = 0;
	bool		has_steps = dpml_json_number(json, "steps", &step_count, &steps);
	bool		has_sampling = dpml_json_number(json, "sampling", &probability, &options->sampling);

	options->steps = (int64) steps;
	if (use == DPML_FOR_EPOCH && has_steps)
		dpml_json_refuse(json, "steps", "absent in dpml.sgd_epoch: rows and batch size say how many steps a pass has");
	if (use == DPML_FOR_EPOCH && has_sampling)
		dpml_json_refuse(json, "sampling", "absent in dpml.sgd_epoch: dpml.sgd_poisson draws its batches");
	if ((use == DPML_FOR_POISSON || use == DPML_FOR_POISSON_STEPS) && !has_steps)
		dpml_json_refuse(json, "steps", "given: the steps of this pass");
	if (use == DPML_FOR_POISSON && !has_sampling)
		dpml_json_refuse(json, "sampling", "given: the probability that a unit is in a batch");
}

/*
 * Parse and check everything.  For dpml.loss, what is about steps is still
 * checked key by key, but need not be complete.
 */
void
dpml_options_parse(DpmlOptions *options, Jsonb *jsonb, DpmlOptionsUse use)
{
	DpmlSgdOptions *sgd = &options->sgd;
	DpmlJson	json;
	double		rows_per_unit = 1;
	double		number;

	memset(options, 0, sizeof(*options));
	dpml_json_open(&json, &jsonb->root, "options");
	dpml_json_check_keys(&json, option_keys, lengthof(option_keys));
	parse_loss(&sgd->loss, &json, lengthof(loss_names));
	sgd->units = dpml_json_number(&json, "units", &unit_rows, &rows_per_unit);
	(void) dpml_json_number(&json, "lambda", &not_negative, &sgd->lambda);
	sgd->radius = parse_bound(&json, "radius");
	sgd->gradient_clip = parse_bound(&json, "gradient_clip");
	(void) dpml_json_number(&json, "momentum", &below_one, &sgd->momentum);
	parse_noise(sgd, &json);
	parse_sampling(options, &json, use);
	sgd->batch_size = dpml_json_number(&json, "batch_size", &batch_rows, &number) ? (int32) number : 1;
	sgd->average_from = dpml_json_number(&json, "average_from", &step_number, &number) ? (int64) number : 0;
	sgd->n_features = dpml_json_number(&json, "features", &feature_count, &number) ? (int32) number : 0;
	options->clip_rows = dpml_json_bool(&json, "clip_rows", true);
	/* a batch of b units has up to rows_per_unit b rows: privacy/README.md, "Unit of privacy" */
	parse_schedule(&sgd->schedule, &json, rows_per_unit * dpml_loss_smoothness(&sgd->loss), sgd->lambda,
				   use != DPML_FOR_LOSS);
}

/* The options of dpml.gradient; n_features stays 0. */
void
dpml_gradient_options_parse(DpmlGradientOptions *options, Jsonb *jsonb)
{
	DpmlJson	json;
	double		number;
	bool		losses;
	bool		errors;
	bool		units;

	memset(options, 0, sizeof(*options));
	dpml_json_open(&json, &jsonb->root, "options");
	dpml_json_check_keys(&json, gradient_keys, lengthof(gradient_keys));
	parse_loss(&options->loss, &json, lengthof(loss_names));
	options->n_models = dpml_json_number(&json, "models", &model_count, &number) ? (int32) number : 1;
	options->gradient = dpml_json_bool(&json, "gradient", true);
	losses = dpml_json_bool(&json, "losses", true);
	errors = dpml_json_bool(&json, "errors", false);
	if (errors && options->loss.kind == DPML_SQUARED)
		dpml_json_refuse(&json, "errors", "false with the loss \"squared\"");
	options->losses = !losses ? DPML_NO_LOSSES : errors ? DPML_ERRORS : DPML_LOSSES;
	options->gradient_clip = parse_bound(&json, "gradient_clip");
	options->loss_clip = parse_bound(&json, "loss_clip");
	if (errors && options->loss_clip < HUGE_VAL)
		dpml_json_refuse(&json, "loss_clip", "absent with \"errors\"");
	options->unit_clip = parse_bound(&json, "unit_clip");
	units = dpml_json_number(&json, "units", &unit_rows, &number);
	if (!units && options->unit_clip < HUGE_VAL)
		dpml_json_refuse(&json, "units", "given with \"unit_clip\": the most rows of a unit");
}

/* The options of dpml.gram at weights: a loss of one score. */
void
dpml_hessian_options_parse(DpmlLoss *loss, Jsonb *jsonb)
{
	DpmlJson	json;

	dpml_json_open(&json, &jsonb->root, "options");
	dpml_json_check_keys(&json, hessian_keys, lengthof(hessian_keys));
	parse_loss(loss, &json, SCALAR_LOSSES);
}
