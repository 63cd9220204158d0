/* SPDX-License-Identifier: PostgreSQL */
/*
 * Values of a record, read as a specification says.
 *
 * Kept for the whole query: the parsed specification and the scratch arrays,
 * in the context of the reader; and where the columns are in the record, for
 * one row type at a time, in a child context that a new row type resets.
 * Values live in the caller's per-row context.  Which errors there are depends
 * on the specification and the row type, never on a row.
 */
#include "reader.h"

#include <math.h>

#include "catalog/pg_type.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/typcache.h"

#include "levels.h"
#include "numbers.h"
#include "support.h"

/* In place of a field's number: how many fields of a record have its name. */
#define NONE (-1)
#define SEVERAL (-2)

/* Place of a column in the record, and how to read it. */
typedef struct Field
{
	int			attribute;		/* from 0; NONE or SEVERAL (label only) */
	DpmlToNumber number;		/* a numeric column or label */
	DpmlLevels *levels;			/* a category, or a label with classes */
	DpmlArrayReader array;		/* an array column */
} Field;

struct DpmlReader
{
	DpmlSpec   *spec;
	DpmlValue  *row;			/* one a column */
	double	   *work;			/* one a feature */
	float	   *features;
	/* the row type: */
	MemoryContext type_context;
	TupleDesc	desc;
	Oid			type;			/* InvalidOid: none is known */
	int32		typmod;
	TypeCacheEntry *entry;		/* of a named type, to notice that it changed */
	uint64		identifier;
	Field	   *fields;			/* one a column, then the label's */
	bool		label_resolved;	/* done late: predicting must not mind the label's type */
	Datum	   *values;			/* one an attribute */
	bool	   *nulls;
};

/* Parse a specification; the reader belongs to the context. */
DpmlReader *
dpml_reader_create(Jsonb *spec, MemoryContext context)
{
	MemoryContext old = MemoryContextSwitchTo(context);
	DpmlReader *reader = palloc0(sizeof(DpmlReader));
	DpmlEncoder *encoder;

	reader->spec = dpml_spec_parse(spec);
	encoder = &reader->spec->encoder;
	reader->row = palloc0(encoder->n_columns * sizeof(DpmlValue));
	reader->work = palloc0(((Size) encoder->n_raw + encoder->n_features) * sizeof(double));
	reader->features = palloc0(encoder->n_features * sizeof(float));
	reader->type_context = AllocSetContextCreate(context, "dpml row type", ALLOCSET_SMALL_SIZES);
	MemoryContextSwitchTo(old);
	return reader;
}

const DpmlSpec *
dpml_reader_spec(const DpmlReader *reader)
{
	return reader->spec;
}

static int
find_attribute(TupleDesc desc, const char *name)
{
	int			found = NONE;

	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute attribute = TupleDescAttr(desc, i);

		if (!attribute->attisdropped && strcmp(NameStr(attribute->attname), name) == 0)
			found = found == NONE ? i : SEVERAL;
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

static void
resolve_field(DpmlReader *reader, Field *field, int i)
{
	const DpmlSpec *spec = reader->spec;
	const DpmlColumn *column = &spec->encoder.columns[i];
	const char *name = spec->names[i];
	Oid			type = getBaseType(TupleDescAttr(reader->desc, field->attribute)->atttypid);

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
		default:
			field->number = dpml_number_reader(type);
			if (field->number == NULL)
				reject_type("a number", name, type, NUMBER_TYPES);
			break;
	}
}

static Field *
resolve_label(DpmlReader *reader)
{
	const DpmlSpec *spec = reader->spec;
	Field	   *field = &reader->fields[spec->encoder.n_columns];
	MemoryContext old;
	Oid			type;

	if (likely(reader->label_resolved))
		return field;
	if (field->attribute == SEVERAL)
		reject_several(spec->label_name);
	if (field->attribute == NONE)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_COLUMN),
				 errmsg("the record has no label column \"%s\"", spec->label_name)));
	type = getBaseType(TupleDescAttr(reader->desc, field->attribute)->atttypid);
	old = MemoryContextSwitchTo(reader->type_context);
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
	MemoryContextSwitchTo(old);
	reader->label_resolved = true;
	return field;
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

/* By name; by position where the names are those of ROW(a, b, c) and the count fits. */
static void
locate_fields(DpmlReader *reader)
{
	const DpmlSpec *spec = reader->spec;
	int			n = spec->encoder.n_columns;
	bool		has_label = spec->label_kind != DPML_LABEL_NONE;
	int			natts = reader->desc->natts;

	for (int i = 0; i <= n; i++)
	{
		const char *name = i < n ? spec->names[i] : spec->label_name;

		reader->fields[i].attribute = name != NULL ? find_attribute(reader->desc, name) : NONE;
	}
	if ((natts == n || (has_label && natts == n + 1)) && is_row_constructor(reader->desc))
	{
		for (int i = 0; i <= n; i++)
			reader->fields[i].attribute = i < natts ? i : NONE;
	}
	for (int i = 0; i < n; i++)
	{
		if (reader->fields[i].attribute == SEVERAL)
			reject_several(spec->names[i]);
		if (reader->fields[i].attribute == NONE)
			ereport(ERROR,
					(errcode(ERRCODE_UNDEFINED_COLUMN),
					 errmsg("the record has no column \"%s\"", spec->names[i]),
					 errhint("Give a record with all columns of the specification by name, "
							 "or ROW() of exactly its %d columns in order%s.", n,
							 has_label ? ", the label last or left out" : "")));
	}
}

