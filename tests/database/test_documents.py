# SPDX-License-Identifier: PostgreSQL
"""Every block of the documents, run as a reader would, on a server with the tables of the demo."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from helpers.documents import RUN_IN_ORDER, Block, blocks
from pg_dpml.server.demo_data import load_adult
from pg_dpml.server.embedded import EmbeddedServer

NOT_RUN = {"README.md": 1, "docs/install.md": 9, "docs/operations.md": 1, "docs/distributed.md": 3}
"""Blocks by page that no test can run. A new one is decided here, and says why in its comment."""

TIMEOUT_S = 120


class Terminal:
    """A terminal in which somebody works through a page: variables that a block exports stay.

    Parameters
    ----------
    folder : Path
        Working folder, with the files that earlier pages wrote.
    environment : mapping of str to str
        Variables at the start of a page.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._environment = dict(environment)
        self._variables = folder.parent / "variables"

    def _command(self, block: Block) -> tuple[list[str], str]:
        """The program that takes a block, and its standard input."""
        if block.language == "sql":
            return ["psql", "-X", "-v", "ON_ERROR_STOP=1", "-P", "pager=off", "-f", "-"], block.text
        if block.language == "python":
            return [sys.executable, "-"], block.text
        assert block.language == "sh", f"{block.place}: say how to run a block of {block.language!r}"
        return ["bash", "-e", "-c", f"{block.text}\nenv -0 >{self._variables}"], ""

    def run(self, block: Block) -> str:
        """What a block prints on standard output."""
        command, given = self._command(block)
        done = subprocess.run(
            command,
            input=given,
            cwd=self._folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        expected = int(block.argument) if block.word == "exit code" else 0
        shown = f"{block.place}\n{block.text}{done.stdout}{done.stderr}"
        assert done.returncode == expected, f"exit code {done.returncode}\n{shown}"
        if block.language == "sh" and expected == 0:
            pairs = self._variables.read_text(encoding="utf-8").split("\0")
            self._environment = dict(pair.split("=", 1) for pair in pairs if pair)
        return done.stdout

    @contextmanager
    def start(self, block: Block) -> Iterator[None]:
        """Run a block in the background, once it has said that it is ready; it must live until the end."""
        *before, last = block.text.splitlines()
        running = subprocess.Popen(
            ["bash", "-e", "-c", "\n".join([*before, f"exec {last}"])],
            cwd=self._folder,
            env=self._environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        assert running.stderr is not None
        try:
            said = running.stderr.readline()
            assert b" serves " in said, f"{block.place}: {said!r}"
            yield
        finally:
            running.send_signal(signal.SIGTERM)
            ended = running.wait(TIMEOUT_S)
            running.stderr.close()
        assert ended == 128 + signal.SIGTERM, f"{block.place}: ended with {ended}"


def _pattern(text: str) -> str:
    """A regular expression for what a document shows, "..." for anything."""
    lines = "\n".join(line.rstrip() for line in text.strip("\n").splitlines())
    return re.escape(lines).replace(re.escape("..."), ".*?")


def _without_numbers(text: str) -> str:
    text = re.sub(r"[-+]?\d+(?:[.,:]\d+)*(?:e[-+]?\d+)?", "#", text)
    return re.sub(r"[ \t]+", " ", re.sub(r"-{2,}", "--", text))


def compare(block: Block, printed: str) -> None:
    """What was printed is what the document shows."""
    printed = "\n".join(line.rstrip() for line in printed.strip("\n").splitlines())
    shown = block.text
    if block.numbers_vary:
        printed, shown = _without_numbers(printed), _without_numbers(shown)
    assert re.fullmatch(_pattern(shown), printed, re.DOTALL), f"{block.place}: printed was\n{printed}"


def test_shown_text_is_compared() -> None:
    """The comparison can fail."""
    block = Block("page", 1, "text", "a 1\n...\nb 2.5e-3\n", "prints", "", False)
    compare(block, "a 1\nx\ny\nb 2.5e-3\n\n")
    with pytest.raises(AssertionError):
        compare(block, "a 1\nx\nb 2.6e-3\n")
    varied = Block("page", 1, "text", "a 1\n...\nb 2.5e-3\n", "prints", "", True)
    compare(varied, "a   17\nx\nb -3")
    with pytest.raises(AssertionError):
        compare(varied, "a 17\nx\nc 3")


def test_blocks_that_are_not_run_are_counted() -> None:
    found = Counter(block.page for page in RUN_IN_ORDER for block in blocks(page) if block.word == "not run")
    assert found == NOT_RUN


@pytest.fixture
def terminals(
    server: EmbeddedServer, database: str, dpml_program: Path, tmp_path: Path
) -> Iterator[tuple[Path, dict[str, str]]]:
    """Folder and variables of a reader on a server like the demo's; roles that the pages make are dropped."""
    folder = tmp_path / "work"
    folder.mkdir()
    for name in ("bash", "psql"):
        assert shutil.which(name, path=f"{server.programs}:{os.environ['PATH']}"), name
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("PG", "FORCE_", "TTY_"))
    }
    environment = kept | server.environment
    environment |= {
        "PATH": f"{dpml_program.parent}:{server.programs}:{kept['PATH']}",
        "COLUMNS": "100",
        "PYTHONDEVMODE": "",
    }
    roles = "SELECT rolname FROM pg_catalog.pg_roles"
    with psycopg.connect(database, autocommit=True) as connection:
        environment["PGDATABASE"] = connection.info.dbname
        before = {role for (role,) in connection.execute(roles).fetchall()}
        load_adult(connection)
        yield folder, environment
        for (role,) in connection.execute(roles).fetchall():
            if role not in before:
                connection.execute(sql.SQL("DROP OWNED BY {} CASCADE").format(sql.Identifier(role)))
                connection.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))


@pytest.mark.slow
@pytest.mark.one_major
def test_every_block_runs(terminals: tuple[Path, dict[str, str]]) -> None:
    """Page by page, in order; a page starts with a new terminal, in the same folder."""
    folder, environment = terminals
    ran: Counter[str] = Counter()
    for page in RUN_IN_ORDER:
        terminal, printed = Terminal(folder, environment), ""
        with ExitStack() as background:
            for block in blocks(page):
                ran[block.word] += 1
                if block.word == "file":
                    (folder / block.argument).write_text(block.text, encoding="utf-8")
                elif block.word == "in the background":
                    background.enter_context(terminal.start(block))
                elif block.word == "prints":
                    compare(block, printed)
                elif block.word != "not run":
                    printed = terminal.run(block)
    assert min(ran["file"], ran["prints"], ran["in the background"]) >= 1
    assert ran[""] > 40
