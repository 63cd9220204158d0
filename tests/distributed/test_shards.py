# SPDX-License-Identifier: PostgreSQL
"""bolt-on by shards: each is trained on by itself, where its rows are, and only models travel."""

from __future__ import annotations

import re
import secrets
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np
import psycopg
import pytest
from psycopg import conninfo, sql
from typer.testing import CliRunner

from citus import Cluster
from helpers import replay
from helpers.points import COLUMNS, LABELS, PRIVACY, N, spec
from pg_dpml import (
    Column,
    DataSpec,
    Grid,
    GuaranteeError,
    Label,
    PrivacySpec,
    RunFailedError,
    SpecError,
    TrainSpec,
    cli,
    evaluate,
    plan,
    train,
    tune,
)
from pg_dpml.blocks import distributed, packing
from pg_dpml.blocks.distributed import ShardedBlocks, ShardUnits
from pg_dpml.database.database import Database
from pg_dpml.database.session import Session
from pg_dpml.kernels import FloatArray
from pg_dpml.ledger import opening
from pg_dpml.methods import bolt_on
from pg_dpml.reports.model_report import model_text
from pg_dpml.reports.plan_report import plan_text

PLANNING = "pg_dpml.runs.planning"

WAYS: list[tuple[str, Mapping[str, Any]]] = [
    ("binary", {}),
    ("multiclass", {"lambda_": 0.01, "average": "tail", "tail": 0.3}),
    ("regression", {"schedule": "sqrt_decreasing", "passes": 3, "batch_size": 7, "radius": 0.5}),
    ("binary", {"fresh_order": True, "passes": 3, "loss": "huber_svm"}),
]


def by_shards(**options: Any) -> TrainSpec:
    return TrainSpec("bolt-on", by_shards=True, **options)


def trained(cluster: Cluster | str, data: DataSpec, **options: Any) -> Any:
    dsn = cluster if isinstance(cluster, str) else cluster.dsn
    return train(dsn, data, PRIVACY, by_shards(**options), name=f"model {secrets.token_hex(8)}")


def work_tables(cluster: Cluster) -> list[Any]:
    """Names on any node."""
    query = "SELECT relname::text FROM pg_class WHERE relnamespace = 'dpml_work'::regnamespace"
    return [name for rows in cluster.on_nodes(query) for (name,) in rows]


class Means:
    """The un-noised means of runs, and what their passes read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found: list[FloatArray] = []
        self.blocks: list[dict[int, list[bytes]]] = []
        release, models = bolt_on.release, ShardedBlocks.models

        def seen(plan: Any, weights: FloatArray, *more: Any) -> FloatArray:
            self.found.append(weights)
            return release(plan, weights, *more)

        def with_blocks(blocks: ShardedBlocks, states: Any, number: int) -> Any:
            places = {shard: place for place, shard in enumerate(of(blocks).numbers)}
            read = sql.SQL("SELECT dpml.shard_id(b.tableoid), b.number, b.block FROM {} AS b").format(
                blocks.packed.blocks
            )
            found: dict[int, list[bytes]] = {}
            for shard, _, block in sorted(blocks.session.fetch(read, binary=True)):
                found.setdefault(places[shard], []).append(block)
            self.blocks.append(found)
            return models(blocks, states, number)

        def of(blocks: ShardedBlocks) -> Any:
            return distributed._shards_of(blocks.session, blocks.packed.blocks)

        monkeypatch.setattr(bolt_on, "release", seen)
        monkeypatch.setattr(ShardedBlocks, "models", with_blocks)


@pytest.fixture
def means(monkeypatch: pytest.MonkeyPatch) -> Means:
    return Means(monkeypatch)


@pytest.fixture
def in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are packed as they lie in their shards, so that runs can be compared."""
    monkeypatch.setattr(distributed, "shuffled", packing.grouped)


def replayed(work: Any, blocks: Mapping[int, list[bytes]], n_features: int) -> FloatArray:
    """The mean, by the kernels alone."""
    mean = np.zeros(work.loss.n_classes * n_features)
    for place, own in blocks.items():
        sgd = work.shards[place]
        weights: FloatArray | None = None
        average: FloatArray | None = None
        steps = 0
        for _ in range(work.passes):
            epoch = replay.sgd_blocks(
                own,
                n_features=n_features,
                loss=sgd.loss,
                schedule=sgd.schedule,
                lambda_=sgd.lambda_,
                radius=sgd.radius,
                batch_size=sgd.batch_size,
                weights=weights,
                average=average,
                steps=steps,
                average_from=sgd.average_from,
                by_unit=sgd.max_rows_per_unit is not None,
            )
            weights, average, steps = epoch.weights, epoch.average, epoch.steps
        model = weights if average is None else average
        assert model is not None
        mean += work.units[place] / sum(work.units) * model
    return mean


