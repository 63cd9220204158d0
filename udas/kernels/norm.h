/* SPDX-License-Identifier: PostgreSQL */
/* The Euclidean norm by which every bound on a vector is checked. */
#ifndef DPML_NORM_H
#define DPML_NORM_H

#include <stdint.h>

/* A norm that neither overflows nor underflows; NaN or infinity if an entry is not finite. */
double		dpml_norm(int64_t n, const double *x);

/* The norm, bit for bit, of the vector of n_all entries of which n, at rising columns, are not 0. */
double		dpml_norm_sparse(int64_t n_all, int64_t n, const uint32_t *columns, const double *x);

#endif
