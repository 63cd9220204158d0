/* SPDX-License-Identifier: PostgreSQL */
/*
 * Loading a model from dpml.models, with the rights of the caller.
 *
 * Models stay in the call site's fn_extra, so a query loads each of its models
 * once.  A call site lives as long as a query (in PL/pgSQL at most as long as
 * a transaction), and sees the models as they were when it first used them.
 * Whitening matrices are large, so a call site keeps only those that it uses.
 */
#include "model.h"

#include <math.h>

#include "catalog/namespace.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"

#include "support.h"

static const char *const model_query =
"SELECT task, loss, classes, weights, n_features, encoder, whitening"
" FROM dpml.models WHERE name OPERATOR(pg_catalog.=) $1";

/* In the order of enum DpmlTask. */
static const char *const task_names[] = {"binary", "multiclass", "regression"};

static void
reject_model(const DpmlModel *model, const char *detail)
{
	ereport(ERROR,
			(errcode(ERRCODE_DATA_CORRUPTED),
			 errmsg("model \"%s\" in dpml.models is inconsistent", model->name),
			 errdetail("%s", detail),
			 errhint("Train it again, or restore its row from a backup.")));
}

static void
take_classes(DpmlModel *model, Datum value)
{
	Datum	   *items;
	bool	   *nulls;

	deconstruct_array(DatumGetArrayTypeP(value), TEXTOID, -1, false, TYPALIGN_INT, &items, &nulls, &model->n_classes);
	model->classes = palloc0(Max(model->n_classes, 1) * sizeof(text *));
	for (int i = 0; i < model->n_classes; i++)
	{
		if (nulls[i])
			reject_model(model, "A class is null.");
		model->classes[i] = DatumGetTextPCopy(items[i]);
	}
}

/* Check that the parts of the model fit each other. */
static void
check_model(const DpmlModel *model, const DpmlSpec *spec, Size n_weights, int32 n_features)
{
	DpmlLabelKind kind = spec->label_kind;

	if (n_features != spec->encoder.n_features)
		reject_model(model, "The encoder makes another number of features.");
	if (n_weights != (Size) model->n_outputs * (Size) n_features)
		reject_model(model, "The number of weights does not fit features and classes.");
	if (model->task == DPML_TASK_BINARY && (model->n_classes != 2 || kind != DPML_LABEL_BINARY))
		reject_model(model, "A binary model needs two classes and a binary label.");
	if (model->task == DPML_TASK_MULTICLASS &&
		(model->n_classes < 2 || kind != DPML_LABEL_CLASSES || spec->label_levels.n != model->n_classes))
		reject_model(model, "A multiclass model needs the classes of its label.");
	if (model->task == DPML_TASK_REGRESSION && kind != DPML_LABEL_NUMBER)
		reject_model(model, "A regression model needs the bounds of its label.");
}

/* Check a whitening matrix, and keep it if scores will be divided by its norms. */
static void
take_whitening(DpmlModel *model, Datum value, int32 n_features, bool keep)
{
	ArrayType  *array = DatumGetArrayTypePCopy(value);
	Size		n_values = (Size) n_features * (Size) n_features;
	const double *p = (const double *) ARR_DATA_PTR(array);

	if (ARR_ELEMTYPE(array) != FLOAT8OID || ARR_NDIM(array) != 1 || (Size) ARR_DIMS(array)[0] != n_values)
		reject_model(model, psprintf("The whitening must be a flat array of %zu float8, the square of n_features.",
									 n_values));
	if (array_contains_nulls(array))
		reject_model(model, "The whitening contains a null.");
	for (Size i = 0; i < n_values; i++)
	{
		if (!isfinite(p[i]))
			reject_model(model, "The whitening contains a number that is not finite.");
	}
	if (keep)
	{
		model->whitening = p;
		model->whitened = palloc(n_features * sizeof(double));
	}
	else
		pfree(array);
}

