/* SPDX-License-Identifier: PostgreSQL */
/* Typed reading of a JSON object, every error naming the key and its domain. */
#ifndef DPML_JSON_H
#define DPML_JSON_H

#include "compat.h"

#include "utils/jsonb.h"

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

#define DPML_CHECK_KEYS(json, keys) dpml_json_check_keys((json), (keys), lengthof(keys))

extern bool dpml_json_find(const DpmlJson *json, const char *key, JsonbValue *value);
extern bool dpml_json_number(const DpmlJson *json, const char *key, const DpmlDomain *domain, double *out);
extern int	dpml_json_array(const DpmlJson *json, const char *key, int minimum, const char *domain,
							JsonbContainer **array);
extern int	dpml_json_numbers(const DpmlJson *json, const char *key, int minimum, const DpmlDomain *domain,
							  double **out);
extern bool dpml_json_bool(const DpmlJson *json, const char *key, bool absent);
extern char *dpml_json_text(const DpmlJson *json, const char *key, bool scalar);
extern int	dpml_json_choice(const DpmlJson *json, const char *key, const char *const *names, int n_names, int absent);
extern int	dpml_json_texts(const DpmlJson *json, const char *key, int minimum, char ***out);
extern char *dpml_json_scalar_text(const JsonbValue *value);
pg_noreturn extern void dpml_json_reject(const DpmlJson *json, const char *key, const char *domain);

#endif
