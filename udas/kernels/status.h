/* SPDX-License-Identifier: PostgreSQL */
/* Results of a kernel that can reject its input.  Kernels never print and never allocate. */
#ifndef DPML_STATUS_H
#define DPML_STATUS_H

enum DpmlStatus
{
	DPML_OK = 0,
	DPML_TRUNCATED = 1,			/* fewer bytes than the header promises, or more */
	DPML_BAD_MAGIC = 2,			/* not a packed block */
	DPML_BAD_VERSION = 3,		/* a block of another format version */
	DPML_BAD_LAYOUT = 4,		/* inconsistent header, offsets or column numbers */
	DPML_BAD_DOMAIN = 5			/* a number outside its domain */
};

#endif
