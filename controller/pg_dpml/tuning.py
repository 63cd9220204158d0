# SPDX-License-Identifier: PostgreSQL
"""Tuning: train every candidate of a grid on rows of its own, choose one privately, store its model.

Wu, Li, Kumar, Chaudhuri, Jha & Naughton 2017, Algorithm 3; why the whole run costs
no more than one candidate: privacy/README.md, "Private tuning".
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from pg_dpml import budgets, registry, scoring
from pg_dpml.charged import run_charged
from pg_dpml.database import Database, Session, sql
from pg_dpml.errors import GuaranteeError, SpecError
from pg_dpml.figures import left_out_words
from pg_dpml.methods.job import Job, Progress, Result
from pg_dpml.methods.plan import Guarantee, Plan, noise_record
from pg_dpml.names import shown, visible
from pg_dpml.portions import equal_sizes, pack_portions
from pg_dpml.privacy import selection
from pg_dpml.privacy.budget import Accounting
from pg_dpml.rows import Source, count_units, from_clause, require_runnable, resolve
from pg_dpml.spec import NOT_PRIVATE_METHODS, DataSpec, Grid, PrivacySpec
from pg_dpml.tables.measuring import LeftOut, count_left_out
from pg_dpml.train import (
    TrainResult,
    charged_problem,
    plan_problem,
    problem_of,
    released_model,
    run_method,
    spent_text,
    start_run,
    train_model,
)

if TYPE_CHECKING:
    import sqlalchemy as sa

__all__ = ["PublicScores", "TuneResult", "setting_text", "tune"]

SCORED_SHARE = 3
"""One unit in so many of a public table is kept for scoring."""


@dataclass(frozen=True)
class PublicScores:
    """How the candidates did on a public table.

    Attributes
    ----------
    table : str
    n_trained, n_scored : int
        Units they were trained and scored on.
    errors : tuple of float
        Of each candidate: rows predicted wrongly; for a number to predict, the squared errors
        in units of half the label's range, each divided by 4.
    left_out : LeftOut
        Rows of the table without a declared label, which teach nothing and count as no error.
    """

    table: str
    n_trained: int
    n_scored: int
    errors: tuple[float, ...]
    left_out: LeftOut


@dataclass(frozen=True)
class TuneResult:
    """The chosen candidate's stored model, and what it was chosen from.

    Attributes
    ----------
    trained : TrainResult
        The model and its plan. Privately tuned, the plan's n_rows is the size of the candidate's
        portion, its guarantee that of the whole tuning, and `seconds` covers all candidates: None if
        the passes of any of them depend on the rows.
    grid : Grid
    chosen : int
        Place of the candidate in the grid.
    n_rows : int
        Size of the private table (units, where a unit of privacy is declared).
    sizes : tuple of int
        Units of each candidate's portion and, last, of the portion scored; empty after
        tuning on a public table.
    public : PublicScores or None
        None after private tuning, of which no score is kept.
    """

    trained: TrainResult
    grid: Grid
    chosen: int
    n_rows: int
    sizes: tuple[int, ...]
    public: PublicScores | None


@dataclass(frozen=True)
class _Tuning:
    """A private tuning run, decided before a row is read."""

    source: Source
    data: DataSpec
    grid: Grid
    name: str
    n_rows: int
    sizes: tuple[int, ...]
    plans: tuple[Plan, ...]
    guarantee: Guarantee
    epsilon: float
    spread: Fraction


def tune(
    source: str | sa.Engine,
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
    source : str or sqlalchemy.Engine
        libpq connection string, or an engine over psycopg 3.
    data : DataSpec
    privacy : PrivacySpec or None
        Of the whole tuning run. None only with `public_table`, for methods that are not private.
    grid : Grid
        l candidates. Each trains on one of l + 1 portions of the units and all are scored on the
        last, so the table needs 2 (l + 1) units.
    name : str
        Of the new model.
    public_table : str or None
        Tune on this table instead, which costs nothing, and train the winner on all private
        rows. That its rows are public is the caller's word. It has the columns of the
        training table; a filter of `data` does not apply to it. With `privacy` it must not be the
        training table; a view, partition or copy of that one is not recognised.
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
    database = Database(source, insecure=insecure)
    report = progress or (lambda phase, done, total: None)
    if public_table is not None:
        return _tune_on_public_rows(database, data, privacy, grid, name, public_table, report)
    if privacy is None:
        raise SpecError(
            "private tuning needs epsilon: give one, such as --epsilon 1 (in Python PrivacySpec(1)); on a "
            "public table methods that are not private do not"
        )
    return _tune_privately(database, data, privacy, grid, name, report)


def _tune_privately(
    database: Database, data: DataSpec, privacy: PrivacySpec, grid: Grid, name: str, report: Progress
) -> TuneResult:
    started = time.monotonic()

    def work(
        session: Session, tuning: _Tuning, charged: budgets.Charged | None
    ) -> tuple[registry.Model, Plan, Result, int]:
        assert charged is not None
        return _run(session, tuning, charged.entry, report)

    run = run_charged(
        database,
        decide=lambda session: _decide_tuning(session, data, privacy, grid, name),
        charge=_charge,
        work=work,
        store=lambda session, released: registry.store_model(session, released[0]),
        what="the run",
        undone="no model was stored",
        interrupted="interrupted: the work tables are dropped, no model was stored",
        spent=lambda tuning, entry: spent_text(tuning.guarantee, entry),
    )
    tuning = run.decided
    assert run.outcome is not None  # each charge is a new one
    model, plan, result, chosen = run.outcome
    told = all(planned.work.passes is not None for planned in tuning.plans)
    seconds = time.monotonic() - started if told else None
    trained = TrainResult(model, plan, result.passes, seconds)
    return TuneResult(trained, grid, chosen, tuning.n_rows, tuning.sizes, None)


def _decide_tuning(session: Session, data: DataSpec, privacy: PrivacySpec, grid: Grid, name: str) -> _Tuning:
    source = resolve(session, data)
    require_runnable(session, source)
    n_rows = count_units(session, source)
    n_portions = len(grid.candidates) + 1
    if n_rows < 2 * n_portions:
        raise SpecError(
            f"{len(grid.candidates)} candidates need at least {2 * n_portions} rows (or units of privacy), "
            f"not {n_rows}: take a smaller grid"
        )
    sizes = equal_sizes(n_rows, n_portions)
    plans = _plans(source, sizes[:-1], data, replace(privacy, delta=privacy.delta_for(n_rows)), grid)
    guarantees = [plan.guarantee for plan in plans if plan.guarantee is not None]
    assert len(guarantees) == len(plans)  # privacy is not None
    used = sizes[-1] * data.max_rows_per_unit
    return _Tuning(
        source=source,
        data=data,
        grid=grid,
        name=name,
        n_rows=n_rows,
        sizes=sizes,
        plans=plans,
        guarantee=max(guarantees, key=lambda guarantee: guarantee.delta),
        epsilon=privacy.epsilon,
        spread=selection.score_spread(
            data.max_rows_per_unit, privacy.relation, scoring.rounding(data.label.task, used)
        ),
    )


def _plans(
    source: Source,
    sizes: tuple[int, ...],
    data: DataSpec,
    privacy: PrivacySpec | None,
    grid: Grid,
    budget: Accounting | None = None,
) -> tuple[Plan, ...]:
    """Each candidate's plan for its number of units; an error names the candidate.

    `budget`: of the run that trains the winner on all rows. Private tuning is charged by its epsilon and
    delta alone, whatever the noise.
    """
    plans = []
    for setting, candidate, size in zip(grid.settings, grid.candidates, sizes, strict=True):
        try:
            if candidate.method in NOT_PRIVATE_METHODS and privacy is not None:
                raise SpecError(f"method {candidate.method} is not private and cannot be tuned under epsilon")
            if candidate.fresh_order and data.unit is not None:
                raise SpecError("fresh_order does not go with a unit of privacy here: leave it out")
            problem = replace(problem_of(source, size, data), budget=budget)
            plans.append(plan_problem(problem, privacy, candidate))
        except (SpecError, GuaranteeError) as error:
            raise type(error)(f"candidate {setting_text(setting)}: {error}") from None
    return tuple(plans)


def setting_text(setting: Mapping[str, Any]) -> str:
    """What tells a candidate from the others, in words."""
    return ", ".join(f"{key} = {value}" for key, value in setting.items())


def _charge(session: Session, tuning: _Tuning) -> budgets.Charged:
    registry.require_new_name(session, tuning.name)
    candidates = [
        {"method": plan.method, "setting": dict(setting)}
        | ({} if plan.noise is None else noise_record(plan.noise))
        for plan, setting in zip(tuning.plans, tuning.grid.settings, strict=True)
    ]
    return budgets.charge(
        session,
        tuning.source.table,
        tuning.guarantee,
        None,
        at_epsilon=lambda epsilon: (replace(tuning.guarantee, epsilon=epsilon), None),
        dataset=tuning.data.dataset,
        model=tuning.name,
        method="tune",
        n_units=tuning.n_rows,
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
) -> tuple[registry.Model, Plan, Result, int]:
    """Deal out, train, score and choose, in one transaction; the other models end with it."""
    report("pack", 0, 1)
    start_run(session)
    *portions, scored = pack_portions(session, tuning.source, tuning.sizes)
    report("pack", 1, 1)
    results: list[Result] = []
    for plan, portion in zip(tuning.plans, portions, strict=True):
        results.append(run_method(Job(session, tuning.source, plan, portion, report)))
        report("candidate", len(results), len(tuning.plans))
    job = Job(session, tuning.source, tuning.plans[0], scored, report)
    chosen = selection.choose(scoring.errors(job, results), tuning.spread, tuning.epsilon)
    job.close()
    plan = replace(tuning.plans[chosen], guarantee=tuning.guarantee)
    record = _record(tuning.grid, chosen) | {"n_rows": tuning.n_rows, "portions": list(tuning.sizes)}
    model = released_model(
        session, tuning.source, plan, tuning.data, tuning.name, charge, results[chosen], record
    )
    return model, plan, results[chosen], chosen


def _record(grid: Grid, chosen: int) -> dict[str, Any]:
    """How a model's settings were chosen, as it is stored with the model."""
    return {"candidates": [dict(setting) for setting in grid.settings], "chosen": dict(grid.settings[chosen])}


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
        source = resolve(session, data)
        n_rows = count_units(session, source)
        if privacy is not None:
            privacy = replace(privacy, delta=privacy.delta_for(n_rows))
        budget = charged_problem(session, source, n_rows, data, privacy).budget
        # What would be refused on the private rows is refused before any work.
        _plans(source, (n_rows,) * len(grid.candidates), data, privacy, grid, budget)
        registry.require_new_name(session, name)
        public = replace(data, table=table, where=None, definition_is_public=True)
        scores = _score_on_public_rows(session, source, public, privacy, grid, budget, report)
    chosen = min(range(len(scores.errors)), key=lambda i: scores.errors[i])
    record = _record(grid, chosen) | {"public_table": scores.table, "errors": list(scores.errors)}
    trained = train_model(
        database, data, privacy, grid.candidates[chosen], name=name, progress=report, tuning=record
    )
    return TuneResult(trained, grid, chosen, n_rows, (), scores)


