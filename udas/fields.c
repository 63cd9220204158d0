/* SPDX-License-Identifier: PostgreSQL */
/*
 * Where the columns of a specification are in a record, and how their types are read.  Which errors there are
 * depends on the specification and the row type, never on a row.
 */
#include "fields.h"

#include "catalog/pg_type.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"

/* In place of a field's number: several fields of a record have its name. */
#define SEVERAL (-2)

static int
find_attribute(TupleDesc desc, const char *name)
{
	int			found = DPML_NO_FIELD;

	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute attribute = TupleDescAttr(desc, i);

		if (!attribute->attisdropped && strcmp(NameStr(attribute->attname), name) == 0)
			found = found == DPML_NO_FIELD ? i : SEVERAL;
	}
	return found;
}

static void
reject_several(const char *name)
{
	ereport(ERROR,
			(errcode(ERRCODE_AMBIGUOUS_COLUMN),
			 errmsg("the record has several columns \"%s\"", name),
			 errhint("Which one is meant?  Rename the others, or join with USING.")));
}

static void
reject_type(const char *what, const char *name, Oid type, const char *allowed)
{
	ereport(ERROR,
			(errcode(ERRCODE_DATATYPE_MISMATCH),
			 errmsg("column \"%s\" of type %s cannot be read as %s", name, format_type_be(type), what),
			 errhint("Use one of the types %s.%s", allowed,
					 type == TEXTOID || type == UNKNOWNOID
					 ? "  A NULL or literal without a type needs a cast, such as NULL::integer or 'x'::text."
					 : "")));
}

#define LISTED_TYPES "smallint, integer, bigint, real, double precision, numeric, boolean, date"
#define NUMBER_TYPES LISTED_TYPES ", timestamp, timestamptz"

/* The second column of a sparse pair is looked at with the first. */
static void
resolve_sparse(const DpmlSpec *spec, TupleDesc desc, DpmlField *field, int i, Oid type)
{
	int			width = spec->encoder.columns[i].width;
	Oid			indices = InvalidOid;

	if (field->indices != DPML_NO_FIELD)
	{
		indices = getBaseType(TupleDescAttr(desc, field->indices)->atttypid);
		if (!dpml_array_reader_init(&field->array, type, 1) || field->array.vector)
			reject_type("the values of a sparse column", spec->names[i], type, "array of " NUMBER_TYPES);
	}
	if (!dpml_sparse_reader_init(&field->sparse, type, indices, width, spec->first_index[i]))
	{
		if (OidIsValid(indices))
			reject_type("the indices of a sparse column", spec->index_names[i], indices,
						"array of smallint, integer, bigint");
		reject_type("a sparse vector", spec->names[i], type, "sparsevec of the extension vector");
	}
}

/* Read the type of column i of a specification, in the current context. */
void
dpml_field_resolve(const DpmlSpec *spec, TupleDesc desc, DpmlField *field, int i)
{
	const DpmlColumn *column = &spec->encoder.columns[i];
	const char *name = spec->names[i];
	Oid			type = getBaseType(TupleDescAttr(desc, field->attribute)->atttypid);

	switch (column->kind)
	{
		case DPML_CATEGORY:
			field->levels = dpml_levels_create(&spec->levels[i], type);
			if (field->levels == NULL)
				reject_type("a category", name, type, "text, varchar, char, name, enum, " LISTED_TYPES);
			break;
		case DPML_ARRAY:
			if (!dpml_array_reader_init(&field->array, type, dpml_column_length(column)))
				reject_type("an array", name, type, "array of " NUMBER_TYPES);
			break;
		case DPML_SPARSE:
			resolve_sparse(spec, desc, field, i, type);
			break;
		default:
			field->number = dpml_number_reader(type);
			if (field->number == NULL)
				reject_type("a number", name, type, NUMBER_TYPES);
			break;
	}
}

/* Read the label's type: late, as predicting must not mind it. */
void
dpml_field_resolve_label(const DpmlSpec *spec, TupleDesc desc, DpmlField *field)
{
	Oid			type;

	if (field->attribute == SEVERAL)
		reject_several(spec->label_name);
	if (field->attribute == DPML_NO_FIELD)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_COLUMN),
				 errmsg("the record has no label column \"%s\"", spec->label_name)));
	type = getBaseType(TupleDescAttr(desc, field->attribute)->atttypid);
	if (spec->label_kind == DPML_LABEL_NUMBER)
	{
		field->number = dpml_number_reader(type);
		if (field->number == NULL)
			reject_type("a number", spec->label_name, type, NUMBER_TYPES);
	}
	else
	{
		field->levels = dpml_levels_create(&spec->label_levels, type);
		if (field->levels == NULL)
			reject_type("a class", spec->label_name, type, "text, varchar, char, name, enum, " LISTED_TYPES);
	}
}

/* True if the fields are called f1, f2, ..., which are the names that ROW() gives to any fields. */
static bool
is_row_constructor(TupleDesc desc)
{
	char		name[NAMEDATALEN];

	for (int i = 0; i < desc->natts; i++)
	{
		snprintf(name, sizeof(name), "f%d", i + 1);
		if (strcmp(NameStr(TupleDescAttr(desc, i)->attname), name) != 0)
			return false;
	}
	return desc->tdtypeid == RECORDOID;
}

/* A column of the specification is one column of the record. */
static void
require_field(const DpmlSpec *spec, int attribute, const char *name)
{
	bool		has_label = spec->label_kind != DPML_LABEL_NONE;

	if (attribute == SEVERAL)
		reject_several(name);
	if (attribute == DPML_NO_FIELD)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_COLUMN),
				 errmsg("the record has no column \"%s\"", name),
				 errhint("Give a record with all columns of the specification by name, "
						 "or ROW() of exactly its %d columns in order%s.", spec->n_fields,
						 has_label ? ", the label last or left out" : "")));
}

/* By name; by position where the names are those of ROW(a, b, c) and the count fits. */
void
dpml_fields_locate(const DpmlSpec *spec, TupleDesc desc, DpmlField *fields)
{
	int			n = spec->encoder.n_columns;
	bool		has_label = spec->label_kind != DPML_LABEL_NONE;
	int			natts = desc->natts;

	for (int i = 0; i <= n; i++)
	{
		const char *name = i < n ? spec->names[i] : spec->label_name;

		fields[i].attribute = name != NULL ? find_attribute(desc, name) : DPML_NO_FIELD;
		fields[i].indices = DPML_NO_FIELD;
		if (i < n && spec->index_names[i] != NULL)
			fields[i].indices = find_attribute(desc, spec->index_names[i]);
	}
	if ((natts == spec->n_fields || (has_label && natts == spec->n_fields + 1)) && is_row_constructor(desc))
	{
		int			next = 0;

		for (int i = 0; i <= n; i++)
		{
			fields[i].attribute = next < natts ? next++ : DPML_NO_FIELD;
			if (i < n && spec->index_names[i] != NULL)
				fields[i].indices = next++;
		}
	}
	for (int i = 0; i < n; i++)
	{
		require_field(spec, fields[i].attribute, spec->names[i]);
		if (spec->index_names[i] != NULL)
			require_field(spec, fields[i].indices, spec->index_names[i]);
	}
}
