/* SPDX-License-Identifier: PostgreSQL */
/*
 * The parser of the encoder's specification, and the encoder with what it
 * accepts: every row of whatever values is finite and within norm 1 - 2^-20, or each feature within [-1, 1].
 * Input: the document, then the values.
 */
#include "document.h"

#include <math.h>

#include "spec.h"

#include "kernels/basis.h"
#include "kernels/block.h"
#include "kernels/norm.h"
#include "kernels/projection.h"
#include "kernels/scalar.h"

#define MOST_FEATURES 600
#define MOST_BLUR 100000.0
#define MOST_PROJECTED 4096
#define ROWS 3

static const char *const words[] = {
	"columns", "intercept", "norm", "format", "label", "projection", "name", "kind", "scale", "lower", "upper",
	"mean", "sd", "log1p", "levels", "centered", "length", "image", "rows", "blur", "stride", "features", "seed",
	"positive", "negative", "classes", "dense", "csr", "clip", "normalize", "center", "zero_based", "standard",
	"numeric", "boolean", "category", "array", "binary", "number", "sparse", "indices", "first_index", "clip_values",
	"", "knots", "crosses"
};

/* -Wl,--wrap: one as large as allowed takes half a second to make. */
extern void __real_dpml_projection(DpmlRng *rng, int32_t n_projected, int64_t n, float *out);
extern void __wrap_dpml_projection(DpmlRng *rng, int32_t n_projected, int64_t n, float *out);

void
__wrap_dpml_projection(DpmlRng *rng, int32_t n_projected, int64_t n, float *out)
{
	if (n <= MOST_PROJECTED)
		__real_dpml_projection(rng, n_projected, n, out);
	else
		out[0] = out[n - 1] = 0.0f;
}

static void *
parse_spec(Jsonb *json, void *argument)
{
	(void) argument;
	return dpml_spec_parse(json);
}

static void
check_column(const DpmlColumn *column)
{
	REQUIRE(column->width >= 1);
	REQUIRE(column->n_knots == 0 || (column->kind == DPML_NUMERIC && column->width == 1 + column->n_knots));
	for (int32_t j = 0; j < column->n_knots; j++)
		REQUIRE(isfinite(column->knots[j]) && (j == 0 || column->knots[j] > column->knots[j - 1]));
}

/* The basis functions of a column at a value sum to 1, or there are none. */
static void
check_basis(const DpmlColumn *column, const DpmlValue *value)
{
	DpmlBasis	basis;
	double		sum = 0.0;

	dpml_basis(column, value, &basis);
	for (int i = 0; i < basis.n; i++)
	{
		REQUIRE(basis.at[i] >= 0 && basis.at[i] < dpml_basis_size(column) && basis.weight[i] >= 0.0);
		sum += basis.weight[i];
	}
	REQUIRE(basis.n == 0 || fabs(sum - 1.0) < 1e-15);
}

static void
check_encoder(const DpmlEncoder *encoder)
{
	int64		n_raw = 0;

	REQUIRE(encoder->n_columns >= 1 && encoder->n_features >= 1 && encoder->n_features <= DPML_MAX_FEATURES);
	for (int32_t i = 0; i < encoder->n_columns; i++)
	{
		check_column(&encoder->columns[i]);
		n_raw += encoder->columns[i].width;
	}
	for (int32_t i = 0; i < encoder->n_crosses; i++)
	{
		const DpmlCross *cross = &encoder->crosses[i];

		REQUIRE(cross->first >= 0 && cross->first < encoder->n_columns && cross->first != cross->second);
		REQUIRE(cross->second >= 0 && cross->second < encoder->n_columns);
		n_raw += (int64) dpml_basis_size(&encoder->columns[cross->first]) *
			dpml_basis_size(&encoder->columns[cross->second]);
	}
	REQUIRE(n_raw == encoder->n_raw && n_raw <= DPML_MAX_FEATURES);
}

/* Any value of a column. */
static DpmlValue
next_value(const DpmlColumn *column, Bytes *bytes)
{
	DpmlValue	value = {.level = -1};
	double	   *elements;

	if (column->kind == DPML_NUMERIC)
		value.number = next_number(bytes);
	else if (column->kind == DPML_CATEGORY)
		value.level = choose(bytes, Min(column->width, 255) + 1) - 1;
	else if (choose(bytes, 8) > 0)
	{
		value.length = dpml_column_length(column) - (choose(bytes, 8) == 0);
		elements = palloc((Size) value.length * sizeof(double));
		for (int32_t i = 0; i < value.length; i++)
			elements[i] = next_number(bytes);
		value.elements = elements;
	}
	return value;
}

