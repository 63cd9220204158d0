/* SPDX-License-Identifier: PostgreSQL */
/* Differences between PostgreSQL 15 and 18, in one place.  Includes postgres.h. */
#ifndef DPML_COMPAT_H
#define DPML_COMPAT_H

/* 15 leaves this empty, and we compile with -fvisibility=hidden. */
#if !defined(PGDLLEXPORT) && defined(__GNUC__) && !defined(_WIN32)
#define PGDLLEXPORT __attribute__((visibility("default")))
#endif

#include "postgres.h"

#include "fmgr.h"

#if PG_VERSION_NUM >= 160000
#include "varatt.h"
#endif

/* From 18 on a module has a name and a version, which pg_get_loaded_modules() lists. */
#ifndef PG_MODULE_MAGIC_EXT
#define PG_MODULE_MAGIC_EXT(...) PG_MODULE_MAGIC
#endif

/* From 18 on; 15 to 17 have pg_attribute_noreturn(), which goes last. */
#ifndef pg_noreturn
#define pg_noreturn __attribute__((noreturn))
#endif

/* 15 declares the info function as exported, but not the function itself. */
#define DPML_FUNCTION(name) \
	extern PGDLLEXPORT Datum name(PG_FUNCTION_ARGS); \
	PG_FUNCTION_INFO_V1(name)

#endif
