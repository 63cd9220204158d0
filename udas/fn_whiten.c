/* SPDX-License-Identifier: PostgreSQL */
/* dpml.whiten: the rows of a block, each brought to one norm as a matrix sees it. */
#include "compat.h"

#include <math.h>

#include "sums_state.h"
#include "support.h"

#include "kernels/directions.h"
#include "kernels/sums.h"
#include "kernels/whiten.h"

/* In fn_extra of dpml.whiten: the matrix last seen. */
typedef struct WhitenCall
{
	struct varlena *given;		/* its datum as it came: plain, compressed, or a pointer to where it is stored */
	ArrayType  *array;			/* the same value unpacked; given itself if it is plain */
	const double *p;			/* the elements of array */
	Size		n;				/* elements of p */
	double	   *panels;			/* of p; NULL until a sparse block needs them */
} WhitenCall;

DPML_FUNCTION(dpml_whiten);
DPML_FUNCTION(dpml_whiten_by_directions_of);

static void
forget_matrix(WhitenCall *call)
{
	if ((struct varlena *) call->array != call->given)
		pfree(call->array);
	if (call->panels != NULL)
		pfree(call->panels);
	pfree(call->given);
	pfree(call);
}

/* Copy and unpack a matrix into the current context. */
static WhitenCall *
read_matrix(const struct varlena *given, const char *name)
{
	WhitenCall *call = palloc0(sizeof(WhitenCall));

	call->given = palloc(VARSIZE_ANY(given));
	memcpy(call->given, given, VARSIZE_ANY(given));
	call->array = DatumGetArrayTypeP(PointerGetDatum(call->given));
	call->p = dpml_finite_argument(call->array, name, &call->n);
	return call;
}

/*
 * The matrix in an argument, read once.  A value that is stored out of line is
 * known by its toast pointer, which no other value has while a query runs; any
 * other by all its bytes, as its memory may hold another value now.
 */
static WhitenCall *
get_matrix(FunctionCallInfo fcinfo, int argument, const char *name)
{
	WhitenCall *call = fcinfo->flinfo->fn_extra;
	struct varlena *given = PG_GETARG_RAW_VARLENA_P(argument);
	MemoryContext old;

	if (VARATT_IS_EXTERNAL(given) && !VARATT_IS_EXTERNAL_ONDISK(given))
		given = (struct varlena *) PG_GETARG_ARRAYTYPE_P(argument);
	if (likely(call != NULL && VARSIZE_ANY(call->given) == VARSIZE_ANY(given) &&
			   memcmp(call->given, given, VARSIZE_ANY(given)) == 0))
		return call;
	fcinfo->flinfo->fn_extra = NULL;
	if (call != NULL)
		forget_matrix(call);
	old = MemoryContextSwitchTo(fcinfo->flinfo->fn_mcxt);
	call = read_matrix(given, name);
	MemoryContextSwitchTo(old);
	fcinfo->flinfo->fn_extra = call;
	return call;
}

/* The panels of a d x d matrix, as sparse rows read it. */
static void
make_panels(WhitenCall *call, MemoryContext context, int32 d)
{
	call->panels = dpml_alloc(context, (Size) dpml_whiten_panels_size(d) * sizeof(double));
	dpml_whiten_panels(d, call->p, call->panels);
}

static void
require_positive(double value, const char *name)
{
	if (!(value > 0.0 && isfinite(value)))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must be a number > 0", name)));
}

/* (block bytea, p float8[], norm float8), STRICT */
Datum
dpml_whiten(PG_FUNCTION_ARGS)
{
	double		norm = PG_GETARG_FLOAT8(2);
	WhitenCall *call;
	DpmlBlock	block;
	float	   *values;
	double	   *work;
	int64		row_products;
	int32		n;

	require_positive(norm, "norm");
	dpml_open_block(&block, PG_GETARG_DATUM(0));
	call = get_matrix(fcinfo, 1, "p");
	if (call->n != (Size) block.n_features * (Size) block.n_features)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("p must have %zu elements, those of a %d x %d matrix as the block has %d features, not %zu",
						(Size) block.n_features * (Size) block.n_features, block.n_features, block.n_features,
						block.n_features, call->n)));
	if (block.kind == DPML_CSR && call->panels == NULL)
		make_panels(call, fcinfo->flinfo->fn_mcxt, block.n_features);

	values = palloc((Size) block.n_values * sizeof(float));
	row_products = (int64) block.n_features * block.n_features;
	work = palloc((Size) dpml_whiten_memory(block.n_features, DPML_FOLD_ROWS) * sizeof(double));
	for (int32 i = 0; i < block.n_rows; i += n)
	{
		n = Min(dpml_sums_piece(row_products), block.n_rows - i);
		dpml_whiten_rows(&block, call->p, call->panels, norm, i, n, work, values);
	}
	block.values = values;
	PG_RETURN_BYTEA_P(dpml_make_block(&block));
}

/* (block bytea, v float8[], norm float8, scale float8), STRICT */
Datum
dpml_whiten_by_directions_of(PG_FUNCTION_ARGS)
{
	double		norm = PG_GETARG_FLOAT8(2);
	double		scale = PG_GETARG_FLOAT8(3);
	WhitenCall *call;
	DpmlBlock	block;
	float	   *values;
	double	   *work;
	Size		d;
	int32		n_directions;
	int32		n;

	require_positive(norm, "norm");
	require_positive(scale, "scale");
	dpml_open_block(&block, PG_GETARG_DATUM(0));
	call = get_matrix(fcinfo, 1, "v");
	d = (Size) block.n_features;
	if (call->n % d != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("v must have %zu elements a row, as the block has features, not %zu elements in all", d,
						call->n)));
	if (call->n / d > d)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("v must have at most %zu rows, as many as the block has features, not %zu", d, call->n / d)));
	n_directions = (int32) (call->n / d);

	values = palloc((Size) block.n_values * sizeof(float));
	work = palloc((Size) dpml_directions_memory(block.n_features, n_directions, DPML_FOLD_ROWS) * sizeof(double));
	for (int32 i = 0; i < block.n_rows; i += n)
	{
		n = Min(dpml_sums_piece(2 * (int64) call->n + 1), block.n_rows - i);
		dpml_whiten_by_directions(&block, scale, call->p, n_directions, norm, i, n, work, values);
	}
	block.values = values;
	PG_RETURN_BYTEA_P(dpml_make_block(&block));
}
