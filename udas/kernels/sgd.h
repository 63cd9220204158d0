/* SPDX-License-Identifier: PostgreSQL */
/*
 * Mini-batch SGD:
 *		g <- lambda w + (1/b)(sum_{i in batch} phi_i' + Z_t),
 *		v <- momentum v + g,   w <- Proj_R(w - eta_t v),
 * a batch of another size also divided by b, an empty one a step too (privacy/README.md, "Growth").  Z_t is
 * fresh noise, if any; it and the sum are rounded to a grid before they are added
 * (privacy/README.md, "Noise inside a pass").
 */
#ifndef DPML_SGD_H
#define DPML_SGD_H

#include <stddef.h>
#include <stdint.h>

#include "block.h"
#include "loss.h"
#include "noise.h"
#include "random.h"
#include "schedule.h"

typedef struct DpmlSgdOptions
{
	DpmlLoss	loss;
	DpmlSchedule schedule;
	double		lambda;			/* L2 regulariser, >= 0, on every coordinate */
	double		radius;			/* of the ball w is projected on; infinity for none */
	double		gradient_clip;	/* bound on the norm of a row's derivatives in its K scores, > 0; infinity for none */
	double		momentum;		/* in [0, 1) */
	double		noise_scale;	/* standard deviation, or K-norm scale, on the sum of a batch's gradients, > 0 */
	int64_t		average_from;	/* first step whose iterate enters the average, from 1; 0 for no average */
	int32_t		n_features;		/* d, intercept included */
	int32_t		batch_size;		/* b >= 1, in units of privacy */
	int32_t		by_unit;		/* 1: blocks say which rows begin a unit; 0: every row is one */
	int32_t		noise;			/* enum DpmlStepNoise */
} DpmlSgdOptions;

/*
 * w is scale * weights until finished.  The caller allocates the memory that the
 * arrays are in, from its first cache line on:
 *
 *	| weights f64[K d] | gradient f64[K d] | average f64[K d] | scores f64[K] |
 *	with momentum: | velocity f64[K d] |
 *	with noise:    | noise f64[K d] | rng DpmlRng |
 */
typedef struct DpmlSgd
{
	DpmlSgdOptions options;
	int64_t		steps;			/* steps taken, earlier passes included */
	int64_t		rows;			/* rows seen in this pass */
	int64_t		averaged;		/* iterates in the average so far */
	const int32_t *sizes;		/* units of each batch; NULL: of batch_size units each, and a short last one */
	int64_t		n_sizes;		/* batches of this pass, with sizes */
	int64_t		batch;			/* number of the open one, from 0, with sizes */
	int32_t		in_batch;		/* units of the open batch */
	int32_t		full_batch;		/* units that the open batch is to have */
	double		scale;			/* lazy shrink factor of weights */
	double		grid;			/* spacing of the grid that a batch's sum and its noise are rounded to */
	double	   *weights;		/* K x d, row-major */
	double	   *gradient;		/* K x d, sum over the open batch */
	double	   *average;		/* K x d, sum of iterates; its mean when finished */
	double	   *scores;			/* K */
	double	   *velocity;		/* K x d; NULL without momentum */
	double	   *noise;			/* K x d, in steps of the grid, scratch; NULL without noise */
	DpmlRng    *rng;			/* of the noise; NULL without */
} DpmlSgd;

/* The state at the beginning of a pass: a NULL array (K x d) is zero, and a NULL average has no iterate yet. */
typedef struct DpmlSgdStart
{
	const double *weights;		/* they are projected on the ball */
	const double *average;		/* mean of the iterates average_from .. steps */
	const double *velocity;
	int64_t		steps;			/* taken before */
	const int32_t *sizes;		/* units >= 0 of each batch of the pass, which must outlive it; NULL: batch_size each */
	int64_t		n_sizes;		/* >= 1 with sizes */
	const uint8_t *key;			/* 32 fresh random bytes, the noise's own; NULL without noise */
} DpmlSgdStart;

/* Bytes of working memory a pass needs. */
size_t		dpml_sgd_memory(const DpmlSgdOptions *options);

/* 1 if the arrays lie as drawn above and the numbers are within their bounds; for assertions. */
int			dpml_sgd_valid(const DpmlSgd *state);

void		dpml_sgd_start(DpmlSgd *state, const DpmlSgdOptions *options, void *memory, const DpmlSgdStart *start);

/* One row of float64 features; y is a label as the loss wants it (-1/+1, a number, or a class index). */
void		dpml_sgd_row(DpmlSgd *state, const double *x, double y);

/* Rows first .. first + n - 1, which must exist, of a block whose n_features is that of the options. */
void		dpml_sgd_block(DpmlSgd *state, const DpmlBlock *block, int32_t first, int32_t n);

/* Add rows first .. first + n - 1 of a block, which must exist, to the open batch, whatever its size: no step. */
void		dpml_sgd_add(DpmlSgd *state, const DpmlBlock *block, int32_t first, int32_t n);

/* A step with the open batch, empty or not. */
void		dpml_sgd_apply_batch(DpmlSgd *state);

/* Whether a pass with sizes has had as many units as they add up to, before it is finished. */
int			dpml_sgd_is_whole(const DpmlSgd *state);

/* Apply the open short batch, fold the scale into weights, turn average into the mean.  Call once. */
void		dpml_sgd_finish(DpmlSgd *state);

#endif
