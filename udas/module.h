/* SPDX-License-Identifier: PostgreSQL */
/* Settings of the module. */
#ifndef DPML_MODULE_H
#define DPML_MODULE_H

extern int	dpml_work_mem;		/* kB */

#endif
