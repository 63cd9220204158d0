# SPDX-License-Identifier: PostgreSQL
"""Comparing methods on one table: trained and measured on the same random splits, with nothing stored."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pg_dpml.blocks.distributed import use_one_snapshot
from pg_dpml.blocks.portions import source_of_portions
from pg_dpml.blocks.query import count_units
from pg_dpml.blocks.source import Source, resolve
from pg_dpml.database.database import Database
from pg_dpml.database.session import Session, sql
from pg_dpml.errors import DpmlError, GuaranteeError, RunFailedError, SpecError
from pg_dpml.ledger.transaction import failure_text
from pg_dpml.names import did_you_mean, visible
from pg_dpml.runs.planning import Alternative, alternative, problem_of
from pg_dpml.runs.splits import Split
from pg_dpml.runs.train import start_run
from pg_dpml.spec.data import DataSpec
from pg_dpml.spec.privacy import PrivacySpec
from pg_dpml.spec.relation import Relation
from pg_dpml.tables.labels import LeftOut, count_left_out
from pg_dpml.tables.stamp import owner_stamp
from pg_dpml.training.job import Progress
from pg_dpml.training.method import methods as registered
from pg_dpml.training.plan import Plan, Problem

if TYPE_CHECKING:
    import sqlalchemy as sa

__all__ = [
    "DEFAULT_EPSILONS",
    "DEFAULT_SPLITS",
    "MAJORITY",
    "Comparison",
    "ComparisonEntry",
    "compare",
    "default_methods",
]

DEFAULT_EPSILONS = (0.01, 0.1, 1.0)
DEFAULT_SPLITS = 10
MOST_SPLITS = 1000
TEST_SHARE = 5
"""One unit of privacy in this many is kept for measuring."""

MAJORITY = "majority class"

WAYS = (
    "exact figures of private rows are themselves a release, so say exactly one of: --public (the rows of "
    "the table are public); --owner (they are private, and the figures are for their owner's eyes only)"
)


def default_methods() -> tuple[str, ...]:
    """The methods that are compared unless others are named.

    Of those that are not private it is `lbfgs` alone: the minimiser, against which privacy costs accuracy.
    """
    return tuple(name for name, method in registered().items() if method.private or name == "lbfgs")


@dataclass(frozen=True)
class ComparisonEntry:
    """A method at one epsilon, over all splits.

    Attributes
    ----------
    method : str
        The method asked for; or `MAJORITY`, which always predicts the most frequent class of the training
        portion.
    epsilon : float or None
        None for a method that is not private, and for one that runs at no epsilon.
    values : tuple of float
        One figure per split, see `Comparison`.
    chosen : str or None
        The method that ran, which differs from `method` if that is `auto`.
    noise : float or None
        Standard deviation of the noise in the score of a row of norm 1.
    passes : float or None
        Mean number of passes taken; None if a private run does not disclose it.
    seconds : float or None
        Mean time to train.
    refusal : str or None
        Why the method does not run with its default options; then there are no values.
    """

    method: str
    epsilon: float | None
    values: tuple[float, ...] = ()
    chosen: str | None = None
    noise: float | None = None
    passes: float | None = None
    seconds: float | None = None
    refusal: str | None = None

    @property
    def label(self) -> str:
        """The method, and in parentheses the method that it chose."""
        return self.method if self.chosen in (None, self.method) else f"{self.method} ({self.chosen})"

    @property
    def mean(self) -> float | None:
        """Mean over the splits; None for a method that does not run."""
        return statistics.fmean(self.values) if self.values else None

    @property
    def deviation(self) -> float | None:
        """Standard deviation between splits, which includes the noise; None for fewer than two splits."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None


@dataclass(frozen=True)
class Comparison:
    """Figures of several methods on the same random splits of a table.

    Attributes
    ----------
    table, task : str
    mode : str
        "public" (the rows are public) or "owner" (exact figures of private rows: **not private**).
    figure : str
        The figure: "accuracy", the share of rows classified correctly, or "r_squared".
    n_train, n_test : int
        Units of privacy in the two portions of every split.
    unit : str or None
        Column whose equal values are one unit; None: every row is one.
    splits : int
    delta : float
        delta of the private methods.
    relation : Relation
    entries : tuple of ComparisonEntry
        Methods in the order asked for, each by rising epsilon, and the majority class last. Where
        `auto` chooses a method that was also asked for, that run is one entry, called "auto".
    left_out : LeftOut or None
        Rows of the table left out of all figures because their label is not declared.
    """

    table: str
    task: str
    mode: str
    figure: str
    n_train: int
    n_test: int
    unit: str | None
    splits: int
    delta: float
    relation: Relation
    entries: tuple[ComparisonEntry, ...]
    left_out: LeftOut | None = None


