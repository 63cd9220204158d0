# SPDX-License-Identifier: PostgreSQL
"""The installation that the scripts begin with: it shows a sign of life, and what went wrong."""

from __future__ import annotations

import os
import pty
import shlex
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def lines(tmp_path: Path, pip: str) -> list[str]:
    """A shell that installs with a pip of its own."""
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{pip}\n", encoding="utf-8")
    python.chmod(0o755)
    script = (
        f". {shlex.quote(str(ROOT / 'scripts' / 'environment'))}; venv={shlex.quote(str(tmp_path))}; "
        'python=$venv/python; pip package; say "done"'
    )
    return ["bash", "-c", script]


def test_an_installation_says_what_it_does(tmp_path: Path) -> None:
    command = lines(tmp_path, "echo Collecting numpy; sleep 6.5; echo Installing collected packages")
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (run.returncode, run.stdout) == (0, "")
    first, *others = run.stderr.splitlines()
    assert first.endswith("s: Collecting numpy")
    assert others == ["done"]


def test_an_installation_moves_on_a_terminal(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    command = lines(tmp_path, "echo Collecting numpy; sleep 3.5")
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 4096)
        except OSError:  # Linux: the other end is closed
            break
        if not part:
            break
        shown += part
    os.close(ours)
    assert process.wait(timeout=60) == 0
    assert shown.count(b"\r") >= 2
    assert b"2 s: Collecting numpy" in shown
    assert shown.endswith(b"\r\x1b[Kdone\r\n")


@pytest.mark.parametrize("signal", ["", "kill -TERM $PPID; "])
def test_nothing_ticks_on_after_the_script(tmp_path: Path, signal: str) -> None:
    command = lines(tmp_path, f"{signal}echo ERROR: no matching distribution; exit 1")
    begun = time.monotonic()
    # Everything that the script started has standard error, which is read to its end.
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode != 0
    assert time.monotonic() - begun < 4
    if not signal:
        assert "no matching distribution" in run.stderr
        assert "the installation failed" in run.stderr
