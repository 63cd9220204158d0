# SPDX-License-Identifier: PostgreSQL
"""Apply a stored model to a table: predictions, and its figures in one of three modes."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import Any

import sqlalchemy as sa

from pg_dpml import registry
from pg_dpml.database import Database, Session, SourceTable, sql
from pg_dpml.errors import DpmlError, GuaranteeError, RunFailedError, RunInterrupted, SpecError
from pg_dpml.figures import Figures, exact_figures
from pg_dpml.kernels import Noise
from pg_dpml.methods.plan import Guarantee
from pg_dpml.privacy import mechanisms
from pg_dpml.privacy.mechanisms import ReleaseNoise
from pg_dpml.rows import record_of
from pg_dpml.spec import PrivacySpec

__all__ = ["Evaluation", "NoisyError", "evaluate", "predict"]

CONFIDENCE = 0.95
"""Of the error bar."""

SQUARED_ERROR_UNITS = 2**20
"""A squared error at its clip, as a whole number."""

WAYS = (
    "figures of private rows are themselves a release, so say exactly one of: --public (the rows of this "
    "table are public); --owner (they are private, and the exact figures are for their owner's eyes only); "
    "--epsilon E (they are private, and one noisy error is released and charged)"
)


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
    """

    value: float
    half_width: float
    confidence: float
    clip: float | None
    guarantee: Guarantee
    charge: int


@dataclass(frozen=True, kw_only=True)
class Evaluation(Figures):
    """A model's figures on a table.

    In mode "private" the number of rows is that of all rows used, `accuracy` or
    `mean_squared_error` is the noisy one, and there are no other figures.

    Attributes
    ----------
    model, table : str
    private : bool
        Whether the model is private.
    mode : str
        "public" (rows are public), "owner" (exact figures of private rows: **not
        private**) or "private" (one noisy error of private rows, charged).
    error : NoisyError or None
        None but in mode "private".
    """

    model: str
    table: str
    private: bool
    mode: str
    error: NoisyError | None = None


def evaluate(
    source: str | sa.Engine,
    model: str,
    table: str,
    *,
    public: bool = False,
    owner: bool = False,
    privacy: PrivacySpec | None = None,
    clip: float | None = None,
    definition_is_public: bool = False,
    insecure: bool = False,
) -> Evaluation:
    """Figures of a stored model on a table, in exactly one of three modes.

    Parameters
    ----------
    source : str or sqlalchemy.Engine
        libpq connection string, or an engine over psycopg 3.
    model : str
        Name in dpml.models.
    table : str
        With the columns and the label of the training table.
    public : bool
        The owner's word that the rows of `table` are public.
    owner : bool
        Exact figures of private rows, for their owner alone: they are **not private**.
    privacy : PrivacySpec or None
        Release one noisy error of private rows and charge it. A `delta` of None is 0, since
        one number needs the least noise without it. Units of privacy are the model's.
    clip : float or None
        Regression with `privacy`: public bound on one row's squared error, in (0, inf); None
        for the largest possible one, which clips nothing.
    definition_is_public : bool
        With `privacy`, where `table` is a view: the owner's word that which rows it shows is public.
    insecure : bool
        Allow TCP without TLS to another machine.

    Returns
    -------
    Evaluation

    Raises
    ------
    GuaranteeError
        If not exactly one mode is given: figures on private rows are releases.
    SpecError
        If the model, the table or a column does not exist, or no row has a declared label.
    RunFailedError
        If a private evaluation fails after its charge; the charge stays.
    RunInterrupted
        On Ctrl-C after the charge; the charge stays.

    Notes
    -----
    Source: privacy/README.md, "Scores and errors".
    """
    if [public, owner, privacy is not None].count(True) != 1:
        raise GuaranteeError(WAYS)
    database = Database(source, insecure=insecure)
    if privacy is not None:
        return _private_error(database, model, table, privacy, clip, definition_is_public)
    if clip is not None or definition_is_public:
        raise SpecError("clip and definition_is_public go with epsilon: exact figures need neither")
    with database.session("REPEATABLE READ") as session:
        stored = registry.load_model(session, model)
        relation = session.relation(table)
        _require_columns(stored, relation, [stored.encoder["label"]["name"]])
        return Evaluation(
            model=stored.name,
            table=relation.name,
            private=stored.private,
            mode="public" if public else "owner",
            **vars(exact_figures(session, stored, relation)),
        )


def _require_columns(model: registry.Model, table: SourceTable, extra: list[str]) -> None:
    for name in [column["name"] for column in model.encoder["columns"]] + extra:
        if name not in table.columns:
            raise SpecError(f"column {name} does not exist in {table.name}; model {model.name} needs it")


@dataclass(frozen=True)
class _Release:
    """One noisy error, decided before a row is read."""

    model: registry.Model
    table: SourceTable
    n_rows: int
    clip: float | None
    guarantee: Guarantee
    noise: ReleaseNoise

    @property
    def units(self) -> int:
        """What a wholly wrong row adds to the sum."""
        return 1 if self.clip is None else SQUARED_ERROR_UNITS


