/* SPDX-License-Identifier: PostgreSQL */
/* What the fuzz targets share: choices made by the bytes of an input, and a check that outlives NDEBUG. */
#ifndef DPML_FUZZ_H
#define DPML_FUZZ_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* libFuzzer calls it for every input; replay.c does for those of a corpus. */
extern int	LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define REQUIRE(condition) \
	do { \
		if (!(condition)) \
		{ \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
			abort(); \
		} \
	} while (0)

/* What is left of an input.  Beyond its end there are zeros. */
typedef struct Bytes
{
	const uint8_t *at;
	size_t		left;
} Bytes;

static inline uint8_t
next_byte(Bytes *bytes)
{
	if (bytes->left == 0)
		return 0;
	bytes->left--;
	return *bytes->at++;
}

/* An integer from 0 to n - 1, n <= 256. */
static inline int
choose(Bytes *bytes, int n)
{
	return next_byte(bytes) % n;
}

/* Small and round numbers, those at the ends of domains, and any. */
static inline double
next_number(Bytes *bytes)
{
	static const double known[] = {
		0.0, 1.0, -1.0, 0.5, 2.0, 3.0, 5.0, 28.0, 784.0, 0.1, 1e-9, 1e9, 1048575.0, 1048576.0, 1048577.0,
		2147483647.0, 2147483648.0, 9007199254740992.0, 9007199254740994.0, 1e-270, 1e270, 1e-308, 1.7e308, -1.7e308,
		HUGE_VAL, -HUGE_VAL, 0.99999999999999989, 64.0, 65.0, 1e-320
	};
	int			n = (int) (sizeof(known) / sizeof(known[0]));
	uint8_t		kind = next_byte(bytes);
	uint8_t		raw[sizeof(double)];
	double		number;

	if (kind < n)
		return known[kind];
	if (kind < 224)
		return kind - n;
	for (size_t i = 0; i < sizeof(raw); i++)
		raw[i] = next_byte(bytes);
	memcpy(&number, raw, sizeof(number));
	return number;
}

/* Memory of exactly that size, so that a read or write beside it is seen. */
static inline void *
allocate(size_t size)
{
	void	   *memory = calloc(1, size > 0 ? size : 1);

	REQUIRE(memory != NULL);
	return memory;
}

/* n numbers around 0, some of them 0. */
static inline double *
numbers(int64_t n)
{
	double	   *values = allocate((size_t) n * sizeof(double));

	for (int64_t i = 0; i < n; i++)
		values[i] = (double) ((i * 37 + 11) % 23 - 11) / 16.0;
	return values;
}

static inline void
require_same(int64_t n, const double *a, const double *b)
{
	for (int64_t i = 0; i < n; i++)
		REQUIRE(a[i] == b[i] || (isnan(a[i]) && isnan(b[i])));
}

#endif
