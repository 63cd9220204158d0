/* SPDX-License-Identifier: PostgreSQL */
/* States of sums over blocks: made, checked, combined, turned into a result. */
#include "sums_state.h"

#include "funcapi.h"
#include "miscadmin.h"
#include "utils/memutils.h"

#include "support.h"

#define SUMS_VERSION 2

/* Multiplications between two interrupt checks: some 50 ms. */
#define PRODUCTS_PER_CHECK ((int64) 1 << 26)

StaticAssertDecl(offsetof(DpmlSums, data) == 40, "a state has no padding");

static const char *
aggregate_name(DpmlSumsKind kind)
{
	if (kind == DPML_SUMS_GAP)
		return "scd_gap";
	return kind == DPML_SUMS_GRADIENT ? "gradient" : "gram";
}

/* A state that came from elsewhere, or from another version. */
void
dpml_sums_reject(DpmlSumsKind kind)
{
	ereport(ERROR,
			(errcode(ERRCODE_DATA_CORRUPTED),
			 errmsg("bytes are not a state of this dpml.%s", aggregate_name(kind)),
			 errhint("States are made by the aggregate itself, on machines of the same byte order and version.")));
}

/* Bytes of a state; each number is at most 2^31, so nothing overflows. */
static Size
state_size(Size n, Size n_weights, Size source_size)
{
	return offsetof(DpmlSums, data) + (2 * n + n_weights) * sizeof(double) + source_size;
}

/* A state of zeros in the current context; without options source is NULL. */
DpmlSums *
dpml_sums_create(DpmlSumsKind kind, Size n_first, Size n_second,
				 const double *weights, Size n_weights, const Jsonb *source)
{
	Size		source_size = source != NULL ? VARSIZE(source) : 0;
	Size		size = state_size(n_first + n_second, n_weights, source_size);
	DpmlSums   *sums;

	if (size > MaxAllocSize)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("the state of dpml.%s would be larger than 1 GB", aggregate_name(kind)),
				 errhint("Use fewer features, classes or models.")));
	sums = palloc0(size);
	SET_VARSIZE(sums, size);
	sums->kind = (uint8) kind;
	sums->version = SUMS_VERSION;
	sums->n_first = (int32) n_first;
	sums->n_second = (int32) n_second;
	sums->n_weights = (int32) n_weights;
	sums->source_size = (int32) source_size;
	if (n_weights > 0)
		memcpy(sums->data + 2 * dpml_sums_count(sums), weights, n_weights * sizeof(double));
	if (source_size > 0)
		memcpy(sums->data + 2 * dpml_sums_count(sums) + n_weights, source, source_size);
	return sums;
}

/* Whether the first sums and the weights can be of so many features. */
static bool
can_be_of(const DpmlSums *sums, int64 n_features)
{
	return sums->n_first % n_features == 0 && sums->n_weights % n_features == 0;
}

static bool
good_order(const DpmlSums *sums)
{
	return sums->by_feature == 0 ||
		(sums->kind == DPML_SUMS_GRADIENT && sums->by_feature > 0 && can_be_of(sums, sums->by_feature));
}

/* The state in an argument that is not NULL: in place, unless its bytes have to be unpacked or aligned. */
DpmlSums *
dpml_sums_argument(FunctionCallInfo fcinfo, int argument, DpmlSumsKind kind)
{
	DpmlSums   *sums = (DpmlSums *) PG_GETARG_BYTEA_P(argument);
	Size		size = VARSIZE(sums);

	if ((uintptr_t) sums % sizeof(double) != 0)
	{
		DpmlSums   *copy = palloc(size);

		memcpy(copy, sums, size);
		sums = copy;
	}
	if (size < offsetof(DpmlSums, data) || sums->kind != (uint8) kind || sums->version != SUMS_VERSION ||
		sums->rows < 0 || sums->pending > DPML_FOLD_ROWS ||
		sums->n_first < 0 || sums->n_second < 0 || sums->n_weights < 0 || sums->source_size < 0 ||
		size != state_size((Size) dpml_sums_count(sums), (Size) sums->n_weights, (Size) sums->source_size) ||
		!good_order(sums))
		dpml_sums_reject(kind);
	return sums;
}

static const char *
source_bytes(const DpmlSums *sums)
{
	return (const char *) (dpml_sums_weights(sums) + sums->n_weights);
}

/* The options of a row must be those of the group's first row. */
void
dpml_sums_check_options(const DpmlSums *sums, const Jsonb *source)
{
	if (unlikely((Size) sums->source_size != VARSIZE(source) ||
				 memcmp(source_bytes(sums), source, VARSIZE(source)) != 0))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("options must be the same for all rows of a pass")));
}

/* A matrix of so many rows becomes its transpose. */
static void
transpose(double *values, int64 n_rows, int64 n_columns)
{
	Size		size = (Size) (n_rows * n_columns) * sizeof(double);
	double	   *old = MemoryContextAllocHuge(CurrentMemoryContext, Max(size, 1));

	memcpy(old, values, size);
	for (int64 i = 0; i < n_rows; i++)
		for (int64 j = 0; j < n_columns; j++)
			values[j * n_rows + i] = old[i * n_columns + j];
	pfree(old);
}

