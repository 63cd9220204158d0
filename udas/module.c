/* SPDX-License-Identifier: PostgreSQL */
#include "compat.h"

PG_MODULE_MAGIC;
