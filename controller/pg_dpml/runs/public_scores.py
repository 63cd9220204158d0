# SPDX-License-Identifier: PostgreSQL
"""Scores of candidates on a public table, which cost no privacy."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pg_dpml.blocks.portions import pack_portions
from pg_dpml.blocks.query import count_units, from_clause
from pg_dpml.blocks.source import Source, resolve
from pg_dpml.database.session import Session, sql
from pg_dpml.errors import SpecError
from pg_dpml.evaluation import scoring
from pg_dpml.evaluation.metrics import left_out_words
from pg_dpml.names import shown, visible
from pg_dpml.privacy.cost import Accounting
from pg_dpml.runs.candidates import plan_candidates
from pg_dpml.runs.grid import Grid
from pg_dpml.runs.train import run_method, start_run
from pg_dpml.spec.data import DataSpec
from pg_dpml.spec.privacy import PrivacySpec
from pg_dpml.tables.labels import LeftOut, count_left_out
from pg_dpml.training.job import Job, Progress, Result

__all__ = ["PublicScores", "score_on_public_rows"]

SCORED_SHARE = 3
"""One unit in this many of a public table is kept for scoring."""


@dataclass(frozen=True)
class PublicScores:
    """Errors of the candidates on a public table.

    Attributes
    ----------
    table : str
    n_trained, n_scored : int
        Number of units that they were trained and scored on.
    errors : tuple of float
        For each candidate, the number of rows predicted wrongly; for a regression, the sum of squared errors
        in units of half the label's range, each divided by 4.
    left_out : LeftOut
        Rows of the table without a declared label, which change no model and count as no error.
    """

    table: str
    n_trained: int
    n_scored: int
    errors: tuple[float, ...]
    left_out: LeftOut


def score_on_public_rows(
    session: Session,
    private: Source,
    data: DataSpec,
    privacy: PrivacySpec | None,
    grid: Grid,
    budget: Accounting | None,
    report: Progress,
) -> PublicScores:
    """Train all candidates, with their noise, on one part of a public table and score them on the other."""
    source = resolve(session, data)
    if privacy is not None and source.table.oid == private.table.oid:
        raise SpecError(
            f"public table {visible(data.table)} is the private training table itself: name a table of other "
            "rows, which are public, or leave the public table out to tune within the guarantee"
        )
    if source.feature_names != private.feature_names:
        raise SpecError(
            f"public table {visible(data.table)} gives other features than {shown(private.table.name)}"
        )
    n_units = count_units(session, source)
    n_scored = n_units // SCORED_SHARE
    if n_scored == 0:
        raise SpecError(
            f"public table {visible(data.table)} needs at least {SCORED_SHARE} rows, not {n_units}"
        )
    with session.owners_path():
        left_out = count_left_out(session, source)
        rows = session.fetch_one(sql.SQL("SELECT pg_catalog.count(*) ") + from_clause(source))[0]
    if left_out.n_rows == rows:
        because = " ".join(left_out_words(replace(left_out, empty_classes=())))
        raise SpecError(f"no row of public table {visible(data.table)} has a declared label: {because}")
    n_trained = n_units - n_scored
    plans = plan_candidates(source, (n_trained,) * len(grid.candidates), data, privacy, grid, budget)
    source = source.changed(plans[0].encoder_change)
    report("pack", 0, 1)
    start_run(session)
    trained, scored = pack_portions(
        session, source, (n_trained, n_scored), needs_order=any(plan.needs_order for plan in plans)
    )
    report("pack", 1, 1)
    results: list[Result] = []
    for plan in plans:
        with session.discarded():  # the rows stay as they are for the next candidate
            results.append(run_method(Job(replace(trained), plan, report)))
        report("candidate", len(results), len(plans))
    trained.drop()
    errors = scoring.errors(scored, plans[0].problem, results)
    scored.drop()
    table = f"{source.table.schema}.{source.table.name}"
    return PublicScores(table, n_trained, n_scored, tuple(errors), left_out)
