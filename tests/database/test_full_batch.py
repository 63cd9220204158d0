# SPDX-License-Identifier: PostgreSQL
"""Whole full-batch runs: what the recipe in numpy makes of the same rows and the same noise."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import psycopg
import pytest

import pg_dpml
from helpers import oracles, people, replay
from helpers.people import BAD_PEOPLE, FloatArray, create_people, make_people
from helpers.plans import gram_share
from helpers.sqltools import scalar
from pg_dpml import Column, DataSpec, Label, PrivacySpec, Relation, TrainSpec
from pg_dpml.blocks import packing
from pg_dpml.blocks.blocks import Blocks, GramSums
from pg_dpml.blocks.packing import PackedRows
from pg_dpml.blocks.source import Source
from pg_dpml.database.session import Session, sql
from pg_dpml.errors import RunFailedError
from pg_dpml.kernels import Noise
from pg_dpml.privacy import gaussian
from pg_dpml.privacy.noise import output
from pg_dpml.privacy.noise.output import ReleaseNoise

pytestmark = [pytest.mark.usefixtures("clean"), pytest.mark.dealt]

N = 400
GENEROUS = PrivacySpec(30.0, 1e-6)
PEOPLE = [*make_people(N - len(BAD_PEOPLE)), *BAD_PEOPLE]
LEVELS = tuple(f"level {i}" for i in range(50))


@pytest.fixture(scope="module", autouse=True)
def tables(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        create_people(connection, PEOPLE)
        create_people(connection, [], "nobody")
        create_people(connection, PEOPLE[:1], "hermit")
        connection.execute(
            "CREATE TABLE visits AS SELECT i % 60 AS patient, (i % 10) / 10.0 AS dose, i % 10 > 4 AS ill, "
            "(array['a', 'b', 'c'])[1 + i % 3] AS ward FROM generate_series(1, 1200) AS i"
        )
        connection.execute(
            "CREATE TABLE words AS SELECT 'level ' || i % 60 AS word, i % 3 = 0 AS y "
            "FROM generate_series(1, 300) AS i"
        )


class Spy:
    """Every vector that is released, without noise and with it, and the rows that the steps see."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.releases: list[tuple[FloatArray, FloatArray, ReleaseNoise]] = []
        self.before: tuple[FloatArray, FloatArray, list[replay.Block]] | None = None
        self.after: tuple[FloatArray, FloatArray, list[replay.Block]] | None = None
        release, gradient, whiten = output.release, Blocks.gradient, packing.whiten

        def spied_release(vector: FloatArray, noise: ReleaseNoise, source: Noise) -> FloatArray:
            released = release(vector, noise, source)
            self.releases.append((vector.copy(), released, noise))
            return released

        def spied_whiten(session: Session, source: Source, packed: PackedRows, *given: Any) -> PackedRows:
            self.before = self.look(session, packed)
            whitened = whiten(session, source, packed, *given)
            self.after = self.look(session, whitened)
            return whitened

        def spied_gradient(blocks: Blocks, *given: Any) -> Any:
            if self.before is None:
                self.before = self.look(blocks.session, blocks.packed)
            return gradient(blocks, *given)

        monkeypatch.setattr(output, "release", spied_release)
        monkeypatch.setattr("pg_dpml.blocks.blocks.whiten", spied_whiten)
        monkeypatch.setattr(Blocks, "gradient", spied_gradient)

    @staticmethod
    def look(session: Session, packed: PackedRows) -> tuple[FloatArray, FloatArray, list[replay.Block]]:
        found = session.fetch(
            sql.SQL(
                "SELECT u.x, u.y FROM {} AS b, dpml.unpack(b.block) WITH ORDINALITY AS u(x, y, place) "
                "ORDER BY b.block_no, u.place"
            ).format(packed.blocks)
        )
        blocks = session.fetch(sql.SQL("SELECT block FROM {} ORDER BY block_no").format(packed.blocks))
        x, y = (np.array(part, np.float32).astype(np.float64) for part in zip(*found, strict=True))
        return x, y, [replay.open_block(block) for (block,) in blocks]

    def noise(self) -> list[FloatArray]:
        return [released - vector for vector, released, _ in self.releases]


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> Spy:
    return Spy(monkeypatch)


