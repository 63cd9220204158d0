/* SPDX-License-Identifier: PostgreSQL */
/*
 * The block decoder, and every kernel that reads a block: whatever opens can be
 * read to its end, comes out as it went in, and gives the same in pieces as at once.
 * Input: 16 bytes of choices, then the block.
 */
#include <float.h>
#include <math.h>

#include "fuzz.h"
#include "records.h"

#include "kernels/directions.h"
#include "kernels/block.h"
#include "kernels/gradient.h"
#include "kernels/gram.h"
#include "kernels/scalar.h"
#include "kernels/score.h"
#include "kernels/sgd.h"
#include "kernels/status.h"
#include "kernels/sums.h"
#include "kernels/whiten.h"

#define MOST_FEATURES 40
#define MOST_ROWS 200
#define MOST_CLASSES 5

typedef struct Choices
{
	Bytes		bytes;
	DpmlLoss	loss;
	int32_t		piece;			/* rows at a time */
	int32_t		units;
	double		clip;
} Choices;

static double
bound(Bytes *bytes)
{
	return choose(bytes, 2) ? 0.25 : INFINITY;
}

static Choices
make_choices(const uint8_t *data)
{
	Choices		choices = {.bytes = {data, 16}};
	Bytes	   *bytes = &choices.bytes;

	choices.loss.kind = choose(bytes, 5);
	choices.loss.n_classes = 1;
	if (choices.loss.kind != DPML_SQUARED)
		choices.loss.n_classes = 1 + choose(bytes, MOST_CLASSES);
	if (choices.loss.kind == DPML_SOFTMAX && choices.loss.n_classes == 1)
		choices.loss.n_classes = 2;
	choices.loss.huber_h = 0.1;
	choices.loss.clip = choices.loss.kind == DPML_SOFTMAX ? INFINITY : bound(bytes);
	choices.piece = 1 + choose(bytes, 7);
	choices.units = choose(bytes, 2);
	choices.clip = bound(bytes);
	return choices;
}

static int32_t
piece_of(const Choices *choices, const DpmlBlock *block, int32_t i)
{
	return choices->piece < block->n_rows - i ? choices->piece : block->n_rows - i;
}

/* The bytes that a view describes are those it was opened from, and every part of it is a block, too. */
static void
write_again(const DpmlBlock *block, const void *bytes, size_t length)
{
	size_t		size = dpml_block_size(block);
	void	   *copy = allocate(size);

	REQUIRE(size == length);
	dpml_block_write(block, copy);
	REQUIRE(memcmp(copy, bytes, length) == 0);
	free(copy);
	for (int32_t i = 0; i < block->n_rows && i < MOST_ROWS; i += 7)
	{
		int32_t		n = block->n_rows - i < 40 ? block->n_rows - i : 40;
		uint32_t	starts[2];
		uint32_t	row_end[40];
		DpmlBlock	part;
		DpmlBlock	again;

		dpml_block_part(block, i, n, starts, row_end, &part);
		size = dpml_block_size(&part);
		REQUIRE(size > 0);
		copy = allocate(size);
		dpml_block_write(&part, copy);
		REQUIRE(dpml_block_open(&again, copy, size) == DPML_OK);
		REQUIRE(dpml_block_starts_unit(&again, 0) == dpml_block_starts_unit(block, i));
		free(copy);
	}
}

static DpmlSgdOptions
make_sgd_options(Choices *choices, const DpmlBlock *block)
{
	Bytes	   *bytes = &choices->bytes;
	DpmlSgdOptions options = {
		.loss = choices->loss,
		.lambda = choose(bytes, 2) ? 0.1 : 0.0,
		.radius = bound(bytes),
		.gradient_clip = choices->clip,
		.momentum = choose(bytes, 2) ? 0.5 : 0.0,
		.noise_scale = 1.0,
		.average_from = choose(bytes, 3),
		.n_features = block->n_features,
		.batch_size = 1 + choose(bytes, 6),
		.by_unit = choices->units,
		.noise = choose(bytes, 3)
	};

	options.schedule.kind = DPML_CONSTANT;
	options.schedule.step_size = 0.5;
	options.schedule.max_step = 1.0;
	return options;
}

typedef struct Pass
{
	DpmlSgd		sgd;
	void	   *memory;
} Pass;