def _private_error(
    database: Database,
    name: str,
    table: str,
    privacy: PrivacySpec,
    clip: float | None,
    definition_is_public: bool,
) -> Evaluation:
    """Charge, then read: the order of a training run."""
    with database.session() as session:
        model = registry.load_model(session, name)
        relation = session.relation(table)
        release = _plan(session, model, relation, privacy, clip, definition_is_public)
        charge = _charge(session, release)
    spent = f"epsilon = {privacy.epsilon:g} stays charged (entry {charge} of dpml.ledger)"
    try:
        with database.session("REPEATABLE READ") as session:
            if _count(session, relation, release.guarantee) != release.n_rows:
                raise RunFailedError(
                    "the number of rows changed between the charge and the evaluation, and no row was read; "
                    + spent
                )
            ((total,),) = session.fetch(_sum(release), {"model": name})
    except KeyboardInterrupt as interrupt:
        raise RunInterrupted(f"interrupted: nothing was released; {spent}") from interrupt
    except RunFailedError:
        raise
    except DpmlError:
        # The server's text may quote a row, so neither it nor its type is passed on.
        raise RunFailedError(
            f"the evaluation failed on the server and nothing was released; {spent}"
        ) from None
    return _evaluation(release, mechanisms.release_sum(total, release.noise, Noise()), charge)


def _evaluation(release: _Release, noisy: int, charge: int) -> Evaluation:
    """The released sum as an error with its bar."""
    most = release.n_rows * release.units
    scale = (release.clip or 1.0) / most
    value = min(max(noisy, 0), most) * scale
    half_width = mechanisms.noise_range(release.noise, CONFIDENCE) * scale
    return Evaluation(
        model=release.model.name,
        table=release.table.name,
        private=release.model.private,
        mode="private",
        n_rows=release.n_rows,
        accuracy=1.0 - value if release.clip is None else None,
        mean_squared_error=None if release.clip is None else value,
        error=NoisyError(value, half_width, CONFIDENCE, release.clip, release.guarantee, charge),
    )


def _plan(
    session: Session,
    model: registry.Model,
    table: SourceTable,
    privacy: PrivacySpec,
    clip: float | None,
    definition_is_public: bool,
) -> _Release:
    """Check everything that can be checked without a row, and calibrate."""
    unit, most = model.privacy.get("unit"), int(model.privacy.get("max_rows_per_unit", 1))
    _require_columns(model, table, [model.encoder["label"]["name"]] + ([unit] if unit else []))
    if table.row_security or (table.kind in "vmf" and not definition_is_public):
        raise GuaranteeError(
            f"which rows {table.name} shows could itself be private: evaluate on a table, or on a view whose "
            "definition the owner declares public (--definition-is-public), without row-level security"
        )
    delta = privacy.delta or 0.0
    guarantee = Guarantee(
        privacy.epsilon, delta or mechanisms.sampler_delta(1), privacy.relation, unit, most
    )
    n_rows = _count(session, table, guarantee)
    if n_rows == 0:
        raise SpecError(f"table {table.name} has no rows")
    clip = _clip(model, clip)
    units = most * (1 if clip is None else SQUARED_ERROR_UNITS)
    noise = mechanisms.calibrate_sum(units, privacy.epsilon, delta)
    release = _Release(model, table, n_rows, clip, guarantee, noise)
    # Types and privileges are refused here, by a row of NULLs and by a query that reads no row.
    session.fetch(
        sql.SQL(
            "SELECT dpml.predict(%(model)s, {record}), dpml.label(%(model)s, {record}) "
            "FROM (SELECT (NULL::{table}).*) AS t"
        ).format(record=record_of(model.encoder, with_label=True), table=table.identifier),
        {"model": model.name},
    )
    session.fetch(_sum(release) + sql.SQL(" LIMIT 0"), {"model": model.name})
    return release


def _clip(model: registry.Model, clip: float | None) -> float | None:
    """The bound on a row's squared error: of label and prediction inside the label's bounds."""
    if model.task != "regression":
        if clip is not None:
            raise SpecError(f"clip bounds the squared errors of a regression; model {model.name} is none")
        return None
    label = model.encoder["label"]
    largest = (float(label["upper"]) - float(label["lower"])) ** 2
    if clip is not None and not 0.0 < clip < math.inf:
        raise SpecError(f"clip must be in (0, inf), not {clip!r}")
    return largest if clip is None else min(clip, largest)


