# SPDX-License-Identifier: PostgreSQL
"""One error of a model on private rows, released with noise and charged.

privacy/README.md, "Scores and errors", states what is released and why its noise suffices.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from pg_dpml import budgets, registry
from pg_dpml.charged import run_charged
from pg_dpml.database import Database, Session, SourceTable, sql
from pg_dpml.errors import GuaranteeError, ResolutionError, SpecError
from pg_dpml.figures import require_columns
from pg_dpml.kernels import Noise
from pg_dpml.methods.plan import Guarantee
from pg_dpml.names import shown
from pg_dpml.privacy import mechanisms, resolution
from pg_dpml.privacy.budget import choose_noise, gaussian_part
from pg_dpml.privacy.mechanisms import MOST_SUM, ReleaseNoise
from pg_dpml.rows import record_of
from pg_dpml.spec import PrivacySpec

__all__ = ["NoisyError", "release_error"]

CONFIDENCE = 0.95
"""Of the error bar."""

SQUARED_ERROR_UNITS = 2**20
"""A squared error at its clip, as a whole number."""


@dataclass(frozen=True)
class NoisyError:
    """A share of wrong predictions, or a mean squared error, with noise.

    Attributes
    ----------
    value : float
        In [0, 1], or in squared units of the label with each row's error clipped at `clip`.
    half_width : float
        With probability `confidence` the noise is no larger.
    confidence : float
    clip : float or None
        Public bound on one row's squared error; None for classification.
    guarantee : Guarantee
        Of this one release.
    charge : int
        Its row of dpml.ledger.
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

    model: registry.Model
    table: SourceTable
    n_rows: int
    clip: float | None
    guarantee: Guarantee
    noise: ReleaseNoise
    noise_at: Callable[[float], ReleaseNoise]
    """The noise at another epsilon."""

    @property
    def units(self) -> int:
        """What a wholly wrong row adds to the sum."""
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
) -> tuple[registry.Model, SourceTable, NoisyError]:
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
        model = registry.load_model(session, name)
        relation = session.relation(table)
        charged_to = dataset or budgets.dataset_of(session, model, relation)
        return _plan(session, model, relation, privacy, clip, definition_is_public, charged_to)

    def charge(session: Session, release: _Release) -> budgets.Charged:
        charged_to = dataset or budgets.dataset_of(session, release.model, release.table)
        return _charge(session, release, charged_to)

    def released(session: Session, release: _Release, charged: budgets.Charged | None) -> int:
        with session.owners_path():
            total = int(session.fetch_one(_sum(release), {"model": name})[0])
        return mechanisms.release_sum(total, release.noise, Noise())

    run = run_charged(
        database,
        decide=decide,
        charge=charge,
        work=released,
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
    half_width = mechanisms.noise_range(release.noise, CONFIDENCE) / most * worst
    value = min(max(noisy, 0), most) / most * worst
    return NoisyError(value, half_width, CONFIDENCE, release.clip, release.guarantee, charge, release.n_rows)


def _plan(
    session: Session,
    model: registry.Model,
    table: SourceTable,
    privacy: PrivacySpec,
    clip: float | None,
    definition_is_public: bool,
    dataset: str | None,
) -> _Release:
    """Check everything that can be checked without a row, and calibrate."""
    unit, most = model.privacy.get("unit"), int(model.privacy.get("max_rows_per_unit", 1))
    require_columns(model, table, [model.encoder["label"]["name"]] + ([unit] if unit else []))
    _require_public_rows(model, table, definition_is_public)
    delta = privacy.delta or 0.0
    guarantee = Guarantee(privacy.epsilon, delta or resolution.sampler_delta(1), privacy.relation, unit, most)
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
    budget = budgets.accounting_of(session, table, dataset)

    def noise_at(epsilon: float) -> ReleaseNoise:
        kind = choose_noise(budget, epsilon, delta, 1, privacy.relation).kind
        return mechanisms.calibrate_sum(units, epsilon, delta, kind)

    try:
        noise = resolution.with_least_epsilon(noise_at, privacy.epsilon)
    except ResolutionError as error:
        raise budgets.refusal_of(session, table, dataset, error, _pricing(guarantee, noise_at)) from None
    release = _Release(model, table, n_rows, clip, guarantee, noise, noise_at)
    # Types and privileges are refused here, by a row of NULLs and by a query that reads no row.
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
    return release


def _require_public_rows(model: registry.Model, table: SourceTable, definition_is_public: bool) -> None:
    """Refuse what may choose rows, or fail, by a private value."""
    if table.row_security:
        raise GuaranteeError(f"{shown(table.name)} has row-level security, so its rows depend on who asks")
    unit = model.privacy.get("unit")
    used = [model.encoder["label"]["name"], *(column["name"] for column in model.encoder["columns"])]
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


def _clip(model: registry.Model, clip: float | None) -> float | None:
    """The bound on a row's squared error: of label and prediction inside the label's bounds."""
    if model.task != "regression":
        if clip is not None:
            raise SpecError(
                f"clip bounds the squared errors of a regression; model {shown(model.name)} is none"
            )
        return None
    label = model.encoder["label"]
    largest = (float(label["upper"]) - float(label["lower"])) ** 2
    if clip is not None and not 0.0 < clip < math.inf:
        raise SpecError(f"clip must be in (0, inf), not {clip!r}")
    return largest if clip is None else min(clip, largest)


def _pricing(
    guarantee: Guarantee, noise_at: Callable[[float], ReleaseNoise]
) -> Callable[[float], budgets.Priced]:
    """What such a release costs at another epsilon."""
    return lambda epsilon: (replace(guarantee, epsilon=epsilon), gaussian_part(noise_at(epsilon)))


def _charge(session: Session, release: _Release, dataset: str | None) -> budgets.Charged:
    mechanism: dict[str, Any] = {
        "release": "errors" if release.clip is None else "clipped squared errors",
        "clip": release.clip,
    }
    return budgets.charge(
        session,
        release.table,
        release.guarantee,
        gaussian_part(release.noise),
        at_epsilon=_pricing(release.guarantee, release.noise_at),
        dataset=dataset,
        model=release.model.name,
        method="evaluate",
        n_units=release.n_rows,
        mechanism=mechanism | asdict(release.noise),
    )


def _used_rows(table: SourceTable, guarantee: Guarantee, shown: sql.Composable) -> sql.Composed:
    """FROM clause with what is `shown` of each row t; of a unit, of so many rows chosen at random."""
    if guarantee.unit is None:
        return sql.SQL("FROM (SELECT {} FROM {} AS t OFFSET 0) AS u").format(shown, table.identifier)
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
    """Rows used, which are public in number."""
    rows = _used_rows(table, guarantee, sql.SQL("1 AS one"))
    return session.count(
        sql.SQL("SELECT pg_catalog.count(*) ") + rows,
        f"counting the rows of {shown(table.name)} failed, and PostgreSQL's message is not shown because it "
        "may quote a row: write the view so that it can fail on no row",
    )


def _sum(release: _Release) -> sql.Composed:
    """Query of the exact sum of errors; whatever a row holds, it raises nothing.

    Source: privacy/README.md, "Scores and errors".
    """
    record = record_of(release.model.encoder, release.table, with_label=True)
    rows = _used_rows(release.table, release.guarantee, sql.SQL("{} AS record").format(record))
    if release.clip is None:
        return (
            sql.SQL(
                "SELECT pg_catalog.count(*) FILTER (WHERE dpml.predict(%(model)s, u.record) "
                "IS DISTINCT FROM dpml.label(%(model)s, u.record)) "
            )
            + rows
        )
    # The root of the clip bounds the difference before it is squared, which then cannot overflow.
    error = sql.SQL(
        "{units}::float8 * (least(pg_catalog.abs(dpml.label(%(model)s, u.record)::float8 "
        "- dpml.predict_value(%(model)s, u.record)), {root}::float8) / {root}::float8) ^ 2::float8"
    ).format(units=sql.Literal(release.units), root=sql.Literal(math.sqrt(release.clip)))
    return (
        sql.SQL(
            "SELECT coalesce(pg_catalog.sum(coalesce(pg_catalog.round({})::pg_catalog.int8, {})), 0)"
            "::pg_catalog.int8 "
        ).format(error, sql.Literal(release.units))
        + rows
    )
