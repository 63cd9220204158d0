# SPDX-License-Identifier: PostgreSQL
"""Commands that plan, train and apply a model, and the demo."""

from __future__ import annotations

import shlex
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

import pg_dpml
from pg_dpml.blocks.source import resolve
from pg_dpml.cli.framework import (
    ModelName,
    Output,
    OutputFormat,
    Spec,
    Table,
    command,
    note,
    require_folder,
    say,
    write_file,
)
from pg_dpml.cli.progress import progress_bar, resume
from pg_dpml.ledger import budgets, charging, runs_left
from pg_dpml.names import shown, visible
from pg_dpml.reports import comparison_report, evaluation_report, plan_report, plots, result_report
from pg_dpml.reports.html import comparison_html
from pg_dpml.reports.words import filled_lines
from pg_dpml.runs.compare import DEFAULT_EPSILONS, DEFAULT_SPLITS, default_methods
from pg_dpml.runs.planning import Alternative, alternatives, priced_at
from pg_dpml.server.demo import adult_server, run_demo
from pg_dpml.server.demo_data import ADULT_SPEC

_KEEP = """
The server runs until you press Ctrl-C, which {end}.
In another terminal, and then as README.md, "First model in five minutes", goes on:
  export PATH={folder}:$PATH:{programs}
  export {environment}
  dpml demo --spec > adult.toml
"""

_NEXT = """
Next: scripts/demo --epsilon 0.1     a stronger guarantee
      scripts/demo --keep            leave the server running, to try the other commands on it
      docs/install.md                your own server
"""


@command
def plan(
    spec: Spec, privacy: pg_dpml.PrivacySpec | None, training: pg_dpml.TrainSpec, output: Output
) -> None:
    """Show a run's guarantee, noise and passes. Reads only the number of rows; other methods are beside."""
    data = pg_dpml.DataSpec.from_toml(spec)
    decided = pg_dpml.plan(output.dsn, data, privacy, training, insecure=output.insecure)
    others: tuple[Alternative, ...] = ()
    outlook = None
    if privacy is not None and decided.guarantee is not None and decided.noise is not None:
        with output.session() as session:
            source = resolve(session, data)
            others = alternatives(decided.problem, privacy, lambda other: other.require_room(session, source))
            outlook = charging.outlook(
                session,
                source.table,
                decided.guarantee,
                decided.noise.releases(),
                dataset=data.dataset,
                at_epsilon=partial(priced_at, decided.problem, privacy, training),
            )
    output.print(
        plan_report.plan_text(decided, others, outlook), plan_report.plan_record(decided, others, outlook)
    )


@command
def train(
    spec: Spec,
    name: Annotated[str, typer.Option(help="Name of the new model.")],
    privacy: pg_dpml.PrivacySpec | None,
    training: pg_dpml.TrainSpec,
    output: Output,
    charge_key: Annotated[
        str | None,
        typer.Option(help="Key of the charge to a budget: repeating a run with its key is free."),
    ] = None,
) -> None:
    """Train a model, charge its privacy loss, and store it. All that happens in the database."""
    data = pg_dpml.DataSpec.from_toml(spec)
    with progress_bar() as progress:
        result = pg_dpml.train(
            output.dsn,
            data,
            privacy,
            training,
            name=name,
            progress=progress,
            insecure=output.insecure,
            charge_key=charge_key,
        )
    account = _account(output, result.model.charge)
    lines = [result_report.result_text(result), *([] if account is None else [account[0]]), _next(name)]
    record = result_report.result_record(result) | ({} if account is None else {"budget": account[1]})
    output.print("\n".join(lines), record)


def _account(output: Output, charge: int | None) -> tuple[str, dict[str, Any]] | None:
    """What is left of a run's budget, in words and for JSON; None without a budget that can be read."""
    if charge is None:
        return None
    try:
        with output.session() as session:
            found = budgets.account_of(session, charge)
            if found is None:
                return None
            budget, left = found
            runs = runs_left.runs_left(session, budget, left)
    except pg_dpml.DpmlError:  # the model is there all the same
        return None
    more = "".join(f"; {run.text}" for run in runs)
    text = f"{shown(budget.dataset)}: {budget.amount(left.cost)} left{more}"
    record = {
        "dataset": budget.dataset,
        "left": {"loss": str(left.cost.loss), "delta": str(left.cost.delta)},
        "runs_left": [{"count": run.count, "text": run.text} for run in runs],
    }
    return filled_lines([("Budget", text)])[0], record


