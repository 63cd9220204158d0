# SPDX-License-Identifier: PostgreSQL
"""Commands about the budgets of data sets."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Annotated, Any

import typer

import pg_dpml
from pg_dpml.cli.framework import Output, app, command, decimal, optional_decimal
from pg_dpml.cli.progress import pause
from pg_dpml.database.session import Session
from pg_dpml.ledger import budgets, claims, opening, runs_left, terms
from pg_dpml.names import shown, visible
from pg_dpml.privacy.cost import RULES, Cost

group = typer.Typer(help="Limit what all runs on a data set together may spend.", no_args_is_help=True)
app.add_typer(group, name="budget")

DataSet = Annotated[str, typer.Argument(metavar="DATASET", help="Name of the data set.")]


@partial(command, to=group, name="open")
def open_(
    dataset: DataSet,
    output: Output,
    epsilon: Annotated[str, typer.Option(help="Epsilon of all runs together, in (0, 1000].")],
    delta: Annotated[str, typer.Option(help="Delta of all runs together, in [0, 1).")],
    rule: Annotated[str, typer.Option(help=" | ".join(RULES) + ": how runs add up.")] = "gdp",
    table: Annotated[
        list[str] | None, typer.Option(help="Charge runs on this table here; may be given more than once.")
    ] = None,
    unit: Annotated[str | None, typer.Option(help="Column that is the unit of privacy.")] = None,
    relation: Annotated[
        pg_dpml.Relation, typer.Option(help="Which tables count as neighbours.")
    ] = pg_dpml.Relation.REPLACE_ONE,
    min_epsilon: Annotated[
        str | None,
        typer.Option(help="What one run must cost at least. Default: a thousandth of the budget."),
    ] = None,
    min_delta: Annotated[str, typer.Option(help="Least delta of one run.")] = "0",
    max_delta: Annotated[
        str | None, typer.Option(help="Largest delta of one run. Default: that of the budget.")
    ] = None,
    allow_second_budget: Annotated[
        bool,
        typer.Option("--allow-second-budget", help="Let a table be in another budget, too. Superusers only."),
    ] = False,
) -> None:
    """Open the budget of a data set. What was charged to it fixes its size and terms."""
    with output.session() as session:
        opened = opening.open_budget(
            session,
            dataset,
            epsilon=decimal(epsilon, "--epsilon"),
            delta=decimal(delta, "--delta"),
            rule=rule,
            relation=relation,
            unit=unit,
            tables=tuple(table or ()),
            min_epsilon=optional_decimal(min_epsilon, "--min-epsilon"),
            min_delta=decimal(min_delta, "--min-delta"),
            max_delta=optional_decimal(max_delta, "--max-delta"),
            shared=allow_second_budget,
        )
        state = _State.of(session, opened)
        people = claims.likely_units(session, opened)
    if people:
        typer.echo(f"dpml: warning: {_unit_advice(dataset, people)}", err=True)
    output.print(state.text, state.record | {"likely_units": people})


def _unit_advice(dataset: str, people: list[str]) -> str:
    columns = " and ".join(f"column {shown(name)}" for name in people)
    return (
        f"{columns} may say whose a row is, and this budget protects single rows: if a person can have "
        f"several, open it again with --unit {shlex.quote(people[0])}, which goes while nothing is charged "
        f"to {shown(dataset)}; every spec needs the same unit"
    )


@partial(command, to=group)
def show(dataset: DataSet, output: Output) -> None:
    """Show a budget and what is left of it."""
    with output.session() as session:
        state = _State.of(session, budgets.load_budget(session, dataset))
    output.print(state.text, state.record)


@partial(command, to=group)
def history(dataset: DataSet, output: Output) -> None:
    """List what was taken out of a budget."""
    with output.session() as session:
        found = budgets.load_budget(session, dataset)
        entries = budgets.history(session, dataset)
        state = _State.of(session, found)
    lines = [state.text, ""]
    for entry in entries:
        what = "closed"
        if entry.terms is not None:
            what = f"opened again; until then {_terms_text(entry.terms)}"
        if entry.charge is not None:
            cost = found.amount(Cost(entry.loss, entry.delta))
            what = f"{cost}, entry {entry.charge} of dpml.ledger, charge key {visible(entry.charge_key)}"
        lines.append(f"{entry.turn}  {entry.entered_at:%Y-%m-%d %H:%M %Z}  {shown(entry.entered_by)}  {what}")
    if not entries:
        lines.append("Nothing was charged.")
    record = state.record | {"entries": [_plain(asdict(entry)) for entry in entries]}
    output.print("\n".join(lines), record)


def _terms_text(terms: Mapping[str, Any]) -> str:
    """A former row of dpml.budgets, in words."""
    return (
        f"epsilon = {terms['epsilon']:g}, delta = {terms['delta']:g} by rule {terms['rule']} for "
        f"{terms['relation']}, unit {terms['unit'] or 'a row'}, "
        f"tables {', '.join(terms['tables']) or 'none'}, opened by {terms['opened_by']}"
    )


@partial(command, to=group)
def close(
    dataset: DataSet,
    output: Output,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Close a budget: nothing more is charged to it. On a terminal it asks first."""
    with output.session() as session:
        if not yes and sys.stdin is not None and sys.stdin.isatty():
            pause()
            question = f"Close budget {shown(dataset)} for good, so that its tables cannot be trained on?"
            typer.confirm(question, abort=True, err=True)
        state = _State.of(session, budgets.close_budget(session, dataset))
    output.print(state.text, state.record)


