# SPDX-License-Identifier: PostgreSQL
"""Links, anchors and command lines of the documents lead somewhere."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from helpers.documents import (
    REFERENCE,
    ROOT,
    RUN_IN_ORDER,
    anchors,
    blocks,
    command_lines,
    links,
    pages,
    prose,
)
from pg_dpml import cli

README_LINES = 120
GROUPS = typer.main.get_command(cli.app).commands  # type: ignore[attr-defined]
COMMANDS: dict[tuple[str, ...], Any] = {
    (name, below) if below else (name,): command
    for name, group in GROUPS.items()
    for below, command in getattr(group, "commands", {"": group}).items()
}


def test_every_page_is_run_or_a_reference() -> None:
    assert set(pages()) - {"CONTRIBUTING.md"} <= {*RUN_IN_ORDER, *REFERENCE}
    assert set(RUN_IN_ORDER) <= set(pages())


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= README_LINES


@pytest.mark.parametrize("page", pages())
def test_links_and_anchors_exist(page: str) -> None:
    for target in links(page):
        if re.match(r"[a-z]+://", target):
            continue
        name, _, anchor = target.partition("#")
        path = (ROOT / page).parent / name if name else ROOT / page
        assert path.exists(), f"{page}: {target}"
        if anchor:
            assert anchor in anchors(path.read_text(encoding="utf-8")), f"{page}: {target}"


def test_every_page_is_linked_from_the_readme() -> None:
    linked = {Path(target.partition("#")[0]) for target in links("README.md")}
    for page in pages():
        assert page == "README.md" or Path(page) in linked, page


@pytest.mark.parametrize("page", pages())
def test_command_lines_name_commands_and_options(page: str) -> None:
    for line in command_lines(page):
        words = shlex.split(line.partition(" | ")[0].partition(" #")[0].partition(" > ")[0])
        named = tuple(word for word in words[1:3] if word in GROUPS or re.fullmatch("[a-z]+", word))
        command = COMMANDS.get(named, COMMANDS.get(named[:1]))
        options = {word.partition("=")[0] for word in words if re.match("--?[a-z]", word)}
        if command is None:  # a group, or no command at all
            assert named[:1] == () or named[0] in GROUPS, f"{page}: {line}"
            assert len(named) < 2, f"{page}: {line}"
            known = {"--version", "--help", "--install-completion"}
        else:
            known = {"--help", *(o for p in command.params for o in (*p.opts, *p.secondary_opts))}
        assert options <= known, f"{page}: {line}"


@pytest.mark.parametrize("page", pages())
def test_prose_is_wrapped(page: str) -> None:
    for line in prose(page).splitlines():
        assert len(line) <= 125 or line.startswith("|"), f"{page}: {line}"


@pytest.mark.parametrize("page", pages())
def test_comments_above_blocks_are_known(page: str) -> None:
    words = {"", "not run", "file", "in the background", "exit code", "prints"}
    for block in blocks(page):
        assert block.word in words, block.place
        assert bool(block.argument) == (block.word in ("not run", "file", "exit code")), block.place
