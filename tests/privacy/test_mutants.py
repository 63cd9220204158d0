# SPDX-License-Identifier: PostgreSQL
"""Errors that would break the guarantee, planted one by one in a copy of the sources: a test must see each.

A mutant is a text of one file and its replacement. Its test runs in a process
of its own, on the copy; kernels are compiled without optimisation.
"""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from helpers import mutation

ROOT = Path(__file__).resolve().parents[2]

Trials = Mapping[str, "Future[dict[str, tuple[int, str]]]"]


@dataclass(frozen=True)
class Mutant:
    """`old`, found once in the files of `room`, becomes `new`; `test` must fail."""

    name: str
    room: str
    old: str
    new: str
    test: str


KERNELS = "udas/kernels"
METHODS = "controller/pg_dpml/methods"
TRAINING = "controller/pg_dpml/training"
PRIVACY = "controller/pg_dpml/privacy"
BLOCKS = "controller/pg_dpml/blocks"
EVALUATION = "controller/pg_dpml/evaluation"
SPEC = "controller/pg_dpml/spec"
TEST_ACCOUNTING = "tests/privacy/test_accounting.py"
TEST_ADAPTIVE = "tests/privacy/test_adaptive_descent.py"
TEST_BUDGET = "tests/privacy/test_budget.py"
TEST_CERTIFIED = "tests/controller/test_certified.py"
TEST_FRANK_WOLFE = "tests/privacy/test_frank_wolfe.py"
TEST_FULL_BATCH = "tests/privacy/test_full_batch_release.py"
TEST_PLANNED_FULL_BATCH = "tests/controller/test_full_batch.py"
TEST_FULL_BATCH_REPLAY = "tests/privacy/test_full_batch_replay.py"
TEST_MECHANISMS = "tests/controller/test_mechanisms.py"
TEST_OBJECTIVE = "tests/privacy/test_objective_perturbation.py"
TEST_PLAN = "tests/controller/test_plan.py"
TEST_PORTIONS = "tests/privacy/test_portions.py"
TEST_RELEASE = "tests/privacy/test_release.py"
TEST_REPLAY = "tests/privacy/test_replay.py"
TEST_SHARD_MODELS = "tests/privacy/test_shard_models.py"
TEST_SHARD_SUMS = "tests/privacy/test_shard_sums.py"
TEST_SELECTION = "tests/privacy/test_selection.py"
TEST_SCORES = "tests/controller/test_scores.py"

TEST_ENCODE = "tests/kernels/test_encode.py"
TEST_STEP_NOISE = "tests/kernels/test_step_noise.py"
TEST_NOISY_SGD = "tests/controller/test_noisy_sgd.py"
TEST_ALLOCATION = "tests/privacy/test_allocation.py"
TEST_ALLOCATION_REPLAY = "tests/privacy/test_allocation_replay.py"
TEST_NOISY_REPLAY = "tests/privacy/test_noisy_replay.py"
TEST_NOISE = "tests/kernels/test_noise.py"
TEST_CALIBRATION = "tests/privacy/test_step_noise_calibration.py"
TEST_RESOLUTION = "tests/privacy/test_resolution.py"
TEST_LOW_BITS = "tests/privacy/test_low_bits.py"
TEST_COORDINATES = "tests/privacy/test_coordinate_replay.py"
TEST_COORDINATE_CALIBRATION = "tests/privacy/test_coordinate_calibration.py"

