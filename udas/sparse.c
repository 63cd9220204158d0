/* SPDX-License-Identifier: PostgreSQL */
/*
 * Sparse columns: a pair of arrays, or pgvector's sparsevec, as elements at rising places.
 *
 * The room for a row is reserved once, and only as much of it is touched as a row has elements.  A
 * row that is no sparse row has no elements: silently, as an error would show it (privacy/README.md,
 * "Bad rows never show").
 */
#include "sparse.h"

#include "catalog/pg_type.h"
#include "miscadmin.h"

/* Layout of a value of pgvector's sparsevec on disk, since its version 0.7: indices from 0, then float4 values. */
typedef struct PgSparseVector
{
	int32		vl_len_;
	int32		dim;
	int32		nnz;
	int32		unused;
	int32		indices[FLEXIBLE_ARRAY_MEMBER];
} PgSparseVector;

/*
 * Prepare for values of two types, in the current context; false if they are no sparse column.  Without a type of
 * indices the values must be pgvector's sparsevec.
 */
bool
dpml_sparse_reader_init(DpmlSparseReader *reader, Oid values_type, Oid indices_type, int width, int first_index)
{
	Size		room = (Size) width;

	memset(reader, 0, sizeof(*reader));
	reader->vector = !OidIsValid(indices_type);
	if (reader->vector)
	{
		if (!dpml_is_pgvector(values_type, "sparsevec"))
			return false;
		reader->values.scratch = palloc(room * sizeof(double));
		reader->indices.scratch = palloc(room * sizeof(double));
	}
	else
	{
		if (!dpml_array_reader_init(&reader->values, values_type, width) ||
			!dpml_array_reader_init(&reader->indices, indices_type, width) || reader->values.vector ||
			(reader->indices.element != INT2OID && reader->indices.element != INT4OID &&
			 reader->indices.element != INT8OID))
			return false;
		reader->values.at_most = true;
		reader->indices.at_most = true;
	}
	reader->width = width;
	reader->first_index = first_index;
	reader->places = palloc(room * sizeof(uint32));
	reader->elements = palloc(room * sizeof(double));
	reader->order = palloc(room * sizeof(uint64));
	return true;
}

static int
compare_order(const void *a, const void *b)
{
	uint64		x = *(const uint64 *) a;
	uint64		y = *(const uint64 *) b;

	/* PostgreSQL's qsort takes n^2 steps for some orders */
	CHECK_FOR_INTERRUPTS();
	return (x > y) - (x < y);
}

/* Bring the elements into the order of their places. */
static const double *
sorted(DpmlSparseReader *reader, int n, const double *elements)
{
	for (int i = 0; i < n; i++)
		reader->order[i] = (uint64) reader->places[i] << 32 | (uint64) i;
	qsort(reader->order, (size_t) n, sizeof(uint64), compare_order);
	for (int i = 0; i < n; i++)
	{
		reader->places[i] = (uint32) (reader->order[i] >> 32);
		reader->elements[i] = elements[(uint32) reader->order[i]];
	}
	return reader->elements;
}

/* The elements and their indices, NaN for NULL, as a value; none where an index is outside or repeated. */
static void
take(DpmlSparseReader *reader, int n, const double *indices, const double *elements, DpmlValue *value)
{
	bool		rising = true;

	for (int i = 0; i < n; i++)
	{
		double		place = indices[i] - reader->first_index;

		if (!(place >= 0 && place < reader->width))
			return;
		reader->places[i] = (uint32) place;
		rising = rising && (i == 0 || reader->places[i] > reader->places[i - 1]);
	}
	if (!rising)
	{
		elements = sorted(reader, n, elements);
		for (int i = 1; i < n; i++)
			if (reader->places[i] == reader->places[i - 1])
				return;
	}
	value->length = n;
	value->elements = elements;
	value->places = reader->places;
}

static void
take_pgvector(DpmlSparseReader *reader, Datum datum, DpmlValue *value)
{
	const PgSparseVector *vector = (const PgSparseVector *) PG_DETOAST_DATUM(datum);
	Size		size = VARSIZE(vector);
	const float4 *elements;

	if (size < offsetof(PgSparseVector, indices) || vector->dim != reader->width || vector->nnz < 0 ||
		vector->nnz > reader->width ||
		size != offsetof(PgSparseVector, indices) + (Size) vector->nnz * (sizeof(int32) + sizeof(float4)))
		return;
	elements = (const float4 *) (vector->indices + vector->nnz);
	for (int i = 0; i < vector->nnz; i++)
	{
		reader->indices.scratch[i] = vector->indices[i];
		reader->values.scratch[i] = elements[i];
	}
	take(reader, vector->nnz, reader->indices.scratch, reader->values.scratch, value);
}

/* The elements that a row gives, valid until the next call; indices are not looked at for pgvector's type. */
void
dpml_sparse_read(DpmlSparseReader *reader, const NullableDatum *values, const NullableDatum *indices, DpmlValue *value)
{
	const double *elements;
	const double *places;
	int			n_elements;
	int			n_places;

	value->length = 0;
	value->elements = NULL;
	if (values->isnull || (!reader->vector && indices->isnull))
		return;
	if (reader->vector)
	{
		take_pgvector(reader, values->value, value);
		return;
	}
	elements = dpml_array_read(&reader->values, values->value, &n_elements);
	places = dpml_array_read(&reader->indices, indices->value, &n_places);
	if (elements != NULL && places != NULL && n_elements == n_places)
		take(reader, n_elements, places, elements, value);
}
