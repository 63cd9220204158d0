/* SPDX-License-Identifier: PostgreSQL */
/* A stored model, ready to predict. */
#ifndef DPML_MODEL_H
#define DPML_MODEL_H

#include "compat.h"

#include "reader.h"

typedef enum DpmlTask
{
	DPML_TASK_BINARY,
	DPML_TASK_MULTICLASS,
	DPML_TASK_REGRESSION
} DpmlTask;

typedef struct DpmlModel
{
	struct DpmlModel *next;		/* models this call site has used, the last one first */
	char	   *name;
	DpmlTask	task;
	char	   *loss;
	int			n_outputs;		/* rows of the weights: the number of classes if multiclass, else 1 */
	int			n_classes;		/* 0 for regression */
	text	  **classes;		/* binary: negative, positive */
	double	   *weights;		/* n_outputs x n_features */
	const double *whitening;	/* P, n_features x n_features; NULL: none, or the call site asks for classes */
	double	   *scores;			/* n_outputs, scratch */
	double	   *whitened;		/* n_features, scratch; NULL without whitening */
	DpmlReader *reader;
} DpmlModel;

/* Use of models at a call site, the same for all models it uses. */
typedef enum DpmlUse
{
	DPML_USE_CLASSES,			/* classes, or a regression's value: a classifier's whitening is checked, not kept */
	DPML_USE_VALUES				/* scores and probabilities */
} DpmlUse;

extern DpmlModel *dpml_model_get(FunctionCallInfo fcinfo, text *name, DpmlUse use);

#endif