def compare(
    database: str | sa.Engine,
    data: DataSpec,
    *,
    methods: Sequence[str] | None = None,
    epsilons: Sequence[float] = DEFAULT_EPSILONS,
    delta: float | None = None,
    relation: Relation = Relation.REPLACE_ONE,
    splits: int = DEFAULT_SPLITS,
    public: bool = False,
    owner: bool = False,
    progress: Progress | None = None,
    insecure: bool = False,
) -> Comparison:
    """Train methods at several epsilons on random splits of a table, and measure them on the other rows.

    Parameters
    ----------
    database : str or sqlalchemy.Engine
        libpq connection string, or an engine over psycopg 3.
    data : DataSpec
    methods : sequence of str or None
        None: see `default_methods`.
        Each runs with its default options; those that are not private without an epsilon.
    epsilons : sequence of float
        Each in [1e-12, 1e4].
    delta : float or None
        In [0, 1); None means 1 / n^2, n the units of privacy in a training portion.
    relation : Relation
    splits : int
        From 1 to 1000. Each split deals out the units of privacy anew, 80 % of them for training.
    public : bool
        The owner states that the rows are public.
    owner : bool
        Exact figures of private rows, for their owner alone: they are **not private**.
    progress : callable or None
        Called with "models", the models trained, and how many there will be.
    insecure : bool
        Allow TCP without TLS to another machine.

    Returns
    -------
    Comparison

    Raises
    ------
    GuaranteeError
        If not exactly one of `public` and `owner` is given.
    SpecError
        For a bad argument, if no method runs, or if a test portion has no figure.
    UnavailableError
        If the server cannot be reached or is read-only.
    RunFailedError
        If training fails on private rows.

    Notes
    -----
    Everything is done in one transaction that keeps nothing: no model, no charge, no work table.
    A method that needs rows encoded in another way (frank-wolfe, or `auto` with curves) is measured on random
    splits of its own.
    A model trained on a portion of the rows is a little less accurate than one trained on all rows.
    The squared error of a row is clipped at the square of the label's range.
    Source: privacy/README.md, "Scores and errors".
    """
    if public == owner:
        raise GuaranteeError(WAYS)
    known = tuple(registered())
    methods = default_methods() if methods is None else methods
    _require_different(methods, "methods")
    for method in methods:
        if method not in known:
            offer = did_you_mean(method, known) if isinstance(method, str) else ""
            raise SpecError(f"methods must be of {', '.join(known)}, not {method!r}{offer}")
    _require_different(epsilons, "epsilons")
    if isinstance(splits, bool) or not isinstance(splits, int) or not 1 <= splits <= MOST_SPLITS:
        raise SpecError(f"splits must be a whole number from 1 to {MOST_SPLITS}, not {splits!r}")
    privacies = [PrivacySpec(epsilon, delta, relation) for epsilon in epsilons]
    privacies.sort(key=lambda privacy: privacy.epsilon)
    with Database(database, insecure=insecure).session("REPEATABLE READ") as session:
        use_one_snapshot(session)
        resolved = resolve(session, data)
        n_units = count_units(session, resolved)
        n_test = n_units // TEST_SHARE
        if n_test == 0:
            raise SpecError(
                f"table {visible(data.table)} has {n_units} rows (or units of privacy), and a split takes "
                f"{TEST_SHARE}"
            )
        problem = problem_of(resolved, n_units - n_test, data)
        runs = _plan_runs(problem, methods, privacies)
        start_run(session)
        left_out, majority = _measure_splits(session, resolved, n_test, runs, splits, progress, public=public)
    return Comparison(
        table=f"{resolved.table.schema}.{resolved.table.name}",
        task=problem.task,
        mode="public" if public else "owner",
        figure="r_squared" if problem.task == "regression" else "accuracy",
        n_train=problem.n_units,
        n_test=n_test,
        unit=problem.unit,
        splits=splits,
        delta=privacies[0].delta_for(problem.n_units),
        relation=privacies[0].relation,
        entries=(*(run.entry() for run in runs), *majority),
        left_out=left_out,
    )


def _require_different(values: Sequence[Any], name: str) -> None:
    if isinstance(values, str) or not values:
        raise SpecError(f"{name} must be a list of at least one, not {values!r}")
    twice = next((value for value in values if list(values).count(value) > 1), None)
    if twice is not None:
        raise SpecError(f"{name} must be different, and {twice} only once")


