# SPDX-License-Identifier: PostgreSQL
"""Commands about stored models and the database they are in."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

import pg_dpml
from pg_dpml.cli.framework import ModelName, Output, command, require_folder, say, warn, write_file
from pg_dpml.cli.progress import pause
from pg_dpml.database.catalog import look_up_table
from pg_dpml.database.columns import ColumnType
from pg_dpml.database.database import Database
from pg_dpml.database.session import Session, sql
from pg_dpml.database.versions import versions as read_versions
from pg_dpml.ledger import models as registry
from pg_dpml.ledger import nodes
from pg_dpml.names import shown, visible
from pg_dpml.reports import effects, model_report, plots, words
from pg_dpml.reports import sql_expression as exporting
from pg_dpml.reports.html import model_html
from pg_dpml.server import maintenance
from pg_dpml.server.workers import examine_workers


@command
def models(output: Output) -> None:
    """List the stored models and what each spent."""
    with output.session() as session:
        found = registry.list_models(session)
        may_train = registry.is_curator(session)
    text = model_report.models_text(found, may_train=may_train)
    output.print(text, model_report.models_record(found))


@command
def show(model: ModelName, output: Output) -> None:
    """Show a stored model: guarantee, origin, curves, coefficients."""
    with output.session() as session:
        found = registry.load_model(session, model)
    output.print(model_report.model_text(found), model_report.model_record(found))


@command
def drop(
    model: ModelName,
    output: Output,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete a stored model. What it spent stays in the ledger."""
    with output.session() as session:
        found = registry.load_model(session, model)
        if not yes:
            if sys.stdin is None or not sys.stdin.isatty():
                raise pg_dpml.SpecError("drop asks on a terminal only: say --yes to delete without asking")
            pause()
            typer.confirm(f"Delete model {shown(model)}?", abort=True, err=True)
        registry.drop_model(session, model)
    text = f"Model {shown(model)} is deleted."
    if found.charge is not None:
        text += f" Entry {found.charge} of dpml.ledger, which is what it spent, stays."
    output.print(text, {"deleted": model, "charge": found.charge})


RoleName = Annotated[str, typer.Argument(metavar="ROLE", help="A role of the server; public: every role.")]


@command
def grant(model: ModelName, role: RoleName, output: Output) -> None:
    """Let a role see and apply a stored model."""
    with output.session() as session:
        found = registry.grant_model(session, model, role)
        powerless = registry.without_right_to_apply(session, role)
    warning = None
    if powerless is not None:
        warning = (
            f"{shown(powerless)} cannot apply the model yet: a superuser does GRANT dpml_analyst TO "
            f"{sql.Identifier(powerless).as_string()}, or to members of it"
        )
    _print_grants(found, output, warning)


@command
def revoke(model: ModelName, role: RoleName, output: Output) -> None:
    """Take back what dpml grant gave."""
    with output.session() as session:
        found = registry.revoke_model(session, model, role)
    _print_grants(found, output)


@command
def share(model: ModelName, output: Output) -> None:
    """Copy a model to the workers of Citus again, also to new ones."""
    with output.session() as session:
        found = registry.load_model(session, model)
        if not nodes.workers(session):
            raise pg_dpml.SpecError("this database has no workers of Citus: its models need no copies")
        failed = nodes.copy_model(session, found.name)
    if failed:
        answers = "; ".join(f"{worker.name}: {worker.answer}" for worker in failed)
        raise pg_dpml.DpmlError(f"model {shown(model)} was not copied to every worker: {answers}")
    output.print(f"Model {shown(model)} is on every worker.", {"shared": found.name})


def _print_grants(model: registry.Model, output: Output, warning: str | None = None) -> None:
    record = {"model": model.name, "owner": model.owner, "granted_to": list(model.granted_to)}
    text = model_report.grants_text(model)
    if warning is not None:
        text += f"\nWarning: {warning}"
        record["warning"] = warning
    output.print(text, record)


@command
def export(
    model: ModelName,
    connection: Output,
    format: Annotated[
        str, typer.Option(metavar="json|sql", help="All of the model, or an expression over raw columns.")
    ] = "json",
    what: Annotated[
        str, typer.Option(metavar=" | ".join(exporting.EXPRESSIONS), help="Result of the expression.")
    ] = "value",
    table: Annotated[
        str | None,
        typer.Option(help="Table to apply the expression to. Default: the training table."),
    ] = None,
) -> None:
    """Print a stored model for use elsewhere. As JSON, or as one SQL expression over raw columns."""
    if format not in ("json", "sql"):
        raise pg_dpml.SpecError(f"--format must be json or sql, not {format}")
    with connection.session() as session:
        found = registry.load_model(session, model)
        types = _column_types(session, found, table) if format == "sql" else {}
    if format == "json":
        say(json.dumps(model_report.model_record(found), indent=2))
        return
    expression = exporting.sql_expression(found, types, what)
    heading = [f"{what} of model {shown(model)} for a row t: SELECT (the expression below) FROM TABLE AS t"]
    if not found.private:
        heading.append(words.NOT_PRIVATE)
    comments = "".join(f"-- {' '.join(line.split())}\n" for line in heading)
    say(comments + expression)


