/* SPDX-License-Identifier: PostgreSQL */
/*
 * Basis functions of columns and their products.  Total: every value has its basis functions, and sizes are
 * in [0, 1] (privacy/README.md, "Bad rows never show").
 */
#include "basis.h"

#include <math.h>

#include "scalar.h"

int32_t
dpml_basis_size(const DpmlColumn *column)
{
	return column->kind == DPML_CATEGORY ? column->width : column->n_knots;
}

/* How far v is on the way from one knot to the next. */
static double
share_of_way(double v, double from, double to)
{
	/* halves where the difference is beyond the largest double */
	double		half = dpml_finite(to - from) ? 1.0 : 0.5;

	return dpml_clamp((half * v - half * from) / (half * to - half * from), 0.0, 1.0);
}

/* The hats at both sides of a number; the first or the last one alone beyond all knots. */
static void
hats(const DpmlColumn *column, double v, DpmlBasis *basis)
{
	const double *knots = column->knots;
	int32_t		low = 0;
	int32_t		high = column->n_knots - 1;
	double		share;

	v = dpml_clamp(v, column->lower, column->upper);
	if (!dpml_finite(v))
		return;
	if (column->log1p)
		v = log1p(v);
	v = dpml_clamp(v, knots[low], knots[high]);
	while (high - low > 1)
	{
		int32_t		middle = low + (high - low) / 2;

		if (v < knots[middle])
			high = middle;
		else
			low = middle;
	}
	share = share_of_way(v, knots[low], knots[high]);
	*basis = (DpmlBasis) {2, {low, high}, {1.0 - share, share}};
}

void
dpml_basis(const DpmlColumn *column, const DpmlValue *value, DpmlBasis *basis)
{
	*basis = (DpmlBasis) {0};
	if (column->kind == DPML_CATEGORY)
	{
		if (value->level >= 0 && value->level < column->width)
			*basis = (DpmlBasis) {1, {value->level, 0}, {1.0, 0.0}};
	}
	else if (column->n_knots > 0)
		hats(column, value->number, basis);
}

int32_t
dpml_cross(const DpmlColumn *first, const DpmlColumn *second, const DpmlValue *first_value,
		   const DpmlValue *second_value, int32_t places[4], double weights[4])
{
	int32_t		size = dpml_basis_size(second);
	DpmlBasis	a;
	DpmlBasis	b;
	int32_t		n = 0;

	dpml_basis(first, first_value, &a);
	dpml_basis(second, second_value, &b);
	for (int32_t i = 0; i < a.n; i++)
		for (int32_t j = 0; j < b.n; j++)
		{
			places[n] = a.at[i] * size + b.at[j];
			weights[n] = a.weight[i] * b.weight[j];
			n += weights[n] != 0.0;
		}
	return n;
}
