/* SPDX-License-Identifier: PostgreSQL */
/* What the files of the Postgres glue share. */
#ifndef DPML_H
#define DPML_H

#include "compat.h"

#include "access/htup_details.h"
#include "utils/array.h"
#include "utils/jsonb.h"

#include "kernels/block.h"
#include "kernels/encode.h"
#include "kernels/gradient.h"
#include "kernels/loss.h"
#include "kernels/norm.h"
#include "kernels/projection.h"
#include "kernels/schedule.h"
#include "kernels/score.h"
#include "kernels/sgd.h"
#include "kernels/status.h"
#include "kernels/whiten.h"

/* Weights times rows, or steps, between two looks at pending interrupts: with noise in every step some 200 ms. */
#define DPML_NUMBERS_PER_CHECK ((int64) 1 << 24)

/* module.c: settings */

extern int	dpml_work_mem;		/* kB */

/* support.c: contexts, sizes, arrays, blocks */

extern MemoryContext dpml_aggregate_context(FunctionCallInfo fcinfo, const char *aggregate);
extern void *dpml_alloc(MemoryContext context, Size size);
extern Size dpml_weights_count(int32 n_outputs, int32 n_features);
extern int32 dpml_rows_piece(int64 n_weights, int32 rows);
extern ArrayType *dpml_float8_array(const double *values, Size n);
extern const double *dpml_float8_argument(ArrayType *array, const char *name, Size *n);
extern void dpml_open_block(DpmlBlock *block, Datum bytes);
extern bytea *dpml_make_block(const DpmlBlock *block);
extern bool dpml_same_bytes(const void *a, const void *b);
extern Jsonb *dpml_copy_jsonb(MemoryContext context, Jsonb *json);
extern void dpml_random_key(uint8 key[DPML_KEY_BYTES]);

/* json.c: typed reading of a JSON object, every error naming the key and its domain */

typedef struct DpmlJson
{
	JsonbContainer *object;
	const char *where;			/* for errors: "options", "column \"age\"" */
} DpmlJson;

typedef struct DpmlDomain
{
	double		low;
	double		high;
	bool		low_open;		/* low itself is outside */
	bool		integer;
	const char *text;			/* for errors: "a number > 0" */
} DpmlDomain;

extern void dpml_json_open(DpmlJson *json, JsonbContainer *object, const char *where);
extern void dpml_json_check_keys(const DpmlJson *json, const char *const *keys, int n_keys);
extern bool dpml_json_find(const DpmlJson *json, const char *key, JsonbValue *value);
extern bool dpml_json_number(const DpmlJson *json, const char *key, const DpmlDomain *domain, double *out);
extern bool dpml_json_bool(const DpmlJson *json, const char *key, bool absent);
extern char *dpml_json_text(const DpmlJson *json, const char *key, bool scalar);
extern int	dpml_json_choice(const DpmlJson *json, const char *key, const char *const *names, int n_names, int absent);
extern int	dpml_json_texts(const DpmlJson *json, const char *key, int minimum, char ***out);
extern char *dpml_json_scalar_text(const JsonbValue *value);
pg_noreturn extern void dpml_json_refuse(const DpmlJson *json, const char *key, const char *domain);

/* options.c: the options of the aggregates */

/* Models that one dpml.gradient takes. */
#define DPML_MAX_MODELS 64

typedef struct DpmlOptions
{
	DpmlSgdOptions sgd;			/* n_features is 0 unless "features" was given */
	bool		clip_rows;		/* scale longer rows to norm 1 (row form) */
	int64		steps;			/* of a pass over Poisson batches */
	double		sampling;		/* probability that a unit is in a batch; 0 if not given */
} DpmlOptions;

/* What options are for: which of them must be there, and which must not. */
typedef enum DpmlOptionsUse
{
	DPML_FOR_LOSS,				/* all about steps may be there, incomplete */
	DPML_FOR_EPOCH,
	DPML_FOR_POISSON,			/* sampling in the aggregate */
	DPML_FOR_POISSON_STEPS		/* rows drawn before */
} DpmlOptionsUse;

extern Jsonb *dpml_options_argument(FunctionCallInfo fcinfo, int argument, const Jsonb *before);
extern void dpml_options_parse(DpmlOptions *options, Jsonb *json, DpmlOptionsUse use);
extern void dpml_gradient_options_parse(DpmlGradientOptions *options, Jsonb *json);
extern void dpml_hessian_options_parse(DpmlLoss *loss, Jsonb *json);

/* spec.c: the encoder's specification */

typedef enum DpmlLabelKind
{
	DPML_LABEL_NONE,
	DPML_LABEL_BINARY,			/* labels are -1 and +1 */
	DPML_LABEL_CLASSES,			/* 0 .. K-1 */
	DPML_LABEL_NUMBER			/* in [-1, 1] */
} DpmlLabelKind;

typedef struct DpmlNames
{
	int			n;
	char	  **names;
} DpmlNames;

typedef struct DpmlSpec
{
	DpmlEncoder encoder;
	char	  **names;			/* of the record's columns, one for each encoder column */
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

/* reader.c: the values of one record */

typedef struct DpmlReader DpmlReader;

/* A row's own label, in the units of the loss and as the user wrote it. */
typedef struct DpmlLabel
{
	bool		declared;
	double		y;
	int			index;			/* of the class; binary: 0 negative, 1 positive */
	double		value;			/* number: clamped, in label units */
} DpmlLabel;

extern DpmlReader *dpml_reader_create(Jsonb *spec, MemoryContext context);
extern const DpmlSpec *dpml_reader_spec(const DpmlReader *reader);
extern const float *dpml_reader_features(DpmlReader *reader, HeapTupleHeader record);
extern void dpml_reader_label(DpmlReader *reader, HeapTupleHeader record, DpmlLabel *label);

/* levels.c: lookup of a declared level by the value of a column */

typedef struct DpmlLevels DpmlLevels;

extern DpmlLevels *dpml_levels_create(const DpmlNames *names, Oid type);
extern int	dpml_levels_find(const DpmlLevels *levels, Datum value);

/* numbers.c: SQL numbers, dates and timestamps as float8, without an error */

typedef double (*DpmlToNumber) (Datum value);

extern DpmlToNumber dpml_number_reader(Oid type);

typedef struct DpmlArrayReader
{
	bool		vector;			/* pgvector's type, not an array */
	Oid			element;		/* base type of the elements */
	int16		length;
	bool		by_value;
	char		align;
	DpmlToNumber read;
	int			width;			/* elements the specification declares */
	double	   *scratch;		/* width values, for arrays not usable in place */
} DpmlArrayReader;

extern bool dpml_array_reader_init(DpmlArrayReader *reader, Oid array_type, int width);
extern const double *dpml_array_read(DpmlArrayReader *reader, Datum value, int *length);

#endif
