# SPDX-License-Identifier: PostgreSQL
"""A forwarder between a client and a server, which can lose the connection at any request, or translate."""

from __future__ import annotations

import contextlib
import re
import select
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable
from enum import Enum
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict, make_conninfo

_PORT = "5432"  # only part of the socket's name


class Loss(Enum):
    """How the connection is lost at a request."""

    NONE = "not at all"
    REQUEST = "before the server has it"
    ANSWER = "after the server has done it, before the client knows"


Decide = Callable[[int, str], Loss]
"""Gets the number of a request, from 1, and its SQL, before it is passed on."""


def lose_nothing(number: int, text: str) -> Loss:
    return Loss.NONE


# As in PostgreSQL's own German catalogue.
_GERMAN = {
    r"permission denied for (?:table|view) (.*)": r"keine Berechtigung für Tabelle \1",
    r"permission denied for schema (.*)": r"keine Berechtigung für Schema \1",
    r"permission denied for (?:function|aggregate) (.*)": r"keine Berechtigung für Funktion \1",
    r"query would be affected by row-level security policy for table \"(.*)\"": (
        r"Anfrage würde durch Policy für Sicherheit auf Zeilenebene für Tabelle »\1« beeinflusst werden"
    ),
    r"schema \"(.*)\" does not exist": r"Schema »\1« existiert nicht",
    r"relation \"(.*)\" does not exist": r"Relation »\1« existiert nicht",
    r"function (.*) does not exist": r"Funktion \1 existiert nicht",
}


def german(message: str) -> str:
    """A server's message in another language: one it has a translation of, or none that is understood."""
    for pattern, translation in _GERMAN.items():
        if found := re.fullmatch(pattern, message):
            return found.expand(translation)
    return f"nicht übersetzt: {message[::-1]}"


class FaultProxy:
    """`with FaultProxy(dsn) as proxy: psycopg.connect(proxy.dsn)`, for a server on a Unix socket.

    Parameters
    ----------
    dsn : str
    translate : callable or None
        Makes another primary message of that of an error or notice; clients must speak UTF-8.

    Attributes
    ----------
    dsn : str
    requests : list of str
        SQL of every request of all connections so far; the end of a COPY is a request of its own.
    """

    def __init__(self, dsn: str, translate: Callable[[str], str] | None = None) -> None:
        self._translate = translate
        server = conninfo_to_dict(dsn)
        self._server = f"{server['host']}/.s.PGSQL.{server['port']}"
        self._folder = Path(tempfile.mkdtemp(prefix="proxy-"))
        self.dsn = make_conninfo(dsn, host=str(self._folder), port=_PORT)
        self.requests: list[str] = []
        self._decide: Decide = lose_nothing
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self._folder / f".s.PGSQL.{_PORT}"))
        self._listener.listen()

    def __enter__(self) -> FaultProxy:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._listener.close()
        shutil.rmtree(self._folder)

    def arm(self, decide: Decide = lose_nothing) -> None:
        """Count requests from 1 again."""
        self._decide = decide
        self.requests = []

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _translated(self, server: socket.socket) -> bytes:
        message = _message(server, _some(server, 1))
        assert self._translate is not None
        if message[:1] not in (b"E", b"N"):
            return message
        body = _fields(message[5:], self._translate)
        return message[:1] + (len(body) + 4).to_bytes(4, "big") + body

    def _serve(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as server, contextlib.suppress(OSError, EOFError):
            server.connect(self._server)
            server.sendall(_message(client, b""))  # start, or a request to cancel
            text = ""
            while True:
                ready, _, _ = select.select([client, server], [], [])
                if server in ready:
                    client.sendall(_some(server) if self._translate is None else self._translated(server))
                    continue
                message = _message(client, _some(client, 1))
                kind, body = message[:1], message[5:]
                if kind == b"Q":
                    text = body[:-1].decode()
                elif kind == b"P":
                    text = body.split(b"\0")[1].decode()
                loss = Loss.NONE
                if kind in (b"Q", b"S", b"c"):  # query, sync, end of COPY: the client waits for an answer
                    self.requests.append("end of COPY" if kind == b"c" else text)
                    loss = self._decide(len(self.requests), self.requests[-1])
                if loss is Loss.REQUEST:
                    return
                server.sendall(message)
                while loss is Loss.ANSWER:
                    if _message(server, _some(server, 1))[:1] in (b"Z", b"G"):  # ready, or ready to COPY
                        return


def _fields(report: bytes, translate: Callable[[str], str]) -> bytes:
    """The fields of an error or notice, with the severity and primary message for people translated."""
    changed = b""
    for part in report.split(b"\0")[:-2]:
        kind, text = part[:1], part[1:]
        if kind == b"S":
            text = b"FEHLER"
        if kind == b"M":
            text = translate(text.decode("utf-8", "replace")).encode()
        changed += kind + text + b"\0"
    return changed + b"\0"


def _some(source: socket.socket, most: int = 2**16) -> bytes:
    data = source.recv(most)
    if not data:
        raise EOFError
    return data


def _message(source: socket.socket, kind: bytes) -> bytes:
    """A whole message whose first byte was read; the first of a connection has no such byte."""
    length = _exactly(source, 4)
    return kind + length + _exactly(source, int.from_bytes(length, "big") - 4)


def _exactly(source: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += _some(source, size - len(data))
    return data
