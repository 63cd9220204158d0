/* SPDX-License-Identifier: PostgreSQL */
/* One row in any of the three forms it is stored in: float32, float64, sparse. */
#ifndef DPML_ROW_H
#define DPML_ROW_H

#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>

#include "block.h"
#include "scalar.h"
#include "vector.h"

enum RowForm
{
	ROW_F32,
	ROW_F64,
	ROW_SPARSE
};

/* One row; form is a constant wherever a row is made, so the switches below fold away. */
typedef struct Row
{
	int			form;
	int64_t		n;				/* stored values */
	const float *f32;
	const double *f64;
	const uint32_t *columns;
	double		label;
} Row;

DPML_INLINE double
row_dot(const Row *row, const double *w)
{
	if (row->form == ROW_F32)
		return dpml_dot_f32(row->n, w, row->f32);
	if (row->form == ROW_F64)
		return dpml_dot_f64(row->n, w, row->f64);
	return dpml_dot_sparse(row->n, w, row->columns, row->f32);
}

/* The same, and the row's squared norm. */
DPML_INLINE double
row_dot_square(const Row *row, const double *w, double *square)
{
	if (row->form == ROW_F32)
		return dpml_dot_square_f32(row->n, w, row->f32, square);
	if (row->form == ROW_F64)
	{
		*square = dpml_dot_f64(row->n, row->f64, row->f64);
		return dpml_dot_f64(row->n, w, row->f64);
	}
	*square = dpml_square_f32(row->n, row->f32);
	return dpml_dot_sparse(row->n, w, row->columns, row->f32);
}

/* out += a row; a = 0 leaves out alone even where the row is not finite. */
DPML_INLINE void
row_axpy(const Row *row, double a, double *out)
{
	if (a == 0.0)
		return;
	if (row->form == ROW_F32)
		dpml_axpy_f32(row->n, a, row->f32, out);
	else if (row->form == ROW_F64)
		dpml_axpy_f64(row->n, a, row->f64, out);
	else
		dpml_axpy_sparse(row->n, a, row->columns, row->f32, out);
}

/* out = factor x, or zeros if a value would not be finite. */
DPML_INLINE void
row_scale(const Row *row, double factor, float *out)
{
	int			finite = dpml_finite(factor);

	for (int64_t i = 0; i < row->n; i++)
	{
		double		v = factor * row->f32[i];

		finite = finite && fabs(v) <= FLT_MAX;
		out[i] = finite ? (float) v : 0.0f;
	}
	if (!finite)
		for (int64_t i = 0; i < row->n; i++)
			out[i] = 0.0f;
}

DPML_INLINE Row
block_row(const DpmlBlock *block, int32_t i)
{
	Row			row = {ROW_F32, block->n_features, NULL, NULL, NULL, block->labels[i]};

	if (block->kind == DPML_DENSE)
		row.f32 = block->values + (int64_t) i * block->n_features;
	else
	{
		uint32_t	start = i > 0 ? block->row_end[i - 1] : 0;

		row.form = ROW_SPARSE;
		row.n = block->row_end[i] - start;
		row.columns = block->columns + start;
		row.f32 = block->values + start;
	}
	return row;
}

/* out += a[0] x[0] + a[1] x[1] + ... over n_rows (a constant) dense rows, each as row_axpy. */
DPML_INLINE void
rows_axpy(int n_rows, int64_t n, const double *a, const float *x, double *out)
{
	int			all_used = 1;

	for (int r = 0; r < n_rows; r++)
		all_used = all_used && a[r] != 0.0;
	if (all_used)
		dpml_axpy_rows_f32(n_rows, n, a, x, out);
	else
		for (int r = 0; r < n_rows; r++)
			if (a[r] != 0.0)
				dpml_axpy_f32(n, a[r], x + r * n, out);
}

/* A class index, or -1 for anything else. */
DPML_INLINE int32_t
class_index(double label, int32_t n_classes)
{
	if (!(label >= 0.0 && label < n_classes) || label != floor(label))
		return -1;
	return (int32_t) label;
}

#endif
