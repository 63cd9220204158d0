# SPDX-License-Identifier: PostgreSQL
"""The one loop: spec, plan, charge, passes, release, store."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from pg_dpml.blocks.distributed import packed_blocks, require_packable, use_one_snapshot
from pg_dpml.blocks.encoder import is_sparse
from pg_dpml.blocks.preparing import require_plannable, require_runnable
from pg_dpml.blocks.query import count_units
from pg_dpml.blocks.source import Source, resolve
from pg_dpml.database.database import Database
from pg_dpml.database.session import Session, sql
from pg_dpml.database.versions import versions
from pg_dpml.errors import SpecError
from pg_dpml.ledger import charging, terms
from pg_dpml.ledger import models as registry
from pg_dpml.ledger.records import PrivacyRecord, TrainingRecord
from pg_dpml.ledger.transaction import run_charged
from pg_dpml.privacy.guarantee import Guarantee
from pg_dpml.runs.planning import plan_of_run, priced_at
from pg_dpml.spec.data import DataSpec
from pg_dpml.spec.privacy import PrivacySpec
from pg_dpml.training.job import Job, Progress, Result
from pg_dpml.training.plan import Plan
from pg_dpml.training.spec import TrainSpec

__all__ = [
    "TrainResult",
    "plan",
    "released_model",
    "run_method",
    "spent_text",
    "start_run",
    "train",
    "train_model",
]


if TYPE_CHECKING:
    import sqlalchemy as sa


@dataclass(frozen=True)
class TrainResult:
    """A stored model and how it came about.

    Attributes
    ----------
    model : Model
        As stored in dpml.models.
    plan : Plan
    passes : int or None
        Passes taken; None where nobody is told.
    seconds : float or None
        Wall-clock time of the whole run; None where passes is, as it would tell their number.
    """

    model: registry.Model
    plan: Plan
    passes: int | None
    seconds: float | None

    def __post_init__(self) -> None:
        if self.passes is None:  # the time would tell their number
            object.__setattr__(self, "seconds", None)


def plan(
    database: str | sa.Engine,
    data: DataSpec,
    privacy: PrivacySpec | None,
    training: TrainSpec | None = None,
    *,
    insecure: bool = False,
) -> Plan:
    """Decide a run and its noise; reads nothing of the table but the public number of rows.

    Parameters
    ----------
    database : str or sqlalchemy.Engine
        libpq connection string, or an engine over psycopg 3.
    data : DataSpec
    privacy : PrivacySpec or None
        None only for a method that is not private.
    training : TrainSpec or None
        None for the defaults.
    insecure : bool
        Allow TCP without TLS to another machine.

    Returns
    -------
    Plan

    Raises
    ------
    SpecError
        For a bad argument.
    GuaranteeError
        If a condition of the guarantee does not hold.
    UnavailableError
        If the server cannot be reached.
    """
    with Database(database, insecure=insecure).session() as session:
        resolved = resolve(session, data)
        require_plannable(session, resolved)
        n_units = count_units(session, resolved)
        return plan_of_run(session, resolved, n_units, data, privacy, training or TrainSpec())


def train(
    database: str | sa.Engine,
    data: DataSpec,
    privacy: PrivacySpec | None,
    training: TrainSpec | None = None,
    *,
    name: str,
    progress: Progress | None = None,
    insecure: bool = False,
    charge_key: str | None = None,
    owner: str | None = None,
) -> TrainResult:
    """Train a model inside the database and store it; without noise only if the method says so.

    Parameters
    ----------
    database : str or sqlalchemy.Engine
        libpq connection string, or an engine over psycopg 3.
    data : DataSpec
    privacy : PrivacySpec or None
        None only for a method that is not private.
    training : TrainSpec or None
        None for the defaults.
    name : str
        Of the new model.
    progress : callable or None
        See `Progress`.
    insecure : bool
        Allow TCP without TLS to another machine.
    charge_key : str or None
        Where the data set has a budget: your name of this charge. A run that is repeated under it, as after a
        lost connection, gives the model it made and charges nothing. None: a new one.
    owner : str or None
        Role that the model is to belong to. None: the one that trains it.

    Returns
    -------
    TrainResult

    Raises
    ------
    SpecError
        For a bad argument; nothing is charged.
    GuaranteeError
        If a condition of the guarantee does not hold; nothing is charged.
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
    n is counted in a snapshot of the table, the charge is committed by another
    connection, and only then are the rows of that snapshot packed. Everything
    un-noised lives in tables of the snapshot's transaction, which is rolled back
    before the model is stored.
    Source: privacy/README.md, "Order of a run".
    """
    opened = Database(database, insecure=insecure)
    return train_model(
        opened,
        data,
        privacy,
        training or TrainSpec(),
        name=name,
        progress=progress,
        charge_key=charge_key,
        owner=owner,
    )


def train_model(
    database: Database,
    data: DataSpec,
    privacy: PrivacySpec | None,
    training: TrainSpec,
    *,
    name: str,
    progress: Progress | None,
    tuning: Mapping[str, Any] | None = None,
    charge_key: str | None = None,
    owner: str | None = None,
    terms: terms.Terms | None = None,
) -> TrainResult:
    """As `train`.

    `tuning` is stored, and says how the settings were chosen; `terms`: see `charging.charge`.
    """
    started = time.monotonic()

    def begin(session: Session) -> tuple[Source, Plan]:
        use_one_snapshot(session)
        resolved = resolve(session, data)
        require_runnable(session, resolved)
        n_units = count_units(session, resolved)
        decided = plan_of_run(session, resolved, n_units, data, privacy, training, terms)
        source = resolved.changed(decided.encoder_change)
        require_packable(session, source, needs_order=decided.needs_order, by_shards=decided.by_shards)
        if terms is not None:
            terms.require_passes(decided.work.passes)
        if owner is not None:
            registry.require_role(session, owner, "owner")
        if decided.guarantee is None:
            registry.require_new_name(session, name)
        return source, decided

    def charge(session: Session, begun: tuple[Source, Plan]) -> charging.Charged:
        assert privacy is not None
        charged = _charge(session, *begun, data, privacy, training, name, charge_key, terms)
        if not charged.repeated:
            registry.require_new_name(session, name)
        return charged

    def body(
        session: Session, begun: tuple[Source, Plan], charged: charging.Charged | None
    ) -> tuple[registry.Model, int | None]:
        entry = None if charged is None else charged.entry
        return _run(session, *begun, data, name, entry, progress, tuning, owner)

    run = run_charged(
        database,
        decide=begin,
        charge=None if privacy is None else charge,
        body=body,
        store=lambda session, released: registry.store_model(session, released[0]),
        what="the run",
        undone="no model was stored",
        interrupted="interrupted: the work tables are dropped, no model was stored",
        spent=lambda begun, entry: spent_text(begun[1].guarantee, entry),
    )
    decided = run.decided[1]
    if run.outcome is None:
        assert run.charged is not None
        with database.session() as session:
            return _made_before(session, run.charged.entry, decided, name)
    model, passes = run.outcome
    return TrainResult(model, decided, passes, time.monotonic() - started)


def _charge(
    session: Session,
    source: Source,
    decided: Plan,
    data: DataSpec,
    privacy: PrivacySpec,
    training: TrainSpec,
    name: str,
    charge_key: str | None,
    terms: terms.Terms | None,
) -> charging.Charged:
    assert decided.guarantee is not None  # privacy is not None
    assert decided.noise is not None
    return charging.charge(
        session,
        source.table,
        decided.guarantee,
        decided.noise.releases(),
        at_epsilon=partial(priced_at, decided.problem, privacy, training),
        dataset=data.dataset,
        charge_key=charge_key,
        model=name,
        method=decided.method,
        n_units=decided.problem.n_units,
        mechanism=decided.noise.record(),
        terms=terms,
    )


def _made_before(session: Session, charge: int, decided: Plan, name: str) -> TrainResult:
    """What an earlier run under the same charge key made."""
    model = registry.model_of(session, charge)
    if model is None or model.name != name:
        made = "stored no model" if model is None else f"made model {model.name}"
        raise SpecError(
            f"charge_key: this one was charged before, as entry {charge} of dpml.ledger, and {made}; a new "
            "run draws new noise and is charged again: give it a new charge key"
        )
    return TrainResult(model, decided, TrainingRecord.from_json(model.training).passes, None)


def spent_text(guarantee: Guarantee | None, charge: int | None) -> str:
    """What a run that failed leaves in the ledger."""
    if guarantee is None:
        return "nothing was charged"
    return (
        f"epsilon = {guarantee.epsilon:g}, delta = {guarantee.delta:.3g} "
        f"stay charged (entry {charge} of dpml.ledger)"
    )


def _run(
    session: Session,
    source: Source,
    decided: Plan,
    data: DataSpec,
    name: str,
    charge: int | None,
    progress: Progress | None,
    tuning: Mapping[str, Any] | None,
    owner: str | None,
) -> tuple[registry.Model, int | None]:
    """Pack, pass and release, in one transaction."""
    report = progress or (lambda phase, done, total: None)
    report("pack", 0, 1)
    start_run(session)
    blocks = packed_blocks(session, source, needs_order=decided.needs_order, by_shards=decided.by_shards)
    report("pack", 1, 1)
    result = run_method(Job(blocks, decided, report))
    return released_model(session, source, decided, data, name, charge, result, tuning, owner), result.passes


def start_run(session: Session) -> None:
    """Settings of a run's transaction."""
    for setting, value in (
        ("synchronize_seqscans", "off"),  # blocks must arrive in order
        ("jit", "off"),  # passes are too short for it
        ("parallel_setup_cost", "0"),  # a block is much more work than the planner takes a row for
    ):
        session.execute(sql.SQL("SET LOCAL {} = {}").format(sql.Identifier(setting), sql.SQL(value)))


