# SPDX-License-Identifier: PostgreSQL
"""The default method finds what is there to be found: as epsilon grows, the model that has no noise.

Made-up tables: rare classes, wrong labels, columns of unlike spread, some collinear. Models are trained by
the kernels that the server runs. Source: docs/methods.md, "What the options do to the noise".
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import optimize, special, stats

from helpers import neighbours
from helpers.kernel_job import KernelJob
from helpers.neighbours import FloatArray
from helpers.plans import decide
from pg_dpml.spec.privacy import PrivacySpec
from pg_dpml.training.plan import Problem
from pg_dpml.training.spec import TrainSpec

BLOCK_VALUES = 200_000


def encoded(x: FloatArray, lower: FloatArray, upper: FloatArray) -> FloatArray:
    """Scaled to [-1, 1], with an intercept, of norm 1."""
    rows = 2.0 * (np.clip(x, lower, upper) - lower) / (upper - lower) - 1.0
    rows = np.hstack([rows, np.ones((len(rows), 1))])
    rows *= neighbours.LONGEST_ROW / np.linalg.norm(rows, axis=1, keepdims=True)
    return rows.astype(np.float32).astype(np.float64)


def rare_class(
    rng: np.random.Generator, n: int, others: int, d: int, wrong: float = 0.0
) -> tuple[FloatArray, FloatArray]:
    """A row of the class to so many others; one column tells them apart, a third of the others a little."""
    y = np.where(np.arange(n) % (others + 1) == 0, 1.0, -1.0)
    x = rng.uniform(0.0, 1.0, (n, d))
    x[:, 0] = (y > 0.0) + rng.uniform(-0.6, 0.6, n)
    for column in range(1, d // 3):
        x[:, column] = 0.5 + 0.1 * (y > 0.0) + 0.2 * rng.normal(size=n)
    lower, upper = np.zeros(d), np.ones(d)
    lower[0], upper[0] = -1.0, 2.0
    return encoded(x, lower, upper), np.where(rng.random(n) < wrong, -y, y)


def unlike_columns(rng: np.random.Generator, n: int, d: int) -> tuple[FloatArray, FloatArray]:
    """Columns of spreads from 0.1 to 1, two nearly equal, in bounds up to three times too wide."""
    x = rng.normal(size=(n, d)) * 10.0 ** rng.uniform(-1.0, 0.0, d)
    x[:, 1] = x[:, 0] + 0.05 * rng.normal(size=n)
    spread = x.std(axis=0)
    score = x @ (rng.normal(size=d) / spread)
    y = np.where(score + 0.05 * score.std() * rng.logistic(size=n) > 0.0, 1.0, -1.0)
    width = 4.0 * spread * rng.uniform(1.0, 3.0, d)
    return encoded(x, -width, width), y


def minimiser(x: FloatArray, y: FloatArray) -> FloatArray:
    """Of the mean logistic loss."""

    def objective(w: FloatArray) -> tuple[float, FloatArray]:
        margins = y * (x @ w)
        loss = np.logaddexp(0.0, -margins).mean() + 5e-9 * w @ w
        return float(loss), -(x.T @ (y * special.expit(-margins))) / len(y) + 1e-8 * w

    found = optimize.minimize(
        objective, np.zeros(x.shape[1]), jac=True, method="L-BFGS-B", options={"maxiter": 2000}
    )
    return np.asarray(found.x)


def trained(x: FloatArray, y: FloatArray, epsilon: float, method: str = "auto") -> FloatArray:
    n, d = x.shape
    plan = decide(Problem(n, d, 1, "binary"), PrivacySpec(epsilon), TrainSpec(method=method))
    per_block = max(BLOCK_VALUES // d, 1)
    ends = [*range(per_block, n, per_block), n]
    job: Any = KernelJob(plan, neighbours.pack("dense", x, y, None, ends))
    return np.asarray(plan.run(job).weights).reshape(-1)


def accuracy(w: FloatArray, x: FloatArray, y: FloatArray) -> float:
    return float(np.mean((x @ w > 0.0) == (y > 0.0)))


def auc(w: FloatArray, x: FloatArray, y: FloatArray) -> float:
    """Area under the curve of the ranks."""
    positive = y > 0.0
    ranks = stats.rankdata(x @ w)[positive]
    n = int(np.sum(positive))
    return float((np.sum(ranks) - n * (n + 1) / 2.0) / (n * (len(y) - n)))


def found(w: FloatArray, x: FloatArray, y: FloatArray) -> float:
    """Share of the class that is found."""
    return float(np.mean(x[y > 0.0] @ w > 0.0))


TABLES = {
    "1:1": lambda rng: rare_class(rng, 5_000, 1, 10),
    "1:1, a tenth wrong": lambda rng: rare_class(rng, 5_000, 1, 10, 0.1),
    "10:1": lambda rng: rare_class(rng, 5_000, 10, 4),
    "10:1, some wrong": lambda rng: rare_class(rng, 8_000, 10, 4, 0.05),
    "50:1": lambda rng: rare_class(rng, 5_100, 50, 2),
    "50:1, wide": lambda rng: rare_class(rng, 40_000, 50, 20),
    "200:1": lambda rng: rare_class(rng, 60_000, 200, 8),
    "5 columns": lambda rng: unlike_columns(rng, 8_000, 5),
    "20 columns": lambda rng: unlike_columns(rng, 20_000, 20),
}


@pytest.mark.statistical
@pytest.mark.parametrize("table", TABLES)
def test_with_hardly_any_noise_it_is_the_model_without(table: str) -> None:
    """No clip and no end of the steps is left that a larger epsilon would not mend, beside a little noise."""
    x, y = TABLES[table](np.random.default_rng(3))
    best = minimiser(x, y)
    private = trained(x, y, 100.0)
    assert accuracy(private, x, y) >= accuracy(best, x, y) - 0.004
    assert auc(private, x, y) >= auc(best, x, y) - 0.01


@pytest.mark.statistical
@pytest.mark.parametrize(("table", "least"), [("50:1", 0.55), ("50:1, wide", 0.55), ("200:1", 0.6)])
def test_a_rare_class_is_found(table: str, least: float) -> None:
    """At epsilon 5, with no more false alarms than without noise."""
    x, y = TABLES[table](np.random.default_rng(3))
    best = minimiser(x, y)
    shares = [trained(x, y, 5.0) for _ in range(3)]
    assert np.mean([found(w, x, y) for w in shares]) >= least
    false = [float(np.mean(x[y < 0.0] @ w > 0.0)) for w in (*shares, best)]
    assert np.mean(false[:3]) <= false[3] + 0.002


@pytest.mark.statistical
def test_steps_of_a_small_table_end_where_its_noise_does() -> None:
    x, y = TABLES["20 columns"](np.random.default_rng(3))
    best = accuracy(minimiser(x, y), x, y)
    assert np.mean([accuracy(trained(x, y, 1.0), x, y) for _ in range(3)]) >= best - 0.02