static Pass
begin_pass(const DpmlSgdOptions *options)
{
	static const uint8_t key[32] = {1};
	DpmlSgdStart start = {.key = key};
	Pass		pass = {.memory = allocate(dpml_sgd_memory(options))};

	dpml_sgd_start(&pass.sgd, options, pass.memory, &start);
	return pass;
}

static void
require_same_passes(Pass *a, Pass *b)
{
	int64_t		n = (int64_t) a->sgd.options.loss.n_classes * a->sgd.options.n_features;

	dpml_sgd_finish(&a->sgd);
	dpml_sgd_finish(&b->sgd);
	REQUIRE(a->sgd.steps == b->sgd.steps && a->sgd.rows == b->sgd.rows);
	require_same(n, a->sgd.weights, b->sgd.weights);
	require_same(n, a->sgd.average, b->sgd.average);
	free(a->memory);
	free(b->memory);
}

static void
run_sgd(const Choices *choices, const DpmlSgdOptions *options, const DpmlBlock *block)
{
	Pass		whole = begin_pass(options);
	Pass		pieces = begin_pass(options);
	DpmlBlock	other = *block;

	dpml_sgd_block(&whole.sgd, block, 0, block->n_rows);
	for (int32_t i = 0, n; i < block->n_rows; i += n)
	{
		n = piece_of(choices, block, i);
		dpml_sgd_block(&pieces.sgd, block, i, n);
	}
	REQUIRE(whole.sgd.rows == block->n_rows);
	other.n_features++;
	dpml_sgd_block(&whole.sgd, &other, 0, block->n_rows);	/* ignored */
	require_same_passes(&whole, &pieces);
}

static void
run_poisson(const Choices *choices, const DpmlSgdOptions *options, const DpmlBlock *block)
{
	static const uint8_t key[32] = {2};
	Pass		passes[2] = {begin_pass(options), begin_pass(options)};
	Records		records = make_records(block, choices->units, 0);

	for (int i = 0; i < 2; i++)
	{
		DpmlPoisson poisson;

		dpml_poisson_start(&poisson, &records.store, 0.3, 5, key);
		while (dpml_poisson_sgd(&poisson, &passes[i].sgd, i == 0 ? 1000000 : choices->piece))
			;
		REQUIRE(passes[i].sgd.steps == 5);
	}
	require_same_passes(&passes[0], &passes[1]);
	free_records(&records);
}

static void
run_gradient(Choices *choices, const DpmlBlock *block)
{
	DpmlGradientOptions options = {
		.loss = choices->loss,
		.gradient_clip = choices->clip,
		.unit_clip = bound(&choices->bytes),
		.loss_clip = bound(&choices->bytes),
		.n_features = block->n_features,
		.n_models = 1 + choose(&choices->bytes, 3),
		.gradient = choose(&choices->bytes, 4) > 0,
		.losses = choose(&choices->bytes, 3)
	};
	int64_t		n = (int64_t) options.loss.n_classes * options.n_features;
	double	   *weights = numbers(n * options.n_models);
	double	   *sums[2];

	if (options.losses == DPML_ERRORS && options.loss.kind == DPML_SQUARED)
		options.losses = DPML_LOSSES;
	for (int i = 0; i < 2; i++)
	{
		double	   *work = allocate((size_t) dpml_gradient_memory(&options) * sizeof(double));

		sums[i] = allocate((size_t) (n + options.n_models) * sizeof(double));
		for (int32_t row = 0, rows; row < block->n_rows; row += rows)
		{
			rows = i == 0 ? block->n_rows : piece_of(choices, block, row);
			dpml_gradient_rows(&options, weights, block, row, rows, work, sums[i], sums[i] + n);
		}
		free(work);
	}
	require_same(n + options.n_models, sums[0], sums[1]);
	dpml_sums_add(n, sums[0], sums[1], sums[0], sums[1]);
	dpml_sums_fold(n, sums[0], sums[1]);
	free(sums[0]);
	free(sums[1]);
	free(weights);
}

