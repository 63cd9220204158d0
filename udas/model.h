/* SPDX-License-Identifier: PostgreSQL */
/* A stored model, ready to predict. */
#ifndef DPML_MODEL_H
#define DPML_MODEL_H

#include "dpml.h"

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
	double	   *scores;			/* n_outputs, scratch */
	DpmlReader *reader;
} DpmlModel;

extern DpmlModel *dpml_model_get(FunctionCallInfo fcinfo, text *name);

#endif
