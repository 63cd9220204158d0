# SPDX-License-Identifier: PostgreSQL
"""One error of a model on private rows, released with noise and charged.

privacy/README.md, "Scores and errors", states what is released and why its noise suffices.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from pg_dpml.blocks.distributed import is_distributed, use_one_snapshot
from pg_dpml.blocks.encoder import columns_read
from pg_dpml.blocks.query import record_of
from pg_dpml.database.catalog import SourceTable, look_up_table
from pg_dpml.database.database import Database
from pg_dpml.database.session import Session, sql
from pg_dpml.errors import GuaranteeError, ResolutionError, SpecError
from pg_dpml.evaluation.metrics import require_columns
from pg_dpml.kernels import Noise
from pg_dpml.ledger import budgets, charging, models, nodes, terms
from pg_dpml.ledger.records import PrivacyRecord
from pg_dpml.ledger.transaction import run_charged
from pg_dpml.names import shown
from pg_dpml.privacy import resolution
from pg_dpml.privacy.choice import choose_noise
from pg_dpml.privacy.cost import Accounting
from pg_dpml.privacy.guarantee import Guarantee
from pg_dpml.privacy.noise import sums
from pg_dpml.privacy.noise.output import ReleaseNoise
from pg_dpml.privacy.noise.sums import MOST_SUM
from pg_dpml.spec.privacy import PrivacySpec

__all__ = ["NoisyError", "release_error"]

CONFIDENCE = 0.95
"""Confidence level of the error bar."""

SQUARED_ERROR_UNITS = 2**20
"""The whole number that a squared error at its clip counts as."""


@dataclass(frozen=True)
class NoisyError:
    """A share of wrong predictions, or a mean squared error, with noise.

    Attributes
    ----------
    value : float
        Share of wrong predictions in [0, 1], or mean squared error in squared units of the label, with each
        row's error clipped at `clip`.
    half_width : float
        Bound on the noise that holds with probability `confidence`.
    confidence : float
    clip : float or None
        Public bound on one row's squared error; None for classification.
    guarantee : Guarantee
        Guarantee of this one release.
    charge : int
        Number of its entry in dpml.ledger.
    n_rows : int
        Rows used, with or without a declared label; public.
    """

    value: float
    half_width: float
    confidence: float
    clip: float | None
    guarantee: Guarantee
    charge: int
    n_rows: int


@dataclass(frozen=True)
class _Release:
    """One noisy error, decided before a row is read."""

    model: models.Model
    table: SourceTable
    n_rows: int
    clip: float | None
    guarantee: Guarantee
    noise: ReleaseNoise
    noise_at: Callable[[float], ReleaseNoise]
    """The noise at another epsilon."""

    @property
    def units(self) -> int:
        """The summand of a row whose error is the largest possible."""
        return 1 if self.clip is None else SQUARED_ERROR_UNITS


def release_error(
    database: Database,
    name: str,
    table: str,
    privacy: PrivacySpec,
    *,
    clip: float | None,
    definition_is_public: bool,
    dataset: str | None,
) -> tuple[models.Model, SourceTable, NoisyError]:
    """Release a model's error on private rows; see `evaluate`.

    Returns
    -------
    model : Model
    table : SourceTable
    error : NoisyError

    Notes
    -----
    The charge is committed before a row is read.
    Source: privacy/README.md, "Order of a run".
    """

    def decide(session: Session) -> _Release:
        use_one_snapshot(session)
        model = models.load_model(session, name)
        found = look_up_table(session, table)
        charged_to = dataset or budgets.dataset_of(session, model, found)
        return _plan(session, model, found, privacy, clip, definition_is_public, charged_to)

    def charge(session: Session, release: _Release) -> charging.Charged:
        charged_to = dataset or budgets.dataset_of(session, release.model, release.table)
        return _charge(session, release, charged_to)

    def body(session: Session, release: _Release, charged: charging.Charged | None) -> int:
        with session.owners_path():
            total = int(session.fetch_one(_sum(release), {"model": name})[0])
        return sums.release_sum(total, release.noise, Noise())

    run = run_charged(
        database,
        decide=decide,
        charge=charge,
        body=body,
        store=None,
        what="the evaluation",
        undone="nothing was released",
        interrupted="interrupted: nothing was released",
        spent=lambda _, entry: f"epsilon = {privacy.epsilon:g} stays charged (entry {entry} of dpml.ledger)",
    )
    assert run.charged is not None
    assert run.outcome is not None  # each charge is a new one
    release = run.decided
    return release.model, release.table, _error(release, run.outcome, run.charged.entry)


def _error(release: _Release, noisy: int, charge: int) -> NoisyError:
    """The released sum as an error with its bar."""
    most = release.n_rows * release.units
    worst = release.clip or 1.0
    half_width = sums.noise_range(release.noise, CONFIDENCE) / most * worst
    value = min(max(noisy, 0), most) / most * worst
    return NoisyError(value, half_width, CONFIDENCE, release.clip, release.guarantee, charge, release.n_rows)


def _plan(
    session: Session,
    model: models.Model,
    table: SourceTable,
    privacy: PrivacySpec,
    clip: float | None,
    definition_is_public: bool,
    dataset: str | None,
) -> _Release:
    """Check everything that needs no row, and calibrate the noise."""
    trained = PrivacyRecord.from_json(model.privacy)
    unit, most = trained.unit, trained.max_rows_per_unit
    require_columns(model, table, [model.encoder["label"]["name"]] + ([unit] if unit else []))
    _require_public_rows(model, table, unit, definition_is_public)
    budget = charging.accounting_of(session, table, dataset)
    guarantee = Guarantee(privacy.epsilon, 0.0, privacy.relation, unit, most)
    n_rows = _count(session, table, guarantee)
    if n_rows == 0:
        raise SpecError(f"table {shown(table.name)} has no rows")
    clip = _clip(model, clip)
    units = most * (1 if clip is None else SQUARED_ERROR_UNITS)
    if n_rows * units >= MOST_SUM:
        raise GuaranteeError(
            f"the errors of {n_rows:,} rows could add up to more than float64 counts: evaluate on a sample "
            f"of at most {(MOST_SUM - 1) // units:,}"
        )
    delta = _delta(privacy, budget, n_rows)
    guarantee = replace(guarantee, delta=delta or resolution.sampler_delta(1))

    def noise_at(epsilon: float) -> ReleaseNoise:
        kind = choose_noise(budget, epsilon, delta, 1, privacy.relation).kind
        return sums.calibrate_sum(units, epsilon, delta, kind)

    try:
        noise = resolution.with_least_epsilon(noise_at, privacy.epsilon)
    except ResolutionError as error:
        raise charging.refusal_of(session, table, dataset, error, _pricing(guarantee, noise_at)) from None
    release = _Release(model, table, n_rows, clip, guarantee, noise, noise_at)
    # Wrong types and missing privileges raise errors here, by a row of NULLs and a query that reads no row.
    session.fetch(
        sql.SQL(
            "SELECT dpml.predict(%(model)s, {record}), dpml.label(%(model)s, {record}) "
            "FROM (SELECT (NULL::{table}).*) AS t"
        ).format(record=record_of(model.encoder, table, with_label=True), table=table.identifier),
        {"model": model.name},
    )
    failed = (
        f"the rows of {shown(table.name)} cannot be read: its definition fails on a row; nothing was charged"
    )
    session.require_readable(_sum(release), failed, {"model": model.name})
    if is_distributed(session, table):
        without = [worker for worker, models in nodes.lacking_models(session) if model.name in models]
        if without:
            raise SpecError(
                f"worker {', '.join(without)} has no copy of model {shown(model.name)}, or an old one, and "
                f"nothing was charged: dpml share {shown(model.name)}"
            )
    return release


def _delta(privacy: PrivacySpec, budget: Accounting | None, n_rows: int) -> float:
    """The delta asked for; by default the one whose noise costs the budget least, of 0 and 1/n^2."""
    if privacy.delta is None and (budget is None or budget.rule == "basic"):
        return 0.0
    return privacy.delta_for(n_rows)


def _require_public_rows(
    model: models.Model, table: SourceTable, unit: str | None, definition_is_public: bool
) -> None:
    """Raise an error if a private value may decide which rows there are, or make the query fail."""
    if table.row_security:
        raise GuaranteeError(f"{shown(table.name)} has row-level security, so its rows depend on who asks")
    used = [model.encoder["label"]["name"], *columns_read(model.encoder)]
    used += [unit] if unit else []
    computed = [name for name in used if table.columns[name].virtual]
    if (table.kind in "vmf" or computed) and not definition_is_public:
        what = shown(table.name)
        if computed:
            what = f"column {shown(computed[0])}, which is computed when it is read,"
        raise GuaranteeError(
            f"what {what} shows could itself be private: if the owner agrees that its definition is public, "
            "and that it fails on no row, say so with --definition-is-public"
        )


def _clip(model: models.Model, clip: float | None) -> float | None:
    """Bound on the squared error of a row whose label and prediction are inside the label's bounds."""
    if model.task != "regression":
        if clip is not None:
            raise SpecError(
                f"clip bounds the squared errors of a regression; model {shown(model.name)} is for classes"
            )
        return None
    label = model.encoder["label"]
    largest = (float(label["upper"]) - float(label["lower"])) ** 2
    if clip is not None and not 0.0 < clip < math.inf:
        raise SpecError(f"clip must be in (0, inf), not {clip!r}")
    return largest if clip is None else min(clip, largest)


