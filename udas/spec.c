/* SPDX-License-Identifier: PostgreSQL */
/* The encoder's specification, from JSON.  Everything is allocated in the current context. */
#include "spec.h"

#include <math.h>

#include "miscadmin.h"
#include "utils/memutils.h"

#include "json.h"
#include "spec_column.h"

#include "kernels/basis.h"
#include "kernels/block.h"
#include "kernels/projection.h"

static const char *const spec_keys[] = {"columns", "intercept", "norm", "format", "label", "projection", "crosses"};
static const char *const format_names[] = {"dense", "csr"};	/* enum DpmlBlockKind */
static const char *const norm_names[] = {"clip", "normalize", "clip_values"};
static const char *const label_kinds[] = {"binary", "classes", "number"};	/* enum DpmlLabelKind - 1 */

static const char *const projection_keys[] = {"features", "seed"};
static const char *const binary_keys[] = {"name", "kind", "positive", "negative"};
static const char *const classes_keys[] = {"name", "kind", "classes"};
static const char *const number_keys[] = {"name", "kind", "lower", "upper"};

static const char pairs_of_names[] = "an array of pairs of different columns, by their names";

static const DpmlDomain any_number = {-HUGE_VAL, HUGE_VAL, false, false, "a finite number"};
static const DpmlDomain element_count = {1, DPML_MAX_FEATURES, false, true, "an integer from 1 to 1048576"};

/* Entries between two interrupt checks. */
#define PROJECTION_PIECE ((int64) 1 << 20)

static const DpmlDomain public_seed = {0, 9007199254740992.0, false, true, "an integer from 0 to 2^53"};

/* Parse the columns; returns how many features they are. */
static int64
parse_columns(DpmlSpec *spec, const DpmlJson *json)
{
	static const char domain[] = "an array of 1 to 1048576 columns";
	JsonbContainer *array = NULL;
	int			n = dpml_json_array(json, "columns", 1, domain, &array);
	DpmlColumn *columns;
	int64		n_features = 0;

	if (n == 0)
		dpml_json_reject(json, "columns", domain);
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
		dpml_spec_column(spec, &columns[i], i, item->val.binary.data);
		n_features += columns[i].width;
		spec->n_fields += spec->index_names[i] != NULL ? 2 : 1;
	}
	spec->encoder.columns = columns;
	spec->encoder.n_columns = n;
	return n_features;
}

/* The column of a name that a cross gives, if it may be crossed. */
static int32
crossed_column(const DpmlSpec *spec, const DpmlJson *json, const JsonbValue *name)
{
	int			i = 0;

	if (name == NULL || name->type != jbvString)
		dpml_json_reject(json, "crosses", pairs_of_names);
	while (i < spec->encoder.n_columns &&
		   (strlen(spec->names[i]) != (size_t) name->val.string.len ||
			memcmp(spec->names[i], name->val.string.val, name->val.string.len) != 0))
		i++;
	if (i == spec->encoder.n_columns)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("\"crosses\" in %s name column \"%.*s\", which is none of \"columns\"", json->where,
						name->val.string.len, name->val.string.val)));
	if (dpml_basis_size(&spec->encoder.columns[i]) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("column \"%s\" has neither levels nor knots, and cannot be crossed", spec->names[i]),
				 errhint("Give a number \"knots\", or make it a category with \"levels\".")));
	return i;
}

/* Parse the crosses; returns how many features they are. */
static int64
parse_crosses(DpmlSpec *spec, const DpmlJson *json)
{
	JsonbContainer *array = NULL;
	int			n = dpml_json_array(json, "crosses", 0, pairs_of_names, &array);
	DpmlCross  *crosses = palloc0(Max(n, 1) * sizeof(DpmlCross));
	int64		n_features = 0;

	for (int i = 0; i < n; i++)
	{
		JsonbValue *pair = getIthJsonbValueFromContainer(array, i);
		int32	   *ends[] = {&crosses[i].first, &crosses[i].second};
		int64		width = 1;

		CHECK_FOR_INTERRUPTS();
		if (pair->type != jbvBinary || !JsonContainerIsArray(pair->val.binary.data) ||
			JsonContainerSize(pair->val.binary.data) != (int) lengthof(ends))
			dpml_json_reject(json, "crosses", pairs_of_names);
		for (int end = 0; end < (int) lengthof(ends); end++)
		{
			*ends[end] = crossed_column(spec, json, getIthJsonbValueFromContainer(pair->val.binary.data, end));
			width *= dpml_basis_size(&spec->encoder.columns[*ends[end]]);
		}
		if (crosses[i].first == crosses[i].second)
			dpml_json_reject(json, "crosses", pairs_of_names);
		n_features += width;
	}
	spec->encoder.crosses = crosses;
	spec->encoder.n_crosses = n;
	return n_features;
}

/* The features of columns and crosses, and the intercept. */
static void
parse_features(DpmlSpec *spec, const DpmlJson *json)
{
	int64		n_features = parse_columns(spec, json);

	n_features += parse_crosses(spec, json);
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
	DPML_CHECK_KEYS(&json, projection_keys);
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
	spec->label_name = dpml_spec_name(&json);
	spec->label_kind = dpml_json_choice(&json, "kind", label_kinds, lengthof(label_kinds), -1) + 1;
	switch (spec->label_kind)
	{
		case DPML_LABEL_BINARY:
			DPML_CHECK_KEYS(&json, binary_keys);
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
			DPML_CHECK_KEYS(&json, classes_keys);
			spec->label_levels.n = dpml_json_texts(&json, "classes", 2, &spec->label_levels.names);
			if (spec->label_levels.n == 0)
				dpml_json_reject(&json, "classes", "given: an array of at least 2 strings, numbers or booleans");
			break;
		default:
			DPML_CHECK_KEYS(&json, number_keys);
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
	DPML_CHECK_KEYS(&json, spec_keys);
	parse_features(spec, &json);
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
