/* SPDX-License-Identifier: PostgreSQL */
/*
 * The encoder: columns to features, features to a row of bounded norm, or each feature to bounds.
 *
 * Rounding to float32 moves each feature by at most 2^-24 of itself, so a
 * float64 row of norm 1 - 2^-19 keeps a norm below 1 - 2^-20 once rounded
 * (privacy/README.md, "Floating point").
 *
 * Long because a row in its dense and in its sparse form comes of the same arithmetic, bit for bit.
 */
#include "encode.h"

#include <float.h>
#include <math.h>
#include <stddef.h>

#include "basis.h"
#include "norm.h"
#include "scalar.h"
#include "vector.h"

static const double target_norm = 1.0 - 0x1p-19;

void
dpml_complete_column(DpmlColumn *column)
{
	DpmlBounds	bounds = {column->lower, column->upper, 0.0, 1.0};

	if (column->log1p)
	{
		bounds.lower = log1p(bounds.lower);
		bounds.upper = log1p(bounds.upper);
	}
	bounds.width = bounds.upper - bounds.lower;
	if (!dpml_finite(bounds.width))
	{
		bounds.half = 0.5;
		bounds.width = 0.5 * bounds.upper - 0.5 * bounds.lower;
	}
	column->bounds = bounds;
}

/* One number to one feature; whatever is not a number at the end is 0. */
static double
scale_number(const DpmlColumn *column, double v)
{
	const DpmlBounds *bounds = &column->bounds;
	double		scaled;

	v = dpml_clamp(v, column->lower, column->upper);
	if (!dpml_finite(v))
		return 0.0;
	if (column->log1p)
		v = log1p(v);
	if (column->scale == DPML_STANDARD)
		scaled = dpml_clamp((v - column->mean) / column->sd, -DBL_MAX, DBL_MAX);
	else
	{
		scaled = (bounds->half * v - bounds->half * bounds->lower) / bounds->width;
		scaled = dpml_clamp(scaled, 0.0, 1.0);
		if (column->scale == DPML_CENTER)
			scaled = 2.0 * scaled - 1.0;
	}
	return dpml_finite(scaled) ? scaled : 0.0;
}

/*
 * scale_number for many numbers of finite bounds, without log1p: the same
 * arithmetic in the same order, free of branches so that it runs in lanes.
 */
static DPML_CLONES void
scale_numbers(const DpmlColumn *column, int32_t n, const double *v, double *out)
{
	double		lower = column->lower;
	double		upper = column->upper;
	double		half = column->bounds.half;
	double		base = half * column->bounds.lower;
	double		width = column->bounds.width;
	double		stretch = column->scale == DPML_CENTER ? 2.0 : 1.0;
	double		shift = column->scale == DPML_CENTER ? 1.0 : 0.0;

	for (int32_t j = 0; j < n; j++)
	{
		double		x = v[j] < lower ? lower : v[j];
		double		scaled;

		x = x > upper ? upper : x;
		scaled = (half * x - base) / width;
		scaled = scaled < 0.0 ? 0.0 : scaled;
		scaled = scaled > 1.0 ? 1.0 : scaled;
		scaled = stretch * scaled - shift;
		out[j] = x == x ? scaled : 0.0;
	}
}

static int32_t
reduced(int32_t pixels, int32_t stride)
{
	return (pixels - 1) / stride + 1;
}

int32_t
dpml_image_features(const DpmlImage *image)
{
	return reduced(image->rows, image->stride) * reduced(image->columns, image->stride);
}

int32_t
dpml_column_length(const DpmlColumn *column)
{
	return column->image.rows > 0 ? column->image.rows * column->image.columns : column->width;
}

/* Mean of the scaled pixels around one. */
static double
blurred(const DpmlColumn *column, const double *pixels, int32_t r, int32_t c)
{
	const DpmlImage *image = &column->image;
	int32_t		reach = image->blur / 2;
	double		sum = 0.0;
	int32_t		n = 0;

	for (int32_t i = r > reach ? r - reach : 0; i <= r + reach && i < image->rows; i++)
		for (int32_t j = c > reach ? c - reach : 0; j <= c + reach && j < image->columns; j++)
		{
			sum += scale_number(column, pixels[(int64_t) i * image->columns + j]);
			n++;
		}
	return sum / n;
}

static void
encode_image(const DpmlColumn *column, const double *pixels, double *out)
{
	const DpmlImage *image = &column->image;

	for (int32_t r = 0; r < image->rows; r += image->stride)
		for (int32_t c = 0; c < image->columns; c += image->stride)
			*out++ = blurred(column, pixels, r, c);
}

/* A number as its scaled value, and after it the hats of its curve. */
static void
encode_number(const DpmlColumn *column, const DpmlValue *value, double *out)
{
	DpmlBasis	basis;

	out[0] = scale_number(column, value->number);
	dpml_basis(column, value, &basis);
	for (int32_t i = 0; i < basis.n; i++)
		out[1 + basis.at[i]] = basis.weight[i];
}

