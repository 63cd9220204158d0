/* SPDX-License-Identifier: PostgreSQL */
/* A JSON document made from the bytes of an input, which the server's parsers read as they read a jsonb. */
#ifndef DPML_FUZZ_DOCUMENT_H
#define DPML_FUZZ_DOCUMENT_H

#include "compat.h"

#include "utils/jsonb.h"

/* The server's own, which a target does not link. */
#undef fprintf
#undef vsnprintf

#include "fuzz.h"

/* The document that the next bytes say, with keys and strings from a list of n words, or any. */
extern Jsonb *make_document(Bytes *bytes, const char *const *words, int n);

/* Run a parser: its result, or NULL where it raised an error, of a class that is the user's fault. */
extern void *parse(void *(*parser) (Jsonb *document, void *argument), Jsonb *document, void *argument);

/* Give back all memory of the document and its parser. */
extern void forget_document(void);

#endif
