/* SPDX-License-Identifier: PostgreSQL */
/* The keys of dpml.gradient, and of dpml.gram at weights. */
#include "options_gradient.h"

#include <math.h>

#include "options.h"

static const char *const gradient_keys[] = {
	"loss", "classes", "huber_h", "clip", "models", "gradient", "losses", "errors", "gradient_clip", "unit_clip",
	"loss_clip", "max_rows_per_unit"
};

static const char *const hessian_keys[] = {"loss", "huber_h", "clip"};

static const DpmlDomain model_count = {1, DPML_MAX_MODELS, false, true, "an integer from 1 to 64"};

/* The options of dpml.gradient; n_features stays 0. */
void
dpml_gradient_options_parse(DpmlGradientOptions *options, Jsonb *jsonb)
{
	DpmlJson	json;
	bool		losses;
	bool		errors;

	memset(options, 0, sizeof(*options));
	dpml_json_open(&json, &jsonb->root, "options");
	dpml_json_check_keys(&json, gradient_keys, lengthof(gradient_keys));
	dpml_options_loss(&options->loss, &json, DPML_ALL_LOSSES);
	options->n_models = (int32) dpml_options_integer(&json, "models", &model_count, 1);
	options->gradient = dpml_json_bool(&json, "gradient", true);
	losses = dpml_json_bool(&json, "losses", true);
	errors = dpml_json_bool(&json, "errors", false);
	if (errors && dpml_loss_facts(options->loss.kind)->label == DPML_NUMBER_LABEL)
		dpml_json_reject(&json, "errors",
						 psprintf("false with the loss \"%s\"", dpml_loss_facts(options->loss.kind)->name));
	options->losses = !losses ? DPML_NO_LOSSES : errors ? DPML_ERRORS : DPML_LOSSES;
	options->gradient_clip = dpml_options_bound(&json, "gradient_clip");
	options->loss_clip = dpml_options_bound(&json, "loss_clip");
	if (errors && options->loss_clip < HUGE_VAL)
		dpml_json_reject(&json, "loss_clip", "absent with \"errors\"");
	options->unit_clip = dpml_options_bound(&json, "unit_clip");
	if (dpml_options_max_rows_per_unit(&json) == 0 && options->unit_clip < HUGE_VAL)
		dpml_json_reject(&json, "max_rows_per_unit", "given with \"unit_clip\": the most rows of a unit");
}

/* The options of dpml.gram at weights: a loss of one score. */
void
dpml_hessian_options_parse(DpmlLoss *loss, Jsonb *jsonb)
{
	DpmlJson	json;

	dpml_json_open(&json, &jsonb->root, "options");
	dpml_json_check_keys(&json, hessian_keys, lengthof(hessian_keys));
	dpml_options_loss(loss, &json, DPML_SCALAR_LOSSES);
	dpml_options_require_smooth(loss, &json, "a Hessian");
}