MUTANTS = [
    Mutant(
        "sparse-row-writes-beside-its-column",
        KERNELS,
        "value->places[i] >= (uint32_t) column->width ||",
        "",
        f"{TEST_ENCODE}::test_sparse_column_with_bad_places_is_zero[places2]",
    ),
    Mutant(
        "sparse-index-counts-twice",
        KERNELS,
        "value->places[i] <= value->places[i - 1]",
        "value->places[i] < value->places[i - 1]",
        f"{TEST_ENCODE}::test_sparse_column_with_bad_places_is_zero[places0]",
    ),
    Mutant(
        "curve-of-what-is-no-number",
        KERNELS,
        "if (!dpml_finite(v))\n\t\treturn;\n",
        "",
        f"{TEST_ENCODE}::test_hats",
    ),
    Mutant(
        "cross-writes-beside-itself",
        KERNELS,
        "a.at[i] * size + b.at[j]",
        "a.at[i] * (size + 1) + b.at[j]",
        f"{TEST_ENCODE}::test_places_in_a_cross",
    ),
    Mutant(
        "sparse-norm-without-its-last-entries",
        KERNELS,
        "rest += x[i] * x[i];\n\t}\n\tsquares = (((lane",
        "rest += 0.0;\n\t}\n\tsquares = (((lane",
        f"{TEST_ENCODE}::test_norm_of_a_sparse_vector_is_that_of_the_dense_one_bit_for_bit",
    ),
    Mutant(
        "few-directions-without-the-last-columns",
        KERNELS,
        "\t\t\tsquares[r] += y * y;\n",
        "\t\t\tsquares[r] += 0.0 * y;\n",
        f"{TEST_FULL_BATCH}::test_rows_are_scaled_for_the_rounding_of_few_directions",
    ),
    Mutant(
        "rows-longer-along-few-directions",
        KERNELS,
        "y[r][half] -= (DpmlLanes)",
        "y[r][half] -= 1.5 * (DpmlLanes)",
        f"{TEST_FULL_BATCH}::test_rows_are_scaled_for_the_rounding_of_few_directions",
    ),
    Mutant(
        "added-unit-without-the-growth",
        PRIVACY,
        "removed.at(splits) + growth * added.at(whole - splits)",
        "removed.at(splits) + 0.0 * growth + added.at(whole - splits)",
        f"{TEST_ACCOUNTING}::test_replacing_agrees_with_dp_accounting[10.0-0.1-5000-1e-08]",
    ),
    Mutant(
        "removed-unit-accounted-as-added",
        PRIVACY,
        "one, other = curves[0], curves[-1]",
        "one, other = curves[-1], curves[-1]",
        f"{TEST_ACCOUNTING}::test_replacing_agrees_with_dp_accounting[0.8-0.01-1000-1e-06]",
    ),
    Mutant(
        "sum-of-ratios-rounded-down",
        PRIVACY,
        "found = _split(at, masses - rise, rise, len(values))",
        "found = _split(at, masses, 0.0 * rise, len(values))",
        f"{TEST_ALLOCATION}::test_a_ratio_is_above_the_true_one_in_the_convex_order",
    ),
    Mutant(
        "allocated-unit-that-comes-for-half",
        PRIVACY,
        "losses, infinite = -logs[::-1] + _LOSS_ROUNDING, self.masses[0]",
        "losses, infinite = -0.5 * logs[::-1] + _LOSS_ROUNDING, self.masses[0]",
        f"{TEST_ALLOCATION}::test_two_batches_agree_with_quadrature[1e-09-1.0]",
    ),
    Mutant(
        "budget-spends-delta-twice",
        PRIVACY,
        "rest = float(_DOWN.subtract(delta, others))",
        "rest = float(delta)",
        f"{TEST_BUDGET}::test_the_limits_are_rounded_down_and_tight",
    ),
    Mutant(
        "budget-takes-pure-runs-for-half",
        PRIVACY,
        "-2.0 * scipy.special.ndtri_exp",
        "-1.0 * scipy.special.ndtri_exp",
        f"{TEST_BUDGET}::test_a_pure_run_is_as_private_as_its_gaussian",
    ),
    Mutant(
        "budget-takes-blanked-for-replaced",
        PRIVACY,
        "whole, whole_delta = 2 * epsilon,",
        "whole, whole_delta = epsilon,",
        f"{TEST_BUDGET}::test_a_blanked_row_is_half_of_a_replaced_one",
    ),
    Mutant(
        "blanked-gaussian-taken-for-replaced",
        PRIVACY,
        "(2.0 * gaussian.mu if twice else gaussian.mu)",
        "gaussian.mu",
        f"{TEST_BUDGET}::test_a_gaussian_run_of_a_blanked_row_is_two_steps_of_mu",
    ),
    Mutant(
        "poisson-charged-by-its-own-relation",
        PRIVACY,
        "_mu_of_batches(gaussian, spare, budget)",
        "_mu_of_batches(gaussian, spare, run)",
        f"{TEST_BUDGET}::test_poisson_runs_cost_what_the_relation_of_the_budget_says[pld]",
    ),
    Mutant(
        "spare-delta-for-nothing",
        PRIVACY,
        "gaussian.delta + spare",
        "gaussian.delta",
        f"{TEST_BUDGET}::test_steps_on_poisson_batches_are_accounted_with_their_head_room",
    ),
    Mutant(
        "passes-charged-as-one",
        PRIVACY,
        "n_weights, mu=mu",
        "n_weights, mu=mu / math.sqrt(passes)",
        f"{TEST_BUDGET}::test_shuffled_passes_are_a_gaussian_release",
    ),
    Mutant(
        "gaussian-of-added-units-alone",
        PRIVACY,
        "np.maximum(removed.at(places), added.at(places))",
        "added.at(places)",
        f"{TEST_ACCOUNTING}::test_a_gaussian_dominates_poisson_batches[1e-09-2.7-0.02-500]",
    ),
    Mutant(
        "gaussian-of-the-bulk-alone",
        PRIVACY,
        "places = np.unique(np.linspace(0, math.ceil(end / interval) + 1,",
        "places = np.unique(np.linspace(0, math.ceil(0.2 * end / interval) + 1,",
        f"{TEST_ACCOUNTING}::test_a_gaussian_dominates_poisson_batches[1e-09-2.7-0.02-500]",
    ),
    Mutant(
        "gaussian-noise-halved",
        PRIVACY,
        "source.gaussian(noise.n_weights, noise.scale / noise.grid)",
        "source.gaussian(noise.n_weights, noise.scale / noise.grid / 2.0)",
        f"{TEST_RELEASE}::test_an_attack_learns_no_more_than_claimed[1.0-0.05-3-Relation.REPLACE_ONE]",
    ),
    Mutant(
        "k-norm-noise-halved",
        PRIVACY,
        "source.knorm(noise.n_weights, noise.scale / noise.grid)",
        "source.knorm(noise.n_weights, noise.scale / noise.grid / 2.0)",
        f"{TEST_RELEASE}::test_an_attack_learns_no_more_than_claimed[1.0-0.0-1-Relation.REPLACE_ONE]",
    ),
    Mutant(
        "noise-of-errors-halved",
        PRIVACY,
        "ReleaseNoise(kind, scale, sensitivity, sensitivity, 1.0, 1, mu)",
        "ReleaseNoise(kind, scale / 2.0, sensitivity, sensitivity, 1.0, 1, mu)",
        f"{TEST_SCORES}::test_guarantee",
    ),
    Mutant(
        "errors-taken-to-move-one-way",
        PRIVACY,
        "(2 if relation is Relation.REPLACE_ONE else 1) * most",
        "1 * most",
        f"{TEST_SELECTION}::test_the_spread_makes_it_private",
    ),
    Mutant(
        "exponential-noise-in-a-step-of-frank-wolfe",
        PRIVACY,
        "best = int(np.argmin(values))\n",
        "best = int(np.argmin(values))\n"
        "    noise = np.random.default_rng().exponential(size=values.size)\n"
        "    return int(np.argmin(float(rate) * values - noise))\n",
        f"{TEST_FRANK_WOLFE}::test_the_worst_pair_stays_below_the_divergence_that_is_charged",
    ),
    Mutant(
        "noise-of-choices-halved",
        PRIVACY,
        "Fraction(noise.spread), noise.choice_epsilon",
        "Fraction(noise.spread) / 2, noise.choice_epsilon",
        f"{TEST_FRANK_WOLFE}::test_choices_follow_the_exponential_mechanism",
    ),
    Mutant(
        "features-clipped-on-one-side",
        KERNELS,
        "x[i] = dpml_clamp(x[i], -1.0, 1.0)",
        "x[i] = dpml_clamp(x[i], -DBL_MAX, 1.0)",
        f"{TEST_FRANK_WOLFE}::test_a_unit_moves_the_difference_of_two_candidates_by_the_spread[1-logistic-Relation.REPLACE_ONE]",
    ),
    Mutant(
        "replaced-unit-moves-choices-as-a-removed-one",
        PRIVACY,
        "return score_spread(2 * most, relation, rounding)",
        "return score_spread(2 * most, Relation.ADD_REMOVE, rounding)",
        f"{TEST_FRANK_WOLFE}::test_a_unit_moves_the_difference_of_two_candidates_by_the_spread[1-logistic-Relation.REPLACE_ONE]",
    ),
    Mutant(
        "errors-of-choices-taken-to-move-one-way",
        PRIVACY,
        "return score_spread(2 * most, relation, rounding)",
        "return score_spread(most, relation, rounding)",
        f"{TEST_FRANK_WOLFE}::test_a_unit_moves_the_difference_of_two_candidates_by_the_spread[1-logistic-Relation.ADD_REMOVE]",
    ),
    Mutant(
        "choices-paid-once",
        PRIVACY,
        "cost.zcdp_rho(epsilon, delta * (1.0 - 1e-9)) / choices / ROUND_UP",
        "cost.zcdp_rho(epsilon, delta * (1.0 - 1e-9)) / ROUND_UP",
        f"{TEST_FRANK_WOLFE}::test_all_choices_together_are_private",
    ),
    Mutant(
        "errors-that-depend-on-the-rows-beside",
        EVALUATION,
        "np.clip(np.nan_to_num(np.concatenate(weights)), -LARGEST_WEIGHT, LARGEST_WEIGHT)",
        "np.concatenate(weights)",
        f"{TEST_SELECTION}::test_models_that_are_not_finite_err_like_others[multiclass]",
    ),
    Mutant(
        "full-batch-steps-of-any-length",
        METHODS,
        "growth.require_stable(options.step_size, lambda_)",
        "pass",
        f"{TEST_PLANNED_FULL_BATCH}::test_steps_that_throw_the_model_out_are_refused",
    ),
    Mutant(
        "choice-too-sure",
        PRIVACY,
        "rate = Fraction(epsilon) / spread",
        "rate = 2 * Fraction(epsilon) / spread",
        f"{TEST_SELECTION}::test_it_is_the_exponential_mechanism[errors1-2-1.0]",
    ),
    Mutant(
        "scaled-textbook-instead-of-mu",
        PRIVACY,
        "return gaussian_stddev(sensitivity, mu), mu",
        "return 0.8 * sensitivity * math.sqrt(2.0 * math.log(1.25 / delta)) / epsilon, mu",
        f"{TEST_MECHANISMS}::test_noise_scales",
    ),
    Mutant(
        "weights-not-on-the-grid",
        PRIVACY,
        "np.rint(weights / noise.grid) +",
        "weights / noise.grid +",
        f"{TEST_MECHANISMS}::test_release_lies_on_the_grid",
    ),
    Mutant(
        "direction-from-the-ball",
        KERNELS,
        "dpml_noise_gaussian(rng, n, scale * sqrt(sum), out);",
        "dpml_noise_gaussian(rng, n, scale * sqrt(sum) * pow(rng_next(rng) * 0x1p-64, 1.0 / n), out);",
        f"{TEST_MECHANISMS}::test_knorm_release_distribution",
    ),
    Mutant(
        "k-norm-noise-of-a-degree-less",
        KERNELS,
        "for (int64_t i = 0; i <= n; i++)",
        "for (int64_t i = 0; i < n; i++)",
        f"{TEST_NOISE}::test_knorm_radius_and_direction",
    ),
    Mutant(
        "places-on-two-points-not-divided",
        KERNELS,
        "from += (int64_t) ((unsigned __int128) rng_next(rng) * (uint64_t) width >> 64);",
        "from += width / 2;",
        f"{TEST_NOISE}::test_a_place_on_two_points_is_divided_where_they_meet",
    ),
    Mutant(
        "coins-of-one-word",
        KERNELS,
        "probability = scaled - (double) digit;",
        "probability = 0.0;",
        f"{TEST_NOISE}::test_coins_are_exact",
    ),
    Mutant(
        "precision-of-the-noise-not-taken-out-of-mu",
        PRIVACY,
        'return require_share(sampler_mu(n_numbers), mu, "mu")',
        'return require_share(0.0 * sampler_mu(n_numbers), mu, "mu")',
        f"{TEST_MECHANISMS}::test_the_sampler_has_its_share",
    ),
    Mutant(
        "delta-spent-twice",
        PRIVACY,
        "return delta - taken",
        "return delta",
        f"{TEST_MECHANISMS}::test_the_sampler_has_its_share",
    ),
    Mutant(
        "noise-wider-than-float64-resolves",
        PRIVACY,
        "if not stddev <= MOST_STEPS * grid:",
        "if not stddev <= 2.0**8 * MOST_STEPS * grid:",
        f"{TEST_MECHANISMS}::test_noise_too_wide_for_its_grid_is_refused",
    ),
    Mutant(
        "key-not-fresh",
        "controller/pg_dpml/kernels.py",
        "key = secrets.token_bytes(32)",
        "key = bytes(32)",
        f"{TEST_RELEASE}::test_release_draws_fresh_noise",
    ),
    Mutant(
        "D-without-the-2",
        SPEC,
        "return 2.0 * lipschitz if",
        "return lipschitz if",
        f"{TEST_REPLAY}::test_worst_pair_reaches_the_sensitivity",
    ),
    Mutant(
        "rows-of-a-unit-counted-once",
        METHODS,
        "return problem.max_rows_per_unit * privacy",
        "return privacy",
        f"{TEST_PLAN}::test_units_of_several_rows_multiply_the_sensitivity",
    ),
    Mutant(
        "rows-of-a-unit-in-several-batches",
        "udas/kernels/sgd.c",
        "if (state->in_batch > 0 && !starts_unit)",
        "if (state->in_batch > 0 && !starts_unit && state->in_batch < state->options.batch_size)",
        f"{TEST_REPLAY}::test_worst_unit_reaches_its_sensitivity",
    ),
    Mutant(
        "rows-of-a-unit-in-several-batches-of-duals",
        "udas/kernels/scd.c",
        "if (state->in_batch > 0 && !starts_unit)",
        "if (state->in_batch > 0 && !starts_unit && state->in_batch < state->options.batch_size)",
        "tests/kernels/test_scd.py::test_units_stay_in_one_batch",
    ),
    Mutant(
        "noise-of-a-step-again",
        KERNELS,
        "rng->counter += 8;",
        "rng->counter += 0;",
        f"{TEST_STEP_NOISE}::test_every_step_has_fresh_noise",
    ),
    Mutant(
        "no-noise-on-an-empty-batch",
        KERNELS,
        "dpml_sgd_apply_batch(sgd);",
        "if (sgd->gradient[0] != 0.0) dpml_sgd_apply_batch(sgd); else sgd->steps++;",
        f"{TEST_STEP_NOISE}::test_poisson_steps_agree_with_oracle[0.004-gaussian-logistic]",
    ),
    Mutant(
        "realised-batch-size-as-divisor",
        KERNELS,
        "return -step / (options->batch_size * state->scale);",
        "return -step / ((state->in_batch > 0 ? state->in_batch : 1) * state->scale);",
        f"{TEST_STEP_NOISE}::test_pass_agrees_with_oracle[7-0.0-none-logistic]",
    ),
    Mutant(
        "row-coins-with-units",
        KERNELS,
        "state->end_row = unit + 1 < store->n_units ? store->units[unit + 1] : store->n_rows;",
        "state->end_row = state->next_row + 1;",
        f"{TEST_STEP_NOISE}::test_units_are_drawn_as_a_whole",
    ),
    Mutant(
        "empty-batches-are-no-steps",
        KERNELS,
        "dpml_sgd_apply_batch(sgd);",
        "if (sgd->gradient[0] != 0.0) dpml_sgd_apply_batch(sgd); else sgd->steps++;",
        f"{TEST_NOISY_REPLAY}::test_every_step_of_a_run_has_noise",
    ),
    Mutant(
        "D-of-a-step-without-the-2",
        SPEC,
        "return 2.0 * lipschitz if",
        "return lipschitz if",
        f"{TEST_NOISY_REPLAY}::test_a_unit_moves_the_sums_by_at_most_the_sensitivity",
    ),
    Mutant(
        "sigma-without-sqrt-k",
        PRIVACY,
        "gaussian.gaussian_stddev(math.sqrt(passes), mu)",
        "gaussian.gaussian_stddev(1.0, mu)",
        f"{TEST_NOISY_REPLAY}::test_an_attack_on_several_passes",
    ),
    Mutant(
        "k-norm-noise-of-one-pass",
        PRIVACY,
        "knorm.knorm_scale(1.0, epsilon, n_weights, passes)",
        "knorm.knorm_scale(1.0 / math.sqrt(passes), epsilon, n_weights, passes)",
        f"{TEST_NOISY_SGD}::test_pure_privacy_of_scs13",
    ),
    Mutant(
        "noise-of-a-step-halved",
        KERNELS,
        "dpml_noise_gaussian(rng, n, scale * per_step, noise);",
        "dpml_noise_gaussian(rng, n, scale / 2.0 * per_step, noise);",
        f"{TEST_NOISY_REPLAY}::test_an_attack_on_one_gaussian_step[1.0-Relation.REPLACE_ONE]",
    ),
    Mutant(
        "noise-of-a-poisson-step-halved",
        KERNELS,
        "dpml_noise_gaussian(rng, n, scale * per_step, noise);",
        "dpml_noise_gaussian(rng, n, scale / 2.0 * per_step, noise);",
        f"{TEST_NOISY_REPLAY}::test_an_attack_on_poisson_batches[dp-sgd-4-2-2-Relation.REPLACE_ONE]",
    ),
    Mutant(
        "noise-of-a-poisson-step-less-by-a-third",
        KERNELS,
        "dpml_noise_gaussian(rng, n, scale * per_step, noise);",
        "dpml_noise_gaussian(rng, n, scale / 1.5 * per_step, noise);",
        f"{TEST_NOISY_REPLAY}::test_an_attack_on_poisson_batches[bst14-5-4-1-Relation.ADD_REMOVE]",
    ),
    Mutant(
        "allocated-batches-cut-by-count",
        KERNELS,
        "state->full_batch = state->batch < state->n_sizes ? state->sizes[state->batch] : INT32_MAX;",
        "state->full_batch = state->options.batch_size;",
        f"{TEST_ALLOCATION_REPLAY}::test_a_pass_is_cut_by_the_sizes[False-0.0-1]",
    ),
    Mutant(
        "noise-of-an-allocated-step-less-by-a-fifth",
        KERNELS,
        "dpml_noise_gaussian(rng, n, scale * per_step, noise);",
        "dpml_noise_gaussian(rng, n, scale / 1.25 * per_step, noise);",
        f"{TEST_ALLOCATION_REPLAY}::test_an_attack_on_random_allocation[dp-sgd-Relation.ADD_REMOVE]",
    ),
    Mutant(
        "accounted-by-key-and-cut-by-count",
        METHODS,
        "allocated=noise.allocations > 0,",
        "allocated=False,",
        f"{TEST_ALLOCATION_REPLAY}::test_the_noise_costs_what_was_asked_for[scs13-0.05-options1-1-Relation.ADD_REMOVE]",
    ),
    Mutant(
        "batches-by-default-drawn-one-way-and-accounted-another",
        METHODS,
        "return replace(poisson, multipliers=drawn.multipliers), warning, reason",
        "return replace(drawn, scale=poisson.scale), warning, reason",
        f"{TEST_NOISY_SGD}::test_dp_sgd_takes_the_batches_that_need_no_more_noise"
        "[privacy2-options2-False-Relation.ADD_REMOVE]",
    ),
    Mutant(
        "one-order-of-all-passes-accounted-as-one-pass",
        PRIVACY,
        "math.sqrt(passes / count) * found.noise_multiplier",
        "1.0 * found.noise_multiplier",
        f"{TEST_ALLOCATION_REPLAY}::test_the_noise_costs_what_was_asked_for[scs13-0.05-options1-1-Relation.ADD_REMOVE]",
    ),
    Mutant(
        "one-order-of-all-passes-charged-as-one-pass",
        PRIVACY,
        "self.accounted_multiplier / math.sqrt(self.passes / self.allocations)",
        "self.accounted_multiplier",
        f"{TEST_ALLOCATION_REPLAY}::test_the_noise_costs_what_was_asked_for[scs13-0.05-options1-1-Relation.ADD_REMOVE]",
    ),
    Mutant(
        "a-replaced-unit-accounted-for-as-a-removed-one",
        PRIVACY,
        "subsampled.subsampled_gaussian_multiplier(epsilon, delta, sampling, steps, relation)",
        "subsampled.subsampled_gaussian_multiplier(epsilon, delta, sampling, steps, Relation.ADD_REMOVE)",
        f"{TEST_NOISY_REPLAY}::test_an_attack_on_poisson_batches[dp-sgd-5-4-1-Relation.REPLACE_ONE]",
    ),
    Mutant(
        "tail-cut-off-near-5",
        KERNELS,
        "piece = __builtin_clzll(word);",
        "piece = __builtin_clzll(word | UINT64_C(1) << 58);",
        f"{TEST_NOISE}::test_gaussian_beyond_the_last_edge[12]",
    ),
    Mutant(
        "tail-cut-off-near-9",
        KERNELS,
        "piece = __builtin_clzll(word);",
        "piece = __builtin_clzll(word | UINT64_C(1) << 42);",
        f"{TEST_NOISE}::test_gaussian_beyond_the_last_edge[23]",
    ),
    Mutant(
        "tail-of-an-exponential",
        KERNELS,
        "return exp(-beyond * edge - beyond * (0.25 * piece + 0.5 * beyond));",
        "return exp(-beyond * edge - beyond * 0.25 * piece);",
        f"{TEST_NOISE}::test_shares_are_right_to_50_bits",
    ),
    Mutant(
        "delta-of-one-pass-of-noise",
        PRIVACY,
        "gaussian_share(epsilon, delta, passes * n_weights)",
        "gaussian_share(epsilon, delta, n_weights)",
        f"{TEST_CALIBRATION}::test_delta_covers_every_number_of_noise[scs13]",
    ),
    Mutant(
        "delta-of-one-step-of-noise",
        PRIVACY,
        "_left_to_steps(epsilon, delta, steps * n_weights)",
        "_left_to_steps(epsilon, delta, n_weights)",
        f"{TEST_CALIBRATION}::test_delta_covers_every_number_of_noise[dp-sgd]",
    ),
    Mutant(
        "coins-taken-to-be-exact",
        PRIVACY,
        "return min(1.0, sampling * (1.0 +",
        "return min(1.0, sampling + 0.0 * (1.0 +",
        f"{TEST_CALIBRATION}::test_what_the_accountant_is_asked",
    ),
    Mutant(
        "plain-sum-of-shards",
        BLOCKS,
        "return high + low",
        "return high",
        f"{TEST_SHARD_SUMS}::test_the_sum_of_shards_is_off_by_one_rounding",
    ),
    Mutant(
        "portions-cut-by-the-order-of-shards",
        BLOCKS,
        "sorted(keys[heads[place]])[",
        "keys[heads[place]][",
        f"{TEST_PORTIONS}::test_every_portion_has_its_size",
    ),
    Mutant(
        "large-batches-at-no-delta",
        PRIVACY,
        "return delta * (1.0 - 2.0 * _UNLIKELY)",
        "return delta",
        f"{TEST_CALIBRATION}::test_what_the_accountant_is_asked",
    ),
    Mutant(
        "rounding-of-a-mean-batch",
        PRIVACY,
        "sum_rounding(most * max_rows_per_unit, row_bound)",
        "sum_rounding(sampling * n_units * max_rows_per_unit, row_bound)",
        f"{TEST_CALIBRATION}::test_head_room_of_poisson_batches",
    ),
    Mutant(
        "rounding-of-a-row-of-each-unit",
        PRIVACY,
        "sum_rounding(most * max_rows_per_unit, row_bound)",
        "sum_rounding(most, row_bound)",
        f"{TEST_CALIBRATION}::test_head_room_of_poisson_batches",
    ),
    Mutant(
        "rounding-of-one-row",
        METHODS,
        "batch_rows=min(batch_size, problem.n_units) * problem.max_rows_per_unit,",
        "batch_rows=1,",
        f"{TEST_CALIBRATION}::test_head_room_of_shuffled_passes",
    ),
    Mutant(
        "no-room-for-the-grid",
        PRIVACY,
        "multiplier * (change + rounding) / (1.0 - share)",
        "multiplier * (change + rounding)",
        f"{TEST_CALIBRATION}::test_head_room_of_shuffled_passes",
    ),
    Mutant(
        "no-room-for-the-rounding",
        PRIVACY,
        "multiplier * (change + rounding) / (1.0 - share)",
        "multiplier * change / (1.0 - share)",
        f"{TEST_CALIBRATION}::test_head_room_of_poisson_batches",
    ),
    Mutant(
        "realised-batch-size-in-the-sum",
        KERNELS,
        "return -step / (options->batch_size * state->scale);",
        "return -step / ((state->in_batch > 0 ? state->in_batch : 1) * state->scale);",
        f"{TEST_NOISY_REPLAY}::test_a_unit_moves_the_sums_by_at_most_the_sensitivity[scs13-binary-1]",
    ),
    Mutant(
        "rows-of-a-unit-draw-coins",
        KERNELS,
        "state->end_row = unit + 1 < store->n_units ? store->units[unit + 1] : store->n_rows;",
        "state->end_row = state->next_row + 1;",
        f"{TEST_NOISY_REPLAY}::test_a_unit_moves_the_sums_by_at_most_the_sensitivity[bst14-binary-3]",
    ),
    Mutant(
        "step-noise-of-a-unit-as-of-a-row",
        TRAINING,
        "row_bound, problem.max_rows_per_unit * row_bound)",
        "row_bound, row_bound)",
        f"{TEST_NOISY_REPLAY}::test_a_unit_moves_the_sums_by_at_most_the_sensitivity",
    ),
    Mutant(
        "softmax-derivatives-not-clipped",
        KERNELS,
        "slopes[k] *= bound / norm;",
        "slopes[k] *= 1.0;",
        f"{TEST_NOISY_REPLAY}::test_a_unit_moves_the_sums_by_at_most_the_sensitivity[dp-sgd-multiclass-1]",
    ),
    Mutant(
        "one-vs-all-without-sqrt-K",
        KERNELS,
        "joint = sqrt((double) loss->n_classes);",
        "joint = 1.0 + 0.0 * loss->n_classes;",
        f"{TEST_REPLAY}::test_worst_pair_of_classification_losses[1-one-vs-all-clipped]",
    ),
    Mutant(
        "logistic-clip-removed",
        KERNELS,
        "return -dpml_least(1.0 / (1.0 + exp(m)), clip);",
        "return clip > 0.0 ? -1.0 / (1.0 + exp(m)) : 0.0;",
        f"{TEST_REPLAY}::test_worst_pair_of_classification_losses[1-logistic-clipped]",
    ),
    Mutant(
        "squared-clip-removed",
        KERNELS,
        "return dpml_clamp(u - y, -loss->clip, loss->clip);",
        "return u - y;",
        f"{TEST_REPLAY}::test_worst_pair_reaches_the_sensitivity[1-12-constant-Relation.REPLACE_ONE]",
    ),
    Mutant(
        "row-norm-not-bounded",
        KERNELS,
        "return target_norm / norm;",
        "return 1.0 + 0.0 * norm;",
        f"{TEST_REPLAY}::test_encoded_rows_are_never_longer_than_the_losses_assume",
    ),
    Mutant(
        "strongly-convex-bound-divided-by-b",
        KERNELS,
        "push * (run->gradient_change / run->batch_size) *",
        "push * (run->gradient_change / run->batch_size) /"
        " (run->schedule.kind == DPML_STRONGLY_CONVEX ? run->batch_size : 1) *",
        f"{TEST_REPLAY}::test_strongly_convex_bound_does_not_shrink_with_the_batch[7]",
    ),
    Mutant(
        "short-batch-divided-by-its-size",
        KERNELS,
        "return -step / (options->batch_size * state->scale);",
        "return -step / ((state->in_batch > 0 ? state->in_batch : 1) * state->scale);",
        f"{TEST_REPLAY}::test_worst_pair_reaches_the_sensitivity[7-30-constant-Relation.REPLACE_ONE]",
    ),
    Mutant(
        "largest-pass-instead-of-their-sum",
        KERNELS,
        "total[p] += walk_back(walk, run, s);",
        "total[p] = dpml_most(total[p], walk_back(walk, run, s));",
        f"{TEST_REPLAY}::test_worst_pair_reaches_the_sensitivity",
    ),
    Mutant(
        "fresh-orders-taken-for-one",
        KERNELS,
        "return !run->fresh_order && run->passes > 1",
        "return run->passes > 1",
        f"{TEST_REPLAY}::test_worst_pair_reaches_the_sensitivity",
    ),
    Mutant(
        "steps-of-units-as-long-as-of-rows",
        TRAINING,
        "smoothness=loss.unit_smoothness(problem.max_rows_per_unit),",
        "smoothness=loss.unit_smoothness(1),",
        "tests/privacy/test_units.py::test_a_step_of_a_unit_is_as_steep_as_all_its_rows",
    ),
    Mutant(
        "noise-of-a-full-batch-halved",
        PRIVACY,
        "return output.release(gradient, noise, source or Noise())",
        "return (gradient + output.release(gradient, noise, source or Noise())) / 2.0",
        f"{TEST_FULL_BATCH}::test_an_attack_on_dp_gd_learns_no_more_than_claimed[1.0-Relation.REPLACE_ONE-1-more1]",
    ),
    Mutant(
        "steps-without-sqrt-T",
        PRIVACY,
        "rounding, n_weights, mu / math.sqrt(steps)",
        "rounding, n_weights, mu",
        f"{TEST_FULL_BATCH}::test_plans_computed_again[dp-gd]",
    ),
    Mutant(
        "D-of-steps-without-the-2",
        PRIVACY,
        "relation.gradient_change(bound), rounding",
        "bound, rounding",
        f"{TEST_FULL_BATCH}::test_plans_computed_again[dp-gd]",
    ),
    Mutant(
        "rows-of-a-unit-in-a-step-counted-once",
        TRAINING,
        "row_bound, problem.max_rows_per_unit * row_bound)",
        "row_bound, row_bound)",
        f"{TEST_FULL_BATCH}::test_plans_computed_again[dp-gd]",
    ),
    Mutant(
        "second-moments-of-replaced-rows-as-of-added",
        PRIVACY,
        "(Relation.REPLACE_ONE, False): 2.0",
        "(Relation.REPLACE_ONE, False): 1.0",
        f"{TEST_FULL_BATCH}::test_an_attack_on_second_moments_learns_no_more_than_claimed"
        "[False-Relation.REPLACE_ONE]",
    ),
    Mutant(
        "labels-added-to-second-moments-as-if-apart",
        PRIVACY,
        "(Relation.REPLACE_ONE, True): 4.5",
        "(Relation.REPLACE_ONE, True): 2.0",
        f"{TEST_FULL_BATCH}::test_an_attack_on_second_moments_learns_no_more_than_claimed"
        "[True-Relation.REPLACE_ONE]",
    ),
    Mutant(
        "second-moments-not-paid-for",
        METHODS,
        "gradient_mu = math.sqrt(1.0 - share) * mu",
        "gradient_mu = mu",
        f"{TEST_FULL_BATCH}::test_plans_computed_again[whitened-dp-gd]",
    ),
    Mutant(
        "second-moments-take-more-than-their-share",
        METHODS,
        "share = GRAM_SHARE / hidden\n    gradient_mu = math.sqrt(1.0 - share) * mu",
        "share = GRAM_SHARE\n    gradient_mu = math.sqrt(1.0 - share / hidden) * mu",
        f"{TEST_FULL_BATCH}::test_plans_computed_again[whitened-dp-gd]",
    ),
    Mutant(
        "float32-lengthens-whitened-rows",
        PRIVACY,
        "return (1.0 - 2.0**-19) / (1.0 + condition * 2.0**-23)",
        "return 1.0 - 2.0**-19 + 0.0 * condition",
        f"{TEST_FULL_BATCH}::test_rows_are_scaled_for_the_rounding_of_float32",
    ),
    Mutant(
        "condition-not-as-planned",
        METHODS,
        "np.clip(smoothed(values, self.stddev), 0.0, self.most)",
        "np.maximum(smoothed(values, self.stddev), 0.0)",
        f"{TEST_FULL_BATCH}::test_the_condition_of_every_released_matrix_is_as_planned",
    ),
    Mutant(
        "noise-on-both-halves-of-a-matrix",
        PRIVACY,
        "weight = np.where(above[0] == above[1], 1.0, math.sqrt(2.0))",
        "weight = np.where(above[0] == above[1], 1.0, 2.0)",
        f"{TEST_FULL_BATCH}::test_noise_of_second_moments_has_its_distribution[False]",
    ),
    Mutant(
        "derivatives-of-a-row-not-clipped",
        KERNELS,
        "if (norm > bound)",
        "if (norm > 1000.0 * bound)",
        f"{TEST_FULL_BATCH_REPLAY}::test_worst_pair_reaches_the_bound_of_gradients"
        "[logistic-1-0.2-inf-Relation.REPLACE_ONE]",
    ),
    Mutant(
        "derivatives-of-a-row-of-classes-not-clipped",
        KERNELS,
        "(DpmlLaneBits) (norm > clip)",
        "(DpmlLaneBits) (norm > 1000.0 * clip)",
        f"{TEST_FULL_BATCH_REPLAY}::test_worst_pair_reaches_the_bound_of_gradients"
        "[softmax-1-0.2-inf-Relation.REPLACE_ONE]",
    ),
    Mutant(
        "gradient-of-a-unit-not-clipped",
        KERNELS,
        "norm > limit ? limit / norm : 1.0",
        "1.0",
        f"{TEST_FULL_BATCH_REPLAY}::test_worst_pair_reaches_the_bound_of_gradients"
        "[logistic-4-0.2-0.3-Relation.REPLACE_ONE]",
    ),
    Mutant(
        "passes-stopped-by-tolerance",
        "controller/pg_dpml/methods/bolt_on.py",
        "run_passes(job, self.work)",
        "run_passes(job, self.work, 0.5)",
        f"{TEST_PLAN}::test_passes_are_fixed_beforehand",
    ),
    Mutant(
        "models-of-shards-with-equal-weights",
        METHODS,
        "sum(weights[one.place] * one.weights for",
        "sum(one.weights / len(models) for",
        f"{TEST_SHARD_MODELS}::test_one_unit_moves_the_mean_by_the_sensitivity_at_most"
        "[constant-Relation.REPLACE_ONE]",
    ),
    Mutant(
        "models-of-shards-measured-as-of-all-rows",
        METHODS,
        "_measure_one(replace(problem, n_units=units), privacy, sgd)",
        "_measure_one(problem, privacy, sgd)",
        f"{TEST_SHARD_MODELS}::test_one_unit_moves_the_mean_by_the_sensitivity_at_most"
        "[strongly convex-Relation.ADD_REMOVE]",
    ),
    Mutant(
        "models-of-shards-by-the-least-sensitive",
        METHODS,
        "max(share * own.sensitivity for",
        "min(share * own.sensitivity for",
        f"{TEST_SHARD_MODELS}::test_one_unit_moves_the_mean_by_the_sensitivity_at_most"
        "[average-Relation.REPLACE_ONE]",
    ),
    Mutant(
        "mean-of-models-without-its-rounding",
        METHODS,
        " + output.mean_rounding(len(models), norm)",
        "",
        f"{TEST_SHARD_MODELS}::test_rounding_of_the_mean_is_allowed_for",
    ),
    Mutant(
        "certified-answers-taken-for-minimisers",
        TRAINING,
        "gradient_change / n_units + 2.0 * self.gradient_norm",
        "gradient_change / n_units + 0.0 * self.gradient_norm",
        f"{TEST_CERTIFIED}::test_noise_of_a_certified_run",
    ),
    Mutant(
        "certificate-without-its-rounding",
        TRAINING,
        "(self.gradient_norm - self.rounding) *",
        "self.gradient_norm *",
        f"{TEST_CERTIFIED}::test_tau_is_above_the_rounding_whatever_n",
    ),
    Mutant(
        "gradient-not-certified",
        TRAINING,
        "reached = self.norm <= self.goal.gradient_norm",
        "reached = self.passes > 20",
        f"{TEST_CERTIFIED}::test_every_table_is_certified",
    ),
    Mutant(
        "one-unit-of-several-rows-moves-the-minimiser-as-a-row",
        METHODS,
        "objective = Objective(loss, options.lambda_, problem.max_rows_per_unit)",
        "objective = Objective(loss, options.lambda_, 1)",
        f"{TEST_CERTIFIED}::test_classes_and_units_count_as_in_sgd",
    ),
    Mutant(
        "answers-of-objective-perturbation-on-one-side-of-the-minimiser",
        PRIVACY,
        "return 2.0 * gradient_norm / convexity",
        "return gradient_norm / convexity",
        f"{TEST_OBJECTIVE}::test_answers_with_one_minimiser_reach_the_sensitivity",
    ),
    Mutant(
        "half-of-the-regulariser-that-is-paid-for",
        METHODS,
        "convexity = regulariser / n_units",
        "convexity = 0.5 * regulariser / n_units",
        f"{TEST_OBJECTIVE}::test_a_plan_pays_for_its_parts[1.0-objpert-binary-logistic-1-Relation.REPLACE_ONE-1]",
    ),
    Mutant(
        "half-of-the-linear-term",
        PRIVACY,
        "return output.draw(noise.linear, source) * noise.linear.grid",
        "return output.draw(noise.linear, source) * 0.5 * noise.linear.grid",
        f"{TEST_OBJECTIVE}::test_the_linear_term_has_its_distribution_on_its_grid",
    ),
    Mutant(
        "linear-term-of-half-the-scale",
        PRIVACY,
        '"gaussian", gaussian_stddev(change, mu), change,',
        '"gaussian", 0.5 * gaussian_stddev(change, mu), change,',
        f"{TEST_OBJECTIVE}::test_a_plan_pays_for_its_parts[1.0-objpert-binary-logistic-1-Relation.REPLACE_ONE-1]",
    ),
    Mutant(
        "shift-of-objective-perturbation-taken-for-fixed",
        PRIVACY,
        "return sum(math.exp(min(one, 1.0)) for one in logs) * _ROOM",
        "return math.exp(min(logs[-1], 1.0)) * _ROOM",
        f"{TEST_OBJECTIVE}::test_deltas_of_vertices_are_the_formulas_of_one_row",
    ),
    Mutant(
        "rounding-of-the-linear-term-for-nothing",
        METHODS,
        "rounding=certified.rounding + moved",
        "rounding=certified.rounding + 0.0 * moved",
        f"{TEST_OBJECTIVE}::test_a_plan_pays_for_its_parts[1.0-objpert-binary-logistic-1-Relation.REPLACE_ONE-1]",
    ),
    Mutant(
        "grid-of-a-release-too-fine",
        PRIVACY,
        "math.log2(GRID_FRACTION * sensitivity",
        "math.log2(2.0**-40 * sensitivity",
        f"{TEST_RESOLUTION}::test_every_plan_is_resolved_or_refused[bolt-on-Relation.REPLACE_ONE]",
    ),
    Mutant(
        "grid-of-steps-too-fine",
        KERNELS,
        "return ldexp(1.0, exponent - 21);",
        "return ldexp(1.0, exponent - 41);",
        f"{TEST_RESOLUTION}::test_every_plan_is_resolved_or_refused[scs13-Relation.REPLACE_ONE]",
    ),
    Mutant(
        "noise-wider-than-its-grid-allows",
        PRIVACY,
        "if not stddev <= MOST_STEPS * grid:",
        "if not stddev <= 2.0**80 * grid:",
        f"{TEST_RESOLUTION}::test_every_plan_is_resolved_or_refused[bolt-on-Relation.REPLACE_ONE]",
    ),
    Mutant(
        "sampler-not-taken-out-of-mu",
        PRIVACY,
        'return require_share(sampler_mu(n_numbers), mu, "mu")',
        "return mu",
        f"{TEST_RESOLUTION}::test_no_run_delivers_less_than_it_pays_for[dp-gd-table5-0.01]",
    ),
    Mutant(
        "no-further-digits-where-a-place-reaches-over-two-points",
        KERNELS,
        "from += (int64_t) ((unsigned __int128) rng_next(rng) * (uint64_t) width >> 64);",
        "(void) rng_next(rng);",
        f"{TEST_RESOLUTION}::test_words_lead_where_counts_say[44.9]",
    ),
    Mutant(
        "eight-places-taken-for-one",
        KERNELS,
        "return (int64_t) word >> 8;",
        "return (int64_t) (word >> 11 << 11) >> 8;",
        f"{TEST_RESOLUTION}::test_words_lead_where_counts_say[44.9]",
    ),
    Mutant(
        "left-of-0-a-place-beside",
        KERNELS,
        "from = -from - width;",
        "from = -from;",
        f"{TEST_RESOLUTION}::test_both_sides_are_alike",
    ),
    Mutant(
        "tail-cut-off-beyond-6",
        KERNELS,
        "if (word == 0)",
        "if (word < UINT64_C(1) << 54)",
        f"{TEST_RESOLUTION}::test_words_lead_where_counts_say[20.0]",
    ),
    Mutant(
        "pieces-of-the-tail-not-thinned",
        KERNELS,
        "dpml_rng_coin(rng, ziggurat_tail[piece]) && ",
        "",
        f"{TEST_RESOLUTION}::test_words_lead_where_counts_say[20.0]",
    ),
    Mutant(
        "a-half-word-too-many-not-drawn-again",
        KERNELS,
        "if ((uint32_t) product < too_many)",
        "if ((uint32_t) product < 0 * too_many)",
        f"{TEST_ALLOCATION_REPLAY}::test_a_draw_of_too_many_is_drawn_again",
    ),
    Mutant(
        "coins-of-32-digits",
        KERNELS,
        "return word < digit;",
        "return word >> 32 < digit >> 32;",
        f"{TEST_RESOLUTION}::test_a_coin_has_just_its_probability[0.3333333333333333]",
    ),
    Mutant(
        "k-norm-noise-of-one-degree-less",
        KERNELS,
        "for (int64_t i = 0; i <= n; i++)",
        "for (int64_t i = 0; i < n; i++)",
        f"{TEST_LOW_BITS}::test_k_norm_noise_is_normal_of_a_random_scale[1]",
    ),
    Mutant(
        "realised-batch-size-in-an-update",
        KERNELS,
        "factor = options->sequential ? 1.0 : (double) options->batch_size * options->max_rows_per_unit;",
        "factor = options->sequential ? 1.0 : (double) state->in_batch * options->max_rows_per_unit;",
        f"{TEST_COORDINATES}::test_a_unit_moves_a_step_by_at_most_the_clip[hinge-1]",
    ),
    Mutant(
        "clip-of-updates-removed",
        KERNELS,
        "zeta = dpml_clamp(zeta, -options->update_clip, options->update_clip);",
        "",
        f"{TEST_COORDINATES}::test_a_unit_moves_a_step_by_at_most_the_clip[squared-1]",
    ),
    Mutant(
        "noise-on-v-halved",
        KERNELS,
        "add_noise(state->rng, options->noise, options->noise_scale, state->grid, d,",
        "add_noise(state->rng, options->noise, 0.5 * options->noise_scale, state->grid, d,",
        f"{TEST_COORDINATES}::test_the_noise_that_a_step_adds_is_the_one_planned[dp-scd-False]",
    ),
    Mutant(
        "noise-on-v-halved-by-the-plan",
        PRIVACY,
        'bound=bounds["published" if dual_noise else "sum"],',
        'bound=0.5 * bounds["published" if dual_noise else "sum"],',
        f"{TEST_COORDINATES}::test_an_attack_on_one_step[1.0-Relation.REPLACE_ONE]",
    ),
    Mutant(
        "noise-on-both-vectors-without-the-sqrt-2",
        PRIVACY,
        "(math.sqrt(m * (m + 1.0)) if dual_noise else m)",
        "m",
        f"{TEST_COORDINATE_CALIBRATION}::test_noise_on_both_vectors_is_calibrated_for_both[1-Relation.REPLACE_ONE]",
    ),
    Mutant(
        "sequential-noise-without-the-sqrt-2",
        PRIVACY,
        "math.sqrt(batch_rows * (batch_rows + 1.0))",
        "batch_rows",
        f"{TEST_COORDINATES}::test_a_unit_moves_a_sequential_batch_by_at_most_its_bound[hinge-1-1]",
    ),
    Mutant(
        "sequential-duals-without-noise",
        KERNELS,
        "if (options->dual_noise)",
        "if (options->dual_noise && !options->sequential)",
        f"{TEST_COORDINATES}::test_the_noise_that_a_step_adds_is_the_one_planned[seq-dp-scd-True]",
    ),
    Mutant(
        "sequential-passes-accounted-as-one",
        PRIVACY,
        "ratio = gaussian_stddev(math.sqrt(passes), mu)",
        "ratio = gaussian_stddev(1.0, mu)",
        f"{TEST_COORDINATE_CALIBRATION}::test_sequential_passes_compose_exactly[10-4]",
    ),
    Mutant(
        "clip-of-coordinates-removed",
        METHODS,
        "return np.clip(change, -self.update_clip, self.update_clip)",
        "return change",
        f"{TEST_COORDINATES}::test_a_unit_moves_the_coordinates_of_a_step_by_at_most_their_bound[logistic-2]",
    ),
    Mutant(
        "steps-on-coordinates-accounted-as-one",
        PRIVACY,
        "output.calibrate_gaussian(bound, 0.0, coordinates, mu / math.sqrt(steps))",
        "output.calibrate_gaussian(bound, 0.0, coordinates, mu)",
        f"{TEST_COORDINATE_CALIBRATION}::test_steps_on_coordinates_compose_exactly[7]",
    ),
    Mutant(
        "exponential-noise-in-place-of-gumbel",
        PRIVACY,
        "        drawn = uniform(int(ends[-1]))\n",
        "        noisy = [float(rate) * one - np.log1p(-uniform(2**53) / 2.0**53) for one in excess]\n"
        "        return noisy.index(min(noisy))\n",
        f"{TEST_ADAPTIVE}::test_a_choice_has_the_distribution_of_gumbel_noise[losses1-Relation.ADD_REMOVE]",
    ),
    Mutant(
        "choice-charged-as-if-it-were-half",
        PRIVACY,
        "return math.sqrt(8.0 * rho) / ROUND_UP",
        "return math.sqrt(16.0 * rho) / ROUND_UP",
        f"{TEST_ADAPTIVE}::test_the_worst_pair_costs_no_more_than_is_paid[0.001-Relation.REPLACE_ONE]",
    ),
    Mutant(
        "losses-of-a-replaced-row-move-one-way",
        PRIVACY,
        "selection.score_spread(of_unit, relation, rounding)",
        "selection.score_spread(of_unit, Relation.ADD_REMOVE, rounding)",
        f"{TEST_ADAPTIVE}::test_the_worst_pair_costs_no_more_than_is_paid[0.001-Relation.REPLACE_ONE]",
    ),
    Mutant(
        "losses-of-one-row-a-unit",
        PRIVACY,
        "of_unit = Fraction(loss_clip) * max_rows_per_unit",
        "of_unit = Fraction(loss_clip)",
        f"{TEST_ADAPTIVE}::test_sums_of_neighbours[logistic-3-Relation.ADD_REMOVE]",
    ),
    Mutant(
        "losses-clipped-on-one-side",
        KERNELS,
        "losses[j] += dpml_clamp(row_value(&options->loss, own, label), 0.0, options->loss_clip);",
        "losses[j] += dpml_clamp(row_value(&options->loss, own, label), 0.0, INFINITY);",
        f"{TEST_ADAPTIVE}::test_sums_of_neighbours[huber_svm-1-Relation.ADD_REMOVE]",
    ),
    Mutant(
        "unnormalised-step",
        METHODS,
        "tried[:, np.newaxis] * (move / norm)",
        "tried[:, np.newaxis] * move",
        f"{TEST_ADAPTIVE}::test_steps_are_of_the_length_that_was_chosen",
    ),
    Mutant(
        "averages-what-was-normalised",
        METHODS,
        "noisy = _averaged(noisy, known,",
        "noisy = _averaged(noisy / max(float(np.linalg.norm(noisy)), 1e-300), known,",
        f"{TEST_ADAPTIVE}::test_steps_are_of_the_length_that_was_chosen",
    ),
    Mutant(
        "noise-on-a-measurement-halved",
        PRIVACY,
        "require_share(sampler_mu(n_weights), math.sqrt(2.0 * rho), ",
        "require_share(sampler_mu(n_weights), math.sqrt(8.0 * rho), ",
        f"{TEST_ADAPTIVE}::test_a_measurement_is_as_private_as_what_is_paid[huber_svm-1.0-Relation.REPLACE_ONE]",
    ),
    Mutant(
        "filter-compares-after-spending",
        PRIVACY,
        "        left = self._left - sum(map(Fraction, costs))\n        if left < 0:",
        "        left = self._left - sum(map(Fraction, costs))\n        if self._left < 0:",
        f"{TEST_ADAPTIVE}::test_rho_is_never_overdrawn",
    ),
    Mutant(
        "better-gradient-for-nothing",
        METHODS,
        "while left.pay(share - known, noise.share):",
        "while left.pay(0.0 if known else share, noise.share):",
        f"{TEST_ADAPTIVE}::test_rho_is_never_overdrawn",
    ),
    Mutant(
        "blanked-rho-taken-for-replaced",
        PRIVACY,
        "Cost(_ceiling(steps**2 * loss)",
        "Cost(_ceiling(steps * loss)",
        f"{TEST_ADAPTIVE}::test_a_budget_takes_the_run_by_its_own_account[Relation.ADD_REMOVE]",
    ),
    Mutant(
        "choice-taken-for-gaussian-by-a-gdp-budget",
        PRIVACY,
        "max(2.0 * run.rho, run.choices * _pure_mu(run.choice_epsilon) ** 2)",
        "2.0 * run.rho",
        f"{TEST_ADAPTIVE}::test_a_budget_takes_the_run_by_its_own_account[Relation.REPLACE_ONE]",
    ),
]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources with kernels of its own."""
    copy = tmp_path_factory.mktemp("mutants") / "sound"
    ignore = shutil.ignore_patterns("__pycache__", "*.so", "*.o", "data")
    for folder in ("controller", "udas", "tests"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=ignore)
    shutil.rmtree(copy / "tests" / "database")
    shutil.copy(ROOT / "pyproject.toml", copy)
    mutation.build(copy)
    return copy


def test_every_mutant_has_a_name_of_its_own() -> None:
    """It is the name of its folder."""
    names = [mutant.name for mutant in MUTANTS]
    assert len(set(names)) == len(names)


@pytest.mark.slow
def test_the_unchanged_copy_passes(sound: Path) -> None:
    """One case of a test of each file, but no long attack: all are tried on the sources themselves."""
    tests = sorted({mutant.test for mutant in MUTANTS if "attack" not in mutant.test})
    one_each = {test.partition("::")[0]: test for test in tests}
    assert one_each.keys() == {mutant.test.partition("::")[0] for mutant in MUTANTS}
    code, report = mutation.run_tests(sound, *one_each.values(), first_cases=True)
    assert code == pytest.ExitCode.OK, report


def place_of(mutant: Mutant, copy: Path) -> Path:
    """The file that has the text."""
    room = copy / mutant.room
    files = [room] if room.is_file() else [f for f in room.rglob("*") if f.suffix in (".c", ".h", ".py")]
    texts = {file: file.read_text(encoding="utf-8").count(mutant.old) for file in files}
    (place,) = [file for file, count in texts.items() if count > 0]
    assert texts[place] == 1, f"{place} has this text more than once: {mutant.old}"
    return place


@pytest.mark.parametrize("planted", MUTANTS, ids=lambda planted: planted.name)
def test_every_mutant_has_one_place(planted: Mutant) -> None:
    """The parameter has a name of its own: `trials` tries every `mutant` that is chosen."""
    assert place_of(planted, ROOT)


def try_mutants(mutants: Sequence[Mutant], sound: Path) -> dict[str, tuple[int, str]]:
    """The tests of mutants that are one change, by name, on a copy that has the mistake."""
    mutant = mutants[0]
    copy = sound.parent / mutant.name
    shutil.copytree(sound, copy, copy_function=os.link)  # what is changed becomes a file of its own
    file = place_of(mutant, copy)
    text = file.read_text(encoding="utf-8")
    file.unlink()
    file.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
    for compiled in file.parent.glob(f"__pycache__/{file.stem}.*"):
        compiled.unlink()
    if file.suffix in (".c", ".h"):
        mutation.compile_changed(copy, file)
    found = {each.name: mutation.run_tests(copy, each.test) for each in mutants}
    shutil.rmtree(copy)
    return found


@pytest.fixture(scope="module")
def trials(sound: Path, request: pytest.FixtureRequest) -> Iterator[Trials]:
    """The trials of the mutants that were chosen, by name, on all cores."""
    chosen = [item for item in request.session.items if isinstance(item, pytest.Function)]
    mutants = [item.callspec.params.get("mutant") for item in chosen if hasattr(item, "callspec")]
    changes = defaultdict[tuple[Path, str, str], list[Mutant]](list)
    for mutant in mutants:
        if isinstance(mutant, Mutant):
            changes[place_of(mutant, ROOT), mutant.old, mutant.new].append(mutant)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        futures = [(same, pool.submit(try_mutants, same, sound)) for same in changes.values()]
        yield {mutant.name: future for same, future in futures for mutant in same}
        pool.shutdown(cancel_futures=True)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutants_are_caught(mutant: Mutant, trials: Trials) -> None:
    code, report = trials[mutant.name].result()[mutant.name]
    assert code == pytest.ExitCode.TESTS_FAILED, report
