/* SPDX-License-Identifier: PostgreSQL */
/* SQL numbers, dates and timestamps as float8, without an error. */
#ifndef DPML_NUMBERS_H
#define DPML_NUMBERS_H

#include "compat.h"

typedef double (*DpmlToNumber) (Datum value);

extern DpmlToNumber dpml_number_reader(Oid type);

typedef struct DpmlArrayReader
{
	bool		vector;			/* pgvector's type, not an array */
	Oid			element;		/* base type of the elements */
	int16		length;
	bool		by_value;
	char		align;
	DpmlToNumber read;
	int			width;			/* elements the specification declares */
	bool		at_most;		/* arrays may be shorter */
	double	   *scratch;		/* width values, for arrays not usable in place */
} DpmlArrayReader;

extern bool dpml_is_pgvector(Oid type, const char *name);
extern bool dpml_array_reader_init(DpmlArrayReader *reader, Oid array_type, int width);
extern const double *dpml_array_read(DpmlArrayReader *reader, Datum value, int *length);

#endif
