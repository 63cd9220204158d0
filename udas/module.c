/* SPDX-License-Identifier: PostgreSQL */
/* What loading the module does: it defines the settings. */
#include "dpml.h"

#include <limits.h>

#include "utils/guc.h"

PG_MODULE_MAGIC;

extern PGDLLEXPORT void _PG_init(void);

int			dpml_work_mem = 1024 * 1024;

void
_PG_init(void)
{
	DefineCustomIntVariable("dpml.work_mem",
							"Memory that dpml.sgd_poisson may hold packed rows in.",
							"A row needs its bytes in a block, 8 more, and 8 more with units of privacy.",
							&dpml_work_mem, 1024 * 1024, 64, MAX_KILOBYTES,
							PGC_USERSET, GUC_UNIT_KB, NULL, NULL, NULL);
	MarkGUCPrefixReserved("dpml");
}
