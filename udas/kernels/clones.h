/* SPDX-License-Identifier: PostgreSQL */
/*
 * DPML_CLONES compiles a function for AVX2 as well and picks one when the
 * module is loaded.  Every clone adds in the same order (vector.h) and none may
 * contract a multiply and an add (-ffp-contract=off), so that all agree bit for
 * bit.  Load-time choice needs glibc's ifunc, which a sanitizer's start-up breaks.
 * -DDPML_CLONES= builds without.
 */
#ifndef DPML_CLONES_H
#define DPML_CLONES_H

#include <limits.h>				/* defines __GLIBC__ where it is glibc */

#ifndef DPML_CLONES
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__) && \
	!defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define DPML_CLONES __attribute__((target_clones("avx2", "default")))
#define DPML_AVX2				/* a function may ask for AVX2, and choose when it is called */
#else
#define DPML_CLONES
#endif
#endif

#define DPML_INLINE static inline __attribute__((always_inline, unused))

#endif