def released_model(
    session: Session,
    source: Source,
    decided: Plan,
    data: DataSpec,
    name: str,
    charge: int | None,
    result: Result,
    tuning: Mapping[str, Any] | None = None,
    owner: str | None = None,
) -> registry.Model:
    """What is stored of a run."""
    return registry.Model(
        name=name,
        method=decided.method,
        private=decided.private,
        task=decided.problem.task,
        loss=decided.work.loss.kind,
        classes=source.class_names,
        weights=result.weights,
        whitening=result.whitening,
        n_features=source.n_features,
        encoder=source.encoder,
        privacy=_privacy_record(decided).to_json(),
        training=TrainingRecord(
            table_name=f"{source.table.schema}.{source.table.name}",
            where=source.where,
            n_units=decided.problem.n_units,
            passes=result.passes,
            features=None if is_sparse(source.encoder) else tuple(source.feature_names),
            versions=versions(session),
            method=decided.work.record(decided.problem.n_units),
            tuning=tuning,
            spending=result.spending,
            dates=source.date_columns,
        ).to_json(),
        charge=charge,
        owner=owner,
    )


def _privacy_record(decided: Plan) -> PrivacyRecord:
    protects = decided.problem.unit, decided.problem.max_rows_per_unit
    if decided.guarantee is None or decided.noise is None:
        return PrivacyRecord(*protects)
    return PrivacyRecord(*protects, decided.guarantee, decided.noise.record())


def run_method(job: Job) -> Result:
    """Run a plan's method on packed rows and drop them."""
    result = job.plan.run(job)
    job.blocks.drop()
    return result
