# SPDX-License-Identifier: PostgreSQL
"""The one loop: spec, plan, charge, passes, release, store."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import sqlalchemy as sa

from pg_dpml import registry
from pg_dpml.database import Database, Session, json_parameter, sql
from pg_dpml.errors import RunFailedError, RunInterrupted, SpecError
from pg_dpml.maintenance import versions
from pg_dpml.methods import baselines, bolt_on
from pg_dpml.methods.plan import Plan, Problem
from pg_dpml.rows import PackedRows, Source, count_units, pack, repack, resolve
from pg_dpml.spec import DataSpec, PrivacySpec, TrainSpec

__all__ = ["Progress", "TrainResult", "plan", "train"]

Progress = Callable[[str, int, int], None]
"""Called with a phase ("pack", "pass"), the units done and the units in all."""


@dataclass(frozen=True)
class TrainResult:
    """A stored model and how it came about.

    Attributes
    ----------
    model : Model
        As stored in dpml.models.
    plan : Plan
    passes : int
        Passes taken.
    seconds : float
        Wall-clock time of the whole run.
    """

    model: registry.Model
    plan: Plan
    passes: int
    seconds: float


def plan(
    source: str | sa.Engine,
    data: DataSpec,
    privacy: PrivacySpec | None,
    training: TrainSpec | None = None,
    *,
    insecure: bool = False,
) -> Plan:
    """Decide a run and its noise; reads nothing of the table but the public number of rows.

    Parameters
    ----------
    source : str or sqlalchemy.Engine
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
    with Database(source, insecure=insecure).session() as session:
        resolved = resolve(session, data)
        return _plan(resolved, count_units(session, resolved), data, privacy, training or TrainSpec())


def train(
    source: str | sa.Engine,
    data: DataSpec,
    privacy: PrivacySpec | None,
    training: TrainSpec | None = None,
    *,
    name: str,
    progress: Progress | None = None,
    insecure: bool = False,
) -> TrainResult:
    """Train a model inside the database and store what may be published.

    Parameters
    ----------
    source : str or sqlalchemy.Engine
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
    RunFailedError
        If the run fails after its charge; the charge stays.
    RunInterrupted
        On Ctrl-C after the charge; the charge stays.

    Notes
    -----
    n is counted and the charge committed before any row is read; the rows are
    then packed in one snapshot whose count must still be n. Everything
    un-noised lives in tables of that one transaction, which are gone when it
    ends, however it ends.
    Source: privacy/README.md, "Order of a run".
    """
    started = time.monotonic()
    training = training or TrainSpec()
    database = Database(source, insecure=insecure)
    with database.session() as session:
        resolved = resolve(session, data)
        n_rows = count_units(session, resolved)
        decided = _plan(resolved, n_rows, data, privacy, training)
        registry.require_new_name(session, name)
        charge = _charge(session, resolved, decided, name)
    spent = _spent(decided, charge)
    # What ends a charged run is raised anew, outside the except block: the server's text may quote a row,
    # and the frames of the first exception hold un-noised weights.
    failure: BaseException
    try:
        with database.session("REPEATABLE READ") as session:
            model, passes = _run(session, resolved, decided, data, name, charge, progress)
        return TrainResult(model, decided, passes, time.monotonic() - started)
    except KeyboardInterrupt as interrupt:
        text = f"interrupted: the work tables are dropped, no model was stored; {spent}"
        failure = RunInterrupted(text, type(interrupt))
    except RunFailedError as error:
        failure = RunFailedError(f"{error}; {spent}")
    except Exception:
        if charge is None:
            raise
        failure = RunFailedError(
            f"the run failed on the server and no model was stored; {spent}. "
            "The server's log has the reason; it is not shown because it may quote a row"
        )
    raise failure


def _plan(
    source: Source, n_rows: int, data: DataSpec, privacy: PrivacySpec | None, training: TrainSpec
) -> Plan:
    outputs = len(data.label.classes) if data.label.classes is not None else 1
    problem = Problem(n_rows, source.n_features, outputs, data.label.task, data.unit, data.max_rows_per_unit)
    if training.method == "noiseless":
        if privacy is not None:
            raise SpecError("method noiseless is not private: leave epsilon and delta out")
        return baselines.plan_noiseless(problem, training)
    if privacy is None:
        raise SpecError(f"method {training.method} needs epsilon")
    return bolt_on.plan(problem, privacy, training)


def _charge(session: Session, source: Source, decided: Plan, name: str) -> int | None:
    if decided.guarantee is None or decided.noise is None:
        return None
    return registry.charge(
        session,
        dataset=f"{source.table.schema}.{source.table.name}",
        model=name,
        method=decided.method,
        epsilon=Decimal(repr(decided.guarantee.epsilon)),
        delta=Decimal(repr(decided.guarantee.delta)),
        relation=decided.guarantee.relation.value,
        n_rows=decided.problem.n_rows,
        mechanism=asdict(decided.noise)
        | {"unit": decided.guarantee.unit, "max_rows_per_unit": decided.guarantee.max_rows_per_unit},
    )


