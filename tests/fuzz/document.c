/* SPDX-License-Identifier: PostgreSQL */
/*
 * What udas/json.c, options.c and spec.c need of a server, without one: memory,
 * errors, and the reading of a jsonb.  Containers are nodes of a tree of our own;
 * only their headers are as the server's.
 */
#include "document.h"

#include <setjmp.h>
#include <stdarg.h>

#include "fmgr.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#define MOST_NODES 256
#define MOST_CHILDREN 16
#define MOST_DEPTH 5
#define LONGEST_STRING 12

/* In the place of a JsonbContainer. */
typedef struct Container
{
	uint32		header;
	int32		number;			/* in children */
} Container;

typedef struct Children
{
	int			n;
	JsonbValue	keys[MOST_CHILDREN];	/* of an object */
	JsonbValue	values[MOST_CHILDREN];
} Children;

/* In the place of a Jsonb. */
typedef struct Document
{
	int32		length;
	Container		root;
} Document;

StaticAssertDecl(offsetof(Document, root) == offsetof(Jsonb, root), "a document looks like a jsonb");

static Children children[MOST_NODES];
static int	n_nodes;
static Document document;
static const char *const *words;
static int	n_words;

/* Nobody cancels. */
volatile sig_atomic_t InterruptPending = false;

void
ProcessInterrupts(void)
{
}

/* Memory: each allocation on its own, so that a read or write beside it is seen. */

typedef struct Chunk
{
	struct Chunk *next;
	char		data[] pg_attribute_aligned(MAXIMUM_ALIGNOF);
} Chunk;

static Chunk *chunks;

MemoryContext CurrentMemoryContext = NULL;

void *
palloc(Size size)
{
	Chunk	   *chunk;

	if (size > MaxAllocSize)
		elog(ERROR, "invalid memory alloc request size %zu", size);
	chunk = malloc(sizeof(Chunk) + size);
	REQUIRE(chunk != NULL);
	chunk->next = chunks;
	chunks = chunk;
	return chunk->data;
}

void *
palloc0(Size size)
{
	return memset(palloc(size), 0, size);
}

void *
MemoryContextAllocHuge(MemoryContext context, Size size)
{
	(void) context;
	return palloc(size);
}

char *
pnstrdup(const char *text, Size length)
{
	char	   *copy = palloc(length + 1);

	memcpy(copy, text, length);
	copy[length] = '\0';
	return copy;
}

char *
pstrdup(const char *text)
{
	return pnstrdup(text, strlen(text));
}

static char *
format_text(const char *format, va_list values)
{
	char		text[2048];

	REQUIRE(vsnprintf(text, sizeof(text), format, values) >= 0);
	return pstrdup(text);
}

char *
psprintf(const char *format,...)
{
	va_list		values;
	char	   *text;

	va_start(values, format);
	text = format_text(format, values);
	va_end(values);
	return text;
}

void
initStringInfo(StringInfo info)
{
	info->data = pstrdup("");
	info->len = 0;
}

void
appendStringInfo(StringInfo info, const char *format,...)
{
	va_list		values;

	va_start(values, format);
	info->data = psprintf("%s%s", info->data, format_text(format, values));
	va_end(values);
}

/* Errors: back to parse(). */

static jmp_buf caller;
static int	error_code;

bool
errstart(int level, const char *domain)
{
	(void) domain;
	REQUIRE(level == ERROR);
	error_code = ERRCODE_INTERNAL_ERROR;
	return true;
}

bool
errstart_cold(int level, const char *domain)
{
	return errstart(level, domain);
}

int
errcode(int code)
{
	error_code = code;
	return 0;
}

int
errmsg(const char *format,...)
{
	va_list		values;

	va_start(values, format);
	REQUIRE(strlen(format_text(format, values)) > 0);
	va_end(values);
	return 0;
}

int
errmsg_internal(const char *format,...)
{
	(void) format;
	return 0;
}

int
errhint(const char *format,...)
{
	va_list		values;

	va_start(values, format);
	REQUIRE(strlen(format_text(format, values)) > 0);
	va_end(values);
	return 0;
}

void
errfinish(const char *file, int line, const char *function)
{
	(void) file;
	(void) line;
	(void) function;
	longjmp(caller, 1);
}

void *
parse(void *(*parser) (Jsonb *document, void *argument), Jsonb *json, void *argument)
{
	if (setjmp(caller) == 0)
		return parser(json, argument);
	REQUIRE(error_code == ERRCODE_INVALID_PARAMETER_VALUE || error_code == ERRCODE_PROGRAM_LIMIT_EXCEEDED);
	return NULL;
}

/* Reading */

Datum
numeric_float8_no_overflow(PG_FUNCTION_ARGS)
{
	PG_RETURN_FLOAT8(*(double *) PG_GETARG_POINTER(0));
}

Datum
numeric_out(PG_FUNCTION_ARGS)
{
	PG_RETURN_CSTRING(psprintf("%.17g", *(double *) PG_GETARG_POINTER(0)));
}

Datum
DirectFunctionCall1Coll(PGFunction function, Oid collation, Datum value)
{
	LOCAL_FCINFO(call, 1);

	memset(call, 0, SizeForFunctionCallInfo(1));
	call->fncollation = collation;
	call->nargs = 1;
	call->args[0].value = value;
	return function(call);
}

