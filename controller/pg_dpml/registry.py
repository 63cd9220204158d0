# SPDX-License-Identifier: PostgreSQL
"""Stored models and the ledger of what was spent: tables dpml.models and dpml.ledger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from pg_dpml.database import Session, array_parameter, sql
from pg_dpml.errors import SpecError

__all__ = [
    "Charge",
    "Model",
    "charge",
    "charges_of",
    "drop_model",
    "find_model",
    "grant_model",
    "list_models",
    "load_model",
    "may_apply_models",
    "model_of",
    "require_new_name",
    "require_role",
    "revoke_model",
    "store_model",
]


class _Float8Array(sa.types.UserDefinedType[Any]):
    """Written as `array_parameter` gives it, without a look at each number."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "float8[]"


_metadata = sa.MetaData(schema="dpml")

ledger = sa.Table(
    "ledger",
    _metadata,
    sa.Column("id", sa.BigInteger, primary_key=True),
    sa.Column("charged_at", sa.DateTime(timezone=True)),
    sa.Column("charged_by", sa.Text),
    sa.Column("dataset", sa.Text),
    sa.Column("model", sa.Text),
    sa.Column("method", sa.Text),
    sa.Column("private", sa.Boolean),
    sa.Column("epsilon", sa.Numeric),
    sa.Column("delta", sa.Numeric),
    sa.Column("relation", sa.Text),
    sa.Column("n_rows", sa.BigInteger),
    sa.Column("mechanism", JSONB),
)

models = sa.Table(
    "models",
    _metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("created_at", sa.DateTime(timezone=True)),
    sa.Column("owner", sa.Text),
    sa.Column("granted_to", ARRAY(sa.Text)),
    sa.Column("method", sa.Text),
    sa.Column("private", sa.Boolean),
    sa.Column("task", sa.Text),
    sa.Column("loss", sa.Text),
    sa.Column("classes", ARRAY(sa.Text)),
    sa.Column("weights", ARRAY(sa.Float)),
    sa.Column("whitening", _Float8Array),
    sa.Column("n_features", sa.Integer),
    sa.Column("encoder", JSONB),
    sa.Column("privacy", JSONB),
    sa.Column("training", JSONB),
    sa.Column("charge", sa.BigInteger),
)


@dataclass(frozen=True)
class Model:
    """A released model as it is stored.

    Attributes
    ----------
    name, method, task, loss : str
    private : bool
        False for baselines, in every report.
    classes : tuple of str or None
        In the order of the scores; None for regression.
    weights : ndarray of shape (n_outputs * n_features,)
        Row-major; the intercept is the last feature.
    n_features : int
    encoder : mapping
        What `dpml.encode` needs.
    privacy, training : mapping
        The guarantee, and how the model was trained.
    charge : int or None
        Its row of dpml.ledger.
    whitening : ndarray of shape (n_features, n_features) or None
        P, symmetric: a score is <w, x> / ||P x||, and 0 where the norm is 0. None: <w, x>.
    created_at : datetime or None
        Start of the transaction that stored it; None before.
    owner : str or None
        Role that it belongs to; None before it is stored: whoever stores it.
    granted_to : tuple of str
        Other roles that may read and apply it; "public": every role.
    """

    name: str
    method: str
    private: bool
    task: str
    loss: str
    classes: tuple[str, ...] | None
    weights: npt.NDArray[np.float64]
    n_features: int
    encoder: Mapping[str, Any]
    privacy: Mapping[str, Any]
    training: Mapping[str, Any]
    charge: int | None
    whitening: npt.NDArray[np.float64] | None = None
    created_at: datetime | None = field(default=None, compare=False)
    owner: str | None = field(default=None, compare=False)
    granted_to: tuple[str, ...] = field(default=(), compare=False)

    @property
    def matrix(self) -> npt.NDArray[np.float64]:
        """The weights as ndarray of shape (n_outputs, n_features)."""
        return self.weights.reshape(-1, self.n_features)


