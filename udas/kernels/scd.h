/* SPDX-License-Identifier: PostgreSQL */
/*
 * Stochastic dual coordinate descent: every row of a batch changes its dual (dual.h) by
 * zeta, |zeta| <= C, and then
 *		v <- v + sum_{i in batch} zeta_i x_i + Z_t.
 * Z_t is fresh noise, if any; it and the sum are rounded to a grid before they are
 * added.  The rows of a batch are independent of each other: all see the v of before
 * the batch, and q has the factor L = batch_size max_rows_per_unit, whatever the batch has
 * (privacy/README.md, "Coordinate descent").  Sequential ones see each other's changes, with L = 1.
 */
#ifndef DPML_SCD_H
#define DPML_SCD_H

#include <stddef.h>
#include <stdint.h>

#include "block.h"
#include "loss.h"
#include "noise.h"
#include "random.h"

typedef struct DpmlScdOptions
{
	DpmlLoss	loss;			/* of one score, without a clip */
	double		lambda;			/* L2 regulariser, > 0, on every coordinate */
	double		n;				/* public number of rows that the loss is a mean of, >= 1 */
	double		update_clip;	/* C, bound on the change of a dual, > 0; infinity for none */
	double		noise_scale;	/* standard deviation on the sum of a batch's changes of v, > 0 */
	int32_t		n_features;		/* d, intercept included */
	int32_t		batch_size;		/* L >= 1, in units of privacy */
	int32_t		by_unit;		/* 1: blocks say which rows begin a unit; 0: every row is one */
	int32_t		max_rows_per_unit;	/* m >= 1; 1 without units */
	int32_t		noise;			/* DPML_NO_NOISE or DPML_GAUSSIAN */
	int32_t		dual_noise;		/* 1: noise of the same scale on every dual that changes */
	int32_t		sequential;		/* 1: the rows of a batch see each other's changes */
	int32_t		exact;			/* 1: changes of the logistic loss to convergence, not by one step */
} DpmlScdOptions;

/*
 * The caller allocates the memory that the arrays are in, from its first cache line on:
 *
 *	| v f64[d] | change f64[d] |
 *	with noise: | noise f64[d] | rng DpmlRng |
 */
typedef struct DpmlScd
{
	DpmlScdOptions options;
	int64_t		steps;			/* batches applied, earlier passes included */
	int64_t		rows;			/* rows seen in this pass */
	int32_t		in_batch;		/* units of the open batch */
	double		shrink;			/* 1 / (lambda n), of v to the weights */
	double		grid;			/* spacing of the grid that changes and their noise are rounded to */
	double	   *v;				/* d; without the open batch, unless its rows go straight into it */
	double	   *change;			/* d, sum over the open batch */
	double	   *noise;			/* d, in steps of the grid, scratch; NULL without noise */
	DpmlRng    *rng;			/* of the noise; NULL without */
} DpmlScd;

/* The state at the beginning of a pass: v (d), zero where it is NULL. */
typedef struct DpmlScdStart
{
	const double *v;
	int64_t		steps;			/* taken before */
	const uint8_t *key;			/* 32 fresh random bytes, the noise's own; NULL without noise */
} DpmlScdStart;

/* Bytes of working memory a pass needs. */
size_t		dpml_scd_memory(const DpmlScdOptions *options);

/* 1 if the arrays lie as drawn above and the numbers are within their bounds; for assertions. */
int			dpml_scd_valid(const DpmlScd *state);

void		dpml_scd_start(DpmlScd *state, const DpmlScdOptions *options, void *memory, const DpmlScdStart *start);

/* One row of float64 features and its dual; y is a label as the loss wants it (-1/+1, or a number). */
void		dpml_scd_row(DpmlScd *state, const double *x, double y, double *dual);

/*
 * Rows first .. first + n - 1, which must exist, of a block whose n_features is that of
 * the options.  duals are those of all rows of the block.
 */
void		dpml_scd_block(DpmlScd *state, const DpmlBlock *block, int32_t first, int32_t n, double *duals);

/* Add rows first .. first + n - 1 of a block, which must exist, to the open batch, whatever its size: no step. */
void		dpml_scd_add(DpmlScd *state, const DpmlBlock *block, int32_t first, int32_t n, double *duals);

/* A step with the open batch, empty or not. */
void		dpml_scd_apply_batch(DpmlScd *state);

/* Apply the open short batch.  Call once. */
void		dpml_scd_finish(DpmlScd *state);

#endif
