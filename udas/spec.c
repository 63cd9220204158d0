/* SPDX-License-Identifier: PostgreSQL */
/* The encoder's specification, from JSON.  Everything is allocated in the current context. */
#include "spec.h"

#include <math.h>

#include "miscadmin.h"
#include "utils/memutils.h"

#include "json.h"

#include "kernels/block.h"
#include "kernels/projection.h"

static const char *const spec_keys[] = {"columns", "intercept", "norm", "format", "label", "projection"};
static const char *const format_names[] = {"dense", "csr"};	/* enum DpmlBlockKind */
static const char *const norm_names[] = {"clip", "normalize", "clip_values"};
static const char *const scale_names[] = {"center", "zero_based", "standard"};	/* enum DpmlScale */
static const char *const label_kinds[] = {"binary", "classes", "number"};	/* enum DpmlLabelKind - 1 */

typedef enum ColumnWord
{
	WORD_NUMERIC,
	WORD_BOOLEAN,
	WORD_CATEGORY,
	WORD_ARRAY,
	WORD_SPARSE
} ColumnWord;

static const char *const column_kinds[] = {"numeric", "boolean", "category", "array", "sparse"};

static const char *const numeric_keys[] = {"name", "kind", "scale", "lower", "upper", "mean", "sd", "log1p"};
static const char *const boolean_keys[] = {"name", "kind", "scale"};
static const char *const category_keys[] = {"name", "kind", "levels", "centered"};
static const char *const array_keys[] = {
	"name", "kind", "length", "scale", "lower", "upper", "mean", "sd", "log1p", "image"
};
static const char *const sparse_keys[] = {
	"name", "kind", "length", "indices", "first_index", "scale", "lower", "upper", "mean", "sd", "log1p"
};
static const char *const image_keys[] = {"rows", "columns", "blur", "stride"};
static const char *const projection_keys[] = {"features", "seed"};
static const char *const binary_keys[] = {"name", "kind", "positive", "negative"};
static const char *const classes_keys[] = {"name", "kind", "classes"};
static const char *const number_keys[] = {"name", "kind", "lower", "upper"};

static const DpmlDomain any_number = {-HUGE_VAL, HUGE_VAL, false, false, "a finite number"};
static const DpmlDomain positive = {0, HUGE_VAL, true, false, "a number > 0"};
static const DpmlDomain zero_or_one = {0, 1, false, true, "0 or 1"};
static const DpmlDomain element_count = {1, DPML_MAX_FEATURES, false, true, "an integer from 1 to 1048576"};

/* Entries between two interrupt checks. */
#define PROJECTION_PIECE ((int64) 1 << 20)

static const DpmlDomain public_seed = {0, 9007199254740992.0, false, true, "an integer from 0 to 2^53"};

static char *
required_name(const DpmlJson *json)
{
	char	   *name = dpml_json_text(json, "name", false);

	if (name == NULL || name[0] == '\0')
		dpml_json_reject(json, "name", "the name of a column");
	return name;
}

/* Bounds, and what the scale needs, of a numeric or array column. */
static void
parse_scaling(DpmlColumn *column, const DpmlJson *json)
{
	bool		has_lower;
	bool		has_upper;

	column->scale = dpml_json_choice(json, "scale", scale_names, lengthof(scale_names), DPML_CENTER);
	column->log1p = dpml_json_bool(json, "log1p", false);
	column->lower = -HUGE_VAL;
	column->upper = HUGE_VAL;
	column->sd = 1.0;
	has_lower = dpml_json_number(json, "lower", &any_number, &column->lower);
	has_upper = dpml_json_number(json, "upper", &any_number, &column->upper);

	if (column->scale == DPML_STANDARD)
	{
		if (!dpml_json_number(json, "mean", &any_number, &column->mean))
			dpml_json_reject(json, "mean", "given with scale \"standard\": a finite number");
		if (!dpml_json_number(json, "sd", &positive, &column->sd))
			dpml_json_reject(json, "sd", "given with scale \"standard\": a number > 0");
	}
	else
	{
		double		unused;

		if (!has_lower)
			dpml_json_reject(json, "lower", "a finite number unless the scale is \"standard\"");
		if (!has_upper)
			dpml_json_reject(json, "upper", "a finite number unless the scale is \"standard\"");
		if (dpml_json_number(json, "mean", &any_number, &unused))
			dpml_json_reject(json, "mean", "absent unless the scale is \"standard\"");
		if (dpml_json_number(json, "sd", &positive, &unused))
			dpml_json_reject(json, "sd", "absent unless the scale is \"standard\"");
	}
	if (!(column->lower < column->upper))
		dpml_json_reject(json, "lower", "less than \"upper\"");
	if (column->log1p && !(column->lower >= 0))
		dpml_json_reject(json, "lower", "given and >= 0 with \"log1p\"");
}