@dataclass(frozen=True)
class Charge:
    """One entry of the ledger: what a run or an evaluation spent."""

    id: int
    charged_at: datetime
    charged_by: str
    dataset: str
    model: str
    method: str
    epsilon: Decimal | None
    delta: Decimal | None
    relation: str | None
    n_rows: int | None
    mechanism: Mapping[str, Any]


def require_new_name(session: Session, name: str) -> None:
    """Refuse a name that is taken, before anything is spent on it."""
    if not name or len(name) > 200:
        raise SpecError("name must have 1 to 200 characters")
    if find_model(session, name) is not None:
        raise SpecError(
            f"a model called {name} exists: choose another name, or remove it with dpml drop; "
            "what it spent stays in the ledger"
        )


def charge(
    session: Session,
    *,
    dataset: str,
    model: str,
    method: str,
    epsilon: Decimal,
    delta: Decimal,
    relation: str,
    n_rows: int,
    mechanism: Mapping[str, Any],
) -> int:
    """Write what a run will spend; the caller commits before it reads a row.

    Returns
    -------
    int
        The ledger's id of the charge.
    """
    statement = (
        ledger.insert()
        .values(
            dataset=dataset,
            model=model,
            method=method,
            private=True,
            epsilon=epsilon,
            delta=delta,
            relation=relation,
            n_rows=n_rows,
            mechanism=dict(mechanism),
        )
        .returning(ledger.c.id)
    )
    entry = int(session.connection.execute(statement).scalar_one())
    session.must_last(
        f"epsilon = {float(epsilon):g}, delta = {float(delta):.3g} may be charged, unless dpml.ledger has no "
        f"entry {entry}; no row was read"
    )
    return entry


def store_model(session: Session, model: Model) -> None:
    """Insert a released model; the name must be new. Its owner is the current role if it names none."""
    values = {
        "name": model.name,
        "method": model.method,
        "private": model.private,
        "task": model.task,
        "loss": model.loss,
        "classes": None if model.classes is None else list(model.classes),
        "weights": model.weights.tolist(),
        "whitening": None if model.whitening is None else array_parameter(model.whitening.ravel()),
        "n_features": model.n_features,
        "encoder": dict(model.encoder),
        "privacy": dict(model.privacy),
        "training": dict(model.training),
        "charge": model.charge,
    }
    if model.owner is not None:
        values["owner"] = model.owner
    session.connection.execute(models.insert().values(**values))
    session.must_last(f"model {model.name} may be stored, as dpml models tells")


def _model(row: Any) -> Model:
    whitening = row._mapping.get("whitening")
    return Model(
        name=row.name,
        method=row.method,
        private=row.private,
        task=row.task,
        loss=row.loss,
        classes=None if row.classes is None else tuple(row.classes),
        weights=np.asarray(row.weights, dtype=np.float64),
        n_features=row.n_features,
        encoder=row.encoder,
        privacy=row.privacy,
        training=row.training,
        charge=row.charge,
        whitening=None if whitening is None else np.reshape(whitening, (row.n_features, row.n_features)),
        created_at=row.created_at,
        owner=row.owner,
        granted_to=tuple(row.granted_to),
    )


def list_models(session: Session) -> list[Model]:
    """Every model that the role may see, by name; without the whitening, which may be megabytes a model."""
    shown = [column for column in models.c if column is not models.c.whitening]
    rows = session.connection.execute(sa.select(*shown).order_by(models.c.name))
    return [_model(row) for row in rows]


def find_model(session: Session, name: str) -> Model | None:
    """The stored model of a name, or None if there is none that the role may see."""
    row = session.connection.execute(sa.select(models).where(models.c.name == name)).one_or_none()
    return None if row is None else _model(row)


def model_of(session: Session, charge: int) -> Model | None:
    """The stored model that a charge paid for, or None."""
    row = session.connection.execute(sa.select(models).where(models.c.charge == charge)).one_or_none()
    return None if row is None else _model(row)


