/* SPDX-License-Identifier: PostgreSQL */
/* Typed reading of a JSON object.  A JSON null counts as an absent key. */
#include "json.h"

#include <math.h>

#include "utils/builtins.h"
#include "utils/numeric.h"

#include "kernels/block.h"

void
dpml_json_open(DpmlJson *json, JsonbContainer *object, const char *where)
{
	json->object = object;
	json->where = where;
	if (!JsonContainerIsObject(object))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must be a JSON object", where)));
}

/* Reject the first key that is not in the list, and say which ones are. */
void
dpml_json_check_keys(const DpmlJson *json, const char *const *keys, int n_keys)
{
	JsonbIterator *iterator = JsonbIteratorInit(json->object);
	JsonbValue	key;
	JsonbIteratorToken token;
	StringInfoData allowed;

	while ((token = JsonbIteratorNext(&iterator, &key, true)) != WJB_DONE)
	{
		int			i;

		if (token != WJB_KEY)
			continue;
		for (i = 0; i < n_keys; i++)
		{
			if (strlen(keys[i]) == (size_t) key.val.string.len &&
				memcmp(keys[i], key.val.string.val, key.val.string.len) == 0)
				break;
		}
		if (i < n_keys)
			continue;
		initStringInfo(&allowed);
		for (i = 0; i < n_keys; i++)
			appendStringInfo(&allowed, "%s\"%s\"", i > 0 ? ", " : "", keys[i]);
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("unknown key \"%.*s\" in %s", key.val.string.len, key.val.string.val, json->where),
				 errhint("The keys are %s.", allowed.data)));
	}
}

void
dpml_json_reject(const DpmlJson *json, const char *key, const char *domain)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("\"%s\" in %s must be %s", key, json->where, domain)));
}

bool
dpml_json_find(const DpmlJson *json, const char *key, JsonbValue *value)
{
	return getKeyJsonValueFromContainer(json->object, key, strlen(key), value) != NULL &&
		value->type != jbvNull;
}

/* A value as a number of the domain in *out; false if it is none. */
static bool
take_number(const JsonbValue *value, const DpmlDomain *domain, double *out)
{
	double		x;

	if (value->type != jbvNumeric)
		return false;
	x = DatumGetFloat8(DirectFunctionCall1(numeric_float8_no_overflow, NumericGetDatum(value->val.numeric)));
	if (!isfinite(x) || x > domain->high || x < domain->low ||
		(domain->low_open && x == domain->low) || (domain->integer && x != floor(x)))
		return false;
	*out = x;
	return true;
}

/* The number at a key in *out; false, with *out unchanged, where the key is absent. */
bool
dpml_json_number(const DpmlJson *json, const char *key, const DpmlDomain *domain, double *out)
{
	JsonbValue	value;

	if (!dpml_json_find(json, key, &value))
		return false;
	if (!take_number(&value, domain, out))
		dpml_json_reject(json, key, domain->text);
	return true;
}

/* The array at a key, of at least `minimum` items, in *array; returns how many, 0 if absent. */
int
dpml_json_array(const DpmlJson *json, const char *key, int minimum, const char *domain, JsonbContainer **array)
{
	JsonbValue	value;
	int			n;

	if (!dpml_json_find(json, key, &value))
		return 0;
	if (value.type != jbvBinary || !JsonContainerIsArray(value.val.binary.data))
		dpml_json_reject(json, key, domain);
	*array = value.val.binary.data;
	n = JsonContainerSize(*array);
	if (n < minimum || n > DPML_MAX_FEATURES)
		dpml_json_reject(json, key, domain);
	return n;
}

/* The numbers of a domain, whose text speaks of the array, at a key; 0 if absent. */
int
dpml_json_numbers(const DpmlJson *json, const char *key, int minimum, const DpmlDomain *domain, double **out)
{
	JsonbContainer *array = NULL;
	int			n = dpml_json_array(json, key, minimum, domain->text, &array);

	*out = palloc(sizeof(double) * Max(n, 1));
	for (int i = 0; i < n; i++)
		if (!take_number(getIthJsonbValueFromContainer(array, i), domain, &(*out)[i]))
			dpml_json_reject(json, key, domain->text);
	return n;
}

bool
dpml_json_bool(const DpmlJson *json, const char *key, bool absent)
{
	JsonbValue	value;

	if (!dpml_json_find(json, key, &value))
		return absent;
	if (value.type != jbvBool)
		dpml_json_reject(json, key, "true or false");
	return value.val.boolean;
}

/* A string, number or boolean as text. */
char *
dpml_json_scalar_text(const JsonbValue *value)
{
	switch (value->type)
	{
		case jbvString:
			return pnstrdup(value->val.string.val, value->val.string.len);
		case jbvNumeric:
			return DatumGetCString(DirectFunctionCall1(numeric_out, NumericGetDatum(value->val.numeric)));
		case jbvBool:
			return pstrdup(value->val.boolean ? "true" : "false");
		default:
			return NULL;
	}
}

/* The string at a key, or with scalar also a number or boolean as text; NULL if absent. */
char *
dpml_json_text(const DpmlJson *json, const char *key, bool scalar)
{
	JsonbValue	value;
	char	   *text;

	if (!dpml_json_find(json, key, &value))
		return NULL;
	text = scalar || value.type == jbvString ? dpml_json_scalar_text(&value) : NULL;
	if (text == NULL)
		dpml_json_reject(json, key, scalar ? "a string, a number or a boolean" : "a string");
	return text;
}

/* Index, among the names, of the string at a key.  Where the key is absent: `absent`, or an error if that is -1. */
int
dpml_json_choice(const DpmlJson *json, const char *key, const char *const *names, int n_names, int absent)
{
	JsonbValue	value;
	StringInfoData list;
	bool		found = dpml_json_find(json, key, &value);

	if (!found && absent >= 0)
		return absent;
	for (int i = 0; found && value.type == jbvString && i < n_names; i++)
	{
		if (strlen(names[i]) == (size_t) value.val.string.len &&
			memcmp(names[i], value.val.string.val, value.val.string.len) == 0)
			return i;
	}
	initStringInfo(&list);
	for (int i = 0; i < n_names; i++)
		appendStringInfo(&list, "%s\"%s\"", i == 0 ? "one of " : ", ", names[i]);
	dpml_json_reject(json, key, list.data);
}

/* The array of scalars at a key as texts; 0 if absent. */
int
dpml_json_texts(const DpmlJson *json, const char *key, int minimum, char ***out)
{
	const char *domain = psprintf("an array of at least %d strings, numbers or booleans", minimum);
	JsonbContainer *array = NULL;
	int			n = dpml_json_array(json, key, minimum, domain, &array);

	*out = palloc(sizeof(char *) * Max(n, 1));
	for (int i = 0; i < n; i++)
	{
		(*out)[i] = dpml_json_scalar_text(getIthJsonbValueFromContainer(array, i));
		if ((*out)[i] == NULL)
			dpml_json_reject(json, key, domain);
	}
	return n;
}