/* Learn a row type. */
static void
resolve_type(DpmlReader *reader, Oid type, int32 typmod)
{
	int			n = reader->spec->encoder.n_columns;
	TupleDesc	desc;
	MemoryContext old;

	reader->type = InvalidOid;	/* stays so if there is an error */
	MemoryContextReset(reader->type_context);
	old = MemoryContextSwitchTo(reader->type_context);
	desc = lookup_rowtype_tupdesc_domain(type, typmod, false);
	reader->desc = CreateTupleDescCopy(desc);
	ReleaseTupleDesc(desc);
	reader->fields = palloc0((n + 1) * sizeof(Field));
	reader->values = palloc((reader->desc->natts + 1) * sizeof(Datum));
	reader->nulls = palloc((reader->desc->natts + 1) * sizeof(bool));
	locate_fields(reader);
	for (int i = 0; i < n; i++)
		resolve_field(reader, &reader->fields[i], i);
	reader->label_resolved = false;
	MemoryContextSwitchTo(old);

	reader->type = type;
	reader->typmod = typmod;
	reader->entry = NULL;
	if (type != RECORDOID)
	{
		reader->entry = lookup_type_cache(type, TYPECACHE_TUPDESC);
		reader->identifier = reader->entry->tupDesc_identifier;
	}
}

/* Take the record apart into reader->values and nulls. */
static void
open_record(DpmlReader *reader, HeapTupleHeader record)
{
	Oid			type = HeapTupleHeaderGetTypeId(record);
	int32		typmod = HeapTupleHeaderGetTypMod(record);
	HeapTupleData tuple;

	if (unlikely(type != reader->type || typmod != reader->typmod ||
				 (reader->entry != NULL && reader->entry->tupDesc_identifier != reader->identifier)))
		resolve_type(reader, type, typmod);
	tuple.t_len = HeapTupleHeaderGetDatumLength(record);
	ItemPointerSetInvalid(&tuple.t_self);
	tuple.t_tableOid = InvalidOid;
	tuple.t_data = record;
	heap_deform_tuple(&tuple, reader->desc, reader->values, reader->nulls);
}

/* The encoded features of a record, valid until the next call; zeros for NULL. */
const float *
dpml_reader_features(DpmlReader *reader, HeapTupleHeader record)
{
	const DpmlEncoder *encoder = &reader->spec->encoder;

	if (record == NULL)
	{
		memset(reader->features, 0, encoder->n_features * sizeof(float));
		return reader->features;
	}
	open_record(reader, record);
	for (int i = 0; i < encoder->n_columns; i++)
	{
		Field	   *field = &reader->fields[i];
		DpmlValue  *value = &reader->row[i];
		Datum		datum = reader->values[field->attribute];
		bool		isnull = reader->nulls[field->attribute];

		switch (encoder->columns[i].kind)
		{
			case DPML_CATEGORY:
				value->level = isnull ? -1 : dpml_levels_find(field->levels, datum);
				break;
			case DPML_ARRAY:
				value->length = 0;
				value->elements = isnull ? NULL : dpml_array_read(&field->array, datum, &value->length);
				break;
			default:
				value->number = isnull ? NAN : field->number(datum);
				break;
		}
	}
	dpml_encode_row(encoder, reader->row, reader->work, reader->features);
	return reader->features;
}

static void
number_label(const DpmlSpec *spec, double value, DpmlLabel *label)
{
	double		lower = spec->label_lower;
	double		upper = spec->label_upper;

	if (isnan(value))
		return;
	label->declared = true;
	label->value = Min(Max(value, lower), upper);
	label->y = ((label->value - lower) - (upper - label->value)) / (upper - lower);
}

/*
 * The label of the record that dpml_reader_features() saw last.  Undeclared
 * where the record or its label is NULL, or the specification has no label.
 */
void
dpml_reader_label(DpmlReader *reader, HeapTupleHeader record, DpmlLabel *label)
{
	const DpmlSpec *spec = reader->spec;
	Field	   *field;
	Datum		datum;
	int			level;

	memset(label, 0, sizeof(*label));
	label->index = -1;
	if (record == NULL || spec->label_kind == DPML_LABEL_NONE)
		return;
	field = resolve_label(reader);
	if (reader->nulls[field->attribute])
		return;
	datum = reader->values[field->attribute];
	if (spec->label_kind == DPML_LABEL_NUMBER)
	{
		number_label(spec, field->number(datum), label);
		return;
	}
	level = dpml_levels_find(field->levels, datum);
	if (spec->label_kind == DPML_LABEL_CLASSES)
	{
		label->index = level;
		label->y = level;
	}
	else if (level == 0)
	{
		label->index = 1;
		label->y = 1.0;
	}
	else if (level == 1 || spec->label_levels.n == 1)
	{
		label->index = 0;
		label->y = -1.0;
	}
	label->declared = label->index >= 0;
	if (!label->declared)
		label->y = 0.0;
}
