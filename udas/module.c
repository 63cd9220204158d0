/* SPDX-License-Identifier: PostgreSQL */
/* The module as a whole: its settings, its version, and where a procedure may commit. */
#include "module.h"

#include "compat.h"

#include <limits.h>

#include "access/xact.h"
#include "executor/spi.h"
#include "utils/builtins.h"
#include "utils/guc.h"

/* The build defines it as pg_dpml.control says.  A server can have the SQL of one version and the module of another. */
#ifndef DPML_VERSION
#error "define DPML_VERSION, the default_version of pg_dpml.control"
#endif

PG_MODULE_MAGIC_EXT(.name = "pg_dpml", .version = DPML_VERSION);

DPML_FUNCTION(dpml_module_version);
DPML_FUNCTION(dpml_require_autocommit);

extern PGDLLEXPORT void _PG_init(void);

int			dpml_work_mem = 1024 * 1024;

void
_PG_init(void)
{
	DefineCustomIntVariable("dpml.work_mem",
							"Memory that dpml.sgd_poisson and dpml.scd_epoch may hold packed rows and duals in.",
							"A row needs its bytes in a block, 8 more, 8 more with units of privacy, and 16 for duals.",
							&dpml_work_mem, 1024 * 1024, 64, MAX_KILOBYTES,
							PGC_USERSET, GUC_UNIT_KB, NULL, NULL, NULL);
	MarkGUCPrefixReserved("dpml");
}

/* () */
Datum
dpml_module_version(PG_FUNCTION_ARGS)
{
	PG_RETURN_TEXT_P(cstring_to_text(DPML_VERSION));
}

/* (), called by a procedure that is about to commit */
Datum
dpml_require_autocommit(PG_FUNCTION_ARGS)
{
	/* Before PostgreSQL 16 the first does not see the block of an exception handler. */
	if (!SPI_inside_nonatomic_context() || IsSubTransaction())
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_TRANSACTION_TERMINATION),
				 errmsg("dpml.train waits for the model, and cannot do so inside a transaction"),
				 errhint("CALL it in autocommit mode, outside BEGIN, functions and exception blocks; or use "
						 "dpml.request, with the same arguments, which does not wait.")));
	PG_RETURN_VOID();
}
