/* SPDX-License-Identifier: PostgreSQL */
/*
 * Basis functions of columns, and their products.
 *
 * A category has one a level, 1 where the value is that level; a curve has one a knot, the hat function
 * (triangle) that is 1 at its knot and 0 at the others.  At a value of the column they sum to 1, and at most
 * two are not 0; at NULL, NaN and unknown levels all are 0.
 */
#ifndef DPML_BASIS_H
#define DPML_BASIS_H

#include <stdint.h>

#include "encode.h"

/* The basis functions that are not 0 at a value. */
typedef struct DpmlBasis
{
	int32_t		n;				/* 0, 1 or 2 */
	int32_t		at[2];			/* which ones, rising */
	double		weight[2];		/* in [0, 1] */
} DpmlBasis;

/* How many basis functions a column has: 0 for one that is neither a category nor a curve. */
int32_t		dpml_basis_size(const DpmlColumn *column);

/* Those of a column that are not 0 at a value. */
void		dpml_basis(const DpmlColumn *column, const DpmlValue *value, DpmlBasis *basis);

/* The products that are not 0 of the basis functions of two columns: their places, rising, and sizes; returns how many. */
int32_t		dpml_cross(const DpmlColumn *first, const DpmlColumn *second, const DpmlValue *first_value,
					   const DpmlValue *second_value, int32_t places[4], double weights[4]);

#endif
