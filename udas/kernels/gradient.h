/* SPDX-License-Identifier: PostgreSQL */
/*
 * Sums over the rows of a block, at weights that stay: gradients and losses of
 * a full batch.  Nothing is divided by a number of rows, and no regulariser is
 * in it.  Sums are added to what the arrays hold.
 */
#ifndef DPML_GRADIENT_H
#define DPML_GRADIENT_H

#include <stdint.h>

#include "block.h"
#include "loss.h"

enum DpmlLossSums
{
	DPML_NO_LOSSES = 0,
	DPML_LOSSES = 1,
	DPML_ERRORS = 2				/* rows whose class is predicted wrongly */
};

typedef struct DpmlGradientOptions
{
	DpmlLoss	loss;
	double		gradient_clip;	/* bound on the norm of a row's derivatives in its K scores, > 0; infinity for none */
	double		unit_clip;		/* bound on the norm of a unit's gradient, > 0; infinity for none */
	double		loss_clip;		/* bound on a row's loss, > 0; infinity for none */
	int32_t		n_features;		/* d, intercept included */
	int32_t		n_models;		/* J >= 1; the gradient is that of the first */
	int32_t		gradient;		/* 1: sum gradients */
	int32_t		losses;			/* enum DpmlLossSums */
} DpmlGradientOptions;

/* Doubles of working memory. */
int64_t		dpml_gradient_memory(const DpmlGradientOptions *options);

/*
 * Whether the arrays of dpml_gradient_rows are by feature for blocks of such a kind: what is J x K x d is d x J x K,
 * so that a value of a sparse row meets the weights of all its scores beside each other.
 */
int			dpml_gradient_by_feature(const DpmlGradientOptions *options, int32_t kind);

/*
 * Rows first .. first + n - 1 of a block, of which the next call goes on with the
 * row after them: with a unit_clip the sum of an unfinished unit waits in work.
 * weights are J x K x d and finite, gradient K x d, losses J; an array that is not
 * asked for may be NULL.  work must be zero at the first call, and is for this function alone.
 */
void		dpml_gradient_rows(const DpmlGradientOptions *options, const double *weights, const DpmlBlock *block,
							   int32_t first, int32_t n, double *work, double *gradient, double *losses);

#endif