#define CHECK_KEYS(json, keys) dpml_json_check_keys((json), (keys), lengthof(keys))

/* The reduced image that an array column may be encoded as. */
static void
parse_image(DpmlSpec *spec, DpmlColumn *column, const DpmlJson *parent)
{
	DpmlImage	image = {0};
	int32	   *parts[] = {&image.rows, &image.columns, &image.blur, &image.stride};
	JsonbValue	value;
	DpmlJson	json;
	double		number;

	if (!dpml_json_find(parent, "image", &value))
		return;
	if (value.type != jbvBinary)
		dpml_json_reject(parent, "image", "an object");
	dpml_json_open(&json, value.val.binary.data, psprintf("the image of %s", parent->where));
	CHECK_KEYS(&json, image_keys);
	for (int i = 0; i < (int) lengthof(parts); i++)
	{
		if (!dpml_json_number(&json, image_keys[i], &element_count, &number))
			dpml_json_reject(&json, image_keys[i], element_count.text);
		*parts[i] = (int32) number;
	}
	if ((int64) image.rows * image.columns != column->width)
		dpml_json_reject(&json, "rows", "the length of the array divided by \"columns\"");
	if (image.blur % 2 == 0)
		dpml_json_reject(&json, "blur", "an odd integer");
	column->image = image;
	column->width = dpml_image_features(&image);
	spec->blur_cost += (double) column->width * Min(image.blur, image.rows) * Min(image.blur, image.columns);
	if (spec->blur_cost > DPML_MAX_BLUR)
		dpml_json_reject(&json, "blur", "smaller: the blurred pixels of all images look at more than 2^26 pixels");
}

/* An array or a sparse column has a number of elements. */
static void
parse_length(DpmlColumn *column, const DpmlJson *json)
{
	double		length;

	if (!dpml_json_number(json, "length", &element_count, &length))
		dpml_json_reject(json, "length", element_count.text);
	column->width = (int32) length;
}

/* Where a sparse column has its indices: a column of their own, or inside the value. */
static void
parse_indices(DpmlSpec *spec, int i, const DpmlJson *json)
{
	double		first = 0;
	bool		has_first = dpml_json_number(json, "first_index", &zero_or_one, &first);

	spec->index_names[i] = dpml_json_text(json, "indices", false);
	if (spec->index_names[i] != NULL && spec->index_names[i][0] == '\0')
		dpml_json_reject(json, "indices", "the name of a column");
	if (has_first != (spec->index_names[i] != NULL))
		dpml_json_reject(json, "first_index", "given with \"indices\", and only with it: 0 or 1");
	spec->first_index[i] = (int32) first;
}

