# SPDX-License-Identifier: PostgreSQL
"""How fast training is, as ratios to what PostgreSQL and scikit-learn need for the same rows.

Both sides of a ratio run in turns in one process on one machine, and the ratio
is that of their medians: seconds differ between machines, ratios hardly. Passes
are timed inside real runs, from one progress report to the next, with the other
side's turn between them.
"""

from __future__ import annotations

import argparse
import importlib
import json
import resource
import secrets
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

import psycopg
from rich.console import Console
from rich.table import Table

import accuracy
import citus
import pg_dpml
from bench_distributed import auto_distributed
from bench_rows import FEATURES, Floats, copy_in, copy_in_sparse, copy_out, make_rows, spec
from pg_dpml import PrivacySpec, TrainSpec, kernels
from pg_dpml.blocks import packing, source
from pg_dpml.blocks.blocks import Blocks
from pg_dpml.database.adapters import json_parameter
from pg_dpml.database.database import Database
from pg_dpml.database.session import sql
from pg_dpml.errors import EXIT_TERMINATED, DpmlError
from pg_dpml.methods import bolt_on
from pg_dpml.runs.train import start_run
from pg_dpml.server.embedded import EmbeddedServer
from pg_dpml.training import scd
from pg_dpml.training.job import Job
from pg_dpml.training.plan import Problem
from pg_dpml.training.scd import Scd
from pg_dpml.training.sgd import Sgd, run_passes

ROWS, QUICK_ROWS = 1_000_000, 5_000
RUNS, QUICK_RUNS = 9, 3
GROWTH = 10
SPARSE_FEATURES, SPARSE_VALUES = 100_000, 80
WIDE_FEATURES = 1_600

GOALS: Mapping[str, float] = {
    "noiseless-vs-count": 1.2,
    "noiseless-vs-rows": 5.0,
    "noiseless-vs-sklearn": 1.0,
    "bolt-on-overhead": 0.01,
    "pack-vs-ctas": 0.7,
    "pack-unordered": 12.0,
    "end-to-end-vs-export": 0.5,
    "growth-pass": 1.5,
    "growth-pack": 1.5,
    "growth-pass-128mb": 1.5,
    "growth-pack-128mb": 1.5,
    "sensitivity-1e8": 1.0,
    "gradient-parallel": 1.2,
    "scs13-b10": 2.0,
    "scs13-b50": 1.3,
    "scs13-b1": 8.0,
    "scs13-b10-vs-rows": 1.0,
    "poisson-epoch": 10.0,
    "dp-sgd-pass": 1.3,
    "scd-pass": 1.5,
    "dp-scd-pass": 1.5,
    "frank-wolfe-step": 20.0,
    "frank-wolfe-step-seconds": 0.3,
    "auto-covertype": 80.0,
    "auto-wide": 2.0,
    "auto-distributed": 1.3,
    "start-up": 2.2,
}
AT_LEAST = ("noiseless-vs-rows",)
"""Goals to reach from above; the others are upper limits."""

# The rest is PostgreSQL's default, but for the durability that a temporary server does without.
SETTINGS = {
    "jit": "off",
    "max_parallel_workers_per_gather": "0",
    "shared_buffers": "2500MB",  # a table above a quarter of it would be read through a small ring
    "checkpoint_timeout": "1h",
    "max_wal_size": "16GB",
}

log = Console(stderr=True, highlight=False)


@dataclass(frozen=True)
class Result:
    """One line: a ratio of two medians, or a time against a limit in seconds."""

    name: str
    value: float
    ours_s: float
    other_s: float | None


def seconds(action: Callable[[], object]) -> float:
    """Wall-clock time of one call."""
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def processor_seconds(command: Sequence[str]) -> float:
    """Processor time of a process, whose output is thrown away."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def compare(name: str, ours: Sequence[float], others: Sequence[float], *, inverse: bool = False) -> Result:
    """The ratio of two medians, ours over the other's, or its inverse."""
    mine, theirs = statistics.median(ours), statistics.median(others)
    return Result(name, theirs / mine if inverse else mine / theirs, mine, theirs)