@pytest.mark.parametrize(("task", "options"), WAYS)
def test_the_model_is_the_mean_of_those_of_shards(
    two: Cluster, in_place: None, means: Means, task: str, options: Mapping[str, Any]
) -> None:
    result = trained(two, spec(task=task), **options)
    ((blocks,), (mean,)) = means.blocks, means.found
    assert len(blocks) == 4
    assert np.linalg.norm(mean) > 0.01
    np.testing.assert_allclose(mean, replayed(result.plan.work, blocks, 5), rtol=1e-13, atol=1e-15)
    assert work_tables(two) == []


@pytest.mark.parametrize(
    ("table", "more"), [("points", {}), ("visits", {"unit": "person", "max_rows_per_unit": 3})]
)
def test_the_same_order_gives_the_same_mean_on_any_number_of_workers(
    two: Cluster, four: Cluster, in_place: None, means: Means, table: str, more: Mapping[str, Any]
) -> None:
    for cluster in (two, four):
        result = trained(cluster, spec(table=table, **more))
        assert "trained on the workers, in 4 shards" in result.plan.place
    if table == "points":
        np.testing.assert_array_equal(means.found[0], means.found[1])
    else:  # the places of a unit's rows are drawn
        np.testing.assert_allclose(means.found[0], means.found[1], rtol=1e-9)


@pytest.mark.parametrize("unit", [None, "person"])
@pytest.mark.parametrize("fresh_order", [False, True])
def test_every_shard_has_an_order_of_its_own_and_a_fresh_one_where_asked(
    two: Cluster, monkeypatch: pytest.MonkeyPatch, unit: str | None, fresh_order: bool
) -> None:
    seen: list[list[tuple[int, bytes]]] = []
    take = ShardedBlocks.sgd_pass

    def looked(blocks: ShardedBlocks, *given: Any) -> Any:
        rows = sql.SQL(
            "SELECT dpml.shard_id(b.tableoid), b.number, r.place, r.row FROM {} AS b, "
            "dpml.rows(b.block) WITH ORDINALITY AS r (row, place)"
        )
        found = sorted(blocks.session.fetch(rows.format(blocks.packed.blocks)), key=lambda row: row[:3])
        shards = sorted({shard for shard, *_ in found})  # of another work table they have other numbers
        seen.append([(shards.index(shard), row[-20:]) for shard, _, _, row in found])  # five features
        return take(blocks, *given)

    monkeypatch.setattr(ShardedBlocks, "sgd_pass", looked)
    data = spec(table="visits", unit=unit, max_rows_per_unit=3 if unit else 1)
    for _ in range(2):
        trained(two, data, passes=2, fresh_order=fresh_order)
    first, again, other, _ = seen
    assert len(first) == N
    assert (first == again) == (not fresh_order)
    assert first != other
    for rows in (again, other):
        assert sorted(rows) == sorted(first)


def test_accuracy_is_that_of_all_rows_together(two: Cluster) -> None:
    """At the same guarantee and step length the noise is the same, and the mean has learnt as much."""
    data, privacy = spec(), PrivacySpec(4.0, 1e-6)
    found: dict[bool, list[float]] = {True: [], False: []}
    for shards in (True, False):
        training = by_shards() if shards else TrainSpec("bolt-on")
        for _ in range(5):
            name = f"model {secrets.token_hex(8)}"
            result = train(two.dsn, data, privacy, training, name=name)
            assert result.plan.noise is not None
            found[shards].append(evaluate(two.dsn, name, "points", owner=True).accuracy or 0.0)
    assert np.mean(found[True]) > np.mean(found[False]) - 0.03


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("unit", [None, "person"])
def test_neighbours_move_the_mean_by_at_most_the_sensitivity(
    two: Cluster, connection: psycopg.Connection, in_place: None, means: Means, place: int, unit: str | None
) -> None:
    """Of each shard a unit's rows change, in one order."""
    data = spec(table="near", unit=unit, max_rows_per_unit=3 if unit else 1)
    for table in ("near", "near_too"):
        connection.execute(f"CREATE TABLE {table} (LIKE points)".encode())
        connection.execute(f"SELECT create_distributed_table('{table}', 'person')".encode())
    try:
        connection.execute("INSERT INTO near SELECT * FROM points WHERE id < 300 ORDER BY id")
        shards = connection.execute(
            "SELECT shardid FROM pg_dist_shard WHERE logicalrelid = 'near'::regclass "
            "ORDER BY shardminvalue::int"
        ).fetchall()
        (person,) = connection.execute(
            "SELECT min(p) FROM generate_series(5, 99) AS p "
            "WHERE get_shard_id_for_distribution_column('near', p) = %s",
            shards[place],
        ).fetchone() or (None,)
        mine = "person = %(person)s" if unit else "id = 3 * %(person)s"
        connection.execute(
            f"INSERT INTO near_too SELECT id, person, CASE WHEN {mine} THEN ARRAY[-1, 0, 0, 0] ELSE x END, "
            f"CASE WHEN {mine} THEN false ELSE yes END, kind, number FROM near ORDER BY id".encode(),
            {"person": person},
        )
        results = [trained(two, replace(data, table=table), lambda_=0.1) for table in ("near", "near_too")]
    finally:
        connection.execute("DROP TABLE near, near_too")
    noises = [result.plan.noise for result in results]
    assert noises[0] == noises[1]
    moved = float(np.linalg.norm(means.found[0] - means.found[1]))
    assert 0.0 < moved <= noises[0].calibrated_sensitivity