def _column_types(session: Session, model: registry.Model, table: str | None) -> dict[str, ColumnType]:
    """Types of a table's columns; none if the training table is gone and no other is named."""
    if table is not None:
        return dict(look_up_table(session, table).columns)
    try:
        return dict(look_up_table(session, str(model.training.get("table_name"))).columns)
    except pg_dpml.SpecError:
        warn(
            "the training table is gone: name one like it with --table, or all categories are compared as "
            "text"
        )
        return {}


@command
def report(
    model: ModelName,
    file: Annotated[Path, typer.Option("--output", "-o", help="The HTML file to write.")],
    connection: Output,
    table: Annotated[str | None, typer.Option(help="Public rows to measure the model on.")] = None,
    public: Annotated[bool, typer.Option("--public", help="The rows of that table are public.")] = False,
) -> None:
    """Write a stored model's report, an HTML file. It has guarantee, coefficients and accuracy."""
    require_folder(file)
    if public and table is None:
        raise pg_dpml.SpecError("--public goes with --table")
    if table is not None and not public:
        raise pg_dpml.GuaranteeError(
            "a report is made to be shown, so its figures come from public rows: say --public if the rows of "
            f"{visible(table)} are public, or leave --table out"
        )
    evaluation = None
    if table is not None:
        evaluation = pg_dpml.evaluate(connection.dsn, model, table, public=True, insecure=connection.insecure)
    with connection.session() as session:
        found = registry.load_model(session, model)
        charges = registry.charges_of(session, str(found.training.get("table_name")))
        versions = read_versions(session)
    document = model_html(found, charges=charges, evaluation=evaluation, versions=versions)
    write_file(file, document.encode())
    say(f"Report of model {shown(model)} in {visible(str(file))}")


@command
def plot(
    model: ModelName,
    file: Annotated[Path, typer.Option("--output", "-o", help="The picture: .png, .svg or .pdf.")],
    connection: Output,
) -> None:
    """Draw what each column adds to a stored model's score. A curve, bars of levels, or a map."""
    if file.suffix not in (f".{format}" for format in plots.FORMATS):
        raise pg_dpml.SpecError(f"--output must end in .png, .svg or .pdf, not {file.name}")
    require_folder(file)
    with connection.session() as session:
        found = registry.load_model(session, model)
    drawn = effects.drawn_effects(found)
    if not drawn:
        raise pg_dpml.SpecError(
            f"model {shown(model)} has nothing to draw: arrays, and columns of more than "
            f"{effects.MOST_LEVELS} levels, have no picture; dpml show lists coefficients"
        )
    stamp = None if found.private else words.NOT_PRIVATE
    write_file(file, plots.effects_plot(drawn, effects.output_names(found), stamp, file.suffix[1:]))
    say(f"Picture of model {shown(model)} in {visible(str(file))}")


@command
def doctor(
    output: Output,
    table: Annotated[str | None, typer.Option(help="A table to train on: may this role read it?")] = None,
) -> None:
    """Examine server, extension, rights and connection. The exit code is 1 if something is wrong."""
    # Nothing secret crosses the network here, so that a missing TLS can be reported.
    with Database(output.dsn, insecure=True).session() as session:
        checks = maintenance.examine(session, table) + examine_workers(session)
    width = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        lines.append(f"{'ok   ' if check.ok else 'WRONG'} {check.name:<{width}}  {check.found}")
        for word, text in (("fix", "" if check.ok else check.fix), ("note", check.note)):
            if text:
                lines.append(f"      {'':<{width}}  {word}: {text}")
    wrong = any(not check.ok for check in checks)
    output.print("\n".join(lines), {"ok": not wrong, "checks": [asdict(check) for check in checks]})
    if wrong:
        raise typer.Exit(1)


@command
def cleanup(
    output: Output,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be dropped.")] = False,
) -> None:
    """Drop work tables that no live run uses."""
    with output.session() as session:
        tables = maintenance.work_tables(session)
        orphans = [table for table in tables if not table.in_use]
        dropped = [] if dry_run else list(maintenance.drop_work_tables(session, orphans))
    lines = []
    for table in tables:
        state = "dropped" if table in dropped else "would be dropped"
        if table.in_use:
            state = "kept, a live transaction uses it"
        elif not table.ours:
            state = (
                f"kept, it belongs to {shown(table.owner)}: run dpml cleanup as that role or as a superuser"
            )
        lines.append(f"dpml_work.{shown(table.name)}, {table.bytes / 2**20:.1f} MB: {state}")
    record = {"dry_run": dry_run, "dropped": [t.name for t in dropped], "tables": [asdict(t) for t in tables]}
    output.print("\n".join(lines) or "No work tables are left.", record)
