# SPDX-License-Identifier: PostgreSQL
"""Commands that prepare a table for training."""

from __future__ import annotations

from typing import Annotated

import typer

import pg_dpml
from pg_dpml.cli.framework import Output, Spec, command
from pg_dpml.cli.progress import progress_bar
from pg_dpml.tables.advice import check_record, check_text
from pg_dpml.tables.checks import check_table
from pg_dpml.tables.inspection import inspect_table
from pg_dpml.tables.template import spec_template


@command
def inspect(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="Table, written as in SQL.")],
    output: Output,
    label: Annotated[str | None, typer.Option(help="Column to predict.")] = None,
) -> None:
    """Write a data spec to fill in. It comes from the catalog alone: no row is read."""
    described = inspect_table(output.dsn, table, insecure=output.insecure)
    text = spec_template(described, label)
    output.print(text.rstrip("\n"), {"table": described.name, "label": label, "spec": text})


@command
def check(spec: Spec, output: Output) -> None:
    """For the owner: count the values that a spec does not fit. Not private, and charged to nobody."""
    data = pg_dpml.DataSpec.from_toml(spec)
    with progress_bar() as progress:
        found = check_table(output.dsn, data, progress=progress, insecure=output.insecure)
    output.print(check_text(found), check_record(found))
