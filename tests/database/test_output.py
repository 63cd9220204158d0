# SPDX-License-Identifier: PostgreSQL
"""Terminals that lack characters, and output that cannot be written: no traceback, and no half of a file."""

from __future__ import annotations

import json
import os
import shlex
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

import pg_dpml
from pg_dpml.cli.framework import write_file
from pg_dpml.errors import DpmlError
from pg_dpml.spec.columns import Column, Label
from pg_dpml.spec.data import DataSpec
from pg_dpml.spec.privacy import PrivacySpec
from pg_dpml.training.spec import TrainSpec

pytestmark = pytest.mark.one_major

RUN = f"{shlex.quote(sys.executable)} -c 'from pg_dpml.cli import main; main()'"
LEVELS = ("é", "\ufeff特", "\x1b[31mred", "plain")

Shell = Callable[..., "subprocess.CompletedProcess[bytes]"]


@pytest.fixture(scope="module", autouse=True)
def model(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int, word text, y bool)")
        connection.execute(
            "INSERT INTO t SELECT g, (%s::text[])[1 + g %% 4], g %% 2 = 0 FROM generate_series(1, 40) g",
            (list(LEVELS),),
        )
    data = DataSpec("t", Label("y", positive="true"), (Column("word", levels=LEVELS),))
    pg_dpml.train(database, data, PrivacySpec(1.0, 1e-6), TrainSpec(method="bolt-on", passes=1), name="né")


@pytest.fixture
def shell(database: str, tmp_path: Path) -> Shell:
    """Runs a line of sh in which `dpml` is the command; the home directory does not exist."""

    def run(line: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("PG", "LC_", "LANG"))}
        function = f'dpml() {{ {RUN} "$@"; }}\n'
        given = kept | {"HOME": "/dev/null/home", "DSN": database} | environment
        return subprocess.run(
            ["bash", "-c", function + line],
            cwd=tmp_path,
            env=given,
            capture_output=True,
            timeout=120,
            check=False,
        )

    return run


def clean(result: subprocess.CompletedProcess[bytes]) -> str:
    """What was said, after a look that it was said in words."""
    assert b"Traceback" not in result.stderr
    assert b"Error:" not in result.stderr
    assert b"Exception ignored" not in result.stderr
    return result.stderr.decode()


@pytest.mark.parametrize(
    ("environment", "lacking"),
    [
        ({"PYTHONIOENCODING": "cp932"}, ["\\xe9"]),
        ({"PYTHONIOENCODING": "ascii"}, ["\\xe9", "\\u7279"]),
        ({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, ["\\xe9", "\\u7279"]),
        ({"PYTHONIOENCODING": "utf-8"}, []),
    ],
)
def test_what_a_terminal_lacks_is_escaped(
    shell: Shell, environment: dict[str, str], lacking: list[str]
) -> None:
    shown = shell(
        'dpml show "$(printf "n\\303\\251")" --dsn "$DSN"; dpml show nosuché --dsn "$DSN"', **environment
    )
    said = clean(shown)
    assert shown.returncode == 2
    encoding = environment.get("PYTHONIOENCODING", "ascii")
    text = shown.stdout.decode(encoding)
    assert "Coefficients" in text
    assert [escape for escape in ("\\xe9", "\\u7279") if escape in text] == lacking
    assert "\\ufeff" in text
    assert "\x1b" not in text
    assert "there is no model called nosuch" in said


def test_json_is_whole_wherever_it_is_printed(shell: Shell) -> None:
    for encoding in ("cp932", "utf-8"):
        printed = shell('dpml export "$(printf "n\\303\\251")" --dsn "$DSN"', PYTHONIOENCODING=encoding)
        assert (printed.returncode, clean(printed)) == (0, "")
        record = json.loads(printed.stdout.decode("ascii"))
        assert (record["name"], record["encoder"]["columns"][0]["levels"]) == ("né", list(LEVELS))


@pytest.mark.parametrize("command", ['models --dsn "$DSN"', "--help", "--version", "models --help"])
def test_a_full_disk_is_one_line(shell: Shell, command: str) -> None:
    full = shell(f"dpml {command} > /dev/full")
    said = clean(full)
    assert full.returncode == 1
    assert said.count("\n") == 1
    assert said.startswith("dpml: standard output cannot be written")
    assert "No space left on device" in said


def test_output_that_is_closed(shell: Shell) -> None:
    closed = shell('dpml models --dsn "$DSN" >&-')
    assert closed.returncode == 1
    assert "standard output cannot be written" in clean(closed)
    assert shell('dpml show nosuch --dsn "$DSN" 2>&-').returncode == 2
    assert shell('dpml show nosuch --dsn "$DSN" 2> /dev/full').returncode == 2
    asked = shell('dpml drop "$(printf "n\\303\\251")" --dsn "$DSN" <&-')
    assert asked.returncode == 2
    assert "say --yes" in clean(asked)
    assert shell('dpml models --dsn "$DSN" <&- >&- 2>&-').returncode == 1


def test_a_reader_that_leaves_is_no_error(shell: Shell) -> None:
    left = shell('dpml models --dsn "$DSN" | true; echo "${PIPESTATUS[0]}"')
    assert clean(left) == ""
    assert left.stdout == b"141\n"


def test_bytes_that_are_no_text_are_refused(shell: Shell) -> None:
    refused = shell('dpml show "$(printf "n\\351")" --dsn "$DSN"')
    assert refused.returncode == 2
    assert '--model must be text, and "n\\udce9" is not UTF-8' in clean(refused)


def test_files_that_cannot_be_written(shell: Shell, dpml_program: Path, tmp_path: Path) -> None:
    arguments = 'report "$(printf "n\\303\\251")" --dsn "$DSN" -o'
    # A forked command has the limits and the mask of the process that it is forked from.
    report, forked = f"dpml {arguments}", f"{shlex.quote(str(dpml_program))} {arguments}"
    (tmp_path / "folder.html").mkdir()
    (tmp_path / "old.html").write_text("old", encoding="utf-8")
    for target, code, words in (
        ("/dev/full", 1, "No space left on device"),
        ("folder.html", 2, "is a folder"),
        ("no/such.html", 2, "there is no folder no"),
        # More than a megabyte does not fit.
        ("old.html", 1, "cannot be written"),
    ):
        limited = f"ulimit -f 8; trap '' XFSZ; {report}"
        failed = shell(f"{limited if target == 'old.html' else forked} {target}")
        said = clean(failed)
        assert failed.returncode == code
        assert words in said
        assert said.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder.html", "old.html"]
    assert (tmp_path / "old.html").read_text(encoding="utf-8") == "old"

    good = shell(f"umask 022; {report} old.html", LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert (good.returncode, clean(good)) == (0, "")
    document = (tmp_path / "old.html").read_bytes().decode("utf-8")
    assert document.startswith("<!DOCTYPE html>")
    assert "é" in document
    assert "\ufeff" not in document
    assert stat.S_IMODE((tmp_path / "old.html").stat().st_mode) == 0o644


def test_a_file_is_written_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, link = tmp_path / "f", tmp_path / "link"
    file.write_bytes(b"old")
    link.symlink_to(file)

    def full(self: Path, content: bytes) -> int:
        with self.open("wb") as opened:
            opened.write(content[:2])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", full)
        with pytest.raises(DpmlError, match="cannot be written: No space left on device"):
            write_file(link, b"new content")
    assert file.read_bytes() == b"old"
    write_file(link, b"new content")
    assert file.read_bytes() == b"new content"
    assert link.is_symlink()
    assert len(list(tmp_path.iterdir())) == 2