static const Children *
children_of(const JsonbContainer *container)
{
	const Container *node = (const Container *) container;

	REQUIRE(node->number >= 0 && node->number < n_nodes);
	return &children[node->number];
}

JsonbIterator *
JsonbIteratorInit(JsonbContainer *container)
{
	JsonbIterator *iterator = palloc0(sizeof(JsonbIterator));

	iterator->container = container;
	iterator->curIndex = -1;
	return iterator;
}

JsonbIteratorToken
JsonbIteratorNext(JsonbIterator **iterator, JsonbValue *value, bool skip_nested)
{
	const Children *own = children_of((*iterator)->container);
	int			i = (*iterator)->curIndex++;

	REQUIRE(skip_nested && JsonContainerIsObject((*iterator)->container));
	if (i < 0)
		return WJB_BEGIN_OBJECT;
	if (i == 2 * own->n)
		return WJB_END_OBJECT;
	if (i > 2 * own->n)
		return WJB_DONE;
	*value = i % 2 == 0 ? own->keys[i / 2] : own->values[i / 2];
	return i % 2 == 0 ? WJB_KEY : WJB_VALUE;
}

JsonbValue *
getKeyJsonValueFromContainer(JsonbContainer *container, const char *key, int length, JsonbValue *value)
{
	const Children *own = children_of(container);

	REQUIRE(JsonContainerIsObject(container));
	for (int i = 0; i < own->n; i++)
	{
		if (own->keys[i].val.string.len != length || memcmp(own->keys[i].val.string.val, key, length) != 0)
			continue;
		*value = own->values[i];
		return value;
	}
	return NULL;
}

JsonbValue *
getIthJsonbValueFromContainer(JsonbContainer *container, uint32 i)
{
	const Children *own = children_of(container);
	JsonbValue *value = palloc(sizeof(JsonbValue));

	REQUIRE(JsonContainerIsArray(container));
	if (i >= (uint32) own->n)
		return NULL;
	*value = own->values[i];
	return value;
}

/* Of the glue's other files: nothing that a parser calls. */

bool
dpml_same_bytes(const void *a, const void *b)
{
	(void) a;
	(void) b;
	abort();
}

struct varlena *
pg_detoast_datum(struct varlena *value)
{
	(void) value;
	abort();
}

/* Making */

static JsonbValue
make_string(Bytes *bytes)
{
	JsonbValue	value = {.type = jbvString};
	uint8_t		kind = next_byte(bytes);
	const char *text;
	char	   *copy;

	if (kind < 240)
	{
		text = words[kind % n_words];
		value.val.string.len = (int) strlen(text);
	}
	else
	{
		text = (const char *) bytes->at;
		value.val.string.len = choose(bytes, LONGEST_STRING);
		text = (const char *) bytes->at;
		if ((size_t) value.val.string.len > bytes->left)
			value.val.string.len = (int) bytes->left;
		bytes->at += value.val.string.len;
		bytes->left -= value.val.string.len;
	}
	/* not terminated, as in a jsonb; which holds no zero byte */
	copy = palloc(value.val.string.len);
	for (int i = 0; i < value.val.string.len; i++)
		copy[i] = text[i] != '\0' ? text[i] : '0';
	value.val.string.val = copy;
	return value;
}

static JsonbValue make_value(Bytes *bytes, int depth);

static Container
make_node(Bytes *bytes, bool object, int depth)
{
	Container	node = {object ? JB_FOBJECT : JB_FARRAY, n_nodes++};
	int			n = choose(bytes, MOST_CHILDREN);

	for (int i = 0; i < n && bytes->left > 0; i++)
	{
		Children   *own = &children[node.number];

		if (object)
			own->keys[i] = make_string(bytes);
		own->values[i] = make_value(bytes, depth + 1);
		own->n++;
	}
	node.header |= (uint32) children[node.number].n;
	return node;
}

static JsonbValue
make_value(Bytes *bytes, int depth)
{
	JsonbValue	value = {.type = jbvNull};
	int			kind = choose(bytes, 8);

	if (kind >= 6 && (depth >= MOST_DEPTH || n_nodes >= MOST_NODES))
		kind = 1;
	switch (kind)
	{
		case 0:
			break;
		case 1:
			value.type = jbvBool;
			value.val.boolean = choose(bytes, 2);
			break;
		case 2:
		case 3:
			{
				double	   *number = palloc(sizeof(double));

				*number = next_number(bytes);
				value.type = jbvNumeric;
				value.val.numeric = (Numeric) number;
				break;
			}
		case 4:
		case 5:
			value = make_string(bytes);
			break;
		default:
			{
				Container  *node = palloc(sizeof(Container));

				*node = make_node(bytes, kind == 7, depth);
				value.type = jbvBinary;
				value.val.binary.data = (JsonbContainer *) node;
				value.val.binary.len = sizeof(Container);
			}
	}
	return value;
}

Jsonb *
make_document(Bytes *bytes, const char *const *known, int n)
{
	int			kind = choose(bytes, 32);

	memset(children, 0, sizeof(children));
	n_nodes = 0;
	words = known;
	n_words = n;
	document.root = make_node(bytes, kind >= 2, 0);
	if (kind == 1)
		document.root.header |= JB_FSCALAR;
	return (Jsonb *) &document;
}

void
forget_document(void)
{
	while (chunks != NULL)
	{
		Chunk	   *next = chunks->next;

		free(chunks);
		chunks = next;
	}
}