/* Any given elements of a sparse column; mostly their places rise. */
static DpmlValue
next_sparse(const DpmlColumn *column, Bytes *bytes)
{
	DpmlValue	value = {.length = choose(bytes, Min(column->width, 250) + 3)};
	double	   *elements = palloc((Size) value.length * sizeof(double));
	uint32	   *places = palloc((Size) value.length * sizeof(uint32));
	uint32		place = 0;
	int			step;

	for (int32_t i = 0; i < value.length; i++)
	{
		elements[i] = next_number(bytes);
		places[i] = place;
		step = choose(bytes, 16);
		if (step == 0)
			place = (uint32) column->width;
		else if (step > 1)
			place += 1 + (uint32) step / 4;
	}
	value.elements = elements;
	value.places = places;
	return value;
}

/* The sparse row has the same features, bit for bit, and no zeros. */
static void
check_sparse(const DpmlEncoder *encoder, const DpmlValue *values, const float *dense)
{
	double	   *work = palloc(encoder->n_features * sizeof(double));
	uint32	   *columns = palloc(encoder->n_features * sizeof(uint32));
	float	   *out = palloc(encoder->n_features * sizeof(float));
	int32_t		n = dpml_encode_sparse(encoder, values, work, columns, out);
	int32_t		at = 0;

	for (int32_t j = 0; j < encoder->n_features; j++)
	{
		if (dense[j] == 0.0f)
			continue;
		REQUIRE(at < n && columns[at] == (uint32) j && out[at] == dense[j]);
		at++;
	}
	REQUIRE(at == n);
}

static void
encode(const DpmlEncoder *encoder, Bytes *bytes)
{
	DpmlValue  *values = palloc(encoder->n_columns * sizeof(DpmlValue));
	double	   *work = palloc(((Size) encoder->n_raw + encoder->n_features) * sizeof(double));
	float	   *out = palloc(encoder->n_features * sizeof(float));
	double		squares = 0.0;

	for (int32_t i = 0; i < encoder->n_columns; i++)
	{
		values[i] = encoder->columns[i].kind == DPML_SPARSE ? next_sparse(&encoder->columns[i], bytes)
			: next_value(&encoder->columns[i], bytes);
		check_basis(&encoder->columns[i], &values[i]);
	}
	dpml_encode_row(encoder, values, work, out);
	for (int32_t i = 0; i < encoder->n_features; i++)
	{
		REQUIRE(fabs(out[i]) <= 1.0);
		squares += (double) out[i] * out[i];
	}
	REQUIRE(encoder->norm == DPML_CLIP_VALUES || sqrt(squares) <= 1.0 - 0x1p-20);
	if (encoder->projection == NULL)
		check_sparse(encoder, values, out);
	dpml_clip_row(encoder->n_raw, work);
	REQUIRE(dpml_norm(encoder->n_raw, work) <= 1.0);
}

/* Elements of the image of an array are at most so many that a row is quick. */
static bool
is_small(const DpmlSpec *spec)
{
	const DpmlEncoder *encoder = &spec->encoder;

	for (int32_t i = 0; i < encoder->n_columns; i++)
		if (encoder->columns[i].kind == DPML_ARRAY && dpml_column_length(&encoder->columns[i]) > MOST_FEATURES)
			return false;
	if (encoder->projection != NULL &&
		(int64) (encoder->n_features - encoder->intercept) * encoder->n_raw > MOST_PROJECTED)
		return false;
	return encoder->n_raw <= MOST_FEATURES && encoder->n_features <= MOST_FEATURES && spec->blur_cost <= MOST_BLUR;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	Bytes		bytes = {data, size};
	DpmlSpec   *spec = parse(parse_spec, make_document(&bytes, words, lengthof(words)), NULL);

	if (spec != NULL)
	{
		check_encoder(&spec->encoder);
		REQUIRE(spec->label_kind == DPML_LABEL_NONE || strlen(spec->label_name) > 0);
		if (is_small(spec))
			for (int i = 0; i < ROWS; i++)
				encode(&spec->encoder, &bytes);
	}
	forget_document();
	return 0;
}
