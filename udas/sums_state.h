/* SPDX-License-Identifier: PostgreSQL */
/*
 * The state of aggregates that are sums over blocks: one flat bytea, so that
 * any node can pass it on and combine it.
 *
 *	| DpmlSums | high f64[n] | low f64[n] | weights f64[n_weights] | options, source_size bytes |
 *
 * with n = n_first + n_second.  The sums are high + low (kernels/sums.h).
 * Weights and options are those of the group's first row: what the sums are of.
 * The numbers in the header are checked against the length before any use; what
 * else a state says must fit the options of the call, which are never read from it.
 */
#ifndef DPML_SUMS_STATE_H
#define DPML_SUMS_STATE_H

#include "compat.h"

#include "utils/jsonb.h"

#include "kernels/sums.h"

typedef enum DpmlSumsKind
{
	DPML_SUMS_GAP = 'd',
	DPML_SUMS_GRADIENT = 'g',
	DPML_SUMS_GRAM = 'x'
} DpmlSumsKind;

/* A varlena; the members leave no padding, and data is aligned for doubles. */
typedef struct DpmlSums
{
	int32		length;			/* of the varlena: use SET_VARSIZE */
	uint8		kind;			/* enum DpmlSumsKind */
	uint8		version;
	uint16		pending;		/* rows added since the last fold */
	int64		rows;
	int32		n_first;		/* sums of the result's first array, 0 if it is NULL */
	int32		n_second;		/* of the second one */
	int32		n_weights;
	int32		source_size;	/* bytes of the options as given */
	int64		by_feature;		/* features d if the first sums and the weights are d x .., not .. x d; else 0 */
	double		data[FLEXIBLE_ARRAY_MEMBER];
} DpmlSums;

static inline int64
dpml_sums_count(const DpmlSums *sums)
{
	return (int64) sums->n_first + sums->n_second;
}

static inline double *
dpml_sums_low(DpmlSums *sums)
{
	return sums->data + dpml_sums_count(sums);
}

static inline const double *
dpml_sums_weights(const DpmlSums *sums)
{
	return sums->data + 2 * dpml_sums_count(sums);
}

extern DpmlSums *dpml_sums_create(DpmlSumsKind kind, Size n_first, Size n_second,
								  const double *weights, Size n_weights, const Jsonb *source);
extern DpmlSums *dpml_sums_argument(FunctionCallInfo fcinfo, int argument, DpmlSumsKind kind);
pg_noreturn extern void dpml_sums_reject(DpmlSumsKind kind);
extern void dpml_sums_check_options(const DpmlSums *sums, const Jsonb *source);
extern void dpml_sums_turn(DpmlSums *sums, int64 n_features, bool by_feature);
extern void dpml_sums_added(DpmlSums *sums, int32 rows);
extern int32 dpml_sums_piece(int64 row_products);
extern Datum dpml_sums_combine(FunctionCallInfo fcinfo, DpmlSumsKind kind);
extern Datum dpml_sums_final(FunctionCallInfo fcinfo, DpmlSumsKind kind);

#endif