static void
parse_column(DpmlSpec *spec, DpmlColumn *column, int i, JsonbContainer *object)
{
	DpmlJson	json;
	ColumnWord	word;

	dpml_json_open(&json, object, psprintf("column %d of the specification", i + 1));
	spec->names[i] = required_name(&json);
	json.where = psprintf("column \"%s\"", spec->names[i]);
	word = dpml_json_choice(&json, "kind", column_kinds, lengthof(column_kinds), -1);
	memset(column, 0, sizeof(*column));
	column->width = 1;
	switch (word)
	{
		case WORD_NUMERIC:
			CHECK_KEYS(&json, numeric_keys);
			column->kind = DPML_NUMERIC;
			parse_scaling(column, &json);
			break;
		case WORD_BOOLEAN:
			CHECK_KEYS(&json, boolean_keys);
			column->kind = DPML_NUMERIC;
			/* two of the three scales: without "standard" */
			column->scale = dpml_json_choice(&json, "scale", scale_names, 2, DPML_CENTER);
			column->upper = 1.0;
			break;
		case WORD_CATEGORY:
			CHECK_KEYS(&json, category_keys);
			column->kind = DPML_CATEGORY;
			column->centered = dpml_json_bool(&json, "centered", true);
			spec->levels[i].n = dpml_json_texts(&json, "levels", 1, &spec->levels[i].names);
			if (spec->levels[i].n == 0)
				dpml_json_reject(&json, "levels", "given: an array of at least 1 strings, numbers or booleans");
			column->width = spec->levels[i].n;
			break;
		case WORD_ARRAY:
			CHECK_KEYS(&json, array_keys);
			column->kind = DPML_ARRAY;
			parse_length(column, &json);
			parse_scaling(column, &json);
			parse_image(spec, column, &json);
			break;
		case WORD_SPARSE:
			CHECK_KEYS(&json, sparse_keys);
			column->kind = DPML_SPARSE;
			parse_length(column, &json);
			parse_indices(spec, i, &json);
			parse_scaling(column, &json);
			if (!dpml_keeps_zero(column))
				dpml_json_reject(&json, "scale", "one that leaves 0 at 0: elements that are not given are 0");
			break;
	}
}

static void
parse_columns(DpmlSpec *spec, const DpmlJson *json)
{
	JsonbValue	value;
	JsonbContainer *array;
	DpmlColumn *columns;
	int64		n_features = 0;
	int			n;

	if (!dpml_json_find(json, "columns", &value) || value.type != jbvBinary ||
		!JsonContainerIsArray(value.val.binary.data) || JsonContainerSize(value.val.binary.data) == 0 ||
		JsonContainerSize(value.val.binary.data) > DPML_MAX_FEATURES)
		dpml_json_reject(json, "columns", "an array of 1 to 1048576 columns");
	array = value.val.binary.data;
	n = JsonContainerSize(array);
	columns = palloc0(n * sizeof(DpmlColumn));
	spec->names = palloc0(n * sizeof(char *));
	spec->index_names = palloc0(n * sizeof(char *));
	spec->first_index = palloc0(n * sizeof(int32));
	spec->levels = palloc0(n * sizeof(DpmlNames));
	for (int i = 0; i < n; i++)
	{
		JsonbValue *item = getIthJsonbValueFromContainer(array, i);

		if (item->type != jbvBinary)
			dpml_json_reject(json, "columns", "an array of objects");
		parse_column(spec, &columns[i], i, item->val.binary.data);
		n_features += columns[i].width;
		spec->n_fields += spec->index_names[i] != NULL ? 2 : 1;
	}
	spec->encoder.columns = columns;
	spec->encoder.n_columns = n;
	spec->encoder.intercept = dpml_json_bool(json, "intercept", true);
	if (n_features + spec->encoder.intercept > DPML_MAX_FEATURES)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("the specification has " INT64_FORMAT " features, at most %d are allowed",
						n_features + spec->encoder.intercept, DPML_MAX_FEATURES)));
	spec->encoder.n_raw = (int32) n_features;
	spec->encoder.n_features = (int32) n_features + spec->encoder.intercept;
}

