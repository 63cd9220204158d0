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
from pg_dpml.tables.loading import load_svmlight, loaded_record, loaded_text
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
def load(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="A svmlight file, plain or by gzip; - for standard input.")
    ],
    table: Annotated[str, typer.Argument(metavar="TABLE", help="Name of a new table, written as in SQL.")],
    output: Output,
    first_index: Annotated[
        int, typer.Option(metavar="0|1", help="Index of the first feature in the file.")
    ] = 1,
) -> None:
    """Make a table of a svmlight file: id, label, indices, values. A bad line is named, and nothing made."""
    with progress_bar() as progress:
        loaded = load_svmlight(
            output.dsn, file, table, first_index=first_index, progress=progress, insecure=output.insecure
        )
    output.print(loaded_text(loaded), loaded_record(loaded))


@command
def check(spec: Spec, output: Output) -> None:
    """For the owner: count the values that a spec does not fit. Not private, and charged to nobody."""
    data = pg_dpml.DataSpec.from_toml(spec)
    with progress_bar() as progress:
        found = check_table(output.dsn, data, progress=progress, insecure=output.insecure)
    output.print(check_text(found), check_record(found))