def load_model(session: Session, name: str) -> Model:
    """The stored model of a name.

    Raises
    ------
    SpecError
        If there is none that the role may see.
    """
    model = find_model(session, name)
    if model is None:
        raise SpecError(
            f"there is no model called {name}, or it was not granted to you: dpml models lists those that "
            "you may use"
        )
    return model


def drop_model(session: Session, name: str) -> None:
    """Delete a model; what it spent stays in the ledger.

    Raises
    ------
    SpecError
        If there is none, or it belongs to another role.
    """
    model = load_model(session, name)
    (dropped,) = session.fetch_one(sql.SQL("SELECT dpml.drop_model(%(name)s)"), {"name": name})
    _require_ours(model, int(dropped))


def grant_model(session: Session, name: str, role: str) -> Model:
    """Let the members of a role read and apply a model; "public": every role.

    Raises
    ------
    SpecError
        If there is no such model or role, or the model belongs to another role.
    """
    if role.lower() == _EVERYBODY:
        role = _EVERYBODY
    else:
        require_role(session, role, "role")
    return _change_grants(session, name, role, _GRANT)


def may_apply_models(session: Session, role: str) -> bool:
    """Whether a role has the right to apply models at all, as dpml_analyst has; "public" means these."""
    if role.lower() == _EVERYBODY:
        return True
    query = sql.SQL("SELECT pg_catalog.has_table_privilege(%(role)s::name, 'dpml.models', 'SELECT')")
    return bool(session.fetch_one(query, {"role": role})[0])


def revoke_model(session: Session, name: str, role: str) -> Model:
    """Take a grant of a model back.

    Raises
    ------
    SpecError
        If there is no such model or grant, or the model belongs to another role.
    """
    role = _EVERYBODY if role.lower() == _EVERYBODY else role
    model = load_model(session, name)
    if role not in model.granted_to:
        granted = ", ".join(model.granted_to) or "nobody"
        raise SpecError(f"role: model {name} was not granted to {role}, but to {granted}")
    return _change_grants(session, name, role, _REVOKE)


_EVERYBODY = "public"
"""No role can be called so."""

_REVOKE = sql.SQL("pg_catalog.array_remove(granted_to, %(role)s::name)")
_GRANT = sql.SQL("pg_catalog.array_append({}, %(role)s::name)").format(_REVOKE)


def _change_grants(session: Session, name: str, role: str, granted_to: sql.Composable) -> Model:
    model = load_model(session, name)
    changed = session.execute(
        sql.SQL("UPDATE dpml.models SET granted_to = {} WHERE name = %(name)s").format(granted_to),
        {"name": name, "role": role},
    )
    _require_ours(model, changed)
    return load_model(session, name)


def _require_ours(model: Model, changed: int) -> None:
    """Row-level security lets statements about other roles' models touch no row."""
    if changed == 0:
        raise SpecError(
            f"model {model.name} belongs to {model.owner}, and only a member of that role or of dpml_curator "
            "may grant or drop it"
        )


def require_role(session: Session, role: str, argument: str) -> None:
    """Refuse a role that does not exist, in the name of the argument that it was given as."""
    (found,) = session.fetch_one(
        sql.SQL("SELECT pg_catalog.to_regrole(pg_catalog.quote_ident(%(role)s)) IS NOT NULL"), {"role": role}
    )
    if not found:
        raise SpecError(f"{argument}: there is no role called {role}; its name is case-sensitive")


def charges_of(session: Session, dataset: str) -> list[Charge] | None:
    """What was spent on a table, in order; None if the role may not read the ledger."""
    allowed = sa.func.has_table_privilege("dpml.ledger", "SELECT")
    if not session.connection.execute(sa.select(allowed)).scalar_one():
        return None
    shown = [ledger.c[name] for name in Charge.__dataclass_fields__]
    query = sa.select(*shown).where(ledger.c.dataset == dataset).order_by(ledger.c.id)
    return [Charge(**row._mapping) for row in session.connection.execute(query)]
