/* SPDX-License-Identifier: PostgreSQL */
/* The columns of the encoder's specification, from JSON. */
#include "spec_column.h"

#include <math.h>

#include "kernels/block.h"

static const char *const scale_names[] = {"center", "zero_based", "standard"};	/* enum DpmlScale */

typedef enum ColumnWord
{
	WORD_NUMERIC,
	WORD_BOOLEAN,
	WORD_CATEGORY,
	WORD_ARRAY,
	WORD_SPARSE
} ColumnWord;

static const char *const column_kinds[] = {"numeric", "boolean", "category", "array", "sparse"};

static const char *const numeric_keys[] = {"name", "kind", "scale", "lower", "upper", "mean", "sd", "log1p", "knots"};
static const char *const boolean_keys[] = {"name", "kind", "scale"};
static const char *const category_keys[] = {"name", "kind", "levels", "centered"};
static const char *const array_keys[] = {
	"name", "kind", "length", "scale", "lower", "upper", "mean", "sd", "log1p", "image"
};
static const char *const sparse_keys[] = {
	"name", "kind", "length", "indices", "first_index", "scale", "lower", "upper", "mean", "sd", "log1p"
};
static const char *const image_keys[] = {"rows", "columns", "blur", "stride"};

static const DpmlDomain any_number = {-HUGE_VAL, HUGE_VAL, false, false, "a finite number"};
static const DpmlDomain positive = {0, HUGE_VAL, true, false, "a number > 0"};
static const DpmlDomain zero_or_one = {0, 1, false, true, "0 or 1"};
static const DpmlDomain element_count = {1, DPML_MAX_FEATURES, false, true, "an integer from 1 to 1048576"};
static const DpmlDomain rising_places = {
	-HUGE_VAL, HUGE_VAL, false, false, "an array of at least 2 rising numbers between \"lower\" and \"upper\""
};

/* The name of a column or label. */
char *
dpml_spec_name(const DpmlJson *json)
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
	dpml_complete_column(column);
}

/* The places where the curve of a numeric column may bend, as its values are compared with them. */
static void
parse_knots(DpmlColumn *column, const DpmlJson *json)
{
	double	   *knots;
	int			n = dpml_json_numbers(json, "knots", 2, &rising_places, &knots);

	if (n == 0)
		return;
	if (!isfinite(column->lower) || !isfinite(column->upper))
		dpml_json_reject(json, "knots", "with \"lower\" and \"upper\", between which a curve bends");
	if (!(column->lower <= knots[0] && knots[n - 1] <= column->upper))
		dpml_json_reject(json, "knots", rising_places.text);
	for (int i = 0; i < n; i++)
	{
		if (column->log1p)
			knots[i] = log1p(knots[i]);
		if (i > 0 && !(knots[i - 1] < knots[i]))
			dpml_json_reject(json, "knots", rising_places.text);
	}
	column->knots = knots;
	column->n_knots = n;
	column->width += n;
}

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
	DPML_CHECK_KEYS(&json, image_keys);
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

/* Column i of a specification. */
void
dpml_spec_column(DpmlSpec *spec, DpmlColumn *column, int i, JsonbContainer *object)
{
	DpmlJson	json;
	ColumnWord	word;

	dpml_json_open(&json, object, psprintf("column %d of the specification", i + 1));
	spec->names[i] = dpml_spec_name(&json);
	json.where = psprintf("column \"%s\"", spec->names[i]);
	word = dpml_json_choice(&json, "kind", column_kinds, lengthof(column_kinds), -1);
	memset(column, 0, sizeof(*column));
	column->width = 1;
	switch (word)
	{
		case WORD_NUMERIC:
			DPML_CHECK_KEYS(&json, numeric_keys);
			column->kind = DPML_NUMERIC;
			parse_scaling(column, &json);
			parse_knots(column, &json);
			break;
		case WORD_BOOLEAN:
			DPML_CHECK_KEYS(&json, boolean_keys);
			column->kind = DPML_NUMERIC;
			/* two of the three scales: without "standard" */
			column->scale = dpml_json_choice(&json, "scale", scale_names, 2, DPML_CENTER);
			column->upper = 1.0;
			dpml_complete_column(column);
			break;
		case WORD_CATEGORY:
			DPML_CHECK_KEYS(&json, category_keys);
			column->kind = DPML_CATEGORY;
			column->centered = dpml_json_bool(&json, "centered", true);
			spec->levels[i].n = dpml_json_texts(&json, "levels", 1, &spec->levels[i].names);
			if (spec->levels[i].n == 0)
				dpml_json_reject(&json, "levels", "given: an array of at least 1 strings, numbers or booleans");
			column->width = spec->levels[i].n;
			break;
		case WORD_ARRAY:
			DPML_CHECK_KEYS(&json, array_keys);
			column->kind = DPML_ARRAY;
			parse_length(column, &json);
			parse_scaling(column, &json);
			parse_image(spec, column, &json);
			break;
		case WORD_SPARSE:
			DPML_CHECK_KEYS(&json, sparse_keys);
			column->kind = DPML_SPARSE;
			parse_length(column, &json);
			parse_indices(spec, i, &json);
			parse_scaling(column, &json);
			if (!dpml_keeps_zero(column))
				dpml_json_reject(&json, "scale", "one that leaves 0 at 0: elements that are not given are 0");
			break;
	}
}
