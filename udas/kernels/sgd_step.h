/* SPDX-License-Identifier: PostgreSQL */
/*
 * One step of SGD.  The weights are kept as w = scale * weights, so that the
 * shrink by 1 - eta lambda and the projection cost one multiplication each:
 *		scale <- (1 - eta lambda) scale,   weights <- weights - eta / (b scale) G,
 * G the gradient sum of the batch.
 */
#ifndef DPML_SGD_STEP_H
#define DPML_SGD_STEP_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "clones.h"
#include "norm.h"
#include "scalar.h"
#include "sgd.h"
#include "step_noise.h"
#include "vector.h"

/* The scale is folded into the weights when it leaves this range. */
#define SCALE_MIN 0x1p-64
#define SCALE_MAX 0x1p64

DPML_INLINE int64_t
n_weights(const DpmlSgdOptions *options)
{
	return (int64_t) options->loss.n_classes * options->n_features;
}

static void
fold_scale(DpmlSgd *state)
{
	int64_t		n = n_weights(&state->options);

	if (state->scale == 0.0)
		memset(state->weights, 0, (size_t) n * sizeof(double));
	else
		for (int64_t i = 0; i < n; i++)
			state->weights[i] *= state->scale;
	state->scale = 1.0;
}

/* Shrink for the next step; returns what multiplies the gradient sum in the weights. */
DPML_INLINE double
begin_step(DpmlSgd *state)
{
	const DpmlSgdOptions *options = &state->options;
	double		step = dpml_step_size(&options->schedule, ++state->steps);

	state->scale *= 1.0 - step * options->lambda;
	if (!(fabs(state->scale) > SCALE_MIN && fabs(state->scale) < SCALE_MAX))
		fold_scale(state);
	return -step / (options->batch_size * state->scale);
}

DPML_INLINE void
project(DpmlSgd *state)
{
	double		squares = dpml_dot_f64(n_weights(&state->options), state->weights, state->weights);
	double		norm;

	if (squares > 1e-280 && squares < 1e280)
		norm = sqrt(squares);
	else
		norm = dpml_norm(n_weights(&state->options), state->weights);
	norm *= fabs(state->scale);
	if (norm > state->options.radius)
		state->scale *= state->options.radius / norm;
}

DPML_INLINE void
end_step(DpmlSgd *state)
{
	const DpmlSgdOptions *options = &state->options;

	if (options->radius < INFINITY)
		project(state);
	if (options->average_from > 0 && state->steps >= options->average_from)
	{
		dpml_axpy_f64(n_weights(options), state->scale, state->weights, state->average);
		state->averaged++;
	}
}

/*
 * A step along the velocity, which the whole weights enter: no lazy shrink.  What the loop needs of the options is
 * in variables of its own, which no store to the arrays can change.
 */
DPML_INLINE void
momentum_step(DpmlSgd *state)
{
	const DpmlSgdOptions *options = &state->options;
	int64_t		n = n_weights(options);
	double		step = dpml_step_size(&options->schedule, ++state->steps);
	double		momentum = options->momentum;
	double		lambda = options->lambda;
	double		batch_size = options->batch_size;
	double	   *restrict weights = state->weights;
	double	   *restrict velocity = state->velocity;
	const double *restrict gradient = state->gradient;

	if (state->scale != 1.0)
		fold_scale(state);
	for (int64_t i = 0; i < n; i++)
	{
		velocity[i] = momentum * velocity[i] + (lambda * weights[i] + gradient[i] / batch_size);
		weights[i] -= step * velocity[i];
	}
}

DPML_INLINE void
apply_batch(DpmlSgd *state)
{
	const DpmlSgdOptions *options = &state->options;
	int64_t		n = n_weights(options);

	if (options->noise != DPML_NO_NOISE)
		add_noise(state->rng, options->noise, options->noise_scale, state->grid, n, state->gradient, state->noise);
	if (state->velocity != NULL)
		momentum_step(state);
	else
		dpml_axpy_f64(n, begin_step(state), state->gradient, state->weights);
	memset(state->gradient, 0, (size_t) n * sizeof(double));
	state->in_batch = 0;
	end_step(state);
}

#endif
