/* SPDX-License-Identifier: PostgreSQL */
/*
 * Lookup of the declared level that a value is.  Levels are texts; a table is built once
 * for the type of a column, with keys that values of the type can be compared
 * to byte by byte: the text itself, an int8, a float8, the shortest decimal
 * text of a numeric, an enum's OID or the days of a date.
 */
#include "levels.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>

#include "catalog/pg_enum.h"
#include "catalog/pg_type.h"
#include "common/hashfn.h"
#include "utils/builtins.h"
#include "utils/date.h"
#include "utils/datetime.h"
#include "utils/lsyscache.h"
#include "utils/numeric.h"
#include "utils/syscache.h"

#include "numbers.h"

typedef enum KeyKind
{
	KEY_TEXT,
	KEY_BPCHAR,					/* without trailing blanks */
	KEY_NAME,
	KEY_CHAR,					/* the one-byte type "char" */
	KEY_BOOL,
	KEY_ENUM,
	KEY_DATE,
	KEY_INTEGER,
	KEY_DECIMAL,				/* numeric */
	KEY_FLOAT
} KeyKind;

/* A key and the buffer that holds it if it is no text. */
typedef struct Key
{
	const char *data;
	int			length;
	union
	{
		int64		integer;
		double		number;
		char		byte;
	}			buffer;
} Key;

struct DpmlLevels
{
	KeyKind		kind;
	bool		single;			/* numbers are float4: levels are rounded to it */
	DpmlToNumber read;			/* KEY_INTEGER and KEY_FLOAT */
	Oid			type;
	uint32		mask;			/* slots - 1, a power of two minus 1 */
	int		   *slots;			/* level numbers, -1 empty; linear probing */
	char	  **keys;			/* one a level, NULL if no value of the type can be it */
	int		   *lengths;
};

static void
set_text(Key *key, const char *text)
{
	key->data = text;
	key->length = (int) strlen(text);
}

static void
set_integer(Key *key, int64 value)
{
	key->buffer.integer = value;
	key->data = (const char *) &key->buffer;
	key->length = sizeof(int64);
}

/* False for NaN, which is no level. */
static bool
set_number(Key *key, double value)
{
	key->buffer.number = value == 0 ? 0.0 : value;	/* -0 is 0 */
	key->data = (const char *) &key->buffer;
	key->length = sizeof(double);
	return !isnan(value);
}

static int
length_without_blanks(const char *data, int length)
{
	while (length > 0 && data[length - 1] == ' ')
		length--;
	return length;
}

/* Limits of a level that is a number: numeric holds every number within them exactly. */
#define LONGEST_DECIMAL 10000
#define LARGEST_EXPONENT 6000

/* True for a decimal number, with or without blanks around it, within the limits above. */
static bool
is_decimal(const char *text)
{
	const char *at = text + strspn(text, " ");
	size_t		whole;
	size_t		part = 0;
	char	   *end;

	at += *at == '+' || *at == '-';
	whole = strspn(at, "0123456789");
	at += whole;
	if (*at == '.')
	{
		part = strspn(at + 1, "0123456789");
		at += 1 + part;
	}
	if (whole + part == 0)
		return false;
	if (*at == 'e' || *at == 'E')
	{
		size_t		sign = at[1] == '+' || at[1] == '-';

		if (!isdigit((unsigned char) at[1 + sign]) || labs(strtol(at + 1, &end, 10)) > LARGEST_EXPONENT)
			return false;
		at = end;
	}
	at += strspn(at, " ");
	return *at == '\0' && at - text <= LONGEST_DECIMAL;
}

/* One text for all forms of a decimal number, as numeric_normalize() has it. */
static char *
decimal_text(const char *text)
{
	Datum		number = DirectFunctionCall3(numeric_in, CStringGetDatum(text), ObjectIdGetDatum(InvalidOid),
											 Int32GetDatum(-1));

	return numeric_normalize(DatumGetNumeric(number));
}

/* The sign of a text that says infinity, or 0. */
static int
infinity_sign(const char *text)
{
	char	   *end;
	double		value = strtod(text, &end);

	if (is_decimal(text) || end == text || *end != '\0' || !isinf(value))
		return 0;
	return value > 0 ? 1 : -1;
}

/* ISO dates only, which no setting can change the meaning of. */
static bool
parse_date(const char *text, int64 *days)
{
	int			year;
	int			month;
	int			day;
	int			end = 0;

	if (strlen(text) != 10 || strspn(text, "0123456789-") != 10 || text[0] == '-' ||
		sscanf(text, "%4d-%2d-%2d%n", &year, &month, &day, &end) != 3 || end != 10)
		return false;
	if (month < 1 || month > MONTHS_PER_YEAR || day < 1 || day > day_tab[isleap(year)][month - 1])
		return false;
	*days = date2j(year, month, day) - POSTGRES_EPOCH_JDATE;
	return true;
}

