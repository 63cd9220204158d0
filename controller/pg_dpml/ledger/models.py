# SPDX-License-Identifier: PostgreSQL
"""Stored models and the ledger of what was spent: tables dpml.models and dpml.ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt

from pg_dpml.database.adapters import array_parameter, json_parameter
from pg_dpml.database.session import Session, sql
from pg_dpml.errors import SpecError
from pg_dpml.ledger import nodes
from pg_dpml.names import did_you_mean, reads_as, shown
from pg_dpml.spec.checks import require_text

__all__ = [
    "Charge",
    "Model",
    "charge",
    "charges_of",
    "drop_model",
    "find_model",
    "grant_model",
    "is_curator",
    "list_models",
    "load_model",
    "model_of",
    "require_new_name",
    "require_role",
    "revoke_model",
    "store_model",
    "without_right_to_apply",
]


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
        Argument of `dpml.encode`.
    privacy, training : mapping
        The guarantee, and how the model was trained; see `records`.
    charge : int or None
        Its row of dpml.ledger.
    whitening : ndarray of shape (n_features, n_features) or None
        P, symmetric: a score is <w, x> / ||P x||, and 0 where the norm is 0. None: <w, x>.
    created_at : datetime or None
        Start of the transaction that stored it; None before that.
    owner : str or None
        Role that owns it; None before it is stored: the role that stores it.
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
    """One entry of the ledger: the cost of a run or an evaluation."""

    id: int
    charged_at: datetime
    charged_by: str
    table_name: str
    model: str
    method: str
    epsilon: Decimal
    delta: Decimal
    relation: str
    n_units: int
    mechanism: Mapping[str, Any]


def require_new_name(session: Session, name: str) -> None:
    """Reject a model's name that is taken or malformed."""
    if not name or len(name) > 200:
        raise SpecError("name must have 1 to 200 characters")
    require_text(name, "name")
    if find_model(session, name) is not None:
        raise SpecError(
            f"a model called {shown(name)} exists: choose another name, or remove it with dpml drop; "
            "what it spent stays in the ledger"
        )


def charge(
    session: Session,
    *,
    table_name: str,
    model: str,
    method: str,
    epsilon: Decimal,
    delta: Decimal,
    relation: str,
    n_units: int,
    mechanism: Mapping[str, Any],
) -> int:
    """Write the cost of a run into the ledger; the caller commits before it reads a row.

    Returns
    -------
    int
        The ledger's id of the charge.
    """
    values = {
        "table_name": table_name,
        "model": model,
        "method": method,
        "epsilon": epsilon,
        "delta": delta,
        "relation": relation,
        "n_units": n_units,
        "mechanism": json_parameter(mechanism),
    }
    ((entry,),) = session.fetch(_insert("ledger", values) + sql.SQL(" RETURNING id"), values)
    session.must_last(
        f"epsilon = {float(epsilon):g}, delta = {float(delta):.3g} may be charged, unless dpml.ledger has no "
        f"entry {entry}; no row was read"
    )
    return int(entry)


def store_model(session: Session, model: Model) -> None:
    """Insert a released model, whose name must be new; without an owner, it is the current role's."""
    values = {
        "name": model.name,
        "method": model.method,
        "private": model.private,
        "task": model.task,
        "loss": model.loss,
        "classes": None if model.classes is None else list(model.classes),
        "weights": array_parameter(model.weights),
        "whitening": None if model.whitening is None else array_parameter(model.whitening.ravel()),
        "n_features": model.n_features,
        "encoder": json_parameter(model.encoder),
        "privacy": json_parameter(model.privacy),
        "training": json_parameter(model.training),
        "charge": model.charge,
    }
    if model.owner is not None:
        values["owner"] = model.owner
    session.execute(_insert("models", values), values)
    nodes.keep_copies(session, model.name, nodes.copy_model)
    session.must_last(f"model {shown(model.name)} may be stored, as dpml models shows")


def _insert(table: str, values: Mapping[str, Any]) -> sql.Composed:
    """Statement that adds a row to a table of the extension; its parameters are named like the columns."""
    return sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(
        sql.Identifier("dpml", table),
        sql.SQL(", ").join(map(sql.Identifier, values)),
        sql.SQL(", ").join(map(sql.Placeholder, values)),
    )


_COLUMNS = tuple(column.name for column in fields(Model))


def _models(
    session: Session, of: sql.SQL, parameters: Mapping[str, Any], columns: Sequence[str]
) -> list[Model]:
    query = sql.SQL("SELECT {} FROM dpml.models ").format(sql.SQL(", ").join(map(sql.Identifier, columns)))
    rows = session.fetch(query + of, parameters)
    return [_model(dict(zip(columns, row, strict=True))) for row in rows]


def _model(row: dict[str, Any]) -> Model:
    whitening = row.get("whitening")
    row["weights"] = np.asarray(row["weights"], dtype=np.float64)
    row["classes"] = None if row["classes"] is None else tuple(row["classes"])
    row["granted_to"] = tuple(row["granted_to"])
    if whitening is not None:
        row["whitening"] = np.reshape(whitening, (row["n_features"], row["n_features"]))
    return Model(**row)


def list_models(session: Session) -> list[Model]:
    """All models that the role may see, by name, without their whitening, which may be megabytes each."""
    shown = [column for column in _COLUMNS if column != "whitening"]
    return _models(session, sql.SQL("ORDER BY name"), {}, shown)


