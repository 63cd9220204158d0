/* SPDX-License-Identifier: PostgreSQL */
/* The keys of passes of SGD. */
#include "options_sgd.h"

#include <math.h>

static const char *const sgd_keys[] = {
	DPML_PASS_KEYS, "radius", "batch_size", "schedule", "step_size", "exponent", "rows", "average_from", "noise",
	"noise_scale", "gradient_clip", "momentum", "steps", "sampling", "capped"
};

/* In the order of enum DpmlScheduleKind. */
static const char *const schedule_names[] = {
	"constant", "decreasing", "sqrt_decreasing", "strongly_convex", "inverse_sqrt"
};

static const DpmlDomain fraction = {0, 1, false, false, "a number from 0 to 1"};
static const DpmlDomain count = {0, DPML_MAX_EXACT, false, true, "an integer >= 0"};
static const DpmlDomain step_number = {1, DPML_MAX_EXACT, false, true, "an integer >= 1"};
static const DpmlDomain below_one = {0, 1 - 0x1p-53, false, false, "a number >= 0 and < 1"};

/* Reject options that lack what the step sizes depend on. */
static void
require_complete(const DpmlJson *json, const DpmlScheduleChoice *choice, bool has_rows)
{
	switch (choice->kind)
	{
		case DPML_CONSTANT:
			if (choice->step_size == 0.0 && !has_rows)
				dpml_json_reject(json, "rows",
								 "given, as the default step_size of schedule \"constant\" is 1/sqrt(rows)");
			break;
		case DPML_DECREASING:
		case DPML_SQRT_DECREASING:
			if (!has_rows)
				dpml_json_reject(json, "rows", "given with a decreasing schedule, which uses rows ^ exponent");
			break;
		case DPML_STRONGLY_CONVEX:
			if (!(choice->lambda > 0))
				dpml_json_reject(json, "lambda", "> 0 with schedule \"strongly_convex\"");
			break;
	}
}

/* Step sizes (privacy/README.md, "Schedules"); options may lack something (`complete` false) where no step is taken. */
static void
parse_schedule(DpmlSchedule *schedule, const DpmlJson *json, const DpmlPassOptions *pass, bool complete)
{
	DpmlScheduleChoice choice = {.exponent = 0.5, .lambda = pass->lambda};
	bool		has_rows;

	choice.kind = dpml_json_choice(json, "schedule", schedule_names, lengthof(schedule_names), DPML_CONSTANT);
	choice.smoothness = dpml_loss_unit_smoothness(&pass->loss, Max(pass->max_rows_per_unit, 1));
	(void) dpml_json_number(json, "step_size", &dpml_positive, &choice.step_size);
	(void) dpml_json_number(json, "exponent", &fraction, &choice.exponent);
	has_rows = dpml_json_number(json, "rows", &count, &choice.n);
	choice.capped = dpml_json_bool(json, "capped", true);
	if (!choice.capped && (choice.kind == DPML_DECREASING || choice.kind == DPML_SQRT_DECREASING))
		dpml_json_reject(json, "capped", "true with a decreasing schedule, which begins at the cap");
	if (complete)
		require_complete(json, &choice, has_rows);
	dpml_schedule_resolve(&choice, schedule);
}

/* Poisson batches are drawn, and counted, apart from the order of the rows. */
static void
parse_sampling(DpmlSgdPassOptions *options, const DpmlJson *json, DpmlSgdUse use)
{
	bool		has_sampling = dpml_json_number(json, "sampling", &dpml_probability, &options->sampling);
	bool		has_steps;

	options->steps = dpml_options_integer(json, "steps", &dpml_pass_steps, 0);
	has_steps = options->steps > 0;
	if (use == DPML_FOR_EPOCH && has_steps)
		dpml_json_reject(json, "steps", "absent in dpml.sgd_epoch: rows and batch size say how many steps a pass has");
	if (use == DPML_FOR_EPOCH && has_sampling)
		dpml_json_reject(json, "sampling", "absent in dpml.sgd_epoch: dpml.sgd_poisson draws its batches");
	if ((use == DPML_FOR_POISSON || use == DPML_FOR_POISSON_STEPS) && !has_steps)
		dpml_json_reject(json, "steps", "given: the steps of this pass");
	if (use == DPML_FOR_POISSON && !has_sampling)
		dpml_json_reject(json, "sampling", "given: the probability that a unit is in a batch");
}

/* Parse and check all options.  For dpml.loss, options about steps are checked, but none is required. */
void
dpml_sgd_options_parse(DpmlPassOptions *pass, DpmlSgdPassOptions *options, Jsonb *jsonb, DpmlSgdUse use)
{
	DpmlSgdOptions *sgd = &options->sgd;
	DpmlJson	json;

	memset(options, 0, sizeof(*options));
	dpml_json_open(&json, &jsonb->root, "options");
	dpml_json_check_keys(&json, sgd_keys, lengthof(sgd_keys));
	dpml_pass_options_parse(pass, &json);
	if (use != DPML_FOR_LOSS)
		dpml_options_require_smooth(&pass->loss, &json, "SGD");
	sgd->loss = pass->loss;
	sgd->lambda = pass->lambda;
	sgd->by_unit = pass->max_rows_per_unit > 0;
	sgd->radius = dpml_options_bound(&json, "radius");
	sgd->gradient_clip = dpml_options_bound(&json, "gradient_clip");
	(void) dpml_json_number(&json, "momentum", &below_one, &sgd->momentum);
	sgd->noise = dpml_options_noise(&json, DPML_KNORM, "the sum of a batch's gradients", &sgd->noise_scale);
	parse_sampling(options, &json, use);
	sgd->batch_size = (int32) dpml_options_integer(&json, "batch_size", &dpml_batch_size, 1);
	sgd->average_from = dpml_options_integer(&json, "average_from", &step_number, 0);
	parse_schedule(&sgd->schedule, &json, pass, use != DPML_FOR_LOSS);
}
