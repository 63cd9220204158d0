/* SPDX-License-Identifier: PostgreSQL */
/* The encoder's specification. */
#ifndef DPML_SPEC_H
#define DPML_SPEC_H

#include "compat.h"

#include "utils/jsonb.h"

#include "kernels/encode.h"
#include "levels.h"

typedef enum DpmlLabelKind
{
	DPML_LABEL_NONE,
	DPML_LABEL_BINARY,			/* labels are -1 and +1 */
	DPML_LABEL_CLASSES,			/* 0 .. K-1 */
	DPML_LABEL_NUMBER			/* in [-1, 1] */
} DpmlLabelKind;

typedef struct DpmlSpec
{
	DpmlEncoder encoder;
	char	  **names;			/* of the record's columns, one for each encoder column */
	char	  **index_names;	/* of their second columns, the indices of a sparse pair; NULL for the others */
	int32	   *first_index;	/* of a sparse pair: 0 or 1 */
	int32		n_fields;		/* of a record: columns, and second columns */
	DpmlNames  *levels;			/* one for each encoder column; empty unless a category */
	int32		block_kind;		/* enum DpmlBlockKind */
	DpmlLabelKind label_kind;
	char	   *label_name;
	DpmlNames	label_levels;	/* binary: positive[, negative]; classes: all of them */
	double		label_lower;	/* number only */
	double		label_upper;
	double		blur_cost;		/* pixels that the blurred pixels of a row look at */
} DpmlSpec;

extern DpmlSpec *dpml_spec_parse(Jsonb *json);

#endif
