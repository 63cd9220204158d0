# SPDX-License-Identifier: PostgreSQL
"""Commands about data sets whose models others request: what is offered, what was asked, and the service."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Annotated, Any

import typer

from pg_dpml.cli.framework import Output, Spec, app, command, optional_decimal, warn
from pg_dpml.database.database import Database
from pg_dpml.database.session import sql
from pg_dpml.names import shown, visible
from pg_dpml.runs import datasets, requests
from pg_dpml.spec.files import read_text

group = typer.Typer(help="Offer models of a data set to a role that may not read it.", no_args_is_help=True)
app.add_typer(group, name="dataset")

asked = typer.Typer(
    help="See and withdraw requests of models. They are made in SQL by SELECT dpml.request(...), which "
    "SELECT dpml.help('requests') explains.",
    no_args_is_help=True,
)
app.add_typer(asked, name="request")

DataSet = Annotated[str, typer.Argument(metavar="DATASET", help="Name of the data set and its budget.")]


@partial(command, to=group)
def register(
    dataset: DataSet,
    spec: Spec,
    output: Output,
    role: Annotated[
        str | None,
        typer.Option(help="Role whose members may request models. Default: as before, or dpml_analyst."),
    ] = None,
    min_epsilon: Annotated[
        str | None,
        typer.Option(help="What a request must cost at least. Default: as before, or the budget's."),
    ] = None,
    max_epsilon: Annotated[
        str | None,
        typer.Option(help="Most that a request may ask for and cost. Default: as before, or the budget's."),
    ] = None,
    min_delta: Annotated[
        str | None, typer.Option(help="Least delta of one request. Default: as before, or the budget's.")
    ] = None,
    max_delta: Annotated[
        str | None, typer.Option(help="Largest delta of one request. Default: as before, or the budget's.")
    ] = None,
    max_passes: Annotated[
        int | None, typer.Option(help="Most passes of one request. Default: as before, or 1000.")
    ] = None,
    allow_certified: Annotated[
        bool | None,
        typer.Option(
            "--allow-certified/--no-allow-certified",
            help="Allow solver = certified, whose passes other roles can count. Default: as before, or no.",
        ),
    ] = None,
) -> None:
    """Offer a data set that has a budget, or change the offer. `dpml serve` of this role trains on it."""
    with output.session() as session:
        registered = datasets.register(
            session,
            dataset,
            read_text(spec),
            role=role,
            min_epsilon=optional_decimal(min_epsilon, "--min-epsilon"),
            max_epsilon=optional_decimal(max_epsilon, "--max-epsilon"),
            min_delta=optional_decimal(min_delta, "--min-delta"),
            max_delta=optional_decimal(max_delta, "--max-delta"),
            max_passes=max_passes,
            allow_certified=allow_certified,
        )
    output.print(_text(registered), _record(registered))


@partial(command, to=group)
def withdraw(dataset: DataSet, output: Output) -> None:
    """Accept no more requests, and refuse those that wait. A run under way is waited for."""
    with output.session() as session:
        withdrawn = datasets.withdraw(session, dataset)
    output.print(_text(withdrawn), _record(withdrawn))


@partial(command, to=group, name="list")
def list_(output: Output) -> None:
    """List the registered data sets. Those that this role registered, or may request models of."""
    with output.session() as session:
        found = datasets.list_datasets(session)
    text = "\n".join(map(_text, found)) or (
        "No data set is registered for this role or by it: owners of data do that, by dpml dataset register."
    )
    output.print(text, {"datasets": [_record(one) for one in found]})


@partial(command, to=asked, name="list")
def list_requests(output: Output) -> None:
    """List requests of models. Those that this role made, and of data sets that it registered."""
    with output.session() as session:
        found = requests.list_requests(session)
    text = "\n".join(map(_request_text, found)) or (
        "This role made no request, and there is none for a data set that it registered: SELECT "
        "dpml.request(...) makes one, as SELECT dpml.help('requests') explains."
    )
    output.print(text, {"requests": [_request_record(one) for one in found]})


@partial(command, to=asked, name="withdraw")
def withdraw_request(
    request: Annotated[
        int, typer.Argument(metavar="ID", min=1, max=2**63 - 1, help="Number of a request that is waiting.")
    ],
    output: Output,
) -> None:
    """Take back a request of this role that is waiting. Nothing is charged for it."""
    with output.session() as session:
        withdrawn = requests.withdraw_request(session, request)
    output.print(_request_text(withdrawn), _request_record(withdrawn))


@command
def serve(
    connection: Output,
    once: Annotated[bool, typer.Option("--once", help="End when no request is waiting.")] = False,
) -> None:
    """Train what others request, until Ctrl-C or SIGTERM. Serves the data sets that this role registered."""
    database = Database(connection.dsn, insecure=connection.insecure)
    with database.session() as session:
        (role,) = session.fetch_one(sql.SQL("SELECT current_user::text"))
        own = [one.name for one in datasets.list_datasets(session) if one.registered_by == role]
    warn(
        f"role {shown(role)} serves {', '.join(map(shown, own)) or 'nothing: it has registered no data set'}"
    )
    requests.serve(database, once=once, report=warn)


def _text(dataset: datasets.Dataset) -> str:
    certified = ", solver certified allowed" if dataset.allow_certified else ""
    whom = f"role {shown(dataset.role)}"
    if dataset.closed:
        whom = "nobody: its budget is closed"
    elif not dataset.offered:
        whom = "nobody: it was withdrawn"
    return (
        f"{shown(dataset.name)}: table {visible(dataset.table_name)}, offered to {whom}; "
        f"{dataset.terms.meaning} and up to {dataset.max_passes} passes a request{certified}; served by role "
        f"{shown(dataset.registered_by)}"
    )


def _record(dataset: datasets.Dataset) -> dict[str, Any]:
    return {
        "name": dataset.name,
        "table": dataset.table_name,
        "role": dataset.role,
        "offered": dataset.offered and not dataset.closed,
        "closed": dataset.closed,
        "min_epsilon": str(dataset.min_epsilon),
        "max_epsilon": str(dataset.max_epsilon),
        "min_delta": str(dataset.min_delta),
        "max_delta": str(dataset.max_delta),
        "max_passes": dataset.max_passes,
        "allow_certified": dataset.allow_certified,
        "registered_by": dataset.registered_by,
        "registered_at": str(dataset.registered_at),
        "spec": dataset.spec,
    }


def _request_text(request: requests.Request) -> str:
    reason = "" if request.message is None else f": {visible(request.message)}"
    epsilon = "" if request.epsilon is None else f" with epsilon = {visible(request.epsilon)}"
    method = "" if request.method is None else f" by {visible(request.method)}"
    return (
        f"{request.id}  {request.requested_at:%Y-%m-%d %H:%M %Z}  {request.state:<9}  model "
        f"{shown(request.model)} of {shown(request.dataset)}{epsilon}{method} for role "
        f"{shown(request.requested_by)}{reason}"
    )


def _request_record(request: requests.Request) -> dict[str, Any]:
    return asdict(request) | {"requested_at": str(request.requested_at)}
