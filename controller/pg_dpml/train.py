# SPDX-License-Identifier: PostgreSQL
"""The one loop: spec, plan, charge, passes, release, store."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pg_dpml import budgets, registry
from pg_dpml.charged import run_charged
from pg_dpml.database import Database, Session, sql
from pg_dpml.errors import GuaranteeError, ResolutionError, SpecError
from pg_dpml.maintenance import versions
from pg_dpml.methods import auto, baselines, bolt_on, full_batch, noisy_sgd, sufficient_statistics
from pg_dpml.methods.job import Job, Method, Progress, Result
from pg_dpml.methods.plan import Guarantee, Plan, Problem, noise_record
from pg_dpml.privacy.budget import gaussian_part
from pg_dpml.privacy.resolution import with_least_epsilon
from pg_dpml.rows import Source, count_units, pack, require_plannable, require_runnable, resolve
from pg_dpml.spec import METHODS, NOT_PRIVATE_METHODS, DataSpec, PrivacySpec, TrainSpec

if TYPE_CHECKING:
    import sqlalchemy as sa

__all__ = [
    "Alternative",
    "Progress",
    "TrainResult",
    "alternative",
    "alternatives",
    "charged_problem",
    "plan",
    "plan_problem",
    "priced_at",
    "problem_of",
    "released_model",
    "run_method",
    "spent_text",
    "start_run",
    "train",
    "train_model",
]

_METHODS: Mapping[str, Method] = {
    "whitened-dp-gd": full_batch,
    "dp-gd": full_batch,
    "sufficient-statistics": sufficient_statistics,
    "bolt-on": bolt_on,
    "dp-sgd": noisy_sgd,
    "bst14": noisy_sgd,
    "scs13": noisy_sgd,
    "noiseless": baselines,
    "lbfgs": baselines,
}


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
        require_plannable(session, resolved)
        n_rows = count_units(session, resolved)
        return _decide(session, resolved, n_rows, data, privacy, training or TrainSpec())


def train(
    source: str | sa.Engine,
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
    database = Database(source, insecure=insecure)
    return train_model(
        database,
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
    terms: budgets.Terms | None = None,
) -> TrainResult:
    """As `train`.

    `tuning` is stored, and says how the settings were chosen; `terms`: see `budgets.charge`.
    """
    started = time.monotonic()

    def begin(session: Session) -> tuple[Source, Plan]:
        resolved = resolve(session, data)
        require_runnable(session, resolved)
        n_rows = count_units(session, resolved)
        decided = _decide(session, resolved, n_rows, data, privacy, training, terms)
        if terms is not None and not terms.any_passes and decided.work.passes is None:
            raise SpecError(
                "a run whose number of passes depends on the rows (solver = certified) is not allowed by "
                f"{terms.source}, as that number can be counted on the server: take solver = sgd, or ask for "
                "dpml dataset register --allow-certified"
            )
        if owner is not None:
            registry.require_role(session, owner, "owner")
        if decided.guarantee is None:
            registry.require_new_name(session, name)
        return resolved, decided

    def charge(session: Session, begun: tuple[Source, Plan]) -> budgets.Charged:
        assert privacy is not None
        charged = _charge(session, *begun, data, privacy, training, name, charge_key, terms)
        if not charged.repeated:
            registry.require_new_name(session, name)
        return charged

    def work(
        session: Session, begun: tuple[Source, Plan], charged: budgets.Charged | None
    ) -> tuple[registry.Model, int | None]:
        entry = None if charged is None else charged.entry
        return _run(session, *begun, data, name, entry, progress, tuning, owner)

    run = run_charged(
        database,
        decide=begin,
        charge=None if privacy is None else charge,
        work=work,
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


def _decide(
    session: Session,
    source: Source,
    n_rows: int,
    data: DataSpec,
    privacy: PrivacySpec | None,
    training: TrainSpec,
    terms: budgets.Terms | None = None,
) -> Plan:
    """The plan of a run that is charged; of two refusals of a small epsilon, that which names the larger."""
    problem = charged_problem(session, source, n_rows, data, privacy)
    try:
        return plan_problem(problem, privacy, training)
    except ResolutionError as error:
        assert privacy is not None
        at_epsilon = partial(priced_at, problem, privacy, training)
        refusal = budgets.refusal_of(session, source.table, data.dataset, error, at_epsilon, terms)
    raise refusal


def charged_problem(
    session: Session, source: Source, n_rows: int, data: DataSpec, privacy: PrivacySpec | None
) -> Problem:
    """As `problem_of`, of a run that is charged: with how its budget adds up, if there is one."""
    problem = problem_of(source, n_rows, data)
    if privacy is None:
        return problem
    return replace(problem, budget=budgets.accounting_of(session, source.table, data.dataset))


def problem_of(source: Source, n_rows: int, data: DataSpec) -> Problem:
    """The public numbers of a resolved table of n_rows units."""
    outputs = len(data.label.classes) if data.label.classes is not None else 1
    return Problem(n_rows, source.n_features, outputs, data.label.task, source.unit, data.max_rows_per_unit)


def plan_problem(problem: Problem, privacy: PrivacySpec | None, training: TrainSpec) -> Plan:
    """Decide a run from public numbers alone; see `plan`."""
    if training.method in NOT_PRIVATE_METHODS and privacy is not None:
        raise SpecError(f"method {training.method} is not private: leave epsilon and delta out")
    if training.method not in NOT_PRIVATE_METHODS and privacy is None:
        raise SpecError(
            f"method {training.method} needs epsilon: give one, such as --epsilon 1 (in Python "
            "PrivacySpec(1)); a smaller one is a stronger guarantee, and more noise"
        )
    if privacy is None:
        return _plan(problem, None, training)
    asked = privacy
    return with_least_epsilon(
        lambda epsilon: _plan(problem, replace(asked, epsilon=epsilon), training), asked.epsilon
    )


def _plan(problem: Problem, privacy: PrivacySpec | None, training: TrainSpec) -> Plan:
    if training.method == "auto":
        assert privacy is not None
        return auto.plan(problem, privacy, training)
    return _METHODS[training.method].plan(problem, privacy, training)


@dataclass(frozen=True)
class Alternative:
    """What a method would do with its default options.

    Attributes
    ----------
    method : str
    plan : Plan or None
        None where the method refuses.
    refusal : str or None
        Why it does, in a few words.
    """

    method: str
    plan: Plan | None
    refusal: str | None = None


def alternative(problem: Problem, privacy: PrivacySpec | None, method: str) -> Alternative:
    """A method's plan, or its refusal, from public numbers alone."""
    try:
        return Alternative(method, _plan(problem, privacy, TrainSpec(method=method)))
    except (SpecError, GuaranteeError) as error:
        reason = re.split(r"[:;] ", str(error))[0]
        return Alternative(method, None, re.sub(rf"^method = {method} ", "it ", reason))