/* The given elements of a sparse column are inside it, each once. */
static int
has_places(const DpmlColumn *column, const DpmlValue *value)
{
	if (value->elements == NULL || value->length < 0 || value->length > column->width)
		return 0;
	for (int32_t i = 0; i < value->length; i++)
		if (value->places[i] >= (uint32_t) column->width || (i > 0 && value->places[i] <= value->places[i - 1]))
			return 0;
	return 1;
}

static void
encode_column(const DpmlColumn *column, const DpmlValue *value, double *out)
{
	for (int32_t j = 0; j < column->width; j++)
		out[j] = 0.0;
	if (column->kind == DPML_CATEGORY)
	{
		if (value->level < 0 || value->level >= column->width)
			return;
		if (column->centered)
			for (int32_t j = 0; j < column->width; j++)
				out[j] = -1.0 / column->width;
		out[value->level] += 1.0;
		return;
	}
	if (column->kind == DPML_NUMERIC)
		encode_number(column, value, out);
	else if (column->kind == DPML_SPARSE)
	{
		if (has_places(column, value))
			for (int32_t i = 0; i < value->length; i++)
				out[value->places[i]] = scale_number(column, value->elements[i]);
	}
	else if (value->elements == NULL || value->length != dpml_column_length(column))
		return;
	else if (column->image.rows > 0)
		encode_image(column, value->elements, out);
	else if (column->scale != DPML_STANDARD && !column->log1p)
		scale_numbers(column, column->width, value->elements, out);
	else
		for (int32_t j = 0; j < column->width; j++)
			out[j] = scale_number(column, value->elements[j]);
}

/* The products of a cross that are not 0 in a row: their places in the cross and sizes; returns how many. */
static int32_t
cross_row(const DpmlEncoder *encoder, const DpmlCross *cross, const DpmlValue *values, int32_t places[4],
		  double weights[4])
{
	return dpml_cross(&encoder->columns[cross->first], &encoder->columns[cross->second], &values[cross->first],
					  &values[cross->second], places, weights);
}

static int32_t
cross_width(const DpmlEncoder *encoder, const DpmlCross *cross)
{
	return dpml_basis_size(&encoder->columns[cross->first]) * dpml_basis_size(&encoder->columns[cross->second]);
}

/* All features of a cross; returns the place after them. */
static double *
encode_cross(const DpmlEncoder *encoder, const DpmlCross *cross, const DpmlValue *values, double *out)
{
	int32_t		width = cross_width(encoder, cross);
	int32_t		places[4];
	double		weights[4];
	int32_t		n = cross_row(encoder, cross, values, places, weights);

	for (int32_t j = 0; j < width; j++)
		out[j] = 0.0;
	for (int32_t i = 0; i < n; i++)
		out[places[i]] = weights[i];
	return out + width;
}

/* Bring the largest entry near 1 by a power of two, so that squares neither overflow nor vanish. */
static void
bring_into_range(int32_t n, double *x)
{
	double		largest = 0.0;
	int			exponent;

	for (int32_t i = 0; i < n; i++)
		largest = dpml_most(largest, fabs(x[i]));
	frexp(largest, &exponent);
	for (int32_t i = 0; i < n; i++)
		x[i] = ldexp(x[i], -exponent);
}

static DPML_CLONES void
project(const DpmlEncoder *encoder, const double *raw, double *out)
{
	int32_t		n = encoder->n_features - encoder->intercept;

	for (int32_t i = 0; i < n; i++)
	{
		out[i] = dpml_dot_f32(encoder->n_raw, raw, encoder->projection + (int64_t) i * encoder->n_raw);
		if (!dpml_finite(out[i]))
			out[i] = 0.0;
	}
}

/* A row of such a norm is brought to the norm of the encoding. */
static int
is_brought(const DpmlEncoder *encoder, double norm)
{
	if (encoder->norm == DPML_CLIP_VALUES)
		return 0;
	return norm > target_norm || (encoder->norm == DPML_NORMALIZE && norm > 0.0);
}

/* Features to [-1, 1], which float32 keeps, where the encoding asks for it. */
static void
clip_values(const DpmlEncoder *encoder, int32_t n, double *x)
{
	if (encoder->norm == DPML_CLIP_VALUES)
		for (int32_t i = 0; i < n; i++)
			x[i] = dpml_clamp(x[i], -1.0, 1.0);
}

/* The factor that brings a row of such a norm to the norm of the encoding. */
static double
norm_factor(double norm)
{
	return target_norm / norm;
}

/* The squares of such a norm have neither overflowed nor vanished. */
static int
in_range(double norm)
{
	return norm > 1e-100 && norm < 1e100;
}

double
dpml_target_norm(void)
{
	return target_norm;
}

int
dpml_keeps_zero(const DpmlColumn *column)
{
	return scale_number(column, 0.0) == 0.0;
}

