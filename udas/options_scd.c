/* SPDX-License-Identifier: PostgreSQL */
/* The keys of passes of coordinate descent. */
#include "options_scd.h"

#include <math.h>

static const char *const scd_keys[] = {
	DPML_PASS_KEYS, "rows", "batch_size", "sequential", "update_clip", "noise", "noise_scale", "dual_noise", "exact",
	"sampling", "steps", "any_order"
};

static const DpmlDomain mean_rows = {1, DPML_MAX_EXACT, false, true, "an integer >= 1: the n that the loss is a mean of"};

/* A loss of one score, without a clip: the changes of a dual are bounded by update_clip. */
static void
parse_loss(DpmlLoss *loss, const DpmlJson *json)
{
	JsonbValue	value;

	dpml_options_loss(loss, json, DPML_SCALAR_LOSSES);
	if (loss->n_classes > 1)
		dpml_json_reject(json, "classes", "absent: coordinate descent trains one score");
	if (dpml_json_find(json, "clip", &value))
		dpml_json_reject(json, "clip", "absent: \"update_clip\" bounds the change of a dual");
}

static void
parse_batches(DpmlScdPassOptions *options, const DpmlJson *json, DpmlScdUse use)
{
	bool		has_sampling = dpml_json_number(json, "sampling", &dpml_probability, &options->sampling);

	options->steps = dpml_options_integer(json, "steps", &dpml_pass_steps, 0);
	options->scd.batch_size = (int32) dpml_options_integer(json, "batch_size", &dpml_batch_size, 1);
	options->scd.sequential = dpml_json_bool(json, "sequential", false);
	if (use == DPML_SCD_ROWS && has_sampling)
		dpml_json_reject(json, "sampling", "absent with rows: Poisson batches are drawn from blocks of dpml.pack");
	if (has_sampling && options->steps == 0)
		dpml_json_reject(json, "steps", "given with \"sampling\": the steps of this pass");
	if (!has_sampling && options->steps > 0)
		dpml_json_reject(json, "steps", "absent without \"sampling\": rows and batch size say how many steps a pass has");
}

static void
parse_noise(DpmlScdOptions *scd, const DpmlJson *json)
{
	scd->noise = dpml_options_noise(json, DPML_GAUSSIAN, "the sum of a batch's changes", &scd->noise_scale);
	scd->update_clip = dpml_options_bound(json, "update_clip");
	scd->dual_noise = dpml_json_bool(json, "dual_noise", false);
	if (scd->noise != DPML_NO_NOISE && !(scd->update_clip < HUGE_VAL))
		dpml_json_reject(json, "update_clip", "given with \"noise\": the bound on the change of a dual, > 0");
	if (scd->noise == DPML_NO_NOISE && scd->dual_noise)
		dpml_json_reject(json, "dual_noise", "false without \"noise\"");
}

/* A unit may have rows in several blocks, and Poisson batches do not depend on the order. */
static void
parse_order(DpmlScdPassOptions *options, const DpmlJson *json, DpmlScdUse use)
{
	options->any_order = dpml_json_bool(json, "any_order", false);
	if (options->any_order && (use == DPML_SCD_ROWS || options->scd.by_unit || options->sampling > 0.0))
		dpml_json_reject(json, "any_order", "false, but with blocks without \"max_rows_per_unit\" and \"sampling\"");
}

/* Parse and check all options. */
void
dpml_scd_options_parse(DpmlPassOptions *pass, DpmlScdPassOptions *options, Jsonb *jsonb, DpmlScdUse use)
{
	DpmlScdOptions *scd = &options->scd;
	DpmlJson	json;

	memset(options, 0, sizeof(*options));
	dpml_json_open(&json, &jsonb->root, "options");
	dpml_json_check_keys(&json, scd_keys, lengthof(scd_keys));
	parse_loss(&scd->loss, &json);
	dpml_pass_options_parse(pass, &json);
	scd->by_unit = pass->max_rows_per_unit > 0;
	scd->max_rows_per_unit = Max(pass->max_rows_per_unit, 1);
	if (!dpml_json_number(&json, "lambda", &dpml_scale, &scd->lambda))
		dpml_json_reject(&json, "lambda", "given: a number from 1e-270 to 1e270");
	if (!dpml_json_number(&json, "rows", &mean_rows, &scd->n))
		dpml_json_reject(&json, "rows", "given: the n that the loss is a mean of, an integer >= 1");
	scd->exact = dpml_json_bool(&json, "exact", false);
	parse_batches(options, &json, use);
	parse_noise(scd, &json);
	parse_order(options, &json, use);
}
