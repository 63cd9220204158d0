# SPDX-License-Identifier: PostgreSQL
"""The command `dpml`; importing a module of this package registers its commands."""

from pg_dpml.cli import budget as budget
from pg_dpml.cli import models as models
from pg_dpml.cli import requests as requests
from pg_dpml.cli import tables as tables
from pg_dpml.cli import training as training
from pg_dpml.cli.framework import app, could_not_write, settle_streams

__all__ = ["app", "main"]


def main() -> None:
    """Entry point of the command."""
    settle_streams()
    try:
        app()
    except OSError as error:  # commands have caught theirs: it is the help that could not be written
        raise SystemExit(could_not_write(error)) from None
