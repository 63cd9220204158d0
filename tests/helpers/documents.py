# SPDX-License-Identifier: PostgreSQL
"""The documents of the repository: their pages, fenced blocks, links and command lines.

A comment on the line above a fence says what a test does with the block:

    <!-- not run: REASON -->            nothing; tests/database/test_documents.py counts these
    <!-- file: NAME -->                 writes it to a file in the working folder
    <!-- in the background -->          starts it, and ends it by SIGTERM when the page ends
    <!-- exit code: N -->               runs it and expects this exit code of its last command
    <!-- prints -->                     compares it with what the block above printed; "..." is anything
    <!-- prints, numbers vary -->       the same, but for numbers and the width of columns
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

RUN_IN_ORDER = (
    "README.md",
    "docs/install.md",
    "docs/data-spec.md",
    "docs/training.md",
    "docs/methods.md",
    "docs/choosing.md",
    "docs/models.md",
    "docs/budgets.md",
    "docs/training-for-others.md",
    "docs/sql.md",
    "docs/for-owners.md",
    "docs/for-analysts.md",
    "docs/for-security-officers.md",
    "docs/security.md",
    "docs/operations.md",
    "docs/distributed.md",
    "docs/glossary.md",
)
"""Pages whose blocks are run, one after the other on one server: what a page makes, the next ones may use."""

REFERENCE = (
    "docs/guarantees.md",
    "docs/options.md",
    "docs/cli.md",
    "docs/architecture.md",
    "docs/reproduction.md",
)
"""Pages without blocks to run."""

_FENCE = re.compile(
    r"(?:^<!-- (?P<word>[a-z ]+?)(?P<vary>, numbers vary)?(?:: (?P<argument>[^\n]+?))? -->\n)?"
    r"^(?P<fence>```+)(?P<language>\S*)\n(?P<text>.*?)^(?P=fence)$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A fenced block, where it is, and what the comment above it says."""

    page: str
    line: int
    language: str
    text: str
    word: str
    argument: str
    numbers_vary: bool

    @property
    def place(self) -> str:
        """For messages."""
        return f"{self.page}:{self.line}"


def pages() -> list[str]:
    """Every document, by its path below the root."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
    return [str(path.relative_to(ROOT)) for path in found]


def text_of(page: str) -> str:
    """A page's source."""
    return (ROOT / page).read_text(encoding="utf-8")


def corpus() -> str:
    """README.md and all of docs/."""
    return "\n".join(text_of(page) for page in pages() if page != "CONTRIBUTING.md")


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page, in order."""
    source = text_of(page)
    found = [
        Block(
            page,
            source.count("\n", 0, match.start("fence")) + 1,
            match["language"],
            match["text"],
            match["word"] or "",
            match["argument"] or "",
            match["vary"] is not None,
        )
        for match in _FENCE.finditer(source)
    ]
    assert 2 * len(found) == len(re.findall(r"^```", source, re.MULTILINE)), page
    return found


def prose(page: str) -> str:
    """A page without its fenced blocks and comments."""
    return re.sub(r"<!--.*?-->", "", _FENCE.sub("", text_of(page)), flags=re.DOTALL)


def links(page: str) -> list[str]:
    """The targets of the links of a page."""
    return re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", prose(page)))


def anchors(source: str) -> set[str]:
    """The anchors that headings have on GitHub."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", _FENCE.sub("", source), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        found.add(re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-"))
    return found


def command_lines(page: str) -> Iterator[str]:
    """What begins with `dpml`: lines of blocks, and code in sentences."""
    for block in blocks(page):
        if block.language == "sh":
            yield from re.findall(r"^ *(?:\w+=\S+ )*(dpml .*)$", block.text, re.MULTILINE)
    for code in re.findall(r"`([^`]+)`", prose(page)):
        found = re.fullmatch(r"(?:\w+=\S+ )*(dpml .*)", " ".join(code.split()))
        if found:
            yield found[1]