class RunClock:
    """A run's progress callback: its pack and pass times; `between` is called, untimed, after every pass."""

    def __init__(self, between: Callable[[], object] = lambda: None) -> None:
        self._between = between
        self._started = 0.0
        self.pack: list[float] = []
        self.passes: list[float] = []

    def __call__(self, phase: str, done: int, total: int) -> None:
        """One progress report."""
        elapsed = time.perf_counter() - self._started
        if phase == "pack" and done:
            self.pack.append(elapsed)
        elif phase == "pass":
            if done > 1:  # the first also makes its table and warms the cache
                self.passes.append(elapsed)
            self._between()
        self._started = time.perf_counter()


class Calls(list[tuple[float, float]]):
    """Start and end of every call of a function."""


@contextmanager
def measured(owner: object, name: str, calls: Calls) -> Iterator[None]:
    """Append the calls of a function."""
    original = getattr(owner, name)

    def wrapper(*arguments: Any, **named: Any) -> Any:
        started = time.perf_counter()
        try:
            return original(*arguments, **named)
        finally:
            calls.append((started, time.perf_counter()))

    with mock.patch.object(owner, name, wrapper):
        yield


class Bench:
    """The server, the rows, and one method for each group of results."""

    def __init__(self, stack: ExitStack, n_rows: int, runs: int) -> None:
        self._stack = stack
        self._dsn: str | None = None
        self.n_rows = n_rows
        self.runs = runs
        self.x, self.y = make_rows(n_rows)

    @property
    def dsn(self) -> str:
        """Of a server with the rows in table `source`, started when it is first needed."""
        if self._dsn is None:
            self._dsn = self._start(self._stack)
        return self._dsn

    def _start(self, stack: ExitStack, **settings: str) -> str:
        log.print(f"starting a server with {self.n_rows:,} rows of {FEATURES} features")
        server = stack.enter_context(EmbeddedServer(settings=SETTINGS | settings))
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute("CREATE EXTENSION pg_dpml")
            copy_in(connection, self.x, self.y)
        return server.dsn

    def _open(self, options: str = "") -> psycopg.Connection[Any]:
        return self._stack.enter_context(psycopg.connect(self.dsn, autocommit=True, options=options))

    @staticmethod
    def _train(dsn: str, training: TrainSpec, clock: RunClock, table: str = "source") -> pg_dpml.TrainResult:
        name = f"bench_{secrets.token_hex(4)}"
        return pg_dpml.train(dsn, spec(table), PrivacySpec(1.0), training, name=name, progress=clock)

    def _passes_against(self, other: Callable[[], object]) -> tuple[list[float], list[float]]:
        """Passes of one row a step without noise, each followed by a turn of the other side."""
        others: list[float] = []
        clock = RunClock(lambda: others.append(seconds(other)))
        self._train(self.dsn, self._one_row_steps, clock)
        return clock.passes, others[1:]

    @property
    def _one_row_steps(self) -> TrainSpec:
        # The passes of bolt-on carry no noise; the method `noiseless` would put its loss between them.
        return TrainSpec(method="bolt-on", passes=self.runs + 1, batch_size=1, schedule="inverse_sqrt")

    def noiseless_vs_count(self) -> list[Result]:
        """A pass, over counting the source table."""
        connection = self._open()
        passes, counts = self._passes_against(lambda: connection.execute("SELECT count(*) FROM source"))
        return [compare("noiseless-vs-count", passes, counts)]

    def noiseless_vs_rows(self) -> list[Result]:
        """The curator's aggregate over single rows, over the same pass on blocks."""
        passes, by_rows = self._passes_against(self._pass_by_rows(self._open(), self._one_row_steps))
        return [compare("noiseless-vs-rows", passes, by_rows, inverse=True)]

    def _pass_by_rows(self, connection: psycopg.Connection[Any], training: TrainSpec) -> Callable[[], object]:
        decided = pg_dpml.plan(self.dsn, spec(), PrivacySpec(1.0), training)
        options = json_parameter(decided.work.record(self.n_rows)["options"])
        query = "SELECT dpml.sgd_epoch(x, y, NULL::float8[], %s) FROM source"
        return partial(connection.execute, query, [options])

    def noiseless_vs_sklearn(self) -> list[Result]:
        """A pass, over one of scikit-learn on an array in memory, in its order."""
        epoch = sklearn_epoch(self.x, self.y)
        passes, epochs = self._passes_against(epoch)
        return [compare("noiseless-vs-sklearn", passes, epochs)]

    def start_up(self) -> list[Result]:
        """Processor time of `dpml models`, over importing two libraries that every command needs."""
        python = (sys.executable, "-c")
        models = (*python, "from pg_dpml.cli import main; main()", "models", "--dsn", self.dsn)
        libraries = (*python, "import numpy, psycopg")
        times = [(processor_seconds(models), processor_seconds(libraries)) for _ in range(self.runs + 1)]
        ours, others = zip(*times[1:], strict=True)
        return [compare("start-up", ours, others)]

    def bolt_on_overhead(self) -> list[Result]:
        """Share of a run, on a server that waits for its disk, that is spent on being private."""
        connection = self._open()
        for setting in ("fsync = on", "synchronous_commit = on"):
            connection.execute(f"ALTER SYSTEM SET {setting}")
        connection.execute("SELECT pg_reload_conf()")
        run_module = importlib.import_module("pg_dpml.runs.train")
        costs, totals = [], []
        for _ in range(self.runs):
            plans, charges, works, releases = Calls(), Calls(), Calls(), Calls()
            with (
                measured(bolt_on.BoltOn, "plan", plans),
                measured(run_module, "_charge", charges),
                measured(run_module, "_run", works),
                measured(bolt_on, "release", releases),
            ):
                bolt_on_run = TrainSpec(method="bolt-on", batch_size=50)
                totals.append(seconds(partial(self._train, self.dsn, bolt_on_run, RunClock())))
            once = sum(end - start for start, end in (*plans, *releases))
            # After a charge, its commit is waited for, and the run connects again.
            costs.append(once + works[0][0] - charges[0][0])
        connection.execute("ALTER SYSTEM RESET ALL")
        connection.execute("SELECT pg_reload_conf()")
        return [compare("bolt-on-overhead", costs, totals)]

    def pack_vs_ctas(self) -> list[Result]:
        """Encoding, shuffling and packing, over writing the same rows in random order."""
        connection = self._open("-c work_mem=1GB")
        database = Database(f"{self.dsn} options='-c work_mem=1GB'")
        copied, packed = [], []
        statement = "CREATE TABLE shuffled AS SELECT x, y FROM source ORDER BY random()"
        for _ in range(self.runs + 1):
            with connection.transaction(force_rollback=True):
                copied.append(seconds(partial(connection.execute, statement)))
            with database.session("REPEATABLE READ") as session:
                packed.append(seconds(partial(packing.pack, session, source.resolve(session, spec()))))
                session.driver.rollback()
        return [compare("pack-vs-ctas", packed[1:], copied[1:])]

    def pack_unordered(self) -> list[Result]:
        """Encoding and packing for passes that need no order, with two workers, over counting with none."""
        connection = self._open()
        database = Database(f"{self.dsn} options='-c max_parallel_workers_per_gather=2'")
        packed, counts = [], []
        for _ in range(self.runs + 1):
            with database.session("REPEATABLE READ") as session:
                resolved = source.resolve(session, spec())
                packed.append(seconds(partial(packing.pack, session, resolved, ordered=False)))
                session.driver.rollback()
            counts.append(seconds(partial(connection.execute, "SELECT count(*) FROM source")))
        return [compare("pack-unordered", packed[1:], counts[1:])]

    def end_to_end_vs_export(self) -> list[Result]:
        """A private model by ten passes, over taking the rows out and ten epochs of scikit-learn."""
        connection = self._open()
        ours, others = [], []

        def export() -> None:
            sklearn_epoch(*copy_out(connection, self.n_rows), epochs=10, check=True)()

        for _ in range(self.runs):
            ten_passes = TrainSpec(method="bolt-on", passes=10)
            ours.append(seconds(partial(self._train, self.dsn, ten_passes, RunClock())))
            others.append(seconds(export))
        return [compare("end-to-end-vs-export", ours, others)]

    def growth(self) -> list[Result]:
        """Time a row of a table ten times as large, over that of the usual one."""
        results = []
        for suffix, settings in (("", {}), ("-128mb", {"shared_buffers": "128MB"})):
            clocks = {"source": RunClock(), "large": RunClock()}
            with ExitStack() as stack:
                dsn = self._start(stack, **settings)
                with psycopg.connect(dsn, autocommit=True) as connection:
                    connection.execute("CREATE TABLE large (LIKE source)")
                    connection.execute(
                        "INSERT INTO large SELECT s.x, s.y FROM generate_series(1, %s), source s", [GROWTH]
                    )
                    connection.execute("VACUUM (FREEZE, ANALYZE) large")
                for run in range(self.runs):
                    for table, clock in clocks.items():
                        log.print(f"growth{suffix}: run {run + 1} of {self.runs} on {table}")
                        # Wide batches: two passes of small steps over so many rows are refused, for the
                        # bound on their rounding errors grows with the square of the number of steps.
                        self._train(dsn, TrainSpec(method="bolt-on", passes=2, batch_size=500), clock, table)
            for kind in ("pass", "pack"):
                usual, large = ([*(c.passes if kind == "pass" else c.pack)] for c in clocks.values())
                results.append(compare(f"growth-{kind}{suffix}", large, [GROWTH * value for value in usual]))
        return results

    def sensitivity_1e8(self) -> list[Result]:
        """Seconds for the sensitivity of a run of 100 steps a row, 10^8 in all, of the slower kind."""
        times = []
        for schedule, passes in (
            (kernels.Schedule("inverse_sqrt", step_size=1.0, max_step=3.99), 10),
            (kernels.Schedule("strongly_convex", lambda_=1e-4, max_step=3.99), 1),
        ):
            recursion = partial(
                kernels.sensitivity,
                schedule=schedule,
                smoothness=0.25,
                lambda_=1e-4,
                gradient_change=1.0,
                n_rows=100 * self.n_rows // passes,
                passes=passes,
                batch_size=1,
            )
            times.append(statistics.median(seconds(recursion) for _ in range(self.runs)))
        return [Result("sensitivity-1e8", max(times), max(times), None)]

    def gradient_parallel(self) -> list[Result]:
        """A full-batch gradient with two workers, over counting the source table with none."""
        connection = self._open()
        passes, counts = [], []
        with Database(self.dsn).session("REPEATABLE READ") as session:
            packed = packing.pack(session, source.resolve(session, spec()))
            session.execute(sql.SQL("SET LOCAL max_parallel_workers_per_gather = 2"))
            query = sql.SQL(
                "SELECT (s.sums).rows FROM (SELECT dpml.gradient(b.block, %(weights)s::float8[], "
                '\'{{"loss": "logistic", "losses": false}}\') AS sums FROM {} AS b) AS s'
            ).format(packed.blocks)
            weights = {"weights": [0.1] * FEATURES}
            for _ in range(self.runs + 1):
                passes.append(seconds(partial(session.fetch, query, weights)))
                counts.append(seconds(partial(connection.execute, "SELECT count(*) FROM source")))
            session.driver.rollback()
        return [compare("gradient-parallel", passes[1:], counts[1:])]

    def scs13(self, batch_size: int) -> list[Result]:
        """A pass with noise in every step, over one without."""
        training = TrainSpec(method="scs13", passes=1, batch_size=batch_size)
        return [self._noisy_pass(f"scs13-b{batch_size}", training)]

    def scs13_vs_rows(self) -> list[Result]:
        """The same, over one without noise of the curator's aggregate over single rows."""
        training = TrainSpec(method="scs13", passes=1, batch_size=10)
        return [self._noisy_pass("scs13-b10-vs-rows", training, by_rows=True)]

    def poisson_epoch(self) -> list[Result]:
        """A pass over Poisson batches with noise in every step, over one of plain batches without."""
        training = TrainSpec(method="dp-sgd", passes=1, batch_size=10, sampling="poisson")
        return [self._noisy_pass("poisson-epoch", training)]

    def dp_sgd_pass(self) -> list[Result]:
        """A pass of dp-sgd by its defaults, over batches that its units draw, over one of plain batches."""
        return [self._noisy_pass("dp-sgd-pass", TrainSpec(method="dp-sgd", passes=1, batch_size=50))]

    def scd_pass(self) -> list[Result]:
        """Two passes of coordinate descent, which write and read all duals once, over two of plain SGD."""
        plain = TrainSpec(method="bolt-on", passes=2, batch_size=1, schedule="inverse_sqrt")
        return [self._packed_passes("scd-pass", TrainSpec(method="scd", passes=2, loss="hinge"), plain)]

    def dp_scd_pass(self) -> list[Result]:
        """Two passes of dp-scd over two of dp-sgd, both with noise in each of the same Poisson batches."""
        options: dict[str, Any] = {"passes": 2, "batch_size": 50}
        other = TrainSpec(method="dp-sgd", sampling="poisson", **options)
        return [self._packed_passes("dp-scd-pass", TrainSpec(method="dp-scd", **options), other)]

    def _noisy_pass(self, name: str, training: TrainSpec, *, by_rows: bool = False) -> Result:
        """A pass over one without noise, in batches of the same size."""
        plain = TrainSpec(
            method="bolt-on", passes=1, batch_size=training.get("batch_size"), schedule="inverse_sqrt"
        )
        return self._packed_passes(name, training, plain, by_rows=by_rows)

    def _packed_passes(
        self, name: str, training: TrainSpec, plain: TrainSpec, *, by_rows: bool = False
    ) -> Result:
        """Runs of passes over rows that are packed once; `by_rows`: the other side reads single rows."""
        connection = self._open()
        ours, others = [], []
        with Database(self.dsn).session("REPEATABLE READ") as session:
            resolved = source.resolve(session, spec())
            start_run(session)
            packed = packing.pack(session, resolved)

            def passes(side: TrainSpec) -> Callable[[], object]:
                privacy = PrivacySpec(1.0) if side.chosen.private else None
                decided = pg_dpml.plan(self.dsn, spec(), privacy, side)
                job = Job(Blocks(session, resolved, packed), decided, lambda *_: None)
                if isinstance(decided.work, Scd):
                    return partial(scd.run_passes, job, decided.work)
                assert isinstance(decided.work, Sgd)
                return partial(run_passes, job, decided.work)

            first = passes(training)
            second = self._pass_by_rows(connection, plain) if by_rows else passes(plain)
            for _ in range(self.runs + 1):
                ours.append(seconds(first))
                others.append(seconds(second))
            session.driver.rollback()
        return compare(name, ours[1:], others[1:])

    def frank_wolfe_step(self) -> list[Result]:
        """A step over sparse rows of 100,000 features, 80 of them not 0, over counting such rows."""
        connection = self._open()
        n_rows, counts = self.n_rows // 5, []
        copy_in_sparse(connection, n_rows, SPARSE_FEATURES, SPARSE_VALUES)
        training = TrainSpec("frank-wolfe", passes=self.runs + 1)
        decided = training.decide(Problem(n_rows, SPARSE_FEATURES, 1, "binary"), PrivacySpec(1.0))
        count = "SELECT count(*) FROM sparse_rows"
        clock = RunClock(lambda: counts.append(seconds(partial(connection.execute, count))))
        with Database(self.dsn).session("REPEATABLE READ") as session:
            start_run(session)
            packed = packing.PackedRows(sql.Identifier("dpml_work", "sparse_blocks"), 1)
            clock("start", 0, 0)
            decided.run(Job(Blocks(session, source.resolve(session, spec()), packed), decided, clock))
            session.driver.rollback()
        step = statistics.median(clock.passes)
        return [
            compare("frank-wolfe-step", clock.passes, counts[1:]),
            Result("frank-wolfe-step-seconds", step, step, None),
        ]

    def auto_covertype(self) -> list[Result]:
        """A model of seven classes by `auto`, all included, with two workers, over counting with none."""
        data = accuracy.DataSet.from_toml(accuracy.SETS / "covertype.toml")
        folder = accuracy.data_folder([data])
        connection = self._open()
        accuracy.load(connection, data, folder)
        accuracy.split(connection, 1)
        parallel = psycopg.conninfo.make_conninfo(self.dsn, options="-c max_parallel_workers_per_gather=2")
        runs, counts = [], []
        for run in range(max(1, self.runs // 3) + 1):
            training = partial(pg_dpml.train, parallel, data.spec, PrivacySpec(1.0), name=f"auto_{run}")
            runs.append(seconds(training))
            counts.append(seconds(partial(connection.execute, "SELECT count(*) FROM train_rows")))
        return [compare("auto-covertype", runs[1:], counts[1:])]

    def auto_wide(self) -> list[Result]:
        """A private model of wide rows by `auto`, over the minimiser by `lbfgs`, both with two workers."""
        with self._open() as connection:
            copy_in(connection, *make_rows(3 * self.n_rows // 100, WIDE_FEATURES), "wide_rows")
        parallel = psycopg.conninfo.make_conninfo(self.dsn, options="-c max_parallel_workers_per_gather=2")
        data, times = spec("wide_rows", WIDE_FEATURES), []
        for run in range(max(1, self.runs // 3) + 1):
            ours = partial(pg_dpml.train, parallel, data, PrivacySpec(1.0), name=f"wide_{run}")
            minimiser = partial(pg_dpml.train, parallel, data, None, TrainSpec("lbfgs"), name=f"lbfgs_{run}")
            times.append((seconds(ours), seconds(minimiser)))
        return [compare("auto-wide", *zip(*times[1:], strict=True))]

    def auto_distributed(self) -> list[Result]:
        """`auto` on a distributed table with two workers, against one server with two parallel workers."""
        reason = citus.why_not()
        if reason is not None:
            log.print(f"  not run: {reason}")
            return []
        two, one = auto_distributed(self.n_rows, max(1, self.runs // 3), {"max_wal_size": "8GB"})
        return [compare("auto-distributed", two, one)]


def sklearn_epoch(x: Floats, y: Floats, epochs: int = 1, *, check: bool = False) -> Callable[[], object]:
    """A call of scikit-learn's SGD on rows in their order; imported late, as few of the results need it."""
    import sklearn
    from sklearn.linear_model import SGDClassifier

    model = SGDClassifier(
        loss="log_loss", penalty=None, fit_intercept=False, shuffle=False, max_iter=epochs, tol=None,
        learning_rate="invscaling", eta0=4.0,
    )  # fmt: skip

    def fit() -> None:
        with sklearn.config_context(assume_finite=not check):
            model.fit(x, y)

    return fit


def is_met(result: Result, goals: Mapping[str, float]) -> bool:
    """Whether a result reaches its goal."""
    goal = goals[result.name]
    return result.value >= goal if result.name in AT_LEAST else result.value <= goal


def cells(result: Result, goals: Mapping[str, float]) -> tuple[str, ...]:
    """Name, value, goal, whether it is met, and the seconds of both sides."""
    sign = ">=" if result.name in AT_LEAST else "<="
    goal = f"{sign} {goals[result.name]:g}"
    met = "ok" if is_met(result, goals) else "MISSED"
    other = "" if result.other_s is None else f"{result.other_s:.4f} s"
    return result.name, f"{result.value:.4g}", goal, met, f"{result.ours_s:.4f} s", other


def report(results: Sequence[Result], goals: Mapping[str, float], *, as_json: bool) -> bool:
    """Print the results; whether every goal is met."""
    all_met = all(is_met(result, goals) for result in results)
    if as_json:
        lines = [
            {
                "name": result.name,
                "value": float(f"{result.value:.4g}"),
                "goal": goals[result.name],
                "ok": is_met(result, goals),
            }
            for result in results
        ]
        sys.stdout.write(json.dumps(lines, indent=2) + "\n")
        return all_met
    table = Table("name", "value", "goal", "", "ours", "other side")
    for result in results:
        table.add_row(*cells(result, goals))
    Console().print(table)
    return all_met


def main(arguments: Sequence[str] | None = None, goals: Mapping[str, float] = GOALS) -> int:
    """Run the command line; 1 if a goal is missed."""
    groups: Mapping[str, Callable[[Bench], list[Result]]] = {
        "growth": Bench.growth,  # first, while it has the memory to itself
        "noiseless-vs-count": Bench.noiseless_vs_count,
        "noiseless-vs-rows": Bench.noiseless_vs_rows,
        "noiseless-vs-sklearn": Bench.noiseless_vs_sklearn,
        "bolt-on-overhead": Bench.bolt_on_overhead,
        "pack-vs-ctas": Bench.pack_vs_ctas,
        "pack-unordered": Bench.pack_unordered,
        "end-to-end-vs-export": Bench.end_to_end_vs_export,
        "sensitivity-1e8": Bench.sensitivity_1e8,
        "gradient-parallel": Bench.gradient_parallel,
        "scs13-b10": partial(Bench.scs13, batch_size=10),
        "scs13-b50": partial(Bench.scs13, batch_size=50),
        "scs13-b1": partial(Bench.scs13, batch_size=1),
        "scs13-b10-vs-rows": Bench.scs13_vs_rows,
        "poisson-epoch": Bench.poisson_epoch,
        "dp-sgd-pass": Bench.dp_sgd_pass,
        "scd-pass": Bench.scd_pass,
        "dp-scd-pass": Bench.dp_scd_pass,
        "frank-wolfe-step": Bench.frank_wolfe_step,
        "auto-covertype": Bench.auto_covertype,
        "auto-wide": Bench.auto_wide,
        "auto-distributed": Bench.auto_distributed,
        "start-up": Bench.start_up,
    }
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument("--only", action="append", choices=groups, metavar="NAME", help=", ".join(groups))
    parser.add_argument("--quick", action="store_true", help="few rows and runs: does it work, not how fast")
    parser.add_argument("--json", action="store_true", help="a list of name, value, goal and ok")
    options = parser.parse_args(arguments)
    results: list[Result] = []
    try:
        with ExitStack() as stack:
            bench = Bench(stack, *((QUICK_ROWS, QUICK_RUNS) if options.quick else (ROWS, RUNS)))
            for name in options.only or groups:
                log.print(f"{name} ...")
                found = groups[name](bench)
                for result in found:  # at once: all of them take an hour
                    log.print("  " + "  ".join(cells(result, goals)))
                results += found
    except DpmlError as error:
        log.print(f"scripts/bench: {error}")
        return error.exit_code
    return 0 if report(results, goals, as_json=options.json) else 1


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_TERMINATED))  # the server is stopped on the way
    sys.exit(main())
