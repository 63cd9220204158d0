# SPDX-License-Identifier: PostgreSQL
"""Portions of a distributed table: dealt out over all shards, packed where the rows are, and tuned on."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import psycopg
import pytest
from psycopg import sql
from scipy import stats

from citus import Cluster
from helpers import replay
from helpers.points import LABELS, PRIVACY, N, spec, table_like_points
from pg_dpml import Column, DataSpec, Grid, PrivacySpec, RunFailedError, SpecError, TrainSpec, compare, tune
from pg_dpml.blocks import distributed
from pg_dpml.blocks.portions import equal_sizes, pack_portions
from pg_dpml.blocks.source import resolve
from pg_dpml.database.database import Database
from pg_dpml.database.session import Session

PERSONS = 667
GRID = Grid({"radius": [1e-6, 10.0, 2e-6]}, TrainSpec("frank-wolfe"))
"""In two of these balls a model is lost in its noise."""
SURE = PrivacySpec(50.0, 1e-3)
"""So much that a good candidate is certain to be chosen."""


def ids(table: str = "points", unit: str | None = None, most: int = 1) -> DataSpec:
    """The feature tells which row it is."""
    columns = (Column("id", lower=-1, upper=N),)
    return DataSpec(table, LABELS["binary"], columns, unit=unit, max_rows_per_unit=most)


Shards = Mapping[int, list[replay.Block]]


def of_all(shards: Shards) -> list[replay.Block]:
    return [block for blocks in shards.values() for block in blocks]


def decoded(blocks: list[replay.Block]) -> Any:
    """Id of each row; before a row was normalised its intercept was 1."""
    rows = np.concatenate([block.values for block in blocks]).astype(np.float64)
    return np.rint((rows[:, 0] / rows[:, 1] + 1.0) / 2.0 * (N + 1) - 1).astype(int)


def dealt(session: Session, data: DataSpec, sizes: tuple[int, ...]) -> list[Shards]:
    """Blocks of each portion by shard; the portions are dropped."""
    found: list[Shards] = []
    with session.discarded():
        for portion in pack_portions(session, resolve(session, data), sizes, needs_order=False):
            shards = distributed._shards_of(session, portion.packed.blocks).numbers
            read = sql.SQL("SELECT dpml.shard_id(b.tableoid), b.block FROM {} AS b")
            blocks: dict[int, list[replay.Block]] = {}
            for shard, block in session.fetch(read.format(portion.packed.blocks), binary=True):
                blocks.setdefault(shards.index(shard), []).append(replay.open_block(block))
            assert sum(map(len, blocks.values())) == portion.packed.n_blocks
            found.append(blocks)
    return found


@pytest.fixture
def session(two: Cluster) -> Iterator[Session]:
    """A transaction of a run."""
    with Database(two.dsn).session("REPEATABLE READ") as opened:
        distributed.use_one_snapshot(opened)
        yield opened


def work_tables(cluster: Cluster) -> list[Any]:
    """Names on any node."""
    query = "SELECT relname::text FROM pg_class WHERE relnamespace = 'dpml_work'::regnamespace"
    return [name for rows in cluster.on_nodes(query) for (name,) in rows]


@pytest.mark.parametrize("sizes", [(N,), (1, 2, N - 3), equal_sizes(N, 7)])
def test_every_row_is_in_exactly_one_portion(session: Session, sizes: tuple[int, ...]) -> None:
    found = [decoded(of_all(shards)) for shards in dealt(session, ids(), sizes)]
    assert tuple(map(len, found)) == sizes
    assert sorted(np.concatenate(found)) == list(range(N))


@pytest.mark.parametrize("most", [2, 3])
@pytest.mark.parametrize("workers", ["two", "four"])
def test_every_unit_is_in_exactly_one_portion(
    request: pytest.FixtureRequest, workers: str, most: int
) -> None:
    sizes = equal_sizes(PERSONS, 3)
    seen: list[int] = []
    with Database(request.getfixturevalue(workers).dsn).session("REPEATABLE READ") as session:
        distributed.use_one_snapshot(session)
        portions = dealt(session, ids("visits", "person", most), sizes)
    for size, shards in zip(sizes, portions, strict=True):
        assert len(shards) == 4
        blocks = of_all(shards)
        starts = np.concatenate([block.starts for block in blocks if block.starts is not None])
        assert int(np.sum(starts)) == size
        for block in blocks:
            assert block.starts is not None
            assert block.starts[0]
        units = np.split(decoded(blocks), np.flatnonzero(starts)[1:])
        for unit in units:
            (person,) = set(unit // 3)
            assert len(set(unit)) == len(unit) == min(most, 2 if person == N // 3 else 3)
            seen.append(int(person))
    assert sorted(seen) == list(range(PERSONS))


@pytest.mark.statistical
def test_a_portion_is_uniform_whatever_shard_a_unit_lies_in(session: Session) -> None:
    """Over many deals each row is in a portion equally often, and the shares of shards are hypergeometric."""
    deals, size = 20, 800
    share = size / N
    shard_of, chosen = np.zeros(N, dtype=int), np.zeros((deals, N))
    for deal in range(deals):
        first, rest = dealt(session, ids(), (size, N - size))
        for portion in (first, rest):
            for shard, blocks in portion.items():
                shard_of[decoded(blocks)] = shard
        chosen[deal, decoded(of_all(first))] = 1.0
    together = chosen.sum(axis=0)
    assert np.all(np.abs(together - deals * share) < 6 * np.sqrt(deals * share * (1 - share)))
    assert np.var(together) == pytest.approx(deals * share * (1 - share), rel=0.4)
    # next to one another, and by their places
    centred = chosen - share
    assert abs(np.sum(centred[:, :-1] * centred[:, 1:])) < 6 * np.sqrt(deals * N) * share * (1 - share)
    for shard in range(4):
        own = int(np.sum(shard_of == shard))
        law = stats.hypergeom(N, own, size)
        seen = chosen[:, shard_of == shard].sum(axis=1)
        squares = float(np.sum((seen - law.mean()) ** 2) / law.var())
        assert 1e-7 < stats.chi2(deals).cdf(squares) < 1 - 1e-7


def test_keys_have_one_order_on_the_server_and_here(connection: psycopg.Connection) -> None:
    keys = [f"{'7f80ff00'[i % 8]}{secrets.token_hex(16)[1:]}" for i in range(500)]
    query = "SELECT k::text FROM unnest(%s::uuid[]) AS k ORDER BY k"
    ordered = [key for (key,) in connection.execute(query, (keys,))]
    assert ordered == sorted(ordered)


@pytest.mark.parametrize(
    ("table", "more"), [("points", {}), ("visits", {"unit": "person", "max_rows_per_unit": 3})]
)
@pytest.mark.parametrize("workers", ["two", "four"])
def test_the_good_candidate_is_chosen_on_the_workers(
    request: pytest.FixtureRequest, workers: str, table: str, more: Mapping[str, Any]
) -> None:
    cluster = request.getfixturevalue(workers)
    tuned = tune(cluster.dsn, spec(table=table, **more), SURE, GRID, name=f"m {secrets.token_hex(8)}")
    assert tuned.chosen == 1
    assert tuned.sizes == equal_sizes(PERSONS if more else N, 4)
    assert tuned.trained.plan.place == (
        "dealt out at random, packed and summed on the workers, in 4 shards: only sums travel"
    )
    assert work_tables(cluster) == []


@pytest.mark.parametrize("task", ["multiclass", "regression"])
def test_every_task_is_tuned_and_compared_on_the_workers(
    two: Cluster, monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    monkeypatch.delattr("pg_dpml.blocks.portions.gathered")
    grid = Grid({"method": ["auto", "dp-gd"]})
    tuned = tune(two.dsn, spec(task), PRIVACY, grid, name=f"m {secrets.token_hex(8)}")
    assert "only sums travel" in tuned.trained.plan.place
    compared = compare(two.dsn, spec(task), methods=("lbfgs",), splits=2, owner=True)
    exact, *majority = [entry.mean or 0.0 for entry in compared.entries]
    if task == "regression":
        assert exact > 0.9
    else:
        assert 0.2 < exact < 0.45  # the classes are as good as random
        assert 0.2 < majority[0] < 0.45
    assert work_tables(two) == []


def test_no_row_leaves_its_worker(two: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch, plans = Session.fetch, []

    def planned(session: Session, query: Any, parameters: Any = None, **how: Any) -> Any:
        text = query.as_string(None)
        if re.search(r'on_shards\(|dpml\.(gram|gradient)\(|"encoded_', text) and "EXPLAIN" not in text:
            explain = sql.SQL("EXPLAIN (VERBOSE, COSTS OFF) ") + query
            plans.append((text, "\n".join(line for (line,) in fetch(session, explain, parameters))))
        return fetch(session, query, parameters, **how)

    monkeypatch.setattr(Session, "fetch", planned)
    data = spec(table="visits", unit="person", max_rows_per_unit=3)
    tune(two.dsn, data, PRIVACY, Grid({"passes": [2, 3]}, TrainSpec("dp-gd")), name="of explained passes")
    kinds = []
    for text, shown in plans:
        above, _, task = shown.partition("->  Task")
        assert "Task Count: 4" in above
        kinds.append(next(kind for kind in ("on_shards", "gradient", "count", "at::") if kind in text))
        if kinds[-1] == "at::":
            # Random keys, of some 1 in sqrt(n) units.
            assert re.findall(r"Output: (.*)", task) == ['"left"((at)::text, 2), (at)::text']
        else:
            assert re.findall(r"->  (\w+)", task)[0] in {"Aggregate", "HashAggregate", "Subquery"}, shown
    # Rows are encoded once, and each of three portions is packed once.
    dealing = ["on_shards", "count", "at::", "on_shards", "on_shards", "on_shards"]
    assert kinds[:2] == ["on_shards", "on_shards"]  # planned before the charge
    assert kinds[2:8] == dealing
    assert set(kinds[8:]) == {"gradient"}


@pytest.mark.parametrize("chosen", ["id < 9", "person = 7 OR id IN (1, 5, 9)"])
def test_shards_without_rows(two: Cluster, connection: psycopg.Connection, chosen: str) -> None:
    connection.execute("CREATE TABLE few (LIKE points)")
    try:
        connection.execute("SELECT create_distributed_table('few', 'person')")
        connection.execute(f"INSERT INTO few SELECT * FROM points WHERE {chosen}".encode())
        grid = Grid({"passes": [2, 3]}, TrainSpec("dp-gd"))
        tuned = tune(two.dsn, spec(table="few"), PRIVACY, grid, name=f"m {secrets.token_hex(8)}")
        assert "only sums travel" in tuned.trained.plan.place
        assert work_tables(two) == []
    finally:
        connection.execute("DROP TABLE few")


def test_a_candidate_that_needs_an_order_brings_the_rows(two: Cluster) -> None:
    grid = Grid({"method": ["dp-gd", "dp-sgd"]})
    tuned = tune(two.dsn, spec(), PRIVACY, grid, name=f"m {secrets.token_hex(8)}")
    assert tuned.trained.plan.place == (
        "the rows travel to the coordinator, where they are dealt out at random and packed: a candidate "
        "takes its rows in one random order"
    )
    spread = spec(unit="person", max_rows_per_unit=3)
    tuned = tune(two.dsn, spread, PRIVACY, GRID, name=f"m {secrets.token_hex(8)}")
    assert tuned.trained.plan.place.startswith("the rows travel to the coordinator and are packed there: ")
    assert "by id, not by person" in tuned.trained.plan.place
    assert work_tables(two) == []


@pytest.mark.parametrize(("name", "given"), [("random_key", ""), ("pack", "bytea, int4, int4")])
def test_a_worker_that_cannot_deal_is_refused_before_the_charge(
    two: Cluster, connection: psycopg.Connection, name: str, given: str
) -> None:
    before = connection.execute("SELECT count(*) FROM dpml.ledger").fetchone()
    with psycopg.connect(two.workers[1].dsn_of(two.database), autocommit=True) as worker:
        worker.execute("SET citus.enable_ddl_propagation = off")
        worker.execute(f"ALTER ROUTINE dpml.{name}({given}) RENAME TO away".encode())
        try:
            with pytest.raises(SpecError, match="cannot be packed on a worker"):
                tune(two.dsn, spec(), PRIVACY, GRID, name="refused")
        finally:
            worker.execute(f"ALTER ROUTINE dpml.away({given}) RENAME TO {name}".encode())
    assert connection.execute("SELECT count(*) FROM dpml.ledger").fetchone() == before
    assert work_tables(two) == []


def test_a_filter_that_chooses_other_rows_each_time_fails_the_run(two: Cluster) -> None:
    data = spec(where="random() < 0.5", definition_is_public=True)
    with pytest.raises(
        RunFailedError, match=r"other rows were dealt out .*no model was stored; .*stay charg"
    ):
        tune(two.dsn, data, PRIVACY, GRID, name="of other rows")
    assert work_tables(two) == []


def test_a_public_table_may_be_distributed(two: Cluster) -> None:
    tuned = tune(two.dsn, spec(), SURE, GRID, name=f"m {secrets.token_hex(8)}", public_table="visits")
    assert tuned.chosen == 1
    assert tuned.public is not None
    assert (tuned.public.n_trained, tuned.public.n_scored) == (N - N // 3, N // 3)
    assert work_tables(two) == []


@pytest.fixture(scope="module")
def odd(one: Cluster, two: Cluster) -> Iterator[str]:
    """Points of which some have no declared label."""
    select = (
        "id, person, x, CASE WHEN id % 9 > 0 THEN yes END, "
        "CASE id % 10 WHEN 0 THEN 'd' WHEN 1 THEN NULL WHEN 2 THEN 'D' ELSE replace(kind, 'c', 'a') END, "
        "CASE id % 8 WHEN 0 THEN 'NaN' WHEN 1 THEN NULL ELSE number END"
    )
    with table_like_points((one, two), "odd", "", select) as name:
        yield name


@pytest.mark.parametrize("task", LABELS)
def test_a_comparison_counts_what_it_leaves_out(
    one: Cluster, two: Cluster, odd: str, monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    found = []
    for cluster in (one, two):
        if cluster.workers:
            monkeypatch.delattr("pg_dpml.blocks.portions.gathered")
        compared = compare(
            cluster.dsn, spec(task, table=odd), methods=("dp-gd",), epsilons=(2.0,), splits=1, owner=True
        )
        found.append(compared.left_out)
        assert work_tables(cluster) == []
    assert found[0] == found[1]
    assert found[0] is not None
    assert found[0].n_rows > 200


def test_a_comparison_of_a_method_that_needs_an_order_brings_the_rows(two: Cluster) -> None:
    compared = compare(two.dsn, spec(), methods=("dp-gd", "scs13"), epsilons=(2.0,), splits=2, owner=True)
    assert [entry.method for entry in compared.entries[:2]] == ["dp-gd", "scs13"]
    assert work_tables(two) == []