/* A random projection of the raw features, from a public seed. */
static void
parse_projection(DpmlSpec *spec, JsonbContainer *object)
{
	DpmlEncoder *encoder = &spec->encoder;
	DpmlJson	json;
	double		features;
	double		seed = 0;
	float	   *matrix;
	DpmlRng		rng;
	int64		n;

	dpml_json_open(&json, object, "the projection");
	CHECK_KEYS(&json, projection_keys);
	if (!dpml_json_number(&json, "features", &element_count, &features))
		dpml_json_reject(&json, "features", element_count.text);
	(void) dpml_json_number(&json, "seed", &public_seed, &seed);
	if (features * encoder->n_raw > DPML_MAX_PROJECTION || features + encoder->intercept > DPML_MAX_FEATURES)
		dpml_json_reject(&json, "features", "at most 2^26 divided by the features before the projection");
	n = (int64) features * encoder->n_raw;
	matrix = MemoryContextAllocHuge(CurrentMemoryContext, (Size) n * sizeof(float));
	dpml_projection_start(&rng, (uint64) seed);
	for (int64 i = 0; i < n; i += PROJECTION_PIECE)
	{
		CHECK_FOR_INTERRUPTS();
		dpml_projection(&rng, (int32) features, Min(n - i, PROJECTION_PIECE), matrix + i);
	}
	encoder->projection = matrix;
	encoder->n_features = (int32) features + encoder->intercept;
}

static void
parse_label(DpmlSpec *spec, JsonbContainer *object)
{
	DpmlJson	json;
	char	   *negative;

	dpml_json_open(&json, object, "the label");
	spec->label_name = required_name(&json);
	spec->label_kind = dpml_json_choice(&json, "kind", label_kinds, lengthof(label_kinds), -1) + 1;
	switch (spec->label_kind)
	{
		case DPML_LABEL_BINARY:
			CHECK_KEYS(&json, binary_keys);
			spec->label_levels.names = palloc0(2 * sizeof(char *));
			spec->label_levels.names[0] = dpml_json_text(&json, "positive", true);
			if (spec->label_levels.names[0] == NULL)
				dpml_json_reject(&json, "positive", "a string, a number or a boolean");
			negative = dpml_json_text(&json, "negative", true);
			if (negative != NULL && strcmp(negative, spec->label_levels.names[0]) == 0)
				dpml_json_reject(&json, "negative", "another value than \"positive\", or null for every other value");
			spec->label_levels.names[1] = negative;
			spec->label_levels.n = negative != NULL ? 2 : 1;
			break;
		case DPML_LABEL_CLASSES:
			CHECK_KEYS(&json, classes_keys);
			spec->label_levels.n = dpml_json_texts(&json, "classes", 2, &spec->label_levels.names);
			if (spec->label_levels.n == 0)
				dpml_json_reject(&json, "classes", "given: an array of at least 2 strings, numbers or booleans");
			break;
		default:
			CHECK_KEYS(&json, number_keys);
			if (!dpml_json_number(&json, "lower", &any_number, &spec->label_lower))
				dpml_json_reject(&json, "lower", "a finite number");
			if (!dpml_json_number(&json, "upper", &any_number, &spec->label_upper))
				dpml_json_reject(&json, "upper", "a finite number");
			if (!(spec->label_lower < spec->label_upper) || !isfinite(spec->label_upper - spec->label_lower))
				dpml_json_reject(&json, "lower", "less than \"upper\", by a finite difference");
			break;
	}
}

DpmlSpec *
dpml_spec_parse(Jsonb *jsonb)
{
	DpmlSpec   *spec = palloc0(sizeof(DpmlSpec));
	DpmlJson	json;
	JsonbValue	label;
	JsonbValue	projection;

	dpml_json_open(&json, &jsonb->root, "the specification");
	CHECK_KEYS(&json, spec_keys);
	parse_columns(spec, &json);
	spec->encoder.norm = dpml_json_choice(&json, "norm", norm_names, lengthof(norm_names), DPML_NORMALIZE);
	spec->block_kind = dpml_json_choice(&json, "format", format_names, lengthof(format_names), DPML_DENSE);
	if (dpml_json_find(&json, "projection", &projection))
	{
		if (projection.type != jbvBinary)
			dpml_json_reject(&json, "projection", "an object");
		parse_projection(spec, projection.val.binary.data);
	}
	if (dpml_json_find(&json, "label", &label))
	{
		if (label.type != jbvBinary)
			dpml_json_reject(&json, "label", "an object");
		parse_label(spec, label.val.binary.data);
	}
	return spec;
}