def close(found: FloatArray, wanted: FloatArray, relative: float = 1e-9) -> None:
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=0.0, atol=relative * float(np.max(np.abs(wanted))))


def sum_of_gradients(
    name: str,
    w: FloatArray,
    x: FloatArray,
    y: FloatArray,
    clip: float,
    h: float,
    units: Any,
    unit_clip: float,
) -> FloatArray:
    """Each row's is clipped, then each unit's."""
    rows = slopes(name, x @ w.T, y, clip, h)[:, :, None] * x[:, None, :]
    of_units = np.add.reduceat(rows, np.flatnonzero(units), axis=0)
    norms = np.linalg.norm(of_units.reshape(len(of_units), -1), axis=1)
    scales = np.minimum(1.0, np.divide(unit_clip, norms, out=np.ones_like(norms), where=norms > 0.0))
    total: FloatArray = np.tensordot(scales, of_units, axes=1)
    return total


def slopes(name: str, scores: FloatArray, y: FloatArray, clip: float, h: float) -> FloatArray:
    """The clipped derivatives of all rows' losses in their scores, which a test compares with the oracles."""
    if name == "softmax":
        found = np.exp(scores - scores.max(axis=1, keepdims=True))
        found /= found.sum(axis=1, keepdims=True)
        found[np.arange(len(y)), y.astype(int)] -= 1.0
        scaled: FloatArray = found * np.minimum(1.0, clip / np.linalg.norm(found, axis=1, keepdims=True))
        return scaled
    outputs = scores.shape[1]
    labels = y[:, None] if outputs == 1 else np.where(y[:, None] == np.arange(outputs), 1.0, -1.0)
    if name == "squared":
        found = scores - labels
    elif name == "logistic":
        found = -labels / (1.0 + np.exp(labels * scores))
    else:
        found = -labels * np.clip((1.0 + h - labels * scores) / (2.0 * h), 0.0, 1.0)
    clipped: FloatArray = np.clip(found, -clip, clip)
    return clipped


@pytest.mark.parametrize("clip", [0.2, 10.0])
@pytest.mark.parametrize(
    ("name", "outputs"),
    [("softmax", 3), ("squared", 1), ("logistic", 1), ("logistic", 3), ("huber_svm", 1), ("huber_svm", 3)],
)
def test_slopes_are_those_of_the_oracles(name: str, outputs: int, clip: float) -> None:
    rng = np.random.default_rng(5)
    scores, h = rng.normal(0.0, 2.0, (200, outputs)), 0.4
    y = (
        rng.choice(np.array([-1.0, 1.0]), 200)
        if outputs == 1
        else rng.integers(0, outputs, 200).astype(np.float64)
    )
    for row, label, found in zip(scores, y, slopes(name, scores, y, clip, h), strict=True):
        if name == "softmax":
            wanted = oracles.softmax(row, int(label))[1]
            wanted = wanted * min(1.0, clip / float(np.linalg.norm(wanted)))
        else:
            labels = [label] if outputs == 1 else [1.0 if int(label) == k else -1.0 for k in range(outputs)]
            pairs = zip(row, labels, strict=True)
            wanted = np.array([oracles.slope(name, u, one, clip=clip, h=h) for u, one in pairs])
        np.testing.assert_allclose(found, wanted, rtol=0.0, atol=1e-14)


