/* SPDX-License-Identifier: PostgreSQL */
/* Rows given as float8[] and float8, for the row forms of the aggregates. */
#ifndef DPML_ROWFORM_H
#define DPML_ROWFORM_H

#include "compat.h"

typedef struct DpmlRowForm
{
	int32		n_features;		/* d, > 0 */
	int32		n_classes;		/* K of a loss of several classes, else 0 */
	bool		clip;			/* scale longer rows to norm 1 */
	double	   *zero;			/* d zeros */
	double	   *copy;			/* d, for a row that is clipped */
} DpmlRowForm;

extern void dpml_row_form_init(DpmlRowForm *form, MemoryContext context, int32 n_features, int32 n_outputs,
							   bool clip);
extern int32 dpml_row_form_length(Datum array);
extern const double *dpml_row_form_read(DpmlRowForm *form, const NullableDatum *features,
										const NullableDatum *label, double *y);

#endif
