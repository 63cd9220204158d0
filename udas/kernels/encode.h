/* SPDX-License-Identifier: PostgreSQL */
/*
 * A row of values to a float32 vector of norm at most 1 - 2^-20, or of features
 * in [-1, 1], from public constants alone.  Total: every value has an encoding (privacy/README.md,
 * "Bad rows never show").
 */
#ifndef DPML_ENCODE_H
#define DPML_ENCODE_H

#include <stdint.h>

enum DpmlEncodeConstant
{
	DPML_MAX_BLUR = 67108864	/* pixels that all blurred pixels of a row look at: 2^26, some 100 ms */
};

enum DpmlColumnKind
{
	DPML_NUMERIC = 0,			/* one feature, and one a knot */
	DPML_CATEGORY = 1,			/* one feature a level */
	DPML_ARRAY = 2,				/* one feature an element, each as a numeric */
	DPML_SPARSE = 3				/* an array of which most elements are 0, and only the others are given */
};

enum DpmlScale
{
	DPML_CENTER = 0,			/* middle of the bounds to 0, bounds to -1 and +1 */
	DPML_ZERO_BASED = 1,		/* lower to 0, upper to 1 */
	DPML_STANDARD = 2			/* (v - mean) / sd, clamped to the bounds first where they are finite */
};

enum DpmlNorm
{
	DPML_CLIP = 0,				/* longer rows to norm 1 */
	DPML_NORMALIZE = 1,			/* every row to norm 1; a zero row stays zero */
	DPML_CLIP_VALUES = 2		/* every feature to [-1, 1], whatever the norm of the row */
};

/*
 * An array that is an image, row by row: every feature is the mean of the blur x blur pixels
 * around a pixel (of those inside the image), for every stride-th pixel of every stride-th row.
 */
typedef struct DpmlImage
{
	int32_t		rows;
	int32_t		columns;
	int32_t		blur;			/* odd */
	int32_t		stride;			/* >= 1 */
} DpmlImage;

/* Bounds of a column as the scaled value sees them. */
typedef struct DpmlBounds
{
	double		lower;
	double		upper;
	double		width;			/* upper - lower; halved when half is 0.5 */
	double		half;			/* 1, or 0.5 where the width would overflow */
} DpmlBounds;

typedef struct DpmlColumn
{
	int32_t		kind;			/* enum DpmlColumnKind */
	int32_t		scale;			/* enum DpmlScale; numeric, array and sparse */
	int32_t		log1p;			/* 1: ln(1 + v) of value and bounds before scaling; lower >= 0 */
	int32_t		width;			/* features: 1 and knots, levels, array length, or pixels of the reduced image */
	int32_t		centered;		/* category: 1 subtracts 1/levels from every feature */
	double		lower;			/* public bounds, lower < upper; infinite only for standard */
	double		upper;
	double		mean;			/* standard only */
	double		sd;				/* standard only, > 0 */
	DpmlImage	image;			/* array only; rows = 0 where it is no image */
	int32_t		n_knots;		/* numeric only; 0: no curve, else >= 2, and the bounds are finite */
	const double *knots;		/* within the bounds, rising strictly; after log1p, where the column has it */
	DpmlBounds	bounds;			/* by dpml_complete_column */
} DpmlColumn;

/* The products of the basis functions (basis.h) of two columns, each a category or a curve. */
typedef struct DpmlCross
{
	int32_t		first;			/* of the encoder's columns */
	int32_t		second;
} DpmlCross;

typedef struct DpmlEncoder
{
	const DpmlColumn *columns;
	int32_t		n_columns;
	const DpmlCross *crosses;	/* their features come after those of the columns */
	int32_t		n_crosses;
	int32_t		n_raw;			/* sum of widths, those of crosses included */
	int32_t		n_features;		/* n_raw, or the projection's, plus the intercept */
	int32_t		intercept;		/* 1: a last feature of constant 1 */
	int32_t		norm;			/* enum DpmlNorm */
	const float *projection;	/* (n_features - intercept) x n_raw, row-major; NULL for none */
} DpmlEncoder;

typedef struct DpmlValue
{
	double		number;			/* numeric: NaN for NULL */
	int32_t		level;			/* category: index, or -1 for NULL and unknown */
	int32_t		length;			/* array: elements; another length than width encodes as zeros.  sparse: given ones */
	const double *elements;		/* array, sparse: NaN for NULL elements; NULL: the column encodes as zeros */
	const uint32_t *places;		/* sparse: of the given elements, rising strictly from 0; else the column is zeros */
} DpmlValue;

/* Norm that rows are brought to before they are rounded to float32. */
double		dpml_target_norm(void);

/* Compute what follows from lower, upper and log1p, once: rows are encoded with it. */
void		dpml_complete_column(DpmlColumn *column);

/* Features of an image of which rows and columns are given. */
int32_t		dpml_image_features(const DpmlImage *image);

/* Elements that an array column must have. */
int32_t		dpml_column_length(const DpmlColumn *column);

/*
 * out has n_features floats, work n_raw + n_features doubles.  NaN encodes as 0, an infinity as the nearer bound
 * (0 where that is infinite too), an unknown level as zeros.
 */
void		dpml_encode_row(const DpmlEncoder *encoder, const DpmlValue *values, double *work, float *out);

/*
 * The same row bit for bit, as its features that are not 0: their columns, rising, and their values; returns how
 * many.  The encoder has no projection.  work, columns and out have room for n_features; of a row of
 * sparse columns only as much is touched as it has elements.
 */
int32_t		dpml_encode_sparse(const DpmlEncoder *encoder, const DpmlValue *values, double *work, uint32_t *columns,
							   float *out);

/* 1 if a number of 0 is a feature of 0, as a sparse column needs it; the column is complete. */
int			dpml_keeps_zero(const DpmlColumn *column);

/* Scale x to norm <= 1 if it is longer; a row that is not finite becomes zero. */
void		dpml_clip_row(int32_t n, double *x);

#endif
