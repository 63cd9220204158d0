/* SPDX-License-Identifier: PostgreSQL */
/* The Euclidean norm by which every bound on a vector is checked. */
#ifndef DPML_NORM_H
#define DPML_NORM_H

#include <stdint.h>

/* A norm that neither overflows nor underflows; NaN or infinity if an entry is not finite. */
double		dpml_norm(int64_t n, const double *x);

#endif
