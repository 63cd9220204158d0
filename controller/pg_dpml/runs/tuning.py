# SPDX-License-Identifier: PostgreSQL
"""Tuning: train every candidate of a grid on rows of its own, choose one privately, store its model.

Wu, Li, Kumar, Chaudhuri, Jha & Naughton 2017, Algorithm 3; why the whole run costs
no more than one candidate: privacy/README.md, "Private tuning".
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

from pg_dpml.blocks.distributed import place_of_portions, use_one_snapshot
from pg_dpml.blocks.portions import equal_sizes, pack_portions, require_portions
from pg_dpml.blocks.preparing import require_runnable
from pg_dpml.blocks.query import count_units
from pg_dpml.blocks.source import Source, resolve
from pg_dpml.database.database import Database
from pg_dpml.database.session import Session
from pg_dpml.errors import SpecError
from pg_dpml.evaluation import scoring
from pg_dpml.ledger import charging, models
from pg_dpml.ledger.transaction import run_charged
from pg_dpml.privacy import selection
from pg_dpml.privacy.guarantee import Guarantee
from pg_dpml.runs.candidates import plan_candidates, tuning_record
from pg_dpml.runs.grid import Grid
from pg_dpml.runs.planning import charged_problem
from pg_dpml.runs.public_scores import PublicScores, score_on_public_rows
from pg_dpml.runs.train import TrainResult, released_model, run_method, spent_text, start_run, train_model
from pg_dpml.spec.data import DataSpec
from pg_dpml.spec.privacy import PrivacySpec
from pg_dpml.training.job import Job, Progress, Result
from pg_dpml.training.plan import Plan

if TYPE_CHECKING:
    import sqlalchemy as sa

__all__ = ["TuneResult", "tune"]

MOST_SCORED = 2**26
"""Coefficients of all candidates, half of what one value of the server holds."""


@dataclass(frozen=True)
class TuneResult:
    """The chosen candidate's stored model, and what it was chosen from.

    Attributes
    ----------
    trained : TrainResult
        The model and its plan. After private tuning, the plan's n_units is the size of the candidate's
        portion, its guarantee is that of the whole tuning, and `seconds` covers all candidates; None if the
        number of passes of any candidate depends on the rows.
    grid : Grid
    chosen : int
        Index of the candidate in the grid.
    n_units : int
        Size of the private table (units, where a unit of privacy is declared).
    sizes : tuple of int
        Units of each candidate's portion and, last, of the portion scored; empty after
        tuning on a public table.
    public : PublicScores or None
        None after private tuning, which keeps no score.
    """

    trained: TrainResult
    grid: Grid
    chosen: int
    n_units: int
    sizes: tuple[int, ...]
    public: PublicScores | None


@dataclass(frozen=True)
class _Tuning:
    """A private tuning run, decided before a row is read."""

    source: Source
    data: DataSpec
    grid: Grid
    name: str
    n_units: int
    sizes: tuple[int, ...]
    plans: tuple[Plan, ...]
    guarantee: Guarantee
    epsilon: float
    spread: Fraction

    @property
    def needs_order(self) -> bool:
        """Whether a candidate takes its rows in a random order."""
        return any(plan.needs_order for plan in self.plans)


def tune(
    database: str | sa.Engine,
    data: DataSpec,
    privacy: PrivacySpec | None,
    grid: Grid,
    *,
    name: str,
    public_table: str | None = None,
    progress: Progress | None = None,
    insecure: bool = False,
) -> TuneResult:
    """Train several candidates and store the model of the one that predicts best.

    Parameters
    ----------
    database : str or sqlalchemy.Engine
        libpq connection string, or an engine over psycopg 3.
    data : DataSpec
    privacy : PrivacySpec or None
        Guarantee of the whole tuning run. None only with `public_table`, for methods that are not private.
    grid : Grid
        l candidates. Each trains on one of l + 1 portions of the units, and all are scored on the last
        portion, so the table needs 2 (l + 1) units.
    name : str
        Name of the new model.
    public_table : str or None
        Tune on this table instead, which costs nothing, and train the winner on all private rows. The caller
        states that its rows are public. It has the columns of the training table; the filter of `data` does
        not apply to it. With `privacy` it must not be the training table; a view, partition or copy of the
        training table is not recognised.
    progress : callable or None
        See `Progress`; tuning has a phase "candidate" too.
    insecure : bool
        Allow TCP without TLS to another machine.

    Returns
    -------
    TuneResult

    Raises
    ------
    SpecError
        For a bad argument, of any candidate; nothing is charged.
    GuaranteeError
        If a condition of the guarantee does not hold for some candidate; nothing is charged.
    UnavailableError
        If the server cannot be reached or is read-only; nothing is charged.
    BudgetError
        If the budget of the data set, or its owner's terms, do not allow the run; nothing is charged.
    RunFailedError
        If the run fails after its charge; the charge stays.
    RunInterrupted
        On Ctrl-C after the charge; the charge stays.

    Notes
    -----
    One charge for everything, committed before any row is read.
    Source: privacy/README.md, "Private tuning" and "Order of a run".
    """
    opened = Database(database, insecure=insecure)
    report = progress or (lambda phase, done, total: None)
    if public_table is not None:
        return _tune_on_public_rows(opened, data, privacy, grid, name, public_table, report)
    if privacy is None:
        raise SpecError(
            "private tuning needs epsilon: give one, such as --epsilon 1 (in Python PrivacySpec(1)); on a "
            "public table methods that are not private do not"
        )
    return _tune_privately(opened, data, privacy, grid, name, report)


def _tune_privately(
    database: Database, data: DataSpec, privacy: PrivacySpec, grid: Grid, name: str, report: Progress
) -> TuneResult:
    started = time.monotonic()

    def body(
        session: Session, tuning: _Tuning, charged: charging.Charged | None
    ) -> tuple[models.Model, Plan, Result, int]:
        assert charged is not None
        return _run(session, tuning, charged.entry, report)

    run = run_charged(
        database,
        decide=lambda session: _decide_tuning(session, data, privacy, grid, name),
        charge=_charge,
        body=body,
        store=lambda session, released: models.store_model(session, released[0]),
        what="the run",
        undone="no model was stored",
        interrupted="interrupted: the work tables are dropped, no model was stored",
        spent=lambda tuning, entry: spent_text(tuning.guarantee, entry),
    )
    tuning = run.decided
    assert run.outcome is not None  # each charge is a new one
    model, plan, result, chosen = run.outcome
    disclosed = all(planned.work.passes is not None for planned in tuning.plans)
    seconds = time.monotonic() - started if disclosed else None
    trained = TrainResult(model, plan, result.passes, seconds)
    return TuneResult(trained, grid, chosen, tuning.n_units, tuning.sizes, None)


def _decide_tuning(session: Session, data: DataSpec, privacy: PrivacySpec, grid: Grid, name: str) -> _Tuning:
    use_one_snapshot(session)
    source = resolve(session, data)
    require_runnable(session, source)
    n_units = count_units(session, source)
    n_portions = len(grid.candidates) + 1
    if n_units < 2 * n_portions:
        raise SpecError(
            f"{len(grid.candidates)} candidates need at least {2 * n_portions} rows (or units of privacy), "
            f"not {n_units}: take a smaller grid"
        )
    sizes = equal_sizes(n_units, n_portions)
    plans = plan_candidates(
        source, sizes[:-1], data, replace(privacy, delta=privacy.delta_for(n_units)), grid
    )
    for plan in plans:
        plan.require_room(session, source)
    if sum(plan.problem.n_weights for plan in plans) > MOST_SCORED:
        raise SpecError(
            f"all candidates are scored in one pass, with at most {MOST_SCORED:,} coefficients together: "
            "take a smaller grid"
        )
    guarantees = [plan.guarantee for plan in plans if plan.guarantee is not None]
    assert len(guarantees) == len(plans)  # privacy is not None
    used = sizes[-1] * data.max_rows_per_unit
    tuning = _Tuning(
        source=source.changed(plans[0].encoder_change),
        data=data,
        grid=grid,
        name=name,
        n_units=n_units,
        sizes=sizes,
        plans=plans,
        guarantee=max(guarantees, key=lambda guarantee: guarantee.delta),
        epsilon=privacy.epsilon,
        spread=selection.score_spread(
            data.max_rows_per_unit, privacy.relation, scoring.rounding(data.label.task, used)
        ),
    )
    require_portions(session, tuning.source, needs_order=tuning.needs_order)
    place = place_of_portions(session, tuning.source, needs_order=tuning.needs_order)
    return replace(tuning, plans=tuple(replace(plan, place=place) for plan in plans))


def _charge(session: Session, tuning: _Tuning) -> charging.Charged:
    models.require_new_name(session, tuning.name)
    candidates = [
        {"method": plan.method, "setting": dict(setting)}
        | ({} if plan.noise is None else plan.noise.record())
        for plan, setting in zip(tuning.plans, tuning.grid.settings, strict=True)
    ]
    return charging.charge(
        session,
        tuning.source.table,
        tuning.guarantee,
        None,
        at_epsilon=lambda epsilon: (replace(tuning.guarantee, epsilon=epsilon), None),
        dataset=tuning.data.dataset,
        model=tuning.name,
        method="tune",
        n_units=tuning.n_units,
        mechanism={
            "selection": {
                "kind": "exponential",
                "epsilon": tuning.epsilon,
                "spread": float(tuning.spread),
            },
            "portions": list(tuning.sizes),
            "candidates": candidates,
        },
    )


def _run(
    session: Session, tuning: _Tuning, charge: int, report: Progress
) -> tuple[models.Model, Plan, Result, int]:
    """Deal out, train, score and choose, in one transaction, whose end removes the other models."""
    report("pack", 0, 1)
    start_run(session)
    *portions, scored = pack_portions(session, tuning.source, tuning.sizes, needs_order=tuning.needs_order)
    report("pack", 1, 1)
    results: list[Result] = []
    for plan, portion in zip(tuning.plans, portions, strict=True):
        results.append(run_method(Job(portion, plan, report)))
        report("candidate", len(results), len(tuning.plans))
    errors = scoring.errors(scored, tuning.plans[0].problem, results)
    chosen = selection.choose(errors, tuning.spread, tuning.epsilon)
    scored.drop()
    plan = replace(tuning.plans[chosen], guarantee=tuning.guarantee)
    record = tuning_record(tuning.grid, chosen) | {"n_units": tuning.n_units, "portions": list(tuning.sizes)}
    model = released_model(
        session, tuning.source, plan, tuning.data, tuning.name, charge, results[chosen], record
    )
    return model, plan, results[chosen], chosen


def _tune_on_public_rows(
    database: Database,
    data: DataSpec,
    privacy: PrivacySpec | None,
    grid: Grid,
    name: str,
    table: str,
    report: Progress,
) -> TuneResult:
    with database.session("REPEATABLE READ") as session:
        use_one_snapshot(session)
        source = resolve(session, data)
        n_units = count_units(session, source)
        if privacy is not None:
            privacy = replace(privacy, delta=privacy.delta_for(n_units))
        budget = charged_problem(session, source, n_units, data, privacy).budget
        # A candidate that cannot run on the private rows is an error before any work.
        plan_candidates(source, (n_units,) * len(grid.candidates), data, privacy, grid, budget)
        models.require_new_name(session, name)
        public = replace(data, table=table, where=None, definition_is_public=True)
        scores = score_on_public_rows(session, source, public, privacy, grid, budget, report)
    chosen = min(range(len(scores.errors)), key=lambda i: scores.errors[i])
    record = tuning_record(grid, chosen) | {"public_table": scores.table, "errors": list(scores.errors)}
    trained = train_model(
        database, data, privacy, grid.candidates[chosen], name=name, progress=report, tuning=record
    )
    return TuneResult(trained, grid, chosen, n_units, (), scores)
