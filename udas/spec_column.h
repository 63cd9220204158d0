/* SPDX-License-Identifier: PostgreSQL */
/* The columns of the encoder's specification: what spec.c calls. */
#ifndef DPML_SPEC_COLUMN_H
#define DPML_SPEC_COLUMN_H

#include "json.h"
#include "spec.h"

extern char *dpml_spec_name(const DpmlJson *json);
extern void dpml_spec_column(DpmlSpec *spec, DpmlColumn *column, int i, JsonbContainer *object);

#endif
