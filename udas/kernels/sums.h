/* SPDX-License-Identifier: PostgreSQL */
/*
 * Long sums of doubles, as high + low: terms are added to low, plainly, and
 * every DPML_FOLD_ROWS rows low is folded into high, which leaves in low the
 * exact rounding error of that.  The error of the whole is about that of a
 * plain sum of DPML_FOLD_ROWS rows, however many rows there are.
 *
 * Source: Knuth, The Art of Computer Programming 2, 4.2.2, theorem B (two-sum).
 */
#ifndef DPML_SUMS_H
#define DPML_SUMS_H

#include <stdint.h>

enum DpmlSumsConstant
{
	DPML_FOLD_ROWS = 1024
};

/* high + low stays what it is, and low becomes small. */
void		dpml_sums_fold(int64_t n, double *high, double *low);

/* Add other sums; both sides may have been folded or not. */
void		dpml_sums_add(int64_t n, double *high, double *low, const double *other_high, const double *other_low);

#endif
