# SPDX-License-Identifier: PostgreSQL
"""Are the workers of Citus fit for use: their extension, a role's rights there, their copies of models?"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pg_dpml.database.adapters import verbatim
from pg_dpml.database.session import Session, sql
from pg_dpml.database.versions import installed_version
from pg_dpml.ledger import nodes
from pg_dpml.names import shown
from pg_dpml.server.maintenance import BUILD, CURATOR_RIGHTS, Check

__all__ = ["examine_workers"]


def examine_workers(session: Session) -> list[Check]:
    """Each worker of Citus: versions, the rights of this role, copies of models, and what runs left there."""
    version = installed_version(session)
    if version is None:
        return []
    rights = ", ".join(f"({test})" for test in CURATOR_RIGHTS.values())
    command = (
        "SELECT pg_catalog.json_build_array((SELECT extversion FROM pg_catalog.pg_extension "
        "WHERE extname OPERATOR(pg_catalog.=) 'pg_dpml'), dpml.module_version(), "
        "(SELECT pg_catalog.count(*) FROM pg_catalog.pg_class AS c "
        "WHERE c.relkind OPERATOR(pg_catalog.=) 'r' "
        "AND c.relnamespace OPERATOR(pg_catalog.=) 'dpml_work'::pg_catalog.regnamespace), "
        f"pg_catalog.array_to_json(ARRAY[{rights}]))"
    )
    answers = nodes.on_workers(session, sql.Literal(command))
    if not answers:
        return []
    lacking = dict(nodes.lacking_models(session))
    _, _, _, held = _here(session, command)
    return [_worker(worker, version, held, lacking.get(worker.name, ())) for worker in answers]


def _here(session: Session, command: str) -> list[Any]:
    """What the server that was asked answers itself."""
    (answer,) = session.fetch_one(verbatim(command))
    return list(answer)


def _worker(worker: nodes.Worker, version: str, held: Sequence[bool], lacking: Sequence[str]) -> Check:
    name = f"worker {worker.name}"
    if not worker.success:
        fix = f"let the coordinator reach it as this role, with the files of pg_dpml {version}"
        return Check(name, False, f"does not answer: {worker.answer}", fix)
    installed, module, left, own = json.loads(worker.answer)
    if (installed, module) != (version, version):
        found = f"extension {installed}, module {module}; the coordinator has {version}"
        return Check(name, False, found, f"there, {BUILD} of version {version}")
    missing = [
        right for right, here, there in zip(CURATOR_RIGHTS, held, own, strict=True) if here and not there
    ]
    if missing:
        fix = (
            "; ".join(f"GRANT {right}" for right in missing) + " there to dpml_curator, and that to this role"
        )
        return Check(name, False, f"this role lacks rights there: {', '.join(missing)}", fix)
    if lacking:
        names = ", ".join(map(shown, lacking))
        found = f"no copy of {names}, or an old one: predictions over distributed tables need it"
        return Check(name, False, found, f"dpml share {shown(lacking[0])}, and so each of them")
    note = "tables of dpml_work that no live run has there: drop them as a superuser" if left else ""
    return Check(name, not left, f"version {installed}, the same rights, all models", note, note)