def alternatives(problem: Problem, privacy: PrivacySpec) -> tuple[Alternative, ...]:
    """Every private method but `auto`, which chooses one of them."""
    methods = (method for method in METHODS if method not in ("auto", *NOT_PRIVATE_METHODS))
    return tuple(alternative(problem, privacy, method) for method in methods)


def _charge(
    session: Session,
    source: Source,
    decided: Plan,
    data: DataSpec,
    privacy: PrivacySpec,
    training: TrainSpec,
    name: str,
    charge_key: str | None,
    terms: budgets.Terms | None,
) -> budgets.Charged:
    assert decided.guarantee is not None  # privacy is not None
    assert decided.noise is not None
    return budgets.charge(
        session,
        source.table,
        decided.guarantee,
        gaussian_part(decided.noise),
        at_epsilon=partial(priced_at, decided.problem, privacy, training),
        dataset=data.dataset,
        charge_key=charge_key,
        model=name,
        method=decided.method,
        n_units=decided.problem.n_rows,
        mechanism=noise_record(decided.noise),
        terms=terms,
    )


def priced_at(problem: Problem, privacy: PrivacySpec, training: TrainSpec, epsilon: float) -> budgets.Priced:
    """What a run would cost at another epsilon; see `budgets.charge`.

    Raises
    ------
    SpecError, GuaranteeError
        If there is no such run.
    """
    decided = _plan(problem, replace(privacy, epsilon=epsilon), training)
    assert decided.guarantee is not None
    return decided.guarantee, gaussian_part(decided.noise)


def _made_before(session: Session, charge: int, decided: Plan, name: str) -> TrainResult:
    """What an earlier run under the same charge key made."""
    model = registry.model_of(session, charge)
    if model is None or model.name != name:
        made = "stored no model" if model is None else f"made model {model.name}"
        raise SpecError(
            f"charge_key: this one was charged before, as entry {charge} of dpml.ledger, and {made}; a new "
            "run draws new noise and is charged again: give it a new charge key"
        )
    return TrainResult(model, decided, model.training["passes"], None)


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
    packed = pack(session, source)
    report("pack", 1, 1)
    result = run_method(Job(session, source, decided, packed, report))
    return released_model(session, source, decided, data, name, charge, result, tuning, owner), result.passes


def start_run(session: Session) -> None:
    """Settings of a run's transaction."""
    for setting in (
        "synchronize_seqscans",
        "jit",
    ):  # blocks must arrive in order; passes are too short for jit
        session.execute(sql.SQL("SET LOCAL {} = off").format(sql.Identifier(setting)))


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
        privacy=_privacy_record(decided),
        training={
            "table_name": f"{source.table.schema}.{source.table.name}",
            "where": source.where,
            "n_units": decided.problem.n_rows,
            "passes": result.passes,
            "features": list(source.feature_names),
            "versions": versions(session),
        }
        | decided.work.record(decided.problem.n_rows)
        | ({} if tuning is None else {"tuning": dict(tuning)}),
        charge=charge,
        owner=owner,
    )


def _privacy_record(decided: Plan) -> dict[str, Any]:
    unit = {"unit": decided.problem.unit, "max_rows_per_unit": decided.problem.max_rows_per_unit}
    if decided.guarantee is None or decided.noise is None:
        return {"private": False} | unit
    return unit | {
        "private": True,
        "epsilon": decided.guarantee.epsilon,
        "delta": decided.guarantee.delta,
        "relation": decided.guarantee.relation.value,
        "noise": noise_record(decided.noise),
    }


def run_method(job: Job) -> Result:
    """Run a plan's method on packed rows and drop them."""
    result = _METHODS[job.plan.method].run(job)
    job.close()
    return result