/* The key of a declared level, or false if no value of the type can be it. */
static bool
level_key(const DpmlLevels *levels, const char *text, Key *key)
{
	double		number;
	int64		days;
	Oid			oid;

	set_text(key, text);
	switch (levels->kind)
	{
		case KEY_BPCHAR:
			key->length = length_without_blanks(text, key->length);
			return true;
		case KEY_ENUM:
			if (key->length >= NAMEDATALEN)
				return false;
			oid = GetSysCacheOid2(ENUMTYPOIDNAME, Anum_pg_enum_oid, ObjectIdGetDatum(levels->type),
								  CStringGetDatum(text));
			set_integer(key, oid);
			return OidIsValid(oid);
		case KEY_DATE:
			if (!parse_date(text, &days))
				return false;
			set_integer(key, days);
			return true;
		case KEY_INTEGER:
			{
				char	   *end;
				long long	integer;

				if (!is_decimal(text))
					return false;
				errno = 0;
				integer = strtoll(decimal_text(text), &end, 10);
				set_integer(key, integer);
				return errno == 0 && *end == '\0';
			}
		case KEY_DECIMAL:
			if (is_decimal(text))
				set_text(key, decimal_text(text));
			else if (infinity_sign(text) != 0)
				set_text(key, infinity_sign(text) > 0 ? "Infinity" : "-Infinity");
			else
				return false;
			return true;
		case KEY_FLOAT:
			if (!is_decimal(text) && infinity_sign(text) == 0)
				return false;
			number = strtod(text, NULL);
			return set_number(key, levels->single ? (double) (float) number : number);
		default:
			return true;
	}
}

static bool
value_key(const DpmlLevels *levels, Datum value, Key *key)
{
	switch (levels->kind)
	{
		case KEY_TEXT:
		case KEY_BPCHAR:
			{
				struct varlena *text = PG_DETOAST_DATUM_PACKED(value);

				key->data = VARDATA_ANY(text);
				key->length = VARSIZE_ANY_EXHDR(text);
				if (levels->kind == KEY_BPCHAR)
					key->length = length_without_blanks(key->data, key->length);
				return true;
			}
		case KEY_NAME:
			set_text(key, NameStr(*DatumGetName(value)));
			return true;
		case KEY_CHAR:
			key->buffer.byte = DatumGetChar(value);
			key->data = &key->buffer.byte;
			key->length = 1;
			return true;
		case KEY_BOOL:
			set_text(key, DatumGetBool(value) ? "true" : "false");
			return true;
		case KEY_ENUM:
			set_integer(key, DatumGetObjectId(value));
			return true;
		case KEY_DATE:
			set_integer(key, DatumGetDateADT(value));
			return true;
		case KEY_INTEGER:
			set_integer(key, levels->type == INT8OID ? DatumGetInt64(value) : (int64) levels->read(value));
			return true;
		case KEY_DECIMAL:
			set_text(key, numeric_normalize(DatumGetNumeric(value)));
			return !numeric_is_nan(DatumGetNumeric(value));
		case KEY_FLOAT:
			return set_number(key, levels->read(value));
	}
	return false;
}

/* Slot of a key, or the empty slot where it belongs. */
static uint32
find_slot(const DpmlLevels *levels, const Key *key)
{
	uint32		slot = hash_bytes((const unsigned char *) key->data, key->length) & levels->mask;

	for (;; slot = (slot + 1) & levels->mask)
	{
		int			level = levels->slots[slot];

		if (level < 0 || (levels->lengths[level] == key->length &&
						  memcmp(levels->keys[level], key->data, key->length) == 0))
			return slot;
	}
}

static bool
choose_kind(DpmlLevels *levels)
{
	switch (levels->type)
	{
		case TEXTOID:
		case VARCHAROID:
			levels->kind = KEY_TEXT;
			return true;
		case BPCHAROID:
			levels->kind = KEY_BPCHAR;
			return true;
		case NAMEOID:
			levels->kind = KEY_NAME;
			return true;
		case CHAROID:
			levels->kind = KEY_CHAR;
			return true;
		case BOOLOID:
			levels->kind = KEY_BOOL;
			return true;
		case DATEOID:
			levels->kind = KEY_DATE;
			return true;
		case INT2OID:
		case INT4OID:
		case INT8OID:
			levels->kind = KEY_INTEGER;
			break;
		case NUMERICOID:
			levels->kind = KEY_DECIMAL;
			return true;
		case FLOAT4OID:
		case FLOAT8OID:
			levels->kind = KEY_FLOAT;
			levels->single = levels->type == FLOAT4OID;
			break;
		default:
			levels->kind = KEY_ENUM;
			return get_typtype(levels->type) == TYPTYPE_ENUM;
	}
	levels->read = dpml_number_reader(levels->type);
	return true;
}

/* Table for a base type, in the current context; NULL if the type has no levels.  Of equal levels the first counts. */
DpmlLevels *
dpml_levels_create(const DpmlNames *names, Oid type)
{
	DpmlLevels *levels = palloc0(sizeof(DpmlLevels));
	uint32		n_slots = 8;

	levels->type = type;
	if (!choose_kind(levels))
		return NULL;
	while (n_slots < 2 * (uint32) names->n)
		n_slots *= 2;
	levels->mask = n_slots - 1;
	levels->slots = palloc(n_slots * sizeof(int));
	memset(levels->slots, -1, n_slots * sizeof(int));
	levels->keys = palloc0(Max(names->n, 1) * sizeof(char *));
	levels->lengths = palloc0(Max(names->n, 1) * sizeof(int));

	for (int i = 0; i < names->n; i++)
	{
		Key			key;
		uint32		slot;

		if (!level_key(levels, names->names[i], &key))
			continue;
		slot = find_slot(levels, &key);
		if (levels->slots[slot] >= 0)
			continue;
		levels->keys[i] = palloc(Max(key.length, 1));
		memcpy(levels->keys[i], key.data, key.length);
		levels->lengths[i] = key.length;
		levels->slots[slot] = i;
	}
	return levels;
}

/* Number of the level that a value is, or -1. */
int
dpml_levels_find(const DpmlLevels *levels, Datum value)
{
	Key			key;

	if (!value_key(levels, value, &key))
		return -1;
	return levels->slots[find_slot(levels, &key)];
}
