/* SPDX-License-Identifier: PostgreSQL */
/*
 * The parsers of options, and passes with what they accept.
 * Input: a byte that says which parser, then the document.
 */
#include "document.h"

#include <math.h>

#include "options_gradient.h"
#include "options_scd.h"
#include "options_sgd.h"

#include "kernels/block.h"

#define MOST_WEIGHTS 512
#define ROWS 7

static const char *const words[] = {
	"loss", "classes", "huber_h", "clip", "lambda", "radius", "batch_size", "schedule", "step_size",
	"exponent", "rows", "average_from", "features", "clip_rows", "max_rows_per_unit", "noise", "noise_scale",
	"gradient_clip",
	"momentum", "steps", "sampling", "capped", "models", "gradient", "losses", "errors", "unit_clip", "loss_clip",
	"logistic", "huber_svm", "squared", "softmax", "hinge", "constant", "decreasing", "sqrt_decreasing", "strongly_convex",
	"inverse_sqrt", "none", "gaussian", "k-norm", "sequential", "update_clip", "dual_noise", "exact", "any_order", ""
};

typedef struct Parsed
{
	int			kind;			/* 0 - 3: enum DpmlSgdUse; 4: dpml.gradient; 5: the Hessian; 6 - 8: enum DpmlScdUse */
	DpmlPassOptions pass;
	DpmlSgdPassOptions options;
	DpmlGradientOptions gradient;
	DpmlScdPassOptions scd;
	DpmlLoss	loss;
} Parsed;

static void *
parse_any(Jsonb *json, void *argument)
{
	Parsed	   *parsed = argument;

	if (parsed->kind < 4)
		dpml_sgd_options_parse(&parsed->pass, &parsed->options, json, (DpmlSgdUse) parsed->kind);
	else if (parsed->kind == 4)
		dpml_gradient_options_parse(&parsed->gradient, json);
	else if (parsed->kind == 5)
		dpml_hessian_options_parse(&parsed->loss, json);
	else
		dpml_scd_options_parse(&parsed->pass, &parsed->scd, json, (DpmlScdUse) (parsed->kind - 6));
	return parsed;
}

static void
check_loss(const DpmlLoss *loss)
{
	REQUIRE(loss->kind >= DPML_LOGISTIC && loss->kind <= DPML_HINGE);
	REQUIRE(loss->n_classes >= (loss->kind == DPML_SOFTMAX ? 2 : 1) && loss->n_classes <= DPML_MAX_FEATURES);
	REQUIRE(loss->huber_h > 0.0 && loss->clip > 0.0);
	REQUIRE(dpml_loss_lipschitz(loss) > 0.0 && dpml_loss_smoothness(loss) > 0.0);
}

/* A pass with options that were accepted. */
static void
run_pass(DpmlSgdOptions options, int32 n_features)
{
	static const uint8_t key[32] = {3};
	DpmlSgdStart start = {.key = key};
	DpmlSgd		sgd;
	double	   *x;
	void	   *memory;

	options.n_features = n_features > 0 ? n_features : 5;
	if ((int64) options.n_features * options.loss.n_classes > MOST_WEIGHTS)
		return;
	memory = allocate(dpml_sgd_memory(&options));
	x = allocate(options.n_features * sizeof(double));
	x[0] = 0.5;
	dpml_sgd_start(&sgd, &options, memory, &start);
	for (int i = 0; i < ROWS; i++)
		dpml_sgd_row(&sgd, x, i % 3 - 1);
	REQUIRE(dpml_sgd_valid(&sgd));
	dpml_sgd_finish(&sgd);
	REQUIRE(sgd.rows == ROWS && sgd.steps <= ROWS);
	free(x);
	free(memory);
}

/* What was accepted keeps its domains, and makes a pass. */
static void
run_scd(DpmlScdPassOptions options, int32 n_features)
{
	static const uint8_t key[32] = {4};
	DpmlScdStart start = {.key = key};
	DpmlScdOptions *scd = &options.scd;
	DpmlScd		state;
	double		dual = 0.0;
	double	   *x;
	void	   *memory;

	REQUIRE(scd->loss.n_classes == 1 && scd->loss.clip == HUGE_VAL && scd->loss.kind != DPML_SOFTMAX);
	REQUIRE(scd->lambda > 0.0 && scd->n >= 1.0 && scd->batch_size >= 1 && scd->max_rows_per_unit >= 1);
	REQUIRE((scd->noise != DPML_NO_NOISE) == (scd->noise_scale > 0.0) && scd->noise != DPML_KNORM);
	REQUIRE(scd->noise == DPML_NO_NOISE ? !scd->dual_noise : scd->update_clip < HUGE_VAL);
	REQUIRE((options.sampling > 0.0) == (options.steps > 0));
	REQUIRE(!options.any_order || (!scd->by_unit && options.sampling == 0.0));
	scd->n_features = n_features > 0 ? n_features : 5;
	if (scd->n_features > MOST_WEIGHTS)
		return;
	memory = allocate(dpml_scd_memory(scd));
	x = allocate(scd->n_features * sizeof(double));
	x[0] = 0.5;
	dpml_scd_start(&state, scd, memory, &start);
	for (int i = 0; i < ROWS; i++)
		dpml_scd_row(&state, x, i % 3 - 1, &dual);
	REQUIRE(dpml_scd_valid(&state));
	dpml_scd_finish(&state);
	REQUIRE(state.rows == ROWS && state.steps >= 1 && state.steps <= ROWS && isfinite(dual));
	free(x);
	free(memory);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	Bytes		bytes = {data, size};
	Parsed		parsed = {.kind = choose(&bytes, 9)};
	Jsonb	   *json = make_document(&bytes, words, lengthof(words));

	if (parse(parse_any, json, &parsed) != NULL)
	{
		const DpmlSgdOptions *sgd = &parsed.options.sgd;
		const DpmlGradientOptions *gradient = &parsed.gradient;

		if (parsed.kind >= 6)
			run_scd(parsed.scd, parsed.pass.n_features);
		else
			check_loss(parsed.kind < 4 ? &sgd->loss : parsed.kind == 4 ? &gradient->loss : &parsed.loss);
		if (parsed.kind < 4)
		{
			REQUIRE(sgd->batch_size >= 1 && sgd->lambda >= 0.0 && sgd->radius > 0.0 && sgd->gradient_clip > 0.0);
			REQUIRE(sgd->momentum >= 0.0 && sgd->momentum < 1.0);
			REQUIRE(parsed.kind > 0 || sgd->loss.kind != DPML_HINGE ? sgd->schedule.max_step > 0.0 : true);
			REQUIRE((sgd->noise != DPML_NO_NOISE) == (sgd->noise_scale > 0.0));
		}
		if (parsed.kind > 0 && parsed.kind < 4)
		{
			REQUIRE(dpml_schedule_step_size(&sgd->schedule, 1) >= 0.0);
			run_pass(*sgd, parsed.pass.n_features);
		}
		if (parsed.kind == 4)
			REQUIRE(gradient->n_models >= 1 && gradient->n_models <= DPML_MAX_MODELS && gradient->unit_clip > 0.0);
	}
	forget_document();
	return 0;
}