def explained(
    monkeypatch: pytest.MonkeyPatch, cluster: Cluster, data: DataSpec, **options: Any
) -> list[tuple[str, str]]:
    """All statements over rows and work tables of a run that read, and their plans."""
    fetch, found = Session.fetch, []
    reads = re.compile(
        r'(?!EXPLAIN).*(on_shards\(|\."state_|substring\(t\.tableoid|FROM "public")', re.DOTALL
    )

    def planned(session: Session, query: Any, parameters: Any = None, **how: Any) -> Any:
        text = query.as_string(None)
        if reads.match(text):
            explain = sql.SQL("EXPLAIN (VERBOSE, COSTS OFF) ")
            lines = fetch(session, explain + query, parameters)
            found.append((text, "\n".join(line for (line,) in lines)))
        return fetch(session, query, parameters, **how)

    with monkeypatch.context() as patched:
        patched.setattr(Session, "fetch", planned)
        trained(cluster, data, **options)
    return found


@pytest.mark.parametrize("unit", [None, "person"])
def test_no_row_leaves_its_worker(two: Cluster, monkeypatch: pytest.MonkeyPatch, unit: str | None) -> None:
    data = spec(table="visits", unit=unit, max_rows_per_unit=3 if unit else 1)
    plans = explained(monkeypatch, two, data, passes=3, fresh_order=True)
    kinds: Counter[str] = Counter()
    for text, shown in plans:
        above, _, task = shown.partition("->  Task")
        kind = next(kind for kind in ("on_shards", "state_", "tableoid", "count") if kind in text)
        kinds[kind] += 1
        assert "Task Count: 4" in above
        assert "Seq Scan" not in above
        # A sum, or sums of groups, of each shard; of a state its one row of a pass.
        allowed = {"Seq"} if kind == "state_" else {"Aggregate", "HashAggregate", "GroupAggregate"}
        assert re.findall(r"->  (\w+)", task)[0] in allowed, shown
    # The packing is planned before the charge. There are three packings and passes.
    assert kinds == {"count": 1, "tableoid": 1, "on_shards": 1 + 3 + 3, "state_": 3 + 1}


@pytest.mark.parametrize("ids", ["", "WHERE id = 7", "WHERE id < 3"])
def test_shards_without_rows(two: Cluster, connection: psycopg.Connection, ids: str, means: Means) -> None:
    connection.execute("CREATE TABLE few (LIKE points)")
    try:
        connection.execute("SELECT create_distributed_table('few', 'id')")
        if ids:
            connection.execute(f"INSERT INTO few SELECT * FROM points {ids}".encode())
        result = trained(two, spec(table="few"), passes=2)
        assert min(result.plan.problem.shards.units) == 0
        assert bool(np.any(means.found[0])) == bool(ids)
        assert work_tables(two) == []
    finally:
        connection.execute("DROP TABLE few")


def test_a_unit_lies_in_one_shard_and_is_counted_there(two: Cluster, connection: psycopg.Connection) -> None:
    decided = plan(two.dsn, spec(table="visits", unit="person", max_rows_per_unit=2), PRIVACY, by_shards())
    rows = connection.execute(
        "SELECT get_shard_id_for_distribution_column('visits', person), count(DISTINCT person) "
        "FROM (SELECT person FROM visits OFFSET 0) AS v GROUP BY 1"
    ).fetchall()
    assert decided.problem.shards is not None
    assert sorted(decided.problem.shards.units) == sorted(count for _, count in rows)
    assert sum(decided.problem.shards.units) == decided.problem.n_units == 667