/* Fill the model from the one row of SPI_tuptable; everything is copied into the current context. */
static void
fill_model(DpmlModel *model, DpmlUse use)
{
	HeapTuple	tuple = SPI_tuptable->vals[0];
	TupleDesc	desc = SPI_tuptable->tupdesc;
	Datum		values[7];
	bool		nulls[7];
	char	   *task;
	const double *weights;
	Size		n_weights;

	heap_deform_tuple(tuple, desc, values, nulls);
	if (nulls[0] || nulls[1] || nulls[3] || nulls[4] || nulls[5])
		reject_model(model, "A column is null.");
	task = TextDatumGetCString(values[0]);
	while ((int) model->task < (int) lengthof(task_names) && strcmp(task, task_names[model->task]) != 0)
		model->task++;
	if ((int) model->task == (int) lengthof(task_names))
		reject_model(model, "The task is unknown.");
	model->loss = TextDatumGetCString(values[1]);
	if (model->task != DPML_TASK_REGRESSION && nulls[2])
		reject_model(model, "The classes are null.");
	if (model->task != DPML_TASK_REGRESSION)
		take_classes(model, values[2]);
	model->n_outputs = model->task == DPML_TASK_MULTICLASS ? model->n_classes : 1;

	weights = dpml_float8_argument(DatumGetArrayTypeP(values[3]), "weights in dpml.models", &n_weights);
	model->reader = dpml_reader_create(DatumGetJsonbP(values[5]), CurrentMemoryContext);
	check_model(model, dpml_reader_spec(model->reader), n_weights, DatumGetInt32(values[4]));
	model->weights = palloc(n_weights * sizeof(double));
	memcpy(model->weights, weights, n_weights * sizeof(double));
	model->scores = palloc(model->n_outputs * sizeof(double));
	if (!nulls[6])
		take_whitening(model, values[6], DatumGetInt32(values[4]),
					   use == DPML_USE_VALUES || model->task == DPML_TASK_REGRESSION);
}

/*
 * Refuse a role that may read no model at all, whether there is one of that name or not: PostgreSQL's own
 * message would name the table, and our query, but not what to do.
 */
static void
require_analyst(void)
{
	Oid			table = get_relname_relid("models", get_namespace_oid("dpml", true));
	const char *role = GetUserNameFromId(GetUserId(), false);

	if (OidIsValid(table) && pg_class_aclcheck(table, GetUserId(), ACL_SELECT) != ACLCHECK_OK &&
		pg_attribute_aclcheck_all(table, GetUserId(), ACL_SELECT, ACLMASK_ANY) != ACLCHECK_OK)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("role \"%s\" may not apply models", role),
				 errhint("A superuser does GRANT dpml_analyst TO %s; then whoever owns the model grants it: "
						 "dpml grant MODEL %s.", quote_identifier(role), quote_identifier(role))));
}

/* Read a model; it is allocated in a context of its own below parent. */
static DpmlModel *
load_model(const char *name, DpmlUse use, MemoryContext parent)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "dpml model", ALLOCSET_DEFAULT_SIZES);
	MemoryContext old;
	Oid			types[1] = {TEXTOID};
	Datum		values[1];
	DpmlModel  *model = MemoryContextAllocZero(context, sizeof(DpmlModel));

	model->name = MemoryContextStrdup(context, name);
	require_analyst();
	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
	values[0] = CStringGetTextDatum(name);
	if (SPI_execute_with_args(model_query, 1, types, values, NULL, true, 2) != SPI_OK_SELECT)
		elog(ERROR, "reading dpml.models failed");
	if (SPI_processed != 1)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("model \"%s\" does not exist, or was not granted to you", name),
				 errhint("SELECT name FROM dpml.models lists those that you may use.")));
	old = MemoryContextSwitchTo(context);
	fill_model(model, use);
	MemoryContextSwitchTo(old);
	SPI_finish();
	/* only a complete model outlives an error */
	MemoryContextSetParent(context, parent);
	return model;
}

/* The model of that name, loaded on first use. */
DpmlModel *
dpml_model_get(FunctionCallInfo fcinfo, text *name, DpmlUse use)
{
	DpmlModel  *first = fcinfo->flinfo->fn_extra;
	const char *data = VARDATA_ANY(name);
	size_t		length = VARSIZE_ANY_EXHDR(name);
	DpmlModel  *model;

	for (DpmlModel **link = &first; *link != NULL; link = &(*link)->next)
	{
		model = *link;
		if (strlen(model->name) != length || memcmp(model->name, data, length) != 0)
			continue;
		if (model != first)
		{
			*link = model->next;
			model->next = first;
			fcinfo->flinfo->fn_extra = model;
		}
		return model;
	}
	model = load_model(text_to_cstring(name), use, fcinfo->flinfo->fn_mcxt);
	model->next = first;
	fcinfo->flinfo->fn_extra = model;
	return model;
}