def _spent(decided: Plan, charge: int | None) -> str:
    if decided.guarantee is None:
        return "nothing was charged"
    return (
        f"epsilon = {decided.guarantee.epsilon:g}, delta = {decided.guarantee.delta:.3g} "
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
) -> tuple[registry.Model, int]:
    """Pack, pass, release and store, in one transaction."""
    report = progress or (lambda phase, done, total: None)
    for setting in (
        "synchronize_seqscans",
        "jit",
    ):  # blocks must arrive in order; passes are too short for jit
        session.execute(sql.SQL("SET LOCAL {} = off").format(sql.Identifier(setting)))
    report("pack", 0, 1)
    if count_units(session, source) != decided.problem.n_rows:
        raise RunFailedError("the number of rows changed between the charge and the run, and no row was read")
    packed = pack(session, source)
    report("pack", 1, 1)
    weights, passes = _passes(session, source, decided, packed, report)
    if decided.noise is not None:
        weights = bolt_on.release(decided, weights)
    model = registry.Model(
        name=name,
        method=decided.method,
        private=decided.private,
        task=decided.problem.task,
        loss=decided.sgd.loss.kind,
        classes=data.label.class_names,
        weights=weights,
        n_features=source.n_features,
        encoder=source.encoder,
        privacy=_privacy_record(decided),
        training={
            "dataset": f"{source.table.schema}.{source.table.name}",
            "where": source.where,
            "n_rows": decided.problem.n_rows,
            "passes": passes,
            "options": decided.sgd.options(decided.problem.n_rows),
            "fresh_order": decided.sgd.fresh_order,
            "features": list(source.feature_names),
            "versions": versions(session),
        },
        charge=charge,
    )
    registry.store_model(session, model)
    return model, passes


def _privacy_record(decided: Plan) -> dict[str, Any]:
    unit = {"unit": decided.problem.unit, "max_rows_per_unit": decided.problem.max_rows_per_unit}
    if decided.guarantee is None or decided.noise is None:
        return {"private": False} | unit
    return unit | {
        "private": True,
        "epsilon": decided.guarantee.epsilon,
        "delta": decided.guarantee.delta,
        "relation": decided.guarantee.relation.value,
        "noise": asdict(decided.noise),
    }


def _passes(
    session: Session, source: Source, decided: Plan, packed: PackedRows, report: Progress
) -> tuple[npt.NDArray[np.float64], int]:
    """Run the passes; un-noised weights stay on the server but for the final model."""
    sgd = decided.sgd
    state = sql.Identifier("dpml_work", f"state_{secrets.token_hex(8)}")
    session.execute(
        sql.SQL("CREATE UNLOGGED TABLE {} (pass integer NOT NULL, state dpml.epoch NOT NULL)").format(state)
    )
    options = json_parameter(sgd.options(decided.problem.n_rows))
    previous_loss = np.inf
    done = 0
    for done in range(1, sgd.passes + 1):
        if sgd.fresh_order and done > 1:
            packed = repack(session, source, packed)
        session.execute(
            sql.SQL(
                "INSERT INTO {state} SELECT %(pass)s, dpml.sgd_epoch(b.block_no, b.block, "
                "(SELECT s.state FROM {state} AS s WHERE s.pass = %(pass)s - 1), %(options)s) "
                "FROM {blocks} AS b"
            ).format(state=state, blocks=packed.blocks),
            {"pass": done, "options": options},
        )
        report("pass", done, sgd.passes)
        if decided.tolerance is not None:
            loss = _loss(session, state, packed, options, done)
            if previous_loss - loss < decided.tolerance * abs(previous_loss):
                break
            previous_loss = loss
    row = session.fetch_one(
        sql.SQL(
            "SELECT (state).weights, (state).average, (state).steps FROM {} WHERE pass = %(pass)s"
        ).format(state),
        {"pass": done},
    )
    # Dropped here and not left to a rollback: this transaction will commit.
    for table in (state, packed.blocks):
        session.execute(sql.SQL("DROP TABLE {}").format(table))
    if row[2] not in (None, sgd.steps(decided.problem.n_rows, done)):
        raise RunFailedError("a pass did not see every packed row, and no model was stored")
    final = row[1] if row[1] is not None else row[0]
    if final is None:  # an empty table: no row, no step
        return np.zeros(decided.problem.n_weights), done
    return np.asarray(final, dtype=np.float64), done


def _loss(session: Session, state: sql.Identifier, packed: PackedRows, options: Any, done: int) -> float:
    """Objective after a pass; for runs that are not private only."""
    (loss,) = session.fetch_one(
        sql.SQL(
            "SELECT dpml.loss(b.block, (SELECT (s.state).weights FROM {state} AS s WHERE s.pass = %(pass)s), "
            "%(options)s) FROM {blocks} AS b"
        ).format(state=state, blocks=packed.blocks),
        {"pass": done, "options": options},
    )
    return float(loss) if loss is not None else 0.0