def test_a_filter_is_counted_and_kept_on_the_workers(two: Cluster) -> None:
    data = spec(where="id % 2 = 0 -- of each pair", definition_is_public=True)
    result = trained(two, data, passes=2)
    assert sum(result.plan.problem.shards.units) == result.plan.problem.n_units == N // 2


def test_the_plan_says_what_is_public_and_where(two: Cluster) -> None:
    text = re.sub(r"\s+", " ", plan_text(plan(two.dsn, spec(), PRIVACY, by_shards())))
    assert "trained on the workers, in 4 shards, each by itself: only their models travel" in text
    assert "4 with rows, of 486 to 512 units" in text
    assert "Public: the table's and columns' names, bounds, levels, the number of rows, in which shard a row "
    assert "in which shard a row lies, by its id," in text
    result = trained(two, spec(), passes=1)
    assert result.model.privacy["placed_by"] == "id"
    assert [own["rows"] for own in result.model.training["shards"]] == [512, 512, 490, 486]
    assert "Shards      4 with rows, of 486 to 512 units" in model_text(result.model)


@pytest.mark.parametrize(
    ("table", "more", "reason"),
    [
        ("plain", {}, "plain is none: leave by_shards out"),
        (
            "points",
            {"unit": "person", "max_rows_per_unit": 3},
            "by id, not by person: leave by_shards out, or distribute the table by person",
        ),
        ("points", {"where": "id IN (SELECT 1)", "definition_is_public": True}, "may read other tables"),
        (
            "points",
            {"where": "random() < 0.5", "definition_is_public": True},
            "a moment ago: a shard was moved or split, or the filter chooses other rows each time; try again",
        ),
        ("seen", {"definition_is_public": True}, "a view or a partitioned table has no shards of its own"),
        (
            "points",
            {"columns": (Column("id", lower=0, upper=10),)},
            "by_shards makes the values of id public, because they decide in which shard a row lies, so id "
            "can be neither a feature nor the label: leave by_shards out, or distribute the table by another "
            "column",
        ),
    ],
)
def test_refused_before_the_charge(
    two: Cluster, connection: psycopg.Connection, table: str, more: dict[str, Any], reason: str
) -> None:
    columns = more.pop("columns", COLUMNS)
    connection.execute("CREATE TABLE plain (LIKE points); CREATE VIEW seen AS SELECT * FROM points")
    before = connection.execute("SELECT count(*) FROM dpml.ledger").fetchone()
    try:
        data = DataSpec(table, LABELS["binary"], columns, **more)
        for call in (plan, partial(train, name="refused")):
            with pytest.raises(SpecError, match="by_shards") as caught:
                call(two.dsn, data, PRIVACY, by_shards())
            assert reason in str(caught.value)
    finally:
        connection.execute("DROP VIEW seen; DROP TABLE plain")
    assert connection.execute("SELECT count(*) FROM dpml.ledger").fetchone() == before


@pytest.mark.parametrize("role", ["feature", "label"])
def test_what_is_generated_from_the_distribution_column_is_refused(
    two: Cluster, connection: psycopg.Connection, role: str
) -> None:
    connection.execute(
        "CREATE TABLE derived (id int, x float8[], yes bool, one int, "
        "two int GENERATED ALWAYS AS (id * 2) STORED, own int GENERATED ALWAYS AS (one + 1) STORED)"
    )
    number = Label("number", lower=-1, upper=1)
    try:
        connection.execute("SELECT create_distributed_table('derived', 'id')")
        connection.execute("INSERT INTO derived SELECT id, x, yes, id % 5 FROM points")

        def decide(name: str) -> Any:
            column = Column("own" if role == "label" else name, lower=0, upper=10)
            label = replace(number, column=name) if role == "label" else LABELS["binary"]
            return plan(two.dsn, DataSpec("derived", label, (column,)), PRIVACY, by_shards())

        with pytest.raises(SpecError, match="so two, which is generated from them, can be neither a feature"):
            decide("two")
        assert decide("one" if role == "label" else "own").problem.shards is not None
    finally:
        connection.execute("DROP TABLE derived")


