/* SPDX-License-Identifier: PostgreSQL */
/*
 * Rows given as float8[] and float8.  A row with a NULL, NaN or infinite value,
 * of a wrong length or, with several classes, with a label that is no class index, is a
 * zero row: silently, as an error would show it (privacy/README.md, "Bad rows
 * never show").
 */
#include "rowform.h"

#include <math.h>

#include "catalog/pg_type.h"
#include "utils/array.h"

#include "support.h"

#include "kernels/encode.h"
#include "kernels/norm.h"

void
dpml_row_form_init(DpmlRowForm *form, MemoryContext context, int32 n_features, int32 n_outputs, bool clip)
{
	Size		size = (Size) n_features * sizeof(double);

	form->n_features = n_features;
	form->n_classes = n_outputs > 1 ? n_outputs : 0;
	form->clip = clip;
	form->zero = dpml_alloc(context, size);
	form->copy = dpml_alloc(context, size);
}

/* Elements of a vector that could be a row, or 0. */
int32
dpml_row_form_length(Datum array)
{
	ArrayType  *x = DatumGetArrayTypeP(array);
	int32		n;

	if (ARR_NDIM(x) != 1)
		return 0;
	n = ARR_DIMS(x)[0];
	return n <= DPML_MAX_FEATURES ? n : 0;
}

static bool
all_finite(int32 n, const double *x)
{
	for (int32 i = 0; i < n; i++)
	{
		if (!isfinite(x[i]))
			return false;
	}
	return true;
}

/* The features of a row, and its label in *y.  In place where the array needs no change. */
const double *
dpml_row_form_read(DpmlRowForm *form, const NullableDatum *features, const NullableDatum *label, double *y)
{
	ArrayType  *array;
	const double *x;
	double		norm;

	*y = 0.0;
	if (features->isnull || label->isnull)
		return form->zero;
	array = DatumGetArrayTypeP(features->value);
	Assert(ARR_ELEMTYPE(array) == FLOAT8OID);
	if (ARR_NDIM(array) != 1 || ARR_DIMS(array)[0] != form->n_features ||
		(ARR_HASNULL(array) && array_contains_nulls(array)))
		return form->zero;

	x = (const double *) ARR_DATA_PTR(array);
	norm = dpml_norm(form->n_features, x);
	if (!isfinite(norm) && !all_finite(form->n_features, x))
		return form->zero;

	*y = DatumGetFloat8(label->value);
	if (!isfinite(*y) ||
		(form->n_classes > 0 && !(*y >= 0 && *y < form->n_classes && *y == floor(*y))))
	{
		*y = 0.0;
		return form->zero;
	}
	if (!form->clip || norm <= 1.0)
		return x;
	memcpy(form->copy, x, (Size) form->n_features * sizeof(double));
	dpml_clip_row(form->n_features, form->copy);
	return form->copy;
}