def _next(name: str) -> str:
    """Commands for a new model."""
    literal = name.replace("'", "''")
    command = f"dpml evaluate {shlex.quote(name)} --table TABLE"
    return (
        f"Next: {command} --public     for rows that are public\n"
        f"  or: {command} --epsilon E  for private rows: one noisy error, which is charged\n"
        f"  or, in SQL: SELECT dpml.predict('{literal}', t) FROM TABLE t;"
    )


@command
def tune(
    spec: Spec,
    grid: Annotated[Path, typer.Option(help="Candidates, a TOML file: [grid] with a list per option.")],
    name: Annotated[str, typer.Option(help="Name of the new model.")],
    privacy: pg_dpml.PrivacySpec | None,
    output: Output,
    public_table: Annotated[
        str | None,
        typer.Option(
            help="Tune on this table, whose rows are public, at no cost. SPEC's own is refused; "
            "a view, partition or copy of it is not recognised."
        ),
    ] = None,
) -> None:
    """Train several candidates, and store one chosen privately. All of it is one charge."""
    data = pg_dpml.DataSpec.from_toml(spec)
    with progress_bar() as progress:
        result = pg_dpml.tune(
            output.dsn,
            data,
            privacy,
            pg_dpml.Grid.from_toml(grid),
            name=name,
            public_table=public_table,
            progress=progress,
            insecure=output.insecure,
        )
    output.print(f"{result_report.tuning_text(result)}\n{_next(name)}", result_report.tuning_record(result))


@command
def compare(
    spec: Spec,
    output: Output,
    methods: Annotated[
        str, typer.Option(metavar="NAME,...", help="Methods, each with its default options.")
    ] = ",".join(default_methods()),
    epsilons: Annotated[
        str, typer.Option(metavar="E,...", help="Privacy losses, each in [1e-12, 100].")
    ] = ",".join(f"{epsilon:g}" for epsilon in DEFAULT_EPSILONS),
    delta: Annotated[float | None, typer.Option(help="In [0, 1). Default: 1/n^2.")] = None,
    relation: Annotated[
        pg_dpml.Relation, typer.Option(help="Which tables count as neighbours.")
    ] = pg_dpml.Relation.REPLACE_ONE,
    splits: Annotated[int, typer.Option(help="Random splits, 80 % to train on.")] = DEFAULT_SPLITS,
    public: Annotated[bool, typer.Option("--public", help="The rows of the table are public.")] = False,
    owner: Annotated[
        bool, typer.Option("--owner", help="The rows are private: exact figures, for their owner alone.")
    ] = False,
    file: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write a plot, too: .png, .svg, .pdf or .html.")
    ] = None,
) -> None:
    """Measure methods on random splits of a table. Say --public or --owner; nothing is stored."""
    if file is not None and file.suffix not in (".html", *(f".{format}" for format in plots.FORMATS)):
        raise pg_dpml.SpecError(f"--output must end in .png, .svg, .pdf or .html, not {file.name}")
    if file is not None:
        require_folder(file)
    data = pg_dpml.DataSpec.from_toml(spec)
    with progress_bar() as progress:
        found = pg_dpml.compare(
            output.dsn,
            data,
            methods=_words(methods),
            epsilons=_numbers(epsilons, "--epsilons"),
            delta=delta,
            relation=relation,
            splits=splits,
            public=public,
            owner=owner,
            progress=progress,
            insecure=output.insecure,
        )
    output.print(comparison_report.comparison_text(found), comparison_report.comparison_record(found))
    if file is None:
        return
    if file.suffix == ".html":
        content = comparison_html(found).encode()
    else:
        content = plots.comparison_plot(found, comparison_report.comparison_stamp(found), file.suffix[1:])
    write_file(file, content)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _numbers(text: str, option: str) -> list[float]:
    try:
        return [float(word) for word in _words(text)]
    except ValueError:
        raise pg_dpml.SpecError(f"{option} must be numbers separated by commas, not {text}") from None


