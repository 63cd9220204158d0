/* SPDX-License-Identifier: PostgreSQL */
/*
 * One pass of mini-batch SGD:
 *		w <- Proj_R(w - eta_t((1/b) sum_{i in batch} phi_i' + lambda w)),
 * a short last batch also divided by b (privacy/README.md, "Growth").
 */
#ifndef DPML_SGD_H
#define DPML_SGD_H

#include <stddef.h>
#include <stdint.h>

#include "block.h"
#include "loss.h"
#include "schedule.h"

typedef struct DpmlSgdOptions
{
	DpmlLoss	loss;
	DpmlSchedule schedule;
	double		lambda;			/* L2 regulariser, >= 0, on every coordinate */
	double		radius;			/* of the ball w is projected on; infinity for none */
	int64_t		average_from;	/* first step whose iterate enters the average, from 1; 0 for no average */
	int32_t		n_features;		/* d, intercept included */
	int32_t		batch_size;		/* b >= 1, in units of privacy */
	int32_t		units;			/* 1: blocks say which rows begin a unit; 0: every row is one */
} DpmlSgdOptions;

/* The caller allocates `memory`; the arrays below point into it.  w is scale * weights until finished. */
typedef struct DpmlSgd
{
	DpmlSgdOptions options;
	int64_t		steps;			/* steps taken, earlier passes included */
	int64_t		rows;			/* rows seen in this pass */
	int64_t		averaged;		/* iterates in the average so far */
	int32_t		in_batch;		/* units of the open batch */
	double		scale;			/* lazy shrink factor of weights */
	double	   *weights;		/* K x d, row-major */
	double	   *gradient;		/* K x d, sum over the open batch */
	double	   *average;		/* K x d, sum of iterates; its mean when finished */
	double	   *scores;			/* K */
} DpmlSgd;

/* Bytes of working memory a pass needs. */
size_t		dpml_sgd_memory(const DpmlSgdOptions *options);

/*
 * Begin a pass after `steps` earlier steps.  weights (K*d) NULL means zero; they are projected on the ball.
 * average (K*d) is the mean of the iterates average_from .. steps; NULL if there are none yet.
 */
void		dpml_sgd_start(DpmlSgd *state, const DpmlSgdOptions *options, void *memory,
						   const double *weights, const double *average, int64_t steps);

/* One row of float64 features; y is a label as the loss wants it (-1/+1, a number, or a class index). */
void		dpml_sgd_row(DpmlSgd *state, const double *x, double y);

/* All rows of a block whose n_features is that of the options. */
void		dpml_sgd_block(DpmlSgd *state, const DpmlBlock *block);

/* Apply the open short batch, fold the scale into weights, turn average into the mean.  Call once. */
void		dpml_sgd_finish(DpmlSgd *state);

/* Sum of losses at weights (K x d) over the rows of a block, and over one float64 row; scores has K doubles. */
double		dpml_loss_sum_block(const DpmlLoss *loss, const double *weights, const DpmlBlock *block, double *scores);
double		dpml_loss_sum_row(const DpmlLoss *loss, const double *weights, int32_t n_features,
							  const double *x, double y, double *scores);

/* Scores (K) of one float32 row at weights (K x d); what prediction uses. */
void		dpml_scores(int32_t n_outputs, int32_t n_features, const double *weights, const float *x, double *scores);

/*
 * ||P x||_2 of one float32 row; p is d x d, symmetric, work has d doubles.  0 where it is
 * beyond doubles, or so small that its products are not precise.
 */
double		dpml_whitened_norm(int32_t n_features, const double *p, const float *x, double *work);

/* Euclidean norm that neither overflows nor underflows; NaN or infinity if an entry is not finite. */
double		dpml_norm(int64_t n, const double *x);

#endif
