/* SPDX-License-Identifier: PostgreSQL */
/*
 * Steps over Poisson batches: at each, every unit is in independently with
 * probability q (privacy/README.md, "Poisson batches").  The rows are in memory.
 */
#ifndef DPML_POISSON_H
#define DPML_POISSON_H

#include <stddef.h>
#include <stdint.h>

#include "block.h"
#include "random.h"
#include "scd.h"
#include "sgd.h"

enum DpmlPoissonConstant
{
	DPML_MAX_POISSON_STEPS = 2147483647,	/* of a pass */
	DPML_POISSON_STAGE = 32,		/* draws between two looks ahead */
	DPML_RECORD_DUAL = 8,		/* bytes before a record where coordinate descent has the row's dual */
	DPML_POISSON_AHEAD = 96		/* draws known before their turn: where a unit, a row, its values are is fetched in turn */
};

/*
 * Rows of one kind and width, each a record of its own: what follows the header in
 * a block of that row alone, without starts.  The arrays are the caller's.
 */
typedef struct DpmlStore
{
	int32_t		kind;			/* enum DpmlBlockKind */
	int32_t		n_features;
	int64_t		n_rows;
	void *const *rows;			/* n_rows records, aligned to 4 bytes */
	const int64_t *units;		/* first row of each unit; NULL: every row is one */
	int64_t		n_units;
} DpmlStore;

typedef struct DpmlPoisson
{
	DpmlStore	store;
	DpmlRng		coins;
	double		rate;			/* dpml_coin_rate of q */
	int64_t		steps_left;
	int64_t		next_unit;		/* whose coin is next in the step that is drawn */
	int64_t		draws[DPML_POISSON_AHEAD];	/* a ring: units, or -1 for the end of a step */
	int32_t		first_draw;
	int64_t		next_row;		/* of a drawn unit that is not finished: rows next_row .. end_row - 1 are left */
	int64_t		end_row;
} DpmlPoisson;

/* Bytes of the record of row i of a block, and the record. */
size_t		dpml_record_size(const DpmlBlock *block, int32_t i);
void		dpml_record_write(const DpmlBlock *block, int32_t i, void *out);

/* key: 32 fresh random bytes, the coins' own. */
void		dpml_poisson_start(DpmlPoisson *state, const DpmlStore *store, double sampling, int64_t steps,
							   const uint8_t *key);

/* The dual that coordinate descent has before a record. */
double		dpml_record_dual(const void *record);
void		dpml_record_set_dual(void *record, double dual);

/* Go on with a solver for so many rows and steps, more or less; 1 while steps are left. */
int			dpml_poisson_sgd(DpmlPoisson *state, DpmlSgd *sgd, int64_t work);
int			dpml_poisson_scd(DpmlPoisson *state, DpmlScd *scd, int64_t work);

#endif
