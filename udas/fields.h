/* SPDX-License-Identifier: PostgreSQL */
/* The columns of a specification in a record. */
#ifndef DPML_FIELDS_H
#define DPML_FIELDS_H

#include "compat.h"

#include "access/tupdesc.h"

#include "levels.h"
#include "numbers.h"
#include "sparse.h"
#include "spec.h"

#define DPML_NO_FIELD (-1)

/* Place of a column in the record, and how to read it. */
typedef struct DpmlField
{
	int			attribute;		/* from 0; below 0: no field, or (label only) several */
	DpmlToNumber number;		/* a numeric column or label */
	DpmlLevels *levels;			/* a category, or a label with classes */
	DpmlArrayReader array;		/* an array column */
	int			indices;		/* attribute of the indices of a sparse pair; below 0: none */
	DpmlSparseReader sparse;	/* a sparse column */
} DpmlField;

extern void dpml_fields_locate(const DpmlSpec *spec, TupleDesc desc, DpmlField *fields);
extern void dpml_field_resolve(const DpmlSpec *spec, TupleDesc desc, DpmlField *field, int i);
extern void dpml_field_resolve_label(const DpmlSpec *spec, TupleDesc desc, DpmlField *field);

#endif