def _charge(session: Session, release: _Release) -> int:
    guarantee = release.guarantee
    mechanism: dict[str, Any] = {
        "release": "errors" if release.clip is None else "clipped squared errors",
        "clip": release.clip,
        "unit": guarantee.unit,
        "max_rows_per_unit": guarantee.max_rows_per_unit,
    }
    return registry.charge(
        session,
        dataset=f"{release.table.schema}.{release.table.name}",
        model=release.model.name,
        method="evaluate",
        epsilon=Decimal(repr(guarantee.epsilon)),
        delta=Decimal(repr(guarantee.delta)),
        relation=guarantee.relation.value,
        n_rows=release.n_rows,
        mechanism=mechanism | asdict(release.noise),
    )


def _used_rows(table: SourceTable, guarantee: Guarantee, shown: sql.Composable) -> sql.Composed:
    """FROM clause with what is `shown` of each row t; of a unit, of so many rows chosen at random."""
    if guarantee.unit is None:
        return sql.SQL("FROM (SELECT {} FROM {} AS t OFFSET 0) AS u").format(shown, table.identifier)
    return sql.SQL(
        "FROM (SELECT {shown}, {unit} IS NULL OR pg_catalog.row_number() OVER "
        "(PARTITION BY {unit} ORDER BY pg_catalog.random()) <= {most} AS used FROM {table} AS t OFFSET 0) AS u "
        "WHERE u.used"
    ).format(
        shown=shown,
        unit=sql.Identifier("t", guarantee.unit),
        most=sql.Literal(guarantee.max_rows_per_unit),
        table=table.identifier,
    )


def _count(session: Session, table: SourceTable, guarantee: Guarantee) -> int:
    """Rows used, which are public in number."""
    rows = _used_rows(table, guarantee, sql.SQL("1 AS one"))
    return int(session.fetch_one(sql.SQL("SELECT pg_catalog.count(*) ") + rows)[0])


def _sum(release: _Release) -> sql.Composed:
    """Query of the exact sum of errors; whatever a row holds, it raises nothing.

    Source: privacy/README.md, "Scores and errors".
    """
    record = record_of(release.model.encoder, with_label=True)
    rows = _used_rows(release.table, release.guarantee, sql.SQL("{} AS record").format(record))
    if release.clip is None:
        wrong = "(dpml.predict(%(model)s, u.record) IS DISTINCT FROM dpml.label(%(model)s, u.record))::int"
        return sql.SQL(f"SELECT coalesce(pg_catalog.sum({wrong}), 0)::pg_catalog.int8 ") + rows
    # The root of the clip bounds the difference before it is squared, which then cannot overflow.
    error = sql.SQL(
        "{units} * (least(pg_catalog.abs(dpml.label(%(model)s, u.record)::pg_catalog.float8 "
        "- dpml.predict_value(%(model)s, u.record)), {root}) / {root}) ^ 2"
    ).format(units=sql.Literal(float(release.units)), root=sql.Literal(math.sqrt(release.clip)))
    return sql.SQL(
        "SELECT coalesce(pg_catalog.sum(coalesce(pg_catalog.round({})::pg_catalog.int8, {})), 0)"
        "::pg_catalog.int8 "
    ).format(error, sql.Literal(release.units)) + rows


def predict(
    source: str | sa.Engine, model: str, table: str, *, id_column: str, into: str, insecure: bool = False
) -> int:
    """Write a model's predictions for every row of a table into a new table.

    The new table has the id column, `prediction` (text) and `value` (float8,
    see `dpml.predict_value`).

    Parameters
    ----------
    source : str or sqlalchemy.Engine
        libpq connection string, or an engine over psycopg 3.
    model : str
        Name in dpml.models.
    table : str
        With the feature columns of the training table.
    id_column : str
        Column that identifies a row.
    into : str
        Name of the new table, schema-qualified or not.
    insecure : bool
        Allow TCP without TLS to another machine.

    Returns
    -------
    int
        Number of rows written.

    Raises
    ------
    SpecError
        If the model, the table or a column does not exist, or the new table does.
    """
    with Database(source, insecure=insecure).session() as session:
        stored = registry.load_model(session, model)
        relation = session.relation(table)
        _require_columns(stored, relation, [id_column])
        if id_column in ("prediction", "value"):
            raise SpecError("id: the new table already has columns called prediction and value")
        target = sql.Identifier(*into.split(".", 1))
        if session.fetch_one(
            sql.SQL("SELECT pg_catalog.to_regclass(%(name)s) IS NOT NULL"),
            {"name": target.as_string()},
        )[0]:
            raise SpecError(f"table {into} exists: choose another name for --into, or drop it first")
        return session.execute(
            sql.SQL(
                "CREATE TABLE {target} AS SELECT t.{id}, dpml.predict({model}, {record}) AS prediction, "
                "dpml.predict_value({model}, {record}) AS value FROM {table} AS t"
            ).format(
                target=target,
                id=sql.Identifier(id_column),
                # CREATE TABLE AS takes no parameters.
                model=sql.Literal(stored.name),
                record=record_of(stored.encoder, with_label=False),
                table=relation.identifier,
            )
        )
