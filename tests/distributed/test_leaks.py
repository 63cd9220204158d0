# SPDX-License-Identifier: PostgreSQL
"""What nodes see of runs: nothing un-noised in any log, and nothing left on any disk."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import psycopg
import pytest

from citus import Cluster
from helpers import leaks
from helpers.points import PRIVACY
from pg_dpml import (
    Column,
    DataSpec,
    Grid,
    Label,
    PrivacySpec,
    RunFailedError,
    TrainSpec,
    compare,
    evaluate,
    train,
    tune,
)
from pg_dpml.blocks.distributed import ShardedBlocks, Shards
from pg_dpml.database.session import sql

DATA = DataSpec("points", Label("yes", positive="true"), (Column("x", length=4, lower=-1, upper=1),))

RUNS: list[tuple[str, Mapping[str, Any]]] = [
    ("auto", {}),
    ("bolt-on", {"lambda_": 0.01}),
    ("amp", {}),
    ("dp-agd", {}),
    ("frank-wolfe", {}),
    ("bolt-on", {}),
    ("bolt-on", {"by_shards": True, "average": "tail", "passes": 3}),
    ("dp-sgd", {}),
]


def look(cluster: Cluster, secrets: leaks.Secrets, before: list[int]) -> leaks.Sightings:
    """Search what each node logged since, and what runs left in its files of intermediate results."""
    sightings = leaks.Sightings()
    for number, (node, start) in enumerate(zip(cluster.nodes, before, strict=True)):
        sightings.look(f"log of node {number}", node.log_path.read_bytes()[start:], [secrets])
        cache = node.log_path.parent / "data" / "base" / "pgsql_job_cache"
        left = [path for path in cache.rglob("*") if path.is_file()] if cache.is_dir() else []
        if left:
            sightings[f"files of node {number}"] = [str(path) for path in left]
    return sightings


def sizes(cluster: Cluster) -> list[int]:
    return [node.log_path.stat().st_size for node in cluster.nodes]


@pytest.mark.parametrize(("method", "options"), RUNS)
def test_nothing_un_noised_is_in_any_log(
    two: Cluster, monkeypatch: pytest.MonkeyPatch, method: str, options: Mapping[str, Any]
) -> None:
    secrets, before = leaks.Secrets(), sizes(two)
    with monkeypatch.context() as patched:
        leaks.record(patched, secrets)
        train(two.dsn, DATA, PRIVACY, TrainSpec(method, **options), name=f"seen {method} {len(options)}")
    assert len(secrets) > 20
    assert "CREATE UNLOGGED TABLE" in two.log().decode()
    assert look(two, secrets, before) == {}


@pytest.mark.parametrize("method", ["whitened-dp-gd", "dp-gd", "bolt-on"])
def test_nothing_of_tuning_and_comparisons_is_in_any_log(
    two: Cluster, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    secrets, before = leaks.Secrets(), sizes(two)
    grid = Grid({"passes": [2, 3]}, TrainSpec(method))
    with monkeypatch.context() as patched:
        leaks.record(patched, secrets)
        tune(two.dsn, DATA, PRIVACY, grid, name=f"seen tuning {method}")
        compare(two.dsn, DATA, methods=(method,), epsilons=(2.0,), splits=1, owner=True)
    assert len(secrets) > 20
    assert look(two, secrets, before) == {}


@pytest.mark.parametrize(
    "run",
    [
        partial(train, training=TrainSpec("dp-gd")),
        partial(tune, grid=Grid({"passes": [2, 3]}, TrainSpec("dp-gd"))),
    ],
    ids=["train", "tune"],
)
def test_nothing_is_seen_of_a_run_that_fails_on_a_worker(
    two: Cluster, monkeypatch: pytest.MonkeyPatch, run: Any
) -> None:
    secrets, before = leaks.Secrets(), sizes(two)
    with monkeypatch.context() as patched:
        leaks.record(patched, secrets)
        gradient = ShardedBlocks.gradient

        def broken(blocks: ShardedBlocks, *given: Any) -> Any:
            gradient(blocks, *given)
            # More weights than features: the error of the aggregate comes from a worker.
            weights, options = given
            return gradient(blocks, [*weights, 0.12345678912345], options)  # type: ignore[arg-type]

        patched.setattr(ShardedBlocks, "gradient", broken)
        with pytest.raises(RunFailedError, match="stay charged") as failure:
            run(two.dsn, DATA, PRIVACY, name="broken")
    assert "weights" not in str(failure.value)
    assert b"weights must have" in two.log()
    assert look(two, secrets, before) == {}
    for rows in two.on_nodes(
        "SELECT relname::text FROM pg_class WHERE relnamespace = 'dpml_work'::regnamespace"
    ):
        assert rows == []


def test_nothing_is_seen_of_passes_that_fail_on_a_worker(
    two: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets, before = leaks.Secrets(), sizes(two)
    with monkeypatch.context() as patched:
        leaks.record(patched, secrets)
        take = ShardedBlocks.sgd_pass

        def broken(blocks: ShardedBlocks, states: Shards, number: int, *options: Any) -> Any:
            if number == 2:
                for model in blocks.models(states, 1):
                    secrets.add(model.weights)
                gap = sql.SQL("UPDATE {} AS b SET number = b.number + 1").format(blocks.packed.blocks)
                blocks.session.execute(gap)
            return take(blocks, states, number, *options)

        patched.setattr(ShardedBlocks, "sgd_pass", broken)
        with pytest.raises(RunFailedError, match="stay charged") as failure:
            train(two.dsn, DATA, PRIVACY, TrainSpec("bolt-on", by_shards=True), name="broken passes")
    assert len(secrets) > 20
    assert "block" not in str(failure.value)
    assert b"block_no" in two.log()
    assert look(two, secrets, before) == {}


def test_a_noisy_error_shows_no_exact_one(two: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    train(two.dsn, DATA, PRIVACY, TrainSpec("dp-gd"), name="measured")
    before = sizes(two)
    (exact,) = {evaluate(two.dsn, "measured", "points", owner=True).accuracy}
    assert exact is not None
    wrong = round((1.0 - exact) * 2000)
    evaluate(two.dsn, "measured", "points", privacy=PrivacySpec(1.0))
    for node, start in zip(two.nodes, before, strict=True):
        assert f" {wrong}\n".encode() not in node.log_path.read_bytes()[start:]


def test_the_search_finds_what_a_worker_logs(two: Cluster) -> None:
    secrets, before = leaks.Secrets(), sizes(two)
    secrets.add([0.73519268431579])
    with psycopg.connect(two.workers[0].dsn_of(two.database), autocommit=True) as worker:
        worker.execute("SELECT 0.73519268431579")
    assert list(look(two, secrets, before)) == ["log of node 1"]
