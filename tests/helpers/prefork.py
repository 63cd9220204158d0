# SPDX-License-Identifier: PostgreSQL
"""The command `dpml` as a program of its own, forked from a process that has loaded its libraries.

Loading them takes a second and more, longer than most commands run. A forked command has the arguments, the
variables, the folder and the files of who calls it; its streams are UTF-8, whatever the locale.
"""

from __future__ import annotations

import gc
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_START_S = 60
_COUNT_BYTES = 8

# Hands its files over, waits, and ends as the command does; what it is sent by signals, it passes on.
_CALLER = """
import json, os, signal, socket, sys

COUNT_BYTES, SOCKET = {count_bytes}, {socket!r}

def number():
    said = b""
    while len(said) < COUNT_BYTES:
        part = link.recv(COUNT_BYTES - len(said))
        if not part:
            sys.exit("the process that runs dpml has ended")
        said += part
    return int.from_bytes(said, "big")

link = socket.socket(socket.AF_UNIX)
link.connect(SOCKET)
said = json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]).encode()
socket.send_fds(link, [len(said).to_bytes(COUNT_BYTES, "big")], [0, 1, 2])
link.sendall(said)
command = number()
for sent in (signal.SIGINT, signal.SIGTERM):
    signal.signal(sent, lambda sent, _: os.kill(command, sent))
status = number()
if os.WIFSIGNALED(status):
    signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
    os.kill(os.getpid(), os.WTERMSIG(status))
sys.exit(os.WEXITSTATUS(status))
"""


@contextmanager
def program() -> Iterator[Path]:
    """The path of a program `dpml`, which works until the end of the context."""
    with tempfile.TemporaryDirectory(prefix="dpml-") as name:
        place, caller, dpml = (Path(name) / file for file in ("socket", "caller.py", "dpml"))
        caller.write_text(_CALLER.format(count_bytes=_COUNT_BYTES, socket=str(place)), encoding="utf-8")
        words = [sys.executable, "-I", "-S", str(caller)]
        dpml.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n', encoding="utf-8")
        dpml.chmod(0o755)
        command = [sys.executable, "-c", f"from helpers.prefork import serve; serve({str(place)!r})"]
        paths = os.pathsep.join(path for path in sys.path if path)
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, env=os.environ | {"PYTHONPATH": paths}
        ) as running:
            try:
                deadline = time.monotonic() + _START_S
                while not place.exists():
                    assert running.poll() is None, "the process that runs dpml did not start"
                    assert time.monotonic() < deadline
                    time.sleep(0.02)
                yield dpml
            finally:
                running.kill()


def serve(place: str) -> None:
    """Fork a command for every caller; returns in none of the processes before its command has ended."""
    import matplotlib.backends.backend_agg
    import matplotlib.backends.backend_svg  # noqa: F401
    import psycopg  # noqa: F401
    import scipy.optimize
    import scipy.signal  # noqa: F401

    from pg_dpml.cli import main

    gc.freeze()  # commands need not look through what was loaded, which would copy its pages
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those who wait
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(f"{place}.new")
        door.listen(16)
        Path(f"{place}.new").rename(place)
        while True:
            link, _ = door.accept()
            if os.fork() == 0:
                break
            link.close()
    with link:
        _become_the_command(link)
    main()


def _become_the_command(link: socket.socket) -> None:
    """Fork once more: the child returns, as the command, and this process reports how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    count, files, _, _ = socket.recv_fds(link, _COUNT_BYTES, 3)
    with link.makefile("rb") as said:
        arguments, variables, folder = json.loads(said.read(int.from_bytes(count, "big")))
    command = os.fork()
    if command:
        for file in (0, 1, 2, *files):
            os.close(file)
        link.sendall(command.to_bytes(_COUNT_BYTES, "big"))
        link.sendall(os.waitpid(command, 0)[1].to_bytes(_COUNT_BYTES, "big"))
        os._exit(0)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv[:] = ["dpml", *arguments]
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        buffering = 1 if os.isatty(number) else -1
        stream = os.fdopen(number, mode, buffering, "utf-8", "backslashreplace", closefd=False)
        setattr(sys, name, stream)
