/* SPDX-License-Identifier: PostgreSQL */
/*
 * Coordinate descent over any block: passes in pieces are those at once, no number is
 * lost, and the duals of a loss of two classes stay feasible.
 * Input: 16 bytes of choices, then the block.
 */
#include <math.h>

#include "fuzz.h"
#include "records.h"

#include "kernels/block.h"
#include "kernels/dual.h"
#include "kernels/scalar.h"
#include "kernels/scd.h"

#define MOST_FEATURES 40
#define MOST_ROWS 200

static const uint8_t key[32] = {1};

typedef struct Pass
{
	DpmlScd		scd;
	void	   *memory;
	double	   *duals;
} Pass;

static DpmlScdOptions
make_options(Bytes *bytes, const DpmlBlock *block)
{
	static const int32_t losses[] = {DPML_LOGISTIC, DPML_HUBER_SVM, DPML_SQUARED, DPML_HINGE};
	static const double scales[] = {1e-270, 1e-3, 0.25, 1.0, 1e3, 1e270};
	DpmlScdOptions options = {
		.loss = {losses[choose(bytes, 4)], 1, 0.1, INFINITY},
		.lambda = scales[choose(bytes, 6)],
		.n = choose(bytes, 4) > 0 ? 1.0 + choose(bytes, 200) : 0x1p53,
		.update_clip = choose(bytes, 2) ? 0.5 : INFINITY,
		.noise_scale = 1.0,
		.n_features = block->n_features,
		.batch_size = 1 + choose(bytes, 6),
		.by_unit = choose(bytes, 2),
		.max_rows_per_unit = 1,
		.noise = choose(bytes, 2) ? DPML_GAUSSIAN : DPML_NO_NOISE,
		.sequential = choose(bytes, 2),
		.exact = choose(bytes, 2)
	};

	if (options.by_unit)
		options.max_rows_per_unit = 1 + choose(bytes, 3);
	if (options.noise != DPML_NO_NOISE)
		options.dual_noise = choose(bytes, 2);
	return options;
}

static Pass
begin_pass(const DpmlScdOptions *options, const DpmlBlock *block)
{
	DpmlScdStart start = {.key = key};
	Pass		pass = {.memory = allocate(dpml_scd_memory(options))};

	pass.duals = allocate((size_t) block->n_rows * sizeof(double));
	dpml_scd_start(&pass.scd, options, pass.memory, &start);
	REQUIRE(dpml_scd_valid(&pass.scd));
	return pass;
}

static void
end_pass(Pass *pass)
{
	free(pass->memory);
	free(pass->duals);
}

static void
require_same_passes(const DpmlBlock *block, Pass *a, Pass *b)
{
	REQUIRE(dpml_scd_valid(&a->scd) && dpml_scd_valid(&b->scd));
	dpml_scd_finish(&a->scd);
	dpml_scd_finish(&b->scd);
	REQUIRE(a->scd.steps == b->scd.steps && a->scd.rows == b->scd.rows);
	require_same(block->n_features, a->scd.v, b->scd.v);
	require_same(block->n_rows, a->duals, b->duals);
}

/* Duals of a loss of two classes that began at 0, without noise: y alpha is in [0, 1]. */
static void
check_duals(const DpmlScdOptions *options, const DpmlBlock *block, const double *duals)
{
	for (int32_t i = 0; i < block->n_rows; i++)
	{
		double		b = dpml_sign(block->labels[i]) * duals[i];

		REQUIRE(dpml_finite(duals[i]));
		if (options->loss.kind != DPML_SQUARED && !options->dual_noise)
			REQUIRE(b >= 0.0 && b <= 1.0);
	}
}

