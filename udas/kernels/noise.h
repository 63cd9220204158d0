/* SPDX-License-Identifier: PostgreSQL */
/* Normal numbers, and the noise of a release: Gaussian and K-norm, in whole steps of a grid. */
#ifndef DPML_NOISE_H
#define DPML_NOISE_H

#include <stdint.h>

#include "random.h"

/* Noise that each step of a pass adds to the sum of its batch. */
enum DpmlStepNoise
{
	DPML_NO_NOISE = 0,
	DPML_GAUSSIAN = 1,
	DPML_KNORM = 2
};

/* Least scale of noise whose inverse, and its product with any count, is a number, too; the largest is its inverse. */
#define DPML_LEAST_SCALE 0x1p-900
double		dpml_least_scale(void);

/* Largest standard deviation in steps of the grid: all numbers of the noise are whole, and exact in float64. */
#define DPML_MOST_GRID_STEPS 0x1p45
double		dpml_most_grid_steps(void);

/* n independent standard normals as float64. */
void		dpml_rng_normal(DpmlRng *rng, int64_t n, double *out);

/*
 * Noise in whole steps of a grid.  stddev is the standard deviation of a normal, in
 * steps, from 0 to 2^45.  scale is that of a density proportional to
 * exp(-||z|| / scale) in R^n, in steps; scale sqrt(n + 1) is from 0 to 2^45.
 */
void		dpml_noise_gaussian(DpmlRng *rng, int64_t n, double stddev, double *out);
void		dpml_noise_knorm(DpmlRng *rng, int64_t n, double scale, double *out);

/*
 * How much of a place of 2^-55 of a strip > 0 lies under the curve, and how much of one of a piece of the tail is kept.
 */
double		dpml_normal_under_curve(int32_t strip, int64_t number);
double		dpml_normal_in_tail(int32_t piece, int64_t number);

/* Grid that sums and noise of so large a scale (> 0) are rounded to: the largest power of two <= 2^-20 scale. */
double		dpml_noise_grid(double scale);

#endif