def _pricing(
    guarantee: Guarantee, noise_at: Callable[[float], ReleaseNoise]
) -> Callable[[float], terms.Priced]:
    """What such a release costs at another epsilon."""
    return lambda epsilon: (replace(guarantee, epsilon=epsilon), noise_at(epsilon).releases())


def _charge(session: Session, release: _Release, dataset: str | None) -> charging.Charged:
    mechanism: dict[str, Any] = {
        "release": "errors" if release.clip is None else "clipped squared errors",
        "clip": release.clip,
    }
    return charging.charge(
        session,
        release.table,
        release.guarantee,
        release.noise.releases(),
        at_epsilon=_pricing(release.guarantee, release.noise_at),
        dataset=dataset,
        model=release.model.name,
        method="evaluate",
        n_units=release.n_rows,
        mechanism=mechanism | asdict(release.noise),
    )


def _used_rows(table: SourceTable, guarantee: Guarantee, shown: sql.Composable) -> sql.Composed:
    """FROM clause with the expressions `shown` of the rows t used: at most m rows of a unit, at random."""
    if guarantee.unit is None:
        return sql.SQL("FROM (SELECT {} FROM {} AS t) AS u").format(shown, table.identifier)
    return sql.SQL(
        "FROM (SELECT {shown}, {unit} IS NULL OR pg_catalog.row_number() OVER "
        "(PARTITION BY {unit} ORDER BY pg_catalog.random()) <= {most} AS used "
        "FROM {table} AS t OFFSET 0) AS u WHERE u.used"
    ).format(
        shown=shown,
        unit=sql.Identifier("t", guarantee.unit),
        most=sql.Literal(guarantee.max_rows_per_unit),
        table=table.identifier,
    )