def symmetric(vector: FloatArray, d: int) -> FloatArray:
    """The matrix of a released vector: its diagonal, and sqrt 2 times what is above it."""
    full = np.zeros((d, d))
    full[np.triu_indices(d)] = vector[: d * (d + 1) // 2]
    above = np.triu(full, 1) / math.sqrt(2.0)
    return above + above.T + np.diag(np.diag(full))


def smoothed(values: FloatArray, s: float) -> FloatArray:
    """Eigenvalues that noise of that standard deviation hides, drawn towards their mean."""
    d = len(values)
    centre = float(np.mean(values))
    for _ in range(5):
        below = values <= centre + s * math.sqrt(2.0 * d)
        centre = float(np.mean(values[below]))
    variance = float(np.mean((values[below] - centre) ** 2))
    if variance == 0.0:
        return values
    share = 1.0 - s**2 * ((d + 1) / 2 - 1 / d) / variance
    share = share if share >= 0.05 else 0.0
    return np.where(below, centre + share * (values - centre), values)


def starts_of(blocks: list[replay.Block]) -> Any:
    """Which rows begin a unit."""
    return np.concatenate(
        [np.ones(len(one.labels), bool) if one.starts is None else one.starts for one in blocks]
    )


def recipe(spy: Spy, plan: Any, clip: float, kind: str) -> FloatArray:
    """The released weights, by the recipe in numpy from the rows and the noise that the spy saw."""
    assert spy.before is not None
    x, y, blocks = spy.before
    n, m, d = plan.problem.n_units, plan.problem.max_rows_per_unit, x.shape[1]
    outputs, h = plan.problem.n_outputs, plan.work.loss.huber_h
    noise = spy.noise()
    double = 2.0 if plan.guarantee.relation is Relation.REPLACE_ONE else 1.0
    bound = m * clip * (math.sqrt(outputs) if outputs > 1 and kind != "softmax" else 1.0)
    smoothness = m * {"logistic": 0.25, "huber_svm": 0.5 / h, "squared": 1.0, "softmax": 0.5}[kind]
    mu = gaussian.gaussian_mu(plan.guarantee.epsilon, plan.guarantee.delta)
    change = double * min(bound, plan.work.unit_clip)
    p = np.eye(d)
    units = starts_of(blocks)
    if plan.method == "whitened-dp-gd":
        share = gram_share(plan.problem, plan.noise)
        mu_g, mu_r = math.sqrt(share) * mu, math.sqrt(1.0 - share) * mu
        s = math.sqrt(double) * m / (n * mu_g)
        gram = x.T @ x / n + symmetric(noise.pop(0), d) / n
        values, vectors = np.linalg.eigh(gram)
        smooth = np.clip(smoothed(values, s), 0.0, m)
        values = np.clip(values, 0.0, m)
        steps = 60  # the table is small
        budget = n * mu_r / change
        tau = (budget**0.75 if kind == "squared" else budget) * (0.9 if outputs > 1 else 1.0)
        reached = steps * 1.9 / (0.1 * smoothness * min(1.0, 1.5 / d))
        least = 0.25 + 0.75 * min(tau / reached, 1.0)
        least += (0.1 / share - 1.0) / 3.0 * (2.0 - least)
        least *= s * math.sqrt(2.0 * d)
        ridge = max(least, plan.work.whitening.ridge)
        assert ridge < 1.001 * max(least, m * 2.0**-31)
        p = vectors @ np.diag((smooth + ridge) ** -0.5) @ vectors.T
        norms = np.linalg.norm(x @ p, axis=1, keepdims=True)
        x = np.divide(x, norms, out=np.zeros_like(x), where=norms > 0.0)
        r = values / (smooth + ridge)
        for momentum in (0.5, 0.75, 0.9):
            curvature = smoothness * min(1.0, 1.5 * max(r) / sum(r))
            longest = steps * (1 + momentum) / ((1 - momentum) * curvature)
            if longest >= tau:
                break
        tau = min(tau, longest)
    else:
        steps, momentum = 60, 0.9
        budget = n * mu / change
        length = {"binary": 2 * budget, "multiclass": budget, "regression": budget**0.75}
        tau = min(length[plan.problem.task], 19 * steps / smoothness)
    eta = (1 - momentum) * tau / steps
    assert len(noise) == steps
    w, v, iterates = np.zeros((outputs, d)), np.zeros((outputs, d)), []
    for one in noise:
        total = sum_of_gradients(kind, w @ p, x, y, clip, h, units, plan.work.unit_clip)
        v = momentum * v + (total @ p + one.reshape(outputs, d)) / n
        w = w - eta * v
        iterates.append(w)
    mean: FloatArray = np.mean(iterates[-math.ceil(steps / 4) :], axis=0)
    return (mean @ p).reshape(-1)


CASES = [
    ("binary", {}, 0.5),
    ("binary", {"loss": "huber_svm"}, 1.0),
    ("binary", {"clip": 0.2}, 0.2),
    ("multiclass", {}, math.sqrt(2 / 3)),
    ("multiclass", {"loss": "logistic"}, 0.5),
    ("regression", {}, 0.5),
]


@pytest.mark.parametrize(("task", "training", "clip"), CASES)
@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize("method", ["whitened-dp-gd", "dp-gd"])
def test_a_run_is_the_recipe(
    database: str, spy: Spy, method: str, relation: Relation, task: str, training: dict[str, Any], clip: float
) -> None:
    privacy = PrivacySpec(30.0, 1e-6, relation)
    result = pg_dpml.train(
        database, people.spec(task), privacy, TrainSpec(method=method, **training), name="m"
    )
    kind = result.plan.work.loss.kind
    wanted = recipe(spy, result.plan, clip, kind)
    # whitened rows are rounded to float32, and a little shorter
    close(result.model.weights, wanted, 1e-9 if method == "dp-gd" else 1e-4)
    assert result.passes == result.plan.work.passes
    assert result.model.method == method


def test_whitened_rows_are_no_longer_than_one(database: str, spy: Spy) -> None:
    result = pg_dpml.train(database, people.spec(), GENEROUS, TrainSpec(method="whitened-dp-gd"), name="m")
    assert spy.before is not None
    assert spy.after is not None
    vector, released, _ = spy.releases[0]
    d = result.model.n_features
    close(symmetric(vector, d), spy.before[0].T @ spy.before[0])
    values, vectors = np.linalg.eigh(symmetric(released, d) / N)
    work: Any = result.plan.work
    values = smoothed(values, work.whitening.stddev)
    scaled = np.sqrt(np.clip(values, 0.0, 1.0) + work.whitening.ridge)
    p = (vectors / scaled) @ vectors.T
    norms = np.linalg.norm(spy.after[0] @ p, axis=1)
    assert np.max(norms) <= 1.0
    assert np.min(norms[norms > 0.0]) >= 0.9999
    np.testing.assert_array_equal(norms == 0.0, ~spy.before[0].any(axis=1))
    np.testing.assert_array_equal(spy.before[1], spy.after[1])
    assert [block.starts for block in spy.after[2]] == [block.starts for block in spy.before[2]]


def test_workers_pack_and_whiten_the_same_rows(
    database: str, connection: psycopg.Connection, spy: Spy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The packed rows are the same, without a sort, and their blocks in the order of their numbers."""
    store = packing.store_blocks
    plans: list[str] = []
    places: list[list[Any]] = []

    def spied(session: Session, source: Source, query: sql.Composable, parameters: Any) -> PackedRows:
        explained = session.fetch(sql.SQL("EXPLAIN (FORMAT JSON) ") + query, parameters)
        packed = store(session, source, query, parameters)
        found = session.fetch(sql.SQL("SELECT block_no FROM {} ORDER BY ctid").format(packed.blocks))
        plans.append(json.dumps(explained[0]))
        places.append([number for (number,) in found])
        return packed

    monkeypatch.setattr(packing, "store_blocks", spied)
    connection.execute("CREATE TABLE many AS SELECT people.* FROM people, generate_series(1, 20)")
    connection.execute("ANALYZE many")
    settings = {"parallel_setup_cost": 0, "parallel_tuple_cost": 0, "min_parallel_table_scan_size": 0}
    looks: list[tuple[FloatArray, FloatArray]] = []
    for workers in (0, 2):
        options = " ".join(f"-c {key}={value}" for key, value in settings.items())
        dsn = f"{database} options='{options} -c max_parallel_workers_per_gather={workers}'"
        training = TrainSpec(method="whitened-dp-gd", passes=2)
        pg_dpml.train(dsn, people.spec(table="many"), GENEROUS, training, name=f"m{len(looks)}")
        packed, whitening = plans[-2:]
        assert ("Gather" in packed, "Gather" in whitening) == (workers > 0, workers > 0)
        assert "Sort" not in packed + whitening
        assert places[-2] == list(range(len(places[-2])))
        assert sorted(places[-1]) == places[-2]
        assert spy.before is not None
        assert spy.after is not None
        np.testing.assert_array_equal(spy.before[1], spy.after[1])
        looks.append(spy.before[:2])
        spy.before = None
    connection.execute("DROP TABLE many")
    together = [np.column_stack(look) for look in looks]
    for one in together[1:]:
        np.testing.assert_array_equal(
            np.sort(one.view([("", float)] * one.shape[1]).ravel()),
            np.sort(together[0].view([("", float)] * one.shape[1]).ravel()),
        )


def test_every_release_has_its_noise(database: str, spy: Spy) -> None:
    """As many releases as are charged for, and each with noise of the scale that is charged."""
    for method in ("whitened-dp-gd", "dp-gd"):
        spy.releases.clear()
        result = pg_dpml.train(
            database, people.spec("multiclass"), GENEROUS, TrainSpec(method=method), name=method
        )
        noise: Any = result.plan.noise
        used = [one for _, _, one in spy.releases]
        moments = [noise.moments] if method == "whitened-dp-gd" else []
        assert used == [*moments, *[noise.gradient] * noise.steps]
        for drawn, one in zip(spy.noise(), used, strict=True):
            assert len(drawn) == one.n_weights
            assert 0.5 * one.scale < np.std(drawn) < 1.6 * one.scale
        vectors = {drawn.tobytes() for drawn in spy.noise()}
        assert len(vectors) == len(used)


@pytest.mark.parametrize("relation", Relation)
def test_sufficient_statistics(database: str, spy: Spy, relation: Relation) -> None:
    privacy = PrivacySpec(30.0, 1e-6, relation)
    result = pg_dpml.train(
        database, people.spec("regression"), privacy, TrainSpec(method="sufficient-statistics"), name="m"
    )
    ((vector, released, _),) = spy.releases
    d = result.model.n_features
    size = d * (d + 1) // 2
    encoder = result.model.encoder
    x, y = people.encode(encoder, PEOPLE)
    np.testing.assert_allclose(symmetric(vector, d), x.T @ x, atol=1e-4)
    np.testing.assert_allclose(vector[size:], x.T @ y, atol=1e-4)
    square = 4.5 if relation is Relation.REPLACE_ONE else 2.0
    s = math.sqrt(square) / (N * gaussian.gaussian_mu(30.0, 1e-6))
    values, vectors = np.linalg.eigh(symmetric(released, d) / N)
    inverse = vectors @ np.diag(1.0 / (np.maximum(values, 0.0) + 0.5 * s * math.sqrt(2 * d))) @ vectors.T
    close(result.model.weights, inverse @ released[size:] / N, 1e-4)


def visits(**changes: Any) -> DataSpec:
    columns = (Column("dose", lower=0, upper=1), Column("ward", levels=("a", "b", "c")))
    given: dict[str, Any] = {"unit": "patient", "max_rows_per_unit": 15} | changes
    return DataSpec("visits", Label("ill", positive="true"), columns, **given)


@pytest.mark.parametrize("method", ["whitened-dp-gd", "dp-gd"])
def test_units(database: str, spy: Spy, method: str) -> None:
    result = pg_dpml.train(database, visits(), GENEROUS, TrainSpec(method=method), name="m")
    assert result.plan.problem.n_units == 60
    assert spy.before is not None
    assert len(spy.before[0]) == 60 * 15
    assert len(spy.before[2]) > 1
    close(
        result.model.weights, recipe(spy, result.plan, 0.5, "logistic"), 1e-9 if method == "dp-gd" else 1e-4
    )


def test_a_unit_clip(database: str, spy: Spy) -> None:
    training = TrainSpec(method="dp-gd", unit_clip=0.3)
    result = pg_dpml.train(database, visits(), GENEROUS, training, name="m")
    close(result.model.weights, recipe(spy, result.plan, 0.5, "logistic"))
    assert spy.before is not None
    assert starts_of(spy.before[2]).sum() == 60


@pytest.mark.parametrize("method", ["whitened-dp-gd", "dp-gd"])
def test_sparse_rows(database: str, spy: Spy, method: str) -> None:
    data = DataSpec("words", Label("y", positive="true"), (Column("word", levels=LEVELS, centered=False),))
    result = pg_dpml.train(database, data, GENEROUS, TrainSpec(method=method), name="m")
    assert result.model.encoder["format"] == "csr"
    close(
        result.model.weights, recipe(spy, result.plan, 0.5, "logistic"), 1e-9 if method == "dp-gd" else 1e-4
    )


@pytest.mark.parametrize(("epsilon", "share"), [(0.05, 0.025), (1.0, 0.0594)])
def test_moments_that_noise_hides(database: str, spy: Spy, epsilon: float, share: float) -> None:
    """What was drawn adds up to mu, of which the moments have less than a tenth."""
    data = DataSpec("words", Label("y", positive="true"), (Column("word", levels=LEVELS, centered=False),))
    privacy = PrivacySpec(epsilon, 1e-6, Relation.REPLACE_ONE)
    result = pg_dpml.train(database, data, privacy, TrainSpec(method="whitened-dp-gd"), name="m")
    moments, *gradients = spy.noise()
    close(result.model.weights, recipe(spy, result.plan, 0.5, "logistic"), 1e-4)
    mu = gaussian.gaussian_mu(epsilon, 1e-6)
    of_moments = 2.0 / float(np.var(moments))
    of_gradients = len(gradients) / float(np.var(gradients))
    # more than six standard deviations of 1,326 and of 3,060 squares
    assert of_moments == pytest.approx(share * mu**2, rel=0.25)
    assert of_gradients == pytest.approx((1.0 - share) * mu**2, rel=0.17)


@pytest.mark.parametrize("method", ["whitened-dp-gd", "dp-gd", "sufficient-statistics"])
@pytest.mark.parametrize("task", people.LABELS)
@pytest.mark.parametrize("table", ["nobody", "hermit"])
def test_tables_of_no_row_and_of_one(database: str, table: str, task: str, method: str) -> None:
    if method == "sufficient-statistics" and task != "regression":
        return
    result = pg_dpml.train(database, people.spec(task, table), GENEROUS, TrainSpec(method=method), name="m")
    assert np.all(np.isfinite(result.model.weights))
    assert np.any(result.model.weights != 0.0) == (table == "hermit")


def test_more_features_than_rows(database: str, connection: psycopg.Connection) -> None:
    connection.execute("CREATE TABLE few AS SELECT * FROM words LIMIT 20")
    data = DataSpec("few", Label("y", positive="true"), (Column("word", levels=LEVELS),))
    for method in ("whitened-dp-gd", "dp-gd"):
        result = pg_dpml.train(database, data, PrivacySpec(1.0), TrainSpec(method=method), name=method)
        assert np.all(np.isfinite(result.model.weights))
    connection.execute("DROP TABLE few")


def test_a_pass_that_misses_rows_ends_the_run(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gradient, gram = Blocks.gradient, Blocks.gram
    seen = 0

    def short(blocks: Blocks, *given: Any) -> Any:
        nonlocal seen
        seen += 1
        found = gradient(blocks, *given)
        return found._replace(rows=found.rows - (seen == 3))

    def short_gram(blocks: Blocks) -> GramSums:
        found = gram(blocks)
        return found._replace(rows=found.rows + 1)

    for patched, replacement, training in (
        ("gradient", short, TrainSpec(method="dp-gd")),
        ("gram", short_gram, TrainSpec(method="whitened-dp-gd")),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(Blocks, patched, replacement)
            with pytest.raises(RunFailedError, match=r"did not see every packed row.*stay charged"):
                pg_dpml.train(database, people.spec(), GENEROUS, training, name="m")


def test_what_is_charged_and_stored(database: str, connection: psycopg.Connection) -> None:
    result = pg_dpml.train(
        database, people.spec(), PrivacySpec(1.0, 1e-6), TrainSpec(method="whitened-dp-gd"), name="m"
    )
    method, mechanism = connection.execute("SELECT method, mechanism FROM dpml.ledger").fetchone() or ()
    assert method == "whitened-dp-gd"
    noise: Any = result.plan.noise
    assert mechanism["kind"] == "gaussian"
    assert mechanism["mu"] == noise.mu
    assert mechanism["steps"] == noise.steps
    assert mechanism["gradient"]["scale"] == noise.gradient.scale
    assert mechanism["moments"]["scale"] == noise.moments.scale
    training = scalar(connection, "SELECT training FROM dpml.models WHERE name = 'm'")
    assert training["steps"] == noise.steps
    assert training["passes"] == noise.steps + 2
    assert training["options"] == {"loss": "logistic", "clip": 0.5, "losses": False}


def test_a_private_model_learns(database: str, connection: psycopg.Connection) -> None:
    """Classes need no norm of the whitened row."""
    create_people(connection, make_people(4000, seed=2), "learned")
    create_people(connection, make_people(500, seed=3), "held_out")
    for method in ("whitened-dp-gd", "dp-gd"):
        for task in ("binary", "multiclass"):
            name = f"{method} {task}"
            data = people.spec(task, "learned")
            pg_dpml.train(database, data, PrivacySpec(4.0), TrainSpec(method=method), name=name)
            found = pg_dpml.evaluate(database, name, "held_out", public=True)
            assert found.accuracy is not None
            assert found.majority is not None
            assert found.accuracy > found.majority + 0.1
    connection.execute("DROP TABLE learned, held_out")


def test_un_noised_sums_are_in_no_statement(
    database: str, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights and P go by COPY: parameters hold options and a norm alone."""
    seen: list[Any] = []
    for name in ("execute", "fetch"):
        plain = getattr(Session, name)

        def spied(
            session: Session, query: Any, parameters: Any = None, plain: Any = plain, **named: Any
        ) -> Any:
            seen.append((query.as_string(None), dict(parameters or {})))
            return plain(session, query, parameters, **named)

        monkeypatch.setattr(Session, name, spied)
    pg_dpml.train(database, people.spec(), GENEROUS, TrainSpec(method="whitened-dp-gd"), name="m")
    values = [value for query, given in seen if "dpml." in query for value in given.values()]
    listed = [item for value in values if isinstance(value, list) for item in value]  # numbers of tables
    assert {type(item).__name__ for item in listed} <= {"int"}
    kinds = {type(value).__name__ for value in values}
    assert kinds <= {"Jsonb", "float", "str", "int", "bool", "list"}
    assert not any("ARRAY" in query or "{" in query for query, _ in seen)
