# SPDX-License-Identifier: PostgreSQL
"""Copies of stored models on the workers of Citus, where predictions over a distributed table run.

A copy has no charge: ledger and budgets are on the coordinator alone. What a
worker is asked to do stays done, whatever becomes of the transaction of the session.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pg_dpml.database.session import Session, sql
from pg_dpml.errors import DpmlError
from pg_dpml.names import shown

__all__ = [
    "Lacking",
    "Worker",
    "copy_drop",
    "copy_grants",
    "copy_model",
    "keep_copies",
    "lacking_models",
    "on_workers",
    "workers",
]

_log = logging.getLogger("pg_dpml")


class Worker(NamedTuple):
    """What a worker answered."""

    name: str
    """Its host and port."""
    success: bool
    answer: str
    """Of an error, PostgreSQL's text."""


class Lacking(NamedTuple):
    """Models of which a worker has no copy, or one that differs."""

    worker: str
    models: tuple[str, ...]


_ASK = sql.SQL(
    "SELECT pg_catalog.format('%%s:%%s', w.nodename, w.nodeport), w.success, coalesce(w.result, '') "
    "FROM {source}, LATERAL pg_catalog.run_command_on_workers({command}) AS w ORDER BY 1"
)


def on_workers(
    session: Session,
    command: sql.Composable,
    parameters: Mapping[str, Any] | None = None,
    source: sql.Composable = sql.SQL("(VALUES (1)) AS one"),  # noqa: B008
) -> list[Worker]:
    """Run the statement that an expression gives on every worker; no worker without Citus.

    Parameters
    ----------
    session : Session
    command : sql.Composable
        An expression of type text; a worker may log its value, and runs it in the search_path that the role
        has there: operators must be qualified too.
    parameters : mapping or None
    source : sql.Composable
        Item of a FROM clause, of one row, whose columns the expression uses.
    """
    if not session.has_citus():
        return []
    return [Worker(*row) for row in session.fetch(_ASK.format(source=source, command=command), parameters)]


def workers(session: Session) -> list[Worker]:
    """The workers, each with the answer 1 if it can be reached."""
    return on_workers(session, sql.SQL("'SELECT 1'"))


_FIELDS = (
    *("owner", "method", "private", "task", "loss", "classes", "weights", "whitening", "n_features"),
    *("encoder", "privacy", "training"),
)
_THIS_MODEL = sql.SQL("(SELECT * FROM dpml.models WHERE name = %(model)s) AS m")


def keep_copies(session: Session, model: str, change: Callable[[Session, str], list[Worker]]) -> None:
    """Change the copies of a model as the model was changed. A failure is logged, and undoes nothing."""
    failed = session.attempt(lambda: change(session, model))
    if isinstance(failed, DpmlError):
        failed = [Worker("all", False, str(failed))]
    for worker in failed:
        _log.warning(
            "dpml: the copy of model %s on worker %s was not brought up to date: dpml share %s",
            *(shown(model), worker.name, shown(model)),
        )


def copy_model(session: Session, model: str) -> list[Worker]:
    """Put a copy of a stored model on every worker, in place of one that is there; returns the failures."""
    fields = sql.SQL(", ").join(map(sql.Identifier, _FIELDS))
    values = sql.SQL(", ").join([sql.SQL("%%L")] * len(_FIELDS))
    template = sql.SQL(
        "WITH gone AS MATERIALIZED (SELECT dpml.drop_model(%%L)) "
        "INSERT INTO dpml.models (name, {fields}) SELECT %%L, {values} FROM gone"
    ).format(fields=fields, values=values)
    command = sql.SQL("pg_catalog.format({template}, m.name, m.name, {columns})").format(
        template=sql.Literal(session.text(template)),
        columns=sql.SQL(", ").join(sql.Identifier("m", name) for name in _FIELDS),
    )
    failed = _failures(on_workers(session, command, {"model": model}, _THIS_MODEL))
    return failed or copy_grants(session, model)


def copy_grants(session: Session, model: str) -> list[Worker]:
    """Grant the copies of a model to the roles that the model is granted to; returns the failures."""
    command = sql.SQL(
        "pg_catalog.format('UPDATE dpml.models SET granted_to = %%L "
        "WHERE name OPERATOR(pg_catalog.=) %%L', m.granted_to, m.name)"
    )
    return _failures(on_workers(session, command, {"model": model}, _THIS_MODEL))


def copy_drop(session: Session, model: str) -> list[Worker]:
    """Delete the copies of a model; returns the failures."""
    command = sql.SQL("pg_catalog.format('SELECT dpml.drop_model(%%L)', %(model)s::pg_catalog.text)")
    return _failures(on_workers(session, command, {"model": model}))


def _digested(column: str) -> sql.Composed:
    # An array of numbers as it is stored: its text depends on a setting.
    numbers = column in ("weights", "whitening")
    field = sql.SQL("pg_catalog.md5(pg_catalog.array_send({}))") if numbers else sql.SQL("{}")
    return field.format(sql.Identifier("m", column))


_DIGESTS = sql.SQL(
    "SELECT coalesce(pg_catalog.json_object_agg(m.name, "
    "pg_catalog.md5(pg_catalog.concat_ws(' ', {fields}))), '{{}}') FROM dpml.models AS m"
).format(fields=sql.SQL(", ").join(map(_digested, (*_FIELDS, "granted_to"))))


def lacking_models(session: Session) -> list[Lacking]:
    """The models that the role sees, and workers on which it sees no such copy of them."""
    ((own,),) = session.fetch(_DIGESTS)
    answers = on_workers(session, sql.Literal(session.text(_DIGESTS)))
    found = [(worker.name, json.loads(worker.answer) if worker.success else {}) for worker in answers]
    lacking = [
        (name, [model for model, digest in own.items() if copies.get(model) != digest])
        for name, copies in found
    ]
    return [Lacking(name, tuple(sorted(models))) for name, models in lacking if models]


def _failures(workers: list[Worker]) -> list[Worker]:
    return [worker for worker in workers if not worker.success]
