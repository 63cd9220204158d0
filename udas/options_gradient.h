/* SPDX-License-Identifier: PostgreSQL */
/* The options of dpml.gradient, and of dpml.gram at weights. */
#ifndef DPML_OPTIONS_GRADIENT_H
#define DPML_OPTIONS_GRADIENT_H

#include "compat.h"

#include "utils/jsonb.h"

#include "kernels/gradient.h"
#include "kernels/loss.h"

/* Models that one dpml.gradient takes. */
#define DPML_MAX_MODELS 64

extern void dpml_gradient_options_parse(DpmlGradientOptions *options, Jsonb *json);
extern void dpml_hessian_options_parse(DpmlLoss *loss, Jsonb *json);

#endif