@command
def evaluate(
    model: ModelName,
    table: Table,
    output: Output,
    public: Annotated[bool, typer.Option("--public", help="The rows of the table are public.")] = False,
    owner: Annotated[
        bool, typer.Option("--owner", help="The rows are private: exact figures, for their owner alone.")
    ] = False,
    epsilon: Annotated[
        float | None, typer.Option(help="The rows are private: release one noisy error, and charge this.")
    ] = None,
    delta: Annotated[float, typer.Option(help="With --epsilon, in [0, 1).")] = 0.0,
    relation: Annotated[
        pg_dpml.Relation, typer.Option(help="With --epsilon: which tables count as neighbours.")
    ] = pg_dpml.Relation.REPLACE_ONE,
    clip: Annotated[
        float | None,
        typer.Option(help="With --epsilon: bound on a row's squared error. Default: the largest."),
    ] = None,
    definition_is_public: Annotated[
        bool, typer.Option("--definition-is-public", help="With --epsilon, for a view: its filter is public.")
    ] = False,
    dataset: Annotated[
        str | None,
        typer.Option(help="With --epsilon: the budget to charge. Default: the table's or the model's."),
    ] = None,
) -> None:
    """Measure a stored model on a table. In exactly one way: --public, --owner or --epsilon."""
    privacy = None if epsilon is None else pg_dpml.PrivacySpec(epsilon, delta, relation)
    found = pg_dpml.evaluate(
        output.dsn,
        model,
        table,
        public=public,
        owner=owner,
        privacy=privacy,
        clip=clip,
        definition_is_public=definition_is_public,
        insecure=output.insecure,
        dataset=dataset,
    )
    account = None if found.error is None else _account(output, found.error.charge)
    lines = [evaluation_report.evaluation_text(found), *([] if account is None else [account[0]])]
    record = evaluation_report.evaluation_record(found) | ({} if account is None else {"budget": account[1]})
    output.print("\n".join(lines), record)


@command
def predict(
    model: ModelName,
    table: Table,
    id: Annotated[str, typer.Option(help="Column that identifies a row, with a value of its own in each.")],
    into: Annotated[str, typer.Option(help="Name of the new table.")],
    output: Output,
) -> None:
    """Write a model's predictions for a table into a new table."""
    rows = pg_dpml.predict(output.dsn, model, table, id_column=id, into=into, insecure=output.insecure)
    output.print(f"{rows:,} predictions in table {visible(into)}", {"table": into, "rows": rows})


@command
def demo(
    epsilon: Annotated[float, typer.Option(help="Privacy loss, in [1e-12, 100].")] = 1.0,
    folder: Annotated[Path | None, typer.Option(help="Keep the server's files here.")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the server running until Ctrl-C.")] = False,
    spec: Annotated[bool, typer.Option("--spec", help="Only print the demo's data spec.")] = False,
    format: OutputFormat = "text",
) -> None:
    """Train a private model of census data on a server of its own. The data is Adult, which comes along."""
    if spec:
        say(ADULT_SPEC.read_text(encoding="utf-8").rstrip("\n"))
        return
    note("Starting a private PostgreSQL and loading the Adult census data ...")
    resume()
    with adult_server(folder) as server:
        found = run_demo(server, epsilon, progress_bar)
        Output("", False, format).print(found.text, found.record)
        if keep:
            environment = " ".join(f"{key}={shlex.quote(value)}" for key, value in server.environment.items())
            commands = shlex.quote(str(Path(sys.argv[0]).resolve().parent))
            end = "deletes it with all its tables and models (--folder FOLDER keeps them)"
            if folder is not None:
                end = f"stops it; its tables and models stay in {folder}"
            programs = shlex.quote(str(server.programs))
            try:
                note(_KEEP.format(end=end, folder=commands, programs=programs, environment=environment))
                while True:
                    signal.pause()
            finally:
                note("Stopping the server " + ("and deleting it ..." if folder is None else "..."))
    note(_NEXT)