static void
run_gram(const Choices *choices, const DpmlBlock *block)
{
	int64_t		d = block->n_features;
	double	   *weights = numbers(d);
	double	   *work = allocate((size_t) dpml_gram_memory(block->n_features) * sizeof(double));
	double	   *xx = allocate((size_t) (d * (d + 1) / 2) * sizeof(double));
	double	   *xy = allocate((size_t) d * sizeof(double));

	for (int32_t i = 0; i < block->n_rows; i += choices->piece)
	{
		dpml_gram_rows(block, i, choices->piece, work, xx, xy);
		if (choices->loss.kind != DPML_SOFTMAX)
			dpml_hessian_rows(&choices->loss, weights, block, i, choices->piece, work, xx);
	}
	free(weights);
	free(work);
	free(xx);
	free(xy);
}

static void
run_whiten(const Choices *choices, const DpmlBlock *block)
{
	int64_t		d = block->n_features;
	int32_t		n_directions = block->n_features < 3 ? block->n_features : 3;
	double	   *p = numbers(d * d);
	double	   *panels = allocate((size_t) dpml_whiten_panels_size(block->n_features) * sizeof(double));
	double	   *work = allocate((size_t) dpml_whiten_memory(block->n_features, choices->piece) * sizeof(double));
	float	   *values = allocate((size_t) block->n_values * sizeof(float));

	dpml_whiten_panels(block->n_features, p, panels);
	for (int32_t i = 0; i < block->n_rows; i += choices->piece)
		dpml_whiten_rows(block, p, panels, 0.9, i, choices->piece, work, values);
	for (int32_t i = 0; i < block->n_values; i++)
		REQUIRE(fabsf(values[i]) <= FLT_MAX);
	free(work);
	work = allocate((size_t) dpml_directions_memory(block->n_features, n_directions, choices->piece) * sizeof(double));
	for (int32_t i = 0; i < block->n_rows; i += choices->piece)
		dpml_whiten_by_directions(block, 1.1, p, n_directions, 0.9, i, choices->piece, work, values);
	for (int32_t i = 0; i < block->n_values; i++)
		REQUIRE(fabsf(values[i]) <= FLT_MAX);
	free(work);
	work = numbers(d);
	if (block->kind == DPML_DENSE && block->n_rows > 0)
	{
		double		score[MOST_CLASSES];
		double		norm = dpml_whitened_norm(block->n_features, p, block->values, work);

		REQUIRE(norm >= 0.0 && norm <= DBL_MAX);
		dpml_scores(d < MOST_CLASSES ? 1 : MOST_CLASSES, block->n_features, p, block->values, score);
	}
	free(p);
	free(panels);
	free(work);
	free(values);
}

static void
run_loss(const Choices *choices, const DpmlBlock *block)
{
	double	   *weights = numbers((int64_t) choices->loss.n_classes * block->n_features);
	double		scores[MOST_CLASSES];
	double	   *row = numbers(block->n_features);

	for (int32_t i = 0, n; i < block->n_rows; i += n)
	{
		n = piece_of(choices, block, i);
		REQUIRE(dpml_finite(dpml_loss_sum_block(&choices->loss, weights, block, i, n, scores)) ||
				choices->loss.kind == DPML_SQUARED);
		(void) dpml_loss_sum_row(&choices->loss, weights, block->n_features, row, block->labels[i], scores);
	}
	free(weights);
	free(row);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	Choices		choices;
	DpmlSgdOptions options;
	DpmlBlock	block;
	uint8_t    *bytes;
	size_t		length;

	if (size < 16)
		return 0;
	choices = make_choices(data);
	length = size - 16;
	bytes = allocate(length + 1);
	memcpy(bytes + 1, data + 16, length);
	REQUIRE(dpml_block_open(&block, bytes + 1, length) != DPML_OK);	/* not aligned */
	free(bytes);
	bytes = allocate(length);
	memcpy(bytes, data + 16, length);
	if (dpml_block_open(&block, bytes, length) == DPML_OK)
	{
		write_again(&block, bytes, length);
		if (block.n_features <= MOST_FEATURES && block.n_rows <= MOST_ROWS)
		{
			options = make_sgd_options(&choices, &block);
			run_sgd(&choices, &options, &block);
			run_poisson(&choices, &options, &block);
			run_gradient(&choices, &block);
			run_gram(&choices, &block);
			run_whiten(&choices, &block);
			run_loss(&choices, &block);
		}
	}
	free(bytes);
	return 0;
}