static void
check_sums(const DpmlScdOptions *options, const DpmlBlock *block, int32_t piece, const double *duals)
{
	double	   *weights = numbers(block->n_features);
	double		sums[2][DPML_DUAL_SUMS] = {{0.0}};
	double	   *any = numbers(block->n_rows);

	for (int i = 0; i < 2; i++)
		for (int32_t row = 0, n; row < block->n_rows; row += n)
		{
			n = i == 0 || piece > block->n_rows - row ? block->n_rows - row : piece;
			dpml_dual_sums(&options->loss, weights, block, row, n, duals, sums[i]);
		}
	require_same(DPML_DUAL_SUMS, sums[0], sums[1]);
	REQUIRE(options->dual_noise || options->loss.kind == DPML_SQUARED || sums[0][DPML_INFEASIBLE_DUALS] == 0.0);
	dpml_dual_sums(&options->loss, weights, block, 0, block->n_rows, any, sums[1]);
	REQUIRE(!isnan(sums[1][DPML_DUAL_VALUES]) && sums[1][DPML_INFEASIBLE_DUALS] <= 2.0 * block->n_rows);
	free(weights);
	free(any);
}

static void
run_blocks(const DpmlScdOptions *options, const DpmlBlock *block, int32_t piece)
{
	Pass		whole = begin_pass(options, block);
	Pass		pieces = begin_pass(options, block);
	DpmlBlock	other = *block;
	double	   *row = numbers(block->n_features);

	dpml_scd_block(&whole.scd, block, 0, block->n_rows, whole.duals);
	for (int32_t i = 0, n; i < block->n_rows; i += n)
	{
		n = piece < block->n_rows - i ? piece : block->n_rows - i;
		dpml_scd_block(&pieces.scd, block, i, n, pieces.duals);
	}
	REQUIRE(whole.scd.rows == block->n_rows);
	other.n_features++;
	dpml_scd_block(&whole.scd, &other, 0, block->n_rows, whole.duals);	/* ignored */
	require_same_passes(block, &whole, &pieces);
	check_duals(options, block, whole.duals);
	check_sums(options, block, piece, whole.duals);
	if (block->n_rows > 0)
		dpml_scd_row(&whole.scd, row, block->labels[0], whole.duals);
	free(row);
	end_pass(&whole);
	end_pass(&pieces);
}

static void
run_poisson(const DpmlScdOptions *options, const DpmlBlock *block, int32_t piece)
{
	static const uint8_t coins[32] = {2};
	Pass		passes[2] = {begin_pass(options, block), begin_pass(options, block)};
	Records		records = make_records(block, options->by_unit, DPML_RECORD_DUAL);
	void	  **rows = records.rows;

	for (int i = 0; i < 2; i++)
	{
		DpmlPoisson poisson;

		for (int32_t row = 0; row < block->n_rows; row++)
			dpml_record_set_dual(rows[row], 0.0);
		dpml_poisson_start(&poisson, &records.store, 0.3, 5, coins);
		while (dpml_poisson_scd(&poisson, &passes[i].scd, i == 0 ? 1000000 : piece))
			;
		REQUIRE(passes[i].scd.steps == 5);
		for (int32_t row = 0; row < block->n_rows; row++)
			passes[i].duals[row] = dpml_record_dual(rows[row]);
	}
	require_same_passes(block, &passes[0], &passes[1]);
	check_duals(options, block, passes[0].duals);
	free_records(&records);
	end_pass(&passes[0]);
	end_pass(&passes[1]);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	DpmlBlock	block;
	void	   *bytes;

	if (size < 16)
		return 0;
	bytes = allocate(size - 16);
	memcpy(bytes, data + 16, size - 16);
	if (dpml_block_open(&block, bytes, size - 16) == DPML_OK && block.n_features <= MOST_FEATURES &&
		block.n_rows <= MOST_ROWS)
	{
		Bytes		choices = {data, 16};
		DpmlScdOptions options = make_options(&choices, &block);
		int32_t		piece = 1 + choose(&choices, 7);

		run_blocks(&options, &block, piece);
		run_poisson(&options, &block, piece);
	}
	free(bytes);
	return 0;
}
