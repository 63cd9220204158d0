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

#include "fields.h"

#include "kernels/block.h"

struct DpmlReader
{
	DpmlSpec   *spec;
	DpmlValue  *row;			/* one a column */
	double	   *work;			/* one a feature, as are the next two */
	float	   *features;
	uint32	   *columns;		/* of the features that are not 0; CSR only */
	/* the row type: */
	MemoryContext type_context;
	TupleDesc	desc;
	Oid			type;			/* InvalidOid: none is known */
	int32		typmod;
	TypeCacheEntry *entry;		/* of a named type, to notice that it changed */
	uint64		identifier;
	DpmlField  *fields;			/* one a column, then the label's */
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
	/* not touched before a row is: a sparse row touches little of it */
	reader->work = palloc(((Size) encoder->n_raw + encoder->n_features) * sizeof(double));
	reader->features = palloc(encoder->n_features * sizeof(float));
	if (reader->spec->block_kind == DPML_CSR)
		reader->columns = palloc(encoder->n_features * sizeof(uint32));
	reader->type_context = AllocSetContextCreate(context, "dpml row type", ALLOCSET_SMALL_SIZES);
	MemoryContextSwitchTo(old);
	return reader;
}

const DpmlSpec *
dpml_reader_spec(const DpmlReader *reader)
{
	return reader->spec;
}

static const DpmlField *
label_field(DpmlReader *reader)
{
	DpmlField  *field = &reader->fields[reader->spec->encoder.n_columns];
	MemoryContext old;

	if (likely(reader->label_resolved))
		return field;
	old = MemoryContextSwitchTo(reader->type_context);
	dpml_field_resolve_label(reader->spec, reader->desc, field);
	MemoryContextSwitchTo(old);
	reader->label_resolved = true;
	return field;
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
	reader->fields = palloc0((n + 1) * sizeof(DpmlField));
	reader->values = palloc((reader->desc->natts + 1) * sizeof(Datum));
	reader->nulls = palloc((reader->desc->natts + 1) * sizeof(bool));
	dpml_fields_locate(reader->spec, reader->desc, reader->fields);
	for (int i = 0; i < n; i++)
		dpml_field_resolve(reader->spec, reader->desc, &reader->fields[i], i);
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

/* Attribute of the record that was opened last. */
static NullableDatum
attribute_of(const DpmlReader *reader, int attribute)
{
	return (NullableDatum) {reader->values[attribute], reader->nulls[attribute]};
}

/* Read the columns of a record into reader->row. */
static void
read_columns(DpmlReader *reader, HeapTupleHeader record)
{
	const DpmlEncoder *encoder = &reader->spec->encoder;

	open_record(reader, record);
	for (int i = 0; i < encoder->n_columns; i++)
	{
		DpmlField  *field = &reader->fields[i];
		DpmlValue  *value = &reader->row[i];
		NullableDatum own = attribute_of(reader, field->attribute);
		NullableDatum indices = {0, true};

		switch (encoder->columns[i].kind)
		{
			case DPML_CATEGORY:
				value->level = own.isnull ? -1 : dpml_levels_find(field->levels, own.value);
				break;
			case DPML_ARRAY:
				value->length = 0;
				value->elements = own.isnull ? NULL : dpml_array_read(&field->array, own.value, &value->length);
				break;
			case DPML_SPARSE:
				if (field->indices >= 0)
					indices = attribute_of(reader, field->indices);
				dpml_sparse_read(&field->sparse, &own, &indices, value);
				break;
			default:
				value->number = own.isnull ? NAN : field->number(own.value);
				break;
		}
	}
}

/* All encoded features of a record, valid until the next call; zeros for NULL. */
const float *
dpml_reader_features(DpmlReader *reader, HeapTupleHeader record)
{
	const DpmlEncoder *encoder = &reader->spec->encoder;

	if (record == NULL)
	{
		memset(reader->features, 0, encoder->n_features * sizeof(float));
		return reader->features;
	}
	read_columns(reader, record);
	dpml_encode_row(encoder, reader->row, reader->work, reader->features);
	return reader->features;
}

/* Keep the features that are not 0. */
static int32
compress(DpmlReader *reader)
{
	int32		n = 0;

	for (int32 j = 0; j < reader->spec->encoder.n_features; j++)
	{
		if (reader->features[j] == 0.0f)
			continue;
		reader->columns[n] = (uint32) j;
		reader->features[n++] = reader->features[j];
	}
	return n;
}

/* The encoded row in the specification's format. */
void
dpml_reader_encode(DpmlReader *reader, HeapTupleHeader record, DpmlFeatures *row)
{
	const DpmlEncoder *encoder = &reader->spec->encoder;

	row->n = 0;
	row->columns = reader->columns;
	row->values = reader->features;
	if (row->columns == NULL || encoder->projection != NULL)
	{
		(void) dpml_reader_features(reader, record);
		row->n = row->columns == NULL ? encoder->n_features : compress(reader);
	}
	else if (record != NULL)
	{
		read_columns(reader, record);
		row->n = dpml_encode_sparse(encoder, reader->row, reader->work, reader->columns, reader->features);
	}
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
	const DpmlField *field;
	Datum		datum;
	int			level;

	memset(label, 0, sizeof(*label));
	label->index = -1;
	if (record == NULL || spec->label_kind == DPML_LABEL_NONE)
		return;
	field = label_field(reader);
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