def find_model(session: Session, name: str) -> Model | None:
    """The stored model of a name, or None if there is none that the role may see."""
    found = _models(session, sql.SQL("WHERE name = %(name)s"), {"name": name}, _COLUMNS)
    return found[0] if found else None


def model_of(session: Session, charge: int) -> Model | None:
    """The stored model that a charge paid for, or None."""
    found = _models(session, sql.SQL("WHERE charge = %(charge)s"), {"charge": charge}, _COLUMNS)
    return found[0] if found else None


def load_model(session: Session, name: str) -> Model:
    """The stored model of a name.

    Raises
    ------
    SpecError
        If there is no such model that the role may see.
    """
    model = find_model(session, name)
    if model is None:
        known = [other for (other,) in session.fetch(sql.SQL("SELECT name FROM dpml.models ORDER BY name"))]
        offer = did_you_mean(name, known)
        raise SpecError(
            f"there is no model called {shown(name)}, or it was not granted to you{offer or ':'} dpml models "
            "lists those that you may use"
        )
    return model


def drop_model(session: Session, name: str) -> None:
    """Delete a model; what it spent stays in the ledger.

    Raises
    ------
    SpecError
        If there is no such model, or it belongs to another role.
    """
    model = load_model(session, name)
    (dropped,) = session.fetch_one(sql.SQL("SELECT dpml.drop_model(%(name)s)"), {"name": name})
    _require_ours(model, int(dropped))
    nodes.keep_copies(session, name, nodes.copy_drop)


def grant_model(session: Session, name: str, role: str) -> Model:
    """Let the members of a role read and apply a model; "public": every role.

    Raises
    ------
    SpecError
        If there is no such model or role, or the model belongs to another role.
    """
    role = _EVERYBODY if role.lower() == _EVERYBODY else require_role(session, role, "role")
    return _change_grants(session, name, role, _GRANT)


def without_right_to_apply(session: Session, role: str) -> str | None:
    """The exact name of a role that may not apply models; None if it may, or is "public"."""
    if role.lower() == _EVERYBODY:
        return None
    role = require_role(session, role, "role")
    query = sql.SQL("SELECT pg_catalog.has_table_privilege(%(role)s::name, 'dpml.models', 'SELECT')")
    return None if session.fetch_one(query, {"role": role})[0] else role


def revoke_model(session: Session, name: str, role: str) -> Model:
    """Revoke a grant of a model.

    Raises
    ------
    SpecError
        If there is no such model or grant, or the model belongs to another role.
    """
    role = _EVERYBODY if role.lower() == _EVERYBODY else role
    model = load_model(session, name)
    found = reads_as(role, model.granted_to)
    if found is None:
        granted = ", ".join(map(shown, model.granted_to)) or "nobody"
        raise SpecError(f"role: model {shown(name)} was not granted to {shown(role)}, but to {granted}")
    return _change_grants(session, name, found, _REVOKE)


_EVERYBODY = "public"
"""PostgreSQL reserves this name: no role can have it."""

_REVOKE = sql.SQL("pg_catalog.array_remove(granted_to, %(role)s::name)")
_GRANT = sql.SQL("pg_catalog.array_append({}, %(role)s::name)").format(_REVOKE)


def _change_grants(session: Session, name: str, role: str, granted_to: sql.Composable) -> Model:
    model = load_model(session, name)
    changed = session.execute(
        sql.SQL("UPDATE dpml.models SET granted_to = {} WHERE name = %(name)s").format(granted_to),
        {"name": name, "role": role},
    )
    _require_ours(model, changed)
    nodes.keep_copies(session, name, nodes.copy_grants)
    return load_model(session, name)


def _require_ours(model: Model, changed: int) -> None:
    """Raise an error if row-level security let a statement change no model."""
    if changed == 0:
        raise SpecError(
            f"model {shown(model.name)} belongs to {shown(model.owner or '')}, and only a member of that "
            "role or of dpml_curator may grant or drop it: ask there"
        )


def require_role(session: Session, role: str, argument: str) -> str:
    """The exact name of a role that is written exactly so, or as in SQL.

    Raises
    ------
    SpecError
        If there is no such role; the message begins with the name of the argument.
    """
    known = [name for (name,) in session.fetch(sql.SQL("SELECT rolname FROM pg_catalog.pg_roles"))]
    found = reads_as(role, known)
    if found is None:
        offer = did_you_mean(role, [name for name in known if not name.startswith("pg_")])
        raise SpecError(f"{argument}: there is no role called {shown(role)}{offer}")
    return found


def is_curator(session: Session) -> bool:
    """Whether the role has a curator's right to read the ledger."""
    (allowed,) = session.fetch_one(sql.SQL("SELECT pg_catalog.has_table_privilege('dpml.ledger', 'SELECT')"))
    return bool(allowed)


def charges_of(session: Session, table_name: str) -> list[Charge] | None:
    """The charges of a table, in order; None if the role may not read the ledger."""
    if not is_curator(session):
        return None
    columns = [column.name for column in fields(Charge)]
    query = sql.SQL("SELECT {} FROM dpml.ledger WHERE table_name = %(table_name)s ORDER BY id").format(
        sql.SQL(", ").join(map(sql.Identifier, columns))
    )
    return [Charge(*row) for row in session.fetch(query, {"table_name": table_name})]