def test_neither_on_one_server_nor_to_tune_or_with_the_certified_solver(one: Cluster, two: Cluster) -> None:
    with pytest.raises(SpecError, match=r"by_shards trains on each shard .* points is none"):
        plan(one.dsn, spec(), PRIVACY, by_shards())
    with pytest.raises(SpecError, match="dpml train does that, and tuning cannot: leave by_shards out"):
        tune(two.dsn, spec(), PRIVACY, Grid({"passes": [1, 2]}, by_shards()), name="tuned")
    with pytest.raises(SpecError, match="by_shards belongs to solver = sgd"):
        plan(two.dsn, spec(), PRIVACY, by_shards(lambda_=0.1, solver="certified"))
    with pytest.raises(SpecError, match="by_shards belongs to method bolt-on"):
        TrainSpec("dp-sgd", by_shards=True)


def test_a_pass_over_other_rows_of_a_shard_than_were_counted_fails_the_run(
    two: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = distributed.count_shard_units

    def moved(*given: Any) -> ShardUnits:
        key, (first, second, *rest) = count(*given)
        return ShardUnits(key, (first + 1, second - 1, *rest))

    monkeypatch.setattr(PLANNING + ".count_shard_units", moved)
    moved_rows = (
        r"did not see every packed row of its shard, which may have been moved or split.*stay charged"
    )
    with pytest.raises(RunFailedError, match=moved_rows):
        trained(two, spec())
    assert work_tables(two) == []


@pytest.mark.parametrize("binary", ["on", "off"])
def test_models_travel_with_all_their_digits(
    two: Cluster, connection: psycopg.Connection, in_place: None, means: Means, binary: str
) -> None:
    connection.execute("CREATE ROLE rough LOGIN IN ROLE dpml_curator; GRANT SELECT ON points TO rough")
    connection.execute("ALTER ROLE rough SET extra_float_digits = -14")
    dsn = conninfo.make_conninfo(two.dsn_of("rough"), options=f"-c citus.enable_binary_protocol={binary}")
    try:
        for asked in (two.dsn, dsn):
            trained(asked, spec(), passes=2)
    finally:
        connection.execute("DROP OWNED BY rough; DROP ROLE rough")
    np.testing.assert_array_equal(means.found[1], means.found[0])


def test_a_coordinator_that_has_the_shards(
    two: Cluster, alone: Cluster, in_place: None, means: Means
) -> None:
    for cluster in (two, alone):
        trained(cluster, spec(), fresh_order=True, passes=2)
    np.testing.assert_array_equal(means.found[1], means.found[0])
    assert work_tables(alone) == []


def test_a_budget_and_the_command_line(two: Cluster, connection: psycopg.Connection, tmp_path: Any) -> None:
    connection.execute("CREATE TABLE paid (LIKE points)")
    connection.execute("SELECT create_distributed_table('paid', 'id')")
    connection.execute("INSERT INTO paid SELECT * FROM points")
    (tmp_path / "paid.toml").write_text(
        'unit = "id"\nmax_rows_per_unit = 1\ntable = "paid"\nlabel = {column = "yes", positive = "true"}\n'
        "columns.x = {length = 4, lower = -1, upper = 1}\n",
        encoding="utf-8",
    )
    with Database(two.dsn).session() as session:
        opening.open_budget(
            session,
            "paid",
            epsilon=Decimal(1),
            delta=Decimal("1e-5"),
            rule="gdp",
            unit="id",
            tables=("paid",),
        )
    asked = ["train", str(tmp_path / "paid.toml"), "--method", "bolt-on", "--by-shards", "--epsilon", "0.9"]
    for number, code in ((1, 0), (2, 4)):
        ran = CliRunner().invoke(cli.app, [*asked, "--name", f"paid {number}", "--dsn", two.dsn])
        assert ran.exit_code == code, ran.output
    placed = "SELECT mechanism ->> 'placed_by' FROM dpml.ledger WHERE model = 'paid 1'"
    assert connection.execute(placed).fetchone() == ("id",)


def test_a_budget_that_protects_a_row_whatever_its_id_takes_no_run_by_shards(
    two: Cluster, connection: psycopg.Connection
) -> None:
    connection.execute("CREATE TABLE strict (LIKE points)")
    connection.execute("SELECT create_distributed_table('strict', 'id')")
    connection.execute("INSERT INTO strict SELECT * FROM points")
    with Database(two.dsn).session() as session:
        opening.open_budget(
            session, "strict", epsilon=Decimal(5), delta=Decimal("1e-5"), rule="gdp", tables=("strict",)
        )
    with pytest.raises(GuaranteeError, match="protects a row whatever its id is"):
        trained(two, spec(table="strict"))
    assert connection.execute(
        "SELECT count(*) FROM dpml.ledger WHERE table_name = 'public.strict'"
    ).fetchone() == (0,)
    train(two.dsn, spec(table="strict"), PRIVACY, TrainSpec("dp-gd"), name="strict")
