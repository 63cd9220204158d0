/* SPDX-License-Identifier: PostgreSQL */
/* Lookup of a declared level by the value of a column. */
#ifndef DPML_LEVELS_H
#define DPML_LEVELS_H

#include "compat.h"

/* Declared levels, or other names, in their order. */
typedef struct DpmlNames
{
	int			n;
	char	  **names;
} DpmlNames;

typedef struct DpmlLevels DpmlLevels;

extern DpmlLevels *dpml_levels_create(const DpmlNames *names, Oid type);
extern int	dpml_levels_find(const DpmlLevels *levels, Datum value);

#endif
