# SPDX-License-Identifier: PostgreSQL
"""Pages of the documents that are made from the code: options, methods and commands.

`python -m pg_dpml.cli.reference docs` writes them.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import typer.main

from pg_dpml import cli
from pg_dpml.cli.framework import option_help
from pg_dpml.errors import DpmlError
from pg_dpml.training.method import Card, Method, declared_option, method_options, methods
from pg_dpml.training.options import shown_name

__all__ = ["pages"]

_MADE = "<!-- Made by python -m pg_dpml.cli.reference docs: change the code, not this page. -->"

_ROWS = {
    "theorem": "Theorem",
    "sensitivity": "Sensitivity",
    "checked": "Checked",
    "charged": "Charged",
    "post_processing": "Post-processing",
    "corrected": "Corrected",
}

_NOTATION = [
    ["n, m", "number of units, public; most rows of a unit that are used, 1 without a unit of privacy"],
    [
        "b, q",
        "nominal number of units in a batch; probability that a unit is in one. In objective perturbation b "
        "is the random linear term",
    ],
    ["k, T", "passes over all rows; steps"],
    ["K", "number of classes"],
    ["L, beta", "most that the norm of a row's gradient, and of its Hessian, can be"],
    ["C", "bound that a row's gradient, its derivative or its update is clipped at"],
    ["D", "most that one unit, all its rows together, moves a sum (in the rules: one row)"],
    ["lambda, Lambda", "weight of the regulariser: lambda of a mean of losses, Lambda = n lambda of a sum"],
    ["R", "radius of the ball that the weights are kept in"],
    ["sigma", "standard deviation of noise"],
    [
        "epsilon_1, epsilon_2, epsilon_3",
        "parts of epsilon in objective perturbation: of the exact minimiser, of the noise on the answer, "
        "and, within epsilon_1, of the linear term. The rest of epsilon_1 is for the regulariser",
    ],
    ["epsilon_0", "epsilon of one choice by the exponential mechanism"],
    ["mu, rho", "strength of a guarantee by Gaussian differential privacy, by zero-concentrated privacy"],
]
"""Letters that several cards share."""


def pages() -> Mapping[str, str]:
    """The text of every page that is made from the code, by its file name."""
    made = {
        "options.md": _options_page(),
        "guarantees.md": _guarantees_page(),
        "cli.md": _commands_page(),
    }
    return {name: "\n".join(map(_wrapped, lines)).rstrip() + "\n" for name, lines in made.items()}


def _wrapped(line: str) -> str:
    """Prose in lines of 120 characters; tables, headings and comments as they are."""
    if line.startswith(("|", "#", "<")):
        return line
    return textwrap.fill(line, 120, break_long_words=False, break_on_hyphens=False)


def _table(head: list[str], rows: list[list[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"
    yield ""


def _options_page() -> Iterator[str]:
    yield from ("# Options of training", "", _MADE, "")
    yield (
        "Every option of `dpml train`, `dpml plan` and `TrainSpec`, of a grid file and of a request. A value "
        "for a method that does not have the option is refused."
    )
    yield ""
    for name, used_by in method_options().items():
        shown = shown_name(name)
        declared = declared_option(name)
        yield from (f"## {shown}", "", option_help(name), "")
        flag = "" if isinstance(declared.default, bool) else f" {declared.domain.type.__name__.upper()}"
        yield f"`--{shown.replace('_', '-')}{flag}`; methods: {', '.join(f'`{one}`' for one in used_by)}."
        yield ""


def _guarantees_page() -> Iterator[str]:
    yield from ("# Guarantees of the methods", "", _MADE, "")
    yield from _table(
        ["method", "private", "what it does", "options"],
        [
            [
                f"`{name}`",
                "yes" if method.private else "no",
                f"{method.summary}{'; for comparison' if method.comparison else ''}",
                ", ".join(f"`{shown_name(one)}`" for one in method.options.declared()),
            ]
            for name, method in methods().items()
        ],
    )
    yield (
        "A card for each method: the theorem that it rests on, the conditions that are checked before a "
        "charge, what is charged, and what was corrected against the publication. Notation and every rule: "
        "[the rules of privacy](../controller/pg_dpml/privacy/README.md), whose section titles are in quotes."
    )
    yield from ("", "Letters that the cards share:", "")
    yield from _table(["letter", "meaning"], _NOTATION)
    for name, method in methods().items():
        for card in method.cards:
            yield from _card(name, method, card)


def _card(name: str, method: Method[Any], card: Card) -> Iterator[str]:
    yield from (
        f"## {name}{f', {card.title}' if card.title else ''}",
        "",
        f"{method.summary[:1].upper()}{method.summary[1:]}.",
        "",
    )
    yield from _table(
        ["", ""], [[head, getattr(card, row)] for row, head in _ROWS.items() if getattr(card, row)]
    )


def _commands_page() -> Iterator[str]:
    yield from ("# Commands", "", _MADE, "")
    yield "Exit codes: 0 for success, 1 for a run that failed, and:"
    yield ""
    codes = sorted({error.exit_code: error for error in DpmlError.__subclasses__()}.items())
    yield from _table(
        ["code", "meaning"],
        [[str(code), (error.__doc__ or "").partition("\n")[0]] for code, error in codes if code > 1],
    )
    root = typer.main.get_command(cli.app)
    for name, command in root.commands.items():  # type: ignore[attr-defined]
        for below, own in getattr(command, "commands", {"": command}).items():
            yield from _command(f"{name} {below}".strip(), own)


def _command(name: str, command: Any) -> Iterator[str]:
    yield from (f"## dpml {name}", "", " ".join(str(command.help).split()), "")
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option"]
    rows = [[f"`{p.metavar or p.name.upper()}`", p.help or ""] for p in arguments]
    rows += [[f"`{', '.join(p.opts)}`", " ".join((p.help or "").split())] for p in options]
    yield from _table(["argument or option", "meaning"], rows)


def write(folder: Path) -> None:
    """Write the pages into a folder."""
    for name, text in pages().items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