@dataclass
class _Run:
    """A method at one epsilon: its plan, and its figures of the splits so far."""

    method: str
    privacy: PrivacySpec | None
    decided: Alternative
    values: list[float] = field(default_factory=list)
    passes: list[int | None] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def entry(self) -> ComparisonEntry:
        epsilon = None if self.privacy is None else self.privacy.epsilon
        plan = self.decided.plan
        if plan is None:
            return ComparisonEntry(self.method, epsilon, refusal=self.decided.refusal)
        return ComparisonEntry(
            method=self.method,
            epsilon=epsilon,
            values=tuple(self.values),
            chosen=plan.method,
            noise=None if plan.noise is None else plan.noise.score_stddev,
            passes=None if None in self.passes else statistics.fmean(p for p in self.passes if p is not None),
            seconds=statistics.fmean(self.seconds),
        )


def _plan_runs(problem: Problem, methods: Sequence[str], privacies: Sequence[PrivacySpec]) -> list[_Run]:
    """Plan every method at every epsilon; one that is not private, or never runs, has a single entry.

    The method that `auto` chooses does not run a second time under its own name.
    """
    runs = []
    for method in methods:
        once = not registered()[method].private
        of_method = [
            _Run(method, privacy, alternative(problem, privacy, method))
            for privacy in ([None] if once else privacies)
        ]
        if {run.decided.refusal for run in of_method} == {of_method[0].decided.refusal} - {None}:
            of_method = [_Run(method, None, of_method[0].decided)]
        runs += of_method
    chosen = [_plan_of(run) for run in runs if run.method == "auto" and run.decided.plan is not None]
    runs = [run for run in runs if run.method == "auto" or _plan_of(run) not in chosen]
    if all(run.decided.plan is None for run in runs):
        refusals = dict.fromkeys(f"{run.method}: {run.decided.refusal}" for run in runs)
        raise SpecError(f"methods: none of them runs here; {'; '.join(refusals)}")
    return runs


def _plan_of(run: _Run) -> Plan | None:
    """The plan of a run, without the reason why it was chosen."""
    plan = run.decided.plan
    return None if plan is None else replace(plan, reason="")


def _measure_splits(
    session: Session,
    source: Source,
    n_test: int,
    runs: Sequence[_Run],
    splits: int,
    progress: Progress | None,
    *,
    public: bool,
) -> tuple[LeftOut, tuple[ComparisonEntry, ...]]:
    """Add the figures of all splits to the runs.

    Returns the rows that they leave out, and the entry of the majority class if there are classes.

    Raises
    ------
    SpecError
        If a test portion has no figure.
    RunFailedError
        Instead of an error that may quote a private row.
    """
    try:
        with owner_stamp(not public):
            needs_order = any(plan.needs_order for plan in map(_plan_of, runs) if plan is not None)
            here = source_of_portions(session, source, needs_order=needs_order)
            report = progress or (lambda phase, done, total: None)
            majority = _measure_each(session, here, n_test, runs, splits, report, needs_order=needs_order)
            # Last, so that no frame of a failure holds values of rows.
            with session.owners_path():
                left_out = count_left_out(session, here)
            if here is not source:
                session.execute(sql.SQL("DROP TABLE {}").format(here.table.identifier))
            return left_out, majority
    except DpmlError:
        raise
    except Exception as error:
        if public:
            raise
        failure = RunFailedError(failure_text(error, "the comparison", "nothing was charged or stored"))
    raise failure  # outside the except block: the error is no part of this one


def _measure_each(
    session: Session,
    source: Source,
    n_test: int,
    runs: Sequence[_Run],
    splits: int,
    report: Progress,
    *,
    needs_order: bool,
) -> tuple[ComparisonEntry, ...]:
    planned = [(run, run.decided.plan) for run in runs if run.decided.plan is not None]
    changes = {plan.encoder_change: plan.problem for _, plan in planned}
    majority = []
    for number in range(splits):
        with session.discarded():
            # rows that are encoded in another way are dealt out once more
            split = {
                change: Split(session, source.changed(change), problem, n_test, needs_order=needs_order)
                for change, problem in changes.items()
            }
            majority += next(iter(split.values())).majority()
            for place, (run, plan) in enumerate(planned):
                report("models", number * len(planned) + place, splits * len(planned))
                value, passes, seconds = split[plan.encoder_change].measure(plan)
                run.values.append(value)
                run.passes.append(passes)
                run.seconds.append(seconds)
    report("models", splits * len(planned), splits * len(planned))
    return (ComparisonEntry(MAJORITY, None, tuple(majority)),) if majority else ()