def _count(session: Session, table: SourceTable, guarantee: Guarantee) -> int:
    """Public number of rows used."""
    rows = _used_rows(table, guarantee, sql.SQL("1 AS one"))
    return session.count(
        sql.SQL("SELECT pg_catalog.count(*) ") + rows,
        f"counting the rows of {shown(table.name)} failed, and PostgreSQL's message is not shown because it "
        "may quote a row: write the view so that it can fail on no row",
    )


def _sum(release: _Release) -> sql.Composed:
    """Query for the exact sum of errors, which raises no error whatever a row contains.

    Source: privacy/README.md, "Scores and errors".
    """
    record = record_of(release.model.encoder, release.table, with_label=True)
    # No record leaves the subquery: Citus sends its rows to the coordinator, or leaves them on the workers.
    if release.clip is None:
        wrong = sql.SQL(
            "dpml.predict(%(model)s, {record}) IS DISTINCT FROM dpml.label(%(model)s, {record}) AS wrong"
        ).format(record=record)
        return sql.SQL("SELECT pg_catalog.count(*) FILTER (WHERE u.wrong) ") + _used_rows(
            release.table, release.guarantee, wrong
        )
    # The root of the clip bounds the difference before it is squared, which then cannot overflow.
    error = sql.SQL(
        "coalesce(pg_catalog.round({units}::float8 * (least(pg_catalog.abs("
        "dpml.label(%(model)s, {record})::float8 - dpml.predict_value(%(model)s, {record})), {root}::float8) "
        "/ {root}::float8) ^ 2::float8)::pg_catalog.int8, {units}) AS error"
    ).format(units=sql.Literal(release.units), root=sql.Literal(math.sqrt(release.clip)), record=record)
    return sql.SQL("SELECT coalesce(pg_catalog.sum(u.error), 0)::pg_catalog.int8 ") + _used_rows(
        release.table, release.guarantee, error
    )