@dataclass(frozen=True)
class _State:
    """What every command shows of a budget."""

    budget: terms.Budget
    left: terms.Left
    missing: list[str]
    runs: list[runs_left.Runs]

    @classmethod
    def of(cls, session: Session, budget: terms.Budget) -> _State:
        left = budgets.left_of(session, budget)
        runs = runs_left.runs_left(session, budget, left)
        return cls(budget, left, claims.missing_tables(session, budget), runs)

    @property
    def text(self) -> str:
        budget, left = self.budget, self.left
        rows = [
            ("Data set", shown(budget.dataset)),
            ("Budget", budget.meaning),
            ("Protects", budget.relation.meaning(budget.unit)),
            ("One run", budget.terms.meaning),
            (
                "Tables",
                ", ".join(map(visible, budget.tables)) or "none; runs name the data set in their spec",
            ),
            ("Opened", f"{budget.opened_at:%Y-%m-%d %H:%M %Z} by {shown(budget.opened_by)}"),
            ("Entries", f"{left.entries}"),
            ("Left", "nothing: it is closed" if left.closed else budget.amount(left.cost)),
            *(("Models", run.text) for run in self.runs),
        ]
        if budget.shared:
            rows.append(
                ("Shared", f"a table may be in an earlier budget, too: allowed by {shown(budget.opened_by)}")
            )
        if self.missing:
            gone = ", ".join(map(visible, self.missing))
            rows.append(
                (
                    "Warning",
                    f"{gone}: gone; if it was renamed, its runs are still charged here, but in a restored "
                    "dump they must name the data set",
                )
            )
        return "\n".join(f"{head:<10}{text}" for head, text in rows)

    @property
    def record(self) -> dict[str, Any]:
        left = _plain(asdict(self.left.cost)) | {"worth_epsilon": self.budget.worth(self.left.cost.loss)}
        return _plain(asdict(self.budget)) | {
            "n_entries": self.left.entries,
            "closed": self.left.closed,
            "left": left,
            "missing_tables": self.missing,
            "runs_left": [_plain(asdict(run)) for run in self.runs],
        }


def _plain(record: dict[str, Any]) -> dict[str, Any]:
    """For JSON: decimals and times as text, which is exact."""
    return {key: _plain_value(value) for key, value in record.items()}


def _plain_value(value: Any) -> Any:
    if isinstance(value, dict):
        return _plain(value)
    if isinstance(value, pg_dpml.Relation):
        return value.value
    return value if value is None or isinstance(value, int | str | tuple | list) else str(value)