def _score_on_public_rows(
    session: Session,
    private: Source,
    data: DataSpec,
    privacy: PrivacySpec | None,
    grid: Grid,
    budget: Accounting | None,
    report: Progress,
) -> PublicScores:
    """Train all candidates on one part of a public table, with their noise, and score them on the other."""
    source = resolve(session, data)
    if privacy is not None and source.table.oid == private.table.oid:
        raise SpecError(
            f"public table {visible(data.table)} is the private training table itself: name a table of other "
            "rows, which are public, or leave the public table out to tune within the guarantee"
        )
    if source.feature_names != private.feature_names:
        raise SpecError(
            f"public table {visible(data.table)} gives other features than {shown(private.table.name)}"
        )
    n_rows = count_units(session, source)
    n_scored = n_rows // SCORED_SHARE
    if n_scored == 0:
        raise SpecError(
            f"public table {visible(data.table)} needs at least {SCORED_SHARE} rows, not {n_rows}"
        )
    with session.owners_path():
        left_out = count_left_out(session, source)
        rows = session.fetch_one(sql.SQL("SELECT pg_catalog.count(*) ") + from_clause(source))[0]
    if left_out.n_rows == rows:
        because = " ".join(left_out_words(replace(left_out, empty_classes=())))
        raise SpecError(f"no row of public table {visible(data.table)} has a declared label: {because}")
    n_trained = n_rows - n_scored
    plans = _plans(source, (n_trained,) * len(grid.candidates), data, privacy, grid, budget)
    report("pack", 0, 1)
    start_run(session)
    trained, scored = pack_portions(session, source, (n_trained, n_scored))
    report("pack", 1, 1)
    results: list[Result] = []
    for plan in plans:
        with session.discarded():  # the rows stay as they are for the next candidate
            results.append(run_method(Job(session, source, plan, trained, report)))
        report("candidate", len(results), len(plans))
    session.execute(sql.SQL("DROP TABLE {}").format(trained.blocks))
    job = Job(session, source, plans[0], scored, report)
    errors = scoring.errors(job, results)
    job.close()
    table = f"{source.table.schema}.{source.table.name}"
    return PublicScores(table, n_trained, n_scored, tuple(errors), left_out)
