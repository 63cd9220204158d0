/* SPDX-License-Identifier: PostgreSQL */
/* Contexts, checked sizes, float8 arrays, packed blocks and jsonb as SQL values. */
#ifndef DPML_SUPPORT_H
#define DPML_SUPPORT_H

#include "compat.h"

#include "utils/array.h"
#include "utils/jsonb.h"

#include "kernels/block.h"
#include "kernels/random.h"

/* Weights times rows, or steps, between two interrupt checks: with noise in every step some 200 ms. */
#define DPML_NUMBERS_PER_CHECK ((int64) 1 << 24)

extern MemoryContext dpml_aggregate_context(FunctionCallInfo fcinfo, const char *aggregate);
extern void *dpml_state_argument(FunctionCallInfo fcinfo, const char *aggregate);
extern void *dpml_alloc(MemoryContext context, Size size);
extern Size dpml_weights_count(int32 n_outputs, int32 n_features);
extern int32 dpml_rows_piece(int64 n_weights, int32 rows);
extern ArrayType *dpml_float8_array(const double *values, Size n);
extern const double *dpml_float8_argument(ArrayType *array, const char *name, Size *n);
extern const double *dpml_finite_argument(ArrayType *array, const char *name, Size *n);
extern void dpml_take_apart(Datum composite, const char *type, const Oid *wanted, int n, Datum *values, bool *nulls);
extern int64 dpml_steps_before(Datum steps, bool isnull);
extern void dpml_open_block(DpmlBlock *block, Datum bytes);
extern void dpml_block_argument(DpmlBlock *block, const NullableDatum *argument);
extern bytea *dpml_make_block(const DpmlBlock *block);
extern bool dpml_same_bytes(const void *a, const void *b);
extern Jsonb *dpml_copy_jsonb(MemoryContext context, Jsonb *json);
extern void dpml_random_key(uint8 key[DPML_KEY_BYTES]);

#endif
