/* SPDX-License-Identifier: PostgreSQL */
/* The values of one record, read as a specification says. */
#ifndef DPML_READER_H
#define DPML_READER_H

#include "compat.h"

#include "access/htup_details.h"

#include "spec.h"

typedef struct DpmlReader DpmlReader;

/* A row's own label, in the units of the loss and as the user wrote it. */
typedef struct DpmlLabel
{
	bool		declared;
	double		y;
	int			index;			/* of the class; binary: 0 negative, 1 positive */
	double		value;			/* number: clamped, in label units */
} DpmlLabel;

/* An encoded row, valid until the reader reads the next one. */
typedef struct DpmlFeatures
{
	int32		n;
	const uint32 *columns;		/* of the n features that are not 0; NULL: values has every feature */
	const float *values;
} DpmlFeatures;

extern DpmlReader *dpml_reader_create(Jsonb *spec, MemoryContext context);
extern const DpmlSpec *dpml_reader_spec(const DpmlReader *reader);
extern const float *dpml_reader_features(DpmlReader *reader, HeapTupleHeader record);
extern void dpml_reader_encode(DpmlReader *reader, HeapTupleHeader record, DpmlFeatures *row);
extern void dpml_reader_label(DpmlReader *reader, HeapTupleHeader record, DpmlLabel *label);

#endif