/* Put the first sums and the weights, of n_features, by feature or by output. */
void
dpml_sums_turn(DpmlSums *sums, int64 n_features, bool by_feature)
{
	double	   *arrays[] = {sums->data, dpml_sums_low(sums), sums->data + 2 * dpml_sums_count(sums)};

	if (by_feature == (sums->by_feature != 0))
		return;
	for (int i = 0; i < 3; i++)
	{
		int64		n_outputs = (i < 2 ? sums->n_first : sums->n_weights) / n_features;

		transpose(arrays[i], by_feature ? n_outputs : n_features, by_feature ? n_features : n_outputs);
	}
	sums->by_feature = by_feature ? n_features : 0;
}

/* Rows (at most a piece) have been added to low. */
void
dpml_sums_added(DpmlSums *sums, int32 rows)
{
	int64		pending = (int64) sums->pending + rows;

	sums->rows += rows;
	if (pending >= DPML_FOLD_ROWS)
	{
		dpml_sums_fold(dpml_sums_count(sums), sums->data, dpml_sums_low(sums));
		pending = 0;
	}
	sums->pending = (uint16) pending;
}

/* Rows to take at once, of so many multiplications each, after an interrupt check. */
int32
dpml_sums_piece(int64 row_products)
{
	int64		rows = PRODUCTS_PER_CHECK / Max(row_products, 1);

	CHECK_FOR_INTERRUPTS();
	return (int32) Max(Min(rows, DPML_FOLD_ROWS), 1);
}

/* Do both states sum the same, at the same weights and with the same options? */
static bool
same_sums(const DpmlSums *a, const DpmlSums *b)
{
	return a->by_feature == b->by_feature && a->n_first == b->n_first && a->n_second == b->n_second &&
		a->n_weights == b->n_weights && a->source_size == b->source_size &&
		memcmp(dpml_sums_weights(a), dpml_sums_weights(b),
			   (Size) a->n_weights * sizeof(double) + (Size) a->source_size) == 0;
}

/* The state, or a copy of it that is by feature or by output as another one is. */
static DpmlSums *
in_order_of(const DpmlSums *other, DpmlSums *sums)
{
	int64		n_features = Max(other->by_feature, sums->by_feature);
	DpmlSums   *turned;

	if (other->by_feature == sums->by_feature || !can_be_of(sums, n_features))
		return sums;
	turned = palloc(VARSIZE(sums));
	memcpy(turned, sums, VARSIZE(sums));
	dpml_sums_turn(turned, n_features, other->by_feature != 0);
	return turned;
}

/*
 * Add the second state to the first one, in place.  The second is neither changed nor kept: a planner may pass it to
 * several groups.  Where it is the result, the executor copies it, as it does any result in memory that is not its own.
 */
Datum
dpml_sums_combine(FunctionCallInfo fcinfo, DpmlSumsKind kind)
{
	DpmlSums   *sums;
	DpmlSums   *more;

	(void) dpml_aggregate_context(fcinfo, aggregate_name(kind));
	CHECK_FOR_INTERRUPTS();
	if (PG_ARGISNULL(0) && PG_ARGISNULL(1))
		PG_RETURN_NULL();
	if (PG_ARGISNULL(0) || PG_ARGISNULL(1))
		PG_RETURN_POINTER(dpml_sums_argument(fcinfo, PG_ARGISNULL(0) ? 1 : 0, kind));
	sums = dpml_sums_argument(fcinfo, 0, kind);
	more = in_order_of(sums, dpml_sums_argument(fcinfo, 1, kind));
	if (!same_sums(sums, more))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("states of dpml.%s with different weights or options cannot be combined",
						aggregate_name(kind)),
				 errhint("Weights and options must be the same for all rows of a pass.")));
	dpml_sums_add(dpml_sums_count(sums), sums->data, dpml_sums_low(sums), more->data, dpml_sums_low(more));
	sums->rows += more->rows;
	sums->pending = 0;
	PG_RETURN_POINTER(sums);
}

/* n sums; those by feature, of n_features, are put by output. */
static Datum
sums_array(const double *high, const double *low, int32 n, int64 n_features)
{
	double	   *values = palloc((Size) n * sizeof(double));

	for (int32 i = 0; i < n; i++)
		values[i] = high[i] + low[i];
	if (n_features > 0)
		transpose(values, n_features, n / n_features);
	return PointerGetDatum(dpml_float8_array(values, (Size) n));
}

/* The result: both arrays, NULL where nothing was summed, and the number of rows.  The state stays as it is. */
Datum
dpml_sums_final(FunctionCallInfo fcinfo, DpmlSumsKind kind)
{
	TupleDesc	desc;
	Datum		values[3] = {0};
	bool		nulls[3] = {true, true, false};

	(void) dpml_aggregate_context(fcinfo, aggregate_name(kind));
	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE || desc->natts != 3)
		elog(ERROR, "the result of dpml.%s has not three columns", aggregate_name(kind));
	if (!PG_ARGISNULL(0))
	{
		DpmlSums   *sums = dpml_sums_argument(fcinfo, 0, kind);
		const double *low = dpml_sums_low(sums);

		nulls[0] = sums->n_first == 0;
		nulls[1] = sums->n_second == 0;
		if (!nulls[0])
			values[0] = sums_array(sums->data, low, sums->n_first, sums->by_feature);
		if (!nulls[1])
			values[1] = sums_array(sums->data + sums->n_first, low + sums->n_first, sums->n_second, 0);
		values[2] = Int64GetDatum(sums->rows);
	}
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls)));
}