void
dpml_encode_row(const DpmlEncoder *encoder, const DpmlValue *values, double *work, float *out)
{
	int32_t		n = encoder->n_features;
	double		factor = 1.0;
	double		norm;
	double	   *at = work;

	for (int32_t c = 0; c < encoder->n_columns; c++)
	{
		encode_column(&encoder->columns[c], &values[c], at);
		at += encoder->columns[c].width;
	}
	for (int32_t c = 0; c < encoder->n_crosses; c++)
		at = encode_cross(encoder, &encoder->crosses[c], values, at);
	if (encoder->projection != NULL)
	{
		work += encoder->n_raw;
		project(encoder, at - encoder->n_raw, work);
	}
	if (encoder->intercept)
		work[n - 1] = 1.0;

	clip_values(encoder, n, work);
	norm = dpml_norm(n, work);
	if (is_brought(encoder, norm))
	{
		if (!in_range(norm))
		{
			bring_into_range(n, work);
			norm = dpml_norm(n, work);
		}
		factor = norm_factor(norm);
	}
	for (int32_t i = 0; i < n; i++)
		out[i] = (float) (work[i] * factor);
}

/* An entry of a row, unless it is 0; returns the place for the next one. */
DPML_INLINE int32_t
put_entry(double feature, uint32_t column, int32_t n, double *work, uint32_t *columns)
{
	work[n] = feature;
	columns[n] = column;
	return n + (feature != 0.0);
}

/* The entries of a column that are not 0, to the places from n on; returns the place after the last. */
static int32_t
gather_column(const DpmlColumn *column, const DpmlValue *value, uint32_t base, int32_t n, double *work, uint32_t *columns)
{
	if (column->kind == DPML_NUMERIC || (column->kind == DPML_CATEGORY && !column->centered))
	{
		DpmlBasis	basis;

		if (column->kind == DPML_NUMERIC)
			n = put_entry(scale_number(column, value->number), base++, n, work, columns);
		dpml_basis(column, value, &basis);
		for (int32_t i = 0; i < basis.n; i++)
			n = put_entry(basis.weight[i], base + (uint32_t) basis.at[i], n, work, columns);
	}
	else if (column->kind == DPML_SPARSE)
	{
		if (has_places(column, value))
			for (int32_t i = 0; i < value->length; i++)
				n = put_entry(scale_number(column, value->elements[i]), base + value->places[i], n, work, columns);
	}
	else
	{
		const double *features = work + n;

		encode_column(column, value, work + n);
		for (int32_t j = 0; j < column->width; j++)
			n = put_entry(features[j], base + (uint32_t) j, n, work, columns);
	}
	return n;
}

int32_t
dpml_encode_sparse(const DpmlEncoder *encoder, const DpmlValue *values, double *work, uint32_t *columns, float *out)
{
	uint32_t	base = 0;
	int32_t		n = 0;
	int32_t		kept = 0;
	double		factor = 1.0;
	double		norm;

	for (int32_t c = 0; c < encoder->n_columns; c++)
	{
		n = gather_column(&encoder->columns[c], &values[c], base, n, work, columns);
		base += (uint32_t) encoder->columns[c].width;
	}
	for (int32_t c = 0; c < encoder->n_crosses; c++)
	{
		int32_t		places[4];
		int32_t		n_products = cross_row(encoder, &encoder->crosses[c], values, places, work + n);

		for (int32_t i = 0; i < n_products; i++)
			columns[n++] = base + (uint32_t) places[i];
		base += (uint32_t) cross_width(encoder, &encoder->crosses[c]);
	}
	if (encoder->intercept)
	{
		work[n] = 1.0;
		columns[n++] = base;
	}

	clip_values(encoder, n, work);
	norm = dpml_norm_sparse(encoder->n_features, n, columns, work);
	if (is_brought(encoder, norm))
	{
		if (!in_range(norm))
		{
			bring_into_range(n, work);
			norm = dpml_norm_sparse(encoder->n_features, n, columns, work);
		}
		factor = norm_factor(norm);
	}
	for (int32_t i = 0; i < n; i++)
	{
		out[kept] = (float) (work[i] * factor);
		columns[kept] = columns[i];
		kept += out[kept] != 0.0f;
	}
	return kept;
}

void
dpml_clip_row(int32_t n, double *x)
{
	double		norm = dpml_norm(n, x);
	int			is_finite = dpml_finite(norm);

	if (!is_finite)
	{
		/* Finite entries may still have a norm beyond the largest double. */
		is_finite = 1;
		for (int32_t i = 0; i < n; i++)
			is_finite = is_finite && dpml_finite(x[i]);
		if (is_finite)
		{
			bring_into_range(n, x);
			norm = dpml_norm(n, x);
		}
	}
	if (!is_finite || norm > 1.0)
	{
		/* a little below 1, for the rounding of norm and product */
		double		factor = is_finite ? (1.0 - 0x1p-50) / norm : 0.0;

		for (int32_t i = 0; i < n; i++)
			x[i] = is_finite ? x[i] * factor : 0.0;
	}
}
